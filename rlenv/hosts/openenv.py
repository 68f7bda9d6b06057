"""A server of OpenEnv's as a world of a spec: the resource that has an episode there, and the tool of its actions.

Source: openenv 0.10.0, `core/env_server/http_server.py` and `mcp_types.py`. An environment of its tools (`list_tools`,
`call_tool`) gives each of them; any other gives one tool, whose arguments are those of its action.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

import aiohttp
import orjson
from pydantic import Field

from rlenv._base.schemas import without_unreadable_patterns
from rlenv.concurrency.threads import run_sync
from rlenv.errors import EpisodeError, ResourceError, ToolFailed, UsageError, told_as
from rlenv.hosts.link import Door, ServerRefused, Socket, TooLong
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Float, ResourceSpec, Text, ToolSpec
from rlenv.language.templates import TemplateError, compile_value, template_of, texts_at
from rlenv.resources.base import ResourceContext
from rlenv.secrets import set_aside
from rlenv.tools.base import WORLD, Tool, ToolContext, ToolOutput, common, ends_with, show_safely

_OF_THE_ACTION: Final = frozenset(("VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON"))
"""The server's words for an action that is none, or that its environment fails over."""
_OF_THE_SERVER: Final = ("transport_error",)
"""The same of a call to one of its tools, where it is not the call's fault."""
_PAYS: Final = (bool, int, float)  # openenv 0.10.0, `core/env_server/types.py`: an observation's reward
_RESET_S, _BEYOND_S, _MOST_BYTES, _SHOWN_CHARS = 120.0, 30.0, 8 << 20, 2_000


class OpenEnvSpec(ResourceSpec):
    """A server of OpenEnv's (`rlenv serve` is one); each episode has a session of its own.

    Templates and rewards read its `text`, `observation`, `info` (the answer's metadata), `total` (the sum of what its
    steps paid), `rewards` (the same by turn), `steps`, `terminated` and `truncated`.
    """

    kind: Literal["openenv"]
    url: Text
    """The server's address, http:// or https://; a template over `vars`."""
    headers: Mapping[str, Text] = Field(default_factory=dict)
    """Headers of every request; secrets are written ${env:NAME}."""
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments of the reset by name; texts are templates over `task` and `vars`. The episode's
    seed is `seed`, where nothing else is."""
    text: Text | None = None
    """What the policy sees of a state: a template over `observation`, `info`, `task` and `vars`. By default the `text`
    of the observation, or what a tool of the server's gave, else the observation as JSON."""
    start_timeout_s: Float = 60.0
    """How long a server that is full, or is being started again, is waited for."""


class ActSpec(ToolSpec):
    """The actions of a server of OpenEnv's: one tool, or each of the server's own; its end is the episode's."""

    kind: Literal["openenv"]
    resource: Text
    """The server: the name of a resource of kind openenv."""


