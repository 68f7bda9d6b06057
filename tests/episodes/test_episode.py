"""The state machine of one rollout."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlenv.dialects.base import CHARS_PER_TOKEN, CUT_NOTE
from rlenv.episodes.environment import MAX_CALLS, Environment
from rlenv.episodes.episode import Step
from rlenv.errors import UsageError
from rlenv.messages import MalformedCall, Message, Sampled, ToolCall
from rlenv.trajectory import Trajectory

FUNCTIONS = '''
import asyncio
import time
import threading

from rlenv.errors import EpisodeError, ToolFailed

never = threading.Event()


async def hang() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


def block() -> str:
    """Blocks its thread."""
    never.wait(30)
    return ""


def fail() -> str:
    """Fails."""
    raise RuntimeError("/secret/path: boom")


def declared() -> str:
    """Fails in a declared way."""
    raise ToolFailed("the shop is closed")


def huge() -> str:
    """Returns ten megabytes."""
    return "x" * 10_000_000


def outage() -> str:
    """Loses its backend."""
    raise EpisodeError("the backend is gone", reason="backend")


def echo(text: str) -> str:
    """Gives the text back."""
    return text
'''

SPEC = """
rlenv: 1
name: toy
tasks:
  train:
    rows: [{question: "Say five", answer: 5}, {question: "Say eight", answer: 8}]
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
  hang: {kind: python, function: "tools.py:hang", timeout_s: 0.05}
  block: {kind: python, function: "tools.py:block", timeout_s: 0.05}
  fail: {kind: python, function: "tools.py:fail"}
  declared: {kind: python, function: "tools.py:declared"}
  huge: {kind: python, function: "tools.py:huge"}
  outage: {kind: python, function: "tools.py:outage"}
  echo: {kind: python, function: "tools.py:echo", run_in: loop}
limits: {turns: 5, tool_calls: 8, calls_per_turn: 3, invalid_actions: 2}
rewards:
  correct: {kind: rule, rule: numeric_match}
  format: {kind: rule, rule: valid_calls, weight: 0.1, when: turn}
success: correct >= 1
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(environment: Environment, actions: Sequence[str | Message], *, task: int = 0) -> tuple[list[Step], Trajectory]:
    async def main() -> tuple[list[Step], Trajectory]:
        steps = []
        async with environment.start(task=task) as episode:
            for action in actions:
                steps.append(await episode.step(action))
            return steps, await episode.truncate("left") if not episode.is_ended else episode.trajectory

    return asyncio.run(main())


@pytest.fixture
def environment(make_environment: Any) -> Environment:
    made: Environment = make_environment(SPEC, tools=FUNCTIONS)
    return made


def test_a_call_then_an_answer_terminates_with_the_full_reward(environment: Environment) -> None:
    steps, trajectory = run(environment, [call("calculate", expression="2+3"), "so <answer>5</answer>"])
    assert [message.content for message in steps[0].observation.messages] == ["5"]
    assert (steps[0].terminated, steps[0].truncated, steps[0].reason) == (False, False, "")
    assert (steps[1].terminated, steps[1].truncated, steps[1].reason) == (True, False, "answer")
    assert trajectory.answer == "5"
    assert trajectory.success is True
    assert trajectory.reward.total == pytest.approx(1.1)
    assert sum(step.reward or 0.0 for step in steps) == pytest.approx(1.1)
    assert sum(trajectory.reward.turn_rewards) == pytest.approx(1.1)


def test_results_stand_in_call_order_whatever_ends_first(environment: Environment) -> None:
    action = call("hang") + call("echo", text="a") + call("calculate", expression="6*7")
    steps, _ = run(environment, [action])
    results = steps[0].observation.results
    assert [result.name for result in results] == ["hang", "echo", "calculate"]
    assert [result.outcome for result in results] == ["timeout", "ok", "ok"]
    assert [result.text for result in results[1:]] == ["a", "42"]


def test_a_message_without_call_or_answer_terminates_and_earns_nothing(environment: Environment) -> None:
    steps, trajectory = run(environment, ["I give up."])
    assert (steps[0].terminated, steps[0].reason) == (True, "final_message")
    assert trajectory.answer is None
    assert trajectory.reward.terms["correct"].value == 0.0


def test_an_answer_ends_the_episode_and_calls_beside_it_are_not_run(environment: Environment) -> None:
    steps, trajectory = run(environment, [call("calculate", expression="1+1") + "<answer>5</answer>"])
    assert steps[0].terminated
    (result,) = trajectory.turns[0].results
    assert result.outcome == "skipped"
    assert "answer" in result.text
    assert trajectory.success is True


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ('<tool_call>\n{"name": "calculate"', "malformed"),
        (call("calculator", expression="1"), "unknown_tool"),
        (call("calculate", expresion="1"), "bad_arguments"),
        (call("calculate", expression=["1"]), "bad_arguments"),
    ],
)
def test_a_models_mistake_becomes_an_observation_that_helps(
    environment: Environment, action: str, expected: str
) -> None:
    steps, trajectory = run(environment, [action, call("calculate", expression="2+3"), "<answer>5</answer>"])
    (result,) = steps[0].observation.results
    assert result.outcome == expected
    assert not steps[0].is_last
    assert trajectory.success is True
    assert trajectory.turns[0].calls_malformed == 1
    if expected == "unknown_tool":
        assert "calculate" in result.text
    if expected == "bad_arguments":
        assert "expression" in result.text


def test_mistakes_in_a_row_truncate_and_a_good_call_resets_the_count(environment: Environment) -> None:
    bad, good = call("nothing"), call("calculate", expression="1")
    steps, _ = run(environment, [bad, good, bad, bad])
    assert [step.reason for step in steps] == ["", "", "", "invalid_actions"]
    assert steps[-1].truncated


