"""Answers that are read as something else than an answer: as a pattern, an expression or a program, or by its words.

A reward that puts the answer on the pattern's side (`re.search(answer, gold)`, `fnmatch(gold, answer)`, `gold LIKE
answer`, a schema, a template) takes a wildcard for right, one that evaluates it the question's own expression, one that
runs it what it prints. Controls are the same without their point: what they earn too is paid for something else."""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from contextlib import suppress
from functools import lru_cache
from typing import Any

from rlenv.audit.golds import function_source
from rlenv.audit.subject import Action, AuditSubject, is_number, same, shaped, texts_of
from rlenv.audit.texts import DATA, WORDS, holds, nonce, shrug
from rlenv.episodes.environment import Environment
from rlenv.language.templates import TemplateError, compile_value, texts_in
from rlenv.tools._arithmetic import CannotCalculate, calculate

_WILDCARDS = (".*", ".+", r"[\s\S]*", "*", "?*", "%", "%%%")
_SCHEMA = json.dumps({"type": ["string", "number", "boolean", "object", "array", "null"]})
_OTHERS = ("judge", "tests", "group")
"""Kinds of terms that compare no answer with a gold: for them a wildcard is a wrong answer like others."""
_PLAIN = (",;", "~", "[zqx", json.dumps({"zqx": 1}))
_ABSTAINS = WORDS["abstains"]
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})
_EXPRESSION = re.compile(r"[-(\s]*\d[\d.)]*(?:\s*(?:\*\*|//|[-+*/^%×÷·−])\s*[-(\s]*\d[\d.]*[)\s]*)+")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_OPERATIONS = ("{0} + {1}", "{0} * {1}", "{0} - {1}", "{1} - {0}", "{0} / {1}")
_NAMES = ("gold", "expected", "target", "answer")
_WORD = re.compile(r"\w+")
_MOST_WORDS = 16
_SHORT = 60
_LONG = 400
_MARK = 3
_OFTEN = 6
_CONSTANTS = ("True", "False", "0", "1", "None", "''", "[]", "args[0]", "args[-1]")
_SAYS_SO = re.compile(r"pass|success|\bok|correct|right|true|accept|approv|done|verif|valid", re.IGNORECASE)
_VERDICTS = ("ALL TESTS PASSED", "All tests passed", "PASSED", "PASS", "OK", "ok", "success", "True", "1")
_CODE = re.compile(r"\bdef |print\(|\bimport |\breturn |\blambda\b|\w+\(.*\)|=")
_SQL = re.compile(r"\s*(?:select|with|insert|update|delete|create)\b", re.IGNORECASE)
_INJECTED = ("x{0} OR {0}1{0}={0}1", "x{0} OR 1=1 --", "x{0} UNION SELECT {1} --", "x{0} HAVING 0 UNION SELECT {1} --")
_BETWEEN_QUOTES = re.compile(r"(['\"])\{\{-?\s*answer\b[^}]*\}\}")
_WHERE = re.compile(r"\bwhere\b(.*)\b(?:and|or)\b[^'\"]*$", re.IGNORECASE | re.DOTALL)
_CONDITIONS = re.compile(r"\b(?:where|group\s+by|order\s+by|limit)\b", re.IGNORECASE)
_ENDS = ("", "\nraise SystemExit", "\n_ = lambda: \\")
_EQUALS = DATA["equals"]


