from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers

from rlenv_verl.cpu import Sampling, _filter_logits, generate


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=1,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()


def run(model: Any, prompts: list[list[int]], samplings: list[Sampling], **options: Any) -> Any:
    return generate(model, prompts, samplings, pad_id=0, generator=torch.Generator().manual_seed(1), **options)


@pytest.mark.slow
def test_a_batch_of_unequal_prompts_gives_what_each_gives_alone(model: Any) -> None:
    prompts = [[5, 6, 7, 8, 9, 10], [11], [3, 4, 30]]
    samplings = [Sampling(12, 0.0), Sampling(5, 0.0), Sampling(9, 0.0)]
    together = run(model, prompts, samplings)
    for prompt, sampling, given in zip(prompts, samplings, together, strict=True):
        (alone,) = run(model, [prompt], [sampling])
        assert given.token_ids == alone.token_ids
        assert given.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_logprobs_are_those_of_a_full_forward_pass(model: Any) -> None:
    prompts = [[5, 6, 7], [9]]
    outputs = run(model, prompts, [Sampling(10, 0.7), Sampling(6, 1.3)])
    for prompt, temperature, output in zip(prompts, (0.7, 1.3), outputs, strict=True):
        ids = torch.tensor([[*prompt, *output.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        expected = logits.log_softmax(-1).gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        assert output.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_stop_text_ends_its_row_with_the_token_that_completes_it(model: Any) -> None:
    def decode(ids: Any) -> str:
        return "".join(chr(65 + token) for token in ids)

    (free,) = run(model, [[5, 6]], [Sampling(8, 0.0)])
    text = decode(free.token_ids[1:3])
    stopping = Sampling(8, 0.0, stop_texts=("never", text))
    cut, unmoved = run(model, [[5, 6], [5, 6]], [stopping, Sampling(8, 0.0)], decode=decode)
    count = next(end for end in range(1, 9) if text in decode(free.token_ids[:end]))
    assert (cut.finish, cut.token_ids) == ("stop", free.token_ids[:count])
    assert unmoved.token_ids == free.token_ids
    with pytest.raises(ValueError, match="decode"):
        run(model, [[5, 6]], [stopping])


def test_a_stop_id_ends_its_row_alone_and_is_kept(model: Any) -> None:
    (free, other) = run(model, [[5, 6], [7]], [Sampling(8, 0.0)] * 2)
    stop = free.token_ids[2]
    cut, unmoved = run(model, [[5, 6], [7]], [Sampling(8, 0.0, stop_ids=frozenset({stop})), Sampling(8, 0.0)])
    assert cut.finish == "stop"
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert unmoved.token_ids == other.token_ids
    assert unmoved.finish == "length"


def test_whichever_of_several_stop_ids_comes_first_ends_the_row(model: Any) -> None:
    (free,) = run(model, [[5, 6]], [Sampling(8, 0.0)])
    ids = list(dict.fromkeys(free.token_ids))
    for first, later in ((ids[1], ids[-1]), (ids[-1], ids[1])):
        (cut,) = run(model, [[5, 6]], [Sampling(8, 0.0, stop_ids=frozenset({first, later}))])
        end = min(free.token_ids.index(first), free.token_ids.index(later))
        assert (cut.finish, cut.token_ids) == ("stop", free.token_ids[: end + 1])


def test_an_abort_returns_what_there_is(model: Any) -> None:
    asked = iter([False, False, False, True])
    (output,) = run(model, [[5]], [Sampling(50)], is_aborted=lambda: next(asked))
    assert output.finish == "aborted"
    assert len(output.token_ids) == 3 == len(output.logprobs)


@pytest.mark.slow
def test_equal_generators_give_equal_samples(model: Any) -> None:
    prompts, samplings = [[5, 6], [7]], [Sampling(20), Sampling(20)]
    assert run(model, prompts, samplings) == run(model, prompts, samplings)


@pytest.mark.slow
def test_samples_follow_the_distribution(model: Any) -> None:
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([[5, 6]])).logits[0, -1].float().softmax(-1)
    outputs = run(model, [[5, 6]] * 4000, [Sampling(1)] * 4000)
    counts = torch.bincount(torch.tensor([output.token_ids[0] for output in outputs]), minlength=32) / 4000
    assert float((counts - expected).abs().max()) < 0.03


def test_top_k_and_top_p_exclude_row_by_row() -> None:
    scaled = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 5))
    kept = _filter_logits(
        scaled,
        [Sampling(1), Sampling(1, top_k=2), Sampling(1, top_p=0.8), Sampling(1, top_p=0.01), Sampling(1, 0.0, top_k=1)],
    ).isfinite()
    assert kept.tolist() == [
        [True] * 4,
        [True, True, False, False],
        [True, True, False, False],
        [True, False, False, False],
        [True] * 4,
    ]


def test_top_p_of_one_keeps_everything_despite_rounding() -> None:
    scaled = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * 5
    assert _filter_logits(scaled, [Sampling(1, top_k=4999), Sampling(1), Sampling(1)])[1:].isfinite().all()


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_impossible_sampling_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Sampling(**{"max_tokens": 1, **options})


def test_greedy_logprobs_are_the_models_own(model: Any) -> None:
    (output,) = run(model, [[5]], [Sampling(1, 0.0)])
    assert math.exp(output.logprobs[0]) <= 1.0
