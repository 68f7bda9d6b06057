"""Golds that stand where a policy can read them without answering: prompts, tools, and what tools say to anything.

A task may show its gold by nature: a passage holds the answer, a database its rows. What is no such thing is a place
that gives the gold away whatever is asked (see `rlenv.audit.place_rules`), and a tool's description that says it.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

from rlenv.audit.data import Found, Row, Rows, named
from rlenv.audit.place_rules import Sure, learn
from rlenv.audit.report import Finding
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.policies.scripted import random_value
from rlenv.trajectory import Trajectory

__all__ = ["find_leaks"]

_MOST_PROBED = 48
_MOST_TOOLS = 12
_PROBING_S = 30.0
_STEM = 5
_WORD = re.compile(r"[^\W\d_]{3,}")
_BOUNDS = re.compile(r"[.?!:](?=\s)|[\n()\[\]{}|;<>]")
_LABEL = re.compile(r"([^\W\d_]+)[\"']?\s*[:=#]*\s*(?:no\.?|number)?\s*[\"'(\[]?[\w/.-]*$", re.IGNORECASE)
_FIELD = re.compile(r"[^\W\d_]+[\"']?\s*[:=]\s*[\"']?[\w-]")
_ASKED = re.compile(r"[^.?!\n:]*\?")
_RECORD = 3
_EMPTY = frozenset(
    "the and are was were has have had for with that this what which who how many much does did you your".split()
)
# A prompt that says so shows its gold by nature.
_SHOWS = re.compile(
    r"\b(?:passages?|texts?|documents?|contexts?|paragraphs?|articles?|excerpts?|e-?mails?|messages?|tables?|extract\w*|cop(?:y|ies)"
    r"|repeat\w*|quot(?:e|ed)|story|log|transcript|following|below|above|snippets?|sentences?|lists?|options?|choose|pick)\b",
    re.IGNORECASE,
)
_TURNS = re.compile(
    r"\b(?:revers\w*|backwards?|mirror\w*|hex\w*|base ?64|(?:en|de)cod\w*|rot-?13|cipher\w*|caesar|cents?|per ?cent\w*"
    r"|alphabet\w*|convert\w*|binary|letters?|spell\w*)\b",
    re.IGNORECASE,
)
_GIVEN = frozenset("answer gold golden solution result target label ref hint debug expected correct secret".split())


_Views = dict[tuple[str, str], dict[str, tuple[Sure, list[Row], str]]]
"""By finding and place, and by split: the rule, the rows that it was learnt on, and how it was asked."""


async def find_leaks(
    environment: Environment, rows: Rows, played: Mapping[str, Sequence[Trajectory]], found: Found, *, seed: int
) -> None:
    """Findings over golds that stand where no question has to be read; what tools say is asked of the tools."""
    _in_tools(environment, rows, found)
    biased = {finding.hole for finding in found.findings}
    views: _Views = defaultdict(dict)
    for split, some in rows.items():
        usable = [row for row in some if _gold(row)]
        # Options whose place gives the gold away are named as that.
        if usable and "option_position" not in biased:
            shown = [row for row in usable if row.prompt]
            sure = learn([row.prompt or "" for row in shown], [_gold(row) for row in shown], allowed=_is_unasked)
            if sure is not None:
                views["gold_in_prompt", "the prompt"][split] = (sure, shown, "")
        await _asked(environment, split, usable, played[split], views, found, seed=seed)
    for (hole, view), splits in views.items():
        if not splits:
            continue
        sure, shown, how = next(iter(splits.values()))
        right = [shown[at] for at in sure.rows]
        where = ", ".join(f"{one.hits} of {one.of} in '{split}'" for split, (one, _, _) in splits.items())
        message = f"{view}{how} gives golds away: {sure.rule} is the gold on {where} (by chance {sure.chance:.0%})"
        found.findings.append(Finding(hole, f"{message}: {named(right)}; take it out", splits=tuple(splits)))


def _gold(row: Row) -> str:
    """The one text that is looked for: the oracle's answer, or the first gold that a term names."""
    if row.answer is not None and row.answer.strip():
        return row.answer.strip()
    return next((gold.text.strip() for golds in row.golds.values() for gold in golds), "")


