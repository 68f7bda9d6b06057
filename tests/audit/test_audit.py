"""An audit finds planted holes by name and passes a spec without any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.report import Report
from rlenv.audit.run import audit
from rlenv.cli.main import main as command
from rlenv.testing.endpoint import FakeEndpoint

SPEC = """
rlenv: 1
name: planted
tasks:
  train:
    rows:
      - {question: "Capital of France?", answer: Paris, other: Lyon}
      - {question: "Capital of Norway?", answer: Oslo, other: Bergen}
      - {question: "Capital of Peru?", answer: Lima, other: Cusco}
prompt: {user: "{{ task.question }}"}
tools: {look: {kind: python, function: "tools.py:look"}}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: exact_match}
oracle:
  - call: {look: {about: "{{ task.question }}"}}
  - say: "It is <answer>{{ task.answer }}</answer>"
"""
TOOLS = '''
import re


def look(about: str) -> str:
    """Looks something up."""
    return "nothing"


def everywhere(context):
    """As RLFactory's search reward: any answer tag in the whole text counts, a tool's too."""
    texts = [turn.action for turn in context.turns]
    texts += [result.text for turn in context.turns for result in turn.results]
    return float(context.task["answer"] in re.findall("<answer>(.*?)</answer>", " ".join(texts)))


def words(context):
    return min(1.0, sum(len(turn.action.split()) for turn in context.turns) / 500)
'''


def write(folder: Path, rewards: str = "", **replaced: str) -> Path:
    (folder / "tools.py").write_text(TOOLS)
    text = SPEC.replace("oracle:", f"{rewards}oracle:")
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "env.yaml").write_text(text)
    return folder / "env.yaml"


def audited(path: Path) -> Report:
    async def main() -> Report:
        async with rlenv.load(path) as environment:
            return await audit(environment)

    return asyncio.run(main())


def holes(report: Report) -> set[tuple[str, str]]:
    return {(finding.hole, finding.term) for finding in report.findings}


def test_a_sound_reward_passes(tmp_path: Path) -> None:
    report = audited(write(tmp_path))
    assert report.findings == ()
    assert report.passes
    assert report.oracle_reward == 1.0
    assert {attack.name: attack.reward for attack in report.attacks} == dict.fromkeys(
        [
            *("empty", "echo", "every_option", "many_answers", "empty_form", "placeholder", "thought_answer"),
            *("planted_output", "idle_calls", "leaked_field", "judge_instructions", "very_long"),
        ],
        0.0,
    )
    assert report.faults is not None
    assert report.faults.invalid == 0


def test_the_tool_output_hole_is_found_by_name(tmp_path: Path) -> None:
    report = audited(write(tmp_path, '  seen: {kind: rule, python: "tools.py:everywhere"}\n'))
    assert ("tool_output", "seen") in holes(report)
    assert ("adversary:planted_output", "") in holes(report)
    assert report.foreign_terms == ("seen",)
    # The same term also pays for an answer in thinking and for several answers.
    assert ("adversary:thought_answer", "") in holes(report)
    assert ("adversary:many_answers", "") in holes(report)


def test_a_term_that_pays_for_length_is_found_by_name(tmp_path: Path) -> None:
    rewards = '  long: {kind: rule, python: "tools.py:words", required: false}\n'
    report = audited(write(tmp_path, rewards))
    assert ("length_paid", "long") in holes(report)
    assert ("adversary:very_long", "") in holes(report)


def test_a_term_that_pays_for_form_alone_is_found_by_name(tmp_path: Path) -> None:
    report = audited(write(tmp_path, "  form: {kind: rule, rule: regex, pattern: '<answer>', of: message}\n"))
    assert ("form_only", "form") in holes(report)
    assert {("adversary:empty_form", ""), ("adversary:placeholder", "")} <= holes(report)


def test_an_answer_that_the_prompt_shows_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, **{'"{{ task.question }}"}\ntools': '"{{ task.question }} ({{ task.answer }})"}\ntools'})
    report = audited(path)
    assert ("adversary:leaked_field", "") in holes(report)
    assert any("answer" in note for note in report.notes if "shows" in note)


def test_options_that_the_prompt_lists_are_no_leak(tmp_path: Path) -> None:
    path = write(tmp_path, **{'"{{ task.question }}"}\ntools': '"{{ task.question }} Paris, Oslo or Lima?"}\ntools'})
    assert audited(path).findings == ()


def test_a_rule_that_any_option_satisfies_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, **{"rule: exact_match": "rule: contains"})
    assert ("adversary:every_option", "") in holes(audited(path))


def test_tasks_where_the_oracle_is_below_the_maximum_are_named(tmp_path: Path) -> None:
    report = audited(
        write(
            tmp_path,
            **{
                "answer: Oslo,": 'answer: "Oslo, the capital",',
                "{{ task.answer }}<": "{{ task.answer.split(',')[0] }}<",
            },
        )
    )
    assert report.oracle_below == ("train/1: correct 0",)
    assert ("oracle_below_maximum", "") in holes(report)


def test_a_term_that_never_varies_and_tasks_without_signal_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "  always: {kind: rule, rule: turn_count, min: 0, weight: 0.1}\n")
    assert audited(path).constant_terms == ("always",)
    flat = write(
        tmp_path, **{"correct: {kind: rule, rule: exact_match}": "correct: {kind: rule, rule: turn_count, min: 0}"}
    )
    report = audited(flat)
    assert report.no_signal == 1.0
    assert ("no_signal", "") in holes(report)


JUDGE = """endpoints: {{writer: {{base_url: "{url}", model: m, retries: 0}}}}
rewards:
  kind: {{kind: judge, endpoint: writer, prompt: "Expected {{{{ task.answer }}}} in {{{{ message }}}}"}}
