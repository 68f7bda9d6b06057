"""rlenv: one YAML file makes a multi-turn tool-use environment for training language models.

    environment = rlenv.load("spec.yaml")     # the async core
    env = rlenv.make("spec.yaml")             # gymnasium.Env over text

What stands here is what users type, plug-ins included; everything below may move. Everything is imported when first
used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlenv.concurrency.scope import Scope
    from rlenv.episodes.environment import Environment, load
    from rlenv.episodes.episode import Episode
    from rlenv.errors import (
        EndpointError,
        EpisodeError,
        Fault,
        InvalidReward,
        MissingExtra,
        MissingVariable,
        PolicyError,
        ResourceError,
        RewardError,
        RlenvError,
        SpecError,
        ToolFailed,
        UnknownEntry,
        UnsupportedTemplate,
        UsageError,
    )
    from rlenv.gym.envs import make, make_vec
    from rlenv.language.kinds import CompileContext, Kind
    from rlenv.messages import Image, Message, Sampled, ToolCall, ToolResult
    from rlenv.rewards.base import Measured, RewardContext
    from rlenv.tokens.encoder import TokenEncoder
    from rlenv.tools.base import ToolContext, ToolOutput
    from rlenv.trajectory import Step, Trajectory

__version__ = "0.1.0"

_WHERE = {
    "concurrency.scope": "Scope",
    "episodes.environment": "Environment load",
    "episodes.episode": "Episode",
    "errors": "EndpointError EpisodeError Fault InvalidReward MissingExtra MissingVariable PolicyError ResourceError"
    " RewardError RlenvError SpecError ToolFailed UnknownEntry UnsupportedTemplate UsageError",
    "gym.envs": "make make_vec",
    "language.kinds": "CompileContext Kind",
    "messages": "Image Message Sampled ToolCall ToolResult",
    "rewards.base": "Measured RewardContext",
    "tokens.encoder": "TokenEncoder",
    "tools.base": "ToolContext ToolOutput",
    "trajectory": "Step Trajectory",
}
_LAZY = {name: f"rlenv.{module}" for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "CompileContext",
    "EndpointError",
    "Environment",
    "Episode",
    "EpisodeError",
    "Fault",
    "Image",
    "InvalidReward",
    "Kind",
    "Measured",
    "Message",
    "MissingExtra",
    "MissingVariable",
    "PolicyError",
    "ResourceError",
    "RewardContext",
    "RewardError",
    "RlenvError",
    "Sampled",
    "Scope",
    "SpecError",
    "Step",
    "TokenEncoder",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolOutput",
    "ToolResult",
    "Trajectory",
    "UnknownEntry",
    "UnsupportedTemplate",
    "UsageError",
    "__version__",
    "load",
    "make",
    "make_vec",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rlenv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def _register() -> None:
    # Gymnasium loads no entry points: `gymnasium.make("rlenv:rlenv/NAME-v0")` only imports this package, so the names
    # have to be there after an import. Only the names: the specs are loaded when an environment is made.
    from rlenv.gym.registration import register_shipped

    register_shipped()


_register()
