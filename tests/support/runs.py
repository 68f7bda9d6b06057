"""Recorded episodes that tests read: in memory, and kept in a folder by the writer that runs use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rlenv.errors import UsageError
from rlenv.messages import Image, Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs.columns import flatten_lists, late_schema, row_schema, rows_table
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.files import Body
from rlenv.runs.schema import CALLS, LATE, ROW, TERMS, Facts
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import Failure, RewardBreakdown, TermResult, Trajectory, Turn
from rlenv.web.app import application
from rlenv.web.guard import Guard

_T = TypeVar("_T")
Call = tuple[str, str, float]
TEXTS = ("id", "lock", "environment", "split", "group", "mode", "reason", "failure", "failure_message", "title")


class Rows:
    """Rows in memory, as a run gives them."""

    run = Path("memory")
    version = 1

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.table = rows_table(rows, row_schema(is_nested=False))
        for name in LATE:
            if name not in self.table.column_names:
                kind = late_schema().field(name).type
                self.table = self.table.append_column(name, pa.array([row.get(name) for row in rows], kind))

    def refresh(self) -> bool:
        return False

    def nested(self, column: str, ids: Sequence[str] | None = None) -> pa.Table:
        kind = row_schema().field(column).type.value_type
        schema = pa.schema([pa.field("id", pa.string()), *(kind.field(index) for index in range(kind.num_fields))])
        wanted = [row for row in self._rows if ids is None or row["id"] in ids]
        return rows_table([{"id": row["id"], **one} for row in wanted for one in row[column]], schema)

    def entries(self, column: str, fields: Sequence[str]) -> pa.Table:
        return flatten_lists(rows_table(self._rows, row_schema()), column).select(["row", *fields])

    def body(self, id: str) -> Body:
        raise UsageError(f"the body of '{id}' was not kept")

    def records(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
        return iter(())


def row(number: int, *, calls: Sequence[Call] = (), terms: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    """A row with id `e-NUMBER`; terms are values, None for an invalid one."""
    held: dict[str, Any] = {name: "" if name in TEXTS else None for name in ROW}
    held |= {"id": f"e-{number}", "task": number, "seed": number, "split": "train", "mode": "train", "step": 0}
    held |= {"sample": 0, "turns": 1, "calls_n": len(calls), "tokens": 0, "reward": 1.0, "success": True}
    held |= {"errors": sum(outcome != "ok" for _, outcome, _ in calls), "started": 0.0, "has_body": False}
    states = {
        name: {"name": name, "status": "invalid" if value is None else "valid", "value": value, "weight": 1.0}
        for name, value in (terms or {}).items()
    }
    held["terms"] = [
        {**dict.fromkeys(TERMS), "error": "down" if one["value"] is None else "", **one} for one in states.values()
    ]
    held["calls"] = [
        {
            **dict.fromkeys(CALLS),
            "turn": 0,
            "index": at,
            "tool": tool,
            "outcome": outcome,
            "seconds": seconds,
            "waited": 0.0,
        }
        for at, (tool, outcome, seconds) in enumerate(calls)
    ]
    return {**held, **fields}


def snapshot(*rows: Mapping[str, Any]) -> Snapshot:
    """The snapshot of some rows."""
    return Snapshot(Rows(rows))


def played(
    *,
    task: int = 0,
    seed: int = 0,
    split: str = "train",
    reward: float | None = 1.0,
    success: bool | None = True,
    calls: Sequence[Call] = (("search", "ok", 0.1),),
    question: str = "What is the capital?",
    result: str = "Paris is the capital.",
    images: Sequence[Image] = (),
    evidence: str = "Paris",
    action: str = "<answer>Paris</answer>",
    details: Mapping[str, Any] | None = None,
) -> Trajectory:
    """An episode of two turns: calls, then an answer."""
    results = tuple(
        ToolResult(name, result, outcome, seconds=seconds, images=tuple(images))  # type: ignore[arg-type]
        for name, outcome, seconds in calls
    )
    shown = Observation(tuple(Message("tool", one.text, images=one.images) for one in results), "", results)
    parsed = ParsedAction("", "", tuple(ToolCall(one.name, {"query": "capital"}) for one in results))
    turns = (Turn(0, "call", parsed, results, shown), Turn(1, action, ParsedAction(action)))
    messages = (Message("system", "Use the tools."), Message("user", question))
    term = (
        TermResult.invalid("correct", error="the judge is down", weight=1.0)
        if reward is None
        else TermResult.valid("correct", value=reward, weight=1.0, evidence=evidence, details=details or {})
    )
    whole = Trajectory(
        "toy", split, task, seed, {"question": question}, messages, turns, "Paris", True, False, "answer",
        RewardBreakdown(reward, {"correct": term}, (0.0, reward or 0.0)), success, None, 0.5,
    )  # fmt: skip
    if reward is None:
        failure = Failure("reward", "the judge is down")
        return replace(whole, terminated=False, truncated=True, reason="reward", success=None, failure=failure)
    return whole


def kept(folder: Path, episodes: Sequence[Trajectory | tuple[Trajectory, Facts]], **info: Any) -> list[str]:
    """A run of these episodes in a folder, sealed, with a run.json; the ids of the episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(folder)
    pairs = [one if isinstance(one, tuple) else (one, Facts()) for one in episodes]
    ids = [writer.append(trajectory, facts) for trajectory, facts in pairs]
    writer.close()
    (folder / "run.json").write_text(json.dumps({"kind": "eval", "state": "ended", **info}))
    return ids


def visited(
    work: Callable[[TestClient[Any, Any], Guard], Awaitable[_T]],
    *roots: Path,
    enter: bool = True,
    hosts: Sequence[str] = (),
    **options: Any,
) -> _T:
    """What `work` returns of a viewer of some folders that listens on this machine; with its cookie where it enters."""
    guard = Guard(hosts=tuple(hosts))

    async def run() -> _T:
        async with TestClient(TestServer(application(roots, guard=guard, **options))) as client:
            if enter:
                answer = await client.get(f"/?token={guard.token}", allow_redirects=False)
                assert answer.status == 303
            return await work(client, guard)

    return asyncio.run(run())


async def raw(client: TestClient[Any, Any], path: str) -> str:
    """The whole answer to a GET whose path goes over the wire as it is written, with the client's cookie."""
    cookies = "; ".join(f"{one.key}={one.value}" for one in client.session.cookie_jar)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {client.host}\r\nCookie: {cookies}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


def asked(path: str, *roots: Path, status: int = 200, **options: Any) -> Any:
    """The JSON that a viewer of some folders answers to a GET."""

    async def work(client: TestClient[Any, Any], guard: Guard) -> Any:
        answer = await client.get(path)
        assert answer.status == status, await answer.text()
        return await answer.json()

    return visited(work, *roots, **options)


__all__ = ["Rows", "asked", "kept", "played", "row", "snapshot", "visited", "web"]
