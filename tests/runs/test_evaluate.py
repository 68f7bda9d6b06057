"""An evaluation as a function: the same run as the command's, with any kind of policy, from any caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.cli.main import main
from rlenv.messages import Message
from rlenv.runs.folder import read_info
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.beside import served
from tests.support.judges import PRICES, SPENDING

OF_THE_CLOCK = {
    *("id", "started", "seconds", "ended", "pid", "host", "command", "bytes", "episode", "at", "uid"),
    *("reward_seconds", "score_seconds", "begun", "latency"),
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server of a judge and of a policy, and beside it `spec.yaml` and `prices.yaml`."""

    def answer(body: Mapping[str, Any]) -> str:
        return json.dumps({"reasoning": "fine", "score": 5}) if body["model"] == "judge-1" else "hello"

    with served(FakeEndpoint(answer)) as server:
        (tmp_path / "spec.yaml").write_text(SPENDING.replace("ADDRESS", server.base_url))
        (tmp_path / "prices.yaml").write_text(PRICES)
        yield server.base_url


def timeless(value: Any) -> Any:
    """A value without what a clock or chance has made of it."""
    if isinstance(value, Mapping):
        return {key: timeless(held) for key, held in value.items() if key not in OF_THE_CLOCK}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [timeless(held) for held in value]
    return value


def content(run: Path) -> dict[str, Any]:
    """What a run's folder holds: its files' names, its rows and episodes, and what is said of it."""
    reader = rlenv.open_run(run)
    order = sorted(reader.rows(), key=lambda row: (row["task"], row["sample"]))
    (lock,) = (json.loads(path.read_text()) for path in (run / "locks").iterdir())
    (attempt,) = json.loads((run / "run.json").read_text())["attempts"]
    return {
        "files": sorted({path.relative_to(run).parts[0] for path in run.rglob("*")}),
        "rows": [timeless(row) for row in order],
        "episodes": [timeless(json.loads(reader.body(row["id"]).record)) for row in order],
        "summary": timeless(json.loads((run / "summary.json").read_text())),
        "info": timeless(json.loads((run / "run.json").read_text())),
        "lock": timeless(lock),
        "hash": attempt["lock"],
    }


@pytest.mark.parametrize("policy", ["oracle", "openai"])
def test_the_run_is_the_commands_but_for_its_times(tmp_path: Path, address: str, policy: str) -> None:
    spec, prices = str(tmp_path / "spec.yaml"), str(tmp_path / "prices.yaml")
    server = ["--base-url", address, "--model", "policy-1", "--temperature", "0"] if policy == "openai" else []
    command = ["eval", spec, "--policy", policy, *server, "-k", "2", "--seed", "3", "--prices", prices, "--record"]
    command += ["--concurrency", "1"]  # which episode asks the judge first, and which ones share its answer
    assert main([*command, "--set", "limits.turns=2", "-o", str(tmp_path / "by_command")]) == 0
    who: Any = policy
    if policy == "openai":
        who = rlenv.OpenAIPolicy(address, "policy-1", sampling=rlenv.SamplingSpec(temperature=0.0))
    done = rlenv.evaluate(
        spec,
        who,
        k=2,
        seed=3,
        concurrency=1,
        prices=prices,
        record=True,
        set={"limits.turns": "2"},
        out=tmp_path / "by_function",
    )
    assert content(tmp_path / "by_function") == content(tmp_path / "by_command")
    assert done.summary.episodes == len(done.trajectories) == len(set(done.ids)) == 8
    assert done.folder == tmp_path / "by_function"
    assert done.figures == json.loads((tmp_path / "by_function" / "summary.json").read_text())
    tape = tmp_path / "by_function"
    again = rlenv.evaluate(spec, who, k=2, seed=3, tape=tape, set={"limits.turns": "2"})
    assert [one.reward.total for one in again.trajectories] == [one.reward.total for one in done.trajectories]
    assert not again.summary.usage.cost


def test_an_async_function_is_a_policy() -> None:
    seen: list[Sequence[Message]] = []

    async def guess(messages: Sequence[Message]) -> str:
        seen.append(tuple(messages))
        return "<answer>7</answer>"

    counts: list[tuple[int, int]] = []
    done = rlenv.evaluate("arithmetic", guess, n=3, on_end=lambda one, ended, total: counts.append((ended, total)))
    assert (done.figures["policy"], done.split, len(seen)) == ("guess", "test", 3)
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert {one.answer for one in done.trajectories} == {"7"}


@pytest.mark.parametrize("policy", [lambda messages: "5", 5, "opneai", "openai", "script:nowhere"])
def test_what_is_no_policy_is_refused_and_leaves_no_folder(tmp_path: Path, policy: Any) -> None:
    with pytest.raises(rlenv.UsageError):
        rlenv.evaluate("arithmetic", policy, n=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"k": 0}, {"n": 0}, {"concurrency": 0}, {"until_width": 1.0}, {"resume": True}, {"record": True}, {"max_cost": 1}],
)
def test_arguments_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(rlenv.UsageError):
        rlenv.evaluate("arithmetic", **wrong)


