"""The endpoint policy in raw text, against a server with a completion server's own defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from rlenv.endpoints import Client, Endpoint
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import EndpointError
from rlenv.language.spec import SamplingSpec
from rlenv.policies.openai import MAX_TOKENS, OpenAIPolicy
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.trajectory import Trajectory

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'
ANSWER = "<answer>5</answer>"
THOUGHT = "Two and three are to be added, which a calculator does best, and so I write it a call: "
"""More tokens than a completion server writes where it is not told how many."""


def play(
    environment: Any, answers: Iterable[Any], *, mode: Any = "text", sampling: SamplingSpec | None = None, **server: Any
) -> tuple[Trajectory, FakeEndpoint]:
    async def main() -> tuple[Trajectory, FakeEndpoint]:
        async with FakeEndpoint(answers, **server) as fake:
            policy = OpenAIPolicy(fake.base_url, "toy", mode=mode, sampling=sampling, retries=0)
            try:
                (trajectory,) = await rollout(environment, policy, [Job("train", 0, 3)])
            finally:
                await policy.aclose()
            return trajectory, fake

    return asyncio.run(asyncio.wait_for(main(), 60))


def complete(answers: Iterable[Any], *, server: Mapping[str, Any] | None = None, **asked: Any) -> Any:
    async def main() -> Any:
        async with FakeEndpoint(answers, **(server or {})) as fake:
            client = Client(Endpoint(name="writer", base_url=fake.base_url, model="toy", retries=0))
            try:
                found = await client.raw_text.complete("Once upon a time", **{"max_tokens": 100, **asked})
            finally:
                await client.aclose()
            return found, fake

    return asyncio.run(asyncio.wait_for(main(), 60))


# Limits


def test_an_action_is_whole_though_nobody_gave_a_limit(make_environment: Any) -> None:
    trajectory, server = play(make_environment(), [THOUGHT + CALL, ANSWER])
    assert trajectory.success is True
    assert trajectory.turns[0].action == THOUGHT + CALL
    assert [request["max_tokens"] for request in server.requests] == [MAX_TOKENS, MAX_TOKENS]


def test_the_samplings_limit_wins_and_a_cut_action_is_told_so(make_environment: Any) -> None:
    trajectory, server = play(make_environment(), [THOUGHT + CALL, ANSWER], sampling=SamplingSpec(max_tokens=12))
    assert server.requests[0]["max_tokens"] == 12
    assert trajectory.turns[0].finish_reason == "length"


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_the_episodes_own_limit_counts_all_that_stands_behind_the_prompt(make_environment: Any, mode: str) -> None:
    environment = make_environment(limits__response_tokens=100)
    _, server = play(environment, [THOUGHT + CALL, ANSWER], mode=mode)
    first, second = (request["max_tokens"] for request in server.requests)
    said = len((THOUGHT + CALL).split())
    assert first == 100
    assert 0 < second <= 100 - said


def test_what_a_tool_gave_counts_before_the_server_has_read_it(make_environment: Any) -> None:
    environment = make_environment(limits__response_tokens=500, tools__calculate__description="It gives a lot.")
    call = CALL.replace("2+3", "10**300")
    _, server = play(environment, [call, ANSWER])
    digits = 301
    assert server.requests[1]["max_tokens"] == 500 - len(call.split()) - digits // 4


def test_an_episode_without_room_for_an_action_ends_by_its_limit_and_asks_nobody(make_environment: Any) -> None:
    environment = make_environment(limits__response_tokens=200)
    usage = {"prompt_tokens": 50, "completion_tokens": 200}
    body = {"choices": [{"text": CALL, "finish_reason": "stop"}], "usage": usage}
    trajectory, server = play(environment, [Reply(200, body), ANSWER])
    assert len(server.requests) == 1
    assert trajectory.reward.total is not None
    assert [turn.finish_reason for turn in trajectory.turns] == ["stop", "length"]


def test_a_limit_that_nobody_gave_is_lowered_to_what_the_context_has_left(make_environment: Any) -> None:
    trajectory, server = play(make_environment(), [THOUGHT + CALL, ANSWER], context=400)
    assert trajectory.success is True
    assert server.counted == 2
    asked = [request["max_tokens"] for request in server.requests]
    # Once refused, the server is asked for its room first.
    assert asked[0] == MAX_TOKENS
    assert 0 < asked[2] < asked[1] < 400
    assert len(asked) == 3


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_a_limit_that_was_asked_for_is_lowered_as_well(make_environment: Any, mode: str) -> None:
    sampling = SamplingSpec(max_tokens=399)
    trajectory, server = play(make_environment(), [ANSWER], mode=mode, context=400, sampling=sampling)
    assert trajectory.success is True
    asked = [request["max_tokens"] for request in server.requests]
    assert asked[0] == 399
    # The one beside the other fills the context.
    assert len(asked) == 2
    assert asked[1] == 400 - server.most_counted


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_the_least_number_of_tokens_comes_down_with_the_limit(make_environment: Any, mode: str) -> None:
    sampling = SamplingSpec(max_tokens=399, extra={"min_tokens": 390})
    trajectory, server = play(make_environment(), [ANSWER], mode=mode, context=400, sampling=sampling)
    assert trajectory.success is True
    first, second = server.requests
    assert (first["max_tokens"], first["min_tokens"]) == (399, 390)
    assert second["min_tokens"] == second["max_tokens"] == 400 - server.most_counted


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_a_prompt_that_is_too_long_is_refused_and_no_number(make_environment: Any, mode: str) -> None:
    trajectory, server = play(make_environment(), [ANSWER], mode=mode, context=5)
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "refused"
    assert f"5 tokens of context, and {server.most_counted - 5} more in the prompt" in trajectory.failure.message
    assert len(server.requests) == 1


@pytest.mark.parametrize(("mode", "context"), [("text", 137), ("tools", 50)])
def test_a_policy_that_fills_the_context_with_its_words_is_scored(
    make_environment: Any, mode: str, context: int
) -> None:
    trajectory, server = play(make_environment(), [THOUGHT + CALL, ANSWER], mode=mode, context=context)
    assert trajectory.turns[0].action == THOUGHT + CALL
    assert [turn.finish_reason for turn in trajectory.turns[1:]] == ["length"] * (len(trajectory.turns) - 1)
    assert trajectory.reward.total == 0.0
    assert trajectory.success is False
    assert server.counted >= 1


def test_a_server_that_does_not_count_refuses_as_it_does(make_environment: Any) -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return Reply(400, "too long") if body["max_tokens"] > 50 else ANSWER

    trajectory, server = play(make_environment(), answer, sampling=SamplingSpec(max_tokens=60))  # type: ignore[arg-type]
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "refused"
    assert len(server.requests) == 1


FULL = (
    "This model's maximum context length is 400 tokens. However, you requested 500 tokens",
    "The input (500 tokens) is longer than the model's context length (400 tokens).",
    "Requested token count exceeds the model's maximum context length of 400 tokens",
    "Input length (500 tokens) exceeds the maximum allowed length (400 tokens)",
    "The decoder prompt (length 500) is longer than the maximum model length of 400",
    '{"error": {"code": "context_length_exceeded"}}',
    "`inputs` tokens + `max_new_tokens` must be <= 400. Given: 500 `inputs` tokens",
    "the request exceeds the available context size, try increasing it",
)


@pytest.mark.parametrize("mode", ["text", "tools"])
@pytest.mark.parametrize("told", [*FULL, "the rollout was stopped"])
def test_a_policy_that_fills_the_context_of_a_server_that_does_not_count_is_scored_too(
    make_environment: Any, mode: str, told: str
) -> None:
    trajectory, _ = play(make_environment(), [THOUGHT + CALL, Reply(400, told)], mode=mode)
    assert trajectory.reward.total == (0.0 if told in FULL else None)
    assert trajectory.failure is None or trajectory.failure.reason == "refused"
    trajectory, _ = play(make_environment(), [Reply(400, told)], mode=mode)  # nobody's words but the author's
    assert trajectory.failure is not None


def test_in_chat_nothing_is_limited_that_nobody_limits(make_environment: Any) -> None:
    _, server = play(make_environment(), [ANSWER], mode="tools")
    assert "max_tokens" not in server.requests[0]


# Control tokens


def test_marks_that_are_control_tokens_are_read(make_environment: Any) -> None:
    special = ("<tool_call>", "</tool_call>")
    trajectory, server = play(make_environment(), [CALL, ANSWER], special=special)
    assert trajectory.success is True
    assert trajectory.turns[0].results[0].text == "5"
    assert server.requests[0]["skip_special_tokens"] is False
    assert server.requests[0]["spaces_between_special_tokens"] is False


def test_a_turn_ends_at_the_templates_mark_though_the_model_names_another_end_token(make_environment: Any) -> None:
    # The server stops at <|endoftext|>, the template ends turns with <|im_end|>: the next turn is nobody's.
    trajectory, server = play(make_environment(), [f"{ANSWER}<|im_end|>\n<|im_start|>user\nMore", ANSWER])
    assert trajectory.turns[0].action == ANSWER
    assert server.requests[0]["stop"] == ["<|im_end|>"]


@pytest.mark.parametrize(
    ("dialect", "adds"),
    [
        ("hermes", True),
        ("llama3_json", False),
        ({"base": "hermes", "chat_template": {"file": "", "stop": "<end>"}}, False),
    ],
    ids=["left to the tokenizer", "the family's own mark", "a chat template"],
)
def test_the_mark_that_begins_a_conversation_stands_once(
    make_environment: Any, tmp_path: Any, dialect: Any, adds: bool
) -> None:
    (tmp_path / "chat.jinja").write_text(
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    if not isinstance(dialect, str):
        dialect["chat_template"]["file"] = str(tmp_path / "chat.jinja")
    _, server = play(make_environment(dialect=dialect), [ANSWER])
    assert server.requests[0]["add_special_tokens"] is adds
    assert server.requests[0]["stop"] == [
        {"hermes": "<|im_end|>", "llama3_json": "<|eot_id|>"}.get(str(dialect), "<end>")
    ]


# One growing text


def test_an_action_ends_behind_the_text_that_the_server_stopped_at(make_environment: Any) -> None:
    trajectory, _ = play(make_environment(dialect="search_r1"), ["It is 5. <answer>5</answer> And then?"])
    assert trajectory.turns[0].action == "It is 5. <answer>5</answer>"
    assert trajectory.success is True


def test_a_turn_that_ends_by_itself_holds_no_end_token(make_environment: Any) -> None:
    trajectory, _ = play(make_environment(dialect="search_r1"), ["I do not know.<|endoftext|>"])
    assert trajectory.turns[0].action == "I do not know."


def test_a_server_that_does_not_say_where_it_stopped_is_refused_not_guessed_at(make_environment: Any) -> None:
    trajectory, _ = play(make_environment(dialect="search_r1"), [ANSWER], says_stops=False)
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert "the server does not say at which text it stopped (</search> or </answer>" in trajectory.failure.message


def test_stop_texts_of_the_author_end_an_action_and_are_not_part_of_it() -> None:
    own = SamplingSpec(stop=("STOP",))
    found, server = complete(["so STOP </a> on"], stops=("</a>",), sampling=own)
    assert server.requests[0]["stop"] == ["</a>", "STOP"]
    assert (found.message.content, found.stopped_at) == ("so ", "STOP")
    found, server = complete(["so <end> on"], ends=("<end>",), sampling=own)
    assert server.requests[0]["stop"] == ["<end>", "STOP"]
    assert found.message.content == "so "


@pytest.mark.parametrize(
    ("choice", "stopped_at"),
    [
        ({"stop_reason": "</a>"}, "</a>"),
        ({"stop_reason": None}, ""),
        ({"stop_reason": 151645}, ""),
        ({"matched_stop": "</a>"}, "</a>"),
        ({"matched_stop": 2}, ""),
    ],
    ids=["vLLM, a text", "vLLM, the end", "vLLM, an id", "SGLang, a text", "SGLang, an id"],
)
def test_what_servers_say_of_where_they_stopped(choice: dict[str, Any], stopped_at: str) -> None:
    body = {"choices": [{"text": "word ", "finish_reason": "stop", **choice}]}
    found, _ = complete([Reply(200, body)], stops=("</a>",))
    assert found.message.content == "word " + stopped_at
    assert found.stopped_at == stopped_at


# Servers that do not know the fields


def strict(body: Mapping[str, Any]) -> Any:
    unknown = sorted(set(body) - {"model", "prompt", "max_tokens", "seed", "stop"})
    return Reply(400, f"unknown field {unknown[0]}") if unknown else ANSWER


def test_a_server_that_refuses_a_field_is_named_with_the_way_out(make_environment: Any) -> None:
    trajectory, server = play(make_environment(), strict)  # type: ignore[arg-type]
    assert trajectory.failure is not None
    assert "unknown field add_special_tokens" in trajectory.failure.message
    assert "`--extra skip_special_tokens=null`" in trajectory.failure.message
    left_out = dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"))
    trajectory, server = play(make_environment(), strict, sampling=SamplingSpec(extra=left_out))  # type: ignore[arg-type]
    assert trajectory.success is True
    assert set(server.requests[0]) == {"model", "prompt", "max_tokens", "seed", "stop"}


def test_a_later_refusal_says_nothing_of_the_fields() -> None:
    async def main() -> None:
        async with FakeEndpoint(["fine", Reply(400, "no")]) as fake:
            client = Client(Endpoint(name="writer", base_url=fake.base_url, model="toy", retries=0))
            try:
                await client.raw_text.complete("a", max_tokens=5)
                with pytest.raises(EndpointError) as failed:
                    await client.raw_text.complete("b", max_tokens=5)
            finally:
                await client.aclose()
            assert str(failed.value).endswith("the server answered 400: no")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_other_fields_are_sent_as_they_stand(make_environment: Any) -> None:
    extra = {"repetition_penalty": 1.0, "skip_special_tokens": True}
    for mode in ("text", "tools"):
        _, server = play(make_environment(), [ANSWER], mode=mode, sampling=SamplingSpec(extra=extra))
        assert extra.items() <= server.requests[0].items()
