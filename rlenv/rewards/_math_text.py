"""The spelling of an answer or an accepted one before any algebra: one expression, bare of the text around it.

The library that reads expressions looks for something readable in a text and drops the rest, units and words
included. Here the text as a whole has to be the expression, so that "the answer is not 7" is not 7.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rlenv.rewards.normalise import ascii_form

_WRAPPERS = (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"))
_BOX = re.compile(r"\\(?:boxed|fbox|displaystyle)\s*\{")
_RUN = re.compile(r"\s{3,}")
_LARGE = re.compile(r"(?:[eE]|\^\s*\{?)\s*[+-]?\d{4}")
_COMMANDS = dict(zip("·×÷±≤≥≠∞∪", "cdot times div pm le ge ne infty cup".split(), strict=True))
_SIGNS = str.maketrans({"\u2013": "-", "\u2014": "-", **{sign: f"\\{name} " for sign, name in _COMMANDS.items()}})
_RAISED, _RAISED_DIGITS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"), str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_ROOT_OF = re.compile(r"√\s?(?:(\d{1,40}|[A-Za-z])|(?=\())")
_ENDING = re.compile(r"(?<=\d)(?:\s?[€£¥¢]|\s?\^\s?(?:\{\s?)?\\(?:text|mathrm)\s?\{(?:st|nd|rd|th)\}\}?)")
_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\})(?=\d{3}(?!\d))")
_SPACED = re.compile(r"[+-]?\s*[1-9]\d{0,2}(?: \d{3}){1,20}(?:\.\d*)?")
_EXPONENT = re.compile(r"(?<![\w\\.])(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})[eE]([+-]?\d{1,6})(?![\w.])")
_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s?\(")
_NUMBER = re.compile(
    r"([+-]?)\s*(?:([1-9]\d{0,2}(?:,\d{3})+|\d+)(\.\d*)?|(\.\d+))"
    r"(?:\s*(?:[eE]|(?:\*|\\times|\\cdot)\s*10\s*\^\s*(?P<open>\{)?)\s*([+-]?\d{1,4})\s*(?(open)\}))?"
)
_RATIO = re.compile(r"([+-]?)\s*(?:\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}|(\d+)\s*/\s*(\d+))")
_MIXED = re.compile(r"([+-]?)\s*(\d+)(?:\s+(\d+)\s*/\s*(\d+)|\s*\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\})")
_BESIDE = re.compile(
    r"(?<![\w.^])(?<!frac\s)(?<!binom\s)\d(?:[\d.,]*[\d.])?(?:\s|\\(?:q?quad(?![A-Za-z])|[ ;:]))+\.?\d"
)
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UNIT_BETWEEN = re.compile(
    r"\d\s*(?:\\(?:text|textrm|mathrm|mbox|rm)\s*\{\s*(?!and|or)[A-Za-z]+\.?\s*\}\s*|[A-WYZa-wyz]\s+)\.?\d"
)
_OPERATOR = re.compile(
    r"\\(?:cdot|times|div|pm|mp|leq?|geq?|neq?|in|notin|cup|cap|setminus|to|mid|lt|gt|equiv|approx|circ)(?![A-Za-z])"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_GOES_ON = re.compile(r"[\s,.:;]+(?:[A-Za-z0-9(@]|-\S)")
_KNOWN = frozenset(
    "sin cos tan sec csc cot sinh cosh tanh arcsin arccos arctan asin acos atan log ln lg exp sqrt cbrt pi infty"
    " infinity inf mod gcd lcm max min sup lim abs det deg degree degrees rad alpha beta gamma delta theta lambda mu"
    " sigma tau phi omega rho".split()
)
# Words of two letters may be a product of two names; these are none.
_SHORT_WORDS = frozenset("an as at be by he if in is it me my no of ok on or so to up us we".split())
_NO_UNIT = frozenset("and but it no nor not or so wrong".split())
_UNIT = re.compile(
    r"(?<=[\d)}])\s*(?:\\[,; ]\s*)*(?:\\(?:text|textrm|mathrm|mbox|rm)\s*\{([^{}]*)\}|\s([A-Za-z][A-Za-z ./]*))"
    r"\s*(\^\s*\{?\s*[23]\s*\}?)?"
)
_UNITS = {  # the s of a plural is gone by then
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre", "m": "meter metre",
    "in": "inche inch", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram",
    "s": "second sec", "min": "minute", "h": "hour hr", "l": "liter litre", "°": "degree deg", "": "unit",
}  # fmt: skip
_UNIT_WORDS = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_LETTERS = frozenset("cghlmst°")
_DEGREE = re.compile(r"(?<=[\d)}])\s*\^\s*\{?\s*\\circ\s*\}?\Z")
_LAST_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+\Z")
_NAMES = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
_SUM = re.compile(r"[\w)}\]]\s*[+-]")
_BEHIND_COMMAND = re.compile(r"\\[A-Za-z]+\s*\Z")
_DEGREES = r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|\^?\s*°|\s(?:degrees?|deg)(?![A-Za-z]))"
_OF_DEGREES = re.compile(
    r"\\?(?<![A-Za-z])(sin|cos|tan|cot|sec|csc)((?:\s*\^\s*\{?\s*\d\s*\}?)?)\s*"
    rf"(?:(?:\\left)?\(\s*(-?\d+(?:\.\d+)?){_DEGREES}\s*(?:\\right)?\)|\{{\s*(-?\d+(?:\.\d+)?){_DEGREES}\s*\}}"
    rf"|(-?\d+(?:\.\d+)?){_DEGREES})"
)
_RUNS = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_RATIOS = re.compile(r"\d{1,40}(?:\.\d{1,40})?(?: ?: ?\d{1,40}(?:\.\d{1,40})?){2,20}")
_POINTS = re.compile(r"[A-Z]{3,40}")
_TIMES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_REPEATS = re.compile(r"([+-]?)(\d{0,40})\.(\d{0,40})\\(?:overline|bar|dot)\s*(?:\{(\d{1,40})\}|(\d))")
_EMPTY = re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}|∅")
_BASED = re.compile(
    r"(?<![\w\\.^])(?:\((?P<in>[0-9A-Fa-f]{1,200})\)|(?P<on>\d[0-9A-Fa-f]{0,199}|[A-F][0-9A-F]{0,199}))\s*_\s*"
    r"(?:\{\s*(?P<set>\d{1,2})\s*\}|(?P<one>\d))(?![\w.])"
)
_ABOUT = re.compile(r"(?:\\(?:approx|approxeq|sim|simeq|cong)(?![A-Za-z])|≈|~)\s*")
_ONLY_ONE = re.compile(r"\[([^\[\],]*)\]|\\\{([^{},]*)\\\}")
_PLAIN_WORD = re.compile(r"(?<![\\A-Za-z])(pi|theta|alpha|beta|gamma|infinity|infty)(?![A-Za-z])")
_GREEK = (
    r"(?:var)?(?:[aA]lpha|[bB]eta|[gG]amma|[dD]elta|[eE]psilon|[zZ]eta|[eE]ta|[tT]heta|[iI]ota|[kK]appa|[lL]ambda|[mM]u|"
    r"[nN]u|[xX]i|[pP]i|[rR]ho|[sS]igma|[tT]au|[uU]psilon|[pP]hi|[cC]hi|[pP]si|[oO]mega|ell)"
)
_NAME = re.compile(
    rf"[A-Za-z](?:_?\{{?\w{{0,12}}\}}?)?(?:\([A-Za-z0-9, ]{{0,24}}\))?'{{0,3}}|\\{_GREEK}(?:_\{{?\w{{0,12}}\}}?)?"
)


def bare(text: str) -> str:
    """The expression that `text` writes: digits and signs in ASCII, without wrappers, dollars and set thousands.

    Wrappers are emphasis, math delimiters and a box around the whole. A percentage is its hundredth, a mixed number
    its sum.
    """
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_RAISED_DIGITS)}}}", text.translate(_SIGNS))
        text = ascii_form(_ROOT_OF.sub(lambda found: rf"\sqrt{{{found[1]}}}" if found[1] else "sqrt", text))
    # Between two optional parts a run of spaces can be split at any place, and there are many such pairs below.
    text = _unwrapped(_OF_DEGREES.sub(_in_radians, _RUN.sub("  ", text)))
    if (repeats := _REPEATS.fullmatch(text)) is not None:
        return _written(_repeating(repeats))
    text = _BASED.sub(_in_ten, text).replace("°", r"^{\circ}").replace("**", "^")
    text = _unended(re.sub(r"^([+-]?)\s*(?:\\?\$|[€£¥])\s*", r"\1", text))
    text = _EMPTY.sub(r"\\emptyset ", _THOUSANDS.sub("", text)).strip()
    text = text.replace(" ", "") if _SPACED.fullmatch(text) else text
    percent = re.fullmatch(r"([^%]*?)\s*(?:\\?%|percent)", text)
    if percent is not None:
        text = percent[1].strip()
        number = plain_number(text) if _LARGE.search(text) is None else None
        return rf"\frac{{{text}}}{{100}}" if number is None else _written(number / 100)
    mixed = _MIXED.fullmatch(text)
    if mixed is not None:
        value = _sum(mixed)
        if value is not None:
            return _written(value)
    if plain_number(text) is not None and "e" not in text.lower():
        return text
    text = _PLAIN_WORD.sub(lambda found: "\\infty " if found[1] == "infinity" else f"\\{found[1]} ", text)
    return _rooted(_EXPONENT.sub(r"\1*10^{\2}", text))


def _unended(text: str) -> str:
    """Without what may follow an expression: a sign of money, the ending of an ordinal, a mark, spaces of TeX's."""
    text = text.rstrip(",;~\\ ")
    *_, last = [None, *_ENDING.finditer(text)]
    text = text[: last.start()] if last is not None and last.end() == len(text) else text
    return text[:1] + text[1:].replace("~", " ")  # at the beginning it says that a number is near


