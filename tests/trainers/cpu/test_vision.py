"""The CPU's rollout server where a model sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.vision import model_parts
from tests.trainers.charts import ANSWER, CALL, MODELS, as_verl_computes, run
from tests.trainers.conftest import quiet


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_the_cpu_server_writes_what_the_model_itself_would(verl: Any, tmp_path: Path, family: str) -> None:
    from rlenv_verl.cpu import Sampling, generate_seeing

    model, made = model_parts(family)
    output, _ = run(tmp_path, made, [CALL % 3, CALL % 2, ANSWER], family=family)
    images = output.multi_modal_data["images"]
    prompt = [*output.prompt_ids, *output.response_ids]
    with quiet():
        answer = generate_seeing(
            model, made, prompt, images, Sampling(max_tokens=6, temperature=0.0), generator=torch.Generator()
        )
        # One forward pass over the whole, with the positions that veRL computes, says the same.
        output.response_ids = [*output.response_ids, *answer.token_ids]
        batch = as_verl_computes(made, output)
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logits[:, [made.image_token_id, made.video_token_id]] = -torch.inf
    assert logits.argmax(-1).tolist() == list(answer.token_ids)
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert torch.allclose(expected, torch.tensor(answer.logprobs), atol=1e-4)
    with pytest.raises(ValueError, match="placeholders; 1 images make"):
        generate_seeing(model, made, prompt, images[:1], Sampling(max_tokens=1), generator=torch.Generator())


@pytest.mark.slow
def test_the_cpu_server_batches_requests_of_which_some_show_images(verl: Any, tmp_path: Path) -> None:
    from rlenv_verl.cpu import Sampling
    from rlenv_verl.cpu.server import CpuServer

    model, made = model_parts("Qwen3VLProcessor")
    output, _ = run(tmp_path, made, [ANSWER], family="Qwen3VLProcessor")
    prompt, images = output.prompt_ids, output.multi_modal_data["images"]
    plain = made.tokenizer("How many?", add_special_tokens=False)["input_ids"]
    greedy = Sampling(max_tokens=4, temperature=0.0)

    async def ask(server: CpuServer) -> Any:
        server.has_weights = True
        server.start()
        try:
            return await asyncio.gather(
                server.generate(prompt, greedy, images=images),
                server.generate(plain, greedy),
                server.generate(prompt, greedy, images=images),
            )
        finally:
            await server.aclose()

    with quiet():
        (one, _), (text, _), (other, _) = asyncio.run(
            ask(CpuServer(model, pad_id=0, max_batch=8, seed=0, processor=made))
        )
        assert one == other
        assert len(text.token_ids) == 4
        with pytest.raises(ValueError, match="from text alone"):
            asyncio.run(ask(CpuServer(model, pad_id=0, max_batch=8, seed=0)))
