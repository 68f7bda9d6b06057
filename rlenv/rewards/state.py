"""The kind `state`: what an episode left of its resources, held against what the row's gold calls leave of them."""

from __future__ import annotations

import asyncio
import contextlib
import copyreg
import errno
import inspect
import itertools
import json
import marshal
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from rlenv._base.bounded import cut_end
from rlenv._base.paths import read_file, walked
from rlenv.concurrency.deadline import left_s
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import RewardError, ToolFailed, UnknownEntry, UsageError, told_as, under
from rlenv.language.functions import import_function
from rlenv.language.kinds import Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.messages import ToolCall
from rlenv.resources import CopiedDict, Lent, LentList
from rlenv.resources.base import Folder
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import compile_for_context, is_async

_MOST_ROWS: Final = 100_000
_MOST_BYTES: Final = 64_000_000
_PIECE, _PIECE_ROWS, _ROW = 4_000_000, 20_000, 16_000_000  # characters and rows that are read at once; of a row alone
_MOST_DEPTH: Final = 120
_MOST_PARTS: Final = 1_000_000
_PLAIN_MARSHAL: Final = 2  # the version that writes equal values alike, whoever else refers to their parts
_PLAIN_JSON: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_QUICK: Final = frozenset((str, int, bool, type(None)))
_OF_THE_MACHINE: Final = frozenset((errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE))
_LENT: Final = (Lent, LentList)
_COPIES: Final = (CopiedDict, *_LENT)
_threads: Final = ThreadPool(size=64)
_TABLES: Final[Mapping[str, str]] = {
    "sqlite": r"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'",
    "duckdb": "SELECT table_catalog, table_schema, table_name FROM information_schema.tables "
    "WHERE table_type = 'BASE TABLE'",
}


class StateSpec(RewardSpec):
    """1 if the episode leaves its resources as the row's gold calls leave a second copy of them, 0 otherwise."""

    kind: Literal["state"]
    expect: Any = "{{ task.gold }}"
    """The gold calls, in the forms that an oracle's `call` takes: a template that gives them."""
    of: tuple[Text, ...] = ()
    """Resources, or parts of them: `shop.orders` is a table, a key, an attribute or a file. All by default."""
    function: Text | None = None
    """`file.py:function` that takes a resource and gives what is compared; a plain one is called in a thread."""


async def snapshot(handle: Any, part: str = "") -> Any:
    """What is compared of an opened resource. `part` is a dotted path below it.

    Raises:
        RewardError: it is too large, or there is no such part.
        ToolFailed: a database could not be read.
    """
    if getattr(handle, "dialect", "") in _TABLES and callable(getattr(handle, "query", None)):
        tables = [json.loads(row) for row in await _read_rows(handle, _TABLES[handle.dialect])]
        names = [one[-1] if one[-2:-1] in ([], ["main"]) else ".".join(one[-2:]) for one in tables]
        if part and names.count(part) != 1:
            found = "several tables" if part in names else "no table"
            raise RewardError(f"the database has {found} '{part}'; it has {', '.join(names) or 'none'}")
        places = [".".join('"' + word.replace('"', '""') + '"' for word in one) for one in tables]
        return {
            name if names.count(name) == 1 else str(one[-2:]): await _read_rows(handle, f"SELECT * FROM {place}")
            for one, name, place in zip(tables, names, places, strict=True)
            if part in ("", name)
        }
    if isinstance(handle, Folder):
        return await asyncio.to_thread(_read_files, handle.path, part)
    value = handle
    for key in part.split(".") if part else ():
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif hasattr(value, key):
            value = getattr(value, key)
        else:
            raise RewardError(f"there is no '{key}' in '{part}'")
    return value


async def _read_rows(handle: Any, sql: str) -> list[str]:
    """All rows as texts in order, a piece at a time: all else stands still while one is parsed.

    A piece may take half of the time that is left to the reward: what is slow to read uses up its own part of it.
    """
    rows, size, piece = list[str](), 0, _PIECE
    while True:
        query, deadline = f"{sql} LIMIT {_MOST_ROWS + 1} OFFSET {len(rows)}", time.monotonic() + min(60, left_s() / 2)
        most = _PIECE_ROWS if piece == _PIECE else 1
        found = await handle.query(query, deadline=deadline, max_rows=most, max_size=piece, is_urgent=True)
        rows += (piece_rows := await asyncio.to_thread(_dump_rows, found.rows))
        size += sum(map(len, piece_rows))
        if len(rows) > _MOST_ROWS or size > _MOST_BYTES or (found.truncated and not piece_rows and piece == _ROW):
            more = f"more than {_MOST_ROWS:,} rows, {_MOST_BYTES // 10**6} MB, or {_ROW // 10**6} MB in a row"
            raise RewardError(f"a table has {more}; name the tables to compare under 'of'")
        if not found.truncated:
            return await asyncio.to_thread(sorted, rows)
        piece = _PIECE if piece_rows else _ROW


