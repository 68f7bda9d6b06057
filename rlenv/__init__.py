"""rlenv: one YAML file makes a multi-turn tool-use environment for training language models.

    environment = rlenv.load("spec.yaml")     # the async core
    env = rlenv.make("spec.yaml")             # gymnasium.Env over text
    done = rlenv.evaluate("spec.yaml")        # many episodes with a policy, their figures, and a run that keeps them

What stands here is what users type, plug-ins included; everything below may move. Everything is imported when first
used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlenv.concurrency.scope import Scope
    from rlenv.concurrency.threads import run_sync
    from rlenv.episodes.environment import Environment, load
    from rlenv.episodes.episode import Episode
    from rlenv.episodes.rollout import Job, play, rollout
    from rlenv.episodes.token_episode import TokenEpisode
    from rlenv.episodes.tool_session import ToolSession
    from rlenv.errors import (
        EndpointError,
        EpisodeError,
        Fault,
        Finding,
        InvalidReward,
        MissingExtra,
        MissingVariable,
        PolicyError,
        ResourceError,
        RewardError,
        RlenvError,
        RunStopped,
        SpecError,
        ToolFailed,
        UnknownEntry,
        UnsupportedTemplate,
        UsageError,
    )
    from rlenv.gym.envs import make, make_vec
    from rlenv.hosts.chat import play_endpoint
    from rlenv.hosts.remote import RemoteEnvironment
    from rlenv.hosts.session import Session
    from rlenv.language.kinds import CompileContext, Kind
    from rlenv.language.spec import SamplingSpec
    from rlenv.messages import Image, Message, Observation, Sampled, ToolCall, ToolResult
    from rlenv.policies.base import Policy, PolicyContext, PolicySession
    from rlenv.policies.openai import OpenAIPolicy
    from rlenv.policies.scripted import OraclePolicy, RandomPolicy, ScriptPolicy
    from rlenv.rewards.base import Measured, RewardContext
    from rlenv.runs.evaluate import Evaluation, evaluate, evaluate_async
    from rlenv.runs.folder import open_run
    from rlenv.runs.stage import PolicyChoice
    from rlenv.tokens.bound import bind
    from rlenv.tokens.encoder import TokenEncoder
    from rlenv.tools.base import ToolContext, ToolOutput
    from rlenv.trajectory import Step, Trajectory

__version__ = "0.1.0"

_WHERE = {
    "concurrency.threads": "run_sync",
    "concurrency.scope": "Scope",
    "episodes.environment": "Environment load",
    "episodes.episode": "Episode",
    "episodes.rollout": "Job play rollout",
    "episodes.token_episode": "TokenEpisode",
    "episodes.tool_session": "ToolSession",
    "errors": "EndpointError EpisodeError Fault Finding InvalidReward MissingExtra MissingVariable PolicyError"
    " ResourceError RewardError RlenvError RunStopped SpecError ToolFailed UnknownEntry UnsupportedTemplate UsageError",
    "gym.envs": "make make_vec",
    "hosts.chat": "play_endpoint",
    "hosts.remote": "RemoteEnvironment",
    "hosts.session": "Session",
    "language.kinds": "CompileContext Kind",
    "messages": "Image Message Observation Sampled ToolCall ToolResult",
    "policies.base": "Policy PolicyContext PolicySession",
    "language.spec": "SamplingSpec",
    "policies.openai": "OpenAIPolicy",
    "policies.scripted": "OraclePolicy RandomPolicy ScriptPolicy",
    "rewards.base": "Measured RewardContext",
    "runs.evaluate": "Evaluation evaluate evaluate_async",
    "runs.folder": "open_run",
    "runs.stage": "PolicyChoice",
    "tokens.bound": "bind",
    "tokens.encoder": "TokenEncoder",
    "tools.base": "ToolContext ToolOutput",
    "trajectory": "Step Trajectory",
}
_LAZY = {name: f"rlenv.{module}" for module, names in _WHERE.items() for name in names.split()}
_RENAMED = {"Sampling": "SamplingSpec"}

__all__ = ["CompileContext", "EndpointError", "Environment", "Episode", "EpisodeError", "Evaluation", "Fault"]
__all__ += ["Finding", "Image"]
__all__ += ["InvalidReward", "Job", "Kind", "Measured", "Message", "MissingExtra", "MissingVariable", "Observation"]
__all__ += ["OpenAIPolicy", "OraclePolicy", "Policy", "PolicyChoice", "PolicyContext", "PolicyError", "PolicySession"]
__all__ += ["RandomPolicy", "RemoteEnvironment", "ResourceError", "RewardContext", "RewardError"]
__all__ += ["RlenvError", "RunStopped", "Sampled"]
__all__ += ["SamplingSpec", "Scope", "ScriptPolicy", "Session", "SpecError", "Step", "TokenEncoder", "TokenEpisode"]
__all__ += ["ToolCall"]
__all__ += ["ToolContext", "ToolFailed", "ToolOutput", "ToolResult", "ToolSession", "Trajectory", "UnknownEntry"]
__all__ += ["UnsupportedTemplate", "UsageError", "__version__", "bind", "evaluate", "evaluate_async", "load", "make"]
__all__ += ["make_vec", "open_run", "play", "play_endpoint", "rollout", "run_sync"]


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
