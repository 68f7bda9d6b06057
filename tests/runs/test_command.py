"""A command line is kept without its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs.command import kept_command, kept_settings
from rlenv.runs.folder import Kind, RunInfo, read_info, write_info


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--policy", "--policy"),
        ("--temperature=0.5", "--temperature=0.5"),
        ("limits.turns=4", "limits.turns=4"),
        ("stop=null", "stop=null"),
        ("tasks.test.path=rows.jsonl", "tasks.test.path=rows.jsonl"),
        ('stop=["a", "b"]', 'stop=["a", "b"]'),
        ("http://user:SECRET@host/v1?key=SECRET", "http://host/v1"),
        ("--base-url=http://user:SECRET@host/v1?key=SECRET", "--base-url=http://host/v1"),
        ("endpoints.w.base_url=http://u:SECRET@h/v1?key=SECRET", "endpoints.w.base_url=http://h/v1"),
        ("endpoints.w.api_key=SECRET", "endpoints.w.api_key=(not shown)"),
        ("--set=endpoints.w.api_key=SECRET", "--set=endpoints.w.api_key=(not shown)"),
        ("endpoints.w.api_key=${env:KEY}", "endpoints.w.api_key=${env:KEY}"),
        ("endpoints.w.headers.X-Auth=SECRET", "endpoints.w.headers.X-Auth=(not shown)"),
        ('metadata={"api_key": "SECRET", "a": 1}', 'metadata={"api_key":"(not shown)","a":1}'),
        ("endpoints.w={api_key: SECRET, model: m}", 'endpoints.w={"api_key":"(not shown)","model":"m"}'),
        ("+actor.env.HF_TOKEN=SECRET", "+actor.env.HF_TOKEN=(not shown)"),
    ],
)
def test_a_word_of_a_command_line_shows_no_secret(word: str, shown: str) -> None:
    assert kept_command([word]) == (shown,)


def test_what_cannot_be_set_again_is_not_kept_as_a_setting() -> None:
    assert kept_settings({"endpoints.w.api_key": "S", "limits.turns": "4"}) == {"limits.turns": "4"}


def test_no_face_of_a_run_shows_a_secret_of_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["eval", "arithmetic", "-n", "1", "-o", str(run), "--json", "--policy", "openai", "--model", "m"]
    words += ["--base-url", "http://u:S3CRET@127.0.0.1:9/v1?key=S3CRET", "--extra", 'metadata={"api_key": "S3CRET"}']
    words += ["--retries", "0", "--api-key-env", "NONE_SUCH"]
    monkeypatch.setattr("sys.argv", ["rlenv", *words])
    main(words)
    main(["runs", "report", str(run), "-o", str(tmp_path / "r.html")])
    out = capsys.readouterr()
    for text in (out.out, out.err, *(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())):
        assert "S3CRET" not in text


@pytest.mark.parametrize("kind", ["eval", "train", "sft"])
def test_whoever_writes_a_run_json_its_command_shows_no_secret(tmp_path: Path, kind: Kind) -> None:
    write_info(tmp_path, RunInfo(kind, command=("rlenv", kind, "--set", "endpoints.w.api_key=S3CRET")))
    info = read_info(tmp_path)
    assert info is not None
    assert info.command == ("rlenv", kind, "--set", "endpoints.w.api_key=(not shown)")
