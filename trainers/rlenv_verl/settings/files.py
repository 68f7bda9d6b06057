"""Preset files: those that ship and a user's own, each checked by itself and then laid over what it extends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rlenv._base.nearest import all_known, did_you_mean
from rlenv.errors import Finding, SpecError, UsageError
from rlenv.language.document import SourceDocument, parse_source
from rlenv_verl.settings.checks import RUN_NEEDED, preset_faults
from rlenv_verl.settings.names import names_in, preset_names
from rlenv_verl.settings.threads import THREAD_VARIABLES

__all__ = ["is_preset_file", "laid_over", "layered", "read_preset", "read_shipped"]

_MAX_EXTENDS: Final = 16


@dataclass(frozen=True, slots=True)
class _Layer:
    """One file: `place` tells it from others in a chain, `shown` is how it is named to people."""

    place: str
    shown: str
    document: SourceDocument
    is_shipped: bool = False


def read_shipped(folder: str, name: str, *, what: str) -> dict[str, Any]:
    """The file of that name among those that ship.

    Raises:
        UsageError: there is none; `what` is what it would have been.
    """
    return dict(_shipped(folder, name, what=what).document.data)


def is_preset_file(given: str) -> bool:
    """Whether `--preset GIVEN` means a file: a name that ships is taken for that, whatever lies beside it."""
    if given in preset_names():
        return False
    return given.endswith((".yaml", ".yml")) or os.sep in given or Path(given).is_file()


def read_preset(given: str) -> dict[str, Any]:
    """A preset by name or from a file, laid over all that it extends; without the key `extends`.

    Raises:
        UsageError: no preset has that name.
        SpecError: a file's faults, all of them, each at its place.
    """
    layer = _file(Path(given)) if is_preset_file(given) else _shipped("presets", given, what="preset")
    chain = _chain(layer)
    # Those that ship are held to the same by the tests.
    faults = [fault for layer in chain if not layer.is_shipped for fault in _ordered(layer.document)]
    if faults:
        raise SpecError(faults)
    data: dict[str, Any] = {}
    for below in reversed(chain):
        data = layered(data, {key: value for key, value in below.document.data.items() if key != "extends"})
    lacking = [key for key in RUN_NEEDED if key not in data.get("run", {})]
    if lacking:
        last = chain[-1].document
        message = f"the preset's own part (run:) lacks {', '.join(lacking)}"
        raise SpecError([last.fault(("run",), message, "extend one that has them: extends: cpu", at="key")])
    return data


def _ordered(document: SourceDocument) -> list[Finding]:
    return sorted(preset_faults(document), key=lambda fault: (fault.line, fault.column))


def _chain(layer: _Layer) -> list[_Layer]:
    """The file and what it extends, the last one extending nothing."""
    chain = [layer]
    while (base := chain[-1].document.data.get("extends")) is not None:
        document = chain[-1].document
        if not isinstance(base, str) or not base:
            raise _refused(document, "expected a preset's name or a file", "write extends: cpu")
        below = _extended(document, base)
        if below.place in [known.place for known in chain]:
            names = " -> ".join([*(known.shown for known in chain), below.shown])
            raise _refused(document, f"the presets extend each other in a circle: {names}", "remove one 'extends'")
        if len(chain) >= _MAX_EXTENDS:
            raise _refused(document, f"more than {_MAX_EXTENDS} presets extend each other", "merge some of them")
        chain.append(below)
    return chain


def _extended(document: SourceDocument, base: str) -> _Layer:
    known = preset_names()
    if base in known:
        return _shipped("presets", base, what="preset")
    path = document.base_of(("extends",)) / base
    if path.is_file():
        return _file(path, shown=os.path.normpath(path))
    near = did_you_mean(base, [*known, *(other.name for other in path.parent.glob("*.y*ml"))])
    hint = f"{near}{' ' if near else ''}there are {', '.join(known)}"
    raise _refused(document, f"there is no preset '{base}', and no such file beside this one", hint)


def _refused(document: SourceDocument, message: str, hint: str) -> SpecError:
    return SpecError([document.fault(("extends",), message, hint)])


def _shipped(folder: str, name: str, *, what: str) -> _Layer:
    known = names_in(folder)
    if name not in known:
        more = "; or give a file, such as ./mine.yaml" if what == "preset" else ""
        raise UsageError(f"no {what} '{name}'", hint=all_known(name, known) + more)
    text = (resources.files("rlenv_verl") / folder / f"{name}.yaml").read_text(encoding="utf-8")
    return _Layer(f"{folder}/{name}", name, parse_source(text, file=f"{folder}/{name}.yaml"), is_shipped=True)


def _file(path: Path, *, shown: str | None = None) -> _Layer:
    shown = shown or str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = did_you_mean(
            path.name,
            [other.name for other in path.parent.glob("*.y*ml")],
            otherwise=f"presets that ship: {', '.join(preset_names())}",
        )
        raise UsageError(f"--preset {shown}: there is no such file", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--preset {shown}: the file cannot be read: {error}") from error
    return _Layer(str(path.resolve()), shown, parse_source(text, file=shown, base=path.parent))


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one; where both have a value, that of `above`."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = laid_over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As `laid_over` for two layers of settings, of which the upper one decides on threads where it says anything.

    Its `run.threads` replaces variables of the lower one; its variables replace the lower one's `run.threads`.
    """
    run, environment = dict(below.get("run") or {}), dict(below.get("environment") or {})
    if (above.get("run") or {}).get("threads") is not None:
        environment = {name: value for name, value in environment.items() if name not in THREAD_VARIABLES}
    elif run.get("threads") is not None and (above.get("environment") or {}).keys() & set(THREAD_VARIABLES):
        environment = {**dict.fromkeys(THREAD_VARIABLES, str(run.pop("threads"))), **environment}
    rest = {key: value for key, value in below.items() if key not in ("run", "environment")}
    return laid_over({**rest, "environment": environment, "run": run}, above)
