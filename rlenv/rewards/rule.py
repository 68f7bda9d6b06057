"""The kind `rule`: a term computed from the trajectory alone; each is an entry of the group `rules`.

What templates in reward terms may read, gold values, functions of a spec's author and the rule `python` are here too.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from rlenv._base.bounded import bounded
from rlenv.errors import EpisodeError, RewardError, UsageError, under
from rlenv.language import kinds as registry
from rlenv.language.functions import check_positional, failure, import_function
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import RewardSpec, Text
from rlenv.language.templates import Template, TemplateError, compile_value, template_of, texts_at
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.secrets import logger
from rlenv.trajectory import Where

_NAMES = frozenset(("task", "vars", "resources", "answer", "item"))
_WRITTEN = frozenset(("answer", "said"))
_OF_THE_POLICY = _WRITTEN | {"resources"}
_MOST_ACCEPTED = 4_096
_COLUMN = re.compile(r"\{\{\s*task\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)


class UnfitAnswer(RewardError):
    """A template over what the policy wrote, or left in resources, cannot be filled from that; all else is there.

    This is worth what a wrong answer is worth, or costs: a term that let it pass as something that could not be
    measured would let the policy choose when it is masked.
    """

    source = ""  # the template, where it reads resources

    def tell(self, term: str) -> None:
        """Logs it, once a term: a word of the template may be misspelt."""
        if self.source and (key := (term, self.source, "")) not in _logged:
            _logged.add(key)
            message = "the term '%s' counts as the worst that it can be where it cannot be read: %s (%s)"
            _log.warning(message, term, self, self.source)


class UnfitGold(RewardError):
    """A gold value that nothing can be compared with. Where it is read from resources, that is as an `UnfitAnswer`."""

    @staticmethod
    def is_left(gold: Any) -> bool:
        """True if a gold value, as it stands in the spec, is read from resources."""
        return any("resources" in template_of(text, key=key).names for key, text in texts_at("", gold))


def worst_of(spec: RewardSpec) -> float:
    """The value of what a policy makes unreadable: the least that the spec names, or the most where that costs."""
    return (spec.clip or (0.0, 1.0))[spec.usual_weight < 0]


def unshaped_worst_of(spec: RewardSpec) -> float:
    """As `worst_of`, before the `range` of the spec is applied."""
    low, high = spec.range or (0.0, 1.0)
    return low + worst_of(spec) * (high - low)


def compile_for_context(value: Any, *, where: str, names: frozenset[str] = _NAMES) -> Callable[..., Any]:
    """Compiles a JSON-like value with templates over `task`, `vars`, `resources`, `answer` and `item`.

    Args:
        names: those of the names above that have a value here; `turn` (the number of the last, from 0) and `said` (what
            the policy said in all, outside thinking and calls) may be among them.

    Returns:
        A function of a RewardContext (and `item`) that gives the filled value; raises RewardError where a name is
        undefined, and UnfitAnswer where what the policy wrote or left is all that stands in the way.

    Raises:
        UsageError: a template does not compile or reads another name.
    """
    over_policy: dict[str, Template] = {}
    for key, source in texts_at(where, value):
        if "{" not in source:
            continue
        template = template_of(source, key=key, names=names)
        if _OF_THE_POLICY & set(template.names):
            over_policy[source] = template
    reads_said = any("said" in template.names for template in over_policy.values())
    if isinstance(value, str) and (column := _COLUMN.fullmatch(value.strip())):
        return _read_column(column[1], where)
    fill = compile_value(value)

    def fill_for(context: RewardContext, item: Any = None) -> Any:
        values = {
            "task": context.task,
            "vars": context.vars,
            "resources": context.resources,
            "answer": context.answer,
            "item": item,
            "turn": len(context.turns) - 1,
            "said": context.said if reads_said else "",
        }
        try:
            return fill(**values)
        except TemplateError as error:
            unfit = over_policy.get(error.source)
            if error.is_unfit and unfit is not None and _is_of_policy(unfit, values):
                found = UnfitAnswer(f"{where}: what the policy left does not fit: {error}")
                found.source = unfit.source if "resources" in unfit.names else ""
                raise found from error
            raise RewardError(f"{where}: {error}") from error

    return fill_for


def _is_of_policy(template: Template, values: Mapping[str, Any]) -> bool:
    """True if `template` could not be filled although everything that it reads beside what the policy left is there."""
    if values["answer"] is None and template.names & _OF_THE_POLICY == {"answer"}:
        return False
    read = {path[: 2 if path[0] == "resources" else None] for path in template.paths}
    return all(_is_there(path, values) for path in read if path[0] in values.keys() - _WRITTEN)


def _is_there(path: tuple[str, ...], values: Mapping[str, Any]) -> bool:
    found: Any = values
    for name in path:
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif hasattr(found, name):
            found = getattr(found, name)
        else:
            return False
    return True


def compile_accepted(expect: Any) -> Callable[[RewardContext], tuple[Any, ...]]:
    """Compiles a gold value to a function that gives the accepted answers: the elements of a list, or the one value.

    The function raises RewardError where the task has no gold value: an empty list, null or a missing column cannot
    be scored, and is never a wrong answer of the policy's.
    """
    fill = compile_for_context(expect, where="expect", names=frozenset(("task", "vars", "resources")))

    def read_accepted(context: RewardContext) -> tuple[Any, ...]:
        value = fill(context)
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if len(values) > _MOST_ACCEPTED:
            raise UnfitGold(f"expect: there are {len(values):,} accepted values; up to {_MOST_ACCEPTED:,} are compared")
        if not values or any(one is None for one in values):
            found = f"the task gives no value for '{expect}'" if expect else "there is no gold value"
            message = f"expect: {found} (found {value if value is None else list(values)!r:.80})"
            raise UnfitGold(message)
        return values

    return read_accepted


def _read_column(name: str, where: str) -> Callable[..., Any]:
    # The commonest template by far; reading the column directly saves Jinja's evaluation.
    def fill_for(context: RewardContext, item: Any = None) -> Any:
        try:
            return context.task[name]
        except KeyError:
            raise RewardError(f"{where}: the task has no column '{name}'; it has: {', '.join(context.task)}") from None

    return fill_for


Reads = Literal["answer", "message"]
NO_ANSWER: Final = Measured(0.0, "no answer")


class RuleSpec(RewardSpec):
    """The keys that every rule takes."""

    kind: Literal["rule"]
    rule: Text
    """Which rule; `function: file.py:function` stands for a rule of your own."""


def compile_rule(name: str, spec: RuleSpec, context: TermCompileContext) -> Term:
    """Compiles a rule by its name.

    Raises:
        UsageError: no rule has that name, or the rule's own factory refuses the entry.
    """
    try:
        kind = registry.get("rules", spec.rule)
    except KeyError:
        raise UsageError(
            f"no rule is called '{spec.rule}'", hint=f"there are: {', '.join(registry.names('rules'))}"
        ) from None
    if not isinstance(spec, kind.spec):
        raise UsageError(f"rule '{spec.rule}' takes a {kind.spec.__name__}, not a {type(spec).__name__}")
    term = kind.factory(name, spec, context)
    assert isinstance(term, Term)
    return term


def read(context: RewardContext, reads: Reads) -> str | None:
    """The text that a rule measures: the answer (None where the policy gave none) or all of the last message."""
    return context.answer if reads == "answer" else context.final_text


def where_of(reads: Reads) -> Callable[[RewardContext], Where]:
    """A function that finds the place of that text."""
    return where_answer if reads == "answer" else RewardContext.where_final


def where_answer(context: RewardContext) -> Where:
    """The place of the answer."""
    return context.answer_at


def scored(text: str | None, score: Callable[[str], Measured], *, most: int, that: str) -> Measured:
    """The score of a text; 0 without one, and for one of more than the `most` characters `that` are looked at.

    `that` goes on with the sentence `longer than the 1000 characters …`.
    """
    if text is None:
        return NO_ANSWER
    if len(text) > most:
        return Measured(0.0, f"longer than the {most} characters {that}")
    return score(text)


def check_range(least: Any, most: Any) -> None:
    """Checks that a range is open at one end at most and not upside down.

    Raises:
        UsageError: it is.
    """
    if least is None and most is None:
        raise UsageError("nothing is asked for", hint="give min, max or both")
    if least is not None and most is not None and least > most:
        raise UsageError(f"the least ({least}) is above the most ({most})", key="min", hint="the least comes first")


def gold_text(value: Any) -> str:
    """A gold value as text: text as it stands, whole and other numbers as they are written.

    Raises:
        RewardError: it is neither text nor a number.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise UnfitGold(f"the gold value {value!r:.80} is a {type(value).__name__}; expected text, a number or a list")


