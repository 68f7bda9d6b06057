"""The problems of a run before it starts: lengths against limits, tokens of a step, memory, and exactness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlenv.episodes.environment import Environment
from rlenv.errors import Finding, UnsupportedTemplate
from rlenv.language.kinds import kind_of
from rlenv.preflight import report
from rlenv.preflight.lengths import Lengths, RunLimits, SplitLengths, TaskLengths, chosen_tasks, measure
from rlenv.preflight.memory import Devices, Memory, Model, Pass, known_model, memory_of, model_of
from rlenv.preflight.report import LimitNames, Preflight, TrainingStep, judge_lengths, judge_memory, lines_of
from rlenv.tokens import TokenEncoder
from rlenv.tokens.encoder import History
from rlenv.tokens.verdict import Prompts, Verdict, verdict_of

__all__ = ["CheckedSpec", "Devices", "Finding", "Lengths", "LimitNames", "Memory", "Model", "Pass", "Plan"]
__all__ += ["PlayedSplit", "Preflight", "RunLimits", "SplitLengths", "TaskLengths", "TrainingStep", "chosen_tasks"]
__all__ += ["judge_lengths", "judge_memory", "known_model", "lines_of", "measure", "memory_of", "model_of", "preflight"]


@dataclass(frozen=True, slots=True)
class PlayedSplit:
    """A split that a run plays: `tasks` of it, all for None. `is_trained`: what is too long there stops the run."""

    name: str
    tasks: int | None = None
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class CheckedSpec:
    """One spec of a run.

    `encoder` makes the model's encoder as it will train, with another history where it is given one. It may raise
    UnsupportedTemplate, which is a finding.
    """

    environment: Environment
    encoder: Callable[[History | None], TokenEncoder]
    splits: tuple[PlayedSplit, ...]
    limits: RunLimits
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run beside its specs.

    `name` is how the report is headed. `model` is the model's folder, None where it is not there; `model_name` its name
    on the hub then. `episodes` are those
    of a training step, 0 where they are not known. `passes` are the most tokens of one sequence that a pass of the
    trainer takes, by the key that says so. `context` is the most tokens that the sampler holds of one sequence, None
    for all that the model reads. `must_open`: where no episode opens here, none will.
    """

    name: str
    model: Path | None = None
    names: LimitNames = field(default_factory=LimitNames)
    episodes: int = 0
    passes: Mapping[str, int] = field(default_factory=dict)
    machine: Devices | None = None
    context: int | None = None
    sample: int = 256
    must_open: bool = True
    model_name: str = ""


def preflight(subjects: Sequence[CheckedSpec], plan: Plan) -> Preflight:
    """The report on a run of `subjects`; environments are opened and closed, rewards are not measured.

    Raises:
        UsageError: a split that a spec does not have.
        SpecError: a row that cannot be read.
    """
    return asyncio.run(_preflight(subjects, plan))


async def _preflight(subjects: Sequence[CheckedSpec], plan: Plan) -> Preflight:
    findings: list[Finding] = []
    verdicts: dict[str, Any] = {}
    splits: list[SplitLengths] = []
    trained: list[tuple[SplitLengths, float]] = []
    for subject in subjects:
        prompts = Prompts()
        try:
            found = await _measure_spec(subject, prompts, plan.sample)
        except UnsupportedTemplate:  # the verdict below says it
            found = []
        verdict = verdict_of(subject.environment, partial(subject.encoder, None), prompts)
        name = subject.environment.spec.name
        verdicts[name] = verdict.as_dict()
        findings += judge_exactness(name, verdict)
        for split, lengths in found:
            findings += judge_lengths(lengths, plan.names, is_trained=split.is_trained, must_open=plan.must_open)
            splits.append(lengths)
            if split.is_trained:
                trained.append((lengths, subject.weight))
    model = model_of(plan.model) if plan.model is not None else known_model(plan.model_name)
    findings += report.judge_sequences(splits, plan.passes, model)
    memory = None
    if plan.machine is not None:
        memory, more = judge_memory(model, plan.machine, context=plan.context)
        findings += more
    step: TrainingStep | None = report.step_of(trained, plan.episodes) if plan.episodes else None
    return Preflight(plan.name, tuple(splits), tuple(findings), step, model, memory, plan.machine, verdicts)


async def _measure_spec(subject: CheckedSpec, prompts: Prompts, sample: int) -> list[tuple[PlayedSplit, SplitLengths]]:
    environment = subject.environment
    own = subject.encoder(None)
    # What "grow" refuses is told by the verdict; lengths are known all the same.
    encoder = own if own.history != "grow" else subject.encoder("keep")
    out = []
    async with environment:
        for split in subject.splits:
            tasks = chosen_tasks(environment, split.name, tasks=split.tasks, sample=sample)
            lengths = await measure(
                environment,
                encoder,
                split=split.name,
                tasks=tasks,
                limits=subject.limits,
                why_not_played=_asks_others(environment),
                on_prompt=prompts.add,
            )
            out.append((split, lengths))
    return out


def _asks_others(environment: Environment) -> str:
    """The reason why the oracle is not played: episodes would ask other models, which costs and takes time unasked."""
    spec = environment.spec
    asking = [name for name, tool in spec.tools.items() if kind_of("tools", tool).asks_models]
    if asking:
        return f"its episodes ask other models (the tool '{asking[0]}')"
    if spec.user is not None and kind_of("users", spec.user).asks_models:
        return "its episodes ask another model (the user)"
    return ""


def judge_exactness(name: str, verdict: Verdict) -> Iterator[Finding]:
    """The findings about the verdict on a template."""
    if not verdict.will_run:
        yield Finding("error", f"{name}: {verdict.message}")
        return
    yield from (Finding("warning", f"{name}: {remark}") for remark in verdict.remarks)
    rewritten = [one for one in verdict.situations if one.status == "rewritten"]
    refused = [one for one in verdict.situations if one.status == "refused"]
    if rewritten and verdict.history == "keep":
        yield Finding(
            "warning",
            f"{name}: with run.history=keep the policy trains on histories that its template writes otherwise"
            f" ({_situations(rewritten)}); each is counted, and run.history=rows is exact",
        )
    if refused:
        yield Finding("warning", f"{name}: an episode is cut (template) at {_situations(refused)}: {refused[0].detail}")


def _situations(situations: Sequence[Any]) -> str:
    names = list(dict.fromkeys(one.name for one in situations))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
