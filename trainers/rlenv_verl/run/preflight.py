"""Looks at a run before anything of it starts: exactness, lengths, tokens of a step and memory.

The same for `rlenv train`, with `--preflight` and `--dry-run` too. Nothing of veRL, torch or transformers is needed,
but for models that see images.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from rlenv.episodes.environment import Environment, load
from rlenv.errors import MissingExtra, UsageError
from rlenv.preflight import (
    Finding,
    Limits,
    Machine,
    Names,
    Pass,
    Plan,
    Preflight,
    Split,
    Subject,
    known_model,
    preflight,
)
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind, load_tokenizer
from rlenv.tokens.encoder import History
from rlenv_verl.cpu.vllm_ready import vllm_findings
from rlenv_verl.run.runfile import Run
from rlenv_verl.settings.policy import UNMEASURED, lacking_of, tokens_at
from rlenv_verl.settings.preset import Preset, compose, override
from rlenv_verl.settings.processor import packing_findings, processor_findings
from rlenv_verl.settings.specs import TrainedSpec
from rlenv_verl.settings.verl_keys import value_at

__all__ = [
    "CARD_GB",
    "SAMPLE",
    "UNMEASURED",
    "check_before",
    "config_of",
    "is_at_hand",
    "is_to_be_made",
    "laid_out",
    "machine_of",
    "names_of",
    "on_this_processor",
    "preflight_of",
]

SAMPLE = 256
"""Tasks of a split that are measured where nobody says how many."""
CARD_GB = 80.0
"""The memory of the GPUs that the presets are written for, in 10⁹ bytes."""
_PROMPT = "data.max_prompt_length="
_PASSES = (
    ("actor_rollout_ref.actor", "ppo_max_token_len_per_gpu", "use_dynamic_bsz"),
    ("actor_rollout_ref.rollout", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz"),
)


def check_before(run: Run, config: Mapping[str, Any], *, loops: Path, needs_weights: bool = False) -> Preflight:
    """What a prepared run would meet; `config` is veRL's configuration as it resolved.

    Args:
        loops: the agent loops' YAML.
        needs_weights: the run starts now and here, so that a model without weights is an error.

    What cannot be measured, since the policy does not exist yet, is a finding.

    Raises:
        UsageError: the run's tokenizer or a split cannot be read.
        SpecError: a spec's own faults.
    """
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
    report = preflight_of(
        specs,
        config,
        yaml.safe_load(loops.read_text(encoding="utf-8")),
        splits=splits,
        name=run.preset,
        names=names_of(given[1:]),  # the first is the run's own
        is_elsewhere=is_elsewhere,
        needs_weights=needs_weights and not is_elsewhere,
    )
    return report if is_elsewhere else on_this_processor(report, config, run.environment)


def on_this_processor(report: Preflight, config: Mapping[str, Any], environment: Mapping[str, str]) -> Preflight:
    """The report with what this machine's processor makes of the run; `environment` is laid over this process's own."""
    found = [*packing_findings(config), *processor_findings(config, {**os.environ, **environment})]
    return dataclasses.replace(report, findings=(*report.findings, *found))


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
    is_required: bool = True,
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
        device_bytes: the memory of one device; None looks for it on this machine, and takes `CARD_GB` where a run wants
            a GPU and there is none.
        is_required: the model's tokenizer has to be there; where it need not, one of a known model may be missing.
        is_elsewhere: the run's machines are others than this one.
        needs_weights: a model without weights is an error, and not a warning.
    """
    model = value_at(config, "actor_rollout_ref.model") or {}
    place = str(model.get("tokenizer_path") or model.get("path"))
    engine = () if is_elsewhere else tuple(vllm_findings(config))
    folder = Path(str(model.get("path")))
    if is_to_be_made(place):
        why = f"the policy {place} does not exist yet, so that lengths, exactness and memory are not known"
        if value_at(config, "data.max_prompt_length") == UNMEASURED:
            why += (
                f"; data.max_prompt_length stands as {UNMEASURED}, with which veRL does not start, and is measured once"
                " the policy is there (or set run.max_prompt_length=N)"
            )
        return Preflight(name, findings=(*engine, Finding("unknown", why)))
    plan = _plan(name, names, config, folder, device_bytes, sample, is_elsewhere=is_elsewhere)
    if not is_required and known_model(plan.model_name) is not None and not is_at_hand(place):
        # Enough is known of it for its memory.
        without = f"the tokenizer of {place} is not at hand, so that lengths and exactness were not looked at"
        report = preflight([], plan)
        return dataclasses.replace(report, findings=(*engine, Finding("unknown", without), *report.findings))
    lacking, can_go_on = lacking_of(specs, config, loops, needs_weights=needs_weights)
    if not can_go_on:  # nothing can be measured
        return Preflight(name, findings=(*engine, *lacking))
    tokenizer = _tokenizer(place)
    subjects = [
        _subject(spec, tokenizer, config, loop, splits=tuple(splits)) for spec, loop in zip(specs, loops, strict=True)
    ]
    report = preflight(subjects, plan)
    return dataclasses.replace(report, findings=(*engine, *lacking, *report.findings))


