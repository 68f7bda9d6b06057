"""Warnings of values and users: numbers out of proportion, addresses, stop texts, what entries say of each other."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv._base.text import nearest, strings_in
from rlenv.checks.odd_parts import is_plain
from rlenv.checks.subject import Subject, prompt_texts
from rlenv.errors import Finding
from rlenv.language.expressions import open_on
from rlenv.language.kinds import kind_of
from rlenv.language.spec import SamplingSpec
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
_ASKS: Final = re.compile(r"question|problem|query|instructions?|task|statement|exercise")
_OWN_FIELDS: Final = frozenset(("messages", "model", "temperature", "top_p", "max_tokens", "stop", "seed", "stream"))
_HERE: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])$")
_ADDRESS: Final = re.compile(r"(https?)://([^/\s:?#]+|\[[^]]*\])(?::(\d*))?(/[^\s?#]*)?")
_UNFILLED: Final = re.compile(
    r"(?i)<[a-z][a-z _-]*>|Bearer (?:TOKEN|KEY|API_KEY)$|\b(?:change[-_ ]?me|placeholder)\b"
    r"|\byour[-_ ](?:\w+[-_ ])?(?:key|model|server|host|token|name|url)\b"
)
_COMMON: Final = (
    "about after also another because been book come could find first from give good have here into know like look "
    "make many most need night nothing now not number only order other over people please some take than that their "
    "them then there they think this time very want what when where which will with work would year your"
)
"""Words that are in most dialogues."""
_ROLE: Final = re.compile(
    r"(?i)\byou are (?:an?|the) (?:(?!customer|user|guest|client|caller|patient|who|of|with|to)\w+ ){0,3}?"
    r"(?:assistant|agent|representative|chatbot|support|helpdesk|advis[eo]r|clerk)\b(?!'s)"
    r"|\bhelp (?:the |your )?(?:customers?|users?|clients?)\b"
)
_SHELL: Final = re.compile(r"\||\|\||&&?|;|>{1,2}|<|2>&1|\$\(.*\)|`.*`|[^{}]*\s(?:\||&&|>)\s[^{}]*")
_SHELLS: Final = frozenset("sh bash zsh dash python python3 perl awk jq sed grep".split())


def check_values(subject: Subject) -> Iterator[Finding]:
    """Warnings of values that are odd whatever stands beside them, and of texts that cut what others need."""
    yield from _numbers(subject)
    yield from _texts(subject)
    yield from _stops(subject)
    for name, endpoint in subject.loaded.spec.endpoints.items():
        path = f"endpoints.{name}"
        if not re.search(r"/v\d+\w*/?$|\{|\$", endpoint.base_url) and endpoint.base_url.count("/") <= 3:
            message = "the address has no path, and '/chat/completions' is added to it"
            yield subject.document.warning(f"{path}.base_url", message, "most servers want …/v1", "address")
        if endpoint.api_key is not None and is_plain(endpoint.base_url):
            message = "the key is sent in clear to another machine"
            yield subject.document.warning(f"{path}.base_url", message, "write https://", "address")
        if endpoint.api_key is not None and "authorization" in {key.lower() for key in endpoint.headers}:
            message = "'api_key' and a header 'Authorization' are sent, and one of them decides"
            yield subject.document.warning(f"{path}.headers", message, "take one of them out", "idle-key", at="key")
    for index, root in enumerate(subject.loaded.spec.roots):
        if root == "/":
            message = "rows may name any file of the machine"
            yield subject.document.warning(f"roots.{index}", message, "name the folder of the files", "unused-roots")
    for path, given in _samplings(subject):
        yield from _sampling(subject, path, given)
    yield from _entries(subject)
    yield from _user(subject)
    yield from _unreached(subject)
    for index, kind in enumerate(subject.loaded.spec.calls.coerce or ()):
        types = re.findall(r"'type': '?\[?'?(\w+)", str([tool.parameters for tool in subject.tools.values()]))
        if kind not in types and not (kind == "number" and "integer" in types):
            message = f"no tool has an argument of the type {kind}"
            yield subject.document.warning(f"calls.coerce.{index}", message, "take it out", "idle-key")


def _unreached(subject: Subject) -> Iterator[Finding]:
    """What no row reaches: gates that none opens, filters that leave one, questions that nothing shows."""
    spec, warn, splits = subject.loaded.spec, subject.document.warning, [*subject.splits.values()]
    rows = [row for split in splits for row in split.rows]
    for name, reward in spec.rewards.items():
        if reward.gate is not None and rows and not any(map(open_on(reward.gate), rows)):
            message = f"'{reward.gate}' holds for no row: it never counts"
            yield warn(f"rewards.{name}.gate", message, "mend the comparison, or the rows", "never-pays")
    for one in splits:
        if spec.tasks[one.name].when is not None and len(one.rows) == 1:
            yield warn(f"tasks.{one.name}.when", "it leaves one row of all", "mend the comparison", "idle-limit")
    told = ("prompt", "user", "tools", "resources", "observation")
    texts = " ".join(text for path, text in strings_in(subject.document.data, ()) if path[0] in told)
    columns = {str(name) for split in splits for name in split.columns}
    asks = [one for one in sorted(columns) if _ASKS.fullmatch(one)]
    lost = next((one for one in asks if not re.search(rf"\b{one}\b", f"{texts} {subject.code}")), None)
    shows = any(re.search(rf"\btask\.{one}\b", texts) for one in asks)
    if lost is not None and subject.code is not None and not shows:
        hint = f"write {{{{ task.{lost} }}}}"
        yield warn("prompt", f"nothing shows the column '{lost}'", hint, "unread-column", at="key")
    for column in sorted(columns):
        cells = [row[column] for row in rows if isinstance(row.get(column), str)]
        most = max(map(len, cells), default=0)
        cut = {cell for cell in cells if len(cell) == most and cell[-1:].isalnum() and cell.count(" ") > 3}
        is_round = most % 10 == 0 or most & (most - 1) == 0 or most == 255
        if is_round and len(cut) >= 4 and 2 * len(cut) >= len(cells):
            message = f"the texts of the column '{column}' end after {most} characters"
            yield warn("tasks", message, "read them whole", "cut-column", at="key")
            return


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
    """Addresses that lead nowhere, places that nobody has filled in, and a shell's signs where there is no shell."""
    warn = subject.document.warning
    for path, text in strings_in(subject.document.data, ()):
        yield from _written(subject, path, text)
        if path[0] in ("tasks", "prompt", "oracle", "user", "dialect") or path[-1] in (
            "description",
            "prompt",
            "rubric",
        ):
            continue
        is_address = path[-1] in ("model", "base_url", "api_key", "url") or "headers" in path or path[0] == "vars"
        if is_address and (found := _UNFILLED.search(text)):
            yield warn(path, f"'{found[0]}' stands for something that nobody has filled in", "fill it in", "unfinished")
        if (found := _ADDRESS.match(text)) is not None and (why := _nowhere(found)):
            yield warn(path, why, "mend the address", "address")
        entry = subject.document.get(path[:2]) or {}
        is_shell = len(path) == 4 and path[2] == "command" and path[3] and _SHELL.fullmatch(text)
        if is_shell and entry["kind"] == "command" and str(entry["command"][0]).rpartition("/")[2] not in _SHELLS:
            message = f"'{text}' is a shell's sign, and there is no shell: the program gets it as an argument"
            yield warn(path, message, "write command: [sh, -c, …], or do it in the program", "no-shell")
        if path[-1] == "response" and re.match(r"\s*['`]", text):
            message = "it is a constant, and selects nothing of the answer"
            yield warn(path, message, "take the quotes away", "constant-term")


