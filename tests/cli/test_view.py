"""`rlenv view`: which runs it opens, and what it shows in the terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.runs import files
from tests.support.runs import kept, played


@pytest.fixture
def run(tmp_path: Path) -> Path:
    episodes = [played(seed=seed, reward=seed / 4, success=seed > 2, result=f"result {seed}") for seed in range(5)]
    kept(tmp_path / "run", episodes)
    return tmp_path / "run"


def test_a_query_picks_episodes_in_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--where", "success:false seed>0", "--sort=-reward", "--text"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 episodes" in said
    assert said.index("result 2") < said.index("result 1")
    assert "result 3" not in said
    assert main(["view", str(run), "--where", "reward>9", "--text"]) == 1


def test_a_query_that_is_none_is_told_with_its_column(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--where", "seed>0 sucess:false", "--text"]) == 2
    assert "column 8: there is no column 'sucess'; did you mean 'success'?" in capsys.readouterr().err


def test_episodes_are_shown_by_their_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = kept(tmp_path / "run", [played(seed=seed, result=f"result {seed}") for seed in range(3)])
    assert main(["view", str(tmp_path / "run"), ids[2], ids[0], "--text"]) == 0
    said = capsys.readouterr().out
    assert said.index("result 2") < said.index("result 0")
    assert "result 1" not in said
    assert main(["view", str(tmp_path / "run"), "other-7", "--text"]) == 2
    assert "'other-7' is no episode of" in capsys.readouterr().err


def test_lines_of_a_file_have_ids_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(tmp_path / "t.jsonl", [played(result=f"result {number}") for number in range(3)])
    assert main(["view", str(tmp_path / "t.jsonl"), "line-2"]) == 0
    assert "result 1" in capsys.readouterr().out


def test_what_a_terminal_obeys_is_shown_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "run", [played(result="\x1b]0;title\x07 \u202e [link=http://evil.example]x[/link]")])
    assert main(["view", str(tmp_path / "run"), "--text"]) == 0
    said = capsys.readouterr().out
    for shown in ("\\x1b]0;title", "\\u202e", "[link=http://evil.example]x"):
        assert shown in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty", "--read-only"], "there is no run below"),
        (["run", "run", "--text"], "one run at a time"),
        (["run", "--web", "--full"], "are the terminal's"),
        (["run", "--port", "70000"], "--port is 0 to 65535"),
        (["run", "--host", "203.0.113.7"], "cannot listen at 203.0.113.7"),
        (["nowhere"], "there are no recorded trajectories"),
    ],
)
def test_what_cannot_be_opened_is_told(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.parent / "empty").mkdir()
    monkeypatch.chdir(run.parent)
    assert main(["view", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--where", "success:true"], ["run", "--read-only"]])
def test_it_prints_a_link_that_opens_the_run(run: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "rlenv", "view", *arguments, "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=run.parent) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(link, timeout=60) as page:
            assert page.status == 200
            assert "token" not in page.url
            assert page.url.endswith("/r/run/episodes?q=success%3Atrue" if "--where" in arguments else "/r/run")
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
