"""The other side of the comparison: whole dialogues as transformers renders them, encoded without rlenv's help.

A mark that a text of a dialogue spells must stay text, while the same mark is a token where the template writes it.
So each text goes into the template with another first sign in all marks that it spells (a private one); what then
stands there as a whole mark is the template's own. It gets a private name, the texts get their signs back, and a clone
of the tokenizer, in which each control token is called by its private name, encodes the whole.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

__all__ = ["ENDS", "Family", "Oracle", "marks_of", "stand_in"]

_FIRST, _OPEN, _CLOSE = 0xE200, "\ue400", "\ue401"
_MARKS = re.compile(
    r"<\|[^|<>\s'\"{}]{1,60}\|>|<｜[^｜<>{}]{1,60}｜>|<\|[a-zA-Z_/\"]{1,30}>|<[a-zA-Z_/]{1,30}\|>|\[/?[A-Z][A-Z_]{2,40}\]"
    r"|\[\|[a-z_]+\|\]|</?(?:seed|minimax|atem|mm):[a-z_]+>|\]~!b\[|\]~b\]|\[e~\[|<SPECIAL_\d+>|\[gMASK\]|<sop>|<bos>|<eos>"
    r"|</?think>|</?tool_call>|</?tool_response>|</?tool_calls>|</?arg_key>|</?arg_value>|<s>|</s>|<unk>"
    r"|<(?:start|end)_of_(?:turn|image|utterance)>|<(?:start|end)_function_(?:call|response|declaration)>|<escape>|<sep>"
    r"|<_(?:user|bot|system)>|<(?:end|beginning)_of_sentence>|<image>|<video>|<user>|<assistant>|</?TOOLCALL>"
)
ENDS = (
    "<|im_end|> <|eot_id|> <|eom_id|> <|eot|> <|eom|> <end_of_turn> <turn|> <｜end▁of▁sentence｜> <|END_OF_TURN_TOKEN|>"
    " <|return|> <|call|> [e~[ <seed:eos> [|endofturn|] <|role_end|> <|end_of_text|> <|end|> <|calls|> <|user|>"
    " <|observation|> <|assistant_end|> <|END|> <|eos|> <end_of_utterance> <|endoftext|> <|end_of_sentence|>"
    " <|end_of_msg|> <|message_sep|> <start_function_response> <|tool_response> <SPECIAL_12> <|hy_eos|> <|extra_0|>"
    " <end_of_sentence> <|im_msg_end|> <sep> </assistant> </s>"
).split()
"""Marks that end an assistant's turn somewhere; the ones of a template are those of these that it has."""
_BEGINS = ("<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>", "<seed:bos>", "<|startoftext|>", "]~!b[", "<s>")
# What the makers' generation_config.json names beside the tokenizer's own end mark, by a mark of the family.
_KNOWN_ENDS = {
    "<|observation|>": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "<|call|>": ("<|return|>", "<|call|>", "<|endoftext|>"),
    "<|eom_id|>": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    "<|calls|>": ("<|end|>", "<|calls|>", "<|return|>"),
}


def stand_in(raw: bytes) -> Tokenizer:
    """The model of a tokenizer.json for marks of other families: no merge of its own makes one of them."""
    state = json.loads(raw)
    model = state["model"]
    vocab: dict[str, int] = model["vocab"]
    taken = {token for token in vocab if _MARKS.fullmatch(token)}
    for number, token in enumerate(sorted(taken)):
        vocab[f"\ue500{number}"] = vocab.pop(token)
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    model["merges"] = [pair for pair in pairs if not taken & {*pair, "".join(pair)}]
    state["added_tokens"], state["post_processor"] = [], None
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def marks_of(*texts: str) -> list[str]:
    """The control marks that stand in texts, in the order in which they come."""
    return list(dict.fromkeys(found[0] for text in texts for found in _MARKS.finditer(text)))


@dataclass
class Family:
    """A chat template with the tokenizer that it is bound to."""

    name: str
    source: str
    tokenizer: Tokenizer
    special: dict[str, str]
    ends: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    # The names that rlenv reads, as transformers' tokenizers have them.
    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    @property
    def chat_template(self) -> str:
        return self.source

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return self.special

    @property
    def eos_token(self) -> str | None:
        return self.special.get("eos_token")

    @property
    def name_or_path(self) -> str:
        return self.name

    @classmethod
    def over(cls, base: Tokenizer, name: str, source: str, **kwargs: Any) -> Family:
        """A template over the model of another tokenizer, with the template's own marks as added tokens."""
        marks = marks_of(source, _sample(source))
        ends = [end for end in ENDS if end in marks]
        eos = next((end for end in ends if end not in ("<|user|>", "<|observation|>", "<|end|>", "<|call|>")), None)
        for sign, known in _KNOWN_ENDS.items():
            if sign in marks:
                ends += [end for end in known if end not in ends]
        if "eos_token" in source or eos is None:
            eos = eos or ("<|endoftext|>" if "<|observation|>" in marks or "<|end|>" in marks else "</s>")
            ends += [eos] if eos not in ends else []
        special = {"eos_token": eos}
        if "bos_token" in source:
            special["bos_token"] = next((bos for bos in _BEGINS if bos in marks), "<s>")
        marks += [mark for mark in (*special.values(), *ends) if mark not in marks]
        tokenizer = Tokenizer(base.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if getattr(base, part) is not None:
                setattr(tokenizer, part, getattr(base, part))
        tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
        return cls(name, source, tokenizer, special, tuple(ends), tuple(marks), dict(kwargs))


def _sample(source: str) -> str:
    """A rendering, for marks that the template puts together; "" where it takes none of these."""
    call = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {"x": "v"}}}
    conversation = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "call00000", "name": "look"},
    ]
    out = ""
    for messages in (conversation, conversation[:1], [conversation[0], {"role": "assistant", "content": "a"}]):
        try:
            out += _compile_jinja_template(source).render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, bos_token="", eos_token=""
            )
        except Exception:  # templates raise what they like
            continue
    return out


