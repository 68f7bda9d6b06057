"""docs/training/vllm.md says of every key of the preset `gpu` whether it was run, with the presets' values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv_verl.settings.presets import flatten, load_preset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training" / "vllm.md"
ROW = re.compile(r"^\| `([\w.]+)`(?: \(with `(\w+)`\))? \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
VERDICTS = ("run", "other value", "not run", "as above")


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def keys() -> Iterator[tuple[str, str, Any]]:
    """Each key that the preset's file sets, the overlay that it is for, and its value."""
    text = (resources.files("rlenv_verl") / "presets" / "gpu.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    overlays = {"": data, **data.get("with", {})}
    for overlay, part in overlays.items():
        for section in ("environment", "run", "verl", "verl_add"):
            for key, value in flatten(part.get(section, {})):
                yield (f"run.{key}" if section == "run" else key), overlay, value


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


@pytest.mark.slow
def test_every_key_of_gpu_has_a_line_with_both_values_and_a_verdict() -> None:
    rows = {(key, overlay): (there, here, said) for key, overlay, there, here, said in ROW.findall(PAGE.read_text())}
    assert {(key, overlay) for key, overlay, _ in keys()} == set(rows)
    for key, overlay, value in keys():
        there, here, said = rows[key, overlay]
        assert there == shown(value), key
        assert said.startswith(VERDICTS), key
        known = load_preset("cpu-vllm", mode=overlay) if overlay == "separate_async" else load_preset("cpu-vllm")
        section, inner = ("run", key.removeprefix("run.")) if key.startswith("run.") else ("verl", key)
        found = [value_of(part, inner) for part in (getattr(known, section), known.verl_add, known.environment)]
        assert here == shown(next((one for one in found if one is not None), None)), key
        if said.startswith("run") and not said.startswith("run;"):
            assert there == here, key


def test_the_page_is_finished() -> None:
    assert "@@" not in PAGE.read_text(encoding="utf-8")
