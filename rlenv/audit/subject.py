"""One task as the adversaries see it, and answers that are wrong on it in ways of their own."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from rlenv._base.strict_json import load
from rlenv.audit.golds import gold_readers, golds_of
from rlenv.audit.texts import holds, judge_tells
from rlenv.episodes.environment import Environment
from rlenv.language.expressions import EpisodeLimits
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.judge import JudgeSpec
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

Action = str | Message
Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps it is done with, and how many there are."""

_LETTERED = re.compile(r"(?:^|[\s(])([A-J])[).:]\s+(\S[^\n]*?)(?=\s+\(?[A-J][).:]\s|\n|$)", re.MULTILINE)
_ONE_OF = re.compile(r"((?:[\w.'-]+(?: [\w.'-]+)?, ?)*[\w.'-]+),? or ([\w.'-]+)\s*[?.:)]")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_TRIES = 4
_SHORT = 60
_FAR = 0.2
_NEAR = 0.005
"""A number that is off by more than this share of the right one is far from it."""


def instructions(environment: Environment) -> list[str]:
    """The texts that tell each judge, or one of the default scale, to give its best score: the lowest for a penalty."""
    judges = [spec for spec in environment.spec.rewards.values() if isinstance(spec, JudgeSpec)]
    asked = [judge_tells(scale=one.ends, value_key=one.key, is_paid=one.usual_weight >= 0) for one in judges]
    # A reward without a judge has nobody to tell: one text stands for all.
    texts = [text for tells in asked for text in tells.values()] or list(judge_tells(scale=(1.0, 5.0)).values())[:1]
    return list(dict.fromkeys(texts))


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """One task as the adversaries see it, with what the oracle did there."""

    environment: Environment
    gold: Trajectory
    options: Sequence[str]
    """The oracle's answers over all tasks that it played, without repeats."""
    others: Sequence[Trajectory] = ()
    """What the oracle did on other tasks."""

    @property
    def task(self) -> Mapping[str, Any]:
        """The task's row."""
        return self.gold.task

    @property
    def limits(self) -> EpisodeLimits:
        """The limits of the task's episodes."""
        return self.environment.parts.limits.of(self.task)

    @property
    def right(self) -> str:
        """The oracle's answer, "" where it gave none."""
        return self.gold.answer or ""

    @property
    def accepted(self) -> set[str]:
        """The right answers that the row holds, by the terms that compare with them."""
        golds = golds_of(gold_readers(self.environment), self.task, self.environment.spec.vars)
        return {gold.text for found in golds.values() for gold in found}

    @property
    def asked(self) -> tuple[str, ...]:
        """The oracle's answer, and what of the row it holds: what a rule may look for where it says a sentence."""
        held = [one for one in texts_of(self.task) if len(one) <= _SHORT and holds(self.right, one)]
        return (self.right, *dict.fromkeys(held))

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that a policy has on this task: those that its row is offered, and those that it declares."""
        return self.environment.toolsets.of(self.task).tools

    @property
    def prompt(self) -> str:
        """The text of the user message."""
        return self.gold.messages[-1].content

    def form(self, answer: str) -> Action:
        """The oracle's last action with another answer in it."""
        spec = self.environment.spec.answer
        last = self.gold.turns[-1]
        if spec.from_ == "tool":
            for call in last.parsed.calls:
                if isinstance(call, ToolCall) and call.name == spec.tool:
                    key = spec.argument or next(iter(call.arguments), "answer")
                    # A number is no text to a tool that takes one.
                    read = "" if isinstance(call.arguments.get(key), str) else load(answer)
                    value = read[0] if isinstance(read, tuple) else answer
                    return Message("assistant", "", (ToolCall(call.name, {**call.arguments, key: value}),))
        text, right = last.action, self.right
        # With its marks first: the last "a" of "<answer>a</answer>" stands in the mark.
        for given, put in ((self._in_answer_marks(right), self._in_answer_marks(answer)), (right, answer)):
            before, found, after = text.rpartition(given) if right else ("", "", "")
            if found:
                return before + put + after
        return self._in_answer_marks(answer)

    def bare(self, answer: str) -> Action:
        """An answer in its form with nothing beside it; as `form` where only a pattern or a call makes it one."""
        spec = self.environment.spec.answer
        return self.form(answer) if spec.from_ in ("tool", "regex") else self._in_answer_marks(answer)

    def _in_answer_marks(self, answer: str) -> str:
        spec = self.environment.spec.answer
        return {"tag": f"<{spec.tag}>{answer}</{spec.tag}>", "boxed": f"\\boxed{{{answer}}}"}.get(spec.from_, answer)

    def form_text(self, answer: str) -> str:
        """As `form`, as text also where the answer is a call."""
        return self.text_of(self.form(answer))

    def text_of(self, action: Action) -> str:
        """An action as its dialect writes it."""
        return self.environment.parts.dialect.render_action(action) if isinstance(action, Message) else action

    def wrong(self) -> list[str]:
        """Answers of other tasks."""
        return [option for option in self.options if not same(option, self.right)] or ["?"]

    def call(self, rng: random.Random) -> Message | None:
        """A call without a purpose, None where there are no tools."""
        tools = [tool for tool in self.tools.values() if not self.submits(tool.name)]
        if not tools:
            return None
        tool = rng.choice(tools)
        return Message("assistant", "", (ToolCall(tool.name, random_value(dict(tool.parameters), rng)),))

    def submits(self, name: str) -> bool:
        """True if a call of this tool is the answer."""
        spec = self.environment.spec.answer
        tool = self.environment.parts.tools.get(name) or self.tools.get(name)
        entry = self.environment.spec.tools.get(tool.entry) if tool is not None else None
        return (spec.from_ == "tool" and name == spec.tool) or (entry is not None and entry.ends is True)

    def changes(self, name: str) -> bool:
        """True if a tool changes something, or is not known."""
        tool = self.tools.get(name)
        return tool is None or tool.mutates

    def turns_of(self, calls: Sequence[ToolCall]) -> list[Action]:
        """The calls, as many in a turn, and in all, as the limits allow."""
        limits = self.limits
        left = iter(calls[: limits.tool_calls])
        turns: list[Action] = []
        while len(turns) < limits.turns and (some := tuple(islice(left, limits.calls_per_turn))):
            turns.append(Message("assistant", "", some))
        return turns

    def oracle_actions(self) -> list[Action]:
        """The oracle's actions before its last one; none where it called no tool."""
        before = self.gold.turns[:-1]
        return [turn.action for turn in before] if any(turn.results for turn in before) else []

    def oracle_calls(self) -> list[tuple[ToolCall, Any]]:
        """The oracle's calls with their results."""
        return [
            (call, result)
            for turn in self.gold.turns
            for call, result in zip(turn.parsed.calls, turn.results, strict=False)
            if isinstance(call, ToolCall)
        ]

    def own_calls(self) -> list[ToolCall]:
        """The oracle's calls, but for one that is the answer."""
        return [call for call, _ in self.oracle_calls() if not self.submits(call.name)]

    def last_words(self) -> Action:
        """The oracle's words at the end where these are the same on all tasks, and else a wrong answer.

        A call that does a part of the task, as the last step of a world, is no word.
        """
        last = self.gold.turns[-1]
        does = any(isinstance(call, ToolCall) and not self.submits(call.name) for call in last.parsed.calls)
        return self.form("?") if does or len(self.options) > 1 else last.action

    def foreign(self) -> list[Action]:
        """The calls that the oracle makes on other tasks and not on this one: they go well and help nobody here."""
        tools = self.tools
        own = {call_key(call) for call, _ in self.oracle_calls()}
        found: dict[tuple[str, str], Action] = {}
        for other in self.others:
            for turn in other.turns:
                for call, result in zip(turn.parsed.calls, turn.results, strict=False):
                    if isinstance(call, ToolCall) and result.outcome == "ok" and call.name in tools:
                        key = call_key(call)
                        if not tools[call.name].mutates and not self.submits(call.name) and key not in own:
                            found[key] = Message("assistant", "", (ToolCall(call.name, call.arguments),))
        return list(found.values())

    def idle(self, turns: int) -> list[Action]:
        """So many turns with a call without a purpose each; the same for every adversary of a task.

        A call that the oracle makes here, and that changes something, has a purpose: it is a part of the task.
        """
        rng = random.Random(f"{self.gold.split}/{self.gold.task_index}")
        tools = self.tools
        calls = [call for call, _ in self.oracle_calls() if call.name in tools and tools[call.name].mutates]
        own = {call_key(call) for call in calls}
        made = [self.call(rng) for _ in range(turns * (_TRIES if own else 1))]
        kept: list[Action] = [action for action in made if action is not None and not own & _call_keys_of(action)]
        return kept[:turns]


