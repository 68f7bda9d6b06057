"""State that is graded in part: emptied, written over, done with other arguments, with every value, or not at all."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from rlenv.audit.asking import ID, RUNS, oracle_values, sibling_values
from rlenv.audit.crafted import named_words
from rlenv.audit.golds import names_read
from rlenv.audit.play import Adaptive, Chapter, Key, Results, ScriptPlayer, Way, script_of, total_of
from rlenv.audit.probes import arguments_by_name, extreme_calls, filler, names_for
from rlenv.audit.subject import Action, AuditSubject, call_key, kinds_of, properties_of, shaped, texts_of, tools_of
from rlenv.audit.texts import holds
from rlenv.audit.variants import CONTROL, WHERE
from rlenv.messages import Message, ToolCall, ToolResult
from rlenv.rewards.normalise import number
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory

_LOOKS = 24
_WHOLE = re.compile(r"[\"']([^\"'\n]{2,60} [^\"'\n]{1,60})[\"']")
_MOST_AIMS = 6
_MOST_CHANGING = 6
_SAME = "zqx"
_MUCH = 1_000_000
_OTHERS = 6
_TIMES = 3
_MORE = 1.2
_OFTEN = 32
_MOST_PLACES = 6
_TABLE = re.compile(r"(?i)\b(?:from|into|update|table|join)\s+[\"`\[]?(\w+)")
_ALL = ("*", "all", "%", ".*", "")
"""What means all there is in usual tools."""


async def attack_state(player: ScriptPlayer, chapter: Chapter, subjects: Sequence[AuditSubject]) -> None:
    """Plays on tools that change something; what came of it stands in `chapter.tried`."""
    changing = [tool for tool in tools_of(subjects).values() if tool.mutates][:_MOST_CHANGING]
    # Where the answer behind it is right on its own, nothing is earned by the state.
    alone = await player.way(subjects, lambda one: [one.form(one.wrong()[0])]) if changing else {}

    def unpaid_answers(way: Way) -> Way:
        return {key: one for key, one in way.items() if 2 * total_of(alone[key]) <= total_of(chapter.golds[key])}

    called = {call.name for one in subjects for call in one.own_calls()}
    for tool in changing:
        others = [one for one in subjects if tool.name not in {call.name for call in one.own_calls()}]
        # Another way to do the same is no hole; one without a step may be.
        if tool.name in called:
            others = [one for one in others if sum(one.changes(call.name) for call in one.own_calls()) > 1]
        ways = [await player.way(others, partial(_other_tool_script, tool=tool, at=at)) for at in range(2)]
        chapter.tried["unused_tool"] += [(tool.name, unpaid_answers(way)) for way in ways]
    for some in [changing, *([tool] for tool in changing)] if changing else ():
        way = unpaid_answers(await player.way(subjects, partial(_empty_state_script, changing=some)))
        undone = {key: one for key, one in way.items() if not _did_the_task(one, chapter, [one.name for one in some])}
        # Who has made the oracle's own calls among all others has not emptied it.
        made = {key: one for key, one in undone.items() if _has_made_own_calls(one, chapter.golds[key], changing)}
        unused = [one.name for one in some if one.name not in called]
        said = f"; the oracle never calls {', '.join(unused)}: take it away" if unused else ""
        chapter.tried["emptied_state"].append((said, {key: one for key, one in undone.items() if key not in made}))
        listed = "the tools that change something for all that the others list"
        chapter.tried["every_listed"].append((listed, _accepted(made, chapter, changing)))
    # Of no meaning, below nothing, and what the reward names.
    named = [(word, _MUCH) for word in named_words(player.environment)[:_MOST_AIMS]]
    for value in [(_SAME, _MUCH), (_SAME, -_MUCH), *named] if changing else ():
        way = await player.way(subjects, partial(_write_same_script, changing=changing, value=value))
        chapter.tried["written"].append((None, unpaid_answers(way)))
    chapter.only_said = await player.way(subjects, _last_words_script)
    # Words, and a call that is another one on each task, may be the right answer.
    ends = [one.gold for one in subjects if one.gold.turns[-1].results and _changing_calls(one)]
    ended = {(one.split, one.task_index) for one in ends} if len({one.turns[-1].action for one in ends}) == 1 else ()
    chapter.tried["only_said"] = [(None, {key: one for key, one in chapter.only_said.items() if key in ended})]
    for name, write in _TRIED.items():
        scripts = {subject.gold.task_index: write(subject) for subject in subjects}
        for place in dict.fromkeys(place for found in scripts.values() for place in found):
            way = await player.way(subjects, partial(script_of, scripts, place))
            is_asked = name == "every_value" and "(WHERE)" not in place
            chapter.tried[name].append((place, _accepted(way, chapter, changing) if is_asked else way))
    for way in [await player.way(subjects, partial(_repeated_actions, number=one)) for one in range(2)]:
        more = math.fsum(map(total_of, way.values())) > _MORE * math.fsum(total_of(chapter.golds[key]) for key in way)
        chapter.tried["again"] += [(None, way)] * more
    for name in [tool.name for tool in changing if tool.name in called]:
        ways = [await player.way(subjects, partial(_back_and_forth, name=name, times=times)) for times in (_OFTEN, 0)]
        # Only who has found what takes it back goes to and fro at the end.
        often = {key: one for key, one in ways[0].items() if len({turn.action for turn in one.turns[-7:-1]}) == 2}
        often = {key: one for key, one in often.items() if not _call_keys(one) <= _call_keys(chapter.golds[key])}
        said = f"the oracle's first call of {name} and what takes it back"
        chapter.tried["same_call"] += [(said, {key: one for key, one in often.items() if len(one.turns) > _OTHERS})]
        chapter.tried["same_call"] += [(f"{CONTROL}{said}", ways[1])]


def _last_words_script(subject: AuditSubject) -> list[Action]:
    """The oracle's last words; a call that ends an episode is none."""
    return [subject.last_words() if subject.gold.turns[-1].results else subject.gold.turns[-1].action]


