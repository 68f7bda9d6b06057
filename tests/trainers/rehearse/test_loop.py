"""The rehearsal's agent loop and its server, episode by episode, without Ray."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from rlenv.episodes.environment import load
from rlenv_verl.rehearse.model import make_model
from tests.trainers.conftest import quiet
from tests.trainers.loops import build, configuration, own_process

PROMPT, RESPONSE, TURN, GROUP = 512, 384, 128, 8

HERMES = """
rlenv: 1
name: toy
tasks:
  train:
    rows: [{question: "What is 6 * 7?", answer: 42}, {question: "What is 6 * 8?", answer: 48}]
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
answer: {from: tag}
limits: {turns: 6, invalid_actions: 6}
rewards:
  correct: {kind: rule, rule: numeric_match, expect: "{{ task.answer }}"}
oracle:
  - call: {calculate: {expression: "{{ task.question | replace('What is ', '') | replace('?', '') }}"}}
  - say: "<answer>{{ results[-1] }}</answer>"
"""
ONE_TEXT = """
rlenv: 1
name: toy
tasks:
  train:
    rows: [{question: "Who?", answer: ann}, {question: "Where?", answer: bern}]
prompt: {user: "{{ task.question }}"}
dialect: search_r1
tools:
  search: {kind: python, function: "tools.py:search"}
user:
  kind: scripted
  cues: [{pattern: "", say: "Search or answer."}]
answer: {from: tag}
limits: {turns: 6, invalid_actions: 6}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
oracle:
  - call: {search: {query: "{{ task.question }}"}}
  - say: "<answer> {{ task.answer }} </answer>"
"""
TOOLS = '''
def search(query: str) -> str:
    """Looks something up."""
    return f"nothing about {query}"
'''


def rehearsed() -> Any:
    """The configuration of these runs."""
    return configuration(response=RESPONSE, prompt=PROMPT, n=GROUP, max_model_len=None, val_kwargs={"n": 1})


@pytest.fixture(params=[HERMES, ONE_TEXT], ids=["hermes", "search_r1"])
def played(request: pytest.FixtureRequest, verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Groups of eight over two tasks and four steps: their outputs, and what the loops wrote of them."""
    from rlenv_verl.rehearse.loop import FOLDER_VARIABLE, RehearsalLoop, RehearsalServer

    (tmp_path / "spec.yaml").write_text(request.param)
    (tmp_path / "tools.py").write_text(TOOLS)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    environment = load(tmp_path / "spec.yaml")
    with quiet():
        made = make_model([environment], tmp_path / "model", model=None, splits=["train"], prompt_tokens=PROMPT,
                          most_tokens=PROMPT + RESPONSE, template_kwargs={}, seed=0)  # fmt: skip
        from transformers import AutoTokenizer

        auto: Any = AutoTokenizer
        tokenizer = auto.from_pretrained(tmp_path / "model")
    assert (made.vocabulary, made.longest + made.filler) == (320, PROMPT)
    config = rehearsed()
    model = type("Config", (), {"hf_config": type("Hf", (), {"vocab_size": 320})})
    server = RehearsalServer(config.actor_rollout_ref.rollout, model, 0)

    class Client:
        async def generate(self, request_id: str, **given: Any) -> Any:
            return await server.generate(given["prompt_ids"], given["sampling_params"], request_id)

    keys: dict[str, Any] = {"spec": str(tmp_path / "spec.yaml"), "turn_tokens": TURN, "process": own_process()}

    async def everything() -> list[Any]:
        with pytest.raises(RuntimeError, match="before the first weights"):
            await server.generate([1], {"max_tokens": 1}, "early")
        await server.update_weights([("w", torch.zeros(2))], True, 0)
        return [
            await build(config, Client(), tokenizer, kind=RehearsalLoop, **keys).run(
                {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True},
                extra_info={"split": "train", "task": task, "is_validation": False, "greedy": False},
                uid=f"{task}-{step}",
                session_id=session,
                global_steps=step,
            )
            for step in (1, 2, 3, 4)
            for task in (0, 1)
            for session in range(GROUP)
        ]

    outputs = asyncio.run(everything())
    (path,) = tmp_path.glob("samples.*.jsonl")
    return outputs, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow(but=1)
