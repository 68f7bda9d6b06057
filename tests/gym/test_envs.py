"""The Gymnasium face."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import rlenv
from rlenv.errors import UsageError
from rlenv.gym.envs import TextEnv, TextSpace, TextVectorEnv
from tests.support.environments import shipped_names

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'


@pytest.fixture
def env(make_environment: Any) -> TextEnv:
    return TextEnv(make_environment())


def test_reset_gives_the_prompt_and_step_what_is_appended(env: TextEnv) -> None:
    prompt, info = env.reset(seed=1, options={"task": 0})
    assert prompt.endswith("<|im_start|>assistant\n")
    assert "What is 2 + 3?" in prompt
    assert info["messages"][-1] == {"role": "user", "content": "What is 2 + 3?"}
    assert info["task"]["answer"] == 5
    observation, reward, terminated, truncated, info = env.step(CALL)
    assert "<tool_response>\n5\n</tool_response>" in observation
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["rewards"] == {"correct": None}
    observation, reward, terminated, truncated, info = env.step("<answer>5</answer>")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["rewards"] == {"correct": 1.0}
    assert info["success"] is True
    assert env.trajectory.answer == "5"
    env.close()


def test_the_keys_of_info_are_the_same_at_every_step(env: TextEnv) -> None:
    _, first = env.reset(seed=1)
    _, _, _, _, second = env.step(CALL)
    _, _, _, _, third = env.step("<answer>1</answer>")
    assert first.keys() == second.keys() == third.keys()
    env.close()


def test_the_seed_chooses_the_task_and_makes_the_rest_equal(env: TextEnv) -> None:
    def play(seed: int) -> Any:
        return env.reset(seed=seed), env.step(CALL), env.step("<answer>5</answer>")

    assert play(3) == play(3)
    assert {env.reset(seed=seed)[1]["task_index"] for seed in range(20)} == {0, 1}
    env.close()


def test_tasks_that_are_reset_with_one_seed_share_no_episodes_seed(env: TextEnv) -> None:
    def seed(task: int) -> int:
        env.reset(seed=3, options={"task": task})
        env.step("<answer>5</answer>")
        return env.trajectory.seed

    assert seed(0) == seed(0) != seed(1)
    env.close()


def test_an_invalid_reward_is_nan_and_truncated_with_its_failure(make_environment: Any) -> None:
    spec = """
    rlenv: 1
    name: toy
    tasks: {train: {rows: [{question: q, answer: 1}]}}
    prompt: {user: "{{ task.question }}"}
    tools: {outage: {kind: python, function: "tools.py:outage"}}
    rewards: {correct: {kind: rule, rule: numeric_match}}
    """
    tools = """
    from rlenv.errors import EpisodeError

    def outage() -> str:
        \"\"\"Breaks.\"\"\"
        raise EpisodeError("gone", reason="backend")
    """
    call = '<tool_call>{"name": "outage", "arguments": {}}</tool_call>'
    env = TextEnv(make_environment(spec, tools=tools))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(call)
    assert np.isnan(float(reward))
    assert (terminated, truncated) == (False, True)
    assert info["failure"] == {"reason": "backend", "message": "gone"}
    env.close()
    several = TextVectorEnv(make_environment(spec, tools=tools), num_envs=1)
    several.reset(seed=0)
    assert all(np.isnan(several.step([call])[1][0]) for _ in range(2)), "no later step makes a number of it"
    several.close()


def test_stepping_before_reset_and_after_the_end_is_a_usage_error(env: TextEnv) -> None:
    with pytest.raises(UsageError, match=r"reset\(\)"):
        env.step("x")
    env.reset(seed=0)
    env.step("bye")
    with pytest.raises(UsageError, match="ended"):
        env.step("x")
    with pytest.raises(UsageError, match="tasks 0 to 1"):
        env.reset(options={"task": 9})
    with pytest.raises(UsageError, match="no option 'tsk'"):
        env.reset(options={"tsk": 0})
    env.close()


def test_it_works_inside_a_running_event_loop(env: TextEnv) -> None:
    async def notebook() -> float:
        env.reset(seed=0, options={"task": 0})
        return float(env.step("<answer>5</answer>")[1])

    assert asyncio.run(notebook()) == 1.0
    env.close()


def test_rendering_gives_the_conversation(make_environment: Any, capsys: pytest.CaptureFixture[str]) -> None:
    environment = make_environment()
    ansi = TextEnv(environment, render_mode="ansi")
    ansi.reset(seed=0, options={"task": 0})
    ansi.step(CALL)
    text = ansi.render()
    assert "What is 2 + 3?" in text
    assert CALL in text
    human = TextEnv(environment, render_mode="human")
    human.reset(seed=0, options={"task": 0})
    assert human.render() is None
    assert "What is 2 + 3?" in capsys.readouterr().out
    with pytest.raises(UsageError, match="render_mode"):
        TextEnv(environment, render_mode="rgb_array")
    ansi.close()
    human.close()


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("name", shipped_names())
def test_check_env_passes_on_every_shipped_spec(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Advice for image observations and for spaces made of arrays; text is neither.
        warnings.filterwarnings(
            "ignore", message=".*(not a custom space|spec.*not.*None|render_fps|different from the).*"
        )
        env = gymnasium.make(f"rlenv:{rlenv.load(name).id}")
        check_env(env.unwrapped)
        env.close()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("imports", ["gymnasium, rlenv", "rlenv, gymnasium", "rlenv.gym.envs, gymnasium"])
def test_names_are_registered_whichever_is_imported_first(imports: str) -> None:
    code = f"import {imports}; print('rlenv/arithmetic-v0' in gymnasium.registry)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.slow
def test_shipped_environments_are_registered_with_gymnasium_by_an_import() -> None:
    code = (
        "import gymnasium, rlenv; gymnasium.register_envs(rlenv);"
        "env = gymnasium.make('rlenv/arithmetic-v0', split='test'); print(env.reset(seed=1)[1]['task_index'] >= 0);"
        "venv = gymnasium.make_vec('rlenv/arithmetic-v0', num_envs=3); print(len(venv.reset(seed=1)[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "3"]


def test_the_text_space_is_small_to_pickle_and_quick_to_batch() -> None:
    space = TextSpace(1 << 24, seed=1)
    assert len(pickle.dumps(space)) < 10_000
    assert pickle.loads(pickle.dumps(space)) == space
    batched = batch_space(space, 64)
    assert batched.contains(tuple("x" for _ in range(64)))
    assert all(space.contains(space.sample()) for _ in range(100))
    assert space.contains("héllo \ud800 \x00")
    assert not space.contains(b"bytes")
    assert not TextSpace(3).contains("four")
    assert space.from_jsonable(space.to_jsonable(["a"])) == ["a"]
    assert TextSpace(3) != TextSpace(4)


def test_many_environments_step_at_once_without_autoreset(make_environment: Any) -> None:
    venv = TextVectorEnv(make_environment(), num_envs=3)
    assert venv.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    observations, infos = venv.reset(seed=7, options={"task": 0})
    assert len(observations) == 3
    assert list(infos["task_index"]) == [0, 0, 0]
    observations, rewards, terminated, truncated, infos = venv.step([CALL, "<answer>5</answer>", "<answer>4</answer>"])
    assert rewards.tolist() == [0.0, 1.0, 0.0]
    assert terminated.tolist() == [False, True, True]
    assert not truncated.any()
    observations, rewards, terminated, _, _ = venv.step(["<answer>5</answer>", "ignored", "ignored"])
    assert rewards.tolist() == [1.0, 0.0, 0.0]
    assert terminated.tolist() == [True, True, True]
    observations, _ = venv.reset(options={"reset_mask": np.array([False, True, False]), "task": 1})
    assert "What is 4 + 4?" in observations[1]
    assert venv.trajectory(0).success is True
    with pytest.raises(UsageError, match="has not ended"):
        venv.trajectory(1)
    with pytest.raises(UsageError, match="as many actions"):
        venv.step(["x"])
    with pytest.raises(UsageError, match="reset_mask"):
        venv.reset(options={"reset_mask": np.array([True])})
    venv.close()


def test_observations_and_infos_are_never_reused(make_environment: Any) -> None:
    venv = TextVectorEnv(make_environment(), num_envs=2)
    first, infos = venv.reset(seed=1)
    kept = json.dumps(list(first))
    second, _, _, _, later = venv.step([CALL, CALL])
    assert json.dumps(list(first)) == kept
    assert first is not second
    assert infos is not later
    venv.close()


def test_make_takes_a_path_a_name_and_overrides(tmp_path: Path) -> None:
    env = rlenv.make("arithmetic", split="test", set={"limits.turns": 1})
    env.reset(seed=1)
    *_, truncated, info = env.step('<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call>')
    assert truncated
    assert info["reason"] == "turns"
    env.close()
    with pytest.raises(UsageError, match="did you mean"):
        rlenv.make("arithmetics")
