"""Rules over the text of an answer: words, patterns, lengths, numbers and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.bounded import quick
from rlenv._base.schemas import BoundedValidator
from rlenv.errors import UsageError, told_as, under
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, Float, Int, Text
from rlenv.rewards import normalise as forms
from rlenv.rewards import rule as rules
from rlenv.rewards.answer import compile_pattern
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.trajectory import Where

_measured = quick(Measured)

Expected = Text | Int | Float | tuple[Text | Int | Float, ...]

MAX_CHARS = 65_536
"""A longer answer is not the expected one, and of a longer message the end is looked at: the loop is not held."""
_THAT = "that an answer may have"


def check_qa(accepted: Callable[[RewardContext], tuple[Any, ...]]) -> Callable[[RewardContext], None]:
    """A check of gold values that are compared in `qa` form: none may be empty there.

    SQuAD's own rule takes a gold answer that is an article for empty, and every empty answer for right; so do we, but
    not in silence.
    """

    def check(context: RewardContext) -> None:
        for value in accepted(context):
            if not forms.qa(rules.gold_text(value)):
                raise rules.UnfitGold(
                    f"of the gold value {value!r:.80} nothing is left after `qa` normalisation, so that 'the' and an "
                    "empty answer earn it"
                )

    return check


class ExactMatchSpec(rules.RuleSpec):
    """1 if the answer is one of the accepted texts, 0 otherwise."""

    rule: Literal["exact_match"]
    expect: Expected = "{{ task.answer }}"
    """The accepted text, or several; a template may give a list."""
    normalise: forms.Normalisation = "none"
    """`none`: white space around the text is dropped; `case`: case is folded too; `qa`: as SQuAD does."""


class F1Spec(rules.RuleSpec):
    """The token F1 of the answer with the accepted text that it is nearest to, in [0, 1], after `qa` normalisation."""

    rule: Literal["f1"]
    expect: Expected = "{{ task.answer }}"
    """The accepted text, or several; a template may give a list."""


class ContainsSpec(rules.RuleSpec):
    """1 if the answer contains an accepted text, 0 otherwise."""

    rule: Literal["contains"]
    expect: Expected = "{{ task.answer }}"
    """The text to look for, or several; a template may give a list."""
    mode: Literal["any", "all"] = "any"
    """`any`: one of the texts is enough; `all`: each has to stand there."""
    normalise: forms.Normalisation = "none"
    """Applied to both sides: `none`, `case` or `qa`."""
    of: rules.Reads = "answer"
    """Look in the `answer`, or in the whole last `message` outside thinking and calls."""


class RegexSpec(rules.RuleSpec):
    """1 if a regular expression matches somewhere, 0 otherwise."""

    rule: Literal["regex"]
    pattern: Text
    """A regular expression in the language of RE2; the dot matches line ends too."""
    full: Bool = False
    """Match all of the text instead of some part of it."""
    of: rules.Reads = "answer"
    """Match the `answer`, or the whole last `message` outside thinking and calls."""


class AnsweredSpec(rules.RuleSpec):
    """1 if the policy's last message gave an answer in the form that `answer:` asks for, 0 otherwise."""

    rule: Literal["answered"]


class LengthSpec(rules.RuleSpec):
    """1 if a text's length is within bounds, 0 otherwise; a missing answer has no length and is skipped."""

    rule: Literal["length"]
    max: Annotated[Int, Field(ge=0)] | None = None
    """The most that is allowed."""
    min: Annotated[Int, Field(ge=0)] | None = None
    """The least that is allowed."""
    unit: Literal["chars", "words"] = "chars"
    """Count characters, or words between white space."""
    of: Literal["answer", "message", "episode"] = "message"
    """Measure the `answer`, the last `message` outside thinking and calls, or all that was written in the `episode`."""


def _compile_exact_match(name: str, spec: ExactMatchSpec, context: TermCompileContext) -> Term:
    accepted = rules.compile_accepted(spec.expect)
    normalise = forms.NORMALISERS[spec.normalise]

    def measure(context: RewardContext) -> Measured:
        golds = accepted(context)

        def equals(answer: str) -> Measured:
            mine = normalise(answer)
            return _measured(float(mine in [normalise(rules.gold_text(gold)) for gold in golds]), answer)

        return rules.scored(context.answer, equals, most=MAX_CHARS, that=_THAT)

    check = check_qa(accepted) if spec.normalise == "qa" else None
    return Term(name=name, spec=spec, measure=measure, check_gold=check, where=rules.where_answer)


def _compile_f1(name: str, spec: F1Spec, context: TermCompileContext) -> Term:
    accepted = rules.compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = accepted(context)

        def overlaps(answer: str) -> Measured:
            return Measured(forms.best_f1(answer, map(rules.gold_text, golds)), answer)

        return rules.scored(context.answer, overlaps, most=MAX_CHARS, that=_THAT)

    return Term(name=name, spec=spec, measure=measure, check_gold=check_qa(accepted), where=rules.where_answer)


