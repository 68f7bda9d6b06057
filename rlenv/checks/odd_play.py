"""Warnings of what is played: the oracle, silence, noise and other rows' answers, held against terms and success."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rlenv.checks.odd_parts import Told, cut_answers, empty_golds, told_by_tools, unmeasurable
from rlenv.checks.odd_scorers import check_undone_calls, unearned
from rlenv.checks.odd_terms import check_came_otherwise, check_long_episodes, check_told_otherwise
from rlenv.checks.subject import PATTERNS, ReadSplit, Subject, gold_answer, gold_term, is_condition, step_at, to_action
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, play
from rlenv.errors import EpisodeError, Finding
from rlenv.language.functions import failure
from rlenv.language.kinds import gold_key, is_own, kind_of
from rlenv.language.spec import RewardSpec
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.rewards.base import Measured, Term
from rlenv.rewards.scorer import Scorer
from rlenv.runs.summary import value_of
from rlenv.tools.base import Tool, ToolOutput
from rlenv.trajectory import Trajectory

_NOISE: Final = "zq xv wk"
_UNKNOWN: Final = "\u2026 not called by validation \u2026"
_ROWS, _OTHERS = 16, 3
"""So many rows of each split the oracle plays, and so many of the first everything else."""
_WITHIN_S: Final = 8.0
_WRONG: Final = ("an empty message", "a refusal", f"the answer '{_NOISE}'", "the answer '{}'", "a long answer of noise")
_WORK: Final = ("the oracle's work", "the answer of", "a list of")  # what begins with what the oracle does
_WRITES: Final = re.compile(r"\.(?:unlink|rmdir|rename|touch|mkdir|write_\w+)\(|\bopen\([^)]*[\"'][wax+]")
_FULL: Final = frozenset(
    "exact_match numeric_match contains math_equal json_match sql_match verify regex json_schema valid_calls".split()
)
"""Kinds of terms of which the oracle is to earn all."""
_raised: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("raised", default=None)
"""What tools raised in the episodes of this context, by name; None where nothing is played."""


@dataclass(slots=True)
class TriedPlays:
    """The results of each way of playing, by split and row; `unknown` are the terms that were not measured."""

    oracle: dict[tuple[str, int], Trajectory] = field(default_factory=dict)
    ways: dict[str, dict[tuple[str, int], Trajectory]] = field(default_factory=dict)
    examples: dict[str, Trajectory] = field(default_factory=dict)
    """The call that each tool gives as its example, on the first row."""
    twice: tuple[Trajectory, Trajectory] | None = None
    """The oracle on the first row, else a wrong answer, played twice with one seed."""
    unpaid: tuple[str, int] | None = None
    """A row with a column that looks like what is right, of which no column earns anything as the answer."""
    told: dict[str, dict[tuple[str, int], str]] = field(default_factory=dict)
    """The results of a call of each tool with arguments of chance, by split and row."""
    unknown: frozenset[str] = frozenset()
    raised: dict[str, str] = field(default_factory=dict)
    """What tools raised that they do not declare, by name."""


def check_played(subject: Subject) -> Iterator[Finding]:
    """Warnings of `oracle`, `rewards` and `success`, from episodes that reach nothing outside."""
    if not subject.splits or subject.compiled.parts is None or not _may_play(subject):
        return
    played = subject.once("plays", TriedPlays)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(_run_plays, subject, played), daemon=True)
    thread.start()
    thread.join(_WITHIN_S + 4)
    if thread.is_alive():
        subject.not_checked.append("what an episode earns: playing it took too long")
        return
    for name, got in played.examples.items():
        result = got.turns[0].results[0] if got.turns and got.turns[0].results else None
        if result is not None and result.is_error and result.whose != "infrastructure":
            yield subject.say("odd-example/fails", f"tools.{name}.example", result.text[:100])
    for name, why in played.raised.items():
        if name.endswith(".ends"):
            yield subject.say("unfit-ends/of-call", name, why[-160:])
        is_called = name in played.told and not subject.loaded.spec.oracle  # of an oracle's calls more is said
        if is_called and (bug := PATTERNS.bug.match(why)) and (not bug[1] or bug[1] in str(subject.code)):
            yield subject.say("broken-tool/any-call", f"tools.{subject.tools[name].entry or name}", why[:160], at="key")
    yield from () if played.twice is None else check_came_otherwise(subject, *played.twice)
    if played.unpaid is not None:
        yield subject.say("gold-not-earned/any-column", "rewards", played.unpaid[1] + 1, played.unpaid[0], at="key")
    texts = [message.content for got in played.oracle.values() for message in got.messages]
    texts += [result.text for got in played.oracle.values() for turn in got.turns for result in turn.results]
    if objects := re.findall(r"<[\w.]+ object at 0x[0-9a-f]+>", "\n".join(texts)):
        yield subject.say("odd-column/object", "prompt", objects[0], at="key")
    yield from check_told_otherwise(subject, played.oracle)
    yield from told_by_tools(subject, played.told, played.oracle)
    yield from (unread := list(_check_unread_golds(subject, played)))
    yield from () if unread else check_undone_calls(subject, played.ways.get(_WRONG[0], {}))
    has_oracle = bool(subject.loaded.spec.oracle)
    yield from (found := unread or list(_oracles(subject, played) if has_oracle else unearned(subject, played.oracle)))
    yield from () if found else unmeasurable(subject, played.ways, played.oracle)
    told = {key: got for key, got in played.oracle.items() if not any(_UNKNOWN in turn.action for turn in got.turns)}
    played.oracle = told
    yield from () if found or hasattr(subject.loaded.spec.user, "roles") else _check_worth(subject, played)


def _may_play(subject: Subject) -> bool:
    """False where an episode may act outside of itself, asks a model, or has faults put in on purpose."""
    spec = subject.loaded.spec
    faults = [one.faults for one in (spec.calls, *spec.tools.values()) if one.faults is not None]
    if getattr(spec.user, "kind", "") == "model" or any(one.is_on for one in faults):
        return False
    return subject.code is not None and PATTERNS.reaches_out.search(subject.code) is None


def _run_plays(subject: Subject, played: TriedPlays) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_WITHIN_S):
            await _play_ways(subject, played)

    _raised.set(played.raised)
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] == "rlenv":
            logging.getLogger(name).addFilter(_is_heard)
    try:
        asyncio.run(bounded())
    except TimeoutError:
        subject.not_checked.append(f"what episodes earn, beyond what was played in {_WITHIN_S:g} s")
    except Exception as error:  # a world that does not open is no oddity of the spec's text
        subject.not_checked.append(f"what an episode earns: {error}")


def _is_heard(record: logging.LogRecord) -> bool:
    """False for what is logged while validation plays: what a tool raises there is said with its place."""
    raised = _raised.get()
    if raised is not None and record.exc_info and record.exc_info[1] is not None and record.args:
        raised.setdefault(str(next(iter(record.args))).removeprefix("tool ").strip("'"), failure(record.exc_info[1]))
    if raised is not None and (place := getattr(record, "place", "")):
        raised.setdefault(place, record.getMessage().rpartition("}): ")[2])
    return raised is None


async def _play_ways(subject: Subject, played: TriedPlays) -> None:
    spec, parts = subject.loaded.spec, subject.compiled.parts
    assert parts is not None
    tools = {name: tool if _is_local(subject, tool) else _is_silent(tool) for name, tool in parts.tools.items()}
    far = {name for name, tool in parts.tools.items() if not _is_local(subject, tool)}
    asked = far & set(re.findall(r"[\w-]+", str(subject.document.get("oracle"))))
    played.unknown = frozenset(term.name for term in parts.terms if _is_far(term, far, is_asked=bool(asked)))
    terms = tuple(_unmeasured(term) if term.name in played.unknown else term for term in parts.terms)
    scorer = Scorer(terms, success=spec.success)
    environment = Environment(subject.loaded, parts=replace(parts, tools=tools, terms=terms, scorer=scorer))
    async with environment:
        for name, split in subject.splits.items():
            for index in range(min(len(split.rows), _ROWS)):
                if spec.oracle:
                    policy = environment.oracle()
                    played.oracle[name, index] = await play(environment, policy, Job(name, index))
                elif (right := _gold_answer(subject, split, index, parts.tools)) is not None:
                    played.oracle[name, index] = await _play_once(environment, name, index, [right])
        name, split = next(iter(subject.splits.items()))
        shown = dict[Any, int]()  # what rows ask for may be the same in the first ones
        for index in range(min(len(split.rows), _ROWS)):
            told = played.oracle.get((name, index))
            shown.setdefault(index if told is None else tuple(turn.action for turn in told.turns), index)
        rows = [*shown.values()][:_OTHERS]
        noise = to_action(subject, _NOISE, parts.tools)
        if spec.oracle and (name, 0) in played.oracle:
            played.twice = played.oracle[name, 0], await play(environment, environment.oracle(), Job(name, 0))
        elif noise is not None:
            first, second = [await _play_once(environment, name, 0, [noise]) for _ in range(2)]
            played.twice = first, second
        if spec.oracle is None and not played.oracle and any(is_own(one) for one in spec.rewards.values()):
            await _play_columns(subject, environment, played, name, parts.tools)
        await _call_tools(subject, environment, played, name, rows)
        for way, actions in _ways_to_play(subject, parts.tools):
            got = played.ways.setdefault(way, {})
            is_of_all = way == _WRONG[0] and any(one.kind == "state" for one in spec.rewards.values())
            for index in range(min(len(split.rows), _ROWS)) if is_of_all else rows:
                got[name, index] = await _play_once(environment, name, index, actions)
        golds = {index: played.oracle[name, index] for index in rows if (name, index) in played.oracle}
        answers = {index: one.answer for index, one in golds.items() if one.answer}
        compares = any(_compares(subject, name, one) for name, one in spec.rewards.items())
        has_golds = (term := gold_term(subject)) is not None and term.spec.usual_weight > 0
        for index, gold in golds.items():
            other = None if not compares else next((one for one in answers.values() if one != gold.answer), None)
            letter = gold.answer[:1] if compares and gold.answer and len(gold.answer) > 3 else None
            everything = ", ".join(dict.fromkeys(one for one in answers.values() if one))
            work = [turn.action for turn in gold.turns[:-1]]
            for way, text, before in (
                ("the oracle's work with a wrong answer", _NOISE if compares else None, work),
                ("the answer of another row", other, work),
                ("the oracle's work with a letter of its answer", letter, work),
                ("a list of several rows' answers", everything if other and has_golds else None, work),
            ):
                action = None if text is None else to_action(subject, text, parts.tools)
                if action is not None and (before or text != _NOISE):
                    kept = played.ways.setdefault(way, {})
                    kept[name, index] = await _play_once(environment, name, index, [*before, action])


async def _call_tools(
    subject: Subject, environment: Environment, played: TriedPlays, name: str, rows: Sequence[int]
) -> None:
    """Calls each local tool by its example, and each Python function that changes nothing with arguments of chance."""
    spec, writes = subject.loaded.spec, _WRITES.search(subject.code or "") is not None
    for tool in environment.parts.tools.values():
        is_called = _is_local(subject, tool) and tool.name in spec.tools  # as a policy would
        if not is_called or spec.tools[tool.name].offered is False:
            continue
        if tool.example is not None and not tool.mutates:
            call = Message("assistant", "", (ToolCall(tool.name, dict(tool.example)),))
            played.examples[tool.name] = await _play_once(environment, name, 0, [call])
        if tool.kind != "python" or tool.ends or tool.mutates or writes or tool.name == spec.answer.tool:
            continue
        with contextlib.suppress(ValueError):  # nothing fits its schema
            given = random_value({"type": "object", **tool.parameters}, random.Random(0))
            blind = Message("assistant", "", (ToolCall(tool.name, given if isinstance(given, dict) else {}),))
            for index in rows:
                got = await _play_once(environment, name, index, [blind])
                text = "".join(result.text for turn in got.turns for result in turn.results)
                played.told.setdefault(tool.name, {})[name, index] = text


async def _play_columns(
    subject: Subject, environment: Environment, played: TriedPlays, split: str, tools: Mapping[str, Tool]
) -> None:
    """Plays each column as the answer; the one that earns most is taken for what is right, if it earns anything."""
    for index, row in enumerate(subject.splits[split].rows[:_OTHERS]):
        texts = [str(value) for value in row.values() if isinstance(value, (str, int, float))][: _OTHERS * 3]
        actions = [action for text in texts if (action := to_action(subject, text, tools)) is not None]
        got = [await _play_once(environment, split, index, [action]) for action in actions]
        best = max(got, key=lambda one: one.reward.total or 0.0, default=None)
        spec = subject.loaded.spec
        paid = [key for key, one in spec.rewards.items() if one.usual_weight > 0 and is_own(one)]
        is_right = best is not None and (spec.success is None or best.success)
        if best is not None and is_right and all((value_of(best, key) or 0.0) > 0 for key in paid):
            played.oracle[split, index] = best
        elif got and not tools and subject.loaded.spec.user is None and any(map(PATTERNS.golden.fullmatch, row)):
            played.unpaid = played.unpaid or (split, index)


def _gold_answer(subject: Subject, split: ReadSplit, index: int, tools: Mapping[str, Tool]) -> str | Message | None:
    """The row's own gold value as an answer; None where it has none, or other terms ask for more than an answer."""
    term = gold_term(subject)
    if term is None or not _compares(subject, term.name, term.spec):
        return None
    gold = gold_answer(subject, term, split, index)
    return to_action(subject, gold, tools) if gold is not None else None


