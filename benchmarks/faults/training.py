"""Trains on four environments at once while each fails in its own way, and compares what failed with what was counted.

    python benchmarks/faults/training.py --model FOLDER [--steps 24] [--limit-s 900] [--folder FOLDER]

One run of veRL on the CPU, on four variants of the arithmetic environment: `raises` cannot open its resource in 10 % of
the episodes, `hangs` has a tool that never returns in 2 % of the calls of training, `judged` asks a judge that refuses
in every third step, and `mcp` has its calculator on an MCP server that is killed every 20 seconds. Every fault is
written down where it is made. Training has to end, and rlenv's figures in veRL's log have to count the same faults.

`--model` is a policy for the arithmetic environment, such as `model/` of an `rlenv train specs/arithmetic.yaml` run.
Nothing is written into the repository; `--folder` keeps what the run leaves. Exit code 1 where a count differs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KILL_EVERY_S = 20.0
DOWN_EVERY = 3
SPECS = ("raises", "hangs", "judged", "mcp")
FAULTS = {
    "raises": "resource raises in 10 % of episodes",
    "hangs": "tool hangs in 2 % of calls",
    "judged": "judge refuses in each 3rd step",
    "mcp": "MCP server killed every 20 s",
}

CALCULATOR = """
import ast
import operator

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluate(expression):
    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        return SIGNS[type(node.op)](value(node.left), value(node.right))

    try:
        return str(value(ast.parse(expression, mode="eval").body))
    except Exception:
        return "that cannot be calculated"
"""

TOOLS = '''
import asyncio
import json
import os
import random
from pathlib import Path

CHANCE = random.Random(os.urandom(8))
LOG = Path(__file__).with_name("injected.jsonl")


def injected(fault, task):
    with LOG.open("ab") as file:
        file.write(json.dumps({"fault": fault, "split": task["split"], "pid": os.getpid()}).encode() + b"\\n")


def clock() -> str:
    """Tell the time of day."""
    return "09:41"


def world(task):
    if CHANCE.random() < 0.10:
        injected("raises", task)
        raise ConnectionError("the world is gone")
    return None


async def calculate(expression: str, task: dict) -> str:
    """Calculate an arithmetic expression, such as (12.5 + 3) * 4 / 2."""
    if task["split"] == "train" and CHANCE.random() < 0.02:
        injected("hangs", task)
        await asyncio.Event().wait()
    return evaluate(expression)
'''

SERVER = """
import json
import os
import sys

with open(PIDS, "ab") as file:
    file.write(f"{os.getpid()}\\n".encode())
TOOL = {
    "name": "calculate",
    "description": "Calculate an arithmetic expression, such as (12.5 + 3) * 4 / 2.",
    "inputSchema": SCHEMA,
    "annotations": {"readOnlyHint": True, "idempotentHint": True},
}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "calculator", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": evaluate(params["arguments"]["expression"])}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        result = answer(request["method"], request.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\\n")
        sys.stdout.flush()