def test_words_to_the_user_end_a_row_of_mistakes(make_environment: Any) -> None:
    talking = SPEC.replace("limits: {turns: 5", "user: {kind: scripted, replies: [Yes., No.]}\nlimits: {turns: 9")
    bad = call("nothing")
    steps, _ = run(make_environment(talking, tools=FUNCTIONS), [bad, "Sure?", bad, "Really?", bad, bad])
    assert [step.reason for step in steps] == ["", "", "", "", "", "invalid_actions"]


def test_the_turn_limit_truncates_with_the_last_observation(environment: Environment) -> None:
    steps, trajectory = run(environment, [call("calculate", expression="1")] * 5)
    assert [step.reason for step in steps] == ["", "", "", "", "turns"]
    assert trajectory.truncated
    assert not trajectory.terminated
    assert steps[-1].observation.messages[0].content == "1"
    assert trajectory.reward.total == pytest.approx(0.1)


def test_more_calls_than_a_turn_may_make_are_answered_not_run(environment: Environment) -> None:
    steps, _ = run(environment, [call("calculate", expression="1") * 5])
    assert [result.outcome for result in steps[0].observation.results] == ["ok"] * 3 + ["skipped"] * 2


def test_calls_over_the_limit_are_answered_and_leave_the_policy_its_answer(environment: Environment) -> None:
    three = call("calculate", expression="1") * 3
    steps, trajectory = run(environment, [three] * 4 + ["<answer>5</answer>"])
    ran = [sum(result.outcome == "ok" for result in turn.results) for turn in trajectory.turns]
    assert ran == [3, 3, 2, 0, 0]
    assert "Not run" in steps[3].observation.text
    assert (trajectory.reason, trajectory.success) == ("answer", True)


@pytest.mark.parametrize(("key", "count"), [("tool_calls", 1), ("turns", 2), ("calls_per_turn", 1)])
def test_a_limit_that_is_used_up_does_not_take_the_answer_away(make_environment: Any, key: str, count: int) -> None:
    limits = {"turns": 5, "tool_calls": 8, "calls_per_turn": 3} | {key: count}
    environment = make_environment(
        SPEC.replace("{turns: 5, tool_calls: 8, calls_per_turn: 3", json.dumps(limits)[:-1]), tools=FUNCTIONS
    )
    _, trajectory = run(environment, [call("calculate", expression="1"), "<answer>5</answer>"])
    assert (trajectory.reason, trajectory.success) == ("answer", True)


@pytest.mark.parametrize(("spare", "reason"), [(0, "response_tokens"), (1, "left")])
def test_the_room_for_a_response_is_used_up_by_as_much_text(make_environment: Any, spare: int, reason: str) -> None:
    action = call("calculate", expression="1")
    ((step,), _) = run(make_environment(SPEC, tools=FUNCTIONS), [action])
    written = len(action) + len(step.observation.text)
    action, tokens = " " * (-written % CHARS_PER_TOKEN) + action, -(-written // CHARS_PER_TOKEN)
    limited = SPEC.replace("{turns: 5,", f"{{turns: 5, response_tokens: {tokens + spare},")
    assert run(make_environment(limited, tools=FUNCTIONS), [action])[1].reason == reason


def test_calls_that_code_makes_count_in_their_turn_beside_the_policys_own(make_environment: Any) -> None:
    environment = make_environment(
        SPEC.replace("limits:", "  run: {kind: code, tools: [calculate]}\nlimits:"), tools=FUNCTIONS
    )
    code = "\n".join(f"print(calculate(expression='{n} + 1'))" for n in range(3))
    _, trajectory = run(environment, [call("run", code=code)])
    ((result,),) = (turn.results for turn in trajectory.turns)
    assert (result.details or {})["called"] == {"calculate": {"ok": 2, "skipped": 1}}


ASKED = (
    FUNCTIONS
    + """
def left_s(context) -> float:
    \"\"\"Says how much time is left.\"\"\"
    return context.deadline - time.monotonic()


async def thrice(context) -> float:
    return 3 * (await context.call("left_s", {})).value
"""
)


def test_three_calls_of_a_reward_fit_into_its_time_one_after_the_other(make_environment: Any) -> None:
    text = SPEC.replace(
        "limits: {", '  left_s: {kind: python, function: "tools.py:left_s", inject: [context]}\nlimits: {reward_s: 20, '
    )
    text = text.replace("success:", '  thrice: {kind: rule, function: "tools.py:thrice"}\nsuccess:')
    _, trajectory = run(make_environment(text, tools=ASKED), ["<answer>5</answer>"])
    assert 15 < (trajectory.reward.terms["thrice"].value or 0.0) < 20


PAYING = (
    FUNCTIONS
    + '''
def books() -> dict:
    return {"paid": 0}


def pay(amount: int, books: dict) -> str:
    """Pays."""
    if amount > 100:
        raise ToolFailed("there is not so much")
    if amount == 13:
        raise EpisodeError("the bank is gone", reason="bank")
    books["paid"] += amount
    return f"paid {amount}"


def paid(context) -> float:
    return float(context.resources["books"]["paid"])
'''
)


def failure_of(trajectory: Trajectory) -> str:
    return "" if trajectory.failure is None else trajectory.failure.reason


def paying(make_environment: Any, ends: str = "", more: str = "", limits: str = "") -> Environment:
    tool = f'tools:\n  pay: {{kind: python, function: "tools.py:pay", inject: [books]{ends}}}\n'
    text = SPEC.replace("tools:\n", f'resources:\n  books: {{kind: python, function: "tools.py:books"}}\n{tool}')
    text = text.replace("rewards:\n", 'rewards:\n  paid: {kind: rule, function: "tools.py:paid"}\n')
    return make_environment(text.replace("turns: 5, tool_calls: 8", limits or "turns: 5, tool_calls: 8") + more,
                            tools=PAYING)  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "more", "reason", "answer"),
    [(", ends: true", "", "tool", None), ("", "answer: {from: tool, tool: pay}\n", "answer", "5")],
    ids=["ends", "answer"],
)
class TestWhatEnds:
    """A tool with `ends: true`, and the one whose call is the answer."""

    def test_it_is_run_and_rewards_see_what_it_did(
        self, make_environment: Any, ends: str, more: str, reason: str, answer: str | None
    ) -> None:
        steps, trajectory = run(paying(make_environment, ends, more), [call("pay", amount=5)])
        assert (steps[0].terminated, trajectory.reason, trajectory.answer) == (True, reason, answer)
        assert (trajectory.reward.terms["paid"].value, trajectory.turns[0].results[0].text) == (5, "paid 5")

    @pytest.mark.parametrize(("amount", "outcome"), [("lots", "bad_arguments"), (101, "failed")])
    def test_one_that_does_not_succeed_is_answered_and_ends_nothing(
        self, make_environment: Any, ends: str, more: str, reason: str, answer: str | None, amount: Any, outcome: str
    ) -> None:
        steps, trajectory = run(
            paying(make_environment, ends, more), [call("pay", amount=amount), call("pay", amount=5)]
        )
        assert (steps[0].is_last, steps[0].observation.results[0].outcome) == (False, outcome)
        assert (trajectory.reason, trajectory.answer) == (reason, answer)

    def test_calls_before_it_run_and_those_behind_it_are_told_as_not_run(
        self, make_environment: Any, ends: str, more: str, reason: str, answer: str | None
    ) -> None:
        action = call("calculate", expression="1") + call("pay", amount=5) + call("pay", amount=7)
        _, trajectory = run(paying(make_environment, ends, more), [action])
        assert [one.outcome for one in trajectory.turns[0].results] == ["ok", "ok", "skipped"]
        assert (trajectory.reward.terms["paid"].value, trajectory.answer) == (5, answer)

    @pytest.mark.parametrize("limits", ["turns: 5, tool_calls: 1", "turns: 1, tool_calls: 8"])
    def test_no_limit_takes_it_away(
        self, make_environment: Any, ends: str, more: str, reason: str, answer: str | None, limits: str
    ) -> None:
        action = call("calculate", expression="1") * 5 + call("pay", amount=5) + call("calculate", expression="1")
        _, trajectory = run(paying(make_environment, ends, more, limits), [action])
        results = trajectory.turns[0].results
        assert (trajectory.reason, results[5].text, results[6].outcome) == (reason, "paid 5", "skipped")
        assert [one.outcome for one in results[:5]] == ["ok"] * (1 if "tool_calls: 1" in limits else 3) + [
            "skipped"
        ] * (4 if "tool_calls: 1" in limits else 2)

    def test_an_outage_of_it_is_no_end_of_the_policys(
        self, make_environment: Any, ends: str, more: str, reason: str, answer: str | None
    ) -> None:
        _, trajectory = run(paying(make_environment, ends, more), [call("pay", amount=13)])
        assert (failure_of(trajectory), trajectory.reward.total) == ("bank", None)


