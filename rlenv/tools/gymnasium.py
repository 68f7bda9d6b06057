"""Worlds that speak Gymnasium: the resource that holds one, and the tool that takes its steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

import gymnasium
import numpy as np
import orjson
from gymnasium import spaces

from rlenv.errors import EpisodeError, ToolFailed, UsageError, under
from rlenv.language.functions import failure, import_function
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import ResourceSpec, Text, ToolSpec
from rlenv.language.templates import Template, TemplateError, compile_value, template_of, texts_at
from rlenv.resources.base import PythonResource, ResourceContext
from rlenv.tools.base import WORLD, Tool, ToolContext, ToolOutput, common, ends_with, show_safely

_MARKED: Final = re.compile(r"\x1b\[4\dm(.*?)\x1b\[0m")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumSpec(ResourceSpec):
    """A world with the methods of `gymnasium.Env`: one that Gymnasium knows by `id`, or one that `function` makes.

    Each episode makes, resets and closes its own. Templates and rewards read its `text`, `observation`, `info`,
    `total` (the sum of what its steps paid), `rewards` (the same by turn), `steps`, `terminated` and `truncated`.
    """

    kind: Literal["gymnasium"]
    id: Text | None = None
    """As `gymnasium.make` takes it: `FrozenLake-v1`, or `module:NAME` for a package that registers its worlds."""
    function: Text | None = None
    """In place of `id`: `file.py:Class` or `module:function`."""
    arguments: Mapping[str, Any] = {}
    """Arguments by name, of `gymnasium.make` or of the function; texts are templates over `task` and `vars`."""
    seed: Any = None
    """In place of the episode's seed, such as `{{ task.seed }}`: all episodes of a task begin alike then."""
    text: Text | None = None
    """What the policy sees of a state: a template over `observation`, `info`, `render`, `task` and `vars`. By default
    the observation if it is a text, what the world draws as text if it does, else the observation as JSON."""
    run_in: Literal["loop", "thread"] = "thread"
    """Where the world runs: `thread` where it may block; `loop` for a quick one."""


class StepSpec(ToolSpec):
    """Takes a step of a world, with the one argument `action`; the world's end is the episode's."""

    kind: Literal["gymnasium"]
    resource: Text
    """The world: the name of a resource of kind gymnasium."""
    actions: tuple[Text, ...] | None = None
    """Names of the actions, in the order of their numbers; of a world that takes texts, the texts to choose from."""


class World:
    """An opened world: what its last step left, and what its steps paid.

    `total` is NaN while a step is under way, and for ever after one that did not come back: nobody knows what it paid.
    """

    def __init__(self, made: Any, show: Callable[[World], str], *, seed: int) -> None:
        self._step, self._show = made.step, show
        self.observation, self.info = made.reset(seed=seed)
        self.total, self.steps, self.terminated, self.truncated = 0.0, 0, False, False
        self.rewards: dict[int, float] = {}
        self.text = show(self)

    def step(self, action: Any, turn: int) -> float:
        """Takes a step; gives what it paid.

        Raises:
            ToolFailed: the world refuses the action or fails over it, and the policy is told; it paid nothing.
            EpisodeError: what the world stands on is gone (OSError), or it has not come back from an earlier step.
        """
        total, self.total = self.total, math.nan
        if math.isnan(total):
            raise EpisodeError("the world has not come back from an earlier step", reason="resource")
        try:
            self.observation, reward, *ended, self.info = self._step(action)
            self.terminated, self.truncated = map(bool, ended)  # of several worlds at once they have no truth
            if not math.isfinite(paid := float(reward)):
                raise ValueError(f"it paid {paid}")
            self.text = show_safely(partial(self._show, self))
        except OSError as error:  # what the world stands on is gone
            raise EpisodeError(f"the world failed: {failure(error)}", reason="resource") from error
        except (Exception, SystemExit) as error:  # an action may break a world in any way, and evades no bad score
            self.total = total
            if isinstance(error, ToolFailed):
                raise
            raise ToolFailed(f"the world failed: {failure(error)}") from error
        self.total, self.steps = total + paid, self.steps + 1
        self.rewards[turn] = self.rewards.get(turn, 0.0) + paid
        return paid


@dataclass(frozen=True, slots=True)
class WorldResource:
    """A compiled `gymnasium` entry. `space` is the action space of the first row's world, None where it names none."""

    template_attributes: ClassVar = WORLD
    name: str
    open: Callable[[ResourceContext], AbstractAsyncContextManager[World]]
    space: Any
    run_in: Literal["loop", "thread"]
    scope: Literal["episode"] = "episode"


