"""`rlenv runs report`: runs as one file for papers and reviews, with nothing that has to be loaded or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlenv import __version__
from rlenv._base.bounded import cut_middle
from rlenv._base.text import figure, visible
from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.charts import Line, line_chart
from rlenv.runs.figures.paired import compared
from rlenv.runs.figures.reading import reading_list
from rlenv.runs.figures.snapshot import MOST_TERMS, Snapshot
from rlenv.runs.figures.steps import counts, overview, series
from rlenv.runs.figures.tools import asked, tools
from rlenv.runs.folder import open_run, read_info
from rlenv.runs.reader import RunReader
from rlenv.runs.usage import Prices, money, notes_of, prices_in, spending_line, spent_by, tokens_said
from rlenv.trajectory import Trajectory

__all__ = ["report"]

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
    changes = [_change(read[0], other) for other in read[1:]]
    environment = Environment(
        loader=PackageLoader("rlenv.runs", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"safe_text": _text, "number": figure, "percent": _percent, "seconds": _seconds}
    environment.filters |= {"tokens": tokens_said, "money": money, "notes": notes_of, "spending": spending_line}
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
        "lock": info.attempts[-1].lock if info and info.attempts else "",
        "figures": overview(rows),
        "charts": [chart for chart in (_chart(steps, found, *one) for one in _CHARTS) if chart["svg"]],
        "terms": reward_figures.terms(rows, places),
        "terms_more": rows.terms_more,
        "spending": spent_by(asked(rows), prices=prices or (prices_in(info.facts) if info else None)),
        "tools": tools(rows, places) if len(rows) else [],
        "reasons": counts(rows, "reason"),
        "failures": {name: count for name, count in counts(rows, "failure").items() if name},
        "episodes": _episodes(read, episodes),
    }


def _chart(steps: Sequence[int], found: Mapping[str, Any], name: str, title: str) -> Mapping[str, Any]:
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


def _episodes(read: _Read, most: int) -> list[Mapping[str, Any]]:
    """The episodes that say most, once each, with their records where these were kept."""
    shown: dict[str, Mapping[str, Any]] = {}
    for entry in reading_list(read.rows):
        id = entry.get("id")
        if id is None or id in shown or len(shown) >= most:
            continue
        place = read.rows.place(id)
        if place is None or not read.rows.table["has_body"][place].as_py():
            continue
        shown[id] = {"why": entry["why"], "id": id, **_told(read.reader.body(id).trajectory())}
    return list(shown.values())


def _told(one: Trajectory) -> Mapping[str, Any]:
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


def _change(a: _Read, b: _Read) -> Mapping[str, Any]:
    found = compared(a.rows, b.rows)
    changed = [one for one in found["by_task"] if one["kind"] in ("broken", "fixed")]
    terms = sorted(found["terms"].items(), key=lambda one: -abs(one[1]["change"] or 0.0))
    figures = [("success", found["success"]), ("reward", found["reward"])] + [(f"term {one}", of) for one, of in terms]
    more = max(0, len(changed) - 50)
    return {"a": a.name, "b": b.name, **found, "figures": figures, "changed": changed[:50], "more": more}


def _text(text: object) -> str:
    return visible(cut_middle(str(text), _LONGEST))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"
