"""Files of task rows: JSON lines, a JSON array, CSV, parquet, and all but the last packed by gzip.

The rows of JSON lines are indexed once and parsed when they are asked for, so that a large file costs neither its size
in memory nor a second reading; a packed file is unpacked in memory. Columns are whatever the file calls them.
"""

from __future__ import annotations

import bisect
import csv
import glob
import gzip
import io
import itertools
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from rlenv._base.paths import is_file, is_folder, names_in
from rlenv._base.strict_json import DuplicateKey, count_keys, has_keys, unique
from rlenv._base.text import did_you_mean, nearest
from rlenv.errors import Finding, MissingExtra, SpecError, UsageError, told_as
from rlenv.language.functions import failure
from rlenv.language.loader import LoadedSpec
from rlenv.language.templates import Template, TemplateError, compile_template

Row = Mapping[str, Any]
Read = tuple[Callable[[int], Row], int]

_LINES = (".jsonl", ".ndjson")
_PACKED = (*_LINES, ".json", ".csv")
KINDS = (*_LINES, ".json", ".csv", ".parquet", *(f"{kind}.gz" for kind in _PACKED))
"""How the names of files that can be read end, in lower case."""
MAX_ROW_BYTES = 64_000_000
"""A longer line of a file of rows is a broken one."""
MAX_WHOLE_BYTES = 256_000_000
"""What is read into memory as a whole, an array or an unpacked file, may have so many bytes."""
_PIECE = 1 << 20
_MAX_QUOTE = 20_000
_MAX_PARQUET_ROWS = 100_000_000


class UnfitFile(UsageError):
    """A file that holds no rows, whatever stands in it."""


def open_rows(path: Path, *, at: str | None = None) -> Read:
    """A reader of a file's rows by their numbers, and how many there are.

    Args:
        at: the dotted key below which a .json file holds its rows; the file itself is their array otherwise.

    Raises:
        UnfitFile: it is of no kind that is read, too large for its kind, or holds no rows there.
        SpecError: it is broken; the fault names FILE:LINE:COLUMN. Reading a row may raise it too.
        MissingExtra: a parquet file without the extra that reads it.
        OSError: it cannot be read.
    """
    name = path.name.lower()
    kind = next((kind for kind in KINDS if name.endswith(kind)), "")
    if at is not None and kind not in (".json", ".json.gz"):
        raise UnfitFile(f"'{path.name}' is no .json file", key="key", hint="remove 'key'")
    if kind == ".parquet":
        return _parquet(path)
    unpacked = _unpack(path) if kind.endswith(".gz") else None
    kind = kind.removesuffix(".gz")

    def opened() -> BinaryIO:
        return io.BytesIO(unpacked) if unpacked is not None else path.open("rb")

    if kind == ".csv":
        rows = _csv(path, opened)
        return rows.__getitem__, len(rows)
    if kind in _LINES:
        return _jsonl(path, opened)
    if kind == ".json":
        with opened() as file:
            is_array = file.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        return _read_array(path, opened, at) if is_array or at is not None else _jsonl(path, opened)
    found = f"found a file of kind '{''.join(path.suffixes[-2:])[:40]}'; expected .jsonl, .json, .csv or .parquet"
    raise UnfitFile(found, hint="convert it to .jsonl: one JSON object a line")


def join_readers(opened: Sequence[Read]) -> Read:
    """One reader of the rows of several, one after the other."""
    if len(opened) == 1:
        return opened[0]
    ends = list(itertools.accumulate(count for _, count in opened))

    def read(index: int) -> Row:
        part = bisect.bisect_right(ends, index)
        return opened[part][0](index - (ends[part - 1] if part else 0))

    return read, ends[-1] if ends else 0


