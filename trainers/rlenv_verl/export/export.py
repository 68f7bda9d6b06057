"""A checkpoint of a run as a folder that transformers, peft and vLLM load."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from rlenv.errors import RlenvError, UsageError
from rlenv.language.loader import load_spec
from rlenv.language.shipped import find
from rlenv_verl.export.checkpoints import Checkpoint, choose, run_config, success_by_step, versions
from rlenv_verl.export.lora import split
from rlenv_verl.export.weights import build_model, load_model, lora_config, plain_weights, quiet

__all__ = ["DTYPES", "PROVENANCE", "Exported", "export_policy", "write_policy"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

PROVENANCE = "rlenv_export.json"
"""The file that says where a folder comes from."""

_WEIGHTS = (".safetensors", ".bin", ".index.json")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `source` says what the weights were made from; `dtype` is theirs in the folder."""

    folder: Path
    checkpoint: Checkpoint
    source: str
    dtype: str
    is_adapter: bool
    parameters: int


def export_policy(
    run: Path,
    target: Path | None = None,
    *,
    step: int | None = None,
    best: bool = False,
    dtype: str | None = None,
    adapter: bool = False,
) -> Exported:
    """Write the policy of one checkpoint as a folder of its own.

    The folder has the weights (safetensors, under the names that transformers gives them), the configuration, the
    tokenizer with its chat template, the generation configuration, and `rlenv_export.json`, which says where all of
    it comes from. An adapter of LoRA is merged into the base weights. The folder appears when it is whole.

    Args:
        run: the folder of a run of `rlenv train`.
        target: the folder to write, `RUN/exported/step-N` where None; it is new or empty.
        step: the checkpoint's step; the last one otherwise.
        best: take the step with the highest held-out success instead.
        dtype: `float32`, `bfloat16` or `float16`; None keeps the dtype that was trained in.
        adapter: write the adapter alone, as a folder of peft.

    Raises:
        UsageError: no such checkpoint, one that is not whole, a target that is not empty, or `adapter` without LoRA.
    """
    if step is not None and best:
        raise UsageError("--step and --best name two checkpoints", hint="give one of them")
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"no dtype '{dtype}'; expected one of {', '.join(DTYPES)}")
    checkpoint = choose(run, step=step, best=best)
    if adapter and checkpoint.lora is None:
        raise UsageError(f"step {checkpoint.step} of {run} has no LoRA adapter", hint="leave --adapter out")
    target = target or run / "exported" / f"step-{checkpoint.step}{'-adapter' if adapter else ''}"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", hint="name another folder with -o")
    base = str(run_config(run)["actor_rollout_ref"]["model"]["path"])

    def provenance(exported: Exported) -> dict[str, Any]:
        return _provenance(run, exported, base=base)

    return write_policy(checkpoint, target, base=base, provenance=provenance, dtype=dtype, adapter=adapter)


