"""The same for PostgreSQL: a database under constant change, with the things that are hard to follow in it.

Tables with one and two key columns, one that logs whole rows, one of partitions; large values that updates skip;
changes of keys, upserts, truncates, transactions that are rolled back, in whole and in part.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from tests.crash.process import PipelineDirectory, writing

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, owner text UNIQUE, balance numeric(30, 4) NOT NULL, note text, big text);
ALTER TABLE account ALTER big SET STORAGE EXTERNAL;
CREATE TABLE entry (account int, line int, amount float8, data bytea, at timestamptz, PRIMARY KEY (account, line));
CREATE TABLE event (id bigserial PRIMARY KEY, what text, tags text[], at timestamp);
ALTER TABLE event REPLICA IDENTITY FULL;
CREATE TABLE part (id int, region text, v jsonb, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE part_a PARTITION OF part FOR VALUES IN ('a');
CREATE TABLE part_rest PARTITION OF part DEFAULT;
"""
NAMES = ("account", "entry", "event", "part")

CONFIG = """
pipeline: crash
source: {{kind: postgres, dsn: "{dsn}"}}
lake: {{path: ./lake, format: delta, mode: mirror, deletion_vectors: [account]}}
sync: {{interval_seconds: 0.2, warm_up: false}}
journal: {{keep_change_sets: 2, keep_seconds: 0}}
"""

UPSERT = """
INSERT INTO account (id, owner, balance, big) VALUES (%s, %s, 1, repeat(md5(%s), 100))
ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1
"""
STATEMENTS: tuple[tuple[str, str], ...] = (
    (UPSERT, "kot"),
    ("INSERT INTO account (id, owner, balance) VALUES (%s, %s, 1.0001) ON CONFLICT DO NOTHING", "ko"),
    ("UPDATE account SET note = %s, balance = balance * 1.1 WHERE id = %s", "tk"),
    (
        "UPDATE account SET id = %s, big = 'moved' WHERE id = %s AND NOT EXISTS (SELECT FROM account WHERE id = %s)",
        "kjk",
    ),
    ("UPDATE account SET big = repeat(md5(%s), 100) WHERE id = %s", "tk"),
    ("DELETE FROM account WHERE id = %s", "k"),
    ("INSERT INTO entry VALUES (%s, %s %% 5, %s / 7.0, sha256(%s::text::bytea), now()) ON CONFLICT DO NOTHING", "kjkt"),
    ("UPDATE entry SET amount = amount * 1.1, at = clock_timestamp() WHERE account = %s", "k"),
    ("DELETE FROM entry WHERE account = %s", "k"),
    ("INSERT INTO event (what, tags, at) VALUES (%s, ARRAY[%s, NULL], localtimestamp)", "tt"),
    ("UPDATE event SET tags = tags || 'x'::text WHERE what = %s", "t"),
    ("DELETE FROM event WHERE what = %s", "t"),
    ("INSERT INTO part VALUES (%s, chr(97 + %s %% 3), '{\"n\": 1.10}') ON CONFLICT DO NOTHING", "kj"),
    ("UPDATE part SET region = chr(97 + (ascii(region) - 96) %% 3) WHERE id = %s AND region = 'c'", "k"),
    ("DELETE FROM part WHERE id = %s", "k"),
)


class PostgresShop(PipelineDirectory):
    """The directory of one test; the database is at ``dsn``."""

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, CONFIG.format(dsn=dsn))
        self.dsn = dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)
            with connection.transaction():
                change(connection, random.Random(0), 400)

    @contextlib.contextmanager
    def writer(self, seed: int) -> Iterator[None]:
        """A process that changes the database until the block ends (and at most for 25 minutes)."""
        with writing(["-m", "tests.crash.postgres_shop", self.dsn, str(seed), str(os.getpid())]):
            yield


def change(connection: psycopg.Connection[Any], chance: random.Random, statements: int) -> None:
    for _ in range(statements):
        statement, wanted = chance.choice(STATEMENTS)
        key, other = chance.randrange(500), chance.randrange(500)
        text = chance.choice(["", "O'Hara \u00fcber \U0001f40b", f"e{key % 50}"])
        values = {"k": key, "j": other, "o": f"o{other}", "t": text}
        with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute(statement.encode(), [values[letter] for letter in wanted])


def write_until_told(dsn: str, seed: int, parent: int) -> None:
    """The writer process: small transactions, some rolled back, until SIGTERM, orphaned, or 25 minutes."""
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    chance = random.Random(seed)
    deadline = time.monotonic() + 1500
    while not stopped and time.monotonic() < deadline and os.getppid() == parent:
        with contextlib.suppress(psycopg.OperationalError):  # the server is being restarted
            write_once(dsn, chance, stopped)


def write_once(dsn: str, chance: random.Random, stopped: list[bool]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stopped:
            with connection.transaction() as transaction:
                change(connection, chance, chance.randrange(1, 30))
                if chance.random() < 0.02:
                    connection.execute("TRUNCATE event")
                if chance.random() < 0.1:
                    raise psycopg.Rollback(transaction)
            time.sleep(0.02)


if __name__ == "__main__":
    write_until_told(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
