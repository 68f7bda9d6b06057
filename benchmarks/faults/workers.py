"""Honest right answers while every kind of worker is killed, stopped, slowed and left without a disk.

    python benchmarks/faults/workers.py [--seconds 4] [--seed 0] [--only math,mcp] [--faults kill,stop]

For each kind of worker (the process of math_equal, monty, bubblewrap, Python tools in processes, commands, MCP servers,
SQLite and DuckDB) a spec is played whose only reward stands on that worker, by a policy that is always right, in a
process of its own. At random moments a process below it, chosen at random, meets the fault:

    none     nothing
    kill     SIGKILL
    stop     SIGSTOP, for ever
    slow     SIGSTOP, and SIGCONT after 20 to 400 ms: what a process looks like that waits for a slow disk or for memory
    nofile   a limit of 0 bytes a file (RLIMIT_FSIZE): whatever it writes fails
    full     the disk of the temporary files, of 1 MB, is filled and freed again (Linux with mount namespaces: the file
             system belongs to a process of this script and ends with it)

The columns are episodes; those with the full reward; those whose reward is invalid; those whose right answer was given
another number, which must be 0; times that a fault was done; and what was left behind when the environment was closed:
processes, descriptors, threads, temporary files, shared memory. Exit code 1 where a law does not hold. A device that
answers late or with errors in the middle of a read (state D) cannot be made without a device of its own: `slow` and
`nofile` stand for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import itertools
import json
import logging
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import rlenv
from rlenv.messages import Message, ToolCall

HERE = Path(__file__).resolve().parent
FAULTS: Final = ("none", "kill", "stop", "slow", "nofile", "full")
AT_ONCE: Final = 6
DISK_KB: Final = 1_024
SETTLE_S: Final = 60.0  # a thread may wait for a process that was stopped for some 40 s

HEAD = """
rlenv: 1
name: workers
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "{{ task.n }}"}
limits: {turns: 3, episode_s: 20, reward_s: 6}
calls: {timeout_s: 3, breaker: {failures: 6, reset_s: 0.2}}
"""
VERIFY = "{kind: verify, tool: work, arguments: {%s: '{{ answer }}'}, expect: {value: '{{ task.expected }}'}%s}"


@dataclass(frozen=True)
class Kind:
    """A kind of worker: the rest of its spec, an argument and what is right for the n-th task."""

    spec: str
    argument: str
    says: Callable[[int], str]
    expected: Callable[[int], Any]
    tool: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    needs: Callable[[], bool] = lambda: True


def verify(tool: str, argument: str, compare: str = "") -> str:
    """A spec whose reward runs the tool on the answer."""
    return f"tools:\n  {tool}\nrewards:\n  correct: " + VERIFY % (argument, compare) + "\n"


def database(path: Path, engine: str) -> None:
    """A small database, which each engine makes for itself."""
    module = importlib.import_module({"sqlite": "sqlite3"}.get(engine, engine))
    with contextlib.closing(module.connect(str(path))) as made:
        made.execute("CREATE TABLE t(n INTEGER)")
        made.execute("INSERT INTO t VALUES (1), (2), (3)")
        made.commit()


def has(module: str) -> Callable[[], bool]:
    """Whether a module is installed."""
    return lambda: importlib.util.find_spec(module) is not None


# Nothing tells in advance how long a recursion takes, so that it is run where it can be killed.
QUERY = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 50) SELECT sum(x) + {n} AS s FROM c"
PYTHON = '''
import tempfile

def work(text: str) -> str:
    """Squares a number.

    Args:
        text: the number
    """
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write(str(int(text) ** 2))
        file.seek(0)
        return file.read()
'''
# One line at a time and no packages: it is up again a moment after it was killed.
SERVER = """
import json, sys
TOOL = {"name": "work", "description": "Squares.", "inputSchema": {"type": "object", "properties": {"text":
        {"type": "string"}}, "required": ["text"]}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    result = {}
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "squares", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif asked["method"] == "tools/call":
        text = str(int(asked["params"]["arguments"]["text"]) ** 2)
        result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
KINDS: Final[Mapping[str, Kind]] = {
    "math": Kind(
        "rewards: {correct: {kind: rule, rule: math_equal, expect: '{{ task.expected }}', limit_s: 1}}\n",
        "answer",
        lambda n: rf"\frac{{{2 * n + 1}}}{{2}}",
        lambda n: f"{n}+0.5",
        tool=False,
        needs=has("math_verify"),
    ),
    "monty": Kind(
        verify("work: {kind: code, time_s: 1, timeout_s: 2}", "code", ", compare: json"),
        "code",
        lambda n: f"x = {n}\nx * x",
        lambda n: {"output": "", "result": n * n},
        needs=has("pydantic_monty"),
    ),
    "bubblewrap": Kind(
        verify("work: {kind: code, sandbox: bubblewrap, time_s: 1, timeout_s: 2}", "code", ", compare: json"),
        "code",
        lambda n: f"import os\nopen('/tmp/a', 'w').write('a')\nx = {n}\nx * x",
        lambda n: {"output": "", "result": n * n},
        needs=lambda: shutil.which("bwrap") is not None,
    ),
    "python": Kind(
        verify("work: {kind: python, function: 'work.py:work', run_in: process, workers: 2, timeout_s: 2}", "text"),
        "text",
        str,
        lambda n: str(n * n),
        files={"work.py": PYTHON},
    ),
    "command": Kind(
        verify(
            "work: {kind: command, argv: [sh, -c, 'set -e; echo $(($1 * $1)) > x; cat x', sh, '{{ args.text }}'],"
            " cwd: temp, parameters: {text: string}, timeout_s: 1}",
            "text",
            ", compare: number",
        ),
        "text",
        str,
        lambda n: str(n * n),
    ),
    "mcp": Kind(
        verify("server: {kind: mcp, command: [python, server.py], timeout_s: 2}", "text"),
        "text",
        str,
        lambda n: str(n * n),
        files={"server.py": SERVER},
        needs=has("mcp"),
    ),
    **{
        engine: Kind(
            f"resources: {{db: {{kind: {engine}, path: squares.{engine}, access: read_only}}}}\n"
            + verify("work: {kind: sql, resource: db, timeout_s: 1}", "sql", ", compare: json"),
            "sql",
            lambda n: QUERY.format(n=n),
            lambda n: {"columns": ["s"], "rows": [[1275 + n]], "truncated": False},
            files={f"squares.{engine}": engine},
            needs=has(module),
        )
        for engine, module in (("sqlite", "sqlite3"), ("duckdb", "duckdb"))
    },
}


@dataclass
class Cell:
    """What came of one kind of worker under one fault."""

    kind: str
    fault: str
    episodes: int = 0
    right: int = 0
    invalid: int = 0
    wrong: int = 0
    done: int = 0
    left: dict[str, list[str]] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def holds(self) -> bool:
        """Whether no right answer was given another number, and nothing was left behind."""
        stands = self.right > 0 or self.fault != "none" or bool(self.missing)
        return not self.wrong and not self.left and stands


@dataclass(frozen=True)
class Left:
    """What a process holds."""

    processes: Mapping[int, str]
    descriptors: Mapping[str, str]
    threads: frozenset[str]
    files: frozenset[str]
    memory: frozenset[str]

    def beyond(self, before: Left) -> dict[str, list[str]]:
        """What is held now and was not before; of what may be kept, no more of it."""
        more = {
            "processes": [] if len(self.processes) <= len(before.processes) else [*self.processes.values()],
            "descriptors": []
            if len(self.descriptors) <= len(before.descriptors)
            else sorted((Counter(self.descriptors.values()) - Counter(before.descriptors.values())).elements()),
            "threads": sorted(self.threads - before.threads),
            "files": sorted(self.files - before.files),
            "memory": sorted(path for path in self.memory - before.memory if _is_forgotten(path)),
        }
        return {what: found for what, found in more.items() if found}


def below() -> dict[int, str]:
    """The processes below this one, with their command lines; those that ended are none."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                state, parent, *_ = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if state not in "ZX":
                    parents[int(entry)] = int(parent)
    found: dict[int, str] = {}
    new = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new and pid not in found}:
        for pid in new:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if "multiprocessing.resource_tracker" not in line:
                    found[pid] = line[:80]
    return found


def held(folder: Path) -> Left:
    """What this process holds now."""
    descriptors = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptors[entry] = re.sub(r"[\d/].*", "", os.readlink(f"/proc/self/fd/{entry}")) or "file"
    shared = Path("/dev/shm")
    return Left(
        below(),
        descriptors,
        # The loop's own threads end with it.
        frozenset(thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")),
        frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "filler"),
        frozenset(str(path) for path in shared.iterdir() if _is_mine(path)) if shared.is_dir() else frozenset(),
    )


def _is_forgotten(path: str) -> bool:
    """Whether it is there and no living process maps it or has it open: it may be another program's."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{entry}/maps").read_text(errors="replace"):
                return False
            for file in Path(f"/proc/{entry}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(file) == path:
                        return False
    return os.path.exists(path)


def _is_mine(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_uid == os.geteuid()
    return False


class Injector:
    """Does a fault at random moments to a process below this one, or to the disk."""

    def __init__(self, fault: str, rng: random.Random, folder: Path, every_s: float) -> None:
        self.fault, self.rng, self.every_s = fault, rng, every_s
        self.filler = folder / "filler"
        self.done = 0

    async def run(self) -> None:
        """Until it is cancelled; what was only slowed goes on then, and the disk is free."""
        stopped: set[int] = set()
        try:
            while self.fault != "none":
                await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
                await self.once(stopped)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
            self.filler.unlink(missing_ok=True)

    async def once(self, stopped: set[int]) -> None:
        """One fault."""
        if self.fault == "full":
            self.fill()
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
            self.filler.unlink(missing_ok=True)
            return
        pids = sorted(below())
        if not pids:
            return
        pid = self.rng.choice(pids)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.fault == "kill":
                os.kill(pid, signal.SIGKILL)
            elif self.fault == "nofile":
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))
            else:
                os.kill(pid, signal.SIGSTOP)
            self.done += 1
        if self.fault == "slow":
            stopped.add(pid)
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
            stopped.discard(pid)

    def fill(self) -> None:
        """Leaves no room on the disk of the temporary files."""
        try:
            with self.filler.open("wb", buffering=0) as file:
                while file.write(b"\0" * 65_536):
                    pass
        except OSError:
            self.done += 1


async def episode(environment: Any, kind: Kind, n: int) -> tuple[float | None, str]:
    """The reward of one right episode: it calls the tool, whatever that gives, and answers what is right."""
    said, tool = kind.says(n), next(iter(environment.spec.tools), "")
    name = "work" if kind.tool else ""
    async with environment.start(task={"n": n, "expected": kind.expected(n)}, seed=n) as running:
        if tool:
            step = await running.step(Message("assistant", "", (ToolCall(name, {kind.argument: said}),)))
            if step.is_last:
                return running.trajectory.reward.total, running.trajectory.reason
        await running.step(f"<answer>{said}</answer>")
        trajectory = running.trajectory
    failure = trajectory.failure.message if trajectory.failure else ""
    evidence = "; ".join(term.evidence or term.error for term in trajectory.reward.terms.values())
    results = [f"{result.reason}: {result.text[:80]}" for turn in trajectory.turns for result in turn.results]
    return trajectory.reward.total, f"{trajectory.reason} {failure} {evidence} {results}"[:500]


@contextlib.asynccontextmanager
async def injected(injector: Injector) -> AsyncIterator[None]:
    """Faults while the block runs."""
    task = asyncio.ensure_future(injector.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def measure(kind_name: str, fault: str, path: Path, disk: Path, args: argparse.Namespace) -> Cell:
    """Plays one cell of the table: for `seconds`, or as many episodes as are asked for."""
    kind, cell = KINDS[kind_name], Cell(kind_name, fault)
    numbers = itertools.count(1)
    # The first environment starts what a process keeps for good: threads, a pool, imports.
    async with rlenv.load(path) as first:
        await asyncio.gather(*(episode(first, kind, 1) for _ in range(AT_ONCE)))
    before = await settled(disk, None)
    injector = Injector(fault, random.Random(f"{args.seed}/{kind_name}/{fault}"), disk, args.every_s)
    async with rlenv.load(path) as environment, injected(injector):
        end = asyncio.get_running_loop().time() + args.seconds

        async def play() -> None:
            while not cell.episodes >= args.most and (
                cell.episodes < AT_ONCE or asyncio.get_running_loop().time() < end
            ):
                cell.episodes += 1
                total, why = await episode(environment, kind, next(numbers))
                cell.right += total == 1.0
                cell.invalid += total is None
                if total is not None and total != 1.0:
                    cell.wrong += 1
                    cell.shown.insert(0, f"{total}: {why}")
                elif total is None:
                    cell.shown.append(f"invalid: {why}")
                    await asyncio.sleep(0.05)  # an open breaker is no reason to play a thousand episodes a second

        await asyncio.gather(*(play() for _ in range(AT_ONCE)))
    cell.done = injector.done
    cell.left = (await settled(disk, before)).beyond(before)
    return cell


async def settled(folder: Path, before: Left | None) -> Left:
    """What is held once whatever is on its way out is gone, or after a bounded time."""
    now = None
    for turn in range(int(SETTLE_S / 0.1)):
        gc.collect()
        last, now = now, held(folder)
        if (turn > 5 and now == last) if before is None else not now.beyond(before):
            break
        await asyncio.sleep(0.1)
    assert now is not None
    return now


def campaign(kind: str, faults: Sequence[str], disk: Path, args: argparse.Namespace) -> list[Cell]:
    """All cells of one kind of worker, in this process; orphans become its children, so that they are seen."""
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    if not KINDS[kind].needs():
        return [Cell(kind, "all", missing="not installed")]
    with tempfile.TemporaryDirectory() as spec:
        folder = Path(spec)
        for name, text in {**KINDS[kind].files, "env.yaml": HEAD + KINDS[kind].spec}.items():
            if name.startswith("squares."):
                database(folder / name, text)
            else:
                (folder / name).write_text(text, encoding="utf-8")
        os.environ["TMPDIR"] = tempfile.tempdir = str(disk)
        try:
            found = []
            for fault in faults:
                try:
                    found.append(asyncio.run(measure(kind, fault, folder / "env.yaml", disk, args)))
                except rlenv.errors.SpecError as error:
                    return [Cell(kind, "all", missing=str(error).splitlines()[0][:160])]
            return found
        finally:
            tempfile.tempdir = None


def on_small_disk(kind: str, args: argparse.Namespace) -> list[Cell]:
    """The cell `full`, by this script in a mount namespace of its own with a small disk for temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="rlenv-disk-"))
    # The file system is mounted by the child, in its namespace only, on a folder that stays empty out here.
    options = f"size={DISK_KB}k,mode=0700"
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && shift && exec "$@"'
    told = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in ("seconds", "seed", "most", "every_s")]
    run = [sys.executable, str(Path(__file__).resolve()), "--cell", kind, "--disk", str(folder), *told]
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    try:
        done = subprocess.run(
            [*unshare, "--propagation", "private", "sh", "-c", script, "sh", str(folder), *run],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return [Cell(kind, "full", missing=str(error))]
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
    if done.returncode or not done.stdout.startswith("["):
        return [Cell(kind, "full", missing=(done.stderr.strip() or "no mount namespace").splitlines()[-1][:160])]
    return [Cell(**cell) for cell in json.loads(done.stdout)]


def cells(kind: str, faults: Sequence[str], args: argparse.Namespace) -> list[Cell]:
    """All cells of one kind of worker, each fault in this process but `full`."""
    found: list[Cell] = []
    if here := [fault for fault in faults if fault != "full"]:
        with tempfile.TemporaryDirectory() as disk:
            found += campaign(kind, here, Path(disk), args)
    if "full" in faults and not any(cell.missing for cell in found):
        found += on_small_disk(kind, args)
    return found


def row(cell: Cell) -> str:
    """One line of the table, with what is wrong below it."""
    if cell.missing:
        return f"{cell.kind:<11}{cell.fault:<8}left out: {cell.missing}"
    left = ", ".join(f"{what}: {found}" for what, found in cell.left.items()) or "nothing"
    numbers = f"{cell.episodes:>8}{cell.right:>8}{cell.invalid:>9}{cell.wrong:>7}{cell.done:>8}"
    text = f"{cell.kind:<11}{cell.fault:<8}{numbers}  {left}"
    return text if cell.holds else "\n    ".join([text, *cell.shown[:4]])


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell")
    parser.add_argument("--most", type=int, default=1_000_000, help="episodes of a cell")
    parser.add_argument("--every-s", type=float, default=0.25, help="the mean time between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--disk", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Prints the table; 0 where every law holds."""
    args = parsed(given)
    if args.cell:
        print(json.dumps([asdict(cell) for cell in campaign(args.cell, ["full"], args.disk, args)]))
        return 0
    print(f"{'worker':<11}{'fault':<8}{'episodes':>8}{'right':>8}{'invalid':>9}{'WRONG':>7}{'faults':>8}  left behind")
    holds = True
    for kind in args.only.split(","):
        with multiprocessing.get_context("spawn").Pool(1) as apart:
            for cell in apart.apply(cells, (kind, args.faults.split(","), args)):
                print(row(cell), flush=True)
                holds = holds and cell.holds
    print("every law held" if holds else "a law was broken")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