"""


class Judge:
    """A model server that gives every answer the same score, or refuses."""

    def __init__(self) -> None:
        self.is_down = False
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                split = "train" if "split: train" in body else "test"
                is_down = outer.is_down
                with lock:
                    (outer.refused if is_down else outer.asked)[split] += 1
                said = {"role": "assistant", "content": '{"reasoning": "", "score": 3}'}
                reply: dict[str, object] = {"id": "1", "object": "chat.completion", "model": "judge"}
                reply |= {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
                data = b"{}" if is_down else json.dumps(reply).encode()
                self.send_response(503 if is_down else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"


def write_specs(folder: Path, judge: Judge) -> list[Path]:
    """The four variants and what they need, in `folder`."""
    base: dict[str, Any] = yaml.safe_load((ROOT / "specs" / "arithmetic.yaml").read_text(encoding="utf-8"))
    source = ROOT / "specs" / "data" / "arithmetic"
    for split, most in (("train", 600), ("test", 100)):
        rows = [json.loads(line) for line in (source / f"{split}.jsonl").read_text().splitlines()[:most]]
        text = "".join(json.dumps({**row, "split": split}) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    (folder / "tools.py").write_text(CALCULATOR + TOOLS, encoding="utf-8")
    (folder / "injected.jsonl").touch()
    (folder / "pids").touch()
    sys.path.insert(0, str(ROOT))
    from rlenv import load

    schema = load(ROOT / "specs" / "arithmetic.yaml").tool_schemas[0]["function"]["parameters"]
    names = {"PIDS": str(folder / "pids"), "SCHEMA": schema}
    head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    (folder / "server.py").write_text(head + CALCULATOR + SERVER, encoding="utf-8")
    base["tasks"] = {split: {"path": f"{split}.jsonl"} for split in ("train", "test")}
    base["tools"]["clock"]["function"] = "tools.py:clock"
    base["limits"]["episode_s"] = 120
    base.pop("oracle")
    paths = []
    for name in SPECS:
        spec = json.loads(json.dumps({**base, "name": name}))
        if name == "raises":
            spec["resources"] = {"world": {"kind": "python", "function": "tools.py:world", "run_in": "loop"}}
        elif name == "hangs":
            tool = {"kind": "python", "function": "tools.py:calculate", "inject": ["task"], "timeout_s": 100}
            spec["tools"]["calculate"] = {**tool, "parameters": dict(schema)}
        elif name == "judged":
            spec["endpoints"] = {"judge": {"base_url": judge.url, "model": "judge", "retries": 0, "timeout_s": 10}}
            prompt = "split: {{ task.split }}. How good is this answer? {{ message }}"
            spec["rewards"]["style"] = {"kind": "judge", "endpoint": "judge", "prompt": prompt}
            spec["rewards"]["style"] |= {"weight": 0.1, "cache": False, "retries": 0}
        else:
            server = {"kind": "mcp", "command": [sys.executable, str(folder / "server.py")], "timeout_s": 10}
            spec["tools"] = {"calculator": server, "clock": spec["tools"]["clock"]}
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return paths


def kill_servers(folder: Path) -> int:
    """Kill the MCP servers that run, and say how many there were."""
    killed = 0
    for pid in {int(line) for line in (folder / "pids").read_text().split()}:
        with suppress(OSError):
            if str(folder) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSONL file, none where there is no file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def total(steps: Sequence[dict[str, Any]], key: str) -> int:
    return int(sum(step["data"].get(key, 0) for step in steps))


def train(folder: Path, arguments: argparse.Namespace, judge: Judge) -> tuple[int | None, Counter[str], float]:
    """Run veRL to its end or to the limit; its exit status (None where it was stopped), the kills, the seconds."""
    command = [sys.executable, "-m", "rlenv", "train", *map(str, write_specs(folder, judge))]
    command += ["--model", str(arguments.model.resolve()), "--steps", str(arguments.steps), "-o", str(folder / "run")]
    command += ["--validation-tasks", "16", "--time-limit", str(arguments.limit_s - 60), "data.train_batch_size=8"]
    command += ["actor_rollout_ref.actor.ppo_mini_batch_size=8", f"trainer.test_freq={max(1, arguments.steps // 4)}"]
    command += ["run.stragglers={share: 0.6, grace_s: 5}", *arguments.overrides]
    kills: Counter[str] = Counter()
    metrics = folder / "run" / "metrics.jsonl"
    started = killed_at = time.monotonic()
    with (folder / "train.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        (folder / "driver").write_text(str(process.pid))
        while process.poll() is None:
            time.sleep(0.05)
            steps = lines(metrics)
            if steps:
                # Not in the steps that validate, which are multiples of it.
                judge.is_down = (steps[-1]["step"] + 1) % DOWN_EVERY == 1
            now = time.monotonic()
            if steps and now - killed_at > KILL_EVERY_S:
                killed_at = now
                kills["kills"] += kill_servers(folder)
            if now - started > arguments.limit_s:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=60)
                return None, kills, now - started
    return process.returncode, kills, time.monotonic() - started


def main() -> int:
    """Trains, prints the table, and says by the exit code whether everything was counted."""
    reads = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reads.add_argument("--model", type=Path, required=True)
    reads.add_argument("--steps", type=int, default=24)
    reads.add_argument("--limit-s", type=float, default=900.0)
    reads.add_argument("--folder", type=Path, help="where the run's files go and stay; a temporary folder otherwise")
    reads.add_argument("overrides", nargs="*", help="further overrides of rlenv train")
    arguments = reads.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory(prefix="rlenv-faults-") as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        judge = Judge()
        code, kills, seconds = train(folder, arguments, judge)
        return show(folder, judge, code, kills, seconds, steps=arguments.steps)


def show(folder: Path, judge: Judge, code: int | None, kills: Counter[str], seconds: float, *, steps: int) -> int:
    """The table, and 1 where the run did not end or a count differs."""
    logged = [entry for entry in lines(folder / "run" / "metrics.jsonl") if entry["step"] > 0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", end=", ")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("verl", "torch", "ray")))
    if not logged:
        print(f"nothing was trained (exit status {code}); the end of train.log:")
        print((folder / "train.log").read_text(errors="replace")[-3000:])
        return 1
    done = max(entry["step"] for entry in logged)
    print(f"{done} of {steps} steps in {seconds:.0f} s, exit status {code}")
    # Before training starts, the driver opens episodes of its own to measure their prompts.
    driver = int((folder / "driver").read_text())
    made = [entry for entry in lines(folder / "injected.jsonl") if entry["pid"] != driver]
    injected = Counter(entry["fault"] for entry in made if entry["split"] == "train")
    injected["judged"] = judge.refused["train"]
    started = len((folder / "pids").read_text().split())
    counted = {
        "raises": total(logged, "rlenv/raises/masked/resource"),
        "hangs": total(logged, "rlenv/hangs/ended/straggler") + total(logged, "rlenv/hangs/ended/time"),
        "judged": total(logged, "rlenv/judged/masked/reward"),
    }
    held_out = json.loads((folder / "run" / "summary.json").read_text())["held_out_success"] if code == 0 else []
    print(f"{'spec':8} {'fault':36} {'episodes':>8} {'made':>6} {'counted':>8} {'masked':>7}")
    is_right = code == 0 and done == steps
    for name in SPECS:
        prefix = f"rlenv/{name}/"
        masked = sum(
            total(logged, key) for key in {k for e in logged for k in e["data"] if k.startswith(prefix + "masked/")}
        )
        faults = f"{injected[name]}" if name != "mcp" else f"{kills['kills']}"
        seen = f"{counted[name]}" if name != "mcp" else f"{started} up"
        print(f"{name:8} {FAULTS[name]:36} {total(logged, prefix + 'episodes'):8} {faults:>6} {seen:>8} {masked:7}")
        if name != "mcp":
            is_right = is_right and injected[name] == counted[name]
    trained = lines(folder / "run" / "trained.jsonl")
    valid, episodes = sum(entry["valid"] for entry in trained), sum(entry["episodes"] for entry in trained)
    print(f"trained.jsonl: {valid} valid of {episodes} episodes; the judge answered {judge.asked['train']} times")
    for entry in held_out:
        print(
            "held-out success "
            + ", ".join(f"{key} {value:.3f}" if key != "step" else f"at step {value}" for key, value in entry.items())
        )
    for name in SPECS:
        rates = [(e["step"], e["data"].get(f"rlenv/{name}/success")) for e in logged]
        first, last = rates[: max(1, len(rates) // 4)], rates[-max(1, len(rates) // 4) :]
        mean = lambda found: sum(rate or 0.0 for _, rate in found) / len(found)  # noqa: E731
        print(f"{name}: training success {mean(first):.3f} in the first quarter, {mean(last):.3f} in the last")
    print("all faults were counted" if is_right else "NOT RIGHT: a count differs, or the run did not end")
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
