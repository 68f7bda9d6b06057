"""A rehearsal of a training run: a preset's whole data flow at its full batch shape, on CPUs, with a tiny model.

`rlenv train --rehearse SPEC --preset gpu` writes the files of a run, starts unmodified veRL under Ray with scripted
tokens of the lengths that the preset allows, trains, saves, starts again from the checkpoint, and checks what came of
it. What is replaced stands in `overlay.yaml` and is printed key by key; everything else is the preset's own. The checks
of a rehearsal stand here by name, each from the files that the run left.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlenv_train.keeping import KeptEpisodes
from rlenv_train.progress import entries_of
from rlenv_verl.export import find_checkpoints
from rlenv_verl.run import Run

SCRIPT_KEY = "rlenv_rehearsal"
"""The sampling parameter that carries an answer to the rehearsal's server."""

Kind = Literal["full", "limit", "turns", "malformed", "short", "aborted"]

KINDS: dict[Kind, str] = {
    "full": "the oracle's actions behind filler, the last ending at the limit of the response",
    "limit": "one action without an end, cut at the limit of the response",
    "turns": "the oracle's actions behind filler, each as long as a turn may be",
    "malformed": "a call that breaks off, then as `full`",
    "short": "the oracle's actions as they are",
    "aborted": "a generation that the server aborts; the sample is masked",
}

_RARE: tuple[Kind, ...] = ("short", "aborted", "turns", "malformed")


