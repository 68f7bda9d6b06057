"""Names that people know lead to the row that reads the same format."""

from __future__ import annotations

import pytest

from rlenv import dialects
from rlenv.dialects.built_in import ALIASES, FAMILIES, row_name, row_of
from rlenv.language.dialect import DialectSpec


def test_every_alias_names_a_row_and_is_none() -> None:
    assert set(ALIASES.values()) <= set(FAMILIES)
    assert not set(ALIASES) & set(FAMILIES)
    assert all(name == name.lower().replace("-", "_").replace(".", "_") for name in ALIASES)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("qwen3_json", "hermes"),
        ("openai", "gpt_oss"),
        ("GPT-OSS", "gpt_oss"),
        ("llama3.1", "llama3_json"),
        ("granite_20b_fc", "granite-20b-fc"),
        ("Hermes", "hermes"),
    ],
)
def test_a_known_name_gives_its_row(name: str, row: str) -> None:
    assert dialects.get(name).name == row
    assert row_of(name) == row_of(row)
    assert dialects.inline(DialectSpec(base=name)).parse("x").content == "x"


def test_an_unknown_name_is_no_alias() -> None:
    assert row_name("nothing_like_it", FAMILIES) == "nothing_like_it"
    with pytest.raises(KeyError):
        dialects.get("nothing_like_it")
