"""Sums of what episodes asked for: nothing unknown is a number, and nothing recorded is paid again.

A list of prices: which model has which, what tokens cost by it, and where a list is at fault.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlenv.endpoints.account import Usage, asking
from rlenv.errors import SpecError, UsageError
from rlenv.language.document import parse_source
from rlenv.runs.schema import Facts, row_of
from rlenv.runs.summary import summarise
from rlenv.runs.usage import (
    Budget,
    Prices,
    PricesSpec,
    Spending,
    asked_tokens,
    cost_of,
    count_spending,
    money,
    notes_of,
    prices_in,
    read_prices,
    spending_line,
    spending_of,
    spending_page,
)
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
    found = spending_of(episodes((POLICY, JUDGE), (POLICY,)))
    policy, judge = found.roles
    assert (policy.requests, policy.failed, policy.prompt_tokens, policy.completion_tokens) == (6, 2, 200, 40)
    assert (policy.seconds, policy.cost) == (3.0, None)
    assert (judge.role, judge.model) == ("judge good", "b")
    assert (found.requests, found.failed, found.prompt_tokens, found.completion_tokens) == (7, 2, 1200, 50)
    assert (found.cost, found.currency, found.unpriced) == (None, "", ())
    assert spending_of(episodes((), ())) == Spending()


def test_cost_is_of_known_prices_and_the_others_are_named() -> None:
    found = spending_of(episodes((POLICY, JUDGE), (POLICY,)), prices=prices())
    assert [one.cost for one in found.roles] == [pytest.approx((200 * 10 + 40 * 100) / 1e6), None]
    assert found.cost == pytest.approx(0.006)
    assert (found.currency, found.unpriced) == ("EUR", ("b",))
    assert spending_of(episodes((JUDGE,)), prices=prices()).cost is None


def test_unknown_tokens_are_no_number() -> None:
    found = spending_of(episodes((SILENT,)), prices=prices())
    (role,) = found.roles
    assert (role.unknown, role.prompt_tokens, role.completion_tokens, role.cost) == (2, None, None, None)
    assert (found.unknown, found.prompt_tokens, found.cost) == (2, None, None)
    assert asked_tokens([POLICY, SILENT]) == (None, None)
    assert cost_of([POLICY, SILENT], prices()) is None


def test_what_a_record_answered_is_in_no_sum() -> None:
    recorded = replace(JUDGE, is_recorded=True)
    found = spending_of(episodes((POLICY, recorded)), prices=prices())
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
    assert summary.usage == spending_of(episodes((POLICY,)), prices=prices())


LIST = """
currency: EUR
models:
  "vendor/*": {input: 1, output: 4}
  vendor/small: {input: 0.5, cached_input: 0.1, output: 2}
  "*/small": {input: 9, output: 9}
