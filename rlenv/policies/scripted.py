"""Policies without a model: the oracle of a spec, a script, chance, and a plain function."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import string
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from rlenv.concurrency.threads import ThreadPool
from rlenv.dialects.base import Dialect
from rlenv.errors import EpisodeError, PolicyError, UsageError, told_as, under
from rlenv.language.functions import failure, import_function, named_parameters
from rlenv.language.spec import AnswerSpec, EnvSpec, OracleFunction, OracleStep
from rlenv.language.templates import TemplateError, compile_template, compile_value
from rlenv.messages import Message, Sampled, ToolCall
from rlenv.policies import base as golds
from rlenv.policies.base import Policy, PolicyContext

__all__ = ["Act", "FunctionPolicy", "OraclePolicy", "OracleSession", "RandomPolicy", "ScriptPolicy", "random_call"]
__all__ += ["random_value"]


def oracle_function(spec: OracleFunction, *, base: Path) -> tuple[Callable[..., Any] | None, tuple[str, ...]]:
    """The function of an oracle in Python, and the names of what it asks for.

    Raises:
        UsageError: it is not there, or takes what nothing gives.
    """
    with under("oracle.function"):
        function = import_function(spec.function, base=base)
    return function, named_parameters(function, key="oracle.function", offered=_OFFERED)


ToolsOf = Callable[[Mapping[str, Any], int], Sequence[Mapping[str, Any]]]


class OraclePolicy(Policy):
    """Plays the oracle of a spec: its steps, its Python function, or the actions that are recorded in a row.

    A step is one action for its calls and one for its text, written as the dialect writes them. Templates see `task`,
    `vars`, `item` (in a step with `for_each`) and `results`: the texts of the results so far.

    Args:
        base: what `oracle.function` is relative to.
        tools: gives the schemas that a row has after so many replies of the user's, where these may bring some.

    Raises:
        UsageError: the spec has no oracle, or its function is not there or takes what nothing gives.
    """

    name = "oracle"

    def __init__(self, spec: EnvSpec, dialect: Dialect, *, base: Path = Path(), tools: ToolsOf | None = None) -> None:
        if not spec.oracle:
            raise UsageError(f"{spec.name} has no `oracle`", hint="add 'oracle:' to the spec, or choose another policy")
        self.dialect = dialect
        self.tools = tools
        self.steps = spec.steps
        self.recorded = compile_template(spec.oracle).value if isinstance(spec.oracle, str) else None
        self.function, self.asks = (
            oracle_function(spec.oracle, base=base) if isinstance(spec.oracle, OracleFunction) else (None, ())
        )

    def start(self, context: PolicyContext) -> OracleSession:
        """One episode's script."""
        return OracleSession(self, context)


_OFFERED = ("task", "results", "messages", "vars")
_threads: Final = ThreadPool(size=64)


@dataclass(frozen=True, slots=True)
class _Part:
    """The rest of a step, for one of its items."""

    index: int
    step: OracleStep
    stage: Literal["plan", "call", "expect", "say"]
    item: Any = None


