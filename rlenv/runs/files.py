"""Trajectories as files: one JSON object a line.

A turn's results stand in its observation too, in memory; a line holds them once, and so it does the images that a
result shows. Lines that hold them twice, as older ones do, are read as they are.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson

from rlenv._base.bounded import adapter_of, cut_end, fields_of, plain
from rlenv.errors import UsageError, told_as
from rlenv.messages import Message, Observation, ToolResult
from rlenv.runs.journal import loads
from rlenv.runs.schema import Tokens
from rlenv.secrets import logger
from rlenv.trajectory import Trajectory, Turn

__all__ = ["MAX_LINE_BYTES", "Body", "append", "dump", "is_torn", "nested", "parse", "plain", "read", "write"]

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""A longer line is no trajectory: what is kept of an episode is bounded far below."""

_MAX_DEPTH = 256
_MAX_ERROR_CHARS = 500
_log = logger("rlenv.runs.files")


def dump(trajectory: Trajectory) -> bytes:
    """One line of JSON, without its newline; it never raises for what a policy or a tool wrote.

    In UTF-8; in ASCII where the episode holds text which UTF-8 cannot (the lone surrogates that a policy may write):
    they survive as escapes.
    """
    held = fields_of(trajectory)
    held["turns"] = [_turn_fields(turn) for turn in trajectory.turns]
    reward = held["reward"] = fields_of(trajectory.reward)
    reward["terms"] = {name: fields_of(term) for name, term in trajectory.reward.terms.items()}
    try:
        # A fifth of the time of the line below. It refuses what UTF-8 and 64 bits cannot hold, and what is too deep.
        return orjson.dumps(held, default=_as_dict, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:
        return json.dumps(plain(held), separators=(",", ":")).encode("ascii")


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _turn_fields(turn: Turn) -> dict[str, Any]:
    held, observation = fields_of(turn), turn.observation
    held["parsed"] = fields_of(turn.parsed)
    if observation is None or observation.results != turn.results:
        return held
    messages = [fields_of(message) for message in observation.messages]
    if _are_paired(observation.messages, turn.results):
        for line, result in zip(messages, turn.results, strict=True):
            if line["images"] == result.images:
                del line["images"]
    held["observation"] = {"messages": messages, "text": observation.text}
    return held


def _are_paired(messages: tuple[Message, ...], results: tuple[ToolResult, ...]) -> bool:
    return len(messages) == len(results) and all(message.role == "tool" for message in messages)


def parse(line: bytes | str) -> Trajectory:
    """The trajectory of one line.

    Raises:
        UsageError: the line is not a trajectory, or holds what no trajectory does: a number that is not finite, what is
            nested too deep, too many bytes.
    """
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"not a recorded trajectory: longer than {MAX_LINE_BYTES} bytes")
    try:
        read = json.loads(line, parse_constant=_parse_finite, parse_float=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a recorded trajectory: {_error_text(error)}") from error
    return _validate_trajectory(read)


def nested(result: ToolResult) -> Trajectory | None:
    """The trajectory of the episode that an agent played inside a call.

    None where the call was no agent's, or the trajectory was too long to be kept whole.

    Raises:
        UsageError: what is kept in its place is not a trajectory.
    """
    details = result.details or {}
    kept = details.get("trajectory")
    return None if kept is None or "left_out" in details else _validate_trajectory(kept)


def _validate_trajectory(read: Any) -> Trajectory:
    if _is_deep(read):
        raise UsageError(f"not a recorded trajectory: nested more than {_MAX_DEPTH} levels deep")
    whole = [index for index, turn in enumerate(_turns_of(read)) if _holds_results_once(turn)]
    try:
        trajectory: Trajectory = adapter_of(Trajectory).validate_python(read)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a recorded trajectory: {_error_text(error)}") from error
    if not whole:
        return trajectory
    turns = list(trajectory.turns)
    for index in whole:
        turns[index] = _with_results(turns[index], _turns_of(read)[index]["observation"])
    return dataclasses.replace(trajectory, turns=tuple(turns))


def _turns_of(read: Any) -> list[Any]:
    turns = read.get("turns") if isinstance(read, Mapping) else None
    return turns if isinstance(turns, list) else []


def _holds_results_once(turn: Any) -> bool:
    observation = turn.get("observation") if isinstance(turn, Mapping) else None
    return isinstance(observation, Mapping) and "results" not in observation


def _with_results(turn: Turn, line: Mapping[str, Any]) -> Turn:
    observation = turn.observation
    assert observation is not None
    messages = observation.messages
    if _are_paired(messages, turn.results):
        messages = tuple(
            message if "images" in shown else dataclasses.replace(message, images=result.images)
            for message, shown, result in zip(messages, line.get("messages", ()), turn.results, strict=True)
        )
    return dataclasses.replace(turn, observation=Observation(messages, observation.text, turn.results))


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.40} is not finite")
    return number


