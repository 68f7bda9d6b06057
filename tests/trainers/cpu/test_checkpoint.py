"""The file that carries weights between a trainer and a rollout of its own on the CPU."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def engine(verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    from rlenv_verl.cpu.registries import FileCheckpointEngine

    return FileCheckpointEngine


def connected(engine: Any, *, trainers: int, rollouts: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """Both sides as veRL connects them: prepare, build_topology, init_process_group."""
    senders = [engine(bucket_size=1, is_master=rank == 0, **options) for rank in range(trainers)]
    receivers = [engine(bucket_size=1, **options) for _ in range(rollouts)]
    metadata = [one.prepare() for one in [*senders, *receivers]]
    for side, arguments in zip((senders, receivers), engine.build_topology(trainers, rollouts, metadata), strict=True):
        for rank, one in enumerate(side):
            one.init_process_group(**{name: values[rank] for name, values in arguments.items()})
    return senders, receivers


async def received(receiver: Any) -> list[tuple[str, torch.Tensor]]:
    return [pair async for pair in receiver.receive_weights(global_steps=3)]


@pytest.mark.slow
def test_every_receiver_gets_what_the_first_sender_gave(engine: Any, tmp_path: Path) -> None:
    senders, receivers = connected(engine, trainers=2, rollouts=3)
    named = [("b", torch.arange(6.0).reshape(2, 3)), ("a", torch.ones(4, dtype=torch.bfloat16))]
    gathered: list[list[str]] = [[], []]

    def weights(rank: int) -> Any:
        for name, tensor in named:
            gathered[rank].append(name)
            yield name, tensor if rank == 0 else torch.full_like(tensor, -1)

    async def sync() -> list[list[tuple[str, torch.Tensor]]]:
        # Receivers ask first, as they may: they wait until the file is whole.
        async with asyncio.timeout(60):
            asked = [asyncio.create_task(received(receiver)) for receiver in receivers]
            await asyncio.gather(*(sender.send_weights(weights(rank)) for rank, sender in enumerate(senders)))
            return list(await asyncio.gather(*asked))

    for got in asyncio.run(sync()):
        assert [name for name, _ in got] == ["b", "a"]
        assert all(torch.equal(tensor, given) for (_, tensor), (_, given) in zip(got, named, strict=True))
    # Gathering a sharded tensor takes every worker, so the one that writes nothing still goes through all of them.
    assert gathered == [["b", "a"], ["b", "a"]]
    for one in [*senders, *receivers]:
        one.finalize()
    assert list(tmp_path.iterdir()) == []


def test_weights_that_never_come_are_an_error(engine: Any) -> None:
    _, (receiver,) = connected(engine, trainers=1, rollouts=1, limit_s=0.05)
    with pytest.raises(TimeoutError, match="no weights came from the trainer"):
        asyncio.run(received(receiver))


def test_a_file_stands_for_one_sync_alone(engine: Any) -> None:
    first, _ = connected(engine, trainers=1, rollouts=1)
    assert first[0].prepare()["path"] != first[0].prepare()["path"]


def test_weights_before_the_sides_are_connected_are_an_error(engine: Any) -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        asyncio.run(received(engine(bucket_size=1)))


def test_verl_finds_it_by_its_name(engine: Any) -> None:
    from verl.checkpoint_engine import CheckpointEngineRegistry

    from rlenv_verl.cpu.registries import BACKEND

    assert CheckpointEngineRegistry.get(BACKEND) is engine
