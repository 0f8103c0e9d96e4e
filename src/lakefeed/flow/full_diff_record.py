"""What is durable about full comparisons: the plan of the one under way, and how the last one went.

One JSON file for each source table, in the pipeline's directory. One writer at a time, who holds ``alone``; any
process reads.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import make_directory, replace_file
from lakefeed.errors import JournalDamagedError, LeaseError


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPlan:
    """A comparison that has begun: ``number`` is when, in milliseconds, and names what it leaves on disk.

    ``generation`` is the lake table's life that is compared, ``chunks`` are what is read of the source.
    """

    number: int
    generation: int
    whole_rows: bool
    schema: TableSchema
    chunks: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How the last comparison of a table went. ``at`` is when it ended, in seconds since 1970.

    ``began`` is when it was planned: of what was deleted after that, it may have found some, and need not.
    ``error`` says why it was refused or failed, ``remedy`` what to do about it.
    """

    at: float
    began: float
    source_rows: int = 0
    lake_rows: int = 0
    deleted: int = 0
    changed: int = 0
    seconds: float = 0.0
    error: str | None = None
    remedy: str | None = None
    failed: bool = False
    """It did not come to its end, and is tried again soon. A refusal is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRecord:
    plan: DiffPlan | None = None
    last: Compared | None = None


class DiffStore:
    """The records of one pipeline, below its directory ``root``."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "full-diff"

    def work(self, table: TableId) -> Path:
        """Where a comparison keeps what it has read."""
        return self._directory / quote(str(table), safe=" .")

    def load(self, table: TableId) -> DiffRecord:
        path = self._file(table)
        try:
            body = json.loads(path.read_bytes())
            plan = {**body["plan"], "schema": TableSchema.from_json(body["plan"]["schema"])} if body["plan"] else None
            return DiffRecord(
                plan=DiffPlan(**{**plan, "chunks": tuple(plan["chunks"])}) if plan else None,
                last=Compared(**body["last"]) if body["last"] else None,
            )
        except FileNotFoundError:
            return DiffRecord()
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Remove it: the next comparison then begins anew."
            raise JournalDamagedError(f"the file {path} cannot be read: {error}", remedy=remedy) from error

    def save(self, table: TableId, record: DiffRecord) -> None:
        plan = None
        if record.plan is not None:
            plan = {field.name: getattr(record.plan, field.name) for field in fields(DiffPlan)}
            plan |= {"schema": record.plan.schema.to_json(), "chunks": [dict(chunk) for chunk in record.plan.chunks]}
        body = {"plan": plan, "last": asdict(record.last) if record.last else None}
        make_directory(self._directory)
        replace_file(self._file(table), json.dumps(body, indent=1, ensure_ascii=False).encode())

    @contextmanager
    def alone(self, table: TableId) -> Iterator[None]:
        """The right to compare the table, over all processes. LeaseError if another does it right now."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / f".{quote(str(table), safe=' .')}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"table {table} is being compared already"
                raise LeaseError(text, remedy="Wait for it: `lakefeed status` shows its result.") from error
            yield

    def _file(self, table: TableId) -> Path:
        return self._directory / f"{quote(str(table), safe=' .')}.json"
