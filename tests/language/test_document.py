"""YAML text to data and spans."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlenv._base.text import nearest
from rlenv.errors import SpecError
from rlenv.language.document import override_value, parse_source, read_source
from rlenv.language.yamltree import MAX_DEPTH


def fault_of(text: str) -> Any:
    with pytest.raises(SpecError) as caught:
        parse_source(text)
    (fault,) = caught.value.faults
    return fault


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("n", "n"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("+12", 12),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("~", None),
        ("", None),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("'3'", "3"),
        ("!!str 3", "3"),
    ],
)
def test_plain_values_are_read_by_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    read = parse_source(f"key: {text}").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert parse_source("on: 1\n2: 2\nnull: 3\n").data == {"on": 1, "2": 2, "null": 3}


def test_spans_count_lines_and_characters_from_one() -> None:
    document = parse_source("a:\n  - é: {k: 1, other: 2}\n")
    assert (document.key_span("a.0.é.other").line, document.key_span("a.0.é.other").column) == (2, 15)
    assert (document.value_span("a.0.é.other").line, document.value_span("a.0.é.other").column) == (2, 22)


def test_a_missing_key_is_placed_at_the_nearest_parent() -> None:
    document = parse_source("a:\n  b: {c: 1}\n")
    assert document.value_span("a.b.x.y") == document.key_span("a.b")


def test_a_place_inside_a_text_is_found_by_line_and_by_name() -> None:
    document = parse_source("t: |\n  one\n\n    {{ task.abc }} {{ task.a }}\n")
    fault = document.fault("t", "no", find="task.a")
    assert (fault.line, fault.column) == (4, 23)
    assert fault.quote == "    {{ task.abc }} {{ task.a }}"
    assert (document.fault("t", "no", line=1).line, document.fault("t", "no", line=3).column) == (2, 5)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: x\n")
    document = read_source(file)
    assert document.data == {"name": "x"}
    assert document.key_span("name").column == 1


def test_text_that_is_not_utf8_is_refused_at_its_place(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"name: x\ndescription: caf\xe9\n")
    with pytest.raises(SpecError) as caught:
        read_source(file)
    (fault,) = caught.value.faults
    assert (fault.line, fault.column, fault.hint) == (2, 17, "save the file as UTF-8")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 20_000 + "x", "a: " + "[" * 70])
def test_deep_nesting_is_a_fault_and_never_a_recursion_error(text: str) -> None:
    assert "nested deeper" in fault_of(text).message or "YAML" in str(fault_of(text)) or fault_of(text).hint


def test_nesting_up_to_the_limit_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert parse_source("a: " + "[" * depth + "]" * depth).data["a"]
    assert fault_of("a: " + "[" * (depth + 1) + "]" * (depth + 1)).message == f"nested deeper than {MAX_DEPTH} levels"


def test_aliases_cannot_blow_up_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "aliases" in fault_of("\n".join(lines)).message


def test_aliases_that_are_small_are_written_out() -> None:
    assert parse_source("a: &x {k: [1]}\nb: *x\n").data == {"a": {"k": [1]}, "b": {"k": [1]}}


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "empty"),
        ("---\n", 1, 1, "empty"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "stands twice"),
        ("a: 1\n---\nb: 1\n", 2, 1, "second document"),
        ("a: {<<: 1}\n", 1, 5, "merge key"),
        ("- a\n", 1, 1, "a list"),
        ("a: \x01\n", 1, 4, "U+0001"),
        ('a: "\\uD800"\n', 1, 4, "surrogate"),
        ('a: "\\U00FFFFFF"\n', 1, 7, "names no character"),
        ("a: {{ x }}\n", 1, 5, "where a key is expected"),
        (f"a: {'9' * 5000}\n", 1, 4, "too long"),
    ],
)
def test_what_is_not_part_of_the_language_is_refused_at_its_place(text: str, line: int, column: int, says: str) -> None:
    fault = fault_of(text)
    assert (fault.line, fault.column) == (line, column)
    assert says in fault.message
    assert fault.hint


def test_extends_merges_mappings_and_replaces_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/base.yaml").write_text("limits: {turns: 3, tool_calls: 4}\nsteps: [1, 2]\npath: data\n")
    child = tmp_path / "child.yaml"
    child.write_text("extends: sub/base.yaml\nlimits: {turns: 5}\nsteps: [3]\n")
    document = read_source(child)
    assert document.data == {
        "limits": {"turns": 5, "tool_calls": 4},
        "steps": [3],
        "path": "data",
        "extends": "sub/base.yaml",
    }
    assert document.value_span("limits.turns").file == str(child)
    assert document.value_span("limits.tool_calls").file == str(tmp_path / "sub/base.yaml")
    assert document.base_of("path") == tmp_path / "sub"
    assert document.files == (child, tmp_path / "sub/base.yaml")


def test_of_several_parents_the_later_wins_and_null_takes_a_mapping_out(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "tools: {add: {kind: a, n: 1}, quit: {kind: q}}\nlimits: {turns: 2}\n"
        "user: {kind: u, stop: S}\nvars: {x: {y: 1}}\n"
    )
    (tmp_path / "more.yaml").write_text("extends: base.yaml\ntools: {add: {n: 2, m: 3}}\nname: more\n")
    other = tmp_path / "other.yaml"
    other.write_text("tools: {look: {kind: l}}\nname: other\nlimits: {calls: 3}\n")
    top = tmp_path / "top.yaml"
    top.write_text(
        "extends: [more.yaml, other.yaml]\n"
        "tools: {quit: null, add: {extends: null, kind: a, k: 1}}\nuser: {stop: null}\nvars: {x: null}\n"
    )
    assert read_source(top).data == {
        "extends": ["more.yaml", "other.yaml"],
        "tools": {"add": {"kind": "a", "k": 1}, "look": {"kind": "l"}},
        "limits": {"turns": 2, "calls": 3},
        "user": {"kind": "u", "stop": None},  # a value that is null is one
        "vars": {"x": None},
        "name": "other",
    }
    assert "limits" not in read_source(top, set={"limits": None}).data
    top.write_text("extends: [more.yaml, gone.yaml]\n")
    with pytest.raises(SpecError, match="there is no file") as caught:
        read_source(top)
    assert (caught.value.faults[0].line, caught.value.faults[0].column) == (1, 22)


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: ./a.yaml\n")
    with pytest.raises(SpecError, match=r"circle: a.yaml -> b.yaml -> a.yaml"):
        read_source(tmp_path / "a.yaml")


@pytest.mark.parametrize(("others", "is_read"), [(63, True), (64, True), (65, False)])
def test_a_chain_of_specs_is_read_up_to_a_length(tmp_path: Path, others: int, is_read: bool) -> None:
    (tmp_path / f"{others}.yaml").write_text("name: last\n")
    for number in range(others):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    if is_read:
        assert read_source(tmp_path / "0.yaml").get("name") == "last"
    else:
        with pytest.raises(SpecError, match="more than 64 specs extend each other"):
            read_source(tmp_path / "0.yaml")


def test_overrides_replace_values_and_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "work").mkdir()
    file = tmp_path / "specs/a.yaml"
    file.write_text(
        "vars: {data: d}\ntasks:\n  train: {path: a.jsonl}\n  test: {path: '{{ vars.data }}/b.jsonl'}\nlist: [1, 2]\n"
    )
    monkeypatch.chdir(tmp_path / "work")
    document = read_source(
        file, set={"tasks.train.path": "mine.jsonl", "vars.data": Path("e"), "limits.turns": "3", "list.1": 7}
    )
    assert document.data["tasks"]["train"] == {"path": "mine.jsonl"}
    assert document.data["limits"] == {"turns": 3}
    assert document.data["list"] == [1, 7]
    assert document.base_of("tasks.train.path") == tmp_path / "work"
    assert document.base_of("tasks.test.path") == tmp_path / "work"
    assert document.base_of("tasks.test") == tmp_path / "specs"
    fault = document.fault("limits.turns", "no")
    assert str(fault) == "--set limits.turns: limits.turns: no"


@pytest.mark.parametrize(
    ("key", "says"), [("name.x", "no mapping"), ("list.9", "index"), ("a..b", "empty key"), ("extends", "extends")]
)
def test_overrides_that_do_not_fit_are_refused(tmp_path: Path, key: str, says: str) -> None:
    (tmp_path / "a.yaml").write_text("name: x\nlist: [1]\n")
    with pytest.raises(SpecError, match=says):
        read_source(tmp_path / "a.yaml", set={key: 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("[1, a]", [1, "a"]),
        ("{a: 1}", {"a": 1}),
        ('"3"', "3"),
        ("", ""),
        ("Task: add", "Task: add"),
        ("{{ task.q }}", "{{ task.q }}"),
        ("- a", "- a"),
        ("true", True),
        ("a.jsonl", "a.jsonl"),
    ],
)
def test_the_text_of_an_override_is_a_scalar_or_stands_in_brackets(text: str, value: Any) -> None:
    assert override_value("k", text) == value


def test_an_override_with_an_open_bracket_is_refused() -> None:
    with pytest.raises(SpecError, match="--set"):
        override_value("a", "[1")


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.yaml").write_text("a: 1")
    with pytest.raises(SpecError, match=r"did you mean 'gsm8k.yaml'"):
        read_source(tmp_path / "gsmk8.yaml")


def test_the_nearest_option_ignores_case_and_dashes() -> None:
    assert nearest("Timeout-S", ["timeout_s", "tag"]) == "timeout_s"
    assert nearest("qestion", ["question", "answer"]) == "question"
    assert nearest("zzz", ["question"]) is None
    assert nearest("nope.jsonl", ["run.json", "d_code.jsonl"]) is None, "how the names of files end says nothing"
    assert nearest("row.json", ["run.json", "rows.jsonl"]) == "rows.jsonl"


def test_words_that_take_long_to_compare_are_near_nothing() -> None:
    assert nearest("n" * 101, ["n" * 101]) is None
    assert nearest("nam", [f"name{number}" for number in range(5_001)]) is None


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]))
)
_KEYS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
_DATA = st.dictionaries(
    _KEYS,
    st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4)),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(_DATA)
@settings(max_examples=150, deadline=None)
def test_data_survives_a_round_trip_through_yaml(data: dict[str, Any]) -> None:
    # Texts are quoted, since PyYAML writes plain ones by the rules of YAML 1.1.
    text = yaml.dump(data, Dumper=_Quoting, allow_unicode=True)
    document = parse_source(text)
    assert document.data == data
    for key in data:
        assert document.has((key,))
        assert document.value_span((key,)).line >= 1


class _Quoting(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@pytest.mark.slow
@given(st.text() | st.text(alphabet="a:-[]{}&*!|>'\"%@`#?,~\\xuU019 \n\t<\x00\x85\u2028") | st.binary().map(repr))
@example('a: "\\U12345678"')
@example("? [a]\n: b")
@example("a: !<%E9> b")
@example("%TAG ! tag:x\n---\na: b")
@example("a: |9999999999999999999999\n b")
@settings(max_examples=400, deadline=None)
def test_no_text_raises_anything_but_a_spec_error(text: str) -> None:
    try:
        document = parse_source(text)
    except SpecError as error:
        for fault in error.faults:
            assert fault.message
            assert fault.line >= 1
            assert fault.column >= 1
            assert str(fault)
    else:
        assert isinstance(document.data, dict)


@given(st.binary())
@settings(max_examples=100, deadline=None)
def test_no_bytes_in_a_file_raise_anything_but_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.mktemp("bytes") / "a.yaml"
    file.write_bytes(raw)
    with suppress(SpecError):
        read_source(file)
