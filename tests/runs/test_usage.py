"""Sums of what episodes asked for: nothing unknown is a number, and nothing recorded is paid again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlenv.language.document import parse_source
from rlenv.runs.prices import Prices, PricesSpec
from rlenv.runs.schema import Facts, row_of
from rlenv.runs.summary import summarise
from rlenv.runs.usage import Spending, asked_tokens, cost_of, spent
from rlenv.trajectory import ModelUsage, Trajectory
from tests.support.runs import played

POLICY = ModelUsage("policy", "a", requests=3, failed=1, prompt_tokens=100, completion_tokens=20, seconds=1.5)
JUDGE = ModelUsage("judge good", "b", requests=1, prompt_tokens=1000, completion_tokens=10, seconds=0.5)
SILENT = ModelUsage("user", "a", requests=2, unknown=2)
TEXT = "currency: EUR\nmodels: {a: {input: 10, output: 100}}"


def prices() -> Prices:
    spec = PricesSpec.model_validate(parse_source(TEXT).data)
    return Prices(spec.currency, spec.models)


def episodes(*usage: tuple[ModelUsage, ...]) -> list[Trajectory]:
    return [replace(played(task=task), usage=one) for task, one in enumerate(usage)]


def test_sums_are_by_role_and_model() -> None:
    found = spent(episodes((POLICY, JUDGE), (POLICY,)))
    policy, judge = found.roles
    assert (policy.requests, policy.failed, policy.prompt_tokens, policy.completion_tokens) == (6, 2, 200, 40)
    assert (policy.seconds, policy.cost) == (3.0, None)
    assert (judge.role, judge.model) == ("judge good", "b")
    assert (found.requests, found.failed, found.prompt_tokens, found.completion_tokens) == (7, 2, 1200, 50)
    assert (found.cost, found.currency, found.unpriced) == (None, "", ())
    assert spent(episodes((), ())) == Spending()


def test_cost_is_of_known_prices_and_the_others_are_named() -> None:
    found = spent(episodes((POLICY, JUDGE), (POLICY,)), prices=prices())
    assert [one.cost for one in found.roles] == [pytest.approx((200 * 10 + 40 * 100) / 1e6), None]
    assert found.cost == pytest.approx(0.006)
    assert (found.currency, found.unpriced) == ("EUR", ("b",))
    assert spent(episodes((JUDGE,)), prices=prices()).cost is None


def test_unknown_tokens_are_no_number() -> None:
    found = spent(episodes((SILENT,)), prices=prices())
    (role,) = found.roles
    assert (role.unknown, role.prompt_tokens, role.completion_tokens, role.cost) == (2, None, None, None)
    assert (found.unknown, found.prompt_tokens, found.cost) == (2, None, None)
    assert asked_tokens([POLICY, SILENT]) == (None, None)
    assert cost_of([POLICY, SILENT], prices()) is None


def test_what_a_record_answered_is_in_no_sum() -> None:
    recorded = replace(JUDGE, is_recorded=True)
    found = spent(episodes((POLICY, recorded)), prices=prices())
    assert [one.is_recorded for one in found.roles] == [False, True]
    assert (found.requests, found.prompt_tokens, found.unpriced) == (3, 100, ())
    assert asked_tokens([recorded]) == (None, None)
    assert cost_of([recorded], prices()) is None


def test_a_row_has_the_tokens_of_all_models_and_their_cost() -> None:
    both, one = episodes((POLICY, JUDGE), (POLICY,))
    row = row_of(both, Facts(cost=cost_of(both.usage, prices())), id="x", attempt=1, lock="")
    assert (row["asked_tokens"], row["answered_tokens"], row["cost"]) == (1100, 30, None)
    row = row_of(one, Facts(cost=cost_of(one.usage, prices())), id="x", attempt=1, lock="")
    assert (row["asked_tokens"], row["answered_tokens"], row["cost"]) == (100, 20, pytest.approx(0.003))
    row = row_of(played(), Facts(), id="x", attempt=1, lock="")
    assert (row["asked_tokens"], row["answered_tokens"], row["cost"]) == (None, None, None)


def test_a_summary_holds_them() -> None:
    summary = summarise(episodes((POLICY,)), seconds=1.0, prices=prices())
    assert summary.usage == spent(episodes((POLICY,)), prices=prices())
