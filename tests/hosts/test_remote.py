"""A remote environment is played as a local one, and its server's faults cost one sample each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

import rlenv
from rlenv.cli.main import main
from rlenv.endpoints.account import read_call
from rlenv.episodes.environment import Environment, load
from rlenv.errors import EpisodeError, UsageError
from rlenv.hosts import wire
from rlenv.hosts.link import Door, RemoteLink
from rlenv.hosts.remote import RemoteEnvironment
from rlenv.hosts.serve import ServerLimits
from rlenv.hosts.workers import listen
from rlenv.runs.evaluate import evaluate
from rlenv.runs.replay import replay, rescore
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.trajectory import Trajectory
from tests.hosts.serving import DOWN, Served, serving
from tests.support.environments import BASE, Make
from tests.support.token_episodes import SITUATIONS, WORDS, Sampler

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'


@pytest.fixture
def toy(make_environment: Make) -> Iterator[Served]:
    with serving(make_environment()) as served:
        yield served


class Says:
    """A policy that says the same in every episode."""

    name = "says"

    def __init__(self, *actions: str) -> None:
        self._actions = actions

    def start(self, context: rlenv.PolicyContext) -> Says:
        return Says(*self._actions)

    async def act(self, messages: Sequence[rlenv.Message]) -> str:
        action, *rest = self._actions
        self._actions = tuple(rest)
        return action

    async def aclose(self) -> None:
        pass


def remote(served: Served, **options: Any) -> RemoteEnvironment:
    return RemoteEnvironment(served.url, patience_s=options.pop("patience_s", 20.0), **options)


def compared(trajectory: Trajectory) -> Mapping[str, Any]:
    """What does not depend on where an episode was played."""
    turns = []
    for turn in trajectory.turns:
        shown = turn.observation and (turn.observation.messages, turn.observation.text)
        results = [(one.name, one.text, one.outcome) for one in turn.results]
        parsed = turn.parsed if "\ud800" not in turn.action else None  # the wire has no lone surrogates
        turns.append((turn.action, parsed, shown, results, turn.calls_malformed, turn.finish_reason))
    reward = trajectory.reward
    terms = {name: (term.status, term.value, term.weight, term.turn_values) for name, term in reward.terms.items()}
    place = (trajectory.environment, trajectory.split, trajectory.task_index, trajectory.seed)
    ended = (trajectory.terminated, trajectory.truncated, trajectory.reason, trajectory.success, trajectory.answer)
    return {
        "place": place, "messages": trajectory.messages, "turns": turns, "ended": ended,
        "reward": (reward.total, terms, reward.turn_rewards),
    }  # fmt: skip


def nested(levels: int) -> rlenv.Message:
    """A call as a model's server gives it, whose arguments are nested so deep."""
    arguments = f'{{"expression": {"[" * (levels - 1)}{"]" * (levels - 1)}}}'
    return rlenv.Message("assistant", "", (read_call({"name": "calculate", "arguments": arguments}, "a"),))


