"""A checkpoint of a run as a folder that transformers, peft and vLLM load: `rlenv runs export-policy`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from rlenv.errors import RlenvError, UsageError
from rlenv.language.loader import load_spec
from rlenv.language.shipped import find
from rlenv.models import quiet
from rlenv_verl.export import Checkpoint, choose, run_config, success_by_step, versions
from rlenv_verl.export.weights import build_model, load_model, lora_config, plain_weights, split

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

PROVENANCE = "rlenv_export.json"
"""The file that says where a folder comes from."""

_WEIGHTS = (".safetensors", ".bin", ".index.json")


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported policy. `source` says what the weights were made from; `dtype` is theirs in the folder."""

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
    provenance = partial(_make_provenance, run, base=base)
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
        provenance: what `rlenv_export.json` says of it.
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
    places = (generation, Path(base) / generation.name)
    kept = next((path.read_bytes() for path in places if path.is_file()), None)
    with quiet():
        if kept is not None:
            model.generation_config = type(model.generation_config)()  # what is written is replaced below
        model.save_pretrained(target)
    if kept is not None:
        generation.write_bytes(kept)
    shown = str(model.dtype).removeprefix("torch.")
    return Exported(target, checkpoint, source, shown, is_adapter=False, parameters=model.num_parameters())


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


def _make_provenance(run: Path, exported: Exported, *, base: str) -> dict[str, Any]:
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
        "specs": _trained_specs(run),
        "trained_with": trained.get("versions"),
        "exported_with": versions("rlenv", "torch", "transformers", "safetensors"),
    }


def _trained_specs(run: Path) -> list[dict[str, Any]]:
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


# How far rounding the weights may move a logit, in units of the logits' standard deviation. Weights of another step
# or without their adapter are apart by tenths and more; these leave rounding in deep models some room.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1.5e-1}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference between the folder's logits and the checkpoint's, over `tokens` positions.

    `difference` is the largest absolute one, `spread` the standard deviation of the checkpoint's logits, `same_choice`
    the share of positions at which both prefer the same token, `tolerance` what `difference / spread` may be.
    """

    difference: float
    spread: float
    same_choice: float
    tokens: int
    tolerance: float
    same_tokenizer: bool

    @property
    def holds(self) -> bool:
        """True if the folder is the checkpoint's policy, but for rounding."""
        return self.same_tokenizer and self.difference <= self.tolerance * self.spread


def agreement(exported: Exported, *, base: str) -> Agreement:
    """Load the folder as a user would and compare it with the checkpoint, both in float32 on the CPU.

    The checkpoint's side is computed from its shards, with peft's own arithmetic for an adapter: nothing of the
    export takes part in it. The ids are drawn at random with a fixed seed.

    Raises:
        UsageError: the folder cannot be loaded, or the checkpoint has no shards to compare with.
    """
    checkpoint = exported.checkpoint
    if not checkpoint.shards:
        raise UsageError(
            f"step {checkpoint.step} has no shards to compare with",
            hint="train with actor.checkpoint.save_contents that holds 'model'",
        )
    reference = _load_reference(checkpoint, base=base)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, reference.config.vocab_size, (2, 32), generator=generator)
    with torch.no_grad():
        expected = reference(ids).logits
        del reference
        found = _load_exported(exported, base=base)(ids).logits
    return Agreement(
        difference=float((found - expected).abs().max()),
        spread=float(expected.std()),
        same_choice=float((found.argmax(-1) == expected.argmax(-1)).float().mean()),
        tokens=ids.numel(),
        tolerance=_TOLERANCE[exported.dtype],
        same_tokenizer=_same_tokenizer(exported, checkpoint),
    )


def _load_reference(checkpoint: Checkpoint, *, base: str) -> Any:
    """The checkpoint's model, an adapter beside the base weights and not in them."""
    if checkpoint.lora is None:
        return build_model(checkpoint, plain_weights(checkpoint, base=base)[0]).float()
    weights, adapter = split(checkpoint.state())
    model = build_model(checkpoint, weights) if weights else load_model(base)
    return _add_adapter(model.float(), adapter, rank=lora_config(checkpoint)["r"], checkpoint=checkpoint)