class Oracle:
    """Renders and encodes whole dialogues of one family.

    A *protected* text is one in which marks of contents have a private first sign. `ids` are those of the clone.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._template = _compile_jinja_template(family.source)
        control = sorted(family.control, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, control))) if control else re.compile(r"(?!)")
        firsts = dict.fromkeys(mark[0] for mark in control)
        self._hide = {first: chr(_FIRST + number) for number, first in enumerate(firsts)}
        self._show = {hidden: first for first, hidden in self._hide.items()}
        escaped = {f"\\u{ord(hidden):04x}": first for hidden, first in self._show.items()}
        self._hidden = re.compile("|".join([*map(re.escape, self._show), *map(re.escape, escaped)]) or r"(?!)")
        self._shown = {**self._show, **escaped}
        self._private = {mark: f"{_OPEN}{number}{_CLOSE}" for number, mark in enumerate(control)}
        self._clone = self._cloned()
        self.now = datetime.now()
        """The time that templates are told: that of the trajectory that is compared."""

    def _cloned(self) -> Tokenizer:
        """The tokenizer with each control token under its private name, and under the same id."""
        state = json.loads(self.family.tokenizer.to_str())
        vocab = state["model"].get("vocab")
        for token in state["added_tokens"]:
            name = self._private.get(token["content"])
            if name is None:
                continue
            if isinstance(vocab, dict) and token["content"] in vocab:
                vocab[name] = vocab.pop(token["content"])
            token.update(content=name, normalized=False)
        state["post_processor"] = None
        clone = Tokenizer.from_str(json.dumps(state, ensure_ascii=False))
        for mark, name in self._private.items():
            wanted, found = self.family.tokenizer.token_to_id(mark), clone.token_to_id(name)
            if wanted != found:
                raise AssertionError(f"{self.family.name}: the clone gives {mark} the id {found}, not {wanted}")
        return clone

    def protect(self, value: Any) -> Any:
        """A JSON-like value in which no text spells a control token."""
        if isinstance(value, str):
            while (found := self._marks.search(value)) is not None:
                at = found.start()
                value = value[:at] + self._hide[value[at]] + value[at + 1 :]
            return value
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        return value

    def plain(self, protected: str) -> str:
        """The text as it is."""
        return self._hidden.sub(lambda found: self._shown[found[0]], protected)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, generate: bool = True) -> str:
        """The protected text of a dialogue; raises what the template raises."""
        return self._raw(self.protect(list(messages)), self.protect(list(tools)), generate)

    def is_blind(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], protected: str) -> bool:
        """Whether the template writes the same for texts as they are: it looks for no marks in contents."""
        try:
            return self._raw(list(messages), list(tools), True) == self.plain(protected)
        except Exception:
            return False

    def _raw(self, messages: Any, tools: Any, generate: bool) -> str:
        out: str = self._template.render(
            messages=messages,
            tools=tools or None,
            documents=None,
            add_generation_prompt=generate,
            strftime_now=self.now.strftime,
            **{**self.family.special, **self.family.kwargs},
        )
        return out

    def ids(self, protected: str) -> list[int]:
        """The ids of a protected text: the template's own marks are tokens, all else is text."""
        named = self._marks.sub(lambda found: self._private[found[0]], protected)
        ids: list[int] = self._clone.encode(self.plain(named), add_special_tokens=False).ids
        return ids

    def first_end(self, protected: str, start: int) -> tuple[int, int] | None:
        """Where the first mark that ends a turn stands behind `start`."""
        for found in self._marks.finditer(protected, start):
            if found[0] in self.family.ends:
                return found.span()
        return None

    def mark_at(self, protected: str, place: int) -> int:
        """`place`, or the beginning of the mark of the template that it stands in."""
        for found in self._marks.finditer(protected, max(place - 60, 0)):
            if found.start() < place < found.end():
                return found.start()
        return place

    def without_marks(self, protected: str) -> str:
        return self._marks.sub("", protected)

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.family.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    @staticmethod
    def same_text(one: str, other: str) -> bool:
        return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
