"""An environment and a model's tokenizer, bound together."""

from __future__ import annotations

from rlenv.environment import Environment
from rlenv.observe import Cut, cut_chars
from rlenv.tokens.encoder import TokenEncoder

__all__ = ["cut_of"]


def cut_of(environment: Environment, encoder: TokenEncoder) -> Cut:
    """How results are cut: by the spec's characters, and by its tokens as the policy's tokenizer counts them."""
    spec = environment.spec.observation
    by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
    if spec.max_tokens is None:
        return lambda text: by_chars(text)  # a cut of the caller's own: limits are then counted in tokens
    by_tokens = encoder.cut(max_tokens=spec.max_tokens, keep=spec.keep)
    return lambda text: by_tokens(by_chars(text))
