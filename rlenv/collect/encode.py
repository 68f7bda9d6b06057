"""An episode as the rows that supervised training reads, through the encoder that RL trains with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.episodes.environment import Environment
from rlenv.errors import EpisodeError, RlenvError, UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens.bound import said_of, thinking_of
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.rows import TokenRows
from rlenv.trajectory import Trajectory, Turn

__all__ = ["Encoded", "EncodedAction", "EncodedRow", "Unencodable", "encode_episode", "encode_steps"]


class Unencodable(RlenvError):
    """An episode cannot be a row. `reason` is a stable word for counting."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """One training row: `len(loss_mask) == len(input_ids)`, the mask 1 where the token is trained, 0 for all else.

    The first id is never trained: nothing stands before it that could predict it.
    """

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """An episode's rows: one, or several where the encoder's history is "rows".

    `recorded` and `anew` count turns: those whose ids are the record's own, and those whose text was encoded.
    `differences` is what the template would write otherwise (history "keep").
    """

    rows: tuple[EncodedRow, ...]
    recorded: int
    anew: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EncodedAction:
    """One action on its way into a row.

    `text` is what the environment read. `ids` are those that were sampled, () where nobody knows. `observation` is what
    answered it, None for the last. `message` is the assistant's, as a template shall write it into a later prompt.
    `is_cut`: a limit ended it, and not the policy, so that it has no end. `is_trained` False keeps the whole action out
    of the loss.
    """

    text: str
    observation: Observation | None
    message: Message | None = None
    ids: tuple[int, ...] = ()
    calls: int = 0
    is_cut: bool = False
    is_trained: bool = True


def encode_episode(encoder: TokenEncoder, environment: Environment, trajectory: Trajectory) -> Encoded:
    """The rows of a recorded episode: every action of the policy trained, everything else read.

    Ids that were sampled are used where they are this tokenizer's, else the text is encoded and ended as the template
    ends such a turn; in a dialect of one turn it ends behind its call or answer. A turn that a limit cut has no end.

    Raises:
        Unencodable: the template cannot hold it, it shows images, or it is longer than the spec's response.
    """
    if any(message.images for message in _messages_of(trajectory)):
        raise Unencodable("images", "the episode shows images; rows hold the ids of text alone")
    marks = thinking_of(environment)
    steps = [_encode_step(turn, thinking=marks) for turn in trajectory.turns]
    return encode_steps(
        encoder,
        trajectory.messages,
        steps,
        tools=environment.toolsets.of(trajectory.task).schemas,
        stops=environment.stops,
        max_response_tokens=environment.parts.limits.of(trajectory.task).response_tokens,
    )


def encode_steps(
    encoder: TokenEncoder,
    prompt: Sequence[Message],
    steps: Sequence[EncodedAction],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    stops: tuple[str, ...] = (),
    max_response_tokens: int | None = None,
) -> Encoded:
    """The rows of a conversation; see `encode_episode`.

    Args:
        stops: texts behind which an action ends without an end token (`Environment.stops`).

    Raises:
        Unencodable: as `encode_episode` does.
    """
    try:
        rows = encoder.start_rows(prompt, tools=tools, max_response_tokens=max_response_tokens)
        recorded = 0
        left_out: list[tuple[int, int]] = []
        for index, step in enumerate(steps):
            is_last = index == len(steps) - 1
            is_own = _add(rows, encoder, step, stops, is_last=is_last)
            recorded += is_own
            if not step.is_trained:
                left_out.append((len(rows.rows) - 1, len(rows.last.turn_spans) - 1))
            if max_response_tokens is not None and len(rows) > max_response_tokens:
                raise Unencodable("response_tokens", f"more than the spec's {max_response_tokens} response tokens")
            observation = step.observation
            if is_last or observation is None or not observation.messages:
                continue
            if not rows.add_observation(observation, said=step.message):
                raise Unencodable("response_tokens", rows.reason)
    except UnsupportedTemplate as error:
        raise Unencodable("template", str(error)) from error
    except EpisodeError as error:
        raise Unencodable(error.reason, str(error)) from error
    return Encoded(_rows_of(rows, left_out), recorded, len(steps) - recorded, tuple(rows.differences))


def _rows_of(rows: TokenRows, left_out: Sequence[tuple[int, int]]) -> tuple[EncodedRow, ...]:
    found = []
    for number, row in enumerate(rows.rows):
        mask = row.mask
        if not any(mask):
            continue  # begun for a turn that never came
        for start, end in (row.turn_spans[turn] for place, turn in left_out if place == number):
            mask[start:end] = [0] * (end - start)
        prompt = row.prompt_ids
        found.append(EncodedRow((*prompt, *row.response_ids), (*[0] * len(prompt), *mask)))
    if not found:
        raise Unencodable("empty", "the policy wrote nothing that could be trained")
    return tuple(found)


def _add(rows: TokenRows, encoder: TokenEncoder, step: EncodedAction, stops: tuple[str, ...], *, is_last: bool) -> bool:
    """Appends one action; whether its ids are those of the record."""
    row = rows.last
    is_own = bool(step.ids) and _reads_as(encoder, step.ids, step.text)
    if is_own:
        rows.add_sampled(step.ids)
        text = step.text
    else:
        text = _close(encoder, row.context_ids, step.text) if row.is_thinking and not step.is_cut else step.text
        # Behind a stop text nothing is sampled any more; what stands there in a record is a line's end at most.
        text = text.rstrip() if stops and text.rstrip().endswith(stops) else text
        ids = encoder.encode_text(text)
        if any(number in encoder.end_ids for number in ids):
            raise Unencodable("end_mark", "the policy's text spells a mark that ends a turn")
        rows.add_sampled(ids)
    if step.is_cut or (stops and text.endswith(stops)):
        return is_own
    observation = step.observation if step.observation is not None and step.observation.messages else None
    if observation is None and step.calls and encoder.same_turn is None:
        # A call that nothing answers any more (an answer by a tool, the last turn of a limit) ends as calls do.
        observation = Observation(tuple(Message("tool", "", name="x") for _ in range(step.calls)))
    row.end_turn(None if is_last and not step.calls else observation, said=step.message)
    return is_own


def _reads_as(encoder: TokenEncoder, ids: Sequence[int], text: str) -> bool:
    """True where ids are this tokenizer's: known to it, and without their end tokens its writing of the text."""
    end = len(ids)
    while end and ids[end - 1] in encoder.end_ids:
        end -= 1
    return False if encoder.vocabulary.unknown(ids) is not None else encoder.decode(list(ids[:end])) == text


def _close(encoder: TokenEncoder, context: Sequence[int], text: str) -> str:
    """An action behind a prompt that has opened a block of thinking, with the block closed."""
    pairs = [pair for pair in encoder.growth.reader.thinking if all(pair)]
    if any(close in text for _, close in pairs):
        return text
    end = encoder.decode(list(context[-32:])).rstrip()
    close = next((close for open, close in pairs if end.endswith(open)), pairs[0][1] if pairs else "</think>")
    return f"\n{close}\n\n{text}"


def _encode_step(turn: Turn, *, thinking: Sequence[tuple[str, str]]) -> EncodedAction:
    return EncodedAction(
        turn.action,
        turn.observation,
        said_of(turn.action, turn.parsed, thinking=thinking),
        turn.token_ids,
        len(turn.parsed.calls),
        is_cut=turn.was_cut or turn.parsed.is_cut,
    )


def _messages_of(trajectory: Trajectory) -> list[Message]:
    messages = list(trajectory.messages)
    for turn in trajectory.turns:
        if turn.observation is not None:
            messages += turn.observation.messages
    return messages
