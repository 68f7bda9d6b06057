"""What agent loops of one process share: compiled environments and token encoders.

veRL builds one loop object a sample. Compiling a spec and deriving a template's program take milliseconds to seconds,
so both are kept for the life of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rlenv.dialects.base import SameTurn
from rlenv.environment import Environment, load
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import cut_of
from rlenv.tokens.encoder import History
from rlenv.tokens.played import verdict_of
from rlenv_verl.images import image_template, processor_images

__all__ = ["cut_of", "encoder_of", "environment_of", "require_template"]

_ENVIRONMENTS: dict[bytes, Environment] = {}
_ENCODERS: dict[tuple[Any, ...], tuple[Any, TokenEncoder]] = {}


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
    *,
    history: History = "grow",
    thinking: Sequence[tuple[str, str]] = (),
    end_ids: Sequence[int] = (),
    vocab_size: int | None = None,
) -> TokenEncoder:
    """The encoder of a tokenizer, or of a processor and its tokenizer; the same object for equal arguments.

    Args:
        history: what to do where the chat template rewrites earlier turns; see `TokenEncoder`.
        thinking: the marks around thinking in the environment's dialect.
        end_ids: further ids that end a turn, as the model's `generation_config` names them.
        vocab_size: how many ids the model may sample.
    """
    key = (
        id(tokenizer),
        id(processor),
        orjson.dumps([template_kwargs, processor_kwargs]),
        same_turn,
        history,
        tuple(thinking),
        tuple(end_ids),
        vocab_size,
    )
    if key not in _ENCODERS:
        encoder = TokenEncoder(
            tokenizer,
            chat_template=image_template(processor),
            template_kwargs=template_kwargs,
            end_ids=end_ids,
            vocab_size=vocab_size,
            same_turn=same_turn,
            images=processor_images(processor, processor_kwargs),
            history=history,
            thinking=thinking,
        )
        # The tokenizer and the processor are kept beside the encoder: their ids stay taken as long as the entry lives.
        _ENCODERS[key] = ((tokenizer, processor), encoder)
    return _ENCODERS[key][1]


_WILL_RUN: set[tuple[int, int, Any]] = set()


def require_template(environment: Environment, encoder: TokenEncoder, messages: Sequence[Message]) -> None:
    """Passes where the chat template can go on behind whatever an environment answers to a first prompt.

    The verdict that a run is given before it starts (`rlenv.tokens.played`), once for each form of prompt. Environment
    and encoder are kept for the life of the process (`environment_of`, `encoder_of`).

    Raises:
        UnsupportedTemplate: it cannot with the encoder's history; all samples alike are concerned.
    """
    form = tuple((message.role, not message.content.strip(), len(message.images)) for message in messages)
    key = (id(environment), id(encoder), form)
    if key in _WILL_RUN:
        return
    verdict = verdict_of(environment, encoder, [messages])
    if not verdict.will_run:
        raise UnsupportedTemplate(verdict.message)
    _WILL_RUN.add(key)