@pytest.mark.parametrize(
    ("ends", "ended", "reason"),
    [
        ("{{ resources.books.paid >= 10 }}", [False, True], "tool"),
        ("{{ 'truncated' if resources.books.paid >= 10 else '' }}", [False, False], "tool"),
        ("{{ result.text == 'paid 5' and task.answer == 5 }}", [True], "tool"),
    ],
)
def test_a_world_says_itself_that_it_is_over(make_environment: Any, ends: str, ended: list[bool], reason: str) -> None:
    environment = paying(make_environment, f', ends: "{ends}"')
    steps, trajectory = run(environment, [call("pay", amount=5)] * len(ended))
    assert ([step.terminated for step in steps], trajectory.reason) == (ended, reason)
    assert steps[-1].truncated is ("truncated" in ends)


def test_a_call_that_has_failed_may_be_the_end_too(make_environment: Any) -> None:
    environment = paying(make_environment, ", ends: \"{{ 'not so much' in result.text }}\"")
    steps, _ = run(environment, [call("pay", amount=5), call("pay", amount=101)])
    assert [step.reason for step in steps] == ["", "tool"]


@pytest.mark.parametrize(("amount", "said"), [(5, 1), (101, 0)])
def test_a_call_whose_result_says_no_end_goes_on_and_leaves_out_no_sample(
    make_environment: Any, amount: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The value is a text, of which the log says once that the template does not fit; a failed call has none."""
    environment = paying(make_environment, ', ends: "{{ result.value.balance > 0 }}"')
    steps, trajectory = run(environment, [call("pay", amount=amount), call("pay", amount=amount), "<answer>5</answer>"])
    assert ([step.is_last for step in steps], trajectory.reason) == ([False, False, True], "answer")
    assert caplog.text.count("ends nothing: tools.pay.ends ({{ result.value.balance > 0 }})") == said
    assert trajectory.reward.total is not None


RESOURCES = """
from contextlib import asynccontextmanager
import asyncio, pathlib

folder = pathlib.Path(__file__).parent


@asynccontextmanager
async def first():
    yield 1
    (folder / "closed").touch()


@asynccontextmanager
async def second():
    (folder / "begun").touch()
    await asyncio.Event().wait()
    yield 2
"""


def test_an_episode_that_is_cancelled_while_it_opens_closes_what_was_open(
    make_environment: Any, tmp_path: Path
) -> None:
    names = ", ".join(f"{name}: {{kind: python, function: 'tools.py:{name}'}}" for name in ("first", "second"))
    text = SPEC[: SPEC.index("tools:")] + f"resources: {{{names}}}\n" + SPEC[SPEC.index("rewards:") :]
    environment = make_environment(text, tools=RESOURCES)

    async def main() -> None:
        episode = environment.start()
        opening = asyncio.ensure_future(episode.open())
        for _ in range(100_000):
            if (tmp_path / "begun").exists():
                break
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert (tmp_path / "closed").exists()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_end_that_cannot_be_asked_for_is_a_failure_and_no_number(make_environment: Any) -> None:
    _, trajectory = run(paying(make_environment, ', ends: "{{ task.lost }}"'), [call("pay", amount=5)])
    assert (failure_of(trajectory), trajectory.reward.total) == ("ends", None)
    assert trajectory.failure is not None
    assert "tools.pay.ends" in trajectory.failure.message


def test_a_call_that_code_makes_ends_the_episode_too(make_environment: Any) -> None:
    environment = paying(make_environment, ", ends: true}\n  code: {kind: code, tools: [pay]")
    action = call("code", code="pay(amount=5)\npay(amount=7)") + call("calculate", expression="1")
    _, trajectory = run(environment, [action])
    assert (trajectory.reason, trajectory.reward.terms["paid"].value) == ("tool", 5)


def test_a_term_counts_for_the_rows_that_its_gate_names(make_environment: Any) -> None:
    text = SPEC.replace(
        "{kind: rule, rule: numeric_match}", "{kind: rule, rule: numeric_match, gate: task.answer == 5}"
    )
    environment = make_environment(text, tools=FUNCTIONS)
    ends = [run(environment, ["<answer>5</answer>"], task=task)[1] for task in (0, 1)]
    assert [one.reward.terms["correct"].status for one in ends] == ["valid", "skipped"]
    assert [one.reward.total is not None for one in ends] == [True, True]


@pytest.mark.parametrize("tool", ["hang", "block"])
def test_a_tool_that_hangs_costs_its_own_timeout_and_the_episode_goes_on(environment: Environment, tool: str) -> None:
    steps, trajectory = run(environment, [call(tool), "<answer>5</answer>"])
    assert steps[0].observation.results[0].outcome == "timeout"
    assert trajectory.success is True


def test_an_exception_of_a_tool_is_never_shown_to_the_model(environment: Environment) -> None:
    steps, trajectory = run(environment, [call("fail"), "<answer>5</answer>"])
    text = steps[0].observation.text
    assert "Traceback" not in text
    assert "/secret" not in text
    assert steps[0].observation.results[0].outcome == "failed"
    assert trajectory.success is True


def test_a_declared_failure_is_shown_as_it_stands(environment: Environment) -> None:
    steps, _ = run(environment, [call("declared")])
    assert "the shop is closed" in steps[0].observation.messages[0].content


def test_ten_megabytes_are_cut_and_the_structure_stands(environment: Environment) -> None:
    steps, _ = run(environment, [call("huge")])
    observation = steps[0].observation
    assert len(observation.messages[0].content) <= 16_384
    assert observation.text.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_an_infrastructure_fault_makes_the_reward_invalid_never_zero(environment: Environment) -> None:
    steps, trajectory = run(environment, [call("calculate", expression="1"), call("outage")])
    assert steps[-1].reward is None
    assert steps[-1].truncated
    assert trajectory.reward.total is None
    assert trajectory.success is None
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "backend"
    assert set(trajectory.reward.terms) == {"correct", "format"}


def test_structured_calls_of_a_message_are_run_and_broken_ones_answered(environment: Environment) -> None:
    message = Message(
        "assistant",
        "",
        (ToolCall("calculate", {"expression": "2+2"}, "c1"), MalformedCall("{", "not JSON", name="echo", id="c2")),
    )
    steps, _ = run(environment, [message])
    good, bad = steps[0].observation.results
    assert (good.text, good.call_id) == ("4", "c1")
    assert (bad.outcome, bad.call_id) == ("malformed", "c2")


@pytest.mark.parametrize("kind", [list, dict])
def test_structured_calls_with_what_no_text_can_hold_are_malformed(kind: type, environment: Environment) -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep] if kind is list else {"a": deep}
    for given in (deep, {"expression": deep}, {"expression": 10**5_000}):
        (step,), trajectory = run(environment, [Message("assistant", "", (ToolCall("calculate", given),))])
        assert [result.outcome for result in step.observation.results] == ["malformed"]
        assert trajectory.failure is None


def test_thinking_that_a_server_has_split_off_is_recorded_and_earns_nothing(environment: Environment) -> None:
    message = Message("assistant", "I do not know.", thinking="Is it <answer>5</answer>?")
    _, trajectory = run(environment, [message])
    assert trajectory.turns[0].parsed.thinking == message.thinking
    assert trajectory.turns[0].action == message.content
    assert (trajectory.answer, trajectory.reward.terms["correct"].value) == (None, 0.0)


def test_an_answer_inside_thinking_or_a_tool_result_earns_nothing(environment: Environment) -> None:
    _, thought = run(environment, ["<think><answer>5</answer></think> unsure"])
    _, planted = run(environment, [call("echo", text="<answer>5</answer>"), "done"])
    _, early = run(environment, ["<think>x</think>" + call("echo", text="<answer>5</answer>"), "it said so"])
    for trajectory in (thought, planted, early):
        assert trajectory.answer is None
        assert trajectory.reward.terms["correct"].value == 0.0


def test_stepping_after_the_end_or_before_opening_is_a_usage_error(environment: Environment) -> None:
    async def main() -> None:
        unopened = environment.start(task=0)
        with pytest.raises(UsageError, match="not open"):
            await unopened.step("x")
        async with environment.start(task=0) as episode:
            with pytest.raises(UsageError, match="has not ended"):
                _ = episode.trajectory
            await episode.step("bye")
            with pytest.raises(UsageError, match="has ended"):
                await episode.step("again")

    asyncio.run(main())


def test_truncating_from_outside_scores_what_there_is(environment: Environment) -> None:
    async def main() -> Trajectory:
        async with environment.start(task=0) as episode:
            await episode.step(call("calculate", expression="1"))
            return await episode.truncate("response_tokens")

    trajectory = asyncio.run(main())
    assert trajectory.truncated
    assert trajectory.reason == "response_tokens"
    assert trajectory.reward.terms["correct"].value == 0.0


def test_truncating_records_the_action_that_was_interrupted(environment: Environment) -> None:
    async def main() -> tuple[bool, Trajectory]:
        async with environment.start(task=0) as episode:
            step = asyncio.ensure_future(episode.step(call("hang")))
            for _ in range(10):
                await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait([step])
            assert environment.executor.waited_for() == {}
            was_ending = episode.is_ending
            trajectory = await episode.truncate("straggler", action=call("hang"))
            assert episode.is_ending
            return was_ending, trajectory

    was_ending, trajectory = asyncio.run(main())
    assert not was_ending
    assert trajectory.reason == "straggler"
    (turn,) = trajectory.turns
    assert turn.action == call("hang")
    assert turn.results == ()
    assert len(trajectory.reward.turn_rewards) == 1


def test_a_hanging_tool_delays_none_of_sixty_four_others(environment: Environment) -> None:
    order: list[str] = []

    async def one(name: str, action: str) -> None:
        async with environment.start(task=0) as episode:
            await episode.step(action)
            await episode.step("<answer>5</answer>")
            order.append(name)

    async def main() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(one("block", call("block")))
            group.create_task(one("hang", call("hang")))
            for _ in range(64):
                group.create_task(one("other", call("echo", text="x")))

    asyncio.run(main())
    assert sorted(order[-2:]) == ["block", "hang"]
    assert len(order) == 66


def test_equal_seeds_and_actions_give_equal_trajectories_but_for_clocks(environment: Environment) -> None:
    actions = [call("calculate", expression="2**10"), "<answer>5</answer>"]
    (first, one), (second, two) = run(environment, actions), run(environment, actions)
    assert [step.observation.text for step in first] == [step.observation.text for step in second]
    assert one.reward.total == two.reward.total


def test_a_reward_that_hangs_is_invalid_once_its_time_is_over(make_environment: Any) -> None:
    spec = """
    rlenv: 1
    name: toy
    tasks: {train: {rows: [{question: q}]}}
    prompt: {user: "{{ task.question }}"}
    limits: {reward_s: 0.05}
    rewards: {slow: {kind: rule, function: "tools.py:slow"}}
    """
    tools = """
    import asyncio

    async def slow(context):
        await asyncio.Event().wait()
    """
    _, trajectory = run(make_environment(spec, tools=tools), ["done"])
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert "slow" in trajectory.failure.message


def test_a_turns_time_bounds_its_calls_and_leaves_the_episode_its_own(make_environment: Any) -> None:
    text = SPEC.replace("timeout_s: 0.05}", "timeout_s: 50}").replace("limits: {", "limits: {turn_s: 0.05, ")
    environment = make_environment(text, tools=FUNCTIONS)
    steps, trajectory = run(environment, [call("hang"), "<answer>5</answer>"])
    (result,) = steps[0].observation.results
    assert (result.outcome, result.text) == ("timeout", "the tool hang was stopped: the turn's time is up")
    assert trajectory.terminated
    assert trajectory.reward.terms["correct"].value == 1.0


@pytest.mark.parametrize(("option", "shown"), [("keep", 1), ("drop", 0)])
def test_images_of_results_are_shown_or_left_out_as_the_spec_says(
    make_environment: Any, option: str, shown: int
) -> None:
    spec = """
    rlenv: 1
    name: toy
    tasks: {train: {rows: [{question: q}]}}
    prompt: {user: "{{ task.question }}"}
    tools: {draw: {kind: python, function: "tools.py:draw", run_in: loop}}
    rewards: {format: {kind: rule, rule: answered}}
    """
    tools = """
    from rlenv.messages import Image
    from rlenv.tools.base import ToolOutput

    def draw() -> ToolOutput:
        \"\"\"Draws.\"\"\"
        return ToolOutput("a dot", images=(Image("image/png", "aGk="),))
    """
    environment = make_environment(spec, tools=tools, observation__images=option)
    steps, trajectory = run(environment, [call("draw")])
    assert len(steps[0].observation.messages[0].images) == shown
    assert len(trajectory.turns[0].results[0].images) == 1


@pytest.mark.parametrize("as_message", [False, True])
def test_of_an_action_without_end_the_beginning_is_taken(environment: Environment, as_message: bool) -> None:
    action = call("echo", text="hi") + "x" * 3_000_000
    _, trajectory = run(environment, [Message("assistant", action) if as_message else action, "<answer>5</answer>"])
    assert len(trajectory.turns[0].action) == 1_000_000
    assert trajectory.turns[0].results[0].text == "hi"


def test_a_long_action_is_read_beside_the_event_loop(environment: Environment) -> None:
    read_by: list[int] = []
    parse = environment.parse

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(environment, name)

        def parse(self, *given: Any) -> Any:
            read_by.append(threading.get_ident())
            return parse(*given)

    async def work() -> Trajectory:
        async with environment.start(task=0) as episode:
            episode.environment = Watched()  # type: ignore[assignment]
            await episode.step(call("echo", text="x" * 10_000))
            await episode.step(call("echo", text="x"))
            for texts in (["x"] * 500, ["x" * 10_000]):  # as data
                await episode.step(Message("assistant", "", tuple([ToolCall("echo", {"text": one}) for one in texts])))
            return await episode.truncate("tokens", action="<answer>5</answer>" + "x" * 10_000)

    trajectory = asyncio.run(asyncio.wait_for(work(), 60))
    assert [thread == threading.get_ident() for thread in read_by] == [False, True, False, False, False]
    assert trajectory.answer == "5"


@pytest.mark.parametrize("over", [0, 1, 5_000])
@pytest.mark.parametrize("as_message", [False, True])
def test_of_very_many_calls_the_first_are_kept_and_one_that_cannot_be_read(
    environment: Environment, as_message: bool, over: int
) -> None:
    count = MAX_CALLS + over - 1
    good, bad = ToolCall("echo", {"text": "x"}), MalformedCall("{", "no JSON", name="echo")
    written = call("echo", text="x") * count
    for broken, end in ((good, call("echo", text="x")), (bad, "<tool_call>{</tool_call>")):
        action = Message("assistant", "", (*[good] * count, broken)) if as_message else written + end
        kept = environment.parse(action)[1].calls
        assert (len(kept), {type(one) for one in kept[:-1]}, type(kept[-1])) == (MAX_CALLS, {ToolCall}, type(broken))


@pytest.mark.parametrize("as_message", [False, True])
def test_of_very_many_values_in_the_arguments_of_an_actions_calls_the_first_are_kept(
    environment: Environment, as_message: bool
) -> None:
    """Nothing holds the others: they would be looked at again by tapes, records and the garbage collector."""
    few, some, many = [0], [[0]] * 2_500, [[0]] * 2_498
    given = [few, some, [0] * 10_001, some, many, few]
    calls = tuple(ToolCall("echo", {"text": one}) for one in given)
    action = Message("assistant", "", calls) if as_message else "".join(call("echo", text=one) for one in given)
    kept = environment.parse(action)[1].calls
    assert [isinstance(one, ToolCall) for one in kept] == [True, True, False, False, True, False]
    assert all("10,000 values" in one.reason for one in kept if isinstance(one, MalformedCall))
    assert [one.name for one in kept] == ["echo"] * 6


def test_as_many_calls_are_kept_as_may_be_run(make_environment: Any) -> None:
    environment = make_environment(limits__calls_per_turn=MAX_CALLS + 2)
    assert len(environment.parse(call("echo", text="x") * (MAX_CALLS + 5))[1].calls) == MAX_CALLS + 2


def test_an_action_waits_for_no_other_that_is_much_longer(environment: Environment) -> None:
    held = threading.Event()
    parse = environment.parse

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(environment, name)

        def parse(self, action: str | Message, *more: Any) -> Any:
            assert len(str(action)) < 100_000 or held.wait(60)
            return parse(action)

    async def play(size: int) -> Trajectory:
        async with environment.start(task=0) as episode:
            episode.environment = Held()  # type: ignore[assignment]
            return await episode.truncate("tokens", action="<answer>5</answer>" + "x" * size)

    async def work() -> None:
        long = asyncio.ensure_future(play(200_000))
        await asyncio.sleep(0)
        assert (await play(20_000)).answer == "5"
        assert not long.done()
        held.set()
        assert (await long).answer == "5"

    asyncio.run(asyncio.wait_for(work(), 60))


def test_turns_and_calls_say_when_they_began(environment: Environment) -> None:
    _, trajectory = run(environment, [call("echo", text="one"), call("echo", text="two"), "<answer>a</answer>"])
    at = 0.0
    for turn in trajectory.turns:
        assert turn.started is not None
        assert turn.started >= at
        for result in turn.results:
            assert result.started is not None
            assert turn.started <= result.started
            assert result.started + result.seconds <= turn.started + turn.seconds
        at = turn.started + turn.seconds
    assert at <= trajectory.seconds


GIVEN = {"turns": 1, "turns_per_reply": None, "tool_calls": 2, "calls_per_turn": 3, "invalid_actions": 4,
         "episode_s": 5, "turn_s": 0.5, "reward_s": 7, "response_tokens": 80}  # fmt: skip


def test_each_limit_may_be_the_rows_own_and_a_row_that_gives_none_fails_alone(make_environment: Any) -> None:
    rows = [{"question": "", "answer": 1} | GIVEN | {"turns": turns} for turns in (1, 2, 0)]
    limits = {key: f"{{{{ task.{key} }}}}" for key in GIVEN}
    environment = make_environment(SPEC, tools=FUNCTIONS, tasks__train__rows=rows, limits=limits)
    assert asdict(environment.start(task=1).limits) == GIVEN | {"turns": 2}
    actions = [call("calculate", expression="1")] * 2
    assert run(environment, actions[:1], task=0)[1].reason == "turns"
    assert [len(run(environment, actions[:turns], task=turns - 1)[1].turns) for turns in (1, 2)] == [1, 2]
    failure = run(environment, [], task=2)[1].failure
    assert failure is not None
    assert (failure.reason, failure.message) == ("task", "turns: the row gives 0; expected a whole number of 1 or more")


def stepping(environment: Environment, work: Any, **given: Any) -> Any:
    """What `work` gives of an open episode."""

    async def main() -> Any:
        async with environment.start(**given) as episode:
            return await work(episode)

    return asyncio.run(asyncio.wait_for(main(), 60))


class Times:
    """A clock that gives these times from the episode's end of time on, the last one again and again."""

    def __init__(self, *times: float) -> None:
        self.left, self.end = list(times), 0.0

    def __call__(self) -> float:
        return self.end + (self.left.pop(0) if len(self.left) > 1 else self.left[0])


@pytest.mark.parametrize(
    ("times", "reason", "calls"),
    [((-1.0,), "", 1), ((0.0,), "time", 0), ((-1.0, -1.0, 0.0), "time", 1), ((-1.0, -1.0, -1e-6), "", 1)],
    ids=["in time", "begun at the end", "ended at the end", "ended just before"],
)
def test_an_action_is_in_time_until_the_episodes_time_is_up(
    environment: Environment, times: Sequence[float], reason: str, calls: int
) -> None:
    async def work(episode: Any) -> Any:
        episode.now = clock = Times(*times)
        clock.end = episode.tools.begun + episode.limits.episode_s
        return await episode.step(call("calculate", expression="1")), episode.turns

    step, turns = stepping(environment, work)
    assert (step.reason, step.truncated, [len(turn.results) for turn in turns]) == (reason, bool(reason), [calls])


TALKING = SPEC.replace("limits: {turns: 5", "user: {kind: scripted, replies: [Yes., No., Well.]}\nlimits: {turns: 4")


@pytest.mark.parametrize(
    ("times", "reason", "turns"), [((-1.0,), "", 1), ((-1.0, 0.0), "time", 1), ((-1.0, -1.0, -1.0, 0.0), "time", 1)]
)
def test_words_to_the_user_are_in_time_until_he_has_replied(
    make_environment: Any, times: Sequence[float], reason: str, turns: int
) -> None:
    async def work(episode: Any) -> Any:
        episode.now = clock = Times(*times)
        clock.end = episode.tools.begun + episode.limits.episode_s
        step = await episode.step("Sure?")
        return step, len(episode.turns)

    step, count = stepping(make_environment(TALKING, tools=FUNCTIONS), work)
    assert (step.reason, step.truncated, count) == (reason, bool(reason), turns)


def test_nobody_is_asked_for_a_reply_behind_the_last_turn_and_who_has_none_left_ends_it(make_environment: Any) -> None:
    steps, trajectory = run(make_environment(TALKING, tools=FUNCTIONS), ["a", "b", "c", "d"])
    assert [step.observation.text != "" for step in steps] == [True, True, True, False]
    assert (trajectory.reason, trajectory.terminated) == ("turns", False)
    _, trajectory = run(make_environment(TALKING.replace("turns: 4", "turns: 9"), tools=FUNCTIONS), ["a"] * 4)
    assert (trajectory.reason, trajectory.terminated) == ("user", True)


@pytest.mark.parametrize("most", [1, 2])
def test_turns_for_one_reply_are_counted_from_the_last_one(make_environment: Any, most: int) -> None:
    text = TALKING.replace("limits: {turns: 4", f"limits: {{turns_per_reply: {most}, turns: 9")
    good = call("calculate", expression="1")
    actions = [good] * (most - 1) + ["Sure?"] + [good] * most
    steps, _ = run(make_environment(text, tools=FUNCTIONS), actions)
    assert [step.reason for step in steps] == [""] * (len(actions) - 1) + ["turns"]


def test_of_limits_that_are_reached_at_once_the_turns_are_named_first(make_environment: Any) -> None:
    environment = make_environment(SPEC.replace("turns: 5", "turns: 2"), tools=FUNCTIONS)
    assert [step.reason for step in run(environment, [call("nothing")] * 2)[0]] == ["", "turns"]


@pytest.mark.parametrize(
    ("text", "ends", "reason"),
    [
        ("thinking on and", True, "turn_tokens"),
        ("<answer>5</answer>", True, "answer"),
        (call("calculate", expression="1"), False, ""),
    ],
)
def test_an_action_that_a_limit_has_cut_is_told_so_or_ends_the_episode(
    environment: Environment, text: str, ends: bool, reason: str
) -> None:
    async def work(episode: Any) -> Any:
        return await episode.step(Sampled(text, "length", (1, 2))), episode.turns[0], await episode.truncate("left")

    step, turn, trajectory = stepping(environment, work)
    assert (step.is_last, step.reason, step.truncated) == (ends, reason, reason == "turn_tokens")
    assert (turn.finish_reason, turn.token_ids) == ("length", (1, 2))
    assert (CUT_NOTE in step.observation.text) is not ends
    assert trajectory.reason == (reason or "left")


def test_what_was_sampled_is_kept_of_its_own_turn_alone(environment: Environment) -> None:
    async def work(episode: Any) -> Any:
        await episode.step(Sampled(call("calculate", expression="1"), "length", (1, 2), (-0.1, -0.2)))
        await episode.step(call("calculate", expression="1"))
        return await episode.truncate("left", action=Sampled("and", "stop", (3,)))

    turns = stepping(environment, work).turns
    assert [(turn.finish_reason, turn.token_ids) for turn in turns] == [("length", (1, 2)), ("", ()), ("stop", (3,))]


def test_an_episode_ends_once(environment: Environment) -> None:
    async def work(episode: Any) -> None:
        assert (episode.is_ended, episode.is_ending, episode.is_reported, episode.failure) == (False,) * 3 + (None,)
        first = await episode.truncate("left")
        assert (episode.is_ended, episode.is_ending, episode.is_reported) == (True, True, False)
        assert await episode.truncate("again", action="more") is first
        assert episode.fail("late", "too late") is first
        assert (len(first.turns), first.reason, episode.failure) == (0, "left", None)

    stepping(environment, work)


def test_an_episode_is_opened_once_and_takes_one_action_at_a_time(environment: Environment) -> None:
    async def work(episode: Any) -> None:
        with pytest.raises(UsageError, match="is open already"):
            await episode.open()
        running = asyncio.ensure_future(episode.step(call("hang")))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="another step is still running"):
            await episode.step("<answer>5</answer>")
        running.cancel()
        await asyncio.wait([running])
        assert (await episode.step("<answer>5</answer>")).reason == "answer"
        assert episode.is_reported

    stepping(environment, work)


