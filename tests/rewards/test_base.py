"""Where a term's evidence stands is said by the reader of the action, whatever text is repeated elsewhere."""

from __future__ import annotations

import asyncio
import json
import pickle
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

import rlenv
from rlenv.rewards.base import where_of_quotes
from rlenv.runs import files
from rlenv.runs.recorded import recorded
from rlenv.runs.replay import replay, rescore
from rlenv.trajectory import TermResult, Trajectory

SPEC = """
rlenv: 1
name: placed
tasks: {train: {rows: [{question: "How many?", answer: "42"}]}}
prompt: {system: "Be 42.", user: "{{ task.question }}"}
tools: {say: {kind: python, function: "own.py:say"}}
answer: {from: tag}
rewards:
  right: {kind: rule, rule: exact_match}
  digits: {kind: rule, rule: regex, pattern: "2$"}
  asked: {kind: rule, rule: tool_called, tool: say}
  form: {kind: rule, rule: valid_calls}
  own: {kind: rule, function: "own.py:own"}
  short: {kind: rule, rule: turn_count, max: 9}
"""
OWN = """
from rlenv.rewards.base import Measured

def say(text: str) -> str:
    "Says it."
    return text

def own(context):
    return Measured(1.0, "its own", where=(*context.where_final(0, 4), *context.where_result(0, 0)))
"""
CALL = '<tool_call>\n{"name": "say", "arguments": {"text": "<answer>42</answer>"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "say"\n</tool_call>'
LAST = "<think>𝄞 is it <answer>42</answer>?</think>\n  So 42: <answer> 42 </answer>"


def spec(folder: Path, text: str = SPEC, own: str = OWN) -> Path:
    (folder / "own.py").write_text(own)
    (folder / "spec.yaml").write_text(text)
    return folder / "spec.yaml"


def played(path: Path, *actions: str) -> Trajectory:
    async def main() -> Trajectory:
        async with rlenv.load(path) as environment, environment.start(task=0) as episode:
            for action in actions:
                await episode.step(action)
            return episode.trajectory

    return asyncio.run(main())


def texts(trajectory: Trajectory) -> list[str]:
    """All messages, as places number them."""
    found = [message.content for message in trajectory.messages]
    for turn in trajectory.turns:
        shown = turn.observation.messages if turn.observation is not None else ()
        found += [turn.action, *(message.content for message in shown)]
    return found


def read(trajectory: Trajectory, name: str) -> list[tuple[int, str]]:
    said = texts(trajectory)
    return [(message, said[message][start:end]) for message, start, end in trajectory.reward.terms[name].where]


def test_an_answer_that_thinking_and_a_tool_repeat_stands_in_the_answer_alone(tmp_path: Path) -> None:
    found = played(spec(tmp_path), CALL, LAST)
    (place,) = found.reward.terms["right"].where
    assert place == (4, LAST.rindex("42"), LAST.rindex("42") + 2)
    assert found.reward.terms["digits"].where == ((4, place[1] + 1, place[2]),)
    assert read(found, "asked") == [(2, CALL)]
    assert read(found, "own") == [(4, "So 4"), (3, texts(found)[3])]
    assert found.reward.terms["short"].where == found.reward.terms["form"].where == ()


def test_a_content_in_pieces_is_read_from_each(tmp_path: Path) -> None:
    own = OWN.replace("where_final(0, 4)", "where_final()")
    action = f"<think>a</think> one <think>one two</think>two\n<answer>42</answer>{CALL} "
    found = played(spec(tmp_path, own=own), CALL, action)
    content = found.turns[-1].parsed.content
    *pieces, _ = read(found, "own")
    assert "".join(text for _, text in pieces) == content
    assert [text for _, text in read(found, "right")] == ["42"]


