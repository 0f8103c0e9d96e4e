"""One storm: sessions change a database, Lakefeed follows, is killed, the server restarts; then everything is compared.

1. The database, its shared tables and the pipeline are made, and ``lakefeed run`` starts.
2. Each session runs its own sequence of actions until the time is over; kills and restarts come at planned times.
   The watcher and the heartbeat look on.
3. The writers stop. Lakefeed drains.
4. Every table is compared. What is blocked gets its remedy, as printed, and is compared again.

The seed decides everything that is decided: action n of a session draws from its own generator. Which statements
succeed can depend on time where the application's own locks meet; the next actions of that session then differ.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.database import Action, ConnectionLostError, Database, Model, Relation, Session, StatementError
from tests.storm.lake import differences, read
from tests.storm.pipeline import Pipeline
from tests.storm.profile import PROFILES, Profile
from tests.storm.watch import Heartbeat, LockWatcher

REFUSED_SECONDS = 15.0
"""How long a table that lost its key or identity may stay published."""
SOURCES = ("postgres", "sqlite", "mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class Settings:
    source: str = "postgres"
    seconds: float = 300
    seed: int = 1
    profile: str = "mild"
    format: str = "delta"
    kills: int = 3
    restarts: int = 1
    postgres: int | None = None
    fresh_seconds: float = 60
    drain_seconds: float = 120
    keep_change_sets: int = 20
    directory: Path | None = None

    def replay(self) -> str:
        version = f" POSTGRES={self.postgres}" if self.postgres else ""
        return (
            f"make storm SOURCE={self.source} SEED={self.seed} SECONDS={self.seconds:g} PROFILE={self.profile} "
            f"FORMAT={self.format} KILLS={self.kills} RESTARTS={self.restarts}{version}"
        )


@dataclass(slots=True)
class Result:
    """What was survived, and what was found. A storm with findings has failed."""

    settings: Settings
    directory: Path
    statements: int = 0
    failed: int = 0
    tables: int = 0
    equal: int = 0
    remedied: int = 0
    not_followed: int = 0
    kills: int = 0
    restarts: int = 0
    longest_wait: float = 0
    longest_refusal: float = 0
    freshness: str = ""
    findings: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        told = self.settings
        lines = [
            f"{told.source}, seed {told.seed}, profile {told.profile}, {told.seconds:g} s, {told.format}",
            f"{self.statements} statements, of which {self.failed} failed for the application's own reasons",
            f"{self.kills} kills of lakefeed, {self.restarts} restarts of the server",
            (
                f"{self.tables} tables: {self.equal} equal ({self.remedied} after their remedy), "
                f"{self.not_followed} cannot be followed and are named"
            ),
            f"heartbeats: {self.freshness}; longest wait of the application for lakefeed: {self.longest_wait:.1f} s",
            f"longest refusal of a change to a table that has just lost its identity: {self.longest_refusal:.1f} s",
        ]
        lines += [f"FOUND {kind}: {text}" for kind, text in self.findings]
        if self.findings:
            lines += [f"logs: {self.directory}", f"replay: {self.settings.replay()}"]
        return "\n".join(lines)


class Storm:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.profile: Profile = PROFILES[settings.source][settings.profile]
        directory = settings.directory or Path(tempfile.mkdtemp(prefix=f"storm-{settings.seed}-"))
        directory.mkdir(parents=True, exist_ok=True)
        self.result = Result(settings, directory)
        self._log = (directory / "statements.jsonl").open("w")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._over = threading.Event()

    def run(self) -> Result:
        database = start(self.settings)
        try:
            database.create(self.profile.sessions)
            pipeline = self._pipeline(database)
            try:
                self._rage(database, pipeline)
                self._compare(database, pipeline)
            finally:
                problem = pipeline.stop(60)
                if problem is not None:
                    self.report("stop", problem)
        finally:
            database.close(self.result.directory / "server.log")
            self._log.close()
            (self.result.directory / "result.txt").write_text(str(self.result))
        return self.result

    def report(self, kind: str, text: str) -> None:
        """A finding, once: the same text is not repeated."""
        with self._lock:
            if (kind, text) not in self.result.findings:
                self.result.findings.append((kind, text))
                print(f"{time.monotonic() - self._began:7.1f} s FOUND {kind}: {text}"[:600], flush=True)

    def _pipeline(self, database: Database) -> Pipeline:
        lake: dict[str, Any] = {"path": "./lake", "format": self.settings.format, "mode": "mirror"}
        if self.profile.evolution:
            lake["evolution"] = dict(self.profile.evolution)
        journal = {"keep_change_sets": self.settings.keep_change_sets, "keep_seconds": 0}
        config = {"pipeline": "storm", "source": database.source(), "lake": lake, "journal": journal,
                  "sync": {"interval_seconds": 0.5, "warm_up": False}}  # fmt: skip
        return Pipeline(self.result.directory, config, short=self.settings.seconds <= 120)

    def _rage(self, database: Database, pipeline: Pipeline) -> None:
        """Steps 2 and 3: the sessions write, this thread kills and restarts; then everything gets time to arrive."""
        watcher = LockWatcher(database, self.report)
        heartbeat = Heartbeat(database, pipeline, self.settings.format, self.settings.fresh_seconds, self.report)
        writers = []
        for number in range(self.profile.sessions):
            session, model = database.session(f"storm {number}"), database.model(number, self.profile)
            for count, kind in enumerate(self.profile.prelude):
                chance = random.Random(f"{self.settings.seed}/{number}/{count}")
                self._perform(session, number, kind, model.action(kind, chance))
            model.settle()
            writers.append(threading.Thread(target=self._write, args=(session, model, number), daemon=True))
        chance = random.Random(f"{self.settings.seed}/kills")
        events = [(chance.uniform(0.2, 0.9), "kill") for _ in range(self.settings.kills)]
        events += [(chance.uniform(0.2, 0.9), chance.choice(["stop", "crash"])) for _ in range(self.settings.restarts)]
        events.sort(reverse=True)
        pipeline.start()
        watcher.start()
        try:
            if not self._until(
                pipeline, lambda: {one["state"] for one in pipeline.status()["tables"].values()} == {"live"}
            ):
                self.report("not started", f"the first tables were not live after {self.settings.drain_seconds:.0f} s")
            pipeline.started_at = self._began = time.monotonic()
            for thread in (heartbeat, *writers):
                thread.start()
            while (elapsed := time.monotonic() - self._began) < self.settings.seconds:
                self._require_alive(pipeline)
                if events and elapsed > events[-1][0] * self.settings.seconds:
                    _, event = events.pop()
                    self._note(event)
                    if event == "kill":
                        pipeline.kill()
                        time.sleep(chance.uniform(0, 3))
                        pipeline.start()
                        self.result.kills += 1
                    else:
                        database.restart(crash=event == "crash")
                        pipeline.started_at = time.monotonic()
                        self.result.restarts += 1
                time.sleep(0.2)
            self._over.set()
            for writer in writers:
                writer.join(90)
            database.settle()
            self._drain(pipeline, heartbeat)
        finally:
            self._over.set()
            heartbeat.end()
            watcher.end()
            self.result.longest_wait = watcher.longest
            self.result.freshness = heartbeat.distribution()

    def _require_alive(self, pipeline: Pipeline) -> None:
        code = pipeline.ended_by_itself()
        if code is not None:
            self.report("process ended", f"exit code {code}: {pipeline.last_words()}")
            time.sleep(2)
            pipeline.start()

    def _note(self, event: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s {event}", flush=True)
        self._record("harness", event, event, 0.0, "")

    def _record(self, session: str, kind: str, statement: str, seconds: float, error: str) -> None:
        entry = {"at": round(time.time(), 3), "session": session, "kind": kind, "statement": statement,
                 "seconds": round(seconds, 3), "error": error}  # fmt: skip
        with self._lock:
            self._log.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._log.flush()
            self.result.statements += session != "harness"

    def _write(self, session: Session, model: Model, number: int) -> None:
        """One session, until the time is over. Its pace is its share of the profile's rate."""
        kinds, weights = list(self.profile.weights), list(self.profile.weights.values())
        count = len(self.profile.prelude)
        while not self._over.is_set():
            chance = random.Random(f"{self.settings.seed}/{number}/{count}")
            kind = chance.choices(kinds, weights)[0]
            pause = chance.expovariate(self.profile.actions_per_second / self.profile.sessions)
            action = model.action(kind, chance)
            count += 1
            refused_at: float | None = None
            while not self._over.is_set():
                try:
                    self._perform(session, number, kind, action)
                except ConnectionLostError:  # the server restarts: once more
                    self._over.wait(0.5)
                    continue
                except StatementError as error:
                    if error.ours:
                        # A key or an identity that the application has just taken away is noticed by polling the
                        # catalog: until then PostgreSQL refuses changes to what is still published.
                        refused_at = refused_at or time.monotonic()
                        refused = time.monotonic() - refused_at
                        self.result.longest_refusal = max(self.result.longest_refusal, refused)
                        if error.passes and refused < REFUSED_SECONDS:
                            self._over.wait(0.5)
                            continue
                        self.report("application fails", f"{kind}, for {refused:.0f} s: {error}")
                    self.result.failed += not error.ours
                    if action.table is not None:
                        model.forget(action.table)
                except Exception as error:
                    self.report("harness", f"session {number} ended: {error!r}")
                    raise
                break
            self._over.wait(min(pause, 3))
        session.close()

    def _perform(self, session: Session, number: int, kind: str, action: Action) -> None:
        for statement in action.statements:
            started = time.monotonic()
            error = ""
            try:
                session.execute(statement)
            except (StatementError, ConnectionLostError) as problem:
                error = str(problem)
                raise
            finally:
                self._record(f"storm {number}", kind, statement, time.monotonic() - started, error)
        action.done()

    def _until(self, pipeline: Pipeline, condition: Callable[[], bool]) -> bool:
        """Wait for something, up to ``drain_seconds``; the process must live meanwhile."""
        until = time.monotonic() + self.settings.drain_seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(1)
            self._require_alive(pipeline)
        return True

    def _drain(self, pipeline: Pipeline, heartbeat: Heartbeat) -> None:
        """Until a heartbeat from after the last write is in the lake, and no table is being copied but one that waits
        for a person: its remedy is carried out later."""
        last = heartbeat.number + 1

        def behind() -> dict[str, Any]:
            return {
                name: table
                for name, table in pipeline.status()["tables"].items()
                if table["state"] not in ("live", "blocked", "dropped") and not needs_a_person(table)
            }

        if not self._until(pipeline, lambda: heartbeat.newest > last and not behind()):
            self.report(
                "not drained", f"{self.settings.drain_seconds:.0f} s after the last write: {json.dumps(behind())}"
            )

    def _compare(self, database: Database, pipeline: Pipeline) -> None:
        """Step 4. A table that is not blocked gets some seconds more: the catalog is polled."""
        relations = database.tables()
        wrong: dict[Relation, str] = dict.fromkeys(relations, "")
        blocked: dict[Relation, tuple[str, str]] = {}

        def only_blocked() -> bool:
            nonlocal wrong, blocked
            wrong = self._wrong(database, pipeline, list(wrong))
            states = pipeline.status()["tables"] if wrong else {}
            found = {relation: states.get(relation.name, {}) for relation in wrong}
            blocked = {
                relation: (state["error"], state["remedy"])
                for relation, state in found.items()
                if needs_a_person(state)
            }
            return all(relation in blocked or relation.not_followed for relation in wrong)

        self._until(pipeline, only_blocked)
        self.result.tables = len(relations)
        named = pipeline.check() if any(relation.not_followed for relation in wrong) else ""
        for relation, difference in wrong.items():
            if (
                relation.not_followed
                and relation not in blocked
                and f"{database.lake_folder()}.{relation.name}" in named
            ):
                self.result.not_followed += 1
            elif relation not in blocked:
                state = pipeline.status()["tables"].get(relation.name, {"state": "not in status"})
                why = f"{state['state']}, {relation.not_followed or 'can be followed'}, {state.get('error')}"
                self.report("table differs", f"{relation.name} ({why}): {difference}")
        self.result.remedied = self._heal(database, pipeline, blocked)
        self.result.equal = len(relations) - len(wrong) + self.result.remedied

    def _heal(self, database: Database, pipeline: Pipeline, blocked: dict[Relation, tuple[str, str]]) -> int:
        """Carry out the remedies as printed, start again, and compare. Returns how many tables are equal then."""
        if not blocked:
            return 0
        session = database.session("storm remedy")
        problem = pipeline.stop(60)
        if problem is not None:
            self.report("stop", problem)
        for relation, (error, remedy) in blocked.items():
            print(f"{relation.name}: {error}\n    remedy: {remedy}", flush=True)
            statements = pipeline.remedy_statements(remedy)
            try:
                for statement in statements:
                    session.execute(statement)
            except StatementError as refused:
                self.report("remedy fails", f"{relation.name}: {remedy}: {refused}")
            is_ours = pipeline.carry_out(remedy)
            if not statements and not is_ours:
                self.report("remedy cannot be run", f"{relation.name}: {error}: {remedy}")
        session.close()
        pipeline.start()
        now = {relation.name: relation for relation in database.tables()}
        wrong = {now[relation.name]: "" for relation in blocked}

        def equal() -> bool:
            nonlocal wrong
            wrong = self._wrong(database, pipeline, list(wrong))
            return not wrong

        self._until(pipeline, equal)
        status = pipeline.status()["tables"] if wrong else {}
        for relation, difference in wrong.items():
            error, remedy = blocked[relation]
            after = status.get(relation.name, {})
            self.report("remedy does not help", f"{relation.name}: {error}: {remedy} | now {after.get('state')}, "
                        f"{after.get('error')}: {difference}")  # fmt: skip
        return len(blocked) - len(wrong)

    def _wrong(self, database: Database, pipeline: Pipeline, relations: list[Relation]) -> dict[Relation, str]:
        found = {}
        for relation in relations:
            table = read(self.settings.format, pipeline.lake / database.lake_folder() / relation.name)
            if table is None:
                found[relation] = "there is no lake table"
                continue
            difference = differences(database.rows(relation), relation.columns, table)
            if difference is not None:
                found[relation] = difference
        return found


