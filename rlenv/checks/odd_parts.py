"""Warnings of tools, resources, endpoints and limits: what is unused, never fits, or is cut before it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.subject import Subject
from rlenv.errors import EpisodeError, Finding
from rlenv.language.spec import ToolSpec
from rlenv.rewards.answer import compile_pattern
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import Tool

__all__ = ["check_parts", "never_fits"]

_LOOKED_AT: Final = 200
_READS_ARGS: Final = ("http", "command", "model", "agent")


_NEEDS: Final = (
    ("session_mb", "session", (True,)),
    ("workers", "run_in", ("process",)),
    ("workers", "scope", ("pool",)),
    ("isolation", "access", ("copy",)),
    ("path", "scope", ("disk",)),
    ("opponents", "among", ("group",)),
    ("reset_s", "failures", None),
    ("processes", "sandbox", ("bubblewrap",)),
)
"""Keys that are looked at only where another key of the entry has one of some values (None: any but 0)."""
_OF_KIND: Final = {("workers", "run_in"): "python", ("workers", "scope"): "mcp", ("path", "scope"): ""}
_ACTS: Final = (
    "add|append|book|buy|cancel|charge|creat|create|delet|delete|deposit|insert|move|order|pay|place|post|publish|refund"
    "|remove|reserve|schedule|sell|send|submit|transfer|update|withdraw|write"
)
_CHANGES: Final = re.compile(rf"(?:{_ACTS})(?:_|$)")
_ASKS: Final = dict.fromkeys(("grep", "egrep", "fgrep", "rg", "zgrep", "pgrep"), "nothing is found") | dict.fromkeys(
    ("diff", "cmp"), "the two differ"
)
"""Programs whose exit code 1 is no failure, and what it means."""
_RUNS: Final = re.compile(r"(?:ba|z|da|k)?sh|python[\d.]*|node|perl|ruby|php|Rscript")
_WRITES: Final = frozenset("tee touch rm mv cp mkdir patch git truncate sqlite3".split())


def check_parts(subject: Subject) -> Iterator[Finding]:
    """Warnings of everything but rows, prompts, rewards and the oracle."""
    yield from _unused(subject)
    for name, spec in subject.loaded.spec.tools.items():
        yield from _tool(subject, name, spec)
        yield from _calls(subject, f"tools.{name}", spec)
        yield from _tool_values(subject, f"tools.{name}", spec)
        yield from _tied(subject, f"tools.{name}", spec)
    for name, reward in subject.loaded.spec.rewards.items():
        yield from _tied(subject, f"rewards.{name}", reward)
    yield from _tied(subject, "calls", subject.loaded.spec.calls)
    yield from _calls(subject, "calls", subject.loaded.spec.calls)
    yield from _descriptions(subject)
    yield from _limits(subject)
    yield from _times(subject)
    yield from _answer(subject)
    yield from _state(subject)
    observation = subject.loaded.spec.observation.template
    if observation is not None and "result" not in observation:
        message = "the template never shows 'result': the model does not learn what a call gave"
        yield subject.document.warning("observation.template", message, "add {{ result }}", "no-result")


def _unused(subject: Subject) -> Iterator[Finding]:
    """Constants, resources and endpoints that nothing names."""
    spec, document = subject.loaded.spec, subject.document
    texts = list(strings_in(document.data, ()))
    code = subject.code
    had = {tool.entry or tool.name for split in subject.splits.values() for row in split.rows[:_LOOKED_AT]
           for tool in _toolset(subject, row)}  # fmt: skip
    offered = {name: one for name, one in spec.tools.items() if one.offered is not True and name not in had}
    groups: tuple[tuple[str, Mapping[str, Any], str], ...] = (
        ("tools", offered, "tool"),
        ("vars", spec.vars, "constant"),
        ("resources", spec.resources, "resource"),
        ("endpoints", spec.endpoints, "endpoint"),
    )
    for group, entries, word in groups:
        for name in entries:
            named = re.compile(rf"\b{re.escape(name)}\b")
            elsewhere = [text for path, text in texts if path[:2] != (group, name)]
            if group == "vars":
                elsewhere = [text for text in elsewhere if "vars" in text]
            if any(named.search(text) for text in elsewhere) or (code is None or named.search(code)):
                continue
            if group == "vars" and list(entries.values()).count(entries[name]) > 1:
                continue  # an alias may have taken it over
            read = "no row is offered, and nothing else uses," if group == "tools" else "nothing reads"
            message = f"{read} the {word} '{name}'"
            yield document.warning((group, name), message, "use it, or take it out", f"unused-{word}", at="key")


def _toolset(subject: Subject, row: Mapping[str, Any]) -> Iterable[Tool]:
    try:
        return subject.toolset(row).tools.values()
    except EpisodeError:  # a fault of the row
        return ()


def _tool(subject: Subject, name: str, spec: ToolSpec) -> Iterator[Finding]:
    document, path = subject.document, f"tools.{name}"
    made = [tool for tool in subject.tools.values() if tool.entry == name or tool.name == name]
    for tool in made:
        given = spec.example
        if given is not None and tool.name in given and isinstance(given[tool.name], Mapping) and len(made) > 1:
            given = given[tool.name]
        elif len(made) > 1:
            given = None
        if given is not None and not (check := ArgumentCheck(tool.parameters, tool=tool.name)).fits(dict(given)):
            message = f"the example is no call that '{tool.name}' takes: {check.explain(given)}"
            yield document.warning(f"{path}.example", message, "write one that works", "odd-example")
        why = never_fits(tool.parameters)
        if why:
            message = f"no call can fit the parameters: {why}"
            yield document.warning(path, message, "mend the schema", "never-fits", at="key")
    takes_all = spec.kind == "agent" and not document.has(f"{path}.task")  # its row is what the model gives
    is_filled = getattr(spec, "preset", None) is None and not takes_all
    if made and spec.kind in _READS_ARGS and is_filled:
        yield from _unread(subject, path, made[0])
    said = spec.description or (made[0].description if made else "")
    if (
        said
        and spec.description
        and re.search(r"\b(?:TODO|FIXME|TBD)\b|^\s*(?:a |the )?(?:tool|function)\W*$", said, re.I)
    ):
        message = f"'{said.strip()[:40]}' tells the model nothing"
        yield document.warning(f"{path}.description", message, "say what the tool does", "no-description")
    if getattr(spec, "method", None) in ("GET", "HEAD") and getattr(spec, "body", None) is not None:
        message = f"a {spec.method} request has no body that servers read"  # type: ignore[attr-defined]
        yield document.warning(f"{path}.method", message, "write POST, or put it into 'query'", "idle-key")
    if not said and getattr(spec, "schemas", None) is None:  # rows tell it
        yield document.warning(path, "the model is told nothing of the tool", "add 'description:'", "no-description")


def _unread(subject: Subject, path: str, tool: Tool) -> Iterator[Finding]:
    document = subject.document
    entry = document.get(path)
    texts = [
        text for key, value in entry.items() if key not in ("parameters", "description", "example")
        for _, text in strings_in(value, ())
    ]  # fmt: skip
    whole = any(re.search(r"\bargs\b(?!\s*[.\[])", text) for text in texts)
    for name in () if whole else tool.parameters.get("properties", {}):
        if any(re.search(rf"\bargs(?:\.|\[['\"]){re.escape(name)}\b", text) for text in texts):
            continue
        near = [found for text in texts for found in re.findall(r"args\.(\w+)", text)]
        place = f"{path}.parameters.{name}"
        hint = did_you_mean(name, near, otherwise=f"write {{{{ args.{name} }}}} where it goes, or take it out")
        message = f"no template reads the parameter '{name}': what the model gives is dropped"
        yield document.warning(place if document.has(place) else path, message, hint, "unread-parameter", at="key")


def never_fits(schema: Any, depth: int = 0) -> str:
    """The reason why no value can fit a JSON Schema, "" where none of the plain contradictions is found."""
    if schema is False:
        return "it is false"
    if not isinstance(schema, Mapping) or depth > 20:
        return ""
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"),
                      ("minProperties", "maxProperties"), ("exclusiveMinimum", "maximum")):  # fmt: skip
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, (int, float)) and isinstance(most, (int, float)) and least > most:
            return f"{low} is {least} and {high} is {most}"
    if "enum" in schema and not schema["enum"]:
        return "'enum' is empty"
    own = {key: schema[key] for key in ("type", "minimum", "maximum", "minLength", "maxLength") if key in schema}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    try:
        check = ArgumentCheck({"properties": {"v": own}}, tool="it") if values else None
    except Exception:  # a schema that is none is reported where it is compiled
        check = None
    if check is not None and not any(check.fits({"v": value}) for value in values):
        return f"none of {str(values)[:60]} has what the schema asks of it"
    properties = schema.get("properties", {})
    if schema.get("not") in ({}, True):
        return "it is 'not' anything"
    for name in schema.get("required", ()) if isinstance(schema.get("required"), list) else ():
        if isinstance(properties, Mapping) and name not in properties and schema.get("additionalProperties") is False:
            return f"'{name}' is required and not among the properties"
        if isinstance(properties, Mapping) and (why := never_fits(properties.get(name), depth + 1)):
            return f"'{name}': {why}"
    if schema.get("minItems", 0) and (why := never_fits(schema.get("items"), depth + 1)):
        return f"items: {why}"
    types = [one.get("type") for one in schema.get("allOf", ()) if isinstance(one, Mapping)]
    types = [*types, schema.get("type")] if types else []
    named = {one for one in types if isinstance(one, str)} - {"integer", "number"}
    if len(named) > 1 or (named and {"integer", "number"} & {one for one in types if isinstance(one, str)}):
        return f"it asks for several types at once: {', '.join(sorted(map(str, types)))}"
    for key in ("anyOf", "oneOf"):
        parts = schema.get(key)
        if isinstance(parts, list) and parts and all(never_fits(one, depth + 1) for one in parts):
            return f"none of its '{key}' can fit"
    return ""


def _tied(subject: Subject, path: str, spec: Any) -> Iterator[Finding]:
    """Keys that another one makes idle, in an entry and in its `cache` and `breaker`, and times inside of others."""
    document, calls = subject.document, subject.loaded.spec.calls
    kind = getattr(spec, "kind", "")
    for place in (path, f"{path}.cache", f"{path}.breaker"):
        entry = document.get(place)
        if not isinstance(entry, Mapping):
            continue
        for key, other, values in _NEEDS:
            of_kind = _OF_KIND.get((key, other), kind)
            if key not in entry or (of_kind != kind if place == path else key not in ("path", "reset_s")):
                continue
            if entry.get(other, 1) != 0 if values is None else entry.get(other) in values:
                continue
            needed = f"{other}: {'N' if values is None else str(values[0]).lower()}"
            message = f"'{key}' is looked at with '{needed}' alone"
            yield document.warning(f"{place}.{key}", message, f"add '{needed}', or take it out", "idle-key", at="key")
    timeout_s = getattr(spec, "timeout_s", None) or calls.timeout_s
    times = {
        "command": ("cpu_s", timeout_s, "timeout_s"),
        "code": ("time_s", timeout_s, "timeout_s"),
        "tests": ("time_s", getattr(spec, "total_s", 0), "total_s"),
    }
    key, most, outer = times.get(kind, ("", 0, ""))
    if key and document.has(f"{path}.{key}") and getattr(spec, key) > most:
        message = f"{key} is {getattr(spec, key):g} s, and {outer} ends it after {most:g} s"
        yield document.warning(f"{path}.{key}", message, f"make {outer} the longer one", "limits")


def _tool_values(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """The findings on gold answers, on a search's results, and on calls that may not be repeated."""
    document = subject.document
    status = getattr(spec, "expect_status", None)
    if status and spec.kind == "http" and not any(200 <= one < 400 for one in status):
        message = f"only {', '.join(map(str, status))} counts as an answer: a call that goes well has failed"
        yield document.warning(f"{path}.expect_status", message, "add 200", "never-runs")
    if status and spec.kind == "command" and 0 not in status:
        message = "a program that ends well, with 0, has failed"
        yield document.warning(f"{path}.expect_status", message, "add 0", "never-runs")
    failing = sorted({one for one in status or () if one >= 500 or one in (401, 403, 429)})
    if failing:
        message = f"{failing[0]} counts as an answer: an outage is shown as one, and scored"
        yield document.warning(f"{path}.expect_status", message, f"take {failing[0]} out", "odd-policy")
    yield from _commands(subject, path, spec)
    yield from _requests(subject, path, spec)
    is_repeated = spec.idempotent or bool(getattr(spec, "retries", None)) or spec.cache is not None
    name = path.rpartition(".")[2].lower()
    method = str(getattr(spec, "method", None) or "GET")
    if (spec.idempotent and is_repeated
            and (_CHANGES.match(name) or method in ("PUT", "PATCH", "DELETE"))):  # fmt: skip
        message = "it is repeated as idempotent, and seems to do something each time"
        yield document.warning(f"{path}.idempotent", message, "take it out, and write mutates: true", "odd-policy")


