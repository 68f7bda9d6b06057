"""What the policy of a run lacks, as `rlenv.models` sees it, under the run's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlenv.errors import UsageError
from rlenv.models import Looked, lacks
from rlenv.preflight import Finding
from rlenv.preflight.memory import model_of
from rlenv_verl.settings.specs import TrainedSpec
from rlenv_verl.settings.verl_keys import value_at

__all__ = ["UNMEASURED", "lacking_of", "stops_of", "tokens_at"]

UNMEASURED = "???"
"""Stands for a length that only the policy's tokenizer tells; veRL refuses to start with it."""
_BLOCKING = frozenset({"model", "configuration", "tokenizer", "chat template"})
"""What a model has to have before anything of a run can be measured."""


def tokens_at(config: Mapping[str, Any], path: str) -> int | None:
    """A length at a dotted path; None where none is set, or where it is not measured yet."""
    value = value_at(config, path)
    return None if value is None or value == UNMEASURED else int(value)


def lacking_of(
    specs: Sequence[TrainedSpec],
    config: Mapping[str, Any],
    loops: Sequence[Mapping[str, Any]],
    *,
    needs_weights: bool,
) -> tuple[list[Finding], bool]:
    """What the run's model lacks, and whether anything else of the run can be measured.

    Raises:
        UsageError: there is no such model, or it has no tokenizer.
    """
    path = str(value_at(config, "actor_rollout_ref.model.path"))
    looked = _lacking(path, specs, config, loops, needs_weights=needs_weights)
    if none := [one for one in looked if one.what in ("model", "tokenizer") and one.stops]:
        raise UsageError("; ".join(one.said for one in none))
    found = [_finding(one) for one in looked]
    if any(one.what in _BLOCKING and one.stops for one in looked):
        return found, False
    return [*found, *_judge_context(Path(path), config)], True


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
    own = value_at(config, "data.apply_chat_template_kwargs") or {}
    kwargs = [{**own, **(loop.get("template_kwargs") or {})} for loop in loops]
    found = _looked(model, specs, kwargs, needs_weights=needs_weights)
    if value_at(config, "actor_rollout_ref.model.custom_chat_template"):  # the verdict looks at that one
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
    rollout = value_at(config, "actor_rollout_ref.rollout") or {}
    own = rollout.get("max_model_len")
    if rollout.get("name") == "vllm" and isinstance(own, int) and own > model.positions:
        # verl/workers/rollout/vllm_rollout/vllm_async_server.py, _validate_configs
        text = (
            f"actor_rollout_ref.rollout.max_model_len={own} is more than the {model.positions:,} tokens that the model"
            f" reads (max_position_embeddings), and vLLM does not start; set it to {model.positions} or null"
        )
        return [Finding("error", text)]
    limits = [tokens_at(config, f"data.max_{part}_length") for part in ("prompt", "response")]
    whole = sum(limit or 0 for limit in limits)
    if None in limits or whole <= model.positions:
        return []
    text = (
        f"data.max_prompt_length and data.max_response_length allow {whole:,} tokens, and the model reads"
        f" {model.positions:,} (max_position_embeddings): longer episodes are cut or read wrong; lower one of them"
    )
    return [Finding("warning", text)]