def _read_files(folder: Path, part: str) -> dict[str, Any]:
    """The files by their paths; what is no file, and what cannot be read, stands as a mark."""
    top = Path(os.path.normpath(folder / part))
    # Not `Path.resolve`, which raises for a circle of links; that is no folder, and is found below.
    if os.path.realpath(top.parent) != os.path.dirname(os.path.normpath(f"{os.path.realpath(folder)}/{part}")):
        raise RewardError(f"'{part}' stands behind a link")
    found: dict[str, Any] = {}
    size = 0
    is_file = os.path.lexists(top) and not stat.S_ISDIR(top.lstat().st_mode)
    for number, (path, status) in enumerate([("", top.lstat())] if is_file else walked(top), 1):
        try:
            if isinstance(status, OSError):
                raise status
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            if number > _MOST_ROWS or size > _MOST_BYTES:
                raise RewardError(f"more than {_MOST_ROWS:,} files or {_MOST_BYTES:,} bytes; name a part under 'of'")
            if not stat.S_ISDIR(status.st_mode):
                found[path[1:] or "."] = _file_content(Path(f"{top}{path}"), status.st_mode)
        except (OSError, ValueError) as error:  # also of what has become a pipe just now
            if getattr(error, "errno", 0) in _OF_THE_MACHINE:
                raise
            found[path[1:] or "."] = {"cannot be read": getattr(error, "strerror", str(error))}
    return found


def _file_content(path: Path, mode: int) -> Any:
    if stat.S_ISREG(mode):
        return read_file(path, most=_MOST_BYTES).hex()
    # A pipe would be waited for without an end.
    return {"link": os.readlink(path)} if stat.S_ISLNK(mode) else {"special": stat.filemode(mode)[0]}


def _dump_rows(rows: Sequence[Sequence[Any]]) -> list[str]:
    return sorted((_dump_quickly(row) or _dump(row)).decode() for row in rows)


def _dump_quickly(row: Sequence[Any]) -> bytes:
    with contextlib.suppress(TypeError):  # of large integers
        return orjson.dumps(row) if all(type(one) in _QUICK for one in row) else b""
    return b""


def _dump(value: Any, most: int = _MOST_PARTS) -> bytes:
    """A value as bytes that are equal for equal states.

    Raises RewardError: it is too large or too deep, or nothing says what an object in it holds.
    """
    plain = _Form(most).of(value, {})
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # halves of surrogate pairs
        return json.dumps(plain, sort_keys=True).encode()


