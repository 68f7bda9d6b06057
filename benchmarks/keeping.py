"""What keeping every episode costs a training step: the episodes of a finished run, kept once more.

python benchmarks/keeping.py RUN

Takes the training episodes of RUN with their tokens, and keeps them in a folder of its own as the agent loops and the
replay buffer do: each as it ends, its fate and its advantage behind it. CPU time is that of the whole process, sealing
and syncing threads included; wall time is that of the calls, for which the event loop waits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rlenv.runs.folder import open_run
from rlenv.runs.schema import Facts, Tokens
from rlenv.trajectory import Trajectory
from rlenv_verl.loop.keep import Keeper

Episode = tuple[Trajectory, Sequence[Tokens]]


def main() -> int:
    """Prints the figures of each round and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    steps = _steps(args.run)
    seconds = statistics.median(_step_seconds(args.run))
    count = sum(map(len, steps))
    print(f"{len(steps)} steps, {count / len(steps):.0f} episodes a step, {seconds:.2f} s a step")
    rounds = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="rlenv-keeping-") as folder:
            rounds.append(_kept(Path(folder), steps))
    cpu, wall, worst = (statistics.median(values) for values in zip(*rounds, strict=True))
    print(f"CPU      {1e3 * cpu / count:.3f} ms an episode, {100 * cpu / len(steps) / seconds:.2f} % of a step")
    print(f"waiting  {1e3 * wall / count:.3f} ms an episode, {100 * wall / len(steps) / seconds:.2f} % of a step")
    print(f"longest  {1e3 * worst:.1f} ms for one call")
    return 0


def _steps(run: Path) -> list[list[Episode]]:
    reader = open_run(run)
    found: dict[int, list[Episode]] = {}
    for row in reader.table.to_pylist():
        if row["mode"] == "train" and row["has_body"]:
            body = reader.body(row["id"])
            # As the agent loop has them: plain lists.
            rows = [
                Tokens(list(one.prompt_ids), list(one.ids), list(one.mask), list(one.logprobs), one.turns)
                for one in body.tokens
            ]
            found.setdefault(row["step"], []).append((body.trajectory(), rows))
    return list(found.values())


def _step_seconds(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    figures = [json.loads(line)["data"] for line in lines]
    return [data["timing_s/step"] for data in figures if "timing_s/step" in data]


def _kept(folder: Path, steps: Sequence[Sequence[Episode]]) -> tuple[float, float, float]:
    """CPU seconds, seconds inside of the calls, and the longest call."""
    loop, trainer = Keeper(folder), Keeper(folder)
    took = []
    began = time.process_time()
    for step, episodes in enumerate(steps):
        ids = []
        for place, (trajectory, rows) in enumerate(episodes):
            facts = Facts(step, place % 8, "train", str(place // 8), time.time(), rows)
            at = time.perf_counter()
            ids.append(loop.keep(trajectory, facts))
            took.append(time.perf_counter() - at)
        for id in ids:
            at = time.perf_counter()
            trainer.late(id, fate="trained", why="", staleness=0)
            trainer.late(id, advantage=0.5)
            took.append(time.perf_counter() - at)
    loop.close()
    trainer.close()
    return time.process_time() - began, sum(took), max(took)


if __name__ == "__main__":
    sys.exit(main())
