"""What a benchmark says: measures, ratios, verdicts, and curves. Kept as JSON, shown by ``page``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

Unit = Literal["changes/s", "rows/s", "s", "ms", "MiB", "jobs", "bytes/byte"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One contestant's values, one for each repetition. ``ours``: Lakefeed; otherwise a limit or a peer."""

    name: str
    unit: Unit
    values: tuple[float, ...]
    ours: bool = False
    charted: bool = True

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Lakefeed against a limit, a peer or a target: above 1 speaks for Lakefeed. One value for each repetition."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, what was measured, and whether that is enough."""

    target: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart: points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one pair of axes; ``logarithmic``: both."""

    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark in one run.

    ``where`` (machine and versions), ``date``, ``seconds`` and ``load_average`` are added by the runner; the last is
    the machine's over the minute before, so that a reader can tell a quiet machine from a busy one.
    """

    what: str
    measures: tuple[Measure, ...]
    ratios: tuple[Ratio, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    plot: Plot | None = None
    notes: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    date: str = ""
    seconds: float = 0.0
    load_average: float = 0.0

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        data: dict[str, Any] = json.loads(path.read_text())
        plot = data["plot"]
        return cls(
            **data
            | {
                "measures": tuple(Measure(**one | {"values": tuple(one["values"])}) for one in data["measures"]),
                "ratios": tuple(Ratio(one["name"], tuple(one["values"])) for one in data["ratios"]),
                "verdicts": tuple(Verdict(**one) for one in data["verdicts"]),
                "plot": _plot(plot) if plot else None,
                "notes": tuple(data["notes"]),
            }
        )


def _plot(data: dict[str, Any]) -> Plot:
    curves = tuple(Curve(one["name"], tuple((x, y) for x, y in one["points"])) for one in data["curves"])
    return Plot(data["x_label"], data["y_label"], curves, data.get("logarithmic", False))


def rates(name: str, unit: Unit, count: int, seconds: Sequence[float], *, ours: bool = False) -> Measure:
    """So many things in so many seconds, as things per second."""
    return Measure(name, unit, tuple(round(count / one, 1) for one in seconds), ours)


def speed_ratio(name: str, ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """From seconds: how many times as fast ours was, repetition by repetition."""
    return Ratio(name, tuple(round(theirs / mine, 3) for mine, theirs in zip(ours, other, strict=True)))


def number(value: float) -> str:
    """A value as people read it: three digits are enough, more would claim too much."""
    if abs(value) >= 1000:
        digits = 10 ** max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value / digits) * digits:,}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread(values: Sequence[float]) -> str:
    """``median [lowest–highest]``."""
    return f"{number(statistics.median(values))} [{number(min(values))}–{number(max(values))}]"