class _Form:
    """Values as JSON. What JSON has no word for is a mapping with a key in brackets, which no key of the value's is."""

    def __init__(self, most: int = _MOST_PARTS) -> None:
        self._most = self._left = most

    def of(self, value: Any, above: Mapping[int, int]) -> Any:
        """The form of a value in others, whose ids `above` has with their depths."""
        self._left -= 1 + (len(value) // 64 if isinstance(value, (str, bytes, bytearray)) else 0)
        if self._left < 0:
            raise RewardError(f"the state has more than {self._most:,} parts; name some under 'of', or give 'function'")
        if value is None or isinstance(value, (str, bool)):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                return {"(float)": repr(float(value))}
            if not value.is_integer():
                return float(value)
            value = int(value)
        if isinstance(value, int):
            return int(value) if -(2**63) <= value < 2**63 else {"(int)": f"{value:x}"}
        if isinstance(value, (bytes, bytearray)):
            return {"(bytes)": value.hex()}
        if id(value) in above:
            return {"(above)": len(above) - above[id(value)]}
        if len(above) > _MOST_DEPTH:
            raise RewardError("the state is nested too deep; name a part of it under 'of', or give 'function'")
        inside = {**above, id(value): len(above)}
        if isinstance(value, Mapping):
            return {self._key_text(key, inside): self.of(part, inside) for key, part in list(value.items())}
        if isinstance(value, Set):
            return {"(set)": sorted(json.dumps(self.of(part, inside), sort_keys=True) for part in value)}
        if isinstance(value, (list, tuple)):
            return [self.of(part, inside) for part in value]
        if inspect.isroutine(value) or inspect.ismodule(value) or isinstance(value, type):
            return {"(code)": getattr(value, "__qualname__", getattr(value, "__name__", ""))}
        held = {name: self.of(part, inside) for name, part in _contents_of(value).items()}
        return {"(class)": type(value).__qualname__, "(holds)": held}

    def _key_text(self, key: Any, inside: Mapping[int, int]) -> str:
        if isinstance(key, str):
            return f"(str) {key}" if key.startswith("(") else key
        return "(key) " + json.dumps(self.of(key, inside), sort_keys=True)


def _contents_of(value: Any) -> dict[str, Any]:
    """What an object holds: its attributes and what `copy` would make it again from, or its items."""
    kind = type(value)
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    if names or hasattr(value, "__dict__"):
        own = {name: getattr(value, name) for name in names if hasattr(value, name)}
        if any(getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
            with contextlib.suppress(Exception):  # what a class in C holds is in no attribute; some forbid it
                own["(made)"] = _reduce(value)
        return own | {str(name): part for name, part in getattr(value, "__dict__", {}).items()}
    if isinstance(value, Iterable) and not isinstance(value, Iterator):
        return {"items": list(itertools.islice(value, _MOST_PARTS))}
    with contextlib.suppress(TypeError):
        made = _reduce(value)
        if made[1:] != [(kind,), None, None, None]:
            return {"made": made}
    raise RewardError(f"nothing says what the state of a {type(value).__name__} is; give 'function' one that does")


def _reduce(value: Any) -> list[Any]:
    """What `copy` would make an object again from, its items too. Raises TypeError: it cannot be."""
    parts = value.__reduce_ex__(4)
    if isinstance(parts, str):
        return [parts]
    items = (None if part is None else list(itertools.islice(part, _MOST_PARTS)) for part in parts[3:5])
    return [*parts[:3], *items]


def _compile(name: str, spec: StateSpec, context: TermCompileContext) -> Term:
    own = {key: one for key, one in context.resources.items() if one.scope == "episode"}
    parts = [one.partition(".") for one in (spec.of or tuple(own))]
    for resource, _, _ in parts:
        if resource not in context.resources:
            raise UnknownEntry("resources", resource, tuple(context.resources), key="of")
        if resource not in own:
            raise UsageError(f"episodes share '{resource}'", key="of", hint="give it scope: episode")
    if not parts:
        raise UsageError("no resource is an episode's own", hint="add one with scope: episode")
    golds = compile_for_context(spec.expect, where="expect", names=frozenset(("task", "vars")))
    with under("function"):
        at = spec.function
        function = None if at is None else import_function(at, base=context.bases.get("function", context.base))

    async def state(resources: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for resource, dot, part in parts:
            if function is None:
                value = await snapshot(resources[resource], part)
            else:
                run = partial(function, resources[resource])
                value = run() if is_async(function) else await _threads.run(run)
                value = await value if inspect.isawaitable(value) else value
            found[resource + dot + part] = value
        return found

    def parts_in(resources: Mapping[str, Any]) -> set[str]:
        """The parts of folders that are there."""
        folders = [(one, dot, part) for one, dot, part in parts if part and isinstance(resources[one], Folder)]
        return {one + dot + part for one, dot, part in folders if os.path.lexists(resources[one].path / part)}

    async def measure(context: RewardContext) -> Measured:
        if context.after is None:
            raise RewardError("there is no environment whose resources could be opened again")
        seen: set[str] = set()
        async with context.after(golds(context), lambda resources: seen.update(parts_in(resources))) as resources:
            with told_as(RewardError, "the gold state cannot be read:", ToolFailed, RewardError):
                wanted = await state(resources)
                seen |= parts_in(resources)
                for one, dot, part in parts:
                    if part and isinstance(resources[one], Folder) and one + dot + part not in seen:
                        raise RewardError(f"there is no '{part}' in '{one}', before the gold calls or after them")
            left: dict[str, Any] | None = None
            try:
                left = await state(context.resources)
                gaps = [await asyncio.to_thread(_find_difference, name, wanted[name], left[name]) for name in wanted]
            except _UnreadGold as error:
                raise RewardError(f"the gold state cannot be read: {error}") from error
            except (ToolFailed, RewardError) as error:
                # The gold state was read well: what is wrong is what the policy left, or the author's function raised.
                is_left = function is None or left is not None
                if error.whose == "policy" if isinstance(error, ToolFailed) else is_left:
                    return Measured(float(spec.usual_weight < 0), f"the state cannot be read: {error}")
                raise RewardError(f"the state cannot be read: {error}") from error
        if any(gaps) and (tool := _lost_tool(context)):
            raise RewardError(f"a call of '{tool}' was lost with its process, which was ended from outside")
        return Measured(float(not any(gaps)), "; ".join(filter(None, gaps)))

    return Term(name=name, spec=spec, measure_async=measure)


def _lost_tool(context: RewardContext) -> str:
    """The tool of a call that was lost with its process, which ended from outside, and did not go well later, or "".

    No other failure counts: a policy could bring it about, as late starts by ending many processes.
    """
    calls = [pair for turn in context.turns for pair in zip(turn.parsed.calls, turn.results, strict=False)]
    for at, (call, result) in enumerate(calls):
        if result.reason == "worker" and "process" in (result.details or {}) and isinstance(call, ToolCall):
            later = [one for one, found in calls[at + 1 :] if not found.is_error and isinstance(one, ToolCall)]
            if not any((one.name, one.arguments) == (call.name, call.arguments) for one in later):
                return call.name
    return ""


class _UnreadGold(Exception):
    """The gold state cannot be written as bytes; the message says why."""


def _is_same(gold: Any, own: Any) -> bool:
    """True where both are plain values, written alike; where they are not, it is not known yet."""
    with contextlib.suppress(TypeError, RecursionError):
        if type(gold) in _COPIES or type(own) in _COPIES:
            # What neither side has read is one object, which costs nothing here.
            return bool(gold == own) and _is_written_alike(gold, own)
        # What stands for others in JSON (null for NaN, the value of an enum) is unlike them itself.
        return orjson.dumps(gold, option=_PLAIN_JSON) == orjson.dumps(own, option=_PLAIN_JSON) and bool(gold == own)
    with contextlib.suppress(ValueError):  # of what is no plain value; such values are written at once
        return marshal.dumps(gold, _PLAIN_MARSHAL) == marshal.dumps(own, _PLAIN_MARSHAL)
    return False


def _is_written_alike(gold: Any, own: Any) -> bool:
    """True where equal copies of lent data are written alike; where they are not, it is not known yet."""
    if type(own) is CopiedDict or type(gold) in _LENT:
        gold, own = own, gold
    with contextlib.suppress(TypeError):  # of a table, which is not written for the few parts that were read
        return orjson.dumps(gold, option=_PLAIN_JSON) == orjson.dumps(own)
    if isinstance(gold, dict) and isinstance(own, dict):
        both = [(part, other) for _, part, other in _part_pairs(gold, own)]
    elif isinstance(gold, list) and isinstance(own, list):
        both = list(zip(gold, own, strict=True))
    else:
        return False
    if type(gold) is not CopiedDict:
        return all(part is other or _is_written_alike(part, other) for part, other in both)
    both = [(other, part) if type(part) in _LENT else (part, other) for part, other in both]
    return _is_written_alike([part for part, _ in both], [other for _, other in both])  # all at once


def _part_pairs(gold: dict[str, Any], own: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two mappings of the same keys, without those of two tables that neither side has read."""
    for key in gold.touched(own) if isinstance(gold, CopiedDict) else gold:
        yield key, dict.get(gold, key), dict.get(own, key)


def _find_difference(name: str, gold: Any, own: Any, levels: int = 4) -> str:
    """Where the policy's state differs from the gold one, "" where it does not.

    Mappings are compared by their parts, so that a large one costs what differs in it.
    """
    if _is_same(gold, own):
        return ""
    if type(gold) is type(own) is CopiedDict:
        if gold.keys() != own.keys():
            return f"{name} differs in {', '.join(sorted(map(repr, gold.keys() ^ own.keys()))[:3])}"
    elif not (levels and type(gold) is type(own) is dict and gold.keys() == own.keys() and {*map(type, gold)} == {str}):
        return _byte_difference(name, gold, own)
    gaps = (_find_difference(f"{name}.{key}", one, other, levels - 1) for key, one, other in _part_pairs(gold, own))
    return next(filter(None, gaps), "")


def _byte_difference(name: str, gold: Any, own: Any) -> str:
    """Where the bytes of two states differ, "" where they do not."""
    try:
        gold_bytes = _dump(gold)
    except RewardError as error:
        raise _UnreadGold(str(error)) from error
    own_bytes = _dump(own)
    if gold_bytes == own_bytes:
        return ""
    at = next((at for at, pair in enumerate(zip(gold_bytes, own_bytes, strict=False)) if pair[0] != pair[1]), 0)
    shown = [cut_end(text[max(at - 40, 0) :].decode(errors="replace"), 120) for text in (own_bytes, gold_bytes)]
    return f"{name} is …{shown[0]} and not …{shown[1]}"


KIND = Kind(StateSpec, _compile, values=(0, 1), gold="expect", of_calls=True)
