"""What a turn costs, beside hand-written floors and peers: marks 1, 2, 3, 5 and 6.

    python benchmarks/turns.py [--repeat 5] [--verifiers PYTHON] [--only NAME …]

Every figure is from a process of its own; the sides of a block run interleaved and medians are compared, since
absolute figures drift with the machine. veRL's loop runs where veRL is installed, verifiers in the Python given.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Block:
    """Sides that are compared with each other; the first is the measure."""

    name: str
    sides: tuple[str, ...]
    figure: str
    options: tuple[str, ...] = ()
    scale: float = 1.0
    unit: str = ""
    note: str = ""


BLOCKS = (
    Block("text turn", ("floor_safe", "rlenv_text", "verifiers_env"), "cpu_us_a_turn", (), 1, "µs CPU a turn",
          "mark 1: at most 2.5 x the floor, 10 x faster than verifiers"),
    Block("token turn, 1 tool", ("floor_tok", "rlenv_tokens", "verl_loop"), "cpu_us_a_turn", (), 1, "µs CPU a turn",
          "mark 2: at most 2 x the floor, 12 x faster than veRL's loop"),
    Block("token turn, 20 tools", ("floor_tok", "rlenv_tokens", "verl_loop"), "cpu_us_a_turn", ("--tools", "20"), 1,
          "µs CPU a turn", "mark 2: 50 x faster than veRL's loop, at most 1.2 x one tool"),
    Block("memory, 10,000 at once", ("floor_safe", "rlenv_text"), "kb_an_episode",
          ("--concurrency", "10000", "--episodes", "10000"), 1, "KB an episode", "mark 3: within 15 KB"),
    Block("256 x 4 x 50 ms, async", ("floor_safe", "rlenv_text"), "wall_s",
          ("--mode", "async50", "--concurrency", "256", "--episodes", "256"), 1, "s (ideal 0.20)",
          "mark 5: within 1.5 x the ideal"),
    Block("256 x 4 x 50 ms, blocking", ("floor_safe", "rlenv_text"), "wall_s",
          ("--mode", "sync50", "--concurrency", "256", "--episodes", "256"), 1, "s (ideal 0.20)",
          "mark 5: within 2.25 x the ideal"),
    Block("one of 64 hangs, async", ("floor_safe", "rlenv_text"), "wall_s", ("--mode", "hang", "--episodes", "64"), 1,
          "s (timeout 1.0)", "mark 6: all 64 end within the timeout + 0.2 s"),
    Block("one of 64 hangs, blocking", ("floor_safe", "rlenv_text"), "wall_s",
          ("--mode", "hangsync", "--episodes", "64"), 1, "s (timeout 1.0)", "mark 6"),
)  # fmt: skip


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--verifiers", default=os.environ.get("VERIFIERS_PYTHON"), metavar="PYTHON")
    parser.add_argument("--only", nargs="*", help="parts of block names")
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, rlenv {version('rlenv')}")
    for block in BLOCKS:
        if args.only and not any(part in block.name for part in args.only):
            continue
        print(f"\n{block.name}: {block.unit}   ({block.note})")
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(args.repeat):
            for side in block.sides:
                result = _run(side, block.options, args.verifiers)
                if result is not None:
                    found.setdefault(side, []).append(result)
        base = statistics.median(result[block.figure] for result in found[block.sides[0]])
        for side in block.sides:
            if side not in found:
                print(f"  {side:16} not measured: not installed")
                continue
            figure = statistics.median(result[block.figure] for result in found[side])
            ended = found[side][0].get("ended")
            extra = f"  ended {ended}, right {found[side][0]['right']}" if ended is not None else ""
            print(f"  {side:16} {figure:10.2f}   x {figure / base if base else 0:6.2f}{extra}")


def _run(side: str, options: tuple[str, ...], verifiers: str | None) -> dict[str, Any] | None:
    python = sys.executable
    if side == "verifiers_env":
        if verifiers is None:
            return None
        python = verifiers
    if side == "verl_loop" and importlib.util.find_spec("verl") is None:
        return None
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(HERE / "workload.py"), side, *options],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line[7:])
            return result
    raise SystemExit(f"{side} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
