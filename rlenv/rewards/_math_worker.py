"""The process in which expressions are read and compared: one JSON line in, one out.

Started as `python -m rlenv.rewards._math_worker`; see `rlenv.rewards.mathematics`. It runs apart because computer
algebra on what a policy wrote can take any time and memory, and only a process can be ended.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from typing import Any

_MEMORY_BYTES = 2 << 30


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this platform; the time limit still holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _compare(mine: str, golds: list[str]) -> dict[str, Any]:
    library: Any = importlib.import_module("math_verify")  # it has no types
    parse, verify = library.parse, library.verify

    def read(text: str) -> list[Any]:
        # One expression as a whole: a text with several would be right as soon as one of them is.
        expression = text.strip().removeprefix("$").removesuffix("$")
        if "$" in expression or "\\boxed" in expression:
            return []
        return list(parse(f"${expression}$", parsing_timeout=None, fallback_mode="no_fallback"))

    accepted = [read(gold) for gold in golds]
    for gold, found in zip(golds, accepted, strict=True):
        if not found:
            return {"bad_gold": gold}
    answer = read(mine)
    if not answer:
        return {"equal": False, "unreadable": True}
    return {"equal": any(verify(gold, answer, timeout_seconds=None) for gold in accepted)}


def main() -> None:
    """Answers until its input ends."""
    _limit_memory()
    logging.disable(logging.CRITICAL)
    out = sys.stdout
    sys.stdout = sys.stderr  # nothing that a library writes can be taken for an answer
    importlib.import_module("math_verify")  # loaded before the first question's time runs

    out.write('{"ready": true}\n')
    out.flush()
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = _compare(question["mine"], question["golds"])
        except (MemoryError, RecursionError) as error:
            answer = {"equal": False, "unreadable": True, "error": type(error).__name__}
        except Exception as error:  # a library of this kind may raise anything on a hostile text
            answer = {"equal": False, "unreadable": True, "error": f"{type(error).__name__}: {error}"[:200]}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
