"""Recorded runs, replayed with their servers gone: identical, and what has changed is named."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.cli.main import main
from rlenv.concurrency.lanes import Event, Lane, entered, offline
from rlenv.episodes.environment import load
from rlenv.messages import Message, ToolCall
from rlenv.runs import files
from rlenv.runs.cassettes import Player, Recorder
from rlenv.runs.evaluate import evaluate
from rlenv.runs.events import Reel, parse_events
from rlenv.runs.locks.lock import locks_of
from rlenv.runs.recorded import episodes_with_ids, recorded
from rlenv.runs.replay import Replayed, replay
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.trajectory import Trajectory
from tests.support.beside import served, site
from tests.support.environments import shipped_names
from tests.support.sealed import sealed

ROOT = Path(__file__).resolve().parents[2]
GONE = "http://127.0.0.1:9"
TASKS = """
rlenv: 1
name: taped
tasks: {train: {rows: [{question: one, answer: "1"}, {question: two, answer: "2"}]}}
prompt: {user: "{{ task.question }}"}
limits: {turns: 4}
"""
HTTP = f"""{TASKS}
vars: {{server: "URL"}}
tools:
  ask:
    kind: http
    url: "{{{{ vars.server }}}}/{{{{ args.what }}}}"
    parameters: {{what: string}}
    cache: {{scope: none}}
    example: {{what: one}}