def _is_unasked(text: str, left: str, start: int, end: int, transform: str) -> bool:
    """Whether a value in a prompt is a mark on it and no part of what is asked: a label's, or in an identifier.

    Prose that says the gold is what a task reads: "It weighs 5 kg. How heavy is it?"
    """
    if transform != "itself" and _TURNS.search(text):
        return False
    bounds = [0, *(match.end() for match in _BOUNDS.finditer(text)), len(text)]
    first = max(at for at in bounds if at <= start)
    last = min((at for at in bounds if at >= end), default=len(text))
    line = text[text.rfind("\n", 0, start) + 1 : start]
    label = _LABEL.search(line)
    named = _words(label[1]) if label else frozenset()
    asked = {word for match in _ASKED.finditer(text) for word in _words(match[0])}
    if named & asked:
        return False
    if label and (label[1].casefold() in _GIVEN or label[1].casefold().rstrip("s") in _GIVEN):
        return True
    # A record, or a text to be read: its fields are its own.
    if _SHOWS.search(text) or len(_FIELD.findall(text)) >= _RECORD:
        return False
    if named & _words(text[:first] + " " + text[last:]):
        return False
    inside = text[first:start]
    if text[end:last].rstrip().endswith("?") and _words(inside):
        return False
    after = text[end : end + 1]
    if not re.search(r"[^\W\d_]", line):
        # The number of a task, in front of it.
        return after in ("", "\n") or not (after.isalnum() or after.isspace() or after in "+*/=<>,%-")
    return _is_marked(inside, label, after, text[end:last])


def _is_marked(inside: str, label: re.Match[str] | None, after: str, rest: str) -> bool:
    """Whether a value stands behind a label alone, or within an identifier that has letters."""
    token = inside.rpartition(" ")[2]
    if token and re.search(r"[^\W\d_]", token) and re.search(r"[\w/#.=-]$", token):
        return True
    is_alone = after in ("", "\n") or not rest.strip(" .)]}>;:|")
    words = re.findall(r"\w+", inside)
    return label is not None and (not words or (len(words) == 1 and (is_alone or after == ":")))


def _words(text: str) -> Set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.casefold()) if word not in _EMPTY}


def _in_tools(environment: Environment, rows: Rows, found: Found) -> None:
    """Descriptions and schemas that name a row's gold beside what tells the row from others."""
    texts = [(name, _static(tool.description, tool.parameters)) for name, tool in environment.parts.tools.items()]
    for split, some in rows.items():
        usable = [row for row in some if row.prompt and len(_gold(row)) >= 1][:500]
        golds = {_gold(row).casefold() for row in usable}
        if len(usable) < 3 or len(golds) < 3:
            continue
        common = Counter(word for row in usable for word in set(_tokens(row.prompt or "")))
        for name, lines in texts:
            hits = []
            for row in usable:
                own = {
                    word for word in _tokens(row.prompt or "") if 5 * common[word] <= len(usable) or common[word] == 1
                }
                said = [line for line in lines if _holds(line, _gold(row))]
                # A list of all that there is names other rows' golds on the same line, and tells nothing of this row.
                if any(own & set(_tokens(line)) - set(_tokens(_gold(row))) for line in said):
                    hits.append(row)
            if 2 * len(hits) > len(usable):
                message = f"the description or schema of tool '{name}' says the gold beside the question's own words"
                fix = "take the examples from other tasks"
                found.report(
                    "gold_in_tool", hits, f"{message} on {len(hits)} of {len(usable)} rows of '{split}'; {fix}"
                )
                continue
            everywhere = [
                row for row in usable if len(_gold(row)) > 1 and any(_holds(line, _gold(row)) for line in lines)
            ]
            listed = len(usable) >= 6 and len(golds) == len(usable) and 5 * len(everywhere) >= 4 * len(usable)
            if listed:
                found.notes.append(
                    f"tool '{name}' lists the golds of {len(everywhere)} of {len(usable)} rows of '{split}'"
                )


