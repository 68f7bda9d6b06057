"""The dialect: its name is known, its keys contradict nothing, what it writes reads back, its template can be used."""

from __future__ import annotations

from collections.abc import Iterator

from rlenv import dialects
from rlenv._base.nearest import did_you_mean
from rlenv.checks.sites import Stub
from rlenv.checks.subject import Subject
from rlenv.dialects.base import Dialect
from rlenv.dialects.built_in import whole_row
from rlenv.dialects.findings import Finding, calls_of, fault_of, place_of_form
from rlenv.errors import Fault
from rlenv.language.dialect import DialectSpec
from rlenv.language.templates import TemplateError, compile_template
from rlenv.messages import Message

__all__ = ["check_dialect"]


def check_dialect(subject: Subject) -> Iterator[Fault]:
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


def _findings(subject: Subject, given: DialectSpec, row: DialectSpec) -> Iterator[Finding]:
    findings = dialects.findings_of(given)
    yield from findings
    yield from _called(subject, row)
    if given.chat_template is not None:
        # The conversation is the template's own, whatever reads the calls.
        inside = dialects.get("hermes") if findings else dialects.inline(given)
        yield from _template(subject, inside)


def _called(subject: Subject, row: DialectSpec) -> Iterator[Finding]:
    """Forms whose text is one argument of one tool: the tool is there, and so is the argument."""
    for index, form in enumerate(calls_of(row)):
        if form.body != "text" or not form.tool or subject.lacks("tools", form.tool):
            continue
        path = place_of_form(row, index)
        tool = subject.tools.get(form.tool)
        if tool is None:
            hint = did_you_mean(form.tool, subject.tool_names, "tools")
            yield Finding((*path, "tool"), f"there is no tool '{form.tool}'", hint)
            continue
        takes = list(tool.parameters.get("properties", {}))
        required = list(tool.parameters.get("required", ()))
        if form.argument and form.argument not in takes:
            hint = did_you_mean(form.argument, takes, "it takes")
            yield Finding((*path, "argument"), f"'{form.tool}' takes no '{form.argument}'", hint)
        elif not form.argument and len(takes) != 1 and len(required) != 1:
            message = f"'{form.tool}' takes {', '.join(takes) or 'nothing'}: it is not said which one the text is"
            yield Finding((*path, "argument"), message, f"add argument: {(required or takes or ['NAME'])[0]}", "key")
        elif form.argument and [name for name in required if name != form.argument]:
            lacking = next(name for name in required if name != form.argument)
            message = f"'{form.tool}' needs '{lacking}' too, which the text of a call cannot give"
            yield Finding((*path, "tool"), message, "name a tool with one required argument")


def _template(subject: Subject, inside: Dialect) -> Iterator[Finding]:
    """The chat template, with the environment's own prompts, tools and answers."""
    from rlenv.tokens.declared import declared_template, rendering_findings, rewritten_history, roles_that_answer

    declared = declared_template(subject.loaded, inside)
    assert declared is not None
    yield from declared.findings
    if declared.dialect is None or declared.findings:
        return
    schemas = [tool.schema for tool in subject.tools.values()]
    spec, prompts = subject.loaded.spec, _prompts(subject)
    roles = roles_that_answer(has_tools=bool(spec.tools), has_user=spec.user is not None)
    faults = [*rendering_findings(declared, prompts, schemas), *declared.answered(roles)]
    yield from faults
    note = "" if faults else rewritten_history(declared, prompts, schemas, roles)
    if note:
        subject.not_checked.append(f"{note}; a policy of raw text reads them as they were")


def _prompts(subject: Subject) -> list[list[Message]]:
    """The first prompt of each split, as far as it can be told without an episode."""
    found: list[list[Message]] = []
    prompt = subject.loaded.spec.prompt
    for split in subject.splits.values():
        values = {"task": split.rows[0], "vars": subject.loaded.spec.vars, "resources": Stub()}
        try:
            user = Message("user", compile_template(prompt.user).text(**values))
            if prompt.system is None:
                found.append([user])
            else:
                found.append([Message("system", compile_template(prompt.system).text(**values)), user])
        except TemplateError:
            continue  # reported with the templates
    if not found:
        found = [[Message("system", "Be brief."), Message("user", "What?")][prompt.system is None :]]
    return found
