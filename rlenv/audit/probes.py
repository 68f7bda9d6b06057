"""Calls that anybody can make who has read a tool's schema: wrong ones, empty ones, each flag and each named value."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlenv.audit.play import Adaptive, Results
from rlenv.audit.subject import AuditSubject, call_key, kinds_of, properties_of
from rlenv.audit.texts import WORDS, holds
from rlenv.audit.variants import CONTROL
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.policies.scripted import random_value
from rlenv.tools.base import Tool

AS_ORACLE = " of what the oracle asks"
"""How the calls end that differ from the oracle's own by one argument."""

Probe = tuple[str, tuple[ToolCall, ...]]
"""What is asked, in the same words on every task: calls one after the other, of which the last is read."""

_WORDS = ("", "?", ".", "/", "*", "all", "list", "help", "answer", "solution")
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]{1,40})[`'\"]")
_FILE = re.compile(r"[\w./-]*\w\.\w{1,5}\b")
_NAME = re.compile(r"[\w./:-]+")
_LINE = re.compile(r"^[\w.-]+/?$", re.MULTILINE)
_SQL = re.compile(r"\b(?:sql|select)\b", re.IGNORECASE)
EVERY_ROW = "SELECT * FROM "
_IS_LISTED = ", which is listed"
_MOST_NAMES = 20
_SAID_TO_ANYTHING = 3
_MOST_PROBES = 140
_MOST_PAIRS = 30
_AGAIN = 6
_BOUNDS = (0, -1, 1, 2, 3, 1000)
TELLS = re.compile(
    r"hint|answer|solution|solved|gold|debug|admin|review|grad(?:e|ing)|expect|cheat|secret|internal|cache|(?:^|_)logs?(?:$|_)",
    re.IGNORECASE,
)
"""What the names of files say, and of tools that the oracle does not call and that are no other way to the answer."""
_MOST_VALUES = 4
_NAMED = re.compile(r"[^\W\d]\w+")
_FILES = re.compile(r"\b[\w-]+\.[a-z]{2,5}\b")
_LISTED = re.compile(r"\([^()]+\)|[`'\"][\w-]+[`'\"]|\b\w+(?:, \w+)* or \w+\b")
_ODD: Mapping[str, tuple[Any, ...]] = {"string": ("abcdefghijklmnopqrstuvwxyz", "zqx"), "integer": (10**6, -(10**6), 1)}
"""Values beyond what is usual by their kind, and a usual one."""
_MOST_TOOLS = 6
_MOST_SAID = 12
_EVERYTHING = ("*", "all")
_UNKNOWN = "zqx"
_LIST = re.compile(r"(?:[:,]|\band\b|\bor\b)\s")
_EMPTY = frozenset(WORDS["without_content"])


def text_pieces(tool: Tool) -> dict[str, list[str]]:
    """The texts of a tool that a policy reads before it has called it, in pieces that speak of one thing each."""
    texts = {"description": [tool.description], "schema": list(_schema_texts(dict(tool.parameters)))}
    return {kind: [piece for text in some for piece in split_pieces(text)] for kind, some in texts.items()}


def split_pieces(text: str) -> list[str]:
    """The pieces of a text that speak of one thing each."""
    return [piece for piece in re.split(r"[\n;,]|[.?!](?=\s)", text) if piece.strip()]


def words_in(text: str) -> list[str]:
    """A text's words and numbers that could tell it from others."""
    return [word for word in re.findall(r"\w+", text.casefold()) if len(word) > 2 or word.isdigit()]


def _schema_texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in ("type", "required", "additionalProperties"):
                yield str(key)
                yield from _schema_texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _schema_texts(part)
    elif value is not None:
        yield str(value)