def _call_keys_of(action: Message) -> set[tuple[str, str]]:
    return {call_key(call) for call in action.tool_calls if isinstance(call, ToolCall)}


def call_key(call: ToolCall) -> tuple[str, str]:
    """Equal for equal calls."""
    return call.name, repr(dict(call.arguments))


def tools_of(subjects: Sequence[AuditSubject]) -> dict[str, Tool]:
    """The tools of all these tasks by name, as the first task has them that has them at all."""
    return {name: tool for subject in reversed(subjects) for name, tool in subject.tools.items()}


def properties_of(tool: Tool) -> dict[str, Mapping[str, Any]]:
    """The schemas of a tool's parameters; {} for one that is no mapping, which takes anything."""
    parts: Mapping[str, Any] = tool.parameters.get("properties") or {}
    return {name: part if isinstance(part, Mapping) else {} for name, part in parts.items()}


def kinds_of(part: Mapping[str, Any]) -> set[str]:
    """The JSON types that a parameter may have: of `type`, which may be a list, and of `anyOf`; none where any may."""
    kind = part.get("type") or ()
    options = [one for one in part.get("anyOf") or () if isinstance(one, Mapping)]
    return {kind} if isinstance(kind, str) else set(kind).union(*map(kinds_of, options))


def texts_of(value: Any) -> Iterator[str]:
    """All values of a row, those in its lists and mappings too, as texts."""
    if isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(part)
    elif value is not None:
        yield str(value)


