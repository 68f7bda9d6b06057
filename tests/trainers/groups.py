"""Plays the samples of one prompt through the agent loop as veRL does: all tasks created at once, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.trainers.loops import Script, Server, build, configuration, own_process, sample

STUCK = '<tool_call>\n{"name": "stuck", "arguments": {}}\n</tool_call>'
BREAKS = '<tool_call>\n{"name": "breaks", "arguments": {}}\n</tool_call>'
TOOLS = '''
import asyncio

from rlenv.errors import EpisodeError

cancelled = []


async def stuck() -> str:
    """Never ends."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(1)
        raise
    return ""


def breaks() -> str:
    """Loses its backend."""
    raise EpisodeError("the backend is gone", reason="resource")


def refuses(trajectories):
    """Cannot compare."""
    raise ValueError("no")
'''
SPEC = """
rlenv: 1
name: toy
tasks:
  train:
    rows: [{question: "What is 6 * 7?", answer: 42}]
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
  stuck: {kind: python, function: "tools.py:stuck", timeout_s: 60}
  breaks: {kind: python, function: "tools.py:breaks"}
limits: {turns: 3}
rewards:
  correct: {kind: rule, rule: numeric_match}
  best: {kind: group, of: correct, by: rank, weight: 0.5}
success: correct >= 1
"""
ALONE = SPEC.replace("  best: {kind: group, of: correct, by: rank, weight: 0.5}\n", "")
RIGHT, WRONG = "<answer>42</answer>", "<answer>41</answer>"


def play_group(
    folder: Path,
    tokenizer: Any,
    scripts: Sequence[Script],
    *,
    spec: str,
    files: Mapping[str, str] | None = None,
    validation: bool = False,
    servers: list[Server] | None = None,
    on_start: Callable[[list[asyncio.Task[Any]]], Awaitable[None]] | None = None,
    **keys: Any,
) -> list[Any]:
    """One output, or the exception that veRL would see, for each script.

    Args:
        folder: where the spec and its files are written, and records below it.
        tokenizer: the policy's.
        scripts: one a sample.
        spec: the environment's YAML.
        files: further files beside it.
        validation: play validation rows.
        servers: filled with the server of each sample.
        on_start: awaited once all samples run.
        keys: of the agent loop's entry, or the `process` that the samples share.
    """
    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    config = configuration(response=160, n=len(scripts))
    keys = {"spec": str(folder / "spec.yaml"), "record_dir": str(folder / "records"), "process": own_process(), **keys}

    async def played(server: Server) -> Any:
        return await sample(build(config, server, tokenizer, **keys), validation=validation, uid="u1")

    async def group() -> list[Any]:
        made = [Server(tokenizer, script) for script in scripts]
        if servers is not None:
            servers.extend(made)
        tasks = [asyncio.create_task(played(server)) for server in made]
        if on_start is not None:
            await on_start(tasks)
        async with asyncio.timeout(30):
            return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(group())


def info(output: Any) -> dict[str, Any]:
    """The figures of a sample that veRL sees."""
    found: dict[str, Any] = output.extra_fields["reward_extra_info"]
    return found


def figures(output: Any) -> dict[str, Any]:
    """The figures of a sample that the sampler counts."""
    found: dict[str, Any] = output.extra_fields["rlenv"]
    return found
