"""Warnings of tools, resources, endpoints and limits: what is unused, out of proportion, or cut before it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.subject import PATTERNS, WORDS, Subject
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
    yield from _unused(subject)
    for name, spec in subject.loaded.spec.tools.items():
        yield from _tool(subject, name, spec)
        yield from _policies(subject, name, spec)
        if spec.kind == "command":
            yield from _command(subject, f"tools.{name}", spec)
    yield from _conditions(subject)
    yield from _values(subject)
    yield from _limits(subject)
    for path, value, outer, most in _nested(subject):
        if most is not None and value > most:
            yield subject.say("limits/allowed-ends", path, value, outer, most)
    yield from _state(subject)
    observation = subject.loaded.spec.observation.template
    if observation is not None and "result" not in observation:
        yield subject.say("no-result/template-never", "observation.template")
    yield from _numbers(subject)
    yield from _texts(subject)
    yield from _addresses(subject)
    for index, root in enumerate(subject.loaded.spec.roots):
        if root == "/":
            yield subject.say("unused-roots/rows-name", f"roots.{index}")


def _unused(subject: Subject) -> Iterator[Finding]:
    """Constants, resources and endpoints that nothing names."""
    spec, document = subject.loaded.spec, subject.document
    texts = list(strings_in(document.data, ()))
    code = subject.code
    had = {tool.entry or tool.name for split in subject.splits.values() for row in split.rows[:_LOOKED_AT]
           for tool in _toolset(subject, row)}  # fmt: skip
    offered = {name: one for name, one in spec.tools.items() if one.offered is not True and name not in had}
    groups: dict[str, tuple[Mapping[str, Any], str]] = {
        "tools": (offered, "tool"),
        "vars": (spec.vars, "constant"),
        "resources": (spec.resources, "resource"),
        "endpoints": (spec.endpoints, "endpoint"),
    }
    for group, (entries, word) in groups.items():
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
                yield subject.say("odd-example/call-takes", f"{path}.example", tool.name, check.explain(given))
    takes_all = spec.kind == "agent" and not document.has(f"{path}.task")  # its row is what the model gives
    is_filled = getattr(spec, "preset", None) is None and not takes_all
    if made and spec.kind in _READS_ARGS and is_filled:
        yield from _unread(subject, path, made[0])
    described = spec.description or (made[0].description if made else "")
    if spec.description and PATTERNS.no_words.search(spec.description):
        yield subject.say("no-description/tells-model", f"{path}.description", spec.description.strip()[:40])
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
        yield subject.say("odd-policy/request-changes", path, method, at="key")
    retries = spec.retries if spec.retries is not None else subject.loaded.spec.calls.retries
    does = PATTERNS.acts.search(f"{name} {spec.description}".replace("_", " "))
    posts = method == "POST" or (method is None and getattr(spec, "body", None) is not None)
    if tool is not None and tool.idempotent and not tool.mutates and posts and does and retries != 0:
        yield subject.say("odd-policy/idempotent-entry", path, does[0], at="key")
    timeout_s = spec.timeout_s or subject.loaded.spec.calls.timeout_s
    if spec.rate_per_s is not None and 1 / spec.rate_per_s > timeout_s:
        yield subject.say("limits/call-waits", f"{path}.rate_per_s", 1 / spec.rate_per_s, timeout_s)
    kinds = [kind_of("rewards", one) for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
    asks = any(kind.reads_answer or kind.gold for kind in kinds) and not all(kind.of_calls for kind in kinds)
    ends = tool is not None and spec.ends is True and subject.loaded.spec.answer.from_ != "tool"
    if ends and asks and not PATTERNS.last_call.fullmatch(name):
        yield subject.say("ends-early/first-call", f"{path}.ends")
    failing = sorted({one for one in getattr(spec, "expect", None) or () if one >= 500 or one == 429})
    if failing and spec.kind == "http":
        yield subject.say("odd-policy/counts-answer", f"{path}.expect", failing[0])
    cache = spec.cache or subject.loaded.spec.calls.cache
    entry = {key: value for key, value in (document.get(path) or {}).items() if key != "description"}
    if cache is not None and cache.key == "arguments" and "task" in str(entry):
        place = f"{path}.cache.key" if spec.cache is not None else "calls.cache.key"
        yield subject.say("shared-state/reads-task", place)
    if spec.cache is not None and tool is not None and (tool.mutates or not tool.idempotent):
        yield subject.say("idle-cache/nothing-kept", f"{path}.cache", at="key")


def _command(subject: Subject, path: str, spec: ToolSpec) -> Iterator[Finding]:
    """Programs that run what the model writes, and a shell's signs where there is no shell."""
    argv = tuple(getattr(spec, "command", ()))
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    runs = {"-c", "-e", "-lc", "--eval"} & {*rest} and any(re.search(r"\bargs\b", one) for one in rest)
    is_free = getattr(spec, "sandbox", "none") == "none"
    if PATTERNS.runs.fullmatch(name) and is_free and (runs or re.search(r"\bargs\b", str(getattr(spec, "stdin", "")))):
        yield subject.say("no-sandbox/runs-model", f"{path}.command", name)
    secrets = [key for key, text in getattr(spec, "env", {}).items() if text in subject.filled.secrets]
    if secrets and (name in ("env", "printenv", "set") or (PATTERNS.runs.fullmatch(name) and runs)):
        yield subject.say("told-secret/model-read", f"{path}.env", secrets[0], name, at="key")
    for index, text in enumerate(rest, start=1):
        if PATTERNS.shell_sign.fullmatch(text) and not PATTERNS.runs.fullmatch(name):
            yield subject.say("no-shell/s-sign", f"{path}.command.{index}", text)
        is_empty = getattr(spec, "cwd", "") == "temp" and "{" not in text
        if is_empty and not text.startswith(("/", "-")) and (subject.loaded.base_of(path) / text).is_file():
            yield subject.say("no-file/lies-beside", f"{path}.command.{index}", text)


