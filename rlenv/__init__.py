"""rlenv: one YAML file makes a multi-turn tool-use environment for training language models.

    environment = rlenv.load("spec.yaml")     # the async core
    env = rlenv.make("spec.yaml")             # gymnasium.Env over text
    done = rlenv.evaluate("spec.yaml")        # many episodes with a policy, their figures, and a run that keeps them

What stands here is what users type, plug-ins included; everything below may move. Everything is imported when first
used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# One list for whoever asks for a name, and for type checkers, which read it in place of this file.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_LAZY = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)}
_RENAMED = {"Sampling": "SamplingSpec"}

__all__ = sorted([*_LAZY, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    hint = f"; it is rlenv.{_RENAMED[name]} now" if name in _RENAMED else ""
    raise AttributeError(f"module 'rlenv' has no attribute '{name}'{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def _register() -> None:
    # Only the names: the specs are loaded when an environment is made.
    from rlenv.gym import register_shipped

    register_shipped()


class _WithGymnasium:
    """Registers the shipped environments once Gymnasium is imported: to import it takes longer than all of rlenv."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((one for one in others if one is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register()

            vars(spec.loader)["exec_module"] = execute_and_register
        return spec


# Gymnasium loads no entry points: `gymnasium.make("rlenv:rlenv/NAME-v0")` only imports this package, so the names have
# to be there after an import of both, in either order.
if "gymnasium" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _WithGymnasium())
