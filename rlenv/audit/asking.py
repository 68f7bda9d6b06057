"""Tools that can be asked until they say it, and state that is emptied until it fits."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rlenv.audit.crafted import named_words
from rlenv.audit.play import Adaptive, Results
from rlenv.audit.probes import filler, pieces
from rlenv.audit.subject import Action, AuditSubject, same, shaped, texts_of
from rlenv.audit.texts import holds
from rlenv.episodes.environment import Environment
from rlenv.messages import Message, ToolCall
from rlenv.tools.base import Tool

__all__ = [
    "SAME_CALLS", "Target", "ask_each", "ask_user", "do_again", "empty_state", "halve", "other_arguments",
        "same_call", "targets_of", "values_to_write", "write_same",
]  # fmt: skip

_LEAST_POOL = 40
_CLOSED = 6
_LOOKS = 24
_WHOLE = re.compile(r"[\"']([^\"'\n]{2,60} [^\"'\n]{1,60})[\"']")
_MOST_OWN = 8
_MOST_AIMS = 6
_GUESSED = 200
_SAME = "zqx"
_MUCH = 1_000_000
_OTHERS = 4
_TIMES = 3
_OFTEN = 32
SAME_CALLS: Mapping[str, str] = {
    "the first call once": "",
    "a wrong call once": "",
    "the first call of the oracle": "the first call once",
    "the first call of the oracle, once a turn,": "the first call once",
    "a wrong call": "a wrong call once",
}
"""What is made of one call, and what it is beside: that earns as much where it is not the repeating that is paid."""
_NAMED = re.compile(r"[^\W\d]\w+")
_SHORT = 60
_MOST_PLACES = 6
_LISTED = re.compile(r"\([^()]+\)|[`'\"][\w-]+[`'\"]|\b\w+(?:, \w+)* or \w+\b")
_ID = re.compile(r"[\w-]*\d[\w-]*|\w+")


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

    def calling(self, value: Any) -> ToolCall:
        """The call that tries a value."""
        return ToolCall(self.tool.name, {**self.beside, self.name: value})

    def fitting(self, value: str) -> Any:
        """A value as an argument, None where it fits none."""
        return _fitting(value, self.tool.parameters.get("properties", {}).get(self.name, {}))


def targets_of(subject: AuditSubject) -> dict[str, Target]:
    """The targets on a task: each parameter that an answer fits, and each code that the oracle gives to a call.

    A code that the prompt says is no search, and one beside another that it does not say is no simple one.
    """
    found: dict[str, Target] = {}
    for tool in subject.environment.parts.tools.values():
        for name, part in tool.parameters.get("properties", {}).items() if not subject.submits(tool.name) else ():
            if subject.right and _fitting(subject.right, part) is not None and len(found) < _MOST_AIMS:
                target = Target(tool, name, subject.right, subject.wrong(), filler(tool))
                found[f"{tool.name}({name})"] = target
    for call, _ in subject.oracle_calls():
        called = subject.environment.parts.tools.get(call.name)
        hidden = [key for key, value in call.arguments.items() if not holds(subject.prompt, str(value))]
        if called is None or subject.submits(call.name) or len(hidden) != 1 or len(found) >= 2 * _MOST_AIMS:
            continue
        (key,) = hidden
        right = str(call.arguments[key])
        others = list(map(str, _values_of(subject, call.name, key)))
        wrong = [one for one in dict.fromkeys(others) if one != right]
        # One that nobody could come upon is not tried.
        if wrong and (right in others or (right.isdigit() and int(right) <= _GUESSED)):
            found[f"{call.name}({key}) as the oracle does"] = Target(called, key, right, wrong, call.arguments, False)
    return found


def _values_of(subject: AuditSubject, name: str, key: str) -> list[Any]:
    """The oracle's values of a parameter on other tasks."""
    others = [other for other in subject.others if other.task_index != subject.gold.task_index]
    calls = [call for other in others for turn in other.turns for call in turn.parsed.calls]
    return [
        call.arguments[key]
        for call in calls
        if isinstance(call, ToolCall) and call.name == name and key in call.arguments
    ]


