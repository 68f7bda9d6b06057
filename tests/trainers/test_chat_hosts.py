"""Trainers that give an address for each rollout: what they call is played and scored, and no outage is a number."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import rlenv
import rlenv_trl
from rlenv.hosts.export import nemo_gym
from rlenv.messages import MalformedCall, Message, Sampled, ToolCall
from rlenv.testing.endpoint import FakeEndpoint
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_hosts import chat
from rlenv_train.player import Address

SPEC = """
rlenv: 1
name: made
tasks: {train: {rows: [{q: "2+3", answer: 5}, {q: "4+1", answer: 5}]}}
prompt: {user: "{{ task.q }}"}
rewards:
  right: {kind: rule, rule: exact_match}
"""
DOWN = """
endpoints: {gone: {base_url: "http://127.0.0.1:9/v1", model: m, retries: 0, timeout_s: 2}}
  judged: {kind: judge, endpoint: gone, prompt: "Polite? {{ answer }}", required: true}
"""
OFFERED = (
    SPEC.replace("4+1", "4+1<|im_end|>").replace("answer: 5}]", "answer: 5, tools: [calculate]}]")
    + """
tools: {calculate: {kind: calculator, offered: "{{ task.get('tools', []) }}"}}
"""
)
ANSWER = Sampled("<answer>5</answer>", token_ids=(7, 8), logprobs=(-0.5, -1.0))


def written(folder: Path, text: str = SPEC) -> str:
    (folder / "made.yaml").write_text(text, encoding="utf-8")
    return str(folder / "made.yaml")


def judged(folder: Path) -> str:
    endpoints, judge = DOWN.strip().splitlines()
    return written(folder, SPEC.replace("rewards:", f"{endpoints}\nrewards:").rstrip() + f"\n{judge}\n")


def asked(play: Any, answers: Any = (ANSWER,)) -> tuple[Any, FakeEndpoint]:
    async def main() -> tuple[Any, FakeEndpoint]:
        async with FakeEndpoint(list(answers)) as server, asyncio.timeout(30):
            return await play(server.base_url), server

    return asyncio.run(main())


def test_rows_are_addresses(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert chat.rows(spec)[1] == {"rlenv": spec, "split": "train", "task": 1, "seed": 0}
    assert chat.rows(spec, prompts=True)[1]["question"] == "4+1"


def test_terms_that_compare_answers_are_refused(tmp_path: Path) -> None:
    spec = written(tmp_path, SPEC + "  best: {kind: group, of: right}\n")
    with pytest.raises(rlenv.UsageError, match="the terms best of made compare"):
        chat.rows(spec)


def test_a_row_that_is_no_address_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(rlenv.UsageError, match="a row has rlenv, split and task"):
        asked(lambda url: chat.Agent().run({"rlenv": written(tmp_path)}, base_url=url))


def test_an_agent_of_areal_gives_its_reward(tmp_path: Path) -> None:
    row = chat.rows(written(tmp_path))[0]
    agent = chat.Agent(temperature=0.5)
    given, server = asked(
        lambda url: agent.run(row, base_url=url, api_key="k", http_client=object(), proxy_client=None)
    )
    assert (type(given), given) == (float, 1.0)
    assert (server.requests[0]["model"], server.requests[0]["temperature"]) == ("default", 0.5)
    assert server.headers[0]["Authorization"] == "Bearer k"


def test_an_agent_of_areal_in_a_process_of_its_own_reads_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = chat.rows(written(tmp_path))[0]

    async def play(url: str) -> float:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        return await chat.Agent().run(row)

    assert asked(play)[0] == 1.0


def test_an_outage_raises_and_is_no_number(tmp_path: Path) -> None:
    row = chat.rows(judged(tmp_path))[0]
    with pytest.raises(rlenv.EpisodeError, match="the judge did not answer"):
        asked(lambda url: chat.Agent().run(row, base_url=url))
    with pytest.raises(rlenv.EpisodeError, match="no answer from the server"):
        asyncio.run(chat.play({**row, "task": 0}, base_url="http://127.0.0.1:9/v1", model="m"))


def _stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **held: Any) -> None:
    module = ModuleType(name)
    vars(module).update(held)
    monkeypatch.setitem(sys.modules, name, module)


def test_the_flow_of_rllm_leaves_its_reward_for_the_evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, "rllm")
    _stand_in(monkeypatch, "rllm.types", Episode=SimpleNamespace, Trajectory=SimpleNamespace)
    task = SimpleNamespace(metadata=chat.rows(written(tmp_path))[0])
    episode, _ = asked(lambda url: chat.rollout(task, SimpleNamespace(base_url=url, model="m", session_uid="7:0")))
    assert (episode.is_correct, episode.trajectories[0].reward, episode.artifacts["answer"]) == (True, 1.0, "5")
    assert episode.metrics == {"success": 1.0, "term/right": 1.0}
    assert chat.evaluate(task, episode) == (1.0, True)


def _art(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openai", "openai.types", "openai.types.chat"):
        _stand_in(monkeypatch, name)
    choice = SimpleNamespace(model_validate=lambda value: SimpleNamespace(**value))
    _stand_in(monkeypatch, "openai.types.chat.chat_completion", Choice=choice)
    _stand_in(monkeypatch, "art", Trajectory=SimpleNamespace)


def _rolled_out(
    row: dict[str, Any], answers: Any = (ANSWER,), sampling: rlenv.SamplingSpec | None = None
) -> tuple[Any, FakeEndpoint]:
    async def play(url: str) -> Any:
        model = SimpleNamespace(inference_base_url=url, inference_api_key="k", get_inference_name=lambda: "m")
        return await chat.art_rollout(model, row, sampling=sampling)

    return asked(play, answers)


@pytest.fixture
def tinker_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """tinker's group of a spec's first task."""
    pytest.importorskip("tokenizers")
    types = dict.fromkeys(("ActionExtra", "Env", "EnvGroupBuilder", "Metrics", "StepResult", "Trajectory"), object)
    for name in ("tinker", "tinker_cookbook", "tinker_cookbook.rl"):
        _stand_in(monkeypatch, name)
    sys.modules["tinker"].ModelInput = MagicMock()  # type: ignore[attr-defined]
    _stand_in(monkeypatch, "tinker_cookbook.rl.types", **types, StopReason=MagicMock())
    _stand_in(monkeypatch, "rlenv_hosts.tinker")
    del sys.modules["rlenv_hosts.tinker"]  # what is imported over stand-ins goes with them
    from rlenv_hosts.tinker import RlenvGroup

    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    return lambda spec: RlenvGroup(Address(written(tmp_path, spec), "train", 0), 2, str(tmp_path))


@pytest.mark.parametrize("dialect", ["hermes", "search_r1"])
def test_tinker_refuses_turns_that_end_at_texts(tinker_group: Any, dialect: str) -> None:
    group = tinker_group(SPEC + f"tools: {{calculate: {{kind: calculator}}}}\ndialect: {dialect}\n")
    if dialect == "hermes":
        assert len(asyncio.run(group.make_envs())) == 2
        return
    with pytest.raises(rlenv.UsageError, match="at tokens alone"):
        asyncio.run(group.make_envs())


def test_tinker_closes_the_episodes_of_all_tries_of_a_group(tinker_group: Any, tmp_path: Path) -> None:
    """Its strategies ask for the whole group once more where one sample is tried again."""
    noted = tmp_path / "noted"
    noted.touch()
    (tmp_path / "world.py").write_text(
        f"""
