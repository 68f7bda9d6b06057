"""Secrets by name: the value goes where it is sent and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.episodes.compile import missing_variable
from rlenv.episodes.environment import load
from rlenv.errors import MissingVariable, SpecError, UsageError
from rlenv.language.loader import load_spec
from rlenv.runs import files as record
from rlenv.secrets import leave_open, logger, names_in, redact, redact_value, resolve, resolve_value

KEY = 'sk-live "4f9/+c2'
"""Characters that JSON, URLs and base64 each write in another way."""

LEAKY = '''
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.secrets import resolve

KEY = resolve("${env:RLENV_TEST_KEY}")


def echo() -> dict:
    """Shows all that it knows."""
    return {"headers": {"Authorization": "Bearer " + KEY}, KEY: [KEY]}


def refuse() -> str:
    """Fails in a declared way."""
    raise ToolFailed("401 for " + KEY)


def crash() -> str:
    """Fails."""
    raise RuntimeError("no server takes " + KEY)


def outage() -> str:
    """Loses its backend."""
    raise EpisodeError("lost https://host/?key=" + KEY)


def broken(context) -> float:
    raise ValueError(KEY)
'''

SPEC = """
rlenv: 1
name: leaky
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "{{ task.question }}"}
tools:
  echo: {kind: python, function: "tools.py:echo"}
  refuse: {kind: python, function: "tools.py:refuse"}
  crash: {kind: python, function: "tools.py:crash"}
  outage: {kind: python, function: "tools.py:outage"}
rewards:
  answered: {kind: rule, rule: answered}
  broken: {kind: rule, function: "tools.py:broken", required: false}
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLENV_TEST_KEY", KEY)
    return KEY


def call(name: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {}})}\n</tool_call>"


def assert_clean(text: str) -> None:
    for form in (KEY, json.dumps(KEY)[1:-1], quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode()):
        assert form not in text


def test_a_reference_is_replaced_by_the_variables_value() -> None:
    assert resolve("Bearer ${env:RLENV_TEST_KEY}!") == f"Bearer {KEY}!"
    assert resolve("$RLENV_TEST_KEY and ${RLENV_TEST_KEY}") == "$RLENV_TEST_KEY and ${RLENV_TEST_KEY}"
    assert resolve_value({"a": ["${env:RLENV_TEST_KEY}", 3]}) == {"a": [KEY, 3]}
    assert names_in("${env:A} ${env:B} ${env:A}") == ("A", "B")


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_variable_that_is_not_set_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("RLENV_TEST_KEY")
    if value is not None:
        monkeypatch.setenv("RLENV_TEST_KEY", value)
    with pytest.raises(MissingVariable, match=r"RLENV_TEST_KEY is (not set|empty); export RLENV_TEST_KEY="):
        resolve("${env:RLENV_TEST_KEY}")
    with leave_open() as missing:
        assert resolve("a ${env:RLENV_TEST_KEY}") == "a ${env:RLENV_TEST_KEY}"
    assert list(missing) == ["RLENV_TEST_KEY"]


def test_a_reference_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="names no variable"):
        resolve("${env:}")


def test_a_value_is_found_however_it_is_written() -> None:
    resolve("${env:RLENV_TEST_KEY}")
    for form in (KEY, json.dumps(KEY), quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode()):
        clean = redact(f"before {form} after")
        assert_clean(clean)
        assert "${env:RLENV_TEST_KEY}" in clean
    assert redact_value({KEY: [1, ("a", KEY)]}) == {"${env:RLENV_TEST_KEY}": [1, ("a", "${env:RLENV_TEST_KEY}")]}


def test_what_holds_no_secret_is_left_as_it_is() -> None:
    resolve("${env:RLENV_TEST_KEY}")
    value = {"rows": [["a", 1], ["b", None]], "more": ("c",)}
    assert redact_value(value) is value
    assert redact("nothing here") == "nothing here"