def _sum(mixed: re.Match[str]) -> Fraction | None:
    """The value of a mixed number; None where its fraction is none below one."""
    sign, whole, *parts = mixed.groups()
    above, below = (int(part) for part in parts if part is not None)
    return (-1 if sign == "-" else 1) * (int(whole) + Fraction(above, below)) if above < below else None


def about(text: str) -> str:
    """The number that a text says it is near to, "" where it says no such thing."""
    found = _ABOUT.match(text)
    return text[found.end() :] if found is not None else ""


def holds_one(text: str) -> str:
    """`[` or `{` where `text` is a list or a set of one element, "" elsewhere."""
    text = text.replace("\\left", "").replace("\\right", "").strip()
    return text.removeprefix("\\")[0] if _ONLY_ONE.fullmatch(text) else ""


def _in_radians(found: re.Match[str]) -> str:
    name, power, *numbers = found.groups()
    turned = Fraction(next(number for number in numbers if number)) / 180
    return rf"\{name}{power}(\frac{{{turned.numerator}\pi}}{{{turned.denominator}}})"


def _repeating(found: re.Match[str]) -> Fraction:
    sign, whole, once, *again = found.groups()
    period = again[0] or again[1]
    number = Fraction(f"{whole or 0}.{once or 0}") + Fraction(int(period), 10 ** len(once) * (10 ** len(period) - 1))
    return -number if sign == "-" else number


