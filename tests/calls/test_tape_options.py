"""Every option of what a tape answers: one that has changed is seen in a replay, or it is listed why it cannot be."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.calls.toolsets import options_of
from rlenv.cli.main import main
from rlenv.language.spec import EndpointSpec, RewardSpec, SamplingSpec, Spec, ToolSpec
from rlenv.messages import Message, ToolCall
from rlenv.rewards.judge import JudgeMemberSpec, JudgeSpec
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.tools.http import HttpSpec
from rlenv.tools.mcp import McpSpec
from rlenv.tools.model import AgentSpec, ModelSpec
from rlenv.users.kinds import ModelUserSpec
from tests.support.beside import served, site

SERVER = Path(__file__).resolve().parents[1] / "tools" / "servers" / "lab.py"
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Er"
    "kJggg=="
)
ENV = """
rlenv: 1
name: optioned
tasks: {train: {rows: [{question: one, answer: "1"}]}}
prompt: {user: "{{ task.question }}"}
vars: {server: "URL", path: p, unread: 1}
endpoints:
  writer: {base_url: "MODELS", model: m, retries: 0}
  other: {base_url: "MODELS", model: n, retries: 0}
  down: {base_url: "MODELS", model: down, retries: 0}
user: {kind: model, endpoint: writer, prompt: "You want {{ task.question }}.", stop: "###"}
tools:
  ask: {kind: http, url: "{{ vars.server }}/{{ vars.path }}/{{ args.what }}", parameters: {what: string}}
  find: {kind: http, url: "{{ vars.server }}/p/find", preset: search-r1}
  improve: {kind: model, endpoint: writer, prompt: "Improve {{ args.text }}", parameters: {text: string}}
  broken: {kind: model, endpoint: down, prompt: "Improve {{ args.text }}", parameters: {text: string}}
  study: {kind: agent, spec: agent.yaml, endpoint: writer}
  lost: {kind: agent, spec: agent.yaml, endpoint: down}
  lab: {kind: mcp, command: [PYTHON, lab.py], include: [count, echo]}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
  clarity:
    kind: judge
    judges: [{endpoint: writer}, {endpoint: writer, prompt: "Strictly, {{ message }}"}, {endpoint: other}]
    prompt: "{{ task.question }} {{ message }}"
limits: {turns: 12}
oracle:
  - say: "What do you want?"
  - call: {ask: {what: one}}
  - call: {find: {query: one}}
  - call: {improve: {text: one}}
  - call: {broken: {text: one}}
  - call: {study: {question: one}}
  - call: {lost: {question: one}}
  - call: {count: {}}
  - say: "<answer>{{ task.answer }}</answer>"
