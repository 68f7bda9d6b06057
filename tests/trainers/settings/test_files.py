"""`--preset FILE`: a user's own preset is read like those that ship, and what is wrong with it is told at its place."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.errors import SpecError, UsageError
from rlenv.language.document import parse_source
from rlenv_train.specs import load_specs
from rlenv_verl.run.prepare import RunSettings, _own_keys
from rlenv_verl.run.train import main
from rlenv_verl.settings import compose, preset_names
from rlenv_verl.settings.checks import OF_THE_RUN, RUN_KEYS, preset_faults
from rlenv_verl.settings.presets import flatten, load_preset

MINE = """\
extends: cpu
algorithm: rloo
run: {turn_tokens: 48, threads: 2}
verl:
  actor_rollout_ref: {actor: {optim: {lr: 2e-5}}}
verl_add:
  actor_rollout_ref: {rollout: {engine_kwargs: {vllm: {worker_extension_cls: a.B}}}}
with:
  rloo: {environment: {SOME_SWITCH: 1}}
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_a_file_is_laid_over_the_preset_that_it_extends(tmp_path: Path) -> None:
    mine, cpu = load_preset(written(tmp_path, MINE)), load_preset("cpu", algorithm="rloo")
    assert (mine.algorithm, mine.mode) == ("rloo", "sync")
    assert dict(flatten(mine.verl)) == dict(flatten(cpu.verl)) | {"actor_rollout_ref.actor.optim.lr": 2e-5}
    assert mine.run == {**cpu.run, "turn_tokens": 48, "threads": 2}
    assert mine.environment["SOME_SWITCH"] == "1"
    overrides = [*mine.overrides(), "data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=/m"]
    rollout = compose(overrides)["actor_rollout_ref"]["rollout"]
    assert rollout["engine_kwargs"]["vllm"]["worker_extension_cls"] == "a.B"


def test_a_file_extends_another_by_a_path_beside_it_and_that_a_name(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    written(tmp_path / "below", "extends: gpu\nrun: {turn_tokens: 7}\nenvironment: {A: a, B: b}\n", "team.yaml")
    mine = load_preset(written(tmp_path, "extends: below/team.yaml\nenvironment: {B: c}\n"))
    assert (mine.run["turn_tokens"], mine.run["max_prompt_length"]) == (7, 4096)
    assert (mine.environment["A"], mine.environment["B"]) == ("a", "c")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", preset_names())
def test_those_that_ship_are_held_to_the_same(name: str) -> None:
    text = (resources.files("rlenv_verl") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    assert list(preset_faults(parse_source(text))) == []
    assert set(load_preset(name).run) <= {*RUN_KEYS, "control"}


def test_the_keys_that_are_refused_as_the_runs_own_are_those_that_it_sets(tmp_path: Path) -> None:
    settings = RunSettings(load_specs(["arithmetic"]), tmp_path, "m", load_preset("cpu"), 0)
    own = set(_own_keys(settings, tmp_path, 5)) | {
        "ray_kwargs.ray_init.address",
        "trainer.v1.sampler.sampler_kwargs.trained_file",
        "trainer.v1.sampler.sampler_kwargs.record_dir",
    }
    assert own == set(OF_THE_RUN)


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("extends: cpuu\n", "1:10: extends", "no preset 'cpuu'.*did you mean 'cpu'"),
        ("extends: ./other.yaml\n", "1:10: extends", "no such file beside this one"),
        ("extends: cpu\nrunn: {}\n", "2:1: runn", "did you mean 'run'"),
        ("extends: cpu\nturn_tokens: 5\n", "2:1: turn_tokens", "it belongs under run"),
        ("extends: cpu\ntrainer: {}\n", "2:1: trainer", "a key of veRL's: write verl"),
        ("extends: cpu\nrun: {turn_token: 5}\n", "2:7: run.turn_token", "did you mean 'turn_tokens'"),
        ("extends: cpu\nrun: {turn_tokens: many}\n", "2:20: run.turn_tokens", "expected a number of tokens"),
        ("extends: cpu\nrun: {threads: 0}\n", "2:16: run.threads", "a number of threads"),
        ("extends: cpu\nrun: {failures: {turnz: mask}}\n", "2:25: run.failures.turnz", "did you mean 'turns'"),
        ("extends: cpu\nalgorithm: grop\n", "2:12: algorithm", "did you mean 'grpo'"),
        ("extends: cpu\nenvironment: {A: true}\n", "2:18: environment.A", "put quotes around it"),
        ("extends: cpu\nenvironment: {PYTHONPATH: x}\n", "2:15: environment.PYTHONPATH", "export it in the shell"),
        (
            "extends: cpu\nrun: {threads: 2}\nenvironment: {OMP_NUM_THREADS: 4}\n",
            "3:15: environment.OMP_NUM_THREADS",
            "run.threads of the same file sets",
        ),
        (
            "extends: cpu\nverl:\n  trainer: {test_frequency: 4}\n",
            "3:13: verl.trainer.test_frequency",
            "did you mean 'test_freq'",
        ),
        ("extends: cpu\nverl: {trainer: {save_freq: often}}\n", "2:29: verl.trainer.save_freq", "expected a number"),
        ("extends: cpu\nverl: {trainer: 5}\n", "2:17: verl.trainer", "is a mapping in veRL's configuration"),
        (
            "extends: cpu\nverl: {trainer.save_freq: 5}\n",
            "2:8: verl.trainer.save_freq",
            "write trainer: {save_freq: …}",
        ),
        ("extends: cpu\nverl: {data: {seed: 5}}\n", "2:15: verl.data.seed", "say --seed"),
        ("extends: cpu\nverl: {data: {}}\n", "2:14: verl.data", "an empty mapping changes nothing"),
        ("extends: cpu\nverl_add: {trainer: {save_freq: 5}}\n", "2:22: verl_add.trainer.save_freq", "under verl"),
        ("extends: cpu\nwith: {pppo: {}}\n", "2:8: with.pppo", "did you mean 'ppo'"),
        ("extends: cpu\nrun: {watch: true, watch: false}\n", "2:20", "watch"),
        ("environment: {A: b}\n", "1:1: run", "lacks train_split.*extends: cpu"),
    ],
)
def test_a_fault_is_told_at_its_place_with_the_nearest_fix(tmp_path: Path, text: str, place: str, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SpecError, match=told) as raised:
        load_preset(path)
    assert str(raised.value).startswith(f"{path}:{place}")
    assert len(raised.value.faults) == 1


