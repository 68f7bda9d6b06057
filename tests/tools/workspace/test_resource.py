"""The resource `workspace`: what commands leave in an episode, what is told of them, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlenv._base.paths import remove
from rlenv.cli.main import main
from rlenv.concurrency.processes import work_of
from rlenv.errors import ResourceError, UsageError
from rlenv.resources.base import ResourceContext
from rlenv.runs.recorded import recorded
from rlenv.tools.workspace.machine import MachineFailed
from rlenv.tools.workspace.resource import Workspace
from rlenv.tools.workspace.starters import chown, list_cgroups, sweep_folders
from tests.support.machines import (  # noqa: F401 - a fixture
    WAITS,
    assert_leaves_nothing,
    children,
    compiled,
    inside,
    killed_at_first,
    opened,
    played,
    reachable,
    written,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.sandbox


async def said(workspace: Workspace, command: str) -> str:
    ran = await workspace.run(command, 30)
    return ran.output.decode() + ran.why


def test_nothing_is_started_before_the_first_command(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        assert (workspace.boots, children()) == (0, [])
        await workspace.run("true", 30)
        assert (workspace.boots, len(children())) == (1, 1)

    opened(reachable, work)
    assert children() == []


def test_it_starts_with_a_folder_and_the_rows_values(reachable: Path) -> None:  # noqa: F811
    (reachable / "data" / "a" / "sub").mkdir(parents=True)
    (reachable / "data" / "a" / "sub" / "file").write_text("content\n")
    (reachable / "data" / "a" / "run.sh").write_text("echo ran\n")
    (reachable / "data" / "a" / "run.sh").chmod(0o755)

    async def work(workspace: Workspace) -> None:
        assert await said(workspace, "cat sub/file; sh run.sh; echo $WORD; pwd") == "content\nran\n5 x\n/srv/work\n"
        await workspace.run("echo changed > sub/file", 30)

    keys = {"path": "data/{{ task.id }}", "env": {"WORD": "{{ task.n }} x"}, "cwd": "/srv/work"}
    opened(reachable, work, task={"id": "a", "n": 5}, **keys)
    assert (reachable / "data" / "a" / "sub" / "file").read_text() == "content\n"
    with pytest.raises(ResourceError, match="machine"):
        opened(reachable, work, task={"id": "none", "n": 5}, **keys)


def test_a_folder_that_it_starts_with_keeps_modes_links_and_times_and_is_the_users(reachable: Path) -> None:  # noqa: F811
    (folder := reachable / "data" / "closed").mkdir(parents=True)
    (folder / "program").write_text("echo ran\n")
    (folder / "link").symlink_to("/etc/passwd")
    os.utime(folder / "program", (1, 1_000_000_000))
    (folder / "program").chmod(0o4711)
    folder.chmod(0o711)

    async def work(workspace: Workspace) -> None:
        look = (
            "stat -c '%n %a %u %Y' . closed closed/program; readlink closed/link; touch closed/n; stat -c %u closed/n"
        )
        uid = "1000" if os.geteuid() == 0 else "0"
        told = f". 750 {uid} \nclosed 711 {uid} \nclosed/program 4711 {uid} 1000000000\n/etc/passwd\n{uid}\n"
        assert re.sub(r"(\d) \d+$", r"\1 ", await said(workspace, look), count=2, flags=re.M) == told

    (reachable / "data").chmod(0o750)
    user: dict[str, Any] = {"user": 1000} if os.geteuid() == 0 else {}
    opened(reachable, work, path="data", **user)


def test_a_folder_that_cannot_be_copied_whole_is_no_start(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (reachable / "data").mkdir()
    (reachable / "data" / "file").write_text("content\n")
    (programs := reachable / "programs").mkdir()
    (programs / "cp").write_text("#!/bin/sh\necho cp: no such luck >&2\nexit 1\n")
    (programs / "cp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(ResourceError, match="no such luck"):
        opened(reachable, lambda _: None, path="data")


def test_what_stands_beside_a_spec_below_the_programs_is_hidden(tmp_path: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix="rlenv-test-", dir="/opt")) if os.access("/opt", os.W_OK) else None
    if beside is None:
        pytest.skip("/opt cannot be written to")
    try:
        (beside / "tests").mkdir(mode=0o755)
        beside.chmod(0o755)
        (beside / "tests" / "right").write_text("6")

        async def work(workspace: Workspace) -> None:
            assert (
                await said(workspace, f"test -d {beside} && cat {beside}/tests/right 2>/dev/null || echo none")
                == "none\n"
            )

        opened(beside, work)
    finally:
        shutil.rmtree(beside)


def test_an_image_is_what_the_machine_may_change(reachable: Path) -> None:  # noqa: F811
    image = reachable / "image"
    for path in ("/bin/busybox",):
        if not Path(path).exists():
            pytest.skip("busybox-static is not installed")
        (image / "bin").mkdir(parents=True)
        shutil.copy2(path, image / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "rm", "id", "echo"):
        (image / "bin" / name).symlink_to("busybox")
    (image / "etc").mkdir()
    (image / "etc" / "word").write_text("image\n")

    async def work(workspace: Workspace) -> None:
        assert (
            await said(workspace, "cat /etc/word; echo other > /etc/word; cat /etc/word; id -u") == "image\nother\n0\n"
        )
        assert (await workspace.run("rm /bin/sh; kill -9 $$", 30)).why == "ended"
        assert (await workspace.run("echo here", 30)).why == "broken"

    opened(reachable, work, image="image")
    assert (image / "etc" / "word").read_text() == "image\n"


def test_a_shell_that_ends_is_started_again_over_the_same_files(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        assert await said(workspace, "A=1; echo kept > file; cd /tmp; exit 3") == "ended"
        assert await said(workspace, 'cat file; echo "[$A]"; pwd') == "kept\n[]\n/app\n"
        assert (workspace.boots, workspace.is_cut) == (2, False)
        assert workspace.commands == 2

    opened(reachable, work)


def test_a_machine_that_is_killed_between_commands_lost_nothing(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("echo kept > file", 30)
        os.kill(children()[0], signal.SIGKILL)
        while not workspace.has_ended:  # noqa: ASYNC110 - it is told by the system alone
            await asyncio.sleep(0.01)
        assert await said(workspace, "cat file") == "kept\n"
        assert not workspace.is_cut

    opened(reachable, work)


def test_one_that_is_killed_while_it_starts_is_started_again(
    reachable: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed_at_first(reachable, monkeypatch, "mount")

    async def work(workspace: Workspace) -> None:
        assert await said(workspace, "echo here") == "here\n"
        assert workspace.boots == 2

    opened(reachable, work)


def test_one_that_is_killed_in_a_command_says_so(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("true", 30)
        running = asyncio.ensure_future(workspace.run("sleep 1000", 30))
        await asyncio.sleep(0)
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(MachineFailed):
            await running
        assert workspace.is_cut
        assert await said(workspace, "echo again") == "again\n"

    opened(reachable, work)


def test_what_grows_beyond_its_disk_is_stopped(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        fill = "for i in 1 2 3; do head -c 900000 /dev/zero > f$i; done"
        assert await said(workspace, fill) == "full"
        assert await said(workspace, "ls; rm f*; ls") == "f1\nf2\nf3\n"
        assert await said(workspace, "echo on > a; cat a") == "on\n"

    opened(reachable, work, disk_mb=2)


def test_what_grows_in_a_closed_folder_is_counted_too(reachable: Path) -> None:  # noqa: F811
    """Who is root inside enters it, and outside is a user whom it keeps out."""

    async def work(workspace: Workspace) -> None:
        fill = "mkdir closed; chmod 000 closed; for i in 1 2 3; do head -c 900000 /dev/zero > closed/f$i; done"
        assert await said(workspace, fill) == "full"

    opened(reachable, work, disk_mb=2)


def test_jobs_that_write_beyond_it_between_two_commands_are_stopped(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("(sleep 0.2; head -c 4M /dev/zero > big; sleep 1000) > /dev/null 2>&1 &", 30)
        async with asyncio.timeout(60):
            while not workspace.has_ended:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.05)

    opened(reachable, work, disk_mb=2)
    assert list_cgroups(f"rlenv-machine-{os.getpid()}-*") == []  # who had begun to end it was cancelled


def test_a_policys_terminals_are_bounded_for_it_alone(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        assert "max=64" in await said(workspace, "grep ' /dev/pts ' /proc/mounts")
        assert await said(workspace, "script -qec 'echo in a terminal' /dev/null") == "in a terminal\r\n"

    opened(reachable, work)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_no_other_user_of_the_host_reaches_its_files(reachable: Path) -> None:  # noqa: F811
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c"]

    async def work(workspace: Workspace) -> None:
        await workspace.run("touch file; chmod -R 777 /app", 30)
        look = [*nobody, f"cat {workspace.layer}/app/file"]
        found = await asyncio.to_thread(lambda: subprocess.run(look, capture_output=True, text=True))
        assert "Permission denied" in found.stderr

    opened(reachable, work)


FULL = """
import asyncio, os, pathlib, sys
from rlenv.resources.base import ResourceContext
from rlenv.testing.laws import compiled

