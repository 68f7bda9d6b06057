"""What `make demo` runs: validate, evaluate, train through veRL, evaluate what was trained, show where it all is."""

from __future__ import annotations

import argparse
import itertools
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = Path("specs/arithmetic.yaml")


def main() -> int:
    """Runs the steps in order; stops at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    out = free(args.out)
    if out != args.out:
        sys.stdout.write(f"{args.out} is there already; this run goes to {out}\n")
    steps: list[tuple[str, list[object]]] = [
        ("The environment is one YAML file", ["validate", SPEC]),
        ("Its scripted oracle earns the maximum", ["eval", SPEC, "--policy", "oracle", "--min-success", "1"]),
        (
            "A random policy earns next to nothing",
            ["eval", SPEC, "--policy", "random", "-n", "200", "--max-success", "0.05"],
        ),
        (
            "Train a tiny policy on the CPU, through unmodified veRL",
            ["train", SPEC, "--preset", "cpu", "--model", "tiny", "--seed", args.seed, "-o", out],
        ),
        ("Greedy, on held-out tasks: before training", _evaluate(out / "model", out / "eval-before")),
        ("Greedy, on held-out tasks: after training", _evaluate(out / "trained", out / "eval-after")),
    ]
    begun = time.monotonic()
    for number, (title, command) in enumerate(steps, 1):
        words = [str(word) for word in command]
        sys.stdout.write(f"\n\033[1m{number}. {title}\033[0m\n$ rlenv {shlex.join(words)}\n")
        sys.stdout.flush()
        done = subprocess.run([sys.executable, "-m", "rlenv", *words], cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.stderr.write(f"step {number} failed with exit code {done.returncode}\n")
            return done.returncode
    minutes = (time.monotonic() - begun) / 60
    sys.stdout.write(
        f"\nDone in {minutes:.1f} minutes. Where everything is:\n"
        f"  {SPEC}        the environment\n"
        f"  {out}/curve.png              held-out success over training\n"
        f"  {out}/summary.json           its figures\n"
        f"  {out}/trained                the trained policy, a Hugging Face folder\n"
        f"  {out}/eval-after             its trajectories on held-out tasks\n"
    )
    return 0


def free(folder: Path) -> Path:
    """The folder, or `NAME-2`, `NAME-3`, … beside it where it is there: a demo may be run again."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in itertools.count(1))
    return next(one for one in names if not (ROOT / one).exists())


def _evaluate(model: Path, out: Path) -> list[object]:
    policy = ["--policy", f"hf:{model}", "--temperature", "0"]
    return ["eval", SPEC, *policy, "-n", "500", "--concurrency", "250", "-o", out]


if __name__ == "__main__":
    sys.exit(main())
