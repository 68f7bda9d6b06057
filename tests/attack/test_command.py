"""What a call cannot make of an author's program: an option, a path outside, or a way out of the sandbox."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.resources.base import Folder
from rlenv.testing.tools import call, context, kept
from rlenv.tools._bubblewrap import Confined, check_bubblewrap, confine
from rlenv.tools._process import ProgramEnd, ProgramLimits, run_program
from rlenv.tools.base import Tool
from rlenv.tools.command import KIND, CommandSpec

TEXT = {"text": "string"}


def compiled(argv: list[str], *, base: Path = Path(), **keys: Any) -> Tool:
    spec = CommandSpec.model_validate({"kind": "command", "command": argv, "timeout_s": 60.0, **keys})
    (tool,) = KIND.factory("run", spec, CompileContext(base=base))
    assert isinstance(tool, Tool)
    return tool


def run(argv: list[str], arguments: dict[str, Any] | None = None, **keys: Any) -> ToolResult:
    return asyncio.run(call(compiled(argv, **keys), arguments or {}))


def inside(script: str, **keys: Any) -> ToolResult:
    """A shell in the sandbox, which is the worst program that an author may offer."""
    return run(["sh"], stdin=script, **{"sandbox": "bubblewrap", "expect": list(range(256)), **keys})


@pytest.mark.sandbox
def test_no_call_waits_for_a_sandbox_that_another_one_has_ended() -> None:
    """Whoever ends closes descriptors, whose numbers are those of whoever begins."""
    tool = compiled(["echo", "made"], sandbox="bubblewrap")

    async def many() -> list[ToolResult]:
        at_once = asyncio.Semaphore(4)

        async def one() -> ToolResult:
            async with at_once:
                return await call(tool, {})

        return await asyncio.wait_for(asyncio.gather(*(one() for _ in range(150))), 50)

    assert {result.text for result in asyncio.run(many())} == {"made"}


@pytest.mark.sandbox
def test_more_arguments_than_a_sandbox_takes_are_the_calls_own_fault() -> None:
    keys = {"parameters": {"words": {"type": "array", "items": {"type": "string"}}}, "sandbox": "bubblewrap"}
    for words, whose in ((7_000, ""), (9_000, "policy"), (200_000, "policy")):
        result = run(["true", "{{ args.words }}"], {"words": ["a"] * words}, **keys)
        assert (words, result.outcome != "ok", result.whose) == (words, whose != "", whose), result.text


# Options.


@pytest.mark.parametrize(
    "text",
    "-0o/tmp/x -0e -1e. -4K/etc/passwd -1f/etc/hostname -.5x -5- -1,2 -1e -e1 -0x1 -٣ --1 -- - -1\n -inf".split(" "),
)
def test_only_a_whole_number_may_begin_with_a_hyphen(text: str) -> None:
    for argument in ("{{ args.text }}", "{{ [args.text] }}"):
        result = run(["printf", "%s", argument], {"text": text}, parameters=TEXT)
        assert (result.outcome, result.text) == ("bad_arguments", "an argument must not begin with '-'"), text


@pytest.mark.parametrize("text", ["-5", "-0.25", "-.5", "-1.", "-1e5", "-2.5E-3"])
def test_a_negative_number_is_an_argument(text: str) -> None:
    assert run(["printf", "%s", "{{ args.text }}"], {"text": text}, parameters=TEXT).outcome == "ok"


def test_an_option_that_the_author_wrote_takes_its_value_and_no_other_option() -> None:
    keys: dict[str, Any] = {"parameters": TEXT}
    assert run(["echo", "--limit={{ args.text }}"], {"text": "-x"}, **keys).text == "--limit=-x"
    assert run(["echo", "-{{ args.text }}"], {"text": "n"}, **keys).outcome == "bad_arguments"
    assert run(["echo", "-n{{ args.text }}"], {"text": "e"}, **keys).outcome == "bad_arguments"


# Paths.


@pytest.mark.parametrize(
    "text",
    [
        *("../secret", "a/../../secret", "..", "a/..", "./../secret", "/etc/passwd", "/", "//etc/passwd", "~/secret"),
        *(
            "file:///etc/passwd",
            "FILE:/etc/passwd",
            "jar:file:///etc/passwd!/a",
            "git+File:///etc/passwd",
            "@/etc/passwd",
            "x=/etc/passwd",
            "host:/etc/passwd",
            "a=../b",
            "..\\b",
        ),
    ],
)
def test_a_call_names_no_path_outside_of_a_folder(text: str) -> None:
    for argument in ("{{ args.text }}", "--file={{ args.text }}"):
        result = run(["echo", argument], {"text": text}, parameters=TEXT)
        assert (result.outcome, result.whose) == ("bad_arguments", "policy"), f"{argument}: {text}"
        assert "path outside" in result.text


@pytest.mark.parametrize("text", ["../secret", "a/../../secret", "..", "a/..", "./../x"])
def test_a_path_that_the_author_began_is_never_climbed_out_of(text: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    for argument in (
        "files/{{ args.text }}",
        f"{tmp_path}/files/{{{{ args.text }}}}",
        "../{{ args.text }}",
        "./{{ args.text }}",
    ):
        result = run(["cat", argument], {"text": text}, parameters=TEXT, base=tmp_path, cwd=".")
        assert (result.outcome, "path outside" in result.text) == ("bad_arguments", True), argument


def test_two_parts_of_a_call_make_no_path_outside_together(tmp_path: Path) -> None:
    parameters = {"a": "string", "b": "string"}
    for argument in ("files/{{ args.a }}{{ args.b }}", "files/{{ args.a }}/{{ args.b }}", "{{ args.a }}{{ args.b }}"):
        result = run(["cat", argument], {"a": ".", "b": "./x"}, parameters=parameters, base=tmp_path, cwd=".")
        joined = argument.replace("{{ args.a }}", ".").replace("{{ args.b }}", "./x")
        assert (result.outcome == "bad_arguments") is (".." in joined.split("/")), argument


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a/b.txt",
        "a b",
        "1/2",
        "..a",
        "a..b",
        "...",
        "https://example.org/x",
        "10:30",
        "x=1",
        "a file",
        "profile://x",
    ],
)
def test_ordinary_words_and_names_below_a_folder_are_arguments(text: str) -> None:
    assert run(["echo", "{{ args.text }}"], {"text": text}, parameters=TEXT).text == text


def test_an_author_may_allow_any_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content", encoding="utf-8")
    argv = ["cat", "{{ args.text }}"]
    assert run(argv, {"text": str(tmp_path / "file")}, parameters=TEXT, paths=True).text == "content"


class Desk:
    """A resource in which an earlier call has left `left`; the author's function made `home` and the folder work."""

    def __init__(self, left: Any, home: Path) -> None:
        self.left, self.home = left, home


