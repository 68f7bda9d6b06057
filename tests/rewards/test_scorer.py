"""From terms to a breakdown: what adds up, what is left out, and what makes a reward invalid."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Asking, Usage
from rlenv.errors import InvalidReward, RewardError, UsageError
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term
from rlenv.rewards.group import ask_groups, relative, score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.testing import laws
from rlenv.testing.rewards import reward_context, turn
from rlenv.trajectory import EVIDENCE_CHARS, Failure, RewardBreakdown, Trajectory

Gives = Any


def term(name: str, gives: Gives = 1.0, **keys: Any) -> Term:
    """A quick term that returns or raises `gives`, or calls it where it is a function."""

    def measure(context: RewardContext) -> Measured:
        found = gives(context) if callable(gives) else gives
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Measured) else Measured(found)

    return Term(name=name, spec=RewardSpec(kind="rule", **keys), measure=measure)


def later(name: str, measure: Callable[[RewardContext], Awaitable[Measured]], **keys: Any) -> Term:
    return Term(name=name, spec=RewardSpec(kind="rule", **keys), measure_async=measure)


def by_turn(values: list[float | None]) -> Callable[[RewardContext], Measured]:
    return lambda context: Measured(values[len(context.turns) - 1])


def score(
    *terms: Term, turns: int = 1, success: str | None = None, limit_s: float | None = None
) -> tuple[RewardBreakdown, bool | None]:
    scorer = Scorer(terms, success=success)

    async def main() -> tuple[RewardBreakdown, bool | None]:
        made = [turn("word", index=index) for index in range(turns)]
        readings = [
            await scorer.score_turn(reward_context(turns=made[: index + 1]), limit_s=limit_s) for index in range(turns)
        ]
        async with asyncio.timeout(20):
            return await scorer.score(reward_context(turns=made), readings, limit_s=limit_s)

    return asyncio.run(main())


def statuses(breakdown: RewardBreakdown) -> dict[str, str]:
    return {name: result.status for name, result in breakdown.terms.items()}


def test_the_reward_is_the_weighted_sum_on_the_last_turn() -> None:
    breakdown, success = score(term("a", 1), term("b", 0.5, weight=0.2), term("c", 3.0, weight=0.0), turns=3)
    assert breakdown.total == pytest.approx(1.1)
    assert breakdown.turn_rewards == (0.0, 0.0, breakdown.total)
    assert statuses(breakdown) == {"a": "valid", "b": "valid", "c": "valid"}
    assert breakdown.terms["b"].value == 0.5
    assert breakdown.terms["b"].weight == 0.2
    assert success is False


@pytest.mark.parametrize(
    ("gives", "error"),
    [
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        (True, "a bool; a number was expected"),
        ("1.0", "a str; a number was expected"),
        (RewardError("the judge is down"), "the judge is down"),
        (KeyError("gold"), "KeyError: 'gold'"),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
    ],
)
def test_what_is_no_finite_number_makes_a_required_term_and_the_reward_invalid(gives: Any, error: str) -> None:
    breakdown, success = score(term("good", 1.0), term("bad", gives), turns=2)
    assert breakdown.total is None
    assert success is None
    assert breakdown.turn_rewards == (0.0, 0.0)
    assert statuses(breakdown) == {"good": "valid", "bad": "invalid"}
    assert error in breakdown.terms["bad"].error
    assert breakdown.terms["bad"].value is None


def test_an_invalid_term_that_is_not_required_is_left_out_and_shown() -> None:
    breakdown, success = score(term("a", 1.0), term("b", RewardError("down"), required=False))
    assert breakdown.total == 1.0
    assert success is True
    assert breakdown.terms["b"].status == "invalid"
    assert breakdown.terms["b"].error == "down"


def test_a_term_with_nothing_to_measure_is_skipped_and_not_zero() -> None:
    breakdown, success = score(term("a", 1.0), term("b", None))
    assert breakdown.total == 1.0
    assert success is True
    assert statuses(breakdown) == {"a": "valid", "b": "skipped"}


def test_numbers_of_other_libraries_are_numbers() -> None:
    breakdown, _ = score(term("a", Fraction(1, 2)), term("b", 1))
    assert breakdown.total == 1.5
    assert all(type(result.value) is float for result in breakdown.terms.values())


def test_a_value_times_its_weight_or_a_sum_beyond_floats_is_no_reward() -> None:
    breakdown, _ = score(term("a", 1e30, weight=1e300))
    assert breakdown.total is None
    assert breakdown.terms["a"].status == "invalid"
    assert score(term("a", 1e30, weight=1e278), term("b", 1e30, weight=1e278))[0].total is None


@pytest.mark.parametrize("when", ["episode", "turn"])
@pytest.mark.parametrize("gives", [1e31, 1e308, 10**400, Fraction(10**40)], ids=lambda one: f"{one!r:.9}")
def test_a_value_that_a_group_of_them_could_not_be_added_up_of_counts_as_the_largest(gives: Any, when: str) -> None:
    for sign in (1, -1):
        breakdown, _ = score(term("a", sign * gives, when=when), turns=1)
        assert (breakdown.total, breakdown.turn_rewards) == (sign * 1e30, (sign * 1e30,))
        assert all(map(math.isfinite, relative([sign * 1e30, 1e30, 1.0], by="deviation")))


def test_evidence_is_cut() -> None:
    breakdown, _ = score(term("a", Measured(1.0, "x" * 5000)))
    assert len(breakdown.terms["a"].evidence) == EVIDENCE_CHARS


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_shut_gate_skips_and_the_term_behind_it_is_not_run(value: float) -> None:
    ran: list[str] = []

    def gated(context: RewardContext) -> float:
        ran.append("gated")
        return 2.0

    breakdown, _ = score(term("gated", gated, gate="correct >= 1"), term("correct", value))
    assert ran == (["gated"] if value else [])
    assert breakdown.total == (3.0 if value else 0.0)
    assert breakdown.terms["gated"].status == ("valid" if value else "skipped")
    assert list(breakdown.terms) == ["gated", "correct"]


def test_a_gate_over_a_skipped_term_is_shut_and_over_an_invalid_one_invalid() -> None:
    terms = [
        term("zero", 0.0),
        term("skipped", gate="zero >= 1"),
        term("broken", RewardError("down"), required=False),
        term("after_skipped", gate="skipped >= 0"),
        term("after_not_skipped", gate="not skipped >= 0"),
        term("after_broken", gate="broken >= 0", required=False),
        term("decided", gate="broken >= 0 or zero == 0"),
        term("decided_shut", gate="broken >= 0 and zero == 1"),
    ]
    found = statuses(score(*terms)[0])
    assert found == {
        "zero": "valid",
        "skipped": "skipped",
        "broken": "invalid",
        "after_skipped": "skipped",
        "after_not_skipped": "skipped",
        "after_broken": "invalid",
        "decided": "valid",
        "decided_shut": "skipped",
    }


@pytest.mark.parametrize(
    ("terms", "success", "message"),
    [
        (
            [term("a", gate="b > 0"), term("b", gate="a > 0")],
            None,
            r"rewards.a.gate: the gates form a circle: a -> b -> a; remove",
        ),
        ([term("a", gate="a > 0")], None, r"rewards.a.gate: the gate of 'a' reads 'a' itself"),
        ([term("correct"), term("b", gate="corect > 0")], None, "did you mean 'correct'"),
        ([term("a")], "b >= 1", "success: there is no reward term 'b'"),
        ([term("a"), term("a")], None, "share a name"),
        ([term("a", weight=math.inf)], None, "rewards.a.weight: found inf"),
        ([Term(name="a", spec=RewardSpec(kind="rule"))], None, "exactly one of"),
    ],
)
def test_terms_that_cannot_be_scored_are_refused(terms: list[Term], success: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Scorer(terms, success=success)


@pytest.mark.parametrize(
    ("terms", "success", "expected"),
    [
        ([term("a", 1.0), term("b", 1.0, weight=0.1)], None, True),
        ([term("a", 1.0), term("b", 0.9, weight=0.1)], None, False),
        ([term("a", 1.0), term("b", 0.0, weight=0.0)], None, True),
        ([term("a", 1.0), term("b", 0.0, weight=0.0, required=True)], None, True),
        ([term("a", 1.0), term("b", 0.0, weight=-1.0)], None, True),
        ([term("a", 1.0), term("b", 0.0, required=False)], None, True),
        ([term("a", 1.0), term("b", None)], None, True),
        ([term("a", None)], None, False),
        ([term("a", 1.0, weight=0.0)], None, False),
        ([term("a", 0.0), term("b", 1.0)], "b >= 1", True),
        ([term("a", 1.0), term("b", None)], "b >= 1", False),
        ([term("a", 1.0), term("b", RewardError("x"), required=False)], "b >= 1", None),
        ([term("a", RewardError("x")), term("b", 1.0)], "b >= 1", None),
    ],
)
def test_success_is_what_the_spec_says_or_every_required_term_at_one(
    terms: list[Term], success: str | None, expected: bool | None
) -> None:
    assert score(*terms, success=success)[1] is expected


def test_a_turn_terms_share_stands_on_its_own_turn() -> None:
    mean = term("mean", by_turn([1.0, None, 0.0, 0.5]), when="turn", weight=0.3)
    total = term("sum", by_turn([1.0, 1.0, None, 1.0]), when="turn", over_turns="sum", weight=0.1)
    breakdown, _ = score(mean, total, term("end", 1.0), turns=4)
    assert breakdown.terms["mean"].value == 0.5
    assert breakdown.terms["mean"].turn_values == (1.0, None, 0.0, 0.5)
    assert breakdown.terms["sum"].value == 3.0
    assert breakdown.turn_rewards == pytest.approx((0.1 + 0.1, 0.1, 0.0, 0.05 + 0.1 + 1.0))
    assert breakdown.total == pytest.approx(0.15 + 0.3 + 1.0)


def test_a_turn_term_that_fails_once_is_invalid_and_names_the_turn() -> None:
    def fails(context: RewardContext) -> Any:
        return RewardError("down") if len(context.turns) == 2 else 1.0

    breakdown, _ = score(term("a", fails, when="turn"), turns=3)
    assert breakdown.total is None
    assert breakdown.terms["a"].error == "in turn 2: down"
    assert breakdown.terms["a"].turn_values == (1.0, None, 1.0)


def test_a_turn_term_that_never_measured_or_whose_gate_is_shut_is_skipped() -> None:
    never = term("never", None, when="turn")
    shut = term("shut", 1.0, when="turn", gate="zero > 0")
    breakdown, _ = score(never, shut, term("zero", 0.0), turns=2)
    assert statuses(breakdown) == {"never": "skipped", "shut": "skipped", "zero": "valid"}
    assert breakdown.turn_rewards == (0.0, 0.0)


def test_readings_have_to_fit_the_turns() -> None:
    scorer = Scorer([term("a", when="turn")])
    with pytest.raises(UsageError, match="2 turns but results for 0"):
        asyncio.run(scorer.score(reward_context(turns=[turn(), turn(index=1)]), []))


def test_only_ungated_sums_are_paid_at_once() -> None:
    scorer = Scorer(
        [
            term("now", 1.0, when="turn", over_turns="sum", weight=0.1),
            term("mean", 1.0, when="turn"),
            term("gated", 1.0, when="turn", over_turns="sum", gate="end > 0"),
            term("end", 1.0),
        ]
    )
    assert scorer.has_turn_terms
    assert scorer.paid_at_once(asyncio.run(scorer.score_turn(reward_context()))) == 0.1
    assert not Scorer([term("end")]).has_turn_terms


finite = st.floats(-1e6, 1e6)


@pytest.mark.slow
@given(
    st.integers(1, 6).flatmap(
        lambda turns: st.tuples(
            st.just(turns),
            st.lists(
                st.tuples(
                    finite,
                    st.sampled_from(["mean", "sum"]),
                    st.lists(st.none() | finite, min_size=turns, max_size=turns),
                ),
                max_size=3,
            ),
            st.lists(st.tuples(finite, st.none() | finite), max_size=3),
        )
    )
)
def test_turn_rewards_sum_to_the_total(drawn: tuple[int, list[Any], list[Any]]) -> None:
    turns, per_turn, at_end = drawn
    terms = [
        term(f"turn{index}", by_turn(values), when="turn", over_turns=over, weight=weight)
        for index, (weight, over, values) in enumerate(per_turn)
    ]
    terms += [term(f"end{index}", value, weight=weight) for index, (weight, value) in enumerate(at_end)]
    breakdown, _ = score(*terms, turns=turns)
    assert breakdown.total is not None
    assert len(breakdown.turn_rewards) == turns
    assert math.isclose(sum(breakdown.turn_rewards), breakdown.total, rel_tol=1e-9, abs_tol=1e-3)
    expected = sum(result.weight * result.value for result in breakdown.terms.values() if result.value is not None)
    assert math.isclose(breakdown.total, expected, rel_tol=1e-9, abs_tol=1e-3)


def test_slow_terms_run_at_once_and_a_gated_one_waits_only_for_its_own() -> None:
    async def main() -> None:
        events = {name: asyncio.Event() for name in ("a", "b", "judge")}

        async def both(context: RewardContext) -> Measured:
            events["a"].set()
            await events["b"].wait()
            return Measured(1.0)

        async def other(context: RewardContext) -> Measured:
            events["b"].set()
            await events["a"].wait()
            await events["judge"].wait()  # ends only once the gated term runs beside it
            return Measured(1.0)

        async def judge(context: RewardContext) -> Measured:
            events["judge"].set()
            return Measured(1.0)

        scorer = Scorer([later("judge", judge, gate="a >= 1"), later("a", both), later("b", other), term("c")])
        async with asyncio.timeout(10):
            breakdown, _ = await scorer.score(reward_context())
        assert breakdown.total == 4.0
        assert list(breakdown.terms) == ["judge", "a", "b", "c"]

    asyncio.run(main())


async def _hang(context: RewardContext) -> Measured:
    await asyncio.Event().wait()
    return Measured(1.0)


@pytest.mark.parametrize("when", ["episode", "turn"])
def test_a_term_beyond_the_time_limit_is_invalid_and_cancelled(when: str) -> None:
    cancelled: list[bool] = []

    async def hang(context: RewardContext) -> Measured:
        try:
            return await _hang(context)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    breakdown, _ = score(
        term("a", 1.0),
        later("slow", hang, required=False, when=when),
        term("after", gate="slow >= 1", required=False),
        limit_s=0.01,
    )
    assert breakdown.total == 1.0
    assert "not measured within 0.01 s" in breakdown.terms["slow"].error
    assert breakdown.terms["after"].status == "invalid"
    assert cancelled == [True]


def test_what_is_bounded_by_itself_counts_for_no_limit() -> None:
    async def bounded(context: RewardContext) -> Measured:
        with bounded_by_itself():
            for _ in range(10):
                await asyncio.sleep(0)
        return Measured(1.0)

    async def bounded_and_hangs(context: RewardContext) -> Measured:
        await bounded(context)
        return await _hang(context)

    found, _ = score(later("bounded", bounded), later("hangs", bounded_and_hangs), limit_s=0.0)
    assert statuses(found) == {"bounded": "valid", "hangs": "invalid"}


def test_slow_terms_fail_as_quick_ones_do_and_may_not_cancel_the_episode() -> None:
    async def bug(context: RewardContext) -> Measured:
        raise KeyError("gold")

    async def leave(context: RewardContext) -> Measured:
        raise asyncio.CancelledError

    async def nan(context: RewardContext) -> Measured:
        return Measured(math.nan)

    breakdown, _ = score(later("bug", bug), later("leave", leave), later("nan", nan), term("fine"))
    assert statuses(breakdown) == {"bug": "invalid", "leave": "invalid", "nan": "invalid", "fine": "valid"}


def test_cancelling_the_episode_cancels_its_terms() -> None:
    async def main() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def hang(context: RewardContext) -> Measured:
            began.set()
            try:
                return await _hang(context)
            finally:
                ended.set()

        scoring = asyncio.ensure_future(Scorer([later("a", hang)]).score(reward_context()))
        await began.wait()
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        assert ended.is_set()

    asyncio.run(main())


def test_a_failed_episode_has_every_term_invalid_and_no_total() -> None:
    scorer = Scorer([term("b", gate="a >= 1"), term("a"), term("t", when="turn")])
    breakdown = scorer.failed(Failure("resource", "the database is gone"), turns=2)
    assert breakdown.total is None
    assert breakdown.turn_rewards == (0.0, 0.0)
    assert list(breakdown.terms) == ["b", "a", "t"]
    assert {result.status for result in breakdown.terms.values()} == {"invalid"}
    assert {result.error for result in breakdown.terms.values()} == {"resource: the database is gone"}


def test_the_keys_are_the_same_whatever_happens() -> None:
    terms: Mapping[str, Term] = {"a": term("a", RewardError("x")), "b": term("b", gate="a > 0"), "c": later("c", _hang)}
    assert list(score(*terms.values(), limit_s=0.01)[0].terms) == ["a", "b", "c"]


def test_measurements_that_are_waited_for_are_named_until_they_end() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(_: RewardContext) -> Measured:
            await gate.wait()
            return Measured(1.0)

        scorer = Scorer([later("judge", held)])
        scoring = asyncio.ensure_future(scorer.score(reward_context(turns=[turn()]), []))
        for _ in range(10):
            await asyncio.sleep(0)
        assert [(name, len(began)) for name, began in scorer.waited_for().items()] == [("judge", 1)]
        gate.set()
        breakdown, _ = await scoring
        assert breakdown.total == 1.0
        assert scorer.waited_for() == {}

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("weight", [0, 0.25, 2])
@pytest.mark.parametrize("gives", [0.5, 1, RewardError("gone"), None])
@pytest.mark.parametrize("keys", [{}, {"when": "turn"}, {"when": "turn", "over_turns": "sum"}, {"required": False}])
def test_a_row_that_gives_a_weight_is_scored_as_if_the_spec_had_it_written(
    weight: float, gives: Gives, keys: Mapping[str, Any]
) -> None:
    by_row = replace(term("b", gives, weight="{{ task.w }}", **keys), row_weight=lambda task: task["w"])
    others = [term("a", 0.5), term("c", 2.0, gate="b >= 1")]
    context = reward_context(task={"w": weight}, turns=[turn()])

    async def scored(one: Term) -> tuple[Any, ...]:
        scorer = Scorer([one, *others])
        results = await scorer.score_turn(context)
        reward, success = await scorer.score(context, [results])
        again = scorer.of(context.task).weighed(reward.terms, turns=1)
        failed = scorer.of(context.task).failed(Failure("task", "no"))
        return (
            scorer.paid_at_once(results),
            *(
                (one.total, one.turn_rewards, {name: (part.status, part.weight) for name, part in one.terms.items()})
                for one in (reward, again[0], failed)
            ),
            success,
            again[1],
        )

    assert asyncio.run(scored(by_row)) == asyncio.run(scored(term("b", gives, weight=weight, **keys)))


@pytest.mark.parametrize(
    ("keys", "is_valid"), [({}, False), ({"weight": 0.0}, True), ({"weight": 0.0, "required": True}, False),
                           ({"weight": -1.0}, False), ({"required": False}, True)],
)  # fmt: skip
def test_what_earns_nothing_decides_nothing_unless_it_is_said_to_be_required(
    keys: dict[str, Any], is_valid: bool
) -> None:
    assert (score(term("a", 1.0), term("b", RewardError("down"), **keys))[0].total is not None) is is_valid


def test_evidence_that_is_no_text_makes_a_term_invalid() -> None:
    breakdown, _ = score(term("a", Measured(1.0, 3)))  # type: ignore[arg-type]
    assert "evidence that is no text but a int" in breakdown.terms["a"].error


@pytest.mark.parametrize("weights", [(0.1, 2.0), (-1.0, 0.5)])
def test_what_is_paid_at_once_is_weight_times_value(weights: tuple[float, float]) -> None:
    sums = [
        term(f"t{index}", 3.0, when="turn", over_turns="sum", weight=weight) for index, weight in enumerate(weights)
    ]
    scorer = Scorer([*sums, term("none", None, when="turn", over_turns="sum")])
    assert scorer.paid_at_once(asyncio.run(scorer.score_turn(reward_context()))) == pytest.approx(3 * sum(weights))


def test_a_gate_over_several_terms_waits_for_the_last_of_them() -> None:
    async def one(context: RewardContext) -> Measured:
        await asyncio.sleep(0)
        return Measured(1.0)

    gated = term("gated", 5.0, gate="quick >= 1 and slow >= 1 and slower >= 1")
    slower = later("slower", one, gate="slow >= 1")
    breakdown, _ = score(gated, term("quick"), slower, later("slow", one))
    assert breakdown.total == 8.0


def test_evidence_of_turns_is_the_last_ones_or_that_of_the_turn_that_failed() -> None:
    def gives(bad: int) -> Callable[[RewardContext], Any]:
        def measure(context: RewardContext) -> Any:
            index = len(context.turns) - 1
            return Measured(math.nan if index == bad else float(index), f"evidence {index}", {"index": index})

        return measure

    whole, _ = score(term("a", gives(-1), when="turn", over_turns="sum"), turns=3)
    assert (whole.terms["a"].value, whole.terms["a"].evidence, whole.terms["a"].details) == (
        3,
        "evidence 2",
        {"index": 2},
    )
    broken, _ = score(term("a", gives(1), when="turn"), turns=3)
    assert (broken.terms["a"].error[:10], broken.terms["a"].evidence) == ("in turn 2:", "evidence 1")
    assert broken.terms["a"].turn_values == (0.0, None, 2.0)


def test_an_episode_without_turns_has_a_total_and_no_turns_rewards() -> None:
    breakdown, _ = score(term("a", 1.0), turns=0)
    assert (breakdown.total, breakdown.turn_rewards) == (1.0, ())
    assert Scorer([term("a")]).failed(Failure("task", "x")).turn_rewards == ()


def test_of_a_measurement_that_is_waited_for_it_is_known_since_when_and_by_all_of_the_spec() -> None:
    async def main() -> None:
        seen: list[dict[str, list[float]]] = []

        async def slow(context: RewardContext) -> Measured:
            await asyncio.sleep(0)
            seen.append(scorer.waited_for())
            await asyncio.sleep(0)
            return Measured(1.0)

        by_row = replace(later("a", slow, weight="{{ task.w }}"), row_weight=lambda task: float(task["w"]))
        scorer = Scorer([by_row, later("b", slow)])
        breakdown, _ = await scorer.score(reward_context(task={"w": 4}))
        assert breakdown.total == 5.0
        assert [sorted(one) for one in seen] == [["a", "b"]] * 2
        assert all(len(times) == 1 for one in seen for times in one.values())
        assert scorer.waited_for() == {}

    asyncio.run(main())


@pytest.mark.parametrize("when", ["episode", "turn"])
def test_others_have_a_turn_of_the_loop_between_terms_that_hold_it(when: str) -> None:
    seen: list[str] = []

    def holding(name: str) -> Term:
        def measure(context: RewardContext) -> float:
            sum(range(2_000_000))
            seen.append(name)
            return 1.0

        return term(name, measure, when=when)

    async def main() -> None:
        scorer, context = Scorer([holding("a"), holding("b")]), reward_context(turns=[turn()])
        asyncio.get_running_loop().call_soon(seen.append, "other")
        await (scorer.score_turn(context) if when == "turn" else scorer.score(context))

    asyncio.run(main())
    assert seen == ["a", "other", "b"]


def test_rows_with_equal_weights_share_a_scorer_and_others_have_their_own() -> None:
    scorer = Scorer([replace(term("a", weight="{{ task.w }}"), row_weight=lambda task: float(task["w"])), term("b")])
    assert Scorer([term("b")]).of({}).weights == {"b": 1.0}
    assert [scorer.of({"w": weight}).weights["a"] for weight in (2, 0, -1)] == [2.0, 0.0, -1.0]
    assert scorer.of({"w": 2}) is scorer.of({"w": 2.0})
    assert scorer.weights == {"a": 1.0, "b": 1.0}


def trajectories(scorer: Scorer, *values: Any, index: int = 0, **changes: Any) -> list[Trajectory]:
    """An episode for each value of the term `a`, all of one task; one whose value is None could not be scored."""
    found = []
    for value in values:
        record: Any = {"environment": "e", "split": "train", "task_index": index, "seed": 0, "task": {}, "messages": (),
                       "turns": (turn(),), "answer": None, "seconds": 0.0, "usage": (), **changes}  # fmt: skip
        if value is None:
            failure = Failure("resource", "gone")
            found.append(Trajectory.failed(failure=failure, reward=scorer.failed(failure, turns=1), **record))
            continue
        reward, success = asyncio.run(scorer.score(reward_context(task={"value": value})))
        found.append(Trajectory.ended(record, terminated=True, reason="answer", reward=reward, success=success))
    return found


def of_task(context: RewardContext) -> Any:
    return context.task["value"]


def rank(gate: str | None = None, **keys: Any) -> Scorer:
    made = laws.compiled("rewards", {"kind": "group", "of": "a", "by": "rank", "gate": gate, **keys}, name="rank")
    assert isinstance(made, Term)
    return Scorer([term("a", of_task), made])


def totals(found: list[Trajectory]) -> list[float | None]:
    return [one.reward.total for one in found]


def test_answers_are_compared_with_those_of_their_own_group_alone() -> None:
    scorer = rank()
    mixed = [
        *trajectories(scorer, 1.0, 3.0),
        *trajectories(scorer, 2.0, 2.0, split="test"),
        *trajectories(scorer, 1.0, 3.0, index=-1, task={"q": 1}),
        *trajectories(scorer, 5.0, index=-1, task={"q": 2}),
        *trajectories(scorer, 1.0, 3.0, task={"q": "no matter, where the index is known"}),
    ]
    # The first two and the last two are one group of four: 1, 3, 1, 3.
    assert totals(score_groups(scorer, mixed)) == pytest.approx(
        [1 + 1 / 6, 3 + 5 / 6, 2.5, 2.5, 1.0, 4.0, 5.0, 1 + 1 / 6, 3 + 5 / 6]
    )
    apart = score_groups(scorer, mixed, groups=[0, 0, 0, 0, 0, 0, 0, 1, 1])
    assert totals(apart)[:2] == totals(apart)[-2:] == [1.0, 4.0]


def test_an_answer_that_failed_is_compared_with_nobody_and_stays_as_it_was() -> None:
    scorer = rank()
    first, failed, last = score_groups(scorer, played := trajectories(scorer, 1.0, None, 3.0))
    assert failed is played[1]
    assert totals([first, last]) == [1.0, 4.0]
    assert first.reward.terms["rank"].evidence == "1 among 2"
    (alone,) = score_groups(scorer, trajectories(scorer, 1.0))
    assert (alone.reward.terms["rank"].status, alone.reward.total) == ("skipped", 1.0)
    assert score_groups(scorer, trajectories(scorer, None, None))[0].failure is not None
    assert score_groups(scorer, []) == []


def test_an_answer_without_the_value_has_no_rank_among_the_others() -> None:
    made = laws.compiled("rewards", {"kind": "group", "of": "b", "by": "rank"}, name="rank")
    assert isinstance(made, Term)

    def some(context: RewardContext) -> Any:
        return context.task["value"] if context.task["value"] != 2.0 else None

    scorer = Scorer([term("a", of_task), term("b", some, weight=0), made])
    found = score_groups(scorer, trajectories(scorer, 1.0, 2.0, 3.0))
    assert [one.reward.terms["rank"].value for one in found] == [0.0, None, 1.0]
    assert found[1].reward.terms["rank"].status == "skipped"


def test_a_shut_gate_keeps_a_rank_from_counting_and_not_from_being_compared() -> None:
    scorer = rank(gate="a >= 2")
    found = score_groups(scorer, trajectories(scorer, 1.0, 2.0, 3.0))
    assert [one.reward.terms["rank"].value for one in found] == [None, 0.5, 1.0]


def test_a_group_that_cannot_be_compared_stops_the_run_where_that_is_said() -> None:
    def two(_: Any) -> list[Measured]:
        return [Measured(1.0)]

    def group(**keys: Any) -> Scorer:
        return Scorer([term("a", of_task), Term(name="g", spec=RewardSpec(kind="group", **keys), measure_group=two)])

    scorer = group(required=False)
    found = score_groups(scorer, trajectories(scorer, 1.0, 2.0))
    assert [one.reward.terms["g"].error for one in found] == ["gave 1 values for 2 answers"] * 2
    assert totals(found) == [1.0, 2.0]
    scorer = group(on_invalid="raise")
    with pytest.raises(InvalidReward, match=r"rewards\.g could not be measured"):
        score_groups(scorer, trajectories(scorer, 1.0, 2.0))


def asked(scorer: Scorer, played: list[Trajectory], *, limit_s: float = 60.0, on_asked: Any = None) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        return await ask_groups(scorer, played, vars={}, shared=Scope, limit_s=lambda _: limit_s, on_asked=on_asked)

    return asyncio.run(main())


def asking(ask: Any, **keys: Any) -> Scorer:
    return Scorer([term("a", of_task), Term(name="g", spec=RewardSpec(kind="group", **keys), ask_group=ask)])


def test_what_a_group_asks_is_charged_to_the_answer_that_it_is_asked_for() -> None:
    told: list[tuple[int, int]] = []

    async def ask(own: Any, context: GroupContext) -> list[Measured]:
        for number, account in enumerate(context.accounts):
            Asking(account, "judge g").tried("m", Usage(number + 1, 0))
        return [Measured(float(number)) for number, _ in enumerate(own)]

    scorer = asking(ask, gate="a >= 2")
    played = trajectories(scorer, 1.0, 2.0, None, 3.0) + trajectories(scorer, 5.0, index=1)
    found = asked(
        scorer, played, on_asked=lambda usage, left: told.append((sum(one.prompt_tokens for one in usage), left))
    )
    assert [[one.prompt_tokens for one in each.usage] for each in found] == [[], [1], [], [2], [1]]
    assert totals(found) == [1.0, 2.0, None, 4.0, 5.0]
    assert told == [(3, 1), (1, 0)]
    told.clear()
    assert asked(scorer, found, on_asked=lambda *given: told.append(given)) == found, "nobody is asked again"
    assert told == []
    with pytest.raises(UsageError, match="'g' asks models"):
        score_groups(scorer, played)
    assert totals(score_groups(scorer, found, keeps_asked=True)) == totals(found)


def test_an_answer_that_nobody_could_judge_is_invalid_by_itself() -> None:
    async def ask(own: Any, context: GroupContext) -> list[Measured | RewardError]:
        return [Measured(1.0), RewardError("the judge is down")]

    scorer = asking(ask)
    found = asked(scorer, trajectories(scorer, 1.0, 2.0))
    assert totals(found) == [2.0, None]
    assert found[1].reward.terms["g"].error == "the judge is down"


def test_a_group_that_is_not_judged_in_time_is_invalid_and_one_that_fails_says_why() -> None:
    async def hangs(own: Any, context: GroupContext) -> list[Measured]:
        await asyncio.Event().wait()
        return []

    async def fails(own: Any, context: GroupContext) -> list[Measured]:
        raise TimeoutError("its own")

    for ask, said in ((hangs, "not measured within 0.01 s"), (fails, "TimeoutError: its own")):
        scorer = asking(ask, required=False)
        found = asked(scorer, trajectories(scorer, 1.0, 2.0), limit_s=0.01 if ask is hangs else 60.0)
        assert [one.reward.terms["g"].error for one in found] == [said] * 2
        assert totals(found) == [1.0, 2.0]


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_group_is_asked_again_as_long_as_one_of_its_answers_has_no_number(tries: int) -> None:
    made: list[int] = []

    async def ask(own: Any, context: GroupContext) -> list[Measured | RewardError]:
        made.append(1)
        bad: list[Measured | RewardError] = [RewardError("down"), Measured(math.nan), Measured(1.0)]
        return [Measured(1.0), bad[min(len(made), tries) - 1 if len(made) < tries else 2]]

    scorer = asking(ask, on_invalid="retry")
    assert totals(asked(scorer, trajectories(scorer, 1.0, 2.0))) == [2.0, 3.0]
    assert len(made) == tries


def test_groups_are_asked_about_four_at_once() -> None:
    running, most = [0], [0]

    async def ask(own: Any, context: GroupContext) -> list[Measured]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        for _ in range(5):
            await asyncio.sleep(0)
        running[0] -= 1
        return [Measured(1.0)] * len(own)

    scorer = asking(ask)
    played = [one for index in range(9) for one in trajectories(scorer, 1.0, index=index)]
    assert totals(asked(scorer, played)) == [2.0] * 9
    assert most == [4]


def test_other_weights_give_what_they_would_have_given() -> None:
    scorer = Scorer([term("a", 2.0, weight=3.0), term("b", None), term("c", RewardError("x"), required=False)])
    before, _ = asyncio.run(scorer.score(reward_context()))
    lighter = Scorer([term("a", weight=0.5), term("b", weight=7.0), term("c", required=False)])
    after, success = lighter.weighed(before.terms, turns=1)
    assert (before.total, after.total, success) == (6.0, 1.0, True)
    assert {name: one.weight for name, one in after.terms.items()} == {"a": 0.5, "b": 7.0, "c": 1.0}
    assert statuses(after) == statuses(before)
    heavy, _ = Scorer([term("a", weight=1e308), term("b"), term("c")]).weighed(before.terms, turns=1)
    assert (heavy.total, heavy.terms["a"].status) == (None, "invalid")


@pytest.mark.parametrize("fails_at", [None, 0, 1])
def test_a_term_over_turns_shows_the_last_one_or_the_first_that_failed(fails_at: int | None) -> None:
    def gives(context: RewardContext) -> Measured:
        at = len(context.turns) - 1
        if fails_at is not None and at >= fails_at:
            raise RewardError(f"failed {at}")
        return Measured(0.5, f"turn {at}", {"at": at}, ((at, 0, 1),))

    (found,) = score(term("a", gives, when="turn"), turns=3)[0].terms.values()
    if fails_at is None:
        assert (found.value, found.turn_values) == (0.5, (0.5, 0.5, 0.5))
        assert (found.evidence, found.details, found.where) == ("turn 2", {"at": 2}, ((2, 0, 1),))
    else:
        assert (found.status, found.where) == ("invalid", ())
        assert found.error.startswith(f"in turn {fails_at + 1}: ")
