"""Preset files, those that ship and a user's own, laid over each other and turned into a run's overrides.

A run's settings are laid over each other, later ones win:

1. the preset that a preset `extends`, then the preset itself (`presets/`: machine and sizes);
2. the algorithm (`presets/algorithms/`) and the trainer's mode (`presets/modes/`);
3. what the preset adds under `with:` for that algorithm or mode, because only it knows its machine;
4. what the command line says.

Mappings are merged key by key; a list or a scalar replaces what was there. A preset is one that ships, or a file of the
same form (`rlenv_verl.settings`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rlenv.errors import Finding, SpecError, UsageError, all_known, did_you_mean
from rlenv.language.document import SourceDocument, parse_source
from rlenv_train.specs import read_override
from rlenv_verl.settings import THREAD_VARIABLES, algorithm_names, names_in, preset_names, thread_variables
from rlenv_verl.settings.checks import RUN_KEYS, RUN_NEEDED, SECTIONS, SFT_KEYS, Check, preset_faults

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
    return dict(_read_shipped(folder, name, what=what).document.data)


def is_preset_file(given: str) -> bool:
    """True if `--preset GIVEN` means a file: a name that ships is taken for that, whatever lies beside it."""
    if given in preset_names():
        return False
    return given.endswith((".yaml", ".yml")) or os.sep in given or Path(given).is_file()


def read_preset(given: str) -> dict[str, Any]:
    """A preset by name or from a file, laid over all that it extends; without the key `extends`.

    Raises:
        UsageError: no preset has that name.
        SpecError: a file's faults, all of them, each at its place.
    """
    layer = _read_layer(Path(given)) if is_preset_file(given) else _read_shipped("presets", given, what="preset")
    chain = _extends_chain(layer, "presets")
    # Those that ship are held to the same by the tests.
    faults = [fault for layer in chain if not layer.is_shipped for fault in _faults_in_order(layer.document)]
    if faults:
        raise SpecError(faults)
    data = _laid_out(chain)
    lacking = [key for key in RUN_NEEDED if key not in data.get("run", {})]
    if lacking:
        last = chain[-1].document
        message = f"the preset's own part (run:) lacks {', '.join(lacking)}"
        raise SpecError([last.fault(("run",), message, "extend one that has them: extends: cpu", at="key")])
    return data


def _faults_in_order(document: SourceDocument) -> list[Finding]:
    return sorted(preset_faults(document), key=lambda fault: (fault.line, fault.column))


def _laid_out(chain: Sequence[_Layer]) -> dict[str, Any]:
    """The files of a chain as one, without the key `extends`."""
    data: dict[str, Any] = {}
    for below in reversed(chain):
        data = lay_settings(data, {key: value for key, value in below.document.data.items() if key != "extends"})
    return data


def _extends_chain(layer: _Layer, folder: str) -> list[_Layer]:
    """The file and what it extends, the last one extending nothing."""
    chain = [layer]
    while (base := chain[-1].document.data.get("extends")) is not None:
        document = chain[-1].document
        if not isinstance(base, str) or not base:
            raise _base_error(document, "expected a preset's name or a file", "write extends: cpu")
        below = _read_base(document, base, folder)
        if below.place in [known.place for known in chain]:
            names = " -> ".join([*(known.shown for known in chain), below.shown])
            raise _base_error(document, f"the presets extend each other in a circle: {names}", "remove one 'extends'")
        if len(chain) >= _MAX_EXTENDS:
            raise _base_error(document, f"more than {_MAX_EXTENDS} presets extend each other", "merge some of them")
        chain.append(below)
    return chain


def _read_base(document: SourceDocument, base: str, folder: str) -> _Layer:
    known = names_in(folder)
    if base in known:
        return _read_shipped(folder, base, what="preset")
    path = document.base_of(("extends",)) / base
    if path.is_file():
        return _read_layer(path, shown=os.path.normpath(path))
    near = did_you_mean(base, [*known, *(other.name for other in path.parent.glob("*.y*ml"))])
    hint = f"{near}{' ' if near else ''}there are {', '.join(known)}"
    raise _base_error(document, f"there is no preset '{base}', and no such file beside this one", hint)


def _base_error(document: SourceDocument, message: str, hint: str) -> SpecError:
    return SpecError([document.fault(("extends",), message, hint)])


def _read_shipped(folder: str, name: str, *, what: str) -> _Layer:
    known = names_in(folder)
    if name not in known:
        more = "; or give a file, such as ./mine.yaml" if what == "preset" else ""
        raise UsageError(f"no {what} '{name}'", hint=all_known(name, known) + more)
    text = (resources.files("rlenv_verl") / folder / f"{name}.yaml").read_text(encoding="utf-8")
    return _Layer(f"{folder}/{name}", name, parse_source(text, file=f"{folder}/{name}.yaml"), is_shipped=True)


def _read_layer(path: Path, *, shown: str | None = None) -> _Layer:
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


def lay_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
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


_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
_AMBIGUOUS = re.compile(r"(?i)(true|false|null|nan|inf|[-+]?[0-9][0-9_.e+-]*|.*:.*)")


@dataclass(frozen=True, slots=True)
class Preset:
    """The settings of a run before the command line's own.

    `environment` is set for the run's processes; `run` is rlenv's own part; `verl` holds keys that veRL's
    configuration has, `verl_add` keys that it reads without listing them. `algorithm` and `mode` name the overlays
    that are in them. `pinned` names the variables that the command line gave. `file` is the preset as a file that is
    read to the same settings, whatever it extended.
    """

    name: str
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    verl: Mapping[str, Any]
    verl_add: Mapping[str, Any]
    algorithm: str = "grpo"
    mode: str = "sync"
    pinned: tuple[str, ...] = ()
    file: Mapping[str, Any] = field(default_factory=dict)

    def overrides(self) -> list[str]:
        """The preset's keys as Hydra overrides."""
        known = [override(key, value) for key, value in flatten(self.verl)]
        return known + [override(key, value, add=True) for key, value in flatten(self.verl_add)]


