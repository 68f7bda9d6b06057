"""Episodes to warm-start on: the oracle's own, and flawed ones derived from it.

The flaws need no knowledge of the spec beyond its oracle: they are edits of the oracle's actions. Every observation
in a lesson is what the environment answered to that action. A lesson whose calls are the oracle's own takes the
observations of the oracle's episode; only one with edited calls is an episode of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rlenv import dialects
from rlenv.calls.executor import Executor
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, acting, context_of, play
from rlenv.errors import PolicyError, UsageError
from rlenv.messages import Message, Observation, ToolCall
from rlenv.policies.base import Policy, PolicySession
from rlenv.rewards.scorer import Scorer
from rlenv.tools.base import ToolContext, ToolOutput
from rlenv.users.base import UserContext

_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\d\s)])[-+*/<>](?=[\d\s(])")
_VALUE = re.compile(r"\d+|[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_HERMES = dialects.get("hermes")


def random_digits(text: str, rng: random.Random) -> str:
    """`text` with every number replaced by a random one of as many digits, without a leading zero."""
    return _NUMBER.sub(lambda match: _number(rng, len(match.group())), text)


def _number(rng: random.Random, digits: int) -> str:
    low = 10 ** (digits - 1)
    return str(rng.randrange(low if digits > 1 else 0, 10 * low))


def has_operator(text: str) -> bool:
    """True if there is an arithmetic sign or a comparison between two operands."""
    return _OPERATOR.search(text) is not None


def exchange_operators(text: str, rng: random.Random) -> str:
    """`text` with each of its operators exchanged for another."""
    return _OPERATOR.sub(lambda match: rng.choice([sign for sign in "+-*" if sign != match.group()]), text)


def reword(text: str, like: str) -> str | None:
    """The wording of `like` around the numbers and names of `text`.

    None where that cannot be: the two differ in how many numbers and names they hold, or not in their wording.
    """
    values, frame = _VALUE.findall(text), _VALUE.split(like)
    if len(frame) != len(values) + 1 or frame == _VALUE.split(text):
        return None
    return frame[0] + "".join(value + piece for value, piece in zip(values, frame[1:], strict=True))


def edit_calls(action: str, edit: Callable[[str], str]) -> str:
    """`action` with `edit` applied to the text arguments of its calls."""
    out, end = "", 0
    for call in calls_of(action):
        arguments = {key: edit(value) if isinstance(value, str) else value for key, value in call.arguments.items()}
        out += action[end : call.start] + call_text(call.name, arguments)
        end = call.end
    return out + action[end:]


def calls_of(action: str) -> Sequence[ToolCall]:
    """The calls in an action that the oracle wrote."""
    return [call for call in _HERMES.parse(action).calls if isinstance(call, ToolCall)]


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the Hermes format."""
    return _HERMES.render_action(Message("assistant", "", (ToolCall(name, arguments),)))


_TAG = re.compile(r"</?[A-Za-z_]+>|\\boxed\{|\}$")
STAND_IN = "Please go on."
"""What a model of the spec (a tool, an agent, a user) says in the warm start, which asks none."""


class Flaw(Enum):
    """The flaw of a lesson; NONE is the oracle's own episode."""

    NONE = "none"
    DRILL = "drill"
    """Calls with other numbers: real results without end, to practise reading them. Only what follows the first result
    is trained, since the call does not fit the question."""
    GUESS = "guess"
    """An answer without a call."""
    STOPS_EARLY = "stops_early"
    """What the last call should have asked about is given as the answer."""
    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENT = "wrong_argument"
    """Calls with other operators; where there are none, those of another task, and its answer."""
    WRONG_QUESTION = "wrong_question"
    """The right calls, and the answer to another question about the same names and numbers."""
    NO_ANSWER_TAG = "no_answer_tag"
    IGNORED_RESULT = "ignored_result"