KIND = Kind(RuleSpec, compile_rule)


_log = logger(__name__)
_CRASHED = re.compile(r"(?:turn \d+: )?[A-Z]\w*(?:Error|Exception)(?::|$)")
_logged: set[tuple[str, str, str]] = set()


def load_function(target: str, *, key: str, gives: Sequence[str], context: CompileContext) -> Callable[..., Any]:
    """The function that `target`, written under `key`, names: `file.py:function` or `module:function`.

    Args:
        gives: what it is called with, by position.

    Raises:
        UsageError: the file or the function is not there, the import fails, it is not a function, or it cannot be
            called so.
    """
    with under(key):
        function = import_function(target, base=context.path(key, ""))
        check_positional(function, target=target, gives=gives)
    return function


def raised(target: str, error: BaseException) -> RewardError:
    """The exception of an author's function, as the reason why nothing was measured: its text and its line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    if (key := (target, type(error).__name__, place)) not in _logged:  # once: every episode's record has it
        _logged.add(key)
        _log.warning("the reward function %s raised %s%s", target, failure(error), place)
    return RewardError(f"{target} raised {failure(error)}{place}")


def has_crashed(spec: RewardSpec, error: str) -> bool:
    """True if `error`, why a term of this entry is invalid, is an exception that nobody raised on purpose."""
    if any(f"{target} raised " in error for target in _texts_in(spec.model_dump())):
        return True
    return _CRASHED.match(error) is not None


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts_in(part)
    elif isinstance(value, str):
        yield value


def is_async(function: Callable[..., Any]) -> bool:
    """True if calling `function`, or an object's `__call__`, gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


