"""Laws that hold for positions of every kind, on random ones."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Custom, Position, SqliteSequence, decode_position, position_kinds
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointError

# Small numbers and few names, so that random positions are often equal, ordered or nearly so.
SMALL = st.integers(0, 4)
UUIDS = ["3e11fa47-71ca-11e1-9e33-c80aa9429562", "4E11FA47-71CA-11E1-9E33-C80AA9429562"]

GTID_MODELS = st.frozensets(st.tuples(st.sampled_from(UUIDS), st.sampled_from(["", "blue"]), st.integers(1, 6)))
MARIADB_MODELS = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(1, 2), SMALL), max_size=3)
KEYS = st.tuples(st.one_of(SMALL, st.sampled_from(["a", "b"]), st.binary(max_size=1), st.decimals(0, 4, places=1)))
MARKS = st.builds(Mark, SMALL, st.one_of(KEYS, st.tuples(SMALL, SMALL)))


def mysql_gtid(model: frozenset[tuple[str, str, int]]) -> MysqlGtid:
    """One spelling of many: every transaction on its own."""
    return MysqlGtid(",".join(f"{uuid}:{tag}:{n}" if tag else f"{uuid}:{n}" for uuid, tag, n in model))


def mariadb_gtid(model: dict[int, tuple[int, int]]) -> MariadbGtid:
    return MariadbGtid(",".join(f"{domain}-{server}-{n}" for domain, (server, n) in model.items()))


STRATEGIES: dict[type[Position], st.SearchStrategy[Position]] = {
    PostgresLsn: st.builds(PostgresLsn, SMALL | st.integers(0, (1 << 64) - 1)),
    SqlServerLsn: st.builds(SqlServerLsn, st.binary(min_size=10, max_size=10)),
    SqliteSequence: st.builds(SqliteSequence, SMALL | st.integers(0, (1 << 63) - 1), SMALL),
    MysqlBinlog: st.builds(MysqlBinlog, st.sampled_from(["a.000009", "a.000010", "a.1000000", "b.000001"]), SMALL),
    MysqlGtid: GTID_MODELS.map(mysql_gtid),
    MariadbGtid: MARIADB_MODELS.map(mariadb_gtid),
    Watermark: st.dictionaries(st.sampled_from(["s.a", "s.b"]) | st.text(), MARKS, max_size=3).map(Watermark.of),
    Custom: st.builds(Custom, st.sampled_from(["a", "b", "9", "10", "010"]) | st.text()),
}
# No time limit per example: how long one takes says more about the machine's other work than about the code.
patient = settings(deadline=None, max_examples=30)
KINDS = sorted(STRATEGIES, key=lambda kind: kind.kind)


def test_every_kind_is_covered_here() -> None:
    assert set(STRATEGIES) == set(position_kinds().values())


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(data=st.data())
def test_decode_is_the_inverse_of_encode(kind: type[Position], data: st.DataObject) -> None:
    position = data.draw(STRATEGIES[kind])
    decoded = decode_position(position.encode())
    assert decoded == position
    assert decoded.text() == position.text()
    assert hash(decoded) == hash(position)
    assert pickle.loads(pickle.dumps(position)) == position


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(data=st.data())
def test_the_order_is_reflexive_and_antisymmetric(kind: type[Position], data: st.DataObject) -> None:
    a, b = data.draw(STRATEGIES[kind]), data.draw(STRATEGIES[kind])
    assert a.compare(a) == 0
    forward, backward = a.compare(b), b.compare(a)
    assert backward == (None if forward is None else -forward)
    if a == b:
        assert forward == 0
        assert hash(a) == hash(b)
    if kind is not SqliteSequence:  # whose stamp is not part of the order
        assert (forward == 0) == (a == b)


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(data=st.data())
def test_the_order_is_transitive(kind: type[Position], data: st.DataObject) -> None:
    a, b, c = (data.draw(STRATEGIES[kind]) for _ in range(3))
    if a <= b and b <= c:
        assert a <= c
        assert (a < c) == (a < b or b < c)


@pytest.mark.parametrize("kind", [PostgresLsn, SqlServerLsn, SqliteSequence])
@patient
@given(data=st.data())
def test_log_numbers_are_always_ordered(kind: type[Position], data: st.DataObject) -> None:
    assert data.draw(STRATEGIES[kind]).compare(data.draw(STRATEGIES[kind])) is not None


@patient
@given(GTID_MODELS, GTID_MODELS)
def test_t17_mysql_gtid_sets_are_ordered_as_the_sets_of_their_transactions(
    a: frozenset[tuple[str, str, int]], b: frozenset[tuple[str, str, int]]
) -> None:
    one, other, union = mysql_gtid(a), mysql_gtid(b), mysql_gtid(a | b)
    assert (one <= other) == (a <= b)
    assert (one < other) == (a < b)
    assert (one == other) == (a == b)
    assert (one.compare(other) is None) == (not a <= b and not b <= a)
    assert one <= union
    assert other <= union
    assert mysql_gtid(a & b) <= one


@patient
@given(st.sets(st.integers(1, 30), min_size=1))
def test_t17_intervals_and_single_numbers_spell_the_same_mysql_set(numbers: set[int]) -> None:
    starts = [n for n in sorted(numbers) if n - 1 not in numbers]
    ends = [n for n in sorted(numbers) if n + 1 not in numbers]
    intervals = ":".join(f"{low}-{high}" for low, high in zip(starts, ends, strict=True))
    singles = ":".join(str(n) for n in sorted(numbers, reverse=True))
    assert MysqlGtid(f"{UUIDS[0]}:{intervals}") == MysqlGtid(f"{UUIDS[0].upper()}:{singles}")


@patient
@given(MARIADB_MODELS, st.integers(0, 2), st.integers(1, 2))
def test_t17_a_mariadb_position_grows_with_every_transaction(
    model: dict[int, tuple[int, int]], domain: int, server: int
) -> None:
    _, sequence = model.get(domain, (0, 0))
    assert mariadb_gtid(model) < mariadb_gtid({**model, domain: (server, sequence + 1)})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Custom])
@patient
@given(text=st.text() | st.text(alphabet="0123456789abcdefx-/:.,@ +_\n"))
def test_parsing_any_text_gives_a_position_or_a_checkpoint_error(kind: type[Position], text: str) -> None:
    try:
        position = kind.parse(text)
    except CheckpointError:
        return
    assert kind.parse(position.text()) == position


@patient
@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(), st.text(), st.binary())
def test_key_values_of_every_type_come_back_exactly(number: Decimal, whole: int, text: str, raw: bytes) -> None:
    mark = Mark(whole, (number, whole, text, raw))
    decoded = Watermark.parse(Watermark.of({"s.t": mark}).text())
    [(_, again)] = decoded.marks
    assert again == mark
    assert [type(value) for value in again.key] == [Decimal, int, str, bytes]
