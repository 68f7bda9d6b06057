"""Warnings of prompts: what every task asks, how it says to answer, and what nobody fills in."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from rlenv._base.text import did_you_mean, nearest, strings_in
from rlenv.checks.odd_rows import RenderedPrompts, asked_of, fixed_text, gold_term, golds_of
from rlenv.checks.subject import Subject, prompt_texts
from rlenv.errors import Finding, RlenvError
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards import answer as answers

__all__ = ["check_prompts", "reads_answer"]

Path = tuple[str | int, ...]
_EXPRESSIONS: Final = frozenset(("gate", "success", "for_each", "report_by", "function", "path", "pattern"))
_LONE: Final = re.compile(r"(?:task|vars|resources)(?:\.\w+)+")
_SINGLE: Final = re.compile(r"(?<![{\w])(?:\$?\{|%\(|\$|<<|\[\[)\s*((?:(?:task|vars)\.)?[A-Za-z_]\w*)(?:\s*[}\])>]|\b)")
_FILLED: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_TAG: Final = re.compile(r"<([A-Za-z_][\w-]*)>")
_NAMED_TOOL: Final = re.compile(
    r"`(\w+)`\s+(?:tool|function)\b|\b(?:tool|function)\s+(?:called\s+|named\s+)?`(\w+)`"
    r"|\b(?:[Cc]all|[Uu]se|[Uu]sing|[Ii]nvoke)\s+(?:the\s+)?(?:`(\w+)`|(\w+)\()|\bthe\s+(\w+)\s+tool\b"
)
_WRITES: Final = re.compile(r"(?i)\b(?:writ|implement|defin|complet|creat|fix|finish|correct|repair)\w*\b[^.!?\n]*$")
"""Begins a sentence that asks for a function, and names none that is there."""
_NEAR: Final = 80
_ANY_TOOL: Final = re.compile(r"\b(?:use|call|using|calling)\b[^.\n]{0,40}\btools?\b", re.IGNORECASE)
_CONTROL: Final = re.compile(
    r"<\|[a-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|</s>|(?m:^(?:Human|Assistant|ASSISTANT|USER):\s*$)"
    r"|(?m:^#{2,3} ?(?:Human|Assistant|User|Instruction|Response):)"
)
_UNFINISHED: Final = re.compile(
    r"\b(?:TODO|FIXME|XXX|TBD)\b|\b[Ll]orem ipsum\b|\[(?:INSERT|insert|Insert|your|YOUR|QUESTION)\b[^\]]*\]"
)
_ADJECTIVES: Final = frozenset("a any appropriate available best correct first following given last next only other "
                               "provided relevant right same second single suitable".split())  # fmt: skip
_FILTERED: Final = re.compile(
    r"\btask\.(\w+)\s*(?:\[\s*:\s*(\d+)\s*\]|\|\s*truncate\(\s*(\d+)[^)]*\)"
    r"|\|\s*(lower|upper|title|capitalize|e|escape|forceescape|random)\b)"
)
_CAPITALS: Final = re.compile(
    r"(?i)\b(?:capital letters?|capitals\b(?! of)|capitali[sz]ed|(?:upper|lower)[- ]?case|small letters?)"
)
_SUM: Final = re.compile(r"\btask\.(\w+)\s*(\+|\*|==)\s*(?:task\.(\w+)|-?\d[\d.]*)(?![\w.]*\s*[|(])")
_TESTED: Final = re.compile(r"\bif\s+(?:not\s+)?task\.(\w+)(?=\s*(?:-?%\}|\}\}|else\b|and\b|or\b))")
_NO_TABLE: Final = (
    "is|are|was|has|have|had|with|below|above|of|in|on|at|for|and|or|to|that|which|you|can|must|named|called"
)
_MOST_SHOWN: Final = 1_000


def check_prompts(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`, `prompt` and of texts with the wrong kind of braces."""
    columns = {column for split in subject.splits.values() for column in split.columns}
    yield from _braces(subject, columns)
    prompt = subject.loaded.spec.prompt
    templates = [compile_template(text) for _, text in prompt_texts(prompt)]
    asked = asked_of(subject)
    for template in templates:
        named = [path[1] for path in template.paths if path[0] == "task" and len(path) == 2]
        for lost in named:
            near = nearest(str(lost), sorted(map(str, columns))) if lost not in columns else None
            if near is not None:  # another data set may have a guarded column of another name
                message = f"no row has the column '{lost}' that it asks for; did you mean {near}?"
                yield subject.document.warning("prompt", message, f"write task.{near}", "odd-column", at="key")
    for one in asked:
        yield from _shown_badly(subject, templates, one)
    yield from _cut(subject, asked)
    yield from _joined(subject)
    yield from _keys(subject)
    if asked and asked[0].texts:
        text = asked[0].texts[0]
        yield from _forms(subject, text)
        told = [*_tools(subject, text)]
        yield from told
        yield from (one for one in _named(subject) if one.code not in {other.code for other in told})
        yield from _marks(subject)
        yield from _untold(subject, text)
        if (found := _UNFINISHED.search(f"{text} {subject.loaded.spec.description}")) is not None:
            yield subject.document.warning(
                "prompt", f"the prompt says '{found[0]}'", "finish it", "unfinished", at="key"
            )


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
                if (found := _oddly(column, row.get(column), asked.texts[index])) is not None:
                    message = f"row {index + 1} of split '{asked.split.name}': the column '{column}' {found}"
                    hint = "fill it, or use a filter such as |join(', ') or a condition"
                    yield subject.document.warning(at, message, hint, "odd-column", find=f"task.{column}")
                    break
    if subject.loaded.spec.user is None:
        for index, text in enumerate(asked.users):
            if not text.strip() and not spec.images:
                message = f"row {index + 1} of split '{asked.split.name}' asks nothing: the user's message is empty"
                yield subject.document.warning("prompt.user", message, "fill the column", "empty-prompt")
                return