_MAX_DETAILS = 65_536


class PythonRuleSpec(RuleSpec):
    """The return value of a function of your own for an episode (or a turn, with `when: turn`).

    It takes one `rlenv.rewards.base.RewardContext` and returns a number, a `Measured`, or a number with the text
    that it was read from. It may be a coroutine function; one that is not runs on the event loop and must be quick.
    """

    rule: Literal["python"] = "python"
    function: Text
    """`file.py:function`, relative to the spec, or `module:function`."""


def _compile_python(name: str, spec: PythonRuleSpec, context: TermCompileContext) -> Term:
    function = load_function(spec.function, key="function", gives=["context"], context=context)
    if not is_async(function):

        def measure(context: RewardContext) -> Measured:
            with _blame_function(spec.function):
                found = function(context)
            return _to_measured(found, spec.function)

        return Term(name=name, spec=spec, measure=measure)

    async def measure_async(context: RewardContext) -> Measured:
        with _blame_function(spec.function):
            found = await function(context)
        return _to_measured(found, spec.function)

    return Term(name=name, spec=spec, measure_async=measure_async)


@contextmanager
def _blame_function(function: str) -> Iterator[None]:
    """Within it, what the author's function raises is told as its fault."""
    try:
        yield
    except EpisodeError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(function, error) from error


def _to_measured(value: Any, function: str) -> Measured:
    if isinstance(value, Measured):
        if type(value.evidence) is not str or not isinstance(value.details, Mapping):
            raise RewardError(f"{function} returned a Measured whose evidence is no text, or whose details no mapping")
        return replace(value, details=bounded(dict(value.details), _MAX_DETAILS)) if value.details else value
    if value is None:
        # Often a forgotten return; a function with nothing to measure says so by Measured(None).
        raise RewardError(f"{function} returned None; expected a number, or Measured(None) for nothing to measure")
    if isinstance(value, tuple):
        if len(value) != 2 or not isinstance(value[1], str):
            raise RewardError(f"{function} returned {value!r:.80}; a tuple must be (number, evidence)")
        return Measured(value[0], value[1])
    # Scoring refuses what is not a finite number and says what it found.
    return Measured(value)


PYTHON = Kind(PythonRuleSpec, _compile_python)


class ValueRuleSpec(RuleSpec):
    """The number that a template gives, such as the points of a game; true is 1 and false 0, nothing is skipped."""

    rule: Literal["value"]
    value: Text
    """A template such as `{{ resources.game.points }}` over `task`, `vars`, `resources`, `turn` (of the last,
    from 0), `answer`, and `said`: all that the policy said, outside thinking and calls. Over these two it is the
    least where it gives no number, or one above 1e100, since the policy wrote what it reads."""


def _compile_value(name: str, spec: ValueRuleSpec, context: TermCompileContext) -> Term:
    names = _NAMES - {"item"} | {"turn", "said"}
    fill = compile_for_context(spec.value, where="value", names=names)
    of_the_policy = _OF_THE_POLICY & set(template_of(spec.value, key="value", names=names).names)
    worst = unshaped_worst_of(spec)

    def measure(context: RewardContext) -> Measured:
        if "answer" in of_the_policy and context.answer is None:
            return Measured(worst, "no answer")
        try:
            found = fill(context)
        except UnfitAnswer as error:
            error.tell(name)
            return Measured(worst, str(error))
        found = found.item() if getattr(found, "shape", None) == () else found  # NumPy's numbers and truths
        if of_the_policy and found is not None and not (isinstance(found, (int, float)) and abs(found) <= _LARGEST):
            if of_the_policy == {"resources"} and (value := _resource_value(found, context)) is not None:
                return Measured(value)
            shown = repr(found[:80]) if isinstance(found, str) else f"a {type(found).__name__}"
            return Measured(worst, f"gave {shown}, which is no number up to {_LARGEST:g}")
        return Measured(float(found) if isinstance(found, bool) else found)

    return Term(name=name, spec=spec, measure=measure)


def _resource_value(found: Any, context: RewardContext) -> Any:
    """What resources gave, where it counts; None for what the policy left: a text, bytes, a list or no number (NaN)."""
    if isinstance(found, float) and found == found:
        return max(-_LARGEST, min(found, _LARGEST))
    totals = [getattr(one, "total", None) for one in context.resources.values()]
    is_known = not any(type(one) is float and one != one for one in totals)  # what a world's last step paid
    return None if is_known and isinstance(found, (str, bytes, list, Mapping, float, complex)) else found


_LARGEST: Final = 1e100  # of a policy's own numbers: sums, means and squares over a group stay finite


VALUE = Kind(ValueRuleSpec, _compile_value)
