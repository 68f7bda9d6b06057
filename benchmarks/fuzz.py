"""Feeds changed and hostile inputs to what reads from outside, and keeps what breaks a law.

    python benchmarks/fuzz.py [--seconds 60] [--seed 0] [--only parse,spec,sql,mcp] [--corpus FOLDER] [--growth]

    parse  texts, read by every dialect, strict and lenient: no exception, calls in order, arguments that are JSON
    spec   YAML files, loaded and compiled: a SpecError or an environment, nothing else
    sql    statements, through a sql tool on SQLite and DuckDB and through sql_match: a result or a failure of the
           policy, bounded, and the next statement gets its right rows
    mcp    lines that a server answers a call with: a result or a failure, and the next call is answered

and for all of them no more than 0.5 s of CPU time of the thread that asks. The time is divided among the targets. An
input is made from the corpus and from fragments, by cutting, doubling and putting in; one that has a new kind of
outcome is changed further. What breaks a law is made as small as the law stays broken, written to the corpus
(tests/attack/corpus/TARGET/), which tests/attack/test_corpus.py reads each time, and printed; the exit code is 1 then.

With --growth, each dialect, strict and lenient, also reads texts of 100 kB and 1 MB that are made to be slow, of its own
marks in many orders too, and the growth of the cost is printed; nothing is fuzzed where --seconds is 0.

Plain seeded mutation and no library: atheris has to be built with clang and sees no further than Python's own bytecode,
while the code at stake is in C and Rust libraries; hypothesis looks for a counterexample a test, not for as many
kinds of outcome as fit into an hour, and keeps its examples as opaque bytes. Neither would save a line of the targets.
"""

# ruff: noqa: E501 - tables of fragments read best with one family a row

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Protocol

from rlenv import dialects
from rlenv.dialects.built_in import FAMILIES, row_of
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.json_body import marks_of
from rlenv.episodes.environment import Environment, load
from rlenv.errors import RewardError, SpecError, UsageError
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.testing.dialects import check_reading, hostile_texts, pieces, seconds
from rlenv.testing.hostile import HostileMcpServer
from rlenv.testing.hostile_material import KINDS, material
from rlenv.testing.rewards import measure, reward_context

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "attack" / "corpus"
LIMIT_S = 0.5
SMALL, LARGE = 100_000, 1_000_000
SHAPES = 12
"""Texts of a dialect's own marks, chosen by its name, whose growth is measured."""
BETWEEN = [
    '"',
    "'",
    "{",
    "[",
    "(",
    "}",
    "\n",
    " ",
    "\\",
    ":",
    ",",
    "search",
    "a(x=1)\n",
    "[f(",
    '{"name": "search", "arguments": {}}',
    "<![CDATA[",
    "]]>",
]


class Target(Protocol):
    """What is fuzzed: `seeds` to start from, `parts` to put in, and `run`, which raises where a law is broken."""

    seeds: Sequence[str]
    parts: Sequence[str]

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
  day: {kind: command, argv: [date, -d, "{{ args.x }}"], parameters: {x: string}}
  say: {kind: model, endpoint: judge, prompt: "{{ args.x }}", parameters: {x: string}}
observation: {max_chars: 100, template: "{{ result }}"}
user: {kind: scripted, cues: [{when: "a|b", say: "{{ task.answer }}"}], replies: ["###STOP###"]}
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
            "#/definitions/x", "{$ref: '#/a'}", "..", "/", "a.b", "correct", "kind: ", "python: 'x.py:f'", "by: ", *SPEC.split("\n"), *(line + "\n" for line in SPEC.split("\n")),
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


TARGETS: dict[str, Callable[[], Target]] = {"parse": Parse, "spec": Spec, "sql": Sql, "mcp": Mcp}


def corpus(name: str, folder: Path = CORPUS) -> list[str]:
    """The kept inputs of a target."""
    return [path.read_bytes().decode("utf-8", "surrogatepass") for path in sorted((folder / name).glob("*.txt"))]


def broken(target: Target, text: str, which: int | None = None) -> tuple[str, Hashable]:
    """What law `text` breaks ("" where it breaks none), and its kind of outcome."""
    began = time.thread_time()
    try:
        kind = target.run(text, which)
    except AssertionError as error:
        return str(error)[:60].partition(";")[0], None
    except Exception as error:  # whatever comes out is what is looked for
        return f"{type(error).__name__} is raised", None
    if time.thread_time() - began > LIMIT_S:
        began = time.thread_time()  # once more before it counts
        target.run(text, which)
        if time.thread_time() - began > LIMIT_S:
            return f"law: no more than {LIMIT_S} s of CPU time", None
    return "", kind


