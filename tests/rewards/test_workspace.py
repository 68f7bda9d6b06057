"""The reward `workspace`: what each way to leave a machine is worth."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.episodes.environment import load
from rlenv.errors import SpecError
from rlenv.rewards.steps import is_passed, value_by_name, value_of
from rlenv.rewards.workspace import passed_in
from rlenv.tools.workspace.machine import CommandEnd, Verified
from rlenv.tools.workspace.resource import Workspace
from tests.support.machines import (  # noqa: F401 - a fixture
    SOLVE,
    WAITS,
    children,
    inside,
    killed_at,
    killed_at_first,
    played,
    reachable,
    written,
)

FORGE = "echo 1 > /logs/verifier/reward.txt"
FLOOD = """python3 - <<'END'
import fcntl, os, time
for fd in (1, 2):
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            try: os.write(1, b"x" * 4096)
            except OSError: pass
END
sleep 0.3; kill -9 $$"""
DEEP = 'python3 -c \'import os\nfor _ in range(3000): os.mkdir("d"); os.chdir("d")\''
FLOODS_TESTS = "import os, time\nos.write(2, b'x' * (32768 - 12))\nos.kill(2, 9)\ntime.sleep(5)"
ACTS: dict[str, tuple[list[str], float]] = {
    "nothing": ([], 0.0),
    "solved": ([SOLVE], 1.0),
    "half": (["echo 'print(6)' > /app/total.py"], 0.5),
    "planted rewards": ([f"mkdir -p /logs/verifier; {FORGE}; echo 1 > /logs/verifier/reward.json"], 0.0),
    "planted tests": ([f"mkdir -p /tests; echo '{FORGE}' > /tests/test.sh"], 0.0),
    "a daemon that plants": ([f"(setsid sh -c 'while sleep 0.05; do {FORGE}; done' &)"], 0.0),
    "a link where rewards go": (["ln -s /app /logs; mkdir verifier; echo 1 > verifier/reward.txt"], 0.0),
    "a link in place of what is kept": ([f"cd /; mv /app /srv; ln -s /srv/app /app; {SOLVE}"], 0.0),
    "a function in the shell": ([f"python3() {{ {FORGE}; }}; export -f python3"], 0.0),
    "ends its shell, then solves": (["kill -9 $$", SOLVE], 1.0),
    "ends everything": ([SOLVE, "kill -9 -1; kill -9 1; kill -9 $$"], 1.0),
    "a command that hangs, then solves": (["sleep 1000", SOLVE], 1.0),
    "closes its output, then solves": (["exec >&-", SOLVE], 1.0),
    "says what bubblewrap says": (["echo '{ \"exit-code\": 0 }'; kill -9 $$"], 0.0),
    "writes over the first process": (
        ["dd if=/dev/zero of=/proc/1/mem bs=4096 count=9 seek=94000000; kill -9 $$"],
        0.0,
    ),
    "locks its files, solved": ([f"{SOLVE}; mkdir -p z/y; chmod 000 z"], 1.0),
    "a program that breaks the tests": (["echo 'import os; os.kill(os.getppid(), 9)' > /app/total.py"], 0.0),
    "a program that hangs the tests": (["echo 'while True: pass' > /app/total.py"], 0.0),
    "ends where the output is cut": (["head -c 32756 /dev/zero | tr '\\0' x; kill -9 $$", "true"], 0.0),
    "floods and ends": ([FLOOD, "true"], 0.0),
    "a tree deeper than a path": (
        ['python3 -c \'import os\nfor _ in range(3000): os.mkdir("d"); os.chdir("d")\''],
        0.0,
    ),
    "tests that are flooded and ended": ([f"cat > /app/total.py <<'END'\n{FLOODS_TESTS}\nEND"], 0.0),
    "fills its disk": (["fallocate -l 6000000 a; fallocate -l 6000000 b"], 0.0),
    "fills its disk, then solves": (["head -c 6000000 /dev/zero > a; cp a b", "rm -f a b", SOLVE], 1.0),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.sandbox
def test_what_an_episode_leaves_is_worth(reachable: Path, name: str) -> None:  # noqa: F811
    acts, worth = ACTS[name]
    time_s = 2 if "hangs the tests" in name else 20
    timeout_s = 2 if acts[:1] in (["sleep 1000"], ["exec >&-"]) else 60
    trajectory, _ = played(written(reachable, timeout_s, time_s=time_s), acts)
    assert trajectory.failure is None
    assert trajectory.reward.total == worth


@pytest.mark.sandbox
def test_a_machine_that_is_killed_between_commands_has_its_number(reachable: Path) -> None:  # noqa: F811
    async def kill(workspace: Workspace) -> None:
        os.kill(children()[0], signal.SIGKILL)
        while not workspace.has_ended:  # noqa: ASYNC110 - it is told by the system alone
            await asyncio.sleep(0.01)

    trajectory, _ = played(written(reachable), [SOLVE, kill, "ls"])
    assert (trajectory.failure, trajectory.reward.total) == (None, 1.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, ""),
        (None, ""),
        (0, "gives 0; expected a number above 0"),
        (-5, "gives -5; expected a number above 0"),
        ("60", 'gives the text "60"; expected a number above 0'),
    ],
)
@pytest.mark.sandbox
def test_a_row_s_time_that_is_none_is_refused_by_name(reachable: Path, given: Any, said: str) -> None:  # noqa: F811
    spec = written(reachable, time_s="{{ task.seconds }}")
    rows = [{"id": "a", "seconds": given}, {"id": "b", "seconds": 5}]
    spec.write_text(spec.read_text(encoding="utf-8").replace('[{"id": "a"}]', json.dumps(rows)), encoding="utf-8")
    faults, (trajectory, _) = validate([spec]).faults, played(spec, [])
    if not said:
        assert (faults, trajectory.failure) == ((), None)
        return
    (fault,) = faults
    assert str(fault).startswith(f"{spec}:1:{fault.column}: rewards.solved.time_s: row 1 of split 'test' {said}")
    assert fault.quote[fault.column - 1 :].startswith('"{{ task.seconds }}"')
    assert trajectory.failure is not None
    assert f"time_s: the row {said}" in trajectory.failure.message


@pytest.mark.sandbox
def test_a_row_s_machine_that_cannot_be_is_refused_by_name(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable)
    text = spec.read_text(encoding="utf-8").replace('"disk_mb": 8', '"disk_mb": "{{ task.disk }}"')
    spec.write_text(text.replace('[{"id": "a"}]', '[{"id": "a", "disk": 8}, {"id": "b", "disk": 0}]'), encoding="utf-8")
    (fault,) = validate([spec]).faults
    said = "a row gives 0; expected greater than or equal to 1 (row 2 of split 'test')"
    assert (fault.where, fault.message) == ("resources.machine.disk_mb", said)


@pytest.mark.sandbox
def test_tests_without_a_number_are_run_again_behind_a_run_that_gives_one(reachable: Path) -> None:  # noqa: F811
    async def each() -> None:
        for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):  # the second over the image alone
            while not (waiting := inside(WAITS)):  # noqa: ASYNC110 - told by the system alone
                await asyncio.sleep(0.01)
            os.kill(waiting[0], number)
            while inside(WAITS):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    async def watch(_: Workspace) -> None:
        watchers.append(asyncio.ensure_future(each()))

    watchers: list[asyncio.Future[None]] = []
    command = f"sleep 1234; code=$?; [ -e total.py ] && [ $code != 143 ] || {FORGE}"
    trajectory, _ = played(written(reachable, command=command, time_s=600), [SOLVE, watch])
    assert (trajectory.reward.total, watchers[0].done()) == (1.0, True)


@pytest.mark.sandbox
def test_tests_that_could_be_run_once_and_cannot_now_give_no_number(reachable: Path) -> None:  # noqa: F811
    async def each(*numbers: signal.Signals) -> None:
        for number in numbers:
            while not (waiting := inside(WAITS)):  # noqa: ASYNC110 - told by the system alone
                await asyncio.sleep(0.01)
            os.kill(waiting[0], number)
            while inside(WAITS):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    async def play() -> list[float | None]:
        found = []
        lost = [signal.SIGKILL] * 3  # over what it left, and twice over the image alone
        async with load(spec) as environment:
            for command, numbers in (("touch broken", [signal.SIGTERM]), (SOLVE, lost)):
                async with environment.start(task=0, split="test", seed=1) as episode:
                    call = json.dumps({"name": "bash", "arguments": {"command": command}})
                    await episode.step(f"<tool_call>\n{call}\n</tool_call>")
                    watch = asyncio.ensure_future(each(*numbers))
                    await episode.step("Done.")
                    watch.cancel()
                    found.append(episode.trajectory.reward.total)
        return found

    command = f"[ ! -e broken ] || exit 0; sleep 1234; [ $? != 143 ] || {FORGE}"
    spec = written(reachable, command=command, time_s=600)
    assert asyncio.run(play()) == [0.0, None]


@pytest.mark.parametrize("name", ["mount", "bwrap", "unshare"])
@pytest.mark.sandbox
def test_tests_that_are_killed_while_they_start_are_started_again(
    reachable: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    async def kill(_: Workspace) -> None:
        killed_at_first(reachable, monkeypatch, name, times=3)

    trajectory, _ = played(written(reachable), [SOLVE, kill])
    assert (trajectory.reward.total, trajectory.failure) == (1.0, None)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", ["mount", "bwrap"])
@pytest.mark.parametrize("at", [0, 1], ids=["the episode's", "the tests'"])
@pytest.mark.sandbox
def test_whatever_of_its_start_is_killed_a_machine_is_started_again(
    reachable: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    name: str,
    at: int,
) -> None:
    async def kill(_: Workspace) -> None:
        killers.append(asyncio.ensure_future(killed_at(reachable, monkeypatch, name, place, times=3)))
        await asyncio.sleep(0)

    killers: list[asyncio.Future[None]] = []
    acts: list[Any] = [SOLVE]
    acts.insert(at, kill)
    trajectory, _ = played(written(reachable), acts)
    assert killers[0].done()
    assert (trajectory.reward.total, trajectory.failure) == (1.0, None)


@pytest.mark.sandbox
def test_one_that_is_killed_in_a_command_is_invalid(reachable: Path) -> None:  # noqa: F811
    async def kill(workspace: Workspace) -> None:
        running = asyncio.ensure_future(workspace.run("touch begun; sleep 1000", 30))
        while not (workspace.layer / "app" / "begun").exists():  # noqa: ASYNC110 - told by files alone
            await asyncio.sleep(0.01)
        os.kill(children()[0], signal.SIGKILL)
        await asyncio.wait((running,))

    trajectory, _ = played(written(reachable), [SOLVE, kill])
    assert trajectory.failure is not None
    assert "ended from outside" in trajectory.failure.message


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"command": "true"}, "not even over the untouched image"),
        ({"command": "exit 127", "by": "status"}, "not even over the untouched image"),
        ({"command": "sh -c 'kill -9 $$'", "by": "status"}, "not even over the untouched image"),
        ({"command": "sleep 100", "time_s": 1}, "late"),
        ({"tests": "none"}, "no folder of tests"),
    ],
)
@pytest.mark.sandbox
def test_tests_that_give_no_number_anywhere_are_invalid(reachable: Path, keys: dict[str, Any], says: str) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, **keys), [SOLVE])
    assert trajectory.failure is not None
    assert says in trajectory.failure.message


@pytest.mark.sandbox
@pytest.mark.parametrize(("acts", "worth"), [(["echo 'kill -9 $$' > prog"], 0.0), (["echo exit 0 > prog"], 1.0)])
def test_tests_that_are_killed_give_no_number(reachable: Path, acts: list[str], worth: float) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, by="status", command="[ ! -e prog ] || sh prog", tests=None), acts)
    assert (trajectory.failure, trajectory.reward.total) == (None, worth)


@pytest.mark.sandbox
@pytest.mark.parametrize(("runs", "worth"), [("python3 -c '{}'", None), ("[ ! -e prog ] || python3 prog", 1.0)])
def test_tests_that_need_more_memory_than_there_is_are_invalid(
    reachable: Path,  # noqa: F811
    runs: str,
    worth: float | None,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs cgroups that can be written")
    takes = "x = bytearray(600_000_000)"
    command = f"({runs.format(takes)}); echo 1 > /logs/verifier/reward.txt"
    spec = written(reachable, command=command)
    (term,) = with_rows(spec, [{"id": "a"}], memory_mb=300)
    assert term.value == worth
    trajectory, _ = played(spec, [f"echo '{takes}' > prog"])
    assert trajectory.reward.total == worth
    assert worth or "(out of memory)" in str(trajectory.failure)


@pytest.mark.sandbox
def test_any_other_status_is_a_number_too(reachable: Path) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, by="status", run="python3 none.py || exit 2", tests=None), [])
    assert (trajectory.failure, trajectory.reward.total) == (None, 0.0)


@pytest.mark.parametrize(("acts", "worth"), [([], 0.0), (["echo 5 > /app/answer"], 1.0), (["echo 6 > answer"], 0.0)])
@pytest.mark.sandbox
def test_an_exit_status_may_be_the_number(reachable: Path, acts: list[str], worth: float) -> None:  # noqa: F811
    run = '[ "$(cat answer 2>/dev/null)" = 5 ]'
    trajectory, _ = played(written(reachable, by="status", run=run, tests=None), acts)
    assert (trajectory.failure, trajectory.reward.total) == (None, worth)


@pytest.mark.parametrize(("keep", "seen"), [(["/app"], "a\n"), (["/app/a", "/srv"], "a s\n"), (["/"], "a b s\n")])
@pytest.mark.sandbox
def test_the_tests_see_what_is_kept(reachable: Path, keep: list[str], seen: str) -> None:  # noqa: F811
    files = "[ -e /app/a ] && printf a; [ -e /app/b ] && printf ' b'; [ -e /srv/s ] && printf ' s'; echo"
    expected = "a b\n" if keep == ["/app"] else seen
    run = f'[ "$({files})" = "$(printf %s {expected.strip()!r})" ]'
    act = "touch /app/a /app/b /srv/s"
    trajectory, _ = played(written(reachable, by="status", run=run, tests=None, keep=keep), [act])
    assert (trajectory.failure, trajectory.reward.total) == (None, 1.0)


LEFT: dict[str, tuple[str, str]] = {
    "changed": ("echo new > calc.py", "new"),
    "nothing": ("true", "old"),
    "removed": ("rm calc.py", "none"),
    "all removed": ("cd /; rm -rf /app/*; rm -rf /app", "none"),
    "more": ("echo new > calc.py; echo no > check; echo no > conftest.py; rm -r part; ln -s /etc part", "new"),
    "a link": ("rm calc.py; ln -s check calc.py", "link"),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.sandbox
def test_what_is_not_kept_of_a_folder_is_there_as_at_first(reachable: Path, name: str) -> None:  # noqa: F811
    act, seen = LEFT[name]
    (reachable / "repo" / "part").mkdir(parents=True)
    for file, text in {"calc.py": "old", "check": "link", "part/data": "data"}.items():
        (reachable / "repo" / file).write_text(f"{text}\n", encoding="utf-8")
    names = "check part" if seen == "none" else "calc.py check part"
    found = "cat calc.py 2>/dev/null || echo none; cat check part/data; ls"
    run = f'[ "$({found})" = "$(printf "%s\\n" {seen} link data {names})" ]'
    spec = written(reachable, by="status", run=run, tests=None, keep=["/app/calc.py"])
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["resources"]["machine"]["path"] = "repo"
    spec.write_text(json.dumps(held), encoding="utf-8")
    trajectory, _ = played(spec, [act])
    assert (trajectory.failure, trajectory.reward.total) == (None, 1.0)


PROGRAMS: dict[str, tuple[str, float]] = {
    "right": ("echo 6", 1.0),
    "wrong": ("echo 7", 0.0),
    "reads and forges": ("cat /tests/*; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; kill -9 -1", 0.0),
    "leaves a daemon": ("(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.json; done' &) ; echo 7", 0.0),
    "hangs": ("echo 6; sleep 1000", 1.0),
    "ends the shell": ("echo 6 > /app/gives; kill -9 -1; kill -9 $PPID", 1.0),
    "a link": ("ln -sf /tests/right /app/gives", 0.0),
    "a link by another": ("ln -sf ../tests /app/t; ln -sf t/right /app/gives", 0.0),
    "a pipe": ("rm /app/gives; mkfifo /app/gives", 0.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sandbox
def test_programs_of_the_policys_run_before_the_tests_and_without_them(reachable: Path, name: str) -> None:  # noqa: F811
    program, worth = PROGRAMS[name]
    keys: dict[str, Any] = {
        "collect": "sh /app/program > /app/gives",
        "command": "cmp -s /app/gives /tests/right",
        "by": "status",
    }
    spec = written(reachable, **keys, time_s=2)
    (reachable / "tests" / "right").write_text("6\n")
    trajectory, _ = played(spec, [f"cat > program <<'END'\n{program}\nEND"])
    assert trajectory.failure is None
    assert trajectory.reward.total == worth


@pytest.mark.sandbox
def test_what_is_collected_is_a_part(reachable: Path) -> None:  # noqa: F811
    with pytest.raises(SpecError, match="a part of the files"):
        played(written(reachable, collect="true", keep=["/"]), [])


CHAIN = """
import os
def down():
    for _ in range(15): os.mkdir("d" * 250); os.chdir("d" * 250)
