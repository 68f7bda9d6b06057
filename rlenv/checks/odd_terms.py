"""Warnings of rewards and the oracle: what right answers do not earn, what anything earns, and what nothing earns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rlenv._base.text import strings_in
from rlenv.checks.odd_parts import never_fits
from rlenv.checks.odd_rows import all_golds, gold_term
from rlenv.checks.subject import ReadSplit, Subject, calls_in, prompt_texts
from rlenv.errors import Finding
from rlenv.language.expressions import compile_expression
from rlenv.language.kinds import gold_in, gold_key, is_own, kind_of
from rlenv.language.spec import RewardSpec
from rlenv.language.templates import compile_template
from rlenv.rewards.base import Term
from rlenv.trajectory import Trajectory

NOISE: Final = "zq xv wk"
LONG: Final = f"the answer '{NOISE}' behind 400 words"
_LABELS: Final = frozenset(("yes", "no", "true", "false", "correct", "incorrect"))
_GOOD: Final = frozenset("answered exact_match f1 json_match math_equal numeric_match sql_match valid_calls".split())
_ENDS: Final = (_GOOD | {"contains", "json_schema"}) - {"valid_calls"}
_EXACT: Final = frozenset("exact_match json_match math_equal numeric_match sql_match tests".split())
_NUMBER: Final = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_WORDS: Final = re.compile(r"(?:[^\W\d_]{3,}|of|the|a|an)(?:[\s'-]+[^\W\d_]{2,}){1,}")
_WORK: Final = r"work|working|solution|formula|expression|rationale|explanation|gold\w*"
_GOLD_PATH: Final = re.compile(r"\s*\{\{-?\s*task\.(\w+)\s*-?\}\}\s*")


def check_terms(subject: Subject) -> Iterator[Finding]:
    """Warnings of `rewards`, `success` and `oracle`."""
    for term in subject.terms:
        path = f"rewards.{term.name}"
        yield from _entry(subject, path, term.spec)
        yield from _counts(subject, path, term.spec)
        if _is_gold(subject, term):
            for split in subject.splits.values():
                yield from _golds(subject, path, term, split)
    yield from _together(subject)
    spec = subject.loaded.spec
    if spec.oracle is None and spec.tools:
        message = "there are tools and no oracle: nothing shows that the tasks can be solved"
        yield subject.document.warning("tools", message, "add 'oracle:'", "no-oracle", at="key")


def _is_gold(subject: Subject, term: Term) -> bool:
    """True for a rule that compares an answer, or a text, with what stands in the spec and the row."""
    spec = term.spec
    source = str(subject.document.get(f"rewards.{term.name}"))
    has_gold = bool(gold_key(spec)) or getattr(spec, "rule", "") in ("regex", "json_schema")
    return spec.kind == "rule" and has_gold and not is_own(spec) and "resources" not in source


def _golds(subject: Subject, path: str, term: Term, split: ReadSplit) -> Iterator[Finding]:
    """Gold values that are empty, all alike, or of another kind than their rule compares, and schemas of nothing."""
    if term.spec.usual_weight < 0 or term.spec.when != "episode":
        return
    values, at = all_golds(subject, term, split), subject.gold_at(term)
    empty = next((index for index, gold in enumerate(values) if gold is not None and not gold.strip()), None)
    if empty is not None:
        message = f"row {empty + 1} of split '{split.name}' has an empty gold value: an empty answer earns it"
        key = "value" if at != path else "key"
        yield subject.document.warning(at, message, "fill the column, or drop such rows", "empty-gold", at=key)
        return
    if why := never_fits(getattr(term.spec, "schema_", None) or {}):
        place = f"{path}.schema" if subject.document.has(f"{path}.schema") else path
        yield subject.document.warning(place, f"no answer can fit the schema: {why}", "mend the schema", "never-fits")
    yield from _values(subject, path, term, split, [gold for gold in values if gold is not None])


def _values(subject: Subject, path: str, term: Term, split: ReadSplit, told: Sequence[str]) -> Iterator[Finding]:
    """Golds that are all alike, or of another kind than their rule compares."""
    rule, spec, where = getattr(term.spec, "rule", ""), term.spec, f"rows of split '{split.name}'"
    given = [gold.strip() for gold in told]
    first, most = next(iter(told), ""), max(Counter(told).values(), default=0)
    sources = [str(gold_in(one) or "") for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
    is_said = bool(gold_key(spec)) and "{" not in str(gold_in(spec))
    few = 2 if is_said else 6 if len(first) < 2 or first.lower() in _LABELS else 3
    counts = rule not in ("regex", "json_schema") and (not is_said or not any("{" in source for source in sources))
    decimal = next((gold for gold in given if re.fullmatch(r"-?\d+\.\d+", gold)), "")
    short = next((gold for gold in given if 0 < len(gold) <= 2), "")
    are_numbers = bool(given) and all(_NUMBER.fullmatch(gold) for gold in given)
    sizes = sorted(abs(float(gold.replace(",", ""))) for gold in given) if are_numbers else []
    are_words = bool(given) and all(_WORDS.fullmatch(gold) for gold in given)
    at = subject.gold_at(term)
    for odd, place, message, hint, code in (
        (rule == "f1" and are_numbers, f"{path}.rule",
         f"the gold values are numbers, and f1 compares words: {first}.0 is another word than {first}",
         "write rule: numeric_match", "other-rule"),
        (rule == "exact_match" and are_numbers and decimal, f"{path}.rule",
         f"the gold values are numbers, and {decimal}0 is another text than {decimal}",
         "write rule: numeric_match", "other-rule"),
        (rule == "numeric_match" and not getattr(spec, "tolerance", 0) and not getattr(spec, "relative_tolerance", 0)
         and 2 * sum(bool(re.fullmatch(r"-?\d+\.\d{9,}", gold)) for gold in given) > len(given), at,
         f"the gold values have decimals that nobody writes, such as {decimal}, and there is no tolerance",
         "round them, or write tolerance: 0.005", "gold-form"),
        (rule == "math_equal" and are_words, f"{path}.rule",
         f"the gold values are words, such as {first[:40]!r}, and math_equal compares formulas",
         "write rule: exact_match", "other-rule"),
        (rule == "contains" and short and getattr(spec, "max_chars", None) is None, at,
         f"a gold value is '{short}', which stands in most answers: a list of everything earns it",
         "compare the whole answer: rule: exact_match", "short-gold"),
        (counts and len(told) == most >= few, at, f"all {most} {where} have the gold value {first[:40]!r}",
         "a constant answer earns it", "constant-gold"),
        (counts and len(told) >= 10 and len(told) > most >= 0.8 * len(told), at,
         f"{most} of {len(told)} {where} have the same gold value",
         "a constant answer earns nearly all", "constant-gold"),
        (rule == "numeric_match" and sizes and 0 < sizes[len(sizes) // 2] <= getattr(spec, "tolerance", 0),
         f"{path}.tolerance",
         f"the tolerance is as large as the gold values of half of the {where}", "make it smaller", "any-answer"),
        (rule == "exact_match" and any(len(gold.split()) > 25 for gold in told), at,
         "a gold value has more than 25 words, which nobody writes to the letter",
         "take f1, contains or a judge", "long-gold"),
    ):  # fmt: skip
        if odd:
            yield subject.document.warning(place, message, hint, code, at="key" if place == path else "value")


def _entry(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Keys of one entry that are not looked at, or that turn it around."""
    document, rule = subject.document, getattr(spec, "rule", "")
    of = subject.loaded.spec.rewards.get(getattr(spec, "of", "") if spec.kind == "group" else "")
    is_best = of is not None and of.usual_weight > 0
    if spec.usual_weight < 0 and (is_best or rule in _GOOD or spec.kind in ("verify", "tests", "judge")):
        message = f"a weight of {spec.usual_weight:g} takes away for what is right: silence earns more"
        yield document.warning(f"{path}.weight", message, "write a weight above 0", "paid-for-silence")
    if document.has(f"{path}.over_turns") and spec.when != "turn":
        message = "'over_turns' is looked at with 'when: turn' alone"
        yield document.warning(f"{path}.over_turns", message, "add when: turn, or take it out", "idle-key", at="key")
    if spec.when == "turn" and spec.usual_weight > 0 and spec.kind == "rule" and rule in _ENDS:
        message = "it compares an answer, which only the last turn has: each call on the way lowers the mean"
        yield document.warning(f"{path}.when", message, "take 'when: turn' out", "odd-turns")
    if rule == "length":
        least, most = getattr(spec, "min", None), getattr(spec, "max", None)
        if most is not None and most <= 1:
            yield document.warning(f"{path}.max", f"nothing fits into {most} characters", "raise it", "never-pays")
        if not least and most is not None and most >= 1_000_000:
            yield document.warning(f"{path}.max", "no action is longer: it always pays", "lower it", "always-pays")
    if rule == "tool_called" and not getattr(spec, "min", 1) and getattr(spec, "max", None) is None:
        yield document.warning(path, "it asks for no call: it always pays", "write min: 1", "always-pays", at="key")
    is_share = rule in (*_GOOD, "contains", "regex", "json_schema", "tool_called", "turn_count", "tool_call_count")
    if is_share and spec.range is not None and (spec.range[1] > 1 or spec.range[0] < 0):
        message = f"the rule gives 0 to 1, and the range {list(spec.range)} leaves little of it"
        yield document.warning(f"{path}.range", message, "take 'range' out", "odd-range")
    if is_share and spec.clip is not None and (spec.clip[0] >= 1 or spec.clip[1] <= 0):
        message = f"the rule gives 0 to 1, and {list(spec.clip)} makes one value of all"
        yield document.warning(f"{path}.clip", message, "take 'clip' out", "constant-term")
    if spec.on_invalid == "retry" and spec.kind == "rule" and not is_own(spec):
        message = "a rule gives the same value each time it is asked"
        yield document.warning(f"{path}.on_invalid", message, "take it out", "idle-key")
    others = [one for one in subject.loaded.spec.rewards.values() if one is not spec and one.usual_weight > 0]
    tells = rule in _ENDS or spec.kind in ("judge", "verify", "tests")
    if not spec.required and tells and all(_is_form(one) or getattr(one, "rule", "") == "length" for one in others):
        message = "it alone tells right from wrong: where it cannot be measured, the form is paid as if nothing were"
        yield document.warning(f"{path}.required", message, "take it out", "only-form")
    if spec.gate is not None and spec.usual_weight > 0 and _is_of_wrong(subject, spec):
        message = f"'{spec.gate}' holds for what is wrong: it is paid for that alone"
        yield document.warning(f"{path}.gate", message, "turn the comparison around", "wrong-gate")
    if (
        spec.when == "turn"
        and spec.over_turns == "sum"
        and spec.usual_weight > 0
        and spec.clip is None
        and rule in (*_GOOD, "tool_called", "regex")
    ):
        message = "the sum over all turns is paid: the longer an episode, the more it earns"
        yield document.warning(f"{path}.over_turns", message, "write mean", "paid-for-length")
    forbids = {*compile_expression(subject.loaded.spec.success or "1 > 0", names=subject.loaded.spec.rewards).names}
    name = path.partition(".")[2]
    if spec.gate is not None and spec.usual_weight < 0 and name in forbids:
        message = f"success forbids it, and where '{spec.gate}' does not hold it costs nothing: what fails may do it"
        yield document.warning(f"{path}.gate", message, "take the gate out", "wrong-gate")
    if spec.gate is not None and _holds_always(spec.gate):
        message = f"'{spec.gate}' holds for every value of a share"
        yield document.warning(f"{path}.gate", message, "compare with a value above 0", "idle-gate")


