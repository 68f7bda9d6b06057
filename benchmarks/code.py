"""Sandboxed executions and hidden tests a second, one after another and several at once, beside a bare fork.

    python benchmarks/code.py [--seconds 3]

The mark is 500 executions a second. A hidden test takes two processes, the code's and its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlenv.concurrency.scope import Scope
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.rewards.base import Term, TermCompileContext
from rlenv.rewards.tests import KIND as TESTS
from rlenv.rewards.tests import TestsSpec
from rlenv.testing.rewards import reward_context
from rlenv.testing.tools import kept
from rlenv.tools.base import Tool
from rlenv.tools.code import KIND, CodeSpec

CODE = "total = 0\nfor n in range(100):\n    total += n * n\ntotal"
MARK = 500
ANSWER = "def f(x):\n    return x * x\n\nif __name__ == '__main__':\n    print(f(int(input())))"
FORMS: dict[str, dict[str, Any]] = {
    "calls": {"entry": "f", "calls": [{"args": [n], "expected": n * n} for n in range(10)]},
    "stdin": {"stdin": [{"input": str(n), "output": str(n * n)} for n in range(10)]},
    "programs": {"programs": [f"assert f({n}) == {n * n}" for n in range(10)]},
}

FORKS = """
import os, time
started, count = time.perf_counter(), 300
for _ in range(count):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print((time.perf_counter() - started) / count * 1e6)
"""


def compiled(sandbox: str, *, session: bool = False) -> Tool:
    spec = CodeSpec.model_validate({"kind": "code", "sandbox": sandbox, "session": session})
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path()))
    assert isinstance(tool, Tool)
    return tool


async def executions_a_second(tool: Tool, *, at_once: int, seconds: float) -> float:
    """Whole calls of the tool, checked, for about `seconds`."""
    async with kept() as make:
        context = make()
        await asyncio.gather(*[tool.run({"code": CODE}, context) for _ in range(8)])
        count = 0
        started = time.perf_counter()

        async def work() -> None:
            nonlocal count
            while time.perf_counter() - started < seconds:
                output = await tool.run({"code": CODE}, context)
                assert output.text == "328350", output
                count += 1

        await asyncio.gather(*[work() for _ in range(at_once)])
        return count / (time.perf_counter() - started)


async def tests_a_second(form: str, *, at_once: int, seconds: float) -> float:
    """Hidden tests of one right answer after another, each with ten, for about `seconds`."""
    keys = {"workers": at_once, **FORMS[form]}
    spec = TestsSpec.model_validate({"kind": "tests", "block": "none", **keys})
    term = TESTS.factory("tests", spec, TermCompileContext(base=Path()))
    assert isinstance(term, Term)
    measure = term.measure_async
    assert measure is not None
    scope, count = Scope(), 0
    context = replace(reward_context(answer=ANSWER), shared=lambda: scope)
    try:
        await measure(context)
        started = time.perf_counter()

        async def work() -> None:
            nonlocal count
            while time.perf_counter() - started < seconds:
                measured = await measure(context)
                assert measured.value == 1, measured
                count += 10

        await asyncio.gather(*[work() for _ in range(at_once)])
        return count / (time.perf_counter() - started)
    finally:
        await scope.aclose()


def machine() -> str:
    try:
        monty = version("pydantic-monty")
    except PackageNotFoundError:
        monty = "missing"
    try:
        bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except OSError:
        bwrap = "bubblewrap missing"
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, pydantic-monty {monty}, {bwrap}; "
        f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, load {load:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    args = parser.parse_args()
    print(machine())
    forks = subprocess.run([sys.executable, "-I", "-S", "-c", FORKS], capture_output=True, text=True, check=True)
    print(f"a bare fork of an empty Python: {float(forks.stdout):.0f} µs")
    print(f"{'sandbox':24} {'1 at once':>12} {'4 at once':>12}   executions a second (mark: {MARK})")
    for name, sandbox, session in (
        ("monty", "monty", False),
        ("monty, session", "monty", True),
        ("bubblewrap", "bubblewrap", False),
    ):
        try:
            tool = compiled(sandbox, session=session)
        except UsageError as error:
            print(f"{name:24} {error}")
            continue
        figures = [
            asyncio.run(executions_a_second(tool, at_once=count, seconds=args.seconds))
            for count in ((1,) if session else (1, 4))
        ]
        print(f"{name:24} " + " ".join(f"{figure:12.0f}" for figure in figures))
    print(f"{'hidden tests':24} {'1 at once':>12} {'4 at once':>12}   tests a second")
    for form in FORMS:
        try:
            figures = [asyncio.run(tests_a_second(form, at_once=n, seconds=args.seconds)) for n in (1, 4)]
        except UsageError as error:
            print(f"{form:24} {error}")
            continue
        print(f"{form:24} " + " ".join(f"{figure:12.0f}" for figure in figures))


if __name__ == "__main__":
    main()
