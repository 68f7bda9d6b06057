"""Validation: every fault that a spec's author can make, found before anything runs."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from rlenv._base.text import KeyPath
from rlenv.checks.files import check_code, check_files, check_servers, check_stores
from rlenv.checks.odd_golds import check_golds
from rlenv.checks.odd_parts import check_parts
from rlenv.checks.odd_play import check_played
from rlenv.checks.odd_prompts import check_prompts
from rlenv.checks.odd_rows import check_rows
from rlenv.checks.odd_scorers import check_scorers
from rlenv.checks.odd_terms import check_terms
from rlenv.checks.oracle import check_gold, check_oracle
from rlenv.checks.reader import check_meaning
from rlenv.checks.sites import check_braces, check_filled, check_shown, check_templates
from rlenv.checks.subject import Subject, subject_of
from rlenv.checks.surface import check_dialect, check_rewards, check_surface
from rlenv.endpoints import Endpoint
from rlenv.errors import Finding, SpecError
from rlenv.language.document import SourceDocument, read_source
from rlenv.language.functions import failure
from rlenv.language.loader import LoadedSpec, in_order, loaded_of, type_document
from rlenv.secrets import leave_open

UNEXPECTED = "validation itself failed"
"""How the fault of a check that failed begins."""

_CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    check_templates,
    check_filled,
    check_files,
    check_surface,
    check_dialect,
    check_rewards,
    check_oracle,
    check_servers,
)
_ODDITIES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    check_rows,
    check_golds,
    check_prompts,
    check_braces,
    check_shown,
    check_parts,
    check_code,
    check_stores,
    check_terms,
    check_scorers,
)


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a validation. `not_checked` says in words what was not looked at.

    `warnings` (`level` is "warning") are legal and surely odd: they make no spec invalid.
    """

    files: int
    faults: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """True where no fault was found."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """The report as `rlenv validate --json` writes it."""
        faults, warnings = ([one.as_dict() for one in found] for found in (self.faults, self.warnings))
        return {"files": self.files, "faults": faults, "warnings": warnings, "not_checked": list(self.not_checked)}


def validate(
    paths: Iterable[str | os.PathLike[str]],
    *,
    set: Mapping[str, Any] | None = None,
    reader: Callable[[LoadedSpec], Endpoint | None] = lambda loaded: None,
) -> Report:
    """Checks spec files: their text and types, templates against real rows, functions, files, gates and the oracle.

    A spec without a fault raises no author's error while it runs, as far as its first 10,000 rows can tell; what was
    not looked at is listed. Importing the functions that a spec names runs their files.

    Args:
        set: overrides by dotted path, laid over each file.
        reader: gives the server of a model that reads each spec without a fault too, for what takes understanding; its
            findings are warnings (`read`). It is shown the spec, its files, rows and golds, secrets taken out.
    """
    files = 0
    faults: list[Finding] = []
    warnings: list[Finding] = []
    not_checked: dict[str, None] = {}
    for path in paths:
        files += 1
        report = _validate(path, set, None, reader)
        faults.extend(report.faults)
        warnings.extend(report.warnings)
        not_checked.update((f"{os.fspath(path)}: {note}", None) for note in report.not_checked)
    return Report(files, tuple(faults), tuple(not_checked), tuple(warnings))


def validate_text(text: str, *, path: str | os.PathLike[str]) -> Report:
    """Checks what stands at `path` in an editor that has not saved it; see `validate`, whose faults these are.

    What the text names is read from its files, relative to `path`.
    """
    return _validate(path, None, text)


def _validate(
    path: str | os.PathLike[str],
    set: Mapping[str, Any] | None,
    text: str | None,
    reader: Callable[[LoadedSpec], Endpoint | None] = lambda loaded: None,
) -> Report:
    try:
        document = read_source(path, set=set, text=text)
    except SpecError as error:
        return Report(1, error.faults)
    try:
        loaded = loaded_of(document)
    except SpecError as error:
        rest = _add_other_findings(document, error.faults)
        return _report(document, rest, ("what the faults stand in the way of",))
    return validate_loaded(loaded, plays=text is None, reader=reader(loaded))


def validate_loaded(loaded: LoadedSpec, *, plays: bool = True, reader: Endpoint | None = None) -> Report:
    """Checks a spec that is loaded already; see `validate`. Without `plays` no episode is played."""
    # A spec is checked where its secrets need not be, such as in continuous integration.
    with leave_open() as missing:
        subject = subject_of(loaded)
        faults = list(subject.faults)
        for check in _CHECKS:
            faults.extend(_run_check(check, subject))
        # A template that fails for a row is reported above: a gold value is asked for where all of them are sound.
        if not any(fault.level == "fault" for fault in faults):
            faults.extend(_run_check(check_gold, subject))
        # What is odd is looked for in a spec that is sound: a fault explains more than what follows from it.
        if not any(fault.level == "fault" for fault in faults):
            for check in (*_ODDITIES, check_played) if plays else _ODDITIES:
                faults.extend(_run_check(check, subject, level="warning"))
            if reader is not None:
                faults.extend(_run_check(partial(check_meaning, reader, tuple(faults)), subject, level="warning"))
    subject.not_checked.extend(f"the environment variable {name} is not set" for name in missing)
    return _report(loaded.document, faults, tuple(subject.not_checked))


def _report(document: SourceDocument, found: Iterable[Finding], not_checked: tuple[str, ...]) -> Report:
    ordered = in_order([*found, *document.former()], document)
    warnings = dict.fromkeys(one for one in ordered if one.level == "warning" and not document.allows(one))
    return Report(1, tuple(one for one in ordered if one.level == "fault"), not_checked, tuple(warnings))


def _add_other_findings(document: SourceDocument, faults: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Faults of type, and what the checks find in the rest of the document."""
    rest = salvage(document, faults)
    if rest is None:
        return faults
    with leave_open():
        subject = subject_of(rest.loaded, lost=rest.removed)
        more = list(subject.faults)
        for check in _CHECKS:
            more.extend(_run_check(check, subject))
    return tuple(in_order([*faults, *(fault for fault in more if not rest.concerns(fault))], document))


