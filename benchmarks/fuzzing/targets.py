"""What is fuzzed: readers of texts, specs, statements and a server's lines, each with its laws."""

# ruff: noqa: E501 - tables of fragments read best with one family a row

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.fuzzing.constants import Earns
from rlenv import dialects
from rlenv.dialects.built_in import FAMILIES, row_of
from rlenv.episodes.environment import Environment, load
from rlenv.errors import RewardError, SpecError, UsageError
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.testing.dialects import check_reading, pieces
from rlenv.testing.hostile import HostileMcpServer
from rlenv.testing.hostile_policy import KINDS, material
from rlenv.testing.rewards import measure, reward_context

ROOT = Path(__file__).resolve().parents[2]


class Target(Protocol):
    """What is fuzzed: `seeds` to start from, `parts` to put in, and `run`, which raises where a law is broken."""

    @property
    def seeds(self) -> Sequence[str]: ...

    @property
    def parts(self) -> Sequence[str]: ...

    def run(self, text: str, which: int | None = None) -> Hashable:
        """What kind of outcome `text` has; `which` chooses one of several readers, all of them for None."""
        ...

    def close(self) -> None: ...


class Parse:
    """Every dialect, strict and lenient."""

    def __init__(self) -> None:
        self.readers = [
            dialects.get(name, lenient=lenient) for name in FAMILIES for lenient in {(), row_of(name).offers}
        ]
        self.readers += [dialects.get("hermes", thinking_open=True), dialects.get("hermes", thinking_open=False)]
        self.parts = sorted({part for reader in self.readers for part in pieces(reader)})
        self.seeds = self.parts

    def run(self, text: str, which: int | None = None) -> Hashable:
        readers = self.readers if which is None else [self.readers[which % len(self.readers)]]
        kinds = []
        for reader in readers:
            action = check_reading(reader, text)
            calls = tuple(type(c).__name__ if isinstance(c, ToolCall) else c.reason[:24] for c in action.calls[:4])
            kinds.append((reader.name, calls, action.is_cut, bool(action.thinking), len(text) > 200))
        return tuple(kinds)

    def close(self) -> None: ...


SPEC = """rlenv: 1
name: fuzzed
vars: {a: 1, b: {c: [1, 2]}}
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}]}}
prompt: {system: "Use the tools.", user: "{{ task.question }} {{ vars.b.c[0] }}"}
dialect: hermes
endpoints: {judge: {base_url: "http://127.0.0.1:9/v1", model: m, retries: 0}}
resources: {db: {kind: sqlite, script: "CREATE TABLE t(x)"}, dir: {kind: tempdir}}
tools:
  calculate: {kind: calculator}
  query: {kind: sql, resource: db, max_rows: 3, timeout_s: 1}
  run: {kind: code, session: true, tools: [calculate], time_s: 1}
  ask: {kind: http, url: "http://127.0.0.1:9/{{ args.x }}", parameters: {x: {type: string}}}
  day: {kind: command, command: [date, -d, "{{ args.x }}"], parameters: {x: string}}
  say: {kind: model, endpoint: judge, prompt: "{{ args.x }}", parameters: {x: string}}
observation: {max_chars: 100, template: "{{ result }}"}
user: {kind: scripted, cues: [{pattern: "a|b", say: "{{ task.answer }}"}], replies: ["###STOP###"]}
answer: {from: tag, tag: answer}
limits: {turns: 3, tool_calls: 4, episode_s: 60}
rewards:
  correct: {kind: rule, rule: numeric_match, expect: "{{ task.answer }}", weight: 1.0}
  same: {kind: rule, rule: json_schema, schema: {type: object, properties: {a: {type: string, pattern: "^a+$"}}}}
  style: {kind: judge, endpoint: judge, prompt: "{{ message }}", scale: [1, 5], gate: correct >= 1}
  calls: {kind: rule, rule: valid_calls, weight: 0.1, when: turn}
success: correct >= 1 and same >= 0.5
oracle:
  - for_each: "[1, 2]"
    call: {calculate: {expression: "{{ item }} + 1"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""


class Spec:
    """The loader and the compiler of specs, from one file without others."""

    def __init__(self) -> None:
        self.seeds = [SPEC]
        # A fuzzed name must start no program: nothing here is a server, and a golden file that has one stays out.
        for path in sorted((ROOT / "tests" / "golden" / "faults").glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            if "mcp" not in text:
                self.seeds.append(text)
        self.parts = [
            "{{ 1 }}", "{{", "}}", "{% for x in y %}", "${env:NO_SUCH}", "&a", "*a", "!!str ", "<<: ", "- ", ": ", "? ", "|", ">", "#", "'", '"', "\t",
            "[" * 50, "{" * 50, "1e999", ".nan", ".inf", "0x" + "f" * 400, "9" * 400, "null", "~", "true", "\x00", "\ud800", "\ufeff", "\u2028", "extends: x",
            "(a|aa)+$", "(?P<a>", "{{ vars.x.y }}", "{{ task.q[0] }}", "{{ ''.__class__ }}", "{{ 10**10**10 }}", "{{ [0]*10**9 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "#/definitions/x", "{$ref: '#/a'}", "..", "/", "a.b", "correct", "kind: ", "function: 'x.py:f'", "by: ", *SPEC.split("\n"), *(line + "\n" for line in SPEC.split("\n")),
        ]  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()

    def run(self, text: str, which: int | None = None) -> Hashable:
        if "mcp" in text:
            return "left out"
        path = Path(self._folder.name) / "env.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            environment = load(path)
        except SpecError as error:
            fault = error.faults[0]
            return (len(error.faults), fault.message[:20])
        asyncio.run(self._played(environment))
        return ("loads", len(environment.parts.tools))

    async def _played(self, environment: Environment) -> None:
        async with environment:
            for split in list(environment.spec.tasks)[:1]:
                try:
                    environment.tasks(split)
                except SpecError:
                    return

    def close(self) -> None:
        self._folder.cleanup()


SQL = """
rlenv: 1
name: fuzzed
tasks: {train: {rows: [{question: q, answer: 1}]}}
prompt: {user: "{{ task.question }}"}
resources:
  db: {kind: sqlite, path: numbers.sqlite, access: read_only}
  duck: {kind: duckdb, path: numbers.duckdb, access: read_only}
