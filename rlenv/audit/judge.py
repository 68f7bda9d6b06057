"""Holds a judge to labels: agreement on anchors, bias on pairs that differ in one thing, drift since an earlier run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.audit.agreement import Estimate, accuracy, bootstrap, kappa, mean, spearman
from rlenv.environment import Environment
from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import ParsedAction, ToolResult
from rlenv.record import plain
from rlenv.rewards.base import RewardContext, Term
from rlenv.rewards.judge import JudgeSpec
from rlenv.trajectory import Turn

__all__ = ["Anchor", "JudgeReport", "audit_judge", "read_anchors"]

_BIAS = 0.1
"""A bias below this share of the scale is let pass, however sure."""

_NEUTRAL = "This paragraph adds nothing to what is said elsewhere and can be skipped. " * 12


@dataclass(frozen=True, slots=True)
class Anchor:
    """A message with the score that people gave it, on the judge's scale."""

    task: Mapping[str, Any]
    message: str
    label: float


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """What a judge is worth. Scores are on its scale; None stands for an invalid judgement, which counts nowhere else.

    `bias` is the mean difference of the scores of pairs that differ in one thing, as a share of the scale. `drift` is
    the mean change of the anchors' scores since the earlier run, as a share of the scale; None without one.
    """

    term: str
    prompt_sha256: tuple[str, ...]
    anchors: int
    invalid: int
    accuracy: Estimate
    kappa: Estimate
    spearman: Estimate
    bias: Mapping[str, Estimate]
    drift: Estimate | None
    scores: tuple[float | None, ...]
    findings: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """True where nothing was found."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        found: dict[str, Any] = plain(self)
        return {"passes": self.passes, **found}


def read_anchors(path: str | Path) -> list[Anchor]:
    """The labelled anchors of a .jsonl file: objects with `message`, `label` (a number) and `task` (an object).

    Raises:
        UsageError: the file is not there, a line does not fit, or there are fewer than two.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the anchors {path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row["label"], bool) or not isinstance(row["message"], str):
                raise TypeError("message must be text and label a number")
            found.append(Anchor(dict(row.get("task", {})), row["message"], float(row["label"])))
        except (ValueError, KeyError, TypeError) as error:
            message = f"expected an object with message, label and task ({type(error).__name__}: {error})"
            raise UsageError(f"{path}:{number}: {message}") from error
    if len(found) < 2:
        raise UsageError(f"{path} holds {len(found)} anchors; expected at least 2")
    return found


def _variants(message: str) -> dict[str, tuple[str, str]]:
    """Pairs of messages that say the same; a fair judge gives both of a pair one score."""
    return {
        "position": (f"{message}\n\n{_NEUTRAL}", f"{_NEUTRAL}\n\n{message}"),
        "length": (message, f"{message}\n\n{_NEUTRAL * 3}"),
        "style": (
            message,
            "## Answer\n\n" + "\n".join(f"- **{line}**" for line in message.splitlines() if line.strip()),
        ),
    }


async def audit_judge(
    environment: Environment,
    anchors: Sequence[Anchor],
    *,
    term: str | None = None,
    before: Mapping[str, Any] | None = None,
    min_kappa: float = 0.4,
    concurrency: int = 64,
    seed: int = 0,
) -> JudgeReport:
    """Holds one judge to the anchors.

    Args:
        term: which term; the only judge by default.
        before: an earlier report of the same anchors, as `JudgeReport.as_dict` gives it.
        min_kappa: less agreement is a finding.

    Raises:
        UsageError: no such judge, or the earlier report has other anchors.
    """
    judge = _judge(environment, term)
    spec = judge.spec
    assert isinstance(spec, JudgeSpec)
    low, high = spec.scale
    places = asyncio.Semaphore(concurrency)
    digests: dict[str, None] = {}

    async def score(task: Mapping[str, Any], message: str) -> float | None:
        turn = Turn(0, message, ParsedAction(message))
        context = RewardContext(
            task, (), (turn,), message, {}, environment.spec.vars, _no_call, "", environment.scope, seed
        )
        assert judge.measure_async is not None
        async with places:
            try:
                measured = await judge.measure_async(context)
            except EpisodeError:
                return None  # counted as invalid
        for asked in measured.details["judges"]:
            digests[asked["prompt_sha256"]] = None
        return float(measured.details["raw"])

    scores = await asyncio.gather(*(score(anchor.task, anchor.message) for anchor in anchors))
    pairs = [(anchor.label, found) for anchor, found in zip(anchors, scores, strict=True) if found is not None]
    rounded = [(label, float(round(found))) for label, found in pairs]
    agreement = {
        "accuracy": bootstrap(rounded, accuracy, seed=seed),
        "kappa": bootstrap(rounded, kappa, seed=seed),
        "spearman": bootstrap(pairs, spearman, seed=seed),
    }
    width = high - low
    bias: dict[str, Estimate] = {}
    for name in _variants(""):
        both = [
            await asyncio.gather(*(score(anchor.task, _variants(anchor.message)[name][side]) for anchor in anchors))
            for side in (0, 1)
        ]
        known = [(a / width, b / width) for a, b in zip(*both, strict=True) if a is not None and b is not None]
        bias[name] = bootstrap(known, mean, seed=seed)
    drift = _drift(before, scores, width, seed) if before is not None else None
    invalid = sum(found is None for found in scores)
    findings = []
    if invalid:
        findings.append(f"invalid: {invalid} of {len(anchors)} anchors got no score")
    reached = agreement["kappa"].value
    if reached is None or reached < min_kappa:
        findings.append(f"agreement: kappa {'unknown' if reached is None else f'{reached:.2f}'} is below {min_kappa:g}")
    for name, estimate in bias.items():
        if estimate.value is not None and abs(estimate.value) > _BIAS and estimate.excludes(0.0):
            findings.append(f"bias: {name} moves the score by {estimate.value:+.2f} of the scale")
    if drift is not None and drift.excludes(0.0):
        findings.append(f"drift: scores moved by {drift.value:+.2f} of the scale since the earlier run")
    return JudgeReport(
        judge.name, tuple(digests), len(anchors), invalid, **agreement, bias=bias, drift=drift,
        scores=tuple(scores), findings=tuple(findings),
    )  # fmt: skip


def _judge(environment: Environment, term: str | None) -> Term:
    judges = {one.name: one for one in environment.parts.terms if isinstance(one.spec, JudgeSpec)}
    if term is None and len(judges) == 1:
        return next(iter(judges.values()))
    if term not in judges:
        known = ", ".join(judges) or "none"
        raise UsageError(f"no judge is called '{term}'" if term else f"name the judge; there are: {known}")
    return judges[term]


def _drift(before: Mapping[str, Any], scores: Sequence[float | None], width: float, seed: int) -> Estimate:
    earlier = before.get("scores")
    if not isinstance(earlier, (list, tuple)) or len(earlier) != len(scores):
        raise UsageError("the earlier report has other anchors; drift needs the same ones in the same order")
    known = [(a / width, b / width) for a, b in zip(earlier, scores, strict=True) if a is not None and b is not None]
    return bootstrap(known, mean, seed=seed)


async def _no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise UsageError(f"a judge called the tool '{name}'")