def _fitting(answer: str, schema: Mapping[str, Any]) -> Any:
    """An answer as an argument, None where it fits none."""
    kind = schema.get("type", "string")
    if "enum" in schema:
        return next((value for value in schema["enum"] if same(str(value), answer)), None)
    if kind == "string":
        return answer
    if kind not in ("integer", "number"):
        return None
    try:
        number = float(answer.replace(",", ""))
    except ValueError:
        return None
    if number != number or abs(number) > 1e15:
        return None
    return int(number) if number.is_integer() else number if kind == "number" else None


def pool(subject: AuditSubject, right: str, wrong: Sequence[str], *, named: bool = True) -> list[str]:
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
            made[_other(right, rng)] = None
    listed = list(made)
    rng.shuffle(listed)
    return list(dict.fromkeys([*(_own(subject)[:_MOST_OWN] if named else []), *listed]))


def _own(subject: AuditSubject) -> list[str]:
    """The names in a row that have the form of the right answer, those in lists first.

    A list that holds the right one and is not shown is one of accepted answers.
    """
    parts = sorted(subject.task.values(), key=lambda value: not isinstance(value, (Mapping, list, tuple)))
    named = [one for value in parts for one in _named(value, subject)]
    return [one for one in named if _signs(one) == _signs(subject.right) and not same(one, subject.right)]


def _named(value: Any, subject: AuditSubject) -> list[str]:
    if isinstance(value, Mapping):
        return [*map(str, value), *(one for part in value.values() for one in _named(part, subject))]
    if isinstance(value, (list, tuple)):
        found = [one for part in value for one in _named(part, subject)]
        shown = sum(one.casefold() in subject.prompt.casefold() for one in found)
        accepted = 2 * shown < len(found) and any(same(one, subject.right) for one in found)
        return [] if accepted else found
    text = "" if value is None or isinstance(value, bool) else str(value).strip()
    return [text] if 0 < len(text) <= _SHORT else []


def _signs(text: str) -> set[str]:
    """Of which kinds of signs a text is."""
    return {"letter" if one.isalpha() else "digit" if one.isdigit() else one for one in text if not one.isspace()}


def _other(right: str, rng: random.Random) -> str:
    try:
        number = int(right)
    except ValueError:
        return shaped(right, rng)
    return str(number + rng.randint(-_LEAST_POOL, _LEAST_POOL))


def ask_each(subject: AuditSubject, target: Target) -> Adaptive:
    """Asks one after the other until one is answered otherwise than the rest, and answers that one."""
    limits = subject.environment.spec.limits
    asked = [
        (one, value)
        for one in pool(subject, target.right, target.wrong, named=target.answers)
        if (value := target.fitting(one)) is not None
    ]
    width = min(limits.calls_per_turn, 16)
    left, turns = min(len(asked), limits.tool_calls), limits.turns - 1
    told: dict[str, str] = {}
    while left > 0 and turns > 0 and len(told) < len(asked):
        some = asked[len(told) : len(told) + min(width, left)]
        calls = tuple(target.calling(value) for _, value in some)
        results: Results = yield Message("assistant", "", calls)
        for (one, value), result in zip(some, results, strict=False):
            told[one] = _masked(result.text, str(value), result.outcome)
        left, turns = left - len(some), turns - 1
        if len(results) < len(some) or _odd(told) is not None:
            break
    found = _odd(told)
    if not target.answers:
        # Whoever answers the same on every task has said all that there is to say.
        yield subject.form("?") if len(subject.options) > 1 else subject.gold.turns[-1].action
    elif found is not None:
        yield subject.form(found)
    yield subject.form("?")


def ask_user(subject: AuditSubject) -> Adaptive:
    """Asks the user of one answer after the other whether it is right, and gives the one that is taken otherwise."""
    told: dict[str, str] = {}
    for one in pool(subject, subject.right, subject.wrong())[: subject.environment.spec.limits.turns - 1]:
        results: Results = yield f"Is it {one}?"
        told[one] = _masked("".join(result.text for result in results), one, "ok")
    yield subject.form(_odd(told) or "?")


