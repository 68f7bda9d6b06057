"""Whose failure is worth zero, whose is no number at all, and what is compared."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from rlenv.errors import WHOSE, ResourceError, RewardError, UsageError, whose_failure
from rlenv.messages import ToolResult
from rlenv.rewards.base import Measured, Term, TermCompileContext
from rlenv.rewards.comparators import CompareSpec, GoldCache, Side, compile_comparator
from rlenv.rewards.normalise import MAX_JSON
from rlenv.rewards.rule import UnfitAnswer, UnfitGold
from rlenv.testing.rewards import compile_term, reward_context
from rlenv.tools.base import Tool
from tests.support.clock import run_skipping

SQL = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}
QUERY = Tool(name="query", description="", parameters=SQL, run=lambda *_: None, mode="inline")
GOLD = {"arguments": {"sql": "{{ task.gold }}"}}


@dataclass
class Calls:
    """A tool that answers from a table and remembers what it was asked."""

    results: Mapping[str, Any]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        assert name == "query"
        self.asked.append(arguments["sql"])
        found = self.results[arguments["sql"]]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, ToolResult):
            return found
        return ToolResult("query", str(found), value=found)


class Versioned:
    """A resource's handle that says which state it is in."""

    def __init__(self, version: object) -> None:
        self.version = version


def verify(compiled: Tool = QUERY, base: Path = Path(), **keys: Any) -> Term:
    keys = {"tool": "query", "arguments": {"sql": "{{ answer }}"}, "expect": GOLD, "compare": "rows"} | keys
    return compile_term("verify", tools={"query": compiled}, base=base, **keys)


def run(
    term: Term,
    call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]],
    answer: str | None = "mine",
    gold: Any = "gold",
    **keys: Any,
) -> Measured:
    async def main() -> Measured:
        assert term.measure_async is not None
        async with asyncio.timeout(10):
            return await term.measure_async(reward_context(answer=answer, task={"gold": gold}, call=call, **keys))

    return run_skipping(main())


def test_the_same_rows_are_right_and_others_wrong() -> None:
    calls = Calls({"mine": [[1], [2]], "gold": [[2], [1]], "other": [[3], [1]]})
    assert run(verify(), calls).value == 1.0
    assert run(verify(), calls, answer="other").value == 0.0


def test_order_counts_where_the_gold_query_orders() -> None:
    calls = Calls({"mine": [[1], [2]], "SELECT a ORDER BY a DESC": [[2], [1]], "SELECT a": [[2], [1]]})
    assert run(verify(), calls, gold="SELECT a ORDER BY a DESC").value == 0.0
    assert run(verify(), calls, gold="SELECT a").value == 1.0
    assert run(verify(compare={"by": "rows", "order": "always"}), calls, gold="SELECT a").value == 0.0
    never = verify(compare={"by": "rows", "order": "never"})
    assert run(never, calls, gold="SELECT a ORDER BY a DESC").value == 1.0


def test_no_answer_is_zero_and_runs_nothing() -> None:
    calls = Calls({})
    assert run(verify(), calls, answer=None) == Measured(0.0, "no answer")
    assert calls.asked == []


@pytest.mark.parametrize("outcome", ["failed", "bad_arguments", "timeout"])
def test_a_call_that_fails_on_the_answer_is_the_policys_and_zero(outcome: Any) -> None:
    calls = Calls({"mine": ToolResult("query", "no such table: x", outcome), "gold": [[1]]})
    found = run(verify(), calls)
    assert found.value == 0.0
    assert found.evidence == "no such table: x"
    assert found.details["outcome"] == outcome
    assert found.details["verified_results"] == {
        "tool": "query",
        "outcome": outcome,
        "text": "no such table: x",
        "expected": ["[[1]]"],
    }


@pytest.mark.parametrize(
    ("keys", "worst"),
    [({"weight": -1}, 1.0), ({"weight": -1, "clip": [0, 3]}, 3.0), ({"clip": [-1, 1]}, -1.0), ({"range": [-9, 0]}, -9)],
)
def test_a_call_that_the_policy_breaks_spares_it_no_cost_and_no_minus(keys: dict[str, Any], worst: float) -> None:
    calls = Calls({"mine": ToolResult("query", "too long", "failed"), "gold": [[1]]})
    assert run(verify(**keys), calls).value == worst


