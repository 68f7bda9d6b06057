"""`rlenv sft`: a policy started on supervised rows, by veRL's own trainer."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.cli.console import Console
from rlenv.collect import Manifest
from rlenv.errors import UsageError
from rlenv.models import local_model
from rlenv.runs.folder import RunInfo
from rlenv_train.launch import EXIT_STATUS, Ending, ending_lines, run_to_end
from rlenv_train.progress import driving, plot_png, plot_text
from rlenv_verl.export import versions, whole_checkpoints
from rlenv_verl.run import inputs, lock_folder
from rlenv_verl.sft import SftRun, Step, new_run, read_steps, resumed_run


def lone_variables(store: Path) -> dict[str, str]:
    """The environment variables of a run of one process.

    It meets itself in a file: no port is needed where nobody else is met. veRL's Worker reads the master's address all
    the same (single_controller/base/worker.py), and nothing is bound to it.

    Args:
        store: a file that is not there yet.
    """
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "DIST_INIT_METHOD": f"file://{store}",
    }


_TRAINER = "verl.trainer.sft_trainer"


def main(argv: list[str]) -> int:
    """Train as `argv` says; returns the exit status (0 done, 1 failed, 2 wrong use, 130 interrupted)."""
    return inputs.carried_out("sft", argv, inputs.sft_parser(), _run_sft)


def _run_sft(arguments: argparse.Namespace, console: Console) -> int:
    with ExitStack() as stack:
        run, lock = (_taken_up if arguments.resume is not None else _new_run)(arguments, stack)
        _say_run(run, console)
        if arguments.dry_run:
            text = inputs.command_text(_command(run), _variables(run, run.metrics), cwd=run.cwd)
            left = "nothing was written"
            if arguments.resume is None:  # of a run that is there nothing is changed
                run.save()
                (run.folder / "command.sh").write_text(text + "\n", encoding="utf-8")
                left = f"everything is in {run.folder}"
            console.say(text, "", f"nothing was started; {left}")
            return 0
        if run.machines > 1:
            raise UsageError(
                f"this run is for {run.machines} machines", hint="--dry-run prints the command to start on each of them"
            )
        ending = _train(run, console, lock=lock)
        summary = finish_run(run, ending)
    console.say("", summary.curve, "", *summary.lines)
    if ending.how != "finished":
        _explain_end(ending, run, console)
    return EXIT_STATUS[ending.how]


def _new_run(arguments: argparse.Namespace, stack: ExitStack) -> tuple[SftRun, int | None]:
    if arguments.model is None or arguments.output is None:
        raise UsageError("name the model to start from with --model and the run's folder with -o")
    folder = arguments.output.resolve()
    if (folder / "attempts").exists():
        raise UsageError(
            f"{folder} holds a run already", hint=f"choose another folder, or go on with --resume {folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context(lock_folder(folder, wait_s=0.0))
    if not arguments.dry_run:
        stack.enter_context(driving(folder, RunInfo("sft", command=arguments.command, policy=arguments.model)))
    model = local_model(arguments.model, chat_template=arguments.chat_template, keep=folder / "model")
    run = new_run(arguments, model=model, folder=folder, started_in=os.getcwd())
    return (run if arguments.dry_run else run.begin_attempt(0)), lock


def _taken_up(arguments: argparse.Namespace, stack: ExitStack) -> tuple[SftRun, int | None]:
    inputs.refuse_fixed(inputs.options_of(arguments, inputs.FIXED_BY_AN_SFT_RUN))
    folder = SftRun.load(arguments.resume).folder
    if arguments.dry_run:
        return resumed_run(arguments)[0], None
    lock = stack.enter_context(lock_folder(folder))
    stack.enter_context(driving(folder))
    run, step = resumed_run(arguments)
    return run.begin_attempt(step), lock


def _say_run(run: SftRun, console: Console) -> None:
    console.say(f"run folder  {run.folder}")
    left = f", {run.skipped} longer ones left out" if run.skipped else ""
    passes = run.steps / run.steps_an_epoch
    console.say(
        f"{run.rows} rows{left}, {run.steps} steps of {run.batch}: {passes:.2g} passes"
        + (f", from step {run.attempts[-1].from_step}" if run.attempts and run.attempts[-1].from_step else "")
    )


def _command(run: SftRun) -> list[str]:
    """veRL's trainer by itself for one process, by torchrun for several."""
    if run.machines == run.processes == 1:
        return [sys.executable, "-m", _TRAINER, *run.overrides]
    where = ["--standalone", "--nnodes", "1"]
    if run.machines > 1:
        where = ["--nnodes", str(run.machines), "--node-rank", "$NODE_RANK", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", "$MASTER_ADDR:29500"]  # fmt: skip
    start = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(run.processes)]
    return [*start, "-m", _TRAINER, *run.overrides]


def _variables(run: SftRun, metrics: Path) -> dict[str, str]:
    own = lone_variables(metrics.with_suffix(".store")) if run.machines == run.processes == 1 else {}
    return inputs.trainer_variables(run.folder, metrics, own=own, environment=run.environment)