def _masked(text: str, value: str, outcome: str) -> str:
    # As a word of its own: a "no" that was asked for stands in "nothing" too.
    bare = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "·", text) if value else text
    return f"{outcome}: {re.sub(r'[0-9]+', '0', bare)}"


def _odd(told: Mapping[str, str]) -> str | None:
    """The one that was answered otherwise than all the others; None where there is no such."""
    counts = Counter(told.values())
    if len(told) == 2 and len(counts) == 2:
        said = re.compile(r"\b(?:yes|true|correct|right|match\w*|ok|passed|success\w*)\b", re.IGNORECASE)
        no = re.compile(r"\b(?:not?|in ?correct|false|wrong|fail\w*)\b", re.IGNORECASE)
        likely = [one for one, text in told.items() if said.search(text.partition(": ")[2]) and not no.search(text)]
        return likely[0] if len(likely) == 1 else None
    if len(told) < 3 or len(counts) != 2:
        return None
    (_, most), (rare, few) = counts.most_common(2)
    if few != 1 or most < 2:
        return None
    return next(one for one, text in told.items() if text == rare)


def empty_state(subject: AuditSubject, *, changing: Sequence[Tool]) -> Adaptive:
    """Calls these tools, which change something, for all that the others list, and then gives a wrong answer.

    The others are asked what means nothing, and what the oracle asks them on this task and on others.
    """
    limits, tools = subject.environment.spec.limits, list(subject.environment.parts.tools.values())
    still = [tool for tool in tools if not tool.mutates and not subject.submits(tool.name)]
    looks = [ToolCall(tool.name, filler(tool, "")) for tool in still]
    looks += [call for call, _ in subject.oracle_calls() if any(call.name == tool.name for tool in still)]
    others = [call for one in subject.foreign() if isinstance(one, Message) for call in one.tool_calls]
    looks += [call for call in others if isinstance(call, ToolCall)]
    turns, made = limits.turns - 1, 0
    names: list[str] = []
    for start in range(0, min(len(looks), _LOOKS), limits.calls_per_turn):
        some = looks[start : min(start + limits.calls_per_turn, _LOOKS)]
        if turns <= 1 or made + len(some) >= limits.tool_calls // 2:
            break
        results: Results = yield Message("assistant", "", tuple(some))
        turns, made = turns - 1, made + len(some)
        texts = [result.text for result in results if not result.is_error]
        names += [name for text in texts for name in (*_WHOLE.findall(text), *_ID.findall(text))]
    wanted = [
        ToolCall(tool.name, arguments)
        for tool in changing
        if not subject.submits(tool.name)
        for arguments in _changes(tool, list(dict.fromkeys(names)))
    ]
    for start in range(0, len(wanted), limits.calls_per_turn):
        some = wanted[start : start + limits.calls_per_turn]
        if turns <= 0 or made + len(some) > limits.tool_calls:
            break
        yield Message("assistant", "", tuple(some))
        turns, made = turns - 1, made + len(some)
    yield subject.form(subject.wrong()[0])


def _changes(tool: Tool, names: Sequence[str]) -> list[dict[str, Any]]:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    needed = list(tool.parameters.get("required", ()))
    if not needed:
        return [{}]
    base, first = filler(tool, ""), properties.get(needed[0], {})
    if "sql" in needed[0].lower() or "query" in needed[0].lower() or "statement" in needed[0].lower():
        return [{**base, needed[0]: f"DELETE FROM {name}"} for name in names[:24] if not name.isdigit()]
    if first.get("type") == "integer":
        return [{**base, needed[0]: number} for number in [*map(int, filter(str.isdigit, names[:24])), *range(6)]]
    if first.get("type") == "array":
        return [{**base, needed[0]: []}]
    return [base, *({**base, needed[0]: name} for name in names[:32])]


def values_to_write(environment: Environment) -> list[tuple[str, int]]:
    """The texts and numbers that everything is set to: of no meaning, below nothing, and what the reward names."""
    return [(_SAME, _MUCH), (_SAME, -_MUCH), *((word, _MUCH) for word in named_words(environment)[:_MOST_AIMS])]


