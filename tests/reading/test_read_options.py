"""Options: what is wrong is said in a sentence, with the choices there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reading.journals import add_people, opened

from lakefeed.errors import ConfigError
from lakefeed.reading.feed import TableFeed
from lakefeed.reading.options import Edge, ReadOptions, remedy_in_text

GOOD = {"journal": "/j", "table": "main.t"}


def test_a_lake_and_a_pipeline_name_the_state_directory() -> None:
    options = ReadOptions.parse({"path": "/lake", "pipeline": "shop", "table": "main.a.b"})
    assert options.journal == Path("/lake/_lakefeed/shop")
    assert (options.table.schema, options.table.name) == ("main", "a.b")
    assert (options.start, options.end, options.max_change_sets) == (Edge.EARLIEST, None, None)
    assert ReadOptions.parse({**GOOD, "journal": "file:///a%20b"}).journal == Path("/a b")


def test_places_are_numbers_or_names() -> None:
    options = ReadOptions.parse({**GOOD, "start": " 7 ", "end": "Latest", "max_change_sets": "3"})
    assert (options.start, options.end, options.max_change_sets) == (7, Edge.LATEST, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"journal": "/j"}, "needs the option 'table'"),
        ({"table": "main.t"}, "needs the option 'path'"),
        ({**GOOD, "path": "/lake"}, "either 'journal' or 'path'"),
        ({**GOOD, "tabel": "x"}, "no option 'tabel'"),
        ({**GOOD, "table": "people"}, "must read schema.table"),
        ({**GOOD, "start": "yesterday"}, "'start' is 'yesterday'; it must be a change set number from 1 on, or earl"),
        ({**GOOD, "start": "0"}, "'start' is '0'"),
        ({**GOOD, "end": "-1"}, "'end' is '-1'"),
        ({**GOOD, "end": "earliest"}, "from 1 on, or latest"),
        ({**GOOD, "max_change_sets": "0"}, "'max_change_sets' is '0'; it must be a number from 1 on"),
        ({**GOOD, "journal": "s3://b/j"}, "only local paths"),
    ],
)
def test_a_wrong_option_is_named_with_the_valid_choices(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ReadOptions.parse(options)


def test_what_belongs_to_streams_is_refused_in_a_batch_read_and_the_other_way_round() -> None:
    with pytest.raises(ConfigError, match=r"'max_change_sets' is for spark.readStream"):
        ReadOptions.parse({**GOOD, "max_change_sets": "1"}).for_batch()
    with pytest.raises(ConfigError, match="'start' is 'latest'"):
        ReadOptions.parse({**GOOD, "start": "latest"}).for_batch()
    with pytest.raises(ConfigError, match="'start' is 5, after option 'end', which is 4"):
        ReadOptions.parse({**GOOD, "start": "5", "end": "4"}).for_batch()
    with pytest.raises(ConfigError, match=r"'end' is for spark.read"):
        ReadOptions.parse({**GOOD, "end": "4"}).for_stream()


def test_a_missing_pipeline_or_journal_says_which_pipelines_there_are(tmp_path: Path) -> None:
    (tmp_path / "_lakefeed" / "shop").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"'pipeline' beside 'path'; the lake .* has shop"):
        ReadOptions.parse({"path": str(tmp_path), "table": "main.t"})
    lost = ReadOptions.parse({"path": str(tmp_path), "pipeline": "chop", "table": "main.t"})
    with pytest.raises(ConfigError, match="no journal at") as refused:
        TableFeed.open(lost)
    assert refused.value.remedy.endswith("has shop.")
    assert not (tmp_path / "_lakefeed" / "chop").exists(), "looking made a journal"


def test_an_unknown_table_says_which_tables_there_are_and_spark_shows_the_remedy(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as journal:
        add_people(journal, [1])
    options = ReadOptions.parse({"journal": str(tmp_path / "j"), "table": "main.poeple"})
    text = r"never seen table main.poeple. Set the option .*: main.people."
    with pytest.raises(ConfigError, match=text), remedy_in_text():
        TableFeed.open(options)
