"""The spelling of an answer or an accepted one before any algebra: its parts, bare of the text around them.

The library that reads expressions looks for something readable in a text and drops the rest, units and words
included. Here the text as a whole is a list, an equation, a number with a unit, an expression, or a text that is
compared as it is written, so that "the answer is not 7" is not 7.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from rlenv.rewards.normalise import ascii_form

_WRAPPERS = (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"))
_MARKED = r"\\(?:text|textrm|textbf|textit|textnormal|mathrm|mbox|operatorname)\s*\{"
_BOX = re.compile(rf"\\(?:boxed|fbox|displaystyle|mathbf)\s*\{{|{_MARKED}")
_RUN = re.compile(r"\s{3,}")
_LARGE = re.compile(r"(?:[eE]|\^\s*\{?)\s*[+-]?\d{4}")
_COMMANDS = dict(zip("·×÷±≤≥≠∞∪∅≈", "cdot times div pm le ge ne infty cup emptyset approx".split(), strict=True))
_SIGNS = str.maketrans({"\u2013": "-", "\u2014": "-", **{sign: f"\\{name} " for sign, name in _COMMANDS.items()}})
_RAISED, _RAISED_DIGITS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"), str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_ROOT_OF = re.compile(r"√\s?(?:(\d{1,40}|[A-Za-z])|(?=\())")
_ORDINAL = re.compile(r"(?<=\d)(?:\s?\^\s?(?:\{\s?)?\\(?:text|mathrm)\s?\{(?:st|nd|rd|th)\}\}?|st|nd|rd|th)\Z")
_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!\s?|\\[,!;: ]|\{,\})(?=\d{3}(?!\d))")
DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")
_SPELLINGS = {
    r"\\(?:left|right|middle)(?![A-Za-z])|(?<!\\)\\!": "",
    r"(?<!\\)\\[,;: ]|(?<!^)~|\\q?quad(?![A-Za-z])": " ",
    r"\^?\s?(?:°|\\degree(?![A-Za-z]))|\^\s?(?:\\circ(?![A-Za-z])|\{\s?\\circ\s?\})": r"^{\\circ}",
    r"^[Aa]ll real(?:s| numbers)$": r"\\mathbb{R}",
    r"\*\*": "^",
    r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}": r"\\emptyset ",
    r"\\backslash(?![A-Za-z])": r"\\setminus ",
    r"\^\s?\{\s?((?:\\prime\s?){1,3})\}": r"\1",
    r"\s?(?:\^\s?)?\\prime(?![A-Za-z])\s?": "'",
    r"\\(vec|mathbb)\s+([A-Za-z])": r"\\\1{\2}",
    r"(\\sqrt\s?\[\d{1,9}\]|\\pmod)\s?(\d)(?!\d)": r"\1{\2}",
    r"(?<=\d)\s?x\s?(?=10\s?\^)": r"\\times ",
    r"\{\s?([^{}\\]{1,40}?)\s?\\choose(?![A-Za-z])\s?([^{}\\]{1,40}?)\s?\}": r"\\binom{\1}{\2}",
    r"\\log\s?_\s?(?:e|\{\s?e\s?\})": r"\\ln ",
    r"^\\\{\s?([a-z])\s?(?:\\in\s?\\mathbb\{R\}\s?)?(?:\\mid(?![A-Za-z])|[|:])(?=.*\1)((?:(?!\\[{}]).)*)\\\}$": r"\2",
}
_SPACED = re.compile(r"[+-]?\s*[1-9]\d{0,2}(?: \d{3}){1,20}(?:\.\d*)?")
_EXPONENT = re.compile(r"(?<![\w\\.])(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})[eE]([+-]?\d{1,6})(?![\w.])")
_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s?\(")
_NUMBER = re.compile(
    r"([+-]?)\s*(?:([1-9]\d{0,2}(?:,\d{3})+|\d+)(\.\d*)?|(\.\d+))"
    r"(?:\s*(?:[eE]|(?:\*|\\times|\\cdot)\s*10\s*\^\s*(?P<open>\{)?)\s*([+-]?\d{1,4})\s*(?(open)\}))?"
)
_RATIO = re.compile(r"([+-]?)\s*(?:\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}|(\d+)\s*/\s*(\d+))")
_MIXED = re.compile(
    r"([+-]?)\s*(\d+)(?:\s+(\d+)\s*/\s*(\d+)|\s*\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)))"
)
_BESIDE = re.compile(r"(?<![\w.^])(?<!frac\s)(?<!binom\s)\d(?:[\d.,]*[\d.])?\s+\.?\d")
_TEXT = re.compile(_MARKED + r"((?:[^{}]|\{\d\})*)\}")
_COMMAND = re.compile(r"\\(?:begin|end)\s?\{[a-z*]{1,20}\}|\\[A-Za-z]+")
_FUNCTIONS = "sin cos tan sec csc cot sinh cosh tanh arcsin arccos arctan log ln exp"
_KNOWN = frozenset(
    f"{_FUNCTIONS} asin acos atan lg sqrt cbrt pi infty infinity inf mod gcd lcm max min sup lim abs det"
    " alpha beta gamma delta theta lambda mu sigma tau phi omega rho".split()
)
# Words of two or three letters may be a product of names; these are none.
_SHORT_WORDS = frozenset(
    "an as at be by he if in is it me my no of ok on or so to up us we and are but not nor odd one six ten the two yes"
    "".split()
)
_WORD = re.compile(r"[A-Za-z]{2,}")
_MOST_WORDS = 12
_VERBS = frozenset("are equal equals give gives has have hence is so therefore thus was were".split())
_AS_WRITTEN = re.compile(
    # Choices, points, the empty set, times, dates; and with what else there is primes, points, `12_2`, `5 h 6 min`.
    r"(?s)[A-Z]+|\\emptyset|[0-2]?\d:[0-5]\d|\d{1,4}([-/.])\d{1,2}\1\d{1,4}"
    r"|.*(?:'|[A-Z]{3}|\\equiv|(?<![\w^.])(?:\d+|\(\w+\))\s*_"
    rf"|\d\s*(?:{_MARKED}\s*[A-Za-z]+\.?\s*\}}\s*|[A-WYZa-wyz][a-z]{{0,9}}\s+)\.?\d).*"
)
_UNITS = {  # the s of a plural is gone by then
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre kms", "m": "meter metre",
    "in": "inche inch", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram kgs",
    "s": "second sec", "min": "minute", "h": "hour hr hrs", "l": "liter litre", "ml": "milliliter", "lb": "pound £",
    "degree": "deg °", "c": "celsius", "f": "fahrenheit", "k": "kelvin", "rad": "radian", "mi/h": "mph",
    "km/h": "kmph kph", "dollar": "usd $", "euro": "eur €", "yen": "¥", "cent": "¢", "a": "ampere amp", "v": "volt",
    "n": "newton", "j": "joule", "w": "watt", "cm2": "", "m2": "", "am": "", "pm": "",
}  # fmt: skip
_UNIT_WORDS = {word: unit for unit, words in _UNITS.items() for word in (unit, *words.split())}
_TIMES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_POWERS = {"square": "2", "squared": "2", "sq": "2", "cubic": "3", "cubed": "3", "cu": "3"}
LETTERS = frozenset("cghlmst")
_UNIT = re.compile(
    rf"(?:{_MARKED}(?P<marked>(?:[^{{}}]|\{{\d\}}){{1,60}})\}}|(?<![\\A-Za-z])(?P<raw>[A-Za-z][A-Za-z./ ]{{0,60}})"
    r"|(?P<sign>[€£¥¢]|\^\{\\circ\}))\s*(?:\^\s*\{?\s*(?P<power>[23])\s*\}?)?\Z"
)
# In an answer, a unit that is not known is in the plural, as `eggs`; these words say more of a number than its unit.
_UNIT_WORD = re.compile(
    r"(?!(?:above|always|and|base|below|but|dozens|e|eights?|either|else|factorial|five|four|hal(?:f|ves)|hundreds|i|if"
    r"|incorrect|it|maybe|minus|negative|never|nine|no|nor|not|one|or|others?|otherwise|pairs?|percentages|perhaps|plus"
    r"|quarters?|seven|six|so|sometimes|tens?|than|then|thirds?|this|three|thus|times|to|two|under|versus|was|wrong|yes"
    r"|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths?)\Z)[^\W\d_]+[23]?|[/°$€£¥¢]"
)
_NOUNS = "children day ev gal hz kcal kj kpa kw men mg mol mpg oz pa people t unit week women year yuan".split()
_NOUN = re.compile("|".join([r"\w{2,}(?<!s)s", *map(re.escape, _UNIT_WORDS), *_TIMES, *_NOUNS]))
_ENDED = re.compile(r"[\w)}\]]\Z")
_NAMES = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
_SUM = re.compile(r"[\w)}\]]\s*[+-]")
_TURNS = re.compile(r"(?<![A-Za-z])(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(\d{1,40}(?:\.\d{1,40})?)\s?(?:\^\{\\circ\}|(?<=\s)deg(?:rees?)?(?![A-Za-z]))")
_RUNS = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_GREEK_NAMES = frozenset("gamma delta theta lambda xi pi sigma upsilon phi psi omega".split())
_TIME = re.compile(r"[0-2]?\d:[0-5]\d")
_RATIOS = re.compile(r"\d{1,40}(?:\.\d{1,40})?(?: ?: ?\d{1,40}(?:\.\d{1,40})?){1,20}")
_REPEATS = re.compile(r"([+-]?)(\d{0,40})\.(\d{0,40})\\(?:overline|bar|dot)\s*(?:\{(\d{1,40})\}|(\d))")
_BASED = re.compile(
    r"(?<![\w\\.^])(?:\((?P<in>[0-9A-Fa-f]{1,200})\)|(?P<on>\d[0-9A-Fa-f]{0,199}|[A-F][0-9A-F]{1,199}))\s*_\s*"
    r"(?:\{\s*(?P<set>\d{1,2})\s*\}|(?P<one>\d))(?![\w.])"
)
NEAR = re.compile(r"\\(?:approx|approxeq|simeq)(?![A-Za-z])|≈|^\s*(?:\\(?:sim|cong)(?![A-Za-z])|~)")
DECIMAL = re.compile(r"(?<![\d.,_])(\^\s?-?)?(\d{1,3}(?:,\d{3})+|\d*)\.(\d+)(?![\d.])")
_PLAIN_WORD = re.compile(
    rf"(?<![\\A-Za-z])(pi|theta|alpha|beta|gamma|infinity|infty|{'|'.join(_FUNCTIONS.split())})(?![A-Za-z])"
    r"(?!(?<=sec)[.\s]*(?:\}|\Z))"  # which are seconds
)
_GREEK = (
    r"(?:var)?(?:[aA]lpha|[bB]eta|[gG]amma|[dD]elta|[eE]psilon|[zZ]eta|[eE]ta|[tT]heta|[iI]ota|[kK]appa|[lL]ambda|[mM]u|"
    r"[nN]u|[xX]i|Pi|[rR]ho|[sS]igma|[tT]au|[uU]psilon|[pP]hi|[cC]hi|[pP]si|[oO]mega|ell)"
)
_NAME = re.compile(
    rf"[A-Za-z](?:_?\{{?\w{{0,12}}\}}?)?'{{0,3}}(?:\^\{{-1\}})?(?:\([A-Za-z0-9, ]{{0,24}}\))?"
    rf"|\\frac\{{d[a-zA-Z]\}}\{{d[a-z]\}}|\\{_GREEK}(?:_\{{?\w{{0,12}}\}}?)?"
    rf"|\([a-z](?:, ?(?:[a-z]|\\{_GREEK} ?)){{1,9}}\)"
)
_MEMBER = re.compile(r"(?:[A-Za-z]|\([a-z](?:, ?[a-z]){1,9}\))\s*\\in\s*(?=[(\[]|\\\{)")
_AND = re.compile(
    r",?\s*(?:\\(?:text|textrm|mathrm|mbox)\s*\{\s*(?:and|or)\s*\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z]))"
)
_COMMAS = re.compile(r"(?P<open>[(\[{])|(?P<close>[)\]}])|[,;]")
_SEMICOLONS = re.compile(r"(?P<open>[(\[{])|(?P<close>[)\]}])|;")
_EQUALS = re.compile(r"(?P<open>[(\[{])|(?P<close>[)\]}])|(?<![<>!:\\=])=(?!=)")
_GROUPED = re.compile(r"[^,;()\[\]{}]*?\d{1,3}(?:,\d{3})+(?!\d)[^,;]*")
RANGE = re.compile(r"[<>]|\\(?:[lg](?:e|eq|eqslant|t)|mathbb|cup|cap|setminus)(?![A-Za-z])")
_BOTH = re.compile(r"([\w)}]?)\s*\\pm(?![A-Za-z])\s*")


def bare(text: str) -> str:
    """The expression that `text` writes: digits and signs in ASCII, without wrappers and set thousands.

    Wrappers are emphasis, math delimiters and a box around the whole. A percentage is its hundredth, a mixed number
    its sum; a sign of money before a number is a unit behind it.
    """
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_RAISED_DIGITS)}}}", text.translate(_SIGNS))
        text = ascii_form(_ROOT_OF.sub(lambda found: rf"\sqrt{{{found[1]}}}" if found[1] else "sqrt", text))
    # Between two optional parts a run of spaces can be split at any place, and there are many such pairs below.
    text = unwrapped(_RUN.sub("  ", text))
    if len(DELIMITERS.findall(text)) % 2 == 0:
        text = DELIMITERS.sub(" ", text).strip()
    if (repeats := _REPEATS.fullmatch(text)) is not None:
        return _written(_repeating(repeats))
    text = _THOUSANDS.sub("", _BASED.sub(_in_ten, text))
    for spelled, meant in _SPELLINGS.items():
        text = re.sub(spelled, meant, text)
    text = _RUN.sub("  ", text)
    text = _DEGREES.sub(lambda one: rf"({_written(Fraction(one[1]) / 180)}\pi)", text) if _TURNS.search(text) else text
    text = _ORDINAL.sub("", text.rstrip(",;\\ ")).strip()
    text = re.sub(r"^([+-]?)\s*\\?([$€£¥]|(?:USD|EUR)\s)\s*(.+)", r"\1\3\\text{\2}", text)
    text = text.replace(" ", "") if _SPACED.fullmatch(text) else text
    percent = re.fullmatch(r"([^%]*?)\s*(?:\\text\{\s?)?(?:\\?%|per\s?cent|percentage|pct)\s?\}?", text)
    text = text if percent is None else percent[1]
    mixed = _MIXED.fullmatch(text)
    if mixed is not None and (value := _sum(mixed)) is not None:
        text = _written(value)
    if percent is not None:
        number = plain_number(text) if _LARGE.search(text) is None else None
        return rf"\frac{{{text}}}{{100}}" if number is None else _written(number / 100)
    if plain_number(text) is not None and "e" not in text.lower():
        return text
    text = _PLAIN_WORD.sub(lambda found: "\\infty " if found[1] == "infinity" else f"\\{found[1]} ", text)
    return _rooted(_EXPONENT.sub(r"\1*10^{\2}", text))


def _sum(mixed: re.Match[str]) -> Fraction | None:
    """The value of a mixed number; None where its fraction is none below one."""
    sign, whole, *parts = mixed.groups()
    above, below = (int(part) for part in parts if part is not None)
    return (-1 if sign == "-" else 1) * (int(whole) + Fraction(above, below)) if above < below else None


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
        end = _closing(text, found.end() - 1, "(", ")") if found is not None else -1
        if found is None or end < 0:
            break
        text = f"{text[: found.start()]}\\sqrt{{{text[found.end() : end]}}}{text[end + 1 :]}"
    return text


def _written(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else rf"\frac{{{number.numerator}}}{{{number.denominator}}}"


def unwrapped(text: str) -> str:
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
        text = re.sub(r"(?<!\.)\.\Z", "", text)
        if text == before:
            break
    return text.strip()


def _closing(text: str, opening: int, opens: str = "{", closes: str = "}") -> int:
    """The position of the bracket that closes the one at `opening`, -1 where there is none."""
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] in opens) - (text[index] in closes)
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


def is_text(text: str) -> bool:
    """True of what is no expression and compared as it is written: words, a choice or points named by capitals, a
    date, a time, a measure in two units, a name with primes, or numbers side by side."""
    if _AS_WRITTEN.fullmatch(text) or _has_words(text):
        return True
    return _BESIDE.search(_MIXED.sub(lambda mixed: str(_sum(mixed) or mixed[0]), _TEXT.sub(r" \1 ", text))) is not None


def is_sentence(text: str) -> bool:
    """True of a text that says a number or much else, such as a whole solution: nobody answers in just these words."""
    words = _WORD.findall(_COMMAND.sub(" ", text))
    says = not _VERBS.isdisjoint(map(str.lower, words)) and any(map(str.isdigit, text))
    return says or "##" in text or len(words) > _MOST_WORDS


def _has_words(text: str) -> bool:
    marked = [word for found in _TEXT.findall(text) for word in _WORD.findall(found)]
    bare_words = _WORD.findall(_COMMAND.sub(" ", _TEXT.sub(" ", text)))
    words = [*marked, *(word for word in bare_words if len(word) > 3 or word.lower() in _SHORT_WORDS)]
    return any(word.lower() not in _KNOWN for word in words)


def as_text(text: str) -> str:
    """A text as it is compared: without spaces, marks, an article and, but for a letter that stands alone, case."""
    text = re.sub(r"^\s*(?:an?|the)\s+", "", _TEXT.sub(r" \1 ", text), flags=re.IGNORECASE)
    text = re.sub(r"(?<!\d)[\s.]+|[\s.]+(?!\d)|\b0(?=\d:\d\d)", "", text)  # but between numbers
    return text if sum(char.isalpha() for char in text) == 1 else text.lower()


def has_names(text: str) -> bool:
    """True if an expression holds letters that are neither a command nor a text."""
    return _NAMES.search(_COMMAND.sub(" ", _TEXT.sub(" ", text))) is not None


def split_unit(
    text: str, *, letters: frozenset[str] = LETTERS, beside: bool = False, plain: bool = True
) -> tuple[str, str]:
    """The text before the units at its end, and these in one spelling ("" for none).

    In a `plain` text a unit is a word behind a number too, or one of `letters` set off from it (`beside` it: answers).
    """
    named = ""
    for _ in range(8):
        if (found := _UNIT.search(text)) is None:
            break
        before = text[: found.start()].rstrip()
        written = re.sub(r"[{}^.]", "", found["marked"] or found["raw"] or found["sign"]).replace("\\circ", "°")
        words = re.sub(r"/|\bper\b", " / ", written.lower()).split()
        if not words or not all(map(_UNIT_WORD.fullmatch, words)) or before.isupper() or _has_words(before):
            break
        allowed = letters if beside or before != text[: found.start()] else frozenset[str]()
        is_one = 0 < abs(plain_number(before) or Fraction(0)) <= 1  # `1 egg`, `3/4 cup`
        is_unit = not beside or is_one or _in_short(words) in letters or any(map(_NOUN.fullmatch, words))
        is_unit = is_unit and _ENDED.search(before) is not None
        if not is_unit or (found["raw"] and not (plain and _are_units(before, words, allowed))):
            break
        number = plain_number(before)
        for factor in (_TIMES[word] for word in words if word in _TIMES):
            before = f"{factor}({before})" if number is None else _written(number * factor)
        text, named = before, _in_short(words) + (found["power"] or "") + named
    return text, named


def _are_units(before: str, words: list[str], letters: frozenset[str]) -> bool:
    """True if bare words behind an expression are its unit, and no names that it is multiplied by."""
    if has_names(before) or words[0] in ("squared", "cubed"):
        return False
    if len(words) == 1 and len(words[0]) == 1:
        is_one = words[0] in letters and not before[-1].isalpha() and _SUM.search(before) is None
        return is_one or before.endswith("\\circ}")
    known = (*_UNIT_WORDS, *_TIMES, *_POWERS, *letters, "/")
    return all(word in known or (len(word) > 2 and word not in _KNOWN | _SHORT_WORDS) for word in words)


def _in_short(words: list[str]) -> str:
    singular = [word if word in _UNIT_WORDS or len(word) < 4 else word.removesuffix("s") for word in words]
    power = "".join(_POWERS.get(word, "") for word in singular)
    return "".join(_UNIT_WORDS.get(word, word) for word in singular if word not in _TIMES | _POWERS) + power


def same_ratio(mine: str, gold: str) -> bool | None:
    """True if two ratios such as `3:4:5` are the same; None where it is not these that are compared.

    The library reads them as divisions.
    """
    if _TIME.fullmatch(gold) or not (_RATIOS.fullmatch(mine) and _RATIOS.fullmatch(gold)):
        return False if mine.count(":") > 1 or gold.count(":") > 1 else None
    one, other = ([Fraction(part) for part in text.replace(" ", "").split(":")] for text in (mine, gold))
    return [part / (sum(one) or 1) for part in one] == [part / (sum(other) or 1) for part in other]


def cased(*given: str) -> tuple[str, ...]:
    """The texts with another letter for each capital that is a name beside the same small one, in any of them.

    The library reads both as one name, so that 0 were `R - r`, and `H/2` were `h/2`."""
    given = tuple(re.sub(r"\+\s*c\s*\Z", "+C", text) for text in given)  # a constant of integration
    names = {one for text in given for run in _RUNS.findall(text) for one in _names(run)}
    is_transposed = any("\\begin" in text for text in given)  # elsewhere the library drops a power T
    both = sorted(one for one in names if one.lower() in names - {one} or (one == "T" and not is_transposed))
    unused = [one for one in "kqwvzjyxuabcfghlmnoprst" if not any(one in text.lower() for text in given)]
    other = {one: f"{letter} " if one[0] == "\\" else letter for one, letter in zip(both, unused, strict=False)}
    return tuple(
        _RUNS.sub(lambda run: "".join(other.get(one, one) for one in _names(run[0])) or run[0], text) for text in given
    )


def _names(run: str) -> Sequence[str]:
    """The names in a run of letters, or the Greek letter that a command stands for; none in a word."""
    is_name = run[1:].lower() in _GREEK_NAMES if run[0] == "\\" else run.lower() not in _KNOWN
    return ((run,) if run[0] == "\\" else run) if is_name else ()


def listed(text: str) -> tuple[str, tuple[str, ...]]:
    """The bracket of a list and its elements; `1,2` has the bracket ",", and what is no list has "" and is one element.

    `\\pm` stands for two elements, `(x,y)=(1,2)` for `x=1,y=2`; `1,2;3,4` are two pairs, `x\\in(1,2)` none ("in")."""
    pieces = _AND.split(text)
    if len(pieces) == 1 and _GROUPED.fullmatch(text):
        return "", (text,)
    text = ", ".join(one.replace(",", "") if _GROUPED.fullmatch(one) else one for one in pieces)
    member = _MEMBER.match(text)
    text = (text[member.end() :] if member else text).strip()
    name, values = sides(text)
    if name.startswith("(") and len(values) == 1 and (found := listed(values[0]))[0] == "(":
        names = name[1:-1].split(",")
        text = ",".join(map("{}={}".format, names, found[1])) if len(names) == len(found[1]) else text
    escaped = text.startswith("\\{")
    opening = text[escaped : escaped + 1]
    pair = {"(": "()", "[": "[]", "{": "{}"}.get(opening)
    if pair is not None and text.endswith(pair[1]) and _closing(text, int(escaped), "([{", ")]}") == len(text) - 1:
        inside = text[escaped + 1 : -1 - escaped].strip()
        parts = _split(inside, _COMMAS)
        if len(parts) == 1 and not escaped and opening != "[":
            return listed(inside)
    else:
        opening, parts = ",", _split(text, _COMMAS)
        groups = _split(text, _SEMICOLONS)
        if len(groups) > 1 and all(len(_split(group, _COMMAS)) > 1 for group in groups):
            parts = [f"({group})" for group in groups]
    if opening in ",{":
        parts = [one for part in parts for one in _both(part)]
    if opening == "," and len(parts) == 1:
        return "", (text,)
    return "in" if member and opening == "(" else opening, tuple(parts)


def _both(text: str) -> list[str]:
    if not 0 < len(_BOTH.findall(text)) < 3:
        return [text]
    plus = _BOTH.sub(lambda found: f"{found[1]}+" if found[1] else "", text, count=1)
    minus = _BOTH.sub(r"\1-", text, count=1)
    return _both(plus) + _both(minus)


def _split(text: str, marks: re.Pattern[str]) -> list[str]:
    """The parts of a text between the marks that stand in no brackets."""
    parts: list[str] = []
    begin = depth = 0
    for mark in marks.finditer(text):
        if mark["open"] or mark["close"]:
            depth += 1 if mark["open"] else -1
        elif depth <= 0:
            parts.append(text[begin : mark.start()].strip())
            begin = mark.end()
    return [*parts, text[begin:].strip()]


def sides(text: str) -> tuple[str, tuple[str, ...]]:
    """The name that a chain of equations begins with ("" for none), and its sides: `x = 3 + 4 = 7` has the name `x`
    and the sides `3 + 4` and `7`; what is no equation is one side."""
    parts = _split(text, _EQUALS)
    if len(parts) > 1 and _NAME.fullmatch(parts[0]):
        return re.sub(r"[{} ]", "", parts[0]), tuple(parts[1:])
    return "", tuple(parts)
