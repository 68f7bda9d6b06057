"""Runs whose reward is partly a model's opinion: of a server elsewhere, and of veRL's own reward model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.language.loader import load_spec
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.kept import held_out
from tests.verl_runs.driving import ROOT, SMALL, lines, train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(900)]

AT_ONCE = 3
JUDGE_S = 0.2


def spec_with_judge(folder: Path, base_url: str) -> Path:
    """The arithmetic spec with a judge, beside the files it names."""
    text = (ROOT / "specs" / "arithmetic.yaml").read_text()
    spec = yaml.safe_load(text.replace("data/arithmetic", str(ROOT / "specs" / "data" / "arithmetic")))
    spec["tools"]["clock"]["function"] = f"{ROOT / 'specs' / 'arithmetic_tools.py'}:clock"
    spec["endpoints"] = {
        "writer": {"base_url": base_url, "model": "judge", "concurrency": AT_ONCE, "retries": 0, "timeout_s": 20}
    }
    # Not cached: each episode asks.
    judge = {"kind": "judge", "endpoint": "writer", "prompt": "Clear? {{ message }}", "weight": 0.2, "cache": False}
    spec["rewards"]["clarity"] = judge
    path = folder / "judged.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


@contextmanager
def served() -> Iterator[FakeEndpoint]:
    """A judge that takes its time, in a thread of its own."""

    async def verdict(body: Mapping[str, Any]) -> str:
        await asyncio.sleep(JUDGE_S)
        return json.dumps({"reasoning": "fine", "score": 4})

    server, ready, leave = FakeEndpoint(verdict), threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        leave.set()
        thread.join(30)


def test_a_run_asks_a_judge_on_another_server(tmp_path: Path, policy: Path) -> None:
    out = tmp_path / "run"
    with served() as server:
        spec = spec_with_judge(tmp_path, server.base_url)
        arguments = ["--model", str(policy), "--steps", "2", "-o", str(out), *SMALL, "trainer.test_freq=2"]
        assert train([str(spec), *arguments], tmp_path / "log") == 0, (tmp_path / "log").read_text()[-3000:]
    # 2 steps of 4 x 4 episodes and two validations of 4 tasks in two modes: every one was judged, once.
    assert len(server.requests) == 2 * 16 + 2 * 8
    # One worker plays the episodes, and the spec's limit is that of a process.
    assert server.most_at_once == AT_ONCE
    found = held_out(out)
    assert len(found) == 16
    assert all(one.reward.terms["clarity"].value == 0.75 for one in found)
    assert all(one.reward.terms["clarity"].seconds >= JUDGE_S for one in found)
    steps = [entry["data"] for entry in lines(out / "metrics.jsonl") if "timing_s/step" in entry["data"]]
    assert [step["rlenv/arithmetic/term/clarity"] for step in steps] == [0.75, 0.75]
    assert [step["rlenv/arithmetic/invalid"] for step in steps] == [0.0, 0.0]


def test_a_run_asks_verls_own_reward_model(tmp_path: Path, policy: Path) -> None:
    out = tmp_path / "run"
    # Nothing answers at the spec's own address; who judges is the model that veRL starts on devices of its own.
    spec = spec_with_judge(tmp_path, "http://127.0.0.1:9/v1")
    assert load_spec(spec).spec.endpoints["writer"].model == "judge"
    own = {
        "reward.reward_model.enable": "true",
        "reward.reward_model.enable_resource_pool": "true",
        "reward.reward_model.n_gpus_per_node": "1",
        "reward.reward_model.nnodes": "1",
        "reward.reward_model.model_path": str(policy),
        "reward.reward_model.rollout.name": "scripted_judge",
        "reward.reward_model.rollout.tensor_model_parallel_size": "1",
        "reward.reward_model.rollout.free_cache_engine": "false",
        "actor_rollout_ref.model.external_lib": "scripted_judge",
        "ray_kwargs.ray_init.num_gpus": "2",
        "run.reward_model": "writer",
    }
    arguments = ["--model", str(policy), "--steps", "2", "-o", str(out), *SMALL, "trainer.test_freq=2"]
    arguments += [f"{key}={value}" for key, value in own.items()]
    assert train([str(spec), *arguments], tmp_path / "log") == 0, (out / "verl.log").read_text()[-3000:]
    found = held_out(out)
    assert len(found) == 16
    for one in found:
        term = one.reward.terms["clarity"]
        assert term.value == 0.75, term.error
        assert term.details["judges"][0]["model"] == str(policy)
    steps = [entry["data"] for entry in lines(out / "metrics.jsonl") if "timing_s/step" in entry["data"]]
    assert [step["rlenv/arithmetic/term/clarity"] for step in steps] == [0.75, 0.75]
