"""What adversaries make of a task's right answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.adversaries import side_scripts
from rlenv.audit.asking import Target, ask_each, targets_of
from rlenv.audit.crafted import abstaining_scripts, listed_scripts
from rlenv.audit.probes import arguments_with_word
from rlenv.audit.subject import Action, AuditSubject, kinds_of, options_of, properties_of, shaped
from rlenv.audit.variants import variant_scripts
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import ToolCall, ToolResult
from rlenv.policies.scripted import OraclePolicy, random_value
from rlenv.tools.base import Tool, ToolOutput
from tests.support.planted import plant


@pytest.mark.parametrize("right", ["K", "b", "A-7", "7", "1,250", "yes", '{"room": "B"}'])
def test_a_wrong_answer_of_the_right_shape_is_never_the_right_one(right: str) -> None:
    assert all(shaped(right, random.Random(seed)) != right for seed in range(200))


@pytest.mark.parametrize(
    ("part", "kinds", "is_said"),
    [
        ({"type": "string"}, {"string"}, True),
        ({"type": ["string", "null"]}, {"string", "null"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}, True]}, {"string", "null"}, True),
        ({"type": "integer"}, {"integer"}, False),
        ({}, set(), False),
        (True, set(), False),
    ],
)
def test_a_parameter_of_any_schema_is_asked_by_its_kinds(part: Any, kinds: set[str], is_said: bool) -> None:
    schema = {"type": "object", "properties": {"x": part}}
    tool = Tool(
        name="t", description="", parameters=schema, run=lambda arguments, context: ToolOutput(""), mode="inline"
    )
    assert kinds_of(properties_of(tool)["x"]) == kinds
    assert arguments_with_word(tool, "word") == ({"x": "word"} if is_said else {})


@pytest.mark.parametrize(
    "right",
    ["1e5", "6.02e23", "1.6e-19", ".5", "-.5", "1_000", "\u00b2", "2\u00b2", "\u0663", "inf", "1,000", "9 m\u00b2"],
)
def test_an_answer_in_any_notation_is_varied(tmp_path: Path, right: str) -> None:
    path = plant(tmp_path, {"train": [{"question": "How much?", "answer": right}]})

    async def main() -> dict[str, list[Action]]:
        async with rlenv.load(path) as environment:
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            (gold,) = await rollout(environment, oracle, [Job("train", 0, 0)])
            subject = AuditSubject(environment, gold, [right, "7"])
            side_scripts(subject)
            return variant_scripts(subject, "")

    assert all(script != [right] for script in asyncio.run(main()).values())


@pytest.mark.parametrize(
    "schema", [True, {"type": "integer", "maximum": -2000}, {"type": "number", "maximum": -2000}, {"minimum": 1}]
)
def test_any_schema_of_a_parameter_has_a_value(schema: Any) -> None:
    value = random_value(schema, random.Random(0))
    assert not isinstance(value, (int, float)) or value <= -2000


@pytest.mark.parametrize(("reply", "is_search"), [("It is 3.", False), ("It is 3: {right}", True), ("{right}", True)])
def test_a_tool_that_says_the_answer_to_all_is_no_search(tmp_path: Path, reply: str, is_search: bool) -> None:
    more = "tools: {calculate: {kind: calculator}}"
    path = plant(tmp_path, {"train": [{"question": "How much?", "answer": "3"}]}, more=more)

    async def main() -> Action:
        async with rlenv.load(path) as environment:
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            (gold,) = await rollout(environment, oracle, [Job("train", 0, 0)])
            subject = AuditSubject(environment, gold, ["3", *map(str, range(40, 50))])
            script = ask_each(subject, targets_of(subject)["calculate(expression)"])
            action = next(script)
            while not isinstance(action, str):
                asked = [call.arguments["expression"] for call in action.tool_calls if isinstance(call, ToolCall)]
                told = [reply.format(right="yes" if one == "3" else "no") for one in asked]
                action = script.send([ToolResult("calculate", one) for one in told])
            return action

    assert ("3" in str(asyncio.run(main()))) is is_search


def subject_of(path: Path) -> AuditSubject:
    async def main() -> AuditSubject:
        async with rlenv.load(path) as environment:
            (gold,) = await rollout(environment, environment.oracle(), [Job("train", 0, 0)])
            return AuditSubject(environment, gold, [gold.answer or ""])

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "is_asked"),
    [("oak", True), ("4711", True), ("2026", True), ("6*(24+4)+23", False), ("TK-48213", False), ("B-1-2-3-4", True)],
)
def test_what_nobody_could_come_upon_is_not_asked_for(tmp_path: Path, answer: str, is_asked: bool) -> None:
    more = "tools: {calculate: {kind: calculator}}"
    path = plant(tmp_path, {"train": [{"question": "Which one?", "answer": answer}]}, more=more)
    assert bool(targets_of(subject_of(path))) is is_asked


def test_what_other_tasks_have_too_is_asked_for_with_the_row_s_own_values(tmp_path: Path) -> None:
    tools = "\n\n".join(
        f'def {one}(sample: str, salt: str = "") -> str:\n    """Asks."""\n    return ""' for one in ("a", "b")
    )
    more = "tools: {a: {kind: python, function: 'tools.py:a'}, b: {kind: python, function: 'tools.py:b'}}"
    rows = [{"question": f"Which salt is {at}?", "answer": "Fe3+ (iron)", "at": f"Q{at}"} for at in range(3)]
    path = plant(tmp_path, {"train": rows}, more=more, tools=tools, call="{a: {sample: '{{ task.at }}'}}")

    async def main() -> dict[str, Target]:
        async with rlenv.load(path) as environment:
            golds = await rollout(environment, environment.oracle(), [Job("train", at, 0) for at in range(3)])
            return targets_of(AuditSubject(environment, golds[0], ["Fe3+ (iron)"], golds))

    found = asyncio.run(main())
    assert found["b(salt)"].beside == {"sample": "Q0"}


def test_a_text_is_no_item_of_a_list(tmp_path: Path) -> None:
    rows = [{"question": f"Letter {at}?", "answer": f"Dear {at}, " + "word " * 50} for at in range(2)]
    subject = subject_of(plant(tmp_path, {"train": rows}))
    assert listed_scripts(subject, subject.right, ["other"]) == []


@pytest.mark.parametrize(("listed", "options"), [(["1950", "in 1950"], []), (["1950", "1960"], ["1950", "1960"])])
def test_a_list_of_which_all_are_right_is_no_choice(tmp_path: Path, listed: list[str], options: list[str]) -> None:
    rule = "{kind: rule, rule: exact_match, expect: ['{{ task.answer }}', 'in {{ task.answer }}']}"
    row = {"question": "Born in 1950 or in 1960?", "answer": "1950", "listed": listed}
    subject = subject_of(plant(tmp_path, {"train": [row]}, rule=rule))
    assert options_of(subject) == options


def test_words_that_are_right_on_a_row_are_no_abstaining_there(tmp_path: Path) -> None:
    rule = "{kind: rule, rule: exact_match, expect: ['{{ task.answer }}', unknown]}"
    subject = subject_of(plant(tmp_path, {"train": [{"question": "When?", "answer": "not stated"}]}, rule=rule))
    said = [str(action) for script in abstaining_scripts(subject) for action in script]
    assert said
    assert not any("unknown" in one for one in said)


def test_a_call_that_does_a_part_of_the_task_is_no_last_word(tmp_path: Path) -> None:
    more = "tools: {calculate: {kind: calculator, ends: '{{ result.text == \"3\" }}'}}"
    path = plant(tmp_path, {"train": [{"question": "1 + 2?", "answer": "3"}]}, more=more)
    path.write_text(path.read_text().partition("oracle:")[0] + "oracle: [{call: {calculate: {expression: 1 + 2}}}]\n")

    async def main() -> AuditSubject:
        async with rlenv.load(path) as environment:
            (gold,) = await rollout(environment, environment.oracle(), [Job("train", 0, 0)])
            return AuditSubject(environment, gold, ["3"])

    subject = asyncio.run(main())
    assert subject.gold.reason == "tool"
    assert subject.last_words() == "<answer>?</answer>"


@pytest.mark.parametrize("kind", ["tag", "tool"])
def test_among_many_answers_the_right_one_stands_nowhere_where_it_counts_alone(tmp_path: Path, kind: str) -> None:
    rows = [{"question": f"Which is number {at}?", "answer": name} for at, name in enumerate(["elm", "oak", "fir"])]
    (tmp_path / "tools.py").write_text('def say(text: str) -> str:\n    """Gives the answer."""\n    return text\n')
    more = 'tools: {say: {kind: python, function: "tools.py:say"}}\nanswer: {from: tool, tool: say}'
    path = plant(tmp_path, {"train": rows}, more=more if kind == "tool" else "")
    if kind == "tool":
        path.write_text(
            path.read_text().partition("oracle:")[0] + "oracle: [{call: {say: {text: '{{ task.answer }}'}}}]"
        )

    async def main() -> list[bool]:
        async with rlenv.load(path) as environment:
            (gold,) = await rollout(environment, environment.oracle(), [Job("train", 0, 0)])
            subject = AuditSubject(environment, gold, ["elm", "oak", "fir"])
            return [
                await won(environment, script) for script in listed_scripts(subject, "elm", ["oak", "fir"]) if script
            ]

    async def won(environment: rlenv.Environment, script: Sequence[Action]) -> bool:
        async with environment.start(split="train") as episode:
            await episode.step(script[0])
            while not episode.is_ended:
                await episode.step("I do not know.")
            return bool(episode.trajectory.success)

    assert not any(asyncio.run(main()))
