"""A whole run on images under Ray: prompts and results that show some, a tiny policy that sees, its own processor."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept import held_out
from tests.support.vision import picture, save_model
from tests.verl_runs.driving import lines, train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]

PROCESSORS = "image_processors"
SPEC = """\
rlenv: 1
name: charts
tasks:
  train: {path: tasks.jsonl}
  test: {path: tasks.jsonl, limit: 2}
prompt:
  user: "{{ task.question }}"
  images: ["{{ task.chart }}"]
tools:
  zoom: {kind: python, function: "world.py:zoom", run_in: loop}
limits: {turns: 3}
rewards:
  sampled: {kind: rule, function: "world.py:share"}
"""
WORLD = '''\
import io

import PIL.Image

from rlenv.messages import Image
from rlenv.tools.base import ToolOutput


def zoom(times: int):
    """Shows the chart larger."""
    file = io.BytesIO()
    PIL.Image.new("RGB", (40 * times, 60), "blue").save(file, "PNG")
    return ToolOutput(f"{times} times", images=(Image.of(file.getvalue()),))


def share(context):
    """What a policy of random weights can earn more or less of."""
    said = "".join(turn.action for turn in context.turns)
    return sum(sign in "aeiou" for sign in said) / max(len(said), 1)
'''
PRESET = """\
extends: cpu
run: {{turn_tokens: 12, validation_modes: [sampled]}}
environment:
  # The processor of these runs, beside what the preset `cpu` names.
  VERL_USE_EXTERNAL_MODULES: rlenv_verl.cpu.platform,rlenv_verl.estimators,{processors}
verl:
  algorithm: {{rollout_correction: {{bypass_mode: false}}}}
  data: {{train_batch_size: 2, max_response_length: 64}}
  actor_rollout_ref:
    # Packing of Qwen2-VL is flash-attention's in veRL (verl/models/transformers/qwen2_vl.py), which a CPU has not.
    model: {{use_remove_padding: false}}
    # Without decay a weight that no gradient reaches stays as it is.
    actor: {{ppo_mini_batch_size: 2, optim: {{lr: 1e-3, weight_decay: 0.0}}}}
    rollout: {{n: 4}}
  trainer: {{test_freq: 2}}
"""


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, the policy and the preset, in one folder."""
    folder = tmp_path_factory.mktemp("charts")
    rows = []
    for index, colour in enumerate(("red", "green", "blue", "white")):
        (folder / f"{index}.png").write_bytes(base64.b64decode(picture(60 + 28 * index, 60, colour).base64))
        rows.append({"question": "How much rain?", "chart": f"{index}.png"})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "env.yaml").write_text(SPEC)
    (folder / "world.py").write_text(WORLD)
    (folder / "preset.yaml").write_text(PRESET.format(processors=PROCESSORS))
    save_model(folder / "model", "Qwen2VLProcessor", brings_code=False)
    return folder


def changed(before: Path, after: Path) -> dict[str, bool]:
    """For each part of the model whether any of its weights changed."""
    from safetensors.torch import load_file

    first, last = load_file(before / "model.safetensors"), load_file(after / "model.safetensors")
    assert set(first) == set(last)
    found: dict[str, bool] = {}
    for name, weight in first.items():
        part = "sees" if "visual" in name else "writes"
        found[part] = found.get(part, False) or not bool((weight == last[name]).all())
    return found


def figures(out: Path) -> dict[int, dict[str, Any]]:
    return {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}


def test_a_policy_that_sees_is_trained_validated_and_taken_up_again(charts: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "run.log"
    given = [str(charts / "env.yaml"), "--preset", str(charts / "preset.yaml"), "--model", str(charts / "model")]
    given += ["--steps", "2", "--save-every", "1", "--validation-tasks", "2", "--time-limit", "400", "-o", str(out)]
    assert train(given, log, seconds=500, knows=PROCESSORS) == 0, log.read_text()[-3000:]
    found = figures(out)
    assert sorted(found) == [0, 1, 2]
    for step in (1, 2):
        # The trainer, which computes the pixels itself, gives each sampled token the rollout's probability.
        assert found[step]["training/rollout_probs_diff_max"] < 1e-4
        assert found[step]["rlenv/charts/episodes"] == 8
        assert found[step]["actor/grad_norm"] > 0.0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["failed_episodes"] == 0
    assert [entry["step"] for entry in summary["held_out_success"]] == [0, 2]
    assert changed(charts / "model", Path(summary["trained"])) == {"sees": True, "writes": True}
    # What a prompt shows is counted with all its tokens: wider charts make longer prompts.
    seen = held_out(out, step=2, mode="sampled")
    assert len(seen) == 2
    assert all(len(one.messages[0].images) == 1 for one in seen)

    assert train(["--resume", str(out), "--steps", "3"], log, seconds=500, knows=PROCESSORS) == 0, log.read_text()[
        -3000:
    ]
    assert sorted(figures(out)) == [0, 1, 2, 3]
    assert figures(out)[3]["training/rollout_probs_diff_max"] < 1e-4
    assert json.loads((out / "run.json").read_text())["attempts"][1]["from_step"] == 2
