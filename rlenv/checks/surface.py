"""Checks of the model's side (tools, answer, observations, a dialect of its own), gates and `success`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rlenv import dialects
from rlenv._base.text import did_you_mean
from rlenv.checks.sites import Stub
from rlenv.checks.subject import Subject
from rlenv.dialects.base import Dialect, RowFault, calls_of, fault_of, place_of_form
from rlenv.dialects.built_in import whole_row
from rlenv.episodes.compile import messages_of
from rlenv.errors import EpisodeError, Finding, UsageError
from rlenv.language.dialect import DialectSpec
from rlenv.language.expressions import ExpressionError, compile_expression
from rlenv.language.kinds import kind_of
from rlenv.language.spec import RewardSpec
from rlenv.messages import Message
from rlenv.rewards import answer as answers
from rlenv.rewards.answer import compile_pattern

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_surface(subject: Subject) -> Iterator[Finding]:
    """Faults of tool names, `answer` and `observation`."""
    yield from _check_tools(subject)
    yield from _check_row_tools(subject)
    yield from _check_answer(subject)
    yield from _check_observation(subject)
    yield from _check_report_by(subject)
    yield from _check_delays(subject)
    yield from _check_messages(subject)


def _check_messages(subject: Subject) -> Iterator[Finding]:
    """Rows whose `prompt.messages` are none, or end with no message that a policy could answer."""
    shown = subject.compiled.prompt
    data = [one for one in shown if one.role is None and "resources" not in {path[0] for each in one.templates
                                                                            for path in each.paths}]  # fmt: skip
    ends = shown[-1:] if shown and (shown[-1].role is not None or shown[-1] in data) else ()
    for split in subject.splits.values() if subject.loaded.spec.prompt.shown else ():
        for index, row in enumerate(split.rows):
            values = {"task": row, "vars": subject.loaded.spec.vars, "resources": {}}
            place, where = "prompt.messages", f"row {index + 1} of split '{split.name}'"
            try:
                said: Sequence[Message] = ()
                for one in data:
                    place, said = one.path, messages_of(one, values)
                last = said[-1:] if ends and ends[0] in data else [Message(one.role or "user", "") for one in ends]
            except EpisodeError as error:
                why = str(error).partition(": ")[2]
                yield subject.document.fault(place, f"for {where}: {why}", "write {role: user, content: TEXT}")
                return
            if last and last[0].role not in ("user", "tool") and subject.loaded.spec.user is None:
                message = f"for {where} the prompt ends with the {last[0].role}'s message; expected the user's"
                yield subject.document.fault("prompt.messages", message, "add 'user: TEXT' to the prompt")
                return


def _check_tools(subject: Subject) -> Iterator[Finding]:
    for name in subject.loaded.spec.tools:
        if not _TOOL_NAME.fullmatch(name):
            message = f"'{name}' is no name that models can call; expected 1 to 64 letters, digits, '_' or '-'"
            hint = f"write '{re.sub(r'[^a-zA-Z0-9_-]+', '_', name)[:64].strip('_') or 'tool'}'"
            yield subject.document.fault(("tools", name), message, hint, at="key")


def _check_row_tools(subject: Subject) -> Iterator[Finding]:
    entries = subject.loaded.spec.tools.items()
    by_row = [name for name, entry in entries if str in (type(entry.offered), type(getattr(entry, "tools", None)))]
    if not by_row or subject.compiled.faults:
        return
    for name, split in subject.splits.items():
        wrong: list[str] = []
        for index, row in enumerate(split.rows):
            try:
                subject.toolset(row)
            except EpisodeError as error:
                wrong.append(f"row {index + 1}: {error}")
        if wrong:
            message = f"{len(wrong)} of {len(split.rows)} rows of split '{name}' have no tools; {wrong[0]}"
            place = next((entry for entry in by_row if f"tools.{entry}." in wrong[0]), by_row[0])
            yield subject.document.fault(f"tools.{place}", message, "fill the column in", at="key")


def _check_answer(subject: Subject) -> Iterator[Finding]:
    spec, document = subject.loaded.spec.answer, subject.document
    rule = spec.from_
    for key, owner in (("pattern", "regex"), ("tool", "tool"), ("argument", "tool"), ("tag", "tag")):
        if document.has(f"answer.{key}") and rule != owner:
            message = f"'{key}' is read only with 'from: {owner}'; found 'from: {rule}'"
            yield document.fault(f"answer.{key}", message, f"write from: {owner}, or remove '{key}'", at="key")
    if rule == "tool":
        yield from _check_answer_tool(subject)
    try:
        answers.check(spec)
    except UsageError as error:
        yield document.fault(error.key, error.message, error.hint)
        return
    if rule == "tag":
        yield from _check_answer_tag(subject, spec.tag)
    if rule == "regex" and spec.pattern is not None and compile_pattern(spec.pattern).groups == 0:
        message = "the pattern has no group; its first group is the answer"
        yield document.fault("answer.pattern", message, f"write ({spec.pattern})")


def _check_answer_tag(subject: Subject, tag: str) -> Iterator[Finding]:
    """A tag that the dialect reads as thinking or as a call never comes to the answer rule."""
    given = subject.loaded.spec.dialect
    if "dialect" in subject.compiled.broken or (not isinstance(given, str) and dialects.findings_of(given)):
        return  # reported with the dialect
    dialect = dialects.get(given) if isinstance(given, str) else dialects.inline(given)
    for text in (f"<{tag}>1</{tag}>", f'<{tag}>{{"name": "x", "arguments": {{}}}}</{tag}>'):
        read = dialect.parse(dialect.render_action(Message("assistant", text)), subject.tools)
        if answers.extract(subject.loaded.spec.answer, read) is None:
            what = "a call" if read.calls else "thinking"
            place = "answer.tag" if subject.document.has("answer.tag") else "answer"
            message = f"the dialect reads <{tag}> as {what}, so that no answer is ever found"
            yield subject.document.fault(place, message, "write tag: answer", at="value" if "." in place else "key")
            return


def _check_report_by(subject: Subject) -> Iterator[Finding]:
    for name, source in subject.loaded.spec.tasks.items():
        split = subject.splits.get(name)
        if source.report_by is None or split is None:
            continue
        lacking = len(split.rows) - split.columns.get(source.report_by, 0)
        if lacking:
            others = [column for column in split.columns if column != source.report_by]
            fix = f"fill it in, or name one of: {', '.join(others) or 'none'}"
            hint = did_you_mean(source.report_by, others, otherwise=fix)
            message = f"{lacking} of {len(split.rows)} rows of split '{name}' lack the column '{source.report_by}'"
            yield subject.document.fault(f"tasks.{name}.report_by", message, hint)


def _check_delays(subject: Subject) -> Iterator[Finding]:
    places = ["calls.faults", *(f"tools.{name}.faults" for name in subject.loaded.spec.tools)]
    for place in places:
        pair = subject.document.get(f"{place}.delay_s.range")
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, (int, float)) for end in pair):
            low, high = pair
            if not low <= high < math.inf:
                message = f"found [{low:g}, {high:g}]; expected the shortest delay first, and finite ones"
                yield subject.document.fault(f"{place}.delay_s.range", message, f"write [{high:g}, {low:g}]")


def _check_answer_tool(subject: Subject) -> Iterator[Finding]:
    spec, document = subject.loaded.spec.answer, subject.document
    if spec.tool is None or subject.lacks("tools", spec.tool):
        return
    tool = subject.tools.get(spec.tool)
    if tool is None:
        hint = did_you_mean(spec.tool, subject.tool_names, "tools")
        yield document.fault("answer.tool", f"there is no tool '{spec.tool}'", hint)
        return
    properties: dict[str, Any] = dict(tool.parameters.get("properties", {}))
    if spec.argument is None and len(properties) != 1:
        found = f"'{spec.tool}' takes {len(properties)} arguments, so which one is the answer must be named"
        hint = f"add 'argument: {next(iter(properties), 'NAME')}'"
        yield document.fault("answer.tool", found, hint)
    elif spec.argument is not None and spec.argument not in properties:
        hint = did_you_mean(spec.argument, properties, "it takes")
        yield document.fault("answer.argument", f"'{spec.tool}' takes no '{spec.argument}'", hint)


def _check_observation(subject: Subject) -> Iterator[Finding]:
    spec, document = subject.loaded.spec.observation, subject.document
    if spec.template is not None and spec.format != "template":
        message = f"'template' is read only with 'format: template'; found 'format: {spec.format}'"
        yield document.fault("observation.template", message, "add 'format: template'", at="key")
    if spec.template is None and spec.format == "template":
        message = "'format: template' needs a template"
        yield document.fault("observation.format", message, "add 'template: \"{{ result }}\"'")


def check_dialect(subject: Subject) -> Iterator[Finding]:
    """Faults of a dialect that the spec defines itself."""
    given = subject.loaded.spec.dialect
    if isinstance(given, str):
        return
    try:
        row = whole_row("inline", given)
    except KeyError:
        return  # reported where it is compiled
    for finding in _findings(subject, given, row):
        yield fault_of(subject.document, finding)


def _findings(subject: Subject, given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    findings = dialects.findings_of(given)
    yield from findings
    yield from _check_called(subject, row)
    if given.chat_template is not None:
        # The conversation is the template's own, whatever reads the calls.
        inside = dialects.get("hermes") if findings else dialects.inline(given)
        yield from _check_chat_template(subject, inside)


def _check_called(subject: Subject, row: DialectSpec) -> Iterator[RowFault]:
    """Forms whose text is one argument of one tool: the tool is there, and so is the argument."""
    for index, form in enumerate(calls_of(row)):
        if form.body != "text" or not form.tool or subject.lacks("tools", form.tool):
            continue
        path = place_of_form(row, index)
        tool = subject.tools.get(form.tool)
        if tool is None:
            hint = did_you_mean(form.tool, subject.tool_names, "tools")
            yield RowFault((*path, "tool"), f"there is no tool '{form.tool}'", hint)
            continue
        takes = list(tool.parameters.get("properties", {}))
        required = list(tool.parameters.get("required", ()))
        if form.argument and form.argument not in takes:
            hint = did_you_mean(form.argument, takes, "it takes")
            yield RowFault((*path, "argument"), f"'{form.tool}' takes no '{form.argument}'", hint)
        elif not form.argument and len(takes) != 1 and len(required) != 1:
            message = f"'{form.tool}' takes {', '.join(takes) or 'nothing'}: it is not said which one the text is"
            yield RowFault((*path, "argument"), message, f"add argument: {(required or takes or ['NAME'])[0]}", "key")
        elif form.argument and [name for name in required if name != form.argument]:
            lacking = next(name for name in required if name != form.argument)
            message = f"'{form.tool}' needs '{lacking}' too, which the text of a call cannot give"
            yield RowFault((*path, "tool"), message, "name a tool with one required argument")


def _check_chat_template(subject: Subject, inside: Dialect) -> Iterator[RowFault]:
    """The chat template, with the environment's own prompts, tools and answers."""
    from rlenv.tokens.declared import declared_template, rendering_findings, rewritten_history, roles_that_answer

    declared = declared_template(subject.loaded, inside)
    assert declared is not None
    yield from declared.findings
    if declared.dialect is None or declared.findings:
        return
    schemas = [tool.schema for tool in subject.tools.values()]
    spec, prompts = subject.loaded.spec, first_prompts(subject)
    roles = roles_that_answer(has_tools=bool(spec.tools), has_user=spec.user is not None)
    faults = [*rendering_findings(declared, prompts, schemas), *declared.answered(roles)]
    yield from faults
    note = "" if faults else rewritten_history(declared, prompts, schemas, roles)
    if note:
        subject.not_checked.append(f"{note}; a policy of raw text reads them as they were")