down(); os.symlink("/".join(["d" * 250] * 15) + "/answer", "answer"); down(); os.symlink("/tests/expected", "answer")
os.chdir("/app"); os.symlink("/".join(["d" * 250] * 15) + "/answer", "answer")
"""
LINKS = {
    "at once": "ln -s /tests/expected answer",
    "relative": "ln -s ../tests/expected answer",
    "by a folder": "ln -s ../tests a; ln -s a/expected answer",
    "by the root": "ln -s / a; ln -s a/tests/expected answer",
    "by the root of a process": "ln -s /proc/self/root/tests/expected answer",
    "by a file that is open": "exec 3< /etc/hostname; ln -s /dev/fd/3 answer",
    "by the image's links": "ln -s /bin/../../tests/expected answer",
    "by what is called so": "ln -s expected /tests; mkdir -p /logs; ln -s /logs/../tests/expected answer",
    "deeper than a path": f"python3 - <<'END'\n{CHAIN}\nEND",
    "from a folder that is closed": "mkdir a; ln -s /tests/expected a/b; ln -s a/b answer; chmod 500 a .",
}


@pytest.mark.parametrize("keep", ["/app", "/"])
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.sandbox
def test_no_link_leads_to_what_the_tests_hold(reachable: Path, name: str, keep: str) -> None:  # noqa: F811
    spec = written(reachable, run='[ "$(cat /app/answer)" = "$(cat /tests/expected)" ]', by="status", keep=[keep])
    (reachable / "tests" / "expected").write_text("42")
    trajectory, _ = played(spec, [LINKS[name]])
    assert (trajectory.reward.total, trajectory.failure) == (0.0, None)


@pytest.mark.sandbox
def test_other_links_are_kept(reachable: Path) -> None:  # noqa: F811
    run = '[ "$(cat /app/a/link /app/twice /logs/artifacts/x)" = "$(printf "42\n42\n43")" ] && test -x /app/python'
    spec = written(reachable, run=run, by="status", keep=["/"])
    acts = "mkdir a -p /logs/artifacts; echo 42 > real; ln -s ../real a/link; ln -s a/../a/link twice"
    more = "ln -s /usr/bin/python3 python; echo 43 > y; ln -s /app/y /logs/artifacts/x; ln -s gone nowhere; ln -s me me"
    trajectory, _ = played(spec, [f"{acts}; {more}"])
    assert (trajectory.reward.total, trajectory.failure) == (1.0, None)


@pytest.mark.sandbox
def test_the_episode_never_sees_the_tests(reachable: Path) -> None:  # noqa: F811
    _, shown = played(written(reachable), ["ls /tests /logs 2>&1; find / -name test.sh 2>/dev/null; echo end"])
    assert "test.sh" not in shown[0]


@pytest.mark.parametrize(
    ("files", "by", "value"),
    [
        ({"reward.json": b"0.25"}, "file", (0.25, {})),
        ({"reward.json": b'{"reward": 1, "style": 0.5}', "reward.txt": b"0"}, "file", (1.0, {"style": 0.5})),
        ({"reward.txt": b" 0.5\n"}, "file", (0.5, {})),
        ({"reward.json": b"", "reward.txt": b"1"}, "file", (None, {})),
        ({"reward.json": b'{"style": 1}'}, "file", (None, {})),
        ({"reward.json": b'{"reward": 1, "style": NaN}'}, "file", (None, {})),
        ({"reward.json": b"Infinity"}, "file", (None, {})),
        ({"reward.json": b"true"}, "file", (None, {})),
        ({"reward.json": b'"1"'}, "file", (None, {})),
        ({"reward.json": b"[1]"}, "file", (None, {})),
        ({"reward.json": b"1" + b"0" * 400}, "file", (None, {})),
        ({"reward.json": b"[" * 5_000}, "file", (None, {})),
        ({"reward.txt": b"\xff"}, "file", (None, {})),
        ({}, "file", (None, {})),
        ({"reward.txt": b".5"}, "file", (0.5, {})),
        ({"reward.txt": b"1e999"}, "file", (None, {})),
        ({"reward.json": b'{"reward": true}'}, "file", (None, {})),
        ({"reward.json": b'{"reward": 1, "style": "1"}'}, "file", (None, {})),
        ({"reward.txt": b"1"}, "status", (0.0, {})),
    ],
)
def test_the_number_is_read(files: dict[str, bytes], by: str, value: Any) -> None:
    assert value_of(Verified(CommandEnd(1, b""), files), by) == value


@pytest.mark.parametrize(
    ("weights", "value"),
    [
        (None, (1.0, {"a": 0.5, "b": 0.25})),
        ({"a": 1.0}, (0.5, {"a": 0.5, "b": 0.25})),
        ({"a": 2.0, "b": 4.0}, (2.0, {"a": 0.5, "b": 0.25})),
        ({"reward": 0.5, "b": 1.0}, (0.75, {"a": 0.5, "b": 0.25})),
        ({"a": 1.0, "c": 1.0}, (None, {})),
        ({"c": 1.0}, (None, {})),
    ],
)
def test_the_number_is_the_sum_of_weighted_keys_that_are_all_there(
    weights: dict[str, float] | None, value: Any
) -> None:
    files = {"reward.json": b'{"reward": 1, "a": 0.5, "b": 0.25}'}
    assert value_of(Verified(CommandEnd(0, b""), files), "file", weights) == value


@pytest.mark.parametrize(
    ("code", "value"), [(0, 1.0), (1, 0.0), (-9, 0.0), (125, 0.0), (126, None), (127, None), (128, 0.0), (None, None)]
)
def test_a_status_is_the_number_where_the_command_was_run(code: int | None, value: float | None) -> None:
    assert value_of(Verified(CommandEnd(code, b""), {"reward.txt": b"0.5"}), "status") == (value, {})


SUMMARIES = {
    "pytest": "==== 1 failed, 2 passed, 3 xfailed, 1 warning in 0.12s ====",
    "unittest": "Ran 5 tests in 0.001s\n\nFAILED (failures=1)",
    "jest": "Tests:       1 failed, 5 passed, 6 total",
    "cargo": "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
    "go": "FAIL\nFAIL\texample\t0.007s",
}


def read(text: str, format: str, end: str | None = None) -> dict[str, bool | str]:
    """The tests that a log names which ends as its framework ends it."""
    is_report = format == "junit" or "numT" in text or "numF" in text
    end = ("" if is_report else f"\n{SUMMARIES[format]}\n") if end is None else end
    return passed_in(f"{text}{end}", format)[0]


LOGS = Path(__file__).parent / "logs"
TOLD: dict[str, tuple[dict[str, bool], list[str]]] = {
    "pytest": (
        {"test_a.py::test_good": True, "test_a.py::test_bad": False, "test_a.py::test_each[one]": False,
         "test_a.py::test_each[two words]": True, "test_a.py::test_each[a - b]": True,
         "test_a.py::test_each[PASSED x]": True, "test_a.py::test_each[two": True, "test_a.py::test_known": True,
         "test_a.py::test_wrongly_known": False, "test_a.py::test_no_fixture": False, "test_a.py::test_torn": False,
         "test_a.py::TestIn::test_inner": True, "test_a.py::test_shouts": False},
        ["test_a.py::test_left_out", "test_a.py::test_none"],
    ),
    "unittest": (
        {"test_good (test_u.TestA.test_good)": True, "test_good (test_u.TestA)": True, "test_u.TestA.test_good": True,
         "test_bad (test_u.TestA.test_bad)": False, "test_broken (test_u.TestA)": False,
         "test_known (test_u.TestA)": True, "test_left_out (test_u.TestA)": False, "test_told (test_u.TestA)": True,
         "A docstring tells of it.": True, "test_wrongly_known (test_u.TestA)": False,
         "test_parts (test_u.TestA)": False, "test_shouts (test_u.TestA)": True},
        ["test_none (test_u.TestA)"],
    ),
    "go": (
        {"TestGood": True, "TestBad": False, "TestSkipped": False, "TestParts": False, "TestParts/one": True,
         "TestParts/two_words": False},
        ["TestNone"],
    ),
    "jest": ({"slow": True, "bad": False, "left out": False, "good (1)": True, "to do": False}, ["none"]),
    "cargo": (
        {"tests::good": True, "tests::bad": False, "tests::left_out": False, "tests::panics": True,
         "src/lib.rs - one (line 1)": True},
        ["tests::none"],
    ),
}  # fmt: skip
"""By format, what each test of the programs in `logs` comes to, and tests that the log says nothing of."""


def holds(text: str, format: str, of: str) -> None:
    found = read(text, format)
    told, untold = TOLD[of]
    assert {name: is_passed(name, found) for name in told} == told
    assert not any(is_passed(name, found) for name in untold)


@pytest.mark.parametrize(("name", "format"), [("go.txt", "go"), ("go.jsonl", "go"), ("jest.txt", "jest"),
                                              ("jest.json", "jest"), ("cargo.txt", "cargo")])  # fmt: skip
def test_what_a_framework_printed_is_read(name: str, format: str) -> None:
    holds((LOGS / name).read_text(encoding="utf-8"), format, format)


FRAMEWORKS: dict[str, tuple[str, str, list[str]]] = {
    "pytest -rA": ("pytest", "pytest.py.txt=test_a.py", [sys.executable, "-m", "pytest", "-rA", "test_a.py"]),
    "pytest -v": ("pytest", "pytest.py.txt=test_a.py", [sys.executable, "-m", "pytest", "-v", "test_a.py"]),
    "junit": ("junit", "pytest.py.txt=test_a.py",
              [sys.executable, "-m", "pytest", "-q", "--junitxml=/dev/stderr", "test_a.py"]),
    "unittest": ("unittest", "unittest.py.txt=test_u.py", [sys.executable, "-m", "unittest", "-v", "test_u"]),
    "go": ("go", "a_test.go=a_test.go", ["go", "test", "-v", "."]),
    "go -json": ("go", "a_test.go=a_test.go", ["go", "test", "-json", "."]),
    "cargo": ("cargo", "lib.rs=src/lib.rs", ["cargo", "test", "--no-fail-fast", "--offline"]),
}  # fmt: skip
PARTS = {"go.mod": "module example\ngo 1.19\n", "Cargo.toml": '[package]\nname = "example"\nedition = "2021"\n'}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.sandbox
def test_what_a_framework_prints_here_is_read(tmp_path: Path, name: str) -> None:
    format, source, argv = FRAMEWORKS[name]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    file, target = source.split("=")
    (tmp_path / target).parent.mkdir(exist_ok=True)
    shutil.copy(LOGS / file, tmp_path / target)
    for part, text in PARTS.items():
        (tmp_path / part).write_text(text, encoding="utf-8")
    # Where CI is set, pytest's summary has the whole message, which may be of lines that look like other tests'.
    plain = {key: value for key, value in os.environ.items() if key not in ("CI", "BUILD_NUMBER")}
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, env=plain)
    said = ran.stderr if format == "junit" else ran.stdout + ran.stderr
    if name != "unittest":
        holds(said, format, "pytest" if format == "junit" else format)
    else:
        # Both streams are one in a machine; here they come one behind the other.
        holds(ran.stderr, format, format)


def test_a_line_that_begins_many_tests_is_read_once() -> None:
    """By a search from each of its beginnings it takes hours."""
    for format, begins, ends in (("cargo", "test ", "x ... FAILED"), ("go", "--- FAIL: ", "x ("), ("jest", "✕ ", "x")):
        assert read(f"z{begins * 400_000}{ends}", format)["x"] is False


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pytest", "PASSED a.py::test_b\nFAILED a.py::test_b - assert 0\n"),
        ("pytest", "a.py::test_b PASSED [ 50%]\na.py::test_b SKIPPED (no) [100%]\n"),
        ("pytest", "PASSED\na.py::test_b\n"),
        ("pytest", "FAILED a.py::test_c - x\nERROR a.py::test_b\nPASSED a.py::test_b\n"),
        ("unittest", "a.py::test_b (x) ... ok\n"),
        ("go", '{"Action":"pass","Test":["a.py::test_b"]}\n{"Action":"pass","Test":'),
        ("jest", '{"testResults":[7,{"assertionResults":{"title":"a.py::test_b"}},{"assertionResults":[[]]}]}'),
        ("jest", "[" * 100_000),
        ("cargo", "test a.py::test_b ... ok ... FAILED\n"),
        ("cargo", "\ntest a.py::test_b ... ok\nzztest a.py::test_b ... FAILED\n"),
        ("cargo", "test a.py::test_b ... ok\nzzFAILED\n\nfailures:\n\n---- a ----\n\nfailures:\n    a.py::test_b\n\n"),
        ("cargo", "test a.py::test_b ... ok\nfailures:\n\n    a.py::test_b\ntest result: FAILED\nfailures:\n    c\n"),
        ("cargo", "test a.py::test_b ... ok\nzztest a.py::test_b ... ignored\n"),
        ("pytest", "(i='a b') SUBFAIL a.py::test_b - x PASSED\na.py::test_b PASSED [ 50%]\n"),
        ("pytest", "PASSED a.py::test_b\nSUBFAILED[my [words]] (i='a b') a.py::test_b - x\n"),
        ("pytest", "a.py::test_b SUBSKIPPED[two] (x) [ 50%]\na.py::test_b PASSED [ 50%]\n"),
        ("pytest", "[gw1] [ 50%] FAILED a.py::test_b \nPASSED a.py::test_b\n"),
        ("go", "--- PASS: a.py::test_b (0.00s)\nzz--- FAIL: a.py::test_b (0.00s)\n"),
        ("pytest", "PASSED a.py::test_b\nERROR a.py\n"),
        ("pytest", "__ ERROR collecting a.py __\na.py::test_b PASSED [ 50%]\n"),
        ("pytest", "ERROR a.py - ImportError: x::y\nPASSED a.py::test_b\n"),
        ("pytest", "PASSED a.py::test_b\n!!!!! KeyboardInterrupt !!!!!\n"),
        ("pytest", "PASSED a.py::test_b\n!!! _pytest.outcomes.Exit: x !!!\n"),
        ("pytest", "PASSED a.py::test_b\n!!! Interrupted: 1 error during collection !!!\n"),
        ("pytest", "PASSED a.py::test_b\nINTERNALERROR> x\n"),
        ("pytest", "PASSED a.py::test_b\nmainloop caused unexpected SystemExit!\n"),
        ("pytest", "PASSED a.py::test_b\nImportError while loading conftest '/a/conftest.py'.\n"),
        ("unittest", "test_b (a.py) ... ok\nERROR: a (unittest.loader._FailedTest.a)\n"),
        ("unittest", "test_b (a.py) ... ok\nERROR: t.a (unittest.loader._FailedTest)\n"),
        ("unittest", "test_b (a.py) ... ok\nERROR: setUpClass (t.a.py)\n"),
        ("unittest", "test_b (a.py) ... ok\nERROR: setUpModule (t.a)\n"),
        ("unittest", "x (b.B)\na.py::test_b ... ok\nyFAIL\n===\nFAIL: x (b.B.x)\na.py::test_b\n---\n"),
        ("jest", "✓ a.py::test_b\n  ● Test suite failed to run\n"),
        ("jest", "  ● Test suite failed to run\n    x\n    ✓ a.py::test_b\n"),
        (
            "pytest",
            "!!! _pytest.outcomes.Exit: x\nPASSED a.py::test_b\n",
        ),
        (
            "jest",
            '✓ a.py::test_b\n{"numFailedTestSuites":1,"numTotalTestSuites":1,"testResults":[]}\n',
        ),
        ("jest", '{"numFailedTestSuites":1,"numTotalTestSuites":1,"testResults":[]}\n✓ a.py::test_b\n'),
        (
            "jest",
            '{"numTotalTestSuites":1,"testResults":[{"assertionResults":[{"title":"a.py::test_b","status":"passed"}]}]}'
            '{"numTotalTestSuites":1,"testResults":[{"assertionResults":[]}]}',
        ),
        ("cargo", "test a.py::test_b ... ok\nerror: could not compile `a` (lib) due to 1 error\n"),
        ("cargo", "test a.py::test_b ... ok\nerror: failed to run custom build command for `a`\n"),
        ("cargo", "test a.py::test_b ... ok\n  process didn't exit successfully: `a` (signal: 6, SIGABRT: x)\n"),
        ("go", "--- PASS: a.py::test_b (0.00s)\npanic: x\n\ngoroutine 1 [running]:\nexit status 2\n"),
        ("pytest", "a.py::test_b  PASSED PASSED PASSEDFAILED                [ 50%]\n"),
        ("pytest", "a.py::test_b PASSEDxSKIPPED (a long reason)\n"),
        ("unittest", "test_b (a) ... ok\nxskipped 'it\\'s late'\n"),
        ("unittest", "test_b (a) ... ok\nzztest_b (a.test_b) ... skipped 'no'\n"),
        ("unittest", "test_b (a) ... ok\n- test_b (a) ... skipped 'no'\n"),
        ("unittest", "test_b (a) ... ok\na (unittest.loader.ModuleSkipped.a) ... skipped 'no'\n"),
        ("jest", "✓ a.py::test_b\n○ skipped a.py::test_b\n"),
        ("jest", "✓ a.py::test_b\n    1) a.py::test_b\n  3 passing (5ms)\n"),  # of mocha
        ("go", "--- PASS: a.py::test_b (0.00s)\nok  \ta\t0.002s\n"),
        ("go", '{"Action":"pass","Package":"a","Test":"a.py::test_b"}\n{"Action":"pass","Package":"a"}\n'),
        ("cargo", "test a.py::test_b ... ok\n     Running tests/u.rs (target/debug/deps/u-4fe54b1058653523)\n"),
        ("junit", '<testcase classname="a" name="test_b"><failure/></testcase>'),
        ("junit", '<testcase classname="a" name="test_b" status="notrun" result="suppressed"/>'),  # of GoogleTest
        ("junit", '<testcase classname="a" name="test_b" status="disabled"/>'),  # of ctest
    ],
)
def test_no_text_makes_a_test_pass_that_is_told_otherwise(format: str, text: str) -> None:
    assert not is_passed("a.py::test_b", read(text, format))


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("pytest", "PASSED b::b"),
        ("pytest", "b::b PASSED [100%]"),
        ("unittest", "b (b) ... ok"),
        ("go", "--- PASS: b::b (0.00s)"),
        ("jest", "✓ b::b (1 ms)"),
        ("cargo", "test b::b ... ok"),
    ],
)
def test_a_test_passes_behind_whose_line_a_summary_of_its_framework_stands(format: str, line: str) -> None:
    ends = [None, "", f"\n{SUMMARIES[format]}\nafter\n"]
    assert [is_passed("b::b", read(line, format, end)) for end in ends] == [True, False, True]
    assert not is_passed("b::b", read(f"{SUMMARIES[format]}\n{line}", format, ""))
    assert is_passed("b::b", read(f"{line}\n{SUMMARIES[format]}\n".replace("\n", "\r\n"), format, ""))
    assert not any(read(f"{line}\nb::c FAILED\nFAIL: c (b)\n✕ b::c\ntest b::c ... FAILED", format, "").values())
    assert is_passed("b::b", passed_in(line, format, trusts=True)[0])


@pytest.mark.parametrize(
    ("format", "text", "counted"),
    [
        ("pytest", "3 passed in 0.01s\n= 1 failed, 2 passed, 1 xfailed, 1 xpassed, 9 subtests passed in 1.2s =", 6),
        (
            "pytest",
            "= 2 passed, 1 pytest-warnings in 0.12 seconds =\n= 4 passed, 2 rerun in 61.00s (0:01:01) =",
            6,
        ),
        ("pytest", "Results (0.30s):\n         3 passed\n         2 xfailed\n         1 warning\n", 5),
        ("unittest", "Ran 12 tests in 0.001s\n\nOK (skipped=3)\nRan 1 test in 0.1s\n\nFAILED (errors=1)", 13),
        (
            "cargo",
            "test ui/a.rs ... ok\ntest result: ok. 5 passed\ntest result: FAILED. 2 passed; 3 failed",
            8,
        ),
        ("pytest", "9 passed\n9 passed tests\n== 9 skipped in 0.1s ==\n", 0),
    ],
)
def test_the_summaries_of_all_runs_of_a_log_are_counted(format: str, text: str, counted: float) -> None:
    assert passed_in(text, format)[1] == counted


def test_what_a_class_that_cannot_be_collected_or_is_skipped_would_have_run_has_not_passed() -> None:
    found = read("PASSED a.py::T::b\nPASSED a.py::U::b[x::y]\nERROR a.py::T - x\n", "pytest")
    assert [is_passed(f"a.py::{one}", found) for one in ("T::b", "U::b[x::y]")] == [False, True]
    left_out = "setUpClass (s.t.A) ... skipped 'no'\ns.m (unittest.loader.ModuleSkipped.s.m) ... skipped 'no'\n"
    tests = ["s.t.A", "s.t.B", "s.m.A", "r.m.A"]
    found = read("".join(f"b ({one}.b) ... ok\n" for one in tests) + left_out, "unittest")
    assert [is_passed(f"b ({one}.b)", found) for one in tests] == [False, True, False, True]


@pytest.mark.parametrize(
    ("format", "name", "text"),
    [
        ("pytest", "a.py::b[FAILED (x)]", "PASSED a.py::b[FAILED (x)]\n"),
        ("unittest", "b (t.A)", "c (t.A) ... skipped 'no'\nlog. b (t.A) ... ok\nd (t.A) ... x\nskipped 'no'\n"),
        ("jest", "skipped are shown", "✓ skipped are shown (2 ms)\n"),
        ("pytest", "a.py::b", "PASSED a.py::b\nERROR c.py - x\n_ ERROR collecting c.py _\n!! stopping after 1 !!\n"),
        ("unittest", "b (t.A)", "b (t.A) ... ok\nERROR: c (unittest.loader._FailedTest.c)\nERROR: setUpClass (t.C)\n"),
        ("unittest", "Told.", "x (t.A)\nTold. ... ok\nFAIL: c (t.A)\n-----\nTold.\nERROR: setUpClass (t.C)\n"),
        ("jest", "b", 'x {"numTotalTestSuites":1,"testResults":'
             '[{"assertionResults":[{"title":"b","status":"passed"}]}]} y'),
        ("jest", "b", "{ x\n✓ b\n"),
        ("cargo", "b", "test b ... ok\nprocess didn't exit successfully: `a` (exit status: 101)\n"),
        ("go", "b", "--- PASS: b (0.00s)\ngoroutine 19 [running]:\nFAIL\nexit status 1\nFAIL\tc [build failed]\n"),
    ],
)  # fmt: skip
def test_what_passed_passes_beside_what_is_broken(format: str, name: str, text: str) -> None:
    assert is_passed(name, read(text, format))


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pytest", "a.py::b XFAIL (said)"),
        ("pytest", "XFAIL a.py::b - said"),
        ("unittest", "b (a.A.b) ... expected failure"),
        ("junit", '<testcase classname="a" name="b"><skipped type="pytest.xfail" message="said"/></testcase>'),
    ],
)
def test_what_fails_as_expected_is_passed_in_pass_to_pass_alone(format: str, text: str) -> None:
    """Code under test has any test expected to fail: it calls pytest.xfail."""
    found = read(text, format)
    name = "b (a.A.b)" if format == "unittest" else "a.py::b"
    values = {names: value_by_name(found, inf, "share", names)[0] for names in (((name,), ()), ((), (name,)))}
    assert list(values.values()) == [0.0, 1.0]


@pytest.mark.parametrize(("format", "end"), [("jest", "\n  1 test passed\n"), ("go", "\nstrayPASS\nok  \ta\t0.1s\n")])
def test_other_summaries_are_read(format: str, end: str) -> None:
    line = {"jest": "✔ b (1 ms)", "go": "--- PASS: b (0.00s)"}[format]
    assert is_passed("b", read(line, format, end))
    assert not is_passed("b", read(line, format, "\n=== RUN   TestPASS\n"))


def test_a_test_told_by_its_docstring_fails_where_a_module_is_not_loaded() -> None:
    text = "x (b.B)\nOf a test. ... ok\nERROR: c (unittest.loader._FailedTest.c)\n"
    assert read(text, "unittest")["Of a test."] is False


def test_a_log_has_no_more_reports_than_are_read() -> None:
    with pytest.raises(ValueError, match="10 reports"):
        read('{"numTotalTestSuites":' * 11, "jest")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no element"),
        ("<a>", "no element"),
        ("<a>" * 101, "within each other"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "entities"),
        ("\0", "token"),
    ],
)
def test_a_report_that_is_none_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(text, "junit")


def test_a_log_names_no_more_tests_than_are_kept_without_all_threads_waiting() -> None:
    """And long texts between the tags of a report are no tags."""
    with pytest.raises(ValueError, match="300,000 tests"):
        read("".join(f"PASSED a::{number}\n" for number in range(300_001)), "pytest")
    many = " ".join(f"a{number}='>'" for number in range(60_000))
    with pytest.raises(ValueError, match="262,144 bytes"):
        read(f"<a>{'ä' * 500_000}<b {many}/></a>", "junit")
    report = "<a>{0}<![CDATA[{0}]]><testcase classname='t' name='b'><failure message='{1}'/>{0}</testcase></a>"
    assert read(report.format("ä" * 900_000, "x" * 200_000), "junit") == {"t.b": False}


@pytest.mark.parametrize("format", ["pytest", "unittest", "go", "jest", "cargo"])
@pytest.mark.parametrize(
    "part",
    [
        *("::", " ... ", "PASSED ( ", " FAIL", " FAILx::", "test_a (", "--- PASS: ", "✓ (1 ", "\x1b[1", '{"', " \t"),
        *("1 a, ", "Ran 1 tests in ", "skipped '", "PASSED FAILED  ", "OK (", "Running (", "1 passed 1111"),
        *("ERROR a\n", "!! Interrupted: \nPASSED a::b\n", "_ ERROR collecting _ ", "ERROR: a.", "ERROR - ", "ERROR "),
    ],
)
def test_a_log_is_read_in_time_that_grows_with_its_length(format: str, part: str) -> None:
    began = time.thread_time()
    read(part * (400_000 // len(part)), format)
    assert time.thread_time() - began < 2  # what grows with its square takes minutes


@pytest.mark.parametrize("format", ["pytest", "unittest", "go", "jest", "cargo"])
def test_a_log_is_read_a_piece_at_a_time(format: str) -> None:
    text = "ab\n" * 300_000
    tracemalloc.start()
    try:
        assert read(text, format) == {}
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("long", ["FAILED a::b - {}\n", "{}\nFAILED a::b\n", "a::b FAILED {}\n"])
def test_a_line_that_is_longer_than_a_piece_says_what_it_says(long: str) -> None:
    found = read(f"PASSED a::b\n{long.format('x' * 200_000)}PASSED a::c\n", "pytest")
    assert (found["a::b"], found["a::c"]) == (False, True)


@pytest.mark.parametrize("short", range(1, 25))
def test_no_length_of_a_line_parts_the_mark_at_its_end(short: int) -> None:
    text = f"--- PASS: a (0.00s)\n{'y' * 60_000}\n{'x' * (65_536 - short)}--- FAIL: a (0.00s)\n"
    assert read(text, "go")["a"] is False


def test_a_test_of_ctest_is_told_by_its_name() -> None:
    text = '<a><testcase name="b/c" classname="b/c"/><testcase name="d" classname="d"><failure/></testcase></a>'
    found = read(text, "junit")
    assert [is_passed(name, found) for name in ("b/c", "d", "e")] == [True, False, False]


def test_a_test_of_pytest_s_is_told_with_xdist_and_with_a_status_in_its_parameters() -> None:
    text = "[gw0] [ 50%] PASSED a.py::b[c d] \na.py::b[SKIP x FAILED y] PASSED [100%]\n"
    found = read(text, "pytest")
    assert is_passed("a.py::b[c d]", found) and is_passed("a.py::b[SKIP x FAILED y]", found)  # noqa: PT018


def test_a_report_is_read_a_piece_at_a_time() -> None:
    said = "<system-out>" + "x > y &lt; z\n" * 20_000 + "</system-out>"
    ends = {"b": "<failure/>", "c": ""}
    tests = (f'<testcase classname="t" name="{name}">{said}{end}</testcase>' for name, end in ends.items())
    assert read(f"<a>{''.join(tests)}</a>", "junit") == {"t.b": False, "t.c": True}


TESTED = """
import sys
sys.path.insert(0, "/app")
import unittest, total
class TestTotal(unittest.TestCase):
    def test_sum(self): self.assertEqual(total.total([1, 2]), 3)
    def test_none(self): self.assertEqual(total.total([]), 0)
    def test_name(self): self.assertEqual(total.__name__, "total")
