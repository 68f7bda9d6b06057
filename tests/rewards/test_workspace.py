"""The reward `workspace`: what each way to leave a machine is worth."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import SpecError
from rlenv.rewards.workspace import value_of
from rlenv.tools.workspace.machine import Ran
from rlenv.tools.workspace.resource import Verified, Workspace
from tests.support.machines import SOLVE, children, played, reachable, written  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox
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
def test_what_an_episode_leaves_is_worth(reachable: Path, name: str) -> None:  # noqa: F811
    acts, worth = ACTS[name]
    time_s = 2 if "hangs the tests" in name else 20
    trajectory, _ = played(written(reachable, time_s=time_s), acts)
    assert trajectory.failure is None
    assert trajectory.reward.total == worth


def test_a_machine_that_is_killed_between_commands_has_its_number(reachable: Path) -> None:  # noqa: F811
    async def kill(workspace: Workspace) -> None:
        os.kill(children()[0], signal.SIGKILL)
        while not workspace.has_ended:  # noqa: ASYNC110 - it is told by the system alone
            await asyncio.sleep(0.01)

    trajectory, _ = played(written(reachable), [SOLVE, kill, "ls"])
    assert (trajectory.failure, trajectory.reward.total) == (None, 1.0)


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
        ({"run": "true"}, "not even over the untouched image"),
        ({"run": "exit 127", "by": "status"}, "not even over the untouched image"),
        ({"run": "sleep 100", "time_s": 1}, "late"),
        ({"tests": "none"}, "no folder of tests"),
    ],
)
def test_tests_that_give_no_number_anywhere_are_invalid(reachable: Path, keys: dict[str, Any], says: str) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, **keys), [SOLVE])
    assert trajectory.failure is not None
    assert says in trajectory.failure.message


def test_any_other_status_is_a_number_too(reachable: Path) -> None:  # noqa: F811
    trajectory, _ = played(written(reachable, by="status", run="python3 none.py || exit 2", tests=None), [])
    assert (trajectory.failure, trajectory.reward.total) == (None, 0.0)


@pytest.mark.parametrize(("acts", "worth"), [([], 0.0), (["echo 5 > /app/answer"], 1.0), (["echo 6 > answer"], 0.0)])
def test_an_exit_status_may_be_the_number(reachable: Path, acts: list[str], worth: float) -> None:  # noqa: F811
    run = '[ "$(cat answer 2>/dev/null)" = 5 ]'
    trajectory, _ = played(written(reachable, by="status", run=run, tests=None), acts)
    assert (trajectory.failure, trajectory.reward.total) == (None, worth)


@pytest.mark.parametrize(("keep", "seen"), [(["/app"], "a\n"), (["/app/a", "/srv"], "a s\n"), (["/"], "a b s\n")])
def test_the_tests_see_what_is_kept(reachable: Path, keep: list[str], seen: str) -> None:  # noqa: F811
    files = "[ -e /app/a ] && printf a; [ -e /app/b ] && printf ' b'; [ -e /srv/s ] && printf ' s'; echo"
    expected = "a b\n" if keep == ["/app"] else seen
    run = f'[ "$({files})" = "$(printf %s {expected.strip()!r})" ]'
    act = "touch /app/a /app/b /srv/s"
    trajectory, _ = played(written(reachable, by="status", run=run, tests=None, keep=keep), [act])
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
def test_programs_of_the_policys_run_before_the_tests_and_without_them(reachable: Path, name: str) -> None:  # noqa: F811
    program, worth = PROGRAMS[name]
    keys = {"collect": "sh /app/program > /app/gives", "run": "cmp -s /app/gives /tests/right", "by": "status"}
    spec = written(reachable, **keys, time_s=2)
    (reachable / "tests" / "right").write_text("6\n")
    trajectory, _ = played(spec, [f"cat > program <<'END'\n{program}\nEND"])
    assert trajectory.failure is None
    assert trajectory.reward.total == worth


def test_what_is_collected_is_a_part(reachable: Path) -> None:  # noqa: F811
    with pytest.raises(SpecError, match="a part of the files"):
        played(written(reachable, collect="true", keep=["/"]), [])


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
    assert value_of(Verified(Ran(1, b""), files), by) == value
