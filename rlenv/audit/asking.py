"""Tools and users that can be asked of one answer after the other, until they say it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.audit.golds import binomial_tail
from rlenv.audit.play import Adaptive, Chapter, Results, Way, total_of
from rlenv.audit.probes import arguments_from_others, filler
from rlenv.audit.subject import Action, AuditSubject, kinds_of, properties_of, same, shaped, texts_of
from rlenv.audit.texts import holds
from rlenv.messages import Message, ToolCall
from rlenv.tools.base import Tool

_LEAST_POOL = 40
_CLOSED = 6
_MOST_OWN = 8
_MOST_AIMS = 6
_GUESSED = 200
_MADE = re.compile(r"[()*/+={}\[\]]|(?:\d\D*){5}")
RUNS = ("bash", "code", "sql")  # whose call does what is right, and tells nothing
_SHORT = 60
_SIBLINGS = 10
_FEW_WORDS = 4
_LUCK = 0.05
_PIECE = re.compile(r"[.:;?!()]\s|\n")
_COMMA = re.compile(r",\s*(?:and |or )?|\s+(?:and|or)\s+")
ID = re.compile(r"[\w@][\w.@/:-]*\w|\w")
# A game whose rule it is to ask until it is found.
_GUESSES = re.compile(r"\bguesses\b|\bguess (?:the|my|a|an|it)\b|\bhigher or lower\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """The values to try at a parameter of a tool on one task: the right one, and those of the other tasks.

    `beside` are the other arguments. `answers` is whether the value that was found is the answer.
    """

    tool: Tool
    name: str
    right: str
    wrong: Sequence[str]
    beside: Mapping[str, Any]
    answers: bool = True

    def to_call(self, value: Any) -> ToolCall:
        """The call that tries a value."""
        return ToolCall(self.tool.name, {**self.beside, self.name: value})

    def to_argument(self, value: str) -> Any:
        """A value as an argument, None where it fits none."""
        return _as_argument(value, properties_of(self.tool).get(self.name, {}))


def targets_of(subject: AuditSubject) -> dict[str, Target]:
    """The targets on a task: each parameter that an answer fits, and each code that the oracle gives to a call.

    A code that the prompt says is no search, and one beside another that it does not say is no simple one. Where a
    prompt tells how to guess, to ask is the task.
    """
    found: dict[str, Target] = {}
    if _GUESSES.search(" ".join(message.content for message in subject.gold.messages)):
        return found
    for tool in subject.tools.values():
        for name, part in properties_of(tool).items() if not subject.submits(tool.name) else ():
            if _is_guessable(subject) and _as_argument(subject.right, part) is not None and len(found) < _MOST_AIMS:
                beside = filler(tool) | arguments_from_others(subject, tool)
                target = Target(tool, name, subject.right, subject.wrong(), beside)
                found[f"{tool.name}({name})"] = target
    for call, _ in subject.oracle_calls():
        called = subject.tools.get(call.name)
        hidden = [key for key, value in call.arguments.items() if not holds(subject.prompt, str(value))]
        # What hands in one of the values that a prompt lists may refuse all others.
        hidden = hidden or list(call.arguments) * subject.submits(call.name)
        if called is None or len(hidden) != 1 or len(found) >= 2 * _MOST_AIMS:
            continue
        (key,) = hidden
        if any(len({*map(str, each)}) > 1 for each in _values_per_task(subject, call.name, key)):
            continue  # to look through them is the task
        right = str(call.arguments[key])
        others = list(map(str, oracle_values(subject, call.name, key)))
        wrong = [one for one in dict.fromkeys(others) if one != right]
        # One that nobody could come upon is not tried.
        is_known = right in others or (right.isdecimal() and int(right) <= _GUESSED)
        if wrong and is_known and subject.environment.spec.tools[called.entry].kind not in RUNS:
            found[f"{call.name}({key}) as the oracle does"] = Target(called, key, right, wrong, call.arguments, False)
    return found


def _is_guessable(subject: AuditSubject) -> bool:
    """True where a policy can come upon the right answer: listed, another task's, a number, or nothing made up."""
    right, parts = subject.right, [one for one in subject.task.values() if not isinstance(one, str)]
    is_shown = right in texts_of(parts) or right in subject.prompt or bool(re.fullmatch(r"-?[\d.,]+", right))
    is_shown = is_shown or any(one.answer == right and one.task != subject.task for one in subject.others)
    return bool(right) and (is_shown or not _MADE.search(right))


