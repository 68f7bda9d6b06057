"""Reads random and hostile texts and prints what came of them. Run: python benchmarks/fuzz_parse.py [count] [seed]"""

from __future__ import annotations

import collections
import random
import sys
import time

from rlenv import dialects
from rlenv.messages import ToolCall

OK = '{"name": "add", "arguments": {"a": 1}}'
PIECES = (
    *(f"<tool_call>{OK}</tool_call>",) * 4,
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "<|im_end|>", OK, OK[:-1], OK[1:]),
    *(
        '"',
        "'",
        "\\",
        "\\u",
        "\\ud800",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\n",
        "\r",
        "\t",
        " ",
        "```json\n",
        "null",
        "NaN",
    ),
    *("\x00", "\x1f", "\x7f", "\u2028", "\ud800", "\udfff", "\ufeff", "é", "世界", "🎉", "-", "0", "1e999", "9" * 400),
    *('{"name": "x", "arguments": ', '"arguments"', '"name"', "true", "Infinity", "[" * 300, "</tool_call", "<tool"),
)


def main(count: int = 100_000, seed: int = 0) -> None:
    rng = random.Random(seed)
    readers = [
        dialects.get("hermes"),
        dialects.get("hermes", thinking_open=True),
        dialects.get("hermes", thinking_open=False, lenient=("arguments_as_text",)),
    ]
    seen: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for number in range(count):
        if number % 4:
            text = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
        else:
            text = "".join(chr(rng.randrange(0x11_0000)) for _ in range(rng.randint(0, 60)))
            text = text.join(("<tool_call>", "</tool_call>")) if number % 8 else text
        for reader in readers:
            action = reader.parse(text)
            end = 0
            for call in action.calls:
                if not end <= call.start < call.end <= len(text):
                    raise SystemExit(f"text {number} of seed {seed}: a call at {call.start} to {call.end}: {text!r}")
                end = call.end
                seen["calls" if isinstance(call, ToolCall) else "malformed calls"] += 1
            seen["cut"] += action.is_cut
            seen["thinking"] += bool(action.thinking)
    taken = time.perf_counter() - start
    found = ", ".join(f"{value} {name}" for name, value in sorted(seen.items()))
    print(f"{count} texts (seed {seed}) read by {len(readers)} readers in {taken:.1f} s, no exception: {found}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
