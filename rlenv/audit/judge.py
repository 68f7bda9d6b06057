"""Holds a judge to labels: agreement on anchors, bias on pairs that differ in one thing, drift since an earlier run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlenv.audit.agreement import Calibration, Pairs, accuracy, alpha, bootstrap, calibration, distance, mean, spearman
from rlenv.audit.report import ReportCard
from rlenv.endpoints.account import asks
from rlenv.episodes.environment import Environment
from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import ParsedAction, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term
from rlenv.rewards.judge import JudgeSpec
from rlenv.runs.figures.rewards import Estimate, kappa
from rlenv.secrets import redact_within
from rlenv.trajectory import Turn

_BIAS = 0.1
"""A bias below this share of the scale is let pass, however sure."""

_MAX_REASON = 300
_LISTED = 3
_AT_ONCE = 64

_NEUTRAL = "This paragraph adds nothing to what is said elsewhere and can be skipped. " * 12


@dataclass(frozen=True, slots=True)
class Anchor:
    """A message with the score that people gave it, on the judge's scale."""

    task: Mapping[str, Any]
    message: str
    label: float


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The report on one judge of a panel: as `JudgeReport`, of its own scores."""

    endpoint: str
    model: str
    prompt_sha256: str
    invalid: int
    kappa: Estimate
    error: Estimate
    bias: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class JudgeReport(ReportCard):
    """The report on a judge. Scores are on its scale; None stands for an invalid judgement, which counts nowhere else.

    `accuracy` is over scores moved to the nearest step of the labels: whole numbers where all labels are, else the
    labels themselves; the higher of two at the same distance. `kappa`, `alpha` (Krippendorff's, for interval data) and
    `spearman` take scores as they are; `error` is the mean distance of a score from its label, as a share of the scale.
    `invalid_reasons` counts the invalid judgements of anchors by what was wrong.
    `panel` is how several scores become one, the weights and the quorum; empty for one judge.
    `bias` is the mean difference of the scores of pairs that differ in one thing, as a share of the scale. `drift` is
    the mean change of the anchors' scores since the earlier run, as a share of the scale; None without one.
    """

    term: str
    scale: tuple[float, float]
    prompt_sha256: tuple[str, ...]
    models: tuple[str, ...]
    panel: tuple[Any, ...]
    anchors_sha256: str
    anchors: int
    invalid: int
    invalid_reasons: Mapping[str, int]
    accuracy: Estimate
    kappa: Estimate
    alpha: Estimate
    spearman: Estimate
    error: Estimate
    calibration: Calibration
    bias: Mapping[str, Estimate]
    members: tuple[MemberReport, ...]
    members_alpha: float | None
    drift: Estimate | None
    scores: tuple[float | None, ...]
    findings: tuple[str, ...]


def read_anchors(path: str | Path) -> list[Anchor]:
    """The labelled anchors of a .jsonl file: objects with `message`, `label` (a number) and `task` (an object).

    Raises:
        UsageError: the file is not there, a line does not fit, or there are fewer than two.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the anchors {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the anchors {path} cannot be read: not UTF-8 ({error.reason})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            label = row["label"]
            is_number = isinstance(label, (int, float)) and not isinstance(label, bool) and math.isfinite(label)
            if not is_number or not isinstance(row["message"], str):
                raise TypeError("message must be text and label a number")
            found.append(Anchor(dict(row.get("task", {})), row["message"], float(label)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            message = f"expected an object with message, label and task ({type(error).__name__}: {error})"
            raise UsageError(f"{path}:{number}: {message}") from error
    if len(found) < 2:
        raise UsageError(f"{path} holds {len(found)} anchors; expected at least 2")
    return found


def _pairs_of(message: str) -> dict[str, tuple[str, str]]:
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
    seed: int = 0,
) -> JudgeReport:
    """Holds one judge to the anchors.

    Args:
        term: which term; the only judge by default.
        before: an earlier report of the same anchors, as `JudgeReport.as_dict` gives it.
        min_kappa: less agreement is a finding.

    Raises:
        UsageError: no such judge, a label outside of its scale, or an earlier report of another judge's: other
            anchors, another scale, another model or another prompt.
    """
    judge = _Judge(environment, judge_of(environment, term), seed=seed)
    low, high = judge.scale
    for number, anchor in enumerate(anchors, 1):
        if not low <= anchor.label <= high:
            label = f"the label {anchor.label:g} of anchor {number}"
            raise UsageError(f"{label} is outside of the scale of '{judge.name}', {low:g} to {high:g}")
    earlier = _check_earlier(before, judge, len(anchors), _anchors_digest(anchors)) if before is not None else None
    reasons: Counter[str] = Counter()
    asked = await judge.ask([(anchor.task, anchor.message) for anchor in anchors], reasons)
    if earlier is not None:
        _check_prompt(earlier, judge.digests)
    scores = [one.score for one in asked]
    varied = {name: await _ask_pairs(judge, anchors, name) for name in _pairs_of("")}
    report = _build_report(judge, anchors, asked, varied, invalid_reasons=dict(reasons.most_common()))
    if earlier is not None:
        report = replace(report, drift=_mean_gap(earlier["scores"], scores, judge.scale, seed))
    return replace(report, findings=tuple(_judge_findings(report, min_kappa)))


@dataclass(frozen=True, slots=True)
class _Scored:
    """The score of a message and those of the panel's members, in order; None where there is none."""

    score: float | None
    members: tuple[float | None, ...]


Scored = Sequence[_Scored]
Paired = Mapping[str, tuple[Scored, Scored]]
"""What is said to one message of each pair and to the other, by what they differ in."""


class _Judge:
    """Asks the judge for scores, on its scale, 64 at once; `digests` are those of its prompts so far."""

    def __init__(self, environment: Environment, term: Term, *, seed: int) -> None:
        assert isinstance(term.spec, JudgeSpec)
        self.name = term.name
        self.scale = term.spec.ends
        self.seed = seed
        listed = [one.endpoint for one in term.spec.judges] or [term.spec.endpoint or ""]
        self.endpoints = listed
        self.models = tuple(environment.spec.endpoints[name].model for name in listed)
        weights = [one.weight for one in term.spec.judges]
        self.panel = (term.spec.combine, *weights, term.spec.quorum) if weights else ()
        self.digests: dict[str, None] = {}
        self.by_member: list[str] = [""] * len(listed)
        self._ask = partial(ask_judge_alone, environment, term, seed=seed)
        self._places = asyncio.Semaphore(_AT_ONCE)

    def as_shares(self, pairs: Pairs) -> list[tuple[float, float]]:
        """Pairs of scores as shares of the scale."""
        low, high = self.scale
        return [((a - low) / (high - low), (b - low) / (high - low)) for a, b in pairs]

    async def ask(
        self, asked: Sequence[tuple[Mapping[str, Any], str]], reasons: Counter[str] | None = None
    ) -> list[_Scored]:
        """One score for each (task, message), None where it is invalid; `reasons` counts what was wrong."""
        counted = Counter[str]() if reasons is None else reasons
        return await asyncio.gather(*(self._ask_for_score(task, message, counted) for task, message in asked))

    async def _ask_for_score(self, task: Mapping[str, Any], message: str, reasons: Counter[str]) -> _Scored:
        turn = Turn(0, message, ParsedAction(message))
        async with self._places:
            measured = await self._ask(task, (turn,), message, reasons=reasons)
        if measured is None:
            return _Scored(None, (None,) * len(self.models))
        judges = measured.details["judges"]
        for place, asked in enumerate(judges):
            self.digests[asked["prompt_sha256"]] = None
            self.by_member[place] = asked["prompt_sha256"]
        return _Scored(float(measured.details["raw"]), tuple(one["score"] for one in judges))


async def _ask_pairs(judge: _Judge, anchors: Sequence[Anchor], name: str) -> tuple[list[_Scored], list[_Scored]]:
    """The judge's answers to one message of each pair and to the other."""
    first, second = [
        await judge.ask([(anchor.task, _pairs_of(anchor.message)[name][side]) for anchor in anchors]) for side in (0, 1)
    ]
    return first, second


@dataclass(frozen=True, slots=True)
class _Figures:
    """The answers of a judge, or of one of a panel, to the anchors and to the pairs that differ in one thing."""

    scores: tuple[float | None, ...]
    pairs: Pairs
    kappa: Estimate
    error: Estimate
    bias: Mapping[str, Estimate]


def _figures(
    judge: _Judge, labels: Sequence[float], asked: Scored, varied: Paired, member: int | None = None
) -> _Figures:
    def scores(some: Scored) -> tuple[float | None, ...]:
        return tuple(one.score if member is None else one.members[member] for one in some)

    mine = scores(asked)
    pairs = [(label, score) for label, score in zip(labels, mine, strict=True) if score is not None]
    bias = {name: _mean_gap(scores(one), scores(two), judge.scale, judge.seed) for name, (one, two) in varied.items()}
    agreed = bootstrap(pairs, kappa, seed=judge.seed)
    return _Figures(mine, pairs, agreed, bootstrap(judge.as_shares(pairs), distance, seed=judge.seed), bias)


def _build_report(
    judge: _Judge, anchors: Sequence[Anchor], asked: Scored, varied: Paired, *, invalid_reasons: Mapping[str, int]
) -> JudgeReport:
    """The report without drift and findings."""
    labels = [anchor.label for anchor in anchors]
    whole, step, members = _figures(judge, labels, asked, varied), _step_rounder(labels), list[MemberReport]()
    for place, model in enumerate(judge.models if len(judge.models) > 1 else ()):
        one = _figures(judge, labels, asked, varied, place)
        named = (judge.endpoints[place], model, judge.by_member[place])
        members.append(MemberReport(*named, one.scores.count(None), one.kappa, one.error, one.bias))
    return JudgeReport(
        term=judge.name,
        scale=judge.scale,
        prompt_sha256=tuple(judge.digests),
        models=judge.models,
        panel=judge.panel,
        anchors_sha256=_anchors_digest(anchors),
        anchors=len(anchors),
        invalid=whole.scores.count(None),
        invalid_reasons=invalid_reasons,
        accuracy=bootstrap([(label, step(found)) for label, found in whole.pairs], accuracy, seed=judge.seed),
        kappa=whole.kappa,
        alpha=bootstrap(whole.pairs, alpha, seed=judge.seed),
        spearman=bootstrap(whole.pairs, spearman, seed=judge.seed),
        error=whole.error,
        calibration=calibration(whole.pairs, scale=judge.scale),
        bias=whole.bias,
        members=tuple(members),
        members_alpha=alpha([one.members for one in asked]) if members else None,
        drift=None,
        scores=whole.scores,
        findings=(),
    )


def _anchors_digest(anchors: Sequence[Anchor]) -> str:
    written = [[dict(anchor.task), anchor.message, anchor.label] for anchor in anchors]
    return hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode("utf-8", "replace")).hexdigest()


def _judge_findings(report: JudgeReport, min_kappa: float) -> Iterator[str]:
    if report.invalid:
        most = list(report.invalid_reasons.items())[:_LISTED]
        why = "; ".join(f"{count} times: {reason}" for reason, count in most)
        yield f"invalid: {report.invalid} of {report.anchors} anchors got no score ({why})"
    reached = report.kappa.value
    if reached is None or reached < min_kappa:
        yield f"agreement: kappa {'unknown' if reached is None else f'{reached:.2f}'} is below {min_kappa:g}"
    # A panel may hide one judge's bias among the others, who are not always there to outvote it.
    each = {f" of judges.{place} ({member.endpoint})": member.bias for place, member in enumerate(report.members)}
    for who, bias in {"": report.bias, **each}.items():
        for name, estimate in bias.items():
            if estimate.value is not None and abs(estimate.value) > _BIAS and estimate.excludes(0.0):
                yield f"bias: {name} moves the score{who} by {estimate.value:+.2f} of the scale"
    drift = report.drift
    if drift is not None and drift.excludes(0.0):
        yield f"drift: scores moved by {drift.value:+.2f} of the scale since the earlier run"


def judge_of(environment: Environment, term: str | None) -> Term:
    """The judge that a term's name stands for; the only one by default.

    Raises:
        UsageError: there is none of that name, or more than one and no name.
    """
    judges = {
        one.name: one for one in environment.parts.terms if isinstance(one.spec, JudgeSpec) and not one.is_of_group
    }
    if term is None and len(judges) == 1:
        return next(iter(judges.values()))
    if term not in judges:
        known = ", ".join(judges) or "none"
        raise UsageError(f"no judge is called '{term}'" if term else f"name the judge; there are: {known}")
    return judges[term]


def _step_rounder(labels: Sequence[float]) -> Callable[[float], float]:
    """A function that moves a score to the nearest step of the labels."""
    if all(label.is_integer() for label in labels):
        return lambda score: float(math.floor(score + 0.5))
    levels = sorted(set(labels), reverse=True)
    return lambda score: min(levels, key=lambda level: abs(level - score))


def _check_earlier(before: Mapping[str, Any], judge: _Judge, count: int, anchors_sha256: str) -> Mapping[str, Any]:
    """An earlier report that may be compared with one of this judge and of these anchors.

    Raises UsageError: it may not.
    """
    scores, scaled = before.get("scores"), before.get("scale")
    if not isinstance(scores, (list, tuple)) or len(scores) != count:
        raise UsageError("the earlier report has other anchors", hint="drift needs the same ones in the same order")
    scale = judge.scale
    if not isinstance(scaled, (list, tuple)) or list(scaled) != list(scale):
        raise UsageError(f"the earlier report is of the scale {scaled!r:.60}, and this judge's is {list(scale)}")
    now = {"anchors_sha256": anchors_sha256, "models": list(judge.models), "panel": list(judge.panel)}
    for key, value in now.items():
        then = before.get(key)
        if (list(then) if isinstance(then, (list, tuple)) else then) != value:
            what = "other anchors (anchors_sha256 differs)" if key == "anchors_sha256" else f"the {key} {then!r:.80}"
            hint = "drift is a change of one judge's over the same anchors: leave out --before"
            raise UsageError(f"the earlier report is of {what}", hint=hint)
    low, high = scale
    for one in scores:
        is_number = isinstance(one, (int, float)) and not isinstance(one, bool)
        if one is not None and not (is_number and low <= one <= high):
            raise UsageError(f"the earlier report has the score {one!r:.40}; expected {low:g} to {high:g}, or null")
    return before


def _check_prompt(before: Mapping[str, Any], digests: Mapping[str, None]) -> None:
    """Raises UsageError: the earlier report is of other prompts, so that a change would not be the judge's."""
    known = before.get("prompt_sha256")
    known = known if isinstance(known, (list, tuple)) else (known,)
    if known and digests and set(map(str, known)) != set(digests):
        raise UsageError(
            "the earlier report is of another prompt, rubric, schema or sampling (prompt_sha256 differs)",
            hint="drift is a change of the judge's under the same ones: leave out --before, or give that report's spec",
        )


def _mean_gap(
    before: Sequence[float | None], after: Sequence[float | None], scale: tuple[float, float], seed: int
) -> Estimate:
    """The mean difference of scores of the same things, as a share of the scale; what has none is left out."""
    width = scale[1] - scale[0]
    known = [(a / width, b / width) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    return bootstrap(known, mean, seed=seed)


async def ask_judge_alone(
    environment: Environment,
    term: Term,
    task: Mapping[str, Any],
    turns: tuple[Turn, ...],
    answer: str | None,
    *,
    seed: int,
    reasons: Counter[str],
) -> Measured | None:
    """The verdict of a judge outside of an episode; None where it gives none: `reasons` counts what was wrong."""
    assert term.measure_async is not None
    vars, scope = environment.spec.vars, environment.scope
    try:
        with asks(f"judge {term.name}"):
            return await term.measure_async(RewardContext(task, (), turns, answer, {}, vars, _refuse, "", scope, seed))
    except EpisodeError as error:
        reasons[redact_within(str(error), _MAX_REASON)] += 1
        return None


async def _refuse(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Stands for the tools of an episode that was not played. Raises UsageError."""
    raise UsageError(f"a judge called the tool '{name}'")