def _compile_contains(name: str, spec: ContainsSpec, context: TermCompileContext) -> Term:
    accepted = rules.compile_accepted(spec.expect)
    normalise = forms.NORMALISERS[spec.normalise]
    most = MAX_CHARS if spec.usual_weight >= 0 else 4 * MAX_CHARS

    def measure(context: RewardContext) -> Measured:
        golds = [normalise(rules.gold_text(gold)) for gold in accepted(context)]
        if "" in golds:
            raise rules.UnfitGold("expect: a text to look for is empty after normalisation; every answer contains it")
        text = rules.read(context, spec.of)
        if text is None:
            return rules.NO_ANSWER
        mine = normalise(text[-most:])
        found = [gold in mine for gold in golds]
        # What stands before what is read spares nobody a cost.
        is_hidden = spec.usual_weight < 0 and len(text) > most
        return Measured(float(is_hidden or (any(found) if spec.mode == "any" else all(found))), text)

    return Term(name=name, spec=spec, measure=measure, where=rules.where_of(spec.of))


def _compile_regex(name: str, spec: RegexSpec, context: TermCompileContext) -> Term:
    with under("pattern"):
        pattern = compile_pattern(spec.pattern)
    costs = spec.usual_weight < 0 and not spec.full
    sees = pattern.sees_most if costs else pattern.sees

    def measure(context: RewardContext) -> Measured:
        text = rules.read(context, spec.of)
        if text is None:
            return rules.NO_ANSWER
        match = pattern.fullmatch(text) if spec.full else pattern.search(text, sees)
        if match is None and (spec.full or costs) and len(text) > sees:
            return Measured(float(costs), f"longer than the {sees} characters that this pattern may see")
        if match is None:
            return Measured(0.0, text)
        begin = 0 if spec.full else max(len(text) - sees, 0)
        found = match[0] or ""
        return Measured(1.0, found, where=_match_place(context, spec.of, text, begin + match.start(), found))

    return Term(name=name, spec=spec, measure=measure, where=rules.where_of(spec.of))


def _match_place(context: RewardContext, reads: rules.Reads, text: str, start: int, found: str) -> Where:
    """The place of a match, in the answer or the last message; () where that is not known."""
    if not text.startswith(found, start):  # half a surrogate pair in front of it, which the pattern does not see
        return ()
    end = start + len(found)
    if reads == "message":
        return context.where_final(start, end)
    # An answer that stands in one piece; that of a call is written with escapes, and is the call as a whole.
    if len(context.answer_at) != 1 or context.turns[-1].action[slice(*context.answer_at[0][1:])] != text:
        return context.answer_at
    ((message, first, _),) = context.answer_at
    return ((message, first + start, first + end),)


def _compile_answered(name: str, spec: AnsweredSpec, context: TermCompileContext) -> Term:
    def measure(context: RewardContext) -> Measured:
        # An empty tag is an answer to compare, yet it states nothing and earns nothing for its form.
        return Measured(1.0, context.answer) if context.answer else rules.NO_ANSWER

    return Term(name=name, spec=spec, measure=measure, where=rules.where_answer)


def _compile_length(name: str, spec: LengthSpec, context: TermCompileContext) -> Term:
    rules.check_range(spec.min, spec.max)

    def measure(context: RewardContext) -> Measured:
        if spec.of == "episode":
            texts = [turn.action for turn in context.turns]
        else:
            text = rules.read(context, spec.of)
            if text is None:
                return Measured(None, "no answer")
            texts = [text]
        found = sum(len(text) if spec.unit == "chars" else len(text.split()) for text in texts)
        fits = (spec.min is None or found >= spec.min) and (spec.max is None or found <= spec.max)
        return Measured(float(fits), f"{found} {spec.unit}", {spec.unit: found})

    return Term(name=name, spec=spec, measure=measure, where=None if spec.of == "episode" else rules.where_of(spec.of))


EXACT_MATCH = Kind(ExactMatchSpec, _compile_exact_match, values=(0, 1), gold="expect", reads_answer=True, several=True)
F1 = Kind(F1Spec, _compile_f1, values=(0, 1), gold="expect", reads_answer=True, several=True, normalise=forms.qa)
CONTAINS = Kind(ContainsSpec, _compile_contains, values=(0, 1), gold="expect", reads_answer=True, several=True)
REGEX = Kind(RegexSpec, _compile_regex, values=(0, 1), reads_answer=True)
ANSWERED = Kind(AnsweredSpec, _compile_answered, values=(0, 1), reads_answer=True, form="all")
LENGTH = Kind(LengthSpec, _compile_length, values=(0, 1), form="all")


class NumericMatchSpec(rules.RuleSpec):
    """1 if the answer writes an accepted number, 0 otherwise.

    The answer must be one number: thousands commas and a currency or percent sign are read, words are not.
    Numbers are compared exactly (0.1 is 0.1, "3,901" is 3901 is 3901.0) unless a tolerance is given.
    """

    rule: Literal["numeric_match"]
    expect: Expected = "{{ task.answer }}"
    """The accepted number, or several, as numbers or as text; a template may give a list."""
    tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this much."""
    relative_tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this share of the accepted number."""


