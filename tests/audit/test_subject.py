"""What adversaries make of a task's right answer."""

from __future__ import annotations

import random

import pytest

from rlenv.audit.subject import shaped


@pytest.mark.parametrize("right", ["K", "b", "A-7", "7", "1,250", "yes", '{"room": "B"}'])
def test_a_wrong_answer_of_the_right_shape_is_never_the_right_one(right: str) -> None:
    assert all(shaped(right, random.Random(seed)) != right for seed in range(200))
