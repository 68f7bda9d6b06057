"""What each rule measures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlenv.checks.validate import validate
from rlenv.errors import RewardError, UsageError
from rlenv.language import kinds as registry
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.rewards.normalise import best_f1, number, qa
from rlenv.testing.rewards import compile_term, measure, reward_context, turn
from rlenv.tools.base import Tool


def value(rule: str, answer: str | None, gold: Any = None, **keys: Any) -> float | None:
    return measure(rule, reward_context(answer=answer, task={"answer": gold}), **keys).value


def test_every_rule_of_the_table_can_be_loaded_and_names_itself() -> None:
    for name in registry.BUILT_IN["rules"]:
        kind = registry.get("rules", name)
        assert name in repr(kind.spec.model_fields["rule"].annotation)
        assert kind.spec.__doc__
        own = {key: field for key, field in kind.spec.model_fields.items() if key not in ("kind", "rule")}
        assert all(field.description for field in own.values()), own


def test_a_rule_takes_no_unknown_keys_and_coerces_nothing() -> None:
    for keys in ({"expected": "1"}, {"tolerance": "0.1"}, {"weight": "1"}, {"required": 1}, {"expect": True}):
        with pytest.raises(ValidationError):
            compile_term(rule="numeric_match", **keys)


@pytest.mark.parametrize(
    ("answer", "gold", "keys", "expected"),
    [
        ("Paris", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {}, 1.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"normalise": "case"}, 1.0),
        ("The  Paris.", "paris", {"normalise": "qa"}, 1.0),
        ("b", ["a", "b"], {}, 1.0),
        ("42", 42, {}, 1.0),
        ("x", "y", {"expect": "x"}, 1.0),
        ("x", "y", {"expect": ["w", "x"]}, 1.0),
        ("", "a", {}, 0.0),
        (None, "a", {}, 0.0),
    ],
)
def test_exact_match_compares_with_each_accepted_text(answer: Any, gold: Any, keys: Any, expected: float) -> None:
    assert value("exact_match", answer, gold, **keys) == expected


@pytest.mark.parametrize("rule", ["exact_match", "f1", "contains", "numeric_match", "gsm8k"])
@pytest.mark.parametrize("gold", [None, []])
@pytest.mark.parametrize("answer", ["x", None])
def test_a_task_without_a_gold_value_is_never_a_wrong_answer(rule: str, gold: Any, answer: str | None) -> None:
    with pytest.raises(RewardError, match="gives no value"):
        value(rule, answer, gold)


def test_a_missing_column_names_those_that_exist() -> None:
    with pytest.raises(RewardError, match="no column 'answer'; it has: question, gold"):
        measure("exact_match", reward_context(answer="x", task={"question": 1, "gold": 2}))
    with pytest.raises(RewardError, match=r"expect: .*no attribute 'b'"):
        measure("exact_match", reward_context(answer="x", task={"a": {}}), expect="{{ task.a.b }}!")


def test_gold_templates_may_not_read_the_answer() -> None:
    with pytest.raises(UsageError, match="'answer' is not known here"):
        compile_term(rule="exact_match", expect="{{ answer }}")
    with pytest.raises(UsageError, match="expect: "):
        compile_term(rule="exact_match", expect="{{ task. }}")


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("the cat sat", "cat sat", 1.0),
        ("a cat", "cat sat", 2 / 3),
        ("dog", "cat", 0.0),
        ("a", "the", 1.0),
        ("", "x", 0.0),
    ],
)
def test_f1_is_over_tokens_and_the_best_gold_counts(answer: str, gold: str, expected: float) -> None:
    assert value("f1", answer, ["zzz", gold]) == pytest.approx(expected)


@given(st.text(), st.text())
def test_f1_is_symmetric_bounded_and_full_for_equal_texts(one: str, other: str) -> None:
    assert 0.0 <= best_f1(one, (other,)) <= 1.0
    assert best_f1(one, (other,)) == best_f1(other, (one,))
    assert best_f1(one, (one,)) == 1.0
    assert qa(qa(one)) == qa(one) or "̇" in one.lower()


@pytest.mark.parametrize(
    ("answer", "gold", "keys", "expected"),
    [
        ("3,901", 3901, {}, 1.0),
        ("3901.0", "3,901", {}, 1.0),
        ("$3,901.00", 3901, {}, 1.0),
        ("45%", "45", {}, 1.0),
        ("0.1", 0.1, {}, 1.0),
        ("0.30000000000000004", 0.3, {}, 0.0),
        ("3,90", 390, {}, 0.0),
        ("0,001,500", 1500, {}, 0.0),
        ("18 dollars", 18, {}, 0.0),
        ("nan", 1, {}, 0.0),
        ("inf", 1, {}, 0.0),
        ("1e999999999", 1, {}, 0.0),
        ("9" * 5000, 1, {}, 0.0),
        ("9007199254740993", 9007199254740992, {}, 0.0),
        ("١", 1, {}, 0.0),
        ("４２", 42, {}, 1.0),
        ("3\u00a0901", 3901, {}, 0.0),
        ("\u00a042\u200b", 42, {}, 1.0),
        ("$50%", 50, {}, 0.0),
        ("0.3", 0.1 + 0.2, {}, 1.0),
        ("0.30000000000000004", 0.1 + 0.2, {}, 1.0),
        ("0.31", 0.1 + 0.2, {}, 0.0),
        ("3.14", 3.14159, {"tolerance": 0.01}, 1.0),
        ("3.1", 3.14159, {"tolerance": 0.01}, 0.0),
        ("99", 100, {"relative_tolerance": 0.01}, 1.0),
        ("98.9", 100, {"relative_tolerance": 0.01}, 0.0),
        ("-99", -100, {"relative_tolerance": 0.01}, 1.0),
        ("2", [1, 2], {}, 1.0),
        ("", 0, {}, 0.0),
        (None, 0, {}, 0.0),
    ],
)
def test_numeric_match_reads_one_number_exactly(answer: Any, gold: Any, keys: Any, expected: float) -> None:
    assert value("numeric_match", answer, gold, **keys) == expected


@pytest.mark.parametrize("gold", ["many", True, float("nan"), {"a": 1}])
def test_a_gold_value_that_is_no_number_cannot_be_measured(gold: Any) -> None:
    with pytest.raises(RewardError, match="not a number"):
        value("numeric_match", "1", gold)


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_reads_back_from_how_python_writes_it(given_number: float) -> None:
    text = str(given_number)
    if len(text.lstrip("-")) <= 64:
        assert number(text) == number(given_number)


@given(st.text())
def test_reading_a_number_never_raises(text: str) -> None:
    number(text)


def test_contains_looks_for_any_or_all_texts_in_answer_or_message() -> None:
    assert value("contains", "it is Paris, France", ["Paris", "Rome"]) == 1.0
    assert value("contains", "it is Paris, France", ["Paris", "Rome"], mode="all") == 0.0
    assert value("contains", "it is paris", "Paris") == 0.0
    assert value("contains", "it is PARIS!", "paris", normalise="qa") == 1.0
    where = reward_context(answer="a", task={"answer": "Paris"}, turns=[turn("Paris <answer>a</answer>")])
    assert measure("contains", where).value == 0.0
    assert measure("contains", where, of="message").value == 1.0


def test_an_empty_text_to_look_for_is_refused_since_every_answer_contains_it() -> None:
    with pytest.raises(RewardError, match="empty after normalisation"):
        value("contains", "anything", "The.", normalise="qa")


@pytest.mark.parametrize("keys", [{"rule": "regex", "pattern": "damn"}, {"rule": "contains", "expect": "damn"}])
def test_nobody_is_spared_a_cost_by_what_is_written_on_behind_it(keys: dict[str, Any]) -> None:
    for padding in (0, 20_000, 100_000, 300_000):
        for word, expected in (("damn", 1.0), ("fine", 0.0)):
            said = f"{word}{' ' * padding}<answer>7</answer>"
            found = measure(context=reward_context(turns=[turn(said)]), of="message", weight=-1, **keys).value
            assert found == (1.0 if padding > 262_144 else expected)


def test_regex_searches_or_matches_in_full() -> None:
    assert value("regex", "abc 12", pattern=r"\d+") == 1.0
    assert value("regex", "abc 12", pattern=r"\d+", full=True) == 0.0
    assert value("regex", "12", pattern=r"\d+", full=True) == 1.0
    assert value("regex", "1" * 100_000, pattern=r"\d+", full=True) == 0.0
    assert value("regex", None, pattern=r"\d*") == 0.0
    with pytest.raises(UsageError, match="does not compile"):
        compile_term(rule="regex", pattern="[")
    with pytest.raises(UsageError, match="match what follows as well"):
        compile_term(rule="regex", pattern="(?=a)b")


def test_answered_wants_an_answer_that_states_something() -> None:
    assert value("answered", "x") == 1.0
    assert value("answered", "") == 0.0
    assert value("answered", None) == 0.0


def test_length_is_in_chars_or_words_of_answer_message_or_episode() -> None:
    where = reward_context(answer="ab", turns=[turn("one two"), turn("three", index=1)])
    assert measure("length", where, max=2, of="answer").value == 1.0
    assert measure("length", where, max=4).value == 0.0
    assert measure("length", where, max=3, min=3, unit="words", of="episode").value == 1.0
    assert measure("length", reward_context(turns=[turn("x")]), max=3, of="answer").value is None
    with pytest.raises(UsageError, match="nothing is asked for"):
        compile_term(rule="length")
    with pytest.raises(UsageError, match="above the most"):
        compile_term(rule="length", min=3, max=2)


OK, FAILED, UNKNOWN = (
    ToolResult("add", "3"),
    ToolResult("add", "no", "failed"),
    ToolResult("sub", "no such tool", "unknown_tool"),
)
MALFORMED, BAD, OVER = (
    ToolResult("", "not JSON", "malformed"),
    ToolResult("add", "a is missing", "bad_arguments"),
    ToolResult("add", "not run", "skipped"),
)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([OK], 1.0),
        ([OK, FAILED], 1.0),
        ([OK, MALFORMED], 0.5),
        ([UNKNOWN, BAD, MALFORMED, OK], 0.25),
        ([OK, OVER], 1.0),
        ([OVER], None),
        ([], None),
    ],
)
def test_valid_calls_is_the_share_of_calls_that_a_tool_accepted(results: list[ToolResult], expected: Any) -> None:
    where = reward_context(turns=[turn(results=[OK]), turn(index=1, results=results)])
    assert measure("valid_calls", where, when="turn").value == expected


def test_valid_calls_over_the_episode_is_over_all_its_calls() -> None:
    where = reward_context(turns=[turn(results=[OK, OK]), turn(index=1, results=[BAD, OK])])
    assert measure("valid_calls", where).value == 0.75


def test_malformed_calls_beside_an_answer_count_though_nothing_was_run() -> None:
    calls: list[ToolCall | MalformedCall] = [ToolCall("add", {}), MalformedCall("{", "not JSON")]
    assert measure("valid_calls", reward_context(turns=[turn("x", calls=calls)])).value == 0.0
    assert measure("valid_calls", reward_context(turns=[turn("x", calls=calls[:1])])).value is None


ADD = Tool(name="add", description="", parameters={"type": "object"}, run=lambda *_: None, mode="inline")


def test_tool_called_counts_the_calls_of_one_tool() -> None:
    where = reward_context(turns=[turn(results=[OK, FAILED]), turn(index=1, results=[OK, UNKNOWN])])
    tools = {"add": ADD}
    assert measure("tool_called", where, tools=tools, tool="add").value == 1.0
    assert measure("tool_called", where, tools=tools, tool="add", min=3).value == 0.0
    assert measure("tool_called", where, tools=tools, tool="add", min=3, succeeded=False).value == 1.0
    assert measure("tool_called", where, tools=tools, tool="add", max=1).value == 0.0
    assert measure("tool_called", where, tools=tools, tool="add", min=2, when="turn").value == 0.0
    with pytest.raises(UsageError, match="there is no tool 'ad'"):
        compile_term(rule="tool_called", tool="ad", tools=tools)


def test_call_and_turn_counts_have_bounds() -> None:
    where = reward_context(turns=[turn(results=[OK, MALFORMED]), turn(index=1)])
    assert measure("tool_call_count", where, max=2).value == 1.0
    assert measure("tool_call_count", where, max=1).value == 0.0
    assert measure("tool_call_count", where, min=3).value == 0.0
    assert measure("turn_count", where, max=2, min=2).value == 1.0
    assert measure("turn_count", where, max=1).value == 0.0
    for rule in ("tool_call_count", "turn_count"):
        with pytest.raises(UsageError, match="nothing is asked for"):
            compile_term(rule=rule)


def test_json_schema_checks_an_answer_that_is_json() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    assert value("json_schema", '{"a": 1}', schema=schema) == 1.0
    assert value("json_schema", '{"a": "1"}', schema=schema) == 0.0
    assert value("json_schema", "a: 1", schema=schema) == 0.0
    assert value("json_schema", None, schema=schema) == 0.0
    with pytest.raises(UsageError, match="not a valid JSON Schema"):
        compile_term(rule="json_schema", schema={"type": "objekt"})


@pytest.mark.parametrize(
    ("answer", "gold", "keys", "expected"),
    [
        ('{"a": 1, "b": [1, 2]}', {"b": [1.0, 2], "a": 1}, {}, 1.0),
        ('{"a": 1}', '{"a": 1.0}', {}, 1.0),
        ("[1, 2]", [2, 1], {}, 0.0),
        ("true", 1, {}, 0.0),
        ('"Paris"', "Paris", {}, 1.0),
        ('{"a": 1, "b": 2}', {"a": 1}, {}, 0.0),
        ('{"a": 1, "b": 2}', {"a": 1}, {"mode": "subset"}, 1.0),
        ('{"a": 1}', {"a": 1, "b": 2}, {"mode": "subset"}, 0.0),
        ("{", {}, {}, 0.0),
        ("[" * 900 + "]" * 900, [], {}, 0.0),
        ('{"a": 2, "a": 1}', {"a": 1}, {}, 0.0),
        ('{"a": "x: y", "b": {"a": 1}}', {"a": "x: y", "b": {"a": 1}}, {}, 1.0),
    ],
)
def test_json_match_compares_values(answer: str, gold: Any, keys: Any, expected: float) -> None:
    assert value("json_match", answer, gold, **keys) == expected


@pytest.fixture
def author(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(
        "from rlenv.rewards.base import Measured\n"
        "def number(context): return 0.5\n"
        "def pair(context): return 1, context.answer\n"
        "def measured(context): return Measured(None)\n"
        "def forgot(context): pass\n"
        "def wrong(context): return 1, 2, 3\n"
        "async def later(context): return float(context.answer == context.task['answer'])\n"
        "async def later_forgot(context): pass\n"
        "thing = 3\n"
    )
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    return tmp_path


def test_a_function_may_return_a_number_a_pair_or_measured(author: Path) -> None:
    where = reward_context(answer="x")
    assert measure("python", where, function="rewards.py:number", base=author).value == 0.5
    assert measure("python", where, function="rewards.py:pair", base=author).evidence == "x"
    assert measure("python", where, function="rewards.py:measured", base=author).value is None
    for name in ("forgot", "wrong"):
        with pytest.raises(RewardError, match=f"rewards.py:{name} returned"):
            measure("python", where, function=f"rewards.py:{name}", base=author)


def test_a_coroutine_function_is_awaited(author: Path) -> None:
    term = compile_term(function="rewards.py:later", base=author)
    assert term.measure is None
    assert term.measure_async is not None
    assert asyncio.run(_await(term.measure_async(reward_context(answer="x", task={"answer": "x"})))).value == 1.0


async def _await(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize("target", ["rewards.py", "rewards.py:none", "none.py:f", "broken.py:f", "rewards.py:thing"])
def test_a_function_that_cannot_be_used_is_refused_with_its_key(author: Path, target: str) -> None:
    with pytest.raises(UsageError, match="function: "):
        compile_term(function=target, base=author)


def test_a_gold_with_a_key_that_stands_twice_is_the_authors_fault() -> None:
    with pytest.raises(RewardError, match="twice"):
        value("json_match", '{"a": 1}', '{"a": 2, "a": 1}')


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("123456789012345678901", 123456789012345678902, 0.0),
        ("123456789012345678901", "123456789012345678901", 1.0),
        ('{"id": 123456789012345678901}', {"id": 123456789012345678901}, 1.0),
        ("[" * 900 + "1" * 20 + "]" * 900, 1, 0.0),
    ],
)
def test_json_keeps_all_digits_of_whole_numbers(answer: str, gold: Any, expected: float) -> None:
    assert value("json_match", answer, gold) == expected


def test_json_schema_takes_what_is_too_deep_to_check_for_wrong() -> None:
    assert value("json_schema", "[" * 900 + "]" * 900, schema={"type": "object"}) == 0.0


def test_a_pattern_in_a_schema_runs_in_linear_time_too() -> None:
    assert value("json_schema", '"aaa!"', schema={"pattern": "^(a|aa)+!$"}) == 1.0
    with pytest.raises(UsageError, match="schema"):
        compile_term(rule="json_schema", schema={"pattern": "(?=a)b"})


@pytest.mark.parametrize(
    ("keys", "gold", "is_fault"),
    [
        ({"rule": "exact_match", "normalise": "qa"}, "A", True),
        ({"rule": "exact_match", "normalise": "qa"}, ["Paris", "The"], True),
        ({"rule": "exact_match"}, "A", False),
        ({"rule": "f1"}, "!!!", True),
        ({"rule": "search_r1", "expect": "{{ task.answer }}"}, "an", True),
        ({"rule": "search_r1", "expect": "{{ task.answer }}"}, "B", False),
    ],
)
def test_validation_shows_a_gold_value_of_which_squads_rule_leaves_nothing(
    tmp_path: Path, keys: dict[str, Any], gold: Any, is_fault: bool
) -> None:
    spec = {
        "rlenv": 1,
        "name": "qa",
        "tasks": {"train": {"rows": [{"q": "a", "answer": "Rome"}, {"q": "b", "answer": gold}]}},
        "prompt": {"user": "{{ task.q }}"},
        "rewards": {"correct": {"kind": "rule", **keys}},
    }
    (tmp_path / "env.yaml").write_text(json.dumps(spec))
    faults = validate([tmp_path / "env.yaml"]).faults
    assert [("row 2 of split 'train'" in fault.message, "nothing is left" in fault.message) for fault in faults] == (
        [(True, True)] if is_fault else []
    )
    # The rule stays SQuAD's own.
    assert value("exact_match", "the", "A", normalise="qa") == 1.0


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ resources.game.points / task.best }}", 0.5),
        ("{{ resources.game.over }}", 1.0),
        ("{{ resources.game.paid.get(turn) }}", -1),
        ("{{ resources.game.paid.get(7) }}", None),
        ("{{ answer | int }}", 4),
        ("{{ answer | length }}", 1),
    ],
)
def test_value_is_what_a_template_gives(template: str, expected: float | None) -> None:
    game = {"points": 2, "over": True, "paid": {0: 5, 1: -1}}
    turns = [turn(), turn(index=1)]
    where = reward_context(answer="4", task={"best": 4}, resources={"game": game}, turns=turns)
    assert measure("value", where, value=template).value == expected


def test_what_the_policy_said_may_be_counted_and_never_makes_its_reward_invalid() -> None:
    where = reward_context(turns=[turn("It is 1,093.34."), turn("Done.", index=1)], task={"outputs": ["1093.34"]})
    told = "{{ task.outputs | reject('in', said | replace(',', '')) | list | length == 0 }}"
    assert measure("value", where, value=told).value == 1
    assert measure("value", where, value="{{ said | length }}").value == len("It is 1,093.34.\nDone.")
    for template in ("{{ said.split()[9] | int }}", "{{ 1 / (said | int) }}", "{{ said }}"):
        assert measure("value", where, value=template).value == 0
    with pytest.raises(RewardError, match="value"):
        measure("value", where, value="{{ task.none + said }}")


@pytest.mark.parametrize("said", ["1e308", "-1e101", "9" * 400, "9" * 2_200])
@pytest.mark.parametrize(
    "template", ["{{ said | float }}", "{{ said | int }}", "{{ range(said | int) | sum }}", "{{ (said | int) ** 2 }}"]
)
def test_no_number_of_the_policys_own_is_too_large_for_a_sum_or_a_group(template: str, said: str) -> None:
    assert measure("value", reward_context(turns=[turn(said)]), value=template).value == 0


def test_more_accepted_values_than_are_compared_are_none() -> None:
    for rule in ("f1", "exact_match", "contains"):
        found = {count: reward_context(answer="a", task={"gold": ["a"] * count}) for count in (4_096, 4_097)}
        assert measure(rule, found[4_096], expect="{{ task.gold }}").value == 1
        with pytest.raises(RewardError, match="up to 4,096 are compared"):
            measure(rule, found[4_097], expect="{{ task.gold }}")


def test_of_a_long_talk_all_is_seen_or_it_is_worth_the_least() -> None:
    """A policy that writes on hides nothing of what it said, which may cost."""
    where = reward_context(turns=[turn("first" + "x" * 1_000_000), turn("last", index=1)])
    found = [measure("value", where, value=f"{{{{ '{word}' in said }}}}").value for word in ("first", "xxx", "last")]
    assert found == [1.0, 1.0, 1.0]
    assert measure("value", where, value="{{ said | length }}").value == 1_000_010
    for weight, worst in ((1, 0), (-1, 1)):
        assert measure("value", where, value="{{ 'first' in said | title }}", weight=weight).value == worst


@pytest.mark.parametrize(("length", "value"), [(65_533, 1.0), (65_536, 0.0)])
def test_a_template_that_changes_an_answer_takes_no_very_long_one(length: int, value: float) -> None:
    answer = reward_context(answer="x" * length)
    assert measure("value", answer, value="{{ answer | title | length > 0 }}").value == value
    # A cost by what is quick over a long answer is the cost, and no other.
    assert measure("value", answer, value="{{ answer.split(',') | map('trim') | list | length }}", weight=-1).value == 1
    assert measure("value", reward_context(answer="0" * (length - 1) + "1"), value="{{ answer }}").value == 0
    # What a length costs is not to be had for less by a very long answer.
    for template, found in (("{{ answer | length }}", length), ("{{ 1 - (answer|count) / 2 }}", 1 - length / 2)):
        assert measure("value", reward_context(answer="x" * length), value=template, weight=-1).value == found


def test_an_answer_that_a_value_cannot_be_made_of_is_worth_nothing() -> None:
    for answer, template in (
        ("?", "{{ 1 / (answer | int) }}"),
        ("nan", "{{ answer | float }}"),
        ("1e999", "{{ answer | float }}"),
        ("4", "{{ answer }}"),
        (None, "{{ answer | length }}"),
        (None, "{{ 1 / (answer | float) }}"),
    ):
        assert measure("value", reward_context(answer=answer), value=template).value == 0
    with pytest.raises(RewardError, match="value"):
        measure("value", reward_context(), value="{{ 1 / task.none }}")


DOWN = ToolResult("add", "down", "failed", reason="unavailable", whose="infrastructure")


@pytest.mark.parametrize(("answer", "value"), [(None, 0.0), ("", 1.0), ("0", 2.0), ("ab", 3.0)])
def test_an_answer_of_no_characters_is_one(answer: str | None, value: float) -> None:
    assert measure("value", reward_context(answer=answer), value="{{ answer | length + 1 }}").value == value


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ({"min": 1}, (0, 1, 1, 1)),
        ({"min": 2}, (0, 0, 1, 1)),
        ({"min": 0, "max": 0}, (1, 0, 0, 0)),
        ({"max": 2}, (0, 1, 1, 0)),
        ({"min": 2, "max": 2}, (0, 0, 1, 0)),
    ],
)
def test_a_tool_is_called_as_often_as_its_bounds_say(keys: dict[str, Any], values: tuple[int, ...]) -> None:
    for count, expected in enumerate(values):
        where = reward_context(turns=[turn(results=[OK] * count + [UNKNOWN, OVER])])
        assert measure("tool_called", where, tools={"add": ADD}, tool="add", **keys).value == expected


@pytest.mark.parametrize(
    ("keys", "values"), [({"min": 1}, (0, 1, 1, 1)), ({"max": 1}, (1, 1, 0, 0)), ({"min": 2, "max": 2}, (0, 0, 1, 0))]
)
def test_calls_and_turns_are_as_many_as_their_bounds_say(keys: dict[str, Any], values: tuple[int, ...]) -> None:
    for count, expected in enumerate(values):
        turns = [turn(index=index, results=[BAD]) for index in range(count)]
        assert measure("turn_count", reward_context(turns=turns), **keys).value == expected
        assert measure("tool_call_count", reward_context(turns=turns), **keys).value == expected
        whole = reward_context(turns=[turn(results=[OK] * 5), turn(index=1, results=[BAD] * count)])
        assert measure("tool_call_count", whole, when="turn", **keys).value == expected


def test_calls_that_code_made_count_beside_the_one_that_ran_it() -> None:
    ran = ToolResult("run", "", details={"called": {"add": {"ok": 2, "failed": 1}, "sub": {"ok": 4}, "odd": 3}})
    where = reward_context(turns=[turn(results=[ran, OK], calls=[ToolCall("run", {})] * 3)])
    assert measure("tool_call_count", where, min=0).details == {"calls": 3 + 7}
    tools = {"add": ADD}
    assert measure("tool_called", where, tools=tools, tool="add").details == {"calls": 3}
    assert measure("tool_called", where, tools=tools, tool="add", succeeded=False).details == {"calls": 4}


@pytest.mark.parametrize(("most", "value"), [(0, 0.0), (1, 1.0), (2, 1.0)])
def test_calls_that_were_lost_count_for_the_least_and_not_for_the_most(most: int, value: float) -> None:
    calls = [ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2})]
    where = reward_context(turns=[turn(results=[OK, DOWN], calls=calls)])
    assert measure("tool_call_count", where, tools={"add": ADD}, min=2, max=max(most, 2)).value == 1.0
    assert measure("tool_call_count", where, tools={"add": ADD}, max=most).value == value
