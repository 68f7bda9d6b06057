"""An episode of several rows trains as the same episode in one row: every sampled token once, with its advantage.

Each law splits the episodes of a batch between turns and compares with the batch as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import UsageError
from rlenv_train.fate import Row as OutcomeRow
from rlenv_train.fate import place_rewards
from rlenv_verl.estimators.rows import RowLabel, episodes_of
from tests.trainers.settings import test_masking as masking

ESTIMATORS = [
    "rlenv_grpo",
    "rlenv_grpo_shuffled",
    "rlenv_rloo",
    "rlenv_rloo_shuffled",
    "rlenv_reinforce_plus_plus",
    "rlenv_reinforce_plus_plus_shuffled",
    "rlenv_reinforce_plus_plus_baseline",
    "rlenv_reinforce_plus_plus_baseline_shuffled",
    "rlenv_mt_grpo",
    "rlenv_process_grpo",
]


@dataclass(frozen=True)
class Turn:
    """Sampled tokens, and the observation's behind them; `row` says that a new row begins after it."""

    sampled: int
    observed: int
    reward: float
    splits: bool


@dataclass(frozen=True)
class Episode:
    group: int
    turns: tuple[Turn, ...]
    is_masked: bool = False


def batch(*, groups: int = 3, size: int = 4, seed: int = 1) -> list[Episode]:
    """Groups of episodes with one to four turns, two of them masked; half of all places to split are taken."""
    random = np.random.default_rng(seed)
    out = []
    for group in range(groups):
        for member in range(size):
            turns = tuple(
                Turn(int(random.integers(1, 4)), int(random.integers(1, 3)), float(random.normal()), bool(split))
                for split in random.integers(0, 2, size=int(random.integers(1, 5)))
            )
            out.append(Episode(group, turns, is_masked=(group, member) in {(0, 1), (2, 2)}))
    return out


@dataclass(frozen=True)
class Tokens:
    """Rows as an estimator is handed them, and for each sampled token of each episode in order, where it stands."""

    rewards: torch.Tensor
    mask: torch.Tensor
    index: np.ndarray
    places: list[list[tuple[int, int]]]

    def along(self, values: torch.Tensor) -> list[list[float]]:
        """The values of the sampled tokens by episode, however it falls into rows."""
        return [[float(values[row, at]) for row, at in found] for found in self.places]


def tokens_of(episodes: Sequence[Episode], *, split: bool, penalties: bool = False, padding: int = 0) -> Tokens:
    """The batch in rows.

    Args:
        split: start a new row where the turns say so; without, every episode is one row.
        penalties: put a small penalty on each sampled token, as KL in the reward does.
        padding: veRL's own rows to fill a mini-batch up.
    """
    rows: list[tuple[str, list[float], list[int]]] = []
    places: list[list[tuple[int, int]]] = []
    sampled = 0
    for session, episode in enumerate(episodes):
        parts: list[list[Turn]] = [[]]
        for turn in episode.turns:
            parts[-1].append(turn)
            if turn.splits and split and not episode.is_masked:
                parts.append([])
        made = []
        for part in [part for part in parts if part]:
            mask = [flag for turn in part for flag in [1] * turn.sampled + [0] * turn.observed]
            ends = np.cumsum([turn.sampled + turn.observed for turn in part]).tolist()
            spans = [(end - t.observed - t.sampled, end - t.observed) for end, t in zip(ends, part, strict=True)]
            made.append(OutcomeRow((0,), mask, mask, (0.0,) * len(mask), spans))
        total = sum(turn.reward for turn in episode.turns)
        placed = place_rewards(made, [turn.reward for turn in episode.turns], total=total)
        found: list[tuple[int, int]] = []
        for place, row in enumerate(placed):
            values = list(row.token_rewards)
            mask = list(row.mask)
            if episode.is_masked:
                values, mask = [0.0] * len(mask), [0] * len(mask)
            for at, flag in enumerate(mask):
                if flag:
                    found.append((len(rows), at))
                    sampled += 1
                    values[at] -= 0.01 * (sampled % 7) if penalties else 0.0
            label = RowLabel(f"u{episode.group}", str(session), place, row.carried).text if split else None
            rows.append((label or f"u{episode.group}", values, mask))
        places.append(found)
    for pad in range(padding):
        rows.append((f"pad{pad}", [0.0], [0]))
    width = max(len(mask) for _, _, mask in rows)
    rewards = torch.zeros(len(rows), width, dtype=torch.float64)
    masks = torch.zeros(len(rows), width, dtype=torch.float64)
    for at, (_, values, mask) in enumerate(rows):
        rewards[at, : len(values)] = torch.tensor(values, dtype=torch.float64)
        masks[at, : len(mask)] = torch.tensor(mask, dtype=torch.float64)
    return Tokens(rewards, masks, np.array([label for label, _, _ in rows], dtype=object), places)


