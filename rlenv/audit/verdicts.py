"""Findings from what adversaries earned: one for each cause, with the least episode that shows it.

What an earlier finding already pays on a term, on a task, counts for nothing in a later one: an answer that is right
because any answer is, is no second hole. So the order in which ways are judged is that of causes."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from rlenv._base.bounded import cut_middle
from rlenv.audit.golds import column_test_of, end_flag_of, unread_columns
from rlenv.audit.play import Chapter, Key, Way, total_of
from rlenv.audit.report import Hole, HoleEpisode, Thresholds, hole_of
from rlenv.audit.texts import DATA
from rlenv.audit.variants import CONTROL, constant_parts
from rlenv.episodes.environment import Environment
from rlenv.language.spec import RewardSpec
from rlenv.trajectory import Trajectory

SLACK = 1e-9
"""Rewards that differ by less are the same."""
_FULL = 0.9
_LEAST_TASKS = 2
_SHOWN = 600
_MOST_TASKS = 0.9
ANY_ANSWER = frozenset({"empty_answer", "form_only", "length_paid", "paid_for_ending", "partial_tasks"})
_NOT_RIGHT = ANY_ANSWER | {"chance", "constant_answer", "loose_match", "stuffed_answer"}


@dataclass(frozen=True, slots=True)
class Suspect:
    """A suspected hole: its name, the behaviour of its policy, and what to change."""

    name: str
    hole: str
    does: str
    hint: str
    _: KW_ONLY
    most: float = 0.0
    """The share of the oracle's reward that it may earn where that is not the audit's own threshold."""
    partial: int = 0
    few: float = 0.05
    """What so many (`partial`) of its first ways earn on this share of the tasks alone is a hole too."""
    where: str = ""
    kin: Collection[str] = ()
    """Holes that are this one too, where one was found on the same term."""

    def filled_with(self, what: object) -> Suspect:
        """The suspect with `what` it was tried on or with filled in for `{0}` in its texts."""
        texts = {key: getattr(self, key).format(what) for key in ("does", "hint", "where")}
        return dataclasses.replace(self, **texts)


_DATA: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SUSPECTS = [Suspect(**one) for one in _DATA["suspect"]]
TRIED = {"told" if (one.name, one.hole) == ("talk", "user_tells") else one.name: one for one in _SUSPECTS}
"""What is tried beside the adversaries; `{0}` is what it was tried on or with."""


@dataclass(slots=True)
class Verdicts:
    """Judges ways one after the other."""

    rewards: Mapping[str, RewardSpec]
    thresholds: Thresholds
    golds: Mapping[Key, Trajectory]
    findings: list[Hole] = field(default_factory=list)
    explained: dict[str, dict[Key, float]] = field(default_factory=dict)
    """What is already paid for a cause that was found, by term and task."""
    by_term: dict[str, int] = field(default_factory=dict)
    """The finding that explains a term."""
    anyhow: set[str] = field(default_factory=set)
    """Terms that pay something for any answer, on nearly all tasks."""

    def judge(self, suspect: Suspect, ways: Sequence[Way]) -> bool:
        """Judges the ways of one adversary; True where it earns, be it by a cause that was found before."""
        limit = suspect.most or self.thresholds.adversary
        best: tuple[float, Way] | None = None
        earning = []
        for number, way in enumerate(map(self._without_spared, ways)):
            share, rest = share_of(way, self.golds), self.unexplained_rewards(way)
            full = self._fully_paid_keys(way, rest)
            is_paid = share > limit + SLACK
            is_few = number < suspect.partial and len(full) >= max(_LEAST_TASKS, math.ceil(suspect.few * len(way)))
            if not is_paid and not is_few:
                continue
            earning.append(way)
            new = math.fsum(rest.values()) / (math.fsum(total_of(self.golds[key]) for key in way) or math.inf)
            if (new > limit + SLACK or is_few) and (best is None or new > best[0]):
                best = (new, way)
        if best is not None and not self._is_kin(suspect, self._most_paying_term(best[1])):
            self._add_finding(suspect, best[1])
        else:
            for way in [best[1]] if best is not None else earning[:1]:
                self._merge_into_finding(suspect, self._most_paying_term(way, anew=best is not None))
        for way in earning if best is not None else ():
            self.explain(way)
        if best is not None:
            self._explain_others(best[1])
        return bool(earning)

    def pays_whole(self, way: Way) -> bool:
        """True if the term that pays most pays nearly what it pays the oracle on the same tasks."""
        term = self._most_paying_term(way, anew=False)
        gold = math.fsum(self._term_rewards(self.golds[key]).get(term, 0.0) for key in way)
        return gold > SLACK and self._sums_by_term(way, anew=False)[term] >= _FULL * gold

    def _without_spared(self, way: Way) -> Way:
        """The way without episodes whose penalty could not be measured: what such a one earns, it earns by that."""
        return {key: ended for key, ended in way.items() if ended.reward.total is None or not self._is_spared(ended)}

    def _is_spared(self, ended: Trajectory) -> bool:
        terms = ended.reward.terms.values()
        return any(term.status == "invalid" and self.rewards[term.name].usual_weight < 0 for term in terms)

    def _is_kin(self, suspect: Suspect, term: str) -> bool:
        """True if the finding that the term has already is of the same cause."""
        index = self.by_term.get(term)
        if index is None:
            return False
        return self.findings[index].hole in suspect.kin or (term in self.anyhow and suspect.hole in _NOT_RIGHT)

    def _explain_others(self, way: Way) -> None:
        """Takes a way that is paid in full on every task that was played as paid on those that were not."""
        if len(self._fully_paid_keys(way, {key: ended.reward.total or 0.0 for key, ended in way.items()})) < len(way):
            return
        for term in [name for name, value in self._sums_by_term(way, anew=False).items() if value > SLACK]:
            known = self.explained.setdefault(term, {})
            for key, gold in self.golds.items():
                known.setdefault(key, self._term_rewards(gold).get(term, 0.0))

    def explain_whole(self, term: str, finding: Hole) -> None:
        """Takes a finding that makes all that a term pays worth nothing."""
        self.findings.append(finding)
        self.by_term[term] = len(self.findings) - 1
        self.explained[term] = dict.fromkeys(self.golds, math.inf)

    def _add_finding(self, suspect: Suspect, way: Way) -> None:
        rest = self.unexplained_rewards(way)
        term = self._most_paying_term(way)
        share = share_of(way, self.golds)
        full = self._fully_paid_keys(way, rest)
        limit = suspect.most or self.thresholds.adversary
        on = f"on {len(full)} of {len(way)} tasks" if full else f"on {len(way)} tasks"
        message = f"a policy that {suspect.does} earns {share:.2f} of the oracle's reward{self._most_paying_text(way)}"
        if full and (share <= limit or len(full) < len(way)):
            message += f"; as much as the oracle {on}{_paid_rows_text(full, self.golds, way)}"
        key = _shortest_key(way, full or [key for key, value in rest.items() if value > SLACK] or list(way))
        shown = episode_of(way[key], self.golds[key])
        self.findings.append(hole_of(suspect.hole, message, term, suspect.hint, shown, suspect.where))
        self.by_term[term] = len(self.findings) - 1
        paid = sum(self._term_rewards(ended).get(term, 0.0) > SLACK for ended in way.values())
        if suspect.hole in ANY_ANSWER and paid >= _MOST_TASKS * len(way):
            self.anyhow.add(term)

    def _merge_into_finding(self, suspect: Suspect, term: str) -> None:
        index = self.by_term.get(term)
        if index is None:
            return
        found = self.findings[index]
        if suspect.name not in found.also and suspect.hole != found.hole:
            self.findings[index] = dataclasses.replace(found, also=(*found.also, suspect.name))

    def explain(self, way: Way) -> None:
        """Takes what a way earns as known."""
        for key, ended in way.items():
            for name, value in self._term_rewards(ended).items():
                if value > SLACK:
                    known = self.explained.setdefault(name, {})
                    known[key] = max(known.get(key, 0.0), value)

    def _term_rewards(self, ended: Trajectory) -> dict[str, float]:
        """The parts of the reward by term."""
        return {
            name: term.weight * term.value
            for name, term in ended.reward.terms.items()
            if term.value is not None and name in self.rewards and ended.reward.total is not None
        }

    def unexplained_rewards(self, way: Way) -> dict[Key, float]:
        """The reward on each task beyond what is explained already."""
        return {key: math.fsum(self._unexplained(key, ended).values()) for key, ended in way.items()}

    def _unexplained(self, key: Key, ended: Trajectory) -> dict[str, float]:
        found = {}
        for name, value in self._term_rewards(ended).items():
            known = self.explained.get(name, {}).get(key, 0.0)
            found[name] = value if known <= 0 else max(0.0, value - known) if value > 0 else value
        return found

    def _fully_paid_keys(self, way: Way, rest: Mapping[Key, float]) -> list[Key]:
        golds = {key: self.golds[key].reward.total or 0.0 for key in way}
        return [key for key in way if golds[key] > SLACK and rest[key] >= _FULL * golds[key]]

    def _sums_by_term(self, way: Way, *, anew: bool) -> dict[str, float]:
        sums: dict[str, float] = {}
        for key, ended in way.items():
            for name, value in (self._unexplained(key, ended) if anew else self._term_rewards(ended)).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _most_paying_term(self, way: Way, *, anew: bool = True) -> str:
        """The term that pays most of it."""
        sums = self._sums_by_term(way, anew=anew)
        return max(sums, key=lambda name: sums[name]) if sums else ""

    def _most_paying_text(self, way: Way) -> str:
        sums = {name: value / max(1, len(way)) for name, value in self._sums_by_term(way, anew=False).items()}
        named = sorted((name for name in sums if sums[name] > SLACK), key=lambda name: -sums[name])
        return f": {', '.join(f'{name} {sums[name]:.2f}' for name in named[:3])}" if named else ""


EMPTY = ", those where '"
"""Begins what a finding says of the rows on which it is paid."""


def _paid_rows_text(paid: Sequence[Key], golds: Mapping[Key, Trajectory], way: Way) -> str:
    """What sets the tasks apart that are paid for: a column that is empty or missing there alone, or else the first."""
    rows = {key: golds[key].task for key in way}
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        if {key for key, row in rows.items() if row.get(name) in _NOTHING} == set(paid) != set(way):
            return f"{EMPTY}{name}' is empty"
    said = [f"{split}/{at} ({golds[split, at].answer!r:.40})" for split, at in sorted(paid) if golds[split, at].answer]
    return f", such as {', '.join(said[:_NAMED_ROWS])}" if said and 2 * len(paid) <= len(way) else ""


def share_of(way: Way, golds: Mapping[Key, Trajectory]) -> float:
    """The share of the oracle's reward on the tasks where its own is valid; minus infinity without any."""
    valid = [key for key, ended in way.items() if ended.reward.total is not None]
    gold = math.fsum(golds[key].reward.total or 0.0 for key in valid)
    return math.fsum(way[key].reward.total or 0.0 for key in valid) / gold if gold > 0 else -math.inf


