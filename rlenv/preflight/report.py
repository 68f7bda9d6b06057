"""The report on a run before it starts: errors, warnings, and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlenv.errors import Finding
from rlenv.preflight.lengths import Lengths, RunLimits, SplitLengths, TaskLengths
from rlenv.preflight.memory import Devices, Memory, Model, memory_of

_ROUND = 64  # a limit that is suggested is a multiple of it
_GB = 1e9


@dataclass(frozen=True, slots=True)
class LimitNames:
    """A trainer's names of its limits, for messages that tell which one to set."""

    prompt: str = "max_prompt_tokens"
    response: str = "max_response_tokens"
    turn: str = "turn_tokens"


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training step: `episodes`, and the tokens and calls that they take by what was measured.

    `response_tokens` and `calls` are those of the oracle's episodes, None where none was played; `most_tokens` is what
    the limits allow, None where one is not known.
    """

    episodes: int
    prompt_tokens: int
    response_tokens: int | None
    calls: int | None
    most_tokens: int | None


@dataclass(frozen=True, slots=True)
class Preflight:
    """All that was found. `is_ready` is False where something is an error."""

    name: str
    splits: tuple[SplitLengths, ...] = ()
    findings: tuple[Finding, ...] = ()
    step: TrainingStep | None = None
    model: Model | None = None
    memory: Memory | None = None
    machine: Devices | None = None
    verdicts: Mapping[str, Any] = field(default_factory=dict)
    """By the spec's name, what `rlenv.tokens.verdict` says of it, as JSON."""

    @property
    def is_ready(self) -> bool:
        """True where the run can start."""
        return not self.errors

    @property
    def outcome(self) -> str:
        """The conclusion from all findings, in words."""
        if not self.is_ready:
            return "the run would not do"
        if not self.verdicts:
            return "nothing that was looked at stands against the run; what was not measured may"
        if all(one["is_exact"] for one in self.verdicts.values()):
            return "the run can start, and training is exact"
        return "the run can start; training is not exact"

    @property
    def errors(self) -> tuple[str, ...]:
        """The messages of what makes the run useless."""
        return tuple(one.message for one in self.findings if one.level == "error")

    def as_dict(self) -> dict[str, Any]:
        """The report as `rlenv train --preflight --json` writes it."""
        return {
            "name": self.name,
            "is_ready": self.is_ready,
            "findings": [one.as_dict() for one in self.findings],
            "exactness": dict(self.verdicts),
            "splits": [_split_as_dict(one) for one in self.splits],
            "step": None if self.step is None else asdict(self.step),
            "model": None
            if self.model is None
            else {"parameters": self.model.parameters, "source": self.model.source, "positions": self.model.positions},
            "memory": None if self.memory is None else asdict(self.memory),
        }


def _split_as_dict(found: SplitLengths) -> dict[str, Any]:
    def shown(lengths: Lengths | None) -> dict[str, Any] | None:
        return None if lengths is None else asdict(lengths)

    return {
        "environment": found.environment,
        "split": found.split,
        "tasks": found.size,
        "measured": len(found.tasks),
        "falling_out": found.falling_out,
        "prompts": shown(found.prompts),
        "responses": shown(found.responses),
        "turns": shown(found.turns),
        "later_prompts": shown(found.later_prompts),
        "not_played": found.not_played,
        "faults": [{"task": one.task, "message": one.fault} for one in found.tasks if one.fault],
    }


