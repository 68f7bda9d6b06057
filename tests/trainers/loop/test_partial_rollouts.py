"""Generations that a change of weights cuts: veRL's client asks again, and the episode goes on as if nothing was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainers.conftest import quiet
from tests.trainers.loops import CALL, SPEC, build, check_alignment, configuration, sample

ANSWER = "<answer>42</answer>"


class Remote:
    """A method of an actor, as Ray's handle has it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    async def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


class Released:
    """`release_server` is fired and forgotten."""

    def remote(self, **_fields: Any) -> None:
        return None


class Server:
    """A rollout server's handle: each request gets the next piece of the script, and its version of the weights."""

    def __init__(self, pieces: Sequence[tuple[list[int], str, int]]) -> None:
        self.pieces = list(pieces)
        self.prompts: list[list[int]] = []
        self.limits: list[int] = []
        self.generate = Remote(self._generate)

    def _generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_other: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.prompts.append(list(prompt_ids))
        self.limits.append(sampling_params["max_tokens"])
        ids, stop_reason, version = self.pieces.pop(0)
        # A probability of its own for each version, so that a token's can be told from the others'.
        return TokenOutput(
            token_ids=ids,
            log_probs=[-float(version)] * len(ids),
            stop_reason=stop_reason,
            num_preempted=0,
            extra_fields={"global_steps": version},
        )


class Balancer:
    """veRL's load balancer in front of one server."""

    def __init__(self, server: Any) -> None:
        self.require_acquire_fields = Remote(list)
        self.require_release_fields = Remote(list)
        self.acquire_server = Remote(lambda request_id: ("server", server))
        self.release_server = Released()


def play(tmp_path: Path, tokenizer: Any, server: Server) -> Any:
    """One episode through the loop, veRL's client of the asynchronous modes and `server`."""
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    config = configuration(name="transformers_cpu")

    async def played() -> Any:
        balancer: Any = Balancer(server)
        client = FullyAsyncLLMServerClient(config, load_balancer_handle=balancer)
        loop = build(config, client, tokenizer, spec=str(tmp_path / "spec.yaml"), turn_tokens=40)
        async with asyncio.timeout(60):
            return await sample(loop, step=8)

    return asyncio.run(played())


@pytest.fixture
def written(tokenizer: Any) -> Callable[[str], list[int]]:
    def ids(text: str) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    return ids


def test_a_cut_action_goes_on_under_the_new_weights(
    verl: Any, tmp_path: Path, tokenizer: Any, written: Callable[[str], list[int]]
) -> None:
    call, answer = written(CALL), written(ANSWER)
    cut = Server([(call[:3], "aborted", 4), (call[3:], "completed", 5), (answer, "completed", 6)])
    output = play(tmp_path, tokenizer, cut)
    check_alignment(output)
    assert output.reward_score == 1.0
    assert output.extra_fields["reward_extra_info"]["invalid"] == 0.0
    # Every sampled token is in it once, with the probability of the version that wrote it.
    sampled = [index for index, mask in enumerate(output.response_mask) if mask]
    assert [output.response_ids[index] for index in sampled] == call + answer
    versions = [-4.0] * 3 + [-5.0] * len(call[3:]) + [-6.0] * len(answer)
    assert [output.response_logprobs[index] for index in sampled] == versions
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (4, 6)
    # The second request is the first one's prompt and what was written, with the tokens that were left of the turn's.
    assert cut.prompts[1] == cut.prompts[0] + call[:3]
    assert cut.limits[:2] == [40, 37]


def test_a_request_that_a_server_turns_away_costs_nothing_but_a_second_try(
    verl: Any, tmp_path: Path, tokenizer: Any, written: Callable[[str], list[int]]
) -> None:
    output = play(tmp_path, tokenizer, Server([([], "aborted", 4), (written(ANSWER), "completed", 5)]))
    assert output.reward_score == 1.0
    assert sum(output.response_mask) == len(written(ANSWER))


def test_an_action_whose_tokens_are_spent_when_it_is_cut_is_cut_by_its_limit(
    verl: Any, tmp_path: Path, tokenizer: Any, written: Callable[[str], list[int]]
) -> None:
    ramble = written("1" * 60)[:40]
    output = play(tmp_path, tokenizer, Server([(ramble, "aborted", 4), (written(ANSWER), "completed", 5)]))
    # The action ended at its limit, as an uncut one does; the episode judged it and went on.
    assert output.extra_fields["reward_extra_info"]["invalid"] == 0.0
    assert output.response_ids[:40] == ramble


def test_the_cpu_server_goes_on_with_a_cut_action_once_it_has_the_new_weights(verl: Any, tiny_folder: Path) -> None:
    """The order of calls is that of veRL's colocate_async: abort, wake up, send the weights, resume."""
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    from rlenv_verl.cpu.rollout import CpuServerActor
    from tests.trainers.cpu.test_server import Gated

    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    rollout = {"response_length": 64, "prompt_length": 64, "max_model_len": None, "max_num_seqs": 8, "seed": 0}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**rollout, "name": "transformers_cpu"}}})

    async def scenario() -> Any:
        actor = CpuServerActor(
            config.actor_rollout_ref.rollout,
            SimpleNamespace(path=str(tiny_folder), tokenizer=tokenizer, processor=None),
            0,
        )
        named = list(actor.server.model.state_dict().items())
        await actor.update_weights(named, True, 1)
        gate = Gated(actor.server.model)
        actor.server.model = gate
        actor.stop_ids.clear()
        await actor.ready()
        handle = SimpleNamespace(generate=SimpleNamespace(remote=actor.generate))
        balancer: Any = Balancer(handle)
        client = FullyAsyncLLMServerClient(config, load_balancer_handle=balancer)
        params = {"temperature": 0.0, "logprobs": True, "max_tokens": 12}
        async with asyncio.timeout(60):
            asked = asyncio.create_task(client.generate("one", prompt_ids=[5, 7], sampling_params=params))
            await asyncio.to_thread(gate.running.wait, 30)
            cutting = asyncio.create_task(actor.abort_all_requests())
            await asyncio.sleep(0)
            gate.go_on.set()
            await cutting
            await actor.wake_up()
            await actor.update_weights([(f"inner.{name}", tensor) for name, tensor in named], True, 2)
            assert not asked.done()
            await actor.resume_generation()
            answer = await asked
        await actor.server.aclose()
        return answer

    answer = asyncio.run(scenario())
    assert len(answer.token_ids) == len(answer.log_probs) == 12
    assert answer.stop_reason in ("completed", "length")
    assert (answer.extra_fields["min_global_steps"], answer.extra_fields["max_global_steps"]) == (1, 2)
