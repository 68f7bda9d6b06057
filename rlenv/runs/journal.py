"""The open end of a run: files that only grow; those of JSON lines are whole up to their last newline.

    RUN/journal/SEGMENT.bodies          the record of each episode, a line of JSON, behind it its tokens and its events
    RUN/journal/SEGMENT.rows.jsonl      its row, with the place of its body: written second, it is what makes an episode
                                        count
    RUN/journal/SEGMENT.late.jsonl      facts that came later, of episodes of any segment
    RUN/blobs/ab/SHA256                 an image's bytes, or a long text in UTF-8, whose SHA-256 begins with "ab"

Each entry is one write(2) to a file opened for appending, made before `append` returns: a process that is killed loses
nothing that it was told is kept. A machine that loses its power loses at most the last second.

In the record or the events that hold a blob stands its name: `{"rlenv.base64": SHA256}` in the place of an image's
base64, and `{"rlenv.text": SHA256}` in the place of a text. A body lists the names that it holds: whatever else looks
like one is what somebody wrote. A blob has its place before the row that needs it is written, by a rename, so that two
writers of one image do not disturb each other.

Who writes or packs a run: one at a time, also of two that begin in the same instant.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from rlenv._base.paths import draft_of, read_file
from rlenv.errors import UsageError
from rlenv.runs.schema import Tokens, is_late, is_row
from rlenv.secrets import logger

KINDS: Final = ("late", "rows", "bodies")
_log = logger("rlenv.runs.journal")


def path_of(run: Path, segment: str, kind: str) -> Path:
    """The path of a segment's journal of one of `KINDS`."""
    return run / "journal" / (f"{segment}.bodies" if kind == "bodies" else f"{segment}.{kind}.jsonl")


def segment_names(run: Path) -> set[str]:
    """The segments that have a journal."""
    with contextlib.suppress(FileNotFoundError), os.scandir(run / "journal") as entries:
        return {
            entry.name.rsplit(".", 2)[0]
            for entry in entries
            if entry.name.endswith((".rows.jsonl", ".late.jsonl")) and entry.is_file()
        }
    return set()


class Journal:
    """The journals of one segment, written by one process.

    Args:
        needs: asks the machine to keep what entries name; done before they are.

    Raises:
        OSError: of a file that cannot be made; from `put` of one that cannot be written, which is left as it was.
    """

    def __init__(self, run: Path, segment: str, *, needs: Callable[[], None] | None = None) -> None:
        self.segment, self._needs = segment, needs
        self._paths = {kind: path_of(run, segment, kind) for kind in KINDS}
        self._files: dict[str, int] = {}
        self._sizes = dict.fromkeys(KINDS, 0)
        self.is_dirty = False

    def put(self, kind: str, line: bytes) -> int:
        """Appends an entry, whole or not at all, and returns where it begins."""
        file = self._files.get(kind)
        if file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            file = self._files[kind] = os.open(self._paths[kind], flags, 0o644)
        at, left = self._sizes[kind], line
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            # A full disk takes a part of a line. What follows would be read as one line with it.
            with contextlib.suppress(OSError):
                os.ftruncate(file, at)
            raise
        self._sizes[kind] = at + len(line)
        self.is_dirty = True
        return at

    @property
    def size(self) -> int:
        """The bytes of all three files."""
        return sum(self._sizes.values())

    def sync(self) -> None:
        """Asks the machine to keep what was written through a loss of power."""
        self.is_dirty = False
        if self._needs is not None:
            self._needs()
        for kind in reversed(KINDS):  # a row is no use without its body
            if (file := self._files.get(kind)) is not None:
                os.fsync(file)

    def close(self) -> None:
        """Closes the files; they stay."""
        while self._files:
            os.close(self._files.popitem()[1])


