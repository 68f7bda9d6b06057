"""The round trip of a dialect, form by form: it has to read back the calls, thinking, results and turns that it writes.

Takes some milliseconds, so that `rlenv validate` does it for every dialect that a spec defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rlenv._base.text import KeyPath, shared_length
from rlenv.dialects.base import RowFault, calls_of, place_of_form, shown
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.json_body import marks_of
from rlenv.language.dialect import CallSpec, DialectSpec
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

TOOLS: Final[Mapping[str, Any]] = {
    "search": {
        "name": "search",
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "score": {"type": "number"},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "filter": {"type": "object", "properties": {"year": {"type": "integer"}, "lang": {"type": "string"}}},
            },
            "required": ["query"],
        },
    }
}
ARGUMENTS: Final[tuple[Mapping[str, Any], ...]] = (
    {"query": "cats"},
    {"query": 'say "hi" \\ it\'s', "limit": 5},
    {"query": "two\nlines", "exact": True},
    {"query": "世界 é", "tags": ["a", "b"], "limit": -3},
    {"query": "x", "filter": {"year": 2020, "lang": "en"}},
)
_BESIDE: Final = "I look it up."
_THOUGHT: Final = "I think, and (with signs) so on."


def round_trip_findings(row: DialectSpec, name: str = "inline") -> Iterator[RowFault]:
    """The forms that a whole row writes and does not read back, each at the key that is most likely at fault.

    A form of calls that fails alone is reported once; what stands on it is not tried then.
    """
    dialect = TextDialect(name, row)
    forms = calls_of(row)
    broken = False
    for index in range(len(forms)):
        for finding in _check_form(dialect, index):
            broken = True
            yield finding
            break
    if not broken:
        yield from _check_prose(dialect)
        yield from _check_thinking(dialect)
    yield from _check_turns(dialect)


def _tools_for(form: CallSpec) -> tuple[Mapping[str, Any], Sequence[ToolCall]]:
    """Tools that a form can call, and the calls that are tried."""
    if form.body != "text":
        return TOOLS, [ToolCall("search", given) for given in ARGUMENTS]
    key = form.argument or "query"
    tools = {form.tool: {"parameters": {"properties": {key: {"type": "string"}}, "required": [key]}}}
    return tools, [ToolCall(form.tool, {key: text}) for text in ("cats", 'say "hi" \\ it\'s', "世界 é", "two\nlines")]


def _are_same(read: ParsedAction, calls: Sequence[ToolCall]) -> bool:
    return [_plain(call) for call in read.calls] == [_plain(call) for call in calls]


def _plain(call: ToolCall | MalformedCall) -> tuple[Any, ...]:
    return (call.name, dict(call.arguments)) if isinstance(call, ToolCall) else (None, call.reason)


def _read_as(read: ParsedAction) -> str:
    """A description of the action that a text was read as."""
    for call in read.calls:
        if isinstance(call, MalformedCall):
            return f"a broken call: {call.reason}"
    if len(read.calls) == 1:
        (call,) = read.calls
        assert isinstance(call, ToolCall)
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
    if read.calls:
        return f"{len(read.calls)} calls"
    return "thinking" if read.thinking else "content, without a call"


def _check_form(dialect: TextDialect, index: int) -> Iterator[RowFault]:
    """The form with that index, written by itself and read by the whole dialect."""
    row = dialect.spec
    form = calls_of(row)[index]
    path = place_of_form(row, index)
    writer = TextDialect(dialect.name, row.model_copy(update={"calls": form}))
    tools, calls = _tools_for(form)
    for call in calls:
        text = writer.render_action(Message("assistant", "", (call,)))
        read = _behind_thinking(dialect, text, tools)
        if not _are_same(read, (call,)):
            yield _call_fault(row, index, path, text, call, read, _behind_thinking(writer, text, tools))
            return
    several = tuple(calls[:3])
    for count in (2, 3):
        text = writer.render_action(Message("assistant", "", several[:count]))
        read = _behind_thinking(dialect, text, tools)
        if not _are_same(read, several[:count]):
            yield _several_calls(path, form, text, count, read)
            return
        if read.content:
            message = f"what stands between calls is read as content: {shown(text)} gives {shown(read.content)}"
            key = "between" if form.between.strip() else "pad"
            yield RowFault((*path, key), message, 'write white space, such as "\\n"')
            return


def _call_fault(
    row: DialectSpec, index: int, path: KeyPath, text: str, call: ToolCall, read: ParsedAction, alone: ParsedAction
) -> RowFault:
    """The finding of a call that does not read back, at the key that is most likely at fault."""
    form = calls_of(row)[index]
    message = f"what is written does not read back: {shown(text)} is read as {_read_as(read)}"
    rival = _rival(row, index) if _are_same(alone, (call,)) else -1
    if rival >= 0:
        hint = f"form {rival + 1} takes it; give that one 'starts', or another opening mark"
        return RowFault((*path, "open"), message, hint)
    first = read.calls[0] if len(read.calls) == 1 else None
    if isinstance(first, ToolCall) and form.body == "tagged":
        if _strip(first.arguments) != _strip(call.arguments):
            return RowFault(path, message, "look at 'value_open' and 'untyped', which say how a value is read", "key")
        if form.value_pad:
            trim = "newline" if not form.value_pad.strip("\n") else "space"
            return RowFault((*path, "value_pad"), message, f"write trim: {trim}, or remove 'value_pad'")
        return RowFault((*path, "trim"), message, "write trim: nothing")
    if form.starts and not read.calls:
        return RowFault((*path, "starts"), message, "name the character that the body starts with")
    if row.section_open and not read.calls and not read.thinking:
        return RowFault(("section_open",), message, "look at the marks of the section, which hold the calls")
    if isinstance(first, MalformedCall):
        return RowFault(path, message, "look at the mark that was expected", "key")
    return RowFault(path, message, "look at the marks: one of them stands inside another, or in what is written", "key")


def _strip(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.strip() if isinstance(value, str) else value for key, value in arguments.items()}


def _rival(row: DialectSpec, index: int) -> int:
    """Another form whose opening mark stands where that of form `index` does, -1 where there is none."""
    forms = calls_of(row)
    for number, other in enumerate(forms):
        marks = marks_of(other.open)
        if number != index and any(one.startswith(mark) for one in marks_of(forms[index].open) for mark in marks):
            return number
    return -1


def _several_calls(path: KeyPath, form: CallSpec, text: str, count: int, read: ParsedAction) -> RowFault:
    message = f"{count} calls written together do not read back: {shown(text)} is read as {_read_as(read)}"
    for key in ("separator", "between"):
        if key in form.model_fields_set:
            return RowFault((*path, key), message, f"remove '{key}', or write what may stand between two calls")
    if not marks_of(form.close):
        return RowFault(path, message, "add a closing mark, or 'separator' for what stands between calls", "key")
    return RowFault(path, message, 'write between: "\\n"', "key")


def _check_prose(dialect: TextDialect) -> Iterator[RowFault]:
    """Words without a call are content, and stay so in front of calls."""
    row = dialect.spec
    form = calls_of(row)[0]
    path = place_of_form(row, 0)
    tools, calls = _tools_for(form)
    for words in ("Just words.", "The sum of 2 and 3 is 5.\n\n<answer>5</answer>"):
        text = dialect.render_action(Message("assistant", words))
        read = _behind_thinking(dialect, text, tools)
        if read.calls or read.content != words:
            message = f"words without a call are not content: {shown(text)} is read as {_read_as(read)}"
            yield RowFault((*path, "open"), message, "write marks that do not stand in ordinary words")
            return
    if form.at_start:
        return  # what starts the message has nothing in front of it
    text = dialect.render_action(Message("assistant", _BESIDE, tuple(calls[:1])))
    read = _behind_thinking(dialect, text, tools)
    if not _are_same(read, calls[:1]) or read.content != _BESIDE:
        message = f"words in front of a call do not read back: {shown(text)} is read as {_read_as(read)}"
        if read.calls and _are_same(read, calls[:1]):
            message = f"words in front of a call do not read back: {shown(text)} gives {shown(read.content)} as content"
        yield RowFault(("chat", "calls_behind"), message, 'write calls_behind: "\\n"')


def _behind_thinking(dialect: TextDialect, text: str, tools: Mapping[str, Any]) -> ParsedAction:
    """The reading of a turn, whose thinking is closed first where the prompt has opened it."""
    return dialect.parse(_close_thought("", dialect.spec.thinking_marks.close, text, dialect.spec), tools)


def _close_thought(thought: str, behind: str, text: str, row: DialectSpec) -> str:
    """A thought, what ends it and what follows; a prompt that opens it may leave its end to what is written."""
    if row.thinking_open:
        return thought + (text if row.thinking_marks.close in text else behind + text)
    return thought + (behind if thought else "") + text


def _check_thinking(dialect: TextDialect) -> Iterator[RowFault]:
    """A thought that is written is thinking, what stands behind it is not, and a call inside it is none."""
    row = dialect.spec
    marks = row.thinking_marks
    if not marks.open:
        return
    tools, calls = _tools_for(calls_of(row)[0])
    call = dialect.render_action(Message("assistant", "", tuple(calls[:1])))
    before, _, behind = marks.written.partition("{thinking}")
    before = "" if row.thinking_open else before
    # A family may close both with one mark; a call in a thought then ends it.
    thoughts = (_THOUGHT,) if marks.close in call else (_THOUGHT, f"{_THOUGHT} {call} or not.")
    for thought in thoughts:
        text = _close_thought(before + thought, behind, dialect.render_action(Message("assistant", "Done.")), row)
        read = dialect.parse(text, tools)
        if read.calls:
            message = f"a call inside thinking is read as a call: {shown(text)}"
            yield RowFault(("thinking_marks", "written"), message, "write it between the marks 'open' and 'close'")
            return
        if read.thinking != thought or read.content != "Done.":
            got = f"thinking {shown(read.thinking)} and content {shown(read.content)}"
            message = f"thinking as it is written does not read back: {shown(text)} gives {got}"
            hint = f"write it between its marks: {shown(marks.open + '{thinking}' + marks.close)}"
            yield RowFault(("thinking_marks", "written"), message, hint)
            return
    text = _close_thought(before + _THOUGHT, behind, call, row)
    read = dialect.parse(text, tools)
    if not _are_same(read, calls[:1]):
        message = f"a call behind thinking does not read back: {shown(text)} is read as {_read_as(read)}"
        yield RowFault(("thinking_marks", "written"), message, "end it with the mark 'close'")


def _check_turns(dialect: TextDialect) -> Iterator[RowFault]:
    """Every message is shown, results in their order, and a prompt grows by what is said and observed."""
    tools = [{"type": "function", "function": dict(TOOLS["search"])}]
    user = Message("user", "What is {x}?")
    system = Message("system", "Be brief.")
    for given, schemas in (((system, user), []), ((system, user), tools), ((user,), tools)):
        prompt = dialect.render_prompt(given, schemas)
        for message in given:
            if message.content not in prompt:
                what = f"the {message.role}'s message is not shown: the prompt is {shown(prompt)}"
                yield RowFault(("chat", "turn"), what, "put {content} into the turn of every role")
                return
    results = [Message("tool", "first result", name="search"), Message("tool", "second result", name="search")]
    observed = dialect.render_observation(results)
    if not 0 <= observed.find("first result") < observed.find("second result"):
        what = f"two results are not shown in their order: the model reads {shown(observed)}"
        yield RowFault(("chat", "result"), what, "put {content} into 'result' and into the turn of 'result_role'")
        return
    yield from _check_growth(dialect, user)


def _check_growth(dialect: TextDialect, user: Message) -> Iterator[RowFault]:
    row = dialect.spec
    if not row.thinking or row.thinking_open:
        return  # the prompt holds what is left out of earlier turns on purpose
    said = Message("assistant", "So.")
    after = Message("user", "next")
    whole = dialect.render_prompt([user, said, after], ())
    parts = dialect.render_prompt([user], ()) + dialect.render_action(said) + dialect.render_observation([after])
    if whole != parts:
        at = shared_length(whole, parts)
        head = max(at - 12, 0)
        message = (
            f"a conversation does not grow by what is said: {shown(whole[head : at + 20])} stands in the prompt where"
            f" the model had {shown(parts[head : at + 20])}"
        )
        key = "generation" if row.chat.generation is not None else "turn"
        hint = (
            "remove 'generation': a turn starts as 'turn' says" if key == "generation" else "look at 'turn' and 'turns'"
        )
        yield RowFault(("chat", key), message, hint)