"""
AGENT = """
rlenv: 1
name: agent
tasks: {train: {rows: [{question: one, answer: "1"}]}}
prompt: {user: "{{ task.question }}"}
tools: {sum: {kind: calculator}}
rewards: {correct: {kind: rule, rule: exact_match, expect: "1"}}
oracle: [{say: "<answer>1</answer>"}]
"""

Seen = Mapping[str, tuple[str, ...]]
"""By option what is set, each below the entry: a replay has to come out differently."""

HTTP: Seen = {
    "url": ("url={{ vars.server }}/q/{{ args.what }}",),
    "method": ("method=DELETE",),
    "query": ('query={"limit": "5"}',),
    "body": ('body={"x": 1}',),
    "parameters": ('parameters={"what": "string", "more": "string?"}',),
    "response": ("response=nosuch.field",),
    "expect": ("expect=[201]",),
    "max_bytes": ("max_bytes=5",),
    "redirects": ("redirects=true",),
}
PRESET: Seen = {"top_k": ("top_k=5",), "preset": ("preset=null", 'parameters={"query": "string"}')}
MODEL: Seen = {
    "endpoint": ("endpoint=other",),
    "prompt": ("prompt=Mend {{ args.text }}",),
    "system": ("system=You mend.",),
    "parameters": ('parameters={"text": "string", "more": "string"}',),
    "images": (f'images=["{PIXEL}"]',),
    "sampling": ('sampling={"temperature": 0.5}',),
}
AGENTS: Seen = {
    "spec": ("spec=FOLDER/other.yaml",),
    "endpoint": ("endpoint=other",),
    "mode": ("mode=text",),
    "turns": ("turns=1",),
    "parameters": ('parameters={"question": "string", "more": "string"}',),
    "task": ('task={"question": "Another {{ args.question }}"}',),
}
MCP: Seen = {
    "command": (f"command={json.dumps([sys.executable, 'lab.py', '--noise'])}",),
    "url": ("command=null", "url=http://127.0.0.1:9/mcp"),
    "env": ('env={"MODE": "strict"}',),
    "cwd": ("cwd=.",),
    "rename": ('rename={"count": "tally"}',),
    "prefix": ("prefix=lab_",),
    "scope": ("scope=episode",),
    "workers": ("scope=pool", "workers=2"),
}
JUDGE: Seen = {
    "endpoint": ("judges=[]", "endpoint=other"),
    "prompt": ("prompt=Mark {{ message }}",),
    "rubric": ("rubric=Be kind.",),
    "scale": ("scale=[1, 10]",),
    "schema_": ('schema={"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}',),
    "key": ("key=mark",),
    "judges": ('judges=[{"endpoint": "writer"}, {"endpoint": "other"}]',),
    "combine": ("combine=median",),
    "retries": ("retries=0",),
    "seed": ("seed=7",),
    "sampling": ('sampling={"temperature": 0.5}',),
    "weight": ("weight=2",),
    "when": ("when=turn",),
    "gate": ("gate=correct >= 2",),
    "range": ("range=[0, 0.5]",),
    "clip": ("clip=[0, 0.1]",),
    "pairwise": (
        'pairwise={"with": "{{ task.answer }}"}',
        'judges=[{"endpoint": "writer"}]',
        "prompt={{ first }} or {{ second }}?",
    ),
}
MEMBER: Seen = {
    "endpoint": ("judges.1.endpoint=other",),
    "prompt": ("judges.1.prompt=Kindly, {{ message }}",),
    "sampling": ('judges.1.sampling={"temperature": 0.5}',),
}
USER: Seen = {
    "endpoint": ("endpoint=other",),
    "prompt": ("prompt=You do not want {{ task.question }}.",),
    "sampling": ('sampling={"temperature": 0.5}',),
    "stop": ("stop=Reply",),
    "tools": ('tools=["ask"]',),
}
ENDPOINT: Seen = {"model": ("model=n",), "sampling": ('sampling={"temperature": 0.5}',)}
SAMPLING: Seen = {
    "temperature": ("temperature=0.5",),
    "top_p": ("top_p=0.5",),
    "max_tokens": ("max_tokens=50",),
    "stop": ('stop=["x"]',),
    "extra": ('extra={"top_k": 5}',),
}
ADDRESS = {
    "base_url": "it is the address",
    "api_key": "it is a key",
    "headers": "they hold keys, and say who asks",
    "concurrency": "a recorded answer waits for no place",
    "timeout_s": "a recorded answer takes the time that it took",
    "retries": "what is recorded is what the last try gave",
}
AGAIN = {
    "kind": "another kind is another table",
    "cache": "equal questions have one answer on the tape, asked for once or often",
    "over_turns": "it is applied again, to the values of turns",
    "required": "it is applied again, where a term is invalid",
    "on_invalid": "it is applied again, where a term is invalid",
    "quorum": "it is applied again, to the judges that the tape lets fail",
    "breaker": "a recorded answer has no outage",
    "timeout_s": "a recorded answer takes the time that it took",
}
OF_PANEL = {
    "weight": "it is applied again, to the recorded verdicts",
    "timeout_s": "a recorded answer takes the time that it took",
}
FAILURE = {"on_failure": "it is applied again; tested where there is a failure"}
SEED = {"seed": "it is drawn anew for equal questions"}
KIND = {"kind": "another kind is another table"}
TABLES: Mapping[str, tuple[type[Spec], Seen, Mapping[str, str]]] = {
    "tools.ask": (HttpSpec, {**HTTP, **PRESET}, HttpSpec.aside),
    "tools.improve": (ModelSpec, MODEL, {**ModelSpec.aside, **FAILURE}),
    "tools.study": (AgentSpec, AGENTS, {**AgentSpec.aside, **FAILURE}),
    "tools.lab": (McpSpec, MCP, McpSpec.aside),
    "rewards.clarity": (JudgeSpec, JUDGE, AGAIN),
    "rewards.clarity.judges": (JudgeMemberSpec, MEMBER, OF_PANEL),
    "user": (ModelUserSpec, USER, {**KIND, "hears": "a request is known by its words, those that it hears among them"}),
    "endpoints.writer": (EndpointSpec, ENDPOINT, ADDRESS),
    "endpoints.writer.sampling": (SamplingSpec, SAMPLING, SEED),
}
PLACES: Mapping[str, Seen] = {
    "tools.ask": HTTP,
    "tools.find": PRESET,
    "tools.improve": MODEL,
    "tools.study": AGENTS,
    "tools.lab": MCP,
    "rewards.clarity": {**JUDGE, **{f"judges.{name}": changed for name, changed in MEMBER.items()}},
    "user": USER,
    "endpoints.writer": ENDPOINT,
    "endpoints.writer.sampling": SAMPLING,
    "endpoints.other": {"model": ("model=k",), "sampling": ("sampling.top_p=0.5",)},  # a judge alone asks it
    "tools.broken": {"on_failure": ("on_failure=invalid",)},
    "tools.lost": {"on_failure": ("on_failure=invalid",)},
    "vars": {"path": ("path=q",)},
}
SAME = (
    "tools.ask.url=http://127.0.0.1:9/{{ vars.path }}/{{ args.what }}",
    'tools.ask.headers={"Authorization": "Bearer another"}',
    "tools.ask.description=Asks.",
    'tools.ask.example={"what": "two"}',
    "tools.ask.timeout_s=5",
    "tools.ask.attempt_s=5",
    "tools.ask.concurrency=1",
    "tools.ask.rate_per_s=1000",
    "tools.ask.retries=5",
    "tools.ask.idempotent=true",
    'tools.ask.cache={"scope": "none"}',
    'tools.ask.breaker={"failures": 3}',
    "tools.ask.faults={}",
    'tools.ask.coerce=["integer"]',
    "tools.ask.mutates=true",
    'tools.lab.include=["count"]',
    'tools.lab.exclude=["echo"]',
    "tools.lab.start_timeout_s=5",
    "tools.lab.pin=nosuch.json",
    "vars.server=https://elsewhere:9",
    "vars.unread=2",
    "endpoints.writer.base_url=http://127.0.0.1:9/v1",
    "endpoints.writer.api_key=another",
    'endpoints.writer.headers={"X-Team": "another"}',
    "endpoints.writer.concurrency=1",
    "endpoints.writer.timeout_s=5",
    "endpoints.writer.retries=5",
    "endpoints.writer.sampling.seed=7",
    "rewards.clarity.cache=false",
)


@pytest.mark.parametrize("place", TABLES)
def test_each_option_is_seen_or_set_aside_with_a_reason(place: str) -> None:
    of, seen, aside = TABLES[place]
    assert {*seen, *aside} == {*of.model_fields}, "say of a new option which of both it is"
    assert not {*seen} & {*aside}
    assert all(aside.values())


def test_what_is_around_a_call_is_set_aside_for_every_kind() -> None:
    assert {*ToolSpec.aside} == {*ToolSpec.model_fields}
    assert {*RewardSpec.model_fields} <= {*JudgeSpec.model_fields}


_numbers = count()


def answer(body: Mapping[str, Any]) -> str | Message | Reply:
    """Of a judge a score that is drawn, and the first reply is none; of an agent a call and then an answer."""
    if body["model"] == "down":
        return Reply(500, "out of order")
    if "response_format" in body:
        nonce = body["response_format"]["json_schema"]["schema"]["properties"]["nonce"]["enum"][0]
        score = (0, 1, 5, 4)[next(_numbers) % 4]
        return json.dumps({"nonce": nonce, "reasoning": "so", "score": score}) if score else "no idea"
    if "tools" not in body:
        return "Reply."
    if body["messages"][-1]["role"] == "tool":
        return "<answer>1</answer>"
    return Message("assistant", "", (ToolCall("sum", {"expression": "1"}, "call-0"),))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode that asked every kind of thing once."""
    pytest.importorskip("mcp")
    folder = tmp_path_factory.mktemp("options")
    shutil.copy(SERVER, folder)
    (folder / "agent.yaml").write_text(AGENT)
    (folder / "other.yaml").write_text(AGENT.replace("{{ task.question }}", "Other: {{ task.question }}"))

    async def found(request: web.Request) -> web.Response:
        document = {"document": {"contents": "Title\ntext"}, "score": 1.0}
        return web.json_response({"result": [[document]], "path": request.path})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found)
    with served(site(app)) as address, served(FakeEndpoint(answer)) as models:
        text = ENV.replace("URL", address).replace("MODELS", models.base_url).replace("PYTHON", sys.executable)
        (folder / "env.yaml").write_text(text)
        argv = ["eval", str(folder / "env.yaml"), "--policy", "oracle", "--record", "-o", str(folder / "run")]
        assert main([*argv, "--json"]) == 0
    return folder / "run"


