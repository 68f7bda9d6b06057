"""The first row of a spec's tasks, for the names that its templates may read."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv.errors import SpecError, UsageError
from rlenv.language.templates import TemplateError, compile_template
from rlenv.tasks.files import open_rows

__all__ = ["first_row"]

_MAX_LINE = 1_000_000


def first_row(data: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
    """The columns of the first split whose first row can be read without running anything; {} where there is none.

    Rows of a function are not looked at. A column whose value is not read (Parquet) is None.
    """
    splits = data.get("tasks")
    constants = data.get("vars")
    for source in splits.values() if isinstance(splits, Mapping) else ():
        if isinstance(source, Mapping):
            row = _first(source, constants if isinstance(constants, Mapping) else {}, folder)
            if row:
                return row
    return {}


def _first(source: Mapping[str, Any], constants: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    rows, path, dataset = source.get("rows"), source.get("path"), source.get("hf")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        return rows[0]
    if isinstance(dataset, Mapping) and isinstance(dataset.get("columns"), Mapping):
        return dict.fromkeys(map(str, dataset["columns"]))
    if not isinstance(path, str):
        return {}
    try:
        return _of_file(folder / compile_template(path).text(vars=constants))
    except (OSError, ValueError, TemplateError, RecursionError, csv.Error):
        return {}


def _of_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ModuleNotFoundError:
            return {}
        return dict.fromkeys(parquet.read_schema(path).names)
    if path.suffix.lower() in (".gz", ".json"):
        return _of_whole(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            header, row = [*itertools.islice(csv.reader(file), 2), [], []][:2]
            return dict(itertools.zip_longest(header, row[: len(header)]))
        line = next((line for line in iter(lambda: file.readline(_MAX_LINE), "") if line.strip()), "")
        row = json.loads(line) if line else {}
        return row if isinstance(row, dict) else {}


def _of_whole(path: Path) -> dict[str, Any]:
    """Of a file that is read as a whole, if it is a small one."""
    if path.stat().st_size > _MAX_LINE:
        return {}
    try:
        read, count = open_rows(path)
        return dict(read(0)) if count else {}
    except (SpecError, UsageError):
        return {}