"""


@pytest.fixture
def prices_of_prices(tmp_path: Path) -> Prices:
    path = tmp_path / "prices.yaml"
    path.write_text(LIST, encoding="utf-8")
    return read_prices(path)


def asked(model: str, prompt: int = 1_000_000, completion: int = 0, *, cached_tokens: int = 0) -> ModelUsage:
    counts = (prompt, cached_tokens, completion)
    return ModelUsage("policy", model, 1, 0, 0, 0, *counts)


def test_a_name_in_full_goes_before_patterns_and_these_by_their_order(prices_of_prices: Prices) -> None:
    assert prices_of_prices.cost(asked("vendor/small")) == 0.5
    assert prices_of_prices.cost(asked("vendor/large")) == 1.0
    assert prices_of_prices.cost(asked("other/small")) == 9.0
    assert prices_of_prices.cost(asked("vendor")) is None


def test_tokens_that_a_server_kept_have_their_own_price_where_there_is_one(prices_of_prices: Prices) -> None:
    assert prices_of_prices.cost(asked("vendor/small", 1000, 100, cached_tokens=800)) == pytest.approx(
        (200 * 0.5 + 800 * 0.1 + 100 * 2) / 1e6
    )
    assert prices_of_prices.cost(asked("vendor/large", 1000, 100, cached_tokens=800)) == pytest.approx(
        (1000 + 400) / 1e6
    )


def test_what_is_not_known_has_no_cost_and_what_a_record_answered_none_now(prices_of_prices: Prices) -> None:
    assert prices_of_prices.cost(ModelUsage("user", "vendor/large", requests=2, unknown=2)) is None
    assert (
        prices_of_prices.cost(ModelUsage("user", "vendor/large", requests=2, unknown=1, prompt_tokens=1_000_000)) == 1.0
    )
    assert (
        prices_of_prices.cost(ModelUsage("policy", "vendor/large", requests=1, prompt_tokens=9, is_recorded=True))
        is None
    )
    assert prices_of_prices.cost(ModelUsage("judge good", "vendor/large", cached=3)) == 0.0


def test_patterns_of_a_list_that_is_extended_go_before_the_own_ones(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text('currency: EUR\nmodels: {"vendor/*": {input: 1, output: 1}}\n')
    (tmp_path / "own.yaml").write_text(
        'extends: base.yaml\nmodels: {"vendor/big-*": {input: 9, output: 9}, vendor/big-1: {input: 5, output: 5}}\n'
    )
    found = read_prices(tmp_path / "own.yaml")
    assert [found.cost(asked(model)) for model in ("vendor/big-2", "vendor/big-1")] == [1.0, 5.0]


def test_a_list_may_be_json_and_may_stand_on_another(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text('{"currency": "EUR", "models": {"a": {"input": 1, "output": 2}}}')
    (tmp_path / "own.yaml").write_text("extends: base.json\nmodels: {b: {input: 3, output: 4}}\n")
    found = read_prices(tmp_path / "own.yaml")
    assert (found.currency, set(found.models)) == ("EUR", {"a", "b"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency: EUR\nmodels:\n  a: {input: -1, output: 2}\n", ":3:14: models.a.input: found -1"),
        ("currency: EUR\nmodels:\n  a: {input: .inf, output: 2}\n", ":3:14: models.a.input: found inf"),
        ("currency: EUR\nmodels:\n  a: {input: .nan, output: 2}\n", ":3:14: models.a.input: found nan"),
        ("currency: EUR\nmodels:\n  a: {input: 1}\n", ":3:3: models.a.output: the key 'output' is missing"),
        ("currency: EUR\nmodels:\n  a: {input: x, output: 2}\n", ':3:14: models.a.input: found the text "x"'),
        ("currency: EUR\nmodel: {}\n", ":2:1: model: unknown key; did you mean 'models'?"),
        ("models: {}\n", "currency: the key 'currency' is missing"),
    ],
)
def test_faults_stand_at_their_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as failed:
        read_prices(path)
    assert said in str(failed.value)
    assert str(failed.value).startswith(str(path))


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml"):
        read_prices(tmp_path / "none.yaml")


def test_a_run_keeps_its_prices_and_reads_no_others(prices_of_prices: Prices) -> None:
    kept = json.loads(json.dumps({"prices": prices_of_prices.as_fact()}))
    assert prices_in(kept) == prices_of_prices
    assert [prices_in(facts) for facts in ({}, {"prices": 3}, {"prices": {"currency": "EUR"}})] == [None] * 3


def budget(most: float | None, *, with_prices: bool = True) -> tuple[Budget, list[str]]:
    said: list[str] = []
    return Budget(most, prices() if with_prices else None, said.append), said


@pytest.mark.parametrize(("most", "is_spent"), [(0.002, True), (0.003, False), (0.004, False), (0.0, True)])
def test_a_budget_is_spent_once_more_than_it_was_asked_for_and_something_is_left(most: float, is_spent: bool) -> None:
    (one,) = episodes((POLICY,))  # 0.003 EUR
    for left, expected in ((1, is_spent), (0, False)):
        own, said = budget(most)
        own.add_episode(one, left=left)
        assert (own.is_spent.is_set(), said) == (expected, [])
        own, _ = budget(most)
        own.add_usage(one.usage, left)
        assert own.is_spent.is_set() is expected


def test_what_episodes_and_groups_cost_adds_up() -> None:
    own, _ = budget(0.006)
    for left in (9, 8):
        own.add_episode(episodes((POLICY,))[0], left=left)
        assert not own.is_spent.is_set()
    own.add_usage((POLICY,), 3)
    assert own.is_spent.is_set()
    assert own.stop_reason() == (
        "the episodes have cost 0.009 EUR, more than --max-cost 0.006; 8 are not played: "
        "--resume with a higher one plays them where the run is kept (-o)"
    )
    own.add_episode(episodes(())[0], left=0)
    assert "not all answers to a task are compared" in own.stop_reason()


def test_a_budget_says_once_what_is_in_no_sum() -> None:
    own, said = budget(1.0)
    for _ in range(2):
        own.add_episode(episodes((JUDGE, SILENT))[0], left=1)
    assert said == [
        "--max-cost leaves out answers whose server says no tokens",
        "--max-cost leaves out b, which has no price",
    ]
    own, said = budget(None, with_prices=False)
    own.add_episode(episodes((JUDGE,))[0], left=1)
    assert (said, own.is_spent.is_set()) == ([], False)


@pytest.mark.parametrize(("most", "with_prices"), [(1.0, False), (-0.1, True), (float("nan"), True)])
def test_a_budget_that_cannot_be_kept_is_refused(most: float, with_prices: bool) -> None:
    with pytest.raises(UsageError, match="--max-cost"):
        budget(most, with_prices=with_prices)
    assert not budget(0.0)[0].is_spent.is_set()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (0.099, "0.099"),
        (0.00012345, "0.000123"),
        (-0.00012345, "-0.000123"),
        (0.1, "0.100"),
        (1.5, "1.500"),
    ],
)
def test_an_amount_has_the_digits_that_a_small_one_needs(value: float | None, written: str) -> None:
    assert money(value) == written


def test_a_line_says_what_was_asked_what_it_cost_and_what_is_missing() -> None:
    recorded = replace(JUDGE, is_recorded=True)
    assert spending_line(Spending()) == ""
    assert spending_line(spending_of(episodes((POLICY,)))) == (
        "models: 3 requests (1 failed), 100 prompt and 20 completion tokens"
    )
    assert spending_line(spending_of(episodes((POLICY, JUDGE, SILENT)), prices=prices())) == (
        "models: 6 requests (1 failed), 1,100 prompt and 30 completion tokens, without 2 answers whose server says no "
        "tokens; cost 0.003 EUR, without b: no price"
    )
    assert spending_line(spending_of(episodes((recorded,)))) == (
        "models: none was asked; 1 requests are from the record and cost nothing now"
    )
    assert spending_line(spending_of(episodes((POLICY, recorded)))).endswith(
        "; 1 requests are from the record and cost nothing now"
    )
    assert spending_line(spending_of(episodes((replace(JUDGE, requests=0, cached=2),)))) == "models: none was asked"


def test_the_notes_of_a_role_say_what_its_figures_leave_out() -> None:
    (plain,) = spending_of(episodes((POLICY,))).roles
    assert notes_of(plain) == []
    whole = replace(POLICY, cached=2, unknown=3, cached_tokens=40, reasoning_tokens=5, is_recorded=True)
    (role,) = spending_of(episodes((whole,))).roles
    assert notes_of(role) == [
        "recorded: costs nothing now",
        "2 answers kept from another",
        "3 answers say no tokens",
        "40 prompt tokens kept by the server",
        "5 of reasoning",
    ]
    page = spending_page(spending_of(episodes((POLICY,))))
    assert (page["requests"], page["roles"][0]["notes"]) == (3, [])
    assert page["said"].startswith("models: 3 requests")


def test_what_a_block_asked_for_is_said_where_it_raises_and_known_where_it_ends() -> None:
    said: list[str] = []

    def asks_one(*, fails: bool = False) -> None:
        who = asking()
        assert who is not None
        who.tried("a", Usage(1_000_000, 0))
        if fails:
            raise KeyError

    with count_spending(prices(), said.append) as so_far:
        asks_one()
    assert (so_far().cost, said) == (10.0, [])
    with pytest.raises(KeyError), count_spending(prices(), said.append):
        asks_one(fails=True)
    with pytest.raises(KeyError), count_spending(prices(), said.append):
        raise KeyError
    assert said == ["models: 1 requests (0 failed), 1,000,000 prompt and 0 completion tokens; cost 10.000 EUR"]


def test_tokens_and_costs_are_sums_of_what_is_asked_for_now() -> None:
    recorded = replace(JUDGE, is_recorded=True)
    assert asked_tokens([POLICY, JUDGE, recorded]) == (1100, 30)
    assert asked_tokens([]) == (None, None)
    assert cost_of([POLICY, POLICY, recorded], prices()) == pytest.approx(0.006)
    assert (cost_of([], prices()), cost_of([POLICY], None), cost_of([POLICY, JUDGE], prices())) == (None, None, None)