def episode_of(ended: Trajectory, gold: Trajectory) -> HoleEpisode:
    """An episode as a finding shows it."""
    actions = tuple(cut_middle(turn.action, _SHOWN) for turn in ended.turns)
    if len(actions) > 8:
        actions = (*actions[:4], f"… ({len(actions) - 6} more actions)", *actions[-2:])
    return HoleEpisode(ended.split, ended.task_index, actions, ended.reward.total, gold.reward.total)


def _shortest_key(way: Way, keys: Sequence[Key]) -> Key:
    return min(keys, key=lambda key: (len(way[key].turns), sum(len(turn.action) for turn in way[key].turns), key))


_NOTHING: tuple[object, ...] = (None, "", [], {})
_NAMED_ROWS = 3
_TOO_WIDE = frozenset(DATA["words"]["too_wide"])
_MOVED = frozenset({"idle_calls_paid", "paid_again", "paid_for_ending", "state_at_start", "target_written"})
SLIGHT, _PART = 0.001, 0.8


def beyond(way: Way, plain: Sequence[Way]) -> Way:
    """The tasks of a way on which none of the controls earns as much: there it has shown something, or nothing."""

    def is_shown(key: Key, ended: Trajectory) -> bool:
        earned = ended.reward.total or 0.0
        others = [one[key].reward.total or 0.0 for one in plain if key in one]
        return earned <= SLACK or all(other < earned - SLACK for other in others)

    return {key: ended for key, ended in way.items() if is_shown(key, ended)}


