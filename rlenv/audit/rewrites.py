"""Right answers that are written otherwise: who says the same in another usual form has to earn as much.

Each rewrite is one that nobody would call another answer, or that the prompt itself asks for: space around it, the
keys of JSON in another order, a label as the prompt spells it, the number alone where a number is asked for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rlenv.audit.crafted import is_query
from rlenv.audit.place_rules import CASED
from rlenv.audit.play import Chapter, Way, total_of
from rlenv.audit.probes import filler
from rlenv.audit.report import Hole, hole_of
from rlenv.audit.subject import Action, AuditSubject, is_number, properties_of
from rlenv.audit.texts import DATA
from rlenv.audit.variants import ORDERED
from rlenv.audit.verdicts import SLACK, episode_of
from rlenv.episodes.environment import Environment
from rlenv.messages import Message, ToolCall
from rlenv.trajectory import Trajectory

_NUMBER = re.compile(r"\b(?:the|a|one) (?:\w+ )?number\b(?! of\b)", re.IGNORECASE)
_PLACES = re.compile(
    r"\b(?:(\d|one|two|three|four) (?:decimals?|digits?|places)\b|nearest (whole|integer|tenth|hundredth))",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"(?:<\w+>|\{|\bsuch as|\blike|\be\.g\.,?|\bexample:?) ?[-+]?\d[\d.,]* ?%", re.IGNORECASE)
_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "whole": 0, "integer": 0, "tenth": 1, "hundredth": 2}
_UNIT = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?) ?[^\W\d_][\w/]*(?: [^\W\d_]+)?")
_LIST = (", ", "; ", "\n", ",")
_LEAST_TASKS = 2
_SHARE = 0.3
_LOSES = 0.5
"""A rewrite that costs more than this share of what the oracle earns is not taken for the same answer."""
_ORDERS = re.compile(r"\b(?:order\s+by|limit)\b", re.IGNORECASE)
_THEN = re.compile(r"\b(?:then|before|after\w*|next|finally|until)\b", re.IGNORECASE)


def rewrite_scripts(subject: AuditSubject, heart: str, pool: Counter[str]) -> dict[str, list[Action]]:
    """The oracle's work in other usual forms, by what is other.

    `heart` is what of the answer the reward compares, `pool` at how many places each item of all listed answers stands.
    """
    right, done = subject.right.strip(), dict(_reordered_work(subject))
    heart = heart if heart and heart in right else right
    if not heart or len(subject.options) < _LEAST_TASKS:
        return done
    before = subject.oracle_actions()
    made = {label: right.replace(heart, text, 1) for label, text in _rewrites(heart, subject, pool) if text != heart}
    return done | {label: [*before, subject.form(text)] for label, text in made.items()}


def _reordered_work(subject: AuditSubject) -> Iterator[tuple[str, list[Action]]]:
    """The same work with the calls of one turn turned round, and after looks at the state, which change nothing."""
    terms = [one for one in subject.environment.spec.rewards.values() if one.usual_weight > 0]
    asked = "\n".join(message.content for message in subject.gold.messages)
    turns: list[Action] = [turn.action for turn in subject.gold.turns]
    at_once = tuple(call for call in subject.gold.turns[-1].parsed.calls if isinstance(call, ToolCall))[::-1]
    is_meant = ORDERED.search(asked) or _THEN.search(asked)
    if any(getattr(one, "order", "") is True for one in terms) and len(at_once) > 1 and not is_meant:
        yield "with the calls of one turn in another order", [*turns[:-1], Message("assistant", "", at_once)]
    known = {key: value for call in subject.own_calls() for key, value in call.arguments.items()}
    has_room = len(turns) < subject.limits.turns and len(subject.own_calls()) < subject.limits.tool_calls
    for tool in subject.tools.values() if has_room and any(one.kind == "state" for one in terms) else ():
        told = {key: known[key] for key in properties_of(tool) if key in known}
        look = Message("assistant", "", (ToolCall(tool.name, {**filler(tool), **told}),))
        if not tool.mutates and not subject.submits(tool.name):
            yield f"after a look by '{tool.name}'", [look, *turns]


def count_item_places(answers: Sequence[str]) -> Counter[str]:
    """The items of answers that list something: at how many different places each of them stands."""
    places = {(item, at) for answer in answers for at, item in enumerate(_split_items(answer)[1])}
    return Counter(item for item, _ in places)


def _split_items(answer: str) -> tuple[str, list[str]]:
    mark = next((mark for mark in _LIST if mark in answer), "")
    return mark, [one.strip() for one in answer.split(mark)] if mark else []


def _rewrites(right: str, subject: AuditSubject, pool: Counter[str]) -> Iterator[tuple[str, str]]:
    asked = "\n".join(message.content for message in subject.gold.messages if message.role != "assistant")
    if subject.environment.spec.answer.from_ in ("tag", "final_message") and "\n" not in right:
        yield "with space and line breaks around it", f"\n{right}\n"
    if is_number(right):
        yield from _number_rewrites(right, asked, subject.options)
    elif (found := _UNIT.fullmatch(right)) is not None and _NUMBER.search(asked) and "unit" not in asked.lower():
        yield "as the number alone, which the prompt asks for", found[1]
    elif right[:1] in ("{", "["):
        yield from _json_rewrites(right)
    elif is_query(right):
        yield "with a semicolon behind it", f"{right.rstrip().rstrip(';')};"
        rules = {getattr(one, "rule", "") for one in subject.environment.spec.rewards.values()}
        # A rule that reads a query's text does not know its rows.
        if not {"sql_match"} & rules and not _ORDERS.search(right) and not ORDERED.search(subject.prompt):
            yield (
                "with its rows in another order, which no question asks for",
                f"SELECT * FROM ({right.rstrip(' ;')}) ORDER BY 1 DESC",
            )
    elif "\n" not in right and len(right) < 60:
        spelled = re.search(rf"(?<!\w){re.escape(right)}(?!\w)", asked, re.IGNORECASE)
        if (
            spelled is not None
            and not CASED.search(asked)
            and not re.search(rf"(?<!\w){re.escape(right)}(?!\w)", asked)
        ):
            yield "as the prompt spells it", spelled[0]
        if "'" in right:
            yield "with a typographic apostrophe", right.replace("'", "\u2019")
        mark, items = _split_items(right)
        # Items that stand at several places in the answers are of one kind, and have no place of their own.
        is_set = len(items) > 1 and not ORDERED.search(asked) and not any(map(is_number, items))
        if is_set and all(pool[one] > 1 for one in items):
            yield "with its parts in another order, which no prompt asks for", mark.join(reversed(items))


def _number_rewrites(right: str, asked: str, options: Sequence[str]) -> Iterator[tuple[str, str]]:
    value = float(right.replace(",", ""))
    is_share = all(is_number(one) and abs(float(one.replace(",", ""))) <= 1 for one in options)
    if _PERCENT.search(asked) and is_share and len(options) > _LEAST_TASKS:
        yield "as the number of percent that the prompt's own example shows", f"{value * 100:.10g}%"
    if re.fullmatch(r"[^\w,(]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[^\w,]*", right):  # others stand between several numbers
        yield "without commas in its number", right.replace(",", "")
    found = _PLACES.search(asked)
    if found is not None and "." in right:
        word = (found[1] or found[2]).lower()
        yield "rounded as the prompt asks", f"{float(right.replace(',', '')):.{_WORDS.get(word) or int(word)}f}"
    elif found is None and re.search(r"\.\d*0$", right) and not re.search(r"\.\d{3}$", right):  # that may be thousands
        yield "without the zeros at its end", right.rstrip("0").rstrip(".")


def _json_rewrites(right: str) -> Iterator[tuple[str, str]]:
    try:
        value = json.loads(right)
    except (ValueError, RecursionError):
        return
    yield "as the same JSON on several lines", json.dumps(value, indent=2)
    yield "as the same JSON without spaces", json.dumps(value, separators=(",", ":"))
    if isinstance(value, dict) and len(value) > 1:
        yield "as the same JSON with its keys in another order", json.dumps(dict(reversed(value.items())))


def judge_rewrites(chapter: Chapter) -> Iterator[Hole]:
    """A finding of the forms that are not taken for the right answers that they are; the first of each cause."""
    found: dict[str, list[str]] = {}
    shown: dict[str, tuple[Way, str]] = {}
    for label, way in chapter.tried["rewritten"]:
        lost = {key: one for key, one in way.items() if _loses_reward(one, chapter.golds[key])}
        if len(lost) < max(_LEAST_TASKS, _SHARE * len(way)):
            continue
        key = min(lost)
        mine, theirs = lost[key].reward.terms, chapter.golds[key].reward.terms
        losses = {name: (one.value or 0.0) - (mine[name].value or 0.0) for name, one in theirs.items()}
        term = max(losses, key=lambda name: losses[name] * theirs[name].weight)
        if term in chapter.unsteady:
            continue
        found.setdefault(term, []).append(label)
        shown.setdefault(term, (lost, label))
    for term, labels in found.items():
        lost, label = shown[term]
        key = min(lost)
        earned, whole = ((one.reward.total or 0.0) for one in (lost[key], chapter.golds[key]))
        message = f"the right answer {label} earns {earned:.2f} of {whole:.2f} on {len(lost)} tasks"
        message += f"; so it does {', or '.join(labels[1:3])}" if labels[1:] else ""
        hint = next(text for word, text in DATA["rewrites"].items() if word in label)
        yield hole_of("right_answer_refused", message, term, hint, episode_of(lost[key], chapter.golds[key]))


def _loses_reward(ended: Trajectory, gold: Trajectory) -> bool:
    whole = gold.reward.total or 0.0
    # What a call is refused for may stand in the state.
    failed = [sum(result.is_error for turn in one.turns for result in turn.results) for one in (ended, gold)]
    is_less = ended.reward.total is not None and whole > SLACK and ended.reward.total < _LOSES * whole
    return is_less and failed[0] <= failed[1]


_MASK_HINT = "give 0 where it cannot be read: a policy that raises here is masked, and loses nothing"


def judge_unmeasured(environment: Environment, chapter: Chapter) -> Iterator[Hole]:
    """Terms that could not be measured though they can be on what the oracle does."""
    found: dict[tuple[str, str], list[Trajectory]] = {}
    names = ("emptied_state", "asked_until_right", "leak")
    others = [way for _, way in (*(one for name in names for one in chapter.tried[name]), *chapter.constants)]
    for way in [*(way for ways in chapter.ways.values() for way in ways), *others]:
        for ended in way.values():
            for name, term in ended.reward.terms.items():
                spec = environment.spec.rewards.get(name)
                if spec is None or term.status != "invalid" or not spec.weight:
                    continue
                if ended.reward.total is not None:
                    if spec.usual_weight < 0:
                        found.setdefault(("penalty_avoided", name), []).append(ended)
                elif ended.failure is not None and ended.failure.reason == "reward":
                    hole = "invalid_rewards" if spec.kind == "judge" else "escapes_by_invalid"
                    found.setdefault((hole, name), []).append(ended)
    for (hole, name), episodes in found.items():
        least = min(episodes, key=lambda one: (-total_of(one), len(one.turns), sum(len(t.action) for t in one.turns)))
        why = f"{least.split}/{least.task_index}: {name}: {least.reward.terms[name].error:.200}"
        done = "is left out of the reward" if hole == "penalty_avoided" else "is invalid, and the episode masked,"
        message = f"'{name}' {done} in {len(episodes)} episodes of adversaries, such as {why}"
        hint = _MASK_HINT if hole != "invalid_rewards" else "see why the judge could not be asked"
        gold = chapter.golds[least.split, least.task_index]
        yield hole_of(hole, message, name, hint, episode_of(least, gold))
