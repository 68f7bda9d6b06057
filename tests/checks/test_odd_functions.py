"""What the author's own Python does that nobody means is said by its kind; what only looks like it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.checks.validate import validate

SPEC = """\
rlenv: 1
name: own
tasks:
  train: {{rows: [{{question: "What is twice 2?", n: 2, answer: "4"}}, {{question: "Twice 3?", n: 3, answer: "6"}}]}}
prompt: {{user: "{{{{ task.question }}}} Put the number between <answer> and </answer>."}}
{resource}
tools:
  twice: {{kind: python, function: "own.py:twice"{more}}}
rewards:
  correct: {reward}
oracle:
  - {{call: {{twice: {{number: "{{{{ task.n }}}}"}}}}}}
  - {{say: "<answer>{{{{ task.answer }}}}</answer>"}}
"""
WORLD = 'resources: {world: {kind: python, function: "own.py:World"}}'
HEAD = """\
import datetime, hashlib, random, time
from pathlib import Path
from rlenv.errors import ToolFailed

SEEN = []
CACHE = {}
COUNT = 0


"""
TWICE = 'def twice(number: int{0}):\n    "Gives twice a number."\n    {1}\n'
SCORE = "def score(context):\n    gold = context.task['answer']\n    said = (context.answer or '').lower()\n    {0}\n"


def tool(body: str, *, inject: str = "", before: str = "") -> dict[str, str]:
    more = f", inject: [{inject}], mutates: true" if inject else ""
    text = TWICE.format(f", {inject}" if inject else "", body.replace("\n", "\n    "))
    return {"code": before + text, "more": more}


def score(body: str) -> dict[str, str]:
    return {"code": TWICE.format("", "return 2 * number") + "\n\n" + SCORE.format(body.replace("\n", "\n    "))}


ODD = {
    "prints": ("no-result", tool("print(2 * number)")),
    "falls off its end": ("no-result", tool("if number > 1:\n    return 2 * number")),
    "finds nothing in a loop": (
        "no-result",
        tool("for one in range(9):\n    if one == number:\n        return 2 * one"),
    ),
    "blocks the loop": ("odd-policy", {"code": "async " + TWICE.format("", "time.sleep(0)\n    return 2 * number")}),
    "draws": ("unsteady", tool("return 2 * number + random.choice([0])")),
    "draws in a helper": (
        "unsteady",
        tool("return more(number)", before="def more(n):\n    return random.random() + n\n\n"),
    ),
    "draws from no seed": ("unsteady", tool("return random.Random().choice([2 * number])")),
    "counts from today": (
        "unsteady",
        tool("today = datetime.date.today()\nreturn str(today - datetime.timedelta(number))"),
    ),
    "asks for a hash": ("unsteady", tool("return hash(str(number))")),
    "changes its file": ("shared-state", tool("SEEN.append(number)\nreturn 2 * number")),
    "counts in its file": ("shared-state", tool("global COUNT\nCOUNT += number\nreturn COUNT")),
    "changes a default": (
        "shared-state",
        {
            "code": "def twice(number: int, seen: list[int] = []) -> int:\n    'Doubles.'\n"
            "    seen.append(number)\n    return 2 * len(seen)\n"
        },
    ),
    "changes its class": (
        "shared-state",
        tool(
            "return world.look(number)",
            inject="world",
            before=("class World:\n    seen = []\n\n    def look(self, n):\n        self.seen.append(n)\n\n\n"),
        ),
    ),
    "writes one file": ("shared-state", tool("open('/tmp/rlenv-none/x', 'a')\nreturn 2 * number")),
    "opens where rlenv is started": ("odd-path", tool("return open('own.py').read()[:number]")),
    "says what is right": ("told-answer", tool("return str(number) == task['answer']", inject="task")),
    "pays what fails": (
        "paid-for-nothing",
        score("try:\n    return float(int(said) == int(gold))\nexcept ValueError:\n    return 0.5"),
    ),
    "looks for the gold anywhere": ("short-gold", score("return float(gold in context.final_text)")),
    "looks for the answer in the gold": ("short-gold", score("return float(said != '' and said in gold)")),
}
SOUND = {
    "raises at its end": tool("if number > 1:\n    return 2 * number\nraise ToolFailed(str(number))"),
    "gives nothing on purpose": tool("if number > 1:\n    return 2 * number\nreturn None"),
    "ends in each case": tool("try:\n    return 2 * number\nexcept ValueError:\n    return 0"),
    "draws from a seed": tool("return random.Random(number).random()"),
    "measures time": tool("began = time.time()\nreturn 2 * number + 0 * int(time.time() - began)"),
    "stamps": tool("return str({'number': number, 'length': len(str(datetime.date.today()))})"),
    "draws from a generator of its own": tool(
        "import numpy\nown = numpy.random.default_rng(seed=number)\nreturn float(own.random())"
    ),
    "draws from what it is given": {
        "code": "def more(chance):\n    return chance.choice([0])\n\n"
        + TWICE.format("", "chance = random.Random(number)\n    return 2 * number + more(chance)")
    },
    "has values with a hash": tool(
        "return str(Pair(number).n)",
        before="class Pair:\n    def __init__(self, n):\n        self.n = n\n\n"
        "    def __hash__(self):\n        return hash(self.n)\n\n\n",
    ),
    "has a list called like one of its file": tool("SEEN, left = [], number\nSEEN.append(left)\nreturn 2 * SEEN[0]"),
    "changes what a helper is given": tool(
        "return more(number, [])", before="def more(n, SEEN):\n    SEEN.append(n)\n    return 2 * SEEN[0]\n\n"
    ),
    "catches what it raises": tool(
        "try:\n    if number > 100:\n        raise ValueError('large')\n    return 2 * number\n"
        "except ValueError as error:\n    return str(error)"
    ),
    "ends in a case with a name": tool(
        "match number:\n    case 1:\n        return 2\n    case other:\n        return 2 * other"
    ),
    "sorts a set": tool("words = sorted({'a', 'b'})\nreturn words[0] + str(number)"),
    "keeps a cache": tool("CACHE[number] = 2 * number\nreturn CACHE[number]"),
    "fills once": tool("if number not in SEEN:\n    SEEN.append(number)\nreturn 2 * number"),
    "keeps its own": tool(
        "return world.look(number)",
        inject="world",
        before=(
            "class World:\n    seen = []\n\n    def __init__(self):\n        self.seen = []\n\n"
            "    def look(self, n):\n        self.seen.append(n)\n        return n\n\n\n"
        ),
    ),
    "opens beside itself": tool("return (Path(__file__).parent / 'own.py').read_text()[:number]"),
    "is a game": tool(
        "if number == int(task['answer']):\n    return 'it'\nreturn str(number < int(task['answer']))",
        inject="task",
    ),
    "compares": score("return float(said == gold)"),
    "has a list of words": score("return float(said in [gold, gold + '.0'])"),
    "gives nothing for what fails": score(
        "try:\n    return float(int(said) == int(gold))\nexcept ValueError:\n    return 0.0"
    ),
}


def warned(folder: Path, given: dict[str, str]) -> dict[str, str]:
    code = HEAD + given["code"]
    (folder / "own.py").write_text(code, encoding="utf-8")
    own = '{kind: rule, function: "own.py:score"}'
    reward = own if "def score" in code else "{kind: rule, rule: exact_match}"
    resource = WORLD if "class World" in code else ""
    text = SPEC.format(resource=resource, more=given.get("more", ""), reward=reward)
    (folder / "env.yaml").write_text(text, encoding="utf-8")
    report = validate([folder / "env.yaml"])
    assert report.faults == ()
    return {one.code: f"{one.message}; {one.hint}" for one in report.warnings}


@pytest.mark.parametrize("name", ODD)
def test_what_a_function_does_that_nobody_means_is_said(tmp_path: Path, name: str) -> None:
    code, given = ODD[name]
    assert code in warned(tmp_path, given)


@pytest.mark.parametrize("name", SOUND)
def test_what_only_looks_like_it_is_left_alone(tmp_path: Path, name: str) -> None:
    assert warned(tmp_path, SOUND[name]) == {}