def injection_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Answers that close the quote around them where a term runs them, and say there what makes it hold."""
    texts = [text.format(quote, "1") for quote in "'\"" for text in _INJECTED]
    for term in subject.environment.spec.rewards.values():
        wanted = next((one for one in texts_of(_plain_value(getattr(term, "expect", None))) if "{" not in one), "1")
        for text in texts_in(getattr(term, "arguments", {})) if term.kind == "verify" else ():
            for found in _BETWEEN_QUOTES.finditer(text):
                before = text[: found.start()]
                try:
                    said = str(compile_value(before)(task=subject.task, vars=subject.environment.spec.vars))
                except TemplateError:
                    continue
                # What else is asked for there is asked for again, in place of what compares the answer.
                conditions = [one[1].strip() for one in [_WHERE.search(said)] if one is not None]
                texts += [f"x{found[1]} OR {one.removesuffix(found[1])}" for one in conditions]
                texts += [one.format(found[1], wanted) for one in _INJECTED]
    parts = [one.casefold() for one in subject.asked if one.strip()]
    return [
        [] if any(one in text.casefold() for one in parts) else [subject.form(text)] for text in dict.fromkeys(texts)
    ]


def _plain_value(expect: Any) -> Any:
    return expect.model_dump(exclude_none=True) if hasattr(expect, "model_dump") else expect


def wildcard_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """One wildcard a way, then the controls; () for what the row names, the answer stands in, or is a part of it."""
    if all(spec.kind in _OTHERS for spec in subject.environment.spec.rewards.values() if spec.weight):
        return []
    said, right = {text.strip() for text in texts_of(subject.task)}, subject.right.strip().casefold()
    texts = [*_WILDCARDS, _SCHEMA]
    scripts = [[] if text in said or right in text.casefold() else [subject.form(text)] for text in texts]
    return [*scripts, *([] if text in subject.right else [subject.form(text)] for text in _PLAIN)]


def abstaining_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Says in the usual words that it gives no answer; () for words that are an answer of some task."""
    taken, parts = _answers_as_words(subject), [one.casefold() for one in subject.asked if one.strip()]
    # A reward that looks for a part finds a "no" in "unknown" too.
    shared = [any(part in text.casefold() or text.casefold() in part for part in parts) for text in _ABSTAINS]
    pairs = zip(_ABSTAINS, shared, strict=True)
    return [[] if is_shared or _says_any(text, taken) else [subject.form(text)] for text, is_shared in pairs]


def named_word_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Says what the reward itself names, one text a way, as an answer and before it; no answer of any task."""
    taken, words = _answers_as_words(subject), named_words(subject.environment)
    parts = [one.casefold() for one in subject.asked if one.strip()]
    said = [one for one in words if not _says_any(one, taken) and not any(part in one.casefold() for part in parts)]
    # A reward may count them.
    often = " ".join(f"{one} {one}" for one in said for _ in range(_OFTEN))
    often += f"\n{subject.text_of(subject.bare(said[0]))}" if said else ""
    return [
        *([f"{one}\n{subject.text_of(subject.bare(one))}"] if one in said else [] for one in words),
        [often] if said else [],
        [" ".join(said)] if said and not subject.environment.spec.user else [],
    ]


def _answers_as_words(subject: AuditSubject) -> Set[str]:
    return {" ".join(_WORD.findall(one.casefold())) for one in (*subject.asked, *subject.options, *subject.accepted)}


def _says_any(text: str, taken: Set[str]) -> bool:
    """True if an answer of some task stands in a text."""
    words = _WORD.findall(text.casefold())
    runs = {" ".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)}
    return bool(runs & taken)


def decorated_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Wrong answers with all that texts are decorated with, one kind a way; nothing where one says the right answer."""
    one, other, third = nonce(3, without=subject.asked)
    marks = "".join(f"{mark} {one} " for mark in _short_marks(subject.environment) for _ in range(2 * _OFTEN))
    numbers = " ".join(f"{number}7.{number}" for number in range(21, 21 + 2 * _OFTEN))
    texts = [
        DATA["decorated"].format(one, other, third),
        numbers,
        f"{one}! " * 2 * _OFTEN,
        f"{one}? " * 2 * _OFTEN,
        marks,
    ]
    wrong = subject.text_of(subject.bare(third))
    ways = [f"{text}\n{wrong}" for text in texts] + [f"{wrong}!", f"{wrong}?"]
    ways.append(subject.text_of(subject.bare(one.upper())))
    parts = [part.casefold() for part in subject.asked if part.strip()]
    return [[text] if not any(part in text.casefold() for part in parts) else [] for text in ways]


