"""The effects of texts told to tools and users: in the same episode, in another one, and with other seeds.

Tools that say back what they are told let a policy tell a reward that searches their results what success looks like:
lines that the oracle's calls give, as far as they can be foreseen, the usual words of success, and the answers that
there are. Each such episode has a twin in which the told text alone is taken out of what tools give: what falls with it
was paid for the policy's own words. A user's replies are a place to be read, but for what the oracle hears too."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

from rlenv.audit.asking import ask_user
from rlenv.audit.crafted import pattern_examples, words_in_code
from rlenv.audit.place_rules import holds as is_whole
from rlenv.audit.place_rules import learn_rule
from rlenv.audit.play import Adaptive, Chapter, Leak, Muting, Results, ScriptPlayer, Way, planted
from rlenv.audit.probes import filler
from rlenv.audit.report import hole_of
from rlenv.audit.subject import Action, Aim, AuditSubject, aim_of, kinds_of, properties_of, shaped, tools_of
from rlenv.audit.texts import HINTS, WORDS, holds, nonce, shrug
from rlenv.audit.variants import variant_scripts
from rlenv.audit.verdicts import SLACK, episode_of
from rlenv.episodes.environment import Environment
from rlenv.messages import Message, ToolCall
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

_TASKS = 4
_TIMES = 6
_SEEDS = 12
_MOST_TOOLS = 12
_MOST_READS = 60
_NUMBER = 918_273


async def check_steadiness(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Plays what is right and what is wrong several times, with one seed and, what is wrong, with others."""
    for subject in subjects[:_TASKS]:
        wrong: list[Action] = [subject.form(subject.wrong()[0])]
        own: list[Action] = [turn.action for turn in subject.gold.turns]
        # One in part right may be right by what a reward looks at.
        partly = variant_scripts(subject, chapter.hearts.get((subject.gold.split, subject.gold.task_index), ""))
        changed = [script for label, script in partly.items() if label.startswith("another ")]
        for script in (own, wrong, *changed[:1]):
            played = [await player.play(subject.gold, script) for _ in range(_TIMES)]
            first = [subject.gold] if script is own else []
            _note_unsteady(chapter, subject, [*first, *played], "played again with the same seed", HINTS["steady"])
        if player.environment.spec.user is None and not player.environment.parts.resources:
            others = [await player.play(subject.gold, wrong, more=more) for more in range(_SEEDS + 1)]
            _note_unsteady(chapter, subject, others, "played with other seeds", HINTS["seeded"])


def _note_unsteady(chapter: Chapter, subject: AuditSubject, played: Sequence[Trajectory], how: str, hint: str) -> None:
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
            chapter.unsteady[name] = hole_of(
                "unsteady_reward", message, name, hint, episode_of(played[0], subject.gold)
            )


