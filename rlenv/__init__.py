"""rlenv: one YAML file makes a multi-turn tool-use environment for training language models.

    environment = rlenv.load("spec.yaml")     # the async core
    env = rlenv.make("spec.yaml")             # gymnasium.Env over text

Everything is imported when first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlenv.environment import Environment, load
    from rlenv.gym import make, make_vec

__version__ = "0.1.0"

__all__ = ["Environment", "__version__", "load", "make", "make_vec"]

_LAZY = {"Environment": "rlenv.environment", "load": "rlenv.environment", "make": "rlenv.gym", "make_vec": "rlenv.gym"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rlenv' has no attribute '{name}'")


def _register() -> None:
    # Gymnasium loads no entry points: `gymnasium.make("rlenv:rlenv/NAME-v0")` only imports this package, so the names
    # have to be there after an import. Only the names: the specs are loaded when an environment is made.
    from rlenv.registration import register_shipped

    register_shipped()


_register()