def filler(tool: Tool, value: str = "?") -> dict[str, Any]:
    """Arguments that fit a tool and mean nothing: those it needs, texts as `value`."""
    properties = properties_of(tool)
    rng = random.Random(0)
    made: dict[str, Any] = {}
    for name in tool.parameters.get("required", ()):
        part = properties.get(name, {})
        kinds = kinds_of(part)
        if "string" in kinds and "enum" not in part and "const" not in part:
            made[name] = value
        elif kinds == {"boolean"}:
            made[name] = False
        elif kinds == {"integer"} and "enum" not in part:
            made[name] = max(int(part.get("minimum", 1)), min(1, int(part.get("maximum", 1))))
        else:
            made[name] = random_value(part, rng)
    return made


def probes(subject: AuditSubject) -> list[Probe]:
    """The calls to try, without the oracle's own: what those give is there to be read."""
    found: list[tuple[str, ToolCall]] = []
    tools = askable_tools(subject)
    called = {call.name for call, _ in subject.oracle_calls()}
    for tool in tools:
        name, base = tool.name, filler(tool)
        found.append((f"{name} without arguments", ToolCall(name, {})))
        found.append((f"{name} with an unknown argument", ToolCall(name, {"zqx": 1})))
        words = _probe_words(tool)
        found += [(f"{name}({word!r})", ToolCall(name, arguments_with_word(tool, word))) for word in words]
        if tool.mutates:
            flags = [(key, value) for key, value in _few_valued_arguments(tool) if isinstance(value, bool)]
            found += [(f"{name}({key}={value!r})", ToolCall(name, {**base, key: value})) for key, value in flags]
            # What is wrong with a value is said where all beside it is right.
            told = next((dict(call.arguments) for call in subject.own_calls() if call.name == name), {})
            hidden = [key for key, value in told.items() if key in base and not holds(subject.prompt, str(value))]
            found += [(f"{name} with another {key}", ToolCall(name, {**told, key: base[key]})) for key in hidden]
            continue
        own = [dict(call.arguments) for call, _ in subject.oracle_calls() if call.name == name][:2]
        own = own or [known for known in [arguments_from_others(subject, tool)] if known]
        found += [(f"{name}{AS_ORACLE}", ToolCall(name, one)) for one in own if name not in called]
        for label, arguments in [("", base), *((AS_ORACLE, one) for one in own)]:
            for key, value in _few_valued_arguments(tool):
                if arguments.get(key) != value or key not in arguments:
                    found.append((f"{name}({key}={value!r}){label}", ToolCall(name, {**arguments, key: value})))
        found += [(f"{name}({key}=null)", ToolCall(name, {**base, key: None})) for key in base]
        found += [] if name in called else _row_probes(subject, tool)
    if subject.tools:
        found.append(("a tool that is not there", ToolCall("zqx", {})))
    # What takes the answer may say it where it refuses another one.
    for tool in [one for one in subject.tools.values() if subject.submits(one.name)]:
        given = [arguments_with_word(tool, word) for word in ("", "?")]
        given += [{**filler(tool), key: value} for key, value in _few_valued_arguments(tool)]
        found += [(f"{tool.name}({one})", ToolCall(tool.name, one)) for one in given]
    found += _prose_probes(subject)
    return [*_without_own_calls(subject, found)[:_MOST_PROBES], *_repeated_and_paired(tools)]


def arguments_from_others(subject: AuditSubject, tool: Tool) -> dict[str, Any]:
    """Arguments of a tool that the oracle leaves alone, as it gives them to others; {} where none are of a name."""
    given = {key: value for call, _ in subject.oracle_calls() for key, value in call.arguments.items()}
    base = filler(tool)
    known = {key: given[key] for key in properties_of(tool) if key in given}
    return {**base, **known} if known else {}


def _repeated_and_paired(tools: Sequence[Tool]) -> Iterator[Probe]:
    """Each tool again and again, and each behind each other one, which may switch something on."""
    calls = [ToolCall(tool.name, filler(tool)) for tool in tools]
    yield from ((f"{call.name} asked {_AGAIN} times", (call,) * _AGAIN) for call in calls)
    pairs = [(one, other) for one in calls for other in calls if one is not other]
    yield from ((f"{other.name} after {one.name}", (one, other)) for one, other in pairs[:_MOST_PAIRS])


