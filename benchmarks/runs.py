"""What keeping episodes costs, and what a writer that is killed loses.

    python benchmarks/runs.py [--episodes 4000] [--kills 200] [--folder DIR]

An episode has a record of 48 kB, and 5,900 tokens with log-probabilities (53 kB of arrays) or 13,000. CPU is of the
whole process that writes: the record as JSON, the journals, and sealing them into Parquet in its thread, once what that
imports is loaded. Each kill is of four writers at once, at a random moment, while a reader polls; then the folder is
opened anew, what was acknowledged is looked for, and what was open is packed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rlenv.messages import Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs.pack import pack
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts, Tokens
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import Record, RewardBreakdown, TermResult, Trajectory, Turn

_TOKENS = 5_900
_WORDS = [f"word{number:04d}" for number in range(4_000)]


def episode(number: int, *, turns: int = 4, chars: int = 2_260) -> Trajectory:
    """An episode whose record takes about 48 kB: its texts stand in turns and messages."""
    drawn = random.Random(number)

    def text(size: int) -> str:
        return " ".join(drawn.choices(_WORDS, k=size // 9))

    made, messages = [], [Message("system", text(2_500)), Message("user", text(600))]
    for index in range(turns):
        thought, said = text(chars // 2), text(chars)
        action = f"<think>{thought}</think>"
        result = ToolResult("search", said, seconds=0.2, started=0.1)
        shown = Message("tool", said)
        call = ToolCall("search", {"query": text(80)})
        made.append(Turn(index, action, ParsedAction("", thought, (call,)), (result,), Observation((shown,))))
        messages += [Message("assistant", action), shown]
    reward = RewardBreakdown(1.0, {"correct": TermResult.valid("correct", value=1.0, weight=1.0)}, (0.0,) * turns)
    record: Record = {
        "environment": "bench-v0", "split": "train", "task_index": number, "seed": number, "task": {},
        "messages": tuple(messages), "turns": tuple(made), "answer": "1", "seconds": 1.0, "usage": (),
    }  # fmt: skip
    return Trajectory.ended(record, terminated=True, reason="answer", reward=reward, success=True)


def tokens(number: int, *, count: int = _TOKENS) -> Tokens:
    """Random ids, a mask of which half is 1, and random log-probabilities: 9 bytes a token that nothing compresses."""
    drawn = random.Random(number)
    ids = array("i", drawn.choices(range(150_000), k=count))
    mask = array("b", [0] * (count // 2) + [1] * (count - count // 2))
    logprobs = array("f", (-drawn.random() for _ in range(count)))
    return Tokens(array("i", range(500)), ids, mask, logprobs, [(count // 2, count)])


def write_costs(run: Path, count: int, *, ids: int = _TOKENS) -> dict[str, float]:
    """CPU and time of keeping so many episodes, an import of pyarrow not counted."""
    import pyarrow.parquet

    assert pyarrow.parquet
    made = [(episode(number), tokens(number, count=ids)) for number in range(64)]
    writer = RunWriter(run)
    took = []
    begun, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        trajectory, held = made[number % 64]
        at = time.perf_counter()
        writer.append(trajectory, Facts(step=number // 128, group=str(number // 8), mode="train", tokens=(held,)))
        took.append(time.perf_counter() - at)
    writer.close()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - begun
    took.sort()
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    return {
        "CPU ms an episode": 1e3 * cpu / count,
        "append p50 ms": 1e3 * took[count // 2],
        "append p99 ms": 1e3 * took[int(0.99 * count)],
        "longest append ms": 1e3 * took[-1],
        "episodes a second": count / wall,
        "kB an episode on disk": size / count / 1e3,
    }


def writes_until_killed(run: Path, pipe: int) -> None:
    """Keeps episodes and tells each id once it is kept; sealing often, so that kills fall into it."""
    writer = RunWriter(run, seal_episodes=8)
    trajectory, ids = episode(0, turns=1, chars=900), tokens(0, count=300)
    for _ in range(1_000_000):
        os.write(pipe, writer.append(trajectory, Facts(tokens=(ids,))).encode() + b"\n")


@contextlib.contextmanager
def polled(run: Path) -> Iterator[list[int]]:
    """A reader that looks all the time; the counts that it saw."""
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        reader = RunReader(run)
        while not done.is_set():
            reader.refresh()
            seen.append(len(reader.table))
            time.sleep(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def killed(run: Path, drawn: random.Random) -> dict[str, int]:
    """Four writers are killed at a random moment; what was acknowledged, and what of it is not there."""
    import pyarrow.compute
    import pyarrow.parquet

    assert pyarrow.compute
    assert pyarrow.parquet
    (run / "journal").mkdir(parents=True)
    readers, children = [], []
    for _ in range(4):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                writes_until_killed(run, writing)
            finally:
                os._exit(1)
        os.close(writing)
        readers.append(reading)
        children.append(pid)
    acknowledged: list[bytes] = []

    def drain(reading: int) -> None:
        with os.fdopen(reading, "rb") as file:
            acknowledged.extend(line for line in file if line.endswith(b"\n"))

    drains = [threading.Thread(target=drain, args=(reading,)) for reading in readers]
    for thread in drains:
        thread.start()
    with polled(run) as seen:
        time.sleep(drawn.uniform(0.05, 0.6))
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        for thread in drains:
            thread.join()
    there = _checked(run, drawn)
    pack(run)
    packed = _checked(run, drawn)
    told = {line.decode().strip() for line in acknowledged}
    return {
        "acknowledged": len(told),
        "lost": len(told - there) + len(there - packed),
        "counts that went back": sum(a > b for a, b in itertools.pairwise(seen)),
        "journals left": len(list((run / "journal").iterdir())),
    }


def _checked(run: Path, drawn: random.Random) -> set[str]:
    """The ids of a run; some of its bodies are read."""
    reader = RunReader(run)
    ids = reader.table["id"].to_pylist()
    assert len(ids) == len(set(ids)), "an episode is there twice"
    for id in drawn.sample(ids, min(3, len(ids))):
        assert reader.body(id).trajectory().environment == "bench-v0"
    return set(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="on the disk that is meant; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"Python {platform.python_version()}, pyarrow {version('pyarrow')}\n")
        sizes = (_TOKENS, 13_000)
        write_costs(Path(folder, "loaded"), 64)  # the first seal of a process imports for a quarter of a second
        costs = [write_costs(Path(folder, f"costs-{ids}"), args.episodes, ids=ids) for ids in sizes]
        print(f"{'':28}" + "".join(f"{f'{ids:,} tokens':>16}" for ids in sizes))
        for name in costs[0]:
            print(f"{name:28}" + "".join(f"{cost[name]:16.2f}" for cost in costs))
        drawn, whole = random.Random(11), dict.fromkeys(("acknowledged", "lost", "counts that went back"), 0)
        whole["journals left"] = 0
        for number in range(args.kills):
            for name, value in killed(Path(folder, f"kill-{number}"), drawn).items():
                whole[name] += value
        print(f"\n{args.kills} kills of 4 writers")
        for name, count in whole.items():
            print(f"{name:28}{count:10,d}")
    if whole["lost"] or whole["counts that went back"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
