"""A run whose policy, tools, agents, user and judge were a real model is replayed to the letter once it is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs.events import Reel
from tests.support.sealed import sealed
from tests.vllm_serve.serving import MODEL, Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

SPEC = str(Path(__file__).parent / "asking.yaml")
QUESTION = "Ines has 20 pens and buys 30 more. How many pens does Ines have now?"
ORACLE = [
    {"call": {"ask": {"text": "two and two is four"}}},
    {"call": {"solve": {"question": QUESTION}}},
    {"call": {"solve_raw": {"question": QUESTION}}},
    {"say": "Hello, how can I help?"},
    {"say": "<answer>50</answer>"},
]


def test_a_run_of_a_real_model_is_replayed_to_the_letter_once_its_server_is_gone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(model, tmp_path / "vllm.log") as server:
        monkeypatch.setenv("RLENV_TEST_SERVER", server.base_url)
        asked = ["--policy", "openai", "--base-url", server.base_url, "--model", MODEL, "--max-tokens", "80"]
        told = ["--policy", "oracle", "--set", f"oracle={json.dumps(ORACLE)}"]
        for name, policy in (("asked", [*asked, "--request-timeout", "600"]), ("told", told)):
            argv = ["eval", SPEC, *policy, "-k", "3", "--concurrency", "3", "--max-invalid", "1", "--record", "--json"]
            assert main([*argv, "-o", str(tmp_path / name)]) == 0
    monkeypatch.delenv("RLENV_TEST_SERVER")
    for name, kinds in (("asked", {"chat", "judge"}), ("told", {"chat", "judge", "text"})):
        run = str(tmp_path / name)
        reel = Reel.of(run)
        assert {one.kind for id in reel.ids for one in reel.events(id)} == kinds
        for many in ("1", "8"):
            ran = sealed("replay", run, "--concurrency", many, seconds=600)
            assert (ran.code, ran.opened) == (0, []), ran.out
            assert ran.out == "3 of 3 episodes came out the same, 0 differently\n"