@pytest.mark.parametrize("outcome", ["unknown_tool", "skipped", "malformed"])
def test_a_call_that_was_not_run_is_no_number(outcome: Any) -> None:
    with pytest.raises(RewardError, match="was not run"):
        run(verify(), Calls({"mine": ToolResult("query", "", outcome), "gold": [[1]]}))


@pytest.mark.parametrize("outcome", ["failed", "bad_arguments", "timeout", "unknown_tool", "skipped"])
@pytest.mark.parametrize("mine", [[[1]], ToolResult("query", "no", "failed")])
def test_a_gold_call_that_fails_is_no_number(outcome: Any, mine: Any) -> None:
    with pytest.raises(RewardError, match=f"gold call of 'query' ended as {outcome}"):
        run(verify(), Calls({"mine": mine, "gold": ToolResult("query", "no", outcome)}))


@pytest.mark.parametrize(
    ("known", "gold", "told"),
    [
        ([[1]], "no such key", "ended as failed: no such key"),  # beside a known call that goes well
        ("refused", "refused", "failed by no fault of the policy's"),
    ],
)
def test_a_gold_call_of_what_is_left_is_the_policys_where_its_server_refuses_it_alone(
    known: Any, gold: str, told: str
) -> None:
    def refused(said: Any) -> Any:
        return ToolResult("query", said, "failed", reason="refused", whose="policy") if isinstance(said, str) else said

    tool = replace(QUERY, kind="http", idempotent=True, depends_on="arguments", example={"sql": "known"})
    left = {"arguments": {"sql": "{{ resources.desk.key }}"}}
    calls = Calls({"mine": [[1]], "gold": refused(gold), "known": refused(known)})
    resources = {"desk": {"key": "gold"}}
    with pytest.raises(RewardError, match=told) as raised:
        run(verify(tool, expect=left), calls, resources=resources)
    assert isinstance(raised.value, UnfitGold) == (gold != known)


@pytest.mark.parametrize(("listed", "error"), [("task.gold", RewardError), ("resources.desk.keys", UnfitGold)])
def test_an_empty_list_of_alternatives_is_whose_template_gives_it(listed: str, error: type[RewardError]) -> None:
    arguments = {"sql": "{{ item ~ resources.desk.key }}"}
    term = verify(expect={"any_of": "{{ " + listed + " }}", "arguments": arguments})
    with pytest.raises(RewardError, match="gives an empty list") as raised:
        run(term, Calls({"mine": [[1]]}), gold=[], resources={"desk": {"key": "", "keys": []}})
    assert type(raised.value) is error


@pytest.mark.parametrize("lost", ["mine", "gold"])
def test_a_lost_resource_is_no_number(lost: str) -> None:
    calls = Calls({"mine": [[1]], "gold": [[1]]} | {lost: ResourceError("gone")})
    with pytest.raises(ResourceError, match="gone"):
        run(verify(), calls)


def test_any_alternative_is_right_from_a_list_or_any_of() -> None:
    calls = Calls({"mine": [[2]], "one": [[1]], "two": [[2]], "three": [[3]]})
    any_of = verify(expect={"any_of": "{{ task.gold }}", "arguments": {"sql": "{{ item }}"}})
    for term in (verify(), any_of):
        assert run(term, calls, gold=["one", "two"]).value == 1.0
        assert run(term, calls, gold=["one", "three"]).value == 0.0
        assert run(term, calls, gold="two").value == 1.0
        with pytest.raises(RewardError, match=r"no alternative|empty list"):
            run(term, calls, gold=[])


def test_a_list_that_the_tool_takes_is_one_value() -> None:
    takes_list = {"type": "object", "properties": {"sql": {"type": "array"}}}
    asked: list[Any] = []

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked.append(arguments["sql"])
        return ToolResult("query", "", value=[[1]])

    tool = Tool(name="query", description="", parameters=takes_list, run=lambda *_: None, mode="inline")
    run(verify(tool), call, gold=["a", "b"])
    assert ["a", "b"] in asked