def _compares(subject: Subject, name: str, spec: RewardSpec) -> bool:
    """True for a term that compares the answer; one that verifies may look at the state alone."""
    if spec.usual_weight <= 0 or is_condition(subject, name):
        return False
    if is_own(spec):
        return re.search(r"\.answer\b|\bfinal_text\b", subject.code or "") is not None
    is_told = spec.kind != "verify" or re.search(r"(?<![.\w])answer\b", str(subject.document.get(f"rewards.{name}")))
    return bool(gold_key(spec)) and not kind_of("rewards", spec).of_calls and bool(is_told)


def _is_local(subject: Subject, tool: Tool) -> bool:
    entry = subject.loaded.spec.tools.get(tool.entry or tool.name)
    return entry is not None and kind_of("tools", entry).is_local


def _is_silent(tool: Tool) -> Tool:
    return replace(tool, run=lambda arguments, context: ToolOutput(_UNKNOWN), mode="inline", policy=None)


def _unmeasured(term: Term) -> Term:
    return replace(term, measure=lambda context: Measured(None), measure_async=None, measure_group=None, ask_group=None)


def _is_far(term: Term, far: set[str], *, is_asked: bool) -> bool:
    """True for a term that asks a model, runs a sandbox, or needs a tool that is not called."""
    return (
        term.spec.kind not in ("rule", "verify", "tests", *(() if far else ("state",)))
        or (getattr(term.spec, "rule", "") != "tool_called" and getattr(term.spec, "tool", None) in far)
        or (term.spec.kind == "rule" and is_asked and is_own(term.spec))
    )


