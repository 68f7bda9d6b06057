"""Writes calls, results and conversations as a row of data says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from rlenv.dialects.base import SameTurn, calls_of
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.values import ValueWriter
from rlenv.language.dialect import DialectSpec
from rlenv.messages import MalformedCall, Message, ToolCall

_TOOLS: Final = """\
# Tools

You may call one or more of these functions:
<tools>
{tools}
</tools>

Write each call like this:
{example}"""


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Form:
    """A text with `{name}` in it, each place of a name found once; other braces are text."""

    __slots__ = ("_head", "_rest", "around")

    def __init__(self, form: str, names: Sequence[str]) -> None:
        self._rest: list[tuple[str, str]] = []
        """The places in order: a name and the text behind it."""
        head: str | None = None
        rest = form
        while True:
            places = [(at, name) for name in names if (at := rest.find("{" + name + "}")) >= 0]
            place, name = min(places, default=(len(rest), ""))
            if head is None:
                head = rest[:place]
            else:
                self._rest[-1] = (self._rest[-1][0], rest[:place])
            if not name:
                break
            self._rest.append((name, ""))
            rest = rest[place + len(name) + 2 :]
        self._head = head
        is_only = [name for name, _ in self._rest] == names[:1]
        self.around = (head, self._rest[0][1]) if is_only else None
        """What stands around the first of the names, where it is the only one that the text has."""

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with its places filled."""
        text = self._head
        for name, behind in self._rest:
            text += values[name] + behind
        return text


def _fill_form(form: str, **values: str) -> str:
    return _Form(form, list(values)).fill(values)


def _split_turn(turn: str) -> tuple[str, str]:
    head, _, tail = turn.partition("{content}")
    return head, tail


