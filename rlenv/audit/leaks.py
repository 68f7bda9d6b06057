"""Answers that stand where a policy can read them without doing the task: in each place it can read, by one judgement.

An answer may well stand in a prompt that has to be read, or in what the oracle calls. It is given away where one rule
finds it that knows nothing of the question (`audit.place_rules`), or where a text that all tasks share says it beside a
task's own words. What such a rule takes is played: it counts for what it earns."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial, reduce

from rlenv.audit import place_rules as rules
from rlenv.audit import probes as probing
from rlenv.audit.play import Chapter, Leak, ScriptPlayer
from rlenv.audit.subject import Action, Aim, AuditSubject, aim_of, call_key, same, texts_of, tools_of
from rlenv.audit.texts import DATA
from rlenv.episodes.rollout import gather_all
from rlenv.messages import ToolCall, ToolResult
from rlenv.tools.base import Tool

_MOST_BESIDE = 300
_TOKEN = re.compile(r"\w+|[-+*/^%<>=]")
_RARE_WORD = 5
_LEAST_WORDS = 4
_QUESTION = 0.8
"""The share of a question's words that a line has which repeats it."""


def shared_text_leaks(
    prompts: Sequence[str], subjects: Sequence[AuditSubject], golds: Sequence[str]
) -> Iterator[tuple[str, rules.Proof]]:
    """Descriptions, schemas and lines that all prompts share, such as examples: the places that give golds away."""
    lines = [prompt.splitlines() for prompt in prompts]
    shared = Counter(line for some in lines for line in set(some))
    alike = {line: None for line, count in shared.items() if 2 * count > len(prompts)}
    own = distinctive_words(["\n".join(line for line in some if line not in alike) for some in lines])
    told = {"prompt, where it is the same on all tasks": [probing.split_pieces("\n".join(alike))] * len(golds)}
    read: dict[int, dict[str, list[str]]] = {}
    for at, subject in enumerate(subjects[: len(golds)]):
        for tool in subject.tools.values():
            for kind, some in (read.get(id(tool)) or read.setdefault(id(tool), probing.text_pieces(tool))).items():
                told.setdefault(f"{kind} of tool '{tool.name}'", [[] for _ in golds])[at] = some
    for where, said in told.items():
        if sure := proof_beside(said, own, golds):
            yield where, sure


def distinctive_words(prompts: Sequence[str]) -> list[set[str]]:
    """The words of each prompt that few others have."""
    words = [set(probing.words_in(prompt)) for prompt in prompts]
    common = Counter(word for some in words for word in some)
    return [{word for word in some if _RARE_WORD * common[word] <= len(words) or common[word] == 1} for some in words]


def proof_beside(said: Sequence[Sequence[str]], own: Sequence[Set[str]], golds: Sequence[str]) -> rules.Proof | None:
    """The proof that the pieces which are said on a task and hold a word of its own give golds away."""
    near = []
    for pieces_of, words, gold in zip(said, own, golds, strict=True):
        others = words - set(probing.words_in(gold))
        near.append("\n".join(piece for piece in pieces_of if others & set(probing.words_in(piece))))
    return _proof(near, golds)


def _proof(near: Sequence[str], golds: Sequence[str]) -> rules.Proof | None:
    fired = [at for at, text in enumerate(near) if text and golds[at]][:_MOST_BESIDE]
    hits = [at for at in fired if rules.holds(near[at], golds[at])]
    if not hits:
        return None
    # A line that names all there is says other tasks' golds as well.
    beside = [(at, other) for at in fired for other in fired if not same(golds[at], golds[other])]
    pairs = [rules.holds(near[at], golds[other]) for at, other in beside]
    chance = max(sum(pairs) / max(1, len(pairs)), rules.hit_chance(["\0"] * len(fired), [golds[at] for at in fired]))
    if not rules.is_no_chance(len(hits), len(fired), min(len(golds), _MOST_BESIDE), chance=chance, tries=len(golds)):
        return None
    taken = {at: golds[at] for at in hits}
    return rules.Proof("what stands beside the prompt's own words", len(hits), len(fired), chance, taken)


