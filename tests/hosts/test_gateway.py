"""An agent that knows nothing of rlenv plays through the gateway: what its model wrote is scored and trained, once."""

from __future__ import annotations

import asyncio
import json
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.concurrency.deadline import paused_for
from rlenv.endpoints import Client, Endpoint
from rlenv.hosts.gateway import MOST_AT_ONCE, Gateway
from rlenv.hosts.wires import as_chat
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message, ToolCall
from rlenv.rewards.asking_models import UNCLEAR
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.testing.endpoint import FakeEndpoint, HostileEndpoint, Reply, never
from tests.support.asked import Asks, Speaker, asking, plays, written
from tests.support.hosts import CALLS, RIGHT, SPEC, encoder_of, finished, gated, gateway, seat_of
from tests.support.judges import falling


@pytest.mark.parametrize("prefix", ["", "mcp__rlenv__", "rlenv."])
def test_an_agents_four_calls_earn_what_they_do_as_one_message(prefix: str, tmp_path: Path) -> None:
    calls = tuple(ToolCall(prefix + one.name, one.arguments, one.id) for one in CALLS.tool_calls if one.name)  # type: ignore[union-attr]

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        history = await plays(ask, seat, prefix=prefix)
        assert [one["content"] for one in history if one["role"] == "tool"] == ["1", "4", "9", "16"]
        ended = await finished(ask, seat)
        assert await finished(ask, seat, answer="<answer>0</answer>") == ended
        return ended

    ended = gateway(Speaker([Message("assistant", "", calls), RIGHT]), tmp_path, play)
    assert (ended["total"], ended["success"], ended["reason"]) == (pytest.approx(1.3), True, "answer")


@pytest.mark.parametrize("last", [RIGHT, "<answer>7</answer>", ""])
def test_an_answer_that_the_driver_names_stands_behind_the_turns_that_were_taken(last: str, tmp_path: Path) -> None:
    unread = Message("assistant", "", (ToolCall("calculate", {"wrong": 1}, "c5"),))
    lines = [*(Message("assistant", "", (one,)) for one in CALLS.tool_calls), unread]

    async def play(ask: Asks, model: FakeEndpoint, **said: str) -> Any:
        seat = await seat_of(ask)
        await plays(ask, seat)
        return {**await finished(ask, seat, **said), "episode": ""}

    async def named(ask: Asks, model: FakeEndpoint) -> Any:
        return await play(ask, model, answer=RIGHT)

    spec = SPEC.replace("turns: 3", "turns: 8")
    own = gateway(Speaker([*lines, RIGHT]), tmp_path, play, spec=spec)
    assert gateway(Speaker([*lines, last]), tmp_path, named, spec=spec) == own
    assert (own["success"], own["terms"]["short"]) == (True, 0.0)


def test_rows_hold_each_sampled_id_once_behind_what_it_was_sampled_behind(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path)

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        await plays(ask, seat)
        assert all(body["logprobs"] and body["return_token_ids"] for body in model.requests)
        return await finished(ask, seat)

    (row,) = gateway(Speaker([CALLS, RIGHT], encoder), tmp_path, play)["rows"]
    assert len(row["ids"]) == len(row["mask"]) == len(row["logprobs"])
    (first, end), (second, last) = row["turns"]
    assert encoder.decode(row["ids"][first:end]) == written(CALLS) + "<|im_end|>"
    assert encoder.decode(row["ids"][second:last]) == RIGHT + "<|im_end|>"
    assert row["mask"] == [1] * end + [0] * (second - end) + [1] * (last - second)
    assert encoder.decode(row["ids"][end:second]).count("<tool_response>") == 4
    assert row["logprobs"][:2] == [-0.01, -0.02]
    assert set(row["logprobs"][end:second]) == {0.0}


def test_an_agent_that_rewrites_its_history_begins_a_row_and_titles_are_no_turns(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path)
    speaker = Speaker([], encoder)

    def answer(body: Any) -> Any:
        asked = body["messages"][-1]["content"]
        line = {"A title?": "Sums", "Summary?": "it is 30"}.get(asked, RIGHT if "it is" in str(body) else CALLS)
        return speaker.sampled(body, line)

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url = f"{seat['base_url']}/chat/completions"
        await ask("POST", url, {"messages": [{"role": "user", "content": "A title?"}]})
        history = await plays(ask, seat, most=1)
        await ask("POST", url, {"messages": [*history, {"role": "user", "content": "Summary?"}]})
        tools = model.requests[1]["tools"]
        await ask("POST", url, {"messages": [{"role": "user", "content": "So far: it is 30"}], "tools": tools})
        return await finished(ask, seat)

    ended = gateway(answer, tmp_path, play)
    assert (ended["total"], ended["terms"]["short"]) == (pytest.approx(1.3), 1.0)
    assert [sum(row["mask"]) for row in ended["rows"]] == [
        len(encoder.encode_text(text)) + 1 for text in ("Sums", written(CALLS), "it is 30", RIGHT)
    ]


