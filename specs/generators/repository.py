"""Small Python packages, each with one of several faults, the test that shows it, and calls that try the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from generators.rows import jsonl

__all__ = ["files"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`wrong` stands in the place of `right`; the visible test calls `shown`."""

    right: str
    wrong: str
    shown: str


@dataclass(frozen=True, slots=True)
class Package:
    """`calls` are tried once it is mended, whatever the fault was; `readme` is what the package promises."""

    name: str
    readme: str
    source: str
    faults: Sequence[Fault]
    calls: Sequence[str]
    is_test: bool = False


PACKAGES = (
    Package("cart", "`total` of lines (price, count) in cents: from 10 pieces on a line costs a tenth less, a tenth "
            "that\nis rounded down to cents. `shipping` is 490, and free from 5000 cents on. `split` shares cents so "
            "that shares\ndiffer by 1 at most, larger ones first.", '''
def line(price, count):
    amount = price * count
    return amount - amount // 10 if count >= 10 else amount


def total(lines):
    return sum(line(price, count) for price, count in lines)


def shipping(cents):
    return 0 if cents >= 5000 else 490


def split(cents, people):
    share, rest = divmod(cents, people)
    return [share + 1] * rest + [share] * (people - rest)
''', (Fault("count >= 10", "count > 10", "total([(100, 10)])"),
      Fault("cents >= 5000", "cents > 5000", "shipping(5000)"),
      Fault("[share + 1] * rest", "[share] * rest", "split(100, 3)")),
            ("total([(250, 10), (99, 3)])", "total([(7, 11)])", "total([])", "total([(30, 9)])", "shipping(4999)",
             "shipping(5000)", "shipping(0)", "split(1001, 4)", "split(12, 3)", "split(2, 5)")),
    Package("words", "`slug` joins the words of a title by dashes, in small letters, and drops all other signs.\n"
            "`initials` are the first letters of all words, as capitals. `wrap` breaks a text into lines of at most\n"
            "`width` signs, between words.", '''
import re


def slug(title):
    return "-".join(re.findall("[a-z0-9]+", title.lower()))


def initials(name):
    return "".join(word[0].upper() for word in name.split())


def wrap(text, width):
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
''', (Fault("title.lower()", "title", "slug('Two Towns')"),
      Fault("name.split()", "name.split()[:2]", "initials('ada mary king')"),
      Fault("+ 1 + len(word) <= width", "+ len(word) <= width", "wrap('an old map', 5)")),
            ("slug('  Ways & Means, 2nd Part ')", "slug('a_b')", "slug('')", "initials('runa van der berg')",
             "initials('nils')", "wrap('to be or not to be', 5)", "wrap('aa bb cc dd', 4)", "wrap('longer than', 3)")),
    Package("calendar_days", "`is_leap`: years that 4 divides are leap years, but for those that 100 and not 400 "
            "divides.\n`days_in` is the length of a month (1 to 12). `ordinal` is the number of a day in its year, "
            "1 for the first of January.", '''
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year, month):
    return 29 if month == 2 and is_leap(year) else LENGTHS[month - 1]


def ordinal(year, month, day):
    return sum(days_in(year, one) for one in range(1, month)) + day
''', (Fault("(year % 100 != 0 or year % 400 == 0)", "year % 100 != 0", "is_leap(2000)"),
      Fault("30, 31, 30, 31, 31, 30", "31, 30, 31, 30, 31, 30", "days_in(2023, 7)"),
      Fault("range(1, month)", "range(1, month + 1)", "ordinal(2023, 1, 5)")),
            ("is_leap(1900)", "is_leap(2400)", "is_leap(2024)", "[days_in(2024, one) for one in range(1, 13)]",
             "ordinal(2024, 12, 31)", "ordinal(2023, 3, 1)", "ordinal(1900, 3, 1)")),
    Package("matrix", "`transposed`, `product` and `trace` of matrices, which are lists of rows. `identity` has ones "
            "on its diagonal.\n`power` multiplies a matrix with itself; its power 0 is the identity.", '''
def transposed(rows):
    return [list(column) for column in zip(*rows)]


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column)) for column in transposed(b)] for row in a]


def trace(rows):
    return sum(rows[at][at] for at in range(len(rows)))


def identity(size):
    return [[int(x == y) for x in range(size)] for y in range(size)]


def power(rows, exponent):
    found = identity(len(rows))
    for _ in range(exponent):
        found = product(found, rows)
    return found
''', (Fault("for column in transposed(b)]", "for column in b]", "product([[1, 2]], [[3], [4]])"),
      Fault("rows[at][at] for", "rows[at][-1 - at] for", "trace([[1, 7], [2, 3]])"),
      Fault("found = identity(len(rows))", "found = rows", "power([[1, 1], [0, 1]], 3)")),
            ("transposed([[1, 2, 3], [4, 5, 6]])", "product([[1, 2], [3, 4]], [[5, 6], [7, 8]])",
             "product([[1], [2]], [[3, 4]])", "trace([[5, 1, 2], [0, 6, 9], [3, 3, 7]])", "identity(3)",
             "power([[2, 0], [1, 3]], 0)", "power([[1, 1], [1, 0]], 7)")),
    Package("roman", "`to_roman` writes a number from 1 to 3999 in Roman numerals, `from_roman` reads them, in small "
            "letters too.\n`is_roman` says whether a text is a numeral as `to_roman` writes it.", '''
SIGNS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
VALUES = {sign: value for value, sign in SIGNS}


def to_roman(number):
    text = ""
    for value, sign in SIGNS:
        while number >= value:
            text += sign
            number -= value
    return text


def from_roman(text):
    values = [VALUES[sign] for sign in text.upper()]
    return sum(-a if a < b else a for a, b in zip(values, values[1:] + [0]))


def is_roman(text):
    return bool(text) and set(text) <= set("MDCLXVI") and to_roman(from_roman(text)) == text
''', (Fault('(9, "IX"), ', "", "to_roman(19)"),
      Fault("text.upper()", "text", "from_roman('xii')"),
      Fault("-a if a < b", "-a if a <= b", "from_roman('VIII')")),
            ("to_roman(1994)", "to_roman(3999)", "to_roman(9)", "from_roman('mcmxciv')", "from_roman('XLIX')",
             "from_roman('MMVII')", "[from_roman(to_roman(one)) == one for one in (4, 88, 444, 2026)]",
             "is_roman('IIII')", "is_roman('XIV')", "is_roman('')", "is_roman('abc')")),
    Package("stats", "`mean`, `median` (of an even number of values the mean of the two in the middle) and `mode` (the "
            "commonest value,\nthe smallest of several) of numbers in any order, which stay as they are. `spread` is "
            "the largest less the smallest.", '''
from collections import Counter


def mean(values):
    return sum(values) / len(values)


def median(values):
    found, half = sorted(values), len(values) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2


def mode(values):
    counts = Counter(values)
    return min(value for value in counts if counts[value] == max(counts.values()))


def spread(values):
    return max(values) - min(values)
''', (Fault("sorted(values)", "values", "median([5, 1, 3])"),
      Fault("found[half - 1] + found[half]", "found[half] + found[half + 1 - len(found)]", "median([1, 2, 3, 10])"),
      Fault("return min(value", "return max(value", "mode([2, 1, 2, 1])")),
            ("mean([1, 2, 6])", "median([4, 4, 1, 9, 2, 3])", "median([7])", "median([9, 8, 7, 1])", "mode([3, 3, 1])",
             "mode([5, 4, 4, 5, 6])", "spread([-2, 9, 4])"), is_test=True),
    Package("spans", "Spans (first, last) of whole numbers, both ends included. `merged` joins those that overlap or "
            "touch, in order.\n`length` counts the numbers that any of them holds. `holds` says whether one does.", '''
def merged(spans):
    found = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def length(spans):
    return sum(last - first + 1 for first, last in merged(spans))


def holds(spans, number):
    return any(first <= number <= last for first, last in spans)
''', (Fault("max(last, found[-1][1])", "last", "merged([(1, 9), (2, 4)])"),
      Fault("found[-1][1] + 1:", "found[-1][1]:", "merged([(1, 2), (3, 4)])"),
      Fault("in merged(spans))", "in spans)", "length([(1, 4), (3, 6)])")),
            ("merged([(5, 6), (1, 3), (2, 2)])", "merged([(1, 1), (2, 2), (4, 4)])", "merged([])",
             "length([(1, 1)])", "length([(1, 10), (5, 12), (20, 21)])", "holds([(1, 2), (4, 5)], 3)",
             "holds([(1, 2)], 2)"), is_test=True),
    Package("ring", "A `Ring` holds the last `size` items that were put into it: `put` adds one and drops the oldest "
            "one beyond that,\n`take` gives the oldest one and takes it out (None where there is none), `items` are "
            "all, the oldest first.", '''
class Ring:
    def __init__(self, size):
        self.size = size
        self.held = []

    def put(self, item):
        self.held.append(item)
        if len(self.held) > self.size:
            del self.held[0]
        return self

    def take(self):
        return self.held.pop(0) if self.held else None

    def items(self):
        return list(self.held)
''', (Fault("del self.held[0]", "del self.held[-1]", "Ring(2).put(1).put(2).put(3).items()"),
      Fault("self.held.pop(0)", "self.held.pop()", "Ring(3).put(1).put(2).take()"),
      Fault("> self.size", ">= self.size", "Ring(2).put(1).put(2).items()")),
            ("Ring(3).put(4).put(5).put(6).put(7).items()", "Ring(1).put('a').put('b').items()", "Ring(2).take()",
             "Ring(2).put(8).put(9).put(1).take()", "[(ring := Ring(2).put(1).put(2)).take(), ring.items()]"),
            is_test=True),
)  # fmt: skip


