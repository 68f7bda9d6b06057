"""Tools that differ by task: what a row is offered, and what it declares itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rlenv.audit.play import Planting, failing_calls, planted
from rlenv.calls.toolsets import ToolSets
from rlenv.checks.validate import validate
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Step
from rlenv.errors import SpecError
from rlenv.tools.arguments import parse_declared
from rlenv.trajectory import Trajectory

FUNCTIONS = '''
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def negate(a: int) -> int:
    """Turns the sign."""
    return -a


def seen(context) -> float:
    return float(len(context.task["tools"]))


def api(name: str, arguments: dict, task) -> str:
    if "city" not in arguments:
        return "error: which city?"
    return f"{name} of {arguments['city']} for {task['id']}"


def of_row(task, user_turn):
    return [{"name": name, "parameters": {}} for name in task["tools"][: 1 + user_turn]]
'''

SPEC = """
rlenv: 1
name: rows
tasks:
  train:
    rows:
    - {id: 0, tools: [add], hard: false}
    - {id: 1, tools: [add, negate], hard: true}
    - {id: 2, tools: [lost], hard: true}
prompt: {user: "Task {{ task.id }}"}
tools:
  add: {kind: python, function: "tools.py:add", offered: "{{ task.tools }}"}
  negate: {kind: python, function: "tools.py:negate", offered: "{{ task.hard }}"}
rewards: {seen: {kind: rule, function: "tools.py:seen"}}
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather.now",
        "description": "Tells the weather.",
        "parameters": {"type": "dict", "properties": {"city": {"type": "str"}}, "required": ["city"]},
    },
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(environment: Environment, actions: list[str], *, task: Any = 0) -> tuple[Any, list[Step], Trajectory]:
    async def main() -> tuple[Any, list[Step], Trajectory]:
        async with environment.start(task=task) as episode:
            steps = [await episode.step(action) for action in actions if not episode.is_ended]
            return episode, steps, await episode.truncate("left") if not episode.is_ended else episode.trajectory

    return asyncio.run(main())


def names(episode: Any) -> list[str]:
    return [schema["function"]["name"] for schema in episode.tool_schemas]


def test_a_row_has_the_tools_that_it_is_offered_and_no_other(make_environment: Any) -> None:
    environment = make_environment(SPEC, tools=FUNCTIONS)
    easy, (step,), _ = run(environment, [call("negate", a=1)])
    hard, (other,), _ = run(environment, [call("negate", a=1)], task=1)
    assert (names(easy), names(hard)) == (["add"], ["add", "negate"])
    assert (step.observation.results[0].outcome, other.observation.results[0].text) == ("unknown_tool", "-1")
    assert "negate" not in step.observation.results[0].text.partition("available")[2]
    assert ("negate" in easy.prompt_text, "negate" in hard.prompt_text) == (False, True)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (2, "tools.add.offered names 'lost', and there is no such tool"),
        ({"id": 3, "hard": True}, "tools.add.offered cannot"),
    ],
)
def test_a_row_that_names_no_tool_fails_its_own_episode_alone(make_environment: Any, task: Any, said: str) -> None:
    environment = make_environment(SPEC, tools=FUNCTIONS)
    _, _, ended = run(environment, [], task=task)
    assert ended.failure is not None
    assert (ended.failure.reason, ended.reward.total) == ("tools", None)
    assert said in ended.failure.message
    assert run(environment, [call("add", a=1, b=1)])[1][0].observation.results[0].text == "2"


@pytest.mark.parametrize(
    ("cell", "offered"),
    [("true", ["negate"]), ("False", []), ("", []), (" ", []), ("negate", ["negate"]), ("add", []), ("no", None)],
)
def test_a_cell_of_text_says_true_false_or_a_name(make_environment: Any, cell: str, offered: list[str] | None) -> None:
    environment = make_environment(SPEC, tools=FUNCTIONS)
    episode, _, ended = run(environment, [], task={"id": 4, "tools": [], "hard": cell})
    assert (ended.failure is None, offered is None or names(episode) == offered) == (offered is not None, True)


