"""The laws that every dialect keeps.

Run them on your own dialect, or on the one that a spec defines:

    from rlenv.testing.dialects import check_dialect

    def test_my_dialect_keeps_the_laws():
        check_dialect(rlenv.load("my_env.yaml").parts.dialect)
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlenv.dialects.base import Dialect
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.roundtrip import ARGUMENTS, TOOLS, round_trip_findings
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall
from rlenv.testing.laws import broken, law, short

__all__ = ["ARGUMENTS", "TOOLS", "check_dialect", "check_reading", "hostile_texts", "pieces", "seconds"]

_TEXT: Final = (
    "the", " ", "\n", '"', "'", "\\", "{", "}", "[", "]", "(", ")", "=", ":", ",", "<", ">", "/", "null", "True",
    "-1", "1e999", "9" * 400, "[" * 200, "\x00", "\u2028", "\ud800", "世界",
    '{"name": "search", "arguments": {"query": "x"}}',
    "search", 'search(query="x")', "```json\n", "<think>", "</think>",
)  # fmt: skip


def check_reading(dialect: Dialect, text: str, tools: Mapping[str, Any] | None = TOOLS) -> ParsedAction:
    """The reading of `text`, after the laws that hold for every text.

    Raises:
        AssertionError: a law is broken; the message states it.
    """
    try:
        action = dialect.parse(text, tools)
    except Exception as error:
        raise broken("reading never raises", f"{dialect.name}: {error!r} for {text[:200]!r}") from error
    end = 0
    where = f"{dialect.name}: {text[:200]!r}"
    for call in action.calls:
        is_apart = end <= call.start < call.end <= len(text)
        law("calls stand in order, apart", is_apart, f"{where}: {call.start} to {call.end} after {end}")
        end = call.end
        if isinstance(call, MalformedCall):
            law("a malformed call has a reason", bool(call.reason), where)
            law("a malformed call shows its own text", call.text == text[call.start : call.end], where)
            continue
        law("a call has a name", bool(call.name), where)
        try:
            json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise broken("arguments are JSON", f"{where}: {error!r}") from error
    if action.content_at:
        said = "".join(text[first:last] for first, last in action.content_at).strip()
        law("the content is what stands where it is said to", said == action.content, f"{where}: {action.content_at}")
    return action


def pieces(dialect: Dialect) -> tuple[str, ...]:
    """Fragments of what the dialect writes, and text that is hard to read: what fuzzed texts are made of."""
    written = [dialect.render_action(Message("assistant", "", (ToolCall("search", item),))) for item in ARGUMENTS]
    marks: set[str] = set()
    for text in written:
        marks.update(part for size in (3, 7, 12) for part in (text[:size], text[-size:], text[len(text) // 2 :]))
    return (*written, *written, *sorted(marks), *_TEXT)


def hostile_texts(dialect: Dialect, size: int) -> Mapping[str, str]:
    """Texts of about `size` characters that are made to be slow to read."""
    call = dialect.render_action(Message("assistant", "", (ToolCall("search", {"query": "x"}),)))
    quoted = dialect.render_action(Message("assistant", "", (ToolCall("search", {"query": 'a"b'}),)))
    third = max(len(call) // 3, 1)
    units = {
        "whole calls": call,
        "whole calls, an odd quote behind each": quoted + '"x',
        "opened and never closed": call[: 2 * third],
        "only the beginning": call[:third],
        "only the end": call[-third:],
        "a broken string": call[: 2 * third] + '"',
        "thinking": "<think>" + call[:third],
        "brackets": call[:third] + "[{(",
    }
    texts = {name: (unit * (size // len(unit) + 1))[:size] for name, unit in units.items()}
    opened = next((mark for mark in getattr(dialect, "marks", ()) if mark in call), call[:third]) + '{\\"'
    for name, end in (("a line's end", "\n"), ("a backslash", "\\")):
        texts[f"open strings and {name} behind them"] = (opened * (size // len(opened) + 1))[:size] + end
    texts["one call with a long argument"] = call.replace("x", "x" * size)[: size + len(call)]
    texts["an open call and long text"] = call[: 2 * third] + "a " * (size // 2)
    texts["an open call and white space"] = call[:third] + " " * size
    texts["white space within a call"] = call[: 2 * third] + " " * size + call[2 * third :]
    return texts


def seconds(dialect: Dialect, text: str, *, repeat: int = 3) -> float:
    """The least CPU time of reading `text`, without garbage collection, as `timeit` measures."""
    taken = []
    was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            start = time.process_time()
            dialect.parse(text, TOOLS)
            taken.append(time.process_time() - start)
    finally:
        if was_on:
            gc.enable()
    return min(taken)


def check_dialect(
    dialect: Dialect,
    *,
    arguments: Sequence[Mapping[str, Any]] = ARGUMENTS,
    tools: Mapping[str, Any] = TOOLS,
    texts: int = 300,
    seed: int = 0,
) -> None:
    """Runs the laws of dialects on `dialect`; a law that is broken is an AssertionError that states it.

    Args:
        arguments: what calls of the first of `tools` are written with; read back they have to be the same.
        texts: how many fuzzed texts are read.
    """
    name = next(iter(tools))
    law("a dialect has a name", bool(dialect.name), repr(dialect.name))
    if isinstance(dialect, TextDialect):
        for finding in round_trip_findings(dialect.spec, dialect.name):
            place = ".".join(map(str, finding.path))
            raise broken("what is written reads back", f"{dialect.name}, {place}: {finding.message}")
    words = dialect.render_action(Message("assistant", "Just words."))
    content = check_reading(dialect, words, tools).content
    law("text without a call is content", content == "Just words.", f"{dialect.name}: {words!r} as {content!r}")
    none = check_reading(dialect, "", tools).calls
    law("an empty message has no calls", not none, f"{dialect.name}: {none}")
    for given in arguments:
        text = dialect.render_action(Message("assistant", "", (ToolCall(name, given),)))
        calls = check_reading(dialect, text, tools).calls
        read = [call for call in calls if isinstance(call, ToolCall)]
        where = f"{dialect.name}: {text!r} as {calls}"
        law("what is written reads back as one call", len(calls) == len(read) == 1, where)
        law("the name reads back", read[0].name == name, where)
        law("arguments read back", dict(read[0].arguments) == dict(given), where)
        _check_cuts(dialect, text, tools)
    several = tuple(ToolCall(name, given) for given in arguments[:2])
    text = dialect.render_action(Message("assistant", "", several))
    count = len(check_reading(dialect, text, tools).calls)
    law("calls written together read back", count == len(several), f"{dialect.name}: {count} of {text!r}")
    if isinstance(dialect, TextDialect):  # what closes the thinking that the prompt has opened
        text = text.removeprefix(dialect.writer.closing)
    thought = f"<think>{text}</think>done"
    first = check_reading(dialect, thought, tools)
    if first.thinking:
        law("a call inside thinking is none", not first.calls, f"{dialect.name}: {thought!r} as {first.calls}")
    _check_rendering(dialect, name)
    rng = random.Random(seed)
    parts = pieces(dialect)
    for _ in range(texts):
        fuzzed = "".join(rng.choices(parts, k=rng.randint(1, 20)))
        is_same = check_reading(dialect, fuzzed, tools) == dialect.parse(fuzzed, tools)
        law("the same text reads the same", is_same, f"{dialect.name}: {fuzzed!r}")


def _check_cuts(dialect: Dialect, text: str, tools: Mapping[str, Any]) -> None:
    """The laws of a call that the text's end cuts; `text` is a whole one."""
    has_begun = False
    for end in range(1, len(text)):
        action = check_reading(dialect, text[:end], tools)
        has_begun = has_begun or bool(action.calls)
        malformed = [call for call in action.calls if isinstance(call, MalformedCall)]
        where = f"{dialect.name}: {text[:end]!r} as {short(action)}"
        law("nothing of a call that has begun is content", not (has_begun and action.content), where)
        law("a cut call is said to be cut", action.is_cut or not malformed, where)
        if malformed:
            again = dialect.parse(dialect.render_action(Message("assistant", "", tuple(malformed))), tools).calls
            is_one = [type(call) for call in again] == [MalformedCall] * len(malformed)
            law("a malformed call is written as one", is_one, f"{dialect.name}: {text[:end]!r} as {again}")


def _check_rendering(dialect: Dialect, name: str) -> None:
    user = Message("user", "Q {x} {{y}}")
    prompt = dialect.render_prompt([Message("system", "S"), user], ())
    law("contents stand in the prompt as they are", user.content in prompt, f"{dialect.name}: {prompt!r}")
    observed = dialect.render_observation([Message("tool", "R1 {x}", name=name), Message("tool", "R2", name=name)])
    first, second = observed.find("R1 {x}"), observed.find("R2")
    law("results stand in the order of their calls", 0 <= first < second, f"{dialect.name}: {observed!r}")
    if isinstance(dialect, TextDialect):
        return  # how its prompts grow is tried out with its row
    said = Message("assistant", "So.")
    whole = dialect.render_prompt([user, said, Message("user", "next")], ())
    parts = dialect.render_prompt([user], ()) + dialect.render_action(said)
    parts += dialect.render_observation([Message("user", "next")])
    law("a prompt grows by what is said and observed", whole == parts, f"{dialect.name}: {whole!r}, {parts!r}")