def _run_check(
    check: Callable[[Subject], Iterator[Finding]], subject: Subject, *, level: Literal["fault", "warning"] = "fault"
) -> Iterator[Finding]:
    """The findings of a check. One that fails itself hides nothing that the others find, and is of its own level."""
    try:
        yield from check(subject)
    except SpecError as error:
        yield from error.faults
    except Exception as error:
        name = getattr(check, "__name__", "reading").strip("_").replace("_", " ")
        message = f"{UNEXPECTED} ({name}: {failure(error)}), so that not all was looked at"
        fault = subject.document.fault((), message, "this is a bug of rlenv; please report it with the spec", at="key")
        yield replace(fault, level=level, code="check-failed" if level == "warning" else "")


_ROUNDS = 8
# What stands in for a required key while the rest is checked; nothing that is found at such a key is shown.
_STAND_INS: dict[str, Any] = {
    "rlenv": 1,
    "name": "unnamed",
    "tasks": {"unnamed": {"rows": [{}]}},
    "prompt": {"user": "…"},
    "rewards": {"unnamed": {"kind": "rule", "rule": "answered"}},
}


@dataclass(frozen=True, slots=True)
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
        paths = {_existing_keys(document, fault.path) for fault in faults}
        if () in paths:  # what the whole document needs: something stands in for it
            missing = {fault.path for fault in faults if not _existing_keys(document, fault.path)}
            stands = {name: _STAND_INS[name] for name in missing & _STAND_INS.keys() if not document.has(name)}
            if not stands:
                return None
            removed.update(dict.fromkeys(stands))
            document = document.with_values(stands)
            paths.discard(())
        for path in sorted(paths, key=len):
            # A value that was at fault again although it is gone is required: the entry around it goes.
            removed[".".join(map(str, path))] = None
        document = _remove_values(document, paths)
        try:
            spec = type_document(document)
        except SpecError as error:
            faults = error.faults
            continue
        return Salvaged(LoadedSpec(spec, document, document.path, ""), tuple(removed))
    return None


def _existing_keys(document: SourceDocument, path: str) -> KeyPath:
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


def _remove_values(document: SourceDocument, paths: Iterable[KeyPath]) -> SourceDocument:
    data = copy.deepcopy(dict(document.data))
    gone = set(paths)
    for path in sorted(gone, key=lambda keys: (len(keys), [str(key) for key in keys]), reverse=True):
        parent = _value_at(data, path[:-1])
        if isinstance(parent, list):
            # The places of later items must not move: the whole list goes instead.
            _remove_value(data, path[:-1])
            gone.add(path[:-1])
        elif isinstance(parent, dict):  # what is longer goes first, and may have taken it along
            parent.pop(path[-1], None)
    return document.without(gone, data)


def _value_at(data: Any, path: Sequence[Any]) -> Any:
    """The value at `path`, None where there is none any more."""
    for key in path:
        if (isinstance(data, dict) and key in data) or (
            isinstance(data, list) and isinstance(key, int) and key < len(data)
        ):
            data = data[key]
        else:
            return None
    return data


def _remove_value(data: Any, path: Sequence[str | int]) -> None:
    parent = _value_at(data, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
