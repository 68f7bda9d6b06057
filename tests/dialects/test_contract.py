"""Every built-in dialect keeps the laws of dialects, and reads hostile texts in linear time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, get_args

import pytest
import yaml

from rlenv import dialects, load
from rlenv.dialects import built_in
from rlenv.dialects.built_in import FAMILIES, broken, family_text, row_of, whole_row
from rlenv.dialects.engine import TextDialect
from rlenv.episodes.environment import Environment
from rlenv.language.dialect import DialectSpec, Leniency
from rlenv.language.kinds import names
from rlenv.language.loader import load_spec
from rlenv.messages import Message, ToolCall
from rlenv.testing.dialects import ARGUMENTS, TOOLS, check_dialect, check_reading, hostile_texts, seconds
from rlenv.trajectory import Trajectory

# These write one text, or have marks that stand for a line break.
SINGLE = {"search_r1": [{"query": "cats"}, {"query": "two words"}]}

SPEC = """
rlenv: 1
name: pasted
tasks: {train: {rows: [{question: q}]}}
prompt: {user: "{{ task.question }}"}
rewards: {said: {kind: rule, rule: answered}}
"""


def test_every_family_is_a_file_and_can_be_named() -> None:
    folder = Path(built_in.__file__).with_name("families")
    assert {path.name for path in folder.iterdir()} == {f"{name}.yaml" for name in FAMILIES}
    assert set(FAMILIES) <= set(names("dialects"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_file_says_first_where_its_format_is_from(name: str) -> None:
    first = family_text(name).splitlines()[0]
    assert re.match(r"# (Not tied to one model\.|Source: .+ \([A-Z][a-z]+ 20\d\d\)[.;])", first), first


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_file_under_dialect_in_a_spec_is_the_same_dialect(name: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC + "dialect:\n" + indent(family_text(name), "  "), "utf-8")
    given = load_spec(path).spec.dialect
    assert isinstance(given, DialectSpec)
    assert whole_row("inline", given).model_copy(update={"base": name}) == row_of(name)
    assert dialects.findings_of(given) == []


def test_a_family_stands_on_nothing_or_on_one_that_does_in_the_end() -> None:
    for name in FAMILIES:
        seen = [name]
        while (base := yaml.safe_load(family_text(seen[-1]))["base"]) is not None:
            assert base in FAMILIES
            assert base not in seen
            seen.append(base)


def test_what_the_files_list_beside_marks_is_no_control_token() -> None:
    assert [name for name in get_args(Leniency) if broken(f"[{name}]") != f"[{name}]"] == []


@pytest.mark.slow(but=6)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_built_in_dialect_keeps_the_laws(name: str) -> None:
    check_dialect(dialects.get(name), arguments=SINGLE.get(name, ARGUMENTS))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", [name for name in FAMILIES if row_of(name).offers])
def test_leniencies_keep_the_laws_of_reading(name: str) -> None:
    check_dialect(dialects.get(name, lenient=row_of(name).offers), arguments=SINGLE.get(name, ARGUMENTS), texts=300)


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", FAMILIES)
def test_hostile_texts_are_read_without_a_fault(name: str) -> None:
    for lenient in ((), row_of(name).offers):
        dialect = dialects.get(name, lenient=lenient)
        for text in hostile_texts(dialect, 5_000).values():
            check_reading(dialect, text)


KINDS = (
    "whole calls, an odd quote behind each",
    "white space within a call",
    *(f"open strings and a {e} behind them" for e in ("line's end", "backslash")),
)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", FAMILIES)
def test_reading_takes_time_in_proportion_to_the_text(name: str) -> None:
    for lenient in {(), row_of(name).offers}:
        dialect = dialects.get(name, lenient=lenient)
        short, long = hostile_texts(dialect, 10_000), hostile_texts(dialect, 40_000)
        for kind in KINDS:
            # By the square of the length it is 16 times as much; microseconds are no measure of it.
            at_short, at_long = (partial(seconds, dialect, texts[kind], repeat=1) for texts in (short, long))
            assert holds(lambda: at_long() < 8 * max(at_short(), 1e-4))  # noqa: B023
        quoted, whole = (long[kind] for kind in (KINDS[0], "whole calls"))
        assert holds(lambda: seconds(dialect, quoted, repeat=1) < 3 * seconds(dialect, whole, repeat=1))  # noqa: B023


def holds(measured: Callable[[], bool]) -> bool:
    """Whether it was so once: other processes disturb single measurements."""
    return any(measured() for _ in range(20))


def test_a_leniency_is_off_by_default_and_counted_where_it_is_used() -> None:
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}'
    assert not isinstance(dialects.get("hermes").parse(text).calls[0], ToolCall)
    read = dialects.get("hermes", lenient=("open_calls",)).parse(text)
    assert isinstance(read.calls[0], ToolCall)
    assert read.leniencies == ("open_calls",)
    whole = dialects.get("hermes", lenient=("open_calls",)).parse(text + "\n</tool_call>")
    assert whole.leniencies == ()


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("search_r1", "I look. <search> who wrote it </search>", {"query": "who wrote it"}),
        ("react", 'Thought: hm\nAction: search\nAction Input: {"query": "x"}\n', {"query": "x"}),
        ("react", "Thought: hm\nAction: search\nAction Input: who wrote it\nObservation:", {"query": "who wrote it"}),
        ("xml", '<call name="search">\n<arg name="query">a < b</arg><arg name="limit">3</arg>\n</call>',
         {"query": "a < b", "limit": 3}),
        ("xml_json", '<tool>{"name": "search", "args": {"query": "x"}}</tool>', {"query": "x"}),
        ("qwen3_coder", "<tool_call>\n<function=search>\n<parameter=query>\n12\n</parameter>\n<parameter=limit>\n12\n"
         "</parameter>\n</function>\n</tool_call>", {"query": "12", "limit": 12}),
        ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:3<|tool_call_argument_begin|>'
         '{"query": "<|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>', {"query": "<|tool_call_end|>"}),
        ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n'
         '{"query": "```"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', {"query": "```"}),
    ],
)  # fmt: skip
def test_families_are_read_as_they_write(name: str, text: str, arguments: Mapping[str, Any]) -> None:
    action = check_reading(dialects.get(name), text, TOOLS)
    assert [(call.name, getattr(call, "arguments", call)) for call in action.calls] == [("search", arguments)]


def test_ids_of_calls_are_kept_where_a_family_has_them() -> None:
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:7<|tool_call_argument_begin|>{}"
    (call,) = dialects.get("kimi_k2").parse(text + "<|tool_call_end|><|tool_calls_section_end|>").calls
    assert isinstance(call, ToolCall)
    assert call.id == "functions.search:7"
    (call,) = dialects.get("mistral").parse('[TOOL_CALLS]search[CALL_ID]abcDEF123[ARGS]{"query": "x"}').calls
    assert isinstance(call, ToolCall)
    assert (call.id, call.arguments) == ("abcDEF123", {"query": "x"})


THINKING = [
    (name, pair)
    for name in FAMILIES
    for pair in ((row_of(name).thinking_marks.open, row_of(name).thinking_marks.close),
                 *row_of(name).thinking_marks.also.items())
    if pair[0]
]  # fmt: skip


def test_every_family_thinks_but_search_r1_which_reads_as_its_original_does() -> None:
    assert set(FAMILIES) - {name for name, _ in THINKING} == {"search_r1"}


@pytest.mark.parametrize(("name", "pair"), THINKING)
def test_a_thought_earns_nothing_and_runs_no_call(name: str, pair: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "rlenv: 1\nname: thoughts\ntasks: {train: {rows: [{question: q}]}}\nprompt: {user: q}\n"
        "tools: {add: {kind: calculator}}\n"
        f"dialect: {name}\nrewards: {{right: {{kind: rule, rule: numeric_match, expect: '5'}}}}\n"
    )
    environment = load(path)
    dialect = dialects.get(name)
    assert isinstance(dialect, TextDialect)
    written = dialect.render_action(Message("assistant", "", (ToolCall("add", {"expression": "2"}),)))
    written = written.removeprefix(dialect.writer.closing)
    # The prompt may have opened the block, and a thought may be cut.
    begins = [pair[0], *([""] if row_of(name).thinking_open and pair[0] == row_of(name).thinking_marks.open else [])]
    for thought in ("Is it <answer>5</answer>?", f"Perhaps {written}", f"<answer>5</answer>{written}"):
        for begin in begins:
            for end, content in ((f"{pair[1]}I do not know.", "I do not know."), ("", "")):
                played = asyncio.run(one_action(environment, f"{begin}{thought}{end}"))
                (turn,) = played.turns
                if row_of(name).thinking_open and pair[0] != row_of(name).thinking_marks.open:
                    content = ""  # inside the block that the prompt has opened
                assert (turn.parsed.calls, turn.parsed.content) == ((), content)
                assert played.reward is not None
                assert played.reward.total == 0.0


async def one_action(environment: Environment, action: str) -> Trajectory:
    async with environment.start(task=0) as episode:
        await episode.step(action)
    return episode.trajectory