async def main(disk):
    async with compiled("resources", {"kind": "workspace"}, base=disk).open(ResourceContext()) as workspace:
        assert (await workspace.run("echo 1 > answer", 30)).code == 0 and not workspace.is_cut
        try:
            (disk / "all").write_bytes(bytes(1 << 23))
        except OSError:
            pass
        await workspace.run("echo 2 > answer; true", 30)
        (disk / "all").unlink()
        assert workspace.is_cut

os.environ["TMPDIR"] = sys.argv[1]
asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a disk of its own")
def test_a_command_on_a_full_disk_is_no_doing_of_the_policys(reachable: Path) -> None:  # noqa: F811
    (disk := reachable / "disk").mkdir()
    mounts = 'mount -t tmpfs -o size=4m,mode=755 none "$1" && exec "$2" -c "$3" "$1"'
    ran = ["unshare", "-m", "sh", "-c", mounts, "sh", str(disk), sys.executable, FULL]
    done = subprocess.run(ran, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_come_one_after_the_other(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        found = await asyncio.gather(*[workspace.run(f"echo {n}; sleep 0.01; echo {n}", 30) for n in range(5)])
        assert [one.output for one in found] == [f"{n}\n{n}\n".encode() for n in range(5)]

    opened(reachable, work)


def test_a_machine_that_is_cancelled_while_it_starts_leaves_no_descriptor(reachable: Path) -> None:  # noqa: F811
    """Nobody is left who waits for its first line either: its end would wait for that."""

    async def work(workspace: Workspace) -> None:
        await workspace.run("true", 30)
        await workspace.freeze()
        before = os.listdir("/proc/self/fd")
        for steps in range(1, 9):
            running = asyncio.ensure_future(workspace.run("true", 30))
            for _ in range(steps):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait((running,))
            await workspace.freeze()
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == len(before)

    opened(reachable, work)
    assert children() == []


def test_an_episode_that_is_cancelled_while_it_opens_leaves_no_folder(
    reachable: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(reachable))

    async def main() -> None:
        resource = compiled(reachable)
        for steps in range(1, 12):
            opening = asyncio.ensure_future(resource.open(ResourceContext()).__aenter__())
            for _ in range(steps):
                await asyncio.sleep(0.001)
            opening.cancel()
            await asyncio.wait((opening,))
            if not opening.cancelled():
                await opening.result().aclose()

    asyncio.run(main())
    assert [path.name for path in reachable.iterdir() if "machine" in path.name] == []


def test_a_cancelled_command_leaves_no_shell_half_way(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("true", 30)
        running = asyncio.ensure_future(workspace.run("touch begun; sleep 1000", 3_000))
        while not (workspace.layer / "app" / "begun").exists():  # noqa: ASYNC110 - told by files alone
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await said(workspace, "echo again") == "again\n"

    opened(reachable, work)
    assert children() == []


def test_what_a_killed_process_left_is_removed_by_the_next(reachable: Path) -> None:  # noqa: F811

    ended = subprocess.Popen(["true"])
    ended.wait()
    here = os.stat("/proc/self/ns/pid").st_ino
    left = Path(tempfile.gettempdir()) / f"rlenv-machine-{ended.pid}-1-{here}-x"
    again = Path(tempfile.gettempdir()) / f"rlenv-machine-{os.getpid()}-1-{here}-x"  # another process had this number
    others = left.with_name(f"rlenv-machine-{ended.pid}-1-7-x")  # of a process of another namespace, which may live
    for folder in (left, again, others):
        (folder / "layer" / "closed").mkdir(parents=True)
        (folder / "layer" / "closed").chmod(0)
        chown(folder)

    async def work(workspace: Workspace) -> None:
        sweep_folders()
        assert (left.exists(), again.exists(), workspace.folder.exists()) == (False, False, True)
        assert others.exists()

    try:
        opened(reachable, work)
    finally:
        remove(others)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"scope": "process"}, "an episode's own"),
        ({"image": "{{ answer }}"}, "answer"),
        ({"env": {"A": "{{ resources.x }}"}}, "resources"),
    ],
)
def test_what_no_machine_can_have_is_refused(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as failed:
        compiled(tmp_path, **keys)
    assert says in str(failed.value)


TEST = """
asked() { python3 -Ic "import urllib.request as r; print(r.urlopen('http://localhost:8080/$1').read().decode())"; }
worth=0; ( %s ) && worth=1; echo $worth > /logs/verifier/reward.txt
"""
ASKS = '[ "$(asked answer)" = 42 ]'
SERVER = """
import http.server, subprocess
from urllib.parse import unquote
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = unquote(self.path[1:])
        said = open("/app/answer").read() if path == "answer" else str(subprocess.call(path, shell=True))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.strip().encode())
http.server.HTTPServer(("localhost", 8080), Handler).serve_forever()
"""
BEGINS = f"""cat > server.py <<'END'{SERVER}END
echo 42 > answer; (setsid python3 server.py > /dev/null 2>&1 &)
until python3 -c 'import socket; socket.create_connection(("localhost", 8080))' 2> /dev/null; do sleep 0.05; done"""


def live(folder: Path, test: str = ASKS, *, is_live: bool = True, **keys: Any) -> Path:
    spec = written(folder, command=TEST % test, **keys)
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["resources"]["machine"]["live"] = is_live
    spec.write_text(json.dumps(held), encoding="utf-8")
    return spec


@pytest.mark.parametrize(
    ("is_live", "acts", "worth"),
    [
        (True, [BEGINS], 1.0),
        (False, [BEGINS], 0.0),
        (True, [], 0.0),
        (True, ["echo 42 > answer; sleep 100 &"], 0.0),
        (True, [BEGINS, "kill -9 $(pgrep -f server.py)"], 0.0),
        (True, [BEGINS, "kill -9 $$", "true"], 0.0),
    ],
)
def test_a_server_that_was_left_running_is_asked(
    reachable: Path,  # noqa: F811
    is_live: bool,
    acts: list[str],
    worth: float,
) -> None:
    trajectory, _ = played(live(reachable, is_live=is_live), acts)
    assert (trajectory.failure, trajectory.reward.total) == (None, worth)
    assert children() == []


@pytest.mark.parametrize(
    ("test", "worth"),
    [
        # `asked` runs it where the server is; the status comes back.
        ('[ "$(asked "echo%20late%20>%20late")" = 0 ] && [ ! -e late ] && [ "$(cat answer)" = 42 ]', 1.0),
        ('asked "rm%20-f%20answer" && [ "$(cat answer)" = 42 ]', 1.0),
        ('asked "ln%20-sfn%20/tests%20link;ls%20link/test.sh" | grep -q 2 && [ ! -e link ]', 1.0),
        ('asked "kill%20-9%20-1"; ! asked answer', 1.0),
        ('asked "head%20-c%2020000000%20/dev/zero%20>%20big"; while asked answer; do sleep 0.1; done', 1.0),
        ('asked "touch%20/dev/shm/a" && [ ! -e /dev/shm/a ]', 1.0),
        ('asked "sleep%201000" || :', None),
        # Nothing but the network is shared, and no way leads out of it.
        ("! ls /proc/*/cmdline | xargs cat | grep -q [s]erver.p.", 1.0),
        ("[ $(grep -c : /proc/net/dev) = 1 ]", 1.0),
        ("! nsenter -t 1 -n true 2> /dev/null && ! unshare -U true 2> /dev/null", 1.0),
    ],
)
def test_what_lives_on_changes_nothing_that_tests_see(reachable: Path, test: str, worth: float | None) -> None:  # noqa: F811
    trajectory, _ = played(live(reachable, test, time_s=3 if worth is None else 60), [BEGINS])
    assert (trajectory.failure, trajectory.reward.total) == (None, worth or 0.0)
    changed = [one["path"] for one in trajectory.reward.terms["solved"].details["changed"]]
    assert sorted(changed) == ["/app/answer", "/app/server.py"]
    assert children() == []


@pytest.mark.parametrize("is_late", [False, True])
def test_what_lives_on_and_is_killed_from_outside_makes_no_number(reachable: Path, is_late: bool) -> None:  # noqa: F811
    killers: list[asyncio.Future[None]] = []

    async def kill(workspace: Workspace) -> None:
        (pid,) = children()

        async def killed() -> None:
            while is_late and not [*workspace.folder.glob("tests-*/upper/app/begun")]:  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)

        killers.append(asyncio.ensure_future(killed()))
        await asyncio.sleep(0)
        while not is_late and not workspace.has_ended:  # noqa: ASYNC110 - told by the system alone
            await asyncio.sleep(0.01)

    trajectory, _ = played(live(reachable, "touch begun; while asked answer; do sleep 0.1; done"), [BEGINS, kill])
    assert killers[0].done()
    assert "ended from outside" in str(trajectory.failure)
    assert children() == []


