"""Rules as values: what several of them come to, names, partitions, and what is refused. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed import Delta
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, TableStoppedError
from lakefeed.lake.layout import Layout, Partition
from lakefeed.lake.mode import Append, Mirror
from lakefeed.lake.route import Route, Routes, Rule
from lakefeed.lake.rule.record import TableRule, read_rule
from lakefeed.lake.rule.rows import RowOptions, RowRule, lake_name
from lakefeed.testing.builders import table

PEOPLE = table("main.people", {"id": pa.int64(), "email": pa.string(), "phone": pa.string()}, ("id",))


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Order ID", "order_id"), ("OrderID", "order_id"), ("HTTPServer2Go", "http_server2_go"), ("a,b", "a_b"),
        ("already_so", "already_so"), ("Größe (cm)", "größe_cm"), ("__x__", "x"), ("?", "_"),
    ],
)  # fmt: skip
def test_snake_case(name: str, snake: str) -> None:
    assert lake_name(name, "snake_case") == snake
    assert lake_name(name, "as_is") == name


def test_rules_add_up_column_by_column_and_the_specific_one_counts() -> None:
    rules = [
        Rule("main.people", rows=RowOptions(mask={"phone": "redact"}, rename={"email": "mail"})),
        Rule("*", rows=RowOptions(where="id > 0", mask={"email": "hash", "phone": "null", "nope": "null"})),
        Rule("people", Append(), "log", rows=RowOptions(where="", transform={"phone": "left(phone, 2)"})),
    ]
    routes = Routes(Mirror(), rules, salt="s")
    own, log = routes.of(PEOPLE.table)
    rule = routes.rows(own)
    assert dict(rule.mask) == {"email": "hash", "phone": "redact", "nope": "null"}
    assert (rule.where, rule.name("email"), set(rule.optional)) == ("id > 0", "mail", {"nope"})
    second = routes.rows(log)
    assert (second.where, dict(second.transform)) == (None, {"phone": "left(phone, 2)"})
    assert dict(second.mask) == {"email": "hash", "nope": "null"}  # a mask is not lost by a second table


def test_masks_before_the_journal_are_no_part_of_what_the_lake_does_and_make_another_rule() -> None:
    rules = [Rule("people", rows=RowOptions(mask={"email": "hash"}, sensitive=True))]
    routes = Routes(Mirror(), rules, salt="s")
    (route,) = routes.of(PEOPLE.table)
    assert routes.rows(route).mask == ()
    assert routes.rows(route).is_plain
    assert dict(routes.sensitive(PEOPLE.table).mask) == {"email": "hash"}
    assert routes.rows(route).fingerprint != RowRule().fingerprint


def test_names_of_lake_tables() -> None:
    rules = [
        Rule("people", name="{schema}_{table}", namespace="raw", only=True),
        Rule("orders", namespace="x_{schema}"),
    ]
    routes = Routes(Mirror(), rules)
    assert routes.of(PEOPLE.table) == (Route(TableId("raw", "main_people"), PEOPLE.table, Mirror()),)
    assert routes.of(TableId("main", "orders"))[0].table == TableId("x_main", "orders")


def test_t25_what_matches_nothing_is_named() -> None:
    rules = [Rule("persons"), Rule("*", rows=RowOptions(mask={"emial": "null"}, rename={"id": "key"}))]
    first, second = Routes(Mirror(), rules).unused([PEOPLE])
    assert "the rule for persons in lake.tables matches no table" in first
    assert "mask in the rule for * names the column emial" in second
    lists = Rule("*", columns=("*", "!tax_*", "!id"), types={"tagz": "string"}, out_of_range={"until": "null"})
    assert [text.partition(" has ")[2].partition(",")[0] for text in Routes(Mirror(), [lists]).unused([PEOPLE])] == [
        "'!tax_*'", "'tagz'", "'until'",
    ]  # fmt: skip
    assert Routes(Mirror(), [Rule("*", out_of_range="clamp")]).unused([PEOPLE]) == ()
    vectors = Delta(object, "lake", deletion_vectors=["peop*", "main.orders"]).bind("p")  # type: ignore[arg-type]
    assert vectors.unused([PEOPLE]) == ("deletion_vectors in lake has 'main.orders', which matches no table",)
    assert Delta(object, "lake", deletion_vectors=True).bind("p").unused([]) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Rule("t", only=True), "has only, and no name"),
        (lambda: Rule("t", rows=RowOptions(sensitive=True)), "has no mask to apply"),
        (
            lambda: Rule("t", name="u", rows=RowOptions(mask={"a": "null"}, sensitive=True)),
            "a name and sensitive masks",
        ),
        (
            lambda: Rule("t", rows=RowOptions(mask={"a": "null"}, transform={"a": "1"})),
            "a mask and an expression for a",
        ),
        (lambda: Routes(Mirror(), [Rule("t", rows=RowOptions(mask={"a": "hash"}))]), "needs a salt"),
        (
            lambda: Routes(Mirror(), [Rule("t", rows=RowOptions(mask={"a": "hush"}))]),
            "this version has no mask",
        ),
        (lambda: Layout(partition_by=("weeks(a)",)), "is not a partition"),
        (lambda: Layout(partition_by=("bucket(a)",)), "is not a partition"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_written(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_partitions() -> None:
    texts = ["country", "days(created_at)", "day(created_at)", "bucket(16, id)", "truncate(4,code)"]
    found = [Partition.parse(text) for text in texts]
    assert [str(one) for one in found] == [
        "country", "days(created_at)", "days(created_at)", "bucket(16, id)", "truncate(4, code)",
    ]  # fmt: skip
    assert [one.name for one in found] == ["country", "created_at_day", "created_at_day", "id_bucket", "code_truncate"]


def test_a_changed_rule_or_salt_is_noticed_and_no_secret_is_written_down(tmp_path: Path) -> None:
    place = tmp_path / "rules" / "people.json"
    rule = RowRule(mask=(("email", "hash"),), salt="pepper")
    TableRule(rule, PEOPLE.table, place).begin(7)
    TableRule(rule, PEOPLE.table, place).require(7)
    assert "pepper" not in place.read_text()
    for other in (RowRule(), RowRule(mask=rule.mask, salt="salt"), RowRule(mask=(("email", "redact"),), salt="pepper")):
        with pytest.raises(TableStoppedError, match="its rule has changed since it was copied"):
            TableRule(other, PEOPLE.table, place).require(7)
    counted = TableRule(rule, PEOPLE.table, place)
    counted.add(7, {"mask email": 2})
    counted.add(7, {"mask email": 3})
    assert TableRule(rule, PEOPLE.table, place).touched(7) == {"mask email": 5}
    plain = RowRule(where="a = 1", naming="lower")
    TableRule(plain, PEOPLE.table, place).begin(8)
    recorded = read_rule(place)
    assert recorded is not None
    assert recorded.rule == plain
    secret = RowRule(where="a = 'from the environment'", has_secrets=True)
    TableRule(secret, PEOPLE.table, place).begin(9)
    assert "environment" not in place.read_text()


def test_columns_that_differ_only_in_case_are_refused_whatever_they_are_called_in_the_lake() -> None:
    """Spark reads the journal by the source's names, and would take them for one at the first change."""
    source = table("main.people", {"id": pa.int64(), "Name": pa.string(), "name": pa.string()}, key=("id",))
    rules = [Rule("people", rows=RowOptions(rename={"Name": "other"}))]
    lake = Delta(object, "lake", rules=rules).bind("p")  # type: ignore[arg-type]  # nobody asks for a session
    (route,) = lake.routes(source.table)
    with pytest.raises(TableStoppedError, match=r"'Name' and 'name' of main\.people differ only in case") as stopped:
        lake.table(route).check(source)
    assert "columns: ['*', '!Name']" in stopped.value.remedy
    assert lake.table(route).check(source.without(["name"])) == ()
