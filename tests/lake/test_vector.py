"""Deletion vectors: rows of files as both formats store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from lakefeed.errors import LakeError
from lakefeed.lake import vector
from lakefeed.lake.vector import FILE, ROW, bitmap_of, decoded, encoded, positions, united

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = st.sets(st.one_of(st.integers(0, 200_000), st.integers(0, 2**32 - 1)), max_size=200)


@given(ROWS)
def test_what_is_encoded_is_decoded_again(rows: set[int]) -> None:
    assert set(decoded(encoded(BitMap(rows)), "here")) == rows


@given(ROWS)
def test_the_bitmap_inside_is_the_portable_one_for_64_bits(rows: set[int]) -> None:
    assert set(BitMap64.deserialize(encoded(BitMap(rows))[8:-4])) == rows


def test_a_vector_that_is_damaged_is_refused_with_its_place() -> None:
    stored = bytearray(encoded(BitMap([1, 5, 70_000])))
    stored[12] ^= 1
    with pytest.raises(LakeError, match=r"the deletion vector in v\.bin is damaged"):
        decoded(bytes(stored), "v.bin")
    with pytest.raises(LakeError, match="damaged"):
        decoded(encoded(BitMap([1]))[:-6], "v.bin")


def test_a_row_that_no_bitmap_of_32_bits_can_hold_is_refused() -> None:
    with pytest.raises(LakeError, match="more than four billion rows"):
        bitmap_of(np.array([2**32], np.int64))


def test_a_file_that_gets_no_further_mark_is_left_out() -> None:
    old = {"a": BitMap([1, 2]), "b": BitMap([3])}
    assert united(old, {"a": BitMap([2]), "b": BitMap([4]), "c": BitMap([0])}) == {
        "b": BitMap([3, 4]),
        "c": BitMap([0]),
    }


@pytest.mark.spark
def test_many_rows_come_as_bits_and_are_the_same_rows(spark: SparkSession) -> None:
    """Around the ends of Spark's buckets of 32,768 rows, too."""
    rows = [("a", row) for row in (0, 1, 32_767, 32_768, 65_535, 65_536, 3_000_000)] + [("b", 32_767)]
    gone = spark.createDataFrame(rows, f"{FILE} string, {ROW} long").repartition(3)
    listed = positions(gone, 10)
    assert listed == positions(gone, vector._MOST_LISTED + 1)
    assert {(file, row) for file, found in listed.items() for row in found} == set(rows)
