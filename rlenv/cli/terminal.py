"""The only way to the terminal, with `rlenv.cli.console`: no text of others acts on it.

A test keeps every command to these two.
"""

from __future__ import annotations

import json
import sys
import traceback
from types import TracebackType
from typing import Any

from rlenv._base.text import visible
from rlenv.secrets import redact

__all__ = ["say", "show_traceback", "write", "write_error", "write_json"]


def write(text: str) -> None:
    """Writes to standard output."""
    sys.stdout.write(visible(text))


def write_error(text: str) -> None:
    """Writes to standard error."""
    sys.stderr.write(visible(text))


def say(line: str) -> None:
    """Writes a line to standard error."""
    write_error(f"{line}\n")


def write_json(value: Any, *, indent: int | None = None) -> None:
    """Writes a JSON value and a newline to standard output, in ASCII; what JSON has no word for is written as text."""
    sys.stdout.write(json.dumps(value, indent=indent, default=str) + "\n")


def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Shows an exception that nobody expected, as Python does, without secrets and without what acts on a terminal."""
    write_error(redact("".join(traceback.format_exception(kind, error, trace))))
