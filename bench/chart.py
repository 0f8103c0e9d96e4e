"""Charts as SVG text: horizontal bars with their spread, and lines. No library: the files are small and diff well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.report import Measure, Plot, number

WIDTH = 760
OURS, OTHER = "#1f6feb", "#9aa4b2"
_COLOURS = (OURS, "#d97706", "#15803d", "#6b7280", "#9333ea", "#dc2626", "#0891b2", "#a3a3a3")
_TEXT, _GRID = "#374151", "#e5e7eb"
_LABELS, _VALUES, _LEGEND = 300, 150, 160
_BAR, _GAP = 20, 12


def bars(title: str, measures: Sequence[Measure]) -> str:
    """One bar for each measure: its median, and a thin line from the lowest to the highest value."""
    top = 40
    height = top + len(measures) * (_BAR + _GAP) + 8
    room = WIDTH - _LABELS - _VALUES
    scale = room / max(max(measure.values) for measure in measures)
    parts = [_text(12, 24, title, size=15, weight="bold")]
    for place, measure in enumerate(measures):
        y = top + place * (_BAR + _GAP)
        middle = y + _BAR / 2
        end = _LABELS + max(measure.median * scale, 1)
        low, high = (_LABELS + value * scale for value in (min(measure.values), max(measure.values)))
        parts += [
            _text(_LABELS - 8, middle + 4, measure.name, anchor="end"),
            (
                f'<rect x="{_LABELS}" y="{y}" width="{end - _LABELS:.1f}" height="{_BAR}" rx="2" '
                f'fill="{OURS if measure.ours else OTHER}"/>'
            ),
            _line((low, middle), (high, middle), _TEXT),
            _text(max(end, high) + 8, middle + 4, f"{number(measure.median)} {measure.unit}"),
        ]
    return _svg(height, parts)


def lines(title: str, plot: Plot) -> str:
    """Curves over one pair of axes, with a legend beside them."""
    left, right, top, bottom = 70, WIDTH - _LEGEND, 64, 330
    xs = _axis([x for curve in plot.curves for x, _ in curve.points], logarithmic=plot.logarithmic)
    ys = _axis([y for curve in plot.curves for _, y in curve.points], logarithmic=plot.logarithmic)
    parts = [_text(12, 24, title, size=15, weight="bold"), _text(12, 50, plot.y_label, size=12)]
    for value, share in ys.marks:
        y = bottom - (bottom - top) * share
        parts += [_line((left, y), (right, y), _GRID), _text(left - 8, y + 4, number(value), anchor="end", size=12)]
    for value, share in xs.marks:
        parts.append(_text(left + (right - left) * share, bottom + 18, number(value), anchor="middle", size=12))
    parts.append(_text((left + right) / 2, bottom + 36, plot.x_label, anchor="middle", size=12))
    for place, curve in enumerate(plot.curves):
        colour = _COLOURS[place % len(_COLOURS)]
        points = " ".join(
            f"{left + (right - left) * xs.share(x):.1f},{bottom - (bottom - top) * ys.share(y):.1f}"
            for x, y in curve.points
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(right + 14, top + 4 + 18 * place, curve.name, size=12, colour=colour))
    return _svg(bottom + 48, parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    """From ``low`` to ``high``, as shares of its length from 0 to 1."""

    low: float
    high: float
    logarithmic: bool

    def share(self, value: float) -> float:
        if self.logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def marks(self) -> list[tuple[float, float]]:
        """Values that are written beside it, and where."""
        if self.logarithmic:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            values = [10.0**power for power in powers]
        else:
            values = [self.low + (self.high - self.low) * step / 4 for step in range(5)]
        return [(value, self.share(value)) for value in values]


def _axis(values: Sequence[float], *, logarithmic: bool) -> _Axis:
    """From zero, or between powers of ten."""
    if not logarithmic:
        return _Axis(0.0, _round_up(max(values)), logarithmic=False)
    low = math.floor(math.log10(max(min(values), 1e-3)))
    return _Axis(10.0**low, 10.0 ** max(low + 1, math.ceil(math.log10(max(values)))), logarithmic=True)


def _round_up(value: float) -> float:
    """The next value whose quarters read well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "normal",
    colour: str = _TEXT,
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    places = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {places} stroke="{colour}"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif">'
    )
    paper = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"
