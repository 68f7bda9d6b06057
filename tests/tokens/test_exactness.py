"""Every accepted observation is the template's own rendering, and what is refused is rewritten: for each kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens import TokenEncoder
from rlenv.tokens.shapes import Story
from rlenv.tokens.verdict import Played, judge
from tests.tokens.kinds import KINDS, TOOLS, VALUES, Kind, Oracle, bound, dialogues, tokenizer

REWRITING = {
    "drops thinking",
    "keeps the last thoughts",
    "shortens old empty blocks",
    "other marks",
    "drops an empty block",
    "moves the system text",
    "moves the tools",
    "drops text beside calls",
    "moves text behind calls",
    "ends the last otherwise",
    "writes blocks that nobody said",
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_accepted_is_equal_and_what_is_refused_is_rewritten(name: str) -> None:
    kind = KINDS[name]
    oracle, encoder = Oracle(kind), bound(KINDS[name])
    equal = refused = 0
    for prompt, tools, turns in dialogues(50, name):
        trajectory = encoder.start(prompt, tools=tools)
        before, conversation = oracle.text(prompt, tools), list(prompt)
        assert trajectory.context_ids == oracle.ids(before)
        for turn in turns:
            conversation += [turn.turn(), *(answer.as_dict() for answer in turn.answers)]
            after = oracle.text(conversation, tools)
            said = oracle.said(turn.turn())
            trajectory.add_sampled(oracle.ids(before + said)[len(oracle.ids(before)) :])
            try:
                assert trajectory.add_observation(Observation(turn.answers))
            except UnsupportedTemplate:
                assert not after.startswith(before + said), (before[-200:], said, after[len(before) - 50 :])
                refused += 1
                break
            assert trajectory.context_ids == oracle.ids(after)
            equal += 1
            before = after
    assert equal > (8 if name in REWRITING else 60) or name == "drops an empty block"
    assert (refused > 0) == (name in REWRITING)


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("name", sorted(REWRITING))
def test_rows_begin_with_the_templates_own_rendering(name: str) -> None:
    kind = KINDS[name]
    oracle, encoder = Oracle(kind), bound(KINDS[name], "rows")
    began = 0
    for prompt, tools, turns in dialogues(40, name):
        rows = encoder.start_rows(prompt, tools=tools)
        before, conversation, total = oracle.text(prompt, tools), list(prompt), 0
        for turn in turns:
            conversation += [turn.turn(), *(answer.as_dict() for answer in turn.answers)]
            after = oracle.text(conversation, tools)
            said = oracle.said(turn.turn())
            ids = oracle.ids(before + said)[len(oracle.ids(before)) :]
            rows.add_sampled(ids, [-1.0] * len(ids))
            total += len(ids)
            count = len(rows.rows)
            assert rows.add_observation(Observation(turn.answers), said=turn.said)
            assert rows.last.context_ids == oracle.ids(after)
            assert (len(rows.rows) > count) == (not after.startswith(before + said))
            began += len(rows.rows) - count
            before = after
        assert sum(sum(row.mask) for row in rows.rows) == total
    assert began > 3


@pytest.mark.parametrize("name", sorted(REWRITING - {"keeps the last thoughts"}))  # which shows in later turns
def test_what_is_kept_and_differs_is_said(name: str) -> None:
    kind = KINDS[name]
    oracle, encoder, strict = Oracle(kind), bound(kind, "keep"), bound(kind)
    told = 0
    for prompt, tools, turns in dialogues(30, name):
        kept, grown = (one.start(prompt, tools=tools) for one in (encoder, strict))
        before, conversation = oracle.text(prompt, tools), list(prompt)
        turn = turns[0]
        conversation += [turn.turn(), *(answer.as_dict() for answer in turn.answers)]
        after = oracle.text(conversation, tools)
        said = oracle.said(turn.turn())
        ids = oracle.ids(before + said)[len(oracle.ids(before)) :]
        for trajectory in (kept, grown):
            trajectory.add_sampled(ids)
        assert kept.add_observation(Observation(turn.answers))
        start = len(kept.prompt_ids)
        assert kept.context_ids[start : start + len(ids)] == ids
        assert (kept.differences == []) == after.startswith(before + said)
        assert (kept.differences == []) == (grown.difference(Observation(turn.answers)) == "")
        told += len(kept.differences)
    assert told > 0


def played(kind: Kind, *answers: tuple[str, ...], **more: Any) -> Played:
    prompt = [Message("system", "S"), Message("user", "Q")]
    return Played(prompt, tools=TOOLS, answers=answers, **more)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("name", "answers", "runs"),
    [
        ("grows", (("tool",), ("tool", "tool"), ("user",)), True),
        ("drops thinking", (("tool",),), True),
        ("drops thinking", (("tool",), ("user",)), False),
        ("other marks", (("user",),), False),
        ("drops an empty block", (("tool",),), False),
        ("writes empty blocks", (("tool",),), True),
        ("opens a block", (("tool",), ("user",)), True),
        ("moves the system text", (("tool",),), False),
        ("moves the tools", (("tool",),), True),
        ("moves the tools", (("tool",), ("user",)), False),
        ("drops text beside calls", (("tool",),), False),
        ("drops text beside calls", (("user",),), True),
        ("moves text behind calls", (("tool",),), False),
        ("counts", (("tool",), ("user",)), True),
        ("counts from the fourth on", (("tool",), ("user",)), True),
        ("keeps the last thoughts", (("tool",),), False),
        ("shortens old empty blocks", (("tool",),), False),
        ("two stops", (("tool",), ("user",)), True),
        ("ends the last otherwise", (("tool",),), True),
        ("ends the last otherwise", (("tool",), ("user",)), False),
        ("bare", (("tool",), ("user",)), True),
    ],
)
def test_the_verdict_says_what_a_run_will_meet(name: str, answers: Any, runs: bool) -> None:
    kind = KINDS[name]
    verdict = judge(bound(kind), played(kind, *answers))
    assert (verdict.will_run, verdict.is_exact) == (runs, runs), verdict
    for history in ("keep", "rows"):
        other = judge(bound(kind, history), played(kind, *answers))
        assert other.will_run
        assert other.is_exact or history == "keep"
    if not runs:
        assert "choose run.history: rows" in verdict.message


def test_end_marks_are_a_set_by_role() -> None:
    def ends(kind: Kind, given: tuple[str, ...] = ()) -> set[str]:
        encoder = TokenEncoder(
            tokenizer(), chat_template=kind.source, template_kwargs={**VALUES, **kind.values},
            end_ids=[tokenizer().token_to_id(mark) for mark in given],
        )  # fmt: skip
        return {encoder.decode([number]) for number in encoder.stop_token_ids}

    assert ends(KINDS["two stops"]) == {"<|calls|>", "<|im_end|>"}
    assert ends(KINDS["bare"]) == {"<|observation|>", "<|user|>"}
    assert ends(KINDS["grows"], ("<|endoftext|>",)) == {"<|im_end|>", "<|endoftext|>"}
    channels = Kind(
        "channels", {"think": ["<|muse|>", "<|im_end|>\n<|im_start|>assistant\n"], "last_stop": "<|return|>"}
    )
    assert ends(channels, ("<|return|>",)) == {"<|return|>"}


def test_no_second_mark_stands_behind_the_one_that_was_sampled() -> None:
    kind = KINDS["two stops"]
    encoder = bound(kind, "keep")
    trajectory = encoder.start([Message("user", "Q")])
    trajectory.add_sampled(encoder.encode_text("Ans.<|calls|>"))
    assert trajectory.add_observation(Observation((Message("user", "and now?"),)))
    assert encoder.decode(trajectory.response_ids).startswith("Ans.<|calls|>\n<|im_start|>user")
    assert trajectory.differences == ["it ends this turn with <|im_end|>, and <|calls|> was sampled"]
    bare = bound(KINDS["bare"])
    trajectory = bare.start([Message("user", "Q")])
    trajectory.add_sampled(bare.encode_text("\n<think></think>\nAns.<|user|>"))
    assert trajectory.add_observation(Observation((Message("user", "and now?"),)))
    assert bare.decode(trajectory.response_ids) == "\n<think></think>\nAns.<|user|>\nand now?<|assistant|>"


def test_an_end_token_that_begins_turns_is_said() -> None:
    encoder = TokenEncoder(
        tokenizer(), chat_template=KINDS["grows"].source, template_kwargs={**VALUES, "eos_token": "<|im_start|>"}
    )
    assert encoder.stop == "<|im_end|>"
    assert "begins the assistant's turn" in encoder.remarks[0]


def test_times_in_a_prompt_are_not_kept_from_before() -> None:
    from datetime import datetime, timedelta

    encoder = TokenEncoder(tokenizer(), chat_template="{{ strftime_now('%H:%M:%S') }}" + KINDS["grows"].source,
                           template_kwargs=VALUES)  # fmt: skip
    first, second = datetime(2026, 1, 1, 10, 0, 0), datetime(2026, 1, 1, 10, 0, 0) + timedelta(seconds=7)
    for now in (first, second, first):
        story = Story([{"role": "user", "content": "Q"}], (), now)
        ids = encoder._prompt_ids.of_prompt([Message("user", "Q")], story, ())
        assert encoder.decode(ids.tolist()).startswith(f"{now:%H:%M:%S}")


def test_many_shapes_of_a_hostile_policy_stay_few_in_memory() -> None:
    encoder = bound(replace(KINDS["grows"]))  # one of its own: what other tests have looked at is not counted
    trajectory = encoder.start([Message("user", "Q")])
    for number in range(120):
        text = ("<think>\nhm\n</think>\n" if number % 2 else "") + ("so " if number % 3 else "")
        calls = number % 5 + 1
        trajectory.add_sampled(
            encoder.encode_text(text + '<tool_call>{"name": "look"}</tool_call>' * calls + "<|im_end|>")
        )
        assert trajectory.add_observation(Observation((Message("tool", "R"),) * calls))
    assert len(encoder.growth._findings) < 120