def test_an_answer_of_a_call_is_the_call(tmp_path: Path) -> None:
    text = SPEC.replace("{from: tag}", "{from: tool, tool: say}").replace("where_result(0, 0)", "()")
    own = OWN.replace("(*context.where_final(0, 4), *context.where_result(0, 0))", "context.answer_at")
    action = f"It is <answer>42</answer>. {CALL}"
    found = played(spec(tmp_path, text, own), action)
    assert read(found, "right") == read(found, "own") == [(2, CALL)]


def test_a_refused_call_is_the_place_of_its_fault(tmp_path: Path) -> None:
    found = played(spec(tmp_path), BROKEN, LAST)
    assert read(found, "form") == [(2, BROKEN)]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("((9, 0, 1),)", "gave a place in message 9; there are 5"),
        ("((4, 0, 9999),)", "gave the place 0 to 9999 in message 4"),
        ("((4, 3, 1),)", "gave the place 3 to 1 in message 4"),
        ("(4, 0, 1)", "expected (message, start, end)"),
        ("((4, 0, True),)", "expected (message, start, end)"),
    ],
)
def test_a_place_that_is_none_makes_the_term_invalid(where: str, error: str, tmp_path: Path) -> None:
    own = OWN.replace("(*context.where_final(0, 4), *context.where_result(0, 0))", where)
    found = played(spec(tmp_path, SPEC.replace('own.py:own"', 'own.py:own", required: false'), own), CALL, LAST)
    assert error in found.reward.terms["own"].error


def test_places_are_kept_and_a_record_without_them_is_written_as_it_was(tmp_path: Path) -> None:
    found = played(spec(tmp_path), CALL, LAST)
    line = files.dump(found)
    assert files.parse(line) == found
    held = json.loads(line)
    assert "where" not in held["reward"]["terms"]["short"]
    assert "content_at" not in held["turns"][0]["parsed"]
    for term in held["reward"]["terms"].values():
        term.pop("where", None)
    assert json.loads(files.dump(files.parse(json.dumps(held)))) == held


def test_rescoring_says_the_places_and_replay_does_not_ask_for_them(tmp_path: Path) -> None:
    path = spec(tmp_path)
    whole = played(path, CALL, LAST)
    bare = {name: replace(term, where=()) for name, term in whole.reward.terms.items()}
    files.write(tmp_path / "old.jsonl", [replace(whole, reward=replace(whole.reward, terms=bare))])
    (old,) = recorded(tmp_path / "old.jsonl")

    async def main() -> None:
        async with rlenv.load(path) as environment:
            (again,) = await rescore(environment, [old])
            (replayed,) = await replay(environment, [old])
        for name, term in whole.reward.terms.items():
            assert again.reward.terms[name].where == term.where, name
        assert replayed.differences == ()

    asyncio.run(main())


def test_a_quote_is_placed_where_it_stands_once_and_nowhere_else(tmp_path: Path) -> None:
    found = played(spec(tmp_path), CALL, LAST)

    def quoted(said: str, *, all_turns: bool = True) -> list[str]:
        where = where_of_quotes(said, found.messages, found.turns, all_turns=all_turns)
        return [texts(found)[message][start:end] for message, start, end in where]

    assert quoted('It says "So 42:" and `Be 42.` and “is it”, "so 42:".') == ["So 42:"]
    assert quoted('It says "<answer>".') == []
    assert quoted('It says "<answer>".', all_turns=False) == ["<answer>"]


def test_places_that_nobody_looked_at_are_found_once_and_go_wherever_a_result_goes() -> None:
    asked = []

    def found() -> tuple[tuple[int, int, int], ...]:
        asked.append(1)
        return ((0, 1, 2),)

    def result() -> TermResult:
        return TermResult.valid("a", value=1.0, weight=1.0, where=found)

    one = result()
    assert not asked
    assert one == TermResult("a", "valid", 1.0, 1.0, where=((0, 1, 2),))
    assert one.where == ((0, 1, 2),)
    assert len(asked) == 1
    assert pickle.loads(pickle.dumps(result())) == copy(result()) == deepcopy(result()) == replace(result()) == one