BUSY = """cat > busy.py <<'END'
import itertools, os, sys
files = [os.open(f"kept-{number}", os.O_WRONLY | os.O_CREAT) for number in range(100)]
for one in files: os.write(one, b"0" * 8)
if sys.argv[1:]: os.write(1, f"\\n{sys.argv[1].split()[-2]} 0\\n".encode())  # the shell's own answer
for number in itertools.count(1):
    for one in files:
        if not sys.argv[1:] and os.fork(): os._exit(0)
        os.pwrite(one, b"%08d" % number, 0)
END
"""
IN_THE_SHELL = """(setsid sleep 1000 > /dev/null 2>&1 &)
trap 'case "$BASH_COMMAND" in printf*) exec python3 busy.py "$BASH_COMMAND";; esac' DEBUG"""
IN_EVER_NEW_PROCESSES = "(setsid python3 busy.py > /dev/null 2>&1 &); until [ -s kept-99 ]; do sleep 0.05; done"


@pytest.mark.parametrize("runs", [IN_THE_SHELL, IN_EVER_NEW_PROCESSES])
def test_files_are_copied_as_they_were_at_one_moment(reachable: Path, runs: str) -> None:  # noqa: F811
    spread = "found = [int(open(f'kept-{one}').read()) for one in range(100)]; exit(max(found) - min(found) > 1)"
    trajectory, _ = played(live(reachable, f'python3 -Ic "{spread}"'), [BUSY + runs])
    assert (trajectory.failure, trajectory.reward.total) == (None, 1.0)


