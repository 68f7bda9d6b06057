"""The oracle and the gold values, for every row: it answers within the limits, and each value can be compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlenv._base.text import KeyPath, did_you_mean, parts_of
from rlenv.calls.toolsets import ToolSet
from rlenv.checks.sites import Site, Stub, check_site
from rlenv.checks.subject import ReadSplit, Subject, calls_in
from rlenv.errors import EpisodeError, Finding, PolicyError, RewardError, UsageError
from rlenv.language.expressions import EpisodeLimits, open_on
from rlenv.language.functions import failure
from rlenv.language.kinds import gold_in, gold_key, is_own
from rlenv.language.spec import OracleFunction, OracleStep
from rlenv.language.templates import TemplateError, braced, compile_template, compile_value
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall, ToolResult
from rlenv.policies import base as golds
from rlenv.policies.base import Parameters
from rlenv.policies.scripted import oracle_function
from rlenv.rewards import answer as answers
from rlenv.rewards.base import RewardContext, Term
from rlenv.secrets import redact
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import Tool

_NAMES = ("task", "vars", "results")
_MOST_CHECKS = 2_000  # of tools that rows declare


def check_oracle(subject: Subject) -> Iterator[Finding]:
    """Faults of `oracle`."""
    oracle, document = subject.loaded.spec.oracle, subject.document
    if oracle is None:
        subject.not_checked.append("no oracle: whether the environment can be solved was not checked")
    elif not oracle:
        yield document.fault("oracle", "found no steps; expected at least one", "add {say: …}, or remove it")
    elif isinstance(oracle, OracleFunction):
        try:
            oracle_function(oracle, base=document.base_of("oracle.function"))
        except UsageError as error:
            yield document.fault("oracle.function", redact(error.message), redact(error.hint))
    else:
        is_text = isinstance(oracle, str)
        site, steps = Site(("oracle",), str(oracle), _NAMES[:2], {}), subject.loaded.spec.steps
        of_steps = itertools.chain(*(check(subject, steps) for check in (_check_order, _check_calls, _check_templates)))
        yield from (faults := list(check_site(subject, site) if is_text else of_steps))
        if not faults:
            plan = _Script(subject)
            yield from (fault for split in subject.splits.values() if (fault := plan.fault(split)) is not None)


def _check_order(subject: Subject, steps: Sequence[OracleStep]) -> Iterator[Finding]:
    answer = subject.loaded.spec.answer
    for index, step in enumerate(steps[:-1]):
        if step.say is not None and step.when is None and subject.loaded.spec.user is None:
            message = "text without a call ends the episode, so the steps after it are never played"
            yield subject.document.fault(("oracle", index), message, "make it the last step")
    last, path = steps[-1], ("oracle", len(steps) - 1)
    if last.say is not None:
        return
    if last.expect is not None:
        message = "no action follows the call, so that its result is never looked at"
        yield subject.document.fault((*path, "expect"), message, "add {say: …}", at="key")
    names = {tool for _, tool, _ in calls_in(last)}
    if not _is_written(last) or any(tool.ends for name, tool in subject.tools.items() if name in names):
        return
    wanted = f"a call of '{answer.tool}'" if answer.from_ == "tool" else "'say'"
    message = f"the oracle ends with a call and gives no answer; expected {wanted} as the last step"
    yield subject.document.fault(path, message, "add {say: …}")


def _is_written(step: OracleStep) -> bool:
    """True where every call of a step stands in the spec with its tool and its arguments."""
    groups = step.call if isinstance(step.call, tuple) else (step.call,)
    return len(list(calls_in(step))) == sum(len(group) if isinstance(group, Mapping) else 1 for group in groups)


def _check_calls(subject: Subject, steps: Sequence[OracleStep]) -> Iterator[Finding]:
    for index, step in enumerate(steps):
        for place, name, arguments in calls_in(step):
            path: KeyPath = ("oracle", index, "call", *place)
            tool = subject.tools.get(name)
            if tool is None:
                if not subject.lacks("tools", name):
                    hint = did_you_mean(name, subject.tool_names, "tools")
                    yield subject.document.fault(path, f"there is no tool '{name}'", hint, at="key")
                continue
            properties = tool.parameters.get("properties", {})
            for argument in arguments:
                if properties and argument not in properties:
                    hint = did_you_mean(argument, properties, otherwise=f"it takes: {', '.join(properties)}")
                    yield subject.document.fault((*path, argument), f"'{name}' takes no '{argument}'", hint, at="key")
            for needed in tool.parameters.get("required", ()):
                if needed not in arguments:
                    message = f"'{name}' needs the argument '{needed}'"
                    yield subject.document.fault(path, message, f"add '{needed}: …'", at="key")


def _check_templates(subject: Subject, steps: Sequence[OracleStep]) -> Iterator[Finding]:
    for index, step in enumerate(steps):
        stand_ins: dict[str, Any] = {"results": _Results()}
        if step.for_each is not None:
            stand_ins["item"] = Stub()
        texts = [(path, text) for path, text in _template_texts(step.call, ("oracle", index, "call"))]
        texts += _template_texts(step.expect, ("oracle", index, "expect"))
        for key, text in (("for_each", step.for_each), ("when", step.when)):
            texts += [(("oracle", index, key), braced(text))] if text is not None else []
        texts += [(("oracle", index, "say"), step.say)] if step.say is not None else []
        for path, text in texts:
            names = (*_NAMES, "item") if step.for_each is not None and path[-1] != "for_each" else _NAMES
            is_asked = path[2] in ("for_each", "when") or (step.for_each is None and step.when is None)
            is_filled = None if is_asked else partial(_is_made, step, subject.loaded.spec.vars)
            yield from check_site(subject, Site(path, text, names, stand_ins), is_filled)


def _is_made(step: OracleStep, constants: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """False for a row on which a step does nothing."""
    values = {"task": row, "vars": constants, "results": _Results()}
    try:
        items = [None] if golds.is_later(step) else golds.items_of(step, values)
        return golds.is_later(step) or any(golds.holds(step, {**values, "item": item}) for item in items)
    except (TemplateError, PolicyError):
        return True  # reported where it stands


class _Results(list[Stub]):
    """Texts of results that are not there yet: any index gives one."""

    def __getitem__(self, index: Any) -> Any:
        return Stub()


def _template_texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """The templates of a value, those in the keys of its mappings among them."""
    if isinstance(value, str) and "{" in value:
        yield path, value
    for key, item in parts_of(value):
        yield from _template_texts(key, (*path, key))
        yield from _template_texts(item, (*path, key))


@dataclass(slots=True)
class _Count:
    """What an oracle needs in one row so far; `is_over` once a text has ended the episode."""

    row: Mapping[str, Any]
    limits: EpisodeLimits
    turns: int = 0
    calls: int = 0
    says: int = 0
    is_over: bool = False


class _Script:
    """The oracle as it is played for each row, as far as no result decides."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.spec = subject.loaded.spec
        self.limits = subject.row_limits
        self.written = [[(place, name, None if _reads_results(given) else compile_value(given))
                         for place, name, given in calls_in(step)] if _is_written(step) else None
                        for step in self.spec.steps]  # fmt: skip
        self.parameters: dict[int, tuple[ToolSet, Parameters]] = {}
        self.checks: dict[int, tuple[Tool, ArgumentCheck]] = {}

    def fault(self, split: ReadSplit) -> Finding | None:
        """The first fault in the rows of a split."""
        for number, row in enumerate(split.rows):
            where = f"row {number + 1} of split '{split.name}'"
            if (fault := self._check_row({"task": row, "vars": self.spec.vars}, where)) is not None:
                return fault
        return None

    def _check_row(self, values: Mapping[str, Any], where: str) -> Finding | None:
        count = _Count(values["task"], self.limits.widest([values["task"]]))
        if isinstance(self.spec.oracle, str):
            fault = self._check_recorded(self.spec.oracle, values, count, where)
        else:
            faults = (self._check_step(index, values, count, where) for index in range(len(self.spec.steps)))
            fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:
            return fault
        document, limits = self.subject.document, count.limits
        for key, needed, word in (("turns", count.turns, "actions"), ("tool_calls", count.calls, "calls")):
            limit = getattr(limits, key)
            if needed > limit:
                message = f"the oracle needs {needed} {word} for {where}; the limit is {limit}"
                at = f"limits.{key}" if document.has(f"limits.{key}") else "oracle"
                raised = f"raise limits.{key} to {needed}"
                return document.fault(at, message, raised, at="value" if "." in at else "key")
        return None

    def _check_recorded(self, source: str, values: Mapping[str, Any], count: _Count, where: str) -> Finding | None:
        path: KeyPath = ("oracle",)
        try:
            actions = golds.read_actions(golds.listed(compile_template(source).value(**values)), self._known(count))
        except (PolicyError, TemplateError) as error:
            return self._fault_at(path, f"its actions fail for {where}: {error}", "name a column that holds a list")
        if not actions:
            return self._fault_at(path, f"it gives no action for {where}", "drop such rows, or fill the column")
        count.turns += len(actions)
        made = [action.tool_calls for action in actions if isinstance(action, Message)]
        return self._check_row_calls(path, [calls for calls in made if calls], count, where)

    def _check_step(self, index: int, values: Mapping[str, Any], count: _Count, where: str) -> Finding | None:
        step, path = self.spec.steps[index], ("oracle", index)
        hint = "name a column that holds a list"
        if golds.is_later(step):
            return None
        try:
            items = golds.items_of(step, {**values, "results": _Results()})
        except TemplateError as error:
            return self._fault_at((*path, "for_each"), f"for_each fails for {where}: {error}", hint)
        except PolicyError as error:
            message = str(error).replace(";", f" for {where};", 1)
            return self._fault_at((*path, "for_each"), message, hint)
        for item in items:
            inner = {**values, "results": _Results(), "item": item}
            try:
                if not golds.holds(step, inner):
                    continue
            except TemplateError as error:
                return self._fault_at((*path, "when"), f"the condition fails for {where}: {error}", "guard it")
            if count.is_over:
                message = f"text without a call ends the episode of {where}, so that this step is never played"
                return self._fault_at(path, message, "make the text the last step")
            if step.call is not None and (fault := self._check_step_calls(index, inner, count, where)) is not None:
                return fault
            if step.say is not None:
                count.turns += 1
                count.says += 1
                count.is_over = self.spec.user is None  # a user is spoken to without an answer, and may end it
                if count.is_over and (fault := _answer_fault(self.subject, step.say, index, inner, where)) is not None:
                    return fault
        return None

    def _check_step_calls(self, index: int, values: Mapping[str, Any], count: _Count, where: str) -> Finding | None:
        step, written = self.spec.steps[index], self.written[index]
        path: KeyPath = ("oracle", index, "call")
        if written is None:
            if _reads_results(step.call):
                return None
            try:
                groups = golds.read_calls(golds.fill_calls(step.call, values), self._known(count))
            except (PolicyError, TemplateError) as error:
                return self._fault_at(path, f"the call fails for {where}: {error}", "name a column that holds calls")
            count.turns += len(groups)
            return self._check_row_calls(path, groups, count, where)
        count.turns += 1
        if (fault := self._count_calls(path, len(written), count)) is not None:
            return fault
        for place, name, fill in written:
            try:
                fault = None if fill is None else self._check_fit((*path, *place), name, fill(**values), count, where)
            except TemplateError as error:
                return self._fault_at((*path, *place), f"the arguments fail for {where}: {error}", "guard the template")
            if fault is not None:
                return fault
        return None

    def _check_row_calls(
        self, path: KeyPath, groups: Sequence[Sequence[ToolCall | MalformedCall]], count: _Count, where: str
    ) -> Finding | None:
        """The first fault of calls that a row says."""
        for calls in groups:
            if (fault := self._count_calls(path, len(calls), count)) is not None:
                return fault
            for call in calls:
                if isinstance(call, MalformedCall):
                    why = f"a recorded call of {where} cannot be read: {call.reason}"
                    return self._fault_at(path, why, "mend the row")
                if (fault := self._check_fit(path, call.name, call.arguments, count, where)) is not None:
                    return fault
        return None

    def _count_calls(self, path: KeyPath, calls: int, count: _Count) -> Finding | None:
        count.calls += calls
        most = count.limits.calls_per_turn
        if calls <= most:
            return None
        message = f"the step makes {calls} calls; limits.calls_per_turn is {most}"
        return self._fault_at(path, message, f"raise limits.calls_per_turn to {calls}")

    def _known(self, count: _Count) -> Parameters:
        """The parameters of the tools that the row has then."""
        try:
            tools = self.subject.toolset(count.row, count.says)
        except EpisodeError:
            return {}  # reported with the tools
        if id(tools) not in self.parameters:
            if len(self.parameters) >= _MOST_CHECKS:
                self.parameters.clear()
            self.parameters[id(tools)] = (tools, golds.parameters_of(tools.schemas))
        return self.parameters[id(tools)][1]

    def _check_fit(
        self, path: KeyPath, name: str, arguments: Mapping[str, Any], count: _Count, where: str
    ) -> Finding | None:
        """A call of a tool that the row does not have then, or whose arguments do not fit its schema."""
        try:
            tools = self.subject.toolset(count.row, count.says).tools
        except EpisodeError:
            return None  # reported with the tools
        tool = tools.get(name)
        if tool is None:
            if self.subject.lacks("tools", name):
                return None
            hint = did_you_mean(name, tools, "tools")
            return self._fault_at(path, f"there is no tool '{name}', which {where} calls", hint)
        if id(tool) not in self.checks:
            if len(self.checks) >= _MOST_CHECKS:
                self.checks.clear()
            self.checks[id(tool)] = (tool, ArgumentCheck(tool.parameters, tool=name))
        check = self.checks[id(tool)][1]
        if not tool.is_strict or check.fits(arguments):
            return None
        message = f"the arguments do not fit '{name}' for {where}: {check.explain(arguments)}"
        return self._fault_at(path, message, "a lone {{ … }} keeps its type; add a filter such as |int or |string")

    def _fault_at(self, path: KeyPath, message: str, hint: str) -> Finding:
        return self.subject.document.fault(path, message, hint)


