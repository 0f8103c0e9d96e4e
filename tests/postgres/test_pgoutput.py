"""The decoder alone, on messages made by hand: no server."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.postgres import wire
from tests.postgres.rows import changes
from tests.postgres.wire import UNCHANGED

from lakefeed.capture.builder import ChangeSetBuilder
from lakefeed.capture.postgres import pgoutput
from lakefeed.capture.postgres.catalog import CatalogFacts
from lakefeed.capture.postgres.pgoutput import Layout, PgoutputDecoder, Relation, Resolved, WalPiece
from lakefeed.capture.postgres.slices import Messages, as_messages
from lakefeed.capture.postgres.values import SourceType, arrow_type
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TXN, Operation
from lakefeed.change.change_set import ChangeSet, TableBlocked
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.position import decode_position
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import DecodeError

T = wire.relation(1, "t", [("id", wire.INT4, True), ("name", wire.TEXT, False), ("raw", wire.BYTEA, False)])
PAIR = [("a", wire.INT4, True), ("b", wire.INT4, True), ("v", wire.TEXT, False)]


def resolve(relation: Relation, facts: CatalogFacts) -> Resolved:
    """Keys as the message marks them; a full identity has the key ``id`` by the catalog, or none."""
    if "." in relation.schema:
        return Resolved(None)  # no table of such a schema is captured
    columns = tuple(Column(one.name, arrow_type(SourceType(one.type, one.modifier))) for one in relation.columns)
    marked = tuple(one.name for one in relation.columns if one.in_identity)
    key = marked if relation.identity != "f" else tuple(name for name in marked if name == "id")
    return Resolved(Layout(TableSchema(TableId(relation.schema, relation.name), columns, key)))


class Assembler:
    """The decoder, and the builder behind it."""

    def __init__(self, *, before_images: bool = False, **options: Any) -> None:
        self._decoder = PgoutputDecoder(resolve, before_images=before_images)
        self.builder = ChangeSetBuilder(PostgresLsn(1), **options)

    def add(self, run: Messages) -> None:
        self.builder.add(self._decoder.decode(WalPiece(run)))

    def cut(self) -> ChangeSet:
        return self.builder.cut()


def assembler(**options: Any) -> Assembler:
    return Assembler(**options)


def decode(*messages: bytes, **options: Any) -> list[dict[str, Any]]:
    made = assembler(**options)
    made.add(as_messages([wire.begin(), *messages, wire.commit()]))
    return changes([made.cut()])


def short(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Operation and the table's own values."""
    return [
        (Operation(row[OP]).name, *(value for name, value in row.items() if not name.startswith("_"))) for row in rows
    ]


def test_rows_of_each_kind_are_decoded_in_order() -> None:
    rows = decode(
        T,
        wire.insert(1, ["1", "a,\n", "\\x00ff"]),
        wire.insert(1, ["2", None, None]),
        wire.update(1, ["1", "", "\\x"]),
        wire.delete(1, key=["2", None, None]),
    )
    assert short(rows) == [
        ("INSERT", 1, "a,\n", b"\x00\xff"),
        ("INSERT", 2, None, None),
        ("UPDATE", 1, "", b""),
        ("DELETE", 2, None, None),
    ]
    assert {row[TXN] for row in rows} == {"7"}


def test_t01_the_position_is_the_end_of_the_commit_record() -> None:
    made = assembler()
    made.add(as_messages([wire.begin(90), T, wire.insert(1, ["1", None, None]), wire.commit(110)]))
    made.add(as_messages([wire.begin(190), wire.insert(1, ["2", None, None]), wire.commit(210)]))
    change_set = made.cut()
    assert change_set.end == PostgresLsn(210)
    assert [decode_position(row[POSITION]) for row in changes([change_set])] == [PostgresLsn(110), PostgresLsn(210)]


def test_t02_a_full_replica_identity_does_not_make_every_column_a_key() -> None:
    full = wire.relation(1, "t", [("id", wire.INT4, True), ("v", wire.TEXT, True)], identity="f")
    rows = decode(
        full,
        wire.update(1, ["1", "b"], old=["1", "a"]),
        wire.update(1, ["2", "b"], old=["1", "b"]),
        wire.delete(1, old=["2", "b"]),
    )
    assert short(rows) == [("UPDATE", 1, "b"), ("DELETE", 1, None), ("INSERT", 2, "b"), ("DELETE", 2, None)]


