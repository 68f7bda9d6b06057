"""Metrics, curves, presets and data sets: what stands around a run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.runs.folder import open_run
from rlenv.runs.pack import seal_abandoned
from rlenv.runs.schema import Facts, Tokens
from rlenv.runs.usage import Spending
from rlenv.testing.tokens import small_tokenizer
from rlenv.trajectory import Failure, ModelUsage, RewardBreakdown
from rlenv.web.episode import token_rows
from rlenv.web.shelf import Shelf
from rlenv_train.keeping import Keeper, KeptEpisodes
from rlenv_train.progress import plot_png, plot_text
from rlenv_verl.run.figures import MetricsFile, by_step, figures_of, series, without_failures
from rlenv_verl.run.inputs import training_rows, validation_rows
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import flatten, load_preset, override
from tests.support.kept import episode, keep
from tests.trainers.runs import unstarted

SOURCES = {"greedy": "toy/test/greedy"}


def line(step: int, **values: float) -> bytes:
    return (
        orjson.dumps({"step": step, "data": {key.replace("__", "/"): value for key, value in values.items()}}) + b"\n"
    )


def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    log = MetricsFile(tmp_path / "metrics.jsonl", SOURCES)
    assert list(log.new()) == []
    first, second = line(0), line(1, critic__score__mean=0.5)
    log.path.write_bytes(first + second[:10])
    assert [entry.step for entry in log.new()] == [0]
    assert list(log.new()) == []
    with log.path.open("ab") as file:
        file.write(second[10:])
    (entry,) = log.new()
    assert (entry.step, entry.reward) == (1, 0.5)


def test_success_and_failures_of_validation_are_read() -> None:
    values = {"val-aux/toy/test/greedy/success/mean@1": 0.75, "val-aux/toy/test/greedy/invalid/mean@1": 0.1}
    entry = figures_of(5, values, sources=SOURCES)
    assert entry.success == {"greedy": 0.75}
    assert entry.invalid == 0.1
    assert entry.reward is None


def test_a_step_that_is_logged_twice_counts_once() -> None:
    steps = [figures_of(1, {"critic/score/mean": reward}, sources={}) for reward in (0.1, 0.2)]
    assert [entry.reward for entry in by_step(steps)] == [0.2]


@pytest.mark.slow
def test_curves_are_drawn_as_text_and_png(tmp_path: Path) -> None:
    steps = [
        figures_of(
            step, {"critic/score/mean": step / 10, "val-aux/toy/test/greedy/success/mean@1": 0.5}, sources=SOURCES
        )
        for step in range(11)
    ]
    curves = series(steps)
    text = plot_text(curves, width=40)
    assert "g  held-out success, greedy" in text
    assert max(len(row) for row in text.splitlines()) <= 60
    plot_png(curves, tmp_path / "curve.png", title="toy")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_nothing_to_draw_is_an_empty_text() -> None:
    assert plot_text({}) == ""


def test_as_many_curves_as_a_run_on_many_sets_has_are_told_apart() -> None:
    names = [f"held-out success, {mode}/set{number}" for mode in ("greedy", "sampled") for number in range(40)]
    legend = plot_text({name: [(0, 0.0), (2, 1.0)] for name in names}).splitlines()[-len(names) :]
    letters = [line.split()[0] for line in legend]
    assert [line.split(maxsplit=1)[1] for line in legend] == names
    assert len(set(letters[:62])) == 62
    assert set(letters[62:]) == {"*"}


def test_rows_name_their_task_and_nothing_else() -> None:
    environment = load("arithmetic")
    rows = training_rows(environment, "train")
    assert len(rows) == len(environment.tasks("train"))
    assert rows[7]["extra_info"]["task"] == 7
    assert "answer" not in str(rows[7])
    held_out = validation_rows([environment], "test", tasks=3, modes=("greedy", "sampled"))
    assert [row["extra_info"]["greedy"] for row in held_out] == [True] * 3 + [False] * 3
    assert all(row["extra_info"]["is_validation"] for row in held_out)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "a.b=true"),
        (None, "a.b=null"),
        (5e-4, "a.b=0.0005"),
        (["x", 1], "a.b=[x,1]"),
        ("/a path/it's", r"a.b='/a path/it\'s'"),
        ("pkg://m", "a.b='pkg://m'"),
        ("1e3", "a.b='1e3'"),
        ("", "a.b=''"),
    ],
)
def test_overrides_are_quoted_as_hydra_reads_them(value: object, text: str) -> None:
    assert override("a.b", value) == text


@pytest.mark.slow(but=2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", ["/a path/it's", "x=y, z", "true", "12:30", "back\\slash", "{ray_dir}"])
def test_an_override_reaches_the_configuration_unchanged(value: str) -> None:
    config = compose([override("trainer.experiment_name", value)])
    assert config["trainer"]["experiment_name"] == value


@pytest.mark.filterwarnings("ignore")
def test_an_unknown_key_is_an_error_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="test_frequency"):
        compose(["trainer.test_frequency=3"])


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'cpu'\? there are .*cpu, cpu-lm"):
        load_preset("cpi")


def test_nested_keys_are_joined_and_lists_are_values() -> None:
    assert list(flatten({"a": {"b": 1, "c": {"d": [2]}}})) == [("a.b", 1), ("a.c.d", [2])]


def test_the_training_reward_leaves_failed_episodes_out() -> None:
    entry = figures_of(3, {"critic/score/mean": 0.6}, sources={})
    assert without_failures(entry, failed=0, episodes=8).reward == 0.6
    assert without_failures(entry, failed=2, episodes=8).reward == pytest.approx(0.8)
    assert without_failures(entry, failed=8, episodes=8).reward is None


def test_failed_episodes_are_counted(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    for message in ("no db", "no db", "late"):
        one = replace(episode(), failure=Failure("resource", message), reward=RewardBreakdown(None, {}), success=None)
        keeper.keep(one, Facts(step=3, mode="train"))
    keeper.close()
    found = KeptEpisodes(tmp_path)
    assert found.failed_by_step(split="train") == {3: 3}
    assert found.failed_by_step(split="test") == {}
    assert found.reasons(most=2) == {"resource: no db": 2, "resource: late": 1}
    assert len(found) == 3


def test_what_episodes_asked_of_judges_and_tools_is_summed_over_the_run(tmp_path: Path) -> None:
    assert KeptEpisodes(tmp_path / "none").spending() == Spending()
    keeper = Keeper(tmp_path)
    usage = (ModelUsage("judge good", "j", 2, 1, prompt_tokens=100, completion_tokens=10),)
    for step in range(3):
        keeper.keep(replace(episode(), usage=usage), Facts(step=step, mode="train"))
    keeper.close()
    found = KeptEpisodes(tmp_path).spending()
    assert (found.requests, found.failed, found.prompt_tokens, found.completion_tokens) == (6, 3, 300, 30)
    assert [one.role for one in found.roles] == ["judge good"]


LEFT = """
import os, sys
from pathlib import Path
from rlenv.runs.schema import Facts, Tokens
from rlenv.trajectory import RewardBreakdown, Trajectory
from rlenv_train.keeping import Keeper
keeper = Keeper(Path(sys.argv[1]))
one = Trajectory("a-v0", "train", 0, 0, {}, (), (), None, True, False, "answer", RewardBreakdown(1.0, {}), True)
keeper.append_late(keeper.keep(one, Facts()), fate="trained")
os._exit(0)
"""


@pytest.mark.slow
def test_what_processes_left_open_is_sealed_once_they_are_gone(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", LEFT, str(tmp_path)], env={**os.environ, **paths}, check=True, timeout=60)
    living = Keeper(tmp_path)
    id = living.keep(episode(), Facts())
    seal_abandoned(tmp_path)
    assert {path.name.split(".")[0] for path in (tmp_path / "journal").iterdir()} == {id.rpartition("-")[0]}
    rows = {row["id"]: row for row in open_run(tmp_path).table.to_pylist()}
    assert rows.pop(id)["has_body"]
    (row,) = rows.values()
    assert (row["fate"], row["has_body"]) == ("trained", True)
    living.close()


def test_groups_of_a_validation_are_read_beside_their_mean() -> None:
    values = {
        "val-aux/toy/test/greedy/nq/success/mean@1": 0.5,
        "val-aux/toy/test/greedy/pop/success/mean@1": 1.0,
        "val-aux/toy/test/greedy/nq/term_correct/mean@1": 0.25,
        "val-aux/toy/test/greedy/nq/invalid/mean@1": 0.0,
        "val-aux/toy/test/greedy/pop/invalid/mean@1": 0.5,
    }
    entry = figures_of(3, values, sources={"greedy": "toy/test/greedy"})
    assert entry.success == {"greedy": 0.75, "greedy/nq": 0.5, "greedy/pop": 1.0}
    assert entry.terms == {"greedy": {"correct": 0.25}}
    assert entry.invalid == 0.25


@pytest.mark.parametrize("is_moved", [False, True])
def test_the_tokens_of_a_training_run_are_shown_as_its_policy_reads_them(tmp_path: Path, is_moved: bool) -> None:
    folder, tokenizer = tmp_path / "run", small_tokenizer()
    (folder / "model").mkdir(parents=True)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    unstarted(folder, model=str(folder / "model")).save()
    ids = tokenizer.encode("What is 2 + 2?").ids
    (id,) = keep(folder, 1, facts=Facts(step=1, mode="train", tokens=(Tokens(ids[:2], ids[2:], [1] * len(ids[2:])),)))
    if is_moved:
        folder = folder.rename(tmp_path / "elsewhere")
    shelf = Shelf([folder])
    found = token_rows(shelf.open(shelf.run_keys()[0]), id)
    assert found["tokenizer"]
    assert "".join(found["rows"][0]["pieces"]) == "What is 2 + 2?"
