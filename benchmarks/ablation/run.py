"""Rules, verify or judge, alone and together, by training: a tiny policy on a CPU, with controls.

    python benchmarks/ablation/run.py [--only NAME ...] [--seeds 0 1] [--steps N] [-o DIR]

Each run is one `rlenv train` of env.yaml with a hard time limit, from the same warm-started policy for all runs of a
seed. They differ in what is paid alone; success is the same verifier's (`correct`, by the gold answer) for all, on the
same held-out tasks. The judge is scripted (judge.py), served on loopback, and wrong about `--noise` of the answers. A
run whose folder holds a finished summary is not run again.

Writes ablation.json, ablation.md and ablation.svg into -o; exit code 1 where a run did not finish.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ablation.judge import scripted_judge
from rlenv.runs.figures.report import Row, interval_chart
from rlenv.testing.endpoint import FakeEndpoint

ROOT: Final = Path(__file__).resolve().parents[2]
SPEC: Final = Path(__file__).with_name("env.yaml")
PAID: Final[Mapping[str, tuple[str, ...]]] = {
    "rule": ("rule",),
    "verify": ("verify",),
    "judge": ("judge",),
    "together": ("rule", "verify", "judge"),
    "constant": ("constant",),
    "chance": ("chance",),
}
"""What each run pays, each term with the same share of a reward of at most 1; the last two are controls."""
_URL: Final = "ABLATION_JUDGE_URL"


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PAID, default=list(PAID), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16, metavar="TASKS", help="tasks a step, with 8 episodes each")
    parser.add_argument("--held-out", type=int, default=100, metavar="TASKS")
    parser.add_argument("--warm-steps", type=int, default=460, help="of the warm start; fewer leave a worse policy")
    parser.add_argument("--noise", type=float, default=0.2, metavar="SHARE", help="answers that the judge gets wrong")
    parser.add_argument("--time-limit", type=float, default=180.0, metavar="SECONDS", help="of each run")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "runs" / "ablation", metavar="DIR")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    asyncio.run(_all(arguments))
    found = {
        (name, seed): _summary(arguments.output / f"{name}-{seed}", arguments.steps)
        for name in arguments.only
        for seed in arguments.seeds
    }
    _write(found, arguments)
    return 0 if all(summary is not None for summary in found.values()) else 1


async def _all(arguments: argparse.Namespace) -> None:
    async with FakeEndpoint(scripted_judge(arguments.noise)) as server:
        os.environ[_URL] = server.base_url
        for seed in arguments.seeds:  # the judge answers on this loop while the others wait for a thread
            policy = await asyncio.to_thread(_policy, arguments, seed)
            for name in arguments.only:
                folder = arguments.output / f"{name}-{seed}"
                if _summary(folder, arguments.steps) is None:
                    await asyncio.to_thread(_train, name, folder, arguments, seed=seed, policy=policy)
                _told(name, seed, _summary(folder, arguments.steps))


def _policy(arguments: argparse.Namespace, seed: int) -> Path:
    """The policy that all runs of a seed start from."""
    from rlenv.episodes.environment import load
    from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

    folder: Path = arguments.output / f"policy-{seed}"
    if not (folder / "config.json").is_file():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = WarmupSettings(steps=arguments.warm_steps)
            report = make_tiny_policy([load(ROOT / "specs" / "arithmetic.yaml")], folder, seed=seed, settings=settings)
        print(f"seed {seed}: warm start of {report.seconds:.0f} s", file=sys.stderr, flush=True)
    return folder


def _train(name: str, folder: Path, arguments: argparse.Namespace, *, seed: int, policy: Path) -> None:
    """One run by the command line, in its folder; its output goes to `folder.log`."""
    command = [sys.executable, "-m", "rlenv", "train", str(SPEC), "--model", str(policy), "--seed", str(seed)]
    command += ["--steps", str(arguments.steps), "--time-limit", str(arguments.time_limit), "-o", str(folder)]
    command += ["--validation-tasks", str(arguments.held_out), f"trainer.test_freq={arguments.steps}"]
    command += [f"data.train_batch_size={arguments.batch}"]
    command += [f"actor_rollout_ref.actor.ppo_mini_batch_size={arguments.batch}"]
    for term in PAID[name]:
        command += ["--set", f"rewards.{term}.weight={1 / len(PAID[name])!r}"]
    with folder.with_suffix(".log").open("wb") as log:
        # The command keeps its own limit; this one bounds what it does before and after veRL.
        limit = 1.5 * arguments.time_limit
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            log.write(f"\nended after {limit:.0f} s\n".encode())


def _summary(folder: Path, steps: int) -> dict[str, Any] | None:
    """What a run left that measured held-out success at its last step, also where the limit met it behind that."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rates = found["held_out_success"]
    return found if rates and rates[-1]["step"] >= steps else None


def _told(name: str, seed: int, found: Mapping[str, Any] | None) -> None:
    said = "did not finish" if found is None else _rates(found)
    print(f"{name}, seed {seed}: {said}", file=sys.stderr, flush=True)


def _rates(found: Mapping[str, Any]) -> str:
    first, last = found["held_out_success"][0], found["held_out_success"][-1]
    return f"{first['greedy']:.3f} ({first['sampled']:.3f}) → {last['greedy']:.3f} ({last['sampled']:.3f})"


def _write(found: Mapping[tuple[str, int], Mapping[str, Any] | None], arguments: argparse.Namespace) -> None:
    lines = [
        "| paid | seed | held-out success, greedy (at temperature 1) | seconds |",
        "|---|---|---|---|",
    ]
    for (name, seed), summary in found.items():
        figures = ("did not finish", "") if summary is None else (_rates(summary), f"{summary['seconds']:.0f}")
        lines.append(f"| {name} | {seed} | {figures[0]} | {figures[1]} |")
    lines += ["", _machine(found, arguments), ""]
    text = "\n".join(lines)
    print(text)
    (arguments.output / "ablation.md").write_text(text, encoding="utf-8")
    figures_json = {f"{name}-{seed}": summary for (name, seed), summary in found.items()}
    (arguments.output / "ablation.json").write_text(json.dumps(figures_json, indent=1), encoding="utf-8")
    chart = _chart(found)
    if chart:
        (arguments.output / "ablation.svg").write_text(chart, encoding="utf-8")


def _chart(found: Mapping[tuple[str, int], Mapping[str, Any] | None]) -> str:
    """Held-out success at temperature 1 at the end, the mean of the seeds with their range."""
    rows = []
    for paid in dict.fromkeys(name for name, _ in found):
        runs = [summary for (name, _), summary in found.items() if name == paid and summary is not None]
        rates = [run["held_out_success"][-1]["sampled"] for run in runs]
        middle = sum(rates) / len(rates) if rates else None
        rows.append(Row(f"{paid} ({len(rates)} seeds)", middle, min(rates, default=None), max(rates, default=None)))
    return interval_chart("Held-out success at temperature 1, by what was paid", rows)


def _machine(found: Mapping[Any, Mapping[str, Any] | None], arguments: argparse.Namespace) -> str:
    versions: dict[str, str] = next((summary["versions"] for summary in found.values() if summary is not None), {})
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    sizes = f"{arguments.steps} steps of {arguments.batch} tasks × 8 episodes, {arguments.held_out} held-out tasks"
    return (
        f"{date.today()}; {sizes}, judge wrong about {arguments.noise:.0%}; {platform.machine()}, {os.cpu_count()} "
        f"cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {listed}"
    )


if __name__ == "__main__":
    sys.exit(main())