def _plan(
    name: str,
    names: Names,
    config: Mapping[str, Any],
    folder: Path,
    device_bytes: int | None,
    sample: int,
    *,
    is_elsewhere: bool,
) -> Plan:
    """What the run is to do, and on which memory; `preflight_of` says what the arguments mean."""
    is_on_cpu = str(value_at(config, "trainer.device")) == "cpu"
    is_assumed = False
    if device_bytes is None and not is_elsewhere:
        device_bytes = _device_bytes("cpu" if is_on_cpu else "cuda")
    if device_bytes is None and not is_on_cpu:
        device_bytes, is_assumed = int(CARD_GB * 1e9), True
    batch, group = value_at(config, "data.train_batch_size"), value_at(config, "actor_rollout_ref.rollout.n")
    return Plan(
        name,
        folder if folder.is_dir() else None,
        names,
        int(batch or 0) * int(group or 0),
        _passes(config),
        dataclasses.replace(machine_of(config, device_bytes), is_assumed=is_assumed),
        value_at(config, "actor_rollout_ref.rollout.max_model_len"),
        sample,
        must_open=not is_elsewhere,
        model_name=str(value_at(config, "actor_rollout_ref.model.path")),
    )


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
        return laid_out([*given, *overrides]), False


def laid_out(items: Sequence[str]) -> dict[str, Any]:
    """Overrides as the tree that they make, without veRL's own values and without a check.

    Raises:
        UsageError: an override that cannot be read.
    """
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


def is_at_hand(name: str) -> bool:
    """Whether the files of a model can be had: a folder, in the hub's cache, or from a hub that answers.

    Asking a hub that is out of reach takes its client a minute of attempts; one connection tells as much.
    """
    if os.path.exists(name):
        return True
    from huggingface_hub import try_to_load_from_cache  # comes with tokenizers

    if isinstance(try_to_load_from_cache(name, "tokenizer.json"), str):
        return True
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy")):
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((hub.hostname or "", hub.port or 443), timeout=5.0).close()
    except OSError:
        return False
    return True


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
    template = value_at(config, "actor_rollout_ref.model.custom_chat_template")
    kwargs = {**(value_at(config, "data.apply_chat_template_kwargs") or {}), **(loop.get("template_kwargs") or {})}
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
        tokens_at(config, "data.max_prompt_length"),
        tokens_at(config, "data.max_response_length"),
        tokens_at(loop, "turn_tokens"),
    )
    return Subject(environment, encoder, splits, limits, spec.weight)


def is_to_be_made(place: str) -> bool:
    """Whether a policy is a folder that is not there yet, and not the name of a model."""
    return os.path.isabs(place) and not os.path.exists(place)


