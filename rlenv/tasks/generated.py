"""The rows of a split with `reasoning_gym`: tasks that the library generates, each by its number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from rlenv._base.bounded import plain
from rlenv._base.text import did_you_mean
from rlenv.errors import MissingExtra, SpecError
from rlenv.language.functions import failure
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import ReasoningGymSpec
from rlenv.tasks.files import Row

__all__ = ["generated"]

_KEPT: Final = 4_096


def generated(loaded: LoadedSpec, key: str, spec: ReasoningGymSpec) -> tuple[Callable[[int], Row], int]:
    """A reader of the rows by their numbers, and how many there are.

    A row has the generator's `question`, `answer` (None where many are right) and `metadata`, its name as `source`, and
    `reasoning_gym`: how it was made, which the rule of that name makes it again by.

    Raises:
        SpecError: there is no such generator, or it does not take its settings.
        MissingExtra: the library is not installed.
    """
    try:
        from reasoning_gym import create_dataset  # type: ignore[import-not-found, unused-ignore]
        from reasoning_gym.factory import DATASETS  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("tasks of reasoning-gym", extra="reasoning-gym") from error
    names, made = spec.names, list[tuple[str, int, Mapping[str, Any], Any]]()
    for place, name in enumerate(names):
        at = f"{key}.name" if isinstance(spec.name, str) else f"{key}.name.{place}"
        if name not in DATASETS:
            hint = did_you_mean(name, DATASETS, otherwise="reasoning_gym.factory.DATASETS lists them")
            raise SpecError([loaded.document.fault(at, f"reasoning-gym has no generator '{name}'", hint)])
        config = spec.config if len(names) == 1 else spec.config.get(name, {})
        size = -(-(spec.limit - place) // len(names))
        try:
            made.append((name, size, plain(config), create_dataset(name, size=size, seed=spec.seed, **config)))
        except Exception as error:  # its settings are checked by assertions, among others
            told = f"the generator '{name}' does not take its settings: {failure(error)}"
            raise SpecError([loaded.document.fault(f"{key}.config" if config else at, told)]) from error
    if unknown := sorted(spec.config.keys() - set(names)) if len(names) > 1 else []:
        hint = "with several generators its keys are their names"
        raise SpecError([loaded.document.fault(f"{key}.config.{unknown[0]}", f"no generator '{unknown[0]}'", hint)])

    @lru_cache(maxsize=_KEPT)
    def read(number: int) -> Row:
        name, size, config, dataset = made[number % len(made)]
        index = number // len(made)
        try:
            entry = dataset[index]
        except Exception as error:  # a library's function may fail in any way
            told = f"the generator '{name}' failed at task {index}: {failure(error)}"
            raise SpecError([loaded.document.fault(key, told)]) from error
        how = {"name": name, "size": size, "seed": spec.seed, "config": config, "index": index}
        return {**plain(entry), "source": name, "reasoning_gym": how}

    return read, spec.limit
