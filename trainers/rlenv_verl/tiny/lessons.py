"""Episodes to warm-start on: the oracle's own, and flawed ones derived from it, each stepped through the environment.

The flaws need no knowledge of the spec beyond its oracle: they are edits of the oracle's actions. Every observation
in a lesson is what the real environment answered to the edited action.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlenv.environment import Environment
from rlenv.errors import UsageError
from rlenv.messages import Message, Observation
from rlenv.policies.base import Policy
from rlenv.rollout import Job, play

__all__ = ["MIXTURE", "Flaw", "Gold", "Lesson", "gold_of", "make_lesson"]

_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\w\s)])[-+*/<>](?=[\w\s(])")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?[A-Za-z_]+>|\\boxed\{|\}$")


class Flaw(Enum):
    """What is wrong with a lesson; NONE is the oracle's own episode."""

    NONE = "none"
    DRILL = "drill"
    """Calls with other numbers: real results without end, to practise reading them. Only what follows the first result
    is trained, since the call does not fit the question."""
    GUESS = "guess"
    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENT = "wrong_argument"
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
}


@dataclass(frozen=True, slots=True)
class Gold:
    """The oracle's actions for one task, and the text of the last result it saw ("" where it called nothing)."""

    task_index: int
    seed: int
    actions: tuple[str, ...]
    last_result: str


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
    return Gold(task, seed, tuple(turn.action for turn in trajectory.turns), results[-1] if results else "")


async def make_lesson(
    environment: Environment, gold: Gold, flaw: Flaw, *, split: str, rng: random.Random, other: Gold
) -> Lesson:
    """Step one edited episode through the environment.

    Args:
        environment: the compiled spec.
        gold: the oracle's episode of the task.
        flaw: what to get wrong; where the oracle's episode leaves no room for it, the gold episode is the lesson.
        split: the split of the task.
        rng: decides what the edits write.
        other: the oracle's episode of another task, whose answer is the guess where an answer has no digits.
    """
    *calls, final = gold.actions
    guess = _random_digits(final, rng) if _NUMBER.search(final) else other.actions[-1]
    edited: list[str] = list(calls)
    if flaw is Flaw.GUESS:
        edited = []
    elif flaw is Flaw.WRONG_TOOL:
        edited = [_other_call(environment.tool_schemas, calls, rng)] if calls else []
    elif flaw is Flaw.WRONG_ARGUMENT:
        edited = [_edit_call(call, lambda value: _other_operator(value, rng)) for call in calls]
    elif flaw is Flaw.DRILL:
        edited = [_edit_call(call, lambda value: _random_digits(value, rng)) for call in calls]

    prompt: tuple[Message, ...]
    turns: list[tuple[str, Observation | None]] = []
    async with environment.start(task=gold.task_index, split=split, seed=gold.seed) as episode:
        prompt = tuple(episode.messages)
        result = ""
        for action in edited:
            step = await episode.step(action)
            turns.append((action, step.observation))
            if step.terminated or step.truncated:
                break
            result = step.observation.messages[-1].content
        else:
            if flaw in (Flaw.GUESS, Flaw.WRONG_TOOL, Flaw.IGNORED_RESULT):
                last = guess
            elif flaw is Flaw.NO_ANSWER_TAG:
                last = "The answer is " + _TAG.sub("", final).strip()
            elif gold.last_result and gold.last_result in final:
                last = final.replace(gold.last_result, result)
            else:
                last = final
            await episode.step(last)
            turns.append((last, None))
    drill = flaw is Flaw.DRILL
    return Lesson(flaw, prompt, tuple(turns), tuple(not drill or index > 0 for index in range(len(turns))))


def _random_digits(text: str, rng: random.Random) -> str:
    """`text` with every number replaced by a random one of as many digits, without a leading zero."""
    return _NUMBER.sub(lambda match: _number(rng, len(match.group())), text)


def _number(rng: random.Random, digits: int) -> str:
    low = 10 ** (digits - 1)
    return str(rng.randrange(low if digits > 1 else 0, 10 * low))


def _other_operator(text: str, rng: random.Random) -> str:
    """`text` with its operators exchanged for others; with its numbers changed where it has no operator."""
    if not _OPERATOR.search(text):
        return _random_digits(text, rng)
    return _OPERATOR.sub(lambda match: rng.choice([sign for sign in "+-*" if sign != match.group()]), text)


def _edit_call(action: str, edit: Callable[[str], str]) -> str:
    """`action` with `edit` applied to the text arguments of its calls."""
    out, end = "", 0
    for start, stop, call in _calls(action):
        arguments = {key: edit(value) if isinstance(value, str) else value for key, value in call["arguments"].items()}
        out += action[end:start] + _call_text(call["name"], arguments)
        end = stop
    return out + action[end:]


def _calls(action: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Start, end and JSON object of each call in an action that the oracle wrote."""
    found = []
    end = 0
    while (start := action.find(_OPEN, end)) >= 0:
        text = action[start + len(_OPEN) :]
        skipped = len(text) - len(text.lstrip())
        call, length = json.JSONDecoder().raw_decode(text.lstrip())
        end = action.index(_CLOSE, start + len(_OPEN) + skipped + length) + len(_CLOSE)
        found.append((start, end, call))
    return found


def _other_call(schemas: Sequence[Mapping[str, Any]], calls: Sequence[str], rng: random.Random) -> str:
    """A call of a tool that the oracle's first action does not use, with its text arguments taken from there."""
    golds = [call for _, _, call in _calls(calls[0])]
    used = {call["name"] for call in golds}
    others = [schema["function"] for schema in schemas if schema["function"]["name"] not in used]
    if not others:
        return calls[0]
    tool = rng.choice(others)
    texts = [value for call in golds for value in call["arguments"].values() if isinstance(value, str)] or [""]
    required = tool.get("parameters", {}).get("required", [])
    return _call_text(tool["name"], dict.fromkeys(required, texts[0]))


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the Hermes format, spaced as chat templates write it (`json.dumps` defaults)."""
    return (
        "<tool_call>\n"
        + json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        + "\n</tool_call>"
    )
