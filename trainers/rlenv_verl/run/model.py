"""The model that a run starts from: where it lies, what it lacks, and the lengths of its prompts."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlenv.cli.console import Console
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.models import Looked, lacks, local_model, weights_in
from rlenv.preflight import Finding
from rlenv.preflight.memory import model_of
from rlenv.runs.folder import STOP
from rlenv.tokens import TokenEncoder
from rlenv_train.progress import Underway
from rlenv_train.specs import TrainedSpec
from rlenv_verl.run import Run
from rlenv_verl.settings import tokens_at, value_at


def heed_stop(stop: Path, console: Console) -> None:
    """Ends the command like a Ctrl-C where the file asks for it."""
    if stop.exists():
        console.say(f"{stop} asked for the end")
        raise KeyboardInterrupt


def first_model(
    arguments: argparse.Namespace,
    specs: Sequence[TrainedSpec],
    folder: Path,
    console: Console,
    *,
    limit_s: float | None,
) -> tuple[str, dict[str, Any] | None]:
    """The policy to start from, and what was made where it is the tiny one, in a run with such a time limit.

    Raises:
        UsageError: there is no such model, or no tiny one can be made for these specs.
    """
    if arguments.model not in (None, "tiny"):
        return given_model(arguments, folder), None
    if arguments.chat_template is not None:
        raise UsageError("--chat-template is for a model of your own", hint="name it with --model")
    target = folder / "model"
    if arguments.dry_run:
        return str(target), None
    from rlenv_train.lessons import STAND_IN, asked_models
    from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

    if models := [f"{spec.name}: {name}" for spec in specs for name in asked_models(spec.environment)]:
        line = f"warm start  {', '.join(models)} would ask a model, and is answered for by “{STAND_IN}” meanwhile"
        console.say(line)
    if not console.is_terminal:
        console.say("warm start: making a tiny policy")
    with console.status("warm start: making a tiny policy") as status:
        underway = Underway(console, status.update)

        def shown(line: str) -> None:
            heed_stop(folder / STOP, console)
            underway.show(f"warm start: {line}")

        environments, settings = [spec.environment for spec in specs], WarmupSettings.within(limit_s)
        report = make_tiny_policy(environments, target, seed=arguments.seed or 0, settings=settings, progress=shown)
    console.say(*report.lines)
    return str(target), asdict(report)


def given_model(arguments: argparse.Namespace, folder: Path) -> str:
    """The model that was named, as veRL loads it; with a chat template of its own in the run's folder.

    Raises:
        UsageError: there is no such model, or its folder lacks what a model has.
    """
    path = Path(arguments.model)
    place = local_model(arguments.model)
    if path.is_dir() and Path(place) == path.absolute() and not (path / "config.json").is_file():
        raise UsageError("; ".join(one.said for one in lacks(place) if one.stops))
    if arguments.chat_template is None:
        return place
    return local_model(place, chat_template=arguments.chat_template, keep=folder / "model")


def made_of(given: str | None, model: str) -> str:
    """The origin of a model, so that it can be made again; "" where it was taken as it is."""
    if given in (None, "tiny", model):
        return ""
    path = Path(given).expanduser()
    return str(path.absolute()) if path.exists() else given


def made_again(run: Run) -> None:
    """Make the weights of a run's model again where the cache that they were kept in has been emptied.

    They come to lie where they did: the folder is named after their content, and a template of the run's own only
    links to it.
    """
    if run.given and weights_in(Path(run.model)).fault:
        local_model(run.given)


def measure_prompts(
    environment: Environment, model: str, *, splits: Sequence[str], template_kwargs: Mapping[str, Any]
) -> int:
    """Tokens of the longest prompt among the first 256 tasks of each split, and a quarter more.

    Raises:
        UsageError: the model's tokenizer, or where prompts show images its processor, cannot be loaded here.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the tokenizer of {model} cannot be loaded to measure prompts ({str(error).splitlines()[0]})",
            hint="set run.max_prompt_length=N",
        ) from error
    shown = seeing(model) if environment.spec.prompt.images else {}
    encoder = TokenEncoder(tokenizer, template_kwargs=template_kwargs, same_turn=environment.same_turn, **shown)

    def first(size: int) -> range:
        return range(min(256, size))

    return -(-asyncio.run(longest_prompt(environment, encoder, splits, some=first)) * 5 // 4)


async def longest_prompt(
    environment: Environment, encoder: TokenEncoder, splits: Sequence[str], *, some: Callable[[int], Sequence[int]]
) -> int:
    """Tokens of the longest prompt among some tasks of each split; `some` chooses them by how many there are."""
    longest = 0
    async with environment:
        for split in splits:
            for task in some(len(environment.tasks(split))):
                async with environment.start(task=task, split=split) as episode:
                    tokens = encoder.start(episode.messages, tools=episode.tool_schemas)
                    longest = max(longest, len(tokens.prompt_ids))
    return longest


def seeing(model: str) -> dict[str, Any]:
    """The arguments that a `TokenEncoder` needs to show images to a model; none for one that reads text alone."""
    from transformers import AutoProcessor

    from rlenv.tokens import ProcessorImages

    auto: Any = AutoProcessor  # it has no types
    try:
        processor = auto.from_pretrained(model)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"the prompts show images, and the processor of {model} cannot be loaded to measure them"
            f" ({str(error).splitlines()[0]})",
            hint="set run.max_prompt_length=N",
        ) from error
    if not getattr(processor, "image_token", None):
        return {}
    return {"chat_template": processor.chat_template, "images": ProcessorImages(processor)}


