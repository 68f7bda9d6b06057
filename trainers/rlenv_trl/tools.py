"""TRL's `environment_factory`: TRL owns the loop, the chat template and the reading of calls; a method is a tool.

For policies whose template TRL knows. The prompts are TRL's own rendering, and a call is what TRL reads as one: the
dialect of the spec has no say. `rlenv_trl.Rollout` is exact.
"""

from __future__ import annotations

import asyncio
import keyword
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, Signature
from typing import Any, Final

from rlenv.concurrency.threads import run_sync
from rlenv.episodes.environment import Environment
from rlenv.episodes.tool_session import ToolSession
from rlenv.errors import UsageError
from rlenv.hosts.session import require_alone
from rlenv.messages import Message
from rlenv.trajectory import Trajectory
from rlenv_train.player import addresses
from rlenv_trl.rollout import require_only

_TYPES: Final = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_KNOWN: Final = frozenset(("type", "description", "default", "title"))
_RESERVED: Final = ("reset", "get_reward")
_OVER: Final = "The episode is over."


def environment_rows(
    environment: Environment, split: str, *, seed: int = 0, count: int | None = None
) -> list[dict[str, Any]]:
    """The rows of a data set for `environment_class`: the whole prompt, and the address of its episode.

    Args:
        seed: of all episodes alike; the samples of a task share it.
        count: so many tasks, evenly over the groups; all for None.

    Raises:
        UsageError: no such split, or a prompt that only an episode can say, since resources or a user speak in it.
    """

    async def prompts() -> list[dict[str, Any]]:
        rows = []
        for address in addresses(environment, split, seed=seed, count=count):
            async with environment.start(task=address.task, split=split, seed=seed) as episode:
                if episode.is_ended:
                    raise UsageError(f"task {address.task} of '{split}' does not open: {episode.trajectory.failure}")
                prompt = [message.as_dict() for message in episode.messages]
            rows.append({"prompt": prompt, "environment": address.spec, **address.as_dict()})
        return rows

    return run_sync(prompts)


def environment_class(environment: Environment) -> type:
    """The class of which TRL's `environment_factory` makes instances, one a sample.

        GRPOTrainer(…, environment_factory={env.spec.name: rlenv_trl.environment_class(env)},
                    train_dataset=Dataset.from_list(rlenv_trl.environment_rows(env, "train")),
                    reward_funcs=rlenv_trl.environment_reward)

    Each public method is a tool of the spec, whose schema TRL makes of its signature and docstring.

    Raises:
        UsageError: a tool whose schema a signature cannot say, or whose name no method may have; or the spec has a
            simulated user, tools that differ by row, or terms that compare samples.
    """
    require_alone(environment, "TRL's own loop scores each sample", "use rlenv_trl.Rollout")
    if environment.toolsets.is_by_row:
        raise UsageError(f"{environment.spec.name} has tools that differ by row", hint="use rlenv_trl.Rollout")

    class Played(_Session):
        _environment = environment

    Played.__name__ = Played.__qualname__ = "".join(word.title() for word in environment.spec.name.split("-"))
    for schema in environment.tool_schemas:
        function = schema["function"]
        setattr(Played, function["name"], _make_method(function))
    ToolSession(environment)  # a spec that cannot be played so is told here
    return Played


def environment_reward(
    completions: Sequence[Sequence[Mapping[str, Any]]], environments: Sequence[_Session], **columns: Any
) -> list[float | None]:
    """TRL's reward function for `environment_class`: each episode's reward, None where it is invalid.

    Raises:
        UsageError: the trainer has other reward functions beside this.
    """
    trainer = getattr(columns.get("log_metric"), "__self__", None)  # TRL hands on nothing else of itself
    if trainer is not None:
        require_only(environment_reward, trainer.reward_funcs)

    async def ends() -> list[Trajectory]:
        pairs = zip(environments, completions, strict=True)
        return await asyncio.gather(*[one._finish(said) for one, said in pairs])

    found = run_sync(ends)
    log = columns.get("log_metric")
    if log is not None:
        log("rlenv/invalid", float(sum(one.reward.total is None for one in found)))
        for success in (one.success for one in found if one.success is not None):
            log("rlenv/success", float(success))  # TRL gives their mean over all batches
    return [one.reward.total for one in found]