FAILING = """
import asyncio
from contextlib import contextmanager
from rlenv.errors import ResourceError

closed = []


@contextmanager
def first():
    yield 1
    closed.append("first")


def lost():
    raise ResourceError("the database is gone")


async def hangs():
    await asyncio.Event().wait()


def look() -> str:
    return str(closed)
"""


@pytest.mark.parametrize(
    ("second", "within_s", "said"),
    [("lost", 30, "the database is gone"), ("hangs", 0.05, "the resources did not open within 0.05 s")],
)
def test_an_episode_that_fails_as_it_opens_plays_nothing_and_its_first_step_says_so(
    make_environment: Any, second: str, within_s: float, said: str
) -> None:
    names = ", ".join(f"{name}: {{kind: python, function: 'tools.py:{name}'}}" for name in ("first", second))
    text = SPEC[: SPEC.index("tools:")] + f"resources: {{{names}}}\n" + SPEC[SPEC.index("limits:") :]
    text = text.replace(
        "limits: {", f"tools: {{look: {{kind: python, function: 'tools.py:look'}}}}\nlimits: {{episode_s: {within_s}, "
    )

    async def work(episode: Any) -> Any:
        assert (episode.is_open, episode.is_ended, episode.is_reported) == (True, True, False)
        step = await episode.step(call("look"))
        assert episode.is_reported
        return step, episode.trajectory

    step, trajectory = stepping(make_environment(text, tools=FAILING), work)
    assert (step.is_last, step.reward, trajectory.turns, trajectory.reward.total) == (True, None, (), None)
    assert (trajectory.failure.reason, said in trajectory.failure.message) == ("resource", True)


