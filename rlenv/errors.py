"""Every exception that rlenv raises on purpose.

RlenvError
├── SpecError              the author's: a spec that cannot be compiled; carries every fault with its place
├── UsageError             the caller's: an API used out of order or with arguments that do not fit
│   ├── MissingExtra       an optional part is not installed; names the extra
│   ├── UnknownEntry       an entry of a spec names another that is not there
│   ├── MissingVariable    an environment variable that a spec names is not set
│   ├── UnfitTemplate      a template of a spec that cannot be compiled
│   ├── ExpressionError    an expression of a spec that is none (rlenv.language.expressions)
│   ├── DatasetFault       a dataset that cannot be read as asked (rlenv.tasks.hub)
│   ├── UnfitFile          a file that holds no task rows (rlenv.tasks.files)
│   ├── QueryFault         a query over episodes that is none (rlenv.runs.figures.query)
│   ├── SpecChanged        a spec that others wrote since the page that saves it read it (rlenv.web.jobs)
│   ├── Unconfirmed        a request of the viewer's that has to be confirmed (rlenv.web.guard)
│   ├── Full               no more episodes may be held open for clients (rlenv.hosts.desk)
│   └── Unknown            no episode of that name is held (rlenv.hosts.desk)
├── TemplateError          a template that cannot be compiled or filled (rlenv.language.templates)
├── UnsupportedTemplate    a chat template for which exact token ids cannot be promised
│   ├── ContentsLost       it does not write each content once, in order (rlenv.tokens.layouts)
│   └── NoStopMark         it ends a turn with no mark that is known (rlenv.tokens.layouts)
├── Unencodable            an episode that cannot be a row of supervised training (rlenv.collect.encode)
├── RunStopped             a run that was asked to end before its end: by its `stop` file, or by what it may cost
├── InvalidReward          a term with `on_invalid: raise` could not be measured; stops the run
├── ToolFailed             the tool's: the model sees its text, the episode goes on
└── EpisodeError           the infrastructure's: the reward is invalid (None), never a number
    ├── ResourceError      a resource could not be opened or was lost
    │   └── MachineFailed  a machine did not come up, or was ended from outside
    ├── RewardError        a reward term could not be measured
    │   ├── TooFewRounds   a call failed again, and there was no time to tell by what (rlenv.rewards.outages)
    │   ├── TooManyWait    others took too long before one's turn to ask alone (rlenv.rewards.asking_again)
    │   ├── UnfitAnswer    an answer that a template cannot take (rlenv.rewards.rule)
    │   └── UnfitGold      a gold value that nothing can be compared with (rlenv.rewards.rule)
    ├── EndpointError      a model's server refused, or did not answer
    ├── CassetteError      a tape has no answer to what a replayed episode asks
    └── PolicyError        a policy or its endpoint failed

What other libraries raise is turned into one of these at the place that calls them, with the cause kept.
A model's mistakes (a malformed call, an unknown tool, bad arguments) are observations and never exceptions.
Anything else that escapes is a bug and propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from rlenv._base.text import all_known, did_you_mean, visible

__all__ = ["CassetteError", "EndpointError", "EpisodeError", "Fault", "Finding", "InvalidReward", "MissingExtra"]
__all__ += ["MissingVariable", "PolicyError", "ResourceError", "RewardError", "RlenvError", "RunStopped", "SpecError"]
__all__ += ["ToolFailed", "UnfitTemplate", "UnknownEntry", "UnsupportedTemplate", "UsageError", "all_known"]
__all__ += ["did_you_mean", "under"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, odd or not known, as every command prints it.

    `level` is "fault" (a mistake in a spec), "error" (a run would fail, or learn nothing), "warning" (legal and surely
    odd, or a part of a run would fail) or "unknown" (it could not be measured). `message` says what was found and what
    was expected, `hint` the nearest fix ("" where there is none), `code` is a stable word for its kind ("" where the
    message is all), and `where` what it is about: a dotted place in a document (`tools.add.timeout`), a term, a split.

    `line` and `column` are 1-based and refer to `file`; `column` counts characters, not bytes. `quote` is the source
    line without its newline ("" where the file has none, such as an override). Where `line` is 0, `file` names a place
    that has no lines (`--set limits.turns`), or is "".
    """

    level: Literal["fault", "error", "warning", "unknown"]
    message: str
    hint: str = ""
    _: KW_ONLY
    code: str = ""
    where: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    quote: str = ""

    @property
    def path(self) -> str:
        """The dotted place in the document: `where`."""
        return self.where

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        level = {"fault": "", "unknown": "not measured"}.get(self.level, self.level)
        text = ": ".join(part for part in (place, level, self.where, self.message) if part)
        if self.hint:
            text += f"; {self.hint}"
        if self.code:
            text += f" [{self.code}]"
        if self.quote:
            quote, column = self.quote, self.column
            if len(quote) > 160:  # a window around the place: rows of data can be very long
                first = max(0, column - 81)
                quote, column = quote[first : first + 160], column - first
            padding = "".join("\t" if character == "\t" else " " for character in quote[: column - 1])
            text += f"\n    {quote}\n    {padding.ljust(column - 1)}^"
        return visible(text)  # a spec's text is not always the reader's own

    def as_dict(self) -> dict[str, Any]:
        """The finding as commands write it with `--json`."""
        place = {"file": self.file, "line": self.line, "column": self.column} if self.file else {}
        told = {"message": self.message, "hint": self.hint, "level": self.level, "code": self.code}
        return {**place, "path": self.where, **told}