def _values(subject: Subject) -> Iterator[Finding]:
    """Gold calls that no tool of the row takes, and values of rows that a parameter's list lacks."""
    spec, warn = subject.loaded.spec, subject.document.warning
    of_calls = {name: one for name, one in spec.rewards.items() if kind_of("rewards", one).of_calls}
    for name, reward in of_calls.items():
        fill = compile_value(gold_in(reward))
        for where, row in subject.each(_LOOKED_AT):
            offered = subject.tools.values() if "user_turn" in str(spec.tools) else _toolset(subject, row)
            tools = {tool.name: tool.parameters.get("properties", {}) for tool in offered}
            try:
                groups = read_calls(fill(task=row, vars=spec.vars), {key: (*value,) for key, value in tools.items()})
            except (TemplateError, RlenvError, TypeError):
                continue
            calls = [call for group in groups for call in group]
            lost = next((call for call in calls if call.name not in tools), None)
            argument = next(
                (key for call in calls for key in call.arguments if key not in tools.get(call.name, {key})), ""
            )
            if lost is not None or argument or len(calls) > subject.limits.tool_calls:
                known = [*tools] if lost else [key for call in calls for key in tools.get(call.name, ())]
                what = f"calls '{lost.name}', which is no tool" if lost else f"gives '{argument}', which no tool takes"
                message = f"the gold value of {where} {what if lost or argument else f'makes {len(calls)} calls'}"
                hint = did_you_mean(lost.name if lost else argument, known, otherwise="mend the row, or the limit")
                yield warn(f"rewards.{name}", message, hint, "gold-calls", at="key")
                break
    for tool in subject.compiled.tools.values():
        for key, schema in tool.parameters.get("properties", {}).items():
            known = (
                [one for one in schema.get("enum") or () if isinstance(one, str)] if isinstance(schema, Mapping) else []
            )
            columns = {column for split in subject.splits.values() for column in split.columns}
            for column in sorted(columns) if known else ():
                given = [(where, row[column]) for where, row in subject.each() if isinstance(row.get(column), str)]
                lost_rows = [(where, value) for where, value in given if value not in known]
                if lost_rows and (2 * len(lost_rows) <= len(given) or key == column):
                    where, value = lost_rows[0]
                    message = f"'{key}' takes {', '.join(known)[:60]}, and task.{column} of {where} is {value[:40]!r}"
                    hint = did_you_mean(value, known, otherwise="add it")
                    yield warn(f"tools.{tool.entry or tool.name}", message, hint, "odd-enum", at="key")
                    break


