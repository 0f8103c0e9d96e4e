"""A writer in a process of its own: ``python write_rows.py PATH SECONDS``, and longer until it has made some.

Says "ready" after its first transaction, and in the end how many it has made.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time

LEAST = 10


def main(path: str, seconds: float) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = OFF")
    chance = random.Random(7)
    until = time.monotonic() + seconds
    transactions = 0
    while time.monotonic() < until or transactions <= LEAST:
        connection.execute("BEGIN IMMEDIATE")
        a, b, amount = chance.randrange(50), chance.randrange(50), chance.randrange(10)
        connection.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, a))
        connection.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, b))
        connection.execute("INSERT OR REPLACE INTO note (k, slot) VALUES (?, ?)", (f"{a}-{b}", chance.randrange(20)))
        connection.execute("DELETE FROM note WHERE k = ?", (f"{b}-{a}",))
        connection.execute("COMMIT")
        transactions += 1
        if transactions == 1:
            print("ready", flush=True)
    connection.close()
    print(transactions)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