Fault = Finding
"""The name that findings of specs had; their fields stood in another order, so that all but three go by name."""


class RlenvError(Exception):
    """The base of all errors that rlenv raises on purpose. Each can be copied and pickled with all that it carries."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with `args`, which is the message and not what most of them are made of.
        return Exception.__new__, (type(self), *self.args), self.__dict__


class SpecError(RlenvError):
    """A spec that cannot be compiled. `faults` holds every mistake found, in order of place; never empty."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class UsageError(RlenvError):
    """An API was used out of order, or with arguments that do not fit. As text it reads `key: message; hint`.

    Args:
        message: what was found and what was expected.
        key: the dotted key whose value is at fault, below the entry that is compiled; "" where it is no key's.
        hint: the nearest fix; "" where there is none.
    """

    def __init__(self, message: str, *, key: str = "", hint: str = "") -> None:
        self.message = message
        self.key = key
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.key}{': ' if self.key else ''}{self.message}{'; ' if self.hint else ''}{self.hint}"


@contextmanager
def under(key: str) -> Iterator[None]:
    """Lets a UsageError through with `key` before its own: what is at fault stands in the value of `key`."""
    try:
        yield
    except UsageError as error:
        error.key = f"{key}.{error.key}" if error.key else key
        raise


@contextmanager
def told_as(kind: Callable[..., Exception], what: str, *caught: type[Exception], **more: str) -> Iterator[None]:
    """Raises errors that are `caught` as one of `kind`, with their cause. It takes 1 µs: not for what each turn does.

    Args:
        what: the error's message. Where it ends in a colon, or is "", the caught error's words follow.
        more: the error's other arguments.
    """
    try:
        yield
    except caught as error:
        said = f"{what} {error}".removeprefix(" ") if what[-1:] in ("", ":") else what
        raise kind(said, **more) from error


