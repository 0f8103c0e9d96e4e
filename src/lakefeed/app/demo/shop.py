"""The demo's shop: four tables in SQLite, and a process that changes them all day.

``python -m lakefeed.app.demo.shop DATABASE SECONDS RATE PARENT`` is that process. It prints "ready" once it can be
stopped, then writes transactions at a bounded rate until SIGTERM, until the time is over or until the process PARENT
that started it is gone, always after a whole transaction. Then it prints how many transactions it has written.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from lakefeed.errors import LakefeedError

TABLES = ("customers", "products", "orders", "order_items")
_STOP_SECONDS = 30.0

_SCHEMA = """
CREATE TABLE customers (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, city TEXT NOT NULL, discount REAL, since TEXT NOT NULL);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL, price_cents INTEGER NOT NULL, stock INTEGER NOT NULL, picture BLOB);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id), status TEXT NOT NULL,
    note TEXT, placed_at TEXT NOT NULL);
CREATE TABLE order_items (
    order_id INTEGER NOT NULL REFERENCES orders (id), line INTEGER NOT NULL, product_id INTEGER NOT NULL,
    quantity INTEGER NOT NULL, price_cents INTEGER NOT NULL, PRIMARY KEY (order_id, line));
"""
_CITIES = ("Łódź", "København", "São Paulo", "Zürich", "Kraków", "Reykjavík", "東京", "O'Fallon", "Tromsø")
_NAMES = ("Ada", "Björn", "Chloé", "Dvořák", "Émile", "Frieda", "Grace", "Håkon", "Ines", "José")
_GOODS = ("kettle", "lamp", "chair", "teapot", "notebook", "bicycle", "clock", "blanket", "radio")
_NOTES = (None, None, "leave at the door", 'call "Jo" first', "gift; wrap it", "čeká na sklad")


@contextmanager
def opened(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection without implicit transactions: the code says where they begin and end."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as connection:
        yield connection


def build_shop(database: Path, *, customers: int = 2_000, products: int = 300, orders: int = 5_000) -> None:
    """Create the database and fill it."""
    with opened(database) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)
        shop = Shop(connection, random.Random(1))  # noqa: S311  # not for secrets: the same shop every time
        connection.execute("BEGIN")
        for _ in range(products):
            shop.add_product()
        for _ in range(customers):
            shop.register()
        for _ in range(orders):
            shop.place_order()
        connection.execute("COMMIT")


def count_rows(database: Path) -> dict[str, int]:
    """Rows of each table, at one moment."""
    columns = ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)  # noqa: S608  # names from above
    with opened(database) as connection:
        row = connection.execute(f"SELECT {columns}").fetchone()
    return dict(zip(TABLES, row, strict=True))


class Shop:
    """What can happen. Each method is a part of a transaction that the caller begins and commits."""

    def __init__(self, connection: sqlite3.Connection, chance: random.Random) -> None:
        self._run = connection.execute
        self._chance = chance

    def anything(self) -> None:
        """One day-to-day event; more orders come than go."""
        events = (self.place_order, self.advance_order, self.cancel_order, self.reprice, self.register)
        rarer = (self.move, self.unsubscribe, self.add_product, self.renumber_item)
        weights = (30, 30, 12, 8, 6, 5, 3, 3, 3)
        self._chance.choices((*events, *rarer), weights)[0]()

    def register(self) -> None:
        name = f"{self._chance.choice(_NAMES)} {self._chance.randrange(10_000)}"
        email = f"{self._chance.getrandbits(40):x}@example.org" if self._chance.random() < 0.9 else None
        discount = self._chance.random() if self._chance.random() < 0.3 else None
        self._run(
            "INSERT INTO customers (name, email, city, discount, since) VALUES (?, ?, ?, ?, ?)",
            (name, email, self._chance.choice(_CITIES), discount, _now()),
        )

    def add_product(self) -> None:
        title = f"{self._chance.choice(_GOODS)} no. {self._chance.randrange(1_000)}"
        picture = self._chance.randbytes(64) if self._chance.random() < 0.5 else None
        self._run(
            "INSERT INTO products (title, price_cents, stock, picture) VALUES (?, ?, ?, ?)",
            (title, self._chance.randrange(100, 50_000), self._chance.randrange(500), picture),
        )

    def place_order(self) -> None:
        customer = self._some("customers")
        if customer is None:
            return
        order = self._run(
            "INSERT INTO orders (customer_id, status, note, placed_at) VALUES (?, 'new', ?, ?)",
            (customer, self._chance.choice(_NOTES), _now()),
        ).lastrowid
        for line in range(1, self._chance.randrange(1, 5) + 1):
            self._run(
                "INSERT INTO order_items SELECT ?, ?, id, ?, price_cents FROM products WHERE id = ?",
                (order, line, self._chance.randrange(1, 10), self._some("products")),
            )

    def advance_order(self) -> None:
        self._run(
            "UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'sent' ELSE 'done' END, "
            "note = NULL WHERE id = ?",
            (self._some("orders"),),
        )

    def cancel_order(self) -> None:
        order = self._some("orders")
        self._run("DELETE FROM order_items WHERE order_id = ?", (order,))
        self._run("DELETE FROM orders WHERE id = ?", (order,))

    def reprice(self) -> None:
        product = self._some("products")
        self._run("UPDATE products SET price_cents = price_cents + 1, stock = stock - 1 WHERE id = ?", (product,))

    def move(self) -> None:
        self._run(
            "UPDATE customers SET city = ?, discount = discount / 3 WHERE id = ?",
            (self._chance.choice(_CITIES), self._some("customers")),
        )

    def unsubscribe(self) -> None:
        customer = self._some("customers")
        self._run(
            "DELETE FROM customers WHERE id = ? AND NOT EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id)",
            (customer,),
        )

    def renumber_item(self) -> None:
        """Changes a part of a composite key."""
        self._run(
            "UPDATE OR IGNORE order_items SET line = line + 10 WHERE order_id = ? AND line = 1", (self._some("orders"),)
        )

    def _some(self, table: str) -> int | None:
        """The id of some row: a point look-up, cheap at any size. Gaps are closed by taking the next one."""
        highest = self._run(f"SELECT max(id) FROM {table}").fetchone()[0]  # noqa: S608  # names from above
        if highest is None:
            return None
        wanted = self._chance.randint(1, highest)
        row = self._run(f"SELECT id FROM {table} WHERE id >= ? ORDER BY id LIMIT 1", (wanted,)).fetchone()  # noqa: S608
        return None if row is None else int(row[0])


class Writer:
    """The process, seen from the demo. It is writing when the constructor returns."""

    def __init__(self, database: Path, *, seconds: float, rate: float) -> None:
        arguments = [str(database), str(seconds), str(rate), str(os.getpid())]
        command = [sys.executable, "-m", "lakefeed.app.demo.shop", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        if self._process.stdout.readline() != "ready\n":
            self.kill()
            raise LakefeedError("the demo's writer did not start", remedy="Its own error message is above.")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """End it after the transaction under way; how many it has written."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=_STOP_SECONDS)
        return int(output.strip() or 0)

    def kill(self) -> None:
        """Whatever happened: nothing is left running."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def write(database: Path, *, seconds: float, rate: float, parent: int) -> int:
    """What the process does. Returns the number of transactions."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the demo decides
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    chance = random.Random()  # noqa: S311  # not for secrets
    with opened(database) as connection:
        shop, started, written = Shop(connection, chance), time.monotonic(), 0
        # The parent's id is given, not asked for here: it may be gone before this line is reached.
        while not stopping.is_set() and time.monotonic() < started + seconds and os.getppid() == parent:
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(chance.randrange(1, 4)):
                shop.anything()
            connection.execute("COMMIT")
            written += 1
            stopping.wait(max(0.0, started + written / rate - time.monotonic()))
    return written


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    _database, _seconds, _rate, _parent = sys.argv[1:]
    _count = write(Path(_database), seconds=float(_seconds), rate=float(_rate), parent=int(_parent))
    sys.stdout.write(f"{_count}\n")
