"""A kind of source that Lakefeed does not have: all that its author writes for ``init``, ``check`` and files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from lakefeed.capture.base import ChangeCapture, Finding, Level
from lakefeed.capture.poll.config import SourceConfig, Text
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position


class ToyCapture(ChangeCapture):
    kind = "toy"

    def __init__(self, path: str, pipeline: str) -> None:
        self.path, self.pipeline = path, pipeline

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        return iter(())

    def check(self) -> tuple[Finding, ...]:
        if Path(self.path).exists():
            return ()
        return (Finding(level=Level.ERROR, problem=f"there is no {self.path}", remedy=f"touch {self.path}"),)


@dataclass(frozen=True)
class Toy:
    path: str

    def bind(self, pipeline: str) -> ChangeCapture:
        return ToyCapture(self.path, pipeline)


class ToyConfig(SourceConfig):
    """A toy."""

    template: ClassVar[str] = "source:\n  kind: toy\n  file: toy.log\n  speed: 3\n"
    first_key: ClassVar[str] = "file"

    kind: Literal["toy"] = Field(description="Which database.")
    capture: Literal["log", "poll"] = Field(default="log", description="How changes are found.")
    file: Text = Field(description="The log.")
    speed: int = Field(default=1, ge=1, description="How fast it is.")

    def source(self) -> Toy:
        return Toy(self.file)

    def findings(self) -> tuple[Finding, ...]:
        if self.speed < 9:
            return ()
        return (Finding(level=Level.WARNING, problem=f"speed {self.speed} is fast", remedy="Set source.speed: 8."),)

    def beside(self, directory: Path) -> Self:
        return self.model_copy(update={"file": str(directory / self.file)})
