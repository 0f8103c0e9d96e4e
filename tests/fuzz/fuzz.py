"""``python -m tests.fuzz 1000000``: damaged inputs for everything that reads bytes which others wrote: the decoders
of PostgreSQL and MySQL, the configuration, positions and the files of a pipeline's state. Each must give what it means
or an error of Lakefeed's that names the trouble; nothing else, and soon. Prints how they ended.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.mysql.test_mysql_fuzz import damaged, try_damaged
from tests.postgres.test_pgoutput import try_mutated

from lakefeed.app.config import load_config
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.position import decode_position
from lakefeed.durable import pack, unpack
from lakefeed.errors import LakefeedError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.commit import Origin, parse_commit
from lakefeed.journal.schema_history import SchemaHistory
from lakefeed.storage.location import storage_at
from lakefeed.testing.memory_lake import MemoryLake

Ends = collections.Counter[str]
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Files that are written a million times need no disk."""

_CONFIGURATIONS = (
    """
pipeline: shop
source: {kind: postgres, dsn: "host=localhost dbname=shop user=lakefeed", tables: ["public.*"], before_images: true}
lake:
  path: ./lake
  format: delta
  mode: temporal
  deletion_vectors: [account]
  evolution: {add_column: ignore, change_type: rebuild}
  tables:
    - {match: "public.log", mode: append}
    - {match: "public.people", columns: ["id", "name*"], types: {n: "decimal(10,2)"}, out_of_range: {n: clamp}}
sync: {interval_seconds: 0.5, warm_up: false}
journal: {keep_change_sets: 20, keep_seconds: 3600}
maintenance: {every_seconds: 1800}
""",
    """
pipeline: shop
source:
  kind: mysql
  dsn: "mysql://lakefeed@localhost/"
  tables: ["shop.*", "!shop.tmp_*"]
lake:
  path: ./lake
  format: iceberg
  tables:
    - {match: "shop.orders", name: "{table}_history", mode: temporal}
journal: {path: ./journal}
verify: {every_seconds: 3600, max_rate: 5000}
""",
    """
pipeline: shop
source:
  kind: sqlite
  path: shop.db
  capture: poll
  poll_seconds: 2
  rules: {"*": {updated_at: updated_at, safety_lag_seconds: 1}}
lake: {path: ./lake}
""",
)
_WORDS = (
    "null",
    "[]",
    "{}",
    "-1",
    "1e999",
    "true",
    "''",
    "*",
    "!!python/object:os",
    "&a",
    "*a",
    "${HOME}",
    "${",
    "\u0000",
)
_POSITIONS = (
    "postgres=1/12345678", "sqlserver=0x0000002A000001F0000A", "sqlite=7@1234", "binlog=mysql-bin.000003:12345",
    "mysql_gtid=3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7-9", "mariadb_gtid=1-1-5,0-2-7",
    'watermark={"s.t":{"key":[["int",1],["str","a"]],"us":-5}}', "custom=a=b",
)  # fmt: skip


def try_configurations(rounds: int, seed: int) -> Ends:
    """Lines moved, dropped and doubled, words exchanged, characters of every kind put in."""
    chance, ends = random.Random(seed), Ends()
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        file = Path(directory) / "shop.yaml"
        for _ in range(rounds):
            text = chance.choice(_CONFIGURATIONS)
            for _ in range(chance.choice((1, 1, 2, 4))):
                at = chance.randrange(len(text))
                how = chance.randrange(5)
                if how == 0:
                    text = text[:at] + chr(chance.choice((0, 9, 10, 34, 58, 91, 123, 0xFEFF, 0x1F40B))) + text[at:]
                elif how == 1:
                    text = text[:at] + text[at + chance.choice((1, 3, 20)) :]
                elif how == 2:
                    words = text.split(" ")
                    words[chance.randrange(len(words))] = chance.choice(_WORDS)
                    text = " ".join(words)
                elif how == 3:
                    lines = text.splitlines()
                    lines.insert(chance.randrange(len(lines)), chance.choice(lines))
                    text = "\n".join(lines)
                else:
                    other = chance.randrange(len(text))
                    text = text[:at] + text[other : other + 10] + text[at:]
            file.write_text(text, errors="replace")
            _count(ends, lambda: load_config(file, {}))
    return ends


def try_positions(rounds: int, seed: int) -> Ends:
    chance, ends = random.Random(seed), Ends()
    for _ in range(rounds):
        raw = damaged(chance.choice(_POSITIONS).encode(), chance)
        _count(ends, lambda: decode_position(raw.decode("latin-1")))  # noqa: B023
    return ends


