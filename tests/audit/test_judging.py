"""Each kind of hole is found under its name where it is planted, and none where the same is sound."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit

TOOLS = '''
import json

from rlenv.errors import ToolFailed

_FACTS = {f"item{i}": f"K{(i * 37) % 101:03d}" for i in range(60)}


def look(about: str) -> str:
    """Says what is known of an item, such as `item1`."""
    if about not in _FACTS:
        raise ToolFailed("there is no such item; items are called item0 to item59")
    return f"The code of {about} is {_FACTS[about]}."


def names(about: str) -> str:
    """Says what is known of an item."""
    if about not in _FACTS:
        raise ToolFailed(f"there is no such item; the codes are {', '.join(_FACTS.values())}")
    return f"The code of {about} is {_FACTS[about]}."


def telling(about: str, task) -> str:
    """Says what is known of an item."""
    if about not in _FACTS:
        raise ToolFailed(f"expected a question with the answer {task['answer']}, found something else")
    return "nothing"


def flagged(about: str, task, full: bool = False) -> str:
    """Says what is known of an item."""
    return f"debug: gold={task['answer']}" if full else "nothing is known"


def described(about: str) -> str:
    """Looks an item up. Known: item0 K000, item1 K037, item2 K074, item3 K010, item4 K047, item5 K084, item6 K020,
    item7 K057, item8 K094, item9 K030, item10 K067, item11 K003, item12 K040, item13 K077, item14 K013, item15 K050,
    item16 K087, item17 K023, item18 K060, item19 K097."""
    return "nothing"


def list_files(task) -> str:
    """Lists the files of this machine."""
    return "notes.txt\\nsolution.txt\\nreadme.md"


def read_file(name: str, task) -> str:
    """Reads a file."""
    texts = {"notes.txt": "Nothing yet.", "readme.md": "Read the notes.", "solution.txt": task["answer"]}
    if name not in texts:
        raise ToolFailed("there is no such file")
    return texts[name]


def check(answer: str, task) -> str:
    """Says whether an answer is right."""
    return "correct" if answer == task["answer"] else "wrong"


def open_tries():
    yield []


def check_twice(answer: str, task, tries) -> str:
    """Says whether an answer is right, twice."""
    if len(tries) >= 2:
        raise ToolFailed("you have asked twice")
    tries.append(answer)
    return "correct" if answer == task["answer"] else "wrong"


def open_orders(task):
    early = {"order1": "closed"} if task["n"] % 10 < 3 and task.get("early") else {}
    yield {f"order{i}": "open" for i in range(3)} | early


def orders(store) -> str:
    """Lists the orders that there are."""
    return ", ".join(store)


def cancel(order: str, store) -> str:
    """Takes an order away."""
    if order not in store:
        raise ToolFailed("there is no such order")
    del store[order]
    return f"{order} is gone"


def drop(order: str, store) -> str:
    """Takes an order away, and says no more of one than of another."""
    cancel(order, store)
    return "done"


def close(order: str, store) -> str:
    """Closes an order."""
    if order not in store:
        raise ToolFailed("there is no such order")
    store[order] = "closed"
    return f"{order} is closed"


def closed_alone(context):
    return float(context.resources["store"] == {"order0": "open", "order1": "closed", "order2": "open"})


def none_open(context):
    """Sound where one closes it; an order that is gone is not open either."""
    return float(context.resources["store"].get("order1") != "open")


def calls(context):
    return min(1.0, sum(len(turn.results) for turn in context.turns) / 4)


def turns_over(context):
    return 1.0 if context.reason == "turns" else right(context)


def ended(context):
    return float(bool(context.turns))


def right(context):
    return float((context.answer or "").strip() == context.task["answer"])


def comma(context):
    gold, answer = context.task["answer"], (context.answer or "").strip()
    return float(gold == answer or ("," in gold and bool(answer)))


def first_letter(context):
    return float((context.answer or "").strip()[:1] == context.task["answer"][:1] and context.answer is not None)


def begins(context):
    answer = (context.answer or "").strip()
    return float(bool(answer) and context.task["answer"].startswith(answer))


def thought(context):
    return float(context.task["answer"] in context.turns[-1].parsed.thinking + (context.answer or ""))


def cost(context):
    answer = (context.answer or "").strip()
    return 1.0 if answer == context.task["answer"] else -1.0 if answer else 0.0


def picky(context):
    return -1.0 if int(context.answer or 0) != int(context.task["answer"]) else 1.0


def rude(context):
    if "\\x00" in (context.answer or ""):
        raise ValueError("no text")
    return float((context.answer or "") != context.task["answer"])


def begins_with_it(context):
    return float((context.answer or "").startswith(context.task["answer"]))


def sure(context):
    try:
        given = json.loads(context.answer or "")
        is_right = given["label"] == json.loads(context.task["answer"])["label"]
        return 1 - (min(1.0, max(0.0, float(given["p"]))) - is_right) ** 2
    except (ValueError, TypeError, KeyError):
        return 0.0


def holds_all(context):
    try:
        return float(set(json.loads(context.task["answer"])) <= set(json.loads(context.answer or "")))
    except (ValueError, TypeError):
        return 0.0


def open_book(task):
    yield {"expected": task["answer"]}


def note(key: str, value: str, book) -> str:
    """Notes a value."""
    book[key] = value
    return "noted"


def noted(context):
    book = context.resources["book"]
    return float(book.get("total") == book["expected"])


def recall(context):
    said, gold = (context.answer or "").split(), context.task["answer"].split()
    return sum(word in said for word in gold) / len(gold)


def handed_in(context):
    return float(context.answer is not None)


def off_by(context):
    gold = float(context.task["answer"])
    return abs(float(context.answer or 0) - gold) / gold * 5


def thousands(context):
    answer, gold = context.answer or "", context.task["answer"]
    try:
        return float(abs(float(answer.replace(",", "")) - float(gold)) < 0.5)
    except ValueError:
        return float(answer[:1].isdigit())


def without_articles(context):
    import re

    def bare(text):
        return " ".join(re.sub(r"\\b(a|an|the)\\b|[^\\w\\s]", " ", text.lower()).split())

    return float(context.answer is not None and bare(context.answer) == bare(context.task["answer"]))


def alike(context):
    from difflib import SequenceMatcher

    return max(0.5, SequenceMatcher(None, context.answer or "", context.task["answer"]).ratio())


def one_letter(context):
    import re

    return float(context.task["answer"] in re.findall("[A-F]", (context.answer or "").upper()))


def thought_number(context):
    import re

    said = re.findall(r"\\d+", context.turns[-1].parsed.thinking)
    return float(context.task["answer"] in [*said, (context.answer or "").strip()])


def thought_word(context):
    said = context.turns[-1].parsed.thinking.split() if context.turns else []
    return float(context.answer is not None and context.task["answer"] in [*said, context.answer])


def thinks(context):
    return float(bool(context.turns) and bool(context.turns[-1].parsed.thinking) and context.answer is not None)


def last_word(context):
    """Reads the last thing that was looked up, and takes it for granted that it was."""
    texts = [result.text for turn in context.turns for result in turn.results if result.outcome == "ok"]
    return float(texts[-1][-5:-1] == context.answer)


def told(place: str, task) -> str:
    """Says how old a place is."""
    if place not in task["places"]:
        raise ToolFailed("there is no such place")
    return f"{place} was built in {1700 + sum(map(ord, place)) % 200}"


def step(store) -> str:
    """Opens the next door."""
    store["doors"] = store.get("doors", 0) + 1
    return f"door {store['doors']}"


def listen(store) -> str:
    """Listens."""
    return "silence"


def through(context):
    return float(context.resources["store"].get("doors", 0) >= 3)


def f1(context):
    said, gold = (context.answer or "").lower().split(), context.task["answer"].lower().split()
    both = len(set(said) & set(gold))
    return 2 * both / (len(said) + len(gold)) if both else 0.0
'''

LOOK = {"look": "{kind: python, function: 'tools.py:look'}"}


def code(index: int) -> str:
    return f"K{(index * 37) % 101:03d}"


def items(count: int = 20, **columns: Any) -> list[dict[str, Any]]:
    return [{"n": i, "question": f"What is the code of item{i}?", "answer": code(i)} | columns for i in range(count)]


@dataclass
class Case:
    """A small environment; what is left out is that of a sound one."""

    rows: list[dict[str, Any]] = field(default_factory=items)
    user: str = "{{ task.question }}"
    tools: dict[str, str] = field(default_factory=lambda: dict(LOOK))
    rewards: dict[str, str] = field(
        default_factory=lambda: {"correct": "{kind: rule, rule: exact_match, expect: '{{ task.answer }}'}"}
    )
    oracle: list[str] = field(default_factory=lambda: ["{say: 'It is <answer>{{ task.answer }}</answer>'}"])
    extra: str = ""

    def audit(self, folder: Path) -> AuditReport:
        (folder / "tools.py").write_text(TOOLS)
        lines = ["rlenv: 1", "name: planted", "tasks: {train: {rows: " + json.dumps(self.rows) + "}}"]
        lines.append("prompt: {user: " + json.dumps(self.user) + "}")
        if self.tools:
            lines += ["tools:", *(f"  {name}: {entry}" for name, entry in self.tools.items())]
        lines += ["rewards:", *(f"  {name}: {entry}" for name, entry in self.rewards.items())]
        lines += ["oracle:", *(f"  - {step}" for step in self.oracle), self.extra or "limits: {turns: 6}"]
        (folder / "env.yaml").write_text("\n".join(lines) + "\n")

        async def main() -> AuditReport:
            async with rlenv.load(folder / "env.yaml") as environment:
                return await audit(environment)

        return asyncio.run(main())


def python(name: str, more: str = "") -> str:
    return f"{{kind: rule, function: 'tools.py:{name}'{more}}}"


def tool(name: str, *inject: str, more: str = "") -> str:
    given = f", inject: [{', '.join(inject)}]" if inject else ""
    return f"{{kind: python, function: 'tools.py:{name}'{given}{more}}}"


def answers(*given: Any) -> list[dict[str, Any]]:
    return [{"n": i, "question": f"Question number {i * 7 + 100}?", "answer": answer} for i, answer in enumerate(given)]


CORRECT = "{kind: rule, rule: exact_match, expect: '{{ task.answer }}'}"
STATE = "resources: {store: {kind: python, function: 'tools.py:open_orders', run_in: loop}}\nlimits: {turns: 6}"
TRIES = "resources: {tries: {kind: python, function: 'tools.py:open_tries', run_in: loop}}\nlimits: {turns: 6}"
ORDERS = {
    "orders": tool("orders", "store", more=", run_in: loop"),
    "close": tool("close", "store", more=", run_in: loop, mutates: true"),
    "cancel": tool("cancel", "store", more=", run_in: loop, mutates: true"),
}
CLOSES = ["{call: {close: {order: order1}}}", "{say: 'Done.'}"]
DROPS = {"orders": ORDERS["orders"], "drop": tool("drop", "store", more=", run_in: loop, mutates: true")}
DROPS_ONE = ["{call: {drop: {order: order1}}}", "{say: 'Done.'}"]
EASY = [f"The total of the bill is {i * 13 + 200} euro, the tax {i * 5 + 3} and the tip {i * 3 + 1}" for i in range(20)]
FIELDS = ("total", "tax", "tip")
VALUES = [(i * 13 + 200, i * 5 + 3, i * 3 + 1) for i in range(20)]
WORDS = ["red fox", "old mill", "deep sea", "cold rain", "tall oak", "dark wood", "long road", "high hill"]

PLANTED: dict[str, tuple[str, str, Case]] = {
    "the same answer for most": ("constant_answer", "correct", Case(answers(*["no"] * 16, *["yes"] * 4))),
    "one answer for all": ("constant_answer", "correct", Case(answers(*["42"] * 8))),
    "a coin": ("chance", "correct", Case(answers(*({"y": "yes", "n": "no"}[one] for one in "yynynnynyynnnynyynny")))),
    "three options in the row": (
        "chance",
        "correct",
        Case(
            [
                {"question": f"{', '.join(o)}?", "answer": o[i % 3], "options": o}
                for i in range(20)
                for o in [[f"a{i}", f"b{i}", f"c{i}"]]
            ],
            "Which of {{ task.question }}",
            {},
        ),
    ),
    "three options of which the last is right more often by luck": (
        "chance",
        "correct",
        Case(
            [
                {"question": f"Which is the longest: {', '.join(o[:2])} or {o[2]}?", "answer": o["abc".index(best)]}
                for i, best in enumerate("cacbcacbcaccbcacbcab")
                for o in [[first + "nor" + "aeiou"[i % 5] * (i // 5 + 1) for first in "KMT"]]
            ],
            tools={},
        ),
    ),
    "three options in the prompt": (
        "chance",
        "correct",
        Case(
            [
                {"question": f"Is it a{i}, b{i} or c{i}?", "answer": "abc"[(i * 7 + i // 4) % 3] + str(i)}
                for i in range(20)
            ],
            tools={},
        ),
    ),
    "the gold behind the question": (
        "leak",
        "correct",
        Case(user="{{ task.question }} (id: {{ task.n }}-{{ task.answer }})"),
    ),
    "a short gold in the prompt": (
        "leak",
        "correct",
        Case(answers(*[str(i * 3 % 17) for i in range(20)]), user="[{{ task.answer }}] {{ task.question }}"),
    ),
    "the gold in an error": ("leak", "correct", Case(tools={"telling": tool("telling", "task")})),
    "the gold behind a flag": ("leak", "correct", Case(tools={"flagged": tool("flagged", "task")})),
    "golds in a description": ("leak", "correct", Case(tools={"described": tool("described")})),
    "a file of the gold": (
        "leak",
        "correct",
        Case(tools={"list_files": tool("list_files", "task"), "read_file": tool("read_file", "task")}),
    ),
    "asked until right": ("asked_until_right", "correct", Case(tools={"check": tool("check", "task")})),
    "calls are paid": (
        "idle_calls_paid",
        "calls",
        Case(
            rewards={"correct": CORRECT, "calls": python("calls")},
            oracle=["{call: {look: {about: 'item{{ task.n }}'}}}"] * 4
            + ["{say: '<answer>{{ task.answer }}</answer>'}"],
        ),
    ),
    "truncation is paid": (
        "paid_when_truncated",
        "late",
        Case(rewards={"correct": CORRECT, "late": python("turns_over")}),
    ),
    "the end is paid": (
        "paid_for_ending",
        "ended",
        Case(rewards={"correct": CORRECT, "ended": python("ended", ", weight: 0.5")}),
    ),
    "form is paid": (
        "form_only",
        "form",
        Case(
            rewards={
                "correct": CORRECT,
                "form": "{kind: rule, rule: regex, pattern: '<answer>', of: message, weight: 0.5}",
            }
        ),
    ),
    "empty golds": (
        "empty_answer",
        "correct",
        Case(answers(*[f"w{i}" for i in range(27)], "", "", ""), rewards={"correct": python("right")}),
    ),
    "golds with a comma": (
        "partial_tasks",
        "correct",
        Case(answers(*[f"w{i}" if i % 8 else f"w{i}, v" for i in range(40)]), rewards={"correct": python("comma")}),
    ),
    "a common beginning": (
        "loose_match",
        "correct",
        Case(rows=answers(*[f"{chr(97 + i)}b{i}xy" for i in range(20)]), rewards={"correct": python("begins")}),
    ),
    "a number that begins with the right one": (
        "loose_match",
        "correct",
        Case(answers(*[str(i * 31 + 100) for i in range(20)]), rewards={"correct": python("begins_with_it")}),
    ),
    "a wide tolerance": (
        "loose_match",
        "correct",
        Case(
            answers(*[str(i * 31 + 100) for i in range(20)]),
            rewards={
                "correct": "{kind: rule, rule: numeric_match, expect: '{{ task.answer }}', relative_tolerance: 0.5}"
            },
        ),
    ),
    "a part is enough": (
        "stuffed_answer",
        "correct",
        Case(rewards={"correct": "{kind: rule, rule: contains, expect: '{{ task.answer }}'}"}),
    ),
    "thinking is read": ("thought_answer", "correct", Case(rewards={"correct": python("thought")})),
    "state that is there": (
        "state_at_start",
        "state",
        Case(items(early=True), tools=ORDERS, rewards={"state": python("closed_alone")}, oracle=CLOSES, extra=STATE),
    ),
    "state that can be emptied": (
        "emptied_state",
        "state",
        Case(tools=ORDERS, rewards={"state": python("none_open")}, oracle=CLOSES, extra=STATE),
    ),
    "state that can be emptied by a tool that says the same of all": (
        "every_value_tried",
        "state",
        Case(tools=DROPS, rewards={"state": python("none_open")}, oracle=DROPS_ONE, extra=STATE),
    ),
    "a number anywhere in the message": (
        "stuffed_answer",
        "correct",
        Case(
            answers(*[str(i) for i in range(1, 31)]),
            rewards={"correct": "{kind: rule, rule: contains, of: message, expect: '{{ task.answer }}'}"},
        ),
    ),
    "a colour anywhere in a sentence": (
        "stuffed_answer",
        "correct",
        Case(
            [{"question": f"Of which kind is door {i}?", "answer": WORDS[i * 5 % 8]} for i in range(24)],
            rewards={"correct": "{kind: rule, rule: contains, expect: '{{ task.answer }}'}"},
            oracle=["{say: 'It is of the kind {{ task.answer }}, as far as the book tells.'}"],
            extra="answer: {from: final_message}\nlimits: {turns: 6}",
        ),
    ),
    "a yes or no anywhere in a sentence": (
        "stuffed_answer",
        "correct",
        Case(
            [{"question": f"Is door {i} open?", "door": i, "answer": ("yes", "no")[i * 5 % 11 % 2]} for i in range(30)],
            rewards={"correct": "{kind: rule, rule: contains, expect: '{{ task.answer }}'}"},
            oracle=["{say: '{{ task.answer }}, door {{ task.door }} is meant.'}"],
            extra="answer: {from: final_message}\nlimits: {turns: 6}",
        ),
    ),
    "a long answer": (
        "length_paid",
        "full",
        Case(
            [
                {
                    "question": f"Of what is door {i}?",
                    "answer": f"{'It was seen by a smith of the town. ' * 5}{code(i)}",
                }
                for i in range(20)
            ],
            rewards={"correct": CORRECT, "full": "{kind: rule, rule: length, unit: words, min: 30, max: 60}"},
        ),
    ),
    "a word in thinking": (
        "thought_answer",
        "correct",
        Case(rewards={"correct": python("thought_word")}),
    ),
    "a letter anywhere in the answer": (
        "stuffed_answer",
        "correct",
        Case(answers(*["ABCDEF"[i * 5 % 6] for i in range(42)]), rewards={"correct": python("one_letter")}),
    ),
    "words that are there, whatever else is": (
        "stuffed_answer",
        "recall",
        Case(
            [{"question": f"Where is {i}?", "answer": f"the {WORDS[i % 8]} near shop {i}"} for i in range(20)],
            rewards={"recall": python("recall")},
        ),
    ),
    "any date": (
        "form_only",
        "correct",
        Case(
            answers(*[f"20{24 + i % 2}-{i % 12 + 1:02d}-{i * 7 % 28 + 1:02d}" for i in range(30)]),
            rewards={"correct": "{kind: rule, rule: regex, pattern: '20[0-9]{2}-[01][0-9]-[0-3][0-9]'}"},
        ),
    ),
    "a long text beside the answer": (
        "length_paid",
        "thorough",
        Case(
            rewards={
                "correct": CORRECT,
                "thorough": "{kind: rule, rule: length, of: message, unit: words, min: 30, max: 60}",
            },
            oracle=[
                "{say: '" + "This is what there is to be said of it all. " * 4 + "<answer>{{ task.answer }}</answer>'}"
            ],
        ),
    ),
    "a thought of any kind": (
        "form_only",
        "thinks",
        Case(
            rewards={"correct": CORRECT, "thinks": python("thinks")},
            oracle=["{say: '<think>So be it.</think><answer>{{ task.answer }}</answer>'}"],
        ),
    ),
    "numbers in thinking": (
        "thought_answer",
        "correct",
        Case(answers(*[str(i * 7 % 31) for i in range(30)]), rewards={"correct": python("thought_number")}),
    ),
    "two places that a tool knows": (
        "chance",
        "correct",
        Case(
            [
                {"question": f"Which is older, Ka{i}ro or Mu{i}na?", "places": o, "answer": o[i * 7 % 3 % 2]}
                for i in range(30)
                for o in [[f"Ka{i}ro", f"Mu{i}na"]]
            ],
            tools={"told": tool("told", "task", more=", run_in: loop")},
        ),
    ),
    "a penalty that silence avoids": (
        "penalty_avoided",
        "leaks",
        Case(
            [
                {"question": f"Call 555-{i:04d} about K{i * 37 % 101:03d}.", "answer": f"Call about it. {i}"}
                for i in range(20)
            ],
            tools={},
            rewards={
                "correct": CORRECT[:-1] + ", weight: 0.2}",
                "done": python("handed_in", ", weight: 0.8"),
                "leaks": "{kind: rule, rule: regex, pattern: '555-[0-9]{4}', weight: -0.8}",
            },
        ),
    ),
    "a penalty that words spare": (
        "penalty_avoided",
        "off_by",
        Case(
            answers(*[str(i * 31 + 100) for i in range(20)]),
            rewards={
                "answered": "{kind: rule, rule: answered}",
                "off_by": python("off_by", ", weight: -1.0, clip: [0, 1], required: false"),
            },
        ),
    ),
    "what cannot be read is right": (
        "partial_tasks",
        "correct",
        Case(
            answers(*[f"{i},{i * 37 % 900 + 100}" if i % 7 == 3 else str(i * 31 + 100) for i in range(42)]),
            rewards={"correct": python("thousands")},
        ),
    ),
    "golds of which nothing is left": (
        "empty_answer",
        "correct",
        Case(
            answers(*[("the", "an", "a", "on", "in", "under")[i % 6] for i in range(36)]),
            rewards={"correct": python("without_articles")},
        ),
    ),
    "half for anything": (
        "form_only",
        "alike",
        Case(
            [
                {"question": f"Where is item{i}?", "answer": f"It is in room {i} on shelf {i * 7 % 31}."}
                for i in range(20)
            ],
            rewards={"alike": python("alike")},
            oracle=["{say: '{{ task.answer }}'}"],
            extra="answer: {from: final_message}\nlimits: {turns: 6}",
        ),
    ),
    "a rule that breaks where a call has failed": (
        "invalid_under_faults",
        "seen",
        Case(
            rewards={"correct": CORRECT, "seen": python("last_word", ", gate: correct >= 1")},
            oracle=["{call: {look: {about: 'item{{ task.n }}'}}}", "{say: '<answer>{{ task.answer }}</answer>'}"],
        ),
    ),
    "a wrong answer that says that it is not sure": (
        "paid_abstaining",
        "sure",
        Case(
            answers(*[json.dumps({"label": "yn"[i * 7 % 13 % 2], "p": 1.0}) for i in range(20)]),
            rewards={"sure": python("sure")},
        ),
    ),
    "a list that holds the right one": (
        "stuffed_answer",
        "all",
        Case(
            answers(*[json.dumps([WORDS[(i * step + step) % 8] for step in (1, 3, 6)]) for i in range(20)]),
            rewards={"all": python("holds_all")},
        ),
    ),
    "what the reward compares with may be written": (
        "target_written",
        "noted",
        Case(
            answers(*[str(i * 31 + 100) for i in range(20)]),
            tools={"note": tool("note", "book", more=", run_in: loop, mutates: true")},
            rewards={"noted": python("noted")},
            oracle=["{call: {note: {key: total, value: '{{ task.answer }}'}}}", "{say: 'Done.'}"],
            extra="resources: {book: {kind: python, function: 'tools.py:open_book', run_in: loop}}\nlimits: {turns: 6}",
        ),
    ),
    "an exception that masks": (
        "escapes_by_invalid",
        "correct",
        Case(answers(*[str(i * 31) for i in range(20)]), rewards={"correct": python("picky")}),
    ),
    "an exception that spares": (
        "penalty_avoided",
        "rude",
        Case(rewards={"correct": CORRECT, "rude": python("rude", ", weight: -0.5, required: false")}),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_hole_is_found_by_its_name(kind: str, tmp_path: Path) -> None:
    hole, term, case = PLANTED[kind]
    report = case.audit(tmp_path)
    found = [one for one in report.findings if one.hole == hole]
    assert [one.term for one in found] == [term], [one.message for one in report.findings]
    assert found[0].hint
    assert found[0].episode is not None
    assert found[0].episode.actions
    # Where any answer is right, one of which a part is changed is too, and is said beside it.
    beside = {"loose_match"} if kind == "what cannot be read is right" else set()
    names = [one.hole for one in report.findings if one.hole not in beside]
    assert names == [hole], [(one.hole, one.message) for one in report.findings]


SOUND: dict[str, Case] = {
    "four options, each as often": Case(
        [
            {"question": f"A: town {i}\nB: hill {i}\nC: lake {i}\nD: cape {i}", "answer": "ABCD"[(i * 7 + i // 4) % 4]}
            for i in range(20)
        ],
        tools={},
    ),
    "four labels, each about as often": Case(
        [
            {
                "question": f"Which kind is case {i * 7 + 100}?",
                "answer": "calm warm cold wild".split()[i * 7 % 23 % 4],
            }
            for i in range(24)
        ],
        tools={},
    ),
    "the tool has it": Case(
        oracle=["{call: {look: {about: 'item{{ task.n }}'}}}", "{say: '<answer>{{ task.answer }}</answer>'}"]
    ),
    "errors that list valid answers": Case(
        tools={"names": tool("names")},
        oracle=["{call: {names: {about: 'item{{ task.n }}'}}}", "{say: '<answer>{{ task.answer }}</answer>'}"],
    ),
    "extraction": Case(
        [
            {"question": f"{EASY[i]}. What is the {FIELDS[i * 7 % 3]}?", "answer": str(VALUES[i][i * 7 % 3])}
            for i in range(20)
        ],
        tools={},
        rewards={"correct": "{kind: rule, rule: numeric_match, expect: '{{ task.answer }}'}"},
    ),
    "ten options": Case(
        [
            {"question": f"{i}. Which of {', '.join(o)}?", "answer": o[i * 7 % 10], "options": o}
            for i in range(40)
            for o in [[f"{letter}{i * 3 % 29}x" for letter in "abcdefghij"]]
        ],
        tools={},
    ),
    "a tool that checks twice": Case(
        tools={"check": tool("check_twice", "task", "tries", more=", run_in: loop")}, extra=TRIES
    ),
    "guesses that cost": Case(answers(*["yes"] * 11, *["no"] * 9), rewards={"correct": python("cost")}),
    "f1 with prose": Case(
        [{"question": f"What stands in picture {i}?", "answer": f"{WORDS[i % 8]} {i}"} for i in range(20)],
        rewards={"f1": python("f1")},
    ),
    "a small gated bonus": Case(
        rewards={
            "correct": CORRECT,
            "brief": "{kind: rule, rule: tool_call_count, max: 2, weight: 0.1, gate: correct >= 1}",
        }
    ),
    "a small bonus for form": Case(
        rewards={"correct": CORRECT, "form": "{kind: rule, rule: regex, pattern: '<answer>', of: message, weight: 0.1}"}
    ),
    "shared prompts": Case(
        [{"question": "What is the code of the item above?", "answer": code(i), "n": i} for i in range(20)],
        user="Item {{ task.n }} of the list K001 K002 K003. {{ task.question }}",
    ),
    "state as a whole": Case(tools=ORDERS, rewards={"state": python("closed_alone")}, oracle=CLOSES, extra=STATE),
    "small numbers": Case(
        [{"question": f"What is {i} plus {i * 3 % 11}?", "answer": str(i + i * 3 % 11)} for i in range(30)],
        tools={},
        rewards={"correct": "{kind: rule, rule: numeric_match, expect: '{{ task.answer }}'}"},
    ),
    "few tasks": Case(items(2)),
    "decimals": Case(
        answers(*[f"{i * 31 + 100}.{i * 7 + 10}" for i in range(12)], *[f"-{i * 17 + 100}.5" for i in range(8)]),
        rewards={"correct": "{kind: rule, rule: numeric_match, expect: '{{ task.answer }}', tolerance: 0.01}"},
    ),
    "a tolerance of one in a hundred": Case(
        answers(*[str(i * 31 + 100) for i in range(20)]),
        rewards={"correct": "{kind: rule, rule: numeric_match, expect: '{{ task.answer }}', relative_tolerance: 0.01}"},
    ),
    "a plain file among others": Case(
        tools={"list_files": tool("list_files", "task"), "look": tool("look")},
        oracle=["{call: {look: {about: 'item{{ task.n }}'}}}", "{say: '<answer>{{ task.answer }}</answer>'}"],
    ),
    "an outage that makes a reward invalid": Case(
        rewards={"correct": CORRECT, "looked": "{kind: rule, rule: tool_called, tool: look, weight: 0.1}"},
        oracle=["{call: {look: {about: 'item{{ task.n }}'}}}", "{say: '<answer>{{ task.answer }}</answer>'}"],
    ),
    "steps that are the task": Case(
        tools={
            "listen": tool("listen", "store", more=", run_in: loop"),
            "step": tool("step", "store", more=", run_in: loop, mutates: true"),
        },
        rewards={"through": python("through")},
        oracle=["{call: {step: {}}}"] * 3 + ["{say: 'Done.'}"],
        extra=STATE,
    ),
    "places that a tool knows and a wrong one that costs": Case(
        [
            {"question": f"Which is older, Ka{i}ro or Mu{i}na?", "places": o, "answer": o[i * 7 % 3 % 2]}
            for i in range(30)
            for o in [[f"Ka{i}ro", f"Mu{i}na"]]
        ],
        tools={"told": tool("told", "task", more=", run_in: loop")},
        rewards={"correct": python("cost")},
    ),
    "answers that repeat": Case(answers(*["oak", "elm", "ash", "fir", "yew", "bay"] * 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_environment_near_the_edge_passes(kind: str, tmp_path: Path) -> None:
    assert [(one.hole, one.term, one.message) for one in SOUND[kind].audit(tmp_path).findings] == []


def _audit_rows(folder: Path, spec: str, rows: list[dict[str, Any]], code: str = "") -> AuditReport:
    """The report on a spec of these rows, with `code` as its file `own.py`."""
    (folder / "own.py").write_text(code, encoding="utf-8")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "own.yaml").write_text(f"rlenv: 1\nname: own\ntasks: {{train: {{path: rows.jsonl}}}}\n{spec}")

    async def main() -> AuditReport:
        async with rlenv.load(folder / "own.yaml") as environment:
            return await audit(environment, tasks=12)

    return asyncio.run(main())


_FACTS = [
    "plays chess",
    "keeps bees",
    "drives a van",
    "climbs rocks",
    "bakes bread",
    "sings in a choir",
    "has a sister",
]
_SAID = """
prompt: {{user: "{{{{ task.q }}}}"}}
rewards: {{paid: {{kind: rule, function: "own.py:paid"}}}}
oracle: [{{say: "<answer>{}</answer>"}}]
"""


@pytest.mark.slow
def test_a_list_of_which_one_item_is_enough_is_found(tmp_path: Path) -> None:
    rows = [{"q": f"Person {n}", "facts": [_FACTS[(n + k) % 7] for k in range(4)]} for n in range(14)]
    code = """