@pytest.mark.parametrize(
    ("over", "more"), [(63, ""), (64, ""), (65, " 1 more are left out."), (564, " 500 more are left out.")]
)
def test_calls_over_a_limit_are_answered_one_by_one_up_to_a_number(
    environment: Environment, over: int, more: str
) -> None:
    steps, _ = run(environment, [call("calculate", expression="1") * (3 + over)])
    results = steps[0].observation.results
    assert [result.outcome for result in results] == ["ok"] * 3 + ["skipped"] * min(over, 64)
    told = "Not run: at most 3 calls a turn and 8 an episode are run."
    assert [result.text for result in results[3:]] == [told] * (min(over, 64) - 1) + [told + more]


@pytest.mark.parametrize(("calls", "kept"), [(64, 64), (65, 64)])
def test_calls_beside_an_answer_are_recorded_up_to_a_number(environment: Environment, calls: int, kept: int) -> None:
    _, trajectory = run(environment, [call("calculate", expression="1") * calls + "<answer>5</answer>"])
    assert [result.outcome for result in trajectory.turns[0].results] == ["skipped"] * kept


CODE = SPEC.replace(
    "limits:", "  pay: {kind: calculator, ends: true}\n  run: {kind: code, tools: [calculate, pay]}\nlimits:"
)


