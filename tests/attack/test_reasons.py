"""Every reason of failure times every built-in term: a number of the policy's failures only, and of all of those.

A row of `EPISODE` says what a term makes of an episode in which one call failed, a row of `OWN` what it makes of a
call of its own that failed, each with a tool that is well, with one that is not, and where the very call that failed
goes well when it is asked again. New reasons are in the table at once, new terms fail until they have a row.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from rlenv.errors import WHOSE, RewardError
from rlenv.language import kinds as registry
from rlenv.messages import ParsedAction, ToolCall, ToolResult
from rlenv.rewards.base import RewardContext, Term
from rlenv.testing.rewards import compile_term, reward_context, turn
from rlenv.tools.base import Tool
from rlenv.trajectory import RewardBreakdown, TermResult, Trajectory, Turn
from tests.support.clock import run_skipping

INVALID: Literal["invalid"] = "invalid"
SKIPPED: Literal["skipped"] = "skipped"
Verdict = float | Literal["invalid", "skipped"]

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOL = Tool(
    name="tool", description="", parameters=PARAMETERS, run=lambda *_: None, mode="inline", example={"q": "known"}
)
REFUSED = ("bad_arguments", "malformed", "unknown_tool")
OUTCOMES: dict[str, Any] = {
    **{reason: reason for reason in (*REFUSED, "skipped")},
    **dict.fromkeys(("timeout", "late", "stalled", "stopped", "busy"), "timeout"),
}


def failed(reason: str) -> ToolResult:
    """A call that failed for `reason`, as the executor gives it."""
    text = f"it failed: {reason}"
    return ToolResult("tool", text, OUTCOMES.get(reason, "failed"), reason=reason, whose=WHOSE[reason])


def ok(value: Any = None) -> ToolResult:
    return ToolResult("tool", "it went well", "ok", value)


def episode(*results: ToolResult, last: str = "<answer>7</answer>") -> list[Turn]:
    """An episode in the form of Search-R1: a call a turn, and an answer."""
    turns = []
    for index, result in enumerate(results):
        text = "<think>a</think>" + "c"
        call = ToolCall("tool", {"q": "x"}, start=len(text) - 1, end=len(text))
        turns.append(Turn(index, text, ParsedAction("", "a", (call,)), (result,)))
    return [*turns, turn("<think>b</think>" + last, index=len(turns))]


@dataclass
class Answers:
    """A tool that gives each question's results in turn, the last one for ever; what is not listed goes well."""

    results: Mapping[str, Sequence[ToolResult]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        question = arguments["q"]
        listed = self.results.get(question, (ok(7),))
        found = listed[min(self.asked.count(question), len(listed) - 1)]
        self.asked.append(question)
        return found


def verdict(term: Term, context: RewardContext) -> Verdict:
    async def measured() -> Verdict:
        try:
            async with asyncio.timeout(30):
                found = term.measure(context) if term.measure else await term.measure_async(context)  # type: ignore[misc]
        except RewardError:
            return INVALID
        return SKIPPED if found.value is None else found.value

    return run_skipping(measured())


@dataclass(frozen=True)
class Row:
    """What a term is worth by whose failure it was; where it is unclear, with a tool that is well and one that is not.

    `after_all` is what it is worth where the very call goes well when it is asked again. `but` has the reasons that a
    term has a value of its own for.
    """

    keys: Mapping[str, Any]
    policy: Verdict
    infrastructure: Verdict
    unclear: Verdict
    unclear_and_down: Verdict
    after_all: Verdict
    but: Mapping[str, Verdict] = field(default_factory=dict)

    def expected(self, reason: str, now: str) -> Verdict:
        if reason in self.but:
            return self.but[reason]
        if now == "goes well" and WHOSE[reason] != "policy":
            return self.after_all
        if WHOSE[reason] == "unclear":
            return self.unclear if now == "fails again" else self.unclear_and_down
        return self.policy if WHOSE[reason] == "policy" else self.infrastructure


def same(value: Verdict, **keys: Any) -> Row:
    """A term that looks at no outcome."""
    return Row(keys, value, value, value, value, value)


# One call that failed, then the answer "7", wrong where a text is expected.
EPISODE: dict[str, list[Row]] = {
    "calls_match": [
        Row({"expect": [{"tool": {"q": ["X"]}}]}, 1.0, 1.0, 1.0, 1.0, 1.0, dict.fromkeys(REFUSED, 0.0)),
        same(0.0, expect=[]),
    ],
    "valid_calls": [Row({}, 1.0, 1.0, 1.0, 1.0, 1.0, dict.fromkeys(REFUSED, 0.0) | {"skipped": SKIPPED})],
    "tool_called": [
        Row({"tool": "tool"}, 0.0, INVALID, 0.0, INVALID, 1.0),
        Row({"tool": "tool", "min": 0}, 1.0, 1.0, 1.0, 1.0, 1.0),
        Row({"tool": "tool", "min": 0, "max": 0}, 1.0, INVALID, 1.0, INVALID, 0.0),
        Row({"tool": "tool", "min": 2}, 0.0, 0.0, 0.0, 0.0, 0.0),
        same(1.0, tool="tool", succeeded=False),
    ],
    "tool_call_count": [
        Row({"max": 0}, 0.0, 1.0, 0.0, 1.0, 1.0),
        Row({"min": 1}, 1.0, 1.0, 1.0, 1.0, 1.0),
        Row({"min": 1, "max": 1}, 1.0, 1.0, 1.0, 1.0, 1.0),
    ],
    "search_r1_format": [
        same(0.2, expect="Paris"),
        same(1.0, expect="7", retrieval=0.5),
        Row({"expect": "Paris", "retrieval": 0.5}, 0.2, INVALID, 0.2, INVALID, 0.2),
        Row({"expect": "went well", "retrieval": 0.5}, 0.2, INVALID, 0.2, INVALID, 0.7),
    ],
    "rl_factory_search": [same(0.1, expect="Paris")],
    "turn_count": [same(1.0, max=2)],
    "value": [Row({"value": "{{ answer | float / 2 }}"}, 3.5, 3.5, 3.5, 3.5, 3.5)],
    "exact_match": [same(1.0, expect="7"), same(0.0, expect="8")],
    "f1": [same(1.0, expect="7")],
    "contains": [same(0.0, expect="Paris")],
    "numeric_match": [same(1.0, expect=7)],
    "json_match": [same(1.0, expect=7)],
    "json_schema": [same(0.0, schema={"type": "string"})],
    "regex": [same(1.0, pattern=r"\d")],
    "answered": [same(1.0)],
    "length": [same(1.0, max=100)],
    "search_r1": [same(0.0, expect="Paris")],
    "gsm8k": [same(0.0, expect="7")],
    "verl_math": [same(0.0, expect="7")],
    "verl_dapo": [same(-1.0, expect="7")],
    "skyrl_aime": [same(-1.0, expect="7")],
    "skyrl_gsm8k": [same(0.0, expect="7")],
    "sql_match": [same(0.0, expect="SELECT 1")],
    "math_equal": [same(1.0, expect="7")],
    "skyrl_synsql": [same(-1.0, tool="tool", argument="q", expect="known")],
}  # fmt: skip
ELSEWHERE = {
    "python": "a function of the author's own; it reads whose failure a result is",
    "reasoning_gym": "reads the answer alone: tests/peers/test_reasoning_gym.py",
    "judge": "reads no outcome; what its endpoint fails by is in tests/rewards/test_judge.py",
    "tests": "reads no outcome; what its sandboxes fail by is in tests/rewards/test_tests.py",
    "workspace": "reads no outcome; what its machines fail by is in tests/rewards/test_workspace.py",
}
EPISODES = [
    pytest.param(rule, row, reason, id=f"{rule}-{index}-{reason}")
    for rule, found in EPISODE.items()
    for index, row in enumerate(found)
    for reason in WHOSE
]


def test_every_rule_and_every_kind_has_its_rows() -> None:
    assert set(registry.names("rules")) == EPISODE.keys() | {"python", "reasoning_gym"}
    assert set(registry.names("rewards")) == {"rule", "verify", "state", "judge", "group", "tests", "workspace"}
    assert {"python", "reasoning_gym", "judge", "tests", "workspace"} == ELSEWHERE.keys()


@pytest.mark.slow(but=200)
@pytest.mark.parametrize(("rule", "row", "reason"), EPISODES)
def test_a_failed_call_of_the_episode(rule: str, row: Row, reason: str) -> None:
    if rule in ("sql_match", "math_equal"):
        pytest.importorskip({"sql_match": "sqlglot", "math_equal": "math_verify"}[rule])
    term = compile_term(rule=rule, tools={"tool": TOOL}, **row.keys)
    nows: dict[str, dict[str, list[ToolResult]]] = {
        "goes well": {},
        "fails again": {"x": [failed(reason)]},
        "is down": {"x": [failed(reason)], "known": [failed("server_down")]},
    }
    for now, results in nows.items():
        context = reward_context(answer="7", turns=episode(failed(reason)), call=Answers(results))
        assert verdict(term, context) == row.expected(reason, now), f"the tool {now}"


def test_calls_that_an_outage_lost_are_no_calls_too_many_and_those_that_the_policy_broke_are() -> None:
    again = episode(failed("server_down"), failed("busy"), ok(), ok())
    mistaken = episode(failed("failed"), failed("bad_arguments"), ok(), ok())
    unclear = episode(failed("late"), failed("server_error"), ok(), ok())
    for rule, keys, fine, too_many in (
        ("tool_call_count", {"max": 2}, 1.0, 0.0),
        ("rl_factory_search", {"expect": "Paris"}, 0.1, 0.0),
    ):
        term = compile_term(rule=rule, tools={"tool": TOOL}, **keys)
        assert verdict(term, reward_context(answer="8", turns=again)) == fine
        assert verdict(term, reward_context(answer="8", turns=mistaken)) == too_many
        assert verdict(term, reward_context(answer="8", turns=unclear, call=Answers())) == fine
        broken = Answers({"x": [failed("late")]})
        assert verdict(term, reward_context(answer="8", turns=unclear, call=broken)) == too_many


def test_a_call_that_was_lost_and_made_again_counts_once() -> None:
    bounds: list[dict[str, Any]] = [{"max": 1}, {"min": 1, "max": 1}, {"min": 2}]
    for keys in bounds:
        term = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL}, **keys)
        for results in ((failed("late"), ok()), (failed("late"), failed("late"))):  # also where it was lost once more
            assert verdict(term, reward_context(turns=episode(*results), call=Answers())) == 1.0, (
                "or twice, as is better for the policy"
            )


