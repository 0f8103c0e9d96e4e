"""What happened between two versions of a table, as typed changes."""

from __future__ import annotations

import pyarrow as pa

from lakefeed.change.schema_change import AddColumn, ChangeKey, DropColumn, RenameColumn, RetypeColumn, diff, origins
from lakefeed.change.table import Column, TableId, TableSchema

INT, TEXT = pa.int64(), pa.string()


def _table(
    *columns: tuple[str, str | None], key: tuple[str, ...] = (), types: tuple[pa.DataType, ...] = ()
) -> TableSchema:
    kinds = types or (INT,) * len(columns)
    made = tuple(Column(name, kind, id=stable) for (name, stable), kind in zip(columns, kinds, strict=True))
    return TableSchema(TableId("s", "t"), made, key)


def test_equal_tables_differ_in_nothing() -> None:
    assert diff(_table(("a", "1"), key=("a",)), _table(("a", "1"), key=("a",))) == ()


def test_without_ids_a_new_name_is_a_drop_and_an_addition() -> None:
    new = _table(("a", None), ("c", None))
    assert diff(_table(("a", None), ("b", None)), new) == (DropColumn("b"), AddColumn(new.column("c")))


def test_with_ids_a_new_name_is_a_rename() -> None:
    assert diff(_table(("a", "1"), ("b", "2")), _table(("a", "1"), ("c", "2"))) == (RenameColumn("b", "c"),)


def test_two_columns_may_swap_their_names() -> None:
    changes = diff(_table(("a", "1"), ("b", "2")), _table(("b", "1"), ("a", "2")))
    assert changes == (RenameColumn("a", "b"), RenameColumn("b", "a"))


def test_a_column_dropped_and_added_under_the_same_name_is_not_the_same_column() -> None:
    new = _table(("a", "2"))
    assert diff(_table(("a", "1")), new) == (DropColumn("a"), AddColumn(new.column("a")))


def test_a_renamed_column_may_change_its_type_too() -> None:
    changes = diff(_table(("a", "1")), _table(("b", "1"), types=(TEXT,)))
    assert changes == (RenameColumn("a", "b"), RetypeColumn("b", INT, TEXT))


def test_a_key_follows_the_renaming_of_its_column() -> None:
    assert diff(_table(("a", "1"), key=("a",)), _table(("b", "1"), key=("b",))) == (RenameColumn("a", "b"),)


def test_another_key_is_a_change_of_the_key() -> None:
    old, new = _table(("a", "1"), ("b", "2"), key=("a", "b")), _table(("a", "1"), ("b", "2"), key=("b", "a"))
    assert diff(old, new) == (ChangeKey(("a", "b"), ("b", "a")),)


def test_where_one_side_has_no_ids_names_decide() -> None:
    assert origins(_table(("a", None), ("b", None)), _table(("a", "1"), ("c", "2"))) == {"a": "a", "c": None}
    assert origins(_table(("a", "1"), ("b", "2")), _table(("a", None), ("c", None))) == {"a": "a", "c": None}


def test_an_old_column_is_the_origin_of_one_new_column_at_most() -> None:
    assert origins(_table(("a", "1")), _table(("b", "1"), ("a", None))) == {"b": "a", "a": None}
    assert origins(_table(("a", "1")), _table(("a", None), ("b", "1"))) == {"a": None, "b": "a"}


def test_an_empty_id_is_an_id() -> None:
    assert origins(_table(("a", "1")), _table(("a", ""))) == {"a": None}