def test_every_kind_is_played_at_the_limits_lengths_and_written_down(played: Any) -> None:
    outputs, samples = played
    assert len(outputs) == len(samples) == 4 * 2 * GROUP
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        by_kind.setdefault(sample["kind"], []).append(sample)
    assert set(by_kind) == {"full", "limit", "turns", "malformed", "short", "aborted"}
    assert max(sample["prompt"] for sample in samples) == PROMPT
    for sample in by_kind["full"]:
        assert (sample["response"], sample["reward"], sample["calls"], sample["ended"]) == (RESPONSE, 1.0, 1, "answer")
    for sample in by_kind["limit"]:
        assert (sample["response"], sample["reward"], sample["masked"]) == (RESPONSE, 0.0, False)
    for sample in by_kind["aborted"]:
        assert (sample["trained"], sample["masked"], sample["ended"]) == (0, True, "aborted")
    for sample in by_kind["short"]:
        assert sample["response"] < RESPONSE / 2
        assert sample["reward"] == 1.0
    # Each group has both: there is something to learn from.
    rewards: dict[tuple[int, int], set[float]] = {}
    for sample in samples:
        rewards.setdefault((sample["step"], sample["task"]), set()).add(sample["reward"])
    assert all(len(found) > 1 for found in rewards.values())
    # What was written down is what veRL is handed.
    from rlenv_verl.rehearse.loop import checksum

    handed = Counter(checksum(one.prompt_ids, one.response_ids, one.response_mask) for one in outputs)
    assert handed == Counter(sample["checksum"] for sample in samples)
    assert sum(sample["trained"] for sample in samples) == sum(sum(one.response_mask) for one in outputs)
    changed = list(outputs[0].response_mask)
    changed[0] = 1 - changed[0]
    assert checksum(outputs[0].prompt_ids, outputs[0].response_ids, changed) not in handed


def test_the_server_refuses_what_an_engine_would(verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlenv_verl.rehearse import SCRIPT_KEY
    from rlenv_verl.rehearse.loop import FOLDER_VARIABLE, RehearsalServer, digest

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    model = type("Config", (), {"hf_config": type("Hf", (), {"vocab_size": 320})})
    server = RehearsalServer(rehearsed().actor_rollout_ref.rollout, model, 0)

    async def ask(prompt: int, ids: int, most: int) -> Any:
        script = {"ids": [1] * ids, "aborted": False}
        return await server.generate([1] * prompt, {"max_tokens": most, SCRIPT_KEY: script}, "one")

    first = {"model.embed_tokens.weight": torch.ones(3, 2), "b": torch.zeros(4)}

    async def everything() -> None:
        await server.update_weights(list(first.items())[:1], False, None)
        with pytest.raises(RuntimeError, match="first weights"):
            await ask(1, 1, 1)
        await server.update_weights(list(first.items())[1:], True, 7)
        answer = await ask(PROMPT, RESPONSE, RESPONSE)
        assert (len(answer.token_ids), answer.extra_fields["global_steps"]) == (RESPONSE, 7)
        with pytest.raises(RuntimeError, match="at most 4"):
            await ask(1, 5, 4)
        with pytest.raises(RuntimeError, match="896 together"):
            await ask(PROMPT + 1, RESPONSE, RESPONSE)
        with pytest.raises(RuntimeError, match="no scripted answer"):
            await server.generate([1], {"max_tokens": 1}, "one")

    asyncio.run(everything())
    (path,) = tmp_path.glob("weights.*.jsonl")
    (entry,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (entry["version"], entry["tensors"], entry["digest"]) == (7, 2, digest(first))
    # A tied output layer counts once; another value does not go unseen.
    assert digest(first | {"lm_head.weight": torch.ones(3, 2)}) == digest(first)
    assert digest(first | {"b": torch.tensor([0.0, 0.0, 0.0, 1e-7])}) != digest(first)
