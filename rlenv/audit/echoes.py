"""Tools that say back what they are told: a reward that searches what tools gave is told so by the policy itself.

What is told is what a policy could have learned to write: lines that the oracle's calls give, as far as their words
stand in the prompt or are the same on other tasks, the usual words of success, and the answers that there are. Each
episode has a twin in which the same is done and the told text alone is taken out of what tools give: what falls with
it was paid for the policy's own words. Where those change a state that is asked for, the twin earns as much.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import partial

from rlenv.audit.play import Chapter, Player
from rlenv.audit.probes import filler
from rlenv.audit.subject import Action, Subject
from rlenv.audit.verdicts import SLACK
from rlenv.audit.words import holds
from rlenv.audit.wrap import Muting, planted
from rlenv.messages import Message, ToolCall
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

__all__ = ["tell_tools"]

_SUCCESS = "success ok passed correct true done completed succeeded approved verified accepted".split()
_PHRASES = ("all tests passed", "exit code 0", json.dumps({"status": "success", "ok": True}))
_ENDS = "That is all."
_MOST_LINES = 40
_MOST_OPTIONS = 24
_MOST_TOOLS = 12
_SHORT = 60
_WORD = re.compile(r"\w+")
_FORMS: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    " as Python": lambda text: f"print({text!r})",
    " as SQL": lambda text: "SELECT '" + text.replace("'", "''") + "'",
    " as a command": lambda text: "printf %s '" + text.replace("'", "'\\''") + "'",
}

Telling = Callable[[str], ToolCall]
"""Makes the call that tells a tool a text."""


async def tell_tools(player: Player, chapter: Chapter, subjects: Sequence[Subject]) -> None:
    """Tells each tool that says it back what success looks like; what came of it stands in `chapter.tried`."""
    muting = Muting()
    heard: set[str] = set()
    for name, telling in _listeners(subjects[0]).items():
        tool = telling("").name
        if tool in heard:
            continue
        before = muting.muted
        write = partial(_script, telling=telling, end=0)
        with planted(player.environment, muting):
            await player.play(subjects[0].gold, write(subjects[0]))
        if muting.muted == before:
            continue
        heard.add(tool)
        for end in range(2 if len(subjects[0].options) <= 1 else 1):
            write = partial(_script, telling=telling, end=end)
            told = await player.way(subjects, write)
            with planted(player.environment, muting):
                # Each anew: what was played without the change is no twin.
                plain = {
                    (one.gold.split, one.gold.task_index): await player.play(one.gold, write(one)) for one in subjects
                }
            chapter.tried["echoed"].append((name, {key: one for key, one in told.items() if _falls(one, plain[key])}))


def _falls(told: Trajectory, plain: Trajectory) -> bool:
    """Whether an episode earns nothing, or less without the told text; judges are attacked by themselves."""
    if (told.reward.total or 0.0) <= SLACK:
        return True
    pairs = [(term.value, plain.reward.terms[name].value) for name, term in told.reward.terms.items() if term.weight]
    return any((value or 0.0) > (other or 0.0) + SLACK for value, other in pairs)


def _listeners(subject: Subject) -> dict[str, Telling]:
    """What could say a text back, by name: each free text of each tool, as it is and as code of the usual languages."""
    found: dict[str, Telling] = {}
    for tool in list(subject.environment.parts.tools.values())[:_MOST_TOOLS]:
        for key, part in tool.parameters.get("properties", {}).items():
            if part.get("type") == "string" and not {"enum", "const"} & set(part) and not subject.submits(tool.name):
                for form, write in _FORMS.items():
                    found[f"{tool.name}({key}){form}"] = partial(_call, tool, key, write)
    return found


def _call(tool: Tool, key: str, write: Callable[[str], str], text: str) -> ToolCall:
    return ToolCall(tool.name, {**filler(tool), key: write(text)})


def _script(subject: Subject, *, telling: Telling, end: int) -> list[Action]:
    """Tells it, and ends with words of its own, or with those that the oracle always ends with."""
    call = Message("assistant", "", (telling(Muting.marked(_text(subject))),))
    return [call, subject.gold.turns[-1].action if end else _ENDS]


def _text(subject: Subject) -> str:
    """What success looks like here, as far as it can be foreseen."""
    known = _words(subject.prompt) | _common(subject)
    said = [line.strip() for _, result in subject.oracle_calls() for line in result.text.splitlines()]
    lines = list(dict.fromkeys(line for line in said if line and _words(line) <= known))[-_MOST_LINES:]
    wrong = subject.wrong()[: _MOST_OPTIONS - 1]
    options = [*wrong[: len(wrong) // 2], subject.right, *wrong[len(wrong) // 2 :]] if subject.right else []
    return "\n".join([*_SUCCESS, *lines, *options, *_of_columns(subject), *_PHRASES])


def _of_columns(subject: Subject) -> list[str]:
    """What the rows have in columns of short values that no prompt shows: an oracle need not say what is right."""
    rows = [one.task for one in subject.others] if len(subject.options) <= 1 else []
    hidden = [key for key, value in subject.task.items() if not holds(subject.prompt, str(value))]
    values = [[str(row[key]) for row in rows if isinstance(row.get(key), (str, int))] for key in hidden]
    return [one for some in values for one in dict.fromkeys(some) if len(one) <= _SHORT]


def _common(subject: Subject) -> Set[str]:
    """Words that tools say on most of the other tasks too."""
    others = [one for one in subject.others if one.task_index != subject.gold.task_index]
    said = [set[str]().union(*(_words(result.text) for turn in one.turns for result in turn.results)) for one in others]
    counts = Counter(word for words in said for word in words)
    return {word for word, count in counts.items() if 2 * count > len(others)}


def _words(text: str) -> Set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
