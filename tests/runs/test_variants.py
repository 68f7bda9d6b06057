"""Other weights come out as the scorer would have it, and what one spec has measured another does not measure again.

Terms that have to come out as they were recorded, since nothing that they measure has changed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.cli.main import main
from rlenv.cli.main import main as command
from rlenv.errors import UsageError
from rlenv.runs import files as record
from rlenv.runs.recorded import recorded
from rlenv.runs.replay import rescore
from rlenv.runs.summary import compare
from rlenv.runs.variants import Ablation, Weights, ablation, reweigh, shared_terms
from rlenv.trajectory import ModelUsage, TermResult, Trajectory

SPEC = """
rlenv: 1
name: weighed
tasks: {train: {rows: [{question: "How many?", answer: "3"}, {question: "And now?", answer: "4"}]}}
prompt: {user: "{{ task.question }}"}
tools: {sum: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
  short: {kind: rule, function: "t.py:short", weight: 0.5, gate: correct >= 1}
  calls: {kind: rule, function: "t.py:calls", when: turn, over_turns: sum, weight: 0.25}
  odd: {kind: rule, function: "t.py:odd", weight: 0.25}
  best: {kind: group, function: "t.py:best", weight: 0.5}
"""
CODE = """
from pathlib import Path

def short(context):
    with Path(__file__).with_name("asked").open("a") as file:
        file.write("s")
    return 1.0 - len(context.turns) / 4

def calls(context):
    return float(len(context.turns[-1].parsed.calls))

def odd(context):
    if context.answer == "5":
        raise ValueError("five")
    return 1.0

def best(found):
    top = max(one.reward.terms["correct"].value for one in found)
    return [float(one.reward.terms["correct"].value == top) / len(found) for one in found]
"""
CALL = '<tool_call>\n{"name": "sum", "arguments": {"expression": "1+1"}}\n</tool_call>'
PLAYS = (
    [CALL, "<answer>3</answer>"],
    ["<answer>3</answer>"],
    ["<answer>5</answer>"],
    [CALL, CALL, "<answer>2</answer>"],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(CODE)
    (tmp_path / "env.yaml").write_text(SPEC)
    return tmp_path


def other(folder: Path, name: str, *replaced: tuple[str, str]) -> Path:
    text = SPEC
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def scored(path: Path, before: list[Trajectory]) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with rlenv.load(path) as environment:
            return await rescore(environment, before)

    return asyncio.run(main())


def played(path: Path) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        found = []
        async with rlenv.load(path) as environment:
            for task in range(2):
                for actions in PLAYS:
                    async with environment.start(task=task, seed=1) as episode:
                        for action in actions:
                            await episode.step(action)
                        found.append(episode.trajectory)
        return found

    return scored(path, asyncio.run(main()))


ODD = '  odd: {kind: rule, function: "t.py:odd", weight: 0.25}\n'
BEST = '  best: {kind: group, function: "t.py:best", weight: 0.5}\n'
CALLS = '  calls: {kind: rule, function: "t.py:calls", when: turn, over_turns: sum, weight: 0.25}\n'


@pytest.mark.parametrize(
    ("weights", "replaced"),
    [
        (
            Weights(weight={"short": 2.0, "calls": -1.0}),
            [("weight: 0.5, gate", "weight: 2.0, gate"), ("sum, weight: 0.25", "sum, weight: -1.0")],
        ),
        (Weights(drop=("odd",)), [(ODD, "")]),
        (Weights(weight={"odd": 0.0}), [(ODD, ODD.replace("0.25", "0"))]),
        (
            Weights(drop=("best", "calls"), weight={"correct": 0.0}),
            [(BEST, ""), (CALLS, ""), ('answer }}"}', 'answer }}", weight: 0}')],
        ),
    ],
)
def test_other_weights_give_what_measuring_with_them_gives(
    folder: Path, weights: Weights, replaced: list[tuple[str, str]]
) -> None:
    before = played(folder / "env.yaml")
    (folder / "asked").unlink()
    found = reweigh(rlenv.load(folder / "env.yaml"), before, weights)
    assert not (folder / "asked").exists()
    truth = scored(other(folder, "other.yaml", *replaced), before)
    assert compare(truth, found).changes == ()
    for one, its in zip(found, truth, strict=True):
        assert (one.success, one.reason, one.terminated, one.failure) == (
            its.success,
            its.reason,
            its.terminated,
            its.failure,
        )
        assert one.reward.turn_rewards == pytest.approx(its.reward.turn_rewards)
    assert compare(before, found).changes


def test_a_term_that_is_invalid_and_left_out_leaves_a_reward(folder: Path) -> None:
    before = played(folder / "env.yaml")
    assert [one.reward.total is None for one in before] == [False, False, True, False] * 2
    found = reweigh(rlenv.load(folder / "env.yaml"), before, Weights(drop=("odd",)))
    assert [one.reward.terms["best"].value for one in found][:4] == [0.25, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (Weights(drop=("shrt",)), "did you mean 'short'"),
        (Weights(drop=("correct",)), "the gate of 'short' reads it"),
        (Weights(drop=("odd",), weight={"odd": 1.0}), "left out"),
        (Weights(weight={"odd": float("nan")}), "finite"),
        (Weights(drop=("correct", "short", "calls", "odd", "best")), "no term is left"),
    ],
)
def test_weights_that_cannot_be_are_refused_with_the_nearest_fix(folder: Path, weights: Weights, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        reweigh(rlenv.load(folder / "env.yaml"), [], weights)


def test_a_term_that_was_not_recorded_is_not_made_up(folder: Path) -> None:
    bare = other(folder, "bare.yaml", ('  odd: {kind: rule, function: "t.py:odd", weight: 0.25}\n', ""))
    with pytest.raises(UsageError, match="'odd' was not recorded"):
        reweigh(rlenv.load(folder / "env.yaml"), played(bare), Weights(weight={"odd": 1.0}))


def test_a_term_behind_another_gate_is_another_term(folder: Path) -> None:
    one = rlenv.load(folder / "env.yaml")
    heavier = rlenv.load(other(folder, "a.yaml", ("weight: 0.5, gate", "weight: 3, gate")))
    looser = rlenv.load(other(folder, "b.yaml", ("exact_match", "contains")))
    assert shared_terms(one, heavier) == {"correct", "short", "calls", "odd"}
    assert shared_terms(one, looser) == {"calls", "odd"}
    asked = rlenv.load(other(folder, "c.yaml", ("tools: {sum:", "answer: {from: final_message}\ntools: {sum:")))
    assert shared_terms(one, asked) == set()


def test_terms_that_are_known_count_by_the_weights_of_their_row(folder: Path) -> None:
    rows = ('answer: "3"}', 'answer: "3", w: 2}'), ('answer: "4"}', 'answer: "4", w: 5}')
    path = other(
        folder,
        "rows.yaml",
        *rows,
        ("weight: 0.5, gate", 'weight: "{{ task.w }}", gate'),
        (BEST, ""),
        (ODD, ""),
        (CALLS, ""),
    )
    before = played(path)
    (folder / "asked").unlink()
    measured = [{name: one.reward.terms[name] for name in ("correct", "short")} for one in before]

    async def again() -> list[Trajectory]:
        async with rlenv.load(path) as environment:
            return await rescore(environment, before, known=measured)

    found = asyncio.run(again())
    assert not (folder / "asked").exists()
    assert compare(before, found).changes == ()
    assert [one.reward.total for one in found] == [2.0, 2.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_several_specs_measure_what_they_share_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = played(folder / "env.yaml")
    record.write(folder / "run" / "trajectories.jsonl", before)
    (folder / "asked").unlink()
    heavier = other(folder, "a.yaml", ("weight: 0.5, gate", "weight: 3, gate"))
    arguments = ["rescore", str(folder / "run"), "--spec", str(folder / "env.yaml"), "--spec", str(heavier)]
    assert command([*arguments, "--max-invalid", "1", "--json", "-o", str(folder / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variants"]["env"]["changes"] == []
    moved = found["variants"]["a"]["changes"]
    assert [one["moved"] for one in moved] == [{"short": [0.25, 1.5]}, {"short": [0.375, 2.25]}]
    assert (folder / "asked").read_text() == "ss"  # by the first alone, where its gate is open
    assert {(one["a"], one["b"]) for one in found["agreement"]} >= {("correct", "short"), ("calls", "odd")}
    assert len(recorded(folder / "out" / "a")) == len(before)
    truth = scored(heavier, before)
    assert compare(truth, recorded(folder / "out" / "a")).changes == ()


def test_the_biggest_mover_comes_first(folder: Path) -> None:
    before = played(folder / "env.yaml")
    found = reweigh(rlenv.load(folder / "env.yaml"), before, Weights(weight={"correct": 1.5, "calls": 4.0, "odd": 0.3}))
    first = compare(before, found).changes[0]
    assert list(first.moved) == ["calls", "correct", "odd"]


def test_the_command_says_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.write(folder / "run" / "trajectories.jsonl", played(folder / "env.yaml"))
    assert command(["rescore", str(folder / "run")]) == 2
    assert "--spec" in capsys.readouterr().err
    spec = ["rescore", str(folder / "run"), "--spec", str(folder / "env.yaml"), "--max-invalid", "1"]
    assert command([*spec, "--weight", "odd"]) == 2
    assert command([*spec, "--weight", "odd=1", "--weight", "odd=2"]) == 2
    assert "names one term twice" in capsys.readouterr().err
    assert command([*spec, "--weight", "short=2", "--drop", "odd"]) == 0
    assert "without odd; short × 2" in capsys.readouterr().out


SPEC_of_witnesses = """
rlenv: 1
name: dice
tasks: {train: {rows: [{question: "Roll.", wanted: 1}, {question: "Rest.", wanted: 0}]}}
prompt: {user: "{{ task.question }}"}
answer: {from: final_message}
resources: {cup: {kind: python, function: "t.py:cup", run_in: loop}}
tools: {roll: {kind: python, function: "t.py:roll", inject: [cup], run_in: loop, mutates: true}}
rewards:
  sum: {kind: rule, function: "t.py:total"}
  said: {kind: rule, rule: exact_match, expect: done, weight: 0.5}
  both: {kind: rule, rule: exact_match, expect: done, gate: sum >= 0, weight: 0.1}
"""
# Each roll gives one more than the last one of all episodes, and its result does not say so.
CODE_of_witnesses = """
from pathlib import Path
ROLLS = Path(__file__).with_name("rolls")

def cup():
    yield []

def roll(cup) -> str:
    "Rolls."
    ROLLS.write_text(ROLLS.read_text() + "." if ROLLS.exists() else ".")
    cup.append(len(ROLLS.read_text()))
    return "rolled"

def total(context):
    return float(sum(context.resources["cup"]))
"""
ROLL = '<tool_call>\n{"name": "roll", "arguments": {}}\n</tool_call>'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(CODE_of_witnesses)
    (tmp_path / "env.yaml").write_text(SPEC_of_witnesses)
    (tmp_path / "plays.jsonl").write_text(json.dumps([ROLL, "done"]) + "\n" + json.dumps(["done"]) + "\n")
    policy = f"script:{tmp_path / 'plays.jsonl'}"
    assert main(["eval", str(tmp_path / "env.yaml"), "--policy", policy, "-o", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def told(capsys: pytest.CaptureFixture[str], run: Path, *argv: str) -> Any:
    capsys.readouterr()
    main(["rescore", str(run), "--spec", str(run.parent / "env.yaml"), "--json", "--max-invalid", "1", *argv])
    return json.loads(capsys.readouterr().out)


def test_a_state_that_chance_takes_part_in_is_no_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, run)
    (changed,) = found["changes"]  # the episode without a roll comes out as it was
    assert (changed["task_index"], changed["before"], changed["after"]) == (0, 1.6, None)
    assert "'sum' gave 1 when it was recorded and 2 now, with nothing changed" in changed["error"]
    # What has a gate that looks at it is not known either; what reads no state is.
    assert sorted(changed["terms"]) == ["both", "sum"]


def test_what_has_changed_may_come_out_differently(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "u.py").write_text(CODE_of_witnesses.replace("return float(", "return 10 * float("))
    (run.parent / "env.yaml").write_text(SPEC_of_witnesses.replace("t.py:total", "u.py:total"))
    (changed,) = told(capsys, run)["changes"]
    assert changed["terms"]["sum"] == [1.0, 20.0]


def test_nothing_says_that_a_run_without_a_lock_was_made_by_the_same(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run.parent / "episodes.jsonl"
    assert main(["runs", "export", str(run), "-o", str(lines)]) == 0
    (changed,) = told(capsys, lines)["changes"]
    assert changed["terms"]["sum"] == [1.0, 2.0]


# Each part of a reward, from the values that were recorded

ABLATION_SPEC = """
rlenv: 1
name: parts
tasks: {train: {rows: [{answer: "3"}, {answer: "4"}, {answer: "5"}]}}
prompt: {user: "How many?"}
tools: {sum: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}", weight: 0.5}
  near: {kind: rule, function: "t.py:near", gate: correct < 1}
  same: {kind: verify, tool: sum, arguments: {expression: "{{ answer }}"}, expect: "{{ task.answer }}", compare: number}
  seen: {kind: rule, rule: answered, weight: 0}
success: correct >= 1 and same >= 0.5
"""
ABLATION_CODE = "def near(context):\n    return 0.5\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(ABLATION_CODE)
    (tmp_path / "env.yaml").write_text(ABLATION_SPEC)
    return tmp_path / "env.yaml"


def ablation_played(path: Path) -> list[Trajectory]:
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
    return ablation(rlenv.load(path), ablation_played(path), **given)


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

    episodes, failed = ablation_played(path), asyncio.run(lost())
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
        first, *others = ablation_played(path)
        asked = (ModelUsage("policy", "m", requests=1, prompt_tokens=999), near, before, same, *more)
        found = ablation(rlenv.load(path), [dataclasses.replace(first, usage=asked), *others])
        return [part.tokens for part in found.parts if part.name in ("only correct", "only near", "only same")]

    assert tokens() == [None, 1.0, 2.0]
    assert tokens(ModelUsage("term near", "other", requests=1, unknown=1)) == [None, None, 2.0]


@pytest.mark.slow
def test_the_command_writes_table_figures_and_chart(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = path.parent / "run", path.parent / "out"
    record.write(run / "trajectories.jsonl", ablation_played(path))
    asked = ["rescore", "--ablate", str(run), "--spec", str(path), "-o", str(out)]
    assert command(asked) == 0
    assert "| only same |" in capsys.readouterr().out
    found = json.loads((out / "ablation.json").read_text())
    assert found["parts"][0]["name"] == "all together"
    assert "only same" in (out / "ablation.svg").read_text()
    assert (out / "ablation.md").read_text().count("\n|") > 10
    assert command(asked) == 2
    assert command([*asked, "--overwrite", "--json"]) == 0


def test_comparisons_that_models_were_asked_for_keep_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(
        SPEC[: SPEC.index("  short:")]
        + "  duel: {kind: judge, endpoint: judge, pairwise: {with: group}, prompt: Judge, weight: 0.5}\n"
        "endpoints: {judge: {base_url: 'http://127.0.0.1:9/v1', model: m}}\n"
    )

    async def answered(environment: rlenv.Environment, answer: str) -> Trajectory:
        async with environment.start(task=0, seed=1) as episode:
            await episode.step(f"<answer>{answer}</answer>")
            return episode.trajectory

    async def main() -> list[Trajectory]:
        async with rlenv.load(tmp_path / "env.yaml") as environment:
            found = []
            for value, answer in ((0.75, "3"), (0.25, "4")):
                one = await answered(environment, answer)
                duel = TermResult.valid("duel", value=value, weight=0.5)
                reward = dataclasses.replace(one.reward, terms={**one.reward.terms, "duel": duel})
                found.append(dataclasses.replace(one, reward=reward))
            return reweigh(environment, found, Weights(weight={"duel": 2.0}))

    assert [(one.reward.terms["duel"].value, one.reward.total) for one in asyncio.run(main())] == [
        (0.75, 2.5),
        (0.25, 0.5),
    ]
