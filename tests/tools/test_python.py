"""Python functions as tools: what is read from their signature, what they may return, whose mistake is whose."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.language.functions import import_function
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.testing.tools import call, check_tool, context
from rlenv.tools.base import Tool
from rlenv.tools.python import KIND, PythonSpec

MODULE = '''
from __future__ import annotations
import datetime, enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from pydantic import BaseModel, Field
from rlenv.errors import ToolFailed
from rlenv.tools.base import ToolOutput

class Point(BaseModel):
    x: int
    y: float = 2

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class NoJson: ...

class OutOfStock(Exception): ...

def google(text: str, times: int = 2) -> str:
    """Repeat a text.

    Longer words
    about it.

    Args:
        text: What to repeat,
            on two lines.
        times (int, optional): How often: at most 9.

    Returns:
        str: the text
    """
    return text * times

def numpy(a: float, b: float = 1.0) -> float:
    """Add.

    Parameters
    ----------
    a : float
        Left.
    b : float, optional
        Right.

    Returns
    -------
    float
        Sum.
    """
    if a < 0:
        raise ValueError("a is below zero")
    if a > 100:
        raise OutOfStock("none left")
    if a == 50:
        raise ToolFailed("fifty is not for sale")
    if a == 51:
        raise KeyError("secret")
    return a + b

async def sphinx(a: int, flag: bool = False) -> int:
    """Do it.

    :param a: the number
    :param bool flag: whether
        to do it
    :returns: nothing
    """
    return a

def rich(point: Point, when: datetime.date, color: Color = Color.RED, mode: Literal["a", "b"] = "a",
         count: Annotated[int, Field(ge=1)] = 1, schema: list[int] | None = None) -> dict[str, Any]:
    """Take rich types."""
    assert isinstance(point, Point) and isinstance(when, datetime.date) and isinstance(color, Color)
    return {"x": point.x, "year": when.year, "color": color, "mode": mode, "count": count, "schema": schema}

def injected(key: str, world: Any, task: Any, context: Any) -> Any:
    """Look a key up."""
    return [world[key], task["id"], context.seed]

state = {"n": 1}
def shared() -> dict[str, int]:
    """Return a thing that changes later."""
    return state

def returns(what: str) -> Any:
    """Return something."""
    return {
        "text": "t", "none": None, "int": 10**40, "float": 0.5, "bool": True, "list": [1, "a"], "unicode": ["é"],
        "nested": {"a": {"b": None}}, "keys": {1: 2}, "set": {2, 1}, "point": Point(x=1), "output": ToolOutput("t", 5),
        "big": "x" * 10_000_000, "object": NoJson(), "ints": {"é": [10**40, Point(x=-(10**30))]},
        "huge": 10**5_000, "huge list": [10**5_000],
    }[what]

def untyped(a): ...
def star(*a: int): ...
def no_json(a: NoJson): ...
def positional(a: int, /): ...
not_a_function = 3
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def compiled(folder: Path, function: str, *, resources: dict[str, Any] | None = None, **keys: Any) -> Tool:
    spec = PythonSpec(kind="python", function=f"tools.py:{function}", **keys)
    (tool,) = KIND.factory(function, spec, CompileContext(base=folder, resources=resources or {}))
    assert isinstance(tool, Tool)
    return tool


def one(tool: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(call(tool, arguments, within=context(task={"id": 7}, resources={"world": {"k": "v"}})))


def test_python_tools_keep_the_laws_of_tools(folder: Path) -> None:
    modes: list[dict[str, Any]] = [{}, {"run_in": "loop"}]
    for keys in modes:
        check_tool(
            compiled(folder, "google", **keys),
            good=[{"text": "a"}, {"text": "a", "times": 3}],
            bad=[{}, {"text": 1}, {"text": "a", "time": 2}, {"text": "a", "times": 1.5}],
        )
    check_tool(compiled(folder, "sphinx"), good=[{"a": 1}], bad=[{"a": "1"}])
    check_tool(
        compiled(folder, "numpy", errors=("ValueError",)),
        good=[{"a": 1}],
        failing=[{"a": -1}, {"a": 50}],
        bad=[{"b": 1}],
    )


@pytest.mark.parametrize(
    ("function", "description", "described"),
    [
        (
            "google",
            "Repeat a text.\n\nLonger words about it.",
            {"text": "What to repeat, on two lines.", "times": "How often: at most 9."},
        ),
        ("numpy", "Add.", {"a": "Left.", "b": "Right."}),
        ("sphinx", "Do it.", {"a": "the number", "flag": "whether to do it"}),
    ],
)
def test_descriptions_come_from_the_docstring(
    folder: Path, function: str, description: str, described: dict[str, str]
) -> None:
    tool = compiled(folder, function)
    assert tool.description == description
    assert {key: one["description"] for key, one in tool.parameters["properties"].items()} == described


def test_the_schema_comes_from_the_types(folder: Path) -> None:
    parameters = compiled(folder, "google").parameters
    assert parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to repeat, on two lines."},
            "times": {"type": "integer", "description": "How often: at most 9.", "default": 2},
        },
        "required": ["text"],
    }


def test_functions_get_the_types_that_they_ask_for(folder: Path) -> None:
    tool = compiled(folder, "rich")
    result = one(tool, point={"x": 1}, when="2020-01-02", color="blue", count=3.0, schema=[1])
    assert result.value == {"x": 1, "year": 2020, "color": "blue", "mode": "a", "count": 3, "schema": [1]}
    wrong = one(tool, point={"x": 1}, when="2020-13-02")
    assert wrong.outcome == "bad_arguments"
    assert wrong.text.startswith("argument 'when'")
    assert one(tool, point={"x": "u"}, when="2020-01-02").outcome == "bad_arguments"
    assert one(tool, point={"x": 1}, when="2020-01-02", count=0).outcome == "bad_arguments"


def test_a_coroutine_function_runs_in_the_loop_and_a_plain_one_in_a_thread_unless_told(folder: Path) -> None:
    assert compiled(folder, "sphinx").mode == "async"
    assert compiled(folder, "google").mode == "thread"
    assert compiled(folder, "google", run_in="loop").mode == "inline"
    with pytest.raises(UsageError, match="coroutine function"):
        compiled(folder, "sphinx", run_in="thread")


def test_injected_parameters_are_filled_in_and_hidden(folder: Path) -> None:
    tool = compiled(folder, "injected", inject=("world", "task", "context"), resources={"world": object()})
    assert list(tool.parameters["properties"]) == ["key"]
    assert one(tool, key="k").value == ["v", 7, 0]
    assert one(tool, key="k", world={}).outcome == "bad_arguments"


@pytest.mark.parametrize(
    ("what", "text", "value"),
    [
        ("text", "t", "t"),
        ("none", "(no result)", None),
        ("int", str(10**40), 10**40),
        ("float", "0.5", 0.5),
        ("bool", "true", True),
        ("list", '[1,"a"]', [1, "a"]),
        ("unicode", '["é"]', ["é"]),
        ("nested", '{"a":{"b":null}}', {"a": {"b": None}}),
        ("keys", '{"1":2}', {"1": 2}),
        ("set", "[1,2]", [1, 2]),
        ("point", '{"x":1,"y":2.0}', {"x": 1, "y": 2.0}),
        ("output", "t", 5),
        ("ints", f'{{"é":[{10**40},{{"x":-{10**30},"y":2.0}}]}}', {"é": [10**40, {"x": -(10**30), "y": 2.0}]}),
    ],
)
def test_what_a_function_returns_becomes_text_and_value(folder: Path, what: str, text: str, value: Any) -> None:
    result = one(compiled(folder, "returns"), what=what)
    assert (result.outcome, result.text, result.value) == ("ok", text, value)


def test_a_huge_text_is_cut_and_an_object_that_is_no_json_fails(folder: Path) -> None:
    tool = compiled(folder, "returns")
    assert len(one(tool, what="big").text) < 100_000
    assert one(tool, what="object").whose == "infrastructure"
    for what in ("huge", "huge list"):  # as a power or a factorial of a policy's number
        assert (one(tool, what=what).reason, one(tool, what=what).whose) == ("too_large", "policy")


def test_the_value_is_a_copy_so_that_later_changes_do_not_reach_the_trajectory(folder: Path) -> None:
    first = one(compiled(folder, "shared"))
    state = import_function("tools.py:shared", base=folder)()
    state["n"] = 2
    assert first.value == {"n": 1}


def test_only_declared_exceptions_show_their_message(folder: Path) -> None:
    tool = compiled(folder, "numpy", errors=("ValueError", "OutOfStock"))
    assert one(tool, a=-1).text == "a is below zero"
    assert one(tool, a=101).text == "none left"
    assert one(tool, a=50).text == "fifty is not for sale"
    assert one(tool, a=51).text == "the tool numpy failed"


def test_parameters_may_be_given_in_short_or_in_full(folder: Path) -> None:
    short = compiled(folder, "untyped", parameters={"a": "text"})
    assert short.parameters == {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    optional = compiled(folder, "google", parameters={"text": "string", "times": "integer?"})
    assert optional.parameters["required"] == ["text"]
    full = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
    assert compiled(folder, "untyped", parameters=full).parameters == full


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"function": "tools.py:googel"}, "did you mean 'google'?"),
        ({"function": "tool.py:google"}, "no file 'tool.py'"),
        ({"function": "no_such_module_here:f"}, "no module 'no_such_module_here'"),
        ({"function": "tools.py"}, "file.py:function"),
        ({"function": "tools.py:not_a_function"}, "not"),
        ({"function": "tools.py:untyped"}, "parameter 'a' of 'tools.py:untyped' has no type"),
        ({"function": "tools.py:star"}, "name its parameters"),
        ({"function": "tools.py:positional"}, "name its parameters"),
        ({"function": "tools.py:no_json"}, "a type that JSON cannot give (NoJson)"),
        ({"function": "tools.py:google", "inject": ("wrld",)}, "there is no resource 'wrld'"),
        ({"function": "tools.py:google", "inject": ("task",)}, "has no parameter 'task' to inject"),
        ({"function": "tools.py:google", "errors": ("NoSuchError",)}, "'NoSuchError' is not an exception"),
        ({"function": "tools.py:google", "parameters": {"tex": "text"}}, "has no parameter 'tex'"),
        ({"function": "tools.py:google", "parameters": {"times": "integer"}}, "parameter 'text'"),
        ({"function": "tools.py:google", "parameters": {"text": "strin"}}, "expected one of string"),
    ],
)
def test_an_authors_mistake_says_what_to_change(folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as failed:
        KIND.factory("t", PythonSpec(kind="python", **keys), CompileContext(base=folder))
    assert says in str(failed.value)


def test_a_file_that_fails_while_it_loads_is_the_authors_mistake(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(textwrap.dedent("import no_such_thing_at_all\n"), encoding="utf-8")
    with pytest.raises(UsageError, match="no_such_thing_at_all"):
        KIND.factory("t", PythonSpec(kind="python", function="broken.py:f"), CompileContext(base=tmp_path))
