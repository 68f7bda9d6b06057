"""What a person sees of a run while it trains and at its end."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from rlenv.cli.console import Console
from rlenv.runs.schema import Facts
from rlenv_train.keeping import Keeper, KeptEpisodes
from rlenv_train.progress import Curriculum, Stage, TimeIsUp, Underway, cut_after, time_is_up_at
from rlenv_verl.run.figures import StepFigures, figures_of, phase_shares, show_summary, step_lines
from rlenv_verl.run.resume import training_figures
from tests.support.kept import episode

SOURCES = {"greedy": "toy/test/greedy"}


def step(number: int, **more: float) -> StepFigures:
    values: dict[str, Any] = {
        "critic/score/mean": 0.5,
        "timing_s/step": 4.0,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
        "timing_s/testing": 4.0,
        "perf/throughput": 990.0,
    }
    return figures_of(number, values | {key.replace("__", "/"): value for key, value in more.items()}, sources=SOURCES)


def of_spec(name: str, **figures: float) -> dict[str, float]:
    return {f"rlenv/{name}/{figure.replace('__', '/')}": value for figure, value in figures.items()}


def test_a_step_is_one_line_of_what_was_measured() -> None:
    figures = of_spec("toy", episodes=8, invalid=2, success=0.25, tool_s__mean=0.012, tokens_per_s=1234, calls_per_s=5)
    (line,) = step_lines(step(3, **figures), total=20, seconds=61)
    assert line == (
        "step   3/20  reward 0.500  success 0.25  invalid 25.0%  tools 12 ms  1,234 tokens/s  5 calls/s  "
        "4.0 s (validation 50%, rollout 25%)  at 61 s"
    )
    (bare,) = step_lines(figures_of(3, {}, sources={}), total=None, seconds=1)
    assert bare == "step   3  at 1 s"


def test_the_time_limit_ends_whatever_runs_before_the_first_step() -> None:
    def endless() -> None:
        with time_is_up_at(time.monotonic()):
            while True:
                pass

    with pytest.raises(TimeIsUp):
        endless()
    with time_is_up_at(None), time_is_up_at(time.monotonic() + 3600):
        pass


def test_what_is_under_way_is_told_after_a_silence_without_a_terminal() -> None:
    out, now = io.StringIO(), [0.0]
    shown: list[Any] = []
    underway = Underway(Console(file=out, width=80), shown.append, clock=lambda: now[0])
    for second in range(1, 101):
        now[0] += 1.0
        if second == 75:
            underway.reset()
        underway.show(f"at {second}")
    assert len(shown) == 100
    assert out.getvalue().splitlines() == [f"at {n}, {n} s" for n in (10, 30, 70, 85)]


def test_the_stage_of_a_run_is_read_off_its_episodes_and_what_they_wait_for(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "run")

    def ended(count: int, *, step: int, split: str) -> None:
        for sample in range(count):
            keeper.keep(replace(episode(), split=split), Facts(step=step, sample=sample))

    stage = Stage(KeptEpisodes(tmp_path / "run"), tmp_path / "watch", "train", a_step=8)
    assert stage.line() == "veRL is starting: Ray, its workers and the policy"
    ended(3, step=0, split="test")
    assert stage.line() == "validation at step 0: 3 episodes"
    ended(5, step=1, split="train")
    assert stage.line() == stage.line() == "step 1: 5 of 8 episodes"
    entry = {"pid": 1, "host": "h", "at": time.time()}
    waits = [{"what": "tool slow", "count": 2, "longest_s": 40.0}]
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "1.json").write_bytes(orjson.dumps(entry | {"waits": waits}))
    assert "step 1: 5 of 8 episodes; waits 40 s: tool slow (2 calls" in stage.line()
    keeper.close()


def test_a_validation_shows_its_terms() -> None:
    values = {f"val-aux/toy/test/greedy/{name}/mean@1": value for name, value in (("success", 0.5), ("term_ok", 1.0))}
    lines = step_lines(figures_of(5, values, sources=SOURCES), total=None, seconds=9)
    assert lines[1].strip() == "held-out greedy: success 0.500  ok 1.000"


def test_several_specs_stand_beside_each_other() -> None:
    figures = of_spec("one", episodes=6, reward=1.0, success=1.0) | of_spec("two", episodes=2, reward=0.2, success=0.0)
    (line,) = step_lines(step(1, **figures), total=None, seconds=1)
    assert "reward 0.500 (one 1.00, two 0.20)  success 0.75 (one 1.00, two 0.00)" in line


def test_phases_share_the_whole_time_of_a_step() -> None:
    shares = phase_shares([step(1), step(2)])
    assert next(iter(shares)) == "validation"
    assert shares == pytest.approx({"validation": 0.5, "rollout": 0.25, "update": 0.125, "other": 0.125})
    assert phase_shares([figures_of(0, {}, sources={})]) == {}


def test_the_figures_of_training_are_gathered_by_spec() -> None:
    first = of_spec("toy", episodes=8, invalid=1, masked__tool_failed=1, reward=0.1, term__ok=0.0, tool_s__max=2.0)
    last = of_spec("toy", episodes=8, invalid=0, masked__stuck=2, reward=0.9, term__ok=1.0, tool_s__max=1.0)
    found = training_figures([step(0), step(1, **first), step(2, **last)])
    assert found == {
        "toy": {
            "reward": [0.1, 0.9],
            "ok": [0.0, 1.0],
            "episodes": 16,
            "invalid": 1,
            "masked, tool_failed": 1,
            "masked, stuck": 2,
            "environment, s at most": 2.0,
        }
    }


def test_the_end_is_told_in_tables() -> None:
    told = io.StringIO()
    summary = {
        "held_out_success": [{"step": 0, "greedy": 0.0}, {"step": 4, "greedy": 0.5}],
        "held_out_terms": {"greedy": {"ok": 0.75}},
        "held_out_tasks": 20,
        "training": {"toy": {"reward": [0.1, 0.9], "episodes": 16}},
        "time_by_phase": {"rollout": 0.75, "update": 0.25},
        "mean_step_s": 4.0,
        "lost_episodes": 7,
        "usage": {"said": "models: 3 requests (1 failed)"},
        "failed_episodes": 2,
        "failure_reasons": {"stuck: no more": 2},
    }
    show_summary(summary, Console(file=told, width=120))
    text = told.getvalue()
    assert "models: 3 requests (1 failed)" in text
    for part in (
        "held-out success, greedy: 0.000 at step 0, 0.500 at step 4 (20 tasks, ok 0.750)",
        "0.100 … 0.900",
        "rollout 75%, update 25%",
        "could not be written: 7",
        "2 x stuck: no more",
    ):
        assert part in text


PASS_ROWS = [(name, task) for task in range(6) for name in ("a", "b")]


def steps_asked(file: Path, *, easy: Collection[tuple[str, int]], until: int) -> list[list[tuple[str, int]]]:
    """The tasks of each step up to `until`, each of which measures 1.0 of the easy ones; the file goes on as it is."""

    def key(task: int, measured: Mapping[str, float]) -> float:
        return -measured["success"] if measured["episodes"] else 0.5

    while (begun := len({json.loads(line)["step"] for line in file.read_text().splitlines()})) < until:
        # As a process that is started anew for each step.
        places = [4 * (begun % 3) + place for place in range(4)]
        chosen = Curriculum(PASS_ROWS, {"a": key, "b": key}, file, batch=4).next(places)
        entries = [
            {"step": begun + 1, "spec": name, "task": task, "valid": 2}
            | dict.fromkeys(("success", "reward"), 2.0 if (name, task) in easy else 0.0)
            for name, task in (PASS_ROWS[place] for place in chosen)
        ]
        with file.open("a") as lines:
            lines.writelines(json.dumps(entry) + "\n" for entry in entries)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [[(one["spec"], one["task"]) for one in found if one["step"] == step + 1] for step in range(until)]


def test_a_pass_asks_every_row_once_and_the_next_one_by_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "whole").touch()
    easy = {("a", 4), ("a", 5), ("b", 1)}
    asked = steps_asked(tmp_path / "whole", easy=easy, until=6)
    assert asked[:3] == [PASS_ROWS[start : start + 4] for start in (0, 4, 8)]
    assert sorted(row for tasks in asked[3:] for row in tasks) == sorted(PASS_ROWS)
    assert asked[3] == [("a", 4), ("b", 1), ("a", 5), ("b", 0)]
    assert [name for step in asked for name, _ in step] == ["a", "b"] * 12


@pytest.mark.parametrize("kept", range(6))
def test_a_run_that_is_taken_up_asks_what_it_would_have_asked(tmp_path: Path, kept: int) -> None:
    (tmp_path / "whole").touch()
    whole = steps_asked(tmp_path / "whole", easy={("a", 3), ("b", 4)}, until=6)
    (tmp_path / "cut").write_text("".join((tmp_path / "whole").read_text().splitlines(keepends=True)[: 4 * kept]))
    assert steps_asked(tmp_path / "cut", easy={("a", 3), ("b", 4)}, until=6) == whole


def test_lines_of_steps_that_are_done_again_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    cut_after(path, 1)
    assert not path.exists()
    kept = '{"step": 1, "data": {"loss": NaN}}\n'
    path.write_text(kept + '{"step": 2, "data": {}}\n{"step": 1, "da')
    cut_after(path, 1)
    assert path.read_text() == kept
