"""The endpoint policy against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.cli.main import main
from rlenv.concurrency.deadline import paused_for
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import UsageError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.policies.openai import OpenAIPolicy
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from rlenv.trajectory import Trajectory
from tests.support.judges import falling

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chat(message: dict[str, Any]) -> web.Response:
    return web.json_response({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})


def run(environment: Any, handler: Handler, *, path: str = "/v1/chat/completions", **options: Any) -> Trajectory:
    async def main() -> Trajectory:
        app = web.Application()
        app.router.add_post(path, handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        policy = OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "toy", **options)
        try:
            async with asyncio.timeout(30):
                (trajectory,) = await rollout(environment, policy, [Job("train", 0, 3)])
            return trajectory
        finally:
            await policy.aclose()
            await runner.cleanup()

    return asyncio.run(main())


def test_the_servers_own_tool_calls_are_run_and_answered_by_id(make_environment: Any) -> None:
    bodies: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        body = await request.json()
        bodies.append(body)
        assert request.headers["Authorization"] == "Bearer k"
        if len(bodies) == 1:
            function = {"name": "calculate", "arguments": '{"expression": "2+3"}'}
            calls = [{"id": "c1", "type": "function", "function": function}]
            return chat({"role": "assistant", "content": None, "tool_calls": calls})
        return chat({"role": "assistant", "content": "<answer>5</answer>"})

    sampling = SamplingSpec(temperature=0.5, max_tokens=64)
    trajectory = run(make_environment(), handler, api_key="k", sampling=sampling)
    assert trajectory.success is True
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["calculate"]
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"], bodies[0]["seed"]) == (0.5, 64, 3)
    assistant, tool = bodies[1]["messages"][-2:]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"expression": "2+3"}
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "c1", "5")


def test_arguments_that_are_not_json_are_answered_to_the_model(make_environment: Any) -> None:
    turns = iter(["{broken", '["a list"]'])

    async def handler(request: web.Request) -> web.Response:
        arguments = next(turns, None)
        if arguments is None:
            return chat({"role": "assistant", "content": "<answer>5</answer>"})
        function = {"name": "calculate", "arguments": arguments}
        return chat({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]})

    trajectory = run(make_environment(), handler)
    assert [turn.results[0].outcome for turn in trajectory.turns[:-1]] == ["malformed", "malformed"]
    assert trajectory.success is True


@pytest.mark.parametrize("arguments", ['{"expression": "2+', "[1]", '"2+3"', "2+3", '{"expression": 1e999}'])
def test_a_call_that_cannot_be_read_leaves_the_conversation_one_that_its_server_takes(
    arguments: str, make_environment: Any
) -> None:
    """vLLM and SGLang refuse one that holds it as it was written, and a policy would leave out its own sample by it."""
    call = MalformedCall(arguments, "cut", name="calculate", id="c1")

    async def main() -> tuple[Trajectory, dict[str, Any]]:
        async with FakeEndpoint([Message("assistant", "", (call,)), "<answer>5</answer>"]) as server:
            policy = OpenAIPolicy(server.base_url, "toy")
            (trajectory,) = await rollout(make_environment(), policy, [Job("train", 0, 3)])
            await policy.aclose()
            return trajectory, server.requests[-1]["messages"][-2]["tool_calls"][0]

    trajectory, sent = asyncio.run(main())
    assert (trajectory.reward.total, trajectory.turns[0].results[0].outcome) == (1.0, "malformed")
    assert (json.loads(sent["function"]["arguments"]), sent["id"]) == ({"unreadable": arguments}, "c1")


def test_raw_text_is_sent_whole_and_read_by_the_dialect(make_environment: Any) -> None:
    prompts: list[str] = []
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'

    async def handler(request: web.Request) -> web.Response:
        prompts.append((await request.json())["prompt"])
        return web.json_response({"choices": [{"text": call if len(prompts) == 1 else "<answer>5</answer>"}]})

    trajectory = run(make_environment(), handler, path="/v1/completions", mode="text")
    assert trajectory.success is True
    assert "<tools>" in prompts[0]
    expected = prompts[0] + call + "<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n"
    assert prompts[1] == expected + "<|im_start|>assistant\n"


def test_raw_text_in_one_turn_ends_behind_a_closing_tag(make_environment: Any) -> None:
    bodies: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"choices": [{"text": "<answer>5</answer>"}]})

    trajectory = run(make_environment(dialect="search_r1"), handler, path="/v1/completions", mode="text")
    assert trajectory.success is True
    assert bodies[0]["stop"] == ["</search>", "</answer>"]
    assert "include_stop_str_in_output" not in bodies[0]  # an end token would stand in the text as well
    assert "calculate" not in bodies[0]["prompt"]


def test_a_call_that_a_server_left_in_the_text_is_answered_by_an_id(make_environment: Any) -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'

    async def main() -> tuple[Trajectory, list[dict[str, Any]]]:
        # The fake refuses what servers refuse: a result that no call of the conversation asks for.
        async with FakeEndpoint([f"I see. {call}\n{call[:50]}", call[:20], "<answer>5</answer>"]) as server:
            policy = OpenAIPolicy(server.base_url, "toy")
            try:
                (trajectory,) = await rollout(make_environment(), policy, [Job("train", 0)])
            finally:
                await policy.aclose()
            return trajectory, server.requests

    trajectory, requests = asyncio.run(main())
    assert trajectory.success is True
    said, first, second = requests[1]["messages"][-3:]
    assert said["content"] == "I see."
    assert [one["id"] for one in said["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert first["content"] == "5"
    ids = [one["id"] for message in requests[2]["messages"] for one in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_faults_are_tried_again(make_environment: Any, status: int) -> None:
    seen = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        if seen == 1:
            return web.Response(status=status, text="busy")
        return chat({"role": "assistant", "content": "<answer>5</answer>"})

    assert run(make_environment(), handler).success is True
    assert seen == 2


async def _not_json(request: web.Request) -> web.Response:
    return web.Response(text="<html>")


async def _no_choices(request: web.Request) -> web.Response:
    return web.json_response({"choices": []})


async def _refused(request: web.Request) -> web.Response:
    return web.Response(status=401, text="no key")


async def _late(request: web.Request) -> web.Response:
    await asyncio.Event().wait()  # until the test closes the server
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "words"),
    [(_not_json, "not JSON"), (_no_choices, "no choices"), (_refused, "401"), (_late, "no answer")],
)
def test_an_endpoint_that_fails_makes_the_reward_invalid_never_a_number(
    make_environment: Any, handler: Handler, words: str
) -> None:
    timeout_s = 0.2 if handler is _late else 30.0
    trajectory = run(make_environment(), handler, retries=1, timeout_s=timeout_s)
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "policy"
    assert words in trajectory.failure.message


@pytest.mark.parametrize(
    ("sampling", "seeded", "seed"),
    [(None, True, 3), (None, False, None), (SamplingSpec(seed=7), True, 7), (SamplingSpec(seed=0), True, 0)],
)
def test_the_episodes_seed_is_sent_where_the_sampling_has_none(
    make_environment: Any, sampling: SamplingSpec | None, seeded: bool, seed: int | None
) -> None:
    bodies: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return chat({"role": "assistant", "content": "<answer>5</answer>"})

    run(make_environment(), handler, sampling=sampling, seeded=seeded)
    assert bodies[0].get("seed") == seed


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_policy_closes_the_connections_that_are_its_own(is_shared: bool) -> None:
    async def main() -> bool:
        async with FakeEndpoint(["a"]) as server:
            own = OpenAIPolicy(server.base_url, "toy")
            client = own.client
            policy = OpenAIPolicy.over(client) if is_shared else own
            assert policy.client is client
            await client.chat([Message("user", "hi")])
            session = client._session
            assert session is not None
            await policy.aclose()
            is_open = not session.closed
            await own.aclose()
            await own.aclose()
            assert session.closed
            return is_open

    assert asyncio.run(main()) is is_shared


def test_what_a_policy_is_says_where_its_model_is_served_and_how_it_is_sampled() -> None:
    sampling = SamplingSpec(temperature=0.5, extra={"top_k": 3})
    facts = OpenAIPolicy("http://h:1/v1/", "toy", mode="text", sampling=sampling).facts
    assert facts == {
        "model": "toy",
        "host": "h:1",
        "mode": "text",
        "sampling": {"temperature": 0.5, "top_p": None, "max_tokens": None, "extra": {"top_k": 3}},
    }


def test_a_key_is_sent_as_one_login() -> None:
    with pytest.raises(UsageError, match="both a key and a header Authorization"):
        OpenAIPolicy("http://h/v1", "toy", api_key="k", headers={"authorization": "x"})
    assert OpenAIPolicy("http://h/v1", "toy", headers={"X": "y"}).client.endpoint.headers == {"X": "y"}
    endpoint = OpenAIPolicy("http://h/v1", "toy", api_key="k").client.endpoint
    assert endpoint.headers == {"Authorization": "Bearer k"}
    assert (endpoint.retries, endpoint.timeout_s, endpoint.concurrency) == (3, 120.0, 64)


def _texts(body: dict[str, Any], role: str) -> str:
    return json.dumps([one for one in body["messages"] if one["role"] == role])


def _calls(*expressions: str, name: str = "calculate") -> dict[str, Any]:
    calls = [
        {
            "id": f"c{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"expression": one})},
        }
        for index, one in enumerate(expressions)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _once_it_spoke(first: dict[str, Any], is_refused: Callable[[dict[str, Any]], bool], status: int = 400) -> Handler:
    """A server that says `first` and refuses what follows by a rule of its own."""

    async def handler(request: web.Request) -> web.Response:
        body = await request.json()
        if len(body["messages"]) > 2 and is_refused(body):
            return web.Response(status=status, text="cannot take this")
        return chat(first if "assistant" not in _texts(body, "assistant") else {"role": "assistant", "content": "no"})

    return handler


@pytest.mark.parametrize("status", [400, 403, 413, 422, 451])
@pytest.mark.parametrize(
    ("first", "is_refused"),
    [
        (_calls("666"), lambda body: "666" in _texts(body, "assistant")),  # a content filter
        (_calls("1", "2", "3"), lambda body: "c2" in _texts(body, "tool")),
        (_calls("1", name="no such"), lambda body: "no such" in _texts(body, "assistant")),  # names have a pattern
    ],
    ids=["a word", "a number of calls", "a name"],
)
def test_words_of_the_policys_that_its_server_refuses_leave_its_sample_in(
    make_environment: Any, first: dict[str, Any], is_refused: Any, status: int
) -> None:
    trajectory = run(make_environment(), _once_it_spoke(first, is_refused, status), retries=0)
    assert (trajectory.failure, trajectory.reward.total) == (None, 0.0)
    assert len(trajectory.turns) == 2


@pytest.mark.parametrize("status", [400, 403, 422, 500, 429, 502, 503])
@pytest.mark.parametrize(
    "is_refused",
    [
        lambda body: True,  # an outage, or a template that takes no second turn
        lambda body: "tool_call" in _texts(body, "assistant"),  # one that takes no calls
        lambda body: "1333" in _texts(body, "tool"),  # a filter that meets what the policy has not written
    ],
    ids=["all", "calls", "a tool's words"],
)
def test_a_server_that_refuses_any_such_turn_makes_the_reward_invalid(
    make_environment: Any, is_refused: Any, status: int
) -> None:
    trajectory = run(make_environment(), _once_it_spoke(_calls("1330+3"), is_refused, status), retries=0)
    assert trajectory.reward.total is None
    assert trajectory.failure is not None


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_that_fails_by_chance_has_refused_no_words(make_environment: Any, status: int) -> None:
    """It answers the harmless turns and fails at the policy's: one try of each tells nothing."""
    is_refused = lambda body: "666" in _texts(body, "assistant")  # noqa: E731
    trajectory = run(
        make_environment(), _once_it_spoke(_calls("666"), is_refused, status), retries=0, asks_beside=False
    )
    assert trajectory.reward.total is None


