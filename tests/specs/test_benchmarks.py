"""The recipes of docs/guides/benchmarks.md, on the benchmarks' own files and code where RLENV_DATA holds them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.checks.diagnose import check_environment
from rlenv.episodes.environment import Environment, load
from rlenv.tokens import TokenEncoder
from tests.support import real
from tests.support.pages import blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "benchmarks.md"
MOST_PYTHON = 60
"""Lines of Python that a recipe may take."""


def written(name: str, folder: Path) -> Path:
    """The spec of that name with the Python that it names, as a reader of the page would write them."""
    (spec,) = [one.text for one in blocks_of(PAGE) if one.language == "yaml" and f"\nname: {name}\n" in one.text]
    for file in set(re.findall(r"[\w]+\.py", spec)):
        (code,) = [one.text for one in blocks_of(PAGE) if one.text.startswith(f"# {file}\n")]
        (folder / file).write_text(code)
    (folder / "spec.yaml").write_text(spec)
    return folder / "spec.yaml"


def do_nothing(environment: Environment) -> int:
    """On how many tasks a policy earns anything that says a word whenever it is its turn."""

    async def run() -> int:
        found = 0
        async with environment:
            for task in range(len(environment.tasks("test"))):
                async with environment.start(split="test", task=task) as episode:
                    while not (await episode.step("Done.")).is_last:
                        pass
                    found += (episode.trajectory.reward.total or 0) > 0
        return found

    return asyncio.run(run())


def test_recipes_are_short() -> None:
    for block in blocks_of(PAGE):
        lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
        assert len(lines) <= MOST_PYTHON, f"{block.place}: {len(lines)} lines"


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("category", "at_fault"),
    [("base", set()), ("miss_func", {"multi_turn_miss_func_49"}), ("miss_param", set()), ("long_context", set())],
)
def test_bfcls_dialogues_are_solved_by_their_gold_and_by_nothing_less(
    category: str,
    at_fault: set[str],
    tmp_path: Path,
    public: Callable,
    play_oracle: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("mpmath")
    monkeypatch.syspath_prepend(public("bfcl_eval/__init__.py").parents[1])
    environment = load(written("bfcl-multi-turn", tmp_path), set={"vars.category": category})
    trajectories = play_oracle(environment, "test")
    assert [one.failure for one in trajectories if one.failure] == []
    assert {environment.tasks("test")[one.task_index]["id"] for one in trajectories if not one.success} == at_fault
    assert do_nothing(load(tmp_path / "spec.yaml", set={"vars.category": category})) == 0


@pytest.mark.shared_data
@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize("category", ["base", "miss_func", "long_context"])
def test_bfcls_dialogues_are_id_for_id_the_templates(
    category: str, family: str, tmp_path: Path, public: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpmath")
    monkeypatch.syspath_prepend(public("bfcl_eval/__init__.py").parents[1])
    environment = load(written("bfcl-multi-turn", tmp_path), set={"vars.category": category})
    bound = TokenEncoder(real.qwen(family), chat_template=real.template(family), history="rows")
    report = check_environment(environment, lambda: bound, name=family, dialogues=0)
    assert report.is_exact, report.findings
    assert sum(finding.cases for finding in report.findings if finding.name == "dialogues of the environment") > 100


@pytest.mark.shared_data
@pytest.mark.parametrize(("domain", "count", "without_a_change"), [("retail", 115, 7), ("airline", 50, 19)])
def test_tau_bench_is_solved_by_its_gold_and_by_nothing_only_where_nothing_is_to_be_done(
    domain: str,
    count: int,
    without_a_change: int,
    tmp_path: Path,
    public: Callable,
    play_oracle: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "litellm.py").write_text("completion = None\n")  # for its own users, who are not asked
    monkeypatch.setattr(sys, "path", [str(public("tau_bench/__init__.py").parents[1]), *sys.path, str(tmp_path)])
    rules = tmp_path / "tau_bench" / "envs" / domain / "wiki.md"
    rules.parent.mkdir(parents=True)
    rules.write_text(public(f"tau_bench/envs/{domain}/wiki.md").read_text())
    written("tau-bench", tmp_path).rename(tmp_path / "tau.yaml")
    (airline,) = [one.text for one in blocks_of(PAGE) if one.text.startswith("# airline.yaml\n")]
    (tmp_path / "airline.yaml").write_text(airline)
    path = tmp_path / {"retail": "tau.yaml", "airline": "airline.yaml"}[domain]
    environment = load(path)
    trajectories = play_oracle(environment, "test")
    assert [one.task_index for one in trajectories if not one.success] == []
    assert len(trajectories) == count
    assert do_nothing(load(path)) == without_a_change


@pytest.mark.shared_data
def test_reasoning_gym_is_solved_by_its_own_answers_and_by_nothing_less(tmp_path: Path, play_oracle: Callable) -> None:
    pytest.importorskip("reasoning_gym")
    names = {"tasks.train.args.size": 2, "tasks.test.args.size": 2}
    environment = load(written("reasoning-gym", tmp_path), set=names)
    assert [one.reward.total for one in play_oracle(environment, "test")] == [1.0] * 6
    assert do_nothing(load(tmp_path / "spec.yaml", set=names)) == 0