@pytest.mark.parametrize(
    ("compare", "expect", "mine", "expected"),
    [
        ("equal", {"value": 3}, 3.0, 1.0),
        ("equal", {"value": {"a": [1]}}, {"a": [1]}, 1.0),
        ("equal", {"value": True}, 1, 0.0),
        ("equal", {"any_of": "{{ task.gold }}", "value": "{{ item }}"}, "b", 1.0),
        ("number", "{{ task.gold[2] }}", "1,000", 1.0),
        ("number", 1000, ToolResult("query", "$1,000"), 1.0),
        ("number", 3, "three", 0.0),
        ({"by": "number", "tolerance": 0.1}, 3.0, 3.05, 1.0),
        ("text", " b ", ToolResult("query", "b\n"), 1.0),
        ({"by": "text", "normalise": "qa"}, "b", ToolResult("query", "The B!"), 1.0),
        ("json", {"value": {"a": 1}}, ToolResult("query", '{"a": 1.0}'), 1.0),
        ("json", {"value": {"a": 1}}, ToolResult("query", "{"), 0.0),
        ({"by": "json", "mode": "subset"}, {"value": {"a": 1}}, {"a": 1, "b": 2}, 1.0),
        ("rows", {"value": [[1], [2]]}, [[2], [1]], 1.0),
        ({"by": "rows", "columns": "any_order"}, {"value": [[1, "a"]]}, [["a", 1]], 1.0),
    ],
)
def test_comparators_compare_with_constants(compare: Any, expect: Any, mine: Any, expected: float) -> None:
    calls = Calls({"mine": mine})
    assert run(verify(compare=compare, expect=expect), calls, gold=["a", "b", 1000]).value == expected
    assert calls.asked == ["mine"]


def test_a_gold_result_without_a_number_makes_no_number() -> None:
    with pytest.raises(RewardError, match="is not a number"):
        run(verify(compare="number"), Calls({"mine": 1, "gold": "one"}))


def test_a_null_gold_value_is_no_number() -> None:
    with pytest.raises(RewardError, match="gives no value"):
        run(verify(expect="{{ task.gold }}", compare="equal"), Calls({"mine": 1}), gold=None)


def test_a_cut_gold_result_proves_nothing_and_a_cut_answer_is_another_one() -> None:
    cut, whole = {"rows": [[1]], "truncated": True}, {"rows": [[1]], "truncated": False}
    with pytest.raises(RewardError, match="row limit"):
        run(verify(), Calls({"mine": whole, "gold": cut}))
    assert run(verify(), Calls({"mine": cut, "gold": whole})).value == 0.0
    # With fewer rows too: cut by its size, it is as wrong as any other, and nothing that a policy may choose to hide.
    assert run(verify(), Calls({"mine": cut, "gold": {"rows": [[1], [2]]}})).value == 0.0
    assert run(verify(expect={"value": [[1], [2]]}), Calls({"mine": cut})).value == 0.0
    assert run(verify(), Calls({"mine": "1 row changed", "gold": whole})).value == 0.0


