from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
import transformers

from rlenv_verl.cpu import Sampling
from rlenv_verl.cpu.server import CpuServer, read_sampling


def new_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.5,
        tie_word_embeddings=True,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()


class Gated(torch.nn.Module):
    """A model whose forward passes wait for the test, so that a batch can be held in flight."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.running = threading.Event()
        self.go_on = threading.Event()

    def forward(self, **inputs: Any) -> Any:
        self.running.set()
        assert self.go_on.wait(30)
        return self.inner(**inputs)


def serve(scenario: Callable[[CpuServer], Awaitable[None]], model: Any = None, **options: Any) -> None:
    """Runs `scenario` with a serving server, within a bound on time."""

    async def run() -> None:
        options.setdefault("has_weights", True)
        server = CpuServer(model or new_model(), pad_id=0, max_batch=64, seed=3, **options)
        server.start()
        async with asyncio.timeout(60):
            try:
                await scenario(server)
            finally:
                await server.aclose()

    asyncio.run(run())


def test_concurrent_requests_get_their_own_answers() -> None:
    async def scenario(server: CpuServer) -> None:
        prompts = [[5 + index % 20, 7, index % 9] for index in range(40)]
        sampling = [Sampling(3 + index % 5, 0.0) for index in range(40)]
        together = await asyncio.gather(
            *(server.generate(prompt, way) for prompt, way in zip(prompts, sampling, strict=True))
        )
        for prompt, way, (answer, _) in zip(prompts, sampling, together, strict=True):
            (alone, _) = await server.generate(prompt, way)
            assert answer.token_ids == alone.token_ids
            assert len(answer.token_ids) == way.max_tokens

    serve(scenario)


def test_a_pause_aborts_the_batch_in_flight_and_what_is_queued() -> None:
    model = Gated(new_model())

    async def scenario(server: CpuServer) -> None:
        first = asyncio.create_task(server.generate([5], Sampling(10_000)))
        await asyncio.to_thread(model.running.wait, 30)
        queued = asyncio.create_task(server.generate([6], Sampling(10_000)))
        await asyncio.sleep(0)
        pause = asyncio.create_task(server.pause())
        await asyncio.sleep(0)
        model.go_on.set()
        await pause
        (running, _), (waiting, _) = await first, await queued
        assert running.finish == waiting.finish == "aborted"
        assert len(running.token_ids) == 1
        assert waiting.token_ids == ()

    serve(scenario, model)


def test_requests_during_a_pause_are_served_after_it() -> None:
    async def scenario(server: CpuServer) -> None:
        await server.pause()
        late = asyncio.create_task(server.generate([5], Sampling(4, 0.0)))
        await asyncio.sleep(0)
        assert not late.done()
        server.resume()
        answer, _ = await late
        assert answer.finish == "length"

    serve(scenario)


def test_new_weights_wait_for_the_batch_in_flight() -> None:
    model = Gated(new_model(0))
    other = new_model(1)

    async def scenario(server: CpuServer) -> None:
        before = asyncio.create_task(server.generate([5, 6], Sampling(6, 0.0)))
        await asyncio.to_thread(model.running.wait, 30)
        named = [(f"inner.{name}", tensor) for name, tensor in other.state_dict().items()]
        load = asyncio.create_task(server.load_weights(named, is_last=True, version=7))
        await asyncio.sleep(0)
        assert not load.done()
        model.go_on.set()
        old, old_version = await before
        await load
        new, new_version = await server.generate([5, 6], Sampling(6, 0.0))
        assert (old_version, new_version) == (None, 7)
        assert old.token_ids != new.token_ids

    serve(scenario, model)


def test_weights_may_come_in_parts_but_must_be_complete() -> None:
    other = new_model(1)
    named = list(other.state_dict().items())

    async def scenario(server: CpuServer) -> None:
        with pytest.raises(RuntimeError, match="before the first weights"):
            await server.generate([5], Sampling(1))
        await server.load_weights(named[:3], is_last=False, version=None)
        with pytest.raises(RuntimeError, match="were not sent"):
            await server.load_weights(named[4:5], is_last=True, version=1)
        with pytest.raises(KeyError, match="no tensor named nothing"):
            await server.load_weights([("nothing", named[0][1])], is_last=False, version=None)
        # Tied to the embedding, so veRL sends it once.
        await server.load_weights([entry for entry in named if entry[0] != "lm_head.weight"], is_last=True, version=1)
        await server.generate([5], Sampling(1))
        assert server.weights_version == 1

    serve(scenario, has_weights=False)


def test_a_failing_batch_fails_its_requests_and_not_the_server() -> None:
    async def scenario(server: CpuServer) -> None:
        with pytest.raises(IndexError):
            await server.generate([10_000], Sampling(1))  # no such token
        answer, _ = await server.generate([5], Sampling(1))
        assert len(answer.token_ids) == 1

    serve(scenario)


def test_equal_seeds_give_equal_runs() -> None:
    runs: list[tuple[int, ...]] = []

    async def scenario(server: CpuServer) -> None:
        answer, _ = await server.generate([5, 6], Sampling(30))
        runs.append(answer.token_ids)

    serve(scenario)
    serve(scenario)
    assert runs[0] == runs[1]


def read(**params: Any) -> Sampling:
    return read_sampling(params, prompt_tokens=10, max_model_len=50, default_tokens=20, stop_ids={1})


def test_verls_parameters_are_read() -> None:
    sampling = read(temperature=0.5, top_p=0.9, top_k=5, max_tokens=7, logprobs=True, stop_token_ids=[4])
    assert sampling == Sampling(7, 0.5, 0.9, 5, frozenset({1, 4}))
    assert read().max_tokens == 20
    assert read(max_tokens=1000).max_tokens == 40


@pytest.mark.parametrize(
    ("params", "message"),
    [({"min_p": 0.1}, "does not know: min_p"), ({"repetition_penalty": 1.2}, "no repetition penalty")],
)
def test_parameters_that_would_be_ignored_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**params)


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no room"):
        read_sampling({}, prompt_tokens=50, max_model_len=50, default_tokens=20, stop_ids=())


def test_a_server_that_left_the_rotation_turns_requests_away_until_it_is_back() -> None:
    async def scenario(server: CpuServer) -> None:
        server.weights_version = 3
        await server.pause(rejects=True)
        answer, version = await server.generate([5, 7], Sampling(3, 0.0))
        assert (answer.token_ids, answer.finish, version) == ((), "aborted", 3)
        # A pause for a sync alone lets requests wait again.
        await server.pause()
        waiting = asyncio.create_task(server.generate([5, 7], Sampling(3, 0.0)))
        await asyncio.sleep(0)
        assert not waiting.done()
        server.resume()
        answer, _ = await waiting
        assert len(answer.token_ids) == 3

    serve(scenario)
