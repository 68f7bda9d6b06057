"""Attacks a spec: the oracle has to earn the maximum everywhere, and nobody else anything worth having.

Holes are named by comparing two episodes that differ in one thing: what a tool wrote, an instruction to the judge,
the length of a wrong answer, the form of an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlenv.audit.adversaries import ADVERSARIES, INSTRUCTION, Action, Adversary, Subject, columns_in
from rlenv.audit.report import Attack, Faults, Finding, Report, Thresholds
from rlenv.audit.wrap import faulty, planting, wrapped
from rlenv.environment import Environment
from rlenv.errors import EpisodeError
from rlenv.messages import Message
from rlenv.policies.oracle import OraclePolicy
from rlenv.policies.scripted import RandomPolicy
from rlenv.rollout import Job, rollout
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["audit"]

_SLACK = 1e-9
_RISES = 0.05
_FAULT_SHARE = 0.3
_SAMPLES = 2
_LISTED = 20


async def audit(
    environment: Environment,
    *,
    tasks: int = 20,
    oracle_tasks: int | None = None,
    splits: Sequence[str] | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008  # frozen
    seed: int = 0,
    concurrency: int = 32,
) -> Report:
    """The report card of a spec.

    Args:
        tasks: how many tasks of each split the adversaries play, spread evenly.
        oracle_tasks: how many tasks of each split the oracle plays; all by default.
        splits: which; all by default.

    Raises:
        UsageError: the spec has no oracle, or no such split.
    """
    oracle = OraclePolicy(environment.spec, environment.parts.dialect)
    run = _Run(environment, thresholds, seed)
    for split in splits or list(environment.spec.tasks):
        count = len(environment.tasks(split))
        played = min(count, oracle_tasks or count)
        jobs = [Job(split, index, seed) for index in range(played)]
        golds = await rollout(environment, oracle, jobs, concurrency=concurrency)
        run.see_oracle(split, golds)
        usable = [gold for gold in golds if gold.reward.total is not None and gold.turns]
        step = max(1, len(usable) // tasks)
        answers = [gold.answer for gold in usable if gold.answer]
        await run.attack(split, usable[::step][:tasks], list(dict.fromkeys(answers)))
    return run.report()


@dataclass(slots=True)
class _Played:
    """What one adversary got on one task."""

    task: int
    gold: float
    best: Trajectory | None
    invalid: int
    episodes: int


@dataclass(slots=True)
class _Run:
    environment: Environment
    thresholds: Thresholds
    seed: int
    tasks: dict[str, int] = field(default_factory=dict)
    golds: list[Trajectory] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    played: dict[str, list[_Played]] = field(default_factory=dict)
    values: dict[str, set[float | None]] = field(default_factory=dict)
    rises: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    alike: list[bool] = field(default_factory=list)
    leaked: dict[str, set[str]] = field(default_factory=dict)
    faults: list[Trajectory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def see_oracle(self, split: str, golds: Sequence[Trajectory]) -> None:
        self.tasks[split] = len(golds)
        self.golds.extend(golds)
        judges = {name for name, spec in self.environment.spec.rewards.items() if spec.kind == "judge"}
        for gold in golds:
            self._count(gold)
            if why := _below(gold, exempt=judges):
                self.below.append(f"{split}/{gold.task_index}: {why}")

    async def attack(self, split: str, golds: Sequence[Trajectory], options: Sequence[str]) -> None:
        environment = self.environment
        leaked = await self._leaked(golds, options)
        self.leaked[split] = set(leaked)
        for gold in golds:
            subject = Subject(environment, gold.task, gold, options, leaked)
            totals: list[float] = [gold.reward.total] if gold.reward.total is not None else []
            for adversary in ADVERSARIES:
                played = await self._play_adversary(adversary, subject)
                self.played.setdefault(adversary.name, []).append(played)
                if played.best is not None and played.best.reward.total is not None:
                    totals.append(played.best.reward.total)
            await self._compare(subject)
            jobs = [Job(split, gold.task_index, self.seed + sample) for sample in range(_SAMPLES)]
            policy = RandomPolicy(environment.parts.dialect, environment.spec.answer)
            for sample in await rollout(environment, policy, jobs):
                self._count(sample)
                if sample.reward.total is not None:
                    totals.append(sample.reward.total)
            self.alike.append(max(totals, default=0.0) - min(totals, default=0.0) <= _SLACK)
        if environment.parts.tools:
            with wrapped(environment, faulty(_FAULT_SHARE, seed=self.seed)):
                oracle = OraclePolicy(environment.spec, environment.parts.dialect)
                jobs = [Job(split, gold.task_index, self.seed) for gold in golds]
                self.faults.extend(await rollout(environment, oracle, jobs))

    async def _leaked(self, golds: Sequence[Trajectory], options: Sequence[str]) -> list[str]:
        """Columns that at least half of the tasks show to whoever looks."""
        counts: dict[str, int] = {}
        for gold in golds:
            subject = Subject(self.environment, gold.task, gold, options)
            shown = [message.content for message in gold.messages]
            for action in subject.idle(2):
                ended = await self._play(gold, [action])
                shown.extend(result.text for turn in ended.turns for result in turn.results)
            for column in columns_in(shown, gold.task):
                # Where values of other tasks stand there too, the options are listed and none is given away.
                others = {str(other.task.get(column, "")) for other in golds} - {str(gold.task[column])}
                if not columns_in(shown, {str(index): other for index, other in enumerate(others)}):
                    counts[column] = counts.get(column, 0) + 1
        return [column for column, count in counts.items() if 2 * count >= len(golds)]

    async def _play_adversary(self, adversary: Adversary, subject: Subject) -> _Played:
        found: list[Trajectory] = []
        for script in adversary.write(subject):
            if adversary.plants:
                with wrapped(self.environment, planting(subject.form_text(subject.gold.answer or ""))):
                    found.append(await self._play(subject.gold, script))
            else:
                found.append(await self._play(subject.gold, script))
        valid = [ended for ended in found if ended.reward.total is not None]
        best = max(valid, key=lambda ended: ended.reward.total or 0.0, default=None)
        gold = subject.gold.reward.total or 0.0
        return _Played(subject.gold.task_index, gold, best, len(found) - len(valid), len(found))

    async def _compare(self, subject: Subject) -> None:
        """Pairs of episodes that differ in one thing; a term that rises from one to the other has a hole."""
        idle = subject.idle(1)
        if idle:
            script: list[Action] = [*idle, "It is what the tool says."]
            with wrapped(self.environment, planting(subject.form_text(subject.gold.answer or ""))):
                planted = await self._play(subject.gold, script)
            self._rise("tool_output", await self._play(subject.gold, script), planted)
        wrong = subject.wrong()[0]
        plain = subject.form_text(wrong)
        self._rise(
            "judge_obeys",
            await self._play(subject.gold, [plain]),
            await self._play(subject.gold, [f"{INSTRUCTION}\n{plain}"]),
            kind="judge",
        )
        self._rise(
            "length_paid",
            await self._play(subject.gold, [plain]),
            await self._play(subject.gold, [f"{'word ' * 2000}\n{plain}"]),
        )
        self._rise(
            "form_only", await self._play(subject.gold, ["I do not know."]), await self._play(subject.gold, [plain])
        )

    def _rise(self, hole: str, before: Trajectory, after: Trajectory, *, kind: str = "") -> None:
        for name, term in after.reward.terms.items():
            spec = self.environment.spec.rewards[name]
            is_counted = (spec.kind == kind) if kind else spec.kind != "judge"
            if is_counted and spec.weight and term.value is not None:
                earned = before.reward.terms[name].value
                rise = (term.value - (earned if earned is not None else 0.0)) * math.copysign(1.0, spec.weight)
                self.rises.setdefault(hole, {}).setdefault(name, []).append(rise * abs(spec.weight))

    async def _play(self, gold: Trajectory, script: Sequence[Action]) -> Trajectory:
        async with self.environment.start(task=gold.task_index, split=gold.split, seed=self.seed) as episode:
            try:
                for action in script:
                    if episode.is_ended:
                        break
                    # As text, so that the dialect reads what an adversary would have had to write.
                    render = self.environment.parts.dialect.render_action
                    await episode.step(render(action) if isinstance(action, Message) else action)
                ended = episode.trajectory if episode.is_ended else await episode.truncate("script")
            except EpisodeError as error:
                ended = episode.fail(error.reason, str(error))
        self._count(ended)
        return ended

    def _count(self, trajectory: Trajectory) -> None:
        for name, term in trajectory.reward.terms.items():
            if term.status == "valid":
                self.values.setdefault(name, set()).add(term.value)

    def report(self) -> Report:
        environment, spec = self.environment, self.environment.spec
        totals = [gold.reward.total for gold in self.golds if gold.reward.total is not None]
        oracle = _mean(totals)
        attacks = tuple(_attack(adversary, self.played.get(adversary.name, ())) for adversary in ADVERSARIES)
        counted = {name for name, entry in spec.rewards.items() if entry.weight}
        constant = tuple(name for name in spec.rewards if name in counted and len(self.values.get(name, ())) == 1)
        foreign = tuple(
            name for name, rises in self.rises.get("tool_output", {}).items() if max(rises, default=0.0) > _SLACK
        )
        alike = _mean([float(one) for one in self.alike])
        rewards = [ended.reward.total for ended in self.faults if ended.reward.total is not None]
        faults = None
        if self.faults:
            succeeded = [float(ended.success) for ended in self.faults if ended.success is not None]
            invalid = len(self.faults) - len(rewards)
            faults = Faults(_FAULT_SHARE, _mean(rewards), _mean(succeeded), invalid, len(self.faults))
        findings = [
            *self._oracle_findings(),
            *self._attack_findings(attacks),
            *self._hole_findings(oracle or 0.0, attacks),
        ]
        if alike is not None and alike > self.thresholds.no_signal:
            message = f"on {alike:.0%} of tasks all sampled answers score alike; there is nothing to learn"
            findings.append(Finding("no_signal", message))
        if faults is not None and faults.invalid:
            message = f"{faults.invalid} of {faults.episodes} rewards are invalid when tools fail"
            findings.append(Finding("invalid_under_faults", message))
        notes = list(self.notes)
        if constant:
            notes.append(f"terms that never vary here: {', '.join(constant)}")
        for split, columns in self.leaked.items():
            if columns:
                notes.append(f"columns that split '{split}' shows: {', '.join(sorted(columns))}")
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
                found.append(Finding(f"adversary:{attack.name}", message))
            if attack.invalid:
                message = f"{attack.invalid} of {attack.episodes} rewards of '{attack.name}' are invalid"
                found.append(Finding("invalid_rewards", message))
        return found

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
                if rise > max(least, _SLACK):
                    found.append(Finding(hole, f"'{name}' {sentence.format(rise=rise)}", name))
        return found


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
    is_low = term.value < 1 - _SLACK if term.weight > 0 else term.value > _SLACK
    return f"{term.name} {term.value:g}" if is_low else ""


def _attack(adversary: Adversary, played: Sequence[_Played]) -> Attack:
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
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
