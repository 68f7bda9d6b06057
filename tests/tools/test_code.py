"""The code tool: what a model's Python may do, what comes back, and that calls do not see each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.concurrency.processes import Work
from rlenv.errors import ToolFailed, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.testing.tools import Gate, call, check_tool, fake_tool, kept
from rlenv.tools._cell import stop_reason
from rlenv.tools.base import Tool
from rlenv.tools.code import KIND, CodeSpec

SANDBOXES = ["monty", pytest.param("bubblewrap", marks=pytest.mark.sandbox)]
SQL = {"type": "object", "properties": {"sql": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["sql"]}


def compiled(*, others: dict[str, Tool] | None = None, **keys: Any) -> Tool:
    spec = CodeSpec.model_validate({"kind": "code", **keys})
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), tools=others or {}))
    assert isinstance(tool, Tool)
    return tool


def run(*codes: str, others: dict[str, Tool] | None = None, **keys: Any) -> list[ToolResult]:
    """The results of these pieces of code, one after another, in one episode."""
    tool = compiled(others=others, **keys)

    async def go() -> list[ToolResult]:
        executor = Executor({tool.name: tool, **(others or {})}, calls=CallsSpec())
        async with kept() as make:
            context = replace(make(), run_calls=executor.run)
            return [(await executor.run([ToolCall("run", {"code": code})], context))[0] for code in codes]

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("cpu_s", "delayed_s", "age_s", "beside_s", "is_last", "why"),
    [
        (2.0, 0.0, 2.0, 0.0, False, "timeout"),
        (0.0, 0.0, 2.0, 0.0, False, "timeout"),  # asleep: the time is its own
        (0.1, 1.5, 2.0, 0.0, False, ""),
        (0.1, 0.0, 2.0, 1.5, False, ""),  # whoever it waits for got no processor
        (9.0, 8.0, 9.0, 0.0, False, "timeout"),  # its own threads kept its first one waiting
        (1.8, 30.5, 32.0, 0.0, True, "stalled"),  # the time of whoever asks is over, and the machine took most of it
        (1.8, 0.1, 2.0, 0.0, True, "timeout"),
    ],
)
def test_time_without_a_processor_is_not_the_codes_own(
    cpu_s: float, delayed_s: float, age_s: float, beside_s: float, is_last: bool, why: str
) -> None:
    work = Work("R", cpu_s, delayed_s, age_s)
    assert stop_reason(work, 2.0, age_s, beside_s, is_last=is_last)[0] == why


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_the_code_tool_keeps_the_laws_of_tools(sandbox: str) -> None:
    check_tool(
        compiled(sandbox=sandbox),
        good=[{"code": "1 + 1"}, {"code": "print('☃')"}, {"code": ""}, {"code": "x = [1]\nx * 2 # c"}],
        bad=[{}, {"code": 1}, {"code": "1", "more": 1}],
        failing=[
            {"code": "1/0"},
            {"code": "def f(:"},
            {"code": "\ud800"},
            {"code": "x" * 200_001},
            {"code": "(" * 500},
        ],
    )


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_is_printed_and_what_the_last_expression_gives_are_shown(sandbox: str) -> None:
    printed, value, both, text, last, broken = run(
        "print(1)\nprint(2)",
        "21 * 2",
        "print('a', end='')\n[1,\n 2]",
        "'x' * 3",
        "1; 'two'  # c",
        "print('so')\n\n1/0",
        sandbox=sandbox,
    )
    assert (printed.text, printed.value) == ("1\n2\n", {"output": "1\n2\n", "result": None})
    assert (value.text, value.value["result"]) == ("42", 42)
    assert (both.text, both.value["result"]) == ("a\n[1, 2]", [1, 2])
    assert (text.text, text.value["result"]) == ("'xxx'", "xxx")
    assert last.text == "'two'"
    assert (broken.outcome, broken.text) == ("failed", "so\nZeroDivisionError: division by zero (line 3)")


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_calls_do_not_see_each_other(sandbox: str) -> None:
    _, second = run("x = 1", "x", sandbox=sandbox)
    assert second.text == "NameError: name 'x' is not defined (line 1)"


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_equal_seeds_give_equal_random_numbers(sandbox: str) -> None:
    first, second = run("import random\nrandom.random()", "import random\nrandom.random()", sandbox=sandbox)
    assert first.text == second.text


def test_a_session_lives_as_long_as_the_episode() -> None:
    tool = compiled(session=True)
    assert tool.mutates

    async def go() -> list[str]:
        async with kept() as make, kept() as other:
            texts = [(await call(tool, {"code": code}, within=make())).text for code in ("x = [1]", "x.append(2)", "x")]
            return [*texts, (await call(tool, {"code": "x"}, within=other())).text]

    assert asyncio.run(go())[2:] == ["[1, 2]", "NameError: name 'x' is not defined (line 1)"]


@pytest.mark.slow
def test_a_session_survives_an_error_and_goes_back_when_its_time_was_up() -> None:
    results = run("x = 1", "x = 2\n1/0", "x", "x = 3\nwhile True: pass", "x", session=True, time_s=2)
    assert [one.text for one in results][2:] == [
        "2",
        "the code did not end within 2 s; the session is as it was before",
        "2",
    ]
    assert results[3].outcome == "timeout"


def query() -> Tool:
    async def answer(arguments: Any) -> str:
        if arguments["sql"] == "bad":
            raise ToolFailed("no such table", reason="refused")
        return f"rows of {arguments['sql']}"

    return fake_tool("query", answer, parameters=SQL)


def test_code_calls_other_tools_as_functions() -> None:
    others = {"query": query()}
    plain, caught, raised, wrong, many = run(
        "a = query('x')\nb = query(sql='y', limit=2)\na + ', ' + b",
        "try:\n    query('bad')\nexcept RuntimeError as error:\n    print(error)",
        "query('bad')",
        "query(3)",
        "query(1, 2, 3)",
        others=others,
        tools=["query"],
    )
    assert plain.value["result"] == "rows of x, rows of y"
    assert plain.details == {
        "called": {"query": {"ok": 2}},
        "calls": [
            {"tool": "query", "arguments": {"sql": "x"}, "outcome": "ok"},
            {"tool": "query", "arguments": {"sql": "y", "limit": 2}, "outcome": "ok"},
        ],
    }
    assert caught.text == "no such table\n"
    assert (caught.details or {})["called"] == {"query": {"refused": 1}}
    assert raised.text == "RuntimeError: no such table (line 1)"
    assert "argument 'sql'" in wrong.text
    assert many.text == "TypeError: query takes at most 2 arguments; 3 were given (line 1)"


def test_code_that_awaits_calls_tools_at_once() -> None:
    gate = Gate()

    async def answer(arguments: Any) -> str:
        # Each waits for the other: they can only end where both run at once.
        gate.started.append(arguments["sql"])
        await gate.until_started(2)
        return str(arguments["sql"]).upper()

    code = "import asyncio\nawait asyncio.gather(query('a'), query('b'))"
    (result,) = run(code, others={"query": fake_tool("query", answer, parameters=SQL)}, tools=["query"])
    assert result.text == "['A', 'B']"


@pytest.mark.parametrize(
    ("keys", "says_what"),
    [
        ({"tools": ["qery"]}, "there is no tool 'qery' above 'run'; did you mean 'query'"),
        ({"tools": ["other"]}, "tools above 'run': query"),
        ({"tools": ["query"], "sandbox": "bubblewrap"}, "only the sandbox monty has it"),
        ({"session": True, "sandbox": "bubblewrap"}, "only the sandbox monty has it"),
    ],
)
def test_a_wrong_entry_is_the_authors_mistake(keys: dict[str, Any], says_what: str) -> None:
    spec = CodeSpec.model_validate({"kind": "code", **keys})
    with pytest.raises(UsageError, match=says_what):
        KIND.factory("run", spec, CompileContext(base=Path(), tools={"query": query()}))


def test_a_missing_sandbox_is_said_at_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    from rlenv.tools._bubblewrap import bwrap_path

    with pytest.raises(UsageError, match="apt-get install bubblewrap"):
        bwrap_path()
