"""How fast `rlenv view` is on large runs, as a browser that asks for them meets it.

    python benchmarks/view.py                       20,000 episodes of about 100 kB each, 1,000,000 rows without bodies
    python benchmarks/view.py --episodes 2000 --rows 100000 --keep /tmp/runs

Makes two runs: one whose episodes have bodies and tokens, written by the writer that runs use, and one of rows alone in
packed parts. For each it starts the server as a process of its own and prints a table: seconds from the start of the
process to the first page of rows, what other questions take, and the most memory that the server held.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa

from rlenv.messages import Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs.columns import row_schema, rows_table
from rlenv.runs.parts import part_of, write_part
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts, Tokens, row_of
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import Failure, RewardBreakdown, TermResult, Trajectory, Turn

TOOLS = ("search", "calculator", "sql", "python", "fetch")
SAMPLES, BATCH, STARTS = 8, 128, 5


class Texts:
    """Text that compresses as text does: pieces of Python's own library."""

    def __init__(self) -> None:
        found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        self._whole = "".join(path.read_text(encoding="utf-8", errors="replace") for path in found)
        self._random = random.Random(7)

    def cut(self, low: int, high: int) -> str:
        length = self._random.randint(low, high)
        start = self._random.randrange(len(self._whole) - length)
        return self._whole[start : start + length]


def episode(number: int, texts: Texts, chance: random.Random, *, scale: float) -> Trajectory:
    """An episode of two to six turns; `scale` 1 is about 48 kB as JSON."""
    step, task = number // BATCH, number // SAMPLES % 500
    messages = [Message("system", texts.cut(2500, 2500)), Message("user", texts.cut(600, 600))]
    turns = []
    count = chance.choice((2, 3, 4, 4, 5, 6))
    for index in range(count):
        turn = _turn(index, texts, chance, is_last=index == count - 1, scale=scale)
        turns.append(turn)
        messages.append(Message("assistant", turn.action))
        messages += turn.observation.messages if turn.observation else ()
    is_right, form, is_down = chance.random() < min(0.9, 0.1 + step / 200), chance.random(), chance.random() < 0.01
    correct = (
        TermResult.invalid("correct", error="judge is down", weight=1.0)
        if is_down
        else TermResult.valid("correct", value=float(is_right), weight=1.0, evidence=texts.cut(200, 200))
    )
    terms = {"correct": correct, "format": TermResult.valid("format", value=form, weight=0.1)}
    total = None if is_down else is_right + 0.1 * form
    return Trajectory(
        environment="research-v1", split="train", task_index=task, seed=number,
        task={"question": messages[1].content}, messages=tuple(messages), turns=tuple(turns), answer="42",
        terminated=not is_down, truncated=is_down, reason="reward" if is_down else "answer",
        reward=RewardBreakdown(total, terms, (0.0,) * len(turns)), success=None if is_down else is_right,
        failure=Failure("reward", "judge is down") if is_down else None, seconds=chance.expovariate(0.5),
    )  # fmt: skip


