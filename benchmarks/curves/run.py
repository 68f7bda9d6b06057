"""Held-out success over training for four environments, on a CPU: seeds, and the control with shuffled rewards.

    python benchmarks/curves/run.py [--only NAME ...] [--seeds 0 1] [--no-control] [-o DIR]

Each run is one `rlenv train` with a hard time limit: a tiny policy, warm-started on the spot, and GRPO by veRL. The
control starts from the first seed's policy and permutes each batch's rewards over its episodes, so that the same
numbers reach the update, tied to nothing. A run whose folder already holds a finished summary is not run again.

Prints tables in Markdown; exit code 1 where a run did not finish, a curve did not rise by 0.3 (success at temperature
1) or a control did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RISE = 0.3
"""A curve counts as rising where held-out success at temperature 1 gains at least this much; a control may not gain it.

Not greedy success: before training the right first action is a close second, so that any drift can put it first.
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """One environment's runs. `overrides` are what its preset lacks."""

    spec: str
    steps: int
    overrides: tuple[str, ...] = ()


CURVES = {
    "arithmetic": Curve("specs/arithmetic.yaml", steps=20),
    "nl2sql": Curve("examples/curves/nl2sql-toy.yaml", steps=20),
    "search-qa": Curve("examples/curves/search-qa-toy.yaml", steps=20, overrides=("data.max_response_length=192",)),
    "shell": Curve("examples/curves/shell-toy.yaml", steps=10),
}


@dataclass(frozen=True, slots=True)
class Result:
    """A run's name in the tables and its summary; None where it left none."""

    label: str
    summary: dict[str, Any] | None

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its last step."""
        return self.summary is not None and self.summary["ending"]["how"] == "finished"

    @property
    def gain(self) -> float:
        """Held-out success at temperature 1 at the end, less that at the start."""
        assert self.summary is not None
        rates = [entry["sampled"] for entry in self.summary["held_out_success"]]
        return float(rates[-1] - rates[0])


def train(curve: Curve, folder: Path, *, seed: int, model: Path | None, shuffled: bool, limit_s: float) -> None:
    """One run by the command line, in its folder; its output goes to `folder.log`."""
    command = [sys.executable, "-m", "rlenv", "train", str(ROOT / curve.spec), "--seed", str(seed), "-o", str(folder)]
    command += ["--steps", str(curve.steps), "--time-limit", str(limit_s), "--validation-tasks", "100"]
    command += ["trainer.test_freq=5", *curve.overrides]
    if model is not None:
        command += ["--model", str(model)]
    if shuffled:
        command.append("--shuffle-rewards")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("wb") as log:
        # The command keeps its own limit on veRL; this one also bounds the warm start before it.
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=2 * limit_s + 60, check=False)
        except subprocess.TimeoutExpired:
            log.write(f"\nended after {2 * limit_s + 60:.0f} s\n".encode())


def result(folder: Path, label: str) -> Result:
    """What a run left."""
    path = folder / "summary.json"
    return Result(label, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None)


def run(name: str, arguments: argparse.Namespace) -> list[Result]:
    """All runs of one environment, one after the other."""
    curve, out = CURVES[name], arguments.output
    results = []
    for seed in arguments.seeds:
        folder = out / f"{name}-{seed}"
        ready = arguments.policies / f"{name}-{seed}" if arguments.policies is not None else None
        if not result(folder, "").is_finished:
            train(curve, folder, seed=seed, model=ready, shuffled=False, limit_s=arguments.time_limit)
        results.append(result(folder, f"seed {seed}"))
        report(f"{name}, seed {seed}", results[-1])
    if arguments.control:
        seed = arguments.seeds[0]
        folder = out / f"{name}-{seed}-control"
        started = arguments.policies / f"{name}-{seed}" if arguments.policies else out / f"{name}-{seed}" / "model"
        if not result(folder, "").is_finished:
            train(curve, folder, seed=seed, model=started, shuffled=True, limit_s=arguments.time_limit)
        results.append(result(folder, f"control (seed {seed})"))
        report(f"{name}, control", results[-1])
    return results


def report(name: str, found: Result) -> None:
    """One line on a run that ended."""
    how = "left no summary" if found.summary is None else found.summary["ending"]["how"]
    print(
        f"{name}: {how}" + (f", success at temperature 1 {found.gain:+.3f}" if found.is_finished else ""),
        file=sys.stderr,
        flush=True,
    )


def table(results: Sequence[Result]) -> str:
    """Held-out success, greedy (and sampled), by step; then the seconds."""
    rows = {found.label: {} if found.summary is None else _rates(found.summary) for found in results}
    steps = sorted({step for rates in rows.values() for step in rates})
    lines = [
        "| step | " + " | ".join(rows) + " |",
        "|---" * (len(rows) + 1) + "|",
        *("| " + " | ".join([str(step), *(rates.get(step, "") for rates in rows.values())]) + " |" for step in steps),
    ]
    for label, key in (("seconds in all", "seconds"), ("seconds a step", "mean_step_s")):
        cells = ["" if found.summary is None else f"{found.summary[key]:.1f}" for found in results]
        lines.append("| " + " | ".join([label, *cells]) + " |")
    return "\n".join(lines)


def _rates(summary: dict[str, Any]) -> dict[int, str]:
    return {entry["step"]: f"{entry['greedy']:.3f} ({entry['sampled']:.3f})" for entry in summary["held_out_success"]}


def machine(results: Sequence[Result]) -> str:
    """The date, the machine and the versions."""
    versions: dict[str, str] = next((found.summary["versions"] for found in results if found.summary is not None), {})
    cpu = next(
        (line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor(),
    )
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{date.today()}; {cpu}, {os.cpu_count()} cores; Python {platform.python_version()}, {listed}"


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description="Train on four environments and print their curves.")
    parser.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--no-control", dest="control", action="store_false", help="leave out the shuffled rewards")
    parser.add_argument("--time-limit", type=float, default=480.0, metavar="SECONDS", help="of veRL, in each run")
    parser.add_argument("--policies", type=Path, metavar="DIR", help="warm-started policies, as DIR/NAME-SEED")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "runs" / "curves", metavar="DIR")
    arguments = parser.parse_args()
    everything = {name: run(name, arguments) for name in arguments.only}
    for name, results in everything.items():
        print(f"\n### {name}\n\n{table(results)}")
    print(f"\n{machine([found for results in everything.values() for found in results])}")
    return 0 if all(_is_as_expected(found) for results in everything.values() for found in results) else 1


def _is_as_expected(found: Result) -> bool:
    return found.is_finished and (found.gain >= RISE) is not found.label.startswith("control")


if __name__ == "__main__":
    sys.exit(main())
