"""Warnings of tools, resources, endpoints and limits: what is unused, out of proportion, or cut before it ends."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rlenv._base.text import KeyPath, did_you_mean, parts_of, strings_in
from rlenv.checks.subject import PATTERNS, WORDS, Subject, gives_away
from rlenv.errors import EpisodeError, Finding, RlenvError
from rlenv.language.expressions import compile_expression, open_on
from rlenv.language.kinds import gold_in, is_own, kind_of
from rlenv.language.spec import OracleStep, ToolSpec
from rlenv.language.templates import TemplateError, compile_value
from rlenv.messages import ToolCall
from rlenv.policies.base import holds, read_calls
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

_LOOKED_AT: Final = 200
_READS_ARGS: Final = ("http", "command", "model", "agent")


def check_parts(subject: Subject) -> Iterator[Finding]:
    """Warnings of everything but rows, prompts, rewards and the oracle."""
    for check in (_unused, _conditions, _gold_calls, _one_turn, _nested, _shared_state, _numbers, _texts, _addresses):
        yield from check(subject)
    for name, spec in subject.loaded.spec.tools.items():
        yield from _check_tool(subject, name, spec)
        yield from _check_policies(subject, name, spec)
        if spec.kind == "command":
            yield from _check_command(subject, f"tools.{name}", spec)
    observation = subject.loaded.spec.observation.template
    if observation is not None and "result" not in observation:
        yield subject.say("no-result/template", "observation.template")
    for index, root in enumerate(subject.loaded.spec.roots):
        if root == "/":
            yield subject.say("unused-roots/whole-machine", f"roots.{index}")


def _unused(subject: Subject) -> Iterator[Finding]:
    """Constants, resources and endpoints that nothing names."""
    spec, document, code = subject.loaded.spec, subject.document, subject.code
    if code is None:
        return
    texts = list(strings_in(document.data, ()))
    offered = {name for name, one in spec.tools.items() if one.offered is not True}
    for _, row in subject.each() if offered else ():
        offered -= {tool.entry or tool.name for tool in _toolset(subject, row)}
    groups: dict[str, tuple[Mapping[str, Any], str]] = {
        "tool": ({name: spec.tools[name] for name in sorted(offered) if subject.is_whole}, "tools"),
        "constant": (spec.vars, "vars"),
        "resource": (spec.resources, "resources"),
        "endpoint": (spec.endpoints, "endpoints"),
    }
    for word, (entries, group) in groups.items():
        for name in entries:
            own = {one.name for one in subject.tools.values() if group == "tools" and one.entry == name}
            named = re.compile(rf"\b{re.escape(name)}\b")
            others = (text for path, text in texts if path[:2] != (group, name))
            elsewhere = [text for text in others if group != "vars" or group in text]
            # An alias of YAML may have taken over a constant.
            is_alias = group == "vars" and list(entries.values()).count(entries[name]) > 1
            if not is_alias and own.isdisjoint(elsewhere) and not any(map(named.search, (code, *elsewhere))):
                read = "no row is offered, and nothing else uses," if group == "tools" else "nothing reads"
                message, hint = f"{read} the {word} '{name}'", "use it, or take it out"
                yield document.warning((group, name), message, hint, f"unused-{word}", at="key")


def _toolset(subject: Subject, row: Mapping[str, Any]) -> Iterable[Tool]:
    try:
        return subject.toolset(row).tools.values()
    except EpisodeError:  # a fault of the row
        return ()


def _check_tool(subject: Subject, name: str, spec: ToolSpec) -> Iterator[Finding]:
    document, path = subject.document, f"tools.{name}"
    made = [tool for tool in subject.tools.values() if tool.entry == name or tool.name == name]
    for tool in made:
        given = spec.example.get(tool.name) if spec.example is not None and len(made) > 1 else spec.example
        check = ArgumentCheck(tool.parameters, tool=tool.name)
        if isinstance(given, Mapping) and not check.fits(dict(given)):
            yield subject.say("odd-example/unfit", f"{path}.example", tool.name, check.explain(given))
    takes_all = spec.kind == "agent" and not document.has(f"{path}.task")  # its row is what the model gives
    if made and spec.kind in _READS_ARGS and getattr(spec, "preset", None) is None and not takes_all:
        yield from _check_unread(subject, path, made[0])
    described = spec.description or (made[0].description if made else "")
    is_told = described or isinstance(getattr(spec, "tools", None), str)  # rows tell it
    if not is_told or PATTERNS.no_words.search(spec.description or ""):
        place = f"{path}.description"
        yield subject.say("no-description/of-tool", place if document.has(place) else path)


def _check_unread(subject: Subject, path: str, tool: Tool) -> Iterator[Finding]:
    entry, document = subject.document.get(path), subject.document
    rest = {key: value for key, value in entry.items() if key not in ("parameters", "description", "example")}
    texts = "\n".join(text for _, text in strings_in(rest, ()))
    read = {*re.findall(r"\bargs(?:\.|\[['\"])(\w+)", texts)}
    is_whole = re.search(r"\bargs\b(?!\s*[.\[])", texts) is not None
    for name in [name for name in tool.parameters.get("properties", {}) if name not in read and not is_whole]:
        place = f"{path}.parameters.{name}"
        yield subject.say("unread-parameter/of-template", place if document.has(place) else path, name, at="key")


def _check_policies(subject: Subject, name: str, spec: ToolSpec) -> Iterator[Finding]:
    """Calls that are repeated, kept or run at once and should not be."""
    path, document, tool = f"tools.{name}", subject.document, subject.tools.get(name)
    method = getattr(spec, "method", None)
    if tool is not None and not tool.mutates and method in ("DELETE", "PUT", "PATCH"):
        yield subject.say("odd-policy/undeclared-method", path, method, at="key")
    retries = spec.retries if spec.retries is not None else subject.loaded.spec.calls.retries
    does = PATTERNS.acts.match(spec.description or "")
    posts = method == "POST" or (method is None and getattr(spec, "body", None) is not None)
    if tool is not None and tool.idempotent and not tool.mutates and posts and does and retries != 0:
        yield subject.say("odd-policy/repeated-act", path, does[0], at="key")
    timeout_s = spec.timeout_s or subject.loaded.spec.calls.timeout_s
    if spec.rate_per_s is not None and 1 / spec.rate_per_s > timeout_s:
        yield subject.say("limits/rate", f"{path}.rate_per_s", 1 / spec.rate_per_s, timeout_s)
    if retries and timeout_s == (attempt_s := spec.attempt_s or subject.loaded.spec.calls.attempt_s):
        yield subject.say("limits/attempts", path, attempt_s, timeout_s, at="key")
    kinds = [kind_of("rewards", one) for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
    asks = any(kind.reads_answer or kind.gold for kind in kinds) and not all(kind.of_calls for kind in kinds)
    ends = tool is not None and spec.ends is True and subject.loaded.spec.answer.from_ != "tool"
    # What takes nothing, or changes something, may well be a last act.
    is_act = tool is not None and (tool.mutates or not tool.parameters.get("properties"))
    if ends and asks and not is_act and not PATTERNS.last_call.fullmatch(name):
        yield subject.say("ends-early/any-call", f"{path}.ends")
    failing = sorted({one for one in getattr(spec, "expect", None) or () if one >= 500 or one == 429})
    if failing and spec.kind == "http":
        yield subject.say("odd-policy/outage", f"{path}.expect", failing[0])
    cache = spec.cache or subject.loaded.spec.calls.cache
    if cache is not None and cache.key == "arguments" and PATTERNS.reads_task.search(str(document.get(path))):
        place = f"{path}.cache.key" if spec.cache is not None else "calls.cache.key"
        yield subject.say("shared-state/cache", place)
    if spec.cache is not None and tool is not None and (tool.mutates or not tool.idempotent):
        yield subject.say("idle-cache/of-tool", f"{path}.cache", at="key")


def _check_command(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """Programs that run what the model writes, and a shell's signs where there is no shell."""
    argv = tuple(getattr(spec, "command", ()))
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    is_shell = PATTERNS.runs.fullmatch(name) is not None
    # The program is the text behind -c; what follows it is data, and so is what a file of the author's reads.
    after = next((index for index, one in enumerate(rest) if not one.startswith("-")), len(rest))
    is_text = after > 0 and rest[after - 1] in ("-c", "-e", "-lc", "--eval")
    program = str(getattr(spec, "stdin", "")) if after == len(rest) else rest[after] if is_text else ""
    runs = is_shell and re.search(r"\bargs\b", program) is not None
    if runs and getattr(spec, "sandbox", "none") == "none":
        yield subject.say("no-sandbox/of-command", f"{path}.command", name)
    secrets = [key for key, text in getattr(spec, "env", {}).items() if text in subject.filled.secrets]
    if secrets and (name in ("env", "printenv", "set") or runs):
        yield subject.say("told-secret/environment", f"{path}.env", secrets[0], name, at="key")
    for index, text in enumerate(rest, start=1):
        is_own = is_shell or name in ("find", "expr", "test", "[") or index < 2 or argv[index - 1].startswith("-")
        if PATTERNS.shell_sign.fullmatch(text) and not is_own:
            yield subject.say("no-shell/sign", f"{path}.command.{index}", text)
        is_empty = getattr(spec, "cwd", "") == "temp" and "{" not in text
        if is_empty and not text.startswith(("/", "-")) and (subject.loaded.base_of(path) / text).is_file():
            yield subject.say("no-file/empty-folder", f"{path}.command.{index}", text)
        folder = subject.loaded.base_of(path) / getattr(spec, "cwd", "temp")
        is_script = index == 1 and is_shell and re.fullmatch(r"[\w./-]+\.(?:py|sh|js|rb|pl|R)", text)
        if is_script and folder.is_dir() and not (folder / text).exists():
            yield subject.say("no-file/missing", f"{path}.command.{index}", text, folder.name)