def _cut(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Columns that the prompt cuts, or changes in what is asked."""
    prompt, term, said = subject.loaded.spec.prompt, gold_term(subject), fixed_text(subject)
    places = [(f"prompt.{key}", text) for key in ("system", "user") if (text := getattr(prompt, key))]
    read = {name for _, text in places for name in re.findall(r"\btask\.(\w+)", text)}
    golds = {one.split.name: golds_of(subject, term, one) if term is not None else [] for one in asked}
    for path, found in ((place[0], found) for place in places for found in _FILTERED.finditer(place[1])):
        name, most, done = found[1], int(found[2] or found[3] or 0), found[4] or ""
        rows: list[tuple[str, str]] = []
        for one in asked:
            told = golds[one.split.name] or [""] * len(one.split.rows)
            rows += [(str(row.get(name) or ""), gold) for row, gold in zip(one.split.rows, told, strict=False)]
        cut = [value for value, _ in rows if most and len(value) > most]
        held = [gold not in value[:most] for value, gold in rows if gold and gold in value]
        is_asked = len(read) == 1 or re.fullmatch(r"question|problem|query|instruction|prompt|task|statement", name)
        what = ""
        if cut and ((is_asked and 4 * len(cut) >= len(rows)) or (held and 2 * sum(held) >= len(held))):
            what = f"only {most} of {max(map(len, cut))} characters of it are shown"
        elif done in ("lower", "upper", "title", "capitalize") and _CAPITALS.search(
            f"{said} {rows[0][0] if rows else ''}"
        ):
            what = f"'{done}' takes the capitals away that are asked for"
        elif done in ("e", "escape", "forceescape") and any(re.search("[<>&\"']", value) for value, _ in rows):
            what = f"'{done}' shows &lt; and &#39; for < and '"
        elif done == "random":
            what = "'random' shows another one each time"
        if what:
            yield subject.document.warning(path, f"task.{name}: {what}", "show it whole", "cut-column", find=found[0])
            return


def _oddly(name: str, value: Any, text: str) -> str | None:
    if value is None:
        return "is null, and is shown as 'None'" if "None" in text else None
    if isinstance(value, str) and not value.strip():
        return "is empty"
    if isinstance(value, str) and re.fullmatch(r"(?i)\W*(?:todo|tbd|fixme|xxx+|placeholder|lorem ipsum.*)\W*", value):
        return f"is {value.strip()[:20]!r}, which nobody has filled in"
    if isinstance(value, str) and "', '" in value and value[:1] in tuple("[({") and value in text:
        return f"is the text of a Python list: {value[:40]}"
    if isinstance(value, (list, tuple)) and len(value) == 1 and re.search(r"option|choice|candidate", name):
        return "is a choice of one"
    if isinstance(value, (list, Mapping)) and value and str(value) in text:
        return f"is shown as Python writes it: {str(value)[:40]}"
    return None


def reads_answer(subject: Subject) -> bool:
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


def _forms(subject: Subject, text: str) -> Iterator[Finding]:
    """The findings where the prompt asks for another form of answer, thinking or calls than is read."""
    yield from _answer_form(subject, text)
    yield from _examples(subject)
    parts = subject.compiled.parts
    if parts is None:
        return
    name = getattr(parts.dialect, "name", "inline")
    if "<think>" in text and not parts.dialect.parse("<think>zq</think>x", parts.tools).thinking:
        message = f"the prompt asks for <think>, which the dialect '{name}' reads as plain text: what is thought counts"
        hint = "take a dialect with these marks, or take them out of the prompt"
        yield subject.document.warning("prompt", message, hint, "think-marks", at="key")
    called = ToolCall("zq", {})
    own = parts.dialect.render_action(Message("assistant", "", (called,)))
    for mark in ("<tool_call>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '"arguments"'):
        if mark in text and mark not in own:
            message = f"the prompt shows '{mark}', which the dialect '{name}' does not write calls with"
            hint = "leave the form of calls to the dialect"
            yield subject.document.warning("prompt", message, hint, "call-marks", at="key")
    spec = subject.loaded.spec.prompt
    for key in ("system", "user"):
        if (found := _CONTROL.search(getattr(spec, key) or "")) is not None:
            message = f"it holds '{found[0]}', a control token of chat templates"
            hint = "take it out: the template writes its own"
            yield subject.document.warning(f"prompt.{key}", message, hint, "control-token", find=found[0])


def _answer_form(subject: Subject, text: str) -> Iterator[Finding]:
    answer, document = subject.loaded.spec.answer, subject.document
    place = "answer" if document.has("answer") else "prompt"
    for tag in dict.fromkeys(_TAG.findall(text)) if answer.from_ == "final_message" and reads_answer(subject) else ():
        if f"</{tag}>" in text and _is_of_message(subject, tag):
            message = f"the prompt asks for <{tag}>, and the whole final message is the answer, tags included"
            yield document.warning(place, message, "write from: tag", "answer-form", at="key")
            break
    if not reads_answer(subject) or answer.from_ not in ("tag", "boxed", "regex"):
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


def _examples(subject: Subject) -> Iterator[Finding]:
    """Answers in the prompt's example messages that the answer's own rule does not read."""
    spec, parts = subject.loaded.spec, subject.compiled.parts
    said = [one["content"] for one in subject.document.get("prompt.messages") or () if isinstance(one, Mapping)
            and one.get("role") == "assistant" and isinstance(one.get("content"), str)
            and not one.get("tool_calls")]  # fmt: skip
    if said and parts is not None and spec.answer.from_ in ("tag", "boxed", "regex") and reads_answer(subject):
        plain = [text for text in said if "{{" not in text]
        read = [answers.extract(spec.answer, parts.dialect.parse(text, parts.tools)) for text in plain]
        if read and not any(read):
            message = f"its answers, such as {said[-1][:40]!r}, are not in the form that is read"
            yield subject.document.warning("prompt.messages", message, "write them as answers are read", "answer-form")


def _is_of_message(subject: Subject, tag: str) -> bool:
    """True for marks that stay in the message when the dialect has read thinking and calls out of it."""
    parts = subject.compiled.parts
    return parts is None or f"<{tag}>" in parts.dialect.parse(f"<{tag}>zq</{tag}>x", parts.tools).content


def _untold(subject: Subject, text: str) -> Iterator[Finding]:
    """Tools that no chat template tells the model of, and that the prompt does not explain."""
    parts = subject.compiled.parts
    ends = subject.loaded.spec.answer.tool
    tools = [] if parts is None else [tool for name, tool in parts.tools.items() if name != ends]
    if parts is None or not tools:
        return
    told = parts.dialect.render_prompt([Message("user", "zq")], [tool.schema for tool in tools])
    call = ToolCall(tools[0].name, dict.fromkeys(tools[0].parameters.get("properties", {}), "1"))
    opens = re.match(r"\s*(\S+?>|\S+)", parts.dialect.render_action(Message("assistant", "", (call,))))
    if tools[0].name not in told and opens is not None and opens[1] not in text:
        message = f"the dialect tells the model of no tools, and the prompt never says to write {opens[1]}"
        yield subject.document.warning("prompt", message, "explain the call in the prompt", "untold-tool", at="key")


def _tools(subject: Subject, text: str) -> Iterator[Finding]:
    """Tools that the prompt names and that are not there."""
    ways = r"(?:do not|don't|never|without) (?:use|using|call|calling) (?:any |the )?tools?|(?:have|are) no tools"
    refused = re.search(rf"(?i)\b(?:{ways})\b", text)
    if subject.tools and refused is not None and "call" in str(subject.document.get("oracle")):
        message = f"the prompt says '{refused[0]}', and the oracle calls them"
        yield subject.document.warning("prompt", message, "take one of them out", "no-tools", at="key")
    if not subject.tools:
        if (found := _ANY_TOOL.search(text)) is not None:
            message = f"the prompt says '{found[0]}', and there are no tools"
            yield subject.document.warning("prompt", message, "add them under 'tools:'", "no-tools", at="key")
        return
    noun = re.search(r"\b(?:[Uu]se|[Uu]sing|with) (?:the|your) (calculator|browser|interpreter|terminal|shell)\b", text)
    told = " ".join(f"{tool.name} {tool.kind} {tool.description}" for tool in subject.tools.values()).lower()
    if noun is not None and noun[1] not in told:
        message = f"the prompt names the {noun[1]}, and no tool is one"
        yield subject.document.warning("prompt", message, "name a tool that is there", "unknown-tool", at="key")
        return
    for found in _NAMED_TOOL.finditer(text):
        name = next(group for group in found.groups() if group)
        if (
            name in subject.tools
            or name.lower() in _ADJECTIVES
            or found.string[found.start() - 1] in "<"
            or _WRITES.search(text[max(0, found.start() - _NEAR) : found.start()]) is not None
            or nearest(name, [*subject.tools]) is not None
        ):
            continue
        if any(name.lower() in f"{tool.name} {tool.description}".lower() for tool in subject.tools.values()):
            continue
        message = f"the prompt names the tool '{name}', which is not there"
        hint = f"the tools are: {', '.join(subject.tools)}"
        yield subject.document.warning("prompt", message, hint, "unknown-tool", at="key")
        return


def _named(subject: Subject) -> Iterator[Finding]:
    """Names in the prompt that are nothing in the spec, its code or its rows, and columns that stand there twice."""
    spec, said = subject.loaded.spec, fixed_text(subject)
    rest = [text for path, text in strings_in(subject.document.data, ()) if path[0] not in ("prompt", "description")]
    keys = {name for tool in subject.tools.values() for name in (tool.name, *tool.parameters.get("properties", {}))}
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    known = f"{subject.code or ''} {' '.join(rest)} {keys} {rows} {list(spec.vars)} {list(spec.resources)}"
    known += " ".join(f"{key}" for reward in spec.rewards.values() for key in (getattr(reward, "schema_", None) or {}))
    for found in re.finditer(r"`(\w{3,})(?:\(.*?\))?`|(?<![<\w/.-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b", said):
        name = found[1] or found[2]
        if subject.tools and not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", known, re.IGNORECASE):
            message = f"the prompt names '{name}', which is no tool, argument or column"
            hint = did_you_mean(name, sorted(keys), otherwise=f"the tools are: {', '.join(subject.tools)}")
            yield subject.document.warning("prompt", message, hint, "unknown-tool", at="key")
            return
    table = re.search(rf"\btables? (?!(?:{_NO_TABLE})\b)`?(\w+)`?[ (,:]", said)
    queries = " ".join(re.findall(r"(?i)\b(?:from|join|into|update)\s+[\"`]?\w+", f"{rows} {rest}"))
    if table is not None and queries and not re.search(rf"(?i)\b{table[1]}\b", f"{known} {queries}"):
        message = f"the prompt names the table '{table[1]}', which no query reads"
        yield subject.document.warning("prompt", message, "name the table that is there", "unknown-table", at="key")
    engines = {word.lower() for word in re.findall(r"(?i)\b(postgres|mysql|mariadb|sqlite|duckdb|t-sql)", said)}
    kinds = {one.kind for one in spec.resources.values()} & {"sqlite", "duckdb"}
    if engines and kinds and not engines & kinds:
        message = f"the prompt speaks of {', '.join(sorted(engines))}, and the database is {', '.join(sorted(kinds))}"
        yield subject.document.warning("prompt", message, "name the engine that runs", "unknown-table", at="key")
    shown = re.findall(r"\{\{-?\s*task\.(\w+)\s*-?\}\}", spec.prompt.user)
    twice = next((name for name in shown if shown.count(name) > 1), None)
    long = [len(str(row.get(twice or "", ""))) for row in rows]
    if twice is not None and "{%" not in spec.prompt.user and min(long, default=0) > 20:
        message = f"it shows the column '{twice}' twice"
        yield subject.document.warning("prompt.user", message, "show it once", "same-prompt")
        return
    numbers = [int(one) for one in re.findall(r"(?m)^\s*(\d{1,2})[.)]\s+\S", said)]
    if (gap := next((b for a, b in pairwise(numbers) if b not in (a + 1, 1)), None)) is not None:
        message = f"its steps leave one out before {gap}"
        yield subject.document.warning("prompt", message, "number them anew", "unfinished", at="key")
    writes = re.search(r"(?<!not )(?<!never )(?<!no )\b(?:INSERT|UPDATE|DELETE)\b", said)
    if writes and {getattr(one, "access", "") for one in spec.resources.values()} == {"read_only"}:
        message = f"the prompt speaks of {writes[0]}, and the database is read-only"
        yield subject.document.warning("prompt", message, "write access: copy", "no-table-writes", at="key")
    texts = " ".join(text for path, text in strings_in(subject.document.data, ()) if path[0] != "tasks")
    unread = [name for split in subject.splits.values() for name, count in split.columns.items()
              if count and not re.search(rf"\b{re.escape(name)}\b", f"{texts} {subject.code or ''}")
              and any(len(str(row.get(name, ""))) > 15 for row in split.rows[:20])]  # fmt: skip
    if twice is not None and unread and "{%" not in spec.prompt.user:
        message = f"it shows the column '{twice}' twice, and nothing reads '{unread[0]}'"
        yield subject.document.warning("prompt.user", message, f"show task.{unread[0]}", "unread-column")


def _marks(subject: Subject) -> Iterator[Finding]:
    """Marks that the prompt tells to call with and nobody reads, and tools that the dialect cannot call."""
    parts = subject.compiled.parts
    if parts is None:
        return
    calls = {}
    for name, tool in parts.tools.items():
        given = random_value({"type": "object", **tool.parameters}, random.Random(0))
        call = ToolCall(name, given if isinstance(given, dict) else {})
        try:
            calls[name] = parts.dialect.render_action(Message("assistant", "", (call,)))
            read = [one.name for one in parts.dialect.parse(calls[name], parts.tools).calls]
        except Exception as error:  # a dialect that cannot write the call
            calls[name], read = str(error), []
        if name not in read:
            message = f"the dialect cannot write a call of '{name}'"
            yield subject.document.warning(("tools", name), message, "add a form for it", "unreachable-tool", at="key")


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


def _joined(subject: Subject) -> Iterator[Finding]:
    """Sums and products of columns that hold texts, such as those of a csv file: 2 + 3 is 23."""
    rows = [row for split in subject.splits.values() for row in split.rows[:20]]
    for path, text in strings_in(subject.document.data, ()):
        for found in _TESTED.finditer(text) if path[0] not in ("tasks", "description") else ():
            told = {str(row.get(found[1])).lower() for row in rows if isinstance(row.get(found[1]), str)}
            if told & {"false", "no", "0", "n"} and told <= {"false", "no", "0", "n", "true", "yes", "1", "y", ""}:
                message = f"'{found[0].strip()}': task.{found[1]} is a text, and any text counts as true, 'False' too"
                hint = f"compare it: task.{found[1]} == 'True'"
                yield subject.document.warning(path, message, hint, "other-type", find=found[0].strip())
                return
        for found in _SUM.finditer(text) if path[0] not in ("tasks", "description") and "{" in text else ():
            names = [name for name in (found[1], found[3]) if name]
            cells = [row.get(name) for row in rows for name in names]
            if cells and all(isinstance(cell, str) and re.fullmatch(r"-?[\d.]+", cell) for cell in cells):
                message = f"'{found[0].strip()}': '{names[0]}' is a text, as all cells of a csv file are"
                hint = f"write task.{names[0]}|float"
                yield subject.document.warning(path, message, hint, "other-type", find=found[0].strip())
                return
