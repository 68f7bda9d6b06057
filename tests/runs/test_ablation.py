"""Each part of a reward, from the values that were recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

import rlenv
from rlenv.cli.main import main as command
from rlenv.errors import UsageError
from rlenv.runs import files as record
from rlenv.runs.ablation import Ablation, ablation
from rlenv.trajectory import ModelUsage, Trajectory

SPEC = """
rlenv: 1
name: parts
tasks: {train: {rows: [{answer: "3"}, {answer: "4"}, {answer: "5"}]}}
prompt: {user: "How many?"}
tools: {sum: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}", weight: 0.5}
  near: {kind: rule, python: "t.py:near", gate: correct < 1}
  same: {kind: verify, tool: sum, arguments: {expression: "{{ answer }}"}, expect: "{{ task.answer }}", compare: number}
  seen: {kind: rule, rule: answered, weight: 0}
success: correct >= 1 and same >= 0.5
"""
CODE = "def near(context):\n    return 0.5\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(CODE)
    (tmp_path / "env.yaml").write_text(SPEC)
    return tmp_path / "env.yaml"


def played(path: Path) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        found = []
        async with rlenv.load(path) as environment:
            for task in range(3):
                for action in ("<answer>3</answer>", "<answer>3.0</answer>", "nothing"):
                    async with environment.start(task=task, seed=1) as episode:
                        await episode.step(action)
                        found.append(episode.trajectory)
        return found

    return asyncio.run(main())


def parts_of(path: Path, **given: str) -> Ablation:
    return ablation(rlenv.load(path), played(path), **given)


@pytest.mark.slow
def test_every_part_is_there_once(path: Path) -> None:
    assert {part.name: part.terms for part in parts_of(path).parts} == {
        "all together": ("correct", "near", "same", "seen"),
        "only correct": ("correct",),
        "only near": ("near",),
        "only same": ("same",),
        "only seen": ("seen",),
        "all of kind rule": ("correct", "near", "seen"),
        "without correct": ("near", "same", "seen"),
        "without near": ("correct", "same", "seen"),
        "without seen": ("correct", "near", "same"),
    }


@pytest.mark.slow
def test_a_part_pays_for_its_terms_alone_and_keeps_their_gates(path: Path) -> None:
    figures = {part.name: part.figures for part in parts_of(path).parts}
    assert figures["only correct"].reward_mean == pytest.approx(0.5 / 9)
    assert figures["only same"].reward_mean == pytest.approx(2 / 9)
    assert figures["only near"].reward_mean == pytest.approx(8 * 0.5 / 9)  # its gate is shut in one
    assert figures["only seen"].reward_mean == pytest.approx(6 / 9)  # what earns nothing is shown as if it earned 1


@pytest.mark.slow
def test_success_keeps_the_comparisons_that_read_nothing_else(path: Path) -> None:
    gates = {part.name: part.gate for part in parts_of(path).parts}
    assert gates["all together"] == "correct >= 1 and same >= 0.5"
    assert gates["only same"] == "same >= 0.5"
    assert gates["only seen"] == ""
    rates = {part.name: part.figures.success_rate for part in parts_of(path).parts}
    assert rates["only same"] == pytest.approx(2 / 9)
    assert rates["all together"] == pytest.approx(1 / 9)


@pytest.mark.slow
def test_the_reference_agrees_with_itself(path: Path) -> None:
    found = parts_of(path, reference="same")
    own = next(part for part in found.parts if part.name == "only same")
    assert own.success.kappa is not None
    assert own.success.kappa.value == 1.0
    assert own.reward.spearman.value == pytest.approx(1.0)
    less = next(part for part in found.parts if part.name == "only correct")
    assert less.success.kappa is not None
    assert less.success.kappa.value == pytest.approx((8 / 9 - 58 / 81) / (1 - 58 / 81))
    with pytest.raises(UsageError, match="did you mean 'same'"):
        parts_of(path, reference="sme")


@pytest.mark.slow
def test_what_failed_before_it_was_scored_makes_no_term_quicker(path: Path) -> None:
    async def lost() -> Trajectory:
        async with rlenv.load(path) as environment, environment.start(task=0, seed=1) as episode:
            return episode.fail("policy", "lost")

    episodes, failed = played(path), asyncio.run(lost())
    whole = ablation(rlenv.load(path), episodes).parts[0]
    assert whole.seconds is not None
    assert ablation(rlenv.load(path), [*episodes, failed]).parts[0].seconds == pytest.approx(whole.seconds)
    assert ablation(rlenv.load(path), [failed]).parts[0].seconds is None


@pytest.mark.slow
def test_tokens_are_those_of_a_parts_terms_when_they_were_measured_last(path: Path) -> None:
    near = ModelUsage("term near", "m", requests=2, failed=1, prompt_tokens=8, completion_tokens=1)
    before = ModelUsage("term near", "m", requests=1, prompt_tokens=99, is_recorded=True)
    same = ModelUsage("term same > tool sum", "m", requests=1, prompt_tokens=18, is_recorded=True)

    def tokens(*more: ModelUsage) -> list[float | None]:
        first, *others = played(path)
        asked = (ModelUsage("policy", "m", requests=1, prompt_tokens=999), near, before, same, *more)
        found = ablation(rlenv.load(path), [dataclasses.replace(first, usage=asked), *others])
        return [part.tokens for part in found.parts if part.name in ("only correct", "only near", "only same")]

    assert tokens() == [None, 1.0, 2.0]
    assert tokens(ModelUsage("term near", "other", requests=1, unknown=1)) == [None, None, 2.0]


@pytest.mark.slow
def test_the_command_writes_table_figures_and_chart(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = path.parent / "run", path.parent / "out"
    record.write(run / "trajectories.jsonl", played(path))
    asked = ["rescore", "--ablate", str(run), "--spec", str(path), "-o", str(out)]
    assert command(asked) == 0
    assert "| only same |" in capsys.readouterr().out
    found = json.loads((out / "ablation.json").read_text())
    assert found["parts"][0]["name"] == "all together"
    assert "only same" in (out / "ablation.svg").read_text()
    assert (out / "ablation.md").read_text().count("\n|") > 10
    assert command(asked) == 2
    assert command([*asked, "--overwrite", "--json"]) == 0
