"""What the console prints is whole at every width, and in a pipe each row is a line."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.table import Table

from rlenv.cli.console import Console
from rlenv.cli.main import main
from rlenv.runs.folder import open_run
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.beside import served as beside
from tests.support.judges import PRICES, SPENDING

PATH = "runs/a-run-with-a-name-of-many-words-and-a-number-0017"
HEADS = ("run", "requests", "notes", "success", "cost")
PROSE = "the requests that were asked, completions and all, of another"


@pytest.fixture(autouse=True)
def no_width_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(of: object, width: int | None, *spare: str) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False, **({} if width is None else {"width": width}))
    console.show(of, spare=spare) if isinstance(of, Table) else console.print(of)
    return out.getvalue()


def table(*, show_header: bool = True) -> Table:
    found = Table(*HEADS, show_header=show_header)
    found.columns[0].no_wrap = True
    for number in range(2):
        found.add_row(f"{PATH}{number}", f"{number + 4:,}00", PROSE, "0.500", "0.0123 EUR")
    return found


@pytest.mark.parametrize("show_header", [True, False])
@pytest.mark.parametrize("width", [None, 20, 40, 60, 80, 100, 120, 200])
def test_no_word_of_a_table_is_cut(width: int | None, show_header: bool) -> None:
    out = printed(table(show_header=show_header), width)
    words = {*PROSE.split(), f"{PATH}0", f"{PATH}1", "400", "500", "0.500", "0.0123", "EUR"}
    assert words - {word for line in out.splitlines() for word in line.replace("│", " ").split()} == set()
    assert "…" not in out
    if width is not None:
        assert all(len(line) <= width for line in out.splitlines() if line.startswith(("┃", "│")))


def test_a_row_is_a_line_in_a_pipe() -> None:
    lines = [line for line in printed(table(), None).splitlines() if PATH in line]
    assert len(lines) == 2
    assert all(PROSE in line and "0.0123 EUR" in line for line in lines)


def test_spare_columns_go_before_a_name_is_cut_and_are_named() -> None:
    spare, counts = ("cost", "notes", "requests"), []
    for width in range(70, 200, 6):
        made = table()
        for column in made.columns:
            column.no_wrap = True
        *shown, last = printed(made, width, *spare).splitlines()
        assert all(len(line) <= width for line in shown)
        assert [line.split()[1][-1] for line in shown if PATH in line] == ["0", "1"]
        gone = [name for name in spare if name not in shown[1]]
        assert (
            last == f"too narrow for {', '.join(sorted(gone, key=HEADS.index))}: a pipe and --json have them"
        ) is bool(gone)
        counts.append(len(gone))
    assert counts[0] == 3
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("width", [None, 30, 80])
def test_a_path_or_a_command_in_a_line_can_be_pasted(width: int | None) -> None:
    command = f"rlenv view {PATH} some-id"
    assert command in printed(f"reward 0.100  {command}", width)


def test_a_box_is_its_text_under_a_heading_in_a_pipe() -> None:
    whole = f"— turn 1 —\n{PROSE * 4}\n"
    assert printed(Panel(PROSE * 4, title="turn 1"), None) == whole
    inside = Panel(Group(Panel(PROSE * 4, title="turn 1"), table()), title="episode")
    lines = printed(inside, None).splitlines(keepends=True)
    assert "".join(lines[:3]) == f"— episode —\n{whole}"
    assert max(map(len, lines)) < 300
    assert "─ turn 1 ─" in printed(Panel(PROSE, title="turn 1", title_align="left"), 80)


# What commands say of what was asked of models, and of its cost


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """A judge's server beside the command; gives the arguments of a command on the spec."""

    def answer(body: Mapping[str, Any]) -> str:
        return json.dumps({"reasoning": "fine", "score": 5}) if body["model"] == "judge-1" else "hello"

    with beside(FakeEndpoint(answer)) as server:
        (tmp_path / "spec.yaml").write_text(SPENDING.replace("ADDRESS", server.base_url))
        (tmp_path / "prices.yaml").write_text(PRICES)
        asked = ["--policy", "openai", "--base-url", server.base_url, "--model", "policy-1"]
        yield lambda command, *more: [command, str(tmp_path / "spec.yaml"), *asked, *more]


def without_seconds(usage: dict[str, Any]) -> dict[str, Any]:
    """A sum of seconds depends on the order of its parts in its last digit."""
    roles = [{name: value for name, value in role.items() if name != "seconds"} for role in usage["roles"]]
    return {**usage, "roles": roles}


