"""Commands that only read: status and journal. No lease, no Spark; another process may be running the pipeline."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import counted, seconds_text, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.flow.status import PipelineStatus
    from lakefeed.journal.commit import Commit


FOUND_SOMETHING = 1
_WATCH_SECONDS = 2.0


def status(
    file: ConfigFile,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless healthy or idle: for monitoring.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Show how a pipeline stands: verdict, lag, and each table.

    The verdict is healthy, idle (running, nothing to do), stalled (something needs you) or stopped (no process runs
    it). The age of a table says how long ago its newest change was committed in the source.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config

    config = load_config(file)
    pipeline = build_pipeline(config)
    while True:
        found = pipeline.status()
        if watch and not as_json and sys.stdout.isatty():
            show_text("\x1b[2J\x1b[H")  # clear the screen
        if as_json:
            show_object(found.to_dict())
        else:
            _show(config.pipeline, found)
        if not watch:
            return FOUND_SOMETHING if exit_code and found.verdict not in ("healthy", "idle") else 0
        time.sleep(_WATCH_SECONDS)


def _show(name: str, found: PipelineStatus) -> None:
    lag, tables = found.lag, sorted(found.tables.items())
    waiting = "unknown"
    if lag.rows is not None:
        waiting = counted(lag.rows, "change") if lag.rows else "nothing"
    elif lag.bytes is not None:
        waiting = f"{lag.bytes:,} bytes of its log" if lag.bytes else "nothing"
    if (lag.rows or lag.bytes) and lag.seconds:
        waiting += f", the oldest {seconds_text(lag.seconds)} old"
    show_text(f"{name}: {found.verdict}. {_sentence(found.reason)}")
    if found.remedy:
        show_text(f"Remedy: {found.remedy}")
    show_text(f"Journal: {counted(found.journal_head, 'change set')}. Waiting in the source: {waiting}.")
    if lag.source:
        show_text(f"Source: {', '.join(f'{name} {value}' for name, value in lag.source.items() if value is not None)}.")
    if tables:
        show_text("")
        followed = [(name, one.state, one.applied, one.rows, _ago(one.age_seconds)) for name, one in tables]
        blocked = [(f"{one.table} of {one.source}", "blocked", None, None, None) for one in found.blocked]
        show_table(("table", "state", "applied", "rows", "newest change"), [*followed, *blocked])
    for clash in found.blocked:
        show_text(f"\n{clash.table} of {clash.source}: {_sentence(clash.error)}\nRemedy: {clash.remedy}")
    for table_name, table in tables:
        if table.error:
            show_text(f"\n{table_name}: {_sentence(table.error)}\nRemedy: {table.remedy}")
        elif table.reason:
            show_text(f"\n{table_name} is {table.state}: {_sentence(table.reason)}")
        elif table.compared:
            ago = seconds_text(max(0.0, time.time() - table.compared.at))
            result = f"{table.compared.deleted:,} deleted, {table.compared.changed:,} different"
            show_text(f"\n{table_name}: compared with the source {ago} ago: {result}.")


def journal(
    file: ConfigFile,
    last: Annotated[int, typer.Option("--last", min=1, help="How many change sets, counted from the newest.")] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List the change sets of a pipeline's journal, the newest last."""
    from lakefeed.app.config import load_config

    config = load_config(file)
    commits: list[Commit] = []
    if (config.state_path / "commits").exists():
        from lakefeed.journal.journal import Journal

        with Journal.read(config.state_path) as opened:
            commits = list(opened.commits(max(0, opened.head - last)))
    if as_json:
        listed = [
            {
                "number": commit.number,
                "start": commit.start.encode() if commit.start else None,
                "end": commit.end.encode(),
                "rows": commit.counts.total,
                "bytes": commit.bytes,
                "tables": sorted(str(table) for table in commit.tables),
                "written_at": str(commit.written_at),
            }
            for commit in commits
        ]
        show_object({"pipeline": config.pipeline, "change_sets": listed})
    elif not commits:
        show_text(f"The journal of {config.pipeline} is empty.")
    else:
        rows = [
            (one.number, str(one.written_at), str(one.end), one.counts.total, one.bytes,
             ", ".join(sorted(map(str, one.tables))) or None)
            for one in commits
        ]  # fmt: skip
        show_table(("change set", "written", "position", "rows", "bytes", "tables"), rows)
    return 0


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds_text(seconds)} ago"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
