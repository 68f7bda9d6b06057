"""Built-in dialects by name, and inline ones over them.

A family is a file in `families/`, in the keys that a spec has under `dialect`; it is read once it is asked for.
Formats: the chat templates that the families publish, and what vLLM 0.33's tool parsers of the same names accept
(Apache-2.0; facts only). What a family offers as leniency is what that parser reads beyond the family's own format.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from rlenv.dialects.engine import TextDialect
from rlenv.language.dialect import DialectSpec
from rlenv.language.kinds import BUILT_IN, Kind
from rlenv.language.yamltree import parse_text
from rlenv.messages import Message

FAMILIES: Final[tuple[str, ...]] = tuple(BUILT_IN["dialects"])
"""The names of the built-in families."""
_FOLDER: Final = Path(__file__).with_name("families")


def family_text(name: str) -> str:
    """The YAML of a built-in family, which any of its names gives.

    Raises:
        KeyError: there is no such family.
    """
    family = row_name(name, FAMILIES)
    if family not in FAMILIES:
        raise KeyError(name)
    return (_FOLDER / f"{family}.yaml").read_text(encoding="utf-8")


@cache
def row_of(name: str) -> DialectSpec:
    """The whole row of a built-in family, which any of its names gives.

    Raises:
        KeyError: there is no such family.
    """
    name = row_name(name, FAMILIES)
    given = DialectSpec.model_validate(parse_text(family_text(name), file=f"{name}.yaml", base=_FOLDER).plain())
    return whole_row(name, given).model_copy(update={"base": name})


def build(name: str, spec: DialectSpec) -> TextDialect:
    """A dialect from the keys that `spec` gives, over the row of its `base`; keys of `chat` are merged.

    Raises:
        KeyError: `base` is no built-in family.
    """
    return TextDialect(name, whole_row(name, spec))


def whole_row(name: str, spec: DialectSpec) -> DialectSpec:
    """The whole row from which `build` makes a dialect.

    Raises:
        KeyError: `base` is no built-in family.
    """
    base_name = spec.base if "base" in spec.model_fields_set or name not in FAMILIES else name
    if base_name is None:
        return spec
    base = row_of(base_name)
    given: dict[str, Any] = {key: getattr(spec, key) for key in spec.model_fields_set if key != "base"}
    if "chat" in given:
        chat = spec.chat
        given["chat"] = base.chat.model_copy(update={key: getattr(chat, key) for key in chat.model_fields_set})
    return base.model_copy(update=given)


def _kind(name: str) -> Kind:
    return Kind(DialectSpec, lambda spec=None: build(name, spec if spec is not None else DialectSpec()))


KINDS: Mapping[str, Kind] = {name: _kind(name) for name in FAMILIES}


def __getattr__(name: str) -> Kind:
    # The registry names each kind by an attribute of a module, and by any name that people know it by.
    try:
        return KINDS[row_name(name, FAMILIES)]
    except KeyError as error:
        raise AttributeError(name) from error


_NAMES: Final = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
ALIASES: Final[Mapping[str, str]] = {name: family for family, names in _NAMES.items() for name in names}
"""The families by the other names that people know them by."""


def row_name(name: str, rows: Iterable[str]) -> str:
    """The row that `name` stands for; `name` itself where it is a row, or no name of one."""
    known = tuple(rows)
    if name in known:
        return name
    folded = _folded(name)
    if folded in ALIASES:
        return ALIASES[folded]
    return next((row for row in known if _folded(row) == folded), name)


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


Spans = Sequence[tuple[int, int]]
"""First character and the one behind the last of each part of a text, in order."""

_OPEN, _CLOSE, _BAR = "<＜﹤", ">＞﹥", "|｜│┃"
_SIGNS: Final = re.compile(f"[{_OPEN}\\[［\\]◁｜]")
find_mark: Final = _SIGNS.search
"""The first sign of a text that a control token may begin with, as a match; None where there is none."""
# Control tokens and placeholders of published tokenizers that are neither `<|…|>` nor a mark of a dialect's row.
_TAGS: Final = (
    "s|unk|pad|bos|eos|mask|sep|cls|sop|eop|bop|eod|image|video|audio|img|start_of_turn|end_of_turn|start_of_image"
    "|end_of_image|image_soft_token|audio_soft_token|end_of_utterance|fake_token_around_image|tool_call|tool_response"
    "|think|thinking|tool_calls|function_call|function_calls|escape|start_function_\\w{1,20}"
    "|end_function_\\w{1,20}|fim[_-]\\w{1,20}|repo_name|reponame|file_sep|gh_stars|issue_\\w{1,20}"
    "|jupyter_\\w{1,20}|empty_output|commit_\\w{1,20}|unused_?\\d{1,6}|reserved\\w{0,40}|extra_id_\\d{1,6}"
    "|special_?\\w{0,20}|SPECIAL_\\d{1,6}|pad_\\d{1,6}|0x[0-9a-f]{2}|endoftext|startoftext|System|User|Assistant"
    "|human|bot|AVAILABLE_TOOLS"
)
_BRACKETS: Final = (
    "INST|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|AVAILABLE_TOOLS|SYSTEM_PROMPT|ARGS|CALL_ID|THINK|IMG|IMG_BREAK|IMG_END"
    "|AUDIO|BEGIN_AUDIO|MODEL_SETTINGS|PREFIX|MIDDLE|SUFFIX|REFERENCE_DOC_\\d{1,3}|REF|CLS|SEP|MASK|PAD|UNK|BOS|EOS"
    "|gMASK|sMASK|UNUSED_TOKEN_\\d{1,6}|unused\\d{1,6}|control_\\d{1,6}"
)
# Their marks are control tokens of no tokenizer, and prompts and replies name them.
_OF_NO_MODEL: Final = ("search_r1", "react", "xml", "xml_json")
_COMPLETE: Final = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Za-z_]{2,40}\]")


_SPELLING: Final = re.compile(
    f"[{_OPEN}](?=([^\\s{_OPEN}{_CLOSE}]{{1,100}}[{_CLOSE}]?|[{_OPEN}]/?SYS[{_CLOSE}]{{2}}))"
    f"|[\\[［](?=(/?\\w{{2,40}}[\\]］]|e~\\[))"
    "|◁(?=(/?\\w))|｜(?=(\\w{1,40}｜))|\\](?=(<\\][a-z]{1,20}\\[|~!?b[\\[\\]]))",
    re.IGNORECASE,
)
_EDGES: Final = f"/{_CLOSE}]］"


@cache
def _names() -> tuple[frozenset[str], re.Pattern[str]]:
    """The names of control tokens between their signs, in lower case, and the pattern of numbered ones."""
    from rlenv.dialects.built_in import FAMILIES, family_text  # the marks of all built-in families

    listed = [name for name in f"{_TAGS}|{_BRACKETS}".split("|") if name.replace("_", "").isalnum()]
    forms = [name for name in f"{_TAGS}|{_BRACKETS}".split("|") if name not in listed]
    # The files are searched as texts: reading them all as YAML takes twenty times as long.
    texts = [family_text(name) for name in FAMILIES if name not in _OF_NO_MODEL]
    marks = {mark[1:-1] for text in texts for mark in _COMPLETE.findall(text) if "{" not in mark}
    known = frozenset(name.strip("/").lower() for name in (*listed, *marks))
    return known, re.compile("|".join(forms).lower())


@lru_cache(maxsize=4096)
def _is_control(inner: str) -> bool:
    """True if `inner`, which stands behind an opening sign, makes a control token of it."""
    bare = inner.strip(_EDGES)
    if bare[:1] in _BAR or (bare[-1:] in _BAR and inner[-1:] in _CLOSE):
        return bool(bare.strip(_BAR)) or len(bare) > 1
    if inner[-1:] not in _EDGES:
        return False
    known, forms = _names()
    bare = bare.lower()
    return bare in known or forms.fullmatch(bare) is not None


def broken(text: str, authored: Spans = ()) -> str:
    """`text` with a space behind the first sign of every control token that it spells.

    Args:
        authored: the parts that stay as they are; a spelling that reaches out of one part is broken.
    """
    if _SIGNS.search(text) is None:
        return text

    def parted(match: re.Match[str]) -> str:
        sign, group = match[0], match.lastindex or 0
        inner = match[group]
        if (sign in _OPEN or sign in "[［") and inner[0] not in _OPEN and inner != "e~[" and not _is_control(inner):
            return sign
        end = match.end(group)
        is_own = any(first <= match.start() and end <= last for first, last in authored)
        return sign if is_own else f"{sign} "

    return _SPELLING.sub(parted, text)


def broken_value(value: Any) -> Any:
    """A JSON-like value with every text in it broken, keys too; the same object where nothing was to break."""
    if isinstance(value, str):
        return broken(value)
    if isinstance(value, Mapping):
        new = {broken_value(key): broken_value(item) for key, item in value.items()}
        same = len(new) == len(value) and all(key in value and value[key] is item for key, item in new.items())
        return value if same else new
    if isinstance(value, (list, tuple)):
        items = [broken_value(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def broken_schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Schemas of tools with their texts broken: names, descriptions, keys and choices."""
    return tuple(broken_value(tool) for tool in tools)


def broken_message(message: Message) -> Message:
    """A message with its content and its name broken; an assistant's as it is, since that is the reader's own turn."""
    if message.role == "assistant":
        return message
    content = broken(message.content, message.authored)
    name = None if message.name is None else broken(message.name)
    if content is message.content and name is message.name:
        return message
    return replace(message, content=content, name=name, authored=())
