"""The seam between dialects and episodes: the protocol, what is read, and what a model is shown of results.

What is wrong with a dialect's row, at which of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import orjson

from rlenv._base.bounded import abridged, quick, values_in
from rlenv._base.text import KeyPath
from rlenv.errors import Finding
from rlenv.language.dialect import CallSpec, DialectSpec
from rlenv.language.document import SourceDocument
from rlenv.language.spec import ObservationSpec
from rlenv.language.templates import Template, TemplateError
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall, ToolResult

__all__ = ["CUT_NOTE", "Cut", "Dialect", "RowFault", "SameTurn", "Show", "calls_of", "cut_chars", "fault_of"]
__all__ += ["first_calls", "listed", "malformed_call", "parsed_action", "place_of_form", "result_messages", "shower"]
__all__ += ["shown", "told_of_cut", "tool_call", "without_note"]


@dataclass(frozen=True, slots=True)
class SameTurn:
    """The marks around contents that go on in the assistant's own turn.

    `result` and `reply` are the text before and behind a tool's result and a user's reply. `stops` are the marks that
    close a call: generation has to end behind the first of them, since no end token does.
    """

    result: tuple[str, str]
    reply: tuple[str, str]
    stops: tuple[str, ...]

    def around(self, role: str) -> tuple[str, str]:
        """The text before and behind the content of a message."""
        return self.result if role == "tool" else self.reply


class Dialect(Protocol):
    """A model family's format of calls and results; stateless and shared.

    `parse` is total: it never raises and is linear in the text's length. `render_prompt` and `render_observation`
    give the conversation as raw text to a policy that has no tokenizer, equal to what the family's own chat template
    writes: the prompt ends with the generation prompt; an observation starts right after the policy's last
    character (the end mark of the assistant's turn included) and ends with the next generation prompt.

    A dialect whose observations go on in the assistant's own turn has an attribute `same_turn` that says how; None, or
    no such attribute, where every message has a turn of its own. Two more attributes it may leave out: `turn_ends`, the
    marks that end an assistant's turn, and `begins`, which is true where prompts start with what their model's
    tokenizer would put before them.
    """

    name: str

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction: ...

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str: ...

    def render_action(self, message: Message) -> str:
        """An assistant message with structured calls as the text that this family would write."""
        ...

    def render_observation(self, messages: Sequence[Message]) -> str: ...


malformed_call = quick(MalformedCall)
parsed_action = quick(ParsedAction)
tool_call = quick(ToolCall)


MAX_VALUES: Final = 10_000
"""Values in the arguments of an action's calls: tapes, kept results and the garbage collector go over each."""
MANY: Final = f"the calls hold more than {MAX_VALUES:,} values in their arguments; write fewer, or one text"


def first_calls(calls: tuple[ToolCall | MalformedCall, ...], most: int) -> tuple[ToolCall | MalformedCall, ...]:
    """The first `most` calls; where only later ones cannot be read, the last is one of these: no answer is beside it.

    One action may write a hundred thousand, and whoever looks at an episode looks at each. So it is with the values of
    their arguments: a call with more of them than are left to the action is malformed, and holds none.
    """
    if len(calls) > most:
        broken = next((call for call in calls[most:] if isinstance(call, MalformedCall)), calls[most - 1])
        calls = (*calls[: most - 1], broken)
    left, many = MAX_VALUES, dict[int, MalformedCall]()
    for index, call in enumerate(calls):
        if isinstance(call, ToolCall) and isinstance(call.arguments, Mapping):
            if (count := values_in(call.arguments, left)) > left:
                many[index] = malformed_call("", MANY, call.start, call.end, call.name, call.id)
            else:
                left -= count
    return tuple(many.get(index, call) for index, call in enumerate(calls)) if many else calls


Cut = Callable[[str], str]
"""Shortens a result's content; structure around it is added afterwards and never cut."""

Show = Callable[[ToolResult, Mapping[str, Any], int], str]
"""(result, task, turn) to the content of the tool message."""

CUT_NOTE: Final = "[Your last turn was cut off: it had reached its limit of tokens.]"
"""What a policy reads behind the answer to an action that a limit of tokens has cut."""

_message = quick(Message)
CHARS_PER_TOKEN = 4  # stands in for a tokenizer where none is bound; English text has about 4 characters a token


def cut_chars(spec: ObservationSpec) -> Cut:
    """Cuts by characters: `max_chars`, and `max_tokens` at 4 characters a token."""
    limit = spec.max_chars if spec.max_tokens is None else min(spec.max_chars, spec.max_tokens * CHARS_PER_TOKEN)
    keep = spec.keep

    def cut(text: str) -> str:
        if len(text) <= limit:
            return text
        mark = f"\n… {len(text) - limit} characters left out …\n"
        room = max(limit - len(mark), 0)
        if keep == "head":
            return text[:room] + mark.rstrip()
        if keep == "tail":
            return mark.lstrip() + text[len(text) - room :]
        head = (room + 1) // 2
        return text[:head] + mark + text[len(text) - (room - head) :]

    return cut


def shower(spec: ObservationSpec, template: Template | None, constants: Mapping[str, Any]) -> Show:
    """A function that turns results into content, as `observation` says."""
    if spec.format == "json":

        def as_json(result: ToolResult, task: Mapping[str, Any], turn: int) -> str:
            if result.is_error:
                return orjson.dumps({"error": result.text}).decode()
            value = result.value if result.value is not None else result.text
            try:
                return orjson.dumps({"result": value}).decode()
            except TypeError:  # a value that JSON cannot hold: its text says the same
                return orjson.dumps({"result": result.text}).decode()

        return as_json
    if template is not None:

        def by_template(result: ToolResult, task: Mapping[str, Any], turn: int) -> str:
            try:
                return template.text(
                    result=result.text, tool=result.name, is_error=result.is_error, task=task, turn=turn, vars=constants
                )
            except TemplateError:  # a result that the author did not think of: the policy chose it, and must not fail
                return result.text

        return by_template
    return lambda result, task, turn: result.text


def result_messages(
    results: Sequence[ToolResult], show: Show, cut: Cut, task: Mapping[str, Any], turn: int, images: bool
) -> tuple[Message, ...]:
    """The messages that answer the calls of a turn, in their order; with the results' images where `images` says so."""
    made: list[Message] = []
    for result in results:
        text = cut(show(result, task, turn))
        made.append(_message("tool", text, (), result.name, result.call_id, result.images if images else ()))
    return tuple(made)


def told_of_cut(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages that answer an action which a limit of tokens has cut, with a note of it behind the last.

    Without it a model reads that its call is not closed, and cannot know that it has to write a shorter one.
    """
    *before, last = messages
    return (*before, replace(last, content=f"{last.content}\n\n{CUT_NOTE}" if last.content else CUT_NOTE))


def without_note(text: str) -> str:
    """A message's content as it was before `told_of_cut`."""
    return text.removesuffix(CUT_NOTE).removesuffix("\n\n") if text.endswith(CUT_NOTE) else text


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault of a row: the keys below `dialect` that lead to it, what is wrong, and the nearest fix.

    `at` says whether the key or its value is at fault; `find` is a text inside the value to point at. The last keys of
    `path` need not be given: the fault then stands at the mapping that lacks them.
    """

    path: KeyPath
    message: str
    hint: str
    at: Literal["key", "value"] = "value"
    find: str = ""


def fault_of(document: SourceDocument, finding: RowFault) -> Finding:
    """The fault of a finding at its place in the document, or at the nearest mapping around it."""
    path = ("dialect", *finding.path)
    is_there = document.has(path)
    name = ".".join(map(str, path)) if not is_there else None
    at = finding.at if is_there else "key"
    return document.fault(path, finding.message, finding.hint, at=at, find=finding.find, shown=name)


def calls_of(spec: DialectSpec) -> tuple[CallSpec, ...]:
    """The forms of a row, also where there is one alone."""
    return (spec.calls,) if isinstance(spec.calls, CallSpec) else spec.calls


def place_of_form(spec: DialectSpec, index: int) -> KeyPath:
    """The path of the form with that index in the document."""
    return ("calls",) if isinstance(spec.calls, CallSpec) else ("calls", index)


def shown(text: str, *, most: int = 70) -> str:
    """A text in quotes with control characters visible, its middle left out where it is long."""
    return "'" + "".join(_visible(sign) for sign in abridged(text, most)) + "'"


_ESCAPES: Mapping[str, str] = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _visible(sign: str) -> str:
    return _ESCAPES.get(sign) or (sign if sign.isprintable() else f"\\x{ord(sign):02x}")


def listed(names: list[str] | tuple[str, ...]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
