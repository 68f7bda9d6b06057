"""Warnings of prompts and users: how to answer, what nobody fills in, and users who never end or know no row."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rlenv._base.text import did_you_mean, nearest, strings_in
from rlenv.checks.odd_rows import RenderedPrompts, asked_of, fixed_text
from rlenv.checks.subject import Subject, prompt_texts
from rlenv.errors import Finding, RlenvError
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.answer import compile_pattern
from rlenv.users.base import stops_of

__all__ = ["check_prompts"]

_EXPRESSIONS: Final = frozenset(("gate", "success", "for_each", "report_by", "function", "path", "pattern"))
_LONE: Final = re.compile(r"(?:task|vars|resources)(?:\.\w+)+")
_SINGLE: Final = re.compile(r"(?<![{\w])(?:\$?\{|%\(|\$|<<|\[\[)\s*((?:(?:task|vars)\.)?[A-Za-z_]\w*)(?:\s*[}\])>]|\b)")
_FILLED: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_TAG: Final = re.compile(r"<([A-Za-z_][\w-]*)>")
_NAME: Final = re.compile(r"`(\w{3,})(?:\(.*?\))?`|(?<![<\w/.-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b")
"""A name in back quotes, or one that is written as code is."""
_ANY_TOOL: Final = re.compile(r"\b(?:use|call|using|calling)\b[^.\n]{0,40}\btools?\b", re.IGNORECASE)
_CONTROL: Final = re.compile(
    r"<\|[a-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|</s>|(?m:^(?:Human|Assistant|ASSISTANT|USER):\s*$)"
    r"|(?m:^#{2,3} ?(?:Human|Assistant|User|Instruction|Response):)"
)
_UNFINISHED: Final = re.compile(
    r"\b(?:TODO|FIXME|XXX|TBD)\b|\b[Ll]orem ipsum\b|\[(?:INSERT|insert|Insert|your|YOUR|QUESTION)\b[^\]]*\]"
)
_MOST_SHOWN: Final = 1_000


def check_prompts(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`, `prompt` and of texts with the wrong kind of braces."""
    columns = {column for split in subject.splits.values() for column in split.columns}
    yield from _braces(subject, columns)
    templates = [compile_template(text) for _, text in prompt_texts(subject.loaded.spec.prompt)]
    asked = asked_of(subject)
    for lost in (path[1] for template in templates for path in template.paths if path[0] == "task" and len(path) == 2):
        near = nearest(str(lost), sorted(map(str, columns))) if lost not in columns else None
        if near is not None:  # another data set may have a guarded column of another name
            message = f"no row has the column '{lost}' that it asks for; did you mean {near}?"
            yield subject.document.warning("prompt", message, f"write task.{near}", "odd-column", at="key")
    for one in asked:
        yield from _shown_badly(subject, templates, one)
    yield from _keys(subject)
    if asked and asked[0].texts:
        text = asked[0].texts[0]
        yield from _answer_form(subject, text)
        yield from _marks(subject, text)
        yield from _tools(subject, text)
        if (blank := _UNFINISHED.search(f"{text} {subject.loaded.spec.description}")) is not None:
            message = f"the prompt says '{blank[0]}'"
            yield subject.document.warning("prompt", message, "finish it", "unfinished", at="key")
    yield from _answer(subject)
    yield from _descriptions(subject)
    yield from _user(subject)


