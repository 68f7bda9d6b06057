"""The policy's calls against gold calls, and the calls that its code never made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rlenv.concurrency.deadline import Countdown, running_under
from rlenv.errors import WHOSE, CassetteError, EpisodeError, RewardError
from rlenv.messages import ToolCall, ToolResult
from rlenv.testing.rewards import compile_term, reward_context, turn
from rlenv.tools.base import Tool
from rlenv.trajectory import TermResult
from tests.support.clock import passes, run_skipping

FUNCTIONS = """
def api(name: str, arguments: dict) -> str:
    return "ok"
"""

SPEC = """
rlenv: 1
name: calls
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "Do it."}
tools: {api: {kind: python, function: "tools.py:api", schemas: "{{ task.tools }}"}}
limits: {turns: 1}
rewards: {right: {kind: rule, rule: calls_match%s}}
"""

TOOLS = [
    {
        "name": "trip.plan",
        "parameters": {
            "to": {"type": "str"},
            "days": {"type": "int, optional"},
            "with": {"type": "dict, optional"},
        },
    },
    {"name": "pay", "parameters": {"sum": {"type": "float"}, "at": {"type": "list[str], optional"}}},
]  # fmt: skip
BFCL = [{"trip.plan": {"to": ["New York", "NYC"], "days": ["", 3]}}, {"pay": {"sum": [1.5, 2]}}]


NESTED = [{"trip.plan": {"to": ["x"], "with": [{"who": ["ann", "bob"], "how": ["", 1]}]}}]


def measured(make_environment: Any, calls: list[tuple[str, Any]], gold: Any, keys: str = "") -> TermResult:
    environment = make_environment(SPEC % keys, tools=FUNCTIONS)
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    action = "".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)

    async def main() -> TermResult:
        async with environment.start(task={"n": 0, "tools": TOOLS, "answer": gold}) as episode:
            await episode.step(action)
            return episode.trajectory.reward.terms["right"]

    found: TermResult = asyncio.run(main())
    return found


@pytest.mark.parametrize(
    ("calls", "gold", "value"),
    [
        ([("trip_plan", {"to": "new-york."}), ("pay", {"sum": 2})], BFCL, 1),
        ([("pay", {"sum": 1.5}), ("trip_plan", {"to": "NYC", "days": 3})], BFCL, 1),
        ([("trip_plan", {"to": " N*e^w_,./-YORK"}), ("pay", {"sum": 2})], BFCL, 1),
        ([("trip_plan", {"to": "Boston"}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC", "days": 4}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC", "with": {}}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC"})], BFCL, 0),
        ([("trip_plan", {"to": "NYC"}), ("pay", {"sum": 2}), ("pay", {"sum": 2})], BFCL, 0),
        ([("pay", {"sum": 2}), ("pay", {"sum": 2})], BFCL, 0),
        ([("pay", {"sum": True})], [{"pay": {"sum": [1]}}], 0),
        ([("pay", {})], [{"pay": {"sum": [""]}}], 0),
        ([("trip_plan", {"to": "x", "with": {"who": "Ann"}})], NESTED, 1),
        ([("trip_plan", {"to": "x", "with": {"who": "Cid"}})], NESTED, 0),
        ([("pay", {"sum": 1, "at": ["A B", "c"]})], [{"pay": {"sum": [1], "at": [["ab", "C"]]}}], 1),
        ([("pay", {"sum": 1, "at": ["c", "ab"]})], [{"pay": {"sum": [1], "at": [["ab", "C"]]}}], 0),
        ([("pay", {"sum": 1})], [{"name": "pay", "arguments": {"sum": 1}}], 1),
        ([("pay", {"sum": 1.0})], [{"function": {"name": "pay", "arguments": '{"sum": 1}'}}], 1),
        ([("trip_plan", {"to": "nyc"})], [{"name": "trip.plan", "arguments": {"to": "NYC"}}], 0),
        ([("pay", {"sum": 1, "at": ["a"]})], [{"name": "pay", "arguments": {"sum": 1}}], 0),
        ([], [], 1),
        ([("pay", {"sum": 1})], [], 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_text", [False, True])
def test_the_calls_are_those_of_the_gold_and_no_other(
    make_environment: Any, calls: list[tuple[str, Any]], gold: Any, value: float, as_text: bool
) -> None:
    assert measured(make_environment, calls, json.dumps(gold) if as_text else gold).value == value


def test_in_order_each_is_the_next_one(make_environment: Any) -> None:
    calls = [("pay", {"sum": 2}), ("trip_plan", {"to": "NYC"})]
    assert measured(make_environment, calls, BFCL, ", order: true").value == 0
    assert measured(make_environment, calls[::-1], BFCL, ", order: true").value == 1


@pytest.mark.parametrize(
    "gold",
    [
        "no json",
        7,
        [3],
        [{}],
        [{"pay": 3}],
        None,
        [{"name": "pay", "arguments": None}],
        [{"name": "pay", "arguments": "[]"}],
    ],
)
def test_a_gold_that_is_none_is_invalid_and_no_number(make_environment: Any, gold: Any) -> None:
    result = measured(make_environment, [("pay", {"sum": 1})], gold)
    assert (result.status, result.value) == ("invalid", None)
    assert "is no list of calls" in result.error


WORK = Tool(name="work", description="", parameters={}, run=lambda *_: None, mode="inline", example={"q": "known"})
TOOLS_OF_CODE = {
    "work": WORK,
    "other": replace(WORK, name="other"),
    "run": replace(WORK, name="run", kind="code", example=None, options={"tools": ["work", "other"]}),
}
LEAST: list[tuple[dict[str, Any], int]] = [
    ({"rule": "tool_called", "tool": "work"}, 3),
    ({"rule": "tool_called", "tool": "work", "succeeded": False}, 3),
    ({"rule": "tool_call_count"}, 4),
]
"""Rules, and what each counts of one piece of code that calls `work` three times."""


def ran(*made: tuple[str, str, str], reason: str = "") -> ToolResult:
    """Code that made these calls, each a tool, its argument and an outcome, and that failed where there is a reason."""
    called: dict[str, dict[str, int]] = {}
    for tool, _, how in made:
        called.setdefault(tool, {})[how] = called.get(tool, {}).get(how, 0) + 1
    calls = [{"tool": tool, "arguments": {"q": q}, "outcome": how} for tool, q, how in made]
    details = {"called": called, "calls": calls}
    if not reason:
        return ToolResult("run", "", details=details)
    return ToolResult("run", "", "failed", reason=reason, whose=WHOSE[reason], details=details)


WHOLE = ran(*(("work", q, "ok") for q in "abc"))
ENDED = ran(("work", "a", "unclear"), reason="server_error")
BY_OTHER = ran(("other", "a", "infrastructure"), reason="server_down")
CAUGHT = ran(("work", "gone", "unclear"), ("work", "a", "infrastructure"), reason="server_down")
"""Code that caught what fails by itself, before an outage ended it."""


@dataclass
class Server:
    """Tools that are well but for the questions that fail, and code that gives these in turn, the last one for ever."""

    code: Sequence[ToolResult] = (WHOLE,)
    fails: Mapping[str, str] = field(default_factory=dict)
    takes_s: float = 0.0
    runs: int = 0

    async def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name == "run":
            await passes(self.takes_s)
            self.runs += 1
            return self.code[min(self.runs, len(self.code)) - 1]
        reason = self.fails.get(arguments["q"])
        return ToolResult(name, "", "failed", reason=reason, whose=WHOSE[reason]) if reason else ToolResult(name, "")


def worth(server: Server, *results: ToolResult, tools: Mapping[str, Tool] = TOOLS_OF_CODE, **keys: Any) -> float | None:
    """The value of a rule over an episode of code with these results, None where it is invalid."""
    turns = [
        turn(index=at, calls=[ToolCall("run", {"code": f"{at}: …"})], results=[one]) for at, one in enumerate(results)
    ]
    term = compile_term(tools=tools, **keys)
    assert term.measure_async is not None

    async def main() -> float | None:
        assert term.measure_async is not None
        try:
            with running_under(Countdown(30.0)):
                return (await term.measure_async(reward_context(turns=turns, call=server))).value
        except RewardError:
            return None

    return run_skipping(main())


@pytest.mark.parametrize(("keys", "made"), LEAST)
@pytest.mark.parametrize("ended", [ENDED, BY_OTHER, CAUGHT])
def test_calls_that_code_never_made_as_an_outage_ended_it_count_for_the_least(
    keys: dict[str, Any], made: int, ended: ToolResult
) -> None:
    server = Server(fails={"gone": "server_error"})
    assert worth(server, ended, min=made, **keys) == 1.0
    assert server.runs == 1
    assert worth(Server(), ended, min=made + 1, **keys) == 0.0
    assert worth(Server(), ended, ended, min=2 * made, **keys) == 1.0, "each of them"


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_calls_that_were_never_made_count_against_no_most(keys: dict[str, Any], made: int) -> None:
    assert worth(Server(), ENDED, min=made - 1, max=made - 1, **keys) == 1.0


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_code_is_not_run_again_where_no_outage_ended_it_or_nothing_depends_on_it(
    keys: dict[str, Any], made: int
) -> None:
    def runs(*results: ToolResult, least: int = made, fails: Sequence[str] = (), **tool: Any) -> int:
        server = Server(fails=dict.fromkeys(fails, "server_error"))
        tools = {**TOOLS_OF_CODE, "run": replace(TOOLS_OF_CODE["run"], **tool)}
        assert worth(server, *results, tools=tools, min=least, **keys) == float(least < made)
        return server.runs

    assert runs(ENDED, fails=["a"]) == 0, "the policy's own failure"
    assert runs(replace(ENDED, outcome="ok", whose="", reason="")) == 0, "it went on"
    assert runs(ENDED, mutates=True) == 0
    assert runs(ENDED, least=made - 2) == 0


SECOND = [
    ToolResult("run", "", "timeout", reason="late", whose="unclear"),
    ToolResult("run", "", "failed", reason="busy", whose="infrastructure"),
    ran(reason="failed"),
    ran(("work", "gone", "infrastructure"), reason="busy"),
    ran(("work", "gone", "unclear"), reason="late"),
]


@pytest.mark.parametrize(("keys", "made"), LEAST)
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("takes_s", [0.0, 100.0])
def test_nothing_that_code_does_when_it_is_run_again_masks_its_policy(
    keys: dict[str, Any], made: int, second: ToolResult, takes_s: float
) -> None:
    server = Server([second], {"gone": "server_down"}, takes_s)
    assert worth(server, *[ENDED] * 20, min=made * 20, **keys) == 0.0


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_calls_that_are_lost_when_code_is_run_again_are_asked_by_themselves(keys: dict[str, Any], made: int) -> None:
    again = ran(("work", "a", "ok"), ("work", "b", "ok"), ("work", "c", "unclear"), reason="server_error")
    assert worth(Server([again]), ENDED, min=made, **keys) == 1.0
    own = worth(Server([again], {"c": "server_error"}), ENDED, min=made, **keys)
    assert own == float(keys != LEAST[0][0]), "a call that failed is one, and none that succeeded"


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_an_outage_that_lasts_or_comes_again_decides_as_if_the_code_were_not_run_again(
    keys: dict[str, Any], made: int
) -> None:
    assert worth(Server([ENDED, WHOLE]), ENDED, min=made, **keys) == 0.0, "one more run, and no third"
    by_itself = Server([ENDED])  # as one that brings its losses about
    assert worth(by_itself, ENDED, min=made, **keys) == 0.0
    assert by_itself.runs == 1
    for ended in (ENDED, BY_OTHER):
        down = Server(fails={"a": "server_down", "known": "server_down"})
        assert worth(down, ended, min=made, **keys) == 0.0
        assert down.runs == 0


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_no_call_counts_twice_as_it_was_asked_again_by_itself_and_by_its_code(keys: dict[str, Any], made: int) -> None:
    for least in range(2 * made + 2):
        found = worth(Server([WHOLE]), ENDED, ENDED, min=least, **keys)
        assert found == float(least <= 2 * made), least


@pytest.mark.parametrize(("keys", "made"), LEAST)
@pytest.mark.parametrize("details", [None, {}, {"called": {}}, {"calls": []}, {"called": {"work": {"unclear": 1}}}])
def test_code_is_not_run_again_where_it_is_not_kept_which_call_was_lost(
    keys: dict[str, Any], made: int, details: dict[str, Any] | None
) -> None:
    server = Server()
    worth(server, replace(ENDED, outcome="failed", reason="failed", whose="policy", details=details), min=9, **keys)
    assert server.runs == 0


@pytest.mark.parametrize(("keys", "made"), LEAST)
def test_no_error_of_the_second_run_is_the_terms_but_that_of_a_tape(keys: dict[str, Any], made: int) -> None:
    @dataclass
    class Broken(Server):
        error: Exception = field(default_factory=lambda: EpisodeError("hangs", reason="tool_hangs"))

        async def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
            if name == "run":
                raise self.error
            return await super().__call__(name, arguments)

    assert worth(Broken(), ENDED, min=made, **keys) == 0.0
    with pytest.raises(CassetteError):
        worth(Broken(error=CassetteError("no answer")), ENDED, min=made, **keys)