def _gold_calls(subject: Subject) -> Iterator[Finding]:
    """Gold calls that no tool of the row takes, and values of rows that a parameter's list lacks."""
    spec = subject.loaded.spec
    changing = "user_turn" in str(spec.tools)
    hidden = [tool for tool in subject.compiled.tools.values() if spec.tools[tool.entry].offered is False]
    for name, reward in spec.rewards.items():
        if not kind_of("rewards", reward).of_calls:
            continue
        fill, is_open = compile_value(gold_in(reward)), open_on(reward.gate)
        for where, row in ((where, row) for where, row in subject.each(_LOOKED_AT) if is_open(row)):
            offered = [*subject.tools.values()] if changing else [*_toolset(subject, row)]
            offered += hidden if reward.kind == "state" else []
            tools = {tool.name: tool.parameters.get("properties", {}) for tool in offered}
            schemas = {tool.name: tool.parameters for tool in offered}
            try:
                groups = read_calls(fill(task=row, vars=spec.vars), {key: (*value,) for key, value in tools.items()})
            except (TemplateError, RlenvError, TypeError):
                continue
            calls, place = [call for group in groups for call in group], f"rewards.{name}"
            if lost := [call.name for call in calls if call.name not in tools]:
                hint = did_you_mean(lost[0], tools, otherwise="mend the row")
                yield subject.say("gold-calls/no-tool", place, where, lost[0], hint, at="key")
                break
            given = [(key, tools[call.name]) for call in calls for key in call.arguments]
            if odd := [(key, known) for key, known in given if key not in known]:
                hint = did_you_mean(odd[0][0], odd[0][1], otherwise="mend the row")
                yield subject.say("gold-calls/no-argument", place, where, odd[0][0], hint, at="key")
                break
            # Lists of accepted values are BFCL's; where numbers may come as texts, a text fits.
            is_exact = reward.kind == "rule" and "coerce" not in str(subject.document.data.get("calls"))
            for call in calls if is_exact else ():
                check, given_call = ArgumentCheck(schemas[call.name], tool=call.name), dict(call.arguments)
                is_plain = not given_call or not all(isinstance(one, list) for one in given_call.values())
                if is_plain and not check.fits(given_call):
                    told = check.explain(given_call)[:160]
                    yield subject.say("gold-calls/unfit", place, where, call.name, told, at="key")
                    return
            if reward.kind != "state" and len(calls) > subject.limits.tool_calls:
                yield subject.say("gold-calls/too-many", place, where, len(calls), subject.limits.tool_calls, at="key")
                break
    columns = {column for split in subject.splits.values() for column in split.columns}
    for tool in subject.compiled.tools.values():
        for key in sorted(columns & {*tool.parameters.get("properties", {})}):
            schema = tool.parameters["properties"][key]
            known = [*map(str, (schema.get("enum") or ()) if isinstance(schema, Mapping) else ())]
            given_rows = [(where, row[key]) for where, row in subject.each() if isinstance(row.get(key), str)]
            lost_rows = [(where, value) for where, value in given_rows if value not in known]
            # A column of another meaning has none of the values.
            if lost_rows and {value.lower() for _, value in given_rows} & {one.lower() for one in known}:
                (where, value), place = lost_rows[0], f"tools.{tool.entry or tool.name}"
                hint = did_you_mean(value, known, otherwise="add it")
                given_values = (key, ", ".join(known)[:60], where, value[:40], hint)
                yield subject.say("odd-enum/value", place, *given_values, at="key")


