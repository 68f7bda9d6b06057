"""Validation: planted faults with their exact diagnostics, and what a valid spec promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.audit.golds import gold_readers, golds_of
from rlenv.checks import subject
from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.episodes.compile import compile_entries
from rlenv.episodes.environment import Environment, load
from rlenv.errors import Fault, SpecError
from rlenv.language.loader import load_spec
from rlenv.language.shipped import shipped
from rlenv.runs.locks.lock import lock_of
from rlenv.runs.recorded import expected_of
from rlenv.secrets import leave_open
from tests.support.environments import shipped_names
from tests.support.plug_ins import plug_in, plug_in_dialect

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "faults"
SPECS = Path(__file__).resolve().parents[2] / "specs"
PLANTED = sorted(GOLDEN.glob("*.yaml"))

HEAD = """
rlenv: 1
name: small
tasks:
  train: {rows: [{question: a, answer: b}]}
prompt: {user: "{{ task.question }}"}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        file = tmp_path / "spec.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return written


def test_at_least_forty_kinds_of_mistakes_are_planted() -> None:
    assert len(PLANTED) >= 40


@pytest.mark.slow(but=50)
@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_a_planted_fault_is_reported_at_its_place_with_a_fix(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    report = validate([file.name])
    found = "\n".join(map(str, report.faults)) + "\n"
    assert found.replace(str(GOLDEN), ".") == file.with_suffix(".expected").read_text(encoding="utf-8")
    for fault in report.faults:
        assert fault.hint, f"no fix is offered for: {fault}"
        assert 1 <= fault.column <= len(fault.quote) + 1
        assert (GOLDEN / fault.file).read_text(encoding="utf-8").splitlines()[fault.line - 1].rstrip() == fault.quote


def test_every_expected_file_has_its_spec() -> None:
    assert {file.stem for file in GOLDEN.glob("*.expected")} == {file.stem for file in PLANTED}


def _refused(file: str | Path) -> tuple[Fault, ...]:
    with leave_open():  # a spec is checked where its secrets need not be
        try:
            load(file)
        except SpecError as error:
            return error.faults
    return ()


@pytest.mark.slow(but=30)
@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_what_loading_refuses_is_reported_alike_by_validation(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    refused = _refused(file.name)
    assert set(refused) <= set(validate([file.name]).faults)


# Each line breaks an entry, or names one that is broken: `broken` of each group is.
BROKEN = """
resources:
  broken: {kind: sqlite, path: "{{ row.db }}"}
  shared: {kind: sqlite, path: "{{ task.db }}", scope: process}
  both: {kind: sqlite, path: a.sqlite, init: b.sql}
endpoints:
  broken: {base_url: here, model: m}
tools:
  broken: {kind: python, function: "none.py:none"}
  also: {kind: sql, resource: broken}
  wrong: {kind: sql, resource: brokn}
  asks: {kind: model, endpoint: broken, prompt: "{{ args.a }}", parameters: {a: string}}
  reads: {kind: command, command: [echo, "{{ arg.a }}"], parameters: {a: string}}
  open: {kind: http, url: "http://h/{{ args.a", parameters: {a: string}}
  typed: {kind: http, url: "http://h/", parameters: {a: strong}}
  schema: {kind: http, url: "http://h/", parameters: {type: object, properties: {a: {type: strong}}}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}", gate: used > 0 && used < 2}
  used: {kind: rule, rule: tool_called, tool: broken}
  unused: {kind: rule, rule: tool_called, tool: brokn, weight: .nan}
  shown: {kind: rule, rule: exact_match, expect: "{{ tsk.answer }}", range: [1, 0]}
  verified: {kind: verify, tool: calculate, arguments: {}, expect: 1, gate: nobody > 0}
  matched: {kind: rule, rule: regex, pattern: "("}
success: correct
dialect: herms
observation: {format: template, template: "{{ result"}
"""


def test_every_fault_of_compiling_is_one_fault_at_one_place(write: Write) -> None:
    file = write(HEAD.partition("rewards:")[0] + BROKEN)
    refused, reported = _refused(file), validate([file]).faults
    assert refused == compile_entries(load_spec(file), Environment).faults
    assert set(refused) <= set(reported)
    assert [fault.path for fault in refused] == [
        "resources.broken.path",
        "resources.shared.path",
        "resources.both",
        "endpoints.broken.base_url",
        "tools.broken.function",
        "tools.wrong.resource",
        "tools.reads.command.1",
        "tools.open.url",
        "tools.typed.parameters.a",
        "tools.schema.parameters",
        "rewards.correct.gate",
        "rewards.unused.tool",
        "rewards.unused.weight",
        "rewards.shown.expect",
        "rewards.shown.range",
        "rewards.verified.tool",
        "rewards.verified.gate",
        "rewards.matched.pattern",
        "success",
        "dialect",
        "observation.template",
    ]
    # One mistake is one fault: what validation adds stands elsewhere.
    assert not {fault.path for fault in set(reported) - set(refused)} & {fault.path for fault in refused}
    for fault in refused:
        assert fault.hint, f"no fix is offered for: {fault}"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", shipped_names())
def test_the_specs_that_ship_have_no_faults(name: str) -> None:
    assert validate([shipped()[name]]).faults == ()


def test_a_small_spec_is_valid_and_says_what_was_not_checked(write: Write) -> None:
    report = validate([write(HEAD)])
    assert report.is_valid
    assert "no oracle" in report.not_checked[0]


def test_rows_beyond_the_cap_are_named_as_not_checked(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(HEAD.replace("{rows: [{question: a, answer: b}]}", "{path: rows.jsonl}"))
    row = json.dumps({"question": "a", "answer": "b"})
    (file.parent / "rows.jsonl").write_text((row + "\n") * (subject.MAX_ROWS + 1) + "broken\n")
    report = validate([file])
    assert report.is_valid
    assert any("first 10,000 of 10,002 rows" in note for note in report.not_checked)


def test_a_guarded_column_that_some_rows_lack_is_no_fault(write: Write) -> None:
    text = HEAD.replace("{question: a, answer: b}", "{question: a, answer: b}, {question: c, answer: d, note: e}")
    guarded = "{% if task.note is defined %}{{ task.note }}{% endif %}{{ task.question }}"
    assert validate([write(text.replace("{{ task.question }}", guarded))]).is_valid


def test_faults_of_all_checks_and_files_are_reported_at_once(write: Write) -> None:
    file = write(HEAD + 'dialect: herms\nsuccess: corect >= 1\nanswer: {tag: "<a>"}\n')
    report = validate([file, GOLDEN / "bad_name.yaml"])
    assert report.files == 2
    assert [fault.path for fault in report.faults] == ["dialect", "success", "answer.tag", "name"]


def test_an_override_with_a_fault_is_shown_as_the_option(write: Write) -> None:
    report = validate([write(HEAD)], set={"limits.turns": 0, "tasks.train": {"path": "none.jsonl"}})
    assert [fault.file for fault in report.faults] == ["--set limits.turns", "--set tasks.train"]
    assert str(report.faults[0]).startswith("--set limits.turns: limits.turns: found 0;")


def test_the_command_prints_places_and_exits_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(GOLDEN / "bad_name.yaml")]) == 1
    printed = capsys.readouterr().out
    assert "bad_name.yaml:2:7: name: found" in printed
    assert printed.endswith("1 file: 1 fault\n")


def test_the_command_writes_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(GOLDEN / "bad_name.yaml"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == 1
    assert set(report["faults"][0]) == {"file", "line", "column", "path", "message", "hint", "level", "code"}
    assert [note.rpartition(": ")[2] for note in report["not_checked"]] == ["what the faults stand in the way of"]


def test_the_command_exits_with_zero_for_a_valid_spec(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write(HEAD)), "--strict", "--set", "prompt.system=Write <answer>…</answer>."]) == 0
    assert capsys.readouterr().out.endswith("1 file: no faults\n")


