"""A prompt that another model answers, against a real server on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import compile_endpoint
from rlenv.episodes.environment import load
from rlenv.errors import EndpointError, SpecError, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import EndpointSpec
from rlenv.messages import Image, Message, ToolCall, ToolResult
from rlenv.runs import files as record
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from rlenv.testing.tools import call, context
from rlenv.tools.base import Tool, ToolContext
from rlenv.tools.model import MODEL as KIND
from rlenv.tools.model import ModelSpec
from rlenv.trajectory import Trajectory

PNG = base64.b64encode(b"\x89PNG").decode()
BASE: dict[str, Any] = {
    "kind": "model",
    "endpoint": "writer",
    "prompt": "Summarise:\n{{ args.text }}",
    "parameters": {"text": "string", "style": "string?"},
}


def compiled(base_url: str, base: Path = Path(), *, retries: int = 0, **keys: Any) -> Tool:
    endpoint = compile_endpoint("writer", EndpointSpec(base_url=base_url, model="toy", retries=retries))
    within = CompileContext(base, {"tone": "dry"}, endpoints={"writer": endpoint})
    (tool,) = KIND.factory("summarise", ModelSpec(**{**BASE, **keys}), within)
    assert isinstance(tool, Tool)
    return tool


def asked(
    answers: Any,
    arguments: Mapping[str, Any],
    *,
    base: Path = Path(),
    task: Mapping[str, Any] | None = None,
    **keys: Any,
) -> tuple[ToolResult, FakeEndpoint]:
    async def work() -> tuple[ToolResult, FakeEndpoint]:
        async with FakeEndpoint(answers) as server:
            shared = Scope()
            given = context(task=task)
            within = ToolContext(given.task, {}, given.deadline, 0, Scope, lambda: shared)
            try:
                return await call(compiled(server.base_url, base, **keys), arguments, within=within), server
            finally:
                await shared.aclose()

    return asyncio.run(asyncio.wait_for(work(), 60))


def test_what_the_model_thinks_is_no_part_of_its_answer() -> None:
    result, _ = asked(["<think>not short</think>\nshort"], {"text": "long"})
    assert (result.text, result.value) == ("short", "short")
    result, _ = asked(["<think>not sho"], {"text": "long"})
    assert (result.reason, result.whose) == ("server_error", "unclear")


def test_the_answer_is_the_text_and_the_value() -> None:
    result, server = asked(
        ["short"], {"text": "long {{ vars.tone }}"}, system="Be {{ vars.tone }}.", sampling={"max_tokens": 9}
    )
    assert (result.outcome, result.text, result.value) == ("ok", "short", "short")
    system, user = server.requests[0]["messages"]
    assert system["content"] == "Be dry."
    assert user["content"] == "Summarise:\nlong {{ vars.tone }}"
    assert server.requests[0]["max_tokens"] == 9
    assert result.details is not None
    assert result.details["usage"]["completion_tokens"] == 1


def test_an_argument_that_was_left_out_is_an_empty_text() -> None:
    _, server = asked(["short"], {"text": "a"}, prompt="{{ args.text }}|{{ args.style }}|")
    assert server.requests[0]["messages"][0]["content"] == "a||"


def test_images_are_sent_and_those_of_the_answer_are_the_results(tmp_path: Path) -> None:
    (tmp_path / "map.png").write_bytes(b"\x89PNG")
    image = Image("image/png", PNG)
    result, server = asked(
        [Message("assistant", "drawn", images=(image,))],
        {"text": f"data:image/png;base64,{PNG}"},
        base=tmp_path,
        task={"file": "map.png"},
        images=["{{ args.text }}", "{{ task.file }}"],
    )
    assert (result.text, result.images) == ("drawn", (image,))
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert server.requests[0]["messages"][0]["content"][:-1] == [url, url]


def test_a_model_never_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "map.png").write_bytes(b"\x89PNG")
    result, server = asked(["seen"], {"text": "map.png"}, base=tmp_path, images=["{{ args.text }}"])
    assert result.outcome == "bad_arguments"
    assert "data URL" in result.text
    assert server.requests == []


@pytest.mark.parametrize(
    ("reply", "says"),
    [(Reply(503, "down: 10.0.0.1"), "not available"), (Reply(413, "big"), "too long"), ("", "empty answer")],
)
def test_a_server_that_fails_is_the_tools_failure(reply: Any, says: str) -> None:
    result, _ = asked([reply], {"text": "a"})
    assert result.outcome == "failed"
    assert says in result.text
    assert "10.0.0.1" not in result.text


@pytest.mark.parametrize(("status", "keys"), [(401, {}), (404, {}), (503, {"on_failure": "invalid"})])
def test_a_server_that_cannot_be_used_at_all_makes_the_reward_invalid(status: int, keys: dict[str, Any]) -> None:
    with pytest.raises(EndpointError, match=str(status)):
        asked([Reply(status, "no")], {"text": "a"}, **keys)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_text_that_a_working_server_refuses_does_not_mask_its_episode(status: int) -> None:
    async def answer(body: dict[str, Any]) -> Any:
        return Reply(status, "filtered") if body["messages"][-1]["content"][-1] == "a" else "yes"

    result, _ = asked(answer, {"text": "a"})
    assert (result.outcome, result.whose) == ("failed", "unclear")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"endpoint": "writr"}, "endpoint: there is no endpoint 'writr'; did you mean 'writer'"),
        ({"prompt": "{{ args.txt }}"}, "prompt: there is no parameter 'txt'; did you mean 'args.text'"),
        ({"prompt": "{{ arg.text }}"}, "prompt: 'arg' is not known here; did you mean 'args'"),
        ({"system": "{{ oops"}, "system: the template cannot be read"),
        ({"parameters": {"text": "strong"}}, "parameters.text: parameter 'text' has type"),
    ],
)
def test_an_authors_mistake_says_what_to_change(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as failed:
        compiled("http://127.0.0.1:9/v1", **keys)
    assert says in str(failed.value)


def test_a_model_is_given_the_time_of_its_endpoint() -> None:
    assert compiled("http://127.0.0.1:9/v1").timeout_s == 60.0
    assert compiled("http://127.0.0.1:9/v1", timeout_s=3.0).timeout_s == 3.0


def test_a_request_that_is_too_long_is_the_policys_and_never_sent() -> None:
    result, server = asked(["short"], {"text": "\U0001f600" * 70_000})
    assert (result.outcome, result.reason, result.whose) == ("failed", "too_large", "policy")
    assert "65,536" in result.text
    assert not server.requests


# Another spec as a tool: nested episodes, their limits and their records, against a server on loopback

OUTER = """
rlenv: 1
name: outer
tasks: {train: {rows: [{question: "2 + 3", hint: add}]}}
prompt: {user: "{{ task.question }}"}
endpoints:
  writer: {base_url: "${env:RLENV_TEST_WRITER}", model: toy, retries: 0}
