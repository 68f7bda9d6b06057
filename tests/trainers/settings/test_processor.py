"""bfloat16 on a processor that announces what it traps is found before a run starts."""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv_verl.run.train import main
from rlenv_verl.settings import compose
from rlenv_verl.settings.machine import bf16_keys, bf16_runs, packing_findings, processor_findings
from rlenv_verl.settings.presets import load_preset

DIES = "import os, signal\nif not os.environ.get('ONEDNN_MAX_CPU_ISA'):\n    os.kill(os.getpid(), signal.SIGILL)"
ALWAYS_DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
RUNS = "pass"
ACTOR, REFERENCE = "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"
ROLLOUT = "actor_rollout_ref.rollout"
DATA = ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=/model"]


@cache
def resolved(name: str, algorithm: str | None = None) -> dict[str, Any]:
    return compose([*load_preset(name, algorithm=algorithm).overrides(), *DATA])


def composed(name: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a preset with other values at dotted paths."""
    config = copy.deepcopy(resolved(name))
    for path, value in changes.items():
        *parents, last = path.split(".")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return config


def plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}


@pytest.mark.verl_runs
def test_the_real_probe_has_an_answer_on_this_machine() -> None:
    assert bf16_runs() in (True, False)


def test_a_process_that_is_ended_by_its_instructions_is_told_from_other_failures() -> None:
    assert bf16_runs(plain(), program=DIES) is False
    assert bf16_runs({**plain(), "ONEDNN_MAX_CPU_ISA": "AVX2"}, program=DIES) is True
    assert bf16_runs(plain(), program="import no_such_module") is None


@pytest.mark.slow(but=2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({f"{ACTOR}.model_dtype": "bf16"}, [f"{ACTOR}.model_dtype"]),
        ({f"{ACTOR}.mixed_precision.param_dtype": "bf16"}, [f"{ACTOR}.mixed_precision.param_dtype"]),
        ({f"{ACTOR}.mixed_precision": None}, [f"+{ACTOR}.mixed_precision.param_dtype"]),
        # Only where a KL term has a reference.
        ({f"{REFERENCE}.model_dtype": "bf16"}, []),
        (
            {f"{REFERENCE}.model_dtype": "bf16", "actor_rollout_ref.actor.use_kl_loss": True},
            [f"{REFERENCE}.model_dtype"],
        ),
        # rlenv's own server computes in float32; vLLM takes what it is told, and veRL's default is bfloat16.
        ({f"{ROLLOUT}.name": "vllm"}, [f"{ROLLOUT}.dtype"]),
        ({f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.dtype": "float32"}, []),
    ],
)
def test_what_computes_in_bfloat16_on_a_cpu_is_known(changes: dict[str, Any], keys: list[str]) -> None:
    assert [key for key, _ in bf16_keys(composed("cpu", **changes))] == keys


@pytest.mark.filterwarnings("ignore")
def test_presets_for_cpus_are_float32_and_others_are_not_asked() -> None:
    assert bf16_keys(composed("cpu")) == []
    assert bf16_keys(resolved("cpu", "ppo")) == []
    assert bf16_keys(composed("gpu")) == []


@pytest.mark.filterwarnings("ignore")
def test_the_finding_names_the_keys_and_the_ways_out_that_were_tried() -> None:
    config = composed("cpu", **{f"{ACTOR}.model_dtype": "bf16"})
    (found,) = processor_findings(config, plain(), program=DIES)
    assert found.level == "error"
    assert f"take float32: {ACTOR}.model_dtype=fp32" in found.message
    assert "or export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in found.message
    (found,) = processor_findings(config, plain(), program=ALWAYS_DIES)
    assert "ONEDNN_MAX_CPU_ISA" not in found.message
    assert processor_findings(config, plain(), program=RUNS) == []
    (found,) = processor_findings(config, plain(), program="import no_such_module")
    assert found.level == "unknown"
    assert processor_findings(composed("cpu"), plain(), program=ALWAYS_DIES) == []


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_would_die_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a torch, in the processes that the run starts, which dies as the real one does on such a processor."""
    stand_in = tmp_path / "packages" / "torch.py"
    stand_in.parent.mkdir()
    stand_in.write_text(f"{DIES}\nraise SystemExit")
    monkeypatch.setenv("PYTHONPATH", str(stand_in.parent), prepend=os.pathsep)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    out = tmp_path / "run"
    argv = ["arithmetic", "--dry-run", "-o", str(out), f"{ACTOR}.model_dtype=bf16"]
    assert main(argv) == 1
    assert "error: bfloat16 ends with 'Illegal instruction'" in capsys.readouterr().out
    assert yaml.safe_load((out / "config.yaml").read_text())["trainer"]["device"] == "cpu"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    assert main([*argv[:-2], str(tmp_path / "other"), argv[-1]]) == 0


@pytest.mark.filterwarnings("ignore")
def test_packing_that_only_flash_attention_computes_is_found_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    packed = composed("cpu", **{"actor_rollout_ref.model.path": str(tmp_path)})
    (found,) = packing_findings(packed)
    assert found.level == "error"
    assert found.message.endswith("set actor_rollout_ref.model.use_remove_padding=false")
    padded = {"actor_rollout_ref.model.path": str(tmp_path), "actor_rollout_ref.model.use_remove_padding": False}
    assert packing_findings(composed("cpu", **padded)) == []
    assert packing_findings(composed("gpu", **{"actor_rollout_ref.model.path": str(tmp_path)})) == []
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert packing_findings(packed) == []
