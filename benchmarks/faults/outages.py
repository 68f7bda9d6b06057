"""Outages against numbers: what episodes earn while what they stand on fails, and what they earn where it is well.

    python benchmarks/faults/outages.py [--episodes 10000] [--only http,stdio] [--modes once,fell] [--at-once 32]

Each transport is played in these modes: `once`, where each call fails the first time that it is asked, by chance, and
goes well afterwards; `fell`, where every eighth episode's call, and its answer, fells the server with the calls of
others in flight; and `chance`, where any request fails by a coin of 10 to 90 %. Servers of HTTP also answer `errors`
(5xx and 4xx) to all for up to two seconds after each call of an eighth episode, and `refuse`: now and then they
answer all requests for up to a second as if the caller were at fault, and every eighth episode asks for what is not
there. In the mode `batch` each call of a fourth episode fails, with 500, with all that its server has in flight. A
valid number that differs from the one that a server which is well gives is wrong, but for that of an eighth episode.
Exit code 1 where there is one, or where one who fells the server is masked. What is left invalid is counted beside.

`work` is a tool of each kind that may be lost with something outside of rlenv; `code` calls it from a piece of code. Of
`command` a request that fails is a program that kills itself, of `thread` one that says that it is down. rlenv's own
workers, of SQL, code, mathematics and hidden tests, are killed, stopped and starved by `benchmarks/faults/workers.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

import rlenv
from rlenv.messages import Message, ToolCall
from rlenv.trajectory import TermResult

Why = Counter[tuple[str, str]]
"""What became of terms that are not as expected, and what they say of it."""
MODES = ("once", "fell", "errors", "chance", "refuse", "batch")
ERRING = ("http", "hidden", "search", "mcp_http")
"""The transports that are played in the mode `errors`."""
REFUSING = ("http", "hidden", "search", "code", "mcp_http")
"""The transports that are played in the mode `refuse`."""
BATCHING = ("http", "mcp_http", "judge", "user")
"""The transports that are played in the mode `batch`."""
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
WELL = {"called": 1.0, "checked": 1.0, "brief": 1.0}
FELLED = {"called": 0.0, "checked": 0.0, "brief": 1.0}
HEAD = """
rlenv: 1
name: outages
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "Work."}
limits: {turns: 4, episode_s: 60, reward_s: 60}
calls: {timeout_s: 2, retries: 0, breaker: {failures: 1000000}}
"""
TERMS = """
rewards:
  called: {kind: rule, rule: tool_called, tool: work}
  brief: {kind: rule, rule: tool_call_count, max: 1}
  checked: {kind: verify, tool: work, arguments: {text: "{{ answer }}"}, expect: "did work", compare: text}
