"""Looks at a run before anything of it starts: exactness, lengths, tokens of a step and memory.

The same for `rlenv preflight`, `rlenv train --dry-run` and `rlenv train`. Nothing of veRL, torch or transformers is
needed, but for models that see images.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlenv.environment import Environment, load
from rlenv.errors import MissingExtra, UsageError
from rlenv.models import Looked, lacks
from rlenv.preflight import Finding, Limits, Machine, Names, Plan, Preflight, Split, Subject, preflight
from rlenv.preflight.memory import model_of
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind
from rlenv.tokens.encoder import History
from rlenv.tokens.load import load_tokenizer
from rlenv_verl.preset import Preset, compose, override
from rlenv_verl.runfile import Run
from rlenv_verl.specs import TrainedSpec

__all__ = ["SAMPLE", "UNMEASURED", "check_before", "config_of", "is_to_be_made", "names_of", "preflight_of", "stops_of"]

SAMPLE = 256
"""Tasks of a split that are measured where nobody says how many."""
UNMEASURED = "???"
"""Stands for a length that only the policy's tokenizer tells; veRL refuses to start with it."""
_PROMPT = "data.max_prompt_length="
_BLOCKING = frozenset({"model", "configuration", "tokenizer", "chat template"})
"""What a model has to have before anything of a run can be measured."""
_PASSES = (
    ("actor_rollout_ref.actor", "ppo_max_token_len_per_gpu", "use_dynamic_bsz"),
    ("actor_rollout_ref.rollout", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz"),
)


def check_before(run: Run, config: Mapping[str, Any], *, needs_weights: bool = False) -> Preflight:
    """What a prepared run would meet; `config` is veRL's configuration as it resolved.

    `needs_weights`: the run starts now and here, so that a model without weights is an error.

    What cannot be measured, since the policy does not exist yet, is a finding.

    Raises:
        UsageError: the run's tokenizer or a split cannot be read.
        SpecError: a spec's own faults.
    """
    loops = yaml.safe_load((run.folder / "agent_loop.yaml").read_text(encoding="utf-8"))
    specs = [
        TrainedSpec(load(entry.source, set=dict(entry.set) or None), entry.source, entry.set, entry.weight)
        for entry in run.specs
    ]
    splits = [Split(run.validation_split, run.validation_tasks, is_trained=run.validation_only)]
    if not run.validation_only and run.validation_split == run.train_split:
        splits = []
    if not run.validation_only:
        splits.insert(0, Split(run.train_split))
    is_elsewhere = run.ray_address is not None
    given = [item for item in run.overrides if item.startswith(_PROMPT)]
    return preflight_of(
        specs,
        config,
        loops,
        splits=splits,
        name=run.preset,
        names=names_of(given[1:]),  # the first is the run's own
        is_elsewhere=is_elsewhere,
        needs_weights=needs_weights and not is_elsewhere,
    )


def names_of(overrides: Sequence[str]) -> Names:
    """The keys that decide on lengths: an override of veRL's own wins over the preset's."""
    is_given = any(item.startswith(_PROMPT) for item in overrides)
    prompt = _PROMPT.removesuffix("=") if is_given else "run.max_prompt_length"
    return Names(prompt, "data.max_response_length", "run.turn_tokens")


def preflight_of(
    specs: Sequence[TrainedSpec],
    config: Mapping[str, Any],
    loops: Sequence[Mapping[str, Any]],
    *,
    splits: Sequence[Split],
    name: str,
    names: Names,
    sample: int = SAMPLE,
    device_bytes: int | None = None,
    is_elsewhere: bool = False,
    needs_weights: bool = False,
) -> Preflight:
    """The report on `specs` under a configuration of veRL.

    Args:
        specs: those of the run.
        config: veRL's configuration, interpolations resolved.
        loops: for each spec, the keys of its agent loop: `turn_tokens`, `template_kwargs`, `history`.
        splits: what the run plays of each.
        name: how the run is headed.
        names: the keys that messages tell to set.
        sample: at most so many tasks of a split are measured.
        device_bytes: the memory of one device; None looks for it on this machine.
        is_elsewhere: the run's machines are others than this one.
        needs_weights: a model without weights is an error, and not a warning.
    """
    model = _get(config, "actor_rollout_ref.model") or {}
    place = str(model.get("tokenizer_path") or model.get("path"))
    folder = Path(str(model.get("path")))
    if is_to_be_made(place):
        why = f"the policy {place} does not exist yet, so that lengths, exactness and memory are not known"
        if _get(config, "data.max_prompt_length") == UNMEASURED:
            why += (
                f"; data.max_prompt_length stands as {UNMEASURED}, with which veRL does not start, and is measured once"
                " the policy is there (or set run.max_prompt_length=N)"
            )
        return Preflight(name, findings=(Finding("unknown", why),))
    looked = _lacking(str(model.get("path")), specs, config, loops, needs_weights=needs_weights)
    lacking = [_finding(one) for one in looked]
    if none := [one for one in looked if one.what in ("model", "tokenizer") and one.stops]:
        raise UsageError("; ".join(one.said for one in none))
    if any(one.what in _BLOCKING and one.stops for one in looked):  # nothing can be measured
        return Preflight(name, findings=tuple(lacking))
    lacking += _judge_context(folder, config)
    tokenizer = _tokenizer(place)
    subjects = [
        _subject(spec, tokenizer, config, loop, splits=tuple(splits)) for spec, loop in zip(specs, loops, strict=True)
    ]
    batch, group = _get(config, "data.train_batch_size"), _get(config, "actor_rollout_ref.rollout.n")
    if device_bytes is None and not is_elsewhere:
        device_bytes = _device_bytes(str(_get(config, "trainer.device")))
    report = preflight(
        subjects,
        Plan(
            name,
            folder if folder.is_dir() else None,
            names,
            int(batch or 0) * int(group or 0),
            _passes(config),
            _machine(config, device_bytes),
            _get(config, "actor_rollout_ref.rollout.max_model_len"),
            sample,
            must_open=not is_elsewhere,
        ),
    )
    return dataclasses.replace(report, findings=(*lacking, *report.findings))


def stops_of(model: str, specs: Sequence[TrainedSpec], template_kwargs: Mapping[str, Any] | None) -> list[Finding]:
    """What a model lacks without which nothing of a run can be measured, let alone started."""
    found = _looked(model, specs, [template_kwargs] * len(specs), needs_weights=False)
    return [_finding(one) for one in found if one.what in _BLOCKING and one.stops]


def _finding(one: Looked) -> Finding:
    return Finding("error" if one.stops else "warning", f"the model's {one}" if one.what != "model" else str(one))


def _lacking(
    model: str,
    specs: Sequence[TrainedSpec],
    config: Mapping[str, Any],
    loops: Sequence[Mapping[str, Any]],
    *,
    needs_weights: bool,
) -> list[Looked]:
    """What the model lacks for each spec, each thing once."""
    own = _get(config, "data.apply_chat_template_kwargs") or {}
    kwargs = [{**own, **(loop.get("template_kwargs") or {})} for loop in loops]
    found = _looked(model, specs, kwargs, needs_weights=needs_weights)
    if _get(config, "actor_rollout_ref.model.custom_chat_template"):  # the verdict looks at that one
        return [one for one in found if one.what not in ("chat template", "tools in the chat template", "end mark")]
    return found


def _looked(
    model: str,
    specs: Sequence[TrainedSpec],
    kwargs: Sequence[Mapping[str, Any] | None],
    *,
    needs_weights: bool,
) -> list[Looked]:
    found: dict[str, Looked] = {}
    for spec, names in zip(specs, kwargs, strict=True):
        for one in lacks(model, spec.environment, template_kwargs=names, needs_weights=needs_weights):
            found.setdefault(str(one), one)
    return list(found.values())


def _judge_context(folder: Path, config: Mapping[str, Any]) -> list[Finding]:
    """Whether the model reads as much as the run's limits allow."""
    model = model_of(folder) if folder.is_dir() else None
    if model is None or model.positions is None:
        return []
    rollout = _get(config, "actor_rollout_ref.rollout") or {}
    own = rollout.get("max_model_len")
    if rollout.get("name") == "vllm" and isinstance(own, int) and own > model.positions:
        # verl/workers/rollout/vllm_rollout/vllm_async_server.py, _validate_configs
        text = (
            f"actor_rollout_ref.rollout.max_model_len={own} is more than the {model.positions:,} tokens that the model"
            f" reads (max_position_embeddings), and vLLM does not start; set it to {model.positions} or null"
        )
        return [Finding("error", text)]
    limits = [_tokens(_get(config, f"data.max_{part}_length")) for part in ("prompt", "response")]
    whole = sum(limit or 0 for limit in limits)
    if None in limits or whole <= model.positions:
        return []
    text = (
        f"data.max_prompt_length and data.max_response_length allow {whole:,} tokens, and the model reads"
        f" {model.positions:,} (max_position_embeddings): longer episodes are cut or read wrong; lower one of them"
    )
    return [Finding("warning", text)]


def config_of(preset: Preset, model: str, overrides: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """The configuration of a preset with overrides, and whether veRL was there to check it.

    Without veRL the preset's own keys are laid over by the overrides as they stand.

    Raises:
        UsageError: an override that veRL's configuration does not take, or one that cannot be read.
    """
    limit = preset.run["max_prompt_length"]
    given = [
        *preset.overrides(),
        override("data.train_files", "train.parquet"),
        override("data.val_files", "validation.parquet"),
        override("data.max_prompt_length", UNMEASURED if limit == "measured" else limit),
        override("actor_rollout_ref.model.path", model),
    ]
    try:
        return compose([*given, *overrides]), True
    except MissingExtra:
        return _laid_out([*given, *overrides]), False


def _laid_out(items: Sequence[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for item in items:
        path, sign, text = item.partition("=")
        if not sign:
            raise UsageError(f"{item}: expected KEY=VALUE, such as data.max_response_length=8192")
        *parents, last = path.lstrip("+~").split(".")
        inner = tree
        for parent in parents:
            known = inner.setdefault(parent, {})
            if not isinstance(known, dict):
                raise UsageError(f"{item}: {parent} is a value and has no keys")
            inner = known
        try:
            inner[last] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"{item}: the value cannot be read: {error}") from error
    return tree


def _tokenizer(place: str) -> Any:
    """The tokenizer from its files; through transformers where it has none that `tokenizers` reads."""
    try:
        return load_tokenizer(place)
    except UsageError:
        try:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(place)
        except (ImportError, OSError, ValueError):
            pass
        raise


def _subject(
    spec: TrainedSpec,
    tokenizer: Any,
    config: Mapping[str, Any],
    loop: Mapping[str, Any],
    *,
    splits: tuple[Split, ...],
) -> Subject:
    environment = spec.environment
    template = _get(config, "actor_rollout_ref.model.custom_chat_template")
    kwargs = {**(_get(config, "data.apply_chat_template_kwargs") or {}), **(loop.get("template_kwargs") or {})}
    own: History = loop.get("history") or "grow"
    seeing = _seeing(str(tokenizer.name_or_path), environment)
    made: dict[History, TokenEncoder] = {}

    def encoder(history: History | None) -> TokenEncoder:
        chosen = history or own
        if chosen not in made:
            options = {"chat_template": template, **seeing}
            made[chosen] = bind(tokenizer, environment, template_kwargs=kwargs, history=chosen, **options)
        return made[chosen]

    limits = Limits(
        _tokens(_get(config, "data.max_prompt_length")),
        _tokens(_get(config, "data.max_response_length")),
        _tokens(loop.get("turn_tokens")),
    )
    return Subject(environment, encoder, splits, limits, spec.weight)


def _get(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _tokens(value: Any) -> int | None:
    return None if value is None or value == UNMEASURED else int(value)


def is_to_be_made(place: str) -> bool:
    """Whether a policy is a folder that is not there yet, and not the name of a model."""
    return os.path.isabs(place) and not os.path.exists(place)


def _seeing(place: str, environment: Environment) -> dict[str, Any]:
    if not environment.spec.prompt.images:
        return {}
    try:
        from rlenv_verl.prepare import seeing
    except ImportError as error:
        raise MissingExtra("measuring prompts that show images", extra="verl") from error
    return seeing(place)


def _passes(config: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens that one sequence may have in each pass that is packed by tokens."""
    found = {}
    for part, key, switch in _PASSES:
        own = _get(config, part) or {}
        tokens = own.get(key)
        if own.get(switch) and isinstance(tokens, int):
            found[f"{part}.{key}"] = tokens * int(own.get("ulysses_sequence_parallel_size") or 1)
    return found


def _machine(config: Mapping[str, Any], device_bytes: int | None) -> Machine:
    actor, rollout = _get(config, "actor_rollout_ref.actor") or {}, _get(config, "actor_rollout_ref.rollout") or {}
    own = actor.get("fsdp_config") or {}
    kept = _get(config, "actor_rollout_ref.ref.fsdp_config") or {}
    has_reference = actor.get("use_kl_loss") or _get(config, "algorithm.use_kl_in_reward")
    count = int(_get(config, "trainer.n_gpus_per_node") or 1) * int(_get(config, "trainer.nnodes") or 1)
    is_cpu = _get(config, "trainer.device") == "cpu"
    return Machine(
        device_bytes,
        # Processes on CPUs share one memory.
        devices=1 if is_cpu else count,
        tensor_parallel=int(rollout.get("tensor_model_parallel_size") or 1),
        sampler_share=0.0 if is_cpu else float(rollout.get("gpu_memory_utilization") or 0.0),
        weight_bytes=2 if str(own.get("model_dtype")) in ("bf16", "bfloat16", "fp16", "float16") else 4,
        copies=int(_get(config, "algorithm.adv_estimator") == "gae"),
        references=int(bool(has_reference) and not kept.get("param_offload")),
        offloads_weights=bool(own.get("param_offload")),
        offloads_moments=bool(own.get("optimizer_offload")),
        lora_rank=int(_get(config, "actor_rollout_ref.model.lora_rank") or 0),
    )


def _device_bytes(device: str) -> int | None:
    """The memory of one device of this machine, the smallest where they differ; None where there is none."""
    if device == "cpu":
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
        return min(int(line) for line in told.stdout.split()) * 1024**2
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
