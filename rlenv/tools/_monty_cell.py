"""One piece of code in one of monty's workers, step by step: until it ends, or waits for tools."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import secrets
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlenv._base.bounded import encodable
from rlenv.concurrency.processes import cause_of, work_of
from rlenv.errors import ToolFailed
from rlenv.tools._cell import Outcome, plain_copy
from rlenv.tools._zygote import is_plain
from rlenv.tools.base import Tool

if TYPE_CHECKING:
    from pydantic_monty import Monty

    from rlenv.tools.code import CodeSpec


@dataclass(frozen=True, slots=True)
class Snippet:
    """`code` is what runs, line by line where it stood; `name` holds the last expression's value, None without one."""

    code: str
    name: str | None
    is_async: bool
    """True where the code awaits something."""
    is_simple: bool = False
    """True where it defines no class and calls nothing of its own by the name of a built-in that shows values."""


def read_snippet(code: str, *, name: str) -> Snippet:
    """`code` with its last expression bound to `name`.

    Code that cannot be read here is left as it is: the sandbox says what is wrong with it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's odd escapes are its own affair
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Snippet(code + "\nNone", None, False)
    is_async, is_simple = False, True
    for node in ast.walk(tree):
        is_async = is_async or isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith))
        is_simple = is_simple and not _is_odd(node)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return Snippet(code + "\nNone", None, is_async)
    lines = code.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    whole = code.encode()
    bound = whole[:start] + f"{name} = (".encode() + whole[start:end] + b")" + whole[end:] + b"\nNone"
    return Snippet(bound.decode(), name, is_async, is_simple)


_BUILT_IN = frozenset({"repr", "type", "len", "int", "float", "bool", "str", "list", "dict"})


def _is_odd(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _BUILT_IN and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg in _BUILT_IN
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in _BUILT_IN or node.name == "*"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name in _BUILT_IN
    return isinstance(node, (ast.ClassDef, ast.MatchMapping))


LOOK_AGAIN_S = 0.05
_USED = re.compile(r"\A(MemoryError: memory limit exceeded: )\d+ bytes > ")
"""How much it was is another number each time: equal episodes would not be equal."""
_MAX_SHOWN = 10_000

# Runs before the code does: a code that calls something `len` or `type` is shown as any other. {name} cannot be
# guessed, and the value of the last expression stands under it too. What leaves the sandbox is small, whatever it is.
_PRELUDE = Path(__file__).with_name("_monty_prelude.txt").read_text(encoding="utf-8")
_SHOWN = "({name}_repr({name})[:{most}], {name} if {name}_plain({name}, 0) <= {most} else None, {name} is None)"

# Without classes and with all built-ins in place, what is shown is as large as what leaves.
_SIMPLY_SHOWN = (
    "(repr({name})[:{most}], {name} if type({name}) in (int, float, bool) or type({name}) in (str, list, dict)"
    " and len(repr({name})) < {most} else None, {name} is None)"
)


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """The code waits for these calls, by the sandbox's number for each."""

    calls: Mapping[int, tuple[str, tuple[Any, ...], Mapping[str, Any]]]