def alphabet_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """All letters, all digits or both, as the right answer has them; as controls one that it has not, as often."""
    signs = "abcdefghijklmnopqrstuvwxyz" if re.search(r"[^\W\d_]", subject.right) else ""
    signs += "0123456789" if re.search(r"\d", subject.right) else ""
    other = next((one for one in "zqxj7358" if (one in signs) and one not in subject.right.casefold()), "") or "~"
    return [[subject.form(one)] for text in (signs, other * len(signs)) for one in (text, " ".join(text)) if text]


def _short_marks(environment: Environment) -> list[str]:
    """The marks that the code of the rewards names and that are too short to be words: `**`, `- `, `!`."""
    targets = [getattr(spec, "function", None) for spec in environment.spec.rewards.values()]
    texts = [one for target in targets for one in words_in_code(environment, "rewards", target, least=0)]
    return list(dict.fromkeys(one for one in texts if 0 < len(one) <= _MARK and not one[0].isalnum()))[:_MOST_WORDS]


def named_words(environment: Environment) -> list[str]:
    """Short texts that the code and the patterns of the rewards name, but for golds: what anybody may try to say."""
    found: list[str] = []
    for name, spec in environment.spec.rewards.items():
        targets = getattr(spec, "function", None), getattr(getattr(spec, "compare", None), "function", None)
        found += [text for one in targets for text in words_in_code(environment, f"rewards.{name}.function", one)]
        pattern = getattr(spec, "pattern", None)
        found += pattern_examples(pattern) if isinstance(pattern, str) and "{{" not in pattern else []
    return list(dict.fromkeys(text for text in found if re.search(r"[^\W\d_]", text)))[:_MOST_WORDS]


def words_in_code(environment: Environment, key: str, target: object, *, least: int = 3) -> list[str]:
    """The short texts of the file of an author's function, `key` being where the spec names it."""
    try:
        return [one for one in _texts_in_source(function_source(environment, key, target)) if len(one) >= least]
    except (ValueError, SyntaxError):
        return []


@lru_cache(maxsize=16)
def _texts_in_source(source: str) -> tuple[str, ...]:
    """The texts of a module that are no docstrings and no keys, those first that are compared; patterns as examples."""
    tree = ast.parse(source)
    keys = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    compared = [part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)]
    nodes = [node for node in (*compared, *ast.walk(tree)) if isinstance(node, ast.Constant)]
    plain = [node.value for node in nodes if isinstance(node.value, str) and id(node) not in keys | told]
    # Of the alternatives of a pattern each is short.
    short = [text for text in plain if len(text) <= (_LONG if "|" in text else _SHORT)]
    return tuple(made for text in short for made in pattern_examples(text))


def pattern_examples(pattern: str) -> list[str]:
    """Texts that a regular expression matches, one for each of its alternatives, as far as that is easily seen."""
    found = []
    for part in re.split(r"[|]", pattern):
        text = re.sub(r"\(\?[:=!<a-zA-Z]*|[()^$]|\\[bBAZz]", "", part)
        text = re.sub(r"\\s[*+?]?|\.[*+?]+", " ", text)
        text = re.sub(r"\[\^?(.)[^\]]*\]", r"\1", text)
        text = re.sub(r"\\d", "7", text)
        text = re.sub(r"\\w", "q", text)
        text = re.sub(r"(?<!\\)(?:[*+?]|\{\d*,?\d*\})", "", text).replace("\\", "")
        try:
            if text.strip() and re.search(pattern, text, re.IGNORECASE):
                found.append(text.strip())
        except re.error:
            return [pattern]
    return found or [pattern]


