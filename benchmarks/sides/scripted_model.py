"""A rollout server that says what the workload scripted: a number of places, a fixed time for each generation."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from benchmarks import workload

__all__ = ["Load", "ScriptedModel"]

_NUMBER = re.compile(r"chain number (\d+):")


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the model was between its first and last request.

    `idle` is the share of its places' time in which they held no request, `empty` the share of time in which no place
    held one; both 0 to 1, and None where a generation takes no time.
    """

    generations: int
    seconds: float
    idle: float | None
    empty: float | None


class ScriptedModel:
    """Serves `places` requests at once, each for `latency_s`; further ones wait, as at a server with a full batch.

    It takes the arguments of `LLMServerClient.generate` and of a rollout server, so that a loop can hold it directly
    or through veRL's client and load balancer. Which episode asks, and at which turn, is read off the prompt.
    """

    def __init__(self, tokenizer: Any, *, latency_s: float, places: int) -> None:
        self._end = tokenizer.eos_token_id
        self._texts = [
            [[*tokenizer(text, add_special_tokens=False)["input_ids"], self._end] for text in texts]
            for texts in workload.TEXTS
        ]
        self._tokenizer = tokenizer
        self._latency_s = latency_s
        self._count = places
        self._known: dict[tuple[int, ...], int] = {}
        self._places = asyncio.Semaphore(places)
        self.reset()

    def reset(self) -> None:
        """Starts measuring anew."""
        self._generations = self._busy = 0
        self._first = self._last = 0.0
        self._held = self._used = 0.0

    def load(self) -> Load:
        """What was measured since `reset`."""
        seconds = self._last - self._first
        if not self._latency_s or not seconds:
            return Load(self._generations, seconds, None, None)
        return Load(
            self._generations, seconds, 1 - self._held / (self._count * seconds), max(0.0, 1 - self._used / seconds)
        )

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_other: Any
    ) -> TokenOutput:
        """The next message of the episode whose prompt this is."""
        ids = self._next(prompt_ids)
        self._first = self._first or time.perf_counter()
        if self._latency_s:
            async with self._places:
                self._moved(+1)
                await asyncio.sleep(self._latency_s)
                self._moved(-1)
        else:
            await asyncio.sleep(0)
            self._last = time.perf_counter()
        self._generations += 1
        return TokenOutput(
            token_ids=list(ids),
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0},
        )

    def _next(self, prompt_ids: list[int]) -> list[int]:
        # veRL's client gives each request an id of its own, so the turn is read off the conversation: the system and
        # the user's message end before the first turn, and each turn adds its own end and that of its results.
        first = prompt_ids.index(self._end)
        key = tuple(prompt_ids[first : first + 24])
        index = self._known.get(key)
        if index is None:
            found = _NUMBER.search(self._tokenizer.decode(key))
            assert found, "the question stands right after the system message"
            index = self._known[key] = int(found.group(1)) % workload.VARIANTS
        return self._texts[index][(prompt_ids.count(self._end) - 2) // 2]

    def _moved(self, change: int) -> None:
        now = time.perf_counter()
        if self._busy:
            self._held += self._busy * (now - self._last)
            self._used += now - self._last
        self._last = now
        self._busy += change
