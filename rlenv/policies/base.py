"""The seam between policies and rollouts; the steps of an oracle, and the calls and actions that data sets hold."""

from __future__ import annotations

import ast
import itertools
import json
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from rlenv._base.strict_json import read_json
from rlenv.endpoints.account import UnreadableAnswer, read_call, read_chat
from rlenv.errors import PolicyError, told_as
from rlenv.language.spec import OracleStep
from rlenv.language.templates import as_template, compile_template, compile_value
from rlenv.messages import MalformedCall, Message, Sampled, ToolCall

if TYPE_CHECKING:
    from rlenv.endpoints.account import Account

__all__ = ["Policy", "PolicyContext", "PolicySession"]

Parameters = Mapping[str, Sequence[str]]
"""The parameters of each tool, in order."""
_ARGUMENTS = ("arguments", "kwargs", "parameters", "args", "input")
_MOST_CHARS = 16 << 20
_MOST_ITEMS = 10_000
_MOST_PARTS = 15_000
_MOST_DEPTH = 16
_MOST_CODE = 300_000
_MOST_MARKS = 20_000
"""Of texts that are Python, which parses a hundred times as slowly as JSON."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Things that a policy may see when an episode starts. `task` is there for the oracle; a model never reads it."""

    task: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    vars: Mapping[str, Any]
    prompt_text: str
    """The prompt as raw text, rendered by the dialect."""
    render_observation: Callable[[Sequence[Message]], str]
    """What a policy of raw text sees of the messages that follow its action."""
    seed: int = 0
    task_index: int = -1
    """The row's index in its split; -1 where the row was given itself."""
    stops: tuple[str, ...] = ()
    """An action of raw text ends behind the first of these; see `Environment.stops`."""
    turn_ends: tuple[str, ...] = ()
    """An action of raw text ends before the first of these; see `Environment.turn_ends`."""
    prompt_is_whole: bool = False
    """`prompt_text` holds what a tokenizer would put before it; see `Environment.prompt_is_whole`."""
    response_tokens: int | None = None
    """The spec's own limit of the tokens after the prompt, observations included; None where it has none."""
    account: Account | None = None
    """What the policy asks of models is counted here; None where nobody counts."""


class PolicySession(Protocol):
    """One episode's policy.

    It may have `async def late(self) -> str`, which is asked where it has not acted in the episode's time: what is
    wrong with its server, "" where it is the policy that takes so long. The reward of the first is invalid.
    """

    async def act(self, messages: Sequence[Message]) -> str | Message | Sampled:
        """The next action, given the whole conversation so far. Raises PolicyError where the endpoint fails.

        A policy whose turns have a limit of tokens returns `Sampled`, so that a model whose turn was cut is told so.
        """
        ...


class Policy(Protocol):
    """Something that acts; shared by all episodes.

    It may have `facts`, a mapping of JSON that a run's lock keeps: its `model`, its `sampling`.
    """

    name: str

    def start(self, context: PolicyContext) -> PolicySession: ...

    async def aclose(self) -> None:
        """Closes what it holds; nothing by default."""
        return


@dataclass(frozen=True, slots=True)
class SessionAround:
    """A policy's session whose every action `by` takes, which is given the session and the conversation."""

    session: PolicySession
    by: Callable[[PolicySession, Sequence[Message]], Awaitable[str | Message | Sampled]]

    async def act(self, messages: Sequence[Message]) -> str | Message | Sampled:
        """See `PolicySession.act`."""
        return await self.by(self.session, messages)

    async def late(self) -> str:
        """See `PolicySession`."""
        late = getattr(self.session, "late", None)
        return await late() if late is not None else ""


@dataclass(slots=True, eq=False)
class PolicyAround:
    """Another policy whose every action `by` takes; see `SessionAround`."""

    policy: Policy
    by: Callable[[PolicySession, Sequence[Message]], Awaitable[str | Message | Sampled]]
    name: str

    def start(self, context: PolicyContext) -> SessionAround:
        """One episode."""
        return SessionAround(self.policy.start(context), self.by)

    async def aclose(self) -> None:
        """Closes the other policy."""
        await self.policy.aclose()


def parameters_of(schemas: Sequence[Mapping[str, Any]]) -> Parameters:
    """The parameters of tools whose schemas are those of a `PolicyContext`."""
    functions = [schema["function"] for schema in schemas]
    return {one["name"]: tuple(one.get("parameters", {}).get("properties", ())) for one in functions}