@contextmanager
def disk_told(place: object, done: str) -> Iterator[None]:
    """Raises an OSError as a UsageError: its file, `place` where it names none, cannot be `done`, such as written."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{error.filename or place} cannot be {done}: {error.strerror or error}") from error


class MissingExtra(UsageError):
    """An optional part of rlenv is not installed.

    Args:
        extra: the extra that brings it (`pip install "rlenv[extra]"`).
    """

    def __init__(self, feature: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(
            f"{feature} needs an optional part of rlenv", hint=f"install it with: pip install 'rlenv[{extra}]'"
        )


class UnknownEntry(UsageError):
    """An entry of a spec names another that is not there.

    Args:
        group: the key that holds such entries: `tools`, `resources`, `endpoints`.
        message: what is said in place of `there is no tool 'NAME'`.
        hint: what is said in place of the nearest of `known`.
    """

    def __init__(
        self, group: str, name: str, known: Iterable[str], *, key: str, message: str = "", hint: str = ""
    ) -> None:
        self.group = group
        self.name = name
        self.known = tuple(known)
        self._own_hint = hint
        said = message or f"there is no {group.removesuffix('s')} '{name}'"
        super().__init__(said, key=key, hint=hint or did_you_mean(name, self.known, group))

    def knowing(self, more: Iterable[str]) -> UnknownEntry:
        """The same mistake, where `more` could have been named too."""
        known = dict.fromkeys((*self.known, *more))
        return UnknownEntry(self.group, self.name, known, key=self.key, message=self.message, hint=self._own_hint)


class UnfitTemplate(UsageError):
    """A template of a spec cannot be read, or reads what is not there.

    `line` (1-based) and `find`, a text inside the template, say where in it ("" where the line alone is known).
    """

    def __init__(self, message: str, *, key: str, hint: str, line: int = 1, find: str = "") -> None:
        self.line = line
        self.find = find
        super().__init__(message, key=key, hint=hint)


class MissingVariable(UsageError):
    """A spec names an environment variable that is not set; `name` is the variable's."""

    def __init__(self, message: str, *, name: str, hint: str = "") -> None:
        self.name = name
        super().__init__(message, hint=hint)


class UnsupportedTemplate(RlenvError):
    """A chat template whose token ids cannot be reproduced exactly; the message names the template and the place."""


class RunStopped(RlenvError):
    """A run was asked to end before its end, by the `stop` file in its folder or by what it may cost."""


class InvalidReward(RlenvError):
    """A reward term that says `on_invalid: raise` could not be measured; the message names it and says why."""


