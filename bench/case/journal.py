"""What it costs that changes are durable in the journal before they are applied."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.backlog import ID, Backlog, backlog, content, table_in
from bench.bench import Bench, Contestant, in_turns, timed
from bench.pipeline import PIPELINE
from bench.report import Measure, Report, speed_ratio
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.batch import OP, SEQ
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.journal.journal import Journal
from lakefeed.lake.mode.collapse import collapse
from lakefeed.lake.mode.upsert import merge_step
from lakefeed.lake.spark.session import spark_session

_THROUGH, _DIRECT, _APPEND = "through the journal", "directly, no journal", "the append alone"
_VIEW = "lakefeed_changes"


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=5_000), bench.size(full=100_000, quick=1_000)
    made = backlog(bench, spark_session("lakefeed-bench"), rows, changes)
    try:
        captured, schema = _captured(made, changes)
        contestants: dict[str, Contestant] = {
            _THROUGH: partial(_through, made, captured, schema),
            _DIRECT: partial(_directly, made, captured, schema),
            _APPEND: partial(_append, made, captured, schema),
        }
        bench.say("warm-up")
        in_turns(bench, contestants, bench.size(full=1, quick=0))
        seconds = in_turns(bench, contestants, bench.size(full=3, quick=1))
        assert content(bench.scratch / "through").equals(content(bench.scratch / "direct")), "the two ways disagree"
    finally:
        made.session.close()
    return Report(
        what=f"{changes:,} changes, in memory as Arrow, into a Delta table of {rows:,} rows: appended to a journal, "
        "with every fsync, and applied from there; against applied directly, as a Spark DataFrame made from the Arrow "
        "data, with the same collapse and MERGE. On identical copies, in one warm JVM; compared row by row.",
        measures=tuple(
            Measure(name, "s", tuple(round(second, 3) for second in taken), ours=name != _DIRECT)
            for name, taken in seconds.items()
        ),
        ratios=(speed_ratio("through the journal / directly", seconds[_THROUGH], seconds[_DIRECT]),),
        notes=(
            (
                "Applied directly, nothing survives a crash between capture and commit, a replay cannot be recognised, "
                "and the source has to keep its log until the merge is done."
            ),
        ),
    )


def _captured(made: Backlog, changes: int) -> tuple[ChangeSet, TableSchema]:
    """The waiting changes as one change set in memory."""
    capture = Sqlite(made.database).bind(PIPELINE)
    capture.open()
    try:
        found = next(iter(capture.live(None, wait_seconds=0)))
        batches = tuple(found.batches)
    finally:
        capture.close()
    assert found.rows == changes
    return replace(found, start=None, batches=batches), batches[0].schema


def _journal(made: Backlog, captured: ChangeSet, schema: TableSchema) -> Journal:
    """A new journal that knows the table, as the copy of the table does."""
    shutil.rmtree(made.scratch / "journal", ignore_errors=True)
    journal = Journal.open(made.scratch / "journal")
    journal.record_schema(schema, captured.end)
    return journal


def _through(made: Backlog, captured: ChangeSet, schema: TableSchema) -> float:
    root = made.copy("through")
    with _journal(made, captured, schema) as journal:
        engine = made.engine(root, journal)

        def work() -> None:
            journal.append(captured)
            engine.sync_once()

        seconds = timed(work)
        assert engine.status().lag == 0, "not everything was applied"
    return seconds


def _append(made: Backlog, captured: ChangeSet, schema: TableSchema) -> float:
    with _journal(made, captured, schema) as journal:
        return timed(partial(journal.append, captured))


def _directly(made: Backlog, captured: ChangeSet, schema: TableSchema) -> float:
    return timed(partial(_merge, made, captured, schema, table_in(made.copy("direct"))))


def _merge(made: Backlog, captured: ChangeSet, schema: TableSchema, table: Path) -> None:
    session = made.spark.newSession()
    session.conf.set("spark.databricks.delta.merge.materializeSource", "none")  # as Lakefeed has it
    rows = pa.Table.from_batches([batch.data for batch in captured.batches])
    changes = session.createDataFrame(rows.select([*schema.names, OP, SEQ]))
    window = Window(ID, 0, 1, captured.end, (), schema)
    step = merge_step(collapse(changes, window), window, None)
    step.rows.createOrReplaceTempView(_VIEW)
    session.sql(step.statement(f"delta.`{table}`", _VIEW))
