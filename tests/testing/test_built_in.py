"""Every kind that rlenv brings keeps the laws that users can run on their own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.endpoints import Endpoint
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import nest
from rlenv.errors import MissingExtra
from rlenv.language.kinds import BUILT_IN, Group
from rlenv.language.spec import SamplingSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.policies.openai import OpenAIPolicy
from rlenv.policies.scripted import OraclePolicy, RandomPolicy, ScriptPolicy
from rlenv.resources.base import ResourceContext
from rlenv.testing import (
    check_environment,
    check_policy_async,
    check_resource,
    check_reward,
    check_reward_async,
    check_tool_async,
    check_user_async,
)
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.testing.laws import compiled
from rlenv.testing.rewards import reward_context, turn
from rlenv.testing.tools import context, fake_tool
from rlenv.trajectory import RewardBreakdown, TermResult, Trajectory
from rlenv.users.base import UserContext
from tests.hosts.serving import serving
from tests.support.environments import BASE, Make, shipped_names

SERVERS = Path(__file__).parents[1] / "tools" / "servers"
INNER = """
rlenv: 1
name: inner
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "Solve {{ task.question }}"}
rewards: {answered: {kind: rule, rule: answered}}
"""
FUNCTIONS = """
def shout(text: str) -> str:
    '''Says it louder.'''
    return text.upper()

class Box:
    def __init__(self): self.held = []

def reply(message, turn):
    return None if turn > 1 else f"{turn}: {message}"

def score(answer):
    return float(answer == "4")
