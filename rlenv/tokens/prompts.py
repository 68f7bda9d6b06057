"""Prompts in which contents are told from what the chat template writes, so that no content becomes a control token.

A template is free in what it does with contents and schemas, so that no slot can be looked for in its text. Instead it
is rendered a second time with other signs in the contents: each sign is replaced by one of a private area that stands
for it. Where both renderings are the same text but for that, the second says of each sign who wrote it.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any, Final

from rlenv._base.text import changed_outside, texts_in, with_texts
from rlenv.dialects.built_in import Spans
from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.layouts import MessageSlot, TextSlot
from rlenv.tokens.vocabulary import ChatTemplate, Signs, Vocabulary, encode


@dataclass(frozen=True, slots=True)
class Run:
    """Text and slots that are encoded together."""

    parts: tuple[str | MessageSlot, ...]

    def text(self, values: Callable[[MessageSlot], str]) -> str:
        """The text with every slot filled."""
        return "".join([part if type(part) is str else values(part) for part in self.parts])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class PromptProgram:
    """Ids that are always the same, and runs of text and slots in between that are encoded each in one pass.

    One pass a run keeps the merges at the edge of content what they are in the whole text.
    """

    pieces: tuple[array[int] | Run, ...]

    @staticmethod
    def of(parts: Sequence[str | MessageSlot | TextSlot], vocabulary: Vocabulary) -> PromptProgram:
        """The program of literal texts and slots.

        Added tokens are looked for in literal texts alone, each by itself: none is found across a slot.
        """
        pieces: list[array[int] | Run] = []
        ids: list[int] = []
        run: list[str | MessageSlot] = []

        def end_run() -> None:
            nonlocal ids
            if any(isinstance(part, MessageSlot) for part in run):
                if ids:
                    pieces.append(array("q", ids))
                ids = []
                pieces.append(Run(tuple(run)))
            elif run:
                ids += vocabulary.ids("".join(part for part in run if isinstance(part, str)))
            run.clear()

        for part in parts:
            if isinstance(part, MessageSlot):
                run.append(part)
                continue
            if isinstance(part, TextSlot):
                run.append(part.text)
                continue
            for place, text in enumerate(vocabulary.split(part)):
                if place % 2:
                    end_run()
                    ids.append(vocabulary.added[text])
                elif text:
                    run.append(text)
        end_run()
        if ids:
            pieces.append(array("q", ids))
        return PromptProgram(tuple(pieces))

    def encode(self, values: Callable[[MessageSlot], str], vocabulary: Vocabulary) -> array[int]:
        """The ids with every slot filled, as an array of type q."""
        out = array("q")
        for piece in self.pieces:
            out.extend(vocabulary.ids(piece.text(values)) if isinstance(piece, Run) else piece)
        return out


Part = tuple[bool, str]
"""Whether the template, or the spec's author, wrote a text, and the text."""

_BLOCK: Final = 0x400
_BLOCKS: Final = range(0x100000, 0x10F000, _BLOCK)  # the last private plane
_ESCAPED: Final = re.compile(r"\\udb[0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\U0010[0-9a-f]{4}")
_PLAIN: Final = frozenset('"\\')  # JSON writes these two otherwise
# Words that templates compare with, or look up: a schema's own, and no part of any control token by themselves.
_WORDS: Final = frozenset(
    "type function name description parameters properties required enum object string integer number boolean array"
    " null items anyOf oneOf allOf default format title additionalProperties return strict const minimum maximum"
    " $defs $ref text image image_url role content".split()
)


@dataclass(frozen=True, slots=True)
class Written:
    """A rendering: its text, and its parts by who wrote them."""

    text: str
    parts: tuple[Part, ...]


def written_parts(
    template: ChatTemplate,
    given: Sequence[Mapping[str, Any]],
    authored: Sequence[Spans],
    tools: Sequence[Mapping[str, Any]],
    signs: Signs,
    *,
    now: datetime | None = None,
    hides: int | None = None,
) -> Written:
    """The template's rendering with its generation prompt, and who wrote which part of it.

    Where a template looks into contents so that no second rendering is the same text, the parts are those of the
    rendering in which the contents spell nothing.

    Args:
        authored: for each message, the parts of its content that the spec's author wrote.
        signs: what control tokens are written with.
        now: the time that the template is told; None: the clock's.
        hides: the first message from which on an assistant's words are text too; None: they are its own.

    Raises:
        UnsupportedTemplate: the template refuses the messages.
    """
    now = now if now is not None else datetime.now()
    hidden_from = [number for number in (hides, len(given)) if number is not None]
    text = template.render(given, tools=tools, now=now)
    block = _free_block(text, given, tools)
    parts: tuple[Part, ...] = ()
    ways = [(True, frozenset[str]())] if signs.all & _PLAIN else []
    ways += [(True, _PLAIN), (False, _PLAIN)]
    # Where a template looks into what the policy said (for thinking in its content), its words are its own.
    for first, (is_whole, plain) in product(dict.fromkeys(hidden_from), ways):
        cipher = _Cipher(signs, block, is_whole=is_whole, plain=plain)
        messages = [
            cipher.message(one, spans, is_own=number < first)
            for number, (one, spans) in enumerate(zip(given, authored, strict=True))
        ]
        try:
            hidden = template.render(messages, tools=[cipher.value(tool) for tool in tools], now=now)
        except UnsupportedTemplate:
            continue
        parts = tuple(cipher.parts(hidden))
        if "".join(part for _, part in parts) == text:
            return Written(text, parts)
    if not parts:  # it takes no such contents at all, so that what spells a token is parted
        parted = [{**one, "content": signs.parted(one.get("content"))} for one in given]
        parts = ((True, template.render(parted, tools=[signs.parted(tool) for tool in tools], now=now)),)
    return Written(text, parts)


