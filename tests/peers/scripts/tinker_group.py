"""Groups by tinker-cookbook's own rollouts, with a completer in place of its service."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

import rlenv
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_hosts.tinker import RlenvGroup
from rlenv_train.player import Address

SPEC = """
rlenv: 1
name: sums
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}]}}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: numeric_match}
"""
COMPARED = "  rank: {kind: group, of: correct, by: rank, weight: 0.5}\n"
DOWN = "  up: {kind: rule, rule: python, function: 'service.py:up'}\n"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
ANSWERS = ("<answer>5</answer>", "so it is <answer>7</answer>")


class Scripted(TokenCompleter):
    """A call, and then by turns a right and a wrong answer."""

    def __init__(self) -> None:
        self.ended = 0

    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        text = small_tokenizer().decode(model_input.to_ints(), skip_special_tokens=False)
        said = CALL
        if "<tool_response>\n5" in text:
            said, self.ended = ANSWERS[self.ended % 2], self.ended + 1
        ids = small_tokenizer().encode(said + "<|im_end|>").ids
        assert ids[-1] in stop
        return TokensWithLogprobs(tokens=ids, maybe_logprobs=[-0.5] * len(ids))


def group(name: str, more: str = "", size: int = 4) -> RlenvGroup:
    folder = Path(name)
    folder.mkdir()
    (folder / "spec.yaml").write_text(SPEC + more)
    (folder / "service.py").write_text("def up(context):\n    raise RuntimeError('the service is down')\n")
    return RlenvGroup(Address(str(folder / "spec.yaml"), "train", 0), size, "policy", {"max_response_tokens": 200})


async def played(builder: RlenvGroup, **given: Any) -> dict[str, Any]:
    found = await do_group_rollout(pickle.loads(pickle.dumps(builder)), Scripted(), **given)
    first: Sequence[Any] = found.trajectories_G[0].transitions
    (datum,) = trajectory_to_data(found.trajectories_G[0], 1.0)
    return {
        "rewards": found.get_total_rewards(),
        "stops": [one.stop_reason for one in found.trajectories_G],
        "sampled": sum(len(one.ac.tokens) for one in first),
        "trained": sum(datum.loss_fn_inputs["mask"].data),
        "metrics": first[-1].metrics,
        "tags": builder.logging_tags(),
    }


def write_policy() -> None:
    Path("policy").mkdir()
    small_tokenizer().save("policy/tokenizer.json")
    Path("policy/chat_template.jinja").write_text(CHAT_TEMPLATE)
    Path("policy/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))


async def main() -> dict[str, Any]:
    try:
        await played(group("down", DOWN))
        said = ""
    except rlenv.RlenvError as error:
        said = f"{type(error).__name__}: {error}"
    return {
        "plain": await played(group("plain")),
        "compared": await played(group("compared", COMPARED, 2)),
        "down": said,
    }


write_policy()
print(json.dumps(asyncio.run(main())))
