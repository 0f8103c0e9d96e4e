"""Commands that only look: status and journal. No lease, no Spark; another process may be running the pipeline."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import seconds_text, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.capture.base import Lag
    from lakefeed.flow.full_diff import Compared
    from lakefeed.flow.status import PipelineStatus
    from lakefeed.journal.commit import Commit


def status(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Show how a pipeline stands: verdict, lag, and each table."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config

    config = load_config(file)
    found = build_pipeline(config).status()
    if as_json:
        show_object(status_object(found))
    else:
        show_text(f"{config.pipeline}: {found.verdict}. {_sentence(found.reason)}")
        _show_status(found)
    return 0


def status_object(found: PipelineStatus) -> dict[str, Any]:
    """What ``status --json`` prints."""
    lag, tables = found.lag, sorted(found.tables.items())
    return {
        "verdict": found.verdict,
        "reason": found.reason,
        "journal_head": found.journal_head,
        "lag": {"rows": lag.rows, "bytes": lag.bytes, "seconds": lag.seconds},
        "source": dict(lag.source),
        "tables": {
            str(table): {
                "state": state.state,
                "applied": state.applied,
                "rows": state.rows,
                "error": state.error,
                "remedy": state.remedy,
                "reason": state.reason,
                "compared": asdict(state.compared) if state.compared else None,
            }
            for table, state in tables
        },
    }


def _show_status(found: PipelineStatus) -> None:
    show_text(f"Journal: {found.journal_head:,} change sets. Waiting in the source: {_waiting(found.lag)}.")
    if found.lag.source:
        said = [f"{name} {value}" for name, value in found.lag.source.items() if value is not None]
        show_text(f"Source: {', '.join(said)}.")
    if not found.tables:
        return
    show_text("")
    tables = sorted(found.tables.items())
    show_table(
        ("table", "state", "applied", "rows"),
        [(name, table.state, table.applied, table.rows) for name, table in tables],
    )
    for name, table in tables:
        if table.error:
            show_text(f"\n{name}: {_sentence(table.error)}\nRemedy: {table.remedy}")
        elif table.reason:
            show_text(f"\n{name} is {table.state}: {_sentence(table.reason)}")
        elif table.compared:
            show_text(f"\n{name}: {_comparison(table.compared)}")


def _comparison(last: Compared) -> str:
    found = f"{last.deleted:,} deleted, {last.changed:,} different"
    return f"compared with the source {seconds_text(max(0.0, time.time() - last.at))} ago: {found}."


def _waiting(lag: Lag) -> str:
    """What the source keeps for the pipeline, by what it can tell: rows, else bytes of its log."""
    if lag.rows is None and lag.bytes is None:
        return "unknown"
    amount = f"{lag.rows:,} changes" if lag.rows is not None else f"{lag.bytes:,} bytes of its log"
    if not (lag.rows or lag.bytes):
        return "nothing"
    return f"{amount}, the oldest {seconds_text(lag.seconds)} old" if lag.seconds else amount


def journal(
    file: ConfigFile,
    last: Annotated[int, typer.Option("--last", min=1, help="How many change sets, counted from the newest.")] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List the change sets of a pipeline's journal, the newest last."""
    from collections import deque

    from lakefeed.app.config import load_config

    config = load_config(file)
    commits: deque[Commit] = deque(maxlen=last)
    if (config.state_path / "commits").exists():
        from lakefeed.journal.journal import Journal

        with Journal.read(config.state_path) as opened:
            commits.extend(opened.commits())
    if as_json:
        show_object({"pipeline": config.pipeline, "change_sets": [_commit_object(commit) for commit in commits]})
    elif not commits:
        show_text(f"The journal of {config.pipeline} is empty.")
    else:
        show_table(
            ("change set", "written", "position", "rows", "bytes", "tables"),
            [_commit_row(commit) for commit in commits],
        )
    return 0


def _commit_object(commit: Commit) -> dict[str, Any]:
    return {
        "number": commit.number,
        "start": commit.start.encode() if commit.start else None,
        "end": commit.end.encode(),
        "rows": commit.counts.total,
        "bytes": commit.bytes,
        "tables": sorted(str(table) for table in commit.tables),
        "written_at": _written(commit),
    }


def _commit_row(commit: Commit) -> tuple[object, ...]:
    tables = ", ".join(sorted(str(table) for table in commit.tables)) or None
    return commit.number, _written(commit), str(commit.end), commit.counts.total, commit.bytes, tables


def _written(commit: Commit) -> str:
    return str(commit.written_at)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
