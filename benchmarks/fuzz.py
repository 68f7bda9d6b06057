"""Feeds changed and hostile inputs to what reads from outside, and keeps what breaks a law.

    python benchmarks/fuzz.py [--seconds 60] [--seed 0] [--only parse,spec,sql,mcp,earns,time] [--corpus FOLDER]
        [--growth]

    parse  texts, read by every dialect, strict and lenient: no exception, calls in order, arguments that are JSON
    spec   YAML files, loaded and compiled: a SpecError or an environment, nothing else
    sql    statements, through a sql tool on SQLite and DuckDB and through sql_match: a result or a failure of the
           policy, bounded, and the next statement gets its right rows
    mcp    lines that a server answers a call with: a result or a failure, and the next call is answered
    earns  answers, by every rule and comparator over golds that have nothing to do with each other: what earns for
           some of them is changed on, the more the more, and none earns for more than two

    time   texts of whole calls, parts of them, marks and odd quotes, read by every dialect, strict and lenient, size
           against size: the time grows as the text does (CPU seconds)

and for all of them no more than 0.5 s of CPU time of the thread that asks. The time is divided among the targets. An
input is made from the corpus and from fragments, by cutting, doubling and putting in; one that has a new kind of
outcome is changed further. What breaks a law is made as small as the law stays broken, written to the corpus
(tests/attack/corpus/TARGET/), which tests/attack/test_corpus.py reads each time, and printed; the exit code is 1 then.

With --growth, each dialect, strict and lenient, also reads texts of 100 kB and 1 MB that are made to be slow, of its
own marks in many orders too, and the growth of the cost is printed; nothing is fuzzed where --seconds is 0.

Plain seeded mutation and no library: atheris has to be built with clang and sees no further than Python's own bytecode,
while the code at stake is in C and Rust libraries; hypothesis looks for a counterexample a test, not for as many
kinds of outcome as fit into an hour, and keeps its examples as opaque bytes. Neither would save a line of the targets.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fuzzing.growth import growth, time_fuzz
from benchmarks.fuzzing.targets import TARGETS, Target

__all__ = ["TARGETS", "broken", "changed", "corpus", "main"]

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "attack" / "corpus"
LIMIT_S = 0.5


def corpus(name: str, folder: Path = CORPUS) -> list[str]:
    """The kept inputs of a target."""
    return [path.read_bytes().decode("utf-8", "surrogatepass") for path in sorted((folder / name).glob("*.txt"))]


def broken(target: Target, text: str, which: int | None = None) -> tuple[str, Hashable]:
    """What law `text` breaks ("" where it breaks none), and its kind of outcome."""
    began = time.thread_time()
    try:
        kind = target.run(text, which)
    except AssertionError as error:
        return str(error)[:60].partition(";")[0], None
    except Exception as error:  # whatever comes out is what is looked for
        return f"{type(error).__name__} is raised", None
    if time.thread_time() - began > LIMIT_S:
        began = time.thread_time()  # once more before it counts
        target.run(text, which)
        if time.thread_time() - began > LIMIT_S:
            return f"law: no more than {LIMIT_S} s of CPU time", None
    return "", kind


def smallest(target: Target, text: str, law: str, which: int | None) -> str:
    """The smallest text found that breaks the same law, by leaving parts out."""
    size, end = max(len(text) // 2, 1), time.monotonic() + 20
    while size and time.monotonic() < end:
        at = 0
        while at < len(text) and time.monotonic() < end:
            shorter = text[:at] + text[at + size :]
            if broken(target, shorter, which)[0] == law:
                text = shorter
            else:
                at += size
        size //= 2
    return text


def changed(rng: random.Random, text: str, parts: Sequence[str]) -> str:
    """A text with a part cut out, doubled or put in."""
    first, last = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    if rng.random() < 0.5:
        last = min(last, first + 12)
    middle = rng.choice(("", text[first:last] * 2, rng.choice(parts), rng.choice(parts) + text[first:last]))
    return (text[:first] + middle + text[last:])[:4_000]


def fuzz(name: str, limit_s: float, seed: int, folder: Path) -> int:
    """Fuzzes one target; how many new laws were broken."""
    target = TARGETS[name]()
    rng = random.Random(f"{name}/{seed}")
    kept = [*corpus(name, folder), *target.seeds]
    kinds: set[Hashable] = set()
    found: dict[str, str] = {}
    count, end = 0, time.monotonic() + limit_s
    try:
        while time.monotonic() < end:
            pick = rng.random()
            if pick < 0.6:
                text = changed(rng, rng.choice(kept), target.parts)
            elif pick < 0.95:
                text = "".join(rng.choices(target.parts, k=rng.randint(1, 16)))[:4_000]
            else:
                text = "".join(chr(rng.randrange(0x11_0000)) for _ in range(rng.randint(0, 60)))
            law, kind = broken(target, text, count)
            if law and law not in found:
                found[law] = smallest(target, text, law, count)
            elif not law and kind not in kinds and len(kept) < 20_000:
                kinds.add(kind)
                kept += [text] * max(getattr(target, "height", 1), 1)
            count += 1
    finally:
        target.close()
    print(f"{name:6} {count:>9} inputs, {len(kinds):>6} kinds of outcome, {len(found)} laws broken", flush=True)
    for law, text in found.items():
        path = folder / name / f"{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        print(f"       {law}: {text[:200]!r}\n       kept as {path}", flush=True)
    return len(found)


def main(given: Sequence[str] | None = None) -> int:
    """Fuzzes; 1 where a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join((*TARGETS, "time")))
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args(given)
    logging.disable(logging.CRITICAL)  # failures are what is looked for, not news
    names = [name for name in arguments.only.split(",") if name] if arguments.seconds else []
    laws: Counter[str] = Counter()
    for name in names:
        limit_s = arguments.seconds / len(names)
        is_time = name == "time"
        laws[name] = (
            time_fuzz(limit_s, arguments.seed) if is_time else fuzz(name, limit_s, arguments.seed, arguments.corpus)
        )
    if arguments.growth:
        growth()
    return 1 if laws.total() else 0


if __name__ == "__main__":
    sys.exit(main())