def expression_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """The prompt's own numbers with a sign between them, right before anything is computed; last the numbers alone."""
    ways: list[Sequence[Action]] = []
    longest = max((found[0].strip() for found in _EXPRESSION.finditer(subject.prompt)), key=len, default="")
    numbers = _NUMBERS.findall(subject.prompt)[:2]
    texts = [longest, longest.translate(_SIGNS)]
    texts += [one.format(*numbers) if len(numbers) == 2 else "" for one in _OPERATIONS]
    for name in [name for name, value in subject.task.items() if str(value).strip() == subject.right.strip() != ""][:1]:
        texts += [name, f"task['{name}']", f"context.task['{name}']"]
    texts += _NAMES
    for text in (*texts, "; ".join(numbers)):
        is_said = not text or same(text, subject.right) or holds(text, subject.right)
        # A reward that looks for a letter finds it in a name too.
        is_said = is_said or any(one.isalpha() and one.casefold() in text.casefold() for one in subject.asked)
        ways.append([] if is_said else [subject.form(text)])
    return ways


def program_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Programs that give the verdict themselves: they print it, end before they are tested, or equal anything."""
    kinds = _answer_languages(subject)
    if not kinds:
        return []
    texts = _verdict_texts(subject)
    all_of = "\n".join(dict.fromkeys([*texts, *_VERDICTS]))
    ways: list[Sequence[Action]] = []
    for text in (*texts, all_of, *_VERDICTS[:1]):
        shown = text if text else "?"
        if "python" in kinds:
            ways += [[subject.form(f"print({shown!r}){end}")] for end in _ENDS]
        if "sql" in kinds:
            quoted = shown.replace("'", "''")
            ways += [[subject.form(f"SELECT '{quoted}'{end}")] for end in ("", " --")]
        if "shell" in kinds:
            quoted = shown.replace("'", "'\\''")
            ways.append([subject.form(f"printf '%s\\n' '{quoted}'; exit 0")])
    if "python" in kinds:
        names = re.findall(r"\bdef (\w+)", subject.right) or ["solve"]
        ways += [[subject.form(_EQUALS.format(names[-1]))], [subject.form("raise SystemExit")]]
    return ways


def runs_answer(term: Any) -> bool:
    """True for a term that runs a tool on the answer."""
    return term.kind == "verify" and any("answer" in text for text in texts_in(term.arguments))


def is_query(text: str) -> bool:
    """True if an answer is SQL that gives rows."""
    return bool(_SQL.match(text)) and text.split(maxsplit=1)[0].casefold() in ("select", "with")


def query_without_rows(query: str) -> str:
    """A query of the same columns, without conditions, that gives no row."""
    return _CONDITIONS.split(query, maxsplit=1)[0].strip().rstrip(";") + " LIMIT 0"


def constant_program_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Programs whose functions give the same whatever they are given, or what they are given."""
    names = re.findall(r"^def (\w+)", subject.right, re.MULTILINE)
    is_tested = any(term.kind == "tests" for term in subject.environment.spec.rewards.values())
    made = [[f"def {name}(*args, **named):\n    return {one}" for name in names] for one in _CONSTANTS if names]
    return [[subject.form("\n".join(one))] for one in made if is_tested or "python" in _answer_languages(subject)]


def shown_parts(answer: str, prompt: str) -> str:
    """A JSON object with those of an answer's texts that the prompt shows; "" where these are all of it, or none."""
    with suppress(ValueError, RecursionError):
        whole = json.loads(answer)
        if isinstance(whole, dict):
            kept = {key: value for key, value in whole.items() if isinstance(value, str) and holds(prompt, value)}
            return json.dumps(kept) if kept and len(kept) < len(whole) else ""
    return ""


def expression_value(answer: str) -> str:
    """The number that an expression is; "" for any other text, and for a number itself."""
    with suppress(CannotCalculate, ValueError, OverflowError):
        return "" if is_number(answer) else str(calculate(answer))
    return ""


def joined_lists(options: Sequence[str]) -> str:
    """One JSON list of all that lists of JSON hold, or one object with each key's commonest value; "" for others."""
    try:
        read = [json.loads(one) for one in options]
    except (ValueError, RecursionError):
        return ""
    if read and all(isinstance(one, dict) for one in read):
        values: dict[str, Counter[str]] = defaultdict(Counter)
        for key, value in [pair for one in read for pair in one.items()]:
            values[key][json.dumps(value)] += 1
        return json.dumps({key: json.loads(some.most_common(1)[0][0]) for key, some in values.items()})
    if not all(isinstance(one, list) for one in read):
        return ""
    return json.dumps(list({json.dumps(part): part for one in read for part in one}.values()))


