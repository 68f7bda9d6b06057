"""The groups of a run of TRL over several processes, and its figures: a mean over batches is that over episodes."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from types import SimpleNamespace

import pytest

from rlenv.errors import UsageError
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_train.player import Address, Player
from rlenv_train.samples import EpisodeFigures
from rlenv_trl.rollout import groups_of, rlenv_reward
from rlenv_trl.train import _even_tasks
from tests.support.environments import BASE, Make


def episode(reward: float | None) -> EpisodeFigures:
    return EpisodeFigures("sums", "test", 0, "answer", reward=reward, success=reward, is_invalid=reward is None)


@pytest.mark.parametrize(
    ("count", "processes", "size"),
    [(64, 1, 64), (100, 1, 50), (108, 1, 54), (40, 1, 40), (101, 1, 51), (1000, 1, 50), (201, 2, 50), (202, 2, 1)],
)
def test_batches_of_a_validation_are_alike_or_nearly(count: int, processes: int, size: int) -> None:
    config = SimpleNamespace(per_device_eval_batch_size=64, world_size=processes)
    tasks, found = _even_tasks([{}] * count, config)
    assert (len(tasks), found) == (count - count % processes, size)


def test_each_episode_counts_once_whatever_the_batches() -> None:
    logged = defaultdict[str, list[float]](list)

    def log(name: str, value: float) -> None:
        logged[name].append(value)

    for rewards in ([1.0, 1.0, None, 1.0], [0.0]):
        episodes = [episode(reward) for reward in rewards]
        given = rlenv_reward([], rlenv_reward=rewards, rlenv_figures=episodes, log_metric=log)
        assert given == rewards
    assert {name: fmean(logged[f"rlenv/sums/{name}"]) for name in ("reward", "success")} == {
        "reward": 0.75,
        "success": 0.75,
    }
    assert logged["rlenv/sums/invalid"] == [1.0, 0.0]


def test_a_group_is_counted_over_all_processes_and_one_that_is_compared_is_played_by_one(
    make_environment: Make,
) -> None:
    def groups(spec: str, process: int, each: int) -> list[list[tuple[str, int]]]:
        player = Player([make_environment(spec)], small_tokenizer(), chat_template=CHAT_TEMPLATE)
        tasks = [at // 4 for at in range(8)][process * each : (process + 1) * each]
        found = [Address("toy", "train", task) for task in tasks]
        made = groups_of(player, found, 4, 3, first=process * each, is_validation=False)
        return [[(sample.task.group, sample.task.sample) for sample in group] for group in made]

    one, two = "3/toy/train/0/0", "3/toy/train/1/1"
    assert groups(BASE, 0, 6) == [[(one, 0), (one, 1), (one, 2), (one, 3)], [(two, 0), (two, 1)]]
    assert groups(BASE, 1, 6) == [[(two, 2), (two, 3)]]
    compared = BASE.replace("numeric_match}", "numeric_match}\n  rank: {kind: group, of: correct, by: rank}")
    assert len(groups(compared, 0, 4)) == 1
    with pytest.raises(UsageError, match=r"per_device_train_batch_size: .* two processes play.*num_generations \(4\)"):
        groups(compared, 0, 6)