def _conditions(subject: Subject) -> Iterator[Finding]:
    """Conditions over the row that hold for no row, or for all, and rows that no term pays."""
    spec, rows = subject.loaded.spec, list(subject.each())
    paid = {name: one for name, one in spec.rewards.items() if one.usual_weight > 0}
    gates = [open_on(one.gate) for one in paid.values() if not kind_of("rewards", one).form]
    asked = [(f"rewards.{name}.gate", one.gate, open_on(one.gate)) for name, one in spec.rewards.items() if one.gate]
    for index, step in enumerate(spec.steps):
        if step.when and "results" not in step.when and step.for_each is None:
            asked.append((f"oracle.{index}.when", step.when, partial(_is_taken, step, spec.vars)))
    for path, source, is_held in asked:
        columns: list[str] = re.findall(r"\btask\.(\w+)", source) if subject.is_whole else []
        opened = {bool(is_held(row)) for _, row in rows} if columns else set()
        # A column that is compared with nothing is guarded, and may well be filled in every row.
        is_idle = opened == {True} and len(rows) > 3 and path.endswith("gate") and not PATTERNS.guard.search(source)
        if opened == {False} or (is_idle and not compile_expression(source, by_row=True).names):
            values = list(dict.fromkeys(str(row.get(columns[0])) for _, row in rows))[:5]
            known = f"task.{columns[0]} is {', '.join(values)}"[:100]
            texts = re.findall(r"['\"]([^'\"]*)['\"]", source)[:1]
            near = known if is_idle else did_you_mean("".join(texts), values, otherwise=known)
            yield subject.say("idle-gate/every-row" if is_idle else "never-pays/no-row", path, source, near)
    filters = [(f"tasks.{name}.when", one.when) for name, one in spec.tasks.items() if one.when]
    for path, source in [*((path, source) for path, source, _ in asked), *filters]:
        for column in re.findall(r"\btask\.(\w+)\s*[<>=!]=?\s*-?\d", source):
            if rows and all(isinstance(row.get(column), str) for _, row in rows):
                yield subject.say("text-number/compared", path, column, rows[0][1][column])
    closed = [where for where, row in rows if gates and not any(is_open(row) for is_open in gates)]
    if closed and len(closed) < len(rows):
        yield subject.say("never-pays/unpaid-rows", "rewards", len(closed), closed[0], at="key")
    if spec.success is not None and any(one.gate for one in spec.rewards.values()):
        expression = compile_expression(spec.success, names=spec.rewards, by_row=True)
        opens = {name: open_on(spec.rewards[name].gate) for name in expression.names}
        each = [({name: 1.0 if is_open(row) else None for name, is_open in opens.items()}, row) for _, row in rows]
        can = rows and expression(dict.fromkeys(opens, 1.0), rows[0][1])
        if can and len(opens) > 1 and not any(expression(values, row) for values, row in each):
            yield subject.say("never-pays/success", "success")