def first_prompts(subject: Subject) -> list[list[Message]]:
    """The first prompt of each split, as far as it can be told without an episode."""
    found: list[list[Message]] = []
    for split in subject.splits.values():
        values = {"task": split.rows[0], "vars": subject.loaded.spec.vars, "resources": Stub()}
        with suppress(EpisodeError):  # reported with the templates
            said = [message for one in subject.compiled.prompt for message in messages_of(one, values)]
            ends = bool(said) and said[-1].role == "user"
            found.append(said if ends else [*said, Message("user", "What?")])  # as a simulated user might
    if not found:
        has_system = subject.loaded.spec.prompt.system is not None
        found = [[Message("system", "Be brief."), Message("user", "What?")][not has_system :]]
    return found


def check_rewards(subject: Subject) -> Iterator[Finding]:
    """Faults of `rewards` and `success` that compiling does not meet: nothing is rewarded, or a gate never opens."""
    spec = subject.loaded.spec
    if not any(reward.usual_weight > 0 for reward in spec.rewards.values()):
        hint = f"give '{next(iter(spec.rewards))}' a weight above 0"
        yield subject.document.fault("rewards", "no term has a positive weight, so nothing is rewarded", hint, at="key")
    for name, reward in spec.rewards.items():
        if reward.gate is not None:
            yield from _impossible_comparison(subject, f"rewards.{name}.gate", reward.gate)
    if spec.success is not None:
        yield from _impossible_comparison(subject, "success", spec.success, may_fail=True)


