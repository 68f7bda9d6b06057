"""Looks at a run before anything of it starts: exactness, lengths, tokens of a step and memory."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from rlenv import preflight as before
from rlenv.episodes.environment import Environment, load
from rlenv.errors import MissingExtra, UsageError, told_as
from rlenv.models import local_model
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import bind, load_tokenizer
from rlenv.tokens.encoder import History
from rlenv_train.specs import TrainedSpec, check_splits, load_specs, read_override, spec_and_overrides
from rlenv_verl.run import Run
from rlenv_verl.run.model import lacking_of
from rlenv_verl.run.prepare import preset_of
from rlenv_verl.settings import UNMEASURED, compose, machine, tokens_at, value_at, with_the_shell
from rlenv_verl.settings.presets import Preset, override

SAMPLE = 256
"""Tasks of a split that are measured where nobody says how many."""
CARD_GB = 80.0
"""The memory of the GPUs that the presets are written for, in 10⁹ bytes."""
_PROMPT = "data.max_prompt_length="


def check_before(run: Run, config: Mapping[str, Any], *, loops: Path, needs_weights: bool = False) -> before.Preflight:
    """The preflight of a prepared run; `config` is veRL's configuration as it resolved.

    Args:
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
    splits = [before.PlayedSplit(run.validation_split, run.validation_tasks, is_trained=run.validation_only)]
    if not run.validation_only and run.validation_split == run.train_split:
        splits = []
    if not run.validation_only:
        splits.insert(0, before.PlayedSplit(run.train_split))
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


def on_this_processor(
    report: before.Preflight, config: Mapping[str, Any], environment: Mapping[str, str]
) -> before.Preflight:
    """The report with what this machine's processor makes of the run; `environment` is laid over this process's own."""
    found = [*machine.packing_findings(config), *machine.processor_findings(config, {**os.environ, **environment})]
    return dataclasses.replace(report, findings=(*report.findings, *found))


def names_of(overrides: Sequence[str]) -> before.LimitNames:
    """The keys that decide on lengths: an override of veRL's own wins over the preset's."""
    is_given = any(item.startswith(_PROMPT) for item in overrides)
    prompt = _PROMPT.removesuffix("=") if is_given else "run.max_prompt_length"
    return before.LimitNames(prompt, "data.max_response_length", "run.turn_tokens")


def preflight_of(
    specs: Sequence[TrainedSpec],
    config: Mapping[str, Any],
    loops: Sequence[Mapping[str, Any]],
    *,
    splits: Sequence[before.PlayedSplit],
    name: str,
    names: before.LimitNames,
    sample: int = SAMPLE,
    device_bytes: int | None = None,
    is_elsewhere: bool = False,
    is_required: bool = True,
    needs_weights: bool = False,
) -> before.Preflight:
    """The report on `specs` under a configuration of veRL.

    Args:
        config: veRL's configuration, interpolations resolved.
        loops: for each spec, the keys of its agent loop: `turn_tokens`, `template_kwargs`, `history`.
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
    engine = () if is_elsewhere else tuple(machine.vllm_findings(config))
    folder = Path(str(model.get("path")))
    if is_to_be_made(place):
        why = f"the policy {place} does not exist yet, so that lengths, exactness and memory are not known"
        if value_at(config, "data.max_prompt_length") == UNMEASURED:
            why += (
                f"; data.max_prompt_length stands as {UNMEASURED}, with which veRL does not start, and is measured once"
                " the policy is there (or set run.max_prompt_length=N)"
            )
        return before.Preflight(name, findings=(*engine, before.Finding("unknown", why)))
    plan = _make_plan(name, names, config, folder, device_bytes, sample, is_elsewhere=is_elsewhere)
    if not is_required and before.known_model(plan.model_name) is not None and not is_at_hand(place):
        # Enough is known of it for its memory.
        without = f"the tokenizer of {place} is not at hand, so that lengths and exactness were not looked at"
        report = before.preflight([], plan)
        return dataclasses.replace(report, findings=(*engine, before.Finding("unknown", without), *report.findings))
    lacking, can_go_on = lacking_of(specs, config, loops, needs_weights=needs_weights)
    if not can_go_on:  # nothing can be measured
        return before.Preflight(name, findings=(*engine, *lacking))
    tokenizer = _load_tokenizer(place)
    subjects = [
        _subject(spec, tokenizer, config, loop, splits=tuple(splits)) for spec, loop in zip(specs, loops, strict=True)
    ]
    report = before.preflight(subjects, plan)
    return dataclasses.replace(report, findings=(*engine, *lacking, *report.findings))


def _make_plan(
    name: str,
    names: before.LimitNames,
    config: Mapping[str, Any],
    folder: Path,
    device_bytes: int | None,
    sample: int,
    *,
    is_elsewhere: bool,
) -> before.Plan:
    """The plan of the run, and the memory that it runs on; `preflight_of` says what the arguments mean."""
    is_on_cpu = str(value_at(config, "trainer.device")) == "cpu"
    is_assumed = False
    if device_bytes is None and not is_elsewhere:
        device_bytes = machine.device_memory("cpu" if is_on_cpu else "cuda")
    if device_bytes is None and not is_on_cpu:
        device_bytes, is_assumed = int(CARD_GB * 1e9), True
    batch, group = value_at(config, "data.train_batch_size"), value_at(config, "actor_rollout_ref.rollout.n")
    return before.Plan(
        name,
        folder if folder.is_dir() else None,
        names,
        int(batch or 0) * int(group or 0),
        machine.tokens_a_pass(config),
        dataclasses.replace(machine.machine_of(config, device_bytes), is_assumed=is_assumed),
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
        path, sign, _ = item.partition("=")
        if not sign:
            raise UsageError(f"{item}: expected KEY=VALUE, such as data.max_response_length=8192")
        *parents, last = path.lstrip("+~").split(".")
        inner = tree
        for parent in parents:
            known = inner.setdefault(parent, {})
            if not isinstance(known, dict):
                raise UsageError(f"{item}: {parent} is a value and has no keys")
            inner = known
        inner[last] = read_override(item)[1]
    return tree


def is_at_hand(name: str) -> bool:
    """True if the files of a model can be had: a folder, in the hub's cache, or from a hub that answers.

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


