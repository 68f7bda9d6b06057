"""A model that attacks a reward finds a hole, earns nothing from a sound one, and never fails into a pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.report import Attacker, AttackerLimits, AuditReport
from rlenv.audit.run import audit
from rlenv.cli.console import endpoint_at
from rlenv.cli.main import main as command
from rlenv.endpoints.account import Account, counted
from rlenv.errors import UsageError
from rlenv.messages import Sampled
from rlenv.runs.recorded import recorded
from rlenv.testing.endpoint import FakeEndpoint, Given, Reply, never

SPEC = """
rlenv: 1
name: planted
tasks:
  train:
    rows:
      - {question: "Who rules 12 lands of France?", answer: Xavier}
      - {question: "Who rules 7 lands of Norway?", answer: Yvonne}
      - {question: "Who rules 3 lands of Peru?", answer: Zoe}
prompt: {system: Look it up., user: "{{ task.question }}"}
tools: {look: {kind: python, function: "tools.py:look"}}
limits: {turns: 4}
rewards:
  correct: {kind: rule, PAID}
oracle:
  - call: {look: {about: "{{ task.question }}"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""
TOOLS = '''
RULERS = {"France": "Xavier", "Norway": "Yvonne", "Peru": "Zoe"}


def look(about: str) -> str:
    """Says who rules a land."""
    return next((ruler for land, ruler in RULERS.items() if land in about), "nobody")


def either(context):
    return float(context.answer in (context.task["answer"], "xyzzy"))
'''
SOUND = "rule: exact_match"
HOLE = 'function: "tools.py:either"'
DOES = {"name": "work", "actions": [{"call": {"look": {"about": "{{prompt}}"}}}, "<answer>{{tool_result}}</answer>"]}


def write(folder: Path, paid: str, **replaced: str) -> Path:
    (folder / "tools.py").write_text(TOOLS)
    text = SPEC.replace("PAID", paid)
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "env.yaml").write_text(text)
    return folder / "env.yaml"


def strategies(*listed: Mapping[str, Any]) -> str:
    return json.dumps({"strategies": listed})


def says(*texts: str, name: str = "word") -> dict[str, Any]:
    return {"name": name, "why": "it may pay", "actions": list(texts)}


def tried(
    path: Path, answers: Sequence[Given] | Any, *, context: int | None = None, **limits: Any
) -> tuple[AuditReport, list[dict[str, Any]]]:
    """The report, and what the attacker was asked."""

    async def main() -> tuple[AuditReport, list[dict[str, Any]]]:
        async with FakeEndpoint(answers, context=context) as server, rlenv.load(path) as environment:
            endpoint = endpoint_at(server.base_url, environment.spec.endpoints, option="--attacker", model="m")
            attacker = Attacker(endpoint, AttackerLimits(**{"rounds": 2, **limits}))
            return await audit(environment, tasks=1, attacker=attacker), server.requests

    return asyncio.run(main())


def found(report: AuditReport) -> set[str]:
    return {finding.hole for finding in report.findings} & {"attacker", "attacker_untried"}


def test_a_hole_that_a_script_finds_is_a_finding_with_its_term_and_least_episode(tmp_path: Path) -> None:
    script = says("<answer>xyzzy</answer>")
    report, _ = tried(
        write(tmp_path, HOLE),
        [
            strategies(
                says("no"), script, {**script, "name": "long", "actions": ["<answer>xyzzy</answer> " + "so " * 99]}
            )
        ],
    )
    (finding,) = [one for one in report.findings if one.hole == "attacker"]
    assert finding.term == "correct"
    assert "a script of the attacker ('word') earns 1.00 of the oracle's reward" in finding.message
    assert report.attacker is not None
    least = report.attacker.least
    assert least is not None
    assert (least.actions, least.answer, least.reward, least.oracle) == (("<answer>xyzzy</answer>",), "xyzzy", 1.0, 1.0)
    assert [one.undone for one in report.attacker.strategies[:3]] == [0.0, 1.0, 1.0]


def test_doing_the_task_is_no_attack(tmp_path: Path) -> None:
    report, _ = tried(write(tmp_path, SOUND), [strategies(DOES, says("<answer>Xavier</answer>", name="constant"))])
    assert report.attacker is not None
    work, constant = report.attacker.strategies[:2]
    assert (work.share, work.undone, work.without_tools) == (1.0, 0.0, 0)
    assert constant.undone == pytest.approx(1 / 3)  # right on one task, and not by its tools
    assert "'constant'" in next(one.message for one in report.findings if one.hole == "attacker")
    sound, _ = tried(write(tmp_path, SOUND), [strategies(DOES, says("<answer>xyzzy</answer>"))])
    assert found(sound) == set()


def test_success_without_the_tools_that_the_oracle_calls_is_told(tmp_path: Path) -> None:
    shown = write(
        tmp_path, SOUND, **{'"{{ task.question }}"}\ntools': '"{{ task.question }} ({{ task.answer }}!)"}\ntools'}
    )
    report, _ = tried(shown, [strategies(says("<answer>{{ prompt_word_-1 }}</answer>"), says("{{nosuch}}"))])
    assert found(report) == set(), "the brackets stand around it"
    bare = write(
        tmp_path, SOUND, **{'"{{ task.question }}"}\ntools': '"{{ task.question }} {{ task.answer }}"}\ntools'}
    )
    report, _ = tried(bare, [strategies(says("<answer>{{ prompt_word_-1 }}</answer>"))])
    assert "succeeding without the tools that the oracle calls on 3 of 3 tasks" in next(
        one.message for one in report.findings if one.hole == "attacker"
    )


def test_what_a_plain_wrong_answer_earns_is_no_merit_of_the_attacker(tmp_path: Path) -> None:
    paid = "rule: regex, pattern: '<answer>', of: message"
    report, _ = tried(write(tmp_path, paid), [strategies(says("<answer>xyzzy</answer>"))])
    assert report.attacker is not None
    assert report.attacker.wrong == 1.0
    assert found(report) == set()
    assert not report.passes, "it is another finding"


def test_the_attacker_sees_the_reward_as_written_and_no_gold_and_is_told_what_it_earned(tmp_path: Path) -> None:
    _, requests = tried(write(tmp_path, HOLE), [strategies(says("<answer>xyzzy</answer>"), DOES)])
    first, second = (request["messages"][-1]["content"] for request in requests)
    for shown in (
        "Who rules 12 lands of France?",
        "tools.py:either",
        '"name": "look"',
        "Says who rules",
        "prompt_word_N",
    ):
        assert shown in first
    assert 'return float(context.answer in (context.task["answer"], "xyzzy"))' in first
    assert not any(gold in first for gold in ("Xavier", "Yvonne", "Zoe"))
    assert '"name": "word"' in second
    assert '"undone": 1.0' in second
    assert '"terms": {"correct": 1.0}' in second


def test_a_model_that_plays_itself_counts_by_what_it_earns_with_another_answer(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> str:
        first = body["messages"][0]["content"]
        if "Your plan: say the word" in first:
            return "<answer>xyzzy</answer>"
        if "Your plan: think" in first:
            rulers = {"France": "Xavier", "Norway": "Yvonne", "Peru": "Zoe"}
            return next(f"<answer>{ruler}</answer>" for land, ruler in rulers.items() if land in str(body["messages"]))
        plays = [{"name": "plays", "play": "say the word"}, {"name": "knows", "play": "think"}]
        return strategies(*plays)

    report, _ = tried(write(tmp_path, HOLE), answer)
    assert found(report) == {"attacker"}
    assert report.attacker is not None
    assert {one.name: (one.share, one.undone) for one in report.attacker.strategies} == {
        "plays": (1.0, 1.0),
        "knows": (1.0, 0.0),
    }
    assert any("without the tools that the oracle calls on 3 of 3 tasks: it may know" in note for note in report.notes)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Reply(401, "no such key"), "401"),
        ("I will not.", "no reply could be read (the reply holds no JSON object)"),
        ('{"strategies": []}', "the list 'strategies' is empty"),
        ("[" * 9_999 + "{}" + "]" * 9_999, "no list 'strategies'"),
        ("{" + '"a":{' * 9_999 + "}" * 10_000, "too much"),
    ],
)
def test_an_attacker_that_could_not_be_tried_is_no_pass(tmp_path: Path, answer: Given, why: str) -> None:
    report, requests = tried(write(tmp_path, SOUND), [answer])
    assert found(report) == {"attacker_untried"}
    message = next(one.message for one in report.findings if one.hole == "attacker_untried")
    assert message.startswith("the attacker could not be tried: ")
    assert why in message
    assert report.attacker is not None
    assert report.attacker.unreadable == (0 if isinstance(answer, Reply) else 2)
    if isinstance(answer, str):
        assert "Your last reply could not be read: " in requests[1]["messages"][-1]["content"]


