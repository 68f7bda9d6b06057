"""What can still be checked of a document that has faults of type, so that one validation shows as much as it can."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from rlenv.errors import Finding, SpecError
from rlenv.language.document import SourceDocument
from rlenv.language.loader import LoadedSpec, type_document

__all__ = ["Salvaged", "salvage"]

_ROUNDS = 8
# What stands in for a required key while the rest is checked; nothing that is found at such a key is shown.
_STAND_INS: dict[str, Any] = {
    "rlenv": 1,
    "name": "unnamed",
    "tasks": {"unnamed": {"rows": [{}]}},
    "prompt": {"user": "…"},
    "rewards": {"unnamed": {"kind": "rule", "rule": "answered"}},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Salvaged:
    """The rest of a document without its faulty values. `removed` are the dotted paths that were taken out."""

    loaded: LoadedSpec
    removed: tuple[str, ...]

    def concerns(self, fault: Finding) -> bool:
        """True where a fault stands at a place that was taken out, or that means nothing without it.

        What names an entry that was taken out gives no fault: whoever compiles and checks the rest is told `removed`.
        """
        for path in self.removed:
            if fault.path == path or fault.path.startswith(f"{path}."):
                return True
            # The marks of a dialect mean something together only.
            if path.partition(".")[0] == fault.path.partition(".")[0] == "dialect":
                return True
            if path == "rewards" and fault.path == "success":
                return True
        return False


def salvage(document: SourceDocument, faults: Sequence[Finding]) -> Salvaged | None:
    """The document without the values at fault, or None where too little is left to make sense of.

    A faulty value goes first; where its entry cannot do without it, the entry goes too.
    """
    removed: dict[str, None] = {}
    for _ in range(_ROUNDS):
        paths = {_existing(document, fault.path) for fault in faults}
        if () in paths:  # what the whole document needs: something stands in for it
            missing = {fault.path for fault in faults if not _existing(document, fault.path)}
            stands = {name: _STAND_INS[name] for name in missing & _STAND_INS.keys() if not document.has(name)}
            if not stands:
                return None
            removed.update(dict.fromkeys(stands))
            document = document.with_values(stands)
            paths.discard(())
        for path in sorted(paths, key=len):
            # A value that was at fault again although it is gone is required: the entry around it goes.
            removed[".".join(map(str, path))] = None
        document = _without(document, paths)
        try:
            spec = type_document(document)
        except SpecError as error:
            faults = error.faults
            continue
        return Salvaged(LoadedSpec(spec, document, document.path, ""), tuple(removed))
    return None


def _existing(document: SourceDocument, path: str) -> tuple[str | int, ...]:
    """The keys of `path` as far as the document still holds them."""
    keys: list[str | int] = []
    value: Any = document.data
    rest = path
    while rest and isinstance(value, (dict, list)):
        if isinstance(value, list):
            head, _, tail = rest.partition(".")
            if not head.isdecimal() or int(head) >= len(value):
                break
            keys.append(int(head))
            value, rest = value[int(head)], tail
            continue
        key = next((key for key in value if rest == key or rest.startswith(f"{key}.")), None)
        if key is None:
            break
        keys.append(key)
        value, rest = value[key], rest[len(key) + 1 :]
    return tuple(keys)


def _without(document: SourceDocument, paths: Iterable[tuple[str | int, ...]]) -> SourceDocument:
    data = copy.deepcopy(dict(document.data))
    gone = set(paths)
    for path in sorted(gone, key=lambda keys: (len(keys), [str(key) for key in keys]), reverse=True):
        parent = _inside(data, path[:-1])
        if isinstance(parent, list):
            # The places of later items must not move: the whole list goes instead.
            _remove(data, path[:-1])
            gone.add(path[:-1])
        elif isinstance(parent, dict):  # what is longer goes first, and may have taken it along
            parent.pop(path[-1], None)
    return document.without(gone, data)


def _inside(data: Any, path: Sequence[Any]) -> Any:
    """What stands at `path`, None where nothing does any more."""
    for key in path:
        if (isinstance(data, dict) and key in data) or (
            isinstance(data, list) and isinstance(key, int) and key < len(data)
        ):
            data = data[key]
        else:
            return None
    return data


def _remove(data: Any, path: Sequence[str | int]) -> None:
    parent = _inside(data, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