def _braces(subject: Subject, columns: set[str]) -> Iterator[Finding]:
    """`{task.question}`, `$question` and `task.answer` are texts; a template has two braces on each side."""
    for path, text in strings_in(subject.document.data, ()):
        if path[0] in ("tasks", "dialect", "name") or path[-1] in _EXPRESSIONS or "parameters" in path:
            continue
        if _LONE.fullmatch(text):
            message = f"'{text}' is a text here, and not the value of that name"
            yield subject.document.warning(path, message, f'write "{{{{ {text} }}}}"', "no-braces")
            continue
        text = _FILLED.sub(" ", text)
        for found in _SINGLE.finditer(text):
            name = found[1].removeprefix("task.")
            is_known = found[1].startswith(("task.", "vars."))
            is_closed = name in columns and found[0][-1] in "}])>" and found[0][0] != "$"
            if is_known or is_closed or (name in columns and path[0] == "prompt" and found[0][0] == "$"):
                whole = found[1] if "." in found[1] else f"task.{found[1]}"
                message = f"'{found[0].strip()}' is shown as it stands: nothing fills it in"
                hint = f"write {{{{ {whole} }}}}"
                yield subject.document.warning(path, message, hint, "single-braces", find=found[0])
                break


def _shown_badly(subject: Subject, templates: Sequence[Template], asked: RenderedPrompts) -> Iterator[Finding]:
    """Columns that the prompt shows as nothing, or as Python writes a list."""
    spec = subject.loaded.spec.prompt
    for (at, _), template in zip(prompt_texts(spec), templates, strict=True):
        if at[-1] not in ("system", "content", "user"):
            continue  # it gives whole messages
        shown = sorted(path[1] for path in template.paths if path[0] == "task" and len(path) == 2)
        for column in shown:
            # A template with a condition may well know what to do about such a row.
            is_plain = "{%" not in template.source and "|" not in template.source
            for index, row in enumerate(asked.split.rows[:_MOST_SHOWN] if is_plain and asked.texts else ()):
                if (odd := _oddly(row.get(column), asked.texts[index])) is not None:
                    message = f"row {index + 1} of split '{asked.split.name}': the column '{column}' {odd}"
                    hint = "fill it, or use a filter such as |join(', ') or a condition"
                    yield subject.document.warning(at, message, hint, "odd-column", find=f"task.{column}")
                    break
    if subject.loaded.spec.user is None:
        for index, text in enumerate(asked.users):
            if not text.strip() and not spec.images:
                message = f"row {index + 1} of split '{asked.split.name}' asks nothing: the user's message is empty"
                yield subject.document.warning("prompt.user", message, "fill the column", "empty-prompt")
                return


def _oddly(value: Any, text: str) -> str | None:
    if value is None:
        return "is null, and is shown as 'None'" if "None" in text else None
    if isinstance(value, str) and not value.strip():
        return "is empty"
    if isinstance(value, str) and re.fullmatch(r"(?i)\W*(?:todo|tbd|fixme|xxx+|placeholder|lorem ipsum.*)\W*", value):
        return f"is {value.strip()[:20]!r}, which nobody has filled in"
    if isinstance(value, str) and "', '" in value and value[:1] in tuple("[({") and value in text:
        return f"is the text of a Python list: {value[:40]}"
    if isinstance(value, (list, Mapping)) and value and str(value) in text:
        return f"is shown as Python writes it: {str(value)[:40]}"
    return None


def _reads_answer(subject: Subject) -> bool:
    """True where a term surely looks at the answer, and at nothing else of the message."""
    for term in subject.terms:
        spec = term.spec
        if getattr(spec, "of", "answer") != "answer":
            continue
        if any(re.search(r"\{\{[^}]*\banswer\b", str(getattr(spec, key, ""))) for key in ("arguments", "prompt")):
            return True
        if kind_of("rewards", spec).reads_answer:
            return True
    return False


