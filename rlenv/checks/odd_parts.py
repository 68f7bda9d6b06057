"""Warnings of tools, resources, endpoints and limits: what is unused, out of proportion, or cut before it ends."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.subject import Subject
from rlenv.errors import EpisodeError, Finding
from rlenv.language.kinds import is_own, kind_of
from rlenv.language.spec import ToolSpec
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

_LOOKED_AT: Final = 200
_READS_ARGS: Final = ("http", "command", "model", "agent")
_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array"}
_IN_PLACE: Final = frozenset("add append clear discard extend insert pop remove setdefault update".split())
_NO_WORDS: Final = re.compile(r"(?i)\b(?:TODO|FIXME|TBD)\b|^\s*(?:a |the )?(?:tool|function)\W*$")
_RUNS: Final = re.compile(r"(?:ba|z|da|k)?sh|python[\d.]*|node|perl|ruby|php|Rscript")
_SHELL_SIGN: Final = re.compile(r"\||\|\||&&?|;|>{1,2}|<|2>&1|\$\(.*\)|`.*`")

_RANGES: Final = (
    (r"(?:calls|limits|tools\.[^.]+|endpoints\.[^.]+)\.(?:timeout_s|turn_s|reward_s|attempt_s)", 0.05, 3_600, "limits"),
    (r"limits\.episode_s", 5, 21_600, "limits"),
    (r"(?:endpoints|rewards)\.[^.]+(?:\.judges\.\d+)?\.timeout_s", 0.5, 3_600, "limits"),
    (r".*\.start_timeout_s", 0.2, 600, "limits"),
    (r".*\.(?:time_s|cpu_s)", 0.05, 1_800, "limits"),
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
    (r".*\.(?:memory_mb|disk_mb)", 24, 262_144, "limits"),
    (r"limits\.(?:tool_calls|calls_per_turn)", 1, 100_000, "limits"),
    (r"limits\.(?:turns|invalid_actions)", 1, 1_000, "limits"),
    (r"limits\.response_tokens", 16, 10_000_000, "limits"),
    (r"rewards\.[^.]+\.weight", -100, 100, "lost-weight"),
    (r"rewards\.[^.]+\.(?:relative_|compare\.(?:relative_)?)tolerance", 0, 0.5, "any-answer"),
    (r"rewards\.[^.]+\.pairwise\.limit", 1, 64, "odd-policy"),
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


def check_parts(subject: Subject) -> Iterator[Finding]:
    """Warnings of everything but rows, prompts, rewards and the oracle."""
    yield from _unused(subject)
    for name, spec in subject.loaded.spec.tools.items():
        yield from _tool(subject, name, spec)
        yield from _policies(subject, name, spec)
        if spec.kind == "command":
            yield from _command(subject, f"tools.{name}", spec)
        if spec.kind == "python" and name != subject.loaded.spec.answer.tool:  # which is not run
            yield from _function(subject, name, spec)
    yield from _limits(subject)
    for path, value, outer, most in _nested(subject):
        if most is not None and value > most:
            message = f"{value:g} is allowed, and {outer} ends it at {most:g}"
            yield subject.document.warning(path, message, f"make it at most {most:g}, or raise {outer}", "limits")
    yield from _state(subject)
    observation = subject.loaded.spec.observation.template
    if observation is not None and "result" not in observation:
        message = "the template never shows 'result': the model does not learn what a call gave"
        yield subject.document.warning("observation.template", message, "add {{ result }}", "no-result")
    yield from _numbers(subject)
    yield from _texts(subject)
    yield from _addresses(subject)
    for index, root in enumerate(subject.loaded.spec.roots):
        if root == "/":
            message = "rows may name any file of the machine"
            yield subject.document.warning(f"roots.{index}", message, "name the folder of the files", "unused-roots")


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
        if given is not None and len(made) > 1:
            given = given.get(tool.name)
        if isinstance(given, Mapping):
            check = ArgumentCheck(tool.parameters, tool=tool.name)
            if not check.fits(dict(given)):
                message = f"the example is no call that '{tool.name}' takes: {check.explain(given)}"
                yield document.warning(f"{path}.example", message, "write one that works", "odd-example")
    takes_all = spec.kind == "agent" and not document.has(f"{path}.task")  # its row is what the model gives
    is_filled = getattr(spec, "preset", None) is None and not takes_all
    if made and spec.kind in _READS_ARGS and is_filled:
        yield from _unread(subject, path, made[0])
    described = spec.description or (made[0].description if made else "")
    if spec.description and _NO_WORDS.search(spec.description):
        message = f"'{spec.description.strip()[:40]}' tells the model nothing"
        yield document.warning(f"{path}.description", message, "say what the tool does", "no-description")
    if not described and not isinstance(getattr(spec, "tools", None), str):  # rows tell it
        yield document.warning(path, "the model is told nothing of the tool", "add 'description:'", "no-description")


def _unread(subject: Subject, path: str, tool: Tool) -> Iterator[Finding]:
    document = subject.document
    entry = document.get(path)
    texts = [
        text for key, value in entry.items() if key not in ("parameters", "description", "example")
        for _, text in strings_in(value, ())
    ]  # fmt: skip
    whole = any(re.search(r"\bargs\b(?!\s*[.\[])", text) for text in texts)
    unread = [name for name in tool.parameters.get("properties", {})
              if not any(re.search(rf"\bargs(?:\.|\[['\"]){re.escape(name)}\b", text) for text in texts)]  # fmt: skip
    for name in () if whole else unread:
        near = [argument for text in texts for argument in re.findall(r"args\.(\w+)", text)]
        place = f"{path}.parameters.{name}"
        hint = did_you_mean(name, near, otherwise=f"write {{{{ args.{name} }}}} where it goes, or take it out")
        message = f"no template reads the parameter '{name}': what the model gives is dropped"
        yield document.warning(place if document.has(place) else path, message, hint, "unread-parameter", at="key")


def _policies(subject: Subject, name: str, spec: ToolSpec) -> Iterator[Finding]:
    """Calls that are repeated, kept or run at once and should not be."""
    path, document, tool = f"tools.{name}", subject.document, subject.tools.get(name)
    method = getattr(spec, "method", None)
    if tool is not None and not tool.mutates and method in ("DELETE", "PUT", "PATCH"):
        message = f"a {method} request changes something, and 'mutates' is false: calls of one turn run at once"
        yield document.warning(path, message, "write mutates: true", "odd-policy", at="key")
    failing = sorted({one for one in getattr(spec, "expect", None) or () if one >= 500 or one == 429})
    if failing and spec.kind == "http":
        message = f"{failing[0]} counts as an answer: an outage is shown as one, and scored"
        yield document.warning(f"{path}.expect", message, f"take {failing[0]} out", "odd-policy")
    cache = spec.cache or subject.loaded.spec.calls.cache
    entry = {key: value for key, value in (document.get(path) or {}).items() if key != "description"}
    if cache is not None and cache.key == "arguments" and "task" in str(entry):
        place = f"{path}.cache.key" if spec.cache is not None else "calls.cache.key"
        message = "it reads the task, and its results are kept by the arguments alone"
        yield document.warning(place, message, "write key: task", "shared-state")
    if spec.cache is not None and tool is not None and (tool.mutates or not tool.idempotent):
        message = "nothing is kept of a tool that changes something or may not be repeated"
        hint = "take it out, or write idempotent: true"
        yield document.warning(f"{path}.cache", message, hint, "idle-cache", at="key")


def _command(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """Programs that run what the model writes, and a shell's signs where there is no shell."""
    argv, warn = tuple(getattr(spec, "command", ())), subject.document.warning
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    runs = {"-c", "-e", "-lc", "--eval"} & {*rest} and any(re.search(r"\bargs\b", one) for one in rest)
    is_free = getattr(spec, "sandbox", "none") == "none"
    if _RUNS.fullmatch(name) and is_free and (runs or re.search(r"\bargs\b", str(getattr(spec, "stdin", "")))):
        message = f"{name} runs what the model writes, with all rights of the trainer"
        yield warn(f"{path}.command", message, "write sandbox: bubblewrap, or take kind: code", "no-sandbox")
    for index, text in enumerate(rest, start=1):
        if _SHELL_SIGN.fullmatch(text) and not _RUNS.fullmatch(name):
            message = f"'{text}' is a shell's sign, and there is no shell: the program gets it as an argument"
            hint = "write command: [sh, -c, …], or do it in the program"
            yield warn(f"{path}.command.{index}", message, hint, "no-shell")
        is_empty = getattr(spec, "cwd", "") == "temp" and "{" not in text
        if is_empty and not text.startswith(("/", "-")) and (subject.loaded.base_of(path) / text).is_file():
            message = f"'{text}' lies beside the spec, and the program starts in an empty folder"
            yield warn(f"{path}.command.{index}", message, "write cwd: .", "no-file")