"""
CALL = {"message": '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+1"}}\n</tool_call>'}
pytestmark = pytest.mark.timeout(240)


def in_sandboxes(group: Group, *names: str) -> list[Any]:
    """The kinds of a group, those that need bubblewrap marked."""
    return [pytest.param(one, marks=pytest.mark.sandbox) if one in names else one for one in BUILT_IN[group]]


def endpoint(server: FakeEndpoint) -> dict[str, Endpoint]:
    return {"writer": Endpoint(name="writer", base_url=server.base_url, model="toy", retries=0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "toys.sqlite")) as raw:
        raw.executescript("CREATE TABLE toy (name TEXT); INSERT INTO toy VALUES ('ball'), ('kite');")
    rows = [
        {"id": "a", "title": "Kite", "text": "A kite flies."},
        {"id": "b", "title": "Ball", "text": "A ball rolls."},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "inner.yaml").write_text(INNER)
    (tmp_path / "toy.yaml").write_text(BASE.replace("turns: 4", "turns: 40"))
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return tmp_path


# Tools: how each is asked


@asynccontextmanager
async def alone(folder: Path, **keys: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"base": folder, **keys}


@asynccontextmanager
async def of_http(folder: Path) -> AsyncIterator[dict[str, Any]]:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"text": request.query["text"]})

    app = web.Application()
    app.router.add_get("/echo", echo)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    entry = {
        "kind": "http",
        "url": f"http://127.0.0.1:{runner.addresses[0][1]}/echo",
        "query": {"text": "{{ args.text }}"},
        "parameters": {"text": "string"},
        "description": "Echoes.",
    }
    try:
        yield {"base": folder, "tool": entry, "good": [{"text": "a"}, {"text": "☃"}], "bad": [{}, {"text": 1}]}
    finally:
        await runner.cleanup()


@asynccontextmanager
async def of_endpoint(
    folder: Path, answer: str, entry: Mapping[str, Any], **keys: Any
) -> AsyncIterator[dict[str, Any]]:
    async with FakeEndpoint(lambda body: answer) as server:
        parts = {"endpoints": endpoint(server), "nest": partial(nest, folder / "outer.yaml", Environment)}
        yield {"base": folder, "tool": {**entry, "endpoint": "writer"}, **parts, **keys}


@asynccontextmanager
async def of_mcp(folder: Path) -> AsyncIterator[dict[str, Any]]:
    pytest.importorskip("mcp")
    limits = {"start_timeout_s": 90.0, "timeout_s": 60.0}
    entry = {"kind": "mcp", "command": [sys.executable, "lab.py"], "include": ["echo"], **limits}
    made = await asyncio.to_thread(compiled, "tools", entry, base=SERVERS)
    yield {"tool": made[0], "good": [{"text": "a"}], "bad": [{}], "make_context": lambda: context(seconds=120)}


@asynccontextmanager
async def of_sql(folder: Path) -> AsyncIterator[dict[str, Any]]:
    resource = compiled("resources", {"kind": "sqlite", "path": "toys.sqlite", "access": "copy"}, base=folder)
    yield {
        "tool": {"kind": "sql", "resource": "db"},
        "resources": {"db": resource},
        "good": [{"sql": "SELECT count(*) FROM toy"}, {"sql": "INSERT INTO toy VALUES ('doll')"}],
        "bad": [{}, {"sql": 3}],
        "failing": [{"sql": "SELECT nothing"}],
    }


@asynccontextmanager
async def of_gymnasium(folder: Path) -> AsyncIterator[dict[str, Any]]:
    pytest.importorskip("gymnasium")
    yield {
        "tool": {"kind": "gymnasium", "resource": "world"},
        "resources": {"world": compiled("resources", {"kind": "gymnasium", "id": "FrozenLake-v1"}, base=folder)},
        "good": [{"action": 0}, {"action": 3}],
        "bad": [{}, {"action": 4}, {"action": "left"}],
    }


@asynccontextmanager
async def of_openenv(folder: Path) -> AsyncIterator[dict[str, Any]]:
    with serving(load(folder / "toy.yaml")) as served:
        entry = {"kind": "openenv", "url": served.url}
        yield {
            "tool": {"kind": "openenv", "resource": "world"},
            "resources": {"world": compiled("resources", entry, base=folder)},
            "good": [CALL, {"message": CALL["message"].replace("1+1", "2+2")}],
            "bad": [{}, {"message": 4}, {"answer": "5"}],
        }


@asynccontextmanager
async def of_bash(folder: Path) -> AsyncIterator[dict[str, Any]]:
    yield {
        "tool": {"kind": "bash", "resource": "machine", "timeout_s": 30.0},
        "resources": {"machine": compiled("resources", {"kind": "workspace"}, base=folder)},
        "good": [{"command": "echo a > file; cat file"}, {"command": "exit 3"}, {"command": "☃"}],
        "bad": [{}, {"command": 3}],
    }


@asynccontextmanager
async def of_files(folder: Path) -> AsyncIterator[dict[str, Any]]:
    yield {
        "tool": {"kind": "files", "resource": "machine", "timeout_s": 30.0},
        "resources": {"machine": compiled("resources", {"kind": "workspace"}, base=folder)},
        "good": [{"command": "create", "path": "a", "file_text": "☃"}, {"command": "view", "path": "/app"}],
        "bad": [{}, {"command": "undo", "path": "a"}, {"command": "view"}],
        "failing": [{"command": "view", "path": "none"}, {"command": "create", "path": "a"}],
    }


@asynccontextmanager
async def of_verl(folder: Path) -> AsyncIterator[dict[str, Any]]:
    pytest.importorskip("verl.tools.function_tool")
    (folder / "their_functions.py").write_text(
        "from verl.tools.function_tool import function_tool\n\n"
        "@function_tool\ndef shouted(text: str) -> str:\n"
        '    """Shouts.\n\n    Args:\n        text: what is shouted\n    """\n    return text.upper()\n'
    )
    yield {
        "base": folder,
        "tool": {"kind": "verl", "tools": "their_functions.py"},
        "good": [{"text": "a"}],
        "bad": [{}],
    }


TEXT = {"text": "string"}
Opens = Callable[[Path], AbstractAsyncContextManager[dict[str, Any]]]
TOOLS: dict[str, Opens] = {
    "bash": of_bash,
    "agent": lambda folder: of_endpoint(
        folder,
        "<answer>5</answer>",
        {"kind": "agent", "spec": "inner.yaml", "description": "Solves."},
        good=[{"question": "2 + 3"}],
        bad=[{}],
    ),
    "calculator": lambda folder: alone(
        folder, tool={"kind": "calculator"}, good=[{"expression": "1/3"}], bad=[{}], failing=[{"expression": "1/0"}]
    ),
    "code": lambda folder: alone(
        folder, tool={"kind": "code", "sandbox": "monty"}, good=[{"code": "1 + 1"}], failing=[{"code": "1/0"}]
    ),
    "command": lambda folder: alone(
        folder,
        tool={
            "kind": "command",
            "command": ["printf", "%s", "{{ args.text }}"],
            "parameters": TEXT,
            "description": "So.",
        },
        good=[{"text": "a b"}, {"text": "☃"}],
        bad=[{}, {"text": 1}],
        failing=[{"text": "nul\0l"}],
    ),
    "files": of_files,
    "gymnasium": of_gymnasium,
    "http": of_http,
    "mcp": of_mcp,
    "model": lambda folder: of_endpoint(
        folder,
        "short",
        {"kind": "model", "prompt": "Sum up {{ args.text }}", "parameters": TEXT, "description": "Sums up."},
        good=[{"text": "long"}],
        bad=[{}],
    ),
    "openenv": of_openenv,
    "python": lambda folder: alone(
        folder, tool={"kind": "python", "function": "functions.py:shout"}, good=[{"text": "a"}], bad=[{}, {"text": 1}]
    ),
    "search": lambda folder: alone(
        folder,
        tool={"kind": "search", "path": "corpus.jsonl", "index": "cache"},
        good=[{"query": "kite"}, {"query": ""}],
        bad=[{}, {"query": 3}],
    ),
    "sql": of_sql,
    "verl": of_verl,
}


@pytest.mark.parametrize("kind", in_sandboxes("tools", "bash", "files"))
def test_a_built_in_tool_keeps_the_laws(kind: str, folder: Path) -> None:
    async def main() -> None:
        async with TOOLS[kind](folder) as keys:
            await check_tool_async(keys.pop("tool"), **keys)

    try:
        asyncio.run(main())
    except MissingExtra as error:
        pytest.skip(str(error))


# Resources: what is looked at, and how it is changed


def asked(sql: str) -> Callable[[Any], Any]:
    async def ask(database: Any) -> Any:
        loop = asyncio.get_running_loop()
        found = await database.query(sql, deadline=loop.time() + 60)
        return [list(row) for row in found.rows]

    return ask


def in_a_shell(command: str) -> Callable[[Any], Any]:
    async def run(workspace: Any) -> Any:
        return (await workspace.run(command, 60)).output.decode()

    return run


TABLE: dict[str, Any] = {"look": asked("SELECT name FROM toy"), "change": asked("INSERT INTO toy VALUES ('doll')")}
RESOURCES: dict[str, dict[str, Any]] = {
    "duckdb": {"entry": {"path": "toys.duckdb", "access": "copy"}, **TABLE},
    "gymnasium": {
        "entry": {"id": "FrozenLake-v1", "arguments": {"is_slippery": False}},
        "look": lambda world: [world.text, world.steps],
        "change": lambda world: world.step(1, 0),
    },
    "openenv": {
        "look": lambda world: [world.text, world.steps],
        "change": lambda world: world.step(CALL, 0, time.monotonic() + 60),
    },
    "python": {
        "entry": {"function": "functions.py:Box"},
        "look": lambda box: box.held,
        "change": lambda box: box.held.append(1),
    },
    "sqlite": {"entry": {"path": "{{ task.db }}.sqlite", "access": "copy"}, "tasks": [{"db": "toys"}], **TABLE},
    "tempdir": {
        "entry": {},
        "look": lambda place: sorted(path.name for path in place.path.iterdir()),
        "change": lambda place: (place.path / "note").touch(),
    },
    "workspace": {"entry": {}, "look": in_a_shell("ls"), "change": in_a_shell("touch note")},
}


@pytest.mark.parametrize("kind", in_sandboxes("resources", "workspace"))
def test_a_built_in_resource_keeps_the_laws(kind: str, folder: Path) -> None:
    keys = dict(RESOURCES[kind])
    if kind == "openenv":
        with serving(load(folder / "toy.yaml")) as served:
            check_resource({"kind": kind, "url": served.url}, base=folder, **keys)
        return
    if kind == "duckdb":
        with closing(pytest.importorskip("duckdb").connect(str(folder / "toys.duckdb"))) as raw:
            raw.execute("CREATE TABLE toy (name TEXT)")
            raw.execute("INSERT INTO toy VALUES ('ball'), ('kite')")
    check_resource({"kind": kind, **keys.pop("entry")}, base=folder, **keys)


def test_a_database_that_is_not_there_is_a_resource_error(folder: Path) -> None:
    entry = {"kind": "sqlite", "path": "{{ task.db }}.sqlite", "access": "read_only"}
    look = asked("SELECT name FROM toy")
    check_resource(entry, base=folder, look=look, tasks=[{"db": "toys"}], failing=[{"db": "gone"}])


# Rewards: what is measured


SEARCHED = [
    turn("<think>a</think><search>b</search>", results=[ToolResult("search", "Paris is large.")]),
    turn("<think>c</think><answer>Paris</answer>", index=1),
]
CALLED = [turn("", calls=[ToolCall("look", {})], results=[ToolResult("look", "seen", call_id="1")]), turn("4", index=1)]


def answers(*texts: str | None, **task: Any) -> list[Any]:
    return [reward_context(answer=text, task=task) for text in texts]


NUMBERS: dict[str, Any] = {"contexts": answers("4", "5", "", None, answer="4"), "invalid": answers("4", question="?")}
MATHS: dict[str, Any] = {
    "contexts": [reward_context(answer="4", task={"answer": "4"}, turns=[turn(f"So \\boxed{{{n}}}")]) for n in (4, 5)],
}
SIGNED = {"within": (-1, 1)}
NAMES = [
    reward_context(answer=answer, task={"golden_answers": ["Paris"]}, turns=SEARCHED)
    for answer in ("Paris", "Rome", None)
]
RULES: dict[str, dict[str, Any]] = {
    "answered": {"contexts": answers("4", None)},
    "contains": NUMBERS,
    "exact_match": NUMBERS,
    "f1": NUMBERS,
    "gsm8k": {**NUMBERS, "contexts": answers("#### 4", "5", None, answer="4")},
    "json_match": {"contexts": answers('{"a": 1}', "{", None, answer={"a": 1})},
    "json_schema": {"keys": {"schema": {"type": "integer"}}, "contexts": answers("1", "x", None)},
    "length": {"keys": {"max": 3}, "contexts": answers("1", "12345", None)},
    "math_equal": {**NUMBERS, "contexts": answers("4", "\\frac{8}{2}", "5", None, answer="4")},
    "numeric_match": NUMBERS,
    "python": {"keys": {"function": "functions.py:score"}, "contexts": answers("4", "5", None)},
    "regex": {"keys": {"pattern": "[0-9]"}, "contexts": answers("4", "x", None)},
    "rl_factory_search": {"contexts": NAMES, "within": (-1, 1.1)},
    "search_r1": {"contexts": NAMES},
    "search_r1_format": {"contexts": NAMES},
    "skyrl_aime": {**MATHS, **SIGNED},
    "skyrl_gsm8k": {"contexts": answers("#### 4", "5", answer="4")},
    "skyrl_synsql": {"keys": {"tool": "look"}, "contexts": [], **SIGNED},
    "sql_match": {"contexts": answers("SELECT a FROM t", "SELECT", None, gold_sql="select a from t")},
    "tool_call_count": {"keys": {"max": 1}, "contexts": [reward_context(answer="4", turns=CALLED)]},
    "tool_called": {"keys": {"tool": "look"}, "contexts": [reward_context(answer="4", turns=CALLED)]},
    "turn_count": {"keys": {"max": 1}, "contexts": [reward_context(answer="4", turns=CALLED)]},
    "calls_match": {
        "keys": {"expect": [{"name": "look", "arguments": {}}]},
        "contexts": [reward_context(answer="4", turns=CALLED), *answers("4")],
    },
    "value": {"keys": {"value": "{{ (turn + 1) / 2 }}"}, "contexts": [reward_context(answer="4", turns=CALLED)]},
    "valid_calls": {"contexts": [reward_context(answer="4", turns=CALLED), *answers("4")]},
    "reasoning_gym": {"contexts": [reward_context(answer="4", task={"reasoning_gym": {"dataset": "chain_sum"}})]},
    "verl_dapo": {**MATHS, **SIGNED},
    "verl_math": MATHS,
}
LOOK = {"look": fake_tool("look", lambda arguments: "seen", parameters={"type": "object", "properties": {}})}


async def calls(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    return ToolResult(name, "seen", "ok", "seen")


@pytest.mark.parametrize("rule", BUILT_IN["rules"])
def test_a_built_in_rule_keeps_the_laws(rule: str, folder: Path) -> None:
    keys = {"within": (0, 1), **RULES[rule]}
    if rule == "skyrl_synsql":
        turns = [
            turn("<think>a</think>", calls=[ToolCall("look", {"sql": "SELECT 1"})], results=[ToolResult("look", "1")])
        ]
        keys["contexts"] = [
            reward_context(answer=text, task={"gold_sql": "SELECT 1"}, turns=turns, call=calls) for text in ("1", None)
        ]
    try:
        check_reward({"rule": rule, **keys.pop("keys", {})}, keys.pop("contexts"), base=folder, tools=LOOK, **keys)
    except MissingExtra as error:
        pytest.skip(str(error))


def graded(value: float, answer: str) -> Trajectory:
    reward = RewardBreakdown(value, {"right": TermResult("right", "valid", value, 1.0)}, (value,))
    return Trajectory("toy-v0", "train", 0, 0, {}, (), (turn(answer),), answer, True, False, "answer", reward, True)


def check_rule(folder: Path) -> None:
    check_reward({"kind": "rule", "rule": "answered"}, answers("4", None), within=(0, 1), base=folder)


def check_verify(folder: Path) -> None:
    entry = {"kind": "verify", "tool": "look", "arguments": {}, "expect": "{{ task.gold }}", "compare": "equal"}
    contexts = [reward_context(answer="4", task={"gold": gold}, call=calls) for gold in ("seen", "lost")]
    check_reward(entry, contexts, within=(0, 1), base=folder, tools=LOOK)


def check_state(folder: Path) -> None:
    (folder / "shop.py").write_text("def shop():\n    return {}\n")
    shop = compiled("resources", {"kind": "python", "function": "shop.py:shop"}, name="shop", base=folder)

    @asynccontextmanager
    async def after(calls: Any, look: Any) -> AsyncIterator[Mapping[str, Any]]:
        yield {"shop": {"orders": calls}}

    contexts = [
        replace(reward_context(task={"gold": ["a"]}, resources={"shop": {"orders": [one]}}), after=after)
        for one in "ab"
    ]
    check_reward({"kind": "state"}, contexts, within=(0, 1), base=folder, resources={"shop": shop})


def check_judge(folder: Path) -> None:
    check_judge_of_group(folder)

    async def main() -> None:
        async with FakeEndpoint(lambda body: json.dumps({"reasoning": "so", "score": 3})) as server:
            entry = {
                "kind": "judge",
                "prompt": "How good is {{ task.question }}?",
                "endpoint": "writer",
                "cache": False,
            }
            asked_for = [reward_context(answer="4", task={"question": "why?"})]
            await check_reward_async(entry, asked_for, within=(0, 1), endpoints=endpoint(server))
        async with FakeEndpoint([Reply(500)]) as down:
            lost: dict[str, Any] = {"invalid": asked_for, "endpoints": endpoint(down)}
            with pytest.raises(AssertionError, match="law: what can be measured is; "):
                await check_reward_async(entry, asked_for, **lost)

    asyncio.run(main())


def check_judge_of_group(folder: Path) -> None:
    async def main() -> None:
        async with FakeEndpoint(lambda body: json.dumps({"reasoning": "so", "better": "first"})) as server:
            entry = {"kind": "judge", "prompt": "Which?", "endpoint": "writer", "pairwise": {"with": "group"}}
            group = [graded(0.0, "a"), graded(1.0, "b"), graded(1.0, "c")]
            await check_reward_async(entry, groups=[group, group[:2]], within=(0, 1), endpoints=endpoint(server))
        async with FakeEndpoint([Reply(500)]) as down:
            lost: dict[str, Any] = {"invalid": [group], "endpoints": endpoint(down)}
            with pytest.raises(AssertionError, match="law: what can be measured is; "):
                await check_reward_async(entry, groups=[group], **lost)

    asyncio.run(main())


def check_group(folder: Path) -> None:
    group = [graded(0.0, "a"), graded(1.0, "b"), graded(1.0, "c")]
    for by in ("centred", "deviation", "rank", "best"):
        check_reward({"kind": "group", "of": "right", "by": by}, groups=[group, group[:2]], within=(-2, 2), base=folder)


def check_tests(folder: Path) -> None:
    entry = {"kind": "tests", "entry": "add", "calls": [{"args": [1, 2], "expected": 3}]}
    said = [reward_context(answer=f"def add(a, b):\n    return {made}", task={}) for made in ("a + b", "7")]
    check_reward(entry, said, within=(0, 1), base=folder)


def check_workspace(folder: Path) -> None:
    async def main() -> None:
        machine = compiled("resources", {"kind": "workspace"}, base=folder)
        async with machine.open(ResourceContext()) as opened:
            entry = {"kind": "workspace", "resource": "machine", "command": "test -e note", "by": "status"}
            said = [reward_context(answer=None, task={}, resources={"machine": opened})]
            await check_reward_async(entry, said, within=(0, 1), base=folder, resources={"machine": machine})

    asyncio.run(main())


REWARDS = {
    "tests": check_tests,
    "workspace": check_workspace,
    "rule": check_rule,
    "verify": check_verify,
    "state": check_state,
    "judge": check_judge,
    "group": check_group,
}


@pytest.mark.parametrize("kind", in_sandboxes("rewards", "tests", "workspace"))
def test_a_built_in_reward_keeps_the_laws(kind: str, folder: Path) -> None:
    REWARDS[kind](folder)


# Users


USERS: dict[str, dict[str, Any]] = {
    "model": {"endpoint": "writer", "prompt": "You buy a shirt.", "stop": "###"},
    "python": {"function": "functions.py:reply"},
    "scripted": {"replies": ["A blue one.", "{{ task.size }}"], "cues": [{"pattern": "bye", "say": "Bye."}]},
    "players": {"roles": {"buyer": {}, "seller": {}}},  # asked in their episode alone: tests/episodes/test_players.py
}


@pytest.mark.parametrize("kind", sorted(BUILT_IN["users"].keys() - {"players"}))
def test_a_built_in_user_keeps_the_laws(kind: str, folder: Path) -> None:
    def says(body: Mapping[str, Any]) -> str:
        heard = sum(message["role"] == "user" for message in body["messages"])
        return "Thanks. ###" if heard > 2 else "And the price?"

    async def main() -> None:
        async with FakeEndpoint(says) as server:
            entry = {"kind": kind, **USERS[kind]}
            begins = UserContext({"size": "Large."})
            given: dict[str, Any] = {"says": ["Hello.", "Which size?"], "context": begins, "base": folder}
            await check_user_async(entry, **given, endpoints=endpoint(server))

    asyncio.run(main())


# Policies


def test_the_policies_without_a_model_keep_the_laws(make_environment: Make, tmp_path: Path) -> None:
    (tmp_path / "script.txt").write_text("<answer>4</answer>")

    async def main() -> None:
        environment = make_environment()
        dialect = environment.parts.dialect
        for policy in (
            OraclePolicy(environment.spec, dialect),
            RandomPolicy(dialect, environment.spec.answer),
            ScriptPolicy(tmp_path / "script.txt"),
        ):
            await check_policy_async(policy, make_environment())

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["tools", "text"])
def test_the_endpoints_policy_keeps_the_laws(make_environment: Make, mode: Any) -> None:
    async def main() -> None:
        async with FakeEndpoint(lambda body: "<answer>5</answer>") as server, FakeEndpoint([Reply(500)]) as down:
            made, lost = (
                OpenAIPolicy(one.base_url, "toy", mode=mode, retries=0, sampling=SamplingSpec(max_tokens=64))
                for one in (server, down)
            )
            await check_policy_async(made, make_environment(), max_tokens=64, failing=lost)

    asyncio.run(main())


# Environments


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_environment_keeps_the_laws(name: str) -> None:
    try:
        check_environment(name, tasks=2)
    except MissingExtra as error:
        pytest.skip(str(error))


def test_every_built_in_kind_is_looked_at() -> None:
    tables: dict[Any, Any] = {
        "tools": TOOLS,
        "resources": RESOURCES,
        "rules": RULES,
        "rewards": REWARDS,
        "users": USERS,
    }
    for group, table in tables.items():
        assert sorted(table) == sorted(BUILT_IN[group]), f"{group}: say here how a new kind is asked"
