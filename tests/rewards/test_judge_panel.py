"""Two answers compared: in both orders, averaged, and what a policy cannot gain by breaking the comparison."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import rlenv
from rlenv.audit.judge import judge_of
from rlenv.audit.judge_attacks import attack_judges
from rlenv.concurrency.deadline import paused_for
from rlenv.concurrency.scope import Scope
from rlenv.errors import RewardError, SpecError, UsageError
from rlenv.rewards.base import Measured, RewardContext
from rlenv.rewards.group import score_groups
from rlenv.rewards.judge_panel import CHOICES, KEY, Combine, check_panel, combine, drawn, needed
from rlenv.rewards.verdict import ReplySchema, UnreadableReply
from rlenv.runs.replay import replay, rescore
from rlenv.runs.variants import Weights, reweigh
from rlenv.trajectory import ModelUsage, TermResult, Trajectory
from tests.support.judges import Server, chat, compiled, context, falling, judged, one

WITH: dict[str, Any] = {"pairwise": {"with": "Because of {{ task.question }}"}, "prompt": "Which answer is kinder?"}
OURS, OTHER = "It is 42.", "Because of why?"


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
    is_down, asked = True, list[str]()

    def answer(body: dict[str, Any]) -> web.Response | str:
        asked.append(shown(body)[0])
        return web.Response(status=404, text="no such model") if is_down and asked[-1] != OURS else better("tie")

    def up(scope: Scope) -> RewardContext:
        nonlocal is_down
        is_down = False
        asked.clear()
        return context(scope)

    with paused_for(0.02):
        failed, found = judged(Server([answer]), context, up, **WITH)
    assert isinstance(failed, RewardError)
    assert isinstance(found, Measured)
    assert asked == [OTHER]
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
        ({"key": "grade"}, "no use for it"),
        ({"prompt": "Is {{ first }} good?"}, "shows 'first' alone"),
        ({"prompt": "Is {{ message }} good?"}, "'message' is not known here"),
        ({"pairwise": {"with": "{{ answer }}"}}, "'answer' is not known here"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled(Server([], address="http://127.0.0.1:1/v1"), **{**WITH, **keys})


SPEC = """
rlenv: 1
name: contest
tasks: {train: {rows: [{q: a, answer: "9"}, {q: b, answer: "9"}]}}
prompt: {user: "{{ task.q }}"}
answer: {from: final_message}
endpoints:
  writer: {base_url: "${env:JUDGE}", model: toy, retries: 0}
  other: {base_url: "${env:JUDGE}", model: second, retries: 0}
rewards:
  low: {kind: rule, rule: regex, pattern: "^[0-5]", weight: 0}
  best: {kind: judge, endpoint: writer, prompt: "Which is better?", pairwise: {with: group}, retries: 0}