def test_an_authors_comparator_gets_both_sides(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(
        "def close(mine, gold):\n    return 1.0 if abs(mine.value - gold.value) < 2 else 0.25\n"
        "def text(mine, gold):\n    return 'yes'\n"
        "async def later(mine, gold):\n    return 1.0\n"
    )
    calls = Calls({"mine": 4, "gold": 5, "far": 9})
    close = verify(base=tmp_path, compare={"by": "python", "function": "same.py:close"})
    assert run(close, calls).value == 1.0
    assert run(close, calls, answer="far").value == 0.25
    with pytest.raises(RewardError, match="the comparator gave 'yes'"):
        run(verify(base=tmp_path, compare={"by": "python", "function": "same.py:text"}), calls)
    with pytest.raises(UsageError, match="coroutine"):
        verify(base=tmp_path, compare={"by": "python", "function": "same.py:later"})


def test_a_gold_result_is_computed_once_per_task_and_version_of_the_resources() -> None:
    calls = Calls({"mine": [[1]], "gold": [[1]]})
    term = verify()
    for version in (1, 1, 2):
        assert run(term, calls, resources={"db": Versioned(version)}).value == 1.0
    assert calls.asked.count("gold") == 2
    assert calls.asked.count("mine") == 3


@pytest.mark.parametrize("handle", [object(), Versioned(None), Versioned([])])
def test_nothing_is_kept_for_a_resource_in_an_unknown_state(handle: object) -> None:
    calls = Calls({"mine": [[1]], "gold": [[1]]})
    term = verify()
    for _ in range(2):
        run(term, calls, resources={"db": handle})
    assert calls.asked.count("gold") == 2


def test_a_failed_gold_call_is_not_kept() -> None:
    term = verify()
    with pytest.raises(RewardError):
        run(term, Calls({"mine": [[1]], "gold": ToolResult("query", "busy", "failed")}))
    assert run(term, Calls({"mine": [[1]], "gold": [[1]]})).value == 1.0


@pytest.mark.parametrize("page", ["log in", "log in, request {}"])
@pytest.mark.parametrize("shown", [1, 2, 3, 9])
def test_a_page_that_a_server_shows_in_place_of_every_answer_is_kept_for_no_gold(page: str, shown: int) -> None:
    asked: list[str] = []

    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        asked.append(arguments["sql"])
        found = page.format(len(asked)) if len(asked) <= shown else f"of {arguments['sql']}"
        return ToolResult(name, found, value=found)

    term = verify(replace(QUERY, reaches_out=True, example={"sql": "known"}), compare="text")
    for _ in range(shown):
        run(term, call, answer="gold")
    assert len(asked) > shown
    assert [run(term, call, answer=one).value for one in ("gold", "other")] == [1.0, 0.0]
    asked.clear()
    run(term, call)
    assert asked == ["mine"], "it was kept once it was given twice, with another answer to the example in between"


def test_a_gold_that_is_as_the_example_is_kept_once_another_differs() -> None:
    term = verify(replace(QUERY, reaches_out=True, example={"sql": "known"}), compare="text")
    calls = Calls({"known": "yes", "mine": "yes", "a": "yes", "b": "no", "c": "yes"})
    for gold, times in (("a", 2), ("a", 2), ("b", 2), ("a", 2), ("a", 0), ("c", 2), ("c", 0), ("b", 0)):
        calls.asked.clear()
        assert run(term, calls, gold=gold).value == (gold != "b")
        assert calls.asked.count(gold) == times, (gold, calls.asked)
    # Another task's gold may be nothing that the server of this one knows.
    calls = Calls({"known": "yes", "mine": "d", "b": ToolResult("query", "unknown", outcome="failed"), "d": "d"})
    for times in (2, 0):
        calls.asked.clear()
        assert run(term, calls, gold="d").value == 1
        assert calls.asked.count("d") == times


@pytest.mark.parametrize("at", [0, 3], ids=["the one that makes it", "one that waits"])
def test_episodes_at_once_share_one_gold_call_and_survive_one_that_is_cancelled(at: int) -> None:
    term = verify()
    asked: list[str] = []

    async def main() -> None:
        began, release, all_asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            asked.append(arguments["sql"])
            if asked.count("mine") == 9:
                all_asked.set()
            if arguments["sql"] == "gold":
                began.set()
                await release.wait()
            return ToolResult("query", "", value=[[1]])

        assert term.measure_async is not None
        where = reward_context(answer="mine", task={"gold": "gold"}, call=call)
        first = asyncio.ensure_future(term.measure_async(where))
        await began.wait()
        every = [first, *(asyncio.ensure_future(term.measure_async(where)) for _ in range(8))]
        async with asyncio.timeout(10):
            await all_asked.wait()
        assert asked.count("gold") == 1
        cancelled = every.pop(at)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        release.set()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*every)
        assert cancelled.cancelled()
        assert [one.value for one in found] == [1.0] * 8
        assert asked.count("gold") <= 2

    asyncio.run(main())


def test_both_sides_run_at_once() -> None:
    async def main() -> None:
        sides = {"mine": asyncio.Event(), "gold": asyncio.Event()}

        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            sides[arguments["sql"]].set()
            await asyncio.gather(*(event.wait() for event in sides.values()))
            return ToolResult("query", "", value=[[1]])

        term = verify()
        assert term.measure_async is not None
        async with asyncio.timeout(10):
            found = await term.measure_async(reward_context(answer="mine", task={"gold": "gold"}, call=call))
        assert found.value == 1.0

    asyncio.run(main())


