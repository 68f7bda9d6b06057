"""New rewards over recorded episodes: no policy acts, verify terms are run again, and the difference is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import rlenv
from rlenv.cli.main import main as command
from rlenv.messages import ToolCall
from rlenv.rewards.group import score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.runs import files as record
from rlenv.runs.folder import KeptRun, RunInfo, open_run
from rlenv.runs.recorded import recorded as recorded_at
from rlenv.runs.replay import rescore
from rlenv.runs.schema import Facts
from rlenv.runs.summary import compare
from rlenv.trajectory import Failure, Trajectory

SPEC = """
rlenv: 1
name: counted
tasks: {train: {rows: [{question: "How many?", answer: "3", sql: "SELECT count(*) FROM t"}]}}
prompt: {user: "{{ task.question }}"}
resources: {db: {kind: sqlite, path: one.sqlite}}
tools: {query: {kind: sql, resource: db}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""
VERIFY = """
  rows:
    kind: verify
    tool: query
    arguments: {sql: "{{ answer }}"}
    expect: {arguments: {sql: "{{ task.sql }}"}}
    compare: rows
  calls: {kind: rule, rule: valid_calls, when: turn, weight: 0.5}
"""
CALL = '<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "one.sqlite")) as database:
        database.execute("CREATE TABLE t (a)")
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
        database.commit()
    (tmp_path / "old.yaml").write_text(SPEC)
    (tmp_path / "new.yaml").write_text(SPEC + VERIFY)
    return tmp_path


def play(path: Path, *plays: list[str], seed: int = 5) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        found = []
        async with rlenv.load(path) as environment:
            for actions in plays:
                async with environment.start(task=0, seed=seed) as episode:
                    for action in actions:
                        await episode.step(action)
                    found.append(episode.trajectory)
        return found

    return asyncio.run(main())


def again(path: Path, trajectories: list[Trajectory]) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with rlenv.load(path) as environment:
            return await rescore(environment, trajectories)

    return asyncio.run(main())


def test_the_same_rewards_give_the_same_scores(folder: Path) -> None:
    before = play(folder / "new.yaml", [CALL, "<answer>SELECT count(*) FROM t</answer>"], [CALL, "no"], [CALL] * 8)
    after = again(folder / "new.yaml", before)
    assert compare(before, after).changes == ()
    for old, new in zip(before, after, strict=True):
        assert (new.turns, new.messages, new.answer, new.reason) == (old.turns, old.messages, old.answer, old.reason)
        assert new.reward.turn_rewards == pytest.approx(old.reward.turn_rewards)
        assert (new.task_index, new.seed, new.split) == (old.task_index, old.seed, old.split)


def test_a_new_verify_term_is_run_on_what_was_recorded(folder: Path) -> None:
    before = play(folder / "old.yaml", [CALL, "<answer>SELECT 3</answer>"], ["<answer>3</answer>"])
    after = again(folder / "new.yaml", before)
    assert [one.reward.terms["rows"].value for one in after] == [1.0, 0.0]
    assert after[0].reward.terms["rows"].details["verified_results"]["expected"] == ["count(*)\n3"]
    assert after[0].reward.terms["calls"].turn_values == (1.0, None)
    found = compare(before, after)
    assert found.reward == pytest.approx((0.5, (1.5 + 1.0) / 2))
    assert [change.terms["rows"] for change in found.changes] == [(None, 1.0), (None, 0.0)]


@pytest.mark.parametrize("said", ["in turn 2: down", "turn 1: down"])
def test_a_turn_that_could_not_be_measured_is_recalled_however_its_record_counts(folder: Path, said: str) -> None:
    """Turns are counted from 1 in what people read; records of earlier versions counted them from 0."""
    (folder / "r.py").write_text(
        "from rlenv.errors import RewardError\n\n\ndef fails(context):\n"
        "    if len(context.turns) == 2:\n        raise RewardError('down')\n    return 1.0\n"
    )
    path = folder / "turns.yaml"
    path.write_text(SPEC + '  own: {kind: rule, function: "r.py:fails", when: turn, required: false}\n')
    (before,) = play(path, [CALL, CALL, "<answer>3</answer>"])
    own = before.reward.terms["own"]
    assert (own.error, own.turn_values) == ("in turn 2: down", (1.0, None, 1.0))

    async def recalled() -> Trajectory:
        async with rlenv.load(path) as environment:
            known = {"own": dataclasses.replace(own, error=said)}
            return (await rescore(environment, [before], known=[known]))[0]

    after = asyncio.run(recalled()).reward.terms["own"]
    assert (after.error, after.turn_values, after.status) == ("in turn 2: down", (1.0, None, 1.0), "invalid")


def test_a_reward_that_could_not_be_measured_can_be_measured_later(folder: Path) -> None:
    broken = SPEC.replace("{{ task.answer }}", "{{ task.gold }}")
    (folder / "broken.yaml").write_text(broken)
    before = play(folder / "broken.yaml", ["<answer>3</answer>"])
    assert before[0].reward.total is None
    after = again(folder / "old.yaml", before)
    assert after[0].reward.total == 1.0
    assert after[0].terminated
    assert compare(before, after).gained == 1


def test_a_record_that_says_how_its_task_ended_is_believed(ledger: Path) -> None:
    (played,) = play(ledger, ["I am done."])
    asked = edited(ledger, ("limits:", 'user: {kind: python, function: "t.py:user"}\nlimits:'))
    assert [one.reason for one in again(asked, [played])] == ["final_message"]


def test_an_episode_that_failed_stays_failed(folder: Path) -> None:
    (played,) = play(folder / "old.yaml", ["<answer>3</answer>"])
    failed = dataclasses.replace(played, failure=Failure("policy", "the endpoint went away"))
    (after,) = again(folder / "old.yaml", [failed])
    assert after.reward.total is None
    assert after.failure == failed.failure


def test_the_command_reads_a_run_and_writes_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "run"
    record.write(run / "trajectories.jsonl", play(folder / "old.yaml", ["<answer>SELECT 3</answer>"]))
    arguments = ["rescore", str(run), "--spec", str(folder / "new.yaml")]
    assert command([*arguments, "--json", "-o", str(folder / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["terms"]["rows"] == [None, 1.0]
    (written,) = recorded_at(folder / "out")
    assert written.reward.terms["rows"].value == 1.0
    assert command(arguments) == 0
    assert "rows" in capsys.readouterr().out
    assert command([*arguments, "-o", str(run)]) == 2
    assert command(["rescore", str(folder / "nothing"), "--spec", str(folder / "new.yaml")]) == 2


def test_a_rescored_run_has_the_steps_modes_and_groups_of_its_source(folder: Path) -> None:
    (played,) = play(folder / "old.yaml", ["<answer>3</answer>"])
    big = dataclasses.replace(played, task_index=2**40)  # as a record of others may say
    facts = Facts(step=7, sample=3, mode="greedy", group="g1")
    with KeptRun(folder / "run", RunInfo("train")) as run:
        run.append(played, facts)
        run.append(big, facts)
    assert command(["rescore", str(folder / "run"), "--spec", str(folder / "new.yaml"), "-o", str(folder / "out")]) == 0
    rows = list(open_run(folder / "out").rows())
    assert [[row[name] for name in ("step", "sample", "mode", "group")] for row in rows] == [[7, 3, "greedy", "g1"]] * 2
    assert [row["task"] for row in rows] == [0, 2**31 - 1]


# A ledger that calls write to, and rewards that look at it.
LEDGER = """
rlenv: 1
name: ledger
tasks: {train: {rows: [{question: "Pay A.", wanted: [A]}, {question: "Pay nobody.", wanted: []}]}}
prompt: {user: "{{ task.question }}"}
resources: {book: {kind: python, function: "t.py:open_book", run_in: loop}}
tools:
  pay: {kind: python, function: "t.py:pay", inject: [book], run_in: loop, mutates: true}
  peek: {kind: python, function: "t.py:peek", inject: [book], run_in: loop}
  sum: {kind: calculator}
limits: {turns: 6, invalid_actions: 9}
rewards:
  book: {kind: rule, function: "t.py:is_right"}
  said: {kind: rule, rule: exact_match, expect: done, weight: 0.5}
"""
LEDGER_CODE = """
import itertools, pathlib
from rlenv.errors import ToolFailed
from rlenv.rewards.base import Measured

def open_book():
    yield []

def pay(to: str, book) -> str:
    \"\"\"Pays.\"\"\"
    if to == "nobody":
        raise ToolFailed("there is nobody")
    book.append(to)
    return f"paid {to}, {len(book)} in all"

def peek(book) -> str:
    \"\"\"Looks.\"\"\"
    return ",".join(book)

def is_right(context):
    return float(context.resources["book"] == context.task["wanted"])

def catches(context):
    try:
        return float(context.resources["book"] == context.task["wanted"])
    except Exception:
        return 0.0

def ignores(context):
    return 0.25

def user(message, book):
    if "settle" in message:
        book.append("U")
        return f"settled, {len(book)} in all"
    return "Yes?"
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(LEDGER_CODE)
    (tmp_path / "env.yaml").write_text(LEDGER)
    return tmp_path / "env.yaml"


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


DONE = "<answer>done</answer>"


def changed(path: Path, old: str, new: str) -> Path:
    """The spec with its functions from another file, in which `old` reads `new`."""
    assert old in LEDGER_CODE
    (path.parent / "u.py").write_text(LEDGER_CODE.replace(old, new))
    return edited(path, ("t.py:", "u.py:"), name="changed.yaml")


def edited(path: Path, *replaced: tuple[str, str], name: str = "other.yaml") -> Path:
    text = path.read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    (path.parent / name).write_text(text)
    return path.parent / name


def test_what_calls_did_to_a_resource_is_there_again(ledger: Path) -> None:
    plays = [
        [call("pay", to="A"), DONE],
        [call("pay", to="A") + call("pay", to="A") + call("peek"), call("sum", expression="1+1"), DONE],
        [call("pay", to="nobody"), call("pay", too="A"), call("gone"), call("pay", to="A"), "<tool_call>{", DONE],
        [DONE],
        [call("peek")] * 6,
    ]
    before = play(ledger, *plays)
    assert [one.reward.terms["book"].value for one in before] == [1.0, 0.0, 1.0, 0.0, 0.0]
    after = again(ledger, before)
    assert compare(before, after).changes == ()
    assert [one.turns for one in after] == [one.turns for one in before]


def test_turn_terms_see_the_state_of_their_turn(ledger: Path) -> None:
    by_turn = edited(ledger, ('function: "t.py:is_right"', 'function: "t.py:is_right", when: turn'))
    before = play(by_turn, [call("peek"), call("pay", to="A"), DONE])
    assert before[0].reward.terms["book"].turn_values == (0.0, 1.0, 1.0)
    assert compare(before, again(by_turn, before)).changes == ()


@pytest.mark.parametrize("function", ["is_right", "catches"])
def test_a_reward_over_a_state_that_is_not_there_again_is_invalid_and_names_the_call(
    ledger: Path, function: str
) -> None:
    before = play(ledger, [call("pay", to="A"), DONE], [DONE])
    path = changed(ledger, "in all", "together")
    after = again(edited(path, ("u.py:is_right", f"u.py:{function}")), before)
    assert [one.reward.total for one in after] == [None, 0.5]
    assert after[0].failure is not None
    assert after[0].failure.message.startswith(
        "book: the state that the episode left cannot be had again: turn 1, call"
    )
    assert "'pay' gave ok 'paid A, 1 in all' when it was recorded and ok 'paid A, 1 together' now" in str(
        after[0].failure
    )
    # What does not ask for state is measured as ever.
    assert after[0].reward.terms["said"].value == 1.0
    found = compare(before, after)
    assert (found.gained, found.lost, found.unknown) == (0, 0, 1)


def test_a_reward_that_does_not_ask_for_state_needs_none(ledger: Path) -> None:
    before = play(ledger, [call("pay", to="A"), DONE])
    path = changed(ledger, "in all", "together")
    (after,) = again(edited(path, ("u.py:is_right", "u.py:ignores")), before)
    assert after.reward.total == 0.75


def test_a_tool_that_is_gone_is_named(ledger: Path) -> None:
    before = play(ledger, [call("pay", to="A"), DONE])
    (after,) = again(edited(ledger, ("  pay: {kind", "  give: {kind")), before)
    assert after.failure is not None
    assert "turn 1, call 1: there is no tool 'pay' any more" in after.failure.message


def test_a_tool_that_tells_another_time_each_time_is_named(ledger: Path) -> None:
    code = LEDGER_CODE + "\n_next = itertools.count()\n\ndef clock() -> int:\n    'Ticks.'\n    return next(_next)\n"
    (ledger.parent / "t.py").write_text(code)
    clock = '  clock: {kind: python, function: "t.py:clock", run_in: loop}\n  sum:'
    path = edited(ledger, ("  sum:", clock))
    before = play(path, [call("clock"), DONE])
    (after,) = again(path, before)
    assert after.failure is not None
    assert "the tool 'clock' gave ok '0' when it was recorded and ok '1' now" in after.failure.message


def test_a_service_is_not_called_again_to_restore_state(ledger: Path) -> None:
    service = '  order: {kind: http, url: "http://127.0.0.1:9/x", method: POST, description: Orders.}\n  sum:'
    path = edited(ledger, ("  sum:", service))
    (played,) = play(path, [call("order"), DONE])
    turn = played.turns[0]
    ok = dataclasses.replace(turn.results[0], outcome="ok", text="ordered", reason="", whose="")
    served = dataclasses.replace(played, turns=(dataclasses.replace(turn, results=(ok,)), *played.turns[1:]))
    (after,) = again(path, [served])
    assert after.reward.total is None
    assert "the tool 'order' reaches out of the environment and is not called again" in str(after.failure)
    assert "idempotent: true" in str(after.failure)
    (after,) = again(edited(path, ("method: POST", "method: POST, idempotent: true"), name="safe.yaml"), [served])
    assert after.reward.total == 0.5


def test_a_call_that_never_ran_is_not_run_when_it_is_rescored(ledger: Path) -> None:
    path = edited(ledger, ("limits:", "calls: {faults: {error: 0.5, seed: 3}}\nlimits:"))
    plays = [[call("pay", to="A") + call("sum", expression="1") + call("pay", to="A"), DONE] for _ in range(1)]
    before = [one for seed in range(8) for one in play(path, *plays, seed=seed)]
    assert {one.reward.terms["book"].value for one in before} == {0.0, 1.0}
    assert compare(before, again(path, before)).changes == ()
    # Nor where the faults are off now, or the record is of a time when results said no reasons.
    old = [_without_reasons(one) for one in before]
    assert compare(old, again(ledger, old)).changes == ()


def _without_reasons(trajectory: Trajectory) -> Trajectory:
    turns = [
        dataclasses.replace(
            turn, results=tuple(dataclasses.replace(one, reason="", whose="") for one in turn.results), observation=None
        )
        for turn in trajectory.turns
    ]
    return dataclasses.replace(trajectory, turns=tuple(turns))


def test_an_outage_that_was_recorded_is_said_and_not_repaired(ledger: Path) -> None:
    (played,) = play(ledger, [call("pay", to="A"), DONE])
    turn = played.turns[0]
    down = dataclasses.replace(
        turn.results[0], outcome="failed", text="gone", value=None, reason="server_died", whose="infrastructure"
    )
    outage = dataclasses.replace(played, turns=(dataclasses.replace(turn, results=(down,)), *played.turns[1:]))
    (after,) = again(ledger, [outage])
    assert "'pay' could not be had when it was recorded (server_died) and answers now" in str(after.failure)


def test_a_resource_that_episodes_share_is_not_what_one_of_them_left(ledger: Path) -> None:
    shared = edited(ledger, ('open_book", run_in: loop}', 'open_book", run_in: loop, scope: process}'))
    before = play(shared, [call("pay", to="A"), DONE], [call("sum", expression="1"), DONE])
    after = again(shared, before)
    assert "'pay' may change 'book', which episodes share (scope: process)" in str(after[0].failure)
    # Nothing that only reads stands in the way, where its entry says that it does.
    reading = edited(shared, ("inject: [book], run_in: loop}", "inject: [book], run_in: loop, idempotent: true}"))
    before = play(reading, [call("peek"), DONE])
    assert compare(before, again(reading, before)).changes == ()


def test_a_resource_that_is_another_each_time_is_seen_in_the_prompt(ledger: Path) -> None:
    (ledger.parent / "r.py").write_text(
        "import itertools\n_next = itertools.count()\n\n\ndef world():\n    yield {'size': next(_next)}\n\n\n"
        "def guessed(context):\n    return float(context.resources['world']['size'] == 0)\n"
    )
    path = edited(
        ledger,
        ('user: "{{ task.question }}"', 'user: "{{ resources.world.size }} of these"'),
        ('book: {kind: python, function: "t.py:open_book"', 'world: {kind: python, function: "r.py:world"'),
        ("inject: [book], ", ""),
        ("t.py:pay", "t.py:wait"),
        ("t.py:peek", "t.py:wait"),
        ("t.py:is_right", "r.py:guessed"),
    )
    (ledger.parent / "t.py").write_text(LEDGER_CODE + "\ndef wait() -> str:\n    'Waits.'\n    return ''\n")
    before = play(path, [DONE])
    assert before[0].reward.terms["book"].value == 1.0
    (after,) = again(path, before)
    assert "the prompt shows other resources than it did when it was recorded" in str(after.failure)


def test_a_record_with_more_calls_than_a_policy_can_make_has_none_of_them_made(ledger: Path) -> None:
    (played,) = play(ledger, [call("pay", to="A"), DONE])
    turn = played.turns[0]
    parsed = dataclasses.replace(turn.parsed, calls=turn.parsed.calls * 1_000)
    many = dataclasses.replace(turn, parsed=parsed, results=turn.results * 1_000)
    (after,) = again(ledger, [dataclasses.replace(played, turns=(many, *played.turns[1:]))])
    assert "more calls were recorded than the limits let a policy make" in str(after.failure)


def test_an_episode_that_used_up_its_calls_has_them_all_made_again(ledger: Path) -> None:
    limited = edited(ledger, ("limits: {", "limits: {tool_calls: 2, calls_per_turn: 2, "), ("[A]", "[A, B]"))
    played = play(limited, [call("pay", to="A") + call("pay", to="B"), DONE])
    assert played[0].reward.total == 1.5
    assert compare(played, again(limited, played)).changes == ()


def test_a_call_that_did_not_end_leaves_a_state_that_nobody_knows(ledger: Path) -> None:
    (played,) = play(ledger, [call("pay", to="A"), DONE])
    turn = played.turns[0]
    late = dataclasses.replace(turn.results[0], outcome="timeout", reason="late", whose="unclear")
    cut = dataclasses.replace(played, turns=(dataclasses.replace(turn, results=(late,)), *played.turns[1:]))
    (after,) = again(ledger, [cut])
    assert "'pay' did not end, and what it had done by then is not known" in str(after.failure)


def test_what_a_user_did_to_a_resource_is_there_again(ledger: Path) -> None:
    path = edited(
        ledger, ("limits:", 'user: {kind: python, function: "t.py:user"}\nlimits:'), ("wanted: [A]", "wanted: [A, U]")
    )
    before = play(path, ["Hello.", call("pay", to="A"), "Please settle.", DONE])
    assert before[0].reward.total == 1.5
    assert compare(before, again(path, before)).changes == ()
    (after,) = again(changed(path, "settled,", "Settled:"), before)
    assert "turn 3: the user said 'settled, 2 in all' when it was recorded" in str(after.failure)


def test_a_database_that_changed_since_is_said_and_not_measured(folder: Path) -> None:
    before = play(
        folder / "new.yaml", [CALL.replace("SELECT 1", "SELECT count(*) FROM t"), "<answer>SELECT 3</answer>"]
    )
    with closing(sqlite3.connect(folder / "one.sqlite")) as database:
        database.execute("INSERT INTO t VALUES (4)")
        database.commit()
    (after,) = again(folder / "new.yaml", before)
    assert after.reward.terms["rows"].status == "invalid"
    assert "the tool 'query' gave ok 'count(*)\\n3' when it was recorded" in after.reward.terms["rows"].error


def test_the_command_says_what_cannot_be_measured_any_more(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ledger.parent / "run"
    record.write(run / "trajectories.jsonl", play(ledger, [call("pay", to="A"), DONE], [DONE]))
    assert command(["rescore", str(run), "--spec", str(changed(ledger, "in all", "together"))]) == 1
    said = capsys.readouterr()
    assert "lost 0, not known any more 1" in said.out
    assert "train/0 seed 5: 1.500 → –" in said.out
    assert "1 of 2 rewards are invalid" in said.err
    assert "train/0 seed 5: reward: book: the state that the episode left cannot be had again" in said.err


def test_a_tool_that_changes_what_it_is_given_changes_no_record(ledger: Path) -> None:
    path = changed(ledger, "def pay(to: str, book) -> str:", "def pay(to, book):")
    path = edited(
        path,
        (
            "inject: [book], run_in: loop, mutates: true}",
            "inject: [book], run_in: loop, mutates: true,\n    parameters: {to: array}}",
        ),
    )
    code = path.parent / "u.py"
    text = (
        code.read_text()
        .replace('return f"paid', 'paid = list(to); to.append("more"); return f"paid')
        .replace("paid {to}", "paid {paid}")
    )
    code.write_text(text)
    before = play(path, [call("pay", to=["A"]), call("pay", to=["B"]), DONE])
    (first, _, _) = before[0].turns
    (made,) = first.parsed.calls
    assert isinstance(made, ToolCall)
    assert made.arguments == {"to": ["A"]}
    assert compare(before, again(path, before)).changes == ()


GROUPED = (
    SPEC
    + """
  first: {kind: group, function: "g.py:first", weight: 0.5}
  long: {kind: rule, rule: valid_calls, when: turn, weight: 0.25}
"""
)
ANSWERS = ["<answer>3</answer>"], ["<answer>4</answer>"]


@pytest.fixture
def grouped(folder: Path) -> Path:
    (folder / "g.py").write_text("def first(found):\n    return [float(place == 0) for place in range(len(found))]\n")
    (folder / "grouped.yaml").write_text(GROUPED)
    return folder / "grouped.yaml"


def kept(path: Path, run: Path, *steps: list[Trajectory]) -> Path:
    info = RunInfo("train", spec=str(path))
    with KeptRun(run, info) as out:
        for step, found in enumerate(steps):
            for sample, one in enumerate(score_groups(scorer_of(path), found)):
                out.append(one, Facts(step=step, sample=sample, group=f"g{step}"))
    return run


def scorer_of(path: Path) -> Scorer:
    return rlenv.load(path).parts.scorer


def test_answers_to_one_task_at_two_steps_are_two_groups(grouped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept(grouped, grouped.parent / "run", play(grouped, *ANSWERS), play(grouped, *ANSWERS))
    assert [one.reward.terms["first"].value for one in recorded_at(run)] == [1.0, 0.0, 1.0, 0.0]
    assert command(["rescore", str(run), "--spec", str(grouped), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
