"""Reads and writes calls as a row of data says; one engine for every family whose row it can follow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlenv.dialects.format import CallFormat, ChatFormat, ThinkingFormat
from rlenv.dialects.json_call import json_call_reader
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

__all__ = ["TextDialect"]


class TextDialect:
    """A dialect that finds calls between markers; stateless, safe to share between threads.

    `parse` takes time linear in the text: each marker is looked for once, and each character is read by the JSON
    parser, or by the scan that follows its refusal, a bounded number of times.

    Args:
        thinking_open: whether the generation prompt has opened a thinking block already. None: it has where the
            message closes a block that it has not opened.
        thinking_is_on: False closes an empty thinking block in the generation prompt.
        arguments_as_text: accept arguments written as a JSON text.
        tool_schemas: the form in which tools are listed.
    """

    def __init__(
        self,
        *,
        name: str,
        call: CallFormat,
        thinking: ThinkingFormat,
        chat: ChatFormat,
        thinking_open: bool | None = None,
        thinking_is_on: bool = True,
        arguments_as_text: bool = False,
        tool_schemas: Literal["as_given", "bare", "wrapped"] = "as_given",
    ) -> None:
        self.name = name
        self._call = call
        self._thinking = thinking
        self._chat = chat
        self._thinking_open = thinking_open
        self._body_of = json_call_reader(
            name_key=call.name_key,
            arguments_key=call.arguments_key,
            arguments_as_text=arguments_as_text,
        )
        self._tool_schemas = tool_schemas
        generation = chat.turn_open.format(role="assistant")
        if not thinking_is_on:
            generation += thinking.written.format(thinking="")
        elif thinking_open:
            generation += thinking.written[: thinking.written.index("{")]
        self._generation = generation
        opened, closed = re.escape(call.open), re.escape(call.close)
        # Runs over everything up to the first marker outside a JSON string, in one pass. A string ends at its quote;
        # a raw control character, which JSON forbids in one, or the text's end breaks it off.
        self._body = re.compile(
            rf'(?:[^"{opened[0]}]++|"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+"|(?!{opened}|{closed}){opened[0]})*+'
        )

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction:
        """The message's content, thinking and calls; never raises, whatever `text` holds.

        A call ends at the first closing marker outside its JSON strings. One that is followed by another opening
        marker first, or by nothing, is malformed. Markers inside thinking are thinking. `content` and `thinking`
        have no white space around them.
        """
        call_open, call_close, body_of = self._call.open, self._call.close, self._body_of
        think_open, think_close = self._thinking.open, self._thinking.close
        find = text.find
        at = 0
        content: list[str] = []
        thinking: list[str] = []
        calls: list[ToolCall | MalformedCall] = []
        is_cut = False
        if self._thinking_open:
            end = find(think_close)
            if end < 0:
                return ParsedAction("", text.strip(), (), True)
            thinking.append(text[:end])
            at = end + len(think_close)
        next_call, next_open, next_close = find(call_open, at), find(think_open, at), find(think_close, at)
        if next_call < 0 and next_open < 0 and next_close < 0 and not at:
            return ParsedAction(text.strip())
        length = len(text)
        last_end = -1  # the closing marker found last: found once, it serves every opening marker before it
        may_be_inside = self._thinking_open is None
        while at < length:
            # Each marker is looked up again only once it lies behind, so that no text is searched for it twice.
            if 0 <= next_open < at:
                next_open = find(think_open, at)
            if 0 <= next_close < at and may_be_inside:
                next_close = find(think_close, at)
            if 0 <= next_call < at:
                next_call = find(call_open, at)
            horizon = next_open if next_open >= 0 else length
            closes = may_be_inside and 0 <= next_close < horizon
            if closes:
                horizon = next_close
            if not 0 <= next_call < horizon:
                if horizon == length:
                    break
                if closes:
                    # A block is closed that this message has not opened: all so far was thinking.
                    thinking, content, calls = [text[:next_close]], [], []
                    at = next_close + len(think_close)
                else:
                    content.append(text[at:next_open])
                    start = next_open + len(think_open)
                    end = find(think_close, start)
                    is_cut = end < 0
                    thinking.append(text[start:] if is_cut else text[start:end])
                    at = length if is_cut else end + len(think_close)
                may_be_inside = False
                continue
            while 0 <= next_call < horizon:
                content.append(text[at:next_call])
                if last_end < next_call:
                    last_end = find(call_close, next_call)
                    if last_end < 0:
                        last_end = length
                read = body_of(text[next_call + len(call_open) : last_end])
                if type(read) is tuple and last_end < length:
                    at = last_end + len(call_close)
                    calls.append(ToolCall(read[0], read[1], None, next_call, at))
                    next_call = find(call_open, at)
                    continue
                call, end = self._read(text, next_call, last_end, read)
                at = end if end >= 0 else length
                if closes and type(call) is MalformedCall and at > next_close:
                    # Not a call but the mention of one, in thinking that ends here.
                    thinking, content, calls = [text[:next_close]], [], []
                    at = next_close + len(think_close)
                    may_be_inside = False
                    break
                calls.append(call)
                is_cut = end < 0
                next_call = find(call_open, at)
        content.append(text[at:])
        return ParsedAction("".join(content).strip(), "\n".join(thinking).strip(), tuple(calls), is_cut)

    def _read(
        self, text: str, start: int, end: int, read: tuple[str, dict[str, Any]] | str
    ) -> tuple[ToolCall | MalformedCall, int]:
        """The call that opens at `start` and does not simply end at `end`, and where reading goes on after it.

        `end` is the first closing marker after `start`, the text's length where there is none; `read` is the body up
        to it. -1 where the call is open at the text's end.
        """
        row = self._call
        begin = start + len(row.open)
        match = self._body.match(text, begin)
        stop = match.end() if match is not None else begin
        if text.startswith(row.open, stop):
            # Not closed before the next call. Where several stand unclosed, the last one before the closing marker
            # is read; reading each of them would take time for marks that a model repeats without end.
            stop = max(stop, text.rfind(row.open, stop, end)) if end > stop else stop
            reason = f"the call is not closed; expected {row.close} before the next {row.open}"
            return MalformedCall(text[start:stop], reason, start, stop), stop
        if not text.startswith(row.close, stop):
            # A string was broken off: the first marker behind the break ends the call.
            close = end if end >= stop else text.find(row.close, stop)
            close = len(text) if close < 0 else close
            again = text.rfind(row.open, stop, close)
            if again >= 0 and close < len(text):
                reason = f"the call is not closed; expected {row.close} before the next {row.open}"
                return MalformedCall(text[start:again], reason, start, again), again
            stop = close
        if stop >= len(text):
            tail = read if end == len(text) else self._body_of(text[begin:])
            reason = f"the call is not closed; expected {row.close} after the JSON" if isinstance(tail, tuple) else ""
            reason = reason or f"{tail}, and {row.close} after it"
            return MalformedCall(text[start:], reason, start, len(text)), -1
        after = stop + len(row.close)
        if stop != end:
            read = self._body_of(text[begin:stop])
        if isinstance(read, str):
            return MalformedCall(text[start:after], read, start, after), after
        return ToolCall(read[0], read[1], None, start, after), after

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the family's chat template writes it, the generation prompt at its end.

        Thinking of assistant messages before the last user message is left out, as the template does.
        """
        chat = self._chat
        rest = list(messages)
        out: list[str] = []
        if tools or (rest and rest[0].role == "system"):
            blocks = [rest.pop(0).content] if rest and rest[0].role == "system" else []
            if tools:
                blocks.append(chat.tools.format(tools="\n".join(_json(self._listed(tool)) for tool in tools)))
            out.append(self._turn("system", "\n\n".join(blocks)))
        last_user = max((i for i, message in enumerate(rest) if message.role == "user"), default=-1)
        for index, message in enumerate(rest):
            if message.role == "tool":
                if index == 0 or rest[index - 1].role != "tool":
                    out.append(self._results(rest[index:]))
            elif message.role == "assistant":
                out.append(self._turn("assistant", self._written(message, index > last_user)))
            else:
                out.append(self._turn(message.role, message.content))
        return "".join(out) + self._generation

    def render_action(self, message: Message) -> str:
        """An assistant message as its family would write it: content, then each call on lines of its own.

        A call that could not be read is written between the markers as it came, so that it reads as malformed again.
        """
        row = self._call
        parts = [message.content] if message.content else []
        for call in message.tool_calls:
            if isinstance(call, ToolCall):
                arguments = _json(dict(call.arguments))
                parts.append(row.written.format(name=_json(call.name), arguments=arguments))
            else:
                parts.append(row.written.format(name=_json(call.name or ""), arguments=call.text))
        return "\n".join(parts)

    def render_observation(self, messages: Sequence[Message]) -> str:
        """What follows the policy's last character: the end of its turn, the messages and a new generation prompt."""
        out = [self._chat.turn_close]
        for index, message in enumerate(messages):
            if message.role == "tool":
                if index == 0 or messages[index - 1].role != "tool":
                    out.append(self._results(messages[index:]))
            else:
                out.append(self._turn(message.role, message.content))
        return "".join(out) + self._generation

    def _turn(self, role: str, content: str) -> str:
        return self._chat.turn_open.format(role=role) + content + self._chat.turn_close

    def _results(self, messages: Sequence[Message]) -> str:
        """The turn that shows the results at the head of `messages`."""
        shown: list[str] = []
        for message in messages:
            if message.role != "tool":
                break
            head, _, tail = self._chat.result.partition("{content}")
            shown.append(head + message.content + tail)
        return self._turn(self._chat.result_role, "\n".join(shown))

    def _written(self, message: Message, keeps_thinking: bool) -> str:
        row = self._thinking
        text = message.content
        if row.close in text:
            thinking = text.split(row.close)[0].rstrip("\n").split(row.open)[-1].strip("\n")
            text = text.split(row.close)[-1].lstrip("\n")
            if keeps_thinking and thinking:
                head, _, tail = row.written.partition("{thinking}")
                content = text if not message.tool_calls else self.render_action(_with_content(message, text))
                return head + thinking + tail + content
        return self.render_action(_with_content(message, text))

    def _listed(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._tool_schemas == "wrapped" and "function" not in tool:
            return {"type": "function", "function": dict(tool)}
        if self._tool_schemas == "bare" and isinstance(tool.get("function"), Mapping):
            return dict(tool["function"])
        return dict(tool)


def _with_content(message: Message, content: str) -> Message:
    return Message(message.role, content, message.tool_calls)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