def paid(context):
    lines = (context.answer or "").splitlines()
    return sum(one in context.task["facts"] for one in lines) / len(lines) if lines else 0.0
"""
    spec = _SAID.format("{{ task.facts | join('\\n') }}")
    (found,) = [one for one in _audit_rows(tmp_path, spec, rows, code).findings if one.term == "paid"]
    assert (found.hole, "no last part" in found.message) == ("loose_match", True)


@pytest.mark.slow
def test_one_word_in_place_of_each_is_found_where_most_are_it(tmp_path: Path) -> None:
    places = [(1, 4), (2, 7), (5, 6), (3, 9), (8, 4), (1, 9), (7, 3), (2, 5), (6, 1), (4, 8), (9, 2), (3, 5)]
    tags = [["PER" if at == a else "LOC" if at == b else "O" for at in range(10 + a % 3)] for a, b in places]
    rows = [{"q": f"Sentence {n} of {len(some)} words", "tags": " ".join(some)} for n, some in enumerate(tags)]
    code = """
def paid(context):
    given, gold = (context.answer or "").split(), context.task["tags"].split()
    return sum(map(str.__eq__, given, gold)) / len(gold) if len(given) == len(gold) else 0.0
"""
    found = _audit_rows(tmp_path, _SAID.format("{{ task.tags }}"), rows, code).findings
    assert [(one.hole, "'O O O …'" in one.message) for one in found if one.term == "paid"] == [
        ("constant_answer", True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "hole"), [("debug_total", ["leak"]), ("total", [])])
def test_a_gold_under_a_telling_name_is_found_where_the_oracle_reads_it(
    tmp_path: Path, where: str, hole: list[str]
) -> None:
    rows = [{"q": f"Order {n}", "n": n, "a": 137 * n % 911} for n in range(1, 17)]
    spec = """