class Writer:
    """Writes messages as one family does. Its own reader reads them back, given the types of the values.

    A call that the family's format cannot hold, because a text in it has the format's own marks, is written so that it
    reads as malformed, never as another call. `spec` is the row, `chat` and `row` its formats of conversations and of
    calls as they are written.

    Args:
        reads_back: whether a text is read as a call and as nothing else.
    """

    def __init__(self, spec: DialectSpec, reads_back: Callable[[str, ToolCall], bool]) -> None:
        self.spec = spec
        self.chat = spec.chat
        self.row = calls_of(spec)[0]
        if self.row.close_is_optional:  # what may be left out is not taught
            self.row = self.row.model_copy(update={"close": ()})
        self._turns = {
            role: spec.chat.turns.get(role, spec.chat.turn).replace("{role}", spec.chat.roles.get(role, role))
            for role in ("system", "user", "assistant", "tool", spec.chat.result_role)
        }
        self._edges = {role: _split_turn(turn) for role, turn in self._turns.items()}
        self._result = _Form(spec.chat.result, ["content", "name", "id"])
        head, _, tail = self._turns["assistant"].partition("{content}")
        self._turn_close = tail
        self.turn_ends = (tail.strip(),) if tail.strip() and not spec.chat.same_turn else ()
        generation = spec.chat.generation if spec.chat.generation is not None else head
        thinking_form = spec.thinking_marks.written
        if spec.thinking_marks.open:
            if not spec.thinking:
                generation += thinking_form.replace("{thinking}", "")
            elif spec.thinking_open:
                generation += thinking_form.partition("{thinking}")[0]
        self._generation = generation
        self._tools_last: tuple[Sequence[Mapping[str, Any]], bool, str] | None = None
        self._opened, _, self.closing = thinking_form.partition("{thinking}")
        if not (spec.thinking_marks.open and spec.thinking and spec.thinking_open):
            self._opened = self.closing = ""
        self._values = ValueWriter(spec)
        self._reads_back = reads_back
        self.same_turn: SameTurn | None = None
        """How observations go on in the assistant's turn, for a family where they do."""
        if spec.chat.same_turn:
            closes = tuple(mark for call in calls_of(spec) for mark in marks_of(call.close))
            self.same_turn = SameTurn(_split_turn(spec.chat.result), _split_turn(spec.chat.reply), closes)

    @property
    def marks(self) -> tuple[str, str]:
        """The opening and closing marks of a call as it is written; "" where there is none."""
        return _first_mark(self.row.open), _first_mark(self.row.close)

    # Calls

    def calls(self, calls: Sequence[ToolCall | MalformedCall]) -> str:
        """Several calls, in the marks of their section where the family has one.

        A broken call that was read from a text is written as it stood there, within the marks that it had.
        """
        spec, row = self.spec, self.row
        is_list = row.shape in ("list", "either") or (row.body == "pythonic" and row.separator != "\n")
        out: list[str] = []
        section: list[str] = []  # blocks that share one section
        joined: list[str] = []  # calls that share one block
        for index, call in enumerate(calls):
            if isinstance(call, MalformedCall) and (marks := self._marks_around(call)):
                # Behind a string that it leaves open, a line break keeps the next call out of it.
                broken = call.text + ("\n" if index + 1 < len(calls) else "")
                section += self._join_calls(joined, is_list)
                if marks == "section":
                    out += [*self._wrap_section(section), broken]
                else:
                    section.append(broken)
            elif is_list or row.separator:
                joined.append(self._body_text(call, index))
            else:
                section.append(self._call_text(call, index))
                if spec.section_each:
                    out += self._wrap_section(section, call.name or "")
        section += self._join_calls(joined, is_list)
        return row.between.join(out + self._wrap_section(section, next((call.name or "" for call in calls), "")))

    def _wrap_section(self, blocks: list[str], name: str = "") -> list[str]:
        """The blocks in one section, where the family has one; the list is then empty."""
        spec = self.spec
        text = self.row.between.join(blocks)
        if not blocks:
            return []
        blocks.clear()
        if not spec.section_open:
            return [text]
        head = spec.section_head.replace("{name}", name) + spec.section_open
        return [head + spec.section_pad + text + spec.section_pad + spec.section_close]

    def _call_text(self, call: ToolCall | MalformedCall, index: int) -> str:
        """A call between its marks."""
        row = self.row
        text = _first_mark(row.open) + row.pad + self._body_text(call, index) + row.pad + _first_mark(row.close)
        if isinstance(call, MalformedCall) or row.body in ("json", "name_json", "pythonic"):
            return text
        is_doubtful = self._values.may_be_broken(call)
        if is_doubtful and not self._reads_back("".join(self._wrap_section([text], call.name)), call):
            return _first_mark(row.open) + self._values.as_broken(call) + _first_mark(row.close)
        return text

    def _join_calls(self, bodies: list[str], is_list: bool) -> list[str]:
        """The calls of one list in its marks; the list is then empty."""
        row = self.row
        text = (row.separator or ", ").join(bodies)
        if not bodies:
            return []
        bodies.clear()
        return [_first_mark(row.open) + row.pad + (f"[{text}]" if is_list else text) + row.pad + _first_mark(row.close)]

    def _marks_around(self, call: MalformedCall) -> Literal["", "call", "section"]:
        """The marks that a broken call has around it, which was read from a text: its own, or a section's too."""
        if call.start < 0:
            return ""
        if self.spec.section_open and call.text.startswith(self.spec.section_open):
            return "section"
        calls = calls_of(self.spec)
        if call.text.startswith(tuple(mark for row in calls for mark in (*marks_of(row.open), *row.spellings))):
            return "call"
        # Without marks a call begins with its bracket, which an object in a list has not.
        is_item = self.row.shape != "object" and not call.text.lstrip().startswith("[")
        return "call" if any(row.at_start for row in calls) and not is_item else ""

    def _body_text(self, call: ToolCall | MalformedCall, index: int) -> str:
        row = self.row
        if isinstance(call, MalformedCall) and call.start >= 0:
            return call.text
        name = call.name or ""
        if isinstance(call, MalformedCall) and row.body not in ("json", "name_json"):
            return call.text
        arguments = call.text if isinstance(call, MalformedCall) else _json_text(dict(call.arguments))
        if row.body == "json":
            if row.by_name:
                return f"{{{_json_text(name)}: {arguments}}}"
            key = marks_of(row.arguments_key)[0]
            text = f"{_json_text(row.name_key)}: {_json_text(name)}, {_json_text(key)}: {arguments}"
            if row.id_key and (call.id or row.id_first):
                number = f"{_json_text(row.id_key)}: {_json_text(call.id or str(index))}"
                text = f"{number}, {text}" if row.id_first else f"{text}, {number}"
            return f"{{{text}}}"
        if row.body == "name_json":
            number = ""
            if row.indexed:
                tail = (call.id or "").rpartition(":")[2]
                number = f":{tail if tail.isdigit() else index}"
            elif row.id_close:
                name = (call.id or f"call_{index}") + row.id_close + name
            after = next((mark for mark in marks_of(row.after_name) if mark != "{"), "")
            after = row.skipped.replace("{index}", str(index + 1)) + row.skip_to if row.skip_to else after
            return row.before_name + name + number + after + row.before_arguments + arguments + row.after_arguments
        assert isinstance(call, ToolCall)
        if row.body == "pythonic":
            return f"{name}({', '.join(_argument_text(key, value) for key, value in call.arguments.items())})"
        return self._values.body(call, index)

    def action(self, message: Message) -> str:
        """Content and calls, in the family's order; thinking that the prompt has opened is closed where it is not."""
        closes = self.closing and self.spec.thinking_marks.close not in message.content
        return self.closing + self._said_text(message) if closes else self._said_text(message)

    def _said_text(self, message: Message) -> str:
        chat, text = self.chat, message.content
        calls = self.calls(message.tool_calls)
        if not text:
            return calls
        form = chat.said if not calls or chat.said_before is None else chat.said_before
        text = _fill_form(form, content=text)
        if not calls:
            return text
        return calls + chat.calls_behind + text if chat.content_behind else text + chat.calls_behind + calls

    # Conversations

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation with the generation prompt at its end.

        Thinking of assistant messages before the last user message is left out where the family does so.
        """
        chat = self.chat
        rest = list(messages)
        system = rest.pop(0).content if rest and rest[0].role == "system" else None
        tools_text = self._tools_text(tools, alone=system is None) if tools else ""
        if system is None and chat.system:
            system = chat.system
        out: list[str] = [chat.begin]
        if chat.tools_role == "user" and tools_text:
            first = next((i for i, message in enumerate(rest) if message.role == "user"), -1)
            if first >= 0:
                tools_text += "" if tools_text.endswith("\n") else "\n\n"
                rest[first] = replace(rest[first], content=tools_text + self._strip(rest[first].content))
                tools_text = ""
        if system is not None or tools_text:
            blocks = [self._strip(system)] if system is not None else []
            out.append(self._turn_text("system", "".join(blocks) + (_gap_between(blocks, tools_text) + tools_text)))
        if self.same_turn is not None:
            first = next((i for i, message in enumerate(rest) if message.role == "assistant"), len(rest))
            out += [self._turn_text(message.role, message.content) for message in rest[:first]]
            turns = [self._same_turn_text(message, self.same_turn) for message in rest[first:]]
            return "".join(out) + self._generation + "".join(turns)
        last_user = max((i for i, message in enumerate(rest) if message.role == "user"), default=-1)
        for index, message in enumerate(rest):
            if message.role == "tool":
                if index == 0 or rest[index - 1].role != "tool":
                    out.append(self._results_text(rest[index:]))
            elif message.role == "assistant":
                keeps = index > last_user or not chat.drops_thinking
                out.append(self._turn_text("assistant", self._assistant_text(message, keeps)))
            else:
                out.append(self._turn_text(message.role, message.content))
        return "".join(out) + self._generation

    def observation(self, messages: Sequence[Message]) -> str:
        """The end of the assistant's turn, the messages and the generation prompt."""
        if self.same_turn is not None:
            return "".join(self._same_turn_text(message, self.same_turn) for message in messages)
        if len(messages) == 1 and messages[0].role == "tool":  # nearly every observation
            return f"{self._turn_close}{self._results_text(messages)}{self._generation}"
        out = [self._turn_close]
        for index, message in enumerate(messages):
            if message.role == "tool":
                if index == 0 or messages[index - 1].role != "tool":
                    out.append(self._results_text(messages[index:]))
            else:
                out.append(self._turn_text(message.role, message.content))
        return "".join(out) + self._generation

    def _same_turn_text(self, message: Message, same_turn: SameTurn) -> str:
        if message.role == "assistant":
            return self._said_text(message)
        head, tail = same_turn.around(message.role)
        return head + message.content + tail

    def _strip(self, text: str) -> str:
        return text.strip() if self.chat.trim else text

    def _turn_text(self, role: str, content: str) -> str:
        around = self._edges.get(role)
        head, tail = _split_turn(self.chat.turn.replace("{role}", role)) if around is None else around
        return head + self._strip(content) + tail

    def _results_text(self, messages: Sequence[Message]) -> str:
        """The turns that show the results at the head of `messages`."""
        chat = self.chat
        results: list[str] = []
        fill, around, strips = self._result.fill, self._result.around, chat.trim
        for message in messages:
            if message.role != "tool":
                break
            content = message.content.strip() if strips else message.content
            if around is not None:
                results.append(around[0] + content + around[1])
                continue
            results.append(fill({"content": content, "name": message.name or "tool", "id": message.tool_call_id or ""}))
        if chat.results_joined is None:
            return "".join([self._turn_text(chat.result_role, result) for result in results])
        head, tail = self._edges[chat.result_role]
        joined = chat.results_joined.join(results)
        return f"{head}{joined.strip() if strips else joined}{tail}"

    def _tools_text(self, tools: Sequence[Mapping[str, Any]], *, alone: bool) -> str:
        chat, last = self.chat, self._tools_last
        if self.same_turn is not None:
            return ""
        if last is not None and last[0] is tools and last[1] is alone:
            return last[2]
        form = chat.tools if chat.tools is not None else _TOOLS
        if alone and chat.tools_alone is not None:
            form = chat.tools_alone
        example = self.calls((ToolCall(self.row.tool or "NAME", {self.row.argument or "KEY": "VALUE"}),))
        text = _fill_form(form, tools="\n".join(_json_text(self._tool_schema(tool)) for tool in tools), example=example)
        if isinstance(tools, tuple):  # as each environment has them, once for all its prompts
            self._tools_last = (tools, alone, text)
        return text

    def _assistant_text(self, message: Message, keeps_thinking: bool) -> str:
        row = self.spec.thinking_marks
        text = message.content
        if row.close and row.close in text:
            thinking = text.split(row.close)[0].rstrip("\n").split(row.open)[-1].strip("\n")
            text = text.split(row.close)[-1].lstrip("\n")
            if keeps_thinking and thinking:
                return row.written.replace("{thinking}", thinking) + self._said_text(replace(message, content=text))
            message = replace(message, content=text)
        return self._opened + self.closing + self._said_text(message)

    def _tool_schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        form = self.spec.tools
        if form == "wrapped" and "function" not in tool:
            return {"type": "function", "function": dict(tool)}
        if form == "bare" and isinstance(tool.get("function"), Mapping):
            return dict(tool["function"])
        return dict(tool)


def _gap_between(blocks: list[str], tools_text: str) -> str:
    return "\n\n" if blocks and tools_text and not tools_text.startswith("\n") else ""


def _first_mark(marks: str | tuple[str, ...]) -> str:
    return next(iter(marks_of(marks)), "")


def _argument_text(key: str, value: Any) -> str:
    """An argument of a Python call; a name that Python could not write stands in a dict."""
    if re.fullmatch(r"[^\W\d]\w*", key):
        return f"{key}={_literal_text(value)}"
    return f"**{{{_quote_text(key)}: {_literal_text(value)}}}"


def _literal_text(value: Any) -> str:
    """A JSON value as a Python literal."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quote_text(str(key))}: {_literal_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal_text, value)) + "]"
    return _quote_text(value) if isinstance(value, str) else repr(value)


def _quote_text(text: str) -> str:
    return '"' + json.dumps(text, ensure_ascii=False)[1:-1].replace("\\/", "/") + '"'
