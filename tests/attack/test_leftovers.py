"""What an action left and no template or parser of ours can read is the action's: no invalid reward, no exception."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlenv.episodes.environment import Environment
from rlenv.errors import SpecError, ToolFailed
from rlenv.hosts.link import Socket
from rlenv.hosts.openenv import ServerWorld, _text_of
from rlenv.language.templates import TemplateError, compile_template
from rlenv.messages import Message, ToolCall
from rlenv.runs import files as record
from rlenv.tools.arguments import compile_filling
from rlenv.trajectory import Trajectory
from tests.support.environments import Make

TOOLS = '''
import datetime
import decimal
import functools
import os
import socket
import sqlite3
import sys
import urllib.request

import numpy as np


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


LEFT = {
    "none": None, "mapping": {}, "list": [], "nested": nested(200), "deep": nested(5_000), "nan": float("nan"),
    "inf": float("inf"), "minus inf": float("-inf"), "minus zero": -0.0, "huge": 10**400, "long": 10**5_000,
    "minus one": -1,
    "surrogate": "\\ud800", "nul": "\\0", "text": "x" * 5_000_000, "keys": dict.fromkeys(map(str, range(300_000))),
    "bytes": b"\\xff", "true": True, "float32": np.float32("nan"), "int64": np.int64(3), "array": np.zeros(3),
    "no array": np.zeros(0), "date": datetime.date(2020, 1, 1), "template": "{{ 1 / 0 }}", "set": {1}, "key": {(1,): 1},
    "decimal": decimal.Decimal("sNaN"), "inner": {"done": np.zeros(2)}, "fine": {"done": 0, "points": [1.0]},
}  # fmt: skip


class Desk:
    left = {"done": 0, "points": [1.0]}

    @property
    def away(self):
        raise ConnectionError("its server is away")

    ask = staticmethod(functools.partial(urllib.request.urlopen, "http://127.0.0.1:9", timeout=1))
    line = socket.socket()
    closed, rows, spoilt = (sqlite3.connect(":memory:", check_same_thread=False) for _ in range(3))
    closed.close()
    spoilt.executescript("""CREATE TABLE orders (points); PRAGMA writable_schema = ON;
        UPDATE sqlite_master SET sql = 'gone'; PRAGMA writable_schema = RESET""")

    @property
    def lost(self):
        return self.session.points

    session = None


def leave(which: str, desk: Desk) -> str:
    """Leaves something."""
    desk.left = LEFT[which]
    return "left"


def give(which: str) -> str:
    """Gives something."""
    return LEFT[which]


class World:
    metadata, render_mode = {}, None

    def reset(self, seed=None):
        return "begun", {}

    def step(self, action):
        return LEFT[action], -1.0, False, False, {"left": LEFT[action]}

    def close(self):
        pass
'''
HELD: dict[str, Any] = {}
exec(TOOLS, HELD)
NAMES = tuple(HELD["LEFT"])
PLAIN = ("none", "mapping", "list", "nested", "nan", "inf", "minus zero", "huge", "nul", "text", "true", "template")
SPEC = """
rlenv: 1
name: left
tasks: {train: {rows: [{answer: "1"}]}}
prompt: {user: Go on.}
resources: {desk: {kind: python, function: "tools.py:Desk", scope: episode}}
tools:
  leave: {kind: python, function: "tools.py:leave", inject: [desk], mutates: true}
