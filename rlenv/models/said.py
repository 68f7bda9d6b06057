"""What a model's tokenizer and chat template lack: a template at all, tools in it, end marks and padding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.models.looked import Looked
from rlenv.models.marks import Marks, Written, marks_of, written_by
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.images import as_template_reads
from rlenv.tokens.load import LoadedTokenizer

__all__ = ["judge_marks", "judge_template", "judge_tools", "marks_in"]

_ANOTHER: Final = "--chat-template FILE gives another, --chat-template chatml one that ships"
_USUAL: Final = (Message("system", "You are S."), Message("user", "Q?"))


def judge_template(
    tokenizer: LoadedTokenizer, environment: Environment | None, template_kwargs: Mapping[str, Any] | None
) -> tuple[Looked, TokenEncoder | None]:
    """Whether there is a chat template whose ids can be exact, and the encoder made of it.

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
    """Whether the policy is told of the spec's tools: by the chat template, or by the prompt's own words.

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
        missing = [name for name in names if told.count(name) <= without.count(name) and not _says(prompt, name)]
        if not missing:
            return [Looked("tools in the chat template")]
    if not missing:
        return []
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    why = f"it does not show the spec's tools ({shown}), so that the policy is told of none of them"
    return [Looked("tools in the chat template", why, f"{_ANOTHER}; or name the tools in prompt.system")]


def _says(prompt: Sequence[Message], name: str) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message.content) for message in prompt)


def marks_in(tokenizer: LoadedTokenizer, source: str) -> tuple[Marks, Written]:
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
    """Whether turns end where the chat template ends them, and whether there is padding."""
    assert tokenizer.chat_template is not None
    backend = tokenizer.backend_tokenizer
    marks, written = marks_in(tokenizer, tokenizer.chat_template)
    return [_judge_ends(tokenizer, encoder, marks, written), _judge_pad(tokenizer, backend, marks)]


def _judge_ends(tokenizer: LoadedTokenizer, encoder: TokenEncoder | None, marks: Marks, written: Written) -> Looked:
    backend = tokenizer.backend_tokenizer
    declared = [text for text in (tokenizer.eos_token, *map(backend.id_to_token, tokenizer.end_ids)) if text]
    declared = list(dict.fromkeys(declared))
    begins = written.begins | (encoder.begins if encoder is not None else frozenset())
    ends = {written.end} if written.end else {encoder.stop} if encoder is not None else set()
    wanted = sorted(ends)[0] if ends else marks.eos
    way = _repair(wanted, backend.token_to_id(wanted), marks) if wanted is not None else _ANOTHER
    wrong = [mark for mark in declared if mark in begins]
    if wrong:
        why = f"{wrong[0]} ends a turn by the model's files, and begins the assistant's turn in the chat template"
        return Looked("end mark", why, way, stops=len(wrong) == len(declared))
    if ends and not ends.intersection(declared):
        own = f"{', '.join(declared)} ends one" if declared else "no mark is named"
        why = f"the chat template ends turns with {wanted}, and by the model's files {own}: a server would not stop"
        return Looked("end mark", why, way, stops=False)
    return Looked("end mark")


def _repair(mark: str, number: int | None, marks: Marks) -> str:
    ids = list(marks.ends) or ([number] if number is not None else [])
    return (
        f'write "eos_token": "{mark}" into tokenizer_config.json and "eos_token_id": {ids} into generation_config.json'
    )


def _judge_pad(tokenizer: LoadedTokenizer, backend: Any, marks: Marks) -> Looked:
    own = tokenizer.special_tokens_map.get("pad_token")
    hint = f'write "pad_token": "{marks.pad}" into tokenizer_config.json' if marks.pad else "add a token for padding"
    if own is None:
        return Looked("pad token", "the tokenizer names none", hint, stops=False)
    if backend.token_to_id(own) is None:
        return Looked("pad token", f"{own} is no token of the tokenizer", hint)
    return Looked("pad token")
