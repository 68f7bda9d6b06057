"""The settings that `rlenv train --preflight` looks at: those of `rlenv train`, and nothing of a run's folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from rlenv.errors import UsageError
from rlenv.models import local_model
from rlenv.preflight import Finding, Preflight, Split
from rlenv_verl.run.preflight import SAMPLE, config_of, names_of, on_this_processor, preflight_of
from rlenv_verl.run.prepare import preset_of
from rlenv_verl.settings.specs import load_specs, spec_and_overrides
from rlenv_verl.settings.threads import with_the_shell

__all__ = ["look"]


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
) -> Preflight:
    """The report on a run of the specs among `items` with the overrides among them, as `rlenv train` takes both.

    Args:
        model: as `rlenv.models.local_model` takes it; memory is estimated where `config.json` is there.
        chat_template: as for `local_model`.
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
    specs = load_specs(sources, set=set)
    chosen, overrides = preset_of(preset or "cpu", overrides, algorithm=algorithm, mode=mode, lora=lora)
    place = local_model(model, chat_template=chat_template)
    config, is_checked = config_of(chosen, place, overrides)
    run = chosen.run
    splits = [Split(run["train_split"])]
    if run["validation_split"] != run["train_split"]:
        splits.append(Split(run["validation_split"], run["validation_tasks"], is_trained=False))
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
    note = Finding("unknown", "veRL is not installed here: overrides were taken as they stand and not checked")
    return dataclasses.replace(report, findings=(note, *report.findings))
