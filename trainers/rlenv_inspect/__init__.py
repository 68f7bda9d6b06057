"""Specs as tasks of Inspect 0.3: its models play them, its logs show them.

    inspect eval rlenv/run -T spec=letters/letters.yaml --model openai/gpt-5 --epochs 4

A sample is a row; its episode is played by the model that Inspect evaluates, with tools, users and judges of the spec.
A reward that cannot be measured is an unscored sample, which no metric counts; an error of the model is one of the
sample, as everywhere in Inspect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from inspect_ai import Task, task
from inspect_ai import model as models
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams
from inspect_ai.util import LimitExceededError

import rlenv
from rlenv.episodes.rollout import drive
from rlenv.hosts.session import require_alone, shown, why_invalid
from rlenv.messages import MalformedCall, Message, Sampled
from rlenv.policies.base import PolicyContext
from rlenv.tasks.rows import seed_of

_CUT: Final = ("max_tokens", "model_length")
_FEW_TOKENS: Final = 16  # the fewest that OpenAI's responses may have
_FIRST_TOKEN_S: Final = 30.0
_MOST_DEPTH: Final = 6
"""Schemas that refer to themselves are written out so deep."""
_Made = TypeVar("_Made", bound=Callable[..., Any])


def _of_rlenv(function: _Made) -> _Made:
    """A function that Inspect names `rlenv/NAME`: it goes by the package of the module."""
    function.__module__ = "rlenv"
    return function


@task
@_of_rlenv
def run(
    spec: str,
    split: str | None = None,
    spec_set: dict[str, Any] | None = None,
    group_terms: Literal["refuse", "drop"] = "refuse",
) -> Task:
    """The rows of a spec's split.

    Args:
        spec: the YAML file, or the name of an environment that ships with rlenv.
        split: by default the first.
        spec_set: replaces keys of the spec, by dotted path.
        group_terms: what becomes of terms that compare the answers to one task; samples are scored one by one here.
    """
    environment = rlenv.load(spec, set=spec_set)
    name = split or next(iter(environment.spec.tasks))
    if group_terms == "refuse":
        require_alone(environment, "Inspect scores each sample", "-T group_terms=drop leaves them out")
    samples = [
        Sample(input=shown(environment, name, index), id=index, metadata={"split": name, "task": index})
        for index in environment.part(name, None)
    ]
    dataset = MemoryDataset(samples, name=f"{environment.spec.name}/{name}")
    return Task(dataset=dataset, solver=play(environment), scorer=[reward(), success()], name=environment.spec.name)


@solver
@_of_rlenv
def play(environment: rlenv.Environment) -> Solver:
    """Plays the episode of a sample to its end; epochs are samples of its task, with the seeds of `rlenv eval`."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        split, index = state.metadata["split"], state.metadata["task"]
        policy = _Policy(state)
        seed = seed_of(0, split, index, state.epoch - 1)
        others = environment.opponent or _Policy(None)
        async with environment.start(task=index, split=split, seed=seed, others=others) as episode:
            limit: LimitExceededError | None = None
            try:
                ended = await drive(episode, policy, limit_s=episode.limits.episode_s)
            except LimitExceededError as error:  # the policy has used up what Inspect gives it, and is scored
                ended, limit = await episode.truncate("host"), error
        state.metadata["rlenv"] = {**ended.outcome(), "answer": ended.answer}
        last = ended.turns[-1].observation if ended.turns else None
        if last is not None:
            state.messages += [_to_inspect(message) for message in last.messages]
        if limit is not None:
            raise limit
        return state

    return solve


def _score_of(state: TaskState, value: Callable[[Mapping[str, Any]], float | None]) -> Score:
    end = state.metadata.get("rlenv")
    if end is None or end["total"] is None:
        return Score.unscored(reason="scoring_failed", explanation=why_invalid(end), metadata=end)
    measured = value(end)
    if measured is None:
        return Score.unscored(reason="scoring_failed", explanation="the spec does not say", metadata=end)
    return Score(value=measured, answer=end["answer"], explanation=end["reason"], metadata=end)


@scorer(metrics=[mean(), stderr()])
@_of_rlenv
def reward() -> Scorer:
    """The total of the spec's reward; unscored where it is invalid."""

    async def score(state: TaskState, target: Target) -> Score:
        return _score_of(state, lambda end: float(end["total"]))

    return score


@scorer(metrics=[mean(), stderr()])
@_of_rlenv
def success() -> Scorer:
    """1 where the episode succeeded, 0 where not; unscored where the reward is invalid."""

    async def score(state: TaskState, target: Target) -> Score:
        return _score_of(state, lambda end: None if end["success"] is None else float(end["success"]))

    return score


