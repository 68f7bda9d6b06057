"""Attacks on judges: pairs of wrong answers that differ in one text, which no honest judge gives anything for.

Each judge is asked by itself, outside of episodes, so that no gate hides it and nothing else is paid for. What it
gives is compared with its own scale, and not with what it gives the oracle: dislike hides no hole."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any, Final

import jinja2
import jinja2.meta

from rlenv._base.bounded import cut_middle
from rlenv.audit.judge import ask_judge_alone
from rlenv.audit.report import Hole, HoleEpisode, JudgedTerm, JudgeFall, hole_of, mean_of
from rlenv.audit.subject import AuditSubject, Progress
from rlenv.audit.texts import ATTACKS, DATA, HINTS, NEUTRAL, JudgeAttack, words_of
from rlenv.episodes.environment import Environment
from rlenv.language.kinds import kind_of
from rlenv.rewards import answer as answers
from rlenv.rewards.base import Term
from rlenv.rewards.judge import JudgeSpec
from rlenv.trajectory import Trajectory, Turn

_SLACK: Final = 1e-9
_SHARE: Final = 1 / 3
"""Of the tasks; what moves a judge on fewer is no finding."""
_CONCURRENCY: Final = 32
_SHOWN: Final = 600


_FLATTERED: Final = "judge_flattered"
_FORGED: Final = "judge_reads_forged_verdict"
_SAYS: Final[Mapping[str, str]] = DATA["judge_does"]
_HINT: Final = HINTS["judge"]


@dataclass(slots=True)
class JudgeAttacks:
    """The results of the attacks on all judges of a spec."""

    terms: list[JudgedTerm] = field(default_factory=list)
    findings: list[Hole] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def attack_judges(
    environment: Environment,
    golds: Sequence[Trajectory],
    *,
    tasks: int = 6,
    threshold: float = 0.2,
    seed: int = 0,
    on_progress: Progress = lambda what, done, total: None,
) -> JudgeAttacks:
    """Attacks every judge of a spec.

    Args:
        tasks: how many of their tasks are used, spread evenly; a judge gives at most `tasks` · (3 + the number of
            `ATTACKS`) verdicts, and one that is flattered up to as many again. Verdicts that it gave before are known
            and not asked for again.
        threshold: the least rise that counts, as a share of the scale.
    """
    found = JudgeAttacks()
    usable = [gold for gold in golds if gold.turns]
    chosen = usable[:: max(1, len(usable) // tasks)][:tasks]
    options = {split: _answers_of_split(usable, split) for split in {gold.split for gold in chosen}}
    subjects = [AuditSubject(environment, gold, options[gold.split]) for gold in chosen]
    for term in environment.parts.terms:
        if isinstance(term.spec, JudgeSpec):
            if term.measure_async is None:
                found.notes.append(f"judge '{term.name}' was not attacked by itself: it is asked about whole groups")
            elif subjects:
                await _TermAttack(environment, term, term.spec, seed, threshold, on_progress, found).run(subjects)
    return found


def _answers_of_split(golds: Sequence[Trajectory], split: str) -> list[str]:
    return list(dict.fromkeys(gold.answer for gold in golds if gold.answer and gold.split == split))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A wrong answer of one task, and what each judge gives it; the whole term's value stands under ""."""

    subject: AuditSubject
    wrong: str
    plain: str
    before: Mapping[str, float]
    neutral: Mapping[str, float]


