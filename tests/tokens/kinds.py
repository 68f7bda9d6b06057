"""Small chat templates, one for each kind of thing that templates do to history, and an oracle that knows no rlenv.

The oracle renders a whole conversation with jinja and encodes it by a tokenizer whose control tokens have private
names: what a content spells is text there, whatever it is.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from tokenizers import AddedToken, Tokenizer

from rlenv.messages import Message, ToolCall
from rlenv.testing.tokens import small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.encoder import History

MARKS = (
    "<|im_start|> <|im_end|> <|endoftext|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think>"
    " <|calls|> <|return|> <|user|> <|assistant|> <|observation|> <|system|> <|muse|> <muse|>"
).split()
SOURCE = """\
{%- set ns = namespace(last=-1, results=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools and not tools_move %}{{- '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'system' and not system_moves %}{{- '<|im_start|>system\\n' + m.content + '<|im_end|>\\n' }}
  {%- elif m.role == 'user' %}
    {%- if tools and tools_move and loop.index0 == ns.last %}{{- (tools | tojson) }}{% endif %}
    {{- '<|im_start|>user\\n' }}
    {%- if system_moves and loop.last and messages[0].role == 'system' %}{{- messages[0].content + ': ' }}{% endif %}
    {{- m.content + '<|im_end|>\\n' }}
  {%- elif m.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- set thought = m.reasoning_content if m.reasoning_content and loop.revindex0 < (keeps_last or 999) else '' %}
    {%- if thought and (keeps or loop.index0 > ns.last) %}{{- think[0] + '\\n' + thought + '\\n' + think[1] + '\\n' }}
    {%- elif shortens and not loop.last %}{{- think[0] + think[1] }}
    {%- elif empties %}{{- think[0] + '\\n\\n' + think[1] + '\\n' }}{% endif %}
    {%- if not m.tool_calls or beside == 'kept' %}{{- m.content or '' }}{% endif %}
    {%- for call in m.tool_calls or [] %}
      {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
      {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {%- if m.tool_calls and beside == 'behind' %}{{- m.content or '' }}{% endif %}
    {{- (calls_stop if m.tool_calls else (last_stop if loop.last and last_stop else '<|im_end|>')) + '\\n' }}
  {%- elif m.role == 'tool' %}
    {{- '<|im_start|>tool' }}{% if counts and ns.results + 1 >= counts %}{{- ' ' ~ ns.results }}{% endif %}
    {%- set ns.results = ns.results + 1 %}
    {{- '\\n' + m.content + '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' + opens }}{% endif %}
"""
# Ends no turn: what follows begins with a mark of its own.
BARE = """\
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|assistant|>\\n<think>' + (m.reasoning_content or '') + '</think>' }}
    {%- if m.content %}{{- '\\n' + m.content }}{% endif %}
    {%- for call in m.tool_calls or [] %}
      {{- '\\n<tool_call>' + call.function.name + '\\n' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
  {%- elif m.role == 'tool' %}
    {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
    {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
  {%- else %}{{- '<|' + m.role + '|>\\n' + m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""
VALUES: dict[str, Any] = {"keeps": True, "beside": "kept", "calls_stop": "<|im_end|>", "opens": "",
                           "think": ["<think>", "</think>"]}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "A tool <tool_call>.", "parameters": {"type": "object"}},
    }
    for name in ("look", "add")
]


@dataclass(frozen=True)
class Kind:
    """A template, and the ends of turns that its model's files would name."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    source: str = SOURCE
    ends: tuple[str, ...] = ("<|im_end|>",)
    says: dict[str, Any] = field(default_factory=dict)
    """How the policy's own turns differ from those of the template's history."""


_ALL = {"keeps": True, "beside": "kept", "opens": "", "last_stop": None}
KINDS = {
    kind.name: kind
    for kind in (
        Kind("grows"),
        Kind("drops thinking", {"keeps": False}, says=_ALL),
        Kind("other marks", {"keeps": False, "think": ["<|muse|>", "<muse|>"]}, says=_ALL),
        Kind("drops an empty block", {"keeps": False, "opens": "<think>\n\n</think>\n"}, says=_ALL),
        Kind("writes empty blocks", {"empties": True}),
        Kind("writes blocks that nobody said", {"empties": True}, says={"empties": False}),
        Kind("shortens old empty blocks", {"empties": True, "shortens": True}),
        Kind("opens a block", {"empties": True, "opens": "<think>"}),
        Kind("moves the system text", {"system_moves": True}),
        Kind("moves the tools", {"tools_move": True}),
        Kind("drops text beside calls", {"beside": "dropped"}, says=_ALL),
        Kind("moves text behind calls", {"beside": "behind"}, says=_ALL),
        Kind("text behind calls", {"beside": "behind"}),
        Kind("counts", {"counts": 1}),
        Kind("counts from the fourth on", {"counts": 4}),
        Kind("keeps the last thoughts", {"keeps_last": 6}, says={"keeps_last": None}),
        Kind("two stops", {"calls_stop": "<|calls|>"}, ends=("<|calls|>", "<|im_end|>")),
        Kind("ends the last otherwise", {"last_stop": "<|return|>"}, ends=("<|return|>", "<|im_end|>")),
        Kind("bare", source=BARE, ends=("<|user|>", "<|observation|>")),
    )
}


@cache
def tokenizer() -> Tokenizer:
    """The small tokenizer with all marks."""
    made = Tokenizer.from_str(small_tokenizer().to_str())
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return made


@cache
def _private() -> Tokenizer:
    data = json.loads(tokenizer().to_str())
    for token in data["added_tokens"]:
        if token["content"] in data["model"]["vocab"]:
            vocab = data["model"]["vocab"]
            vocab[_name(token["content"])] = vocab.pop(token["content"])
        token["content"] = _name(token["content"])
    return Tokenizer.from_str(json.dumps(data))


def _name(mark: str) -> str:
    return chr(0xE800 + MARKS.index(mark))


class Oracle:
    """What a kind's template writes of a conversation, and its ids."""

    def __init__(self, kind: Kind) -> None:
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(kind.source)
        self._values = {**VALUES, **kind.values}
        self._says = {**self._values, **kind.says}
        self._ends = kind.ends
        self._spelled = re.compile("|".join(map(re.escape, MARKS)))

    def text(self, conversation: list[dict[str, Any]], tools: list[Any], *, generate: bool = True) -> str:
        """The rendering; the first sign of each mark in a content is a private one."""
        messages, schemas = self._hidden(conversation), self._hidden(tools)
        return self._template.render(messages=messages, tools=schemas, add_generation_prompt=generate, **self._values)

    def said(self, turn: dict[str, Any]) -> str:
        """What the policy says in a turn, up to its first end mark."""
        asked = [{"role": "user", "content": "q"}]

        def text(messages: list[Any], generate: bool) -> str:
            return self._template.render(messages=messages, tools=None, add_generation_prompt=generate, **self._says)

        begin, whole = text(asked, True), text([*asked, *self._hidden([turn])], False)
        assert whole.startswith(begin)
        said = whole[len(begin) :]
        places = [(said.find(end), end) for end in self._ends if end in said]
        if not places:  # the mark of what follows
            return said + self._ends["tool_calls" in turn]
        at, end = min(places)
        return said[: at + len(end)]

    def ids(self, text: str) -> list[int]:
        """The ids of a rendering, in which the template alone has written control tokens."""
        text = self._spelled.sub(lambda match: _name(match[0]), text).replace("\ue7ff", "<")
        return _private().encode(text, add_special_tokens=False).ids

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._spelled.sub(lambda match: "\ue7ff" + match[0][1:], value)
        if isinstance(value, dict):
            return {key: self._hidden(item) for key, item in value.items()}
        return [self._hidden(item) for item in value] if isinstance(value, list) else value


@dataclass
class Said:
    """One turn of a dialogue, and what answers it."""

    said: Message
    answers: tuple[Message, ...]

    def turn(self) -> dict[str, Any]:
        """The assistant's message as templates take it."""
        return {**self.said.as_dict(), **({"reasoning_content": self.said.thinking} if self.said.thinking else {})}


_CONTENTS = ("R", "", "a\n b", "héllo 世界 🎉", '{"n": [1]}', "<|im_end|>\n<|im_start|>user", "x <tool_call> y</think>")
_WORDS = ("So.", "ünï look", "first one, then two")


def dialogues(
    count: int, seed: str, *, with_users: bool = True
) -> Iterator[tuple[list[dict[str, Any]], list[Any], list[Said]]]:
    """First messages, tools and turns of random dialogues; the same for the same seed."""
    dice = random.Random(seed)
    for _ in range(count):
        prompt = [{"role": "system", "content": "You are S."}] * dice.randint(0, 1)
        prompt = [*prompt, {"role": "user", "content": dice.choice(_CONTENTS) + "Q"}]
        turns: list[Said] = []
        thinks = dice.choice(("never", "always", "mixed"))
        for _ in range(dice.randint(1, 4)):
            thinking = dice.choice(_WORDS) if thinks == "always" or (thinks == "mixed" and dice.random() < 0.5) else ""
            if with_users and dice.random() < 0.35:
                said = Message("assistant", dice.choice(_WORDS), thinking=thinking)
                answers: tuple[Message, ...] = (Message("user", dice.choice(_CONTENTS)),)
            else:
                numbers = range(dice.randint(1, 3))
                calls = tuple(ToolCall("look", {"x": dice.choice(_CONTENTS)}, f"call{n:05d}") for n in numbers)
                said = Message("assistant", dice.choice(("", "", "I look.")), calls, thinking=thinking)
                answers = tuple(
                    Message("tool", dice.choice(_CONTENTS), name="look", tool_call_id=f"call{n:05d}") for n in numbers
                )
            turns.append(Said(said, answers))
        yield prompt, TOOLS if dice.random() < 0.7 else [], turns


def bound(kind: Kind, history: History = "grow") -> TokenEncoder:
    """The encoder of a kind's template. What it finds of the template is found once for all tests and histories."""
    made = copy.copy(_of(kind.name) if KINDS.get(kind.name) is kind else _made(kind))
    made.history = history
    return made


@cache
def _of(name: str) -> TokenEncoder:
    return _made(KINDS[name])


def _made(kind: Kind) -> TokenEncoder:
    return TokenEncoder(
        tokenizer(),
        chat_template=kind.source,
        template_kwargs={**VALUES, **kind.values},
        end_ids=[tokenizer().token_to_id(mark) for mark in kind.ends],
    )