def _ways_to_play(subject: Subject, tools: Mapping[str, Tool]) -> Iterator[tuple[str, list[str | Message]]]:
    yield "an empty message", [""]
    yield "a refusal", ["I cannot answer that."]
    for way, text in zip(_WRONG[2:], (_NOISE, "{}", f"{_NOISE} " * 400), strict=True):
        if (action := to_action(subject, text, tools)) is not None:
            yield way, [action]


async def _play_once(environment: Environment, split: str, index: int, actions: Sequence[str | Message]) -> Trajectory:
    async with environment.start(task=index, split=split) as episode:
        try:
            for action in actions:
                if not episode.is_ended:
                    render = environment.parts.dialect.render_action
                    await episode.step(render(action) if isinstance(action, Message) else action)
            return episode.trajectory if episode.is_ended else await episode.truncate("script")
        except EpisodeError as error:
            return episode.fail(error.reason, str(error))


def _oracles(subject: Subject, played: TriedPlays) -> Iterator[Finding]:
    """The first row in which the oracle fails, earns less than it could, or is no success; one for each kind."""
    seen: set[tuple[str, Any]] = set()
    for (split, index), got in played.oracle.items():
        for key, place, given in _check_oracle_play(subject, played, got, f"row {index + 1} of split '{split}'"):
            if (key, given[0]) not in seen:
                seen.add((key, given[0]))
                yield subject.say(key, place, *given)