def compile_gymnasium(name: str, spec: GymnasiumSpec, context: CompileContext) -> WorldResource:
    """The resource of one entry. A world of the first row is made for it, to learn its actions.

    Raises:
        UsageError: there is no such world, it cannot be made, or a template does not compile.
    """
    if spec.scope == "process":
        raise UsageError("a world is an episode's own", key="scope", hint="leave it out")
    make, given = _find_maker(spec, context)
    for key, source in (*texts_at("args", spec.arguments), *texts_at("seed", spec.seed)):
        template_of(source, key=key, names=("task", "vars"))
    names = ("observation", "info", "render", "task", "vars")
    text = template_of(spec.text, key="text", names=names) if spec.text is not None else None
    args_of, seed_of = compile_value(spec.arguments), compile_value(spec.seed)

    def load(task: Mapping[str, Any], seed: int, vars: Mapping[str, Any]) -> Iterator[World]:
        with closing(make(**{**given, **args_of(task=task, vars=vars)})) as made:
            own = seed_of(task=task, vars=vars)
            yield World(made, _make_view(made, text, task=task, vars=vars), seed=seed if own is None else own)

    try:
        first = make(**{**given, **args_of(task=context.row(), vars=context.vars)})
        first.close()
    except TemplateError as error:
        raise UsageError(f"the arguments cannot be made of the first row: {error}", key="args") from error
    except Exception as error:  # a world may fail in any way; Gymnasium's own errors say what is nearest
        raise UsageError(f"the world cannot be made: {failure(error)}", key="id" if spec.id else "function") from error
    if spec.id is not None and "ansi" in first.metadata.get("render_modes", ()):
        given["render_mode"] = "ansi"
    opened = PythonResource(
        name, scope="episode", function=load, parameters=("task", "seed", "vars"), in_thread=spec.run_in == "thread"
    )
    return WorldResource(name, opened.open, getattr(first, "action_space", None), spec.run_in)


def _find_maker(spec: GymnasiumSpec, context: CompileContext) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What makes the world, and arguments that it is given unless the entry says otherwise."""
    if spec.id is not None and spec.function is None:
        # Gymnasium's checks of a world only warn, and take longer than most steps.
        return partial(gymnasium.make, spec.id), {"disable_env_checker": True}
    if spec.function is None or spec.id is not None:
        raise UsageError("a world has either 'id' or 'function'", hint="write id: FrozenLake-v1")
    with under("function"):
        return import_function(spec.function, base=context.bases.get("function", context.base)), {}


def _make_view(made: Any, text: Template | None, **values: Any) -> Callable[[World], str]:
    """A function that writes what the policy sees of a world."""
    draws = getattr(made, "render_mode", None) == "ansi"

    def show(world: World) -> str:
        observation = world.observation
        if text is None and (isinstance(observation, str) or not draws):
            return observation if isinstance(observation, str) else _to_json(observation)
        # What stands on a coloured ground is where the player is.
        render = _COLOUR.sub("", _MARKED.sub(r"[\1]", str(made.render()))) if draws else ""
        return render if text is None else text.text(observation=observation, info=world.info, render=render, **values)

    return show


def _to_json(observation: Any) -> str:
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(observation, default=lambda one: getattr(one, "tolist", one.__str__)(), option=option).decode()


def compile_step(name: str, spec: StepSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `action`. Its value is `{"reward": …, "terminated": …, "truncated": …}`.

    Raises:
        UsageError: the resource does not exist or is no world, or its actions cannot be written.
    """
    resource = context.resource(spec.resource, WorldResource, "gymnasium")
    schema, read = _read_space(resource.space, spec.actions)

    def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        world: World = call.resources[spec.resource]
        paid = world.step(read(arguments["action"]), call.turn)
        value = {"reward": paid, "terminated": world.terminated, "truncated": world.truncated}
        return ToolOutput(world.text, value)

    return (
        Tool(
            name=name,
            description=spec.description or "Take one step.",
            parameters={"type": "object", "properties": {"action": schema}, "required": ["action"]},
            run=run,
            mode="inline" if resource.run_in == "loop" else "thread",
            ends=ends_with(spec.resource),
            **{**common(spec), "mutates": True},
        ),
    )


def _read_space(space: Any, names: Sequence[str] | None) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The schema of an action, and a function that makes the world's own of one; it raises ToolFailed."""

    def check_action(action: Any) -> Any:
        if space is not None and not space.contains(action):
            raise ToolFailed(f"{action!r} is no action of this world: {space}")
        return action

    def to_array(action: Any) -> Any:
        try:
            return check_action(np.asarray(action, dtype=space.dtype))
        except OverflowError as error:  # NumPy takes no number that the array's own type does not hold
            raise ToolFailed(f"{action!r} is no action of this world: {space}") from error

    if names is not None:
        if isinstance(space, spaces.Discrete):
            if len(set(names)) != space.n or len(names) != space.n:
                raise UsageError(f"the world has {space.n} actions; found {len(set(names))}", key="actions")
            numbers = {one: int(space.start) + at for at, one in enumerate(names)}
            return {"type": "string", "enum": list(names)}, numbers.__getitem__
        if space is None or isinstance(space, spaces.Text):
            return {"type": "string", "enum": list(names)}, check_action
        raise UsageError(f"the actions of {space} have no names", key="actions", hint="leave it out")
    if space is None or isinstance(space, spaces.Text):
        return {"type": "string"}, check_action
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}, int
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        schema: dict[str, Any] = {"type": "number" if isinstance(space, spaces.Box) else "integer"}
        for length in reversed(space.shape):
            schema = {"type": "array", "items": schema, "minItems": length, "maxItems": length}
        return schema, to_array
    hint = "give 'function' a gymnasium.ActionWrapper that takes numbers, lists or texts"
    raise UsageError(f"an action of {space} cannot be written as JSON", key="resource", hint=hint)


RESOURCE = Kind(GymnasiumSpec, compile_gymnasium)
TOOL = Kind(StepSpec, compile_step, is_local=True)