def judge_sides(verdicts: Verdicts, chapter: Chapter) -> None:
    """A comparison that looks at one side alone; where numbers of both sides pass, it is none at all."""
    ways = chapter.ways.get("one_side", [])
    if len(ways) < 3:
        return
    far, near, above = ways
    # A minus may pass by itself.
    below = {key: one for key, one in far.items() if (near.get(key, one).reward.total or 0.0) > SLACK}
    for side, way, others in (("below", below, [above]), ("above", above, [far, near])):
        hint = f"whatever is {side} the right number passes, and no smaller tolerance closes that: compare the "
        does, hint = f"gives a number far {side} the right one", f"{hint}distance, abs(answer - right)"
        verdicts.judge(Suspect("one_side", "loose_match", does, hint, partial=99), [beyond(way, others)])


def is_right_if_empty(chapter: Chapter, shown: HoleEpisode | None) -> bool:
    """True if on the task of this episode an answer is right if it is empty, and wrong if it says something."""
    key = ("", 0) if shown is None else (shown.split, shown.task)

    def earns_any(name: str, most: int) -> bool:
        ways = [way for way in chapter.ways.get(name, [])[:most] if key in way]
        return any(total_of(way[key]) > total_of(chapter.golds[key]) / 2 for way in ways)

    # A lone question mark says nothing either.
    return not earns_any("short_answer", 2) and not earns_any("wrong_answer", 2) and earns_any("empty_form", 1)