def options_of(subject: AuditSubject) -> list[str]:
    """The answers that a task's own row or prompt lists, the right one among them; [] where it lists none."""
    right, accepted = subject.right, subject.accepted
    found: list[list[str]] = []
    for value in subject.task.values():
        if isinstance(value, (list, tuple)) and all(isinstance(one, (str, int, float)) for one in value):
            found.append([str(one) for one in value])
        elif isinstance(value, Mapping) and value:
            found += [[str(one) for one in value], [str(one) for one in value.values()]]
    lettered = _LETTERED.findall(subject.prompt)
    found += [[letter for letter, _ in lettered], [text for _, text in lettered]]
    for first, last in _ONE_OF.findall(subject.prompt):
        # "Which is older, A or B?": what begins otherwise than the right answer is no option.
        parts = [part for one in first.split(",") if (part := one.strip())[:1].isupper() == right[:1].isupper()]
        found.append([*parts, last])
    for listed in found:
        # A list of which all are right is no choice; neither is one that the policy is not shown.
        shown = sum(one.casefold() in subject.prompt.casefold() for one in listed)
        is_told = 2 <= len(listed) <= 50 and 2 * shown >= len(listed) and any(same(one, right) for one in listed)
        if is_told and not accepted.issuperset(listed):
            return list(dict.fromkeys(listed))
    return []


def normalise_answer(text: str) -> str:
    """A text as answers are compared here: without case, white space and punctuation around it; numbers as numbers."""
    bare = " ".join(text.casefold().split()).strip(".,;:!?\"'`()[]{}<>*$ ")
    number = bare.replace(",", "")
    return f"{float(number):.12g}" if _NUMBER.fullmatch(number) else bare


def flat(value: object) -> str:
    """A value as text, without case and the space around it."""
    return str(value).casefold().strip()


def same(one: str, other: str) -> bool:
    """True if two answers say the same at first sight."""
    return normalise_answer(one) == normalise_answer(other)


def shaped(right: str, rng: random.Random) -> str:
    """A wrong answer of the same shape: other digits and letters, the same keys, far from the right number."""
    text = right.strip()
    if text[:1] in ("{", "["):
        try:
            return json.dumps(other_value(json.loads(text), rng))
        except (ValueError, RecursionError):
            pass
    if _NUMBER.fullmatch(text.replace(",", "")):
        return far_numbers(text)[0]
    if text.casefold() in ("yes", "no", "true", "false") or not text:
        return "zqx"
    made = _DIGIT.sub(lambda found: str((int(found[0]) + rng.randint(1, 3)) % 10), text)
    made = _LETTER.sub(lambda found: _other_letter(found[0], rng), made)
    # Marks alone have no other letters.
    return "zqx" if made == text else made


def _other_letter(letter: str, rng: random.Random) -> str:
    """A letter that is not this one: an answer of one letter has to become a wrong one."""
    letters = "BDFGJKQVWXZ" if letter.isupper() else "bdfgjkqvwxz"
    return rng.choice(letters.replace(letter, ""))


