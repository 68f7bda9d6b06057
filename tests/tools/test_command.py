"""The command tool: what reaches the program, what comes back, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.resources.base import Folder
from rlenv.testing.tools import call, check_tool, context
from rlenv.tools.base import Tool
from rlenv.tools.command import KIND, CommandSpec

TEXT = {"text": "string"}


def compiled(argv: list[str], *, base: Path = Path(), vars: dict[str, Any] | None = None, **keys: Any) -> Tool:
    spec = CommandSpec.model_validate({"kind": "command", "command": argv, **keys})
    (tool,) = KIND.factory("run", spec, CompileContext(base=base, vars=vars or {}))
    assert isinstance(tool, Tool)
    return tool


def run(argv: list[str], arguments: dict[str, Any] | None = None, **keys: Any) -> ToolResult:
    return asyncio.run(call(compiled(argv, **keys), arguments or {}))


def shown_arguments(*argv: str, arguments: dict[str, Any], **keys: Any) -> list[str]:
    """What the program was given, one argument an entry."""
    script = "import sys; print(ascii(sys.argv[1:]))"
    result = run([sys.executable, "-I", "-S", "-c", script, *argv], arguments, **keys)
    found = eval(result.text)
    assert isinstance(found, list)
    return found


def processes_with(word: str) -> list[int]:
    """Processes of this machine whose command line holds `word`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def test_the_command_tool_keeps_the_laws_of_tools() -> None:
    check_tool(
        compiled(["printf", "%s", "{{ args.text }}"], parameters=TEXT),
        good=[{"text": "a"}, {"text": "a b\nc ☃"}, {"text": ""}, {"text": "-3.5"}],
        bad=[{}, {"text": 1}, {"text": "a", "more": 1}],
        failing=[{"text": "-v"}, {"text": "nul\0l"}, {"text": "x" * 3_000_000}, {"text": "\ud800"}],
    )


@pytest.mark.parametrize("text", ["a b", "$(id)", "`id`", "; id", "a\nb", "*", "'", '"', "☃", ""])
def test_each_argument_stays_one_argument(text: str) -> None:
    assert shown_arguments("{{ args.text }}", "[{{ args.text }}]", arguments={"text": text}, parameters=TEXT) == [
        text,
        f"[{text}]",
    ]


def test_lists_make_several_arguments_and_none_makes_none() -> None:
    parameters = {"many": "list", "more": "text?", "n": "integer?"}
    argv = ("--", "{{ args.many }}", "{{ args.more }}", "{{ args.n }}")
    assert shown_arguments(*argv, arguments={"many": ["a", 2, "-b"]}, parameters=parameters) == ["--", "a", "2", "-b"]
    assert shown_arguments(*argv, arguments={"many": [], "n": 3}, parameters=parameters) == ["--", "3"]


def test_what_a_call_fills_in_is_no_option_unless_the_author_says_so() -> None:
    keys: dict[str, Any] = {"arguments": {"text": "--help"}, "parameters": TEXT}
    refused = run(["printf", "{{ args.text }}"], {"text": "--help"}, parameters=TEXT)
    assert (refused.outcome, refused.text) == ("bad_arguments", "an argument must not begin with '-'")
    assert shown_arguments("--", "{{ args.text }}", **keys) == ["--", "--help"]
    assert shown_arguments("{{ args.text }}", **keys, options=True) == ["--help"]
    assert shown_arguments("{{ args.text }}", arguments={"text": "-3"}, parameters=TEXT) == ["-3"]


def test_nothing_is_inherited_but_path_and_lang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_SECRET", "staple-of-the-command")
    monkeypatch.setenv("LANG", "C.UTF-8")
    names = {line.partition("=")[0] for line in run(["env"], env={"UNIT": "m"}).text.splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "UNIT", "RLENV_CALL"}
    told = run(["sh", "-c", 'printf %s "$KEY"'], env={"KEY": "${env:RLENV_TEST_SECRET}"})
    assert told.text == "${env:RLENV_TEST_SECRET}"


def test_standard_input_is_a_template() -> None:
    assert run(["cat"], {"text": "<{}>"}, stdin="[{{ args.text }}]", parameters=TEXT).text == "[<{}>]"
    assert run(["cat"]).text == "(no output)"
    assert run(["true"], stdin="x" * 1_000_000).outcome == "ok"


def test_it_runs_in_an_empty_folder_that_is_removed() -> None:
    script = "ls -A; mkdir -p a/b; touch a/b/c; chmod 000 a; pwd"
    result = run(["sh", "-c", script])
    assert not Path(result.text).exists()
    assert result.text.count("\n") == 0


