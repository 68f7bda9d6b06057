"""What is given up for taking too long is a failed try of whoever asked, wherever the limit stands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from tests.support.beside import served

SPEC = """
rlenv: 1
name: given-up
tasks: {test: {rows: [{q: a}, {q: b}]}}
prompt: {user: "Task {{ task.q }}"}
endpoints:
  good: {base_url: "ADDRESS", model: good, retries: 0}
  mute: {base_url: "ADDRESS", model: mute, retries: 0}
tools:
  help: {kind: model, endpoint: ENDPOINT_OF_TOOL, parameters: {text: string}, prompt: "{{ args.text }}", timeout_s: 1}
limits: {LIMITS}
rewards:
  good: {kind: judge, JUDGE, prompt: "Is it good? {{ message }}", cache: false}
"""
GOOD = {"prompt_tokens": 100, "completion_tokens": 10}
CASES: dict[str, tuple[dict[str, str], dict[str, tuple[int, int]]]] = {
    "a tool's own limit": ({"ENDPOINT_OF_TOOL": "mute"}, {"tool help": (2, 2)}),
    "a judge's own limit": (
        {"JUDGE": "judges: [{endpoint: good}, {endpoint: mute, timeout_s: 4}], quorum: 1"},
        {"judge good": (6, 4)},  # asked about harmless characters too
    ),
    "the limit of rewards": ({"JUDGE": "endpoint: mute", "LIMITS": "reward_s: 5"}, {"judge good": (4, 4)}),
    "the limit of episodes": ({"ENDPOINT_OF_TOOL": "mute", "LIMITS": "episode_s: 0.5"}, {"tool help": (2, 2)}),
    "a panel without a quorum": (
        {"JUDGE": "judges: [{endpoint: mute}, {endpoint: good}, {endpoint: mute, timeout_s: 4}]"},
        {"judge good": (6, 4)},
    ),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", CASES)
def test_what_is_given_up_is_a_failed_try(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: Counter[str] = Counter()

    async def answer(body: Mapping[str, Any]) -> Any:
        made[body["model"]] += 1
        if body["model"] == "mute":
            return await never()
        said = "hello" if body["model"] == "policy" else json.dumps({"reasoning": "fine", "score": 5})
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if body["model"] == "policy" and body["messages"][-1]["role"] == "user":
            call = {"name": "help", "arguments": '{"text": "x"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]}
        return Reply(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": GOOD})

    given, expected = CASES[name]
    text = SPEC
    for key, value in {"ENDPOINT_OF_TOOL": "good", "LIMITS": "turns: 3", "JUDGE": "endpoint: good", **given}.items():
        text = text.replace(key, value)
    with served(FakeEndpoint(answer)) as server:
        (tmp_path / "spec.yaml").write_text(text.replace("ADDRESS", server.base_url))
        asked = ["--policy", "openai", "--base-url", server.base_url, "--model", "policy", "--max-invalid", "1"]
        assert main(["eval", str(tmp_path / "spec.yaml"), *asked, "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    found: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for one in usage["roles"]:
        found[one["role"]] += one["requests"]
        failed[one["role"]] += one["failed"]
        assert (one["prompt_tokens"] or 0) == 100 * (one["requests"] - one["failed"])
    # A harmless question is given up within a tenth of a second, which may be before the server has it.
    assert made.total() <= usage["requests"] <= made.total() + made["mute"]
    assert {role: (found[role], failed[role]) for role in expected} == expected
