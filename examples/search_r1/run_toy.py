"""The whole recipe at toy size on a CPU: data, retrieval server, checks, a few training steps, success on seven sets.

    python examples/search_r1/run_toy.py --out runs/search-r1-toy

Every part has a time limit, and whatever it started it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import toy

HERE = Path(__file__).parent
SPEC = HERE / "env.yaml"
RLENV = (sys.executable, "-m", "rlenv")


def say(text: str) -> None:
    """One line of the run's own."""
    sys.stdout.write(f"── {text}\n")
    sys.stdout.flush()


def run(*command: str, limit_s: float) -> None:
    """Runs a command to its end.

    Raises:
        SystemExit: it failed, or was not done after `limit_s` seconds and has been ended.
    """
    shown = " ".join(command).replace(" ".join(RLENV), "rlenv")
    say(shown)
    process = subprocess.Popen(command)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"stopped after {limit_s:.0f} s: {shown}") from None
    finally:
        # SIGINT first: `rlenv train` then ends Ray's processes before it goes.
        if process.poll() is None:
            process.send_signal(2)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if code:
        raise SystemExit(f"exit status {code}: {shown}")


@contextmanager
def serving(corpus: Path, *, index: Path, limit_s: float) -> Iterator[str]:
    """A retrieval server over `corpus` on a free port; gives its address and ends it."""
    command = (*RLENV, "serve-search", str(corpus), "--port", "0", "--index", str(index))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], limit_s)
        line = process.stdout.readline() if ready else ""
        if " at " not in line:
            raise SystemExit(f"the retrieval server did not start within {limit_s:.0f} s")
        say(line.strip())
        yield line.rpartition(" at ")[2].strip()
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def train(out: Path, policy: Path, settings: Sequence[str], *, steps: int, limit_s: float) -> dict[str, float]:
    """A few GRPO steps on veRL; returns the held-out success by label at the last validation."""
    sizes = (
        "data.train_batch_size=4",
        "data.max_response_length=768",
        "run.turn_tokens=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        f"trainer.test_freq={steps}",
    )
    run(
        *RLENV, "train", str(SPEC), "--preset", "cpu", "--model", str(policy), "--steps", str(steps),
        "--validation-tasks", "14", "--time-limit", str(int(limit_s)), "-o", str(out / "run"), *settings, *sizes,
        limit_s=limit_s + 60,
    )  # fmt: skip
    summary = json.loads((out / "run" / "summary.json").read_text(encoding="utf-8"))
    last = dict(summary["held_out_success"][-1])
    last.pop("step")
    return last


def main() -> None:
    """Everything in turn; exit status 1 where a part fails."""
    parser = argparse.ArgumentParser(description="Run the recipe of Search-R1 at toy size on a CPU.")
    parser.add_argument("--out", type=Path, default=Path("runs/search-r1-toy"), help="a new folder")
    parser.add_argument("--steps", type=int, default=2, help="training steps")
    parser.add_argument("--policy", type=Path, help="a policy that toy_policy.py made before; otherwise one is made")
    parser.add_argument("--no-train", action="store_true", help="stop before the policy is made: no veRL is needed")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="of the training run")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    if (out / "run").exists():
        raise SystemExit(f"{out} holds a run already; choose another folder with --out")
    begun = time.monotonic()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[1:], os.environ.get("PYTHONPATH", "")]))
    toy.write(out / "data")
    with serving(out / "data" / "corpus.jsonl", index=out / "index", limit_s=60) as url:
        settings = ("--set", f"vars.data={out / 'data'}", "--set", f"vars.retriever={url}")
        run(*RLENV, "validate", str(SPEC), *settings, limit_s=60)
        run(*RLENV, "eval", str(SPEC), "--policy", "oracle", "--min-success", "1", *settings, limit_s=120)
        run(*RLENV, "eval", str(SPEC), "--policy", "random", "--max-success", "0.1", *settings, limit_s=120)
        if not given.no_train:
            policy: Path = given.policy or out / "policy"
            if given.policy is None:
                run(sys.executable, str(HERE / "toy_policy.py"), str(policy), *settings, limit_s=300)
            figures = train(out, policy, settings, steps=given.steps, limit_s=given.limit)
            missing = [name for name in toy.SETS if f"greedy/{name}" not in figures]
            if missing:
                raise SystemExit(f"no held-out success for {', '.join(missing)}; found {', '.join(figures)}")
            for label, rate in figures.items():
                say(f"held-out success, {label}: {rate:.3f}")
    say(f"done in {time.monotonic() - begun:.0f} s; everything is in {out}")


if __name__ == "__main__":
    main()