def _seeing(place: str, environment: Environment) -> dict[str, Any]:
    if not environment.spec.prompt.images:
        return {}
    try:
        from rlenv_verl.run.prompts import seeing
    except ImportError as error:
        raise MissingExtra("measuring prompts that show images", extra="verl") from error
    return seeing(place)


def _passes(config: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens that one sequence may have in each pass that is packed by tokens."""
    found = {}
    for part, key, switch in _PASSES:
        own = value_at(config, part) or {}
        tokens = own.get(key)
        if own.get(switch) and isinstance(tokens, int):
            found[f"{part}.{key}"] = tokens * int(own.get("ulysses_sequence_parallel_size") or 1)
    return found


def machine_of(config: Mapping[str, Any], device_bytes: int | None) -> Machine:
    """What a run has and how it uses it, by veRL's configuration."""
    actor, rollout = (
        value_at(config, "actor_rollout_ref.actor") or {},
        value_at(config, "actor_rollout_ref.rollout") or {},
    )
    own = actor.get("fsdp_config") or {}
    kept = value_at(config, "actor_rollout_ref.ref.fsdp_config") or {}
    has_reference = actor.get("use_kl_loss") or value_at(config, "algorithm.use_kl_in_reward")
    count = int(value_at(config, "trainer.n_gpus_per_node") or 1) * int(value_at(config, "trainer.nnodes") or 1)
    is_cpu = value_at(config, "trainer.device") == "cpu"
    return Machine(
        device_bytes,
        # Processes on CPUs share one memory.
        devices=1 if is_cpu else count,
        tensor_parallel=int(rollout.get("tensor_model_parallel_size") or 1),
        sampler_share=0.0 if is_cpu else float(rollout.get("gpu_memory_utilization") or 0.0),
        weight_bytes=2 if str(own.get("model_dtype")) in ("bf16", "bfloat16", "fp16", "float16") else 4,
        copies=int(value_at(config, "algorithm.adv_estimator") == "gae"),
        references=int(bool(has_reference) and not kept.get("param_offload")),
        offloads_weights=bool(own.get("param_offload")),
        offloads_moments=bool(own.get("optimizer_offload")),
        lora_rank=int(value_at(config, "actor_rollout_ref.model.lora_rank") or 0),
        passing=_passing(config, is_cpu=is_cpu),
        longest=_longest(config) or 0,
    )


def _longest(config: Mapping[str, Any]) -> int | None:
    prompt, response = value_at(config, "data.max_prompt_length"), value_at(config, "data.max_response_length")
    return None if prompt is None or prompt == UNMEASURED else int(prompt) + int(response or 0)


def _passing(config: Mapping[str, Any], *, is_cpu: bool) -> Pass:
    """How many tokens one device passes at once: by tokens where batches are packed, else rows of the longest."""
    actor, rollout = (
        value_at(config, "actor_rollout_ref.actor") or {},
        value_at(config, "actor_rollout_ref.rollout") or {},
    )
    reference = value_at(config, "actor_rollout_ref.ref") or {}
    longest = _longest(config)

    def tokens(part: Mapping[str, Any], switch: str, packed: str, rows: str) -> int | None:
        if part.get(switch):
            return None if part.get(packed) is None else int(part[packed])
        return None if longest is None or part.get(rows) is None else int(part[rows]) * longest

    names = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
    forward = [tokens(part, *names) for part in (rollout, reference)]
    update = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
    return Pass(
        tokens(actor, *update),
        max((one for one in forward if one is not None), default=None),
        keeps_inputs_only=bool(value_at(config, "actor_rollout_ref.model.enable_gradient_checkpointing")),
        temperature=float(rollout.get("temperature") or 1.0),
        has_entropy_loss=bool(actor.get("entropy_coeff")),
        is_compiled=actor.get("use_torch_compile") is not False,
        has_entropy_chunks=bool(actor.get("entropy_from_logits_with_chunking")),
        value_bytes=4 if is_cpu else 2,
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
