"""A dialect that a spec defines is checked for meaning: nothing contradicts itself, and what is written reads back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlenv import dialects
from rlenv.dialects.built_in import FAMILIES, row_of
from rlenv.dialects.meaning import BODIES, bodies_of, meaning_findings
from rlenv.dialects.roundtrip import round_trip_findings
from rlenv.language.dialect import CallSpec, ChatSpec, DialectSpec
from rlenv.messages import Message, ToolCall
from rlenv.testing.dialects import check_dialect

# Families that nobody has: each has to be free of faults as it stands, and to keep all laws.
INVENTED: dict[str, dict[str, Any]] = {
    "JSON between marks": {"calls": {"open": "<do>", "close": "</do>", "name_key": "tool", "arguments_key": "with"}},
    "a list of calls": {"calls": {"open": "⟨", "close": "⟩", "shape": "list"}},
    "calls by name": {"calls": {"open": "<use>", "close": "</use>", "by_name": True, "between": "\n"}},
    "JSON that ends by itself": {"calls": {"open": "CALL ", "between": "\n"}},
    "a name, then JSON": {
        "calls": {"body": "name_json", "open": "@@", "after_name": "(", "after_arguments": ")", "close": "@@end"}
    },
    "names in a section": {
        "calls": {"body": "name_json", "open": "<c>", "after_name": "<a>", "close": "</c>"},
        "section_open": "<cs>",
        "section_close": "</cs>",
    },
    "Python behind a mark": {"calls": {"body": "pythonic", "open": "‹run›", "close": "‹/run›"}},
    "Python, a call a line": {"calls": {"body": "pythonic", "open": "<py>", "close": "</py>", "separator": "\n"}},
    "Python at the start, or behind a mark": {
        "calls": [{"body": "pythonic", "at_start": True}, {"body": "pythonic", "open": "<py>", "close": "</py>"}]
    },
    "tags": {
        "calls": {
            "body": "tagged", "open": "<run ", "name_close": ">", "close": "</run>", "key_open": "<set ",
            "key_close": ">", "value_close": "</set>", "value_pad": "\n", "name_pad": "\n", "trim": "newline",
        }
    },
    "keys and values": {
        "calls": {
            "body": "tagged", "open": "<go>", "close": "</go>", "key_open": "<k>", "key_close": "</k>",
            "value_open": {"<v>": "schema"}, "value_close": "</v>",
        }
    },
    "Gemma's": {"calls": {"body": "gemma", "open": "<c>", "close": "</c>", "before_name": "run:", "quote": "<q>"}},
    "one text": {"calls": {"body": "text", "open": "<ask>", "close": "</ask>", "tool": "search"}},
    "all in one turn": {
        "calls": {"open": "<do>", "close": "</do>"},
        "chat": {"same_turn": True, "result": "\n<got>{content}</got>\n", "reply": "\n{content}\n"},
    },
    "thinking of its own": {
        "calls": {"open": "<do>", "close": "</do>"},
        "thinking_marks": {"open": "<|muse>", "close": "<muse|>"},
    },
    "turns of its own": {
        "calls": {"open": "<do>", "close": "</do>"},
        "chat": {
            "begin": "<go>", "turn": "⟦{role}⟧{content}⟦/⟧\n", "roles": {"assistant": "zorb"},
            "result": "{name} gave: {content}", "result_role": "tool", "results_joined": None,
            "turns": {"tool": "⟦out⟧{content}⟦/⟧\n"},
            "tools": 'Tools:\n{tools}\nWrite {"name": …} like this: {example}',
        },
    },
}  # fmt: skip


def spec(**given: Any) -> DialectSpec:
    return DialectSpec.model_validate(given)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_built_in_row_contradicts_itself_and_all_that_it_writes_reads_back(name: str) -> None:
    row = row_of(name)
    assert list(meaning_findings(row, row)) == []
    assert list(round_trip_findings(row)) == []


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("name", INVENTED)
def test_a_family_that_hangs_together_has_no_faults_and_keeps_the_laws(name: str) -> None:
    given_spec = spec(**INVENTED[name])
    assert dialects.findings_of(given_spec) == []
    texts = [{"query": "cats"}, {"query": "two words"}]
    dialect = dialects.inline(given_spec)
    if name == "one text":
        check_dialect(dialect, arguments=texts)
    else:
        check_dialect(dialect)


def test_every_key_of_calls_says_which_bodies_read_it() -> None:
    for key in CallSpec.model_fields:
        assert set(bodies_of(key)) <= set(BODIES), key
    assert bodies_of("open") == BODIES
    assert bodies_of("key_open") == ("tagged",)
    assert bodies_of("starts") == ("json", "name_json", "pythonic", "tagged")


@pytest.mark.parametrize("body", BODIES)
def test_a_key_that_a_body_does_not_read_is_a_fault_of_that_body(body: str) -> None:
    for key, field in CallSpec.model_fields.items():
        value = field.get_default(call_default_factory=True)
        found = dialects.contradictions(spec(calls={"body": body, "open": "<a>", key: value}))
        strange = [finding for finding in found if finding.path[-1] == key and "read only with body" in finding.message]
        assert bool(strange) == (body not in bodies_of(key)), (body, key)


WRITES_CALLS = {"calls_behind", "content_behind", "said", "said_before"}


@pytest.mark.parametrize("key", [key for key in ChatSpec.model_fields if key not in WRITES_CALLS])
def test_a_key_of_chat_is_idle_beside_a_chat_template(key: str) -> None:
    value = ChatSpec.model_fields[key].get_default(call_default_factory=True)
    found = dialects.contradictions(spec(chat_template="own.jinja", chat={key: value}))
    assert [finding.path for finding in found if "beside a chat template" in finding.message] == [("chat", key)]


@pytest.mark.parametrize(
    ("given_row", "place"),
    [
        ({"calls": {"close": "</do>"}}, "calls.open"),
        ({"calls": [{"open": "<a>"}, {"open": ""}]}, "calls.1.open"),
        ({"chat": {"result": "<seen/>"}}, "chat.result"),
        ({"chat": {"result": "<seen>{contents}</seen>"}}, "chat.result"),
        ({"chat": {"turn": "<{role}>"}}, "chat.turn"),
        ({"chat": {"turns": {"user": "You: "}}}, "chat.turns.user"),
        ({"chat": {"same_turn": True, "result": "{content}"}, "calls": {"open": "<a>"}}, "calls.close"),
        ({"chat": {"reply": "{content}"}}, "chat.reply"),
        ({"calls": {"open": "<a>", "close": "<a>"}}, "calls.close"),
        ({"calls": [{"open": "<a>"}, {"open": "<a>", "starts": "["}]}, "calls.1.open"),
        ({"calls": {"open": "<a>", "close": "</a>", "name_key": ""}}, "calls.name_key"),
        ({"calls": {"open": "<a>", "close": "</a>", "arguments_key": []}}, "calls.arguments_key"),
        ({"calls": {"open": "<a>", "close": "</a>", "arguments_key": "name"}}, "calls.name_key"),
        ({"thinking_marks": {"open": "<t>", "close": ""}}, "thinking_marks.close"),
        ({"thinking_marks": {"open": "<t>", "close": "<t>"}}, "thinking_marks.close"),
        ({"thinking_marks": {"open": "<t>", "close": "</t>", "written": "{thinking}"}}, "thinking_marks.written"),
        ({"section_open": "<s>"}, "section_open"),
        ({"section_close": "</s>"}, "section_close"),
        ({"lenient": ["bare_calls"]}, "lenient.0"),
        ({"lenient": ["open_calls", "unwrap"]}, "lenient.1"),
        ({"base": "search_r1", "thinking": False}, "thinking"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_found_at_its_key(given_row: dict[str, Any], place: str) -> None:
    assert ".".join(map(str, dialects.findings_of(spec(**given_row))[0].path)) == place


def test_the_marks_of_thinking_say_how_it_is_written() -> None:
    dialect = dialects.inline(spec(thinking_marks={"open": "<|muse>", "close": "<muse|>"}))
    said = Message("assistant", "<|muse>hm<muse|>So.")
    shown = dialect.render_prompt([Message("user", "Q"), said, Message("tool", "R")], ())
    assert "<|muse>\nhm\n<muse|>\n\nSo." in shown
    assert "<think>" not in shown


def test_a_name_that_differs_in_its_version_alone_is_not_offered_as_the_fix() -> None:
    assert dialects.unknown("olmo9") == (
        "there is no dialect 'olmo9'",
        "of that family there is olmo3; formats differ from version to version",
    )
    assert dialects.unknown("qwen3_code")[1] == "did you mean 'qwen3_coder'?"
    assert dialects.unknown("phi5")[1].startswith("names that begin alike: phi4_mini_json;")
    assert dialects.unknown("llama")[1].startswith("names that begin alike: llama3_json, llama4_json, ")
    assert dialects.unknown("zorb", is_base=True)[1].startswith("`rlenv list dialects` lists the ")


MARKS = st.sampled_from(
    [
        "",
        "<a>",
        "</a>",
        "<b>",
        "</b>",
        "{",
        "[",
        "\n",
        " ",
        "a",
        "|",
        "s",
        "<think>",
        '"',
        "'",
        ":",
        "(",
        "```",
        "<",
        ">",
    ]
)


def calls() -> st.SearchStrategy[dict[str, Any]]:
    """Forms of calls with keys of their own body, and marks of every kind."""

    def of(body: str) -> st.SearchStrategy[dict[str, Any]]:
        keys = [
            key for key, field in CallSpec.model_fields.items()
            if body in bodies_of(key) and field.get_default(call_default_factory=True) in ("", ())
        ]  # fmt: skip
        return st.fixed_dictionaries({"body": st.just(body), "open": MARKS, "close": MARKS}).flatmap(
            lambda base: st.dictionaries(st.sampled_from(keys), MARKS, max_size=6).map(lambda more: {**base, **more})
        )

    return st.sampled_from(BODIES).flatmap(of)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.one_of(calls(), st.lists(calls(), min_size=1, max_size=3)),
    st.fixed_dictionaries({}, optional={"open": MARKS, "close": MARKS}),
)
def test_whatever_marks_are_given_the_check_ends_and_what_it_lets_pass_reads_back(
    base: str, forms: Any, thinking: dict[str, str]
) -> None:
    try:
        row = spec(base=base, calls=forms, thinking_marks=thinking)
    except ValidationError:
        return
    if dialects.findings_of(row):
        return
    dialect = dialects.inline(row)
    form = row.calls if isinstance(row.calls, CallSpec) else row.calls[0]
    if form.body != "text":
        call = ToolCall("search", {"query": "how are you?", "limit": 3})
        text = dialect.render_action(Message("assistant", "", (call, call)))
        schema = {"search": {"parameters": {"properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}}}
        read = [(one.name, getattr(one, "arguments", None)) for one in dialect.parse(text, schema).calls]
        assert read == [("search", call.arguments)] * 2


def test_a_prompt_that_opens_a_thought_leaves_its_end_to_the_message() -> None:
    for base in ("hermes", "longcat"):
        assert dialects.findings_of(spec(base=base, thinking_open=True)) == []