def _train(run: SftRun, console: Console, *, lock: int | None) -> Ending:
    """Run veRL and tell each step as its figures come."""
    metrics = run.metrics_of(run.attempts[-1])
    told: set[int] = set()
    with console.status("veRL is starting") as status:

        def poll(seconds: float) -> None:
            steps = read_steps(metrics)
            # A step's held-out loss comes behind it, on a line of its own.
            for step in steps if seconds < 0 else steps[:-1]:
                if step.number not in told:
                    told.add(step.number)
                    console.say(_step_line(step, run.steps))
            status.update(f"step {steps[-1].number} of {run.steps}, {seconds:.0f} s" if steps else "veRL is starting")

        metrics.with_suffix(".store").unlink(missing_ok=True)
        ending = run_to_end(
            _command(run),
            log=run.folder / "verl.log",
            environment={**os.environ, **_variables(run, metrics)},
            time_limit_s=run.time_limit_s or float("inf"),
            on_poll=poll,
            cwd=run.cwd if Path(run.cwd).is_dir() else None,
            lock=lock,
        )
        poll(-1.0)
    run.merge_metrics()
    return ending


def loss_curves(steps: Sequence[Step]) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run."""
    curves = {"training loss": [(step.number, step.loss) for step in steps]}
    if held_out := [(step.number, step.val) for step in steps if step.val is not None]:
        curves["held-out loss"] = held_out
    return curves


def without_attempts(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields for its summary."""
    left_out = ("attempts", "overrides", "environment", "command", "state", "ended")
    return {key: value for key, value in values.items() if key not in left_out}


_PACKAGES = ("rlenv", "verl", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Finished:
    """`curve` is the loss as text; `lines` say what is where; `trained` is the policy's folder, None without one."""

    curve: str
    lines: tuple[str, ...]
    trained: Path | None


def finish_run(run: SftRun, ending: Ending) -> Finished:
    """Exports the last whole checkpoint to `trained/`, writes summary.json and curve.png, and the end into run.json."""
    steps = read_steps(run.metrics)
    curves = loss_curves(steps)
    trained, step = _export_policy(run)
    tokens = sum(one.tokens or 0 for one in steps)
    summary = {
        **without_attempts(dataclasses.asdict(run)),
        "folder": str(run.folder),
        "how": ending.how,
        "seconds": round(ending.seconds, 1),
        "steps_done": steps[-1].number if steps else 0,
        "tokens": tokens,
        "loss_first": steps[0].loss if steps else None,
        "loss_last": steps[-1].loss if steps else None,
        "val_loss": next((one.val for one in reversed(steps) if one.val is not None), None),
        "trained": None if trained is None else str(trained),
        "trained_step": step,
        "versions": versions(*_PACKAGES),
    }
    run.end_attempt(ending.how, summary)
    lines = [f"{ending.seconds:.0f} s in all; summary.json, metrics.jsonl and verl.log in {run.folder}"]
    if steps:
        plot_png(curves, run.folder / "curve.png", title=f"{run.folder.name}: loss of the trained tokens")
        lines.insert(
            0, f"loss {steps[0].loss:.4f} at step {steps[0].number}, {steps[-1].loss:.4f} at {steps[-1].number}"
        )
    if trained is not None:
        lines.append(f"trained policy: {trained}")
        lines.append(f"go on with: rlenv train SPEC --model {trained}")
    return Finished(plot_text(curves) if steps else "", tuple(lines), trained)


def _export_policy(run: SftRun) -> tuple[Path | None, int | None]:
    """The policy of the newest whole checkpoint, as a folder of its own."""
    whole = whole_checkpoints(run.checkpoints)
    if not whole:
        return None, None
    newest = whole[-1]
    from rlenv_verl.export.export import Exported, write_policy  # torch and transformers: only where there is something

    def provenance(exported: Exported) -> Mapping[str, Any]:
        return {
            "run": run.folder.name,
            "kind": "sft",
            "step": newest.step,
            "weights": exported.source,
            "dtype": exported.dtype,
            "is_adapter": False,
            "lora": exported.checkpoint.lora,
            "base_model": run.model,
            "seed": run.seed,
            "data": [dataclasses.asdict(Manifest.load(Path(folder))) for folder in run.data],
            "exported_with": versions(*_PACKAGES),
        }

    target = run.folder / "trained"
    shutil.rmtree(target, ignore_errors=True)
    write_policy(newest, target, base=run.model, provenance=provenance)
    if not run.keeps:
        shutil.rmtree(run.checkpoints)  # the same weights once more; nobody asked to go on from them
    return target, newest.step


def _step_line(step: Step, total: int) -> str:
    parts = [f"step {step.number:>3}/{total}", f"loss {step.loss:.4f}"]
    if step.grad_norm is not None:
        parts.append(f"gradient {step.grad_norm:.2f}")
    if step.tokens is not None:
        parts.append(f"{step.tokens:,} tokens")
    if step.val is not None:
        parts.append(f"held-out loss {step.val:.4f}")
    return "  ".join(parts)


def _explain_end(ending: Ending, run: SftRun, console: Console) -> None:
    """Say why a run did not finish, and how to go on with it."""
    log = run.folder / "verl.log"
    console.say(*ending_lines(ending, log, last=lambda: _log_end(log, since=ending.log_from)))
    if run.keeps:
        console.say(f"go on with: rlenv sft --resume {run.folder}")


def _log_end(log: Path, *, since: int) -> Iterator[str]:
    """The end of a log that says why: what torchrun tells of its child's death comes behind the child's own words.

    Earlier attempts wrote above the byte `since`, torchrun's words of their deaths among them.
    """
    lines = log.read_bytes()[since:].decode("utf-8", errors="replace").splitlines()
    ends = [
        index for index, line in enumerate(lines) if "torch/distributed/elastic" in line or "ChildFailedError" in line
    ]
    for line in lines[max(ends[0] - 25, 0) : ends[0]] if ends else lines[-25:]:
        yield "  " + line[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
