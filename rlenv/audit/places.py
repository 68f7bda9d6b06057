"""Looks for answers in every place that a policy can read, and plays the rules that find them there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlenv.audit.chapter import Chapter
from rlenv.audit.leaks import Leak, Source, find, lookup, stands_in, stands_in_each
from rlenv.audit.play import Player
from rlenv.audit.probes import Probe, listed_names, probes, reading_probes, schema_text
from rlenv.audit.subject import Action, Subject, same
from rlenv.messages import Message, ToolResult

__all__ = ["read_places"]

_MOST_PLAYED = 6
_HALF = 0.5
_LONG = 20


async def read_places(player: Player, chapter: Chapter, subjects: Sequence[Subject]) -> None:
    """Reads prompts, descriptions, schemas, failures, listings and what flags give; plays what it finds."""
    rights = [subject.right for subject in subjects]
    sources: list[Source] = [_prompt(subject) for subject in subjects]
    for label, text in _static(subjects[0]).items() if subjects else ():
        leak = lookup([subject.prompt for subject in subjects], label, text, rights) or _all_said(label, text, rights)
        await _play(player, chapter, subjects, [leak] if leak is not None else [])
    await _play(player, chapter, subjects, find(sources, rights))
    if not player.environment.parts.tools:
        return
    told = [await _ask(player, subject) for subject in subjects]
    sources = [_told(subject, results) for subject, results in zip(subjects, told, strict=True)]
    leaks = find(sources, rights) or _by_content(sources, subjects)
    await _play(player, chapter, subjects, leaks)


def _prompt(subject: Subject) -> Source:
    shown = {f"prompt ({message.role})": message.content for message in subject.gold.messages}
    images = [image for message in subject.gold.messages for image in message.images]
    return shown if not images else {**shown, "prompt (images)": f"{len(images)}"}


def _static(subject: Subject) -> dict[str, str]:
    tools = subject.environment.parts.tools.values()
    return {f"{kind} of tool '{tool.name}'": text for tool in tools for kind, text in schema_text(tool).items() if text}


def _all_said(label: str, text: str, rights: Sequence[str]) -> Leak | None:
    """Answers that nobody chooses among, of which a text that is the same on all tasks says most."""
    distinct = {right.strip() for right in rights if right.strip()}
    is_open = len(distinct) >= max(3, 0.8 * len(rights))
    plain = all(right.replace(".", "").replace("-", "").isdigit() or len(right) > _LONG for right in distinct)
    said = {right for right in distinct if stands_in(text, right)}
    if not is_open or not plain or len(said) < 0.8 * len(distinct) or (label.startswith("schema") and len(said) > 40):
        return None
    taken = {index: right for index, right in enumerate(rights) if right.strip() in said}
    return Leak(label, "the answers of most tasks, which stand there", taken, len(taken))


async def _ask(player: Player, subject: Subject) -> dict[str, ToolResult]:
    told = await _results(player, subject, probes(subject))
    names = listed_names(told)
    if names:
        told |= await _results(player, subject, reading_probes(subject, names))
    return told


async def _results(player: Player, subject: Subject, asked: Sequence[Probe]) -> dict[str, ToolResult]:
    """What the calls give: as many of one turn as the limits allow, each lot in an episode of its own."""
    limits = subject.environment.spec.limits
    width = max(1, min(limits.calls_per_turn, limits.tool_calls - 1))
    found: dict[str, ToolResult] = {}
    for start in range(0, len(asked), width):
        some = asked[start : start + width]
        script: list[Action] = [Message("assistant", "", tuple(call for _, call in some))]
        ended = await player.play(subject.gold, script)
        results = ended.turns[0].results if ended.turns else ()
        found |= {label: result for (label, _), result in zip(some, results, strict=False)}
    return found


def _told(subject: Subject, results: dict[str, ToolResult]) -> Source:
    """The texts that calls gave, without those that the oracle reads too."""
    own = {result.text for _, result in subject.oracle_calls()}
    said = {}
    for label, result in results.items():
        if result.text not in own:
            kind = "error of" if result.is_error else "result of"
            said[f"{kind} {label}"] = result.text
    return said


def _by_content(sources: Sequence[Source], subjects: Sequence[Subject]) -> list[Leak]:
    """Texts that say a task's answer wherever it stands in them, and no other task's.

    What tools give on success counts only where the oracle's own calls do not give the answer: there it is to be found.
    """
    rights = [subject.right for subject in subjects]
    if len({*rights}) < 2:
        return []
    read = [any(stands_in(result.text, subject.right) for _, result in subject.oracle_calls()) for subject in subjects]
    for label in dict.fromkeys(label for source in sources for label in source):
        texts = [source.get(label, "") for source in sources]
        if not label.startswith("error") and any(read):
            continue
        # What a prompt says, a tool may repeat.
        heard = [
            "" if stands_in(subject.prompt, right) else text
            for text, subject, right in zip(texts, subjects, rights, strict=True)
        ]
        if len(set(texts)) < 2:  # what is said on every task alike gives no task away
            continue
        hits = stands_in_each(heard, rights)
        if hits >= 3 and hits >= _HALF * len(subjects):
            taken = {index: right for index, right in enumerate(rights) if stands_in(texts[index], right)}
            return [Leak(label, "the answer, which stands there", taken, hits)]
    return []


async def _play(player: Player, chapter: Chapter, subjects: Sequence[Subject], leaks: Sequence[Leak]) -> None:
    numbers = {subject.gold.task_index: index for index, subject in enumerate(subjects)}

    def answer(subject: Subject, leak: Leak) -> list[Action]:
        taken = leak.taken.get(numbers[subject.gold.task_index])
        if taken is None:
            return [subject.form("?")]
        # What says the same in other letters is given as the oracle writes it: the form is not what is asked here.
        return [subject.form(subject.right if same(taken, subject.right) else taken)]

    for leak in leaks[:_MOST_PLAYED]:
        chapter.leaks.append((leak, await player.way(subjects, partial(answer, leak=leak))))