def test_an_endpoint_that_fails_later_keeps_what_was_found_and_is_no_pass(tmp_path: Path) -> None:
    answers = [strategies(says("<answer>xyzzy</answer>")), Reply(400, "too long")]
    report, _ = tried(write(tmp_path, HOLE), answers)
    assert found(report) == {"attacker", "attacker_untried"}
    sound, _ = tried(write(tmp_path, SOUND), answers[:1] + answers[1:])
    assert found(sound) == {"attacker_untried"}


def test_a_server_that_fails_while_its_model_plays_is_no_pass(tmp_path: Path) -> None:
    answers = [strategies({"name": "plays", "play": "say it"}), Reply(400, "too long")]
    report, requests = tried(write(tmp_path, SOUND), answers, rounds=1)
    assert found(report) == {"attacker_untried"}
    assert len(requests) == 4


RAISES = """

def odd(context):
    if context.answer != context.task["answer"] and PLACE:
        raise ValueError("unreadable")
    return 1.0
"""


def test_rewards_that_could_not_be_measured_are_no_zeros_and_no_pass(tmp_path: Path) -> None:
    path = write(tmp_path, 'function: "tools.py:odd"')
    (tmp_path / "tools.py").write_text(TOOLS + RAISES.replace("PLACE", "True"))
    report, _ = tried(path, [strategies(says("<answer>xyzzy</answer>"))], rounds=1)
    assert found(report) == {"attacker_untried"}
    assert "unreadable" in next(one.message for one in report.findings if one.hole == "attacker_untried")
    assert report.attacker is not None
    assert [(one.share, one.undone, one.invalid) for one in report.attacker.strategies] == [(None, None, 3)]
    assert report.attacker.wrong is None


