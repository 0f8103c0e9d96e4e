"""The same for MySQL and MariaDB: tables with one and two key columns, one without a key, one of partitions; changes of
keys, upserts, REPLACE, truncates, transactions that are rolled back, in whole and in part, and new files of the log."""

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

import pymysql
from tests.crash.process import PipelineDirectory, writing

from lakefeed.testing.server.mysql import MysqlServer

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, owner varchar(20) UNIQUE, balance decimal(30, 4) NOT NULL, note text,
                      big longtext);
CREATE TABLE entry (account int, line int, amount double, data varbinary(40), at timestamp(6) NULL,
                    PRIMARY KEY (account, line));
CREATE TABLE event (what varchar(50), tags json, at datetime(3));
CREATE TABLE part (id int, region int, v enum('a', 'ü'), PRIMARY KEY (id, region))
    PARTITION BY LIST (region) (PARTITION p0 VALUES IN (0), PARTITION p1 VALUES IN (1, 2));
"""

CONFIG = """
pipeline: crash
source: {{kind: {kind}, dsn: "{dsn}", tables: ["shop.*"]}}
lake: {{path: ./lake, format: delta, mode: mirror, deletion_vectors: [account]}}
sync: {{interval_seconds: 0.2, warm_up: false}}
journal: {{keep_change_sets: 2, keep_seconds: 0}}
"""

UPSERT = """
INSERT INTO account (id, owner, balance, big) VALUES (%s, %s, 1, repeat(md5(%s), 100))
ON DUPLICATE KEY UPDATE balance = balance + 1
"""
STATEMENTS: tuple[tuple[str, str], ...] = (
    (UPSERT, "kot"),
    ("REPLACE INTO account (id, owner, balance) VALUES (%s, %s, 1.0001)", "ko"),
    ("UPDATE account SET note = %s, balance = balance * 1.1 WHERE id = %s AND balance < 1e20", "tk"),
    ("UPDATE IGNORE account SET id = %s, big = 'moved' WHERE id = %s", "kj"),
    ("UPDATE account SET big = repeat(md5(%s), 100) WHERE id = %s", "tk"),
    ("DELETE FROM account WHERE id = %s", "k"),
    ("INSERT IGNORE INTO entry VALUES (%s, %s %% 5, %s / 7e0, unhex(sha2(%s, 256)), now(6))", "kjkt"),
    ("UPDATE entry SET amount = amount * 1.1, at = now(6) WHERE account = %s", "k"),
    ("DELETE FROM entry WHERE account = %s", "k"),
    ("INSERT INTO event VALUES (%s, json_array(%s, NULL, 1.5), now(3))", "tt"),
    ("UPDATE event SET tags = json_array(%s) WHERE what = %s LIMIT 3", "tt"),
    ("DELETE FROM event WHERE what = %s LIMIT 5", "t"),
    ("INSERT IGNORE INTO part VALUES (%s, %s %% 3, 'ü')", "kj"),
    ("UPDATE IGNORE part SET region = (region + 1) %% 3 WHERE id = %s", "k"),
    ("DELETE FROM part WHERE id = %s", "k"),
)


class MysqlShop(PipelineDirectory):
    """The directory of one test; the database is ``shop`` on the server."""

    def __init__(self, directory: Path, server: MysqlServer) -> None:
        super().__init__(directory, CONFIG.format(kind=server.flavour, dsn=server.dsn))
        self.server = server
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
            cursor.execute("USE shop")
            for table in TABLES.strip().split(";\n"):
                cursor.execute(table.rstrip(";"))
            change(cursor, random.Random(0), 400)

    @contextlib.contextmanager
    def writer(self, seed: int) -> Iterator[None]:
        """A process that changes the database until the block ends (and at most for 25 minutes)."""
        with writing(["-m", "tests.crash.mysql_shop", str(self.server.port), str(seed), str(os.getpid())]):
            yield


def change(cursor: Any, chance: random.Random, statements: int) -> None:
    for _ in range(statements):
        statement, wanted = chance.choice(STATEMENTS)
        key, other = chance.randrange(500), chance.randrange(500)
        text = chance.choice(["", "O'Hara über \U0001f40b", f"e{key % 50}"])
        values = {"k": key, "j": other, "o": f"o{other}", "t": text}
        cursor.execute(statement, [values[letter] for letter in wanted])


def write_until_told(port: int, seed: int, parent: int) -> None:
    """The writer process: small transactions, some rolled back, until SIGTERM, orphaned, or 25 minutes."""
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    chance = random.Random(seed)
    deadline = time.monotonic() + 1500
    while not stopped and time.monotonic() < deadline and os.getppid() == parent:
        with contextlib.suppress(pymysql.err.Error, OSError):  # the server is being restarted
            write_once(port, chance, stopped)


def write_once(port: int, chance: random.Random, stopped: list[bool]) -> None:
    with (
        pymysql.connect(
            host="127.0.0.1", port=port, user="root", database="shop", charset="utf8mb4", ssl_disabled=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        while not stopped:
            cursor.execute("BEGIN")
            change(cursor, chance, chance.randrange(1, 15))
            cursor.execute("SAVEPOINT a")
            change(cursor, chance, chance.randrange(1, 15))
            if chance.random() < 0.1:
                cursor.execute("ROLLBACK TO a")
            cursor.execute(chance.choices(["COMMIT", "ROLLBACK"], [9, 1])[0])
            if chance.random() < 0.02:
                cursor.execute(chance.choice(["TRUNCATE event", "FLUSH BINARY LOGS"]))
            time.sleep(0.02)


if __name__ == "__main__":
    write_until_told(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
