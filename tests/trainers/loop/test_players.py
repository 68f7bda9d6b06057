"""Several players through the agent loop: a sample is trained on its own player's tokens alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting import ADD, COUNTING, WORLD, all_of
from tests.trainers.loops import Server, build, check_alignment, configuration, kept, own_process


def run(tmp_path: Path, tokenizer: Any, actions: list[Any], *, task: int = 0, spec: str = COUNTING) -> tuple[Any, Any]:
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "spec.yaml").write_text(spec)
    server = Server(tokenizer, actions)
    options: dict[str, Any] = {"record_dir": str(tmp_path / "records"), "process": own_process()}

    async def played() -> Any:
        loop = build(configuration(prompt=2048), server, tokenizer, spec=str(tmp_path / "spec.yaml"), **options)
        where = {"index": 0, "split": "train", "task": task, "greedy": False, "is_validation": False}
        return await loop.run({"temperature": 1.0}, extra_info=where, global_steps=5, raw_prompt=[])

    return asyncio.run(played()), server


@pytest.mark.slow
@pytest.mark.parametrize(("task", "player"), [(0, "a"), (1, "b")])
def test_both_players_are_sampled_and_the_tasks_own_is_trained(
    verl: Any, tmp_path: Path, tokenizer: Any, task: int, player: str
) -> None:
    output, server = run(tmp_path, tokenizer, [ADD] * 4, task=task)
    check_alignment(output)
    assert (output.reward_score, output.extra_fields["reward_extra_info"]["turns"], len(server.requests)) == (2, 2, 4)
    shown = tokenizer.decode(output.prompt_ids)
    assert f"You are {player}." in shown
    written = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(written) == (ADD + "<|im_end|>") * 2
    # What this player was shown the second time is what it is trained on.
    own = [one["prompt_ids"] for one in server.requests if f"You are {player}." in tokenizer.decode(one["prompt_ids"])]
    assert own[1] == (output.prompt_ids + output.response_ids)[: len(own[1])]
    ((_, record),) = kept(tmp_path / "records")
    assert {name: one.reward.total for name, one in all_of(record).items()} == {"a": 2.0, "b": 2.0}


@pytest.mark.slow
def test_a_server_that_fails_in_another_players_turn_is_told(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ConnectionError):
        run(tmp_path, tokenizer, [ADD, ConnectionError("gone")])


def test_an_opponent_of_the_spec_asks_no_server(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    spec = COUNTING.replace("next:", "opponent: random, next:")
    output, server = run(tmp_path, tokenizer, [ADD] * 5, spec=spec)
    assert len(server.requests) == output.extra_fields["reward_extra_info"]["turns"]
    assert output.extra_fields["rlenv"]["masked"] == ""