class Sheet:
    """The content of a listed name that is the same on all tasks, by the words of the prompts.

    Where the oracle does not use the tool, a line has to repeat the question: looking a word up may be the task.
    """

    def __init__(self, where: str, text: str, call: ToolCall, subjects: Sequence[AuditSubject]) -> None:
        self.where = where
        self._call = call
        self._lines = text.splitlines()
        used = sum(any(made.name == call.name for made, _ in one.oracle_calls()) for one in subjects)
        self._least = 0.0 if 2 * used > len(subjects) else _QUESTION
        self._asked = [_question_forms(one) if self._least else [] for one in subjects]
        self._questions = [set(probing.words_in(one.prompt)) for one in subjects]
        self._words = [set(probing.words_in(_prompt(one))) for one in subjects]

    @property
    def is_blind(self) -> bool:
        """True if no line could repeat a question, since these have too few words to be known by."""
        return self._least > 0 and not any(self._asked)

    def proof(self, golds: Sequence[str]) -> rules.Proof | None:
        """The proof that the lines nearest to a task's prompt give golds away."""
        return _proof([self._nearest_lines(at, set(probing.words_in(gold))) for at, gold in enumerate(golds)], golds)

    def _nearest_lines(self, at: int, but: Set[str]) -> str:
        lines = self._lines
        spoken = [(line, set(probing.words_in(line)) - but) for line in lines]
        question = self._questions[at]
        # Instructions name what all questions choose among.
        shared = [(len(self._words[at] & said), len(question & said)) for _, said in spoken]
        most = max(shared, default=(0, 0))
        least = max(_LEAST_WORDS, self._least * len(question)) if self._least else 1
        # The whole question in a line is repeated, however short it is.
        if whole := [line for line in lines if any(one in _as_words(line) for one in self._asked[at])]:
            return "\n".join(whole)
        kept = [line for line, both in zip(lines, shared, strict=True) if both == most]
        return (
            "\n".join(kept)
            if most[0] and any(len(question & set(probing.words_in(one))) >= least for one in kept)
            else ""
        )


def find_sheets(subjects: Sequence[AuditSubject], told: Sequence[Mapping[str, ToolResult]]) -> Iterator[Sheet]:
    """The texts of listed names that are one on all tasks, but for what is there to be read.

    That is what the oracle asks for on any task, and what a prompt or a tool's description names.
    """
    tools = tools_of(subjects)
    calls = [call for one in subjects for call, _ in one.oracle_calls()]
    asked = [str(value) for call in calls for value in call.arguments.values()]
    shown = "\n".join(dict.fromkeys([*map(_prompt, subjects), *asked, *(tool.description for tool in tools.values())]))
    asking = [one for one in told if one]
    read = {result.text for one in subjects for _, result in one.oracle_calls()}
    for label in dict.fromkeys(label for one in asking for label in one):
        call = probing.call_reading_name(tools, label)
        given = [one[label] for one in asking if label in one]
        texts = {result.text for result in given if not result.is_error}
        if (
            call is None
            or len(texts) != 1
            or texts <= read
            or 4 * len(given) < 3 * len(asking)
            or rules.holds(shown, call[1])
        ):
            continue
        yield Sheet(f"result of {label}", texts.pop(), call[0], subjects)


def _prompt(subject: AuditSubject) -> str:
    return "\n\n".join(message.content for message in subject.gold.messages)


def _question_forms(subject: AuditSubject) -> list[str]:
    """The question as a sheet would hold it: the prompt, and what of the row stands in it as a sentence."""
    shown = _as_words(subject.prompt)
    texts = [_as_words(text) for text in texts_of(subject.task)]
    return [one for one in (shown, *texts) if len(one.split()) >= _LEAST_WORDS and one in shown]


def _as_words(text: str) -> str:
    return f" {' '.join(_TOKEN.findall(text.casefold()))} "


_NAMES_GOLD = re.compile(DATA["named_gold"])
_MOST_PLAYED = 8
_MOST_ASKED = 48
_SCOUTS = 12
_ROUNDS = 3
_PROBING_S = 30.0
_OF_ANSWERS = ("question", "answer", "solution", "key", "notes", "checked", "quiz", "reviewer", "gold", "expected")

ResultsByLabel = dict[str, ToolResult]
"""What calls gave on one task, by what they are."""


async def read_places(
    player: ScriptPlayer, chapter: Chapter, everyone: Sequence[AuditSubject], attacked: Sequence[AuditSubject]
) -> list[str]:
    """Looks for golds in all places, plays on `attacked` what finds them, and gives notes on what was not looked at."""
    keys = {one.gold.task_index for one in attacked}
    ordered = [*attacked, *(one for one in everyone if one.gold.task_index not in keys)]
    return await _play_leaks(player, chapter, ordered, attacked, aim) if (aim := aim_of(ordered)) is not None else []


