"""Ids and log-probabilities of servers: every form is read, and nothing that is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlenv.endpoints.sampled import SampledTokens, tokens_of
from rlenv.episodes.rollout import Job, play
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Sampled
from rlenv.policies.openai import OpenAIPolicy
from rlenv.runs.replay import replay
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.trajectory import Trajectory

CONTENT = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:8", "logprob": -1}]
TRIPLES = [[-0.5, 7, None], [-1.0, 8, None]]
BOTH = SampledTokens((7, 8), (), (-0.5, -1.0))


@pytest.mark.parametrize(
    ("answer", "choice", "tokens"),
    [
        ({}, {}, None),
        ({"prompt_token_ids": [1, 2]}, {"token_ids": [7, 8]}, SampledTokens((7, 8), (1, 2))),
        ({}, {"token_ids": [7, 8], "prompt_token_ids": [1, 2]}, SampledTokens((7, 8), (1, 2))),
        ({}, {"token_ids": [7, 8], "logprobs": {"content": CONTENT}}, BOTH),
        ({}, {"logprobs": {"content": CONTENT}}, BOTH),
        ({}, {"logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}, SampledTokens((), (), (-0.5,))),
        ({}, {"logprobs": {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-0.5, -1.0]}}, BOTH),
        ({}, {"meta_info": {"output_token_logprobs": TRIPLES}}, BOTH),
        ({}, {"meta_info": {"output_token_logprobs": TRIPLES}, "logprobs": {"content": CONTENT}}, BOTH),
    ],
)
def test_every_form_is_read(answer: dict[str, Any], choice: dict[str, Any], tokens: SampledTokens | None) -> None:
    assert tokens_of(answer, choice) == tokens


@pytest.mark.parametrize("ids", ["7", [True, 1], [1.0], [-1], [2**40], {"0": 1}, [None], [[1]]])
@pytest.mark.parametrize(
    "logprobs",
    [5, {}, {"content": [None, 3]}, {"token_logprobs": [float("nan")]}, {"token_logprobs": [-(10**400)]}, []],
)
def test_what_is_no_list_of_numbers_is_nothing(ids: Any, logprobs: Any) -> None:
    meta = {"output_token_logprobs": [[], ["a", "b"], 3]}
    choice = {"token_ids": ids, "prompt_token_ids": ids, "logprobs": logprobs, "meta_info": meta}
    assert tokens_of({"prompt_token_ids": ids}, choice) is None


def test_of_lists_that_do_not_fit_each_other_the_ids_are_kept() -> None:
    assert tokens_of({}, {"token_ids": [7, 8, 9], "logprobs": {"content": CONTENT}}) == SampledTokens((7, 8, 9))


ASKED = {
    "vllm": {"return_token_ids": True, "logprobs": True},
    "vllm_names": {"return_tokens_as_token_ids": True, "logprobs": True},
    "sglang": {"return_meta_info": True, "return_prompt_token_ids": True, "logprobs": True},
    "openai": {"logprobs": True},
    "nothing": {},
}
SAID = Sampled("<answer>5</answer>", token_ids=(5, 6), logprobs=(-0.25, -2.5), prompt_token_ids=(1, 2, 3))


async def _played(environment: Any, asked: dict[str, Any], mode: Any, said: Sampled | Reply = SAID) -> Trajectory:
    async with FakeEndpoint([said]) as server:
        policy = OpenAIPolicy(server.base_url, "m", mode=mode, sampling=SamplingSpec(extra=asked))
        try:
            return await play(environment, policy, Job("train", 0))
        finally:
            await policy.aclose()


@pytest.mark.parametrize("mode", ["tools", "text"])
@pytest.mark.parametrize("server", ASKED)
def test_a_turn_holds_what_its_server_gave(server: str, mode: str, make_environment: Any) -> None:
    turn = asyncio.run(_played(make_environment(), ASKED[server], mode)).turns[0]
    knows_ids, knows_prompt = server not in ("openai", "nothing"), server in ("vllm", "sglang")
    assert turn.token_ids == (SAID.token_ids if knows_ids else ())
    assert turn.prompt_token_ids == (SAID.prompt_token_ids if knows_prompt else ())
    assert turn.logprobs == (SAID.logprobs if server != "nothing" else ())


def test_the_longest_answer_that_models_give_is_read_with_all_that_vllm_says_of_it(make_environment: Any) -> None:
    """Were it too much, a policy would be left out of training by thinking long."""
    ids, before = list(range(64_000)), list(range(128_000))
    content = [{"token": " a,b", "logprob": -0.5, "bytes": [32, 97, 44, 98], "top_logprobs": []} for _ in ids]
    choice = {"message": {"content": "x " * 64_000}, "token_ids": ids, "logprobs": {"content": content}}
    said = Reply(200, {"choices": [choice], "prompt_token_ids": before})
    trajectory = asyncio.run(_played(make_environment(), ASKED["vllm"], "tools", said))
    assert trajectory.failure is None
    turn = trajectory.turns[0]
    assert (len(turn.prompt_token_ids), len(turn.token_ids), len(turn.logprobs)) == (128_000, 64_000, 64_000)


def test_an_episode_that_is_played_again_keeps_them(make_environment: Any) -> None:
    environment = make_environment()

    async def main() -> tuple[Trajectory, Any]:
        trajectory = await _played(environment, ASKED["vllm"], "tools")
        return trajectory, (await replay(environment, [trajectory]))[0]

    trajectory, again = asyncio.run(main())
    assert again.again.turns[0].logprobs == trajectory.turns[0].logprobs == SAID.logprobs
    assert again.again.turns[0].prompt_token_ids == SAID.prompt_token_ids