def estimated(tokens: Tokens, estimator: str, **config: Any) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns along the sampled tokens of each episode."""
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import rlenv_verl.estimators  # noqa: F401
    from rlenv_verl.estimators import shuffle_generator

    shuffle_generator().manual_seed(0)  # a control draws the same permutation for both
    found, returns = get_adv_estimator_fn(estimator)(
        token_level_rewards=tokens.rewards, response_mask=tokens.mask, index=tokens.index, config=AlgoConfig(**config)
    )
    assert not (found * (1 - tokens.mask)).any()
    return tokens.along(found), tokens.along(returns)


def flat(values: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in values for value in row]


@pytest.mark.parametrize("penalties", [False, True], ids=["", "penalties"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_sampled_token_has_the_advantage_that_it_has_in_one_row(
    verl: Any, estimator: str, penalties: bool
) -> None:
    episodes = batch()
    whole = tokens_of(episodes, split=False, penalties=penalties)
    rows = tokens_of(episodes, split=True, penalties=penalties, padding=3)
    assert len(rows.mask) > len(whole.mask) + 3
    expected, found = estimated(whole, estimator), estimated(rows, estimator)
    assert flat(found[0]) == pytest.approx(flat(expected[0]), abs=1e-9)
    assert flat(found[1]) == pytest.approx(flat(expected[1]), abs=1e-9)
    assert any(flat(found[0]))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_are_discounted_over_the_tokens_of_all_rows(verl: Any, gamma: float) -> None:
    episodes = batch(seed=4)
    whole, rows = tokens_of(episodes, split=False), tokens_of(episodes, split=True)
    expected = estimated(whole, "rlenv_reinforce_plus_plus", gamma=gamma)
    found = estimated(rows, "rlenv_reinforce_plus_plus", gamma=gamma)
    assert flat(found[1]) == pytest.approx(flat(expected[1]), abs=1e-9)
    assert flat(found[0]) == pytest.approx(flat(expected[0]), abs=1e-9)


def test_rows_are_complete_for_verls_own_estimators_without_a_discount(verl: Any) -> None:
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    def returns(tokens: Tokens) -> list[float]:
        _, found = compute_gae_advantage_return(
            tokens.rewards, torch.zeros_like(tokens.rewards), tokens.mask, gamma=1.0, lam=1.0
        )
        return flat(tokens.along(found))

    episodes = batch(seed=2)
    whole, rows = tokens_of(episodes, split=False), tokens_of(episodes, split=True)
    assert returns(rows) == pytest.approx(returns(whole), abs=1e-9)


def test_verls_grpo_counts_an_episode_once_for_each_row(verl: Any) -> None:
    # Why its estimators are refused with rows.
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    episodes = batch()
    rows = tokens_of(episodes, split=True)
    groups = np.array([RowLabel.of(str(label), row=0).uid for label in rows.index])
    theirs, _ = compute_grpo_outcome_advantage(rows.rewards, rows.mask, groups)
    mine, _ = estimated(rows, "rlenv_grpo")
    assert flat(rows.along(theirs)) != pytest.approx(flat(mine), abs=1e-2)


def test_equal_rewards_stay_equal_however_an_episode_falls_into_rows(verl: Any) -> None:
    turns = (Turn(2, 1, 0.0, True), Turn(1, 1, 0.0, True), Turn(2, 1, 0.3, False))
    episodes = [Episode(0, turns), Episode(0, (replace(turns[2], reward=0.3),)), Episode(0, turns[1:])]
    rows = tokens_of(episodes, split=True)
    rewards = episodes_of(rows.rewards.float(), rows.mask.float(), rows.index.tolist()).rewards
    assert rewards.std() == 0.0
    assert not any(flat(estimated(replace(rows, rewards=rows.rewards.float()), "rlenv_grpo")[0]))


@given(
    st.text("0123456789abcdef-", min_size=1, max_size=36),
    st.integers(0, 99),
    st.integers(0, 99),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_label_reads_back(uid: str, session: int, index: int, carried: float) -> None:
    label = RowLabel(uid, str(session), index, carried)
    assert RowLabel.of(label.text, row=7) == label


def test_any_other_label_is_an_episode_of_its_own() -> None:
    rewards, mask = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
    episodes = episodes_of(rewards, mask, ["u1", "u1"])
    assert episodes.groups == ("u1", "u1")
    assert episodes.rewards.tolist() == [1.0, 2.0]


# The gradient of veRL's own losses.


def split_row(row: masking.Row, label: str, carried: float) -> list[tuple[masking.Row, str]]:
    """The row as two, the second behind a prompt of all that stood before; the same where it samples one run alone."""
    starts = [at for at in range(1, len(row.mask)) if row.mask[at] and not row.mask[at - 1] and row.mask[:at].any()]
    if row.is_masked or not starts:
        return [(row, f"{label}|0|0.0")]
    at = starts[0]
    first = replace(
        row,
        ids=row.ids[: row.prompt + at],
        mask=row.mask[:at],
        old_gap=row.old_gap[:at],
        reference_gap=row.reference_gap[:at],
    )
    second = replace(
        row, prompt=row.prompt + at, mask=row.mask[at:], old_gap=row.old_gap[at:], reference_gap=row.reference_gap[at:]
    )
    return [(first, f"{label}|0|{carried!r}"), (second, f"{label}|1|0.0")]


def gradients(loss: str, mode: str = "token-mean") -> tuple[torch.Tensor, torch.Tensor]:
    """Of a batch in one row an episode, and of the same in two where there are two runs of sampled tokens."""
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import rlenv_verl.estimators  # noqa: F401

    rows = masking.batch()
    whole = masking.gradient(rows, mode=mode, loss=loss, divisor=len(rows))
    parts = [
        part for session, row in enumerate(rows) for part in split_row(row, f"rlenv|{row.group}|{session}", row.reward)
    ]
    assert len(parts) > len(rows)
    width = max(len(part.mask) for part, _ in parts)
    rewards, mask = torch.zeros(len(parts), width, dtype=torch.float64), torch.zeros(len(parts), width)
    for at, (part, _) in enumerate(parts):
        mask[at, : len(part.mask)] = part.mask
        last = int(part.mask.nonzero()[-1]) if part.mask.any() else 0
        rewards[at, last] = part.reward
    labels = np.array([label for _, label in parts], dtype=object)
    found, _ = get_adv_estimator_fn("rlenv_grpo")(
        token_level_rewards=rewards, response_mask=mask, index=labels, config=AlgoConfig()
    )
    given = [found[at, : len(part.mask)] for at, (part, _) in enumerate(parts)]
    return whole, masking.gradient([p for p, _ in parts], mode=mode, loss=loss, divisor=len(rows), given=given)


@pytest.mark.parametrize("loss", [loss for loss in masking.LOSSES if loss not in ("gspo", "sapo")])
def test_the_gradient_of_an_episode_in_rows_is_that_of_the_episode(verl: Any, loss: str) -> None:
    whole, rows = gradients(loss)
    torch.testing.assert_close(rows, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        ("gspo", "token-mean"),
        ("sapo", "token-mean"),
        ("geo_mean", "token-mean"),
        ("vanilla", "seq-mean-token-mean"),
    ],
)
def test_what_is_refused_counts_rows(verl: Any, loss: str, mode: str) -> None:
    whole, rows = gradients(loss, mode)
    assert (whole - rows).norm() > 0.01 * whole.norm()


def settings(estimator: str = "rlenv_grpo", **keys: Any) -> dict[str, Any]:
    actor = {"loss_agg_mode": "token-mean", "use_dynamic_bsz": True, "policy_loss": {"loss_mode": "vanilla"}}
    critic = {"loss_agg_mode": "token-mean", "use_dynamic_bsz": True}
    algorithm = {"adv_estimator": estimator, "gamma": 1.0, "use_kl_in_reward": False}
    sampler = {"path": "pkg://rlenv_verl.loop.replay_buffer", "name": "RlenvReplayBuffer"}
    distillation = {"enabled": keys.pop("distillation", False)}
    for key, value in keys.items():
        (actor if key in actor else algorithm if key in algorithm else sampler)[key] = value
    trainer = {"v1": {"sampler": {"custom_sampler": sampler}}}
    parts = {"critic": critic, "algorithm": algorithm, "trainer": trainer, "distillation": distillation}
    return {"actor_rollout_ref": {"actor": actor}, **parts}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"estimator": "grpo"}, "adv_estimator=grpo counts each as an episode of its own; use rlenv_grpo"),
        ({"estimator": "rloo"}, "use rlenv_rloo"),
        ({"estimator": "opo"}, "adv_estimator=opo counts each"),
        ({"estimator": "gae", "gamma": 0.99}, r"gamma=0\.99 would discount within a row.*set algorithm\.gamma=1\.0"),
        ({"estimator": "gae", "use_kl_in_reward": True}, "use actor_rollout_ref.actor.use_kl_loss=true instead"),
        ({"loss_agg_mode": "seq-mean-token-mean"}, "averages over rows.*use token-mean or token-sum"),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, "averages over rows"),
        ({"use_dynamic_bsz": False}, r"set actor_rollout_ref\.actor\.use_dynamic_bsz=true"),
        ({"policy_loss": {"loss_mode": "gspo"}}, "loss_mode=gspo averages over rows.*use vanilla"),
        ({"path": None}, "told by rlenv's sampler"),
        ({"distillation": True}, "asks a teacher about the last of them alone"),
    ],
)
def test_settings_that_take_a_row_for_an_episode_are_refused(keys: dict[str, Any], message: str) -> None:
    from rlenv_verl.settings.checks import check_rows

    with pytest.raises(UsageError, match=rf"(?s)run\.history=rows makes several training rows.*{message}"):
        check_rows(settings(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"estimator": "gae"},
        {"estimator": "rlenv_rloo", "use_kl_in_reward": True},
        {"estimator": "rlenv_reinforce_plus_plus", "gamma": 0.99},
        {"loss_agg_mode": "token-sum"},
    ],
)
def test_other_settings_pass(keys: dict[str, Any]) -> None:
    from rlenv_verl.settings.checks import check_rows

    check_rows(settings(**keys))