def _answer_form(subject: Subject, text: str) -> Iterator[Finding]:
    answer, document = subject.loaded.spec.answer, subject.document
    place = "answer" if document.has("answer") else "prompt"
    for tag in dict.fromkeys(_TAG.findall(text)) if answer.from_ == "final_message" and _reads_answer(subject) else ():
        if f"</{tag}>" in text and _is_of_message(subject, tag):
            message = f"the prompt asks for <{tag}>, and the whole final message is the answer, tags included"
            yield document.warning(place, message, "write from: tag", "answer-form", at="key")
            break
    if not _reads_answer(subject) or answer.from_ not in ("tag", "boxed", "regex"):
        return
    wanted = {"tag": f"<{answer.tag}>", "boxed": "\\boxed{…}"}.get(answer.from_, f"what fits {answer.pattern}")
    if answer.from_ == "regex":
        words = re.findall(r"[A-Za-z#]{3,}", re.sub(r"\\[A-Za-z]|\(\?[^)]*\)|\[[^\]]*\]", " ", answer.pattern or ""))
        says = not words or any(word.lower() in text.lower() for word in words)
    else:
        says = re.search(rf"</?{re.escape(answer.tag)}\b" if answer.from_ == "tag" else r"boxed", text) is not None
    if says:
        return
    others = [tag for tag in _TAG.findall(text) if f"</{tag}>" in text and tag != "think"]
    other = f"<{others[-1]}>" if others else "\\boxed" if "\\boxed" in text else ""
    if other:
        message = f"the prompt asks for {other}, and the answer is read from {wanted}"
        fix = f"write tag: {others[-1]}" if others else "write from: boxed"
    else:
        message = f"the prompt never says how to answer: the answer is read from {wanted}"
        fix = f"say so in the prompt: 'Put the answer in {wanted}.'"
    yield document.warning(place, message, fix, "answer-form", at="key")


def _is_of_message(subject: Subject, tag: str) -> bool:
    """True for marks that stay in the message when the dialect has read thinking and calls out of it."""
    parts = subject.compiled.parts
    return parts is None or f"<{tag}>" in parts.dialect.parse(f"<{tag}>zq</{tag}>x", parts.tools).content