_RULES: Final[dict[str, str]] = DATA["rule_hints"]
_RULES["skyrl_synsql"] = _RULES["rows"] = _RULES["sql_match"]
_PARTS: Final[Mapping[str, str]] = DATA["part_hints"]


def with_advice(environment: Environment, found: Hole, chapter: Chapter) -> Hole:
    """A finding with its cause, as far as rows, the term's own rule and keys, and what else earns tell it."""
    spec, shown = environment.spec.rewards.get(found.term), found.episode
    if spec is None or shown is None:
        return found
    is_part = (shown.reward or 0.0) < _PART * (shown.oracle or 0.0)  # what else pays is little, as a rule
    code, said, hint = found.hole, "", ""
    if found.hole == "leak" and found.where.startswith("default of") and getattr(spec, "rule", "") == "calls_match":
        code, hint = "unchecked_argument", 'the golds accept calls without it: take "" out of their accepted values'
    elif spec.kind == "workspace" and found.hole in _MOVED:
        is_any = {"broken_machine", "hollow_files"} <= {*found.also}
        hint = "the tests pass whatever is done: a pipe, `|| true` or a last line hides what failed (set -eo pipefail)"
        hint = hint if is_any else "the tests pass where nothing was made: what is missing has to fail; begin with 0"
    elif found.hole in _MOVED and (over := end_flag_of(environment, found.term)):
        code, hint = "paid_for_ending", f"'{over}' is true after a failure too: read what success alone leaves"
    elif found.hole == "empty_answer" and is_part:
        hint = "partial credit pays for what an empty answer rightly leaves out: count what is there (F1), or the whole"
    elif found.hole == "empty_answer" and "rows" in _comparison_words(spec):
        hint = "gold queries give no row here, and so does any that finds nothing: use data on which each finds some"
    elif found.hole not in _TOO_WIDE | ANY_ANSWER:
        return found
    elif EMPTY in found.message and found.hole != "empty_answer":
        code, hint = "partial_tasks", DATA["hints"]["of_empty"]
    elif lost := _lacking_column_text(environment, found.term, chapter):
        said, hint = f"; {lost}", "name the column alike in all splits, and let a row without it fail"
    elif is_part and found.hole in _TOO_WIDE - ANY_ANSWER and (same := constant_parts([*chapter.hearts.values()])):
        code, said = "constant_answer", f"; of all right answers these parts are the same: {', '.join(same)}"
        hint = "pay for what differs between rows: who has learnt the parts that never do is paid for them"
    elif spec.kind == "tests" and found.hole in ANY_ANSWER:
        hint = "the hidden tests pass what does nothing: assert, and catch no exception"
        if found.hole == "form_only":
            hint = "the tests hold for another task's program too: test what comes out for what is given"
    elif found.hole in _TOO_WIDE:
        said, hint = _too_wide_advice(environment, found, chapter)
    return dataclasses.replace(found, code=code, message=found.message + said, hint=hint or found.hint)