LEFT = ["-n", "--version", "--", "/etc/passwd", "../secret", "~/x", "file:/etc/passwd", "@/etc/passwd"]


def after(argv: list[str], left: Any, tmp_path: Path, arguments: dict[str, Any] | None = None) -> ToolResult:
    told = {"desk": Desk(left, tmp_path / "home"), "work": Folder(tmp_path / "work"), "name": f"{tmp_path}/name"}
    spec = CommandSpec.model_validate({"kind": "command", "command": ["echo", *argv], "parameters": TEXT})
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), resources=dict.fromkeys(told)))
    return asyncio.run(call(tool, arguments or {"text": "t"}, within=context(resources=told)))


@pytest.mark.parametrize("left", LEFT)
def test_what_an_earlier_call_left_is_no_option_and_no_path_outside_either(left: str, tmp_path: Path) -> None:
    for argument in (
        *("{{ resources.desk.left }}", "{{ resources.desk.left }}{{ args.text }}", "{{ [resources.desk.left] }}"),
        *("{{ resources.desk.left or 1 }}", "{% if 1 %}{{ resources.desk.left }}{% endif %}"),
    ):
        result = after([argument, "{{ args.text }}"], left, tmp_path)
        assert (result.outcome, result.whose) == ("bad_arguments", "policy"), argument
    assert after(["{{ resources.desk.left }}"], ["a", left], tmp_path).outcome == "bad_arguments"
    assert after(["{{ resources.desk.left }}", "{{ args.text }}"], "a", tmp_path, {"text": left}).outcome != "ok"