rewards: {said: {kind: rule, rule: exact_match}}
limits: {turns: 4}
"""
READS = (
    "LEFT.done", "LEFT", "LEFT | last",
    "LEFT[0]", "LEFT.points[-1]", "LEFT == 3", "LEFT > 3", "LEFT * 1.0", "1 / LEFT", "LEFT + 'x'",
    "LEFT | length", "LEFT | sum", "LEFT | int", "LEFT | tojson", "LEFT.items() | list", "not LEFT", "LEFT | first",
    "'{:.2f}'.format(LEFT)", "(LEFT | e) % 3", "LEFT | tojson(2)", "LEFT | boxed", "LEFT ** 0.5",
)  # fmt: skip


def play(environment: Environment, *calls: ToolCall, is_paid: bool = True) -> Trajectory:
    """An episode in which each call is an action, beside one of another that leaves what is fine."""

    async def one(*calls: ToolCall) -> Trajectory:
        async with environment.start() as episode:
            for call in calls:
                if not episode.is_ended:
                    await episode.step(Message("assistant", "", (call,)))
            if not episode.is_ended:
                await episode.step("<answer>1</answer>")
            return episode.trajectory

    async def both() -> Trajectory:
        found, other = await asyncio.gather(one(*calls), one())
        assert other.reward.total is not None or not is_paid, other.failure
        return found

    return asyncio.run(asyncio.wait_for(both(), 60))


def is_well(found: Trajectory, *what: str) -> None:
    assert found.failure is None, (*what, found.failure)
    assert found.reward.total is not None, what
    assert record.parse(record.dump(found)).reward.total == found.reward.total, what


@pytest.mark.parametrize("read", READS)
@pytest.mark.slow(but=6)
def test_an_ends_that_does_not_fit_what_a_call_left_ends_nothing(read: str, make_environment: Make) -> None:
    for place, tool, names in (("resources.desk.left", "leave", NAMES), ("result.value", "give", PLAIN)):
        more = '  give: {kind: python, function: "tools.py:give", example: {which: fine}}\nrewards:'
        ends = json.dumps("{{ " + read.replace("LEFT", place) + " }}")
        text = SPEC.replace("\nrewards:", "\n" + more, 1)
        environment = make_environment(text, tools=TOOLS, **{f"tools__{tool}__ends": json.loads(ends)})
        for which in names:
            is_well(play(environment, ToolCall(tool, {"which": which})), read, tool, which)


@pytest.mark.parametrize("read", READS)
@pytest.mark.slow(but=6)
def test_a_number_that_cannot_be_read_of_what_is_left_is_worth_nothing(read: str, make_environment: Make) -> None:
    rule = {"kind": "rule", "rule": "value", "value": "{{ " + read.replace("LEFT", "resources.desk.left") + " }}"}
    shaped = {"clipped": {**rule, "clip": [-1, 1]}, "ranged": {**rule, "range": [-2, 2]}}
    turn = {**rule, "when": "turn"}
    environment = make_environment(
        SPEC, tools=TOOLS, rewards={"plain": rule, "turn": turn, **shaped}, success="plain > 0"
    )
    for which in NAMES:
        if which not in ("key", "decimal", "date", "set", "array", "no array", "inner"):  # of the author's
            is_well(play(environment, ToolCall("leave", {"which": which})), read, which)
    for calls in ([], [ToolCall("leave", {"which": "list"})]):
        is_well(play(environment, *calls), read)


@pytest.mark.parametrize(
    "read",
    [
        "resources.desk.left.max()",
        "resources.desk.left.reshape(2, 2).sum()",
        "resources.desk.rows.execute('SELECT points FROM orders').fetchone()[0]",
        "resources.desk.rows.execute('SELECT 1 WHERE 0').fetchone()[0]",
        "resources.desk.rows.execute('SELECT ?', [resources.desk.left]).fetchone()[0]",
        "resources.desk.rows.execute('SELECT CAST(x\\'ff\\' AS TEXT)').fetchone()[0]",
        "resources.desk.spoilt.execute('SELECT points FROM orders').fetchone()[0]",
    ],
)
def test_an_array_without_numbers_and_a_table_that_is_not_there_are_worth_nothing(
    read: str, make_environment: Make
) -> None:
    rules = {"left": {"kind": "rule", "rule": "value", "value": "{{ " + read + " }}"}}
    found = play(make_environment(SPEC, tools=TOOLS, rewards=rules), ToolCall("leave", {"which": "no array"}))
    is_well(found, read)
    assert found.reward.total == 0


def test_what_cannot_be_read_earns_the_least_and_costs_the_most_that_a_term_names(make_environment: Make) -> None:
    """Else whoever is in the minus had only to break what it is read from."""
    rule = {"kind": "rule", "rule": "value", "value": "{{ 0 - resources.desk.left.done }}"}
    gold = {"kind": "rule", "rule": "exact_match", "expect": "{{ resources.desk.left.done }}", "weight": -1}
    answered = {"kind": "rule", "rule": "value", "value": "{{ 0 - (answer | float) }}", "range": [-9, 0]}
    terms = {
        "gain": (rule, 0),
        "ranged": ({**rule, "range": [-9, 0]}, 0),
        "clipped": ({**rule, "clip": [-2, 3]}, -2),
        "both": ({**rule, "range": [-9, 0], "clip": [0.25, 0.5]}, 0.25),
        "cost": ({**rule, "weight": -1}, 1),
        "ranged cost": ({**rule, "weight": -1, "range": [0, 9]}, 1),
        "clipped cost": ({**rule, "weight": -1, "clip": [-2, 3]}, 3),
        "gold": (gold, 1),
        "answer": (answered, 0),
    }
    rewards = {name.replace(" ", "_"): rule for name, (rule, _) in terms.items()}
    environment = make_environment(SPEC, tools=TOOLS, rewards={"said": {"kind": "rule", "rule": "answered"}, **rewards})

    async def main() -> Trajectory:
        async with environment.start() as episode:
            await episode.step(Message("assistant", "", (ToolCall("leave", {"which": "list"}),)))
            return await episode.truncate("host")

    found = asyncio.run(main())
    values = {name: found.reward.terms[name.replace(" ", "_")].value for name in terms}
    assert values == {name: value for name, (_, value) in terms.items()}


def test_a_term_that_cannot_be_read_is_named_in_the_log_once(
    make_environment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    gold = {"kind": "rule", "rule": "exact_match", "expect": "{{ resources.desk.left.pionts }}"}
    point = {"kind": "rule", "rule": "value", "value": "{{ resources.desk.left.pionts[-1] }}"}
    verify = {"kind": "verify", "tool": "add", "arguments": {"expression": point["value"]}, "expect": {"value": 1}}
    environment = make_environment(
        SPEC,
        tools=TOOLS,
        tools__add={"kind": "calculator"},
        rewards={"first_one": gold, "other_one": gold, "point": point, "run_one": verify},
    )
    for _ in range(2):
        assert play(environment).reward.total == 0
    told = re.findall(r"the term '(\w+)'", caplog.text)
    assert sorted(told) == ["first_one", "other_one", "point", "run_one"]


GOLDS: tuple[dict[str, Any], ...] = (
    *({"kind": "rule", "rule": rule} for rule in ("exact_match", "numeric_match", "f1", "math_equal", "json_match")),
    {"kind": "verify", "tool": "add", "arguments": {"expression": "{{ answer }}"}, "expect": {"value": "LEFT"}},
    {"kind": "rule", "rule": "calls_match", "expect": [{"name": "leave", "arguments": {"which": "LEFT"}}]},
)


@pytest.mark.parametrize("rule", GOLDS, ids=lambda rule: rule.get("rule", "verify"))
def test_a_gold_value_that_is_not_in_what_is_left_is_worth_nothing(rule: Any, make_environment: Make) -> None:
    for read in ("left.points[-1]", "left.points | default([])")[: 1 + (rule.get("rule") == "exact_match")]:
        written = json.dumps({"expect": "LEFT", **rule}).replace("LEFT", "{{ resources.desk." + read + " }}")
        rewards = {"gold": json.loads(written)}
        environment = make_environment(SPEC, tools=TOOLS, tools__add={"kind": "calculator"}, rewards=rewards)
        for which in ("list", "none", "mapping"):
            found = play(environment, ToolCall("leave", {"which": which}))
            is_well(found, str(rule), read, which)
            assert found.reward.total == 0


KINDS_OF_GOLD = (
    "exact_match",
    "f1",
    "numeric_match",
    "contains",
    "json_match",
    "math_equal",
    "sql_match",
    "calls_match",
)


@pytest.mark.parametrize("rule", [*KINDS_OF_GOLD, "verify", "verify any", "verify call"])
@pytest.mark.slow(but=4)
def test_a_gold_value_of_what_is_left_that_nothing_compares_with_is_worth_nothing(
    rule: str, make_environment: Make
) -> None:
    """One of the row's own makes the reward invalid."""
    arguments = {"expression": "{{ answer }}"}
    for left in ("resources.desk.left", "task.left"):
        gold: Any = "{{ " + left + " }}"
        if rule.startswith("verify"):
            of = {"value": "{{ item }}", "any_of": gold} if "any" in rule else {"value": gold}
            of = {"arguments": {"expression": gold}} if "call" in rule else of
            term = {"kind": "verify", "tool": "add", "arguments": arguments, "expect": of, "compare": "number"}
        else:
            term = {"kind": "rule", "rule": rule, "expect": gold}
        text = SPEC.replace('answer: "1"', 'answer: "1", left: {deep: [[]]}')
        environment = make_environment(text, tools=TOOLS, tools__add={"kind": "calculator"}, rewards={"gold": term})
        for which in ("inner", "nul", "set", "nested", "surrogate", "bytes", "none", "list"):
            found = play(environment, ToolCall("leave", {"which": which}), is_paid=left != "task.left")
            if left == "resources.desk.left":
                is_well(found, rule, which)
            elif rule != "json_match":
                assert found.reward.total is None, (rule, which)