def _written(subject: Subject, path: tuple[str | int, ...], text: str) -> Iterator[Finding]:
    """Anchors that hold for one alternative each, texts that a comment cuts, and lines that a folded block joins."""
    if path[-1] in ("pattern", "when"):
        bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", re.sub(r"^\(\?[a-z]+\)", "", text))
        while bare != (less := re.sub(r"\([^()]*\)", "x", bare)):
            bare = less
        first, last = bare.partition("|")[0], bare.rpartition("|")[2]
        if "|" in bare and first[:1] == "^" and last[-1:] == "$" and first[-1:] != "$" and last[:1] != "^":
            message = "'^' holds for the first alternative alone, and '$' for the last"
            yield subject.document.warning(path, message, "write a group: ^(?:…|…)$", "any-answer")
    if path[0] not in ("prompt", "user", "oracle") and path[-1] != "description":
        return
    span = subject.document.value_span(path)
    raw = span.source.text[span.start :] if span.source is not None else ""
    line = raw.partition("\n")[0]
    cut = re.match(r" #", raw[span.end - span.start :]) and raw[:1] not in ("'", '"', "|", ">")
    if cut and re.search(r"[\w,;]$", text) and len(text.split()) > 3:
        message = f"' #' begins a comment: the text ends with '{text[-30:]}'"
        yield subject.document.warning(path, message, "put the text in quotes", "unfinished")
    if re.match(r">[-+\d]*\s*$", line) and len(_LINES.findall(raw[: span.end - span.start])) > 1:
        message = "a folded block (>) joins its lines, which are code or a list, into one"
        yield subject.document.warning(path, message, "write | in place of >", "answer-form")


