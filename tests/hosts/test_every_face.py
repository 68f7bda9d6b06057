"""An oracle's episode earns the same through every door of rlenv, and a judge that is down is a number through none."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.endpoints import Client, Endpoint
from rlenv.hosts.gateway import Gateway
from rlenv.hosts.mcp_server import application
from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens.bound import cut_of, said_of, thinking_of
from rlenv.tokens.rows import TokenRows
from tests.hosts.serving import serving
from tests.support.asked import Speaker, asking, plays, written
from tests.support.hosts import SPEC
from tests.support.token_episodes import SITUATIONS, WORDS, Sampler

pytest.importorskip("tokenizers")
ORACLE = """
oracle:
  - call: [{calculate: {expression: "1**2"}}, {calculate: {expression: "2**2"}}, {calculate: {expression: "3**2"}}]
  - call: {calculate: {expression: "14 + 4**2"}}
  - say: "<answer>{{ results[-1] }}</answer>"
"""
DOWN = """
endpoints: {gone: {base_url: "http://127.0.0.1:9/v1", model: m, retries: 0, timeout_s: 2}}
"""
JUDGED = '  judged: {kind: judge, endpoint: gone, prompt: "Is this polite? {{ answer }}", required: true}\n'
SPECS = {
    "oracle": SPEC + ORACLE,
    "judge down": SPEC.replace("success:", JUDGED + "success:") + ORACLE + DOWN,
}
Lines = Sequence[Message]
Face = Callable[[rlenv.Environment, Lines], Awaitable[dict[str, Any]]]


async def lines_of(environment: rlenv.Environment) -> Lines:
    """What the oracle says, as messages with calls."""
    played = await rlenv.play(environment, environment.oracle(), rlenv.Job("train", 0, 0))
    return [
        Message("assistant", turn.parsed.content, tuple(one for one in turn.parsed.calls if isinstance(one, ToolCall)))
        for turn in played.turns
    ]


def encoder_of(environment: rlenv.Environment) -> rlenv.TokenEncoder:
    return rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)


async def by_episode(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    async with environment.start(task=0) as episode:
        for line in lines:
            await episode.step(line)
    return episode.trajectory.outcome()


async def by_session(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    session = rlenv.Session(environment)
    await session.reset(task=0)
    for line in (*lines, lines[-1]):
        await session.step(line)
    await session.aclose()
    return session.trajectory.outcome()


async def by_tokens(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    encoder = encoder_of(environment)
    async with rlenv.TokenEpisode(environment, encoder, task=0) as played:
        for line in lines:
            await played.step([*encoder.encode_text(written(line)), encoder.stop_id])
    return played.trajectory.outcome()


async def by_tools(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    async with rlenv.ToolSession(environment, task=0) as session:
        for line in lines:
            calls = [one for one in line.tool_calls if isinstance(one, ToolCall)]
            await asyncio.gather(*(session.call(one.name, one.arguments) for one in calls))
        return (await session.finish(list(lines))).outcome()


async def by_gymnasium(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    def play() -> dict[str, Any]:
        env = rlenv.make(environment.loaded.path)
        try:
            env.reset(options={"task": 0})
            total, info = 0.0, dict[str, Any]()
            for line in lines:
                _, reward, terminated, truncated, info = env.step(written(line))
                total += float(reward)
            assert truncated if math.isnan(total) else terminated
            failure = info["failure"]
            told = {name: info[name] for name in ("success", "reason")}
            return {"total": None if math.isnan(total) else total, "failure": failure, "terms": info["rewards"], **told}
        finally:
            env.close()

    return await asyncio.to_thread(play)


async def by_endpoint(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    async with FakeEndpoint(Speaker(lines)) as model:
        played = await rlenv.play_endpoint(environment, base_url=model.base_url, model="m", task=0)
    return played.outcome()


async def by_mcp(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    async with asking(application(rlenv.load(environment.loaded.path))) as ask:
        _, seat = await ask("POST", "/episodes", {"task": 0})
        transcript = []
        for at, line in enumerate(lines):
            told = {"role": "assistant", "content": line.content, "tool_calls": []}
            for call in line.tool_calls:
                assert isinstance(call, ToolCall)
                function = {"name": call.name, "arguments": dict(call.arguments)}
                await ask.rpc(seat["mcp_url"], "tools/call", function)
                said = {**function, "arguments": json.dumps(function["arguments"])}
                told["tool_calls"] += [{"id": f"{at}", "type": "function", "function": said}]  # type: ignore[operator]
            transcript.append(told)
        _, ended = await ask("POST", f"/episodes/{seat['episode']}/finish", {"transcript": transcript})
    return dict(ended)


async def by_gateway(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    async with FakeEndpoint(Speaker(lines, encoder_of(environment))) as model:
        client = Client(Endpoint(name="", base_url=model.base_url, model="m", retries=0))
        async with asking(Gateway(rlenv.load(environment.loaded.path), client).application()) as ask:
            _, seat = await ask("POST", "/episodes", {"task": 0})
            await plays(ask, seat)
            _, ended = await ask("POST", f"/episodes/{seat['episode']}/finish", {})
    return dict(ended)


async def by_server(environment: rlenv.Environment, lines: Lines) -> dict[str, Any]:
    def play() -> dict[str, Any]:
        with serving(rlenv.load(environment.loaded.path)) as served:

            async def main() -> dict[str, Any]:
                async with rlenv.RemoteEnvironment(served.url, patience_s=20.0) as remote:
                    return await by_episode(remote, lines)

            return asyncio.run(main())

    return await asyncio.to_thread(play)


FACES: Mapping[str, Face] = {
    "serve": by_server,
    "Session": by_session,
    "TokenEpisode": by_tokens,
    "ToolSession": by_tools,
    "Gymnasium": by_gymnasium,
    "play_endpoint": by_endpoint,
    "MCP": by_mcp,
    "gateway": by_gateway,
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("situation", SPECS)
def test_every_face_tells_the_same_end(face: str, situation: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPECS[situation], encoding="utf-8")

    async def main() -> tuple[dict[str, Any], dict[str, Any]]:
        async with rlenv.load(path) as environment:
            lines = await lines_of(environment)
            return await by_episode(environment, lines), await FACES[face](environment, lines)

    wanted, ended = asyncio.run(main())
    assert (ended["total"], ended["success"], ended["reason"]) == (
        wanted["total"] if wanted["total"] is None else pytest.approx(wanted["total"]),
        wanted["success"],
        wanted["reason"],
    )
    if situation == "oracle":
        assert wanted["total"] == pytest.approx(1.1)
        assert ended["failure"] is None
        assert {name: ended["terms"][name] for name in wanted["terms"]} == pytest.approx(wanted["terms"])
    else:
        assert (ended["total"], ended["success"]) == (None, None)
        told = ended["failure"]
        assert (told if isinstance(told, str) else told["reason"]) == "reward"


def test_the_gateways_row_is_that_of_a_token_episode(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPECS["oracle"], encoding="utf-8")

    async def main() -> tuple[Any, list[Any]]:
        async with rlenv.load(path) as environment:
            lines, encoder = await lines_of(environment), encoder_of(environment)
            async with rlenv.TokenEpisode(environment, encoder, task=0) as played:
                for line in lines:
                    await played.step([*encoder.encode_text(written(line)), encoder.stop_id])
            return played.rows[0], (await by_gateway(environment, lines))["rows"]

    row, rows = asyncio.run(main())
    found = [(one["prompt_ids"], one["ids"], one["mask"]) for one in rows]
    assert found == [(row.prompt_ids, row.response_ids, row.mask)]


async def by_hand(environment: rlenv.Environment, sampler: Sampler, turn_tokens: int, most: int) -> TokenRows:
    """The rows of an episode whose loop is written out: what is sampled, what is told, and each limit."""
    encoder = encoder_of(environment)
    episode = environment.start(task=0, cut=cut_of(environment, encoder))
    await episode.open()
    most = min(most, episode.limits.response_tokens or most)
    rows = encoder.start_rows(episode.messages, tools=episode.tool_schemas, max_response_tokens=most)
    stops: dict[str, Any] = {"stop_token_ids": encoder.stop_token_ids, "stop": environment.stops}
    while not episode.is_ended:
        room = min(rows.remaining or 0, turn_tokens)
        ids, logprobs = await sampler(rows.context_ids, max_tokens=room, **stops)
        text = rows.add_sampled(ids, logprobs)
        is_ended = ids[-1] in encoder.end_ids or text.endswith(environment.stops or "\0")
        step = await episode.step(rlenv.Sampled(text, "" if is_ended or len(ids) < room else "length", tuple(ids)))
        if step.is_last:
            break
        turn = episode.turns[-1]
        said = said_of(turn.action, turn.parsed, thinking=thinking_of(environment))
        if not rows.add_observation(step.observation, said=said) or not rows.remaining:
            await episode.truncate("response_tokens")
    await episode.aclose()
    return rows


@pytest.mark.parametrize("situation", SITUATIONS)
def test_ids_and_masks_are_one_in_all_situations_of_the_token_page(situation: str, tmp_path: Path) -> None:
    spec, texts, limits, reason = SITUATIONS[situation]
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "spec.yaml").write_text(spec)

    async def main() -> tuple[Any, Any]:
        async with rlenv.load(tmp_path / "spec.yaml") as environment:
            sampler, given = Sampler(texts), {"max_response_tokens": 8192, **limits}
            async with rlenv.TokenEpisode(environment, encoder_of(environment), task=0, **given) as played:
                while not played.is_ended:
                    ids, logprobs = await sampler(played.context_ids, **played.sampling)
                    await played.step(ids, logprobs)
            assert played.trajectory.reason == reason
            turn_tokens = given.get("turn_tokens", 8192)
            return played.rows, (
                await by_hand(environment, Sampler(texts), turn_tokens, given["max_response_tokens"])
            ).rows

    (row,), (other,) = asyncio.run(main())
    assert (row.prompt_ids, row.response_ids, row.mask) == (other.prompt_ids, other.response_ids, other.mask)
    assert row.logprobs == other.logprobs
