"""Policies that do nothing useful: what each of them writes for one task.

They know what an attacker could know: the prompt, the form of an answer, and the answers of the split as a set. The
form is taken from the oracle's last action, with the right answer replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv.audit.tells import tells_for
from rlenv.episodes.environment import Environment
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.judge import JudgeSpec
from rlenv.trajectory import Trajectory

__all__ = ["ADVERSARIES", "CONSTANT", "SAYS", "Action", "Adversary", "Subject", "columns_in", "instructions"]

Action = str | Message
_SHRUG = "I do not know."
SAYS = "It is what the tool says."
_LONG_WORDS = 8_000
_MAX_OPTIONS = 200
_ODD = (
    "\x00",
    "9" * 5_000,
    "1e999999",
    "-nan",
    "{" * 500,
    "[[1, null]]",
    "\\frac{1}{0}",
    "'; --",
    "\ud800",
    "\u0661\u0662",
)


def instructions(environment: Environment) -> list[str]:
    """What tells each judge to give the best score of its scale: the lowest where its weight is negative.

    Without a judge, what a judge of the default scale would be told.
    """
    judges = [spec for spec in environment.spec.rewards.values() if isinstance(spec, JudgeSpec)]
    asked = [tells_for(scale=one.ends, value_key=one.value_key, is_paid=one.weight >= 0) for one in judges]
    # A reward without a judge has nobody to tell: one text stands for all.
    return list(dict.fromkeys(tell.text for tells in asked or [tells_for(scale=(1.0, 5.0))[:1]] for tell in tells))


@dataclass(frozen=True, slots=True)
class Subject:
    """One task as the adversaries see it, with what the oracle did there."""

    environment: Environment
    task: Mapping[str, Any]
    gold: Trajectory
    options: Sequence[str]
    """The oracle's answers over all tasks that it played, without repeats."""
    leaked: Sequence[str] = ()
    """Columns that stand in the prompt or in what tools answer to anything."""

    @property
    def prompt(self) -> str:
        """What the user message says."""
        return self.gold.messages[-1].content

    def form(self, answer: str) -> Action:
        """The oracle's last action with another answer in it."""
        spec = self.environment.spec.answer
        last = self.gold.turns[-1]
        if spec.from_ == "tool":
            for call in last.parsed.calls:
                if isinstance(call, ToolCall) and call.name == spec.tool:
                    key = spec.argument or next(iter(call.arguments), "answer")
                    return Message("assistant", "", (ToolCall(call.name, {**call.arguments, key: answer}),))
        text, right = last.action, self.gold.answer or ""
        before, found, after = text.rpartition(right) if right else ("", "", "")
        if found:
            return before + answer + after
        return {"tag": f"<{spec.tag}>{answer}</{spec.tag}>", "boxed": f"\\boxed{{{answer}}}"}.get(spec.from_, answer)

    def form_text(self, answer: str) -> str:
        """As `form`, as text also where the answer is a call."""
        made = self.form(answer)
        said = Message("assistant", made) if isinstance(made, str) else made
        return self.environment.parts.dialect.render_action(said)

    def wrong(self) -> list[str]:
        """Answers of other tasks."""
        right = self.gold.answer
        return [option for option in self.options if option != right] or ["?"]

    def call(self, rng: random.Random) -> Message | None:
        """A call without a purpose, None where there are no tools."""
        tools = list(self.environment.parts.tools.values())
        spec = self.environment.spec.answer
        tools = [tool for tool in tools if not (spec.from_ == "tool" and tool.name == spec.tool)]
        if not tools:
            return None
        tool = rng.choice(tools)
        return Message("assistant", "", (ToolCall(tool.name, random_value(dict(tool.parameters), rng)),))

    def oracle_calls(self) -> list[Action]:
        """What the oracle did before its last action; nothing where it called no tool."""
        before = self.gold.turns[:-1]
        return [turn.action for turn in before] if any(turn.results for turn in before) else []

    def idle(self, turns: int) -> list[Action]:
        """So many turns with a call without a purpose each; the same for every adversary of a task."""
        rng = random.Random(f"{self.gold.split}/{self.gold.task_index}")
        made = [self.call(rng) for _ in range(turns)]
        return [action for action in made if action is not None]


