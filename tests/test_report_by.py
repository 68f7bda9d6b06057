"""Success by the values of a column: which tasks a part of a split takes, and what eval says of each value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlenv.cli.main import main
from rlenv.episodes.environment import Environment, load
from rlenv.errors import SpecError
from rlenv.tasks.rows import spread

ROWS = [{"set": name, "answer": answer} for name, answer in (("nq", "a"), ("nq", "b"), ("nq", "a"), ("pop", "a"))]


def spec(tmp_path: Path, **source: object) -> Path:
    path = tmp_path / "env.yaml"
    data = {
        "rlenv": 1,
        "name": "sets",
        "tasks": {"test": {"rows": ROWS, **source}},
        "prompt": {"user": "{{ task.set }}"},
        "rewards": {"correct": {"kind": "rule", "rule": "exact_match"}},
        "oracle": [{"say": "<answer>a</answer>"}],
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 40))
def test_a_part_is_spread_evenly_over_the_groups(groups: list[str], count: int) -> None:
    places = spread(groups, count)
    assert places == sorted(set(places))
    assert len(places) == min(count, len(groups))
    taken = {group: sum(groups[place] == group for place in places) for group in set(groups)}
    for group, number in taken.items():
        if number < groups.count(group):  # a group that is not used up has no less than the others, but for one
            assert number >= max(taken.values()) - 1


def test_a_part_of_a_split_takes_from_each_group(tmp_path: Path) -> None:
    environment = load(spec(tmp_path, report_by="set"))
    assert environment.groups("test") == ("nq", "nq", "nq", "pop")
    assert environment.part("test", 2) == [0, 3]
    assert environment.part("test", 9) == environment.part("test", None) == [0, 1, 2, 3]
    plain = load(spec(tmp_path))
    assert plain.groups("test") is None
    assert plain.part("test", 2) == [0, 1]


def test_a_column_that_a_row_lacks_is_a_fault_at_its_place(tmp_path: Path) -> None:
    environment: Environment = load(spec(tmp_path, report_by="data_source"))
    with pytest.raises(SpecError, match=r"row 0 has no column 'data_source'; it has set, answer"):
        environment.part("test", 1)


def test_eval_reports_each_group_and_the_mean_of_the_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(spec(tmp_path, report_by="set"))
    assert main(["eval", path, "--policy", "oracle", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    rates = {name: group["success_rate"] for name, group in figures["groups"].items()}
    assert rates == {"nq": pytest.approx(2 / 3), "pop": 1.0}
    assert figures["success_rate"] == pytest.approx(3 / 4)
    assert figures["groups_success_mean"] == pytest.approx((2 / 3 + 1) / 2)
    assert main(["eval", path, "--policy", "oracle", "-n", "2"]) == 0
    shown = capsys.readouterr().out
    assert "pop" in shown
    assert "each of 2 groups counts alike" in shown