tools:
  query: {kind: sql, resource: db, timeout_s: 1}
  ask: {kind: sql, resource: duck, timeout_s: 1}
limits: {turns: 1000000, tool_calls: 1000000, invalid_actions: 1000000, episode_s: 100000}
rewards: {correct: {kind: rule, rule: exact_match, expect: "1"}}
"""
HONEST = "SELECT n, word FROM numbers ORDER BY n"


class Sql:
    """A sql tool on each engine, and the rule that compares queries as texts."""

    def __init__(self) -> None:
        rng = random.Random(0)
        made = [material("sql", kind, rng)[:2_000] for kind in KINDS for _ in range(30)]
        queries = [
            HONEST, "SELECT count(*), sum(n) FROM numbers WHERE word LIKE '%o%' GROUP BY n % 2 HAVING count(*) > 0",
            "WITH a AS (SELECT n FROM numbers) SELECT a.n FROM a JOIN numbers b ON a.n = b.n LEFT JOIN numbers c USING (n)",
            "SELECT CASE WHEN n > 2 THEN 'a' ELSE NULL END AS x, CAST(n AS TEXT), n || word FROM numbers LIMIT 2 OFFSET 1",
            "SELECT row_number() OVER (PARTITION BY word ORDER BY n DESC) FROM numbers UNION ALL SELECT 1 EXCEPT SELECT 2",
        ]  # fmt: skip
        self.seeds = [*queries, *made]
        words = " ".join(queries).split()
        self.parts = [*words, *(f" {word} " for word in words), *made, "(", ")", ",", ";", "'", '"', "--", "/*", "\x00", "\ud800", "9" * 30, "1e999", "NULL", "x''", "||", "SELECT ", "(SELECT 1)"]  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        rows = "CREATE TABLE numbers(n INTEGER, word TEXT); INSERT INTO numbers VALUES (1,'one'),(2,'two'),(3,NULL)"
        import sqlite3

        with sqlite3.connect(folder / "numbers.sqlite") as small:
            small.executescript(rows)
        small.close()
        import duckdb

        with duckdb.connect(str(folder / "numbers.duckdb")) as other:
            other.execute(rows)
        (folder / "env.yaml").write_text(SQL, encoding="utf-8")
        self._runner = asyncio.Runner()
        self._environment = load(folder / "env.yaml")
        self._right: dict[str, str] = {}
        for tool in ("query", "ask"):
            self._right[tool] = self._call(tool, HONEST)[0].text

    def _call(self, tool: str, *statements: str) -> Sequence[ToolResult]:
        async def main() -> Sequence[ToolResult]:
            async with self._environment.start(task=0) as episode:
                found: list[ToolResult] = []
                for sql in statements:
                    step = await episode.step(Message("assistant", "", (ToolCall(tool, {"sql": sql}),)))
                    assert not step.is_last, f"law: a statement ends no episode; {step.reason}"
                    found += step.observation.results
                return found

        return self._runner.run(main())

    def run(self, text: str, which: int | None = None) -> Hashable:
        kinds: list[Hashable] = []
        for number, tool in enumerate(("query", "ask", "sql_match")):
            if which is not None and which % 3 != number:
                continue
            if tool == "sql_match":
                try:
                    context = reward_context(answer=text, task={"answer": HONEST})
                    kinds.append(measure("sql_match", context, expect="{{ task.answer }}").value)
                except (RewardError, UsageError) as error:
                    raise AssertionError(f"law: an answer never makes its reward invalid; {error}") from error
                continue
            first, second = self._call(tool, text, HONEST)
            assert first.reason not in ("bug", "worker"), f"law: a statement breaks no tool; {first}"
            assert len(str(first.value)) < 20_000_000, "law: a result is bounded"
            assert second.text == self._right[tool], f"law: the next statement gets its rows; {second}"
            kinds.append((tool, first.outcome, first.text[:25]))
        return tuple(kinds)

    def close(self) -> None:
        self._runner.run(self._environment.aclose())
        self._runner.close()
        self._folder.cleanup()


MCP = """
rlenv: 1
name: fuzzed
tasks: {train: {rows: [{question: q, answer: 1}]}}
prompt: {user: "{{ task.question }}"}
tools:
  server: {kind: mcp, command: COMMAND, scope: process, timeout_s: 0.3}