def _conditions(subject: Subject) -> Iterator[Finding]:
    """Conditions over the row that hold for no row, or for all, and rows that no term pays."""
    spec, warn, rows = subject.loaded.spec, subject.document.warning, list(subject.each())
    paid = {name: one for name, one in spec.rewards.items() if one.usual_weight > 0}
    gates = [open_on(one.gate) for one in paid.values() if not kind_of("rewards", one).form]
    asked = [(f"rewards.{name}.gate", one.gate, open_on(one.gate)) for name, one in spec.rewards.items() if one.gate]
    for index, step in enumerate(spec.steps):
        if step.when and "results" not in step.when and step.for_each is None:
            asked.append((f"oracle.{index}.when", step.when, partial(_takes, step, vars=spec.vars)))
    for path, source, is_held in asked:
        columns, opened = re.findall(r"\btask\.(\w+)", source), {bool(is_held(row)) for _, row in rows}
        is_idle = (
            opened == {True} and len(rows) > 3 and path.endswith("gate") and compile_expression(source, by_row=True)
        )
        if columns and (opened == {False} or (is_idle and not is_idle.names)):
            values = list(dict.fromkeys(str(row.get(columns[0])) for _, row in rows))[:5]
            known = f"task.{columns[0]} is {', '.join(values)}"[:100]
            said = "every row: it decides nothing" if is_idle else "no row: it never counts"
            near = did_you_mean("".join(re.findall(r"['\"]([^'\"]*)['\"]", source)[:1]), values, otherwise=known)
            yield warn(path, f"'{source}' holds for {said}; {known}", near, "idle-gate" if is_idle else "never-pays")
    filters = [(f"tasks.{name}.when", one.when) for name, one in spec.tasks.items() if one.when]
    for path, source in [*((path, source) for path, source, _ in asked), *filters]:
        for column in re.findall(r"\btask\.(\w+)\s*[<>=!]=?\s*-?\d", source):
            if rows and all(isinstance(row.get(column), str) for _, row in rows):
                yield subject.say("text-number/compares", path, column, rows[0][1][column])
    closed = [where for where, row in rows if gates and not any(is_open(row) for is_open in gates)]
    if closed and len(closed) < len(rows):
        yield subject.say("never-pays/term-paid", "rewards", len(closed), closed[0], at="key")
    if spec.success is not None and any(one.gate for one in spec.rewards.values()):
        expression = compile_expression(spec.success, names=spec.rewards, by_row=True)
        opens = {name: open_on(spec.rewards[name].gate) for name in expression.names}
        each = [({name: 1.0 if is_open(row) else None for name, is_open in opens.items()}, row) for _, row in rows]
        can = rows and expression(dict.fromkeys(opens, 1.0), rows[0][1])
        if can and len(opens) > 1 and not any(expression(values, row) for values, row in each):
            yield subject.say("never-pays/row-opens", "success")
    for name, split in subject.splits.items():
        told = [one.get("success") for row in split.rows if isinstance(one := row.get("measured"), Mapping)]
        shares = [share for share in told if isinstance(share, (int, float))]
        if shares and "measured" in str(spec.tasks[name].when) and (min(shares) >= 0.9 or max(shares) <= 0):
            what = "solved nearly always" if min(shares) > 0 else "never solved"
            yield subject.say("idle-limit/keeps-tasks", f"tasks.{name}.when", what)


def _takes(step: OracleStep, row: Mapping[str, Any], **values: Any) -> bool:
    return holds(step, {"task": row, **values})


def _limits(subject: Subject) -> Iterator[Finding]:
    """One turn, in which nothing that anybody says is answered."""
    spec, warn = subject.loaded.spec, subject.document.warning
    if subject.limits.turns > 1:
        return
    # The calls alone are what single-call data asks for, whose rows declare their tools.
    offered = [tool for tool in subject.compiled.tools.values() if spec.tools[tool.entry].offered is not False]
    is_acted = any(kind_of("rewards", one).of_calls or one.kind == "state" for one in spec.rewards.values())
    if not is_acted and not all(tool.ends for tool in offered):
        yield subject.say("limits/turn-result", "limits.turns")
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
        yield subject.say("shared-state/changes-episodes", f"tools.{tool.entry}", tool.name, at="key")
    for name, spec in subject.loaded.spec.resources.items():
        if spec.scope != "process":
            continue
        for tool in subject.tools.values():
            entry = subject.document.get(f"tools.{tool.entry or tool.name}")
            texts = {text for _, text in strings_in(entry, ())}
            if tool.mutates and name in texts:
                yield subject.say("shared-state/tool-changes", f"resources.{name}.scope", tool.name)


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
        for pattern, least, most, code in WORDS["ranges"]:
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
    for path, text in strings_in(subject.document.data, ()):
        is_address = path[-1] in ("model", "base_url", "api_key", "url") or "headers" in path or path[0] == "vars"
        if is_address and path[0] not in ("tasks", "prompt", "user") and (blank := PATTERNS.unfilled.search(text)):
            yield subject.say("unfinished/stands-something", path, blank[0])
        if path[0] in ("prompt", "user", "oracle") or path[-1] == "description":
            span = subject.document.value_span(path)
            raw = span.source.text[span.start :] if span.source is not None else ""
            is_cut = re.match(r" #", raw[span.end - span.start :]) and raw[:1] not in ("'", '"', "|", ">")
            if is_cut and re.search(r"[\w,;]$", text) and len(text.split()) > 3:
                yield subject.say("unfinished/begins-comment", path, text[-30:])


