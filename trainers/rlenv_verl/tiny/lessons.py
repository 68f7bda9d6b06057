"""Episodes to warm-start on: the oracle's own, and flawed ones derived from it, each stepped through the environment.

The flaws need no knowledge of the spec beyond its oracle: they are edits of the oracle's actions. Every observation
in a lesson is what the real environment answered to the edited action.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlenv.episodes.drive import context_of
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, play
from rlenv.errors import UsageError
from rlenv.language.templates import TemplateError
from rlenv.messages import Message, Observation
from rlenv.policies.base import Policy, PolicySession
from rlenv_verl.tiny.edits import (
    call_text,
    calls_of,
    edit_calls,
    exchange_operators,
    has_operator,
    random_digits,
    reworded,
)

__all__ = ["MIXTURE", "Flaw", "Gold", "Lesson", "gold_of", "has_room", "make_lesson", "mixture"]

_TAG = re.compile(r"</?[A-Za-z_]+>|\\boxed\{|\}$")


class Flaw(Enum):
    """What is wrong with a lesson; NONE is the oracle's own episode."""

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


@dataclass(frozen=True, slots=True)
class Gold:
    """The oracle's actions for one task, of which the last one answers.

    `last_result` is the text of the last result it saw ("" where it called nothing), `answer` what the environment
    read in its last action.
    """

    task_index: int
    seed: int
    actions: tuple[str, ...]
    last_result: str
    answer: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode to learn from.

    `prompt` is the first messages; `turns` are the actions with the observation each got (None for the last).
    `trained` has one entry a turn: whether the policy learns to write that action.
    """

    flaw: Flaw
    prompt: tuple[Message, ...]
    turns: tuple[tuple[str, Observation | None], ...]
    trained: tuple[bool, ...]


async def gold_of(environment: Environment, oracle: Policy, *, task: int, split: str, seed: int) -> Gold:
    """The oracle's episode on one task.

    Raises:
        UsageError: the oracle does not solve its own task, so there is nothing right to learn from it.
    """
    trajectory = await play(environment, oracle, Job(split, task, seed))
    if not trajectory.success:
        why = trajectory.failure.message if trajectory.failure is not None else f"it ended with '{trajectory.reason}'"
        raise UsageError(f"the oracle of {environment.spec.name} does not solve task {task} of '{split}': {why}")
    results = [result.text for turn in trajectory.turns for result in turn.results]
    actions = tuple(turn.action for turn in trajectory.turns)
    return Gold(task, seed, actions, results[-1] if results else "", trajectory.answer or "")


def has_room(flaw: Flaw, gold: Gold, *, other: Gold, schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the oracle's episode can be flawed in this way, with `other` as the other task."""
    *calls, final = gold.actions
    if flaw is Flaw.DRILL:
        return any(random_digits(call, random.Random(0)) != call for call in calls)
    if flaw is Flaw.WRONG_TOOL:
        return bool(calls) and bool(_other_tools(schemas, calls[0]))
    if flaw is Flaw.WRONG_ARGUMENT:
        return any(has_operator(text) for call in calls for text in _texts(call)) or (
            len(other.actions) > 1 and other.actions[:-1] != gold.actions[:-1]
        )
    if flaw is Flaw.STOPS_EARLY:
        return len(calls) > 1 and bool(gold.answer) and bool(_texts(calls[-1]))
    if flaw is Flaw.WRONG_QUESTION:
        return bool(calls) and reworded(final, other.actions[-1]) is not None
    return True


def mixture(gold: Gold, *, other: Gold, schemas: Sequence[Mapping[str, Any]]) -> Mapping[Flaw, float]:
    """The share of each flaw for one task. Guesses keep theirs; the flaws that have room share the rest."""
    rest = {
        flaw: share
        for flaw, share in MIXTURE.items()
        if flaw is not Flaw.GUESS and has_room(flaw, gold, other=other, schemas=schemas)
    }
    left = (1 - MIXTURE[Flaw.GUESS]) / sum(rest.values())
    return {Flaw.GUESS: MIXTURE[Flaw.GUESS], **{flaw: share * left for flaw, share in rest.items()}}