def _row_probes(subject: AuditSubject, tool: Tool) -> Iterator[tuple[str, ToolCall]]:
    """The prompt's words on the row, told to a tool whose name has to do with answers."""
    key = _text_key(tool)
    if key is not None and TELLS.search(tool.name):
        shown = {name: str(value) for name, value in subject.task.items() if str(value) in subject.prompt}
        for column, value in {**shown, "prompt": subject.prompt}.items():
            yield f"{tool.name} of the row's {column}", ToolCall(tool.name, arguments_with_word(tool, value))


def _prose_probes(subject: AuditSubject) -> Iterator[tuple[str, ToolCall]]:
    """The oracle's calls, or any, with one argument as a word that a description says of it, quoted or not."""
    for tool in askable_tools(subject):
        own = [dict(call.arguments) for call, _ in subject.oracle_calls() if call.name == tool.name]
        arguments, label = (own[0], AS_ORACLE) if own else (filler(tool), "")
        for key, part in properties_of(tool).items() if not tool.mutates else ():
            for value in _values_in_prose(tool, key, part):
                yield f"{tool.name}({key}={value!r}){label}", ToolCall(tool.name, {**arguments, key: value})


def _values_in_prose(tool: Tool, key: str, part: Mapping[str, Any]) -> list[Any]:
    """The values of a parameter in prose: its numbers, or its words, signs first, and the words for all."""
    kinds = kinds_of(part)
    told = [piece for piece in text_pieces(tool)["description"] if re.search(rf"\b{re.escape(key)}\b", piece)]
    words = [word.strip("`'\".,;:!?()[]") for word in " ".join([str(part.get("description", "")), *told]).split()]
    if "integer" in kinds:
        return list(dict.fromkeys(int(word) for word in words if re.fullmatch(r"-?\d{1,6}", word)))[:_MOST_VALUES]
    # What the task is about is asked for as it is.
    if "string" not in kinds or "enum" in part or _is_sql(tool, key):
        return []
    signs = [word for word in words if word and not re.search(r"[^\W_]", word)]
    plain = [word for word in words if word.casefold() not in _EMPTY and word not in signs and word != key]
    return list(dict.fromkeys([*signs, *_EVERYTHING, *filter(None, plain)]))[:_MOST_SAID]


def askable_tools(subject: AuditSubject) -> list[Tool]:
    """The tools that cost no model's answer, and whose call is not the answer."""
    entries = {name: entry.kind for name, entry in subject.environment.spec.tools.items()}
    tools = subject.tools.values()
    return [one for one in tools if not subject.submits(one.name) and entries.get(one.entry) not in ("model", "agent")]


def _without_own_calls(subject: AuditSubject, found: Sequence[tuple[str, ToolCall]]) -> list[Probe]:
    own = {call_key(call) for call, _ in subject.oracle_calls()}
    kept = {label: (call,) for label, call in found if call_key(call) not in own}
    return list(kept.items())


def _probe_words(tool: Tool) -> list[str]:
    text = _text_key(tool)
    tables = WORDS["tables"] if text is not None and _is_sql(tool, text) else ()
    return [*tables, *(["?"] if text is None or tool.mutates else [*_WORDS, *_QUOTED.findall(tool.description)[:4]])]


def _text_key(tool: Tool) -> str | None:
    """The argument that is a text, of those that are needed, or of all where none is."""
    properties = properties_of(tool)
    keys = tool.parameters.get("required") or properties
    return next((key for key in keys if "string" in kinds_of(properties.get(key, {}))), None)


def arguments_with_word(tool: Tool, word: str) -> dict[str, Any]:
    """Arguments that fit a tool, the text among them as this word."""
    key = _text_key(tool)
    return filler(tool, word) | ({key: word} if key is not None else {})