def far_numbers(text: str) -> list[str]:
    """Numbers in the form of the right one, far from it, and not with its digits in them: the first that are so."""
    value = float(text.replace(",", ""))
    made = [value * 3 + 7, -value - 1, value * 7 + 3, value * 1.3 + 1, value * 0.6, 777.0, 222.0]
    wanted = [one for one in made if abs(one - value) > _FAR * max(abs(value), 1.0)]
    written = [str(round(one)) if "." not in text else f"{one:.2f}" for one in wanted]
    plain = text.replace(",", "").strip("+-")
    return [one for one in written if plain not in one][:5]


def other_value(value: Any, rng: random.Random) -> Any:
    """A JSON value of the same keys and kinds with other texts and numbers in it."""
    if isinstance(value, dict):
        return {key: other_value(part, rng) for key, part in value.items()}
    if isinstance(value, list):
        return [other_value(part, rng) for part in value] or ["zqx"]
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 3 + 7
    return shaped(value, rng) if isinstance(value, str) and value else "zqx"


@dataclass(frozen=True, slots=True)
class Aim:
    """A gold for each task, and how a policy that knows it plays: `write(subject, gold)`."""

    golds: Sequence[str]
    write: Callable[[AuditSubject, str], list[Action]]
    is_answer: bool = True
    """A code that is given to a call is found out by others: what these give on success is there to be read."""
    tool: str = ""
    """The tool that takes the code."""


def aim_of(subjects: Sequence[AuditSubject]) -> Aim | None:
    """The aim on these tasks; None where it is the same on all of them."""
    # A row may round what the oracle works out.
    near = [[text for text in sorted(one.accepted) if is_near(one.right, text, _NEAR)] for one in subjects]
    golds = [min([heart, *some], key=len) for heart, some in zip(answer_hearts(subjects), near, strict=True)]
    if _has_differing(golds):
        rights = {subject.gold.task_index: (gold, subject.right) for subject, gold in zip(subjects, golds, strict=True)}

        def answer(subject: AuditSubject, said: str) -> list[Action]:
            # What is right is given as the oracle writes it: the form is not what is asked here.
            gold, right = rights[subject.gold.task_index]
            return [subject.form(right if said == gold else said)]

        return Aim(golds, answer)
    changing = [[call for call, _ in one.oracle_calls() if one.changes(call.name)] for one in subjects]
    for name, key in dict.fromkeys((call.name, key) for calls in changing for call in calls for key in call.arguments):
        codes = [
            next((str(call.arguments.get(key, "")) for call in calls if call.name == name), "") for calls in changing
        ]
        told = sum(holds(subject.prompt, code) for subject, code in zip(subjects, codes, strict=True))
        if _has_differing(codes) and 5 * told < len(subjects):
            return Aim(codes, partial(_actions_with_code, name=name, key=key), is_answer=False, tool=name)
    return None


def _has_differing(golds: Sequence[str]) -> bool:
    return len({gold.casefold() for gold in golds if gold}) > 1


def answer_hearts(subjects: Sequence[AuditSubject]) -> Iterator[str]:
    """The oracle's answers, or the golds of a term that are the heart of them."""
    readable = gold_readers(subjects[0].environment) if subjects else ()
    for subject in subjects:
        right = subject.right.strip()
        values = golds_of(readable, subject.task, subject.environment.spec.vars) if right else {}
        inside = [gold.text.strip() for golds in values.values() for gold in golds if holds(right, gold.text.strip())]
        yield min([right, *inside], key=len)


def is_near(right: str, text: str, share: float) -> bool:
    """True for numbers that are apart by no more than this share of the larger one."""
    if not (is_number(right) and is_number(text)):
        return False
    return math.isclose(*(float(one.replace(",", "")) for one in (right, text)), rel_tol=share)


def _actions_with_code(subject: AuditSubject, said: str, *, name: str, key: str) -> list[Action]:
    """The oracle's calls that change something, with this code in one of them, and its last words."""
    calls = [call for call, _ in subject.oracle_calls() if subject.changes(call.name)]
    made = [
        ToolCall(call.name, {**call.arguments, key: type(call.arguments[key])(said)})
        if call.name == name and key in call.arguments and _fits_argument(call.arguments[key], said)
        else call
        for call in calls
    ]
    return [Message("assistant", "", tuple(made)), subject.gold.turns[-1].action]


def _fits_argument(value: object, said: str) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and said.removeprefix("-").isdecimal())


def is_number(text: str) -> bool:
    """True if an answer is a number, with thousands commas maybe."""
    return _NUMBER.fullmatch(text.replace(",", "")) is not None and text[-1:] != ","
