"""Lengths of prompts and of the oracle's episodes, by the model's own tokenizer and template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.episodes.environment import load
from rlenv.messages import Message
from rlenv.preflight import LimitNames, RunLimits, SplitLengths, TaskLengths, chosen_tasks, judge_lengths, measure
from rlenv.preflight.lengths import lengths_of
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from tests.support.lengths import FORGETS

NONE = RunLimits()
ENCODER = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)


def measured(path: Path, limits: RunLimits = NONE, encoder: TokenEncoder = ENCODER) -> SplitLengths:
    environment = load(path)
    tasks = list(range(len(environment.tasks("train"))))
    return asyncio.run(measure(environment, encoder, split="train", tasks=tasks, limits=limits))


def levels(found: SplitLengths, *, is_trained: bool = True) -> list[str]:
    return [one.level for one in judge_lengths(found, LimitNames(), is_trained=is_trained)]


def test_prompts_have_their_tools_and_responses_are_sampled_and_observed_tokens(spec: Callable[..., Path]) -> None:
    path = spec(train=(1, 5))
    environment = load(path)
    found = measured(path)
    for task, words in zip(found.tasks, (1, 5), strict=True):
        question = " ".join(["fox"] * words)
        prompt = [Message("system", "You look things up."), Message("user", question)]
        assert task.prompt == len(ENCODER.encode_prompt(prompt, tools=environment.tool_schemas))
        call = f'<tool_call>\n{{"name": "look", "arguments": {{"x": "{question}"}}}}\n</tool_call>'
        first, last = ENCODER.encode_text(call), ENCODER.encode_text("<answer>dog</answer>")
        observed = ENCODER.encode_messages([Message("tool", f"found {question}")])
        assert task.response == len(first) + 1 + len(observed) + len(last) + 1
        assert task.turn == max(len(first), len(last)) + 1
        assert (task.turns, task.calls, task.fault) == (2, 1, "")


def test_ranks_are_numbers_that_were_measured() -> None:
    lengths = lengths_of(list(range(1, 201)), 150)
    assert lengths is not None
    assert (lengths.p50, lengths.p99, lengths.longest, lengths.over) == (100, 198, 200, 50)
    assert lengths_of([], 1) is None


def test_what_no_task_fits_is_an_error_and_what_some_do_not_a_warning_with_the_number(
    spec: Callable[..., Path],
) -> None:
    path = spec(train=(1, 1, 1, 40))
    longest = measured(path).prompts
    assert longest is not None
    some = measured(path, RunLimits(prompt=longest.longest - 1))
    (finding,) = judge_lengths(some, LimitNames("run.max_prompt_length"), is_trained=True)
    assert finding.level == "warning"
    assert (
        f"1 of 4 prompts are longer than the {longest.longest - 1:,} tokens of run.max_prompt_length" in finding.message
    )
    number = int(finding.message.rpartition("run.max_prompt_length=")[2].partition(",")[0])
    assert levels(measured(path, RunLimits(prompt=number))) == []
    assert levels(measured(path, RunLimits(prompt=10))) == ["error"]
    assert levels(measured(path, RunLimits(prompt=10)), is_trained=False) == ["warning"]


@pytest.mark.parametrize(("limits", "name"), [(RunLimits(response=9), "budget"), (RunLimits(turn=5), "longest_turn")])
def test_responses_and_turns_have_limits_of_their_own(spec: Callable[..., Path], limits: RunLimits, name: str) -> None:
    found = measured(spec(), limits)
    (finding,) = judge_lengths(found, LimitNames("p", "budget", "longest_turn"), is_trained=True)
    assert finding.level == "error"
    assert f"set {name}=" in finding.message
    assert found.falling_out == len(found.tasks)


def test_the_specs_own_budget_is_named_where_it_is_the_smaller(spec: Callable[..., Path]) -> None:
    path = spec(more="limits: {response_tokens: 10}\n")
    (finding,) = judge_lengths(measured(path, RunLimits(response=500)), LimitNames(), is_trained=True)
    assert "the 10 tokens of limits.response_tokens" in finding.message
    (finding,) = judge_lengths(measured(path, RunLimits(response=5)), LimitNames(), is_trained=True)
    assert "the 5 tokens of max_response_tokens" in finding.message


def test_a_row_that_gives_its_own_budget_is_held_against_that(spec: Callable[..., Path]) -> None:
    path = spec(train=(1, 1, 1), more='limits: {response_tokens: "{{ task.most }}"}\n')
    rows = [json.loads(line) for line in (path.parent / "train.jsonl").read_text().splitlines()]
    made = [json.dumps(row | {"most": most}) for row, most in zip(rows, (4, 5_000, None), strict=True)]
    (path.parent / "train.jsonl").write_text("\n".join(made))
    found = measured(path)
    assert (found.falling_out, found.limits.response) == (1, None)
    (finding,) = judge_lengths(found, LimitNames(), is_trained=True)
    assert "1 of 3 oracle episodes are longer than what their rows give for limits.response_tokens" in finding.message
    found = measured(path, RunLimits(response=5))
    assert (found.falling_out, found.limits.response) == (3, 5)


@pytest.mark.parametrize("is_function", [False, True])
def test_rewards_are_not_measured(spec: Callable[..., Path], is_function: bool) -> None:
    """Neither of an oracle whose last action is known for the last, nor of a function's, which is taken."""
    path = spec(more="")
    if is_function:
        text = path.read_text()
        path.write_text(text[: text.index("oracle:")] + 'oracle: {function: "gold.py:play"}\n')
        gold = "def play(task):\n    yield {'look': {'x': 'a'}}\n    yield f\"<answer>{task['answer']}</answer>\"\n"
        (path.parent / "gold.py").write_text(gold)
    (path.parent / "tools.py").write_text(
        'from pathlib import Path\n\n\ndef look(x: str) -> str:\n    """Looks."""\n    return x\n\n\n'
        "def judge(answer: str) -> float:\n    Path(__file__).with_name('asked').write_text('')\n    return 1.0\n"
    )
    rule = '{kind: rule, rule: exact_match, expect: "{{ task.answer }}"}'
    assert rule in path.read_text()
    path.write_text(path.read_text().replace(rule, '{kind: rule, function: "tools.py:judge"}'))
    assert measured(path).responses is not None
    assert not (path.parent / "asked").exists()