def test_a_path_that_the_author_made_is_none_that_an_earlier_call_left(tmp_path: Path) -> None:
    for argument, said in (
        ("{{ resources.work }}", "/work"), ("{{ resources.work }}/{{ args.text }}", "/work/t"),
        ("{{ resources.work.path }}/a-{{ resources.desk.left }}", "/work/a-left"),
        ("{{ resources.work ~ '/a' }}", "/work/a"), ("{{ resources.work.path / 'a' }}", "/work/a"),
        ("{{ resources.desk.home }}/{{ args.text }}", "/home/t"), ("{{ resources.desk.home }}", "/home"),
        ("{{ resources.name }}/{{ args.text }}", "/name/t"), ("--at={{ resources.work }}/x", "/work/x"),
    ):  # fmt: skip
        result = after([argument], "left", tmp_path)
        assert result.text.removeprefix("--at=") == f"{tmp_path}{said}", argument
        if "args" in argument:
            assert after([argument], "left", tmp_path, {"text": "../x"}).outcome == "bad_arguments"
    for left, text in (("-5", "-5"), (-0.5, "-0.5"), ("a/b", "a/b"), (None, ""), (["a", "b"], "a b")):
        assert after(["{{ resources.desk.left }}"], left, tmp_path).text in (text, "(no output)")
    assert after(["--", "{{ resources.desk.left }}"], "-n", tmp_path).text == "-- -n"


# Values.


@pytest.mark.parametrize("value", [10**25, -(10**30), 10**4000, [10**25], {"n": 10**30}, {"a": [None, True, 1.5]}])
def test_numbers_of_any_size_are_arguments_or_refused_and_never_a_fault_of_ours(value: Any) -> None:
    tool = compiled(["echo", "{{ args.x }}"], parameters={"type": "object", "properties": {"x": {}}})

    async def go() -> list[ToolResult]:
        executor = Executor({"run": tool}, calls=CallsSpec.model_validate({"breaker": {"failures": 2, "reset_s": 60}}))
        async with kept() as make:
            results = [(await executor.run([ToolCall("run", {"x": value})], make()))[0] for _ in range(3)]
            return [*results, (await executor.run([ToolCall("run", {"x": 1})], make()))[0]]

    *tried, after = asyncio.run(go())
    assert all(one.outcome in ("ok", "bad_arguments") for one in tried)
    assert after.text == "1"


def test_a_deep_list_is_an_argument_list_or_refused() -> None:
    deep: Any = "x"
    for _ in range(90):
        deep = [deep]
    tool = compiled(["echo", "{{ args.x }}"], parameters={"type": "object", "properties": {"x": {}}})
    assert asyncio.run(call(tool, {"x": deep})).text == "x"
    dashes: Any = "-n"
    for _ in range(9):
        dashes = [dashes]
    assert asyncio.run(call(tool, {"x": dashes})).outcome == "bad_arguments"


# The sandbox.


@pytest.mark.sandbox
def test_a_program_in_the_sandbox_has_no_capability_and_is_never_root() -> None:
    result = inside("grep -h Cap /proc/self/status; id -u")
    *capabilities, user = result.text.splitlines()
    assert [line.split()[1] for line in capabilities[:4]] == ["0" * 16] * 4
    assert user != "0"