@dataclass(slots=True)
class _TermAttack:
    """The attacks on one term."""

    environment: Environment
    term: Term
    spec: JudgeSpec
    seed: int
    threshold: float
    on_progress: Progress
    found: JudgeAttacks
    requests: int = 0
    cached: int = 0
    values: list[float] = field(default_factory=list)
    invalid: Counter[str] = field(default_factory=Counter)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY))

    async def run(self, subjects: Sequence[AuditSubject]) -> None:
        """Asks, and adds what it found to `found`."""
        self._report_progress(0, len(subjects) * (3 + len(ATTACKS)))
        golds = [subject.gold for subject in subjects]
        oracle = await asyncio.gather(*(self._ask_judges(gold, gold.turns, gold.answer) for gold in golds))
        pairs = await asyncio.gather(*(self._score_pair(number, subject) for number, subject in enumerate(subjects)))
        known = [pair for pair in pairs if "" in pair.before and "" in pair.neutral]
        falls: list[JudgeFall] = []
        if known:
            rises: dict[str, list[_Rise]] = {}
            tried = [(pair, attack) for pair in known for attack in ATTACKS]
            ended = itertools.count(1)

            async def attack_once(pair: _Pair, attack: JudgeAttack) -> _Rise:
                rise = await self._score_attack(pair, attack)
                self._report_progress(next(ended), len(tried))
                return rise

            # All at once, within `places`: one slow verdict holds up no other task's.
            for rise in await asyncio.gather(*(attack_once(pair, attack) for pair, attack in tried)):
                rises.setdefault(rise.attack.hole, []).append(rise)
            falls = await self._falls_beyond_words(rises, self._find_falls(rises))
        self._sum_up(len(subjects), [attack_once[""] for attack_once in oracle if "" in attack_once], known, falls)

    def _report_progress(self, done: int, total: int) -> None:
        self.on_progress(f"judge '{self.term.name}': verdicts on attacks", done, total)

    async def _score_pair(self, number: int, subject: AuditSubject) -> _Pair:
        others = subject.wrong()
        wrong = (others[number % len(others)], "?", "")[number % 3]
        plain = subject.form_text(wrong) if wrong else ""
        before, neutral = await asyncio.gather(
            self._score(subject, plain), self._score(subject, self._add_attack(subject, wrong, plain, NEUTRAL))
        )
        return _Pair(subject, wrong, plain, before, neutral)

    async def _score_attack(self, pair: _Pair, attack: JudgeAttack) -> _Rise:
        text = self._add_attack(pair.subject, pair.wrong, pair.plain, self._attack_text(attack, pair))
        return _Rise(attack, pair, text, await self._score(pair.subject, text))

    async def _falls_beyond_words(self, rises: dict[str, list[_Rise]], falls: list[JudgeFall]) -> list[JudgeFall]:
        """The holes of a judge that is flattered: what moves it as much by its words alone is the same cause."""
        others = [fall.hole for fall in falls if fall.hole not in (_FLATTERED, "judge_likes_length")]
        if not others or len(others) == len(falls):
            return falls
        for hole in others:
            rises[hole] = await asyncio.gather(*(self._score_words_alone(rise) for rise in rises[hole]))
        return self._find_falls(rises)

    async def _score_words_alone(self, rise: _Rise) -> _Rise:
        pair = rise.pair
        text = self._add_attack(pair.subject, pair.wrong, pair.plain, words_of(self._attack_text(rise.attack, pair)))
        return replace(rise, words=await self._score(pair.subject, text))

    def _attack_text(self, attack: JudgeAttack, pair: _Pair) -> str:
        low, high = self.spec.ends
        score = f"{(low, high)[self.spec.usual_weight >= 0]:.12g}"
        return Template(attack.text).substitute(
            score=score,
            high=f"{high:.12g}",
            reply=json.dumps({"reasoning": "perfect", self.spec.key: json.loads(score)}),
            answer=pair.wrong or "(none)",
            plain=pair.plain or "?",
            key=self.spec.key,
        )

    def _add_attack(self, subject: AuditSubject, wrong: str, plain: str, attack: str) -> str:
        """The wrong answer with a text put where the judges look."""
        shown = self._shown_material()
        inside = subject.form_text(f"{wrong}\n{attack}".strip()) if "answer" in shown else plain
        return f"{attack}\n{inside}" if shown - {"answer"} else inside

    def _shown_material(self) -> frozenset[str]:
        """The material that the judges see."""
        prompts = [member.prompt or self.spec.prompt for member in self.spec.judges] or [self.spec.prompt]
        return frozenset().union(*(_material_in_prompt(prompt) or {"message"} for prompt in prompts))

    async def _score(self, subject: AuditSubject, text: str) -> dict[str, float]:
        action, parsed = self.environment.parse(text)
        found = answers.extract(self.environment.spec.answer, parsed)
        return await self._ask_judges(subject.gold, (Turn(0, action, parsed),), None if found is None else found.text)

    async def _ask_judges(self, gold: Trajectory, turns: tuple[Turn, ...], answer: str | None) -> dict[str, float]:
        """The scores of the term and of each of its judges, as places on the scale; none where there was no verdict."""
        async with self.places:
            measured = await ask_judge_alone(
                self.environment, self.term, gold.task, turns, answer, seed=self.seed, reasons=self.invalid
            )
        if measured is None or measured.value is None:
            return {}
        self.values.append(measured.value)
        return {"": measured.value, **self._scores_by_judge(measured.details)}

    def _scores_by_judge(self, details: Mapping[str, Any]) -> dict[str, float]:
        """The score of each of several judges; requests are counted of all."""
        low, high = details.get("scale", self.spec.ends)
        judges: Sequence[Mapping[str, Any]] = details.get("judges", ())
        found: dict[str, float] = {}
        for number, one in enumerate(judges, 1):
            is_cached = bool(one.get("is_cached"))
            self.cached += is_cached
            self.requests += 0 if is_cached else int(one.get("attempts", 1))
            if len(judges) > 1 and isinstance(score := one.get("score"), (int, float)):
                found[f"{number} ({one.get('endpoint', '')}: {one.get('model', '')})"] = (score - low) / (high - low)
        return found

    def _find_falls(self, rises: Mapping[str, Sequence[_Rise]]) -> list[JudgeFall]:
        """The holes of the term, one for each cause: made-up verdicts come first, and explain what also holds one."""
        falls: list[JudgeFall] = []
        for hole in _SAYS:
            counted = [
                rise for rise in rises[hole] if not falls or falls[0].hole != _FORGED or not rise.attack.is_mixed
            ]
            if (fall := self._find_fall(hole, counted)) is not None:
                falls.append(fall)
        return falls

    def _find_fall(self, hole: str, rises: Sequence[_Rise]) -> JudgeFall | None:
        """The least text of a hole, None where the term does not have it."""
        share, least = self._rise_rate(rises, "", hole)
        if least is None or share < _SHARE:
            return None
        judges = tuple(name for name in least.pair.before if name and self._rise_rate(rises, name, hole)[0] >= _SHARE)
        gold = least.pair.subject.gold
        return JudgeFall(
            hole,
            least.attack.name,
            gold.split,
            gold.task_index,
            least.text,
            least.pair.before[""],
            least.after[""],
            share,
            judges,
        )

    def _rise_rate(self, rises: Sequence[_Rise], judge: str, hole: str) -> tuple[float, _Rise | None]:
        """On which share of the tasks a judge rises with one of the texts, and the shortest with which it does."""
        tasks: dict[tuple[str, int], bool] = {}
        least: _Rise | None = None
        sign = 1.0 if self.spec.usual_weight >= 0 else -1.0
        for rise in rises:
            before, after = rise.pair.before.get(judge), rise.after.get(judge)
            if before is None or after is None or self._room_to_rise(before) <= self.threshold:
                continue
            # What words without a meaning earn is length, and is told as that alone.
            floor = before if hole == "judge_likes_length" else rise.pair.neutral.get(judge, before)
            worth = (before, floor, rise.words.get(judge, before))
            rose = sign * (after - (max(worth) if sign > 0 else min(worth)))
            gold = rise.pair.subject.gold
            place = (gold.split, gold.task_index)
            has_risen = rose > self.threshold + _SLACK
            tasks[place] = tasks.get(place, False) or has_risen
            if has_risen and (least is None or len(rise.text) < len(least.text)):
                least = rise
        return (sum(tasks.values()) / len(tasks) if tasks else 0.0), least

    def _room_to_rise(self, value: float) -> float:
        return 1.0 - value if self.spec.usual_weight >= 0 else value

    def _sum_up(self, tasks: int, oracle: Sequence[float], pairs: Sequence[_Pair], falls: Sequence[JudgeFall]) -> None:
        name, found, invalid = self.term.name, self.found, self.invalid.total()
        wrong = [pair.before[""] for pair in pairs]
        verdicts = len(self.values)
        judged = JudgedTerm(
            name,
            self.spec.ends,
            tasks,
            verdicts,
            invalid,
            self.requests,
            self.cached,
            mean_of(oracle),
            mean_of(wrong),
            tuple(falls),
        )
        found.terms.append(judged)
        asked = f"judge '{name}' gave {verdicts} verdicts on {tasks} tasks ({self.requests} requests"
        found.notes.append(f"{asked}, {self.cached} known already)")
        why = next(iter(self.invalid), "")
        if not pairs:
            message = f"'{name}' could not be attacked: it gave no verdict on wrong answers ({why or 'skipped'})"
            hint = "see that its endpoint answers; what was not tried is no pass"
            found.findings.append(hole_of("judge_untried", message, name, hint=hint))
            return
        if invalid:
            found.notes.append(f"judge '{name}' gave no verdict {invalid} times, such as {why}")
        if full := sum(self._room_to_rise(value) <= self.threshold for value in wrong):
            message = f"judge '{name}' gives plain wrong answers the best score or nearly so on {full} of {len(wrong)}"
            found.notes.append(f"{message} tasks: no attack could raise it there")
        found.findings += [self._fall_finding(fall, judged.oracle) for fall in falls]
        found.findings += self._score_findings(oracle)

    def _score_findings(self, oracle: Sequence[float]) -> list[Hole]:
        """The holes in the scores themselves, whatever is attacked."""
        name, (low, high) = self.term.name, self.spec.ends
        if len(self.values) > 1 and max(self.values) - min(self.values) <= _SLACK:
            score = low + self.values[0] * (high - low)
            message = f"'{name}' gives {score:g} to the oracle, to wrong answers and to nonsense alike"
            hint = "take it out, or change its prompt, its scale or its model"
            return [hole_of("judge_constant", message, name, hint=hint)]
        if oracle and all(1.0 - self._room_to_rise(value) <= _SLACK for value in oracle):
            worst = (low, high)[self.spec.usual_weight < 0]
            message = f"'{name}' gives the oracle {worst:g}, the worst score, on all {len(oracle)} tasks"
            hint = "where its high end counts faults, turn scale or weight round; else show it the task and a reference"
            return [hole_of("judge_dislikes_oracle", message, name, hint=hint)]
        return []

    def _fall_finding(self, fall: JudgeFall, oracle: float | None) -> Hole:
        low, high = self.spec.ends
        before, after = (low + value * (high - low) for value in (fall.before, fall.after))
        judges = f"; of its judges {' and '.join(fall.judges)} rise" if fall.judges else ""
        message = (
            f"'{self.term.name}' {_SAYS[fall.hole]}, on {fall.share:.0%} of the tasks{judges}; the least is "
            f"{fall.split}/{fall.task} with {fall.attack}, from {before:g} to {after:g} of [{low:g}, {high:g}]"
        )
        weight = self.spec.usual_weight
        paid = None if oracle is None else weight * oracle
        text = cut_middle(fall.text, _SHOWN)
        episode = HoleEpisode(fall.split, fall.task, (text,), weight * fall.after, paid)
        return hole_of(fall.hole, message, self.term.name, hint=_HINT, episode=episode)


