"""The `model` tool: a prompt that another model answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rlenv._base.bounded import size
from rlenv._base.nearest import did_you_mean
from rlenv._base.paths import RefusedPath
from rlenv.dialects.built_in import broken
from rlenv.endpoints import REFUSED, Client, Endpoint
from rlenv.endpoints.account import asks
from rlenv.errors import EndpointError, ToolFailed, UnknownEntry, under
from rlenv.images import UnreadableImage, image_of
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import SamplingSpec, Text, ToolSpec
from rlenv.language.templates import Template, TemplateError, UnfitTemplate, template_of
from rlenv.messages import Image, Message
from rlenv.tools._signature import shorthand
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

__all__ = ["KIND", "ModelSpec", "check_length", "endpoint_of", "parameters_of", "tool_failure"]

_NAMES = frozenset(("args", "task", "vars", "resources"))
# No call can succeed until somebody mends the spec or the server, if what nobody's policy wrote is refused as well.
_MISCONFIGURED = frozenset({401, 403, 404})
_PROBE = Message("user", "Say yes.")
_MAX_ASKED = 65_536


class ModelSpec(ToolSpec):
    """Asks another model; its answer is the result."""

    kind: Literal["model"]
    endpoint: Text
    """The name of an entry under `endpoints`."""
    prompt: Text
    """The user message; a template over `args`, `task`, `vars` and `resources`."""
    system: Text | None = None
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
    raise UnknownEntry("endpoints", name, context.endpoints, key=key)


def parameters_of(given: Mapping[str, Any], templates: Mapping[str, Template]) -> dict[str, Any]:
    """The schema of an entry's `parameters`.

    Args:
        templates: those that read `args`, by their key.

    Raises:
        UsageError: a type is not known, or a template reads an argument that is not there.
    """
    with under("parameters"):
        schema = shorthand(given)
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

    Raises:
        EndpointError: `is_invalid`, or a failure that no other call can escape (401, 403, 404): the tool is not
            there, and a policy must not learn from that. A request that the server refuses for what it holds (400,
            413, 422, and those three where it takes another) is never among them: the policy wrote it, and could leave
            out its own sample by it.
    """
    if error.status in REFUSED:
        return ToolFailed(f"the tool {name} could not take this request; it may be too long", reason="too_large")
    if is_invalid or error.status in _MISCONFIGURED:
        raise error
    # A server that is gone, or one that the policy kept at work beyond its time: nobody can tell from here.
    reason = "rate_limited" if error.status == 429 else "server_error"
    return ToolFailed(f"the tool {name} is not available at the moment", reason=reason, retryable=True)


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
    read = [_reader(template, context) for template in images]
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
            raise ToolFailed(f"the request cannot be written: {error}") from error
        client = await endpoint.client(call.shared())
        try:
            with asks(f"tool {name}"):
                answer = await client.chat(messages, sampling=spec.sampling, deadline=call.deadline)
                if not answer.message.content and not answer.message.images:
                    client.unread(answer)
        except EndpointError as error:
            if error.status in _MISCONFIGURED and await _is_there(client, call):
                # A filter that refuses what it is shown, or a server that fails by chance: nobody can tell from here.
                raise ToolFailed(f"the tool {name} did not take this request", reason="server_error") from error
            raise tool_failure(name, error, is_invalid=spec.on_failure == "invalid") from error
        text = answer.message.content
        if not text and not answer.message.images:
            raise ToolFailed(f"the tool {name} gave an empty answer", reason="server_error", retryable=True)
        details = {"usage": answer.usage.as_dict(), "finish_reason": answer.finish_reason}
        return ToolOutput(text, text, answer.message.images, details)

    given = common(spec)
    if spec.timeout_s is None:
        given["timeout_s"] = endpoint.timeout_s  # a model is slower than other tools; its own limit says how slow
    return (
        Tool(
            name=name,
            description=spec.description or f"Ask another model ({name}).",
            parameters=parameters,
            run=run,
            mode="async",
            reaches_out=True,
            **given,
        ),
    )


async def _is_there(client: Client, call: ToolContext) -> bool:
    """Whether the server takes a request that holds nothing of the policy's."""
    try:
        await client.chat([_PROBE], sampling=SamplingSpec(max_tokens=1), deadline=call.deadline)
    except EndpointError as error:
        return error.status not in _MISCONFIGURED
    return True


class _Arguments(dict[str, Any]):
    """The arguments of a call; one that was left out is an empty text in a template."""

    def __missing__(self, key: str) -> str:
        return ""


def _reader(template: Template, context: CompileContext) -> Callable[[Mapping[str, Any]], Image]:
    """From a template's value to an image. A model's own words never name a file."""
    from_model = "args" in template.names

    def read(values: Mapping[str, Any]) -> Image:
        try:
            find = None if from_model else context.finder("images", template, **values)
            return image_of(template.value(**values), file=find)
        except (UnreadableImage, RefusedPath) as error:
            raise ToolFailed(str(error), reason="bad_arguments" if from_model else "failed") from error

    return read


KIND = Kind(ModelSpec, compile_model, asks_models=True)