class ServerWorld:
    """An episode at a server: what its last answer said, and what its steps paid.

    `total` is NaN while a step is under way, for ever after one that was not answered, and where the server ended the
    episode without a reward: nobody knows what it is then. A step that says no reward paid nothing. One whose call was
    given up goes on, and the next waits for it.
    """

    def __init__(self, socket: Socket, begun: Mapping[str, Any], show: Callable[[ServerWorld], str] | None) -> None:
        self._socket, self._show = socket, show
        self.total, self.steps, self.rewards = 0.0, 0, dict[int, float]()
        self._one_at_a_time, self._under_way = asyncio.Lock(), set[asyncio.Task[Any]]()
        self._read(begun)

    def _read(self, answer: Mapping[str, Any]) -> None:
        observation = answer["observation"]
        self.info: Mapping[str, Any] = answer.get("metadata") or observation.get("metadata") or {}
        self.observation = {key: value for key, value in observation.items() if key != "metadata"}
        self.truncated = bool(answer["done"]) and bool(self.info.get("truncated"))
        self.terminated = bool(answer["done"]) and not self.truncated
        if failure := self.info.get("failure"):
            raise EpisodeError(f"the server failed: {failure!s:.500}", reason="resource")
        show = partial(_text_of, self.observation) if self._show is None else partial(self._show, self)
        self.text = show_safely(show) if hasattr(self, "text") else show()  # nor what is hidden: the action chose it

    async def step(self, action: Mapping[str, Any], turn: int, deadline: float) -> float | None:
        """Takes a step; gives what it paid, None where the server does not say.

        Raises:
            ToolFailed: the server refuses the action or fails over it, and the policy is told; it paid nothing.
            EpisodeError: the server does not answer, says that it has failed, or has not answered an earlier step.
        """
        stepped = asyncio.create_task(self._step_alone(action, turn, deadline))
        self._under_way.add(stepped)
        stepped.add_done_callback(self._note_done)
        return await asyncio.shield(stepped)  # a call may be given up; the server takes its step all the same

    def _note_done(self, stepped: asyncio.Task[Any]) -> None:
        self._under_way.discard(stepped)
        if not stepped.cancelled():
            stepped.exception()  # whoever called has been told, or is not there any more

    def close(self) -> None:
        """Gives up steps that are under way."""
        for stepped in self._under_way:
            stepped.cancel()

    async def _step_alone(self, action: Mapping[str, Any], turn: int, deadline: float) -> float | None:
        async with self._one_at_a_time:
            return await self._ask_step(action, turn, deadline)

    async def _ask_step(self, action: Mapping[str, Any], turn: int, deadline: float) -> float | None:
        if self.terminated or self.truncated:
            raise ToolFailed("the episode has ended")
        total, self.total = self.total, math.nan
        if math.isnan(total):
            raise EpisodeError("the server has not answered an earlier step", reason="resource")
        try:
            timeout_s = max(deadline - time.monotonic(), 0.0) + _BEYOND_S
            answer = await self._socket.ask("step", action, timeout_s=timeout_s)
            self._read(answer)
            if (paid := answer.get("reward")) is not None and type(paid) not in _PAYS:
                raise ValueError(f"the reward is {paid!r:.100}, and no number")
            if paid is not None and not math.isfinite(paid):  # as of a world of Gymnasium's
                self.total = total
                raise ToolFailed(f"the action failed: it paid {paid}")
        except ServerRefused as error:
            if error.code not in _OF_THE_ACTION:
                raise EpisodeError(f"the server ended the session: {error}", reason="resource") from error
            self.total = total
            raise ToolFailed(f"the action failed: {str(error)[:_SHOWN_CHARS]}") from error
        except TooLong as error:  # as the action had it: it pays nothing, and the connection may be closed
            self.total, self.truncated = total, True
            raise ToolFailed("what came of it is too long to be shown; the episode is over") from error
        except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError, TemplateError) as error:
            raise EpisodeError(f"the server failed: {type(error).__name__}: {error}", reason="resource") from error
        self.steps += 1
        if paid is not None:
            self.rewards[turn] = self.rewards.get(turn, 0.0) + float(paid)
        if paid is not None or not (self.terminated or self.truncated):
            self.total = total + (paid or 0.0)
        return None if paid is None else float(paid)


def _text_of(observation: Mapping[str, Any]) -> str:
    """What a policy sees of an observation."""
    held = observation.get("text")
    if "tool_name" in observation:
        held = observation.get("error") or observation.get("result")
        if isinstance(held, Mapping):
            content = listed if isinstance(listed := held.get("content"), list) else ()
            texts = [held.get("message"), *(one.get("text") for one in content if isinstance(one, Mapping))]
            held = "\n".join(text for text in texts if isinstance(text, str)) or held
        return held if isinstance(held, str) else orjson.dumps(held).decode()
    return held if isinstance(held, str) else orjson.dumps(observation).decode()


@dataclass(frozen=True, slots=True)
class ServerWorldResource:
    """A compiled `openenv` entry. `tools` are the names, descriptions and arguments of the server's own tools; empty
    where its action, of which `action` is the schema, is the only one."""

    template_attributes: ClassVar = WORLD
    name: str
    door: Door
    arguments: Callable[..., dict[str, Any]]
    show: Callable[..., Callable[[ServerWorld], str] | None]
    action: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    scope: Literal["episode"] = "episode"

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[ServerWorld]:
        """A session of the server's, reset for the task; closed on leaving.

        Raises:
            ResourceError: the server is not there, has no place, or does not begin the episode.
        """
        values = {"task": context.task, "vars": context.vars}
        async with aiohttp.ClientSession(headers=self.door.headers) as client:
            with told_as(ResourceError, f"resource '{self.name}':", EpisodeError, TemplateError):
                data = {"seed": context.seed, **self.arguments(**values)}
                socket, begun = await self.door.begun(partial(self.door.connected, client), data, timeout_s=_RESET_S)
            async with aclosing(socket):
                try:
                    world = ServerWorld(socket, begun, self.show(**values))
                except (EpisodeError, ValueError, TypeError, KeyError, AttributeError, TemplateError) as error:
                    raise ResourceError(f"resource '{self.name}' cannot be read: {error}") from error
                with closing(world):
                    yield world