def test_an_answer_that_looks_like_a_template_is_only_text() -> None:
    calls = Calls({"{{ task.gold }}": ToolResult("query", "syntax error", "failed"), "gold": [[1]]})
    assert run(verify(), calls, answer="{{ task.gold }}").value == 0.0
    assert sorted(calls.asked) == ["gold", "{{ task.gold }}"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tool": "quary"}, "there is no tool 'quary'; did you mean 'query'"),
        ({"expect": {}}, "either arguments or value"),
        ({"expect": {"arguments": {"sql": "x"}, "value": 1}}, "either arguments or value"),
        ({"arguments": {"sq": "x"}}, "'query' takes no 'sq'"),
        ({"expect": {"arguments": {"sq": "x"}}}, "expect.arguments: 'query' takes no 'sq'"),
        ({"expect": {"arguments": {"sql": "{{ answer }}"}}}, "'answer' is not known here"),
        ({"expect": {"arguments": {"sql": "{{ item }}"}}}, "'item' is not known here"),
        ({"arguments": {"sql": "{{ answr }}"}}, "'answr' is not known here"),
    ],
)
def test_an_entry_that_cannot_work_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        verify(**keys)


def test_a_gold_call_of_a_tool_that_changes_state_is_refused() -> None:
    tool = Tool(name="query", description="", parameters=SQL, run=lambda *_: None, mode="inline", mutates=True)
    with pytest.raises(UsageError, match="changes state"):
        verify(tool)
    assert run(verify(tool, expect={"value": [[1]]}), Calls({"mine": [[1]]})).value == 1.0


LOOK, PUT = replace(QUERY, entry="look"), replace(QUERY, name="put", mutates=True)


@pytest.mark.parametrize(
    ("tool", "beside", "is_refused"),
    [
        ({"resources": {"book"}}, {"resources": {"book", "pad"}}, True),
        ({"resources": {"book"}}, {"resources": {"book"}, "mutates": False}, False),
        ({"resources": {"book"}}, {"resources": {"pad"}}, False),
        ({}, {}, False),
        ({"entry": "server"}, {"entry": "server"}, True),  # of one MCP server
        ({"entry": "server"}, {"entry": "other"}, False),
    ],
)
def test_no_gold_call_gives_what_the_policy_could_change(tool: Any, beside: Any, is_refused: bool) -> None:
    """The policy empties a table that its `verify` looks at: its call and the gold one give the same nothing."""
    tools = {"query": replace(LOOK, **tool), "put": replace(PUT, **beside)}
    keys: dict[str, Any] = {"tool": "query", "arguments": {"sql": "{{ answer }}"}}
    compile_term("verify", tools=tools, **keys, expect={"value": 3})
    with pytest.raises(UsageError, match="'put' changes state") if is_refused else nullcontext():
        compile_term("verify", tools=tools, **keys, expect=GOLD)


def failed(reason: str, *, outcome: Any = "failed") -> ToolResult:
    return ToolResult("query", f"it failed: {reason}", outcome, reason=reason, whose=whose_failure(reason))


