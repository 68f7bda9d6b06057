"""A tokenizer with and without its added tokens, contents cut to its tokens, and the limits that count them.

Chat templates rendered as transformers renders them, without transformers.

The environment follows `transformers.utils.chat_template_utils._compile_jinja_template` (5.10): block trimming, loop
controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now` and the `generation` block.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlenv._base.bounded import drop_oldest, encodable
from rlenv._base.text import with_texts
from rlenv.errors import MissingExtra, UnsupportedTemplate, UsageError, told_as


class Encoding(Protocol):
    """A text as a tokenizer encodes it."""

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


def knows_no_text(plain: Tokenizer) -> bool:
    """True where all texts have the same ids, as transformers makes one of a folder without tokenizer.json."""
    same = encode(plain, "a")
    return encode(plain, "b") == same and all(encode(plain, word) == same for word in plain.get_vocab(False))


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
    with told_as(MissingExtra, "token-exact trajectories", ImportError, extra="tokens"):
        import tokenizers  # type: ignore[import-untyped]
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise UsageError(
            f"the tokenizer is a {type(tokenizer).__name__}; expected a tokenizers.Tokenizer or a fast tokenizer of"
            " transformers, which has backend_tokenizer"
        )
    found: Tokenizer = backend
    return found


def without_added(tokenizer: Any) -> Any:
    """A tokenizer of the same model that knows no added tokens."""
    plain = type(tokenizer)(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(plain, part, getattr(tokenizer, part))
    return plain


class Signs:
    """The characters of a set of tokens: to tell texts that may be a part of one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = "\n".join(tokens)
        self.rare = frozenset(
            sign for token in tokens for sign in ("".join(c for c in token if not c.isalnum()) or token)
        )
        """The signs that are neither letters nor digits, and the letters of tokens that have no others."""
        self.all = frozenset("".join(tokens))
        """All signs."""

    def is_part(self, text: str) -> bool:
        """True if `text` stands within a token."""
        return text in self._tokens

    def parted(self, value: Any) -> Any:
        """A JSON-like value with a space behind the first sign of each token that a text of it spells."""
        return with_texts(value, self._part_tokens)

    def _part_tokens(self, text: str) -> str:
        for token in self._tokens.split("\n"):
            if token and token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text


_KEPT, _KEPT_CHARS = 1_024, 8_192
"""The number and length of texts whose ids are kept: with four characters a token, 25 MB."""


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
        self.plain: Tokenizer = without_added(tokenizer)
        ordinary = {text for text in self.added if text.replace("▁", " ").isspace()}  # as SentencePiece spells one
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
        self._ids: dict[str, array[int]] = {}
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def ids(self, text: str) -> array[int]:
        """The ids of plain content, as an array of type q that is not to be changed; the GIL is released meanwhile.

        Those of texts that are not long are kept: the samples of a group have one prompt, and tools repeat themselves.
        """
        ids = self._ids.get(text)
        if ids is None:
            ids = array("q", encode(self.plain, text))
            if len(text) <= _KEPT_CHARS:
                self._ids[text] = ids
                drop_oldest(self._ids, most=_KEPT)
        return ids

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


_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "strftime_now"})
"""What every rendering is given."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote; rendering passes it through."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


_OF_DICT = frozenset(dir(dict))
_HARMLESS: Mapping[type, frozenset[str]] = {
    str: frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"},
    LoopContext: frozenset(("depth", "first", "index", "index0", "last", "length", "revindex", "revindex0")),
}


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, which gives what templates read most in fewer steps: keys of dicts, methods of texts, counts."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in _HARMLESS and attribute in _HARMLESS[kind]:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _make_sandbox() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def names_read(source: str) -> frozenset[str]:
    """The names that a template reads from outside, such as `bos_token`, without those that every rendering has.

    Raises:
        jinja2.TemplateSyntaxError: the text is no template.
    """
    environment = _make_sandbox()
    return frozenset(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys() - _GIVEN)


def template_of(
    tokenizer: Any, chat_template: str | None, kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], str]:
    """The text of a tokenizer's template, or of another one for it, the values that it reads, and the tokenizer's name.

    Raises:
        UsageError: there is no template.
    """
    own = getattr(tokenizer, "chat_template", None)
    if isinstance(own, Mapping):
        own = own.get("tool_use", own.get("default"))
    source = chat_template if chat_template is not None else own
    if source is None:
        raise UsageError("the tokenizer has no chat template", hint="give one as chat_template")
    special = {
        key: str(value)
        for key, value in (getattr(tokenizer, "special_tokens_map", None) or {}).items()
        if isinstance(value, str) or hasattr(value, "content")
    }
    return source, {**special, **(kwargs or {})}, str(getattr(tokenizer, "name_or_path", "") or "of this tokenizer")


class ChatTemplate:
    """A compiled chat template.

    Args:
        values: names that the template reads beside the conversation, such as `enable_thinking` or `bos_token`.

    Raises:
        UnsupportedTemplate: a syntax error; the message gives its line.
    """

    def __init__(self, source: str, *, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.source = source
        self.values = dict(values)
        self._formats: frozenset[str] = frozenset()
        try:
            self._template = _make_sandbox().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedTemplate(f"chat template {name}, line {error.lineno}: {error.message}") from error
        except jinja2.TemplateError as error:
            raise UnsupportedTemplate(f"chat template {name}: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        now: datetime | None = None,
    ) -> str:
        """The conversation's text.

        Args:
            now: the time for templates that write it; None: the clock's.

        Raises:
            UnsupportedTemplate: the template refuses the conversation, or fails on it.
        """
        moment = now if now is not None else datetime.now()

        def strftime_now(form: str) -> str:
            if form not in self._formats:
                self._formats |= {form}
            return moment.strftime(form)

        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{"strftime_now": strftime_now, **self.values},
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UnsupportedTemplate(
                f"chat template {self.name} refuses a conversation of {roles}: {type(error).__name__}: {error}"
            ) from error

    def stamp(self, now: datetime) -> tuple[str, ...]:
        """All that the template has written of the time, as it would write it at another; () where it writes none."""
        return tuple(map(now.strftime, sorted(self._formats))) if self._formats else ()
