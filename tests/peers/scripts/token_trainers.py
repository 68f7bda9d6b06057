"""Episodes by the faces of trainers that cannot be installed here, each called as its own source calls it.

The second episode of each asks a service that is down.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standins"))

from areal.api import GenerationHyperparameters, ModelRequest, ModelResponse
from slime.utils import http_utils
from slime.utils.types import Sample

import rlenv
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens.bound import LoadedTokenizer
from rlenv_hosts.areal import RlenvWorkflow
from rlenv_hosts.skyrl import RlenvGenerator
from rlenv_hosts.slime import generate, post_process_rewards
from rlenv_train.player import Address

SPEC = """
rlenv: 1
name: sums
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}]}}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: numeric_match}
  up: {kind: rule, rule: python, function: "service.py:up", weight: 0.5}
"""
SERVICE = """
count = 0


def up(context):
    global count
    count += 1
    if count == 2:
        raise RuntimeError("the service is down")
    return 1.0 if count % 2 else 0.0
"""
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
END = small_tokenizer().token_to_id("<|im_end|>")
TOKENIZER = LoadedTokenizer(small_tokenizer(), CHAT_TEMPLATE, {"eos_token": "<|im_end|>"}, "<|im_end|>", "", (END,))
VERSION = 7


def said(ids: list[int]) -> tuple[list[int], list[float]]:
    text = small_tokenizer().decode(ids, skip_special_tokens=False)
    turn = "<answer>5</answer>" if "<tool_response>\n5" in text else CALL
    out = small_tokenizer().encode(turn + "<|im_end|>").ids
    return out, [-0.5] * len(out)


def spec(name: str) -> dict[str, Any]:
    folder = Path(name)
    folder.mkdir()
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "service.py").write_text(SERVICE)
    return Address(str(folder / "spec.yaml"), "train", 0).as_dict()


async def alone() -> dict[str, Any]:
    """The ids and the mask of the same turns in an episode that is played by itself."""
    environment = rlenv.load(spec("alone")["rlenv"])
    async with rlenv.TokenEpisode(environment, rlenv.bind(TOKENIZER, environment), task=0) as played:
        while not played.is_ended:
            await played.step(*said(played.context_ids))
    row = played.rows[0]
    return {"ids": [*row.prompt_ids, *row.response_ids], "mask": list(row.mask), "prompt": len(row.prompt_ids)}


async def by_areal() -> list[Any]:
    class Engine:
        async def agenerate(self, request: ModelRequest) -> ModelResponse:
            assert request.gconfig.n_samples == 1
            ids, logprobs = said(request.input_ids)
            return ModelResponse(request.input_ids, ids, logprobs, [VERSION] * len(ids))

    workflow, row = RlenvWorkflow(GenerationHyperparameters(max_new_tokens=200), TOKENIZER), spec("areal")
    made = [await workflow.arun_episode(Engine(), row) for _ in range(3)]
    return [one and {name: value[0].tolist() for name, value in one.items()} for one in made]


async def by_slime() -> dict[str, Any]:
    async def router(payload: dict[str, Any]) -> dict[str, Any]:
        assert payload["return_logprob"]
        ids, logprobs = said(payload["input_ids"])
        pairs = [[logprob, token, None] for token, logprob in zip(ids, logprobs, strict=True)]
        return {"meta_info": {"finish_reason": {"type": "stop"}, "weight_version": "7", "output_token_logprobs": pairs}}

    http_utils.answer = router
    args = SimpleNamespace(
        tokenizer=TOKENIZER, hf_checkpoint="model", rollout_max_response_len=200, sglang_router_ip="127.0.0.1",
        sglang_router_port=3000, advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False,
        custom_reward_post_process_path="rlenv_hosts.slime.post_process_rewards",
    )  # fmt: skip
    row = spec("slime")
    samples = [await generate(args, Sample(0, at, metadata=row), {"temperature": 1.0}) for at in range(3)]
    raw, advantages = post_process_rewards(args, samples)
    args.custom_reward_post_process_path = None
    try:
        await generate(args, Sample(0, 3, metadata=row), {})
        refused = ""
    except rlenv.UsageError as error:
        refused = str(error)
    kept = ("tokens", "loss_mask", "response_length", "remove_sample", "rollout_log_probs", "weight_versions")
    return {
        "samples": [{name: getattr(one, name) for name in kept} | {"status": one.status.value} for one in samples],
        "raw": [None if value != value else value for value in raw],
        "advantages": advantages,
        "refused": refused,
    }


async def by_skyrl() -> dict[str, Any]:
    class Client:
        async def generate(self, batch: dict[str, Any]) -> dict[str, Any]:
            ids, logprobs = said(batch["prompt_token_ids"][0])
            return {"response_ids": [ids], "response_logprobs": [logprobs], "stop_reasons": ["stop"]}

    row = spec("skyrl")
    cfg = SimpleNamespace(generator=SimpleNamespace(sampling_params=SimpleNamespace(max_generate_length=64)))
    generator = RlenvGenerator(cfg, TOKENIZER, Client(), max_response_tokens=200)
    batch = {
        "prompts": [[]] * 3, "env_classes": ["rlenv"] * 3, "env_extras": [row] * 3, "sampling_params": {},
        "trajectory_ids": [SimpleNamespace(instance_id="a", repetition_id=at) for at in range(3)],
        "batch_metadata": SimpleNamespace(global_step=1, training_phase="train"),
    }  # fmt: skip
    out = await generator.generate(batch)
    return {name: value for name, value in out.items() if name not in ("trajectory_ids", "rollout_metrics")}


async def main() -> dict[str, Any]:
    return {
        "alone": await alone(), "areal": await by_areal(), "slime": await by_slime(), "skyrl": await by_skyrl(),
    }  # fmt: skip


print(json.dumps(asyncio.run(main())))
