"""verify: does every lake table equal its source table now? repair and resnapshot make them equal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import counted, show_note, show_object, show_table, show_text
from lakefeed.errors import StateError

if TYPE_CHECKING:
    from lakefeed.app.config import Config
    from lakefeed.change.table import TableId
    from lakefeed.verify.compare import Comparison, Progress
    from lakefeed.verify.pipeline import PipelineVerification, Verification

FOUND_SOMETHING = 1
_LINE_SECONDS = 5.0
_RESNAPSHOT_SECONDS = 30.0


def verify(
    file: ConfigFile,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Lake tables, schema.table; without any, all.")
    ] = None,
    live: Annotated[
        bool | None,
        typer.Option("--live/--quiet-source", help="On Spark beside a running pipeline; or while nobody writes."),
    ] = None,
    max_rate: Annotated[
        float | None, typer.Option("--max-rate", min=1, help="Read at most so many rows of the source in a second.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=2, help="Compare only about so many rows, the same on both sides.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="POSITION", help="Compare rows changed after a position, or since the `last` run."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Wait so many seconds for the journal to reach the rows read.")
    ] = 120.0,
    repair: Annotated[bool, typer.Option("--repair", help="Repair the rows that differ, then compare again.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Compare every lake table with its source table, row by row, and print the keys and columns that differ.

    While a process runs the pipeline, both sides may be in use: Spark reads the source in consistent parts, compares
    them with the lake at that position, and reads rows again that change meanwhile. Without a running process, the
    command compares everything with readers that the pipeline does not use: run lakefeed sync first, and let nothing
    write to the source. A table that it cannot compare, for example a blocked one, counts as a difference. It also
    names tables that match a pattern but that Lakefeed cannot capture, and columns that lake.evolution leaves out. Exit
    code 1: something differs.
    """
    from lakefeed.app.build import build_verification
    from lakefeed.app.config import load_config
    from lakefeed.verify.live import LiveOptions

    config = load_config(file)
    work = build_verification(
        config,
        f"lakefeed sync {file}",
        options=LiveOptions(max_rate=max_rate, wait_seconds=wait, sample=sample, since=since),
    )
    if repair or any(one is not None for one in (max_rate, sample, since)):
        live = True
    show = (lambda _table: lambda _side, _rows: None) if as_json else _lines
    found = work.run(show, live=live, tables=tables or ())
    if repair and not found.equal:
        found = _repaired(config, work, found, quiet=as_json)
    rows = {one.table: (one.source_rows, one.lake_rows) if one.compared else (None, None) for _, one in found.tables}
    if as_json:
        compared = {
            str(one.table): {
                "mode": mode.describe(),
                "equal": one.equal,
                "compared": one.compared,
                "source_rows": rows[one.table][0],
                "lake_rows": rows[one.table][1],
                "differences": list(one.differences),
                "chosen": list(one.chosen),
                "partial": one.partial,
                "position": one.position.encode() if one.position is not None else None,
            }
            for mode, one in found.tables
        }
        left_out = {str(table): why for table, why in found.not_followed.items()}
        show_object(
            {"equal": found.equal, "tables": compared, "problems": list(found.problems), "not_followed": left_out}
        )
        return 0 if found.equal else FOUND_SOMETHING
    show_table(
        ("table", "source rows", "lake rows", "equal"),
        [(one.table, *rows[one.table], _verdict(one)) for _, one in found.tables],
    )
    for _, one in found.tables:
        for difference in one.differences:
            show_text(f"{one.table}: {difference}")
        for choice in one.chosen:
            show_text(f"{one.table}: {choice}; not compared")
        if one.compared and not one.equal and not repair:
            show_text(f"Remedy: lakefeed repair {file} {one.table} reads the differing rows again from the source.")
    for problem in found.problems:
        show_text(f"Error: {problem}")
    for table, why in found.not_followed.items():
        show_text(f"{table} is not captured: {why}")
    different = sum(not one.equal for _, one in found.tables)
    partial = [(one.table, one.partial) for _, one in found.tables if one.partial is not None]
    for table, which in partial:
        show_text(f"{table}: {which}; nobody compared the others")
    if found.equal and partial:
        show_text("Found no difference. Not proven: the command compared only some rows.")
    elif found.equal:
        show_text(f"Equal: {counted(len(found.tables), 'table')}.")
    elif different:
        show_text(f"Not equal: {different:,} of {counted(len(found.tables), 'table')}.")
    else:
        show_text("Not proven: every compared table is equal, but see the error above.")
    return 0 if found.equal else FOUND_SOMETHING


