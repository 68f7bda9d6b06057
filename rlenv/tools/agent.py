"""The `agent` tool: another spec, played by a model as a nested episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from rlenv._base.jsonable import plain
from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Client
from rlenv.endpoints.account import asks
from rlenv.errors import EpisodeError, ToolFailed, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, Text, ToolSpec
from rlenv.language.templates import TemplateError, compile_value, template_of
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common
from rlenv.tools.model import check_length, endpoint_of, parameters_of
from rlenv.trajectory import Trajectory

__all__ = ["KIND", "AgentSpec", "Nested"]

_NAMES = frozenset(("args", "task", "vars"))
# Failures of an agent's episode that its arguments decide: whoever wrote them must not leave out its own sample.
_OF_THE_CALL = frozenset(("refused", "image"))


class AgentSpec(ToolSpec):
    """Plays another spec as an episode within the episode; its answer is the result."""

    kind: Literal["agent"]
    spec: Text
    """The agent's own spec, relative to this one; it brings its tools, prompt, answer rule and limits."""
    endpoint: Text
    """Who plays it: the name of an entry under `endpoints` of this spec."""
    mode: Literal["tools", "text"] = "tools"
    """`tools`: the server's own tool calls; `text`: raw text, read by the agent's dialect."""
    max_turns: Annotated[Int, Field(ge=1)] | None = None
    """Instead of the agent's own `limits.turns`."""
    parameters: Mapping[str, Any] = Field(default_factory=lambda: {"question": "string"})
    """The tool's arguments: `{text: string, limit: integer?}`, or a JSON Schema of an object."""
    task: Mapping[str, Any] | None = None
    """The agent's task row; texts are templates over `args`, `task` and `vars`. By default the arguments themselves."""
    on_failure: Literal["tell", "invalid"] = "tell"
    """Where the agent's server or resources fail: `tell` the model, or end the episode with an `invalid` reward."""


class Nested(Protocol):
    """A compiled spec whose episodes are played inside others; see `rlenv.episodes.nested`."""

    episode_s: float

    async def play(
        self, task: Mapping[str, Any], *, client: Client, mode: str, seed: int, deadline: float, shared: Scope
    ) -> Trajectory: ...


def compile_agent(name: str, spec: AgentSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool whose text and value are the agent's answer, or its last message where it has no answer.

    The nested trajectory is in the result's details, under `trajectory`, as JSON (`rlenv.runs.files.parse`
    reads it).

    Raises:
        UsageError: the endpoint or a template does not fit, or the specs call each other in a circle.
        SpecError: the agent's own spec has faults.
    """
    endpoint = endpoint_of(spec.endpoint, context)
    if context.nest is None:
        raise UsageError("an agent needs an environment to live in", key="spec", hint="compile it with rlenv.load")
    row = spec.task
    written = {
        f"task.{key}": template_of(value, key=f"task.{key}", names=_NAMES)
        for key, value in (row or {}).items()
        if isinstance(value, str)
    }
    parameters = parameters_of(spec.parameters, written)
    fill = compile_value(dict(row)) if row is not None else None
    overrides = {"limits.turns": spec.max_turns} if spec.max_turns is not None else {}
    nested: Nested = context.nest(context.path("spec", spec.spec), overrides)
    constants = context.vars

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        check_length(name, arguments)
        task: Mapping[str, Any] = arguments
        if fill is not None:
            try:
                task = fill(args=arguments, task=call.task, vars=constants)
            except TemplateError as error:
                raise ToolFailed(f"the agent's task cannot be written: {error}") from error
        shared = call.shared()
        client = await endpoint.client(shared)
        with asks(f"agent {name}"):
            played = await nested.play(
                task, client=client, mode=spec.mode, seed=call.seed, deadline=call.deadline, shared=shared
            )
        return _output(name, played, is_invalid=spec.on_failure == "invalid")

    given = common(spec)
    if spec.timeout_s is None:
        given["timeout_s"] = nested.episode_s
    return (
        Tool(
            name=name,
            description=spec.description or f"Ask an agent ({name}) that works on its own.",
            parameters=parameters,
            run=run,
            mode="async",
            reaches_out=True,
            **given,
        ),
    )


def _output(name: str, played: Trajectory, *, is_invalid: bool) -> ToolOutput:
    details: dict[str, Any] = {"trajectory": plain(played)}
    # A reward of the agent's own that cannot be measured is no reason to throw its answer away.
    if played.failure is not None and played.answer is None:
        if played.failure.reason in _OF_THE_CALL:
            text = f"the agent {name} could not take this request; it may be too long"
            raise ToolFailed(text, reason="bad_arguments", details=details)
        if is_invalid:
            raise EpisodeError(f"the agent {name} failed: {played.failure.message}", reason=played.failure.reason)
        text = f"the agent {name} is not available at the moment"
        raise ToolFailed(text, reason="server_error", retryable=True, details=details)
    if played.answer is not None:
        return ToolOutput(played.answer, played.answer, details=details)
    last = played.turns[-1].parsed.content.strip() if played.turns else ""
    if played.terminated and last:
        return ToolOutput(last, last, details=details)
    if played.reason == "time":
        raise ToolFailed(f"the agent {name} did not answer within its time", reason="late", details=details)
    raise ToolFailed(f"the agent {name} gave no answer within its limits ({played.reason})", details=details)


KIND = Kind(AgentSpec, compile_agent, asks_models=True)
