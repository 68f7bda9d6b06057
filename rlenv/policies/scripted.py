"""Policies without a model: the oracle of a spec, a script, chance, and a plain function."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlenv.dialects.base import Dialect
from rlenv.errors import PolicyError, UsageError
from rlenv.language.spec import AnswerSpec, EnvSpec, OracleCall, OracleSay
from rlenv.language.templates import TemplateError, compile_template, compile_value, expression
from rlenv.messages import MalformedCall, Message, Sampled, ToolCall
from rlenv.policies.base import PolicyContext

__all__ = ["Act", "FunctionPolicy", "OraclePolicy", "OracleSession", "RandomPolicy", "ScriptPolicy", "random_value"]


@dataclass(frozen=True, slots=True)
class _Calls:
    """One action: tool name and arguments of each call."""

    calls: tuple[tuple[str, Callable[..., Any]], ...]
    for_each: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class _Say:
    text: Callable[..., str]


class OraclePolicy:
    """Plays the steps of `oracle`; each step is one action, written as the dialect writes it.

    Templates see `task`, `vars`, `item` (in a step with `for_each`) and `results`: the texts of the results so far.

    Raises:
        UsageError: the spec has no oracle.
    """

    name = "oracle"

    def __init__(self, spec: EnvSpec, dialect: Dialect) -> None:
        if not spec.oracle:
            raise UsageError(f"{spec.name} has no `oracle`", hint="add one, or choose another policy")
        self._dialect = dialect
        self._steps: list[_Calls | _Say] = [_compile(step) for step in spec.oracle]

    def start(self, context: PolicyContext) -> OracleSession:
        """One episode's script."""
        return OracleSession(self._steps, self._dialect, context)

    async def aclose(self) -> None:
        """Nothing to close."""


def _compile(step: OracleCall | OracleSay) -> _Calls | _Say:
    if isinstance(step, OracleSay):
        return _Say(compile_template(step.say).text)
    groups = step.call if isinstance(step.call, tuple) else (step.call,)
    calls = tuple((name, compile_value(arguments)) for group in groups for name, arguments in group.items())
    return _Calls(calls, expression(step.for_each) if step.for_each is not None else None)


@dataclass(slots=True, eq=False)
class OracleSession:
    """One episode of the oracle. `actions` are the structured actions given so far."""

    steps: Sequence[_Calls | _Say]
    dialect: Dialect
    context: PolicyContext
    actions: list[Message] = field(default_factory=list)
    _queue: list[tuple[int, _Calls | _Say, Any]] | None = None
    _index: int = 0

    @property
    def is_over(self) -> bool:
        """True once the last step of the script was given."""
        return self._queue is not None and not self._queue

    def next_action(self, messages: Sequence[Message]) -> Message:
        """The next action as an assistant message with structured calls.

        Raises:
            PolicyError: the script is over and the episode still runs, or a step's template fails; the message names
                the step.
        """
        try:
            return self._next(messages)
        except TemplateError as error:
            raise PolicyError(f"oracle.{self._index}: {error}") from error

    def _next(self, messages: Sequence[Message]) -> Message:
        results = [message.content for message in messages if message.role == "tool"]
        values: dict[str, Any] = {"task": self.context.task, "vars": self.context.vars, "results": results}
        if self._queue is None:
            self._queue = list(self._expand(values))
        if not self._queue:
            raise PolicyError("oracle: its steps are over and the episode has not ended; end them with an answer")
        self._index, step, item = self._queue.pop(0)
        if isinstance(step, _Say):
            action = Message("assistant", step.text(**values))
        else:
            calls: list[ToolCall | MalformedCall] = [
                ToolCall(name, fill(item=item, **values)) for name, fill in step.calls
            ]
            action = Message("assistant", "", tuple(calls))
        self.actions.append(action)
        return action

    async def act(self, messages: Sequence[Message]) -> str:
        """The next action as text."""
        action = self.next_action(messages)
        return self.dialect.render_action(action)

    def _expand(self, values: Mapping[str, Any]) -> Sequence[tuple[int, _Calls | _Say, Any]]:
        queue: list[tuple[int, _Calls | _Say, Any]] = []
        for index, step in enumerate(self.steps):
            if isinstance(step, _Calls) and step.for_each is not None:
                self._index = index
                items = step.for_each(**values)
                if not isinstance(items, (list, tuple)):
                    raise PolicyError(f"oracle.{index}.for_each gives a {type(items).__name__}; expected a list")
                queue.extend((index, step, item) for item in items)
            else:
                queue.append((index, step, None))
        return queue


Act = Callable[[Sequence[Message]], Awaitable[str | Message | Sampled]]

_WORDS = ("yes", "no", "the", "of", "Paris", "1", "42", "select", "name", "none", "total", "river", "2 + 2")