def load_preset(name: str, *, algorithm: str | None = None, mode: str | None = None) -> Preset:
    """The preset of that name or file, with an algorithm and a mode laid over it.

    Args:
        name: one of `preset_names()`, or a file.
        algorithm: one of `algorithm_names()`; None takes the preset's own, `grpo` where it names none.
        mode: one of `mode_names()`; None takes the preset's own, `sync` where it names none.

    Raises:
        UsageError: there is no such preset, algorithm or mode.
        SpecError: the file's faults, each at its place.
    """
    data = read_preset(name)
    algorithm = algorithm or str(data.get("algorithm", "grpo"))
    mode = mode or str(data.get("mode", "sync"))
    layers = [
        data,
        read_shipped("presets/algorithms", algorithm, what="algorithm"),
        read_shipped("presets/modes", mode, what="mode"),
    ]
    own = data.get("with", {})
    layers += [own[choice] for choice in (algorithm, mode) if choice in own]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = lay_settings(merged, {section: layer[section] for section in SECTIONS if section in layer})
    sections = {section: merged.get(section, {}) for section in SECTIONS}
    environment = {key: str(value) for key, value in sections.pop("environment").items()}
    threads = sections["run"].get("threads")
    if threads is not None:  # a variable that stands beside it comes from a later layer
        environment = {**thread_variables(threads, verl=sections["verl"]), **environment}
    file = {**data, "algorithm": algorithm, "mode": mode}
    return Preset(name=name, environment=environment, algorithm=algorithm, mode=mode, file=file, **sections)


def load_sft_preset(name: str) -> Preset:
    """The preset of supervised training of that name.

    Raises:
        UsageError: there is none.
    """
    folder = "sft/presets"
    data = _laid_out(_extends_chain(_read_shipped(folder, name, what="preset for supervised training"), folder))
    sections: dict[str, Any] = {section: data.get(section) or {} for section in SECTIONS}
    environment = {key: str(value) for key, value in sections.pop("environment").items()}
    return Preset(name=name, environment=environment, **sections)


def with_run_keys(preset: Preset, items: Sequence[str]) -> tuple[Preset, list[str]]:
    """The preset with `run.KEY=VALUE` of the command line in its own part, and the other items.

    Raises:
        UsageError: a key that the part does not have, or a value that is none of the key's.
    """
    preset, given, others = _with_items(preset, items, RUN_KEYS)
    if "threads" not in given or preset.run["threads"] is None:
        return preset, others
    threads = thread_variables(preset.run["threads"], verl=preset.verl)
    return replace(preset, environment={**preset.environment, **threads}, pinned=tuple(threads)), others