def oracle_values(subject: AuditSubject, name: str, key: str) -> list[Any]:
    """The oracle's values of a parameter on other tasks."""
    return [value for given in _values_per_task(subject, name, key) for value in given]


def _values_per_task(subject: AuditSubject, name: str, key: str) -> list[list[Any]]:
    """The oracle's values of a parameter in each of its other episodes."""
    others = [other for other in subject.others if other.task_index != subject.gold.task_index]
    calls = [[call for turn in other.turns for call in turn.parsed.calls] for other in others]
    return [
        [one.arguments[key] for one in made if isinstance(one, ToolCall) and one.name == name and key in one.arguments]
        for made in calls
    ]


def sibling_values(subject: AuditSubject, tool: Tool, key: str, right: Any) -> list[Any]:
    """Values that could stand in its place: beside it in the row, the prompt, what tools list, or the schema."""
    if isinstance(right, bool) or not isinstance(right, (str, int)):
        return []
    text, part = str(right), properties_of(tool).get(key, {})
    known = [one for value in subject.task.values() for one in _neighbours_of(value, text)]
    shown = [subject.prompt, tool.description, str(part.get("description", ""))]
    for piece in (piece for said in shown for piece in _PIECE.split(said)):
        listed = [one.strip(" .:;?!()[]\"'") for one in _COMMA.split(piece)]
        if text in listed or text == listed[0].rpartition(" ")[2]:
            known += [listed[0].rpartition(" ")[2], *(one for one in listed[1:] if len(one.split()) < _FEW_WORDS)]
    if isinstance(right, str):  # an amount is no name, of which there are others
        look = _name_shape(text)
        results = [result.text for _, result in subject.oracle_calls() if result.outcome == "ok"]
        named = ID.findall(" ".join([subject.prompt, *results]))
        known += [one for one in named if look != "a" and _name_shape(one) == look]
        known += [one for one in oracle_values(subject, tool.name, key) if "enum" not in part]
    known = [*part.get("enum", ()), *known]
    own = {str(call.arguments.get(key)) for call in subject.own_calls()}
    kept = dict.fromkeys(str(one) for one in known if str(one) not in own and str(one).strip())
    if isinstance(right, int):
        return [int(one) for one in kept if one.isdecimal()][:_SIBLINGS]
    return [*kept][:_SIBLINGS]


def _neighbours_of(value: Any, text: str) -> Iterator[Any]:
    """The other items, keys or values of a list or a mapping that holds a text."""
    if isinstance(value, Mapping):
        some = [*value] if text in map(str, value) else [*value.values()] if text in map(str, value.values()) else []
    else:
        some = [*value] if isinstance(value, (list, tuple)) and text in map(str, value) else []
    yield from (one for one in some if isinstance(one, (str, int)))
    if isinstance(value, (list, tuple)):
        # A column of a table.
        for name in {name for row in value if isinstance(row, Mapping) for name in row if str(row[name]) == text}:
            yield from (row[name] for row in value if isinstance(row, Mapping) and name in row)


def _name_shape(text: str) -> str:
    """The look of a name: capitals, small letters, digits and marks, each in one sign."""
    return re.sub(r"\d+", "0", re.sub(r"[^\W\dA-Z_]+", "a", re.sub(r"[A-Z]+", "A", text)))


