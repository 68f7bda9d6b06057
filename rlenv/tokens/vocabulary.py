"""A tokenizer with and without its added tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rlenv._base.bounded import encodable
from rlenv.errors import MissingExtra, UsageError

__all__ = ["Tokenizer", "Vocabulary", "encode", "fast_tokenizer"]


class Encoding(Protocol):
    """What a tokenizer makes of a text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` (0.20 and later) that is used here."""

    model: Any
    normalizer: Any
    pre_tokenizer: Any
    decoder: Any

    def __init__(self, model: Any) -> None: ...

    def add_tokens(self, tokens: Sequence[Any]) -> int: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...

    def encode_batch(self, input: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]: ...

    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]: ...

    def get_added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def get_vocab(self, with_added_tokens: bool) -> Mapping[str, int]: ...

    def get_vocab_size(self, with_added_tokens: bool) -> int: ...

    def id_to_token(self, id: int) -> str | None: ...


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of `text`; the GIL is released meanwhile, as `encode` of one text would not do.

    A lone surrogate, which no tokenizer takes, is encoded as U+FFFD.
    """
    try:
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except TypeError:
        return tokenizer.encode_batch_fast([encodable(text)], add_special_tokens=False)[0].ids


def fast_tokenizer(tokenizer: Any) -> Tokenizer:
    """The `tokenizers.Tokenizer` of a tokenizer, or itself.

    Raises:
        MissingExtra: `tokenizers` is not installed.
        UsageError: it is neither.
    """
    try:
        import tokenizers  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("token-exact trajectories", extra="tokens") from error
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise UsageError(
            f"the tokenizer is a {type(tokenizer).__name__}; expected a tokenizers.Tokenizer or a fast tokenizer of"
            " transformers, which has backend_tokenizer"
        )
    found: Tokenizer = backend
    return found


def _is_blank(text: str) -> bool:
    """Whether a token is white space; tokenizers of SentencePiece spell a space `▁`."""
    return text.replace("▁", " ").isspace()


class Signs:
    """What a set of tokens is written with: to tell texts that may be a part of one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = "\n".join(tokens)
        self.rare = frozenset(
            sign for token in tokens for sign in ("".join(c for c in token if not c.isalnum()) or token)
        )
        """The signs that are neither letters nor digits, and the letters of tokens that have no others."""
        self.all = frozenset("".join(tokens))
        """All signs."""

    def is_part(self, text: str) -> bool:
        """Whether `text` stands within a token."""
        return text in self._tokens

    def parted(self, value: Any) -> Any:
        """A JSON-like value with a space behind the first sign of each token that a text of it spells."""
        if isinstance(value, str):
            for token in self._tokens.split("\n"):
                if token and token in value:
                    value = value.replace(token, f"{token[0]} {token[1:]}")
            return value
        if isinstance(value, Mapping):
            return {self.parted(key): self.parted(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.parted(item) for item in value]
        return value


class Vocabulary:
    """A tokenizer's added tokens, and two ways of encoding: with them, and as if they did not exist.

    `plain` encodes content: a tokenizer that shares the model but has no added tokens, but for those that write plain
    text in some families: white space (Gemma 3, where it may be spelled `▁`), and pieces that the model's own
    vocabulary gives for a text, are not special and stand in no template.

    Args:
        size: the model's own number of ids, where it has more than the tokenizer (padding of its embeddings, which a
            policy may sample all the same); None: the tokenizer's.
        source: the chat template's text, whose tokens are control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, size: int | None = None, source: str = "") -> None:
        self.full = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        count = tokenizer.get_vocab_size(True)
        has_holes = size is None and max(added, default=0) >= count
        self._known = frozenset(tokenizer.get_vocab(True).values()) if has_holes else None
        self._size = max(count, size or 0)
        self.added = {token.content: number for number, token in added.items()}
        self.plain: Tokenizer = type(tokenizer)(tokenizer.model)
        if tokenizer.normalizer is not None:
            self.plain.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self.plain.pre_tokenizer = tokenizer.pre_tokenizer
        if tokenizer.decoder is not None:
            self.plain.decoder = tokenizer.decoder
        ordinary = {text for text in self.added if _is_blank(text)}
        for number, token in added.items():
            text = token.content
            if text not in ordinary and not token.special and text not in source and number in encode(self.plain, text):
                ordinary.add(text)
        if ordinary:
            self.plain.add_tokens([token for token in added.values() if token.content in ordinary])
        self._control = {text: number for text, number in self.added.items() if text not in ordinary}
        longest_first = sorted(self._control, key=len, reverse=True)
        self.control_ids = frozenset(self._control.values())
        """The ids of added tokens that are more than plain text."""
        self.signs = Signs(longest_first)
        """What the added tokens are written with."""
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def unknown(self, ids: Sequence[int]) -> int | None:
        """The first of some ids that is none of the vocabulary's; None where all are."""
        if self._known is not None:
            return next((number for number in ids if number not in self._known), None)
        if not ids or (max(ids) < self._size and min(ids) >= 0):
            return None
        return next(number for number in ids if not 0 <= number < self._size)

    def leaks(self) -> tuple[str, ...]:
        """The added tokens that plain encoding still turns into one id of their own, as some vocabularies make it."""
        return tuple(text for text, number in self._control.items() if number in encode(self.plain, text))

    def texts(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The added tokens of these ids; ids of other tokens are left out."""
        wanted = set(ids)
        return tuple(text for text, number in self.added.items() if number in wanted)

    def split(self, text: str) -> list[str]:
        """`text` cut at its added tokens, which stand at the odd places."""
        return self._split.split(text) if self._split is not None else [text]
