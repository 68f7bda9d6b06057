"""What should be the same again: a reward of equal episodes, and what tools give after another episode has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlenv.audit.play import Chapter, Player
from rlenv.audit.probes import filler
from rlenv.audit.report import Finding
from rlenv.audit.subject import Action, Subject
from rlenv.audit.verdicts import SLACK, episode_of
from rlenv.messages import ToolCall
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

__all__ = ["play_again", "tell_the_next"]

_TASKS = 4
_TIMES = 4
_SEEDS = 12
_MOST_TOOLS = 12
_MOST_READS = 60
_NUMBER = 918_273
_STEADY = "let equal episodes earn equally: draw nothing at random in a reward, and read no clock and no shared state"
_SEEDED = "pay for what was done: here an equal answer earns otherwise where only the episode's seed differs"
_SHARED = "keep what tools change in a resource of each episode (scope: episode), and nothing in a module or a file"


async def play_again(player: Player, chapter: Chapter, subjects: Sequence[Subject]) -> None:
    """Plays what is right and what is wrong several times, with one seed and, what is wrong, with others."""
    for subject in subjects[:_TASKS]:
        wrong: list[Action] = [subject.form(subject.wrong()[0])]
        for script in ([turn.action for turn in subject.gold.turns], wrong):
            played = [await player.play(subject.gold, script) for _ in range(_TIMES)]
            _differ(chapter, subject, played, "played again with the same seed", _STEADY)
        if player.environment.spec.user is None and not player.environment.parts.resources:
            others = [await player.play(subject.gold, wrong, more=more) for more in range(_SEEDS + 1)]
            _differ(chapter, subject, others, "played with other seeds", _SEEDED)


def _differ(chapter: Chapter, subject: Subject, played: Sequence[Trajectory], how: str, hint: str) -> None:
    for name, spec in subject.environment.spec.rewards.items():
        if spec.kind == "judge" or not spec.weight or name in chapter.unsteady:
            continue
        values = [ended.reward.terms[name].value for ended in played]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and max(known) - min(known) <= SLACK:
            continue
        if known and max(known) - min(known) > SLACK:
            told = {tuple(result.text for turn in one.turns for result in turn.results) for one in played}
            also = "; its tools give other results too" if len(told) > 1 else ""
            shown = ", ".join(f"{value:g}" for value in known)
            message = f"one and the same episode {how} has the values {shown} of '{name}'{also}"
            chapter.unsteady[name] = Finding(
                "unsteady_reward", message, name, hint, episode_of(played[0], subject.gold)
            )


async def tell_the_next(player: Player, chapter: Chapter, subjects: Sequence[Subject]) -> None:
    """Tells each tool a word of no meaning in one episode, and looks for it in what tools give in another."""
    environment = player.environment
    kinds = {name: entry.kind for name, entry in environment.spec.tools.items()}
    tools = [one for one in environment.parts.tools.values() if kinds.get(one.name) not in ("model", "agent")]
    tools = [one for one in tools[:_MOST_TOOLS] if not subjects[0].submits(one.name)]
    words: dict[str, str] = {}
    writes = [ToolCall(tool.name, _worded(tool, words)) for tool in tools]
    if not words:
        return
    first, second = subjects[0], subjects[-1]
    await player.play(first.gold, first.turns_of(writes))
    plain = [*(ToolCall(tool.name, filler(tool, "")) for tool in tools), *(ToolCall(t.name, filler(t)) for t in tools)]
    asked = {
        word: [ToolCall(t.name, filler(t, word)) for t in tools if t.name not in place] for word, place in words.items()
    }
    for word, reads in {"": plain, **asked}.items():
        heard = await player.play(second.gold, second.turns_of(reads[:_MOST_READS]))
        for other, (call, text) in _said(heard, words).items():
            if other != word:
                message = (
                    f"what one episode tells {words[other]} another reads from the tool '{call.name}': {text[:80]!r}"
                )
                chapter.channels.append(Finding("shared_between_episodes", message, hint=_SHARED))
                return


def _worded(tool: Tool, words: dict[str, str]) -> dict[str, Any]:
    """Arguments with a word or a number in each place that takes any, each noted with its place."""
    made = filler(tool)
    for key, part in tool.parameters.get("properties", {}).items():
        if {"enum", "const"} & set(part):
            continue
        if part.get("type") == "string":
            made[key] = f"zqxword{len(words)}q"
        elif part.get("type") in ("integer", "number") and not {"minimum", "maximum"} & set(part):
            made[key] = _NUMBER + len(words)
        else:
            continue
        words[str(made[key])] = f"the tool '{tool.name}' ({key})"
    return made


def _said(ended: Trajectory, words: dict[str, str]) -> dict[str, tuple[ToolCall, str]]:
    """The words that calls gave, with the first call that did."""
    found: dict[str, tuple[ToolCall, str]] = {}
    for turn in ended.turns:
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall):
                found.update({word: (call, result.text) for word in words if word in result.text and word not in found})
    return found
