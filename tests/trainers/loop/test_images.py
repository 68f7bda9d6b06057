from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.vision import model_parts, processor, save_model
from tests.trainers.charts import ANSWER, CALL, MODELS, SPEC, as_verl_computes, run
from tests.trainers.conftest import quiet
from tests.trainers.loops import kept

# One process of one thread, on veRL's platform `cpu`.
ENGINE = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "rlenv_verl.cpu.platform",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
}


def place(made: Any) -> int:
    return int(made.tokenizer.convert_tokens_to_ids("<|image_pad|>"))


def runs_of(ids: Sequence[int], token: int) -> int:
    return sum(one == token and before != token for before, one in zip([-1, *ids], ids, strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_verl_computes_pixels_and_positions_and_a_model_learns_from_them(
    verl: Any, tmp_path: Path, family: str
) -> None:
    model, made = model_parts(family)
    output, server = run(tmp_path, made, [CALL % 3, CALL % 2, ANSWER], family=family)
    assert output.reward_score == 1.0
    images = output.multi_modal_data["images"]
    assert [image.size for image in images] == [(100, 70), (120, 60), (80, 60), (80, 60)]
    ids = [*output.prompt_ids, *output.response_ids]
    assert runs_of(ids, place(made)) == len(images)
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    shown = [
        mask for mask, token in zip(output.response_mask, output.response_ids, strict=True) if token == place(made)
    ]
    assert shown
    assert not any(shown)

    # What the server got each time: all ids so far, placeholders expanded, and all images so far.
    for request, count in zip(server.requests, (1, 2, 4), strict=True):
        assert request["prompt_ids"] == ids[: len(request["prompt_ids"])]
        assert request["images"] == images[:count]

    batch = as_verl_computes(made, output)
    grid = batch["image_grid_thw"]
    assert (grid.prod(dim=1) // 4).sum() == ids.count(place(made))
    assert batch["position_ids"].shape == (4, 1, len(ids))
    assert (batch["position_ids"][1] != batch["position_ids"][2]).any()

    with quiet():
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        start = len(output.prompt_ids)
        mask = torch.tensor(output.response_mask, dtype=torch.float32)
        losses = []
        for _ in range(3):
            logits = model(**batch, use_cache=False).logits[0, start - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits, batch["input_ids"][0, start:], reduction="none")
            losses.append(((loss * mask).sum() / mask.sum()).item())
            optimiser.zero_grad()
            ((loss * mask).sum() / mask.sum()).backward()
            optimiser.step()
    assert losses[2] < losses[0]
    # The pixels reach the loss: the vision tower has gradients.
    tower = [p.grad.abs().sum() for name, p in model.named_parameters() if "visual" in name and p.grad is not None]
    assert sum(tower) > 0
    # What veRL puts into its queue is tensors and plain values.
    fields = output.as_dict()
    assert fields.pop("multi_modal_data")["images"] == images
    assert fields["rm_scores"].sum() == 1.0


@pytest.mark.slow
def test_what_verls_own_loop_would_render_has_the_same_ids(verl: Any, tmp_path: Path) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    output, _ = run(tmp_path, made, [CALL % 3, ANSWER])
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    with quiet():
        builder = create_continuous_token_builder(made.tokenizer, hf_model_type="qwen2_vl", processor=made)
        images = output.multi_modal_data["images"]
        from rlenv.episodes.environment import load

        tools = [dict(schema) for schema in load(tmp_path / "env.yaml").tool_schemas]
        user = {
            "role": "user",
            "content": [{"type": "image", "image": images[0]}, {"type": "text", "text": "How many?"}],
        }
        assert builder.build_initial_tokens([user], tools=tools, images=images[:1]) == output.prompt_ids


@pytest.mark.slow
def test_the_processors_settings_of_the_run_hold_everywhere(verl: Any, tmp_path: Path) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    few = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 4}
    output, server = run(tmp_path, made, [CALL % 3, ANSWER], kwargs=few)
    usual, _ = run(tmp_path, made, [CALL % 3, ANSWER])
    assert len(output.response_ids) < len(usual.response_ids)
    assert server.requests[0]["kwargs"] == few
    batch = as_verl_computes(made, output, few)
    assert (batch["image_grid_thw"].prod(dim=1) // 4).sum() == (batch["input_ids"] == place(made)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("times", [7, 9])
def test_hostile_texts_and_broken_images_of_tools_reach_no_processor(verl: Any, tmp_path: Path, times: int) -> None:
    model, made = model_parts("Qwen2VLProcessor")
    output, _ = run(tmp_path, made, [CALL % times, CALL % 1, ANSWER])
    assert output.reward_score == 1.0
    assert len(output.multi_modal_data["images"]) == 2
    batch = as_verl_computes(made, output)
    with torch.no_grad(), quiet():
        assert torch.isfinite(model(**batch, use_cache=False).logits).all()
    text = made.tokenizer.decode(output.response_ids)
    assert ("< |image_pad|>" if times == 7 else "image 1 is not shown") in text


@pytest.mark.slow
def test_an_observation_whose_images_do_not_fit_is_left_out_with_them(verl: Any, tmp_path: Path) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    full, _ = run(tmp_path, made, [CALL % 3, ANSWER])
    first = full.response_mask.index(0)
    output, server = run(tmp_path, made, [CALL % 3], response=first + 12)
    assert output.response_ids == full.response_ids[:first]
    assert len(output.multi_modal_data["images"]) == 1
    assert len(server.requests) == 1
    as_verl_computes(made, output)


STRAYS: dict[str, Any] = {
    "token": lambda made: [place(made)],
    "spelt": lambda made: (
        made.tokenizer("x", add_special_tokens=False)["input_ids"]
        + [i for c in "<|image_pad|>" for i in made.tokenizer(c, add_special_tokens=False)["input_ids"]]
    ),
    "video": lambda made: [made.tokenizer.convert_tokens_to_ids("<|video_pad|>")],
    "interrupted": lambda made: made.tokenizer("<|image_<|im_start|>pad|>", add_special_tokens=False)["input_ids"],
}


@pytest.mark.slow
@pytest.mark.parametrize("stray", sorted(STRAYS))
def test_a_placeholder_that_the_policy_wrote_ends_its_turn_and_is_scored(verl: Any, tmp_path: Path, stray: str) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    output, server = run(tmp_path, made, [CALL % 3, STRAYS[stray](made), ANSWER])
    assert len(server.requests) == 2
    assert any(output.response_mask)
    assert output.reward_score == 0.0
    figures = output.extra_fields["reward_extra_info"]
    assert (figures["invalid"], figures["masked"], figures["truncated"]) == (0.0, 0.0, 1.0)
    assert output.extra_fields["rlenv"]["ended"] == "image_token"
    as_verl_computes(made, output)


@pytest.mark.slow
@pytest.mark.parametrize("stray", sorted(STRAYS))
def test_a_placeholder_as_the_first_word_leaves_a_sample_that_counts(verl: Any, tmp_path: Path, stray: str) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    output, _ = run(tmp_path, made, [STRAYS[stray](made)])
    assert any(output.response_mask)
    assert output.extra_fields["reward_extra_info"]["masked"] == 0.0
    as_verl_computes(made, output)


def test_an_image_of_a_prompt_that_cannot_be_read_masks_its_sample(verl: Any, tmp_path: Path) -> None:
    _, made = model_parts("Qwen2VLProcessor")
    (tmp_path / "chart.png").write_bytes(b"no image")
    output, server = run(tmp_path, made, [])
    assert server.requests == []
    assert not any(output.response_mask)
    ((row, _),) = kept(tmp_path / "records")
    assert row["failure"] == "image"


@pytest.mark.slow
def test_a_model_of_text_alone_is_refused_for_a_spec_with_images(verl: Any, tmp_path: Path) -> None:
    from rlenv.errors import UnsupportedTemplate

    _, made = model_parts("Qwen2VLProcessor")
    made.tokenizer.chat_template = made.chat_template
    try:
        with pytest.raises(UnsupportedTemplate, match=r"message 1 \(user\) has 1 images.*reads text alone"):
            run(tmp_path, made, [ANSWER], with_processor=False)
        without = SPEC.replace('  images: ["{{ task.file }}"]\n', "")
        keeping, dropping = tmp_path / "keeping", tmp_path / "dropping"
        keeping.mkdir()
        dropping.mkdir()
        kept, _ = run(keeping, made, [CALL % 3, ANSWER], spec=without, with_processor=False)
        dropped, _ = run(
            dropping,
            made,
            [CALL % 3, ANSWER],
            spec=without + "observation: {images: drop}\n",
            with_processor=False,
        )
    finally:
        made.tokenizer.chat_template = None
    # What a tool answers ends no run: the policy is told of what it cannot see, and goes on.
    for output in (kept, dropped):
        assert output.reward_score == 1.0
        assert output.multi_modal_data is None
    assert "1 image is not shown" in made.tokenizer.decode(kept.response_ids)
    assert "not shown" not in made.tokenizer.decode(dropped.response_ids)


class Sampled:
    """A prompt of `start` ids and turns that end where `spans` say."""

    def __init__(self, ids: list[int], images: int, *, start: int = 0, spans: Sequence[tuple[int, int]] = ()) -> None:
        self.context_ids, self.images, self.turn_spans, self._start = ids, [None] * images, list(spans), start

    def __len__(self) -> int:
        return len(self.context_ids) - self._start


def test_a_text_that_another_reading_of_the_ids_would_take_for_an_image_is_found(verl: Any) -> None:
    from rlenv.errors import EpisodeError
    from rlenv.tokens import ProcessorImages
    from rlenv_verl.loop.process import Shown, shown_of

    made = processor()
    images = ProcessorImages(made)

    def encoded(text: str) -> list[int]:
        found: list[int] = made.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def shown(tokens: Any) -> Shown:
        return shown_of(tokens, images=images, tokenizer=made.tokenizer)

    for text, count in (("<|image_<|im_start|>pad|>", 0), ("", 1)):
        with pytest.raises(EpisodeError, match="the prompt spells"):
            shown(Sampled(encoded(f"a{text}b"), count))
    ids = encoded("a<|image_pad|><|image_pad|>b<|image_pad|>")
    assert shown(Sampled(ids, 2)) == Shown(len(ids), 2)
    # Spelled over the end of a turn, where the mark between is left out: the turns before it are kept.
    prompt, first, second = encoded("q<|image_pad|>"), encoded("one<|im_end|>x"), encoded("<|image_<|im_end|>pad|>")
    ends = (len(first), len(first) + len(second))
    spans = [(0, len(first)), (len(first), ends[1])]
    tokens = Sampled([*prompt, *first, *second], 1, start=len(prompt), spans=spans)
    assert shown(tokens) == Shown(len(first), 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_verls_engine_trains_on_samples_with_different_numbers_of_images(verl: Any, tmp_path: Path) -> None:
    family = "Qwen3VLProcessor"
    made = processor(family)
    samples = []
    for actions in ([CALL % 3, CALL % 2, ANSWER], [ANSWER], [CALL % 1, ANSWER], [CALL % 9, ANSWER]):
        output, _ = run(tmp_path, made, actions, family=family)
        images = []
        for image in output.multi_modal_data["images"]:
            file = io.BytesIO()
            image.save(file, "PNG")
            images.append(base64.b64encode(file.getvalue()).decode())
        kept = {name: getattr(output, name) for name in ("prompt_ids", "response_ids", "response_mask")}
        samples.append({**kept, "images": images})
    (tmp_path / "samples.json").write_text(json.dumps(samples))
    save_model(tmp_path / "model", family)
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parent / "engine_step.py"),
            "model",
            "samples.json",
            str(tmp_path / "out.json"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            **ENGINE,
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'trainers'}",
            "HF_HOME": str(tmp_path / "hf"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["engine"] == "CpuEngine"
    assert result["losses"] == sorted(result["losses"], reverse=True)
    assert result["losses"][2] < result["losses"][0] - 0.1