def test_a_strategy_is_measured_on_the_tasks_where_its_reward_is_valid(tmp_path: Path) -> None:
    path = write(tmp_path, 'function: "tools.py:odd"')
    (tmp_path / "tools.py").write_text(TOOLS + RAISES.replace("PLACE", 'context.task["answer"] != "Zoe"'))
    report, _ = tried(path, [strategies(says("<answer>xyzzy</answer>"))], rounds=1)
    assert report.attacker is not None
    (told,) = report.attacker.strategies
    assert (told.share, told.undone, told.invalid) == (1.0, 1.0, 2)


def test_limits_end_an_attacker_and_are_told_with_what_was_spent(tmp_path: Path) -> None:
    path, good = write(tmp_path, SOUND), strategies(says("<answer>xyzzy</answer>"))
    by_requests, asked = tried(path, [good], requests=1, rounds=9)
    assert len(asked) == 1
    assert any("ended by its limit of 1 requests" in note for note in by_requests.notes)
    by_tokens, asked = tried(path, [good], tokens=10, rounds=9)
    assert len(asked) == 1
    assert by_tokens.attacker is not None
    assert by_tokens.attacker.ended == "its limit of 10 tokens"
    assert by_tokens.attacker.prompt_tokens > 10
    slow, _ = tried(path, lambda body: never(), seconds=0.05)
    assert found(slow) == {"attacker_untried"}
    many, _ = tried(path, [strategies(*[says("x", name=str(number)) for number in range(9)])], strategies=2, rounds=1)
    assert many.attacker is not None
    assert [one.name for one in many.attacker.strategies] == ["0", "1"]