def _add_adapter(model: Any, adapter: dict[str, torch.Tensor], *, rank: int, checkpoint: Checkpoint) -> Any:
    layers = sorted({name.split(".lora_")[0].removeprefix("base_model.model.") for name in adapter})
    with quiet():
        import peft
        from peft.utils.save_and_load import set_peft_model_state_dict

        alpha = int(lora_config(checkpoint)["lora_alpha"])
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, task_type=peft.TaskType.CAUSAL_LM)
        wrapped: Any = peft.get_peft_model(model, config)
        report: Any = set_peft_model_state_dict(wrapped, {name: tensor.float() for name, tensor in adapter.items()})
    if report.unexpected_keys:
        raise UsageError(f"the adapter's tensors do not fit the model: {', '.join(report.unexpected_keys[:3])}")
    return wrapped.eval()


def _load_exported(exported: Exported, *, base: str) -> Any:
    if not exported.is_adapter:
        return load_model(exported.folder).float()
    with quiet():
        import peft

        model: Any = peft.PeftModel.from_pretrained(load_model(base, dtype=torch.float32), str(exported.folder))
    return model.float().eval()


def _same_tokenizer(exported: Exported, checkpoint: Checkpoint) -> bool:
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    with quiet():
        sides = [load(folder) for folder in (exported.folder, checkpoint.huggingface)]
    message = [{"role": "user", "content": "What is 47 * 83?\nünïcödé <answer>"}]
    rendered = [side.apply_chat_template(message, tokenize=False, add_generation_prompt=True) for side in sides]
    ids = [side(text)["input_ids"] for side, text in zip(sides, rendered, strict=True)]
    return bool(rendered[0] == rendered[1] and ids[0] == ids[1])


def export(
    run: Path, target: Path | None, *, step: int | None, best: bool, dtype: str | None, adapter: bool, check: bool
) -> dict[str, Any]:
    """Export as `export_policy` does; returns the provenance, `folder`, and `check` or None."""
    exported = export_policy(run, target, step=step, best=best, dtype=dtype, adapter=adapter)
    report: dict[str, Any] = json.loads((exported.folder / PROVENANCE).read_bytes())
    report |= {"folder": str(exported.folder), "parameters": exported.parameters, "check": None}
    if check:
        found = agreement(exported, base=run_config(run)["actor_rollout_ref"]["model"]["path"])
        report["check"] = {**dataclasses.asdict(found), "holds": found.holds}
    return report


def text(report: Mapping[str, Any]) -> str:
    """A report for people."""
    rate = report["held_out_success"]
    lines = [
        f"policy      {report['folder']}",
        f"step        {report['step']}" + (f", held-out success {rate:.3f}" if rate is not None else ""),
        f"weights     {report['parameters']:,} parameters, {report['dtype']}, from {report['weights']}",
    ]
    if report["is_adapter"]:
        lines.append(f"base model  {report['base_model']}")
    check = report["check"]
    if check is not None:
        verdict = "the same policy" if check["holds"] else "NOT the checkpoint's policy"
        lines.append(
            f"check       {verdict}: logits differ by {check['difference']:.2g} at most (standard deviation "
            f"{check['spread']:.2g}), the same choice at {check['same_choice']:.1%} of {check['tokens']} positions, "
            f"{'the same' if check['same_tokenizer'] else 'ANOTHER'} tokenizer"
        )
    if report["is_adapter"]:
        lines.append(
            f"vLLM        vllm serve {report['base_model']} --enable-lora --lora-modules "
            f"policy={report['folder']} --max-lora-rank {report['lora']['r']}"
        )
    else:
        lines.append(f"try it      rlenv eval SPEC --policy hf:{report['folder']}")
        lines.append(f"vLLM        vllm serve {report['folder']}")
    return "\n".join(lines) + "\n"