def _is_form(spec: RewardSpec) -> bool:
    """True for a term that pays for the form of an episode alone."""
    return kind_of("rewards", spec).form == "all"


def _is_of_wrong(subject: Subject, spec: RewardSpec) -> bool:
    """True for a gate that lets through what others call wrong, and that alone; a judge may give partial credit."""
    terms = subject.loaded.spec.rewards
    expression = compile_expression(spec.gate or "", names=terms, by_row=True)
    if not expression.names:
        return False
    if spec.kind == "judge" and all(spec.usual_weight < terms[name].usual_weight for name in expression.names):
        return False
    rules = [getattr(terms[name], "rule", terms[name].kind) for name in expression.names]
    if not rules or any(rule not in (*_GOOD, *_ENDS, "judge", "verify", "tests") for rule in rules):
        return False
    low, high = (bool(expression(dict.fromkeys(expression.names, value))) for value in (0.0, 1.0))
    return low and not high


def _holds_always(source: str) -> bool:
    found = re.fullmatch(r"\s*\w+\s*(>=|>)\s*(-?[\d.]+)\s*", source)
    return found is not None and (float(found[2]) < 0 or (found[1] == ">=" and float(found[2]) == 0))


def _counts(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Counts that the limits never let be reached, or always."""
    rule, limits, document = getattr(spec, "rule", ""), subject.limits, subject.document
    most = {"turn_count": limits.turns, "tool_call_count": limits.turns * limits.calls_per_turn,
            "tool_called": limits.tool_calls}.get(rule)  # fmt: skip
    if most is None:
        return
    if rule == "tool_call_count":
        most = min(most, limits.tool_calls) if subject.tools else 0
    key = "turns" if rule == "turn_count" else "tool_calls"
    least, highest = getattr(spec, "min", None), getattr(spec, "max", None)
    if least is not None and least > most and spec.usual_weight:
        what = f"limits.{key} is {getattr(limits, key)}" if subject.tools or key == "turns" else "there are no tools"
        message = f"it asks for {least} at least, and {what}: it never pays"
        yield document.warning(f"{path}.min", message, f"make it at most {most}", "never-pays")
    if least in (None, 0) and highest is not None and highest >= most:
        message = f"it allows {highest}, and limits.{key} is {getattr(limits, key)}: it always pays"
        yield document.warning(f"{path}.max", message, f"make it less than {most}", "always-pays")
    if rule == "turn_count" and least in (0, 1) and highest is None:
        yield document.warning(
            path, "every episode has a turn: it always pays", "ask for more", "always-pays", at="key"
        )


def _together(subject: Subject) -> Iterator[Finding]:
    """The findings on the terms as a whole."""
    spec, document = subject.loaded.spec, subject.document
    rules = {name: getattr(reward, "rule", reward.kind) for name, reward in spec.rewards.items()}
    forms = {name for name, reward in spec.rewards.items() if _is_form(reward)}
    paid = [name for name, reward in spec.rewards.items() if reward.usual_weight > 0]
    free = [name for name, reward in spec.rewards.items() if reward.usual_weight == 0]
    if paid and forms.issuperset(paid):
        judged = [name for name in free if name not in forms]
        message = f"only the form is paid ({', '.join(paid)}): no answer earns more than a wrong one"
        hint = f"give '{judged[0]}' a weight above 0" if judged else "add a term that looks at the answer"
        place = f"rewards.{judged[0]}.weight" if judged else "rewards"
        yield document.warning(place, message, hint, "only-form", at="value" if judged else "key")
    if spec.success is not None:
        names = compile_expression(spec.success, names=spec.rewards).names
        if names and forms.issuperset(names) and not forms.issuperset(rules):
            message = f"success asks for the form alone ({', '.join(names)})"
            yield document.warning("success", message, "name the term that looks at the answer", "only-form")
    same: dict[str, str] = {}
    for name in spec.rewards:
        entry = document.get(f"rewards.{name}")
        key = repr(sorted((str(one), repr(value)) for one, value in entry.items() if one not in ("weight", "required")))
        if key in same:
            message = f"it measures what '{same[key]}' measures"
            yield document.warning(f"rewards.{name}", message, "take one out", "same-term", at="key")
        same.setdefault(key, name)
    is_asked = document.has("answer") and spec.answer.from_ != "tool" and spec.user is None
    is_unread = all(
        reward.kind == "rule" and name in forms and rules[name] != "answered" for name, reward in spec.rewards.items()
    )
    if is_asked and is_unread:
        yield document.warning("answer", "no term looks at the answer", "add one", "unread-answer", at="key")
    highest = max((abs(reward.usual_weight) for reward in spec.rewards.values()), default=0.0)
    for name, reward in spec.rewards.items():
        if 0 < abs(reward.usual_weight) < highest / 1_000 and not isinstance(reward.weight, str):
            message = f"a weight of {reward.usual_weight:g} is lost beside one of {highest:g}"
            yield document.warning(f"rewards.{name}.weight", message, "bring them nearer together", "lost-weight")
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
        if (
            others
            and some
            and sum(spec.rewards[one].usual_weight for one in some)
            >= factor * sum(spec.rewards[one].usual_weight for one in others)
        ):
            what = "the form" if some[0] in form else "a judge's taste"
            message = f"{what} ({', '.join(some)}) is paid more than what is right ({', '.join(others)})"
            yield document.warning(f"rewards.{some[0]}.weight", message, "lower it", "only-form")
    yield from _shown_gold(subject)


def _is_of_right(rewards: Mapping[str, RewardSpec], name: str, gold: Sequence[str]) -> bool:
    """True for a term whose gate is closed where no term that tells right from wrong pays anything."""
    if (gate := rewards[name].gate) is None:
        return False
    expression = compile_expression(gate, names=rewards, by_row=True)
    return not expression({one: float(one not in gold) for one in expression.names})


def _shown_gold(subject: Subject) -> Iterator[Finding]:
    """Right answers in what the policy reads: the column that a term compares with, and the work behind it."""
    spec, warn = subject.loaded.spec, subject.document.warning
    read = [(path, text) for path, text in prompt_texts(spec.prompt)]
    for place in (
        ("observation", "template"),
        ("user", "cues"),
        ("user", "replies"),
        *(("tools", n) for n in spec.tools),
    ):
        read += strings_in(subject.document.get(place), place)
    golds = {column: name for name, reward in spec.rewards.items() for column in _gold_columns(reward)}
    for path, text in read:
        shown = re.findall(r"\{[{%][^}]*?\btask\.(\w+)\s*(?=\||-?\}\}|-?%\}|~|\+|\))", text)
        if (column := next((one for one in shown if one in golds), None)) is not None:
            message = f"it shows task.{column}, which is the right answer of '{golds[column]}'"
            yield warn(path, message, "take it out", "gold-in-prompt", find=f"task.{column}")
            return
    columns = {path[1] for _, text in prompt_texts(spec.prompt) for path in compile_template(text).paths
               if path[0] == "task" and path[1:]}  # fmt: skip
    for index, step in enumerate(spec.steps):
        for _, tool, given in calls_in(step):
            made, told = subject.tools.get(tool), set(re.findall(r"\btask\.(\w+)", str(given)))
            if made is not None and made.kind in ("calculator", "search") and (lost := sorted(told & {*golds})):
                message = f"the call is given task.{lost[0]}, which it is to find"
                yield warn(("oracle", index, "call"), message, "ask for it", "wrong-oracle")
                return
    is_asked = columns & {"question", "problem", "query", "instruction", "text", "task"}
    work = next((one for one in sorted(columns) if is_asked and re.fullmatch(_WORK, one)), None)
    if work is not None and re.search(rf"task\.{work}\b", str(subject.document.get("oracle"))):
        message = f"the prompt shows task.{work}, by which the oracle answers"
        yield warn("prompt", message, "take it out", "gold-in-prompt", at="key")


def _gold_columns(reward: RewardSpec) -> Sequence[str]:
    """The columns that a term compares with as they are: a gold value, a gold call, hidden tests."""
    if reward.kind == "tests":
        wanted = [getattr(reward, key) for key in ("calls", "stdin", "programs")]
    elif reward.kind == "verify":
        expect = gold_in(reward)
        wanted = [
            text for _, text in strings_in(getattr(expect, "arguments", None) or getattr(expect, "value", expect), ())
        ]
    else:
        wanted = [gold_in(reward)] if getattr(reward, "rule", "") in _GOOD else []
    found = [one[1] for text in wanted if isinstance(text, str) and (one := _GOLD_PATH.fullmatch(text))]
    return [one for one in found if f"task.{one}" not in str(getattr(reward, "arguments", ""))]


@dataclass(slots=True)
class OwnPlays:
    """The results of each way of playing, by split and row; `unknown` are the terms that were not measured."""

    oracle: dict[tuple[str, int], Trajectory] = field(default_factory=dict)
    ways: dict[str, dict[tuple[str, int], Trajectory]] = field(default_factory=dict)
    examples: dict[str, Trajectory] = field(default_factory=dict)
    """The call that each tool gives as its example, on the first row."""
    again: Trajectory | None = None
    """The oracle on the first row, played once more with the seed of the first time."""
    unknown: frozenset[str] = frozenset()
    raised: dict[str, str] = field(default_factory=dict)
    """What tools raised that they do not declare, by name."""


def unearned(subject: Subject, played: OwnPlays) -> Iterator[Finding]:
    """The first row whose own gold value, given as the answer, does not earn what it should."""
    term = gold_term(subject)
    for (split, index), got in played.oracle.items():
        value = value_of(got, term.name) if term is not None else None
        if term is not None and value is not None and value < 1 and term.spec.range is None:
            at = subject.gold_at(term)
            message = f"the gold value of row {index + 1} of split '{split}', given as the answer, earns {value:g}"
            hint = f"the answer that is read from it is {got.answer and got.answer[:60]!r}"
            yield subject.document.warning(
                at, message, hint, "gold-not-earned", at="value" if at.count(".") > 1 else "key"
            )
            return


def longer(subject: Subject, played: OwnPlays) -> Iterator[Finding]:
    """Functions that give more for the same wrong answer with many words before it."""
    rewards, short = subject.loaded.spec.rewards, played.ways.get(f"the answer '{NOISE}'", {})
    groups = {getattr(one, "of", ""): name for name, one in rewards.items()
              if one.kind == "group" and one.usual_weight > 0 and one.gate is None}  # fmt: skip
    for name, one in rewards.items():
        pairs = [(value_of(short[key], name), value_of(got, name)) for key, got in played.ways.get(LONG, {}).items()]
        is_paid = name in groups or (one.usual_weight > 0 and one.gate is None)
        if is_paid and is_own(one) and pairs and all(a is not None and b is not None and b > a for a, b in pairs):
            message = (
                f"a wrong answer earns {said_of(pairs[0][0])}, and {said_of(pairs[0][1])} with 400 words before it"
            )
            path = f"rewards.{groups.get(name, name)}"
            yield subject.document.warning(path, message, "add a gate: correct >= 1", "paid-for-length", at="key")


def value_of(got: Trajectory, name: str) -> float | None:
    result = got.reward.terms.get(name)
    return None if result is None else result.value


def said_of(value: float | None) -> str:
    return "nothing" if value is None else f"{value:g}"