def test_a_spec_without_an_oracle_has_prompts_alone_and_says_so(spec: Callable[..., Path]) -> None:
    path = spec()
    path.write_text(path.read_text().partition("oracle:")[0])
    found = measured(path)
    assert found.prompts is not None
    assert found.responses is None
    (finding,) = judge_lengths(found, LimitNames(), is_trained=True)
    assert (finding.level, "the spec has no oracle" in finding.message) == ("unknown", True)


def test_an_oracle_that_fails_is_told_with_its_step(spec: Callable[..., Path]) -> None:
    path = spec()
    path.write_text(path.read_text().replace("<answer>{{ task.answer }}</answer>", "{{ results[7] }}"))
    found = measured(path)
    assert found.responses is None
    (finding,) = judge_lengths(found, LimitNames(), is_trained=True)
    assert finding.level == "warning"
    assert "the oracle does not play 4 of 4 tasks to the end: oracle.1" in finding.message


def test_an_episode_that_does_not_open_is_counted(spec: Callable[..., Path]) -> None:
    path = spec()
    path.write_text(path.read_text().replace('{{ task.question }}"\ntools', '{{ task.missing }}"\ntools'))
    found = measured(path)
    assert found.prompts is None
    findings = list(judge_lengths(found, LimitNames(), is_trained=True))
    assert findings[0].level == "error"
    assert "4 of 4 tasks do not open" in findings[0].message
    assert next(judge_lengths(found, LimitNames(), is_trained=True, must_open=False)).level == "warning"


def test_rows_are_measured_each_with_its_prompt(spec: Callable[..., Path]) -> None:
    path = spec(more='user: {kind: scripted, replies: ["fox fox"]}\n')
    path.write_text(path.read_text().replace("  - call:", '  - say: "<think>fox</think>Which?"\n  - call:'))
    forgets = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="rows")
    (task, *_) = measured(path, encoder=forgets).tasks
    assert len(task.rows) == 2
    assert task.rows[0][0] == task.prompt
    kept = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="keep")
    (same, *_) = measured(path, encoder=kept).tasks
    assert same.rows == ()
    assert same.turns == task.turns == 3
    found = measured(path, encoder=forgets).later_prompts
    assert found is not None
    assert found.longest >= task.rows[1][0]


def test_a_sample_is_spread_over_what_is_played(spec: Callable[..., Path]) -> None:
    environment = load(spec(train=tuple([1] * 100)))
    assert chosen_tasks(environment, "train", tasks=None, sample=4) == [0, 25, 50, 75]
    assert chosen_tasks(environment, "train", tasks=8, sample=4) == [0, 2, 4, 6]
    assert chosen_tasks(environment, "train", tasks=None, sample=200) == list(range(100))


def test_a_task_falls_out_for_any_of_the_limits() -> None:
    task = TaskLengths(0, prompt=10, response=20, turn=5)
    assert not task.falls_out(RunLimits(10, 20, 5))
    for limits in (RunLimits(9, 20, 5), RunLimits(10, 19, 5), RunLimits(10, 20, 4)):
        assert task.falls_out(limits)
    assert TaskLengths(0, fault="did not open").falls_out(RunLimits())
