"""A judge that compares the samples of a prompt, while veRL's episodes are played."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.testing.endpoint import FakeEndpoint, Reply
from tests.support.beside import served
from tests.trainers.groups import BREAKS, RIGHT, TOOLS, WRONG, figures, info, play_group
from tests.trainers.groups import SPEC as QUICK

JUDGE = "  best: {kind: judge, endpoint: writer, prompt: Which?, pairwise: {with: group, of: answer}, weight: 0.5}\n"
SPEC = QUICK.replace("  best: {kind: group, of: correct, by: rank, weight: 0.5}\n", JUDGE.replace("Which?", '"Which?"'))
assert SPEC != QUICK


def spec(server: FakeEndpoint) -> str:
    return f"{SPEC}endpoints: {{writer: {{base_url: '{server.base_url}', model: judge, retries: 0}}}}\n"


def higher(body: Mapping[str, Any]) -> str:
    first, second = (json.loads(text) for text in re.findall(r">(\".*?\")</MATERIAL", body["messages"][-1]["content"]))
    return json.dumps({"reasoning": "so", "better": "first" if int(first) > int(second) else "second"})


def test_the_samples_of_a_prompt_are_compared_by_a_judge(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    with served(FakeEndpoint(higher)) as server:
        scripts = [[RIGHT], [BREAKS], [WRONG]]
        outputs = play_group(tmp_path, tokenizer, scripts, spec=spec(server), files={"tools.py": TOOLS})
        assert len(server.requests) == 2
    assert [info(output)["term_best"] for output in outputs] == [1.0, None, 0.0]
    assert [outputs[0].reward_score, outputs[2].reward_score] == pytest.approx([1.5, 0.0])
    assert figures(outputs[1])["masked"] == "resource"


def test_a_judge_that_is_down_masks_the_group(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    with served(FakeEndpoint([Reply(500)])) as server:
        outputs = play_group(tmp_path, tokenizer, [[RIGHT], [WRONG]], spec=spec(server), files={"tools.py": TOOLS})
    assert [figures(output)["masked"] for output in outputs] == ["reward"] * 2


def test_a_sample_cancelled_while_a_judge_is_asked_leaves_the_others_their_values(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    asked, let = threading.Event(), threading.Event()

    async def held(body: Mapping[str, Any]) -> str:
        asked.set()
        await asyncio.to_thread(let.wait, 20)
        return higher(body)

    async def cancel_first(tasks: list[asyncio.Task[Any]]) -> None:
        await asyncio.to_thread(asked.wait, 20)
        tasks[0].cancel()
        let.set()

    with served(FakeEndpoint(held)) as server:
        outputs = play_group(
            tmp_path,
            tokenizer,
            [[RIGHT], [WRONG], ["<answer>7</answer>"]],
            spec=spec(server),
            files={"tools.py": TOOLS},
            on_start=cancel_first,
        )
    assert isinstance(outputs[0], asyncio.CancelledError)
    assert [info(output)["term_best"] for output in outputs[1:]] == [0.5, 0.0]
