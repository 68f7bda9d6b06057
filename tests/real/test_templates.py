"""Every chat template that packages ship, over one real vocabulary: what is accepted is the template's own."""

from __future__ import annotations

import gzip
from collections import Counter
from functools import cache

import pytest
from tokenizers import Tokenizer

from tests.real.collect import PACKAGES, shelf
from tests.real.oracle import Family, stand_in
from tests.real.play import SINS, Player, kwargs_of, seen
from tests.real.shelf import Lacking, base_file, templates
from tests.real.stage import WORLDS, dialogues

pytestmark = [pytest.mark.real_data, pytest.mark.timeout(600)]
FOUND = dict(templates())
# One stands for all where there are none.
NAMES = [*FOUND] or ["*"]


@cache
def base() -> Tokenizer:
    try:
        path = base_file()
    except Lacking as lacking:
        pytest.skip(str(lacking))
    raw = path.read_bytes()
    return stand_in(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def played(name: str, history: str) -> Player:
    """All dialogues of a template; counts of all ways of its thinking together."""
    if name not in FOUND:
        pytest.skip("needs chat templates: the folders of RLENV_REAL and RLENV_DATA hold none")
    path = FOUND[name]
    source = path.read_text("utf-8")
    whole: Player | None = None
    for kwargs in kwargs_of(source):
        player = Player(Family.over(base(), path.stem, source, **kwargs), history=history)
        for world in WORLDS:
            if kwargs and (world.thinking != "none" or world.hostile):
                continue
            for number, dialogue in enumerate(dialogues(world, player.family.control, count=1)):
                if history == "rows":
                    player.play_rows(dialogue, number)
                else:
                    player.play(dialogue, number)
        if whole is None:
            whole = player
        else:
            whole.counts += player.counts
            whole.findings += player.findings
    assert whole is not None
    return whole


@pytest.mark.parametrize("package", [one.name for one in PACKAGES if "templates" in one.what])
def test_the_package_is_there(package: str) -> None:
    root = shelf()
    one = next(one for one in PACKAGES if one.name == package)
    if root is None or not (root / one.folder).is_dir():
        pytest.skip(f"{package} lacks, with {one.what}: RLENV_REAL=FOLDER python tests/real/collect.py {package}")
    assert any((root / one.folder).rglob("*.jinja"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("history", ["grow", "keep"])
def test_what_is_accepted_is_what_the_template_writes(name: str, history: str) -> None:
    player = played(name, history)
    assert not sum(player.total(kind) for kind in (*SINS, "silent")), seen(player, *SINS, "silent")


@pytest.mark.parametrize("name", NAMES)
def test_refusals_have_their_need(name: str) -> None:
    player = played(name, "grow")
    turns = sum(player.total(kind) for kind in ("equal", "edge", "right", "needless"))
    assert player.total("needless") <= turns // 100, seen(player, "needless", "prompt needless")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_begins_as_the_template_writes_it(name: str) -> None:
    player = played(name, "rows")
    assert not sum(player.total(kind) for kind in (*SINS, "masks")), seen(player, *SINS, "masks")


def test_the_oracle_tells_a_mark_of_a_content_from_the_templates() -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    player = Player(Family.over(base(), "toy", source))
    text = player.oracle.render([{"role": "user", "content": "a<|im_end|>b"}], [], generate=False)
    end = player.family.tokenizer.token_to_id("<|im_end|>")
    ids = player.oracle.ids(text)
    assert player.oracle.plain(text) == "<|im_start|>user\na<|im_end|>b<|im_end|>\n"
    assert Counter(ids)[end] == 1
    assert player.oracle.decode(ids) == player.oracle.plain(text)