def _check_oracle_play(subject: Subject, played: TriedPlays, got: Trajectory, where: str) -> Told:
    spec = subject.loaded.spec
    for result in [result for turn in got.turns for result in turn.results]:
        raised = played.raised.get(result.name, "") if result.reason == "bug" else ""
        if result.is_error and (raised or result.whose != "infrastructure") and result.name != spec.answer.tool:
            why = f"{result.text[:100]}: {raised[:100]}" if raised else result.text[:100]
            yield "wrong-oracle/call", step_at(subject, result.name), (result.name, where, why)
            return
    broken = [term for term in got.reward.terms.values() if term.status == "invalid"]
    if got.failure is not None and (broken or got.failure.reason in ("policy", "resource")):
        is_policys = got.failure.reason == "policy"
        of_term = f"'{broken[0].name}' cannot be measured: {broken[0].error}" if broken and not is_policys else ""
        why = of_term or got.failure.message
        yield "wrong-oracle/failed", step_at(subject, said=why), (got.failure.reason, where, why[:160])
    if got.failure is not None or any(_UNKNOWN in turn.action for turn in got.turns):
        return
    if got.truncated and not (got.success and got.reason == "turns"):  # an environment of one action ends so
        yield "wrong-oracle/limit", step_at(subject), (got.reason, where)
    if got.truncated or hasattr(spec.user, "roles"):  # who plays well against itself does not win every game
        return
    asked, is_told = subject.asked, False
    for name, term in got.reward.terms.items():
        reward, value = spec.rewards[name], term.value
        if value is None or reward.usual_weight <= 0:
            continue
        if is_own(reward) and reward.range is None and abs(value) > 5:
            yield "odd-range/of-function", ("rewards", name), (name, value, where)
        is_partial = reward.range is not None or reward.clip is not None or (reward.when == "turn" and value > 0)
        if value < (1 if getattr(reward, "rule", reward.kind) in _FULL else 1e-9) and not is_partial:
            shown = "no answer" if got.answer is None else f"the answer {got.answer[:40]!r}"
            what = "plays" if kind_of("rewards", reward).form else f"gives {shown} to"
            yield "wrong-oracle/earns-less", step_at(subject), (name, what, where, value)
            is_told |= name in asked  # which is why it is no success
    if got.success is False and not is_told and asked and not played.unknown.intersection(subject.gates()):
        below = [name for name in asked if (value := got.reward.terms[name].value) is not None and value < 1]
        shut = [name for name in asked if got.reward.terms[name].value is None]
        if spec.success is None and below:
            full = next((name for name in asked if name not in below), below[0])
            given = (below[0], got.reward.terms[below[0]].value, where, full)
            yield "wrong-success/by-default", ("rewards", below[0]), given
        elif not below and 0 < len(shut) < len(asked):
            yield "wrong-success/skipped", ("success",), (shut[0], where)
        elif not any(spec.rewards[name].gate for name in asked):
            yield "wrong-success/of-oracle", ("success" if spec.success else "rewards",), ("success", where)
    yield from cut_answers(got, where)
    yield from empty_golds(got, where)
    yield from check_long_episodes(subject, got, where)


