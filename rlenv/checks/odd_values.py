"""Warnings of values and users: numbers out of proportion, addresses, and users who never end or know no row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv._base.text import strings_in
from rlenv.checks.subject import Subject, prompt_texts
from rlenv.errors import Finding
from rlenv.language.expressions import open_on
from rlenv.users.base import stops_of

_RANGES: Final = (
    (r"(?:calls|limits|tools\.[^.]+|endpoints\.[^.]+)\.(?:timeout_s|turn_s|reward_s|attempt_s)", 0.05, 3_600, "limits"),
    (r"endpoints\.[^.]+\.timeout_s", 0.5, 3_600, "limits"),
    (r"limits\.episode_s", 5, 21_600, "limits"),
    (r"rewards\.[^.]+(?:\.judges\.\d+)?\.timeout_s", 0.5, 3_600, "limits"),
    (r".*\.start_timeout_s", 0.2, 600, "limits"),
    (r".*\.(?:time_s|cpu_s|total_s)", 0.05, 1_800, "limits"),
    (r".*\.breaker\.reset_s", 0.1, 86_400, "odd-policy"),
    (r".*\.breaker\.failures", 2, 1_000, "odd-policy"),
    (r".*\.cache\.ttl_s", 1, 2_600_000, "idle-cache"),
    (r".*\.faults\.(?:garble|oversize)", 0, 0.5, "never-runs"),
    (r".*\.retries", 0, 15, "odd-policy"),
    (r".*\.(?:shared_)?concurrency", 1, 10_000, "odd-policy"),
    (r".*\.workers", 1, 256, "odd-policy"),
    (r".*\.rate_per_s", 0.001, 100_000, "odd-policy"),
    (r".*\.temperature", 0, 1.5, "odd-sampling"),
    (r".*\.top_p", 0.05, 1, "odd-sampling"),
    (r"rewards\..*\.sampling\.temperature", 0, 1, "odd-sampling"),
    (r"rewards\..*\.max_tokens", 40, 200_000, "odd-sampling"),
    (r"(?:endpoints|tools|user)\..*\.max_tokens", 8, 200_000, "odd-sampling"),
    (r"observation\.max_tokens", 16, 1_000_000, "limits"),
    (r"observation\.max_chars", 64, 10_000_000, "limits"),
    (r"tools\.[^.]+\.max_chars", 40, 10_000_000, "limits"),
    (r"tools\.[^.]+\.max_rows", 2, 10_000, "limits"),
    (r"tools\.[^.]+\.top_k", 1, 100, "limits"),
    (r".*\.max_bytes", 200, 1_000_000_000, "limits"),
    (r".*\.(?:memory_mb|file_mb)", 24, 262_144, "limits"),
    (r"limits\.turns", 1, 1_000, "limits"),
    (r"limits\.(?:tool_calls|calls_per_turn)", 1, 100_000, "limits"),
    (r"limits\.invalid_actions", 1, 1_000, "limits"),
    (r"limits\.response_tokens", 16, 10_000_000, "limits"),
    (r"rewards\.[^.]+\.weight", -100, 100, "lost-weight"),
    (r"rewards\.[^.]+\.relative_tolerance", 0, 0.5, "any-answer"),
    (r"rewards\.[^.]+\.compare\.(?:relative_)?tolerance", 0, 0.5, "any-answer"),
    (r"rewards\.[^.]+\.opponents", 1, 64, "odd-policy"),
    (r"tools\.[^.]+\.turns", 2, 1_000, "limits"),
    (r"tasks\.[^.]+\.limit", 2, 1_000_000_000, "limits"),
)  # fmt: skip
"""Keys with numbers, the least and the most that anybody means, and the code of what is outside."""
_UNFILLED: Final = re.compile(
    r"(?i)<[a-z][a-z _-]*>|Bearer (?:TOKEN|KEY|API_KEY)$|\b(?:change[-_ ]?me|placeholder)\b"
    r"|\byour[-_ ](?:\w+[-_ ])?(?:key|model|server|host|token|name|url)\b"
)
_FAR: Final = re.compile(
    r"http://(?!127\.|10\.|192\.168\.|172\.)[\w-]+(?:\.[\w-]+)*\.(?!local\b|internal\b|lan\b|test\b)\w+"
)
"""An address without TLS of a host that is neither here nor in a private net."""


def check_values(subject: Subject) -> Iterator[Finding]:
    """Warnings of values that are odd whatever stands beside them, of gates that no row opens, and of users."""
    yield from _numbers(subject)
    yield from _texts(subject)
    yield from _addresses(subject)
    spec, warn = subject.loaded.spec, subject.document.warning
    for index, root in enumerate(spec.roots):
        if root == "/":
            message = "rows may name any file of the machine"
            yield warn(f"roots.{index}", message, "name the folder of the files", "unused-roots")
    rows = [row for split in subject.splits.values() for row in split.rows]
    for name, reward in spec.rewards.items():
        if reward.gate is not None and rows and not any(map(open_on(reward.gate), rows)):
            message = f"'{reward.gate}' holds for no row: it never counts"
            yield warn(f"rewards.{name}.gate", message, "mend the comparison, or the rows", "never-pays")
    yield from _user(subject)


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("rows", "parameters", "schema", "vars", "oracle", "extra", "example", "dialect"):
                yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def _numbers(subject: Subject) -> Iterator[Finding]:
    for path, value in _leaves(subject.document.data):
        dotted = ".".join(map(str, path))
        for pattern, least, most, code in _RANGES:
            if not re.fullmatch(pattern, dotted) or least <= value <= most:
                continue
            if value < least:
                message, hint = f"{value:g} is too little to mean", f"write {least:g} at least"
            else:
                message, hint = f"{value:g} is more than anybody means", f"write {most:g} at most"
                if dotted.endswith("_s") and value >= 1_000:
                    hint = f"it is in seconds: {value:g} milliseconds are {value / 1_000:g}"
            yield subject.document.warning(path, message, hint, code)
            break


def _texts(subject: Subject) -> Iterator[Finding]:
    """Places that nobody has filled in, and texts that a comment cuts."""
    warn = subject.document.warning
    for path, text in strings_in(subject.document.data, ()):
        is_address = path[-1] in ("model", "base_url", "api_key", "url") or "headers" in path or path[0] == "vars"
        if is_address and path[0] not in ("tasks", "prompt", "user") and (blank := _UNFILLED.search(text)):
            message = f"'{blank[0]}' stands for something that nobody has filled in"
            yield warn(path, message, "fill it in", "unfinished")
        if path[0] in ("prompt", "user", "oracle") or path[-1] == "description":
            span = subject.document.value_span(path)
            raw = span.source.text[span.start :] if span.source is not None else ""
            is_cut = re.match(r" #", raw[span.end - span.start :]) and raw[:1] not in ("'", '"', "|", ">")
            if is_cut and re.search(r"[\w,;]$", text) and len(text.split()) > 3:
                message = f"' #' begins a comment: the text ends with '{text[-30:]}'"
                yield warn(path, message, "put the text in quotes", "unfinished")


def _addresses(subject: Subject) -> Iterator[Finding]:
    """Keys that are sent in clear or twice, and servers without a path."""
    spec, warn = subject.loaded.spec, subject.document.warning
    for name, endpoint in spec.endpoints.items():
        path = f"endpoints.{name}"
        if not re.search(r"/v\d+\w*/?$|\{|\$", endpoint.base_url) and endpoint.base_url.count("/") <= 3:
            message = "the address has no path, and '/chat/completions' is added to it"
            yield warn(f"{path}.base_url", message, "most servers want …/v1", "address")
        if endpoint.api_key is not None and "authorization" in {key.lower() for key in endpoint.headers}:
            message = "'api_key' and a header 'Authorization' are sent, and one of them decides"
            yield warn(f"{path}.headers", message, "take one of them out", "idle-key", at="key")
        if endpoint.api_key is not None and _FAR.match(endpoint.base_url):
            message = "the key is sent in clear to another machine"
            yield warn(f"{path}.base_url", message, "write https://", "address")
    for name, entry in spec.tools.items():
        keys = [key for key in getattr(entry, "headers", ()) if re.search(r"(?i)auth|key|token|secret", key)]
        if keys and _FAR.match(str(getattr(entry, "url", ""))):
            message = f"the header '{keys[0]}' is sent in clear to another machine"
            yield warn(f"tools.{name}.url", message, "write https://", "address")


def _user(subject: Subject) -> Iterator[Finding]:
    spec, document = subject.loaded.spec, subject.document
    user = spec.user
    if user is None:
        return
    replies = getattr(user, "replies", ())
    if len(replies) >= subject.limits.turns:
        message = f"{len(replies)} replies, and limits.turns is {subject.limits.turns}: the last ones are never said"
        yield document.warning("user.replies", message, f"raise limits.turns to {len(replies) + 1}", "limits")
    if getattr(user, "kind", "") == "scripted":
        yield from _cues(subject, user)
    prompt = getattr(user, "prompt", None)
    if not isinstance(prompt, str):
        return
    if stops_of(user) and not any(stop in prompt for stop in stops_of(user)) and "stop" not in prompt.lower():
        end = stops_of(user)[0]
        message = f"nobody tells the user to write {end} when it is satisfied: the dialogue ends at a limit"
        yield document.warning("user.prompt", message, f"say when to write {end}", "user-never-ends")
    if not stops_of(user):
        message = "without a stop text a model goes on talking until a limit ends the episode"
        yield document.warning("user.stop", message, "take 'stop: null' out", "user-never-ends")
    rows = [row for split in subject.splits.values() for row in split.rows[:2]]
    if "task" not in prompt and "task" in f"{prompt_texts(spec.prompt)}" and len(rows) > 1:
        message = "the user's prompt names no column of the row: it plays the same person on every task"
        yield document.warning("user.prompt", message, "tell it what it wants: {{ task.… }}", "same-prompt")


def _cues(subject: Subject, user: Any) -> Iterator[Finding]:
    """Cues that nothing reaches, cues that an earlier one hides, and a user who ends the dialogue before it begins."""
    document = subject.document
    asked = [step.say for step in subject.loaded.spec.steps[:-1] if step.say is not None]
    patterns = [re.compile(cue.pattern, re.IGNORECASE) if _compiles(cue.pattern) else None for cue in user.cues]
    if asked and patterns and not any(one is None or one.search(text) for one in patterns for text in asked):
        message = "no text of the oracle's meets a cue"
        yield document.warning("user.cues", message, "mend 'pattern', or let the oracle ask", "unmet-cue", at="key")
    for index, cue in enumerate(user.cues):
        plain = [part for part in cue.pattern.split("|") if re.fullmatch(r"[\w\s']+", part)]
        for above, one in enumerate(patterns[:index]):
            if one is not None and (one.search("") or any(one.search(part) for part in plain)):
                message = f"it meets what cue {index + 1} waits for, which is never said then"
                yield document.warning(("user", "cues", above, "pattern"), message, "put it last", "hidden-cue")
                return
    first = user.replies[0] if user.replies else ""
    if any(stop in first and not first.replace(stop, "").strip() for stop in stops_of(user)):
        message = "the first message that meets no cue ends the dialogue"
        yield document.warning("user.replies", message, "let the user reply once at least", "user-ends")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