def start(settings: Settings) -> Database:
    """A database of the storm's own. Its driver is imported only here."""
    if settings.source == "postgres":
        from tests.storm.postgres.database import PostgresStorm

        return PostgresStorm(settings.postgres)
    if settings.source == "sqlite":
        from tests.storm.sqlite.database import SqliteStorm

        return SqliteStorm()
    from tests.storm.mysql.database import MysqlStorm

    return MysqlStorm("mariadb" if settings.source == "mariadb" else "mysql")


def needs_a_person(table: dict[str, Any]) -> bool:
    return bool(table.get("remedy")) and "by itself" not in table["remedy"]


def main(arguments: list[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m tests.storm", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--source", choices=SOURCES, default="postgres")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--profile", choices=["mild", "wild"], default="wild")
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--postgres", type=int, default=None, help="major version; the newest that is found")
    parser.add_argument("--fresh-seconds", type=float, default=60, help="bound for a heartbeat to reach the lake")
    parser.add_argument("--drain-seconds", type=float, default=120)
    parser.add_argument("--keep-change-sets", type=int, default=20, help="more of them for a post-mortem")
    parser.add_argument("--directory", type=Path, default=None, help="for lake and logs")
    given = parser.parse_args(arguments)
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(1_000_000)
    settings = Settings(**vars(given))
    print(f"storm: {settings.replay()}", flush=True)
    storm = Storm(settings)
    print(f"logs: {storm.result.directory} ({shlex.join(sys.argv)})", flush=True)
    result = storm.run()
    print(result)
    return 1 if result.findings else 0
