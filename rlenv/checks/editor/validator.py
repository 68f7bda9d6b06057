"""The full validation of texts, in processes that end when a newer text makes them pointless."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rlenv.errors import Fault

__all__ = ["LIMIT_S", "Validator"]

LIMIT_S = 60.0
"""Seconds after which a validation is ended: an author's file that hangs is a fault too."""

_PACKAGES = str(Path(__file__).resolve().parents[3])


@dataclass(slots=True)
class Validator:
    """Validates texts in processes of their own, at most one for each path.

    Close it with `aclose`; until then nothing that it started outlives the loop.
    """

    limit_s: float = LIMIT_S
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def validate(self, text: str, *, path: str | os.PathLike[str]) -> tuple[Fault, ...] | None:
        """The faults of `rlenv validate` for a text that stands at `path`; None where a newer text took its place.

        A validation that takes longer than `limit_s`, or ends without an answer, is a fault at the text's start.
        """
        shown = os.fspath(path)
        self.stop(shown)
        process = await _started()
        self.stop(shown)  # whoever came while this one was started
        self._running[shown] = process
        try:
            async with asyncio.timeout(self.limit_s):
                # A lone surrogate, which JSON has no word for, is refused by the language: any other mark stands in.
                asked = orjson.dumps({"path": shown, "text": text.encode("utf-8", "replace").decode()})
                out, _ = await process.communicate(asked)
        except TimeoutError:
            message = f"validation took longer than {self.limit_s:g} s and was ended"
            return (Fault(shown, 1, 1, "", message, "a function of the spec may hang; see `rlenv validate`"),)
        finally:
            is_newest = self._running.get(shown) is process
            if is_newest:
                del self._running[shown]
            await _ended(process)
        if not is_newest:
            return None
        try:
            return tuple(Fault(**fault) for fault in orjson.loads(out)["faults"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            message = f"validation ended without an answer (exit code {process.returncode})"
            return (Fault(shown, 1, 1, "", message, "a function of the spec may end the program"),)

    def stop(self, path: str) -> None:
        """Ends the validation of the text at `path`, if there is one."""
        process = self._running.pop(path, None)
        if process is not None:
            _kill(process)

    async def aclose(self) -> None:
        """Ends all validations."""
        for path in list(self._running):
            self.stop(path)


async def _started() -> asyncio.subprocess.Process:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rlenv.checks.editor.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env=environ,
    )


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Waits until a process that answered, or is killed here, is gone with its pipes."""
    _kill(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    await process.stdout.read()
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
