"""Which tokens end a turn and pad a batch: what a model's files declare, held against what its chat template writes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.chat_template import ChatTemplate

__all__ = ["Marks", "Written", "marks_of", "written_by"]

_NO_ENDS: Final = frozenset({"pad", "bos", "unknown"})
_SAID: Final = "\ue000said\ue000"
_TEXT_END: Final = re.compile(r"(?i)\W*(end_?of_?text|eot_?text|eos|s)\W*")
_PAD: Final = re.compile(r"(?i)(^|[^a-z])pad(_id)?[^a-z]*$")


@dataclass(frozen=True, slots=True)
class Written:
    """What a chat template writes around an assistant's turn, as control tokens.

    `end` stands behind the last turn, "" where none does. `begins` are those of the generation prompt.
    """

    end: str = ""
    begins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a model. `ends` are the ids at which generation ends, the tokenizer's own first.

    `changed` says in words what of the declared marks was not taken over.
    """

    eos: str | None
    pad: str | None
    bos: str | None
    ends: tuple[int, ...]
    changed: tuple[str, ...] = ()


def written_by(source: str, tokens: Mapping[str, int], values: Mapping[str, str]) -> Written:
    """What a chat template writes around an assistant's turn; `Written()` where it refuses a plain conversation.

    Args:
        source: the template's text.
        tokens: the control tokens and their ids.
        values: `bos_token` and `eos_token`, as far as they are known.
    """
    user, said = {"role": "user", "content": "u"}, {"role": "assistant", "content": _SAID}
    try:
        template = ChatTemplate(source, name="of the model", values={"bos_token": "", "eos_token": "", **values})
        whole = template.render([user, said], add_generation_prompt=False)
        asked = template.render([user])
        bare = template.render([user], add_generation_prompt=False)
    except UnsupportedTemplate:
        return Written()
    begins = asked.removeprefix(bare) if asked.startswith(bare) else ""
    if _SAID not in whole:
        return Written("", frozenset(_tokens_in(begins, tokens)))
    behind = whole.rpartition(_SAID)[2]
    first = next(iter(_tokens_in(behind, tokens)), "")
    return Written(first, frozenset(_tokens_in(begins, tokens)) - {first})


def _tokens_in(text: str, tokens: Mapping[str, int]) -> list[str]:
    """The control tokens that stand in a text, in its order; of those that begin at one place the longest."""
    found: list[str] = []
    at = 0
    longest_first = sorted((token for token in tokens if token and token in text), key=len, reverse=True)
    while at < len(text):
        hit = next((token for token in longest_first if text.startswith(token, at)), None)
        if hit is not None:
            found.append(hit)
        at += len(hit) if hit is not None else 1
    return found


def marks_of(
    declared: Mapping[str, int | None], tokens: Mapping[str, int], texts: Mapping[int, str], written: Written
) -> Marks:
    """The marks of a model.

    What the template writes behind a turn ends one: the model has learned it there. Of the declared end marks those are
    kept that begin no turn, since generation would end before its first word. Padding is a token that ends no turn,
    where there is one: a trainer that leaves padding out of its loss would leave out the end mark too.

    Args:
        declared: ids by their names; `pad`, `bos` and `unknown` end no turn, `eos` and all others (`eot`, …) do.
        tokens: the control tokens and their ids.
        texts: tokens by their ids, of all that `declared` names.
        written: what the template writes (`written_by`); `Written()` without a template.
    """
    ends: list[str] = [written.end] if written.end else []
    changed: list[str] = []
    for name in declared:
        if name in _NO_ENDS:
            continue
        number = declared.get(name)
        mark = _text(declared, texts, name)
        if number is not None and mark is None:
            changed.append(f"the {name} token {number} is no id of the vocabulary")
        elif mark is not None and mark in written.begins:
            changed.append(f"the {name} token {mark} begins turns in the chat template")
        elif mark is not None and mark not in ends:
            ends.append(mark)
    own = _text(declared, texts, "eos")
    if ends and own is not None and own != ends[0] and own not in written.begins:
        changed.append(f"the eos token was {own}; the chat template ends turns with {ends[0]}")
    ids = {text: number for number, text in texts.items()} | dict(tokens)
    marks = Marks(
        ends[0] if ends else None,
        None,
        _text(declared, texts, "bos"),
        tuple(ids[mark] for mark in ends),
        tuple(changed),
    )
    return _padded(marks, declared, tokens, texts, {*ends, *written.begins})


def _text(declared: Mapping[str, int | None], texts: Mapping[int, str], name: str) -> str | None:
    number = declared.get(name)
    return None if number is None else texts.get(number)


def _padded(
    marks: Marks,
    declared: Mapping[str, int | None],
    tokens: Mapping[str, int],
    texts: Mapping[int, str],
    taken: Collection[str],
) -> Marks:
    own, unknown = _text(declared, texts, "pad"), _text(declared, texts, "unknown")
    named = sorted(token for token in tokens if _PAD.search(token))
    texts_end = sorted(token for token in tokens if _TEXT_END.fullmatch(token))
    free = [mark for mark in (own, *named, unknown, *texts_end) if mark is not None and mark not in taken]
    # Where no token is free: the end of a text, which is a lesser loss than the end of a turn.
    chosen = free[0] if free else texts.get(marks.ends[-1], marks.eos) if marks.ends else None
    if chosen is None or chosen == own:
        return replace(marks, pad=chosen)
    why = "" if own is None else f", not {own}, which begins or ends turns"
    return replace(marks, pad=chosen, changed=(*marks.changed, f"padding is {chosen}{why}"))