def _is_taken(step: OracleStep, vars: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return holds(step, {"task": row, "vars": vars})


def _one_turn(subject: Subject) -> Iterator[Finding]:
    """One turn, in which nothing that anybody says is answered."""
    spec = subject.loaded.spec
    if subject.limits.turns > 1:
        return
    # The calls alone are what single-call data asks for, whose rows declare their tools, and what some terms look at.
    offered = [tool for tool in subject.compiled.tools.values() if spec.tools[tool.entry].offered is not False]
    kinds = [(kind_of("rewards", one), getattr(one, "rule", "")) for one in spec.rewards.values()]
    is_acted = any(kind.of_calls or rule == "tool_called" for kind, rule in kinds)
    if not is_acted and not all(tool.ends or tool.mutates for tool in offered):
        yield subject.say("limits/result-unread", "limits.turns")
    if spec.user is not None:
        yield subject.say("limits/user-silent", "limits.turns")


def _nested(subject: Subject) -> Iterator[Finding]:
    """Each limit that the spec gives and that stands inside a smaller one."""
    spec, document, pairs = subject.loaded.spec, subject.document, list[tuple[str, str]]()
    parts: dict[str, Any] = {"limits": subject.limits, "observation": spec.observation, "calls": spec.calls}
    parts |= {f"endpoints.{name}": entry for name, entry in spec.endpoints.items()}
    groups = {"tools": spec.tools, "rewards": spec.rewards}
    entries = {f"{group}.{name}": entry for group, held in groups.items() for name, entry in held.items()}
    for inner, outer in WORDS["nested"]:
        group = inner.partition(".*")[0]
        names = [name for name in entries if name.startswith(f"{group}.")] if "*" in inner else [group]
        pairs += [(inner.replace(f"{group}.*", name), outer.replace(f"{group}.*", name)) for name in names]
    for name, entry in entries.items():
        asked = {getattr(entry, "endpoint", None), *(judge.endpoint for judge in getattr(entry, "judges", ()))}
        outer = f"{name}.timeout_s" if name.startswith("tools.") else "limits.reward_s"
        pairs += [(f"endpoints.{endpoint}.timeout_s", outer) for endpoint in sorted(asked & {*spec.endpoints})]

    def value(place: str) -> float:
        name, _, key = place.rpartition(".")
        given = getattr((parts | entries)[name], key, None)
        usual = spec.calls.timeout_s if name.startswith("tools.") and key == "timeout_s" else math.inf
        return given if isinstance(given, (int, float)) else usual

    for inner, outer in pairs:
        if document.has(inner) and math.inf > value(inner) > value(outer):
            yield subject.say("limits/nested", inner, value(inner), outer, value(outer))


def _shared_state(subject: Subject) -> Iterator[Finding]:
    """Resources, and servers of MCP, that all episodes share, and that a tool changes."""
    servers = {name for name, one in subject.loaded.spec.tools.items() if getattr(one, "scope", "") == "process"}
    for tool in [one for one in subject.tools.values() if one.mutates and one.entry in servers][:1]:
        yield subject.say("shared-state/server", f"tools.{tool.entry}", tool.name, at="key")
    for name, spec in subject.loaded.spec.resources.items():
        if spec.scope != "process":
            continue
        for tool in subject.tools.values():
            entry = subject.document.get(f"tools.{tool.entry or tool.name}")
            texts = {text for _, text in strings_in(entry, ())}
            if tool.mutates and name in texts:
                yield subject.say("shared-state/resource", f"resources.{name}.scope", tool.name)


def _number_leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, float]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
    for key, item in parts_of(value):
        if key not in ("rows", "parameters", "schema", "vars", "oracle", "extra", "example", "dialect"):
            yield from _number_leaves(item, (*path, key))


