"""Processes that import an author's files for the checks of a text, and end when a newer text takes its place.

Each is `python -m rlenv.checks.editor.validator`: it reads `{"do", "path", "text", …}` as JSON from standard input,
writes its answer as JSON to standard output, and ends. It is a process of its own, since validating and compiling
import the author's files: these are read afresh each time, and may hang, print or end the program.

The faults of a text that need no file of the author's to run: what stands in it, and its types.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from rlenv._base.bounded import plain, sendable
from rlenv.checks.editor.tree import LineIndex
from rlenv.errors import Finding, RlenvError, SpecError, UsageError
from rlenv.language.document import read_source
from rlenv.language.loader import loaded_of

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

MAX_TEXT: Final = 1_000_000
"""Characters of a text that is looked at; a longer one holds rows that belong into a file of their own."""
LIMIT_S = 60.0
"""Seconds after which a process is ended: an author's file that hangs is a fault too."""

_MOST_TASKS: Final = 20
_PACKAGES = str(Path(__file__).resolve().parents[3])
_HANGS = "a function of the spec may hang; see `rlenv validate`"
_Key = tuple[str, str]


class _NoAnswer(Exception):
    """A process gave none; the arguments are what is said of it, and what may be done."""


@dataclass(slots=True)
class Validator:
    """Validates and compiles texts in processes of their own, at most one of each for each path.

    Close it with `aclose`; what it started ends then, or once its time is over.
    """

    limit_s: float = LIMIT_S
    _running: dict[_Key, asyncio.subprocess.Process] = field(default_factory=dict)

    async def validate(self, text: str, *, path: str | os.PathLike[str]) -> tuple[Finding, ...] | None:
        """The faults of `rlenv validate` for a text that stands at `path`; None where a newer text took its place.

        A validation that takes longer than `limit_s`, or ends without an answer, is a fault at the text's start.
        """
        shown = os.fspath(path)
        if len(text) > MAX_TEXT:
            return _too_long(text, shown)
        try:
            found = await self._ask({"do": "validate", "path": shown, "text": text})
        except _NoAnswer as error:
            return (Finding("fault", f"validation {error.args[0]}", error.args[1], file=shown, line=1, column=1),)
        return None if found is None else tuple(Finding(**fault) for fault in found["faults"])

    async def compile(
        self, text: str, *, path: str | os.PathLike[str], split: str | None = None, task: int = 0
    ) -> dict[str, Any] | None:
        """The compiled text: `prompt` of one task, `tools`, `splits` with their sizes, and the first `tasks`.

        None where a newer text took its place.

        Raises:
            UsageError: it does not compile, or there is no such task; the message says why.
        """
        asked = {"do": "compile", "path": os.fspath(path), "text": text, "split": split, "task": task}
        try:
            found = await self._ask(asked)
        except _NoAnswer as error:
            raise UsageError(f"compiling {error.args[0]}", hint=error.args[1]) from error
        if found is not None and "error" in found:
            raise UsageError(found["error"])
        return found

    def stop(self, path: str) -> None:
        """Ends what is asked of the text at `path`."""
        for key in [key for key in self._running if key[1] == path]:
            self._replace(key)

    async def aclose(self) -> None:
        """Ends all that is asked."""
        for key in list(self._running):
            self._replace(key)

    def _replace(self, key: _Key) -> None:
        process = self._running.pop(key, None)
        if process is not None:
            _kill(process)

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a question; None where a newer one took its place."""
        key = (question["do"], question["path"])
        self._replace(key)
        process = await _started()
        self._replace(key)  # whoever came while this one was started
        self._running[key] = process
        try:
            async with asyncio.timeout(self.limit_s):
                # A lone surrogate, which JSON has no word for, is refused by the language: any other mark stands in.
                text = question["text"].encode("utf-8", "replace").decode()
                out, _ = await process.communicate(orjson.dumps({**question, "text": text}))
        except TimeoutError:
            raise _NoAnswer(f"took longer than {self.limit_s:g} s and was ended", _HANGS) from None
        finally:
            is_newest = self._running.get(key) is process
            if is_newest:
                del self._running[key]
            await _ended(process)
        if not is_newest:
            return None
        try:
            answer: dict[str, Any] = orjson.loads(out)
        except orjson.JSONDecodeError:
            message = f"ended without an answer (exit code {process.returncode})"
            raise _NoAnswer(message, "a function of the spec may end the program") from None
        return answer


async def _started() -> asyncio.subprocess.Process:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rlenv.checks.editor.validator",
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


_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_WORD = re.compile(r"[^\s,:\[\]{}#\"']+")


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault as an editor underlines it: from a line and column up to another, both from 1, the last one excluded.

    One that stands in another file (a spec that is extended) is marked where that file is named, and `message` says
    where it stands.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    path: str
    message: str
    hint: str
    quote: str = ""
    """The line that the fault was found on, as it stood."""
    level: str = "fault"
    """`fault`, or `warning` for what is legal and odd."""


def diagnose(text: str, *, path: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """The faults of reading and of types, in order of place; none of them is missing from `rlenv validate`.

    Nothing of the author's is imported, so that it can be asked at every pause of typing. Any text is taken.

    Args:
        path: where the text would be saved; what it extends is read relative to it.
    """
    if len(text) > MAX_TEXT:
        return _too_long(text, os.fspath(path))
    try:
        loaded_of(read_source(path, text=text))
    except SpecError as error:
        return error.faults
    return ()


def _too_long(text: str, path: str) -> tuple[Finding, ...]:
    found = f"the text has {len(text):,} characters; an editor is helped with up to {MAX_TEXT:,}"
    return (Finding("fault", found, "keep rows in a file of their own", file=path, line=1, column=1),)


def marks(faults: Iterable[Finding], text: str, *, path: str | os.PathLike[str]) -> tuple[Mark, ...]:
    """Faults as marks in `text`, which is what stands at `path`."""
    lines = LineIndex(text[:MAX_TEXT])
    return tuple(_mark(fault, lines, os.fspath(path)) for fault in faults)


def _mark(fault: Finding, lines: LineIndex, path: str) -> Mark:
    if fault.file != path or not fault.line:
        where = f"{Path(fault.file).name}:{fault.line}:{fault.column}" if fault.line else fault.file
        line, column, end = _extends(lines)
        message = f"{where}: {fault.message}"
        return Mark(line, column, line, end, fault.path, message, fault.hint, lines.line(line), fault.level)
    end = fault.column + _length(lines.line(fault.line), fault.column - 1)
    number, quote = fault.line, lines.line(fault.line)
    return Mark(number, fault.column, number, end, fault.path, fault.message, fault.hint, quote, fault.level)


def _extends(lines: LineIndex) -> tuple[int, int, int]:
    for number in range(1, len(lines) + 1):
        if lines.line(number).startswith("extends:"):
            return number, 1, len(lines.line(number).rstrip()) + 1
    return 1, 1, max(len(lines.line(1)), 1) + 1


def _length(line: str, start: int) -> int:
    """The length of the token that begins at `start` of a line: a quoted text, a word, or one character."""
    found = _QUOTED.match(line, start) or _WORD.match(line, start)
    return found.end() - start if found is not None else 1


def _main() -> int:
    """Answers one question. What the author's files print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    asked = orjson.loads(sys.stdin.buffer.read())
    answer = _compiled(asked) if asked["do"] == "compile" else _validated(asked)
    try:
        body = orjson.dumps(answer)
    except TypeError:  # lone surrogates, numbers of more than 64 bits
        body = orjson.dumps(sendable(answer))
    with os.fdopen(out, "wb") as file:
        file.write(body)
    return 0


