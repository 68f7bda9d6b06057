"""veRL's ToolAgentLoop and rlenv's loop at the same tasks with the same scripted model, in one process and under Ray.

    python benchmarks/loops.py [--repeat 3] [--only fast|async|blocking] [--skip-ray]

Four tool turns with 1, 2, 1, 2 calls and an answer turn. In one process a loop object is built for each episode and
run; under Ray veRL's own AgentLoopManagerTQ does so, with its client, load balancer and TransferQueue. The row `bare`
is a loop that knows all prompts and only waits for the model and as long as the tools take: what none can beat.

`turns/s` is over wall time, `CPU` is of the loop's process without the model where Ray runs it elsewhere, `idle` is
the share of the model's places that held no request, `empty` the share of time in which none did. The sides of a block
run interleaved, and medians are shown. Every conversation is compared: both loops must have made the same one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of tool: how many episodes at once, the model's places and seconds a generation."""

    kind: str
    episodes: int
    places: int
    latency_s: float
    says: str


BLOCKS = (
    Block("fast", 256, 256, 0.0, "tools and model answer at once: what the loop itself costs"),
    Block("async", 128, 32, 0.02, "each call awaits 50 ms, a generation takes 20 ms at one of 32 places"),
    Block(
        "blocking", 32, 32, 0.02, "each call blocks a thread for 50 ms, a generation takes 20 ms at one of 32 places"
    ),
)
SIDES = ("bare", "verl", "rlenv")
WORKERS = 2


