"""What a policy would have to know: the oracle's answers, or the codes that it gives to what changes something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlenv.audit.golds import golds_of, readers
from rlenv.audit.place_rules import holds
from rlenv.audit.subject import Action, Subject
from rlenv.messages import Message, ToolCall

__all__ = ["Aim", "aim_of"]


@dataclass(frozen=True, slots=True)
class Aim:
    """A gold for each task, and how a policy that knows it plays: `write(subject, gold)`."""

    golds: Sequence[str]
    write: Callable[[Subject, str], list[Action]]
    is_answer: bool = True
    """A code that is given to a call is found out by others: what these give on success is there to be read."""


def aim_of(subjects: Sequence[Subject]) -> Aim | None:
    """What is looked for on these tasks; None where it is the same on all of them."""
    golds = _answers(subjects)
    if _differ(golds):
        rights = {subject.gold.task_index: (gold, subject.right) for subject, gold in zip(subjects, golds, strict=True)}

        def answer(subject: Subject, said: str) -> list[Action]:
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
        if _differ(codes) and 5 * told < len(subjects):
            return Aim(codes, partial(_call, name=name, key=key), is_answer=False)
    return None


def _differ(golds: Sequence[str]) -> bool:
    return len({gold.casefold() for gold in golds if gold}) > 1


def _answers(subjects: Sequence[Subject]) -> list[str]:
    """The oracle's answers, or the golds of a term that are the heart of them."""
    readable = readers(subjects[0].environment) if subjects else ()
    found = []
    for subject in subjects:
        right = subject.right.strip()
        values = golds_of(readable, subject.task, subject.environment.spec.vars) if right else {}
        inside = [gold.text.strip() for golds in values.values() for gold in golds if holds(right, gold.text.strip())]
        found.append(min([right, *inside], key=len))
    return found


def _call(subject: Subject, said: str, *, name: str, key: str) -> list[Action]:
    """The oracle's calls that change something, with this code in one of them, and its last words."""
    calls = [call for call, _ in subject.oracle_calls() if subject.changes(call.name)]
    made = [
        ToolCall(call.name, {**call.arguments, key: type(call.arguments[key])(said)})
        if call.name == name and key in call.arguments and _fits(call.arguments[key], said)
        else call
        for call in calls
    ]
    return [Message("assistant", "", tuple(made)), subject.gold.turns[-1].action]


def _fits(value: object, said: str) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and said.lstrip("-").isdigit())