def test_it_is_awaited_and_runs_inside_of_a_running_loop() -> None:
    async def both() -> list[rlenv.Evaluation]:
        return [await rlenv.evaluate_async("arithmetic", "random", n=3), rlenv.evaluate("arithmetic", "random", n=3)]

    awaited, inside = asyncio.run(both())
    assert [one.answer for one in inside.trajectories] == [one.answer for one in awaited.trajectories]
    assert inside.figures["reward_mean"] == awaited.figures["reward_mean"]


def test_what_it_may_cost_ends_a_run_which_goes_on_later(tmp_path: Path, address: str) -> None:
    spec, run, prices = tmp_path / "spec.yaml", tmp_path / "run", tmp_path / "prices.yaml"
    said: list[str] = []
    with pytest.raises(rlenv.RunStopped, match="3 are not played"):
        rlenv.evaluate(spec, out=run, prices=prices, max_cost=1, concurrency=1, say=said.append)
    assert any("models:" in line for line in said)  # what was spent is told
    info = read_info(run)
    assert info is not None
    assert info.state == "stopped"
    done = rlenv.evaluate(spec, out=run, prices=prices, max_cost=1e9, resume=True)
    assert done.summary.episodes == 4
    assert len(list(rlenv.open_run(run).rows())) == 4


def test_what_is_played_again_has_cost_all_the_same(tmp_path: Path) -> None:
    spec, prices, replies = tmp_path / "spec.yaml", tmp_path / "prices.yaml", ["no verdict"]

    with served(FakeEndpoint(lambda _: replies[0])) as server:
        spec.write_text(SPENDING.replace("ADDRESS", server.base_url))
        prices.write_text(PRICES)
        first = rlenv.evaluate(spec, out=tmp_path / "run", prices=prices, concurrency=1)
        assert (first.summary.invalid, first.summary.episodes) == (4, 4)
        replies[0] = json.dumps({"reasoning": "fine", "score": 5})
        again: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "prices": prices, "concurrency": 1}
        with pytest.raises(rlenv.RunStopped):
            rlenv.evaluate(spec, max_cost=first.summary.usage.cost, **again)
        assert rlenv.evaluate(spec, max_cost=1e9, **again).summary.invalid == 0


def test_a_run_that_is_cancelled_has_stopped(tmp_path: Path) -> None:
    async def cancelled() -> None:
        began = asyncio.Event()

        async def waits(messages: Sequence[Message]) -> str:
            began.set()
            await asyncio.get_running_loop().create_future()
            return ""

        task = asyncio.create_task(rlenv.evaluate_async("arithmetic", waits, n=1, out=tmp_path / "run"))
        await began.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    info = read_info(tmp_path / "run")
    assert info is not None
    assert info.state == "stopped"


def test_what_is_open_on_the_callers_loop_serves_the_next_call() -> None:
    environment = rlenv.load("arithmetic")
    episode = environment.start(task=0, split="test")
    rlenv.run_sync(episode.open)
    assert rlenv.run_sync(episode.step, "<answer>7</answer>").is_last
    rlenv.run_sync(environment.aclose)


def test_the_other_players_may_be_played_by_any_policy_and_the_run_says_so(tmp_path: Path) -> None:
    async def stops(messages: Sequence[Message]) -> str:
        return "I stop."

    done = rlenv.evaluate("tic-tac-toe", "oracle", opponent=stops, out=tmp_path / "run")
    assert done.summary.success_rate == 1
    assert {other.answer for one in done.trajectories for other in one.others} <= {"I stop.", None}
    (lock,) = (json.loads(path.read_text()) for path in (tmp_path / "run" / "locks").iterdir())
    assert lock["policy"] == {"kind": "oracle", "opponent": {"kind": "stops"}}


def test_an_opponent_by_chance_is_the_specs_own() -> None:
    done = rlenv.evaluate("tic-tac-toe", "oracle", opponent="random")
    assert {other.answer for one in done.trajectories for other in one.others} == {None}


def test_an_opponent_is_refused_where_there_is_no_other_player() -> None:
    with pytest.raises(rlenv.errors.UsageError, match="several players"):
        rlenv.evaluate("arithmetic", opponent="random")


def test_what_a_tool_raises_is_logged_with_nothing_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "own.py").write_text("def look(place: str) -> str:\n    'Looks.'\n    raise OSError(place)\n")
    (tmp_path / "spec.yaml").write_text(
        "rlenv: 1\nname: s\ntasks: {train: {rows: [{q: a}]}}\nprompt: {user: '{{ task.q }}'}\n"
        "tools: {look: {kind: python, function: 'own.py:look', run_in: loop}}\n"
        "rewards: {r: {kind: rule, rule: answered}}\noracle: [{call: {look: {place: x}}}, {say: <answer>a</answer>}]\n"
    )
    rlenv.evaluate(tmp_path / "spec.yaml")
    (logged,) = [record.exc_info for record in caplog.records if record.name == "rlenv.tools"]
    assert logged is not None
    assert logged[1] is not None
    assert (str(logged[1]), logged[1].__context__) == ("x", None)
