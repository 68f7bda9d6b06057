"""Which environment variables a run gets: the command line's over the shell's over the preset's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv_verl.run import Run
from rlenv_verl.run.inputs import run_environment
from rlenv_verl.run.train import main
from rlenv_verl.settings import with_the_shell
from rlenv_verl.settings.presets import Preset, load_preset, with_run_keys

THREADS = ("OMP_NUM_THREADS", "RLENV_ROLLOUT_THREADS")


def threads_of(preset: Preset) -> tuple[str, ...]:
    return tuple(preset.environment.get(name, "") for name in THREADS)


def test_threads_of_a_preset_are_those_of_every_process() -> None:
    assert threads_of(load_preset("cpu")) == ("1", "1")
    preset, rest = with_run_keys(load_preset("cpu"), ["run.threads=3", "trainer.test_freq=1"])
    assert rest == ["trainer.test_freq=1"]
    assert threads_of(preset) == ("3", "3")
    assert preset.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in with_run_keys(load_preset("gpu"), ["run.threads=3"])[0].environment
    with pytest.raises(UsageError, match=r"run\.threads: expected a number of threads.* found 'two'"):
        with_run_keys(load_preset("cpu"), ["run.threads=two"])


def test_whichever_layer_speaks_of_threads_last_is_right(tmp_path: Path) -> None:
    """By `run.threads` or by a variable."""
    below, above = tmp_path / "below.yaml", tmp_path / "above.yaml"
    for first, second, expected in [
        ("run: {threads: 2}", "run: {threads: 4}", ("4", "4")),
        ("environment: {OMP_NUM_THREADS: 2, RLENV_ROLLOUT_THREADS: 3}", "run: {threads: 4}", ("4", "4")),
        ("run: {threads: 2}", "environment: {OMP_NUM_THREADS: 4}", ("4", "2")),
        ("environment: {OMP_NUM_THREADS: 2}", "environment: {A: b}", ("2", "1")),
        ("run: {threads: 2}", "with: {grpo: {run: {threads: 4}}}", ("4", "4")),
    ]:
        below.write_text(f"extends: cpu\n{first}\n")
        above.write_text(f"extends: below.yaml\n{second}\n")
        assert threads_of(load_preset(str(above))) == expected, (first, second)


def test_what_somebody_exported_wins_over_the_preset_and_is_said() -> None:
    own = load_preset("cpu").environment
    found = with_the_shell(own, {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "HOME": "/"})
    assert dict(found.values) == {**own, "OMP_NUM_THREADS": "2", "RLENV_ROLLOUT_THREADS": "2"}
    assert found.said == (
        "OMP_NUM_THREADS=2 from the shell, not the preset's 1",
        "RLENV_ROLLOUT_THREADS=2 as OMP_NUM_THREADS, not the preset's 1",
    )
    apart = with_the_shell(own, {"OMP_NUM_THREADS": "2", "RLENV_ROLLOUT_THREADS": "1"})
    assert apart.values["RLENV_ROLLOUT_THREADS"] == "1"


def test_the_command_line_wins_over_the_shell() -> None:
    preset, _ = with_run_keys(load_preset("cpu"), ["run.threads=4"])
    found = with_the_shell(preset.environment, {"OMP_NUM_THREADS": "2"}, pinned=preset.pinned)
    assert [found.values[name] for name in THREADS] == ["4", "4"]
    assert found.said == ("OMP_NUM_THREADS=4 as the command line says, not the shell's 2",)


def test_a_device_stays_the_presets_and_modules_are_added() -> None:
    own = load_preset("cpu").environment
    found = with_the_shell(own, {"VERL_PLATFORM": "cuda", "VERL_USE_EXTERNAL_MODULES": "mine,rlenv_verl.estimators"})
    assert found.values["VERL_PLATFORM"] == "cpu"
    assert found.values["VERL_USE_EXTERNAL_MODULES"] == own["VERL_USE_EXTERNAL_MODULES"] + ",mine"
    assert [line.split("=")[0] for line in found.said] == ["VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_says_takes_and_keeps_the_shells_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("RLENV_ROLLOUT_THREADS", raising=False)
    assert main(["arithmetic", "--dry-run", "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert "environment OMP_NUM_THREADS=2 from the shell, not the preset's 1" in told
    assert "\n  OMP_NUM_THREADS=2 \\\n" in told
    # What it was started with holds for --resume, in a shell that says nothing or something else.
    monkeypatch.delenv("OMP_NUM_THREADS")
    run = Run.load(out)
    assert run_environment(run, run.metrics)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["--resume", str(out), "--dry-run"]) == 0
    assert "environment OMP_NUM_THREADS=3 from the shell, not the run's 2" in capsys.readouterr().out
    # Nor does a shell undo what the command line said, in a run that is older than these words either.
    fields = json.loads((out / "run.json").read_text())
    del fields["pinned"]
    (out / "run.json").write_text(json.dumps(fields))
    assert Run.load(out).pinned == ()