def test_a_request_that_what_is_left_does_not_fit_is_the_policys(make_environment: Make) -> None:
    """Behind a template, code that fails is not, whatever else a call fills in."""
    for read, whose in (("left.points[-1]", "policy"), ("away", "infrastructure")):
        command = ["echo", "{{ args.word }} {{ resources.desk." + read + " }}"]
        tool = {"kind": "command", "command": command, "parameters": {"word": "string?"}}
        model = {"kind": "model", "endpoint": "other", "prompt": command[1], "parameters": tool["parameters"]}
        called = {"kind": "rule", "rule": "tool_called", "tool": "tell"}
        for one in (tool, model):
            endpoints = {"other": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}
            environment = make_environment(
                SPEC, tools=TOOLS, tools__tell=one, rewards={"called": called}, endpoints=endpoints
            )
            found = play(environment, ToolCall("leave", {"which": "list"}), ToolCall("tell", {}), is_paid=False)
            assert found.turns[1].results[0].whose == whose, (one, read)
            assert found.reward.total == (0 if whose == "policy" else None)


def test_a_server_that_what_is_left_names_wrongly_is_the_policys(make_environment: Make) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    server = str(Path(__file__).parent / "servers" / "bad.py")
    for read, whose in (("left.points", "policy"), ("away", None)):
        tool: dict[str, Any] = {"kind": "mcp", "command": [sys.executable, server], "scope": "episode"}
        tool["env"] = {"POINTS": "{{ resources.desk." + read + " }}"}
        called = {"kind": "rule", "rule": "tool_called", "tool": "t"}
        environment = make_environment(SPEC, tools=TOOLS, tools__s=tool, rewards={"called": called})
        found = play(environment, ToolCall("leave", {"which": "list"}), ToolCall("t", {}), is_paid=False)
        assert (found.reward.total, found.reason) == ((0, "answer") if whose else (None, "tools"))
        assert whose is None or found.turns[1].results[0].whose == whose


