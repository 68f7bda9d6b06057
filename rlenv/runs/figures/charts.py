"""Charts as SVG that need no script: lines over steps, and figures with their intervals; tables stand beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Line", "Row", "interval_chart", "line_chart"]

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 32
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3")
"""Lines differ by their dashes too: colour is never the only carrier."""

_COLOURS: Final = (
    "text{font:12px sans-serif;fill:#222}.grid{stroke:#ccc}.bar{stroke:#0b62a4;stroke-width:2}.dot{fill:#0b62a4}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.bar{stroke:#6cb4ee}.dot{fill:#6cb4ee}}"
)

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Line:
    """Values by step; `low` and `high` bound a band around them where they are given. None leaves a gap."""

    name: str
    values: Sequence[Value]
    low: Sequence[Value] = ()
    high: Sequence[Value] = ()


def line_chart(title: str, steps: Sequence[int], lines: Sequence[Line]) -> str:
    """An SVG element of lines over steps, described for readers who do not see it; "" where there is nothing to draw.

    All text in it is escaped.
    """
    known = [value for line in lines for part in (line.values, line.low, line.high) for value in part]
    values = [float(value) for value in known if value is not None]
    if not values or not steps:
        return ""
    low, high = _range(min(values), max(values))
    first, last = steps[0], steps[-1]

    def x(step: int) -> float:
        span = max(last - first, 1)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - first) / span

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / (high - low))

    drawn = [_axes(low, high, first, last, y)]
    for number, line in enumerate(lines):
        drawn.append(f'<g class="line-{number % 4}">')
        for start, end in _stretches(line.low) if line.low and line.high else ():
            upper = [f"{x(steps[at]):.1f},{y(_number(line.high[at])):.1f}" for at in range(start, end)]
            lower = [f"{x(steps[at]):.1f},{y(_number(line.low[at])):.1f}" for at in reversed(range(start, end))]
            drawn.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        for start, end in _stretches(line.values):
            points = [f"{x(steps[at]):.1f},{y(_number(line.values[at])):.1f}" for at in range(start, end)]
            if len(points) == 1:
                at_x, at_y = points[0].split(",")
                drawn.append(f'<circle class="dot" cx="{at_x}" cy="{at_y}" r="2.5"/>')
            else:
                dash = f' stroke-dasharray="{_DASHES[number % 4]}"' if number % 4 else ""
                drawn.append(f'<polyline class="stroke"{dash} points="{" ".join(points)}"/>')
        drawn.append("</g>")
    told = escape(title)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{told}"><title>{told}</title>'
        f"{''.join(drawn)}</svg>{_legend(lines)}"
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A named figure with its interval; None where there is none."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


def interval_chart(title: str, rows: Sequence[Row]) -> str:
    """A whole SVG file of figures below each other, each a dot on its interval; "" where there is nothing to draw.

    All text in it is escaped, and it brings its own colours, for a light and a dark ground.
    """
    known = [number for row in rows for number in (row.value, row.low, row.high) if number is not None]
    if not known:
        return ""
    low, high = _range(min(known), max(known))
    left = 24 + 7 * max(len(row.name) for row in rows)
    width, height = left + 420, 52 + 22 * len(rows) + 24

    def x(value: float) -> float:
        return left + 400 * (value - low) / (high - low)

    drawn = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + (high - low) * share
        at = f"{x(value):.1f}"
        drawn.append(f'<line class="grid" x1="{at}" x2="{at}" y1="36" y2="{height - 24}"/>')
        drawn.append(f'<text x="{at}" y="{height - 8}" text-anchor="middle">{value:.3g}</text>')
    for number, row in enumerate(rows):
        middle = 52 + 22 * number
        drawn.append(f'<text x="{left - 10}" y="{middle + 4}" text-anchor="end">{escape(row.name)}</text>')
        if row.low is not None and row.high is not None:
            ends = f'x1="{x(row.low):.1f}" x2="{x(row.high):.1f}"'
            drawn.append(f'<line class="bar" {ends} y1="{middle}" y2="{middle}"/>')
        if row.value is not None:
            drawn.append(f'<circle class="dot" cx="{x(row.value):.1f}" cy="{middle}" r="4"/>')
    told = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{told}"><title>{told}</title><style>{_COLOURS}</style>'
        f'<text x="10" y="20">{told}</text>{"".join(drawn)}</svg>\n'
    )


def _range(low: float, high: float) -> tuple[float, float]:
    """What the axis shows: shares from 0 to 1 whole, others with room around them."""
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _number(value: Value) -> float:
    return 0.0 if value is None else float(value)


def _stretches(values: Sequence[Value]) -> list[tuple[int, int]]:
    """Where values follow each other without a gap."""
    found: list[tuple[int, int]] = []
    start: int | None = None
    for at, value in enumerate([*values, None]):
        if value is not None and start is None:
            start = at
        elif value is None and start is not None:
            found.append((start, at))
            start = None
    return found


def _axes(low: float, high: float, first: int, last: int, y: object) -> str:
    assert callable(y)
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + (high - low) * share
        at = y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    bottom = _HEIGHT - _BOTTOM + 18
    ends: Mapping[str, tuple[int, int]] = {"start": (_LEFT, first), "end": (_WIDTH - _RIGHT, last)}
    for anchor, (at_x, step) in ends.items():
        parts.append(f'<text class="tick" x="{at_x}" y="{bottom}" text-anchor="{anchor}">step {step}</text>')
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    keys = []
    for number, line in enumerate(lines):
        dash = f' stroke-dasharray="{_DASHES[number % 4]}"' if number % 4 else ""
        mark = f'<svg class="key" viewBox="0 0 24 8" aria-hidden="true"><g class="line-{number % 4}">'
        mark += f'<line class="stroke" x1="0" x2="24" y1="4" y2="4"{dash}/></g></svg>'
        keys.append(f"<li>{mark}{escape(line.name)}</li>")
    return f'<ul class="legend">{"".join(keys)}</ul>'