@pytest.mark.parametrize("asks_beside", [True, False])
def test_a_refusal_that_is_over_when_asked_again_is_no_word_of_the_policys(
    make_environment: Any, asks_beside: bool
) -> None:
    refused = 0

    def once(body: dict[str, Any]) -> bool:
        nonlocal refused
        refused += 1
        return refused == 1

    trajectory = run(make_environment(), _once_it_spoke(_calls("1"), once), retries=0, asks_beside=asks_beside)
    assert trajectory.reward.total == (0.0 if asks_beside else None)
    assert asks_beside == ("no" in [turn.action for turn in trajectory.turns])  # of a server that is well again


@pytest.mark.parametrize("status", [400, 403, 413, 422, 451])
@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_part_of_a_server_that_refuses_whatever_it_is_asked_has_refused_no_words(
    make_environment: Any, every: int, status: int
) -> None:
    """Of several replicas behind one address one is set up wrongly: where each has its turn, and where it is drawn."""
    for draws in (None, *map(random.Random, range(3))):
        asked = 0

        def is_refused(body: dict[str, Any], draws: random.Random | None = draws) -> bool:
            nonlocal asked
            asked += 1
            return asked % every == 1 if draws is None else draws.random() < 1 / every

        with paused_for(0.0):
            found = run(make_environment(), _once_it_spoke(_calls("1330+3"), is_refused, status), retries=0)
        well = [turn.action for turn in found.turns][1:] == ["no"]
        assert found.reward.total == (0.0 if well else None)


