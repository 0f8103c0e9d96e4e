"""Commands that only read: status, dashboard and journal. They need no lease and no Spark, and another process may run
the pipeline."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import bytes_text, counted, seconds_text, show_note, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.flow.status import PipelineStatus, TableStatus
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
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end of --watch
            if watch:
                time.sleep(_WATCH_SECONDS)
                continue
        return FOUND_SOMETHING if exit_code and found.verdict not in ("healthy", "idle") else 0


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
    health = [f"{name} {value}" for name, value in lag.source.items() if value is not None]
    if lag.retained_bytes is not None:
        health.append(f"{bytes_text(lag.retained_bytes)} of its log retained")
    if lag.left_bytes is not None:
        health.append(f"{bytes_text(lag.left_bytes)} more until it is lost")
    if lag.left_seconds is not None:
        health.append(f"{seconds_text(lag.left_seconds)} until it is lost")
    if health:
        show_text(f"Source: {', '.join(health)}.")
    if found.source_error and found.source_error != found.reason:
        show_text(f"The source does not answer: {found.source_error.rstrip('.')}.")
    if silent := [one for one in found.unanswered if one != "source"]:
        show_text(f"No answer in time from: {', '.join(silent)}. A dash stands for what is unknown.")
    if tables:
        show_text("")
        followed = [
            (name, _state(one), one.applied, one.rows, _waiting(one),
             f"{one.rows_per_second:,.1f}/s" if one.rows_per_second else None,
             f"{seconds_text(one.age_seconds)} ago" if one.age_seconds is not None else None)
            for name, one in tables
        ]  # fmt: skip
        blocked = [(f"{one.table} of {one.source}", "blocked", *(None,) * 5) for one in found.blocked]
        show_table(("table", "state", "applied", "rows", "waiting", "rate", "newest change"), [*followed, *blocked])
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
        if table.rules:
            listed = ", ".join(f"{what} {count:,}" for what, count in sorted(table.rules.items()))
            show_text(f"\n{table_name}: values that its rule has changed since the copy began: {listed}.")
        for text in table.layout:
            show_text(f"\n{table_name}: {_sentence(text)}")
    _show_verified(found)


def _show_verified(found: PipelineStatus) -> None:
    """One line for the tables that were equal, and one for each that was not."""
    verified = {table: one.verified for table, one in sorted(found.tables.items()) if one.verified is not None}
    if not verified:
        return
    ago = seconds_text(max(0.0, time.time() - min(one.at for one in verified.values())))
    equal = sum(one.equal for one in verified.values())
    are = "was" if equal == 1 else "were"
    show_text(f"\nVerified {ago} ago: {equal} of {counted(len(found.tables), 'table')} {are} equal to the source.")
    for table, one in verified.items():
        if not one.equal:
            show_text(f"{table} was different: {one.difference}")
            if one.through is not None:
                since = seconds_text(max(0.0, time.time() - one.through.at))
                show_text(f"{table} was equal last {since} ago, at {one.through.position or 'an unknown position'}.")


def _state(table: TableStatus) -> str:
    """``copying 42 %, 3 min 20 s left``."""
    if table.copy is None or table.copy.share is None:
        return table.state
    left = "" if table.copy.seconds_left is None else f", {seconds_text(table.copy.seconds_left)} left"
    return f"{table.state} {table.copy.share:.0%}{left}".replace("%", " %")


def _waiting(table: TableStatus) -> str | None:
    """What the journal has and the lake table lacks: ``1,200 rows, 3.1 s``."""
    if table.lag_rows is None:
        return None
    if not table.lag_rows:
        return "nothing"
    age = "" if table.lag_seconds is None else f", {seconds_text(table.lag_seconds)}"
    return f"{counted(table.lag_rows, 'row')}{age}"


def dashboard(
    file: ConfigFile,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Where to serve it; 127.0.0.1:8765 by default.")
    ] = None,
) -> int:
    """Serve the dashboard of a pipeline that another process runs, until Ctrl-C. Needs no Spark and no lock.

    It has /metrics, /status.json, /healthz and /readyz, too. On another address than 127.0.0.1 it needs a token:
    LAKEFEED_HTTP_TOKEN, or monitor.token_file.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.dashboard import DEFAULT_ADDRESS, served

    config = load_config(file)
    with served(config, build_pipeline(config), http or config.monitor.http or DEFAULT_ADDRESS) as url:
        show_note(f"Dashboard: {url} (Ctrl-C stops it)")
        stopping = threading.Event()
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # set a handler: a shell's background process ignores SIGINT by default
            signal.signal(number, lambda *_: stopping.set())
        stopping.wait()
    return 0


def journal(
    file: ConfigFile,
    last: Annotated[int, typer.Option("--last", min=1, help="How many change sets, counted from the newest.")] = 20,
    as_json: JsonFlag = False,
) -> int:
    """List the change sets of a pipeline's journal, the newest last."""
    from lakefeed.app.config import load_config

    config = load_config(file)
    commits: list[Commit] = []
    state = config.state()
    if state.has_folder("commits"):
        from lakefeed.journal.journal import Journal

        with Journal.read(state) as opened:
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


def _sentence(text: str) -> str:
    """The text with a full stop, and a capital unless it begins with a name: ``localhost:5432/shop: …``."""
    first = text.partition(" ")[0]
    is_name = any(sign in first.rstrip(":") for sign in ":/._")
    return (text if is_name else f"{text[:1].upper()}{text[1:]}").rstrip(".") + "."