def _addresses(subject: Subject) -> Iterator[Finding]:
    """Keys that are sent in clear or twice, and servers without a path."""
    spec = subject.loaded.spec
    for name, endpoint in spec.endpoints.items():
        path = f"endpoints.{name}"
        if not re.search(r"/v\d+\w*/?$|\{|\$", endpoint.base_url) and endpoint.base_url.count("/") <= 3:
            yield subject.say("address/has-path", f"{path}.base_url")
        if endpoint.api_key is not None and "authorization" in {key.lower() for key in endpoint.headers}:
            yield subject.say("idle-key/api-header", f"{path}.headers", at="key")
        if endpoint.api_key is not None and PATTERNS.far.match(endpoint.base_url):
            yield subject.say("address/key-sent", f"{path}.base_url")
    for name, entry in spec.tools.items():
        keys = [key for key in getattr(entry, "headers", ()) if re.search(r"(?i)auth|key|token|secret", key)]
        if keys and PATTERNS.far.match(str(getattr(entry, "url", ""))):
            yield subject.say("address/header-sent", f"tools.{name}.url", keys[0])


_Episodes = Mapping[tuple[str, int], Trajectory]
"""Episodes by split and row."""


def unmeasurable(subject: Subject, ways: Mapping[str, _Episodes], oracle: _Episodes) -> Iterator[Finding]:
    """The first term that a way to play makes invalid: a policy would choose what is trained on."""
    for way, results in ways.items():
        for key, got in results.items():
            is_known = key in oracle and oracle[key].reward.total is not None
            for name, term in got.reward.terms.items():
                if term.status == "invalid" and (is_known or is_own(subject.loaded.spec.rewards[name])):
                    slug = "self-masking/wrong-answers" if is_known else "unmeasured/any-answers"
                    yield subject.say(
                        slug, f"rewards.{name}", name, way, key[1] + 1, key[0], term.error[:160], at="key"
                    )
                    return


def told_by_tools(subject: Subject, told: Mapping[str, Sequence[str]], oracle: _Episodes) -> Iterator[Finding]:
    """Tools that tell what is right whatever they are asked, and those that tell the oracle the same each time."""
    golds, called = [one.answer or "" for one in oracle.values()], dict[str, list[tuple[str, str]]]()
    places = {name: f"tools.{subject.tools[name].entry or name}" for name in told}
    for name, results in told.items():
        pairs = [*zip(golds, results, strict=False)]
        shows = [len(gold) > 1 and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text) for gold, text in pairs]
        if len(pairs) > 1 and len({*results}) > 1 and all(shows):
            yield subject.say("gold-in-tool/call-any", places[name], results[0][:60], at="key")
    for turn in (turn for got in oracle.values() for turn in got.turns):
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall) and result.name in told and not subject.tools[call.name].mutates:
                called.setdefault(call.name, []).append((str(call.arguments), result.text.strip()))
    for name, calls in called.items():
        texts = {text for _, text in calls}
        if len({given for given, _ in calls}) > 2 and len(texts) == 1 and PATTERNS.nothing.fullmatch(*texts):
            yield subject.say("empty-result/each-calls", places[name], len(calls), calls[0][1][:40], at="key")


Told = Iterator[tuple[str, tuple[str | int, ...], str, str, str]]
"""What is odd in an episode: a key that is said once, place, message, hint and code."""


def cut_answers(got: Trajectory, where: str) -> Told:
    """Results that are cut just where the answer stood, or a part of it."""
    answer = (got.answer or "").strip()
    told = [message.content for turn in got.turns if turn.observation for message in turn.observation.messages]
    full = [result.text for turn in got.turns for result in turn.results]
    parts = [part for part in re.split(r"\s*[,;\n]\s*", answer) if len(part) > 1]
    unseen = [part for part in (answer, *parts) if not any(part in text for text in told)]
    lost = [part for part in unseen if len(part) > 1 and any(part in text for text in full)]
    if len(parts) > 2 and 0 < len({*parts} & {*unseen}) < len(parts) and re.search(r"\(\d+ more rows?\)", str(told)):
        lost = [part for part in parts if part in unseen]
    if lost:
        message = f"the results that the model sees of {where} do not show {lost[0][:40]!r}, which they hold"
        yield "cut", ("observation",), message, "raise observation.max_chars, or show more", "cut-answer"


def empty_golds(got: Trajectory, where: str) -> Told:
    """Gold calls of a table that give no row: whatever finds nothing is right."""
    for name, term in got.reward.terms.items():
        told = term.details.get("verified_results", {}).get("expected", ())
        if term.details.get("gold_rows") == 0 or any(text.endswith("\n(no rows)") for text in told):
            message = f"the gold query of {where} gives no row: whatever finds nothing earns '{name}'"
            yield f"empty {name}", ("rewards", name, "expect"), message, "mend the row", "gold-query"
