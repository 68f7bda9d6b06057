"""Arithmetic as people write it: exact on integers and fractions, bounded in size and time, never `eval`.

sum     := product (("+" | "-") product)*
product := signed (("*" | "×" | "x" | "/" | "÷" | "//" | "%" | "of") signed | "(" sum ")")*
signed  := ("-" | "+") signed | power
power   := percent (("**" | "^") signed)?
percent := atom "%"*                      "%" is a percentage where no operand follows, the remainder otherwise
atom    := number | constant | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Final

from rlenv._base.text import all_known

Number = int | Fraction | float

MAX_CHARS: Final = 1_000
_MAX_DEPTH = 50
_MAX_BITS = 4_096
_MAX_EXPONENT = 1_000
_TOO_LARGE = "the result is too large (more than 1,200 digits)"


class CannotCalculate(Exception):
    """The expression cannot be calculated; the message says why, for the model."""


def _simplify(value: Number) -> Number:
    """The value in its simplest type and within the size that is kept exact.

    Raises CannotCalculate: it is too large, or not a real number.
    """
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise CannotCalculate(_TOO_LARGE)
        return value
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return _simplify(value.numerator)
        if value.denominator.bit_length() > _MAX_BITS or value.numerator.bit_length() > _MAX_BITS:
            return _simplify(value.numerator / value.denominator)
        return value
    if not math.isfinite(value):
        raise CannotCalculate(_TOO_LARGE)
    return value


def _divide(left: Number, right: Number) -> Number:
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    if isinstance(left, int) and isinstance(right, int):
        whole, rest = divmod(left, right)
        return Fraction(left, right) if rest else whole
    return Fraction(left) / right


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, int) and not isinstance(base, float):
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        size = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
        if size * abs(exponent) <= _MAX_BITS:
            return Fraction(base) ** exponent
        if isinstance(base, int) and exponent > 0:
            raise CannotCalculate(_TOO_LARGE)
    if base < 0 and exponent != int(exponent):
        raise CannotCalculate("a negative number to a fractional power is not a real number")
    return _square_root(base) if exponent == Fraction(1, 2) else math.pow(base, exponent)


def _square_root(value: Number) -> Number:
    if value < 0:
        raise CannotCalculate("the square root of a negative number is not a real number")
    if not isinstance(value, float):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _to_int(value: Number, what: str) -> int:
    if value != int(value):
        raise CannotCalculate(f"{what} takes whole numbers")
    return int(value)


def _round(value: Number, places: Number = 0) -> Number:
    """Halves go away from zero, as people round."""
    digits = _to_int(places, "the second argument of round")
    if abs(digits) > _MAX_EXPONENT:
        raise CannotCalculate("round takes at most 1,000 places")
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    scale = Fraction(10) ** digits
    size = math.floor(abs(exact) * scale + Fraction(1, 2)) / scale
    return -size if exact < 0 else size


def _log(value: Number, base: Number | None = None) -> Number:
    if value <= 0 or (base is not None and (base <= 0 or base == 1)):
        raise CannotCalculate("log takes a number above 0, and a base above 0 other than 1")
    if base == 10:
        return math.log10(value)
    if base == 2:
        return math.log2(value)
    return math.log(value) if base is None else math.log(value) / math.log(base)


def _factorial(value: Number) -> Number:
    number = _to_int(value, "factorial")
    if not 0 <= number <= 1_000:
        raise CannotCalculate("factorial takes a whole number from 0 to 1,000")
    return math.factorial(number)


def _gcd(*values: Number) -> Number:
    return math.gcd(*(_to_int(value, "gcd") for value in values))


def _lcm(*values: Number) -> Number:
    result = 1
    for value in values:
        result = math.lcm(result, _to_int(value, "lcm"))
        _simplify(result)
    return result


def _sum(*values: Number) -> Number:
    result: Number = 0
    for value in values:
        result = _simplify(result + value)  # 99 fractions have a denominator of 400,000 bits, which takes 0.2 s
    return result


_MANY = 99
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "acos": (math.acos, 1, 1),
    "asin": (math.asin, 1, 1),
    "atan": (math.atan, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "cos": (math.cos, 1, 1),
    "exp": (math.exp, 1, 1),
    "factorial": (_factorial, 1, 1),
    "floor": (math.floor, 1, 1),
    "gcd": (_gcd, 1, _MANY),
    "lcm": (_lcm, 1, _MANY),
    "ln": (_log, 1, 1),
    "log": (_log, 1, 2),
    "log10": (lambda value: _log(value, 10), 1, 1),
    "log2": (lambda value: _log(value, 2), 1, 1),
    "max": (lambda *values: max(values), 1, _MANY),
    "min": (lambda *values: min(values), 1, _MANY),
    "pow": (_power, 2, 2),
    "round": (_round, 1, 2),
    "sin": (math.sin, 1, 1),
    "sqrt": (_square_root, 1, 1),
    "sum": (_sum, 1, _MANY),
    "tan": (math.tan, 1, 1),
}
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "π": math.pi, "e": math.e}

_NUMBER = r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_AMBIGUOUS = r"(?P<ambiguous>,0\d\d(?!\d))|"
_REST = r"|(?P<name>[^\W\d_]+\d*)|(?P<sign>\*\*|//|[-+*/%^(),])|(?P<other>\S))"
_SKIP = r"[\s$€£]*(?:"
_IN_CALL = re.compile(_SKIP + _AMBIGUOUS + _NUMBER + _REST)
_THOUSANDS = r"(?P<thousands>\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?)|"
_OUTSIDE = re.compile(_SKIP + _THOUSANDS + _NUMBER + _REST)
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "％": "%"})
_SIMPLE = re.compile(r"\s*(\d{1,15})\s*([-+*])\s*(\d{1,15})\s*")

# kind ("number", "name", a sign, or "end"), text, offset in the expression
_Token = tuple[str, str, int]


def _tokenize(text: str) -> list[_Token]:
    found: list[_Token] = []
    # True for each open parenthesis that belongs to a function: there a comma separates arguments.
    calls: list[bool] = []
    place = 0
    while (match := (_IN_CALL if calls and calls[-1] else _OUTSIDE).match(text, place)) is not None:
        kind, start = match.lastgroup or "", match.start(match.lastgroup or 0)
        word = match[kind]
        place = match.end()
        if kind == "other":
            raise CannotCalculate(f"cannot read '{word}' at character {start + 1}")
        if kind == "ambiguous":
            raise CannotCalculate(
                f"'{word}' at character {start + 1}: a comma separates the arguments of a function; "
                "write numbers there without thousands commas"
            )
        if word == "(":
            calls.append(bool(found) and found[-1][0] == "name" and found[-1][1] not in ("of", "x"))
            if len(calls) > _MAX_DEPTH:
                raise CannotCalculate(f"the parentheses are nested more than {_MAX_DEPTH} deep")
        elif word == ")" and calls:
            calls.pop()
        if kind == "thousands":
            kind, word = "number", word.replace(",", "")
        elif kind == "name":
            word = word.lower()
        found.append((word if kind == "sign" else kind, word, start))
    found.append(("end", "", len(text)))
    return found


class _Reader:
    """Calculates while it reads, from left to right."""

    __slots__ = ("at", "depth", "tokens")

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    def read_all(self) -> Number:
        value = self.sum()
        self.expect("end", "an operator")
        return value

    def expect(self, kind: str, expected: str) -> None:
        if self.tokens[self.at][0] != kind:
            raise self.unexpected_token(expected)
        self.at += 1

    def unexpected_token(self, expected: str) -> CannotCalculate:
        kind, text, place = self.tokens[self.at]
        if kind == "end":
            return CannotCalculate(f"the expression ends where {expected} is expected")
        if kind == ",":
            return CannotCalculate(
                f"found ',' at character {place + 1}, expected {expected}; a comma separates the arguments of a "
                "function or, before three digits, the thousands of a number"
            )
        return CannotCalculate(f"found '{text}' at character {place + 1}, expected {expected}")

    def sum(self) -> Number:
        value = self.product()
        while (kind := self.tokens[self.at][0]) in ("+", "-"):
            self.at += 1
            right = self.product()
            value = _simplify(value + right if kind == "+" else value - right)
        return value

    def product(self) -> Number:
        value = self.signed()
        while True:
            kind, text, _ = self.tokens[self.at]
            if kind == "*" or (kind == "name" and text in ("x", "of")):
                self.at += 1
                value = _simplify(value * self.signed())
            elif kind == "(":
                value = _simplify(value * self.signed())
            elif kind in ("/", "//", "%"):
                self.at += 1
                right = self.signed()
                if kind == "/":
                    value = _simplify(_divide(value, right))
                else:
                    value = _simplify(value // right if kind == "//" else value % right)
            else:
                return value

    def signed(self) -> Number:
        sign = 1
        while (kind := self.tokens[self.at][0]) in ("-", "+"):
            sign = -sign if kind == "-" else sign
            self.at += 1
        return sign * self.power()

    def power(self) -> Number:
        value = self.percent()
        if self.tokens[self.at][0] in ("**", "^"):
            self.at += 1
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise CannotCalculate(f"more than {_MAX_DEPTH} powers follow each other")
            value = _simplify(_power(value, self.signed()))
            self.depth -= 1
        return value

    def percent(self) -> Number:
        value = self.atom()
        while self.tokens[self.at][0] == "%" and not self.operand_follows(self.at + 1):
            self.at += 1
            value = _simplify(_divide(value, 100))
        return value

    def operand_follows(self, at: int) -> bool:
        kind, text, _ = self.tokens[at]
        return kind in ("number", "(") or (kind == "name" and text not in ("x", "of"))

    def atom(self) -> Number:
        kind, text, place = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return _parse_number(text)
        if kind == "(":
            self.at += 1
            value = self.sum()
            self.expect(")", "')'")
            return value
        if kind == "name" and text in _CONSTANTS:
            self.at += 1
            return _CONSTANTS[text]
        if kind == "name":
            return self.call(text, place)
        raise self.unexpected_token("a number")

    def call(self, name: str, place: int) -> Number:
        if name not in _FUNCTIONS:
            known = all_known(name, (*_FUNCTIONS, "pi", "e"), "known:")
            raise CannotCalculate(f"unknown name '{name[:30]}' at character {place + 1}; {known}")
        function, least, most = _FUNCTIONS[name]
        self.at += 1
        self.expect("(", f"'(' after {name}")
        values = [self.sum()]
        while self.tokens[self.at][0] == ",":
            self.at += 1
            values.append(self.sum())
        self.expect(")", "')' or ','")
        if not least <= len(values) <= most:
            wanted = str(least) if least == most else f"{least} or {most}" if most < _MANY else f"at least {least}"
            raise CannotCalculate(f"{name} takes {wanted} argument{'s' if most > 1 else ''}, found {len(values)}")
        return _simplify(function(*values))


def _parse_number(text: str) -> Number:
    if text.isdecimal():
        return int(text)
    exponent = text.lower().partition("e")[2]
    if len(exponent) > 5 or (exponent and abs(int(exponent)) > _MAX_EXPONENT):
        raise CannotCalculate(f"the exponent of {text[:30]} is too large (at most {_MAX_EXPONENT:,})")
    return _simplify(Fraction(text))


def calculate(expression: str) -> Number:
    """The value of `expression`: exact unless a root, a logarithm or the like made it approximate.

    Raises:
        CannotCalculate: it cannot be read or has no value; the message is written for the model.
    """
    if simple := _SIMPLE.fullmatch(expression):
        left, sign, right = int(simple[1]), simple[2], int(simple[3])
        return left + right if sign == "+" else left - right if sign == "-" else left * right
    if len(expression) > MAX_CHARS:
        raise CannotCalculate(f"the expression has {len(expression):,} characters; at most {MAX_CHARS:,} are read")
    text = expression.translate(_SIGNS).rstrip().removesuffix("=")
    if not text.strip():
        raise CannotCalculate("the expression is empty")
    try:
        return _Reader(_tokenize(text)).read_all()
    except ZeroDivisionError:
        raise CannotCalculate("division by zero") from None
    except OverflowError:
        raise CannotCalculate(_TOO_LARGE) from None
    except ValueError:
        raise CannotCalculate("a function is not defined for its argument") from None


def format_number(value: Number) -> str:
    """The value as people write it.

    Whole numbers in full; others exactly where 15 significant digits are enough, else rounded to 12, though never
    before the decimal point. Below 1e-9 in scientific notation.
    """
    if isinstance(value, int):
        return str(value)
    if value == 0:
        return "0"
    if -1e-9 < value < 1e-9 or (isinstance(value, float) and not -1e21 < value < 1e21):
        return f"{float(value):.12g}"
    exact = Fraction(repr(value)) if isinstance(value, float) else value
    digits = len(str(abs(int(exact))))
    if isinstance(value, Fraction):
        context = Context(prec=max(15, digits))
        shown = context.divide(Decimal(exact.numerator), Decimal(exact.denominator))
        if not context.flags[Inexact]:
            return _write_decimal(shown)
    context = Context(prec=max(12, digits))
    return _write_decimal(context.divide(Decimal(exact.numerator), Decimal(exact.denominator)))


def _write_decimal(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
