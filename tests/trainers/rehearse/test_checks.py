"""A rehearsal's checks, on the accounts of a run in order, and with one thing wrong at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.runs.folder import Attempt
from rlenv.runs.schema import Facts
from rlenv_verl.rehearse import Evidence, check_run
from rlenv_verl.run import Run
from tests.support.kept import keep
from tests.trainers.runs import unstarted

BATCH, GROUP, PROMPT, RESPONSE = 2, 2, 8, 16
RANKS = 2  # each of which trains and has a rollout server
PARALLEL = ("tensor_model", "data", "pipeline_model")
CONFIG: dict[str, Any] = {
    "data": {"train_batch_size": BATCH, "max_prompt_length": PROMPT, "max_response_length": RESPONSE},
    "actor_rollout_ref": {"rollout": {"n": GROUP} | dict.fromkeys((f"{kind}_parallel_size" for kind in PARALLEL), 1)},
    "trainer": {"val_before_train": True, "test_freq": 20, "n_gpus_per_node": RANKS, "nnodes": 1},
}
FIGURES = ("actor/grad_norm", "actor/pg_loss", "actor/lr", "critic/score/mean", "critic/advantages/max",
           "response_length/max", "prompt_length/max", "timing_s/gen", "timing_s/adv", "timing_s/update_actor",
           "timing_s/step", "rlenv/toy/episodes")  # fmt: skip


@dataclass
class Left:
    """What a run of one step and one more left, as plain values that a test may spoil."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[dict[str, Any]] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[int, dict[str, Any]] = field(default_factory=dict)
    trained: list[dict[str, Any]] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    from_step: int = 1


def in_order() -> Left:
    left = Left(digests={1: "b", 2: "c"}, rows={"train.parquet": (9, 9), "validation.parquet": (1, 1)})
    # Each server of the first attempt, and then each of the second, which begins with the checkpoint's.
    for versions in ((0, "a"), (1, "b")), ((1, "b"), (2, "c")):
        for _ in range(RANKS):
            left.weights += [{"version": version, "digest": digest} for version, digest in versions]
    for step in (1, 2):
        for place in range(BATCH):
            task = 10 * step + place
            for session in range(GROUP):
                masked = session == 1 and place == 1
                entry = {"step": step, "split": "train", "task": task, "session": session, "row": 0, "prompt": PROMPT,
                         "response": RESPONSE, "trained": 0 if masked else 9, "masked": masked, "validation": False,
                         "ended": "aborted" if masked else "answer", "kind": "aborted" if masked else "full",
                         "reward": float(session), "calls": 1, "checksum": 100 * task + session}  # fmt: skip
                left.samples.append(entry)
                row = {name: entry[name] for name in ("step", "prompt", "response", "trained", "checksum")}
                left.arrived.append({**row, "key": f"u{task}_{session}_0", "is_whole": True})
            left.trained.append({"step": step, "spec": "toy", "split": "train", "task": task, "episodes": GROUP,
                                 "valid": GROUP - place})  # fmt: skip
        left.figures[step] = dict.fromkeys(FIGURES, 1.0) | {"val-aux/toy/test/greedy/success/mean@1": 0.5}
        left.figures[step] |= {"prompt_length/mean": float(PROMPT), "response_length/mean": float(RESPONSE)}
    left.figures[0] = {"val-aux/toy/test/greedy/success/mean@1": 0.5}
    left.samples += [
        {**left.samples[0], "step": step, "split": "test", "validation": True, "task": 0} for step in (0, 1, 2)
    ]
    return left


def written(folder: Path, left: Left) -> Run:
    """The run's folder: checkpoints as veRL lays them out, and a held-out episode a validation."""
    attempts = (Attempt(1, 0), Attempt(2, left.from_step))
    run = unstarted(folder, model="model", attempts=attempts)
    for step in (0, 1, 2):
        keep(run.folder, 1, facts=Facts(step=step, mode="greedy"))
    (run.folder / "config.yaml").write_text(json.dumps({"actor_rollout_ref": {"model": {"path": "model"}}}))
    for step in (1, 2):
        actor = run.checkpoints / f"global_step_{step}" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "huggingface" / "config.json").write_text("{}")
        (actor / "fsdp_config.json").write_text(json.dumps({"world_size": RANKS}))
        for part in ("model", "optim", "extra_state"):
            for rank in range(RANKS):
                (actor / f"{part}_world_size_{RANKS}_rank_{rank}.pt").write_bytes(b"")
        (actor.parent / "data.pt").write_bytes(b"")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    return run


def failed(folder: Path, left: Left, change: Callable[[Run], None] = lambda run: None) -> list[str]:
    run = written(folder, left)
    change(run)
    evidence = Evidence(run, CONFIG, 1, left.samples, left.arrived, left.weights, left.figures, left.trained)
    return [check.name for check in check_run(evidence, digests=left.digests, rows=left.rows) if not check.is_ok]


def test_a_run_in_order_passes_every_check(tmp_path: Path) -> None:
    assert failed(tmp_path, in_order()) == []


def _spoilt(**changes: Any) -> Callable[[Left], None]:
    """Changes a field of the first sample, and of what arrived of it."""

    def spoil(left: Left) -> None:
        left.samples[0].update(changes)
        left.arrived[0].update({name: value for name, value in changes.items() if name in left.arrived[0]})

    return spoil


