"""What a rehearsal's policy writes, and the attention that lets a tiny network read it in linear time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from rlenv_verl.rehearse import KINDS, Filler, kind_of, pad_action
from rlenv_verl.rehearse.model import WINDOW, window_attention

FILLER = Filler(tuple(range(100, 200)))
ACTION = [1, 2, 3]


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_every_kind_of_episode_comes_up(group: int) -> None:
    found = Counter(kind_of(session, group=group, task=task, step=1) for task in range(8) for session in range(group))
    expected = set(KINDS) if group != 2 else set(KINDS) - {"limit"}
    assert set(found) == expected


@pytest.mark.parametrize("group", [4, 5, 8])
def test_each_group_has_episodes_that_succeed_and_that_do_not(group: int) -> None:
    for task in range(20):
        kinds = [kind_of(session, group=group, task=task, step=3) for session in range(group)]
        assert {"full", "limit"} <= set(kinds)
        assert sum(kind in ("full", "limit") for kind in kinds) >= 0.7 * group


def test_no_action_is_longer_than_a_request_allows() -> None:
    rng = random.Random(0)
    for kind in KINDS:
        for most in (1, 2, 3, 50):
            for is_last in (False, True):
                ids = pad_action(ACTION, kind, most=most, is_last=is_last, filler=FILLER, rng=rng)
                assert 1 <= len(ids) <= most


def test_a_full_episode_ends_at_the_limit_and_leaves_room_before() -> None:
    rng = random.Random(0)
    last = pad_action(ACTION, "full", most=50, is_last=True, filler=FILLER, rng=rng)
    assert (len(last), last[-3:]) == (50, ACTION)
    assert len(pad_action(ACTION, "full", most=50, is_last=False, filler=FILLER, rng=rng)) == 25
    assert pad_action(ACTION, "short", most=50, is_last=True, filler=FILLER, rng=rng) == ACTION
    cut = pad_action(ACTION, "limit", most=50, is_last=True, filler=FILLER, rng=rng)
    assert len(cut) == 50
    assert not set(ACTION) & set(cut)


def test_the_window_sees_the_last_tokens_of_its_own_sequence_alone() -> None:
    torch.manual_seed(0)
    lengths = (5, 1, 7)
    tokens, heads, kv_heads, size = sum(lengths), 4, 2, 8
    query = torch.randn(1, heads, tokens, size, requires_grad=True)
    key, value = (torch.randn(1, kv_heads, tokens, size) for _ in range(2))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    out, weights = window_attention(None, query, key, value, None, size**-0.5, position_ids=positions)
    assert weights is None

    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(tokens)
    behind = place[:, None] - place[None]
    seen = (row[:, None] == row[None]) & (behind >= 0) & (behind < WINDOW)
    keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), query)
    assert torch.isfinite(gradient).all()