def encode_parts(parts: Sequence[Part], vocabulary: Vocabulary) -> array[int]:
    """The ids of a rendering, in which only what the template wrote becomes a control token."""
    if all(is_own for is_own, _ in parts):
        return array("q", encode(vocabulary.full, "".join(text for _, text in parts)))
    slots = [text if is_own else TextSlot(text) for is_own, text in parts]
    return PromptProgram.of(slots, vocabulary).encode(lambda slot: "", vocabulary)


def _free_block(text: str, given: Sequence[Any], tools: Sequence[Any]) -> int:
    """The first sign of a private area of which no content has any."""
    if max(text, default="") < chr(_BLOCKS[0]):
        held = "".join(texts_in([given, tools]))
        if max(held, default="") < chr(_BLOCKS[0]):
            return _BLOCKS[0]
    used = {ord(sign) // _BLOCK for sign in {*text, *"".join(texts_in([given, tools]))}}
    # A text would have to hold a sign of each of sixty blocks; its own signs are then taken for others.
    return next((block for block in _BLOCKS if block // _BLOCK not in used), _BLOCKS[0])


class _Cipher:
    """Texts with other signs for their own, and back.

    Args:
        is_whole: change whole texts, but for the words of schemas; else the signs of control tokens alone.
        plain: signs that stay.
    """

    def __init__(self, signs: Signs, block: int, *, is_whole: bool, plain: frozenset[str]) -> None:
        self._signs = signs
        self._is_whole = is_whole
        ascii_signs = {chr(number) for number in range(0x21, 0x7F)}
        wide = sorted(sign for sign in signs.all if sign > "\x7f" and not sign.isspace())
        known = [*sorted(ascii_signs - plain), *wide[: _BLOCK - 0x80]]
        self._there = {ord(sign): chr(block + index) for index, sign in enumerate(known)}
        self._rare = {number: hidden for number, hidden in self._there.items() if chr(number) in signs.rare}
        self._back = {ord(hidden): chr(number) for number, hidden in self._there.items()}
        first, last = chr(block), chr(block + _BLOCK - 1)
        # Beside the sign itself, as JSON in ASCII writes it (two halves of a surrogate pair), and as Python does.
        self._hidden = re.compile(f"((?:[{first}-{last}]|{_ESCAPED.pattern})+)")

    def text(self, text: str) -> str:
        """`text` with other signs."""
        if text in _WORDS:
            return text
        if self._is_whole or self._signs.is_part(text.strip()):
            return text.translate(self._there)
        return text.translate(self._rare)

    def value(self, value: Any) -> Any:
        """A JSON-like value with other signs in every text, keys too."""
        return with_texts(value, self.text)

    def message(self, message: Mapping[str, Any], authored: Spans, *, is_own: bool) -> dict[str, Any]:
        """A message with other signs in all that its author did not write, or the policy where that `is_own`."""
        if message.get("role") == "assistant" and is_own:
            return dict(message)
        out: dict[str, Any] = {}
        for key, item in message.items():
            if key == "role":
                out[key] = item
            elif key == "content" and isinstance(item, str):
                out[key] = changed_outside(item, authored, self.text)
            elif key == "content" and isinstance(item, (list, tuple)):
                out[key] = [self._hide_part(part, authored) for part in item]
            elif key == "tool_calls" and isinstance(item, (list, tuple)):
                out[key] = [self._call(call) for call in item]
            else:
                out[key] = self.value(item)
        return out

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        out = {key: item if key == "type" else self.value(item) for key, item in call.items() if key != "function"}
        return {**out, "function": {key: self.value(item) for key, item in call.get("function", {}).items()}}

    def _hide_part(self, part: Any, authored: Spans) -> Any:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": changed_outside(part["text"], authored, self.text)}
        return part

    def parts(self, text: str) -> Iterator[Part]:
        """The parts of a rendering, each with its own signs again."""
        for index, piece in enumerate(self._hidden.split(text)):
            if piece:
                yield index % 2 == 0, self._shown_again(piece) if index % 2 else piece

    def _shown_again(self, piece: str) -> str:
        if "\\" in piece:
            # As the template wrote it: what JSON in ASCII makes of the sign itself.
            def unescaped(match: re.Match[str]) -> str:
                if match[0][1] == "U":
                    return chr(int(match[0][2:], 16)).translate(self._back)
                hidden = json.loads(f'"{match[0]}"').translate(self._back)
                return json.dumps(hidden)[1:-1]

            piece = _ESCAPED.sub(unescaped, piece)
        return piece.translate(self._back)
