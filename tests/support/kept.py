"""Episodes to be kept, and the run that keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlenv.messages import Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs.folder import open_run
from rlenv.runs.schema import Facts, Tokens
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import RewardBreakdown, TermResult, Trajectory, Turn

__all__ = ["TOKENS", "episode", "everything", "held_out", "keep"]

TOKENS = Tokens([1, 2, 3], [4, 5, 6, 7], [1, 0, 1, 1], [-0.5, 0.0, -0.25, -1.0], [(0, 1), (2, 4)])


def episode(number: int = 0, *, text: str = "found", reward: float = 1.0, **keys: Any) -> Trajectory:
    """An episode with one call and an answer; episodes of two numbers differ."""
    result = ToolResult("search", f"{text} {number}", seconds=0.5, started=0.25, waited=0.125)
    said = Message("tool", result.text)
    turns = (
        Turn(0, "look", ParsedAction("", calls=(ToolCall("search", {"q": number}),)), (result,), Observation((said,))),
        Turn(1, f"<answer>{number}</answer>", ParsedAction(f"<answer>{number}</answer>")),
    )
    fields: dict[str, Any] = {
        "environment": "toy-v0",
        "split": "train",
        "task_index": number,
        "seed": number,
        "task": {"question": f"question {number}"},
        "messages": (Message("user", f"question {number}"), Message("assistant", "look"), said),
        "turns": turns,
        "answer": str(number),
        "seconds": 1.5,
    }
    ends: dict[str, Any] = {
        "reason": "answer",
        "reward": RewardBreakdown(reward, {"correct": TermResult.valid("correct", value=reward, weight=1.0)}, (0, 1)),
        "success": reward > 0,
    }
    record: Any = {**fields, **ends, **keys}
    return Trajectory.ended(record, terminated=True, **{key: record.pop(key) for key in ends})


def keep(run: Path, count: int, *, first: int = 0, facts: Facts | None = None, **options: Any) -> list[str]:
    """Keeps so many episodes in a run, and returns their ids."""
    writer = RunWriter(run, **options)
    ids = [writer.append(episode(number), facts or Facts(tokens=(TOKENS,))) for number in range(first, first + count)]
    writer.close()
    return ids


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What lies in a folder, by its path in it: when it was changed, and the content of files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def held_out(run: Path, *, step: int | None = None, mode: str | None = None) -> list[Trajectory]:
    """The validation episodes of a training run that count; those of a step and of a mode where these are given."""
    reader = open_run(run)
    return [
        reader.body(row["id"]).trajectory()
        for row in reader.table.to_pylist()
        if row["mode"] != "train" and step in (None, row["step"]) and mode in (None, row["mode"])
    ]
