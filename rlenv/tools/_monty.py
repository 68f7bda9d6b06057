"""The sandbox `monty`: pydantic-monty's workers, driven from threads one step at a time.

Expected: its asynchronous pool, `AsyncMonty`. Actual: a process that ends soon after such a pool was closed aborts in
about one of three runs (pydantic-monty 1.4.0, CPython 3.11, at interpreter exit). So the blocking pool is used, in
threads. To be looked at again with a later version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlenv._threads import ThreadPool
from rlenv.errors import EpisodeError, MissingExtra, ToolFailed, UsageError
from rlenv.messages import ToolCall
from rlenv.tools._cell import Outcome
from rlenv.tools._snippet import Snippet, read_snippet
from rlenv.tools.base import Tool, ToolContext

if TYPE_CHECKING:
    from pydantic_monty import Monty

    from rlenv.tools.code import CodeSpec

__all__ = ["monty_runner"]

_NAME = "__rlenv_value"
_SCALARS = (int, float, str, bool, type(None))
_MAX_SHOWN = 10_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """The code waits for these calls, by the sandbox's number for each."""

    calls: Mapping[int, tuple[str, tuple[Any, ...], Mapping[str, Any]]]


@dataclass(slots=True, eq=False)
class _Pool:
    """The workers of one tool in one environment. Who runs code holds a place first, so that no thread waits for a
    worker while another cell waits for a thread."""

    workers: Monty
    places: asyncio.Semaphore
    threads: ThreadPool


@dataclass(slots=True, eq=False)
class _Notebook:
    """An episode's session: between calls it is bytes, and holds no worker."""

    state: bytes | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@asynccontextmanager
async def _notebook() -> AsyncIterator[_Notebook]:
    yield _Notebook()


class _Cell:
    """One piece of code in one worker; each method is called in a thread, one at a time."""

    def __init__(self, pool: Monty, spec: CodeSpec, called: Mapping[str, Tool], state: bytes | None, seed: int) -> None:
        self._spec = spec
        self._called = called
        self._state = state
        self._printed: list[str] = []
        self._size = 0
        self._pending: dict[int, tuple[str, tuple[Any, ...], Mapping[str, Any]]] = {}
        self._snapshot: Any = None
        self._snippet: Snippet | None = None
        self._session: Any = pool.checkout(
            limits={
                "max_feed_duration_secs": spec.time_s,
                "max_memory": spec.memory_mb * 1024 * 1024,
                "max_suspensions": 1_000,
            },
            os_policy={"sleep": "zero", "random_start": {"seed": seed}},
        )
        self._is_entered = False
        self.kept: bytes | None = None
        """The session after the code, where it is kept."""

    def start(self, code: str) -> Outcome | _Asked:
        self._snippet = snippet = read_snippet(code, name=_NAME)
        return self._guarded(lambda: self._begin(snippet))

    def answer(self, results: Mapping[int, Mapping[str, Any]]) -> Outcome | _Asked:
        def go() -> Any:
            if len(results) == 1 and not self._is_future:
                return self._snapshot.resume(next(iter(results.values())))
            return self._snapshot.resume(dict(results))

        return self._guarded(go)

    def release(self) -> None:
        if self._is_entered:
            self._is_entered = False
            self._session.__exit__(None, None, None)

    def _begin(self, snippet: Snippet) -> Any:
        self._session.__enter__()
        self._is_entered = True
        if self._state is not None:
            self._session.load_session(self._state)
        functions = dict.fromkeys(self._called, _never_called)
        return self._session.feed_start(snippet.code, external_lookup=functions, print_callback=self._print)

    def _guarded(self, go: Callable[[], Any]) -> Outcome | _Asked:
        import pydantic_monty as monty

        try:
            asked = self._advance(go())
            return asked if asked is not None else self._finish()
        except monty.MontyCrashedError as error:
            self._state = None
            if error.timed_out:
                return self._outcome(error=self._late(), is_late=True)
            return self._outcome(error="the code broke its sandbox and was stopped")
        except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
            text = error.display("type-msg")
            if text.startswith("TimeoutError: feed time limit"):
                return self._outcome(error=self._late(), is_late=True)
            if self._spec.session and not text.startswith("MemoryError"):
                self.kept = self._session.dump()
            return self._outcome(error=text[:1_000] + _line(error))
        except monty.MontyError as error:
            return self._outcome(error=str(error)[:1_000])

    def _advance(self, snapshot: Any) -> _Asked | None:
        """Goes on until the code ends (None) or waits for tools."""
        import pydantic_monty as monty

        assert self._snippet is not None
        while not isinstance(snapshot, monty.MontyComplete):
            self._snapshot = snapshot
            self._is_future = isinstance(snapshot, monty.FutureSnapshot)
            if self._is_future:
                return _Asked({number: self._pending.pop(number) for number in sorted(snapshot.pending_call_ids)})
            is_ours = isinstance(snapshot, monty.FunctionSnapshot) and not snapshot.is_os_function
            if is_ours and snapshot.object_id is None and snapshot.function_name in self._called:
                call = (str(snapshot.function_name), snapshot.args, snapshot.kwargs)
                if not self._snippet.is_async:
                    return _Asked({snapshot.call_id: call})
                self._pending[snapshot.call_id] = call
                snapshot = snapshot.resume({"future": ...})
            else:
                snapshot = snapshot.resume_auto()
        return None

    def _finish(self) -> Outcome:
        assert self._snippet is not None
        shown, result = None, None
        if self._snippet.name is not None:
            # What leaves the sandbox is small, whatever the value is.
            code = (
                f"(repr({_NAME})[:{_MAX_SHOWN}], {_NAME} if type({_NAME}) in (int, float, bool)"
                f" or type({_NAME}) is str and len({_NAME}) < {_MAX_SHOWN} else None, {_NAME} is None)"
            )
            shown, result, is_none = self._session.feed_run(code, print_callback=self._print)
            if is_none:
                shown = None
            elif result is None:
                result = shown
        if self._spec.session:
            self.kept = self._session.dump()
        return self._outcome(shown=shown, result=result if type(result) in _SCALARS else shown)

    _is_future = False

    def _outcome(self, **more: Any) -> Outcome:
        output = "".join(self._printed)
        is_cut = self._size > self._spec.max_bytes
        return Outcome(output[: self._spec.max_bytes] if is_cut else output, is_cut, **more)

    def _late(self) -> str:
        text = f"the code did not end within {self._spec.time_s:g} s"
        return text + "; the session is as it was before" if self._spec.session else text

    def _print(self, stream: str, text: str) -> None:
        if self._size <= self._spec.max_bytes:
            self._printed.append(text)
        self._size += len(text)