unittest.main(module="__main__", argv=["-", "-v"])
"""
FORGED = """cat > total.py <<'END'
import os
tests = "".join(f"test_{{one}} (__main__.TestTotal) ... ok\\n" for one in ("sum", "none", "name"))
os.write(2, f"{{tests}}{}".encode())
os._exit(0)
END"""
BY_NAME: dict[str, tuple[str, float, float]] = {
    "nothing": ("true", 0.0, 0.0),
    "solved": ("echo 'total = sum' > total.py", 1.0, 1.0),
    "half": ("echo 'total = lambda ns: 3' > total.py", 0.0, 0.5),
    "breaks what passed": ("printf '__name__ = 1\\ntotal = sum\\n' > total.py", 0.0, 0.0),
    "prints": (
        "printf 'import sys\\ndef total(n):\\n print(\"ok\", file=sys.stderr); return 5\\n' > total.py",
        0.0,
        0.0,
    ),
    "prints passes and ends": (FORGED.format(""), 0.0, 0.0),
    "prints passes and a summary of fewer": (FORGED.format("Ran 2 tests in 0.1s\\n\\nOK\\n"), 0.0, 0.0),
    "skips": ("printf 'import unittest\\ndef total(n): raise unittest.SkipTest(n)\\n' > total.py", 0.0, 0.0),
    "ends the tests": ("echo 'import os; os.kill(os.getppid(), 9); os._exit(0)' > total.py", 0.0, 0.0),
    "floods": ("echo 'while True: print(\"x\" * 9000)' > total.py", 0.0, 0.0),
}


@pytest.mark.parametrize("credit", ["all", "share"])
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.sandbox
def test_tests_by_name_are_worth(reachable: Path, name: str, credit: str) -> None:  # noqa: F811
    act, whole, share = BY_NAME[name]
    of = "(__main__.TestTotal)"
    log = {"format": "unittest", "fail_to_pass": [f"test_sum {of}", f"test_none {of}"], "credit": credit}
    log["pass_to_pass"] = json.dumps([f"test_name {of}"])
    spec = written(reachable, log=log, run="python3 -I /tests/run.py", time_s=3 if name == "floods" else 20)
    (reachable / "tests" / "run.py").write_text(TESTED, encoding="utf-8")
    begins_with(spec, "total.py", "total = None\n")
    trajectory, _ = played(spec, [act])
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.reward.total == (whole if credit == "all" else share)


@pytest.mark.sandbox
def test_who_breaks_tests_that_crash_at_first_earns_nothing_and_is_not_invalid(reachable: Path) -> None:  # noqa: F811
    names = {"fail_to_pass": ["test_none (__main__.TestTotal)"], "pass_to_pass": ["test_name (__main__.TestTotal)"]}
    spec = written(reachable, log={"format": "unittest", **names}, run="python3 -I /tests/run.py")
    (reachable / "tests" / "run.py").write_text(TESTED, encoding="utf-8")
    begins_with(spec, "total.py", "import os\ndef total(ns): os._exit(1)\n")
    for act in ("true", "echo 'raise SystemExit' > total.py"):
        trajectory, _ = played(spec, [act])
        assert (trajectory.failure, trajectory.reward.total) == (None, 0.0)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ({"fail_to_pass": "[1]", "pass_to_pass": []}, "expected a list of names"),
        ({"fail_to_pass": "test_a", "pass_to_pass": []}, "expected a list of names"),
        ({"fail_to_pass": [], "pass_to_pass": "[]"}, "names no test"),
        ({}, "FAIL_TO_PASS"),
    ],
)
@pytest.mark.sandbox
def test_a_row_without_names_of_tests_is_invalid(reachable: Path, log: dict[str, Any], says: str) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, log={"format": "pytest", **log}), [])
    assert trajectory.failure is not None
    assert says in trajectory.failure.message


@pytest.mark.sandbox
def test_keys_of_the_reward_may_have_weights(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, weights={"works": 0.75, "short": 0.25}, run="cat /app/found > /logs/verifier/reward.json")
    trajectory, _ = played(spec, ['echo \'{"works": 1, "short": 0, "other": 5}\' > found'])
    assert (trajectory.failure, trajectory.reward.total) == (None, 0.75)
    assert trajectory.reward.terms["solved"].details["numbers"] == {"works": 1, "short": 0, "other": 5}


def begins_with(spec: Path, name: str, text: str) -> None:
    """Lets the machine begin with a file in its working folder."""
    (spec.parent / "data" / name).parent.mkdir(parents=True)
    (spec.parent / "data" / name).write_text(text, encoding="utf-8")
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["resources"]["machine"]["path"] = "data"
    spec.write_text(json.dumps(held), encoding="utf-8")


@pytest.mark.sandbox
def test_tests_that_never_ran_are_the_tasks_fault_where_some_pass_all_along(reachable: Path) -> None:  # noqa: F811
    log = {"format": "unittest", "fail_to_pass": ["test_a (m.C)"], "pass_to_pass": ["test_b (m.C)"]}
    trajectory, _ = played(written(reachable, log=log, run="python3 -m no_such_framework"), [SOLVE])
    assert trajectory.failure is not None
    assert "not even over the untouched image" in trajectory.failure.message


@pytest.mark.sandbox
def test_what_breaks_the_tests_earns_nothing_where_they_need_what_the_machine_began_with(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, run="cat /app/needed > /logs/verifier/reward.txt")
    begins_with(spec, "needed", "1\n")
    for act, worth in (("true", 1.0), ("rm needed", 0.0)):
        trajectory, _ = played(spec, [act])
        assert (trajectory.failure, trajectory.reward.total) == (None, worth)


PATCH = """diff --git a/tests/test_a.sh b/tests/test_a.sh
--- a/tests/test_a.sh
+++ b/tests/test_a.sh
@@ -1 +1 @@
-exit 1
+[ "$(cat /app/answer)" = 5 ]
diff --git a/tests/new/helper.sh b/tests/new/helper.sh
new file mode 100644
--- /dev/null
+++ b/tests/new/helper.sh
@@ -0,0 +1 @@
+: a helper
"""
OVER: dict[str, tuple[str, float]] = {
    "nothing": ("true", 0.0),
    "solved": ("echo 5 > answer", 1.0),
    "writes over the test": ("echo exit 0 > tests/test_a.sh", 0.0),
    "removes the tests, solved": ("rm -r tests; echo 5 > answer", 1.0),
    "a folder in the test's place": ("rm tests/test_a.sh; mkdir tests/test_a.sh; echo 5 > answer", 1.0),
    "a file in the folder's place": ("echo exit 0 > tests/new; echo 5 > answer", 1.0),
    "a link in the folder's place": (
        "mkdir mine; echo exit 0 > mine/test_a.sh; rm -r tests; ln -s mine tests",
        0.0,
    ),
    "a helper in the folder": ("mkdir tests/new; echo 'kill -9 $PPID' > tests/new/helper.sh; echo 5 > answer", 1.0),
}


@pytest.mark.parametrize("name", OVER)
@pytest.mark.sandbox
def test_the_files_of_a_patch_stand_over_what_was_left(reachable: Path, name: str) -> None:  # noqa: F811
    act, worth = OVER[name]
    run = "sh tests/new/helper.sh && sh tests/test_a.sh"
    spec = written(reachable, by="status", run=run, tests=None, patch=PATCH)
    begins_with(spec, "tests/test_a.sh", "exit 1\n")
    trajectory, _ = played(spec, [act])
    assert (trajectory.failure, trajectory.reward.total) == (None, worth)


@pytest.mark.sandbox
def test_a_patch_that_cannot_be_applied_is_the_tasks_fault(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, by="status", run="true", tests=None, patch=PATCH)
    trajectory, _ = played(spec, ["mkdir tests; echo exit 1 > tests/test_a.sh"])
    assert trajectory.failure is not None
    assert "the patch cannot be applied to the untouched image" in trajectory.failure.message


@pytest.mark.sandbox
def test_tests_of_machines_in_which_nothing_was_done_are_run_once_a_task(reachable: Path) -> None:  # noqa: F811
    async def play() -> list[tuple[Any, bool]]:
        found = []
        async with load(written(reachable)) as environment:
            for acts in ((), (), ("true",), ()):
                async with environment.start(task=0, split="test", seed=1) as episode:
                    for act in acts:
                        call = json.dumps({"name": "bash", "arguments": {"command": act}})
                        await episode.step(f"<tool_call>\n{call}\n</tool_call>")
                    await episode.step("Done.")
                    term = episode.trajectory.reward.terms["solved"]
                    found.append((term.value, term.details["boots"] > 0))
        return found

    assert asyncio.run(play()) == [(0.0, True), (0.0, False), (0.0, True), (0.0, False)]


def with_rows(spec: Path, rows: list[dict[str, Any]], **keys: Any) -> list[Any]:
    """The terms of episodes that do nothing, one on each row; `keys` are the machine's."""
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["tasks"]["test"]["rows"] = rows
    held["resources"]["machine"].update(keys)
    spec.write_text(json.dumps(held), encoding="utf-8")

    async def play() -> list[Any]:
        found = []
        async with load(spec) as environment:
            for task in range(len(rows)):
                async with environment.start(task=task, split="test", seed=1) as episode:
                    await episode.step("Done.")
                    found.append(episode.trajectory.reward.terms["solved"])
        return found

    return asyncio.run(play())