@dataclass
class InTurn:
    """A tool that answers the calls for one text by turns."""

    results: Mapping[str, list[Any]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.asked.append(arguments["sql"])
        left = self.results[arguments["sql"]]
        found = left.pop(0) if len(left) > 1 else left[0]
        return found if isinstance(found, ToolResult) else ToolResult("query", str(found), value=found)


@pytest.mark.parametrize("reason", [reason for reason in WHOSE if WHOSE[reason] == "infrastructure"])
def test_a_call_that_failed_for_a_reason_of_the_infrastructures_is_no_number(reason: str) -> None:
    with pytest.raises(RewardError, match=reason):
        run(verify(), Calls({"mine": failed(reason), "gold": [[1]]}))


@pytest.mark.parametrize("reason", [reason for reason in WHOSE if WHOSE[reason] == "unclear"])
def test_a_call_that_fails_time_after_time_beside_one_that_works_is_the_policys(reason: str) -> None:
    calls = InTurn({"mine": [failed(reason)], "gold": [[[1]]]})
    measured = run(verify(), calls)
    assert measured.value == 0.0
    assert measured.details["reason"] == reason
    fells = reason in ("crashed", "killed", "stopped", "disconnected", "late")
    assert calls.asked[:4] == ["mine", "gold", "gold", "mine"]
    again = calls.asked[4:]
    if fells:
        assert again == [*[*["gold"] * 20, "mine"] * 3, *["gold"] * 19]
    elif reason == "server_error":  # now and then the known one is asked for longer
        assert min(again.count("mine"), again.count("gold")) >= 12
    else:
        assert [sorted(pair) for pair in zip(again[::2], again[1::2], strict=True)] == [["gold", "mine"]] * 12


@pytest.mark.parametrize("reason", [reason for reason in WHOSE if WHOSE[reason] == "unclear"])
def test_a_right_answer_is_right_where_a_server_failed_once(reason: str) -> None:
    assert run(verify(), InTurn({"mine": [failed(reason), [[1]]], "gold": [[[1]]]})).value == 1.0


def test_a_tool_that_answers_no_known_call_either_is_no_number() -> None:
    calls = InTurn({"mine": [failed("late")], "gold": [[[1]], failed("late")]})
    with pytest.raises(RewardError, match="known to work"):
        run(verify(), calls)


def test_without_a_known_call_an_unclear_failure_is_no_number() -> None:
    with pytest.raises(RewardError, match="example"):
        run(verify(expect={"value": [[1]]}), Calls({"mine": failed("late")}))
    with_example = verify(replace(QUERY, example={"sql": "known"}), expect={"value": [[1]]})
    assert run(with_example, Calls({"mine": failed("late"), "known": 1})).value == 0.0


def test_the_policys_own_call_that_worked_before_is_not_failed_by_two_faults_around_it() -> None:
    term = verify(replace(QUERY, example={"sql": "mine"}), expect={"value": [[1]]})
    calls = InTurn({"mine": [failed("late"), [[1]], failed("late")]})
    assert run(term, calls).value == 1.0
    assert calls.asked == ["mine", "mine"]


@pytest.mark.parametrize("reason", ["server_died", "late", "unavailable"])
def test_a_tool_that_the_policys_call_fells_gets_the_time_to_come_back(reason: str) -> None:
    gone = [failed(reason), failed(reason), *[[[1]]] * 20]
    calls = InTurn({"mine": [failed("crashed")], "gold": [[[1]], *gone * 9]})
    assert run(verify(), calls).value == 0.0


def test_a_tool_that_changes_state_is_not_asked_again() -> None:
    term = verify(replace(QUERY, mutates=True, example={"sql": "known"}), expect={"value": [[1]]})
    calls = Calls({"mine": failed("late"), "known": 1})
    with pytest.raises(RewardError, match="changes state"):
        run(term, calls)
    assert calls.asked == ["mine"]


def test_an_answer_from_which_the_arguments_cannot_be_filled_is_unfit() -> None:
    term = verify(arguments={"sql": "{{ answer.split(',')[1] }}"})
    with pytest.raises(UnfitAnswer):
        run(term, Calls({"gold": [[1]]}), answer="no comma")
    assert run(term, Calls({"gold": [[1]], "b": [[1]]}), answer="a,b").value == 1.0


def test_arguments_that_a_row_cannot_fill_are_no_number_whatever_the_answer_is() -> None:
    term = verify(arguments={"sql": "{{ answer.split(',')[1] ~ task.missing }}"})
    with pytest.raises(RewardError) as raised:
        run(term, Calls({"gold": [[1]]}), answer="no comma")
    assert not isinstance(raised.value, UnfitAnswer)


def compared(spec: Any, mine: Side, gold: Side) -> float:
    compare = compile_comparator(TypeAdapter(CompareSpec).validate_python(spec) if isinstance(spec, dict) else spec,
                                 TermCompileContext(Path()))  # fmt: skip
    found = compare(mine, gold)
    return found.value if isinstance(found, Measured) else found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("mine", "gold", "keys", "expected"),
    [
        ("5.1", "5", {}, 0.0),
        ("5.1", "5", {"tolerance": 0.1}, 1.0),
        ("5.11", "5", {"tolerance": 0.1}, 0.0),
        ("4.9", "5", {"tolerance": 0.1}, 1.0),
        ("101", "100", {"relative_tolerance": 0.01}, 1.0),
        ("101.1", "100", {"relative_tolerance": 0.01}, 0.0),
        ("-101", "-100", {"relative_tolerance": 0.01}, 1.0),
    ],
)
def test_numbers_are_near_up_to_the_tolerance_itself(mine: str, gold: str, keys: Any, expected: float) -> None:
    assert compared({"by": "number", **keys}, Side(mine), Side(gold)) == expected


