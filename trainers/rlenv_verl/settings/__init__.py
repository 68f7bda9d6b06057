"""Settings of a run by their source, preset files, the shell's variables and the machine; their names and keys."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rlenv.errors import MissingExtra, UsageError


def preset_names() -> list[str]:
    """The presets that ship."""
    return names_in("presets")


def algorithm_names() -> list[str]:
    """The algorithms that ship."""
    return names_in("presets/algorithms")


def mode_names() -> list[str]:
    """The modes of veRL's trainer."""
    return names_in("presets/modes")


def names_in(folder: str) -> list[str]:
    """The names of the files in a folder of settings."""
    entries = (resources.files("rlenv_verl") / folder).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "RLENV_ROLLOUT_THREADS")
"""What `run.threads` sets: OpenMP's threads of every process (torch and vLLM read it), and those of rlenv's own rollout
server on a CPU."""
_NOBIND: Final = "VLLM_CPU_OMP_THREADS_BIND"
_JOINED: Final = ("VERL_USE_EXTERNAL_MODULES",)
"""Lists to which the shell's own entries are added: without the preset's, veRL knows neither rlenv's estimators nor a
CPU."""
_FIXED: Final = ("VERL_PLATFORM", "VERL_ENGINE_DEVICE")
"""A preset's keys are those of its device: with another platform half of a run would be made for a device that the
other half does not use."""


@dataclass(frozen=True, slots=True)
class Variables:
    """The environment variables of a run, and `said`: for people, where they are not the preset's own."""

    values: Mapping[str, str]
    said: tuple[str, ...] = ()


def thread_variables(threads: int, *, verl: Mapping[str, Any]) -> dict[str, str]:
    """The variables that give each process so many threads; `verl` is the preset's part of that name."""
    found = dict.fromkeys(THREAD_VARIABLES, str(threads))
    if (verl.get("trainer") or {}).get("device") == "cpu":
        # Expected: vLLM computes with OMP_NUM_THREADS threads. Actual: on a CPU it binds its worker to cores that it
        # chooses, one thread each, and overwrites the variable (vllm/utils/ompmultiprocessing.py, configure_omp_envs).
        # Remove when vLLM lets a number that was given stand.
        found[_NOBIND] = "nobind"
    return found


def with_the_shell(
    preset: Mapping[str, str], shell: Mapping[str, str], *, pinned: tuple[str, ...] = (), whose: str = "preset"
) -> Variables:
    """The preset's variables with those that the shell sets otherwise.

    What somebody exported wins over a preset, which is a default for a machine that its author did not see. What the
    command line says (`pinned`: run.threads=N) wins over both. `VERL_PLATFORM` and `VERL_ENGINE_DEVICE` stay the
    preset's; `VERL_USE_EXTERNAL_MODULES` of the shell is added to the preset's. A number of OpenMP threads from the
    shell holds for the rollout's server too, unless the shell says otherwise.

    Args:
        preset: the preset's variables, `run.threads` among them.
        shell: the variables that this process was started with.
        pinned: names whose value the command line gave.
        whose: what people call the first: the `preset`, or the `run` that goes on.
    """
    values, said = dict(preset), []
    for name, own in preset.items():
        given = shell.get(name)
        if given is None or given == own:
            continue
        if name in pinned or name in _FIXED:
            why = "the command line says" if name in pinned else f"the {whose} needs it"
            said.append(f"{name}={own} as {why}, not the shell's {given}")
        elif name in _JOINED:
            if more := [part for part in given.split(",") if part and part not in own.split(",")]:
                values[name] = ",".join([own, *more])
                said.append(f"{name}={values[name]}: the {whose}'s and the shell's")
        else:
            values[name] = given
            said.append(f"{name}={given} from the shell, not the {whose}'s {own}")
    openmp, rollout = THREAD_VARIABLES
    follows = rollout in preset and rollout not in pinned and rollout not in shell
    if follows and openmp not in pinned and shell.get(openmp) == values.get(openmp) != preset.get(openmp):
        values[rollout] = values[openmp]
        said.append(f"{rollout}={values[rollout]} as {openmp}, not the {whose}'s {preset[rollout]}")
    return Variables(values, tuple(said))


def compose(overrides: Sequence[str], *, name: str = "ppo_trainer") -> dict[str, Any]:
    """veRL's whole configuration with `overrides`, resolved, without importing veRL.

    Args:
        name: which of veRL's: `ppo_trainer`, or `sft_trainer_engine`.

    Raises:
        MissingExtra: veRL is not installed.
        UsageError: an override that veRL's configuration does not take; the message is Hydra's.
    """
    keys = [item.lstrip("+").partition("=")[0] for item in overrides]
    if all("." in key and not set("~/@") & set(key) for key in keys):
        with suppress(UsageError):  # the files' own word of what is wrong follows
            return _compose_node(overrides, name=_store_name(name), is_resolved=True)
    return _compose_node(overrides, name=name, is_resolved=True)


@cache
def _store_name(name: str) -> str:
    """The name in Hydra's store under which one of veRL's configurations stands whole.

    Hydra reads some thirty files for each configuration. They are read once, and overrides of single values are laid
    over what they made, at less than half of the processor time; one that chooses among files reads them again.
    """
    node = _compose_node((), name=name, is_resolved=False)  # says so where veRL is not installed
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=f"rlenv_{name}", node=node)
    return f"rlenv_{name}"


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of veRL's configuration; None where there is none."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@cache
def verl_keys() -> Mapping[str, Any] | None:
    """veRL's configuration as its files list it, interpolations as they stand; None where veRL is not installed."""
    try:
        return _compose_node((), name="ppo_trainer", is_resolved=False)
    except MissingExtra:
        return None


def _compose_node(overrides: Sequence[str], *, name: str, is_resolved: bool) -> dict[str, Any]:
    package = importlib.util.find_spec("verl")
    if package is None or package.submodule_search_locations is None:
        raise MissingExtra("training with veRL", extra="verl")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folder = Path(package.submodule_search_locations[0]) / "trainer" / "config"
    # Hydra has one application a process: the caller's own, or what an interrupt has left of one, is set aside.
    theirs, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = hydra_compose(name, overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=is_resolved)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"veRL's configuration does not take these settings: {error}") from error
    finally:
        GlobalHydra.instance().hydra = theirs
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


UNMEASURED = "???"
"""Stands for a length that only the policy's tokenizer tells; veRL refuses to start with it."""


def tokens_at(config: Mapping[str, Any], path: str) -> int | None:
    """A length at a dotted path; None where none is set, or where it is not measured yet."""
    value = value_at(config, path)
    return None if value is None or value == UNMEASURED else int(value)


def sft_preset_names() -> list[str]:
    """The presets of supervised training that ship."""
    return names_in("sft/presets")
