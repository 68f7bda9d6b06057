"""Control tokens spelled in text, broken for readers whose tokenizer is not known.

A server makes tokens of the text that it is sent, and takes the spelling of a control token for the token, whoever
wrote it: `<|im_end|>` in a web page would end a turn. Where rlenv sends text (chat completions, raw completions,
judges, simulated users, tools that ask models), what is not the reader's own turn nor a spec author's own words gets
one space behind the first sign of each such spelling: `< |im_end|>`. It stays readable, and is no token for any
tokenizer, also not for one that drops invisible characters or folds wide ones. Where the tokenizer is known
(`rlenv.tokens`) nothing is changed: the text is encoded as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

from rlenv.messages import Message

__all__ = ["Spans", "broken", "broken_message", "broken_schemas", "broken_value", "has_marks"]

Spans = Sequence[tuple[int, int]]
"""First character and the one behind the last of each part of a text, in order."""

_OPEN, _CLOSE, _BAR = "<＜﹤", ">＞﹥", "|｜│┃"
_SIGNS: Final = re.compile(f"[{_OPEN}\\[［\\]◁｜]")
_search: Final = _SIGNS.search
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


def has_marks(text: str) -> bool:
    """Whether `text` holds a sign that a control token may begin with."""
    return _search(text) is not None


_SPELLING: Final = re.compile(
    f"[{_OPEN}](?=([^\\s{_OPEN}{_CLOSE}]{{1,100}}[{_CLOSE}]?|[{_OPEN}]/?SYS[{_CLOSE}]{{2}}))"
    f"|[\\[［](?=(/?\\w{{2,40}}[\\]］]|e~\\[))"
    "|◁(?=(/?\\w))|｜(?=(\\w{1,40}｜))|\\](?=(<\\][a-z]{1,20}\\[|~!?b[\\[\\]]))",
    re.IGNORECASE,
)
_EDGES: Final = f"/{_CLOSE}]］"


@cache
def _names() -> tuple[frozenset[str], re.Pattern[str]]:
    """What control tokens hold between their signs, in lower case, and the forms of numbered ones."""
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
    """Whether `inner`, which stands behind an opening sign, makes a control token of it."""
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
