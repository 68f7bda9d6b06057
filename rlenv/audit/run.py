"""Attacks a spec: the oracle has to earn the maximum everywhere, and nobody else anything worth having.

What adversaries earn is judged by `audit.verdicts`; what a tool wrote must not count, which is seen by comparing two
episodes that differ in nothing else."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from rlenv.audit import asking
from rlenv.audit.account import AuditTally
from rlenv.audit.adversaries import ADVERSARIES, SAYS, Write, find_in_machines
from rlenv.audit.attacker import AttackResult, try_attacker
from rlenv.audit.data import check_data, warnings_as_holes
from rlenv.audit.judge_attacks import JudgeAttacks, attack_judges
from rlenv.audit.leaks import read_places
from rlenv.audit.play import Adaptive, Chapter, Planting, ScriptPlayer, Way, failing_calls, planted, script_of, total_of
from rlenv.audit.report import Attacker, AuditReport, Hole, Thresholds
from rlenv.audit.rewrites import count_item_places, rewrite_scripts
from rlenv.audit.shortcuts import find_shortcut
from rlenv.audit.state import attack_state
from rlenv.audit.subject import Action, AuditSubject, Progress, answer_hearts, options_of
from rlenv.audit.telling import check_channels, check_steadiness, talk_to_user, tell_tools
from rlenv.audit.texts import shrug
from rlenv.audit.variants import variant_scripts
from rlenv.audit.verdicts import share_of
from rlenv.endpoints import Endpoint
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, gather_all, rollout
from rlenv.errors import UsageError
from rlenv.policies.scripted import RandomPolicy
from rlenv.rewards.judge import JudgeSpec
from rlenv.tasks.rows import seed_of
from rlenv.trajectory import Trajectory

_FAULT_SHARE = 0.3
_SAMPLES = 2
_CONSTANTS = 3
_BATCH = 64
_WIDE = 200
_QUICK_S = 0.05
_MOST_OPTIONS = 12
_FIRST = 8
_WORD = re.compile(r"\w+")
_EPISODES = 200
"""Episodes on each task that is attacked; with room for those that wait for a program that hangs."""

Subjects = Sequence[AuditSubject]


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
    judged: int = 6,
    attacker: Attacker | None = None,
    reader: Endpoint | None = None,
) -> AuditReport:
    """The report card of a spec.

    Args:
        tasks: how many tasks of each split the adversaries play, spread evenly. Those that look for holes behind a few
            tasks play more, up to 200, where episodes are quick and no judge is asked.
        oracle_tasks: how many tasks of each split the oracle plays; all by default.
        splits: which; all by default.
        limit_s: seconds for all of it. What was not looked at by then is a finding of its own.
        on_progress: called before each step.
        judged: on how many tasks each judge is attacked by itself; 0 for none.
        attacker: the model that attacks the reward; without one the report says that none did.
        reader: a model that reads the spec, as `validate` asks it; what it finds is a finding.

    Raises:
        UsageError: the spec has no oracle, no such split, or several players.
    """
    if environment.players is not None:  # before an oracle is asked for in vain
        raise UsageError(
            "an audit asks what is earned without playing well, and that depends on the other players",
            hint="rlenv eval SPEC --policy random --set user.opponent=oracle",
        )
    environment.oracle()
    for split in splits or ():
        environment.tasks(split)
    seen = AuditTally(environment, thresholds, _FAULT_SHARE)
    end = None if limit_s is None else time.monotonic() + limit_s
    run = _Run(environment, seed, concurrency, on_progress or (lambda what, done, total: None), seen, end)
    models = _ModelAttacks(thresholds.adversary, seed, run._report_progress)
    try:
        async with asyncio.timeout(limit_s):
            chosen = list(splits or environment.spec.tasks)
            for number, split in enumerate(chosen):
                await run.attack_split(split, tasks=tasks, oracle_tasks=oracle_tasks, splits=len(chosen) - number)
            run.doing = "the rows are looked at"
            found, notes = check_data(environment, seen.golds)
            seen.data += found
            seen.warned = await asyncio.to_thread(warnings_as_holes, environment, reader)
            seen.notes += notes
            await models.attack_judges(environment, seen.golds, tasks=judged)
            await models.attack(environment, seen.golds, attacker)
    except TimeoutError:
        seen.unfinished = f"not finished within {limit_s:g} s: {run.doing}; give it more time or fewer tasks"
    return models.add_to_report(seen.report())


@dataclass(slots=True)
class _Run:
    """The episodes of an audit, in their order; what is observed of them stands in `seen`."""

    environment: Environment
    seed: int
    concurrency: int
    on_progress: Progress
    seen: AuditTally
    end: float | None
    """When the time is up."""
    doing: str = "nothing was begun"

    async def attack_split(self, split: str, *, tasks: int, oracle_tasks: int | None, splits: int) -> None:
        """Everything that is done with one split, the first of so many that share the time."""
        count = len(self.environment.tasks(split))
        played = min(count, oracle_tasks or count)
        golds: list[Trajectory] = []
        began = time.monotonic()
        while len(golds) < played:
            self._report_progress(f"{split}: the oracle plays", len(golds), played)
            batch = range(len(golds), min(len(golds) + _BATCH, played))
            golds += await self._golds([Job(split, index, seed_of(self.seed, split, index)) for index in batch])
        self.seen.add_oracle(split, golds)
        fits = tasks
        if self.end is not None and golds:
            each_s, most = (time.monotonic() - began) / len(golds), min(tasks, len(golds))
            if (fits := count_fitting_tasks(most, each_s, (self.end - time.monotonic()) / splits)) < most:
                why = f"an episode takes {each_s:.2g} s here: give --time-limit more, also where a finding rests on few"
                self.seen.notes.append(f"split '{split}': {fits} of {most} tasks were attacked, since {why}")
        usable = [gold for gold in golds if gold.reward.total is not None and gold.turns]
        if usable:
            await self._attack(split, usable, _spread_evenly(usable, tasks), fits)

    def _report_progress(self, what: str, done: int, total: int) -> None:
        self.doing = f"{what}, {done} of {total} done"
        self.on_progress(what, done, total)

    async def _golds(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """The oracle's episodes; one whose script cannot go on has failed."""
        oracle = self.environment.oracle()
        return await rollout(self.environment, oracle, jobs, concurrency=self.concurrency)

    async def _attack(self, split: str, usable: Sequence[Trajectory], peers: Sequence[Trajectory], tasks: int) -> None:
        """Plays all adversaries on so many of a split's `peers`, which are tasks that name values for each other."""
        answers = [gold.answer for gold in usable if gold.answer]
        options = list(dict.fromkeys(answers))
        chosen = _spread_evenly(peers, tasks)
        attacked = [AuditSubject(self.environment, gold, options, peers) for gold in chosen]
        wide = [AuditSubject(self.environment, gold, options, peers) for gold in self._wide_tasks(usable, chosen)]
        chapter = Chapter(split, {(gold.split, gold.task_index): gold for gold in usable}, len(set(answers)))
        everyone = [AuditSubject(self.environment, gold, options, peers) for gold in usable]
        chapter.hearts = dict(zip(chapter.golds, answer_hearts(everyone), strict=True))
        self.seen.chapters.append(chapter)
        player = ScriptPlayer(self.environment, concurrency=self.concurrency, seen=self.seen.note_values)
        steps = len(ADVERSARIES) + 1
        for done, adversary in enumerate(ADVERSARIES):
            self._report_progress(f"{split}: attacks", done, steps)
            subjects = wide if adversary.wide else attacked
            few = 0 if adversary.partial or adversary.wide else _FIRST
            chapter.ways[adversary.name] = ways = await _play(player, subjects, adversary.write, first=few)
            earns = any(share_of(way, chapter.golds) > self.seen.thresholds.adversary for way in ways)
            if adversary.control is not None and earns:
                chapter.controls[adversary.name] = await _play(player, subjects, adversary.control)
        await _play_variants(player, chapter, wide)
        await check_steadiness(player, chapter, attacked)
        if self.environment.has_tools:
            await check_channels(player, chapter, attacked)
        await self._play_planted(player, attacked)
        await self._play_stateful(player, chapter, attacked)
        self.seen.data += await find_in_machines(player, attacked)
        self.seen.notes += await read_places(player, chapter, everyone, attacked)
        await self._play_guesses(player, chapter, attacked, wide, everyone)
        self._report_progress(f"{split}: attacks", steps - 1, steps)
        await self._play_random(chapter, chosen)
        if self.environment.has_tools:
            self._report_progress(f"{split}: the oracle plays while calls fail", 0, len(chosen))
            with failing_calls(self.environment, _FAULT_SHARE, seed=self.seed):
                self.seen.faults.extend(await self._golds([Job(split, gold.task_index, gold.seed) for gold in chosen]))

    def _wide_tasks(self, usable: Sequence[Trajectory], chosen: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """The tasks on which holes are looked for that few tasks have."""
        asks = any(term.spec.kind == "judge" for term in self.environment.parts.terms)
        seconds = math.fsum(gold.seconds for gold in usable) / len(usable)
        if asks or seconds > _QUICK_S:
            self.seen.notes.append(
                f"split '{chosen[0].split}': holes behind a few tasks were looked for on {len(chosen)} tasks alone, "
                + ("since each episode asks a judge" if asks else "since its episodes are slow")
            )
            return chosen
        return _spread_evenly(usable, max(_WIDE, len(chosen)))

    async def _play_planted(self, player: ScriptPlayer, subjects: Sequence[AuditSubject]) -> None:
        """Pairs of episodes that differ in what tools wrote; a term that rises has read what is not the policy's."""
        for subject in subjects:
            gold = subject.gold
            planting = Planting(subject.form_text(subject.right))
            scripts = [calls for calls in (subject.idle(1), subject.oracle_actions()) if calls]
            for calls in scripts:
                # Without an answer of its own: whatever it earns more than before, a tool has earned for it.
                script: list[Action] = [*calls, SAYS]
                before = await player.play(gold, script)
                with planted(self.environment, planting):
                    self.seen.note_rise(before, await player.play(gold, script))
            if scripts:
                self.seen.planted.append(planting.succeeded > 0)

    async def _play_stateful(self, player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
        """Tools that change something, users that talk, and what can be asked for each answer."""
        chapter.worked = await player.way(subjects, lambda one: [*one.oracle_actions(), shrug(one.asked)])
        chapter.tried["another"].append(("", await player.way(subjects, asking.other_script)))
        await attack_state(player, chapter, subjects)
        await tell_tools(player, chapter, subjects)
        await talk_to_user(player, chapter, subjects)
        if self.environment.spec.answer.from_ == "tool":
            # One that refuses what is wrong ends nothing by it, and is asked again.
            way = await player.way(subjects, lambda one: [one.form(said) for said in (*one.wrong()[:2], one.right)])
            chapter.tried["asked_until_right"].append((f"{self.environment.spec.answer.tool}, which refuses,", way))
        targets = {subject.gold.task_index: asking.targets_of(subject) for subject in subjects}
        for name in list(dict.fromkeys(name for found in targets.values() for name in found))[:8]:
            for how in (asking.ask_each, asking.ask_halving):
                way = await player.way(subjects, partial(_asking_script, targets, name, how))
                if asking.tells_apart(way, chapter, name, [found[name] for found in targets.values() if name in found]):
                    chapter.tried["asked_until_right"].append((name, way))

    async def _play_guesses(
        self, player: ScriptPlayer, chapter: Chapter, subjects: Subjects, wide: Subjects, everyone: Subjects
    ) -> None:
        """The split's most frequent answers, each given to every task, and a choice among a task's own options."""
        here, answers = Counter(one.gold.answer for one in wide), [one.right for one in everyone if one.right]
        for answer, _ in Counter(answers).most_common(_CONSTANTS):
            # One that is right once among these is right by being that task's; what it earns elsewhere is asked.
            others = [one for one in wide if here[answer] > 1 or one.gold.answer != answer]
            way = await player.way(others, partial(_answer_script, said=answer))
            if way:
                chapter.constants.append((answer, way))
        if said := _commonest_signs(list(dict.fromkeys(answers))):
            others = [one for one in wide if one.gold.answer != said]
            chapter.tried["commonest"].append((said, await player.way(others, partial(_answer_script, said=said))))
        words = Counter(word for answer in answers for word in _WORD.findall(answer))
        for word, count in words.most_common(1) if words.total() > _FIRST * len(answers) / 2 else ():
            if 2 * count > words.total():  # a part that may be all of an answer
                way = await player.way(wide, lambda one, word=word: [one.form(_WORD.sub(word, one.right))])  # type: ignore[misc]
                chapter.tried["commonest"].append((f"{word} {word} {word} …", way))
        if (shortcut := find_shortcut(everyone)) is not None:
            chapter.tried["shortcut"].append((shortcut, await player.way(subjects, partial(_shortcut, shortcut.taken))))
        if not answers:
            self.seen.notes.append(f"the oracle gives no answers in split '{chapter.split}': no guess was tried")
        listed = [(one, options_of(one)[:_MOST_OPTIONS]) for one in subjects]
        for number in range(max((len(found) for _, found in listed), default=0)):
            chosen = {one.gold.task_index: found[number] for one, found in listed if number < len(found)}
            chapter.choices.append(await player.way(subjects, partial(_shortcut, chosen)))

    async def _play_random(self, chapter: Chapter, golds: Sequence[Trajectory]) -> None:
        """Two random policies; whether everybody scores alike is seen with what the adversaries got."""
        places = [(gold.split, gold.task_index) for gold in golds]
        jobs = [Job(*at, seed_of(self.seed, *at, sample)) for at in places for sample in range(_SAMPLES)]
        policy = RandomPolicy(self.environment.parts.dialect, self.environment.spec.answer)
        samples = await rollout(self.environment, policy, jobs)
        for sample in samples:
            self.seen.note_values(sample)
        self.seen.note_signal(chapter, golds, samples)


def count_fitting_tasks(tasks: int, each_s: float, share_s: float) -> int:
    """How many of so many tasks can be attacked in a share of the time, by what an episode takes; 1 at least."""
    return min(tasks, max(1, int(share_s / max(each_s * _EPISODES, 1e-9))))


@dataclass(slots=True)
class _ModelAttacks:
    """The requests to models in an audit, and their results."""

    threshold: float
    seed: int
    on_progress: Callable[[str, int, int], None]
    judged: JudgeAttacks | None = None
    tried: AttackResult | None = None
    notes: tuple[str, ...] = ()

    async def attack_judges(self, environment: Environment, golds: Sequence[Trajectory], *, tasks: int) -> None:
        """Attacks every judge on so many tasks."""
        if not tasks:
            if any(isinstance(spec, JudgeSpec) for spec in environment.spec.rewards.values()):
                self.notes += ("judges were not attacked by themselves: --judged is 0",)
            return
        self.judged = await attack_judges(
            environment, golds, tasks=tasks, threshold=self.threshold, seed=self.seed, on_progress=self.on_progress
        )

    async def attack(self, environment: Environment, golds: Sequence[Trajectory], attacker: Attacker | None) -> None:
        """Lets the attacker play, where there is one."""
        if attacker is None:
            self.notes += ("no model attacked the reward: name one by --attacker",)
            return
        about: dict[str, Any] = {"limits": attacker.limits, "threshold": self.threshold, "seed": self.seed}
        self.tried = await try_attacker(environment, golds, attacker.endpoint, **about, on_progress=self.on_progress)
        if attacker.on_episode is not None and self.tried.episode is not None:
            attacker.on_episode(self.tried.episode)

    def add_to_report(self, report: AuditReport) -> AuditReport:
        """The report with the results of the attacks on and by models."""
        findings: list[Hole] = list(report.findings)
        notes = [*report.notes, *self.notes]
        if self.judged is not None:
            # Asked by itself a judge shows which text moves it; that an adversary earned by one is the same cause.
            # One whose scale is upside down pays whatever is wrong: that is all there is to say of it.
            worst = {one.term for one in self.judged.findings if one.hole == "judge_dislikes_oracle"}
            far = {one.term for one in self.judged.terms if abs((one.wrong or 0.0) - (one.oracle or 0.0)) > 0.5}
            turned = worst & far
            moved = {finding.term for finding in self.judged.findings}
            long = {finding.term for finding in self.judged.findings if finding.hole == "judge_likes_length"}
            said = {"judge_obeys": moved, "length_paid": long}
            findings = [one for one in findings if one.term not in {*said.get(one.hole, ()), *turned}]
            findings += [
                one for one in self.judged.findings if one.term not in turned or one.code == "judge_dislikes_oracle"
            ]
            notes += self.judged.notes
        if self.tried is not None:
            findings += self.tried.findings
            notes += self.tried.notes
        return replace(
            report,
            findings=tuple(findings),
            notes=tuple(notes),
            judged=tuple(self.judged.terms) if self.judged is not None else (),
            attacker=self.tried.report if self.tried is not None else None,
        )


async def _play(player: ScriptPlayer, subjects: Sequence[AuditSubject], write: Write, *, first: int = 0) -> list[Way]:
    """The rewards of each way; one that earns nothing on the `first` tasks, spread evenly, is played on no others."""
    scripts = {subject.gold.task_index: write(subject) for subject in subjects}
    few = subjects[:: -(-len(subjects) // first)] if first else subjects

    async def play_numbered(number: int) -> Way:
        way = await player.way(few, partial(_nth_way, scripts, number))
        if len(way) < len(few) or any(_has_worth(way[one.gold.split, one.gold.task_index], one.gold) for one in few):
            way = await player.way(subjects, partial(_nth_way, scripts, number))
        return way

    # Together: what waits for a program that hangs keeps nobody else waiting.
    return await gather_all([play_numbered(number) for number in range(max(map(len, scripts.values()), default=0))])


async def _play_variants(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Right answers with one part changed, and the same in another form: each kind of change a way of its own."""
    hearts = {index: heart for (_, index), heart in chapter.hearts.items()}
    made = {one.gold.task_index: variant_scripts(one, hearts[one.gold.task_index]) for one in subjects}
    pool = count_item_places(list(hearts.values()))
    same = {one.gold.task_index: rewrite_scripts(one, hearts[one.gold.task_index], pool) for one in subjects}
    for name, written in (("variant", made), ("rewritten", same)):
        for label in dict.fromkeys(label for scripts in written.values() for label in scripts):
            chapter.tried[name].append((label, await player.way(subjects, partial(script_of, written, label))))


def _has_worth(ended: Trajectory, gold: Trajectory) -> bool:
    """True if an episode earned anything, or escaped, or was as good as the oracle's."""
    total = ended.reward.total
    return total is None or total > 0 or bool(ended.success) or total >= total_of(gold)


def _nth_way(scripts: Mapping[int, Sequence[Sequence[Action]]], number: int, subject: AuditSubject) -> Sequence[Action]:
    found = scripts[subject.gold.task_index]
    return found[number] if number < len(found) else ()


def _asking_script(
    targets: Mapping[int, Mapping[str, asking.Target]],
    name: str,
    how: Callable[[AuditSubject, asking.Target], Adaptive],
    subject: AuditSubject,
) -> Sequence[Action] | Adaptive:
    target = targets[subject.gold.task_index].get(name)
    is_fit = target is not None and (how is asking.ask_each or isinstance(target.to_argument(target.right), int))
    return how(subject, target) if target is not None and is_fit else ()


def _commonest_signs(options: Sequence[str]) -> str:
    """The signs that stand most often at each place of answers that are equally long; "" for others."""
    if len({len(one) for one in options}) != 1 or len(options) <= _FIRST:
        return ""
    return "".join(Counter(signs).most_common(1)[0][0] for signs in zip(*options, strict=True))


def _answer_script(subject: AuditSubject, said: str) -> list[Action]:
    return [subject.form(said)]


def _shortcut(taken: Mapping[int, str], subject: AuditSubject) -> list[Action]:
    return [subject.form(taken[subject.gold.task_index])] if subject.gold.task_index in taken else []


def _spread_evenly(golds: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """`count` golds, one from each of as many parts of equal size, so that rows that take turns are met alike."""
    if count >= len(golds):
        return list(golds)
    rng = random.Random(count)
    edges = [index * len(golds) // count for index in range(count + 1)]
    return [golds[rng.randrange(low, high)] for low, high in pairwise(edges)]
