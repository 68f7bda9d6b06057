"""The state that agent loops of one process share, and the outputs that veRL is handed of an episode.

veRL builds one loop object a sample. Compiling a spec, deriving a template's program, reading OmegaConf (one key takes
as long as parsing an action, a mapping as long as the rest of a turn) and veRL's own constructor take milliseconds to
seconds, so what they give is kept for the life of the process (`ProcessState`).
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import torch
from omegaconf import OmegaConf
from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tokenizer import get_processor_token_id

from rlenv.concurrency.lanes import Lane, entered
from rlenv.episodes.environment import Environment
from rlenv.errors import EpisodeError
from rlenv.hosts.remote import RemoteEnvironment
from rlenv.language.loader import load_spec
from rlenv.language.shipped import find
from rlenv.runs.cassettes import Recorder
from rlenv.tokens import ProcessorImages, TokenEncoder, TokenTrajectory
from rlenv.tokens.bound import bind, thinking_of
from rlenv_train.fate import Outcome, Row
from rlenv_train.keeping import Keeper, Watch
from rlenv_train.player import Required
from rlenv_train.samples import EpisodeFigures, Groups, Play
from rlenv_verl.loop import ask_for_router


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The settings of the configuration that the loop reads.

    `prompt_length` (of the first prompt), `response_length` and `context_length` (of prompt and response of any
    training row) are tokens; `model` is the policy's folder or name ("" where there is none); `processor_kwargs` go to
    the model's image processor; `workers` is how many processes play episodes.
    """

    prompt_length: int
    response_length: int
    context_length: int
    model: str
    with_logprobs: bool
    template_kwargs: Mapping[str, Any]
    processor_kwargs: Mapping[str, Any]
    workers: int = 1


def read_settings(config: Any, data_config: Any) -> LoopSettings:
    """The settings in a trainer's configuration and that of its data."""
    rollout = config.actor_rollout_ref.rollout
    prompt, response = int(rollout.prompt_length), int(rollout.response_length)
    most = rollout.get("max_model_len")
    return LoopSettings(
        prompt_length=prompt,
        response_length=response,
        context_length=prompt + response if most is None else min(prompt + response, int(most)),
        model=str((config.actor_rollout_ref.get("model") or {}).get("path") or ""),
        with_logprobs=bool(rollout.calculate_log_probs),
        template_kwargs=plain_mapping(data_config.get("apply_chat_template_kwargs")),
        processor_kwargs=plain_mapping(data_config.get("mm_processor_kwargs")),
        workers=int((rollout.get("agent") or {}).get("num_workers") or 1),
    )


