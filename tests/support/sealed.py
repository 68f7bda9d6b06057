"""An `rlenv` command in a process of its own, and what it opens to the outside."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

__all__ = ["Ran", "sealed"]

_MAIN = """
import sys

opened = []

def look(event, args):
    if event in ("socket.connect", "subprocess.Popen"):
        opened.append(event)

sys.addaudithook(look)
from rlenv.cli.main import main
code = main(sys.argv[1:])
print(*opened, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


class Ran(NamedTuple):
    """`opened` are audit events: connections, and processes that were started."""

    code: int
    out: str
    opened: list[str]


def sealed(*argv: str, seconds: float = 100.0) -> Ran:
    """Runs a command to its end."""
    ran = subprocess.run([sys.executable, "-c", _MAIN, *argv], capture_output=True, text=True, timeout=seconds)
    events = ("socket.connect", "subprocess.Popen")
    return Ran(ran.returncode, ran.stdout, [line for line in ran.stderr.splitlines() if line in events])
