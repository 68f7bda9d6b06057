"""What earns everywhere: the law that one answer is not right for unrelated tasks, and texts that try to be.

Each rule and comparator is measured over golds that have nothing to do with each other. An answer to them all is a
constant, and may be worth no more than two of them by chance.
"""

# ruff: noqa: E501 - tables of golds and texts read best with one family a row

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from rlenv.errors import RewardError
from rlenv.language import kinds as registry
from rlenv.messages import ToolCall
from rlenv.rewards.base import Measured, RewardContext, TermCompileContext
from rlenv.rewards.comparators import CompareSpec, Side, compile_comparator
from rlenv.testing.rewards import compile_term, reward_context, turn

MOST: Final = 2.0
"""What one answer may be worth above nonsense, over all golds: two right answers by chance, or parts of several."""
NONSENSE: Final = "zqxv kwjb"

MATHEMATICS: Final[Sequence[Any]] = (
    "7", "-204", "12.5", r"\$18.50", r"\frac{3}{8}", "1999/12", "0", "10^{30}", "15\\%", "3:4", r"72\text{ cm}^2",
    r"\sqrt{2}", r"6\pi", r"\frac{1+\sqrt{5}}{2}", "3-4i", r"2^{100}", r"\ln 5", r"e^2", r"\log_2 3", r"\sin 20^\circ", r"\binom{40}{20}",
    "x^2+1", "x=4", "y=3x-5", r"\frac{a+b}{c}", "n!", r"\sin x+\cos y", "x^2+y^2=9", r"\int_0^1 e^{-t^2}\,dt", r"\sum_{k=1}^{n} k^3", "f(x)=|x|", "ax+C",
    "(-2,11)", "(1,2,3)", r"\{5,-6\}", r"[8,13)", r"(-\infty,-9)\cup(21,\infty)", "x\\ge 31", "-3<t<14", r"\mathbb{R}", r"\emptyset", "1,4,9,16", r"\pm 17",
    r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}0&-1\\5&6\end{pmatrix}", "B", "ABC", "Monday", r"\text{even}", "12:45", "2024-02-29", "5 h 20 min", r"\infty",
    "101_2", r"0.\overline{27}", r"23\text{ km/h}", r"\frac{\pi}{7}", "8.25\\times 10^{-19}", r"\sqrt[3]{11}", r"x\in\{2,19\}", "yes",
)  # fmt: skip
NUMBERS: Final[Sequence[Any]] = (
    7,
    "-204",
    12.5,
    "$18.50",
    "0",
    "1e30",
    "15%",
    0.125,
    "3,901",
    1999,
    "-0.75",
    65536,
    "6.02e23",
    42,
    "1e9",
)
TEXTS: Final[Sequence[Any]] = (
    "Paris", "7", "Ada Lovelace", "B", "yes", "The Beatles", "C++", "-5", "1969", "Côte d'Ivoire", "東京", "blue whale", "12 March 1987", "in the kitchen",
    "https://example.org/x?y=1", "NaN", "[1, 2]", "a*b", "select", "It depends on the weather.", "O(n log n)", "Ω", "mitochondria", "$3.50", "[red]", "def f(x): return x", "none", "café",
)  # fmt: skip
JSON: Final[Sequence[Any]] = (
    7, "Paris", True, False, [1, 2, 3], [], {"a": 1}, {"name": "Ada", "age": 36}, [[1, 0], [0, 1]], 12.5, "NaN", [{"id": 5}], {"x": {"y": [True, None]}}, -1e300, "", ["b", "a"],
)  # fmt: skip
QUERIES: Final[Sequence[Any]] = (
    "SELECT name FROM singer WHERE age > 30", "SELECT count(*) FROM orders", "SELECT a.title, b.price FROM books a JOIN prices b ON a.id = b.book_id",
    "SELECT city, avg(temp) FROM weather GROUP BY city HAVING avg(temp) > 10", "SELECT * FROM flights ORDER BY departs DESC LIMIT 5", "SELECT DISTINCT genre FROM films",
    "SELECT max(salary) FROM staff WHERE dept = 'sales' AND level IN (2, 3)", "SELECT 1", "SELECT id FROM x UNION SELECT id FROM y",
    "WITH t AS (SELECT n FROM nums) SELECT sum(n) FROM t", "SELECT e.name FROM emp e WHERE NOT EXISTS (SELECT 1 FROM leave l WHERE l.emp = e.id)", "SELECT year, winner FROM cups WHERE winner LIKE 'B%'",
)  # fmt: skip
CALLS: Final[Sequence[Any]] = (
    *([{"name": name, "arguments": arguments}] for name, arguments in (("f", {"x": 1}), ("g", {}), ("search", {"query": "Paris"}), ("f", {"x": "1"}), ("book", {"day": "Monday", "seats": 2}))),
    [{"f": {"x": [1, 2]}}], [{"weather": {"city": ["Rome", ""], "unit": ["C"]}}], [{"h": {"a": [{"b": [1]}]}}, {"h": {"a": [{"b": [7]}]}}], [{"find": {"name": ["O'Neil"], "strict": [True]}}],
)  # fmt: skip
RESULTS: Final[Sequence[Any]] = (
    "7", "Paris is the capital.", '{"a": 1}', 12.5, [1, 2], {"id": 5, "tags": ["x"]}, True, "[]", {"rows": [[1, "one"], [2, "two"]], "columns": ["n", "word"]}, {"rows": [[None]]},
    {"rows": [[0.5], [1.5], [2.5]]}, {"rows": [["a", None, 3.25]]}, {"rows": [[-7]]}, "1,234", {"rows": [[1], [1], [1]]}, "null and void",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A rule with keys of its entry, golds that it takes, and the forms in which a message gives an answer to it."""

    name: str
    golds: Sequence[Any]
    forms: Sequence[str] = ("{}",)
    keys: Mapping[str, Any] = field(default_factory=dict)


_SOME = MATHEMATICS[::2]
_LINES = ("#### {}", "{}")
RULES: Final = (
    *(Rule("exact_match", TEXTS, keys={"normalise": form}) for form in ("none", "case", "qa")),
    Rule("f1", TEXTS),
    Rule("numeric_match", NUMBERS),
    Rule("numeric_match", NUMBERS, keys={"tolerance": 0.01, "relative_tolerance": 0.05}),
    Rule("json_match", JSON),
    Rule("math_equal", MATHEMATICS, keys={"cpu_s": 1}),
    Rule("sql_match", QUERIES),
    Rule("sql_match", QUERIES, keys={"partial": True}),
    Rule("calls_match", CALLS),
    Rule("calls_match", CALLS, keys={"order": True}),
    Rule("gsm8k", NUMBERS, _LINES),
    Rule("gsm8k", NUMBERS, _LINES, {"method": "flexible"}),
    Rule("skyrl_gsm8k", NUMBERS, _LINES),
    Rule("search_r1", TEXTS),
    Rule("search_r1_format", TEXTS, ("<think>x</think><answer>{}</answer>", "{}")),
    Rule("rl_factory_search", TEXTS, ("<answer>{}</answer>", "{}")),
    Rule("verl_math", _SOME, (r"\boxed{{{}}}", "{}")),
    Rule("verl_dapo", _SOME, ("Answer: {}", r"\boxed{{{}}}", "{}")),
    Rule("skyrl_aime", _SOME, ("Answer: {}", "{}")),
)
BY_NATURE: Final = {
    "answered": "is paid for the form", "length": "is paid for the form", "regex": "has a pattern and no gold",
    "json_schema": "has a schema and no gold", "valid_calls": "is paid for the form", "tool_called": "has no gold",
    "tool_call_count": "has no gold", "turn_count": "has no gold", "python": "is the author's", "value": "is the author's",
    "contains": "takes a text in which all golds stand: bound the answer's length",
    "json_match, subset": "takes an object with all keys, and anything for {}",
    "skyrl_synsql": "compares the rows that a tool gives: `rows` does so here",
    "reasoning_gym": "is another package's: tests/peers/test_reasoning_gym.py",
}  # fmt: skip
"""Rules of which one answer may earn on every task, and why."""
COMPARATORS: Final = tuple(
    name for one in get_args(get_args(CompareSpec)[0]) for name in get_args(one.model_fields["by"].annotation) if name != "python"
)  # fmt: skip


_AT_ONCE: Final = 12
_PLACE: Final = re.compile(r"\{\d\}")


def unnamed() -> set[str]:
    """The rules of the registry that stand in neither table."""
    return set(registry.names("rules")) - {rule.name for rule in RULES} - {name.partition(",")[0] for name in BY_NATURE}


ATOMS: Final = (
    "", "0", "1", "2", "7", "x", "n", "i", "e", r"\pi", r"\infty", r"-\infty", "NaN", "nan", "inf", "None", "null", "undefined", r"\text{undefined}", r"\emptyset", r"\varnothing", r"\{\}", "()", "[]", "{}", "{{}}", "?", "*", "%", "_", "^", "\\", "$", "$$", ".", ",", ";", "'", '"', "`",
    r"\frac{0}{0}", r"\frac{1}{0}", "0/0", "1/0", "0^0", r"\sin(100!)", "(1+i)^i", r"\tan(10^{500})", r"i^{i^{i^{i}}}", r"2^{2^{2^{2^{2^{2^{\sqrt2}}}}}}", r"e^{e^{e^{e^{e^{e}}}}}", "9^{9^{9^{9}}}", r"10^{10^{10}}!", r"\lfloor\pi^{100}\rfloor", r"\zeta(1)", r"\log(0)", r"\ln(\ln(1))", r"\infty-\infty", r"\frac{\infty}{\infty}",
    r"\sum_{n=1}^{\infty} \sin(n)", r"\int_0^1 \sin(1/x)dx", r"\lim_{x\to 0} \sin(1/x)", r"\prod_{p} p", r"\int f", r"\pi^{\pi^{\pi^{\pi^\pi}}}", r"\Gamma(0)", r"\arcsin(2)", r"\sqrt{-\infty}", r"x^{x^{x^{x}}}", r"\tan(90^\circ)", "1e999", "-1e999", "1e-999", "9" * 300, "0." + "0" * 300 + "1",
    r"(-\infty,\infty)", r"\mathbb{R}", r"\mathbb{C}", r"\Omega", r"x\in\mathbb{R}", r"\forall x", r"\exists x", r"x=x", "0=0", "x=y", "x<x+1", "x", "f(x)", r"\pm", r"\pm x", r"\pm\infty", r"\approx 7", "7^{T}", r"A^{T}", "x_1", r"\begin{pmatrix}x\\y\end{pmatrix}", r"\begin{matrix}\end{matrix}", r"\begin{cases}7\\8\end{cases}", r"\dots", r"1,2,\ldots", r"\ldots", "...",
    "or", "and", "yes or no", "all", "any", "none", "anything", "true", "false", "B", "A, B, C, D", "7 or 8", "the", "a", "an", "and the", "in of the a to", r"\text{}", r"\boxed{}", r"\text{ cm}", "%", "15%", "$", "°", r"^\circ", "7\\text{ or }8", r"\not", r"\neq 0", r"\ne 7", "x>0 or x<=0", r"7\mid 8", r"\overline{ABC}", "ab", r"\vec{v}", r"\hat{x}",
    ".*", "^.*$", "(?s).*", "*.*", "[^x]", "%%", "?*", "\\d+", "\u200b", "\u202e", "\ufeff", "\x00", "\ud800", "٣", "７", "½", "∞", "∅", "±", "\u0301", "ﬁ", "İ", "🙂", "\u2028", "\xa0", "&nbsp;", "<b>", "{{ task.answer }}", "${answer}", "[object Object]", "\\boxed", "#### ", "Answer:", "<answer>", "</answer>", "<answer></answer>",
    "NULL", "SELECT *", "SELECT 1", "SELECT NULL", "SELECT * FROM t", "SELECT NULL WHERE 0", "SELECT count(*) FROM t", "SELECT ?", "* FROM", "1=1", "' OR '1'='1", "; --", "[null]", '{"a": null}', "[[]]", '[{"name": "f", "arguments": {}}]', '{"rows": []}', '{"rows": [[]]}', '{"rows": [[null]]}', '{"rows": [], "truncated": true}', "[NaN]", "-0", "-0.0", "1e400",
)  # fmt: skip
"""Texts of all kinds that say nothing, everything, or what nobody can decide."""
FRAMES: Final = (
    "{0}, {1}", "{0} or {1}", "{0}; {1}", "{0} and {1}", "{0}={1}", "{0}\n{1}", "{0} {1}", "{0}{1}", r"{0}\pm {1}", "({0},{1})", r"\{{{0},{1}\}}", "[{0},{1}]", "({0},{1}]", r"{0}\cup {1}", r"{0}\setminus {1}", r"{0}\cap {1}", r"\frac{{{0}}}{{{1}}}",
    "{0}+{1}", "{0}-{1}", "{0}*{1}", "({0})^{{{1}}}", "{0}/{1}", r"{0}\approx {1}", r"{0}\equiv {1}", "{0}<{1}", r"{0}\le {1}", r"{0}\in {1}", "{0}:{1}", "{0}%{1}", r"{0}\mid {1}", r"\begin{{pmatrix}}{0}\\{1}\end{{pmatrix}}", r"\begin{{cases}}{0}\\{1}\end{{cases}}", r"{0}\text{{ {1}}}", r"{0}_{{{1}}}", r"\binom{{{0}}}{{{1}}}", r"\log_{{{0}}}({1})", r"\sqrt[{0}]{{{1}}}",
    r"\sum_{{n={0}}}^{{\infty}}({1})", r"\int_{{{0}}}^{{\infty}}({1})dx", r"\lim_{{x\to {0}}}({1})", "[{0} | {1}]", '{{"a": {0}, "b": {1}}}', "SELECT {0} FROM {1}", "{0} AND {1}", "{0} UNION {1}",
)  # fmt: skip
WRAPS: Final = (
    "${0}$", r"\[{0}\]", r"\boxed{{{0}}}", r"\text{{{0}}}", "**{0}**", "-{0}", "|{0}|", "({0})", r"\{{{0}\}}", r"\left[{0}\right]", r"\sin({0})", r"\ln({0})", r"\sqrt{{{0}}}", "({0})!", r"\lfloor {0}\rfloor", r"\neg {0}", "x={0}", "{0}=x", "{0}\\%", "{0}^\\circ", r"{0}\text{{ cm}}", "{0}'", r"\{{x : {0}\}}", r"\{{{0} \mid x\in\mathbb{{R}}\}}", r"\forall x: {0}", r"\overline{{{0}}}", "{0} " * 30, "{0}, " * 30, '"{0}"', "[{0}]", '{{"a": {0}}}', "SELECT {0}", "<answer>{0}</answer>", "#### {0}", r"x\cdot({0})", "({0})^{{T}}", r"0\cdot({0})", r"\max({0})", r"\mathrm{{{0}}}", r"\not{0}", "{0}\u200b",
)  # fmt: skip
LISTED: Final = (
    ", ".join(map(str, range(200))), " ".join(map(str, range(300))), " or ".join(map(str, range(60))), r"\{" + ",".join(map(str, range(-99, 99))) + r"\}", "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "[" + ", ".join(map(str, range(100))) + "]", "=".join(map(str, range(9))), "the a an of in to is was for on " * 20, "7" * 1_000, "x" * 70_000, "#### ".join(map(str, range(99))),
)  # fmt: skip


def composed(rng: random.Random, depth: int = 3) -> str:
    """A text of a small grammar: atoms, wrapped and put beside each other."""
    pick = rng.random()
    if depth == 0 or pick < 0.35:
        return rng.choice(ATOMS)
    if pick < 0.6:
        return rng.choice(WRAPS).format(composed(rng, depth - 1))
    return rng.choice(FRAMES).format(composed(rng, depth - 1), composed(rng, depth - 1))


class Worth:
    """One rule or comparator with its golds, and what a text is worth there above nonsense."""

    def __init__(self, name: str, golds: Sequence[Any]) -> None:
        self.name = name
        self.golds = {json.dumps(gold): gold for gold in golds}
        self._floor = self._values(NONSENSE)

    def __call__(self, text: str) -> dict[str, float]:
        """The golds for which a text is worth more than nonsense, and how much more."""
        found = self._values(text)
        return {gold: min(more, 1.0) for gold, value in found.items() if (more := value - self._floor[gold]) > 0}

    def _values(self, text: str) -> dict[str, float]:
        raise NotImplementedError


class OfRule(Worth):
    """A rule of the registry."""

    def __init__(self, rule: Rule, runner: asyncio.Runner) -> None:
        self._rule, self._runner = rule, runner
        self._term = compile_term(rule=rule.name, expect="{{ task.gold }}", **rule.keys)
        super().__init__(" ".join([rule.name, *map(str, rule.keys.values())]), rule.golds)

    def _values(self, text: str) -> dict[str, float]:
        return self._runner.run(self._measured(text))

    async def _measured(self, text: str) -> dict[str, float]:
        found, names = dict.fromkeys(self.golds, 0.0), list(self.golds)
        # A process compares mathematics: of several golds at once it says that none is met, or that it takes too long.
        size = _AT_ONCE if self._rule.name == "math_equal" else 1
        for some in (names[at : at + size] for at in range(0, len(names), size)):
            once = await self._best(text, [self.golds[name] for name in some]) if size > 1 else Measured(1.0)
            if once.value:
                found |= {name: (await self._best(text, self.golds[name])).value or 0.0 for name in some}
            elif str(once.details.get("note")).startswith("takes"):
                break
        return found

    async def _best(self, text: str, gold: Any) -> Measured:
        found = [await self._measured_in(one) for one in self._contexts(text, gold)]
        return max(found, key=lambda one: one.value or 0.0)

    def _contexts(self, text: str, gold: Any) -> Iterator[RewardContext]:
        if self._rule.name == "calls_match":
            yield reward_context(task={"gold": gold}, turns=[turn(calls=_calls(text))])
            return
        for form in self._rule.forms:
            yield reward_context(answer=text, task={"gold": gold}, turns=[turn(form.format(text))])

    async def _measured_in(self, context: RewardContext) -> Measured:
        if self._term.measure is not None:
            return self._term.measure(context)
        assert self._term.measure_async is not None
        return await self._term.measure_async(context)


class OfComparator(Worth):
    """A comparator of `verify`, over what a tool may give: a text, or the value that it writes as JSON."""

    def __init__(self, by: str) -> None:
        self._compare = compile_comparator(by, TermCompileContext(Path()))
        super().__init__(f"verify {by}", [gold for gold in RESULTS if self._is_fit(gold)])

    def _is_fit(self, gold: Any) -> bool:
        with suppress(RewardError):
            self._compare(Side(NONSENSE), _side(gold))
            return True
        return False

    def _values(self, text: str) -> dict[str, float]:
        mine = [Side(text), _side(_as_json(text))]
        return {
            name: max(_value_of(self._compare(one, _side(gold))) for one in mine) for name, gold in self.golds.items()
        }


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _side(value: Any) -> Side:
    return Side(value) if isinstance(value, str) else Side(json.dumps(value), value)


def _value_of(found: float | Measured) -> float:
    return float(found.value or 0) if isinstance(found, Measured) else found


def _calls(text: str) -> list[ToolCall]:
    """The calls that a text writes as JSON; one with the text as its argument where it writes none."""
    found = _as_json(text)
    with suppress(AttributeError, KeyError, TypeError):
        return [ToolCall(str(one["name"]), dict(one["arguments"])) for one in found]
    return [ToolCall("f", {"x": found})]


class Earns:
    """All rules and comparators; `math_equal`, which takes a process, over each fourth text.

    Args:
        without: leaves this rule out.
    """

    def __init__(self, *, without: str = "") -> None:
        self._runner = asyncio.Runner()
        self.worths: list[Worth] = [OfRule(rule, self._runner) for rule in RULES if rule.name != without]
        self.worths += map(OfComparator, COMPARATORS)
        self.seeds = [*ATOMS, *LISTED]
        places = (part for frame in (*FRAMES, *WRAPS) for part in _PLACE.split(frame))
        self.parts = [*ATOMS, *places, *map(str, MATHEMATICS)]
        self.height = 1
        """How many golds the last text earned: the higher, the more it is changed further."""

    def run(self, text: str, which: int | None = None) -> Hashable:
        found = {}
        for worth in self.worths:
            if which is None or which % 4 == 0 or not worth.name.startswith("math_equal"):
                found[worth.name] = earned = worth(text)
                total = math.fsum(earned.values())
                assert total <= MOST, f"law: {worth.name} pays no answer everywhere; {total:g} for {list(earned)[:9]}"
        self.height = max(map(len, found.values()), default=0)
        return tuple((name, *earned) for name, earned in found.items() if earned)

    def close(self) -> None:
        self._runner.close()