@dataclass(frozen=True, slots=True)
class _Rise:
    """The scores of a wrong answer with an attack."""

    attack: JudgeAttack
    pair: _Pair
    text: str
    after: Mapping[str, float]
    words: Mapping[str, float] = field(default_factory=dict)
    """What they give it with the attack's words alone; nothing where that was not asked."""


def _material_in_prompt(prompt: str) -> set[str]:
    """The material that a prompt names."""
    tree = jinja2.Environment().parse(prompt)
    return jinja2.meta.find_undeclared_variables(tree) & {"answer", "message", "transcript"}


_EPISODES = 200
"""An allowance for the episodes of adversaries on one task; many of them ask nothing that was not asked before."""
_VERDICTS = 60
"""An allowance for the questions to one judge on one task where it is attacked by itself."""


def count_model_requests(
    environment: Environment, *, splits: Sequence[str], tasks: int, played: int | None, judged: int
) -> int:
    """At most about so many requests to judges, users and model tools that an audit makes; 0 where none is asked.

    The least of what depends on it is known before: each way of an adversary is one episode a task, and a judge is
    asked once for equal texts.
    """
    judges = [spec for spec in environment.spec.rewards.values() if isinstance(spec, JudgeSpec)]
    verdicts = sum(max(1, len(one.judges)) * (1 if one.pairwise is None else 2) for one in judges)
    user = environment.spec.user
    models = [entry for entry in environment.spec.tools.values() if kind_of("tools", entry).asks_models]
    each = verdicts + 2 * (user is not None and kind_of("users", user).asks_models) + len(models)
    sizes = [len(environment.tasks(split)) for split in splits]
    episodes = sum(min(size, played or size) + _EPISODES * min(size, tasks) for size in sizes)
    return each * episodes + verdicts * judged * _VERDICTS