def _commands(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """Programs that run what the model writes, that write one file, or whose exit code says what they found."""
    if spec.kind != "command":
        return
    argv, warn = tuple(getattr(spec, "command", ())), subject.document.warning
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    if name in _ASKS and 1 not in getattr(spec, "expect_status", ()):
        message = f"{name} ends with 1 where {_ASKS[name]}, which is shown as a failure"
        yield warn(path, message, "write expect_status: [0, 1]", "odd-policy", at="key")
    runs = any(one in ("-c", "-e", "-lc", "--eval") for one in rest) and any(
        re.search(r"\bargs\b", one) for one in rest
    )
    is_free = getattr(spec, "sandbox", "none") == "none"
    if _RUNS.fullmatch(name) and is_free and (runs or re.search(r"\bargs\b", str(getattr(spec, "stdin", "")))):
        message = f"{name} runs what the model writes, with all rights of the trainer"
        yield warn(f"{path}.command", message, "write sandbox: bubblewrap, or take kind: code", "no-sandbox")
    is_shared = getattr(spec, "cwd", "temp") != "temp" and "{" not in getattr(spec, "cwd", "")
    writes = name in _WRITES or (name == "sed" and "-i" in rest) or (_RUNS.fullmatch(name) and ">" in " ".join(rest))
    absolute = next((one for one in rest if one.startswith("/") and "{" not in one and one != "/dev/null"), "")
    if writes and is_free and (is_shared or absolute):
        message = f"{name} writes {absolute or 'into ' + repr(getattr(spec, 'cwd', ''))}, which all episodes share"
        yield warn(path, message, "write where the episode has its own folder: cwd: temp", "shared-state", at="key")


def _requests(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """Requests that change something unsaid, and keys that are sent in clear."""
    method, tool = getattr(spec, "method", None), subject.tools.get(path.rpartition(".")[2])
    first = str(spec.description or "").strip().lower().split(" ")[0]
    acts = _CHANGES.match(path.rpartition(".")[2].lower()) or re.fullmatch(f"(?:{_ACTS})e?s", first)
    if tool is not None and not tool.mutates and (method in ("DELETE", "PUT", "PATCH") or (method == "POST" and acts)):
        message = f"a {method} request changes something, and 'mutates' is false: calls of one turn run at once"
        yield subject.document.warning(path, message, "write mutates: true", "odd-policy", at="key")
    keys = [key for key in getattr(spec, "headers", ()) if re.search(r"(?i)auth|key|token|secret", key)]
    if keys and is_plain(str(getattr(spec, "url", ""))):
        message = f"the header '{keys[0]}' is sent in clear to another machine"
        yield subject.document.warning(f"{path}.url", message, "write https://", "address")


def is_plain(url: str) -> bool:
    """True for an address without TLS of a host that is neither here nor in a private net."""
    found = re.match(r"http://([\w-]+(?:\.[\w-]+)+)", url)
    return found is not None and not re.match(r"127\.|10\.|192\.168\.|172\.|.*\.(?:local|internal|lan|test)$", found[1])


def _calls(subject: Subject, path: str, spec: Any) -> Iterator[Finding]:
    """Policies that no call gets through."""
    document, calls = subject.document, subject.loaded.spec.calls
    timeout_s = getattr(spec, "timeout_s", None) or calls.timeout_s
    is_retried = bool(spec.retries) and spec.attempt_s == timeout_s
    if spec.attempt_s is not None and (spec.attempt_s > timeout_s or is_retried):
        message = f"one try may take {spec.attempt_s:g} s, and the call is ended after {timeout_s:g} s"
        yield document.warning(f"{path}.attempt_s", message, "make it shorter than timeout_s", "idle-limit")
    if spec.rate_per_s is not None and spec.rate_per_s * timeout_s <= 1:
        message = f"a second call has to wait {1 / spec.rate_per_s:g} s, and is ended after {timeout_s:g} s"
        yield document.warning(f"{path}.rate_per_s", message, "raise it, or timeout_s", "never-runs")
    waits = 0.05 * (2 ** min(spec.retries or 0, 64) - 1)
    if waits > timeout_s:
        message = f"{spec.retries} tries wait {waits:.3g} s at least, and the call is ended after {timeout_s:g} s"
        yield document.warning(f"{path}.retries", message, "write 2 or 3", "idle-limit")
    yield from _faults_left(subject, path, spec.faults)
    if spec.faults is not None and max(spec.faults.error, spec.faults.hang) >= 0.5:
        yield document.warning(
            f"{path}.faults", "half of all calls fail, or more", "write a smaller share", "never-runs"
        )
    if spec.faults is not None and spec.faults.delay_s is not None and spec.faults.delay_s.range[0] >= timeout_s:
        message = f"the shortest delay is longer than the {timeout_s:g} s of a call"
        yield document.warning(f"{path}.faults.delay_s", message, "shorten it", "never-runs")


def _faults_left(subject: Subject, path: str, faults: Any) -> Iterator[Finding]:
    """Faults on purpose, of which neither the spec's texts nor a comment beside them speak."""
    document = subject.document
    texts = " ".join(text for one, text in strings_in(document.data, ()) if one[-1] in ("system", "description"))
    span = document.key_span(f"{path}.faults")
    said = re.search(r"(?i)fail|flak|again|reliab|robust|retr|slow|outage|broken|fault", texts)
    if faults is not None and faults.is_on and said is None and "#" not in span.quote(span.line):
        message = "calls fail on purpose, and nothing says what for"
        hint = "take it out before training, or say so in 'description'"
        yield document.warning(f"{path}.faults", message, hint, "faults-on", at="key")


def _descriptions(subject: Subject) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for tool in subject.compiled.tools.values():  # of those that rows declare no two need be in one prompt
        text = " ".join(tool.description.split())
        path = f"tools.{tool.entry or tool.name}"
        if text and text in seen and tool.kind != "mcp":
            message = f"'{tool.name}' has the description of '{seen[text]}': the model cannot tell them apart"
            yield subject.document.warning(path, message, "say what each does", "same-description", at="key")
        seen.setdefault(text, tool.name)


def _limits(subject: Subject) -> Iterator[Finding]:
    spec, document = subject.loaded.spec, subject.document
    limits = subject.limits
    # The calls alone are what single-call data asks for, whose rows declare their tools.
    told = [tool for tool in subject.compiled.tools.values() if spec.tools[tool.entry].offered is not False]
    if limits.turns == 1 and not all(tool.ends for tool in told):
        message = "with one turn no result of a tool is ever read"
        yield document.warning("limits.turns", message, "allow at least 2, or take the tools out", "limits")
    if limits.turns == 1 and spec.user is not None:
        yield document.warning("limits.turns", "with one turn the user never replies", "allow more", "limits")
    for low, high, word in (("calls_per_turn", "tool_calls", "calls"), ("invalid_actions", "turns", "actions"),
                            ("turn_s", "episode_s", "seconds")):  # fmt: skip
        least, most = getattr(limits, low), getattr(limits, high)
        if document.has(f"limits.{low}") and least is not None and least > most:
            message = f"{low} is {least:g}, and {high} allows {most:g} {word} in all"
            yield document.warning(f"limits.{low}", message, f"make it at most {most:g}", "limits")
    most_tokens, chars = spec.observation.max_tokens, spec.observation.max_chars
    if most_tokens is not None and limits.response_tokens is not None and most_tokens > limits.response_tokens:
        message = f"one result may have {most_tokens} tokens, and the episode {limits.response_tokens}"
        yield document.warning("observation.max_tokens", message, "make it smaller", "limits")
    if document.has("observation.max_chars") and most_tokens is not None and chars < most_tokens:
        message = f"{chars} characters are fewer than {most_tokens} tokens have: max_tokens never cuts"
        yield document.warning("observation.max_tokens", message, "raise max_chars, or take one out", "idle-limit")


def _times(subject: Subject) -> Iterator[Finding]:
    """Time limits that a shorter one cuts."""
    spec, document = subject.loaded.spec, subject.document
    limits = subject.limits
    turn_s = min(limits.episode_s, limits.turn_s or limits.episode_s)
    longest = "limits.turn_s" if turn_s < limits.episode_s else "limits.episode_s"
    for path in ("calls.timeout_s", *(f"tools.{name}.timeout_s" for name in spec.tools)):
        given = document.get(path)
        if isinstance(given, (int, float)) and given > turn_s:
            message = f"a call may take {given:g} s, and {longest} ends it after {turn_s:g} s"
            yield document.warning(path, message, f"make it at most {turn_s:g}", "limits")
    for name, tool in spec.tools.items():
        endpoint = spec.endpoints.get(getattr(tool, "endpoint", "") or "")
        given = tool.timeout_s or spec.calls.timeout_s
        place = f"endpoints.{getattr(tool, 'endpoint', '')}.timeout_s"
        if endpoint is not None and document.has(place) and endpoint.timeout_s > given:
            message = f"a request may take {endpoint.timeout_s:g} s, and the tool '{name}' is ended after {given:g} s"
            yield document.warning(place, message, f"raise tools.{name}.timeout_s", "limits")
    for name, reward in spec.rewards.items():
        members = {getattr(reward, "endpoint", None), *(one.endpoint for one in getattr(reward, "judges", ()))}
        for one in sorted(members & set(spec.endpoints)):
            given, place = spec.endpoints[one].timeout_s, f"endpoints.{one}.timeout_s"
            if document.has(place) and given > limits.reward_s:
                message = (
                    f"a request may take {given:g} s, and limits.reward_s ends '{name}' after {limits.reward_s:g} s"
                )
                yield document.warning(place, message, "raise limits.reward_s", "limits")
        limit_s = getattr(reward, "timeout_s", None)
        if isinstance(limit_s, (int, float)) and limit_s > limits.reward_s:
            message = f"a verdict may take {limit_s:g} s, and limits.reward_s ends it after {limits.reward_s:g} s"
            yield document.warning(f"rewards.{name}.timeout_s", message, "raise limits.reward_s", "limits")


def _answer(subject: Subject) -> Iterator[Finding]:
    answer, document = subject.loaded.spec.answer, subject.document
    if answer.from_ == "regex" and answer.pattern is not None:
        pattern = compile_pattern(answer.pattern)
        found = pattern.last_at("It is a cat.\n")[0]
        if found is not None and found[1 if pattern.groups else 0] in ("", None):
            message = "the pattern fits no text at all too, and the last match counts: the answer is often empty"
            yield document.warning(
                "answer.pattern", message, "let its group match one character at least", "any-answer"
            )


def _state(subject: Subject) -> Iterator[Finding]:
    """Resources that all episodes share, and that a tool changes."""
    for name, spec in subject.loaded.spec.resources.items():
        if spec.scope != "process":
            continue
        for tool in subject.tools.values():
            entry = subject.document.get(f"tools.{tool.entry or tool.name}")
            texts = {text for _, text in strings_in(entry, ())}
            if tool.mutates and name in texts:
                message = f"'{tool.name}' changes it, and all episodes share it: one sees what another has done"
                path = f"resources.{name}.scope"
                yield subject.document.warning(path, message, "write scope: episode", "shared-state")