def _as_argument(answer: str, schema: Mapping[str, Any]) -> Any:
    """An answer as an argument, None where it fits none."""
    kinds = kinds_of(schema) or {"string"}
    if "enum" in schema:
        return next((value for value in schema["enum"] if same(str(value), answer)), None)
    if "string" in kinds:
        return answer
    if not kinds & {"integer", "number"}:
        return None
    try:
        number = float(answer.replace(",", ""))
    except ValueError:
        return None
    if number != number or abs(number) > 1e15:
        return None
    if number.is_integer():
        return int(number)
    return number if "number" in kinds else None


def candidates(subject: AuditSubject, right: str, wrong: Sequence[str], *, named: bool = True) -> list[str]:
    """The values to ask for: those of the split and others like them, the right one at a place of no meaning.

    First come those that a task's own row names beside the right one. A tool that knows them all as well as the right
    one does not tell which is right, though of all answers of the split it knows but one. Of a closed set none is
    made up: to name them all is a guess and no search.
    """
    rng = random.Random(f"{subject.gold.split}/{subject.gold.task_index}")
    made = dict.fromkeys([right, *wrong[: _LEAST_POOL * 2]])
    if len(wrong) >= _CLOSED:
        for _ in range(10 * _LEAST_POOL):
            if len(made) >= _LEAST_POOL:
                break
            made[_made_up_value(right, rng)] = None
    listed = list(made)
    rng.shuffle(listed)
    return list(dict.fromkeys([*(_row_candidates(subject)[:_MOST_OWN] if named else []), *listed]))


def _row_candidates(subject: AuditSubject) -> list[str]:
    """The names in a row that have the form of the right answer, those in lists first."""
    parts = sorted(subject.task.values(), key=lambda value: not isinstance(value, (Mapping, list, tuple)))
    named = [one for value in parts for one in _names_in_value(value, subject)]
    return [one for one in named if _sign_kinds(one) == _sign_kinds(subject.right) and not same(one, subject.right)]


def _names_in_value(value: Any, subject: AuditSubject) -> list[str]:
    if isinstance(value, Mapping):
        return [*map(str, value), *(one for part in value.values() for one in _names_in_value(part, subject))]
    if isinstance(value, (list, tuple)):
        found = [one for part in value for one in _names_in_value(part, subject)]
        shown = sum(one.casefold() in subject.prompt.casefold() for one in found)
        accepted = 2 * shown < len(found) and any(same(one, subject.right) for one in found)
        return [] if accepted else found
    text = "" if value is None or isinstance(value, bool) else str(value).strip()
    return [text] if 0 < len(text) <= _SHORT else []


def _sign_kinds(text: str) -> set[str]:
    """Of which kinds of signs a text is."""
    return {"letter" if one.isalpha() else "digit" if one.isdigit() else one for one in text if not one.isspace()}


def _made_up_value(right: str, rng: random.Random) -> str:
    try:
        number = int(right)
    except ValueError:
        return shaped(right, rng)
    return str(number + rng.randint(-_LEAST_POOL, _LEAST_POOL))


def ask_each(subject: AuditSubject, target: Target) -> Adaptive:
    """Asks for one value after the other until one is answered otherwise than the rest, and answers with that."""
    limits = subject.limits
    listed = candidates(subject, target.right, target.wrong, named=target.answers)
    asked = [(one, value) for one in listed if (value := target.to_argument(one)) is not None]
    width = min(limits.calls_per_turn, 16)
    left, turns = min(len(asked), limits.tool_calls), limits.turns - 1
    told: dict[str, str] = {}
    while left > 0 and turns > 0 and len(told) < len(asked):
        some = asked[len(told) : len(told) + min(width, left)]
        calls = tuple(target.to_call(value) for _, value in some)
        results: Results = yield Message("assistant", "", calls)
        for (one, value), result in zip(some, results, strict=False):
            told[one] = _mask_values(result.text, result.outcome, str(value), target.right)
        left, turns = left - len(some), turns - 1
        if len(results) < len(some) or _odd_one_out(told) is not None:
            break
    found = _odd_one_out(told)
    if not target.answers:
        # Whoever answers the same on every task has said all that there is to say.
        yield subject.last_words()
    elif found is not None:
        yield subject.form(found)
    yield subject.form("?")


