"""The golds that rewards compare with: whether they can be compared with, and what can be guessed of them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlenv.checks.oracle import gold_fault
from rlenv.episodes.environment import Environment
from rlenv.language.expressions import open_on
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.templates import TemplateError, compile_template, compile_value, texts_in
from rlenv.rewards.base import Term
from rlenv.rewards.normalise import NORMALISERS, number, qa
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.audit.data import DataFindings, PromptRow, Rows

_MOST_READ = 500
_RARE = 1e-3
_CONSTANT = 0.6
_MOST_CLASSES = 10
_SHARED, _LABEL = 3, 2
_OPTIONS = re.compile(r"(?:options?|choices?|candidates?|alternatives?)$", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-Za-z])[.)]?")
_NAME_READ = re.compile(r"(?<=[\"'.])[^\W\d][\w-]+\b(?!\()")
_MOST_NAMES_READ = 16
_LISTS = (", ", ",", " ", "\n", "; ", " > ", " -> ")
_OVER = re.compile(r"\.((?:is_)?(?:terminated|truncated|over|game_over|ended|finished|done))\b(?!\s*\|\s*length)")
_TAKES_ROWS = re.compile(r"\*\*\s*(?:\w+\.)?task\b|\btask\.(?:items|values|copy)\(|\((?:\w+\.)?task\)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROSE = 4
_DROPPED = re.compile(r"[\s.,;:!?\"'()\[\]{}_`]|(?<=\w)-(?=[^\W\d])|\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Gold:
    """One accepted value: `text` as the row has it, `key` as the term compares it ("" where nothing is left)."""

    text: str
    key: str


@dataclass(frozen=True, slots=True)
class GoldReader:
    """The reading of a term's golds from a row alone."""

    term: Term
    fill: Callable[..., Any]
    normalise: Callable[[str], str]
    is_list: bool
    """Whether a list gives alternatives, rather than being one value."""
    counts: Callable[[Mapping[str, Any]], bool]
    """Whether the term's gate may be open on a row."""


def gold_readers(environment: Environment) -> tuple[GoldReader, ...]:
    """Those of all terms whose golds stand in the row, and in nothing else."""
    found = []
    for term in environment.parts.terms:
        expect = gold_in(term.spec)
        if expect is None or getattr(term.spec, "function", None) or not term.spec.weight:
            continue
        value = expect if not hasattr(expect, "model_dump") else expect.model_dump(exclude_none=True)
        item = value.pop("any_of", None) if isinstance(value, dict) else None
        value = item if item is not None else value
        names = {name for text in texts_in(value) if "{" in text for name in compile_template(text).names}
        if "task" in names and not names & {"resources", "answer", "item"}:
            kind = kind_of("rewards", term.spec)
            normalise = kind.normalise or NORMALISERS[getattr(term.spec, "normalise", "none")]
            found.append(
                GoldReader(
                    term, compile_value(value), normalise, kind.several or item is not None, open_on(term.spec.gate)
                )
            )
    return tuple(found)


def canonical_json(value: Any) -> str:
    """A value as text that is equal for equal values."""
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except TypeError:  # its keys are of several kinds
        return repr(value)


def golds_of(
    readable: Sequence[GoldReader], task: Mapping[str, Any], constants: Mapping[str, Any]
) -> dict[str, tuple[Gold, ...]]:
    """The accepted values of a row by term; a term that the row does not fill is left out."""
    found = {}
    for reader in (one for one in readable if one.counts(task)):
        try:
            value = reader.fill(task=task, vars=constants)
        except TemplateError:
            continue
        values = value if reader.is_list and isinstance(value, (list, tuple)) else [value]
        texts = [one if isinstance(one, str) else canonical_json(one) for one in values]
        found[reader.term.name] = tuple(Gold(text, _gold_key(reader, text)) for text in texts)
    return found


def _gold_key(reader: GoldReader, text: str) -> str:
    exact = number(text) if getattr(reader.term.spec, "rule", "") == "numeric_match" else None
    return str(exact.normalize()) if exact is not None else reader.normalise(text)


