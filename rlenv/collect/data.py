"""Reading supervised data: the rows of one folder or several, as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.collect.encode import EncodedRow
from rlenv.collect.manifest import ROWS, Identity, Manifest
from rlenv.errors import UsageError

__all__ = ["Data", "read_data", "rows_of"]


@dataclass(frozen=True, slots=True)
class Data:
    """A folder of rows that is whole."""

    folder: Path
    manifest: Manifest

    @property
    def file(self) -> Path:
        """The rows."""
        return self.folder / ROWS


def read_data(folder: str | Path, *, identity: Identity | None = None) -> Data:
    """The data in a folder, once its rows are those that its manifest speaks of.

    Args:
        identity: the tokenizer and the template of the model that shall train on it; None asks for none.

    Raises:
        UsageError: the folder is not whole, its rows were changed, or they are another model's tokens.
    """
    path = Path(folder)
    manifest = Manifest.load(path)
    data = Data(path, manifest)
    if not data.file.is_file() or _sha256(data.file) != manifest.rows_sha256:
        raise UsageError(f"{data.file} is not what its manifest speaks of", hint="collect the data anew")
    if identity is not None and identity.tokenizer != manifest.identity.tokenizer:
        raise UsageError(
            f"{folder} holds the token ids of another tokenizer, that of {manifest.model}",
            hint="train that model, or collect again for this one: rlenv collect SPEC --from RECORDS --model MODEL",
        )
    if identity is not None and identity.template != manifest.identity.template:
        raise UsageError(
            f"{folder} was written in another chat template than this model's",
            hint="give the one it was collected with (--chat-template, --kwarg), or collect it again with this model's",
        )
    return data


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rows_of(files: Sequence[str | Path]) -> Iterator[EncodedRow]:
    """The rows of some files in order.

    Raises:
        UsageError: a line is no row: ids and mask of one length, the mask of ones and zeros, the first id not trained,
            and some id trained.
    """
    for name in files:
        with Path(name).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield _row(json.loads(line))
                except (ValueError, TypeError, KeyError) as error:
                    raise UsageError(f"{name}:{number}: no row of supervised data: {error}") from error


def _row(read: Any) -> EncodedRow:
    ids, mask = read["input_ids"], read["loss_mask"]
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        raise ValueError("input_ids and loss_mask have to be lists of one length")
    if any(type(number) is not int or number < 0 for number in ids) or any(one not in (0, 1) for one in mask):
        raise ValueError("input_ids are ids, and loss_mask is 0 or 1 for each")
    if not any(mask) or mask[0]:
        raise ValueError("some id has to be trained, and not the first")
    return EncodedRow(tuple(ids), tuple(mask))