def test_tools_of_the_agents_own_are_no_calls_of_the_environments(tmp_path: Path) -> None:
    shell = {"type": "function", "function": {"name": "my_calculate", "parameters": {"properties": {"command": {}}}}}
    own = Message("assistant", "", (ToolCall("my_calculate", {"command": "ls"}, "x"),))

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url = f"{seat['base_url']}/chat/completions"
        history = seat["messages"]
        for _ in range(6):
            _, answer = await ask("POST", url, {"messages": history, "tools": [shell]})
            history = [*history, answer["choices"][0]["message"], {"role": "tool", "tool_call_id": "x", "content": "a"}]
        unfinished = await finished(ask, await other(ask, shell))
        await ask("POST", url, {"messages": history, "tools": [shell]})
        return unfinished, await finished(ask, seat)

    async def other(ask: Asks, shell: Any) -> dict[str, Any]:
        seat = await seat_of(ask)
        await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"], "tools": [shell]})
        return seat

    unfinished, ended = gateway(Speaker([own] * 6 + [RIGHT]), tmp_path, play)
    assert (unfinished["reason"], unfinished["failure"], unfinished["success"]) == ("host", None, False)
    assert (ended["reason"], ended["success"], ended["terms"]["calls"]) == ("answer", True, None)


@pytest.mark.parametrize(
    "reply",
    [
        *(Reply(status, {"error": "out"}) for status in (500, 401, 404)),
        Reply(drops=True),
        Reply(200, {"choices": [{}]}),
    ],
    ids=["500", "401", "404", "drops", "no message"],
)
def test_a_server_that_is_out_makes_the_reward_invalid(tmp_path: Path, reply: Reply) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url = f"{seat['base_url']}/chat/completions"
        assert (await ask("POST", url, {"messages": seat["messages"]}))[0] == 503
        told, answer = await ask("POST", url, {"messages": seat["messages"]})
        assert (told, answer["error"]["code"]) == (400, "episode_over")
        return await finished(ask, seat, answer=RIGHT)

    ended = gateway([reply], tmp_path, play)
    assert (ended["total"], ended["success"], ended["failure"]["reason"]) == (None, None, "policy")
    assert all(set(row["mask"]) == {0} for row in ended["rows"])


@pytest.mark.parametrize(
    "mode", ["odd usage", "number as content", "list as content", "odd calls", "deep calls", "null"]
)
def test_whatever_a_server_answers_an_agent_is_told_in_its_wire(mode: str, tmp_path: Path) -> None:
    async def play(ask: Asks, seat: dict[str, Any]) -> None:
        for wire in ("chat/completions", "responses"):
            body = {"messages": seat["messages"], "input": "hi"}
            status, answer = await ask("POST", f"{seat['base_url']}/{wire}", body)
            assert status in (200, 400, 503)
            assert "error" in answer or answer["usage"]["total_tokens"] >= 0

    async def main() -> None:
        with HostileEndpoint(mode) as server:
            client = Client(Endpoint(name="", base_url=server.base_url, model="m", retries=0, timeout_s=5.0))
            (tmp_path / "sums.yaml").write_text(SPEC, encoding="utf-8")
            async with asking(Gateway(rlenv.load(tmp_path / "sums.yaml"), client).application()) as ask:
                await play(ask, await seat_of(ask))
            await client.aclose()

    asyncio.run(main())


def test_an_agent_is_given_the_calls_that_were_read_and_no_more(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "calculate", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [*[call] * 1000, "odd"]}

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        return await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"]})

    status, given = gateway([Reply(body={"choices": [{"message": message}]})], tmp_path, play)
    assert (status, len(given["choices"][0]["message"]["tool_calls"])) == (200, 1000)


