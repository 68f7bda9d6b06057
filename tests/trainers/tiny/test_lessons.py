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

from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.policies.scripted import OraclePolicy
from rlenv_train.lessons import (
    MIXTURE,
    Flaw,
    Gold,
    Lesson,
    edit_calls,
    gold_of,
    has_room,
    make_lesson,
    mixture,
    reword,
)
from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

CURVES = Path(__file__).resolve().parents[3] / "examples" / "curves"


@pytest.fixture(scope="module")
def environment() -> Environment:
    return load("arithmetic")


@pytest.fixture(scope="module")
def queries() -> Environment:
    return load(CURVES / "nl2sql-toy.yaml")


@pytest.fixture(scope="module")
def searches() -> Environment:
    return load(CURVES / "search-qa-toy.yaml")


def golds_of(environment: Environment, count: int = 12) -> list[Gold]:
    return asyncio.run(_golds(environment, count))


async def _golds(environment: Environment, count: int) -> list[Gold]:
    oracle = OraclePolicy(environment.spec, environment.parts.dialect)
    golds = [await gold_of(environment, oracle, task=task, split="warmup", seed=0) for task in range(count)]
    return [gold for gold in golds if gold is not None]


def lessons(environment: Environment, flaw: Flaw, count: int = 12) -> list[tuple[Gold, Lesson]]:
    """Lessons on the first tasks, each with the first other task that leaves room for the flaw."""

    async def collect() -> list[tuple[Gold, Lesson]]:
        oracle = OraclePolicy(environment.spec, environment.parts.dialect)
        golds = await _golds(environment, count)
        rng = random.Random(0)
        made = []
        for gold in golds:
            others = [other for other in golds if other is not gold and room(environment, flaw, gold, other)]
            lesson = await make_lesson(environment, oracle, gold, flaw, split="warmup", rng=rng, other=others[0])
            assert lesson is not None
            made.append((gold, lesson))
        return made

    return asyncio.run(collect())


def room(environment: Environment, flaw: Flaw, gold: Gold, other: Gold) -> bool:
    return has_room(flaw, gold, other=other)


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
    edited = edit_calls(f"First {one}\n{two} and done.", str.upper)
    assert edited == (
        'First <tool_call>\n{"name": "a", "arguments": {"x": "1+1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {"y": "</TOOL_CALL>", "n": 3}}\n</tool_call> and done.'
    )


@pytest.mark.parametrize("name", ["environment", "queries", "searches"])
def test_the_right_behaviour_is_a_minority_of_the_mixture(name: str, request: pytest.FixtureRequest) -> None:
    chosen: Environment = request.getfixturevalue(name)
    first, *others = golds_of(chosen)
    for other in others:
        shares = mixture(first, other=other)
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares[Flaw.GUESS] == MIXTURE[Flaw.GUESS] > 0.5
        assert 0.15 < shares[Flaw.NONE] < 0.3
        assert all(room(chosen, flaw, first, other) for flaw in shares)


def test_the_mixture_of_a_task_follows_from_its_oracle(
    environment: Environment, queries: Environment, searches: Environment
) -> None:
    def flaws(chosen: Environment) -> set[Flaw]:
        golds = golds_of(chosen, count=24)
        return {flaw for other in golds[1:] for flaw in mixture(golds[0], other=other)}

    common = {Flaw.GUESS, Flaw.WRONG_ARGUMENT, Flaw.NO_ANSWER_TAG, Flaw.IGNORED_RESULT, Flaw.NONE}
    assert flaws(environment) == common | {Flaw.WRONG_TOOL}
    assert flaws(queries) == common | {Flaw.WRONG_QUESTION}
    assert flaws(searches) == common | {Flaw.STOPS_EARLY}


def test_to_stop_early_is_to_answer_with_what_was_to_be_searched_next(searches: Environment) -> None:
    for gold, lesson in lessons(searches, Flaw.STOPS_EARLY):
        (call, observation), (last, _) = lesson.turns
        assert call == gold.actions[0]
        assert observation is not None
        bridge = call_of(gold.actions[1])["arguments"]["query"]
        assert bridge in observation.messages[-1].content
        assert last == f"<answer>{bridge}</answer>"


def test_a_call_without_operators_is_wrong_as_that_of_another_task(searches: Environment) -> None:
    for gold, lesson in lessons(searches, Flaw.WRONG_ARGUMENT):
        assert lesson.turns[0][0] != gold.actions[0]
        assert call_of(lesson.turns[0][0])["name"] == "search"
        assert lesson.turns[-1][0] != gold.actions[-1]