def test_a_call_that_code_made_and_lost_and_that_is_made_again_counts_once() -> None:
    def ran(outcome: str) -> ToolResult:
        kept = {"tool": "tool", "outcome": outcome, "arguments": {"q": "x"}}
        return ToolResult("run", "", "ok", details={"called": {"tool": {outcome: 1}}, "calls": [kept]})

    read = ParsedAction("", "a", (ToolCall("run", {"code": "tool('x')"}, start=0, end=1),))
    code = replace(TOOL, name="run", kind="code", example=None, options={"tools": ["tool"]})
    bounds: list[tuple[dict[str, Any], float]] = [({"max": 1}, 1.0), ({"min": 2}, 1.0), ({"min": 3}, 0.0)]
    for keys, expected in bounds:
        term = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL, "run": code}, **keys)
        for by_itself in (False, True):
            again = episode(ok())[0] if by_itself else Turn(1, "c", read, (ran("ok"),))
            turns = [Turn(0, "c", read, (ran("infrastructure"),)), again]
            assert verdict(term, reward_context(turns=turns, call=Answers())) == expected


@pytest.mark.parametrize("reason", ["late", "server_error", "server_down", "busy"])
def test_no_cost_is_paid_for_calls_that_an_outage_lost(reason: str) -> None:
    """What costs by being within the bounds costs no more for a call that was lost, and made again or not."""

    def costs(rule: str, *results: ToolResult, now: Mapping[str, Any] = {}, **keys: Any) -> Verdict:
        named: dict[str, Any] = {"tool": "tool"} if rule == "tool_called" else {}
        term = compile_term(rule=rule, tools={"tool": TOOL}, weight=-1, **named, **keys)
        turns = episode(*results)[: -1 if "when" in keys else None]
        return verdict(term, reward_context(turns=turns, call=Answers(now)))

    bounds: list[dict[str, Any]] = [{"min": 2}, {"min": 0, "max": 1}, {"min": 1, "max": 1}]
    for rule in ("tool_called", "tool_call_count"):
        assert [costs(rule, failed(reason), ok(), **keys) for keys in bounds] == [0.0] * 3
        assert [costs(rule, ok(), ok(), **keys) for keys in bounds] == [1.0, 0.0, 0.0]
        assert [costs(rule, ok(), **keys) for keys in bounds] == [0.0, 1.0, 1.0]
        assert costs(rule, failed(reason), failed(reason), min=2) == 0.0
    assert costs("tool_call_count", failed(reason), max=0) == 0.0
    # Made again in another turn, it has cost nothing in this one.
    assert costs("tool_called", failed(reason), when="turn") == 0.0
    assert costs("tool_called", ok(), when="turn") == 1.0
    if WHOSE[reason] == "unclear":
        broken = {"x": [failed(reason)]}
        assert costs("tool_call_count", failed(reason), ok(), now=broken, min=2) == 1.0, "the policy's own failure"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("reason", [reason for reason, whose in WHOSE.items() if whose == "unclear"])
