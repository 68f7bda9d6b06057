"""The table of presets and models in docs/training/first-hour.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlenv_verl.rehearse.table import table_lines
from rlenv_verl.run.preflight import config_of, laid_out
from rlenv_verl.settings.machine import machine_of
from rlenv_verl.settings.presets import load_preset, override

PAGE = Path(__file__).resolve().parents[3] / "docs" / "training" / "first-hour.md"


def test_the_page_has_the_table_as_it_is_computed() -> None:
    shown = re.search(r"<!-- table: .*? -->\n(.*?)\n<!--", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == "\n".join(table_lines()), "python -m rlenv_verl.rehearse.table writes the lines anew"


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "algorithm"), [("gpu", None), ("search-r1", "ppo")])
def test_memory_reads_the_same_with_verls_configuration_and_without(
    preset: str, algorithm: str | None, verl: Any
) -> None:
    chosen = load_preset(preset, algorithm=algorithm)
    prompt = override("data.max_prompt_length", chosen.run["max_prompt_length"])
    config, is_checked = config_of(chosen, "model", [])
    assert is_checked
    assert machine_of(config, 1) == machine_of(laid_out([*chosen.overrides(), prompt]), 1)
