"""What an audit has seen, and the findings that it makes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlenv.audit.adversaries import ADVERSARIES, CONSTANT, Adversary
from rlenv.audit.report import Attack, Faults, Finding, Report, Thresholds
from rlenv.episodes.environment import Environment
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["SLACK", "Account", "Played", "played_on", "share_of"]

SLACK = 1e-9
"""Rewards that differ by less are the same."""
_RISES = 0.05
_LISTED = 20
_ORACLE_FAILED = ("oracle", "policy")


@dataclass(slots=True)
class Played:
    """What one adversary got on one task."""

    task: int
    gold: float
    best: Trajectory | None
    invalid: int
    episodes: int
    why: str = ""
    """Why the first invalid one is."""


@dataclass(slots=True)
class Account:
    """What an audit has seen so far, and what it makes of it."""

    environment: Environment
    thresholds: Thresholds
    fault_share: float
    unfinished: str = ""
    constants: dict[str, str] = field(default_factory=dict)
    """The constant answer that earned most, by split."""
    planted: list[bool] = field(default_factory=list)
    """For each attacked task, whether an answer was planted in what a tool gave on success."""
    tasks: dict[str, int] = field(default_factory=dict)
    golds: list[Trajectory] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    played: dict[str, list[Played]] = field(default_factory=dict)
    values: dict[str, set[float | None]] = field(default_factory=dict)
    rises: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    alike: list[bool] = field(default_factory=list)
    leaked: dict[str, set[str]] = field(default_factory=dict)
    faults: list[Trajectory] = field(default_factory=list)
    data: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def see_oracle(self, split: str, golds: Sequence[Trajectory]) -> None:
        """Takes the oracle's episodes of a split in."""
        self.tasks[split] = len(golds)
        self.golds.extend(golds)
        judges = {name for name, spec in self.environment.spec.rewards.items() if spec.kind == "judge"}
        for gold in golds:
            self.count(gold)
            if why := _below(gold, exempt=judges):
                self.below.append(f"{split}/{gold.task_index}: {why}")

    def see_data(self, findings: Sequence[Finding], notes: Sequence[str]) -> None:
        """Takes in what checks of the rows have found."""
        self.data.extend(findings)
        self.notes.extend(notes)

    def count(self, trajectory: Trajectory) -> None:
        """Notes which values the terms of an episode have."""
        for name, term in trajectory.reward.terms.items():
            if term.status == "valid":
                self.values.setdefault(name, set()).add(term.value)

    def report(self) -> Report:
        """The report card."""
        environment, spec = self.environment, self.environment.spec
        totals = [gold.reward.total for gold in self.golds if gold.reward.total is not None]
        oracle = _mean(totals)
        attacks = tuple(self._attack(adversary) for adversary in (*ADVERSARIES, CONSTANT))
        counted = {name for name, entry in spec.rewards.items() if entry.weight}
        constant = tuple(name for name in spec.rewards if name in counted and len(self.values.get(name, ())) == 1)
        foreign = tuple(
            name for name, rises in self.rises.get("tool_output", {}).items() if max(rises, default=0.0) > SLACK
        )
        alike = _mean([float(one) for one in self.alike])
        faults = self._faults()
        findings = [
            *self._oracle_findings(),
            *self._attack_findings(attacks),
            *self._hole_findings(oracle or 0.0, attacks),
            *self.data,
        ]
        if alike is not None and alike > self.thresholds.no_signal:
            message = f"on {alike:.0%} of tasks all sampled answers score alike; there is nothing to learn"
            findings.append(Finding("no_signal", message))
        if faults is not None and faults.invalid:
            why = next(_invalid(ended) for ended in self.faults if _is_invalid(ended))
            message = f"{faults.invalid} of {faults.episodes} rewards are invalid when tools fail, such as {why}"
            findings.append(Finding("invalid_under_faults", message))
        if self.unfinished:
            findings.append(Finding("unfinished", self.unfinished))
        notes = list(self.notes)
        if constant:
            notes.append(f"terms that never vary here: {', '.join(constant)}")
        for split, columns in self.leaked.items():
            if columns:
                notes.append(f"columns that split '{split}' shows: {', '.join(sorted(columns))}")
        if environment.parts.tools and (missed := self.planted.count(False)):
            message = "no call went well, so that an answer was planted in failures alone"
            notes.append(f"on {missed} of {len(self.planted)} tasks {message}")
        if faults is not None and faults.gave_up:
            message = "the oracle could not go on without the results of calls that failed"
            notes.append(f"in {faults.gave_up} of {faults.episodes} episodes {message}")
        if not environment.parts.tools:
            notes.append("no tools: nothing could be planted in their output, and no faults put in")
        return Report(
            environment.id,
            environment.loaded.digest,
            self.tasks,
            oracle,
            tuple(self.below),
            attacks,
            alike,
            constant,
            foreign,
            faults,
            tuple(findings),
            tuple(notes),
        )

    def _attack(self, adversary: Adversary) -> Attack:
        found = _attack(adversary, self.played.get(adversary.name, ()))
        if adversary is CONSTANT and self.constants:
            does = f"{adversary.does} ({', '.join(repr(answer) for answer in dict.fromkeys(self.constants.values()))})"
            return dataclasses.replace(found, does=does)
        return found

    def _faults(self) -> Faults | None:
        if not self.faults:
            return None
        played = [ended for ended in self.faults if not _gave_up(ended)]
        rewards = [ended.reward.total for ended in played if ended.reward.total is not None]
        succeeded = [float(ended.success) for ended in played if ended.success is not None]
        invalid = sum(_is_invalid(ended) for ended in self.faults)
        gave_up = len(self.faults) - len(played)
        return Faults(self.fault_share, _mean(rewards), _mean(succeeded), invalid, len(self.faults), gave_up)

    def _oracle_findings(self) -> list[Finding]:
        if not self.below:
            return []
        shown = "; ".join(self.below[:_LISTED]) + ("; …" if len(self.below) > _LISTED else "")
        count = f"{len(self.below)} of {len(self.golds)} tasks"
        return [Finding("oracle_below_maximum", f"the oracle is below the maximum on {count}: {shown}")]

    def _attack_findings(self, attacks: Sequence[Attack]) -> list[Finding]:
        found = []
        for attack in attacks:
            if attack.share is not None and attack.share > self.thresholds.adversary:
                message = f"a policy that {attack.does} earns {attack.share:.2f} of the oracle's reward"
                message += self._mostly(attack)
                found.append(Finding(f"adversary:{attack.name}", message))
            if attack.invalid:
                message = f"{attack.invalid} of {attack.episodes} rewards of '{attack.name}' are invalid, such as "
                message += attack.why_invalid
                found.append(Finding("invalid_rewards", message))
        return found

    def _mostly(self, attack: Attack) -> str:
        """Which terms pay an adversary, the best-paying first."""
        rewards = self.environment.spec.rewards
        paid = {name: rewards[name].weight * value for name, value in (attack.terms or {}).items() if value is not None}
        named = sorted((name for name in paid if paid[name] > SLACK), key=lambda name: -paid[name])
        return f": {', '.join(f'{name} {paid[name]:.2f}' for name in named[:3])}" if named else ""

    def _hole_findings(self, oracle: float, attacks: Sequence[Attack]) -> list[Finding]:
        says: Mapping[str, str] = {
            "tool_output": "rises by {rise:.2f} when only what a tool wrote changes: it reads what is not the policy's",
            "judge_obeys": "rises by {rise:.2f} when the answer tells the judge what to give",
            "length_paid": "rises by {rise:.2f} when a wrong answer is longer",
            "form_only": "gives {rise:.2f} to a wrong answer for its form alone",
        }
        found = []
        for hole, sentence in says.items():
            for name, rises in self.rises.get(hole, {}).items():
                rise = _mean(rises) or 0.0
                # What a tool wrote must not count at all; the rest may count for a little.
                least = _RISES * oracle if hole == "tool_output" else self.thresholds.adversary * oracle
                if rise > max(least, SLACK):
                    found.append(Finding(hole, f"'{name}' {sentence.format(rise=rise)}", name))
        return found


