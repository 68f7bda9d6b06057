"""The policy of a run, by its name or as an object, and what the run's lock keeps of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.language.spec import SamplingSpec
from rlenv.models import local_model, local_tokenizer
from rlenv.models.place import adapter
from rlenv.policies.base import Policy
from rlenv.policies.scripted import Act, FunctionPolicy, OraclePolicy, RandomPolicy, ScriptPolicy
from rlenv.runs.locks.files import Say, tree_sha256
from rlenv.runs.schema import Mode

__all__ = ["KEY_VARIABLE", "NAMES", "Actor", "PolicyChoice", "actor_of"]

KEY_VARIABLE = "OPENAI_API_KEY"
"""The variable that holds a server's key by default."""
NAMES = "oracle, random, script:FILE, openai, or hf:MODEL (as `rlenv train --model` takes it, with the verl extra)"
_WEIGHTS = (".safetensors", ".bin", ".json")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by its name: `oracle`, `random`, `script:FILE`, `openai` or `hf:MODEL`; the others are what two of these
    take, None where their own default holds.

    `openai` takes all but `chat_template`, `hf` that one, `temperature`, `top_p` and `max_tokens`.
    """

    name: str = "oracle"
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    mode: Literal["tools", "text"] | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    request_timeout: float | None = None
    retries: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    chat_template: str | None = None

    def make(self, environment: Environment, *, concurrency: int = 64) -> Policy:
        """The policy.

        Args:
            concurrency: the most requests at once to a server.

        Raises:
            UsageError: no such policy, or what it needs is missing.
        """
        kind, _, rest = self.name.partition(":")
        if kind == "oracle":
            return OraclePolicy(environment.spec, environment.parts.dialect)
        if kind == "random":
            return RandomPolicy(environment.parts.dialect, environment.spec.answer)
        if kind == "script":
            return ScriptPolicy(rest)
        if kind == "openai":
            return self._openai(concurrency)
        if kind == "hf":
            load = adapter("hf", wanted_by="--policy hf:MODEL").load_policy
            place = local_model(rest, chat_template=self.chat_template)
            sampling = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens")}
            policy: Policy = load(place, environment, **sampling)
            return policy
        raise UsageError(f"no policy '{self.name}'; expected {NAMES}")

    def _openai(self, concurrency: int) -> Policy:
        from rlenv.policies.openai import OpenAIPolicy

        if not self.base_url or not self.model:
            raise UsageError("--policy openai needs --base-url and --model")
        sampling = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "extra")}
        given = {"mode": self.mode, "timeout_s": self.request_timeout, "retries": self.retries}
        return OpenAIPolicy(
            self.base_url,
            self.model,
            api_key=os.environ.get(self.api_key_env or KEY_VARIABLE),
            sampling=SamplingSpec(**sampling),
            concurrency=concurrency,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class Actor:
    """The player of a run: the policy, its name for people, and what a lock keeps of it (`lock_of`)."""

    policy: Policy
    name: str
    facts: Mapping[str, Any]
    tokenizer: Any = None

    @property
    def model(self) -> str:
        """The model at a server; "" for any other policy."""
        return str(self.facts.get("model") or "") if "host" in self.facts else ""

    @property
    def mode(self) -> Mode:
        """The mode of its sampling."""
        return "greedy" if self.facts.get("sampling", {}).get("temperature") == 0 else "sampled"


def actor_of(
    policy: str | PolicyChoice | Policy | Act,
    environment: Environment,
    *,
    concurrency: int = 64,
    say: Say | None = None,
) -> Actor:
    """The policy that is named, or the one that is given, with what is known of it.

    Args:
        policy: a name, a choice, a policy, or an async function of the messages so far that gives the next action.
        say: is told what takes long.

    Raises:
        UsageError: as `PolicyChoice.make`; or the function is not async.
    """
    if not isinstance(policy, str | PolicyChoice):
        given: Any = policy if hasattr(policy, "start") else FunctionPolicy(policy)
        return Actor(given, given.name, {"kind": given.name, **getattr(given, "facts", {})})
    choice = PolicyChoice(policy) if isinstance(policy, str) else policy
    kind, _, rest = choice.name.partition(":")
    made = choice.make(environment, concurrency=concurrency)
    facts = {"kind": kind, **getattr(made, "facts", {})}
    if kind != "hf":
        return Actor(made, choice.name, facts)
    folder = Path(local_model(rest, chat_template=choice.chat_template))
    is_here = folder.is_dir()
    facts |= {
        "model": folder.name if is_here else rest,  # a path is no part of what a model is
        "weights": tree_sha256(folder, suffixes=_WEIGHTS, say=say) if is_here else None,
        "sampling": {"temperature": choice.temperature, "top_p": choice.top_p, "max_tokens": choice.max_tokens},
    }
    return Actor(made, choice.name, facts, local_tokenizer(rest, chat_template=choice.chat_template))