def random_value(schema: Mapping[str, Any], rng: random.Random, *, depth: int = 0) -> Any:
    """A value that fits the common parts of a JSON Schema (types, enum, bounds, properties, items)."""
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    if "const" in schema:
        return schema["const"]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return random_value(rng.choice(list(schema[key])), rng, depth=depth + 1)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "integer":
        low = int(schema.get("minimum", -1000))
        return rng.randint(low, int(schema.get("maximum", max(low, 1000))))
    if kind == "number":
        least = float(schema.get("minimum", -1000))
        return round(rng.uniform(least, float(schema.get("maximum", max(least, 1000)))), 3)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        items = schema.get("items", {})
        return [random_value(items, rng, depth=depth + 1) for _ in range(rng.randint(0, 3))] if depth < 4 else []
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        return {
            name: random_value(part, rng, depth=depth + 1)
            for name, part in properties.items()
            if name in required or (depth < 4 and rng.random() < 0.5)
        }
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 4)))


class RandomPolicy:
    """Random well-formed calls, random answers and now and then rubbish; equal seeds act equally."""

    name = "random"

    def __init__(self, dialect: Dialect, answer: AnswerSpec) -> None:
        self._dialect = dialect
        self._answer = answer

    def start(self, context: PolicyContext) -> _Session:
        """One episode of random actions."""
        rng = random.Random(f"{context.seed}:{context.prompt_text}")
        return _Session(lambda messages: self._act(rng, context))

    async def aclose(self) -> None:
        """Nothing to close."""

    def _act(self, rng: random.Random, context: PolicyContext) -> str:
        choice = rng.random()
        if choice < 0.6 and context.tools:
            function = rng.choice(list(context.tools))["function"]
            call = ToolCall(function["name"], random_value(function["parameters"], rng))
            return self._dialect.render_action(Message("assistant", "", (call,)))
        if choice < 0.7:
            return "".join(rng.choice(string.printable) for _ in range(rng.randint(0, 60)))
        guess = str(rng.randint(0, 9999)) if rng.random() < 0.5 else rng.choice(_WORDS)
        if self._answer.from_ == "tag":
            return f"<{self._answer.tag}>{guess}</{self._answer.tag}>"
        if self._answer.from_ == "boxed":
            return f"\\boxed{{{guess}}}"
        return guess


class FunctionPolicy:
    """An async function as a policy: it takes the messages so far and gives the next action.

    Raises:
        UsageError: it is no async function.
    """

    def __init__(self, act: Act) -> None:
        if not any(map(inspect.iscoroutinefunction, (act, getattr(type(act), "__call__", act)))):  # noqa: B004
            raise UsageError(f"{act!r} is no policy", hint="give a Policy, a policy's name, or an async function")
        self.name = getattr(act, "__name__", type(act).__name__)
        self.act = act

    def start(self, context: PolicyContext) -> FunctionPolicy:
        """The function itself, which keeps nothing of an episode."""
        return self

    async def aclose(self) -> None:
        """Nothing to close."""


class ScriptPolicy:
    """Plays actions from a file.

    A .jsonl file holds one JSON list of actions a line; episode i plays line i (modulo the number of lines). Any
    other file holds one script for every episode, its actions separated by lines of three dashes. A script that is
    over repeats its last action.

    Raises:
        UsageError: the file is missing, empty or not of that form.
    """

    name = "script"

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            self.facts = {"script": hashlib.sha256(path.read_bytes()).hexdigest()}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the script '{path}' cannot be read: {error}") from error
        self._scripts: list[list[str]] = []
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    self._scripts.append(_actions(path, number, line))
        else:
            actions = [part.strip("\n") for part in f"\n{text}".split("\n---\n")]
            self._scripts.append(actions)
        if not self._scripts:
            raise UsageError(f"the script '{path}' is empty", hint="write one JSON list of actions a line")

    def start(self, context: PolicyContext) -> _Session:
        """The script of the next episode."""
        script = self._scripts[context.task_index % len(self._scripts) if context.task_index >= 0 else 0]
        position = iter(range(1 << 62))
        return _Session(lambda messages: script[min(next(position), len(script) - 1)])

    async def aclose(self) -> None:
        """Nothing to close."""


def _actions(path: Path, number: int, line: str) -> list[str]:
    try:
        actions = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from error
    if not isinstance(actions, list) or not actions or not all(isinstance(action, str) for action in actions):
        raise UsageError(f'{path}:{number}: expected a JSON list of actions (texts), such as ["<answer>4</answer>"]')
    return actions


@dataclass(slots=True, eq=False)
class _Session:
    next_text: Callable[[Sequence[Message]], str]

    async def act(self, messages: Sequence[Message]) -> str:
        return self.next_text(messages)