def write_same(subject: AuditSubject, *, changing: Sequence[Tool], value: tuple[str, int]) -> list[Action]:
    """Sets all that these tools write to one value, under each name that their schemas and descriptions say."""
    text, amount = value
    same_as: Mapping[str, Any] = {"string": text, "boolean": True, "integer": amount, "number": amount}
    if holds(" ".join(subject.asked), text):
        return []
    calls: list[ToolCall] = []
    for tool in changing:
        properties: Mapping[str, Any] = tool.parameters.get("properties", {})
        kinds = {key: part.get("type", "string") for key, part in properties.items() if "enum" not in part}
        plain = [key for key, kind in kinds.items() if kind == "string"]
        values = {key: same_as[kind] for key, kind in kinds.items() if kind in same_as}
        limited = {key: part["maximum"] for key, part in properties.items() if key in values and "maximum" in part}
        base = {**filler(tool, text), **values, **limited}
        places = {key: _places(subject, tool, key, part) for key, part in properties.items()}
        # A place may take several words: all of those are told what is written there.
        for told in plain[::-1] if len(plain) > 2 else ():
            words = [[(key, word) for word in places[key][:_MOST_PLACES]] for key in plain if key != told]
            calls += [ToolCall(tool.name, {**base, **dict(some)}) for some in product(*words)]
        for key in [key for key, part in properties.items() if "enum" in part or (key in plain and len(plain) > 1)]:
            calls += [ToolCall(tool.name, {**base, key: name}) for name in places[key]]
        calls.append(ToolCall(tool.name, base))
    made = list({repr(call): call for call in calls}.values())
    return [*subject.turns_of(made)[: subject.environment.spec.limits.turns - 1], subject.form(text)]


def _places(subject: AuditSubject, tool: Tool, key: str, part: Mapping[str, Any]) -> list[Any]:
    """The names that a parameter of a tool may take: listed ones, or the oracle's for another of that name, and
    words.
    """
    if "enum" in part or part.get("type", "string") != "string":
        return list(part.get("enum", ()))
    others = [call for call, _ in subject.oracle_calls() if call.name != tool.name]
    given = [str(call.arguments[key]) for call in others if key in call.arguments]
    words = [word for some in pieces(tool).values() for piece in some for word in _NAMED.findall(piece)]
    listed = [word for found in _LISTED.finditer(tool.description) for word in _NAMED.findall(found[0])]
    return list(dict.fromkeys([*given, *(one for one in listed if one != "or"), *words, *map(str, subject.task)]))


def other_arguments(subject: AuditSubject) -> dict[tuple[str, str, int], list[Action]]:
    """The oracle's calls with other arguments, by the tool, what is other there ("" for all), and the number of a way.

    Way 0 leaves it out, or empty where it is needed; the others are wrong. Nothing for what no row or prompt says.
    """
    calls = [call for call, _ in subject.oracle_calls() if not subject.submits(call.name)]
    tools = subject.environment.parts.tools
    told = " ".join([subject.prompt, *texts_of(subject.task)])
    changing = [name for name in dict.fromkeys(call.name for call in calls) if name in tools and tools[name].mutates]
    if not changing and len(subject.options) <= 1:
        changing = [name for name in dict.fromkeys(call.name for call in calls) if name in tools]
    last: Action = subject.form("?") if len(subject.options) > 1 else subject.gold.turns[-1].action
    found: dict[tuple[str, str, int], list[Action]] = {}
    for name in changing[:_MOST_AIMS]:
        arguments = [call.arguments for call in calls if call.name == name]
        said = {key: one[key] for one in arguments for key in one if holds(told, str(one[key]))}
        others = {key: _others(subject, name, key, value) for key, value in said.items()}
        for at in range(_OTHERS):
            for key in ("", *list(said)[:_MOST_AIMS]):
                changed = {one: values[at] for one, values in others.items() if key in ("", one)}
                if not changed or (at and None in changed.values()):
                    continue
                made = [_with(call, changed, tools[name]) if call.name == name else call for call in calls]
                found[name, key, at] = [*subject.turns_of(made), last]
    return found


