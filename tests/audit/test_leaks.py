"""Rules that find answers in texts, over as many tasks as one asks for."""

from __future__ import annotations

from rlenv.audit.leaks import find


def test_a_rule_is_told_from_chance_on_thousands_of_tasks() -> None:
    rights = [str(1_000 + index) for index in range(2_000)]
    # Three of four prompts end with the answer: enough to be sure, and far from all.
    prompts = [{"prompt": f"How many? 7 {right if int(right) % 4 else 3}"} for right in rights]
    leak = find(prompts, rights)[0]
    assert (leak.where, leak.hits) == ("prompt", 1_500)
