"""`--policy` to a policy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv.cli.adapter import adapter
from rlenv.cli.options import fields
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.policies.base import Policy
from rlenv.runs.locks.files import Say, file_sha256, tree_sha256
from rlenv.runs.locks.parts import host_of

__all__ = ["OPTIONS", "add_policy", "check_options", "make_policy", "policy_facts", "policy_tokenizer"]

_HELP = "oracle, random, script:FILE, openai, or hf:MODEL (as `rlenv train --model` takes it, with the verl extra)"

_SERVER, _SAMPLED = ("openai",), ("openai", "hf")
_TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("base_url", "model", "api_key_env", "mode", "max_tokens", "extra", "request_timeout", "retries"), _SERVER
    ),
    "temperature": _SAMPLED,
    "top_p": _SAMPLED,
    "policy_chat_template": ("hf",),
}
_DEFAULTS: Mapping[str, Any] = {
    "api_key_env": "OPENAI_API_KEY",
    "mode": "tools",
    "request_timeout": 120.0,
    "retries": 3,
}
_KINDS = ("you", "oracle", "random", "script", "openai", "hf")
_WEIGHTS = (".safetensors", ".bin", ".json")
OPTIONS = tuple(_TAKEN_BY)
"""The options of one kind of policy or another, as `add_policy` names them in the arguments."""


def add_policy(parser: argparse.ArgumentParser, *, of_policy: str = "") -> None:
    """Adds `--policy` and what policies need; `of_policy`, such as `policy-`, tells what is the policy's from what is
    another model's: `--policy-model` names the model at the policy's server."""
    parser.set_defaults(of_policy=of_policy)
    parser.add_argument("--policy", default="oracle", help=_HELP)
    endpoint = parser.add_argument_group("--policy openai")
    endpoint.add_argument("--base-url", help="such as http://127.0.0.1:8000/v1")
    endpoint.add_argument(f"--{of_policy}model", help="the model's name at the server")
    endpoint.add_argument("--api-key-env", metavar="NAME", help="the key's variable; by default OPENAI_API_KEY")
    endpoint.add_argument(
        "--mode", choices=("tools", "text"), help="the server's own tool calls (the default), or raw text"
    )
    endpoint.add_argument("--max-tokens", type=int, help="of one action")
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

        variable = args.api_key_env or _DEFAULTS["api_key_env"]
        if two_logins(args.base_url, {"Authorization": ""} if os.environ.get(variable) else {}):
            hint = f"leave one out: {variable} is set, and --api-key-env names another variable"
            raise UsageError(f"--base-url: {TWO_LOGINS}", hint=hint)


def make_policy(args: argparse.Namespace, environment: Environment) -> Policy:
    """The policy that the options name.

    Raises:
        UsageError: no such policy, or an option it needs is missing, or one is given that it does not take.
    """
    name, _, rest = str(args.policy).partition(":")
    dialect = environment.parts.dialect
    check_options(args)
    args = argparse.Namespace(**{**vars(args), **_with_defaults(args)})
    if name == "oracle":
        from rlenv.policies.oracle import OraclePolicy

        return OraclePolicy(environment.spec, dialect)
    if name == "random":
        from rlenv.policies.scripted import RandomPolicy

        return RandomPolicy(dialect, environment.spec.answer)
    if name == "script":
        from rlenv.policies.scripted import ScriptPolicy

        return ScriptPolicy(rest)
    if name == "openai":
        from rlenv.policies.openai import OpenAIPolicy, Sampling

        if not args.base_url or not args.model:
            raise UsageError("--policy openai needs --base-url and --model")
        return OpenAIPolicy(
            args.base_url,
            args.model,
            api_key=os.environ.get(args.api_key_env),
            mode=args.mode,
            sampling=Sampling(args.temperature, args.top_p, args.max_tokens, extra=fields(args.extra)),
            timeout_s=args.request_timeout,
            retries=args.retries,
            concurrency=getattr(args, "concurrency", 64),
        )
    if name == "hf":
        from rlenv.models import local_model

        make = adapter("hf.policy", wanted_by="--policy hf:MODEL").make
        place = local_model(rest, chat_template=args.policy_chat_template)
        policy: Policy = make(place, environment, temperature=args.temperature, top_p=args.top_p)
        return policy
    raise UsageError(f"no policy '{args.policy}'; expected {_HELP}")


def policy_facts(args: argparse.Namespace, *, say: Say | None = None) -> dict[str, Any]:
    """What the options say of the policy, for a lock: its kind, its model by content where it lies here, its sampling.

    Raises:
        UsageError: there is no such model or script.
    """
    kind, _, rest = str(args.policy).partition(":")
    found: dict[str, Any] = {"kind": kind}
    if kind == "script":
        found["script"] = file_sha256(Path(rest))
    if kind == "openai":
        mode = args.mode or _DEFAULTS["mode"]
        found |= {"model": args.model, "host": host_of(args.base_url or ""), "mode": mode}
    if kind == "hf":
        from rlenv.models import local_model

        folder = Path(local_model(rest, chat_template=args.policy_chat_template))
        is_here = folder.is_dir()
        found["model"] = folder.name if is_here else rest  # a path is no part of what a model is
        found["weights"] = tree_sha256(folder, suffixes=_WEIGHTS, say=say) if is_here else None
    if kind in _SAMPLED:
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        more = {"max_tokens": args.max_tokens, "extra": fields(args.extra)} if kind == "openai" else {}
        found["sampling"] = sampling | more
    return found


def policy_tokenizer(args: argparse.Namespace) -> Any:
    """The tokenizer that a policy on this machine brings; None where a server has it, or there is none.

    Raises:
        UsageError: there is no such model.
    """
    kind, _, rest = str(args.policy).partition(":")
    if kind != "hf":
        return None
    from rlenv.models import local_tokenizer

    return local_tokenizer(rest, chat_template=args.policy_chat_template)


def _with_defaults(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in _DEFAULTS.items() if getattr(args, name) is None}