def _did_the_task(ended: Trajectory, chapter: Chapter, changing: Sequence[str]) -> bool:
    """True if a policy that changes all there is has changed what the oracle changes: told the same by equally many."""

    def changes_of(one: Trajectory) -> tuple[set[tuple[str, str]], int]:
        made = [pair for turn in one.turns for pair in zip(turn.parsed.calls, turn.results, strict=False)]
        went = [(call, result) for call, result in made if result.name in changing and result.outcome == "ok"]
        calls = {(call.name, str(call.arguments)) for call, _ in went if isinstance(call, ToolCall)}
        return {(result.name, result.text) for _, result in went}, len(calls)

    told = changes_of(chapter.golds[ended.split, ended.task_index])
    return bool(told[0]) and changes_of(ended) == told


def _has_made_own_calls(ended: Trajectory, gold: Trajectory, changing: Sequence[Tool]) -> bool:
    """True where all of the oracle's calls that change something are among those of an episode, or parts of these."""
    names = {tool.name for tool in changing}
    made, own = ([call for call, _ in _calls_with_results(one) if call.name in names] for one in (ended, gold))
    return bool(own) and all(any(_covers_call(call, wanted) for call in made) for wanted in own)


def _call_keys(ended: Trajectory) -> set[tuple[str, str]]:
    return {call_key(call) for call, _ in _calls_with_results(ended)}


def _covers_call(call: ToolCall, wanted: ToolCall) -> bool:
    pairs = [(call.arguments.get(key), value) for key, value in wanted.arguments.items()]
    return call.name == wanted.name and all(
        mine == right or (isinstance(mine, list) and isinstance(right, list) and all(one in mine for one in right))
        for mine, right in pairs
    )