def test_an_episode_of_refused_words_asks_no_more(make_environment: Any) -> None:
    refused = 0

    def is_refused(body: dict[str, Any]) -> bool:
        nonlocal refused
        refused += (is_own := "666" in _texts(body, "assistant"))
        return is_own

    run(make_environment(), _once_it_spoke(_calls("666"), is_refused), retries=0)
    assert refused == 8  # the turn, six times in turn with harmless words, and with its own words alone


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("most", [1, 3])
def test_what_a_server_refuses_is_told_with_no_more_at_once_than_it_takes(
    make_environment: Any, most: int, retries: int
) -> None:
    """It bars (429) whoever asks more at once than `concurrency` says, and refuses a word of each of six policies."""

    async def main() -> list[Trajectory]:
        at_once = 0

        async def answer(body: Any) -> Any:
            nonlocal at_once
            at_once += 1
            try:
                if at_once > most:
                    return Reply(429)
                await asyncio.sleep(0)
                if "assistant" not in _texts(body, "assistant"):
                    return Message("assistant", "", (ToolCall("calculate", {"expression": "666"}, "c"),))
                return Reply(400) if "666" in _texts(body, "assistant") else "no"
            finally:
                at_once -= 1

        async with FakeEndpoint(answer) as server, asyncio.timeout(60):
            policy = OpenAIPolicy(server.base_url, "toy", retries=retries, concurrency=most)
            played = await rollout(make_environment(), policy, [Job("train", 0, 3)] * 6, concurrency=6)
            await policy.aclose()
            return played

    assert [(one.failure, one.reward.total) for one in asyncio.run(main())] == [(None, 0.0)] * 6