class OracleSession:
    """One episode of the oracle."""

    def __init__(self, policy: OraclePolicy, context: PolicyContext) -> None:
        self._policy = policy
        self._values: dict[str, Any] = {"task": context.task, "vars": context.vars, "results": []}
        self._tools = golds.parameters_of(context.tools)
        self._ready: list[str | Message] = []
        self._left = [_Part(index, step, "plan") for index, step in enumerate(policy.steps)]
        self._running: Any = None
        self._heard = self._opened = 0
        self._is_begun = False
        self._is_asked = policy.function is not None

    @property
    def is_over(self) -> bool:
        """True once no action can follow. What results decide, and what a function gives, is known when it is asked."""
        return self._is_begun and not (self._ready or self._left or self._is_asked)

    async def act(self, messages: Sequence[Message]) -> str:
        """The next action, written as the dialect writes it; a text that was recorded as it stands.

        Raises:
            PolicyError: the script is over and the episode still runs, an `expect` is not met, or a template or the
                function fails; the message names the step.
        """
        results = self._values["results"]
        results[:] = [message.content for message in messages if message.role == "tool"]
        replies = sum(message.role == "user" for message in messages) - self._opened
        if not self._is_begun:
            self._opened = replies
            self._begin()
        elif self._policy.tools is not None:
            self._tools = golds.parameters_of(self._policy.tools(self._values["task"], replies))
        if self._is_asked and not self._ready:
            given = {**self._values, "messages": [message.as_dict() for message in messages]}
            self._ready = await self._next({name: given[name] for name in self._policy.asks}, results[self._heard :])
            self._heard = len(results)
        while not self._ready and self._left:
            self._left[:1] = self._go_on(self._left[0])
        if not self._ready:
            raise PolicyError("oracle: its steps are over and the episode has not ended; end them with an answer")
        action = self._ready.pop(0)
        return action if isinstance(action, str) else self._policy.dialect.render_action(action)

    def _begin(self) -> None:
        self._is_begun = True
        if self._policy.recorded is not None:
            with told_as(PolicyError, "oracle:", TemplateError, PolicyError):
                self._ready = golds.read_actions(golds.listed(self._policy.recorded(**self._values)), self._tools)
        # What does not depend on results is known now, so that the last action is known for the last.
        self._left = [
            one for part in self._left for one in ([part] if golds.is_later(part.step) else self._go_on(part))
        ]

    def _go_on(self, part: _Part) -> list[_Part]:
        """Does what a part says, which may make actions ready; gives the parts that take its place."""
        step, values = part.step, {**self._values, "item": part.item}
        try:
            if part.stage == "plan":
                parts = [replace(part, stage="call", item=item) for item in golds.items_of(step, values)]
                return [one for one in parts if golds.is_later(step) or golds.holds(step, {**values, "item": one.item})]
            if part.stage == "say":
                self._ready.append(Message("assistant", compile_template(step.say or "").text(**values)))
            elif part.stage == "expect":
                _compare(compile_value(step.expect)(**values), values["results"])
            elif not golds.is_later(step) or golds.holds(step, values):
                groups = golds.read_calls(golds.fill_calls(step.call, values), self._tools)
                self._ready += [Message("assistant", "", calls) for calls in groups]
                stages: dict[Literal["expect", "say"], bool] = {
                    "expect": bool(groups) and step.expect is not None,
                    "say": step.say is not None,
                }
                return [replace(part, stage=stage) for stage, has in stages.items() if has]
        except (TemplateError, PolicyError) as error:
            place = ".expect" if part.stage == "expect" else ""
            raise PolicyError(f"oracle.{part.index}{place}: {error}") from error
        return []

    async def _next(self, given: Mapping[str, Any], news: Sequence[str]) -> list[str | Message]:
        """The actions that the function gives next; none where it is over."""
        assert self._policy.function is not None
        try:
            if self._running is not None:
                made = await _send_to(self._running, list(news))
            else:
                made = await _threads.run(partial(self._policy.function, **given))
                if inspect.isgenerator(made) or inspect.isasyncgen(made):
                    self._running, made = made, await _send_to(made, None)
                elif inspect.isawaitable(made):
                    made = await made
                self._is_asked = self._running is not None or not given.keys().isdisjoint(("results", "messages"))
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            raise PolicyError(f"oracle.function: the function failed: {failure(error)}") from error
        with told_as(PolicyError, "oracle.function:", PolicyError):
            actions = [] if made is None else golds.read_actions(made, self._tools)
        self._is_asked = self._is_asked and bool(actions)
        return actions


async def _send_to(running: Any, value: Any) -> Any:
    """The next value of a generator, None where it has ended."""
    if not inspect.isasyncgen(running):
        return await _threads.run(partial(resume_with, running, value))
    with suppress(StopAsyncIteration):
        return await running.asend(value)
    return None


def resume_with(running: Generator[Any, Any, Any], value: Any) -> Any:
    """The next value of a generator that is sent `value`; None where it has ended."""
    try:
        return running.send(value)
    except StopIteration:
        return None


def _compare(expected: Any, results: Sequence[str]) -> None:
    """Raises PolicyError where the last result does not contain a text, or does not equal another value."""
    text = results[-1] if results else ""
    found: Any = text
    if not isinstance(expected, str):
        with suppress(ValueError):
            found = json.loads(text)
    if expected not in found if isinstance(expected, str) else (found, type(found) is bool) != (
        expected, type(expected) is bool):  # fmt: skip
        raise PolicyError(f"the last result is {text[:200]!r}; expected {expected!r}")