def _reads_results(value: Any) -> bool:
    return any("results" in compile_template(text).names for _, text in _template_texts(value, ()))


def _answer_fault(subject: Subject, say: str, index: int, values: Mapping[str, Any], where: str) -> Finding | None:
    spec = subject.loaded.spec.answer
    template = compile_template(say)
    path = ("oracle", index, "say")
    try:
        text = template.text(**values)
    except TemplateError as error:
        if "results" in template.names:
            return None
        return subject.document.fault(path, f"the text fails for {where}: {error}", "guard the template")
    # An environment that names no answer rule may be solved by calls alone.
    if not subject.document.has("answer") or (spec.from_ not in ("tag", "boxed") and "results" in template.names):
        return None
    try:
        answer = answers.extract(spec, ParsedAction(text))
    except UsageError:
        return None  # reported with the answer rule
    if answer is not None:
        return None
    wanted = {"tag": f"write <{spec.tag}>…</{spec.tag}>", "boxed": "write \\boxed{…}", "tool": f"call '{spec.tool}'"}
    message = f"the text gives no answer by the rule '{spec.from_}' for {where}"
    return subject.document.fault(path, message, wanted.get(spec.from_, "write what the rule reads"))


# Reading mathematics takes some milliseconds a value.
_MAX_READ = 1_000


