"""What agent loops of one process share: compiled environments and token encoders.

veRL builds one loop object a sample. Compiling a spec and deriving a template's program take milliseconds to seconds,
so both are kept for the life of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rlenv.dialects.base import SameTurn
from rlenv.environment import Environment, load
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import cut_of
from rlenv_verl.images import image_template, processor_images

__all__ = ["cut_of", "encoder_of", "environment_of"]

_ENVIRONMENTS: dict[bytes, Environment] = {}
_ENCODERS: dict[tuple[int, int, bytes, SameTurn | None], tuple[Any, TokenEncoder]] = {}


def environment_of(spec: str, spec_set: Mapping[str, Any]) -> Environment:
    """The compiled environment of a spec with some keys replaced; the same object for equal arguments."""
    key = orjson.dumps([spec, spec_set])
    if key not in _ENVIRONMENTS:
        _ENVIRONMENTS[key] = load(spec, set=spec_set or None)
    return _ENVIRONMENTS[key]


def encoder_of(
    tokenizer: Any,
    template_kwargs: Mapping[str, Any],
    same_turn: SameTurn | None,
    processor: Any,
    processor_kwargs: Mapping[str, Any],
) -> TokenEncoder:
    """The encoder of a tokenizer, or of a processor and its tokenizer; the same object for equal arguments."""
    key = (id(tokenizer), id(processor), orjson.dumps([template_kwargs, processor_kwargs]), same_turn)
    if key not in _ENCODERS:
        encoder = TokenEncoder(
            tokenizer,
            chat_template=image_template(processor),
            template_kwargs=template_kwargs,
            same_turn=same_turn,
            images=processor_images(processor, processor_kwargs),
        )
        # The tokenizer and the processor are kept beside the encoder: their ids stay taken as long as the entry lives.
        _ENCODERS[key] = ((tokenizer, processor), encoder)
    return _ENCODERS[key][1]
