"""What the server does where it is not told, and that the fake of `rlenv.testing` does the same."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.endpoints import Client, Endpoint
from rlenv.errors import EndpointError
from rlenv.language.spec import SamplingSpec
from rlenv.testing.endpoint import FakeEndpoint
from tests.vllm_serve.conftest import SPEC
from tests.vllm_serve.playing import as_template, evaluate
from tests.vllm_serve.serving import MODEL, WINDOW, Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

GREEDY = SamplingSpec(temperature=0.0, extra={"ignore_eos": True})
LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
ON = {"temperature": 0, "ignore_eos": True}


def ask(server: Server, prompt: str, **asked: Any) -> Any:
    async def main() -> Any:
        client = Client(Endpoint(name="writer", base_url=server.base_url, model=MODEL, timeout_s=600, sampling=GREEDY))
        try:
            return await client.raw_text.complete(prompt, **{"max_tokens": 40, **asked})
        finally:
            await client.aclose()

    return asyncio.run(main())


def token_id(server: Server, mark: str) -> int:
    status, answer = server.post("/tokenize", {"prompt": mark, "add_special_tokens": False})
    assert status == 200
    (found,) = answer["tokens"]
    return int(found)


def fake(body: Mapping[str, Any], says: str, **given: Any) -> dict[str, Any]:
    """What the fake answers to a request of raw text, its status under `status`."""

    async def main() -> dict[str, Any]:
        async with FakeEndpoint([says], **given) as server:
            data = json.dumps({"model": MODEL, **body}).encode()
            request = urllib.request.Request(
                f"{server.base_url}/completions", data, {"Content-Type": "application/json"}
            )

            def send() -> dict[str, Any]:
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return {"status": answer.status, **json.load(answer)}
                except urllib.error.HTTPError as error:
                    return {"status": error.code}

            return await asyncio.to_thread(send)

    return asyncio.run(main())


def test_without_a_limit_both_write_sixteen_tokens(server: Server) -> None:
    status, real = server.post("/v1/completions", {"prompt": "Once upon a time", **ON})
    assert status == 200
    made = fake({"prompt": "Once upon a time"}, LONG)
    for answer in (real, made):
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"
    assert ask(server, "Once upon a time", max_tokens=40).usage.completion_tokens == 40


def test_both_leave_control_tokens_out_unless_they_are_asked_for(server: Server) -> None:
    # After a finished turn a model in this format begins another one: with a control token.
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye"
    allowed = [token_id(server, mark) for mark in ("<|im_start|>", "<|im_end|>")]
    asked = {"prompt": prompt, "max_tokens": 30, "allowed_token_ids": allowed, **ON}
    texts = [server.post("/v1/completions", asked | more)[1]["choices"][0]["text"] for more in _SPECIAL]
    made = [fake(asked | more, "<|im_start|><|im_end|> word")["choices"][0]["text"] for more in _SPECIAL]
    assert "<|im_" not in texts[0] + made[0]
    assert "<|im_" in texts[1]
    assert "<|im_" in made[1]
    assert not texts[0].strip()


_SPECIAL: tuple[dict[str, Any], ...] = ({}, {"skip_special_tokens": False})


def test_both_say_at_which_text_they_stopped_and_leave_it_out(server: Server) -> None:
    asked: dict[str, Any] = {"prompt": "1 2 3 4 5 6 7 8 9 10 11 12 13", "max_tokens": 40, **ON}
    status, whole = server.post("/v1/completions", asked)
    assert status == 200
    text = whole["choices"][0]["text"]
    stop = text[len(text) // 2 :][:4]  # the model writes this in any case
    before = text.partition(stop)[0]
    status, real = server.post("/v1/completions", {**asked, "stop": ["never", stop]})
    assert status == 200
    made = fake({**asked, "stop": ["never", stop]}, text)
    for answer in (real, made):
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", stop, before)
    assert ask(server, asked["prompt"], stops=("never", stop)).message.content == before + stop


def test_a_turn_that_ends_by_itself_names_no_stop_text_and_holds_no_end_token(server: Server) -> None:
    end = {"prompt": "Hello", "max_tokens": 5, "allowed_token_ids": [token_id(server, "<|im_end|>")], "stop": ["</a>"]}
    status, answer = server.post("/v1/completions", {**end, "skip_special_tokens": False})
    assert status == 200
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", None, "")
    # Why rlenv does not ask for the stop text itself: the end token would stand there as well.
    asked = {**end, "skip_special_tokens": False, "include_stop_str_in_output": True}
    assert server.post("/v1/completions", asked)[1]["choices"][0]["text"] == "<|im_end|>"


def test_a_prompt_and_a_limit_beyond_the_window_are_refused_by_both(server: Server) -> None:
    asked = {"prompt": "word " * 20, "max_tokens": WINDOW}
    status, answer = server.post("/v1/completions", asked)
    assert status == 400
    assert f"maximum context length is {WINDOW}" in json.dumps(answer)
    assert fake(asked, LONG, context=WINDOW)["status"] == 400


def test_a_limit_of_rlenvs_takes_what_the_window_has_left(server: Server) -> None:
    few = server.post("/tokenize", {"prompt": "word " * 100})[1]["count"]
    prompt = "word " * (100 * (WINDOW - 100) // few)
    count = server.post("/tokenize", {"prompt": prompt})[1]["count"]
    found = ask(server, prompt, max_tokens=4096)
    assert found.usage.prompt_tokens == count
    assert found.usage.completion_tokens == WINDOW - count
    assert found.finish_reason == "length"
    with pytest.raises(EndpointError, match=f"counts {WINDOW:,} tokens of context, and ") as failed:
        ask(server, "word " * (WINDOW + 50), max_tokens=4096)
    assert failed.value.is_full


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_a_prompt_that_is_too_long_is_refused_and_no_number(
    server: Server, model: Path, tmp_path: Path, mode: str
) -> None:
    rows = tmp_path / "long.jsonl"
    long = {"question": "word " * WINDOW, "expression": "1+1", "answer": 2}
    short = {"question": "Ines has 20 pens and buys 30 more. How many pens does Ines have now?", "answer": 50}
    rows.write_text("".join(json.dumps({"expression": "20+30", **row}) + "\n" for row in (long, short)))
    given = ["--set", f"tasks.test.path={rows}", "--set", as_template(model), "--max-invalid", "0.5"]
    played, summary = evaluate(server, SPEC, tmp_path / "out", "--mode", mode, *given)
    assert [one.reward.total is None for one in played] == [True, False]
    assert summary["failures"] == {"refused": 1}
    assert played[0].failure is not None
    assert f"counts {WINDOW:,} tokens of context, and " in played[0].failure.message


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_an_episode_that_fills_the_window_is_scored(server: Server, model: Path, tmp_path: Path, mode: str) -> None:
    rows = tmp_path / "long.jsonl"
    row = {"question": "word " * 400, "expression": "1+1", "answer": 2}
    rows.write_text(json.dumps(row) + "\n")
    # Nothing but the window ends the episode: each action is written to its limit (before so many tokens no server
    # looks for an end), calls as many tools as it likes, and no tag is an answer.
    own = [
        f"tasks.test.path={rows}",
        as_template(model),
        "user={kind: scripted, replies: [Go on., Go on., Go on., Go on., Go on., Go on.]}",
        "answer.tag=never",
        "limits={turns: 12, tool_calls: 1000, calls_per_turn: 1000, invalid_actions: 1000, episode_s: 600}",
    ]
    given = [word for one in own for word in ("--set", one)]
    given += ["--extra", "min_tokens=150", "--max-tokens", "150"]
    played, summary = evaluate(server, SPEC, tmp_path / "out", "--mode", mode, *given)
    assert summary["invalid"] == 0
    *whole, last = played[0].turns
    assert whole
    assert (last.action, last.finish_reason) == ("", "length"), played[0].reason
    assert played[0].failure is None
    assert played[0].success is False