def test_as_many_requests_as_an_episode_may_have_are_asked_and_no_more(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        for _ in range(3):
            await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"]})
        return len(model.requests)

    assert gateway(Speaker(["Hm."] * 3), tmp_path, play, most_requests=2) == 2


def test_a_transcript_that_is_none_takes_no_episode_from_its_agent(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        status, _ = await ask("POST", f"/episodes/{seat['episode']}/finish", {"transcript": [7]})
        assert status == 400
        await plays(ask, seat)
        return await finished(ask, seat)

    assert gateway(Speaker([RIGHT]), tmp_path, play)["success"] is True


def test_a_request_that_makes_the_server_fail_is_the_agents_where_another_is_answered(tmp_path: Path) -> None:
    def answer(body: Any) -> Any:
        return Reply(status=500) if "poison" in str(body) else RIGHT

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url = f"{seat['base_url']}/chat/completions"
        poison = {"messages": [{"role": "user", "content": "poison"}]}
        assert (await ask("POST", url, poison))[0] == 400
        assert (await ask("POST", url, {"messages": seat["messages"]}))[0] == 200
        return await finished(ask, seat)

    assert gateway(answer, tmp_path, play)["success"] is True


@pytest.mark.parametrize(
    ("failing", "is_begun", "reason"),
    [(Reply(500), True, "host"), (Reply(200, "{}"), True, "host"), (Reply(500), False, "client"),
     (Reply(400), True, "client")],
)  # fmt: skip
def test_a_first_answer_that_the_server_fails_at_is_the_policys_and_a_first_request_is_not(
    failing: Reply, is_begun: bool, reason: str, tmp_path: Path
) -> None:
    """As one whose parser of calls fails at what the model writes: it has a first token each time."""

    def answer(body: Any) -> Any:
        return "Yes" if "Say yes." in str(body) or (is_begun and body.get("max_tokens") == 1) else failing

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        assert (await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"]}))[0] == 400
        ended = await finished(ask, seat)
        assert (ended["total"] is None) == (reason == "client")
        return ended["reason"]

    with paused_for(0.02):
        assert gateway(answer, tmp_path, play) == reason


@pytest.mark.parametrize("has_proxy", [False, True])
def test_a_request_that_fells_the_server_each_time_is_the_agents_and_takes_nothing_from_others(
    tmp_path: Path, has_proxy: bool
) -> None:
    """It is away for a moment each time, and so to what is asked beside."""

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat, other, third = await seat_of(ask), await seat_of(ask), await seat_of(ask)
        await plays(ask, third)  # a proxy tells that a server fell only of one that has answered
        fells = {"messages": [{"role": "user", "content": "It fells."}]}
        told, _ = await asyncio.gather(ask("POST", f"{seat['base_url']}/chat/completions", fells), plays(ask, other))
        assert told[0] == 400
        await plays(ask, seat)
        return [(await finished(ask, one))["success"] for one in (seat, other, third)]

    before = partial(falling, has_proxy=has_proxy)
    assert gateway(Speaker([CALLS, RIGHT]), tmp_path, play, before=before, timeout_s=20.0, retries=1) == [True] * 3


@pytest.mark.parametrize(
    ("failing", "times", "success"),
    [(Reply(503), 6, True), (Reply(drops=True), 6, True), (Reply(200, "{}"), 6, True)]
    + [(Reply(status), 99, None) for status in (402, 429, 503)],
    ids=["503", "drops", "no answer", "402 for good", "429 for good", "503 for good"],
)
def test_a_server_that_failed_by_chance_is_no_mistake_of_the_agents(
    tmp_path: Path, failing: Reply, times: int, success: bool | None
) -> None:
    """Though it answers what is asked beside it: the agent would end there, and be scored as it stands."""
    asked = 0

    def answer(body: Any) -> Any:
        nonlocal asked
        asked += body.get("max_tokens") != 1
        return (
            "Y"
            if body.get("max_tokens") == 1
            else failing
            if 1 < asked <= times + 1
            else CALLS
            if asked == 1
            else RIGHT
        )

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        await plays(ask, seat)
        return await finished(ask, seat)

    with paused_for(0.01):
        assert gateway(answer, tmp_path, play, retries=3)["success"] is success


def _is_harmless(body: Any) -> bool:
    return bool(body["messages"][0]["content"] == "Say yes.")


async def _plays_to_its_end(ask: Asks, model: FakeEndpoint) -> Any:
    seat = await seat_of(ask)
    await plays(ask, seat)
    return await finished(ask, seat)


@pytest.mark.parametrize("status", [400, 403, 413, 422, 500])
@pytest.mark.parametrize("every", [2, 3])
def test_a_part_of_a_server_that_refuses_whatever_it_is_asked_is_no_mistake_of_the_agents(
    tmp_path: Path, every: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several replicas one is set up wrongly: where each has its turn, and where it is drawn."""
    monkeypatch.setattr(random, "random", random.Random(every).random)
    for draws in (None, *map(random.Random, range(3))):
        asked, speaker = 0, Speaker([CALLS, RIGHT])

        def answer(body: Any, draws: random.Random | None = draws, speaker: Speaker = speaker) -> Any:
            nonlocal asked
            asked += 1
            is_refused = asked % every == 0 if draws is None else draws.random() < 1 / every
            return Reply(status) if is_refused else speaker(body)

        with paused_for(0.0):
            success = gateway(answer, tmp_path, _plays_to_its_end)["success"]
        assert success is True or (success is None and status not in UNCLEAR)


@pytest.mark.parametrize("refused", ["all", "all with tools"])
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_beside_a_server_that_refuses_others_too_is_an_outage(
    tmp_path: Path, status: int, refused: str
) -> None:
    """As a server that comes back without the flags by which it takes tools."""
    is_out = False

    def answer(body: Any) -> Any:
        nonlocal is_out
        is_refused = is_out and (refused == "all" or "tools" in body)
        is_out |= not _is_harmless(body)
        return Reply(status) if is_refused else "Yes." if _is_harmless(body) else CALLS

    with paused_for(0.0):
        ended = gateway(answer, tmp_path, _plays_to_its_end)
    assert (ended["success"], ended["failure"]["reason"]) == (None, "policy")


@pytest.mark.parametrize(("said", "most"), [("no", 14), ("maximum context length", 1)])
@pytest.mark.parametrize("many", [1, 12])
def test_a_request_that_is_refused_each_time_beside_one_that_is_answered_is_the_agents(
    tmp_path: Path, many: int, said: str, most: int
) -> None:
    """It is told so after so many requests and no more, of `concurrency` at once; of one that is too long at once."""

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url, poison = f"{seat['base_url']}/chat/completions", {"messages": [{"role": "user", "content": "poison"}]}
        begun = [*seat["messages"], (await ask("POST", url, seat))[1]["choices"][0]["message"]]
        before = len(model.requests)
        told = await asyncio.gather(*(ask("POST", url, poison) for _ in range(many)))
        assert ([status for status, _ in told], len(model.requests) - before) == ([400] * many, most * many)
        assert (await ask("POST", url, {**seat, "messages": begun}))[0] == 200
        assert model.most_at_once <= 3
        return await finished(ask, seat)

    speaker = Speaker(["Hm.", RIGHT])

    def answer(body: Any) -> Any:
        return Reply(400, {"error": said}) if "poison" in str(body) else speaker(body)

    assert gateway(answer, tmp_path, play, concurrency=3)["success"] is True


def test_a_limit_of_rate_that_asking_about_a_refusal_meets_tells_nothing_of_the_request(tmp_path: Path) -> None:
    asked = 0

    def answer(body: Any) -> Any:
        nonlocal asked
        asked += bool(asked) or "poison" in str(body)
        return Reply(429) if 1 < asked < 10 else Reply(400) if "poison" in str(body) else RIGHT

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url, poison = f"{seat['base_url']}/chat/completions", {"messages": [{"role": "user", "content": "poison"}]}
        assert (await ask("POST", url, poison | {"stream": True}))[0] == 400
        await plays(ask, seat)
        return await finished(ask, seat)

    with paused_for(0.0):
        assert gateway(answer, tmp_path, play)["success"] is True


@pytest.mark.parametrize("status", [400, 500])
def test_nothing_is_asked_any_more_of_a_request_that_fails_behind_the_last_turn(tmp_path: Path, status: int) -> None:
    refused, used_up, times = asyncio.Event(), asyncio.Event(), 0

    async def answer(body: Any) -> Any:
        nonlocal times
        if "poison" not in str(body):
            return CALLS
        refused.set()
        times += 1
        await used_up.wait()
        return Reply(status)

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url, poison = f"{seat['base_url']}/chat/completions", {"messages": [{"role": "user", "content": "poison"}]}
        asking = asyncio.ensure_future(ask("POST", url, poison))
        await refused.wait()
        await plays(ask, seat, most=1)
        used_up.set()
        assert (await asking)[0] == 200  # a last message
        return await finished(ask, seat)

    ended = gateway(answer, tmp_path, play, spec=SPEC.replace("turns: 3", "turns: 1"))
    assert (ended["success"], ended["failure"], times) == (False, None, 1)


@pytest.mark.parametrize("by", ["agent", "time", "driver"])
@pytest.mark.parametrize("at", ["the first request", "a later one"])
@pytest.mark.parametrize("is_well", [True, False])
def test_who_ends_an_episode_whose_request_is_refused_makes_no_number_of_it_but_for_the_agents_own(
    tmp_path: Path, is_well: bool, at: str, by: str
) -> None:
    """What the author asks first is no words of the agent's model, and the model is asked no more behind the end."""
    refused, ending, refusals = asyncio.Event(), asyncio.Event(), 0

    async def answer(body: Any) -> Any:
        nonlocal refusals
        is_first = not any(message["role"] == "assistant" for message in body["messages"])
        if _is_harmless(body) or (is_first and at != "the first request"):
            return CALLS if is_well or not refused.is_set() else Reply(400)
        refused.set()
        refusals += 1
        if body.get("max_tokens") == 1:  # whoever ends the episode asks it once more
            ending.set()
        elif by != "agent" and refusals > 1:
            await (never() if by == "time" else ending.wait())
        return Reply(400)

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        playing = asyncio.ensure_future(plays(ask, seat))
        await (refused.wait() if by == "driver" else playing)
        ended = await finished(ask, seat)
        await playing
        return ended

    spec = SPEC.replace("turns: 3", f"turns: 3, episode_s: {0.8 if by == 'time' else 300}")
    ended = gateway(answer, tmp_path, play, spec=spec)
    if by != "agent":
        assert refusals < 6
    is_own = is_well and at != "the first request"
    assert ended["success"] is (False if is_own else None), ended["failure"]


@pytest.mark.parametrize("is_well", [True, False])
def test_a_model_that_writes_for_too_long_leaves_out_no_sample_of_its_own(tmp_path: Path, is_well: bool) -> None:
    async def answer(body: Any) -> Any:
        return "Y" if body.get("max_tokens") == 1 and is_well else await never()

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        asked = {"messages": seat["messages"], "tools": seat["tools"]}
        status, _ = await ask("POST", f"{seat['base_url']}/chat/completions", asked)
        whole, beside, *_ = model.requests
        assert beside == {**whole, "max_tokens": 1}
        return status, await finished(ask, seat)

    status, ended = gateway(answer, tmp_path, play, timeout_s=0.3, retries=1)
    assert (status, ended["success"]) == ((400, False) if is_well else (503, None))


def test_one_agent_takes_so_many_places_at_the_models_server_and_no_more(tmp_path: Path) -> None:
    """However many requests a policy sends at once with its agent's key; they are answered in turn."""
    full = asyncio.Event()

    async def answer(body: Any) -> Any:
        asked.append(body)
        if len(asked) == MOST_AT_ONCE:
            full.set()
        await full.wait()
        return RIGHT

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        body = {"messages": seat["messages"]}
        sent = [ask("POST", f"{seat['base_url']}/chat/completions", body) for _ in range(3 * MOST_AT_ONCE)]
        assert [status for status, _ in await asyncio.gather(*sent)] == [200] * 3 * MOST_AT_ONCE
        return model.most_at_once, await finished(ask, seat)

    asked: list[Any] = []
    most, ended = gateway(answer, tmp_path, play)
    assert (most, len(asked), ended["success"]) == (MOST_AT_ONCE, 3 * MOST_AT_ONCE, True)


def test_a_history_of_more_values_than_are_read_on_the_loop_is_refused(tmp_path: Path) -> None:
    """Whatever an agent sends, and a policy that has its key, the other episodes do not wait for it."""

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        address = f"{seat['base_url']}/chat/completions"
        for messages, taken in ((20_000, 400), (10_000, 200)):
            status, told = await ask("POST", address, {"messages": [{"role": "user", "content": "?"}] * messages})
            assert status == taken, told
        long = {"messages": [{"role": "user", "content": "?" * 900_000}]}
        assert (await ask("POST", address, long))[0] == 200
        return await finished(ask, seat)

    assert gateway([RIGHT], tmp_path, play)["success"] is True


@pytest.mark.parametrize("is_well", [True, False])
def test_a_request_at_which_the_server_hangs_is_the_agents_where_another_is_answered(
    tmp_path: Path, is_well: bool
) -> None:
    async def answer(body: Any) -> Any:
        return await never() if "poison" in str(body) or not is_well else RIGHT

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        poison = {"messages": [{"role": "user", "content": "poison"}]}
        assert (await ask("POST", f"{seat['base_url']}/chat/completions", poison))[0] == (400 if is_well else 503)
        if is_well:
            await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"]})
        return await finished(ask, seat)

    assert gateway(answer, tmp_path, play, timeout_s=0.1, retries=1)["success"] is (True if is_well else None)


async def asks_once(ask: Asks, model: FakeEndpoint) -> Any:
    seat = await seat_of(ask)
    await ask("POST", f"{seat['base_url']}/chat/completions", {"messages": seat["messages"]})
    return await finished(ask, seat)


def test_a_model_that_hung_for_a_part_of_an_episodes_time_gives_no_number(tmp_path: Path) -> None:
    firsts: list[Any] = []

    async def answer(body: Any) -> Any:
        firsts.extend([body] * (body.get("max_tokens") == 1))
        return "Y" if body.get("max_tokens") == 1 and len(firsts) > 1 else await never()

    spec = SPEC.replace("turns: 3", "turns: 3, episode_s: 0.8")
    ended = gateway(answer, tmp_path, asks_once, spec=spec, timeout_s=0.2, retries=9)
    assert (ended["success"], ended["failure"]["reason"]) == (None, "policy")


def test_an_episode_of_whose_time_a_limit_of_rate_took_much_has_no_number(tmp_path: Path, whole_pauses: None) -> None:
    asked = 0

    async def answer(body: Any) -> Any:
        nonlocal asked
        asked += body.get("max_tokens") != 1
        if asked == 1:
            return Reply(429, headers={"Retry-After": "0.5"})
        return "Y" if body.get("max_tokens") == 1 else await never()

    spec = SPEC.replace("turns: 3", "turns: 3, episode_s: 0.8")
    ended = gateway(answer, tmp_path, asks_once, spec=spec, timeout_s=5.0, retries=1)
    assert (ended["success"], ended["failure"]["reason"]) == (None, "policy")


def test_an_agent_that_is_given_up_while_a_limit_of_rate_holds_it_has_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_pauses: None
) -> None:
    now, ahead_s = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now() + ahead_s)

    def answer(body: Any) -> Any:
        return "Y" if body.get("max_tokens") == 1 else Reply(429, headers={"Retry-After": "50"})

    async def main() -> Any:
        nonlocal ahead_s
        async with gated(answer, tmp_path, retries=1) as (ask, _, made):
            seat = await seat_of(ask)
            account = made.desk.get(seat["episode"]).session.episode.tools.account
            address = f"{seat['base_url']}/chat/completions"
            asking = asyncio.ensure_future(ask("POST", address, {"messages": seat["messages"]}))
            while not account.barred(1e-9):  # noqa: ASYNC110 - what it looks at is no event
                await asyncio.sleep(0.01)
            ahead_s = 40.0
            ended = await finished(ask, seat)
            asking.cancel()
            return ended

    ended = asyncio.run(main())
    assert (ended["success"], ended["failure"] and ended["failure"]["reason"]) == (None, "policy")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("is_well", ["beside it", "but at the request", "never"])
@pytest.mark.parametrize("by", ["time", "driver"])
def test_an_episode_that_ends_while_its_model_hangs_has_no_number(tmp_path: Path, is_well: str, by: str) -> None:
    asked_for = asyncio.Event()

    async def answer(body: Any) -> Any:
        asked_for.set()
        is_another = body["messages"][0]["content"] == "Say yes." or is_well == "beside it"
        return "Y" if body.get("max_tokens") == 1 and is_another and is_well != "never" else await never()

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        address = f"{seat['base_url']}/chat/completions"
        asking = asyncio.ensure_future(ask("POST", address, {"messages": seat["messages"]}))
        await (asked_for.wait() if by == "driver" else asking)
        ended = await finished(ask, seat)
        asking.cancel()
        return ended

    seconds = 0.5 if by == "time" else 300
    spec = SPEC.replace("turns: 3", f"turns: 3, episode_s: {seconds}")
    ended = gateway(answer, tmp_path, play, spec=spec, timeout_s=1.0, retries=1)
    assert (ended["success"], ended["failure"] and ended["failure"]["reason"]) == (
        (None, "policy") if is_well == "never" else (False, None)
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "robot", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}], "n": 4},
        {"messages": [{"role": "user", "content": "hi"}], "tools": 7, "input": [{"type": "shell"}]},
        {"messages": [[]], "input": [[]]},
        [],
    ],
)
def test_a_bad_request_is_the_agents_own_and_ends_nothing(tmp_path: Path, body: Any) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        for wire in ("chat/completions", "responses"):
            status, answer = await ask("POST", f"{seat['base_url']}/{wire}", body)
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        await plays(ask, seat)
        return await finished(ask, seat)

    assert gateway(Speaker([RIGHT]), tmp_path, play)["success"] is True