@pytest.mark.parametrize(
    ("order", "query", "expected"),
    [
        ("auto", "SELECT a FROM t ORDER BY a", 0.0),
        ("auto", "SELECT a FROM t", 1.0),
        ("always", "SELECT a FROM t", 0.0),
        ("never", "SELECT a FROM t ORDER BY a", 1.0),
    ],
)
def test_the_order_of_rows_counts_where_the_spec_or_the_query_says_so(order: str, query: str, expected: float) -> None:
    gold = Side("", [[1], [2]], {"sql": query})
    assert compared({"by": "rows", "order": order}, Side("", [[2], [1]]), gold) == expected


def test_the_query_is_the_only_text_among_the_arguments_or_the_one_that_is_named() -> None:
    gold = Side("", [[1], [2]], {"sql": "SELECT 1 ORDER BY 1", "limit": 3, "db": "ORDER BY"})
    with pytest.raises(RewardError, match="several arguments are text"):
        compared("rows", Side("", [[2], [1]]), gold)
    assert compared({"by": "rows", "query": "sql"}, Side("", [[2], [1]]), gold) == 0.0
    for other in ("limit", "gone"):
        assert compared({"by": "rows", "query": other}, Side("", [[2], [1]]), gold) == 1.0


@pytest.mark.parametrize(
    ("mode", "mine", "gold", "expected"),
    [
        ("equal", '{"a": 1}', '{"a": 1.0}', 1.0),
        ("equal", '{"a": 1, "b": 2}', '{"a": 1}', 0.0),
        ("subset", '{"a": 1, "b": 2}', '{"a": 1}', 1.0),
        ("subset", '{"a": 1}', '{"a": 1, "b": 2}', 0.0),
        ("equal", "no JSON", "1", 0.0),
        ("equal", " " * MAX_JSON + "1", "1", 0.0),
        ("equal", " " * (MAX_JSON - 1) + "1", "1", 1.0),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_json_is_the_same_or_holds_the_gold(mode: str, mine: str, gold: str, expected: float) -> None:
    assert compared({"by": "json", "mode": mode}, Side(mine), Side(gold)) == expected
    with pytest.raises(RewardError, match="the gold result is not JSON"):
        compared({"by": "json", "mode": mode}, Side(mine), Side("no JSON"))


@pytest.mark.parametrize(("value", "expected"), [(0, 0.0), ("", 0.0), ([], 0.0), (False, 0.0), (None, 1.0)])
def test_a_value_that_is_falsy_is_a_value(value: Any, expected: float) -> None:
    assert compared("equal", Side("the text", value), Side("the text")) == expected
    assert Side("the text", value).best == ("the text" if value is None else value)


def golds(size: int, *asked: tuple[Any, Any]) -> list[int]:
    """How often a gold result had been computed after each question: its arguments, and the version of a resource."""
    made: list[int] = []
    cache = GoldCache(size)

    async def compute(arguments: Mapping[str, Any], context: Any) -> Side:
        made.append(1)
        return Side(f"{len(made)}")

    async def main() -> list[int]:
        counts = []
        for arguments, version in asked:
            resources = {} if version is ... else {"db": Versioned(version)}
            await cache.get({"n": arguments}, reward_context(resources=resources), compute)
            counts.append(len(made))
        return counts

    return asyncio.run(main())


def test_gold_results_are_kept_by_what_they_depend_on_and_the_last_used_stay() -> None:
    assert golds(2, (1, ...), (1, ...), (2, ...), (1, ...), (3, ...), (1, ...), (2, ...)) == [1, 1, 2, 2, 3, 3, 4]
    assert golds(9, (1, 0), (1, 0), (1, 1), (1, ""), (1, "")) == [1, 1, 2, 3, 3]
    assert golds(9, (1, None), (1, None), (1, []), (1, [])) == [1, 2, 3, 4], "of an unknown state"
    assert golds(9, ({1}, ...), ({1}, ...)) == [1, 2], "no JSON"
