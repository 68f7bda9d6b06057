"""How long prompts are, measured before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.vision import processor, save_model
from tests.trainers.charts import ANSWER, run
from tests.trainers.conftest import quiet


@pytest.mark.slow
def test_prompts_are_measured_with_their_images(verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlenv.episodes.environment import load
    from rlenv.errors import UsageError
    from rlenv_verl.run.model import measure_prompts

    family = "Qwen3VLProcessor"
    made = processor(family)
    output, _ = run(tmp_path, made, [ANSWER], family=family)
    save_model(tmp_path / "model", family)
    environment = load(tmp_path / "env.yaml")
    model = str(tmp_path / "model")
    with quiet():
        with pytest.raises(UsageError, match="cannot be loaded to measure prompts") as refused:
            measure_prompts(environment, str(tmp_path), splits=["train"], template_kwargs={})
        assert refused.value.hint == "set run.max_prompt_length=N"
        # Here no video processor can be loaded, which the family's own processor asks for.
        with pytest.raises(UsageError, match=r"set run\.max_prompt_length=N"):
            measure_prompts(environment, model, splits=["train"], template_kwargs={})
        import transformers

        monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda name: made)
        longest = measure_prompts(environment, model, splits=["train"], template_kwargs={})
    assert longest == -(-len(output.prompt_ids) * 5 // 4)
