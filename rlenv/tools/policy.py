"""The policy of one tool's calls: its own keys over the defaults under `calls:`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlenv.errors import UsageError
from rlenv.language.spec import BreakerSpec, CacheSpec, CallsSpec, FaultsSpec, ToolSpec

__all__ = ["CallPolicy", "policy_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """What is done around each call of one tool; the default does nothing.

    `attempt_s` bounds one try in seconds, `rate_per_s` calls a second in this process, `shared_concurrency` calls at
    once over all processes. `cache_path` is where a cache on disk stands, None for the user's cache folder. `coerce`
    names JSON types that may come as text.
    """

    retries: int = 0
    attempt_s: float | None = None
    rate_per_s: float | None = None
    shared_concurrency: int | None = None
    cache: CacheSpec | None = None
    cache_path: Path | None = None
    breaker: BreakerSpec | None = None
    faults: FaultsSpec | None = None
    coerce: frozenset[str] = frozenset()

    @property
    def is_quiet(self) -> bool:
        """True where calls run as if there were no policy; coercion happens before a call and does not count."""
        return self.retries == 0 and all(
            value is None
            for value in (
                self.attempt_s,
                self.rate_per_s,
                self.shared_concurrency,
                self.cache,
                self.breaker,
                self.faults,
            )
        )


def policy_of(
    calls: CallsSpec,
    entry: ToolSpec | None = None,
    *,
    idempotent: bool,
    mutates: bool,
    cache_path: Path | None = None,
) -> CallPolicy:
    """The policy of a tool: what its entry says, else what `calls` says.

    Defaults that a tool cannot keep are left out for it: retries where it is not idempotent, a cache where it also
    mutates.

    Raises:
        UsageError: the entry itself asks for what the tool cannot keep.
    """
    own = entry if entry is not None else ToolSpec.model_construct(kind="")
    if not idempotent and own.retries:
        raise UsageError(
            "calls of this tool may not be repeated",
            key="retries",
            hint="add 'idempotent: true' if that does no harm, or remove retries",
        )
    can_keep = idempotent and not mutates
    if not can_keep and own.cache is not None and own.cache.scope != "none":
        why = "its calls change state" if mutates else "calls of this tool may not be repeated"
        hint = "" if mutates else "add 'idempotent: true' if equal calls give equal results, or "
        raise UsageError(f"results cannot be kept, since {why}", key="cache", hint=f"{hint}remove cache")
    retries = own.retries if own.retries is not None else calls.retries or 0
    cache = calls.cache if own.cache is None else own.cache
    breaker = calls.breaker if own.breaker is None else own.breaker
    faults = calls.faults if own.faults is None else own.faults
    coerce = own.coerce if own.coerce is not None else calls.coerce or ()
    return CallPolicy(
        retries=retries if idempotent else 0,
        attempt_s=own.attempt_s if own.attempt_s is not None else calls.attempt_s,
        rate_per_s=own.rate_per_s if own.rate_per_s is not None else calls.rate_per_s,
        shared_concurrency=(own.shared_concurrency if own.shared_concurrency is not None else calls.shared_concurrency),
        cache=cache if cache is not None and can_keep and cache.scope != "none" else None,
        cache_path=cache_path,
        breaker=breaker if breaker is not None and breaker.failures else None,
        faults=faults if faults is not None and faults.is_on else None,
        coerce=frozenset(coerce),
    )