class ToolFailed(RlenvError):
    """A tool declares that a call failed.

    `text` is shown to the model as it stands: short, and without tracebacks, paths or secrets. `reason` is a stable
    word for counting (`failed`, `timeout`, …). `retryable` is true where the same call may succeed a little later (a
    server that was busy or gone), false where it would fail again (a statement that is wrong). `details` (JSON) are
    kept in the trajectory and not shown. `whose` says whose failure it is, for rewards: by `rlenv.errors.WHOSE`
    where it is not given; what is retryable is never the policy's. `wait_s` seconds pass before the next try.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str = "failed",
        retryable: bool = False,
        details: Mapping[str, object] | None = None,
        whose: Whose | None = None,
        wait_s: float = 0.0,
    ) -> None:
        self.whose: Whose = whose if whose is not None else whose_failure(reason, retryable=retryable)
        self.text = text
        self.wait_s = wait_s
        self.details = details
        self.reason = reason
        self.retryable = retryable
        super().__init__(text)


class EpisodeError(RlenvError):
    """The infrastructure failed: the episode ends, its reward is invalid. `reason` is a stable word for counting."""

    reason = "infrastructure"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        if reason is not None:
            self.reason = reason
        super().__init__(message)


class ResourceError(EpisodeError):
    """A resource could not be opened or was lost while an episode used it."""

    reason = "resource"


class RewardError(EpisodeError):
    """A reward term could not be measured."""

    reason = "reward"


class EndpointError(EpisodeError):
    """A model's server refused, or did not answer within the retries.

    Whoever asked says whose failure that is. `status` is the HTTP status that the server gave, None where it gave none.
    `is_full` is true where the server counts as many tokens in the request as its context has, or more, `is_garbled`
    where it had the request and broke the connection, or gave what nobody can read: the request may have done it.
    `is_cut` is true where it broke the connection at any try, or a proxy said that it went. `is_late` is true where it
    did not answer in time, `is_held` where it soon answered others meanwhile, again and again, `is_unknown` where it
    knows no such key or model (401, 403, 404), as far as it has answered nothing well before. A tape keeps these
    `facts`: they decide who asks again.
    """

    reason = "endpoint"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        is_full: bool = False,
        is_garbled: bool = False,
        is_late: bool = False,
        is_held: bool = False,
        is_cut: bool = False,
        is_unknown: bool = False,
    ) -> None:
        self.status, self.is_full, self.is_garbled = status, is_full, is_garbled
        self.is_late, self.is_held, self.is_cut, self.is_unknown = is_late, is_held, is_cut, is_unknown
        self.facts = {"status": status, "is_full": is_full, "is_garbled": is_garbled, "is_late": is_late}
        rare = {"is_held": is_held, "is_cut": is_cut, "is_unknown": is_unknown}
        self.facts |= {name: True for name, holds in rare.items() if holds}
        super().__init__(message)


class CassetteError(EpisodeError):
    """A tape has no answer to what a replayed episode asks, and nothing else may be asked.

    The message names the nearest entry of the tape and the first difference from it.
    """

    reason = "cassette"


class PolicyError(EpisodeError):
    """A policy, or the endpoint behind it, failed."""

    reason = "policy"


# The reasons for which a call fails, and whose failure each is: the words that a failure carries from a tool to the
# reward.
#
# A reward turns a failed call into a number only where the failure is the policy's. The table says so for every word
# that rlenv uses; `tests/attack/test_reasons.py` goes through it with every term.
#
#     the policy's          its own call cannot be done, or its own work used up what it may use: a number
#     the infrastructure's  the call would have gone well on another day: the reward is invalid
#     unclear               a call did not end, or a server gave up on it, and either may be at fault: a term that needs
#                           to know asks it again, beside a call that is known to work (`rlenv.rewards.outages`)

Whose = Literal["policy", "infrastructure", "unclear"]

WHOSE: Final[Mapping[str, Whose]] = MappingProxyType(
    {
        "failed": "policy",  # the tool says that this call cannot be done as it is written
        "refused": "policy",  # so does a server, and may say it of every call: see `rlenv.rewards.outages.may_be_lost`
        "timeout": "policy",  # its own work used up its time: processor time was measured, or the tool counted
        "memory": "policy",  # its own work used up its memory
        "too_large": "policy",  # it asked for more than may be kept
        "bad_arguments": "policy",
        "malformed": "policy",
        "unknown_tool": "policy",
        "skipped": "policy",  # over a limit of the spec
        "late": "unclear",  # it did not end in time, and nobody measured why
        "killed": "unclear",  # a program, or a process that had this call alone, was killed, by itself or from outside
        "stopped": "unclear",  # its process was stopped (SIGSTOP) while it had the call, by itself or from outside
        "disk_full": "unclear",  # it failed while its disk had no room; it may have taken the room itself
        "server_error": "unclear",  # a server answered with a fault of its own (HTTP 5xx, an internal error)
        "rate_limited": "unclear",  # a server said that it was asked too much (HTTP 429), of this call or of all
        "crashed": "unclear",  # its process ended by itself while it had this call and no other
        "disconnected": "unclear",  # the connection broke after the request was sent
        "stalled": "infrastructure",  # its worker had the time and not the processor
        "busy": "infrastructure",  # no place, or no turn under the rate, in its time
        "unavailable": "infrastructure",  # no connection came about
        "server_down": "infrastructure",
        "server_died": "infrastructure",  # it ended with several calls under way, of which any may have done it
        "breaker_open": "infrastructure",
        "injected": "infrastructure",  # a fault that the spec puts in on purpose
        "worker": "infrastructure",  # a worker process could not be started, or ended before it had the call
        "bug": "infrastructure",  # the tool raised what it does not declare
    }
)
"""Whose failure each reason is. `skipped` and what comes before it are also outcomes of a `ToolResult`."""


def whose_failure(reason: str, *, retryable: bool = False) -> Whose:
    """Whose failure `reason` is: by the table, and the policy's for a word that stands not there.

    What is `retryable`, and so would have gone well a little later, is never the policy's.
    """
    found = WHOSE.get(reason, "policy")
    return "infrastructure" if retryable and found == "policy" else found
