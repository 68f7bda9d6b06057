"""Findings from what adversaries earned: one for each cause, with the least episode that shows it.

What an earlier finding already pays on a term, on a task, counts for nothing in a later one: an answer that is right
because any answer is, is no second hole. So the order in which ways are judged is that of causes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlenv._base.bounded import cut_middle
from rlenv.audit.play import Key, Way
from rlenv.audit.report import Episode, Finding, Thresholds
from rlenv.language.spec import RewardSpec
from rlenv.trajectory import Trajectory

__all__ = ["ANY_ANSWER", "SLACK", "TRIED", "Suspect", "Verdicts", "episode_of", "share_of"]

SLACK = 1e-9
"""Rewards that differ by less are the same."""
_FULL = 0.9
_FEW_TASKS = 0.05
_LEAST_TASKS = 2
_SHOWN = 600
_MOST_TASKS = 0.9
ANY_ANSWER = frozenset({"empty_answer", "form_only", "length_paid", "paid_for_ending", "partial_tasks"})
_NOT_RIGHT = ANY_ANSWER | {"chance", "constant_answer", "loose_match", "stuffed_answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """What may be a hole: how it is called, what its policy does, and what to change."""

    name: str
    hole: str
    does: str
    hint: str
    most: float = 0.0
    """The share of the oracle's reward that it may earn where that is not the audit's own threshold."""
    partial: int = 0
    """What so many of its first ways earn on a few tasks alone is a hole too."""
    where: str = ""
    kin: Collection[str] = ()
    """Holes that are this one too, where one was found on the same term."""

    def told(self, what: object) -> Suspect:
        """The same with `what` it was tried on or with in the places that its texts have for it."""
        texts = {key: getattr(self, key).format(what) for key in ("does", "hint", "where")}
        return dataclasses.replace(self, **texts)


_SHORTCUT = 0.6
_SUSPECTS = (
    Suspect(
        name="emptied_state",
        hole="emptied_state",
        does="calls each tool that changes something for all that the others list",
        hint="compare with the state that is wanted as a whole: it holds where all was taken away",
        kin=("state_at_start",),
    ),
    Suspect(
        name="written",
        hole="target_written",
        does="sets all that tools can write to one value, and answers it,",
        hint="compare with what the row says, or with state that no tool of the policy writes",
        kin=("emptied_state", "state_at_start"),
    ),
    Suspect(
        name="left_out",
        hole="leak",
        does="leaves out the {0}, or empty,",
        hint="let the tool refuse what it is not told: it knows the right value by itself",
        where="default of {0}",
    ),
    Suspect(
        name="other_arguments",
        hole="unchecked_argument",
        does="gives a wrong {0}",
        hint="compare the {0} with what the row says; a value beyond it must not pass either",
        where="{0}",
    ),
    Suspect(
        name="same_call",
        hole="paid_again",
        does="makes {0} again and again, and nothing else,",
        hint="count each thing once; where a wrong call goes well by chance, let it be tried once",
    ),
    Suspect(
        name="echoed",
        hole="echoed_text",
        does="tells {0}, which says it back, what success looks like",
        hint="look at the state or at the value of the one call that counts, and never search all that tools gave: "
        "what they say back are the policy's own words",
    ),
    Suspect(
        name="talk",
        hole="user_swayed",
        does="says to the user {0!r:.60}, and gives no answer,",
        hint="measure what was done: whoever asks, thanks or says sorry gets these words from the user",
    ),
    Suspect(
        name="talk",
        hole="user_tells",
        does="copies {0.rule} of the {0.where}",
        hint="let the user keep the answer to itself, or take something for each hint",
        where="{0.where}",
    ),
    Suspect(
        name="leak",
        hole="leak",
        does="copies {0.rule} of the {0.where}",
        hint="take the answer out of the {0.where}, or ask for what does not stand at a fixed place",
        where="{0.where}",
    ),
    Suspect(
        name="asked_until_right",
        hole="asked_until_right",
        does="asks {0} one answer after the other until it is answered otherwise",
        hint="let the tool be asked once or twice, or take something for each time that it is asked",
    ),
    Suspect(
        name="shortcut",
        hole="shortcut",
        does="goes by {0.where} ({0.rule})",
        hint="make the rows alike in this, or drop those that it gives away: nothing has to be read or done",
        most=_SHORTCUT,
    ),
)
TRIED = {"told" if one.hole == "user_tells" else one.name: one for one in _SUSPECTS}
"""What is tried beside the adversaries; `{0}` is what it was tried on or with."""


@dataclass(slots=True)
class Verdicts:
    """Judges ways one after the other."""

    rewards: Mapping[str, RewardSpec]
    thresholds: Thresholds
    golds: Mapping[Key, Trajectory]
    findings: list[Finding] = field(default_factory=list)
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
        for number, way in enumerate(map(self._measured, ways)):
            share, rest = share_of(way, self.golds), self.rest(way)
            full = self._full(way, rest)
            is_paid = share > limit + SLACK
            is_few = number < suspect.partial and len(full) >= max(_LEAST_TASKS, math.ceil(_FEW_TASKS * len(way)))
            if not is_paid and not is_few:
                continue
            earning.append(way)
            new = math.fsum(rest.values()) / (self._gold(way) or math.inf)
            if (new > limit + SLACK or is_few) and (best is None or new > best[0]):
                best = (new, way)
        if best is not None and not self._is_kin(suspect, self._paying(best[1])):
            self._found(suspect, best[1])
        else:
            for way in [best[1]] if best is not None else earning[:1]:
                self._merge(suspect, self._paying(way, anew=best is not None))
        for way in earning if best is not None else ():
            self.explain(way)
        if best is not None:
            self._explain_others(best[1])
        return bool(earning)

    def pays_whole(self, way: Way) -> bool:
        """Whether the term that pays most pays nearly what it pays the oracle on the same tasks."""
        term = self._paying(way, anew=False)
        gold = math.fsum(self._earned(self.golds[key]).get(term, 0.0) for key in way)
        return gold > SLACK and self._sums(way, anew=False)[term] >= _FULL * gold

    def _measured(self, way: Way) -> Way:
        """Without episodes that a penalty was left out of: what such a one earns, it earns by that."""
        return {key: ended for key, ended in way.items() if ended.reward.total is None or not self._spared(ended)}

    def _spared(self, ended: Trajectory) -> bool:
        terms = ended.reward.terms.values()
        return any(term.status == "invalid" and self.rewards[term.name].weight < 0 for term in terms)

    def _is_kin(self, suspect: Suspect, term: str) -> bool:
        """Whether the finding that the term has already is of the same cause."""
        index = self.by_term.get(term)
        if index is None:
            return False
        return self.findings[index].hole in suspect.kin or (term in self.anyhow and suspect.hole in _NOT_RIGHT)

    def _explain_others(self, way: Way) -> None:
        """What is paid in full on every task that was played is taken as paid on those that were not."""
        if len(self._full(way, {key: ended.reward.total or 0.0 for key, ended in way.items()})) < len(way):
            return
        for term in [name for name, value in self._sums(way, anew=False).items() if value > SLACK]:
            known = self.explained.setdefault(term, {})
            for key, gold in self.golds.items():
                known.setdefault(key, self._earned(gold).get(term, 0.0))

    def explain_whole(self, term: str, finding: Finding) -> None:
        """Takes a finding that makes all that a term pays worth nothing."""
        self.findings.append(finding)
        self.by_term[term] = len(self.findings) - 1
        self.explained[term] = dict.fromkeys(self.golds, math.inf)

    def _found(self, suspect: Suspect, way: Way) -> None:
        rest = self.rest(way)
        term = self._paying(way)
        share = share_of(way, self.golds)
        full = self._full(way, rest)
        limit = suspect.most or self.thresholds.adversary
        on = f"on {len(full)} of {len(way)} tasks" if full else f"on {len(way)} tasks"
        message = f"a policy that {suspect.does} earns {share:.2f} of the oracle's reward{self._mostly(way)}"
        if full and (share <= limit or len(full) < len(way)):
            message += f"; as much as the oracle {on}"
        key = _least(way, full or [key for key, value in rest.items() if value > SLACK] or list(way))
        shown = episode_of(way[key], self.golds[key])
        self.findings.append(
            Finding(suspect.hole, message, term, suspect.hint, shown, suspect.where, ()),
        )
        self.by_term[term] = len(self.findings) - 1
        paid = sum(self._earned(ended).get(term, 0.0) > SLACK for ended in way.values())
        if suspect.hole in ANY_ANSWER and paid >= _MOST_TASKS * len(way):
            self.anyhow.add(term)

    def _merge(self, suspect: Suspect, term: str) -> None:
        index = self.by_term.get(term)
        if index is None:
            return
        found = self.findings[index]
        if suspect.name not in found.also and suspect.hole != found.hole:
            self.findings[index] = dataclasses.replace(found, also=(*found.also, suspect.name))

    def explain(self, way: Way) -> None:
        """Takes what a way earns as known."""
        for key, ended in way.items():
            for name, value in self._earned(ended).items():
                if value > SLACK:
                    known = self.explained.setdefault(name, {})
                    known[key] = max(known.get(key, 0.0), value)

    def _earned(self, ended: Trajectory) -> dict[str, float]:
        """What each term adds to the reward."""
        return {
            name: self.rewards[name].weight * term.value
            for name, term in ended.reward.terms.items()
            if term.value is not None and name in self.rewards and ended.reward.total is not None
        }

    def rest(self, way: Way) -> dict[Key, float]:
        """What it earns on each task beyond what is explained already."""
        return {key: math.fsum(self._new(key, ended).values()) for key, ended in way.items()}

    def _new(self, key: Key, ended: Trajectory) -> dict[str, float]:
        found = {}
        for name, value in self._earned(ended).items():
            known = self.explained.get(name, {}).get(key, 0.0)
            found[name] = value if known <= 0 else max(0.0, value - known) if value > 0 else value
        return found

    def _full(self, way: Way, rest: Mapping[Key, float]) -> list[Key]:
        golds = {key: self.golds[key].reward.total or 0.0 for key in way}
        return [key for key in way if golds[key] > SLACK and rest[key] >= _FULL * golds[key]]

    def _gold(self, way: Way) -> float:
        return math.fsum(self.golds[key].reward.total or 0.0 for key in way)

    def _sums(self, way: Way, *, anew: bool) -> dict[str, float]:
        sums: dict[str, float] = {}
        for key, ended in way.items():
            for name, value in (self._new(key, ended) if anew else self._earned(ended)).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _paying(self, way: Way, *, anew: bool = True) -> str:
        """The term that pays most of it."""
        sums = self._sums(way, anew=anew)
        return max(sums, key=lambda name: sums[name]) if sums else ""

    def _mostly(self, way: Way) -> str:
        sums = {name: value / max(1, len(way)) for name, value in self._sums(way, anew=False).items()}
        named = sorted((name for name in sums if sums[name] > SLACK), key=lambda name: -sums[name])
        return f": {', '.join(f'{name} {sums[name]:.2f}' for name in named[:3])}" if named else ""


def share_of(way: Way, golds: Mapping[Key, Trajectory]) -> float:
    """What it earned of the oracle's reward on the tasks where its reward is valid; minus infinity without any."""
    valid = [key for key, ended in way.items() if ended.reward.total is not None]
    gold = math.fsum(golds[key].reward.total or 0.0 for key in valid)
    return math.fsum(way[key].reward.total or 0.0 for key in valid) / gold if gold > 0 else -math.inf


def episode_of(ended: Trajectory, gold: Trajectory) -> Episode:
    """An episode as a finding shows it."""
    actions = tuple(cut_middle(turn.action, _SHOWN) for turn in ended.turns)
    if len(actions) > 8:
        actions = (*actions[:4], f"… ({len(actions) - 6} more actions)", *actions[-2:])
    return Episode(ended.split, ended.task_index, actions, ended.reward.total, gold.reward.total)


def _least(way: Way, keys: Sequence[Key]) -> Key:
    return min(keys, key=lambda key: (len(way[key].turns), sum(len(turn.action) for turn in way[key].turns), key))