@dataclass(slots=True, eq=False)
class Notebook:
    """An episode's session: between calls it is bytes, and holds no worker. `name` stands before what is rlenv's."""

    state: bytes | None = None
    name: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Cell:
    """One piece of code in one worker; each method is called in a thread, one at a time."""

    def __init__(
        self,
        pool: Monty,
        spec: CodeSpec,
        called: Mapping[str, Tool],
        notebook: Notebook | None,
        *,
        seed: int,
        most_s: float,
    ) -> None:
        self._spec = spec
        self._called = called
        self._state = notebook.state if notebook is not None else None
        self.name = notebook.name if notebook is not None and notebook.name else f"_rlenv_{secrets.token_hex(8)}"
        self._printed: list[str] = []
        self._size = 0
        self._pending: dict[int, tuple[str, tuple[Any, ...], Mapping[str, Any]]] = {}
        self._snapshot: Any = None
        self._snippet: Snippet | None = None
        self._checkout: Callable[[], Any] = lambda: pool.checkout(
            limits={
                # Only that the worker's own time is up counts, and that is seen from here; see `look`.
                "max_feed_duration_secs": most_s + 1.0 if _can_look() else spec.time_s,
                "max_memory": spec.memory_mb * 1024 * 1024,
                "max_suspensions": 1_000,
            },
            os_policy={"sleep": "zero", "random_start": {"seed": seed}},
        )
        self._session: Any = None
        self.is_held = False
        """True while the cell has a worker."""
        self._pid: int | None = None
        self._cpu_s = 0.0
        self._hold = threading.Lock()
        self._until = time.monotonic() + most_s
        self._ended_for = ""
        self.kept: bytes | None = None
        """The session after the code, where it is kept."""

    def start(self, code: str) -> Outcome | PendingCalls:
        import pydantic_monty as monty

        for is_last in (False, True):  # a worker that ended while it was idle has run nothing
            self._session = self._checkout()
            try:
                self._session.__enter__()
                break
            except monty.MontyError as error:
                if is_last:
                    text = "the code's worker could not be started"
                    raise ToolFailed(text, reason="worker", retryable=True) from error
        self.is_held = True
        self._pid = self._session.worker_pid
        self._cpu_s = self._cpu_used()
        self._snippet = snippet = read_snippet(code, name=self.name)
        return self._release_at_end(self._take_step(lambda: self._start_snippet(snippet)))

    def answer(self, results: Mapping[int, Mapping[str, Any]]) -> Outcome | PendingCalls:
        def go() -> Any:
            if len(results) == 1 and not self._is_future:
                return self._snapshot.resume(next(iter(results.values())))
            return self._snapshot.resume(dict(results))

        return self._release_at_end(self._take_step(go))

    def _release_at_end(self, step: Outcome | PendingCalls) -> Outcome | PendingCalls:
        """`step`, after the worker went back where the code has ended: a thread less to wait for."""
        if isinstance(step, Outcome):
            self.release()
        return step

    def release(self) -> None:
        # A look on the event loop may be about to end the worker, which the next cell has as soon as it is given back.
        with self._hold:
            self._pid = None
        if self.is_held:
            self.is_held = False
            self._session.__exit__(None, None, None)

    def look(self) -> float:
        """Stops the worker where the code has used up its time, processor time, whatever else the machine does;
        otherwise the seconds after which to look again. Called on the event loop, and costs some microseconds."""
        with self._hold:
            return self._check_time()

    def _check_time(self) -> float:
        work = work_of(self._pid) if self._pid is not None else None
        if work is None:
            return self._spec.time_s
        used_s = work.cpu_s - self._cpu_s
        left_s = self._spec.time_s - used_s
        if self._size > self._spec.max_bytes:
            self._kill_worker("too_large")
        elif work.is_stopped:
            self._kill_worker("stalled")
        elif left_s <= 0:
            self._kill_worker("timeout")
        elif time.monotonic() >= self._until:
            self._kill_worker("timeout" if used_s >= self._spec.time_s / 2 else "stalled")
        return max(min(left_s, self._until - time.monotonic()), LOOK_AGAIN_S)

    def _kill_worker(self, reason: str) -> None:
        if not self._ended_for and self._pid is not None:
            # The worker is this cell's until the cell gives it back, and that comes after the last look.
            self._ended_for = reason
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _cpu_used(self) -> float:
        work = work_of(self._pid) if self._pid is not None else None
        return work.cpu_s if work is not None else 0.0

    def _start_snippet(self, snippet: Snippet) -> Any:
        if self._state is not None:
            self._session.load_session(self._state)
        elif self._spec.session or not snippet.is_simple:
            self._session.feed_run(_PRELUDE.format(name=self.name))
        functions = dict.fromkeys(self._called, _never_called)
        return self._session.feed_start(snippet.code, external_lookup=functions, print_callback=self._print)

    def _take_step(self, go: Callable[[], Any]) -> Outcome | PendingCalls:
        import pydantic_monty as monty

        try:
            asked = self._advance(go())
            return asked if asked is not None else self._finish()
        except monty.MontyCrashedError as error:
            self._state = None
            if self._ended_for == "too_large":
                return self._outcome(error="the code printed too much and was stopped", reason="too_large")
            if self._ended_for or error.timed_out:
                return self._outcome(error=self._late_text(), reason=self._ended_for or "stalled")
            return self._outcome(error="the code broke its sandbox and was stopped", reason=_crash_reason(str(error)))
        except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
            text = error.display("type-msg")
            if text.startswith("TimeoutError: feed time limit"):
                return self._outcome(error=self._late_text(), reason="timeout")  # no other clock is to be had here
            is_memory, text = text.startswith("MemoryError"), _USED.sub(r"\1more than ", text)
            if self._spec.session and not is_memory and (refused := self._keep_session()) is not None:
                return refused
            return self._outcome(error=text[:1_000] + _line_text(error), reason="memory" if is_memory else "failed")
        except monty.MontyError as error:
            return self._outcome(error=str(error)[:1_000], reason="killed")
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            # A value that has no counterpart outside (an integer of many digits).
            return self._outcome(error=f"a value cannot leave the sandbox: {error}"[:1_000])

    def _keep_session(self) -> Outcome | None:
        """Keeps the session; what the call gives instead where that is too large."""
        kept = self._session.dump()
        if len(kept) > self._spec.session_mb * 1024 * 1024:
            text = f"the session would hold more than {self._spec.session_mb} MB; it is as it was before"
            return self._outcome(error=text, reason="memory")
        self.kept = kept
        return None

    def _advance(self, snapshot: Any) -> PendingCalls | None:
        """Goes on until the code ends (None) or waits for tools."""
        import pydantic_monty as monty

        assert self._snippet is not None
        while not isinstance(snapshot, monty.MontyComplete):
            self._snapshot = snapshot
            self._is_future = isinstance(snapshot, monty.FutureSnapshot)
            if self._is_future:
                return PendingCalls({number: self._pending.pop(number) for number in sorted(snapshot.pending_call_ids)})
            is_ours = isinstance(snapshot, monty.FunctionSnapshot) and not snapshot.is_os_function
            if is_ours and snapshot.object_id is None and snapshot.function_name in self._called:
                call = (str(snapshot.function_name), snapshot.args, snapshot.kwargs)
                if not self._snippet.is_async:
                    return PendingCalls({snapshot.call_id: call})
                self._pending[snapshot.call_id] = call
                snapshot = snapshot.resume({"future": ...})
            else:
                snapshot = snapshot.resume_auto()
        return None

    def _finish(self) -> Outcome:
        assert self._snippet is not None
        shown, result = None, None
        if self._snippet.name is not None:
            is_simple = self._snippet.is_simple and not self._spec.session
            ask = (_SIMPLY_SHOWN if is_simple else _SHOWN).format(name=self.name, most=_MAX_SHOWN)
            told = self._session.feed_run(ask, print_callback=self._print)
            if type(told) is not tuple or len(told) != 3 or type(told[0]) is not str:
                return self._outcome(error="the value of the last expression cannot be shown")
            shown, result, is_none = told
            if is_none is True:
                shown = result = None
            elif result is None or not is_plain(result):
                result = shown
        if self._spec.session and (refused := self._keep_session()) is not None:
            return refused
        return self._outcome(shown=None if shown is None else encodable(shown), result=plain_copy(result))

    _is_future = False

    def _outcome(self, **more: Any) -> Outcome:
        output = "".join(self._printed)
        is_cut = self._size > self._spec.max_bytes
        return Outcome(output[: self._spec.max_bytes] if is_cut else output, is_cut, **more)

    def _late_text(self) -> str:
        text = f"the code did not end within {self._spec.time_s:g} s"
        return text + "; the session is as it was before" if self._spec.session else text

    def _print(self, stream: str, text: str) -> None:
        if self._size <= self._spec.max_bytes:
            self._printed.append(text)
        self._size += len(text)


@lru_cache(maxsize=1)
def _can_look() -> bool:
    return work_of(os.getpid()) is not None


def _crash_reason(text: str) -> str:
    """The reason of a crash: no code has its own worker killed, but it may find what breaks it."""
    if found := re.search(r"signal: (\d+)", text):
        return "worker" if cause_of(-int(found[1])) == "outside" else "failed"
    return "failed" if "exit" in text else "killed"


def _never_called(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("calls are answered by the executor")


def _line_text(error: Any) -> str:
    frames = error.traceback()
    return f" (line {frames[0].line})" if frames else ""
