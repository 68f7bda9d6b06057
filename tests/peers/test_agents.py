"""An agent that is on the index as it is, unchanged, plays through the gateway and by MCP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.peers.places import play
from tests.support.asked import Asks, Speaker, written
from tests.support.hosts import CALLS, RIGHT, SPEC, encoder_of, finished, gateway, seat_of

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("wire", ["chat", "chat-events", "responses", "responses-events"])
def test_an_agent_of_openai_agents_earns_what_the_oracle_does_and_its_rows_hold_what_was_sampled(
    wire: str, tmp_path: Path
) -> None:
    encoder = encoder_of(tmp_path)

    async def episode(ask: Asks, model: Any) -> tuple[Any, Any]:
        seat = await seat_of(ask)
        places = [seat[name] for name in ("base_url", "api_key", "mcp_url")]
        told = [wire, *places, seat["messages"][-1]["content"]]
        said = await asyncio.to_thread(play, "agents", "agents_plays.py", tmp_path, *told)
        return said, await finished(ask, seat)

    said, ended = gateway(Speaker([CALLS, RIGHT], encoder), tmp_path, episode, spec=SPEC)
    assert said == RIGHT
    assert (ended["total"], ended["reason"]) == (pytest.approx(1.3), "answer")
    sampled = [encoder.decode(row["ids"][start:end]) for row in ended["rows"] for start, end in row["turns"]]
    assert sampled == [written(CALLS) + "<|im_end|>", RIGHT + "<|im_end|>"]
    assert sum(map(len, (row["turns"] for row in ended["rows"]))) == 2
