"""The observations of an audit and the findings from them; terms that compare answers are scored in groups.

An episode alone has nothing to be compared with: each of the adversaries' is put into a group with three of the
oracle's, and scored as the group of a run is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlenv.audit.adversaries import ADVERSARIES, Adversary
from rlenv.audit.judging import judge_chapter
from rlenv.audit.play import Chapter, Way
from rlenv.audit.report import Attack, AuditReport, Faults, Hole, Thresholds, hole_of, mean_of
from rlenv.audit.verdicts import SLACK, TRIED, episode_of, share_of
from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import may_read_state, shared_by
from rlenv.language.kinds import kind_of
from rlenv.rewards.rule import has_crashed
from rlenv.trajectory import TermResult, Trajectory

_OTHERS = 3
_MOST_TASKS = 20
_AS_MUCH = 0.9
_PLAYED = ("nothing", "wrong_answer", "empty", "empty_form", "idle_calls", "never_ends", "very_long")


_Gain = tuple[float, Adversary, Trajectory]


def judge_groups(environment: Environment, thresholds: Thresholds, chapter: Chapter) -> list[Hole]:
    """One finding for each group term that pays an adversary more than the oracle, by more than the threshold."""
    terms = [name for name, spec in environment.spec.rewards.items() if spec.kind == "group" and spec.weight]
    totals = [gold.reward.total for gold in chapter.golds.values() if gold.reward.total is not None]
    oracle = mean_of(totals) or 0.0
    if not terms or oracle <= 0:
        return []
    gains_by_term: dict[str, dict[str, _Gain]] = {name: {} for name in terms}
    for adversary in ADVERSARIES:
        for way in chapter.ways.get(adversary.name, []) if adversary.name in _PLAYED else ():
            scored = _score_in_groups(environment, chapter, way)
            for name in terms:
                gains = [_weighted_value(one, name) - _weighted_value(other, name) for one, other in scored]
                gain = mean_of(gains) or 0.0
                known = gains_by_term[name].get(adversary.name)
                if gain > thresholds.adversary * oracle and (known is None or gain > known[0]):
                    shown = scored[gains.index(max(gains))][0]
                    gains_by_term[name][adversary.name] = gain, adversary, shown
    return [_group_finding(name, _largest_gain(gains), chapter) for name, gains in gains_by_term.items() if gains]


def _largest_gain(gains: Mapping[str, _Gain]) -> _Gain:
    """The largest gain; of near ones (a rank tells no more) that of length, unless an empty answer gains it too."""
    most = max(value for value, _, _ in gains.values())
    as_much = {name: gain for name, gain in gains.items() if gain[0] >= _AS_MUCH * most}
    is_length = "very_long" in as_much and "empty" not in as_much
    return as_much["very_long"] if is_length else next(iter(as_much.values()))


def _score_in_groups(environment: Environment, chapter: Chapter, way: Way) -> Sequence[tuple[Trajectory, Trajectory]]:
    """Each episode of a way with one of the oracle's, both as they are scored in one group."""
    found = []
    for key in list(way)[:: -(-len(way) // _MOST_TASKS) or 1]:
        one, gold = way[key], chapter.golds[key]
        if one.failure is None and gold.failure is None:
            group = environment.parts.scorer.score_group([one, *[gold] * _OTHERS])
            found.append((group[0], group[1]))
    return found


def _weighted_value(ended: Trajectory, name: str) -> float:
    term = ended.reward.terms[name]
    return term.weight * (term.value or 0.0)


def _group_finding(name: str, gain: _Gain, chapter: Chapter) -> Hole:
    value, adversary, shown = gain
    paid = f"'{name}' pays a policy that {adversary.does} {value:.2f} more than them"
    message = f"in a group with answers of the oracle {paid}"
    hint = f"gate the group's term by the right answer (gate: NAME >= 1); {adversary.hint}"
    gold = chapter.golds[shown.split, shown.task_index]
    return hole_of(adversary.hole, message, name, hint, episode_of(shown, gold))


_RISES = 0.05
_LISTED = 20
_PAID_TO_ALL = ("empty_answer", "form_only", "paid_for_ending", "partial_tasks", "state_at_start")
_TOLD = ("leak", "user_tells", "tests_in_prompt")
_ONE_BY_ONE = ("beyond", "left_out", "listed_to_the_deaf", "same_call", "told", "unused_tool")
_PLACE = re.compile(r"\{0[^}]*\}(?:\(\{0[^)]*\))?")
_OWN_CAUSES = ("escapes_by_invalid", "penalty_avoided", "unsteady_reward")
_ORACLE_FAILED = ("oracle", "policy")


@dataclass(slots=True)
class AuditTally:
    """The observations of an audit so far, and the findings from them."""

    environment: Environment
    thresholds: Thresholds
    fault_share: float
    unfinished: str = ""
    chapters: list[Chapter] = field(default_factory=list)
    planted: list[bool] = field(default_factory=list)
    """For each attacked task, whether an answer was planted in what a tool gave on success."""
    tasks: dict[str, int] = field(default_factory=dict)
    golds: list[Trajectory] = field(default_factory=list)
    values: dict[str, set[float | None]] = field(default_factory=dict)
    rises: dict[str, list[tuple[float, Trajectory]]] = field(default_factory=dict)
    """By how much each term rose with what tools wrote, and the episode with the planted answer."""
    alike: list[bool] = field(default_factory=list)
    faults: list[Trajectory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: list[Hole] = field(default_factory=list)
    """What the rows and the tools say, of all splits."""
    warned: list[Hole] = field(default_factory=list)
    """What validation warns of in the rewards."""

    def add_oracle(self, split: str, golds: Sequence[Trajectory]) -> None:
        """Takes the oracle's episodes of a split in."""
        self.tasks[split] = len(golds)
        self.golds.extend(golds)
        for gold in golds:
            self.note_values(gold)

    def note_values(self, trajectory: Trajectory) -> None:
        """Notes which values the terms of an episode have."""
        for name, term in trajectory.reward.terms.items():
            if term.status == "valid":
                self.values.setdefault(name, set()).add(term.value)

    def note_rise(self, before: Trajectory, after: Trajectory) -> None:
        """Notes by how much each term rose when only what tools wrote had changed."""
        for name, spec in self.environment.spec.rewards.items():
            term = after.reward.terms[name]
            if not kind_of("rewards", spec).asks_models and term.weight and term.value is not None:
                rise = (term.value - (before.reward.terms[name].value or 0.0)) * term.weight
                self.rises.setdefault(name, []).append((rise, after))

    def note_signal(self, chapter: Chapter, golds: Sequence[Trajectory], samples: Sequence[Trajectory]) -> None:
        """Notes on which tasks everybody scores alike."""
        totals: dict[int, list[float]] = {gold.task_index: [] for gold in golds}
        played = [ended for ways in chapter.ways.values() for way in ways for ended in way.values()]
        for ended in (*golds, *samples, *played):
            if ended.reward.total is not None and ended.task_index in totals:
                totals[ended.task_index].append(ended.reward.total)
        self.alike += [max(found, default=0.0) - min(found, default=0.0) <= SLACK for found in totals.values()]

    def report(self) -> AuditReport:
        """The report card."""
        environment, spec = self.environment, self.environment.spec
        totals = [gold.reward.total for gold in self.golds if gold.reward.total is not None]
        oracle = mean_of(totals)
        attacks = tuple(self._attack_figures(name, does) for name, does in self._describe_adversaries().items())
        counted = {name for name, entry in spec.rewards.items() if entry.weight}
        unsteady = {term for chapter in self.chapters for term in chapter.unsteady}
        exempt = unsteady | {name for name, entry in spec.rewards.items() if kind_of("rewards", entry).asks_models}
        named = [(gold, _shortfall_reason(gold, exempt=exempt)) for gold in self.golds]
        below = [f"{gold.split}/{gold.task_index}: {why}" for gold, why in named if why]
        constant = tuple(name for name in spec.rewards if name in counted and len(self.values.get(name, ())) == 1)
        foreign = tuple(name for name, rises in self.rises.items() if max(rise for rise, _ in rises) > SLACK)
        alike = mean_of([float(one) for one in self.alike])
        faults = self._fault_figures()
        holes = self._add_warned_causes(self._judge_chapters(oracle or 0.0))
        # A finding over rows of a split in which no policy was found to earn by the same.
        data = [one for one in self.data if not any(_is_shown_by(one, hole) for hole in holes)]
        findings = [*self._oracle_findings(below), *holes, *data]
        # Tasks on which everybody earns all are those of a hole that has been named.
        is_named = any(one.hole in _PAID_TO_ALL for one in findings) and alike != 1
        if alike is not None and alike > self.thresholds.no_signal and not is_named:
            message = f"on {alike:.0%} of tasks all sampled answers score alike; there is nothing to learn"
            findings.append(hole_of("no_signal", message, hint="look at a term that tells answers apart"))
        findings += self._crash_findings(findings)
        if self.unfinished:
            findings.append(hole_of("unfinished", self.unfinished, hint="give --time-limit or -n and --attacked"))
        return AuditReport(
            environment.id,
            environment.loaded.digest,
            self.tasks,
            oracle,
            tuple(below),
            attacks,
            alike,
            constant,
            foreign,
            faults,
            tuple(findings),
            (*self._collect_notes(constant, faults), *self._share_notes(attacks, findings)),
        )

    def _share_notes(self, attacks: Sequence[Attack], findings: Sequence[Hole]) -> list[str]:
        """Figures of adversaries that are no finding, where there is none at all."""
        return [
            f"'{one.name}' ({one.does}) earns {one.share:.2f} of the oracle's reward and is no finding: it has done "
            "the task, or the same without its point earns as much"
            for one in attacks
            if not findings and one.share is not None and one.share > self.thresholds.adversary
        ]

    def _collect_notes(self, constant: Sequence[str], faults: Faults | None) -> list[str]:
        notes, environment = list(dict.fromkeys(self.notes)), self.environment
        if constant:
            notes.append(f"terms that never vary here: {', '.join(constant)}")
        notes += _shared_state_notes(environment, self.golds)
        for name, entry in environment.spec.rewards.items():
            if entry.kind == "workspace" and "/" in (getattr(entry, "keep", None) or ()):
                notes.append(f"rewards.{name} keeps [/]: programs that the policy has changed take part in the verdict")
        if environment.has_tools and (missed := self.planted.count(False)):
            message = "no call went well, so that an answer was planted in failures alone"
            notes.append(f"on {missed} of {len(self.planted)} tasks {message}")
        if faults is not None and faults.gave_up:
            message = "the oracle could not go on without the results of calls that failed"
            notes.append(f"in {faults.gave_up} of {faults.episodes} episodes {message}")
        if faults is not None and faults.invalid:
            why = next(_invalid_reason(ended) for ended in self.faults if _is_invalid(ended))
            notes.append(f"{faults.invalid} of {faults.episodes} rewards are invalid when tools fail, such as {why}")
        if not environment.has_tools:
            notes.append("no tools: nothing could be planted in their output, and no faults put in")
        return notes

    def _describe_adversaries(self) -> dict[str, str]:
        is_machine = any(tool.kind == "bash" for tool in self.environment.spec.tools.values())
        found = {one.name: one.does for one in ADVERSARIES if is_machine or not one.in_machine}
        said = [answer for chapter in self.chapters for answer, _ in chapter.constants[:1]]
        listed = f" ({', '.join(f'{answer:.40}' for answer in dict.fromkeys(said))})" if said else ""
        found["constant_answer"] = f"gives every task the same answer{listed}"
        found["chance"] = "chooses at random among the answers that a task lists"
        does = {one.name: one.does for name, one in TRIED.items() if name not in _ONE_BY_ONE}
        return found | {name: _PLACE.sub("…", said).rstrip(",") for name, said in does.items()}

    def _attack_figures(self, name: str, does: str) -> Attack:
        golds = {key: gold for chapter in self.chapters for key, gold in chapter.golds.items()}
        played = [chapter.all_ways(name) for chapter in self.chapters]
        episodes = [ended for ways in played for way in ways for ended in way.values()]
        best: Way = {}
        for ways in played:
            if ways:
                shares = [share_of(way, golds) for way in ways]
                best.update(ways[shares.index(max(shares))])
        valid = {key: ended for key, ended in best.items() if ended.reward.total is not None}
        rewards = [ended.reward.total or 0.0 for ended in valid.values()]
        share = share_of(valid, golds)
        worst = max(valid.values(), key=lambda ended: ended.reward.total or 0.0, default=None)
        terms: dict[str, float | None] = {}
        for term in worst.reward.terms if worst is not None else ():
            values: list[Any] = [ended.reward.terms[term].value for ended in valid.values()]
            terms[term] = mean_of([value for value in values if value is not None])
        return Attack(
            name,
            does,
            len(episodes),
            sum(ended.reward.total is None for ended in episodes),
            mean_of(rewards),
            share if math.isfinite(share) else None,
            None if worst is None else worst.reward.total,
            None if worst is None else worst.task_index,
            terms,
            next((_invalid_reason(ended) for ended in episodes if ended.reward.total is None), ""),
        )

    def _add_warned_causes(self, holes: Sequence[Hole]) -> list[Hole]:
        """Findings with the warnings of validation about their own terms as what to change, and the other warnings."""
        causes = {one.term: one for one in self.warned if one.term and one.hole != "read"}
        made = [
            replace(one, hint=f"{cause.message}: {cause.hint}")
            if (cause := causes.get(one.term)) is not None and one.hole not in _OWN_CAUSES
            else one
            for one in holes
        ]
        named, is_told = {one.term for one in holes if one.term}, any(one.hole in _TOLD for one in holes)
        rest = [one for one in self.warned if one.term not in named or one.hole == "read"]
        return [*made, *(one for one in rest if not (is_told and one.hole == "gold_in_prompt"))]

    def _judge_chapters(self, oracle: float) -> list[Hole]:
        """The findings of all splits, each of them once."""
        found: dict[tuple[str, str, str], Hole] = {}
        for chapter in self.chapters:
            judged = judge_chapter(self.environment, self.thresholds, chapter, self._foreign_terms(oracle))
            for one in (*judged, *judge_groups(self.environment, self.thresholds, chapter)):
                found.setdefault((one.hole, one.term, one.where), one)
        return list(found.values())

    def _foreign_terms(self, oracle: float) -> Mapping[str, tuple[float, Trajectory]]:
        """Terms that rose with what tools wrote: by how much, and the least episode. It must not count at all."""
        rose = {}
        for name, rises in self.rises.items():
            rise = mean_of([one for one, _ in rises]) or 0.0
            if rise > max(_RISES * oracle, SLACK):
                most = max(one for one, _ in rises)
                shown = min((ended for one, ended in rises if one >= most - SLACK), key=lambda one: len(one.turns))
                rose[name] = (rise, shown)
        return rose

    def _fault_figures(self) -> Faults | None:
        if not self.faults:
            return None
        played = [ended for ended in self.faults if not _gave_up(ended)]
        rewards = [ended.reward.total for ended in played if ended.reward.total is not None]
        succeeded = [float(ended.success) for ended in played if ended.success is not None]
        invalid = sum(_is_invalid(ended) for ended in self.faults)
        gave_up = len(self.faults) - len(played)
        return Faults(self.fault_share, mean_of(rewards), mean_of(succeeded), invalid, len(self.faults), gave_up)

    def _crash_findings(self, found: Sequence[Hole]) -> list[Hole]:
        """Terms whose author's code breaks where a call has failed.

        That a term could not be measured in an outage, and says so, is what is asked of it: a reward is invalid then
        and never 0. Code that raises at what a policy can write too was found by that already.
        """
        escaped = {one.term for one in found if one.hole in ("escapes_by_invalid", "penalty_avoided")}
        made: dict[str, list[Trajectory]] = {}
        for ended in self.faults:
            for name, term in ended.reward.terms.items():
                spec = self.environment.spec.rewards.get(name)
                if spec is not None and term.status == "invalid" and spec.weight and has_crashed(spec, term.error):
                    made.setdefault(name, []).append(ended)
        return [self._crash_finding(name, episodes) for name, episodes in made.items() if name not in escaped]

    def _crash_finding(self, name: str, episodes: Sequence[Trajectory]) -> Hole:
        least = min(episodes, key=lambda one: len(one.turns))
        gold = next(one for one in self.golds if (one.split, one.task_index) == (least.split, least.task_index))
        why = f"{least.split}/{least.task_index}: {least.reward.terms[name].error:.200}"
        message = f"'{name}' raises in {len(episodes)} of {len(self.faults)} episodes when tools fail, such as {why}"
        hint = "give a number for what was done where a call has failed, or raise RewardError to mask it on purpose"
        return hole_of("invalid_under_faults", message, name, hint, episode_of(least, gold))

    def _oracle_findings(self, below: Sequence[str]) -> list[Hole]:
        if not below:
            return []
        shown = "; ".join(below[:_LISTED]) + ("; …" if len(below) > _LISTED else "")
        count = f"{len(below)} of {len(self.golds)} tasks"
        return [hole_of("oracle_below_maximum", f"the oracle is below the maximum on {count}: {shown}")]


def _is_shown_by(one: Hole, earned: Hole) -> bool:
    """True if a finding of the rows is the cause of what a policy earned in one of its splits: that says more."""
    is_there = earned.episode is not None and earned.episode.split in one.splits
    return (one.hole, earned.hole) == ("constant_gold", "constant_answer") and is_there


def _gave_up(ended: Trajectory) -> bool:
    return ended.failure is not None and ended.failure.reason in _ORACLE_FAILED


def _is_invalid(ended: Trajectory) -> bool:
    return ended.reward.total is None and not _gave_up(ended)


def _invalid_reason(ended: Trajectory) -> str:
    said = ended.failure.message if ended.failure is not None else "not a finite number"
    return f"{ended.split}/{ended.task_index}: {said:.200}"


def _shortfall_reason(gold: Trajectory, *, exempt: set[str]) -> str:
    """The reason why an oracle's episode is not at the maximum, "" where it is."""
    if gold.failure is not None:
        return f"{gold.failure.reason}: {gold.failure.message:.200}"
    terms = [term for term in gold.reward.terms.values() if term.name not in exempt]
    paid = [term.weight * (term.value or 0.0) for term in terms]
    # A cost of what has to be done, such as a call, is meant; one that takes half of what is earned is not.
    is_dear = -2 * math.fsum(one for one in paid if one < 0) >= math.fsum(one for one in paid if one > 0)
    low = [_low_term_text(term) for term in terms if term.weight > 0 or is_dear]
    if named := [why for why in low if why]:
        return ", ".join(named)
    return "" if gold.success or exempt else "no success"


def _low_term_text(term: TermResult) -> str:
    if term.value is None or not term.weight:
        return ""
    is_low = term.value < 1 - SLACK if term.weight > 0 else term.value > SLACK
    return f"{term.name} {term.value:g}" if is_low else ""


def _shared_state_notes(environment: Environment, golds: Sequence[Trajectory]) -> list[str]:
    """A note that attacks may earn by what others left, where a term reads what tools change for all episodes."""
    readers = [term.name for term in environment.parts.terms if may_read_state(term.spec)]
    sets = {id(one): one for one in (environment.toolsets.of(gold.task) for gold in golds if not gold.failure)}
    tools = {name: tool for one in sets.values() for name, tool in one.tools.items()}
    shared = {name: found for name, tool in tools.items() if (found := shared_by(environment, tool))}
    if not readers or not shared:
        return []
    name, found = next(iter(shared.items()))
    return [
        f"the tool '{name}' may change {found}: what terms read of it ({', '.join(readers)} may) is no one episode's"
    ]