def plain_mapping(value: Any) -> dict[str, Any]:
    """A mapping without OmegaConf's containers, into which Hydra wraps an agent loop's arguments."""
    if type(value) is dict:
        return dict(value)
    made: Any = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return dict(made or {})


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that veRL handed the last loop object, and the attributes that its constructor made of them."""

    loop: asyncio.AbstractEventLoop
    parts: Mapping[str, Any]
    attributes: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class ProcessState:
    """The state that all agent loops with this object share; nothing of it is ever dropped.

    Attributes:
        groups: the prompts whose samples are still joining.
        required: which chat templates were found to go on behind which prompts.
    """

    groups: Groups = field(default_factory=Groups)
    required: Required = field(default_factory=Required)
    _environments: dict[bytes, Environment] = field(default_factory=dict)
    # What a key names by its id is kept beside the value: the id stays taken as long as the entry lives.
    _encoders: dict[tuple[Any, ...], tuple[Any, TokenEncoder]] = field(default_factory=dict)
    _settings: dict[tuple[int, int], tuple[Any, LoopSettings]] = field(default_factory=dict)
    _watches: dict[tuple[int, str], Watch] = field(default_factory=dict)
    _keepers: dict[tuple[int, str], Keeper] = field(default_factory=dict)
    _recorder: Recorder = field(default_factory=Recorder)
    _router: str = ""
    _parts: _Parts | None = None

    def environment(self, spec: str, spec_set: Mapping[str, Any], remote: str | None = None) -> Environment:
        """The compiled environment of a spec with some keys replaced, or that of the server at `remote`; the same
        object for equal arguments."""
        key = orjson.dumps([spec, spec_set, remote])
        if key not in self._environments:
            with entered(Lane(self._recorder, "")):
                loaded = load_spec(find(spec), set=spec_set or None)  # a server compiles it, and has its programs
                made = Environment(loaded) if remote is None else RemoteEnvironment(remote, spec=loaded)
                self._environments[key] = made
        return self._environments[key]

    def encoder(
        self,
        tokenizer: Any,
        environment: Environment,
        processor: Any,
        processor_kwargs: Mapping[str, Any],
        *,
        template_kwargs: Mapping[str, Any],
        **options: Any,
    ) -> TokenEncoder:
        """The encoder of a tokenizer, or of a processor and its tokenizer; the same object for equal arguments and for
        environments whose dialects think and go on alike.

        Args:
            options: other ones of `rlenv.tokens.bound.bind`, which can be keys.
        """
        kwargs = orjson.dumps([template_kwargs, processor_kwargs])
        of_dialect = (environment.same_turn, thinking_of(environment))
        key = (id(tokenizer), id(processor), kwargs, of_dialect, tuple(options.items()))
        if key not in self._encoders:
            encoder = bind(
                tokenizer,
                environment,
                chat_template=image_template(processor),
                template_kwargs=template_kwargs,
                images=processor_images(processor, processor_kwargs),
                **options,
            )
            self._encoders[key] = ((tokenizer, processor), encoder)
        return self._encoders[key][1]

    def settings(self, config: Any, data_config: Any) -> LoopSettings:
        """The settings in a trainer's configuration and that of its data, which must not change afterwards."""
        key = (id(config), id(data_config))
        if key not in self._settings:
            self._settings[key] = ((config, data_config), read_settings(config, data_config))
        return self._settings[key][1]

    def watch(self, folder: str) -> Watch:
        """The watch of this process for a folder; its thread starts with the first call."""
        key = (os.getpid(), folder)
        if key not in self._watches:
            self._watches[key] = made = Watch(Path(folder))
            made.keep_looking()
        return self._watches[key]

    def keeper(self, folder: str, *, keep_gb: float, writers: int) -> Keeper:
        """The keeper of this process's episodes in a run's folder; the first call's limits hold.

        It is never closed: veRL kills its workers, and whoever drives the run seals what they left open.
        """
        key = (os.getpid(), folder)
        if key not in self._keepers:
            self._keepers[key] = Keeper(Path(folder), keep_gb=keep_gb, writers=writers, recorder=self._recorder)
        return self._keepers[key]

    def router(self) -> str:
        """The address of veRL's reward model, asked for once; see `ask_for_router`."""
        self._router = self._router or ask_for_router()
        return self._router

    def attributes(self, parts: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The result of `make` for the last parts, where these are the same objects in the same event loop."""
        loop, known = asyncio._get_running_loop(), self._parts
        is_known = known is not None and known.loop is loop and parts.keys() == known.parts.keys()
        if known is not None and is_known and all(parts[name] is known.parts[name] for name in parts):
            return known.attributes
        made = make()
        if loop is not None:
            self._parts = _Parts(loop, parts, made)
        return made


PROCESS: Final = ProcessState()
"""What the loops that veRL builds share."""


# Outputs: one a training row of an episode, in their order; and what the loop asks of the model's processor.
#
# veRL 0.9.1 computes pixels and positions after an episode from what an agent loop gives it: it turns all ids to text,
# special tokens left out, and calls the processor with that text and `multi_modal_data["images"]`
# (experimental/agent_loop/agent_loop.py, `_compute_multi_modal_inputs`); the k-th run of placeholders in the ids is the
# k-th image. So ids and text may hold no placeholder that has no image behind it.


class TurnRewards(AgentLoopOutput):
    """An output whose rewards stand on their own turns.

    veRL's `as_dict` puts `reward_score` on the response's last token. The field it fills, `rm_scores`, has one entry
    a token: with the same sum, rewards of turns stand where they were earned, for estimators and critics that look.
    """

    _token_rewards: tuple[float, ...] = PrivateAttr(default=())

    def as_dict(self) -> dict[str, Any]:
        """As veRL's own, with the rewards of turns in `rm_scores`."""
        fields: dict[str, Any] = super().as_dict()
        if self._token_rewards:
            fields["rm_scores"] = torch.tensor(self._token_rewards, dtype=torch.float32)
        return fields


def outputs_of(
    outcome: Outcome,
    play: Play,
    figures: EpisodeFigures,
    *,
    first_version: int,
    with_logprobs: bool,
    is_validation: bool = False,
) -> list[AgentLoopOutput]:
    """The outputs for veRL: one a row, in their order.

    Each has the episode's own figures, since veRL looks at the last row of a validation and at any of a batch.

    Args:
        first_version: the version of the weights that is named where nothing was generated.
        is_validation: the rows are not trained on; veRL reads the episode's whole reward off the last one.
    """
    versions = [version for version in play.versions if version is not None]

    def output_of(row: Row) -> AgentLoopOutput:
        output = TurnRewards(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.mask),
            response_logprobs=list(row.logprobs) if with_logprobs else None,
            reward_score=outcome.reward,
            num_turns=int(outcome.info["turns"] or 0),
            metrics=AgentLoopMetrics.model_validate(play.metrics),
            extra_fields={
                "reward_extra_info": dict(outcome.info),
                "rlenv": figures.as_fields(),
                "rlenv_carried": row.carried,
                "turn_scores": list(outcome.turn_rewards),
                "tool_rewards": [],
                # veRL computes staleness from these and needs numbers, also where nothing was generated.
                "global_steps": max(versions, default=first_version),
                "min_global_steps": min(versions, default=first_version),
                "max_global_steps": max(versions, default=first_version),
            },
        )
        if row.images:
            output.multi_modal_data = {"images": list(row.images)}
        if not is_validation:
            output._token_rewards = row.token_rewards
        return output

    return [output_of(row) for row in outcome.rows]


