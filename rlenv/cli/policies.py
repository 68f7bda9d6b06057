"""The options that name a policy, for the commands that play episodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from rlenv.cli.options import Option, Options, fields, option, options_of
from rlenv.errors import UsageError
from rlenv.runs.policies import KEY_VARIABLE, NAMES, PolicyChoice

__all__ = ["WithPolicy"]

_KINDS: Final = ("you", "oracle", "random", "script", "openai", "hf")
_openai = partial(option, group="--policy openai")
_hf = partial(option, group="--policy hf:MODEL")
_sampled = partial(option, group="--policy openai and hf:MODEL")


@dataclass
class WithPolicy(Options):
    """A command that takes a policy. The group of an option names the kinds of policies that take it."""

    policy: str = option(NAMES, default="oracle")
    base_url: str | None = _openai("such as http://127.0.0.1:8000/v1")
    policy_model: str | None = _openai("the model's name at the server", "--model")
    api_key_env: str | None = _openai("the key's variable; by default OPENAI_API_KEY", metavar="NAME")
    mode: Literal["tools", "text"] | None = _openai("the server's own tool calls (the default), or raw text")
    extra: list[str] = _openai(
        "another field of each request, such as repetition_penalty=1; null leaves a field out",
        default=[],
        metavar="KEY=VALUE",
    )
    request_timeout: float | None = _openai("120 by default", metavar="SECONDS")
    retries: int | None = _openai("of a request that failed in passing; 3 by default")
    policy_chat_template: str | None = _hf(
        "instead of the model's own: a file, or chatml", "--chat-template", metavar="FILE|NAME"
    )
    max_tokens: int | None = _sampled("of one action; of hf 256 by default")
    temperature: float | None = _sampled("0 is greedy")
    top_p: float | None = _sampled("the share of the likeliest tokens that is sampled from")

    @classmethod
    def policy_options(cls) -> list[Option]:
        """The options that some kinds of policies take."""
        return [one for one in options_of(cls) if one.group.startswith("--policy ")]

    def given_to_policy(self) -> list[Option]:
        """Those of them that were given."""
        return [one for one in self.policy_options() if getattr(self, one.name) not in (None, [])]

    def check_policy(self) -> None:
        """Refuses what the named policy would not look at: who gives `--temperature 1` believes that it was sampled.

        Raises:
            UsageError: with the options that are another policy's, or with credentials in two places.
        """
        kind = self.policy.partition(":")[0]
        if kind not in _KINDS:
            return  # a name that is misspelled is the fault to tell
        for one in self.given_to_policy():
            if kind not in one.group.replace(":", " ").split():
                hint = f"--policy {kind} does nothing with it: leave it out"
                raise UsageError(f"{one.flag} is for {one.group}", hint=hint)
        if kind == "openai" and self.base_url:
            from rlenv.endpoints.client import TWO_LOGINS, two_logins

            variable = self.api_key_env or KEY_VARIABLE
            if two_logins(self.base_url, {"Authorization": ""} if os.environ.get(variable) else {}):
                hint = f"leave one out: {variable} is set, and --api-key-env names another variable"
                raise UsageError(f"--base-url: {TWO_LOGINS}", hint=hint)

    @property
    def choice(self) -> PolicyChoice:
        """The policy that the options name.

        Raises:
            UsageError: an option is given that it does not take.
        """
        self.check_policy()
        names = ("mode", "base_url", "api_key_env", "max_tokens", "request_timeout", "retries", "temperature", "top_p")
        given = {name: getattr(self, name) for name in names}
        own: dict[str, Any] = {"model": self.policy_model, "chat_template": self.policy_chat_template}
        return PolicyChoice(self.policy, extra=fields(self.extra), **own, **given)