PLANTED: dict[str, tuple[Callable[[Left], Any], set[str]]] = {
    "a row that never arrived": (lambda left: left.arrived.pop(), {"shipping"}),
    "a row that arrived twice": (lambda left: left.arrived.append(left.arrived[0]), {"shipping"}),
    "ids that changed on the way": (lambda left: left.arrived[0].update(checksum=1), {"shipping"}),
    "positions that do not count on": (lambda left: left.arrived[0].update(is_whole=False), {"shipping"}),
    "a failed episode with trained tokens": (lambda left: _masked(left).update(trained=3), {"masks", "shipping"}),
    "an episode that failed unasked": (_spoilt(masked=True, trained=0, ended="crash"),
                                       {"episodes", "each episode trained once"}),
    "an episode without a trained token": (_spoilt(trained=0), {"masks"}),
    "a response beyond its limit": (_spoilt(response=RESPONSE + 1), {"lengths", "veRL's lengths"}),
    "an episode that is missing": (lambda left: (left.samples.pop(0), left.arrived.pop(0)),
                                   {"batch", "each episode trained once"}),
    "a task that is trained twice": (lambda left: left.trained.append(left.trained[0]), {"each episode trained once"}),
    "a group of one": (lambda left: left.trained[0].update(episodes=1), {"each episode trained once"}),
    "figures of other episodes": (lambda left: left.figures[1].update({"response_length/mean": 9.0}),
                                  {"veRL's lengths"}),
    "no gradient": (lambda left: left.figures[2].update({"actor/grad_norm": 0.0}), {"signal"}),
    "a loss that is no number": (lambda left: left.figures[2].update({"actor/pg_loss": float("nan")}), {"metrics"}),
    "a figure that is missing": (lambda left: left.figures[1].pop("critic/advantages/max"), {"metrics"}),
    "weights that stay": (lambda left: [entry.update(digest="b") for entry in left.weights if entry["version"] == 2],
                          {"weights"}),
    "a second server with other weights": (lambda left: left.weights[0].update(digest="z"), {"weights"}),
    "a second server with other weights behind the last step": (lambda left: left.weights[5].update(digest="b"),
                                                                {"weights"}),
    "a second server that was sent none": (lambda left: left.weights.pop(), {"weights"}),
    "a second server that was sent none of the checkpoint's": (lambda left: left.weights.pop(4), {"weights"}),
    "steps of which no weights were sent": (lambda left: left.weights.clear(), {"weights"}),
    "a sampler with other weights": (lambda left: left.digests.update({2: "z"}), {"weights"}),
    "a checkpoint that does not load": (lambda left: left.digests.pop(2), {"checkpoints"}),
    "data that begins again": (lambda left: [entry.update(task=entry["task"] % 10) for entry in left.trained],
                               {"resume"}),
    "a run that begins again": (lambda left: setattr(left, "from_step", 0), {"resume"}),
    "a step that was never logged": (lambda left: left.figures.pop(2), {"steps", "signal", "metrics", "validation",
                                                                        "veRL's lengths"}),
    "a data file that was cut": (lambda left: left.rows.update({"train.parquet": (4, 9)}), {"data files"}),
    "a validation that did not happen": (lambda left: left.figures.pop(0), {"validation"}),
}  # fmt: skip


def _masked(left: Left) -> dict[str, Any]:
    return next(entry for entry in left.samples if entry["masked"])


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_found_and_named(name: str, tmp_path: Path) -> None:
    plant, expected = PLANTED[name]
    left = copy.deepcopy(in_order())
    plant(left)
    found = set(failed(tmp_path, left))
    assert expected <= found
    assert len(found) <= len(expected) + 2  # and not everything


FILES: dict[str, tuple[str, str]] = {
    "the optimiser": ("checkpoints/global_step_1/actor/optim_world_size_2_rank_0.pt", "checkpoints"),
    "the optimiser of another rank": ("checkpoints/global_step_1/actor/optim_world_size_2_rank_1.pt", "checkpoints"),
    "the random state of another rank": ("checkpoints/global_step_2/actor/extra_state_world_size_2_rank_1.pt",
                                         "checkpoints"),
    "the place in the data": ("checkpoints/global_step_2/data.pt", "checkpoints"),
    "a shard of the weights": ("checkpoints/global_step_2/actor/model_world_size_2_rank_0.pt", "checkpoints"),
    "held-out episodes": ("episodes/*.parquet", "validation"),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(FILES))
def test_a_file_that_is_missing_is_found(what: str, tmp_path: Path) -> None:
    path, check = FILES[what]
    assert failed(tmp_path, in_order(), lambda run: next(run.folder.glob(path)).unlink()) == [check]


def test_an_empty_run_fails_and_does_not_break(tmp_path: Path) -> None:
    run = replace(written(tmp_path, in_order()), attempts=())
    evidence = Evidence.of(run, CONFIG, accounts=tmp_path / "nothing", before=1)
    checks = check_run(evidence, digests={}, rows={})
    assert not any(check.is_ok for check in checks if check.name not in ("veRL's lengths",))
