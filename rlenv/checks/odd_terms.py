"""Warnings of rewards and the oracle: what right answers do not earn, what anything earns, and what nothing earns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rlenv._base.text import strings_in
from rlenv.checks.odd_rows import all_golds
from rlenv.checks.subject import ReadSplit, Subject, calls_in, prompt_texts
from rlenv.errors import Finding
from rlenv.language.expressions import compile_expression, open_on
from rlenv.language.kinds import gold_in, gold_key, is_own, kind_of
from rlenv.language.spec import RewardSpec
from rlenv.language.templates import TemplateError, compile_template, compile_value
from rlenv.rewards.base import Term

_LABELS: Final = frozenset(("yes", "no", "true", "false", "correct", "incorrect"))
_GOOD: Final = frozenset("answered exact_match f1 json_match math_equal numeric_match sql_match valid_calls".split())
_ENDS: Final = (_GOOD | {"contains", "json_schema"}) - {"valid_calls"}
_EXACT: Final = frozenset("exact_match json_match math_equal numeric_match sql_match tests".split())
_NUMBER: Final = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_GOLD_PATH: Final = re.compile(r"\s*\{\{-?\s*task\.(\w+)\s*-?\}\}\s*")
_WRITTEN: Final = re.compile(r"\b(?:answer|message|transcript|first|second|state|resources)\b")
_FAILS: Final = re.compile(r"\bassert|\braise\b|\bexit\(|\bunittest\b|\bpytest\b|\bcheck\w*\(|\bimport\b")
_TRUTH: Final = re.compile(r"(?i)\b(?:right(?!ly? formatted)|correct|accurate|true)\b")
_REFERENCE: Final = re.compile(
    r"(?i)(?:right|correct|gold|reference|expected|true)(?: one| answer| solution| reply)?(?: is| was|:| =)\s*[\"']?"
    r"\{\{-?\s*task\.(\w+)"
)
_FROM_TO: Final = re.compile(
    r"(?i)(?:from|between|scores?|rate|grade|scale of|\()\s*(\d+)\s*(?:to|and|-|–|\.\.\.?|…)\s*(\d+)"
)
_STEP: Final = re.compile(r"(?m)^\W*(-?\d+(?:\.\d+)?)\s*[:=.)–-]")


def check_terms(subject: Subject) -> Iterator[Finding]:
    """Warnings of `rewards`, `success` and `oracle`."""
    for term in subject.terms:
        path = f"rewards.{term.name}"
        yield from _entry(subject, path, term.spec)
        yield from _counts(subject, path, term.spec)
        if _is_gold(subject, term):
            for split in subject.splits.values():
                yield from _golds(subject, path, term, split)
    rows = [row for split in subject.splits.values() for row in split.rows]
    for name, reward in subject.loaded.spec.rewards.items():
        path = f"rewards.{name}"
        if reward.gate is not None and rows and not any(map(open_on(reward.gate), rows)):
            message = f"'{reward.gate}' holds for no row: it never counts"
            yield subject.document.warning(f"{path}.gate", message, "mend the comparison, or the rows", "never-pays")
        yield from _unread(subject, path, reward)
        if reward.kind == "judge":
            yield from _scale(subject, path, reward)
            yield from _blind(subject, path, reward)
        if reward.kind == "tests":
            yield from _tests(subject, path, reward)
    yield from _together(subject)
    yield from _constant(subject)
    yield from _judged(subject)
    yield from _shown_gold(subject)
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
    """Gold values that are empty, all alike, or of another kind than their rule compares."""
    if term.spec.usual_weight < 0 or term.spec.when != "episode":
        return
    values, at = all_golds(subject, term, split), subject.gold_at(term)
    key = "value" if at != path else "key"
    empty = next((index for index, gold in enumerate(values) if gold is not None and not gold.strip()), None)
    if empty is not None:
        message = f"row {empty + 1} of split '{split.name}' has an empty gold value: an empty answer earns it"
        yield subject.document.warning(at, message, "fill the column, or drop such rows", "empty-gold", at=key)
        return
    given = [gold.strip() for gold in values if gold is not None]
    if not given:
        return
    rule, spec, where = getattr(term.spec, "rule", ""), term.spec, f"rows of split '{split.name}'"
    sources = [str(gold_in(one) or "") for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
    is_written = bool(gold_key(spec)) and "{" not in str(gold_in(spec))
    few = 2 if is_written else 6 if len(given[0]) < 2 or given[0].lower() in _LABELS else 3
    counts = rule not in ("regex", "json_schema") and not (is_written and any("{" in source for source in sources))
    decimal = next((gold for gold in given if re.fullmatch(r"-?\d+\.\d+", gold)), "")
    short = next((gold for gold in given if len(gold) <= 2), "")
    are_numbers = all(_NUMBER.fullmatch(gold) for gold in given)
    sizes = sorted(abs(float(gold.replace(",", ""))) for gold in given) if are_numbers else [0.0]
    for odd, place, message, hint, code in (
        (are_numbers and (rule == "f1" or (rule == "exact_match" and decimal and "version" not in str(gold_in(spec)))),
         f"{path}.rule",
         f"the gold values are numbers, and {decimal or given[0]} is another text than {decimal or given[0] + '.'}0",
         "write rule: numeric_match", "other-rule"),
        (rule == "contains" and short and getattr(spec, "max_chars", None) is None, at,
         f"a gold value is '{short}', which stands in most answers: a list of everything earns it",
         "compare the whole answer: rule: exact_match", "short-gold"),
        (counts and len({*given}) == 1 and len(given) >= few, at,
         f"all {len(given)} {where} have the gold value {given[0][:40]!r}",
         "a constant answer earns it", "constant-gold"),
        (rule == "numeric_match" and 0 < sizes[len(sizes) // 2] <= getattr(spec, "tolerance", 0), f"{path}.tolerance",
         f"the tolerance is as large as the gold values of half of the {where}", "make it smaller", "any-answer"),
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
    if spec.when == "turn" and spec.usual_weight > 0 and spec.kind == "rule" and rule in _ENDS:
        message = "it compares an answer, which only the last turn has: each call on the way lowers the mean"
        yield document.warning(f"{path}.when", message, "take 'when: turn' out", "odd-turns")
    is_share = rule in (*_GOOD, "contains", "regex", "json_schema", "tool_called", "turn_count", "tool_call_count")
    if (is_share or spec.kind == "judge") and spec.range is not None and (spec.range[1] > 1 or spec.range[0] < 0):
        message = f"the term gives 0 to 1, and the range {list(spec.range)} leaves little of it"
        yield document.warning(f"{path}.range", message, "take 'range' out", "odd-range")
    if is_share and spec.clip is not None and (spec.clip[0] >= 1 or spec.clip[1] <= 0):
        message = f"the rule gives 0 to 1, and {list(spec.clip)} makes one value of all"
        yield document.warning(f"{path}.clip", message, "take 'clip' out", "constant-term")
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
    if spec.clip is not None and spec.usual_weight > 0 and 0 < spec.clip[0] < 1 and kind_of("rewards", spec).gold:
        message = f"what is wrong earns {spec.clip[0]:g} too"
        yield document.warning(f"{path}.clip", message, f"write clip: [0, {spec.clip[1]:g}]", "paid-for-nothing")
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
    """Counts that the limits never let be reached, or always; and those of which less is paid for more."""
    rule, limits, document = getattr(spec, "rule", ""), subject.limits, subject.document
    calls = min(limits.turns * limits.calls_per_turn, limits.tool_calls) if subject.tools else 0
    limit = {"turn_count": limits.turns, "tool_call_count": calls, "tool_called": limits.tool_calls}.get(rule)
    least, most = getattr(spec, "min", None), getattr(spec, "max", None)
    if rule in ("turn_count", "tool_call_count", "length") and spec.usual_weight < 0 and most is not None and not least:
        message = f"a weight of {spec.usual_weight:g} takes away from what stays within 'max'"
        hint = f"write min: {most + 1} in its place, or a weight above 0"
        yield document.warning(f"{path}.weight", message, hint, "wrong-sign")
    if limit is None:
        return
    if least is not None and least > limit and spec.usual_weight:
        message = f"it asks for {least} at least, and no episode has more than {limit}: it never pays"
        yield document.warning(f"{path}.min", message, f"make it at most {limit}", "never-pays")
    lowest = 1 if rule == "turn_count" else 0
    usual = 1 if rule == "tool_called" else 0
    if (usual if least is None else least) <= lowest and (most is None or most >= limit):
        message = f"it allows {lowest} to {'any number' if most is None else most}: it always pays"
        place = f"{path}.max" if most is not None else path
        yield document.warning(place, message, f"ask for less than {limit}, or more", "always-pays", at="key")


def _constant(subject: Subject) -> Iterator[Finding]:
    """Patterns and schemas that are the same for every row, where nothing else that is paid looks at an answer."""
    paid = [(name, one) for name, one in subject.loaded.spec.rewards.items() if one.usual_weight > 0]
    looks = [(f"rewards.{name}", getattr(one, "rule", "")) for name, one in paid if not _is_form(one)]
    if looks and all(
        rule in ("regex", "json_schema") and "task" not in str(subject.document.get(path)) for path, rule in looks
    ):
        message = "what is paid reads nothing of the row: one answer earns it in every task"
        yield subject.document.warning(looks[0][0], message, "compare with the row", "any-answer", at="key")


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


def _judged(subject: Subject) -> Iterator[Finding]:
    """A judge that success asks for its highest score, since no `success` is written beside an exact term."""
    spec = subject.loaded.spec
    needed = [name for name, one in spec.rewards.items() if one.usual_weight > 0 and one.required]
    judges = [name for name in needed if spec.rewards[name].kind == "judge" and spec.success is None]
    if judges and (others := [name for name in needed if name not in judges]):
        message = "without 'success' an episode is one only where this judge gives its highest score"
        hint = f"write success: {others[0]} >= 1"
        yield subject.document.warning(f"rewards.{judges[0]}", message, hint, "judged-success", at="key")


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
    for index, step in enumerate(spec.steps):
        for _, tool, given in calls_in(step):
            made, told = subject.tools.get(tool), set(re.findall(r"\btask\.(\w+)", str(given)))
            if made is not None and made.kind in ("calculator", "search") and (lost := sorted(told & {*golds})):
                message = f"the call is given task.{lost[0]}, which it is to find"
                yield warn(("oracle", index, "call"), message, "ask for it", "wrong-oracle")
                return


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


def _unread(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """A judge, a call or hidden tests that are shown nothing of what the policy wrote, whatever that is."""
    key = {"judge": "prompt", "verify": "arguments", "tests": "code"}.get(spec.kind)
    if key is None or (spec.kind == "verify" and not _is_fixed(subject, getattr(spec, "tool", ""))):
        return
    texts = [getattr(spec, key), *(getattr(one, "prompt", None) for one in getattr(spec, "judges", ()))]
    if any(_WRITTEN.search(filled) for text in texts if text for filled in _filled_in(text)):
        return
    name = "{{ message }}" if spec.kind == "judge" else "{{ answer }}"
    message = "it reads nothing that the policy writes: each answer to a task earns the same"
    yield subject.document.warning(f"{path}.{key}", message, f"write {name} where the answer goes", "unread-answer")


def _is_fixed(subject: Subject, name: str) -> bool:
    """True for a tool whose results no episode changes: it reads a database that nobody writes, or nothing at all."""
    tool = subject.tools.get(name)
    return tool is not None and tool.kind in ("sql", "calculator", "search", "code", "command") and not tool.mutates


def _filled_in(value: Any) -> Iterator[str]:
    for _, text in strings_in(value, ()):
        yield from re.findall(r"\{[{%].*?[}%]\}", text, re.DOTALL)


def _scale(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Ends of a scale that rubric, prompt or schema say otherwise than `scale`, and a score under another name."""
    document, prompt = subject.document, str(getattr(spec, "prompt", ""))
    low, high = scale = getattr(spec, "scale", (1.0, 5.0))
    key, rubric = getattr(spec, "key", "score"), [text for _, text in strings_in(document.get(f"{path}.rubric"), ())]
    steps = [float(step) for text in rubric for step in _STEP.findall(text)]
    spans = [(float(a), float(b)) for a, b in _FROM_TO.findall(f"{prompt} {' '.join(rubric)}")]
    value = (getattr(spec, "schema_", None) or {}).get("properties", {}).get(key, {})
    told = [
        ("rubric", (min(steps), max(steps)) if len(steps) > 1 else scale),
        ("prompt", spans[-1] if spans else scale),
        ("schema", (value.get("minimum", low), value.get("maximum", high)) if isinstance(value, Mapping) else scale),
    ]
    for part, ends in told:
        if ends != (low, high):
            message = f"the {part} goes from {ends[0]:g} to {ends[1]:g}, and the scale from {low:g} to {high:g}"
            place = f"{path}.{part}" if document.has(f"{path}.{part}") else path
            yield document.warning(place, message, f"write scale: [{ends[0]:g}, {ends[1]:g}]", "other-scale", at="key")
    keys = re.findall(r"[\"'](\w+)[\"']\s*:", prompt)
    if keys and key not in keys:
        message = f"the judge is told to write '{keys[-1]}', and the score is read from '{key}'"
        yield document.warning(f"{path}.prompt", message, f"write {key}, or key: {keys[-1]}", "other-scale")