SCRIPTS = (
    (CALL, "<answer>5</answer>"),
    ("<answer>7</answer>",),
    ("no answer at all",),
    (CALL, CALL, CALL, CALL),
    (
        "<tool_call>{broken</tool_call>",
        '<tool_call>{"name": "nope", "arguments": {}}</tool_call>',
        "<answer>5</answer>",
    ),
    ("a lone \ud800 surrogate <answer>5</answer>",),
    (nested(128), nested(129), "<answer>7</answer>"),
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_episode_has_the_record_that_it_has_here(script: tuple[Any, ...], make_environment: Make) -> None:
    async def play(environment: Environment) -> Trajectory:
        async with environment, environment.start(task=0) as episode:
            for action in script:
                if (await episode.step(action)).is_last:
                    break
            return episode.trajectory

    here = asyncio.run(play(make_environment()))
    with serving(make_environment()) as served:
        there = asyncio.run(play(remote(served)))
    assert compared(there) == compared(here)


@pytest.mark.parametrize("said", ["\x01" * 3_000_000, rlenv.Message("assistant", "a", thinking="\x01" * 3_000_000)])
def test_no_action_is_longer_than_a_message_may_be(said: str | rlenv.Message) -> None:
    message = wire.to_json({"type": "step", "data": wire.action_data(said)})
    assert len(message.encode()) < ServerLimits().message_bytes


def test_structured_calls_and_their_ids_travel(toy: Served) -> None:
    async def main() -> Trajectory:
        async with remote(toy) as environment, environment.start(task=0) as episode:
            calls = (rlenv.ToolCall("calculate", {"expression": "2+3"}, "a"),)
            step = await episode.step(rlenv.Message("assistant", "I count.", calls))
            assert [(one.content, one.tool_call_id) for one in step.observation.messages] == [("5", "a")]
            await episode.step(rlenv.Message("assistant", "<answer>5</answer>"))
            return episode.trajectory

    assert asyncio.run(main()).reward.total == 1.0


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_token_episode_has_the_same_ids_and_mask(situation: str, tmp_path: Path) -> None:
    spec, texts, limits, _ = SITUATIONS[situation]
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "spec.yaml").write_text(spec)

    async def play(environment: Environment) -> Any:
        encoder, sampler = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE), Sampler(texts)
        options: dict[str, Any] = {"max_response_tokens": 8192, **limits}
        async with environment, rlenv.TokenEpisode(environment, encoder, task=0, **options) as played:
            while not played.is_ended:
                await played.step(*await sampler(played.context_ids, **played.sampling))
            rows = [(row.prompt_ids, row.response_ids, row.mask, row.logprobs, row.turn_spans) for row in played.rows]
            return rows, compared(played.trajectory)

    here = asyncio.run(play(load(tmp_path / "spec.yaml")))
    with serving(load(tmp_path / "spec.yaml")) as served:
        there = asyncio.run(play(remote(served)))
    assert there == here


def test_a_policy_is_rolled_out_and_evaluated_there_and_the_run_is_kept(toy: Served, tmp_path: Path) -> None:
    environment = remote(toy)
    script = Says(CALL, "<answer>5</answer>")
    done = evaluate(environment, script, k=2, out=tmp_path / "run")
    assert [one.reward.total for one in done.trajectories] == [1.0, 1.0, 0.0, 0.0]
    assert [row["turns"] for row in rlenv.open_run(tmp_path / "run").rows()] == [2, 2, 2, 2]
    toy.wait_for(lambda: toy.server.slots.active == 0)


def test_where_the_spec_is_here_too_an_episode_is_replayed_and_scored_again(make_environment: Make) -> None:
    here = make_environment()
    done = evaluate_there(here, Says(CALL, "<answer>5</answer>"))
    assert [dict(one.task)["answer"] for one in done] == [5, 8]
    assert [one.differences for one in asyncio.run(replay(here, done))] == [(), ()]
    again = asyncio.run(rescore(make_environment(BASE.replace("numeric_match", "numeric_match, weight: 2")), done))
    assert [one.reward.total for one in again] == [2.0, 0.0]
    with serving(here) as served:  # where it does not compile, its rows are read all the same
        assert remote(served, spec=here.loaded).tasks("train")[1]["answer"] == 8
    other = make_environment(BASE.replace("turns: 4", "turns: 5"))
    with serving(other) as served, pytest.raises(UsageError, match="serves another state of toy"):
        remote(served, spec=here)


def evaluate_there(here: Environment, policy: rlenv.Policy) -> list[Trajectory]:
    with serving(here) as served:
        return list(evaluate(remote(served, spec=here), policy).trajectories)


def test_a_judge_that_is_down_is_invalid_there_and_its_address_stays_with_the_server(make_environment: Make) -> None:
    async def play(environment: Environment) -> Trajectory:
        async with environment, environment.start(task=0) as episode:
            await episode.step("<answer>5</answer>")
            return episode.trajectory

    with serving(make_environment(DOWN)) as served:
        played = asyncio.run(play(remote(served)))
    assert (played.reward.total, played.success, played.reason) == (None, None, "reward")
    assert played.reward.terms["correct"].value == 1.0
    assert not [word for word in ("secret-judge", "127.0.0.1:9") if word in repr(played)]


