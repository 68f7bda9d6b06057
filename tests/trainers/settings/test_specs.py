"""Several specs in one run: what the command line says of them, and the rows that come of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.tasks.rows import PASS
from rlenv_train.specs import load_specs, read_override, spec_and_overrides
from rlenv_verl.run.inputs import mixed_rows, rows_by_weight, validation_rows
from rlenv_verl.run.train import main

SPEC = """
rlenv: 1
name: {name}
tasks:
  train: {{rows: [{rows}]}}
  test: {{rows: [{rows}]}}
prompt: {{user: "{{{{ task.question }}}}"}}
tools: {{calculate: {{kind: calculator}}}}
limits: {{turns: 2}}
rewards: {{correct: {{kind: rule, rule: numeric_match}}}}
"""


def write(folder: Path, name: str, tasks: int, *, file: str | None = None) -> str:
    rows = ", ".join(f"{{question: q{index}, answer: {index}}}" for index in range(tasks))
    path = folder / f"{file or name}.yaml"
    path.write_text(SPEC.format(name=name, rows=rows))
    return str(path)


def test_arguments_with_an_equals_sign_are_overrides(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.yaml"
    odd.write_text("")
    items = ["arithmetic", "trainer.test_freq=2", str(odd), "+x.y=1"]
    assert spec_and_overrides(items) == (["arithmetic", str(odd)], ["trainer.test_freq=2", "+x.y=1"])


def test_a_value_is_set_in_every_spec_or_in_one(tmp_path: Path) -> None:
    sources = [write(tmp_path, "first", 2), write(tmp_path, "second", 2)]
    first, second = load_specs(sources, set=["limits.turns=5", "second:limits.turns=7"], weights=["second=3"])
    assert (first.environment.spec.limits.turns, second.environment.spec.limits.turns) == (5, 7)
    assert (first.weight, second.weight) == (1.0, 3.0)
    assert (first.set, second.set) == ({"limits.turns": 5}, {"limits.turns": 7})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": ["secnod=2"]}, "did you mean 'second'"),
        ({"set": ["thrid:limits.turns=2"]}, "this run has first, second"),
        ({"weights": ["first=0"]}, "W above 0"),
        ({"weights": ["first=-1"]}, "W above 0"),
        ({"weights": ["first"]}, "NAME=W"),
        ({"weights": ["first=much"]}, "NAME=W"),
        ({"set": ["limits.turns"]}, "KEY=VALUE"),
        ({"set": ["limits.turns=[1"]}, "quotes"),
    ],
)
def test_what_no_spec_can_take_is_refused(tmp_path: Path, given: dict[str, list[str]], message: str) -> None:
    sources = [write(tmp_path, "first", 2), write(tmp_path, "second", 2)]
    with pytest.raises(UsageError, match=message):
        load_specs(sources, **given)


def test_specs_that_share_a_name_are_refused(tmp_path: Path) -> None:
    sources = [write(tmp_path, "same", 2), write(tmp_path, "same", 2, file="other")]
    with pytest.raises(UsageError, match=r"same\.yaml and .*other\.yaml are both called 'same'"):
        load_specs(sources)


@pytest.mark.parametrize(
    ("sizes", "weights", "rows"),
    [
        ([10, 10], [1, 1], [10, 10]),
        ([10, 3], [1, 1], [10, 10]),  # the small one comes round more than once
        ([10, 30], [1, 1], [30, 30]),
        ([10, 10, 10], [2, 1, 1], [20, 10, 10]),
        ([7, 10], [0.3, 0.7], [7, 17]),  # rounded up: no task is left out
        ([5], [9], [5]),
    ],
)
def test_an_epoch_covers_every_task_in_the_shares_of_the_weights(
    sizes: list[int], weights: list[float], rows: list[int]
) -> None:
    assert rows_by_weight(sizes, weights) == rows


def test_rows_of_several_specs_take_turns_and_go_to_their_own_loops(tmp_path: Path) -> None:
    first, second = load(write(tmp_path, "first", 12)), load(write(tmp_path, "second", 4))
    rows = mixed_rows([(first, 2.0), (second, 1.0)], "train", seed=0)
    assert Counter(row["agent_name"] for row in rows) == {"rlenv/first": 12, "rlenv/second": 6}
    assert all(row["data_source"] == f"{row['agent_name'].removeprefix('rlenv/')}/train" for row in rows)
    assert [row["extra_info"]["index"] for row in rows] == list(range(18))
    for start in range(0, 18, 3):  # the shares hold in any stretch
        assert Counter(row["agent_name"] for row in rows[start : start + 3])["rlenv/second"] == 1
    tasks = Counter(row["extra_info"]["task"] for row in rows if row["agent_name"] == "rlenv/second")
    assert set(tasks) == {0, 1, 2, 3}
    assert max(tasks.values()) == 2
    assert rows == mixed_rows([(first, 2.0), (second, 1.0)], "train", seed=0)
    assert rows != mixed_rows([(first, 2.0), (second, 1.0)], "train", seed=1)


def test_one_spec_keeps_the_order_of_its_tasks(tmp_path: Path) -> None:
    only = load(write(tmp_path, "only", 5))
    assert [row["extra_info"]["task"] for row in mixed_rows([(only, 3.0)], "train", seed=4)] == [0, 1, 2, 3, 4]


def test_a_split_in_an_order_is_asked_in_it_in_every_round(tmp_path: Path) -> None:
    first = load(write(tmp_path, "first", 12))
    second = load(write(tmp_path, "second", 4), set={"tasks.train.order": "-task.answer"})
    rows = mixed_rows([(first, 2.0), (second, 1.0)], "train", seed=0)
    asked = [row["extra_info"]["task"] for row in rows if row["agent_name"] == "rlenv/second"]
    assert [second.tasks("train")[task]["answer"] for task in asked] == [3, 2, 1, 0, 3, 2]


def test_a_spec_without_an_end_gives_each_step_tasks_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("def row(index): return {'question': f'q{index}', 'answer': index}")
    source = {"tasks.train": {"python": str(tmp_path / "make.py:row")}}
    endless, other = load(write(tmp_path, "endless", 1), set=source), load(write(tmp_path, "other", 3))
    rows = mixed_rows([(endless, 1.0)], "train", seed=0, prompts=2_500)
    assert [row["extra_info"]["task"] for row in rows] == list(range(2_500))
    assert endless.start(task=2_499).task["answer"] == 2_499
    assert len(mixed_rows([(endless, 1.0)], "train", seed=0)) == PASS  # where no number of steps is set
    mixed = mixed_rows([(endless, 3.0), (other, 1.0)], "train", seed=0, prompts=40)
    found = Counter((row["agent_name"], row["extra_info"]["task"]) for row in mixed)
    assert sorted(task for name, task in found if name == "rlenv/endless") == list(range(30))
    assert max(count for (name, _), count in found.items() if name == "rlenv/endless") == 1
    assert len(validation_rows([endless], "train", tasks=1_200, modes=["greedy"])) == 1_200


def test_weights_that_make_an_endless_epoch_are_refused(tmp_path: Path) -> None:
    first, second = load(write(tmp_path, "first", 2)), load(write(tmp_path, "second", 2))
    with pytest.raises(UsageError, match=r"covers first .* larger --weight"):
        mixed_rows([(first, 1e-9), (second, 1.0)], "train", seed=0)


@pytest.mark.filterwarnings("ignore")
def test_a_dry_run_of_two_specs_writes_a_loop_for_each(tmp_path: Path) -> None:
    out, sources = tmp_path / "run", [write(tmp_path, "first", 4), write(tmp_path, "second", 2)]
    argv = [*sources, "--dry-run", "-o", str(out), "--weight", "first=2", "--set", "second:limits.turns=3"]
    assert main([*argv, "run.turn_tokens=9", "run.failures.turns=mask"]) == 0
    loops = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert [loop["name"] for loop in loops] == ["rlenv/first", "rlenv/second"]
    assert [loop["spec"] for loop in loops] == sources
    assert [loop["spec_set"] for loop in loops] == [{}, {"limits.turns": 3}]
    assert [loop["turn_tokens"] for loop in loops] == [9, 9]
    assert loops[0]["failures"] == {"turns": "mask"}
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["actor_rollout_ref"]["rollout"]["agent"]["default_agent_loop"] == "rlenv/first"


@pytest.mark.parametrize(
    ("item", "value"),
    [("k=1e-6", 1e-6), ("k=5E4", 5e4), ("k=", None), ("k=null", None), ("k=[1, a=b]", [1, "a=b"]), ("k=a=b", "a=b")],
)
def test_a_value_of_an_override_is_read_as_those_of_set_are(item: str, value: object) -> None:
    """YAML 1.1 takes `1e-6` for a text, which a trainer meets minutes later."""
    assert read_override(item) == ("k", value)


def test_a_value_that_cannot_be_read_is_refused_with_its_item() -> None:
    with pytest.raises(UsageError, match=r"run\.failures=\{a: the value cannot be read"):
        read_override("run.failures={a")