Act = Callable[[Sequence[Message]], Awaitable[str | Message | Sampled]]

_WORDS = ("Yes", "no", "the", "of", "Paris", "1", "42", "select", "name", "none", "total", "river", "2 + 2")


def random_value(schema: Mapping[str, Any] | bool, rng: random.Random, *, depth: int = 0) -> Any:
    """A value that fits the common parts of a JSON Schema (types, enum, bounds, properties, items)."""
    if not isinstance(schema, Mapping):  # `true`, which any value fits
        return None
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
        low = int(schema.get("minimum", min(-1000, schema.get("maximum", 0))))
        return rng.randint(low, int(schema.get("maximum", max(low, 1000))))
    if kind == "number":
        least = float(schema.get("minimum", min(-1000, schema.get("maximum", 0))))
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


def random_call(tools: Sequence[Mapping[str, Any]], rng: random.Random) -> ToolCall:
    """A call of one of the tools, whose arguments fit its schema as far as `random_value` does."""
    function = rng.choice(list(tools))["function"]
    return ToolCall(function["name"], random_value(function["parameters"], rng))


class RandomPolicy(Policy):
    """Random well-formed calls, random answers and now and then rubbish; equal seeds act equally."""

    name = "random"

    def __init__(self, dialect: Dialect, answer: AnswerSpec) -> None:
        self._dialect = dialect
        self._answer = answer

    def start(self, context: PolicyContext) -> _Session:
        """One episode of random actions."""
        rng = random.Random(f"{context.seed}:{context.prompt_text}")
        return _Session(lambda messages: self._act(rng, context))

    def _act(self, rng: random.Random, context: PolicyContext) -> str:
        choice = rng.random()
        if choice < 0.6 and context.tools:
            return self._dialect.render_action(Message("assistant", "", (random_call(context.tools, rng),)))
        if choice < 0.7:
            return "".join(rng.choice(string.printable) for _ in range(rng.randint(0, 60)))
        guess = str(rng.randint(0, 9999)) if rng.random() < 0.5 else rng.choice(_WORDS)
        if self._answer.from_ == "tag":
            return f"<{self._answer.tag}>{guess}</{self._answer.tag}>"
        return f"\\boxed{{{guess}}}" if self._answer.from_ == "boxed" else guess


class FunctionPolicy:
    """An async function as a policy: it takes the messages so far and gives the next action.

    Raises UsageError: it is no async function.
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


class ScriptPolicy(Policy):
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
        with told_as(UsageError, f"the script '{path}' cannot be read:", OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            self.facts = {"script": hashlib.sha256(path.read_bytes()).hexdigest()}
        self._scripts: list[list[Any]] = []
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    self._scripts.append(_parse_actions(path, number, line))
        else:
            self._scripts.append([part.strip("\n") for part in f"\n{text}".split("\n---\n")])
        if not self._scripts:
            raise UsageError(f"the script '{path}' is empty", hint="write one JSON list of actions a line")

    def start(self, context: PolicyContext) -> _Session:
        """The script of the next episode."""
        index = context.task_index % len(self._scripts) if context.task_index >= 0 else 0
        with told_as(PolicyError, f"the script of task {index}:", PolicyError):
            script = golds.read_actions(self._scripts[index], golds.parameters_of(context.tools))
        position = iter(range(1 << 62))
        return _Session(lambda messages: script[min(next(position), len(script) - 1)])


def _parse_actions(path: Path, number: int, line: str) -> list[Any]:
    try:
        actions = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from error
    with told_as(UsageError, f"{path}:{number}:", PolicyError):
        is_script = isinstance(actions, list) and golds.read_actions(actions, {})
    if not is_script:
        expected = 'a JSON list of actions (texts, messages or calls), such as ["<answer>4</answer>"]'
        raise UsageError(f"{path}:{number}: expected {expected}")
    return list(actions)


@dataclass(slots=True, eq=False)
class _Session:
    next_action: Callable[[Sequence[Message]], str | Message]

    async def act(self, messages: Sequence[Message]) -> str | Message:
        return self.next_action(messages)