def test_a_full_old_row_is_a_before_image_and_a_key_is_none() -> None:
    full = wire.relation(1, "t", [("id", wire.INT4, True), ("v", wire.TEXT, True)], identity="f")
    rows = decode(
        full,
        wire.insert(1, ["1", "a"]),
        wire.update(1, ["1", UNCHANGED], old=["1", "long"]),
        wire.update(1, ["2", "b"], old=["1", "long"]),
        wire.delete(1, old=["2", None]),
        T.replace(b"\0\0\0\1", b"\0\0\0\2", 1),
        wire.update(2, ["2", "a", None], key=["1", None, None]),
        wire.delete(2, key=["2", None, None]),
        before_images=True,
    )
    assert [row[:3] for row in short(rows)] == [
        ("INSERT", 1, "a"), ("BEFORE", 1, "long"), ("UPDATE", 1, "long"),
        ("BEFORE", 1, "long"), ("DELETE", 1, None), ("INSERT", 2, "b"), ("BEFORE", 2, None), ("DELETE", 2, None),
        ("DELETE", 1, None), ("INSERT", 2, "a"), ("DELETE", 2, None),
    ]  # fmt: skip
    assert len({row[SEQ] for row in rows}) == len(rows)


def test_t03_an_unchanged_toast_value_is_absent_and_not_null() -> None:
    rows = decode(T, wire.update(1, ["1", UNCHANGED, None]), wire.update(1, ["2", "x", "\\x01"]))
    assert [row[ABSENT] for row in rows] == [["name"], None]


def test_t03_a_full_old_image_completes_an_unchanged_toast_value() -> None:
    full = wire.relation(1, "t", [("id", wire.INT4, True), ("v", wire.TEXT, True)], identity="f")
    rows = decode(full, wire.update(1, ["1", UNCHANGED], old=["1", "long"]))
    assert short(rows) == [("UPDATE", 1, "long")]
    assert rows[0][ABSENT] is None
    moved = decode(full, wire.update(1, ["2", UNCHANGED], old=["1", "long"]))
    assert short(moved) == [("DELETE", 1, None), ("INSERT", 2, "long")]


def test_t03_a_key_that_is_itself_unchanged_toast_comes_from_the_old_key() -> None:
    keyed = wire.relation(1, "t", [("id", wire.TEXT, True), ("v", wire.TEXT, False)])
    rows = decode(keyed, wire.update(1, [UNCHANGED, "b"], key=["long", None]))
    assert short(rows) == [("UPDATE", "long", "b")]


def test_a_key_change_is_a_delete_and_an_insert() -> None:
    rows = decode(T, wire.update(1, ["2", "a", None], key=["1", None, None]))
    assert short(rows) == [("DELETE", 1, None, None), ("INSERT", 2, "a", None)]


def test_t06_a_key_change_without_all_values_names_them_behind_the_delete_of_the_old_key() -> None:
    made = assembler()
    moved = wire.update(1, ["2", UNCHANGED, None], key=["1", None, None])
    made.add(as_messages([wire.begin(), T, moved, wire.commit()]))
    change_set = made.cut()
    assert not change_set.notices, "the lake has the value under the old key: nothing is copied"
    (deleted, inserted) = [row for one in change_set.batches for row in one.data.to_pylist()]
    assert (deleted["_lakefeed_op"], inserted["_lakefeed_op"]) == (Operation.DELETE, Operation.INSERT)
    assert inserted["_lakefeed_seq"] == deleted["_lakefeed_seq"] + 1
    assert (deleted[ABSENT], len(inserted[ABSENT])) == (None, 1)


def test_t04_a_part_of_a_composite_key_is_never_a_key() -> None:
    with pytest.raises(DecodeError, match="no value for the key column b"):
        decode(wire.relation(1, "t", PAIR), wire.delete(1, key=["7", None, None]))