def test_a_tool_that_nobody_is_offered_is_called_by_rewards_alone(make_environment: Any) -> None:
    text = SPEC.replace('offered: "{{ task.hard }}"', "offered: false").replace('"{{ task.tools }}"', "true")
    text = text.replace("rewards: {", "rewards: {is: {kind: verify, tool: negate, arguments: {a: 2}, expect: -2}, ")
    environment = make_environment(text, tools=FUNCTIONS)
    episode, (step,), ended = run(environment, [call("negate", a=2)])
    assert (names(episode), step.observation.results[0].outcome) == (["add"], "unknown_tool")
    assert ended.reward.terms["is"].value == 1


@pytest.mark.parametrize(
    ("code", "offered", "outcomes"),
    [("[negate]", "false", {"ok": 1}), ("[]", "false", None), ("[negate]", '"{{ false }}"', {"unknown_tool": 1})],
)
@pytest.mark.parametrize("other", ["true", '"{{ task.tools }}"'])
def test_code_alone_calls_the_tool_that_nobody_is_offered_and_its_entry_names(
    make_environment: Any, code: str, offered: str, outcomes: Any, other: str
) -> None:
    """A tool that its own template does not offer to this row is not code's either."""
    text = SPEC.replace('offered: "{{ task.hard }}"', f"offered: {offered}").replace('"{{ task.tools }}"', other)
    text = text.replace("rewards:", f"  run: {{kind: code, tools: {code}}}\nrewards:")
    environment = make_environment(text, tools=FUNCTIONS)
    actions = [call("negate", a=2), call("run", code="print(negate(2))")]
    episode, (direct, inside), _ = run(environment, actions)
    assert (names(episode), direct.observation.results[0].outcome) == (["add", "run"], "unknown_tool")
    assert (inside.observation.results[0].details or {}).get("called") == (outcomes and {"negate": outcomes})


@pytest.mark.parametrize("form", ["list", "json"])
def test_a_row_declares_tools_of_its_own(make_environment: Any, form: str) -> None:
    tools: Any = [WEATHER] if form == "list" else json.dumps([WEATHER])
    text = SPEC[: SPEC.index("  add:")] + (
        '  row: {kind: python, function: "tools.py:api", inject: [task], schemas: "{{ task.tools }}"}\n'
        'rewards: {seen: {kind: rule, function: "tools.py:seen"}}\n'
    )
    environment = make_environment(text, tools=FUNCTIONS)
    row = {"id": 7, "tools": tools}
    episode, steps, _ = run(environment, [call("weather_now", city="Bern"), call("weather_now", town=1)], task=row)
    assert names(episode) == ["weather_now"]
    assert [step.observation.results[0].outcome for step in steps] == ["ok", "bad_arguments"]
    assert steps[0].observation.results[0].text == "weather.now of Bern for 7"
    assert environment.toolsets.of(row) is environment.toolsets.of({**row, "id": 8})


def test_arguments_that_do_not_fit_may_be_left_to_the_api(make_environment: Any) -> None:
    text = SPEC[: SPEC.index("  add:")] + (
        '  row: {kind: python, function: "tools.py:api", inject: [task], schemas: "{{ task.tools }}", strict: false}\n'
        'rewards: {seen: {kind: rule, function: "tools.py:seen"}}\n'
    )
    environment = make_environment(text, tools=FUNCTIONS)
    _, (step,), _ = run(environment, [call("weather_now", town=1)], task={"id": 7, "tools": [WEATHER]})
    assert (step.observation.results[0].outcome, step.observation.results[0].text) == ("ok", "error: which city?")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (", ends: \"{{ result.text == 'over' }}\"", ""),
        (', ends: "{{ lost }}"', "'lost' is not known here"),
        (', offered: "{{ lost }}"', "'lost' is not known here"),
        (", description: All of them", "each schema declares it"),
        (", parameters: {a: string}", "each schema declares it"),
    ],
)
def test_what_an_entry_says_of_tools_that_rows_declare(tmp_path: Path, keys: str, said: str) -> None:
    (tmp_path / "tools.py").write_text(FUNCTIONS)
    text = SPEC[: SPEC.index("  add:")] + (
        f'  row: {{kind: python, function: "tools.py:api", inject: [task], tools: "tools.py:of_row"{keys}}}\n'
        'rewards: {seen: {kind: rule, function: "tools.py:seen"}}\n'
    )
    (tmp_path / "spec.yaml").write_text(text)
    faults = [str(fault) for fault in validate([tmp_path / "spec.yaml"]).faults]
    assert (not faults) if not said else any(said in fault for fault in faults)