def _others(subject: AuditSubject, name: str, key: str, right: Any) -> list[Any]:
    """Nothing, and wrong values: of another task, or of the right one's shape; far above and far below a number."""
    told = set(texts_of(subject.task))
    # What every task asks for stands in no row, and is right here as well.
    told |= {str(call.arguments.get(key)) for call, _ in subject.oracle_calls() if call.name == name}
    wrong = next((one for one in _values_of(subject, name, key) if str(one) not in told), None)
    if isinstance(right, bool) or not isinstance(right, (int, float)):
        made = shaped(right, random.Random(0)) if isinstance(right, str) else None
        return [None, made if wrong is None else wrong, None, None]
    return [None, right * 3 + 7 if wrong is None else wrong, _MUCH, -_MUCH]


def _with(call: ToolCall, changed: Mapping[str, Any], tool: Tool) -> ToolCall:
    """A call with some arguments as these; those that are None are left out, or empty where they are needed."""
    needed, given = tool.parameters.get("required", ()), dict(call.arguments)
    for key in set(changed) & set(given):
        value = given.pop(key) if changed[key] is None else changed[key]
        if changed[key] is not None or key in needed:
            given[key] = value if changed[key] is not None else type(value)()
    return ToolCall(call.name, given)


def do_again(subject: AuditSubject, number: int) -> list[Action]:
    """The oracle's actions with each call made three times: in the same turn, or in turns of its own."""
    *before, last = [turn.action for turn in subject.gold.turns]
    calls = [call for call, _ in subject.oracle_calls() if not subject.submits(call.name)]
    if not calls or subject.gold.turns[-1].results:
        return []
    turns = subject.turns_of([call for call in calls for _ in range(_TIMES)]) if number == 0 else before * _TIMES
    return [*turns[: subject.environment.spec.limits.turns - 1], last]


def same_call(subject: AuditSubject, *, what: str) -> list[Action]:
    """The first of the oracle's calls that change something, or a wrong one of that kind, and nothing else."""
    calls = [call for call, _ in subject.oracle_calls() if not subject.submits(call.name)]
    changing = [call for call in calls if subject.changes(call.name)] or calls
    if not changing or changing[0].name not in subject.environment.parts.tools:
        return []
    call, limits = changing[0], subject.environment.spec.limits
    if sum((one.name, one.arguments) == (call.name, call.arguments) for one in calls) > 1:
        return []  # the task may be to do it so often
    if "wrong" in what:
        others = {key: _others(subject, call.name, key, value)[1] for key, value in call.arguments.items()}
        call = ToolCall(call.name, {**call.arguments, **{key: one for key, one in others.items() if one is not None}})
    times = min(_OFTEN, limits.tool_calls) if SAME_CALLS[what] else 1
    turns: list[Action] = subject.turns_of([call] * times)
    turns = [Message("assistant", "", (call,))] * times if "a turn" in what else turns
    last: Action = subject.form("?") if len(subject.options) > 1 else subject.gold.turns[-1].action
    return [*turns[: limits.turns - 1], last]


def halve(subject: AuditSubject, target: Target) -> Adaptive:
    """Asks for a number far below and far above, and then for those between by what was said to these."""
    numbers = [value for one in (*target.wrong, target.right) if (value := target.fitting(one)) is not None]
    low, high = min(numbers) - _LEAST_POOL, max(numbers) + _LEAST_POOL
    told: list[str] = []
    for asked in (low, high):
        results: Results = yield Message("assistant", "", (target.calling(asked),))
        told += [_masked(result.text, str(asked), result.outcome) for result in results]
    found = ""
    while len(told) == 2 and told[0] != told[1] and high - low > 1 and not found:
        middle = (low + high) // 2
        results = yield Message("assistant", "", (target.calling(middle),))
        said = _masked(results[0].text, str(middle), results[0].outcome) if results else told[0]
        low, high = (middle, high) if said == told[0] else (low, middle)
        found = str(middle) if said not in told else ""
    yield subject.form(found or str(high))
