"""How many threads each process of a run computes with, and which of the shell's variables it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["THREAD_VARIABLES", "Variables", "thread_variables", "with_the_shell"]

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
        if name in pinned:
            said.append(f"{name}={own} as the command line says, not the shell's {given}")
        elif name in _FIXED:
            said.append(f"{name}={own} as the {whose} needs it, not the shell's {given}")
        elif name in _JOINED:
            more = [part for part in given.split(",") if part and part not in own.split(",")]
            if more:
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
