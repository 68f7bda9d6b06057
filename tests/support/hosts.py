"""A small environment of sums, and a gateway before a scripted model that plays it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.endpoints import Client, Endpoint
from rlenv.hosts.gateway import Gateway
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import Answer, FakeEndpoint
from tests.support.asked import Asks, asking

__all__ = ["CALLS", "RIGHT", "SPEC", "encoder_of", "finished", "gated", "gateway", "seat_of"]

SPEC = """
rlenv: 1
name: sums
tasks: {train: {rows: [{q: "1 to 4?", answer: 30}, {q: "one?", answer: 1}]}}
prompt: {system: Use the tool., user: "The sum of the squares of {{ task.q }}"}
tools: {calculate: {kind: calculator}}
limits: {turns: 3, tool_calls: 8}
rewards:
  correct: {kind: rule, rule: numeric_match, expect: "{{ task.answer }}"}
  short: {kind: rule, rule: turn_count, max: 2, weight: 0.2}
  calls: {kind: rule, rule: valid_calls, when: turn, weight: 0.1}
success: correct >= 1
"""
CALLS = Message("assistant", "", tuple(ToolCall("calculate", {"expression": f"{n}**2"}, f"c{n}") for n in range(1, 5)))
RIGHT = "<answer>30</answer>"
Play = Callable[[Asks, FakeEndpoint], Awaitable[Any]]
_PLAIN = SamplingSpec()


@asynccontextmanager
async def gated(
    answers: Iterable[Any] | Answer,
    folder: Path,
    *,
    spec: str = SPEC,
    sampling: SamplingSpec = _PLAIN,
    timeout_s: float = 120.0,
    retries: int = 0,
    concurrency: int = 64,
    before: Callable[[str], AbstractAsyncContextManager[str]] = nullcontext,
    **options: Any,
) -> AsyncIterator[tuple[Asks, FakeEndpoint, Gateway]]:
    """A gateway before a scripted model, or what stands `before` its address, and whoever asks it."""
    (folder / "sums.yaml").write_text(spec, encoding="utf-8")
    async with FakeEndpoint(answers) as model, before(model.base_url) as address:
        asked: dict[str, Any] = {"retries": retries, "timeout_s": timeout_s, "sampling": sampling}
        asked["concurrency"] = concurrency
        client = Client(Endpoint(name="", base_url=address, model="policy", **asked))
        try:
            made = Gateway(rlenv.load(folder / "sums.yaml"), client, **options)
            async with asking(made.application()) as ask:
                yield ask, model, made
        finally:
            await client.aclose()


def gateway(answers: Iterable[Any] | Answer, folder: Path, play: Play, **options: Any) -> Any:
    """What a play with a gateway returns."""

    async def main() -> Any:
        async with gated(answers, folder, **options) as (ask, model, _):
            return await play(ask, model)

    return asyncio.run(main())


async def seat_of(ask: Asks, **row: Any) -> dict[str, Any]:
    status, seat = await ask("POST", "/episodes", row)
    assert status == 201, seat
    return dict(seat)


async def finished(ask: Asks, seat: dict[str, Any], **said: Any) -> dict[str, Any]:
    status, ended = await ask("POST", f"/episodes/{seat['episode']}/finish", said)
    assert status == 200, ended
    return dict(ended)


def encoder_of(folder: Path) -> Any:
    pytest.importorskip("tokenizers")
    from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer

    (folder / "sums.yaml").write_text(SPEC, encoding="utf-8")
    return rlenv.bind(small_tokenizer(), rlenv.load(folder / "sums.yaml"), chat_template=CHAT_TEMPLATE)