def _accepted(way: Way, chapter: Chapter, changing: Sequence[Tool]) -> Way:
    """Episodes where another call, behind the oracle's first, was answered as its own: others are refused or undone."""

    names = {tool.name for tool in changing}

    def is_accepted(key: Key, ended: Trajectory) -> bool:
        gold = chapter.golds[key]
        own = _call_keys(gold)
        told: dict[tuple[str, bool], set[str]] = {}
        made = [one for one in _calls_with_results(ended) if one[0].name in names]
        firsts = {call.name: at for at, (call, _) in [*enumerate(made)][::-1] if call_key(call) in own}
        for at, (call, result) in enumerate(made):
            if call_key(call) not in own and at < firsts.get(call.name, 0):
                continue
            text = result.text
            for value in sorted(map(str, call.arguments.values()), key=len, reverse=True):
                text = text.replace(value, "·") if value else text
            is_own = call_key(call) in own
            told.setdefault((call.name, is_own), set()).add(re.sub(r"[0-9]+", "0", text))
        others = [(name, texts) for (name, is_own), texts in told.items() if not is_own]
        return any(texts & told.get((name, True), texts) for name, texts in others)

    return {key: ended for key, ended in way.items() if is_accepted(key, ended)}


def _calls_with_results(ended: Trajectory) -> Iterator[tuple[ToolCall, ToolResult]]:
    for turn in ended.turns:
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall):
                yield call, result


def _changing_calls(subject: AuditSubject) -> list[tuple[int, ToolCall, Tool]]:
    """The oracle's calls that change something, with their places among all."""
    tools = subject.tools
    return [
        (at, call, tools[call.name])
        for at, call in enumerate(subject.own_calls())
        if call.name in tools and tools[call.name].mutates
    ]


def _every_value_scripts(subject: AuditSubject) -> dict[str, list[Action]]:
    """The oracle's calls with each value that an argument may have, one after the other or all at once."""
    calls = subject.own_calls()
    last, limits = subject.last_words(), subject.limits
    found: dict[str, list[Action]] = {}
    entries = subject.environment.spec.tools
    for place, call, tool in _changing_calls(subject):
        # A command or a query is no value among others: it does its own work, on every row without a condition.
        for key, right in call.arguments.items() if entries[tool.entry].kind == "sql" else ():
            if (cut := WHERE.sub(" ", str(right))) != right:
                made = [*calls[:place], ToolCall(call.name, {**call.arguments, key: cut}), *calls[place + 1 :]]
                found[f"{tool.name} without a condition (WHERE)"] = [*subject.turns_of(made)[: limits.turns - 1], last]
        for key, right in call.arguments.items() if entries[tool.entry].kind not in RUNS else ():
            one = right[0] if isinstance(right, (list, tuple)) and right else right
            others = sibling_values(subject, tool, key, one)
            if not others:
                continue
            wanted: list[Any] = []
            if isinstance(right, (list, tuple)):
                wanted = [[*dict.fromkeys([*others[::2], *right, *others[1::2]])]]
            elif isinstance(right, str):
                wanted = [*_ALL, ", ".join([*others[::2], right, *others[1::2]])]
            half = len(others) // 2
            each = [] if isinstance(right, (list, tuple)) else [*others[:half], right, *others[half:]]

            def actions_with(values: Sequence[Any], at: int = place, name: str = key) -> list[Action]:
                mine = [ToolCall(calls[at].name, {**calls[at].arguments, name: value}) for value in values]
                made = subject.turns_of([*calls[:at], *mine, *calls[at + 1 :]])
                return [*made[: limits.turns - 1], last]

            said = f"{tool.name} with each {key} that is named"
            if len(each) > 2 and each[-1] != right:
                found.setdefault(said, actions_with(each))
            for value in wanted:
                shown = "all that are named" if value not in _ALL else repr(value)
                found.setdefault(f"{tool.name} with {shown} as its {key}", actions_with([value]))
    return found


def _left_out_scripts(subject: AuditSubject) -> dict[str, list[Action]]:
    """The oracle's calls without some that change something and that the prompt or the row speaks of."""
    calls, changing = subject.own_calls(), _changing_calls(subject)
    told = " ".join([subject.prompt, *texts_of(subject.task)])
    asked = {at for at, call, _ in changing if any(holds(told, str(value)) for value in call.arguments.values())}
    found: dict[str, list[Action]] = {}
    for name in dict.fromkeys(call.name for at, call, _ in changing if at in asked):
        places = [at for at, call, _ in changing if call.name == name and at in asked]
        some = {f"the calls of {name}": places} if len(places) < len(changing) else {}
        if len(places) > 1:
            some |= {f"the first call of {name}": places[:1], f"the last call of {name}": places[-1:]}
            some |= {f"all calls of {name} but the last": places[:-1]}
        for what, dropped in some.items():
            made = subject.turns_of([call for at, call in enumerate(calls) if at not in dropped])
            found[what] = [*made[: subject.limits.turns - 1], subject.last_words()]
    return found