def kind_of(session: int, *, group: int, task: int, step: int) -> Kind:
    """The kind of one of a prompt's `group` samples.

    Of a group of n, the first n - n // 5 (at least one less than n) are `full` and `limit` by turns, so that each
    group has episodes that succeed and that do not, nearly all as long as they may be. The rest go round the rare
    kinds, by task and step. Single samples go round all kinds.
    """
    rare = max(1, group // 5)
    if group == 1:
        return ("full", "limit", "full", "limit", *_RARE)[(task + step) % (4 + len(_RARE))]
    if session < group - rare:
        return "full" if session % 2 == 0 else "limit"
    return _RARE[(task + step + session) % len(_RARE)]


@dataclass(frozen=True, slots=True)
class Filler:
    """Draws tokens that stand for what a policy would think: any of `ids`, whose text is letters alone."""

    ids: Sequence[int]

    def draw(self, count: int, rng: random.Random) -> list[int]:
        """A list of `count` filler tokens, drawn at random."""
        return rng.choices(self.ids, k=count) if count > 0 else []


def pad_action(
    action: Sequence[int], kind: Kind, *, most: int, is_last: bool, filler: Filler, rng: random.Random
) -> list[int]:
    """An action behind as much filler as its kind wants; never longer than `most` tokens.

    Args:
        action: the ids of the action, its end mark included; cut at `most` where it is longer.
    """
    if kind == "limit":
        return filler.draw(most, rng)
    if kind in ("short", "aborted"):
        return list(action[:most])
    # What is left has to hold the result and the actions that follow.
    wanted = most if is_last or kind == "turns" else most // 2
    return [*filler.draw(wanted - len(action), rng), *action][:most]


_NEEDED = (
    *"actor/grad_norm actor/pg_loss actor/lr critic/score/mean critic/advantages/max response_length/max".split(),
    *"prompt_length/max timing_s/gen timing_s/adv timing_s/update_actor timing_s/step".split(),
)
_PARTS = ("optim", "model", "extra_state")  # of a checkpoint, for every rank


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `detail` says what was found, and where it failed what was expected."""

    name: str
    is_ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The files that a rehearsal left, and those that it should have left.

    `samples` and `arrived` are the rows that the agent loops handed over and those that the trainer was handed;
    `weights` the versions that the rollout servers got. `before` are the steps of the first attempt.
    """

    run: Run
    config: Mapping[str, Any]
    before: int
    samples: Sequence[Mapping[str, Any]]
    arrived: Sequence[Mapping[str, Any]]
    weights: Sequence[Mapping[str, Any]]
    figures: Mapping[int, Mapping[str, Any]]
    trained: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, run: Run, config: Mapping[str, Any], *, accounts: Path, before: int) -> Evidence:
        """As it stands in the run's folder, and in the folder of its processes' accounts."""
        figures: dict[int, dict[str, Any]] = {}
        for entry in entries_of(run.metrics):
            figures.setdefault(int(entry["step"]), {}).update(entry["data"])
        return cls(
            run,
            config,
            before,
            samples=_lines(sorted(accounts.glob("samples.*.jsonl"))),
            arrived=entries_of(accounts / "arrived.jsonl"),
            weights=_lines(sorted(accounts.glob("weights.*.jsonl"), key=lambda path: path.stat().st_mtime_ns)),
            figures=figures,
            trained=entries_of(run.trained),
        )

    @property
    def steps(self) -> range:
        """The steps that both attempts train."""
        return range(1, self.before + 2)

    @property
    def batch(self) -> int:
        """Prompts of a step."""
        return int(self.config["data"]["train_batch_size"])

    @property
    def group(self) -> int:
        """Samples of a prompt."""
        return int(self.config["actor_rollout_ref"]["rollout"]["n"])

    @property
    def samplers(self) -> int:
        """Rollout servers of an attempt, each of which is sent all weights."""
        trainer, rollout = self.config["trainer"], self.config["actor_rollout_ref"]["rollout"]
        each = [int(rollout[f"{kind}_parallel_size"]) for kind in ("tensor_model", "data", "pipeline_model")]
        return int(trainer["n_gpus_per_node"]) * int(trainer["nnodes"]) // math.prod(each)

    def of_step(self, step: int) -> list[Mapping[str, Any]]:
        """The training rows that the loops handed over for a step."""
        return [entry for entry in self.samples if not entry["validation"] and entry["step"] == step]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The training rows of all steps."""
        return [entry for step in self.steps for entry in self.of_step(step)]


def _lines(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [entry for path in paths for entry in entries_of(path)]


def check_run(evidence: Evidence, *, digests: Mapping[int, str], rows: Mapping[str, tuple[int, int]]) -> list[Check]:
    """All checks of a rehearsal that ended.

    Args:
        digests: of the weights in each checkpoint that loads, by step.
        rows: by the name of a data file, the rows that it has and those that it should have.
    """
    return [
        _check_data(rows),
        _check_steps(evidence),
        _check_batches(evidence),
        _check_rows(evidence),
        _check_lengths(evidence),
        _check_episodes(evidence),
        _check_masks(evidence),
        _check_figures(evidence),
        _check_groups(evidence),
        _check_signal(evidence),
        _check_metrics(evidence),
        _check_validation(evidence),
        _check_checkpoints(evidence, digests),
        _check_weights(evidence, digests),
        _check_resume(evidence),
    ]


def _check_data(rows: Mapping[str, tuple[int, int]]) -> Check:
    wrong = [f"{name} has {has:,} rows, not {wanted:,}" for name, (has, wanted) in rows.items() if has != wanted]
    told = ", ".join(f"{name} {has:,} rows" for name, (has, _) in rows.items())
    return Check("data files", not wrong and bool(rows), "; ".join(wrong) or told)


def _check_steps(evidence: Evidence) -> Check:
    logged = [step for step, data in sorted(evidence.figures.items()) if "timing_s/step" in data]
    wanted = list(evidence.steps)
    return Check("steps", logged == wanted, f"trained {logged}, expected {wanted}")


def _check_batches(evidence: Evidence) -> Check:
    wanted = evidence.batch * evidence.group
    found = {step: sum(entry["row"] == 0 for entry in evidence.of_step(step)) for step in evidence.steps}
    detail = f"{evidence.batch:,} prompts x {evidence.group} = {wanted:,} episodes; by step {list(found.values())}"
    return Check("batch", all(count == wanted for count in found.values()), detail)


def _check_rows(evidence: Evidence) -> Check:
    """Ids and masks that left the loops are those that the trainer was handed, each once."""
    keys = ("step", "prompt", "response", "trained", "checksum")
    sent, got = (
        Counter(tuple(entry[key] for key in keys) for entry in some) for some in (evidence.rows, evidence.arrived)
    )
    torn = sum(not entry["is_whole"] for entry in evidence.arrived)
    tokens = sum((entry["prompt"] + entry["response"]) for entry in evidence.arrived)
    lost, strange = (sent - got).total(), (got - sent).total()
    detail = f"{got.total():,} rows and {tokens:,} tokens arrived as they were sent"
    if lost or strange or torn:
        detail = f"{lost} rows did not arrive, {strange} arrived that nobody sent, {torn} are torn"
    return Check("shipping", bool(sent) and not (lost or strange or torn), detail)


def _check_lengths(evidence: Evidence) -> Check:
    data = evidence.config["data"]
    most_prompt, most_response = int(data["max_prompt_length"]), int(data["max_response_length"])
    rows = evidence.rows
    if not rows:
        return Check("lengths", False, "no episode was handed over")
    prompt, response = max(entry["prompt"] for entry in rows), max(entry["response"] for entry in rows)
    full = sum(entry["response"] == most_response for entry in rows)
    mean = sum(entry["prompt"] + entry["response"] for entry in rows) / len(rows)
    detail = (
        f"longest prompt {prompt:,} of {most_prompt:,}, longest response {response:,} of {most_response:,}"
        f" ({full:,} of {len(rows):,} rows), {mean:,.0f} tokens a row"
    )
    # One row of several may be longer than a first prompt (run.history=rows); together they stay within both.
    is_within = all(entry["prompt"] + entry["response"] <= most_prompt + most_response for entry in rows)
    return Check("lengths", is_within and response == most_response, detail)


def _check_masks(evidence: Evidence) -> Check:
    rows = evidence.rows
    masked = [entry for entry in rows if entry["masked"]]
    wrong = sum(entry["trained"] > 0 for entry in masked)
    empty = sum(entry["trained"] == 0 for entry in rows if not entry["masked"])
    trained, all_tokens = sum(entry["trained"] for entry in rows), sum(entry["response"] for entry in rows)
    detail = f"{len(masked):,} aborted episodes are masked; {trained:,} of {all_tokens:,} response tokens are trained"
    if wrong or empty:
        detail = f"{wrong} failed episodes have trained tokens, {empty} others have none"
    # Groups of one have no kind to spare for it.
    is_shown = bool(masked) or evidence.batch * evidence.group < len(KINDS)
    return Check("masks", bool(rows) and is_shown and not (wrong or empty), detail)


def _check_episodes(evidence: Evidence) -> Check:
    """No episode failed but those that the script lets fail; tools were called."""
    rows = [entry for entry in evidence.rows if entry["row"] == 0]
    failed = Counter(entry["ended"] for entry in rows if entry["masked"] and entry["kind"] != "aborted")
    kinds = Counter(entry["kind"] for entry in rows)
    calls = sum(entry["calls"] for entry in rows)
    detail = f"{', '.join(f'{count:,} {kind}' for kind, count in sorted(kinds.items()))}; {calls:,} calls of tools"
    if failed:
        told = ", ".join(f"{count:,} {reason}" for reason, count in failed.most_common(3))
        detail = f"failed unasked: {told} (rlenv view --failed)"
    return Check("episodes", bool(rows) and not failed, detail)


def _check_figures(evidence: Evidence) -> Check:
    """veRL's own figures of a batch are those of the episodes that were handed over."""
    wrong = []
    for step in evidence.steps:
        rows, data = evidence.of_step(step), evidence.figures.get(step, {})
        if not rows:
            wrong.append(f"step {step} has no episodes")
            continue
        for part in ("prompt", "response"):
            own = sum(entry[part] for entry in rows) / len(rows)
            told = data.get(f"{part}_length/mean")
            if not isinstance(told, int | float) or not math.isclose(told, own, rel_tol=1e-4):
                wrong.append(f"step {step}: {part}_length/mean is {told}, the episodes' {own:.2f}")
    return Check("veRL's lengths", not wrong, "; ".join(wrong[:3]) or "its means are those of the episodes")


