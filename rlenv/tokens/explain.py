"""A recorded trajectory as the tokens that it was, by who wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlenv.messages import Message
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.trajectory import TokenTrajectory
from rlenv.trajectory import Trajectory, Turn

__all__ = ["Explained", "Piece", "explain"]

Kind = Literal["prompt", "sampled", "assumed", "observed"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids of one kind that stand together.

    `prompt`: what the policy read first. `sampled`: what it wrote (mask 1). `assumed`: an end token that a turn has
    had, as far as its text tells. `observed`: what the environment put behind a turn, a missing end token too (mask 0).
    `turn` counts from 0, -1 in a prompt; `row` is the training row.
    """

    kind: Kind
    ids: tuple[int, ...]
    turn: int = -1
    row: int = 0


@dataclass(frozen=True, slots=True)
class Explained:
    """All pieces in order. `anew` are the turns whose ids the record does not hold, so that they are those of the text.

    `others` are turns whose recorded ids do not read as their text: another tokenizer sampled them. `differences` is
    what the template would have written otherwise (see `TokenTrajectory.differences`).
    """

    pieces: tuple[Piece, ...]
    anew: tuple[int, ...]
    others: tuple[int, ...]
    differences: tuple[str, ...]

    def count(self, *kinds: Kind) -> int:
        """The ids of some kinds."""
        return sum(len(piece.ids) for piece in self.pieces if piece.kind in kinds)


def explain(encoder: TokenEncoder, trajectory: Trajectory, *, tools: Sequence[Mapping[str, Any]] = ()) -> Explained:
    """The tokens of a recorded trajectory.

    Args:
        encoder: of the tokenizer that sampled it; its history is "keep" or "rows".
        tools: the schemas that the prompt shows.

    Raises:
        UnsupportedTemplate: exact ids cannot be promised for the record's messages.
        EpisodeError: an image of the prompt cannot be read.
    """
    rows = encoder.start_rows(trajectory.messages, tools=tools)
    anew: list[int] = []
    others: list[int] = []
    assumed: set[int] = set()
    of_row: list[int] = []
    for turn in trajectory.turns:
        of_row.append(len(rows.rows) - 1)
        if sampled := turn.token_ids:
            if rows.add_sampled(sampled) != turn.action:
                others.append(turn.index)
        else:
            anew.append(turn.index)
            has_end = encoder.same_turn is None and _has_ended(turn, trajectory)
            if has_end and not turn.finish_reason:
                assumed.add(turn.index)
            rows.add_sampled([*encoder.encode_text(turn.action), *([encoder.stop_id] if has_end else [])])
        if turn.observation is not None and turn.observation.messages:
            parsed = turn.parsed
            said = Message("assistant", parsed.content, parsed.calls, thinking=parsed.thinking)
            rows.add_observation(turn.observation, said=said)
    pieces: list[Piece] = []
    for number, row in enumerate(rows.rows):
        turns = [turn for turn, place in enumerate(of_row) if place == number]
        pieces += _pieces(row, number, turns, assumed)
    return Explained(tuple(pieces), tuple(anew), tuple(others), tuple(rows.differences))


def _has_ended(turn: Turn, trajectory: Trajectory) -> bool:
    """Whether a turn ended by an end token: as its sampler says, else as far as its text and its place tell."""
    if reason := turn.finish_reason:
        return reason != "length"
    is_last = turn.index == len(trajectory.turns) - 1
    return not turn.parsed.is_cut and not (is_last and trajectory.truncated)


def _pieces(row: TokenTrajectory, number: int, turns: Sequence[int], assumed: set[int]) -> Iterator[Piece]:
    yield Piece("prompt", tuple(row.prompt_ids), row=number)
    ids, at = row.response_ids, 0
    for turn, (start, end) in zip(turns, row.turn_spans, strict=True):
        if start > at:
            yield Piece("observed", tuple(ids[at:start]), turn - 1, number)
        stop = end - 1 if turn in assumed else end
        yield Piece("sampled", tuple(ids[start:stop]), turn, number)
        if stop < end:
            yield Piece("assumed", tuple(ids[stop:end]), turn, number)
        at = end
    if at < len(ids):
        yield Piece("observed", tuple(ids[at:]), turns[-1], number)