def _answer_languages(subject: AuditSubject) -> set[str]:
    """The languages in which an answer is run, as far as it can be told; none where no term runs it."""
    spec, found = subject.environment.spec, set[str]()
    right = subject.right
    for term in spec.rewards.values():
        tool = str(getattr(term, "tool", ""))
        if not runs_answer(term) and not (getattr(term, "function", None) and "\n" in right and _CODE.search(right)):
            continue
        kind = spec.tools[tool].kind if tool in spec.tools else ""
        if kind == "sql" or _SQL.match(right):
            found.add("sql")
        elif kind == "code" or _CODE.search(right):
            found.add("python")
        if kind == "command":
            found |= {"shell", "python"}
    return found


def _verdict_texts(subject: AuditSubject) -> list[str]:
    """The constants that a run is compared with and that are no task's own: of the spec, of the code, of all rows."""
    found: list[str] = []
    for term in subject.environment.spec.rewards.values():
        if term.kind == "verify":
            found += [text for text in _constant_texts(getattr(term, "expect", "")) if text and "{{" not in text]
    rows = [set(texts_of(other.task)) for other in subject.others if other.task_index != subject.gold.task_index]
    common = set(texts_of(subject.task)).intersection(*rows) if len(rows) > 1 else set()
    found += sorted(text for text in common if len(text) <= _SHORT)
    found += [text for text in named_words(subject.environment) if _SAYS_SO.search(text)]
    return list(dict.fromkeys(found))[:4]


def _constant_texts(expect: Any) -> list[str]:
    value = expect.value if hasattr(expect, "value") else expect
    return [] if value is None else [str(value)]


_MAX_OPTIONS = 200
_MOST_LISTED = 200


LEAST_OPTIONS = 24


def listed_scripts(subject: AuditSubject, answer: str, wrong: Sequence[str]) -> Sequence[Sequence[Action]]:
    """Many answers as one, in the usual ways of listing them."""
    # Nobody lists texts among which the right one is: whoever has that one has done the work.
    if len(answer) > _MOST_LISTED:
        return []
    # The right one stands in the middle: it must count for being among them, and not for being first or last.
    joined = joined_lists([*wrong, answer])
    wrong = [*wrong[: _MAX_OPTIONS - 1], *strange_answers(subject, LEAST_OPTIONS - len(wrong))]
    options = [*wrong[: len(wrong) // 2], answer, *wrong[len(wrong) // 2 :]]
    many = [*options[:2], answer, *options[-3:]]
    answers = "\n".join(subject.form_text(one) for one in many)
    others = "\n".join(subject.form_text(one) for one in (*many[3:], *options[:2]))
    # Where it does not count: the last text in a tag is the answer, and the first call that gives one.
    ends = [others, subject.form_text(answer)]
    is_called = subject.environment.spec.answer.from_ == "tool"
    return [
        [subject.form(joined)] if joined else [],
        [subject.form(", ".join(options))],
        [subject.form(" ".join(options))],
        [subject.form(f"[{', '.join(one if is_number(one) else json.dumps(one) for one in options)}]")],
        [subject.form("\n".join(options))],
        [subject.form(f"It is not {wrong[0]} but {' or '.join(options)}")],
        [answers],
        ["\n".join(ends if is_called else ends[::-1])],
        [f"{others}\n{shrug(subject.asked)} {' '.join(options)}"],
    ]


def strange_answers(subject: AuditSubject, number: int = LEAST_OPTIONS + 1) -> list[str]:
    """Wrong answers that are no other task's either: those may share words with the right one."""
    rng = random.Random(f"{subject.gold.split}/{subject.gold.task_index}")
    return [shaped(subject.right, rng) for _ in range(number)]