def test_the_answer_to_another_question_keeps_the_numbers_that_were_found(queries: Environment) -> None:
    for gold, lesson in lessons(queries, Flaw.WRONG_QUESTION, count=24):
        assert lesson.turns[0][0] == gold.actions[0]
        last = lesson.turns[-1][0]
        assert last != gold.actions[-1]
        assert re.findall(r"\d+", last) == re.findall(r"\d+", gold.actions[-1])
        assert last.endswith(f"shop = {result(lesson).splitlines()[1]}</answer>")


def test_a_guessed_query_names_the_wrong_shop(queries: Environment) -> None:
    guesses = lessons(queries, Flaw.GUESS)
    assert sum(lesson.turns[0][0] == gold.actions[-1] for gold, lesson in guesses) <= 1
    assert all("shop = " in lesson.turns[0][0] for _, lesson in guesses)


def test_a_drill_needs_numbers_to_exchange(environment: Environment, queries: Environment) -> None:
    for chosen, expected in ((environment, True), (queries, False)):
        first, second = golds_of(chosen, count=2)
        assert room(chosen, Flaw.DRILL, first, second) is expected


def test_wording_is_exchanged_around_as_many_values() -> None:
    text = "SELECT price FROM item WHERE name = 'Anna Bree' AND year = 1999"
    like = "SELECT stock FROM store WHERE name = 'Cid' AND day < 7"
    assert reword(text, like) == "SELECT stock FROM store WHERE name = 'Anna Bree' AND day < 1999"
    assert reword(text, "SELECT stock FROM store WHERE day < 7") is None
    assert reword("<answer>12</answer>", "<answer>9</answer>") is None


def test_an_oracle_that_fails_its_task_is_refused() -> None:
    broken = load("arithmetic", set={"oracle": [{"say": "<answer>1</answer>"}]})
    oracle = OraclePolicy(broken.spec, broken.parts.dialect)
    with pytest.raises(UsageError, match="does not solve task 3"):
        asyncio.run(gold_of(broken, oracle, task=3, split="warmup", seed=0))


def test_a_player_whose_turn_never_comes_teaches_nothing(tmp_path: Path) -> None:
    over = load("tic-tac-toe", set={"user.next": ""})
    assert asyncio.run(gold_of(over, over.oracle(), task=0, split="train", seed=0)) is None
    with pytest.raises(UsageError, match="never has a turn in 'train'"):
        make_tiny_policy(over, tmp_path, seed=0)


def test_another_dialect_is_refused(tmp_path: Path) -> None:
    other: Any = SimpleNamespace(spec=SimpleNamespace(name="toy", dialect="search_r1"))
    with pytest.raises(UsageError, match="toy uses 'search_r1'"):
        make_tiny_policy(other, tmp_path, seed=0)


def test_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one environment"):
        make_tiny_policy([], tmp_path, seed=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_several_environments_share_a_tokenizer_and_a_warm_start(
    environment: Environment, queries: Environment, tmp_path: Path
) -> None:
    settings = WarmupSettings(steps=2, golds=20, clean=20, mixed=20)
    report = make_tiny_policy([environment, queries], tmp_path, seed=0, split="train", settings=settings)
    assert (report.warmup.steps, report.lessons) == (4, 80)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for tool in ("calculate", "query"):
        frame = f'<tool_call>\n{{"name": "{tool}", "arguments": {{"'
        assert len(tokenizer(frame, add_special_tokens=False)["input_ids"]) <= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_survives_a_reload_and_keeps_digits_apart(tiny_folder: Path) -> None:
    # transformers rebuilds a tokenizer's pre-tokenizer for some model types once config.json stands beside it.
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    text = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "47*83"}}\n</tool_call>'
    pieces = [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) == text
    assert [piece for piece in pieces if any(sign.isdigit() for sign in piece)] == ["4", "7", "8", "3"]
    assert len(pieces) < 16


@pytest.mark.filterwarnings("ignore")
def test_the_tools_block_costs_few_tokens(tiny_folder: Path, environment: Environment) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    tools = [dict(schema) for schema in environment.tool_schemas]
    message = [{"role": "user", "content": "What is 47 * 83?"}]

    def tokens(**options: Any) -> int:
        return len(tokenizer.apply_chat_template(message, add_generation_prompt=True, **options)["input_ids"])

    assert tokens(tools=tools) - tokens() < 40
