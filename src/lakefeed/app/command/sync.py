"""Commands that move data: sync (one cycle) and run (until a signal stops it)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakefeed.app.command.argument import ConfigFile, ConfigFiles, JsonFlag
from lakefeed.app.output import (
    counted,
    is_quiet,
    seconds_text,
    set_file,
    show_note,
    show_object,
    show_table,
    show_text,
)
from lakefeed.flow.report.listener import Listener

if TYPE_CHECKING:
    from pathlib import Path

    from lakefeed.app.config import Config
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.result import CycleResult

FAILURE = 3
WORK = {"lakefeed-capture": "the source", "lakefeed-copies": "a copy", "lakefeed-lake": "a merge"}
"""What each thread of ``run`` works on, by its name."""


def sync(
    file: ConfigFile,
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Copy and apply only these lake tables; may be repeated."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Bring the lake up to date once, then exit: copy new tables, capture changes, apply them.

    Ctrl-C ends it at once; nothing is lost, and the next sync continues. With --tables the command captures the changes
    of other tables, too; they wait in the journal for the next sync.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.observe import observed
    from lakefeed.app.progress import progress, table_error_text
    from lakefeed.app.supervise import interruptible

    config = load_config(file)
    with progress(quiet=as_json, cycles=False) as listener, observed(config, listener) as listeners:
        pipeline = build_pipeline(config, listener=listeners, announce=listener.announce)
        try:
            result = interruptible(lambda: pipeline.sync_once(tables=tables or ()))
        except Exception:
            pipeline.close()  # not after Ctrl-C: that would wait for the sync to end
            raise
        pipeline.close()
    if as_json:
        show_object(cycle_object(result, pipeline))
        return FAILURE if result.errors else 0
    found, counts = sorted(pipeline.status().tables.items()), result.counts
    if found:
        show_table(("table", "applied", "rows"), [(name, table.applied, table.rows) for name, table in found])
        show_text("")
    what = f"{counts.inserted:,} inserted, {counts.updated:,} updated, {counts.deleted:,} deleted"
    nothing = "Nothing applied" if result.errors else "Nothing new"
    show_text(f"{what if counts.total else nothing}, in {seconds_text(result.seconds)}.")
    for table, failed in result.errors.items():
        if table not in listener.reported:
            show_note(table_error_text(table, failed.error or "", failed.remedy or ""))
    if result.errors:
        show_note(f"{counted(len(result.errors), 'table')} not up to date: {', '.join(map(str, result.errors))}.")
    return FAILURE if result.errors else 0


def run_many(files: list[Path], for_seconds: float | None, *, standby: bool, http: str | None, as_json: bool) -> int:
    """``run`` for several pipelines: see ``app.many``."""
    from lakefeed.app.many import Pipelines
    from lakefeed.app.progress import CycleObjects, NamedLines
    from lakefeed.app.supervise import Supervised
    from lakefeed.errors import ConfigError

    if http is not None:
        raise ConfigError(
            "--http is for one pipeline", remedy="Give each file an address of its own: monitor: {http: HOST:PORT}."
        )
    is_silent = as_json or is_quiet()

    def listener(config: Config) -> Listener:
        if as_json:
            return CycleObjects(lambda result: show_object({"pipeline": config.pipeline, **result.to_dict()}))
        return Listener() if is_silent else NamedLines(config.pipeline)

    pipelines = Pipelines(files, (lambda _: None) if is_silent else show_note, listener, standby=standby)
    Supervised(pipelines).run(for_seconds)
    for path, error in pipelines.failed.items():
        if as_json:
            show_object({"file": str(path), "error": str(error)})
        else:
            show_note(f"{path.name} failed: {error}")
    code = FAILURE if pipelines.failed else 0
    if pipelines.hanging:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # an orderly exit would wait for their threads
    if not is_silent:
        show_text("Stopped cleanly." if not code else "Stopped.")
    return code


def cycle_object(result: CycleResult, pipeline: Pipeline) -> dict[str, Any]:
    """What ``sync --json`` prints. ``tables`` has every table; a stopped one also has its error and remedy."""
    tables: dict[str, dict[str, Any]] = {
        str(table): {"applied": status.applied, "rows": status.rows}
        for table, status in sorted(pipeline.status().tables.items())
    }
    for table, failed in result.errors.items():
        tables.setdefault(str(table), {"applied": None, "rows": None})
        tables[str(table)] |= {"error": failed.error, "remedy": failed.remedy}
    return result.to_dict() | {"tables": tables}


@dataclass(frozen=True)
class _Standby:
    """A pipeline whose ``run`` waits for the lease."""

    pipeline: Pipeline

    def run(self, for_seconds: float | None = None) -> None:
        self.pipeline.run(for_seconds, standby=True)

    def stop(self) -> None:
        self.pipeline.stop()


def run(
    files: ConfigFiles,
    for_seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="Stop after this many seconds.")
    ] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait while another process runs the pipeline, and take over when it ends."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve dashboard and metrics, for example on 127.0.0.1:8765."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Sync continuously until SIGINT (Ctrl-C) or SIGTERM, which stop it cleanly.

    With --json it prints one object for each cycle with changes. Several files, or a directory, are several
    pipelines in one process and one Spark session; if one fails, the others go on.
    """
    if len(files) > 1 or files[0].is_dir():
        return run_many(files, for_seconds, standby=standby, http=http, as_json=as_json)
    file = files[0]
    set_file(file)
    from lakefeed.app.build import build_pipeline, verified_meanwhile
    from lakefeed.app.config import load_config
    from lakefeed.app.dashboard import served
    from lakefeed.app.observe import observed
    from lakefeed.app.progress import CycleObjects, progress
    from lakefeed.app.supervise import Supervised

    config = load_config(file)
    with progress(quiet=as_json) as listener:
        is_silent = as_json or is_quiet()
        if not is_silent:
            show_note(f"Running {config.pipeline}; Ctrl-C stops it.")
        objects = CycleObjects(lambda result: show_object(cycle_object(result, pipeline)))
        has_begun = False
        try:
            with (
                observed(config, objects if as_json else listener) as listeners,
                build_pipeline(config, listener=listeners, announce=listener.announce) as pipeline,
                served(config, pipeline, http or config.monitor.http) as url,
                verified_meanwhile(config, f"lakefeed sync {file}"),
            ):
                if url and not is_silent:
                    show_note(f"Dashboard: {url}")
                stopping = (lambda: None) if is_silent else (lambda: show_note("Stopping after the step under way …"))
                supervised = Supervised(_Standby(pipeline) if standby else pipeline, on_stop=stopping)
                has_begun = True
                supervised.run(for_seconds)
        except KeyboardInterrupt:
            if has_begun:  # a second Ctrl-C ends everything at once
                raise
            if not is_silent:
                show_text("Stopped before it began.")
            return 0
    if pipeline.hanging:
        if not as_json:
            left = ", ".join(WORK.get(name, name) for name in pipeline.hanging)
            show_note(f"Stopped without waiting for {left}; the next start does it again.")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # an orderly exit would wait for their threads
    if not is_silent:
        show_text("Stopped cleanly.")
    return 0
