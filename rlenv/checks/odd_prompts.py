"""Warnings of prompts and users: how to answer, what nobody fills in, and users who never end or know no row."""

from __future__ import annotations

import builtins
import contextlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rlenv._base.text import did_you_mean, nearest, strings_in
from rlenv.checks.odd_golds import NUMBERS, number_of
from rlenv.checks.odd_rows import RenderedPrompts, asked_of
from rlenv.checks.subject import PATTERNS, WORDS, Subject, all_golds, demands, fixed_text, gold_columns, prompt_texts
from rlenv.episodes.compile import messages_of
from rlenv.errors import EpisodeError, Finding, RlenvError, UsageError
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.answer import compile_pattern, extract
from rlenv.users.base import stops_of

_COLUMN: Final = re.compile(r"\btask\.(\w+)")
_MOST_SHOWN: Final = 1_000
_MOST_ROWS: Final = 100
_FIRST: Final = 20


def check_prompts(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`, `prompt` and of texts with the wrong kind of braces."""
    columns = {column for split in subject.splits.values() for column in split.columns}
    templates = [compile_template(text) for _, text in prompt_texts(subject.loaded.spec.prompt)]
    asked, fixed = asked_of(subject), fixed_text(subject)
    for lost in (path[1] for template in templates for path in template.paths if path[0] == "task" and len(path) == 2):
        near = nearest(str(lost), sorted(map(str, columns))) if lost not in columns else None
        if near is not None:  # another data set may have a guarded column of another name
            yield subject.say("odd-column/no-such", "prompt", lost, near, at="key")
    for one in asked:
        yield from _check_shown_values(subject, templates, one)
    if asked and asked[0].texts:
        text = "\n".join(text for one in asked for text in one.texts[:_FIRST])
        for form in (_check_answer_form, _check_marks):
            yield from form(subject, text)
        if (blank := PATTERNS.unfinished.search(f"{fixed} {subject.loaded.spec.description}")) is not None:
            yield subject.say("unfinished/prompt", "prompt", blank[0], at="key")
        for told in (_check_examples, _check_untold):
            yield from told(subject, asked)
    for check in (_check_escapes, _check_tools, _check_promises, _conflicts, _check_answer, _descriptions, _check_user):
        yield from check(subject)


def _check_shown_values(subject: Subject, templates: Sequence[Template], asked: RenderedPrompts) -> Iterator[Finding]:
    """Columns that the prompt shows as nothing, or as Python writes a list."""
    spec_of, spec = subject.loaded.spec, subject.loaded.spec.prompt
    for (at, _), template in zip(prompt_texts(spec), templates, strict=True):
        if at[-1] not in ("system", "content", "user"):
            continue  # it gives whole messages
        shown = sorted(path[1] for path in template.paths if path[0] == "task" and len(path) == 2)
        if PATTERNS.whole.search(template.source) and any(gold_columns(one) for one in spec_of.rewards.values()):
            yield subject.say("gold-in-prompt/whole-row", at)
        for column, end in PATTERNS.sliced.findall(template.source) if len(shown) == 1 and at[-1] == "user" else ():
            sizes = sorted(len(str(row.get(column))) for row in asked.split.rows)
            if int(end) < min(300, sizes[len(sizes) // 2]):
                yield subject.say("cut-text/in-prompt", at, column)
        for column in shown:
            # A template with a condition or a filter may well know what to do about such a row.
            is_plain = "{%" not in template.source and column in PATTERNS.plain.findall(template.source)
            rows = asked.split.rows[:_MOST_SHOWN] if is_plain and asked.texts else ()
            blank = [index for index, row in enumerate(rows) if str(row.get(column, "")).strip() == ""]
            # A second column may well be empty at times, as an input beside an instruction is.
            is_odd = blank and (len(shown) == 1 or 20 * len(blank) <= len(rows))
            odds = {blank[0]: "is empty"} if is_odd and asked.users[blank[0]].strip() else {}
            told = [(index, _odd_value(row.get(column), asked.texts[index])) for index, row in enumerate(rows)]
            odds |= {index: odd for index, odd in told if odd is not None}
            for index in [*odds][:1]:
                given = (index + 1, asked.split.name, column, odds[index])
                yield subject.say("odd-column/value", at, *given, find=f"task.{column}")
    if subject.loaded.spec.user is None:
        for index, text in enumerate(asked.users):
            if not text.strip() and not spec.images:
                yield subject.say("empty-prompt/of-row", "prompt.user", index + 1, asked.split.name)
                return


def _odd_value(value: Any, text: str) -> str | None:
    if value is None:
        return "is null, and is shown as 'None'" if "None" in text else None
    if isinstance(value, str) and re.fullmatch(r"(?i)\W*(?:todo|tbd|fixme|xxxx+|placeholder|lorem ipsum.*)\W*", value):
        return f"is {value.strip()[:20]!r}, which nobody has filled in"
    if isinstance(value, str) and (PATTERNS.tried.fullmatch(value) or value.lower() in ("nan", "undefined")):
        return f"is {value.strip()[:20]!r}, as if left from trying out"
    if isinstance(value, str) and "', '" in value and value[:1] in tuple("[({") and value in text:
        return f"is the text of a Python list: {value[:40]}"
    if isinstance(value, (list, Mapping)) and value and str(value) in text:
        return f"is shown as Python writes it: {str(value)[:40]}"
    return None


def _check_escapes(subject: Subject) -> Iterator[Finding]:
    """A backslash and an n in the spec's own texts, where a line is meant to end."""
    texts = [*prompt_texts(subject.loaded.spec.prompt)]
    texts += [(path, text) for path, text in strings_in(subject.document.data, ())
              if path[0] in ("user", "observation") or path[-1] in ("prompt", "description", "system")]  # fmt: skip
    for path, text in dict(texts).items():
        plain = PATTERNS.quoted.sub("", PATTERNS.filled.sub("\ufffc", text))
        if (found := PATTERNS.escape.search(plain)) is not None:
            yield subject.say("literal-escape/in-text", path, found[0][:2], find=found[0])


def _reads_answer(subject: Subject) -> bool:
    """True where a term surely looks at the answer, and at nothing else of the message, or the spec says its form."""
    if subject.document.has("answer") and subject.loaded.spec.answer.from_ in ("tag", "boxed", "regex"):
        return True
    for spec in [term.spec for term in subject.terms if getattr(term.spec, "of", "answer") == "answer"]:
        texts = f"{getattr(spec, 'arguments', '')} {getattr(spec, 'prompt', '')}"
        if kind_of("rewards", spec).reads_answer or re.search(r"\{\{[^}]*\banswer\b", texts):
            return True
    return False


def _check_answer_form(subject: Subject, text: str) -> Iterator[Finding]:
    """An answer that the prompt asks for in another form than is read, or never says how to give."""
    answer = subject.loaded.spec.answer
    if not _reads_answer(subject):
        return
    place = "answer" if subject.document.has("answer") else "prompt"
    tags = [tag for tag in PATTERNS.asked_tag.findall(fixed_text(subject)) if _is_of_message(subject, tag)]
    if tags and answer.from_ == "final_message":
        yield subject.say("answer-form/tag-not-read", place, tags[0], at="key")
    if tags and answer.from_ == "tool" and str(answer.tool) not in text:
        yield subject.say("answer-form/tool-not-named", place, tags[-1], answer.tool, at="key")
    if answer.from_ not in ("tag", "boxed", "regex"):
        return
    wanted = {"tag": f"<{answer.tag}>", "boxed": "\\boxed{…}"}.get(answer.from_, f"what fits {answer.pattern}")
    if answer.from_ == "regex":
        words = re.findall(r"[^\W\d_]{3,}|#+", re.sub(r"\\[A-Za-z]|\(\?[^)]*\)|\[[^\]]*\]", " ", answer.pattern or ""))
        says = not words or any(word.lower() in text.lower() for word in words)
    else:
        says = re.search(rf"</?{re.escape(answer.tag)}\b" if answer.from_ == "tag" else r"boxed", text) is not None
    other = (f"<{tags[-1]}>", f"tag: {tags[-1]}") if tags else ("\\boxed", "from: boxed") if "\\boxed" in text else None
    if not says and other is not None:
        yield subject.say("answer-form/other-form", place, other[0], wanted, other[1], at="key")
    elif not says:
        yield subject.say("answer-form/never-said", place, wanted, at="key")


def _is_of_message(subject: Subject, tag: str) -> bool:
    """True for marks that stay in the message when the dialect has read thinking and calls out of it."""
    parts = subject.compiled.parts
    return parts is None or f"<{tag}>" in parts.dialect.parse(f"<{tag}>zq</{tag}>x", parts.tools).content


def _check_marks(subject: Subject, text: str) -> Iterator[Finding]:
    """Marks of thinking, calls and turns that are not those of the dialect, and tools that it cannot call."""
    parts, fixed = subject.compiled.parts, fixed_text(subject)
    if parts is None:
        return
    name, dialect = getattr(parts.dialect, "name", "inline"), parts.dialect
    is_plain = name != "search_r1" and not dialect.parse("<think>zq</think>x", parts.tools).thinking
    if "<think>" in fixed and is_plain:  # there it is plain text to the original too
        yield subject.say("think-marks/not-read", "prompt", name, at="key")
    own = dialect.render_action(Message("assistant", "", (ToolCall("zq", {}),)))
    for mark in WORDS["marks"]:
        if mark in fixed and mark not in own:
            yield subject.say("call-marks/other-dialect", "prompt", mark, name, at="key")
    for key in ("system", "user"):
        if (token := PATTERNS.control.search(getattr(subject.loaded.spec.prompt, key) or "")) is not None:
            yield subject.say("control-token/in-prompt", f"prompt.{key}", token[0], find=token[0])
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
            yield subject.say("unreachable-tool/no-form", ("tools", tool.name), tool.name, at="key")
    offered = [tool for tool in parts.tools.values() if tool.name != subject.loaded.spec.answer.tool]
    shown = dialect.render_prompt([Message("user", "zq")], [tool.schema for tool in offered])
    opens = re.match(r"\s*(\S+?>|\S+)", written.get(offered[0].name, "") if offered else "")
    if opens is not None and offered[0].name not in shown and opens[1] not in text:
        yield subject.say("untold-tool/of-dialect", "prompt", opens[1], at="key")


def _check_tools(subject: Subject) -> Iterator[Finding]:
    """Tools that the prompt speaks of where there are none, and names that are nothing in the spec."""
    spec, fixed = subject.loaded.spec, fixed_text(subject)
    if not subject.tools:
        return
    rest = [text for path, text in strings_in(subject.document.data, ()) if path[0] not in ("prompt", "description")]
    keys = {name for tool in subject.tools.values() for name in (tool.name, *tool.parameters.get("properties", {}))}
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    schemas = [str(getattr(reward, "schema_", None) or "") for reward in spec.rewards.values()]
    there = f"{rest} {keys} {rows} {[*spec.vars, *spec.resources]}"
    known = f"{there} {subject.code or ''} {schemas}"
    # Where a tool reaches a world, such as a database or Python, the prompt may name what stands in that.
    is_closed = all(tool.kind in ("python", "http", "mcp", "calculator", "search") for tool in subject.tools.values())
    for match in PATTERNS.name.finditer(fixed):
        name, before = match[1] or match[2], fixed[max(0, match.start() - 24) : match.start()]
        is_called = is_closed and PATTERNS.calls.search(before) and not hasattr(builtins, name)
        is_known = re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", known, re.IGNORECASE)
        is_there = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", there)
        tail = [tool for tool in subject.tools if tool.endswith(f"_{name}") and match[1] and not is_there]
        if tail or (not is_known and (is_called or nearest(name, subject.tools) is not None)):
            hint = did_you_mean(name, sorted(keys), otherwise=f"the tools are: {', '.join(subject.tools)}")
            yield subject.say("unknown-tool/name", "prompt", name, hint, at="key")
            return


def _check_promises(subject: Subject) -> Iterator[Finding]:
    """Numbers of calls, turns, words and seconds, and calls at once, that the prompt speaks of and a limit forbids."""
    limits, tools, text = subject.limits, subject.tools, "\n".join(demands(subject))
    is_long = tools or subject.loaded.spec.user is not None  # else it may speak of moves in a game
    calls = min(limits.turns * limits.calls_per_turn, limits.tool_calls) if tools else math.inf
    most = {
        "limits.tool_calls": calls,
        "limits.response_tokens": (limits.response_tokens or math.inf) / 1.3,
        "limits.turns": max(limits.turns, calls if subject.loaded.spec.user is None else 0) if is_long else math.inf,
        "limits.episode_s": limits.episode_s,
    }
    searches = {f"tools.{name}.top_k": one for name, one in subject.loaded.spec.tools.items() if one.kind == "search"}
    most |= {place: getattr(one, "top_k", math.inf) for place, one in [*searches.items()][:1]}
    for pattern, key, size in WORDS["promises"]:
        for found in re.finditer(rf"(?i)\b{pattern}".replace("{N}", rf"(\d+|{'|'.join(NUMBERS[2:])})"), text):
            count = number_of(found[1])
            place = key if key in most else next(iter(searches), "")
            if place and count * size > most[place]:
                yield subject.say("limits/promise", place, found[0], place)
                break
    lengths = [int(found[2]) - bool(found[1]) for found in PATTERNS.words.finditer(text)]
    for name, reward in subject.loaded.spec.rewards.items():
        least, longest = getattr(reward, "min", None) or 0, getattr(reward, "max", None) or math.inf
        is_words = getattr(reward, "rule", "") == "length" and getattr(reward, "unit", "") == "words"
        is_length = getattr(reward, "rule", "") == "length" and longest in lengths and reward.usual_weight > 0
        if is_length and not is_words:
            yield subject.say("limits/unit", f"rewards.{name}", f"{longest} words", name, at="key")
        if is_words and reward.usual_weight > 0 and lengths and not any(least <= one <= longest for one in lengths):
            yield subject.say("limits/words", f"rewards.{name}", lengths[0], least, longest, at="key")


def _conflicts(subject: Subject) -> Iterator[Finding]:
    """What the prompt asks for, and the tools, the user or the terms of the spec do not allow."""
    spec, tools = subject.loaded.spec, [*subject.tools.values()]
    rules = {getattr(one, "rule", "") for one in spec.rewards.values() if getattr(one, "of", "answer") == "answer"}
    modes = [one for one in subject.terms if getattr(one.spec, "mode", "") == "any"]
    lists = [one for one in modes if kind_of("rewards", one.spec).several]
    shown = f"{fixed_text(subject)}{spec.prompt}"
    engines = {one.kind for one in spec.resources.values() if one.kind in ("sqlite", "duckdb")}
    facts = {
        "read-only": any(tool.kind == "sql" for tool in tools) and not any(tool.mutates for tool in tools),
        "code": any(tool.kind == "code" for tool in tools),
        "code-alone": tools and all(tool.kind == "code" for tool in tools),
        "sqlite": engines == {"sqlite"} and not re.search(r"(?i)sqlite|\.dialect", shown),
        "forgets": any(getattr(one, "session", True) is False for one in spec.tools.values()),
        "alone": spec.user is None and not re.search(r"(?i)ask|user|human", " ".join(subject.tools)),
        "toolless": not tools,
        "tagged": spec.answer.from_ == "tag" and f"<{spec.answer.tag}>" in fixed_text(subject),
        "one-call": tools and subject.limits.calls_per_turn == 1,
        "whole": spec.answer.from_ == "final_message" and rules & {"exact_match", "numeric_match", "math_equal"},
        "ordered": any(getattr(one, "order", None) is True for one in spec.rewards.values()),
        "any-of": any(not any(all_golds(subject, one, split)[0] for split in subject.splits.values()) for one in lists),
    }
    for key, fact, pattern in WORDS["conflicts"]:
        if facts[fact] and (found := [match for one in demands(subject) if (match := re.search(pattern, one))]):
            yield subject.say(key, "prompt", found[0][found[0].lastindex or 0], at="key")


def _check_examples(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Worked examples that give no answer in the form that is read, and those that are rows of a split."""
    spec, said = subject.loaded.spec, list[Message]()
    values = {"task": asked[0].split.rows[0], "vars": spec.vars, "resources": {}}
    with contextlib.suppress(EpisodeError, UsageError):
        said = [message for one in subject.compiled.prompt if one.role for message in messages_of(one, values)][:-1]
    is_read = spec.answer.from_ in ("tag", "boxed", "regex") and _reads_answer(subject) and spec.user is None
    for message in said:
        is_answer = message.role == "assistant" and not message.tool_calls and message.content.strip()
        if is_answer and is_read and extract(spec.answer, ParsedAction(message.content)) is None:
            shown_text = message.content[:40]
            yield subject.say("answer-form/example", "prompt.messages", shown_text, spec.answer.from_, at="key")
            break
    for name in [call.name for message in said for call in message.tool_calls if call.name not in subject.tools][:1]:
        hint = f"the tools are: {', '.join(subject.tools)}"
        yield subject.say("unknown-tool/name", "prompt.messages", name, hint, at="key")
    fixed, shown = fixed_text(subject), {one.content.strip() for one in said if one.role == "user"}
    for one in asked:
        for index, user in enumerate(one.users[:_MOST_SHOWN]):
            row = one.split.rows[index]
            texts = [text for text in row.values() if isinstance(text, str) and len(text) > 14 and " " in text]
            hits = [text for text in texts if text in user and text in fixed]
            is_of_row = any(sum(text in other for other in one.users[:_MOST_ROWS]) <= 1 for text in hits)
            if is_of_row or (user.strip() in shown and len(one.users) > 1):
                yield subject.say("gold-in-prompt/example", "prompt", index + 1, one.split.name, at="key")
                return


def _check_untold(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Tools that a prompt tells of and a row has not, networks that no machine has, tables and pictures unseen."""
    spec, fixed = subject.loaded.spec, fixed_text(subject)
    sources = f"{prompt_texts(spec.prompt)} {[tool.description for tool in subject.tools.values()]}"
    text, named = "\n".join(demands(subject)), list[tuple[str, str]]()
    is_shared = spec.user is not None and spec.user.kind == "players"
    for name in subject.tools if "user_turn" not in str(spec.tools) else ():
        names = rf"(?i)\b(?:tools?|call|use|with|by)(?: the)? [`'\"]?{re.escape(name)}\b|\b{re.escape(name)}\W? tool\b"
        named += [(name, names)] if re.search(names, text) else []
    for one in asked if named else ():
        for index, row in enumerate(one.split.rows[: len(one.texts)]):
            try:
                offered = subject.toolset(row).tools
            except EpisodeError:
                continue
            lost = [name for name, names in named if name not in offered and re.search(names, one.texts[index])]
            # Players who have tools by their part read one text for all.
            if lost and not (is_shared and all(re.search(dict(named)[lost[0]], text) for text in one.texts)):
                given = (lost[0], index + 1, one.split.name, ", ".join(offered))
                yield subject.say("unknown-tool/not-offered", "prompt", *given, at="key")
                return
    told = " ".join(f"{tool.name} {tool.kind} {tool.description}" for tool in subject.tools.values()).lower()
    for name in PATTERNS.the_tool.findall(fixed) if subject.tools else ():
        if name.lower()[:4] not in told:
            yield subject.say("unknown-tool/word", "prompt", name, ", ".join(subject.tools), at="key")
    bare, is_shown = fixed.replace("\ufffc", ""), subject.tools or spec.resources or spec.user or spec.prompt.images
    passages = [found for one in demands(subject) if (found := PATTERNS.passage.search(one))]
    passages = [found for found in passages if f"task.{found[found.lastindex or 0]}" not in sources]
    filled = [len(one) - len(bare) for split in asked for one in split.texts]
    is_asked = all(one.count("?") > bare.count("?") for split in asked for one in split.texts)  # else it is the text
    if passages and not is_shown and is_asked and len(bare) < 600 and filled and max(filled) < 60:
        columns = ", ".join(f"task.{column}" for column in sorted(asked[0].split.columns))
        yield subject.say("no-passage/in-prompt", "prompt", passages[0][0], max(filled), columns, at="key")
    machines = any(one.kind == "workspace" for one in spec.resources.values())
    reaches = any(tool.kind in ("http", "mcp", "search", "verl") for tool in subject.tools.values())
    for path in ("prompt", "resources", "rewards") if machines and not reaches else ():
        said = text if path == "prompt" else str([text for _, text in strings_in(subject.document.get(path), ())])
        if (found := PATTERNS.network.search(said)) is not None and "no network" not in said:
            yield subject.say("no-network/workspace", path, found[0], at="key")
    for tool in subject.tools.values():
        resource = getattr(spec.tools[tool.entry], "resource", "db") if tool.entry in spec.tools else "db"
        shown = re.findall(r"\bresources\.(\w+)\.schema", sources)
        is_told = resource in shown if shown else PATTERNS.of_tables.search(f"{sources} {[*subject.tools]}")
        if tool.kind == "sql" and not is_told:
            yield subject.say("untold-schema/tables", "prompt", resource, at="key")
            break
    # A tool may show it, and a diagram may be drawn in letters.
    read = re.findall(r"task\.\w+", sources)
    is_shown = spec.prompt.images or PATTERNS.picture_word.search(f"{told} {read}")
    if not is_shown and not re.search(r"image\b", sources) and (found := PATTERNS.seen.search(fixed)):
        yield subject.say("no-picture/in-prompt", "prompt", found[0], at="key")


def _check_answer(subject: Subject) -> Iterator[Finding]:
    answer = subject.loaded.spec.answer
    if answer.from_ == "regex" and answer.pattern is not None:
        match = (pattern := compile_pattern(answer.pattern)).last_at("It is a cat.\n")[0]
        if match is not None and match[1 if pattern.groups else 0] in ("", None):
            yield subject.say("any-answer/empty-match", "answer.pattern")


def _descriptions(subject: Subject) -> Iterator[Finding]:
    seen, tools = dict[str, str](), {tool.name: tool for tool in subject.compiled.tools.values()}
    for tool in tools.values():
        takes, place = tool.parameters.get("properties", {}), f"tools.{tool.entry or tool.name}"
        asked = PATTERNS.gives.sub("", tool.description)  # what stands in its result is no argument
        told = [(found, place, "description") for found in re.findall(r"`(\w{3,})`", asked)]
        shown = re.findall(rf"\b{re.escape(tool.name)}\((\w+)\s*[=:]", fixed_text(subject))
        rest = f"{tool.parameters} {[*tools]} {subject.code or ''}"
        for found, place, what in [*told, *((one, "prompt", "prompt") for one in shown)]:
            if tool.kind in ("python", "http", "command", "model") and not re.search(rf"\b{found}\b", rest):
                yield subject.say("unknown-tool/argument", place, what, found, tool.name, ", ".join(takes), at="key")
                break
    for tool in subject.compiled.tools.values():  # of those that rows declare no two need be in one prompt
        text = " ".join(tool.description.split())
        if text and text in seen and tool.kind != "mcp":
            place = f"tools.{tool.entry or tool.name}"
            yield subject.say("same-description/of-tools", place, tool.name, seen[text], at="key")
        seen.setdefault(text, tool.name)


def _check_user(subject: Subject) -> Iterator[Finding]:
    spec, user = subject.loaded.spec, subject.loaded.spec.user
    if user is None:
        return
    replies, stops = getattr(user, "replies", ()), stops_of(user)
    said = max((_reply_count(subject, replies, row) for _, row in subject.each(_MOST_ROWS)), default=len(replies))
    if (needed := said + bool(spec.prompt.asks)) > subject.limits.turns:  # else the first reply is what it asks
        yield subject.say("limits/replies", "user.replies", said, subject.limits.turns, needed)
    ends = [index for index, reply in enumerate(replies[:-1]) if any(stop in reply for stop in stops)]
    for index in ends[:1]:
        yield subject.say("user-ends/early-reply", "user.replies", index + 1)
    if getattr(user, "kind", "") == "scripted":
        yield from _check_cues(subject, user)
    prompt = getattr(user, "prompt", None)
    if not isinstance(prompt, str):
        return
    if stops and not any(stop in prompt for stop in stops) and "stop" not in prompt.lower():
        yield subject.say("user-never-ends/not-told", "user.prompt", stops[0])
    if not stops:
        yield subject.say("user-never-ends/no-stop", "user.stop")
    # It hears the prompt of the task as its own words.
    heard = [text for path, text in prompt_texts(spec.prompt) if path[1] != "system"]
    if "task" not in f"{prompt} {heard}" and len([*subject.each(2)]) > 1:
        yield subject.say("same-prompt/of-user", "user.prompt")


def _reply_count(subject: Subject, replies: Sequence[str], row: Mapping[str, Any]) -> int:
    """How many replies a scripted user has for a row."""
    try:
        given = [compile_template(reply).value(task=row, vars=subject.loaded.spec.vars) for reply in replies]
    except (TemplateError, RlenvError):
        return len(replies)
    return sum(len(value) if isinstance(value, list) else 1 for value in given)


def _check_cues(subject: Subject, user: Any) -> Iterator[Finding]:
    """Cues that nothing reaches, cues that an earlier one hides, and a user who ends the dialogue before it begins."""
    asked = [step.say for step in subject.loaded.spec.steps[:-1] if step.say is not None]
    patterns = [compile_pattern(cue.pattern, ignore_case=True) for cue in user.cues]
    if asked and patterns and not any(one.search(text) for one in patterns for text in asked):
        yield subject.say("unmet-cue/by-oracle", "user.cues", at="key")
    for index, cue in enumerate(user.cues):
        plain = [part for part in cue.pattern.split("|") if re.fullmatch(r"[\w\s']+", part)]
        for above, one in enumerate(patterns[:index]):
            if one.search("") or any(one.search(part) for part in plain):
                yield subject.say("hidden-cue/by-earlier", ("user", "cues", above, "pattern"), index + 1)
                return
    first, stops = user.replies[0] if user.replies else "", stops_of(user)
    if any(stop in first and not first.replace(stop, "").strip() for stop in stops):
        yield subject.say("user-ends/at-once", "user.replies")
    needed = {one for spec in subject.loaded.spec.rewards.values() for one in _COLUMN.findall(str(gold_in(spec)))}
    every = [*user.replies, *(cue.say for cue in user.cues)]
    last = [text for text in every if any(stop in text for stop in stops)]
    rows = [row for _, row in subject.each(_MOST_ROWS)]
    if subject.document.has("user.stop") and not any(stop in f"{every} {rows}" for stop in stops):
        yield subject.say("user-never-ends/not-said", "user.stop", " or ".join(stops))
    before = [*{*every} - {*last}, *(text for _, text in prompt_texts(subject.loaded.spec.prompt))]
    if told := needed & {*_COLUMN.findall(" ".join(last))} - {*_COLUMN.findall(" ".join(before))}:
        yield subject.say("user-ends/told-last", "user", min(told), at="key")