def test_eval_says_what_each_role_asked_and_cost(
    served: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, run = str(tmp_path / "prices.yaml"), tmp_path / "run"
    assert main(served("eval", "--prices", prices, "-o", str(run))) == 0
    said = capsys.readouterr().out
    assert "models: 8 requests (0 failed)" in said
    assert "without policy-1: no price" in said
    usage = json.loads((run / "summary.json").read_text())["usage"]
    policy, judge = usage["roles"]
    assert (policy["role"], policy["model"], policy["requests"], policy["cost"]) == ("policy", "policy-1", 4, None)
    assert (judge["role"], judge["model"], judge["requests"]) == ("judge good", "judge-1", 4)
    assert judge["cost"] == judge["prompt_tokens"] == usage["cost"]
    assert usage["unpriced"] == ["policy-1"]
    rows = list(open_run(run).rows())
    assert sum(row["asked_tokens"] for row in rows) == usage["prompt_tokens"]
    assert [row["cost"] for row in rows] == [None] * 4
    assert main(["runs", "show", str(run), "--json"]) == 0
    assert without_seconds(json.loads(capsys.readouterr().out)["usage"]) == without_seconds(usage)
    assert main(["runs", "show", str(run)]) == 0
    assert "without policy-1: no price" in capsys.readouterr().out
    assert main(["runs", "list", str(run)]) == 0
    assert f"{usage['prompt_tokens'] + usage['completion_tokens']:,}" in capsys.readouterr().out
    assert main(["rescore", str(run), "--spec", str(tmp_path / "spec.yaml"), "--json", "--prices", prices]) == 0
    again = json.loads(capsys.readouterr().out)["usage"]
    assert (
        main(["rescore", "--ablate", str(run), "--spec", str(tmp_path / "spec.yaml"), "--json", "--prices", prices])
        == 0
    )
    by_ablate = json.loads(capsys.readouterr().out)["usage"]
    assert (by_ablate["requests"], by_ablate["cost"]) == (4, again["cost"])
    assert main(["rescore", "--ablate", str(run), "--spec", str(tmp_path / "spec.yaml"), "--prices", prices]) == 0
    assert "models: 4 requests (0 failed)" in capsys.readouterr().out
    assert [(one["role"], one["is_recorded"]) for one in again["roles"]] == [
        ("policy", True),
        ("judge good", True),
        ("judge good", False),
    ]
    assert (again["requests"], again["unpriced"]) == (4, [])


def test_other_specs_and_weights_count_what_was_asked_once(
    served: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, spec, other = str(tmp_path / "run"), tmp_path / "spec.yaml", tmp_path / "other.yaml"
    assert main(served("eval", "-o", run)) == 0
    other.write_text(spec.read_text().replace("Is it good?", "Is it really good?"))
    capsys.readouterr()

    def usage(*args: str) -> dict[str, Any]:
        assert main(["rescore", run, "--json", *args]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["usage"]
        return found

    both = usage("--spec", str(spec), "--spec", str(other))
    made = [(one["role"], one["requests"], one["is_recorded"]) for one in both["roles"]]
    assert made == [("policy", 4, True), ("judge good", 4, True), ("judge good", 8, False)]
    weighed = usage("--weight", "good=2")
    assert weighed["requests"] == 0
    assert all(one["is_recorded"] for one in weighed["roles"])


def test_a_replayed_run_costs_nothing_and_says_so(
    served: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(served("eval", "-o", run, "--record")) == 0
    capsys.readouterr()
    assert main(["replay", run]) == 0
    assert "models: none was asked; 4 requests are from the record and cost nothing now" in capsys.readouterr().out
    assert main(served("eval", "--tape", run, "--prices", str(tmp_path / "prices.yaml"), "--json")) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    # The policy is the one that is tried: its server is asked.
    assert (usage["requests"], usage["cost"]) == (4, None)
    made = [(one["role"], one["requests"], one["is_recorded"]) for one in usage["roles"]]
    assert made == [("policy", 4, False), ("judge good", 4, True)]


@pytest.mark.slow
def test_play_and_audit_say_it_too(
    served: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = str(tmp_path / "prices.yaml")
    assert main(served("play", "--prices", prices)) == 0
    assert "models: 2 requests (0 failed)" in capsys.readouterr().out
    main(["audit", str(tmp_path / "spec.yaml"), "--prices", prices, "-n", "2", "--attacked", "2", "--json"])
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert usage["requests"] > 0
    assert {one["role"] for one in usage["roles"]} == {"judge good"}
    assert usage["cost"] == usage["prompt_tokens"]
    anchors = tmp_path / "anchors.jsonl"
    anchors.write_text("".join(f'{{"task": {{"q": "{q}"}}, "message": "{q}", "label": 1}}\n' for q in "abcd"))
    judge = ["audit", str(tmp_path / "spec.yaml"), "--judge", "--anchors", str(anchors), "--prices", prices, "--json"]
    main(judge)
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert [one["role"] for one in usage["roles"]] == ["judge good"]
    assert usage["cost"] == usage["prompt_tokens"] > 0


def test_a_run_ends_once_it_has_cost_more_and_can_go_on(
    served: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, run = str(tmp_path / "prices.yaml"), str(tmp_path / "run")
    options = ["--prices", prices, "-o", run, "--concurrency", "1"]
    assert main(served("eval", *options, "--max-cost", "1")) == 130
    said = capsys.readouterr().err
    assert "EUR, more than --max-cost 1.000; 3 are not played: --resume" in said
    assert "--max-cost leaves out policy-1, which has no price" in said
    assert len(list(open_run(run).rows())) == 1
    assert main(served("eval", *options, "--resume", "--max-cost", "1")) == 130
    assert "3 are not played" in capsys.readouterr().err
    assert len(list(open_run(run).rows())) == 1  # the first attempt has spent it
    assert main(served("eval", *options, "--resume", "--max-cost", "1e9")) == 0
    assert len({row["task"] for row in open_run(run).rows()}) == 4


def test_a_budget_without_prices_is_refused(
    served: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(served("eval", "--max-cost", "1")) == 2
    assert "--max-cost needs to know what tokens cost" in capsys.readouterr().err


def test_the_guide_says_of_every_command_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "cost.md").read_text()
    table = guide.partition("## Where it is shown")[2].partition("\n## ")[0]
    told = {words.split()[0] for words in re.findall(r"`(?:rlenv )?([a-z][a-z -]*)", table)}
    main([])
    commands = set(re.findall(r"^    ([a-z][a-z-]*)(?:  |$)", capsys.readouterr().out, re.M))
    assert "eval" in commands
    assert commands - told == set()


CONTEST = """
rlenv: 1
name: contest
tasks: {test: {rows: [{q: a}, {q: b}, {q: c}, {q: d}, {q: e}, {q: f}]}}
prompt: {user: "Task {{ task.q }}"}
endpoints: {judge: {base_url: "ADDRESS", model: judge-1}}
rewards: {best: {kind: judge, endpoint: judge, prompt: "Which is better?", pairwise: {with: group}}}
"""


@pytest.fixture
def contest(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """As `served`, with a judge that compares the answers of a group, of which each is another one."""
    numbers = itertools.count()

    def answer(body: Mapping[str, Any]) -> str:
        if body["model"] != "judge-1":
            return str(next(numbers))
        return json.dumps({"reasoning": "fine", "better": "first"})

    with beside(FakeEndpoint(answer)) as server:
        (tmp_path / "spec.yaml").write_text(CONTEST.replace("ADDRESS", server.base_url))
        (tmp_path / "prices.yaml").write_text(PRICES)
        asked = ["--policy", "openai", "--base-url", server.base_url, "--model", "policy-1", "-k", "3"]
        yield lambda command, *more: [command, str(tmp_path / "spec.yaml"), *asked, *more]


def test_eval_compares_the_answers_of_each_task_and_counts_what_that_costs(
    contest: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, run = str(tmp_path / "prices.yaml"), str(tmp_path / "run")
    assert main(contest("eval", "--prices", prices, "-o", run)) == 0
    usage = json.loads((tmp_path / "run" / "summary.json").read_text())["usage"]
    (judge,) = [role for role in usage["roles"] if role["role"] == "judge best"]
    assert judge["requests"] == 6 * 3 * 2
    assert judge["cost"] == usage["cost"] > 0
    kept = [open_run(run).body(row["id"]).trajectory() for row in open_run(run).rows()]
    assert [one.reward.terms["best"].value for one in kept] == [0.5] * 18
    assert sum(each.requests for one in kept for each in one.usage if each.role == "judge best") == 36


def test_a_budget_ends_what_is_asked_about_groups(
    contest: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, run = str(tmp_path / "prices.yaml"), str(tmp_path / "run")
    assert main(contest("eval", "--prices", prices, "-o", run, "--max-cost", "1")) == 130
    assert "not all answers to a task are compared: --resume" in capsys.readouterr().err
    assert main(contest("eval", "--prices", prices, "-o", run, "--max-cost", "1e9", "--resume")) == 0
    kept = [open_run(run).body(row["id"]).trajectory() for row in open_run(run).rows()]
    assert [one.reward.terms["best"].value for one in kept] == [0.5] * 18
