"""The PostgreSQL servers of tests/postgres, for polling."""

from __future__ import annotations

from tests.postgres.conftest import dsn, server, servers

__all__ = ["dsn", "server", "servers"]
