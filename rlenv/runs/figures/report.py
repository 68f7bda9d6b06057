"""`rlenv runs report`: runs as one file for papers and reviews, with nothing that has to be loaded or run.

Charts as SVG that need no script: lines over steps, and figures with their intervals; tables stand beside them.

The episodes of a run to read first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv import __version__
from rlenv._base.bounded import cut_middle, stretches
from rlenv._base.text import figure, visible
from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.paired import compare_runs
from rlenv.runs.figures.rewards import high_reward
from rlenv.runs.figures.snapshot import MOST_TERMS, Snapshot
from rlenv.runs.figures.steps import clusters, count_words, main_mode, overview, recent_rows, series
from rlenv.runs.figures.tools import asked, group_of, tool_figures
from rlenv.runs.folder import open_run, read_info
from rlenv.runs.reader import RunReader
from rlenv.runs.usage import Prices, money, notes_of, prices_in, spending_line, spending_of_usage, tokens_text
from rlenv.trajectory import Trajectory

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
    low, high = _axis_range(min(values), max(values))
    first, last = steps[0], steps[-1]

    def x(step: int) -> float:
        span = max(last - first, 1)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - first) / span

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / (high - low))

    drawn = [_draw_axes(low, high, first, last, y)]
    for number, line in enumerate(lines):
        drawn.append(f'<g class="line-{number % 4}">')
        for start, end in stretches(value is not None for value in line.low) if line.low and line.high else ():
            upper = [f"{x(steps[at]):.1f},{y(_number(line.high[at])):.1f}" for at in range(start, end)]
            lower = [f"{x(steps[at]):.1f},{y(_number(line.low[at])):.1f}" for at in reversed(range(start, end))]
            drawn.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        for start, end in stretches(value is not None for value in line.values):
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
        f"{''.join(drawn)}</svg>{_draw_legend(lines)}"
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
    low, high = _axis_range(min(known), max(known))
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


def _axis_range(low: float, high: float) -> tuple[float, float]:
    """The range of an axis: shares from 0 to 1 whole, others with room around them."""
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _number(value: Value) -> float:
    return 0.0 if value is None else float(value)


def _draw_axes(low: float, high: float, first: int, last: int, y: Callable[[float], float]) -> str:
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


def _draw_legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    keys = []
    for number, line in enumerate(lines):
        dash = f' stroke-dasharray="{_DASHES[number % 4]}"' if number % 4 else ""
        mark = f'<svg class="key" viewBox="0 0 24 8" aria-hidden="true"><g class="line-{number % 4}">'
        mark += f'<line class="stroke" x1="0" x2="24" y1="4" y2="4"{dash}/></g></svg>'
        keys.append(f"<li>{mark}{escape(line.name)}</li>")
    return f'<ul class="legend">{"".join(keys)}</ul>'


_CHARTS: Final = (("success", "Success"), ("reward", "Reward"), ("invalid", "Invalid rewards"), ("tokens", "Tokens"))
_LONGEST: Final = 1_500
_STEPS: Final = 200


def report(runs: Sequence[Path], *, title: str, episodes: int = 6, prices: Prices | None = None) -> str:
    """One HTML file of runs: what they are, their figures with intervals, curves, tools, terms, what was asked of
    models, the episodes to read first, and, of two runs or more, what changed from the first to each other one over
    the tasks that both played.

    It names no address, holds no script, and shows all text of a run as text, control characters as escapes.

    Args:
        episodes: how many episodes of each run are shown in full; long texts are cut in their middle.
        prices: what tokens cost; by default those that each run was made with.

    Raises:
        UsageError: a folder holds no run.
        MissingExtra: pyarrow is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    read = [_Read.of(path) for path in runs]
    made = [_run(one, episodes, prices) for one in read]
    changes = [_run_change(read[0], other) for other in read[1:]]
    environment = Environment(
        loader=PackageLoader("rlenv.runs", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"safe_text": _text, "number": figure, "percent": _percent_text, "seconds": _seconds_text}
    environment.filters |= {"tokens": tokens_text, "money": money, "notes": notes_of, "spending": spending_line}
    return environment.get_template("report.html").render(
        title=title, runs=made, changes=changes, version=__version__, made=datetime.now(UTC).strftime("%Y-%m-%d")
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A run with its rows."""

    path: Path
    reader: RunReader
    rows: Snapshot

    @staticmethod
    def of(path: Path) -> _Read:
        reader = open_run(path)
        return _Read(path, reader, Snapshot(reader))

    @property
    def name(self) -> str:
        return self.path.resolve().name


def _run(read: _Read, episodes: int, prices: Prices | None) -> Mapping[str, Any]:
    rows, info = read.rows, read_info(read.path)
    places = np.arange(len(rows))
    steps, found = series(rows, points=_STEPS)
    return {
        "name": read.name,
        "info": info,
        "lock": info.lock if info else "",
        "figures": overview(rows),
        "charts": [chart for chart in (_figure_chart(steps, found, *one) for one in _CHARTS) if chart["svg"]],
        "terms": reward_figures.term_figures(rows, places),
        "terms_more": rows.terms_more,
        "spending": spending_of_usage(asked(rows), prices=prices or (prices_in(info.facts) if info else None)),
        "tools": tool_figures(rows, places) if len(rows) else [],
        "reasons": count_words(rows, "reason"),
        "failures": {name: count for name, count in count_words(rows, "failure").items() if name},
        "episodes": _episodes_to_read(read, episodes),
    }


def _figure_chart(steps: Sequence[int], found: Mapping[str, Any], name: str, title: str) -> Mapping[str, Any]:
    """A figure by step in every mode that has it, as a chart and as the table of the same numbers."""
    lines = []
    for key, one in found.items():
        mode, _, figure = key.partition("/")
        if figure == name:
            lines.append(Line(mode, one["mean"], one.get("low", ()), one.get("high", ())))
    # One step is no curve: its figures stand in the table of the run.
    drawn = line_chart(f"{title} by step", steps, lines) if len(steps) > 1 else ""
    table = [[step, *(line.values[at] for line in lines)] for at, step in enumerate(steps)]
    return {"title": title, "svg": drawn, "names": [line.name for line in lines], "table": table}


def _episodes_to_read(read: _Read, most: int) -> list[Mapping[str, Any]]:
    """The episodes that say most, once each, with their records where these were kept."""
    shown: dict[str, Mapping[str, Any]] = {}
    for entry in reading_list(read.rows):
        id = entry.get("id")
        if id is None or id in shown or len(shown) >= most:
            continue
        place = read.rows.place(id)
        if place is None or not read.rows.table["has_body"][place].as_py():
            continue
        shown[id] = {"why": entry["why"], "id": id, **_episode_page(read.reader.body(id).trajectory())}
    return list(shown.values())


def _episode_page(one: Trajectory) -> Mapping[str, Any]:
    turns = [
        {
            "action": turn.action,
            "results": [(result.name, result.outcome, result.seconds, result.text) for result in turn.results],
            "heard": [] if turn.results or turn.observation is None else [m.content for m in turn.observation.messages],
        }
        for turn in one.turns
    ]
    return {
        "task": f"{one.split}/{one.task_index}, seed {one.seed}",
        "prompt": [(message.role, message.content) for message in one.messages],
        "turns": turns,
        "reason": one.reason,
        "answer": one.answer,
        "reward": one.reward.total,
        "success": one.success,
        "failure": f"{one.failure.reason}: {one.failure.message}" if one.failure else "",
        "terms": list(islice(one.reward.terms.values(), MOST_TERMS)),
        "terms_more": max(0, len(one.reward.terms) - MOST_TERMS),
    }


def _run_change(a: _Read, b: _Read) -> Mapping[str, Any]:
    found = compare_runs(a.rows, b.rows)
    changed = [one for one in found["by_task"] if one["kind"] in ("broken", "fixed")]
    terms = sorted(found["terms"].items(), key=lambda one: -abs(one[1]["change"] or 0.0))
    figures = [("success", found["success"]), ("reward", found["reward"])] + [(f"term {one}", of) for one, of in terms]
    more = max(0, len(changed) - 50)
    return {"a": a.name, "b": b.name, **found, "figures": figures, "changed": changed[:50], "more": more}


def _text(text: object) -> str:
    return visible(cut_middle(str(text), _LONGEST))


def _percent_text(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _seconds_text(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


_EACH: Final = 3


def reading_list(rows: Snapshot) -> list[dict[str, Any]]:
    """Episodes that say most about how a run is now, each with `why`: the worst and the best, those of the groups that
    differ most, the newest failures, and high rewards without a success; of each kind at most one episode of a task.

    Of the last steps (`rlenv.runs.figures.steps.recent_rows`); of failures and of rewards without success, of the whole
    run, the newest. Groups are those of training where the run's main mode plays each task once.
    """
    chosen = recent_rows(rows, main_mode(rows))
    reward, success, step = rows.numbers("reward"), rows.numbers("success"), rows.numbers("step")
    valid = chosen & ~np.isnan(reward)
    by_reward = np.nonzero(valid)[0]
    by_reward = by_reward[np.argsort(reward[by_reward], kind="stable")]
    task = clusters(rows)
    worst = _one_a_task(by_reward, task)
    found = [("worst", place) for place in worst]
    found += [("best", place) for place in _one_a_task(by_reward[::-1], task) if place not in worst]
    high = high_reward(rows)
    if high is not None:
        hacked = np.nonzero((success == 0) & (reward >= high))[0]
        found += [("reward without success", place) for place in _one_a_task(_newest_first(hacked, step), task)]
    found += [("failure", place) for place in _one_a_task(_newest_first(np.nonzero(np.isnan(reward))[0], step), task)]
    listed = [_reading_entry(rows, why, place) for why, place in found]
    # A validation that plays each task once has no groups: those of training are read then.
    wide = widest_groups(rows, np.nonzero(valid)[0])
    return [*listed, *(wide or widest_groups(rows, np.nonzero(recent_rows(rows, "train") & ~np.isnan(reward))[0]))]


def _one_a_task(places: NDArray[np.int64], task: NDArray[np.int64]) -> list[int]:
    """The first places, one a task: three samples of one task say little more than one."""
    _, first = np.unique(task[places], return_index=True)
    return [int(place) for place in places[np.sort(first)[:_EACH]]]


def _newest_first(places: NDArray[np.int64], step: NDArray[np.float64]) -> NDArray[np.int64]:
    # Rows of one step stand in the order in which they were kept: from behind.
    places = places[::-1]
    return places[np.argsort(-step[places], kind="stable")]


def _reading_entry(rows: Snapshot, why: str, place: int) -> dict[str, Any]:
    row = {name: rows.table[name][place].as_py() for name in ("id", "step", "reward", "title", "failure")}
    return {"why": why, **row}


@np.errstate(over="ignore", invalid="ignore")
def widest_groups(rows: Snapshot, places: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The groups, of those that have rows at some places, whose rewards differ most: from the widest one on."""
    if not len(places):
        return []
    step, reward = rows.numbers("step"), rows.numbers("reward")
    keys = np.stack([step[places], clusters(rows)[places]], axis=1)
    _, first, at = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    at = at.reshape(-1)
    sizes, sums = np.bincount(at), np.bincount(at, reward[places])
    spread = np.sqrt(np.bincount(at, (reward[places] - (sums / sizes)[at]) ** 2) / sizes)
    found = []
    for group in np.argsort(-spread, kind="stable")[:_EACH].tolist():
        if spread[group] <= 0:
            break
        place = int(places[first[group]])
        row = {name: rows.table[name][place].as_py() for name in ("id", "split", "task", "group", "step", "title")}
        told = {"why": "widest group", "step": row["step"], "group": group_of(row), "title": row["title"]}
        found.append({**told, "reward": float(sums[group] / sizes[group]), "spread": float(spread[group])})
    return found