def test_a_server_that_fails_by_chance_lowers_no_number(share: float, reason: str, tmp_path: Path) -> None:
    rng = random.Random(f"{share} {reason}")
    random.seed(f"{share} {reason}")  # which of two questions is asked first is drawn

    async def by_chance(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return failed(reason) if rng.random() < share else ok(7)

    called = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL})
    for term in (called, verify("equal", tmp_path)):
        found = {verdict(term, replace(asked_with(by_chance), turns=episode(failed(reason)))) for _ in range(60)}
        assert found <= {1.0, INVALID}


def test_what_a_policy_cannot_be_charged_with_by_many_calls_it_cannot_hide_behind_either() -> None:
    calls = Answers({str(n): [failed("late")] for n in range(40)})
    turns = [
        Turn(n, "c", ParsedAction("", "a", (ToolCall("tool", {"q": str(n)}, start=0, end=1),)), (failed("late"),))
        for n in range(40)
    ]
    term = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL})
    assert verdict(term, reward_context(turns=turns, call=calls)) == 0.0


@pytest.mark.parametrize(("kept", "expected"), [({"q": "x"}, 0.0), ({"q": "well"}, 1.0), (None, 0.0)])
def test_a_call_that_code_made_is_asked_again_where_it_was_kept(kept: Any, expected: float) -> None:
    made = [{"tool": "tool", "outcome": "unclear", "arguments": kept}] if kept else []
    inside = ToolResult("code", "", "ok", details={"called": {"tool": {"unclear": 1}}, "calls": made})
    term = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL})
    call = Answers({"x": [failed("crashed")]})
    turns = [Turn(0, "c", ParsedAction("", "a", (ToolCall("code", {}, start=0, end=1),)), (inside,))]
    assert verdict(term, reward_context(turns=turns, call=call)) == expected


