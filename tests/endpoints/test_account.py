"""What each role asks of a model is counted for its own episode: every try, and nothing twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rlenv.endpoints.account import Account, counted
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import Message, ToolCall
from rlenv.policies.openai import OpenAIPolicy
from rlenv.runs import files as record
from rlenv.runs.replay import rescore
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from rlenv.trajectory import ModelUsage, Trajectory

TASKS = 16
HEAD = """
rlenv: 1
name: asking
tasks: {test: {rows: [%s]}}
prompt: {user: "Task {{ task.q }}"}
endpoints:
  other: {base_url: "ADDRESS", model: other, retries: 2}
  judge: {base_url: "ADDRESS", model: judge, retries: 2}
"""
ROWS = ", ".join(f"{{q: '{number}'}}" for number in range(TASKS))
TOOL = "tools: {ask: {kind: model, endpoint: other, prompt: '{{ args.text }}', parameters: {text: string}}}\n"
AGENT = "tools: {helper: {kind: agent, spec: inner.yaml, endpoint: other}}\n"
JUDGE = "rewards: {good: {kind: judge, endpoint: judge, prompt: 'Is it good? {{ message }}'%s}}\n"
RULE = "rewards: {answered: {kind: rule, rule: answered}}\n"
USER = "user: {kind: model, endpoint: other, prompt: 'You shop.', stop: '###'}\n"
INNER = """
rlenv: 1
name: inner
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "Solve {{ task.question }}"}
endpoints: {judge: {base_url: "ADDRESS", model: judge}}
tools: {deep: {kind: model, endpoint: judge, prompt: '{{ args.text }}', parameters: {text: string}}}
rewards: {answered: {kind: rule, rule: answered}}
"""
Answer = Callable[[Mapping[str, Any]], Any]


def verdict(score: float = 5) -> str:
    return json.dumps({"reasoning": "fine", "score": score})


def call(name: str, **arguments: str) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, "c"),))


def last(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def play(
    folder: Path, spec: str, answer: Answer, *, jobs: int = 1, samples: int = 1, above: Account | None = None
) -> list[Trajectory]:
    """Episodes of `spec` with the server's `policy` as the policy, all at once."""

    async def main() -> list[Trajectory]:
        async with FakeEndpoint(answer) as server:
            (folder / "inner.yaml").write_text(INNER.replace("ADDRESS", server.base_url))
            (folder / "spec.yaml").write_text(HEAD.replace("ADDRESS", server.base_url) % ROWS + spec)
            environment = load(folder / "spec.yaml")
            policy = OpenAIPolicy(server.base_url, "policy", retries=2)
            todo = [Job("test", task, sample) for task in range(jobs) for sample in range(samples)]
            async with environment:
                try:
                    with counted(above):
                        return await rollout(environment, policy, todo, concurrency=16)
                finally:
                    await policy.aclose()

    return asyncio.run(asyncio.wait_for(main(), 60))


def by_role(trajectory: Trajectory) -> dict[str, ModelUsage]:
    assert len({one.role for one in trajectory.usage}) == len(trajectory.usage)
    return {one.role: one for one in trajectory.usage}