def other_script(subject: AuditSubject) -> list[Action]:
    """What the oracle does and says on another task, whose answer is another one."""
    others = [one for one in subject.others if one.answer and not same(one.answer, subject.right)]
    kept = [one for one in others if one.answer not in subject.accepted and any(turn.results for turn in one.turns)]
    return [turn.action for turn in kept[subject.gold.task_index % len(kept)].turns] if kept else []


def tells_apart(way: Way, chapter: Chapter, name: str, targets: Sequence[Target]) -> bool:
    """True where a tool answered calls differently, or nothing earned, and hits are no guesses among so few values."""
    hits = sum(2 * total_of(one) > total_of(chapter.golds[key]) for key, one in way.items())
    if hits and binomial_tail(hits, len(way), 1 / (1 + min(len(one.wrong) for one in targets))) > _LUCK:
        return False
    asked = name.partition("(")[0]
    told = [{one.text for turn in ended.turns for one in turn.results if one.name == asked} for ended in way.values()]
    return any(len(some) > 1 for some in told) or not any(ended.reward.total for ended in way.values())


def ask_user(subject: AuditSubject) -> Adaptive:
    """Asks the user of one answer after the other whether it is right, and gives the one that is taken otherwise."""
    told: dict[str, str] = {}
    for one in candidates(subject, subject.right, subject.wrong())[: subject.limits.turns - 1]:
        results: Results = yield f"Is it {one}?"
        told[one] = _mask_values("".join(result.text for result in results), "ok", one, subject.right)
    yield subject.form(_odd_one_out(told) or "?")


def _mask_values(text: str, outcome: str, *values: str) -> str:
    """A reply without the values asked for and the right one: a reply that repeats these to all tells nothing apart."""
    # As words of their own: a "no" that was asked for stands in "nothing" too.
    for value in filter(None, values):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "·", text)
    return f"{outcome}: {re.sub(r'[0-9]+', '0', text)}"


def _odd_one_out(told: Mapping[str, str]) -> str | None:
    """The value that was answered otherwise than all others; None where there is none."""
    counts = Counter(told.values())
    if len(told) == 2 and len(counts) == 2:
        said = re.compile(r"\b(?:yes|true|correct|right|match\w*|ok|passed|success\w*)\b", re.IGNORECASE)
        no = re.compile(r"\b(?:not?|in ?correct|false|wrong|fail\w*)\b", re.IGNORECASE)
        likely = [one for one, text in told.items() if said.search(text.partition(": ")[2]) and not no.search(text)]
        return likely[0] if len(likely) == 1 else None
    if len(told) < 3 or len(counts) != 2:
        return None
    (_, most), (rare, few) = counts.most_common(2)
    return None if few != 1 or most < 2 else next(one for one, text in told.items() if text == rare)


def ask_halving(subject: AuditSubject, target: Target) -> Adaptive:
    """Searches by halves between a number far below and one far above, by what the tool says to these two."""
    numbers = [value for one in (*target.wrong, target.right) if (value := target.to_argument(one)) is not None]
    low, high = min(numbers) - _LEAST_POOL, max(numbers) + _LEAST_POOL
    told: list[str] = []
    for asked in (low, high):
        results: Results = yield Message("assistant", "", (target.to_call(asked),))
        told += [_mask_values(result.text, result.outcome, str(asked)) for result in results]
    found = ""
    while len(told) == 2 and told[0] != told[1] and high - low > 1 and not found:
        middle = (low + high) // 2
        results = yield Message("assistant", "", (target.to_call(middle),))
        said = _mask_values(results[0].text, results[0].outcome, str(middle)) if results else told[0]
        low, high = (middle, high) if said == told[0] else (low, middle)
        found = str(middle) if said not in told else ""
    yield subject.form(found or str(high))