def _in_ten(found: re.Match[str]) -> str:
    """A number that names its base, in base ten; as it stands where it has a digit that the base has not."""
    base = int(found["set"] or found["one"])
    try:
        return str(int(found["in"] or found["on"], base)) if 2 <= base <= 36 else found[0]
    except ValueError:
        return found[0]


def _rooted(text: str) -> str:
    """`sqrt(x)` as `\\sqrt{x}`; what does not close stays as it is."""
    for _ in range(16):
        found = _ROOT.search(text)
        if found is None:
            break
        end = _closing(text, found.end() - 1, "()")
        if end < 0:
            break
        text = f"{text[: found.start()]}\\sqrt{{{text[found.end() : end]}}}{text[end + 1 :]}"
    return text


def _written(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else rf"\frac{{{number.numerator}}}{{{number.denominator}}}"


def _unwrapped(text: str) -> str:
    for _ in range(8):
        before = text
        text = text.strip()
        for opening, closing in _WRAPPERS:
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : -len(closing)]
                # What is wrapped twice over are two expressions; an escaped closing mark is none.
                seen = inner.replace("\\$", "")
                if opening not in seen and closing not in seen and not inner.endswith("\\"):
                    text = inner
        box = _BOX.match(text)
        if box is not None and _closing(text, box.end() - 1) == len(text) - 1:
            text = text[box.end() : -1]
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if text == before:
            break
    return text.strip()