def test_an_update_of_a_table_without_a_key_is_a_delete_and_an_insert_of_whole_rows() -> None:
    full = wire.relation(1, "t", [("x", wire.INT4, True), ("v", wire.TEXT, True)], identity="f")
    rows = decode(full, wire.update(1, ["1", "b"], old=["1", "a"]), wire.delete(1, old=["1", None]))
    assert short(rows) == [("DELETE", 1, "a"), ("INSERT", 1, "b"), ("DELETE", 1, None)]


def test_a_change_of_a_table_without_a_key_must_bring_the_old_row() -> None:
    full = wire.relation(1, "t", [("x", wire.INT4, True)], identity="f")
    with pytest.raises(DecodeError, match="lacks the old row"):
        decode(full, wire.update(1, ["1"]))


def test_a_truncate_empties_each_table_in_its_place() -> None:
    other = wire.relation(2, "u", [("id", wire.INT4, True)])
    rows = decode(T, other, wire.insert(1, ["1", None, None]), wire.truncate(1, 2, flags=3), wire.insert(2, ["5"]))
    assert [Operation(row[OP]).name for row in rows] == ["INSERT", "TRUNCATE", "TRUNCATE", "INSERT"]


def test_origins_types_and_logical_messages_are_passed_over() -> None:
    rows = decode(
        wire.origin("o"), wire.type_(99, "mood"), wire.message("p", b"c"), T, wire.insert(1, ["1", None, None])
    )
    assert short(rows) == [("INSERT", 1, None, None)]


def test_a_table_that_changes_in_the_middle_of_a_run_has_two_layouts() -> None:
    wider = wire.relation(1, "t", [("id", wire.INT4, True), ("extra", wire.INT4, False)])
    rows = decode(T, wire.insert(1, ["1", "a", None]), wider, wire.insert(1, ["2", "5"]))
    assert short(rows) == [("INSERT", 1, "a", None), ("INSERT", 2, 5)]


def test_a_value_that_does_not_fit_blocks_its_table_only() -> None:
    made = assembler()
    other = wire.relation(2, "u", [("id", wire.INT4, True)])
    bad = wire.insert(1, ["99999999999", None, None])
    made.add(as_messages([wire.begin(), T, other, bad, wire.insert(2, ["1"]), wire.commit()]))
    made.add(as_messages([wire.begin(), wire.insert(1, ["3", None, None]), wire.commit(120)]))
    change_set = made.cut()
    assert [row["id"] for row in changes([change_set])] == [1]
    (notice,) = change_set.notices
    assert isinstance(notice, TableBlocked)


def test_a_transaction_of_any_size_is_spilled_and_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgoutput, "PIECE_BYTES", 1_000)
    made = assembler(memory_bytes=10_000)
    made.add(as_messages([wire.begin(), T]))
    for piece in range(20):
        rows = [wire.insert(1, [str(piece * 100 + row), "x" * 50, None]) for row in range(100)]
        made.add(as_messages(rows))
        assert made.builder.in_transaction
    made.add(as_messages([wire.commit()]))
    change_set = made.cut()
    assert [row["id"] for row in changes([change_set])] == list(range(2000))
    assert changes([change_set]) == changes([change_set])
    assert change_set.rows == 2000


def test_messages_outside_a_transaction_are_refused() -> None:
    for messages in ([wire.insert(1, ["1"])], [wire.commit()], [wire.begin(), wire.begin()]):
        with pytest.raises(DecodeError):
            assembler().add(as_messages([*messages, wire.commit()]))


def test_a_row_of_an_unknown_relation_is_refused() -> None:
    with pytest.raises(DecodeError, match="before its relation message"):
        decode(wire.insert(1, ["1"]))


def test_decode_errors_survive_pickling() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(b"")
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