STRAY: Final = "image_token"
"""Why an episode was cut in which the policy wrote the placeholder of an image."""


def processor_images(processor: Any, kwargs: Mapping[str, Any]) -> ProcessorImages | None:
    """The images of the model's processor; None where there is none, or it takes no images.

    Args:
        kwargs: veRL's `data.mm_processor_kwargs`.
    """
    if processor is None or not getattr(processor, "image_token", None):
        return None
    return ProcessorImages(processor, kwargs=kwargs)


def image_template(processor: Any) -> str | None:
    """The processor's chat template, which writes images; a tokenizer's own may not. None where it has none."""
    template = getattr(processor, "chat_template", None)
    return template if isinstance(template, str) and template else None


def clean_length(ids: Sequence[int], *, images: ProcessorImages | None, tokenizer: Any) -> int:
    """The number of sampled ids before a placeholder, or before one that they would be as text.

    veRL's vLLM server never samples one; other servers may, and any policy can spell it.
    """
    if images is None:
        return len(ids)
    forbidden = {get_processor_token_id(images.processor, kind) for kind in ("image", "video")} - {None}
    length = next((index for index, token in enumerate(ids) if token in forbidden), len(ids))

    def is_clean(count: int) -> bool:
        text: str = tokenizer.decode(list(ids[:count]), skip_special_tokens=True)
        return not any(word in text for word in images.reserved)

    if is_clean(length):
        return length
    return bisect_left(range(1, length), True, key=lambda count: not is_clean(count))


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of a sample that veRL can take: so many tokens of the response, and so many images."""

    response: int
    images: int


def shown_of(tokens: TokenTrajectory, *, images: ProcessorImages | None, tokenizer: Any) -> Shown:
    """All of a sample, or its turns up to the last one behind which ids and text have one placeholder an image.

    Raises:
        EpisodeError: not even the prompt has; such a sample would end veRL's whole batch (`reason` is "image").
    """
    whole = Shown(len(tokens), len(tokens.images))
    if images is None:
        return whole
    place = get_processor_token_id(images.processor, "image")
    special = bool(tokenizer.decode([place], skip_special_tokens=True))
    ids = tokens.context_ids
    start = len(ids) - len(tokens)

    def fits(response: int) -> Shown | None:
        runs: list[int] = []
        for token in ids[: start + response]:  # as veRL does: a run becomes one placeholder
            if token != place or not runs or runs[-1] != place:
                runs.append(token)
        found = sum(token == place for token in runs)
        text: str = tokenizer.decode(runs, skip_special_tokens=True)
        is_right = text.count(images.place) == (found if special else 0)
        is_right = is_right and not any(word in text for word in images.reserved[1:])
        return Shown(response, found) if is_right and found <= whole.images else None

    found = fits(whole.response)
    if found is not None and found.images == whole.images:
        return found
    for _, end in reversed(tokens.turn_spans):
        if (found := fits(end)) is not None:
            return found
    raise EpisodeError(f"the prompt spells {images.place}, which stands for an image", reason="image")


def generation_fields(images: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of veRL's server client beside the ids, whose placeholders stay expanded: its servers fold them."""
    if not images:
        return {}
    return {"image_data": list(images), **({"mm_processor_kwargs": dict(kwargs)} if kwargs else {})}