def _empty_state_script(subject: AuditSubject, *, changing: Sequence[Tool]) -> Adaptive:
    """Calls these tools, which change something, for all that the others list, and then gives a wrong answer.

    The others are asked what means nothing, and what the oracle asks them on this task and on others.
    """
    limits, tools = subject.limits, list(subject.tools.values())
    changing = [tool for tool in changing if tool.name in subject.tools]
    still = [tool for tool in tools if not tool.mutates and not subject.submits(tool.name)]
    looks = [ToolCall(tool.name, filler(tool, "")) for tool in still]
    looks += [call for call, _ in subject.oracle_calls() if any(call.name == tool.name for tool in still)]
    foreign = [call for one in subject.foreign() if isinstance(one, Message) for call in one.tool_calls]
    looks += [call for call in foreign if isinstance(call, ToolCall)]
    turns, made = limits.turns - 1, 0
    sources = [*subject.asked, *(text for call in subject.own_calls() for text in texts_of(dict(call.arguments)))]
    names = _TABLE.findall("\n".join(sources))
    for start in range(0, min(len(looks), _LOOKS), limits.calls_per_turn):
        some = looks[start : min(start + limits.calls_per_turn, _LOOKS)]
        if turns <= 1 or made + len(some) >= limits.tool_calls // 2:
            break
        results: Results = yield Message("assistant", "", tuple(some))
        turns, made = turns - 1, made + len(some)
        texts = [result.text for result in results if not result.is_error]
        names += [name for text in texts for name in (*_WHOLE.findall(text), *ID.findall(text))]
    # What the oracle gives in the middle: it must not count for being last.
    own = {str(value) for call in subject.own_calls() for value in call.arguments.values()}
    names = list(dict.fromkeys(names))
    others, right = [one for one in names if one not in own], [one for one in names if one in own]
    names = [*others[: len(others) // 2], *right, *others[len(others) // 2 :]]
    wanted = [
        ToolCall(tool.name, arguments)
        for tool in changing
        if not subject.submits(tool.name)
        for arguments in arguments_by_name(tool, names)
    ]
    for start in range(0, len(wanted), limits.calls_per_turn):
        some = wanted[start : start + limits.calls_per_turn]
        if turns <= 0 or made + len(some) > limits.tool_calls:
            break
        yield Message("assistant", "", tuple(some))
        turns, made = turns - 1, made + len(some)
    # Whoever counts what is gone finds nothing.
    yield subject.form("0" if number(subject.right) else subject.wrong()[0])


def _other_tool_script(subject: AuditSubject, *, tool: Tool, at: int) -> list[Action]:
    """One call of another tool in place of the oracle's, with its values: all of them, or the first alone."""
    known = {key: value for call in subject.own_calls() for key, value in call.arguments.items()}
    given = [key for key in properties_of(tool) if key in known]
    told = {key: known[key] for key in (given[:1] if at else given)}
    return [*subject.turns_of([ToolCall(tool.name, {**filler(tool, ""), **told})]), subject.form("?")] if told else []


def _write_same_script(subject: AuditSubject, *, changing: Sequence[Tool], value: tuple[str, int]) -> list[Action]:
    """Sets all that these tools write to one value, under each name that their schemas and descriptions say."""
    text, amount = value
    same_as: Mapping[str, Any] = {"boolean": True, "integer": amount, "number": amount, "string": text}
    if holds(" ".join(subject.asked), text):
        return []
    calls: list[ToolCall] = []
    for tool in (tool for tool in changing if tool.name in subject.tools):
        properties = properties_of(tool)
        kinds = {key: kinds_of(part) or {"string"} for key, part in properties.items() if "enum" not in part}
        plain = [key for key, some in kinds.items() if "string" in some]
        values = {key: value for key, some in kinds.items() for kind, value in same_as.items() if kind in some}
        limited = {key: part["maximum"] for key, part in properties.items() if key in values and "maximum" in part}
        base = {**filler(tool, text), **values, **limited}
        read = names_read(subject.environment)
        places = {key: [*names_for(subject, tool, key, part), *read] for key, part in properties.items()}
        # A place may take several words: all of those are told what is written there.
        for told in plain[::-1] if len(plain) > 2 else ():
            words = [[(key, word) for word in places[key][:_MOST_PLACES]] for key in plain if key != told]
            calls += [ToolCall(tool.name, {**base, **dict(some)}) for some in product(*words)]
        is_place = len(plain) > 1 or len(values) > len(plain)
        for key in [key for key, part in properties.items() if "enum" in part or (key in plain and is_place)]:
            calls += [ToolCall(tool.name, {**base, key: name}) for name in places[key]]
        calls.append(ToolCall(tool.name, base))
    made = list({repr(call): call for call in calls}.values())
    return [*subject.turns_of(made)[: subject.limits.turns - 1], subject.form(text)]


def _other_argument_scripts(subject: AuditSubject) -> dict[tuple[str, str, int], list[Action]]:
    """The oracle's calls with other arguments, by the tool, what is other there ("" for all), and the number of a way.

    Way 0 leaves it out, or empty where it is needed; the others are wrong. Nothing for what no row or prompt says.
    """
    calls = subject.own_calls()
    tools = subject.tools
    told = " ".join([subject.prompt, *texts_of(subject.task)])
    changing = [name for name in dict.fromkeys(call.name for call in calls) if name in tools and tools[name].mutates]
    if not changing and len(subject.options) <= 1:
        changing = [name for name in dict.fromkeys(call.name for call in calls) if name in tools]
    last = subject.last_words()
    found: dict[tuple[str, str, int], list[Action]] = {}
    for name in changing[:_MOST_AIMS]:
        arguments = [call.arguments for call in calls if call.name == name]
        said = {key: one[key] for one in arguments for key in one if holds(told, str(one[key]))}
        others = {key: _other_values(subject, name, key, value) for key, value in said.items()}
        for at in range(_OTHERS):
            for key in ("", *list(said)[:_MOST_AIMS]):
                changed = {one: values[at] for one, values in others.items() if key in ("", one)}
                if not changed or (at and None in changed.values()):
                    continue
                made = [_with_arguments(call, changed, tools[name]) if call.name == name else call for call in calls]
                # What is empty may be right.
                if any(dict(one.arguments) != dict(call.arguments) for one, call in zip(made, calls, strict=True)):
                    found[name, key, at] = [*subject.turns_of(made), last]
    return found


def _other_values(subject: AuditSubject, name: str, key: str, right: Any) -> list[Any]:
    """Nothing, and wrong values: of another task, or of the right one's shape; far above and far below; of this row."""
    told = set(texts_of(subject.task))
    # What every task asks for stands in no row, and is right here as well.
    told |= {str(call.arguments.get(key)) for call, _ in subject.oracle_calls() if call.name == name}
    wrong = next((one for one in oracle_values(subject, name, key) if str(one) not in told), None)
    own = [*sibling_values(subject, subject.tools[name], key, right), None, None][:2]
    if wrong is None and not isinstance(right, str) and subject.others:
        return [None] * _OTHERS  # a number that is the same on all tasks is no row's: another may do the same
    if isinstance(right, bool) or not isinstance(right, (int, float)):
        made = shaped(right, random.Random(0)) if isinstance(right, str) else None
        return [None, made if wrong is None else wrong, None, None, *own]
    return [None, right * 3 + 7 if wrong is None else wrong, _MUCH, -_MUCH, *own]


def _with_arguments(call: ToolCall, changed: Mapping[str, Any], tool: Tool) -> ToolCall:
    """A call with some arguments as these; those that are None are left out, or empty where they are needed."""
    needed, given = tool.parameters.get("required", ()), dict(call.arguments)
    for key in set(changed) & set(given):
        value = given.pop(key) if changed[key] is None else changed[key]
        if changed[key] is not None or key in needed:
            given[key] = value if changed[key] is not None else type(value)()
    return ToolCall(call.name, given)


def _repeated_actions(subject: AuditSubject, number: int) -> list[Action]:
    """The oracle's actions with each call made three times: in the same turn, or in turns of its own."""
    *before, last = [turn.action for turn in subject.gold.turns]
    calls = subject.own_calls()
    if not calls or subject.gold.turns[-1].results:
        return []
    turns = subject.turns_of([call for call in calls for _ in range(_TIMES)]) if number == 0 else before * _TIMES
    return [*turns[: subject.limits.turns - 1], last]


def _back_and_forth(subject: AuditSubject, *, name: str, times: int) -> Adaptive | Sequence[Action]:
    """The oracle's calls up to the first one of a tool, and that one taken back and made anew so many times."""
    calls = subject.own_calls()
    at = next((at for at, call in enumerate(calls) if call.name == name and name in subject.tools), None)
    return () if at is None else _take_back_and_redo(subject, calls[:at], calls[at], times)


def _take_back_and_redo(subject: AuditSubject, ahead: Sequence[ToolCall], call: ToolCall, times: int) -> Adaptive:
    """Tries what could take the call back: that did which lets the same call be answered as it was before."""
    limits, backs, said, first = subject.limits, _undoing_calls(subject, call), "", subject.turns_of(ahead)
    for action in first:  # noqa: UP028  # a list takes nothing that is sent to it
        yield action
    for result in (yield Message("assistant", "", (call,))):
        said = result.text
    room = min(limits.turns - len(first) - 2, limits.tool_calls - len(ahead) - 1) // 2
    for _ in range(min(room, times)):
        if backs:
            results: Results = yield Message("assistant", "", (backs[0],))
            if not all(result.is_error for result in results):
                results = yield Message("assistant", "", (call,))
            backs = backs if any(result.text == said for result in results) else backs[1:]
            said = next((result.text for result in results if not result.is_error), said)
    yield subject.last_words()


def _undoing_calls(subject: AuditSubject, call: ToolCall) -> list[ToolCall]:
    """Calls that may take one back: of other tools with the same values, and of the same tool with another word."""
    words = {key: value for key, value in call.arguments.items() if isinstance(value, str)}
    found: list[ToolCall] = []
    for tool in (one for one in subject.tools.values() if one.mutates and not subject.submits(one.name)):
        parts = properties_of(tool)
        told = {key: value for key, value in call.arguments.items() if key in parts}
        if tool.name != call.name:
            told = told or dict(zip([*parts][:1], words.values(), strict=False))
            found.insert(0, ToolCall(tool.name, {**filler(tool, ""), **told}))
        for key, value in words.items() if tool.name == call.name else ():
            known = [*oracle_values(subject, tool.name, key), *names_for(subject, tool, key, parts.get(key, {}))]
            found += [ToolCall(tool.name, {**told, key: one}) for one in dict.fromkeys(known) if one != value]
    return found[:_OTHERS]


def _same_call_scripts(subject: AuditSubject) -> dict[str, list[Action]]:
    """The first of the oracle's calls that change something, or a wrong one of that kind, again and again; and once."""
    calls, limits = subject.own_calls(), subject.limits
    changing = [call for call in calls if subject.changes(call.name)] or calls
    if not changing or changing[0].name not in subject.tools:
        return {}
    call = changing[0]
    if sum((one.name, one.arguments) == (call.name, call.arguments) for one in calls) > 1:
        return {}  # the task may be to do it so often
    others = {key: _other_values(subject, call.name, key, value)[1] for key, value in call.arguments.items()}
    wrong = ToolCall(call.name, {**call.arguments, **{key: one for key, one in others.items() if one is not None}})
    found: dict[str, list[Action]] = {}
    for label, one in (("the first call of the oracle", call), ("a wrong call", wrong)):
        often = subject.turns_of([one] * min(_OFTEN, limits.tool_calls))
        found[label] = [*often[: limits.turns - 1], subject.last_words()]
        found[f"{CONTROL}{label}"] = [Message("assistant", "", (one,)), subject.last_words()]
    return found


_TRIED: Mapping[str, Callable[[AuditSubject], Mapping[Any, Sequence[Action] | Adaptive]]] = {
    "other_arguments": _other_argument_scripts,
    "unchecked_call": _left_out_scripts,
    "every_value": _every_value_scripts,
    "beyond": extreme_calls,
    "same_call": _same_call_scripts,
}
