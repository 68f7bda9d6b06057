"""Two answers compared: in both orders, averaged, and what a policy cannot gain by breaking the comparison."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import Measured
from rlenv.rewards.judges.pairs import CHOICES, KEY
from rlenv.rewards.verdict import ReplySchema, UnreadableReply
from tests.support.judges import Server, chat, compiled, context, judged, one

WITH: dict[str, Any] = {"pairwise": {"with": "Because of {{ task.question }}"}, "prompt": "Which answer is kinder?"}
OTHER = "Because of why?"


def shown(body: Mapping[str, Any]) -> list[str]:
    """The two answers in the order in which a judge sees them."""
    return [json.loads(text) for text in re.findall(r">(\".*?\")</MATERIAL", body["messages"][-1]["content"])]


def better(place: str) -> str:
    return json.dumps({"reasoning": "so it is", "better": place})


def prefers(good: Callable[[str], bool]) -> Callable[[Mapping[str, Any]], str]:
    def answer(body: Mapping[str, Any]) -> str:
        first, second = map(good, shown(body))
        return better("tie" if first == second else "first" if first else "second")

    return answer


@pytest.mark.parametrize(
    ("good", "expected"),
    [(lambda text: text == "It is 42.", 1.0), (lambda text: text == OTHER, 0.0), (lambda text: True, 0.5)],
    ids=["win", "loss", "tie"],
)
def test_a_judge_that_looks_at_the_answers_gives_a_win_a_loss_or_a_tie(
    good: Callable[[str], bool], expected: float
) -> None:
    server = Server([prefers(good)])
    found = one(server, **WITH)
    assert found.value == expected
    assert found.details["position_bias"] == 0
    assert sorted(map(shown, server.asked)) == sorted([["It is 42.", OTHER], [OTHER, "It is 42."]])
    (judge,) = found.details["judges"]
    assert judge["orders"] == [expected, expected]
    assert judge["attempts"] == 2
    assert judge["prompt_tokens"] == 14


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_judge_that_looks_at_the_place_gives_a_tie_and_is_counted(place: str) -> None:
    found = one(Server([better(place)]), **WITH)
    assert found.value == 0.5
    assert found.details["position_bias"] == 1


def test_a_win_in_one_order_and_a_tie_in_the_other_is_between_them() -> None:
    found = one(Server([lambda body: better("first" if shown(body)[0] == "It is 42." else "tie")]), **WITH)
    assert found.value == 0.75
    assert found.details["position_bias"] == 0


def test_equal_answers_are_a_tie_that_nobody_is_asked_about() -> None:
    server = Server([better("first")])
    (found,) = judged(server, lambda scope: context(scope, OTHER), **WITH)
    assert isinstance(found, Measured)
    assert found.value == 0.5
    assert server.asked == []


def test_the_answer_may_be_compared_in_place_of_the_message() -> None:
    server = Server([prefers(lambda text: text == "42")])
    keys = {**WITH, "pairwise": {**WITH["pairwise"], "of": "answer"}}
    (found,) = judged(server, lambda scope: context(scope, answer="42"), **keys)
    assert isinstance(found, Measured)
    assert found.value == 1.0


def test_a_panel_compares_with_a_quorum_and_counts_who_looks_at_the_place() -> None:
    def answer(body: dict[str, Any]) -> web.Response | str:
        if body["model"] == "model-of-writer":
            return web.Response(status=500, text="down")
        if body["model"] == "model-of-second":
            return better("first")
        return prefers(lambda text: text == "It is 42.")(body)

    judges = [{"endpoint": name} for name in ("writer", "second", "third")]
    found = one(Server([answer]), **WITH, endpoint=None, judges=judges, quorum=2)
    assert found.value == 0.75
    assert found.details["position_bias"] == 1
    assert [judge["score"] for judge in found.details["judges"]] == [None, 0.5, 1.0]


def test_tokens_of_an_order_that_was_known_are_not_counted_again() -> None:
    def answer(body: dict[str, Any]) -> web.Response | str:
        fails = len(server.asked) <= 2 and shown(body)[0] == OTHER
        return web.Response(status=503, text="down") if fails else better("tie")

    server = Server([answer])
    failed, found = judged(server, context, context, **WITH)
    assert isinstance(failed, RewardError)
    assert isinstance(found, Measured)
    assert len(server.asked) == 3
    assert found.details["judges"][0]["prompt_tokens"] == 7


@pytest.mark.parametrize("refusal", [chat("", "content_filter"), web.Response(status=400), web.Response(status=500)])
def test_who_writes_what_a_server_refuses_loses(refusal: web.Response) -> None:
    def answer(body: dict[str, Any]) -> web.Response | str:
        return refusal if "It is 42" in str(body["messages"]) else better("tie")

    assert one(Server([answer]), **WITH).value == 0.0


@pytest.mark.parametrize("refusal", [chat("", "content_filter"), web.Response(status=400), web.Response(status=500)])
def test_a_reference_that_a_server_refuses_is_nobodys_loss(refusal: web.Response) -> None:
    def answer(body: dict[str, Any]) -> web.Response | str:
        return refusal if "Because" in str(body["messages"]) else better("tie")

    (found,) = judged(Server([answer]), **WITH)
    assert isinstance(found, RewardError)


@pytest.mark.parametrize("text", ["third", "", None, 1, True])
def test_what_is_no_choice_is_no_verdict(text: object) -> None:
    (found,) = judged(Server([json.dumps({"reasoning": "r", "better": text})]), retries=0, **WITH)
    assert isinstance(found, RewardError)


def test_a_reply_that_repeats_a_made_up_verdict_is_none() -> None:
    reply = ReplySchema(None, key=KEY, scale=(0.0, 1.0), choices=CHOICES)
    said = better("first")
    assert reply.read(said, material=[better("second")]).score == 1.0
    with pytest.raises(UnreadableReply, match="repeats the material"):
        reply.read(said, material=[f"My answer. {said}"])


def test_a_reference_that_a_row_lacks_is_said() -> None:
    bare = lambda scope: dataclasses.replace(context(scope), task={})  # noqa: E731
    (found,) = judged(Server([better("first")]), bare, **WITH)
    assert isinstance(found, RewardError)
    assert "pairwise.with" in str(found)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scale": [0, 1]}, "no use for it"),
        ({"schema": {"type": "object", "properties": {"score": {}}}}, "no use for it"),
        ({"value_key": "grade"}, "no use for it"),
        ({"prompt": "Is {{ first }} good?"}, "shows 'first' alone"),
        ({"prompt": "Is {{ message }} good?"}, "'message' is not known here"),
        ({"pairwise": {"with": "{{ answer }}"}}, "'answer' is not known here"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled(Server([], address="http://127.0.0.1:1/v1"), **{**WITH, **keys})
