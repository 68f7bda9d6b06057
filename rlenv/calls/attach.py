"""What the compiler adds to the tools that an entry gives: their policy, their example and what they are known by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from rlenv.calls.options import options_of
from rlenv.errors import UsageError
from rlenv.language.spec import ToolSpec
from rlenv.tools.base import Tool
from rlenv.tools.policy import policy_of

if TYPE_CHECKING:
    from rlenv.language.loader import LoadedSpec

__all__ = ["governed"]

_POLICY = frozenset(
    (
        *("attempt_s", "breaker", "cache", "coerce", "concurrency", "description", "example", "faults"),
        *("idempotent", "mutates", "rate_per_s", "retries", "shared_concurrency", "timeout_s"),
    )
)


def governed(made: Sequence[Tool], name: str, entry: ToolSpec, loaded: LoadedSpec) -> tuple[Tool, ...]:
    """The tools of the entry `name` with kind, policy, example, identity, digest and the entry's name.

    Raises:
        UsageError: the entry asks for retries or a cache that the tool cannot keep, or its example fits no tool.
    """
    spec = loaded.spec
    own = entry.cache is not None
    cache = entry.cache if entry.cache is not None else spec.calls.cache
    path = None
    if cache is not None and cache.path is not None:
        place = f"tools.{name}.cache.path" if own else "calls.cache.path"
        path = loaded.base_of(place) / cache.path
    content = entry.model_dump(mode="json", exclude=set(_POLICY))
    options = options_of(entry, vars=spec.vars)
    base = str(loaded.base_of(f"tools.{name}"))
    found = []
    for tool in made:
        parts = [content, tool.name, dict(tool.parameters), tool.identity]
        governed_tool = replace(
            tool,
            policy=policy_of(spec.calls, entry, idempotent=tool.idempotent, mutates=tool.mutates, cache_path=path),
            kind=entry.kind,
            example=_example(tool, name, entry.example, made),
            identity=_digest([spec.name, spec.version, base, *parts]),
            entry=name,
            options=options | ({"source": tool.identity} if tool.identity else {}),
            digest=_digest(parts),
        )
        found.append(governed_tool)
    return tuple(found)


def _example(
    tool: Tool, name: str, example: Mapping[str, Any] | None, made: Sequence[Tool]
) -> Mapping[str, Any] | None:
    if example is None:
        return tool.example
    if len(made) == 1 and tool.name == name:
        return example
    names = [one.name for one in made]
    for key, arguments in example.items():
        if key not in names or not isinstance(arguments, Mapping):
            raise UsageError(
                f"found '{key}'; expected arguments by tool", key="example", hint=f"such as {{{names[0]}: {{…}}}}"
            )
    found: Mapping[str, Any] | None = example.get(tool.name, tool.example)
    return found


def _digest(parts: list[Any]) -> str:
    # Anything that JSON has no word for counts by its text: the digest only has to differ where tools do.
    return blake2b(orjson.dumps(parts, default=repr, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
