"""The scripted gold policy of a spec's `oracle`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlenv.dialects.base import Dialect
from rlenv.errors import PolicyError, UsageError
from rlenv.language.spec import EnvSpec, OracleCall, OracleSay
from rlenv.language.templates import TemplateError, compile_template, compile_value, expression
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.policies.base import PolicyContext

__all__ = ["OraclePolicy", "OracleSession"]


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