class Lines:
    """The lines of a journal that grows: each `read` gives those that are new and whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._is_told = False

    def read(self) -> list[dict[str, Any]]:
        """The objects of the new lines. What is no entry is left out, and told once.

        Raises:
            FileNotFoundError: the journal was sealed in the meantime.
        """
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        end = new.rfind(b"\n") + 1
        self._at += end
        lines = [line for line in new[:end].split(b"\n") if line]
        entries = [_parse_entry(line, self._path) for line in lines]
        found = [one for one in entries if one is not None]
        if len(found) < len(lines) and not self._is_told:
            self._is_told = True
            _log.warning("%s: %d lines of it are no entries and are left out", self._path, len(lines) - len(found))
        return found


def _parse_entry(line: bytes, path: Path) -> dict[str, Any] | None:
    """The entry on a line of a journal, None where it is none."""
    try:
        held = loads(line)
    except (ValueError, RecursionError):
        return None
    is_entry = is_late if path.name.endswith(".late.jsonl") else is_row
    return held if is_entry(held) else None


def entries_of(path: Path) -> list[dict[str, Any]]:
    """The entries on the whole lines of a journal.

    Raises:
        UsageError: a line is no entry.
    """
    found = []
    for number, line in enumerate(whole_lines(path), 1):
        held = _parse_entry(line, path)
        if held is None:
            raise UsageError(f"{path}:{number}: this line is no entry", hint="without the line, the others can be read")
        found.append(held)
    return found


def body_of(record: bytes, tokens: Sequence[Tokens], events: bytes | None = None) -> tuple[bytes, list[Any]]:
    """A body as its journal holds it, and how its tokens lie in it, which goes into the row of the episode.

    The record's line to the letter, so that it can be handed on without being read, then the ids, masks and
    log-probabilities as the memory they are, row after row, then the events (`rlenv.runs.events`).
    """
    held: list[Any] = [record, b"\n"]
    lies = []
    for row in tokens:
        arrays = [_to_array(code, getattr(row, name)) for name, (code, _) in _CODES.items()]
        held += arrays
        lies.append([*map(len, arrays), [list(span) for span in row.turns]])
    if events is not None:
        held.append(events)
    return b"".join(held), lies


_CODES: Final[Mapping[str, tuple[Any, int]]] = {
    "prompt_ids": ("i", 4),
    "ids": ("i", 4),
    "mask": ("b", 1),
    "logprobs": ("f", 4),
}


def _to_array(code: str, values: Sequence[Any]) -> array[Any]:
    return values if isinstance(values, array) and values.typecode == code else array(code, values)


def read_body(file: int, row: Mapping[str, Any]) -> tuple[memoryview, list[Tokens], bytes | None]:
    """The record, the tokens and the events of a row's body, out of its open journal: views of what was read.

    Raises:
        UsageError: the journal does not hold them.
    """
    start, record, length = row["at"]
    sizes = sum(count * size for one in row["lies"] for count, (_, size) in zip(one[:4], _CODES.values(), strict=True))
    if start + length > os.fstat(file).st_size or record + 1 + sizes > length:
        raise UsageError(f"the journal does not hold the body of '{row['id']}'")
    held = memoryview(os.pread(file, length, start))
    at, tokens = record + 1, []
    for *lengths, spans in row["lies"]:
        arrays: dict[str, Any] = {"turns": [(first, end) for first, end in spans]}
        for (name, (code, size)), count in zip(_CODES.items(), lengths, strict=True):
            arrays[name] = held[at : at + count * size].cast(code)
            at += count * size
        tokens.append(Tokens(**arrays))
    return held[:record], tokens, bytes(held[at:]) or None


_LONG: Final = re.compile(rb"\d{19}")


def loads(text: bytes | memoryview) -> Any:
    """The value of JSON text to the digit: orjson makes floats of long integers, and refuses lone surrogates."""
    with contextlib.suppress(orjson.JSONDecodeError):
        if _LONG.search(text) is None:
            return orjson.loads(text)
    return json.loads(bytes(text))


def object_at(path: Path, *, most: int) -> dict[str, Any] | None:
    """The JSON object that a file of at most so many bytes holds; None where it holds none that can be read."""
    try:
        held = loads(read_file(path, most=most))
    except (OSError, ValueError, RecursionError):
        return None
    return held if isinstance(held, dict) else None


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file up to its last newline, without it."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def is_running(pid: int) -> bool:
    """False if this machine has no process of that number."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


class Claim:
    """A lock of the system on a folder, which ends with the process whatever ends it. It leaves no file.

    `is_sure` says whether the file system has such locks on folders; NFS has not, and nothing is told there. Between
    hosts it holds as far as the file system's locks do.

    Raises:
        BlockingIOError: another one has it.
        OSError: the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.is_sure = False
        self._handle = -1
        if fcntl is None:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BlockingIOError(error.errno, os.strerror(error.errno), str(folder)) from error
            return
        self.is_sure, self._handle = True, handle

    def release(self) -> None:
        """Lets the next one begin; a second time is nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


LONG_BYTES: Final = 256_000
"""A text of more bytes stands beside the record."""

_IMAGE: Final = re.compile(rb'(\{"mime":"[^"\\]*(?:\\.[^"\\]*)*","base64":)"([A-Za-z0-9+/]+=*)"\}')
_NAME: Final = re.compile(rb'\{"rlenv\.(base64|text)":"([0-9a-f]{64})"\}')
_MOST_OF_A_BLOB: Final = 1_000_000_000
_BLOB: Final = re.compile(r"[0-9a-f]{64}(\.[a-z0-9-]+\.tmp)?")


def blob_of(run: Path, name: str) -> Path:
    """The path of the blob with a name."""
    return run / "blobs" / name[:2] / name


