"""A fault of type does not hide the other faults of a file."""

from __future__ import annotations

from pathlib import Path

from rlenv.checks.validate import validate

SPEC = """\
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
    file.write_text(SPEC)
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
    file.write_text(SPEC.replace("questoin", "question").replace("expresion", "expression").replace("anser", "answer"))
    assert [fault.line for fault in validate([file]).faults] == [8, 9, 10, 13]


def test_a_document_with_too_little_left_gives_its_own_faults(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("rlenv: 1\nname: planted\n")
    assert {fault.path for fault in validate([file]).faults} == {"tasks", "prompt", "rewards"}
