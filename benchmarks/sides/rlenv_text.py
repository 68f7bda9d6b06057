"""rlenv, text in and text out."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import rlenv
from benchmarks import workload

SPEC = """\
rlenv: 1
name: bench
tasks:
  train: {{rows: [{rows}]}}
prompt: {{system: "{system}", user: "{{{{ task.question }}}}"}}
tools:
{tools}
calls: {{timeout_s: {timeout}, concurrency: 1024}}
limits: {{turns: 10, tool_calls: 20}}
rewards:
  correct: {{kind: rule, rule: exact_match}}
"""
TOOL = '  {name}: {{kind: python, function: "tools.py:calculator", run_in: {run_in}}}'
MODULE = """\
import sys
sys.path.insert(0, {folder!r})
from benchmarks import workload
calculator = workload.tool({mode!r})
"""


def environment(mode: str, tools: int) -> rlenv.Environment:
    """The compiled environment; quick functions run on the loop, blocking ones in threads, as an author would say."""
    folder = Path(tempfile.mkdtemp(prefix="rlenv-bench-"))
    rows = ", ".join(
        f'{{question: "{workload.question(i)}", answer: "{workload.answer(i)}"}}' for i in range(workload.VARIANTS)
    )
    run_in = "thread" if mode in ("sync50", "hangsync") else "loop"
    names = ["calculator", *(f"tool_{k}" for k in range(tools - 1))]
    entries = "\n".join(TOOL.format(name=name, run_in=run_in) for name in names)
    text = SPEC.format(rows=rows, system=workload.SYSTEM, tools=entries, timeout=workload.TIMEOUT_S)
    (folder / "spec.yaml").write_text(text)
    here = str(Path(__file__).resolve().parents[2])
    (folder / "tools.py").write_text(MODULE.format(folder=here, mode=mode))
    return rlenv.load(folder / "spec.yaml")


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""
    made = environment(mode, tools)

    async def episode(index: int) -> float:
        texts = workload.TEXTS[index % workload.VARIANTS]
        async with made.start(task=index % workload.VARIANTS) as running:
            for text in texts:
                await asyncio.sleep(0)
                step = await running.step(text)
                if step.is_last:
                    break
            total = running.trajectory.reward.total
            return -1.0 if total is None else total

    return episode
