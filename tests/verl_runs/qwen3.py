"""A small policy over Qwen3's own tokenizer and chat template, taught a few dialogues with thinking and without."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import context_of
from rlenv.policies.scripted import OraclePolicy
from rlenv.tokens import TokenEncoder

TOKENIZERS = Path(os.environ.get("RLENV_DATA", "not named")) / "tokenizers"


def tokenizer_folder(folder: Path) -> Path | None:
    """Qwen3's tokenizer unpacked into `folder`; None where it is not there."""
    source = TOKENIZERS / "qwen3"
    if not (source / "tokenizer.json.gz").is_file():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(gzip.decompress((source / "tokenizer.json.gz").read_bytes()))
    shutil.copyfile(source / "tokenizer_config.json", folder / "tokenizer_config.json")
    return folder


def spoken(action: str, turn: int, *, thinks: bool) -> str:
    """A turn as the policy is taught to write it."""
    return f"<think>\nThis is step {turn}.\n</think>\n\n{action}" if thinks else action


Example = tuple[list[int], list[int]]
"""Ids of a row, and a flag for each: whether the policy wrote it."""


async def _lessons(environment: Environment, tokenizer: Any, *, thinks: bool, history: Any) -> list[Example]:
    encoder = TokenEncoder(tokenizer, template_kwargs={"enable_thinking": thinks}, history=history)
    oracle = OraclePolicy(environment.spec, environment.parts.dialect)
    dialect = environment.parts.dialect
    examples: list[Example] = []
    for task in range(len(environment.tasks("train"))):
        async with environment.start(task=task, split="train", seed=0) as episode:
            session = oracle.start(context_of(episode))
            rows = encoder.start_rows(episode.messages, tools=environment.tool_schemas)
            messages = list(episode.messages)
            for turn in range(1, 100):
                said = spoken(await session.act(messages), turn, thinks=thinks)
                rows.add_sampled([*tokenizer(said, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
                step = await episode.step(said)
                if step.is_last:
                    break
                message = dialect.parse(said).said
                assert rows.add_observation(step.observation, said=message)
                messages += [message, *step.observation.messages]
        assert episode.trajectory.success, (environment.spec.name, task, episode.trajectory.reason)
        for row in rows.rows:
            examples.append(([*row.prompt_ids, *row.response_ids], [0] * len(row.prompt_ids) + row.mask))
    return examples


def _teach(model: Any, examples: Sequence[Example], *, steps: int, batch: int = 8) -> float:
    """Trains on the ids that occur alone, the other 151,000 as one class of their number: the head is most of the cost.

    Returns:
        The mean loss a token of the last steps.
    """
    import torch

    used = sorted({token for ids, _ in examples for token in ids})
    place = {token: at for at, token in enumerate(used)}
    rest = float(torch.log(torch.tensor(float(model.config.vocab_size - len(used)))))
    head = model.get_output_embeddings().weight
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0)
    rng = random.Random(0)
    losses = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        drawn = rng.sample(examples, min(batch, len(examples)))
        ids, flags, targets = (
            torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            for rows in (
                [row for row, _ in drawn],
                [flags for _, flags in drawn],
                [[place[token] for token in row] for row, _ in drawn],
            )
        )
        written = flags[:, 1:] == 1
        states = model.base_model(input_ids=ids).last_hidden_state[:, :-1][written]
        logits = states @ head[torch.tensor(used)].T
        logits = torch.cat([logits, torch.full((len(logits), 1), rest)], dim=1)
        loss = torch.nn.functional.cross_entropy(logits, targets[:, 1:][written])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        # The rows of tokens that never occur have no gradient, and nothing to remember.
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / 10


def make_qwen3_policy(folder: Path, specs: Sequence[str], *, steps: int = 300) -> Path | None:
    """A model of Qwen3's architecture (width 64, 2 layers, 151,936 tokens) in `folder`; None without the tokenizer."""
    if tokenizer_folder(folder) is None:
        return None
    import torch
    import transformers

    library: Any = transformers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
        torch.manual_seed(0)
        config = library.Qwen3Config(
            vocab_size=151_936,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.08,
        )
        model = library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
        model.config.architectures = [type(model).__name__]
        examples = [
            example
            for spec in specs
            for thinks in (True, False)
            for history in ("rows", "keep")
            for example in asyncio.run(_lessons(load(spec), tokenizer, thinks=thinks, history=history))
        ]
        _teach(model, examples, steps=steps)
        model.save_pretrained(folder)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder
