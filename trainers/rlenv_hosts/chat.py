"""Specs for trainers that give an OpenAI-compatible address for each rollout, and record there what is sampled: AReaL's
agents, rLLM, ART. None of them is imported before its function is called.

A row of their data is the address of an episode, as `rows` writes it: `{"rlenv": "arithmetic", "split": "train",
"task": 7, "seed": 0}`; the seed is the run's. The samples of a row have equal episodes; that they differ is left to the
trainer's sampling. Where a reward cannot be measured `rlenv.EpisodeError` is raised: each of these trainers leaves a
rollout out that has raised.

Read in AReaL 1.0.4 (`areal/experimental/openai/proxy/workflow.py`), rLLM of 15 August 2026 (`rllm/types.py`,
`rllm/engine/agentflow_engine.py`) and ART 0.5.23 (`art/trajectories/__init__.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import rlenv
from rlenv.dialects.built_in import broken_message, broken_schemas
from rlenv.endpoints.account import as_sent
from rlenv.hosts.session import require_alone, shown
from rlenv.tasks.rows import seed_of
from rlenv_train.player import Address, addresses, environment_of

_KEY: Final = "EMPTY"


def rows(spec: str, split: str | None = None, *, seed: int = 0, prompts: bool = False) -> list[dict[str, Any]]:
    """The addresses of a split's tasks, one pass of a split without an end.

    Args:
        split: by default the first.
        prompts: each also has `question`, its prompt as people read it, which rLLM wants.

    Raises:
        UsageError: no such split, or the spec has terms that compare the answers to one task, which are not measured
            where each rollout is scored by itself.
    """
    environment = environment_of(spec)
    name = split or next(iter(environment.spec.tasks))
    hint = "train with rlenv train, or take them out of the rewards"
    require_alone(environment, "these trainers score each rollout", hint)
    found = addresses(environment, name, seed=seed, place=spec)
    return [one.as_dict() | ({"question": shown(environment, name, one.task)} if prompts else {}) for one in found]


async def play(
    address: Mapping[str, Any],
    *,
    base_url: str,
    model: str,
    api_key: str | None = None,
    sampling: rlenv.SamplingSpec | None = None,
    asks_beside: bool = False,
) -> rlenv.Trajectory:
    """Plays the episode of an address; `asks_beside` as for `rlenv.play_endpoint`.

    Raises:
        EpisodeError: its reward could not be measured, or the endpoint has failed.
        UsageError: the address is none.
    """
    at = Address.of(address)
    ended = await rlenv.play_endpoint(
        environment_of(at.spec), base_url=base_url, model=model, api_key=api_key,
        task=at.task, split=at.split, seed=seed_of(at.seed, at.split, at.task), sampling=sampling,
        asks_beside=asks_beside,
    )  # fmt: skip
    if ended.failure is not None:
        raise rlenv.EpisodeError(ended.failure.message, reason=ended.failure.reason)
    return ended


class Agent:
    """AReaL's agent: `workflow: rlenv_hosts.chat.Agent`, by its proxy in the modes `inline` and `subproc`.

    Args:
        sampling: `temperature`, `top_p`, `max_tokens` of each request.
    """

    def __init__(self, **sampling: Any) -> None:
        self._sampling = rlenv.SamplingSpec(**sampling)

    async def run(
        self,
        data: Mapping[str, Any],
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        http_client: Any = None,
        **more: Any,
    ) -> float:
        """The reward of the row's episode; raises where it is invalid, and AReaL rejects the rollout.

        Connections are rlenv's own, which rollouts share: `http_client` is httpx's, and is not used.
        """
        address = base_url or os.environ["OPENAI_BASE_URL"]  # in the mode `subproc`
        key = api_key or os.environ.get("OPENAI_API_KEY", _KEY)
        ended = await play(data, base_url=address, model="default", api_key=key, sampling=self._sampling)
        return _total(ended)


async def rollout(task: Any, config: Any) -> Any:
    """rLLM's flow: `rllm.rollout(rlenv_hosts.chat.rollout)`. An `rllm.types.Episode` with the reward of the task's row,
    whose answer and end are its artifacts; raises where it is invalid, and rLLM plays it again (`retry_limit`)."""
    from rllm.types import Episode, Trajectory

    ended = await play(task.metadata, base_url=config.base_url, model=config.model, api_key=_KEY)
    told = {"answer": ended.answer or "", "rlenv": ended.outcome()}
    played = Trajectory(name="rlenv", task=task.metadata, reward=_total(ended), output=told["answer"])
    about = {"is_correct": ended.success is True, "artifacts": told, "metrics": ended.measured()}
    return Episode(task=task.metadata, trajectories=[played], **about)


def evaluate(task: Any, episode: Any) -> tuple[float, bool]:
    """rLLM's evaluator: `rllm.evaluator(rlenv_hosts.chat.evaluate)`. What `rollout` has left in the episode."""
    end = episode.artifacts["rlenv"]
    return float(end["total"]), end["success"] is True