def check_golds(environment: Environment, rows: Rows, found: DataFindings) -> None:
    """Findings over golds: empty, unreadable, merged by a normaliser, the same for most rows, absent from options."""
    for reader in gold_readers(environment):
        for split, some in rows.items():
            _check_empty(reader, some, found)
            _check_unreadable(reader, split, some, environment, found)
            _check_merged(reader, some, found)
            _check_shared(reader, some, found)
    for split, some in rows.items():
        if not _check_options(split, some, found):
            _check_constant(environment, split, some, found)


def _check_empty(reader: GoldReader, rows: Sequence[PromptRow], found: DataFindings) -> None:
    name = reader.term.name
    # An empty JSON text or list may well be what is asked for; an empty text is what everybody writes.
    bad = [row for row in rows if any(not gold.key for gold in row.golds.get(name, ()))]
    if bad:
        shown = next(gold.text for gold in bad[0].golds[name] if not gold.key)
        message = f"{len(bad)} of {len(rows)} golds are empty as '{name}' compares them, such as {shown!r}"
        found.add_hole("empty_gold", bad, f"{message}; fill them in, drop the rows or use another `normalise`", name)


def _check_unreadable(
    reader: GoldReader, split: str, rows: Sequence[PromptRow], environment: Environment, found: DataFindings
) -> None:
    term = reader.term
    if len(rows) > _MOST_READ and term.measure is None:
        found.notes.append(f"{term.name}: {_MOST_READ} of {len(rows)} golds in split '{split}' were read")
        rows = rows[:: -(-len(rows) // _MOST_READ)]
    bad, why = [], ""
    for row in rows:
        golds = row.golds.get(term.name, ())
        if any(not gold.key for gold in golds):
            continue  # said already
        if not reader.counts(row.task):
            continue
        fault = gold_fault(term, row.task, environment.spec.vars) or _json_fault(term, golds)
        if fault:
            bad.append(row)
            why = why or fault
    if bad:
        message = f"'{term.name}' cannot read {len(bad)} of {len(rows)} golds ({why:.200})"
        found.add_hole("unreadable_gold", bad, f"{message}; write them as the rule reads them", term.name)


def _json_fault(term: Term, golds: Sequence[Gold]) -> str:
    """The reason why a gold that begins as JSON is none: for a plain text, as it is taken for, nobody answers it."""
    if getattr(term.spec, "rule", "") != "json_match":
        return ""
    for gold in golds:
        if gold.text.lstrip()[:1] in ("{", "["):
            try:
                json.loads(gold.text)
            except ValueError as error:
                return f"not JSON: {error}"
    return ""


def _check_merged(reader: GoldReader, rows: Sequence[PromptRow], found: DataFindings) -> None:
    """Golds that mean different things and are one for the term: -5 and 5, C++ and C."""
    name = reader.term.name
    if reader.normalise is not qa and getattr(reader.term.spec, "normalise", "") != "qa":
        return
    by_key: dict[str, dict[str, PromptRow]] = defaultdict(dict)
    for row in rows:
        for gold in row.golds.get(name, ()):
            if gold.key:
                by_key[gold.key].setdefault(_gold_meaning(gold.text), row)
    merged = [(key, meanings) for key, meanings in by_key.items() if len(meanings) > 1]
    if merged:
        key, meanings = merged[0]
        shown = " and ".join(repr(one) for one in list(meanings)[:2])
        message = f"`qa` normalisation makes {shown} the same ({key!r}), so that one is right where the other is gold"
        bad = [row for _, some in merged for row in list(some.values())[1:]]
        found.add_hole("merged_golds", bad, f"{message}; use `normalise: case`, or numeric_match for numbers", name)


def _check_shared(reader: GoldReader, rows: Sequence[PromptRow], found: DataFindings) -> None:
    """Accepted answers that many rows of other golds accept too: the kind of thing that is asked for."""
    name = reader.term.name
    by_key: dict[str, dict[str, PromptRow]] = defaultdict(dict)
    for row in rows:
        golds = row.golds.get(name, ())
        for gold in golds[1:]:
            by_key[gold.key].setdefault(golds[0].key, row)
    shared = {key: at for key, at in by_key.items() if len(key) > _LABEL and len(at) >= _SHARED and key not in at}
    for key in sorted(shared, key=lambda one: -len(shared[one]))[:1]:
        message = f"{key!r} is accepted beside {len(shared[key])} different golds: it names none of them; take it out"
        found.add_hole("merged_golds", [*shared[key].values()], message, name)


def _gold_meaning(text: str) -> str:
    exact = number(text)
    return str(exact.normalize()) if exact is not None else _DROPPED.sub("", text.casefold())


def binomial_tail(hits: int, of: int, chance: float) -> float:
    """The probability of so many hits or more, each by `chance`: the upper tail of the binomial distribution."""
    if chance >= 1:
        return 1.0
    if chance <= 0:
        return float(hits <= 0)
    logs = (
        math.lgamma(of + 1)
        - math.lgamma(k + 1)
        - math.lgamma(of - k + 1)
        + k * math.log(chance)
        + (of - k) * math.log1p(-chance)
        for k in range(hits, of + 1)
    )
    return min(1.0, math.fsum(math.exp(one) for one in logs))


def _check_constant(environment: Environment, split: str, rows: Sequence[PromptRow], found: DataFindings) -> None:
    """A gold that most rows share, where golds are most of the reward."""
    paying = [spec for spec in environment.spec.rewards.values() if spec.usual_weight > 0]
    named = {reader.term.name for reader in gold_readers(environment)}
    weights = {name: spec.usual_weight for name, spec in environment.spec.rewards.items() if spec.usual_weight > 0}
    if 2 * sum(weight for name, weight in weights.items() if name in named) <= sum(weights.values()) or not paying:
        return
    joint = Counter(
        tuple((term, golds[0].key) for term, golds in row.golds.items() if golds) for row in rows if row.golds
    )
    total = joint.total()
    if total < 5 or not any(joint.most_common(1)[0][0]):
        return
    ((gold, count),) = joint.most_common(1)
    classes = len(joint)
    chance = 1 / classes if 1 < classes <= _MOST_CLASSES else 0.5
    if count / total >= _CONSTANT and (classes == 1 or binomial_tail(count, total, chance) < _RARE):
        shown = gold[0][1]
        message = f"the gold is {shown!r:.40} for {count} of {total} rows in split '{split}'"
        fix = f"whoever always says so earns {count / total:.0%}, by chance {chance:.0%}; balance the rows"
        same = [row for row in rows if tuple((term, one[0].key) for term, one in row.golds.items() if one) == gold]
        found.add_hole("constant_gold", same, f"{message}: {fix}", gold[0][0])


def _option_columns(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[int, Mapping[str, str]]]]:
    """Columns that hold each row's options: by the row's place, label (or number) to text, in order."""
    for name in dict.fromkeys(name for row in rows[:100] for name in row if _OPTIONS.search(str(name))):
        found: dict[int, Mapping[str, str]] = {}
        for at, row in enumerate(rows):
            value = row.get(name)
            if isinstance(value, Mapping) and set(value) >= {"label", "text"} and isinstance(value["text"], list):
                value = dict(zip(map(str, value["label"]), value["text"], strict=False))
            elif isinstance(value, (list, tuple)):
                value = {str(number): one for number, one in enumerate(value)}
            if isinstance(value, Mapping) and len(value) > 1:
                found[at] = {str(key): str(one) for key, one in value.items()}
        if 2 * len(found) >= len(rows) and found:
            yield name, found


def _place_of(golds: Sequence[str], options: Mapping[str, str]) -> int | None:
    """The place of a gold among the options, from 0: by its text, its label, its letter or its number."""
    keys, texts = [*options], [one.strip().casefold() for one in options.values()]
    for gold in map(str.strip, golds):
        if gold.casefold() in texts:
            return texts.index(gold.casefold())
        if gold in keys:
            return keys.index(gold)
        if (letter := _LETTER.fullmatch(gold)) and (place := ord(letter[1].upper()) - ord("A")) < len(keys):
            return place
    return None


def _check_options(split: str, rows: Sequence[PromptRow], found: DataFindings) -> bool:
    """Golds that are none of their row's options, and options whose place gives the gold away; True for the latter."""
    for column, options in _option_columns([row.task for row in rows]):
        places = [
            (row, len(options[at]), _place_of(_golds(row), options[at])) for at, row in enumerate(rows) if at in options
        ]
        known = [(row, size, place) for row, size, place in places if place is not None]
        if 2 * len(known) < len(places):
            continue
        lost = [row for row, _, place in places if place is None]
        message = (
            f"the gold is none of the options in '{column}' on {len(lost)} of {len(places)} rows of split '{split}'"
        )
        if lost:
            found.add_hole("gold_not_in_options", lost, f"{message}; mend the options or the gold")
        counts = Counter(place for _, _, place in known)
        ((place, count),) = counts.most_common(1)
        chance = sum(1 / size for _, size, _ in known) / len(known)
        if count / len(known) >= _CONSTANT and binomial_tail(count, len(known), chance) < _RARE:
            message = f"the gold is option {place + 1} of '{column}' on {count} of {len(known)} rows of split '{split}'"
            same = [row for row, _, at in known if at == place]
            found.add_hole("option_position", same, f"{message}, by chance {chance:.0%}; shuffle the options")
            return True
    return False


def _golds(row: PromptRow) -> list[str]:
    return [gold.text for golds in row.golds.values() for gold in golds] or [row.answer or ""]


def function_source(environment: Environment, key: str, target: object) -> str:
    """The text of the file of an author's function, `key` being where the spec names it; "" for none that is read."""
    file, _, _ = str(target or "").rpartition(":")
    try:
        return (environment.loaded.base_of(key) / file).read_text(encoding="utf-8") if file.endswith(".py") else ""
    except (OSError, ValueError):
        return ""


def end_flag_of(environment: Environment, term: str) -> str:
    """What a term reads that says that a world is over, however it ended; "" for none."""
    found = _OVER.search(_own_source(environment, term))
    return found[1] if found else ""


def _own_source(environment: Environment, term: str) -> str:
    """The text of a term's own function, or its template."""
    spec = environment.spec.rewards[term]
    name = re.escape(str(getattr(spec, "function", "")).rpartition(":")[2])
    own = re.search(rf"^def {name}\(.*?(?=^\S|\Z)", _term_source(environment, term), re.MULTILINE | re.DOTALL)
    return (own[0] if own else "") + str(getattr(spec, "value", ""))


def _term_source(environment: Environment, term: str) -> str:
    spec = environment.spec.rewards[term]
    targets = [getattr(one, "function", None) for one in (spec, getattr(spec, "compare", None))]
    return "\n".join(function_source(environment, f"rewards.{term}.function", one) for one in targets).strip()


def names_read(environment: Environment) -> list[str]:
    """The names in quotes or behind a dot in what terms read: what a place in the state may be called."""
    texts = " ".join(_own_source(environment, term) for term in environment.spec.rewards)
    return list(dict.fromkeys(_NAME_READ.findall(texts)))[:_MOST_NAMES_READ]


def column_test_of(environment: Environment, term: str) -> Callable[[str], object]:
    """Tells if a term with code reads a column; where that cannot be said it reads all."""
    code = _term_source(environment, term)
    if not code or _TAKES_ROWS.search(code):
        return bool
    text = f"{code}\n{environment.spec.rewards[term].model_dump_json()}".replace("context.answer", "")
    return lambda name: re.search(rf"[\"']{re.escape(name)}[\"']|\.{re.escape(name)}\b", text)


def unread_columns(environment: Environment, term: str, golds: Sequence[Trajectory]) -> list[str]:
    """The columns that prompts state and a term's code never reads, where it reads none with the right answer."""
    reads, some, found = column_test_of(environment, term), golds[:_MOST_READ], list[str]()
    for name in golds[0].task if not environment.parts.resources else ():
        values = [one.task.get(name) for one in some]
        parts = [[*map(str, one)] if isinstance(one, (list, tuple, Mapping)) else [str(one)] for one in values]
        forms = [
            (*held, canonical_json(value), *(mark.join(held) for mark in _LISTS))
            for held, value in zip(parts, values, strict=True)
        ]
        if all((one.answer or "").strip() in said for one, said in zip(some, forms, strict=True)):
            if reads(name):
                return []
        elif not reads(name) and len(set(map(str, values))) > 1:
            shown = [(one.messages[-1].content, part) for one, held in zip(some, parts, strict=True) for part in held]
            found += [name] * all(part in text and len(_WORD.findall(part)) < _PROSE for text, part in shown)
    return found
