"""The options of the format ``lakefeed``: parses texts into values, or says what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.storage.location import local_root

STATE_FOLDER = "_lakefeed"
"""Below a lake's path, with a folder for each pipeline."""

_NAMES = ("path", "pipeline", "journal", "table", "start", "end", "max_change_sets")
_REMEDY = f"The options are {', '.join(_NAMES)}: give table, and either path with pipeline or journal."


class Edge(Enum):
    """Change sets that have a name."""

    EARLIEST = "earliest"
    """The oldest change set that is retained."""
    LATEST = "latest"
    """For ``start``, the change set after the newest one; for ``end``, the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read. ``start`` and ``end`` are change set numbers, both inclusive; None means not given."""

    journal: Path
    table: TableId
    start: int | Edge = Edge.EARLIEST
    end: int | Edge | None = None
    max_change_sets: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """A ConfigError names the option that is unknown, missing or wrong, and the valid choices."""
        unknown = sorted(name for name in options if name.lower() not in _NAMES)
        if unknown:
            raise _wrong(f"format lakefeed has no option '{unknown[0]}'")
        if not options.get("table"):
            raise _wrong("format lakefeed needs the option 'table', as in main.orders")
        limit = options.get("max_change_sets")
        if limit is not None and _number(limit) is None:
            raise _wrong(f"option 'max_change_sets' is '{limit}'; it must be a number from 1 on")
        if options.get("journal"):
            if options.get("path") or options.get("pipeline"):
                raise _wrong("format lakefeed takes either 'journal' or 'path' with 'pipeline', not both")
            journal = local_root(options["journal"])
        else:
            if not options.get("path"):
                raise _wrong("format lakefeed needs the option 'path' (the lake's) with 'pipeline', or 'journal'")
            lake = local_root(options["path"])
            if not options.get("pipeline"):
                raise _wrong(f"format lakefeed needs the option 'pipeline' beside 'path'; {pipelines_at(lake)}")
            journal = lake / STATE_FOLDER / options["pipeline"]
        return cls(
            journal=journal,
            table=TableId.parse(options["table"]),
            start=_change_set(options, "start", (Edge.EARLIEST, Edge.LATEST)) or Edge.EARLIEST,
            end=_change_set(options, "end", (Edge.LATEST,)),
            max_change_sets=_number(limit) if limit is not None else None,
        )

    def for_batch(self) -> ReadOptions:
        """Itself, if it has no option that is only for streams."""
        if self.max_change_sets is not None:
            raise _wrong("option 'max_change_sets' is for spark.readStream; a batch read has 'start' and 'end'")
        if self.start is Edge.LATEST:
            raise _wrong(
                "option 'start' is 'latest', after which a batch read finds nothing; give a number or earliest"
            )
        if isinstance(self.start, int) and isinstance(self.end, int) and self.start > self.end:
            raise _wrong(f"option 'start' is {self.start}, after option 'end', which is {self.end}")
        return self

    def for_stream(self) -> ReadOptions:
        """Itself, if it has no option that is only for batch reads."""
        if self.end is not None:
            raise _wrong("option 'end' is for spark.read; a stream has no end, but takes 'max_change_sets' a batch")
        return self


@contextmanager
def remedy_in_text() -> Iterator[None]:
    """Puts the remedy into the text: that is all that Spark shows of a Python error."""
    try:
        yield
    except LakefeedError as error:
        raise type(error)(f"{error.message}. {error.remedy}", remedy=error.remedy) from None


def pipelines_at(lake: Path) -> str:
    """Half a sentence with the pipelines that have their state in a lake."""
    state = lake / STATE_FOLDER
    found = sorted(path.name for path in state.iterdir() if path.is_dir()) if state.is_dir() else []
    return f"the lake {lake} has {', '.join(found)}" if found else f"the lake {lake} has none"


def _change_set(options: Mapping[str, str], name: str, edges: tuple[Edge, ...]) -> int | Edge | None:
    text = options.get(name)
    if text is None:
        return None
    for edge in edges:
        if text.strip().lower() == edge.value:
            return edge
    number = _number(text)
    if number is None:
        choices = " or ".join(edge.value for edge in edges)
        raise _wrong(f"option '{name}' is '{text}'; it must be a change set number from 1 on, or {choices}")
    return number


def _number(text: str) -> int | None:
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdigit() and 0 < len(plain) < 19 and int(plain) else None


def _wrong(message: str) -> ConfigError:
    return ConfigError(message, remedy=_REMEDY)