def test_a_limit_of_rate_that_asking_about_a_refusal_meets_tells_nothing_of_the_words(make_environment: Any) -> None:
    """What comes behind the refusal is barred (429) for a while, whatever it asks."""
    asked = refused = 0

    def answer(body: Any) -> Any:
        nonlocal asked, refused
        asked += bool(refused)
        if 0 < asked < 10:
            return Reply(429)
        if "assistant" not in _texts(body, "assistant"):
            return Message("assistant", "", (ToolCall("calculate", {"expression": "666"}, "c"),))
        refused += (is_own := "666" in _texts(body, "assistant"))
        return Reply(400) if is_own else "no"

    assert served(make_environment(), answer, retries=0)[0].reward.total == 0.0


@pytest.mark.parametrize("is_own", [True, False])
def test_raw_text_that_its_server_refuses_is_told_alike(make_environment: Any, is_own: bool) -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1330+3"}}\n</tool_call>'
    bad = "1330+3" if is_own else "1333"

    async def handler(request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        if bad in prompt:
            return web.Response(status=400, text="cannot take this")
        return web.json_response({"choices": [{"text": call}]})

    trajectory = run(make_environment(), handler, path="/v1/completions", mode="text", retries=0)
    assert trajectory.reward.total == (0.0 if is_own else None)


def served(environment: Any, answer: Any, **options: Any) -> tuple[Trajectory, list[dict[str, Any]]]:
    """An episode at a scripted server, and what that was asked."""

    async def main() -> tuple[Trajectory, list[dict[str, Any]]]:
        async with FakeEndpoint(answer) as server, asyncio.timeout(60):
            policy = OpenAIPolicy(server.base_url, "toy", **options)
            (trajectory,) = await rollout(environment, policy, [Job("train", 0, 3)])
            await policy.aclose()
            return trajectory, server.requests

    return asyncio.run(main())


def _is_first(body: Any) -> bool:
    return body.get("max_tokens") == 1


def _ending(trajectory: Trajectory) -> tuple[str, float | None]:
    return trajectory.reason, trajectory.reward.total


BOTH = pytest.mark.parametrize("mode", ["tools", "text"])


@BOTH
def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for(make_environment: Any, mode: str) -> None:
    """It is drawn once: of answers that are drawn again for their length the short ones would be left."""
    firsts, enough = 0, asyncio.Event()

    async def answer(body: Any) -> str:
        nonlocal firsts
        firsts += _is_first(body)
        if firsts == 2:
            enough.set()
        if not _is_first(body):
            await enough.wait()
        return "<answer>5</answer>"

    trajectory, asked = served(make_environment(), answer, mode=mode, timeout_s=0.2, concurrency=1)
    assert trajectory.success is True
    assert [_is_first(one) for one in asked] == [False, True, True]


@BOTH
@pytest.mark.parametrize("is_well", [True, False])
def test_an_answer_without_end_is_scored_where_the_server_is_well(
    make_environment: Any, mode: str, is_well: bool
) -> None:
    async def answer(body: Any) -> Any:
        return "Y" if _is_first(body) and is_well else await never()

    sampling = SamplingSpec(extra={"min_tokens": 9})
    trajectory, asked = served(make_environment(), answer, mode=mode, timeout_s=0.1, retries=2, sampling=sampling)
    assert _ending(trajectory) == (("turn_tokens", 0.0) if is_well else ("policy", None))
    # A new request is made where the first may hang beside a server that is well, and after each that was not.
    assert [_is_first(one) for one in asked] == ([False, True, True, False, True] if is_well else [False, True] * 3)
    assert all(one["min_tokens"] == (1 if _is_first(one) else 9) for one in asked)


def test_what_a_request_waits_for_its_place_is_no_answer_without_end(make_environment: Any) -> None:
    """One at a time is asked, for longer each than a request may take; the last waits for longer than all its tries."""

    async def main() -> tuple[list[Trajectory], int]:
        late: list[asyncio.Event] = []

        async def answer(body: Any) -> str:
            if _is_first(body):
                late[-1].set()
                return "Y"
            late.append(asyncio.Event())
            await late[-1].wait()
            return "<answer>5</answer>"

        async with FakeEndpoint(answer) as server, asyncio.timeout(60):
            policy = OpenAIPolicy(server.base_url, "toy", timeout_s=0.1, retries=2, concurrency=1)
            played = await rollout(make_environment(), policy, [Job("train", 0, 3)] * 6, concurrency=6)
            await policy.aclose()
            return played, len(server.requests)

    played, asked = asyncio.run(main())
    assert [one.success for one in played] == [True] * 6
    assert asked == 12


def test_what_a_request_that_failed_waits_for_its_place_is_no_answer_without_end(make_environment: Any) -> None:
    """It is made again behind all others, and its answer takes most of its tries then."""

    async def main() -> list[Trajectory]:
        asked, firsts, is_late = 0, 0, asyncio.Event()

        async def answer(body: Any) -> Any:
            nonlocal asked, firsts
            if _is_first(body):
                firsts += 1
                is_late.set()
                return "Y"
            asked, begun = asked + 1, firsts
            if asked == 1:
                return Reply(503)
            while firsts < begun + 1 + (asked == 7):
                is_late.clear()
                await is_late.wait()
            return "<answer>5</answer>"

        async with FakeEndpoint(answer) as server, asyncio.timeout(60):
            policy = OpenAIPolicy(server.base_url, "toy", timeout_s=0.2, retries=3, concurrency=1)
            played = await rollout(make_environment(), policy, [Job("train", 0, 3)] * 6, concurrency=6)
            await policy.aclose()
            return played

    assert [one.success for one in asyncio.run(main())] == [True] * 6


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(("by", "mode"), [("time", "tools"), ("tries", "text"), ("try", "tools")])
@pytest.mark.parametrize("word", ["1330+3", "1333", ""], ids=["its own", "a tool's", "any"])
def test_a_server_that_hangs_at_the_policys_own_words_leaves_its_sample_in(
    make_environment: Any, mode: str, by: str, word: str
) -> None:
    turns = 0

    async def answer(body: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns > 1 and _fails(body, mode, word):
            await never()
        return "<" + _SPEAKS if mode == "text" else _CALCULATES

    is_time = by == "time"
    environment = make_environment(limits__episode_s=0.5 if is_time else 60)
    timeout_s, retries = {"time": (1.0, 3), "tries": (0.1, 19), "try": (2.0, 0)}[by]
    trajectory, _ = served(environment, answer, mode=mode, timeout_s=timeout_s, retries=retries)
    own = ("time" if is_time else "turn_tokens", 0.0)
    assert _ending(trajectory) == (own if word == "1330+3" else ("policy", None))


@BOTH
def test_a_server_that_hung_for_a_part_of_an_episodes_time_gives_no_number(make_environment: Any, mode: str) -> None:
    """The time that it took from the episode is not the policy's, though it is well in the end."""
    begun = 0

    async def answer(body: Any) -> Any:
        nonlocal begun
        begun += not _is_first(body)
        return "Y" if _is_first(body) and begun > 1 else await never()

    environment = make_environment(limits__episode_s=1.0)
    trajectory, _ = served(environment, answer, mode=mode, timeout_s=0.2, retries=9)
    assert _ending(trajectory) == ("policy", None)


@BOTH
@pytest.mark.parametrize("turn", [1, 2])
def test_time_that_a_limit_of_rate_took_from_an_episode_is_not_the_policys(
    make_environment: Any, mode: str, turn: int
) -> None:
    """In this turn or in the one before, though the server is well in the end."""
    asked = 0

    async def answer(body: Any) -> Any:
        nonlocal asked
        if _is_first(body):
            return "Y"
        asked += 1
        if asked == 1:
            return Reply(429, headers={"Retry-After": "30"})
        if asked == 2 == turn:
            return "<" + _SPEAKS if mode == "text" else _CALCULATES
        return await never()

    with paused_for(0.01):
        trajectory, _ = served(make_environment(limits__episode_s=1.0), answer, mode=mode, timeout_s=5.0)
    assert _ending(trajectory) == ("policy", None)


def test_a_connection_that_hangs_beside_a_server_that_is_well_costs_no_number(make_environment: Any) -> None:
    held = 0

    async def answer(body: Any) -> Any:
        nonlocal held
        held += not _is_first(body)
        return await never() if held == 1 and not _is_first(body) else "<answer>5</answer>"

    trajectory, _ = served(make_environment(), answer, timeout_s=0.1, retries=2)
    assert trajectory.success is True


@pytest.mark.slow(but=2)
@BOTH
@pytest.mark.parametrize("is_well", [True, False])
def test_a_server_that_hangs_at_an_episodes_end_gives_no_number(
    make_environment: Any, mode: str, is_well: bool
) -> None:
    async def answer(body: Any) -> Any:
        return "Y" if _is_first(body) and is_well else await never()

    trajectory, asked = served(make_environment(limits__episode_s=0.4), answer, mode=mode, timeout_s=1.0)
    assert _ending(trajectory) == (("time", 0.0) if is_well else ("policy", None))
    assert [_is_first(one) for one in asked] == [False, True]
    trajectory, asked = served(make_environment(limits__episode_s=0.4), answer, mode=mode, asks_beside=False)
    assert (_ending(trajectory), len(asked)) == (("time", 0.0), 1)  # a gateway that keeps every answer is asked once


@BOTH
@pytest.mark.parametrize(("barred", "is_well"), [(1, True), (2, True), (99, False)])
def test_a_limit_of_rate_that_soon_has_room_at_an_episodes_end_voids_nothing(
    make_environment: Any, mode: str, barred: int, is_well: bool
) -> None:
    """The policy's own long answer may have used it up."""
    firsts = 0

    async def answer(body: Any) -> Any:
        nonlocal firsts
        firsts += _is_first(body)
        if not _is_first(body):
            return await never()
        return Reply(429) if firsts <= barred else "Y"

    with paused_for(0.01):
        trajectory, _ = served(make_environment(limits__episode_s=0.4), answer, mode=mode, timeout_s=1.0)
    assert _ending(trajectory) == (("time", 0.0) if is_well else ("policy", None))


def _fails(body: Any, mode: str, word: str) -> bool:
    said = body["prompt"] if mode == "text" else _texts(body, "assistant") + _texts(body, "tool")
    return word in said


_CALCULATES = Message("assistant", "", (ToolCall("calculate", {"expression": "1330+3"}, "c1"),))
_SPEAKS = 'tool_call>\n{"name": "calculate", "arguments": {"expression": "1330+3"}}\n</tool_call>'


@BOTH
@pytest.mark.parametrize(
    "reply", [Reply(500), Reply(504), Reply(404), Reply(302), Reply(200, "<html>"), Reply(drops=True)]
)
@pytest.mark.parametrize("word", ["1330+3", "1333", ""], ids=["its own", "a tool's", "any"])
def test_a_server_that_fails_at_the_policys_own_words_leaves_its_sample_in(
    make_environment: Any, mode: str, reply: Reply, word: str
) -> None:
    turns = 0

    def answer(body: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns > 1 and _fails(body, mode, word):
            return reply
        return "<" + _SPEAKS if mode == "text" else _CALCULATES

    with paused_for(0.0):
        trajectory, _ = served(make_environment(), answer, mode=mode, retries=1)
    assert trajectory.reward.total == (0.0 if word == "1330+3" else None)
    assert len(trajectory.turns) == 1 + (word == "1330+3")


@BOTH
@pytest.mark.parametrize("word", ["1330+3", "1333"], ids=["its own", "a tool's"])
def test_a_limit_of_rate_that_bars_by_chance_what_is_asked_counts_for_nothing(
    make_environment: Any, mode: str, word: str
) -> None:
    """The last try of a turn at which the server fails is barred (429), and half of what is asked about it then."""
    failed, draws = 0, random.Random(word)

    def answer(body: Any) -> Any:
        nonlocal failed
        if not (_fails(body, mode, "1330+3") or "harmless" in str(body)):
            return "<" + _SPEAKS if mode == "text" else _CALCULATES
        failed += (fails := _fails(body, mode, word))
        is_barred = failed == 2 if failed < 3 else draws.random() < 0.5
        return Reply(429) if is_barred else Reply(500) if fails else "Y"

    with paused_for(0.0):
        trajectory, _ = served(make_environment(), answer, mode=mode, retries=1)
    assert trajectory.reward.total == (0.0 if word == "1330+3" else None)


@BOTH
def test_the_time_that_a_server_was_away_is_none_that_the_request_took(
    make_environment: Any, mode: str, whole_pauses: None
) -> None:
    """One that takes long is asked seldom, among many others: an outage that comes and goes would meet it more."""
    away, first = 6, "<" + _SPEAKS if mode == "text" else _CALCULATES

    def answer(body: Any) -> Any:
        nonlocal away
        is_own, said = _fails(body, mode, "1330+3"), "harmless" in str(body)
        if not (is_own or said):
            return first
        away -= 1
        return Reply(503) if away >= 0 else Reply(500) if is_own else "Y"

    trajectory, asked = served(make_environment(), answer, mode=mode, retries=0)
    assert trajectory.reward.total == 0.0
    assert len(asked) < 60


def test_a_policy_that_was_closed_is_of_no_event_loop_any_more() -> None:
    policy = OpenAIPolicy("http://127.0.0.1:1/v1", "toy")

    async def wait() -> None:
        async with policy.falls.keep("lock", asyncio.Lock):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(wait(), wait())
        await policy.aclose()

    asyncio.run(main())
    asyncio.run(main())


@BOTH
@pytest.mark.parametrize(("tokens", "status"), [(16, 500), (16, 402), (1, 500), (0, 500)])
def test_a_server_that_fails_at_what_is_written_is_told_from_one_that_cannot_write(
    make_environment: Any, mode: str, tokens: int, status: int
) -> None:
    """An engine's parser may fail at what a policy writes. One that gives no few tokens of anything is out, and so is
    one that wants paying for more (402)."""

    def answer(body: Any) -> Any:
        return "Y" if body.get("max_tokens", 4096) <= tokens else Reply(status)

    trajectory, _ = served(make_environment(), answer, mode=mode, retries=1)
    assert trajectory.reward.total == (0.0 if (tokens, status) == (16, 500) else None)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8000", "localhost:8000/v1", "ftp://host/v1", "http://h/v1/chat/completions"]
)
def test_an_address_that_no_request_can_go_to_is_refused_before_anything_is_played(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="address"):
        OpenAIPolicy(address, "m")
    for command in (["eval", "arithmetic", "--policy", "openai"], ["serve", "--gateway", "arithmetic"]):
        assert main([*command, "--base-url", address, "--model", "m"]) == 2
        assert "rlenv: base_url: " in capsys.readouterr().err


@pytest.mark.slow(but=2)
@BOTH
@pytest.mark.parametrize("text", ["It fells.", "fells."], ids=["its own", "a tool's"])
def test_a_server_that_falls_over_the_policys_own_words_leaves_its_sample_in(
    make_environment: Any, tmp_path: Path, mode: str, text: str
) -> None:
    """It is away for a moment each time, and so to what is asked beside."""
    call = ToolCall("say", {"text": text}, "c1")
    spoken = f"<tool_call>\n{json.dumps({'name': 'say', 'arguments': {'text': text}})}\n</tool_call>"
    say = {"kind": "python", "function": f"{tmp_path}/tools.py:say"}
    environment = make_environment(tools='def say(text: str) -> str:\n    return f"It {text}"\n', tools__say=say)

    async def main() -> Trajectory:
        answers = [spoken if mode == "text" else Message("assistant", "", (call,)), "Y"]
        async with asyncio.timeout(60), FakeEndpoint(answers) as server, falling(server.base_url) as address:
            policy = OpenAIPolicy(address, "toy", mode=mode, timeout_s=20.0, retries=1)  # type: ignore[arg-type]
            (trajectory,) = await rollout(environment, policy, [Job("train", 0, 3)])
            await policy.aclose()
            return trajectory

    assert _ending(asyncio.run(main())) == (("turn_tokens", 0.0) if text == "It fells." else ("policy", None))