@pytest.mark.parametrize("reason", [reason for reason, whose in WHOSE.items() if whose != "policy"])
def test_code_that_was_lost_is_asked_again_for_the_calls_that_it_makes(reason: str) -> None:
    code = replace(TOOL, name="run", kind="code", example=None, options={"tools": ["tool"]})
    term = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL, "run": code})
    lost = replace(failed(reason), name="run")
    made = ToolResult("run", "", "ok", details={"called": {"tool": {"ok": 1}}})
    turns = [Turn(0, "c", ParsedAction("", "a", (ToolCall("run", {"code": "tool()"}, start=0, end=1),)), (lost,))]

    def worth(then: ToolResult, known: ToolResult, inside: Answers | None = None) -> Verdict:
        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            if name == "tool" and inside is not None:
                return await inside(name, arguments)
            assert name == "run"
            return then if arguments["code"] == "tool()" else known

        return verdict(term, reward_context(turns=turns, call=call))

    assert worth(made, ok()) == 1.0
    assert worth(lost, ok()) == (0.0 if WHOSE[reason] == "unclear" else INVALID)
    assert worth(lost, failed("server_down")) == INVALID

    # What it calls is lost in its turn, by its own doing or not.
    for known, expected in (("well", 1.0), ("x", 0.0)):
        kept = {
            "called": {"tool": {"unclear": 1}},
            "calls": [{"tool": "tool", "outcome": "unclear", "arguments": {"q": known}}],
        }
        for then in (replace(made, details=kept), replace(made, outcome="failed", whose="policy", details=kept)):
            asked = Answers({"x": [failed("crashed")]})
            assert worth(then, ok(), asked) == expected

    # The policy ran the same code again itself: what that made is what the lost one may have made.
    for again, expected in ((made, 1.0), (replace(ok(), name="run"), 0.0)):
        turns.append(Turn(1, "c", turns[0].parsed, (again,)))
        assert verdict(term, reward_context(turns=turns)) == expected
        turns.pop()
    # Code that cannot call the tool has not called it.
    alone = compile_term(rule="tool_called", tool="tool", tools={"tool": TOOL, "run": replace(code, options={})})
    assert verdict(alone, reward_context(turns=turns)) == 0.0


