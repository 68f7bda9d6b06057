"""The `model` tool: a prompt that another model answers.

The `agent` tool: another spec, played by a model as a nested episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from rlenv._base.bounded import plain, size
from rlenv._base.paths import RefusedPath
from rlenv._base.text import did_you_mean, without_thinking
from rlenv.concurrency.scope import Scope
from rlenv.dialects.built_in import broken
from rlenv.endpoints import REFUSED, UNKNOWN, Client, Endpoint
from rlenv.endpoints.account import asks, is_away
from rlenv.errors import EndpointError, EpisodeError, ToolFailed, UnknownEntry, UsageError, told_as, under
from rlenv.images import UnreadableImage, image_of
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, Prose, SamplingSpec, Text, ToolSpec
from rlenv.language.templates import Template, TemplateError, UnfitTemplate, compile_value, template_of
from rlenv.messages import Image, Message
from rlenv.tools._signature import expand_shorthand
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common
from rlenv.trajectory import Trajectory

_NAMES = frozenset(("args", "task", "vars", "resources"))
_PROBE = Message("user", "Say yes.")
_MAX_ASKED = 65_536


class ModelSpec(ToolSpec):
    """Asks another model; its answer is the result."""

    kind: Literal["model"]
    endpoint: Text
    """The name of an entry under `endpoints`."""
    prompt: Prose
    """The user message; a template over `args`, `task`, `vars` and `resources`."""
    system: Prose | None = None
    """The system message; a template as well."""
    parameters: Mapping[str, Any]
    """The tool's arguments: `{text: string, limit: integer?}`, or a JSON Schema of an object."""
    images: tuple[Text, ...] = ()
    """Templates that each give an image for the user message: a data URL, or, where it reads no `args`, a file."""
    sampling: SamplingSpec = SamplingSpec()
    """Fields that are set replace the endpoint's own."""
    on_failure: Literal["tell", "invalid"] = "tell"
    """Where the server fails: `tell` the model that the tool did, or end the episode with an `invalid` reward."""


def endpoint_of(name: str, context: CompileContext, *, key: str = "endpoint") -> Endpoint:
    """The compiled endpoint that an entry names under `key`.

    Raises:
        UsageError: there is none of that name.
    """
    endpoint = context.endpoints.get(name)
    if isinstance(endpoint, Endpoint):
        return endpoint
    hint = "" if context.endpoints else f"add the server: endpoints: {{{name}: {{base_url: …, model: …}}}}"
    raise UnknownEntry("endpoints", name, context.endpoints, key=key, hint=hint)


def parameters_of(given: Mapping[str, Any], templates: Mapping[str, Template]) -> dict[str, Any]:
    """The schema of an entry's `parameters`.

    Args:
        templates: those that read `args`, by their key.

    Raises:
        UsageError: a type is not known, or a template reads an argument that is not there.
    """
    with under("parameters"):
        schema = expand_shorthand(given)
    known = schema.get("properties", {})
    for key, template in templates.items():
        for path in sorted(template.paths):
            if path[0] == "args" and len(path) > 1 and path[1] not in known:
                hint = did_you_mean(path[1], known, "parameters", prefix="args.")
                found = ".".join(path[:2])
                raise UnfitTemplate(f"there is no parameter '{path[1]}'", key=key, hint=hint, find=found)
    return schema


