"""Many episodes at once, their record and their figures."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, drive, gather_all, nest, rollout
from rlenv.errors import PolicyError, UsageError
from rlenv.messages import Message
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.policies.scripted import OraclePolicy, RandomPolicy, ScriptPolicy
from rlenv.runs import files as record
from rlenv.runs.figures import PassAtK, wilson
from rlenv.runs.summary import summarise
from rlenv.trajectory import RewardBreakdown, Trajectory
from tests.support.clock import run_skipping


class _Policy:
    """Answers right, but fails in the episodes named and hangs in others."""

    name = "flaky"

    def __init__(self, *, fails: Sequence[int] = (), hangs: Sequence[int] = ()) -> None:
        self.fails, self.hangs = fails, hangs

    def start(self, context: PolicyContext) -> PolicySession:
        outer = self

        class Session:
            async def act(self, messages: Sequence[Message]) -> str:
                if context.seed in outer.fails:
                    raise PolicyError("the endpoint is down")
                if context.seed in outer.hangs:
                    await asyncio.Event().wait()
                return f"<answer>{context.task['answer']}</answer>"

        return Session()

    async def aclose(self) -> None:
        pass


def play(environment: Environment, policy: Policy, jobs: Sequence[Job], **options: Any) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with asyncio.timeout(30):
            return await rollout(environment, policy, jobs, **options)

    return asyncio.run(main())


def jobs(count: int) -> list[Job]:
    return [Job("train", index % 2, index) for index in range(count)]


def test_trajectories_come_back_in_the_order_of_the_jobs(make_environment: Any) -> None:
    environment = make_environment()
    seen: list[int] = []
    ended = play(
        environment,
        OraclePolicy(environment.spec, environment.parts.dialect),
        jobs(20),
        concurrency=5,
        on_end=lambda index, trajectory: seen.append(index),
    )
    assert [trajectory.seed for trajectory in ended] == list(range(20))
    assert sorted(seen) == list(range(20))
    assert all(trajectory.success for trajectory in ended)
    assert all(len(trajectory.turns) == 2 for trajectory in ended)


@pytest.mark.parametrize(("concurrency", "most"), [(3, 3), (64, 8)])
def test_no_more_episodes_are_played_at_once_than_asked_for(make_environment: Any, concurrency: int, most: int) -> None:
    playing: set[int] = set()
    seen: list[int] = []

    class Session:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        async def act(self, messages: Sequence[Message]) -> str:
            playing.add(self.seed)
            for _ in range(50):  # so many passes of the loop in which others could begin
                await asyncio.sleep(0)
            seen.append(len(playing))
            playing.discard(self.seed)
            return "<answer>5</answer>"

    class Waiting(_Policy):
        def start(self, context: PolicyContext) -> PolicySession:
            return Session(context.seed)

    play(make_environment(), Waiting(), jobs(8), concurrency=concurrency)
    assert (len(seen), max(seen)) == (8, most)


def test_a_policy_that_fails_costs_its_own_episode_and_is_counted_as_invalid(make_environment: Any) -> None:
    ended = play(make_environment(), _Policy(fails=[1, 3]), jobs(6))
    summary = summarise(ended, seconds=1.0)
    assert [trajectory.success for trajectory in ended] == [True, None, True, None, True, True]
    assert summary.invalid == 2
    assert summary.reward_mean == 1.0
    assert summary.success_rate == 1.0
    assert summary.failures == {"policy": 2}
    assert summary.terms == {"correct": 1.0}
    assert summary.terms_invalid == {"correct": 2}


def test_a_policy_that_hangs_is_truncated_at_the_episodes_time(make_environment: Any) -> None:
    # No clock is waited for: the time goes on where nothing but the hanging one is left.
    ended = run_skipping(rollout(make_environment(), _Policy(hangs=[0]), jobs(3)))
    assert [(trajectory.truncated, trajectory.reason) for trajectory in ended] == [
        (True, "time"),
        (False, "answer"),
        (False, "answer"),
    ]


def test_an_oracle_whose_script_is_over_says_so(make_environment: Any) -> None:
    environment = make_environment(oracle=[{"call": {"calculate": {"expression": "1"}}}])
    (ended,) = play(environment, OraclePolicy(environment.spec, environment.parts.dialect), jobs(1))
    assert ended.reward.total is None
    assert ended.failure is not None
    assert "steps are over" in ended.failure.message


def test_an_oracle_that_a_result_does_not_fill_fails_its_own_episode(
    make_environment: Any,
) -> None:
    steps = [{"call": {"calculate": {"expression": "1"}}}, {"say": "<answer>{{ results[task.answer] }}</answer>"}]
    rows = [{"question": "q", "answer": 7}, {"question": "q", "answer": 0}]
    environment = make_environment(oracle=steps, tasks__train__rows=rows)
    broken, right = play(environment, OraclePolicy(environment.spec, environment.parts.dialect), jobs(2))
    assert broken.failure is not None
    assert broken.failure.message.startswith("oracle.1: ")
    assert right.answer == "1"
    assert right.failure is None


def test_a_row_that_a_template_cannot_fill_or_that_is_broken_costs_its_own_episode_only(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"answer": 1}\n{broken\n{"question": "q", "answer": 1}\n')
    (tmp_path / "e.yaml").write_text(
        "rlenv: 1\nname: rows\ntasks: {train: {path: rows.jsonl}}\nprompt: {user: '{{ task.question }}'}\n"
        "rewards: {r: {kind: rule, rule: numeric_match}}\noracle: [{say: '<answer>{{ task.answer }}</answer>'}]\n"
    )
    environment = load(tmp_path / "e.yaml")
    three = [Job("train", task) for task in range(3)]
    ended = play(environment, OraclePolicy(environment.spec, environment.parts.dialect), three)
    reasons = [one.failure.reason if one.failure is not None else one.reward.total for one in ended]
    assert reasons == ["prompt", "task", 1.0]
    assert ended[0].failure is not None
    assert ended[0].failure.message.startswith("prompt.user cannot be filled from this row")
    assert ended[1].failure is not None
    assert "rows.jsonl:2:2" in ended[1].failure.message


def test_a_step_of_the_oracle_is_repeated_for_each_item(make_environment: Any) -> None:
    steps = [
        {"call": {"calculate": {"expression": "{{ item }}"}}, "for_each": "['1+1', '2+2', '3+3']"},
        {"say": "<answer>{{ results[-1] }}</answer>"},
    ]
    environment = make_environment(oracle=steps)
    (trajectory,) = play(environment, OraclePolicy(environment.spec, environment.parts.dialect), jobs(1))
    assert [turn.results[0].text for turn in trajectory.turns[:-1]] == ["2", "4", "6"]
    assert trajectory.answer == "6"


def test_the_random_policy_is_equal_for_equal_seeds_and_never_breaks_an_episode(make_environment: Any) -> None:
    environment = make_environment()
    policy = RandomPolicy(environment.parts.dialect, environment.spec.answer)
    first, second = play(environment, policy, jobs(200)), play(environment, policy, jobs(200))
    assert [[turn.action for turn in one.turns] for one in first] == [
        [turn.action for turn in one.turns] for one in second
    ]
    assert all(trajectory.failure is None for trajectory in first)
    assert summarise(first, seconds=1).success_rate == 0.0


def test_a_script_plays_a_line_for_each_task_or_one_for_all(make_environment: Any, tmp_path: Path) -> None:
    environment = make_environment()
    lines = tmp_path / "script.jsonl"
    lines.write_text('["<answer>5</answer>"]\n["hm", "<answer>1</answer>"]\n')
    ended = play(environment, ScriptPolicy(lines), jobs(2))
    assert [trajectory.answer for trajectory in ended] == ["5", None]
    text = tmp_path / "script.txt"
    text.write_text(
        '<tool_call>{"name": "calculate", "arguments": {"expression": "4"}}</tool_call>\n---\n<answer>8</answer>\n'
    )
    ended = play(environment, ScriptPolicy(text), jobs(2))
    assert [trajectory.success for trajectory in ended] == [False, True]
    (tmp_path / "bad.jsonl").write_text('["a"]\n{"not": "a list"}\n')
    with pytest.raises(UsageError, match=r"bad\.jsonl:2"):
        ScriptPolicy(tmp_path / "bad.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        ScriptPolicy(tmp_path / "missing.txt")


def test_a_record_reads_back_as_it_was(make_environment: Any, tmp_path: Path) -> None:
    environment = make_environment()
    written = play(environment, OraclePolicy(environment.spec, environment.parts.dialect), jobs(3))
    written += play(environment, _Policy(fails=[0]), jobs(1))
    record.write(tmp_path / "deep" / "t.jsonl", written)
    assert list(record.read(tmp_path / "deep" / "t.jsonl")) == written


@given(st.text(alphabet=st.characters(), max_size=40), st.floats())
def test_whatever_a_policy_wrote_survives_the_record(text: str, number: float) -> None:
    trajectory = _recorded(text + "\ud800", {"x": number})
    line = record.dump(trajectory)
    back = record.parse(line)
    assert line.isascii()
    assert b"\n" not in line
    assert back.turns[0].action == trajectory.turns[0].action
    assert back.task == {"x": number if math.isfinite(number) else None}


def test_a_broken_line_of_a_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(record.dump(_recorded("a", {})) + b"\n{}\n")
    with pytest.raises(UsageError, match=r"t\.jsonl:2: not a recorded trajectory"):
        list(record.read(file))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Recomputed by hand from the score interval's formula.
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (0, 0, 0.0, 1.0)],
)
def test_the_wilson_interval_has_its_known_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_samples_of_a_task_give_pass_at_k(make_environment: Any, tmp_path: Path) -> None:
    script = tmp_path / "s.jsonl"
    script.write_text('["<answer>5</answer>"]\n["<answer>0</answer>"]\n')
    ended = play(make_environment(), ScriptPolicy(script), [Job("train", t, k) for t in range(2) for k in range(3)])
    summary = summarise(ended, seconds=2.0)
    assert summary.success_rate == 0.5
    assert _values(summary.pass_at_k) == _values(summary.pass_hat_k) == dict.fromkeys((1, 2, 3), (0.5, 2, 0))
    assert summary.episodes == 6
    assert summarise(ended[::3], seconds=2.0).pass_at_k == {}


def _values(passes: Mapping[int, PassAtK]) -> dict[int, tuple[float | None, int, int]]:
    return {k: (one.value, one.tasks, one.left_out) for k, one in passes.items()}


def _sampled(task: int, *successes: bool | None) -> list[Trajectory]:
    """Samples of one task: a success earns 1, None has no reward."""
    return [
        dataclasses.replace(
            _recorded("a", {}),
            task_index=task,
            success=success,
            reward=RewardBreakdown(None if success is None else float(success), {}),
        )
        for success in successes
    ]


def test_pass_at_k_is_the_chance_that_one_of_k_samples_succeeds() -> None:
    found = summarise([*_sampled(0, True, False, False, False), *_sampled(1, *[False] * 4)], seconds=1).pass_at_k
    assert {k: one.value for k, one in found.items()} == {1: 0.125, 2: 0.25, 3: 0.375, 4: 0.5}


def test_a_task_with_fewer_valid_samples_than_k_is_left_out_of_pass_at_k_and_counted() -> None:
    found = summarise([*_sampled(0, True, None, None, None), *_sampled(1, *[False] * 4)], seconds=1).pass_at_k
    assert _values(found) == {1: (0.5, 2, 0), 2: (0.0, 1, 1), 3: (0.0, 1, 1), 4: (0.0, 1, 1)}
    none = summarise([*_sampled(0, None, None), *_sampled(1, None, None)], seconds=1).pass_at_k
    assert none[2] == PassAtK(None, 0, 2)


def test_more_samples_of_the_same_tasks_do_not_make_an_interval_narrower_than_they_may() -> None:
    found = [one for task in range(20) for one in _sampled(task, *[task % 2 == 0] * 16)]
    summary = summarise(found, seconds=1)
    assert summary.success_interval == pytest.approx(wilson(10, 20, quantile=2.093024054408263))
    assert summary.reward_interval == pytest.approx(summary.success_interval)
    assert summarise(found[:16], seconds=1).reward_interval is None
    assert summarise([one for task in range(4) for one in _sampled(task, True)], seconds=1).reward_interval is None


def test_figures_of_no_valid_episode_are_none_never_zero(make_environment: Any) -> None:
    summary = summarise(play(make_environment(), _Policy(fails=[0]), jobs(1)), seconds=1)
    assert summary.reward_mean is None
    assert summary.success_rate is None
    assert summary.terms == {"correct": None}


def _recorded(text: str, task: dict[str, Any]) -> Trajectory:
    from rlenv.messages import ParsedAction
    from rlenv.trajectory import RewardBreakdown, Turn

    turn = Turn(0, text, ParsedAction(text))
    reward = RewardBreakdown(0.0, {}, (0.0,))
    base = Trajectory("toy-v0", "train", 0, 0, {}, (), (turn,), None, True, False, "final_message", reward, False)
    return dataclasses.replace(base, task=task)


class Structured:
    """Says messages of a server that left calls in their text, and keeps what it heard."""

    name = "structured"

    def __init__(self, *said: str) -> None:
        self.said, self.heard = iter(said), list[list[Message]]()

    def start(self, context: PolicyContext) -> PolicySession:
        return self

    async def act(self, messages: Sequence[Message]) -> Message:
        self.heard.append(list(messages))
        return Message("assistant", next(self.said))

    async def aclose(self) -> None: ...


def test_a_call_in_a_messages_text_is_told_as_a_call_with_its_results(make_environment: Any) -> None:
    text = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "%s"}}\n</tool_call>'
    policy = Structured(f"first {text % '1'}{text % '2'}", text % "3", "<answer>5</answer>")
    play(make_environment(), policy, jobs(1))
    told = policy.heard[-1][-5:]
    assert [message.role for message in told] == ["assistant", "tool", "tool", "assistant", "tool"]
    assert [call.id for call in told[0].tool_calls] == ["call_0_0", "call_0_1"]
    assert [(one.tool_call_id, one.content) for one in told[1:3]] == [("call_0_0", "1"), ("call_0_1", "2")]
    assert (told[0].content.strip(), told[3].content.strip()) == ("first", "")
    assert ([call.id for call in told[3].tool_calls], told[4].tool_call_id) == (["call_1_0"], "call_1_0")


def test_an_episode_that_has_ended_is_driven_no_further(make_environment: Any) -> None:
    async def main() -> None:
        environment = make_environment()
        async with environment.start() as episode:
            ended = await episode.truncate("left")
            assert await drive(episode, _Policy(fails=[episode.seed]), limit_s=1.0) is ended

    asyncio.run(main())


@pytest.mark.parametrize(("limit_s", "reason"), [(0.0, "time"), (1e9, "answer")])
def test_a_policy_has_the_time_that_it_is_given(make_environment: Any, limit_s: float, reason: str) -> None:
    async def main() -> None:
        environment = make_environment()
        async with environment.start() as episode:
            policy = _Policy() if reason == "answer" else _Policy(hangs=[episode.seed])
            ended = await drive(episode, policy, limit_s=limit_s)
            assert (ended.reason, ended.failure) == (reason, None)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_one_of_several_raises_is_raised_as_it_is_once_the_others_are_over() -> None:
    over: list[str] = []

    async def hangs() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append("over")
        return 1

    async def fails() -> int:
        await asyncio.sleep(0)
        raise PolicyError("this one")

    async def gives(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def main() -> None:
        with pytest.raises(PolicyError, match="this one"):
            await gather_all([hangs(), fails(), hangs()])
        assert over == ["over", "over"]
        assert await gather_all([gives(number) for number in (3, 1, 2)]) == [3, 1, 2]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_each_trajectory_is_told_with_its_number_as_it_ends(make_environment: Any) -> None:
    told: list[tuple[int, int]] = []
    ended = play(make_environment(), _Policy(), jobs(5), concurrency=2,
                 on_end=lambda index, one: told.append((index, one.seed)))  # fmt: skip
    assert sorted(told) == [(index, index) for index in range(5)]
    assert [one.seed for one in ended] == list(range(5))
    assert play(make_environment(), _Policy(), []) == []


@pytest.mark.parametrize("name", ["one.yaml", "gone.yaml"])
def test_a_spec_that_plays_itself_or_one_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "one.yaml").write_text("")
    says = "one.yaml -> one.yaml" if name == "one.yaml" else "there is no file 'gone.yaml'"
    with pytest.raises(UsageError, match=says):
        nest(tmp_path / "one.yaml", Environment, tmp_path / name, {})