def _check_groups(evidence: Evidence) -> Check:
    groups = Counter((entry["step"], entry["spec"], entry["split"], entry["task"]) for entry in evidence.trained)
    steps = Counter(entry["step"] for entry in evidence.trained)
    wrong = [f"step {step}: {steps[step]} groups" for step in evidence.steps if steps[step] != evidence.batch]
    wrong += [f"task {key[3]} twice in step {key[0]}" for key, count in groups.items() if count > 1]
    wrong += [
        f"task {entry['task']} in step {entry['step']}: {entry['episodes']} episodes"
        for entry in evidence.trained
        if entry["episodes"] != evidence.group
    ]
    valid = sum(entry["valid"] for entry in evidence.trained)
    unmasked = sum(not entry["masked"] and entry["row"] == 0 for entry in evidence.rows)
    if valid != unmasked:
        wrong.append(f"{valid} episodes count as valid, {unmasked} are not masked")
    detail = f"{len(groups):,} groups of {evidence.group}, each episode once, {valid:,} of them valid"
    return Check("each episode trained once", bool(groups) and not wrong, "; ".join(wrong[:3]) or detail)


def _check_signal(evidence: Evidence) -> Check:
    """Groups have something to compare, and the update moved along a gradient."""
    groups: dict[tuple[int, str, int], set[float]] = {}
    for entry in (entry for entry in evidence.rows if not entry["masked"]):
        groups.setdefault((entry["step"], entry["split"], entry["task"]), set()).add(round(entry["reward"] or 0.0, 6))
    apart = sum(len(rewards) > 1 for rewards in groups.values())
    norms = [evidence.figures.get(step, {}).get("actor/grad_norm") for step in evidence.steps]
    moved = all(isinstance(norm, int | float) and math.isfinite(norm) and norm > 0 for norm in norms)
    shown = ", ".join("none" if norm is None else f"{norm:.3g}" for norm in norms)
    detail = f"{apart:,} of {len(groups):,} groups differ in their rewards; gradient norms {shown}"
    return Check("signal", moved and (apart > 0 or evidence.group == 1), detail)