def _long_strings(text: bytes) -> list[tuple[int, int]]:
    """Where strings of more than `LONG_BYTES` bytes stand in a JSON text, keys left out, quotes included.

    A policy may write a million signs to escape, or half a million short strings: most of them are stepped over.
    """
    bare = text.replace(rb"\\", b"..").replace(rb"\"", b"..") if b"\\" in text else text
    found, at, quotes = list[tuple[int, int]](), 0, 0  # so many stand before `at`, the last one right before it
    while (end := bare.find(b'"', at)) >= 0:
        last = bare.rfind(b'"', at, at + LONG_BYTES - 1)
        if last < 0 and quotes % 2 and bare[end + 1 : end + 2] != b":":
            found.append((at - 1, end + 1))
        quotes += bare.count(b'"', at, max(end, last) + 1)
        at = max(end, last) + 1
    return found


class Blobs:
    """The blobs of a run as one writer writes them; `written` counts the bytes of those that nobody had written."""

    def __init__(self, run: Path, writer: str) -> None:
        self._run, self._writer = run, writer
        self.written = 0
        self.fresh: list[Path] = []
        """The files that the machine was not yet asked to sync."""

    def take_out(self, *texts: bytes) -> tuple[list[bytes], list[str]]:
        """JSON texts of one body with the names of their images and long texts in their places, and these names.

        What would not come back to the letter stays where it is.

        Raises:
            OSError: a blob cannot be written.
        """
        if any(_NAME.search(text) for text in texts):
            return list(texts), []
        names: dict[str, None] = {}

        def replace_image(found: re.Match[bytes]) -> bytes:
            try:
                data = b64decode(found[2], validate=True)
            except ValueError:
                return found[0]
            return found[1] + store_blob("base64", data) + b"}" if b64encode(data) == found[2] else found[0]

        def text(found: bytes) -> bytes:
            try:
                said = orjson.loads(found)
            except orjson.JSONDecodeError:  # a lone surrogate, which UTF-8 cannot hold
                return found
            return store_blob("text", said.encode()) if orjson.dumps(said) == found else found

        def store_blob(kind: str, data: bytes) -> bytes:
            name = self._write_blob(data)
            names[name] = None
            return f'{{"rlenv.{kind}":"{name}"}}'.encode()

        taken = [_IMAGE.sub(replace_image, one) if b'","base64":"' in one else one for one in texts]
        for index, one in enumerate(taken):
            if len(one) > LONG_BYTES and (found := _long_strings(one)):
                ends = [0, *(end for _, end in found)]
                parts = [(one[at:start], text(one[start:end])) for at, (start, end) in zip(ends, found, strict=False)]
                taken[index] = b"".join([*sum(parts, ()), one[ends[-1] :]])
        return taken, list(names)

    def _write_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        path = blob_of(self._run, name)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == len(data):  # a shorter one is what a loss of power has left
                return name
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(path, mark=self._writer) as draft:
            draft.write_bytes(data)
        self.written += len(data)
        self.fresh.append(path)
        return name

    def sync(self) -> None:
        """Asks the machine to keep what was written through a loss of power.

        Raises:
            OSError: it cannot.
        """
        while self.fresh:
            file = os.open(self.fresh.pop(), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(file)
            finally:
                os.close(file)


def put_back(run: Path, record: bytes, names: Collection[str], *, texts_only: bool = False) -> bytes:
    """A record with its images and long texts in the places of their names.

    In the place of one that is not there or is another now stands nothing, or that it is missing, and the logger
    `rlenv.runs.journal` says so.
    """
    if not names:
        return record

    def restore_blob(match: re.Match[bytes]) -> bytes:
        kind, name = match[1], match[2].decode()
        if name not in names or (texts_only and kind != b"text"):
            return match[0]
        data = _read_blob(run, name)
        if kind == b"text":
            return orjson.dumps(f"[the text {name} is missing]" if data is None else data.decode(errors="replace"))
        return b'"' + b64encode(data or b"") + b'"'

    return _NAME.sub(restore_blob, record)


def _read_blob(run: Path, name: str) -> bytes | None:
    path = blob_of(run, name)
    try:
        data = read_file(path, most=_MOST_OF_A_BLOB)
    except (OSError, ValueError) as error:
        _log.warning("%s: what is kept there cannot be read: %s", path, getattr(error, "strerror", None) or error)
        return None
    if hashlib.sha256(data).hexdigest() == name:
        return data
    _log.warning("%s: it does not hold what its name says", path)
    return None


def clear_blobs(run: Path) -> None:
    """Removes the blobs of a run, and nothing else that is in its folder of that name.

    Raises:
        OSError: one cannot be removed.
    """
    folder = run / "blobs"
    if folder.is_symlink():  # what a link leads to is not the run's alone
        folder.unlink()
        return
    for path in folder.glob("[0-9a-f][0-9a-f]/*"):
        if _BLOB.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    for inside in (*folder.glob("[0-9a-f][0-9a-f]"), folder):
        with contextlib.suppress(OSError):  # what else is in it stays
            inside.rmdir()
