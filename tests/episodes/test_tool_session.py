"""A loop that calls single tools is scored as one that sends whole messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.episodes.tool_session import asked_by
from rlenv.hosts.exchanges import match_ids
from rlenv.messages import Message, ToolCall

SPEC = """
rlenv: 1
name: counting
tasks: {train: {rows: [{answer: "6"}]}}
prompt: {user: Count.}
limits: {turns: 2, tool_calls: 4}
tools:
  double: {kind: python, function: "tools.py:double"}
observation: {max_chars: 100}
answer: {from: tag}
rewards:
  correct: {kind: rule, rule: exact_match}
  calls: {kind: rule, rule: python, function: "tools.py:calls", weight: 0.1}
"""
TOOLS = """
import asyncio
from rlenv import Measured

RUNNING = []
MOST = [0]

async def double(n: int, wide: int = 0) -> str:
    '''Doubles.

    Args:
        n: a number.
        wide: how many signs to say beside.
    '''
    RUNNING.append(n)
    MOST[0] = max(MOST[0], len(RUNNING))
    for _ in range(5):
        await asyncio.sleep(0)
    RUNNING.remove(n)
    if n == 13:
        from rlenv import ResourceError
        raise ResourceError("the doubling service is gone")
    return str(2 * n) + "x" * wide


def most() -> int:
    '''The most that ran at once.'''
    return MOST[0]


def calls(context):
    return float(sum(result.outcome == "ok" for turn in context.turns for result in turn.results))
