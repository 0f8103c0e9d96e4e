"""verify: is every lake table what the source has now?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_note, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.app.config import Config
    from lakefeed.app.verify import Comparison
    from lakefeed.flow.seed import SeedRecord

FOUND_SOMETHING = 1


def verify(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Compare every lake table with its source table, row by row, by readers that the pipeline does not use.

    Nothing may be writing to the source, and the tables must be up to date (run sync first). Tables are compared in
    memory. History tables must also keep their invariants; change logs have nothing to compare.
    """
    from lakefeed.app.config import load_config
    from lakefeed.flow.seed import Phase, SeedStore

    config = load_config(file)
    found = []
    for record in SeedStore(config.state_path).in_phase(Phase.LIVE):
        if not as_json:
            show_note(f"{record.table}: comparing")
        found.append((record, _compared(config, record)))
    equal = all(comparison.equal for _, comparison in found)
    if as_json:
        show_object({"equal": equal, "tables": {str(record.table): _object(record, one) for record, one in found}})
        return 0 if equal else FOUND_SOMETHING
    rows = [(record.table, one.source_rows, one.lake_rows, "yes" if one.equal else "NO") for record, one in found]
    show_table(("table", "source rows", "lake rows", "equal"), rows)
    for record, one in found:
        for difference in one.differences:
            show_text(f"{record.table}: {difference}")
    return 0 if equal else FOUND_SOMETHING


def _compared(config: Config, record: SeedRecord) -> Comparison:
    from dataclasses import replace

    from lakefeed.app.verify import compare_sqlite_table
    from lakefeed.app.verify_history import history_problems
    from lakefeed.lake.location import table_path
    from lakefeed.lake.mode import Temporal
    from lakefeed.lake.reader import read_table
    from lakefeed.lake.shape import Shape

    place = Path(table_path(config.lake.path, record.table))
    shape = Shape(record.mode)
    if config.source.kind == "sqlite":
        found = compare_sqlite_table(Path(config.source.path), record.source, place, shape)
    else:
        from lakefeed.app.verify_postgres import compare_postgres_table

        found = compare_postgres_table(config.source.dsn, record.source, place, shape)
    versions = read_table(place) if isinstance(record.mode, Temporal) else None
    if versions is None or record.schema is None or not isinstance(record.mode, Temporal):
        return found
    problems = tuple(history_problems(versions, record.schema.key, record.mode))
    return replace(found, differences=(*found.differences, *problems))


def _object(record: SeedRecord, found: Comparison) -> dict[str, object]:
    from lakefeed.lake.mode import described

    return {
        "mode": described(record.mode),
        "equal": found.equal,
        "source_rows": found.source_rows,
        "lake_rows": found.lake_rows,
        "differences": list(found.differences),
    }