def test_a_short_value_is_found_as_a_word_and_a_port_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_SHORT", "zqx7")
    monkeypatch.setenv("RLENV_TEST_PORT", "8471")
    resolve("${env:RLENV_TEST_SHORT}:${env:RLENV_TEST_PORT}")
    assert redact("zqx7, azqx7b, 8471") == "${env:RLENV_TEST_SHORT}, azqx7b, 8471"


@pytest.mark.parametrize("name", ["echo", "refuse", "crash", "outage"])
def test_a_secret_never_reaches_an_observation_a_trajectory_file_or_the_log(
    name: str, make_environment: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = make_environment(SPEC, tools=LEAKY)

    async def main() -> Any:
        async with environment.start() as episode:
            step = await episode.step(call(name))
            if not step.is_last:
                await episode.step("<answer>x</answer>")
            return episode.trajectory

    with caplog.at_level(logging.DEBUG):
        trajectory = asyncio.run(main())
    record.write(tmp_path / "played.jsonl", [trajectory])
    (read,) = record.read(tmp_path / "played.jsonl")
    assert read == trajectory
    assert_clean((tmp_path / "played.jsonl").read_text(encoding="utf-8"))
    assert_clean(repr(trajectory))
    assert "${env:RLENV_TEST_KEY}" in repr(trajectory)
    assert_clean(caplog.text)
    if name == "crash":
        assert "no server takes ${env:RLENV_TEST_KEY}" in caplog.text


def test_a_secret_never_reaches_an_error_of_the_command_line(
    make_environment: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = make_environment(SPEC, tools=LEAKY).loaded.path
    assert main(["tools", str(file), "--call", "outage", "{}"]) == 2
    shown = capsys.readouterr().err
    assert "lost https://host/?key=${env:RLENV_TEST_KEY}" in shown
    assert_clean(shown)


def test_a_record_of_the_log_is_bounded_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("x" * 5_000_000)
    except ValueError as error:
        logger("rlenv.test").warning("a tool said %s", "y" * 5_000_000, exc_info=error)
    assert len(caplog.text) < 100_000
    assert "characters left out" in caplog.messages[0]


def test_a_message_in_the_log_is_redacted_with_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    resolve("${env:RLENV_TEST_KEY}")
    logger("rlenv.test_secrets").warning("sent %s", KEY)
    assert caplog.messages == ["sent ${env:RLENV_TEST_KEY}"]


def test_a_missing_variable_is_a_fault_at_the_text_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("name: leaky", 'name: leaky\nvars: {a: [{b: "x ${env:GONE}"}]}'), encoding="utf-8")
    document = load_spec(file).document
    error = MissingVariable("the environment variable GONE is not set", name="GONE", hint="export GONE=…")
    fault = missing_variable(document, "vars", error)
    assert (fault.path, fault.line, fault.column) == ("vars.a.0.b", 4, 19)
    assert fault.hint == "export GONE=…"


def test_a_spec_is_checked_where_its_secrets_are_not(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    endpoints = 'endpoints: {w: {base_url: "${env:RLENV_TEST_URL}/v1", model: a, api_key: "${env:RLENV_TEST_GONE}"}}'
    file.write_text(SPEC.replace("name: leaky", f"name: leaky\n{endpoints}"), encoding="utf-8")
    (tmp_path / "tools.py").write_text(LEAKY, encoding="utf-8")
    report = validate([file])
    assert report.faults == ()
    missing = [note for note in report.not_checked if "environment variable" in note]
    assert [note.rpartition("variable ")[2] for note in missing] == [
        "RLENV_TEST_URL is not set",
        "RLENV_TEST_GONE is not set",
    ]
    with pytest.raises(SpecError) as failed:
        load(file)
    (fault,) = failed.value.faults
    assert (fault.path, fault.line) == ("endpoints.w.base_url", 4)
    assert "RLENV_TEST_URL is not set" in fault.message


def test_the_digest_does_not_depend_on_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("name: leaky", 'name: leaky\nvars: {a: "${env:RLENV_TEST_KEY}"}'), encoding="utf-8")
    before = load_spec(file)
    monkeypatch.setenv("RLENV_TEST_KEY", "another-value")
    assert load_spec(file).digest == before.digest
    assert_clean(json.dumps(before.document.data))
