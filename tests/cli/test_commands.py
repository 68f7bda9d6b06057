"""The commands, as a person would give them."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.cli.options import fields
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import RandomPolicy
from rlenv.runs.folder import KeptRun, RunInfo, open_run, read_info
from rlenv.runs.locks.lock import locks_of
from rlenv.runs.recorded import recorded as recorded_at
from rlenv.runs.schema import Facts
from rlenv.tasks.rows import SEEDS, seed_of
from rlenv.trajectory import Trajectory

BASE = """
rlenv: 1
name: toy
tasks:
  train:
    rows:
      - {question: "What is 2 + 3?", answer: 5}
      - {question: "What is 4 + 4?", answer: 8}
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: numeric_match}
oracle:
  - call: {calculate: {expression: "1 + 1"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "2+3"}}</tool_call>'


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(BASE)
    return path


@pytest.mark.slow
def test_init_writes_an_environment_that_validates_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "letters"
    assert main(["init", str(folder)]) == 0
    assert main(["validate", str(folder / "letters.yaml")]) == 0
    capsys.readouterr()
    assert main(["eval", str(folder / "letters.yaml"), "--policy", "oracle", "--json", "--min-success", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["success_rate"] == 1.0
    assert figures["reward_mean"] == pytest.approx(1.1)
    assert main(["audit", str(folder / "letters.yaml")]) == 0
    assert main(["init", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_eval_prints_figures_and_writes_trajectories(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["eval", str(spec), "--policy", "oracle", "-k", "3", "--seed", "5", "--json", "-o", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {"episodes", "reward_mean", "success_rate", "invalid", "terms"} <= figures.keys()
    assert (figures["episodes"], figures["invalid"], figures["terms"]) == (6, 0, {"correct": 1.0})
    assert json.loads((out / "summary.json").read_text()) == figures
    recorded = recorded_at(out)
    assert sorted((item.task_index, item.seed) for item in recorded) == sorted(
        (task, seed_of(5, "train", task, sample)) for task in range(2) for sample in range(3)
    )
    assert len({item.seed for item in recorded}) == 6


def test_eval_shows_a_table_for_people(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(spec), "--policy", "oracle"]) == 0
    table = capsys.readouterr().out
    for word in ("reward", "correct", "success", "95 % interval", "turns", "calls", "invalid", "calculate", "p50"):
        assert word in table


def test_eval_exits_one_where_a_bar_is_missed(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(spec), "--policy", "random", "--min-success", "0.9"]) == 1
    assert "below 0.9" in capsys.readouterr().err
    assert main(["eval", str(spec), "--policy", "oracle", "--max-success", "0.5"]) == 1
    assert "above 0.5" in capsys.readouterr().err


def test_eval_exits_one_and_says_why_where_rewards_are_invalid(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = ["--policy", "openai", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--retries", "0"]
    assert main(["eval", str(spec), *endpoint, "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["reward_mean"] is None
    assert "2 of 2 rewards are invalid (policy 2)" in captured.err
    assert main(["eval", str(spec), *endpoint, "--max-invalid", "1"]) == 0
    assert f"train/0 seed {seed_of(0, 'train', 0)} and 1 more: policy: " in captured.err


def test_extra_fields_are_json_or_text_and_null_is_a_field_too() -> None:
    given = ["top_k=5", "skip_special_tokens=null", 'chat_template_kwargs={"enable_thinking": false}', "user=me=you"]
    assert fields(given) == {
        "top_k": 5,
        "skip_special_tokens": None,
        "chat_template_kwargs": {"enable_thinking": False},
        "user": "me=you",
    }


def test_eval_says_which_row_which_term_and_what_error(
    tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(BASE.replace("numeric_match}", 'numeric_match, expect: "{{ task.gold }}"}'))
    assert main(["eval", str(spec), "--policy", "oracle", "-k", "2"]) == 1
    said = capsys.readouterr().err
    assert "4 of 4 rewards are invalid (reward 4)" in said
    where = f"train/0 seed {seed_of(0, 'train', 0)} and 3 more"
    assert f"{where}: reward: correct: expect: the task has no column 'gold'" in said


def test_what_others_wrote_moves_no_cursor(tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.py").write_text('def f(context):\n    raise ValueError("\\x1b]0;TITLE\\x07 \\u202e[bold]\\x9b")\n')
    spec.write_text(BASE.replace("rule: numeric_match}", 'function: "t.py:f"}'))
    assert main(["eval", str(spec), "--policy", "oracle"]) == 1
    said = capsys.readouterr().err
    assert r"\x1b]0;TITLE\x07 \u202e[bold]\x9b" in said
    assert not any(sign in said for sign in "\x1b\x07\u202e\x9b")


def test_a_run_is_never_written_over_another(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["eval", str(spec), "--policy", "oracle", "--json", "-o", str(out)]
    assert main(command) == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert main([*command, "--seed", "1"]) == 2
    assert "holds a run already; name another folder" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    assert main([*command, "--seed", "1", "--overwrite"]) == 0
    assert {one.seed for one in recorded_at(out)} == {seed_of(1, "train", task) for task in range(2)}
    # What is left of a run that was killed is a run, too.
    (out / "summary.json").unlink()
    assert main(command) == 2


def test_a_run_that_cannot_be_played_leaves_no_figures_of_another(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["eval", str(spec), "--policy", "oracle", "--json", "-o", str(out)]
    assert main(command) == 0
    spec.write_text(
        BASE.replace('- say: "<answer>{{ task.answer }}</answer>"', '- call: {calculate: {expression: "1"}}')
    )
    main([*command, "--overwrite"])
    figures = out / "summary.json"
    assert not figures.exists() or json.loads(figures.read_text())["success_rate"] != 1.0


def test_episodes_that_have_ended_can_be_read_while_the_run_goes_on(spec: Path, tmp_path: Path) -> None:
    assert main(["eval", str(spec), "--policy", "oracle", "-o", str(tmp_path / "one"), "--json"]) == 0
    ended = recorded_at(tmp_path / "one")
    with KeptRun(tmp_path / "two", RunInfo(kind="eval")) as run:
        for count, one in enumerate(ended, 1):
            run.append(one, Facts())
            assert recorded_at(tmp_path / "two") == ended[:count]


def test_a_run_that_was_cut_off_goes_on_where_it_was(spec: Path, tmp_path: Path) -> None:
    command = ["eval", str(spec), "--policy", "random", "-k", "4", "--json", "-o"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    whole = recorded_at(tmp_path / "whole")
    with KeptRun(tmp_path / "cut", RunInfo(kind="eval", facts={"seeds": SEEDS})) as run:
        for place, one in enumerate(whole[2:5], 2):
            run.append(one, Facts(sample=place % 4))
    assert main([*command, str(tmp_path / "cut"), "--resume"]) == 0
    again = recorded_at(tmp_path / "cut")
    assert [_told(one) for one in again] == [_told(one) for one in whole]
    assert [one for one in again if one in whole] == whole[2:5]
    figures = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("cut", "whole")]
    assert figures[0]["reward_mean"] == figures[1]["reward_mean"]
    info = read_info(tmp_path / "cut")
    assert info is not None
    assert [attempt.number for attempt in info.attempts] == [0, 1]
    assert info.state == "ended"


def test_a_run_whose_seeds_were_made_otherwise_does_not_go_on(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with KeptRun(tmp_path / "old", RunInfo(kind="eval")) as run:
        policy = RandomPolicy(load(str(spec)).parts.dialect, load(str(spec)).spec.answer)
        for one in asyncio.run(rollout(load(str(spec)), policy, [Job("train", 0, 2_000_000)])):
            run.append(one, Facts())
    assert main(["eval", str(spec), "--policy", "random", "-o", str(tmp_path / "old"), "--resume"]) == 2
    assert "has seeds that another version of rlenv makes; start a new run" in capsys.readouterr().err


def test_a_new_run_says_what_its_seeds_are_made_of(spec: Path, tmp_path: Path) -> None:
    assert main(["eval", str(spec), "--policy", "oracle", "--json", "-o", str(tmp_path / "run")]) == 0
    info, (lock,) = read_info(tmp_path / "run"), locks_of(tmp_path / "run").values()
    assert info is not None
    assert info.facts["seeds"] == lock.play["seeds"] == SEEDS


def test_what_is_invalid_is_played_again_and_stays(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (tmp_path / "down.py").write_text(
        "import pathlib\n"
        "def up(context):\n"
        "    if not pathlib.Path(__file__).with_name('up').exists() and context.task['answer'] == 8:\n"
        "        raise RuntimeError('down')\n"
        "    return 1.0\n"
    )
    spec.write_text(BASE.replace("rule: numeric_match}", 'function: "down.py:up"}'))
    command = ["eval", str(spec), "--policy", "oracle", "-k", "2", "--json", "-o", str(out)]
    assert main(command) == 1
    before = {row["id"]: row["failure"] for row in open_run(out).rows()}
    assert sorted(before.values()) == ["", "", "reward", "reward"]
    capsys.readouterr()
    (tmp_path / "up").touch()
    assert main([*command, "--resume"]) == 0
    captured = capsys.readouterr()
    assert "2 episodes of the run are invalid; they are played again" in captured.err
    figures = json.loads(captured.out)
    assert (figures["episodes"], figures["invalid"], figures["reward_mean"]) == (4, 0, 1.0)
    reader = open_run(out)
    rows = list(reader.rows())
    assert len(rows) == 6  # nothing is lost
    assert set(before) < {row["id"] for row in rows}
    counted = [row for row in rows if reader.is_counted(row)]
    assert {row["id"] for row in counted} == set(reader.table["id"].to_pylist())
    assert [row["reward"] for row in counted] == [1.0] * 4
    assert [one.reward.total for one in recorded_at(out)] == [1.0] * 4
    assert main([*command, "--resume"]) == 0  # and once more nothing is to be done
    assert len(list(open_run(out).rows())) == 6


def test_only_what_is_invalid_is_scored_again(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "judge.py").write_text(
        "import pathlib\n"
        "def up(context):\n"
        "    here = pathlib.Path(__file__)\n"
        "    with here.with_name('asked').open('a') as file:\n"
        "        file.write(f\"{context.task['answer']} \")\n"
        "    if context.task['answer'] == 8 and not here.with_name('up').exists():\n"
        "        raise RuntimeError('down')\n"
        "    return 1.0\n"
    )
    spec.write_text(BASE.replace("rule: numeric_match}", 'function: "judge.py:up"}'))
    run, again = str(tmp_path / "run"), tmp_path / "again"
    assert main(["eval", str(spec), "--policy", "oracle", "--json", "-o", run]) == 1
    (tmp_path / "up").touch()
    (tmp_path / "asked").write_text("")
    capsys.readouterr()
    assert main(["rescore", run, "--only-invalid", "--json", "-o", str(again)]) == 0
    assert (tmp_path / "asked").read_text().split() == ["8"]
    assert json.loads(capsys.readouterr().out)["invalid"] == [1, 0]
    before, after = recorded_at(run), recorded_at(again)
    assert after[0].reward.terms == before[0].reward.terms
    assert [one.reward.total for one in after] == [1.0, 1.0]


def _told(one: Trajectory) -> tuple[Any, ...]:
    return one.task_index, one.seed, [turn.action for turn in one.turns], one.reason, one.reward.total


def test_a_folder_that_cannot_be_written_is_named(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(spec), "--policy", "oracle", "-o", "/proc/nowhere"]) == 2
    assert "/proc/nowhere cannot be written" in capsys.readouterr().err


def test_a_file_of_episodes_is_the_same_however_many_are_played_at_once(spec: Path, tmp_path: Path) -> None:
    files = []
    for concurrency in ("1", "7"):
        out = tmp_path / concurrency
        assert (
            main(["eval", str(spec), "--policy", "random", "-k", "6", "--concurrency", concurrency, "-o", str(out)])
            == 0
        )
        read = recorded_at(out)
        files.append([(one.task_index, one.seed, [turn.action for turn in one.turns]) for one in read])
    assert files[0] == files[1]
    played = [(task, seed_of(0, "train", task, sample)) for task in range(2) for sample in range(6)]
    assert [(task, seed) for task, seed, _ in files[0]] == played


def test_runs_of_two_seeds_share_no_sample(spec: Path, tmp_path: Path) -> None:
    seeds: list[set[int]] = []
    for seed, k in ((0, 4), (1, 2), (2, 3)):
        out = tmp_path / f"{seed}"
        assert (
            main(["eval", str(spec), "--policy", "oracle", f"--seed={seed}", f"-k={k}", "-o", str(out), "--json"]) == 0
        )
        seeds.append({one.seed for one in recorded_at(out)})
    assert not seeds[0] & seeds[1]
    assert not seeds[0] & seeds[2]
    assert not seeds[1] & seeds[2]


def test_a_spec_with_faults_lists_them_and_exits_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BASE.replace("limits: {turns: 4}", "limits: {turn: 4}").replace("kind: calculator", "kind: calcul"))
    assert main(["eval", str(path)]) == 1
    errors = capsys.readouterr().err
    assert "did you mean" in errors
    assert "2 faults" in errors
    assert "bad.yaml:" in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "nowhere.yaml"], "no spec at"),
        (["eval", "arithmetic", "--policy", "orakel"], "no policy 'orakel'"),
        (["eval", "arithmetic", "--policy", "openai"], "--base-url"),
        (["eval", "arithmetic", "--set", "limits.turns"], "KEY=VALUE"),
        (
            [
                "eval",
                "arithmetic",
                "--policy",
                "openai",
                "--base-url",
                "http://h/v1",
                "--model",
                "m",
                "--extra",
                "top_k",
            ],
            "--extra top_k: expected KEY=VALUE, such as repetition_penalty=1",
        ),
        (["eval", "arithmetic", "-k", "0"], "at least 1"),
        (["eval", "arithmetic", "-k", "1000001"], "-k is at most 1,000,000"),
        (["eval", "arithmetic", "--split", "nope"], "no split 'nope'"),
        (["tools", "arithmetic", "--call", "calculate", "{"], "not JSON"),
    ],
)
def test_wrong_usage_exits_two_with_the_fix(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_overrides_reach_the_spec(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(spec), "--policy", "oracle", "--set", "limits.turns=1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["reasons"] == {"turns": 2}


def test_tools_names_the_type_of_each_argument(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class by its name, and each of several types."""
    spec.with_name("own.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Order:\n    item: str\n\n"
        "def place(order: Order, note: str | None = None) -> str:\n    'Places.'\n    return note\n"
    )
    spec.write_text(spec.read_text().replace("kind: calculator", "kind: python, function: 'own.py:place'"))
    assert main(["tools", str(spec)]) == 0
    shown = capsys.readouterr().out
    assert "order: Order" in shown
    assert "note: string or null (optional)" in shown


def test_tools_lists_schemas_and_runs_one(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", str(spec)]) == 0
    assert "expression" in capsys.readouterr().out
    assert main(["tools", str(spec), "--json"]) == 0
    (tool,) = json.loads(capsys.readouterr().out)
    assert tool["name"] == "calculate"
    assert tool["parameters"]["required"] == ["expression"]
    assert main(["tools", str(spec), "--call", "calculate", '{"expression": "6*7"}']) == 0
    assert capsys.readouterr().out == "42\n"
    assert main(["tools", str(spec), "--call", "calculate", '{"expresion": "6*7"}']) == 1


def test_play_takes_actions_from_a_person(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{CALL}\n\n<answer>5</answer>\n\n"))
    assert main(["play", str(spec)]) == 0
    shown = capsys.readouterr().out
    assert "What is 2 + 3?" in shown
    assert "terminated: answer" in shown
    assert "success: True" in shown


def test_play_keeps_the_episode_as_a_run(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "by hand"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{CALL}\n\n<answer>5</answer>\n\n"))
    assert main(["play", str(spec), "-o", str(run), "--seed", "7"]) == 0
    (row,) = open_run(run).rows()
    assert f"rlenv view '{run}' {row['id']}" in capsys.readouterr().out
    assert (row["seed"], row["turns"], row["success"]) == (7, 2, True)
    info = read_info(run)
    assert info is not None
    assert (info.kind, info.policy, info.state, info.facts["task"]) == ("play", "you", "ended", 0)
    (lock,) = locks_of(run).values()
    assert lock.hash12 == row["lock"] == info.attempts[0].lock
    assert lock.policy == {"kind": "you"}
    (kept,) = recorded_at(run)
    assert [turn.action for turn in kept.turns] == [CALL, "<answer>5</answer>"]


def test_a_task_that_is_none_begins_no_run(spec: Path, tmp_path: Path) -> None:
    assert main(["play", str(spec), "--policy", "oracle", "--task", "99", "-o", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["play"], ["eval"], ["eval", "--resume"]])
def test_an_option_about_a_runs_folder_wants_one(
    spec: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    option = command[1] if len(command) > 1 else "--overwrite"
    assert main([command[0], str(spec), option]) == 2
    assert f"{option} is about the run in the folder of -o" in capsys.readouterr().err


def test_eval_names_the_worst_episodes_of_the_run_that_it_kept(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["eval", str(spec), "--policy", "random", "-k", "8", "-o", str(run)]) == 0
    named = [line.split() for line in capsys.readouterr().out.splitlines() if f"rlenv view {run} " in line][-5:]
    rows = {row["id"]: row for row in open_run(run).rows()}
    wrong = sorted(row["reward"] for row in rows.values() if not row["success"])
    shown = [rows[words[-1]] for words in named]
    assert [row["reward"] for row in shown] == wrong[:5]
    capsys.readouterr()
    assert main(["eval", str(spec), "--policy", "oracle", "-o", str(tmp_path / "right")]) == 0
    assert "seed" not in capsys.readouterr().out


WAITS = """
import asyncio
from pathlib import Path

async def wait(expression: str) -> str:
    (Path(__file__).parent / "run" / "stop").touch()
    await asyncio.Event().wait()
    return ""
"""


@pytest.mark.parametrize("command", ["eval", "play"])
def test_the_file_stop_ends_a_run_as_ctrl_c_does(spec: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = spec.parent / "run"
    (spec.parent / "waits.py").write_text(WAITS)
    spec.write_text(spec.read_text().replace("{kind: calculator}", '{kind: python, function: "waits.py:wait"}'))
    run.mkdir()
    (run / "stop").touch()  # a wish that was meant for an earlier run
    assert main([command, str(spec), "--policy", "oracle", "-o", str(run)]) == 130
    assert "asks for the end" in capsys.readouterr().err
    info = read_info(run)
    assert info is not None
    assert info.state == "stopped"


def test_play_shows_a_policy(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", str(spec), "--policy", "oracle", "--task", "1"]) == 0
    shown = capsys.readouterr().out
    assert "calculate" in shown
    assert "success: True" in shown


@pytest.mark.slow
def test_the_command_is_installed_and_quiet_about_a_closed_pipe(spec: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlenv", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("rlenv ")
    line = f"{sys.executable} -m rlenv tools {spec} --json | head -c 1"
    piped: Any = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert "Traceback" not in piped.stderr


def test_bench_measures_each_concurrency_and_counts_what_it_played(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--bench", str(spec), "--episodes", "6", "--concurrency", "1", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [(row["concurrency"], row["episodes"], row["turns"], row["calls"]) for row in figures["rows"]] == [
        (1, 6, 12, 6),
        (3, 6, 12, 6),
    ]
    assert all(row["turns_per_s"] > 0 and row["cpu_us_a_turn"] > 0 and row["invalid"] == 0 for row in figures["rows"])
    assert figures["latency"]["calculate"]["calls"] == 6
    assert main(["eval", "--bench", str(spec), "--episodes", "2"]) == 0
    assert "turns/s" in capsys.readouterr().out
    assert main(["eval", "--bench", str(spec), "--concurrency", "0"]) == 2