async def make_lesson(
    environment: Environment,
    oracle: Policy,
    gold: Gold,
    flaw: Flaw,
    *,
    split: str,
    rng: random.Random,
    other: Gold,
) -> Lesson:
    """Step one edited episode through the environment.

    Args:
        environment: the compiled spec.
        oracle: what played the gold episodes.
        gold: the oracle's episode of the task.
        flaw: what to get wrong; it `has_room`.
        split: the split of the task.
        rng: decides what the edits write.
        other: the oracle's episode of another task.
    """
    script = other if flaw is Flaw.WRONG_ARGUMENT and not _has_operators(gold) else gold
    steps = {Flaw.GUESS: 0, Flaw.WRONG_TOOL: 1, Flaw.STOPS_EARLY: len(script.actions) - 2}
    turns: list[tuple[str, Observation | None]] = []
    learns = flaw is not Flaw.DRILL
    async with environment.start(task=gold.task_index, split=split, seed=gold.seed) as episode:
        prompt = tuple(episode.messages)
        messages = list(prompt)
        session = oracle.start(context_of(episode))
        for index in range(steps.get(flaw, len(script.actions) - 1)):
            own = script.actions[index] if script is other else str(await session.act(messages))
            action = _edited(own, flaw, environment.tool_schemas, rng)
            step = await episode.step(action)
            turns.append((action, step.observation))
            if step.is_last:
                break
            messages += [Message("assistant", action), *step.observation.messages]
        else:
            said = gold.actions[-1]
            if flaw in (Flaw.WRONG_ARGUMENT, Flaw.DRILL):
                said = other.actions[-1] if script is other else await _reading(session, messages, gold)
                learns = learns or said != gold.actions[-1]
            last = _final(said, flaw, gold, other, rng)
            await episode.step(last)
            turns.append((last, None))
    return Lesson(
        flaw,
        prompt,
        tuple(turns),
        tuple(learns and (index > 0 or flaw is not Flaw.DRILL) for index in range(len(turns))),
    )


async def _reading(session: PolicySession, messages: Sequence[Message], gold: Gold) -> str:
    """What the oracle says of results that are not its own; its own last action where that does not depend on them."""
    final = gold.actions[-1]
    try:
        said = str(await session.act(messages))
    except TemplateError:  # its script has no words for such a result, an error for example
        return final
    if said == final and gold.last_result:
        said = final.replace(gold.last_result, messages[-1].content)
    return said


def _edited(action: str, flaw: Flaw, schemas: Sequence[Mapping[str, Any]], rng: random.Random) -> str:
    """One of the oracle's calls with the flaw in it."""
    if flaw is Flaw.WRONG_TOOL:
        return _other_call(schemas, action, rng)
    if flaw is Flaw.WRONG_ARGUMENT:
        return edit_calls(action, lambda text: exchange_operators(text, rng))
    if flaw is Flaw.DRILL:
        return edit_calls(action, lambda text: random_digits(text, rng))
    return action


def _final(said: str, flaw: Flaw, gold: Gold, other: Gold, rng: random.Random) -> str:
    """The last action, where the oracle would have `said` something."""
    final = gold.actions[-1]
    if flaw in (Flaw.GUESS, Flaw.WRONG_TOOL, Flaw.IGNORED_RESULT) or (flaw is Flaw.WRONG_ARGUMENT and said == final):
        digits = random_digits(final, rng)
        return digits if digits != final else other.actions[-1]
    if flaw is Flaw.STOPS_EARLY:
        return final.replace(gold.answer, _texts(gold.actions[-2])[0])
    if flaw is Flaw.WRONG_QUESTION:
        return reworded(final, other.actions[-1]) or final
    if flaw is Flaw.NO_ANSWER_TAG:
        return "The answer is " + _TAG.sub("", final).strip()
    return said


def _has_operators(gold: Gold) -> bool:
    return any(has_operator(text) for call in gold.actions[:-1] for text in _texts(call))


def _texts(action: str) -> list[str]:
    """The text arguments of an action's calls."""
    return [value for _, _, call in calls_of(action) for value in call["arguments"].values() if isinstance(value, str)]


def _other_tools(schemas: Sequence[Mapping[str, Any]], action: str) -> list[Mapping[str, Any]]:
    """The tools that an action does not call."""
    used = {call["name"] for _, _, call in calls_of(action)}
    return [schema["function"] for schema in schemas if schema["function"]["name"] not in used]


def _other_call(schemas: Sequence[Mapping[str, Any]], action: str, rng: random.Random) -> str:
    """A call of a tool that the oracle's action does not use, with its text arguments taken from there."""
    tool = rng.choice(_other_tools(schemas, action))
    required = tool.get("parameters", {}).get("required", [])
    return call_text(tool["name"], dict.fromkeys(required, (_texts(action) or [""])[0]))
