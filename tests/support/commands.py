"""Runs the `rlenv` command as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["rlenv"]


def rlenv(*arguments: str, cwd: Path | None = None) -> None:
    """Runs a command to its end, which has to be a good one; half an hour at most."""
    command = [sys.executable, "-m", "rlenv", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
