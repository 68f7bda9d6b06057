"""Warnings of rewards and the oracle: what right answers do not earn, what anything earns, and what nothing earns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import correlation
from typing import Any, Final

from rlenv._base.text import strings_in
from rlenv.checks.subject import PATTERNS, WORDS, ReadSplit, Subject, all_golds, demands, fixed_text
from rlenv.errors import Finding
from rlenv.language.expressions import compile_expression
from rlenv.language.kinds import gold_in, gold_key, is_own, kind_of
from rlenv.language.spec import RewardSpec
from rlenv.messages import ParsedAction
from rlenv.rewards.answer import compile_pattern, extract
from rlenv.rewards.base import Term
from rlenv.rewards.normalise import number
from rlenv.trajectory import Trajectory

_CHARS_OF_A_TOKEN: Final = 7
"""More than a token has on average in any text: English has some 4.5."""
_PLACES: Final = {"one": 1, "two": 2, "three": 3, "four": 4, "ten": -1, "hundred": -2, "thousand": -3}
_LABELS: Final = frozenset(("yes", "no", "true", "false", "correct", "incorrect"))
_GOOD: Final = frozenset("answered exact_match f1 json_match math_equal numeric_match sql_match valid_calls".split())
_ENDS: Final = (_GOOD | {"contains", "json_schema"}) - {"valid_calls"}
_EXACT: Final = frozenset("exact_match json_match math_equal numeric_match sql_match tests".split())


def check_terms(subject: Subject) -> Iterator[Finding]:
    """Warnings of `rewards`, `success` and `oracle`."""
    for term in subject.terms:
        path = f"rewards.{term.name}"
        yield from _check_entry(subject, path, term.spec)
        yield from _check_counts(subject, path, term.spec)
        for split in subject.splits.values():
            yield from _check_golds(subject, path, term, split)
    for name, reward in subject.loaded.spec.rewards.items():
        path = f"rewards.{name}"
        yield from _check_unread(subject, path, reward)
    yield from _check_together(subject)
    spec = subject.loaded.spec
    if spec.oracle is None and spec.tools:
        yield subject.say("no-oracle/with-tools", "tools", at="key")
    silent = spec.steps and not any(step.call for step in spec.steps)
    for name in [name for name in subject.tools if silent and name != spec.answer.tool]:
        asks = rf"\b(?i:call|use|with|by|using)(?: the)? [`'\"]?{re.escape(name)}\b"
        if any(re.search(asks, one) for one in demands(subject)):
            yield subject.say("no-oracle/no-call", "oracle", name, at="key")
            return


def _check_golds(subject: Subject, path: str, term: Term, split: ReadSplit) -> Iterator[Finding]:
    """Gold values that are empty, all alike, or of another kind than their rule compares."""
    source, has_gold = str(subject.document.get(path)), bool(gold_key(term.spec)) and term.spec.kind == "rule"
    is_meant = has_gold and not is_own(term.spec) and "resources" not in source
    if not is_meant or term.spec.usual_weight < 0 or term.spec.when != "episode":
        return
    values, at = all_golds(subject, term, split), subject.gold_at(term)
    key = "value" if at != path else "key"
    yield from _check_taken_apart(subject, at, str(gold_in(term.spec)), split)
    for rules, form, what in WORDS["dumped"]:
        is_of = getattr(term.spec, "rule", "") in rules
        if is_of and values and all(re.fullmatch(form, gold or "") for gold in values):
            yield subject.say("odd-gold/dumped", at, what, str(values[0])[:40], at=key)
    empty = next((index for index, gold in enumerate(values) if gold is not None and not gold.strip()), None)
    if empty is not None:
        yield subject.say("empty-gold/of-row", at, empty + 1, split.name, at=key)
        return
    given = [gold.strip() for gold in values if gold is not None]
    if not given:
        return
    rule, spec, where = getattr(term.spec, "rule", ""), term.spec, f"rows of split '{split.name}'"
    sources = [str(gold_in(one) or "") for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
    is_written = bool(gold_key(spec)) and "{" not in str(gold_in(spec))
    of_rows = 5 if len(given[0]) < 2 or given[0].lower() in _LABELS else 3
    few = 2 if is_written else of_rows
    counts = not (is_written and any("{" in source for source in sources))
    decimals = [gold for gold in given if re.fullmatch(r"-?\d+\.\d+", gold)]
    # 3.10 is a text, as of a version; two letters of other scripts are a word.
    every = [gold for one in subject.splits.values() for gold in all_golds(subject, term, one)]
    is_text = any(gold is not None and re.fullmatch(r"-?\d+\.\d*0", gold) for gold in every)
    is_number = all(map(PATTERNS.number.fullmatch, given)) and not is_text
    signed = [gold for gold in given if gold.startswith("-") and getattr(spec, "normalise", "") == "qa"]
    if is_number and signed:
        yield subject.say("other-rule/signs", f"{path}.normalise", signed[0], signed[0][1:])
    elif is_number and (rule == "f1" or (rule == "exact_match" and decimals)):
        shown = decimals[0] if decimals else given[0]
        yield subject.say("other-rule/numbers", f"{path}.rule", shown, shown if decimals else f"{shown}.")
    short = next((gold for gold in given if len(gold) <= 2 and gold.isascii()), "")
    if rule == "contains" and short and getattr(spec, "max_chars", None) is None:
        yield subject.say("short-gold/contained", at, short, at=key)
    if counts and len({*given}) == 1 and len(given) >= few:
        yield subject.say("constant-gold/of-split", at, len(given), where, given[0][:40], at=key)
    sizes = sorted(abs(float(gold.replace(",", ""))) for gold in given) if is_number else [0.0]
    if rule == "numeric_match" and 0 < sizes[len(sizes) // 2] <= getattr(spec, "tolerance", 0):
        yield subject.say("any-answer/tolerance", f"{path}.tolerance", where)


def _check_taken_apart(subject: Subject, at: str, source: str, split: ReadSplit) -> Iterator[Finding]:
    """A letter of a text in the place of the text, and a list of accepted answers as one text."""
    rows, fixed = split.rows[:1_000], fixed_text(subject)
    for column, index in re.findall(r"\btask\.(\w+)\[(-?\d+)\]", source):
        texts = [row.get(column) for row in rows]
        if all(isinstance(text, str) and len(text) > 1 for text in texts) and not PATTERNS.letters.search(fixed):
            yield subject.say("odd-gold/of-letter", at, column, index, str(texts[0])[int(index)])
            return
    for column in re.findall(r"\btask\.(\w+)\s*\|\s*join\b", source):
        lists = [[*map(str, row[column])] for row in rows if isinstance(row.get(column), list) and len(row[column]) > 1]
        alike = [texts for texts in lists if any(one != two and one in two for one in texts for two in texts)]
        is_one = lists and not PATTERNS.several.search(fixed)
        if is_one and (PATTERNS.aliases.fullmatch(column) or 2 * len(alike) > len(lists)):
            yield subject.say("odd-gold/joined", at, column, ", ".join(lists[0])[:40])
            return


def _check_entry(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Keys of one entry that are not looked at, or that turn it around."""
    rule = getattr(spec, "rule", "")
    of = subject.loaded.spec.rewards.get(getattr(spec, "of", "") if spec.kind == "group" else "")
    is_best = of is not None and of.usual_weight > 0
    golds = [gold_in(one) for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0 and gold_key(one)]
    # A wrong answer may cost: one behind a gate, or one that is compared with something else than the right ones.
    is_right = spec.gate is None and (not golds or not gold_key(spec) or gold_in(spec) in golds)
    # What a judge or a state of its own is asked for may be a harm.
    is_right &= spec.kind != "verify" or gold_in(spec) in golds
    if is_right and spec.usual_weight < 0 and (is_best or rule in _GOOD or spec.kind in ("verify", "tests")):
        yield subject.say("paid-for-silence/weight", f"{path}.weight", spec.usual_weight)
    if spec.when == "turn" and spec.usual_weight > 0 and spec.kind == "rule" and rule in _ENDS:
        yield subject.say("odd-turns/answer", f"{path}.when")
    is_share = rule in (*_GOOD, "contains", "regex", "json_schema", "tool_called", "turn_count", "tool_call_count")
    if (is_share or spec.kind == "judge") and spec.range is not None and (spec.range[1] > 1 or spec.range[0] < 0):
        yield subject.say("odd-range/of-share", f"{path}.range", list(spec.range))
    if is_share and spec.clip is not None and (spec.clip[0] >= 1 or spec.clip[1] <= 0):
        yield subject.say("constant-term/clip", f"{path}.clip", list(spec.clip))
    others = [one for one in subject.loaded.spec.rewards.values() if one is not spec and one.usual_weight > 0]
    tells = rule in _ENDS or spec.kind in ("judge", "verify", "tests")
    if not spec.required and tells and all(_is_form(one) or getattr(one, "rule", "") == "length" for one in others):
        yield subject.say("only-form/not-required", f"{path}.required")
    of_wrong, of_right = _gate_openings(subject, spec.gate, spec.usual_weight)
    if of_wrong and spec.usual_weight > 0:
        key = "idle-gate/of-share" if of_right else "wrong-gate/of-wrong"
        yield subject.say(key, f"{path}.gate", spec.gate)
    is_sum = spec.when == "turn" and spec.over_turns == "sum" and spec.usual_weight > 0 and spec.clip is None
    if is_sum and rule in (*_GOOD, "tool_called", "regex"):
        yield subject.say("paid-for-length/sum", f"{path}.over_turns")
    forbids = {*compile_expression(subject.loaded.spec.success or "1 > 0", names=subject.loaded.spec.rewards).names}
    gate = compile_expression(spec.gate or "1 > 0", names=subject.loaded.spec.rewards, by_row=True)
    if gate.names and spec.usual_weight < 0 and path.partition(".")[2] in forbids:
        yield subject.say("wrong-gate/of-success", f"{path}.gate", spec.gate)


