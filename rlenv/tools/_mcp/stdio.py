"""A server as a child process that speaks one JSON-RPC message a line on its standard streams.

The SDK has a transport of its own. This one differs where training needs it: the end of the process is seen at once,
also where a grandchild holds the pipe open; the child's environment is exactly what it is given; the last lines of its
standard error are kept for the author; a call that is cancelled never waits for a pipe that is full; and a line that
is no message costs that line and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

from rlenv.concurrency.processes import cause_of, ending_text, work_of
from rlenv.secrets import redact
from rlenv.tools._mcp import LARGE_BYTES, MAX_MESSAGE_BYTES, MessageBudget, OpenRequests, read_message, too_long
from rlenv.tools._process import MARK, sweep

_SHOWN_OF_SKIPPED = 300
_SKIPPED_COSTS = 16
"""Bytes that are thrown away cost this much less than bytes that are read."""
_LINES_AT_ONCE = 200
_HOLD_S = 0.5
"""For so long nothing is read of a server that sends far more than it was asked for."""
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""A server that leaves more than this unread is ended: what waits to be sent is held here."""
_STDERR_BYTES = 16_384
# A server that writes more than this on its standard error is read no faster.
_STDERR_PER_PAUSE, _STDERR_PAUSE_S = 1_000_000, 0.5
_GRACE_S = 1.0
_DRAIN_S = 0.2
_PAUSE_AT, _RESUME_AT = 256, 32


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server's process: `PATH`, with the folder of this interpreter first, and the given
    variables.
    """
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{own}{os.pathsep}{path}", **given}


class _Incoming:
    """Messages that have come and not been read; ends with `end()`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._items: deque[SessionMessage | Exception] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._changed = changed
        self.is_paused = False
        self.is_ended = False

    def put(self, item: SessionMessage | Exception) -> None:
        self._items.append(item)
        if not self.is_paused and len(self._items) > _PAUSE_AT:
            self.is_paused = True
            self._changed()
        self._wake()

    def end(self) -> None:
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def receive(self) -> SessionMessage | Exception:
        while not self._items:
            if self.is_ended:
                raise anyio.EndOfStream
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self.is_paused and len(self._items) <= _RESUME_AT:
            self.is_paused = False
            self._changed()
        return self._items.popleft()

    async def aclose(self) -> None:
        self.end()

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Incoming:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class _Outgoing:
    """Messages to the child; sending never waits, so that a cancelled call can always say so."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._child.gate.asked()
        message = self._child.asked.sent(item.message)
        self._child.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        pass  # the child's standard input is closed when the child is stopped

    async def __aenter__(self) -> _Outgoing:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class Child(asyncio.SubprocessProtocol):
    """The process behind a connection.

    `is_open` turns false as soon as its output ends or the process does. `on_end` is called once, then.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._transport: asyncio.SubprocessTransport | None = None
        self._line = bytearray()
        self._errors = bytearray()
        self._exited = asyncio.get_running_loop().create_future()
        self.incoming = _Incoming(self._pause_or_resume)
        self.outgoing = _Outgoing(self)
        self.on_end: Callable[[], None] | None = None
        self.gate, self.asked = MessageBudget(), OpenRequests()
        self.garbage = 0
        """Lines on its standard output that were no messages."""
        self.fault = ""
        """Why the connection was ended from this side, where it was."""
        self._errors_since_pause = 0
        self._skipped_head = b""
        self._skipped_tail = b""
        self._in_threads = 0
        self._unread = bytearray()
        self._is_held = False
        self._has_to_end = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._errors += data[-_STDERR_BYTES:]
            del self._errors[:-_STDERR_BYTES]
            self._errors_since_pause += len(data)
            if self._errors_since_pause > _STDERR_PER_PAUSE:
                self._errors_since_pause = 0
                self._pause(True, fd=2)
                self._exited.get_loop().call_later(_STDERR_PAUSE_S, self._pause, False, 2)
            return
        if self.incoming.is_ended:
            return
        self._unread += data
        if not self._is_held:
            self._take()

    def _take(self) -> None:
        """Reads lines until there are no more, or the session has had what it can bear for now."""
        pieces = bytes(self._unread).split(b"\n")
        self._unread = bytearray()
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            cost = self._line_goes_on(piece)
            if index < last:
                cost += self._line_ended()
            if self.incoming.is_ended:
                return
            if (index < last or cost) and not self.gate.admits(cost):
                self._hold(pieces[index + 1 :], _HOLD_S)
                return
            if index % _LINES_AT_ONCE == _LINES_AT_ONCE - 1:  # others have their turn
                self._hold(pieces[index + 1 :], 0.0)
                return

    def _hold(self, rest: list[bytes], seconds: float) -> None:
        self._unread += b"\n".join(rest)
        self._is_held = True
        self._exited.get_loop().call_later(seconds, self._go_on)
        self._pause_or_resume()

    def _go_on(self) -> None:
        self._is_held = False
        if not self.incoming.is_ended:
            self._take()
            self._pause_or_resume()

    def _line_goes_on(self, piece: bytes) -> int:
        """Adds a piece to the line that is coming; what of it counts already."""
        if self._skipped_head:
            self._skipped_tail = (self._skipped_tail + piece)[-_SHOWN_OF_SKIPPED:]
            return len(piece) // _SKIPPED_COSTS
        self._line += piece
        if len(self._line) > MAX_MESSAGE_BYTES:
            # Only its two ends are kept, which say what call it was the answer to.
            self._skipped_head = bytes(self._line[:_SHOWN_OF_SKIPPED])
            self._skipped_tail = bytes(self._line[-_SHOWN_OF_SKIPPED:])
            self._line = bytearray()
        return 0

    def _line_ended(self) -> int:
        """Takes the line that has come; its length."""
        if self._skipped_head:
            failure = too_long(self._skipped_head, self._skipped_tail)
            self._skipped_head = self._skipped_tail = b""
            if failure is not None:
                self._put(failure)
            else:
                self.garbage += 1
            return 0
        line, self._line = bytes(self._line), bytearray()
        if line.strip():
            self._read(line)
        return len(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end()

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
        # What it wrote last is still in the pipe; a grandchild that holds the pipe open must not keep the end away.
        self._exited.get_loop().call_later(_DRAIN_S, self._end)

    # What the connection uses.

    @property
    def is_open(self) -> bool:
        return not self.incoming.is_ended and not self._exited.done()

    def last_words(self, limit: int) -> str:
        """The last `limit` characters of its standard error, without the secrets that it was given."""
        return redact(self._errors.decode(errors="replace")).strip()[-limit:]

    async def has_exited(self, seconds: float = _DRAIN_S) -> bool:
        """True where the process is gone, after a little while."""
        await asyncio.wait([self._exited], timeout=seconds)
        return self._exited.done()

    @property
    def is_stopped(self) -> bool:
        """True where something has stopped the process (SIGSTOP), so that it answers nobody."""
        work = work_of(self.pid) if self.pid is not None else None
        return work is not None and work.is_stopped

    @property
    def was_killed(self) -> bool:
        """True where a signal ended it that a program does not raise by what it does."""
        code = self._transport.get_returncode() if self._transport is not None else None
        return code is not None and cause_of(code) == "outside"

    @property
    def fate(self) -> str:
        """The end of the process, for messages: `exit code 3`, `signal SIGKILL`, or that it still runs."""
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            return "still running"
        return f"exit code {code}" if code >= 0 else f"signal {ending_text(code)}"

    @property
    def pid(self) -> int | None:
        """Its process id, which is also its group's."""
        return self._transport.get_pid() if self._transport is not None else None

    def write(self, line: bytes) -> None:
        """Sends a line.

        Raises:
            anyio.BrokenResourceError: it has ended.
        """
        pipe: Any = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if pipe is None or pipe.is_closing() or not self.is_open:
            raise anyio.BrokenResourceError
        if pipe.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._give_up("it does not read what it is sent")
            raise anyio.BrokenResourceError
        pipe.write(line)

    async def stop(self) -> None:
        """Closes its input, waits a little, then ends it and all its children; nothing of it is left afterwards."""
        assert self._transport is not None
        self.on_end = None
        pipe: Any = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.abort() if pipe.get_write_buffer_size() else pipe.close()
        try:
            for sent in (None, signal.SIGTERM, signal.SIGKILL):
                if sent is not None:
                    self._signal(sent)
                if await self.has_exited(_GRACE_S):
                    break
        finally:
            self._signal(signal.SIGKILL)  # what it started and left behind, and itself where this is cancelled
            self._close()
            self._transport.close()
            await asyncio.to_thread(sweep, self._mark)  # what left its group

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _pause(self, is_paused: bool, fd: int = 1) -> None:
        pipe: Any = self._transport.get_pipe_transport(fd) if self._transport is not None else None
        if pipe is not None and not pipe.is_closing():
            pipe.pause_reading() if is_paused else pipe.resume_reading()

    def _pause_or_resume(self) -> None:
        self._pause(self.incoming.is_paused or self._is_held or self._in_threads > 0)

    def _read(self, line: bytes) -> None:
        if len(line) <= LARGE_BYTES:
            try:
                self._put(read_message(line))
            except ValueError:
                self.garbage += 1
            return
        # Nothing more is read meanwhile, so that no more than a few long lines are ever held.
        self._in_threads += 1
        self._pause_or_resume()
        parsing = asyncio.get_running_loop().run_in_executor(None, read_message, line)
        parsing.add_done_callback(self._has_read)

    def _has_read(self, parsing: asyncio.Future[JSONRPCMessage | None]) -> None:
        self._in_threads -= 1
        if not parsing.cancelled():
            if parsing.exception() is None:
                self._put(parsing.result())
            else:
                self.garbage += 1
        if self._in_threads == 0:
            if self._has_to_end:
                self._end()
            self._pause_or_resume()

    def _put(self, message: JSONRPCMessage | None) -> None:
        message = None if message is None else self.asked.heard(message)
        if message is None or self.incoming.is_ended:
            return
        if isinstance(message, JSONRPCNotification) and not self.gate.hears():
            return
        if isinstance(message, JSONRPCRequest):
            self.gate.answers(by_post=False)
        self.incoming.put(SessionMessage(message))

    def _give_up(self, fault: str) -> None:
        self.fault = self.fault or fault
        self._line = bytearray()
        self._signal(signal.SIGKILL)
        self._close()

    def _end(self) -> None:
        if self._in_threads > 0 and not self.fault:  # what it said last is still being read
            self._has_to_end = True
            return
        self._close()

    def _close(self) -> None:
        self.incoming.end()
        told, self.on_end = self.on_end, None
        if told is not None:
            told()


@asynccontextmanager
async def open_child(command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> AsyncIterator[Child]:
    """Starts a server's process in a group of its own; on leaving, nothing of the group is left.

    Args:
        env: the whole environment of the process.

    Raises:
        OSError: it cannot be started.
        ValueError: an argument holds a NUL.
    """
    loop = asyncio.get_running_loop()
    # Looked up in the PATH that the child gets; the system would look in ours.
    program = _which(command[0], env=env, cwd=cwd)
    mark = secrets.token_hex(16)
    marked = {**env, MARK: mark}
    _, child = await loop.subprocess_exec(
        lambda: Child(mark), program, *command[1:], env=marked, cwd=cwd, start_new_session=True
    )
    try:
        yield child
    finally:
        # In a task of its own: a second cancellation must not leave the process behind.
        stopping = asyncio.ensure_future(child.stop())
        await asyncio.shield(stopping)


def _which(program: str, *, env: Mapping[str, str], cwd: Path) -> str:
    if os.sep in program:
        return str(cwd / program)
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"there is no program '{program}' on the PATH")
    return found
