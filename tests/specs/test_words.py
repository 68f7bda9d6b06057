"""The word problems of `make real`: their data, their wordings, and what the command makes of what its stages left."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlenv.episodes.environment import load

PARTS = ("wordings", "generate", "real", "real_report")


@pytest.fixture
def part(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """A module of the example by its name; they find each other as they do when one is run."""
    monkeypatch.syspath_prepend(str(root / "examples" / "words"))
    yield importlib.import_module
    for name in PARTS:
        sys.modules.pop(name, None)


def test_the_files_are_what_the_generator_writes(root: Path, part: Callable[[str], ModuleType]) -> None:
    for name, content in part("generate").files().items():
        assert (root / "examples" / "words" / "data" / name).read_bytes() == content, name


def _pattern(wording: Any, things: tuple[str, ...]) -> re.Pattern[str]:
    """What asks in a wording: words where it has people and things, numbers where it has numbers."""
    places = {"n": "[A-Z][a-z]+", "o": "[A-Z][a-z]+", "t": f"(?:{'|'.join(things)})"}
    text = re.escape(wording.question).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{(\w)\}", lambda place: places.get(place[1], r"\d+"), text))


def test_no_question_has_a_wording_of_another_kind_of_split(root: Path, part: Callable[[str], ModuleType]) -> None:
    words = part("wordings")
    patterns = {
        kind: [_pattern(wording, words.THINGS) for wording in wordings]
        for kind, wordings in (("dev", words.DEVELOPED_ON), ("test", words.HELD_OUT), ("train", words.TRAINED))
    }
    environment = load(root / "examples" / "words" / "env.yaml")
    for split in environment.spec.tasks:
        kind = split if split in patterns else "train"
        right = patterns[kind]
        wrong = [one for other, found in patterns.items() if other != kind for one in found]
        questions = [row["question"] for row in environment.tasks(split)]
        used = [{index for index, one in enumerate(right) if one.fullmatch(text)} for text in questions]
        assert all(used), split
        assert set().union(*used) == set(range(len(right))), split
        assert not [text for text in questions if any(one.fullmatch(text) for one in wrong)], split


def test_any_sixteen_neighbours_of_the_training_split_ask_for_every_operation(root: Path) -> None:
    asked = [
        set("+-*/") & set(row["expression"]) for row in load(root / "examples" / "words" / "env.yaml").tasks("train")
    ]
    assert all(set("+-*/") == set().union(*asked[start : start + 16]) for start in range(len(asked) - 15))


def test_the_oracle_solves_every_task(root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    environment = load(root / "examples" / "words" / "env.yaml")
    for split in ("test", "dev", "warmup"):
        assert_all_earn_maximum(environment, play_oracle(environment, split))


@pytest.mark.slow
def test_a_stage_that_is_done_is_not_run_again(
    tmp_path: Path, part: Callable[[str], ModuleType], capfd: pytest.CaptureFixture[str]
) -> None:
    stages = part("real").Stages(tmp_path)
    stages.run("first", ["list", "dialects", "search_r1"], leaves=tmp_path / "none")
    assert "<search>" in capfd.readouterr().out
    note = json.loads((tmp_path / "stages" / "first.json").read_text())
    assert note["command"] == "rlenv list dialects search_r1"
    assert note["seconds"] > 0
    stages.run("first", ["list", "dialects", "search_r1"], leaves=tmp_path / "none")
    assert capfd.readouterr().out == "first: done\n"


@pytest.mark.slow
def test_a_stage_that_fails_stops_the_command_and_is_not_done(
    tmp_path: Path, part: Callable[[str], ModuleType]
) -> None:
    real = part("real")
    stages = real.Stages(tmp_path)
    with pytest.raises(real.Stopped, match="exit code 2"):
        stages.run("first", ["list", "dialects", "no-such-dialect"], leaves=tmp_path / "none")
    assert not list((tmp_path / "stages").glob("*.json"))


def _left(out: Path, **rates: tuple[float, float]) -> None:
    """What stages leave for the report: two tasks a policy, the given success rates."""
    for name, (before, after) in rates.items():
        entries = [{"step": 0, "greedy": before, "sampled": before}, {"step": 8, "greedy": after, "sampled": after}]
        summary = {
            "held_out_success": entries,
            "training_reward": [[1, before], [2, after]],
            "versions": {"verl": "0.9.1"},
        }
        (out / name).mkdir(parents=True)
        (out / name / "summary.json").write_text(json.dumps(summary))
        for policy, rate in (("cold-start", before), (name, after)):
            for way in ("greedy", "sampled"):
                folder = out / "examined" / f"{policy}-{way}"
                folder.mkdir(parents=True, exist_ok=True)
                figures = {"success_rate": rate, "success_interval": [rate, rate], "tasks": 2, "samples": 1}
                (folder / "summary.json").write_text(json.dumps(figures))
                turns = [{"action": "<calc>1+1</calc>", "observation": {"text": "=2\n"}},
                         {"action": "<answer>2</answer>", "observation": None}]  # fmt: skip
                task = {"question": "What is it?", "expression": "1+1", "answer": 2}
                lines = [{"task_index": index, "task": task, "turns": turns, "success": rate > 0.5} for index in (0, 1)]
                (folder / "trajectories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "stages").mkdir()
    (out / "stages" / "sft.json").write_text(json.dumps({"command": "rlenv sft", "seconds": 90.0, "load_before": 1.0}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "control", "unlike"),
    [
        (0.7, 0.3, ""),
        (0.5, 0.3, "seed-0 greedy +0.20, seed-0 sampled +0.20"),
        (0.7, 0.65, "control greedy +0.35, control sampled +0.35"),
    ],
)
def test_the_report_says_what_is_not_as_claimed(
    tmp_path: Path,
    part: Callable[[str], ModuleType],
    seed: float,
    control: float,
    unlike: str,
) -> None:
    pytest.importorskip("matplotlib", reason="the verl extra is not installed")
    _left(tmp_path, **{"seed-0": (0.3, seed), "control": (0.3, control)})
    found = part("real_report").report(tmp_path, ["seed-0", "control"])
    assert found.unlike == unlike
    assert f"| seed-0 | {seed:.3f} ({seed:.2f} to {seed:.2f})" in found.text
    assert "| sft | 1.5 | 1.0 |" in found.text
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    episodes = (tmp_path / "episodes.md").read_text()
    assert "<calc>1+1</calc>=2\n<answer>2</answer>" in episodes
    assert episodes.count("What is it?") == 2
