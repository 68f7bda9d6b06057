"""Commands that a page starts: argument lists only, logs by offset, stopped by signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.web.jobs import Jobs, job_arguments
from tests.support.served import Asks, served

SPEC = """\
rlenv: 1
name: small
tasks:
  train: {function: "rows.py:rows"}
prompt: {user: "{{ task.question }}"}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
oracle:
  - say: "<answer>{{ task.answer }}</answer>"
"""
ROWS = """
import pathlib, signal, time
{}
def rows():
    return [{{"question": "a", "answer": "b"}}]
"""


def author(folder: Path, line: str = "") -> Path:
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "rows.py").write_text(ROWS.format(line), encoding="utf-8")
    return folder / "spec.yaml"


def working(work: Callable[[Jobs], Awaitable[None]], jobs: Jobs | None = None) -> None:
    async def main() -> None:
        made = jobs if jobs is not None else Jobs()
        try:
            async with asyncio.timeout(100):
                await work(made)
        finally:
            await made.aclose()

    asyncio.run(main())


async def until(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)


def test_options_become_arguments_and_nothing_else(tmp_path: Path) -> None:
    options = {"n": 3, "policy": "oracle", "set": ["limits.turns=2", "-x=1"], "json": True, "overwrite": False,
               "temperature": 0, "split": None}  # fmt: skip
    argv, written = job_arguments("eval", "a.yaml", options)
    assert argv == ["eval", "a.yaml", "-n3", "--policy=oracle", "--set=limits.turns=2", "--set=-x=1", "--json",
                    "--temperature=0"]  # fmt: skip
    assert written is None
    argv, written = job_arguments("eval", "a.yaml", {"out": "r"}, confine=lambda path: tmp_path / path)
    assert (argv[2:], written) == ([f"--out={tmp_path / 'r'}"], tmp_path / "r")
    argv, written = job_arguments("audit", "a.yaml", {"attacker_episode": "e"}, confine=lambda path: tmp_path / path)
    assert (argv[2:], written) == ([f"--attacker-episode={tmp_path / 'e'}"], tmp_path / "e")
    for both in ({"out": "r", "attacker_episode": "e"}, {"attacker_episode": "e", "out": "r"}):
        assert job_arguments("audit", "a.yaml", both, confine=lambda path: tmp_path / path)[1] == tmp_path / "r"


@pytest.mark.parametrize(
    ("kind", "spec", "options", "said"),
    [
        ("evil", "a", {}, "did you mean 'eval'?"),
        ("eval", "--help", {}, "is no spec"),
        ("eval", "a", {"polcy": "oracle"}, "did you mean 'policy'?"),
        ("eval", "a", {"n": "3; rm"}, "options.n: expected a whole number"),
        ("eval", "a", {"n": True}, "options.n: expected a whole number"),
        ("eval", "a", {"set": "a=b"}, "options.set: expected a list"),
        ("eval", "a", {"json": 1}, "options.json: expected true or false"),
        ("train", "a", {"ray_address": "x"}, "has no option"),
        ("eval", "a", {"bench": True}, "has no option"),
        ("audit", "a", {"attacker_episode": ""}, "options.attacker_episode: expected a path"),
        ("eval", "a", {"policy": "a\0b"}, "no command can be given"),
        ("eval", "a", {"set": ["x=\ud800"]}, "no command can be given"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, spec: str, options: dict[str, Any], said: str) -> None:
    if kind == "train":
        pytest.importorskip("verl", reason="the verl extra is not installed")
    with pytest.raises(UsageError) as caught:
        job_arguments(kind, spec, options)
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_command_runs_to_its_end_and_its_log_is_read_from_an_offset_on(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        job = await jobs.start("eval", str(author(tmp_path, "print('ä')")), {"policy": "oracle", "json": True})
        await jobs.wait(job.id)
        text, end = job.read(0)
        assert (job.state, job.code) == ("ended", 0), text
        assert '"success_rate": 1.0' in text
        assert job.read(end) == ("", end)
        assert job.read(5)[0] == text.encode()[5:].decode()
        assert job.as_dict()["argv"][:2] == ["rlenv", "eval"]

    working(work)


@pytest.mark.slow
def test_a_character_that_is_not_whole_yet_waits_for_its_rest(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        seen = tmp_path / "seen"
        job = await jobs.start("validate", str(author(tmp_path, f"open({str(seen)!r}, 'w'); time.sleep(3600)")), {})
        await until(seen)
        job.log.write_bytes("aä".encode()[:2])
        assert job.read(0) == ("a", 1)
        job.log.write_bytes("aä".encode())
        assert job.read(1) == ("ä", 3)

    working(work, Jobs(waits=((signal.SIGKILL, 10.0),)))


@pytest.mark.slow
def test_a_job_is_stopped_as_by_ctrl_c(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        seen = tmp_path / "seen"
        job = await jobs.start("validate", str(author(tmp_path, f"open({str(seen)!r}, 'w'); time.sleep(3600)")), {})
        await until(seen)
        assert jobs.stop(job.id).state == "stopping"
        await jobs.wait(job.id)
        assert job.code == 130
        assert "interrupted" in job.read(0)[0]

    # On a busy machine Python may take long to come to its end: the next signal waits for that. Python drops one
    # that comes within a callback of an import, so that a second is sent.
    working(work, Jobs(waits=((signal.SIGINT, 20.0), (signal.SIGINT, 100.0), (signal.SIGKILL, 10.0))))


@pytest.mark.slow
def test_a_job_hears_ctrl_c_where_the_viewer_does_not(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script's background
    try:
        test_a_job_is_stopped_as_by_ctrl_c(tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"

    async def work(jobs: Jobs) -> None:
        seen = tmp_path / "seen"
        line = f"{deaf}; open({str(seen)!r}, 'w'); time.sleep(3600)"
        job = await jobs.start("validate", str(author(tmp_path, line)), {})
        await until(seen)
        jobs.stop(job.id)
        await jobs.wait(job.id)
        assert job.code == -signal.SIGKILL

    working(work, Jobs(waits=((signal.SIGINT, 0.05), (signal.SIGTERM, 0.05), (signal.SIGKILL, 30.0))))


def test_so_many_run_at_once_and_no_more(tmp_path: Path) -> None:
    spec = str(author(tmp_path, "time.sleep(3600)"))

    async def work(jobs: Jobs) -> None:
        await jobs.start("validate", spec, {})
        with pytest.raises(UsageError, match="1 jobs"):
            await jobs.start("validate", spec, {})

    working(work, Jobs(most_running=1, waits=((signal.SIGKILL, 10.0),)))


@pytest.mark.slow
def test_jobs_end_with_the_server(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    author(tmp_path, f"import os; open({str(seen)!r}, 'w').write(str(os.getpid())); time.sleep(3600)")

    async def play(ask: Asks) -> None:
        await ask.fine("POST", "/api/jobs", {"kind": "validate", "spec": "spec.yaml"})
        while not seen.exists() or not seen.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    served((tmp_path,), play)
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


@pytest.mark.slow
def test_the_routes_start_read_and_stop_a_job(tmp_path: Path) -> None:
    author(tmp_path)

    async def play(ask: Asks) -> None:
        asked = {"kind": "eval", "spec": "spec.yaml", "options": {"policy": "oracle", "out": "out"}}
        id = (await ask.fine("POST", "/api/jobs", asked))["id"]
        offset, text, state = 0, "", ""
        while state != "ended":
            part = await ask.fine("GET", f"/api/jobs/{id}", offset=str(offset))
            offset, text, state = part["offset"], text + part["text"], part["state"]
            await asyncio.sleep(0.02)
        assert "small-v0" in text
        (job,) = (await ask.fine("GET", "/api/jobs"))["jobs"]
        assert (job["id"], job["code"], job["run"]) == (id, 0, str(tmp_path / "out"))
        assert (tmp_path / "out").is_dir()
        assert (await ask.fine("DELETE", f"/api/jobs/{id}"))["job"]["state"] == "ended"
        outside = {**asked, "options": {"out": "../out"}}
        assert "not below" in await ask.refused("POST", "/api/jobs", outside)
        assert "no job" in await ask.refused("GET", "/api/jobs/nothing")
        assert "whole number" in await ask.refused("GET", f"/api/jobs/{id}", offset="-1")

    served((tmp_path,), play)
