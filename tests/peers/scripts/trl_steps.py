"""Three optimiser steps of TRL through each door, and by its own sampling; one sample in each has no reward."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import transformers
import trl
from datasets import Dataset

import rlenv
import rlenv_trl
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_train.player import Address
from rlenv_verl.tiny import new_model

SPEC = """
rlenv: 1
name: sums
tasks:
  train: {rows: [{question: "What is 2 + 3?", answer: 5}, {question: "What is 4 + 4?", answer: 8}]}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: numeric_match}
  up: {kind: rule, rule: python, function: "service.py:up", weight: 0.3}
"""
SERVICE = '''
count = 0


def up(context):
    """A service that is down for the second episode that asks it; what it says differs from one to the next."""
    global count
    count += 1
    if count == 2:
        raise RuntimeError("the service is down")
    return count % 3 / 2
'''
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "SUM"}}\n</tool_call>'
STEPS, SAMPLES = 3, 4


def environment(name: str) -> rlenv.Environment:
    folder = Path(name)
    folder.mkdir()
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "service.py").write_text(SERVICE)
    return rlenv.load(folder / "spec.yaml")


def tokenizer(template: str = CHAT_TEMPLATE) -> Any:
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = template
    made.add_tokens(["<plum>"])  # one more than a multiple of 64: a model's output layer has ids that no token has
    return made


class Scripted(trl.GRPOTrainer):
    """Says a call, then an answer that is right every other time, in place of what a model would sample."""

    said: list[tuple[list[int], list[int]]]

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        turns = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids)
            sum = re.findall(r"What is (\d \+ \d)", text)[-1]
            answer = eval(sum) if self.rng.random() < 0.5 else 7
            call = CALL.replace("SUM", sum)
            said = f"<answer>{answer}</answer>" if "<tool_response>" in text.split("What is")[-1] else call
            turns.append(self.processing_class(said + "<|im_end|>")["input_ids"])
        self.said += list(zip(map(list, prompt_ids), turns, strict=True))
        return turns, None


def trained(kind: type, name: str, rows: list[Any], tokens: Any, **given: Any) -> Any:
    torch.manual_seed(0)
    model = new_model(tokens, hidden=32, layers=1, heads=2)
    config = trl.GRPOConfig(
        output_dir=name, per_device_train_batch_size=SAMPLES, num_generations=SAMPLES, max_steps=STEPS,
        max_completion_length=120, report_to="none", use_cpu=True, bf16=False, logging_steps=1, save_strategy="no",
        disable_tqdm=True, learning_rate=1e-3, beta=0.0, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = kind(model=model, processing_class=tokens, args=config, train_dataset=Dataset.from_list(rows), **given)
    trainer.said, trainer.rng = [], random.Random(0)
    before = [one.detach().clone() for one in model.parameters()]
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    return trainer, {
        "steps": len(log),
        "moved": any(
            not torch.equal(one, two.cpu()) for one, two in zip(before, model.cpu().parameters(), strict=True)
        ),
        "advantages": [round(one, 4) for one in trainer._logs["advantages"]],
        "log": log,
    }


class Looking(rlenv_trl.Rollout):
    """Keeps what it hands to TRL."""

    def __call__(self, prompts: Any, trainer: Any) -> Any:
        columns = super().__call__(prompts, trainer)
        self.seen = [*getattr(self, "seen", []), (prompts, columns)]
        return columns


async def again(rollout: Looking, trainer: Scripted) -> int:
    """How many samples have other ids or another mask than the same turns of an episode that is played by itself."""
    different, env = 0, rollout.environments[0]
    assert rollout.player is not None
    encoder = rollout.player.encoder(env)
    turns = list(trainer.said)
    for prompts, columns in rollout.seen:
        for at, prompt in enumerate(prompts):
            address = Address.of(prompt)
            ids, mask = columns["completion_ids"][at], columns["env_mask"][at]
            async with rlenv.TokenEpisode(
                env, encoder, task=address.task, split="train", max_response_tokens=120
            ) as played:
                sampled = 0
                while not played.is_ended:
                    said = next(
                        said
                        for context, said in turns
                        if context == played.context_ids
                        and ids[len(context) - len(columns["prompt_ids"][at]) :][: len(said)] == said
                    )
                    sampled += len(said)
                    await played.step(said)
                row = played.rows[0]
                expected = list(row.mask) if columns["rlenv_reward"][at] is not None else [0] * len(row)
                assert sum(row.mask) == sampled
                different += (list(row.response_ids), expected) != (list(ids), list(mask))
    return different


def door_of_tokens() -> dict[str, Any]:
    env = environment("tokens")
    rollout = Looking(env)
    trainer, found = trained(
        Scripted, "tokens-out", rollout.rows("train"), tokenizer(), rollout_func=rollout,
        reward_funcs=rlenv_trl.rlenv_reward,
    )  # fmt: skip
    columns = [columns for _, columns in rollout.seen]
    found["rewards"] = [one for each in columns for one in each["rlenv_reward"]]
    found["masked"] = [sum(one) == 0 for each in columns for one in each["env_mask"]]
    found["different"] = rlenv.run_sync(again, rollout, trainer)
    return found


def own_sampling() -> dict[str, Any]:
    rollout = Looking(environment("sampled"), turn_tokens=24)
    trainer, found = trained(
        trl.GRPOTrainer, "sampled-out", rollout.rows("train"), tokenizer(), rollout_func=rollout,
        reward_funcs=rlenv_trl.rlenv_reward,
    )  # fmt: skip
    columns = [columns for _, columns in rollout.seen]
    found["rewards"] = [one for each in columns for one in each["rlenv_reward"]]
    found["masked"] = [sum(one) == 0 for each in columns for one in each["env_mask"]]
    found["padded"] = trainer.model.config.vocab_size > len(trainer.processing_class)
    found["ends"] = sorted({one.ended for one in rollout.figures})
    return found


def door_of_tools() -> dict[str, Any]:
    env = environment("tools")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    played = rlenv_trl.environment_class(env)
    rows = rlenv_trl.environment_rows(env, "train")
    _, found = trained(
        Scripted, "tools-out", rows, tokenizer(template.read_text()), environment_factory={"sums": played},
        reward_funcs=rlenv_trl.environment_reward,
    )  # fmt: skip
    library: Any = transformers
    schema = library.utils.get_json_schema(played().calculate)["function"]
    del schema["return"]
    found["schema"] = schema == env.tool_schemas[0]["function"]
    return found


def refusals() -> dict[str, str]:
    """What is said to who would learn from an outage, or from nothing."""
    said = {}
    rollout = rlenv_trl.Rollout(environment("refused"))
    kept: dict[str, Any] = {"rollout_func": rollout}

    def polite(completions: Any, **_: Any) -> list[float]:
        return [0.5 for _ in completions]

    class Deaf(Scripted):
        """Takes a rollout_func and never calls it, as Unsloth's does."""

        def _generate(self, prompts: Any) -> Any:
            self.rollout_func = None
            return super()._generate([[{"role": "user", "content": "What is 2 + 3?"}]] * len(prompts))

    for name, kind, functions in (
        ("second", Scripted, [rlenv_trl.rlenv_reward, polite]),
        ("deaf", Deaf, rlenv_trl.rlenv_reward),
    ):
        try:
            trained(kind, name, rollout.rows("train"), tokenizer(), reward_funcs=functions, **kept)
        except rlenv.UsageError as error:
            said[name] = str(error)
    try:
        rows = rlenv_trl.environment_rows(environment("refused-too"), "train")
        template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
        trained(
            Scripted, "third", rows, tokenizer(template.read_text()), 
            reward_funcs=[rlenv_trl.environment_reward, polite],
            environment_factory={"sums": rlenv_trl.environment_class(environment("refused-three"))},
        )  # fmt: skip
    except rlenv.UsageError as error:
        said["second tool"] = str(error)
    return said


if __name__ == "__main__":
    parts = {
        "tokens": door_of_tokens, "sampled": own_sampling, "tools": door_of_tools, "refused": refusals,
    }  # fmt: skip
    sys.stdout.write(json.dumps({name: parts[name]() for name in sys.argv[1:] or parts}) + "\n")