async def _play_leaks(
    player: ScriptPlayer, chapter: Chapter, ordered: Sequence[AuditSubject], attacked: Sequence[AuditSubject], aim: Aim
) -> list[str]:
    leaks, notes = await find_leaks(player, ordered, aim)
    places = {subject.gold.task_index: at for at, subject in enumerate(ordered)}

    def copies(subject: AuditSubject, taken: Mapping[int, str]) -> list[Action]:
        return aim.write(subject, taken.get(places[subject.gold.task_index], "?"))

    for leak in sorted(leaks, key=lambda one: -one.hits)[:_MOST_PLAYED]:
        chapter.tried["leak"].append((leak, await player.way(attacked, partial(copies, taken=leak.taken))))
    return notes


async def find_leaks(player: ScriptPlayer, subjects: Sequence[AuditSubject], aim: Aim) -> tuple[list[Leak], list[str]]:
    """The places that show golds, with the best rule for each, and notes; tools are asked on the first subjects."""
    golds = aim.golds
    prompts = [rules.with_base64("\n\n".join(message.content for message in one.gold.messages)) for one in subjects]
    # What a tool has to be asked for is no part of a prompt to be read.
    asked_for = sum(_is_looked_up(subject, gold) for subject, gold in zip(subjects, golds, strict=True))
    allowed = rules.is_mark_anywhere if 5 * asked_for >= 4 * len(subjects) else rules.is_mark
    found = [
        _to_leak("assistant's message in the prompt", rules.learn_rule(_assistant_texts(subjects), golds, parts=True)),
        _to_leak("prompt", rules.learn_rule(prompts, golds, allowed=partial(_is_read_off, allowed))),
        *(_to_leak(*one) for one in shared_text_leaks(prompts, subjects, golds)),
    ]
    # Who has to go on from what a call gave has not read the answer there, nor in the name of a file.
    for number in range(_ROUNDS):
        read = [_result_gone_on_from(subject, number) for subject in subjects]
        name = next((result.name for result in read if result is not None), "")
        texts = _lines_of_own([rules.with_base64(result.text) if result is not None else "" for result in read])
        where = f"result of '{name}' that the oracle goes on from"
        found += [_to_leak(where, rules.learn_rule(texts, golds, allowed=lambda *found: found[-1] not in rules.NEAR))]
    shown = ["\n".join(result.text for _, result in one.oracle_calls()) for one in subjects]
    named = rules.learn_rule(shown, golds, allowed=lambda text, at, *_: bool(_NAMES_GOLD.search(text[:at])))
    found += [_to_leak("result that the oracle reads, by what it is called there", named)] * aim.is_answer
    some = subjects[:_MOST_ASKED]
    told, notes = await _ask_tools(player, some, golds)
    found += _sheet_leaks(some, golds[: len(some)], told, notes)
    found += await _doc_leaks(player, some, golds[: len(some)]) if aim.is_answer else []
    best: dict[tuple[str, str], Leak] = {}
    asked, alike = list(zip(some, golds, strict=False)), _constant_tools(some)
    for label in dict.fromkeys(label for one in told for label in one):
        tool = label.replace(" ", "(").partition("(")[0]
        is_read = (aim.is_answer or tool == aim.tool) and not some[0].submits(tool)
        for kind in ("result", "error") if is_read else ("error",):
            # What one tool says to many calls is one place.
            place = kind, tool
            is_told = probing.TELLS.search(label.partition(" of ")[2])  # by its name it is to be kept
            is_asked = label.endswith(probing.AS_ORACLE) or (place[1] in alike and not is_told)
            texts = [_result_text(one.get(label), kind, *of, is_asked) for one, of in zip(told, asked, strict=True)]
            leak = _to_leak(f"{kind} of {label}", rules.learn_rule(texts, golds[: len(some)]))
            if leak is not None and (place not in best or leak.hits > best[place].hits):
                best[place] = leak
    return [leak for leak in (*found, *best.values()) if leak is not None], notes


def _assistant_texts(subjects: Sequence[AuditSubject]) -> list[str]:
    """The assistant's own messages of each prompt: no question is asked by an answer that stands there."""
    return ["\n".join(one.content for one in subject.gold.messages if one.role == "assistant") for subject in subjects]