def test_a_tree_deeper_than_a_path_is_no_failure_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nprint('made')"
    assert run([sys.executable, "-I", "-S", "-c", script], timeout_s=60).text == "made"
    assert list(tmp_path.iterdir()) == []


def test_it_runs_in_a_folder_of_the_authors(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("content", encoding="utf-8")
    assert run(["cat", "file"], cwd="here", base=tmp_path).text == "content"
    with pytest.raises(UsageError, match="there is no folder 'gone'"):
        compiled(["cat"], cwd="gone", base=tmp_path)


@pytest.mark.parametrize("target", ["..", "/etc", "gone", "out", "inner"])
def test_a_link_of_the_policys_does_not_lead_out_of_the_episodes_folder(tmp_path: Path, target: str) -> None:
    work = tmp_path / "work"
    (work / "inner").mkdir(parents=True)
    (work / "out").symlink_to(target)
    spec = CommandSpec.model_validate({"kind": "command", "command": ["pwd"], "cwd": "{{ resources.work }}/out"})
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), resources={"work": None}))
    result = asyncio.run(call(tool, {}, within=context(resources={"work": Folder(work)})))
    if target == "inner":
        assert result.text.strip() == str((work / "inner").resolve())
    else:
        assert (result.outcome, result.whose) == ("failed", "policy")


def test_it_works_in_a_folder_of_the_episodes(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("content", encoding="utf-8")
    keys = {"cwd": "{{ resources.work }}", "parameters": TEXT}
    spec = CommandSpec.model_validate(
        {"kind": "command", "command": ["cat", "{{ resources.work }}/{{ args.text }}"], **keys}
    )
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), resources={"work": None}))
    told = context(resources={"work": Folder(tmp_path)})
    results = [asyncio.run(call(tool, {"text": text}, within=told)) for text in ("note", "../note", "/etc/passwd")]
    assert [one.outcome for one in results] == ["ok", "bad_arguments", "failed"]
    assert results[0].text == "content"
    with pytest.raises(UsageError, match="lost"):
        compiled(["cat"], cwd="{{ resources.lost }}")


def test_a_program_beside_the_spec(tmp_path: Path) -> None:
    program = tmp_path / "tool.sh"
    program.write_text("#!/bin/sh\necho beside\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"is not executable; run: chmod \+x"):
        compiled(["./tool.sh"], base=tmp_path)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert run(["./tool.sh"], base=tmp_path).text == "beside"
    assert run(["{{ vars.tool }}"], base=tmp_path, vars={"tool": "./tool.sh"}).text == "beside"


@pytest.mark.parametrize(
    ("argv", "keys", "says_what"),
    [
        (["prinft"], {}, "there is no program 'prinft' on PATH; did you mean 'printf'"),
        (["no-such-program-anywhere"], {}, "on PATH"),
        (["./gone.sh"], {}, "there is no program './gone.sh' beside the spec"),
        (["{{ args.text }}"], {}, "must not depend on the call"),
        (["echo", "{{ args.txt }}"], {}, "did you mean 'args.text'"),
        (["echo", "{{ text }}"], {}, "did you mean 'args.text'"),
        (["echo"], {"stdin": "{{ args.other }}"}, "name it under 'parameters'"),
        (["echo"], {"processes": False}, "add sandbox: bubblewrap"),
    ],
)
def test_a_wrong_entry_is_the_authors_mistake(argv: list[str], keys: dict[str, Any], says_what: str) -> None:
    with pytest.raises(UsageError, match=says_what):
        compiled(argv, parameters=TEXT, **keys)


def test_a_failing_program_shows_a_short_reason_without_its_folder() -> None:
    result = run(["sh", "-c", "echo $PWD/file is missing >&2; exit 3"])
    assert (result.outcome, result.text) == ("failed", "sh ended with status 3: ./file is missing")
    assert run(["sh", "-c", "exit 3"], expect=[0, 3]).outcome == "ok"
    assert run(["sh", "-c", "kill -TERM $$"]).text == "sh was killed by SIGTERM"
    reasons = [run(["sh", "-c", f"kill -{name} $$"]).reason for name in ("KILL", "TERM", "USR1")]
    assert reasons == ["killed", "killed", "failed"]
    ends = "import os, signal, sys; n = int(sys.argv[1]); signal.signal(n, signal.SIG_DFL); os.kill(os.getpid(), n)"
    reasons = [run([sys.executable, "-c", ends, str(number)]).reason for number in (1, 2, 10)]
    assert reasons == ["killed", "killed", "failed"]
    assert run(["sh", "-c", "sh -c 'kill -KILL $$'; exit $?"]).reason == "killed"
    assert len(run(["sh", "-c", "yes error | head -c 5000 >&2; exit 1"]).text) < 400


def test_errors_of_a_megabyte_are_shown_at_once_whatever_secrets_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"RLENV_TEST_ERRORS_{number}" for number in range(5)]
    for name in names:
        monkeypatch.setenv(name, f"sk-{secrets.token_hex(20)}")
    tool = compiled(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.exit('%41%42%43&#65;' * 60_000 + sys.argv[1])",
            "{{ args.a }}",
        ],
        parameters={"a": "string"},
        env={name: f"${{env:{name}}}" for name in names},
    )

    async def main() -> tuple[float, ToolResult]:
        await call(tool, {"a": "warm"})
        began = time.thread_time()
        found = await call(tool, {"a": f" key {os.environ[names[0]]} end"})
        return time.thread_time() - began, found

    took, found = asyncio.run(main())
    assert took < 0.08
    assert found.text.endswith(f" key ${{env:{names[0]}}} end")
    assert len(found.text) < 400