def test_a_server_that_dies_in_an_episode_masks_that_one_and_the_next_waits_for_it(make_environment: Make) -> None:
    async def main() -> tuple[Trajectory, Trajectory]:
        environment = remote(first)
        async with environment:
            async with environment.start(task=0) as episode:
                await episode.step(CALL)
                await asyncio.to_thread(first.stop)
                await episode.step("<answer>5</answer>")
            with serving(make_environment(), port=first.port):
                async with environment.start(task=0) as another:
                    await another.step("<answer>5</answer>")
            return episode.trajectory, another.trajectory

    with serving(make_environment(), limits=ServerLimits(drain_s=0)) as first:
        lost, won = asyncio.run(main())
    assert (lost.reward.total, lost.failure and lost.failure.reason) == (None, "remote")
    assert won.reward.total == 1.0


def test_a_client_waits_for_a_slot_and_gives_up_in_time(make_environment: Make) -> None:
    async def main() -> tuple[Trajectory, float | None]:
        async with remote(served, patience_s=0.2) as hasty, remote(served) as patient:
            async with hasty.start(task=0) as holding:
                async with hasty.start(task=1) as refused:
                    pass
                waiting = asyncio.create_task(rlenv.rollout(patient, Says("<answer>5</answer>"),
                                                            [rlenv.Job("train", 0)]))  # fmt: skip
                await holding.step("<answer>5</answer>")
            await hasty.aclose()
            (played,) = await waiting
            return refused.trajectory, played.reward.total

    with serving(make_environment(), limits=ServerLimits(sessions=1, drain_s=1)) as served:
        refused, total = asyncio.run(main())
    assert refused.reason == "remote"
    assert total == 1.0


def test_an_episode_that_is_cut_from_outside_is_scored_by_the_server(toy: Served) -> None:
    async def main() -> Trajectory:
        async with remote(toy) as environment, environment.start(task=0) as episode:
            await episode.step(CALL)
            return await episode.truncate("response_tokens", action=rlenv.Sampled("<answer>5</answer>"))

    cut = asyncio.run(main())
    assert (cut.reason, cut.truncated, cut.reward.total, len(cut.turns)) == ("response_tokens", True, 1.0, 2)


SLOW = """
import asyncio

async def hang(n: int) -> str:
    "Hang."
    await asyncio.sleep(600)
    return "late"
"""


def test_a_step_that_hangs_is_interrupted_and_scored_with_its_action(make_environment: Make) -> None:
    text = BASE.replace(
        "  calculate:", '  hang: {kind: python, function: "tools.py:hang", timeout_s: 500}\n  calculate:'
    )
    action = '<tool_call>\n{"name": "hang", "arguments": {"n": 1}}\n</tool_call>'

    async def main() -> Trajectory:
        async with remote(served) as environment, environment.start(task=0) as episode:
            step = asyncio.create_task(episode.step(action))
            await asyncio.to_thread(
                served.wait_for, lambda: any(one.is_answering for one in served.server.conversations)
            )
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            return await episode.truncate("straggler", action=action)

    with serving(make_environment(text, tools=SLOW)) as served:
        cut = asyncio.run(main())
        served.wait_for(lambda: served.server.slots.active == 0)
    assert (cut.reason, cut.reward.total, [turn.action for turn in cut.turns]) == ("straggler", 0.0, [action])


def test_gymnasium_and_the_session_play_it(toy: Served) -> None:
    from rlenv.gym.envs import TextEnv

    env = TextEnv(remote(toy))
    prompt, info = env.reset(seed=1, options={"task": 0})
    assert "What is 2 + 3?" in prompt
    assert info["task"] == {}
    assert env.step(CALL)[0].count("5") == 1
    assert env.step("<answer>5</answer>")[1] == 1.0
    env.close()


def test_a_shipped_spec_is_played_by_its_own_words(tmp_path: Path) -> None:
    environment = load("arithmetic")
    oracle = environment.oracle()
    jobs = [rlenv.Job("test", task) for task in range(3)]
    here = asyncio.run(rlenv.rollout(environment, oracle, jobs))

    async def main() -> list[Trajectory]:
        scripts = [[turn.action for turn in one.turns] for one in here]
        found = []
        async with remote(served) as there:
            for job, actions in zip(jobs, scripts, strict=True):
                found += await rlenv.rollout(there, Says(*actions), [job])
        return found

    with serving(load("arithmetic")) as served:
        there = asyncio.run(main())
    assert [one.reward.total for one in there] == [one.reward.total for one in here]
    assert [compared(replace(one)) for one in there] == [compared(one) for one in here]