MIXTURE: Mapping[Flaw, float] = {
    # The most likely behaviour is to guess, so that the greedy policy fails; the right one is a minority that
    # reinforcement learning has to select. Guesses are random, so they teach nothing about the answers.
    Flaw.GUESS: 0.54,
    Flaw.WRONG_TOOL: 0.06,
    Flaw.WRONG_ARGUMENT: 0.08,
    Flaw.NO_ANSWER_TAG: 0.04,
    Flaw.IGNORED_RESULT: 0.04,
    Flaw.NONE: 0.24,
    # Beside the others only where a task has room for them: see `mixture`.
    Flaw.STOPS_EARLY: 0.20,
    Flaw.WRONG_QUESTION: 0.12,
}


EDITS_CALLS = frozenset({Flaw.DRILL, Flaw.WRONG_TOOL, Flaw.WRONG_ARGUMENT})
"""The flaws whose lessons have to be played; the others repeat the oracle's own calls."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The oracle's episode on one task, whose last action answers.

    `prompt` is the first messages, `tools` the JSON schemas that it shows, `turns` the actions with what each was
    answered (None for the last), `last_result` the text of the last result ("" where it called nothing), `answer` what
    the environment read in its last action.
    """

    task_index: int
    seed: int
    prompt: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[tuple[str, Observation | None], ...]
    last_result: str
    answer: str

    @property
    def actions(self) -> tuple[str, ...]:
        """The oracle's actions, turn by turn."""
        return tuple(action for action, _ in self.turns)


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode to learn from.

    `prompt` is the first messages, `tools` the JSON schemas that it shows; `turns` are the actions with the observation
    each got (None for the last).
    `trained` has one entry a turn: whether the policy learns to write that action.
    """

    flaw: Flaw
    prompt: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[tuple[str, Observation | None], ...]
    trained: tuple[bool, ...]


def asked_models(environment: Environment) -> tuple[str, ...]:
    """The entries of a spec that ask a model for what the policy reads: tools, agents, and the user."""
    spec = environment.spec
    tools = (f"tools.{name}" for name, entry in spec.tools.items() if hasattr(entry, "endpoint"))
    return (*tools, "user") if hasattr(spec.user, "endpoint") else tuple(tools)


@dataclass(slots=True)
class _User:
    """Goes on until the oracle has said all that it has to say."""

    stop: str | None = None

    def start(self, context: UserContext) -> _User:
        """One episode's, which is as any other's."""
        return self

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        """The stand-in's words; None where the oracle's script is over."""
        return None if getattr(acting.get(), "is_over", False) else STAND_IN


@contextmanager
def without_models(environment: Environment, *, is_scored: bool = True) -> Iterator[bool]:
    """While entered, no episode of `environment` asks a model.

    Tools, agents and users that are models are answered for with the same few words. Nothing is scored where that is
    so, where a judge would be asked, or where `is_scored` is False. Gives whether episodes are scored.
    """
    parts, executor = environment.parts, environment.executor
    models = asked_models(environment)
    scores = is_scored and not environment.spec.endpoints

    async def answer(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return ToolOutput(STAND_IN, STAND_IN)

    tools = {
        name: replace(tool, run=answer, mode="async") if f"tools.{tool.entry}" in models else tool
        for name, tool in parts.tools.items()
    }
    user = _User() if "user" in models else parts.simulated
    environment.parts = replace(parts, simulated=user, scorer=parts.scorer if scores else Scorer((), success=None))
    if models:
        environment.use_tools(tools, Executor(tools, calls=environment.spec.calls))
    try:
        yield scores
    finally:
        if models:
            environment.executor.close()
        environment.parts = parts
        environment.use_tools(parts.tools, executor)


async def gold_of(
    environment: Environment, oracle: Policy, *, task: int, split: str, seed: int, is_scored: bool = True
) -> Gold | None:
    """The oracle's episode on one task; None where another player ended it before the oracle's turn came.

    Raises:
        UsageError: the oracle does not solve its own task, so there is nothing right to learn from it. Where the
            environment is not scored, it is enough that the episode ends by itself.
    """
    trajectory = await play(environment, oracle, Job(split, task, seed))
    # A function that has nothing left to say is known to be over once it was asked.
    is_said = trajectory.reason == PolicyError.reason and getattr(acting.get(), "is_over", False)
    if environment.players is not None:
        if trajectory.terminated and not trajectory.turns:
            return None
        is_scored = False  # who plays well may lose
    if not (trajectory.success if is_scored else trajectory.turns and (trajectory.terminated or is_said)):
        why = trajectory.failure.message if trajectory.failure is not None else f"it ended with '{trajectory.reason}'"
        raise UsageError(
            f"the oracle of {environment.spec.name} does not solve task {task} of '{split}': {why}",
            hint=f"{', '.join(models)}: no model is asked here, and '{STAND_IN}' is said for it; train a model of your "
            "own with --model PATH"
            if (models := asked_models(environment))
            else "",
        )
    results = [result.text for turn in trajectory.turns for result in turn.results]
    *before, last = trajectory.turns
    turns = (*((turn.action, turn.observation) for turn in before), (last.action, None))
    tools = environment.toolsets.of(trajectory.task).schemas
    last_result, answer = results[-1] if results else "", trajectory.answer or ""
    return Gold(task, seed, trajectory.messages, tools, turns, last_result, answer)


def has_room(flaw: Flaw, gold: Gold, *, other: Gold) -> bool:
    """True if the oracle's episode can be flawed in this way, with `other` as the other task."""
    *calls, final = gold.actions
    if flaw is Flaw.DRILL:
        return any(random_digits(call, random.Random(0)) != call for call in calls)
    if flaw is Flaw.WRONG_TOOL:
        return bool(calls) and bool(_other_tools(gold.tools, calls[0]))
    if flaw is Flaw.WRONG_ARGUMENT:
        return any(has_operator(text) for call in calls for text in _call_texts(call)) or (
            len(other.actions) > 1 and other.actions[:-1] != gold.actions[:-1]
        )
    if flaw is Flaw.STOPS_EARLY:
        return len(calls) > 1 and bool(gold.answer) and bool(_call_texts(calls[-1]))
    if flaw is Flaw.WRONG_QUESTION:
        return bool(calls) and reword(final, other.actions[-1]) is not None
    return True