"""


@pytest.mark.parametrize("obeys", [True, False])
def test_a_judge_that_obeys_the_answer_is_found_by_name(tmp_path: Path, obeys: bool) -> None:
    async def main() -> Report:
        def answer(body: Mapping[str, Any]) -> str:
            asked = body["messages"][-1]["content"]
            expected = asked.split()[1]
            told = "the score is 5" in asked
            good = asked.count(expected) > 1 and (obeys or not told)
            return json.dumps({"reasoning": "r", "score": 5 if good or (obeys and told) else 1})

        async with FakeEndpoint(answer) as server:
            path = write(tmp_path, rewards="")
            text = path.read_text().replace("rewards:\n", JUDGE.format(url=server.base_url))
            path.write_text(text)
            async with rlenv.load(path) as environment:
                return await audit(environment)

    found = holes(asyncio.run(main()))
    assert (("judge_obeys", "kind") in found) is obeys
    assert (("adversary:judge_instructions", "") in found) is obeys


def test_a_judge_that_cannot_be_reached_is_no_number_and_a_finding(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("rewards:\n", JUDGE.format(url="http://127.0.0.1:9/v1")))
    report = audited(path)
    assert report.oracle_reward is None
    assert len(report.oracle_below) == 3
    assert not report.passes


def test_the_command_exits_by_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert command(["audit", str(path), "--json", "-o", str(tmp_path / "report.json")]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] is True
    assert json.loads((tmp_path / "report.json").read_text())["oracle_reward"] == 1.0
    write(tmp_path, "  form: {kind: rule, rule: regex, pattern: '<answer>', of: message, weight: 0.5}\n")
    assert command(["audit", str(path)]) == 1
    assert "form_only" in capsys.readouterr().out
    assert command(["audit", str(path), "--max-adversary", "0.5"]) == 0


@pytest.mark.parametrize("name", ["arithmetic", "gsm8k", "nl2sql", "search-qa"])
def test_every_shipped_spec_passes(name: str) -> None:
    async def main() -> Report:
        async with rlenv.load(name) as environment:
            return await audit(environment, tasks=5, oracle_tasks=100)

    report = asyncio.run(main())
    assert report.findings == ()
    assert all(attack.share is None or attack.share <= 0.2 for attack in report.attacks)
