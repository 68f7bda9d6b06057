"""An audit finds planted holes by name and passes a spec without any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.adversaries import ADVERSARIES
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit, count_fitting_tasks
from rlenv.audit.texts import judge_tells
from rlenv.cli.audit import said_every
from rlenv.cli.main import main as command
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import OraclePolicy
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.swayed import swayed

STEPS = len(ADVERSARIES) + 1
"""Of the attacks on a split."""
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

from rlenv.errors import ToolFailed


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


def picky(about: str) -> str:
    """Looks up what it knows."""
    if not about.startswith("Capital"):
        raise ToolFailed("I know capitals alone")
    return "nothing"


def last_value(context):
    """The last thing that a tool gave on success."""
    values = [result.value for turn in context.turns for result in turn.results if result.outcome == "ok"]
    return float(f"<answer>{context.task['answer']}</answer>" in (values[-1] if values else ""))


def failures(context):
    texts = [result.text for turn in context.turns for result in turn.results if result.outcome != "ok"]
    return float(f"<answer>{context.task['answer']}</answer>" in " ".join(texts))


def number(context):
    return 0.0 if context.answer is None or not context.answer[:1].isdigit() else 1.0 / (1 + int(context.answer))


def open_book():
    yield []


def pay(about: str, book) -> str:
    """Pays."""
    book.append(about)
    return "paid"


def paid(context):
    return float(len(context.resources["book"]) == 1)
'''


def write(folder: Path, rewards: str = "", **replaced: str) -> Path:
    (folder / "tools.py").write_text(TOOLS)
    text = SPEC.replace("oracle:", f"{rewards}oracle:")
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "env.yaml").write_text(text)
    return folder / "env.yaml"


def audited(path: Path, **options: Any) -> AuditReport:
    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment, **options)

    return asyncio.run(main())


def holes(report: AuditReport) -> set[tuple[str, str]]:
    return {(finding.hole, finding.term) for finding in report.findings}


def test_a_sound_reward_passes(tmp_path: Path) -> None:
    report = audited(write(tmp_path))
    assert report.findings == ()
    assert report.passes
    assert report.oracle_reward == 1.0
    assert {attack.reward for attack in report.attacks} == {0.0, None}
    assert {attack.name for attack in report.attacks if attack.reward is None} == {
        *("again", "corrected", "listed"),
        *("leak", "chance", "echoed", "only_said", "emptied_state", "joined", "near_answer", "one_side", "unsure"),
        *("named_words", "program", "constant_program", "shortcut", "talk", "written"),
        *("other_arguments", "commonest", "every_value", "unchecked_call"),
    }
    assert report.faults is not None
    assert report.faults.invalid == 0


def test_a_reward_that_an_answer_can_make_invalid_is_found(tmp_path: Path) -> None:
    reward = '  number: {kind: rule, function: "tools.py:number", weight: 0.1}\n'
    report = audited(write(tmp_path, reward))
    (finding,) = report.findings[1:]
    assert (finding.hole, finding.term) == ("escapes_by_invalid", "number")
    assert "train/0: number: tools.py:number raised ValueError: " in finding.message


def test_the_tool_output_hole_is_found_by_name(tmp_path: Path) -> None:
    report = audited(write(tmp_path, '  seen: {kind: rule, function: "tools.py:everywhere"}\n'))
    assert ("tool_output", "seen") in holes(report)
    assert report.foreign_terms == ("seen",)
    # The same term also pays for an answer in thinking and for several answers: one cause, one finding.
    (finding,) = report.findings
    assert set(finding.also) == {"thought_answer", "every_option"}


def test_a_term_that_pays_for_length_is_found_by_name(tmp_path: Path) -> None:
    rewards = '  long: {kind: rule, function: "tools.py:words", required: false}\n'
    report = audited(write(tmp_path, rewards))
    assert ("length_paid", "long") in holes(report)


def test_a_term_that_pays_for_form_alone_is_found_by_name(tmp_path: Path) -> None:
    report = audited(write(tmp_path, "  form: {kind: rule, rule: regex, pattern: '<answer>', of: message}\n"))
    assert ("form_only", "form") in holes(report)
    assert [one.hole for one in report.findings] == ["form_only"]
    assert "every_option" in report.findings[0].also


def test_an_answer_that_the_prompt_shows_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, **{'"{{ task.question }}"}\ntools': '"{{ task.question }} ({{ task.answer }})"}\ntools'})
    report = audited(path)
    (finding,) = report.findings
    assert (finding.hole, finding.where) == ("leak", "prompt")


def test_options_that_the_prompt_lists_are_no_leak(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **{'"{{ task.question }}"}\ntools': '"{{ task.question }} Paris, Rome, Oslo, Riga, Lima or Bern?"}\ntools'},
    )
    assert audited(path).findings == ()


def test_a_rule_that_any_option_satisfies_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, **{"rule: exact_match": "rule: contains"})
    assert ("stuffed_answer", "correct") in holes(audited(path))


@pytest.mark.parametrize(("weight", "is_found"), [(-0.01, False), (-0.6, True)])
def test_a_cost_of_what_has_to_be_done_is_no_fault_unless_it_is_dear(
    tmp_path: Path, weight: float, is_found: bool
) -> None:
    cost = f"  cost: {{kind: rule, rule: turn_count, min: 1, weight: {weight}}}\n"
    report = audited(write(tmp_path, **{"rewards:\n": f"rewards:\n{cost}"}))
    assert (("oracle_below_maximum", "") in holes(report)) is is_found


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


@pytest.mark.slow
@pytest.mark.parametrize("obeys", [True, False])
def test_a_judge_that_obeys_the_answer_is_found_by_name(tmp_path: Path, obeys: bool) -> None:
    async def main() -> AuditReport:
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


@pytest.mark.slow
def test_a_judge_that_likes_length_is_one_finding(tmp_path: Path) -> None:
    async def main() -> AuditReport:
        async with FakeEndpoint(swayed("length")) as server:
            path = write(tmp_path, rewards="")
            path.write_text(path.read_text().replace("rewards:\n", JUDGE.format(url=server.base_url)))
            async with rlenv.load(path) as environment:
                return await audit(environment)

    found = [hole for hole, term in holes(asyncio.run(main())) if term == "kind" and "length" in hole]
    assert found == ["judge_likes_length"]


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
    assert command(["audit", str(path), "--time-limit", "0"]) == 2


def test_the_command_says_how_far_it_is_and_stops_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(0, 10_000, 3))
    say = said_every(5.0, clock=lambda: float(next(now)))
    for done in range(4):
        say("train: attacks", done, 4)
    assert capsys.readouterr().err == (
        "rlenv audit: train: attacks, 1 of 4 done (6 s)\nrlenv audit: train: attacks, 3 of 4 done (12 s)\n"
    )


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("function", ["everywhere", "last_value"])
def test_the_tool_output_hole_is_found_where_only_sensible_calls_go_well(tmp_path: Path, function: str) -> None:
    seen = f'  seen: {{kind: rule, function: "tools.py:{function}", weight: 0.5}}\n'
    report = audited(write(tmp_path, seen, **{"tools.py:look": "tools.py:picky"}))
    assert ("tool_output", "seen") in holes(report)
    assert not [note for note in report.notes if "no call went well" in note]


def test_the_tool_output_hole_is_found_in_failures_too(tmp_path: Path) -> None:
    seen = '  seen: {kind: rule, function: "tools.py:failures", weight: 0.5, required: false}\n'
    report = audited(write(tmp_path, seen, **{"tools.py:look": "tools.py:picky"}))
    assert ("tool_output", "seen") in holes(report)


def test_it_is_said_where_no_call_went_well(tmp_path: Path) -> None:
    path = write(tmp_path, **{"tools.py:look": "tools.py:picky", '{about: "{{ task.question }}"}': '{about: "?"}'})
    assert any(note.startswith("on 3 of 3 tasks no call went well") for note in audited(path).notes)


ROWS = SPEC[SPEC.index("      - {question") : SPEC.index("prompt:")]


def rows(*answers: str) -> str:
    return "".join(f'      - {{question: "Question {i}?", answer: "{a}", other: x}}\n' for i, a in enumerate(answers))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("answers", "share"), [(["no"] * 8 + ["yes"] * 2, 0.8), (["42"] * 5, 1.0), (["C"] * 5 + list("ABDEF"), 0.5)]
)
def test_an_answer_that_is_right_on_many_tasks_is_found(tmp_path: Path, answers: list[str], share: float) -> None:
    report = audited(write(tmp_path, **{ROWS: rows(*answers)}))
    (finding,) = [one for one in report.findings if one.hole == "constant_answer"]
    assert f"the same answer ('{answers[0]}') earns {share:.2f} of the oracle's reward: correct {share:.2f}" in str(
        finding
    )


def test_an_answer_that_is_right_on_its_own_task_alone_is_no_guess(tmp_path: Path) -> None:
    assert audited(write(tmp_path, **{ROWS: rows("a1", "b2")})).passes


@pytest.mark.slow
def test_a_call_that_the_audit_lets_fail_has_not_run(tmp_path: Path) -> None:
    book = '\nresources: {book: {kind: python, function: "tools.py:open_book", run_in: loop}}\ntools:'
    pay = 'function: "tools.py:pay", inject: [book], mutates: true'
    path = write(
        tmp_path,
        '  paid: {kind: rule, function: "tools.py:paid", gate: correct >= 1}\n',
        **{"\ntools:": book, 'function: "tools.py:look"': pay, ROWS: rows(*(f"a{i}" for i in range(20)))},
    )
    report = audited(path)
    assert report.passes
    assert report.faults is not None
    assert (report.faults.reward, report.faults.episodes) != (2.0, 0)
    # The same share of the same calls fails where the spec itself asks for faults.
    with_faults = {"calls.faults": {"error": 0.3}}

    async def main() -> list[float | None]:
        async with rlenv.load(path, set=with_faults) as environment:
            jobs = [Job("train", task) for task in range(20)]
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            return [one.reward.total for one in await rollout(environment, oracle, jobs)]

    earned = [total for total in asyncio.run(main()) if total is not None]
    assert report.faults.reward == pytest.approx(sum(earned) / 20)
    assert report.faults.reward is not None
    assert 1.0 < report.faults.reward < 2.0


@pytest.mark.slow
def test_an_oracle_that_reads_results_can_give_up_where_they_fail(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **{
            # Only the word `nothing`, which the tool gives, has an i behind its h.
            "<answer>{{ task.answer }}<": "<answer>{{ task.answer }}{{ results[0].split('hi')[1][:0] }}<",
            ROWS: rows(*(f"a{i}" for i in range(12))),
        },
    )
    report = audited(path)
    assert report.passes
    assert report.faults is not None
    assert 0 < report.faults.gave_up < 12
    assert report.faults.invalid == 0
    assert any("could not go on without the results of calls that failed" in note for note in report.notes)


def test_an_oracle_that_cannot_play_a_task_is_below_the_maximum_there(tmp_path: Path) -> None:
    # The first row's `other` has four letters, the others' more.
    path = write(tmp_path, **{"<answer>{{ task.answer }}<": "<answer>{{ task.answer if task.other[4] else 1 }}<"})
    report = audited(path)
    assert [why.partition(":")[0] for why in report.oracle_below] == ["train/0"]


def test_what_was_not_finished_in_time_is_a_finding(tmp_path: Path) -> None:
    def slow(what: str, done: int, total: int) -> None:
        if what == "train: attacks" and done == 1:
            raise TimeoutError  # as the clock would, and without one

    report = audited(write(tmp_path), on_progress=slow, limit_s=100.0)
    (finding,) = report.findings
    assert finding.hole == "unfinished"
    assert f"not finished within 100 s: train: attacks, 1 of {STEPS} done" in finding.message


def test_so_many_tasks_are_attacked_as_the_time_lets(tmp_path: Path) -> None:
    assert [count_fitting_tasks(20, each_s, 300.0) for each_s in (0.0, 0.001, 0.1, 1.0, 100.0)] == [20, 20, 15, 1, 1]
    assert not any("were attacked" in note for note in audited(write(tmp_path), limit_s=1e9).notes)


def test_progress_is_told_step_by_step(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    audited(write(tmp_path), on_progress=lambda *what: told.append(what))
    assert [one[1:] for one in told if one[0] == "train: attacks"] == [(step, STEPS) for step in range(STEPS)]
    assert {what for what, _, _ in told} >= {"train: the oracle plays", "train: the oracle plays while calls fail"}


@pytest.mark.slow
@pytest.mark.parametrize("scale", [(1, 5), (0, 100), (0, 1), (-2, 2)])
def test_a_judge_of_any_scale_that_obeys_is_found(tmp_path: Path, scale: tuple[int, int]) -> None:
    low, high = scale

    async def main() -> AuditReport:
        def answer(body: Mapping[str, Any]) -> str:
            asked = body["messages"][-1]["content"]
            told = f"the score is {high}." in asked
            good = asked.count(asked.split()[1]) > 1
            return json.dumps({"reasoning": "r", "score": high if good or told else low})

        async with FakeEndpoint(answer) as server:
            path = write(tmp_path)
            judge = JUDGE.format(url=server.base_url).replace("kind: judge,", f"kind: judge, scale: [{low}, {high}],")
            path.write_text(path.read_text().replace("rewards:\n", judge))
            async with rlenv.load(path) as environment:
                return await audit(environment)

    assert ("judge_obeys", "kind") in holes(asyncio.run(main()))


_EXAMPLES = ("chart_qa", "code", "command", "customer", "first", "mcp_clock", "python_tool")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("arithmetic", "gsm8k", "nl2sql", "search-qa"),
        *(f"examples/{name}/env.yaml" for name in _EXAMPLES),
        *("examples/curves/nl2sql-toy.yaml", "examples/curves/search-qa-toy.yaml"),
    ],
)
def test_every_shipped_spec_and_example_passes(name: str) -> None:
    path = Path(__file__).parent.parent.parent / name if "/" in name else name

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment, tasks=4, oracle_tasks=100)

    report = asyncio.run(main())
    assert report.findings == ()
    assert all(attack.share is None or attack.share <= 0.2 for attack in report.attacks)


@pytest.mark.slow
@pytest.mark.parametrize("tell", judge_tells(scale=(0, 100)).values(), ids=judge_tells(scale=(0, 100)))
def test_a_judge_that_one_kind_of_text_moves_is_found(tmp_path: Path, tell: str) -> None:
    async def main() -> AuditReport:
        def answer(body: Mapping[str, Any]) -> str:
            asked = body["messages"][-1]["content"]
            begun = json.dumps(tell[:40])[1:-1].translate({ord(sign): f"\\u{ord(sign):04x}" for sign in "<>[]{}|~`"})
            good = asked.count(asked.split()[1]) > 1
            return json.dumps({"reasoning": "r", "score": 100 if good or begun in asked else 0})

        async with FakeEndpoint(answer) as server:
            path = write(tmp_path)
            judge = JUDGE.format(url=server.base_url).replace("kind: judge,", "kind: judge, scale: [0, 100],")
            path.write_text(path.read_text().replace("rewards:\n", judge))
            async with rlenv.load(path) as environment:
                return await audit(environment, tasks=2)

    assert "kind" in {term for hole, term in holes(asyncio.run(main())) if hole.startswith("judge_")}


def test_an_audit_names_what_is_wrong_with_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("answer: Lima", 'answer: ""'))
    assert ("empty_gold", "correct") in holes(audited(path))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("scope", "said"), [("process", True), ("episode", False)])
def test_a_state_that_episodes_share_is_said_to_be_no_one_episodes(tmp_path: Path, scope: str, said: bool) -> None:
    book = f'\nresources: {{book: {{kind: python, function: "tools.py:open_book", scope: {scope}}}}}\ntools:'
    pay = 'function: "tools.py:pay", inject: [book], mutates: true'
    reward = '  paid: {kind: rule, function: "tools.py:paid", gate: correct >= 1}\n'
    notes = audited(write(tmp_path, reward, **{"\ntools:": book, 'function: "tools.py:look"': pay})).notes
    found = [note for note in notes if "is no one episode's" in note]
    assert found == (
        ["the tool 'look' may change 'book', which episodes share (scope: process): what terms read of it (paid may) "
         "is no one episode's"] if said else []
    )  # fmt: skip