async def art_rollout(model: Any, address: Mapping[str, Any], *, sampling: rlenv.SamplingSpec | None = None) -> Any:
    """ART's rollout: the `art.Trajectory` of an address, for `art.TrajectoryGroup(art_rollout(model, row) for _ in …)`.

    Raises where the reward is invalid, which the group keeps as an exception and does not train on.
    """
    asked = {"logprobs": True} | dict(sampling.extra if sampling is not None else {})
    whole = (sampling or rlenv.SamplingSpec()).model_copy(update={"extra": asked})
    ended = await play(
        address, base_url=model.inference_base_url, model=model.get_inference_name(),
        api_key=model.inference_api_key, sampling=whole, asks_beside=True,
    )  # fmt: skip
    return art_trajectory(ended, tools=environment_of(str(address["rlenv"])).toolsets.of(ended.task).schemas)


def art_trajectory(ended: rlenv.Trajectory, *, tools: Any = ()) -> Any:
    """The `art.Trajectory` of an episode: its messages as the policy was sent them, each of its own a choice with the
    log-probabilities that the server gave; terms and success as metrics.

    Args:
        tools: the schemas of the episode's tools.

    Raises:
        EpisodeError: the reward is invalid.
    """
    import art
    from openai.types.chat.chat_completion import Choice

    said: list[Any] = [broken_message(message).as_dict() for message in ended.messages]
    for turn in ended.turns:
        said.append(Choice.model_validate(_choice(turn)))
        answered = turn.observation.messages if turn.observation is not None else ()
        said += [broken_message(message).as_dict() for message in answered]
    shown = [dict(tool) for tool in broken_schemas(tools)] or None
    return art.Trajectory(messages_and_choices=said, tools=shown, reward=_total(ended), metrics=ended.measured())


def _choice(turn: Any) -> dict[str, Any]:
    """A turn as OpenAI's choice of a chat completion, its calls as the policy is sent them in the next turn: templates
    read their arguments. Log-probabilities without ids are left out, since ART would train other tokens."""
    message = as_sent(rlenv.Message("assistant", turn.parsed.content, turn.parsed.calls))
    for at, call in enumerate(message.get("tool_calls", ())):
        call.setdefault("id", f"call_{turn.index}_{at}")
    content = [
        {"token": f"token_id:{one}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for one, logprob in zip(turn.token_ids, turn.logprobs, strict=False)
    ]
    reason = turn.finish_reason if turn.finish_reason in ("stop", "length", "tool_calls", "content_filter") else "stop"
    told = {"content": content, "refusal": None} if content else None
    return {"index": 0, "message": message, "finish_reason": reason, "logprobs": told}


def _total(ended: rlenv.Trajectory) -> float:
    if ended.reward.total is None:
        raise rlenv.EpisodeError("the reward could not be measured", reason="reward")
    return float(ended.reward.total)
