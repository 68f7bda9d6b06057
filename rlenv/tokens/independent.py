"""A second encoding of renderings, made without the encoder's own: what checks compare with.

It is a clone of the tokenizer in which every control token has a private name. The template's own marks are given these
names in the rendered text; what contents spell stays text, since no token of the clone is called so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlenv.dialects.built_in import Spans
from rlenv.tokens.vocabulary import Vocabulary, encode

__all__ = ["Independent"]

_OPEN, _CLOSE = "\U000f0000", "\U000f0001"
_NAMES: Final = 0xF0100
_HIDDEN: Final = 0xF8000


class Independent:
    """Encodes what a template wrote, in which the contents of the environment are text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from tokenizers import AddedToken  # type: ignore[import-untyped]

        full: Any = vocabulary.full
        self._vocabulary = vocabulary
        self._clone: Any = type(full)(full.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(full, part) is not None:
                setattr(self._clone, part, getattr(full, part))
        self._names: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        added, blank = [], []
        for number, token in enumerate(full.get_added_tokens_decoder().values()):
            if token.content in vocabulary.added and not token.content.strip():
                blank.append(token)
                continue
            name = f"{_OPEN}{chr(_NAMES + number)}{_CLOSE}"
            self._names[token.content] = name
            self._hidden[token.content] = f"{_OPEN}{chr(_HIDDEN + number)}{_CLOSE}"
            flags = {flag: getattr(token, flag) for flag in ("special", "lstrip", "rstrip", "single_word")}
            added.append(AddedToken(name, normalized=False, **flags))
        self._clone.add_tokens([*blank, *added])
        self._back = {self._clone.token_to_id(name): vocabulary.added[mark] for mark, name in self._names.items()}

    def hide(self, value: Any, authored: Spans = ()) -> Any:
        """A JSON-like value in whose texts no control token is spelled, but in what the spec's author wrote."""
        if isinstance(value, str):
            out: list[str] = []
            at = 0
            for first, last in authored:
                out += [self._without(value[at:first]), value[first:last]]
                at = last
            return "".join([*out, self._without(value[at:])])
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        return value

    def _without(self, text: str) -> str:
        parts = self._vocabulary.split(text)
        return "".join(self._hidden[part] if place % 2 else part for place, part in enumerate(parts))

    def ids(self, text: str, hidden: str | None = None) -> list[int] | None:
        """The ids of a rendering.

        Args:
            text: what the template wrote.
            hidden: the same of contents that `hide` changed; None where they spell nothing.

        Returns:
            None where the two are not the same but for that: the template looks into contents.
        """
        if hidden is None:
            hidden = text
        elif self._shown(hidden) != text:
            return None
        parts = self._vocabulary.split(hidden)
        named = "".join(self._names[part] if place % 2 else part for place, part in enumerate(parts))
        made = encode(self._clone, self._shown(named))
        return [self._back.get(number, number) for number in made]

    def _shown(self, text: str) -> str:
        if _OPEN not in text and "\\udb80" not in text:
            return text
        for mark, hidden in self._hidden.items():
            text = text.replace(hidden, mark)
            text = text.replace(json.dumps(hidden)[1:-1], json.dumps(mark)[1:-1])
        return text


def spells(vocabulary: Vocabulary, values: Sequence[Any]) -> bool:
    """Whether a text of JSON-like values spells a control token."""
    for value in values:
        if isinstance(value, str):
            if len(vocabulary.split(value)) > 1:
                return True
        elif isinstance(value, Mapping):
            if spells(vocabulary, [*value.keys(), *value.values()]):
                return True
        elif isinstance(value, (list, tuple)) and spells(vocabulary, value):
            return True
    return False