def test_a_layer_that_cannot_be_copied_is_another_time(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        job = "(setsid sleep 1000 > /dev/null 2>&1 &)"
        rest = 4_094 - len(f"{workspace.layer}/app")  # as long as a path may be; that of the copy has some more
        names = [100] * (rest // 101 - 1) + [rest % 101 + 48, 51]
        deep = f"import os\nfor one in {names}: os.mkdir('d' * one); os.chdir('d' * one)"
        await workspace.run(f'{job}; python3 -c "{deep}"', 30)
        await workspace.list_changes("machine")
        assert (workspace.copies, children()) == (0, [])
        await workspace.run(f"{job}; rm -r d*", 30)
        await workspace.list_changes("machine")
        assert (workspace.copies, len(children())) == (1, 1)

    opened(reachable, work, live=True, cwd="/app")


def test_what_lives_on_waits_while_tests_run_over_the_image_alone(reachable: Path) -> None:  # noqa: F811
    states: list[str] = []

    async def watch(workspace: Workspace) -> None:
        async def seen() -> None:
            while not (waiting := inside(WAITS)):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            states.extend(work.state for pid in inside(b"server.py") if (work := work_of(pid)))
            os.kill(waiting[0], signal.SIGTERM)

        watchers.append(asyncio.ensure_future(seen()))

    watchers: list[asyncio.Future[None]] = []
    test = "[ -e answer ] && exit; sleep $((1230 + 4)); echo 1 > /logs/verifier/reward.txt; exit"
    spec = live(reachable)
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["rewards"]["solved"]["command"] = test
    spec.write_text(json.dumps(held), encoding="utf-8")
    trajectory, _ = played(spec, [BEGINS, watch])
    assert (trajectory.failure, trajectory.reward.total) == (None, 0.0)
    assert (watchers[0].done(), states) == (True, ["T"])


def with_oracle(spec: Path) -> Path:
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["oracle"] = [{"call": {"bash": {"command": BEGINS}}}, {"say": "Done."}]
    spec.write_text(json.dumps(held), encoding="utf-8")
    return spec


def test_a_number_that_rests_on_what_lived_on_is_not_given_again(reachable: Path) -> None:  # noqa: F811
    spec, run = str(with_oracle(live(reachable))), str(reachable / "run")
    assert main(["eval", spec, "--policy", "oracle", "--record", "-o", run]) == 0
    (one,) = recorded(Path(run))
    assert one.reward.total == 1.0
    main(["rescore", run, "--spec", spec, "-o", str(reachable / "again"), "--max-invalid", "1"])
    term = next(iter(recorded(reachable / "again"))).reward.terms["solved"]
    assert (term.value, "lived on beside its tests" in term.error) == (None, True)
    assert main(["replay", run, "--spec", spec, "--all-tools"]) == 1
    assert main(["replay", run, "--spec", spec]) == 0


def test_nothing_is_left_where_rlenv_is_killed_while_tests_run(reachable: Path) -> None:  # noqa: F811
    spec = with_oracle(live(reachable, "touch begun; sleep 1000"))
    driver = subprocess.Popen([sys.executable, "-m", "rlenv", "eval", str(spec), "--policy", "oracle"])
    begun = partial(Path(tempfile.gettempdir()).glob, f"rlenv-machine-{driver.pid}-*/tests-*/upper/app/begun")
    wait_until(lambda: any(begun()), what="tests that have begun")
    assert_leaves_nothing(driver, next(one for one in next(begun()).parents if one.name.startswith("rlenv-machine-")))
