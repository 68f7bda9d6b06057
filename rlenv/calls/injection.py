"""Faults put in on purpose: which call gets which follows from seeds alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any, Literal

import orjson

from rlenv.errors import ToolFailed
from rlenv.language.spec import FaultsSpec
from rlenv.tools.base import ToolContext, ToolOutput

__all__ = ["OVERSIZE_CHARS", "Fault", "Injector", "injected"]

OVERSIZE_CHARS = 10_000_000
_NOISE = '\ufffd\x00\x1b[31m}{]"<tool_call></tool_response>\\u12'

FaultKind = Literal["error", "delay", "garble", "oversize", "hang"]


def injected(tool: str) -> ToolFailed:
    """How a call fails that meets an `error`: the tool has not run."""
    return ToolFailed(f"the tool {tool} failed", reason="injected", retryable=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `seconds` is how long the call is held before it begins (infinite for a hang)."""

    kind: FaultKind
    seconds: float = 0.0
    seed: int = 0

    def spoil(self, output: ToolOutput) -> ToolOutput:
        """What becomes of the result; its value is None where its text is not the tool's any more."""
        if self.kind == "oversize":
            text = output.text or " "
            return ToolOutput((text * (OVERSIZE_CHARS // len(text) + 1))[:OVERSIZE_CHARS])
        if self.kind != "garble":
            return output
        chance = Random(self.seed)
        letters = list(output.text[: chance.randint(0, len(output.text))])
        for _ in range(3 + len(letters) // 8):
            letters.insert(chance.randint(0, len(letters)), chance.choice(_NOISE))
        return ToolOutput("".join(letters))


class Injector:
    """Draws at most one fault for each try of a call.

    Equal for equal task, episode seed, turn, place of the call in its turn, try and tool, whatever else runs. Calls
    that rewards make (turn -1) are left alone.
    """

    __slots__ = ("_shares", "_spec", "_tool")

    def __init__(self, tool: str, spec: FaultsSpec) -> None:
        self._tool = tool
        self._spec = spec
        delay = spec.delay_s.p if spec.delay_s is not None else 0.0
        self._shares: tuple[tuple[FaultKind, float], ...] = (
            ("error", spec.error),
            ("delay", delay),
            ("garble", spec.garble),
            ("oversize", spec.oversize),
            ("hang", spec.hang),
        )

    def draw(self, context: ToolContext, *, index: int, attempt: int) -> Fault | None:
        """The fault of one try, or None."""
        if context.turn < 0:
            return None
        place = f"{self._spec.seed}:{context.seed}:{context.turn}:{index}:{attempt}:{self._tool}".encode()
        seed = int.from_bytes(blake2b(_as_bytes(context.task) + place, digest_size=8).digest(), "big")
        chance = Random(seed)
        point = chance.random()
        for kind, share in self._shares:
            if point < share:
                return Fault(kind, self._seconds(kind, chance), seed)
            point -= share
        return None

    def _seconds(self, kind: FaultKind, chance: Random) -> float:
        if kind == "hang":
            return float("inf")
        if kind == "delay" and self._spec.delay_s is not None:
            return chance.uniform(*self._spec.delay_s.uniform)
        return 0.0


def _as_bytes(task: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(dict(task), default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # numbers beyond 64 bits, lone surrogates
        return repr(sorted(task.items(), key=lambda item: str(item[0]))).encode("utf-8", "surrogatepass")
