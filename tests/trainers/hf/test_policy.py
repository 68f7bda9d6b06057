from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import transformers

import rlenv
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import PolicyError
from rlenv.trajectory import Trajectory
from rlenv_verl.cpu import Generated
from rlenv_verl.hf import load_policy
from tests.trainers.conftest import quiet
from tests.trainers.histories import FORGETFUL, SPEC, Said, conversation


def play(folder: Path, *, count: int, concurrency: int) -> list[Trajectory]:
    environment = load("arithmetic")

    async def run() -> list[Trajectory]:
        policy = load_policy(folder, environment)
        try:
            jobs = [Job("test", task) for task in range(count)]
            return await rollout(environment, policy, jobs, concurrency=concurrency)
        finally:
            await policy.aclose()
            await policy.aclose()

    with quiet():
        return asyncio.run(run())


def test_greedy_episodes_do_not_depend_on_what_runs_beside_them(tiny_folder: Path) -> None:
    together = play(tiny_folder, count=8, concurrency=8)
    apart = play(tiny_folder, count=8, concurrency=1)
    assert [[turn.action for turn in entry.turns] for entry in together] == [
        [turn.action for turn in entry.turns] for entry in apart
    ]
    assert all(entry.failure is None for entry in together)


def test_a_response_budget_that_is_spent_ends_the_episode_without_a_failure(tiny_folder: Path) -> None:
    environment = load("arithmetic")

    async def run() -> Trajectory:
        policy = load_policy(tiny_folder, environment, response_tokens=2, max_tokens=1)
        try:
            return (await rollout(environment, policy, [Job("test", 0)]))[0]
        finally:
            await policy.aclose()

    with quiet():
        trajectory = asyncio.run(run())
    assert trajectory.failure is None
    assert trajectory.success is False


@dataclass
class Scripted:
    """A server that writes what the test says, and remembers what it was shown."""

    tokenizer: Any
    texts: list[str]
    seen: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Nothing runs."""

    async def aclose(self) -> None:
        """Nothing runs."""

    async def generate(self, prompt: Sequence[int], sampling: Any) -> tuple[Generated, None]:
        self.seen.append(self.tokenizer.decode(prompt))
        text = self.texts[len(self.seen) - 1]
        ids = (*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id)
        return Generated(ids, (0.0,) * len(ids), "stop"), None


def forgetful(tiny_folder: Path, folder: Path, *, ends: list[int]) -> Path:
    """The tiny policy under a template that drops earlier thinking, with more ids that end a turn."""
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(FORGETFUL, encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def test_the_policy_reads_what_the_template_writes_of_earlier_turns(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    environment = load(tmp_path / "spec.yaml")
    said = (
        Said("Which?", thinking="I need more"),
        Said(thinking="so", call="6*7"),
        Said("Well?"),
        Said("<answer>42</answer>"),
    )

    async def run() -> list[str]:
        policy = load_policy(forgetful(tiny_folder, tmp_path / "policy", ends=[2]), environment)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "policy")
        server = Scripted(tokenizer, [turn.text for turn in said])
        policy.server = cast(Any, server)
        try:
            await rollout(environment, policy, [Job("train", 0)])
        finally:
            await policy.aclose()
        seen = server.seen
        tools: list[Any] = [dict(schema) for schema in environment.tool_schemas]
        for text, messages in zip(seen, conversation(said), strict=True):
            assert text == tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        return seen

    with quiet():
        seen = asyncio.run(run())
    assert "I need more" not in seen[1]


ONE_CALL = (
    "{%- for m in messages %}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call at a time') }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("response_tokens", [4096, 20])
def test_neither_two_calls_nor_a_spent_budget_make_the_policys_own_reward_invalid(
    tiny_folder: Path, tmp_path: Path, response_tokens: int
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    environment = load(tmp_path / "spec.yaml")
    call = Said(call="6*7").text
    texts = ["Which?", call + call, *["Well?"] * 8]

    async def run() -> Trajectory:
        folder = forgetful(tiny_folder, tmp_path / "policy", ends=[2])
        (folder / "chat_template.jinja").write_text(ONE_CALL + FORGETFUL, encoding="utf-8")
        policy = load_policy(folder, environment)
        policy.response_tokens = response_tokens
        policy.server = cast(Any, Scripted(transformers.AutoTokenizer.from_pretrained(folder), texts))
        try:
            return (await rollout(environment, policy, [Job("train", 0)]))[0]
        finally:
            await policy.aclose()

    with quiet():
        trajectory = asyncio.run(run())
    assert trajectory.failure is None
    assert trajectory.reward.total is not None


def test_generation_ends_at_every_id_that_the_model_names(tiny_folder: Path, tmp_path: Path) -> None:
    folder = forgetful(tiny_folder, tmp_path / "policy", ends=[9, 11])
    with quiet():
        policy = load_policy(folder, load("arithmetic"))
    assert {9, 11, policy.encoder.stop_id} <= policy.sampling.stop_ids


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_a_model_is_a_policy_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no model could be loaded") as told:
        load_policy(tmp_path, load("arithmetic"))
    assert "no folder here" not in str(told.value)
    with pytest.raises(PolicyError, match="which is no folder here, so that the hub was asked"):
        load_policy(tmp_path / "gone", load("arithmetic"))


@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_takes_it_by_its_name_with_its_sampling(tiny_folder: Path) -> None:
    with quiet():
        done = rlenv.evaluate("arithmetic", rlenv.PolicyChoice(f"hf:{tiny_folder}", max_tokens=3), n=5)
    assert done.summary.episodes == 5
    assert all(len(turn.token_ids) <= 3 for one in done.trajectories for turn in one.turns)
