"""Lake and source, row by row: the lake read by deltalake, the source by SQLite itself."""

from __future__ import annotations

from tests.crash.shop import Shop