def _row(package: Package, number: int, fault: Fault) -> tuple[dict[str, Any], dict[str, bytes]]:
    name, folder, source = package.name, f"{package.name}-{number}", package.source.lstrip("\n")
    if source.count(fault.right) != 1:
        raise ValueError(f"{folder}: the fault has no place of its own")
    right, wrong = _run(source), _run(source.replace(fault.right, fault.wrong))
    if _given(fault.shown, right) == _given(fault.shown, wrong):
        raise ValueError(f"{folder}: the test does not show the fault")
    test = (
        f"import unittest\n\nfrom {name} import *\n\n\nclass Promised(unittest.TestCase):\n"
        f"    def test_promise(self):\n"
        f"        self.assertEqual({fault.shown}, {_given(fault.shown, right)})\n"
    )
    held = {f"{name}/__init__.py": source.replace(fault.right, fault.wrong), f"test_{name}.py": test}
    held["README.md"] = f"# {name}\n\n{package.readme}\n"
    prints = "".join(f"print({call})\n" for call in package.calls)
    row = {
        "id": folder, "package": folder, "name": name, "test": f"test_{name}.py", "path": f"{name}/__init__.py",
        "shows": f"python3 - <<'PY'\nfrom {name} import *\n{prints}PY\n",
        "gives": "\n".join(str(eval(call, right)) for call in package.calls),
        "wrong": _lines_with(fault.wrong, held[f"{name}/__init__.py"], source),
        "right": _lines_with(fault.right, source, held[f"{name}/__init__.py"]),
    }  # fmt: skip
    return row, {f"packages/{folder}/{path}": text.encode() for path, text in held.items()}


def _run(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope


def _given(call: str, scope: dict[str, Any]) -> str:
    try:
        return repr(eval(call, scope))
    except Exception as error:
        return type(error).__name__


def _lines_with(part: str, text: str, other: str) -> str:
    """The lines of `text` that `other` has not."""
    return "\n".join(line for line in text.splitlines() if line not in other.splitlines()) or part


def files() -> dict[str, bytes]:
    """A folder for each fault of each package, and train.jsonl and test.jsonl, which share no package."""
    made: dict[str, bytes] = {}
    rows: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for package in PACKAGES:
        for number, fault in enumerate(package.faults, 1):
            row, held = _row(package, number, fault)
            rows[package.is_test].append(row)
            made |= held
    return {**made, "train.jsonl": jsonl(rows[False]), "test.jsonl": jsonl(rows[True])}