_BLOCKING = frozenset({"model", "configuration", "tokenizer", "chat template"})
"""The parts that a model has to have before anything of a run can be measured."""


def lacking_of(
    specs: Sequence[TrainedSpec], config: Mapping[str, Any], loops: Sequence[Mapping[str, Any]], *, needs_weights: bool
) -> tuple[list[Finding], bool]:
    """The things that the run's model lacks, and whether anything else of the run can be measured.

    Raises:
        UsageError: there is no such model, or it has no tokenizer.
    """
    path = str(value_at(config, "actor_rollout_ref.model.path"))
    own = value_at(config, "data.apply_chat_template_kwargs") or {}
    kwargs = [{**own, **(loop.get("template_kwargs") or {})} for loop in loops]
    looked = _look_at_model(path, specs, kwargs, needs_weights=needs_weights)
    if value_at(config, "actor_rollout_ref.model.custom_chat_template"):  # the verdict looks at that one
        looked = [one for one in looked if one.what not in ("chat template", "tools in the chat template", "end mark")]
    if none := [one for one in looked if one.what in ("model", "tokenizer") and one.stops]:
        raise UsageError("; ".join(one.said for one in none))
    found = [_to_finding(one) for one in looked]
    if any(one.what in _BLOCKING and one.stops for one in looked):
        return found, False
    return [*found, *_judge_context(Path(path), config)], True


def stops_of(model: str, specs: Sequence[TrainedSpec], template_kwargs: Mapping[str, Any] | None) -> list[Finding]:
    """The things that a model lacks without which nothing of a run can be measured, let alone started."""
    found = _look_at_model(model, specs, [template_kwargs] * len(specs), needs_weights=False)
    return [_to_finding(one) for one in found if one.what in _BLOCKING and one.stops]


def _to_finding(one: Looked) -> Finding:
    return Finding("error" if one.stops else "warning", f"the model's {one}" if one.what != "model" else str(one))


def _look_at_model(
    model: str, specs: Sequence[TrainedSpec], kwargs: Sequence[Mapping[str, Any] | None], *, needs_weights: bool
) -> list[Looked]:
    found: dict[str, Looked] = {}
    for spec, names in zip(specs, kwargs, strict=True):
        for one in lacks(model, spec.environment, template_kwargs=names, needs_weights=needs_weights):
            found.setdefault(str(one), one)
    return list(found.values())


def _judge_context(folder: Path, config: Mapping[str, Any]) -> list[Finding]:
    """The findings where the model reads fewer tokens than the run's limits allow."""
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