@pytest.mark.sandbox
def test_a_number_is_no_other_machines(reachable: Path) -> None:  # noqa: F811
    is_right = '[ "$RIGHT" = 1 ] && [ "$(stat -c %u .)" = 0 ] && [ "$PWD" = /app ]'
    base = {"env": {"RIGHT": "1"}, "who": "", "at": "/app"}
    others: tuple[dict[str, Any], ...] = (
        {},
        {"env": {"WRONG": "1"}},
        {"at": "/srv"},
        {"who": "7"} if os.geteuid() == 0 else {"at": "/tmp"},
    )
    rows = [{"id": str(number), **base, **one} for number, one in enumerate(others)]
    spec = written(reachable, command=is_right, by="status", keep=["/app"])
    keys = {"env": "{{ task.env }}", "user": "{{ task.who }}", "cwd": "{{ task.at }}"}
    assert [term.value for term in with_rows(spec, rows, **keys)] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.sandbox
@pytest.mark.parametrize("changed", ["tests/test.sh", "start/answer"])
def test_a_number_is_one_of_these_contents(reachable: Path, changed: str) -> None:  # noqa: F811
    (reachable / "start").mkdir()
    (reachable / "start" / "answer").write_text("no", encoding="utf-8")
    spec = written(reachable, command=". /tests/test.sh", by="status")
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["resources"]["machine"]["path"] = "start"
    spec.write_text(json.dumps(held), encoding="utf-8")
    (reachable / "tests" / "test.sh").write_text("grep -q yes answer", encoding="utf-8")

    async def play() -> list[float | None]:
        found = []
        async with load(spec) as environment:
            for text in ("", "grep -q yes answer || echo yes | grep -q yes"):
                if text:
                    (reachable / changed).write_text(text, encoding="utf-8")
                async with environment.start(task=0, split="test", seed=1) as episode:
                    await episode.step("Done.")
                    found.append(episode.trajectory.reward.terms["solved"].value)
        return found

    assert asyncio.run(play()) == [0.0, 1.0]


