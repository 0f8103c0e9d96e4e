"""A thread that hangs is told from one that is busy, and a pipeline with one gives its lease up and does no harm."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.errors import HangError, LeaseError, StateError
from lakefeed.failpoint import armed
from lakefeed.flow import watchdog
from lakefeed.flow.watchdog import Watchdog
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.memory_lake import MemoryLake

HANG_SECONDS = 0.8


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_QUIET_SECONDS", 0.2)


class Worker:
    """A thread that does something until the test is over."""

    def __init__(self, work: Callable[[Worker], None]) -> None:
        self.over = threading.Event()
        self.turns = 0
        self.thread = threading.Thread(target=work, args=(self,))
        self.thread.start()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    found: list[Worker] = []
    yield found
    for worker in found:
        worker.over.set()
        worker.thread.join()


def waits(worker: Worker) -> None:
    worker.over.wait()


def polls(worker: Worker) -> None:
    while not worker.over.wait(0.02):
        pass


def computes(worker: Worker) -> None:
    while not worker.over.is_set():
        sum(range(10_000))


def turns(worker: Worker) -> None:
    while not worker.over.wait(0.1):
        worker.turns += 1


def silence(watched: Watchdog, looks: int = 30) -> str | None:
    for _ in range(looks):
        try:
            watched.look()
        except HangError as error:
            return error.message
        time.sleep(HANG_SECONDS / 20)
    return None


def nothing_runs() -> object:
    return None


@pytest.mark.parametrize(
    ("work", "hangs"),
    [(waits, True), (polls, True), (computes, False), (turns, False)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_thread_lives_that_turns_or_works(workers: list[Worker], work: Callable[[Worker], None], hangs: bool) -> None:
    worker = Worker(work)
    workers.append(worker)
    watched = Watchdog(HANG_SECONDS, nothing_runs)
    watched.watch("the stream", worker.thread, lambda: worker.turns)
    said = silence(watched)
    assert (said is not None) == hangs
    assert watched.is_renewing() != hangs, "the lease goes with it"
    if said is not None:
        assert said.startswith("the stream has shown no sign of life for 1 s")


def test_a_thread_that_waits_for_spark_lives_while_its_tasks_get_on(workers: list[Worker]) -> None:
    worker, rows = Worker(waits), count()
    workers.append(worker)

    def merging(progress: Callable[[], object]) -> Watchdog:
        watched = Watchdog(HANG_SECONDS, progress)
        watched.watch("the merging of changes", worker.thread, lambda: 0, uses_spark=True)
        return watched

    def fails() -> object:
        raise StateError("no session")

    def hangs() -> object:
        return worker.over.wait()

    assert silence(merging(lambda: next(rows))) is None
    assert silence(merging(lambda: (7, 3))) is not None, "a task that reads no row"
    assert silence(merging(fails)) is not None
    assert silence(merging(hangs)) is not None, "a JVM that does not answer"
    both = merging(lambda: next(rows))
    both.watch("the stream", worker.thread, lambda: 0)
    assert (silence(both) or "").startswith("the stream has"), "which does not wait for Spark"


def test_what_works_for_a_thread_counts_as_its_own(workers: list[Worker]) -> None:
    worker, helper = Worker(waits), Worker(computes)
    workers += [worker, helper]
    watched = Watchdog(HANG_SECONDS, nothing_runs)
    watched.watch("the merging of changes", worker.thread, lambda: 0, helpers=lambda: (helper.thread.native_id or 0,))
    assert silence(watched) is None


def test_time_does_not_count_while_the_watchdog_sleeps_too(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.1)
    worker = Worker(waits)
    workers.append(worker)
    watched = Watchdog(HANG_SECONDS, nothing_runs)
    watched.watch("the stream", worker.thread, lambda: 0)
    watched.look()
    time.sleep(HANG_SECONDS * 1.5)
    watched.look()
    assert watched.is_renewing()


def test_a_lease_is_not_renewed_when_nobody_looks_any_more() -> None:
    watched = Watchdog(0.2, nothing_runs)
    answers = []
    for _ in range(8):
        answers.append(watched.is_renewing())
        time.sleep(0.1)
    assert answers[0]
    assert not answers[-1]


def shop(path: Path) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO a VALUES (1)")
    return path


@pytest.mark.parametrize(
    "where", [pytest.param("capture.before_confirm", marks=pytest.mark.slow), "lake.before_commit"]
)
def test_a_pipeline_with_a_thread_that_hangs_ends_and_does_no_harm_when_that_comes_back(
    tmp_path: Path, where: str
) -> None:
    """The stream's thread and the lake's."""
    path, lake = shop(tmp_path / "shop.db"), MemoryLake(str(tmp_path / "lake"))
    options = PipelineOptions(
        interval_seconds=0.05, maintenance_seconds=0, hang_seconds=HANG_SECONDS, journal=JournalOptions(fsync=False)
    )
    hung = Pipeline(Sqlite(str(path)), lake, options=options)
    hung.sync_once()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("INSERT INTO a VALUES (2)")
        with armed(where, "sleep:8@1"):
            began = time.monotonic()
            with pytest.raises(HangError, match="no sign of life"):
                hung.run(for_seconds=20)
        assert time.monotonic() - began < 8, "while it hangs"
        assert hung.hanging, "its thread is left behind"
        assert hung.status().verdict == "stalled"
        with Pipeline(Sqlite(str(path)), lake, options=options) as other:
            other.sync_once()
            for number in (3, 4):
                writer.execute("INSERT INTO a VALUES (?)", (number,))
                other.sync_once()
            for thread in hung._left:  # what comes back finds the lease gone, and its table further on
                thread.join(20)
                assert not thread.is_alive()
            writer.execute("INSERT INTO a VALUES (5)")
            other.sync_once()
    assert sorted(row["id"] for row in lake.rows("main.a")) == [1, 2, 3, 4, 5]
    journal = Journal.read(hung.state)
    journal.verify()
    assert [one.number for one in journal.commits()] == list(range(journal.trimmed + 1, journal.head + 1))


@pytest.mark.slow
def test_an_append_that_hangs_has_the_lock_of_a_directory_until_it_ends(tmp_path: Path) -> None:
    """Nobody can tell when its file will be there; the end of the process ends it, too. ``run`` returns meanwhile."""
    path, lake = shop(tmp_path / "shop.db"), MemoryLake(str(tmp_path / "lake"))
    options = PipelineOptions(maintenance_seconds=0, hang_seconds=HANG_SECONDS, journal=JournalOptions(fsync=False))
    hung, other = (Pipeline(Sqlite(str(path)), lake, options=options) for _ in range(2))
    hung.sync_once()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("INSERT INTO a VALUES (2)")
    with armed("journal.before_commit", "sleep:9@1"), pytest.raises(HangError):
        hung.run(for_seconds=20)
    with pytest.raises(LeaseError):
        other.sync_once()
    for thread in hung._left:
        thread.join(20)
    time.sleep(0.5)
    other.sync_once()
    other.close()
    assert sorted(row["id"] for row in lake.rows("main.a")) == [1, 2]