def with_sft_keys(preset: Preset, items: Sequence[str]) -> tuple[Preset, list[str]]:
    """As `with_run_keys`, for a preset of supervised training."""
    preset, _, others = _with_items(preset, items, SFT_KEYS)
    return preset, others


_OWN_WORDS = ("failures", "stragglers", "history")
"""Keys whose reader says more of a wrong value than what is expected."""


def _with_items(preset: Preset, items: Sequence[str], keys: Mapping[str, Check]) -> tuple[Preset, set[str], list[str]]:
    """The preset with the items that begin with `run.`, their keys, and the other items."""
    run: dict[str, Any] = dict.fromkeys(keys) | dict(preset.run)
    given, others = set(), []
    for item in items:
        if not item.startswith("run."):
            others.append(item)
            continue
        path, value = read_override(item)
        first, *rest = path.split(".")[1:]
        if first not in run:
            hint = did_you_mean(first, run, otherwise=f"there are {', '.join(sorted(run))}", prefix="run.")
            raise UsageError(f"no key '{path}' in the preset's own part", hint=hint)
        run[first] = _put_at(run[first], rest, value)
        given.add(first)
        expected, fits = keys.get(first, ("", None))
        if fits is not None and first not in _OWN_WORDS and not fits(run[first]):
            raise UsageError(f"expected {expected}, found {run[first]!r:.60}", key=f"run.{first}")
    return replace(preset, run=run), given, others


def _put_at(tree: Any, path: Sequence[str], value: Any) -> Any:
    """`tree` with `value` at `path`; mappings are made where they are missing."""
    if not path:
        return value
    inner = dict(tree) if isinstance(tree, Mapping) else {}
    inner[path[0]] = _put_at(inner.get(path[0]), path[1:], value)
    return inner


def control_estimator(preset: Preset) -> str:
    """The advantage estimator of the control run, which permutes a batch's rewards over its episodes.

    Raises:
        UsageError: the preset's algorithm has none.
    """
    control = preset.run.get("control")
    if control is None:
        able = [
            name
            for name in algorithm_names()
            if read_shipped("presets/algorithms", name, what="algorithm")["run"]["control"]
        ]
        raise UsageError(
            f"--shuffle-rewards: the algorithm '{preset.algorithm}' has no control run",
            hint=f"these have: {', '.join(able)}",
        )
    return str(control)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested mapping; lists are values."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def override(key: str, value: Any, *, add: bool = False) -> str:
    """One Hydra override, quoted as Hydra's grammar wants it; `add` for a key that the configuration does not have."""
    return f"{'+' if add else ''}{key}={_to_literal(value)}"


def _to_literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_to_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):  # inside a list
        return "{" + ",".join(f"{key}:{_to_literal(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text):
        return text
    # Hydra's grammar: inside quotes, a quote is escaped by a backslash, as are the backslashes before it.
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"


def lora_keys(rank: int | None, *, model: str) -> dict[str, Any]:
    """The keys of LoRA with that rank on all linear layers; none where `rank` is None.

    The factor alpha / rank is 2 at every rank, so that the rank can be changed without another learning rate.

    Args:
        model: the dotted path of the model's section in veRL's configuration.

    Raises:
        UsageError: the rank is below 1.
    """
    if rank is None:
        return {}
    if rank < 1:
        raise UsageError(f"--lora {rank}: a rank is at least 1, such as --lora 32")
    return {f"{model}.lora_rank": rank, f"{model}.lora_alpha": 2 * rank, f"{model}.target_modules": "all-linear"}


def lora_overrides(preset: Preset, rank: int | None) -> list[str]:
    """The Hydra overrides of LoRA with that rank on all linear layers; none where `rank` is None.

    Raises:
        UsageError: the rank is below 1.
    """
    if rank is None:
        return []
    saved = preset.verl["actor_rollout_ref"]["actor"].get("checkpoint", {}).get("save_contents", ["model"])
    keys = {
        **lora_keys(rank, model="actor_rollout_ref.model"),
        # Not `hf_model`: veRL 0.9.1 writes base and adapter there under peft's names, which transformers does not
        # know; it would draw all weights at random. The shards are merged by `rlenv runs export-policy` instead.
        "actor_rollout_ref.actor.checkpoint.save_contents": [part for part in saved if part != "hf_model"],
    }
    return [override(key, value) for key, value in keys.items()]
