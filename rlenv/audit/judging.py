"""The findings of one split, in the order of causes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from rlenv.audit import verdicts as causes
from rlenv.audit.adversaries import ADVERSARIES, Adversary
from rlenv.audit.crafted import runs_answer
from rlenv.audit.golds import binomial_tail, end_flag_of
from rlenv.audit.play import Chapter, Way, total_of
from rlenv.audit.report import Hole, Thresholds, hole_of
from rlenv.audit.rewrites import judge_rewrites, judge_unmeasured
from rlenv.audit.subject import same
from rlenv.audit.texts import HINTS, WORDS
from rlenv.audit.variants import CONTROL
from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import may_read_state
from rlenv.trajectory import Trajectory

_BEFORE_TOOLS = WORDS["before_tools"]
_WRONG = ("short_answer", "wrong_answer")
_BY_FORM = ("wrong_answer", "one_side")
_ALIKE = 0.7
"""A control that earns this share of what it is a control of shows that the right answer is not what is paid."""
_LUCK = 0.001
_CHANCE = 0.15
_OPTIONS = 4
_FEW = 5
_USUAL_LUCK = 0.2
_SAME_PARTS = ("another order", "one of its parts twice")
"""Changes of an answer that leave out nothing of it."""
_LEAST_HITS = 4
_SPARSE = 0.5
_WHOLE = 0.9
_FEW_TASKS = 0.05
_LEAST = 2
_ALSO = 3
_NAMED = {adversary.name: adversary for adversary in ADVERSARIES}


def judge_chapter(
    environment: Environment, thresholds: Thresholds, chapter: Chapter, foreign: Mapping[str, tuple[float, Trajectory]]
) -> list[Hole]:
    """The findings; `foreign` are terms that rose with what tools wrote."""
    verdicts = causes.Verdicts(environment.spec.rewards, thresholds, chapter.golds)
    for term, unsteady in chapter.unsteady.items():
        verdicts.explain_whole(term, unsteady)
    _judge_adversary(verdicts, _NAMED["nothing"], chapter)
    causes.judge_sides(verdicts, chapter)
    _judge_adversary(verdicts, _NAMED["vanishing"], chapter)
    for name in _BEFORE_TOOLS:
        if name == "idle_calls":
            _judge_calls_alone(verdicts, chapter, "beyond")
            _judge_calls_alone(verdicts, chapter, "same_call")
            _judge_other_arguments(verdicts, chapter, is_left_out=True)
        _judge_adversary(verdicts, _NAMED[name], chapter)
    for one in (one for one in ADVERSARIES if one.in_machine):
        _judge_adversary(verdicts, one, chapter)
    verdicts.findings[:] = [_with_cause_name(environment, one, chapter) for one in verdicts.findings]
    _judge_foreign_text(verdicts, chapter, foreign)
    _judge_tried(verdicts, chapter, "echoed")
    _judge_adversary(verdicts, _NAMED["judge_instructions"], chapter)
    _judge_tried(verdicts, chapter, "emptied_state", "unused_tool")
    _judge_tried_beyond_words(verdicts, chapter, "every_value", "every_listed")
    _judge_tried(verdicts, chapter, "written")
    _judge_adversary(verdicts, _NAMED["thought_answer"], chapter)
    _judge_tried(verdicts, chapter, "talk", "told", "corrected", "listed", "listed_to_the_deaf")
    _judge_tried_beyond_words(verdicts, chapter, "unchecked_call")
    _judge_tried(verdicts, chapter, "only_said")
    _judge_other_arguments(verdicts, chapter, is_left_out=False)
    _judge_tried_beyond_words(verdicts, chapter, "every_value")
    _judge_leaks(verdicts, chapter)
    _judge_tried(verdicts, chapter, "asked_until_right")
    _judge_tried(verdicts, chapter, "another")
    _judge_answers(verdicts, chapter)
    if not any(one.hole == "paid_again" for one in verdicts.findings):
        _judge_tried(verdicts, chapter, "again")
    success = _judge_success(environment, thresholds, chapter)
    earned = [*verdicts.findings, *success, *chapter.channels, *judge_rewrites(chapter)]
    return [*(causes.with_advice(environment, one, chapter) for one in earned), *judge_unmeasured(environment, chapter)]


def _judge_answers(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """Answers that are right in part, many as one, or the same on all tasks, in the order of causes."""
    # Where many answers as one earn no more than one of them on every task, it is that one which is paid.
    alone, many = (
        max((causes.share_of(way, chapter.golds) for way in chapter.all_ways(name)), default=0.0)
        for name in ("constant_answer", "every_option")
    )
    # What is changed on a few tasks alone is right by accident where many answers as one are right on all.
    tried = [way for label, way in chapter.tried["variant"] if way and not label.startswith(_SAME_PARTS)]
    changed = [len(_fully_paid_tasks(way, chapter)) / len(way) for way in tried]
    if alone < many >= _WHOLE > 2 * max(changed, default=0.0):
        _judge_adversary(verdicts, _NAMED["every_option"], chapter)
    # A far number that is right on a few tasks shares by accident what the others were made to share.
    near = max((causes.share_of(way, chapter.golds) for way in chapter.ways.get("near_answer", [])), default=0.0)
    for number in (0, 1) if near > _SPARSE else (1, 0):
        if number:
            _judge_variants(verdicts, chapter)
        else:
            _judge_adversary(verdicts, _NAMED["near_answer"], chapter)
    _judge_foreign_answers(verdicts, chapter)
    pasted = chapter.ways.get("pasted", [{}, {}])[1:2]
    if max((causes.share_of(way, chapter.golds) for way in pasted), default=0.0) > max(many, _SPARSE):
        verdicts.judge(dataclasses.replace(_NAMED["copied"], most=_SPARSE, partial=0), pasted)
    _judge_tried(verdicts, chapter, "commonest")
    if chapter.answers <= _FEW or alone >= _WHOLE * many > 0:
        _judge_guesses(verdicts, chapter)
        _judge_last_adversaries(verdicts, chapter)
    else:
        _judge_last_adversaries(verdicts, chapter)
        _judge_guesses(verdicts, chapter)


def _judge_other_arguments(verdicts: causes.Verdicts, chapter: Chapter, *, is_left_out: bool) -> None:
    """A tool that fills in what it is not told, where a wrong value earns nothing; and values that nobody compares."""
    tried = chapter.tried["other_arguments"]
    for (tool, key, number), way in tried:
        if is_left_out == (number == 0):
            wrong = [other for (*place, at), other in tried if place == [tool, key] and at] * is_left_out
            place = f"argument '{key}' of tool '{tool}'" if key else f"arguments of tool '{tool}'"
            suspect = causes.TRIED["left_out" if is_left_out else "other_arguments"].filled_with(place)
            most = _WHOLE if key else 0.0
            verdicts.judge(dataclasses.replace(suspect, most=most), [causes.beyond(way, [*wrong, chapter.only_said])])


def _judge_variants(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """The parts of an answer that are not looked at: what is other there earns as much as the right one."""
    found: list[tuple[str, Way]] = []
    ways = dict(chapter.tried["variant"])
    for label, tried in ways.items():
        way = causes.beyond(tried, [ways.get(f"{CONTROL}{label}", {})])
        whole = _fully_paid_tasks(way, chapter)
        if len(whole) >= max(_LEAST, _FEW_TASKS * len(way)) and not label.startswith(CONTROL):
            found.append((label, whole))
    _judge_ways_together(verdicts, "variant", sorted(found, key=lambda one: -len(one[1])))


def _fully_paid_tasks(way: Way, chapter: Chapter) -> Way:
    """The tasks on which a way earns what the oracle does."""
    least = {key: (1 - causes.SLIGHT) * total_of(chapter.golds[key]) for key in way}
    return {key: one for key, one in way.items() if total_of(one) >= least[key] > 0}


def _judge_ways_together(verdicts: causes.Verdicts, name: str, found: Sequence[tuple[str, Way]]) -> None:
    """One finding of ways that earn by the same, which names the first of them."""
    for at, (_, way) in enumerate(found):
        said = ", or ".join(list(dict.fromkeys(label for label, _ in found[at:]))[:_ALSO])
        if verdicts.judge(causes.TRIED[name].filled_with(said), [way]):
            return


def _judge_calls_alone(verdicts: causes.Verdicts, chapter: Chapter, name: str) -> None:
    """Judges calls that earn by themselves what the same calls without their point do not."""
    ways = dict(chapter.tried[name])
    # Calls to no purpose that earn as much are paid for being calls.
    plain = [chapter.only_said, *(chapter.ways.get("idle_calls", []) if name == "same_call" else [])]
    for what, way in ways.items():
        if not what.startswith(CONTROL):
            once = ways.get(f"{CONTROL}{what}", {})
            verdicts.judge(causes.TRIED[name].filled_with(what), [causes.beyond(way, [once, *plain])])


def _judge_success(environment: Environment, thresholds: Thresholds, chapter: Chapter) -> list[Hole]:
    """The first policy that is a success without what the reward asks for, and the first that outdoes the oracle."""
    found: dict[str, Hole] = {}
    # By default success is what the reward asks for, and a fault of it is one of the reward.
    is_known = environment.spec.success is None
    for adversary in ADVERSARIES if not chapter.unsteady else ():
        for way in chapter.ways.get(adversary.name, []):
            valid = {key: ended for key, ended in way.items() if ended.reward.total is not None}
            free = {key: ended for key, ended in valid.items() if ended.success and not (is_known and _is_whole(ended))}
            # Who pastes what tools gave has made the oracle's calls.
            if adversary.name == "pasted":
                free = {key: free[key] for key in free.keys() - chapter.worked.keys()}
            limit = max(adversary.most or thresholds.adversary, causes.SLACK)
            if len(free) > limit * len(way) and causes.share_of(free, chapter.golds) <= _SPARSE:
                message = f"a policy that {adversary.does} is a success on {len(free)} of {len(way)} tasks, and earns"
                message += f" {max(causes.share_of(free, chapter.golds), 0.0):.2f} of the oracle's reward there"
                shown = _shortest_finding("free_success", message, free, chapter, _success_hint(environment))
                found.setdefault("free_success", shown)
            turned = _wrong_sign_finding(adversary, valid, chapter) if adversary.name in _WRONG else None
            found |= {"wrong_sign": turned} if turned is not None and "wrong_sign" not in found else {}
            outdone = {key: one for key, one in valid.items() if _is_outdone(chapter.golds[key], one)}
            if len(outdone) >= max(2, _FEW_TASKS * len(way)):
                mine, theirs = _mean_rewards(outdone, chapter)
                is_cost = theirs < -causes.SLACK
                message = f"a policy that {adversary.does} earns {mine:.2f} where the oracle earns {theirs:.2f}, on "
                message += f"{len(outdone)} of {len(way)} tasks"
                hole = "costs_exceed_reward" if is_cost else adversary.hole
                hint = HINTS["cost"] if is_cost else adversary.hint
                found.setdefault("outdone", _shortest_finding(hole, message, outdone, chapter, hint))
    return list(found.values())


def _wrong_sign_finding(adversary: Adversary, way: Way, chapter: Chapter) -> Hole | None:
    """A finding where a wrong answer earns more than twice what the oracle does, on most tasks."""
    more = {key: one for key, one in way.items() if total_of(one) > 2 * max(total_of(chapter.golds[key]), causes.SLACK)}
    if 2 * len(more) <= len(way):
        return None
    mine, theirs = _mean_rewards(more, chapter)
    message = f"a policy that {adversary.does} earns {mine:.2f} where the oracle earns {theirs:.2f}"
    return _shortest_finding("wrong_sign", message, more, chapter, HINTS["sign"])


def _is_outdone(gold: Trajectory, ended: Trajectory) -> bool:
    """True if an oracle that is right in all that is paid for earns nothing, and no more than this episode."""
    paid = [term.value or 0.0 for term in gold.reward.terms.values() if term.weight > 0]
    return bool(paid) and min(paid) >= 1 - causes.SLACK and total_of(gold) <= min(total_of(ended), causes.SLACK)


def _mean_rewards(way: Way, chapter: Chapter) -> tuple[float, float]:
    """The mean reward of a way, and the oracle's on the same tasks."""
    return fmean(map(total_of, way.values())), fmean(total_of(chapter.golds[key]) for key in way)


