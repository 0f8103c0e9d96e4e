"""Every moment of the bank is whole: the sum of all money is what it was, and every transfer's accounts are there."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.bank.bank import OPTIONS, MixedLake, create, problems, process

from lakefeed import Pipeline, Sqlite, pin, snapshot
from lakefeed.journal.journal import Journal
from lakefeed.reading.moment import Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
READS = int(os.environ.get("READS", "10000"))
SEED = int(os.environ.get("SEED", "0"))


def moment(journal: Journal, chance: random.Random, oldest: int) -> Moment:
    """A random one since ``oldest``: a number, a position, a time of the source's clock, or now."""
    number = chance.randint(max(oldest, journal.trimmed + 1), journal.head)
    kind = chance.randrange(4)
    if kind == 0:
        return journal.position(number)
    if kind == 1:
        return journal.commit(number).written_at.astimezone(UTC)
    return number if kind == 2 else None


def settled(lake: Path) -> int:
    """The first change set from which every table is past its copy."""
    from lakefeed.flow.table_state import Phase, TableStates

    root = lake / "_lakefeed" / "bank"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        states = TableStates(root).all().values() if (root / "tables").exists() else ()
        if len(states) == 3 and all(state.phase is Phase.LIVE for state in states):
            journal = Journal.read(root)
            highs = [state.high for state in states if state.high is not None]
            past = [one.number for one in journal.commits() if all(one.end >= high for high in highs)]
            if past:
                return past[0]
        time.sleep(0.2)
    raise AssertionError("the bank was not copied in time")


@pytest.mark.slow  # tests/reading/test_fresh.py has a small one
def test_some_moments_of_a_bank_in_two_formats_are_whole_while_it_is_written_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path / "bank.db")
    lake, chance = tmp_path / "lake", random.Random(1)
    with (
        process("write", str(tmp_path / "bank.db"), "1", str(os.getpid())),
        Pipeline(Sqlite(tmp_path / "bank.db"), MixedLake(spark, lake), name="bank", options=OPTIONS) as pipeline,
    ):
        running = threading.Thread(target=pipeline.run)
        running.start()
        oldest = settled(lake)
        with pin(lake, seconds=300):
            for _ in range(3):
                at = moment(Journal.read(lake / "_lakefeed" / "bank"), chance, oldest)
                assert not problems(snapshot(spark, lake, at)), at
        pipeline.stop()
        running.join()


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_ten_thousand_moments_of_a_bank_are_whole_under_load_and_kills(spark: SparkSession, tmp_path: Path) -> None:
    """``READS`` of them, in two threads, while the pipeline is killed with SIGKILL and started again and again."""
    create(tmp_path / "bank.db")
    lake, over, kills, reading = tmp_path / "lake", threading.Event(), list[datetime](), threading.Lock()

    def keep_killing() -> None:
        chance = random.Random(SEED)
        while not over.is_set():
            with process("follow", str(tmp_path)):
                over.wait(chance.uniform(30, 120))
            kills.append(datetime.now(UTC))

    def read(number: int) -> None:
        with reading:
            journal.refresh()
            at = moment(journal, random.Random(f"{SEED} {number}"), oldest)
        assert not problems(snapshot(spark, lake, at)), at

    killer = threading.Thread(target=keep_killing)
    with process("write", str(tmp_path / "bank.db"), str(SEED), str(os.getpid())):
        killer.start()
        try:
            oldest, journal = settled(lake), Journal.read(lake / "_lakefeed" / "bank")
            pins, started = [pin(lake, seconds=86_400)], datetime.now(UTC)
            with ThreadPoolExecutor(2) as pool:
                for done, _ in enumerate(pool.map(read, range(READS)), start=1):
                    if done % 500 == 0:
                        print(f"{done} reads, {len(kills)} kills, {datetime.now(UTC) - started}", flush=True)
            assert len(kills) > 0 or datetime.now(UTC) - started < timedelta(minutes=2)
            pins[0].release()
        finally:
            over.set()
            killer.join()
