from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from rlenv.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.policies.oracle import OraclePolicy
from rlenv_verl.tiny.lessons import MIXTURE, Flaw, Gold, Lesson, _edit_call, gold_of, make_lesson
from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy


@pytest.fixture(scope="module")
def environment() -> Environment:
    return load("arithmetic")


def lessons(environment: Environment, flaw: Flaw, count: int = 12) -> list[tuple[Gold, Lesson]]:
    async def collect() -> list[tuple[Gold, Lesson]]:
        oracle = OraclePolicy(environment.spec, environment.parts.dialect)
        golds = [await gold_of(environment, oracle, task=task, split="warmup", seed=0) for task in range(count)]
        rng = random.Random(0)
        return [
            (gold, await make_lesson(environment, gold, flaw, split="warmup", rng=rng, other=golds[0]))
            for gold in golds
        ]

    return asyncio.run(collect())


def call_of(action: str) -> dict[str, Any]:
    found = re.search(r"<tool_call>\n(.*)\n</tool_call>", action)
    assert found is not None
    return dict(json.loads(found.group(1)))


def result(lesson: Lesson) -> str:
    observation = lesson.turns[0][1]
    assert observation is not None
    return observation.messages[-1].content


def test_without_a_flaw_the_lesson_is_the_oracles_episode(environment: Environment) -> None:
    for gold, lesson in lessons(environment, Flaw.NONE):
        assert tuple(action for action, _ in lesson.turns) == gold.actions
        assert lesson.trained == (True, True)


def test_a_guess_calls_nothing_and_has_as_many_digits(environment: Environment) -> None:
    guesses = lessons(environment, Flaw.GUESS)
    for gold, lesson in guesses:
        ((action, observation),) = lesson.turns
        assert observation is None
        assert len(action) == len(gold.actions[-1])
    assert sum(lesson.turns[0][0] == gold.actions[-1] for gold, lesson in guesses) <= 1


def test_a_drill_shows_other_numbers_and_copies_what_the_tool_said(environment: Environment) -> None:
    for gold, lesson in lessons(environment, Flaw.DRILL):
        expression = call_of(lesson.turns[0][0])["arguments"]["expression"]
        assert expression != call_of(gold.actions[0])["arguments"]["expression"]
        left, right = expression.split("*")
        assert result(lesson) == str(int(left) * int(right))
        assert lesson.turns[-1][0] == f"<answer>{result(lesson)}</answer>"
        assert lesson.trained == (False, True)


def test_a_wrong_argument_keeps_the_operands_and_copies_its_real_result(environment: Environment) -> None:
    for gold, lesson in lessons(environment, Flaw.WRONG_ARGUMENT):
        wrong = call_of(lesson.turns[0][0])["arguments"]["expression"]
        right = call_of(gold.actions[0])["arguments"]["expression"]
        assert re.findall(r"\d+", wrong) == re.findall(r"\d+", right)
        assert "*" not in wrong
        assert lesson.turns[-1][0] == f"<answer>{result(lesson)}</answer>"


def test_a_wrong_tool_is_another_tool_of_the_spec(environment: Environment) -> None:
    for _, lesson in lessons(environment, Flaw.WRONG_TOOL):
        assert call_of(lesson.turns[0][0]) == {"name": "clock", "arguments": {}}
        assert result(lesson)


def test_an_answer_without_its_tag_has_the_right_number(environment: Environment) -> None:
    for _, lesson in lessons(environment, Flaw.NO_ANSWER_TAG):
        assert lesson.turns[-1][0] == f"The answer is {result(lesson)}"


def test_an_ignored_result_is_followed_by_a_guess(environment: Environment) -> None:
    ignored = lessons(environment, Flaw.IGNORED_RESULT)
    assert sum(lesson.turns[-1][0] == f"<answer>{result(lesson)}</answer>" for _, lesson in ignored) <= 1


def test_every_call_of_an_action_is_edited() -> None:
    one = '<tool_call>\n{"name": "a", "arguments": {"x": "1+1"}}\n</tool_call>'
    two = '<tool_call>{"name": "b", "arguments": {"y": "</tool_call>", "n": 3}}</tool_call>'
    edited = _edit_call(f"First {one}\n{two} and done.", str.upper)
    assert edited == (
        'First <tool_call>\n{"name": "a", "arguments": {"x": "1+1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {"y": "</TOOL_CALL>", "n": 3}}\n</tool_call> and done.'
    )


def test_the_right_behaviour_is_a_minority_of_the_mixture() -> None:
    assert sum(MIXTURE.values()) == pytest.approx(1.0)
    assert MIXTURE[Flaw.NONE] < MIXTURE[Flaw.GUESS]


def test_an_oracle_that_fails_its_task_is_refused() -> None:
    broken = load("arithmetic", set={"oracle": [{"say": "<answer>1</answer>"}]})
    oracle = OraclePolicy(broken.spec, broken.parts.dialect)
    with pytest.raises(UsageError, match="does not solve task 3"):
        asyncio.run(gold_of(broken, oracle, task=3, split="warmup", seed=0))


def test_another_dialect_is_refused(tmp_path: Path) -> None:
    other: Any = SimpleNamespace(spec=SimpleNamespace(name="toy", dialect="search_r1"))
    with pytest.raises(UsageError, match="toy uses 'search_r1'"):
        make_tiny_policy(other, tmp_path, seed=0)


def test_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one environment"):
        make_tiny_policy([], tmp_path, seed=0)


@pytest.mark.filterwarnings("ignore")
def test_several_environments_share_a_tokenizer_and_a_warm_start(environment: Environment, tmp_path: Path) -> None:
    settings = WarmupSettings(steps=2, golds=20, clean=20, mixed=20)
    several = [environment, load("nl2sql")]
    report = make_tiny_policy(several, tmp_path, seed=0, split="train", settings=settings)
    assert (report.warmup.steps, report.lessons) == (4, 80)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for tool in ("calculate", "query"):
        frame = f'<tool_call>\n{{"name": "{tool}", "arguments": {{"'
        assert len(tokenizer(frame, add_special_tokens=False)["input_ids"]) <= 4


@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_survives_a_reload_and_keeps_digits_apart(tiny_folder: Path) -> None:
    # transformers rebuilds a tokenizer's pre-tokenizer for some model types once config.json stands beside it.
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    text = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "47*83"}}\n</tool_call>'
    pieces = [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) == text
    assert [piece for piece in pieces if any(sign.isdigit() for sign in piece)] == ["4", "7", "8", "3"]
    assert len(pieces) < 16


@pytest.mark.filterwarnings("ignore")
def test_the_tools_block_costs_few_tokens(tiny_folder: Path, environment: Environment) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    tools = [dict(schema) for schema in environment.tool_schemas]
    message = [{"role": "user", "content": "What is 47 * 83?"}]

    def tokens(**options: Any) -> int:
        return len(tokenizer.apply_chat_template(message, add_generation_prompt=True, **options)["input_ids"])

    assert tokens(tools=tools) - tokens() < 40