"""
NUMBERS = (1, 2, 3)
CALLS = tuple(ToolCall("double", {"n": number}, f"c{number}") for number in NUMBERS)
ENDS = [Message("assistant", "", CALLS), Message("assistant", "<answer>6</answer>")]


def loaded(folder: Path, set: Mapping[str, Any] | None = None, *, spec: str = SPEC) -> rlenv.Environment:
    (folder / "tools.py").write_text(TOOLS)
    (folder / "spec.yaml").write_text(spec)
    return rlenv.load(folder / "spec.yaml", set=set)


def scored(trajectory: rlenv.Trajectory) -> tuple[Any, ...]:
    """What a trainer reads of an episode, without what a clock says."""
    results = [[(one.name, one.text, one.outcome) for one in turn.results] for turn in trajectory.turns]
    shown = [turn.observation and [one.content for one in turn.observation.messages] for turn in trajectory.turns]
    terms = {name: term.value for name, term in trajectory.reward.terms.items()}
    return trajectory.reason, trajectory.reward.total, terms, trajectory.answer, results, shown


async def stepped(environment: rlenv.Environment) -> rlenv.Trajectory:
    async with environment.start() as episode:
        for message in ENDS:
            if (await episode.step(message)).is_last:
                break
        return episode.trajectory


def as_openai(message: Message) -> Mapping[str, Any]:
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": json.dumps(dict(one.arguments))}}
        for one in message.tool_calls
        if isinstance(one, ToolCall)
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


TRANSCRIPTS: dict[str, Callable[[], Any]] = {
    "messages": lambda: ENDS,
    "openai": lambda: [as_openai(ENDS[0]), {"role": "tool", "content": "2"}, as_openai(ENDS[1])],
    "the last text": lambda: ENDS[-1].content,
}


@pytest.mark.parametrize("transcript", TRANSCRIPTS)
@pytest.mark.parametrize("at_once", [True, False])
def test_calls_one_by_one_are_scored_as_the_turns_they_were_made_in(
    tmp_path: Path, transcript: str, at_once: bool
) -> None:
    async def main() -> tuple[rlenv.Trajectory, rlenv.Trajectory, list[rlenv.ToolResult]]:
        async with loaded(tmp_path) as environment:
            async with rlenv.ToolSession(environment) as session:
                waits = [session.call(one.name, one.arguments, id=one.id) for one in CALLS]
                results = list(await asyncio.gather(*waits)) if at_once else [await one for one in waits]
                ended = await session.finish(TRANSCRIPTS[transcript]())
            return ended, await stepped(environment), results

    ended, wanted, results = asyncio.run(main())
    assert scored(ended) == scored(wanted)
    assert ended.reward.total == pytest.approx(1.3)
    assert [(one.text, one.call_id) for one in results] == [("2", "c1"), ("4", "c2"), ("6", "c3")]


def played(environment: rlenv.Environment, made: list[tuple[int, str | None]], transcript: Any) -> Any:
    async def main() -> tuple[list[rlenv.ToolResult], rlenv.Trajectory]:
        async with environment, rlenv.ToolSession(environment) as session:
            results = [await session.call("double", {"n": number}, id=id) for number, id in made]
            return results, await session.finish(transcript)

    return asyncio.run(main())


def test_equal_calls_are_told_apart_by_their_ids_and_else_taken_in_order(tmp_path: Path) -> None:
    calls = (ToolCall("double", {"n": 1}, "b"), ToolCall("double", {"n": 2}), ToolCall("double", {"n": 1}, "a"))
    said = [Message("assistant", "", calls), ENDS[-1]]
    results, ended = played(loaded(tmp_path), [(1, "a"), (1, "b"), (2, "c")], said)
    assert [one.call_id for one in ended.turns[0].results] == ["b", None, "a"]
    assert [one.text for one in ended.turns[0].results] == ["2", "4", "2"]
    assert len(results) == 3


def test_a_call_that_was_written_and_not_made_is_told_so_and_never_run(tmp_path: Path) -> None:
    unread = {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "double", "arguments": "{"}}]}
    said = [ENDS[0], unread, as_openai(ENDS[-1])]
    _, ended = played(loaded(tmp_path, {"limits.turns": 4}), [(1, None)], said)
    assert [one.outcome for one in ended.turns[0].results] == ["ok", "skipped", "skipped"]
    assert [one.outcome for one in ended.turns[1].results] == ["malformed"]
    assert (ended.turns[1].calls_malformed, ended.reason) == (1, "answer")


def test_calls_beyond_the_limit_are_not_run(tmp_path: Path) -> None:
    results, ended = played(loaded(tmp_path, {"limits.tool_calls": 1}), [(1, None), (2, None)], "<answer>6</answer>")
    assert [one.outcome for one in results] == ["ok", "skipped"]
    assert [one.outcome for one in ended.turns[0].results] == ["ok", "skipped"]
    assert ended.reward.total == pytest.approx(1.1)


def test_a_session_keeps_so_much_of_what_its_loop_calls_and_is_over_then(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], rlenv.Trajectory]:
        async with loaded(tmp_path) as environment, rlenv.ToolSession(environment) as session:
            long = {"n": 1, "wide": "x" * 11_000_000}
            results = [
                await session.call("double", given) for given in ({"n": 1}, long, long, {"n": 2}, long, {"n": 3})
            ]
            return [one.outcome for one in results], await session.finish("<answer>6</answer>")

    outcomes, ended = asyncio.run(main())
    assert outcomes == ["ok", "bad_arguments", "bad_arguments", "ok", "skipped", "skipped"]
    assert len(ended.turns[0].results) == 4
    assert ended.reward.total == pytest.approx(1.2)


class _Seen(dict[str, Any]):
    """Arguments that count how often they are looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        _Seen.looks += 1
        return super().__eq__(other)

    def items(self) -> Any:
        _Seen.looks += 1
        return super().items()

    __hash__ = None


def test_a_thousand_calls_are_found_with_a_few_looks_at_each() -> None:
    """A policy writes as many in one message, its agent makes them, and the loop waits while they are matched."""
    calls = [ToolCall("double", _Seen(n=number), f"c{number}") for number in range(1_000)]
    made = [ToolCall("double", _Seen(n=float(number)), f"made {number}") for number in reversed(range(1_000))]
    _Seen.looks = 0
    (said,) = match_ids([Message("assistant", "", tuple(calls))], [*made, ToolCall("double", {"n": 7}, "twice")])
    assert [one.id for one in said.tool_calls] == [f"made {number}" for number in range(1_000)]
    assert _Seen.looks <= 4_000


def test_calls_are_told_apart_by_hashes_that_nobody_can_make_equal() -> None:
    """Those of integers are known: a policy could write thousands that are all looked at for each."""
    apart = {hash(asked_by(ToolCall("double", {"n": number * (2**61 - 1)}))) for number in range(100)}
    assert len(apart) == 100
    same = [asked_by(ToolCall("double", {"n": number})) for number in (3, 3.0)]
    assert same[0] == same[1]