def test_what_is_not_there_is_said(toy: Served) -> None:
    with pytest.raises(UsageError, match="there is no environment"):
        RemoteEnvironment("http://127.0.0.1:9", patience_s=0)
    with pytest.raises(UsageError, match="404"):
        RemoteEnvironment(f"{toy.url}/env/nope")
    environment = remote(toy)
    with pytest.raises(UsageError, match="has tasks 0 to 1"):
        environment.start(task=7)
    with pytest.raises(UsageError, match="no split 'valid'"):
        environment.start(split="valid")
    with pytest.raises(UsageError, match="tasks of its own splits"):
        environment.start(task={"question": "mine"})


@asynccontextmanager
async def lying(served: Served, lie: Callable[[str, Any], Any]) -> AsyncIterator[str]:
    """A server before another one, which says what `lie` makes of each answer: an answer, a text, or None to leave."""

    async def card(request: web.Request) -> web.Response:
        async with aiohttp.ClientSession() as client, client.get(f"{served.url}/card") as response:
            return web.json_response(lie("card", await response.json()))

    async def socket(request: web.Request) -> web.WebSocketResponse:
        mine = web.WebSocketResponse()
        await mine.prepare(request)
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{served.url}/ws") as theirs:
            async for message in mine:
                await theirs.send_str(message.data)
                told = lie(json.loads(message.data)["type"], await theirs.receive_json())
                if told is None:
                    break
                await mine.send_str(told if isinstance(told, str) else json.dumps(told))
        return mine

    app = web.Application()
    app.add_routes([web.get("/card", card), web.get("/ws", socket)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.SockSite(runner, bound := listen("127.0.0.1", 0)).start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        await runner.cleanup()


def changed(at: str, path: str, value: Any) -> Callable[[str, Any], Any]:
    """The lie that puts a value into the answers to one kind of message, where there is such a place."""

    def lie(kind: str, told: Any) -> Any:
        *parts, last = path.split(".")
        held = told
        for part in parts:
            held = held.get(part, {})
        if kind == at and last in held:
            held[last] = value
        return told

    return lie


END = "data.metadata.rlenv.end.reward"
LIES: Mapping[str, Callable[[str, Any], Any]] = {
    "no JSON": lambda kind, told: told if kind == "card" else "{]",
    "a list": lambda kind, told: told if kind == "card" else [],
    "no data": lambda kind, told: told if kind == "card" else {"type": "observation"},
    "an error without words": lambda kind, told: told if kind == "card" else {"type": "error", "data": 5},
    "a close in a step": lambda kind, told: None if kind == "step" else told,
    "a reward that is a text": changed("step", "data.reward", "1.0"),
    "a reward that is a word": changed("step", "data.reward", True),
    "no reward of a step": changed("step", "data.reward", None),
    "an end that is none": changed("step", "data.done", False),
    "a total that is no number": changed("step", f"{END}.total", "nan"),
    "no total, and no failure": changed("step", f"{END}.total", None),
    "a failure with a total": changed("step", "data.metadata.failure", {"reason": "judge", "message": "m"}),
    "a success that is a number": changed("step", "data.metadata.success", 5),
    "no turn": changed("step", "data.metadata.rlenv.turn", None),
    "another turn": changed("step", "data.metadata.rlenv.turn.index", 9),
    "another task": changed("reset", "data.metadata.task", 1),
    "another state of its spec": changed("reset", "data.metadata.rlenv.digest", "0" * 64),
    "another seed": changed("reset", "data.metadata.seed", 9),
    "more time than is given": changed("reset", "data.metadata.rlenv.limits.episode_s", 1e300),
    "tools that are none": changed("reset", "data.metadata.rlenv.tools", [5]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_fails_the_episode_and_is_no_number(name: str, toy: Served) -> None:
    async def main() -> Trajectory:
        async with lying(toy, LIES[name]) as url:
            environment = await asyncio.to_thread(RemoteEnvironment, url, patience_s=0.0)
            async with environment:
                return await rlenv.play(environment, Says(CALL, *2 * ["<answer>5</answer>"]), rlenv.Job("train", 0, 3))

    ended = asyncio.run(asyncio.wait_for(main(), 60))
    assert (ended.reward.total, ended.success, ended.reason) == (None, None, "remote")


@pytest.mark.parametrize(
    ("path", "value"),
    [("rewards", []), ("rewards", {}), ("spec", "x"), ("splits", {"train": 5}), ("tools", 5), ("digest", [1])],
)
def test_a_card_that_is_none_is_said_so(path: str, value: Any, toy: Served) -> None:
    async def main() -> None:
        async with lying(toy, changed("card", path, value)) as url:
            with pytest.raises(UsageError, match="serves"):
                await asyncio.to_thread(RemoteEnvironment, url, patience_s=0.0)

    asyncio.run(main())


@pytest.mark.parametrize("at", ["card", "reset", "step"])
def test_an_answer_that_is_too_long_is_not_taken_and_said_so(at: str, toy: Served) -> None:
    def lie(kind: str, told: Any) -> Any:
        return told | {"more": "x" * 100_000} if kind == at else told

    async def main() -> Trajectory:
        async with lying(toy, lie) as url:
            if at == "card":
                await Door(url, {}, 0.0, most_bytes=100_000).fetched("/card")
            environment = await asyncio.to_thread(RemoteEnvironment, url)
            environment.door = replace(environment.door, most_bytes=100_000)
            async with environment:
                return await rlenv.play(environment, Says(CALL), rlenv.Job("train", 0))

    if at == "card":
        with pytest.raises(UsageError, match="/card is longer than 100,000 bytes"):
            asyncio.run(main())
    else:
        ended = asyncio.run(main())
        assert ended.failure is not None
        assert (ended.reward.total, ended.reason) == (None, "remote")
        assert "exceeds limit 100000" in ended.failure.message


def test_a_server_whose_episodes_may_take_longer_than_is_given_is_refused(toy: Served) -> None:
    with pytest.raises(UsageError, match=r"may take 360 s at .*, and longest_s is 300") as refused:
        remote(toy, longest_s=300.0)
    assert "longest_s=" in str(refused.value)
    remote(toy, longest_s=360.0)


class Delays:
    """A socket whose server answers each message, and keeps how long it was waited for."""

    def __init__(self, *, done: bool) -> None:
        self.done, self.waits = done, list[float]()

    async def ask(self, kind: str, data: Any, *, timeout_s: float) -> dict[str, Any]:
        self.waits.append(timeout_s)
        return {"done": self.done}

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("done", [False, True])
def test_an_episode_goes_on_no_longer_than_its_own_limits_say(done: bool, toy: Served) -> None:
    environment = remote(toy)
    episode, socket = environment.start(task=0), Delays(done=done)
    link = RemoteLink(environment, None, cast(Any, socket))
    most_s = episode.limits.episode_s + episode.limits.reward_s
    episode.tools.begun = time.monotonic()
    assert asyncio.run(link.ask("step", {}, episode)) == {"done": done}
    episode.tools.begun -= 2 * most_s
    if done:  # a policy that was late is scored by its server all the same
        assert asyncio.run(link.ask("step", {}, episode)) == {"done": True}
    else:
        with pytest.raises(EpisodeError, match="behind its own limits"):
            asyncio.run(link.ask("step", {}, episode))
    first, late = socket.waits
    assert first <= most_s + 60
    assert late <= episode.limits.reward_s + 60


def test_the_command_evaluates_at_a_server(toy: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", toy.url, "--policy", "random", "-n", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert main(["eval", toy.url, "--policy", "random", "--set", "limits.turns=1"]) == 2
    assert "give it to rlenv serve" in capsys.readouterr().err


def test_a_run_of_a_servers_names_it_and_is_played_and_scored_nowhere_else(
    toy: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["eval", toy.url, "--policy", "random", "-n", "2", "-o", run]) == 0
    capsys.readouterr()
    assert main(["runs", "show", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"] == toy.url
    asked = [["replay", run], ["replay", run, "--spec", "arithmetic"]]
    asked += [["rescore", run, *more] for more in (["--only-invalid"], ["--spec", "arithmetic"], ["--drop", "correct"])]
    for command in asked:
        assert main(command) == 2
        assert f"were played by {toy.url}" in capsys.readouterr().err