def _numbers(subject: Subject) -> Iterator[Finding]:
    for path, value in _number_leaves(subject.document.data):
        dotted = ".".join(map(str, path))
        for pattern, least, most, code in WORDS["ranges"]:
            if not re.fullmatch(pattern, dotted) or least <= value <= most:
                continue
            size, bound, most_least = ("small", least, "least") if value < least else ("large", most, "most")
            hint = f"write {bound:g} at {most_least}"
            if dotted.endswith("_s") and 1_000 <= value < 1e9:
                hint = f"it is in seconds: {value:g} milliseconds are {value / 1_000:g}"
            yield subject.document.warning(path, f"{value} is too {size} to be meant", hint, code)
            break


def _texts(subject: Subject) -> Iterator[Finding]:
    """Places that nobody has filled in, and texts that a comment cuts."""
    for path, text in strings_in(subject.document.data, ()):
        is_address = path[-1] in ("model", "base_url", "api_key", "url") or "headers" in path
        is_address |= path[0] == "vars" and "://" in text
        if is_address and path[0] not in ("tasks", "prompt", "user") and (blank := PATTERNS.unfilled.search(text)):
            yield subject.say("unfinished/placeholder", path, blank[0])
        is_prompt = path[0] == "prompt" or path[-1] in ("prompt", "system")
        if is_prompt and path[-1] != "file" and re.fullmatch(r"[\w./-]+\.(?:md|txt|j2|jinja2?)", text):
            yield subject.say("unfinished/file", path, text)
        if path[0] in ("prompt", "user", "oracle") or path[-1] == "description":
            span = subject.document.value_span(path)
            raw = span.source.text[span.start :] if span.source is not None else ""
            # A remark that is meant as one has a space behind its sign.
            is_cut = re.match(r" #[^\s]", raw[span.end - span.start :]) and raw[:1] not in ("'", '"', "|", ">")
            is_text = re.match(r" #(?:\d|\{\{)", raw[span.end - span.start :]) is not None  # #1, and a value filled in
            if is_cut and (is_text or (re.search(r"[\w,;]$", text) and len(text.split()) > 3)):
                yield subject.say("unfinished/comment", path, text[-30:])