def compile_openenv(name: str, spec: OpenEnvSpec, context: CompileContext) -> ServerWorldResource:
    """The resource of one entry. Its server is asked for its actions, so it has to run.

    Raises:
        UsageError: there is no such server, or a template does not compile.
    """
    if spec.scope == "process":
        raise UsageError("a server's session is an episode's own", key="scope", hint="leave it out")
    for key, source in texts_at("arguments", spec.arguments):
        template_of(source, key=key, names=("task", "vars"))
    text = None
    if spec.text is not None:
        text = template_of(spec.text, key="text", names=("observation", "info", "task", "vars"))
    headers = {key: _fill_text(f"headers.{key}", value, context) for key, value in spec.headers.items()}
    url = _fill_text("url", spec.url, context).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UsageError("the address is no server's", key="url", hint="write http://HOST:PORT")
    door = Door(url, headers, spec.start_timeout_s, _MOST_BYTES)

    def show(**values: Any) -> Callable[[ServerWorld], str] | None:
        if text is None:
            return None
        return lambda world: text.text(observation=world.observation, info=world.info, **values)

    try:
        action, tools = run_sync(partial(_ask_schema, door))
    except UsageError as error:
        raise UsageError(error.message, key="url", hint="start the server; it says what its actions are") from error
    return ServerWorldResource(name, door, compile_value(spec.arguments), show, action, tools)


def _fill_text(key: str, text: str, context: CompileContext) -> str:
    marked, put_in = set_aside(text)
    with told_as(UsageError, "the template cannot be filled:", TemplateError, key=key):
        return str(put_in(template_of(marked, key=key, names=("vars",)).text(vars=context.vars)))


async def _ask_schema(door: Door) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The schema of the server's action, and its own tools where it has those in place of one."""
    told = await door.fetched("/schema")
    action = told.get("action") if isinstance(told, Mapping) else None
    if not isinstance(action, Mapping):
        raise UsageError(f"{door.url}/schema has no action")
    given = set(action.get("properties") or ()) - {"metadata"}
    if given and not {"tool_name", "arguments"} <= given:
        return action, ()
    async with aiohttp.ClientSession(headers=door.headers) as client:
        try:
            async with aclosing(await door.connected(client, time.monotonic() + door.patience_s)) as socket:
                listed = await socket.ask("step", {"type": "list_tools"}, timeout_s=_RESET_S)
            tools = [dict(one) for one in listed["observation"]["tools"] if {"name", "input_schema"} <= one.keys()]
        except (EpisodeError, ServerRefused, OSError, TimeoutError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{door.url} does not list its tools: {type(error).__name__}: {error}") from error
    if not tools:
        raise UsageError(f"{door.url} has no tool, and its action no argument")
    return action, tools


def compile_act(name: str, spec: ActSpec, context: CompileContext) -> Sequence[Tool]:
    """The server's own tools, or one tool with the arguments of its action; values are `{reward, done}`.

    Raises:
        UsageError: the resource does not exist or is no server of OpenEnv's.
    """
    resource = context.resource(spec.resource, ServerWorldResource, "openenv")
    if spec.description is not None and len(resource.tools) > 1:
        raise UsageError("the server's tools have descriptions of their own", key="description", hint="leave it out")
    if not resource.tools:
        return (_tool(name, spec, resource.action, str(resource.action.get("description") or "Take one step."), None),)
    return tuple(
        _tool(str(one["name"]), spec, one["input_schema"], str(one.get("description") or ""), str(one["name"]))
        for one in resource.tools
    )


def _tool(name: str, spec: ActSpec, schema: Any, description: str, called: str | None) -> Tool:
    """A tool of the world; `called` is its name where it is one of the server's own."""

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        world: ServerWorld = call.resources[spec.resource]
        action = {"type": "call_tool", "tool_name": called, "arguments": arguments} if called else arguments
        paid = await world.step(action, call.turn, call.deadline)
        value = {"reward": paid, "done": world.terminated or world.truncated}
        if isinstance(error := world.observation.get("error"), Mapping) and called:
            reason = "server_error" if error.get("error_type") in _OF_THE_SERVER else "failed"
            raise ToolFailed(str(error.get("message") or world.text)[:_SHOWN_CHARS], reason=reason)
        return ToolOutput(world.text, value)

    parameters = {key: value for key, value in schema.items() if key not in ("title", "description")}
    properties = {key: value for key, value in (schema.get("properties") or {}).items() if key != "metadata" or called}
    return Tool(
        name=name,
        description=spec.description or description,
        parameters={**without_unreadable_patterns(parameters), "type": "object", "properties": properties},
        run=run,
        mode="async",
        ends=ends_with(spec.resource),
        **{**common(spec), "mutates": True},
    )


RESOURCE = Kind(OpenEnvSpec, compile_openenv)
TOOL = Kind(ActSpec, compile_act, is_local=False)