def _function(subject: Subject, name: str, entry: Any) -> Iterator[Finding]:
    """A tool's own Python function beside its entry: parameters, types, what it raises and what it changes."""
    path, warn, inject = f"tools.{name}", subject.document.warning, tuple(getattr(entry, "inject", ()))
    node = _definition(subject, path, str(getattr(entry, "function", "")))
    if node is None:
        return
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    hints = {one.arg: ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None}
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {"self", "context", *inject}
    is_stub = any(kind_of("rewards", one).of_calls for one in subject.loaded.spec.rewards.values())
    lost = [one for one in names if one not in read and not one.startswith("_")]
    if lost and len(node.body) > 1 and not is_stub:
        message = f"the function never reads its parameter '{lost[0]}'"
        yield warn(f"{path}.function", message, "use it, or take it out", "unread-parameter")
    worlds = [one for one in names if one in subject.loaded.spec.resources and one not in inject]
    if lost := [one for one in worlds if hints.get(one, "") not in _TYPES]:
        message = f"the model fills in '{lost[0]}', which has the name of a resource: the function never sees that one"
        yield warn(f"{path}.function", message, f"write inject: [{lost[0]}]", "unread-parameter")
    tool = subject.tools.get(name)
    for argument, schema in (tool.parameters.get("properties", {}) if tool is not None else {}).items():
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        wanted, kinds = _TYPES.get(hints.get(argument, ""), kind), kind if isinstance(kind, list) else [kind]
        if wanted not in kinds and not (wanted == "number" and "integer" in kinds):
            message = f"'{argument}' is declared as {kind}, and the function takes {hints[argument]}"
            place = f"{path}.parameters" if subject.document.has(f"{path}.parameters") else path
            yield warn(place, message, f"write {wanted}", "other-type", at="key")
    if broad := sorted({"Exception", "BaseException"} & set(entry.errors)):
        message = f"'{broad[0]}' is every bug too, which the model is shown as its own mistake"
        yield warn(f"{path}.errors", message, "name the exceptions that a call can cause", "odd-policy", at="key")
    if raises := _undeclared(node, entry.errors):
        message = f"it raises {raises}, which 'errors' does not name: the model reads no more than that it failed"
        yield warn(f"{path}.function", message, f"write errors: [{raises}], or raise ToolFailed", "odd-policy")
    changed = {_root(part) for statement in ast.walk(node) for part in _changes(statement)}
    if (shared := sorted(changed & {*inject} & {*subject.loaded.spec.resources})) and not entry.mutates:
        message = f"the function changes '{shared[0]}', and 'mutates' is false: calls of one turn run at once"
        yield warn(f"{path}.function", message, "write mutates: true", "odd-policy")
    own = {*names, *(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))}
    if entry.mutates and (kept := sorted(changed - own - {""})):  # what does not mutate may keep what it has found
        message = f"the function changes '{kept[0]}' of its file, which all episodes share"
        yield warn(f"{path}.function", message, "keep it in a resource, and name that in inject", "shared-state")