FILES = '''
def put(what: str, work) -> str:
    """Puts something in a file's place."""
    place = work.path / "points"
    ways = {"bytes": [lambda: place.write_bytes(b"\\xff")], "folder": [place.mkdir], "none": [],
            "circle": [lambda: place.symlink_to(place)], "three": [lambda: place.write_text("3")],
            "file": [work.path.rmdir, lambda: work.path.write_text("")], "gone": [work.path.rmdir],
            "mem": [lambda: place.symlink_to("/proc/self/mem")], "wide": [lambda: place.write_text("9" * 15)],
            "refs": [lambda: place.symlink_to("/proc/self/clear_refs")], "pipe": [lambda: os.mkfifo(place)],
            "zero": [lambda: place.symlink_to("/dev/zero")], "pages": [lambda: place.symlink_to("/proc/self/pagemap")],
            "long": [lambda: place.write_bytes(b"3" * 20_000_000)]}
    for one in ways[what]:
        one()
    return "put"
'''


def test_a_file_that_is_left_otherwise_than_a_template_reads_it_is_worth_nothing(make_environment: Make) -> None:
    read = "('%' ~ (resources.work.path / 'points').READ ~ 'd') | format(3) | float"
    reads = ["read_text('utf-8')", "read_bytes().decode()", "open('r', -1, 'utf-8').read()"]
    reads.append("open(mode='rb').read().decode()")
    rewards = {
        name: {"kind": "rule", "rule": "value", "value": "{{ " + read.replace("READ", how) + " }}", "weight": 0.25}
        for name, how in zip("abcd", reads, strict=True)
    }
    put = '\n  put: {kind: python, function: "tools.py:put", inject: [work], mutates: true}'
    text = SPEC.replace("resources: {", "resources: {work: {kind: tempdir}, ").replace("\ntools:", "\ntools:" + put)
    environment = make_environment(text, tools=TOOLS + FILES, rewards=rewards)
    for what in "none bytes folder circle file gone mem refs wide pipe zero pages long three".split(" "):
        found = play(environment, ToolCall("put", {"what": what}))
        is_well(found, what)
        assert found.reward.total == 3 * (what == "three"), what


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "points/x", "%(n)999999999999999d", "/proc/self/mem"])
def test_a_name_or_a_form_that_a_call_gives_and_nothing_takes_is_the_policys(name: str, make_environment: Make) -> None:
    read = "{{ ((resources.work.path / (args.name | format(n=1))).read_text()) }}"
    tool = {"kind": "command", "command": ["echo", "-n", "--", read], "parameters": {"name": "string"}}
    model = {"kind": "model", "endpoint": "other", "prompt": read, "parameters": tool["parameters"]}
    more: dict[str, Any] = {"endpoints": {"other": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}}
    more["rewards"] = {"called": {"kind": "rule", "rule": "tool_called", "tool": "tell"}}
    text = SPEC.replace("resources: {", "resources: {work: {kind: tempdir}, ")
    for one in (tool, model):
        environment = make_environment(text, tools=TOOLS, tools__tell=one, **more)
        found = play(environment, ToolCall("tell", {"name": name}))
        assert (found.turns[0].results[0].whose, found.reward.total) == ("policy", 0)