@pytest.mark.parametrize(
    ("limits", "before", "made", "ok"),
    [
        ("tool_calls: 8, calls_per_turn: 3", 0, 2, 2),
        ("tool_calls: 8, calls_per_turn: 3", 0, 3, 2),
        ("tool_calls: 3, calls_per_turn: 9", 0, 3, 2),
        ("tool_calls: 3, calls_per_turn: 9", 1, 2, 1),
        ("tool_calls: 4, calls_per_turn: 9", 1, 2, 2),
    ],
)
def test_calls_that_code_makes_count_for_the_turn_and_for_the_episode(
    make_environment: Any, limits: str, before: int, made: int, ok: int
) -> None:
    environment = make_environment(CODE.replace("tool_calls: 8, calls_per_turn: 3", limits), tools=FUNCTIONS)
    code = "\n".join(f"print(calculate(expression='{n}'))" for n in range(made))
    _, trajectory = run(environment, [call("calculate", expression="1")] * before + [call("run", code=code)])
    called = (trajectory.turns[-1].results[0].details or {})["called"]["calculate"]
    assert (called["ok"], called.get("skipped", 0)) == (ok, made - ok)


def test_nothing_that_code_calls_is_run_behind_the_end(make_environment: Any) -> None:
    environment = make_environment(CODE, tools=FUNCTIONS)
    _, trajectory = run(environment, [call("run", code="pay(expression='1')\ncalculate(expression='1')")])
    assert (trajectory.reason, trajectory.turns[0].results[0].details["called"]) == (  # type: ignore[index]
        "tool",
        {"pay": {"ok": 1}, "calculate": {"skipped": 1}},
    )


