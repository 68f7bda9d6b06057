"""The id that ends a turn, where its text was encoded and nobody sampled it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.dummies import Turn
from rlenv.tokens.shapes import Story

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder

__all__ = ["end_of"]


def end_of(encoder: TokenEncoder, story: Story, turn: Turn, *, is_last: bool) -> int:
    """The id with which the template ends a turn: behind it stands what answers it, or nothing.

    Args:
        story: the conversation before the turn.
        turn: its shape, with the roles of what answers it; that of a user's message for the last one.
        is_last: whether nothing answers it. A template may end such a turn otherwise (gpt-oss: `<|return|>`).

    Raises:
        UnsupportedTemplate: exact ids cannot be promised for these answers at all.
    """
    if encoder.same_turn is not None:
        return encoder.stop_id
    added = encoder.vocabulary.added
    if not is_last:
        return added[encoder.look(story, turn).layout.stop]
    mark = encoder.growth.last_end(story, turn, encoder.vocabulary.texts(encoder.end_ids))
    if not mark:  # it writes none behind a last turn (GLM): the one that the next message begins with
        try:
            mark = encoder.growth.base(story, turn).stop
        except UnsupportedTemplate:  # it takes no user's message here
            mark = encoder.stop
    return added[mark]