def test_nobody_is_asked_where_the_number_is_the_same() -> None:
    for reason in ("refused", "late"):
        call = Answers()
        term = compile_term(tools={"tool": replace(TOOL, idempotent=True)}, rule="tool_called", tool="tool")
        assert verdict(term, reward_context(turns=episode(failed(reason), ok()), call=call)) == 1.0
        assert call.asked == []


def test_calls_that_code_made_are_calls() -> None:
    inside = replace(ok(), details={"called": {"other": {"ok": 900}}})
    assert verdict(compile_term(rule="tool_call_count", max=2), reward_context(turns=episode(inside))) == 0.0


def test_a_tool_that_changes_state_is_not_asked_whether_it_is_well() -> None:
    call = Answers()
    term = compile_term(rule="tool_called", tool="tool", tools={"tool": replace(TOOL, mutates=True)})
    assert verdict(term, reward_context(turns=episode(failed("late")), call=call)) == INVALID
    assert call.asked == []


REFUSING = replace(TOOL, kind="http", idempotent=True, depends_on="arguments")
"""A tool whose server may say of all calls that the caller is at fault."""
CALLED: dict[str, Any] = {"rule": "tool_called", "tool": "tool"}
ASKING = [
    pytest.param(CALLED, 0.0, INVALID, 1.0, id="tool_called"),
    pytest.param({"rule": "tool_call_count", "max": 0}, 0.0, 1.0, 1.0, id="tool_call_count"),
    pytest.param({"rule": "search_r1_format", "expect": "went well", "retrieval": 0.5}, 0.2, INVALID, 0.7, id="pages"),
]


