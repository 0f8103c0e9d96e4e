"""What a lake table does when its source's schema changes: the policy, as pure functions. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefeed.change.schema_change import diff
from lakefeed.change.segment import Counts, Segment, StaleReason, Window
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import ConfigError, LakeError, RebuildNeededError, TableStoppedError
from lakefeed.lake.mode import Append, Mirror, Mode, Temporal
from lakefeed.lake.route import Route, Routes, Rule
from lakefeed.lake.schema.decision import Decisions
from lakefeed.lake.schema.evolve import evolved
from lakefeed.lake.schema.mapping import ColumnMapping, mapped_window
from lakefeed.lake.schema.policy import CHOICES, Evolution, Policy
from lakefeed.lake.schema.projection import lineage, steps

T = TableId("main", "t")
ID = Column("id", pa.int64(), nullable=False, id="1")
V = Column("v", pa.int64(), id="2")
W = Column("w", pa.string(), id="3")
X = Column("x", pa.string())
FIRST = TableSchema(T, (ID, V, W), ("id",), 1)


def later(version: int, *columns: Column, key: Sequence[str] = ("id",)) -> TableSchema:
    return TableSchema(T, columns, tuple(key), version)


def mapped(*path: TableSchema, **choices: str) -> ColumnMapping:
    return mapped_as(Mirror(), *path, **choices)


def mapped_as(mode: Mode, /, *path: TableSchema, **choices: str) -> ColumnMapping:
    return evolved(ColumnMapping.plain(path[0]), path, Policy(T, mode, Evolution().with_choices(choices)))


def names(found: ColumnMapping) -> list[str]:
    return [fed.column.name for fed in found.columns]


def test_every_kind_of_change_has_its_choices_and_the_first_is_the_default() -> None:
    assert {kind: choices[0] for kind, choices in CHOICES.items()} == asdict(Evolution().for_mode(Mirror()))
    with pytest.raises(ConfigError, match="'ignore' is not a choice for drop_column") as refused:
        Evolution(drop_column="ignore")
    assert refused.value.remedy == "Choose one of: evolve, keep, stop."
    with pytest.raises(ConfigError, match="no kind of schema change 'add'") as unknown:
        Evolution().with_choices({"add": "stop"})
    assert "add_column, drop_column" in unknown.value.remedy


def test_by_default_columns_follow_and_keep_nothing_of_their_own() -> None:
    renamed = later(2, ID, replace(V, name="v2"), W)
    grown = later(3, ID, replace(V, name="v2", type=pa.decimal128(30, 2)), Column("new", pa.bool_(), id="9", default=1))
    found = mapped(FIRST, renamed, grown)
    assert found.schema(grown).names == grown.names
    assert found.schema(grown).arrow.types == grown.arrow.types
    assert found.is_plain(grown)


@pytest.mark.parametrize(
    ("kind", "path", "said"),
    [
        ("add_column", (FIRST, later(2, ID, V, W, Column("n", pa.string()))), r"column 'n' \(string\) was added"),
        ("drop_column", (FIRST, later(2, ID, V)), "column 'w' was dropped"),
        ("rename_column", (FIRST, later(2, ID, replace(V, name="x"), W)), "column 'v' is now called 'x'"),
        (
            "widen_type",
            (FIRST, later(2, ID, replace(V, type=pa.decimal128(19, 0)), W)),
            r"column 'v' changed from int64 to decimal128\(19, 0\)",
        ),
        (
            "change_type",
            (FIRST, later(2, ID, replace(V, type=pa.int32()), W)),
            "column 'v' changed from int64 to int32",
        ),
        ("change_key", (FIRST, later(2, ID, V, W, key=("id", "v"))), r"the key changed from \(id\) to \(id, v\)"),
    ],
)
def test_acceptance_10_what_is_to_stop_stops_with_what_happened_and_what_to_do(
    kind: str, path: tuple[TableSchema, ...], said: str
) -> None:
    with pytest.raises(TableStoppedError, match=f"table main.t: {said}.*{kind}: stop") as stopped:
        mapped(*path, **{kind: "stop"})
    assert stopped.value.table == "main.t"
    assert f"Set evolution.{kind} to" in stopped.value.remedy
    assert "lakefeed rebuild FILE main.t --from-source" in stopped.value.remedy


def test_a_changed_key_asks_for_a_copy_unless_the_table_is_a_change_log() -> None:
    rekeyed = later(2, ID, V, W, key=("v",))
    with pytest.raises(RebuildNeededError, match="the key changed"):
        mapped(FIRST, rekeyed)
    assert mapped_as(Append(), FIRST, rekeyed).is_plain(rekeyed)
    with pytest.raises(RebuildNeededError, match="part of the key"):
        mapped(FIRST, later(2, replace(ID, type=pa.string()), V, W), change_type="new_column")


def test_another_type_asks_for_a_copy_where_that_is_the_choice() -> None:
    with pytest.raises(RebuildNeededError, match="column 'v' changed from"):
        mapped(FIRST, later(2, ID, replace(V, type=pa.string()), W), change_type="rebuild")


def test_a_renamed_key_is_the_same_key() -> None:
    renamed = later(2, replace(ID, name="no"), V, W, key=("no",))
    assert mapped(FIRST, renamed).schema(renamed).key == ("no",)


def test_an_ignored_column_stays_ignored_under_any_name_and_policy() -> None:
    added = later(2, ID, V, W, Column("n", pa.string(), id="4"))
    renamed = later(3, ID, V, W, Column("m", pa.string(), id="4"))
    ignoring = mapped(FIRST, added, add_column="ignore")
    assert (names(ignoring), ignoring.ignored(added)) == (["id", "v", "w"], ("n",))
    evolving = evolved(ignoring, (added, renamed), Policy(T, Mirror()))
    assert (names(evolving), evolving.ignored(renamed)) == (["id", "v", "w"], ("m",))


def test_a_kept_column_stays_in_its_place_and_a_new_one_of_its_name_gets_another() -> None:
    dropped = later(2, ID, W)
    back = later(3, ID, W, Column("V", pa.string(), id="7"))
    found = mapped(FIRST, dropped, back, drop_column="keep")
    assert names(found) == ["id", "v", "w", "V__2"]
    assert [fed.until for fed in found.columns] == [None, 1, None, None]


def test_a_changed_type_goes_to_a_column_of_its_own() -> None:
    retyped = later(2, ID, replace(V, type=pa.string()), W)
    again = later(3, ID, replace(V, type=pa.bool_()), W)
    found = mapped(FIRST, retyped, again, change_type="new_column")
    assert names(found) == ["id", "v", "v__2", "v__3", "w"]
    assert [(fed.since, fed.until) for fed in found.columns[1:4]] == [(0, 1), (2, 2), (3, None)]
    assert [fed.column.type for fed in found.columns[1:4]] == [pa.int64(), pa.string(), pa.bool_()]


def test_a_name_that_the_source_has_itself_is_not_given_away() -> None:
    own = Column("v__2", pa.string(), id="8")
    retyped = later(2, ID, replace(V, type=pa.string()), W, own)
    found = mapped(FIRST, retyped, change_type="new_column")
    assert names(found) == ["id", "v", "v__3", "w", "v__2"]


def test_names_that_two_columns_swap_are_swapped() -> None:
    swapped = later(2, ID, replace(V, name="w"), replace(W, name="v"))
    found = mapped(FIRST, swapped)
    assert [(fed.column.id, fed.column.name) for fed in found.columns] == [("1.id", "id"), ("1.v", "w"), ("1.w", "v")]


def test_rows_without_a_key_cannot_lose_a_column_and_be_matched_on() -> None:
    first = replace(FIRST, key=())
    for choice, after in (
        ({"drop_column": "keep"}, later(2, ID, W, key=())),
        ({"change_type": "new_column"}, later(2, ID, replace(V, type=pa.string()), W, key=())),
    ):
        with pytest.raises(TableStoppedError, match="has no key, so Lakefeed matches its rows by all their values"):
            mapped(first, after, **choice)
        assert not mapped_as(Append(), first, after, **choice).is_plain(after)


def test_the_files_of_every_version_feed_the_columns_they_fed_then() -> None:
    retyped = later(2, ID, replace(V, type=pa.string()), W)
    dropped = later(3, ID, replace(V, name="x", type=pa.string()), Column("n", pa.int64(), id="5", default=7))
    schemas = {schema.version: schema for schema in (FIRST, retyped, dropped)}
    found = mapped(FIRST, retyped, dropped, change_type="new_column", drop_column="keep")
    assert names(found) == ["id", "v", "x", "w", "n"]
    parts = tuple(Segment(T, "f", 1, 1, version, version, version, Counts()) for version in schemas)
    own = mapped_window(Window(T, 0, 1, None, parts, dropped, schemas), found)
    assert (own.target.names, own.target.key) == (("id", "v", "x", "w", "n"), ("id",))
    fed = {version: lineage(steps(own.schemas, version, own.target.version)) for version in schemas}
    nothing = "_lakefeed_none_"
    assert fed[1] == {"id": "id", "v": "v", "x": f"{nothing}2", "w": "w", "n": None}
    assert fed[2] == {"id": "id", "v": f"{nothing}1", "x": "v", "w": "w", "n": None}
    assert fed[3] == {"id": "id", "v": f"{nothing}1", "x": "x", "w": f"{nothing}3", "n": "n"}
    assert own.target.column("n").default == 7


def test_a_change_log_keeps_dropped_columns_unless_the_configuration_says_otherwise() -> None:
    dropped = later(2, ID, V)
    assert names(mapped_as(Append(), FIRST, dropped)) == ["id", "v", "w"]
    assert names(mapped_as(Append(), FIRST, dropped, drop_column="evolve")) == ["id", "v"]
    assert names(mapped_as(Temporal(), FIRST, dropped)) == ["id", "v"]
    assert Evolution().with_choices({"add_column": "stop"}).for_mode(Append()).drop_column == "keep"


WIDE = replace(V, type=pa.decimal128(30, 2))
TEXT = replace(V, type=pa.string())


def stale(
    mode: Mode, schema: TableSchema, columns: tuple[str, ...] | None, start: TableSchema = FIRST, /, **choices: str
) -> ColumnMapping:
    reasons = [StaleReason(schema.version, "its rows may be others", columns)]
    policy = Policy(T, mode, Evolution().with_choices(choices))
    return evolved(ColumnMapping.plain(start), [start, schema], policy, reasons)


@pytest.mark.parametrize(
    ("schema", "columns", "choices"),
    [
        (later(2, ID, WIDE, W), ("v",), {}),
        (later(2, ID, replace(V, source_type="json"), W), ("v",), {}),
        (later(2, ID, V, W, X), ("x",), {}),
        (later(2, ID, replace(WIDE, name="renamed"), W), ("v",), {}),
        (later(2, ID, TEXT, W, X), ("v", "x"), {"change_type": "new_column"}),
    ],
    ids=["widened", "the same type here", "added", "renamed since", "one of two"],
)
def test_a_mirror_whose_rows_may_differ_is_copied_anew_and_history_goes_on(
    schema: TableSchema, columns: tuple[str, ...], choices: dict[str, str]
) -> None:
    with pytest.raises(RebuildNeededError, match="its rows may be others"):
        stale(Mirror(), schema, columns, **choices)
    for mode in (Temporal(), Append()):
        assert set(schema.names) <= set(stale(mode, schema, columns, **choices).live)


@pytest.mark.parametrize(
    ("schema", "columns", "choices", "expected"),
    [
        (later(2, ID, TEXT, W), ("v",), {"change_type": "new_column"}, ["id", "v__2", "v", "w"]),
        (later(2, ID, V, W, X), ("x",), {"add_column": "ignore"}, ["id", "v", "w"]),
    ],
    ids=["a column of its own", "ignored"],
)
def test_a_stale_reason_that_reaches_no_column_of_the_mirror_needs_no_copy(
    schema: TableSchema, columns: tuple[str, ...], choices: dict[str, str], expected: list[str]
) -> None:
    assert sorted(names(stale(Mirror(), schema, columns, **choices))) == sorted(expected)


@pytest.mark.parametrize(
    ("kind", "schema", "columns"),
    [
        ("change_type", later(2, ID, TEXT, W), ("v",)),
        ("widen_type", later(2, ID, WIDE, W), ("v",)),
        ("add_column", later(2, ID, V, W, X), ("x",)),
        ("change_key", later(2, ID, V, W, key=("w",)), ()),
    ],
)
@pytest.mark.parametrize("is_lost", [False, True], ids=["columns", "rows"])
def test_acceptance_10_what_is_to_stop_is_not_copied_though_rows_may_differ(
    kind: str, schema: TableSchema, columns: tuple[str, ...], is_lost: bool
) -> None:
    with pytest.raises(TableStoppedError, match=f"{kind}: stop") as stopped:
        stale(Mirror(), schema, None if is_lost else columns, **{kind: "stop"})
    assert not isinstance(stopped.value, RebuildNeededError)
    assert "lakefeed rebuild FILE main.t --from-source" in stopped.value.remedy
    assert ("is then copied again" in stopped.value.remedy) == (is_lost or kind == "change_key")


def test_another_type_in_the_source_that_is_the_same_here_counts_as_widened() -> None:
    rewritten = later(2, ID, replace(V, source_type="json"), W)
    for mode in (Mirror(), Temporal(), Append()):
        with pytest.raises(TableStoppedError, match="its rows may be others, and its evolution says widen_type: stop"):
            stale(mode, rewritten, ("v",), widen_type="stop")


@pytest.mark.parametrize("mode", [Mirror(), Temporal(), Append()], ids=["mirror", "temporal", "append"])
def test_rows_that_nobody_can_tell_are_copied_anew_in_every_mode(mode: Mode) -> None:
    with pytest.raises(RebuildNeededError, match="its rows may be others"):
        stale(mode, FIRST.at_version(2), None)


def test_a_table_made_anew_is_judged_by_the_names_of_its_columns() -> None:
    anew = [replace(column, id=f"9.{place}") for place, column in enumerate((ID, V, W))]
    same = TableSchema(T, tuple(anew), ("id",), 2)
    with pytest.raises(RebuildNeededError):
        stale(Mirror(), same, None, change_key="stop", drop_column="stop", add_column="stop")
    with pytest.raises(TableStoppedError, match="the key changed"):
        stale(Mirror(), replace(same, key=("w",)), None, change_key="stop")
    keyless = replace(FIRST, key=())
    with pytest.raises(RebuildNeededError):
        stale(Mirror(), replace(same, columns=tuple(anew[:2]), key=()), None, keyless, drop_column="keep")


def test_a_stale_reason_of_a_version_that_the_table_has_is_settled() -> None:
    reasons = (StaleReason(1, "a", ("v",)), StaleReason(2, "b", ("v",)), StaleReason(1, "c"))
    window = Window(T, 0, 2, None, (), FIRST, stale_reasons=reasons)
    assert [one.reason for one in window.open_stale_reasons(1)] == ["b", "c"]


def test_values_that_are_left_as_they_were_are_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = [FIRST, later(2, ID, WIDE, W)]
    reasons = [StaleReason(2, "the type of v changed", ("v",))]
    for mode in (Temporal(), Append()):
        decisions = Decisions(Policy(T, mode), tmp_path / "t.json")
        decisions.decide(decisions.after(path, 1, reasons), path, 1, reasons)
    told = "table main.t: the type of v changed; older rows keep their values until they change"
    assert [record.getMessage() for record in caplog.records] == [told, told]


def test_a_rule_has_an_evolution_of_its_own_or_the_lakes() -> None:
    strict, loose = Evolution(add_column="stop"), Evolution(drop_column="keep")
    rules = [Rule("t", Mirror(), evolution=strict), Rule("*", Append(), "{table}_log"), Rule("u", Mirror())]
    routes = Routes(Mirror(), rules, loose)
    found = {
        str(route.table): routes.policy(route).evolution for name in "tuv" for route in routes.of(TableId("m", name))
    }
    assert found == {"m.t": strict, "m.t_log": loose, "m.u": loose, "m.u_log": loose, "m.v": loose, "m.v_log": loose}
    assert routes.policy(Route.same(T)).table == T


def test_a_decision_outlives_the_process_and_the_policy_but_not_the_generation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, dropped = tmp_path / "state" / "t.json", later(2, ID, V)
    keeping = Decisions(Policy(T, Mirror(), Evolution(drop_column="keep")), place)
    after = keeping.after((FIRST, dropped), 5)
    assert not place.exists(), "something was decided before it was to be"
    keeping.decide(after, (FIRST, dropped), 5)
    assert "keeps column 'w', which is NULL from now on" in caplog.text
    evolving = Decisions(Policy(T, Mirror()), place)
    assert evolving.at(dropped, 5) == after
    assert (evolving.get(2, 5), evolving.get(1, 5), evolving.get(2, 6)) == (after, None, None)
    assert evolving.at(dropped, 6) == ColumnMapping.plain(dropped)


def test_columns_that_are_the_sources_own_need_no_decision(tmp_path: Path) -> None:
    decisions = Decisions(Policy(T, Mirror()), tmp_path / "t.json")
    dropped = later(2, ID, V)
    decisions.decide(decisions.after((FIRST, dropped), 1), (FIRST, dropped), 1)
    assert list(tmp_path.iterdir()) == []


def test_each_ignored_column_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    decisions = Decisions(Policy(T, Mirror(), Evolution(add_column="ignore")), tmp_path / "t.json")
    path = [FIRST, later(2, ID, V, W, Column("n", pa.string())), later(3, ID, V, W, Column("n", pa.string()), X)]
    for step in pairwise(path):
        decisions.decide(decisions.after(step, 1), step, 1)
    told = [record.getMessage() for record in caplog.records]
    assert [said.split("column '")[1][0] for said in told if "ignores the source" in said] == ["n", "x"]


def test_a_damaged_decision_is_an_error_and_not_a_guess(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"generation": 1, "versions"')
    with pytest.raises(LakeError, match=r"t\.json.*is damaged") as damaged:
        Decisions(Policy(T, Mirror()), tmp_path / "t.json").at(FIRST, 1)
    assert "--from-source" in damaged.value.remedy


TYPES: list[pa.DataType] = [pa.int32(), pa.int64(), pa.string(), pa.float64(), pa.decimal128(20, 2)]


@st.composite
def paths(draw: st.DrawFn) -> tuple[TableSchema, ...]:
    """Schemas as a source gives them: stable ids, names that differ in more than case, a key that is there."""
    columns = [ID, Column("a", pa.int32(), id="a"), Column("b", pa.string(), id="b")]
    found = [TableSchema(T, tuple(columns), ("id",), 1)]
    for version in range(2, draw(st.integers(3, 7))):
        names = {column.name.lower() for column in columns}
        free = [name for name in ("a", "b", "B__2", "c", "A", "a__2", "id__2") if name.lower() not in names]
        place = draw(st.integers(0, len(columns) - 1))
        action = draw(st.sampled_from(["add", "drop", "rename", "retype", "key"]))
        if action == "add" and free:
            kind = draw(st.sampled_from(TYPES))
            columns = [*columns, Column(draw(st.sampled_from(free)), kind, id=f"v{version}")]
        elif action == "drop" and place:
            columns = [*columns[:place], *columns[place + 1 :]]
        elif action == "rename" and free:
            columns[place] = replace(columns[place], name=draw(st.sampled_from(free)))
        elif action == "retype":
            columns[place] = replace(columns[place], type=draw(st.sampled_from(TYPES)))
        key = (columns[0].name, columns[-1].name) if action == "key" and len(columns) > 1 else (columns[0].name,)
        found.append(TableSchema(T, tuple(columns), key, version))
    return tuple(found)


EVOLUTIONS = st.builds(Evolution, **{kind: st.sampled_from(choices) for kind, choices in CHOICES.items()})


@settings(max_examples=400, deadline=None)
@given(path=paths(), evolution=EVOLUTIONS, mode=st.sampled_from([Mirror(), Append()]))
def test_whatever_happens_the_followed_columns_are_consistent(
    path: tuple[TableSchema, ...], evolution: Evolution, mode: Mode
) -> None:
    """Names are unique, the key is whole, nothing the source has is lost unless it was to be, each step can be done."""
    policy, state, stopped = Policy(T, mode, evolution), ColumnMapping.plain(path[0]), True
    for index in range(1, len(path)):
        try:
            after = evolved(state, path[index - 1 : index + 1], policy)
        except TableStoppedError as error:
            stopped = "stop" in asdict(evolution).values() or isinstance(error, RebuildNeededError)
            break
        source = path[index]
        own = after.schema(source)
        assert len({name.lower() for name in own.names}) == len(own.names)
        if not isinstance(mode, Append):
            assert len(own.key) == len(source.key), "a part of the key went"
        lost = set(after.ignored(source))
        assert not lost or evolution.add_column == "ignore"
        for name, fed in after.live.items():
            assert fed.column.type == source.column(name).type
        gone = {fed.column.id for fed in state.columns} - {fed.column.id for fed in after.columns}
        assert not gone or evolution.drop_column == "evolve"
        changes = diff(state.schema(path[index - 1]), own)
        assert all(change.__class__.__name__ != "ChangeKey" for change in changes) or isinstance(mode, Append)
        state = after
    else:
        _whole_way(path, state, policy)
    assert stopped, "a table stopped that was to go on"


def _whole_way(path: tuple[TableSchema, ...], state: ColumnMapping, policy: Policy) -> None:
    """The way at once is the way step by step, and a file of any version has no more than its own columns."""
    assert evolved(ColumnMapping.plain(path[0]), path, policy) == state
    schemas = {schema.version: schema for schema in path}
    parts = tuple(Segment(T, "f", 1, 1, version, version, version, Counts()) for version in schemas)
    own = mapped_window(Window(T, 0, 1, None, parts, path[-1], schemas), state)
    for version, given_then in schemas.items():
        origin = lineage(steps(own.schemas, version, own.target.version))
        fed = [name for name in origin.values() if name is not None and not name.startswith("_lakefeed_none_")]
        assert len(set(fed)) == len(fed), "one column of a file feeds two of the table"
        assert set(fed) <= set(given_then.names)
    assert ColumnMapping.plain(path[0]).is_plain(path[0])