"""


def higher(body: Mapping[str, Any]) -> str:
    """The verdict of a judge that knows which number is higher."""
    first, second = map(float, shown(body))
    return verdict("first" if first > second else "second" if second > first else "tie")


def verdict(place: str) -> str:
    return json.dumps({"reasoning": "so it is", "better": place})


def breaks_on(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda body: "no verdict" if text in shown(body) else higher(body)


def contest(
    folder: Path,
    server: Server,
    *groups: Sequence[str],
    set: Mapping[str, Any] | None = None,
    then: Callable[[rlenv.Environment, list[Trajectory]], Any] | None = None,
    through: Callable[[str], AbstractAsyncContextManager[str]] = nullcontext,
) -> Any:
    """The answers of each group, measured together, or what `then` makes of them while the server runs.

    Args:
        set: keys of the spec, by dotted path.
        through: gives the address that is asked, from the server's.
    """
    path = folder / "env.yaml"

    async def main() -> Any:
        async with asyncio.timeout(60), server.running(), through(server.address) as address:
            path.write_text(SPEC.replace("${env:JUDGE}", address))
            async with rlenv.load(path, set=set) as environment:
                played = []
                for task, answers in enumerate(groups):
                    for sample, answer in enumerate(answers):
                        async with environment.start(task=task, seed=sample) as episode:
                            await episode.step(answer)
                            played.append(episode.trajectory)
                assert server.asked == []
                assert {one.reward.terms["best"].status for one in played} == {"skipped"}
                scored = await environment.score_groups(played)
                return scored if then is None else await then(environment, scored)

    return asyncio.run(main())


def best(scored: Sequence[Trajectory]) -> list[TermResult]:
    return [one.reward.terms["best"] for one in scored]


def values(scored: Sequence[Trajectory]) -> list[float | None]:
    return [one.value for one in best(scored)]


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("opponents", [None, 1, 2, 3, 4, 20])
def test_each_meets_as_many_others_once_and_no_more_are_compared_than_that(count: int, opponents: int | None) -> None:
    pairs = drawn(count, opponents=opponents, seed="a")
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(one != other for one, other in pairs)
    met = Counter(place for pair in pairs for place in pair)
    wanted = count - 1 if opponents is None else min(opponents, count - 1)
    is_uneven = wanted % 2 == 1 and count % 2 == 1  # so many cannot be had for each
    assert [met[place] for place in range(count)] == [wanted + is_uneven] * count
    assert drawn(count, opponents=opponents, seed="a") == pairs


def test_who_meets_whom_is_drawn_by_seed() -> None:
    assert len({tuple(drawn(8, opponents=2, seed=str(seed))) for seed in range(20)}) > 10


@pytest.mark.slow
def test_an_answer_is_worth_the_comparisons_that_it_wins_each_asked_in_both_orders(tmp_path: Path) -> None:
    server = Server([higher])
    scored = contest(tmp_path, server, ["3", "1", "2", "2"], ["5", "4"])
    assert values(scored) == pytest.approx([1.0, 0.0, 0.5, 0.5, 1.0, 0.0])
    assert [one.reward.total for one in scored] == values(scored)
    asked = Counter(map(tuple, map(shown, server.asked)))
    # The twos are equal, and known from each other; nobody is asked a thing twice.
    assert set(asked) == {(one, other) for one in "123" for other in "123" if one != other} | {("5", "4"), ("4", "5")}
    assert max(asked.values()) == 1


def test_a_judge_that_looks_at_the_place_makes_all_equal_and_is_counted(tmp_path: Path) -> None:
    scored = contest(tmp_path, Server([verdict("first")]), ["3", "1", "2"])
    assert values(scored) == [0.5] * 3
    assert [one.details["position_bias"] for one in best(scored)] == [2, 2, 2]


@pytest.mark.parametrize(("opponents", "comparisons"), [(None, 28), (2, 8), (3, 12)])
def test_the_number_of_comparisons_is_bounded(tmp_path: Path, opponents: int | None, comparisons: int) -> None:
    server = Server([higher])
    few = {} if opponents is None else {"rewards.best.pairwise.limit": opponents}
    scored = contest(tmp_path, server, list("12345678"), set=few)
    assert len(server.asked) == 2 * comparisons
    assert {len(one.details["comparisons"]) for one in best(scored)} == {opponents or 7}


def test_where_an_answer_stands_in_its_group_decides_nothing(tmp_path: Path) -> None:
    async def turned(
        environment: rlenv.Environment, scored: list[Trajectory]
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        return scored, (await rescore(environment, scored[::-1]))[::-1]

    first, again = contest(
        tmp_path, Server([higher]), list("12345678"), set={"rewards.best.pairwise.limit": 3}, then=turned
    )
    assert values(first) == values(again)


def test_nobody_is_asked_about_an_answer_whose_gate_is_shut(tmp_path: Path) -> None:
    server = Server([higher])
    scored = contest(tmp_path, server, ["3", "9", "1"], set={"rewards.best.gate": "low >= 1"})
    assert values(scored) == [1.0, None, 0.0]
    assert not any("9" in shown(body) for body in server.asked)


def test_an_answer_whose_gate_is_shut_pays_for_no_comparison(tmp_path: Path) -> None:
    async def played(environment: rlenv.Environment, scored: list[Trajectory]) -> list[Trajectory]:
        assert environment.parts.scorer.waited_for() == {}, "nothing is waited for any more"
        return scored

    scored = contest(tmp_path, Server([higher]), ["9", "3", "1"], set={"rewards.best.gate": "low >= 1"}, then=played)
    shut, *others = [sum(usage.requests for usage in one.usage) for one in scored]
    assert (shut, sum(others)) == (0, 2)


def test_bounds_hold_for_terms_of_a_group(tmp_path: Path) -> None:
    scored = contest(tmp_path, Server([higher]), ["3", "1", "2"], set={"rewards.best.clip": [0.2, 0.8]})
    assert values(scored) == [0.8, 0.2, 0.5]


def test_a_comparison_that_failed_is_asked_again_where_the_spec_says_so(tmp_path: Path) -> None:
    server = Server([*[web.Response(status=404, text="no such model")] * 4, higher])
    scored = contest(tmp_path, server, ["3", "1"], set={"rewards.best.on_invalid": "retry"})
    assert values(scored) == [1.0, 0.0]
    assert len(server.asked) == 6


def test_what_takes_too_long_is_invalid_for_all(tmp_path: Path) -> None:
    server = Server([higher], holding=asyncio.Event())
    scored = contest(tmp_path, server, ["3", "1"], set={"limits.reward_s": 0.05})
    assert [one.status for one in best(scored)] == ["invalid"] * 2


def test_what_is_asked_is_in_the_accounts_of_the_answers(tmp_path: Path) -> None:
    server = Server([higher])
    scored = contest(tmp_path, server, ["3", "1", "2"])
    usage = [one for each in scored for one in each.usage]
    assert {one.role for one in usage} == {"judge best"}
    assert sum(one.requests for one in usage) == len(server.asked) == 6
    assert sum(one.prompt_tokens for one in usage) == 6 * 7


def test_what_an_episode_has_asked_before_stays_in_its_account(tmp_path: Path) -> None:
    before = ModelUsage("user", "toy", requests=2, prompt_tokens=9)

    async def asked(environment: rlenv.Environment, scored: list[Trajectory]) -> list[Trajectory]:
        played = []
        for answer in ("4", "5"):
            async with environment.start(task=0, seed=9) as episode:
                await episode.step(answer)
                played.append(dataclasses.replace(episode.trajectory, usage=(before,)))
        return await environment.score_groups(played)

    scored = contest(tmp_path, Server([higher]), ["3"], then=asked)
    assert all(before in one.usage for one in scored)
    assert {usage.role for one in scored for usage in one.usage} == {"user", "judge best"}


def test_an_answer_that_breaks_its_comparisons_is_invalid_alone(tmp_path: Path) -> None:
    scored = contest(tmp_path, Server([breaks_on("0")]), ["3", "0", "2", "1"])
    assert values(scored) == [1.0, None, 0.5, 0.0]
    assert best(scored)[1].status == "invalid"
    assert "0 of 3 comparisons gave a verdict, 2 have to" in best(scored)[1].error
    assert [one.failure is None for one in scored] == [True, False, True, True]
    assert [one["score"] for one in best(scored)[0].details["comparisons"]].count(None) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_well", "own", "others"), [(True, 0.0, [1.0, 2 / 3, 1 / 3]), (False, None, [1.0, 0.5, 0.0])]
)
def test_an_answer_that_keeps_the_judge_busy_makes_no_others_late(
    is_well: bool, own: float | None, others: list[float], tmp_path: Path
) -> None:
    async def answer(body: Mapping[str, Any]) -> str:
        left_out = any("left out" in text for text in shown(body))
        if "0" in shown(body) or (left_out and not is_well):
            await asyncio.Event().wait()
        return verdict("tie") if left_out else higher(body)

    first, hung, second, third = values(
        contest(tmp_path, Server([answer]), ["3", "0", "2", "1"], set={"limits.reward_s": 40})
    )
    assert hung == own
    assert [first, second, third] == pytest.approx(others)


@pytest.mark.parametrize("places", [2, 64])
def test_an_answer_that_fells_the_server_loses_its_comparisons_and_takes_none_from_the_others(
    places: int, tmp_path: Path
) -> None:
    """However many wait for a place, and find the server away before it is known that it fell."""

    def answer(body: Mapping[str, Any]) -> str:
        return verdict("tie") if any("left out" in text for text in shown(body)) else higher(body)

    answers, few = ["3", "It fells.", "2", "1"], {"endpoints.writer.concurrency": places}
    found = values(contest(tmp_path, Server([answer]), answers, set=few, through=falling))
    assert found == pytest.approx([1.0, 0.0, 2 / 3, 1 / 3])


def test_a_server_that_is_down_makes_nobodys_reward_a_number(tmp_path: Path) -> None:
    scored = contest(tmp_path, Server([web.Response(status=500, text="down")]), ["3", "1", "2"])
    assert [one.status for one in best(scored)] == ["invalid"] * 3
    assert [one.reward.total for one in scored] == [None] * 3


@pytest.mark.parametrize(
    ("answers", "won"),
    [("712", [0.0, 0.5, 1.0]), ("171", [0.75, 0.0, 0.75]), ("717", [0.25, 1.0, 0.25])],
    ids=["once", "among equals", "twice"],
)
def test_who_writes_what_a_filter_refuses_loses_and_the_others_do_not(
    tmp_path: Path, answers: str, won: list[float]
) -> None:
    """Also where equal answers stand before and behind it, whose comparisons are asked once."""

    def answer(body: dict[str, Any]) -> web.Response | str:
        if "7" in shown(body):
            return chat("", "content_filter")
        return higher(body) if all(text[0].isdigit() for text in shown(body)) else verdict("tie")

    assert values(contest(tmp_path, Server([answer]), list(answers))) == pytest.approx(won)


def test_a_panel_has_a_quorum_in_each_comparison(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> web.Response | str:
        return web.Response(status=500, text="down") if body["model"] == "second" else higher(body)

    panel: dict[str, Any] = {
        "rewards.best.endpoint": None,
        "rewards.best.judges": [{"endpoint": "writer"}, {"endpoint": "other"}],
    }
    assert values(contest(tmp_path, Server([answer]), ["3", "1"], set=panel)) == [None, None]
    scored = contest(tmp_path, Server([answer]), ["3", "1"], set={**panel, "rewards.best.quorum": 1})
    assert values(scored) == [1.0, 0.0]
    (compared,) = best(scored)[0].details["comparisons"]
    assert [judge["score"] for judge in compared["judges"]] == [1.0, None]


def test_an_answer_without_another_has_nothing_to_compare_with(tmp_path: Path) -> None:
    server = Server([higher])
    (alone,) = contest(tmp_path, server, ["3"])
    assert (alone.reward.terms["best"].status, alone.reward.total, server.asked) == ("skipped", 0.0, [])


def test_what_has_been_compared_is_not_asked_about_again(tmp_path: Path) -> None:
    server = Server([higher])

    async def again(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        asked = len(server.asked)
        assert await environment.score_groups(scored) == scored
        assert len(server.asked) == asked

    contest(tmp_path, server, ["3", "1"], set={"rewards.best.cache": False}, then=again)


@pytest.mark.parametrize("set", [{}, {"rewards.best.gate": "low <= 0"}])
def test_an_answer_without_a_value_does_not_have_the_others_compared_again(tmp_path: Path, set: dict[str, Any]) -> None:
    server = Server([breaks_on("0")])

    async def again(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        asked, told = len(server.asked), list[int]()
        found = await environment.score_groups(scored, on_asked=lambda _, left: told.append(left))
        assert values(found) == values(scored)
        assert (len(server.asked), told) == (asked, [])

    contest(tmp_path, server, ["7", "0", "8", "6"], set={"rewards.best.cache": False, **set}, then=again)


def test_a_group_that_is_not_asked_about_is_none_of_those_that_are_left(tmp_path: Path) -> None:
    async def again(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        told = list[int]()
        async with environment.start(task=0, seed=9) as episode:
            await episode.step("4")
            played = [episode.trajectory, *scored]
        await environment.score_groups(played, on_asked=lambda _, left: told.append(left))
        assert told == [0]

    contest(tmp_path, Server([higher]), ["3", "1"], ["5", "4"], then=again)


def test_rescore_asks_again_and_other_weights_ask_nobody(tmp_path: Path) -> None:
    server = Server([higher])

    async def again(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        asked = len(server.asked)
        other = reweigh(environment, scored, Weights(weight={"best": 2.0}))
        assert [one.reward.total for one in other] == [2.0, 0.0]
        assert len(server.asked) == asked
        assert values(await rescore(environment, scored)) == [1.0, 0.0]
        assert len(server.asked) == 2 * asked

    contest(tmp_path, server, ["3", "1"], set={"rewards.best.cache": False}, then=again)


def test_the_quick_way_does_not_leave_out_what_asks_models(tmp_path: Path) -> None:
    async def quick(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        with pytest.raises(UsageError, match="'best' asks models"):
            score_groups(environment.parts.scorer, scored)

    contest(tmp_path, Server([higher]), ["3", "1"], then=quick)


@pytest.mark.parametrize(
    ("pairwise", "said"),
    [
        ({}, "'with' is missing"),
        ({"with": "a", "limit": 2}, "of a comparison among a group"),
        ({"with": "a", "quorum": 0.5}, "of a comparison among a group"),
    ],
)
def test_a_comparison_is_with_one_answer_or_among_a_group(tmp_path: Path, pairwise: Any, said: str) -> None:
    (tmp_path / "env.yaml").write_text(SPEC.replace("${env:JUDGE}", "http://127.0.0.1:9/v1"))
    with pytest.raises(SpecError, match=said):
        rlenv.load(tmp_path / "env.yaml", set={"rewards.best.pairwise": pairwise})


def test_a_comparison_among_a_group_has_no_single_turn(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(SPEC.replace("${env:JUDGE}", "http://127.0.0.1:9/v1"))
    with pytest.raises(SpecError, match="measured once"):
        rlenv.load(tmp_path / "env.yaml", set={"rewards.best.when": "turn"})


def test_an_audit_names_a_judge_of_groups_and_does_not_attack_it(tmp_path: Path) -> None:
    async def audited(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        found = await attack_judges(environment, scored)
        assert found.notes == ["judge 'best' was not attacked by itself: it is asked about whole groups"]
        with pytest.raises(UsageError, match="there are: none"):
            judge_of(environment, None)

    contest(tmp_path, Server([higher]), ["3", "1"], then=audited)


def test_a_replay_compares_the_played_answers_and_one_from_a_tape_leaves_that_out(tmp_path: Path) -> None:
    server = Server([higher])

    async def again(environment: rlenv.Environment, scored: list[Trajectory]) -> None:
        asked = len(server.asked)
        found = await replay(environment, scored)
        assert [(one.differences, one.left_out) for one in found] == [((), ())] * 2
        assert len(server.asked) == 2 * asked
        taped = await replay(environment, scored, lane=lambda index: None)  # type: ignore[arg-type, return-value]
        assert [(one.differences, one.left_out) for one in taped] == [((), ("best",))] * 2
        assert len(server.asked) == 2 * asked

    contest(tmp_path, server, ["3", "1"], set={"rewards.best.cache": False}, then=again)


# Several judges' scores as one: which of them count, and how much


@pytest.mark.parametrize(
    ("how", "scores", "weights", "expected"),
    [
        ("mean", [1, 4], [3, 1], 1.75),
        ("median", [1, 2, 9], [1, 1, 1], 2),
        ("median", [1, 2, 3, 9], [1, 1, 1, 1], 2.5),
        ("median", [9, 1, 5], [3, 1, 1], 9),
        ("median", [1, 5], [1, 1], 3),
        ("majority", [5, 5, 2, 2], [1, 1, 1, 1], 2),
        ("majority", [5, 2, 2], [3, 1, 1], 5),
        ("majority", [5, 2, 2], [2, 1, 1], 2),
        ("min", [3, 1, 5], [], 1),
        ("max", [3, 1, 5], [], 5),
        ("trimmed", [1, 4, 4, 5], [], 4),
        ("trimmed", [0, 2, 4, 9], [9, 1, 3, 9], 3.5),
        ("trimmed", [1, 5], [], 3),
    ],
)
def test_scores_and_weights_make_one_number(
    how: Combine, scores: list[float], weights: list[float], expected: float
) -> None:
    assert combine(scores, how=how, weights=weights) == expected


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_equal_weights_are_none(scores: list[float]) -> None:
    assert combine(scores, how="median", weights=[0.1] * len(scores)) == statistics.median(scores)
    for how in ("mean", "median", "majority", "trimmed"):
        found = combine(scores, how=how)
        assert combine(scores, how=how, weights=[2.0] * len(scores)) == pytest.approx(found)
        assert min(scores) - 1e-9 <= found <= max(scores) + 1e-9


@pytest.mark.parametrize(("quorum", "least"), [(None, 5), (2, 2), (0.5, 3), (0.6, 3), (1.0, 5), (0.01, 1)])
def test_a_quorum_is_a_number_or_a_share_rounded_up(quorum: Any, least: int) -> None:
    assert needed(quorum, 5) == least


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"how": "trimmed", "count": 2}, "leaves out two of 2"),
        ({"how": "min", "is_weighted": True}, "no use for weights"),
        ({"quorum": 4}, "4 of 3 judges"),
        ({"quorum": 1, "count": 1}, "one of several"),
    ],
)
def test_a_panel_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"how": "mean", "count": 3, "is_weighted": False, "quorum": None, **keys}
    with pytest.raises(UsageError, match=message):
        check_panel(given.pop("how"), **given)
