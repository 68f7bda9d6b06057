"""What torchrun says to a process of a run, for one that is alone."""

from __future__ import annotations

from pathlib import Path

__all__ = ["alone"]


def alone(store: Path) -> dict[str, str]:
    """The environment variables of a run of one process.

    It meets itself in a file: no port is needed where nobody else is met. veRL's Worker reads the master's address all
    the same (single_controller/base/worker.py), and nothing is bound to it.

    Args:
        store: a file that is not there yet.
    """
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "DIST_INIT_METHOD": f"file://{store}",
    }
