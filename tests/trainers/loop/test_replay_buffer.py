"""What the replay buffers add to veRL's, over a TransferQueue in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlenv.errors import InvalidReward, UsageError
from rlenv.runs.folder import open_run
from rlenv_train.samples import EpisodeFigures
from rlenv_verl.loop import LostWorker
from tests.support.kept import keep


@dataclass
class Queue:
    """TransferQueue's key-value face, as the buffers use it."""

    tags: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {"train": {}, "val": {}})
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)

    def kv_list(self) -> Mapping[str, Any]:
        return {partition: dict(tags) for partition, tags in self.tags.items()}

    def kv_clear(self, *, keys: Sequence[str], partition_id: str) -> None:
        for key in keys:
            self.tags[partition_id].pop(key, None)

    def kv_batch_put(self, *, keys: Sequence[str], partition_id: str, fields: Any) -> None:
        for name, values in fields.items():
            for key, value in zip(keys, values, strict=True):
                self.fields[key][name] = getattr(value, "data", value)

    def kv_batch_get(self, *, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        return {name: [self.fields[key][name] for key in keys] for name in select_fields}

    def add(self, uid: str, episodes: Sequence[EpisodeFigures], *, partition: str = "train", step: int = 1) -> None:
        """A finished group."""
        self.tags[partition][uid] = {"is_prompt": True, "status": "finished", "global_steps": step}
        for session, episode in enumerate(episodes):
            info = {"success": episode.success, "invalid": float(episode.is_invalid)}
            for row in range(episode.rows):
                key = f"{uid}_{session}_{row}"
                self.tags[partition][key] = {"status": "success"}
                carried = 0.1 * (episode.rows - 1 - row)
                extra = {"rlenv": episode.as_fields(), "rlenv_carried": carried, "reward_extra_info": info}
                extra["min_global_steps"] = step
                self.fields[key] = {"uid": uid, "extra_fields": extra}


@pytest.fixture
def queue(verl: Any, monkeypatch: pytest.MonkeyPatch) -> Queue:
    import transfer_queue

    queue = Queue()
    for name in ("kv_list", "kv_clear", "kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
    return queue


def buffer(name: str = "RlenvReplayBuffer", *, refill: Any = None, watched: Any = None, **options: Any) -> Any:
    from rlenv_verl.loop import replay_buffer as sampler

    return getattr(sampler, name)(
        trainer_mode="sync" if name == "RlenvReplayBuffer" else "colocate_async",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={"poll_interval_s": 0.001, **options},
        refill_fn=refill or (lambda count: pytest.fail(f"asked for {count} new prompts")),
        watched=watched,
    )


def episode(reward: float | None, *, task: int = 0, ended: str = "answer", **more: Any) -> EpisodeFigures:
    masked = ended if reward is None else ""
    return EpisodeFigures(
        "toy", "train", task, ended, masked=masked, reward=reward, success=reward, is_invalid=reward is None, **more
    )


BUFFERS = pytest.mark.parametrize("name", ["RlenvReplayBuffer", "RlenvReplayBufferAsync"])


@BUFFERS
def test_a_steps_metrics_hold_the_figures_of_its_episodes(queue: Queue, name: str) -> None:
    queue.add("a", [episode(1.0), episode(0.0, ended="turns")])
    queue.add("b", [episode(None, ended="resource"), episode(1.0)])
    batch, metrics = buffer(name).sample(global_steps=1, partition_id="train", batch_size=2)
    assert len(batch.keys) == 4
    assert metrics["rlenv/toy/episodes"] == 4
    assert metrics["rlenv/toy/reward"] == pytest.approx(2 / 3)
    assert (metrics["rlenv/toy/invalid"], metrics["rlenv/toy/masked/resource"]) == (1, 1)
    assert {key: value for key, value in metrics.items() if "/ended/" in key} == {
        "rlenv/toy/ended/answer": 2,
        "rlenv/toy/ended/resource": 1,
        "rlenv/toy/ended/turns": 1,
    }


@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_reward_that_must_not_fail_ends_the_run(queue: Queue, partition: str) -> None:
    queue.add(
        "a", [episode(1.0), episode(None, ended="reward", stops="rewards.x could not be measured")], partition=partition
    )
    with pytest.raises(InvalidReward, match=r"the run ends: rewards\.x could not be measured"):
        buffer().sample(global_steps=1, partition_id=partition, batch_size=1)


@BUFFERS
def test_an_episode_of_several_rows_is_counted_once(queue: Queue, name: str, tmp_path: Path) -> None:
    file = tmp_path / "trained.jsonl"
    queue.add("a", [episode(1.0, rows=3), episode(0.0, ended="turns", differences=2)])
    queue.add("b", [episode(None, ended="resource"), episode(1.0, rows=2)])
    batch, metrics = buffer(name, trained_file=str(file)).sample(global_steps=1, partition_id="train", batch_size=2)
    assert len(batch.keys) == 7
    assert metrics["rlenv/toy/episodes"] == 4
    assert metrics["rlenv/toy/reward"] == pytest.approx(2 / 3)
    assert metrics["rlenv/toy/rows"] == pytest.approx(6 / 3)
    assert metrics["rlenv/toy/differences"] == pytest.approx(2 / 3)
    assert metrics["rlenv/toy/masked/resource"] == 1
    assert [(entry["episodes"], entry["valid"]) for entry in map(json.loads, file.read_text().splitlines())] == [
        (2, 2),
        (2, 1),
    ]


def test_rows_are_labelled_where_an_episode_has_several(queue: Queue) -> None:
    from rlenv_verl.estimators.rows import RowLabel

    queue.add("a", [episode(1.0, rows=3), episode(0.0)])
    buffer().sample(global_steps=1, partition_id="train", batch_size=1)
    labels = {key: RowLabel.of(str(queue.fields[key]["uid"]), row=0) for key in queue.fields}
    assert labels == {
        "a_0_0": RowLabel("a", "0", 0, 0.2),
        "a_0_1": RowLabel("a", "0", 1, 0.1),
        "a_0_2": RowLabel("a", "0", 2, 0.0),
        "a_1_0": RowLabel("a", "1", 0, 0.0),
    }
    queue.tags["train"].clear()
    queue.add("b", [episode(1.0), episode(0.0)])
    buffer().sample(global_steps=2, partition_id="train", batch_size=1)
    assert queue.fields["b_0_0"]["uid"] == "b"


def test_groups_are_filtered_by_episodes_and_not_by_rows(queue: Queue) -> None:
    queue.add("same", [episode(1.0, rows=2), episode(None, ended="resource")])
    queue.add("other", [episode(1.0, rows=2), episode(0.0)])
    replay = buffer(filter_groups_metric="reward", train_batch_size=1, refill=lambda count: None)
    batch, metrics = replay.sample(global_steps=1, partition_id="train", batch_size=1)
    assert {key.split("_")[0] for key in batch.keys} == {"other"}
    assert metrics["training/filter_groups/evicted_samples"] == 1


class Trainer:
    """The part of veRL's trainer that a buffer is handed a method of."""

    def __init__(self, *, critic: bool = True, estimator: str = "gae") -> None:
        from omegaconf import OmegaConf

        self.config = OmegaConf.create(
            {
                "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 2}, "rollout": {"n": 2}},
                "critic": {"ppo_mini_batch_size": "${actor_rollout_ref.actor.ppo_mini_batch_size}"} if critic else None,
                "trainer": {"n_gpus_per_node": 1, "nnodes": 1},
                "algorithm": {"adv_estimator": estimator},
            }
        )

    def add(self, count: int) -> None:
        raise AssertionError(f"asked for {count} prompts")

    @property
    def sizes(self) -> tuple[int, int]:
        config = self.config
        critic = int(config.critic.ppo_mini_batch_size) if config.critic else 0
        return int(config.actor_rollout_ref.actor.ppo_mini_batch_size), critic


@pytest.mark.parametrize("critic", [True, False])
def test_a_batch_of_more_rows_makes_no_more_updates(queue: Queue, critic: bool) -> None:
    trainer = Trainer(critic=critic)
    replay = buffer(refill=trainer.add)
    queue.add("a", [episode(1.0, rows=4), episode(0.0)])
    queue.add("b", [episode(1.0, rows=3), episode(0.0)])
    replay.sample(global_steps=1, partition_id="train", batch_size=2)
    # Nine rows of two prompts, two samples each: one update of ten rows.
    assert trainer.sizes == (5, 5 if critic else 0)
    queue.tags["train"].clear()
    queue.add("c", [episode(1.0), episode(0.0)])
    queue.add("d", [episode(1.0), episode(0.0)])
    replay.sample(global_steps=2, partition_id="train", batch_size=2)
    assert trainer.sizes == (2, 2 if critic else 0)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("workers", [1, 4, 6])
def test_mini_batches_fit_any_number_of_rows(size: int, n: int, workers: int) -> None:
    from rlenv_verl.loop.replay_buffer import fit_size

    prompts, updates = 8, 8 // size
    assert fit_size(size, rows=prompts * n, prompts=prompts, n=n, workers=workers) == size
    for rows in range(prompts * n + 1, 5 * prompts * n, 7):
        found = fit_size(size, rows=rows, prompts=prompts, n=n, workers=workers)
        assert math.ceil(rows / (found * n)) <= updates
        assert found * n % workers == 0
        # No larger than it has to be.
        assert math.ceil(rows / ((found - workers) * n)) > updates if found > workers else True


def test_validation_is_handed_on_as_it_is(queue: Queue) -> None:
    queue.add("a", [episode(1.0)], partition="val")
    _, metrics = buffer().sample(global_steps=1, partition_id="val", batch_size=1)
    assert metrics == {}


def test_what_a_step_trains_on_is_written_down(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "trained.jsonl"
    replay = buffer(trained_file=str(file))
    queue.add("a", [episode(1.0, task=3), episode(None, task=3, ended="reward")])
    replay.sample(global_steps=1, partition_id="train", batch_size=1)
    queue.tags["train"].clear()
    queue.add("b", [episode(1.0, task=9)])
    replay.sample(global_steps=2, partition_id="train", batch_size=1)
    first, second = map(json.loads, file.read_text().splitlines())
    counts = {"episodes": 2, "valid": 1, "reward": 1.0, "success": 1.0}  # of those that are valid
    assert first == {"step": 1, "spec": "toy", "split": "train", "task": 3, **counts}
    assert (second["step"], second["task"]) == (2, 9)


@BUFFERS
@pytest.mark.parametrize("metric", ["reward", "success"])
def test_a_masked_sample_does_not_make_a_group_look_different(queue: Queue, name: str, metric: str) -> None:
    asked: list[int] = []

    def refill(count: int) -> None:
        asked.append(count)
        queue.add(f"new{len(asked)}", [episode(1.0, task=7), episode(0.0, task=7)])

    queue.add("same", [episode(1.0), episode(1.0), episode(None, ended="resource")])
    queue.add("none", [episode(None, ended="resource"), episode(None, ended="resource")])
    queue.add("good", [episode(1.0, task=5), episode(0.0, task=5), episode(None, task=5, ended="resource")])
    options = {"filter_groups_metric": metric, "train_batch_size": 2}
    batch, metrics = buffer(name, refill=refill, **options).sample(global_steps=1, partition_id="train", batch_size=2)
    assert {key.split("_")[0] for key in batch.keys} == {"good", "new1"}
    assert metrics["training/filter_groups/evicted_samples"] == 2
    assert asked


def test_groups_of_one_are_never_filtered(verl: Any) -> None:
    from rlenv_verl.loop.replay_buffer import is_without_signal

    assert not is_without_signal([1.0])
    assert not is_without_signal([None])
    assert is_without_signal([1.0, None])
    assert is_without_signal([0.5, 0.5])
    assert not is_without_signal([0.5, 0.25, None])


def test_filtering_ends_where_every_episode_fails(queue: Queue) -> None:
    asked: list[int] = []

    def refill(count: int) -> None:
        asked.append(count)
        for number in range(count):
            queue.add(f"n{len(asked)}x{number}", [episode(None, ended="resource")] * 2)

    refill(1)
    replay = buffer(refill=refill, filter_groups_metric="reward", train_batch_size=1, most_filtered_batches=5)
    with pytest.raises(RuntimeError, match=r"in none do the valid samples differ in 'reward'.*most_filtered_batches"):
        replay.sample(global_steps=1, partition_id="train", batch_size=1)


@dataclass
class Died:
    """In place of `Watched`: a server died, and who asks in passing is not told yet."""

    within_s: float = 0.0

    def look(self, *, within_s: float = 0.0) -> None:
        self.within_s = within_s

    def check(self) -> None:
        if self.within_s:
            raise LostWorker("the rollout server 0 died")


def test_a_batch_of_nothing_names_who_died(queue: Queue) -> None:
    queue.tags["train"]["a"] = {"is_prompt": True, "status": "failure", "global_steps": 1}
    with pytest.raises(LostWorker, match="the rollout server 0 died"):
        buffer(watched=Died()).sample(global_steps=1, partition_id="train", batch_size=1)


def test_groups_that_all_fail_name_who_died_and_not_the_filter(queue: Queue) -> None:
    queue.add("a", [episode(None, ended="resource")] * 2)
    options: dict[str, Any] = {"filter_groups_metric": "reward", "train_batch_size": 1, "most_filtered_batches": 0}
    with pytest.raises(LostWorker, match="the rollout server 0 died"):
        buffer(watched=Died(), **options).sample(global_steps=1, partition_id="train", batch_size=1)


def test_an_unknown_option_or_metric_names_what_there_is(queue: Queue) -> None:
    with pytest.raises(UsageError, match=r"poll_interval: it is not an option.*did you mean 'poll_interval_s'"):
        buffer(poll_interval=2)
    with pytest.raises(UsageError, match="needs train_batch_size"):
        buffer(filter_groups_metric="reward")
    queue.add("a", [episode(1.0), episode(0.0)])
    replay = buffer(filter_groups_metric="acc", train_batch_size=1)
    with pytest.raises(UsageError, match="no 'acc'; there are reward, success, invalid"):
        replay.sample(global_steps=1, partition_id="train", batch_size=1)


def test_figures_without_a_valid_episode_have_no_means() -> None:
    from rlenv_train.samples import step_figures

    figures = step_figures([episode(None, ended="reward", began=1.0, finished=3.0, calls=4, tokens=10)])
    assert "rlenv/toy/reward" not in figures
    assert (figures["rlenv/toy/calls_per_s"], figures["rlenv/toy/tokens_per_s"]) == (2.0, 5.0)
    assert all(math.isfinite(value) for value in figures.values())


def test_each_spec_has_figures_of_its_own() -> None:
    from rlenv_train.samples import step_figures

    other = EpisodeFigures("other", "train", 0, "answer", reward=0.25, terms={"a": 0.5, "b": None})
    figures = step_figures([episode(1.0), other])
    assert (figures["rlenv/toy/reward"], figures["rlenv/other/reward"]) == (1.0, 0.25)
    assert figures["rlenv/other/term/a"] == 0.5
    assert "rlenv/other/term/b" not in figures


@BUFFERS
def test_what_becomes_of_an_episode_is_kept_by_its_id(queue: Queue, name: str, tmp_path: Path) -> None:
    first, second, third, _ = ids = keep(tmp_path, 4)
    queue.add("a", [episode(1.0, id=first), episode(0.0, ended="turns", zeroed="turns", id=second)])
    queue.add("b", [episode(None, ended="resource", id=third), episode(1.0)])
    buffer(name, record_dir=str(tmp_path)).sample(global_steps=3, partition_id="train", batch_size=2)
    rows = {row["id"]: row for row in open_run(tmp_path).table.to_pylist()}
    assert [(rows[id]["fate"], rows[id]["why"], rows[id]["staleness"]) for id in ids] == [
        ("trained", "", 1),
        ("trained", "counted as 0: turns", 1),
        ("masked", "resource", 1),
        (None, None, None),
    ]


def test_episodes_that_could_not_be_kept_are_counted_wherever_they_were_played(queue: Queue, tmp_path: Path) -> None:
    """In the next step's figures: those of a validation and of a filtered group belong to no step of their own."""
    lost = episode(1.0, is_lost=True)
    options: dict[str, Any] = {"filter_groups_metric": "reward", "train_batch_size": 1, "refill": lambda count: None}
    replay = buffer(record_dir=str(tmp_path), **options)
    queue.add("held-out", [lost, episode(1.0)], partition="val")
    assert "rlenv/toy/not_kept" not in replay.sample(global_steps=0, partition_id="val", batch_size=1)[1]
    queue.add("same", [lost, lost])
    queue.add("other", [lost, episode(0.0)])
    assert replay.sample(global_steps=1, partition_id="train", batch_size=1)[1]["rlenv/toy/not_kept"] == 4.0
    queue.add("next", [episode(1.0), episode(0.0)])
    assert "rlenv/toy/not_kept" not in replay.sample(global_steps=2, partition_id="train", batch_size=1)[1]


def test_a_group_that_is_filtered_says_why(queue: Queue, tmp_path: Path) -> None:
    ids = keep(tmp_path, 6)
    queue.add("same", [episode(1.0, id=ids[0]), episode(1.0, id=ids[1])])
    queue.add("other", [episode(1.0, id=ids[2]), episode(0.0, id=ids[3])])
    queue.add("more", [episode(1.0, id=ids[4]), episode(0.0, id=ids[5])], step=2)
    options: dict[str, Any] = {"filter_groups_metric": "reward", "train_batch_size": 1, "refill": lambda count: None}
    buffer(record_dir=str(tmp_path), **options).sample(global_steps=1, partition_id="train", batch_size=1)
    rows = {row["id"]: row for row in open_run(tmp_path).table.to_pylist()}
    assert [(rows[id]["fate"], rows[id]["why"]) for id in ids] == [
        *[("filtered", "the group has no signal in reward")] * 2,
        *[("trained", "")] * 2,
        *[("filtered", "the step had enough groups")] * 2,
    ]


def test_an_episodes_advantage_comes_from_the_estimator(queue: Queue, tmp_path: Path) -> None:
    """Through the labels that the trainer hands to it in any order."""
    import torch

    from rlenv_verl.estimators import grpo

    ids = keep(tmp_path, 3)
    queue.add("a", [episode(1.0, id=ids[0], rows=2), episode(0.0, id=ids[1]), episode(None, id=ids[2])])
    trainer = Trainer(estimator="rlenv_grpo")
    replay = buffer(record_dir=str(tmp_path), refill=trainer.add)
    batch, _ = replay.sample(global_steps=1, partition_id="train", batch_size=1)
    keys = list(reversed(batch.keys))
    labels = np.array([queue.fields[key]["uid"] for key in keys], dtype=object)
    rewards = torch.tensor([[0.0, {"a_0_0": 1.1, "a_0_1": 1.0}.get(key, 0.0)] for key in keys])
    mask = torch.tensor([[0, 0] if key.startswith("a_2") else [1, 1] for key in keys])
    advantages, _ = grpo(rewards, mask, labels)
    rows = {row["id"]: row for row in open_run(tmp_path).table.to_pylist()}
    assert rows[ids[0]]["advantage"] == pytest.approx(float(advantages[keys.index("a_0_0"), 0]))
    assert rows[ids[0]]["advantage"] > 0 > rows[ids[1]]["advantage"]
    assert rows[ids[2]]["advantage"] is None


@pytest.mark.parametrize(("estimator", "is_labelled"), [("rlenv_rloo", True), ("gae", False)])
def test_other_estimators_get_the_prompts_as_they_are(
    queue: Queue, tmp_path: Path, estimator: str, is_labelled: bool
) -> None:
    queue.add("a", [episode(1.0, id="x"), episode(0.0, id="y")])
    trainer = Trainer(estimator=estimator)
    buffer(record_dir=str(tmp_path), refill=trainer.add).sample(global_steps=1, partition_id="train", batch_size=1)
    assert (queue.fields["a_0_0"]["uid"] != "a") is is_labelled
