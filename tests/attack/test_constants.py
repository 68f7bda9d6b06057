"""One answer is not right everywhere: what each rule and comparator pays a text over unrelated golds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from benchmarks.fuzz import broken
from benchmarks.fuzzing import constants

pytest.importorskip("sqlglot", reason="the extra `sql` is not installed")


@pytest.fixture(scope="module")
def quick() -> Iterator[constants.Earns]:
    target = constants.Earns(without="math_equal")
    yield target
    target.close()


def test_every_rule_is_held_to_the_law_or_says_why_it_is_not() -> None:
    """A new rule stands in RULES with golds that it takes, or in BY_NATURE."""
    assert constants.unnamed() == set()
    assert {"equal", "number", "text", "rows", "json"} <= set(constants.COMPARATORS)


def test_most_golds_earn_as_their_own_answers(quick: constants.Earns) -> None:
    """Else that no constant earns them would say nothing."""
    for worth in quick.worths:
        texts = {name: gold if isinstance(gold, str) else json.dumps(gold) for name, gold in worth.golds.items()}
        own = sum(worth(text).get(name, 0) >= 0.8 for name, text in texts.items())
        assert 2 * own >= len(texts), worth.name


def test_no_constant_earns_on_more_than_two_unrelated_tasks(quick: constants.Earns) -> None:
    rng = random.Random(0)
    composed = [constants.composed(rng) for _ in range(60)]
    texts = [*constants.ATOMS, *constants.LISTED, *composed]
    assert {text[:80]: law for text in texts if (law := broken(quick, text)[0])} == {}


@pytest.mark.slow
def test_no_constant_is_equal_to_more_than_two_unrelated_golds_of_mathematics() -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    target = constants.Earns()
    try:
        assert {text[:80]: law for text in constants.ATOMS[::3] if (law := broken(target, text)[0])} == {}
    finally:
        target.close()