class _Session:
    """One instance of TRL's pool: reset again for each sample that it plays."""

    _environment: Environment
    _session: ToolSession | None = None

    def reset(self, *, task: int, split: str, seed: int = 0, **_row: Any) -> None:
        """Begins the episode of a row; the prompt stands in the row already."""
        run_sync(self._begin, int(task), split, int(seed))

    async def _begin(self, task: int, split: str, seed: int) -> None:
        if self._session is not None:
            await self._session.aclose()
        self._session = ToolSession(self._environment, task=task, split=split, seed=seed)
        await self._session.open()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        session = self._session
        if session is None:
            raise UsageError("reset comes before the first call")
        return _OVER if session.episode.is_ended else run_sync(session.call, name, arguments).text

    async def _finish(self, said: Sequence[Mapping[str, Any]]) -> Trajectory:
        session = self._session
        if session is None:
            raise UsageError("reset comes before the reward")
        return await session.finish([_to_message(one) for one in said])


def _to_message(said: Mapping[str, Any]) -> Mapping[str, Any] | Message:
    """A message of TRL's with its calls in OpenAI's form: TRL leaves out ids, and the text of a cut answer."""
    calls = said.get("tool_calls")
    if said.get("role") != "assistant":
        return {**said, "content": said.get("content") or ""}
    made = [_call(at, call) for at, call in enumerate(calls if isinstance(calls, (list, tuple)) else ())]
    return {"role": "assistant", "content": said.get("content") or "", **({"tool_calls": made} if made else {})}


def _call(at: int, call: Any) -> dict[str, Any]:
    """A call as TRL has parsed it, which may be any JSON where TRL did not run it: then it names no tool."""
    held = dict(call) if isinstance(call, Mapping) else {}
    given = held.get("function")
    function = given if isinstance(given, Mapping) else {"arguments": repr(call)}
    return {"id": f"call_{at}", "type": "function", **held, "function": function}


def _make_method(function: Mapping[str, Any]) -> Callable[..., str]:
    """The method of a tool, with the signature and the docstring that say its schema."""
    name, parameters = str(function["name"]), function.get("parameters") or {}
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in _RESERVED:
        raise UsageError(f"the tool '{name}' has no name that a method may have", hint="use rlenv_trl.Rollout")
    required = set(parameters.get("required") or ())
    signed, lines = [], []
    for key, schema in (parameters.get("properties") or {}).items():
        kind = _TYPES.get(str(schema.get("type"))) if schema.keys() <= _KNOWN else None
        if kind is None or not key.isidentifier() or keyword.iskeyword(key):
            raise UsageError(
                f"the schema of {name}.{key} is more than a method's signature says: {dict(schema)!r:.200}",
                hint="use rlenv_trl.Rollout, which shows the tool's own schema",
            )
        default = Parameter.empty if key in required else schema.get("default")
        signed.append(Parameter(key, Parameter.KEYWORD_ONLY, annotation=kind, default=default))
        lines.append(f"    {key}: {schema.get('description') or key}")

    def method(self: _Session, **arguments: Any) -> str:
        return self._call(name, arguments)

    method.__name__ = method.__qualname__ = name
    method.__annotations__ = {one.name: one.annotation for one in signed} | {"return": str}
    first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    with suppress(AttributeError):
        method.__signature__ = Signature([first, *signed], return_annotation=str)  # type: ignore[attr-defined]
    about = str(function.get("description") or name)
    method.__doc__ = "\n".join([about, "", "Args:", *lines]) if lines else about
    return method
