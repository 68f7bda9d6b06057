"""A model's chat template: the marks of its turns, and judgements on it, its tools and its control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.models.architecture import Looked
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import LoadedTokenizer, bind
from rlenv.tokens.images import as_template_reads
from rlenv.tokens.vocabulary import ChatTemplate

_NO_ENDS: Final = frozenset({"pad", "bos", "unknown"})
_SAID: Final = "\ue000said\ue000"
_TEXT_END: Final = re.compile(r"(?i)\W*(end_?of_?text|eot_?text|eos|s)\W*")
_PAD: Final = re.compile(r"(?i)(^|[^a-z])pad(_id)?[^a-z]*$")


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """The marks that a chat template writes around an assistant's turn, as control tokens.

    `end` stands behind the last turn, "" where none does. `begins` are those of the generation prompt.
    """

    end: str = ""
    begins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EndMarks:
    """The marks of a model. `ends` are the ids at which generation ends, the tokenizer's own first.

    `changed` says in words what of the declared marks was not taken over.
    """

    eos: str | None
    pad: str | None
    bos: str | None
    ends: tuple[int, ...]
    changed: tuple[str, ...] = ()


def written_by(source: str, tokens: Mapping[str, int], values: Mapping[str, str]) -> TurnMarks:
    """The marks that a template writes around an assistant's turn; `TurnMarks()` where it refuses a plain conversation.

    Args:
        values: `bos_token` and `eos_token`, as far as they are known.
    """
    user, said = {"role": "user", "content": "u"}, {"role": "assistant", "content": _SAID}
    try:
        template = ChatTemplate(source, name="of the model", values={"bos_token": "", "eos_token": "", **values})
        whole = template.render([user, said], add_generation_prompt=False)
        asked = template.render([user])
        bare = template.render([user], add_generation_prompt=False)
    except UnsupportedTemplate:
        return TurnMarks()
    begins = asked.removeprefix(bare) if asked.startswith(bare) else ""
    if _SAID not in whole:
        return TurnMarks("", frozenset(_tokens_in(begins, tokens)))
    first = next(iter(_tokens_in(whole.rpartition(_SAID)[2], tokens)), "")
    return TurnMarks(first, frozenset(_tokens_in(begins, tokens)) - {first})


def _tokens_in(text: str, tokens: Mapping[str, int]) -> Iterator[str]:
    """The control tokens that stand in a text, in its order; of those that begin at one place the longest."""
    at = 0
    longest_first = sorted((token for token in tokens if token and token in text), key=len, reverse=True)
    while at < len(text):
        hit = next((token for token in longest_first if text.startswith(token, at)), None)
        if hit is not None:
            yield hit
        at += len(hit) if hit is not None else 1


def marks_of(
    declared: Mapping[str, int | None], tokens: Mapping[str, int], texts: Mapping[int, str], written: TurnMarks
) -> EndMarks:
    """The marks of a model.

    What the template writes behind a turn ends one: the model has learned it there. Of the declared end marks those are
    kept that begin no turn, since generation would end before its first word. Padding is a token that ends no turn,
    where there is one: a trainer that leaves padding out of its loss would leave out the end mark too.

    Args:
        declared: ids by their names; `pad`, `bos` and `unknown` end no turn, `eos` and all others (`eot`, …) do.
        texts: tokens by their ids, of all that `declared` names.
        written: what the template writes (`written_by`); `TurnMarks()` without a template.
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
    marks = EndMarks(
        ends[0] if ends else None,
        None,
        _text(declared, texts, "bos"),
        tuple(ids[mark] for mark in ends),
        tuple(changed),
    )
    pad, unknown = _text(declared, texts, "pad"), _text(declared, texts, "unknown")
    named = sorted(token for token in tokens if _PAD.search(token))
    texts_end = sorted(token for token in tokens if _TEXT_END.fullmatch(token))
    taken = (None, *ends, *written.begins)
    free = [one for one in (pad, *named, unknown, *texts_end) if one not in taken]
    # Where no token is free: the end of a text, which is a lesser loss than the end of a turn.
    end = texts.get(marks.ends[-1], marks.eos) if marks.ends else None
    chosen = free[0] if free else end
    if chosen is None or chosen == pad:
        return replace(marks, pad=chosen)
    why = "" if pad is None else f", not {pad}, which begins or ends turns"
    return replace(marks, pad=chosen, changed=(*marks.changed, f"padding is {chosen}{why}"))


def _text(declared: Mapping[str, int | None], texts: Mapping[int, str], name: str) -> str | None:
    number = declared.get(name)
    return None if number is None else texts.get(number)


_ANOTHER: Final = "--chat-template FILE gives another, --chat-template chatml one that ships"
_USUAL: Final = (Message("system", "You are S."), Message("user", "Q?"))


def judge_template(
    tokenizer: LoadedTokenizer, environment: Environment | None, template_kwargs: Mapping[str, Any] | None
) -> tuple[Looked, TokenEncoder | None]:
    """The judgement on the chat template (is there one whose ids can be exact?), and the encoder made of it.

    The encoder is None where there is none, and for environments that show images, whose processor is not asked here.
    """
    if not tokenizer.chat_template:
        return Looked("chat template", "the model has none", _ANOTHER.replace("another", "one", 1)), None
    try:
        if environment is not None and environment.spec.prompt.images:
            ChatTemplate(tokenizer.chat_template, name=tokenizer.name_or_path, values={})
            return Looked("chat template"), None
        options: dict[str, Any] = {"template_kwargs": template_kwargs, "history": "keep"}
        encoder = TokenEncoder(tokenizer, **options) if environment is None else bind(tokenizer, environment, **options)
    except UnsupportedTemplate as error:
        return Looked("chat template", str(error), _ANOTHER), None
    return Looked("chat template"), encoder


