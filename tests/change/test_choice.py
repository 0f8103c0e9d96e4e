"""Which rule counts for a column, and what a rule says that does not fit its table."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from lakefeed.change.choice import Choices, TableChoice, checked_rule, checked_type
from lakefeed.change.table import Column, OutOfRange, TableId, TableSchema
from lakefeed.errors import ConfigError
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Routes, Rule

T = TableId("public", "t")
SCHEMA = TableSchema(T, (Column("id", pa.int32(), source_type="integer"), Column("tags", pa.string())), ("id",))


def test_a_rule_that_names_the_table_counts_before_a_pattern_and_a_name_before_a_glob() -> None:
    rules = [
        Rule("public.t", types={"tags": "string"}, out_of_range={"*_at": "null", "seen_at": "clamp"}),
        Rule("public.*", types={"tags": "list", "other": "string"}, out_of_range="text"),
    ]
    choices = Routes(Mirror(), rules, out_of_range="stop").choices
    choice = pickle.loads(pickle.dumps(choices)).of(T)  # copies carry it to other processes
    assert choice.type_of("tags") == "string"
    assert choice.type_of("other") == "string"
    assert [choice.rule_of(name) for name in ("seen_at", "made_at", "x")] == ["clamp", "null", "text"]
    assert choices.rule(TableId("other", "t"), "x") == "stop"


def test_a_column_that_a_rule_for_many_tables_names_need_not_be_there() -> None:
    for match, is_wrong in (("public.*", False), ("public.t", True)):
        choice = Routes(Mirror(), [Rule(match, types={"labels": "string"})]).choices.of(T)
        assert (choice.unfit(SCHEMA) is not None) is is_wrong
    choice = Choices((("*", TableChoice(types={"id": "list"})),)).of(T)
    assert choice.unfit(SCHEMA) is not None


def test_what_was_text_is_known_by_its_lasting_id_and_declared_type() -> None:
    old = Column("tags", pa.string(), source_type="text[]", id="7.2")
    kept = Choices().keeping([TableSchema(T, (old,))])
    assert kept.was_text(T, "7.2", "text[]")
    assert not kept.was_text(T, "7.3", "text[]")
    assert not kept.was_text(T, "7.2", "integer[]")
    assert not kept.was_text(TableId("public", "u"), "7.2", "text[]")


@pytest.mark.parametrize("text", ["lists", "decimal", "decimal(39,2)", "decimal(2,3)", "decimal(a,b)", ""])
def test_a_type_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a type that a column can be given"):
        checked_type(text)


def test_a_rule_that_there_is_not_is_refused() -> None:
    assert checked_rule("null") is OutOfRange.NULL
    with pytest.raises(ConfigError, match="'drop' is not a rule"):
        Routes(Mirror(), [Rule("t", out_of_range={"x": "drop"})])


def test_a_rule_survives_in_a_stored_schema() -> None:
    column = Column("until", pa.date32(), out_of_range=OutOfRange.CLAMP)
    assert Column.from_json(column.to_json()) == column
    assert "out_of_range" not in Column("until", pa.date32()).to_json()


def test_variant_is_refused_with_what_is_missing_and_what_to_do_instead() -> None:
    problem, remedy = Routes(Mirror(), [Rule("t", types={"tags": "variant"})]).choices.of(T).unfit(SCHEMA) or ("", "")
    assert (
        "the type variant, which Lakefeed does not have: readers other than Spark, which verify needs, cannot read it"
        in problem
    )
    assert "Choose string, and read it through a view with parse_json" in remedy
