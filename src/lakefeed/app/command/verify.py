"""verify: does every lake table equal its source table now?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import counted, show_note, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.change.table import TableId
    from lakefeed.verify.compare import Progress

FOUND_SOMETHING = 1
_LINE_SECONDS = 5.0


def verify(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Compare every lake table with its source table, row by row, by readers that the pipeline does not use.

    Run lakefeed sync first, and let nothing write to the source meanwhile. Memory stays bounded; large tables need room
    in the temporary directory (TMPDIR). A table that cannot be compared, because it is blocked or its copy is not
    finished for example, counts as a difference. Tables that match a pattern and that the source cannot offer are named
    with the reason, and so are columns that lake.evolution leaves out. Exit code 1: something differs.
    """
    from lakefeed.app.build import build_verification
    from lakefeed.app.config import load_config

    found = build_verification(load_config(file), f"lakefeed sync {file}").run(
        (lambda _table: lambda _side, _rows: None) if as_json else _lines
    )
    rows = {one.table: (one.source_rows, one.lake_rows) if one.compared else (None, None) for _, one in found.tables}
    if as_json:
        tables = {
            str(one.table): {
                "mode": mode.describe(),
                "equal": one.equal,
                "compared": one.compared,
                "source_rows": rows[one.table][0],
                "lake_rows": rows[one.table][1],
                "differences": list(one.differences),
                "chosen": list(one.chosen),
            }
            for mode, one in found.tables
        }
        left_out = {str(table): why for table, why in found.not_followed.items()}
        show_object(
            {"equal": found.equal, "tables": tables, "problems": list(found.problems), "not_followed": left_out}
        )
        return 0 if found.equal else FOUND_SOMETHING
    show_table(
        ("table", "source rows", "lake rows", "equal"),
        [(one.table, *rows[one.table], "yes" if one.equal else "NO") for _, one in found.tables],
    )
    for _, one in found.tables:
        for difference in one.differences:
            show_text(f"{one.table}: {difference}")
        for choice in one.chosen:
            show_text(f"{one.table}: {choice}; not compared")
    for problem in found.problems:
        show_text(f"Error: {problem}")
    for table, why in found.not_followed.items():
        show_text(f"{table} is not followed: {why}")
    different = sum(not one.equal for _, one in found.tables)
    if found.equal:
        show_text(f"Equal: {counted(len(found.tables), 'table')}.")
    elif different:
        show_text(f"Not equal: {different:,} of {counted(len(found.tables), 'table')}.")
    else:
        show_text("Not proven: every table that was compared is equal, but see the error above.")
    return 0 if found.equal else FOUND_SOMETHING


def _lines(table: TableId) -> Progress:
    """A line every few seconds."""
    show_note(f"{table}: comparing")
    due = time.monotonic() + _LINE_SECONDS

    def show(side: str, rows: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_SECONDS
            show_note(f"{table}: {rows:,} rows of the {side} are read")

    return show
