"""Real tokenizers with their families' own templates, id for id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.oracle import Family
from tests.real.play import SINS, Player, kwargs_of, seen
from tests.real.shelf import LACKING, REAL, Lacking, Real
from tests.real.stage import WORLDS, dialogues

pytestmark = [pytest.mark.real_data, pytest.mark.timeout(900)]


def families(real: Real) -> Iterator[Family]:
    try:
        yield from real.families()
    except Lacking as lacking:
        pytest.skip(str(lacking))


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_prompts_results_replies_and_thinking_are_exact(real: Real) -> None:
    for family in families(real):
        for kwargs in kwargs_of(family.source):
            family.kwargs = kwargs
            player = Player(family)
            for world in WORLDS:
                if not kwargs or world.thinking == "none":
                    for number, dialogue in enumerate(dialogues(world, family.control, count=1)):
                        player.play(dialogue, number)
            assert player.encoder is not None, f"{family.name}: {player.bind_error}"
            assert not sum(player.total(kind) for kind in SINS), f"{family.name}: {seen(player, *SINS)}"
            assert player.total("needless") <= 0.01 * sum(player.counts.values()), seen(player, "needless")


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_all_marks_that_end_a_turn_are_known(real: Real) -> None:
    for family in families(real):
        player = Player(family)
        assert player.encoder is not None, f"{family.name}: {player.bind_error}"
        ends = {family.tokenizer.token_to_id(end) for end in family.ends} - {None}
        assert ends <= player.encoder.end_ids


@pytest.mark.parametrize("name", LACKING)
def test_what_could_not_be_had(name: str) -> None:
    pytest.skip(f"{name}: {LACKING[name]}")