async def refuse_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise RewardError("no tool runs while a spec is validated")


def check_gold(subject: Subject) -> Iterator[Finding]:
    """The first row of each split for which a rule with a gold value cannot be measured, whatever the answer."""
    for term in subject.terms:
        path, is_open = subject.gold_at(term), open_on(term.spec.gate)
        reads = str(gold_in(term.spec) or "")
        # The author's own function may do anything; a gold value behind a resource needs an episode.
        is_gold = gold_key(term.spec) or term.check_gold is not None
        if not is_gold or is_own(term.spec) or "resources" in reads:
            continue
        for split in subject.splits.values():
            if term.measure is not None and gold_key(term.spec):
                yield from _check_rows(subject, _as_check(term.measure), path, split, len(split.rows), is_open)
            if term.check_gold is not None:
                yield from _check_rows(subject, term.check_gold, path, split, _row_limit(subject, term, split), is_open)


def _as_check(measure: Callable[[RewardContext], object]) -> Callable[[RewardContext], None]:
    def ask(context: RewardContext) -> None:
        measure(context)

    return ask


def _row_limit(subject: Subject, term: Term, split: ReadSplit) -> int:
    """The number of rows to look at; says so where that is not all of them."""
    total = len(split.rows)
    if term.measure is not None or total <= _MAX_READ:
        return total
    rest = f"the gold values of split '{split.name}' after row {_MAX_READ} were not read"
    subject.not_checked.append(f"rewards.{term.name}: {rest}")
    return _MAX_READ


def gold_fault(term: Term, row: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    """The reason why a rule cannot compare with the gold values of a row, "" where it can."""
    ask = term.check_gold or (term.measure and _as_check(term.measure))
    return _measure_fault(ask, row, constants) if ask is not None else ""


def _measure_fault(ask: Callable[[RewardContext], None], row: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    context = RewardContext(
        task=row, messages=(), turns=(), answer="1", resources={}, vars=constants, call=refuse_call, reason="answer"
    )
    try:
        ask(context)
    except Exception as error:  # a value of any kind meets a rule
        return str(error) if isinstance(error, RewardError) else failure(error)
    return ""


def _check_rows(
    subject: Subject,
    ask: Callable[[RewardContext], None],
    path: str,
    split: ReadSplit,
    most: int,
    is_open: Callable[[Mapping[str, Any]], bool],
) -> Iterator[Finding]:
    for index, row in enumerate(split.rows[:most]):
        if is_open(row) and (why := _measure_fault(ask, row, subject.loaded.spec.vars)):
            message = f"row {index + 1} of split '{split.name}' cannot be scored: {why}"
            fix = "fill the column with what the rule compares with, or drop such rows"
            yield subject.document.fault(path, message, fix, at="value" if path.count(".") > 1 else "key")
            return
