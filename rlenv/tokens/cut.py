"""Content cut to a number of tokens, never inside a character."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rlenv._base.bounded import encodable
from rlenv.tokens.vocabulary import Tokenizer, encode

__all__ = ["Keep", "token_cut"]

Keep = Literal["head", "tail", "head_tail"]
CHARS_A_TOKEN = 16  # the first window; a window is doubled until it holds enough tokens


def token_cut(tokenizer: Tokenizer, *, max_tokens: int, keep: Keep = "head_tail") -> Callable[[str], str]:
    """A function that shortens a text to at most `max_tokens` tokens, and says how many characters it left out.

    The note counts towards the limit. Whole characters are kept, whatever their bytes. The cost follows
    `max_tokens`, not the text's length, except that a text has to be searched for white space and the like by the
    tokenizer within a window. Without room for the note the text is cut without one.

    Args:
        tokenizer: a tokenizer without added tokens, as content is encoded with.
        max_tokens: at least 1.
        keep: which part of a text stays; `head_tail` keeps half of the room for each end.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected at least 1")

    def edge(text: str, tokens: int, *, from_end: bool) -> str:
        """At most the first or last `tokens` tokens of `text`."""
        if tokens <= 0:
            return ""
        size = tokens * CHARS_A_TOKEN
        while True:
            window = (text[-size:] if from_end else text[:size]) if size < len(text) else text
            offsets = tokenizer.encode_batch([window], add_special_tokens=False)[0].offsets
            if len(offsets) > tokens:
                return window[offsets[-tokens - 1][1] :] if from_end else window[: offsets[tokens][0]]
            if len(window) == len(text):
                return text
            size *= 2

    def build(text: str, room: int) -> str:
        head = room if keep == "head" else 0 if keep == "tail" else (room + 1) // 2
        first = edge(text, head, from_end=False)
        last = edge(text[len(first) :], room - head, from_end=True) if room > head else ""
        note = f"… {len(text) - len(first) - len(last)} characters left out …"
        return first + ("\n" if first else "") + note + ("\n" if last else "") + last

    def cut(text: str) -> str:
        text = encodable(text)
        if edge(text, max_tokens, from_end=False) == text:
            return text
        room = max_tokens - len(encode(tokenizer, f"\n… {len(text)} characters left out …\n"))
        # Edges may merge otherwise than inside the text; a few tokens less always fit.
        while room > 0:
            short = build(text, room)
            over = len(encode(tokenizer, short)) - max_tokens
            if over <= 0:
                return short
            room -= over
        short = edge(text, max_tokens, from_end=keep == "tail")
        while short and len(encode(tokenizer, short)) > max_tokens:
            short = short[1:] if keep == "tail" else short[:-1]
        return short

    return cut