def try_state(rounds: int, seed: int) -> Ends:
    """Files of a real pipeline: bytes damaged, or, half of them, content changed under a checksum that is right."""
    chance, ends = random.Random(seed), Ends()
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        root = _pipeline(Path(directory))
        storage = storage_at(root)
        files = [one for one in sorted(root.rglob("*.json")) if one.name != "liveness.json"]
        readers: dict[str, Callable[[str, bytes], Any]] = {
            "commits": lambda name, data: parse_commit(data, name, storage),
            "origin.json": lambda *_: Origin.load(storage, "origin.json"),
            "schemas": lambda *_: SchemaHistory(storage, "schemas").load(),
            "tables": lambda *_: TableStates(storage),
        }
        for _ in range(rounds):
            file = chance.choice(files)
            name, whole = str(file.relative_to(root)), file.read_bytes()
            reader = readers.get(name.partition("/")[0])
            if reader is None:
                continue
            spoilt = pack(_changed(unpack(whole, file), chance)) if chance.random() < 0.5 else damaged(whole, chance)
            if name.startswith("commits"):  # its bytes are all it is read from
                _count(ends, lambda: reader(name, spoilt))  # noqa: B023
                continue
            file.write_bytes(spoilt)
            _count(ends, lambda: reader(name, spoilt))  # noqa: B023
            file.write_bytes(whole)
    return ends


def _pipeline(directory: Path) -> Path:
    database = sqlite3.connect(directory / "shop.db", isolation_level=None)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    with Pipeline(Sqlite(directory / "shop.db"), MemoryLake(str(directory / "lake")), name="shop") as pipeline:
        for number in range(4):
            database.execute("INSERT INTO t VALUES (?, 'a')", (number,))
            pipeline.sync_once()
        database.execute("ALTER TABLE t ADD COLUMN w REAL")
        database.execute("INSERT INTO t VALUES (9, 'a', 1.5)")
        pipeline.sync_once()
    database.close()
    return directory / "lake" / "_lakefeed" / "shop"


def _changed(body: Any, chance: random.Random) -> Any:
    """The same JSON with one value of it exchanged, dropped or doubled."""
    copy = json.loads(json.dumps(body))
    at: Any = copy
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = chance.choice(list(keys)) if keys else None
        if key is None or not (isinstance(at[key], dict | list) and at[key] and chance.random() < 0.8):
            break
        at = at[key]
    how = chance.randrange(3)
    if key is not None and how == 0:
        del at[key]
    elif key is not None:
        at[key] = chance.choice([None, -1, 2**70, "", "x", [], {}, [[]], True, 1.5, at[key]])
    return copy


def _count(ends: Ends, read: Callable[[], object]) -> None:
    started = time.monotonic()
    try:
        read()
    except LakefeedError as error:
        ends[type(error).__name__ if error.remedy else "without a remedy"] += 1
    else:
        ends["read"] += 1
    assert time.monotonic() - started < 10


FUZZERS: dict[str, tuple[Callable[[int, int], Ends], int]] = {
    "pgoutput": (try_mutated, 40),
    "binlog": (try_damaged, 25),
    "configuration": (try_configurations, 10),
    "positions": (try_positions, 15),
    "state files": (try_state, 10),
}
"""Which share of a hundred inputs each has."""
_PART = 5_000


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after that")
    given = parser.parse_args(arguments)
    parts = [
        (name, min(_PART, given.inputs * share // 100 - done), given.seed + done)
        for name, (_, share) in FUZZERS.items()
        for done in range(0, given.inputs * share // 100, _PART)
    ]
    random.Random(given.seed).shuffle(parts)  # so that all have had a share where time is short
    counts, until = collections.Counter[str](), time.monotonic() + given.seconds
    ends: collections.defaultdict[str, Ends] = collections.defaultdict(Ends)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, rounds, found in pool.map(_part, [(*one, until) for one in parts]):
            counts[name] += rounds
            ends[name] += found
    for name in FUZZERS:
        print(f"{name}: {counts[name]:,} inputs, {dict(ends[name])}")
    print(f"{counts.total():,} inputs, seed {given.seed}")
    return 0


def _part(given: tuple[str, int, int, float]) -> tuple[str, int, Ends]:
    name, rounds, seed, until = given
    if time.monotonic() > until:
        return name, 0, Ends()
    return name, rounds, FUZZERS[name][0](rounds, seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