def test_a_reply_of_the_user_may_bring_tools_and_says_which(make_environment: Any) -> None:
    text = SPEC[: SPEC.index("  add:")] + (
        '  row: {kind: python, function: "tools.py:api", inject: [task], tools: "tools.py:of_row"}\n'
        "user: {kind: scripted, replies: [more, and more]}\n"
        'rewards: {seen: {kind: rule, function: "tools.py:seen"}}\n'
    )
    environment = make_environment(text, tools=FUNCTIONS)
    row = {"id": 1, "tools": ["a", "b"]}
    actions = [call("b"), "What now?", call("b"), "And now?"]
    episode, steps, _ = run(environment, actions, task=row)
    (said,) = steps[1].observation.messages
    assert names(episode) == ["a"]
    assert steps[0].observation.results[0].outcome == "unknown_tool"
    assert said.content.startswith("more\n\nMore tools are available now:\n")
    assert json.loads(said.content.splitlines()[-1])["function"]["name"] == "b"
    assert steps[2].observation.results[0].text == "error: which city?"
    assert steps[3].observation.messages[0].content == "and more"


@pytest.mark.parametrize(
    ("given", "name", "parameters"),
    [
        (WEATHER, "weather_now", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
        (
            {"name": "f", "parameters": {"n": {"type": "int, optional", "default": 3}, "xs": {"type": "List[int]"}}},
            "f",
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "default": 3}, "xs": {"type": "array"}},
                "required": ["xs"],
            },
        ),
        ({"name": "g", "inputSchema": {"type": "object", "properties": {}}}, "g", {"type": "object", "properties": {}}),
        (
            {"name": "h", "parameters": {"type": "dict", "properties": {"x": {"type": "any"}}, "required": None}},
            "h",
            {"type": "object", "properties": {"x": {}}},
        ),
        ({"name": "k"}, "k", {"type": "object", "properties": {}, "required": []}),
    ],
    ids=["bfcl", "xlam", "mcp", "toolace", "none"],
)
def test_the_forms_of_data_sets_are_read_as_json_schema(given: Any, name: str, parameters: Any) -> None:
    found = parse_declared(given)
    assert (found.name, found.parameters) == (name, parameters)


@pytest.mark.parametrize("odd", [2**70, "\ud800", {1: 2}])
def test_what_json_has_no_word_for_may_stand_in_a_schema(make_environment: Any, odd: Any) -> None:
    environment = make_environment(KEPT % "strict: false", tools=COUNTED)
    rows = [{"tools": [{"name": "t", "parameters": {"properties": {"a": {"enum": [1, one]}}}}]} for one in (odd, 3)]
    first, again, other = (environment.toolsets.of(row) for row in (rows[0], rows[0], rows[1]))
    assert first is again
    assert first is not other


KEPT = """
rlenv: 1
name: kept
tasks: {train: {rows: [{id: 0}]}}
prompt: {user: "Go."}
tools: {api: {kind: python, function: "tools.py:api", schemas: "{{ task.tools }}", %s}}
rewards: {length: {kind: rule, rule: turn_count, max: 9}}
"""
COUNTED = """
made = []


def api(name: str, arguments: dict) -> str:
    made.append(name)
    return f"{name} {len(made)}"
"""


def test_what_is_kept_of_a_tool_answers_no_tool_of_another_name(make_environment: Any, tmp_path: Any) -> None:
    keys = f"idempotent: true, cache: {{scope: disk, path: {tmp_path / 'kept.sqlite'}}}"
    environment = make_environment(KEPT % keys, tools=COUNTED)

    async def asked(name: str) -> str:
        async with environment.start(task={"tools": [{"name": name}]}) as episode:
            action = json.dumps({"name": parse_declared({"name": name}).name, "arguments": {}})
            await episode.step(f"<tool_call>\n{action}\n</tool_call>")
            return episode.turns[0].results[0].text

    async def main() -> list[str]:
        found = [await asked(name) for name in ("a.b", "a_b", "a.b")]
        await environment.aclose()
        return found

    assert asyncio.run(main()) == ["a.b 1", "a_b 2", "a.b 1"]


