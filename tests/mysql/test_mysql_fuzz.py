"""The decoder is total: events of every server version, damaged, give Arrow or DecodeError, soon, and nothing else.

``python -m tests.mysql.test_mysql_fuzz 1000000`` tries more of them than the tests do, and tells how they ended.
"""

from __future__ import annotations

import collections
import random
import sys
import time
from unittest.mock import patch

import pytest
from tests.mysql.golden import events
from tests.mysql.test_mysql_decoder import _piece
from tests.mysql.test_mysql_golden import NAMES, decoder

from lakefeed.capture.mysql import binlog
from lakefeed.capture.mysql.rows import read_table_map
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.errors import DecodeError

LONGEST_SECONDS = 10.0
"""For a handful of events, on a machine that has other work, too."""
_BEFORE = 4
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)


def damaged(event: bytes, chance: random.Random) -> bytes:
    """Other bytes, fewer bytes, more bytes, bytes that moved. The kind of the event mostly stays."""
    found = bytearray(event)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(1 if chance.random() < 0.1 else min(20, len(found) - 1), len(found))
        how = chance.randrange(8)
        if how < 3:
            found[at] = chance.randrange(256)
        elif how < 5:
            found[at] = chance.choice(_INTERESTING)
        elif how == 5 and len(found) > 24:
            del found[at : at + chance.choice((1, 2, 8, len(found)))]
        elif how == 6:
            found[at:at] = bytes(chance.choice(_INTERESTING) for _ in range(chance.choice((1, 2, 8))))
        else:
            found[at] ^= 1 << chance.randrange(8)
        if len(found) < 3:
            break
    return bytes(found)


def try_damaged(rounds: int, seed: int) -> collections.Counter[str]:
    """So many damaged events, each behind the few that came before it, half of them as if there were thousands, which
    are looked at together. Counts how they ended."""
    chance = random.Random(seed)
    recorded = {name: events(name) for name in NAMES}
    ends: collections.Counter[str] = collections.Counter()
    for _ in range(rounds):
        name = chance.choice(NAMES)
        whole = recorded[name]
        index = chance.randrange(1, len(whole))
        tried = [whole[0], *whole[max(1, index - _BEFORE) : index], damaged(whole[index], chance)]
        after = MysqlGtid("") if name.startswith("mysql") else MariadbGtid("")
        started = time.monotonic()
        block, few = chance.choice(((2_048, 16), (2, 1)))
        try:
            with patch.multiple(binlog, _BLOCK=block, _FEW=few):
                made = decoder().decode(_piece(after, tried))
        except DecodeError:
            ends["DecodeError"] += 1
        else:
            for item in made.items:
                for column in getattr(item, "columns", ()):
                    column.validate(full=True)
            ends["Arrow"] += 1
        assert time.monotonic() - started < LONGEST_SECONDS, (name, index, tried[-1])
    return ends


@pytest.mark.parametrize("rounds", [3_000, pytest.param(120_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])])
def test_t12_damaged_events_of_every_version_give_arrow_or_a_decode_error(rounds: int) -> None:
    ends = try_damaged(rounds, seed=rounds)
    assert ends["Arrow"] > rounds // 20
    assert ends["DecodeError"] > rounds // 20


@pytest.mark.parametrize(
    ("code", "meta"),
    [
        (246, b"\x00\x00"),
        (246, b"\x42\x00"),
        (246, b"\x05\x06"),
        (18, b"\x07"),
        (16, b"\x00\x00"),
        (16, b"\x01\x08"),
        (252, b"\x05"),
    ],
)
def test_a_table_map_with_a_column_that_no_server_has_is_a_decode_error(code: int, meta: bytes) -> None:
    body = b"\x01s\0\x01t\0\x01" + bytes((code, len(meta))) + meta + b"\0"
    with pytest.raises(DecodeError, match="a table map has"):
        read_table_map(body)


if __name__ == "__main__":
    print(dict(try_damaged(int(sys.argv[1]), seed=int(sys.argv[1]))))
