"""Makes a tiny policy that writes Search-R1's tags, for runs on a CPU that show that everything fits together.

    python examples/search_r1/toy_policy.py FOLDER --set vars.data=data --set vars.retriever=http://127.0.0.1:8000/retrieve

Half a million random parameters learn a few dozen episodes: the oracle's, and some that guess. It has learned to search
and to answer in form, not to find answers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from rlenv import OraclePolicy
from rlenv.collect.encode import EncodedRow
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, play
from rlenv.messages import Message, Observation
from rlenv.tokens import TokenEncoder
from rlenv_verl.tiny import build_tokenizer, new_model, save_model, warm_up

SPEC = Path(__file__).parent / "env.yaml"
TAGS = tuple(mark for name in ("think", "search", "information", "answer") for mark in (f"<{name}>", f"</{name}>"))


@dataclass(frozen=True, slots=True)
class Episode:
    """The prompt, and the actions with the observation that each got (None for the last)."""

    prompt: tuple[Message, ...]
    turns: tuple[tuple[str, Observation | None], ...]


async def _episodes(environment: Environment, count: int, rng: random.Random) -> list[Episode]:
    """The oracle's episodes, and for every fourth task one that answers at once with another task's answer."""
    oracle = OraclePolicy(environment.spec, environment.parts.dialect)
    tasks = rng.sample(range(len(environment.tasks("train"))), count)
    answers = [environment.tasks("train")[task]["golden_answers"][0] for task in tasks]
    found = []
    async with environment:
        for place, task in enumerate(tasks):
            played = await play(environment, oracle, Job("train", task, 0))
            if not played.success:
                raise SystemExit(f"the oracle does not solve task {task}: {played.failure or played.reason}")
            thought = "<think> I look it up. </think>"
            turns = [(turn.action, turn.observation) for turn in played.turns]
            turns[0] = (thought + turns[0][0], turns[0][1])
            turns[-1] = (turns[-1][0], None)
            found.append(Episode(played.messages, tuple(turns)))
            if place % 4 == 3:
                guess = f"<think> I know it. </think><answer> {rng.choice(answers)} </answer>"
                found.append(Episode(played.messages, ((guess, None),)))
    return found


def _encoded(episode: Episode, encoder: TokenEncoder, tokenizer: Any) -> EncodedRow:
    tokens = encoder.start(episode.prompt)
    for action, observation in episode.turns:
        tokens.add_sampled(tokenizer(action, add_special_tokens=False)["input_ids"])
        if observation is not None:
            tokens.add_observation(observation)
    return EncodedRow((*tokens.prompt_ids, *tokens.response_ids), (*(0 for _ in tokens.prompt_ids), *tokens.mask))


def make(folder: Path, *, settings: Sequence[str] = (), count: int = 48, steps: int = 60, seed: int = 0) -> float:
    """Writes the policy to `folder`, in the layout of transformers; returns the last loss per token.

    Args:
        settings: `KEY=VALUE` for the spec, as `--set` takes them.
        count: how many training tasks it learns from.
        steps: optimiser steps.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chosen = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in settings)}
    environment = load(SPEC, set=chosen or None)
    rng = random.Random(seed)
    episodes = asyncio.run(_episodes(environment, count, rng))
    said = [
        (
            [message.as_dict() for message in episode.prompt]
            + [
                {"role": "assistant", "content": action + (observation.text if observation is not None else "")}
                for action, observation in episode.turns
            ],
            (),
        )
        for episode in episodes
    ]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(said, folder, markers=TAGS)
    encoder = TokenEncoder(tokenizer, same_turn=environment.same_turn)
    examples = [_encoded(episode, encoder, tokenizer) for episode in episodes]
    model = new_model(tokenizer)
    report = warm_up(
        model, examples, examples, pad_id=int(tokenizer.pad_token_id), seed=seed, steps=steps, batch=8, clean_share=0.5
    )
    save_model(model, tokenizer, folder)
    return report.mixed_loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a tiny policy that writes Search-R1's tags.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the spec")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    loss = make(given.folder, settings=given.set, steps=given.steps)
    sys.stdout.write(f"a policy in {given.folder}, loss {loss:.3f} a token\n")
