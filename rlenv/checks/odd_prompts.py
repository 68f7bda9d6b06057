"""Warnings of prompts and users: how to answer, what nobody fills in, and users who never end or know no row."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rlenv._base.text import did_you_mean, nearest, strings_in
from rlenv.checks.odd_rows import RenderedPrompts, asked_of, fixed_text
from rlenv.checks.subject import PATTERNS, WORDS, Subject, prompt_texts
from rlenv.episodes.compile import messages_of
from rlenv.errors import EpisodeError, Finding, RlenvError, UsageError
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.answer import compile_pattern, extract
from rlenv.users.base import stops_of

__all__ = ["check_prompts"]

_EXPRESSIONS: Final = frozenset("gate success for_each report_by function path pattern when".split())
_MOST_SHOWN: Final = 1_000
_MOST_ROWS: Final = 100
_NUMBERS: Final = "two three four five six seven eight nine ten eleven twelve".split()
_USUAL: Final = frozenset(
    "right given following same only appropriate available first second other single proper best".split()
)


def check_prompts(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`, `prompt` and of texts with the wrong kind of braces."""
    columns = {column for split in subject.splits.values() for column in split.columns}
    yield from _braces(subject, columns)
    templates = [compile_template(text) for _, text in prompt_texts(subject.loaded.spec.prompt)]
    asked = asked_of(subject)
    for lost in (path[1] for template in templates for path in template.paths if path[0] == "task" and len(path) == 2):
        near = nearest(str(lost), sorted(map(str, columns))) if lost not in columns else None
        if near is not None:  # another data set may have a guarded column of another name
            yield subject.say("odd-column/row-has", "prompt", lost, near, at="key")
    for one in asked:
        yield from _shown_badly(subject, templates, one)
    yield from _keys(subject)
    if asked and asked[0].texts:
        text = asked[0].texts[0]
        yield from _answer_form(subject, text)
        yield from _marks(subject, text)
        yield from _tools(subject, text)
        if (blank := PATTERNS.unfinished.search(f"{text} {subject.loaded.spec.description}")) is not None:
            yield subject.say("unfinished/prompt-says", "prompt", blank[0], at="key")
        yield from _promises(subject, text)
        yield from _examples(subject, asked)
        yield from _untold(subject, asked)
    yield from _answer(subject)
    yield from _descriptions(subject)
    yield from _user(subject)