@pytest.mark.parametrize(("keys", "own", "down", "well"), ASKING)
def test_a_call_that_its_server_refused_is_asked_again_beside_a_known_one(
    keys: Mapping[str, Any], own: float, down: Verdict, well: float
) -> None:
    def worth(**results: Sequence[ToolResult]) -> Verdict:
        term = compile_term(tools={"tool": REFUSING}, **keys)
        return verdict(term, reward_context(answer="7", turns=episode(failed("refused")), call=Answers(results)))

    assert worth(x=[failed("refused")]) == own
    for reason in ("refused", "server_down"):
        assert worth(x=[failed("refused")], known=[failed(reason)]) == down
    assert worth(x=[failed("refused")], known=[*[failed("refused")] * 9, ok()]) == own, "an outage that ended"
    for times in range(4):  # no order of its own answers masks it
        assert worth(x=[*[failed("refused")] * times, ok()]) == well
        assert worth(x=[*[failed("server_error")] * times, failed("refused")]) == own
    for reason in ("busy", "rate_limited"):  # as asking itself may bring about; an outage may end with it, too
        assert worth(x=[failed("refused")], known=[ok(), failed(reason)]) == own
        assert worth(x=[failed(reason)], known=[ok(), failed(reason)]) == down
        assert worth(x=[failed("refused")], known=[ok(), failed("refused"), failed(reason)]) == down


OTHER = replace(TOOL, name="other", example=None)
ALONE: list[tuple[Tool, Tool]] = [
    (replace(REFUSING, example=None), OTHER),
    (replace(REFUSING, depends_on="task"), OTHER),
    (replace(REFUSING, idempotent=False), OTHER),
    (replace(REFUSING, mutates=True), OTHER),
    (REFUSING, replace(OTHER, mutates=True)),
    (REFUSING, replace(OTHER, kind="mcp", idempotent=True, may_write=True)),
    *((REFUSING, replace(OTHER, kind=kind)) for kind in ("agent", "http", "mcp")),
    (replace(REFUSING, depends_on="episode"), replace(OTHER, kind="sql", mutates=True)),
]


@pytest.mark.parametrize(("tool", "other"), ALONE)
def test_a_refusal_is_the_policys_where_no_call_is_known_to_work_or_a_policy_may_change_what_works(
    tool: Tool, other: Tool
) -> None:
    call = Answers({"x": [ok()], "known": [failed("refused")]})
    tools = {"tool": tool, "other": other}
    assert (
        verdict(compile_term(tools=tools, **CALLED), reward_context(turns=episode(failed("refused")), call=call)) == 0
    )
    assert call.asked == []
    for kind in ("sql", "bash"):  # what changes nothing but the episode's own
        tools = {"tool": REFUSING, "other": replace(OTHER, kind=kind, mutates=True)}
        context = reward_context(turns=episode(failed("refused")), call=Answers())
        assert verdict(compile_term(tools=tools, **CALLED), context) == 1.0


@pytest.mark.parametrize(("kept", "expected"), [("x", 0.0), ("well", 1.0)])
def test_a_refused_call_that_code_made_is_asked_again(kept: str, expected: float) -> None:
    made = [{"tool": "tool", "outcome": "refused", "arguments": {"q": kept}}]
    inside = ToolResult(
        "code", "", "failed", whose="policy", details={"called": {"tool": {"refused": 1}}, "calls": made}
    )
    turns = [Turn(0, "c", ParsedAction("", "a", (ToolCall("code", {}, start=0, end=1),)), (inside,))]
    call = Answers({"x": [failed("refused")]})
    for tool, worth in ((REFUSING, expected), (TOOL, 0.0)):
        assert verdict(compile_term(tools={"tool": tool}, **CALLED), reward_context(turns=turns, call=call)) == worth


@pytest.mark.parametrize("is_called", [False, True], ids=["expected", "called"])
def test_an_answer_that_a_server_refuses_is_wrong_beside_a_gold_or_known_call_that_goes_well(is_called: bool) -> None:
    tool = replace(REFUSING, example=None if is_called else {"q": "known"})
    expect = {"arguments": {"q": "known"}} if is_called else {"value": 7}
    keys: dict[str, Any] = {"tool": "tool", "arguments": {"q": "{{ answer }}"}, "expect": expect}
    term = compile_term("verify", tools={"tool": tool}, **keys)
    gone = [failed("refused")]
    for mine, known, worth in ((gone, [ok(7)], 0.0), ([*gone, ok(7)], [ok(7)], 1.0), (gone, [ok(7), *gone], INVALID)):
        known = known if is_called or worth != INVALID else gone
        assert verdict(term, asked_with(Answers({"mine": mine, "known": known}))) == worth