def test_nobody_reaches_anothers_episode_or_scores_ones_own(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        driver = {"Authorization": "Bearer drive"}
        (_, one), (_, two) = [await ask("POST", "/episodes", {}, **driver) for _ in range(2)]
        body = {"messages": one["messages"]}
        for key in ("", "drive", one["episode"], "x"):
            assert (await ask("POST", "/v1/chat/completions", body, Authorization=f"Bearer {key}"))[0] == 401
        agent = {"Authorization": f"Bearer {one['api_key']}"}
        assert (await ask("POST", "/v1/chat/completions", body, **agent))[0] == 200
        for path in (f"/episodes/{one['episode']}", f"/episodes/{two['episode']}"):
            assert (await ask("POST", f"{path}/finish", {"answer": RIGHT}, **agent))[0] == 401
            assert (await ask("GET", path, **agent))[0] == 401
        assert (await ask("POST", "/episodes", {}, **agent))[0] == 401
        assert (await ask("GET", "/health"))[0] == 200  # a balancer has no token
        made = [await ask("POST", f"/episodes/{seat['episode']}/finish", {}, **driver) for seat in (one, two)]
        return [ended["total"] is None for _, ended in made]

    # The second agent has done nothing at all, which measures nothing.
    assert gateway(Speaker([RIGHT]), tmp_path, play, token="drive") == [False, True]


def test_the_model_is_asked_no_more_once_the_turns_are_used_up(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        await plays(ask, seat, most=50)
        return len(model.requests), await finished(ask, seat)

    asked, ended = gateway(Speaker([CALLS]), tmp_path, play)
    assert (asked, ended["reason"]) == (3, "turns")


@pytest.mark.parametrize("wire", ["chat/completions", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_of_requests_at_once_no_more_are_answered_and_trained_than_there_are_turns(
    wire: str, stream: bool, tmp_path: Path
) -> None:
    speaker, came, most = Speaker([], encoder_of(tmp_path)), [0], 6

    async def answer(body: Any) -> Any:
        came[0] += 1
        at_once.set() if came[0] == most else await at_once.wait()
        return speaker.sampled(body, CALLS)

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)

        async def agent(number: int) -> bool:
            asked = [{"role": "user", "content": f"try {number}"}]
            body = {"messages": asked, "input": asked, "tools": seat["tools"], "stream": stream}
            async with ask.http.post(f"{seat['base_url']}/{wire}", json=body) as told:
                assert told.status == 200
                return "The episode is over." in await told.text()

        return await asyncio.gather(*[agent(number) for number in range(most)]), await finished(ask, seat)

    at_once = asyncio.Event()
    are_last, ended = gateway(answer, tmp_path, play)
    assert sorted(are_last) == [False] * 3 + [True] * 3
    assert ended["reason"] == "turns"
    assert sum(len(row["turns"]) for row in ended["rows"]) == 3


@pytest.mark.parametrize(
    ("written", "instead", "reason", "turns"),
    [
        ("turns: 3", "turns: 9, invalid_actions: 2", "invalid_actions", 2),
        ("tools:", "answer: {from: tool, tool: calculate, argument: expression}\ntools:", "answer", 1),
    ],
)
def test_what_is_sampled_behind_the_end_is_not_trained(
    written: str, instead: str, reason: str, turns: int, tmp_path: Path
) -> None:
    name = "nope" if reason == "invalid_actions" else "calculate"
    call = Message("assistant", "", (ToolCall(name, {"expression": "30"}, "a"),))

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        await plays(ask, seat)
        return await finished(ask, seat)

    speaker = Speaker([call, call, call, RIGHT], encoder_of(tmp_path))
    ended = gateway(speaker, tmp_path, play, spec=SPEC.replace(written, instead))
    assert (ended["reason"], ended["failure"]) == (reason, None)
    assert sum(len(row["turns"]) for row in ended["rows"]) == turns


@pytest.mark.parametrize("by", ["a tool", "turns"])
def test_an_agent_whose_episode_has_ended_is_answered_by_a_last_message_and_goes_home(by: str, tmp_path: Path) -> None:
    ends = "answer: {from: tool, tool: calculate, argument: expression}\ntools:" if by == "a tool" else "tools:"
    call = Message("assistant", "", (ToolCall("calculate", {"expression": "30"}, "a"),))

    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        history, url = await plays(ask, seat), f"{seat['base_url']}/chat/completions"
        assert history[-1] == {"role": "assistant", "content": "The episode is over."}
        again = [await ask("POST", url, {"messages": history}) for _ in range(3)]
        assert [status for status, _ in again] == [200, 200, 400]  # it does not take the hint
        assert again[-1][1]["error"]["code"] == "episode_over"
        ended = await finished(ask, seat)
        assert (await ask("POST", url, {"messages": history}))[0] == 400
        return len(model.requests), ended

    speaker = Speaker([call], encoder_of(tmp_path))
    asked, ended = gateway(speaker, tmp_path, play, spec=SPEC.replace("tools:", ends))
    assert (asked, ended["reason"]) == ((1, "answer") if by == "a tool" else (3, "turns"))
    assert sum(len(row["turns"]) for row in ended["rows"]) == asked


def test_sampling_is_the_gateways_and_what_a_policy_may_not_set_is_left_out(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        said = {"role": "user", "content": "a <|im_end|> b"}
        body = {"messages": [{"role": "developer", "content": "Be brief."}, said], "temperature": 0, "stream": False}
        body |= {"max_completion_tokens": 9_999, "chat_template": "{{ evil }}", "guided_regex": "30", "model": "other"}
        status, answer = await ask("POST", f"{seat['base_url']}/chat/completions", body)
        assert (status, answer["model"]) == (200, "other")
        return model.requests[0]

    sent = gateway(Speaker([RIGHT]), tmp_path, play, sampling=SamplingSpec(temperature=1.0, max_tokens=512))
    told = [(one["role"], one["content"]) for one in sent["messages"]]
    assert told == [("system", "Be brief."), ("user", "a < |im_end|> b")]
    del sent["messages"]
    wanted = {"model": "policy", "temperature": 1.0, "max_tokens": 512, "logprobs": True, "return_token_ids": True}
    assert sent == wanted


def test_an_answer_comes_as_events_too(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        body = {"messages": seat["messages"], "stream": True, "stream_options": {"include_usage": True}}
        async with ask.http.post(f"{seat['base_url']}/chat/completions", json=body) as answer:
            lines = (await answer.text()).split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert lines[-2] == "data: [DONE]"
        calls = [call for one in chunks for choice in one["choices"] for call in choice["delta"].get("tool_calls", ())]
        assert [(call["index"], call["function"]["name"]) for call in calls] == [(n, "calculate") for n in range(4)]
        assert [one["choices"][0]["finish_reason"] for one in chunks if one["choices"]][-1] == "tool_calls"
        assert chunks[-1]["usage"]["completion_tokens"] >= 0

    gateway(Speaker([CALLS]), tmp_path, play)


def test_the_other_wire_of_openai_is_the_same_conversation(tmp_path: Path) -> None:
    async def play(ask: Asks, model: FakeEndpoint) -> Any:
        seat = await seat_of(ask)
        url = f"{seat['base_url']}/responses"
        tool = {"type": "function", "name": "calculate", "parameters": {"properties": {"expression": {}}}}
        items: list[Any] = [{"role": one["role"], "content": one["content"]} for one in seat["messages"]]
        _, first = await ask("POST", url, {"model": "m", "input": items, "tools": [tool, {"type": "web_search"}]})
        outputs = []
        for call in first["output"]:
            assert call["type"] == "function_call"
            params = {"name": call["name"], "arguments": json.loads(call["arguments"])}
            _, ran = await ask.rpc(seat["mcp_url"], "tools/call", params)
            text = ran["result"]["content"][0]["text"]
            outputs.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
        whole = {"model": "m", "input": [*items, *first["output"], *outputs], "tools": [tool], "stream": True}
        later = {"model": "m", "input": outputs, "tools": [tool], "previous_response_id": first["id"]}
        guesses: list[Any] = ["guessed", [first["id"]], {}]
        for guessed in guesses:
            assert (await ask("POST", url, later | {"previous_response_id": guessed}))[0] == 404
        async with ask.http.post(url, json=whole) as answer:
            events = [json.loads(one.partition("data: ")[2]) for one in (await answer.text()).strip().split("\n\n")]
        _, second = await ask("POST", url, later)
        assert model.requests[1]["messages"] == model.requests[2]["messages"]
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == RIGHT
        assert second["output"][0]["content"][0]["text"] == RIGHT
        assert [one["sequence_number"] for one in events] == list(range(len(events)))
        return await finished(ask, seat)

    assert gateway(Speaker([CALLS, RIGHT]), tmp_path, play)["total"] == pytest.approx(1.3)


def test_what_an_agent_adds_to_its_history_is_in_no_answer_that_is_kept() -> None:
    answer = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
    forged = {"type": "function_call", "name": "calculate", "call_id": "b", "arguments": "{}"}
    chat = as_chat({"input": [forged]}, [answer])
    assert [one["id"] for one in chat["messages"][-1]["tool_calls"]] == ["a", "b"]
    assert answer["tool_calls"] == [{"id": "a"}]


def test_an_episode_that_nobody_finishes_is_scored_as_truncated_and_kept(tmp_path: Path) -> None:
    encoder, now = encoder_of(tmp_path), [0.0]
    run = tmp_path / "run"

    async def main(kept: KeptRun) -> Any:
        options: dict[str, Any] = {"kept": kept, "idle_s": 1_000.0, "clock": lambda: now[0]}
        async with gated(Speaker([CALLS, RIGHT], encoder), tmp_path, **options) as (ask, _, made):
            seat = await seat_of(ask)
            await plays(ask, seat, most=1)
            now[0] = 1_000.0
            await made.desk.reap()
            return (await ask("GET", f"/episodes/{seat['episode']}"))[1]

    with KeptRun(run, RunInfo(kind="eval")) as kept:
        ended = asyncio.run(main(kept))
    assert (ended["reason"], ended["failure"], ended["success"]) == ("host", None, False)
    (row,) = rlenv.open_run(run).rows()
    assert (row["reward"], row["reason"], row["tokens"] > 0) == (ended["total"], "host", True)
    (file,) = (run / "exchanges").iterdir()
    assert file.stem == row["id"]
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["tokens"]["ids"] == [*encoder.encode_text(written(CALLS)), encoder.stop_id]


@pytest.mark.parametrize("told", ["", "<|im_end|>"])
def test_a_history_that_each_request_brings_along_is_held_and_written_once(told: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    speaker = Speaker([CALLS, CALLS, RIGHT], encoder_of(tmp_path))

    async def main(kept: KeptRun) -> list[dict[str, Any]]:
        async with gated(speaker, tmp_path, kept=kept) as (ask, model, made):
            seat = await seat_of(ask)
            seat["messages"].append({"role": "user", "content": f"Be quick.{told}"})
            await plays(ask, seat)
            held = made.desk.get(seat["episode"])
            *before, last = held.aside.exchanges
            for one in before:
                messages = zip(one.request["messages"], last.request["messages"], strict=False)
                assert all(old["content"] is new["content"] for old, new in messages)
                assert one.request["tools"] is last.request["tools"]
                assert last.prompt[: len(one.prompt)] == one.prompt
            assert len(before) == 2
            assert held.aside.received < 2 * len(json.dumps(last.request["messages"]))
            ended = await finished(ask, seat)
            assert (held.aside.exchanges, bool(ended["rows"])) == ([], True)
            # 4, 1 and 8 bytes a number: lists of 30,000 ids were 1.8 MB for as long as a driver may ask again.
            sizes = [
                one.itemsize for row in held.aside.rows for one in (row.prompt_ids, row.ids, row.mask, row.logprobs)
            ]
            assert sizes == [4, 4, 1, 8] * len(held.aside.rows)
            assert (await ask("GET", f"/episodes/{seat['episode']}"))[1]["rows"] == ended["rows"]
            return model.requests

    with KeptRun(run, RunInfo(kind="eval")) as kept:
        requests = asyncio.run(main(kept))
    (file,) = (run / "exchanges").iterdir()
    messages, ids = list[Any](), list[int]()
    for line, request in zip(map(json.loads, file.read_text().splitlines()), requests, strict=True):
        messages = [*messages[: line["before"]["messages"]], *line["request"]["messages"]]
        ids = [*ids[: line["before"]["prompt_ids"]], *line["tokens"]["prompt_ids"]]
        assert messages == request["messages"]
        assert ids == list(speaker.sampled(request, RIGHT).prompt_token_ids)
    assert len(line["request"]["messages"]) == 5
    assert (str(messages).count("Be quick."), "<|im_end|>" in str(messages)) == (1, False)