_LINES: Final = re.compile(
    r"(?m)^ *(?:[-*•] \S|\d+[.)] \S|[a-z_]\w*(?:, \w+)* [-+*/]?= \S|(?:print|assert)\(|(?:def|for|if|while) .*:$"
    r"|return \S)"
)
"""Lines of code and of lists."""


def _nowhere(found: re.Match[str]) -> str:
    scheme, host, port, path = found[1], found[2], found[3], found[4] or ""
    if port is not None and not 0 < int(port or 0) < 65_536:
        return f"there is no port {port or '(empty)'}"
    if scheme == "https" and _HERE.fullmatch(host):
        return "servers on this machine seldom speak https"
    if host == "0.0.0.0":
        return "0.0.0.0 is where a server listens, and no address to ask"
    if nearest(host, ["localhost"]) and not re.fullmatch(r"(?:.+\.)?localhost", host):
        return f"'{host}' is nearly localhost"
    if scheme == "http" and port == "443":
        return "port 443 speaks https"
    parts = [part for part in path.split("/") if part]
    twice = next((one for one, other in itertools.pairwise(parts) if one == other and "{" not in one), "")
    return f"'/{twice}' stands twice in it" if twice else ""


def _samplings(subject: Subject) -> Iterator[tuple[str, SamplingSpec]]:
    spec = subject.loaded.spec
    for group in ("endpoints", "tools", "rewards"):
        for name, entry in getattr(spec, group).items():
            if isinstance(given := getattr(entry, "sampling", None), SamplingSpec):
                yield f"{group}.{name}.sampling", given
    if isinstance(given := getattr(spec.user, "sampling", None), SamplingSpec):
        yield "user.sampling", given


def _sampling(subject: Subject, path: str, sampling: SamplingSpec) -> Iterator[Finding]:
    document = subject.document
    if not document.has(path):
        return
    if sampling.temperature == 0 and sampling.top_p not in (None, 1):
        message = "top_p is not looked at where temperature is 0"
        yield document.warning(f"{path}.top_p", message, "take one of them out", "idle-sampling")
    for key in sorted(_OWN_FIELDS & set(sampling.extra)):
        message = f"'{key}' has a key of its own, which decides"
        hint = f"write sampling.{key}" if key in SamplingSpec.model_fields else "take it out"
        yield document.warning(f"{path}.extra.{key}", message, hint, "idle-sampling", at="key")