def test_a_result_reads_as_the_spec_cuts_it(tmp_path: Path) -> None:
    async def main() -> rlenv.ToolResult:
        async with loaded(tmp_path) as environment, rlenv.ToolSession(environment) as session:
            return await session.call("double", {"n": 1, "wide": 5000})

    assert len(asyncio.run(main()).text) < 200


def test_what_fails_beneath_a_call_is_no_reward_and_the_loop_reads_that_it_is_over(tmp_path: Path) -> None:
    results, ended = played(loaded(tmp_path), [(13, None), (1, None)], "<answer>6</answer>")
    assert (ended.reward.total, ended.failure is not None) == (None, True)
    assert [one.is_error for one in results] == [True, True]
    assert "over" in results[1].text


def test_a_transcript_without_an_end_is_scored_as_it_stands(tmp_path: Path) -> None:
    for said in ([ENDS[0]], []):
        _, ended = played(loaded(tmp_path), [(1, None)], said)
        assert (ended.reason, ended.reward.total) == ("host", pytest.approx(0.1))


def test_a_loop_that_takes_longer_than_the_episode_loses_no_result(tmp_path: Path) -> None:
    """Each turn is in time where its calls were; the last word comes when the loop ends."""

    async def main(late: str) -> rlenv.Trajectory:
        async with loaded(tmp_path, {"limits.turns": 4}) as environment, rlenv.ToolSession(environment) as session:
            clock = [session.episode.now()]
            session.episode.now = lambda: clock[0]
            for index, one in enumerate(CALLS):
                clock[0] += 1e6 if late == str(index) else 1.0
                await session.call(one.name, one.arguments, id=one.id)
            clock[0] += 1e6 if late == "end" else 1.0
            return await session.finish([*(Message("assistant", "", (one,)) for one in CALLS), ENDS[-1]])

    found = {late: asyncio.run(main(late)) for late in ("never", "end", "2", "0")}
    assert {late: (len(one.turns), one.reason) for late, one in found.items()} == {
        "never": (4, "answer"),
        "end": (4, "time"),
        "2": (3, "time"),
        "0": (1, "time"),
    }
    assert [[one.text for one in turn.results] for turn in found["end"].turns] == [["2"], ["4"], ["6"], []]
    assert found["end"].reward.terms["calls"].value == 3.0


