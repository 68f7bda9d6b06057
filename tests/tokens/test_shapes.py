"""What a turn is made of is read from its text: blocks of thinking that are closed, left open, or closed alone."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Literal

import pytest

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens import TokenEncoder
from rlenv.tokens.dummies import TurnShape
from rlenv.tokens.shapes import Reader, Story, shorter
from tests.tokens.kinds import KINDS, TOOLS, VALUES, Kind, tokenizer

READER = Reader(
    (("<think>", "</think>"), ("to=self<|message|>", "<|eom|>")), opener="<tool_call>", closer="</tool_call>"
)
CALL = '<tool_call>{"name": "look", "arguments": {"x": "R"}}</tool_call>'
# The prompt opens a block that only turns with thinking have in a history, and a turn without has a closing mark alone.
OPENS = Kind("opens", {"opens": "<think>\n", "think": ["<think>", "</think>"]})
ALONE = Kind(
    "alone",
    source=KINDS["grows"].source.replace(
        "{%- elif empties %}{{- think[0] + '\\n\\n' + think[1] + '\\n' }}", "{%- else %}{{- think[1] }}"
    ),
)


def bound(kind: Kind) -> TokenEncoder:
    return TokenEncoder(tokenizer(), chat_template=kind.source, template_kwargs={**VALUES, **kind.values})


@pytest.mark.parametrize(
    "unit", ["<think>a</think>", "<think></think>", "<tool_call><think>", "</think>", CALL + "<think>"]
)
@pytest.mark.parametrize("is_open", [False, True])
def test_the_time_of_reading_grows_as_the_text_does(unit: str, is_open: bool) -> None:
    def seconds(size: int) -> float:
        text, taken = (unit * size)[:size], []
        for _ in range(3):
            began = time.thread_time()
            READER.turn(text, ("tool",), (), is_open=is_open)
            taken.append(time.thread_time() - began)
        return min(taken)

    assert seconds(160_000) < 0.01 or seconds(160_000) < 30 * seconds(20_000)  # 64 times, if by the square


@pytest.mark.parametrize(
    ("text", "is_open", "thinking"),
    [
        ("Ans.", False, "none"),
        ("<think>\nhm\n</think>Ans.", False, "some"),
        ("<think>\n\n</think>Ans.", False, "empty"),
        ("<think>\nhm", False, "cut"),
        ("hm</think>Ans.", True, "some"),
        ("</think>Ans.", True, "empty"),
        ("Ans.", True, "left"),
        ("</think>Ans.", False, "closed"),
        ("\n</think>Ans.", False, "closed"),
        ("hm</think>Ans.", False, "stray"),
        ("hm<|eom|>Ans.", False, "none"),  # a mark that ends much else, too
        ("<think>a</think>b</think>c", False, "some"),
    ],
)
def test_the_kind_of_thinking(text: str, is_open: bool, thinking: str) -> None:
    assert READER.turn(text, ("user",), (), is_open=is_open).thinking == thinking


def test_a_closing_mark_in_a_call_is_a_part_of_the_call() -> None:
    assert READER.turn(CALL.replace("R", "</think>"), ("tool",), (), is_open=False).thinking == "none"
    assert READER.turn("</think>" + CALL, ("tool",), (), is_open=False) == ("closed", "", ("tool",), ())


def test_a_mark_of_thinking_that_begins_as_a_call_does_is_no_call() -> None:
    calls = '<function name="look">'
    reader = Reader((("<think>", "</think>"),), opener="<", closer="</function>")
    for text, kind in (
        ("<think></think>", "empty"),
        ("<think>a < b</think>", "some"),
        ("</think>", "closed"),
        ("", "none"),
    ):
        assert reader.turn(text + calls, ("tool",), (), is_open=False) == (kind, "", ("tool",), ())
        assert reader.turn(text + "So. " + calls, ("tool",), (), is_open=False).text == "before"


def test_ids_of_calls_that_only_a_history_has_are_a_difference() -> None:
    behind = "+ (', \"id\": \"' + call.id + '\"' if not loop.last or not outer.last else '') + '}</tool_call>' }}"
    source = (
        KINDS["grows"]
        .source.replace("+ '}</tool_call>' }}", behind)
        .replace("{{- '<|im_start|>assistant\\n' }}", "{%- set outer = loop %}{{- '<|im_start|>assistant\\n' }}")
    )
    assert source.count("outer") == 2
    encoder = TokenEncoder(tokenizer(), chat_template=source, template_kwargs=VALUES)
    assert "writes the ids of calls once results follow" in refused(encoder, CALL, "tool")
    for number, is_refused in (("c1", False), ("c2", True)):  # of a policy that writes the ids itself
        trajectory = encoder.start([Message("user", "Q")], tools=TOOLS)
        trajectory.add_sampled(
            encoder.encode_text(CALL.replace("}</tool_call>", ', "id": "c1"}</tool_call><|im_end|>'))
        )
        seen = Observation((Message("tool", "R", tool_call_id=number),))
        assert bool(trajectory.difference(seen)) == is_refused
        if not is_refused:
            assert trajectory.add_observation(seen)


_SYSTEM = "'<|im_start|>system\\n' + m.content"
_RESULT = "{{- '\\n' + m.content"


@pytest.mark.parametrize(
    ("old", "new"),
    [(_RESULT, f"{_RESULT}[:500]"), (_SYSTEM, f"{_SYSTEM} + (' (long)' if messages | length > 3 else '')")],
    ids=["of results", "of conversations"],
)
def test_a_template_that_looks_at_lengths_is_refused(old: str, new: str) -> None:
    source = KINDS["grows"].source
    assert source.count(old) == 1
    encoder = TokenEncoder(tokenizer(), chat_template=source.replace(old, new), template_kwargs=VALUES)
    trajectory = encoder.start([Message("system", "S"), Message("user", "Q")], tools=TOOLS)

    def play() -> None:
        for _ in range(3):
            trajectory.add_sampled(encoder.encode_text(CALL + "<|im_end|>"))
            assert trajectory.add_observation(Observation((Message("tool", "R" * 600),)))

    with pytest.raises(UnsupportedTemplate):
        play()


@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_template_that_trims_what_is_old_is_refused(role: Literal["tool", "user"]) -> None:
    old = {"tool": _RESULT, "user": "{{- m.content + '<|im_end|>"}[role]
    source = KINDS["grows"].source
    assert source.count(old) == 1
    new = old.replace("m.content", "(m.content if loop.last else m.content | trim)")
    encoder = TokenEncoder(tokenizer(), chat_template=source.replace(old, new), template_kwargs=VALUES)
    trajectory = encoder.start([Message("user", "Q")], tools=TOOLS)
    said = "Ans." if role == "user" else CALL
    trajectory.add_sampled(encoder.encode_text(f"{said}<|im_end|>"))
    assert trajectory.add_observation(Observation((Message(role, " R\n"),)))
    trajectory.add_sampled(encoder.encode_text(f"{said}<|im_end|>"))
    with pytest.raises(UnsupportedTemplate, match=r"after turn 2 it writes .* stood"):
        trajectory.add_observation(Observation((Message(role, " R\n"),)))


def refused(encoder: TokenEncoder, text: str, role: Any) -> str:
    trajectory = encoder.start([Message("user", "Q")], tools=TOOLS if role == "tool" else ())
    trajectory.add_sampled(encoder.encode_text(text + "<|im_end|>"))
    try:
        assert trajectory.add_observation(Observation((Message(role, "R"),)))
    except UnsupportedTemplate as error:
        return str(error)
    return ""


def test_the_prompts_block_left_open_is_refused_where_the_history_has_none() -> None:
    encoder = bound(OPENS)
    assert refused(encoder, "hm\n</think>\nAns.", "user") == ""
    assert "rewrites" in refused(encoder, "Ans.", "user")
    trajectory = TokenEncoder(
        tokenizer(), chat_template=OPENS.source, template_kwargs={**VALUES, **OPENS.values}, history="keep"
    ).start([Message("user", "Q")])
    trajectory.add_sampled(encoder.encode_text("Ans.<|im_end|>"))
    assert trajectory.add_observation(Observation((Message("user", "R"),)))
    assert len(trajectory.differences) == 1


def test_a_closing_mark_alone_is_a_shape_of_its_own() -> None:
    encoder = bound(ALONE)
    for role, words in (("user", "Ans."), ("tool", CALL)):
        assert refused(encoder, "</think>" + words, role) == ""
        assert refused(encoder, "<think>\nhm\n</think>\n" + words, role) == ""
        assert "closes thinking where a turn has none" in refused(encoder, words, role)
        assert "leaves out the empty block" in refused(encoder, "<think></think>" + words, role)
        assert "rewrites" in refused(encoder, "hm</think>" + words, role)
    assert "leaves out a mark" in refused(bound(KINDS["grows"]), "</think>Ans.", "user")


@pytest.mark.parametrize(
    "text",
    [
        CALL + "\n",
        CALL + " ",
        "\n\n" + CALL,
        "Hi. \n\n" + CALL,
        "<think>hm</think>" + CALL,
        "<think>\n\nhm\n\n</think>\n\n\n" + CALL + "\n\n",
    ],
)
def test_white_space_around_the_parts_of_a_turn_is_the_policys_own(text: str) -> None:
    assert refused(bound(KINDS["grows"]), text, "tool") == ""


def test_marks_of_several_tokens_are_found_as_one() -> None:
    named = ["<|open|>think<|sep|>", "<|close|>think<|sep|>"]
    made = tokenizer().from_str(tokenizer().to_str())
    made.add_special_tokens(["<|open|>", "<|close|>", "<|sep|>"])
    source = KINDS["grows"].source.replace("+ '\\n' + thought + '\\n' +", "+ thought +")
    encoder = TokenEncoder(made, chat_template=source, template_kwargs={**VALUES, "think": named})
    assert encoder.growth.reader.thinking[0] == tuple(named)
    assert refused(encoder, f"{named[0]}hm{named[1]}\nAns.", "user") == ""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (CALL, ""),
        (f" \n{CALL}\n ", ""),
        (f"So. {CALL}", "before"),
        (f"{CALL} So.", "behind"),
        (f"So. {CALL} So.", "both"),
        (f"{CALL} and {CALL}", ""),  # between calls nothing is looked at
        (f"{CALL}{CALL} So.", "behind"),
        ("So.", ""),  # the call could not be read
        ("So. <tool_call>{", "before"),
        (f"<think>hm</think>{CALL}", ""),
        (f"<think>hm</think>So. {CALL}", "before"),
        (f"So. <think>hm</think>{CALL}", "before"),
        (f"<think>{CALL}</think>", ""),
    ],
)
def test_where_text_stands_beside_calls(text: str, where: str) -> None:
    assert READER.turn(text, ("tool",), (), is_open=False).text == where
    assert READER.turn(text, ("user",), (2,), is_open=False)[2:] == (("user",), (2,))


def test_without_a_closing_mark_nothing_stands_behind_calls() -> None:
    reader = Reader((), opener="<tool_call>")
    assert [reader.turn(text, ("tool",), (), is_open=False).text for text in (f"{CALL} So.", f"a {CALL}")] == [
        "",
        "before",
    ]


@pytest.mark.parametrize(("text", "where"), [("", ""), (" \n", ""), ("H", ""), ("H So.", "before"), ("So.", "before")])
def test_what_a_template_writes_before_a_turn_is_no_text_of_it(text: str, where: str) -> None:
    assert Reader((), header="H").turn(text, ("user",), (), is_open=False).text == where


@pytest.mark.parametrize(
    ("text", "is_open", "kind"),
    [
        ("", False, "none"),
        ("So.", False, "none"),
        ("<think>", False, "some"),
        ("<think></think>", False, "empty"),
        ("</think>", False, "closed"),
        ("</think>", True, "empty"),
        ("<|eom|>", False, "empty"),  # which does not name what it closes
    ],
)
def test_the_blocks_before_a_turns_own_words(text: str, is_open: bool, kind: str) -> None:
    assert READER.blocks(text, is_open=is_open) == kind
    assert READER.closes(text) == ("</think>" in text or "<|eom|>" in text)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("<think>", True), ("<think>\n\n", True), ("<think>a", False), ("</think>", False), ("", False)],
)
def test_a_prompt_that_ends_with_an_opening_mark_leaves_a_block_open(prompt: str, is_open: bool) -> None:
    assert READER.is_left_open("x" * 500 + prompt) is is_open


@pytest.mark.parametrize(
    ("roles", "kept"),
    [
        (("tool",), ("tool",)),
        (("tool",) * 2, ("tool",) * 2),
        (("tool",) * 5, ("tool",) * 2),
        (("tool", "tool", "tool", "user"), ("tool", "tool", "user")),
        (("tool", "user") * 2, ("tool", "user") * 2),
        (("tool",) * 3 + ("user",) * 3, ("tool", "tool", "user", "user")),
    ],
)
def test_of_answers_of_one_role_in_a_row_two_are_told(roles: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert shorter(TurnShape("some", "before", roles, (3,))) == TurnShape("some", "before", kept, ())


def test_a_conversation_is_told_by_its_shapes_once_before_the_last_reply_and_twice_since() -> None:
    call, other, reply = (
        TurnShape("none", "", ("tool",)),
        TurnShape("some", "", ("tool",)),
        TurnShape("none", "before", ("user",)),
    )
    story = Story([{"role": "user", "content": "Q"}], (), datetime(2000, 1, 1))
    for turn, told in [
        (call, [call]),
        (call, [call, call]),
        (call, [call, call]),
        (other, [call, call, other]),
        (call, [call, call, other]),
        (reply, [call, other, reply]),
        (reply, [call, other, reply]),
        (other, [call, other, reply, other]),
    ]:
        before = story
        story = story.after(turn)
        assert sorted(story.told()) == sorted(told)
        assert len(before.turns) == len(story.turns) - 1
    assert story.told()[-1] == other
    assert story.history != story.after(call).history
    assert story.after(other).history != story.history == story.after(other).after(reply).after(other).history


def test_prompts_of_one_shape_have_one_key() -> None:
    def key(*messages: Any, tools: Any = ()) -> Any:
        return Story(messages, tools, datetime(2000, 1, 1)).of_prompt()

    user, system, said = ({"role": role, "content": "a"} for role in ("user", "system", "assistant"))
    assert key(user) == key({**user, "content": "b"})
    keys = [
        key(user),
        key(system),
        key(system, user),
        key(user, tools=[{"name": "a"}]),
        key(user, tools=[{"name": "b"}]),
    ]
    keys += [key({**user, "content": [{"type": "text"}]}), key(user, said), key(user, {**said, "content": "b"})]
    assert len(set(keys)) == len(keys)
    odd = Story([user], [{"name": object()}], datetime(2000, 1, 1))
    assert odd.of_prompt() == odd.of_prompt() != key(user, tools=[{"name": object()}])


@pytest.mark.parametrize(
    ("begins", "opens", "closes"),
    [
        ("", False, False),
        ("<think>\n", True, False),
        ("<think>\n\n</think>\n\n", False, True),
        ("<think></think>", False, True),
        ("<think>\nhm\n</think>\n", False, False),
        ("</think>", False, False),
    ],
)
def test_a_prompt_ends_inside_a_block_or_behind_an_empty_one_or_neither(begins: str, opens: bool, closes: bool) -> None:
    encoder = bound(Kind("own", {"opens": begins, "think": ["<think>", "</think>"]}))
    story = Story([{"role": "user", "content": "Q"}], (), datetime(2000, 1, 1))
    assert (encoder.growth.opens(story), encoder.growth.closes(story)) == (opens, closes)