def _stops(subject: Subject) -> Iterator[Finding]:
    """Texts at which a model's answer ends before what is read of it."""
    spec = subject.loaded.spec
    judges = {getattr(one, "endpoint", None) for reward in spec.rewards.values() if reward.kind == "judge"
              for one in (reward, *getattr(reward, "judges", ()))}  # fmt: skip
    talks = getattr(spec.user, "endpoint", None)
    for path, sampling in _samplings(subject):
        name: str | None = path.split(".")[1]
        is_judge = (path.startswith("endpoints") and name in judges) or path.startswith("rewards")
        is_user = (path.startswith("endpoints") and name == talks) or path.startswith("user")
        if is_user and sampling.max_tokens is not None and sampling.max_tokens < 16:
            message = f"{sampling.max_tokens} tokens are too few for a user's reply"
            yield subject.document.warning(f"{path}.max_tokens", message, "write 100", "odd-sampling")
        for index, stop in enumerate(sampling.stop or ()):
            why = ""
            if is_judge and (set(stop) & set('{}":,') or stop.strip() in ("", "score", "reasoning", "nonce", "```")):
                why = "the judge's JSON has it, and is cut there"
            elif is_user and spec.user is not None and any(stop in end for end in stops_of(spec.user)):
                why = "servers leave it out, so that the user's own stop text never comes"
            elif not stop.strip():
                why = "the answer ends with its first line" if "\n" in stop else "the answer ends with its first word"
            if why:
                yield subject.document.warning(f"{path}.stop.{index}", why, "take it out", "stop-text")
    for end in stops_of(spec.user) if spec.user is not None else ():
        if not re.fullmatch(r"\s*[a-z]+\s*|\W", end):
            continue
        message = f"'{end}' may stand in any reply, which would end the dialogue"
        yield subject.document.warning("user.stop", message, "write ###STOP###", "stop-text")


def _entries(subject: Subject) -> Iterator[Finding]:
    """The findings on keys of a tool that do not go together."""
    spec, warn = subject.loaded.spec, subject.document.warning
    for name, entry in spec.tools.items():
        path = f"tools.{name}"
        reads_task = "task" in str({k: v for k, v in (subject.document.get(path) or {}).items() if k != "description"})
        cache = entry.cache or spec.calls.cache
        if cache is not None and cache.key == "arguments" and reads_task:
            message = "it reads the task, and its results are kept by the arguments alone"
            place = f"{path}.cache.key" if entry.cache is not None else "calls.cache.key"
            yield warn(place, message, "write key: task", "shared-state")
        fields = getattr(entry, "fields", None)
        shown = [getattr(fields, key) for key in ("id", "title", "text")] if fields is not None else []
        if len(set(shown)) < len(shown):
            yield warn(f"{path}.fields", "two of its keys name one column", "name each column once", "odd-column")
        tool = subject.tools.get(name)
        if entry.cache is not None and tool is not None and (tool.mutates or not tool.idempotent):
            message = "nothing is kept of a tool that changes something or may not be repeated"
            yield warn(f"{path}.cache", message, "take it out, or write idempotent: true", "idle-cache", at="key")
        if kind_of("tools", entry).asks_models and entry.timeout_s is not None and entry.timeout_s < 3:
            message = f"a model seldom answers within {entry.timeout_s:g} s"
            yield warn(f"{path}.timeout_s", message, "write 30 or more", "limits")
        if entry.cache is not None and entry.cache.scope == "none" and entry.cache.ttl_s is not None:
            yield warn(f"{path}.cache.ttl_s", "nothing is kept with 'scope: none'", "take it out", "idle-cache")


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
        yield from _script(subject, user)
    prompt = getattr(user, "prompt", None)
    if not isinstance(prompt, str):
        return
    role = _ROLE.search(prompt)
    if role is not None:
        message = f"'{role[0]}' is the policy's part: the model plays the one who asks"
        yield document.warning("user.prompt", message, "say who the user is, and what it wants", "odd-role")
    if stops_of(user) and not any(stop in prompt for stop in stops_of(user)) and "stop" not in prompt.lower():
        message = (
            f"nobody tells the user to write {stops_of(user)[0]} when it is satisfied: the dialogue ends at a limit"
        )
        yield document.warning("user.prompt", message, f"say when to write {stops_of(user)[0]}", "user-never-ends")
    if not stops_of(user):
        message = "without a stop text a model goes on talking until a limit ends the episode"
        yield document.warning("user.stop", message, "take 'stop: null' out", "user-never-ends")
    rows = [row for split in subject.splits.values() for row in split.rows[:2]]
    if "task" not in prompt and "task" in f"{prompt_texts(spec.prompt)}" and len(rows) > 1:
        message = "the user's prompt names no column of the row: it plays the same person on every task"
        yield document.warning("user.prompt", message, "tell it what it wants: {{ task.… }}", "same-prompt")