class _Policy:
    """The model that Inspect evaluates, as the policy of one sample, and once started of one player. What it says
    stands in the sample's log; another player's does not (None)."""

    name = "inspect"

    def __init__(self, state: TaskState | None, tools: Sequence[ToolInfo] = ()) -> None:
        self._state, self._tools = state, [*tools]
        self._said: dict[int, tuple[Message, models.ChatMessageAssistant]] = {}
        self._shown: list[models.ChatMessage] = []

    def start(self, context: PolicyContext) -> _Policy:
        return _Policy(self._state, [_to_tool(schema["function"]) for schema in context.tools])

    async def aclose(self) -> None:
        return None

    async def act(self, messages: Sequence[Message]) -> Sampled:
        """The model's next message; what Inspect's models need of their own earlier ones is given back as it was."""
        shown: list[models.ChatMessage] = []
        for index, message in enumerate(messages):
            kept = self._said.get(index)
            shown.append(kept[1] if kept is not None and kept[0] == message else _to_inspect(message))
        self._shown, state = shown, self._state
        if state is not None:
            state.messages = shown
        output = await models.get_model().generate(shown, tools=self._tools)
        if state is not None:
            state.output, state.messages = output, [*shown, output.message]
        said = _to_rlenv(output.message)
        self._said[len(messages)] = (said, output.message)
        return Sampled(said, "length" if output.stop_reason in _CUT else str(output.stop_reason))

    async def late(self) -> str:
        """What keeps the model from its first tokens, as a provider's limit of rate does; as `drive` asks."""
        config = models.GenerateConfig(max_tokens=_FEW_TOKENS, max_retries=0)
        try:
            async with asyncio.timeout(_FIRST_TOKEN_S):
                await models.get_model().generate(self._shown, tools=self._tools, config=config)
        except LimitExceededError:
            return ""
        except Exception as error:  # the boundary: what a provider's library raises
            return f"the model gives no first tokens ({type(error).__name__})"
        return ""


def _to_rlenv(message: models.ChatMessageAssistant) -> Message:
    calls = tuple(
        MalformedCall("", call.parse_error, name=call.function, id=call.id)
        if call.parse_error
        else rlenv.ToolCall(call.function, call.arguments, call.id)
        for call in message.tool_calls or ()
    )
    return Message("assistant", message.text, calls)


def _to_inspect(message: Message) -> models.ChatMessage:
    if message.role == "system":
        return models.ChatMessageSystem(content=message.content)
    if message.role == "assistant":
        calls = [
            ToolCall(call.id or "", call.name or "", dict(call.arguments) if isinstance(call, rlenv.ToolCall) else {})
            for call in message.tool_calls
        ]
        return models.ChatMessageAssistant(content=message.content, tool_calls=calls or None)
    content: str | list[models.Content] = message.content
    if message.images:
        shown = [{"type": "image", "image": f"data:{one.mime};base64,{one.base64}"} for one in message.images]
        made: dict[str, Callable[[dict[str, Any]], models.Content]] = {
            "image": lambda part: models.ContentImage(image=part["image"]),
            "text": lambda part: models.ContentText(text=part["text"]),
        }
        content = [made[part["type"]](part) for part in message.parts(shown)]
    if message.role == "tool":
        return models.ChatMessageTool(content=content, tool_call_id=message.tool_call_id, function=message.name)
    return models.ChatMessageUser(content=content)


def _to_tool(function: Mapping[str, Any]) -> ToolInfo:
    schema = _inline_refs(function.get("parameters") or {}, function.get("parameters") or {}, 0)
    known = {name: schema[name] for name in ("properties", "required", "additionalProperties") if name in schema}
    parameters = ToolParams.model_validate(known)
    return ToolInfo(name=function["name"], description=function.get("description") or "", parameters=parameters)


def _inline_refs(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """A schema in the words that Inspect's `JSONSchema` has, with what it refers to written out."""
    if not isinstance(schema, Mapping):
        return schema
    if isinstance(place := schema.get("$ref"), str) and place.startswith("#/"):
        found: Any = root
        for part in place[2:].split("/"):
            found = found.get(part, {}) if isinstance(found, Mapping) else {}
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        return _inline_refs({**found, **rest}, root, depth + 1) if depth < _MOST_DEPTH else {}
    made = {name: value for name, value in schema.items() if name not in ("$defs", "definitions", "oneOf", "const")}
    if "oneOf" in schema:
        made["anyOf"] = schema["oneOf"]
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if isinstance(made.get("properties"), Mapping):
        made["properties"] = {name: _inline_refs(one, root, depth + 1) for name, one in made["properties"].items()}
    if isinstance(made.get("anyOf"), Sequence):
        made["anyOf"] = [_inline_refs(one, root, depth + 1) for one in made["anyOf"]]
    for name in ("items", "additionalProperties"):
        if isinstance(made.get(name), Mapping):
            made[name] = _inline_refs(made[name], root, depth + 1)
    if not isinstance(made.get("items", {}), Mapping):  # `items: false` and lists of schemas are no word of it
        del made["items"]
    return made