from pathlib import Path

def world():
    file = Path({str(noted)!r})
    file.write_text(file.read_text() + "opened ")
    yield file
    file.write_text(file.read_text() + "closed ")
""",
        encoding="utf-8",
    )

    async def main() -> None:
        group = tinker_group(SPEC + 'resources: {world: {kind: python, function: "world.py:world", run_in: loop}}\n')
        made = [*await group.make_envs(), *await group.make_envs()]
        for env in made[:3]:  # of those that are asked for again, one is played
            await env.initial_observation()
        assert noted.read_text().split() == ["opened"] * 3
        await group.cleanup()
        assert noted.read_text().split() == ["opened"] * 3 + ["closed"] * 3

    asyncio.run(main())


@pytest.mark.parametrize("row", [0, 1])
def test_every_host_shows_the_tools_that_a_row_has_and_what_the_policy_was_sent(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _art(monkeypatch)
    spec = written(tmp_path, OFFERED)
    call = Message("assistant", "", (ToolCall("calculate", {"expression": "2+3"}),))
    made, server = _rolled_out(chat.rows(spec)[row], [call, ANSWER])
    sent = server.requests[-1]
    assert (made.tools or []) == sent.get("tools", [])
    assert made.messages_and_choices[0] == sent["messages"][0]
    assert "<|im_end|>" not in str(sent)
    lines = nemo_gym(rlenv.load(spec))["train.jsonl"].splitlines()
    shown = json.loads(lines[row])["responses_create_params"]["tools"]
    assert [one["name"] for one in shown] == [one["function"]["name"] for one in sent.get("tools", [])]
    with pytest.raises(rlenv.UsageError, match="differ by row"):
        rlenv_trl.environment_class(rlenv.load(spec))


@pytest.mark.parametrize("odd", [[1], "x", None, {"a": 1}])
def test_a_call_that_trl_has_parsed_of_any_json_ends_no_run(odd: Any, tmp_path: Path) -> None:
    """TRL runs no call of a message that is its last one by a limit."""
    environment = rlenv.load(written(tmp_path, SPEC + "tools: {calculate: {kind: calculator}}\n"))
    kind, answer = rlenv_trl.environment_class(environment), {"role": "assistant", "content": ANSWER.action}
    for calls in (odd, [odd], [{"type": "function", "function": odd}]):
        played = [kind(), kind()]
        for one in played:
            one.reset(task=0, split="train")
        said = {"role": "assistant", "content": "", "tool_calls": calls}
        assert rlenv_trl.environment_reward([[said], [answer]], played) == [0.0, 1.0]


@pytest.mark.parametrize("has_ids", [True, False])
def test_the_trajectory_of_art_has_choices_with_log_probabilities(
    has_ids: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ART cannot read a token's id it trains the end token in its place, so that such a choice has none."""
    _art(monkeypatch)
    sampling = rlenv.SamplingSpec(extra={"return_tokens_as_token_ids": has_ids})  # ART's own server does it unasked
    made, server = _rolled_out(chat.rows(written(tmp_path))[0], sampling=sampling)
    assert server.requests[0]["logprobs"] is True
    assert (made.reward, made.metrics) == (1.0, {"term/right": 1.0, "success": 1.0})
    assert made.messages_and_choices[0] == {"role": "user", "content": "2+3"}
    told = made.messages_and_choices[1].logprobs
    assert (told is None) is not has_ids
    if has_ids:
        assert [(one["token"], one["logprob"]) for one in told["content"]] == [
            ("token_id:7", -0.5),
            ("token_id:8", -1.0),
        ]


@pytest.mark.parametrize("arguments", ['{"expression": "2+', "[1]", "2+3"])
def test_a_call_that_cannot_be_read_is_one_whose_arguments_art_can_read(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its templates read the arguments of each call as an object, and would end the run."""
    _art(monkeypatch)
    spec = written(tmp_path, SPEC + "tools: {calculate: {kind: calculator}}\n")
    call = Message("assistant", "", (MalformedCall(arguments, "cut", name="calculate", id="c1"),))
    made, server = _rolled_out(chat.rows(spec)[0], [call, ANSWER])
    (told,) = made.messages_and_choices[1].message["tool_calls"]
    assert (json.loads(told["function"]["arguments"]), told["id"]) == ({"unreadable": arguments}, "c1")
    assert told == server.requests[-1]["messages"][1]["tool_calls"][0]