def _shortest_finding(hole: str, message: str, way: Way, chapter: Chapter, hint: str) -> Hole:
    key = min(way, key=lambda one: (len(way[one].turns), one))
    return hole_of(hole, message, hint=hint, episode=causes.episode_of(way[key], chapter.golds[key]))


def _is_whole(ended: Trajectory) -> bool:
    """True if all terms that pay were measured: one that is skipped asks for nothing where no `success` names it."""
    return all(term.status != "skipped" for term in ended.reward.terms.values() if term.weight > 0)


def _success_hint(environment: Environment) -> str:
    if environment.spec.success is None:
        return "a term that its gate skips asks for nothing: name it in `success`, such as `success: correct >= 1`"
    said = f"`success: {environment.spec.success}` holds for it"
    return f"{said}: name the term that compares with the row's answer, at what only a right one has"


def _judge_foreign_text(
    verdicts: causes.Verdicts, chapter: Chapter, foreign: Mapping[str, tuple[float, Trajectory]]
) -> None:
    """Terms that rose with what tools wrote."""
    for term, (rise, shown) in foreign.items():
        gold = chapter.golds.get((shown.split, shown.task_index))
        if gold is not None and math.inf not in verdicts.explained.get(term, {}).values():
            said = f"'{term}' rises by {rise:.2f} when only what a tool wrote changes: it is read"
            found = hole_of("tool_output", said, term, HINTS["output"], causes.episode_of(shown, gold))
            verdicts.explain_whole(term, found)