def _definition(subject: Subject, path: str, place: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function behind `file.py:name`; None where it cannot be read, which is reported where it is compiled."""
    file, _, name = place.partition(":")
    try:
        module = ast.parse((subject.loaded.base_of(f"{path}.function") / file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    functions = (one for one in module.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next((one for one in functions if one.name == name), None)


def _undeclared(node: ast.AST, declared: Iterable[str]) -> str:
    """A built-in exception that a function raises, does not catch, and its entry does not declare; "" for none."""
    caught = {part for one in ast.walk(node) if isinstance(one, ast.Try) and one.handlers
              for statement in one.body for part in ast.walk(statement)}  # fmt: skip
    types = tuple(getattr(builtins, one, Exception) for one in declared)
    for one in ast.walk(node):
        if isinstance(one, ast.Raise) and one.exc is not None and one not in caught:
            name = ast.unparse(getattr(one.exc, "func", one.exc))
            raises = getattr(builtins, name, None)
            if isinstance(raises, type) and not issubclass(raises, types):
                return name
    return ""


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement changes in place."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        yield from (one for one in node.targets if isinstance(one, (ast.Subscript, ast.Attribute)))
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, (ast.Subscript, ast.Attribute)):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
        yield node.func.value


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _limits(subject: Subject) -> Iterator[Finding]:
    """One turn, in which nothing that anybody says is answered."""
    spec, warn = subject.loaded.spec, subject.document.warning
    if subject.limits.turns > 1:
        return
    # The calls alone are what single-call data asks for, whose rows declare their tools.
    offered = [tool for tool in subject.compiled.tools.values() if spec.tools[tool.entry].offered is not False]
    if not all(tool.ends for tool in offered):
        message = "with one turn no result of a tool is ever read"
        yield warn("limits.turns", message, "allow at least 2, or take the tools out", "limits")
    if spec.user is not None:
        yield warn("limits.turns", "with one turn the user never replies", "allow more", "limits")


def _nested(subject: Subject) -> Iterator[tuple[str, float, str, float | None]]:
    """Each limit that the spec gives and that stands inside another one: place, value, the other's place, its value."""
    spec, limits, document = subject.loaded.spec, subject.limits, subject.document
    turn = "limits.turn_s" if limits.turn_s and limits.turn_s < limits.episode_s else "limits.episode_s"
    turn_s = min(limits.episode_s, limits.turn_s or limits.episode_s)
    pairs: list[tuple[str, Any, str, float | None]] = [
        ("limits.calls_per_turn", limits.calls_per_turn, "limits.tool_calls", limits.tool_calls),
        ("limits.invalid_actions", limits.invalid_actions, "limits.turns", limits.turns),
        ("limits.turn_s", limits.turn_s, "limits.episode_s", limits.episode_s),
        ("observation.max_tokens", spec.observation.max_tokens, "limits.response_tokens", limits.response_tokens),
        ("calls.timeout_s", spec.calls.timeout_s, turn, turn_s),
        ("calls.attempt_s", spec.calls.attempt_s, "calls.timeout_s", spec.calls.timeout_s),
    ]
    for name, tool in spec.tools.items():
        path, timeout_s = f"tools.{name}", tool.timeout_s or spec.calls.timeout_s
        endpoint = getattr(tool, "endpoint", None) or ""
        pairs += [(f"{path}.{key}", getattr(tool, key, None), f"{path}.timeout_s", timeout_s)
                  for key in ("attempt_s", "cpu_s", "time_s")]  # fmt: skip
        pairs.append((f"{path}.timeout_s", tool.timeout_s, turn, turn_s))
        if endpoint in spec.endpoints:
            place = f"endpoints.{endpoint}.timeout_s"
            pairs.append((place, spec.endpoints[endpoint].timeout_s, f"{path}.timeout_s", timeout_s))
    for name, reward in spec.rewards.items():
        path = f"rewards.{name}"
        asked = {getattr(reward, "endpoint", None), *(one.endpoint for one in getattr(reward, "judges", ()))}
        pairs += [(f"endpoints.{one}.timeout_s", spec.endpoints[one].timeout_s, "limits.reward_s", limits.reward_s)
                  for one in sorted(asked & {*spec.endpoints})]  # fmt: skip
        total_s = getattr(reward, "timeout_s", None) if reward.kind == "tests" else None
        pairs.append((f"{path}.time_s", getattr(reward, "time_s", None), f"{path}.timeout_s", total_s))
        pairs.append((f"{path}.timeout_s", getattr(reward, "timeout_s", None), "limits.reward_s", limits.reward_s))
    yield from (pair for pair in pairs if isinstance(pair[1], (int, float)) and document.has(pair[0]))


def _state(subject: Subject) -> Iterator[Finding]:
    """Resources, and servers of MCP, that all episodes share, and that a tool changes."""
    servers = {name for name, one in subject.loaded.spec.tools.items() if getattr(one, "scope", "") == "process"}
    for tool in [one for one in subject.tools.values() if one.mutates and one.entry in servers][:1]:
        message = f"'{tool.name}' changes what all episodes share: there is one session of the server"
        yield subject.document.warning(f"tools.{tool.entry}", message, "write scope: episode", "shared-state", at="key")
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
            message, hint = f"{value:g} is more than anybody means", f"write {most:g} at most"
            if value < least:
                message, hint = f"{value:g} is too little to mean", f"write {least:g} at least"
            elif dotted.endswith("_s") and value >= 1_000:
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


def unmeasurable(subject: Subject, ways: Mapping[str, Mapping[tuple[str, int], Trajectory]]) -> Iterator[Finding]:
    """The first of the author's own terms that a way to play makes invalid: a policy would choose what is trained on.

    `ways` has the episodes of each way by split and row.
    """
    for way, results in ways.items():
        for (split, index), got in results.items():
            for name, term in got.reward.terms.items():
                if term.status == "invalid" and is_own(subject.loaded.spec.rewards[name]):
                    where = f"row {index + 1} of split '{split}'"
                    message = f"'{name}' cannot be measured for {way} ({where}): {term.error}"
                    hint = "mend the function, or return 0 for what a policy can cause"
                    yield subject.document.warning(f"rewards.{name}", message[:300], hint, "unmeasured", at="key")
                    return
