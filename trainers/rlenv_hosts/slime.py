"""slime's custom generation, token by token exact.

    --custom-generate-function-path rlenv_hosts.slime.generate
    --custom-reward-post-process-path rlenv_hosts.slime.post_process_rewards

A row's `metadata` is the address of an episode (`Address.as_dict()`), whose spec is a path or a name that ships. slime
takes a number for every reward and averages over the group before it looks at masks: an invalid reward is NaN here, and
`post_process_rewards` leaves it out of its group. Without that hook no sample is generated.

Read in slime of 21 August 2026 (`rollout/sglang_rollout.py`, `ray/rollout.py`, `utils/types.py`); tried against a
stand-in of its router.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post

from rlenv.errors import UsageError
from rlenv_train.player import Address, Hosted

_HOOK = "rlenv_hosts.slime.post_process_rewards"
_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_BY_DEVIATION = ("grpo", "gspo", "cispo")
_players: dict[int, tuple[Any, Hosted]] = {}


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Plays the sample's episode with slime's router as the policy, and fills the sample.

    Raises:
        UsageError: the run has not the hook for rewards, or the row is no address.
    """
    if not evaluation and getattr(args, "custom_reward_post_process_path", None) != _HOOK:
        raise UsageError(
            "slime would count an episode without a reward into its group's mean",
            key="--custom-reward-post-process-path",
            hint=f"set it to {_HOOK}",
        )
    player = _player_of(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    versions: list[str] = []

    async def sample_turn(
        ids: list[int], *, max_tokens: int | None, stop_token_ids: list[int], stop: Sequence[str] = (), **_: Any
    ) -> tuple[list[int], list[float]]:
        params = {**sampling_params, "max_new_tokens": max_tokens, "stop_token_ids": stop_token_ids}
        params |= {"stop": list(stop) or None, "no_stop_trim": True}
        answer = await post(url, {"input_ids": ids, "sampling_params": params, "return_logprob": True})
        meta = answer["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise _Aborted
        versions.extend([str(meta["weight_version"])] if "weight_version" in meta else ())
        pairs = meta.get("output_token_logprobs") or ()
        return [int(pair[1]) for pair in pairs], [float(pair[0]) for pair in pairs]

    facts = {"sample": int(sample.index or 0), "group": str(sample.group_index), "is_validation": evaluation}
    try:
        outcome, figures = await player.play(Address.of(sample.metadata), sample_turn, **facts)
    except _Aborted:  # a change of weights: slime asks for the sample again
        sample.status = type(sample).Status.ABORTED
        return sample
    row = outcome.rows[0]
    sample.tokens = [*row.prompt_ids, *row.response_ids]
    sample.response_length = len(row.response_ids)
    sample.response = player.encoder(player.environment(Address.of(sample.metadata).spec)).decode(row.response_ids)
    sample.loss_mask = list(row.mask)
    sample.rollout_log_probs = list(row.logprobs)
    sample.weight_versions = versions
    sample.reward = math.nan if figures.reward is None else figures.reward
    sample.remove_sample = figures.reward is None
    cut = outcome.info["truncated"] and figures.reward is not None
    sample.status = type(sample).Status.TRUNCATED if cut else type(sample).Status.COMPLETED
    sample.metadata = {**sample.metadata, "rlenv_ended": outcome.ended}
    return sample


def post_process_rewards(args: Any, samples: Sequence[Any], **_: Any) -> tuple[list[float], list[float]]:
    """slime's own normalisation over the samples of a group that have a reward; the others have the advantage 0.

    The raw rewards that are shown have NaN where there is none.
    """
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    if args.advantage_estimator not in _NORMALISED or not args.rewards_normalization:
        return raw, [0.0 if math.isnan(value) else value for value in raw]
    out: list[float] = []
    for _group, pairs in groupby(zip(samples, raw, strict=True), key=lambda pair: pair[0].group_index):
        values = [value for _, value in pairs]
        known = [value for value in values if not math.isnan(value)]
        mean = sum(known) / len(known) if known else 0.0
        by = 1.0
        if args.advantage_estimator in _BY_DEVIATION and args.grpo_std_normalization:
            spread = sum((value - mean) ** 2 for value in known) / max(1, len(known) - 1)
            by = math.sqrt(spread) + 1e-6
        out += [0.0 if math.isnan(value) else (value - mean) / by for value in values]
    return raw, out


class _Aborted(Exception):
    """The router cut a generation."""


def _player_of(args: Any) -> Hosted:
    """The player of this process for a run's arguments."""
    if id(args) not in _players:
        player = Hosted(
            GenerateState(args).tokenizer,
            model=args.hf_checkpoint,
            max_response_tokens=args.rollout_max_response_len,
            max_total_tokens=getattr(args, "rollout_max_context_len", None),
        )
        _players[id(args)] = (args, player)
    return _players[id(args)][1]
