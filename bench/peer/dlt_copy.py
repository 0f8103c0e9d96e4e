"""dlt's copy of one table, run by ``dlt_peer.py`` with dlt's own Python: ADDRESS SCHEMA TABLE STATE → seconds."""

from __future__ import annotations

import sys
import time

import dlt  # type: ignore[import-not-found]
from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]

_DRIVERS = {"postgresql": "postgresql+psycopg2"}
"""SQLAlchemy's name, where it is not connectorx's."""


def main(address: str, schema: str, table: str, state: str) -> None:
    kind, place = address.split("://", 1)
    started = time.perf_counter()
    rows = sql_table(
        f"{_DRIVERS.get(kind, kind)}://{place}",
        table=table,
        schema=schema or None,
        reflection_level="full_with_precision",
        backend="connectorx",
        backend_kwargs={"return_type": "arrow", "conn": address},
    )
    rows.apply_hints(table_format="delta")
    pipeline = dlt.pipeline("bench", destination="filesystem", dataset_name="copy", pipelines_dir=state)
    pipeline.run(rows, loader_file_format="parquet", write_disposition="replace")
    print(f"{time.perf_counter() - started:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