_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MOST_COMBINATIONS = 20_000


def _value_interval(reward: RewardSpec) -> tuple[float, float]:
    """Between which values a term lies, as far as its entry tells."""
    low, high = -math.inf, math.inf
    values = kind_of("rewards", reward).values
    if reward.kind == "verify" and isinstance(getattr(reward, "compare", None), str):
        values = (0.0, 1.0)
    if values is not None:
        low, high = values
        if reward.when == "turn" and reward.over_turns == "sum":
            low, high = -math.inf if low < 0 else 0.0, math.inf if high > 0 else 0.0
    if reward.range is not None and reward.range[0] < reward.range[1]:
        low, high = ((end - reward.range[0]) / (reward.range[1] - reward.range[0]) for end in (low, high))
    if reward.clip is not None and reward.clip[0] < reward.clip[1] and reward.when == "episode":
        low, high = (min(max(end, reward.clip[0]), reward.clip[1]) for end in (low, high))
    return low, high


def _impossible_comparison(subject: Subject, path: str, source: str, *, may_fail: bool = False) -> Iterator[Finding]:
    """A comparison that holds for no values that its terms can have; with `may_fail`, one that holds for all too."""
    terms = subject.loaded.spec.rewards
    try:
        expression = compile_expression(source, names=terms, by_row=True)
    except ExpressionError:
        return  # reported already
    if expression.columns:  # the row decides
        known = list(dict.fromkeys(column for split in subject.splits.values() for column in split.columns))
        for column in expression.columns:
            name = column.partition(".")[0]
            if known and name not in known:
                hint = did_you_mean(name, known, "columns")
                yield subject.document.fault(path, f"no row has a column '{name}'", hint, find=f"task.{name}")
        return
    constants = {float(number) for number in _NUMBER.findall(source)}
    intervals = {name: _value_interval(terms[name]) for name in expression.names}
    marks = sorted({0.0, 1.0, *constants, *(end for pair in intervals.values() for end in pair if math.isfinite(end))})
    # Every order of terms and constants is met: at each mark, between two, and beyond the last.
    between = [(a + b) / 2 for a, b in itertools.pairwise(marks)] + [marks[0] - 1, marks[-1] + 1]
    choices = [
        [value for value in (*marks, *between) if intervals[name][0] <= value <= intervals[name][1]]
        for name in expression.names
    ]
    if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
        return
    found: set[bool] = set()
    for values in itertools.product(*choices):
        found.add(bool(expression(dict(zip(expression.names, values, strict=True)))))
        if len(found) == 2 or (True in found and not may_fail):
            return
    bounds = ", ".join(f"{name} is {low:g} to {high:g}" for name, (low, high) in intervals.items())
    said, hint = "never hold", "compare with a value that the term can have, such as >= 1"
    if True in found:
        said, hint = "never fail", "ask for what only a success has, such as >= 1: as it is, every episode is one"
    yield subject.document.fault(path, f"this can {said}: {bounds}" if bounds else f"this can {said}", hint)