PUT = '\n\ndef put(text: str, work) -> str:\n    (work.path / "sol.sh").write_text(text)\n    return "put"\n'
CHECKS = """
rlenv: 1
name: checks
tasks: {{train: {{rows: [{{answer: "1"}}]}}}}
prompt: {{user: Write sol.sh.}}
resources: {{work: {{kind: tempdir}}}}
tools:
  put: {{kind: python, function: "tools.py:put", inject: [work], mutates: true}}
  check:
    kind: command
    command: [sh, -c, '[ ! -e "$0" ] || kill -9 $$; [ ! -e sol.sh ] || . ./sol.sh; echo 1', {away}]
    cwd: "{{{{ resources.work }}}}"
    example: {{}}
rewards:
  checked: {{kind: verify, tool: check, arguments: {{}}, expect: {{value: "1"}}}}
  called: {{kind: rule, rule: tool_called, tool: check}}
limits: {{reward_s: {reward_s}}}
"""


@pytest.mark.parametrize(("is_away", "put", "worth"), [(False, "kill -9 $$", 0), (False, ":", 1), (True, ":", None)])
def test_what_breaks_a_program_over_what_was_left_is_no_fault_of_the_tools(
    is_away: bool, put: str, worth: int | None, make_environment: Make, tmp_path: Path
) -> None:
    """Its example would break too, were it tried over what the policy left; a tool that is away fails everywhere."""
    text = CHECKS.format(away=json.dumps(str(tmp_path / "away")), reward_s=2 if is_away else 20)
    if is_away:
        (tmp_path / "away").touch()
    environment = make_environment(text, tools=PUT)
    found = asyncio.run(play_alone(environment, ToolCall("put", {"text": put}), ToolCall("check", {})))
    assert [found.reward.terms[name].value for name in ("checked", "called")] == [worth, worth]