def _is_read_off(allowed: rules.Allowed, text: str, start: int, end: int, transform: str) -> bool:
    return transform not in rules.NEAR and allowed(text, start, end, transform)


def _is_looked_up(subject: AuditSubject, gold: str) -> bool:
    """True if the oracle has the gold from a tool that it did not tell it."""
    return any(
        rules.holds(result.text, gold) and not rules.holds(repr(dict(call.arguments)), gold)
        for call, result in subject.oracle_calls()
        if not subject.changes(call.name)
    )


def _to_leak(where: str, sure: rules.Proof | None) -> Leak | None:
    if sure is None:
        return None
    rule = f"{sure.rule} (the gold on {sure.hits} of {sure.of} tasks, by chance {sure.chance:.0%})"
    return Leak(where, rule, sure.taken, sure.hits)


def _sheet_leaks(
    subjects: Sequence[AuditSubject], golds: Sequence[str], told: Sequence[ResultsByLabel], notes: list[str]
) -> Iterator[Leak | None]:
    """Golds in what a listed name gives on all tasks alike: in what is shown of it, or in its rows for the task."""
    for sheet in find_sheets(subjects, told):
        sure = sheet.proof(golds)
        yield _to_leak(sheet.where, sure)
        if sure is None and sheet.is_blind:
            notes.append(
                f"{sheet.where}: answers beside questions were not looked for, since these are too short to know"
            )


async def _doc_leaks(player: ScriptPlayer, subjects: Sequence[AuditSubject], golds: Sequence[str]) -> list[Leak | None]:
    """Golds beside a task's own words in a piece of what a tool finds with both, where the oracle reads no such one."""
    own, found = distinctive_words([one.prompt for one in subjects]), list[Leak | None]()
    for tool in probing.askable_tools(subjects[0]):
        calls = [[call for call, _ in one.oracle_calls() if call.name == tool.name] for one in subjects]
        if (
            tool.mutates
            or not all(calls)
            or not any(len(set(map(call_key, some))) > 1 for some in zip(*calls, strict=False))
        ):
            continue
        asked = [list(_document_probes(tool, *one)) for one in zip(own, golds, strict=True)]
        told = await gather_all([_probe_results(player, *one) for one in zip(subjects, asked, strict=True)])
        read = [probing.split_pieces("\n".join(result.text for _, result in one.oracle_calls())) for one in subjects]
        texts = [probing.split_pieces("\n".join(result.text for result in one.values())) for one in told]
        if proof_beside(read, own, golds) is None:
            found.append(_to_leak(f"document that '{tool.name}' finds", proof_beside(texts, own, golds)))
    return found


def _document_probes(tool: Tool, words: Set[str], gold: str) -> Iterator[probing.Probe]:
    """The probes with a task's own words and its gold, alone and with each word that such a document may have."""
    for word in ("", *_OF_ANSWERS):
        said = " ".join([word, *sorted(words), gold]).strip()
        yield said, (ToolCall(tool.name, probing.arguments_with_word(tool, said)),)


async def _ask_tools(
    player: ScriptPlayer, subjects: Sequence[AuditSubject], golds: Sequence[str]
) -> tuple[list[ResultsByLabel], list[str]]:
    """The answers of tools to anything: all calls on a few tasks, and on the others those that said a gold on some."""
    scouts, began = subjects[:_SCOUTS], time.process_time()
    told = await gather_all([_ask_on_task(player, subject) for subject in scouts])
    said = Counter(
        label
        for results, gold in zip(told, golds, strict=False)
        for label, result in results.items()
        if rules.says_in_any_form(result.text, gold)
    )
    kept = {label for label, count in said.items() if count >= max(2, len(scouts) / 4)}
    notes = []
    for start in range(len(scouts), len(subjects) if kept else 0, _SCOUTS):
        if time.process_time() - began > _PROBING_S:
            notes.append(
                f"tools were asked for golds on {start} tasks, since that took {_PROBING_S:g} s of the processor"
            )
            break
        told += await gather_all([_ask_on_task(player, subject, kept) for subject in subjects[start : start + _SCOUTS]])
    return [*told, *({} for _ in subjects[len(told) :])], notes