def _check_metrics(evidence: Evidence) -> Check:
    wrong = []
    own = [f"rlenv/{spec.name}/episodes" for spec in evidence.run.specs]
    for step in evidence.steps:
        data = evidence.figures.get(step, {})
        wrong += [f"step {step} has no {name}" for name in (*_NEEDED, *own) if name not in data]
        wrong += [
            f"step {step}: {name} is {value}"
            for name, value in data.items()
            if isinstance(value, float) and not math.isfinite(value) and not name.startswith("val-")
        ]
    count = len(evidence.figures.get(evidence.before, {}))
    return Check("metrics", not wrong, "; ".join(wrong[:3]) or f"{count} figures a step, all finite")


def _check_validation(evidence: Evidence) -> Check:
    run = evidence.run
    trainer = evidence.config["trainer"]
    wanted = [0] if trainer["val_before_train"] else []
    if trainer["test_freq"] > 0:  # and veRL validates behind the last step of an attempt
        wanted += [step for step in evidence.steps if step % trainer["test_freq"] == 0]
        wanted += [evidence.before, evidence.before + 1]
    wanted = sorted(set(wanted))
    found = [
        step
        for step, data in sorted(evidence.figures.items())
        if any(name.startswith(("val-core/", "val-aux/")) for name in data)
    ]
    short = []
    kept = KeptEpisodes(run.folder).count_by("step", "mode")
    played = Counter(entry["step"] for entry in evidence.samples if entry["validation"] and entry["row"] == 0)
    for step in wanted:
        expected = played[step] // max(1, len(run.modes))
        for mode in run.modes:
            if (has := kept[step, mode]) == 0 or has != expected:
                short.append(f"step {step} has {has} {mode} episodes, {expected} were played")
    detail = f"held-out episodes are kept at steps {found}"
    return Check("validation", found == wanted and not short, "; ".join(short[:3]) or f"{detail}, expected {wanted}")