def _turn(index: int, texts: Texts, chance: random.Random, *, is_last: bool, scale: float) -> Turn:
    thinking = texts.cut(int(500 * scale), int(1800 * scale) + 1)
    if is_last:
        action = f"<think>{thinking}</think>\n<answer>42</answer>"
        return Turn(index, action, ParsedAction("<answer>42</answer>", thinking))
    calls, results = [], []
    for _ in range(chance.choice((1, 1, 2, 3))):
        name, is_late = chance.choice(TOOLS), chance.random() < 0.05
        calls.append(ToolCall(name, {"query": texts.cut(80, 80), "k": chance.randint(1, 9)}))
        text = "Error: timed out after 5 s" if is_late else texts.cut(int(900 * scale), int(6000 * scale) + 1)
        outcome = "timeout" if is_late else "ok"
        results.append(ToolResult(name, text, outcome, seconds=chance.expovariate(4)))  # type: ignore[arg-type]
    said = "\n".join(json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
    shown = Observation(tuple(Message("tool", one.text) for one in results), "", tuple(results))
    parsed = ParsedAction("", thinking, tuple(calls))
    return Turn(index, f"<think>{thinking}</think>\n{said}", parsed, tuple(results), shown)


def write_episodes(run: Path, count: int) -> None:
    """A run with bodies and tokens, as a trainer writes it."""
    texts, chance, ids = Texts(), random.Random(7), np.random.default_rng(7)
    run.mkdir(parents=True)
    writer = RunWriter(run)
    for number in range(count):
        trajectory = episode(number, texts, chance, scale=1.0)
        length = sum(len(message.content) for message in trajectory.messages) // 4
        row = array.array("i", ids.integers(0, 151_000, length).tolist())
        mask = bytearray(length // 3) + bytearray(b"\1") * (length - length // 3)
        logprobs = array.array("f", ids.random(length, dtype=np.float32))
        tokens = Tokens(row[:200], row, mask, logprobs, [(length // 3, length)])
        facts = Facts(number // BATCH, number % SAMPLES, "train", str(number // SAMPLES % 500), tokens=(tokens,))
        writer.append(trajectory, facts)
    writer.close()


def write_rows(run: Path, count: int, *, part: int = 50_000) -> None:
    """A run of rows alone, in packed parts: what stays of a long training once its bodies are gone."""
    texts, chance = Texts(), random.Random(7)
    few = [
        {
            **row_of(
                episode(number, texts, chance, scale=0.01),
                Facts(0, number % SAMPLES, "train"), id="", attempt=0, lock="",
            ),
            "has_body": False,
        }
        for number in range(5_000)
    ]  # fmt: skip
    (run / "journal").mkdir(parents=True)
    (run / "episodes").mkdir()
    base = rows_table(few, row_schema())
    for start in range(0, count, part):
        size = min(part, count - start)
        table = base.take(np.arange(size) % len(few))
        numbers = np.arange(start, start + size)
        segment = f"bench-1-{start // part:05d}"
        for name, values in (
            ("id", [f"{segment}-{one}" for one in range(size)]),
            ("step", numbers // BATCH),
            ("group", [str(one) for one in numbers // SAMPLES % 500]),
        ):
            at = table.column_names.index(name)
            table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
        write_part(table, part_of(run, "episodes", segment))


class Viewer:
    """`rlenv view` as a process, asked as its page asks it."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "rlenv", "view", str(run), "--port", "0", "--no-open"]
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        where = urlsplit(self.process.stdout.readline().strip())
        self._connection = HTTPConnection(where.hostname or "", where.port or 0, timeout=120)
        self._connection.request("GET", f"{where.path}?{where.query}")
        entered = self._connection.getresponse()
        entered.read()
        self._cookie = (entered.getheader("Set-Cookie") or "").partition(";")[0]
        self.key = where.path.rpartition("/")[2]

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (path, answer.status, body[:300])
        return body

    def of_run(self, path: str) -> Any:
        return json.loads(self.get(f"/api/runs/{self.key}/{path}"))

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time so far, of all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def most_megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM"))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measured(run: Path, *, has_bodies: bool) -> Iterator[tuple[str, str]]:
    starts = []
    for _ in range(STARTS):
        viewer = Viewer(run)
        total = viewer.of_run("episodes?sort=-step&limit=100")["total"]
        starts.append((time.perf_counter() - viewer.begun, viewer.cpu_s))
        viewer.close()
    walls, cpus = zip(*sorted(starts), strict=True)
    yield (
        f"first 100 rows, from process start: best and worst of {STARTS}, and processor time",
        f"{walls[0]:.2f} s, {walls[-1]:.2f} s, {statistics.median(cpus):.2f} s",
    )
    viewer = Viewer(run)
    try:
        for name, path in (
            ("rows in the middle", f"episodes?sort=-step&offset={total // 2}&limit=100"),
            ("sort by reward", "episodes?sort=-reward&limit=100"),
            ("filter by column", "episodes?q=success:false%20errors>0&limit=100"),
            ("filter by tool and term", f"episodes?q={quote('tool:search term.format<0.5')}&limit=100"),
            ("facets", "facets"),
            ("series", "series"),
            ("series, asked again", "series"),
            ("tools", "tools"),
            ("rewards", "rewards"),
        ):
            yield name, _timed(lambda path=path: viewer.of_run(path))  # type: ignore[misc]
        yield "list of runs", _timed(lambda: viewer.get("/api/runs"))
        if has_bodies:
            yield from _bodies(viewer, run)
        yield "most memory of the server", f"{viewer.most_megabytes:.0f} MB"
    finally:
        viewer.close()


def _bodies(viewer: Viewer, run: Path) -> Iterator[tuple[str, str]]:
    ids = RunReader(run).table["id"].to_pylist()
    chosen = random.Random(1).sample(ids, min(100, len(ids)))
    for name, path in (("one episode", "e/{}"), ("its tokens", "e/{}/tokens")):
        took = []
        for id in chosen:
            begun = time.perf_counter()
            viewer.of_run(path.format(id))
            took.append(time.perf_counter() - begun)
        yield name, f"{statistics.median(took) * 1e3:.0f} ms, at most {max(took) * 1e3:.0f} ms"
    yield "one group", _timed(lambda: viewer.of_run("g/1/20"))
    size = sum(path.stat().st_size for path in (run / "bodies").iterdir()) / 1e6
    path = f"/api/runs/{viewer.key}/search?q={quote('this text stands nowhere')}"
    yield f"search of all texts ({size:.0f} MB of bodies)", _timed(lambda: viewer.get(path))


def _timed(ask: Callable[[], Any]) -> str:
    begun = time.perf_counter()
    ask()
    return f"{(time.perf_counter() - begun) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=20_000, help="of the run with bodies (20,000)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the run without (1,000,000)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the runs are made, and found again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as given:
        folder = args.keep or Path(given)
        for name, count, write, has_bodies in (
            (f"episodes-{args.episodes}", args.episodes, write_episodes, True),
            (f"rows-{args.rows}", args.rows, write_rows, False),
        ):
            run = folder / name
            if not run.exists():
                write(run, count)
            size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 1e6
            print(f"| {count:,} {'episodes' if has_bodies else 'rows without bodies'}, {size:.0f} MB | |\n|---|---|")
            for what, took in measured(run, has_bodies=has_bodies):
                print(f"| {what} | {took} |", flush=True)
            print()


if __name__ == "__main__":
    main()
