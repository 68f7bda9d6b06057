"""The kinds of workers that faults are done to: a spec whose only reward stands on each, and what is right in it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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
        "rewards: {correct: {kind: rule, rule: math_equal, expect: '{{ task.expected }}', cpu_s: 1}}\n",
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
    "tests": Kind(
        "rewards: {correct: {kind: tests, calls: '{{ task.expected }}', entry: f, time_s: 1}}\n",
        "answer",
        lambda n: f"def f(a): return a * {n}",
        lambda n: [{"args": [a], "expected": a * n} for a in range(3)],
        tool=False,
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
            "work: {kind: command, command: [sh, -c, 'set -e; echo $(($1 * $1)) > x; cat x', sh, '{{ args.text }}'],"
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
