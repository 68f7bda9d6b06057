"""Attacks every shipped spec and example with hostile actions and prints what gave way.

    python benchmarks/hostile.py [--count 100000] [--at-once 8] [--seed 0] [SPEC ...]

For each spec a hostile policy plays (rlenv.testing.hostile: actions made to hang, fill, void, mask and forge, for the
spec's own tools, dialect and answer rule), and the spec's oracle plays beside it. The columns:

    stall    the longest pass of the event loop, in milliseconds of CPU time of its thread
    memory   how far the process's peak rose above what it held before, in MB; sandboxes and servers are not in it
    record   the largest record of an episode in MB, without the policy's own words
    invalid  hostile episodes without a reward
    raised   exceptions that left the environment
    honest   honest episodes played beside, and how many of them did not earn what they earn alone
    success  hostile episodes that were right: guesses, and the oracle's actions with a harmless change

Time limits of calls are shortened (`calls.timeout_s`, and each tool's own), so that what is made to hang ends soon; a
share of 1 in 200 actions is made to hang (`--hang`). Each spec has a process of its own. What is worst is named with
its action under the table. Exit code 1 where a law is broken: 100 ms, 256 MB, 32 MB, and no other number but 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rlenv
from rlenv.episodes.environment import Environment, load
from rlenv.testing.endpoint import FakeEndpoint
from rlenv.testing.hostile import HostilePolicy, HostileReport, attack

ROOT = Path(__file__).resolve().parent.parent
# Its tasks are the official files; its tests make a toy world.
SPECS = [
    path
    for path in (*sorted(ROOT.glob("specs/*.yaml")), *sorted(ROOT.glob("examples/*/*.yaml")))
    if path.parent.name != "search_r1"
]
TIMEOUT_S = 0.5
RECORD_MB = 32.0  # an agent's own episodes stand in the record of the one that sent it


@contextlib.contextmanager
def on_a_loop_of_its_own(serve: Any) -> Iterator[Any]:
    """What the async context manager `serve` gives, run by a thread's loop: its work is none of the measured loop's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    run = lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)  # noqa: E731
    try:
        yield run(serve.__aenter__())
    finally:
        run(serve.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


class HttpExample:
    """examples/http/server.py on a free port; gives its address."""

    async def __aenter__(self) -> str:
        from aiohttp import web

        self.runner = web.AppRunner(module(ROOT / "examples/http/server.py").application())
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()


def module(path: Path) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(f"hostile_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@contextlib.contextmanager
def servers(path: Path) -> Iterator[dict[str, Any]]:
    """What a spec needs around it: the overrides that name its servers."""
    if path.parent.name == "http":
        with on_a_loop_of_its_own(HttpExample()) as url:
            yield {"vars.server": url}
    elif path.parent.name == "research":
        writer = module(ROOT / "examples/research/play.py").writer
        with on_a_loop_of_its_own(FakeEndpoint(Sturdy(writer))) as server:
            os.environ["RESEARCH_URL"] = server.base_url
            server.requests = Forgetful()  # what a model was asked is kept by its server, not by the trainer
            yield {}
    else:
        yield {}


class Forgetful(list[Any]):
    """A list that keeps nothing."""

    def append(self, value: Any) -> None: ...


class Sturdy:
    """The example's model, which also answers what it cannot read."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def __call__(self, body: Any) -> Any:
        try:
            return self.writer(body)
        except (AttributeError, LookupError, StopIteration, TypeError):
            return "I do not know."


def compiled(path: Path, overrides: dict[str, Any], timeout_s: float) -> Environment:
    """The environment with short time limits."""
    short: dict[str, Any] = {"calls.timeout_s": max(timeout_s, 10.0)}
    for name, tool in load(path, set=overrides).spec.tools.items():
        if tool.kind == "code":
            # Its own limit; a call's time also holds the wait for a place among the sandboxes.
            short |= {f"tools.{name}.time_s": timeout_s / 2}
        elif tool.kind not in ("agent", "model"):
            short[f"tools.{name}.timeout_s"] = timeout_s
    return load(path, set={**overrides, **short})


def attacked(path: Path, arguments: argparse.Namespace) -> HostileReport:
    """The report of one spec."""
    logging.disable(logging.CRITICAL)  # a tool that fails is logged each time
    with servers(path) as overrides:
        environment = compiled(path, overrides, arguments.timeout_s)
        policy = HostilePolicy(environment, seed=arguments.seed, hang_share=arguments.hang, large_share=0.02)
        oracle = environment.oracle() if environment.spec.oracle else None
        return attack(
            environment, policy, oracle, actions=arguments.count, seed=arguments.seed, at_once=arguments.at_once
        )


HEADER = (
    f"{'spec':16} {'actions':>8} {'episodes':>8} {'stall ms':>8} {'memory MB':>9} {'record MB':>9} {'invalid':>7} "
    f"{'raised':>6} {'honest':>14} {'success':>7} {'seconds':>7}"
)


def row(report: HostileReport) -> str:
    """One line of the table."""
    honest = f"{report.honest} ({len(report.disturbed)})"
    return (
        f"{report.spec:16} {report.actions:>8} {report.episodes:>8} {report.stall_s * 1e3:>8.0f} "
        f"{report.growth_mb:>9.0f} {report.record_mb:>9.2f} {len(report.invalid):>7} {len(report.raised):>6} "
        f"{honest:>14} {report.rewarded:>7} {report.seconds:>7.0f}"
    )


def main(given: Sequence[str] | None = None) -> int:
    """Attacks, prints the table, and says by the exit code whether everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", type=Path, default=SPECS)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hang", type=float, default=0.005, help="the share of actions that are made to hang")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="the time limit of each tool")
    arguments = parser.parse_args(given)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, rlenv {rlenv.__version__}"
    )
    print(HEADER, flush=True)
    broken: list[str] = []
    apart = multiprocessing.get_context("spawn")  # what one attack leaves in a process is not the next one's
    for path in arguments.specs:
        with apart.Pool(1) as pool:
            report = pool.apply(attacked, (path, arguments))
        print(row(report), flush=True)
        broken += [f"{report.spec}: {fault}" for fault in report.faults(record_mb=RECORD_MB)]
    print("\n".join(["every law held"] if not broken else ["", *broken]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