def _script(subject: Subject, user: Any) -> Iterator[Finding]:
    """Cues that nothing reaches, or that hide others, and a user who ends the dialogue before it begins."""
    spec, document = subject.loaded.spec, subject.document
    said = [step.say for step in spec.steps[:-1] if step.say is not None]
    patterns = [re.compile(cue.pattern, re.IGNORECASE) if _compiles(cue.pattern) else None for cue in user.cues]
    met = any(one is None or one.search(text) for one in patterns for text in said)
    if said and patterns and not met:
        message = "no text of the oracle's meets a cue"
        yield document.warning("user.cues", message, "mend 'pattern', or let the oracle ask", "unmet-cue", at="key")
    tells = [text for path, text in strings_in(subject.document.get("user"), ()) if path[-1] not in ("when", "stop")]
    cells = Counter(str(value) for split in subject.splits.values() for row in split.rows for value in row.values())
    own = [cell for cell, count in cells.items() if count == 1 and len(cell) > 2 and cell[0].isupper()]
    lone = next((cell for cell in own if any(re.search(rf"(?<!\w){re.escape(cell)}(?!\w)", one) for one in tells)), "")
    if lone and cells.total() > len(own) > 1:
        message = f"it says '{lone[:40]}', which is of one row, to every task"
        yield document.warning("user", message, "name the column: {{ task.… }}", "one-row", at="key")
    knows = {*subject.tools} - {spec.answer.tool or ""} or "resources" in " ".join(tells)
    if (
        user.cues
        and not knows
        and not any("{" in text for text in tells)
        and any(len(split.rows) > 1 for split in subject.splits.values())
    ):
        message = "the user tells every task the same: nothing that it says reads the row"
        yield document.warning("user.cues", message, "tell what the row wants: {{ task.… }}", "same-prompt", at="key")
    for index, cue in enumerate(user.cues):
        lone = next((one for one in cue.pattern.split("|") if re.fullmatch(r"[A-Za-z]{1,3}", one)
                     and re.search(rf"(?i)\w{one}|{one}\w", _COMMON)), "")  # fmt: skip
        if lone:
            inside = next(word for word in _COMMON.split() if lone.lower() in word and lone.lower() != word)
            message = f"'{lone}' is met inside other words too, such as '{inside}'"
            yield document.warning(("user", "cues", index, "pattern"), message, rf"write \b{lone}\b", "hidden-cue")
            return
        plain = [part for part in cue.pattern.split("|") if re.fullmatch(r"[\w\s']+", part)]
        for above, one in enumerate(patterns[:index]):
            if one is not None and (one.search("") or any(one.search(part) for part in plain)):
                message = f"it meets what cue {index + 1} waits for, which is never said then"
                yield document.warning(("user", "cues", above, "pattern"), message, "put it last", "hidden-cue")
                return
    replies = user.replies
    if any(not replies[0].replace(stop, "").strip() for stop in stops_of(user) if replies and stop in replies[0]):
        message = "the first message that meets no cue ends the dialogue"
        yield document.warning("user.replies", message, "let the user reply once at least", "user-ends")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