def test_all_faults_are_told_at_once_in_the_order_of_their_places(tmp_path: Path) -> None:
    text = "verl: {trainer: {save_frek: 1}}\nrun: {threads: no}\nextends: cpu\nalgorithm: x\n"
    with pytest.raises(SpecError) as raised:
        load_preset(written(tmp_path, text))
    assert [fault.line for fault in raised.value.faults] == [1, 2, 4]


def test_presets_in_a_circle_and_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    written(tmp_path, "extends: b.yaml\n", "a.yaml")
    written(tmp_path, "extends: a.yaml\n", "b.yaml")
    with pytest.raises(SpecError, match=r"in a circle: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_preset(str(tmp_path / "a.yaml"))
    with pytest.raises(UsageError, match=r"no such file; did you mean 'a\.yaml'\?"):
        load_preset(str(tmp_path / "aa.yaml"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_keeps_its_preset_and_is_made_again_from_what_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "RLENV_ROLLOUT_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "presets").mkdir()
    mine = written(tmp_path / "presets", MINE)
    assert main(["arithmetic", "--preset", mine, "--dry-run", "-o", str(tmp_path / "a")]) == 0
    Path(mine).unlink()
    kept = str(tmp_path / "a" / "preset.yaml")
    assert main(["arithmetic", "--preset", kept, "--dry-run", "-o", str(tmp_path / "b")]) == 0
    first, second = (read(tmp_path / name) for name in ("a", "b"))
    assert first == second
    assert first["turn_tokens"] == 48
    assert first["environment"]["OMP_NUM_THREADS"] == "2"


def read(folder: Path) -> Mapping[str, Any]:
    """What a run is made of, its own folder's name aside."""
    (loop,) = yaml.safe_load((folder / "agent_loop.yaml").read_text())
    run = yaml.safe_load((folder / "run.json").read_text())
    overrides = [item.replace(str(folder), "/run") for item in run["overrides"]]
    return {
        "turn_tokens": loop["turn_tokens"],
        "environment": run["variables"],
        "overrides": sorted(item for item in overrides if not item.startswith("trainer.experiment_name=")),
        "algorithm": run["algorithm"],
    }