VALUES = st.one_of(st.none(), st.just(UNCHANGED), st.text(st.characters(codec="utf-8", exclude_characters="\0")))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), VALUES, VALUES), max_size=20))
def test_any_text_survives(rows: list[tuple[int, Any, Any]]) -> None:
    keyed = wire.relation(1, "t", [("id", wire.INT4, True), ("a", wire.TEXT, False), ("b", wire.TEXT, False)])
    found = decode(keyed, *(wire.update(1, [str(key), a, b]) for key, a, b in rows))
    for row, (key, a, b) in zip(found, rows, strict=True):
        absent = [name for name, value in (("a", a), ("b", b)) if value is UNCHANGED]
        assert row["id"] == key
        assert (row[ABSENT] or []) == absent
        assert all(row[name] == value for name, value in (("a", a), ("b", b)) if value is not UNCHANGED)


def try_mutated(count: int, seed: int) -> Counter[str]:
    """So many damaged messages. Total: no other exception and no hang, whatever the bytes. Counts how they ended."""
    chance, ends = random.Random(seed), Counter[str]()
    good = [
        T,
        wire.insert(1, ["1", "name", "\\x00ff"]),
        wire.update(1, ["2", UNCHANGED, None], key=["1", None, None]),
        wire.update(1, ["1", "b", "\\x"], old=["1", "a", None]),
        wire.delete(1, key=["1", None, None]),
        wire.delete(1, old=["1", "a", None]),
        wire.truncate(1, flags=1),
        wire.begin(),
        wire.commit(),
    ]
    for _ in range(count):
        mutated = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(mutated))
            choice = chance.random()
            if choice < 0.6:
                mutated[place] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            elif choice < 0.8:
                del mutated[place:]
            else:
                mutated[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 4)))
            if not mutated:
                break
        made = assembler(before_images=True)
        try:
            made.add(as_messages([wire.begin(), T, bytes(mutated), wire.commit()]))
        except DecodeError:
            ends["DecodeError"] += 1
        else:
            ends["Arrow"] += 1
    return ends


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_messages_give_arrow_or_decode_error(count: int) -> None:
    assert count // 4 < try_mutated(count, 20)["DecodeError"] < count


def test_a_run_that_is_cut_anywhere_gives_arrow_or_decode_error() -> None:
    messages = [wire.begin(), T, wire.insert(1, ["1", "name", "\\x00ff"]), wire.commit()]
    for victim in range(len(messages)):
        for length in range(len(messages[victim])):
            broken = [*messages[:victim], messages[victim][:length], *messages[victim + 1 :]]
            with pytest.raises(DecodeError):
                assembler().add(as_messages([*broken, wire.commit()]))


def test_numeric_modifiers_give_decimals_up_to_38_digits_and_text_beyond() -> None:
    def modifier(precision: int, scale: int) -> int:
        return (precision << 16 | scale & 0x7FF) + 4

    assert arrow_type(SourceType(1700, modifier(12, 2))) == pa.decimal128(12, 2)
    assert arrow_type(SourceType(1700, modifier(3, -2))) == pa.decimal128(5, 0)
    assert arrow_type(SourceType(1700, modifier(2, 4))) == pa.decimal128(4, 4)
    assert arrow_type(SourceType(1700, modifier(39, 0))) == pa.string()
    assert arrow_type(SourceType(1700, -1)) == pa.string()


def test_joined_pieces_are_the_same_log_and_the_catalog_speaks_of_nothing_before_it() -> None:
    """The third piece has facts: rows before it may be of an older shape."""
    facts = CatalogFacts({1: (None, None)})  # type: ignore[dict-item]  # only its being there counts
    rows = [wire.insert(1, [str(number), "a", None]) for number in range(4)]
    parts = [[wire.begin(), T, rows[0]], [rows[1], wire.commit()], [wire.begin(), T, rows[2]], [rows[3], wire.commit()]]
    pieces = [WalPiece(as_messages(part), messages=len(part)) for part in parts]
    pieces[2] = WalPiece(pieces[2].run, facts)
    pieces.append(WalPiece(idle_at=PostgresLsn(500), sent_us=7))
    first, second = Walsender.__new__(Walsender).joined(pieces)
    assert [[one.run.message(index) for index in range(len(one.run))] for one in (first, second)] == [
        [*parts[0], *parts[1]],
        [*parts[2], *parts[3]],
    ]
    assert (first.facts, first.idle_at) == (CatalogFacts(), None)
    assert (second.facts, second.idle_at, second.sent_us) == (facts, PostgresLsn(500), 7)
