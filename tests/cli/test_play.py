"""Options of one kind of policy are refused beside another, where they would be read and forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.cli.play import WithPolicy
from rlenv.endpoints import Endpoint
from rlenv.errors import UsageError

_GIVEN = {
    "base_url": ["--base-url", "http://127.0.0.1:9/v1"],
    "policy_model": ["--model", "m"],
    "api_key_env": ["--api-key-env", "KEY"],
    "mode": ["--mode", "tools"],
    "max_tokens": ["--max-tokens", "8"],
    "extra": ["--extra", "n=1"],
    "request_timeout": ["--request-timeout", "120"],
    "retries": ["--retries", "3"],
    "temperature": ["--temperature", "0"],
    "top_p": ["--top-p", "1"],
    "policy_chat_template": ["--chat-template", "chatml"],
}


def test_each_option_is_tried() -> None:
    assert set(_GIVEN) == {one.name for one in WithPolicy.policy_options()}


@pytest.mark.parametrize("name", _GIVEN)
@pytest.mark.parametrize("policy", ["oracle", "random"])
def test_an_option_that_the_policy_does_not_take_is_refused(
    name: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Also where it has its default's value: who gives it thinks that it counts.
    assert main(["eval", "arithmetic", "--policy", policy, "-n", "1", *_GIVEN[name]]) == 2
    error = capsys.readouterr().err
    assert f"{_GIVEN[name][0]} is for --policy" in error
    assert f"--policy {policy} does nothing with it" in error


@pytest.mark.parametrize("command", [["play", "arithmetic"], ["eval", "--bench", "arithmetic"]])
def test_so_it_is_in_every_command_that_takes_a_policy(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--temperature", "1"]) == 2
    assert "--temperature is for --policy openai and hf:MODEL" in capsys.readouterr().err


def test_a_run_that_is_refused_touches_no_folder(tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_text("{}\n")
    given = ["eval", "arithmetic", "--top-p", "1", "-o", str(tmp_path), "--overwrite"]
    assert main(given) == 2
    assert (tmp_path / "trajectories.jsonl").read_text() == "{}\n"


def test_collect_names_the_option_as_it_is_written_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["collect", "arithmetic", "--model", "nowhere", "-o", str(tmp_path / "data")]
    for more, said in (
        (["--policy-model", "m"], "--policy-model is for --policy openai"),
        (["--policy-chat-template", "chatml"], "--policy-chat-template is for --policy hf:MODEL"),
        (["--from", "runs", "--retries", "3"], "leave out --retries"),
        (["--from", "runs", "--mode", "text"], "leave out --mode"),
        *[
            (["--from", "runs", option, "0"], f"leave out {option}")
            for option in ("--temperature", "--top-p", "--retries", "--max-tokens")
        ],
    ):
        assert main([*given, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_misspelled_policy_is_the_fault_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "arithmetic", "--policy", "opneai", "--temperature", "1"]) == 2
    assert "no policy 'opneai'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_of_a_model_without_the_adapter_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['rlenv_verl.hf'] = None; from rlenv.cli.main import main; "
        "sys.exit(main(['eval', 'arithmetic', '--policy', 'hf:nowhere', '-n', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--policy hf:MODEL (rlenv_verl.hf is missing) needs an optional part of rlenv;" in done.stderr


def test_credentials_in_the_address_beside_a_key_are_refused_by_the_options_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HTTP has one Authorization; the library that sends requests ends in a ValueError."""
    monkeypatch.setenv("A_KEY", "sk-of-somebody")
    command = ["eval", "arithmetic", "--policy", "openai", "--base-url", "http://u:secret@127.0.0.1:9/v1"]
    out = tmp_path / "run"
    assert main([*command, "--model", "m", "--api-key-env", "A_KEY", "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert "--base-url: the address holds a user and a password" in said
    assert "secret" not in said
    assert not out.exists()
    with pytest.raises(UsageError, match="Authorization"):
        Endpoint(name="w", base_url="http://u:p@h/v1", model="m", headers={"authorization": "Bearer k"})