def _rounded(number: int) -> int:
    return -(-number // _ROUND) * _ROUND


def judge_lengths(
    found: SplitLengths, names: LimitNames, *, is_trained: bool, must_open: bool = True
) -> Iterator[Finding]:
    """The findings about the lengths of one split.

    Args:
        is_trained: whether the run learns from the split; where not, what does not fit is a warning.
        must_open: where no episode opens here, none will elsewhere.
    """
    where = f"{found.environment}, {found.split}"
    unopened = [one for one in found.tasks if one.prompt is None]
    if unopened:
        is_lost = len(unopened) == len(found.tasks) and must_open and is_trained
        level: Literal["error", "warning"] = "error" if is_lost else "warning"
        yield Finding(level, f"{where}: {_of(len(unopened), found)} do not open: {unopened[0].fault}")
    response = "limits.response_tokens" if found.limits.is_own or found.is_by_row else names.response
    what = (
        ("prompts", found.prompts, names.prompt, "longer than", "such an episode has no reward"),
        ("oracle episodes", found.responses, response, "longer than", "such an episode is cut"),
        ("oracle episodes", found.turns, names.turn, "in one action longer than", "such an action is cut"),
    )
    for thing, lengths, name, how, meaning in what:
        if lengths is None or not lengths.over:
            continue
        is_all = lengths.over == lengths.count
        count = f"{'all ' if is_all else ''}{lengths.over} of {lengths.count} {thing} are"
        is_by_row = thing != "prompts" and name == response and found.is_by_row
        limit = f"what their rows give for {name}" if is_by_row else f"the {lengths.limit:,} tokens of {name}"
        if lengths.count == 1:
            count = f"the only {thing.removesuffix('s')} is"
        yield Finding(
            "error" if is_all and is_trained else "warning",
            f"{where}: {count} {how} {limit} (the longest: {lengths.longest:,});"
            f" {meaning}; set {name}={_rounded(lengths.longest)}, or shorten them",
        )
    unplayed = [one for one in found.tasks if one.prompt is not None and one.response is None]
    if found.not_played:
        yield Finding("unknown", f"{where}: responses were not measured: {found.not_played}")
    elif unplayed:
        yield Finding(
            "warning", f"{where}: the oracle does not play {_of(len(unplayed), found)} to the end: {unplayed[0].fault}"
        )


def _of(count: int, found: SplitLengths) -> str:
    return f"{count} of {len(found.tasks)} tasks"


def judge_sequences(
    splits: Sequence[SplitLengths], passes: Mapping[str, int], model: Model | None
) -> Iterator[Finding]:
    """The findings about the longest sequences: they have to fit a pass of the trainer and the model's positions.

    Args:
        passes: the most tokens of one sequence that a pass takes, by the key that says so.
    """
    kept = [(one, split.limits) for split in splits for one in split.tasks if _starts(one, split.limits)]
    if not kept:
        return
    prompt = max(one.prompt or 0 for one, _ in kept)
    by_oracle = max(
        (one.prompt or 0) + _within(one.response or 0, limits.within(one.limit).response) for one, limits in kept
    )
    most = max((one.prompt or 0) + (limits.response or one.response or 0) for one, limits in kept)
    for key, tokens in passes.items():
        if by_oracle > tokens:
            yield Finding(
                "error",
                f"an episode of {by_oracle:,} tokens is longer than the {tokens:,} that one pass takes ({key}), and"
                f" ends the run; set {key}={_rounded(most)}",
            )
        elif most > tokens:
            yield Finding(
                "warning",
                f"an episode that uses its whole response has {most:,} tokens, more than the {tokens:,} of one pass"
                f" ({key}), and ends the run; set {key}={_rounded(most)}",
            )
    if model is None or model.positions is None:
        return
    if prompt >= model.positions:
        yield Finding("error", f"a prompt has {prompt:,} tokens; the model reads {model.positions:,} (its config.json)")
    elif most > model.positions:
        yield Finding(
            "warning",
            f"prompt and response have up to {most:,} tokens together; the model reads {model.positions:,} (its"
            " config.json)",
        )


def _starts(one: TaskLengths, limits: RunLimits) -> bool:
    return one.prompt is not None and (limits.prompt is None or one.prompt <= limits.prompt)


def _within(number: int, limit: int | None) -> int:
    return number if limit is None else min(number, limit)


def judge_memory(model: Model | None, machine: Devices, *, context: int | None) -> tuple[Memory | None, list[Finding]]:
    """The memory that a model takes on a machine, and the findings where it does not fit.

    Args:
        context: tokens of the longest sequence that a sampler has to hold; None for the model's positions.
    """
    memory = memory_of(model, machine) if model is not None else None
    if model is None or memory is None:
        why = "there is no config.json" if model is None else "its config.json is of a family that is not known here"
        return None, [Finding("unknown", f"the model's memory was not estimated: {why}")]
    return memory, [*_judge_fit(model, memory, machine, context or model.positions)]


def _judge_fit(model: Model, memory: Memory, machine: Devices, context: int | None) -> Iterator[Finding]:
    """What does not fit on a machine whose devices are known."""
    if (has := machine.device_bytes) is None:
        return
    if memory.training > has:
        yield Finding(
            "error",
            f"{model.parameters:,} parameters take {_gb(memory.training)} on each of {machine.devices} devices"
            f" while they are trained, without activations; a device has {_gb(has)}. Take more devices, a smaller"
            " model, or --lora",
        )
    yield from _judge_peaks(memory, has)
    given = int(machine.sampler_share * has)
    if given and memory.cache_token is not None and context is not None:
        needed = memory.sampler + context * memory.cache_token
        if needed > given:
            yield Finding(
                "error",
                f"the sampler takes {_gb(needed)} for its weights and one sequence of {context:,} tokens; its share"
                f" of a device is {_gb(given)}. Raise its share, or bound its context",
            )
    if given and memory.kept + given > has:
        yield Finding(
            "warning",
            f"while samples are drawn, {_gb(memory.kept)} of training stay beside the sampler's {_gb(given)}; a"
            f" device has {_gb(has)}. Offload weights and optimiser, or lower the sampler's share",
        )


def _judge_peaks(memory: Memory, has: int) -> Iterator[Finding]:
    """Passes that take more than a device has, where weights alone do not."""
    passes = memory.passes
    if passes is None or memory.training > has:
        return
    for name, peak, logits in (
        ("an update", memory.update, passes.update_logits),
        ("a pass for log-probabilities", memory.forward, passes.forward_logits),
    ):
        if peak is not None and peak > has:
            yield Finding(
                "warning",
                f"{name} of as many tokens as a pass takes needs about {_gb(peak)}, {_gb(logits)} of it for logits; a"
                f" device has {_gb(has)}. Let it take fewer tokens, offload, or take more devices",
            )


def step_of(splits: Sequence[tuple[SplitLengths, float]], episodes: int) -> TrainingStep | None:
    """The tokens of a step of `episodes`, by the measured ones; None without a prompt.

    Args:
        splits: those that are trained on, and the share of each.
    """
    known = [(split, share) for split, share in splits if split.prompts is not None]
    whole = sum(share for _, share in known)
    if not whole:
        return None
    prompts = sum(share * split.prompts.mean for split, share in known if split.prompts is not None) / whole
    played = [(split, share) for split, share in known if split.responses is not None]
    response = calls = None
    if len(played) == len(known):
        means = [(_mean_of(split), share) for split, share in played]
        response = round(episodes * sum(tokens * share for (tokens, _), share in means) / whole)
        calls = round(episodes * sum(count * share for (_, count), share in means) / whole)
    limits = [split.limits for split, _ in known]
    most = None
    if all(one.prompt is not None and one.response is not None for one in limits):
        most = episodes * max((one.prompt or 0) + (one.response or 0) for one in limits)
    return TrainingStep(episodes, round(episodes * prompts), response, calls, most)


def _mean_of(split: SplitLengths) -> tuple[float, float]:
    """Response tokens within the limit, and calls, of an oracle's episode."""
    played = [one for one in split.tasks if one.response is not None]
    tokens = sum(_within(one.response or 0, split.limits.within(one.limit).response) for one in played)
    return tokens / len(played), sum(one.calls for one in played) / len(played)


def _gb(number: int) -> str:
    return f"{number / _GB:.1f} GB"


def lines_of(report: Preflight) -> Iterator[str]:
    """The report for people, a line at a time; what is wrong stands last."""
    for split in report.splits:
        tasks = f"{split.size} task{'s' if split.size != 1 else ''}"
        measured = f"{len(split.tasks)} of {tasks}" if split.is_sample else tasks
        yield f"{split.environment}, {split.split}: {measured} measured"
        for name, lengths in (
            ("prompt", split.prompts),
            ("response", split.responses),
            ("longest turn", split.turns),
            ("later rows' prompt", split.later_prompts),
        ):
            if lengths is not None:
                yield f"  {name:<18} {_shown_lengths(lengths)}"
        if split.responses is not None:
            yield "  (responses and turns as the oracle plays, which does not think)"
        if split.tasks:
            yield f"  {'fall out':<18} {split.falling_out} of {len(split.tasks)}"
    if report.step is not None:
        yield f"a step: {_shown_step(report.step)}"
    if report.memory is not None and report.model is not None and report.machine is not None:
        yield from _shown_memory(report.model, report.memory, report.machine)
    for level in ("unknown", "warning", "error"):
        for finding in report.findings:
            if finding.level == level:
                yield str(finding)


def _shown_lengths(lengths: Lengths) -> str:
    text = f"p50 {lengths.p50:>7,}  p99 {lengths.p99:>7,}  longest {lengths.longest:>7,}"
    if lengths.limit is None:
        return text
    return f"{text}  limit {lengths.limit:>7,}: {lengths.over} of {lengths.count} over it"


def _shown_step(step: TrainingStep) -> str:
    parts = [f"{step.episodes:,} episodes", f"{step.prompt_tokens:,} prompt tokens"]
    if step.response_tokens is not None:
        parts += [f"{step.response_tokens:,} response tokens and {step.calls:,} calls as the oracle plays"]
    if step.most_tokens is not None:
        parts += [f"at most {step.most_tokens:,} tokens"]
    return ", ".join(parts)


def _shown_memory(model: Model, memory: Memory, machine: Devices) -> Iterator[str]:
    counted = "" if memory.passes is not None else "; activations not counted"
    yield (
        f"memory: {model.parameters:,} parameters (from {model.source}); a device takes {_gb(memory.training)} to train"
        f" ({machine.weight_bytes} bytes each for weight, gradient and two moments over {machine.devices}"
        f" device{'s' if machine.devices != 1 else ''}{counted})"
    )
    if memory.passes is not None and memory.update is not None and memory.forward is not None:
        of = ""
        if machine.device_bytes is not None:
            of = f" of {_gb(machine.device_bytes)}{' (assumed: there is none here)' if machine.is_assumed else ''}"
        passing = machine.passing
        assert passing is not None
        yield (
            f"  at most{of}: {_gb(memory.update)} in an update of {passing.update_tokens or 0:,} tokens"
            f" ({_gb(memory.passes.update_logits)} logits), {_gb(memory.forward)} in a pass of"
            f" {passing.forward_tokens or 0:,} for log-probabilities ({_gb(memory.passes.forward_logits)} logits)"
        )
    if memory.host:
        yield f"  offloaded while samples are drawn: {_gb(memory.host * machine.devices)} of the machines' own memory"
    if memory.cache_token is not None and machine.sampler_share:
        text = f"  the sampler takes {_gb(memory.sampler)} and {memory.cache_token / 1000:,.1f} kB a token"
        if machine.device_bytes is not None:
            room = int(machine.sampler_share * machine.device_bytes) - memory.sampler
            tokens = max(room, 0) // memory.cache_token
            text += f": room for {tokens:,} tokens of context at once"
            if machine.longest:
                text += f", {tokens // machine.longest:,} of the longest sequences"
        yield text