def _check_checkpoints(evidence: Evidence, digests: Mapping[int, str]) -> Check:
    found = {entry.step: entry for entry in find_checkpoints(evidence.run.folder)}
    wrong = []
    for step in (evidence.before, evidence.before + 1):
        entry = found.get(step)
        if entry is None or entry.fault:
            wrong.append(f"step {step} {'is not saved' if entry is None else entry.fault}")
            continue
        world = entry.world_size
        if not world:
            wrong.append(f"step {step} does not say how many ranks wrote it (fsdp_config.json)")
        parts = [f"{part}_world_size_{world}_rank_{rank}.pt" for rank in range(world) for part in _PARTS]
        wrong += [f"step {step} has no {part}" for part in parts if not (entry.folder / part).is_file()]
        if not (entry.folder.parent / "data.pt").is_file():
            wrong.append(f"step {step} does not say where in the data it is (data.pt)")
        if step not in digests:
            wrong.append(f"the weights of step {step} do not load")
    detail = f"steps {sorted(found)} with weights, optimiser, random state and place in the data; both load"
    return Check("checkpoints", not wrong, "; ".join(wrong[:3]) or detail)


def _check_weights(evidence: Evidence, digests: Mapping[int, str]) -> Check:
    """Every sampler has what was trained: equal checksums, another one after each step."""
    got: dict[int, list[str]] = {}
    for entry in evidence.weights:
        if entry["version"] is not None:
            got.setdefault(entry["version"], []).append(entry["digest"])
    versions = [0, *evidence.steps]
    wrong = []
    for version in versions:
        # Those of the checkpoint are sent twice: behind its step, and where the second attempt begins.
        wanted = evidence.samplers * (2 if version == evidence.before else 1)
        if len(got.get(version, ())) < wanted:
            wrong.append(f"version {version} came {len(got.get(version, ()))} times, expected {wanted}")
    for version, found in got.items():
        expected = {digests[version]} if version in digests else set(found[:1])
        if set(found) != expected:
            trained = f", the checkpoint {digests[version]}" if version in digests else ""
            wrong.append(f"step {version}: the samplers have {', '.join(sorted(set(found)))}{trained}")
    different = len({found[0] for found in got.values()})
    if different != len(got):
        wrong.append(f"{different} different weights in {len(got)} versions")
    detail = f"versions {sorted(got)} in {evidence.samplers} samplers, all differ"
    return Check("weights", not wrong and bool(digests), "; ".join(wrong[:3]) or detail)


def _check_resume(evidence: Evidence) -> Check:
    attempts = evidence.run.attempts
    from_step = attempts[-1].from_step if len(attempts) > 1 else None
    tasks = [
        {(entry["spec"], entry["task"]) for entry in evidence.trained if (entry["step"] > evidence.before) == is_later}
        for is_later in (False, True)
    ]
    again = len(tasks[0] & tasks[1])
    detail = f"went on from step {from_step} of {evidence.before}; {len(tasks[1]):,} tasks of the next batch"
    # Within an epoch no task comes twice: one that does was drawn from the data's beginning.
    if again:
        detail += f", {again} of them trained before"
    return Check("resume", from_step == evidence.before and bool(tasks[1]) and not again, detail)