def _load_tokenizer(place: str) -> Any:
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
    splits: tuple[before.PlayedSplit, ...],
) -> before.CheckedSpec:
    environment = spec.environment
    template = value_at(config, "actor_rollout_ref.model.custom_chat_template")
    kwargs = {**(value_at(config, "data.apply_chat_template_kwargs") or {}), **(loop.get("template_kwargs") or {})}
    own: History = loop.get("history") or "grow"
    seeing = _image_options(str(tokenizer.name_or_path), environment)
    made: dict[History, TokenEncoder] = {}

    def encoder(history: History | None) -> TokenEncoder:
        chosen = history or own
        if chosen not in made:
            options = {"chat_template": template, **seeing}
            made[chosen] = bind(tokenizer, environment, template_kwargs=kwargs, history=chosen, **options)
        return made[chosen]

    limits = before.RunLimits(
        tokens_at(config, "data.max_prompt_length"),
        tokens_at(config, "data.max_response_length"),
        tokens_at(loop, "turn_tokens"),
    )
    return before.CheckedSpec(environment, encoder, splits, limits, spec.weight)


def is_to_be_made(place: str) -> bool:
    """True if a policy is a folder that is not there yet, and not the name of a model."""
    return os.path.isabs(place) and not os.path.exists(place)


def _image_options(place: str, environment: Environment) -> dict[str, Any]:
    if not environment.spec.prompt.images:
        return {}
    with told_as(MissingExtra, "measuring prompts that show images", ImportError, extra="verl"):
        from rlenv_verl.run.model import seeing
    return seeing(place)


def look(
    items: Sequence[str],
    *,
    model: str,
    preset: str | None = None,
    algorithm: str | None = None,
    mode: str | None = None,
    set: Sequence[str] = (),
    lora: int | None = None,
    chat_template: str | None = None,
    sample: int = SAMPLE,
    device_gb: float | None = None,
    needs_weights: bool = False,
) -> before.Preflight:
    """The report on a run of the specs among `items` with the overrides among them, as `rlenv train` takes both.

    Args:
        model: as `rlenv.models.local_model` takes it; memory is estimated where `config.json` is there.
        device_gb: the memory of one device in 10⁹ bytes; None looks for it on this machine.
        needs_weights: a folder without weights is an error, and not a warning.

    Raises:
        UsageError: there is no spec, no such preset, split or key, or no tokenizer.
        SpecError: a spec's own faults.
    """
    sources, overrides = spec_and_overrides(items)
    if not sources:
        raise UsageError("name the spec to look at: rlenv train --preflight SPEC --model FOLDER")
    if sample < 1:
        raise UsageError(f"--sample {sample}: expected at least 1")
    if model == "tiny":
        raise UsageError("the tiny policy is made by a run", hint="rlenv train SPEC --dry-run says what it would do")
    specs = load_specs(sources, set=set)
    chosen, overrides = preset_of(preset or "cpu", overrides, algorithm=algorithm, mode=mode, lora=lora)
    place = local_model(model, chat_template=chat_template)
    config, is_checked = config_of(chosen, place, overrides)
    run = chosen.run
    check_splits(specs, run)
    splits = [before.PlayedSplit(run["train_split"])]
    if run["validation_split"] != run["train_split"]:
        splits.append(before.PlayedSplit(run["validation_split"], run["validation_tasks"], is_trained=False))
    report = preflight_of(
        specs,
        config,
        [run] * len(specs),
        splits=splits,
        name=chosen.name,
        names=names_of(overrides),
        sample=sample,
        device_bytes=None if device_gb is None else int(device_gb * 1e9),
        is_required=False,
        needs_weights=needs_weights,
    )
    shell = with_the_shell(chosen.environment, os.environ, pinned=chosen.pinned)
    report = on_this_processor(report, config, shell.values)
    if is_checked:
        return report
    note = before.Finding("unknown", "veRL is not installed here: overrides were taken as they stand and not checked")
    return dataclasses.replace(report, findings=(note, *report.findings))
