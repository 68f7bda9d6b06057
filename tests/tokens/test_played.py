"""What an environment plays: each form of its prompts, and all that may answer a turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlenv.checks.diagnose import judge_environment
from rlenv.episodes.environment import load
from rlenv.messages import Image, Message
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import LoadedTokenizer, bind, thinking_of
from rlenv.tokens.verdict import Prompts, answers_of
from tests.support.lengths import FORGETS, spec

__all__ = ["spec"]
REPLIES = 'user: {kind: scripted, replies: ["fox"]}\n'


def tokenizer(template: str) -> LoadedTokenizer:
    return LoadedTokenizer(small_tokenizer(), template, {}, "<|im_end|>", "small")


def test_each_form_of_a_prompt_is_kept_once_by_its_longest_text() -> None:
    prompts = Prompts()
    prompts.add([Message("user", "a")])
    prompts.add([Message("user", "a longer one")])
    prompts.add([Message("system", " "), Message("user", "b")])
    prompts.add([Message("system", "S"), Message("user", "b")])
    prompts.add([Message("user", "c", images=(Image("image/png", ""),))])
    assert [[message.content for message in one] for one in prompts] == [
        ["a longer one"],
        [" ", "b"],
        ["S", "b"],
        ["c"],
    ]


def test_what_may_answer_a_turn_is_the_specs(spec: Callable[..., Path]) -> None:
    assert answers_of(load(spec(more="limits: {calls_per_turn: 1}\n"))) == (("tool",), ("tool", "tool"))
    path = spec(more=REPLIES + "limits: {calls_per_turn: 6}\n")
    counts = [roles if roles[0] == "user" else len(roles) for roles in answers_of(load(path))]
    assert counts == [1, ("user",), 2, 3, 4, 6]


@pytest.mark.slow
def test_a_user_is_judged_where_the_spec_has_one(spec: Callable[..., Path]) -> None:
    for more, will_run in (("", True), (REPLIES, False)):
        environment = load(spec(more=more))
        verdict = judge_environment(environment, partial(bind, tokenizer(FORGETS), environment))
        assert verdict.will_run is will_run
        assert ("run.history" in verdict.message) is not will_run
    environment = load(spec(more=REPLIES))
    assert judge_environment(environment, bind(tokenizer(FORGETS), environment, history="rows")).is_exact
    assert judge_environment(environment, bind(tokenizer(CHAT_TEMPLATE), environment)).is_exact


def test_a_dialect_that_goes_on_in_one_turn_only_grows(spec: Callable[..., Path]) -> None:
    path = spec(more=REPLIES + "dialect: search_r1\n")
    path.write_text(path.read_text().partition("oracle:")[0] + REPLIES + "dialect: search_r1\n")
    environment = load(path)
    encoder = bind(tokenizer(FORGETS), environment)
    assert encoder.same_turn is not None
    assert judge_environment(environment, encoder).is_exact


def test_thinking_is_marked_as_the_dialect_says(spec: Callable[..., Path]) -> None:
    assert thinking_of(load(spec())) == (("<think>", "</think>"),)  # hermes


def test_a_template_that_cannot_be_bound_is_a_verdict(spec: Callable[..., Path]) -> None:
    environment = load(spec())
    verdict = judge_environment(environment, lambda: bind(tokenizer("{{ oops("), environment))
    assert (verdict.will_run, verdict.situations[0].status) == (False, "refused")


THINKS = CHAT_TEMPLATE.replace(
    "(message.content or '')",
    "(('<thought>' + message.reasoning_content + '</thought>') if message.reasoning_content else '')"
    " + (message.content or '')",
)
OPENS = CHAT_TEMPLATE.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n")


@pytest.mark.parametrize(
    ("template", "dialect", "said"),
    [
        (CHAT_TEMPLATE, "hermes", ""),
        (THINKS, "hermes", "the template writes thinking in '<thought>' and '</thought>'"),
        (THINKS, "{base: hermes, thinking_marks: {open: <thought>, close: </thought>}}", ""),
        (CHAT_TEMPLATE, "llama4_pythonic", "the template writes a call as '<tool_call>"),
        (CHAT_TEMPLATE, "{base: hermes, thinking_open: true}", "thinking_open: false"),
        (OPENS, "{base: hermes, thinking_open: true}", ""),
        (OPENS, "hermes", "the prompt opens a block of thinking"),
    ],
)
def test_what_a_template_writes_is_held_against_what_the_dialect_reads(
    spec: Callable[..., Path], template: str, dialect: str, said: str
) -> None:
    environment = load(spec(more=f"dialect: {dialect}\n"))
    verdict = judge_environment(environment, bind(tokenizer(template), environment))
    assert bool(verdict.remarks) is bool(said)
    assert said in " ".join(verdict.remarks)
    if said:
        assert "hermes" in verdict.remarks[-1] or template is not CHAT_TEMPLATE


def test_an_end_mark_that_closes_a_call_stays_in_the_turns_text() -> None:
    # As Apertus has it: results follow in the same turn, so that generation ends at the call's own mark.
    template = CHAT_TEMPLATE.replace(
        "{%- endfor %}{{- '<|im_end|>\\n' }}",
        "{%- endfor %}{%- if not message.tool_calls %}{{- '<|im_end|>\\n' }}{%- endif %}",
    )
    encoder = TokenEncoder(small_tokenizer(), chat_template=template)
    trajectory = encoder.start([Message("user", "u")])
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    assert trajectory.add_sampled(encoder.encode_text(call)) == call
    assert encoder.encode_text("</tool_call>")[0] in encoder.end_ids
