"""What a run of TRL logs of its episodes: a mean over several batches is the mean over their episodes."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from rlenv_train.samples import EpisodeFigures
from rlenv_trl.rollout import rlenv_reward


def episode(reward: float | None) -> EpisodeFigures:
    return EpisodeFigures("sums", "test", 0, "answer", reward=reward, success=reward, is_invalid=reward is None)


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