def _lacking_column_text(environment: Environment, term: str, chapter: Chapter) -> str:
    """The column that a term reads and that all of a split's rows lack, as another split has it; "" for none."""
    mine, reads = {name for gold in chapter.golds.values() for name in gold.task}, column_test_of(environment, term)
    some = [(one, name) for one in environment.spec.tasks for name in environment.tasks(one)[0] if name not in mine]
    said = [f"the rows of '{chapter.split}' have no '{name}', which '{one}' has" for one, name in some if reads(name)]
    return next(iter(said), "")


def _comparison_words(spec: RewardSpec) -> set[str]:
    """The words of a term that say how it compares."""
    compare, rule = getattr(spec, "compare", ""), getattr(spec, "rule", spec.kind)
    is_partial = getattr(spec, "partial", False) is True
    return {
        str(one) for one in (rule, getattr(compare, "by", compare), getattr(spec, "mode", ""), "partial" * is_partial)
    }


def _too_wide_advice(environment: Environment, found: Hole, chapter: Chapter) -> tuple[str, str]:
    """What more there is to say of a comparison that takes wrong answers, and what to change."""
    spec, golds = environment.spec.rewards[found.term], chapter.golds
    tried = [(label, way) for label, way in chapter.tried["variant"] if not label.startswith(CONTROL)]
    taken = [label for label, way in tried if share_of(way, golds) >= _FULL]
    said = f"; so does the right one with {', or '.join(taken[:3])}" if taken and found.hole == "form_only" else ""
    wide = [f"{key}: {value:g}" for key in ("tolerance", "relative_tolerance") if (value := getattr(spec, key, 0))]
    if wide and found.hole != "stuffed_answer":
        return said, f"`{', '.join(wide)}` of '{found.term}' takes other tasks' numbers for right: make it smaller"
    if (part := next((one for one in _PARTS if one in taken), "")) and spec.kind == "verify":
        return said, _PARTS[part]
    if unread := unread_columns(environment, found.term, [*golds.values()]):
        told = ", ".join(f"'{name}'" for name in unread)
        return f"{said}; its code never reads {told}, which the prompt states", f"check what {told} asks of an answer"
    return said, next((text for rule, text in reversed(_RULES.items()) if rule in _comparison_words(spec)), "")