tools:
  helper: {kind: agent, spec: inner.yaml, endpoint: writer%s}
limits: {turns: 3}
rewards: {answered: {kind: rule, rule: answered}}
"""
INNER = """
rlenv: 1
name: inner
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "Solve {{ task.question }}"}
tools: {calculate: {kind: calculator}}
limits: {turns: 5, episode_s: 20}
rewards: {answered: {kind: rule, rule: answered}}
"""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Trajectory, FakeEndpoint]]:
    """Calls the agent once and answers with what it said."""

    def played(
        answers: Any, keys: str = "", *, inner: str = INNER, outer: str = OUTER
    ) -> tuple[Trajectory, FakeEndpoint]:
        (tmp_path / "outer.yaml").write_text(outer % keys, encoding="utf-8")
        (tmp_path / "inner.yaml").write_text(inner, encoding="utf-8")

        async def main() -> tuple[Trajectory, FakeEndpoint]:
            async with FakeEndpoint(answers) as server:
                monkeypatch.setenv("RLENV_TEST_WRITER", server.base_url)
                environment = load(tmp_path / "outer.yaml")
                async with environment, environment.start(seed=5) as episode:
                    step = await episode.step(Message("assistant", "", (ToolCall("helper", {"question": "2 + 3"}),)))
                    if not step.is_last:
                        await episode.step(f"<answer>{step.observation.messages[0].content}</answer>")
                    return episode.trajectory, server

        return asyncio.run(asyncio.wait_for(main(), 60))

    return played


def calculation(identity: str) -> Message:
    return Message("assistant", "", (ToolCall("calculate", {"expression": "2+3"}, identity),))


def test_the_agents_answer_is_the_result_and_its_trajectory_is_kept(play: Any) -> None:
    trajectory, server = play([calculation("c"), "It is <answer>5</answer>"])
    assert trajectory.answer == "5"
    (result,) = trajectory.turns[0].results
    assert (result.outcome, result.text, result.value) == ("ok", "5", "5")
    kept = record.parse(record.dump(trajectory))
    assert kept == trajectory
    nested = record.nested(kept.turns[0].results[0])
    assert nested is not None
    assert (nested.environment, nested.answer, nested.calls) == ("inner-v0", "5", 1)
    assert nested.messages[0].content == "Solve 2 + 3"
    assert nested.turns[0].results[0].text == "5"
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["calculate"]


def test_a_result_without_an_agent_has_no_nested_trajectory(play: Any) -> None:
    trajectory, _ = play(["<answer>5</answer>"])
    nested = record.nested(trajectory.turns[0].results[0])
    assert nested is not None
    assert all(record.nested(result) is None for turn in nested.turns for result in turn.results)


def test_the_last_message_counts_where_there_is_no_answer(play: Any) -> None:
    trajectory, _ = play(["I believe it is five."])
    assert trajectory.answer == "I believe it is five."


def test_the_agents_task_can_be_written_from_arguments_and_task(play: Any) -> None:
    keys = ', parameters: {question: string}, task: {question: "{{ task.hint }}: {{ args.question }}"}'
    _, server = play(["<answer>5</answer>"], keys)
    assert server.requests[0]["messages"][-1]["content"] == "Solve add: 2 + 3"


@pytest.mark.parametrize("rule", ["answered", "exact_match"], ids=["measured", "without gold"])
@pytest.mark.parametrize("on_failure", ["tell", "invalid"])
def test_the_agent_keeps_its_own_limits(play: Any, on_failure: str, rule: str) -> None:
    keys, inner = f", turns: 2, on_failure: {on_failure}", INNER.replace("rule: answered", f"rule: {rule}")
    trajectory, server = play([calculation(str(n)) for n in range(9)], keys, inner=inner)
    (result,) = trajectory.turns[0].results
    assert (result.outcome, result.whose, trajectory.failure) == ("failed", "policy", None)
    assert result.text == "the agent helper gave no answer within its limits (turns)"
    assert len(server.requests) == 2
    nested = record.nested(result)
    assert nested is not None
    assert nested.reason == "turns"


@pytest.mark.parametrize("rule", ["answered", "exact_match"], ids=["measured", "without gold"])
@pytest.mark.parametrize("reason", ["failed", "unavailable", "server_error"])
def test_an_agent_whose_tool_was_away_has_not_failed_by_what_it_was_asked(
    play: Any, tmp_path: Path, reason: str, rule: str
) -> None:
    lines = ["from rlenv.errors import ToolFailed", "def calculate(expression: str) -> str:"]
    (tmp_path / "away.py").write_text("\n".join([*lines, f"    raise ToolFailed('no', reason='{reason}')"]))
    inner = INNER.replace("kind: calculator", "kind: python, function: 'away.py:calculate'")
    trajectory, _ = play([calculation("c")], ", turns: 2", inner=inner.replace("rule: answered", f"rule: {rule}"))
    (result,) = trajectory.turns[0].results
    whose = "policy" if reason == "failed" else "unclear"  # who asks may have the agent fell what its tools ask
    assert (result.outcome, result.whose) == ("failed", whose)


def test_an_agent_whose_tool_was_back_has_failed_by_itself(play: Any, tmp_path: Path) -> None:
    lines = ["from rlenv.errors import ToolFailed", "def calculate(expression: str) -> str:"]
    lines += ["    if expression == 'no':"]
    lines += ["        raise ToolFailed('no', reason='late')", "    return '5'"]
    (tmp_path / "away.py").write_text("\n".join(lines))
    inner = INNER.replace("kind: calculator", "kind: python, function: 'away.py:calculate'")
    away = Message("assistant", "", (ToolCall("calculate", {"expression": "no"}, "a"),))
    for asked, whose in (([away, calculation("c")], "policy"), ([calculation("c"), away], "unclear")):
        (result,) = play(asked, ", turns: 2", inner=inner)[0].turns[0].results
        assert (result.outcome, result.whose) == ("failed", whose)


@pytest.mark.parametrize(
    ("is_well", "text"), [(True, "did not answer within its time"), (False, "is not available at the moment")]
)
def test_an_agents_own_time_ends_it_however_long_its_call_may_take(play: Any, is_well: bool, text: str) -> None:
    async def answer(body: dict[str, Any]) -> Any:
        return "Y" if body.get("max_tokens") == 1 and is_well else await never()

    inner = INNER.replace("episode_s: 20", "episode_s: 0.1")
    trajectory, _ = play(
        answer, ", timeout_s: 600", inner=inner, outer=OUTER.replace("retries: 0", "retries: 0, timeout_s: 1")
    )
    (result,) = trajectory.turns[0].results
    assert result.text == f"the agent helper {text}"


def test_a_call_that_is_out_of_time_keeps_what_the_agent_did(play: Any) -> None:
    async def answer(body: dict[str, Any]) -> Any:
        return calculation("c") if len(body["messages"]) == 1 else await never()

    for timeout_s in (0.5, 2.0, 8.0, 32.0):  # the first of them that its first turn fits in
        trajectory, _ = play(answer, f", timeout_s: {timeout_s}")
        (result,) = trajectory.turns[0].results
        assert result.outcome == "timeout"
        nested = record.nested(result)
        if nested is not None and nested.turns:
            assert nested.reason == "time"
            assert len(nested.turns) == 1
            break
    else:
        pytest.fail("no time was enough for a turn")


def test_a_server_that_fails_is_the_tools_failure_unless_the_spec_says_otherwise(play: Any) -> None:
    trajectory, _ = play([Reply(503, "down")])
    (result,) = trajectory.turns[0].results
    assert (result.outcome, result.text) == ("failed", "the agent helper is not available at the moment")
    assert trajectory.reward.total is not None
    trajectory, _ = play([Reply(503, "down")], ", on_failure: invalid")
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert "503" in trajectory.failure.message


@pytest.mark.parametrize(
    ("reply", "reason", "whose"),
    [
        (Reply(drops=True), "disconnected", "unclear"),
        (Reply(502, "no upstream"), "unavailable", "infrastructure"),
        (Reply(429, "busy"), "rate_limited", "unclear"),
        (Reply(500, "bug"), "server_error", "unclear"),
    ],
)
def test_a_failure_says_whether_the_server_had_the_request(reply: Reply, reason: str, whose: str, play: Any) -> None:
    found, _ = asked([reply], {"text": "a"})
    trajectory, _ = play([reply])
    (of_agent,) = trajectory.turns[0].results
    assert {(one.reason, one.whose) for one in (found, of_agent)} == {(reason, whose)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Solve {{ task.question }}", "{{ task.question.split(':')[1] }}"),
        ("turns: 5", 'turns: "{{ task.question }}"'),
        ("kind: calculator", "kind: calculator, offered: '{{ [task.question] }}'"),
        (
            "tools: {",
            """resources: {box: {kind: tempdir, path: "{{ task.question.split(':')[1] }}"}}\ntools: {""",
        ),
        ("tools: {", "resources: {db: {kind: sqlite, path: '{{ task.question[9] }}.db'}}\ntools: {"),
        ("tools: {", """user: {kind: scripted, replies: ["{{ task.question.split(':')[1] }}"]}\ntools: {"""),
    ],
)
def test_arguments_that_make_no_task_of_an_agents_are_the_policys_own_failure(old: str, new: str, play: Any) -> None:
    trajectory, server = play(["Which?"], ", on_failure: invalid", inner=INNER.replace(old, new))
    (result,) = trajectory.turns[0].results
    assert (result.reason, result.whose, len(server.requests)) == ("bad_arguments", "policy", int("user:" in new))
    assert trajectory.reward.total is not None


def test_an_agent_may_be_asked_in_raw_text(play: Any) -> None:
    call = json.dumps({"name": "calculate", "arguments": {"expression": "2+3"}})
    trajectory, server = play([f"<tool_call>\n{call}\n</tool_call>", "<answer>5</answer>"], ", mode: text")
    assert trajectory.answer == "5"
    assert server.requests[1]["prompt"].count("<|im_start|>") > 3


def test_specs_that_call_each_other_in_a_circle_are_refused(play: Any) -> None:
    circle = INNER.replace(
        "tools: {calculate: {kind: calculator}}",
        'endpoints: {w: {base_url: "http://127.0.0.1:9/v1", model: toy}}\n'
        "tools: {up: {kind: agent, spec: outer.yaml, endpoint: w}}",
    )
    with pytest.raises(SpecError, match=r"in a circle: outer\.yaml -> inner\.yaml -> outer\.yaml"):
        play(["a"], inner=circle)


@pytest.mark.parametrize(
    ("keys", "inner", "says"),
    [
        ("", INNER.replace("calculator", "calculater"), "did you mean 'calculator'"),
        (", task: {question: '{{ args.qestion }}'}", INNER, "there is no parameter 'qestion'"),
        (", turns: 0", INNER, "expected a number of 1 or more"),
    ],
)
def test_an_authors_mistake_says_where(play: Any, keys: str, inner: str, says: str) -> None:
    with pytest.raises(SpecError) as failed:
        play(["a"], keys, inner=inner)
    assert says in str(failed.value)
