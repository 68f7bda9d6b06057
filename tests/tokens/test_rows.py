"""Rollouts over templates that rewrite history become several rows, and budgets say why they end."""

from __future__ import annotations

import asyncio

import pytest

from rlenv import dialects
from rlenv.errors import EpisodeError, UnsupportedTemplate, UsageError
from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import said_of
from rlenv.tokens.encoder import History
from tests.support import real
from tests.support.templates import FORGETS

# Thinking of earlier turns is left out once a user message follows, as Qwen3's template does.
SMALL = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="rows")
USER = Observation((Message("user", "next <|im_end|><tool_call>"),))


def test_a_new_row_starts_where_the_template_drops_thinking() -> None:
    rows = SMALL.start_rows([Message("user", "Q")])
    first = SMALL.encode_text("<think>hm</think>one<|im_end|>")
    said = Message("assistant", rows.add_sampled(first, [-1.0] * len(first)))
    assert rows.add_observation(USER, said=said)
    second = SMALL.encode_text("two<|im_end|>")
    rows.add_sampled(second)
    assert [row.response_ids for row in rows.rows] == [first, second]
    assert [row.mask for row in rows.rows] == [[1] * len(first), [1] * len(second)]
    prompt = SMALL.decode(rows.last.prompt_ids)
    assert prompt == (
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nnext <|im_end|><tool_call><|im_end|>\n<|im_start|>assistant\n"
    )
    control = [number for number in rows.last.prompt_ids if number in SMALL.vocabulary.added.values()]
    assert len(control) == 7  # those of the structure; what the user wrote is text


def test_a_template_that_only_grows_keeps_one_row() -> None:
    plain = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
    rows, whole = plain.start_rows([Message("user", "Q")]), plain.start([Message("user", "Q")])
    for _ in range(3):
        ids = plain.encode_text("look<|im_end|>")
        said = Message("assistant", rows.add_sampled(ids))
        whole.add_sampled(ids)
        assert rows.add_observation(Observation((Message("tool", "R"),)), said=said)
        assert whole.add_observation(Observation((Message("tool", "R"),)))
    assert len(rows.rows) == 1
    assert rows.last.context_ids == whole.context_ids


@pytest.mark.shared_data
def test_qwen3_is_split_at_a_user_message_after_thinking() -> None:
    encoder = TokenEncoder(real.qwen("qwen3"), chat_template=real.template("qwen3"), history="rows")
    rows = encoder.start_rows([Message("user", "Q")])
    said = Message("assistant", rows.add_sampled(encoder.encode_text("<think>\nhm\n</think>\n\nhello<|im_end|>")))
    assert rows.add_observation(Observation((Message("user", "and?"),)), said=said)
    conversation = [{"role": "user", "content": "Q"}, said.as_dict(), {"role": "user", "content": "and?"}]
    assert rows.last.prompt_ids == encoder.encode_text(encoder.template.render(conversation))
    assert len(rows.rows) == 2


def test_a_row_that_does_not_fit_is_not_started() -> None:
    rows = SMALL.start_rows([Message("user", "Q")], max_prompt_tokens=25, max_total_tokens=26)
    said = Message("assistant", rows.add_sampled(SMALL.encode_text("<think>hm</think>one<|im_end|>")))
    assert not rows.add_observation(USER, said=said)
    assert "expected fewer than 26 (max_total_tokens)" in rows.reason
    assert len(rows.rows) == 1


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_new_row_may_use_up_the_budget(spare: int) -> None:
    first = SMALL.encode_text("<think>hm</think>one<|im_end|>")
    needed = len(first) + len(SMALL.encode_messages(USER.messages))
    rows = SMALL.start_rows([Message("user", "Q")], max_response_tokens=needed + spare)
    said = Message("assistant", rows.add_sampled(first))
    assert rows.add_observation(USER, said=said) == (spare >= 0)
    assert spare < 0 or (len(rows.rows), rows.remaining) == (2, spare)


def test_a_result_that_was_cut_stays_so_in_the_rows_behind() -> None:
    rows = SMALL.start_rows([Message("user", "Q")])
    long = Observation((Message("tool", "word " * 100),))
    said = Message("assistant", rows.add_sampled(SMALL.encode_text("<think>hm</think>one<|im_end|>")))
    assert rows.add_observation(long, said=said, max_tokens=20)
    shown = SMALL.decode(rows.last.context_ids).count("word")
    said = Message("assistant", rows.add_sampled(SMALL.encode_text("<think>hm</think>two<|im_end|>")))
    assert rows.add_observation(USER, said=said, max_tokens=20)
    assert 0 < shown < 30
    assert (len(rows.rows), SMALL.decode(rows.last.prompt_ids).count("word")) == (2, shown)


def test_the_whole_has_a_budget_of_its_own() -> None:
    trajectory = SMALL.start([Message("user", "Q")], max_total_tokens=40, max_response_tokens=1000)
    assert trajectory.remaining == 40 - len(trajectory.prompt_ids)
    trajectory.add_sampled([SMALL.stop_id])
    assert not trajectory.add_observation(Observation((Message("tool", "a long result " * 9),)))
    assert "of 40 total tokens are left" in trajectory.reason
    with pytest.raises(EpisodeError, match="expected fewer than 3") as caught:
        SMALL.start([Message("user", "Q")], max_total_tokens=3)
    assert caught.value.reason == "total_tokens"