def _marks(subject: Subject, text: str) -> Iterator[Finding]:
    """Marks of thinking, calls and turns that are not those of the dialect, and tools that it cannot call."""
    parts, warn = subject.compiled.parts, subject.document.warning
    if parts is None:
        return
    name, dialect = getattr(parts.dialect, "name", "inline"), parts.dialect
    if "<think>" in text and not dialect.parse("<think>zq</think>x", parts.tools).thinking:
        message = f"the prompt asks for <think>, which the dialect '{name}' reads as plain text: what is thought counts"
        hint = "take a dialect with these marks, or take them out of the prompt"
        yield warn("prompt", message, hint, "think-marks", at="key")
    own = dialect.render_action(Message("assistant", "", (ToolCall("zq", {}),)))
    for mark in ("<tool_call>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '"arguments"'):
        if mark in text and mark not in own:
            message = f"the prompt shows '{mark}', which the dialect '{name}' does not write calls with"
            yield warn("prompt", message, "leave the form of calls to the dialect", "call-marks", at="key")
    for key in ("system", "user"):
        if (token := _CONTROL.search(getattr(subject.loaded.spec.prompt, key) or "")) is not None:
            message = f"it holds '{token[0]}', a control token of chat templates"
            hint = "take it out: the template writes its own"
            yield warn(f"prompt.{key}", message, hint, "control-token", find=token[0])
    written: dict[str, str] = {}
    for tool in parts.tools.values():
        try:
            given = random_value({"type": "object", **tool.parameters}, random.Random(0))
        except ValueError:  # nothing fits its schema
            continue
        call = ToolCall(tool.name, given if isinstance(given, dict) else {})
        try:
            written[tool.name] = dialect.render_action(Message("assistant", "", (call,)))
            read = [one.name for one in dialect.parse(written[tool.name], parts.tools).calls]
        except Exception:  # a dialect that cannot write the call
            read = []
        if tool.name not in read:
            message = f"the dialect cannot write a call of '{tool.name}'"
            yield warn(("tools", tool.name), message, "add a form for it", "unreachable-tool", at="key")
    offered = [tool for tool in parts.tools.values() if tool.name != subject.loaded.spec.answer.tool]
    shown = dialect.render_prompt([Message("user", "zq")], [tool.schema for tool in offered])
    opens = re.match(r"\s*(\S+?>|\S+)", written.get(offered[0].name, "") if offered else "")
    if opens is not None and offered[0].name not in shown and opens[1] not in text:
        message = f"the dialect tells the model of no tools, and the prompt never says to write {opens[1]}"
        yield warn("prompt", message, "explain the call in the prompt", "untold-tool", at="key")


def _tools(subject: Subject, text: str) -> Iterator[Finding]:
    """Tools that the prompt speaks of where there are none, and names that are nothing in the spec."""
    warn, spec = subject.document.warning, subject.loaded.spec
    if not subject.tools:
        if (speaks := _ANY_TOOL.search(text)) is not None:
            message = f"the prompt says '{speaks[0]}', and there are no tools"
            yield warn("prompt", message, "add them under 'tools:'", "no-tools", at="key")
        return
    rest = [text for path, text in strings_in(subject.document.data, ()) if path[0] not in ("prompt", "description")]
    keys = {name for tool in subject.tools.values() for name in (tool.name, *tool.parameters.get("properties", {}))}
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    schemas = [str(getattr(reward, "schema_", None) or "") for reward in spec.rewards.values()]
    known = f"{subject.code or ''} {rest} {keys} {rows} {list(spec.vars)} {list(spec.resources)} {schemas}"
    for match in _NAME.finditer(fixed_text(subject)):
        name = match[1] or match[2]
        if not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", known, re.IGNORECASE):
            message = f"the prompt names '{name}', which is no tool, argument or column"
            hint = did_you_mean(name, sorted(keys), otherwise=f"the tools are: {', '.join(subject.tools)}")
            yield warn("prompt", message, hint, "unknown-tool", at="key")
            return


def _keys(subject: Subject) -> Iterator[Finding]:
    """Keys of the JSON that is compared, of which the prompt names some and not others."""
    said = fixed_text(subject)
    row = next((row for split in subject.splits.values() for row in split.rows), {})
    for name, reward in subject.loaded.spec.rewards.items():
        schema = getattr(reward, "schema_", None) or {}
        keys = list(schema.get("required", ())) if reward.kind == "rule" else []
        if getattr(reward, "rule", "") == "json_match":
            try:
                value = compile_value(gold_in(reward))(task=row, vars=subject.loaded.spec.vars)
            except (TemplateError, TypeError, RlenvError):
                continue
            keys = list(value) if isinstance(value, Mapping) else []
        named = [key for key in keys if re.search(rf"(?<!\w){re.escape(str(key))}(?!\w)", said)]
        if len(named) < len(keys) and (named or (re.search(r"(?i)\bkeys?\b", said) and "{{" not in said)):
            lost = next(key for key in keys if key not in named)
            told = f"the keys {', '.join(named)}, and not" if named else "keys, and not"
            message = f"the prompt names {told} '{lost}', which '{name}' asks for"
            yield subject.document.warning("prompt", message, "name all keys", "answer-form", at="key")
            return


def _answer(subject: Subject) -> Iterator[Finding]:
    answer, document = subject.loaded.spec.answer, subject.document
    if answer.from_ == "regex" and answer.pattern is not None:
        pattern = compile_pattern(answer.pattern)
        match = pattern.last_at("It is a cat.\n")[0]
        if match is not None and match[1 if pattern.groups else 0] in ("", None):
            message = "the pattern fits no text at all too, and the last match counts: the answer is often empty"
            hint = "let its group match one character at least"
            yield document.warning("answer.pattern", message, hint, "any-answer")


def _descriptions(subject: Subject) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for tool in subject.compiled.tools.values():  # of those that rows declare no two need be in one prompt
        text = " ".join(tool.description.split())
        path = f"tools.{tool.entry or tool.name}"
        if text and text in seen and tool.kind != "mcp":
            message = f"'{tool.name}' has the description of '{seen[text]}': the model cannot tell them apart"
            yield subject.document.warning(path, message, "say what each does", "same-description", at="key")
        seen.setdefault(text, tool.name)


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
