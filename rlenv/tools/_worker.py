"""The worker process of a `python` tool, which runs one call after another until the socket closes; and who starts it.

Functions that have to be stopped run in such processes: each is killed, and replaced, when a call does not end.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlenv.concurrency.deadline import left_s
from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed
from rlenv.concurrency.served import READY, receive_frame, refuse, send
from rlenv.errors import EpisodeError, RlenvError, ToolFailed
from rlenv.language import kinds as registry
from rlenv.language.kinds import CompileContext
from rlenv.messages import Image
from rlenv.tools.base import Tool, ToolContext, ToolOutput, asked_again

_MAX_TRACE = 20_000
_PR_SET_PDEATHSIG = 1


def serve_tool(link: socket.socket, told: Mapping[str, Any]) -> None:
    """Compiles the tool that `told` describes, says so, and answers calls; never returns."""
    _die_with_parent()
    os.dup2(2, 1)  # the parent's output may be read by a program; what a function prints is for people
    own = os.getpid()
    try:
        kind = registry.get("tools", "python")
        spec = kind.spec.model_validate(told["spec"])
        bases = {key: Path(value) for key, value in told["bases"].items()}
        (tool,) = kind.factory(told["name"], spec, CompileContext(base=Path(told["base"]), bases=bases))
    except RlenvError as error:
        refuse(link, str(error))
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(link, requests), name="rlenv-worker", daemon=True).start()
    _send_answer(link, READY)
    # One loop for all calls: what a coroutine function keeps open belongs to the loop that it was opened on.
    with asyncio.Runner() as runner:
        while True:
            body = _answer_call(tool, requests.get(), runner)
            if os.getpid() != own:  # the function forked, and its child came back as well
                os._exit(0)
            _send_answer(link, body)


def _die_with_parent() -> None:
    """Asks the kernel, where it can be asked, to end this process with its parent: code that never gives the
    interpreter back keeps the thread that waits for the end of the socket from running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _receive_requests(link: socket.socket, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Reads all the time, so that the end of the socket is seen while a function runs; then the group ends."""
    try:
        while (body := receive_frame(link)[0]) is not None:
            requests.put(json.loads(body))
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _send_answer(link: socket.socket, body: bytes) -> None:
    try:
        send(link, body)
    except OSError:  # the parent is gone, or the function closed what is not its own
        os._exit(1)


def _answer_call(tool: Tool, request: Mapping[str, Any], runner: asyncio.Runner) -> bytes:
    try:
        context = ToolContext(request["task"], {}, time.monotonic() + request["seconds"], request["seed"])
        found = tool.run(request["arguments"], context)
        body = _encode_output(runner.run(found) if inspect.iscoroutine(found) else found)
        if len(body) > MAX_BYTES:
            text = f"the tool {tool.name} gave more than {MAX_BYTES // 1_000_000} MB"
            raise ToolFailed(text, reason="too_large")
        return body
    except ToolFailed as error:
        answer = {
            "kind": "failed",
            "reason": error.reason,
            "retryable": error.retryable,
            "whose": error.whose,
            "details": _copy_details(error.details),
            "wait_s": error.wait_s,
        }
        return pack(answer, error.text)
    except EpisodeError as error:
        return pack({"kind": "episode", "reason": error.reason}, str(error))
    except BaseException:  # whatever a function raises, SystemExit included, the worker goes on
        return pack({"kind": "raised"}, traceback.format_exc()[-_MAX_TRACE:])


def _encode_output(output: ToolOutput) -> bytes:
    is_text = type(output.value) is str and output.value == output.text
    answer = {
        "kind": "ok",
        "is_text": is_text,
        "value": None if is_text else output.value,
        "images": [[image.mime, image.base64] for image in output.images],
        "details": _copy_details(output.details),
    }
    return pack(answer, output.text)


def _copy_details(details: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if details is None else dict(details)


MAX_BYTES = 32_000_000
"""The longest answer."""


def pack(answer: Mapping[str, Any], text: str = "") -> bytes:
    """The body of an answer.

    Raises:
        TypeError, ValueError: `answer` is not JSON.
    """
    head = json.dumps(answer).encode()
    return len(head).to_bytes(4, "big") + head + text.encode("utf-8", "surrogatepass")


def unpack(body: bytes) -> tuple[dict[str, Any], str]:
    """The answer, and the text that goes with it.

    Raises:
        ValueError: the body is no answer.
    """
    end = 4 + int.from_bytes(body[:4], "big")
    answer = json.loads(body[4:end])
    if type(answer) is not dict:
        raise ValueError("an answer is an object")
    return answer, body[end:].decode("utf-8", "surrogatepass")


_LARGE = 256_000
# What a function waits for is unknown, and it may stop itself.
_WAITS: Final = {"S": "late", "D": "late", "T": "stopped", "?": "late"}


class FunctionRaised(Exception):
    """A function raised something undeclared; the message is its traceback, for the author's log."""


def _decode_answer(answer: Mapping[str, Any], text: str) -> ToolOutput | Exception:
    kind = answer["kind"]
    if kind == "ok":
        images = tuple(Image(mime, base64) for mime, base64 in answer["images"])
        return ToolOutput(text, text if answer["is_text"] else answer["value"], images, answer["details"])
    if kind == "failed":
        names = ("reason", "retryable", "details", "whose", "wait_s")
        return ToolFailed(text, **{name: answer[name] for name in names})
    if kind == "episode":
        return EpisodeError(text, reason=answer["reason"])
    return FunctionRaised(text)


def _plain_mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value and cannot be handed to another process")


class PythonWorkers:
    """At most `limit` workers of one tool, started when they are needed; calls beyond them wait their turn."""

    def __init__(self, name: str, told: Mapping[str, Any], *, limit: int) -> None:
        self._name = name
        self._pool = Pool(Program("rlenv.tools._worker:serve_tool", told, waits=_WAITS), limit=limit)

    async def run(self, arguments: Mapping[str, Any], call: ToolContext, *, with_task: bool) -> ToolOutput:
        """Calls the function in a worker; cancelled, or at the call's deadline, the worker is killed.

        Raises:
            ToolFailed: the function declared a failure, or its process ended.
            Expired: the deadline passed; with what the time went to.
            EpisodeError: the function raised it, or no worker could be started.
            FunctionRaised: the function raised anything else.
        """
        asked = {"arguments": arguments, "task": call.task if with_task else {}, "seed": call.seed}

        async def work(process: Process) -> ToolOutput | Exception:
            asked["seconds"] = left_s()
            frame, _ = await process.ask(json.dumps(asked, default=_plain_mapping).encode())
            try:
                answer, text = unpack(frame) if len(frame) <= _LARGE else await asyncio.to_thread(unpack, frame)
                return _decode_answer(answer, text)
            except (ValueError, KeyError, TypeError, RecursionError) as error:  # the function wrote into the socket
                process.is_busy = True
                raise Gone(None) from error

        try:
            # What is asked again was lost once by waiting, perhaps.
            is_patient = bool(asked_again.get())
            result = await self._pool.run(work, until=call.deadline, is_patient=is_patient)
        except StartFailed as error:
            message = f"a worker process of tool '{self._name}' did not start: {error}"
            raise EpisodeError(message, reason="worker") from error
        except Gone as error:
            # The call may have ended its process, also by a signal that usually comes from outside.
            was_killed = error.cause == "outside"
            raise ToolFailed(
                f"the tool {self._name} failed: its process ended",
                reason="killed" if was_killed else "crashed",
                retryable=was_killed,
                details={"process": str(error)},
            ) from error
        if isinstance(result, Exception):
            raise result
        return result

    async def aclose(self) -> None:
        """Kills all workers and waits until they are gone."""
        await self._pool.aclose()