def mixture(gold: Gold, *, other: Gold) -> Mapping[Flaw, float]:
    """The share of each flaw for one task. Guesses keep theirs; the flaws that have room share the rest."""
    rest = {
        flaw: share for flaw, share in MIXTURE.items() if flaw is not Flaw.GUESS and has_room(flaw, gold, other=other)
    }
    left = (1 - MIXTURE[Flaw.GUESS]) / sum(rest.values())
    return {Flaw.GUESS: MIXTURE[Flaw.GUESS], **{flaw: share * left for flaw, share in rest.items()}}


async def make_lesson(
    environment: Environment, oracle: Policy, gold: Gold, flaw: Flaw, *, split: str, rng: random.Random, other: Gold
) -> Lesson | None:
    """The oracle's episode with a flaw in it; the last action is written and not taken, so that nothing is scored.

    None where the environment failed, or the oracle's script does not fit what its edited calls were answered.

    Args:
        environment: the compiled spec; it is played for a flaw that `EDITS_CALLS`, and no other.
        flaw: what to get wrong; it `has_room`.
    """
    if flaw not in EDITS_CALLS:
        kept = {Flaw.GUESS: 0, Flaw.STOPS_EARLY: len(gold.turns) - 2}.get(flaw, len(gold.turns) - 1)
        own = (*gold.turns[:kept], (_final_action(gold.actions[-1], flaw, gold, other, rng), None))
        return Lesson(flaw, gold.prompt, gold.tools, own, (True,) * len(own))
    script = other if flaw is Flaw.WRONG_ARGUMENT and not _has_operators(gold) else gold
    calls = 1 if flaw is Flaw.WRONG_TOOL else len(script.turns) - 1
    turns: list[tuple[str, Observation | None]] = []
    learns = flaw is not Flaw.DRILL
    async with environment.start(task=gold.task_index, split=split, seed=gold.seed) as episode:
        messages = list(gold.prompt)
        session = oracle.start(context_of(episode))
        for index in range(calls):
            try:
                done = script.actions[index] if script is other else str(await session.act(messages))
            except PolicyError:
                return None
            action = _edit_call(done, flaw, episode.tool_schemas, rng)
            step = await episode.step(action)
            turns.append((action, step.observation))
            if step.is_last:
                break
            messages += [Message("assistant", action), *step.observation.messages]
        else:
            said = gold.actions[-1]
            if flaw is not Flaw.WRONG_TOOL:
                said = other.actions[-1] if script is other else await _act_on_results(session, messages, gold)
                learns = learns or said != gold.actions[-1]
            turns.append((_final_action(said, flaw, gold, other, rng), None))
        if episode.failure is not None:
            return None
    trained = (learns and (index > 0 or flaw is not Flaw.DRILL) for index in range(len(turns)))
    return Lesson(flaw, gold.prompt, gold.tools, tuple(turns), tuple(trained))