KEPT = """
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

log = Path(__file__).parent / "log"


def note(text):
    with log.open("a") as file:
        file.write(text + " ")


@contextmanager
def world():
    yield "world"
    note("world")


@asynccontextmanager
async def browser():
    yield "browser"
    note("browser")
    raise OSError("it does not end well")


async def look(context) -> str:
    return await context.scope().get("browser", browser)
"""


def test_what_tools_keep_is_closed_before_the_resources_whatever_closing_raises(
    make_environment: Any, tmp_path: Path
) -> None:
    text = SPEC[: SPEC.index("tools:")] + "resources: {world: {kind: python, function: 'tools.py:world'}}\n"
    text += "tools: {look: {kind: python, function: 'tools.py:look', inject: [context]}}\n"
    environment = make_environment(text + SPEC[SPEC.index("limits:") :], tools=KEPT)

    async def main() -> None:
        episode = environment.start()
        await episode.open()
        assert (await episode.step(call("look"))).observation.results[0].text == "browser"
        with pytest.raises(OSError, match="it does not end well"):
            await episode.aclose()
        await episode.aclose()

    asyncio.run(main())
    assert (tmp_path / "log").read_text().split() == ["browser", "world"]


DEADLINES = (
    FUNCTIONS
    + """
def left_s(context) -> float:
    \"\"\"Says how much time is left.\"\"\"
    return context.deadline - time.monotonic()


async def for_reward(context) -> float:
    return (await context.call("left_s", {})).value
"""
)