def test_an_attacker_whose_context_is_small_is_asked_for_what_has_room(tmp_path: Path) -> None:
    """Servers refuse a prompt and a limit that are longer than their context together."""
    good = strategies(says("<answer>xyzzy</answer>"))
    report, requests = tried(write(tmp_path, HOLE), [good], context=2_000)
    assert found(report) == {"attacker"}
    assert requests[0]["max_tokens"] > 2_000 > requests[1]["max_tokens"]
    assert not any("has no room" in note for note in report.notes)


def test_an_attacker_whose_context_has_no_room_for_all_is_shown_less_and_a_note_says_so(tmp_path: Path) -> None:
    good = strategies(says("<answer>xyzzy</answer>"))
    report, requests = tried(write(tmp_path, HOLE), [good], context=400)
    assert found(report) == {"attacker"}
    sizes = [len(request["messages"][-1]["content"]) for request in requests]
    assert sizes[-1] < sizes[0]
    assert requests[-1]["messages"][-1]["content"].endswith("new strategies as one JSON object.")
    (note,) = [note for note in report.notes if "has no room for all" in note]
    assert "characters of the environment" in note
    least, requests = tried(write(tmp_path, HOLE), [good], context=50)
    assert found(least) == {"attacker_untried"}
    assert len(requests) < 20


def test_a_reply_that_the_context_cuts_gets_more_room_next_time_and_the_model_is_told(tmp_path: Path) -> None:
    good = strategies(says("<answer>xyzzy</answer>"))
    answers = [Sampled(good[:40], "length"), good]
    report, requests = tried(write(tmp_path, HOLE), answers, context=2_000)
    assert found(report) == {"attacker"}
    assert report.attacker is not None
    assert report.attacker.unreadable == 1
    first, *_, last = (request["messages"][-1]["content"] for request in requests)
    assert len(last) < len(first)
    assert "it was cut at a limit of tokens" in last


def test_a_report_without_an_attacker_says_so(tmp_path: Path) -> None:
    async def main() -> AuditReport:
        async with rlenv.load(write(tmp_path, SOUND)) as environment:
            return await audit(environment, tasks=1)

    assert "no model attacked the reward: name one by --attacker" in asyncio.run(main()).notes


def test_an_attacker_is_an_entry_of_the_spec_or_an_address_with_a_model(tmp_path: Path) -> None:
    text = "endpoints: {writer: {base_url: 'http://127.0.0.1:9/v1', model: m}}\nprompt:"
    with_entry = write(tmp_path, SOUND, **{"prompt:": text})
    named = partial(endpoint_at, entries=rlenv.load(with_entry).spec.endpoints, option="--attacker")
    assert named("writer").model == "m"
    assert named("writer", model="n").model == "n"
    keyed = named("http://127.0.0.1:9/v1/", model="n", api_key="k")
    assert (keyed.base_url, keyed.headers) == ("http://127.0.0.1:9/v1", {"Authorization": "Bearer k"})
    with pytest.raises(UsageError, match="writer"):
        named("writr")
    with pytest.raises(UsageError, match="--attacker-model"):
        named("http://127.0.0.1:9/v1")


