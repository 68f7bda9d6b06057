"""`--policy` to a policy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from rlenv.cli.options import fields
from rlenv.errors import UsageError
from rlenv.runs.policies import KEY_VARIABLE, NAMES, PolicyChoice

__all__ = ["OPTIONS", "add_policy", "check_options", "choice_of"]

_SERVER, _SAMPLED = ("openai",), ("openai", "hf")
_TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("base_url", "model", "api_key_env", "mode", "extra", "request_timeout", "retries"), _SERVER),
    "max_tokens": _SAMPLED,
    "temperature": _SAMPLED,
    "top_p": _SAMPLED,
    "policy_chat_template": ("hf",),
}
_KINDS = ("you", "oracle", "random", "script", "openai", "hf")
OPTIONS = tuple(_TAKEN_BY)
"""The options of one kind of policy or another, as `add_policy` names them in the arguments."""


def add_policy(parser: argparse.ArgumentParser, *, of_policy: str = "") -> None:
    """Adds `--policy` and what policies need; `of_policy`, such as `policy-`, tells what is the policy's from what is
    another model's: `--policy-model` names the model at the policy's server."""
    parser.set_defaults(of_policy=of_policy)
    parser.add_argument("--policy", default="oracle", help=NAMES)
    endpoint = parser.add_argument_group("--policy openai")
    endpoint.add_argument("--base-url", help="such as http://127.0.0.1:8000/v1")
    endpoint.add_argument(f"--{of_policy}model", help="the model's name at the server")
    endpoint.add_argument("--api-key-env", metavar="NAME", help="the key's variable; by default OPENAI_API_KEY")
    endpoint.add_argument(
        "--mode", choices=("tools", "text"), help="the server's own tool calls (the default), or raw text"
    )
    endpoint.add_argument(
        "--extra",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another field of each request, such as repetition_penalty=1; null leaves a field out",
    )
    endpoint.add_argument("--request-timeout", type=float, metavar="SECONDS", help="120 by default")
    endpoint.add_argument("--retries", type=int, help="of a request that failed in passing; 3 by default")
    own = parser.add_argument_group("--policy hf:MODEL")
    own.add_argument(
        f"--{of_policy}chat-template",
        dest="policy_chat_template",
        metavar="FILE|NAME",
        help="instead of the model's own: a file, or chatml",
    )
    sampling = parser.add_argument_group("--policy openai and hf")
    sampling.add_argument("--temperature", type=float, help="0 is greedy")
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--max-tokens", type=int, help="of one action; of hf 256 by default")


def check_options(args: argparse.Namespace) -> None:
    """Refuse what the named policy would not look at: who gives `--temperature 1` believes that it was sampled.

    Raises:
        UsageError: with the options that are another policy's, or with credentials in two places.
    """
    kind = str(args.policy).partition(":")[0]
    if kind not in _KINDS:
        return  # a name that is misspelled is the fault to tell
    for name, kinds in _TAKEN_BY.items():
        if kind not in kinds and getattr(args, name) not in (None, []):
            option = f"--{args.of_policy}model" if name == "model" else f"--{name.replace('_', '-')}"
            if name == "policy_chat_template":
                option = f"--{args.of_policy}chat-template"
            whose = " and ".join("hf:MODEL" if one == "hf" else one for one in kinds)
            raise UsageError(
                f"{option} is for --policy {whose}", hint=f"--policy {kind} does nothing with it: leave it out"
            )
    if kind == "openai" and args.base_url:
        from rlenv.endpoints.client import TWO_LOGINS, two_logins

        variable = args.api_key_env or KEY_VARIABLE
        if two_logins(args.base_url, {"Authorization": ""} if os.environ.get(variable) else {}):
            hint = f"leave one out: {variable} is set, and --api-key-env names another variable"
            raise UsageError(f"--base-url: {TWO_LOGINS}", hint=hint)


def choice_of(args: argparse.Namespace) -> PolicyChoice:
    """The policy that the options name.

    Raises:
        UsageError: an option is given that it does not take.
    """
    check_options(args)
    given = {name: getattr(args, name) for name in OPTIONS if name not in ("extra", "policy_chat_template")}
    return PolicyChoice(args.policy, extra=fields(args.extra), chat_template=args.policy_chat_template, **given)
