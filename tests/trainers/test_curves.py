from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "curves"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"curves_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return module(ROOT / "benchmarks" / "curves" / "run.py")


def summary(*rates: tuple[int, float, float], how: str = "finished") -> dict[str, Any]:
    return {
        "ending": {"how": how},
        "held_out_success": [{"step": step, "greedy": greedy, "sampled": sampled} for step, greedy, sampled in rates],
        "seconds": 301.23,
        "mean_step_s": 6.78,
        "versions": {"verl": "0.9.1"},
    }


def test_the_data_is_what_the_generator_writes() -> None:
    generate = module(FOLDER / "generate.py")
    for name, content in (file for made in generate.MADE for file in made()):
        assert generate._is_same(FOLDER / "data" / name, content), f"{name} differs: run examples/curves/generate.py"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("nl2sql", "shop"),
        ("search-qa", "sup"),
        ("shell", "shop"),
        ("function-calls", "towns"),
        ("spreadsheets", "shop"),
    ],
)
def test_nothing_that_test_asks_about_is_asked_about_elsewhere(name: str, asked: str) -> None:
    def names(split: str) -> set[str]:
        rows = (FOLDER / "data" / name / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        values = [json.loads(row)[asked] for row in rows]
        return {name for value in values for name in ([value] if isinstance(value, str) else value)}

    assert len(names("test")) > 100
    assert not names("test") & (names("warmup") | names("train"))


def test_the_table_has_a_row_for_each_step_and_a_column_for_each_run(bench: ModuleType) -> None:
    results = [
        bench.Result("seed 0", summary((0, 0.0, 0.05), (5, 0.9, 0.8))),
        bench.Result("seed 1", None),
        bench.Result("control (seed 0)", summary((0, 0.0, 0.05))),
    ]
    assert bench.table(results).splitlines() == [
        "| step | seed 0 | seed 1 | control (seed 0) |",
        "|---|---|---|---|",
        "| 0 | 0.000 (0.050) |  | 0.000 (0.050) |",
        "| 5 | 0.900 (0.800) |  |  |",
        "| seconds in all | 301.2 |  | 301.2 |",
        "| seconds a step | 6.8 |  | 6.8 |",
    ]


@pytest.mark.parametrize(
    ("label", "found", "expected"),
    [
        ("seed 0", summary((0, 0.0, 0.05), (5, 0.9, 0.8)), True),
        ("seed 0", summary((0, 0.0, 0.05), (5, 0.9, 0.1)), False),
        ("seed 0", summary((0, 0.0, 0.05), (5, 0.9, 0.8), how="time_limit"), False),
        ("seed 0", None, False),
        ("control (seed 0)", summary((0, 0.0, 0.05), (5, 0.9, 0.8)), False),
        ("control (seed 0)", summary((0, 0.0, 0.05), (5, 0.9, 0.1)), True),
    ],
)
def test_a_curve_has_to_rise_and_a_control_must_not(
    bench: ModuleType, label: str, found: dict[str, Any] | None, expected: bool
) -> None:
    assert bench._is_as_expected(bench.Result(label, found)) is expected


def test_a_finished_run_is_read_back(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary((0, 0.0, 0.0), (20, 0.75, 0.7))))
    found = bench.result(tmp_path, "seed 0")
    assert found.is_finished
    assert found.gain == pytest.approx(0.7)
    assert not bench.result(tmp_path / "missing", "seed 1").is_finished