def replayed(capsys: pytest.CaptureFixture[str], run: Path, *changes: str) -> Any:
    """The exit code of a replay, and what differs, or why nothing could be played."""
    capsys.readouterr()
    set = [word for change in changes for word in ("--set", change.replace("FOLDER", str(run.parent)))]
    code = main(["replay", str(run), "--json", *set])
    said = capsys.readouterr()
    return code, json.loads(said.out)["different"] if said.out else said.err


@pytest.mark.slow
def test_the_run_replays_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(capsys, run) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize(("place", "option"), [(place, option) for place in PLACES for option in PLACES[place]])
def test_an_option_that_decides_an_answer_is_seen_where_it_has_changed(
    run: Path, capsys: pytest.CaptureFixture[str], place: str, option: str
) -> None:
    code, found = replayed(capsys, run, *(f"{place}.{one}" for one in PLACES[place][option]))
    assert code == 1
    assert isinstance(found, list), found
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("change", SAME)
def test_an_option_that_is_set_aside_changes_nothing(
    run: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    assert replayed(capsys, run, change) == (0, [])


@pytest.mark.slow
def test_what_a_miss_differs_in_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = replayed(capsys, run, "tools.ask.max_bytes=5")
    assert "differs at $.options.max_bytes: nothing before, 5 now" in found[0]["differences"][0]
    _, found = replayed(capsys, run, "vars.path=q")
    assert "differs at $.options.url: '/p/{{ args.what }}' before, '/q/{{ args.what }}' now" in str(found)


def test_options_are_what_an_entry_says_without_its_server_and_with_the_constants_that_it_reads() -> None:
    vars = {"host": "http://u:p@h:1/v1", "key": {"limit": 3}, "unread": 1, "name": "n"}
    url = "{{ vars.host }}/{{ vars.name | upper }}/{{ args.what }}?a=http://x/y"
    entry = HttpSpec(kind="http", url=url, query={"l": "{{ vars.key.limit }}", "n": "{{ vars.name.upper() }}"})
    assert options_of(entry, vars=vars) == {
        "url": "/v1/{{ vars.name | upper }}/{{ args.what }}?a=http://x/y",
        "query": {"l": "{{ vars.key.limit }}", "n": "{{ vars.name.upper() }}"},
        "vars": {"vars.name": "n", "vars.key.limit": 3},
    }
    for server in ("http://h", "https://other:2", "${env:SERVER}", "http://${env:HOST}:1"):
        assert options_of(HttpSpec(kind="http", url=f"{server}/p", method="GET"), vars={}) == {
            "url": "/p",
            "method": "GET",
        }