@pytest.mark.sandbox
@pytest.mark.parametrize("keys", [{}, {"processes": False}])
def test_nothing_that_is_hidden_is_uncovered_and_nothing_is_made_writable(keys: dict[str, Any], tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_text("original", encoding="utf-8")
    scripts = [
        f"umount /tmp; cat {host}",
        f"umount -l /tmp; cat {host}",
        f"mount -o remount,bind,rw /; echo spoiled > {host}; echo x > /usr/rlenv-attack",
        f"unshare -Urm sh -c 'umount /tmp; cat {host}; mount -o remount,bind,rw /; echo x > /usr/rlenv-attack'",
        f"nsenter -t 1 -m -U cat {host}",
        "chroot / true && echo changed",
        "echo x > /proc/sys/kernel/core_pattern && echo changed",
        "echo x > /proc/sysrq-trigger && echo changed",
        "chmod 666 /dev/null && echo changed",
        "mknod /tmp/disk b 254 0 && echo changed",
        "test -r /etc/shadow && cat /etc/shadow | head -c 5",
    ]
    for script in scripts:
        text = inside(f"exec 2>/dev/null; {script}", **keys).text
        assert "original" not in text, script
        assert "changed" not in text, script
        assert text == "(no output)", script
    assert host.read_text(encoding="utf-8") == "original"
    assert not Path("/usr/rlenv-attack").exists()


@pytest.mark.sandbox
def test_what_a_program_writes_outside_of_its_folder_is_bounded_and_gone() -> None:
    places = "for place in / /home /root /run /var/lib /dev /usr /etc; do echo x > $place/x && echo $place; done"
    assert inside(f"exec 2>/dev/null; {places}").text == "(no output)"
    fill = "for n in 1 2 3; do head -c 50000000 /dev/zero > {place}/$n; done; du -sm {place} | cut -f1; ls {place}"
    for place in ("/tmp", "/dev/shm"):
        size = inside("exec 2>/dev/null; " + fill.format(place=place)).text.split()[0]
        assert int(size) <= 66
        assert "1" not in inside(f"ls {place}").text.split()


SYSTEM_CALLS = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return 0 if libc.syscall(ctypes.c_long(number), *arguments) < 0 and ctypes.get_errno() in (1, 38) else number
numbers = [101, 134, 155, 161, 163, 165, 166, 167, 169, 170, 171, 172, 175, 176, 179, 246, 248, 250, 256, 272, 279]
numbers += [298, 300, 303, 304, 308, 310, 311, 312, 313, 320, 321, 323, 425, 426, 427, 428, 429, 430, 431, 432, 433]
numbers += [434, 438, 440, 442, 443, 447, 457, 458, 463, 467, *range(468, 600)]
print([number for number in numbers if call(number, -1, -1, -1, -1, -1, -1)])
print([flag for flag in (0x20000, 0x10000000, 0x40000000, 0x80) if call(56, flag | 17, 0, 0, 0, 0)])
for family in (socket.AF_UNIX, 38, 40, 17):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print(family)
    except OSError:
        pass
"""


@pytest.mark.parametrize("sandbox", ["none", pytest.param("bubblewrap", marks=pytest.mark.sandbox)])
def test_what_a_program_reads_cannot_be_written_or_made_longer(sandbox: str) -> None:
    script = (
        "for way in '>' '>>' '1<>'; do eval \"head -c 9999 /dev/zero $way/proc/self/fd/0\" && echo wrote; done; true"
    )
    result = run(["sh", "-c", script + "; echo x >&0 && echo wrote; cat"], stdin="given", sandbox=sandbox)
    assert result.text == "given"


@pytest.mark.sandbox
def test_a_program_starts_no_more_processes_than_a_sandbox_may_have() -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python that the sandbox shows")
    forks = "import os, time\ncount = 0\ntry:\n    while count < 2000:\n        if os.fork() == 0: time.sleep(60)\n"
    forks += "        count += 1\nexcept OSError: pass\nprint(count)"
    first, second = (run([python, "-I", "-S", "-c", forks], sandbox="bubblewrap") for _ in range(2))
    assert 100 < int(first.text) < 300
    assert first.text == second.text  # what one sandbox started counts in no other


@pytest.mark.sandbox
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
def test_system_calls_that_ordinary_programs_do_not_make_are_refused() -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python that the sandbox shows")
    result = run([python, "-I", "-S", "-c", SYSTEM_CALLS], sandbox="bubblewrap")
    assert result.text.splitlines() == ["[]", "[]"]


@pytest.mark.sandbox
def test_honest_programs_run_in_the_sandbox() -> None:
    script = "mkdir a; echo text > a/b; cp a/b c; ls | sort | tr '\\n' ' '; sed -n 1p c; (sleep 0.01; echo late) & wait"
    assert inside(script).text == "a c text\nlate"


@pytest.mark.sandbox
def test_a_program_of_a_folder_that_the_sandbox_hides_is_taken_from_the_next_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment's python3, first on PATH, leads to an interpreter in /root that is not there inside."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cat").symlink_to(tmp_path / "cat")
    (tmp_path / "cat").write_text(f"#!{tmp_path}/interpreter\n", encoding="utf-8")
    (tmp_path / "interpreter").symlink_to("/bin/sh")
    (tmp_path / "cat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    result = asyncio.run(call(compiled(["cat"], stdin="seen", sandbox="bubblewrap"), {}))
    assert (result.outcome, result.text) == ("ok", "seen")


@pytest.fixture
def breakable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bwrap that breaks as soon as this file is there, as often as it has lines."""
    broken = tmp_path / "broken"
    program = tmp_path / "bwrap"
    works = f'exec {shutil.which("bwrap")} "$@"'
    said = f"echo 'bwrap: no permission' >&2; sed -i 1d {broken}"
    program.write_text(f"#!/bin/sh\nif [ -s {broken} ]; then {said}; exit 1; fi\n{works}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    check_bubblewrap.cache_clear()
    yield broken
    check_bubblewrap.cache_clear()


@pytest.mark.sandbox
def test_a_sandbox_that_cannot_be_started_is_the_infrastructures(breakable: Path) -> None:
    tool = compiled(["true"], sandbox="bubblewrap")  # skips where there is none
    assert asyncio.run(call(tool, {})).outcome == "ok"
    breakable.write_text("\n" * 99)
    result = asyncio.run(call(tool, {}))
    assert (result.outcome, result.reason, result.whose) == ("failed", "worker", "infrastructure")


@pytest.mark.sandbox
@pytest.mark.parametrize(("breaks", "outcome"), [(1, "ok"), (2, "ok"), (3, "failed")])
def test_a_sandbox_that_did_not_come_about_is_started_again(breakable: Path, breaks: int, outcome: str) -> None:
    tool = compiled(["sh"], stdin="echo made | tee -a file", sandbox="bubblewrap")
    assert asyncio.run(call(tool, {})).text == "made"
    breakable.write_text("\n" * breaks)
    result = asyncio.run(call(tool, {}))
    assert (result.outcome, result.text if outcome == "ok" else "made") == (outcome, "made")


@pytest.mark.sandbox
def test_a_sandbox_that_cannot_be_set_up_is_no_end_of_its_program() -> None:
    """A mount of the machine's that goes while bwrap takes it over, and a program that ends as bwrap would."""
    said = inside('echo "bwrap: Can\'t bind mount" >&2; exit 1', expect=[0])
    assert (said.outcome, said.reason, said.whose) == ("failed", "failed", "policy")

    async def go() -> ProgramEnd:
        def started(folder: str) -> AbstractContextManager[Confined]:
            return confine(["/bin/sh", "-c", "exit 1"], folders={folder: True, "/gone": False}, cwd=folder)

        limits = ProgramLimits(cpu_s=10, memory_mb=1_000, file_mb=10, max_bytes=1_000)
        ended, _ = await run_program(started, stdin=b"", cwd=None, env={}, limits=limits)
        return ended

    ended = asyncio.run(go())
    assert (ended.code, ended.has_sandbox) == (1, False)


@pytest.mark.sandbox
def test_a_program_that_may_write_no_file_runs_in_a_sandbox() -> None:
    assert inside("echo made", disk_mb=0, expect=[0]).text == "made"
    assert inside("echo made > file", disk_mb=0, expect=[0]).whose == "policy"


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_a_call_keeps_no_descriptor_where_there_are_too_few(sandbox: str) -> None:
    tool, before = compiled(["echo", "made"], sandbox=sandbox), resource.getrlimit(resource.RLIMIT_NOFILE)

    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - 1

    async def go() -> None:
        at_first, failed = opened(), 0
        for more in range(1, 40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (at_first + more, before[1]))
            result = await call(tool, {})
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert result.text == "made" or result.whose == "infrastructure"
            assert opened() <= at_first
            failed += result.whose == "infrastructure"
        assert 3 < failed < 30

    try:
        asyncio.run(go())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.sandbox
def test_a_program_of_anybodys_is_confined_by_one_function(tmp_path: Path) -> None:
    compiled(["true"], sandbox="bubblewrap")  # skips where there is none
    outside = tmp_path / "outside"
    outside.write_text("secret", encoding="utf-8")
    folder = tmp_path / "inside"
    folder.mkdir()

    async def go() -> tuple[bytes, bool]:
        script = f"cat {outside}; echo done > {folder}/made; umount /tmp; cat {outside}"
        with confine(["/bin/sh", "-c", script], folders={str(folder): True}, cwd=str(folder)) as started:
            process = await asyncio.create_subprocess_exec(
                *started.argv,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=started.pass_fds,
            )
            said, _ = await process.communicate()
        return said, started.has_sandbox

    assert asyncio.run(go()) == (b"", True)
    assert (folder / "made").read_text(encoding="utf-8") == "done\n"