def _static(description: str, parameters: Mapping[str, Any]) -> list[str]:
    """What a model reads of a tool, in pieces that speak of one thing each."""
    texts = [description]

    def walk(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            if key == "properties":
                for name, part in value.items():
                    walk(part, name)
            else:
                for name, part in value.items():
                    walk(part, name)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part, key)
        elif key in ("description", "default", "examples", "enum", "const", "title", "example"):
            texts.append(str(value))

    walk(parameters, "")
    return [piece for text in texts for piece in re.split(r"[\n;,]|[.?!](?=\s)", text) if piece.strip()]


def _tokens(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.casefold()) if len(word) > 2 or word.isdigit()]


def _holds(line: str, gold: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", line, re.IGNORECASE))


async def _asked(
    environment: Environment,
    split: str,
    rows: Sequence[Row],
    played: Sequence[Trajectory],
    views: _Views,
    found: Found,
    *,
    seed: int,
) -> None:
    """Asks each tool the same on many rows: what differs by the row and holds the gold at one place gives it away."""
    spec = environment.spec
    tools = [
        tool
        for name, tool in environment.parts.tools.items()
        if not (spec.answer.from_ == "tool" and name == spec.answer.tool)
        and not (name in spec.tools and spec.tools[name].kind in ("model", "agent"))
    ][:_MOST_TOOLS]
    some = list(rows[:: max(1, -(-len(rows) // _MOST_PROBED))])
    if len(some) < 8 or len({_gold(row) for row in some}) < 2:
        return
    same = _same_calls(played)
    began = time.monotonic()
    for tool in tools:
        rng = random.Random(tool.name)
        parameters = dict(tool.parameters)
        calls: list[dict[str, Any]] = [
            {},
            *({} if not parameters.get("properties") else random_value(parameters, rng) for _ in range(2)),
        ]
        for arguments in {json.dumps(one, sort_keys=True, default=str): one for one in calls}.values():
            texts: dict[str, list[tuple[str, Row]]] = defaultdict(list)
            for row in some:
                if time.monotonic() - began > _PROBING_S:
                    found.notes.append(f"tools of split '{split}' were not all asked for golds within {_PROBING_S:g} s")
                    return
                result = await _result(environment, row, ToolCall(tool.name, arguments), seed)
                if result is not None:
                    texts["result" if result.outcome == "ok" else "error"].append((result.text, row))
            for kind, shown in texts.items():
                # What the oracle itself calls alike on every row is how the task is meant to be solved.
                by_split = views[f"gold_in_{kind}", f"tool '{tool.name}'"]
                is_task = kind == "result" and tool.name in same
                if split in by_split or is_task or len({text for text, _ in shown}) < 2:
                    continue
                sure = learn([text for text, _ in shown], [_gold(row) for _, row in shown])
                if sure is not None:
                    how = f", called with {json.dumps(arguments, default=str):.80},"
                    by_split[split] = (sure, [row for _, row in shown], how)


def _same_calls(played: Sequence[Trajectory]) -> Set[str]:
    """Tools that the oracle calls with the same arguments on every row, whatever is asked."""
    asked: dict[str, set[str]] = defaultdict(set)
    for trajectory in played[:_MOST_PROBED]:
        for turn in trajectory.turns:
            for call in turn.parsed.calls:
                if isinstance(call, ToolCall):
                    asked[call.name].add(json.dumps(dict(call.arguments), sort_keys=True, default=str))
    return {name for name, arguments in asked.items() if len(arguments) == 1}


async def _result(environment: Environment, row: Row, call: ToolCall, seed: int) -> ToolResult | None:
    async with environment.start(task=row.index, split=row.split, seed=seed) as episode:
        try:
            await episode.step(environment.parts.dialect.render_action(Message("assistant", "", (call,))))
        except RlenvError:
            return None
        results = episode.turns[-1].results if episode.turns else ()
    return results[0] if results else None