def test_the_example_of_the_language_reference_is_valid(write: Write) -> None:
    text = (SPECS.parent / "docs" / "language" / "spec.md").read_text(encoding="utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    assert validate([write(example)]).faults == ()


def test_a_key_error_of_a_plug_in_is_not_a_name_that_no_dialect_has(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in_dialect(tmp_path, "own", factory='lambda spec: {}["marks"]')
    monkeypatch.syspath_prepend(str(tmp_path))
    (fault,) = validate([write(HEAD + "dialect: own\nanswer: {tag: answer}\n")]).faults
    assert (fault.path, fault.message) == ("dialect", "it cannot be compiled: KeyError: 'marks'")


LIKE_EXACT_MATCH = """
from typing import Literal

from rlenv.language.kinds import Kind
from rlenv.rewards.rules import text


class AlikeSpec(text.ExactMatchSpec):
    rule: Literal["alike"]


KIND = Kind(AlikeSpec, text.EXACT_MATCH.factory, values=(0, 1), gold="expect", several=True, reads_answer=True)
"""
ASKED = HEAD.replace('"{{ task.question }}"', '"{{ task.question }} Put it into \\boxed{}."')


@pytest.mark.parametrize("rule", ["exact_match", "alike"])
def test_a_plug_in_s_rule_is_as_well_known_as_one_that_ships(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    plug_in(tmp_path, "rules", "alike", LIKE_EXACT_MATCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    (fault,) = validate([write(ASKED.replace("exact_match", rule) + "success: correct >= 2\n")]).faults
    assert (fault.where, fault.message) == ("success", "this can never hold: correct is 0 to 1")
    path = write(ASKED.replace("exact_match", rule))
    assert "answer-form" in {warning.code for warning in validate([path]).warnings}
    (reader,) = gold_readers(load(path))
    assert reader.is_list


WITH_A_TRUTH = """
from dataclasses import replace
from typing import Literal

from rlenv.language.kinds import Kind
from rlenv.rewards.rule import RuleSpec
from rlenv.rewards.rules import text


class TruthSpec(RuleSpec):
    rule: Literal["truthful"]
    truth: object = "{{ task.answer }}"


def compiled(name, spec, context):
    alike = text.ExactMatchSpec(kind="rule", rule="exact_match", expect=spec.truth)
    return replace(text.EXACT_MATCH.factory(name, alike, context), spec=spec)


KIND = Kind(TruthSpec, compiled, values=(0, 1), gold="truth", several=True, reads_answer=True)
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("rule", "key"), [("exact_match", "expect"), ("truthful", "truth")])
def test_a_gold_value_is_known_under_whatever_key_its_kind_reads_it(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, key: str
) -> None:
    """By what ships and by a plug-in: by validation, by the audit, and by the lock that the viewer reads."""
    plug_in(tmp_path, "rules", "truthful", WITH_A_TRUTH)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = ASKED.replace("exact_match, expect", f"{rule}, {key}")
    empty = write(spec.replace("answer: b", "answer: null"))
    assert f"rewards.correct.{key}" in {fault.path for fault in validate([empty]).faults}
    twice = write(spec.replace("rows: [", "rows: [{question: a, answer: c}, {question: d, answer: d}, "))
    assert "conflicting-rows" in {warning.code for warning in validate([twice]).warnings}
    signs = write(spec.replace("rows: [", "rows: [{question: x - 2, answer: c}, {question: x + 2, answer: d}, "))
    assert "conflicting-rows" not in {warning.code for warning in validate([signs]).warnings}
    path = write(spec)
    (reader,) = gold_readers(load(path))
    assert [gold.text for gold in golds_of((reader,), {"answer": "b"}, {})["correct"]] == ["b"]
    lock = lock_of(load(path), splits=["train"])
    lock.write(tmp_path / "run")
    assert expected_of(tmp_path / "run", lock.hash12, {"answer": "b"}) == {"correct": "b"}


WORLD = "def world():\n    return {}\n\n\ndef look(world, place: str) -> str:\n    'Looks.'\n    return place\n"
ENDPOINT = "endpoints: {m: {base_url: 'https://x/v1', model: m}}\n"
LOOK = "tools: {look: {kind: http, url: 'https://x/{{ args.a }}', description: d, parameters: {a: string}}}\n"
MISLEADING = {
    "a program's words as one text": (
        "tools: {look: {kind: mcp, command: npx -y server}}\n",
        ("tools.look.command", "put it in brackets"),
    ),
    "a list that is too short": (
        ENDPOINT + "\nrewards: {j: {kind: judge, endpoint: m, prompt: '{{ answer }}', scale: [1]}}\n",
        ("rewards.j.scale", "write item 2 too"),
    ),
    "a resource without inject": (
        "resources: {world: {kind: python, function: 'w.py:world'}}\n"
        "tools: {look: {kind: python, function: 'w.py:look'}}\n",
        ("tools.look.function", "inject: [world]"),
    ),
    "another language's type": (
        "tools: {look: {kind: http, url: 'https://x/{{ args.a }}', parameters: {type: object, properties: "
        "{a: {type: float}}}}}\n",
        ("tools.look.parameters", "write number"),
    ),
    "another file in a template": (
        'observation: {format: template, template: "{% include \'a.md\' %}"}\n',
        ("observation.template", "reads no other file"),
    ),
    "one server that is missing": (
        "tools: {shop: {kind: mcp, command: [/nowhere/server]}}\noracle: [{call: {get: {a: 1}}}, {say: x}]\n",
        ("tools.shop", "cannot be reached"),
    ),
    "a template in a description": (LOOK.replace("description: d", "description: 'Of {{ task.n }}'"),
                                    ("tools.look.description", "nothing fills in")),
    "a template in a constant": ("vars: {a: '{{ task.question }}'}\n", ("vars.a", "nothing fills in")),
    "a reference in a rubric": (
        ENDPOINT + "\nrewards: {j: {kind: judge, endpoint: m, prompt: '{{ answer }}', rubric: '${env:A}'}}\n",
        ("rewards.j.rubric", "is not filled in here"),
    ),
    "a shell's reference in a header": (
        LOOK.replace("description: d", "description: d, headers: {Authorization: 'Bearer ${TOKEN}'}"),
        ("tools.look.headers.Authorization", "write ${env:TOKEN}"),
    ),
    "a shell's reference to a server": (
        "tools: {look: {kind: model, endpoint: e, prompt: '{{ args.a }}', description: d, parameters: {a: string}}}\n"
        "endpoints: {e: {base_url: 'https://x/v1', model: '${MODEL}'}}\n",
        ("endpoints.e.model", "write ${env:MODEL}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISLEADING)
def test_one_mistake_is_one_fault_that_leads_to_its_cause(write: Write, tmp_path: Path, name: str) -> None:
    text, (path, said) = MISLEADING[name]
    (tmp_path / "w.py").write_text(WORLD)
    head = HEAD if "rewards:" not in text else HEAD.partition("rewards:")[0]
    (fault,) = validate([write(head + text)]).faults
    assert fault.path == path
    assert said in f"{fault.message}; {fault.hint}"


def test_a_variable_of_a_shell_is_the_shell_s(write: Write) -> None:
    text = "tools: {look: {kind: command, command: [/bin/sh, -c, 'echo ${HOME}'], description: d}}\n"
    assert validate([write(HEAD + text)]).faults == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["validate", "arithmetic", "--set", "rewards.corect.weight=2"], "did you mean 'rewards.correct'?"),
        (["validate", "letters"], "did you mean 'letters/letters.yaml'?"),
        (["evall"], "did you mean 'eval'?"),
    ],
)
def test_a_command_s_nearest_word_is_offered(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letters.yaml").write_text(HEAD)
    assert main(words) != 0
    told = capsys.readouterr()
    assert said in told.out + told.err


SALVAGED = """\
rlenv: 1
name: planted
tasks:
  train: {rows: [{question: q, answer: 1}]}
prompt:
  user: "{{ task.questoin }}"
tools:
  calculate: {kind: calculator, timeout: 3}
  broken: {kind: calculatr}
limits: {turns: "4"}
rewards:
  correct: {kind: rule, rule: numeric_match, gate: "format >= 1"}
  format: {kind: rule, rule: valid_calls, weight: heavy}
oracle:
  - call: {calculate: {expresion: "1"}}
  - call: {broken: {x: 1}}
  - say: "<answer>{{ task.anser }}</answer>"
"""


def test_every_fault_of_every_sort_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SALVAGED)
    report = validate([file])
    assert [(fault.line, fault.path) for fault in report.faults] == [
        (6, "prompt.user"),
        (8, "tools.calculate.timeout"),
        (9, "tools.broken.kind"),
        (10, "limits.turns"),
        (13, "rewards.format.weight"),
        (15, "oracle.0.call.calculate"),
        (15, "oracle.0.call.calculate.expresion"),
        (17, "oracle.2.say"),
    ]


def test_what_only_follows_from_another_fault_is_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    # `format` and `broken` are named by the gate and the oracle; their own faults say all there is to say.
    file.write_text(
        SALVAGED.replace("questoin", "question").replace("expresion", "expression").replace("anser", "answer")
    )
    assert [fault.line for fault in validate([file]).faults] == [8, 9, 10, 13]


def test_a_document_with_too_little_left_gives_its_own_faults(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("rlenv: 1\nname: planted\n")
    assert {fault.path for fault in validate([file]).faults} == {"tasks", "prompt", "rewards"}


@pytest.mark.parametrize("text", ["1 +", "(" * 300 + "1" + ")" * 300, "not " * 900 + "1", "{% if a %}"])
@pytest.mark.parametrize("key", ["when", "for_each"])
def test_a_condition_of_the_oracle_that_cannot_be_read_is_a_fault_at_its_place(
    write: Write, key: str, text: str
) -> None:
    step = json.dumps({"say": "x", key: text})
    (fault,) = validate([write(f"{HEAD}\noracle: [{step}]")]).faults
    assert (fault.path, "itself failed" in fault.message) == (f"oracle.0.{key}", False)