def _is_form(spec: RewardSpec) -> bool:
    """True for a term that pays for the form of an episode alone."""
    return kind_of("rewards", spec).form == "all"


def _gate_openings(subject: Subject, gate: str | None, weight: float) -> tuple[bool, bool]:
    """For what is wrong and for what is right, True where a gate opens; (False, True) where it asks for something else.

    Partial credit, which is paid less than what is right, may be for what is wrong alone.
    """
    terms, expression = subject.loaded.spec.rewards, compile_expression(gate or "1 > 0", by_row=True)
    asked = [terms[name] for name in expression.names]
    is_of_right = all(getattr(one, "rule", one.kind) in (*_GOOD, *_ENDS, "judge", "verify", "tests") for one in asked)
    is_fixed = any(gold_key(one) and "{{" not in str(gold_in(one)) for one in asked)  # the sign of who abstains
    if not asked or not is_of_right or is_fixed or any(map(is_own, asked)) or expression.columns:
        return False, True
    low, high = (bool(expression(dict.fromkeys(expression.names, value))) for value in (0.0, 1.0))
    is_partial = not high and all(weight < one.usual_weight for one in asked)
    return low and not is_partial, high


def _check_counts(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Counts that the limits never let be reached, or always; and those of which less is paid for more."""
    rule, limits = getattr(spec, "rule", ""), subject.limits
    calls = min(limits.turns * limits.calls_per_turn, limits.tool_calls) if subject.tools else 0
    if spec.usual_weight > 0:
        yield from _check_any_text(subject, path, spec, rule)
    limit = {"turn_count": limits.turns, "tool_call_count": calls, "tool_called": limits.tool_calls}.get(rule)
    least, most = getattr(spec, "min", None), getattr(spec, "max", None)
    # A text that is too short may well cost.
    is_brief = rule == "length" and PATTERNS.brief.search(f"{path.replace('.', ' ')} {fixed_text(subject)}")
    is_most = rule in ("turn_count", "tool_call_count") or is_brief
    if is_most and spec.usual_weight < 0 and most is not None and not least:
        yield subject.say("wrong-sign/weight", f"{path}.weight", spec.usual_weight, most + 1)
    if limit is None:
        return
    if least is not None and least > limit and spec.usual_weight:
        yield subject.say("never-pays/count", f"{path}.min", least, limit)
    lowest, usual = int(rule == "turn_count"), int(rule == "tool_called")
    if (usual if least is None else least) <= lowest and (most is None or most >= limit):
        place, up_to = (path, "any number") if most is None else (f"{path}.max", most)
        yield subject.say("always-pays/count", place, lowest, up_to, limit, at="key")


_TEXTS: Final = ("", "zq xv wk", "{}\n<b>7\n\n- Aa.\n" * 300 + "".join(map(chr, range(33, 255))))
"""Texts that have nothing in common: a pattern that is found in all of them is found in any."""


def _check_any_text(subject: Subject, path: str, spec: RewardSpec, rule: str) -> Iterator[Finding]:
    """Patterns, schemas and lengths that any text has, and lengths that are too short for what is asked for."""
    pattern, schema = getattr(spec, "pattern", ""), getattr(spec, "schema_", None) or {}
    if rule == "regex" and pattern and "{{" not in pattern:
        made = compile_pattern(pattern)
        if all((made.fullmatch if getattr(spec, "full", False) else made.search)(text) for text in _TEXTS):
            yield subject.say("any-answer/pattern", f"{path}.pattern")
        # What stands in capitals alone is a sign between author and model, which nobody comes upon.
        word, told = re.sub(r"\\[bAzZ]|[\^$]", "", pattern), [row for _, row in subject.each(50)]
        if re.fullmatch(r"[A-Z]{3}[A-Z _-]*", word) and word not in f"{fixed_text(subject)} {told}":
            yield subject.say("untold-name/keyword", f"{path}.pattern", word)
    open_keys = {"type", "properties", "title", "description", "$schema"}
    is_open = schema.get("type") == "object" and schema.get("properties") and schema.keys() <= open_keys
    if rule == "json_schema" and is_open:
        yield subject.say("any-answer/no-keys", f"{path}.schema", at="key")
    if rule == "length":
        least, most, unit = getattr(spec, "min", 0), getattr(spec, "max", None), getattr(spec, "unit", "chars")
        many, few = (20_000, 150) if unit == "chars" else (4_000, 25)
        if (least or 0) < 1 and (most is None or most >= many):
            yield subject.say("always-pays/length", path, least or 0, most or f"any number of {unit}", at="key")
        asked = [found for one in demands(subject) if (found := PATTERNS.detailed.search(one))]
        if asked and most is not None and most < few and getattr(spec, "of", "message") != "answer":
            yield subject.say("limits/detail", f"{path}.max", asked[0][0], most, unit)


def _check_together(subject: Subject) -> Iterator[Finding]:
    """The findings on the terms as a whole."""
    spec, document = subject.loaded.spec, subject.document
    rules = {name: getattr(reward, "rule", reward.kind) for name, reward in spec.rewards.items()}
    forms = {name for name, reward in spec.rewards.items() if _is_form(reward)}
    paid = [name for name, reward in spec.rewards.items() if reward.usual_weight > 0]
    free = [name for name, reward in spec.rewards.items() if reward.usual_weight == 0]
    # Patterns and schemas that are the same for every row.
    looks = [(name, rules[name] in ("regex", "json_schema")) for name in paid if name not in forms]
    if looks and all(is_text and "task" not in str(document.get(f"rewards.{name}")) for name, is_text in looks):
        yield subject.say("any-answer/same-for-all", f"rewards.{looks[0][0]}", at="key")
    needed = [name for name in paid if spec.rewards[name].required and spec.success is None]
    judges = [name for name in needed if spec.rewards[name].kind == "judge"]
    if judges and (others := [name for name in needed if name not in judges and name not in forms]):
        yield subject.say("judged-success/by-default", f"rewards.{judges[0]}", others[0], at="key")
    if paid and forms.issuperset(paid):
        judged = [name for name in free if name not in forms]
        hint = f"give '{judged[0]}' a weight above 0" if judged else "add a term that looks at the answer"
        place, at = (f"rewards.{judged[0]}.weight", "value") if judged else ("rewards", "key")
        yield subject.say("only-form/paid", place, ", ".join(paid), hint, at=at)
    if spec.success is not None:
        names = compile_expression(spec.success, names=spec.rewards).names
        if names and forms.issuperset(names) and not forms.issuperset(rules):
            yield subject.say("only-form/of-success", "success", ", ".join(names))
    same: dict[str, str] = {}
    for name in spec.rewards:
        entry = document.get(f"rewards.{name}")
        key = repr(sorted((str(one), repr(value)) for one, value in entry.items() if one not in ("weight", "required")))
        if key in same:
            yield subject.say("same-term/twice", f"rewards.{name}", same[key], at="key")
        same.setdefault(key, name)
    is_asked = document.has("answer") and spec.answer.from_ != "tool" and spec.user is None
    of_form = [name for name, one in spec.rewards.items() if one.kind == "rule" and rules[name] != "answered"]
    if is_asked and forms.intersection(of_form) == {*spec.rewards}:
        yield subject.say("unread-answer/by-any", "answer", at="key")
    yield from _check_exclusive(subject, paid)
    highest = max((abs(reward.usual_weight) for reward in spec.rewards.values()), default=0.0)
    for name, reward in spec.rewards.items():
        if 0 < abs(reward.usual_weight) < highest / 1_000 and not isinstance(reward.weight, str):
            yield subject.say("lost-weight/of-term", f"rewards.{name}.weight", reward.usual_weight, highest)
    told = {name for name in paid if name not in forms and rules[name] != "json_schema"}
    form = [name for name in paid if name in forms or (told and rules[name] == "json_schema")]
    gold = [name for name in paid if name not in form]
    judged = [name for name in gold if spec.rewards[name].kind == "judge"]
    # Of writing, what else is looked at is a condition; what is right or wrong is compared as a whole.
    checked = [name for name in gold if rules[name] in _EXACT]
    gated = {name for name in paid if spec.rewards[name].gate is not None}
    free = [name for name in form if not _is_of_right(spec.rewards, name, gold)]
    taste = [name for name in judged if name not in gated]
    is_known = not any(isinstance(spec.rewards[name].weight, str) for name in paid)
    for some, others, factor in ((free, gold, 1.0), (taste, checked, 3.0)) if is_known else ():
        mine, theirs = (sum(spec.rewards[one].usual_weight for one in names) for names in (some, others))
        if others and some and mine >= factor * theirs:
            what = "the form" if some[0] in form else "a judge's taste"
            yield subject.say("only-form/more", f"rewards.{some[0]}.weight", what, ", ".join(some), ", ".join(others))


def _check_exclusive(subject: Subject, paid: Sequence[str]) -> Iterator[Finding]:
    """Terms of which one pays just where another does not; steps of a scale are paid otherwise than each other."""
    spans: dict[Any, list[tuple[str, float, float, float]]] = {}
    for name in [name for name in paid if subject.loaded.spec.rewards[name].gate is None]:
        spec: Any = subject.loaded.spec.rewards[name]
        rule, is_call = getattr(spec, "rule", ""), getattr(spec, "rule", "") == "tool_called"
        if rule not in ("tool_called", "tool_call_count", "turn_count", "length"):
            continue
        of = "calls" if "call" in rule else (rule, getattr(spec, "of", ""), getattr(spec, "unit", ""))
        least = is_call if spec.min is None else spec.min
        most = math.inf if spec.max is None or is_call else spec.max  # others may be called too
        for other, low, high, weight in (others := spans.setdefault(of, [])):
            if (least > high or most < low) and (of == "calls" or weight == spec.usual_weight):
                yield subject.say("never-pays/beside", f"rewards.{name}", name, other, at="key")
        others.append((name, least, most, spec.usual_weight))


def _is_of_right(rewards: Mapping[str, RewardSpec], name: str, gold: Sequence[str]) -> bool:
    """True for a term whose gate is closed where no term that tells right from wrong pays anything."""
    if (gate := rewards[name].gate) is None:
        return False
    expression = compile_expression(gate, names=rewards, by_row=True)
    return not expression({one: float(one not in gold) for one in expression.names})


def _check_unread(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """A judge, a call or hidden tests that are shown nothing of what the policy wrote, whatever that is."""
    key = {"judge": "prompt", "verify": "arguments", "tests": "code"}.get(spec.kind)
    if key is None or (spec.kind == "verify" and not _is_fixed(subject, getattr(spec, "tool", ""))):
        return
    texts = [getattr(spec, key), *(getattr(one, "prompt", None) for one in getattr(spec, "judges", ()))]
    if any(PATTERNS.written.search(filled) for text in texts if text for filled in _fill_in(text)):
        return
    name = "{{ message }}" if spec.kind == "judge" else "{{ answer }}"
    yield subject.say("unread-answer/by-term", f"{path}.{key}", name)


def _is_fixed(subject: Subject, name: str) -> bool:
    """True for a tool whose results no episode changes: it reads a database that nobody writes, or nothing at all."""
    tool = subject.tools.get(name)
    return tool is not None and tool.kind in ("sql", "calculator", "search", "code", "command") and not tool.mutates


def _fill_in(value: Any) -> Iterator[str]:
    for _, text in strings_in(value, ()):
        yield from re.findall(r"\{[{%].*?[}%]\}", text, re.DOTALL)


def _text_shape(text: str) -> str:
    return next((name for name, pattern in WORDS["shapes"] if re.fullmatch(pattern, text.strip())), "")


def _shown_answer(subject: Subject) -> str:
    """An answer that the prompt shows as an example, such as <answer>12%</answer>; "" where none has a shape."""
    answer, fixed = subject.loaded.spec.answer, fixed_text(subject)
    tagged = re.findall(rf"<{re.escape(answer.tag)}>([^<>\n]*)</", fixed) if answer.from_ == "tag" else []
    found = extract(answer, ParsedAction(fixed)) if answer.from_ in ("boxed", "regex") else None
    return next(filter(_text_shape, [*tagged, found.text if found is not None else ""]), "")


def check_asked_shapes(subject: Subject, rule: str, golds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """An answer that the prompt shows as an example, and that looks like no gold value."""
    if rule not in ("exact_match", "f1", "numeric_match"):
        return
    shown, shapes = _shown_answer(subject), {_text_shape(gold) for gold in golds}
    # Where numbers are compared, a percentage and an amount of money are numbers.
    numbers = {"a percentage", "a number", *(name for name, _ in WORDS["shapes"] if name.startswith("an amount"))}
    alike = numbers if rule == "numeric_match" else set[str]()
    dates = [shape for shape in sorted(shapes) if shape.startswith("a date")]
    if len(dates) > 1 and rule == "exact_match":
        yield f"the gold values are dates of several forms ({'; '.join(dates)})", "write them in one form"
    for mask in PATTERNS.mask.findall(fixed_text(subject)) if rule == "exact_match" else ():
        form = "".join({"N": r"\d", "X": r"\w"}.get(sign, re.escape(sign)) for sign in mask)
        if lost := [gold for gold in golds if re.fullmatch(form, gold) is None]:
            yield f"the prompt shows the form {mask}, and a gold value is {lost[0][:40]!r}", "write both alike"
    if (wanted := _text_shape(shown)) and golds and not shapes & (alike if wanted in alike else {wanted}):
        yield f"the prompt shows the answer {shown[:40]!r}, and a gold value is {golds[0][:40]!r}", "write both alike"


def check_asked_numbers(subject: Subject, term: Term, golds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Numbers that lie outside of what the prompt asks for, or that what is rounded as it says does not meet."""
    given = [float(value) for gold in golds if (value := number(gold)) is not None]
    rule = getattr(term.spec, "rule", "")
    if len(given) < len(golds) or rule not in ("numeric_match", "math_equal", "exact_match"):
        return
    sentences = [sentence for sentence in demands(subject) if PATTERNS.asks.search(sentence)]
    is_share = max(map(abs, given)) <= 1 and any(value % 1 for value in given)
    said = [found[0] for text in sentences if (found := PATTERNS.per_cent.search(text))]
    said += [shown] if _text_shape(shown := _shown_answer(subject)) == "a percentage" else []
    if is_share and said:
        yield f"the prompt asks for '{said[0]}', and a gold value is {golds[0]}", "write percentages in both"
        return
    for text in sentences:
        spans = [(found[0], float(found[1]), float(found[2])) for found in PATTERNS.between.finditer(text)]
        spans += [(found[0], 0.0, 1.0) for found in PATTERNS.share.finditer(text) if not PATTERNS.per_cent.search(text)]
        for words, low, high in spans:
            outside = [gold for gold, value in zip(golds, given, strict=True) if not low <= value <= high]
            if low < high and outside:
                yield f"the prompt says '{words}', and a gold value is {outside[0]}", "write one range in both"
                return
        if rule == "numeric_match" and (rounded := PATTERNS.decimals.search(text)) is not None:
            word = rounded[rounded.lastindex or 0].lower()
            places = int(word) if word.isdecimal() else _PLACES.get(word, 0)  # else a whole number
            near, share_of = getattr(term.spec, "tolerance", 0), getattr(term.spec, "relative_tolerance", 0)
            for gold, one in zip(golds, given, strict=True):
                if abs(one - round(one, places)) > (near or 0) + (share_of or 0) * abs(one):
                    what = f"the prompt says '{rounded[0]}', and a gold value is {gold}: what is rounded so is wrong"
                    yield what, f"write tolerance: {0.5 * 10**-places:g}"
                    return


def check_long_episodes(subject: Subject, got: Trajectory, where: str) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Oracles that take more tokens than an episode may, by the fewest that so many characters are."""
    limit = subject.limits.response_tokens
    observed = [turn.observation.messages for turn in got.turns if turn.observation is not None]
    texts = [turn.action for turn in got.turns] + [message.content for messages in observed for message in messages]
    if limit is not None and sum(map(len, texts)) / _CHARS_OF_A_TOKEN > limit:
        yield "limits/tokens", ("limits", "response_tokens"), (limit, where)


def check_told_otherwise(subject: Subject, oracle: Mapping[tuple[str, int], Trajectory]) -> Iterator[Finding]:
    """A search whose results never show what the oracle answers, or a look-up whose only result is another number."""
    pairs: list[tuple[str, str, str]] = []
    for got in oracle.values():
        results = [result for turn in got.turns for result in turn.results if not result.is_error]
        texts, answer = "\n".join(result.text for result in results), (got.answer or "").strip()
        kinds = {subject.tools[result.name].kind for result in results if result.name in subject.tools}
        is_word = kinds == {"search"} and len(answer) > 3 and re.search(r"[^\W\d]{4}", answer) is not None
        both = number(texts.strip()), number(answer)
        # Where the question counts, the oracle may well reckon with what it is told; what a prompt names is a choice.
        counts = PATTERNS.counted.search("\n".join(one.content for one in got.messages if one.role == "user"))
        is_word = is_word and not any(answer.lower() in one.content.lower() for one in got.messages)
        is_number = len(results) == 1 and kinds <= {"python", "sql", "mcp"} and None not in both and both[0] != both[1]
        if (not is_number or counts) and not (is_word and answer.lower() not in texts.lower()):
            return
        pairs.append((results[0].name, texts[:30], answer[:30]))
    # What follows from the other by a fixed step, factor or rounding is the oracle's own.
    told, said = ([float(number(pair[at]) or 0) for pair in pairs] for at in (1, 2))
    is_finite = max(map(abs, (*told, *said)), default=0) < 1e99
    follows = is_finite and len({*told}) > 1 < len({*said}) and abs(correlation(told, said)) > 0.99
    if len(pairs) > 1 and (not follows or not number(pairs[0][2])):
        yield subject.say("wrong-oracle/otherwise", f"tools.{pairs[0][0]}", *pairs[0][1:], at="key")


def check_came_otherwise(subject: Subject, first: Trajectory, second: Trajectory) -> Iterator[Finding]:
    """An episode that was played twice with one seed, and came out otherwise."""
    for name, term in first.reward.terms.items():
        other = second.reward.terms[name]
        is_same = (term.value, term.status) == (other.value, other.status)
        if subject.loaded.spec.rewards[name].kind != "tests" and not is_same:
            yield subject.say("unsteady/reward", f"rewards.{name}", term.value, other.value, name, at="key")
            return
    told = [[result.text for turn in one.turns for result in turn.results] for one in (first, second)]
    if told[0] != told[1]:
        yield subject.say("unsteady/results", "tools", at="key")