def _is_deep(value: Any) -> bool:
    rest = [(value, 0)]
    while rest:
        item, depth = rest.pop()
        if isinstance(item, (dict, list)):
            if depth >= _MAX_DEPTH:
                return True
            inside = item.values() if isinstance(item, dict) else item
            rest.extend((one, depth + 1) for one in inside if isinstance(one, (dict, list)))
    return False


def _error_text(error: Exception) -> str:
    text = "nested too deep" if isinstance(error, RecursionError) else str(error)
    if listed := getattr(error, "errors", None):  # pydantic's, which says each on lines of its own
        first = listed(include_url=False, include_input=False, include_context=False)[0]
        text = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    return cut_end(text, _MAX_ERROR_CHARS)


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Writes a .jsonl file; the folder is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for trajectory in trajectories:
            append(file, trajectory)


def append(file: IO[bytes], trajectory: Trajectory) -> None:
    """Writes one trajectory to an open file."""
    file.write(dump(trajectory) + b"\n")


def read(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a .jsonl file, one by one.

    A line that begins as a trajectory and ends in the middle was cut off, by a full disk or a run that was killed: it
    is left out, and the logger `rlenv.runs.files` says so.

    Raises:
        UsageError: a line is not a trajectory; the message names it.
    """
    with Path(path).open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.strip():
                continue
            try:
                yield parse(line)
            except UsageError as error:
                if len(line) <= MAX_LINE_BYTES and is_torn(line):
                    _log.warning("%s:%d: the line was cut off in the middle; it is left out", path, number)
                    continue
                raise UsageError(f"{path}:{number}: {error}") from error


def is_torn(line: bytes) -> bool:
    """True if a line begins as a trajectory and ends before its end."""
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        # Cut inside a text, or inside a word, an escape or a number: nothing in them is longer.
        return error.msg.startswith("Unterminated string") or error.pos >= len(line.rstrip()) - 8
    except (ValueError, RecursionError):
        return False
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """The whole record of an episode: its trajectory as JSON, and its tokens (empty without a tokenizer).

    `events` are what it asked and was answered (`rlenv.runs.events`), None where that was not recorded. `ending` is
    JSON of what it has ended as where that became known later, "" elsewhere.
    """

    id: str
    record: bytes
    tokens: Sequence[Tokens]
    events: bytes | None = None
    ending: str = ""

    def trajectory(self) -> Trajectory:
        """The record read, with what it has ended as.

        Raises:
            UsageError: it is no trajectory.
        """
        caught = (UsageError, ValueError, TypeError, RecursionError)
        with told_as(UsageError, f"the record of '{self.id}' cannot be read:", *caught):
            if not self.ending:
                return parse(self.record)
            return parse(json.dumps({**loads(self.record), **loads(self.ending.encode())}))

    def as_json(self) -> Any:
        """The record as JSON, as `dump` writes what was read: each field is there, and of its type.

        Raises:
            UsageError: it is no trajectory.
        """
        return loads(dump(self.trajectory()))
