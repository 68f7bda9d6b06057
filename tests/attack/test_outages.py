"""No outage becomes a number, nobody's call makes another's number wrong, and nobody masks himself by felling a server.

A short play of `benchmarks/faults/outages.py`, against real servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.faults.outages import MODES, Why, campaign
from rlenv.concurrency.deadline import paused_for
from rlenv.episodes.environment import Environment
from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint, Reply

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
    # Of a batch one call in some sixty counts as its own, as SECURITY.md says: one of six may, by chance, and no two.
    assert found["wrong"] <= (mode == "batch"), why
    assert not found["masked"], why
    assert found["right"]
    assert bool(found["own"]) == (mode in ("fell", "errors", "refuse", "batch"))


SPEC = """
rlenv: 1
name: moments
tasks: {{train: {{rows: [{{question: q}}]}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
endpoints: {{other: {{base_url: "{url}", model: toy, retries: 0}}}}
limits: {{turns: 2}}
"""
WHO = {
    "judge": "answer: {from: final_message}\nrewards: {kind: {kind: judge, endpoint: other, prompt: Kind.}}",
    "user": "user: {kind: model, endpoint: other, prompt: Be one.}\nrewards: {replied: {kind: rule, rule: answered}}",
    "tool": """tools:
  ask: {kind: model, endpoint: other, prompt: "{{ args.text }}", parameters: {text: string}, example: {text: hello}}
rewards: {called: {kind: rule, rule: tool_called, tool: ask}}""",
}


@pytest.mark.parametrize("status", [401, 403, 404, 500])
@pytest.mark.parametrize("who", WHO)
def test_a_text_behind_which_a_server_knows_nobodys_key_for_a_moment_masks_nobody(
    who: str, status: int, make_environment: Any
) -> None:
    """Nor does one that answers 500, and no judge's breaker opens for it."""
    left = 0

    def answer(body: Mapping[str, Any]) -> Any:
        nonlocal left
        left = 10 if "vile" in str(body["messages"]) else left - 1
        return '{"reasoning": "r", "score": 5}' if left < 0 else Reply(status, "no such key")

    async def played(environment: Environment, text: str) -> tuple[Any, Any]:
        call = Message("assistant", "", (ToolCall("ask", {"text": text}),)) if who == "tool" else text
        async with environment.start() as episode:
            if not (await episode.step(call)).is_last:
                await episode.step("<answer>done</answer>")
            return episode.trajectory.reward.total, episode.trajectory.failure

    async def main() -> list[Any]:
        async with FakeEndpoint(answer) as server:
            environment = make_environment(SPEC.format(url=server.base_url) + WHO[who])
            async with environment:
                return [await played(environment, text) for text in ("kind", "vile", "fair")]

    with paused_for(0.02):
        assert asyncio.run(asyncio.wait_for(main(), 60)) == [(1.0, None), (0.0, None), (1.0, None)]