def _addresses(subject: Subject) -> Iterator[Finding]:
    """Keys that are sent in clear or twice, and servers without a path."""
    spec = subject.loaded.spec
    for name, endpoint in spec.endpoints.items():
        path = f"endpoints.{name}"
        if PATTERNS.no_path.fullmatch(endpoint.base_url):
            yield subject.say("address/no-path", f"{path}.base_url")
        if endpoint.api_key is not None and "authorization" in {key.lower() for key in endpoint.headers}:
            yield subject.say("idle-key/header-too", f"{path}.headers", at="key")
        if endpoint.api_key is not None and PATTERNS.far.match(endpoint.base_url):
            yield subject.say("address/key-in-clear", f"{path}.base_url", "'api_key'")
    for name, entry in spec.tools.items():
        keys = [key for key in getattr(entry, "headers", ()) if re.search(r"(?i)auth|key|token|secret", key)]
        if keys and PATTERNS.far.match(str(getattr(entry, "url", ""))):
            yield subject.say("address/key-in-clear", f"tools.{name}.url", f"the header '{keys[0]}'")


_Episodes = Mapping[tuple[str, int], Trajectory]
"""Episodes by split and row."""


def unmeasurable(subject: Subject, ways: Mapping[str, _Episodes], oracle: _Episodes) -> Iterator[Finding]:
    """The first term that a way to play makes invalid: a policy would choose what is trained on."""
    for way, key, got in ((way, key, got) for way, results in ways.items() for key, got in results.items()):
        is_known = key in oracle and oracle[key].reward.total is not None
        for name, term in got.reward.terms.items():
            if term.status == "invalid" and (is_known or is_own(subject.loaded.spec.rewards[name])):
                case = "self-masking/wrong-answer" if is_known else "unmeasured/any-answer"
                given = (name, way, key[1] + 1, key[0], term.error[:160])
                yield subject.say(case, f"rewards.{name}", *given, at="key")
                return