def _blind(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Judges that are not told what was asked or what is right, or that compare with what was asked."""
    document, prompt = subject.document, str(getattr(spec, "prompt", ""))
    rewards, other = subject.loaded.spec.rewards, getattr(getattr(spec, "pairwise", None), "with_", None)
    bare = re.sub(r"\{\{.*?\}\}", " ", prompt)
    asks_truth = _TRUTH.search(bare) is not None
    is_blind = not re.search(r"\b(?:task|transcript|resources|vars)\b", f"{prompt} {other or ''}")
    if is_blind and (not getattr(spec, "rubric", None) or (document.has(f"{path}.prompt") and asks_truth)):
        message = "the judge is told neither what was asked nor what is right"
        yield document.warning(f"{path}.prompt", message, "add {{ task.question }}", "blind-judge")
    gold = {name for step in subject.loaded.spec.steps for name in re.findall(r"task\.(\w+)", str(step.say or ""))}
    shown = set(re.findall(r"\btask\.(\w+)", f"{prompt} {other or ''}"))
    paid = [one for one in rewards.values() if one.usual_weight > 0]
    is_alone = all(one.kind == "judge" or kind_of("rewards", one).form == "all" for one in paid)
    if asks_truth and is_alone and shown and gold and not gold & shown:
        lost = min(gold)
        message = f"the judge is to say what is right, and is not told task.{lost}, which the oracle gives"
        yield document.warning(f"{path}.prompt", message, f"add {{{{ task.{lost} }}}}", "blind-judge")
    asked = {one[1] for one in compile_template(subject.loaded.spec.prompt.user).paths if one[0] == "task" and one[1:]}
    for column in _REFERENCE.findall(f"{prompt} {document.get(f'{path}.rubric') or ''}"):
        if column in asked:
            message = f"the judge is told that task.{column} is right, which is what the prompt asks"
            yield document.warning(f"{path}.prompt", message, "name the column of the right answer", "odd-pair")
    if isinstance(other, str):
        read = {one[1] for one in compile_template(other).paths if one[0] == "task" and one[1:]}
        if read <= asked:
            what = "what the prompt asks" if read else "the same text for every task"
            message = f"the answer is compared with {what}"
            hint = "name the column of a good answer"
            yield document.warning(f"{path}.pairwise.with", message, hint, "odd-pair")


def _tests(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Hidden tests that no row has, that are those of another task, or that nothing fails."""
    document, prompt = subject.document, subject.loaded.spec.prompt
    key = next((one for one in ("calls", "stdin", "programs") if getattr(spec, one, None) is not None), "calls")
    given = getattr(spec, key, None)
    rows = [(split, index, row) for split in subject.splits.values() for index, row in enumerate(split.rows[:1_000])]
    is_fixed = not any("task" in text for text in _filled_in(given))
    if is_fixed and len(rows) > 1 and any("task" in text for text in _filled_in(prompt.user)):
        message = "every task has the same tests, and the prompt asks each for another thing"
        yield document.warning(f"{path}.{key}", message, "name a column: {{ task.tests }}", "constant-gold")
    programs: list[str] = []
    for split, index, row in rows:
        try:
            filled = compile_value(given)(task=row, vars=subject.loaded.spec.vars)
        except (TemplateError, TypeError):
            return
        if not filled or filled in ("[]", "{}"):
            message = f"row {index + 1} of split '{split.name}' has no tests"
            yield document.warning(f"{path}.{key}", message, "fill the column, or drop such rows", "empty-gold")
            break
        programs += map(str, filled) if key == "programs" and isinstance(filled, list) else ()
    if programs and not any(_FAILS.search(one) for one in programs):
        message = "no program can fail: none has an assert, a raise or an exit"
        yield document.warning(f"{path}.programs", message, "write assert f(1) == 2", "any-answer")