async def _ask_on_task(player: ScriptPlayer, subject: AuditSubject, kept: Set[str] | None = None) -> ResultsByLabel:
    """The answers to calls on one task: those of the schemas, and rounds of listed names; `kept` ones, or all."""
    asked = probing.probes(subject)
    plain = [one for one in asked if kept is None or one[0] in kept]
    # Names are read from what the others give.
    is_listing = kept is None or len(plain) < len(kept)
    told = await _probe_results(player, subject, asked if is_listing else plain)
    calls = dict(asked)
    for turn in range(_ROUNDS if is_listing else 0):
        given = [(calls[label][-1], result) for label, result in told.items() if len(calls[label]) == 1]
        listed = probing.reading_probes(subject, probing.names_in_listings([*subject.oracle_calls(), *given]))
        # Behind two listings there are folders in folders, and no more tables.
        new = [one for one in listed if one[0] not in calls and (turn < 2 or "/" in one[0])]
        calls |= dict(new)
        told |= await _probe_results(player, subject, new)
    return told


async def _probe_results(player: ScriptPlayer, subject: AuditSubject, asked: Sequence[probing.Probe]) -> ResultsByLabel:
    """The results of each probe's last call: as many of one turn as the limits allow, each lot in an episode."""
    limits = subject.limits
    width = min(limits.calls_per_turn, limits.tool_calls)
    by_key = {repr([(call.name, dict(call.arguments)) for call in calls]): calls for _, calls in asked}
    # What a call changes or ends, the ones beside it must not see.
    names = {call.name for calls in by_key.values() for call in calls}
    alone = {name for name in names if subject.changes(name) or subject.submits(name)}
    still = [key for key, calls in by_key.items() if len(calls) == 1 and calls[0].name not in alone]
    lots = [[key] for key in by_key if key not in set(still)]
    lots += [still[start : start + width] for start in range(0, len(still), width)]
    given: dict[str, ToolResult] = {}
    for lot in lots:
        calls = [call for key in lot for call in by_key[key]]
        ended = await player.play(subject.gold, subject.turns_of(calls))
        results = [result for turn in ended.turns for result in turn.results]
        shown = results if len(lot) > 1 else results[len(calls) - 1 :]
        for key, result in zip(lot, shown, strict=False):
            # What it repeats of the call, it does not give.
            said = [value for value in by_key[key][-1].arguments.values() if isinstance(value, str) and len(value) > 1]
            said += [value.rsplit(maxsplit=1)[-1] for value in said if value.startswith(probing.EVERY_ROW)]
            text = reduce(lambda text, value: text.replace(value, "·"), said, result.text)
            given[key] = replace(result, text=text)
    keys = {label: repr([(call.name, dict(call.arguments)) for call in calls]) for label, calls in asked}
    return {label: given[key] for label, key in keys.items() if key in given}


def _result_gone_on_from(subject: AuditSubject, number: int) -> ToolResult | None:
    """The result of the oracle's call of that number, None where it reads nothing after it."""
    given: dict[tuple[str, str], ToolResult] = {}
    for call, result in subject.oracle_calls():
        if not subject.changes(call.name) and not subject.submits(call.name):
            given.setdefault(call_key(call), result)
    results = list(given.values())
    return results[number] if number + 1 < len(results) else None


def _lines_of_own(texts: Sequence[str]) -> list[str]:
    """Listings without the lines that most of them have: one takes the name that the others lack."""
    lines = [text.splitlines() for text in texts]
    counts = Counter(line for some in lines for line in set(some))
    full = sum(map(bool, lines))
    return ["\n".join(line for line in some if 5 * counts[line] < 4 * full) for some in lines]


def _constant_tools(subjects: Sequence[AuditSubject]) -> Set[str]:
    """Tools that the oracle calls with the same arguments on every task, whatever is asked."""
    calls = {call_key(call) for subject in subjects for call, _ in subject.oracle_calls()}
    return {name for name, count in Counter(name for name, _ in calls).items() if count == 1}


def _result_text(result: ToolResult | None, kind: str, subject: AuditSubject, gold: str, is_asked: bool) -> str:
    """The text of a call, "" where the oracle reads that, or the gold in its own call of that kind, on purpose."""
    if result is None or kind != ("error" if result.is_error else "result"):
        return ""
    own = [one.text for call, one in subject.oracle_calls() if call.name == result.name]
    is_read = result.text in own or (is_asked and kind == "result" and any(rules.holds(text, gold) for text in own))
    return "" if is_read else rules.with_base64(result.text)