def smallest(target: Target, text: str, law: str, which: int | None) -> str:
    """The smallest text found that breaks the same law, by leaving parts out."""
    size, end = max(len(text) // 2, 1), time.monotonic() + 20
    while size and time.monotonic() < end:
        at = 0
        while at < len(text) and time.monotonic() < end:
            shorter = text[:at] + text[at + size :]
            if broken(target, shorter, which)[0] == law:
                text = shorter
            else:
                at += size
        size //= 2
    return text


def changed(rng: random.Random, text: str, parts: Sequence[str]) -> str:
    """A text with a part cut out, doubled or put in."""
    first, last = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    if rng.random() < 0.5:
        last = min(last, first + 12)
    middle = rng.choice(("", text[first:last] * 2, rng.choice(parts), rng.choice(parts) + text[first:last]))
    return (text[:first] + middle + text[last:])[:4_000]


def fuzz(name: str, limit_s: float, seed: int, folder: Path) -> int:
    """Fuzzes one target; how many new laws were broken."""
    target = TARGETS[name]()
    rng = random.Random(f"{name}/{seed}")
    kept = [*corpus(name, folder), *target.seeds]
    kinds: set[Hashable] = set()
    found: dict[str, str] = {}
    count, end = 0, time.monotonic() + limit_s
    try:
        while time.monotonic() < end:
            pick = rng.random()
            if pick < 0.6:
                text = changed(rng, rng.choice(kept), target.parts)
            elif pick < 0.95:
                text = "".join(rng.choices(target.parts, k=rng.randint(1, 16)))[:4_000]
            else:
                text = "".join(chr(rng.randrange(0x11_0000)) for _ in range(rng.randint(0, 60)))
            law, kind = broken(target, text, count)
            if law and law not in found:
                found[law] = smallest(target, text, law, count)
            elif not law and kind not in kinds and len(kept) < 20_000:
                kinds.add(kind)
                kept.append(text)
            count += 1
    finally:
        target.close()
    print(f"{name:6} {count:>9} inputs, {len(kinds):>6} kinds of outcome, {len(found)} laws broken", flush=True)
    for law, text in found.items():
        path = folder / name / f"{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        print(f"       {law}: {text[:200]!r}\n       kept as {path}", flush=True)
    return len(found)


def marks(dialect: TextDialect) -> list[str]:
    """All that the dialect's row looks for in a text."""
    spec = dialect.spec
    found = [spec.section_open, spec.section_close, *spec.drop, spec.thinking_marks.open, spec.thinking_marks.close]
    for row in spec.calls if isinstance(spec.calls, tuple) else (spec.calls,):
        found += [
            *marks_of(row.open),
            *marks_of(row.close),
            *marks_of(row.key_open),
            *marks_of(row.after_name),
            *row.value_open,
            *row.spellings,
        ]
        found += [
            row.key_close,
            row.value_close,
            row.quote,
            row.before_name,
            row.id_mark,
            row.name_close,
            row.type_open,
            row.separator,
        ]
    return [mark for mark in dict.fromkeys(found) if mark]


def mark_texts(dialect: TextDialect, size: int) -> dict[str, str]:
    """Texts of about `size` characters made of the dialect's own marks, in all kinds of orders; the same each time."""
    rng = random.Random(dialect.name)
    own = marks(dialect)
    call = dialect.render_action(Message("assistant", "", (ToolCall("search", {"query": "x"}),)))
    parts = [*own, *own, call, call[: 2 * len(call) // 3], call[len(call) // 2 :], *BETWEEN]
    opened = own[:1] * bool(own)
    units = [[*opened, filler] for filler in ("a(x=1)\n", "[f(x=1)]", '{"name": "a", "arguments": {}}', '"', "'")]
    units += [rng.choices(parts, k=rng.randint(1, 4)) for _ in range(SHAPES)]
    texts = {f"{unit}": "".join(unit) for unit in units}
    return {kind: (unit * (size // len(unit) + 1))[:size] for kind, unit in texts.items()}


def growth() -> None:
    """Prints how the cost of reading grows from 100 kB to 1 MB."""
    worst = []
    for name, lenient in [(row, given) for row in FAMILIES for given in {(), row_of(row).offers}]:
        dialect = dialects.get(name, lenient=lenient)
        assert isinstance(dialect, TextDialect)
        large = {**hostile_texts(dialect, LARGE), **mark_texts(dialect, LARGE)}
        for kind, text in {**hostile_texts(dialect, SMALL), **mark_texts(dialect, SMALL)}.items():
            low, high = seconds(dialect, text, repeat=3), seconds(dialect, large[kind], repeat=1)
            if high > 11 * low:  # once more before it counts: other processes disturb single measurements
                low = min(low, seconds(dialect, text, repeat=5))
                high = min(high, seconds(dialect, large[kind], repeat=3))
            # Below a millisecond the ratio measures the clock.
            if high > 0.01:
                worst.append((high / (10 * low), high, f"{name}{' lenient' * bool(lenient)}: {kind}"))
    worst.sort(reverse=True)
    print(f"\ncost at 1 MB over ten times the cost at 100 kB; {len(worst)} pairs above 10 ms at 1 MB")
    for ratio, high, label in worst[:12]:
        print(f"{ratio:7.2f} {high * 1e3:9.1f} ms  {label}")
    print(f"above 1.2: {sum(ratio > 1.2 for ratio, _, _ in worst)}")


def main(given: Sequence[str] | None = None) -> int:
    """Fuzzes; 1 where a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args(given)
    logging.disable(logging.CRITICAL)  # failures are what is looked for, not news
    names = [name for name in arguments.only.split(",") if name] if arguments.seconds else []
    laws: Counter[str] = Counter()
    for name in names:
        laws[name] = fuzz(name, arguments.seconds / len(names), arguments.seed, arguments.corpus)
    if arguments.growth:
        growth()
    return 1 if laws.total() else 0


if __name__ == "__main__":
    sys.exit(main())