def test_output_that_is_not_utf8_is_read_as_well_as_possible() -> None:
    assert run(["printf", r"d\351j\340"]).text == "d\ufffdj\ufffd"


def test_a_program_that_floods_is_stopped() -> None:
    result = run(["sh", "-c", "exec yes"], max_bytes=10_000)
    assert (result.outcome, result.text) == ("failed", "sh wrote more than 10000 bytes and was stopped")
    assert run(["sh", "-c", "yes >&2"], max_bytes=10_000).outcome == "failed"
    # One that wrote too much at once and ended is the same; as much as it may write is no flood.
    assert run(["sh", "-c", "head -c 10000 /dev/zero"], max_bytes=10_000).outcome == "ok"
    assert run(["sh", "-c", "head -c 20000 /dev/zero"], max_bytes=10_000).outcome == "failed"


def test_a_program_that_runs_out_of_time_goes_with_its_children() -> None:
    word = f"rlenv-test-{os.getpid()}-a"
    script = f"sh -c ': {word}; sleep 60; :' & setsid sh -c ': {word}; sleep 60; :' & wait"
    result = run(["sh", "-c", script], timeout_s=0.3)
    assert result.outcome == "timeout"
    assert processes_with(word) == []


def test_a_daemon_does_not_outlive_the_call() -> None:
    word = f"rlenv-test-{os.getpid()}-b"
    script = f"(setsid sh -c ': {word}; sleep 60; :' >/dev/null 2>&1 </dev/null &); echo started"
    assert run(["sh", "-c", script]).text == "started"
    assert processes_with(word) == []


def test_a_process_of_nobodys_call_that_shows_no_environment_is_left_alone() -> None:
    bare = subprocess.Popen(["sleep", "60"], env={})
    try:
        assert [run(["echo", "here"]).text for _ in range(3)] == ["here"] * 3
        assert bare.poll() is None
    finally:
        bare.kill()
        bare.wait()


def test_a_cancelled_call_takes_its_program_along() -> None:
    word = f"rlenv-test-{os.getpid()}-c"
    tool = compiled(["sh", "-c", f": {word}; sleep 60; :"])

    async def go() -> None:
        task = asyncio.ensure_future(call(tool, {}, within=context()))
        end = time.monotonic() + 30
        while not processes_with(word):
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert processes_with(word) == []


@pytest.mark.slow
def test_limits_hold_for_each_process() -> None:
    endless = compiled(["sh", "-c", "while :; do :; done"], cpu_s=1, timeout_s=600.0)
    # A second of CPU time may be minutes of a machine that has more to do.
    assert asyncio.run(call(endless, {}, within=context(seconds=600))).text == "sh used up its CPU time"
    big = [sys.executable, "-I", "-S", "-c", "b'x' * 300_000_000"]
    assert "MemoryError" in run(big, memory_mb=200).text
    written = run(["sh", "-c", "head -c 3000000 /dev/zero > file; ls -l file | cut -d' ' -f5"], disk_mb=1)
    assert written.text == "1048576"


@pytest.mark.slow
def test_no_descriptor_and_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tool = compiled(["sh", "-c", "echo x > file; cat file"])
    asyncio.run(call(tool, {}))
    gc.collect()  # what other tests left for the collector may not close meanwhile and hide a leak
    before = set(os.listdir("/proc/self/fd"))

    async def many() -> None:
        results = await asyncio.gather(*[call(tool, {}) for _ in range(20)])
        assert {one.text for one in results} == {"x"}

    asyncio.run(many())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert list(tmp_path.iterdir()) == []