async def play_alone(environment: Environment, *calls: ToolCall) -> Trajectory:
    async with environment.start() as episode:
        for call in calls:
            await episode.step(Message("assistant", "", (call,)))
        await episode.step("<answer>1</answer>")
        return episode.trajectory


@pytest.mark.parametrize(
    ("read", "longest"),
    [
        ("{{ args.name | title }}", 65_536),
        ("{{ args.name | trim }}", 1e6),
        ("{{ args.name.split(',') }}", 1e6),
        ("{% for one in args.name %}{{ one }}{% endfor %}", 20_000),
        ("{{ args.name }}", 2e6),
    ],
)
def test_a_template_that_changes_an_argument_takes_no_very_long_one(read: str, longest: float) -> None:
    """A filter may take a microsecond a character, on the event loop."""
    fill = compile_filling(read, key="body", parameters={"properties": {"name": {"type": "string"}}}, vars={})
    for length in (10_000, 60_000, 66_000, 900_000, 1_100_000):
        if length <= longest:
            assert "".join(fill(args={"name": "x" * length}, task={})).lower() == "x" * length
        else:
            with pytest.raises(ToolFailed) as raised:
                fill(args={"name": "x" * length}, task={})
            assert raised.value.reason == "too_large"


@pytest.mark.parametrize(
    ("read", "takes"),
    [
        ("text | title | length", 65_536), ("text.split() | length", 1_000_000), ("text | length", None),
        ("text | trim | length", 1_000_000 - 2), ("text.strip() | title | length", 65_536),
        ("text.count('a')", None), ("text | truncate(9) | length", None), ("items | sort | length", 65_536),
        ("items | map('string') | list | length", 32_000), ("items | sum", 65_536), ("items | first", None),
        ("items | tojson | length", 100_000), ("nested | tojson | length", 2_200), ("nested | list | length", 65_536),
    ],
)  # fmt: skip
def test_a_template_changes_no_very_long_text_or_list_that_is_left(read: str, takes: int | None) -> None:
    """A filter may take a microsecond a character, on the event loop: what a policy makes longer does not fit."""
    template = compile_template("{{ resources.desk." + read + " }}")
    for size in (2_000, 20_000, 60_000, 66_000, 999_000, 1_100_000):
        left = {"text": "a" * size, "items": [1] * size, "nested": [["x" * 400]] * size}
        for values in ({"resources": {"desk": left}}, {"resources": {"desk": SimpleNamespace(**left)}}):
            if takes is None or size <= takes:
                template.value(**values)
            else:
                with pytest.raises(TemplateError, match="longer than") as raised:
                    template.value(**values)
                assert raised.value.is_unfit
    compile_template("{{ task." + read + " }}").value(task={"text": "a" * 66_000, "items": [1] * 66_000, "nested": []})


