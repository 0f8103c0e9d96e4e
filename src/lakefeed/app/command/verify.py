"""verify: is every lake table what the source has now?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_note, show_object, show_table, show_text
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.app.config import Config, SourceConfig
    from lakefeed.app.verify import Comparison, Progress, SourceTable, Subject
    from lakefeed.change.table import TableId
    from lakefeed.flow.table_state import TableState

FOUND_SOMETHING = 1
_LINE_SECONDS = 5.0


def verify(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Compare every lake table with its source table, row by row, by readers that the pipeline does not use.

    Nothing may be writing to the source, and the tables must be up to date (run sync first). Memory stays bounded;
    large tables need room in the temporary directory. History tables must also keep their invariants; of a table of
    changes, what they leave is compared. Columns that the evolution leaves out are named, and are no difference.
    A table that cannot be compared yet, or that waits for somebody, is one; dropped tables are left out.
    """
    from lakefeed.app.config import load_config

    config = load_config(file)
    found = [(record, _looked_at(config, record, quiet=as_json)) for record in _followed(config, file)]
    equal = all(comparison.equal for _, comparison in found)
    if as_json:
        show_object({"equal": equal, "tables": {str(record.table): _object(record, one) for record, one in found}})
        return 0 if equal else FOUND_SOMETHING
    rows = [(record.table, *_rows(one), "yes" if one.equal else "NO") for record, one in found]
    show_table(("table", "source rows", "lake rows", "equal"), rows)
    for record, one in found:
        for difference in one.differences:
            show_text(f"{record.table}: {difference}")
        for choice in one.chosen:
            show_text(f"{record.table}: {choice}, as its evolution says; not compared")
    return 0 if equal else FOUND_SOMETHING


def _followed(config: Config, file: Path) -> list[TableState]:
    """Every table that should equal its source table. ConfigError if there is none: that is no proof of anything."""
    from lakefeed.flow.table_state import Phase, TableStates

    known = TableStates(config.state_path).all().values()
    found = [record for record in known if record.phase is not Phase.DROPPED]
    if known and not found:
        raise ConfigError(
            f"there is nothing to compare: all tables of pipeline {config.pipeline} are dropped",
            remedy=f"lakefeed status {file} says why; correct source.tables if they should be followed.",
        )
    if not found:
        raise ConfigError(
            f"there is nothing to compare: pipeline {config.pipeline} has no tables below {config.lake.path}",
            remedy=f"Run lakefeed sync {file} first; if it has run, correct pipeline or lake.path.",
        )
    return found


def _looked_at(config: Config, record: TableState, *, quiet: bool) -> Comparison:
    from lakefeed.app.verify import not_compared
    from lakefeed.flow.table_state import Phase

    if record.phase is not Phase.LIVE or record.leaving:
        return not_compared(record.table, _why(record))
    if not quiet:
        show_note(f"{record.table}: comparing")
    return _compared(config, record, _quiet if quiet else _lines(record.table))


def _why(record: TableState) -> str:
    """A blocked table has a remedy of its own; the others wait for nobody."""
    reason = f", {record.reason.rstrip('.')}" if record.reason else ""
    if record.leaving:
        return f"the table is leaving{reason}. Remedy: Run lakefeed sync, which applies the last of its changes."
    return f"the table is {record.phase}{reason}. Remedy: {record.remedy or 'Run lakefeed sync, which copies it.'}"


def _compared(config: Config, record: TableState, progress: Progress) -> Comparison:
    from lakefeed.app.build import build_lake
    from lakefeed.app.verify import compare_table, missing_table

    lake = build_lake(config.lake)
    table = lake.bind(config.pipeline).table(record.route)
    stored, applied = lake.rows(record.table), table.applied(record.generation)
    if stored is None or applied is None:
        return missing_table(record.table, table.location)
    subject = _subject(config, record, applied.schema_version)
    return compare_table(subject, stored, _source(config.source, record.source), progress)


def _subject(config: Config, record: TableState, schema_version: int) -> Subject:
    """With the columns that the lake table was given at the version of the source's schema that it has."""
    from lakefeed.app.verify import Subject
    from lakefeed.journal.journal import Journal
    from lakefeed.lake.schema.decision import Decisions, decisions_file
    from lakefeed.lake.schema.policy import Policy

    schema = Journal.read(config.state_path).schema(record.source, schema_version)
    place = decisions_file(config.lake.path, config.pipeline, record.table)
    mapping = Decisions(Policy(record.table, record.mode), place).at(schema, record.generation)
    return Subject(table=record.table, mode=record.mode, mapping=mapping, schema=schema)


def _source(config: SourceConfig, table: TableId) -> SourceTable:
    if config.kind == "sqlite":
        from lakefeed.app.verify_sqlite import SqliteTable

        return SqliteTable(Path(config.path), table)
    from lakefeed.app.verify_postgres import PostgresTable

    return PostgresTable(config.dsn, table)


def _quiet(side: str, rows: int) -> None:
    """For machines."""


def _lines(table: TableId) -> Progress:
    """A line every few seconds."""
    due = time.monotonic() + _LINE_SECONDS

    def show(side: str, rows: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_SECONDS
            show_note(f"{table}: {rows:,} rows of the {side} are read")

    return show


def _rows(found: Comparison) -> tuple[int | None, int | None]:
    return (found.source_rows, found.lake_rows) if found.compared else (None, None)


def _object(record: TableState, found: Comparison) -> dict[str, object]:
    source_rows, lake_rows = _rows(found)
    return {
        "mode": record.mode.describe(),
        "equal": found.equal,
        "compared": found.compared,
        "source_rows": source_rows,
        "lake_rows": lake_rows,
        "differences": list(found.differences),
        "chosen": list(found.chosen),
    }
