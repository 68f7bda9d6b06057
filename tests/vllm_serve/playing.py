"""Episodes against a server, through the command line, and what two runs of the same tasks did otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.messages import ToolCall
from rlenv.runs.recorded import recorded as recorded_at
from rlenv.trajectory import Trajectory, Turn
from tests.vllm_serve.serving import MODEL, Server

__all__ = ["Difference", "as_template", "differences", "evaluate", "line"]


def as_template(model: Path) -> str:
    """The override that writes raw text as a model's own template does."""
    return f"dialect={{base: hermes, chat_template: {model / 'chat_template.jinja'}}}"


def line(server: Server, spec: Path, out: Path, *more: str) -> list[str]:
    """The command that plays a spec's tasks greedily."""
    arguments = ["eval", str(spec), "--policy", "openai", "--base-url", server.base_url, "--model", MODEL]
    arguments += ["--temperature", "0", "--seed", "0", "--request-timeout", "600", "-o", str(out), *more]
    return [sys.executable, "-m", "rlenv", *arguments]


def evaluate(
    server: Server, spec: Path, out: Path, *more: str, seconds: float = 1800.0
) -> tuple[list[Trajectory], dict[str, Any]]:
    """The trajectories and the figures of one run of `rlenv eval`, which has to end well."""
    done = subprocess.run(
        line(server, spec, out, *more), capture_output=True, text=True, timeout=seconds, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return recorded_at(out), json.loads((out / "summary.json").read_text())


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs' first turns of one task that are not the same.

    `why`: "words" where the model wrote something else after the same history, "history" where the text differs in
    what the template writes anew, "reading" where the same words were read otherwise, "end" where one went on.
    """

    task: int
    turn: int
    why: str
    text: str
    tools: str


def differences(text: Sequence[Trajectory], tools: Sequence[Trajectory]) -> list[Difference]:
    """Where a run in raw text and one in chat differ, one entry a task; [] where all agree."""
    found = []
    for one, other in zip(text, tools, strict=True):
        assert one.task_index == other.task_index
        was_same = True  # whether the text of all turns so far is the same, letter by letter
        for index in range(max(len(one.turns), len(other.turns))):
            if index >= min(len(one.turns), len(other.turns)):
                found.append(Difference(one.task_index, index, "end", one.reason, other.reason))
                break
            mine, its = one.turns[index], other.turns[index]
            if _read(mine) != _read(its):
                is_same = mine.action.strip() == its.action.strip()
                why = "reading" if is_same else "words" if was_same else "history"
                found.append(Difference(one.task_index, index, why, mine.action, its.action))
                break
            was_same = was_same and mine.action == its.action
    return found


def _read(turn: Turn) -> Any:
    calls = [
        (call.name, dict(call.arguments)) if isinstance(call, ToolCall) else (call.name, "malformed")
        for call in turn.parsed.calls
    ]
    return turn.parsed.content, calls, [result.text for result in turn.results]
