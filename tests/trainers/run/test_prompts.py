"""How long prompts are, measured before a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from tests.support.vision import processor, save_model
from tests.trainers.charts import ANSWER, run
from tests.trainers.conftest import quiet


def test_prompts_are_measured_with_the_tools_of_their_rows(make_environment: Any) -> None:
    from rlenv_verl.run.model import longest_prompt

    rows: list[Any] = [
        {"tools": [{"name": name, "parameters": {}}]} for name in ("a", "a_much_longer_name_of_a_tool", "b")
    ]
    environment = make_environment(
        f"""
rlenv: 1
name: rows
tasks: {{train: {{rows: {rows}}}}}
prompt: {{user: "Go."}}
tools: {{row: {{kind: python, function: "tools.py:api", schemas: "{{{{ task.tools }}}}"}}}}
rewards: {{calls: {{kind: rule, rule: valid_calls}}}}
""",
        tools="def api(name: str, arguments: dict) -> str:\n    return name\n",
    )
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)

    async def lengths() -> list[int]:
        found = []
        for task in range(3):
            async with environment.start(task=task) as episode:
                found.append(len(encoder.start(episode.messages, tools=episode.tool_schemas).prompt_ids))
        return found

    each = asyncio.run(lengths())
    assert each[1] > each[0]
    assert asyncio.run(longest_prompt(environment, encoder, ["train"], some=range)) == max(each)


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
