"""The oracle in each of its forms: steps, a function, recorded actions; what it expects, and how it fails."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.oracle import check_oracle
from rlenv.checks.subject import subject_of
from rlenv.checks.validate import validate
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import PolicyError, UsageError
from rlenv.language.loader import load_spec
from rlenv.messages import Message
from rlenv.policies.base import PolicyContext, parameters_of, read_actions, read_calls
from rlenv.policies.scripted import ScriptPolicy, random_call, random_value
from rlenv.trajectory import Trajectory

SPEC = """
rlenv: 1
name: moves
tasks: {train: {rows: ROWS}}
prompt: {user: "Move."}
tools:
  move: {kind: python, function: "tools.py:move"}
  shop_buy: {kind: python, function: "tools.py:buy"}
USER
rewards:
  said: {kind: rule, rule: contains, of: message, expect: "end"}
oracle: ORACLE
"""
TOOLS = '''
def move(to: str, steps: int = 1) -> str:
    """Moves."""
    return f"at {to} by {steps}"


def buy(item: str) -> str:
    """Buys."""
    return "3"
'''
USER = 'user: {kind: scripted, replies: ["And then?", "And then?", "###STOP###"]}'
END = {"say": "<answer>end</answer>"}
MOVES = [{"name": "move", "arguments": {"to": "a"}}, {"name": "shop.buy", "arguments": {"item": "b"}}]


def make(tmp_path: Path, oracle: Any, *rows: Any, user: str = "", gold: str = "") -> Environment:
    """The environment of `write`."""
    return load(write(tmp_path, oracle, *rows, user=user, gold=gold))


def write(tmp_path: Path, oracle: Any, *rows: Any, user: str = "", gold: str = "") -> Path:
    """The spec with an oracle and its rows."""
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "gold.py").write_text(gold, encoding="utf-8")
    text = SPEC.replace("ROWS", json.dumps(rows or [{"moves": MOVES}])).replace("USER", user)
    (tmp_path / "spec.yaml").write_text(text.replace("ORACLE", json.dumps(oracle)), encoding="utf-8")
    return tmp_path / "spec.yaml"


def play(environment: Environment, policy: Any = None, tasks: int = 1) -> list[Trajectory]:
    """The episodes of the oracle, or of a policy."""
    jobs = [Job("train", task) for task in range(tasks)]
    return asyncio.run(rollout(environment, policy or environment.oracle(), jobs))


def calls_of(trajectory: Trajectory) -> list[list[tuple[str, dict[str, Any]]]]:
    """The calls of each action."""
    assert trajectory.failure is None, trajectory.failure
    return [
        [(str(call.name), dict(getattr(call, "arguments", {}))) for call in turn.parsed.calls]
        for turn in trajectory.turns
    ]


BOTH = [("move", {"to": "a"}), ("shop_buy", {"item": "b"})]
EACH = [[one] for one in BOTH] + [[]]
FORMS: dict[str, Any] = {
    "name and arguments": MOVES[0],
    "kwargs": {"name": "move", "kwargs": {"to": "a"}},
    "OpenAI's": {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": '{"to": "a"}'}},
    "OpenAI's, a mapping": {"function": {"name": "move", "arguments": {"to": "a"}}},
    "Anthropic's": {"type": "tool_use", "id": "x", "name": "move", "input": {"to": "a"}},
    "by the tool": {"move": {"to": "a"}},
    "JSON text": '{"name": "move", "arguments": {"to": "a"}}',
    "Python": "move(to='a')",
    "Python, by position": "move('a')",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_the_form_of_a_data_set_is_that_call(form: str) -> None:
    tools = {"move": ("to", "steps"), "shop_buy": ("item",)}
    ((call,),) = read_calls(FORMS[form], tools)
    assert (call.name, call.arguments) == ("move", {"to": "a"})
    assert read_calls([FORMS[form], "shop.buy(item='b')"], tools) == [
        (*read_calls(FORMS[form], tools)[0], *read_calls("shop_buy('b')", tools)[0])
    ]
    assert len(read_calls([[FORMS[form]], [FORMS[form], FORMS[form]], []], tools)) == 2


@pytest.mark.parametrize(
    "value",
    [
        "move(to=open('/etc/passwd'))",
        "move(*x)",
        "move(**{'to': 1})",
        "__import__('os').system('x')",
        "1 + 1",
        "move('a', 'b', 'c')",
        "move(to={1, 2})",
        "(" * 100_000,
        "-" * 100_000 + "1",
        {"move": [1]},
        {"move": "no JSON"},
        {"move": {"to": float("nan")}},
        7,
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_call_is_refused_and_never_run(value: Any) -> None:
    with pytest.raises(PolicyError):
        read_calls(value, {"move": ("to", "steps")})


def _within(key: str | None, times: int, inside: Any) -> Any:
    for _ in range(times):
        inside = [inside] if key is None else {key: inside}
    return inside


_CYCLE: list[Any] = []
_CYCLE += [_CYCLE, _CYCLE]


@pytest.mark.slow(but=8)
@pytest.mark.parametrize(
    "value",
    [
        *({"tool_calls": one} for one in (7, [7], "abc", {"a": 1}, [[1]])),
        *({key: {}} for key in (7, None, ("a",))),
        *({"name": "move", "arguments": one} for one in (_CYCLE, 7, {"to": {1}}, {"to": _CYCLE}, {"to": 10**5000})),
        *(_within(key, 5_000, {}) for key in (None, "function", "tool_calls")),
        {"name": "move", "arguments": _within("to", 5_000, 1)},
        _CYCLE,
        {"tool_calls": [_CYCLE]},
        ["move('a')"] * 50_000,
        [{"move": {}}] * 50_000,
        f"[{'move(1),' * 50_000}]",
        f"move({'1,' * 500_000})",
        "1 " * 500_000,
        iter([{"move": {}}] * 50_000),
    ],
    ids=lambda value: str(type(value)),
)
def test_a_value_of_any_shape_is_read_within_bounds_or_refused(value: Any) -> None:
    begun = time.thread_time()
    with pytest.raises(PolicyError):
        read_calls(value, {"move": ("to", "steps")})
    with suppress(PolicyError):
        read_actions(value, {"move": ("to", "steps")})
    assert time.thread_time() - begun < 20.0  # quadratic time would be minutes


STEPS: dict[str, tuple[Any, Any, list[list[tuple[str, Any]]]]] = {
    "tool and arguments of the row": (
        [{"for_each": "task.moves", "call": {"{{ item.name }}": "{{ item.arguments }}"}}, END],
        {"moves": [{"name": "move", "arguments": {"to": "a"}}]},
        [BOTH[:1], []],
    ),
    "all calls at once": ([{"call": "{{ task.moves }}"}, END], {"moves": MOVES}, [BOTH, []]),
    "one after the other": ([{"for_each": "{{ task.moves }}", "call": "{{ item }}"}, END], {"moves": MOVES}, EACH),
    "lists of lists": ([{"call": "{{ task.moves | batch(1) }}"}, END], {"moves": MOVES}, EACH),
    "a cell of text": ([{"for_each": "task.moves", "call": "{{ item }}"}, END], {"moves": json.dumps(MOVES)}, EACH),
    "calls and text in one step": ([{"call": "{{ task.moves }}", **END}], {"moves": MOVES}, [BOTH, []]),
    "no calls are no action": ([{"call": "{{ task.moves }}", **END}], {"moves": []}, [[]]),
    "a condition on the row": (
        [{"when": "task.n > 1", "call": "move('no')"}, {"when": "task.n == 1", "call": {"move": {"to": "a"}}}, END],
        {"n": 1},
        [BOTH[:1], []],
    ),
    "a condition on each item": (
        [{"for_each": "task.moves", "when": "item.name == 'move'", "call": "{{ item }}"}, END],
        {"moves": MOVES},
        [BOTH[:1], []],
    ),
    "a condition on results": (
        [
            {"call": "move('a')"},
            {"when": "'at b' in results[-1]", "call": "move('no')"},
            {"when": "'at a' in results[-1]", "call": "shop_buy('b')"},
            END,
        ],
        {},
        [*([one] for one in BOTH), []],
    ),
    "items of results": (
        [{"call": "move('a')"}, {"for_each": "results[-1].split()[:1]", "call": {"move": {"to": "{{ item }}"}}}, END],
        {},
        [BOTH[:1], [("move", {"to": "at"})], []],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_a_step_is_what_the_row_says(tmp_path: Path, case: str) -> None:
    oracle, row, expected = STEPS[case]
    environment = make(tmp_path, oracle, row)
    (trajectory,) = play(environment)
    assert calls_of(trajectory) == expected
    assert trajectory.success
    assert validate([tmp_path / "spec.yaml"]).faults == ()


def test_a_list_for_each_turn_of_the_user_is_one_line(tmp_path: Path) -> None:
    row = {"gold": [["move('a')", "shop.buy('b')"], [], ["move(to='c')"]]}
    environment = make(tmp_path, [{"for_each": "task.gold", "call": "{{ item }}", "say": "end"}], row, user=USER)
    (trajectory,) = play(environment)
    assert calls_of(trajectory) == [BOTH, [], [], [("move", {"to": "c"})], []]
    assert trajectory.terminated
    assert trajectory.success
    assert validate([tmp_path / "spec.yaml"]).faults == ()


def test_a_tool_that_a_reply_brings_is_known_from_then_on(tmp_path: Path) -> None:
    gold = [{"for_each": "task.gold", "call": "{{ item }}", "say": "end"}]

    def at(path: Path) -> Path:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(':buy"}', ':buy", offered: "{{ user_turn > 0 }}"}'), encoding="utf-8")
        return path

    late, early = {"gold": [["move('a')"], ["shop_buy('b')"], []]}, {"gold": [["shop_buy('b')"], [], []]}
    path = at(write(tmp_path, gold, late, user=USER))
    (trajectory,) = play(load(path))
    assert calls_of(trajectory) == [BOTH[:1], [], BOTH[1:], [], []]
    assert validate([path]).faults == ()
    (fault,) = validate([at(write(tmp_path, gold, late, early, user=USER))]).faults
    assert fault.path == "oracle.0.call"
    assert "row 2" in fault.message


MESSAGES = [
    {"role": "user", "content": "Move."},
    {"role": "assistant", "content": "Well.", "tool_calls": [{"id": "1", **FORMS["OpenAI's"]}]},
    {"role": "tool", "tool_call_id": "1", "content": "at a"},
    {"role": "assistant", "content": "<answer>end</answer>"},
]  # fmt: skip
WRITTEN = '<tool_call>\n{"name": "move", "arguments": {"to": "a"}}\n</tool_call>'
RECORDED: dict[str, Any] = {
    "messages": MESSAGES,
    "texts": [WRITTEN, "<answer>end</answer>"],
    "calls and a text": [{"name": "move", "arguments": {"to": "a"}}, "<answer>end</answer>"],
    "a cell of text": json.dumps([WRITTEN, "<answer>end</answer>"]),
}


@pytest.mark.parametrize("form", RECORDED)
def test_recorded_actions_are_played_as_they_stand(tmp_path: Path, form: str) -> None:
    environment = make(tmp_path, "{{ task.actions }}", {"actions": RECORDED[form]})
    (trajectory,) = play(environment)
    assert calls_of(trajectory) == [BOTH[:1], []]
    assert trajectory.turns[-1].action == "<answer>end</answer>"
    assert validate([tmp_path / "spec.yaml"]).faults == ()


@pytest.mark.parametrize("form", ["messages", "texts", "calls and a text"])
def test_a_script_file_holds_what_a_row_may_hold(tmp_path: Path, form: str) -> None:
    environment = make(tmp_path, [END])
    (tmp_path / "gold.jsonl").write_text(json.dumps(RECORDED[form]) + "\n", encoding="utf-8")
    (trajectory,) = play(environment, ScriptPolicy(tmp_path / "gold.jsonl"))
    assert calls_of(trajectory) == [BOTH[:1], []]


PYTHON = {"function": "gold.py:play"}
FUNCTIONS = {
    "a list": "def play(task):\n    return [task['moves'][0], '<answer>end</answer>']",
    "asked again with results": (
        "def play(task, results):\n    if not results:\n        return task['moves'][0]\n"
        "    return f'<answer>end {results[-1]}</answer>'"
    ),
    "a generator": (
        "def play(task):\n    (result,) = yield task['moves'][0]\n"
        "    assert result == 'at a by 1', result\n    yield '<answer>end</answer>'"
    ),
    "async": "async def play(task):\n    return [task['moves'][0], {'content': '<answer>end</answer>'}]",
    "an async generator": (
        "async def play(task, vars):\n    got = yield [task['moves'][0]]\n    yield f'<answer>end {got[0]}</answer>'"
    ),
}


@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_function_gives_the_actions(tmp_path: Path, form: str) -> None:
    environment = make(tmp_path, {"function": "gold.py:play"}, gold=FUNCTIONS[form])
    (trajectory,) = play(environment)
    assert calls_of(trajectory) == [BOTH[:1], []]
    assert trajectory.success
    assert validate([tmp_path / "spec.yaml"]).faults == ()


def test_a_function_in_the_folder_of_the_spec_that_is_extended_is_found(tmp_path: Path) -> None:
    make(tmp_path, {"function": "gold.py:play"}, gold=FUNCTIONS["a list"])
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "own.yaml").write_text("extends: ../spec.yaml\nname: own\n", encoding="utf-8")
    (trajectory,) = play(load(tmp_path / "below" / "own.yaml"))
    assert trajectory.success


@pytest.mark.parametrize(
    ("oracle", "gold", "said"),
    [
        (PYTHON, "def play(task):\n    raise KeyError('x')", "oracle.function: the function failed: "),
        (PYTHON, "def play(task):\n    return 7", "oracle.function: found a int"),
        (PYTHON, "def play(task):\n    return None", "its steps are over"),
        ([{"call": "{{ task.moves }}"}, {"call": "{{ task.none }}"}, END], "", "oracle.1: {{ task.none }} is undef"),
        ([{"call": "{{ 7 }}"}, END], "", "oracle.0: found a int; expected a call"),
        ([{"call": "move('a')", "expect": "at b"}, END], "", ".expect: the last result is 'at a by 1'; expect"),
        ([{"call": "shop_buy('b')", "expect": "{{ 4 }}", **END}], "", ".expect: the last result is '3'; expected 4"),
        ("{{ task.moves[0].arguments.to }}{{ 1 }}", "", None),
    ],
)  # fmt: skip
def test_an_oracle_that_fails_is_an_authors_error_that_names_its_step(
    tmp_path: Path, oracle: Any, gold: str, said: str | None
) -> None:
    (trajectory,) = play(make(tmp_path, oracle, gold=gold))
    assert trajectory.reward.total is None or said is None
    assert said is None or (trajectory.failure is not None and said in trajectory.failure.message), trajectory.failure


def test_validate_warns_at_what_is_expected_of_a_result(tmp_path: Path) -> None:
    oracle = [{"call": "move('a')"}, {"call": "move('b')", "expect": "at c"}, END]
    (warning,) = [one for one in validate([write(tmp_path, oracle)]).warnings if one.code == "wrong-oracle"]
    assert warning.path == "oracle.1.expect"
    assert "the last result is 'at b by 1'; expected 'at c'" in warning.message


@pytest.mark.parametrize("expect", ["at a", "by {{ task.moves | length - 1 }}"])
def test_a_text_is_looked_for_in_the_last_result(tmp_path: Path, expect: str) -> None:
    (trajectory,) = play(make(tmp_path, [{"call": "move('a')", "expect": expect}, END]))
    assert trajectory.success


@pytest.mark.parametrize("expect", [3, "{{ 3 }}", "3"])
def test_another_value_equals_the_last_result(tmp_path: Path, expect: Any) -> None:
    (trajectory,) = play(make(tmp_path, [{"call": "{{ task.moves }}", "expect": expect, **END}]))
    assert trajectory.success


EACH_ITEM = [{"for_each": "task.moves", "call": "{{ item }}"}, END]
FAULTS: list[tuple[Any, dict[str, Any], str, str]] = [
    (EACH_ITEM, {"moves": ["run()"]}, "oracle.0.call", "no tool 'run', which row 1"),
    (EACH_ITEM, {"moves": ["move(too='a')"]}, "oracle.0.call", "do not fit 'move' for row 1"),
    ([{"call": {"{{ task.name }}": "{{ task.to }}"}}, END], {"name": "move", "to": {"to": 1}}, "oracle.0.call", "fit"),
    ([{"call": {"{{ task.nam }}": {}}}, END], {"name": "move"}, "oracle.0.call.{{ task.nam }}", "has no column 'nam'"),
    ([{"when": "task.m", "call": "move('a')"}, END], {"n": 1}, "oracle.0.when", "has no column 'm'"),
    ([{"call": "{{ task.n }}"}, END], {"n": 1}, "oracle.0.call", "found a int"),
    ([{"call": "move('a')", "expect": "{{ task.m }}"}, END], {"n": 1}, "oracle.0.expect", "has no column 'm'"),
    ([{"call": {"move": {"to": "a"}}, "expect": "at"}], {}, "oracle.0.expect", "no action follows the call"),
    ([{"for_each": "task.says", "say": "<answer>end</answer>"}], {"says": [1, 2]}, "oracle.0", "is never played"),
    (EACH_ITEM, {"moves": ["move('a')"] * 9}, "oracle", "needs 10 actions"),
    ("{{ task.actions }}", {"actions": 7}, "oracle", "its actions fail for row 1"),
    ("{{ task.actions }}", {"actions": [{"name": "run"}]}, "oracle", "there is no tool 'run'"),
    ("{{ task.action }}", {"actions": []}, "oracle", "has no column 'action'"),
    ({"function": "gold.py:plai"}, {}, "oracle.function", "has no function 'plai'"),
    ({"function": "gold.py:other"}, {}, "oracle.function", "nothing gives 'row'"),
    ({"pyhton": "gold.py:play"}, {}, "oracle.pyhton", "unknown key"),
    (7, {}, "oracle", "expected a list of steps"),
]  # fmt: skip


@pytest.mark.parametrize(("oracle", "row", "path", "message"), FAULTS, ids=[f"{one[2]} {one[3]}" for one in FAULTS])
def test_validate_says_what_a_row_makes_of_the_oracle_at_its_place(
    tmp_path: Path, oracle: Any, row: dict[str, Any], path: str, message: str
) -> None:
    gold = "def play(task):\n    return []\n\n\ndef other(row):\n    return []\n"
    faults = validate([write(tmp_path, oracle, row, gold=gold)]).faults
    (fault,) = [one for one in faults if one.path == path]
    assert message in fault.message
    assert fault.hint
    assert fault.line == 12


def test_rows_are_checked_in_time_linear_in_their_number(tmp_path: Path) -> None:
    def seconds(rows: int) -> float:
        many = [{"n": n, "moves": MOVES} for n in range(rows)]
        subject = subject_of(load_spec(write(tmp_path, EACH_ITEM, *many)))
        began = time.thread_time()
        assert list(check_oracle(subject)) == []
        return time.thread_time() - began

    assert seconds(400) < 8 * seconds(100) + 0.1


def test_positional_arguments_and_names_come_of_the_schemas() -> None:
    schema = {"type": "function", "function": {"name": "a_b", "parameters": {"properties": {"x": {}, "y": {}}}}}
    ((call,),) = read_calls("a.b(1, y=2)", parameters_of([schema]))
    assert (call.name, call.arguments) == ("a_b", {"x": 1, "y": 2})
    assert read_actions(None, {}) == []


def many(schema: Any, count: int = 300, **keys: Any) -> list[Any]:
    return [random_value(schema, random.Random(seed), **keys) for seed in range(count)]


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [
        ({}, -1000, 1000),
        ({"minimum": 3, "maximum": 5}, 3, 5),
        ({"minimum": 5000}, 5000, 5000),
        ({"minimum": 990}, 990, 1000),
        ({"maximum": -5000}, -5000, -5000),
        ({"maximum": -995}, -1000, -995),
        ({"maximum": 7}, -1000, 7),
    ],
)
def test_random_numbers_are_drawn_from_all_that_a_schema_allows(
    kind: str, bounds: dict[str, int], least: int, most: int
) -> None:
    drawn = many({"type": kind, **bounds})
    assert all(least <= value <= most for value in drawn)
    assert min(drawn) - least <= 0.05 * (most - least)
    assert most - max(drawn) <= 0.05 * (most - least)
    if kind == "integer" and most - least <= 10:
        assert set(drawn) == set(range(least, most + 1))
    assert all(value == round(value, 3) for value in drawn)


def test_random_values_are_of_the_kinds_that_a_schema_names() -> None:
    assert set(many({"enum": ["a", 1, None]})) == {"a", 1, None}
    assert set(many({"const": "c", "type": "string"})) == {"c"}
    assert set(many({"type": "boolean"})) == {True, False}
    assert set(many({"type": "null"})) == set(many(True)) == {None}
    assert {type(value) for value in many({"type": ["integer", "null"]})} == {int, type(None)}
    assert {type(value) for value in many({"anyOf": [{"type": "integer"}, {"type": "boolean"}]})} == {int, bool}
    assert {len(value) for value in many({"type": "array", "items": {"type": "null"}})} == {0, 1, 2, 3}
    words = many({}, 2_000)
    assert all(value and value == value.strip() for value in words)
    assert {value.count(" ") for value in words if "2 + 2" not in value} == {0, 1, 2, 3}


def test_random_objects_have_all_that_is_required_and_the_rest_by_chance_and_end_at_a_depth() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a"]}
    assert {tuple(value) for value in many(schema)} == {("a",), ("a", "b")}
    assert {tuple(value) for value in many(schema, depth=3)} == {("a",), ("a", "b")}
    assert {tuple(value) for value in many(schema, depth=4)} == {("a",)}
    lists = {"type": "array", "items": {"const": 1}}
    assert [max(map(len, many(lists, depth=depth))) for depth in (3, 4)] == [3, 0]
    endless: dict[str, Any] = {"type": "object", "required": ["more"]}
    endless["properties"] = {"more": {"type": "array", "items": endless}}
    assert all(json.dumps(value).count("[") <= 200 for value in many(endless, 50))


def test_equal_seeds_draw_equal_calls_of_each_tool() -> None:
    tools = [{"function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
    drawn = [random_call(tools, random.Random(seed)) for seed in range(30)]
    assert {call.name for call in drawn} == {"a", "b"}
    assert drawn == [random_call(tools, random.Random(seed)) for seed in range(30)]


@pytest.mark.parametrize(("index", "said"), [(0, "abbb"), (1, "cccc"), (2, "abbb"), (3, "cccc"), (-1, "abbb")])
def test_a_script_is_that_of_the_tasks_number_and_repeats_its_last_action(
    tmp_path: Path, index: int, said: str
) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('["a", "b"]\n\n["c"]\n')

    async def main() -> str:
        context = PolicyContext({}, [], {}, "", lambda _: "", task_index=index)
        session = ScriptPolicy(path).start(context)
        return "".join([str(await session.act([])) for _ in range(4)])

    assert asyncio.run(main()) == said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", ":1:2: not JSON"),
        ("[]", "expected a JSON list"),
        ('"a"', "expected a JSON list"),
        ("[3]", "script.jsonl:1: found a int"),
        ("", "is empty"),
    ],
)
def test_a_script_that_is_none_is_named_by_its_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=says):
        ScriptPolicy(path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"role": "user", "content": "a"}, []),
        ({"role": "assistant", "content": "a"}, ["a"]),
        ({"content": "a"}, ["a"]),
        ([{"role": "tool", "content": "x"}, "text", {"role": "assistant", "content": "b"}], ["text", "b"]),
        (None, []),
        ([], []),
    ],
)
def test_of_a_recording_the_assistants_messages_are_actions(value: Any, said: list[str]) -> None:
    assert [one if isinstance(one, str) else one.content for one in read_actions(value, {})] == said


def test_a_tool_may_be_called_as_the_keys_of_a_message_are() -> None:
    (action,) = read_actions({"content": {"a": 1}}, {"content": ("a",)})
    assert isinstance(action, Message)
    assert [call.name for call in action.tool_calls] == ["content"]


@pytest.mark.parametrize(("depth", "is_read"), [(16, True), (17, False)])
def test_calls_are_read_up_to_a_depth(depth: int, is_read: bool) -> None:
    with nullcontext() if is_read else pytest.raises(PolicyError, match="16 lists or objects in each other"):
        assert len(read_calls(_within(None, depth, {"move": {}}), {"move": ()})) == 1