@pytest.mark.parametrize(
    ("limits", "bounded", "in_reward"),
    [
        ("turn_s: 40, episode_s: 100, reward_s: 300", 40, 90),
        ("turn_s: 400, episode_s: 100, reward_s: 300", 100, 90),
        ("turn_s: 40, episode_s: 100, reward_s: 100", 40, 30),
    ],
)
def test_a_turns_time_bounds_the_policys_calls_and_none_of_a_rewards(
    make_environment: Any, limits: str, bounded: float, in_reward: float
) -> None:
    text = SPEC.replace(
        "limits: {", f'  left_s: {{kind: python, function: "tools.py:left_s", inject: [context]}}\nlimits: {{{limits}, '
    )
    text = text.replace("success:", '  asked: {kind: rule, function: "tools.py:for_reward"}\nsuccess:')
    text = text.replace("rlenv: 1", "rlenv: 1\ncalls: {timeout_s: 500}")
    steps, trajectory = run(make_environment(text, tools=DEADLINES), [call("left_s"), "<answer>5</answer>"])
    assert steps[0].observation.results[0].value == pytest.approx(bounded, abs=5)
    assert trajectory.reward.terms["asked"].value == pytest.approx(in_reward, abs=5)


def test_terms_of_turns_are_measured_once_a_turn_the_last_one_included(environment: Environment) -> None:
    good, bad = call("calculate", expression="1"), call("nothing")
    for actions in ([good, bad, "<answer>5</answer>"], [good, bad, good]):
        _, trajectory = run(environment, actions)
        assert len(trajectory.reward.turn_rewards) == 3
        assert sum(trajectory.reward.turn_rewards) == pytest.approx(trajectory.reward.total)
