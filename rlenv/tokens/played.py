"""What an environment plays, as the verdict on a chat template looks at it: its own prompts, tools and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rlenv.messages import Message
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.verdict import Played, Verdict, judge

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["Prompts", "answers_of", "opened_prompts", "verdict_of"]

_MOST_PARALLEL = 4
"""The most results of one turn that are looked at one number after the other; beyond them, the spec's limit."""


class Prompts:
    """First messages of an environment's episodes, of which each form is kept once, by its longest text.

    The form of a prompt is its roles, which contents are empty, and where images stand: what templates branch on.
    """

    def __init__(self) -> None:
        self._found: dict[object, tuple[int, tuple[Message, ...]]] = {}

    def add(self, messages: Sequence[Message]) -> None:
        """Takes the first messages of one episode."""
        form = tuple((message.role, not message.content.strip(), len(message.images)) for message in messages)
        length = sum(len(message.content) for message in messages)
        if form not in self._found or self._found[form][0] < length:
            self._found[form] = (length, tuple(messages))

    def __iter__(self) -> Iterator[tuple[Message, ...]]:
        return iter([messages for _, messages in self._found.values()])


async def opened_prompts(environment: Environment, *, most: int) -> tuple[Prompts, str]:
    """The prompts of about `most` episodes of each split, which are opened for it, and why the first did not open.

    The text is "" where all opened.
    """
    prompts, why = Prompts(), ""
    async with environment:
        for split in environment.spec.tasks:
            size = len(environment.tasks(split))
            for task in range(0, size, max(size // most, 1)):
                async with environment.start(task=task, split=split) as episode:
                    if episode.failure is None:
                        prompts.add(episode.messages)
                    else:
                        why = why or episode.failure.message
    return prompts, why


def answers_of(environment: Environment) -> tuple[tuple[str, ...], ...]:
    """The roles of the messages that may answer one turn of a policy, the single ones first.

    A policy may write more calls than `limits.calls_per_turn`, which are answered too; so two results can always be.
    """
    answers: list[tuple[str, ...]] = []
    if environment.parts.tools:
        answers.append(("tool",))
    if environment.parts.simulated is not None:
        answers.append(("user",))
    if environment.parts.tools:
        limit = max(environment.spec.limits.calls_per_turn, 2)
        answers += [("tool",) * count for count in sorted({*range(2, min(limit, _MOST_PARALLEL) + 1), limit})]
    return tuple(answers)


def verdict_of(
    environment: Environment, encoder: TokenEncoder | Callable[[], TokenEncoder], prompts: Iterable[Sequence[Message]]
) -> Verdict:
    """The verdict on a chat template for what an environment plays; never raises for a template's sake.

    Args:
        encoder: as it will train, or what makes it.
        prompts: first messages of its episodes, one for each form (`Prompts`).
    """
    tools, answers = environment.tool_schemas, answers_of(environment)
    # Results and replies show images to a policy that sees; another is told of them.
    return judge(encoder, *(Played(messages, tools, answers=answers, images=True) for messages in prompts))