def test_each_role_is_counted_for_itself_with_its_model(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        if body["model"] == "policy":
            said = [message["role"] for message in body["messages"]]
            return call("ask", text="why") if "tool" not in said else "two words" if said[-1] == "tool" else "bye"
        return verdict() if body["model"] == "judge" else "a b c" if last(body) == "why" else "###"

    (trajectory,) = play(tmp_path, TOOL + USER + JUDGE % "", answer)
    assert trajectory.reward.total == 1.0
    found = by_role(trajectory)
    models = {role: (one.model, one.requests, one.failed) for role, one in found.items()}
    assert models == {
        "policy": ("policy", 2, 0),
        "tool ask": ("other", 1, 0),
        "user": ("other", 1, 0),
        "judge good": ("judge", 1, 0),
    }
    assert found["tool ask"].completion_tokens == 3
    assert all(one.prompt_tokens > 0 and one.seconds > 0 and not one.unknown for one in found.values())
    assert record.parse(record.dump(trajectory)) == trajectory


def test_nothing_is_recorded_where_nothing_was_asked() -> None:
    environment = load("arithmetic")

    async def main() -> Trajectory:
        async with environment, environment.start(task=0) as episode:
            await episode.step("<answer>5</answer>")
            return episode.trajectory

    trajectory = asyncio.run(asyncio.wait_for(main(), 60))
    assert trajectory.usage == ()
    line = record.dump(trajectory)
    assert b'"usage"' not in line
    assert record.dump(record.parse(line)) == line


@pytest.mark.parametrize(("status", "role", "is_barred"), [(429, "policy", 1), (429, "judge", 0), (503, "policy", 0)])
def test_what_a_policy_waits_for_a_server_that_bars_it_is_no_time_of_its_own(
    status: int, role: str, is_barred: int
) -> None:
    async def main() -> Account:
        account = Account()
        async with FakeEndpoint([Reply(status), "Y"]) as server, aclosing(OpenAIPolicy(server.base_url, "m")) as policy:
            with counted(account, role):
                await policy.client.chat([Message("user", "?")])
        return account

    assert (asyncio.run(main()).barred_s > 0) == is_barred
    account = Account()
    account.barred_s = 0.875
    assert account.barred(8.75) != ""
    assert (account.barred(8.8), account.barred(0.0), Account().barred(1.0)) == ("", "", "")


def test_what_several_requests_of_a_policy_wait_at_once_is_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, account = 100.0, Account()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with account.bars():
        now += 1
        with account.bars():
            now += 1
            assert (account.barred(20.0) != "", account.barred(21.0)) == (True, "")  # those that go on count
        now += 1
    now += 9
    with account.bars():
        now += 1
    assert account.barred_s == 4


def test_tries_that_failed_are_counted_with_the_one_that_did_not(tmp_path: Path) -> None:
    given: list[Any] = [Reply(503), Reply(drops=True), {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}]
    given += [Reply(503), "done"]

    def answer(body: Mapping[str, Any]) -> Any:
        made = given.pop(0)
        return Reply(200, made) if isinstance(made, dict) else made

    # Three tries are no use, and the third of them has cost tokens, nor is one for a first token. It is then given up.
    (failed,) = play(tmp_path, RULE, answer)
    assert failed.failure is not None
    (usage,) = failed.usage
    assert (usage.requests, usage.failed, usage.unknown) == (4, 4, 0)
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, 1)
    (played,) = play(tmp_path, RULE, answer)
    assert (played.usage[0].requests, played.usage[0].failed) == (1, 0)


def test_a_request_that_nobody_waits_for_any_more_has_failed(tmp_path: Path) -> None:
    async def answer(body: Mapping[str, Any]) -> Any:
        return "Y" if body.get("max_tokens") == 1 else await never()

    (trajectory,) = play(tmp_path, RULE + "limits: {episode_s: 0.3}\n", answer)
    assert trajectory.reason == "time"
    (usage,) = trajectory.usage
    assert (usage.role, usage.requests, usage.failed, usage.unknown) == ("policy", 2, 1, 0)


def test_replies_that_a_judge_cannot_use_are_failed_tries_with_their_tokens(tmp_path: Path) -> None:
    replies = ["no json", "none either", verdict()]

    def answer(body: Mapping[str, Any]) -> Any:
        return "hello" if body["model"] == "policy" else replies.pop(0)

    (trajectory,) = play(tmp_path, JUDGE % "", answer)
    assert trajectory.reward.total == 1.0
    judge = by_role(trajectory)["judge good"]
    assert (judge.requests, judge.failed) == (3, 2)
    assert judge.completion_tokens == 2 + 2 + len(verdict().split())


def test_a_judge_that_never_answers_well_has_still_cost_what_it_has(tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(body: Mapping[str, Any]) -> Any:
        if body["model"] == "policy":
            return "hello"
        asked.append(body)
        return "no json"

    (trajectory,) = play(tmp_path, JUDGE % ", retries: 1", answer)
    assert trajectory.reward.total is None
    judge = by_role(trajectory)["judge good"]
    assert len(asked) >= 2
    assert (judge.requests, judge.failed, judge.completion_tokens) == (len(asked), len(asked), 2 * len(asked))


def test_empty_replies_of_users_and_tools_are_failed_tries(tmp_path: Path) -> None:
    # The model is asked again, beside a question that it has an answer to.
    replies = ["", "###", "###"]

    def answer(body: Mapping[str, Any]) -> Any:
        if body["model"] == "other":
            return replies.pop(0)
        return call("ask", text="why") if len(body["messages"]) > 100 else "hello"

    (trajectory,) = play(tmp_path, USER + RULE, answer)
    assert (by_role(trajectory)["user"].requests, by_role(trajectory)["user"].failed) == (3, 1)

    def asking(body: Mapping[str, Any]) -> Any:
        if body["model"] == "other":
            return ""
        return call("ask", text="why") if len(body["messages"]) == 1 else "<answer>5</answer>"

    (trajectory,) = play(tmp_path, TOOL + RULE, asking)
    assert (by_role(trajectory)["tool ask"].requests, by_role(trajectory)["tool ask"].failed) == (1, 1)


def test_an_answer_without_usage_is_one_of_unknown_tokens(tmp_path: Path) -> None:
    said = {"choices": [{"message": {"role": "assistant", "content": "hello"}}]}
    half = {**said, "usage": {"prompt_tokens": 4}}
    for body in (said, half):
        (trajectory,) = play(tmp_path, RULE, lambda _, body=body: Reply(200, body))  # type: ignore[misc]
        (usage,) = trajectory.usage
        assert (usage.requests, usage.failed, usage.unknown) == (1, 0, 1)
        assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


def test_what_a_server_kept_and_what_it_thought_are_parts_of_its_sums(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 70},  # more than there are
    }
    answer = {"choices": [{"message": {"role": "assistant", "content": "hello"}}], "usage": usage}
    (trajectory,) = play(tmp_path, RULE, lambda _: Reply(200, answer))
    (found,) = trajectory.usage
    assert (found.prompt_tokens, found.cached_tokens) == (100, 80)
    assert (found.completion_tokens, found.reasoning_tokens) == (50, 50)