@pytest.mark.parametrize(("read", "said"), [("result.vlaue.done", "did you mean 'value'"), ("result.zq", "it has: ")])
def test_a_part_that_no_result_has_is_a_fault_of_the_spec(read: str, said: str, make_environment: Make) -> None:
    with pytest.raises(SpecError, match=re.escape(f"a result has no '{read.split('.')[1]}'")) as error:
        make_environment(SPEC, tools=TOOLS, tools__leave__ends="{{ " + read + " }}")
    assert said in str(error.value)


def test_code_behind_a_template_that_fails_is_no_number_and_no_end(make_environment: Make) -> None:
    """Its server is away, say; and what names no resource, or reads the row alone, is the author's."""
    of_desk = ("away", "lost", "ask()", "line.recv(1)", "closed.execute('SELECT 1')")
    for read in (*(f"resources.desk.{one}" for one in of_desk), "task.lost"):
        environment = make_environment(SPEC, tools=TOOLS, tools__leave__ends="{{ " + read + " }}")
        found = play(environment, ToolCall("leave", {"which": "fine"}))
        assert (found.reason, found.reward.total) == ("ends", None)
        rule = {"kind": "rule", "rule": "value", "value": "{{ " + read + " }}", "required": False}
        environment = make_environment(SPEC, tools=TOOLS, rewards__other=rule)
        assert play(environment).reward.terms["other"].status == "invalid"


@pytest.mark.parametrize(
    ("left", "value"), [("inf", 1e30), ("minus inf", -1e30), ("nan", 0), ("list", 0), ("int64", 3)]
)
def test_what_is_left_beyond_all_numbers_is_the_largest_and_what_is_none_nothing(
    left: str, value: float, make_environment: Make
) -> None:
    rule = {"kind": "rule", "rule": "value", "value": "{{ resources.desk.left }}"}
    found = play(make_environment(SPEC, tools=TOOLS, rewards__left=rule), ToolCall("leave", {"which": left}))
    assert found.reward.terms["left"].value == value


@pytest.mark.parametrize("text", [None, "{{ observation.done }}", "{{ info.left }}", "{{ observation | tojson }}"])
def test_a_step_of_a_world_has_paid_whatever_it_shows(text: str | None, make_environment: Make) -> None:
    world = {"kind": "gymnasium", "function": "tools.py:World"}
    world |= {} if text is None else {"text": "{{ observation if observation is string else (" + text[3:-3] + ") }}"}
    paid = {"kind": "rule", "rule": "value", "value": "{{ resources.world.total }}"}
    tool = {"kind": "gymnasium", "resource": "world"}
    text = SPEC.replace("resources: {", f"resources: {{world: {json.dumps(world)}, ")
    environment = make_environment(text, tools=TOOLS, tools__act=tool, rewards__paid=paid)
    for which in NAMES:
        found = play(environment, ToolCall("act", {"action": which}), ToolCall("act", {"action": "fine"}))
        is_well(found, str(text), which)
        assert found.reward.terms["paid"].value == -2, (text, which)


def test_a_step_of_a_world_that_cannot_be_drawn_has_paid(make_environment: Make) -> None:
    drawn = """
class Drawn(World):
    render_mode = "ansi"

    def render(self):
        return {None: "begun"}[getattr(self, "last", None)]

    def step(self, action):
        self.last = action
        return super().step(action)
"""
    paid = {"kind": "rule", "rule": "value", "value": "{{ resources.world.total }}"}
    tool = {"kind": "gymnasium", "resource": "world"}
    text = SPEC.replace("resources: {", 'resources: {world: {kind: gymnasium, function: "tools.py:Drawn"}, ')
    environment = make_environment(text, tools=TOOLS + drawn, tools__act=tool, rewards__paid=paid)
    found = play(environment, ToolCall("act", {"action": "list"}))
    assert (found.turns[0].results[0].text, found.reward.terms["paid"].value) == ("what came of it cannot be shown", -1)


