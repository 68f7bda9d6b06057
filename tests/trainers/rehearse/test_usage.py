"""What the processes of a rehearsal hold and compute."""

from __future__ import annotations

import os
import subprocess
import sys
from uuid import uuid4

from rlenv_train.launch import Peak, _Family, look

HOLDS = """
import sys
held = bytearray(50_000_000)
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
sys.stdin.read()
"""


def test_the_memory_of_marked_processes_is_summed_and_no_others() -> None:
    mark = uuid4().hex
    started = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", HOLDS],
            env={**os.environ, "RLENV_TEST_USAGE": value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for value in (mark, mark, "another")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        peak, family = Peak(), _Family("RLENV_TEST_USAGE", mark)
        look(family, peak)
        assert peak.processes == 2
        assert 100e6 < peak.bytes < 160e6
        assert peak.cpu_s > 0
        before = peak.bytes
    finally:
        for process in started:
            process.communicate(b"")
    look(family, peak)
    assert peak.bytes == before  # the most, not the last
    assert family.members() == []
