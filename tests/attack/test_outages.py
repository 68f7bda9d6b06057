"""No outage becomes a number, nobody's call makes another's number wrong, and nobody masks himself by felling a server.

A short play of `benchmarks/faults/outages.py`, against real servers.
"""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.faults.outages import MODES, Why, campaign
from rlenv.concurrency.deadline import paused_for

CASES = [
    (mode, transport) for transport in ("http", "judge", "user") for mode in MODES if mode not in ("refuse", "errors")
]
CASES += [("refuse", transport) for transport in ("http", "search", "code")]
CASES += [("errors", transport) for transport in ("http", "mcp_http")]
CASES += [("batch", "mcp_http")]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("mode", "transport"), CASES)
def test_every_valid_number_is_that_of_a_server_that_is_well(transport: str, mode: str) -> None:
    why = Why()
    # Who fells the server in this mode has it away for a second or two some seven times, in which others wait.
    many, waits = (8, 1.0) if mode in ("errors", "batch") else (40, 0.02)
    with paused_for(waits):
        found = asyncio.run(asyncio.wait_for(campaign(transport, mode, episodes=many, seed=1, at_once=8, why=why), 300))
    assert not found["wrong"], why
    assert not found["masked"], why
    assert found["right"]
    assert bool(found["own"]) == (mode in ("fell", "errors", "refuse", "batch"))