def _judge_last_adversaries(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    verdicts.explain(chapter.worked)  # who pastes what tools gave has called them; that may be the task
    for name in ("every_option", "pasted", "copied", "joined", "odd_answer"):
        _judge_adversary(verdicts, _NAMED[name], chapter)


def _judge_adversary(verdicts: causes.Verdicts, adversary: Adversary, chapter: Chapter) -> None:
    ways, controls = chapter.ways.get(adversary.name, []), chapter.controls.get(adversary.name, [])
    if adversary.name in ("hollow_files", "copied_files", "hostile_program"):
        ways = [{key: ended for key, ended in way.items() if _has_changed_files(ended)} for way in ways]
    earned, alike = (
        max((causes.share_of(way, chapter.golds) for way in some), default=0.0) for some in (ways, controls)
    )
    if alike >= _ALIKE * earned > 0:
        wrong, does = _NAMED["wrong_answer"], adversary.control_does
        verdicts.judge(causes.Suspect(wrong.name, wrong.hole, does, wrong.hint, kin=causes.ANY_ANSWER), controls)
    first = len(ways) - adversary.controls
    shown = [causes.beyond(way, ways[first:]) for way in ways[:first]]
    verdicts.judge(adversary, [way for way in shown if not adversary.whole or verdicts.pays_whole(way)])


def _has_changed_files(ended: Trajectory) -> bool:
    """True if what the oracle left in the machine was changed: there may be no file of its own."""
    return any("zqx" in result.text for turn in ended.turns[-2:] for result in turn.results)


def _with_cause_name(environment: Environment, found: Hole, chapter: Chapter) -> Hole:
    """A finding under the name of its cause where that takes more than the script to tell."""
    golds = [one for one in chapter.golds.values() if not one.failure]
    tools = {name: tool for one in golds for name, tool in environment.toolsets.of(one.task).tools.items()}
    term = next((term for term in environment.parts.terms if term.name == found.term), None)
    has_state = bool(environment.parts.resources) or any(tool.mutates for tool in tools.values())
    reads_state = has_state and term is not None and may_read_state(term.spec)
    changed = [causes.share_of(way, chapter.golds) for (*_, number), way in chapter.tried["other_arguments"] if number]
    over = end_flag_of(environment, found.term) if found.term else ""
    if found.hole == "idle_calls_paid" and reads_state and max(changed, default=0.0) >= _WHOLE and not over:
        unchecked = causes.TRIED["other_arguments"].filled_with("arguments of these tools")
        return dataclasses.replace(found, code=unchecked.hole, hint=unchecked.hint)
    if found.hole == "paid_for_ending" and reads_state:
        return dataclasses.replace(found, code="state_at_start", hint=HINTS["state"])
    if found.hole in ("form_only", "paid_for_ending") and causes.is_right_if_empty(chapter, found.episode):
        return dataclasses.replace(found, code=_NAMED["empty"].hole, hint=_NAMED["empty"].hint)
    share = max((causes.share_of(way, chapter.golds) for name in _WRONG for way in chapter.all_ways(name)), default=1.0)
    if found.hole in ("form_only", "paid_for_ending") and share < _SPARSE and "as much as the oracle" in found.message:
        hint = "look at these rows: any answer is right there; refuse rows that the rule cannot compare"
        return dataclasses.replace(found, code="partial_tasks", hint=hint)
    if found.hole == "paid_for_ending" and environment.spec.answer.from_ == "final_message":
        found = dataclasses.replace(found, code=_NAMED["wrong_answer"].hole, hint=_NAMED["wrong_answer"].hint)
    if found.hole == "form_only" and found.episode is not None:
        # One that runs the answer compares it, whatever state it is run on.
        if reads_state and term is not None and term.spec.kind == "verify" and not runs_answer(term.spec):
            return dataclasses.replace(found, code="state_at_start", hint=HINTS["state"])
        if cause := _wrong_answer_cause(chapter):
            return dataclasses.replace(found, code=cause[0], hint=cause[1])
    return _with_penalty_name(environment, found, chapter)


def _wrong_answer_cause(chapter: Chapter) -> tuple[str, str] | None:
    """The wrong answers that are paid, where not all are: those that cannot be read, or those that are not far off."""
    wrong, sides = ([causes.share_of(way, chapter.golds) for way in chapter.ways.get(name, [])] for name in _BY_FORM)
    if len(wrong) < 2:
        return None
    if max(wrong[0], 0.0) < wrong[1] / 4:
        return _NAMED["odd_answer"].hole, _NAMED["odd_answer"].hint
    is_near = bool(sides) and max(wrong[1], sides[0], sides[-1], 0.0) < wrong[0] / 4
    return ("loose_match", HINTS["near"]) if is_near else None


def _with_penalty_name(environment: Environment, found: Hole, chapter: Chapter) -> Hole:
    """The hole of a penalty that spares an answer of any kind and no silence."""
    penalties = [name for name, spec in environment.spec.rewards.items() if spec.usual_weight < 0]
    unsaid = [way for name in ("nothing", "empty", "empty_form") for way in chapter.all_ways(name)[:1]]
    said = chapter.ways.get("pasted", [{}, {}])[1]
    if found.hole not in ("empty_answer", "form_only") or not penalties or not said:
        return found
    least = max((_pay_of(way, found.term) for way in unsaid), default=0.0)
    for name in penalties:
        bites = _pay_of(said, found.term) > causes.SLACK and -_pay_of(said, name) > _pay_of(said, found.term) / 2
        if bites and least > causes.SLACK and max(_pay_of(way, name) for way in unsaid) > -causes.SLACK:
            message = f"{found.message}; '{name}' takes nothing from one that says nothing"
            return dataclasses.replace(found, code="penalty_avoided", term=name, message=message, hint=HINTS["unsaid"])
    return found


def _pay_of(way: Way, term: str) -> float:
    """The mean of what a term adds to the reward."""
    terms = [ended.reward.terms[term] for ended in way.values()]
    return math.fsum((one.value or 0.0) * one.weight for one in terms) / max(1, len(terms))


def _judge_tried(verdicts: causes.Verdicts, chapter: Chapter, *names: str) -> None:
    for name in names:
        for what, way in chapter.tried[name]:
            verdicts.judge(causes.TRIED[name].filled_with(what), [way])


def _judge_tried_beyond_words(verdicts: causes.Verdicts, chapter: Chapter, name: str, tried: str = "") -> None:
    """As `_judge_tried`, where the last words alone earn less."""
    ways = [(what, causes.beyond(way, [chapter.only_said])) for what, way in chapter.tried[tried or name]]
    limit = causes.TRIED[name].most or verdicts.thresholds.adversary
    _judge_ways_together(verdicts, name, [one for one in ways if causes.share_of(one[1], chapter.golds) > limit])


def _judge_leaks(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """Each place by itself: who takes an answer out of one place leaves it in the others."""
    before, earning = verdicts.explained, []
    for leak, way in chapter.tried["leak"]:
        verdicts.explained = {term: dict(known) for term, known in before.items()}
        if leak.where.startswith("prompt") and _is_chance(way, chapter):
            continue
        earning += [way] if verdicts.judge(causes.TRIED["leak"].filled_with(leak), [way]) else []
    verdicts.explained = before
    for way in earning:
        verdicts.explain(way)


def _is_chance(way: Way, chapter: Chapter) -> bool:
    """True if a rule does no better than a choice among the options that these tasks list, but by luck."""
    counts = [sum(key in choice for choice in chapter.choices) for key in way]
    listed = [1 / count for count in counts if count]
    if 2 * len(listed) < len(way):
        return False
    hits = sum((ended.reward.total or 0.0) > (chapter.golds[key].reward.total or 0.0) / 2 for key, ended in way.items())
    return binomial_tail(hits, len(way), fmean(listed)) > _LUCK


def _judge_foreign_answers(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """An answer of one task that is taken for right where another one is wanted: the comparison is too wide."""
    for answer, way in chapter.constants:
        mine = [chapter.hearts.get(key, "") for key, gold in chapter.golds.items() if gold.answer == answer]
        own = {key for key in way if any(same(chapter.hearts.get(key, ""), one) for one in mine)}
        others = {key: one for key, one in way.items() if key not in own}
        does = f"gives the right answer of another task ('{answer:.40}') where another one is wanted"
        hint = "compare more strictly: answers that differ are taken for one"
        suspect = causes.Suspect("constant_answer", "loose_match", does, hint)
        full = {key: one for key, one in others.items() if total_of(one) >= _WHOLE * total_of(chapter.golds[key]) > 0}
        if len(full) > max(1, verdicts.thresholds.adversary * len(others)) and verdicts.judge(suspect, [full]):
            return


def _judge_guesses(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """Judges the form of a question, the same answer everywhere, and a choice at random: a coin is named so."""
    for shortcut, way in chapter.tried["shortcut"]:
        if verdicts.judge(causes.TRIED["shortcut"].filled_with(shortcut), [way]):
            return
    if chapter.constants:
        answer, best = max(chapter.constants, key=lambda one: causes.share_of(one[1], chapter.golds))
        share = causes.share_of(best, chapter.golds)
        is_coin = 2 <= chapter.answers <= _FEW and share <= 1 / chapter.answers + _CHANCE
        hint = "let a wrong answer cost as much as keeps a guess at nothing, ask for more than a choice of so few, or "
        hint += "ask for the reason too" if is_coin else "let no answer be right on so many tasks"
        hole, does = "chance" if is_coin else "constant_answer", f"gives every task the same answer ('{answer:.40}')"
        suspect = causes.Suspect("constant_answer", hole, does, hint)
        # Of open answers a few are alike by chance, and a program is no guess: tasks that it fits ask the same.
        hits = sum(2 * total_of(one) >= total_of(chapter.golds[key]) > 0 for key, one in best.items())
        is_rare = (chapter.answers > _FEW and hits < _LEAST_HITS) or bool(re.search(r"^def \w+\(", answer, re.M))
        if not is_rare and (_is_no_better_than_choice(hits, len(best), chapter) or verdicts.judge(suspect, [best])):
            return
    if chapter.choices:
        _judge_choice(verdicts, chapter)


def _is_no_better_than_choice(hits: int, of: int, chapter: Chapter) -> bool:
    """True where there are four options or more, or answers, and one for all is right no more often than a choice."""
    least = min((sum(key in one for one in chapter.choices) for _, way in chapter.constants for key in way), default=0)
    least = least or chapter.answers
    return least >= _OPTIONS and least * binomial_tail(hits, of, 1 / least) > _USUAL_LUCK


def _judge_choice(verdicts: causes.Verdicts, chapter: Chapter) -> None:
    """Judges one choice in so many: the mean over the options of each task."""
    sums: dict[tuple[str, int], list[float]] = {}
    rest: dict[tuple[str, int], list[float]] = {}
    for way in chapter.choices:
        for key, value in verdicts.unexplained_rewards(way).items():
            if way[key].reward.total is not None:
                sums.setdefault(key, []).append(way[key].reward.total or 0.0)
                rest.setdefault(key, []).append(value)
    gold = math.fsum(chapter.golds[key].reward.total or 0.0 for key in sums)
    if gold <= 0:
        return
    share, new = (math.fsum(fmean(part) for part in found.values()) / gold for found in (sums, rest))
    # Tasks that list nothing are not guessed.
    played = {key for way in chapter.ways.get("every_option", []) for key in way}
    is_most = 2 * len(sums) >= len(played)
    if not is_most or min(share, new) <= verdicts.thresholds.adversary + causes.SLACK:
        return
    number = next(key for key in sums if any(way[key].reward.total for way in chapter.choices if key in way))
    shown: Way = next(way for way in chapter.choices if number in way and way[number].reward.total)
    term = max(shown[number].reward.terms.values(), key=lambda one: (one.value or 0.0) * one.weight).name
    message = f"a policy that chooses at random among the answers that a task lists earns {share:.2f} of the oracle's"
    hint = "list more answers, let a wrong one cost as much as keeps a guess at nothing, or ask for the answer itself"
    episode = causes.episode_of(shown[number], chapter.golds[number])
    verdicts.findings.append(hole_of("chance", f"{message} reward: {term}", term, hint, episode))