def judge_tools(
    tokenizer: LoadedTokenizer,
    environment: Environment,
    template_kwargs: Mapping[str, Any] | None,
    prompts: Sequence[Sequence[Message]],
) -> list[Looked]:
    """A judgement: is the policy told of the spec's tools, by the chat template or by the prompt's own words?

    A dialect whose calls go on in the assistant's own turn is told of them by its prompt alone.
    """
    tools = environment.tool_schemas
    if not tools or environment.same_turn is not None or not tokenizer.chat_template:
        return []
    names = [str(schema.get("function", schema).get("name")) for schema in tools]
    values = {"bos_token": "", "eos_token": "", **tokenizer.special_tokens_map, **(template_kwargs or {})}
    template = ChatTemplate(tokenizer.chat_template, name=tokenizer.name_or_path, values=values)
    missing: list[str] = []
    for prompt in prompts or (_USUAL, _USUAL[1:]):
        messages = list(map(as_template_reads, prompt))
        try:
            without, told = template.render(messages), template.render(messages, tools=tools)
        except UnsupportedTemplate:
            continue  # one without a system message, or the verdict says it
        missing = [name for name in names if told.count(name) <= without.count(name) and not _prompt_says(prompt, name)]
        if not missing:
            return [Looked("tools in the chat template")]
    if not missing:
        return []
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    why = f"it does not show the spec's tools ({shown}), so that the policy is told of none of them"
    return [Looked("tools in the chat template", why, f"{_ANOTHER}; or name the tools in prompt.system")]


def _prompt_says(prompt: Sequence[Message], name: str) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message.content) for message in prompt)


def marks_in(tokenizer: LoadedTokenizer, source: str) -> tuple[EndMarks, TurnMarks]:
    """The marks that a model should have with a chat template, and what the template writes."""
    backend = tokenizer.backend_tokenizer
    added = {token.content: number for number, token in backend.get_added_tokens_decoder().items()}
    special = tokenizer.special_tokens_map
    ids = {name: backend.token_to_id(special.get(f"{name}_token", "")) for name in ("eos", "pad", "bos", "unk")}
    declared: dict[str, int | None] = {**ids, "unknown": ids.pop("unk")}
    more = [number for number in tokenizer.end_ids if number != declared["eos"]]
    declared |= {f"end {place}": number for place, number in enumerate(more)}
    known = {number: backend.id_to_token(number) for number in declared.values() if number is not None}
    texts = {number: text for number, text in known.items() if text is not None}
    values = {name: text for name, text in special.items() if name in ("bos_token", "eos_token")}
    written = written_by(source, added, values)
    return marks_of(declared, added, texts, written), written


def judge_marks(tokenizer: LoadedTokenizer, encoder: TokenEncoder | None) -> list[Looked]:
    """Judgements: do turns end where the chat template ends them, and is there padding?"""
    assert tokenizer.chat_template is not None
    backend = tokenizer.backend_tokenizer
    marks, written = marks_in(tokenizer, tokenizer.chat_template)
    return [_judge_ends(tokenizer, encoder, marks, written), _judge_pad(tokenizer, backend, marks)]


def _judge_ends(
    tokenizer: LoadedTokenizer, encoder: TokenEncoder | None, marks: EndMarks, written: TurnMarks
) -> Looked:
    backend = tokenizer.backend_tokenizer
    declared = [text for text in (tokenizer.eos_token, *map(backend.id_to_token, tokenizer.end_ids)) if text]
    declared = list(dict.fromkeys(declared))
    begins = written.begins | (encoder.begins if encoder is not None else frozenset())
    ends = {written.end} if written.end else {encoder.stop} if encoder is not None else set()
    wanted = sorted(ends)[0] if ends else marks.eos
    way = _repair_text(wanted, backend.token_to_id(wanted), marks) if wanted is not None else _ANOTHER
    wrong = [mark for mark in declared if mark in begins]
    if wrong:
        why = f"{wrong[0]} ends a turn by the model's files, and begins the assistant's turn in the chat template"
        return Looked("end mark", why, way, stops=len(wrong) == len(declared))
    if ends and not ends.intersection(declared):
        own = f"{', '.join(declared)} ends one" if declared else "no mark is named"
        why = f"the chat template ends turns with {wanted}, and by the model's files {own}: a server would not stop"
        return Looked("end mark", why, way, stops=False)
    return Looked("end mark")


def _repair_text(mark: str, number: int | None, marks: EndMarks) -> str:
    ids = list(marks.ends) or ([number] if number is not None else [])
    return (
        f'write "eos_token": "{mark}" into tokenizer_config.json and "eos_token_id": {ids} into generation_config.json'
    )


def _judge_pad(tokenizer: LoadedTokenizer, backend: Any, marks: EndMarks) -> Looked:
    own = tokenizer.special_tokens_map.get("pad_token")
    hint = f'write "pad_token": "{marks.pad}" into tokenizer_config.json' if marks.pad else "add a token for padding"
    if own is None:
        return Looked("pad token", "the tokenizer names none", hint, stops=False)
    if backend.token_to_id(own) is None:
        return Looked("pad token", f"{own} is no token of the tokenizer", hint)
    return Looked("pad token")
