"""Right answers are written otherwise where nobody would call that another answer, and refusing them is a finding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.rewrites import count_item_places, rewrite_scripts
from rlenv.audit.run import audit
from rlenv.audit.subject import AuditSubject
from rlenv.episodes.rollout import Job, rollout
from tests.support.planted import plant, rows_of

ASKS = "Write the {} between <answer> and </answer>."
PAIRS = ["ants, bees", "bees, cats", "cats, ants", "ants, cats"]


def forms(folder: Path, golds: list[str], system: str) -> dict[str, str]:
    """The forms of the first right answer, by what is other."""
    path = plant(
        folder, {"train": rows_of(len(golds), lambda n: {"question": f"q{n}?", "answer": golds[n]})}, system=system
    )

    async def main() -> dict[str, Any]:
        async with rlenv.load(path) as environment:
            played = await rollout(environment, environment.oracle(), [Job("train", at) for at in range(len(golds))])
            subject = AuditSubject(environment, played[0], golds, played)
            return rewrite_scripts(subject, golds[0], count_item_places(golds))

    return {label: str(actions[-1]) for label, actions in asyncio.run(main()).items()}


@pytest.mark.parametrize(
    ("golds", "system", "label", "said"),
    [
        (["12 km", "9 km"], ASKS.format("number"), "number alone", "<answer>12</answer>"),
        (["1,200", "950"], ASKS.format("sum"), "without commas", "<answer>1200</answer>"),
        (["3.14159", "2.5"], ASKS.format("root with two decimals"), "rounded", "<answer>3.14</answer>"),
        (["2.50", "1.25"], ASKS.format("price"), "zeros", "<answer>2.5</answer>"),
        (PAIRS, ASKS.format("kinds"), "parts in another order", "<answer>bees, ants</answer>"),
        (["Good", "Bad"], ASKS.format("word good or bad"), "prompt spells", "<answer>good</answer>"),
        (['{"a": 1, "b": 2}', '{"a": 3, "b": 4}'], ASKS.format("object"), "keys", '{"b": 2, "a": 1}'),
        (["SELECT a FROM t", "SELECT b FROM t"], ASKS.format("query"), "rows in another order", "ORDER BY 1 DESC"),
        (["Bern", "Rome"], ASKS.format("town"), "space and line breaks", "<answer>\nBern\n</answer>"),
    ],
)
def test_an_answer_has_the_forms_that_say_the_same(
    tmp_path: Path, golds: list[str], system: str, label: str, said: str
) -> None:
    found = [text for name, text in forms(tmp_path, golds, system).items() if label in name]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("golds", "system", "label"),
    [
        (["12 km", "9 km"], ASKS.format("number with its unit"), "number alone"),
        (PAIRS, ASKS.format("kinds in the order of their size"), "parts in another order"),
        (["4, 9", "9, 4", "4, 7", "7, 4"], ASKS.format("numbers"), "parts in another order"),
        (["Bern, 4 May", "Rome, 9 June", "Oslo, 7 May"], ASKS.format("town and day"), "parts in another order"),
        (["2.50", "1.25"], ASKS.format("price with two decimals"), "zeros"),
        (["94.500", "1.250"], ASKS.format("sum"), "zeros"),
        (["SELECT a FROM t ORDER BY a", "SELECT b FROM t"], ASKS.format("query"), "rows in another order"),
    ],
)
def test_what_may_be_meant_is_no_such_form(tmp_path: Path, golds: list[str], system: str, label: str) -> None:
    assert not [name for name in forms(tmp_path, golds, system) if label in name]


@pytest.mark.slow  # each plays some thousand episodes
@pytest.mark.parametrize(
    ("rule", "expected"),
    [("exact_match", ["right_answer_refused"]), ("numeric_match", [])],
    ids=["as a text", "as a number"],
)
def test_a_form_that_earns_nothing_is_a_finding_of_its_term(tmp_path: Path, rule: str, expected: list[str]) -> None:
    rows = rows_of(8, lambda n: {"question": f"What is 1,000 times {n + 13}?", "answer": f"{n + 13},000"})
    path = plant(tmp_path, {"train": rows}, rule=f"{{kind: rule, rule: {rule}}}", system=ASKS.format("number"))

    async def main() -> list[tuple[str, str]]:
        async with rlenv.load(path) as environment:
            return [(one.hole, one.term) for one in (await audit(environment)).findings]

    assert asyncio.run(main()) == [(one, "correct") for one in expected]


@pytest.mark.parametrize("gold", ["1,2,3", "3,5", "(1,200)", "12,34"])
def test_a_comma_between_numbers_is_none_of_a_number(gold: str, tmp_path: Path) -> None:
    said = forms(tmp_path, [gold, "950"], ASKS.format("roots"))
    assert [label for label in said if "commas" in label] == []