# What terms make of a call of their own: (the policy's side failed) and (the gold side failed).
COMPARED: dict[str, Any] = {
    **{name: name for name in ("equal", "number", "text", "rows", "json")},
    "python": {"by": "python", "function": "own.py:same"},
}
OWN_REASONS = [reason for reason in WHOSE if reason not in ("malformed", "unknown_tool", "skipped")]


def verify(compare: Any, base: Path) -> Term:
    (base / "own.py").write_text("def same(mine, gold):\n    return 1.0\n")
    keys: dict[str, Any] = {"tool": "tool", "arguments": {"q": "{{ answer }}"}, "expect": {"arguments": {"q": "known"}}}
    return compile_term("verify", tools={"tool": TOOL}, base=base, compare=compare, **keys)


def synsql(compare: Any, base: Path) -> Term:
    return compile_term(rule="skyrl_synsql", tools={"tool": TOOL}, tool="tool", argument="q", expect="known")


OWN: list[Any] = [pytest.param(verify, compare, id=f"verify-{name}") for name, compare in COMPARED.items()]
OWN.append(pytest.param(synsql, None, id="skyrl_synsql"))


def asked_with(call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]) -> RewardContext:
    turns = [turn("<think>a</think><solution>mine</solution>")]
    return reward_context(answer="mine", turns=turns, call=call)


@pytest.mark.slow(but=30)
@pytest.mark.parametrize("reason", OWN_REASONS)
@pytest.mark.parametrize(("make", "compare"), OWN)
def test_the_policys_side_of_a_terms_own_call(make: Any, compare: Any, reason: str, tmp_path: Path) -> None:
    table = ok({"columns": ["a"], "rows": [[1]], "truncated": False})
    well = Answers({"mine": [failed(reason)], "known": [table]})
    expected = {"policy": 0.0, "infrastructure": INVALID, "unclear": 0.0}[WHOSE[reason]]
    assert verdict(make(compare, tmp_path), asked_with(well)) == expected
    right = ok(7) if compare == "number" else table
    after_all = Answers({"mine": [failed(reason), right], "known": [right]})
    went_well = 0.0 if WHOSE[reason] == "policy" else 1.0
    assert verdict(make(compare, tmp_path), asked_with(after_all)) == went_well
    # The gold call went well, and then the tool was gone: what did not end is nobody's any more.
    gone = Answers({"mine": [failed(reason)], "known": [table, failed("server_down")]})
    assert verdict(make(compare, tmp_path), asked_with(gone)) == (INVALID if WHOSE[reason] == "unclear" else expected)


@pytest.mark.slow(but=30)
@pytest.mark.parametrize("reason", OWN_REASONS)
@pytest.mark.parametrize(("make", "compare"), OWN)
def test_the_gold_side_of_a_terms_own_call(make: Any, compare: Any, reason: str, tmp_path: Path) -> None:
    term = make(compare, tmp_path)
    assert verdict(term, asked_with(Answers({"known": [failed(reason)]}))) == INVALID
    right = ok(7) if compare == "number" else ok({"columns": ["a"], "rows": [[1]], "truncated": False})
    over = Answers({"mine": [right], "known": [failed(reason), failed(reason), right]})
    assert verdict(term, asked_with(over)) == (INVALID if WHOSE[reason] == "policy" else 1.0), "an outage that ended"


def test_a_group_compares_what_was_measured_and_leaves_the_others_out() -> None:
    def trajectory(value: float | None) -> Trajectory:
        status: Any = "valid" if value is not None else "invalid"
        terms = {"of": TermResult("of", status, value, 1.0)}
        breakdown = RewardBreakdown(value, terms, ())
        return Trajectory("e", "s", 0, 0, {}, (), (), None, True, False, "answer", breakdown, None, None, 0.0)

    term = compile_term("group", of="of", by="rank")
    assert term.measure_group is not None
    found = term.measure_group([trajectory(1.0), trajectory(None), trajectory(0.0)])
    assert [one.value for one in found] == [1.0, None, 0.0]