def _check_unread_golds(subject: Subject, played: TriedPlays) -> Iterator[Finding]:
    """Terms whose gold calls, or what these leave, cannot be read in any row, whatever the policy does."""
    every = [got for way in (played.oracle, *played.ways.values()) for got in way.values()]
    for name, spec in subject.loaded.spec.rewards.items():
        told = [got.reward.terms[name].error for got in every if name in got.reward.terms]
        if spec.kind == "state" and told and all(error.startswith("the gold ") for error in told):
            yield subject.document.fault(f"rewards.{name}", told[0][:200], "mend the rows", at="key")


def _check_worth(subject: Subject, played: TriedPlays) -> Iterator[Finding]:
    """The findings where no work earns as much as the oracle, and on terms that give everything the same."""
    spec = subject.loaded.spec
    known = not any(spec.rewards[name].usual_weight > 0 for name in played.unknown)
    # Where success is of the state alone, any answer after the right work is a success, and is meant to be.
    asked = subject.asked
    decides = any(_compares(subject, name, spec.rewards[name]) for name in asked)
    compares = any(_compares(subject, name, reward) for name, reward in spec.rewards.items())
    # A judge, which is not asked here, may refuse it; an expression is unknown then.
    is_told = spec.success is not None or not played.unknown.intersection(asked)
    judges = any(not kind_of("rewards", one).form for one in spec.rewards.values() if one.usual_weight > 0)
    for way, got in played.ways.items() if judges else ():
        pairs = [(played.oracle[key], one) for key, one in got.items() if key in played.oracle]
        totals = [(gold.reward.total, one.reward.total) for gold, one in pairs]
        as_much = [(a, b) for a, b in totals if a is not None and b is not None and b >= a]
        # Not to call anything may be right on some rows; an answer that is compared is not.
        if known and as_much and (len(as_much) == len(totals) or (compares and way in _WRONG and as_much[0][0] > 0)):
            yield subject.say("paid-for-nothing/way", "rewards", way, as_much[0][1], as_much[0][0], at="key")
            return
        # A list has some of what a measure by shares asks for.
        is_wrong = (decides or not way.startswith(_WORK)) and not way.startswith(_WORK[-1])
        if got and is_told and is_wrong and all(one.success for one in got.values()):
            place = "success" if spec.success is not None else "rewards"
            names = [name for name in asked if all(value_of(one, name) for one in got.values())]
            why = f": '{names[0]}' holds for it" if names else ""
            yield subject.say("free-success/way", place, way, why)
            return
    every = [pair for way in (played.oracle, *played.ways.values()) for pair in way.items()]
    called = not spec.tools or any(turn.results for got in played.oracle.values() for turn in got.turns)
    ranked = {getattr(one, "of", "") for one in spec.rewards.values() if one.kind == "group"}
    for name, reward in spec.rewards.items() if played.oracle else ():
        found = [(key, got.reward.terms[name]) for key, got in every if name in got.reward.terms]
        if name in played.unknown or reward.kind == "group":
            continue
        is_idle = found and called and reward.usual_weight and not reward.gate
        if is_idle and all(term.status == "skipped" for _, term in found):
            yield subject.say("never-pays/unmeasured", f"rewards.{name}", name, at="key")
        if reward.when == "turn":
            continue
        golds = [value_of(one, name) for one in played.oracle.values()]
        others = [value_of(one, name) for got in played.ways.values() for one in got.values()]
        measured = [value for value in others if value is not None]
        of_rows = [{term.value for at, term in found if at == key} - {None} for key in {at for at, _ in found}]
        # A reward for what none of them breaks, and a penalty for what none of them does, may well be constant.
        is_kept = set[Any]().union(*of_rows) == {1.0 if reward.usual_weight > 0 else 0.0}
        # Of what a gate keeps from right answers only wrong ones are played, and not each kind of these.
        is_played = len(measured) > 2 and any(value is not None for value in golds)
        is_same = is_played and all(len(values) < 2 for values in of_rows) and not is_kept
        if is_same and (name in ranked or (reward.usual_weight and not kind_of("rewards", reward).form)):
            yield subject.say("constant-term/of-plays", f"rewards.{name}", name, measured[0], at="key")
        # What a gate keeps from right answers pays them nothing. A long answer may be wrong by its length too.
        highest = max((value or 0.0 for value in golds if value is not None or reward.gate), default=None)
        ways = [got for way, got in played.ways.items() if way != _WRONG[-1]]
        given = [value for got in ways for one in got.values() if (value := value_of(one, name)) is not None]
        least = min(given, default=0.0)
        if reward.usual_weight > 0 and highest is not None and highest < least:
            yield subject.say("paid-for-nothing/term", f"rewards.{name}", name, highest, least, at="key")
        elif least > 0 and _compares(subject, name, reward) and not is_own(reward):
            yield subject.say("paid-for-nothing/each", f"rewards.{name}", name, least, highest or 0, at="key")
