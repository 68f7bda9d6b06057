"""A policy that attacks the environment that it plays in, and texts for any parser.

What hostile actions are made of: for each language that a call or an answer may hold, inputs of each kind.

The kinds name what an input is made to do to whoever runs it:

    hang    take more time than anybody gave it
    fill    take memory, or leave more behind than may be kept
    void    make the reward of its own episode invalid, so that a wrong answer costs nothing
    mask    end a worker, a connection or a resource that others share
    forge   look like something that somebody else wrote: a turn, a result, a verdict, a template, an option

The tables stand in `hostile_material.json`. They hold no secret of rlenv: they are the usual attacks on SQL engines,
interpreters, calculators, readers of mathematics and of text. An entry is a text, or an object:

    {"parts": ["(", ["1+", "n"]], "n": [9, 99]}     texts in a row; a pair repeats its text; n is drawn for each input
    {"make": "self_joins"}                          what the function of that name makes
    {"each": "ab", "in": "<{one}>"}                 a text for each character
"""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from rlenv.errors import RlenvError
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.policies.base import Policy, PolicyContext
from rlenv.testing.dialects import pieces

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

Kind = Literal["hang", "fill", "void", "mask", "forge"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Subject = Literal["sql", "code", "expression", "math", "json", "text"]
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
_Entry = str | dict[str, Any]


def _nested_ctes(rng: random.Random) -> str:
    depth = rng.randint(18, 60)
    tables = [f"a{i} AS (SELECT x||x AS x FROM a{i - 1})" for i in range(1, depth)]
    return f"WITH a0 AS (SELECT 'x' AS x), {', '.join(tables)} SELECT x FROM a{depth - 1}"


def _self_joins(rng: random.Random) -> str:
    return "SELECT count(*) FROM " + ", ".join(f"sqlite_master m{i}" for i in range(rng.randint(4, 60)))


def _views_of_selects(rng: random.Random) -> str:
    text = "SELECT 1 AS a"
    for i in range(rng.randint(15, 40)):
        text = f"SELECT a{i}.a AS a FROM ({text}) a{i} JOIN ({text}) b{i} USING (a)" if len(text) < 20_000 else text
    return text


def _in_numbers(rng: random.Random) -> str:
    return f"SELECT 1 IN ({','.join(map(str, range(rng.choice((1_000, 50_000)))))})"


def _many_keys(rng: random.Random) -> str:
    return json.dumps({str(i): i for i in range(rng.choice((100, 50_000)))})


def _random_text(rng: random.Random) -> str:
    return "".join(chr(rng.randrange(32, 0xD800)) for _ in range(rng.choice((100, 9_000))))


_MAKERS: Final[Mapping[str, Callable[[random.Random], str]]] = {
    "nested_ctes": _nested_ctes,
    "self_joins": _self_joins,
    "views_of_selects": _views_of_selects,
    "in_numbers": _in_numbers,
    "many_keys": _many_keys,
    "random_text": _random_text,
}


@cache
def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(Path(__file__).with_name("hostile_material.json").read_text(encoding="utf-8"))
    return found


@cache
def _make_tables() -> Mapping[Subject, Mapping[str, Sequence[_Entry]]]:
    found, control = _read(), _read()["control"]
    forged = {
        "sql": ["SELECT '" + text.replace("'", "''") + "'" for text in control],
        "code": [*found["code"]["forge"], *(f"print({text!r})" for text in control), *map(repr, control)],
    }
    return {subject: {**found[subject], "forge": forged.get(subject, control)} for subject in SUBJECTS}


_WORDS: Final[Mapping[Subject, Sequence[str]]] = {
    "sql": ("sql", "select"),
    "code": ("code", "python", "program", "script"),
    "expression": ("expression", "formula", "arithmetic"),
    "json": ("json",),
}


def material(subject: Subject, kind: Kind, rng: random.Random) -> str:
    """One input in the language of `subject`, made for what `kind` names; equal for equal states of `rng`."""
    entry = rng.choice(_make_tables()[subject][kind])
    if not isinstance(entry, dict):
        return entry
    if "make" in entry:
        return _MAKERS[entry["make"]](rng)
    return _make_text(entry, rng.choice(entry["n"]) if "n" in entry else 0)


def _make_text(entry: _Entry, n: int = 0) -> str:
    """The text of an entry that no function makes; `n` is what was drawn for it."""
    if isinstance(entry, str):
        return entry
    parts = [part if isinstance(part, str) else part[0] * (n if part[1] == "n" else part[1]) for part in entry["parts"]]
    return "".join(parts).replace("{n}", str(n))


def subject_of(name: str, description: str = "") -> Subject:
    """The language that a parameter most likely holds, by its name and what is said about it."""
    for text in (name.lower(), description.lower()):
        for subject, words in _WORDS.items():
            if any(word in text for word in words):
                return subject
    return "text"


_NUMBERS: Final = (0, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**4_000, 1e308, -0.0, 5e-324, 0.1, True)
_MAX_CHARS: Final = 1_000_000  # more than a policy's context holds
_MOST_CALLS: Final = 10_000
_SCALARS: Final[tuple[Any, ...]] = (None, True, 0, 10**30, 1e308, "", "x", "\ud800", [], {}, [[]], {"": {"": None}})


@dataclass(frozen=True, slots=True)
class HostileAction:
    """One action, and what it was made to do: a kind of `hostile_material`, `near` or `mangle`."""

    kind: str
    action: str | Message

    def __str__(self) -> str:
        text = self.action if isinstance(self.action, str) else repr(self.action)
        return f"{self.kind}: {text[:300]!r}" + (f" … ({len(text)} characters)" if len(text) > 300 else "")


class HostilePolicy(Policy):
    """Generates actions that hang, fill, void, mask and forge, for the tools, dialect and answer rule of a spec.

    Two more kinds belong to no language: `near`, the oracle's own action with one change, and `mangle`, the dialect's
    own marks cut, doubled and mixed with text that is hard to read. Actions are equal for equal seeds of policy and
    episode. One policy may play any number of episodes at once; `played` counts its actions.

    Args:
        environment: what is attacked; its tools' schemas, dialect, answer rule and oracle are looked at.
        hang_share: the share of actions that are made to last until somebody stops them.
        large_share: the share of actions that may be larger than 20,000 characters; others are cut there.
    """

    name = "hostile"

    def __init__(
        self, environment: Environment, *, seed: int = 0, hang_share: float = 0.05, large_share: float = 0.05
    ) -> None:
        self.played = 0
        self.seed = seed
        self.hang_share = hang_share
        self.large_share = large_share
        self.tools: tuple[Mapping[str, Any], ...] = tuple(schema["function"] for schema in environment.tool_schemas)
        self.dialect = environment.parts.dialect
        self.answer = environment.spec.answer
        self.pieces = pieces(self.dialect)
        found = {subject_of(name, str(spec)[:300]) for tool in self.tools for name, spec in _properties(tool).items()}
        self.subjects: tuple[Subject, ...] = (*sorted(found), *SUBJECTS)
        self.raw = tuple(hostile_actions(120, seed=seed, names=[tool["name"] for tool in self.tools] or ["tool"]))
        self.oracle = environment.oracle() if environment.spec.oracle else None

    def start(self, context: PolicyContext) -> HostileSession:
        """One episode of attacks."""
        return HostileSession(self, context)


class HostileSession:
    """One episode of a HostilePolicy. `last` is the action given last."""

    def __init__(self, policy: HostilePolicy, context: PolicyContext) -> None:
        self._policy = policy
        self._rng = random.Random(f"{policy.seed}/{context.task_index}/{context.seed}")
        self._oracle = policy.oracle.start(context) if policy.oracle is not None else None
        self.last: HostileAction | None = None

    async def act(self, messages: Sequence[Message]) -> str | Message:
        """The next action. It is made in a thread, so that making it takes no time of the event loop."""
        self._policy.played += 1
        self.last = await asyncio.to_thread(self.make, messages)
        return self.last.action

    def make(self, messages: Sequence[Message] = ()) -> HostileAction:
        """The next action."""
        rng, policy = self._rng, self._policy
        draw = rng.random()
        if draw < policy.hang_share:
            return self._of("hang")
        if draw < 0.25 and self._oracle is not None:
            near = self._near_oracle(messages)
            if near is not None:
                return HostileAction("near", near)
        if draw < 0.35:
            return HostileAction("mangle", self._mangle_last())
        return self._of(rng.choice([kind for kind in KINDS if kind != "hang"]))

    def _of(self, kind: Kind) -> HostileAction:
        rng, policy = self._rng, self._policy
        if policy.tools and rng.random() < 0.55:
            count = rng.choice((1, 1, 1, 2, 4, 40))
            calls = tuple(self._call(kind) for _ in range(count))
            if count == 1 and rng.random() < policy.large_share:  # as many as there is room for
                calls = (ToolCall(rng.choice(policy.tools)["name"], {}),) * _MOST_CALLS
            message = Message("assistant", rng.choice(("", "", "So.", "\ud800")), calls)
            if count < 40 and rng.random() < 0.2:  # servers give calls as structured data
                return HostileAction(kind, message)
            return HostileAction(kind, self._write_message(message)[:_MAX_CHARS])
        answer = self._material(rng.choice(policy.subjects), kind)
        return HostileAction(kind, self._write_answer(answer))

    def _write_message(self, message: Message) -> str:
        try:
            return self._policy.dialect.render_action(message)
        except (ValueError, TypeError, RecursionError):  # what its family cannot write
            return message.content + json.dumps([call.name for call in message.tool_calls])

    def _call(self, kind: Kind) -> ToolCall | MalformedCall:
        rng = self._rng
        tool = rng.choice(self._policy.tools)
        arguments = {name: self._make_argument(name, spec, kind) for name, spec in _properties(tool).items()}
        change = rng.random()
        if change < 0.05 and arguments:
            del arguments[rng.choice(list(arguments))]
        elif change < 0.1:
            arguments |= {f"{self._material('text', 'void')[:50]}{i}": None for i in range(rng.choice((1, 9, 2_000)))}
        elif change < 0.15 and arguments:
            arguments[rng.choice(list(arguments))] = rng.choice(_SCALARS)
        elif change < 0.18:
            return MalformedCall(self._material("json", kind), "not JSON", name=tool["name"])
        return ToolCall(tool["name"] if rng.random() < 0.97 else self._material("text", "void")[:99], arguments)

    def _make_argument(self, name: str, spec: Any, kind: Kind) -> Any:
        rng = self._rng
        spec = spec if isinstance(spec, Mapping) else {}
        match spec.get("type"):
            case "integer" | "number":
                return rng.choice(_NUMBERS)
            case "boolean":
                return rng.random() < 0.5
            case "array":
                return [self._material("text", kind)] * rng.choice((0, 1, 900))
            case "object":
                return {self._material("text", kind)[:99]: rng.choice(_SCALARS)}
        if spec.get("enum") and rng.random() < 0.5:
            return rng.choice(spec["enum"])
        return self._material(subject_of(name, str(spec.get("description", ""))), kind)

    def _material(self, subject: Subject, kind: Kind) -> str:
        return self._bound_text(material(subject, kind, self._rng))

    def _bound_text(self, text: str) -> str:
        return text[: _MAX_CHARS if self._rng.random() < self._policy.large_share else 20_000]

    def _write_answer(self, text: str) -> str:
        spec = self._policy.answer
        match spec.from_:
            case "tag":
                return f"<{spec.tag}>{text}</{spec.tag}>"
            case "boxed":
                return "\\boxed{" + text + "}"
            case "tool":
                call = ToolCall(spec.tool or "", {spec.argument or "answer": text})
                return self._write_message(Message("assistant", "", (call,)))
            case "regex":
                # Most patterns begin with words of their own; the oracle's last words show them.
                head = (spec.pattern or "").split("(")[0].replace("\\", "")
                return f"{head}{text}\n"
        return text

    def _near_oracle(self, messages: Sequence[Message]) -> str | Message | None:
        assert self._oracle is not None
        rng = self._rng
        work = self._oracle.act(messages)
        try:
            work.send(None)
        except StopIteration as ended:
            text = str(ended.value)
        except (RlenvError, ValueError, TypeError, LookupError, ArithmeticError):
            self._oracle = None  # its script is over, or stands on results that did not come
            return None
        else:  # a function, which may wait
            return work.close()
        kind = rng.choice(KINDS[1:])
        put = self._material(rng.choice(self._policy.subjects), kind)
        first, last = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        middle = rng.choice((put, text[first:last] * rng.choice((2, 50)), "", text[first:last] + put))
        return text[:first] + middle + text[last:]

    def _mangle_last(self) -> str:
        rng = self._rng
        if rng.random() < 0.2:
            return self._bound_text(rng.choice(self._policy.raw))
        parts = rng.choices(self._policy.pieces, k=rng.randint(1, 16))
        if rng.random() < 0.1:
            parts *= rng.choice((10, 300))
        return "".join(parts)[:200_000]


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tool.get("parameters", {}).get("properties", {})
    return found if isinstance(found, Mapping) else {}


_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>", "<|im_end|>", "<tool_response>")
_CALL = '{"name": "%s", "arguments": {"expression": "1+1"}}'


def hostile_actions(count: int, *, seed: int = 0, names: Sequence[str] = ("calculate",)) -> Iterator[str]:
    """`count` actions, equal for equal seeds: a fixed list of the worst first, then random mixtures.

    Among them: the empty text, megabytes, lone surrogates, every ASCII control character, nesting 50,000 deep, 8,000
    open tags, half JSON, huge numbers, duplicate keys, tags in the wrong order.

    Args:
        names: tools that the environment has, so that some calls are nearly right.
    """
    made = 0
    for action in _worst_actions(names[0] if names else "tool"):
        if made == count:
            return
        yield action
        made += 1
    rng = random.Random(seed)
    while made < count:
        yield _mix_pieces(rng, names)
        made += 1


def _worst_actions(name: str) -> Iterator[str]:
    call = _CALL % name
    for entry in _read()["worst"]:
        each = entry["each"] if isinstance(entry, dict) and "each" in entry else None
        for text in [_make_text(entry)] if each is None else [entry["in"].replace("{one}", one) for one in each]:
            yield text.replace("{name}", name).replace("{call}", call)
    for end in range(0, len(call), 3):  # half JSON
        yield f"<tool_call>{call[:end]}"
        yield f"<tool_call>{call[:end]}</tool_call>"


def _mix_pieces(rng: random.Random, names: Sequence[str]) -> str:
    parts = []
    for _ in range(rng.randint(1, 6)):
        choice = rng.randrange(6)
        if choice == 0:
            parts.append(rng.choice(_TAGS))
        elif choice == 1:
            parts.append(_CALL % rng.choice([*names, "nothing", ""]))
        elif choice == 2:
            text = json.dumps({"name": rng.choice([*names, 1, None]), "arguments": _random_json(rng, 0)})
            at = rng.randint(0, len(text))
            parts.append(f"<tool_call>{text[:at]}{rng.choice(['', text[at:]])}</tool_call>")
        elif choice == 3:
            parts.append(
                "".join(
                    chr(rng.choice((rng.randrange(256), rng.randrange(0x110000)))) for _ in range(rng.randint(0, 40))
                )
            )
        elif choice == 4:
            parts.append("".join(rng.choice(string.printable) for _ in range(rng.randint(0, 80))))
        else:
            parts.append(rng.choice(_TAGS) * rng.randint(1, 30))
    return "".join(parts)


def _random_json(rng: random.Random, depth: int) -> object:
    choice = rng.randrange(8 if depth < 4 else 6)
    if choice == 6:
        return [_random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if choice == 7:
        return {rng.choice(("expression", "a", "")): _random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return (None, True, rng.randint(-(10**20), 10**20), rng.random() * 10 ** rng.randint(-300, 300), "", "1+1")[choice]