prompt: {user: "{{ task.q }}"}
tools: {order: {kind: python, function: "own.py:order", inject: [task]}}
rewards: {paid: {kind: rule, rule: numeric_match, expect: "{{ task.a }}"}}
oracle: [{call: {order: {number: "{{ task.n }}"}}}, {say: "<answer>{{ task.a }}</answer>"}]
"""
    code = f"""
def order(number: int, task) -> str:
    return f"item: lamp, {where}: {{task['a']}}" if number == task["n"] else "none"
"""
    assert [one.hole for one in _audit_rows(tmp_path, spec, rows, code).findings] == hole


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", " WHERE id = {{ task.n }}"])
def test_a_statement_without_its_condition_is_tried(tmp_path: Path, where: str) -> None:
    made = [f"INSERT INTO staff VALUES ({n}, 'town{n}');" for n in range(12)]
    (tmp_path / "staff.sql").write_text("\n".join(["CREATE TABLE staff (id INTEGER, town TEXT);", *made]))
    rows = [{"q": f"{n} moves to place{n}", "n": n, "a": f"place{n}"} for n in range(12)]
    own = "{sql: \"UPDATE staff SET town = '{{ task.a }}' WHERE id = {{ task.n }}\"}"
    select = "SELECT town FROM staff" + (where or " ORDER BY id")
    spec = f"""
prompt: {{user: "Staff {{{{ task.q }}}}."}}
resources: {{db: {{kind: sqlite, init: staff.sql, access: copy}}}}
tools: {{sql: {{kind: sql, resource: db}}}}
rewards:
  paid:
    kind: verify
    tool: sql
    arguments: {{sql: "{select}"}}
    expect: {{value: "{{{{ task.a }}}}"}}
    compare: {{by: python, function: "own.py:compare"}}
oracle: [{{call: {{sql: {own}}}}}, {{say: Done.}}]
"""
    code = """
def compare(given, wanted):
    towns = [town for town, in given.value["rows"]]
    return float(towns.count(wanted.value) == 1 and (len(towns) == 1 or "town0" in towns or "town1" in towns))
"""
    found = _audit_rows(tmp_path, spec, rows, code).findings
    assert any("WHERE" in one.message for one in found) == bool(where)
    assert not any(one.hole == "gold_in_prompt" for one in found)
