"""Thresholds on numbers that a prompt shows are a shortcut where nothing tells them and it shows other things too."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.run import audit

_SPEC = """
rlenv: 1
name: payments
tasks: {{train: {{path: rows.jsonl}}}}
prompt: {{user: "{prompt}"}}
rewards: {{correct: {{kind: rule, rule: exact_match}}}}
oracle:
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""
_PAYMENT = "{{ task.who }} paid {{ task.amount }} in {{ task.town }} at {{ task.hour }}:20. Is it fraud or fine?"
_WHO = ["ada", "bo", "cy", "di", "ed", "flo", "gus", "hal", "ida", "jo"]
_TOWNS = ["Lisbon", "Turin", "Bergen", "Ghent", "Graz", "Cork"]


def _rows(is_fraud: str) -> list[dict[str, Any]]:
    """Forty payments, of which half are frauds."""
    rng, rows = random.Random(1), list[dict[str, Any]]()
    while len(rows) < 40:
        row = {"who": rng.choice(_WHO), "town": rng.choice(_TOWNS), "amount": rng.randint(5, 900)}
        row["hour"] = rng.randint(10, 23)
        row["answer"] = "fraud" if eval(is_fraud, row.copy()) else "fine"
        rows += [row] if sum(one["answer"] == row["answer"] for one in rows) < 20 else []
    return rows


@pytest.mark.slow  # each plays some thousand episodes
@pytest.mark.parametrize(
    ("is_fraud", "prompt", "expected"),
    [
        ("hour > 17", _PAYMENT, {"shortcut"}),
        ("hour > 17", "Payment P-{{ 71 if task.answer == 'fraud' else 54 }} by {{ task.who }}. Fraud?", {"shortcut"}),
        ("hour > 13 and amount > 300", _PAYMENT, {"shortcut"}),
        ("amount > 420", f"What is above 420 is fraud. {_PAYMENT}", {"chance"}),
        ("amount > 420", "Is {{ task.amount }} fraud or fine?", {"chance"}),
        ("hash(who + town) % 7 > 3", _PAYMENT, {"chance"}),
    ],
    ids=["a time", "a first digit", "two numbers", "a rule that is told", "numbers alone", "no rule"],
)
def test_a_threshold_that_nothing_tells_is_a_shortcut(
    is_fraud: str, prompt: str, expected: set[str], tmp_path: Path
) -> None:
    is_fraud = is_fraud.replace("hash(who + town)", "sum(map(ord, who + town))")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, _rows(is_fraud))))
    (tmp_path / "env.yaml").write_text(_SPEC.format(prompt=prompt))

    async def main() -> set[str]:
        async with rlenv.load(tmp_path / "env.yaml") as environment:
            return {one.code for one in (await audit(environment)).findings}

    assert asyncio.run(main()) - {"duplicate_rows", "few_questions"} == expected