def test_episodes_at_once_on_one_client_are_never_mixed(tmp_path: Path) -> None:
    arrived = 0
    together = asyncio.Event()

    async def answer(body: Mapping[str, Any]) -> Any:
        nonlocal arrived
        if body["model"] == "judge":
            return verdict()
        arrived += 1
        if arrived == TASKS:  # all are in flight together before the first is answered
            together.set()
        await together.wait()
        return " ".join("w" * (int(last(body).removeprefix("Task ")) + 1))

    played = play(tmp_path, JUDGE % "", answer, jobs=TASKS)
    for task, trajectory in enumerate(played):
        found = by_role(trajectory)
        assert (found["policy"].requests, found["policy"].completion_tokens) == (1, task + 1)
        assert (found["judge good"].requests, found["judge good"].cached) == (1, 0)


def test_a_verdict_that_several_wait_for_is_counted_once(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return "the same" if body["model"] == "policy" else verdict()

    played = play(tmp_path, JUDGE % "", answer, samples=8)
    judges = [by_role(one)["judge good"] for one in played]
    assert sum(one.requests for one in judges) == 1
    assert sum(one.cached for one in judges) == 7
    assert all(one.prompt_tokens == 0 for one in judges if one.cached)


def test_what_an_agent_asks_is_its_own_and_the_outer_episodes(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        many = len(body["messages"])
        if body["model"] == "policy":
            return call("helper", question="2 + 3") if many == 1 else "<answer>5</answer>"
        if body["model"] == "judge":
            return "five"
        return call("deep", text="2 + 3") if many == 1 else "<answer>5</answer>"

    above = Account()
    (trajectory,) = play(tmp_path, AGENT + RULE, answer, above=above)
    found = {role: (one.model, one.requests) for role, one in by_role(trajectory).items()}
    assert found == {
        "policy": ("policy", 2),
        "agent helper > policy": ("other", 2),
        "agent helper > tool deep": ("judge", 1),
    }
    nested = record.nested(trajectory.turns[0].results[0])
    assert nested is not None
    assert {one.role: one.requests for one in nested.usage} == {"policy": 2, "tool deep": 1}
    assert above.entries() == trajectory.usage


def test_a_rescored_episode_holds_what_was_asked_then_as_recorded(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return "hello" if body["model"] == "policy" else verdict()

    before = play(tmp_path, JUDGE % "", answer)

    async def main() -> list[Trajectory]:
        async with FakeEndpoint(answer) as server:
            spec = HEAD.replace("ADDRESS", server.base_url) % ROWS + JUDGE % ""
            (tmp_path / "again.yaml").write_text(spec)
            environment = load(tmp_path / "again.yaml")
            async with environment:
                once = await rescore(environment, before)
                return [*once, *(await rescore(environment, once))]

    once, twice = asyncio.run(asyncio.wait_for(main(), 60))
    made = {(one.role, one.is_recorded): (one.requests, one.cached) for one in once.usage}
    assert made == {("policy", True): (1, 0), ("judge good", True): (1, 0), ("judge good", False): (1, 0)}
    made = {(one.role, one.is_recorded): (one.requests, one.cached) for one in twice.usage}
    assert made == {("policy", True): (1, 0), ("judge good", True): (2, 0), ("judge good", False): (0, 1)}


def test_a_tool_that_a_term_asks_is_named_below_the_term(tmp_path: Path) -> None:
    spec = TOOL + "rewards: {said: {kind: verify, tool: ask, arguments: {text: why}, expect: '5'}}\n"

    def answer(body: Mapping[str, Any]) -> Any:
        return "<answer>5</answer>" if body["model"] == "policy" else "5"

    (trajectory,) = play(tmp_path, spec, answer)
    assert by_role(trajectory)["term said > tool ask"].requests == 1
