"""The laws of reward terms: each is broken by a term that breaks it alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlenv.errors import RewardError, UsageError
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import Measured, RewardContext, Term
from rlenv.testing import check_reward_async, rewards
from rlenv.testing.rewards import reward_context
from rlenv.trajectory import RewardBreakdown, Trajectory
from tests.support.clock import run_skipping
from tests.support.laws import not_broken, rule_of

SPEC = RewardSpec(kind="rule")
CONTEXTS = [reward_context(answer=str(n), task={"answer": n, "notes": []}) for n in range(3)]
UNKNOWN = reward_context(answer="1", task={"notes": []})


def term(measure: Callable[[RewardContext], Any], **keys: Any) -> Term:
    return Term(name="term", spec=SPEC, **{"measure": measure, **keys})


def is_right(context: RewardContext) -> Measured:
    if "answer" not in context.task:
        raise RewardError("the task has no answer")
    return Measured(float(context.answer == str(context.task["answer"])), context.answer or "")


def gives(value: Any, **keys: Any) -> Callable[[], Term]:
    return lambda: term(lambda context: Measured(value, **keys))


def counting() -> Term:
    count = itertools.count()
    return term(lambda context: Measured(float(next(count))))


def noting(context: RewardContext) -> Measured:
    context.task["notes"].append("seen")
    return Measured(1.0)


def raises(what: object) -> Any:
    raise ZeroDivisionError("a bug")


def asserts(context: RewardContext) -> Measured:
    raise AssertionError("the author's own, which is no law")


def zero_without_gold(context: RewardContext) -> Measured:
    return is_right(context) if "answer" in context.task else Measured(0.0)


def waiting(measure: Callable[[RewardContext], Any]) -> Callable[[], Term]:
    return lambda: Term(name="term", spec=SPEC, measure_async=measure)


async def in_turn(context: RewardContext) -> Measured:
    await asyncio.sleep(0)
    return is_right(context)


def disturbed() -> Term:
    running = 0

    async def measure(context: RewardContext) -> Measured:
        nonlocal running
        running += 1
        among = running
        try:
            await asyncio.sleep(0)
            return Measured(float(among))
        finally:
            running -= 1

    return Term(name="term", spec=SPEC, measure_async=measure)


async def hangs(context: RewardContext) -> Measured:
    await asyncio.Event().wait()
    return Measured(1.0)


async def hangs_without_gold(context: RewardContext) -> Measured:
    return await (in_turn if "answer" in context.task else hangs)(context)


async def swallows(context: RewardContext) -> Measured:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return Measured(0.0)
    return Measured(1.0)


async def goes_on(context: RewardContext) -> Measured:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await asyncio.Event().wait()
    return Measured(1.0)


def trajectory(answer: str) -> Trajectory:
    reward = RewardBreakdown(1.0, {})
    return Trajectory("toy-v0", "train", 0, 0, {"notes": []}, (), (), answer, True, False, "answer", reward, True)


GROUP = [trajectory(text) for text in ("a", "bb", "ccc")]


def longest(group: Sequence[Trajectory]) -> list[Measured]:
    most = max(len(one.answer or "") for one in group)
    return [Measured(float(len(one.answer or "") == most)) for one in group]


def comparing(measure: Callable[[Sequence[Trajectory]], Any]) -> Callable[[], Term]:
    return lambda: Term(name="term", spec=SPEC, measure_group=measure)


def longest_of_two(group: Sequence[Trajectory]) -> list[Measured]:
    if len(group) < 2:
        raise RewardError("there is no other answer")
    return longest(group)


def noting_group(group: Sequence[Trajectory]) -> list[Measured]:
    group[0].task["notes"].append("seen")
    return longest(group)


ALL: dict[str, Any] = {"contexts": (), "groups": [GROUP], "invalid": ()}
OUTSIDE = "a value is within 0 and 1"
BROKEN: list[tuple[str, Callable[[], Term], dict[str, Any]]] = [
    (
        "exactly one of measure, measure_async, measure_group and ask_group is set",
        lambda: term(is_right, measure_async=in_turn),
        {},
    ),
    ("a term has a name", lambda: replace(term(is_right), name=""), {}),
    ("equal episodes are measured equally, whatever was measured in between", counting, {"within": None}),
    ("terms that are measured at once do not disturb each other", disturbed, {"within": None}),
    ("a measurement that is cancelled raises CancelledError", waiting(swallows), {"invalid": ()}),
    ("a measurement that is cancelled ends", waiting(goes_on), {"invalid": ()}),
    ("a term measures in time", waiting(hangs), {}),
    ("a term measures in time", waiting(hangs_without_gold), {}),
    ("what can be measured is", lambda: term(raises), {}),
    ("what can be measured is", lambda: term(asserts), {}),
    ("what can be measured is", comparing(raises), ALL),
    ("measuring leaves the episode as it is", lambda: term(noting), {}),
    ("measuring leaves the episode as it is", comparing(noting_group), ALL),
    ("a term gives a Measured", lambda: term(lambda context: 1.0), {}),
    ("evidence is a text", gives(1.0, evidence=3), {}),
    ("details are JSON, so that trajectories can keep them", gives(1.0, details={"a": object()}), {}),
    ("a value is a number, or None where there is nothing to measure", gives("1.0"), {}),
    ("a value is a number, or None where there is nothing to measure", gives(True), {}),
    ("a value is finite", gives(float("nan")), {}),
    (OUTSIDE, gives(1.5), {}),
    ("what cannot be measured raises RewardError, and is no number", lambda: term(zero_without_gold), {}),
    ("what cannot be measured raises RewardError, and is no number", comparing(longest), {**ALL, "invalid": [GROUP]}),
    ("a group's term gives one Measured for each answer", comparing(lambda group: longest(group)[:1]), ALL),
    (
        "an answer's value does not hang on its place in the group",
        comparing(lambda group: [Measured(float(index == 0)) for index, _ in enumerate(group)]),
        ALL,
    ),
]


def keeps(made: Term, **keys: Any) -> None:
    given: dict[str, Any] = {"contexts": CONTEXTS, "invalid": [UNKNOWN], "within": (0, 1), **keys}
    run_skipping(check_reward_async(made, given.pop("contexts"), **given))


def test_terms_that_keep_the_laws_pass() -> None:
    keeps(term(is_right))
    keeps(waiting(in_turn)())
    keeps(comparing(longest)(), **ALL)
    keeps(comparing(longest_of_two)(), **{**ALL, "invalid": [GROUP[:1]]})
    keeps(gives(None)(), invalid=())


@pytest.mark.parametrize(("rule", "made", "keys"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_each_law_is_broken_by_a_term_that_breaks_it_alone(
    rule: str, made: Callable[[], Term], keys: dict[str, Any]
) -> None:
    rated: list[Any] = [*CONTEXTS, *GROUP]
    for context in rated:
        context.task["notes"].clear()
    with pytest.raises(AssertionError) as found:
        keeps(made(), **keys)
    assert rule_of(found.value) == rule


def test_every_law_of_terms_has_a_term_that_breaks_it() -> None:
    assert not_broken(rewards, [rule for rule, _, _ in BROKEN]) == []


def test_the_range_that_a_spec_names_is_the_terms_own() -> None:
    made = replace(gives(3.0)(), spec=RewardSpec(kind="rule", range=(1, 5)))
    keeps(made, within=None, invalid=())
    narrow = replace(made, spec=RewardSpec(kind="rule", range=(1, 2)))
    for within in (None, (0, 5)):
        with pytest.raises(AssertionError, match="law: a value is within 1 and 2; "):
            keeps(narrow, within=within, invalid=())
    keeps(replace(made, spec=RewardSpec(kind="rule", range=(1, 2), clip=(0, 1))), within=None, invalid=())


@pytest.mark.parametrize(
    ("made", "keys", "said"),
    [
        (term(is_right), {"contexts": ()}, "there is nothing to measure; pass contexts"),
        (comparing(longest)(), {**ALL, "groups": ()}, "there is nothing to measure; pass groups"),
        (term(is_right), {"groups": [GROUP]}, "groups were given, and the term measures one episode"),
        (comparing(longest)(), {**ALL, "contexts": CONTEXTS}, "contexts were given, and the term compares"),
        (term(is_right), {"invalid": [GROUP]}, "pass a RewardContext"),
        (comparing(longest)(), {**ALL, "invalid": [UNKNOWN]}, "pass a group"),
    ],
)
def test_what_does_not_fit_a_term_is_the_callers_mistake_and_no_broken_law(
    made: Term, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        keeps(made, **keys)


def test_a_term_that_changes_what_it_measures_is_told_what() -> None:
    with pytest.raises(AssertionError, match=r'"notes": \[\].*then.*"notes": \["seen"\]'):
        keeps(term(noting), contexts=[reward_context(task={"answer": 1, "notes": []})])


def test_an_entry_is_compiled_as_a_spec_would() -> None:
    run_skipping(check_reward_async({"rule": "exact_match"}, CONTEXTS, within=(0, 1)))