def _is_sql(tool: Tool, key: str) -> bool:
    return bool(_SQL.search(f"{key} {tool.description} {properties_of(tool)[key].get('description', '')}"))


def _named_values(part: Mapping[str, Any]) -> list[Any]:
    """The values that a schema names for a parameter beside those that it allows."""
    said = _QUOTED.findall(str(part.get("description", "")))[:4] if "string" in kinds_of(part) else []
    alone = [part[key] for key in ("default", "const", "example") if key in part]
    return [*alone, *list(part.get("examples", ()))[:4], *([] if "enum" in part else said)]


def _few_valued_arguments(tool: Tool) -> Iterator[tuple[str, Any]]:
    """Each value of each parameter that has but a few, or names some."""
    for name, part in properties_of(tool).items():
        kinds = kinds_of(part)
        choices: list[Any] = [True, False] if "boolean" in kinds else []
        for option in (part, *(one for one in part.get("anyOf") or () if isinstance(one, Mapping))):
            choices += list(option.get("enum", ()))[:8]
        choices += _named_values(part)
        if kinds & {"integer", "number"} and "enum" not in part:
            choices += _BOUNDS
        for value in choices:
            yield name, value


def names_in_listings(told: Sequence[tuple[ToolCall, ToolResult]]) -> list[str]:
    """The names in listings: files and lines of one word, also below the listed folder; else all their words."""
    asked = {(str(next(iter(call.arguments.values()), "")), one.text) for call, one in told if one.outcome == "ok"}
    counts = Counter(text for _, text in asked)
    # What is said to anything is no listing.
    texts = sorted(one for one in asked if len(one[1]) < 4_000 and counts[one[1]] <= _SAID_TO_ANYTHING)
    files = [(folder, name) for folder, text in texts for name in (*_FILE.findall(text), *_LINE.findall(text))]
    below = [f"{folder.rstrip('/')}/{name}" for folder, name in files if _NAME.fullmatch(folder)]
    words = [name for _, text in texts for name in _NAME.findall(text)] if not files else []
    names = dict.fromkeys(name.rstrip("/") for name in [*(name for _, name in files), *below, *words])
    return [name for name in names if 1 < len(name) < 80][:_MOST_NAMES]


def reading_probes(subject: AuditSubject, names: Sequence[str]) -> list[Probe]:
    """Each name that a listing has given, asked of each tool that takes one text."""
    found: list[tuple[str, ToolCall]] = []
    used = {call.name for call, _ in subject.oracle_calls()}
    read = " ".join(str(value) for call, _ in subject.oracle_calls() for value in call.arguments.values())
    for tool in askable_tools(subject):
        key = _text_key(tool)
        required = tool.parameters.get("required", ())
        if key is None or len(required) > 1 or (tool.mutates and not _is_sql(tool, key)):
            continue
        for index, name in enumerate(names):
            # A table of the oracle's own queries is there to be read.
            if _is_sql(tool, key) and (name in read or not all(map(str.isidentifier, name.split(".")))):
                continue
            call = _reading_call(tool, key, name)
            found.append((f"{tool.name} of {name!r}{_IS_LISTED}", call))
            # Where the oracle looks names up itself, one more of them is the task.
            if tool.name not in used:
                found.append((f"{tool.name} of the name {index + 1} that is listed", call))
    return _without_own_calls(subject, found)


def _reading_call(tool: Tool, key: str, name: str) -> ToolCall:
    return ToolCall(tool.name, {key: f"{EVERY_ROW}{name}" if _is_sql(tool, key) else name})


def call_reading_name(tools: Mapping[str, Tool], label: str) -> tuple[ToolCall, str] | None:
    """The call that reads one listed name, whichever task it is asked on, and the name; None for other calls."""
    name, _, listed = label.removesuffix(_IS_LISTED).partition(" of ")
    tool = tools.get(name) if label.endswith(_IS_LISTED) else None
    key = _text_key(tool) if tool is not None else None
    if tool is None or key is None:
        return None
    return _reading_call(tool, key, listed[1:-1]), listed[1:-1]