calls: {breaker: {failures: 1000000000}}
limits: {turns: 1000000, tool_calls: 1000000, invalid_actions: 1000000, episode_s: 100000}
rewards: {correct: {kind: rule, rule: exact_match, expect: "1"}}
"""


GOOD = '\n{"jsonrpc":"2.0","id":@,"result":{"content":[{"type":"text","text":"good"}]}}'


class Mcp:
    """The client over stdio: the lines that answer a call are the input, with the call's id for each @.

    A good answer comes behind them, so that a call whose input is no answer need not wait for its time limit.
    """

    def __init__(self) -> None:
        head = '{"jsonrpc":"2.0","id":@,"result":'
        self.seeds = [
            head + '{"content":[{"type":"text","text":"a"}]}}',
            head + '{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":[1,{"b":null}]},"isError":false}}',
            head + '{"content":[{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}],"isError":true}}',
            head + '{"content":[{"type":"resource","resource":{"uri":"file:///a","text":"b","mimeType":"text/plain"}}]}}',
            head + '{"content":[{"type":"audio","data":"QUJD","mimeType":"audio/wav"},{"type":"resource_link","name":"n","uri":"a:b"}]}}',
            '{"jsonrpc":"2.0","id":@,"error":{"code":-32603,"message":"m","data":{"a":1}}}',
            '{"jsonrpc":"2.0","id":"s1","method":"ping"}\n' + head + '{"content":[]}}',
            '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' + head + '{"content":[]}}',
            '{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}\n' + head + '{"content":[]}}',
        ]  # fmt: skip
        self.parts = [
            '"', "{", "}", "[", "]", ",", ":", "null", "true", "1e999", "NaN", "9" * 400, "-0", "\\ud800", "\\u0000", "\x00", "\ud800", "\n", "\r", "\u2028", "@", "[" * 300, '{"a":' * 300,
            '"id":1', '"id":null', '"content"', '"type":"text"', '"text":1', '"isError":1', '"structuredContent":1', '"_meta":{"progressToken":1}', '"result":1', '"error":{}', '"error":{"code":"x"}',
            '"method":"ping"', '"params":[]', '"annotations":{"audience":["x"]}', '"mimeType":""', '"data":"!"', '"uri":""', "notifications/cancelled", '"jsonrpc":"1.0"', "\n{}\n", "\n[]\n", "\n1\n",
        ]  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "env.yaml"
        path.write_text(MCP.replace("COMMAND", str(HostileMcpServer("as told").command)), encoding="utf-8")
        self._runner = asyncio.Runner()
        self._environment = load(path)

    def run(self, text: str, which: int | None = None) -> Hashable:
        async def main() -> Sequence[ToolResult]:
            async with self._environment.start(task=0) as episode:
                found: list[ToolResult] = []
                for tool, said in (("odd", text + GOOD), ("echo", "still there")):
                    step = await episode.step(Message("assistant", "", (ToolCall(tool, {"text": said}),)))
                    assert not step.is_last, f"law: a server's answer ends no episode; {step.reason}"
                    found += step.observation.results
                return found

        odd, echo = self._runner.run(main())
        assert odd.outcome in ("ok", "failed", "timeout", "bad_arguments", "malformed"), (
            f"law: a call ends as a result; {odd}"
        )
        assert echo.text == "still there" or echo.outcome != "ok", f"law: no call gets the answer of another; {echo}"
        return (odd.outcome, odd.reason, odd.text[:20], echo.outcome)

    def close(self) -> None:
        self._runner.run(self._environment.aclose())
        self._runner.close()
        self._folder.cleanup()


TARGETS: dict[str, Callable[[], Target]] = {"parse": Parse, "spec": Spec, "sql": Sql, "mcp": Mcp, "earns": Earns}
