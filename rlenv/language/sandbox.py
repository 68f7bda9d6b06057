"""The sandboxed Jinja in which templates run: no private names, bounded products, and bounded work over long values."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlenv._base.bounded import size
from rlenv._base.paths import bounded_reading
from rlenv._base.text import boxed

__all__ = ["LEFT_OUT", "Sandbox", "environment_of", "unbounded"]

_WRITTEN: Final = frozenset("answer args info message observation resources result said".split())  # of any length
_MAX_PRODUCT: Final = 10_000_000
_MAX_POWER_BITS: Final = 100_000
_MOST_WORK: Final = 65_536
_FREE: Final = frozenset("length count first last default d truncate attr items".split())
_QUICK: Final = dict.fromkeys("trim lower upper replace tojson string indent".split(), 16)
_QUICK.update(join=8, urlencode=8, xmlattr=4, format=4)  # so many characters for one unit
_AT_ONCE: Final = frozenset("startswith endswith find rfind index rindex count encode".split())
_FROM_THE_END: Final = frozenset("rfind rindex rsplit rpartition".split())
_WIDE: Final = frozenset("center indent ljust rjust zfill expandtabs format".split())
_MEASURED: Final = _WIDE | _FROM_THE_END | frozenset("batch slice round replace join sum wordwrap".split())
_BY_PART: Final = frozenset("groupby sort min max sum unique selectattr rejectattr".split())  # as with attribute=…
_BY_ITEM: Final = _BY_PART | frozenset("batch dictsort list map reject reverse select slice".split())
_STARRED: Final = re.compile(r"\{[^{}]*\{|%[^%a-z]*\*")  # a width that stands among the arguments
_WIDTHS: Final = re.compile(r"%(?:\([^()]*\))?([-+ #.\d]*)|\{[^{}:]*:([^{}]*)\}")
_LISTS: Final = (list, tuple, deque, Set, Mapping, MappingView)
_WALKED: Final[Any] = (list, tuple, dict, set, frozenset, deque, type({}.values()))
_PLAIN: Final = (str, int, float, bytes)

LEFT_OUT: Final = {
    **dict.fromkeys(("lipsum", "random"), "a template gives the same each time: draw it in the rows or in a tool"),
    "pprint": "it takes far longer the deeper a value is: write tojson(2)",
    "urlize": "it is for web pages: write the link as it is",
}
"""What Jinja has and templates have not, each with the nearest fix."""


class Effort:
    """What a rendering of a template may still do with values of any length.

    It is counted in characters and items, some microsecond each, and not in time: what fits on one machine fits on all.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_WORK

    def spend(self, name: str, units: int) -> None:
        """Raises OverflowError where `units` more are too many."""
        self.left -= units
        if self.left < 0:
            raise OverflowError(f"{name}: longer than the {_MOST_WORK:,} characters or items that a template works on")

    def filter(self, value: Any, given: Sequence[Any], *, name: str) -> None:
        """A filter of Jinja; one that is quick takes a sixteenth of the time."""
        rate = 4 if name == "tojson" and given else _QUICK.get(name, 1)  # as deep as a value is, its lines are indented
        units = (4 if name == "tojson" else 1) + _digits(value, given)
        each = 4 if given and name in _BY_PART else 2 if name == "dictsort" else 1
        if name not in _FREE and isinstance(value, (str, bytes)):
            units += len(value) * each // rate
        elif name not in _FREE and isinstance(value, _LISTS):
            units += 2 if name in _BY_ITEM else self._whole(value, rate)
            units += len(value) * each // min(rate, 4)
        self.spend(name, units)
        if name in _BY_PART and isinstance(value, _WALKED):
            self.compare(value, is_sorted=True, is_hashed=name == "unique")
        self.spend(name, _written(name, value, given))

    def call(self, function: Any, given: Sequence[Any]) -> None:
        """A call, such as of a text's method, or of a macro."""
        function = getattr(function, "__wrapped__", function)  # of the sandbox's own `format`
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "a call")
        self.spend(name, (9 if isinstance(function, jinja2.runtime.Macro) else 4) + _digits(owner, given))
        self.test(None, given)
        self.spend(name, self._whole(given[0]) if name == "join" and given else 0)
        if isinstance(owner, (list, tuple)) or name == "dict":
            self.compare(owner or given, is_hashed=name == "dict")
        elif isinstance(owner, (str, bytes)):
            self.spend(name, len(owner) // (256 if name in _AT_ONCE else 1 if name == "format" else 16))
            self.spend(name, _written(name, owner, given))

    def _whole(self, value: Any, rate: int = 16) -> int:
        """The units of writing all of a value: one for each list in it, and for so many characters."""
        return size(value, rate * self.left, each=rate) // rate

    def compare(
        self, value: Any, given: Sequence[Any] = (), *, is_sorted: bool = False, is_hashed: bool = False
    ) -> None:
        """A comparison, which may look at all that its operands hold; a mapping is paid for where it is the first."""
        each, chars = (64, 16) if is_sorted else (8, 256)  # of sorting, lists in lists are compared many times
        rest, large = [value, *(one for one in given if not isinstance(one, Mapping))], 0
        while rest:
            held = rest.pop()
            if isinstance(held, _WALKED):
                parts = held.values() if isinstance(held, dict) else held
                texts = sum([len(one) for one in parts if isinstance(one, str)])
                self.spend("a comparison", len(held) // each + texts // chars)
                rest += [one for one in parts if not isinstance(one, _PLAIN) and isinstance(one, _WALKED)]
                each = 4 if is_sorted else 8
                large += sum(map(_may_collide, parts)) if is_hashed else 0
            self.spend("a comparison", 1 + (len(held) // 256 if isinstance(held, (str, bytes)) else 0))
        self.spend("a comparison", large**2 // 64)

    def test(self, value: Any, given: Sequence[Any] = ()) -> None:
        """An operator that goes over its operands once, such as `+`."""
        sized = [one for one in (value, *given) if isinstance(one, (str, bytes, list, tuple))]
        self.spend("an operator", 1 + sum(len(one) // (256 if isinstance(one, (str, bytes)) else 16) for one in sized))

    def write(self, value: Any) -> None:
        """A value that is written once more, as in a loop."""
        if isinstance(value, (list, tuple, set, frozenset, dict)):  # no view of an author's, which may ask a server
            self.spend("a value", self._whole(value))
        else:
            self.test(value)
            self.spend("a number", _digits(value))

    def loop(self, values: Any, each: int = 2) -> Any:
        """The values of a loop: those with a length are paid for at once, others one by one."""
        try:
            count = len(values)
        except Exception:  # some have the method, and no length
            return self._each(values, each)
        self.spend("a loop", each * count)
        return values

    def _each(self, values: Iterable[Any], each: int) -> Iterator[Any]:
        for value in values:
            self.spend("a loop", each)
            yield value


def _may_collide(value: Any) -> bool:
    """True for a number so large that many others may have its hash."""
    if isinstance(value, Decimal):
        return len(value.as_tuple().digits) > 17
    return isinstance(value, int) and value >> 60 not in (0, -1)


def _digits(value: Any, given: Sequence[Any] = ()) -> int:
    """The units of writing numbers: `1e999999` has a million digits, and an integer takes time by their square."""
    exponents = [abs(one.adjusted()) for one in (value, *given) if isinstance(one, Decimal) and one.is_finite()]
    return sum(exponents) + sum([one.bit_length() ** 2 // 1_000_000 for one in (value, *given) if isinstance(one, int)])


def _written(name: str, value: Any, given: Sequence[Any]) -> int:
    """How many characters the arguments of a filter or a method make it write beside those of `value`."""
    if name not in _MEASURED:
        return 0
    if name == "sum":  # of lists, each of which is copied for each that follows
        is_joined = isinstance(value, _LISTS) and any(isinstance(one, list) for one in given)
        return len(value) * sum(len(one) for one in value if isinstance(one, list)) // 4096 if is_joined else 0
    numbers = sum(abs(one) if isinstance(one, int) else len(one) for one in given if isinstance(one, (int, str)))
    if name in ("batch", "slice", "round"):
        return numbers
    if name == "format":
        parts = (part for found in _WIDTHS.findall(str(value)) for part in found)
        widths = sum(int(digits[:18]) for part in parts for digits in re.findall(r"\d+", part))
        return (widths + (numbers if _STARRED.search(str(value)) else 0)) // 16
    if name in _WIDE:
        lines = len(value.splitlines()) + value.count("\t") + 1 if name in ("indent", "expandtabs") else 1
        return lines * (numbers + 4) // 16
    if name == "wordwrap":  # by lines too
        width = max([one for one in given if type(one) is int], default=79)
        return len(str(value)) // 2 + 16 * len(str(value)) // max(width, 1)
    if name in _FROM_THE_END and given and isinstance(given[0], (str, bytes)):
        return len(value) * len(given[0]) // 1_000  # Python takes the product of both at worst
    if name == "replace" and len(given) > 1 and isinstance(value, str) and isinstance(given[0], str):
        return value.count(given[0]) * len(str(given[1])) // 256
    if name == "join" and given:
        sized = [one for one in (value, given[0]) if isinstance(one, (str, *_LISTS))]
        return len(sized[0]) * len(sized[1]) // 256 if len(sized) == 2 else 0
    return 0


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, in which `task.items` is the column called items: data comes before a mapping's own methods.

    Products and powers are bounded, so that no template takes all memory or never ends for one short line.
    """

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_POWER_BITS:
                raise OverflowError("the power is too large")
            return left**right
        for one, times in ((left, right), (right, left)) if operator == "*" else ():
            if isinstance(times, int) and isinstance(one, (str, list, tuple)) and len(one) * times > _MAX_PRODUCT:
                raise OverflowError("the product is too large")
            if isinstance(one, int) and one.bit_length() > _MAX_POWER_BITS:
                raise OverflowError("the product is too large")
        return left * right if operator == "*" else left + right

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        # A policy may have left a pipe, a device or any length in the place of a file.
        return super().call(context, bounded_reading(function, most=_MAX_PRODUCT), *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        found = super().getattr(obj, attribute)
        is_lost = isinstance(found, jinja2.Undefined) and not attribute.startswith("_")
        if is_lost and isinstance(getattr(type(obj), attribute, None), property | cached_property):
            return getattr(obj, attribute)  # raises what its code did, as where that reads what is lost
        return found


class _Bounded(Sandbox):
    """The sandbox of templates over what a policy wrote or left, of any length: `Effort` bounds each rendering.

    Filters, tests and calls pay for what they are given. Loops, operators and what is written in loops have no hook in
    Jinja: a filter around their operands pays.
    """

    intercepted_binops = Sandbox.intercepted_binops | {"%", "+"}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        work = _work(context)
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            work.test(left, (right,))
        if operator == "%" and isinstance(left, str):
            work.filter(left, right if isinstance(right, tuple) else (right,), name="format")
        return left % right if operator == "%" else super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        work = _work(context)
        work.call(function, (*args, *kwargs.values()))
        if isinstance(function, jinja2.runtime.LoopContext):  # of `loop(children)`
            args, kwargs = tuple(map(work.loop, args)), {name: work.loop(one) for name, one in kwargs.items()}
        found = super().call(context, function, *args, **kwargs)
        work.spend("a call", len(found) // 1024 if isinstance(found, (str, bytes)) else 0)  # as of a file that is read
        return found

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _pay(source, is_looped=False)
        return super()._generate(source, *args, **kwargs)


def _work(context: Any) -> Effort:
    """The work that is left to a rendering, which all its contexts share."""
    found: Effort | None = getattr(context.eval_ctx, "work", None)
    if found is None:
        found = context.eval_ctx.work = Effort()
    return found


def _pay(node: nodes.Node, *, is_looped: bool) -> None:
    if isinstance(node, nodes.For):
        found = (one for part in node.body for one in part.find_all(nodes.Expr))
        held = sum(4 if isinstance(one, nodes.Getattr) else 1 for one in found)  # whose safety is looked at
        node.iter = _paid(node.iter, "(loop)", nodes.Const(2 + held // 3))
    elif isinstance(node, nodes.Compare):
        node.expr = _paid(node.expr, "(compare)")
        for operand in node.ops:
            operand.expr = _paid(operand.expr, "(compare to)")
    elif isinstance(node, nodes.Concat) or (isinstance(node, nodes.Output) and is_looped):
        node.nodes = [_paid(one, "(write)") for one in node.nodes]
    is_looped = is_looped or isinstance(node, (nodes.For, nodes.Macro))
    for field, held in node.iter_fields() if is_looped and not _is_payment(node) else ():
        if isinstance(held, nodes.Getitem) and isinstance(held.arg, nodes.Slice):  # has no hook, and makes a copy
            setattr(node, field, _paid(held))
    for child in node.iter_child_nodes():
        _pay(child, is_looped=is_looped)


def _is_payment(node: Any) -> bool:
    return isinstance(node, nodes.Filter) and node.name[0] == "("


def _paid(node: Any, name: str = "(look)", *given: nodes.Expr) -> Any:
    if isinstance(node, (nodes.Const, nodes.TemplateData)) or _is_payment(node):
        return node
    return nodes.Filter(node, name, list(given), [], None, None, lineno=node.lineno, environment=node.environment)


def _paying(function: Any, pay: Callable[..., None], *, is_whole: bool = False) -> Callable[..., Any]:
    """A filter or a test of Jinja that pays first; one that `is_whole` for all that the filter before it gives."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")  # what Jinja hands it first
    part = {"eval_context": "eval_ctx", "environment": "environment"}.get(wanted, "")

    @jinja2.pass_context
    def paying(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        work = _work(context)
        value = list(work.loop(value, 1)) if is_whole and isinstance(value, Generator) else value
        pay(work, value, (*args, *kwargs.values()))
        value = work.loop(value, 1) if isinstance(value, Generator) else value  # of the filter before
        first = (getattr(context, part) if part else context,) if wanted else ()
        return function(*first, value, *args, **kwargs)

    return paying


def _watching(pay: Callable[[Effort, Any], None]) -> Callable[..., Any]:
    """A filter that pays for a value, where that is no short text, and leaves it as it is."""

    @jinja2.pass_context
    def watching(context: Any, value: Any) -> Any:
        if not (isinstance(value, str) and len(value) < 256):
            pay(_work(context), value)
        return value

    return watching


unbounded = Sandbox(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
unbounded.filters = {name: one for name, one in unbounded.filters.items() if name not in LEFT_OUT} | {"boxed": boxed}
del unbounded.globals["lipsum"]
_bounded = _Bounded(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
_bounded.globals = unbounded.globals
_bounded.filters = {
    name: _paying(one, partial(Effort.filter, name=name), is_whole=name in _BY_PART)
    for name, one in unbounded.filters.items()
}
_bounded.tests = {
    name: _paying(one, Effort.compare if name == "in" or one.__module__ == "_operator" else Effort.test)
    for name, one in unbounded.tests.items()
}
_bounded.tests |= {one: _paying(unbounded.tests[one], partial(Effort.filter, name=one)) for one in ("lower", "upper")}
_bounded.filters |= {"(look)": _watching(Effort.test), "(write)": _watching(Effort.write)}
_bounded.filters["(compare)"] = _watching(Effort.compare)
_bounded.filters["(compare to)"] = _watching(lambda work, value: work.compare(None, (value,)))
_bounded.filters["(loop)"] = jinja2.pass_context(lambda context, *given: _work(context).loop(*given))


def environment_of(names: Collection[str]) -> Sandbox:
    """The sandbox of a template that reads these names."""
    return unbounded if _WRITTEN.isdisjoint(names) else _bounded