def _braces(subject: Subject, columns: set[str]) -> Iterator[Finding]:
    """`{task.question}`, `$question` and `task.answer` are texts; a template has two braces on each side."""
    for path, text in strings_in(subject.document.data, ()):
        if path[0] in ("tasks", "dialect", "name") or path[-1] in _EXPRESSIONS or "parameters" in path:
            continue
        if PATTERNS.lone.fullmatch(text):
            yield subject.say("no-braces/text-here", path, text)
            continue
        text = PATTERNS.filled.sub(" ", text)
        for found in PATTERNS.single.finditer(text):
            name = found[1].removeprefix("task.")
            is_known = found[1].startswith(("task.", "vars."))
            is_closed = name in columns and found[0][-1] in "}])>" and found[0][0] != "$"
            if is_known or is_closed or (name in columns and path[0] == "prompt" and found[0][0] == "$"):
                whole = found[1] if "." in found[1] else f"task.{found[1]}"
                yield subject.say("single-braces/shown-stands", path, found[0].strip(), whole, find=found[0])
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
                yield subject.say("empty-prompt/row-split", "prompt.user", index + 1, asked.split.name)
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
    for tag in (
        dict.fromkeys(PATTERNS.tag.findall(text)) if answer.from_ == "final_message" and _reads_answer(subject) else ()
    ):
        if f"</{tag}>" in text and _is_of_message(subject, tag):
            yield subject.say("answer-form/prompt-asks", place, tag, at="key")
            break
    paired = [tag for tag in PATTERNS.tag.findall(text) if f"</{tag}>" in text and _is_of_message(subject, tag)]
    if answer.from_ == "tool" and _reads_answer(subject) and paired and str(answer.tool) not in text:
        yield subject.say("answer-form/prompt-asks-read", place, paired[-1], answer.tool, at="key")
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
    others = [tag for tag in PATTERNS.tag.findall(text) if f"</{tag}>" in text and tag != "think"]
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
    parts = subject.compiled.parts
    if parts is None:
        return
    name, dialect = getattr(parts.dialect, "name", "inline"), parts.dialect
    if "<think>" in text and not dialect.parse("<think>zq</think>x", parts.tools).thinking:
        yield subject.say("think-marks/prompt-asks", "prompt", name, at="key")
    own = dialect.render_action(Message("assistant", "", (ToolCall("zq", {}),)))
    for mark in ("<tool_call>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '"arguments"'):
        if mark in text and mark not in own:
            yield subject.say("call-marks/prompt-shows", "prompt", mark, name, at="key")
    for key in ("system", "user"):
        if (token := PATTERNS.control.search(getattr(subject.loaded.spec.prompt, key) or "")) is not None:
            yield subject.say("control-token/holds-chat", f"prompt.{key}", token[0], find=token[0])
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
            yield subject.say("unreachable-tool/dialect-cannot", ("tools", tool.name), tool.name, at="key")
    offered = [tool for tool in parts.tools.values() if tool.name != subject.loaded.spec.answer.tool]
    shown = dialect.render_prompt([Message("user", "zq")], [tool.schema for tool in offered])
    opens = re.match(r"\s*(\S+?>|\S+)", written.get(offered[0].name, "") if offered else "")
    if opens is not None and offered[0].name not in shown and opens[1] not in text:
        yield subject.say("untold-tool/dialect-tells", "prompt", opens[1], at="key")


def _tools(subject: Subject, text: str) -> Iterator[Finding]:
    """Tools that the prompt speaks of where there are none, and names that are nothing in the spec."""
    warn, spec = subject.document.warning, subject.loaded.spec
    if not subject.tools:
        if (speaks := PATTERNS.any_tool.search(text)) is not None:
            yield subject.say("no-tools/prompt-says", "prompt", speaks[0], at="key")
        return
    rest = [text for path, text in strings_in(subject.document.data, ()) if path[0] not in ("prompt", "description")]
    keys = {name for tool in subject.tools.values() for name in (tool.name, *tool.parameters.get("properties", {}))}
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    schemas = [str(getattr(reward, "schema_", None) or "") for reward in spec.rewards.values()]
    known = f"{subject.code or ''} {rest} {keys} {rows} {list(spec.vars)} {list(spec.resources)} {schemas}"
    for match in PATTERNS.name.finditer(fixed_text(subject)):
        name = match[1] or match[2]
        if not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", known, re.IGNORECASE):
            message = f"the prompt names '{name}', which is no tool, argument or column"
            hint = did_you_mean(name, sorted(keys), otherwise=f"the tools are: {', '.join(subject.tools)}")
            yield warn("prompt", message, hint, "unknown-tool", at="key")
            return


def _promises(subject: Subject, text: str) -> Iterator[Finding]:
    """Numbers of calls, turns, words and seconds, and calls at once, that the prompt speaks of and a limit forbids."""
    limits, tools = subject.limits, subject.tools
    calls = min(limits.turns * limits.calls_per_turn, limits.tool_calls) if tools else math.inf
    most = {
        "limits.tool_calls": calls,
        "limits.response_tokens": (limits.response_tokens or math.inf) / 1.3,
        "limits.turns": max(limits.turns, calls if tools and subject.loaded.spec.user is None else 0),
        "limits.episode_s": limits.episode_s,
    }
    for pattern, key, size in WORDS["promises"]:
        for found in re.finditer(rf"(?i)\b{pattern}".replace("{N}", rf"(\d+|{'|'.join(_NUMBERS)})"), text):
            count = int(found[1]) if found[1].isdecimal() else 2 + _NUMBERS.index(found[1].lower())
            if count * size > most[key]:
                yield subject.say("limits/prompt-says", key, found[0], key)
                break
    for sentence in re.split(r"(?<=[.!?;])\s+|\n", text) if tools and limits.calls_per_turn == 1 else ():
        if re.search(r"(?i)\bcall|\btool|\bsearch|\blook", sentence) and (at_once := PATTERNS.at_once.search(sentence)):
            yield subject.say("limits/prompt-says-each", "limits.calls_per_turn", at_once[0])
            break
    lengths = [int(found[1]) for found in re.finditer(r"\b(\d+)[- ]words?\b", text)]
    for name, reward in subject.loaded.spec.rewards.items():
        least, longest = getattr(reward, "min", None) or 0, getattr(reward, "max", None) or math.inf
        is_words = getattr(reward, "rule", "") == "length" and getattr(reward, "unit", "") == "words"
        if is_words and reward.usual_weight > 0 and lengths and not any(least <= one <= longest for one in lengths):
            yield subject.say("limits/prompt-asks", f"rewards.{name}", lengths[0], least, longest, at="key")
        is_long = re.search(r"(?i)len|words|chars|tokens|long", f"{reward.model_dump()}") and reward.kind == "group"
        if is_long and reward.gate is None and reward.usual_weight > 0 and (brief := PATTERNS.brief.search(text)):
            yield subject.say("wrong-sign/prompt-says", f"rewards.{name}", brief[0], at="key")


def _examples(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Worked examples that give no answer in the form that is read, and those that are rows of a split."""
    spec, said = subject.loaded.spec, list[Message]()
    values = {"task": asked[0].split.rows[0], "vars": spec.vars, "resources": {}}
    with contextlib.suppress(EpisodeError, UsageError):
        said = [message for one in subject.compiled.prompt if one.role for message in messages_of(one, values)][:-1]
    is_read = spec.answer.from_ in ("tag", "boxed", "regex") and _reads_answer(subject) and spec.user is None
    for message in said:
        is_answer = message.role == "assistant" and not message.tool_calls and message.content.strip()
        if is_answer and is_read and extract(spec.answer, ParsedAction(message.content)) is None:
            yield subject.say(
                "answer-form/example", "prompt.messages", message.content[:40], spec.answer.from_, at="key"
            )
            break
    fixed, shown = fixed_text(subject), {one.content.strip() for one in said if one.role == "user"}
    for one in asked:
        for index, user in enumerate(one.users[:_MOST_SHOWN]):
            row = one.split.rows[index]
            whole = [str(value) for value in row.values() if isinstance(value, str) and len(value) > 14]
            if (user.strip() in shown and len(one.users) > 1) or any(value in fixed for value in whole if " " in value):
                yield subject.say("gold-in-prompt/example", "prompt", index + 1, one.split.name, at="key")
                return


def _untold(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Tools that a prompt tells of and a row has not, networks that no machine has, tables and pictures unseen."""
    spec, fixed = subject.loaded.spec, fixed_text(subject)
    sources = f"{prompt_texts(spec.prompt)} {[tool.description for tool in subject.tools.values()]}"
    for one in asked:
        for index, row in enumerate(one.split.rows[:_MOST_ROWS]):
            try:
                offered = subject.toolset(row).tools
            except EpisodeError:
                continue
            for name in [name for name in subject.tools if name not in offered and "user_turn" not in str(spec.tools)]:
                names = rf"(?i)\b(?:tools?|call|use|with|by)(?: the)? [`'\"]?{name}\b|\b{name}\W? tool\b"
                if re.search(names, one.texts[index]):
                    known = ", ".join(offered)
                    yield subject.say(
                        "unknown-tool/prompt-names", "prompt", name, index + 1, one.split.name, known, at="key"
                    )
                    return
    told = " ".join(f"{tool.name} {tool.kind} {tool.description}" for tool in subject.tools.values()).lower()
    for name in PATTERNS.the_tool.findall(fixed) if subject.tools else ():
        if name.lower() not in _USUAL and name.lower()[:4] not in told:
            yield subject.say("unknown-tool/prompt-says", "prompt", name, ", ".join(subject.tools), at="key")
    machines = any(one.kind == "workspace" for one in spec.resources.values())
    reaches = any(tool.kind in ("http", "mcp", "search", "verl") for tool in subject.tools.values())
    for path in ("prompt", "resources", "rewards") if machines and not reaches else ():
        text = fixed if path == "prompt" else str([text for _, text in strings_in(subject.document.get(path), ())])
        if (found := PATTERNS.network.search(text)) is not None and "no network" not in text:
            yield subject.say("no-network/says-workspace", path, found[0], at="key")
    for tool in subject.tools.values():
        if tool.kind == "sql" and not PATTERNS.of_tables.search(f"{sources} {[*subject.tools]}"):
            resource = getattr(spec.tools[tool.entry], "resource", "db")
            yield subject.say("untold-schema/which-tables", "prompt", resource, at="key")
            break
    if not spec.prompt.images and not re.search(r"image\b", sources) and (found := PATTERNS.seen.search(fixed)):
        yield subject.say("no-picture/says-shows", "prompt", found[0], at="key")


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
            yield subject.say("answer-form/prompt-names", "prompt", told, lost, name, at="key")
            return


def _answer(subject: Subject) -> Iterator[Finding]:
    answer = subject.loaded.spec.answer
    if answer.from_ == "regex" and answer.pattern is not None:
        pattern = compile_pattern(answer.pattern)
        match = pattern.last_at("It is a cat.\n")[0]
        if match is not None and match[1 if pattern.groups else 0] in ("", None):
            yield subject.say("any-answer/pattern-fits", "answer.pattern")


def _descriptions(subject: Subject) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for tool in subject.compiled.tools.values():  # of those that rows declare no two need be in one prompt
        text = " ".join(tool.description.split())
        path = f"tools.{tool.entry or tool.name}"
        if text and text in seen and tool.kind != "mcp":
            yield subject.say("same-description/has-model", path, tool.name, seen[text], at="key")
        seen.setdefault(text, tool.name)


def _user(subject: Subject) -> Iterator[Finding]:
    spec = subject.loaded.spec
    user = spec.user
    if user is None:
        return
    replies, stops = getattr(user, "replies", ()), stops_of(user)
    said = max((_said(subject, replies, row) for _, row in subject.each(_MOST_ROWS)), default=len(replies))
    if said >= subject.limits.turns:
        yield subject.say("limits/replies-turns", "user.replies", said, subject.limits.turns, said + 1)
    ends = [index for index, reply in enumerate(replies[:-1]) if any(stop in reply for stop in stops)]
    if ends:
        yield subject.say("user-ends/reply-dialogue", "user.replies", ends[0] + 1)
    if getattr(user, "kind", "") == "scripted":
        yield from _cues(subject, user)
    prompt = getattr(user, "prompt", None)
    if not isinstance(prompt, str):
        return
    if stops_of(user) and not any(stop in prompt for stop in stops_of(user)) and "stop" not in prompt.lower():
        end = stops_of(user)[0]
        yield subject.say("user-never-ends/nobody-tells", "user.prompt", end)
    if not stops_of(user):
        yield subject.say("user-never-ends/without-stop", "user.stop")
    if "task" not in prompt and len([*subject.each(2)]) > 1:
        yield subject.say("same-prompt/user-s", "user.prompt")


def _said(subject: Subject, replies: Sequence[str], row: Mapping[str, Any]) -> int:
    """How many replies a scripted user has for a row."""
    count = 0
    for reply in replies:
        value: Any = None
        with contextlib.suppress(TemplateError, RlenvError):
            value = compile_template(reply).value(task=row, vars=subject.loaded.spec.vars)
        count += len(value) if isinstance(value, list) else 1
    return count


def _cues(subject: Subject, user: Any) -> Iterator[Finding]:
    """Cues that nothing reaches, cues that an earlier one hides, and a user who ends the dialogue before it begins."""
    asked = [step.say for step in subject.loaded.spec.steps[:-1] if step.say is not None]
    patterns = [compile_pattern(cue.pattern, ignore_case=True) for cue in user.cues]
    if asked and patterns and not any(one.search(text) for one in patterns for text in asked):
        yield subject.say("unmet-cue/text-oracle", "user.cues", at="key")
    for index, cue in enumerate(user.cues):
        plain = [part for part in cue.pattern.split("|") if re.fullmatch(r"[\w\s']+", part)]
        for above, one in enumerate(patterns[:index]):
            if one.search("") or any(one.search(part) for part in plain):
                yield subject.say("hidden-cue/meets-waits", ("user", "cues", above, "pattern"), index + 1)
                return
    first = user.replies[0] if user.replies else ""
    if any(stop in first and not first.replace(stop, "").strip() for stop in stops_of(user)):
        yield subject.say("user-ends/first-message", "user.replies")
