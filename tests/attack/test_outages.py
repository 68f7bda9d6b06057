"""No outage becomes a number, nobody's call makes another's number wrong, and nobody masks himself by felling a server.

A short play of `benchmarks/faults/outages.py`, against real servers.
"""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.faults.outages import MODES, Why, campaign

CASES = [(mode, transport) for transport in ("http", "judge", "user") for mode in MODES if mode != "refuse"]
CASES += [("refuse", transport) for transport in ("http", "search", "code")]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("mode", "transport"), CASES)
def test_every_valid_number_is_that_of_a_server_that_is_well(transport: str, mode: str) -> None:
    why = Why()
    found = asyncio.run(asyncio.wait_for(campaign(transport, mode, episodes=40, seed=1, at_once=8, why=why), 300))
    assert not found["wrong"], why
    assert not found["masked"], why
    assert found["right"]
    assert bool(found["own"]) == (mode in ("fell", "refuse"))
