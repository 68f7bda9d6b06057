"""What fuzzing once found, and a part of what it tried, breaks no law: benchmarks/fuzz.py says which."""

from __future__ import annotations

import logging
import random

import pytest

from benchmarks.fuzz import TARGETS, broken, changed, corpus

NEEDS = {"sql": ("duckdb", "sqlglot"), "mcp": ("mcp",), "earns": ("math_verify", "sqlglot")}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", TARGETS)
def test_no_kept_input_breaks_a_law(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    caplog.set_level(logging.CRITICAL + 1)
    kept = corpus(name)
    assert kept
    target = TARGETS[name]()
    try:
        found = {text[:300]: law for text in kept if (law := broken(target, text)[0])}
    finally:
        target.close()
    assert found == {}


@pytest.mark.parametrize("name", TARGETS)
def test_fuzzed_inputs_are_equal_for_equal_seeds(name: str) -> None:
    texts = corpus(name)

    def made() -> list[str]:
        rng = random.Random(5)
        return [changed(rng, rng.choice(texts), texts) for _ in range(20)]

    assert made() == made()