def _unpack(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_WHOLE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        found = f"'{path.name}' is no whole gzip file: {failure(error)}"
        raise UnfitFile(found, hint="fetch it again, or unpack it with gunzip") from error
    if len(content) > MAX_WHOLE_BYTES:
        raise UnfitFile(f"'{path.name}' holds more than {_MB}", hint="unpack it with gunzip, and name what comes out")
    return content


_MB = f"{MAX_WHOLE_BYTES // 1_000_000} MB, which are read as a whole"


def _read_array(path: Path, opened: Callable[[], BinaryIO], at: str | None) -> Read:
    with opened() as file:
        content = file.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        raise UnfitFile(
            f"'{path.name}' holds more than {_MB}", hint="write it as .jsonl, which is read as it is needed"
        )
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        rows = _json(content)
    except orjson.JSONDecodeError as error:
        lines = content.splitlines()
        quote = lines[error.lineno - 1].decode(errors="replace") if error.lineno <= len(lines) else ""
        raise _row_error(path, error.lineno, error.colno, _fault_words(error), quote, "write [{…}, {…}]") from error
    for key in at.split(".") if at is not None else ():
        if not isinstance(rows, dict) or key not in rows:
            known = rows if isinstance(rows, dict) else ()
            hint = did_you_mean(key, known, otherwise=f"there are {', '.join(known) or 'no keys'}"[:200])
            raise UnfitFile(f"'{path.name}' has no '{key}' there", key="key", hint=hint)
        rows = rows[key]
    if not isinstance(rows, list):
        found = f"'{path.name}' has a {type(rows).__name__} there; expected a list of rows"
        raise UnfitFile(found, key="key", hint="name the key of a list")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            found = f"entry {number} is a {type(row).__name__}; expected an object of columns"
            raise _row_error(path, 1, 1, found, "", 'write [{"question": …}, …]')
    return rows.__getitem__, len(rows)


def _row_error(path: Path, line: int, column: int, message: str, quote: str, hint: str) -> SpecError:
    quote = quote if len(quote) <= _MAX_QUOTE else ""
    return SpecError([Finding("fault", message, hint, file=str(path), line=line, column=column, quote=quote)])


def _jsonl(path: Path, opened: Callable[[], BinaryIO]) -> Read:
    starts, lines = array("Q"), array("Q")
    position = begin = 0
    number, is_blank = 1, True
    with opened() as file:
        while line := file.readline(_PIECE):  # in pieces: a line may be as long as the file
            if is_blank and not line.isspace():
                starts.append(begin)
                lines.append(number)
                is_blank = False
            position += len(line)
            if line.endswith(b"\n"):
                number, is_blank, begin = number + 1, True, position

    def read(index: int) -> Row:
        with opened() as file:
            file.seek(starts[index])
            line = file.readline(MAX_ROW_BYTES + 1)
        if len(line) > MAX_ROW_BYTES:
            found = f"the row has more than {MAX_ROW_BYTES // 1_000_000} MB"
            raise _row_error(path, lines[index], 1, found, "", "name large things in files of their own")
        if starts[index] == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            row = _json(line)
        except orjson.JSONDecodeError as error:
            if (at := _not_utf8(line)) is not None:
                raise _row_error(path, lines[index], 1, f"not UTF-8: {at}", "", "save the file as UTF-8") from error
            shown = line.decode().rstrip("\r\n")
            column = min(error.colno, len(shown) + 1)
            hint = _ARRAY if shown.strip() == "[" else "write one JSON object a line"
            hint += ", or name the key of its rows: 'key: KEY'" if ".json" in path.suffixes else ""
            raise _row_error(path, lines[index], column, _fault_words(error), shown, hint) from error
        if not isinstance(row, dict):
            shown = line.decode(errors="replace").rstrip("\r\n")
            found = f"found a {type(row).__name__}; expected an object of columns"
            is_array = isinstance(row, list) and row and isinstance(row[0], dict)
            raise _row_error(path, lines[index], 1, found, shown, _ARRAY if is_array else _OBJECT)
        return row

    return read, len(starts)


_OBJECT: Final = 'write {"question": …} on each line'
_ARRAY: Final = "write each object on a line of its own, or call the file .json, which may hold an array"


def _not_utf8(text: bytes) -> str | None:
    """What is no UTF-8 in a text; None where all is."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte {text[error.start]:#04x} at place {error.start + 1} of the line"
    return None


def _fault_words(error: orjson.JSONDecodeError) -> str:
    words = error.msg.partition(": ")[0]
    return words if isinstance(error.__cause__, DuplicateKey) else f"not JSON: {words}"


def _json(text: bytes) -> Any:
    """The JSON value there, with its integers as they stand, however long.

    Raises:
        orjson.JSONDecodeError: it is no JSON, an object has a key twice, or an integer is longer than Python reads.
    """
    read = orjson.loads(text)
    written = text.decode()
    if isinstance(read, (dict, list)) and has_keys(written, count_keys(read)):
        return read
    try:  # orjson makes a float of an integer beyond 64 bits, and keeps the last of two keys
        return json.loads(written, object_pairs_hook=unique)
    except DuplicateKey as error:
        at = written.rfind(json.dumps(error.key, ensure_ascii=False))
        raise orjson.JSONDecodeError(str(error), written, max(at, 0)) from error
    except (ValueError, RecursionError) as error:  # more digits than Python reads, nested too deep
        raise orjson.JSONDecodeError(str(error), "", 0) from error


def _csv(path: Path, opened: Callable[[], BinaryIO]) -> list[Row]:
    rows: list[Row] = []
    try:
        with io.TextIOWrapper(opened(), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if header is None:
                return rows
            twice = next((name for index, name in enumerate(header) if name in header[:index]), None)
            if twice is not None:
                found = f"the column '{twice}' stands twice in the header"
                raise _row_error(path, 1, 1, found, _read_line(opened, 1), "rename one of them")
            last = reader.line_num
            for cells in reader:
                line, last = last + 1, reader.line_num
                if not cells:
                    continue
                if len(cells) != len(header):
                    found = f"found {len(cells)} cells; expected {len(header)}, one for each column of the header"
                    raise _row_error(path, line, 1, found, _read_line(opened, line), "quote cells that hold commas")
                rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        message = f"not CSV: {error}"
        raise _row_error(
            path, reader.line_num, 1, message, "", 'quote cells with "…" and double quotes in them'
        ) from error
    except UnicodeDecodeError as error:
        with opened() as lines:
            line, at = next(((number, at) for number, one in enumerate(lines, 1) if (at := _not_utf8(one))), (1, "?"))
        raise _row_error(path, line, 1, f"not UTF-8: {at}", "", "save the file as UTF-8") from error
    parts = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), "")
    if parts and rows and rows[0][header[0]].count(parts) == header[0].count(parts):
        found = f"found one column, {header[0][:60]!r}; expected cells with commas between them"
        raise _row_error(path, 1, 1, found, header[0], f"write commas in place of {parts!r}, or save it as .jsonl")
    return rows


def _read_line(opened: Callable[[], BinaryIO], number: int) -> str:
    with io.TextIOWrapper(opened(), encoding="utf-8-sig", errors="replace") as file:
        return next(itertools.islice(file, number - 1, None), "").rstrip()


def _parquet(path: Path) -> Read:
    with told_as(MissingExtra, "reading .parquet files", ImportError, extra="parquet"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            count = file.metadata.num_rows
            if count > _MAX_PARQUET_ROWS:
                found = f"'{path.name}' says that it has {count:,} rows; expected at most {_MAX_PARQUET_ROWS:,}"
                raise UnfitFile(found, hint="write it as several files, or as .jsonl")
            table = file.read()
    except UnfitFile:
        raise
    except Exception as error:  # a hostile or broken file meets decoders of many kinds
        found = f"'{path.name}' cannot be read as parquet: {failure(error)}"
        raise UnfitFile(found, hint="write the file again") from error

    def read(index: int) -> Row:
        try:
            row: Row = table.slice(index, 1).to_pylist()[0]
        except Exception as error:  # a value that Python has no word for, such as a date beyond its years
            raise _row_error(path, index + 1, 1, f"row {index + 1} cannot be read: {failure(error)}", "", "") from error
        return row

    return read, table.num_rows


def task_files(loaded: LoadedSpec, split: str) -> list[tuple[str, Path]]:
    """The files that a split's `path` names, in the order of their rows, each with the dotted key that names it.

    Raises:
        SpecError: there is no such file.
    """
    source, key = loaded.spec.tasks[split], f"tasks.{split}.path"
    found: list[tuple[str, Path]] = []
    for index, value in enumerate(source.paths):
        at = key if isinstance(source.path, str) else f"{key}.{index}"
        shown = fill_constants(loaded, at, value)
        pattern = os.path.join(loaded.base_of(at), shown)
        if glob.has_magic(shown) and not is_file(Path(pattern)):
            fitting = [Path(one) for one in sorted(glob.glob(pattern, recursive=True)) if is_file(Path(one))]
            if not fitting:
                hint = "* stands for any part of a name, ** for folders"
                raise SpecError([loaded.document.fault(at, f"no file fits '{shown[:200]}'", hint)])
            found += [(at, path) for path in fitting]
        else:
            found.append((at, _check_file(loaded, at, value, shown)))
    return found


def _check_file(loaded: LoadedSpec, key: str, value: str, shown: str) -> Path:
    path = loaded.base_of(key) / shown
    if is_file(path):
        return path
    if is_folder(path):
        found = f"'{shown}' is a folder; expected a .jsonl, .csv or .parquet file"
        inside = [name for name in names_in(path) if name.endswith(KINDS)]
        hint = f"did you mean '{value.rstrip('/')}/{inside[0]}'?" if inside else "name a file in it"
        raise SpecError([loaded.document.fault(key, found, hint)])
    folder = path.parent
    while not is_folder(folder) and folder != folder.parent:
        folder = folder.parent
    wanted = next(iter(path.relative_to(folder).parts), "")
    close = nearest(wanted, names_in(folder)) if wanted else None
    hint = "paths are relative to the file that names them"
    if close:
        hint = f"did you mean '{value.replace(wanted, close) if wanted in value else close}'?"
    base = loaded.base_of(key)
    where = f" in {base}" if base != Path() else ""
    raise SpecError([loaded.document.fault(key, f"there is no file '{shown[:200]}'{where}", hint)])


def fill_constants(loaded: LoadedSpec, key: str, value: str) -> str:
    """A path or name with its constants filled in."""
    try:
        template = compile_template(value)
        faults = list(_path_names(loaded, key, template))
        if faults:
            raise SpecError(faults)
        shown = template.text(vars=loaded.spec.vars)
    except TemplateError as error:
        hint = "a path may read vars only"
        raise SpecError([loaded.document.fault(key, f"the path cannot be filled: {error}", hint)]) from error
    return shown


def _path_names(loaded: LoadedSpec, key: str, template: Template) -> Iterator[Finding]:
    for name in sorted(template.names - {"vars"}):
        yield loaded.document.fault(key, f"'{name}' is not known here", "a path may read vars only", find=name)
    for path in sorted(template.paths):
        if path[0] == "vars" and len(path) > 1 and path[1] not in loaded.spec.vars:
            hint = did_you_mean(path[1], loaded.spec.vars, otherwise="add it under 'vars:'", prefix="vars.")
            found = ".".join(path[:2])
            yield loaded.document.fault(key, f"there is no constant '{path[1]}'", hint, find=found)