@pytest.mark.parametrize("ended", ["np.zeros(2)", "np.zeros(0)", "Desk.left.__class__", "None", "False, True"])
def test_an_end_of_a_world_of_any_type_raises_nothing_out_of_a_step(ended: str, make_environment: Make) -> None:
    world = f"""
class Ends(World):
    def step(self, action):
        observation, paid, _, truncated, info = super().step(action)
        return observation, paid, {ended}, truncated, info
"""
    tool = {"kind": "gymnasium", "resource": "world"}
    text = SPEC.replace("resources: {", 'resources: {world: {kind: gymnasium, function: "tools.py:Ends"}, ')
    is_well(play(make_environment(text, tools=TOOLS + world, tools__act=tool), ToolCall("act", {"action": "list"})))


@pytest.mark.parametrize(
    "held", [3, "x", None, [1, {"text": 2}], {"content": 3}, {"content": [3]}, {"content": {"a": 1}}]
)
def test_what_a_servers_tool_gives_of_any_form_is_shown(held: Any) -> None:
    class Says:
        async def ask(self, *_: Any, **__: Any) -> Any:
            return {"observation": {"tool_name": "look", "result": held}, "done": False, "reward": -1.0}

    async def main() -> ServerWorld:
        world = ServerWorld(cast(Any, Says()), {"observation": {"text": ""}, "done": False}, None)
        await world.step({}, 0, time.monotonic() + 60)
        return world

    world = asyncio.run(main())
    assert (world.total, world.text) == (-1.0, _text_of(world.observation))


def stepped(answer: str, *told: str, most: int = 50_000) -> ServerWorld:
    """A server's world that was paid 0.5, behind steps that are answered so; `told` is why they fail, "" for not."""

    async def answers(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            await socket.send_str(answer)
        return socket

    async def main() -> ServerWorld:
        app = web.Application()
        app.router.add_get("/ws", answers)
        async with TestServer(app) as server, aiohttp.ClientSession() as client:
            socket = await Socket.opened(client, str(server.make_url("/ws")), most)
            world = ServerWorld(socket, {"observation": {"text": ""}, "done": False}, None)
            world.total = 0.5
            for said in told:
                with pytest.raises(ToolFailed, match=said) if said else nullcontext():
                    await world.step({}, 0, time.monotonic() + 60)
            await socket.aclose()
            return world

    return asyncio.run(asyncio.wait_for(main(), 60))


_BEYOND_JSON = '{"data": {"observation": {"left": [NaN, "' + "x" * 500_000 + '"]}}}'


@pytest.mark.parametrize("answer", ["x" * 100_000, _BEYOND_JSON], ids=["for the socket", "and no JSON"])
def test_an_answer_of_a_servers_that_is_too_long_is_the_actions_and_ends_the_episode(answer: str) -> None:
    world = stepped(answer, "too long", "has ended", most=600_000 if answer is _BEYOND_JSON else 50_000)
    assert (world.total, world.terminated, world.truncated) == (0.5, False, True)


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ('{"text": "said", "left": NaN}', "said"),
        ('{"left": [Infinity, -Infinity]}', '{"left":[null,null]}'),
        ('{"text": "\\ud800"}', "\ud800"),
        ('{"left": "\\ud800"}', "what came of it cannot be shown"),
    ],
)
def test_an_answer_of_a_servers_that_python_writes_and_json_has_no_word_for_has_paid(held: str, shown: str) -> None:
    answer = f'{{"type": "observation", "data": {{"observation": {held}, "reward": -1.0, "done": false}}}}'
    world = stepped(answer, "", "")
    assert (world.total, world.text, world.steps) == (-1.5, shown, 2)


@pytest.mark.parametrize("paid", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_step_of_a_servers_that_no_number_is_paid_for_is_the_actions_and_pays_nothing(paid: str) -> None:
    answer = f'{{"type": "observation", "data": {{"observation": {{}}, "reward": {paid}, "done": true}}}}'
    world = stepped(answer, "paid", "has ended")
    assert (world.total, world.terminated) == (0.5, True)