def played_on(gold: Trajectory, found: Sequence[Trajectory]) -> Played:
    """What an adversary got in these episodes of a task."""
    valid = [ended for ended in found if ended.reward.total is not None]
    best = max(valid, key=lambda ended: ended.reward.total or 0.0, default=None)
    why = next((_invalid(ended) for ended in found if ended.reward.total is None), "")
    return Played(gold.task_index, gold.reward.total or 0.0, best, len(found) - len(valid), len(found), why)


def share_of(played: Sequence[Played]) -> float:
    """What it earned of the oracle's reward; minus infinity where nothing can be said."""
    valid = [(one.best.reward.total or 0.0, one.gold) for one in played if one.best is not None]
    gold = math.fsum(gold for _, gold in valid)
    return math.fsum(reward for reward, _ in valid) / gold if gold else -math.inf


def _gave_up(ended: Trajectory) -> bool:
    return ended.failure is not None and ended.failure.reason in _ORACLE_FAILED


def _is_invalid(ended: Trajectory) -> bool:
    return ended.reward.total is None and not _gave_up(ended)


def _invalid(ended: Trajectory) -> str:
    said = ended.failure.message if ended.failure is not None else "not a finite number"
    return f"{ended.split}/{ended.task_index}: {said:.200}"


def _below(gold: Trajectory, *, exempt: set[str]) -> str:
    """Why an oracle's episode is not at the maximum, "" where it is."""
    if gold.failure is not None:
        return f"{gold.failure.reason}: {gold.failure.message:.200}"
    low = [_low(term) for term in gold.reward.terms.values() if term.name not in exempt]
    if named := [why for why in low if why]:
        return ", ".join(named)
    return "" if gold.success or exempt else "no success"


def _low(term: TermResult) -> str:
    if term.value is None or not term.weight:
        return ""
    is_low = term.value < 1 - SLACK if term.weight > 0 else term.value > SLACK
    return f"{term.name} {term.value:g}" if is_low else ""


def _attack(adversary: Adversary, played: Sequence[Played]) -> Attack:
    valid = [(one, one.best) for one in played if one.best is not None]
    rewards = [best.reward.total or 0.0 for _, best in valid]
    gold = _mean([one.gold for one, _ in valid])
    mean = _mean(rewards)
    worst = max(valid, key=lambda pair: pair[1].reward.total or 0.0, default=None)
    terms: dict[str, float | None] = {}
    for name in valid[0][1].reward.terms if valid else ():
        values: list[Any] = [best.reward.terms[name].value for _, best in valid]
        terms[name] = _mean([value for value in values if value is not None])
    return Attack(
        adversary.name,
        adversary.does,
        sum(one.episodes for one in played),
        sum(one.invalid for one in played),
        mean,
        mean / gold if mean is not None and gold else None,
        None if worst is None else worst[1].reward.total,
        None if worst is None else worst[0].task,
        terms,
        next((one.why for one in played if one.why), ""),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
