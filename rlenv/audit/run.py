"""Attacks a spec: the oracle has to earn the maximum everywhere, and nobody else anything worth having.

Holes are named by comparing two episodes that differ in one thing: what a tool wrote, an instruction to the judge,
the length of a wrong answer, the form of an empty one.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlenv.audit.account import SLACK, Account, Played, played_on, share_of
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
from rlenv.audit.checked import check_data
from rlenv.audit.report import Report, Thresholds
from rlenv.audit.wrap import Faulty, Planting, wrapped
from rlenv.episodes.drive import drive
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout, together
from rlenv.errors import EpisodeError, InvalidReward, RlenvError
from rlenv.messages import Message
from rlenv.policies.oracle import OraclePolicy
from rlenv.policies.scripted import RandomPolicy
from rlenv.trajectory import Trajectory

__all__ = ["audit"]

_FAULT_SHARE = 0.3
_SAMPLES = 2
_CONSTANTS = 3
_BATCH = 64

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
    seen = Account(environment, thresholds, _FAULT_SHARE)
    run = _Run(environment, seed, concurrency, on_progress or _say_nothing, seen)
    try:
        async with asyncio.timeout(limit_s):
            for split in splits or list(environment.spec.tasks):
                await run.split(split, tasks=tasks, oracle_tasks=oracle_tasks)
            run.doing = "the rows were being looked at"
            seen.see_data(*await check_data(environment, seen.golds, seed=seed))
    except TimeoutError:
        seen.unfinished = f"not finished within {limit_s:g} s: {run.doing}; give it more time or fewer tasks"
    return seen.report()


def _say_nothing(what: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


@dataclass(slots=True)
class _Run:
    """Who plays what, and in which order; what comes of it stands in `seen`."""

    environment: Environment
    seed: int
    concurrency: int
    on_progress: Progress
    seen: Account
    doing: str = "nothing was begun"

    async def split(self, split: str, *, tasks: int, oracle_tasks: int | None) -> None:
        """Everything that is done with one split."""
        count = len(self.environment.tasks(split))
        played = min(count, oracle_tasks or count)
        golds: list[Trajectory] = []
        while len(golds) < played:
            self._progress(f"{split}: the oracle plays", len(golds), played)
            batch = range(len(golds), min(len(golds) + _BATCH, played))
            golds += await self._oracle([Job(split, index, self.seed) for index in batch])
        self.seen.see_oracle(split, golds)
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

    async def attack(self, split: str, golds: Sequence[Trajectory], answers: Sequence[str]) -> None:
        """Plays all adversaries on these tasks; `answers` are the oracle's on all tasks of the split."""
        environment = self.environment
        options = list(dict.fromkeys(answers))
        leaked = await self._leaked(golds, options)
        self.seen.leaked[split] = set(leaked)
        subjects = [Subject(environment, gold.task, gold, options, leaked) for gold in golds]
        for done, subject in enumerate(subjects):
            self._progress(f"{split}: attacks", done, len(subjects))
            await self._attack_task(subject)
        await self._constant_answers(split, subjects, answers)
        if environment.parts.tools:
            self._progress(f"{split}: the oracle plays while calls fail", 0, len(golds))
            with wrapped(environment, Faulty(environment, _FAULT_SHARE, seed=self.seed)):
                self.seen.faults.extend(await self._oracle([Job(split, gold.task_index, self.seed) for gold in golds]))

    async def _attack_task(self, subject: Subject) -> None:
        gold = subject.gold
        totals: list[float] = [gold.reward.total] if gold.reward.total is not None else []
        for adversary in ADVERSARIES:
            played = await self._play_adversary(adversary, subject)
            self.seen.played.setdefault(adversary.name, []).append(played)
            if played.best is not None and played.best.reward.total is not None:
                totals.append(played.best.reward.total)
        await self._compare(subject)
        jobs = [Job(gold.split, gold.task_index, self.seed + sample) for sample in range(_SAMPLES)]
        policy = RandomPolicy(self.environment.parts.dialect, self.environment.spec.answer)
        for sample in await rollout(self.environment, policy, jobs):
            self.seen.count(sample)
            if sample.reward.total is not None:
                totals.append(sample.reward.total)
        self.seen.alike.append(max(totals, default=0.0) - min(totals, default=0.0) <= SLACK)

    async def _constant_answers(self, split: str, subjects: Sequence[Subject], answers: Sequence[str]) -> None:
        """The split's most frequent answers, each given to every task; the one that earns most counts."""
        best: list[Played] = []
        here = Counter(subject.gold.answer for subject in subjects)
        for answer, _ in Counter(answers).most_common(_CONSTANTS):
            played = []
            for done, subject in enumerate(subjects):
                # One that is right once among these is right by being that task's; what it earns elsewhere is asked.
                if here[answer] > 1 or subject.gold.answer != answer:
                    self._progress(f"{split}: one answer for all tasks", done, len(subjects))
                    ended = [await self._play(subject.gold, [subject.form(answer)])]
                    played.append(played_on(subject.gold, ended))
            if played and share_of(played) > share_of(best):
                best = played
                self.seen.constants[split] = f"{answer:.40}"
        if not answers and subjects:
            self.seen.notes.append(f"the oracle gives no answers in split '{split}': no constant one was tried")
        self.seen.played.setdefault(CONSTANT.name, []).extend(best)

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

    async def _play_adversary(self, adversary: Adversary, subject: Subject) -> Played:
        found: list[Trajectory] = []
        for script in adversary.write(subject):
            if adversary.plants:
                with wrapped(self.environment, Planting(subject.form_text(subject.gold.answer or ""))):
                    found.append(await self._play(subject.gold, script))
            else:
                found.append(await self._play(subject.gold, script))
        return played_on(subject.gold, found)

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
            self.seen.planted.append(planting.succeeded > 0)
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
                self.seen.rises.setdefault(hole, {}).setdefault(name, []).append(rise * abs(spec.weight))

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
        self.seen.count(ended)
        return ended