def test_calls_that_were_made_apart_are_drawn_apart(tmp_path: Path) -> None:
    """Faults that a spec puts in on purpose, and whatever else a tool draws by its turn."""
    spec = SPEC.replace('"tools.py:double"}', '"tools.py:double", faults: {error: 0.5, seed: 1}, retries: 0}')

    async def main(seed: int) -> list[bool]:
        environment = loaded(tmp_path, {"limits.tool_calls": 20}, spec=spec)
        async with environment, rlenv.ToolSession(environment, seed=seed) as session:
            return [(await session.call("double", {"n": 1})).is_error for _ in range(20)]

    drawn = [asyncio.run(main(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 4 <= sum(drawn[0]) <= 16


def test_calls_run_one_after_another_where_a_tool_mutates(tmp_path: Path) -> None:
    most = '  most: {kind: python, function: "tools.py:most"MUTATES}\nobservation'

    async def main(environment: rlenv.Environment) -> str:
        async with environment, rlenv.ToolSession(environment) as session:
            await asyncio.gather(*[session.call("double", {"n": number}) for number in NUMBERS])
            return (await session.call("most", {})).text

    for mutates, wanted in (("", "3"), (", mutates: true", "1")):
        (folder := tmp_path / wanted).mkdir()
        spec = SPEC.replace("observation", most.replace("MUTATES", mutates))
        assert asyncio.run(main(loaded(folder, spec=spec))) == wanted


def test_a_call_that_is_the_answer_ends_the_session(tmp_path: Path) -> None:
    submit = SPEC.replace("{from: tag}", "{from: tool, tool: double, argument: n}")
    submit = submit.replace("observation", '  half: {kind: python, function: "tools.py:double"}\nobservation')

    async def main() -> tuple[list[bool], rlenv.Trajectory]:
        async with loaded(tmp_path, spec=submit) as environment, rlenv.ToolSession(environment) as session:
            results = [await session.call("half", {"n": 12}), *[await session.call("double", {"n": n}) for n in (6, 7)]]
            return [one.is_error for one in results], await session.finish([])

    errors, ended = asyncio.run(main())
    assert errors == [False, False, True]
    assert (ended.answer, ended.reason) == ("6", "answer")
    assert [[one.outcome for one in turn.results] for turn in ended.turns] == [["ok", "ok"]]


def test_an_answer_that_its_tool_refuses_does_not_end_the_session(tmp_path: Path) -> None:
    submit = SPEC.replace("{from: tag}", "{from: tool, tool: double, argument: n}")

    async def main() -> tuple[rlenv.ToolResult, rlenv.Trajectory]:
        async with loaded(tmp_path, spec=submit) as environment, rlenv.ToolSession(environment) as session:
            refused = await session.call("double", {"n": "six"})
            await session.call("double", {"n": 6})
            return refused, await session.finish([])

    refused, ended = asyncio.run(main())
    assert refused.outcome == "bad_arguments"
    assert (ended.answer, ended.reason) == ("6", "answer")


@pytest.mark.parametrize("transcript", [[5], [{"role": "assistant", "tool_calls": 5}]])
def test_what_is_no_transcript_is_refused(tmp_path: Path, transcript: Any) -> None:
    with pytest.raises(rlenv.UsageError, match="message 0"):
        played(loaded(tmp_path), [], transcript)


def test_a_spec_with_a_simulated_user_has_no_session(tmp_path: Path) -> None:
    environment = loaded(tmp_path, spec=SPEC + "user: {kind: scripted, replies: [Go on.]}\n")
    with pytest.raises(rlenv.UsageError, match="simulated user"):
        rlenv.ToolSession(environment)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (['{"name": "double", "arguments": {"n": 1}}'], ["ok"]),
        (['{"name": "double", "arguments": {"n": 2}}', '{"name": "double", "arguments": {"n": 1}}'], ["skipped", "ok"]),
        (['{"name": "double", "arguments": {"n": 1}}', '{"name": '], ["ok", "malformed"]),
    ],
)
def test_calls_that_a_message_holds_as_text_have_the_results_of_those_that_were_made(
    tmp_path: Path, texts: list[str], wanted: list[str]
) -> None:
    said = "".join(f"<tool_call>{text}</tool_call>" for text in texts)
    _, ended = played(loaded(tmp_path), [(1, "a")], [Message("assistant", said), ENDS[-1]])
    assert [[one.outcome for one in turn.results] for turn in ended.turns] == [wanted, []]
    assert ended.reward.total == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("double", None, "bad_arguments"),
        ("double", 5, "malformed"),
        ("double", "n=1", "malformed"),
        ("double", [["n", 1]], "malformed"),
        (7, {}, "malformed"),
        (None, None, "malformed"),
    ],
)
def test_a_call_that_is_none_is_the_models_mistake(tmp_path: Path, name: Any, arguments: Any, outcome: str) -> None:
    async def main() -> tuple[rlenv.ToolResult, rlenv.Trajectory, rlenv.Trajectory]:
        async with loaded(tmp_path) as environment:
            async with rlenv.ToolSession(environment) as session:
                result = await session.call(name, arguments)
                ended = await session.finish("<answer>6</answer>")
            async with environment.start() as episode:
                await episode.step(Message("assistant", "", (ToolCall(name, arguments),)))
                await episode.step("<answer>6</answer>")
            return result, ended, episode.trajectory

    result, ended, wanted = asyncio.run(main())
    assert result.outcome == outcome
    assert scored(ended) == scored(wanted)
    assert ended.reward.total == pytest.approx(1.0)


def test_a_session_that_is_not_open_makes_no_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with loaded(tmp_path) as environment:
            await rlenv.ToolSession(environment).call("double", {"n": 1})

    with pytest.raises(rlenv.UsageError, match="not open"):
        asyncio.run(main())


def test_a_call_that_the_loop_stops_is_recorded_as_stopped(tmp_path: Path) -> None:
    async def main() -> rlenv.Trajectory:
        async with loaded(tmp_path) as environment, rlenv.ToolSession(environment) as session:
            call = asyncio.ensure_future(session.call("double", {"n": 1}, id="c1"))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return await session.finish([Message("assistant", "", CALLS[:1]), ENDS[-1]])

    (result,) = asyncio.run(main()).turns[0].results
    assert (result.outcome, result.reason, result.whose) == ("timeout", "late", "unclear")
    assert "Stopped" in result.text