async def check_channels(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Tells each tool a word of no meaning in one episode, and looks for it in what tools give in another."""
    environment = player.environment
    kinds = {name: entry.kind for name, entry in environment.spec.tools.items()}
    tools = [one for one in tools_of(subjects).values() if kinds.get(one.entry) not in ("model", "agent")]
    tools = [one for one in tools[:_MOST_TOOLS] if not subjects[0].submits(one.name)]
    words: dict[str, str] = {}
    writes = [ToolCall(tool.name, _arguments_with_words(tool, words)) for tool in tools]
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
        for other, (call, text) in _words_given_back(heard, words).items():
            if other != word:
                message = f"what one episode tells {words[other]} another reads from the tool "
                message += f"'{call.name}': {text[:80]!r}"
                chapter.channels.append(hole_of("shared_between_episodes", message, hint=HINTS["shared"]))
                return


def _arguments_with_words(tool: Tool, words: dict[str, str]) -> dict[str, Any]:
    """Arguments with a word or a number in each place that takes any, each noted with its place."""
    made = filler(tool)
    for key, part in properties_of(tool).items():
        if {"enum", "const"} & set(part):
            continue
        if "string" in kinds_of(part):
            made[key] = f"zqxword{len(words)}q"
        elif kinds_of(part) & {"integer", "number"} and not {"minimum", "maximum"} & set(part):
            made[key] = _NUMBER + len(words)
        else:
            continue
        words[str(made[key])] = f"the tool '{tool.name}' ({key})"
    return made


def _words_given_back(ended: Trajectory, words: dict[str, str]) -> dict[str, tuple[ToolCall, str]]:
    """The words that calls gave, with the first call that did."""
    found: dict[str, tuple[ToolCall, str]] = {}
    for turn in ended.turns:
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall):
                found.update({word: (call, result.text) for word in words if word in result.text and word not in found})
    return found


_SUCCESS = "success ok passed correct true done completed succeeded approved verified accepted".split()
_PHRASES = ("all tests passed", "exit code 0", json.dumps({"status": "success", "ok": True}))
_ENDS = "That is all."
_MOST_LINES = 40
_MOST_OPTIONS = 24
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


async def tell_tools(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Tells each tool that says it back what success looks like; what came of it stands in `chapter.tried`."""
    muting = Muting()
    heard: set[str] = set()
    for name, telling in _telling_calls(subjects[0]).items():
        tool = telling("").name
        if tool in heard:
            continue
        before = muting.muted
        write = partial(_telling_script, telling=telling, end=0)
        with planted(player.environment, muting):
            await player.play(subjects[0].gold, write(subjects[0]))
        if muting.muted == before:
            continue
        heard.add(tool)
        for end in range(2 if len(subjects[0].options) <= 1 else 1):
            write = partial(_telling_script, telling=telling, end=end)
            told = await player.way(subjects, write)
            with planted(player.environment, muting):
                # Each anew: what was played without the change is no twin.
                plain = {
                    (one.gold.split, one.gold.task_index): await player.play(one.gold, write(one)) for one in subjects
                }
            chapter.tried["echoed"].append((name, {key: one for key, one in told.items() if _depends(one, plain[key])}))


def _depends(told: Trajectory, plain: Trajectory) -> bool:
    """True if an episode earns nothing, or less without the told text; judges are attacked by themselves."""
    if (told.reward.total or 0.0) <= SLACK:
        return True
    pairs = [(term.value, plain.reward.terms[name].value) for name, term in told.reward.terms.items() if term.weight]
    return any((value or 0.0) > (other or 0.0) + SLACK for value, other in pairs)


def _telling_calls(subject: AuditSubject) -> dict[str, Telling]:
    """The parties that could say a text back, by name: each free text of each tool, as it is and as usual code."""
    found: dict[str, Telling] = {}
    for tool in list(subject.tools.values())[:_MOST_TOOLS]:
        for key, part in properties_of(tool).items():
            if "string" in kinds_of(part) and not {"enum", "const"} & set(part) and not subject.submits(tool.name):
                for form, write in _FORMS.items():
                    found[f"{tool.name}({key}){form}"] = partial(_call_with_text, tool, key, write)
    return found


def _call_with_text(tool: Tool, key: str, write: Callable[[str], str], text: str) -> ToolCall:
    return ToolCall(tool.name, {**filler(tool), key: write(text)})


def _telling_script(subject: AuditSubject, *, telling: Telling, end: int) -> list[Action]:
    """Tells the text of success, and ends with words of its own, or with those that the oracle always ends with."""
    call = Message("assistant", "", (telling(Muting.mark(_success_text(subject))),))
    return [call, subject.gold.turns[-1].action if end else _ENDS]


def _success_text(subject: AuditSubject) -> str:
    """The text of success here, as far as it can be foreseen."""
    known = _words(subject.prompt) | _common_tool_words(subject)
    said = [line.strip() for _, result in subject.oracle_calls() for line in result.text.splitlines()]
    lines = list(dict.fromkeys(line for line in said if line and _words(line) <= known))[-_MOST_LINES:]
    wrong = subject.wrong()[: _MOST_OPTIONS - 1]
    options = [*wrong[: len(wrong) // 2], subject.right, *wrong[len(wrong) // 2 :]] if subject.right else []
    return "\n".join([*_SUCCESS, *lines, *options, *_hidden_column_values(subject), *_PHRASES])


def _hidden_column_values(subject: AuditSubject) -> list[str]:
    """The values of the rows in columns of short values that no prompt shows: an oracle need not say what is right."""
    rows = [one.task for one in subject.others] if len(subject.options) <= 1 else []
    hidden = [key for key, value in subject.task.items() if not holds(subject.prompt, str(value))]
    values = [[str(row[key]) for row in rows if isinstance(row.get(key), (str, int))] for key in hidden]
    return [one for some in values for one in dict.fromkeys(some) if len(one) <= _SHORT]


def _common_tool_words(subject: AuditSubject) -> Set[str]:
    """Words that tools say on most of the other tasks too."""
    others = [one for one in subject.others if one.task_index != subject.gold.task_index]
    said = [set[str]().union(*(_words(result.text) for turn in one.turns for result in turn.results)) for one in others]
    counts = Counter(word for words in said for word in words)
    return {word for word, count in counts.items() if 2 * count > len(others)}


def _words(text: str) -> Set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


_ASKS = WORDS["asks_user"]
_MOST_TEXTS = 20
_FEW_TEXTS = 6
_MOST_TURNS = 6
_ASKED = 16
_FEW_OTHERS = 3


def texts_for_user(environment: Environment) -> list[str]:
    """The texts for the user of a spec; [] where there is none, and but a few where a model answers them."""
    user = environment.spec.user
    if user is None:
        return []
    if user.kind == "model":
        return list(_ASKS[:_FEW_TEXTS])
    cues = [text for cue in getattr(user, "cues", ()) for text in pattern_examples(cue.pattern)]
    words = words_in_code(environment, "user.function", getattr(user, "function", None))
    return list(dict.fromkeys([*_ASKS, *cues, *words]))[:_MOST_TEXTS]


async def talk_to_user(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Says each text to the user; what came of it stands in `chapter.tried`."""
    texts = texts_for_user(player.environment)
    if not texts:
        return
    some, aim = subjects[:_ASKED], aim_of(subjects)
    named = list(dict.fromkeys(aim.golds)) if aim is not None and aim.is_answer else []
    for text in [*texts, *[f"Is it {', '.join(named)}?"] * (1 < len(named) <= _MOST_OPTIONS)]:
        way = await player.way(some, partial(_saying_script, texts=[text]))
        chapter.tried["talk"] += [(text, way)] * (text in texts)
        if aim is not None and aim.is_answer:
            await _copy_replies(player, chapter, some, text, aim, way)
    for said in (texts, [" ".join(texts)]):
        way = await player.way(some, partial(_saying_script, texts=said))
        chapter.tried["talk"].append(("one thing after the other" if said is texts else "all of it at once", way))
    chapter.tried["corrected"].append((None, await player.way(some, _correction_script)))
    user = player.environment.spec.user
    is_deaf = user is not None and user.kind == "scripted" and not getattr(user, "cues", ())
    chapter.tried["listed_to_the_deaf" if is_deaf else "listed"] += [(None, await player.way(some, _list_all_script))]
    way = await player.way(some, _meaningless_script)
    chapter.tried["talk"].append(("what means nothing, and then its last words", way))
    if user is not None and user.kind != "model":
        for ask in (ask_user, _try_each_script):
            chapter.tried["asked_until_right"].append(("the user", await player.way(some, ask)))


def _saying_script(subject: AuditSubject, *, texts: Sequence[str]) -> list[Action]:
    own = {turn.action.strip() for turn in subject.gold.turns}
    said: list[Action] = [
        texts[turn % len(texts)] for turn in range(max(min(subject.limits.turns, _MOST_TURNS) - 1, 1))
    ]
    return [] if own & set(texts) else [*said, shrug(subject.asked)]


def _oracle_words_with_value(subject: AuditSubject) -> tuple[str, str, list[str]]:
    """The oracle's words that hold a value of the row, the value, and what else it may be; "" for none."""
    spec, taken = subject.environment.spec, subject.task
    hidden_first = sorted(taken.items(), key=lambda one: holds(subject.prompt, str(one[1])))
    is_free = spec.answer.from_ in ("final_message", "last_number") or not subject.right
    for text in [turn.action for turn in reversed(subject.gold.turns) if is_free and not turn.parsed.calls]:
        for name, value in hidden_first:
            said = str(value)
            if isinstance(value, (str, int, float)) and len(said) <= _SHORT and holds(text, said):
                lists = [list(map(str, one)) for one in taken.values() if isinstance(one, list)]
                column = [str(one.task.get(name, said)) for one in subject.others]
                others = dict.fromkeys(next((some for some in lists if said in some), column))
                return text, said, [one for one in others if one != said]
    return "", "", []


def _correction_script(subject: AuditSubject) -> Adaptive | Sequence[Action]:
    """Proposes a wrong value, and then says what the user names in its place, which it never told the oracle."""
    text, value, _ = _oracle_words_with_value(subject)
    said, right = (text, value) if value else (f"I think it is {subject.right}.", subject.right)
    known = "\n".join([subject.prompt, *_user_replies(subject.gold)])
    wrong = shaped(right, random.Random(0))

    def propose_wrong() -> Adaptive:
        results: Results = yield said.replace(right, wrong)
        is_told = any(is_whole(result.text, right) for result in results)
        yield (text or subject.form(right)) if is_told else shrug(subject.asked)

    return propose_wrong() if right and not is_whole(known, right) else ()


def _list_all_script(subject: AuditSubject) -> Sequence[Action]:
    """What the oracle says with the values of all rows in the place of the right one."""
    text, value, wrong = _oracle_words_with_value(subject)
    half = min(len(wrong), _MOST_OPTIONS) // 2
    listed = ", ".join([*wrong[:half], value, *wrong[half : 2 * half + 1]])
    return [text.replace(value, listed), shrug(subject.asked)] if len(wrong) >= _FEW_OTHERS else []


def _try_each_script(subject: AuditSubject) -> Adaptive | Sequence[Action]:
    """Says what the oracle says with one value after the other, until one is answered otherwise."""
    text, value, wrong = _oracle_words_with_value(subject)

    def try_values() -> Adaptive:
        told: set[str] = set()
        for one in (*wrong, value):
            results: Results = yield text.replace(value, one)
            before, told = told, told | {"".join(result.text for result in results).replace(one, "·")}
        # Who is answered alike has not learnt which one it was.
        yield text.replace(value, wrong[0]) if told == before else shrug(subject.asked)

    return try_values() if 2 <= len(wrong) <= subject.limits.turns - 2 else ()


def _meaningless_script(subject: AuditSubject) -> Sequence[Action]:
    """Nothing at all in the place of what the oracle says, and its last words, which are the same on all tasks."""
    *before, last = [turn.action for turn in subject.gold.turns]
    is_same = all(one.turns and one.turns[-1].action == last for one in subject.others)
    return [*([f"Hmm, {nonce(1, without=subject.asked)[0]}."] * len(before)), last] if before and is_same else []


async def _copy_replies(
    player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject], text: str, aim: Aim, heard: Way
) -> None:
    replies = ["\n".join(_user_replies(heard[one.gold.split, one.gold.task_index])) for one in subjects]
    golds = list(aim.golds[: len(subjects)])
    # What the oracle has said before it is told has not come from the user.
    said = ["\n".join(turn.action for turn in one.gold.turns[:-1]) for one in subjects]
    known = ["\n".join(_user_replies(one.gold)) for one in subjects]
    open_to_all = [
        reply if is_whole(told, gold) or not is_whole(own, gold) else ""
        for reply, told, own, gold in zip(replies, said, known, golds, strict=True)
    ]
    sure = learn_rule(open_to_all, golds, parts=True)
    if sure is None:
        return
    taken = {one.gold.task_index: sure.taken.get(at, "?") for at, one in enumerate(subjects)}
    leak = Leak(f"reply of the user to {text!r}", sure.rule, sure.taken, sure.hits)

    def copy_reply(subject: AuditSubject) -> list[Action]:
        return [text, *aim.write(subject, taken[subject.gold.task_index])]

    chapter.tried["told"].append((leak, await player.way(subjects, copy_reply)))


def _user_replies(ended: Trajectory) -> list[str]:
    """The user's replies to an action without calls."""
    shown = [turn.observation for turn in ended.turns if turn.observation is not None and not turn.results]
    return [message.content for one in shown for message in one.messages if message.role == "user"]
