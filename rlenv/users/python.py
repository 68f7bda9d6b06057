"""The user of kind `python`: a function of the author's."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import EpisodeError, under
from rlenv.language.functions import failure, import_function, named_parameters
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text, UserSpec
from rlenv.messages import Message
from rlenv.secrets import logger
from rlenv.users.base import UserContext, spoken

__all__ = ["KIND", "PythonUserSpec"]

_log: Final[logging.Logger] = logger("rlenv.users")
_LOG_EVERY_S: Final = 1.0
_threads: Final = ThreadPool(size=64)
_OFFERED: Final = ("message", "dialogue", "task", "vars", "seed", "turn")


class PythonUserSpec(UserSpec):
    """Calls a function at every message that is meant for the user.

    Its parameters are given by name: `message` (the policy's last), `dialogue` (all, as `{role, content}`), `task`,
    `vars`, `seed`, `turn` (0-based), and resources. It returns the reply, or None to end the episode.
    """

    kind: Literal["python"]
    function: Text
    """`file.py:function`, relative to the spec, or `package.module:function`; sync or async."""


@dataclass(slots=True, eq=False)
class _Python:
    stop: str | None
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    is_async: bool
    _logged_at: float = -math.inf
    _more: int = 0

    def start(self, context: UserContext) -> _Session:
        return _Session(self, context)

    def told(self, error: BaseException) -> None:
        """Logs what the function raised, at most once a second: as many episodes may fail as there are."""
        now = time.monotonic()
        if now - self._logged_at < _LOG_EVERY_S:
            self._more += 1
            return
        also = f" (and {self._more} times more since the last line)" if self._more else ""
        self._logged_at, self._more = now, 0
        _log.warning("the user's function failed%s", also, exc_info=error)


class _Session:
    def __init__(self, user: _Python, context: UserContext) -> None:
        self._user = user
        self._context = context
        self._turn = 0

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        context, user = self._context, self._user
        known: dict[str, Any] = {
            **context.resources,
            "message": dialogue[-1].content,
            "dialogue": [{"role": message.role, "content": message.content} for message in dialogue],
            "task": context.task,
            "vars": context.vars,
            "seed": context.seed,
            "turn": self._turn,
        }
        self._turn += 1
        given = {name: known[name] for name in user.parameters}
        try:
            if user.is_async:
                said = await user.function(**given)
            else:  # it may block, and a hanging one must not hold the loop
                said = await _in_thread(partial(user.function, **given))
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            self._user.told(error)
            raise EpisodeError(f"the user's function failed: {failure(error)}", reason="user") from error
        if said is not None and not isinstance(said, str):
            found = type(said).__name__
            raise EpisodeError(f"the user's function gave a {found}; expected a text or None", reason="user")
        return None if said is None else spoken(said)


async def _in_thread(work: Callable[[], Any]) -> Any:
    job = _threads.submit(work)
    try:
        await asyncio.shield(job.done)
    except asyncio.CancelledError:
        _threads.give_up(job)
        raise
    return job.outcome()


def compile_python(spec: PythonUserSpec, context: CompileContext) -> _Python:
    """The user of one spec.

    Raises:
        UsageError: there is no such function, or it takes what nothing gives.
    """
    with under("function"):
        function = import_function(spec.function, base=context.bases.get("function", context.base))
    names = named_parameters(function, key="function", offered=(*_OFFERED, *context.resources))
    return _Python(spec.stop, function, names, inspect.iscoroutinefunction(function))


KIND = Kind(PythonUserSpec, compile_python)
