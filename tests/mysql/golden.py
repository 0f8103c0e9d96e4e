"""The golden binlogs: ``python -m tests.mysql.golden`` writes those of every server version that can be had.

Each is the file of a new server, byte by byte, after it ran statements.sql. servers.json has what each server said that
it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pymysql

from lakefeed.testing.server.mysql import RELEASES, MysqlServer, Release

PLACE = Path(__file__).parent.parent / "golden" / "mysql"
_EMPTY = 1065  # the statement is for another server


def record(release: Release) -> str:
    """Write the binlog of one version. Returns what the server calls itself."""
    os.environ[f"LAKEFEED_{release.flavour.upper()}"] = release.version
    with MysqlServer.start(release.flavour) as server, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        for statement in (PLACE / "statements.sql").read_text().split(";\n"):
            try:
                if statement:
                    cursor.execute(statement)
            except pymysql.err.MySQLError as error:
                if error.args[0] != _EMPTY:
                    raise
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SELECT version()")
        found: Any = cursor.fetchone()
        name = f"{release.flavour}-{release.version}"
        (PLACE / f"{name}.binlog").write_bytes((server.directory / "data" / newest).read_bytes())
    return str(found[0])


def events(name: str) -> list[bytes]:
    """The events of a golden binlog, as the server would send them: each behind a byte that says that all is well."""
    data, at, found = (PLACE / f"{name}.binlog").read_bytes(), 4, []
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(b"\0" + data[at : at + size])
        at += size
    return found


def main() -> int:
    servers, failed = {}, []
    with contextlib.suppress(FileNotFoundError):
        servers = json.loads((PLACE / "servers.json").read_text())
    for release in RELEASES:
        name = f"{release.flavour}-{release.version}"
        try:
            servers[name] = record(release)
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    (PLACE / "servers.json").write_text(json.dumps(servers, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
