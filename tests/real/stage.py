"""The dialogues that are played: what an environment says, and what a policy of the family would answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["TOOLS", "WORLDS", "Dialogue", "Turn", "World", "dialogues"]

Thinking = Literal["none", "empty", "some", "mixed"]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} does, é.",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "string", "description": "what it is about"},
                    "n": {"type": "integer", "description": "how many"},
                },
                "required": ["x"],
            },
        },
    }
    for name in ("look_up", "order")
]
RESULTS = (
    "ok",
    "12.50",
    "",
    " ",
    "\n\nlead and trail \n",
    '{"a": 1, "b": ["x", null]}',
    "[1, 2]",
    "true",
    "日本語 🎉 ﷺ e\u0301",
    'a "quoted" \\ back',
    "line 1\r\nline 2\t.",
    "<b>x</b> &amp; 'y'",
    "word " * 40,
)
REPLIES = ("Yes, please.", "no", "  And the 2nd one?\n", "好的,再试一次。", "What about {x}?", "Thanks!\n\nBye", "5")
QUESTIONS = ("Where is order 66?", "日本語で答えて 🎉", "Find it.\n\n1) this\n2) that", " spaced ", "a b c 12345")
SYSTEMS = ("You are a clerk.", "Be brief.\n\n- rule 1\n- rule 2", "Ünï ✓")
ANSWERS = ("Here it is: 42", "Done é.", "I have found\nit.", "No 你好")
# As dialects read texts: without white space at their ends.
BESIDE = ("Let me look.", "One moment…", "Sure:")
THOUGHTS = ("first this\nthen that", "hm", "世界?\n\nso it is")


@dataclass(frozen=True)
class Turn:
    """One turn of the policy (text, thinking, arguments of its calls) and the messages that answer it."""

    text: str
    calls: tuple[str, ...]
    thinking: str | None  # "" is an empty block
    answers: tuple[str, ...]  # a result for each call, or one reply of the user


@dataclass(frozen=True)
class Dialogue:
    world: str
    system: str | None
    question: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class World:
    """A kind of environment, as a spec makes one: what its dialogues have in common."""

    name: str
    has_system: bool = False
    has_tools: bool = True
    most_calls: int = 1
    plan: str = "t+"  # t: a turn with calls, u: one that a user answers; + repeats the last
    thinking: Thinking = "none"
    beside: bool = False
    hostile: bool = False
    kwargs: tuple[tuple[str, Any], ...] = ()


WORLDS = (
    World("tools", has_system=True),
    World("tools, no system"),
    World("tools, no schemas", has_system=True, has_tools=False),
    World("parallel calls", has_system=True, most_calls=4),
    World("text beside calls", has_system=True, most_calls=2, beside=True),
    World("tools, thinking", has_system=True, most_calls=2, thinking="some"),
    World("tools, empty thinking", thinking="empty"),
    World("tools, mixed thinking", has_system=True, beside=True, thinking="mixed"),
    World("hostile results", has_system=True, most_calls=2, hostile=True),
    World("users", has_system=True, has_tools=False, plan="u+"),
    World("users, no system", has_tools=False, plan="u+"),
    World("users, thinking", has_system=True, has_tools=False, plan="u+", thinking="some"),
    World("users, mixed thinking", has_tools=False, plan="u+", thinking="mixed"),
    World("users and tools", has_system=True, most_calls=2, plan="mix"),
    World("users and tools, beside", beside=True, plan="mix"),
    World("users and tools, thinking", has_system=True, plan="mix", thinking="mixed"),
    World("hostile users", has_tools=False, plan="u+", hostile=True),
)


def _plan(rng: random.Random, plan: str) -> str:
    length = rng.randint(1, 5)
    if plan == "t+":
        return "t" * length
    if plan == "u+":
        return "u" * min(length, 4)
    out = "".join(rng.choice("ttu") for _ in range(max(length, 3)))
    return out if "u" in out and "t" in out else "tu" + out[2:] + "t"


def _hostile(rng: random.Random, marks: Sequence[str]) -> str:
    some = [rng.choice(marks) for _ in range(3)] if marks else ["<|im_end|>"]
    return rng.choice((some[0], f"a{some[0]}\n{some[1]}b", "".join(some), f"{some[0]} {some[1][:4]}{some[2]}"))


def dialogues(world: World, marks: Sequence[str], *, count: int, seed: int = 0) -> Iterator[Dialogue]:
    """`count` dialogues of a world; the same for the same seed."""
    for number in range(count):
        rng = random.Random(f"{seed} {world.name} {number}")
        turns = []
        for index, kind in enumerate(_plan(rng, world.plan)):
            calls = tuple(
                f"v{index}{place}z{rng.choice(('', ' é', ' two words'))}"
                for place in range(rng.randint(1, world.most_calls) if kind == "t" else 0)
            )
            thinking = {"none": None, "empty": "", "some": f"{rng.choice(THOUGHTS)} k{index}z"}.get(world.thinking)
            if world.thinking == "mixed":
                thinking = rng.choice((None, f"{rng.choice(THOUGHTS)} k{index}z"))
            text = f"{rng.choice(ANSWERS)} c{index}z" if kind == "u" else ""
            if kind == "t" and world.beside and rng.random() < 0.7:
                text = f"c{index}z {rng.choice(BESIDE)}"
            pool = RESULTS if kind == "t" else REPLIES
            answers = tuple(
                _hostile(rng, marks) if world.hostile and rng.random() < 0.7 else rng.choice(pool)
                for _ in range(max(len(calls), 1))
            )
            turns.append(Turn(text, calls, thinking, answers))
        question = _hostile(rng, marks) if world.hostile and number % 2 else rng.choice(QUESTIONS)
        system = rng.choice(SYSTEMS) if world.has_system else None
        yield Dialogue(world.name, system, question, tuple(TOOLS) if world.has_tools else (), tuple(turns))