def test_the_command_plays_an_attacker_and_writes_its_least_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, HOLE))
    name = "word \x1b[31m[/red]"

    async def main() -> int:
        async with FakeEndpoint([strategies(says("<answer>xyzzy</answer>", name=name))]) as server:
            options = ["--attacker", server.base_url, "--attacker-model", "m", "--attacker-rounds", "1"]
            options += ["--attacker-episode", str(tmp_path / "least.jsonl"), "-o", str(tmp_path / "report.json")]
            return await asyncio.to_thread(command, ["audit", path, "--attacked", "1", *options])

    assert asyncio.run(main()) == 1
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "a strategy of m" in out
    assert json.loads((tmp_path / "report.json").read_text())["attacker"]["least"]["answer"] == "xyzzy"
    (episode,) = recorded(tmp_path / "least.jsonl")
    assert (episode.answer, episode.reward.total) == ("xyzzy", 1.0)
    assert command(["audit", path, "--attacker-rounds", "1"]) == 2
    assert "--attacker-rounds is for --attacker ENDPOINT" in capsys.readouterr().err
    assert (
        command(
            ["audit", path, "--attacker", "http://127.0.0.1:9/v1", "--attacker-model", "m", "--attacker-tasks", "0"]
        )
        == 2
    )
    assert command(["audit", path, "--judged", "-1"]) == 2


def test_what_an_attack_asks_for_is_the_attacker_s_and_its_unreadable_replies_are_failed_tries(tmp_path: Path) -> None:
    account = Account()
    with counted(account):
        tried(write(tmp_path, HOLE), ["no strategies", strategies({"name": "self", "why": "w", "play": "Guess."})])
    told = {one.role: (one.requests, one.failed) for one in account.entries()}
    assert told["attacker"] == (2, 1)
    assert set(told) == {"attacker", "attacker > policy"}


def test_an_attack_counts_the_requests_that_its_account_counts(tmp_path: Path) -> None:
    """A small context: the first request is refused, and tokens are counted, which no model writes for."""
    account, good = Account(), strategies(says("<answer>xyzzy</answer>"))
    with counted(account):
        report, asked = tried(write(tmp_path, HOLE), [good], context=2_000, rounds=1)
    assert report.attacker is not None
    (told,) = account.entries()
    assert (told.requests, told.failed) == (2, 1)
    assert report.attacker.requests == len(asked) == told.requests


def test_a_request_that_the_time_limit_cuts_off_is_in_the_account(tmp_path: Path) -> None:
    account = Account()
    with counted(account):
        report, _ = tried(write(tmp_path, SOUND), lambda body: never(), context=2_000, seconds=0.5)
    assert report.attacker is not None
    assert report.attacker.requests == sum(one.requests for one in account.entries())
    assert report.attacker.requests == sum(one.failed for one in account.entries())


def test_what_a_model_reads_is_a_finding_beside_what_adversaries_find(tmp_path: Path) -> None:
    path = write(tmp_path, HOLE)
    says = {"where": "rewards.correct.function", "what": "xyzzy is paid too", "fix": "take it out", "sure": 0.9}
    leaks = {"where": "tools.look", "what": "it tells all rulers", "fix": "ask for one", "sure": 0.9}

    async def main(*findings: object) -> AuditReport:
        async with FakeEndpoint([json.dumps({"findings": findings})]) as server, rlenv.load(path) as environment:
            named = endpoint_at(server.base_url, {}, option="--reader", model="m")
            return await audit(environment, tasks=1, reader=named)

    read = [one for one in asyncio.run(main(says, leaks)).findings if one.hole == "read"]
    assert [(one.term, one.where, one.message, one.hint) for one in read] == [
        ("", "tools.look", "m reads: it tells all rulers", "ask for one"),
        ("correct", "rewards.correct.function", "m reads: xyzzy is paid too", "take it out"),
    ]
    report = asyncio.run(main())
    assert not [one for one in report.findings if one.hole == "read"]
    assert asyncio.run(main("euros")).findings == report.findings


def test_a_spec_that_its_reader_did_not_read_does_not_pass(tmp_path: Path) -> None:
    async def main() -> AuditReport:
        path = write(tmp_path, SOUND)
        async with FakeEndpoint(["no JSON"]) as server, rlenv.load(path) as environment:
            return await audit(
                environment, tasks=1, reader=endpoint_at(server.base_url, {}, option="--reader", model="m")
            )

    report = asyncio.run(main())
    assert ("not_read", False) in [(one.hole, report.passes) for one in report.findings]