def names_for(subject: AuditSubject, tool: Tool, key: str, part: Mapping[str, Any]) -> list[Any]:
    """The names that a parameter may take: listed ones, or the oracle's for another of that name, and words."""
    if "enum" in part or "string" not in (kinds_of(part) or {"string"}):
        return list(part.get("enum", ()))
    others = [call for call, _ in subject.oracle_calls() if call.name != tool.name]
    given = [str(call.arguments[key]) for call in others if key in call.arguments]
    words = [word for some in text_pieces(tool).values() for piece in some for word in _NAMED.findall(piece)]
    listed = [word for found in _LISTED.finditer(tool.description) for word in _NAMED.findall(found[0])]
    listed += _FILES.findall(" ".join(message.content for message in subject.gold.messages))
    return list(dict.fromkeys([*given, *(one for one in listed if one != "or"), *words, *map(str, subject.task)]))


def arguments_by_name(tool: Tool, names: Sequence[str]) -> list[dict[str, Any]]:
    """Arguments that name each of these, and numbers: what a tool that changes something can be called for."""
    properties = properties_of(tool)
    needed = list(tool.parameters.get("required", ()))
    if not needed:
        return [{}]
    base, first = filler(tool, ""), properties.get(needed[0], {})
    if "sql" in needed[0].lower() or "query" in needed[0].lower() or "statement" in needed[0].lower():
        return [{**base, needed[0]: f"DELETE FROM {name}"} for name in names[:24] if not name.isdecimal()]
    if "integer" in kinds_of(first):
        return [{**base, needed[0]: number} for number in [*map(int, filter(str.isdecimal, names[:24])), *range(6)]]
    if "array" in kinds_of(first):
        return [{**base, needed[0]: []}, {**base, needed[0]: list(names[:32])}]
    return [base, *({**base, needed[0]: name} for name in names[:32])]


def extreme_calls(subject: AuditSubject) -> dict[str, Adaptive]:
    """One call with a number or a text that is beyond all that is asked for, and nothing else; and with a usual one."""
    own, found = {call.name: dict(call.arguments) for call in reversed(subject.own_calls())}, dict[str, Adaptive]()
    for tool in [one for one in subject.tools.values() if one.mutates and not subject.submits(one.name)][:_MOST_TOOLS]:
        base = {**filler(tool, _UNKNOWN), **own.get(tool.name, {})}
        for key, part in properties_of(tool).items():
            told = kinds_of(part) or {"string"} if not {"enum", "const"} & set(part) else ()
            kinds = {one.replace("number", "integer") for one in told}
            *odd, usual = next((_ODD[one] for one in ("integer", "string") if one in kinds), (None,))
            for label, value in [(f"{tool.name} with {one} as its {key}", one) for one in odd]:
                for said, one in ((label, value), (f"{CONTROL}{label}", usual)):
                    found[said] = _call_and_retry(subject, ToolCall(tool.name, {**base, key: one}), key)
    return found


def _call_and_retry(subject: AuditSubject, call: ToolCall, key: str) -> Adaptive:
    """Makes a call; one that is refused is made with each name that the refusal or the oracle's tools say."""
    results: Results = yield Message("assistant", "", (call,))
    free = [one for one, value in call.arguments.items() if value == _UNKNOWN and one != key]
    if free and all(one.is_error for one in results):
        texts = [one.text for one in (*results, *(result for _, result in subject.oracle_calls()))]
        names = dict.fromkeys(name for text in texts for name in [*_QUOTED.findall(text), *_LIST.split(text)[1:]])
        known = [one for name in names if 1 < len(one := name.strip(" .[]{}\"'")) <= 40][:_MOST_SAID]
        calls = [ToolCall(call.name, {**call.arguments, **dict.fromkeys(free, name)}) for name in known]
        if calls:
            yield Message("assistant", "", tuple(calls[: subject.limits.calls_per_turn]))
    yield subject.last_words()
