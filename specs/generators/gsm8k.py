"""Word problems in GSM8K's format: worked steps with <<expression=value>> and a last line `#### N`."""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable
from fractions import Fraction

from generators.rows import jsonl

__all__ = ["files"]

# fmt: off
NAMES = (
    "Amara", "Bruno", "Carmen", "Dmitri", "Esme", "Farid", "Greta", "Hiro", "Ines",
    "Jonas", "Kofi", "Leila", "Marek", "Nadia", "Otis", "Priya", "Quentin", "Rosa",
    "Samir", "Tilda", "Umar", "Vera", "Wanda", "Xenia", "Yusuf", "Zelda", "Anton",
    "Bianca", "Cyrus", "Dalia", "Elmer", "Freya", "Goran", "Hanna", "Idris", "Juno",
)
# fmt: on
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    assert isinstance(node, ast.Constant)
    return Fraction(str(node.value))


class Worked:
    """A solution that is right by construction: every value in it is computed from its expression."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = 0

    def step(self, before: str, expression: str, after: str = "") -> int:
        """Adds a line and returns the value of `expression`, which must be a positive integer."""
        value = _evaluate(ast.parse(expression, mode="eval").body)
        assert value.denominator == 1, expression
        assert value > 0, expression
        self.last = int(value)
        shown = expression.replace("*", " * ").replace("/", " / ").replace("+", " + ").replace("-", " - ")
        self.lines.append(f"{before} {shown} = <<{expression}={value}>>{value}{after}.")
        return self.last

    @property
    def answer(self) -> str:
        return "\n".join((*self.lines, f"#### {self.last}"))


def orchard(rng: random.Random, work: Worked) -> str:
    name, trees, each, crate = rng.choice(NAMES), rng.randint(6, 24), rng.randint(3, 12) * 10, rng.choice((5, 10))
    eaten, price = rng.randint(2, 6) * crate, rng.randint(3, 9)
    picked = work.step(f"{name} picks", f"{trees}*{each}", " pears")
    left = work.step("After the birds there are", f"{picked}-{eaten}", " pears")
    crates = work.step("That fills", f"{left}/{crate}", " crates")
    work.step("They sell for $", f"{crates}*{price}")
    return (
        f"{name} has {trees} pear trees, and each gives {each} pears. Birds eat {eaten} pears. The rest is packed into "
        f"crates of {crate}, and each crate sells for ${price}. How many dollars does {name} earn?"
    )


def train_ride(rng: random.Random, work: Worked) -> str:
    name, speed, hours = rng.choice(NAMES), rng.randint(6, 14) * 10, rng.randint(2, 6)
    slow, more, walk = rng.randint(3, 5) * 10, rng.randint(2, 4), rng.randint(2, 9)
    fast = work.step("The fast train covers", f"{speed}*{hours}", " kilometres")
    second = work.step("The slow train covers", f"{slow}*{more}", " kilometres")
    work.step("The whole way is", f"{fast}+{second}+{walk}", " kilometres")
    return (
        f"{name} rides a train at {speed} kilometres an hour for {hours} hours, then another one at {slow} kilometres "
        f"an hour for {more} hours, and walks the last {walk} kilometres. How many kilometres long is the way?"
    )


def bakery(rng: random.Random, work: Worked) -> str:
    name, trays, rolls, percent = rng.choice(NAMES), rng.randint(4, 12), rng.choice((20, 40, 60)), rng.choice((10, 25))
    rolled = work.step(f"{name} bakes", f"{trays}*{rolls}", " rolls")
    burnt = work.step("Of these", f"{rolled}*{percent}/100", " are burnt")
    good = work.step("There remain", f"{rolled}-{burnt}", " good rolls")
    price = rng.randint(2, 4)
    work.step("They bring in $", f"{good}*{price}")
    return (
        f"{name} bakes {trays} trays of {rolls} rolls each, but {percent}% of them are burnt. The good ones are sold "
        f"at ${price} a roll. How much money do they bring in, in dollars?"
    )


def savings(rng: random.Random, work: Worked) -> str:
    name, weekly, weeks, gift = rng.choice(NAMES), rng.randint(7, 35), rng.randint(5, 26), rng.randint(2, 9) * 10
    price = weekly * weeks + gift + rng.randint(5, 150)
    saved = work.step(f"{name} saves $", f"{weekly}*{weeks}")
    total = work.step("With the gift that is $", f"{saved}+{gift}")
    work.step("What is missing is $", f"{price}-{total}")
    return (
        f"{name} saves ${weekly} a week for {weeks} weeks and is given ${gift} as a present. A bicycle costs ${price}. "
        f"How many dollars are still missing?"
    )


def reading(rng: random.Random, work: Worked) -> str:
    name, first, factor, days = rng.choice(NAMES), rng.randint(8, 30), rng.randint(2, 4), rng.randint(3, 9)
    second = work.step("On the second day it is", f"{first}*{factor}", " pages")
    start = work.step("The first two days make", f"{first}+{second}", " pages")
    daily = rng.randint(11, 40)
    rest = work.step("The other days make", f"{daily}*{days}", " pages")
    work.step("The book has", f"{start}+{rest}", " pages")
    times = {2: "twice", 3: "three times", 4: "four times"}[factor]
    return (
        f"{name} reads {first} pages of a book on the first day and {times} as many on the second. After that it takes "
        f"another {days} days at {daily} pages a day to finish the book. How many pages does the book have?"
    )


def classroom(rng: random.Random, work: Worked) -> str:
    name, tables, seats, share = rng.choice(NAMES), rng.randint(2, 5) * 2, rng.choice((4, 6, 8)), rng.choice((2, 4))
    sheets = rng.randint(3, 15)
    children = work.step("There are", f"{tables}*{seats}", " children")
    painters = work.step("Of these", f"{children}/{share}", " paint")
    others = work.step("The others are", f"{children}-{painters}", " children")
    paint = work.step("The painters use", f"{painters}*{sheets}", " sheets")
    fold = rng.randint(2, 6)
    folded = work.step("The others use", f"{others}*{fold}", " sheets")
    work.step("Together that is", f"{paint}+{folded}", " sheets")
    part = {2: "Half", 4: "A quarter"}[share]
    return (
        f"In {name}'s class there are {tables} tables with {seats} children at each. {part} of the children paint and "
        f"use {sheets} sheets of paper each; all the others fold boats and use {fold} sheets each. "
        f"How many sheets of paper does the class use?"
    )


def market(rng: random.Random, work: Worked) -> str:
    name, kilos, price = rng.choice(NAMES), rng.randint(3, 14), rng.randint(2, 8)
    jars, cost = rng.randint(2, 9), rng.randint(4, 11)
    beans = work.step("The beans cost $", f"{kilos}*{price}")
    honey = work.step("The honey costs $", f"{jars}*{cost}")
    bill = work.step("The bill is $", f"{beans}+{honey}")
    notes = bill // 10 + rng.randint(1, 3)
    paid = work.step("The notes are worth $", f"{notes}*10")
    work.step("The change is $", f"{paid}-{bill}")
    return (
        f"At the market {name} buys {kilos} kilograms of beans at ${price} a kilogram and {jars} jars of honey at "
        f"${cost} a jar, and pays with {notes} ten-dollar notes. How many dollars of change does {name} get?"
    )


def ages(rng: random.Random, work: Worked) -> str:
    child, elder, third = rng.sample(NAMES, 3)
    age, factor, gap, years = rng.randint(4, 14), rng.randint(3, 5), rng.randint(2, 11), rng.randint(3, 17)
    old = work.step(f"{elder} is", f"{age}*{factor}", " years old")
    other = work.step(f"{third} is", f"{old}-{gap}", " years old")
    now = work.step("Together they are", f"{age}+{old}+{other}", " years old")
    added = work.step("Three people gain", f"3*{years}", " years")
    work.step("Then they are", f"{now}+{added}", " years old together")
    times = {3: "three", 4: "four", 5: "five"}[factor]
    return (
        f"{child} is {age} years old. {elder} is {times} times as old as {child}, and {third} is {gap} years younger "
        f"than {elder}. How old will the three be together in {years} years?"
    )


def printing(rng: random.Random, work: Worked) -> str:
    name, slow, factor, minutes = rng.choice(NAMES), rng.randint(6, 20), rng.randint(2, 5), rng.randint(5, 25)
    fast = work.step("The new printer makes", f"{slow}*{factor}", " pages a minute")
    both = work.step("Both together make", f"{slow}+{fast}", " pages a minute")
    pages = work.step("Together they print", f"{both}*{minutes}", " pages")
    thrown = rng.randint(3, 19)
    work.step("What is left is", f"{pages}-{thrown}", " pages")
    return (
        f"{name}'s old printer makes {slow} pages a minute, the new one {factor} times as many. Both run for {minutes} "
        f"minutes, and {thrown} smudged pages are thrown away. How many pages are left?"
    )


def discount(rng: random.Random, work: Worked) -> str:
    name, price, percent = rng.choice(NAMES), rng.randint(2, 30) * 20, rng.choice((5, 10, 15, 20, 25, 30, 40))
    pieces, delivery = rng.randint(2, 6), rng.randint(4, 25)
    off = work.step("The discount on one chair is $", f"{price}*{percent}/100")
    new = work.step("One chair costs $", f"{price}-{off}")
    chairs = work.step("The chairs cost $", f"{new}*{pieces}")
    work.step("With delivery that is $", f"{chairs}+{delivery}")
    return (
        f"A chair costs ${price}, and today there is {percent}% off. {name} buys {pieces} chairs and pays ${delivery} "
        f"for delivery. How many dollars does {name} pay in all?"
    )


def garden(rng: random.Random, work: Worked) -> str:
    name, length, width = rng.choice(NAMES), rng.randint(9, 40), rng.randint(5, 25)
    pond, seed = rng.randint(3, 30), rng.randint(2, 6)
    area = work.step("The garden has", f"{length}*{width}", " square metres")
    lawn = work.step("Without the pond there are", f"{area}-{pond}", " square metres")
    work.step("The lawn needs", f"{lawn}*{seed}", " handfuls of seed")
    return (
        f"{name}'s garden is {length} metres long and {width} metres wide, and a pond takes up {pond} square metres of "
        f"it. All the rest becomes lawn, at {seed} handfuls of seed a square metre. How many handfuls are needed?"
    )


def teams(rng: random.Random, work: Worked) -> str:
    name, team, size, extra = rng.choice(NAMES), rng.randint(4, 12), rng.randint(5, 11), rng.randint(2, 9)
    players = work.step("There are", f"{team}*{size}", " players")
    people = work.step("With the coaches that makes", f"{players}+{team}", " people")
    everyone = work.step("With the helpers that makes", f"{people}+{extra}", " people")
    bottles = rng.randint(2, 5)
    work.step("They need", f"{everyone}*{bottles}", " bottles")
    return (
        f"{name} plans a tournament for {team} teams of {size} players, each with one coach. There are also {extra} "
        f"helpers. Everyone gets {bottles} bottles of water. How many bottles are needed?"
    )


PROBLEMS = (
    orchard, train_ride, bakery, savings, reading, classroom, market, ages, printing, discount, garden, teams
)  # fmt: skip


def files() -> dict[str, bytes]:
    """train (200 problems) and test (100), every kind of problem in both, no problem twice."""
    rng = random.Random(20240616)
    rows: dict[str, str] = {}
    while len(rows) < 300:
        work = Worked()
        question = PROBLEMS[len(rows) % len(PROBLEMS)](rng, work)
        rows.setdefault(question, work.answer)
    shuffled = [{"question": question, "answer": answer} for question, answer in rows.items()]
    rng.shuffle(shuffled)
    return {"test.jsonl": jsonl(shuffled[:100]), "train.jsonl": jsonl(shuffled[100:])}
