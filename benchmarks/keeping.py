"""What keeping every episode costs a training step.

python benchmarks/keeping.py [SPEC] [--rounds N] [--steps N] [--batch PROMPTS] [--samples N]

Two runs of `rlenv train` a round, with the same policy, seed and steps, one that keeps its episodes and one that keeps
nothing; which of them goes first changes from round to round. The difference of a round is that of the medians of both
runs' steps, the first left out. Then what the last run has kept is kept once more, as the agent loops and the replay
buffer do: each episode as it ends, its fate and its advantage behind it. CPU time there is that of the whole process,
sealing and syncing threads included; wall time is that of the calls, for which the event loop waits. The first figure
holds everything and the noise of two runs, the second nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import yaml

from rlenv.episodes.environment import load
from rlenv.runs.folder import Attempt, open_run
from rlenv.runs.schema import Facts, Tokens
from rlenv.trajectory import Trajectory
from rlenv_train.keeping import Keeper
from rlenv_train.launch import run_to_end
from rlenv_verl.run import Run
from rlenv_verl.run.inputs import run_environment
from rlenv_verl.run.train import main as train

Episode = tuple[Trajectory, Sequence[Tokens]]
_NOTHING = "+trainer.v1.sampler.sampler_kwargs.record_dir=null"


def main() -> int:
    """Prints the figures of each round, and what keeping costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", nargs="?", default="arithmetic")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlenv-keeping-") as name:
        folder = Path(name)
        policy = _policy(args.spec, folder / "policy")
        sizes = [f"data.train_batch_size={args.batch}", f"actor_rollout_ref.actor.ppo_mini_batch_size={args.batch}"]
        asked = [args.spec, "--model", str(policy), "--steps", str(args.steps), *sizes]
        asked += [f"actor_rollout_ref.rollout.n={args.samples}", "trainer.val_before_train=false"]
        asked += ["trainer.test_freq=-1", "trainer.save_freq=-1"]
        shares, kept = [], folder
        for number in range(args.rounds):
            seconds = {}
            for keeps in (True, False) if number % 2 else (False, True):
                run = _prepared(folder / f"{number}-{'keeps' if keeps else 'nothing'}", asked, keeps=keeps, seed=number)
                seconds[keeps] = _step_seconds(run)
                kept = run.folder if keeps else kept
            shares.append(100 * (seconds[True] / seconds[False] - 1))
            print(
                f"round {number}: {seconds[False]:.3f} s a step, {seconds[True]:.3f} s where it keeps,"
                f" {shares[-1]:+.2f} %, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
        print(f"runs     {statistics.mean(shares):+.2f} % of a step, standard error {error:.2f}")
        _keep_again(kept, seconds[True])
    return 0


def _policy(spec: str, folder: Path) -> Path:
    """A tiny policy that has hardly learned anything."""
    from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_tiny_policy(
            [load(spec)], folder, seed=0, settings=WarmupSettings(steps=60, golds=40, clean=200, mixed=200)
        )
    return folder


def _prepared(folder: Path, asked: Sequence[str], *, keeps: bool, seed: int) -> Run:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        own = [] if keeps else [_NOTHING]
        code = train([*asked, "--dry-run", "--seed", str(seed), "-o", str(folder), *own])
    if code:
        raise SystemExit(said.getvalue()[-2000:])
    if not keeps:
        path = folder / "agent_loop.yaml"
        loops = [{**loop, "record_dir": None} for loop in yaml.safe_load(path.read_text(encoding="utf-8"))]
        path.write_text(yaml.safe_dump(loops), encoding="utf-8")
    return Run.load(folder)


def _step_seconds(run: Run) -> float:
    """The median of a run's steps, the first left out."""
    metrics = run.metrics_of(Attempt(1))
    metrics.parent.mkdir()
    ending = run_to_end(
        [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            *run.overrides,
            "+ray_kwargs.ray_init._temp_dir={ray_dir}",
        ],
        log=run.folder / "verl.log",
        environment=run_environment(run, metrics),
        time_limit_s=3600.0,
        on_poll=lambda seconds: None,
    )
    if ending.how != "finished":
        raise SystemExit((run.folder / "verl.log").read_text(encoding="utf-8", errors="replace")[-3000:])
    figures = [json.loads(line)["data"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [data["timing_s/step"] for data in figures if "timing_s/step" in data]
    return statistics.median(steps[1:])


def _keep_again(run: Path, seconds: float) -> None:
    steps = _steps(run)
    count = sum(map(len, steps))
    print(f"{len(steps)} steps, {count / len(steps):.0f} episodes a step, {seconds:.2f} s a step; kept once more:")
    rounds = []
    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="rlenv-keeping-") as folder:
            rounds.append(_kept(Path(folder), steps))
    cpu, wall, worst = (statistics.median(values) for values in zip(*rounds, strict=True))
    print(f"CPU      {1e3 * cpu / count:.3f} ms an episode, {100 * cpu / len(steps) / seconds:.2f} % of a step")
    print(f"waiting  {1e3 * wall / count:.3f} ms an episode, {100 * wall / len(steps) / seconds:.2f} % of a step")
    print(f"longest  {1e3 * worst:.1f} ms for one call")


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
            trainer.append_late(id, fate="trained", why="", staleness=0)
            trainer.append_late(id, advantage=0.5)
            took.append(time.perf_counter() - at)
    loop.close()
    trainer.close()
    return time.process_time() - began, sum(took), max(took)


if __name__ == "__main__":
    sys.exit(main())