async def _act_on_results(session: PolicySession, messages: Sequence[Message], gold: Gold) -> str:
    """The oracle's action on results that are not its own; its own last action where that does not depend on them."""
    final = gold.actions[-1]
    try:
        said = str(await session.act(messages))
    except PolicyError:  # its script has no words for such a result, an error for example
        return final
    if said == final and gold.last_result:
        said = final.replace(gold.last_result, messages[-1].content)
    return said


def _edit_call(action: str, flaw: Flaw, schemas: Sequence[Mapping[str, Any]], rng: random.Random) -> str:
    """One of the oracle's calls with the flaw in it."""
    if flaw is Flaw.WRONG_TOOL:
        return _other_call(schemas, action, rng)
    if flaw is Flaw.WRONG_ARGUMENT:
        return edit_calls(action, lambda text: exchange_operators(text, rng))
    if flaw is Flaw.DRILL:
        return edit_calls(action, lambda text: random_digits(text, rng))
    return action


def _final_action(said: str, flaw: Flaw, gold: Gold, other: Gold, rng: random.Random) -> str:
    """The last action, where the oracle would have `said` something."""
    final = gold.actions[-1]
    if flaw in (Flaw.GUESS, Flaw.WRONG_TOOL, Flaw.IGNORED_RESULT) or (flaw is Flaw.WRONG_ARGUMENT and said == final):
        digits = random_digits(final, rng)
        return digits if digits != final else other.actions[-1]
    if flaw is Flaw.STOPS_EARLY:
        return final.replace(gold.answer, _call_texts(gold.actions[-2])[0])
    if flaw is Flaw.WRONG_QUESTION:
        return reword(final, other.actions[-1]) or final
    return "The answer is " + _TAG.sub("", final).strip() if flaw is Flaw.NO_ANSWER_TAG else said


def _has_operators(gold: Gold) -> bool:
    return any(has_operator(text) for call in gold.actions[:-1] for text in _call_texts(call))


def _call_texts(action: str) -> list[str]:
    """The text arguments of an action's calls."""
    return [value for call in calls_of(action) for value in call.arguments.values() if isinstance(value, str)]


def _other_tools(schemas: Sequence[Mapping[str, Any]], action: str) -> list[Mapping[str, Any]]:
    """The tools that an action does not call."""
    used = {call.name for call in calls_of(action)}
    return [schema["function"] for schema in schemas if schema["function"]["name"] not in used]


def _other_call(schemas: Sequence[Mapping[str, Any]], action: str, rng: random.Random) -> str:
    """A call of a tool that the oracle's action does not use, with its text arguments taken from there."""
    tool = rng.choice(_other_tools(schemas, action))
    required = tool.get("parameters", {}).get("required", [])
    return call_text(tool["name"], dict.fromkeys(required, (_call_texts(action) or [""])[0]))