def told_by_tools(
    subject: Subject, told: Mapping[str, Mapping[tuple[str, int], str]], oracle: _Episodes
) -> Iterator[Finding]:
    """Tools that tell what is right whatever they are asked, and those that tell the oracle the same each time."""
    called: dict[str, list[tuple[str, str]]] = {}
    places = {name: f"tools.{subject.tools[name].entry or name}" for name in told}
    for turn in (turn for got in oracle.values() for turn in got.turns):
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall) and result.name in told and not subject.tools[result.name].mutates:
                called.setdefault(call.name, []).append((str(call.arguments), result.text.strip()))
    for name, results in told.items():
        pairs = [(oracle[key].answer or "", text) for key, text in results.items() if key in oracle]
        # What the oracle calls is the way to the answer, and a passage that holds it is to be read.
        shows = name not in called and all(gives_away(gold, text) for gold, text in pairs)
        if shows and len(pairs) > 1 and len({text for _, text in pairs}) > 1:
            yield subject.say("gold-in-tool/any-call", places[name], pairs[0][1][:60], at="key")
    for name, calls in called.items():
        texts = {text for _, text in calls}
        if len({given for given, _ in calls}) > 2 and len(texts) == 1 and PATTERNS.nothing.fullmatch(min(texts)[:200]):
            yield subject.say("empty-result/of-oracle", places[name], len(calls), calls[0][1][:40], at="key")


Told = Iterator[tuple[str, KeyPath, Sequence[Any]]]
"""What is odd in an episode: its key in odd.toml, place, and what is given; each is said once for its first value."""


def cut_answers(got: Trajectory, where: str) -> Told:
    """Results that are cut just where the answer stood, or a part of it."""
    answer = (got.answer or "").strip()
    said = [turn.observation.messages for turn in got.turns if turn.observation is not None]
    told = [message.content for message in (*got.messages, *itertools.chain.from_iterable(said))]
    full = [result.text for turn in got.turns for result in turn.results]
    parts = [part for part in re.split(r"\s*[,;\n]\s*", answer) if len(part) > 1]
    unseen = [part for part in (answer, *parts) if not any(part in text for text in told)]
    lost = [part for part in unseen if len(part) > 3 and any(part in text for text in full)]
    if len(parts) > 2 and 0 < len({*parts} & {*unseen}) < len(parts) and re.search(r"\(\d+ more rows?\)", str(told)):
        lost = [part for part in parts if part in unseen]
    if lost:
        yield "cut-answer/of-results", ("observation",), ("observation", where, lost[0][:40])


def empty_golds(got: Trajectory, where: str) -> Told:
    """Gold calls of a table that give no row: whatever finds nothing is right."""
    for name, term in got.reward.terms.items():
        told = term.details.get("verified_results", {}).get("expected", ())
        if term.details.get("gold_rows") == 0 or any(text.endswith("\n(no rows)") for text in told):
            yield "gold-query/empty", ("rewards", name, "expect"), (name, where)
