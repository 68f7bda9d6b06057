"""One verdict says whether an environment can be trained with a template, and whether exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.diagnose import judge_environment
from rlenv.episodes.environment import load
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Image, Message, Observation, ToolCall
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import LoadedTokenizer, bind, thinking_of
from rlenv.tokens.dialogues import Speaker, generate, hostile, situations
from rlenv.tokens.dummies import KEYS
from rlenv.tokens.verdict import Played, Prompts, Situation, Verdict, answers_of, judge, misread
from rlenv.tokens.verdict import _verdict_of as made_verdict
from tests.support.lengths import FORGETS as FORGETS_ANYWHERE
from tests.support.lengths import spec
from tests.support.templates import FORGETS

PROMPT = (Message("system", "S"), Message("user", "Q"))


def test_a_template_that_only_grows_will_run_and_is_exact() -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
    verdict = judge(encoder, Played(PROMPT, answers=(("tool",), ("user",))))
    assert verdict.will_run
    assert verdict.is_exact
    assert {situation.status for situation in verdict.situations} == {"grows"}
    assert verdict.message == ""


def test_rewritten_history_stops_grow_is_inexact_for_keep_and_exact_in_rows() -> None:
    played = Played(PROMPT, answers=(("user",),))
    seen = {}
    for history in ("grow", "keep", "rows"):
        verdict = judge(TokenEncoder(small_tokenizer(), chat_template=FORGETS, history=history), played)
        seen[history] = (verdict.will_run, verdict.is_exact)
        assert any(situation.status == "rewritten" for situation in verdict.situations)
    assert seen == {"grow": (False, False), "keep": (True, False), "rows": (True, True)}


def test_a_template_that_cannot_be_bound_is_a_verdict() -> None:
    verdict = judge(UnsupportedTemplate("chat template x cannot be used"), Played(PROMPT))
    assert not verdict.will_run
    assert verdict.message == "chat template x cannot be used"


CLOSES = """\
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content }}{% endif %}
    {{- '</think>' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
      {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
      {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def test_a_template_that_writes_a_closing_mark_alone_for_a_turn_without_thinking_will_run() -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=CLOSES)
    verdict = judge(encoder, Played(PROMPT, answers=(("tool",), ("user",))))
    assert (verdict.will_run, verdict.is_exact) == (True, True), verdict.message
    # A turn without the mark is what only an odd policy writes, and is refused where it is written.
    assert any(one.status == "rewritten" and one.is_rare for one in verdict.situations)
    trajectory = encoder.start(PROMPT)
    text = '</think><tool_call>{"name": "look", "arguments": {"x": "R"}}</tool_call><|im_end|>'
    trajectory.add_sampled(encoder.encode_text(text))
    answer = Message("tool", "R", name="look", tool_call_id="call00000")
    assert trajectory.add_observation(Observation((answer,)))
    call = ToolCall("look", {"x": "R"}, "call00000")
    history = [*PROMPT, Message("assistant", "", (call,)), answer]
    rendered = encoder.template.render([message.as_dict() for message in history])
    assert encoder.decode(trajectory.context_ids) == rendered


# What an environment plays: each form of its prompts, and all that may answer a turn

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
        verdict = judge_environment(environment, partial(bind, tokenizer(FORGETS_ANYWHERE), environment))
        assert verdict.will_run is will_run
        assert ("run.history" in verdict.message) is not will_run
    environment = load(spec(more=REPLIES))
    assert judge_environment(environment, bind(tokenizer(FORGETS_ANYWHERE), environment, history="rows")).is_exact
    assert judge_environment(environment, bind(tokenizer(CHAT_TEMPLATE), environment)).is_exact


def test_a_dialect_that_goes_on_in_one_turn_only_grows(spec: Callable[..., Path]) -> None:
    path = spec(more=REPLIES + "dialect: search_r1\n")
    path.write_text(path.read_text().partition("oracle:")[0] + REPLIES + "dialect: search_r1\n")
    environment = load(path)
    encoder = bind(tokenizer(FORGETS_ANYWHERE), environment)
    assert encoder.same_turn is not None
    assert judge_environment(environment, encoder).is_exact


def test_thinking_is_marked_as_the_dialect_says(spec: Callable[..., Path]) -> None:
    assert thinking_of(load(spec())) == (("<think>", "</think>"),)  # hermes


def test_a_template_that_cannot_be_bound_is_a_verdict_of_its_environment(spec: Callable[..., Path]) -> None:
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
    remarks = misread(bind(tokenizer(template), environment), environment.parts.dialect)
    assert bool(remarks) is bool(said)
    assert said in " ".join(remarks)
    if said:
        assert "hermes" in remarks[-1] or template is not CHAT_TEMPLATE


def test_a_verdict_says_what_the_dialect_misreads(spec: Callable[..., Path]) -> None:
    environment = load(spec(more="dialect: hermes\n"))
    encoder = bind(tokenizer(OPENS), environment)
    said = misread(encoder, environment.parts.dialect)
    assert said
    assert judge_environment(environment, encoder).remarks == (*encoder.remarks, *said)


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


def situation(status: Any, *, is_rare: bool = False, name: str = "a") -> Situation:
    return Situation(name, status, f"why {status}" if status != "grows" else "", is_rare)


@pytest.mark.parametrize(
    ("history", "situations", "will_run", "is_exact"),
    [
        ("grow", [situation("grows")], True, True),
        ("grow", [situation("rewritten")], False, False),
        ("rows", [situation("rewritten")], True, True),
        ("keep", [situation("rewritten")], True, False),
        ("keep", [situation("rewritten", is_rare=True)], True, False),
        ("grow", [situation("rewritten", is_rare=True)], True, True),
        ("rows", [situation("refused")], False, False),
        ("rows", [situation("refused", is_rare=True)], True, True),
        ("keep", [situation("grows"), situation("refused", is_rare=True)], True, False),
    ],
)
def test_what_a_policy_does_against_its_template_alone_stops_no_run(
    history: Any, situations: list[Situation], will_run: bool, is_exact: bool
) -> None:
    verdict = made_verdict(
        TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, history=history), tuple(situations)
    )
    assert (verdict.will_run, verdict.is_exact, verdict.message == "") == (will_run, is_exact, is_exact)


def test_a_verdict_is_one_line_with_the_way_out() -> None:
    rare = situation("refused", is_rare=True, name="two results")
    assert (
        Verdict("t", "rows", True, True, (situation("grows"),)).line == "history rows: training will run and be exact"
    )
    assert Verdict("t", "rows", True, True, (rare,)).line.endswith(
        "; an episode that comes to two results ends as truncated"
    )
    odd = situation("rewritten", is_rare=True, name="odd")
    assert Verdict("t", "rows", True, True, (odd,)).line == "history rows: training will run and be exact"
    assert "comes to odd" in Verdict("t", "grow", True, True, (odd,)).line
    assert Verdict("t", "keep", True, False, (), "do").line == "history keep: training will run and not be exact: do"
    assert Verdict("t", "keep", False, False, (), "do").line == "history keep: training will not run: do"
    held = Verdict("t", "rows", True, True, (rare,), "", ("a remark",)).as_dict()
    assert (held["situations"][0]["is_rare"], held["remarks"], held["name"]) == (True, ["a remark"], "t")


@pytest.mark.parametrize(
    ("with_tools", "with_users", "count"), [(True, True, 42), (True, False, 18), (False, True, 6), (False, False, 0)]
)
def test_there_is_a_dialogue_of_each_kind_that_an_environment_plays(
    with_tools: bool, with_users: bool, count: int
) -> None:
    found = list(situations(with_tools=with_tools, with_users=with_users))
    assert len({one.name for one in found}) == len(found) == count
    roles = {answer.role for one in found for turn in one.turns for answer in turn.answers}
    assert roles == {role for role, has in (("tool", with_tools), ("user", with_users)) if has}
    assert {turn.thinks for one in found for turn in one.turns} == ({"none", "some", "empty"} if found else set())
    assert all((turn.message.thinking != "") is (turn.thinks == "some") for one in found for turn in one.turns)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("with_users", [True, False])
def test_dialogues_are_drawn_by_a_seed_with_all_that_is_asked_for(thinks: bool, with_users: bool) -> None:
    found = list(generate(60, seed=1, max_calls=3, thinks=thinks, with_users=with_users))
    assert found == list(generate(60, seed=1, max_calls=3, thinks=thinks, with_users=with_users))
    assert found != list(generate(60, seed=2, max_calls=3, thinks=thinks, with_users=with_users))
    turns = [turn for one in found for turn in one.turns]
    assert {len(one.turns) for one in found} == {1, 2, 3, 4, 5}
    assert {len(turn.message.tool_calls) for turn in turns} == {1, 2, 3} | ({0} if with_users else set())
    assert {turn.thinks for turn in turns} == ({"none", "some", "empty"} if thinks else {"none"})
    assert {len(one.messages) for one in found} == {1, 2}
    for turn in turns:
        ids = [answer.tool_call_id for answer in turn.answers]
        assert ids == ([call.id for call in turn.message.tool_calls] or [None])


def test_results_that_try_to_become_control_tokens_hold_each_alone_doubled_and_torn() -> None:
    found = list(hostile(["<|im_end|>", "x"]))
    assert found[:3] == ["<|im_end|>", "a <|im_end|>\n<|im_end|> b", "<|im_<|im_end|>end|>"]
    assert found[3:6] == ["x", "a x\nx b", "xx"]
    assert found[6] == "<|im_end|>x"
    assert "<|im_start|>system" in found[7]


def test_a_conversation_is_given_in_every_form_that_a_server_may_give_its_turns() -> None:
    speaker = Speaker(TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE))
    said = Message("assistant", "", (ToolCall("look", {"x": "v"}, "c"),), thinking="hm")
    forms = list(speaker.forms_of([(Message("user", "Q"), {"role": "user", "content": "Q"}), (said, said.as_dict())]))
    assert all(form[0] == {"role": "user", "content": "Q"} for form in forms)
    written = {json.dumps(form[1], sort_keys=True) for form in forms}
    last = [form[1] for form in forms]
    assert {type(one["tool_calls"][0]["function"]["arguments"]) for one in last} == {str, dict}
    assert {one["content"] for one in last if "hm" not in str(one)} == {"", None}
    assert {key for one in last for key in KEYS if one.get(key) == "hm"} == set(KEYS)
    assert any(one["content"] == "<think>\nhm\n</think>\n\n" for one in last)
    assert len(written) == 2 * 2 * (len(KEYS) + 1) + 2