def is_near(mine: Decimal, gold: Decimal, *, tolerance: Decimal, relative: Decimal) -> bool:
    """True if |mine - gold| <= max(tolerance, relative · |gold|), in arithmetic precise enough to be exact here."""
    if mine == gold:
        return True
    if not tolerance and not relative:
        return False
    with localcontext() as arithmetic:
        arithmetic.prec = 100
        return abs(mine - gold) <= max(tolerance, relative * abs(gold))


def _compile_numeric(name: str, spec: NumericMatchSpec, context: TermCompileContext) -> Term:
    accepted = rules.compile_accepted(spec.expect)
    tolerance = Decimal(repr(spec.tolerance))
    relative = Decimal(repr(spec.relative_tolerance))

    def measure(context: RewardContext) -> Measured:
        golds = [number for value in accepted(context) for number in _gold_numbers(value)]
        if (answer := context.answer) is None:
            return rules.NO_ANSWER
        mine = forms.number(answer)
        is_right = mine is not None and any(
            is_near(mine, gold, tolerance=tolerance, relative=relative) for gold in golds
        )
        return Measured(float(is_right), answer)

    return Term(name=name, spec=spec, measure=measure, where=rules.where_answer)


def _gold_numbers(value: Any) -> tuple[Decimal, ...]:
    found = forms.numbers(value)
    if not found:
        raise rules.UnfitGold(f"expect: the gold value {value!r:.80} is not a number")
    return found


NUMERIC_MATCH = Kind(NumericMatchSpec, _compile_numeric, values=(0, 1), gold="expect", reads_answer=True, several=True)


_SAID_CHARS = 4_096
_THAT_JSON = "that are read as JSON"


class JsonSchemaSpec(rules.RuleSpec):
    """1 if the answer is JSON that fits a JSON Schema, 0 otherwise."""

    rule: Literal["json_schema"]
    schema_: Annotated[Mapping[str, Any], Field(alias="schema")]
    """The JSON Schema."""
    of: rules.Reads = "answer"
    """Read the `answer`, or the whole last `message` outside thinking and calls."""


class JsonMatchSpec(rules.RuleSpec):
    """1 if the answer is JSON equal to the expected value, 0 otherwise.

    The order of keys and the way a number is written do not count (1 is 1.0); the order of a list does.
    """

    rule: Literal["json_match"]
    expect: Any = "{{ task.answer }}"
    """The expected value; strings in it are templates. Where the whole is one text, the text may be JSON itself."""
    mode: Literal["equal", "subset"] = "equal"
    """`subset`: objects of the answer may have keys that the expected ones lack."""
    of: rules.Reads = "answer"
    """Read the `answer`, or the whole last `message` outside thinking and calls."""


def _compile_json_schema(name: str, spec: JsonSchemaSpec, context: TermCompileContext) -> Term:
    with told_as(UsageError, "not a valid JSON Schema:", ValueError, key="schema"):
        validator = BoundedValidator(spec.schema_)

    def fits(text: str) -> Measured:
        try:
            value = forms.loads(text)
            if len(text) > _SAID_CHARS:
                return Measured(float(validator.is_valid(value)), text)
            # What is wrong is said for a short text: the message holds all of it.
            fault = validator.fault(value)
        except (ValueError, RecursionError, OverflowError) as error:  # what is no JSON, or nested too deep to check
            return Measured(0.0, f"not JSON: {error}")
        return Measured(float(not fault), fault or text)

    def measure(context: RewardContext) -> Measured:
        return rules.scored(rules.read(context, spec.of), fits, most=forms.MAX_JSON, that=_THAT_JSON)

    return Term(name=name, spec=spec, measure=measure, where=rules.where_of(spec.of))


def _compile_json_match(name: str, spec: JsonMatchSpec, context: TermCompileContext) -> Term:
    fill = rules.compile_for_context(spec.expect, where="expect", names=frozenset(("task", "vars", "resources")))
    compare = forms.same_json if spec.mode == "equal" else forms.holds

    def measure(context: RewardContext) -> Measured:
        gold = fill(context)
        if isinstance(gold, str):
            # A plain text is a JSON string that needs no quotes in the data.
            try:
                gold = forms.loads(gold)
            except forms.DuplicateKey as error:
                raise rules.UnfitGold(f"expect: {error}") from error
            except ValueError:
                pass
        if gold is None:
            raise rules.UnfitGold("expect: the task gives no value to match")

        def matches(text: str) -> Measured:
            try:
                mine = forms.loads(text)
            except ValueError as error:
                return Measured(0.0, f"not JSON: {error}")
            return Measured(float(compare(mine, gold)), text)

        return rules.scored(rules.read(context, spec.of), matches, most=forms.MAX_JSON, that=_THAT_JSON)

    return Term(name=name, spec=spec, measure=measure, where=rules.where_of(spec.of))


JSON_SCHEMA = Kind(JsonSchemaSpec, _compile_json_schema, values=(0, 1), reads_answer=True)
JSON_MATCH = Kind(JsonMatchSpec, _compile_json_match, values=(0, 1), gold="expect", reads_answer=True)