def main() -> None:
    """Measures every block in processes of its own and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=[block.kind for block in BLOCKS])
    parser.add_argument("--skip-ray", action="store_true")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--ray", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="rlenv's loop in one process, by cProfile")
    args = parser.parse_args()
    if args.measure:
        _measure([block for block in BLOCKS if block.kind in args.measure], args)
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, verl {version('verl')}, ray {version('ray')}, rlenv {version('rlenv')}")
    chosen = [block for block in BLOCKS if args.only in (None, block.kind)]
    for block in chosen:
        _show(block, False, _run([block], False, args)[block.kind])
    if not args.skip_ray:
        for kind, found in _run(chosen, True, args).items():
            _show(next(block for block in BLOCKS if block.kind == kind), True, found)


def _run(blocks: list[Block], ray: bool, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The results by kind; a process each, or one with a Ray cluster for all."""
    command = [sys.executable, __file__, "--repeat", str(args.repeat), "--measure", *(block.kind for block in blocks)]
    command += ["--ray"] * ray + ["--profile"] * (args.profile and not ray)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            kind, _, result = line[7:].partition(" ")
            found[kind] = json.loads(result)
        elif args.profile:
            print(line)
    if len(found) < len(blocks):
        raise SystemExit(f"{', '.join(command[4:])} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return found


def _show(block: Block, ray: bool, found: dict[str, Any]) -> None:
    where = f"under Ray, {WORKERS} workers" if ray else "in one process"
    print(f"\n{block.kind}, {block.episodes} episodes at once, {where}: {block.says}")
    print(f"  {'':8}{'wall s':>9}{'turns/s':>10}{'CPU µs/turn':>13}{'idle':>8}{'empty':>8}{'x wall':>8}{'x CPU':>8}")
    turns = block.episodes * found["turns"]
    base = found["sides"]["rlenv"]
    for side in SIDES:
        rows = found["sides"].get(side)
        wall, cpu = (statistics.median(row[key] for row in rows) for key in ("wall_s", "cpu_s"))
        idle, empty = (
            statistics.median(row[key] for row in rows) if rows[0][key] is not None else None
            for key in ("idle", "empty")
        )
        times = [
            statistics.median(row[key] / ours[key] for row, ours in zip(rows, base, strict=True))
            for key in ("wall_s", "cpu_s")
        ]
        shares = "".join(f"{'' if share is None else f'{share:.0%}':>8}" for share in (idle, empty))
        print(
            f"  {side:8}{wall:>9.3f}{turns / wall:>10.0f}{cpu / turns * 1e6:>13.0f}{shares}"
            f"{times[0]:>8.2f}{times[1]:>8.2f}"
        )
    print(f"  {found['agreement']}")
    for side, took in found.get("hydra_us", {}).items():
        print(f"  veRL builds each loop object by Hydra: {took / found['turns']:.0f} µs a turn on top for {side}")


def _measure(blocks: list[Block], args: argparse.Namespace) -> None:
    sys.path.insert(0, str(HERE.parent))
    from rlenv_verl.settings.presets import load_preset

    environment = {**load_preset("cpu").environment, "VERL_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.update(environment)
    if args.ray:
        _measure_ray(blocks, environment, args.repeat)
    else:
        _measure_process(blocks[0], args)
    os._exit(0)  # blocked threads of a side must not hold the process


def _measure_process(block: Block, args: argparse.Namespace) -> None:
    from benchmarks.sides.loop_process import Process
    from benchmarks.sides.loop_rig import make_rig

    rig = make_rig(block.kind, workers=WORKERS)
    process = Process(rig, latency_s=block.latency_s, places=block.places)
    if args.profile:
        process.profile(block.episodes)
    result = _repeat(rig, process.play, block.episodes, args.repeat)
    if block.kind == "fast":
        result["hydra_us"] = process.hydra_us()
    print(f"RESULT {block.kind} {json.dumps(result)}", flush=True)


def _measure_ray(blocks: list[Block], environment: dict[str, str], repeat: int) -> None:
    from benchmarks.sides.loop_ray import Cluster
    from benchmarks.sides.loop_rig import make_rig

    with Cluster(environment) as cluster:
        for block in blocks:
            rig = make_rig(block.kind, workers=WORKERS)
            cluster.start(rig, latency_s=block.latency_s, places=block.places)
            result = _repeat(rig, cluster.play, block.episodes, repeat)
            cluster.stop()
            print(f"RESULT {block.kind} {json.dumps(result)}", flush=True)


def _repeat(rig: Any, play: Callable[[str, int], Any], episodes: int, repeat: int) -> dict[str, Any]:
    from benchmarks import workload
    from benchmarks.sides.loop_bare import prompts_of

    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    # The first round warms up, and makes the prompts that the bare loop shows.
    made = {side: play(side, max(episodes, workload.VARIANTS))[1] for side in ("verl", "rlenv")}
    rig.prompts.write_text(json.dumps(prompts_of(made["verl"])))
    play("bare", episodes)
    for _ in range(repeat):
        for side in SIDES:
            found[side].append(play(side, episodes)[0])
    return {"sides": found, "turns": workload.TURNS, "agreement": _agreement(rig, made)}


def _agreement(rig: Any, episodes: dict[str, Any]) -> str:
    """What both loops made of the same script, compared conversation by conversation.

    Raises:
        SystemExit: a conversation, or the number of calls in it, is not the same on both sides.
    """
    theirs, ours = episodes["verl"], episodes["rlenv"]
    decode = rig.tokenizer.decode
    masks = differing = calls = ids = 0
    for task in theirs:
        one, other = theirs[task], ours[task]
        texts = [decode(made["prompt_ids"] + made["response_ids"]).rstrip() for made in (one, other)]
        if texts[0] != texts[1]:
            raise SystemExit(f"the loops made different conversations of task {task}:\n{texts[0]}\n---\n{texts[1]}")
        calls += texts[0].count("</tool_response>")
        ids += one["response_ids"] != other["response_ids"]
        differing += one["mask"] != other["mask"]
        masks += sum(one["mask"]) - sum(other["mask"])
    return (
        f"{len(theirs)} conversations with {calls} results are equal as text; ids differ in {ids}, masks in "
        f"{differing}, sampled tokens by {masks}"
    )


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    if "--measure" not in sys.argv:
        print(f"\n{time.perf_counter() - started:.0f} s in all")