def _closing(text: str, opening: int, pair: str = "{}") -> int:
    """The position of the bracket that closes the one at `opening`, -1 where there is none."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == pair[0]:
            depth += 1
        elif text[index] == pair[1]:
            depth -= 1
            if depth == 0:
                return index
    return -1


def plain_number(text: str) -> Fraction | None:
    """The exact number where the whole text is one: whole, decimal, with exponent, or a ratio of whole ones."""
    text = text.strip()
    if (number := _NUMBER.fullmatch(text)) is not None:
        sign, whole, fraction, only, _, exponent = number.groups("")
        found = Fraction(f"{whole.replace(',', '') or '0'}{fraction or only}")
        if exponent:
            found *= Fraction(10) ** int(exponent)
    elif (ratio := _RATIO.fullmatch(text)) is not None:
        sign = ratio[1]
        above, below = (int(part) for part in ratio.groups()[1:] if part is not None)
        if not below:
            return None
        found = Fraction(above, below)
    else:
        return None
    return -found if sign == "-" else found


def words(text: str) -> frozenset[str]:
    """The words of a text, in lower case: runs of letters, outside of commands but inside of `\\text{…}`."""
    return frozenset(word.lower() for word in _WORD.findall(_flat(text)))


def _flat(text: str) -> str:
    text = _TEXT.sub(r" \1 ", text)
    return _COMMAND.sub(" @ ", _OPERATOR.sub(" + ", text))


def is_prose(text: str, *, allowed: frozenset[str]) -> bool:
    """True if `text` is no expression: words around one, or numbers side by side, which are neither sum nor product.

    `allowed` are the words that it may hold.
    """
    if _BESIDE.search(_MIXED.sub(lambda mixed: str(_sum(mixed) or mixed[0]), _TEXT.sub(r" \1 ", text))):
        return True
    flat = _flat(text)
    for match in _WORD.finditer(flat):
        word = match[0].lower()
        if word in _KNOWN or word in allowed or (len(word) == 2 and word not in _SHORT_WORDS):
            continue
        if word in _NO_UNIT or _GOES_ON.match(flat, match.end()):
            return True
    return False


def in_two_units(text: str) -> bool:
    """True of a measure such as `5\\text{ ft } 6\\text{ in}` or `5h 6m`, of which the library reads the first part."""
    return _UNIT_BETWEEN.search(text) is not None


def unspaced(text: str) -> str:
    """A text without spaces and what marks its words as such."""
    return "".join(_TEXT.sub(r"\1", text).split())


def has_names(text: str) -> bool:
    """True if an expression holds letters that are neither a command nor a text."""
    return _NAMES.search(_COMMAND.sub(" ", _TEXT.sub(" ", text))) is not None


def ends_in_name(text: str, *, may_be_unit: bool | None = None) -> bool:
    """True if the letters at the end of an expression are a factor of it, as in `5+2t`, and no unit of a number.

    A single letter behind a number alone is a factor where it stands right behind it, unless it `may_be_unit`.
    """
    last = _LAST_NAME.search(text)
    if last is None:
        return False
    before, is_single = text[: last.start()], len(last[0]) == 1
    is_set_off = before[-1:].isspace() and _BEHIND_COMMAND.search(before) is None
    if _SUM.search(before) or has_names(before):
        return is_single or not is_set_off
    return is_single and not (is_set_off if may_be_unit is None else may_be_unit)


def has_unit(text: str) -> bool:
    """True if an expression may carry a unit: it holds no names, or ends in one that is a unit."""
    return not has_names(text) or (_LAST_NAME.search(text) is not None and not ends_in_name(text))


def split_unit(text: str) -> tuple[str, str]:
    """The text before the unit that a number carries at its end, and the unit in one spelling ("" for none)."""
    if (degree := _DEGREE.search(text)) is not None:
        return text[: degree.start()], "°"
    *_, last = [None, *_UNIT.finditer(text)]
    if last is None or last.end() != len(text):
        return text, ""
    named = " ".join((last[1] or last[2] or "").replace(".", "").lower().split())
    if len(named) > 3 or named in ("hrs", "kgs", "cms"):
        named = named.removesuffix("s")
    named = _UNIT_WORDS.get(named, named)
    if all(len(word) == 1 for word in named.split()) and named not in _LETTERS:
        return text, ""  # the names of a product
    power = re.sub(r"\D", "", last[3] or "")
    return text[: last.start()].strip(), named + (f"^{power}" if power else "")


def same_names(mine: str, gold: str) -> bool | None:
    """True if two ratios of three, or the names of points, are the same; None where it is not these that are compared.

    The library reads them as divisions and products.
    """
    if _RATIOS.fullmatch(mine) or _RATIOS.fullmatch(gold):
        if not (_RATIOS.fullmatch(mine) and _RATIOS.fullmatch(gold)):
            return False
        one, other = ([Fraction(part) for part in text.replace(" ", "").split(":")] for text in (mine, gold))
        return [part / (sum(one) or 1) for part in one] == [part / (sum(other) or 1) for part in other]
    return mine == gold if _POINTS.fullmatch(mine) and _POINTS.fullmatch(gold) else None


def multiplied(text: str) -> str:
    """`2.5 million` as one number."""
    number, unit = split_unit(text)
    value = plain_number(number) if unit in _TIMES else None
    return text if value is None else _written(value * _TIMES[unit])


def cased(*given: str) -> tuple[str, ...]:
    """The texts with another letter for each capital that is a name beside the same small one, as in `R - r`.

    The library reads both as one name.
    """
    names = [
        {letter for run in _RUNS.findall(text) if len(run) < 3 and run.isalpha() for letter in run} for text in given
    ]
    both = sorted({one for held in names for one in held if one.isupper() and one.lower() in held})
    unused = [one for one in "kqwvzjyxuabcfghlmnoprst" if not any(one in text.lower() for text in given)]
    if not both or len(both) > len(unused):
        return given
    table = str.maketrans(dict(zip(both, unused, strict=False)))
    return tuple(_RUNS.sub(lambda run: run[0].translate(table) if len(run[0]) < 3 else run[0], text) for text in given)


def brackets(text: str) -> str:
    """The brackets of a list: `(`, `[`, `{`, or "," for a list without brackets; "" for a text that is no list."""
    text = text.replace("\\left", "").replace("\\right", "").strip()
    if "," not in text:
        return ""
    opening = text.removeprefix("\\")[:1]
    closing = text[-1:]
    return opening if opening in "([{" and closing in ")]}" else ","


def sides(text: str) -> tuple[str, tuple[str, ...]]:
    """The name that a chain of equations begins with ("" for none), and its sides: `x = 3 + 4 = 7` has the name `x`
    and the sides `3 + 4` and `7`; what is no equation is one side.
    """
    parts: list[str] = []
    begin = depth = 0
    for index, char in enumerate(text):
        if char in "{([":
            depth += 1
        elif char in "})]":
            depth -= 1
        elif char == "=" and depth <= 0 and text[index - 1 : index] not in ("<", ">", "!", ":", "\\", "="):
            parts.append(text[begin:index].strip())
            begin = index + 1
    parts.append(text[begin:].strip())
    if len(parts) > 1 and _NAME.fullmatch(parts[0]):
        return parts[0], tuple(parts[1:])
    return "", tuple(parts)
