"""An environment and a model's tokenizer, bound together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rlenv.dialects.base import Cut, cut_chars
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.tokens.encoder import History, TokenEncoder
from rlenv.tokens.images import ProcessorImages
from rlenv.tokens.load import end_ids_of, vocab_size_of

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["bind", "cut_of", "said_of", "thinking_of"]

_ANY: Final = 2**31 - 1


def bind(
    tokenizer: Any,
    environment: Environment,
    *,
    history: History = "grow",
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    images: ProcessorImages | None = None,
    model: str = "",
) -> TokenEncoder:
    """The encoder with which an environment's episodes are played: its dialect says where turns go on and think.

    Args:
        tokenizer: a fast tokenizer of transformers, or what `TokenEncoder` takes beside.
        model: the folder or the name on the hub of the model that samples; by default the tokenizer's own. Its
            configuration says which ids end a turn, and how many there are: with a `model` whose configuration does
            not say it, an id that no token has is the policy's own.

    Raises:
        UnsupportedTemplate: as `TokenEncoder` does.
        UsageError: as `TokenEncoder` does.
    """
    places = [place for place in (model, str(getattr(tokenizer, "name_or_path", ""))) if place]
    return TokenEncoder(
        tokenizer,
        chat_template=chat_template,
        template_kwargs=template_kwargs,
        stop=stop,
        end_ids=end_ids_of(*places),
        vocab_size=vocab_size_of(*places) or (_ANY if model else None),
        same_turn=environment.same_turn,
        images=images,
        history=history,
        thinking=thinking_of(environment),
    )


def thinking_of(environment: Environment) -> tuple[tuple[str, str], ...]:
    """The marks around thinking in the environment's dialect; () where it has none.

    A dialect of a plug-in need not say; `<think>` and `</think>` are taken then.
    """
    marks = getattr(getattr(environment.parts.dialect, "spec", None), "thinking_marks", None)
    if marks is None:
        return (("<think>", "</think>"),)
    return tuple((open, close) for open, close in ((marks.open, marks.close), *marks.also.items()) if open and close)


def cut_of(environment: Environment, encoder: TokenEncoder) -> Cut:
    """How results are cut: by the spec's characters, and by its tokens as the policy's tokenizer counts them."""
    spec = environment.spec.observation
    by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
    if spec.max_tokens is None:
        return lambda text: by_chars(text)  # a cut of the caller's own: limits are then counted in tokens
    by_tokens = encoder.cut(max_tokens=spec.max_tokens, keep=spec.keep)
    return lambda text: by_tokens(by_chars(text))


def said_of(text: str, parsed: ParsedAction, *, thinking: Sequence[tuple[str, str]]) -> Message:
    """The assistant's message of an action, as a server that reads the family's text would give it back.

    Content, thinking and calls are what the dialect read. A call that cannot be read has no structured form: the whole
    text behind the thinking is the content then, as it is with such a server.

    Args:
        text: the action.
        parsed: its reading.
        thinking: the marks around thinking.
    """
    if all(isinstance(call, ToolCall) for call in parsed.calls):
        return Message("assistant", parsed.content, parsed.calls, thinking=parsed.thinking)
    if parsed.thinking:
        for _, close in thinking:
            text = text.partition(close)[2] or text
    return Message("assistant", text.strip(), thinking=parsed.thinking)