def _verdict(one: Comparison) -> str:
    if one.equal and one.partial is not None:
        return "no difference found"
    return "yes" if one.equal else "NO"


def _lines(table: TableId) -> Progress:
    """A progress that shows a line every few seconds."""
    show_note(f"{table}: comparing")
    due = time.monotonic() + _LINE_SECONDS

    def show(side: str, rows: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_SECONDS
            show_note(f"{table}: {rows:,} rows of the {side} read")

    return show


def repair(
    file: ConfigFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The lake table: schema.table.")],
    as_json: JsonFlag = False,
) -> int:
    """Repair a lake table: read the rows that differ from the source again, and write them as an ordinary change.

    The process that runs the pipeline does it, beside its stream; without one, this command runs the pipeline
    meanwhile. The rows go through the journal, so history modes keep their history and every reader sees an ordinary
    change. At the end the command compares these rows again. Exit code 1: something still differs.
    """
    from lakefeed.app.build import build_verification
    from lakefeed.app.config import load_config
    from lakefeed.change.table import TableId
    from lakefeed.errors import ConfigError
    from lakefeed.flow.table_state import TableStates
    from lakefeed.verify.repair import repair_table

    config = load_config(file)
    work = build_verification(config, f"lakefeed sync {file}")
    record = TableStates(work.state).all().get(TableId.parse(table))
    if record is None:
        there = ", ".join(map(str, sorted(TableStates(work.state).all()))) or "none yet"
        raise ConfigError(f"the pipeline has no lake table {table}", remedy=f"It has {there}.")
    with _pipeline_running(config, work.is_run):
        done = repair_table(
            work.live_table(record),
            (lambda _side, _rows: None) if as_json else _lines(record.table),
            (lambda _line: None) if as_json else show_note,
        )
    answer, found = done.answer, done.found
    if as_json:
        show_object(
            {
                "table": str(record.table),
                "equal": done.is_equal,
                "differing": found.differing,
                "rows": answer.rows if answer else 0,
                "deleted": answer.deleted if answer else 0,
                "change_sets": list(answer.change_sets) if answer else [],
                "left": done.left,
                "differences": list(found.differences),
                "seconds": round(done.seconds, 3),
            }
        )
        return 0 if done.is_equal else FOUND_SOMETHING
    for difference in found.differences:
        show_text(f"{record.table}: {difference}")
    if answer is not None:
        numbers = ", ".join(map(str, answer.change_sets))
        show_text(f"Wrote {answer.rows:,} rows again, deleted {answer.deleted:,}; change set {numbers or '–'}.")
    if found.equal:
        show_text(f"Equal: nothing to repair in {record.table}.")
    elif done.is_equal:
        show_text(f"Equal: the repaired rows of {record.table} equal the source's.")
    else:
        left = "some rows" if done.left is None else counted(done.left, "row")
        show_text(f"Not equal: {left} of {record.table} still differ; see above. lakefeed verify {file} {record.table}")
    return 0 if done.is_equal else FOUND_SOMETHING


def resnapshot(
    file: ConfigFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The source table: schema.table.")],
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows that match; `t` is the table.")
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the running one.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the paused one.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running one for good.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show the newest one; change nothing.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Read a source table, or a part of it, again beside the live stream, through the journal.

    The process that runs the pipeline does it, chunk by chunk; without one, this command runs the pipeline meanwhile.
    Pause, resume and stop survive restarts. Rows that only the lake has stay: lakefeed verify --repair deletes them.
    Ctrl-C ends the command, but not a resnapshot that another process runs. Exit code 1: it failed.
    """
    from lakefeed.app.build import build_verification
    from lakefeed.app.config import load_config
    from lakefeed.change.table import TableId
    from lakefeed.errors import ConfigError
    from lakefeed.flow.reread.resnapshot import PAUSE, RESUME, START, STOP, ask, load
    from lakefeed.storage.location import storage_at

    wishes = [what for what, is_wanted in ((PAUSE, pause), (RESUME, resume), (STOP, stop)) if is_wanted]
    if len(wishes) + show > 1 or (where is not None and (wishes or show)):
        raise ConfigError("--pause, --resume, --stop, --show and --where exclude each other", remedy="Give one.")
    config, source = load_config(file), TableId.parse(table)
    work = build_verification(config, f"lakefeed sync {file}")
    state = storage_at(work.state)
    if not show:
        number = ask(state, source, wishes[0] if wishes else START, where)
        with _pipeline_running(config, work.is_run or bool(wishes)):
            until = time.monotonic() + _RESNAPSHOT_SECONDS
            while True:
                found = load(state, source)
                is_followed = found is not None and found.number >= number
                if found is not None and is_followed and (wishes or found.is_over or found.state == "paused"):
                    break
                if not is_followed and time.monotonic() > until:
                    show_note("No process has begun it yet; the next one that runs the pipeline does.")
                    break
                if found is not None and is_followed and not as_json:
                    show_note(f"{source}: chunk {found.next} of {len(found.chunks)}, {found.rows:,} rows")
                time.sleep(1.0)
    found = load(state, source)
    if found is None:
        show_text(f"Nobody has started a resnapshot of {source} yet.")
        return 0
    if as_json:
        keys = ("state", "generation", "where", "rows", "moved", "error", "remedy")
        body = {key: getattr(found, key) for key in keys}
        show_object({"source": found.source, "chunk": found.next, "chunks": len(found.chunks), **body})
    else:
        show_text(
            f"{source}: {found.state}, generation {found.generation}, chunk {found.next} of {len(found.chunks)}, "
            f"{found.rows:,} rows written, {found.moved:,} left to newer changes in the log."
        )
        if found.error is not None:
            show_note(f"Error: {found.error}\nRemedy: {found.remedy}")
    return FOUND_SOMETHING if found.state == "failed" else 0


def _repaired(config: Config, work: PipelineVerification, found: Verification, *, quiet: bool) -> Verification:
    """Repair every table that differs, then compare these tables again."""
    from lakefeed.flow.table_state import TableStates
    from lakefeed.verify.repair import repair_table

    states = TableStates(work.state).all()
    damaged = [one for _, one in found.tables if one.keys]
    with _pipeline_running(config, work.is_run):
        for one in damaged:
            table = work.live_table(states[one.table])
            repair_table(table, lambda _side, _rows: None, (lambda _line: None) if quiet else show_note, one)
        show = (lambda _table: lambda _side, _rows: None) if quiet else _lines
        again = work.run(show, live=True, tables=[str(one.table) for one in damaged]) if damaged else found
    newer = {one.table: (mode, one) for mode, one in again.tables}
    return replace(found, tables=tuple(newer.get(one.table, (mode, one)) for mode, one in found.tables))


@contextmanager
def _pipeline_running(config: Config, is_run: bool) -> Iterator[None]:
    """While the block lasts, another process (``is_run``) or a thread of this one runs the pipeline. If the block
    raises a StateError, raises the thread's error instead."""
    from lakefeed.app.build import build_pipeline

    if is_run:
        yield
        return
    errors: list[BaseException] = []
    with build_pipeline(config) as pipeline:

        def run() -> None:
            try:
                pipeline.run()
            except BaseException as error:  # noqa: BLE001  # raised below
                errors.append(error)

        thread = threading.Thread(target=run, name="lakefeed-run", daemon=True)
        thread.start()
        try:
            yield
        except StateError:
            if errors:
                raise errors[0] from None
            raise
        finally:
            pipeline.stop()
            thread.join(15)
