"""The agent loop on a remote environment gives the rows that it gives on a local one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.hosts.serve import ServerLimits
from tests.hosts.serving import serving
from tests.trainers.loops import (
    CALL,
    SPEC,
    Script,
    Server,
    build,
    check_alignment,
    configuration,
    kept,
    own_process,
    sample,
)

SCRIPTS: tuple[Script, ...] = ((CALL, "<answer>42</answer>"), ("<answer>1</answer>",), (CALL, CALL, CALL))
Play = Callable[..., Coroutine[Any, Any, list[Any]]]


@pytest.fixture
def play(verl: Any, tmp_path: Path, tokenizer: Any) -> Play:
    """Plays a sample for each script, and keeps their records in the folder of a name.

    They share their process: the verdict on the chat template takes seconds for each environment that it has not seen.
    """
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    keys: dict[str, Any] = {"spec": str(tmp_path / "spec.yaml"), "turn_tokens": 40, "process": own_process()}

    async def run(name: str, scripts: tuple[Script, ...], **more: Any) -> list[Any]:
        made = [
            build(configuration(), Server(tokenizer, one), tokenizer, record_dir=str(tmp_path / name), **keys, **more)
            for one in scripts
        ]
        try:
            return [await sample(loop) for loop in made]
        finally:
            await made[0].environment.aclose()

    return run


def test_samples_have_the_same_rows(play: Play, tmp_path: Path) -> None:
    here = asyncio.run(play("here", SCRIPTS))
    with serving(load(tmp_path / "spec.yaml")) as served:
        there = asyncio.run(play("there", SCRIPTS, remote=f"{served.url}/env/toy"))
    for mine, far in zip(here, there, strict=True):
        check_alignment(far)
        for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns"):
            assert getattr(far, name) == getattr(mine, name)
        assert far.extra_fields["reward_extra_info"] == mine.extra_fields["reward_extra_info"]
    records = [[record for _, record in kept(tmp_path / name)] for name in ("here", "there")]
    for local, remote in zip(*records, strict=True):
        assert [turn.action for turn in remote.turns] == [turn.action for turn in local.turns]
        assert (remote.seed, remote.reason, remote.reward.total) == (local.seed, local.reason, local.reward.total)


def test_a_server_that_dies_in_an_episode_masks_its_sample(play: Play, tmp_path: Path) -> None:
    async def dies() -> str:
        await asyncio.to_thread(served.stop)
        return "<answer>42</answer>"

    with serving(load(tmp_path / "spec.yaml"), limits=ServerLimits(drain_s=0)) as served:
        (output,) = asyncio.run(play("run", ((CALL, dies),), remote=f"{served.url}/env/toy"))
    info = output.extra_fields["reward_extra_info"]
    assert (info["masked"], info["invalid"], sum(output.response_mask)) == (1.0, 1.0, 0)
    ((_, lost),) = kept(tmp_path / "run")
    assert lost.reason == "remote"
