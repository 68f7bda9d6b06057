"""A panel whose judges fail: who is left out, who is not, and that no policy chooses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from aiohttp import web

from rlenv.concurrency.lanes import Lane, entered
from rlenv.concurrency.scope import Scope
from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import Measured
from rlenv.runs.cassettes import Player, Recorder
from rlenv.runs.events import Reel, parse_events
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.clock import passes, run_skipping
from tests.support.judges import Server, chat, compiled, context, falling, judged, one, verdict

THREE: dict[str, Any] = {"endpoint": None, "judges": [{"endpoint": name} for name in ("writer", "second", "third")]}


def panel(**replies: Any) -> Server:
    """A server on which each of three judges has a reply of its own, or a function of the request."""

    def answer(body: dict[str, Any]) -> web.Response | str:
        reply = replies[body["model"].removeprefix("model-of-")]
        found: web.Response | str = reply(body) if callable(reply) else reply
        return found

    return Server([answer])


DOWN = web.Response(status=503, text="down")


def test_a_judge_that_fails_is_left_out_and_the_details_say_why() -> None:
    found = one(panel(writer=verdict(2), second=DOWN, third=verdict(4)), quorum=2, retries=0, **THREE)
    assert found.details["raw"] == 3.0
    first, second, third = found.details["judges"]
    assert (first["score"], second["score"], third["score"]) == (2, None, 4)
    assert "503" in second["error"]
    assert "error" not in first


def test_below_the_quorum_there_is_no_number() -> None:
    (found,) = judged(panel(writer=verdict(2), second=DOWN, third="prose"), quorum=0.6, retries=0, **THREE)
    assert isinstance(found, RewardError)
    assert "1 of 3 judges gave a verdict, 2 have to" in str(found)
    assert "second: the judge did not answer" in str(found)
    assert "third: no reply of model-of-third could be read" in str(found)


def test_the_first_judge_that_speaks_gives_the_evidence() -> None:
    found = one(panel(writer=DOWN, second=verdict(5, "well said"), third=verdict(5)), quorum=1, retries=0, **THREE)
    assert found.evidence == "well said"


def gullible(body: Mapping[str, Any]) -> str:
    """A judge that material talks into prose, and that is well otherwise."""
    return "How lovely!" if "talk" in body["messages"][-1]["content"] else verdict(1)


def test_a_judge_that_the_material_talks_out_of_its_verdict_is_not_left_out() -> None:
    server = panel(writer=gullible, second=verdict(5), third=verdict(5))
    (talked, plain) = judged(
        server, lambda scope: context(scope, "talk"), lambda scope: context(scope, "fair"), quorum=2, retries=0, **THREE
    )
    for found in (talked, plain):  # the lowest score is what the gullible judge gives to both
        assert isinstance(found, Measured)
        assert found.details["raw"] == pytest.approx(11 / 3)


@pytest.mark.parametrize("refusal", [chat("", "content_filter"), web.Response(status=400), web.Response(status=500)])
def test_what_one_judges_server_refuses_is_worth_the_lowest_score_there(refusal: web.Response) -> None:
    def refuses(body: Mapping[str, Any]) -> web.Response | str:
        return refusal if "talk" in str(body["messages"][-1]) else verdict(3)

    found = judged(
        panel(writer=refuses, second=verdict(5), third=verdict(3)),
        lambda scope: context(scope, "talk"),
        quorum=1,
        **THREE,
    )[0]
    assert isinstance(found, Measured)
    assert [judge["score"] for judge in found.details["judges"]] == [1, 5, 3]


def texts(*said: str) -> list[Any]:
    return [lambda scope, text=text: context(scope, text) for text in said]


@pytest.mark.parametrize(("reset_s", "later"), [(1000, 1), (1e-9, 8)], ids=["while it is known", "when it is over"])
def test_a_judge_that_cannot_be_read_costs_few_requests(reset_s: float, later: int) -> None:
    server = Server(["I like it."])
    found = judged(server, *texts("a", "b", "c"), breaker={"reset_s": reset_s})
    assert all(isinstance(one, RewardError) and "not one JSON value" in str(one) for one in found)
    # At first `retries` + 1, and three without the text, two of them with one more about it.
    assert len(server.asked) == 8 + 2 * later
    assert [body["seed"] for body in server.asked if "(left out)" in str(body)][:3] == [0, 1, 2]
    server = Server(["I like it."])
    judged(server, context, retries=0, breaker={"failures": 0})
    assert len(server.asked) == 1 + 5


def test_a_judge_that_is_read_again_is_asked_as_before() -> None:
    server = Server([*["I like it."] * 8, verdict(4), "I like it.", verdict(2)])
    lost, *found = judged(server, *texts("a", "b", "c"), breaker={"reset_s": 1000})
    assert isinstance(lost, RewardError)
    assert [one.value for one in found if isinstance(one, Measured)] == [0.75, 0.25]


@pytest.mark.parametrize("lost", [range(5), range(0, 400, 2)], ids=["at first", "now and then"])
def test_nobody_is_spared_a_score_by_a_judge_that_can_be_read_now_and_then(lost: range) -> None:
    known = count()

    def answer(body: Mapping[str, Any]) -> str:
        shown = body["messages"][-1]["content"]
        is_lost = "talk" in shown or ("(left out)" in shown and next(known) in lost)
        return "How lovely!" if is_lost else verdict(3)

    found = judged(Server([answer]), *texts("fair", "talk"))
    assert [one.value for one in found if isinstance(one, Measured)] == [0.5, 0.0]


def test_weights_and_personas_by_prompt() -> None:
    judges = [
        {"endpoint": "writer", "prompt": "As a poet: {{ message }}", "weight": 3},
        {"endpoint": "writer", "prompt": "As a lawyer: {{ message }}"},
    ]
    server = Server([lambda body: verdict(5 if "poet" in body["messages"][-1]["content"] else 1)])
    found = one(server, endpoint=None, judges=judges)
    assert found.details["raw"] == 4.0
    assert len({judge["prompt_sha256"] for judge in found.details["judges"]}) == 2


def test_a_judge_that_hangs_fails_at_its_own_limit_and_the_others_count() -> None:
    async def answer(body: Mapping[str, Any]) -> str:
        if body["model"] == "model-of-second":
            await asyncio.Event().wait()
        return verdict(4)

    judges = [{"endpoint": "writer"}, {"endpoint": "second", "timeout_s": 0.2}, {"endpoint": "third"}]

    async def main() -> Measured:
        async with asyncio.timeout(60), FakeEndpoint(answer) as server:
            scope = Scope()
            term = compiled(Server([], address=server.base_url), endpoint=None, judges=judges, quorum=2)
            assert term.measure_async is not None
            found = await term.measure_async(context(scope))
            await scope.aclose()
            return found

    found = asyncio.run(main())
    assert found.details["raw"] == 4.0
    assert found.details["judges"][1]["error"] == "no verdict within 0.2 s"


@pytest.mark.slow
def test_a_text_that_keeps_a_judge_busy_for_all_the_time_makes_no_reward_invalid() -> None:
    async def answer(body: Mapping[str, Any]) -> str:
        if "long" in str(body["messages"]):
            await asyncio.Event().wait()
        return json.dumps({"reasoning": "so", "better": "tie"}) if "better" in str(body) else verdict(4)

    async def main() -> list[Any]:
        async with asyncio.timeout(300), FakeEndpoint(answer) as server:
            scope = Scope()
            judges = [{"endpoint": "writer", "timeout_s": 40.0}]
            compared = {"judges": judges, "endpoint": None, "prompt": "Which is kinder?"}
            terms = [
                compiled(Server([], address=server.base_url), **keys)
                for keys in (
                    {"judges": judges, "endpoint": None},
                    compared | {"pairwise": {"with": "Because."}},
                    compared | {"pairwise": {"with": "So long."}},
                )
            ]
            asked = [
                term.measure_async(context(scope, message))
                for term, message in zip(terms, ("It is long.", "It is long.", "It is 42."), strict=True)
                if term.measure_async is not None
            ]
            found = await asyncio.gather(*asked, return_exceptions=True)
            await scope.aclose()
            return found

    own, compared, others = asyncio.run(main())
    assert (own.value, compared.value) == (0.0, 0.0)
    assert isinstance(others, RewardError)


@pytest.mark.slow
def test_a_replay_gives_what_was_asked_beside_at_once_and_asks_nobody() -> None:
    asked = Counter[str]()

    async def answer(body: Mapping[str, Any]) -> str:
        said = next((word for word in ("hung", "lost", "unread", "essay") if word in str(body["messages"])), "known")
        asked[said] += 1
        if said == "hung" or (said == "lost" and asked[said] == 1):
            await asyncio.Event().wait()
        if said == "unread" and asked[said] == 1:
            await passes(2.0)
        if said == "essay":
            await passes(0.5)
        return "prose" if said == "essay" or (said == "unread" and asked[said] < 4) else verdict(4)

    async def measured(address: str, lane: Lane) -> tuple[list[Any], float]:
        scope, found = Scope(), []
        judges = [{"endpoint": "writer", "timeout_s": 6.0}]
        term = compiled(Server([], address=address), judges=judges, endpoint=None)
        assert term.measure_async is not None
        for said in ("hung", "lost", "unread", "essay"):
            with entered(lane.at(said)):
                found.append((await term.measure_async(context(scope, said))).value)
        await scope.aclose()
        return found, asyncio.get_running_loop().time()

    async def record() -> tuple[list[Any], Player]:
        recorder = Recorder()
        lane = recorder.lane()
        async with asyncio.timeout(120), FakeEndpoint(answer) as server:
            found, _ = await measured(server.base_url, lane)
        return found, Player(Reel(None, {"run": parse_events(recorder.take_events(lane), "run")}))

    then, player = asyncio.run(record())
    made, again = sum(asked.values()), run_skipping(measured("http://127.0.0.1:1/v1", player.lane("run")))
    assert (then, again, sum(asked.values())) == ([0.0, 0.75, 0.75, 0.0], (then, 0.0), made)


@pytest.mark.parametrize(("has_proxy", "keys"), [(False, {}), (True, {}), (False, THREE | {"quorum": 3})])
def test_a_text_that_fells_the_judges_server_gets_the_lowest_score_and_takes_no_verdict_from_others(
    has_proxy: bool, keys: dict[str, Any]
) -> None:
    async def main() -> list[Any]:
        server = Server([verdict(4)])
        async with asyncio.timeout(60), server.running(), falling(server.address, has_proxy=has_proxy) as address:
            scope = Scope()
            term = compiled(Server([], address=address), cache=False, **keys)
            assert term.measure_async is not None
            if has_proxy:  # it counts as fallen only where it has answered
                await term.measure_async(context(scope, "before"))
            asked = [term.measure_async(context(scope, said)) for said in ("It fells.", "kind", "fair")]
            found = await asyncio.gather(*asked, return_exceptions=True)
            await scope.aclose()
            return found

    assert [one.value for one in asyncio.run(main())] == [0.0, 0.75, 0.75]


@pytest.mark.slow
def test_an_endpoint_that_keeps_failing_is_asked_by_no_later_episode() -> None:
    server = panel(writer=DOWN)
    texts = [lambda scope, text=str(index): context(scope, text) for index in range(6)]
    found = judged(server, *texts, breaker={"failures": 2, "reset_s": 1000})
    assert all(isinstance(one, RewardError) for one in found)
    # Over what an episode wrote a failure tells nothing.
    assert len(server.asked) == 3
    assert "left alone" in str(found[-1])
    server = panel(writer=DOWN)
    judged(server, *texts, breaker={"failures": 0})
    assert len(server.asked) >= 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"quorum": 4}, "4 of 3 judges"),
        ({"combine": "max", "judges": [{"endpoint": "writer", "weight": 2}]}, "weights"),
    ],
)
def test_a_panel_that_cannot_be_is_refused_when_the_spec_is_compiled(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled(Server([], address="http://127.0.0.1:1/v1"), **{**THREE, **keys})