@pytest.mark.sandbox
def test_a_number_of_tests_that_were_stopped_is_not_kept(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, command="echo 1 > /logs/verifier/reward.txt; sleep 60", time_s=0.5)
    terms = with_rows(spec, [{"id": "a"}, {"id": "b"}])
    assert [(term.value, term.details["boots"] > 0) for term in terms] == [(1.0, True), (1.0, True)]


@pytest.mark.parametrize("key", ["keep", "exclude"])
@pytest.mark.sandbox
def test_a_row_with_a_text_in_the_place_of_paths_is_invalid(reachable: Path, key: str) -> None:  # noqa: F811
    keys: dict[str, Any] = {key: "{{ task.paths }}"}
    spec = written(reachable, **keys)
    (term,) = with_rows(spec, [{"id": "a", "paths": "/app/out"}])
    assert term.value is None
    assert f"{key}: found '/app/out'; expected a list of names" in term.error


def test_unittests_that_were_skipped_are_told_whatever_the_reason() -> None:
    log = "\n".join(
        f"test_{name} (test_x.A.test_{name}) ... {said}"
        for name, said in (("a", "ok"), ("b", "FAIL"), ("c", "skipped 'no network'"), ("d", "skipped"), ("e", "ERROR"))
    )
    found = read(log, "unittest")
    named = {name.rpartition("_")[2]: passed for name, passed in found.items() if name.startswith("test_x")}
    assert named == {"a": True, "b": False, "c": False, "d": False, "e": False}


def test_a_report_of_very_many_values_is_refused_before_it_is_read() -> None:
    """Python's reader holds all threads while it reads one value."""
    report = '{"numTotalTestSuites": 1, "more": [%s1], "testResults": []}'
    assert read(report % ("1," * 400_000), "jest") == {}
    own = '{"numFailedTestSuites": 0, "testResults": [{"assertionResults": [{"title": "b", "status": "passed"}]}]}'
    assert read('x {"numFailedTestSuites": y\n"numFailedTestSuites"\n' + own, "jest")["b"]
    with pytest.raises(ValueError, match="500,000 values"):
        read(report % ("1," * 500_001), "jest")