def check_length(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that are longer than a model is asked with: breaking control tokens in them takes memory.

    Raises:
        ToolFailed: they are.
    """
    if size(arguments, _MAX_ASKED) > _MAX_ASKED:
        raise ToolFailed(f"the tool {name} takes at most {_MAX_ASKED:,} characters", reason="too_large")


def tool_failure(name: str, error: EndpointError, *, is_invalid: bool) -> ToolFailed:
    """A server's failure as the tool's, for the model to read.

    Raises EndpointError: `is_invalid`, or one that no other call can escape: a policy must not learn that there is no
    tool. A request refused for what it holds is the policy's, and leaves out no sample.
    """
    if error.status in REFUSED:
        return ToolFailed(f"the tool {name} could not take this request; it may be too long", reason="too_large")
    if is_invalid or error.is_unknown:
        raise error
    return ToolFailed(f"the tool {name} is not available at the moment", reason=_failure_reason(error), retryable=True)


def _failure_reason(error: EndpointError | None) -> str:
    """The word for a server's failure: the policy may have kept it at work beyond its time, or brought it down."""
    if error is None or not (error.is_cut or is_away(error)):
        return "rate_limited" if error is not None and error.status == 429 else "server_error"
    return "disconnected" if error.is_cut else "unavailable"


def compile_model(name: str, spec: ModelSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool whose text and value are the model's answer; images in the answer are the result's.

    Raises:
        UsageError: the endpoint, a template or a parameter does not fit.
    """
    endpoint = endpoint_of(spec.endpoint, context)
    prompt = template_of(spec.prompt, key="prompt", names=_NAMES)
    system = template_of(spec.system, key="system", names=_NAMES) if spec.system is not None else None
    images = [template_of(source, key=f"images.{index}", names=_NAMES) for index, source in enumerate(spec.images)]
    templates = {"prompt": prompt, **({"system": system} if system is not None else {})}
    parameters = parameters_of(spec.parameters, {**templates, **{f"images.{i}": t for i, t in enumerate(images)}})
    read = [_image_reader(template, context) for template in images]
    constants = context.vars

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        check_length(name, arguments)
        values = {"args": _Arguments(arguments), "task": call.task, "vars": constants, "resources": call.resources}
        try:
            # What the policy wrote is not the other model's own: it spells no control token there.
            messages = [Message("system", broken(*system.written(**values)))] if system is not None else []
            attached = tuple(one(values) for one in read)
            messages.append(Message("user", broken(*prompt.written(**values)), images=attached))
        except TemplateError as error:
            if not error.is_unfit:
                raise  # code behind a resource failed
            raise ToolFailed(f"the request cannot be written: {error}") from error
        client = await endpoint.client(call.shared())
        try:
            with asks(f"tool {name}"):
                answer = await client.chat(messages, sampling=spec.sampling, deadline=call.deadline)
                text = without_thinking(answer.message.content)
                if not text and not answer.message.images:
                    client.unread(answer)
        except EndpointError as error:
            is_refused = error.status in UNKNOWN
            if is_refused and (not error.is_unknown or await _is_there(client, call)):
                # A filter that refuses what it is shown, or a server that fails by chance: nobody can tell from here.
                raise ToolFailed(f"the tool {name} did not take this request", reason="server_error") from error
            raise tool_failure(name, error, is_invalid=spec.on_failure == "invalid") from error
        if not text and not answer.message.images:
            raise ToolFailed(f"the tool {name} gave an empty answer", reason="server_error", retryable=True)
        details = {"usage": answer.usage.as_dict(), "finish_reason": answer.finish_reason}
        return ToolOutput(text, text, answer.message.images, details)

    return _make_tool(name, spec, f"Ask another model ({name}).", parameters, run, endpoint.timeout_s)


def _make_tool(
    name: str, spec: ToolSpec, usual: str, parameters: Mapping[str, Any], run: Callable[..., Any], usual_s: float
) -> tuple[Tool]:
    """A tool that asks a model: slower than other tools, with a limit that says how slow."""
    given = {**common(spec), **({"timeout_s": usual_s} if spec.timeout_s is None else {})}
    description = spec.description or usual
    return (
        Tool(
            name=name, description=description, parameters=parameters, run=run, mode="async", reaches_out=True, **given
        ),
    )


async def _is_there(client: Client, call: ToolContext) -> bool:
    """True if the server takes a request that holds nothing of the policy's."""
    try:
        await client.chat([_PROBE], sampling=SamplingSpec(max_tokens=1), deadline=call.deadline)
    except EndpointError as error:
        return not error.is_unknown
    return True


class _Arguments(dict[str, Any]):
    """The arguments of a call; one that was left out is an empty text in a template."""

    def __missing__(self, key: str) -> str:
        return ""


def _image_reader(template: Template, context: CompileContext) -> Callable[[Mapping[str, Any]], Image]:
    """From a template's value to an image. A model's own words never name a file."""
    from_model = "args" in template.names

    def read(values: Mapping[str, Any]) -> Image:
        try:
            find = None if from_model else context.finder("images", template, **values)
            return image_of(template.value(**values), file=find)
        except (UnreadableImage, RefusedPath) as error:
            raise ToolFailed(str(error), reason="bad_arguments" if from_model else "failed") from error

    return read


MODEL = Kind(ModelSpec, compile_model, asks_models=True)


_TASK_NAMES = frozenset(("args", "task", "vars"))
# Failures of an agent's episode that its arguments decide: whoever wrote them must not leave out its own sample.
_OF_THE_CALL = frozenset(("refused", "image", "prompt", "task", "tools"))


class AgentSpec(ToolSpec):
    """Plays another spec as an episode within the episode; its answer is the result."""

    kind: Literal["agent"]
    spec: Text
    """The agent's own spec, relative to this one; it brings its tools, prompt, answer rule and limits."""
    endpoint: Text
    """Who plays it: the name of an entry under `endpoints` of this spec."""
    mode: Literal["tools", "text"] = "tools"
    """`tools`: the server's own tool calls; `text`: raw text, read by the agent's dialect."""
    turns: Annotated[Int, Field(ge=1)] | None = None
    """Instead of the agent's own `limits.turns`."""
    parameters: Mapping[str, Any] = Field(default_factory=lambda: {"question": "string"})
    """The tool's arguments: `{text: string, limit: integer?}`, or a JSON Schema of an object."""
    task: Mapping[str, Any] | None = None
    """The agent's task row; texts are templates over `args`, `task` and `vars`. By default the arguments themselves."""
    on_failure: Literal["tell", "invalid"] = "tell"
    """Where the agent's server or resources fail: `tell` the model, or end the episode with an `invalid` reward."""


class Nested(Protocol):
    """A compiled spec whose episodes are played inside others; see `rlenv.episodes.compile`."""

    episode_s: float

    async def play(
        self, task: Mapping[str, Any], *, client: Client, mode: str, seed: int, deadline: float, shared: Scope
    ) -> tuple[Trajectory, EndpointError | None]: ...


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
    written = {
        f"task.{key}": template_of(value, key=f"task.{key}", names=_TASK_NAMES)
        for key, value in (spec.task or {}).items()
        if isinstance(value, str)
    }
    parameters = parameters_of(spec.parameters, written)
    fill = compile_value(dict(spec.task)) if spec.task is not None else None
    overrides = {"limits.turns": spec.turns} if spec.turns is not None else {}
    nested: Nested = context.nest(context.path("spec", spec.spec), overrides)
    constants = context.vars

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        check_length(name, arguments)
        task: Mapping[str, Any] = arguments
        if fill is not None:
            with told_as(ToolFailed, "the agent's task cannot be written:", TemplateError):
                task = fill(args=arguments, task=call.task, vars=constants)
        shared = call.shared()
        client = await endpoint.client(shared)
        with asks(f"agent {name}"):
            played, lost = await nested.play(
                task, client=client, mode=spec.mode, seed=call.seed, deadline=call.deadline, shared=shared
            )
        return _agent_output(name, played, lost, is_invalid=spec.on_failure == "invalid")

    return _make_tool(name, spec, f"Ask an agent ({name}) that works on its own.", parameters, run, nested.episode_s)


def _agent_output(name: str, played: Trajectory, lost: EndpointError | None, *, is_invalid: bool) -> ToolOutput:
    details: dict[str, Any] = {"trajectory": plain(played)}
    # A reward of the agent's own that cannot be measured says nothing of its answer: the row of a call has no gold.
    if played.failure is not None and played.failure.reason != "reward" and played.answer is None:
        if played.failure.reason in _OF_THE_CALL:
            text = f"the agent {name} could not take this request: it is too long, or not of its form"
            raise ToolFailed(text, reason="bad_arguments", details=details)
        if is_invalid:
            raise EpisodeError(f"the agent {name} failed: {played.failure.message}", reason=played.failure.reason)
        text = f"the agent {name} is not available at the moment"
        raise ToolFailed(text, reason=_failure_reason(lost), retryable=True, details=details)
    if played.answer is not None:
        return ToolOutput(played.answer, played.answer, details=details)
    last = played.turns[-1].parsed.content.strip() if played.turns else ""
    if played.terminated and last:
        return ToolOutput(last, last, details=details)
    if played.reason == "time":
        raise ToolFailed(f"the agent {name} did not answer within its time", reason="late", details=details)
    text = f"the agent {name} gave no answer within its limits ({played.reason})"
    # Who asks the agent may bring about what its tools fail by: it is asked again then, as any other call.
    at_last = {one.name: one.whose for turn in played.turns for one in turn.results}
    is_lost = not {"infrastructure", "unclear"}.isdisjoint(at_last.values())
    raise ToolFailed(text, details=details, whose="unclear" if is_lost else "policy")


AGENT = Kind(AgentSpec, compile_agent, asks_models=True)