def read_actions(value: Any, tools: Parameters) -> list[str | Message]:
    """The actions of a recording: texts as a model wrote them, the assistant's messages in OpenAI's form, and calls.

    Calls are read as by `read_calls`, which raises PolicyError; a list in a list makes its calls at once.
    """
    reading = _Reading(tools)
    if isinstance(value, (list, tuple)):
        parts = [reading.made(one) if isinstance(one, (list, tuple)) else reading.actions(one) for one in value]
        return [action for part in parts for action in part]
    return reading.actions(value)


def read_calls(value: Any, tools: Parameters) -> list[tuple[ToolCall, ...]]:
    """The calls that a gold value of a data set stands for, those of one action together.

    A call is `{name, arguments}` (or `kwargs`, `parameters`, `args`, `input`), OpenAI's `{function: {…}}` around one,
    `{tool: {argument: value}}`, or a text: such a mapping as JSON, or Python such as `find(name='a')`, which is parsed
    and never run. A list of calls is one action, a list of lists one action for each; nothing is no action.

    Raises:
        PolicyError: it is none of these, or more than can be read at once.
    """
    return _Reading(tools).groups(value, 0)


class _Reading:
    """Reads one value of a data set, of any shape, within bounds."""

    def __init__(self, tools: Parameters) -> None:
        self._tools = tools
        self._left = _MOST_PARTS

    def _count_value(self, depth: int = 0) -> None:
        self._left -= 1
        if self._left < 0 or depth > _MOST_DEPTH:
            most = f"{_MOST_PARTS:,} parts" if self._left < 0 else f"{_MOST_DEPTH} lists or objects in each other"
            raise PolicyError(f"it holds more than {most}")

    def actions(self, value: Any) -> list[str | Message]:
        if isinstance(value, (str, Message)):
            return [value]
        is_message = isinstance(value, Mapping) and not value.keys().isdisjoint(("role", "content", "tool_calls"))
        if not is_message or self._tools.keys() >= value.keys():
            return self.made(value)
        self._count_value()
        if value.get("role", "assistant") != "assistant":
            return []
        with told_as(PolicyError, "a recorded message cannot be read:", UnreadableAnswer, RecursionError):
            message = read_chat({"choices": [{"message": dict(value)}]}).message
        return [replace(message, tool_calls=tuple(replace(call, id=None) for call in message.tool_calls))]

    def made(self, value: Any) -> list[str | Message]:
        return [Message("assistant", "", calls) for calls in self.groups(value, 0)]

    def groups(self, value: Any, depth: int) -> list[tuple[ToolCall, ...]]:
        self._count_value(depth)
        if isinstance(value, str):
            value = self._parse_text(value)
        if isinstance(value, Iterator):  # what filters such as `batch` give
            value = list(itertools.islice(value, _MOST_PARTS + 1))
        if isinstance(value, (list, tuple)):
            groups = [self.groups(one, depth + 1) for one in value]
            if any(isinstance(one, (list, tuple)) for one in value):
                return [calls for group in groups for calls in group]
            together = tuple(call for group in groups for calls in group for call in calls)
            return [together] if together else []
        if isinstance(value, ToolCall):
            return [(value,)]
        calls = tuple(_call(name, arguments, self._tools) for name, arguments in self._named_calls(value, depth))
        return [calls] if calls else []

    def _named_calls(self, value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
        """The name and the arguments of each call in a mapping."""
        self._count_value(depth)
        if value is None:
            return
        if not isinstance(value, Mapping):
            raise PolicyError(f"found a {type(value).__name__}; expected a call such as {{name: …, arguments: {{…}}}}")
        if self._tools.keys() >= value.keys():
            yield from value.items()
        elif "tool_calls" in value:
            listed = value["tool_calls"] or ()
            if not isinstance(listed, (list, tuple)):
                raise PolicyError(f"found a {type(listed).__name__} under tool_calls; expected a list")
            for one in listed:
                yield from self._named_calls(one, depth + 1)
        elif isinstance(value.get("function"), Mapping):
            yield from self._named_calls(value["function"], depth + 1)
        elif isinstance(value.get("name"), str):
            yield value["name"], next((value[key] for key in _ARGUMENTS if key in value), None)
        else:
            yield from value.items()

    def _parse_text(self, text: str) -> Any:
        """The value that a text stands for: of JSON, or a list of calls."""
        text = text.strip()
        if text[:1] in ("{", "["):
            with suppress(ValueError):
                return read_json(text.encode("utf-8", "replace"), max_bytes=_MOST_CHARS)
        try:
            if len(text) > _MOST_CODE or sum(map(text.count, ",([{+*.")) > _MOST_MARKS:
                raise ValueError("it is too long for Python; write JSON")
            with warnings.catch_warnings():  # of escapes in a row's texts
                warnings.simplefilter("ignore")
                tree = ast.parse(text, mode="eval").body if text else ast.List([])
            calls = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
            return [_python_call(one, self._tools) for one in calls]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            expected = "expected a call such as find(name='a'), or JSON"
            raise PolicyError(f"found the text '{text[:80]}'; {expected} ({str(error)[:80]})") from error


def _call(name: Any, arguments: Any, tools: Parameters) -> ToolCall:
    if not isinstance(name, str):
        raise PolicyError(f"the name of a call is a {type(name).__name__}; expected a text")
    caught = (TypeError, ValueError, RecursionError)
    with told_as(PolicyError, f"the arguments of '{name[:200]}' are not JSON:", *caught):
        written = json.dumps(arguments) if isinstance(arguments, Mapping) else arguments
        read = read_call({"name": _known_name(name, tools), "arguments": written}, "")
    if isinstance(read, MalformedCall):
        raise PolicyError(f"the call of '{name[:200]}' cannot be read: {read.reason}")
    return ToolCall(read.name, read.arguments)


def _known_name(name: str, tools: Parameters) -> str:
    """The name of a tool; `spotify.play` is the tool `spotify_play`, since no wire takes dots."""
    plain = re.sub(r"[^\w-]", "_", name, flags=re.ASCII)
    return plain if name not in tools and plain in tools else name


def _python_call(node: ast.expr, tools: Parameters) -> ToolCall:
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    name = name or (ast.unparse(node.func) if isinstance(node, ast.Call) else "")
    if not isinstance(node, ast.Call) or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("no call of a named tool")
    names = tools.get(_known_name(name, tools), ())
    if len(node.args) > len(names) or any(one.arg is None for one in node.keywords):
        raise ValueError("arguments without a name")
    arguments = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
    return _call(name, arguments | {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}, tools)


def fill_calls(value: Any, values: Mapping[str, Any]) -> Any:
    """The calls of a step with their templates filled, those in place of a tool's name too."""
    if isinstance(value, Mapping):
        return {compile_template(name).text(**values): compile_value(one)(**values) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill_calls(one, values) for one in value]
    return compile_value(value)(**values)


def is_later(step: OracleStep) -> bool:
    """True where results decide whether and for what a step is played."""
    return any("results" in as_template(one).names for one in (step.for_each, step.when) if one is not None)


def items_of(step: OracleStep, values: Mapping[str, Any]) -> list[Any]:
    """The items of a step's `for_each`; one None where it has none. Raises PolicyError where it gives no list."""
    if step.for_each is None:
        return [None]
    items = listed(as_template(step.for_each).value(**values))
    if isinstance(items, (str, Mapping)) or not hasattr(items, "__iter__"):
        raise PolicyError(f"for_each gives a {type(items).__name__}; expected a list")
    return list(itertools.islice(items, _MOST_ITEMS))


def holds(step: OracleStep, values: Mapping[str, Any]) -> bool:
    """True where a step has no condition, or one that holds."""
    return step.when is None or bool(as_template(step.when).value(**values))


def listed(value: Any) -> Any:
    """A value, or the list that it is as JSON: cells of some files are text."""
    with suppress(ValueError):
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            return read_json(value.encode("utf-8", "replace"), max_bytes=_MOST_CHARS)
    return value


HARMLESS: Final = "harmless "


def harmless(chars: int) -> str:
    """Harmless text, a little longer than a given one: a server may fail at the length alone."""
    return HARMLESS * (1 + chars // len(HARMLESS))


def reworded(messages: Sequence[Message], names: Sequence[str], *, keeps_own: bool) -> list[Message]:
    """The same turns with harmless words in place of all others, or of all but the policy's own (`keeps_own`).

    Without its own an assistant makes one call at most, of the first tool: how many it makes, and of what, are words of
    its own. Images stay: whether a server takes any is no question of words.
    """
    out: list[Message] = []
    kept: set[str | None] = set()
    for message in messages:
        if message.role == "assistant":
            if not keeps_own:
                one = message.tool_calls[:1] if names else ()
                calls = tuple(ToolCall(names[0], {}, id=call.id) for call in one)
                said = harmless(len(message.content) + sum(len(str(call)) for call in message.tool_calls))
                message = replace(message, content=said, tool_calls=calls, thinking="", authored=())
            kept.update(call.id for call in message.tool_calls)
        elif message.role == "tool" and message.tool_call_id not in kept:
            if out and out[-1].role != "assistant":
                continue
            message = Message("user", harmless(len(message.content)), images=message.images)
        else:
            message = replace(message, content=harmless(len(message.content)), authored=())
        out.append(message)
    return out
