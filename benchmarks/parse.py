"""Prints what reading a message costs: typical messages, and texts made to be slow. Run: python benchmarks/parse.py"""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import orjson

from rlenv import dialects
from rlenv.messages import ToolCall

WORDS = (
    "the",
    "need",
    "to",
    "compute",
    "total",
    "revenue",
    "of",
    "customers",
    "by",
    "region",
    "then",
    "check",
    "value",
)
PARSE = dialects.get("hermes").parse


def messages(kind: str, count: int = 400) -> list[str]:
    """Messages of one kind, about 250 characters, from a fixed seed."""
    rng = random.Random(kind)

    def prose(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    def call() -> str:
        arguments = rng.choice(
            (
                {"a": rng.randint(0, 10**6), "b": rng.random() * 100, "op": "add"},
                {"query": prose(6), "top_k": rng.randint(1, 20)},
                {"query": f"SELECT {prose(2)} FROM t WHERE x = '10:30'", "limit": 5},
                {"query": prose(3), "filters": {"lang": "en", "years": [2020, 2021]}},
            )
        )
        return f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': arguments})}\n</tool_call>"

    makers: dict[str, Callable[[], str]] = {
        "no call": lambda: prose(45),
        "1 call": lambda: f"{prose(26)}\n{call()}",
        "2 calls": lambda: f"{prose(8)}\n{call()}\n{call()}",
        "thinking, 1 call": lambda: f"<think>\n{prose(20)}\n</think>\n\n{call()}",
        "malformed": lambda: f"{prose(26)}\n{call()[:-15]}\n</tool_call>",
    }
    return [makers[kind]() for _ in range(count)]


def floor(text: str) -> list[object]:
    """The least that could be called reading: find the markers, load the JSON."""
    out: list[object] = []
    at = text.find("<tool_call>")
    while at >= 0:
        end = text.find("</tool_call>", at)
        if end < 0:
            break
        try:
            data = orjson.loads(text[at + 11 : end])
            out.append((data["name"], data["arguments"]))
        except (ValueError, KeyError, TypeError) as error:
            out.append(str(error))
        at = text.find("<tool_call>", end)
    return out


def cost(work: Callable[[], object], repeat: int = 15) -> tuple[float, float]:
    """CPU seconds of `work`: least and median."""
    taken = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken), statistics.median(taken)


HOSTILE: dict[str, Callable[[int], str]] = {
    "one close, n opens": lambda n: "</tool_call>" + "<tool_call>" * n,
    "n opens, one close": lambda n: "<tool_call>" * n + "</tool_call>",
    "n empty calls": lambda n: "<tool_call></tool_call>" * n,
    "n opens inside broken strings": lambda n: '<tool_call>{"a":"' * n,
    "n closes inside one string": lambda n: '<tool_call>{"a":"' + "</tool_call>" * n,
    "n times open, quote, close": lambda n: '<tool_call>{"</tool_call>' * n,
    "n thinking blocks": lambda n: "<think></think>" * n,
    "n escaped quotes": lambda n: '<tool_call>"' + '\\"' * n + "</tool_call>",
    "n brackets": lambda n: "<tool_call>" + "[" * n + "</tool_call>",
    "n times <": lambda n: "<tool_call>" + "<" * n,
}


def main() -> None:
    print(
        f"Python {platform.python_version()}, orjson {orjson.__version__}, {platform.machine()}; CPU time, one thread\n"
    )
    print(f"{'message':22}{'chars':>7}{'calls':>7}{'µs least':>10}{'median':>9}{'floor':>8}")
    for kind in ("no call", "1 call", "2 calls", "thinking, 1 call", "malformed"):
        texts = messages(kind)
        calls = sum(isinstance(call, ToolCall) for text in texts for call in PARSE(text).calls)
        best, median = cost(lambda texts=texts: [PARSE(text) for text in texts])  # type: ignore[misc]
        least, _ = cost(lambda texts=texts: [floor(text) for text in texts])  # type: ignore[misc]
        chars = sum(map(len, texts)) // len(texts)
        unit = 1e6 / len(texts)
        print(f"{kind:22}{chars:7}{calls / len(texts):7.1f}{best * unit:10.2f}{median * unit:9.2f}{least * unit:8.2f}")
    print(f"\n{'degenerate text, ms at n':32}{2000:>9}{8000:>9}{32000:>9}{'growth':>9}")
    for name, make in HOSTILE.items():
        texts = [make(n) for n in (2000, 8000, 32000)]
        taken = [cost(partial(PARSE, text), repeat=5)[0] * 1e3 for text in texts]
        print(f"{name:32}" + "".join(f"{value:9.2f}" for value in taken) + f"{taken[2] / max(taken[1], 1e-3):9.1f}")


if __name__ == "__main__":
    main()