def _never_called(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("calls are answered by the executor")


def _line(error: Any) -> str:
    frames = error.traceback()
    return f" (line {frames[0].line})" if frames else ""


def _arguments(tool: Tool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = list(tool.parameters.get("properties", {}))
    if len(args) > len(names):
        raise ValueError(f"{tool.name} takes at most {len(names)} arguments; {len(args)} were given")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _check() -> None:
    try:
        import pydantic_monty
        from pydantic_monty._binary import find_monty_binary
    except ImportError as error:
        raise MissingExtra("the sandbox monty", extra="code") from error
    assert pydantic_monty.__version__
    try:
        find_monty_binary(None)
    except FileNotFoundError as error:
        raise UsageError(
            f"the sandbox monty has no worker program; pip install pydantic-monty-runtime ({error})"
        ) from error


def monty_runner(
    name: str, spec: CodeSpec, called: Mapping[str, Tool]
) -> Callable[[str, ToolContext], Awaitable[Outcome]]:
    """Runs code in monty; within an episode one after another where there is a session.

    Raises:
        MissingExtra, UsageError: pydantic-monty, or its worker program, is not installed.
    """
    _check()

    @asynccontextmanager
    async def opened() -> AsyncIterator[_Pool]:
        import pydantic_monty

        threads = ThreadPool(size=spec.workers)
        workers = pydantic_monty.Monty(min_processes=1, max_processes=spec.workers)
        await _in_thread(threads, workers.__enter__)
        try:
            yield _Pool(workers, asyncio.Semaphore(spec.workers), threads)
        finally:
            await _in_thread(threads, workers.__exit__, None, None, None)
            threads.close()

    async def one(code: str, call: ToolContext, notebook: _Notebook | None) -> Outcome:
        pool = await call.shared().get(("monty", name), opened)
        state = notebook.state if notebook is not None else None
        made: list[Mapping[str, Any]] = []
        async with pool.places:
            cell = _Cell(pool.workers, spec, called, state, call.seed)
            try:
                step = await _in_thread(pool.threads, cell.start, code, give_up=cell.release)
                while isinstance(step, _Asked):
                    answers = await _answers(step, called, call, made)
                    step = await _in_thread(pool.threads, cell.answer, answers, give_up=cell.release)
            finally:
                await asyncio.shield(asyncio.ensure_future(_in_thread(pool.threads, cell.release)))
        if notebook is not None and cell.kept is not None:
            notebook.state = cell.kept
        return Outcome(step.output, step.is_cut, step.shown, step.result, step.error, step.is_late, tuple(made))

    async def run(code: str, call: ToolContext) -> Outcome:
        if not spec.session:
            return await one(code, call, None)
        notebook = await call.scope().get(("monty", name), _notebook)
        async with notebook.turn:
            return await one(code, call, notebook)

    return run


async def _in_thread(
    threads: ThreadPool, function: Callable[..., Any], *arguments: Any, give_up: Callable[[], None] | None = None
) -> Any:
    job = threads.submit(function, *arguments)
    try:
        await job.done
    finally:
        if not job.is_ended:
            threads.give_up(job, after=give_up)
    if job.error is not None:
        raise job.error
    return job.result


async def _answers(
    asked: _Asked, called: Mapping[str, Tool], call: ToolContext, made: list[Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """What the tools answer, each in the form in which the sandbox goes on: a value, or an exception."""
    if call.run_calls is None:
        raise EpisodeError("code called a tool where no environment runs calls", reason="code")
    answers: dict[int, dict[str, Any]] = {}
    calls: dict[int, ToolCall] = {}
    for number, (name, args, kwargs) in asked.calls.items():
        try:
            calls[number] = ToolCall(name, _arguments(called[name], args, kwargs))
        except ValueError as error:
            answers[number] = {"exception": TypeError(str(error))}
    if time.monotonic() >= call.deadline:
        raise ToolFailed("the code's time is up", reason="timeout")
    results = await call.run_calls(list(calls.values()), call)
    for (number, one), result in zip(calls.items(), results, strict=True):
        made.append({"tool": one.name, "arguments": dict(one.arguments), "outcome": result.outcome})
        if result.outcome == "ok":
            answers[number] = {"return_value": result.text if result.value is None else result.value}
        else:
            answers[number] = {"exception": RuntimeError(result.text)}
    return answers