POOLED = """
import asyncio
running, most = 0, 0


async def api(name: str, arguments: dict) -> int:
    global running, most
    running, most = running + 1, max(most, running + 1)
    await asyncio.sleep(0)
    running -= 1
    if name == "bad":
        raise OSError
    return most
"""


@pytest.mark.parametrize(
    ("keys", "names", "outcomes"),
    [
        ("rate_per_s: 0.01", "ab", ["", "busy"]),
        ("breaker: {failures: 2}", ("bad", "bad", "a"), ["bug", "bug", "breaker_open"]),
        ("concurrency: 1", "abc", [1, 1, 1]),
        ("shared_concurrency: 1", "abc", [1, 1, 1]),
        ("idempotent: true, cache: {scope: process}", "aa", [None, True]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_tools_of_rows_count_their_calls_by_entry(
    make_environment: Any, keys: str, names: Any, outcomes: list[Any]
) -> None:
    environment = make_environment(KEPT % keys, tools=POOLED)

    async def asked(number: int, name: str) -> Any:
        row = {"tools": [{"name": name}, {"name": f"other_{number}"}]}  # no two rows have the same tools
        async with environment.start(task=row) as episode:
            await episode.step(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>')
            (result,) = episode.turns[0].results
            if "concurrency" in keys:
                return result.value
            return (result.details or {}).get("cached") if "cache" in keys else result.reason

    async def main() -> list[Any]:
        works = [asked(*pair) for pair in enumerate(names)]
        found = await asyncio.gather(*works) if "concurrency" in keys else [await work for work in works]
        await environment.aclose()
        return list(found)

    assert asyncio.run(main()) == outcomes


def test_what_an_audit_does_to_calls_it_does_to_those_of_rows_tools(make_environment: Any) -> None:
    environment = make_environment(KEPT % "strict: false", tools=COUNTED)

    async def played() -> Trajectory:
        async with environment.start(task={"tools": [{"name": "a"}], "gold": []}) as episode:
            await episode.step('<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>')
            async with episode.tools.after(["a()"], lambda resources: None):  # as rewards of a kind of their own do
                pass
            return await episode.truncate("script")

    with failing_calls(environment, 1.0, seed=0):
        assert asyncio.run(played()).turns[0].results[0].reason == "injected"
    with planted(environment, Planting("zq")):
        assert "zq" in asyncio.run(played()).turns[0].results[0].text
    assert asyncio.run(played()).turns[0].results[0].text.startswith("a ")


MANY = """
rlenv: 1
name: many
tasks: {train: {rows: [{n: 3}]}}
prompt: {user: "Go."}
resources: {shop: {kind: python, function: "tools.py:Shop"}}
tools: {api: {kind: python, %s}}
rewards: {length: {kind: rule, rule: turn_count, max: 9}}
"""
KINDS = """
class Base:
    def first(self) -> int:
        return self.n

    def _hidden(self) -> int: ...

    def reset(self, **row) -> None:
        "Begins the world: the host's, and no tool."


class Shop(Base):
    kept = 7

    def __init__(self, task):
        self.n = task["n"]

    async def add(self, more: int) -> int:
        self.n += more
        return self.n

    @staticmethod
    def still(more: int) -> int:
        return more


def double(more: int) -> int:
    return 2 * more


def look(shop, more: int) -> int:
    return shop.n + more


def answer(name: str, arguments: dict) -> str:
    return f"{name} {arguments['more']}"


FUNCTIONS = (double, look)
NAMED = {"a.double": double, "look here": look}
SCHEMAS = [{"name": "a.b", "parameters": {"type": "dict", "properties": {"more": {"type": "int"}}}}]


def every():
    return FUNCTIONS


def broken():
    raise OSError("gone")
"""


@pytest.mark.parametrize(
    ("keys", "results"),
    [
        ('tools: "tools.py:Shop", inject: [shop]', {"first": 3, "add": 5, "still": 2}),
        ('tools: "tools.py:FUNCTIONS", inject: [shop]', {"double": 4, "look": 5}),
        ('tools: "tools.py:every", inject: [shop]', {"double": 4, "look": 5}),
        ('tools: "tools.py:NAMED", inject: [shop]', {"a_double": 4, "look_here": 5}),
        ('tools: "tools.py:SCHEMAS", function: "tools.py:answer"', {"a_b": "a.b 2"}),
    ],
)
def test_an_entry_may_give_functions_the_methods_of_a_class_or_schemas(
    make_environment: Any, keys: str, results: dict[str, Any]
) -> None:
    environment = make_environment(MANY % keys, tools=KINDS)
    assert list(environment.parts.tools) == list(results)

    async def main() -> dict[str, Any]:
        async with environment.start(task=0) as episode:
            for name in results:
                arguments = {} if name == "first" else {"more": 2}
                await episode.step(f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")
            return {result.name: result.value for turn in episode.turns for result in turn.results}

    assert asyncio.run(main()) == results


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('tools: "tools.py:Shop"', "'first' is a method, and no resource is its object"),
        ('tools: "tools.py:FUNCTIONS", inject: [shop], run_in: process', "tools.api.run_in"),
        ('tools: "tools.py:FUNCTIONS", inject: [shop], strict: false', "tools.api.strict"),
        ('tools: "tools.py:FUNCTIONS", inject: [shop], function: "tools.py:answer"', "tools.api.function"),
        ('tools: "tools.py:FUNCTIONS"', "parameter 'shop' of 'look' has no type"),
        ('tools: "tools.py:SCHEMAS"', "nothing says what is called"),
        ('tools: "tools.py:gone"', "has no function 'gone'"),
        ('tools: "tools.py:broken"', "OSError: gone"),
        ("inject: [shop]", "nothing says what is called"),
    ],
)
def test_several_tools_that_nobody_can_call_are_a_fault(make_environment: Any, keys: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make_environment(MANY % keys, tools=KINDS)


def test_a_policy_that_the_function_cannot_keep_is_a_fault_of_the_spec(make_environment: Any) -> None:
    with pytest.raises(SpecError, match="results cannot be kept"):
        make_environment(KEPT % "cache: {scope: process}", tools=COUNTED)


def test_sets_of_rows_are_kept_up_to_a_number_of_tools(make_environment: Any) -> None:
    made = make_environment(KEPT % "strict: false", tools=COUNTED)
    sets = ToolSets(made.loaded, made.parts.tools, made.parts.row_tools, made.executor, most=5)
    rows = [{"tools": [{"name": f"t{row}_{index}"} for index in range(2)]} for row in range(3)]
    first, second, third = (sets.of(row) for row in rows)
    assert (sets.of(rows[2]), sets.of(rows[1])) == (third, second)
    assert sets.of(rows[0]) is not first


@pytest.mark.parametrize(
    ("ends", "ended"),
    [("false", []), ("true", ["terminated"]), ("'{{ result.value >= 3 }}'", ["terminated"]),
     ("'{{ result.value > 3 }}'", []), ("\"{{ 'truncated' if tool == 'add' else '' }}\"", ["truncated"])],
)  # fmt: skip
def test_an_entry_says_whether_its_call_ends_the_episode_and_how(
    make_environment: Any, ends: str, ended: list[str]
) -> None:
    spec = SPEC.replace('"tools.py:add",', f'"tools.py:add", ends: {ends},')
    _, steps, trajectory = run(make_environment(spec, tools=FUNCTIONS), [call("add", a=1, b=2)])
    assert [how for how in ("terminated", "truncated") if steps[0].is_last and getattr(trajectory, how)] == ended


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("{double: {more: 1}}", ""),
        ("{double: {more: 1}, look: {more: 2}}", ""),
        ("{doubled: {more: 1}}", "found 'doubled'"),
        ("{double: 1}", "found 'double'"),
    ],
)
def test_an_example_of_several_tools_names_which(make_environment: Any, example: str, said: str) -> None:
    text = MANY % f'tools: "tools.py:FUNCTIONS", inject: [shop], example: {example}'
    with pytest.raises(SpecError, match=said) if said else nullcontext():
        tools = make_environment(text, tools=KINDS).parts.tools
        assert tools["double"].example == {"more": 1}
        assert tools["look"].example == ({"more": 2} if "look" in example else None)
