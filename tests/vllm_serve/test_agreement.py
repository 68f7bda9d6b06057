"""Raw text and chat with vLLM's own tool parser, on the same tasks, greedily: one policy, read twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rlenv.dialects.built_in import broken_message, broken_schemas
from rlenv.endpoints.account import as_wire
from rlenv.episodes.environment import load
from rlenv.messages import Message
from tests.vllm_serve.conftest import SPEC
from tests.vllm_serve.playing import as_template, differences, evaluate
from tests.vllm_serve.serving import Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

_LEAST = 95


def test_both_modes_play_the_same_episodes(server: Server, model: Path, problems: Path, tmp_path: Path) -> None:
    given = ["--set", f"tasks.test.path={problems}", "--set", as_template(model), "--concurrency", "8"]
    played, summary = {}, {}
    for mode in ("text", "tools"):
        played[mode], summary[mode] = evaluate(server, SPEC, tmp_path / mode, "--mode", mode, *given)
    found = differences(played["text"], played["tools"])
    (tmp_path / "differences.json").write_text(
        json.dumps([{name: getattr(one, name) for name in one.__slots__} for one in found], indent=1)
    )
    assert len(played["text"]) - len(found) >= _LEAST, found
    # A text that was read otherwise would be a fault of ours or of the parser's; near ties are neither.
    assert not [one for one in found if one.why == "reading"], found
    assert all(one["calls_mean"] > 0.5 for one in summary.values()), "the model does not call its tool"
    assert not any(one["invalid"] for one in summary.values())
    cut = [turn.was_cut for mode in played for one in played[mode] for turn in one.turns]
    assert not all(cut)


def test_a_prompt_is_the_same_tokens_in_both_modes(server: Server, model: Path, problems: Path) -> None:
    dialect = {"base": "hermes", "chat_template": str(model / "chat_template.jinja")}
    environment = load(SPEC, set={"tasks.test.path": str(problems), "dialect": dialect})
    schemas = [dict(one) for one in broken_schemas(environment.tool_schemas)]

    async def opened(task: int) -> tuple[Message, ...]:
        async with environment.start(task=task) as episode:
            return tuple(episode.messages)

    for task in range(20):
        messages = asyncio.run(opened(task))
        raw = {
            "prompt": environment.prompt_text(messages),
            "add_special_tokens": not environment.prompt_is_whole,
        }
        chat = {"messages": [as_wire(broken_message(one)) for one in messages], "tools": schemas}
        (one, text), (other, said) = (server.post("/tokenize", body) for body in (raw, chat))
        assert (one, other) == (200, 200), (text, said)
        assert text["tokens"] == said["tokens"]
