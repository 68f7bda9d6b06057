"""A document to a typed spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.errors import SpecError
from rlenv.language.document import read_source
from rlenv.language.loader import load_spec
from rlenv.language.schema import json_schema
from rlenv.language.type_faults import ELSEWHERE, describe, join_options
from rlenv.language.yamlwords import FORMER
from rlenv.tools.calculator import CalculatorSpec

TEXT = """
rlenv: 1
name: small
tasks:
  train: {path: rows.jsonl, limit: 3}
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator, timeout_s: 2}
rewards:
  correct: {kind: rule, rule: exact_match}
  mine: {kind: rule, function: "functions.py:score"}
oracle:
  - call: {calculate: {expression: 1+1}}
  - call: [{calculate: {expression: 1+1}}, {calculate: {expression: 2+2}}]
  - say: done
"""


def write(folder: Path, text: str = TEXT, name: str = "spec.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_entries_have_the_class_of_their_kind(tmp_path: Path) -> None:
    loaded = load_spec(write(tmp_path))
    assert isinstance(loaded.spec.tools["calculate"], CalculatorSpec)
    assert loaded.spec.tools["calculate"].timeout_s == 2
    assert type(loaded.spec.rewards["correct"]).__name__ != type(loaded.spec.rewards["mine"]).__name__
    assert len(loaded.spec.steps) == 3
    assert loaded.base_of("tasks.train.path") == tmp_path


def test_the_digest_depends_on_content_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = load_spec(write(tmp_path)).digest
    assert load_spec(write(tmp_path / "other", "# a comment\n" + TEXT)).digest == first
    assert load_spec(write(tmp_path, "extends: other/spec.yaml\n", "child.yaml")).digest == first
    assert load_spec(write(tmp_path), set={"limits.turns": 3}).digest != first
    assert len(first) == 64


def test_all_faults_are_reported_at_once_in_order_of_place(tmp_path: Path) -> None:
    text = TEXT.replace("limit: 3", "limit: 0").replace("timeout_s", "timeout").replace("say: done", "say: 3")
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, text))
    assert [fault.path for fault in caught.value.faults] == [
        "tasks.train.limit",
        "tools.calculate.timeout",
        "oracle.2.say",
    ]


def test_faults_of_what_was_set_come_first(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, TEXT.replace("limit: 3", "limit: 0")), set={"limits.turns": 0})
    assert [fault.path for fault in caught.value.faults] == ["limits.turns", "tasks.train.limit"]


def test_a_broken_entry_hides_no_other_fault_and_makes_none(tmp_path: Path) -> None:
    text = TEXT.replace("{kind: rule, rule: exact_match}", "exact_match").replace(
        '{kind: rule, function: "functions.py:score"}', "{kind: none}"
    )
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, text))
    assert [fault.path for fault in caught.value.faults] == ["rewards.correct", "rewards.mine.kind"]


def test_an_override_reaches_the_spec(tmp_path: Path) -> None:
    loaded = load_spec(write(tmp_path), set={"tasks.train.limit": "7", "vars.data": "x"})
    assert loaded.spec.tasks["train"].limit == 7
    assert loaded.spec.vars == {"data": "x"}


def test_a_document_is_read_without_being_checked(tmp_path: Path) -> None:
    assert read_source(write(tmp_path, "nonsense: true\n")).data == {"nonsense": True}


@pytest.mark.slow(but=30)
@pytest.mark.parametrize("value", ["text", "3", "[1]", "null", "{}", "{1: 2}", "true", "[[]]"])
@pytest.mark.parametrize(
    "key",
    [
        "tasks",
        "tasks.train",
        "prompt",
        "tools",
        "tools.calculate",
        "rewards",
        "rewards.correct",
        "resources",
        "oracle",
        "limits",
        "answer",
        "observation",
        "calls",
        "vars",
        "name",
        "oracle.0",
        "oracle.0.call",
        "rewards.correct.rule",
    ],
)
def test_values_of_any_type_are_faults_and_never_other_errors(tmp_path: Path, key: str, value: str) -> None:
    try:
        load_spec(write(tmp_path), set={key: value})
    except SpecError as error:
        for fault in error.faults:
            assert fault.message
            assert fault.path


FORMER_TEXT = """
rlenv: 1
name: small
tasks: {train: {rows: [{answer: "1"}]}}
prompt: {user: "?"}
tools: {say: {kind: command, ARGV: [echo, hi], STATUS: [0]}}
rewards: {correct: {kind: rule, rule: contains, MATCH: MODE}}
"""
OLD = {"ARGV": "argv", "STATUS": "expect_exit", "MATCH": "match"}
NEW = {"ARGV": "command", "STATUS": "expect", "MATCH": "mode"}


def named(folder: Path, *tables: dict[str, str], name: str = "spec.yaml") -> Path:
    text = FORMER_TEXT
    for was, word in [pair for table in tables for pair in table.items()]:
        text = text.replace(was, word)
    return write(folder, text, name)


def test_a_key_is_read_by_the_name_that_it_had(tmp_path: Path) -> None:
    old, new = (
        load_spec(named(tmp_path, names, {"MODE": "all"}, name=f"{names['ARGV']}.yaml")) for names in (OLD, NEW)
    )
    assert old.spec == new.spec
    found = old.document.former()
    assert [(one.line, one.level, one.code) for one in found] == [(6, "warning", "former-name")] * 2 + [
        (7, "warning", "former-name")
    ]
    assert "'argv' is called 'command' now" in found[0].message
    assert not new.document.former()
    assert old.document.written()["tools"]["say"]["argv"] == ["echo", "hi"]


def test_a_fault_below_a_former_name_is_at_its_place(tmp_path: Path) -> None:
    faults = []
    for names in (OLD, NEW):
        with pytest.raises(SpecError) as caught:
            load_spec(named(tmp_path, {**names, "MATCH": "mode" if names is NEW else "match"}, {"MODE": "some"}))
        faults.append([(one.line, one.message, one.hint) for one in caught.value.faults])
    assert faults[0] == faults[1]


def test_the_later_name_of_a_key_wins_whatever_name_it_has(tmp_path: Path) -> None:
    named(tmp_path, NEW, {"MODE": "all"}, name="base.yaml")
    child = write(tmp_path, "extends: base.yaml\ntools: {say: {argv: [ls]}}\n", "child.yaml")
    assert load_spec(child).spec.tools["say"].command == ("ls",)  # type: ignore[attr-defined]
    loaded = load_spec(child, set={"tools.say.argv": ["pwd"]})
    assert loaded.spec.tools["say"].command == ("pwd",)  # type: ignore[attr-defined]
    assert loaded.document.overridden == ("tools.say.command",)


def test_a_mapping_has_a_key_once(tmp_path: Path) -> None:
    path = write(tmp_path, FORMER_TEXT.replace("ARGV: [echo, hi]", "argv: [a], command: [b]"))
    with pytest.raises(SpecError, match="found 'command' beside 'argv'; both are 'command'"):
        load_spec(path)


def test_every_former_name_leads_to_a_key_and_is_none() -> None:
    known = {key for entry in json_schema()["$defs"].values() for key in entry.get("properties", ())}
    for words in FORMER.values():
        assert set(words.values()) <= known
        assert not set(words) & set(words.values())


def test_a_key_of_another_library_is_told_where_this_language_says_it(tmp_path: Path) -> None:
    theirs = [key for key in ELSEWHERE if "." not in key]
    text = TEXT.replace("{kind: calculator,", "{kind: mcp, url: 'http://127.0.0.1:9', args: [x],")
    with pytest.raises(SpecError) as raised:
        load_spec(write(tmp_path, text + "".join(f"{key}: x\n" for key in theirs)))
    told = {fault.where: fault.hint for fault in raised.value.faults}
    assert told.pop("tools.calculate.args") == "write it under 'command'"
    assert told == {key: f"write it under '{ELSEWHERE[key]}'" for key in theirs}
    known = json_schema()["properties"]
    assert {ELSEWHERE[key].partition(".")[0] for key in theirs} <= set(known)


@pytest.mark.parametrize(
    ("set_", "message", "hint"),
    [
        ({"limits.turns": 0}, "found 0; expected a number of 1 or more", "write 1 or more"),
        ({"limits.turns": 1.0}, "found 1.0; expected", "write 1"),
        ({"limits.turns": True}, "found true; expected", "write a number such as 8"),
        ({"limits.turns": None}, "found nothing; expected", "write a value, or remove the key"),
        ({"limits.episode_s": 0}, "expected a number above 0", "write 1"),
        ({"tools.calculate.mutates": "yes"}, 'found the text "yes"; expected', "write true"),
        ({"tools.calculate.mutates": "OFF"}, 'found the text "OFF"; expected', "write false"),
        ({"tools.calculate.mutates": "perhaps"}, 'found the text "perhaps"; expected', ""),
        ({"description": 3}, "found 3; expected text", "put it in quotes"),
        ({"description": "{}"}, "found an empty mapping; expected text", 'put a template in quotes: "{{ … }}"'),
        ({"answer.from": "tga"}, 'found the text "tga"; expected', "did you mean 'tag'"),
        ({"answer.from": 3}, "found 3; expected", "write tag"),
        ({"limits.trns": 3}, "unknown key", "did you mean 'turns'?"),
        ({"max_turns": 3}, "unknown key", "write it under 'limits.turns'"),
        ({"rewards.correct.clip": "[0]"}, "a list of 1; expected one that is longer", "item 2 too, as in [0, 1]"),
        ({"name": "My Env!"}, "expected text that matches", "write 'my-env'"),
        ({"name": "Wörter"}, "expected text that matches", "write 'worter'"),
        ({"name": "!!!"}, "expected text that matches", ""),
    ],
)  # fmt: skip
def test_a_fault_names_what_was_found_what_was_expected_and_the_nearest_fix(
    tmp_path: Path, set_: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path), set=set_)
    (fault,) = caught.value.faults
    assert (message in fault.message, hint in fault.hint, bool(fault.hint)) == (True, True, bool(hint)), fault


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a", 'the text "a"'),
        ("x" * 60, f'the text "{"x" * 60}"'),
        ("x" * 61, f'the text "{"x" * 57}..."'),
        ("é\n", 'the text "é\\n"'),
        (None, "nothing"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (1.5, "1.5"),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        ([], "an empty list"),
        ([1, 2], "a list of 2"),
    ],
)
def test_a_value_is_named_as_a_person_would(value: object, name: str) -> None:
    assert describe(value) == name


@pytest.mark.parametrize(
    ("count", "most", "shown"),
    [
        (0, 3, ""),
        (1, 3, "a"),
        (2, 3, "a or b"),
        (3, 3, "a, b or c"),
        (4, 3, "a, b, c and 1 more"),
        (6, 3, "a, b, c and 3 more"),
    ],
)
def test_options_are_listed_up_to_a_number(count: int, most: int, shown: str) -> None:
    assert join_options("abcdef"[:count], most=most) == shown
    assert join_options(map(str, range(12))).endswith("10 or 11")
    assert join_options(map(str, range(13))).endswith("11 and 1 more")