rewards: {{correct: {{kind: rule, rule: exact_match, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - call: {{ask: {{what: "{{{{ task.question }}}}"}}}}
  - call: {{ask: {{what: broken}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""

CALLED = "rewards: {called: {kind: rule, rule: tool_called, tool: ask, min: 2}, "


def spec(folder: Path, text: str, name: str = "env.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    """Exit code and the printed JSON of a command."""
    capsys.readouterr()
    code = main([*argv, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else said.err


@contextmanager
def answering(start: int = 0) -> Iterator[str]:
    """A server that never answers alike twice, and not at all where it is asked for `broken`."""
    number = count(start)

    async def answer(request: web.Request) -> web.Response:
        what = request.match_info["what"]
        if what == "broken":
            raise web.HTTPServiceUnavailable(text="out of order")
        if what == "missing":
            raise web.HTTPNotFound
        return web.json_response({"what": what, "number": next(number)})

    app = web.Application()
    app.router.add_get("/{what}", answer)
    with served(site(app)) as address:
        yield address


@pytest.fixture
def http_run(tmp_path: Path) -> Path:
    """Four samples of each of two tasks, whose server is gone."""
    with answering() as address:
        path = spec(tmp_path, HTTP.replace("URL", address))
        argv = ["eval", path, "-k", "4", "--concurrency", "8", "-o", str(tmp_path / "run")]
        assert main([*argv, "--json"]) == 0
    return tmp_path / "run"


def events(run_folder: Path) -> list[Event]:
    """All events of a run."""
    reel = Reel.of(run_folder)
    return [one for id in reel.ids for one in reel.events(id)]


def same(capsys: pytest.CaptureFixture[str], run_folder: Path, *argv: str, episodes: int) -> None:
    """Asserts that a replay one by one and one eight at once come out as the recorded run."""
    for many in ("1", "8"):
        code, found = run(capsys, "replay", str(run_folder), "--concurrency", many, *argv)
        asked = found.pop("usage", {"roles": []})  # all of it is the tape's
        assert all(one["is_recorded"] or not one["requests"] for one in asked["roles"])
        assert (code, found) == (0, {"episodes": episodes, "same": episodes, "skipped": 0, "different": []}), found


def test_an_http_spec_replays_with_its_server_gone(http_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same(capsys, http_run, episodes=8)
    results = [one.turns[0].results[0].text for one in recorded(http_run)]
    assert len(set(results)) == 8
    failed = recorded(http_run)[0].turns[1].results[0]
    assert (failed.outcome, failed.reason) == ("failed", "server_error")


def test_calls_that_rewards_asked_again_are_answered_however_many_others_asked_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering() as address:
        text = HTTP.replace("URL", address).replace("what: broken", "what: missing").replace("rewards: {", CALLED)
        argv = ["eval", spec(tmp_path, text), "-k", "4", "--concurrency", "8", "-o", str(tmp_path / "run")]
        assert run(capsys, *argv)[0] == 0
    assert {one.reward.terms["called"].value for one in recorded(tmp_path / "run")} == {0.0}
    same(capsys, tmp_path / "run", episodes=8)


def test_the_spec_is_the_one_that_was_recorded_with_what_was_set_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering() as address:
        path = spec(tmp_path, HTTP.replace("URL", GONE))
        set = ["--set", f"vars.server={address}", "--set", "prompt.user=Say {{ task.question }}"]
        assert run(capsys, "eval", path, *set, "-o", str(tmp_path / "run"))[0] == 0
    same(capsys, tmp_path / "run", episodes=2)
    code, found = run(capsys, "replay", str(tmp_path / "run"), "--spec", path)
    assert code == 1
    assert "prompt: " in found["different"][0]["differences"][0]


@pytest.mark.slow
def test_a_replay_connects_to_nobody_and_starts_nothing(tmp_path: Path) -> None:
    with answering() as address:  # it is there all the time
        path = spec(tmp_path, HTTP.replace("URL", address))
        assert main(["eval", path, "-o", str(tmp_path / "run"), "--json"]) == 0
        assert sealed("replay", str(tmp_path / "run")).opened == []
        assert "socket.connect" in sealed("replay", str(tmp_path / "run"), "--no-tape").opened


def test_where_there_is_no_tape_or_none_is_wanted_the_server_is_asked(
    http_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(capsys, "replay", str(http_run), "-n", "1", "--no-tape")
    assert code == 1
    assert "turn 1, call 1 of 'ask': it fails for want of the infrastructure now" in str(found["different"])
    files.write(http_run.parent / "some.jsonl", recorded(http_run)[:1])  # a file of episodes holds no events
    spec = ["--spec", str(http_run.parent / "env.yaml")]
    assert run(capsys, "replay", str(http_run.parent / "some.jsonl"), *spec)[0] == 1


def test_a_tool_that_is_let_out_is_called(http_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(100) as address:
        set = ["--set", f"vars.server={address}", "--live", "ask"]
        code, found = run(capsys, "replay", str(http_run), *set)
    assert code == 1
    assert len(found["different"]) == 8
    assert all(one["differences"][0].startswith("turn 1, observation") for one in found["different"])


def test_a_tool_with_other_parameters_is_named_at_the_first_call(
    http_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = 'tools.ask.parameters={"what": "string", "more": "string?"}'
    code, found = run(capsys, "replay", str(http_run), "--set", more)
    assert code == 1
    assert len(found["different"]) == 8
    (message,) = found["different"][0]["differences"]
    assert message.startswith(
        "turn 0 call 0: the tape has no answer to this request of tool 'ask'; the nearest, "
        "request 0 of turn 0 call 0, differs at $.options.parameters.more: "
    )
    assert found["different"][0]["episode"]


def test_a_tool_that_is_let_out_has_to_be_there(http_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "replay", str(http_run), "--live", "aks")
    assert code == 2
    assert "there is no tool 'aks'; did you mean 'ask'?" in found


def test_another_policy_is_answered_from_the_tape(
    http_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = str(tmp_path / "env.yaml")
    script = [{"call": {"ask": {"what": "two"}}}, {"say": "<answer>2</answer>"}]
    other = [{"call": {"ask": {"what": "three"}}}, {"say": "<answer>2</answer>"}]
    oracle, unknown = (f"oracle={json.dumps(one)}" for one in (script, other))
    code, found = run(capsys, "eval", env, "--set", oracle, "--tape", str(http_run), "-o", str(tmp_path / "b"))
    assert (code, found["success_rate"]) == (0, 0.5)
    asked = json.loads(recorded(tmp_path / "b")[0].turns[0].results[0].text)
    assert asked["what"] == "two"

    code, found = run(capsys, "eval", env, "--set", unknown, "--tape", str(http_run), "-o", str(tmp_path / "c"))
    assert (code, found["failures"]) == (1, {"cassette": 2})
    message = recorded(tmp_path / "c")[0].failure
    assert message is not None
    assert "$.arguments.what: 'one' before, 'three' now" in message.message


def test_a_policy_that_is_a_server_is_asked_while_its_tools_are_not(
    http_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(body: Mapping[str, Any]) -> Message:
        if body["messages"][-1]["role"] == "tool":
            return Message("assistant", "<answer>1</answer>")
        return Message("assistant", "", (ToolCall("ask", {"what": "one"}, "call-0"),))

    with served(FakeEndpoint(act)) as server:
        policy = ["--policy", "openai", "--base-url", server.base_url, "--model", "m"]
        code, found = run(capsys, "eval", str(tmp_path / "env.yaml"), *policy, "--tape", str(http_run))
        assert (code, found["success_rate"]) == (0, 0.5)
        assert len(server.requests) == 4


@pytest.mark.parametrize("has_folder", [True, False])
def test_what_the_tape_lacks_is_asked_and_added_where_that_is_said(
    http_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_folder: bool
) -> None:
    other = [{"call": {"ask": {"what": "one"}}}, {"call": {"ask": {"what": "three"}}}, {"say": "<answer>1</answer>"}]
    argv = ["eval", str(tmp_path / "env.yaml"), "--set", f"oracle={json.dumps(other)}", "--tape"]
    out = ["-o", str(tmp_path / "b")] if has_folder else []
    with answering() as address:
        set = ["--set", f"vars.server={address}"]
        assert run(capsys, *argv, str(http_run), "--record", *out, *set)[0] == 0
    tape = tmp_path / "b" if has_folder else http_run
    assert run(capsys, *argv, str(tape))[0] == 0
    if has_folder:
        same(capsys, tape, "--set", f"oracle={json.dumps(other)}", episodes=2)
    else:
        same(capsys, tape, episodes=8)


def test_what_is_added_to_a_tape_is_there_as_each_episode_ends(http_run: Path, tmp_path: Path) -> None:
    oracle = [{"call": {"ask": {"what": "three"}}}, {"say": "<answer>1</answer>"}]
    before, held = len(events(http_run)), list[int]()
    with answering() as address:
        evaluate(
            tmp_path / "env.yaml",
            tape=http_run,
            record=True,
            concurrency=1,
            set={"oracle": oracle, "vars.server": address},
            on_end=lambda *ended: held.append(len(events(http_run)) - before),
        )
    assert held == [1, 2]


NESTED = f"""{TASKS}
tools:
  ask: {{kind: http, url: "URL/{{{{ args.what }}}}", parameters: {{what: string}}, cache: {{scope: none}}}}
  run: {{kind: code, tools: [ask]}}
rewards: {{looked_up: {{kind: rule, function: "rule.py:looked_up"}}}}
oracle:
  - call: {{run: {{code: "print(ask('a'), ask('b'), ask('a'))"}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""


def test_calls_that_code_and_rewards_make_have_places_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydantic_monty")
    (tmp_path / "rule.py").write_text(
        "async def looked_up(context):\n"
        "    result = await context.call('ask', {'what': 'reward'})\n"
        "    return float(result.value['number'])\n"
    )
    with answering() as address:
        path = spec(tmp_path, NESTED.replace("URL", address))
        assert run(capsys, "eval", path, "-k", "2", "-o", str(tmp_path / "run"))[0] == 0
    same(capsys, tmp_path / "run", episodes=4)
    reel = Reel.of(tmp_path / "run")
    first = reel.ids[0]
    places = {one.place for one in reel.events(first)}
    assert places == {"turn 0 call 0", "turn 0 call 0 > call 0", "term looked_up call 0"}
    assert [one.ordinal for one in reel.events_at(first, "turn 0 call 0 > call 0")] == [0, 0, 1]


def test_faults_that_are_put_in_on_purpose_are_drawn_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = "    faults: {error: 0.3, garble: 0.3, seed: 3}\n    retries: 1\n    cache: {scope: none}"
    with answering() as address:
        path = spec(tmp_path, HTTP.replace("URL", address).replace("    cache: {scope: none}", faults))
        argv = ["eval", path, "-k", "4", "-o", str(tmp_path / "run")]
        assert run(capsys, *argv)[0] == 0
    same(capsys, tmp_path / "run", episodes=8)
    results = [turn.results[0] for one in recorded(tmp_path / "run") for turn in one.turns[:1]]
    spoiled = [index for index, result in enumerate(results) if "garble" in (result.details or {}).get("faults", ())]
    assert spoiled
    other = ["--set", "tools.ask.faults={error: 0.3, seed: 3}"]  # the same are drawn, one kind fewer
    code, found = run(capsys, "replay", str(tmp_path / "run"), *other)
    assert code == 1
    assert {one["line"] - 1 for one in found["different"]} >= set(spoiled)
    assert all("cassette" not in str(one) and "tape" not in str(one) for one in found["different"])


PYTHON = f"""{TASKS}
tools: {{shout: {{kind: python, function: "own.py:shout"}}}}
rewards: {{correct: {{kind: rule, rule: contains, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - call: {{shout: {{text: "{{{{ task.question }}}}"}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""
OWN = '''def shout(text: str) -> str:
    """Say it."""
    return text.upper()
'''


MCP = f"""{TASKS}
tools: {{lab: {{kind: mcp, command: [PYTHON, lab.py], include: [count, echo]}}}}
rewards: {{correct: {{kind: rule, rule: contains, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - call: {{count: {{}}}}
  - call: {{count: {{}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""


def test_servers_of_one_name_in_two_specs_keep_their_own_tools(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    from rlenv.tools._mcp.listing import ListedTool, Listing, write_pin

    specs, recorder = [], Recorder()
    for name in ("first", "second"):
        tool = ListedTool(name, "Does it.", {"type": "object", "properties": {}})
        (tmp_path / name).mkdir()
        write_pin(tmp_path / name / "pin.json", {"lab": Listing("lab", "1", (tool,))})
        text = MCP.replace("PYTHON", sys.executable).replace("include: [count, echo]", "pin: pin.json")
        specs.append(spec(tmp_path / name, text.replace("- call: {count: {}}\n  - call: {count: {}}\n  ", "")))
    with entered(Lane(recorder, "")):
        before = [sorted(load(path).parts.tools) for path in specs]
    for path in specs:
        Path(path).with_name("pin.json").unlink()
    tape = Reel(None, {"": parse_events(recorder.take_rest().encode(), "run")})
    for order in (0, 1):  # whichever is compiled first
        with offline(), entered(Lane(Player(tape), "")):
            assert sorted(load(specs[order]).parts.tools) == before[order]
    assert before == [["first"], ["second"]]


@pytest.mark.slow
def test_an_mcp_spec_replays_without_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp")
    shutil.copy(ROOT / "tests" / "tools" / "servers" / "lab.py", tmp_path / "lab.py")
    path = spec(tmp_path, MCP.replace("PYTHON", sys.executable))
    argv = [sys.executable, "-m", "rlenv", "eval", path, "-k", "2", "-o", str(tmp_path / "run")]
    # In a process of its own: in this one the tools would be known from having been listed.
    subprocess.run(argv, check=True, capture_output=True, timeout=100)
    (tmp_path / "lab.py").unlink()
    assert sealed("replay", str(tmp_path / "run")).opened == []
    same(capsys, tmp_path / "run", episodes=4)


@pytest.mark.slow
def test_pinned_tools_are_those_of_the_tape_once_the_pin_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp")
    shutil.copy(ROOT / "tests" / "tools" / "servers" / "lab.py", tmp_path / "lab.py")
    path = spec(tmp_path, MCP.replace("PYTHON", sys.executable).replace("include:", "pin: pin.json, include:"))
    assert main(["tools", path, "--pin"]) == 0
    assert main(["eval", path, "-k", "2", "-o", str(tmp_path / "run"), "--json"]) == 0
    (tmp_path / "lab.py").unlink()
    same(capsys, tmp_path / "run", episodes=4)
    (tmp_path / "pin.json").unlink()
    same(capsys, tmp_path / "run", episodes=4)


@pytest.mark.slow
def test_a_function_that_has_changed_is_seen_where_all_tools_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec(tmp_path, PYTHON)
    (tmp_path / "own.py").write_text(OWN)
    argv = [sys.executable, "-m", "rlenv", "eval", path, "--record", "-o", str(tmp_path / "run")]
    subprocess.run(argv, check=True, capture_output=True, timeout=100)
    same(capsys, tmp_path / "run", "--all-tools", episodes=2)
    (tmp_path / "own.py").write_text(OWN.replace("upper", "lower"))
    ran = sealed("replay", str(tmp_path / "run"), "--all-tools")
    assert ran.code == 1
    assert "differs at $.options.source: " in ran.out


STATION = '''
import itertools
from pathlib import Path

from rlenv.concurrency.lanes import Event, here, through

async def forecast(place: str) -> str:
    """Ask a weather station."""
    async def ask() -> str:
        file = Path(__file__).with_name("asked")
        file.write_text(str(number := int(file.read_text()) + 1 if file.exists() else 1))
        return f"{place}: {number} degrees"

    if (lane := here()) is None:
        return await ask()
    known_by = Event(kind="forecast", name="station", request={"place": place})
    ways = {"again": lambda event: event.response, "kept": lambda event, text: event.ended("ok", text)}
    return await through(lane, known_by, ask, **ways, failed=lambda event, error: None)
'''


def test_a_new_kind_of_event_takes_one_file_and_is_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = PYTHON.replace("own.py:shout", "station.py:forecast").replace("text:", "place:").replace("shout", "forecast")
    path = spec(tmp_path, asks)
    (tmp_path / "station.py").write_text(STATION)
    assert run(capsys, "eval", path, "-k", "2", "-o", str(tmp_path / "run"))[0] == 0
    assert (tmp_path / "asked").read_text() == "4"
    same(capsys, tmp_path / "run", episodes=4)
    assert (tmp_path / "asked").read_text() == "4"
    assert {(one.kind, one.name, one.place) for one in events(tmp_path / "run")} == {
        ("forecast", "station", "turn 0 call 0")
    }


JUDGE = f"""{TASKS}
endpoints: {{writer: {{base_url: "URL", model: m, retries: 0}}}}
rewards:
  correct: {{kind: rule, rule: exact_match}}
  clarity:
    kind: judge
    judges: [{{endpoint: writer}}, {{endpoint: writer, prompt: "Strictly, {{{{ message }}}}"}}]
    prompt: "{{{{ task.question }}}} {{{{ message }}}}"
    weight: 0.5
    required: false
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
"""


def verdicts(body: Mapping[str, Any]) -> str:
    """A score that is drawn; every third reply cannot be read."""
    nonce = body["response_format"]["json_schema"]["schema"]["properties"]["nonce"]["enum"][0]
    number = next(_numbers)
    if number % 3 == 0:
        return "no idea"
    return json.dumps({"nonce": nonce, "reasoning": f"number {number}", "score": 1 + number % 5})


_numbers = count()


@pytest.mark.parametrize("cache", ["true", "false"])
def test_a_judge_spec_replays_with_the_same_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: str
) -> None:
    path = spec(tmp_path, JUDGE.replace("weight: 0.5", f"weight: 0.5\n    cache: {cache}"))
    url = ["--set", f"endpoints.writer.base_url={GONE}/v1"]
    with served(FakeEndpoint(verdicts)) as server:
        asked = ["--set", f"endpoints.writer.base_url={server.base_url}"]
        argv = ["eval", path, *asked, "-k", "4", "-o", str(tmp_path / "run")]
        assert run(capsys, *argv)[0] == 0
    same(capsys, tmp_path / "run", *url, episodes=8)
    code, found = run(capsys, "replay", str(tmp_path / "run"), *url, "--set", "rewards.clarity.rubric=Be kind.")
    assert code == 1
    (message,) = found["different"][0]["differences"]
    assert message.startswith("term clarity judge ")
    assert "differs at $.judge" in message


SHARED = f"""{TASKS}
endpoints: {{writer: {{base_url: "URL/v1", model: m, retries: 0}}}}
tools:
  ask: {{kind: http, url: "URL/{{{{ args.what }}}}", parameters: {{what: string}}, cache: {{scope: none}}}}
  rough:
    {{kind: http, url: "URL/{{{{ args.what }}}}", parameters: {{what: string}}, faults: {{garble: 0.5, seed: 1}},
     cache: {{key: arguments}}}}
  improve:
    kind: model
    endpoint: writer
    prompt: "Improve {{{{ args.text }}}}"
    parameters: {{text: string}}
    idempotent: true
    cache: {{key: arguments}}
answer: {{from: tag, tag: answer}}
rewards:
  clarity: {{kind: judge, endpoint: writer, prompt: "{{{{ answer }}}}", required: false}}
  like_gold: {{kind: verify, tool: ask, arguments: {{what: mine}}, expect: {{arguments: {{what: gold}}}}}}
oracle:
  - call: {{rough: {{what: rough}}}}
  - call: {{improve: {{text: it}}}}
  - say: "<answer>alike</answer>"
"""


def test_every_kept_episode_replays_by_itself(tmp_path: Path) -> None:
    """Also where what it was given had been asked by another one: of a judge, a model, a gold call or a spoiled one."""
    known = count()

    def said(body: Mapping[str, Any]) -> str:
        return verdicts(body) if "response_format" in body else f"Reply {next(known)}."

    with answering() as address, served(FakeEndpoint(said)) as server:
        path = spec(tmp_path, SHARED.replace("URL/v1", server.base_url).replace("URL", address))
        evaluate(path, out=tmp_path / "run", k=4, concurrency=3)
        asked = len(server.requests)
    assert asked <= 6, "one of the cached tool, and few of the judge: all else was shared"
    reel, kept = Reel.of(tmp_path / "run"), episodes_with_ids(tmp_path / "run")

    async def alone(id: str, episode: Trajectory) -> list[Replayed]:
        player = Player(Reel(None, {"": reel.events(""), id: reel.events(id)}))
        with offline(), entered(Lane(player, "")):
            async with load(path) as environment:
                return await replay(environment, [episode], lane=lambda index: player.lane(id))

    for id, episode in kept:
        (found,) = asyncio.run(alone(id, episode))
        assert not found.differences
    calls = {result.name for _, episode in kept for turn in episode.turns for result in turn.results}
    assert calls == {"rough", "improve"}


def test_a_judge_that_failed_fails_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spec(tmp_path, JUDGE)
    with served(FakeEndpoint([Reply(401, "no key")])) as server:
        asked = ["--set", f"endpoints.writer.base_url={server.base_url}"]
        assert run(capsys, "eval", path, *asked, "-o", str(tmp_path / "run"))[0] == 0
    same(capsys, tmp_path / "run", "--set", f"endpoints.writer.base_url={GONE}", episodes=2)
    term = recorded(tmp_path / "run")[0].reward.terms["clarity"]
    assert term.status == "invalid"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("failure", [Reply(body="<html>"), Reply(drops=True), Reply(503, "busy"), None])
def test_a_judge_that_failed_and_then_gave_a_verdict_does_both_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Reply | None
) -> None:
    """Whatever made the request unclear, which decides whether it is asked again; None: no answer in time."""
    failed = set[str]()

    async def said(body: Mapping[str, Any]) -> str | Reply:
        asked = re.sub(r"MATERIAL-\w+", "", body["messages"][-1]["content"])
        if asked in failed or "(left out)" in asked:  # the harmless characters get a verdict at once
            nonce = body["response_format"]["json_schema"]["schema"]["properties"]["nonce"]["enum"][0]
            return json.dumps({"nonce": nonce, "reasoning": "", "score": 4})
        failed.add(asked)
        return failure or await asyncio.Future[str]()

    path = spec(tmp_path, JUDGE.replace("retries: 0", f"retries: 0, timeout_s: {60 if failure else 1}"))
    with served(FakeEndpoint(said)) as server:
        asked = ["--set", f"endpoints.writer.base_url={server.base_url}"]
        assert run(capsys, "eval", path, *asked, "--concurrency", "1", "-o", str(tmp_path / "run"))[0] == 0
    assert {"failed", "ok"} <= {one.outcome for one in events(tmp_path / "run")}
    same(capsys, tmp_path / "run", "--set", f"endpoints.writer.base_url={GONE}", episodes=2)


def test_a_judge_that_nobody_could_read_is_given_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By each episode for itself, as soon as it was in the run, where the others' replies told it."""
    # Alone: of a panel that has failed, the others are asked no more.
    alone = re.sub(r"judges: .*", "endpoint: writer\n    breaker: {reset_s: 1000}", JUDGE)
    path = spec(tmp_path, alone)
    with served(FakeEndpoint(["I like it."])) as server:
        asked = ["--set", f"endpoints.writer.base_url={server.base_url}"]
        assert run(capsys, "eval", path, *asked, "--concurrency", "1", "-o", str(tmp_path / "run"))[0] == 0
        assert len(server.requests) == 8 + 1
    same(capsys, tmp_path / "run", "--set", f"endpoints.writer.base_url={GONE}", episodes=2)


TALK = f"""{TASKS}
endpoints: {{writer: {{base_url: "URL", model: m, retries: 0}}}}
user: {{kind: model, endpoint: writer, prompt: "You want {{{{ task.question }}}}.", stop: "###"}}
tools:
  improve: {{kind: model, endpoint: writer, prompt: "Improve {{{{ args.text }}}}", parameters: {{text: string}}}}
answer: {{from: tag, tag: answer}}
rewards: {{correct: {{kind: rule, rule: exact_match, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - say: "What do you want?"
  - call: {{improve: {{text: "{{{{ task.question }}}}"}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""


def test_a_user_and_a_model_tool_replay_with_their_endpoint_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, number = spec(tmp_path, TALK), count()
    url = ["--set", f"endpoints.writer.base_url={GONE}/v1"]
    with served(FakeEndpoint(lambda body: f"Reply {next(number)}.")) as server:
        asked = ["--set", f"endpoints.writer.base_url={server.base_url}"]
        argv = ["eval", path, *asked, "-k", "3", "-o", str(tmp_path / "run")]
        assert run(capsys, *argv)[0] == 0
    same(capsys, tmp_path / "run", *url, episodes=6)
    places = {one.place for one in events(tmp_path / "run")}
    assert places == {"user 0", "turn 1 call 0"}

    prompt = ["--set", "tools.improve.prompt=Mend {{ args.text }}"]
    code, found = run(capsys, "replay", str(tmp_path / "run"), *url, *prompt)
    assert code == 1
    (message,) = found["different"][0]["differences"]
    assert message.startswith(
        "turn 1 call 0: the tape has no answer to this request of chat 'writer'; the nearest, "
        "request 0 of turn 1 call 0, differs at $.messages[0].content: 'Improve one' before, 'Mend one' now"
    )
    assert "; since lock " in message
    assert " these differ: tools improve." in message


@pytest.mark.slow
def test_an_agent_replays_with_what_it_was_told_at_each_of_its_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bm25s")
    found = importlib.util.spec_from_file_location("research_play", ROOT / "examples" / "research" / "play.py")
    assert found is not None
    assert found.loader is not None
    play = importlib.util.module_from_spec(found)
    found.loader.exec_module(play)
    path = str(ROOT / "examples" / "research" / "env.yaml")
    with served(FakeEndpoint(play.writer)) as server:
        monkeypatch.setenv("RESEARCH_URL", server.base_url)
        assert run(capsys, "eval", path, "--record", "-o", str(tmp_path / "run"))[0] == 0
    monkeypatch.delenv("RESEARCH_URL")
    same(capsys, tmp_path / "run", episodes=len(recorded(tmp_path / "run")))
    places = {one.place for one in events(tmp_path / "run")}
    agent = "turn 0 call 0 > agent turn"
    assert {f"{agent} 0", f"{agent} 1", f"{agent} 0 call 0", f"{agent} 1 call 0"} <= places


@pytest.mark.parametrize("record", [[], ["--record"]])
def test_a_policy_behind_an_endpoint_is_recorded_at_its_turns_where_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: list[str]
) -> None:
    def act(body: Mapping[str, Any]) -> Message:
        if body["messages"][-1]["role"] == "tool":
            return Message("assistant", "<answer>1</answer>")
        return Message("assistant", "", (ToolCall("ask", {"what": "one"}, f"call-{next(_numbers)}"),))

    with answering() as address, served(FakeEndpoint(act)) as server:
        policy = ["--policy", "openai", "--base-url", server.base_url, "--model", "m"]
        argv = ["eval", spec(tmp_path, HTTP.replace("URL", address)), *policy, "-n", "1"]
        assert run(capsys, *argv, *record, "-o", str(tmp_path / "run"))[0] == 0
    same(capsys, tmp_path / "run", episodes=1)
    places = ["policy turn 0", "turn 0 call 0", "policy turn 1"]
    assert [one.place for one in events(tmp_path / "run")] == (places if record else ["turn 0 call 0"])


def test_an_episode_whose_policy_failed_is_played_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(body: Mapping[str, Any]) -> Message | Reply:
        if body["messages"][-1]["role"] == "tool":
            return Reply(401, "no key")
        return Message("assistant", "", (ToolCall("ask", {"what": "one"}, "call-0"),))

    with answering() as address, served(FakeEndpoint(act)) as server:
        policy = ["--policy", "openai", "--base-url", server.base_url, "--model", "m"]
        argv = ["eval", spec(tmp_path, HTTP.replace("URL", address)), *policy, "-o", str(tmp_path / "run")]
        assert run(capsys, *argv)[1]["failures"] == {"policy": 2}
    same(capsys, tmp_path / "run", episodes=2)


STATEFUL = {"customer-service", "function-dialogues", "grid-world", "kuhn-poker", "text-world", "tic-tac-toe"}
"""What reads the state that tools change, so that a tape cannot answer them."""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("policy", ["oracle", "random"])
def test_the_shipped_environments_replay_identically(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, policy: str
) -> None:
    argv = ["eval", name, "--policy", policy, "-n", "3", "-k", "2", "--record", "-o", str(tmp_path / "run")]
    assert run(capsys, *argv)[0] == 0
    same(capsys, tmp_path / "run", episodes=6)
    if name not in STATEFUL:
        same(capsys, tmp_path / "run", "--all-tools", episodes=6)
    else:
        assert main(["replay", str(tmp_path / "run"), "--all-tools"]) == 2
        assert "depends on what they do" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arithmetic", "gsm8k", "nl2sql", "search-qa"])
def test_a_shipped_environment_that_has_changed_is_told_by_episode_turn_and_term(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = str(tmp_path / "run")
    assert run(capsys, "eval", name, "--policy", "oracle", "-n", "2", "-k", "2", "-o", out)[0] == 0
    ran = sealed("replay", out)
    assert (ran.code, ran.out) == (0, "4 of 4 episodes came out the same, 0 differently\n")
    assert "socket.connect" not in ran.opened
    (tool, *_) = load(name).parts.tools
    first = episodes_with_ids(out, None)[0][0]
    for change, where in (
        (f"prompt.system=Call {tool} once.", "  prompt: "),
        (f"tools.{tool}.faults={{error: 1}}", "  turn 1, observation: "),
        ("limits.turns=1", "  turns: "),
    ):
        argv = ["replay", out, "--set", change]
        said = []
        for many in ("1", "8"):
            assert main([*argv, "--concurrency", many]) == 1
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
        lines = said[0].splitlines()
        assert lines[0].startswith(f"episode {first}, ")
        assert lines[1].startswith(where), lines
        assert lines[-1] == "0 of 4 episodes came out the same, 4 differently"
    assert "  reward correct: 1.0 before, 0.0 now" in lines


KEYED = f"""{TASKS}
endpoints:
  writer: {{base_url: URL/v1, model: "${{env:TAPED_MODEL}}", api_key: "${{env:TAPED_KEY}}"}}
tools:
  ask:
    kind: http
    url: "URL/{{{{ args.what }}}}"
    headers: {{X-Key: "${{env:TAPED_KEY}}"}}
    parameters: {{what: string}}
  improve:
    kind: model
    endpoint: writer
    prompt: "My key is ${{env:TAPED_KEY}}: {{{{ args.text }}}}"
    parameters: {{text: string}}
rewards: {{correct: {{kind: rule, rule: exact_match, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - call: {{ask: {{what: "{{{{ task.question }}}}"}}}}
  - call: {{improve: {{text: one}}}}
  - say: "<answer>{{{{ task.answer }}}}</answer>"
"""


def test_a_replay_needs_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"TAPED_KEY": "hunter2-hunter2", "TAPED_MODEL": "writer-model-of-mine"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with answering() as address, served(FakeEndpoint(lambda body: "I keep hunter2-hunter2.")) as server:
        path = spec(tmp_path, KEYED.replace("URL/v1", server.base_url).replace("URL", address))
        assert run(capsys, "eval", path, "-k", "2", "--record", "-o", str(tmp_path / "run"))[0] == 0
    for name in names:
        monkeypatch.delenv(name)
    same(capsys, tmp_path / "run", episodes=4)
    code, found = run(capsys, "eval", path, "--tape", str(tmp_path / "run"))
    assert (code, found["invalid"]) == (0, 0)
    code, said = run(capsys, "replay", str(tmp_path / "run"), "--live", "ask")
    assert code == 1
    assert "the environment variable TAPED_KEY is not set" in said


def test_every_entry_names_the_lock_of_its_run(http_run: Path, tmp_path: Path) -> None:
    (lock,) = locks_of(http_run)
    assert {one.lock for one in events(http_run)} == {lock}
    with answering(100) as address:  # what it lacks is asked and added, under a lock of its own
        more = [
            "--set",
            f"vars.server={address}",
            "--set",
            'oracle=[{"call": {"ask": {"what": "three"}}}, {"say": ""}]',
        ]
        assert main(["eval", str(tmp_path / "env.yaml"), *more, "--tape", str(http_run), "--record", "--json"]) == 0
    found = {one.lock for one in events(http_run)}
    assert len(found) == 2
    assert found == set(locks_of(http_run))


def test_what_changed_since_a_tape_was_recorded_is_told_where_it_lacks_an_answer(
    http_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lock,) = locks_of(http_run)
    more = 'tools.ask.parameters={"what": "string", "more": "string?"}'
    assert main(["eval", str(tmp_path / "env.yaml"), "--set", more, "--tape", str(http_run), "--json"]) == 1
    said = capsys.readouterr().err
    assert f"{http_run} lacks what is asked: since lock {lock} these differ: tools ask." in said


def times(found: list[Replayed]) -> list[float]:
    """How long each call took in a replay, by its results."""
    episodes = [one.again for one in found if one.again is not None]
    return [result.seconds for one in episodes for turn in one.turns for result in turn.results]


def test_answers_take_as_long_as_they_did_where_that_is_asked_for(http_run: Path) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def replayed(player: Player) -> list[Replayed]:
        ids, kept = zip(*episodes_with_ids(str(http_run), None), strict=True)
        with offline(), entered(Lane(player, "")):
            async with load(http_run.parent / "env.yaml") as environment:
                return await replay(environment, kept, lane=lambda index: player.lane(ids[index]))

    reel = Reel.of(http_run)
    found = asyncio.run(replayed(Player(reel, sleep=sleep)))
    assert not any(one.differences for one in found)
    assert sorted(slept) == sorted(one.seconds for one in events(http_run))
    assert all(slept)
    assert sorted(times(found)) == sorted(slept)
    assert set(times(asyncio.run(replayed(Player(reel))))) == {0.0}
