"""What tools and users make of what they are told is found where it is paid, and left alone where it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit
from tests.support.planted import WORDS, plant, product, rows_of
from tests.support.rewarded import audited, holes

TOOLS = '''
import itertools
import random
import time

KEPT = {}
DRAWS = random.Random(7)
PAYS = itertools.cycle([1.0, 1.0, 0.0])  # of six plays two are never paid, wherever it stands


def right(context):
    return float(context.answer == context.task["answer"])


def drawn(context):
    return DRAWS.random()


def at_times(context):
    return right(context) * next(PAYS)


def clock(context):
    return time.perf_counter_ns() % 1000 / 1000


def keep(name: str, text: str) -> str:
    """Keeps a text."""
    KEPT[name] = text
    return "kept"


def look(name: str) -> str:
    """Gives a text."""
    return KEPT.get(name, "nothing")


def say(text: str) -> str:
    """Says it back."""
    return text
'''
KEEP = "  keep: {kind: python, function: 'tools.py:keep', run_in: loop}\n"
LOOK = "  look: {kind: python, function: 'tools.py:look', run_in: loop}\n"
SAY = "  say: {kind: python, function: 'tools.py:say', run_in: loop}\n"


def audited_again(folder: Path, rule: str, more: str = "") -> AuditReport:
    path = plant(folder, {"train": rows_of(20, product)}, rule=rule, more=more, tools=TOOLS)

    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment, tasks=6)

    return asyncio.run(main())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("function", "holes"),
    [("right", []), ("drawn", ["unsteady_reward"]), ("at_times", ["unsteady_reward"]), ("clock", ["unsteady_reward"])],
)
def test_a_reward_that_gives_equal_episodes_other_values_is_that_alone(
    tmp_path: Path, function: str, holes: list[str]
) -> None:
    report = audited_again(tmp_path, f"{{kind: rule, function: 'tools.py:{function}'}}")
    assert [one.hole for one in report.findings if one.hole != "no_signal"] == holes


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("tools", "found"), [(KEEP + LOOK, True), (KEEP, False), (SAY, False), (SAY + LOOK, False)])
def test_what_an_episode_reads_of_another_is_a_channel(tmp_path: Path, tools: str, found: bool) -> None:
    report = audited_again(tmp_path, "{kind: rule, rule: numeric_match}", f"tools:\n{tools}")
    assert [one.hole for one in report.findings] == (["shared_between_episodes"] if found else [])


CODE = '''
import contextlib
import io

from rlenv.errors import ToolFailed


class Desk:
    def __init__(self, task):
        self.parcel, self.weighed, self.sent, self.notes = task["parcel"], False, False, []


def desk(task):
    return Desk(task)


def weigh(desk) -> str:
    """Weighs the parcel."""
    desk.weighed = True
    return f"parcel {desk.parcel} weighed"


def send(parcel: int, desk) -> str:
    """Sends the parcel; it has to be weighed."""
    if not desk.weighed or parcel != desk.parcel:
        return "not weighed yet"
    desk.sent = True
    return f"parcel {desk.parcel} was sent off"


def jot(text: str, desk) -> str:
    """Notes something down.

    Args:
        text: what.
    """
    desk.notes.append(text)
    return f"noted: {text}"


def jot_quietly(text: str, desk) -> str:
    """Notes something down.

    Args:
        text: what.
    """
    desk.notes.append(text)
    return "noted"


def find(words: str, desk) -> str:
    """Looks for words in the rules.

    Args:
        words: which.
    """
    raise ToolFailed(f"nothing was found for '{words}'")


def evaluate(code: str, desk) -> str:
    """Runs a line of Python.

    Args:
        code: it.
    """
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(code, {})
        except Exception as error:
            return type(error).__name__
    return out.getvalue()


def results(context):
    return [result for turn in context.turns for result in turn.results]


def in_log(context):
    return float(f"parcel {context.task['parcel']} was sent off" in "\\n".join(one.text for one in results(context)))


def a_word(context):
    return float(any("sent off" in one.text.lower() for one in results(context)))


def a_value(context):
    return float(any("sent off" in str(one.value) for one in results(context)))


def by_name(context):
    return float(any("sent off" in one.text for one in results(context) if one.name == "send"))


def state(context):
    return float(context.resources["desk"].sent)


def noted(context):
    """The task is to note it."""
    return float(any(f"parcel {context.task['parcel']}" in one for one in context.resources["desk"].notes))
'''
ROWS = [{"parcel": 1_000 + n * 37, "question": f"Send parcel {1_000 + n * 37} off."} for n in range(24)]
TOOL = '{{kind: python, function: "code.py:{name}", inject: [desk], run_in: loop, mutates: {mutates}}}'
SENDS = '- call: {weigh: {}}\n- call: {send: {parcel: "{{ task.parcel }}"}}\n- say: It is done.'
NOTES = '- call: {jot: {text: "parcel {{ task.parcel }}"}}\n- say: It is done.'


def found(folder: Path, listens: str, paid: str, oracle: str = SENDS) -> Any:
    """What is found where one tool listens and one function pays."""
    tools = {"weigh": True, "send": True, listens: listens.startswith("jot")}
    listed = "".join(f"\n  {name}: {TOOL.format(name=name, mutates=str(tools[name]).lower())}" for name in tools)
    more = 'resources: {desk: {kind: python, function: "code.py:desk", run_in: loop}}\n'
    more += f"answer: {{from: final_message}}\nlimits: {{turns: 6}}\ntools:{listed}"
    rewards = f'{{paid: {{kind: rule, function: "code.py:{paid}"}}}}'
    return audited(folder, ROWS, CODE, rewards=rewards, more=more, oracle=oracle)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("listens", "paid"),
    [("jot", "in_log"), ("jot", "a_word"), ("jot", "a_value"), ("find", "in_log"), ("evaluate", "in_log")],
)
def test_a_reward_that_hears_the_policy_s_own_words_from_a_tool_is_found(
    tmp_path: Path, listens: str, paid: str
) -> None:
    report = found(tmp_path, listens, paid)
    assert holes(report) == {"echoed_text"}
    (one,) = report.findings
    assert one.term == "paid"
    assert f"{listens}(" in one.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listens", "paid", "oracle"),
    [
        ("jot", "by_name", SENDS),
        ("jot", "state", SENDS),
        ("jot", "noted", NOTES),
        ("jot_quietly", "noted", NOTES),
        ("find", "by_name", SENDS),
    ],
)
def test_words_that_a_reward_does_not_hear_from_a_tool_are_no_hole(
    tmp_path: Path, listens: str, paid: str, oracle: str
) -> None:
    assert "echoed_text" not in holes(found(tmp_path, listens, paid, oracle))


TOLD = "limits: {turns: 5}\nuser: {kind: scripted, cues: [{pattern: WHEN, say: SAID}], replies: ['Well?']}"
TALK = "limits: {turns: 5}\nuser: {kind: python, function: 'tools.py:reply'}"
REPLY = '''
def reply(message, task):
    """Answers only to certain words."""
    return SAID if WHEN in message.lower() else "Go on."


def thanked(context):
    shown = [turn.observation for turn in context.turns if turn.observation is not None]
    is_thanked = any("thank you" in message.content.lower() for one in shown for message in one.messages)
    return float(is_thanked or context.answer == context.task["answer"])
'''


def audited_talk(path: Path) -> AuditReport:
    async def main() -> AuditReport:
        async with rlenv.load(path) as environment:
            return await audit(environment, tasks=8)

    return asyncio.run(main())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("when", ["hint|help", "sesame", "what .*answer"])
@pytest.mark.parametrize(("said", "holes"), [("It is {{ task.answer }}.", ["user_tells"]), ("I do not say.", [])])
def test_a_user_whose_reply_holds_the_answer_tells_it(tmp_path: Path, when: str, said: str, holes: list[str]) -> None:
    more = TOLD.replace("WHEN", repr(when)).replace("SAID", repr(said))
    path = plant(tmp_path, {"train": rows_of(20, product)}, rule="{kind: rule, rule: numeric_match}", more=more)
    assert [one.hole for one in audited_talk(path).findings] == holes


@pytest.mark.slow
@pytest.mark.parametrize(("named", "holes"), [("Yes, the {found}!", ["user_tells"]), ("Yes!", [])])
def test_a_user_to_whom_all_answers_are_named_tells_which_is_right(
    tmp_path: Path, named: str, holes: list[str]
) -> None:
    """The oracle has it from nobody: what it says itself the user says back."""
    rows = rows_of(20, lambda index: {"question": f"I thought of word {index}.", "answer": WORDS[index * 7 % 20]})
    reply = f"    found = task['answer']\n    return f{named!r} if found in message else 'No.'\n"
    path = plant(
        tmp_path,
        {"train": rows},
        more=TALK.replace("turns: 5", "turns: 3"),
        tools=f"def reply(message, task):\n{reply}",
        say="<answer>{{ task.answer }}</answer>",
    )
    path.write_text(path.read_text().replace("  - say:", '  - say: "The {{ task.answer }}?"\n  - say:'))
    assert [one.hole for one in audited_talk(path).findings] == holes


@pytest.mark.slow
def test_a_user_who_tells_what_the_row_rounds_tells_it(tmp_path: Path) -> None:
    rows = [
        {"question": f"A third of {at}?", "answer": f"{at / 3}", "value": round(at / 3, 1)} for at in range(100, 120)
    ]
    rule = "{kind: rule, rule: numeric_match, expect: '{{ task.value }}', relative_tolerance: 0.01}"
    more = (
        TOLD.replace("WHEN", "zq").replace("SAID", "No.").replace("'Well?'", "'Well?', 'It comes to {{ task.value }}.'")
    )
    path = plant(tmp_path, {"train": rows}, rule=rule, more=more)
    assert [one.hole for one in audited_talk(path).findings] == ["user_tells"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("when", "said", "rule", "holes"),
    [
        ("'barley'", "task['answer']", "rule: numeric_match", ["user_tells"]),
        ("'barley'", "'Thank you!'", "function: 'tools.py:thanked'", ["user_swayed"]),
        ("'sorry'", "'Thank you!'", "function: 'tools.py:thanked'", ["user_swayed"]),
    ],
)
def test_words_that_a_users_code_looks_for_are_said_to_it(
    tmp_path: Path, when: str, said: str, rule: str, holes: list[str]
) -> None:
    tools = REPLY.replace("WHEN", when).replace("SAID", said)
    path = plant(tmp_path, {"train": rows_of(20, product)}, rule=f"{{kind: rule, {rule}}}", more=TALK, tools=tools)
    assert [one.hole for one in audited_talk(path).findings] == holes


def test_a_user_who_takes_each_guess_can_be_asked_until_one_is_right(tmp_path: Path) -> None:
    tools = REPLY.replace("WHEN", "task['answer']").replace("SAID", "'Yes.'")
    rows = rows_of(20, lambda index: {"question": f"Which is meant by {index + 100}?", "answer": f"c{index % 4}x"})
    path = plant(tmp_path, {"train": rows}, more=TALK.replace("turns: 5", "turns: 12"), tools=tools)
    assert "asked_until_right" in [one.hole for one in audited_talk(path).findings]


CORRECTS = '''
import re


class Till:
    agreed = 0


def reply(message, task, till):
    """Agrees to what is right, and says it where something else is named."""
    named = re.findall(r"[0-9]+", message)
    if TAKES:
        till.agreed = 1
        return None
    return SAYS if named else "And how much is it?"
'''


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("takes", "says", "holes"),
    [
        ("named == [task['answer']]", "f'No, it is {task[\"answer\"]}.'", ["user_tells"]),
        ("task['answer'] in named", "None", ["user_swayed"]),
        ("named == [task['answer']]", "None", []),
    ],
)
def test_a_user_who_corrects_a_wrong_value_tells_it_and_one_who_takes_a_list_is_swayed(
    tmp_path: Path, takes: str, says: str, holes: list[str]
) -> None:
    tools = CORRECTS.replace("TAKES", takes).replace("SAYS", says)
    more = TALK + "\nresources: {till: {kind: python, function: 'tools.py:Till'}}\nanswer: {from: final_message}"
    rule = "{kind: rule, rule: value, value: '{{ resources.till.agreed }}'}"
    say = "It is {{ task.answer }}."
    path = plant(tmp_path, {"train": rows_of(20, product)}, rule=rule, more=more, tools=tools, say=say)
    assert [one.hole for one in audited_talk(path).findings] == holes


TRIED = '''
class Till:
    price = 100.0


def reply(message, task, till):
    """Says that something is wrong, or the same to all; goes down with each message."""
    if message.startswith("So be it"):
        return None
    till.price *= 0.9
    return SAYS


def tried(context):
    return float(f"My answer is {context.task['answer']}." in context.said)


def saved(context):
    return float(context.reason == "user" and context.resources["till"].price < 75)
'''
TILL = "\nresources: {till: {kind: python, function: 'tools.py:Till'}}\nanswer: {from: final_message}"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("says", "found"),
    [("None if task['answer'] in message else 'No.'", ["asked_until_right"]), ("'Go on.'", [])],
)
def test_a_user_who_says_when_it_is_right_is_asked_in_the_oracle_s_words(
    tmp_path: Path, says: str, found: list[str]
) -> None:
    rows = rows_of(20, lambda index: {"question": f"Which is meant by {index + 100}?", "answer": f"c{index % 4}x"})
    path = plant(
        tmp_path,
        {"train": rows},
        rule="{kind: rule, function: 'tools.py:tried'}",
        more=TALK.replace("turns: 5", "turns: 6") + TILL,
        tools=TRIED.replace("SAYS", says),
        say="My answer is {{ task.answer }}.",
    )
    assert [one.hole for one in audited_talk(path).findings if one.hole == "asked_until_right"] == found


@pytest.mark.slow
def test_a_user_whom_anything_moves_is_told_what_means_nothing(tmp_path: Path) -> None:
    path = plant(
        tmp_path,
        {"train": rows_of(20, lambda index: {"question": f"I sell my {WORDS[index]}."})},
        rule="{kind: rule, function: 'tools.py:saved'}",
        more=TALK + TILL,
        tools=TRIED.replace("SAYS", "f'{till.price:.0f}?'"),
        say="So be it.",
    )
    path.write_text(
        path.read_text().replace("oracle:\n", "oracle:\n" + "".join(f"  - say: Reason {n}.\n" for n in "abc"))
    )
    assert [one.hole for one in audited_talk(path).findings] == ["user_swayed"]
