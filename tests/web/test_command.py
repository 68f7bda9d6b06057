"""`rlenv view`: which runs it opens, and what it shows in the terminal, with pyarrow and without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.messages import Image, Message
from rlenv.runs import files
from rlenv.runs.recorded import episodes_with_ids
from rlenv.runs.schema import Facts
from rlenv.runs.writer import RunWriter
from rlenv.web.episode import ImageCache, episode_page
from rlenv.web.shelf import Shelf
from tests.support.kept import episode
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


def test_every_message_of_a_prompt_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shots = tuple(Message(role, f"example {number}") for number, role in enumerate(("user", "assistant", "user")))  # type: ignore[arg-type]
    kept(run.parent / "shots", [replace(played(), messages=(*played().messages, *shots))])
    assert main(["view", str(run.parent / "shots"), "--text"]) == 0
    said = capsys.readouterr().out
    assert all(f"example {number}" in said for number in range(3))
    out = run.parent / "report.html"
    assert main(["runs", "report", str(run.parent / "shots"), "-o", str(out)]) == 0
    assert all(f"example {number}" in out.read_text() for number in range(3))


def test_images_are_counted_in_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = Image.of(b"\x89PNG\r\n")
    one = played()
    results = tuple(replace(result, images=(image, image)) for result in one.turns[0].results)
    turns = (replace(one.turns[0], results=results), *one.turns[1:])
    asked = Message("user", "What is this?", images=(image,))
    kept(run.parent / "seen", [replace(one, messages=(*one.messages, asked), turns=turns)])
    assert main(["view", str(run.parent / "seen"), "--text"]) == 0
    said = capsys.readouterr().out
    assert "user · images: 1, which the browser shows" in said
    assert ("images: 2" in said) == bool(results)


@pytest.mark.slow
def test_who_is_not_on_this_machine_needs_a_name(run: Path) -> None:
    command = [sys.executable, "-m", "rlenv", "view", str(run), "--no-open", "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline().startswith("http://127.0.0.1:")
        server.send_signal(signal.SIGINT)
        assert "add --allow-host NAME" in server.stderr.read()


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
        (["run", "--web", "--full"], "--full is for the terminal"),
        (["run", "--text", "--port", "0"], "--port is for the browser"),
        (["run", "--failed", "--no-open"], "--no-open is for the browser"),
        (["run", "a-1", "--where", "seed>0"], "--where picks episodes, and a-1 is named already"),
        (["run", "a-1", "--text", "-n", "3"], "-n picks episodes, and a-1 is named already"),
        (["run", "a-1", "--line", "3"], "--line picks episodes"),
        (["run", "--line", "3", "--sort=-reward"], "--sort is for a list, and --line is one episode"),
        (["run", "-n", "-1"], "-n is at least 1"),
        (["run", "-n", "0"], "-n is at least 1"),
        (["run", "a-1", "a-2"], "the browser begins with one episode"),
        (["empty", "--where", "seed>0"], "--where is of one run, and there are 0"),
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


@pytest.mark.slow
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


CODE = "import sys; sys.modules['pyarrow'] = None; from rlenv.cli.main import main; sys.exit(main(sys.argv[1:]))"


def viewed(*words: str, code: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code, "view", *words], capture_output=True, env=environment)
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [[], ["--wrong"], ["--failed"], ["--line", "2", "--full"], ["-n", "1"], ["--line", "9"]]
)
@pytest.mark.parametrize("kind", ["file", "run"])
def test_the_same_is_shown_without_pyarrow(tmp_path: Path, kind: str, options: list[str]) -> None:
    made = [episode(number, reward=float(number % 2)) for number in range(3)]
    if kind == "file":
        place = tmp_path / "old.jsonl"
        files.write(place, made)
    else:
        place = tmp_path / "run"
        writer = RunWriter(place)
        for one in made:
            writer.append(one, Facts())
    words = [str(place), "--text", *options]
    without = viewed(*words, code=CODE)
    assert without == viewed(*words, code=CODE.replace("sys.modules['pyarrow'] = None; ", ""))
    assert without[0] == {"--failed": 1, "--line": 0 if "2" in options else 2}.get(options[0] if options else "", 0)
    assert "question 0" in without[1] or options


def test_why_a_rule_said_no_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["eval", "arithmetic", "--policy", "random", "-n", "3", "-o", str(run)]) == 0
    (id, *_), (one, *_) = zip(*((id, one) for id, one in episodes_with_ids(run) if one.success is False), strict=True)
    capsys.readouterr()
    assert main(["view", str(run), id, "--text"]) == 0
    assert f"expected {one.task['answer']}, found {one.answer or 'no answer'}" in capsys.readouterr().out
    shelf = Shelf([run])
    told = episode_page(shelf.open("run"), id, ImageCache())
    assert told["expected"] == {"correct": str(one.task["answer"])}


@pytest.mark.slow
def test_a_query_says_what_it_needs(tmp_path: Path) -> None:
    files.write(tmp_path / "old.jsonl", [episode(0)])
    code, said = viewed(str(tmp_path / "old.jsonl"), "--where", "success:true", code=CODE)
    assert code == 2
    assert "rlenv[parquet]" in said


@pytest.mark.slow
def test_a_run_that_is_not_there_is_the_fault_that_is_told(tmp_path: Path) -> None:
    code = "import sys; from rlenv.cli.main import main; sys.exit(main(sys.argv[1:]))"
    writer = RunWriter(tmp_path)
    writer.append(episode(0), Facts())
    writer.close()
    status, said = viewed(str(tmp_path), "nosuchid", "--text", code=code)
    assert (status, "there is no run at nosuchid" in said) == (2, True)
