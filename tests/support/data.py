"""Real data sets, tokenizers and templates of others, which the suite of `make test-data` reads.

They lie in the folder that RLENV_DATA names. A test that reads them has the mark `shared_data`, so that `make test`
leaves it out by rule and not by what happens to lie beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["find", "found", "let"]

_is_let = False


def let(*, is_let: bool) -> None:
    """Says whether the test that runs now has the mark."""
    global _is_let
    _is_let = is_let


def found(pattern: str) -> list[Path]:
    """What RLENV_DATA's folder holds of a glob pattern; nothing where there is none. For parameters of marked tests."""
    folder = os.environ.get("RLENV_DATA")
    return sorted(Path(folder).glob(pattern)) if folder else []


def find(path: str) -> Path:
    """A file or folder of the data; a test that lacks it is skipped, and says what it lacks."""
    if not _is_let:
        pytest.fail(f"the test reads {path} of RLENV_DATA; mark it: @pytest.mark.shared_data")
    folder = os.environ.get("RLENV_DATA")
    if not folder:
        pytest.skip(f"needs {path}: RLENV_DATA names no folder")
    place = Path(folder) / path
    if not place.exists():
        pytest.skip(f"needs {path}: it is not in RLENV_DATA ({folder})")
    return place
