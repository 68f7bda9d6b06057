"""Reads random and hostile texts with every dialect, strict and lenient, and prints what came of them.

Run: python benchmarks/fuzz_parse.py [count] [seed]; a count of 0 measures growth only. Each text is read by one
dialect in turn. Texts are made of whole calls, of fragments of the family's own marks and of signs that are hard to
read; a text that gives a new kind of outcome for its dialect is kept and changed further. At the end each dialect
reads texts of 100 kB and 1 MB that are made to be slow, and the growth of the cost is printed.
"""

from __future__ import annotations

import collections
import random
import sys
import time

from rlenv import dialects
from rlenv.dialects.built_in import row_of
from rlenv.dialects.families import ROWS
from rlenv.messages import ToolCall
from rlenv.testing.dialects import check_reading, hostile_texts, pieces, seconds

SMALL, LARGE = 100_000, 1_000_000


def changed(rng: random.Random, text: str, parts: tuple[str, ...]) -> str:
    """A text with a part cut out, doubled or put in."""
    first, last = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    middle = rng.choice(("", text[first:last] * 2, rng.choice(parts), rng.choice(parts) + text[first:last]))
    return (text[:first] + middle + text[last:])[:4000]


def outcome(action: object, text: str) -> tuple[object, ...]:
    """What kind of reading this was: new kinds are worth more texts like it."""
    calls = getattr(action, "calls", ())
    kinds = tuple(type(call).__name__ if isinstance(call, ToolCall) else call.reason[:24] for call in calls[:4])
    return (kinds, getattr(action, "is_cut", False), bool(getattr(action, "thinking", "")), len(text) > 200)


def fuzz(count: int, seed: int) -> None:
    rng = random.Random(seed)
    readers = [dialects.get(name, lenient=lenient) for name in ROWS for lenient in {(), row_of(name).offers}]
    readers += [dialects.get("hermes", thinking_open=True), dialects.get("hermes", thinking_open=False)]
    parts = [pieces(reader) for reader in readers]
    kept: list[list[str]] = [[] for _ in readers]
    kinds: list[set[object]] = [set() for _ in readers]
    seen: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    for number in range(count):
        which = number % len(readers)
        reader = readers[which]
        pick = rng.random()
        if pick < 0.5 and kept[which]:
            text = changed(rng, rng.choice(kept[which]), parts[which])
        elif pick < 0.95:
            text = "".join(rng.choices(parts[which], k=rng.randint(1, 16)))
        else:
            text = "".join(chr(rng.randrange(0x11_0000)) for _ in range(rng.randint(0, 60)))
        action = check_reading(reader, text)
        kind = outcome(action, text)
        if kind not in kinds[which] and len(kept[which]) < 500:
            kinds[which].add(kind)
            kept[which].append(text)
        for call in action.calls:
            seen["calls" if isinstance(call, ToolCall) else "malformed calls"] += 1
        seen["cut"] += action.is_cut
        seen["thinking"] += bool(action.thinking)
        seen["lenient"] += bool(action.leniencies)
    taken = time.perf_counter() - start
    found = ", ".join(f"{value} {name}" for name, value in sorted(seen.items()))
    print(f"{count} texts (seed {seed}) read by {len(readers)} readers in {taken:.0f} s, no law broken: {found};")
    print(f"{sum(map(len, kinds))} kinds of outcome", flush=True)


def growth() -> None:
    worst = []
    for name in ROWS:
        for lenient in (row_of(name).offers,):  # all that the family has: it looks for more than a strict reading
            dialect = dialects.get(name, lenient=lenient)
            large = hostile_texts(dialect, LARGE)
            for kind, text in hostile_texts(dialect, SMALL).items():
                low, high = seconds(dialect, text, repeat=3), seconds(dialect, large[kind], repeat=1)
                if high > 11 * low:  # once more before it counts: other processes disturb single measurements
                    low = min(low, seconds(dialect, text, repeat=5))
                    high = min(high, seconds(dialect, large[kind], repeat=3))
                # Below a millisecond the ratio measures the clock.
                if high > 0.01:
                    worst.append((high / (10 * low), high, f"{name}{' lenient' if lenient else ''}: {kind}"))
        if worst:
            print(f"{name}: worst so far {max(worst)[0]:.2f}", file=sys.stderr, flush=True)
    worst.sort(reverse=True)
    print(f"\ncost at 1 MB over ten times the cost at 100 kB; {len(worst)} pairs above 10 ms at 1 MB")
    for ratio, high, label in worst[:12]:
        print(f"{ratio:7.2f} {high * 1e3:9.1f} ms  {label}")
    print(f"above 1.2: {sum(ratio > 1.2 for ratio, _, _ in worst)}")


def main(count: int = 100_000, seed: int = 0) -> None:
    if count:
        fuzz(count, seed)
    growth()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
