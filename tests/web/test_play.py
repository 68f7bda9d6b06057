"""Episodes that somebody plays: by hand, by the oracle, by a model at a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rlenv.errors import SpecError, UsageError
from rlenv.runs.stage import PolicyChoice
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.web.play import Plays
from tests.support.environments import BASE
from tests.support.served import Asks, served

TOY = BASE.lstrip().replace("oracle:", "  calls: {kind: rule, rule: valid_calls, weight: 0.5, when: turn}\noracle:")
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'


class Clock:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def playing(play: Callable[[Plays], Awaitable[None]], plays: Plays | None = None) -> None:
    async def main() -> None:
        made = plays if plays is not None else Plays()
        try:
            async with asyncio.timeout(60):
                await play(made)
        finally:
            await made.aclose()

    asyncio.run(main())


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(TOY, encoding="utf-8")
    return path


def test_each_step_shows_what_was_read_run_and_earned_so_far(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        session = await plays.start(spec, task=1, seed=3)
        state = session.state()
        assert [message["role"] for message in state["messages"]] == ["system", "user"]
        assert (state["split"], state["task"], state["seed"], state["ended"]) == ("train", 1, 3, False)
        assert [term["status"] for term in state["reward"]["terms"]] == ["pending", "pending"]

        state = (await plays.step(session.id, f"I compute.{CALL}")).state()
        (turn,) = state["turns"]
        assert turn["parse"]["content"].strip() == "I compute."
        assert turn["parse"]["calls"][0]["name"] == "calculate"
        assert turn["parse"]["calls"][0]["well_formed"]
        assert [(one["tool"], one["outcome"]) for one in turn["schedule"]] == [("calculate", "ok")]
        assert "5" in turn["observation"]
        terms = {term["name"]: term for term in state["reward"]["terms"]}
        assert (terms["calls"]["status"], terms["calls"]["value"]) == ("so far", 1.0)
        assert terms["correct"]["status"] == "pending"

        state = (await plays.step(session.id, "<answer>8</answer>")).state()
        assert (state["ended"], state["reason"], state["answer"], state["success"]) == (True, "answer", "8", True)
        assert state["reward"]["total"] == 1.5
        assert len(state["turns"]) == 2
        with pytest.raises(UsageError, match="has ended"):
            await plays.step(session.id, "more")

    playing(play)


def test_a_call_that_cannot_be_read_is_shown_as_one(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        session = await plays.start(spec)
        state = (await plays.step(session.id, "<tool_call>\n{nothing\n</tool_call>")).state()
        (call,) = state["turns"][-1]["parse"]["calls"]
        assert not call["well_formed"]
        assert call["reason"]
        assert state["turns"][0]["calls_malformed"] == 1

    playing(play)


def test_the_oracle_takes_its_own_actions(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        session = await plays.start(spec, policy=PolicyChoice("oracle"))
        with pytest.raises(UsageError, match="takes no action of yours"):
            await plays.step(session.id, "mine")
        while not session.episode.is_ended:
            await plays.step(session.id, None)
        assert session.state()["reward"]["total"] == 1.5
        assert [message["role"] for message in session.state()["messages"]][-1] == "assistant"

    playing(play)


def test_a_model_at_a_server_plays(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        async with FakeEndpoint([CALL, "<answer>5</answer>"]) as server:
            session = await plays.start(spec, policy=PolicyChoice("openai", server.base_url, "m"))
            await plays.step(session.id, None)
            state = (await plays.step(session.id, None)).state()
            assert (state["policy"], state["reward"]["total"]) == ("openai", 1.5)
            assert [one["role"] for one in server.requests[1]["messages"]] == ["system", "user", "assistant", "tool"]

    playing(play)


def test_a_server_that_refuses_makes_the_reward_invalid(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        async with FakeEndpoint([Reply(401, "no")]) as server:
            session = await plays.start(spec, policy=PolicyChoice("openai", server.base_url, "m", retries=0))
            state = (await plays.step(session.id, None)).state()
            assert state["ended"]
            assert state["failure"]["reason"] == "policy"
            assert state["reward"]["total"] is None

    playing(play)


def test_a_text_is_played_without_being_saved(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        session = await plays.start(spec, text=TOY.replace("Use the tools.", "Changed."))
        assert session.state()["messages"][0]["content"] == "Changed."
        with pytest.raises(SpecError):
            await plays.start(spec, text=TOY.replace("name: toy", "name: Toy"))
        assert len(plays) == 1

    playing(play)


@pytest.mark.parametrize(
    "wrong", [{"task": 7}, {"split": "none"}, {"policy": PolicyChoice("oracl")}, {"policy": PolicyChoice("openai")}]
)
def test_what_is_not_there_is_refused(wrong: dict, spec: Path) -> None:
    async def play(plays: Plays) -> None:
        with pytest.raises(UsageError):
            await plays.start(spec, **wrong)
        assert len(plays) == 0

    playing(play)


def test_a_file_that_ends_the_program_does_not_end_the_server(spec: Path) -> None:
    (spec.parent / "ends.py").write_text("raise SystemExit(3)\n", encoding="utf-8")

    async def play(plays: Plays) -> None:
        text = TOY.replace("{kind: calculator}", '{kind: python, function: "ends.py:run"}')
        with pytest.raises((UsageError, SpecError)):
            await plays.start(spec, text=text)

    playing(play)


def test_an_edit_of_a_file_is_played_at_once_and_not_in_sessions_before(spec: Path) -> None:
    file = spec.parent / "said.py"
    text = TOY.replace("{kind: calculator}", '{kind: python, function: "said.py:run"}').partition("oracle:")[0]
    call = '<tool_call>\n{"name": "calculate", "arguments": {}}\n</tool_call>'

    async def play(plays: Plays) -> None:
        file.write_text("def run() -> str:\n    'Says.'\n    return 'before'\n", encoding="utf-8")
        first = await plays.start(spec, text=text)
        file.write_text("def run() -> str:\n    'Says.'\n    return 'afterwards'\n", encoding="utf-8")
        second = await plays.start(spec, text=text)
        assert "before" in (await plays.step(first.id, call)).state()["turns"][-1]["observation"]
        assert "afterwards" in (await plays.step(second.id, call)).state()["turns"][-1]["observation"]

    playing(play)


def test_so_many_sessions_and_no_more(spec: Path) -> None:
    async def play(plays: Plays) -> None:
        first = await plays.start(spec)
        await plays.start(spec)
        with pytest.raises(UsageError, match="2 episodes"):
            await plays.start(spec)
        await plays.close(first.id)
        await plays.start(spec)

    playing(play, Plays(most=2))


def test_a_session_that_nobody_steps_is_closed(spec: Path) -> None:
    clock = Clock()

    async def play(plays: Plays) -> None:
        idle, stepped = await plays.start(spec), await plays.start(spec)
        clock.now = 599.0
        await plays.step(stepped.id, CALL)
        clock.now = 600.0
        await plays.close_idle()
        assert plays.get(stepped.id) is stepped
        with pytest.raises(UsageError, match="no session"):
            plays.get(idle.id)

    playing(play, Plays(clock=clock))


def test_a_session_is_closed_while_it_takes_a_step(spec: Path) -> None:
    (spec.parent / "slow.py").write_text(
        "import asyncio, pathlib\nasync def run() -> str:\n    'Waits.'\n"
        "    pathlib.Path(__file__).with_name('seen').touch()\n    await asyncio.sleep(3600)\n    return ''\n",
        encoding="utf-8",
    )
    text = TOY.replace("{kind: calculator}", '{kind: python, function: "slow.py:run", timeout_s: 3600}')

    async def play(plays: Plays) -> None:
        session = await plays.start(spec, text=text.partition("oracle:")[0])
        step = asyncio.create_task(
            plays.step(session.id, '<tool_call>\n{"name": "calculate", "arguments": {}}\n</tool_call>')
        )
        while not (spec.parent / "seen").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="another step"):
            await plays.step(session.id, CALL)
        await plays.close(session.id)
        with pytest.raises(UsageError, match="closed while"):
            await step

    playing(play)


def test_the_routes_play_an_episode(spec: Path) -> None:
    async def play(ask: Asks) -> None:
        begun = await ask.fine("POST", "/api/play", {"spec": "toy.yaml", "task": 0, "policy": "you"})
        route = f"/api/play/{begun['session']}"
        assert "an action is missing" in await ask.refused("POST", f"{route}/step", {})
        state = (await ask.fine("POST", f"{route}/step", {"action": "\ud800<answer>5</answer>"}))["state"]
        assert state["reward"]["total"] == 1.0
        assert (await ask.fine("GET", route))["state"] == state
        await ask.fine("DELETE", route)
        await ask.fine("DELETE", route)
        assert "no session" in await ask.refused("POST", f"{route}/step", {})
        bad = {"spec": "toy.yaml", "text": TOY.replace("name: toy", "name: Toy")}
        status, answer = await ask("POST", "/api/play", bad)
        assert (status, answer["faults"][0]["line"], answer["faults"][0]["path"]) == (422, 2, "name")
        assert "base_url" in await ask.refused("POST", "/api/play", {"spec": "toy.yaml", "policy": "openai"})

    served((spec.parent,), play)