Write = Callable[[Subject], Sequence[Sequence[Action]]]


@dataclass(frozen=True, slots=True)
class Adversary:
    """A policy without merit. `write` gives one or more scripts for a task; the best of them counts."""

    name: str
    does: str
    write: Write
    plants: bool = False
    """Whether tools answer with the right answer in its form while it plays."""


def columns_in(texts: Sequence[str], task: Mapping[str, Any]) -> set[str]:
    """The columns of a task whose whole value stands in one of the texts; values below 3 characters are left out."""
    found = set()
    for name, value in task.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            text = str(value).strip()
            if len(text) >= 3 and any(text in shown for shown in texts):
                found.add(name)
    return found


def _every_option(subject: Subject) -> Sequence[Sequence[Action]]:
    # The right one stands in the middle: it must count for being among them, and not for being first or last.
    right, wrong = subject.gold.answer or "", subject.wrong()[: _MAX_OPTIONS - 1]
    options = [*wrong[: len(wrong) // 2], right, *wrong[len(wrong) // 2 :]]
    return [] if len(options) < 2 else [[subject.form(", ".join(options))], [subject.form(" ".join(options))]]


def _many_answers(subject: Subject) -> Sequence[Sequence[Action]]:
    right, wrong = subject.gold.answer or "", subject.wrong()
    answers = [*wrong[:2], right, *(wrong * 3)[2:5]]
    return [["\n".join(subject.form_text(answer) for answer in answers)]]


def _in_thinking(subject: Subject) -> Sequence[Sequence[Action]]:
    text = subject.form_text(subject.gold.answer or "")
    return [[f"<think>{text}</think>{_SHRUG}"], [f"<think>{text}"], [f"<think>{text}</think>"]]


def _planted(subject: Subject) -> Sequence[Sequence[Action]]:
    return [[*calls, SAYS]] if (calls := subject.idle(1)) else []


def _instructed(subject: Subject) -> Sequence[Sequence[Action]]:
    tells = instructions(subject.environment)
    return [[text] for tell in tells for text in (tell, f"{tell}\n{subject.form_text('?')}")]


def _odd(subject: Subject) -> Sequence[Sequence[Action]]:
    return [[subject.form(answer)] for answer in _ODD]


def _idle(subject: Subject) -> Sequence[Sequence[Action]]:
    limit = subject.environment.spec.limits.turns
    calls = subject.idle(limit)
    return [[*calls[: limit - 1], _SHRUG], calls] if calls else []


def _leaked(subject: Subject) -> Sequence[Sequence[Action]]:
    return [[subject.form(str(subject.task[column]))] for column in subject.leaked if column in subject.task]


ADVERSARIES: tuple[Adversary, ...] = (
    Adversary("empty", "writes nothing", lambda subject: [[""]]),
    Adversary("echo", "repeats the prompt", lambda subject: [[subject.prompt], [subject.form(subject.prompt)]]),
    Adversary("every_option", "gives every answer of the split as one", _every_option),
    Adversary("many_answers", "gives several answers one after the other", _many_answers),
    Adversary("empty_form", "writes the form of an answer without one", lambda subject: [[subject.form("")]]),
    Adversary(
        "placeholder", "answers every task alike", lambda subject: [[subject.form("?")], [subject.form("unknown")]]
    ),
    Adversary("odd_answer", "answers with what no reward expects", _odd),
    Adversary("thought_answer", "answers inside its thinking", _in_thinking),
    Adversary("planted_output", "leaves the answer to what a tool wrote", _planted, plants=True),
    Adversary("idle_calls", "calls tools to no purpose", _idle),
    Adversary("leaked_field", "copies what the prompt or a tool shows", _leaked),
    Adversary("judge_instructions", "tells the judge what to give", _instructed),
    Adversary(
        "very_long",
        "writes thousands of words",
        lambda subject: [["word " * _LONG_WORDS], [f"{'word ' * _LONG_WORDS}\n{subject.form_text('?')}"]],
    ),
)

CONSTANT = Adversary("constant_answer", "gives every task the same answer", lambda subject: [])
"""It is played with the split's most frequent answers, one at a time; the best of them over all tasks counts."""