"""
JUDGED = """
endpoints: {j: {base_url: "URL/v1", model: m, retries: 0, timeout_s: 5}}
answer: {from: final_message}
rewards: {judged: {kind: judge, endpoint: j, prompt: "{{ message }}", cache: false, breaker: {failures: 0}}}
"""
HTTP = """{kind: http, url: "URL/work", query: {text: "{{ args.text }}"}, parameters: {text: string},
 example: {text: known}"""
SPECS = {
    "hidden": f"tools: {{work: {HTTP}}}, check: {HTTP}, offered: false}}}}"
    + TERMS.replace("verify, tool: work", "verify, tool: check"),
    "http": 'tools: {work: {kind: http, url: "URL/work", query: {text: "{{ args.text }}"}, parameters: {text: string},'
    " example: {text: known}}}" + TERMS,
    "mcp_http": 'tools: {all: {kind: mcp, url: "URL/mcp", example: {work: {text: known}}}}' + TERMS,
    "stdio": "tools: {all: {kind: mcp, command: [python, server.py, MODE, 'SHARE'], example: {work: {text: known}}}}"
    + TERMS,
    "process": "tools: {work: {kind: python, function: 'work.py:work', run_in: process, workers: 4,"
    " example: {text: known}}}" + TERMS,
    "thread": "tools: {work: {kind: python, function: 'work.py:says', example: {text: known}}}" + TERMS,
    "command": "tools: {work: {kind: command, command: [./work.sh, '{{ args.text }}'], parameters: {text: string},"
    " idempotent: true, example: {text: known}}}" + TERMS.replace('"did work"', '"did work\\n"'),
    "search": "tools: {work: {kind: http, preset: search-r1, url: 'URL/retrieve', example: {query: known}}}"
    + TERMS.replace("{text:", "{query:").replace("did work", "Doc 1(Title: did work) work"),
    "code": 'tools: {work: {kind: http, url: "URL/work", query: {text: "{{ args.text }}"}, parameters: {text: string},'
    " example: {text: known}}, run: {kind: code, tools: [work]}}" + TERMS.replace("max: 1", "max: 2"),
    "user": """endpoints: {m: {base_url: "URL/v1", model: m, retries: 0, timeout_s: 2}}
user: {kind: model, endpoint: m, prompt: You want work.}
rewards: {called: {kind: rule, rule: answered}}
""",
    "model": 'endpoints: {m: {base_url: "URL/v1", model: m, retries: 0, timeout_s: 2}}\n'
    'tools: {work: {kind: model, endpoint: m, prompt: "work {{ args.text }}", parameters: {text: string},'
    " example: {text: known}}}" + TERMS,
    "judge": JUDGED,
}  # fmt: skip
FAILS = '''
import os, random, signal, time
def fails(mode, share, seen, text):
    """How a request fails, "" where it does not."""
    if mode == "fell":
        return "exit" if text == "fell" else ""
    if mode == "once":
        if text == "known" or os.path.exists(path := seen + text.encode().hex()) or random.random() < 0.3:
            return ""
        open(path, "w").close()
    elif random.random() >= share:
        return ""
    return random.choice(["exit", "kill", "error"])
def do(how):
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
'''
SERVER = (
    FAILS
    + """
import json, sys
TOOL = {"name": "work", "description": "Works.", "annotations": {"readOnlyHint": True},
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    result, error = {}, None
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "work", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif asked["method"] == "tools/call":
        how = fails(sys.argv[1], float(sys.argv[2]), "seen-", asked["params"]["arguments"]["text"])
        do(how)
        error = {"code": -32603, "message": "by chance"} if how == "error" else None
        result = {"content": [{"type": "text", "text": "did work"}]}
    said = {"error": error} if error else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""
)
WORK = (
    FAILS
    + '''
def work(text: str) -> str:
    """Works.

    Args:
        text: what at
    """
    do(fails("MODE", SHARE, "FOLDER/seen-", text).replace("error", "exit"))
    return "did work"

def says(text: str) -> str:
    """Works.

    Args:
        text: what at
    """
    from rlenv.errors import ToolFailed
    if fails("MODE", SHARE, "FOLDER/seen-", text):
        raise ToolFailed("it is down", reason="server_error", retryable=True)
    return "did work"
'''
)
PROGRAM = """#!/bin/sh
case MODE in
fell) [ "$1" = fell ] && kill -9 $$ ;;
once) [ "$1" != known ] && [ ! -e "FOLDER/seen-$1" ] && : > "FOLDER/seen-$1" && kill -9 $$ ;;
chance) [ "$(od -An -N2 -tu2 /dev/urandom)" -lt $((SHARE_PERMILLE * 65536 / 1000)) ] && kill -9 $$ ;;
esac
echo did work
"""


@dataclass
class Service:
    """A server in this process that fails as its mode says; it stands for HTTP tools, MCP and models."""

    mode: str
    share: float
    rng: random.Random
    slow_s: float = 0.0
    """Of each answer, beside some moments that are drawn."""
    seen: set[str] = field(default_factory=set)
    open: set[Any] = field(default_factory=set)
    flying: set[asyncio.Future[None]] = field(default_factory=set)
    refuses: str = ""
    until: float = 0.0
    """How it answers all requests for a while, "" for one in which it is well; and when that ends."""

    def fault(self, text: str, kinds: Sequence[str]) -> str:
        """How a request fails, "" where it does not."""
        if self.mode == "fell":
            return "fell" if "fell" in text else ""
        if self.mode == "errors":
            now = asyncio.get_running_loop().time()
            if "fell" in text and now >= self.until:
                self.until = now + self.rng.uniform(0.5, 2.0)
            return self.rng.choice(("403", "429", "500", "503")) if now < self.until else ""
        if self.mode == "refuse":
            while self.until < (now := asyncio.get_running_loop().time()):
                self.refuses = "" if self.refuses else self.rng.choice(("400", "403", "404"))
                self.until = max(self.until, now - 1) + self.rng.uniform(0.0, 1.0 if self.refuses else 2.0)
            return self.refuses or (("404" if kinds[0] == "404" else "400") if "fell" in text else "")
        if self.mode == "once":
            item = re.search(r"item-\d+", text)  # a judge's question has a new mark each time
            if item is None or item[0] in self.seen or self.rng.random() < 0.3:
                return ""
            self.seen.add(item[0])
        elif self.rng.random() >= self.share:
            return ""
        return self.rng.choice(kinds)

    async def faulty(self, text: str, kinds: Sequence[str]) -> str:
        """As `fault`, after the time that it takes in a batch: what others ask takes longer than what is known."""
        if self.mode != "batch":
            return self.fault(text, kinds)
        own = asyncio.get_running_loop().create_future()
        self.flying.add(own)
        await asyncio.wait((own,), timeout=0.1 if "fell" in text else 0.4 if "item" in text else 0.05)
        self.flying.discard(own)
        for other in self.flying if "fell" in text and not own.done() else ():
            other.cancel()
        return "500" if own.done() or "fell" in text else ""

    async def spoiled(self, request: web.Request, text: str, kinds: Sequence[str]) -> web.Response | None:
        """What a request that fails is answered; None where it does not fail."""
        self.open.add(request.transport)
        try:
            fault = await self.faulty(text, kinds)
            await asyncio.sleep(self.slow_s + self.rng.uniform(0.0, 0.01))  # so that others are in flight
            if fault in ("fell", "broken"):
                for transport in list(self.open) if fault == "fell" else [request.transport]:
                    if transport is not None:
                        transport.abort()
            elif fault:
                return web.Response(status=int(fault))
        finally:
            self.open.discard(request.transport)
        return web.Response() if fault else None

    async def work(self, request: web.Request) -> web.Response:
        """The HTTP tool."""
        said = await self.spoiled(request, request.query["text"], ("404", "500", "503", "broken"))
        return said or web.Response(text="did work")

    async def retrieve(self, request: web.Request) -> web.Response:
        """The retrieval server."""
        said = await self.spoiled(request, (await request.json())["queries"][0], ("403", "503", "broken"))
        return said or web.json_response({"result": [[{"document": {"contents": "did work\nwork"}, "score": 1.0}]]})

    async def mcp(self, request: web.Request) -> web.Response:
        """The MCP server."""
        if request.method != "POST":
            return web.Response(status=405)
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        result: dict[str, Any] = {}
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            named = {"name": "work", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": named}
        elif asked["method"] == "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
            tool = {"name": "work", "description": "Works.", "annotations": {"readOnlyHint": True}}
            result = {"tools": [{**tool, "inputSchema": schema}]}
        elif asked["method"] == "tools/call":
            text = asked["params"]["arguments"]["text"]
            said = await self.spoiled(request, text, ("500", "404", "broken"))
            if said is not None and said.status != 400:
                return said
            result = {"content": [{"type": "text", "text": "did work"}], "isError": said is not None}
        given = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        return web.json_response(given, headers={"Mcp-Session-Id": "one"})

    async def chat(self, request: web.Request) -> web.Response:
        """The model, and the judge."""
        system, *_, asked = [one["content"] for one in (await request.json())["messages"] * 2][-2:]
        nonce = re.search(r'"enum":\["([0-9a-f]{16})"\]', system)
        kinds = ("400", "403", "500", "503", "prose", "broken") if nonce else ("500", "503", "broken")
        text = asked if nonce is None or "left out" not in asked else "known"
        fault = await self.faulty(text, kinds)
        if fault in ("fell", "broken"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault not in ("", "prose"):
            return web.Response(status=int(fault))
        verdict = json.dumps({"nonce": nonce[1] if nonce else "", "reasoning": "fine", "score": 4})
        content = "It is fine." if fault else verdict if nonce else "did work"
        message = {"role": "assistant", "content": content}
        return web.json_response({"choices": [{"finish_reason": "stop", "message": message}]})


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[str]:
    """The address of a service."""
    app = web.Application()
    app.router.add_get("/work", service.work)
    app.router.add_post("/retrieve", service.retrieve)
    app.router.add_route("*", "/mcp", service.mcp)
    app.router.add_post("/v1/chat/completions", service.chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def first(transport: str, text: str) -> str | Message:
    """The first action of an episode."""
    if transport in ("judge", "user"):
        return f"An answer, {text}."
    argument = "query" if transport == "search" else "text"
    made = (
        ToolCall("run", {"code": f"work(text={text!r})"}) if transport == "code" else ToolCall("work", {argument: text})
    )
    return Message("assistant", "", (made,))


async def episode(environment: rlenv.Environment, n: int, text: str, transport: str) -> Mapping[str, TermResult]:
    """What one episode earns, by term."""
    async with environment.start(task=0, seed=n) as one:
        step = await one.step(first(transport, text))
        if not step.is_last:
            await one.step(f"<answer>{text}</answer>")
        assert one.trajectory is not None
        return one.trajectory.reward.terms


async def campaign(
    transport: str,
    mode: str,
    *,
    episodes: int,
    seed: int,
    at_once: int = 32,
    slow_s: float = 0.0,
    why: Why | None = None,
) -> Counter[str]:
    """What became of the episodes: `right`, `invalid`, `wrong` and, of those that fell the server, `own`, `masked`."""
    counted: Counter[str] = Counter()
    why = Why() if why is None else why
    for share in SHARES if mode == "chance" else SHARES[:1]:
        rng = random.Random(f"{transport} {mode} {share} {seed}")
        service = Service(mode, share, rng, slow_s)
        many = episodes // len(SHARES) if mode == "chance" else episodes
        with tempfile.TemporaryDirectory() as folder:
            async with served(service) as url:
                base = Path(folder)
                filled = {"URL": url, "MODE": mode, "SHARE": str(share), "FOLDER": folder}
                filled = {"SHARE_PERMILLE": str(round(share * 1000)), **filled}
                files = {"env.yaml": HEAD + SPECS[transport], "server.py": SERVER, "work.py": WORK, "work.sh": PROGRAM}
                for name, text in files.items():
                    for mark, value in filled.items():
                        text = text.replace(mark, value)
                    (base / name).write_text(text)
                    (base / name).chmod(0o755)
                environment = await asyncio.to_thread(rlenv.load, base / "env.yaml")  # asks the server
                async with environment:
                    await played(environment, counted, range(many), at_once, transport, mode, why)
    return counted


async def played(
    environment: rlenv.Environment,
    counted: Counter[str],
    numbers: range,
    at_once: int,
    transport: str,
    mode: str,
    why: Why,
) -> None:
    """Plays the episodes, and counts what became of them."""
    left = iter(numbers)
    well = {"judge": {"judged": 0.75}, "user": {"called": 1.0}}.get(transport, WELL)
    own = {"judge": {"judged": 0.0}, "user": {"called": 0.0}}.get(transport, FELLED)

    async def work() -> None:
        for n in left:
            is_own = (mode in ("fell", "errors", "refuse") and n % 8 == 0) or (mode == "batch" and n % 4 == 0)
            text = f"item-{n}" if not is_own else f"fell {n}" if mode == "batch" else "fell"
            terms = await asyncio.wait_for(episode(environment, n, text, transport), 900)
            found = {name: term.value for name, term in terms.items()}
            if is_own:
                # In one mode by an outage that is as long as there is time.
                left_out = "invalid" if mode == "refuse" else "masked"
                fate = "own" if found == own else left_out if None in found.values() else "wrong"
            elif any(value is not None and value != well[name] for name, value in found.items()):
                fate = "wrong"
            else:
                fate = "invalid" if None in found.values() else "right"
            counted[fate] += 1
            expected = own if is_own else well
            for name, term in terms.items():
                if fate not in ("own", "right") and term.value != expected[name]:
                    said = f"{name}: {term.error or term.evidence}"
                    why[fate, re.sub(r"\d+\.\d+|\d\d+", "N", said)[:300]] += 1

    await asyncio.gather(*(work() for _ in range(at_once)))


def main() -> int:
    """Runs the campaign; 0 where no number is wrong and nobody masked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="against each transport, a third of them a mode")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default=",".join(SPECS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--slow-s", type=float, default=0.0, help="of each answer of a server")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    many = args.episodes // len(MODES)
    play = partial(campaign, episodes=many, seed=args.seed, at_once=args.at_once, slow_s=args.slow_s)
    is_bad = False
    for transport in args.only.split(","):
        for mode in args.modes.split(","):
            if transport not in {"refuse": REFUSING, "errors": ERRING, "batch": BATCHING}.get(mode, SPECS):
                continue
            why = Why()
            found = asyncio.run(play(transport, mode, why=why))
            fates = "  ".join(f"{fate} {found[fate]}" for fate in sorted(found))
            print(f"{transport:<10}{mode:<8}{fates}", flush=True)
            for fate in ("wrong", "masked", "invalid"):
                of_fate = Counter({said: count for (kind, said), count in why.items() if kind == fate})
                for said, count in of_fate.most_common(5):
                    print(f"    {fate}, {count} terms: {said}", flush=True)
            is_bad = is_bad or bool(found["wrong"] or found["masked"])
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