def test_what_was_said_is_the_assistants() -> None:
    rows = SMALL.start_rows([Message("user", "Q")])
    rows.add_sampled([SMALL.stop_id])
    with pytest.raises(UsageError, match="expected the assistant's"):
        rows.add_observation(USER, said=Message("user", "x"))


@pytest.mark.parametrize("history", ["grow", "keep"])
def test_other_histories_have_one_row(history: History) -> None:
    plain = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, history=history)
    rows = plain.start_rows([Message("user", "Q")])
    rows.add_sampled([plain.stop_id])
    assert rows.add_observation(Observation((Message("tool", "R"),)))
    rows.add_sampled([plain.stop_id])
    assert asyncio.run(rows.add_observation_async(Observation((Message("user", "more"),))))
    assert len(rows.rows) == 1
    assert rows.differences == []


def test_what_is_kept_is_said() -> None:
    kept = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="keep")
    rows = kept.start_rows([Message("user", "Q")])
    rows.add_sampled(kept.encode_text("<think>hm</think>one<|im_end|>"))
    assert rows.add_observation(USER)
    assert len(rows.differences) == 1
    refusing = TokenEncoder(small_tokenizer(), chat_template=FORGETS).start([Message("user", "Q")])
    refusing.add_sampled(kept.encode_text("<think>hm</think>one<|im_end|>"))
    with pytest.raises(UnsupportedTemplate, match="choose what to do: history rows"):
        refusing.add_observation(USER)


def test_the_budget_is_that_of_all_rows() -> None:
    first = SMALL.encode_text("<think>hm</think>one<|im_end|>")
    rows = SMALL.start_rows([Message("user", "Q")], max_response_tokens=60)
    said = Message("assistant", rows.add_sampled(first))
    assert rows.add_observation(USER, said=said)
    assert len(rows.rows) == 2
    observed = len(SMALL.encode_messages(USER.messages))
    assert len(rows) == len(first) + observed
    assert rows.remaining == 60 - len(first) - observed
    rows.add_sampled([5] * 10)
    assert len(rows) == len(first) + observed + 10
    assert not rows.add_observation(Observation((Message("user", "much too long " * 20),)), said=said)
    assert "response tokens are left" in rows.reason
    assert len(rows.rows) == 2


def test_a_row_needs_what_was_said() -> None:
    rows = SMALL.start_rows([Message("user", "Q")])
    rows.add_sampled([SMALL.stop_id])
    with pytest.raises(UsageError, match="said is None"):
        rows.add_observation(USER)


@pytest.mark.parametrize(
    ("sampled", "respelled"),
    [
        ('I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>', 0),
        ('I add.\n<tool_call>\n{"name":"add","arguments":{"a":1,"b":"é"}}\n</tool_call>', 1),
        ('I add.\n<tool_call>\n{"arguments": {"a": 1, "b": "é"}, "name": "add"}\n</tool_call>', 1),
        ('I add.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": "é"}}</tool_call>', 1),
        ('\n\nI add.\n\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>', 1),
        ("I add.", 0),
        (" I add.\n", 1),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>', 0),  # malformed: counted as that
    ],
)
@pytest.mark.parametrize("history", ["grow", "keep", "rows"])
def test_a_turn_that_the_template_spells_otherwise_is_counted(sampled: str, respelled: int, history: History) -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, history=history)
    read = dialects.get("hermes").parse(sampled)
    said = said_of(sampled, read, thinking=())
    rows = encoder.start_rows([Message("user", "u")])
    rows.add_sampled([*encoder.encode_text(sampled), encoder.stop_id])
    answer = Message("tool", "3", name="add", tool_call_id="1") if read.calls else Message("user", "More.")
    assert rows.add_observation(Observation((answer,)), said=said)
    assert rows.respelled() == respelled


EITHER = CHAT_TEMPLATE.replace(
    "(message.content or '')",
    "(raise_exception('not both') if message.reasoning_content and message.content and message.tool_calls else '')"
    " + ('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')"
    " + (message.content or '')",
)


@pytest.mark.parametrize("history", ["grow", "rows"])
def test_text_beside_calls_goes_on_where_a_template_takes_it_or_thinking(history: History) -> None:
    # gpt-oss asks for a preamble in its analysis; the turn is then one that it spells otherwise.
    encoder = TokenEncoder(small_tokenizer(), chat_template=EITHER, history=history)
    sampled = '<think>hm</think>I look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    said = said_of(sampled, dialects.get("hermes").parse(sampled), thinking=())
    rows = encoder.start_rows([Message("user", "u")])
    for number in range(2):
        rows.add_sampled([*encoder.encode_text(sampled), encoder.stop_id])
        answer = Message("tool", "3", name="look", tool_call_id=str(number))
        assert rows.add_observation(Observation((answer,)), said=said)
    assert rows.respelled() == 2