def write_policy(
    checkpoint: Checkpoint,
    target: Path,
    *,
    base: str,
    provenance: Callable[[Exported], Mapping[str, Any]],
    dtype: str | None = None,
    adapter: bool = False,
) -> Exported:
    """Write the policy of a checkpoint to a folder, which appears when it is whole.

    Args:
        base: the model that was trained.
        provenance: what `rlenv_export.json` says of it.
        dtype: as for `export_policy`.
        adapter: as for `export_policy`.
    """
    draft = target.with_name(f".{target.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        _copy_files(checkpoint, draft)
        exported = (_write_adapter if adapter else _write_model)(checkpoint, draft, base=base, dtype=dtype)
        (draft / PROVENANCE).write_text(json.dumps(provenance(exported), indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return dataclasses.replace(exported, folder=target)


def _copy_files(checkpoint: Checkpoint, target: Path) -> None:
    """Tokenizer, chat template, processor and generation configuration, byte for byte as the run used them."""
    for path in sorted(checkpoint.huggingface.iterdir()):
        if path.is_file() and path.name != "config.json" and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, target / path.name)


def _write_model(checkpoint: Checkpoint, target: Path, *, base: str, dtype: str | None) -> Exported:
    if checkpoint.has_whole_weights:
        source = "actor/huggingface"
        model = load_model(checkpoint.huggingface)
    else:
        weights, source = plain_weights(checkpoint, base=base)
        model = build_model(checkpoint, weights)
    if dtype is not None:
        model = model.to(DTYPES[dtype])
    # The run's choice for its own machine, which veRL saves like a property of the model; a server makes its own.
    model.config.__dict__.pop("attn_implementation", None)
    generation = target / "generation_config.json"
    kept = generation.read_bytes() if generation.is_file() else _base_generation_config(base)
    with quiet():
        if kept is not None:
            model.generation_config = type(model.generation_config)()  # what is written is replaced below
        model.save_pretrained(target)
    if kept is not None:
        generation.write_bytes(kept)
    shown = str(model.dtype).removeprefix("torch.")
    return Exported(target, checkpoint, source, shown, is_adapter=False, parameters=model.num_parameters())


def _base_generation_config(base: str) -> bytes | None:
    path = Path(base) / "generation_config.json"
    return path.read_bytes() if path.is_file() else None


def _write_adapter(checkpoint: Checkpoint, target: Path, *, base: str, dtype: str | None) -> Exported:
    from safetensors.torch import save_file

    weights, adapter = split(checkpoint.state())
    wanted = next(iter(adapter.values())).dtype if dtype is None else DTYPES[dtype]
    config = lora_config(checkpoint)
    with quiet():
        import peft

        peft.LoraConfig(
            r=int(config["r"]),
            lora_alpha=int(config["lora_alpha"]),
            target_modules=_target_modules(adapter, weights),
            task_type=peft.TaskType.CAUSAL_LM,
            base_model_name_or_path=base,
            inference_mode=True,
        ).save_pretrained(str(target))
    tensors = {name: tensor.to(wanted).contiguous() for name, tensor in adapter.items()}
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    count = sum(tensor.numel() for tensor in tensors.values())
    shown = str(wanted).removeprefix("torch.")
    return Exported(target, checkpoint, "the adapter in the shards", shown, is_adapter=True, parameters=count)


def _target_modules(adapter: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Layers by their last name where every layer of that name has an adapter, else by their whole names."""
    layers = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in adapter}
    last = {layer.rsplit(".", 1)[-1] for layer in layers}
    known = {name.removesuffix(".weight") for name in base if name.endswith(".weight")}
    alike = {layer for layer in known if layer.rsplit(".", 1)[-1] in last}
    return sorted(last if alike <= layers else layers)


def _provenance(run: Path, exported: Exported, *, base: str) -> dict[str, Any]:
    summary = run / "summary.json"
    trained = json.loads(summary.read_bytes()) if summary.is_file() else {}
    config = run_config(run)
    step = exported.checkpoint.step
    return {
        "run": run.resolve().name,
        "step": step,
        "held_out_success": success_by_step(run).get(step),
        "weights": exported.source,
        "dtype": exported.dtype,
        "is_adapter": exported.is_adapter,
        "lora": exported.checkpoint.lora,
        "base_model": base,
        "algorithm": config["algorithm"]["adv_estimator"],
        "seed": config["data"]["seed"],
        "specs": _specs(run),
        "trained_with": trained.get("versions"),
        "exported_with": versions("rlenv", "torch", "transformers", "safetensors"),
    }


def _specs(run: Path) -> list[dict[str, Any]]:
    """The specs that were trained on, each with the digest of its content as it is now."""
    path = run / "agent_loop.yaml"
    specs = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else ():
        found: dict[str, Any] = {"spec": entry["spec"], "set": entry.get("spec_set") or {}}
        try:
            loaded = load_spec(find(entry["spec"]), set=entry.get("spec_set") or None)
            found |= {"name": loaded.spec.name, "version": loaded.spec.version, "digest": loaded.digest}
        except RlenvError as error:  # the file may have moved since; the weights are what they are
            found |= {"digest": None, "digest_is_missing": str(error).splitlines()[0]}
        specs.append(found)
    return specs
