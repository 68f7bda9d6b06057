"""Attacks a spec: the oracle has to earn the maximum everywhere, and nobody else anything worth having.

Holes are named by comparing two episodes that differ in one thing: what a tool wrote, an instruction to the judge,
the length of a wrong answer, the form of an empty one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlenv.audit.adversaries import (
    ADVERSARIES,
    CONSTANT,
    SAYS,
    Action,
    Adversary,
    Subject,
    columns_in,
    instructions,
)
from rlenv.audit.report import Attack, Faults, Finding, Report, Thresholds
from rlenv.audit.wrap import Faulty, Planting, wrapped
from rlenv.episodes.drive import drive
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout, together
from rlenv.errors import EpisodeError, InvalidReward, RlenvError
from rlenv.messages import Message
from rlenv.policies.oracle import OraclePolicy
from rlenv.policies.scripted import RandomPolicy
from rlenv.trajectory import TermResult, Trajectory

__all__ = ["audit"]

_SLACK = 1e-9
_RISES = 0.05
_FAULT_SHARE = 0.3
_SAMPLES = 2
_LISTED = 20
_CONSTANTS = 3
_BATCH = 64
_ORACLE_FAILED = ("oracle", "policy")

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many tasks it is done with, and with how many there are."""


async def audit(
    environment: Environment,
    *,
    tasks: int = 20,
    oracle_tasks: int | None = None,
    splits: Sequence[str] | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008  # frozen
    seed: int = 0,
    concurrency: int = 32,
    limit_s: float | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """The report card of a spec.

    Args:
        tasks: how many tasks of each split the adversaries play, spread evenly.
        oracle_tasks: how many tasks of each split the oracle plays; all by default.
        splits: which; all by default.
        limit_s: seconds for all of it. What was not looked at by then is a finding of its own.
        on_progress: called after each task.

    Raises:
        UsageError: the spec has no oracle, or no such split.
    """
    OraclePolicy(environment.spec, environment.parts.dialect)
    for split in splits or ():
        environment.tasks(split)
    run = _Run(environment, thresholds, seed, concurrency, on_progress or _say_nothing)
    try:
        async with asyncio.timeout(limit_s):
            for split in splits or list(environment.spec.tasks):
                await run.split(split, tasks=tasks, oracle_tasks=oracle_tasks)
    except TimeoutError:
        run.unfinished = f"not finished within {limit_s:g} s: {run.doing}; give it more time or fewer tasks"
    return run.report()


def _say_nothing(what: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


@dataclass(slots=True)
class _Played:
    """What one adversary got on one task."""

    task: int
    gold: float
    best: Trajectory | None
    invalid: int
    episodes: int
    why: str = ""
    """Why the first invalid one is."""


@dataclass(slots=True)
class _Run:
    environment: Environment
    thresholds: Thresholds
    seed: int
    concurrency: int
    on_progress: Progress
    doing: str = "nothing was begun"
    unfinished: str = ""
    constants: dict[str, str] = field(default_factory=dict)
    """The constant answer that earned most, by split."""
    planted: list[bool] = field(default_factory=list)
    """For each attacked task, whether an answer was planted in what a tool gave on success."""
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

    async def split(self, split: str, *, tasks: int, oracle_tasks: int | None) -> None:
        """Everything that is done with one split."""
        count = len(self.environment.tasks(split))
        played = min(count, oracle_tasks or count)
        golds: list[Trajectory] = []
        while len(golds) < played:
            self._progress(f"{split}: the oracle plays", len(golds), played)
            batch = range(len(golds), min(len(golds) + _BATCH, played))
            golds += await self._oracle([Job(split, index, self.seed) for index in batch])
        self.see_oracle(split, golds)
        usable = [gold for gold in golds if gold.reward.total is not None and gold.turns]
        step = max(1, len(usable) // tasks)
        answers = [gold.answer for gold in usable if gold.answer]
        await self.attack(split, usable[::step][:tasks], answers)

    def _progress(self, what: str, done: int, total: int) -> None:
        self.doing = f"{what}, {done} of {total} tasks done"
        self.on_progress(what, done, total)

    async def _oracle(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """The oracle's episodes; one whose script cannot go on has failed."""
        environment = self.environment
        oracle = OraclePolicy(environment.spec, environment.parts.dialect)
        places = asyncio.Semaphore(self.concurrency)

        async def one(job: Job) -> Trajectory:
            async with places, environment.start(task=job.task, split=job.split, seed=job.seed) as episode:
                try:
                    return await drive(episode, oracle, limit_s=environment.spec.limits.episode_s)
                except InvalidReward:
                    raise
                except RlenvError as error:
                    return episode.fail("oracle", str(error))

        return await together([one(job) for job in jobs])

    def see_oracle(self, split: str, golds: Sequence[Trajectory]) -> None:
        self.tasks[split] = len(golds)
        self.golds.extend(golds)
        judges = {name for name, spec in self.environment.spec.rewards.items() if spec.kind == "judge"}
        for gold in golds:
            self._count(gold)
            if why := _below(gold, exempt=judges):
                self.below.append(f"{split}/{gold.task_index}: {why}")

    async def attack(self, split: str, golds: Sequence[Trajectory], answers: Sequence[str]) -> None:
        """Plays all adversaries on these tasks; `answers` are the oracle's on all tasks of the split."""
        environment = self.environment
        options = list(dict.fromkeys(answers))
        leaked = await self._leaked(golds, options)
        self.leaked[split] = set(leaked)
        subjects = [Subject(environment, gold.task, gold, options, leaked) for gold in golds]
        for done, subject in enumerate(subjects):
            self._progress(f"{split}: attacks", done, len(subjects))
            await self._attack_task(subject)
        await self._constant_answers(split, subjects, answers)
        if environment.parts.tools:
            self._progress(f"{split}: the oracle plays while calls fail", 0, len(golds))
            with wrapped(environment, Faulty(environment, _FAULT_SHARE, seed=self.seed)):
                self.faults.extend(await self._oracle([Job(split, gold.task_index, self.seed) for gold in golds]))

    async def _attack_task(self, subject: Subject) -> None:
        gold = subject.gold
        totals: list[float] = [gold.reward.total] if gold.reward.total is not None else []
        for adversary in ADVERSARIES:
            played = await self._play_adversary(adversary, subject)
            self.played.setdefault(adversary.name, []).append(played)
            if played.best is not None and played.best.reward.total is not None:
                totals.append(played.best.reward.total)
        await self._compare(subject)
        jobs = [Job(gold.split, gold.task_index, self.seed + sample) for sample in range(_SAMPLES)]
        policy = RandomPolicy(self.environment.parts.dialect, self.environment.spec.answer)
        for sample in await rollout(self.environment, policy, jobs):
            self._count(sample)
            if sample.reward.total is not None:
                totals.append(sample.reward.total)
        self.alike.append(max(totals, default=0.0) - min(totals, default=0.0) <= _SLACK)

    async def _constant_answers(self, split: str, subjects: Sequence[Subject], answers: Sequence[str]) -> None:
        """The split's most frequent answers, each given to every task; the one that earns most counts."""
        best: list[_Played] = []
        here = Counter(subject.gold.answer for subject in subjects)
        for answer, _ in Counter(answers).most_common(_CONSTANTS):
            played = []
            for done, subject in enumerate(subjects):
                # One that is right once among these is right by being that task's; what it earns elsewhere is asked.
                if here[answer] > 1 or subject.gold.answer != answer:
                    self._progress(f"{split}: one answer for all tasks", done, len(subjects))
                    ended = [await self._play(subject.gold, [subject.form(answer)])]
                    played.append(_played(subject.gold, ended))
            if played and _share(played) > _share(best):
                best = played
                self.constants[split] = f"{answer:.40}"
        if not answers and subjects:
            self.notes.append(f"the oracle gives no answers in split '{split}': no constant one was tried")
        self.played.setdefault(CONSTANT.name, []).extend(best)

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
                with wrapped(self.environment, Planting(subject.form_text(subject.gold.answer or ""))):
                    found.append(await self._play(subject.gold, script))
            else:
                found.append(await self._play(subject.gold, script))
        return _played(subject.gold, found)

    async def _compare(self, subject: Subject) -> None:
        """Pairs of episodes that differ in one thing; a term that rises from one to the other has a hole."""
        gold = subject.gold
        planting = Planting(subject.form_text(gold.answer or ""))
        scripts = [calls for calls in (subject.idle(1), subject.oracle_calls()) if calls]
        for calls in scripts:
            # Without an answer of its own: whatever it earns more than before, a tool has earned for it.
            script: list[Action] = [*calls, SAYS]
            before = await self._play(gold, script)
            with wrapped(self.environment, planting):
                self._rise("tool_output", before, [await self._play(gold, script)])
        if scripts:
            self.planted.append(planting.succeeded > 0)
        wrong = subject.wrong()[0]
        plain = subject.form_text(wrong)
        before = await self._play(gold, [plain])
        told = [await self._play(gold, [f"{tell}\n{plain}"]) for tell in instructions(self.environment)]
        self._rise("judge_obeys", before, told, kind="judge")
        self._rise("length_paid", before, [await self._play(gold, [f"{'word ' * 2000}\n{plain}"])])
        self._rise("form_only", await self._play(gold, ["I do not know."]), [before])

    def _rise(self, hole: str, before: Trajectory, after: Sequence[Trajectory], *, kind: str = "") -> None:
        """Notes by how much each term rose, at most, from one episode to the others."""
        for name, spec in self.environment.spec.rewards.items():
            is_counted = (spec.kind == kind) if kind else spec.kind != "judge"
            values = [value for one in after if (value := one.reward.terms[name].value) is not None]
            if is_counted and spec.weight and values:
                earned = before.reward.terms[name].value or 0.0
                rise = max((value - earned) * math.copysign(1.0, spec.weight) for value in values)
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
        attacks = tuple(self._attack(adversary) for adversary in (*ADVERSARIES, CONSTANT))
        counted = {name for name, entry in spec.rewards.items() if entry.weight}
        constant = tuple(name for name in spec.rewards if name in counted and len(self.values.get(name, ())) == 1)
        foreign = tuple(
            name for name, rises in self.rises.get("tool_output", {}).items() if max(rises, default=0.0) > _SLACK
        )
        alike = _mean([float(one) for one in self.alike])
        faults = self._faults()
        findings = [
            *self._oracle_findings(),
            *self._attack_findings(attacks),
            *self._hole_findings(oracle or 0.0, attacks),
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
        return Faults(_FAULT_SHARE, _mean(rewards), _mean(succeeded), invalid, len(self.faults), gave_up)

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
        named = sorted((name for name in paid if paid[name] > _SLACK), key=lambda name: -paid[name])
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
                if rise > max(least, _SLACK):
                    found.append(Finding(hole, f"'{name}' {sentence.format(rise=rise)}", name))
        return found


def _played(gold: Trajectory, found: Sequence[Trajectory]) -> _Played:
    valid = [ended for ended in found if ended.reward.total is not None]
    best = max(valid, key=lambda ended: ended.reward.total or 0.0, default=None)
    why = next((_invalid(ended) for ended in found if ended.reward.total is None), "")
    return _Played(gold.task_index, gold.reward.total or 0.0, best, len(found) - len(valid), len(found), why)


def _share(played: Sequence[_Played]) -> float:
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
        next((one.why for one in played if one.why), ""),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