def _validated(asked: Mapping[str, Any]) -> dict[str, Any]:
    # Here, and not above: an editor's own process has no use for what compiles a spec.
    from rlenv.checks.validate import validate_text

    report = validate_text(asked["text"], path=asked["path"])
    found = [asdict(fault) for fault in (*report.faults, *report.warnings)]
    return {"faults": found, "not_checked": report.not_checked}


def _compiled(asked: Mapping[str, Any]) -> dict[str, Any]:
    from rlenv.episodes.environment import Environment

    try:
        environment = Environment(loaded_of(read_source(asked["path"], text=asked["text"])))
        return asyncio.run(_looked(environment, asked["split"], asked["task"]))
    except SpecError as error:
        return {"error": str(error.faults[0])}
    except RlenvError as error:
        return {"error": str(error)}


async def _looked(environment: Environment, split: str | None, task: int) -> dict[str, Any]:
    splits = {name: len(environment.tasks(name)) for name in environment.spec.tasks}
    split = split if split is not None else next(iter(splits))
    rows = environment.tasks(split)
    async with environment, environment.start(task=task, split=split, opening=environment.unasked_opening) as episode:
        if episode.failure is not None:
            return {"error": episode.failure.message}
        prompt = [{"role": message.role, "content": message.content} for message in episode.messages]
        return {
            "prompt": prompt,
            "prompt_text": episode.prompt_text,
            "tools": [plain(schema) for schema in episode.tool_schemas],
            "split": split,
            "splits": splits,
            "tasks": [{"index": index, "row": plain(rows[index])} for index in range(min(len(rows), _MOST_TASKS))],
        }


if __name__ == "__main__":
    sys.exit(_main())
