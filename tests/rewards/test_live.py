"""Tests beside what an episode left running: they share its network, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.runs.recorded import recorded
from rlenv.tools.workspace.starters import groups, swept
from tests.support.machines import below, children, played, reachable, written  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox
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
    end = time.monotonic() + 60
    pattern = f"rlenv-machine-{driver.pid}-*/tests-*/upper/app/begun"
    while not (begun := list(Path(tempfile.gettempdir()).glob(pattern))):
        assert time.monotonic() < end
        time.sleep(0.05)
    folder, running = begun[0].parents[3], below(driver.pid)
    driver.kill()
    driver.wait()
    while any(Path(f"/proc/{pid}/status").exists() for pid in running) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in running if Path(f"/proc/{pid}/status").exists()]
    assert str(folder) not in Path("/proc/mounts").read_text(encoding="utf-8")
    swept()
    assert (folder.exists(), groups(f"{folder.name}*")) == (False, [])
