"""Sandboxed Jinja for prompts, paths, arguments and observations.

A template that is exactly one expression (`{{ task.a }}`) gives the expression's own value when a value is asked for,
so that numbers stay numbers; everything else gives text. An undefined name is an error, never an empty string.
"""

from __future__ import annotations

import os
import re
import secrets
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import jinja2
import markupsafe
from jinja2 import meta, nodes

from rlenv import _base
from rlenv._base.text import did_you_mean, strings_in
from rlenv.errors import RlenvError, UnfitTemplate
from rlenv.language import sandbox
from rlenv.language.functions import is_outage
from rlenv.language.sandbox import LEFT_OUT, environment_of, unbounded
from rlenv.secrets import watched

__all__ = ["Template", "TemplateError", "UnfitTemplate", "as_template", "compile_template", "compile_value"]
__all__ += ["compile_written", "template_of", "texts_at", "texts_in"]

_T = TypeVar("_T")

_OWN = frozenset(("vars", "resources"))  # what no row, model or server says
_SINGLE = re.compile(r"\s*\{\{(?!\{)((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)
_OF_TEMPLATES = (
    __file__,
    sandbox.__file__,
    "<",
    *(os.path.dirname(str(one.__file__)) for one in (_base, jinja2, markupsafe)),
)
_OF_PYTHON = os.path.dirname(os.__file__)  # what filters and methods of plain values call
_OF_VALUES = re.compile(r"[/\\][a-z]+-packages[/\\]numpy[/\\]")
_OTHER_FILES: tuple[type[nodes.Stmt], ...] = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class TemplateError(RlenvError):
    """A template cannot be compiled or rendered; `line` is 1-based inside it, `source` the text of one that failed."""

    def __init__(self, message: str, *, line: int = 1, source: str = "") -> None:
        self.line, self.source = line, source
        super().__init__(message)

    @property
    def is_unfit(self) -> bool:
        """True where what it reads does not fit it; False where code behind that failed, such as a property's.

        A value too large for the memory does not fit: a file, a width or a length that was left or given makes it so.
        """
        cause = self.__cause__
        paths = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(getattr(cause, "__traceback__", None))]
        others = [path for path in paths if not path.startswith(_OF_TEMPLATES) and not _OF_VALUES.search(path)]
        is_plain = all(path.startswith(_OF_PYTHON) and "-packages" not in path for path in others)
        return is_plain and not is_outage(cause)


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. `names` are the top-level names that it reads; `paths` the dotted ones (`task.question`)."""

    source: str
    names: frozenset[str]
    paths: frozenset[tuple[str, ...]]
    _text: Callable[..., str]
    _value: Callable[..., Any] | None
    _head: Callable[..., str] | None = None

    @property
    def is_constant(self) -> bool:
        """True where it reads nothing but what is the spec's own: no row, model or server has a say in it."""
        return self.names <= _OWN

    def folder(self, **values: Any) -> str:
        """The folder part of what stands before the first thing that is not the spec's own.

        `data/` of `data/db-{{ task.name }}.sqlite`, "" where it begins with such a thing.

        Raises:
            TemplateError: a constant in that part is not there.
        """
        text = _render_with(self._head, values) if self._head is not None else ""
        return text[: text.rfind("/") + 1]

    def written(self, **values: Any) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The rendered text, and the parts of it (first character, and the one behind the last) that the template's
        author wrote; all else came of the values. Where that cannot be told, no part is the author's.

        Raises:
            TemplateError: as for `text`.
        """
        text = self.text(**values)
        if "{" not in self.source:
            return text, ((0, len(text)),) if text else ()
        try:
            marked = _marking(self.source).render(**values)
        except Exception:  # it rendered a moment ago; what it does with marked texts is no fault of the spec
            return text, ()
        spans, plain, at, depth = list[tuple[int, int]](), list[str](), 0, 0
        for index, piece in enumerate(_MARKS.split(marked)):
            if index % 2:
                depth += 1 if piece == _BEGIN else -1
                continue
            if piece and depth == 0:
                first = spans.pop()[0] if spans and spans[-1][1] == at else at  # those that meet are one
                spans.append((first, at + len(piece)))
            plain.append(piece)
            at += len(piece)
        return text, tuple(spans) if "".join(plain) == text else ()

    def text(self, **values: Any) -> str:
        """The rendered text.

        Raises:
            TemplateError: a name is undefined, or the sandbox refused.
        """
        return _render_with(self._text, values, self.source)

    def value(self, **values: Any) -> Any:
        """The expression's own value where the template is one expression, the rendered text otherwise.

        Raises:
            TemplateError: a name is undefined, or the sandbox refused.
        """
        if self._value is None:
            return self.text(**values)
        result = _render_with(self._value, values, self.source)
        if isinstance(result, jinja2.Undefined):
            raise TemplateError(f"{self.source.strip()} is undefined", source=self.source)
        return result


# Around each value that a template writes. Drawn for each process, so that no value can hold one.
_BEGIN, _END = (f"\ufdd0{secrets.token_hex(8)}\ufdd1" for _ in range(2))
_MARKS = re.compile(f"({_BEGIN}|{_END})")
_marking_environment = unbounded.overlay(finalize=lambda value: f"{_BEGIN}{value}{_END}")


@lru_cache(maxsize=1024)
def _marking(source: str) -> jinja2.Template:
    """The template that writes its values between marks."""
    return _marking_environment.from_string(source)


def _paths(tree: nodes.Template) -> frozenset[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()

    def chain(node: nodes.Node) -> tuple[str, ...] | None:
        if isinstance(node, nodes.Name):
            return (node.name,) if node.ctx == "load" else None
        if isinstance(node, nodes.Getattr):
            head = chain(node.node)
            return (*head, node.attr) if head else None
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            head = chain(node.node)
            return (*head, node.arg.value) if head else None
        return None

    def visit(node: nodes.Node) -> None:
        path = chain(node)
        if path is not None:
            found.add(path)
            return
        for child in node.iter_child_nodes():
            visit(child)

    visit(tree)
    return frozenset(found)


def _lookup(path: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    """Follows a dotted path through mappings; LookupError where anything but a plain entry is in the way."""
    first, rest = path[0], path[1:]

    def follow(values: Mapping[str, Any]) -> Any:
        value = values[first]
        for name in rest:
            if type(value) is not dict and not isinstance(value, Mapping):
                raise KeyError(name)
            value = value[name]
        return value

    return follow


def _plain_pieces(tree: nodes.Template) -> list[str | tuple[str, ...]] | None:
    """The pieces of a template that is only text and dotted names, else None."""
    pieces: list[str | tuple[str, ...]] = []
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                pieces.append(node.data)
                continue
            path: list[str] = []
            part: nodes.Node = node
            while isinstance(part, nodes.Getattr):
                path.append(part.attr)
                part = part.node
            if not isinstance(part, nodes.Name):
                return None
            pieces.append((part.name, *reversed(path)))
    return pieces


def _head(tree: nodes.Template) -> Callable[..., str] | None:
    """Renders what stands before the first thing that is not the spec's own; None where nothing does."""
    found: list[nodes.Expr] = []
    for output in tree.body:
        for node in output.nodes if isinstance(output, nodes.Output) else (output,):
            for piece in _pieces(node):
                if not isinstance(piece, nodes.Expr) or not meta.find_undeclared_variables(_tree([piece])) <= _OWN:
                    return _rendering(_tree(found)) if found else None
                found.append(piece)
    return _rendering(_tree(found)) if found else None


def _pieces(node: nodes.Node) -> Iterator[nodes.Node]:
    """The parts of `a ~ b` and `a + b`, in order; the node itself otherwise."""
    if isinstance(node, nodes.Concat):
        for part in node.nodes:
            yield from _pieces(part)
    elif isinstance(node, nodes.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    else:
        yield node


def _rendering(tree: nodes.Template) -> Callable[..., str]:
    environment = environment_of(meta.find_undeclared_variables(tree))
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.globals.copy()).render


def _tree(found: list[nodes.Expr]) -> nodes.Template:
    tree = nodes.Template([nodes.Output(list(found), lineno=1)], lineno=1)
    tree.set_environment(unbounded)
    return tree


def _quick(tree: nodes.Template, text: Callable[..., str], value: Callable[..., Any] | None) -> tuple[Any, Any]:
    """Renders what is only text and entries of mappings without Jinja, which takes some 20 µs a template.

    Whatever is not that simple at run time (an attribute of an object, an undefined name) is left to Jinja.
    """
    pieces = _plain_pieces(tree)
    if pieces is None:
        return text, value
    parts = [piece if isinstance(piece, str) else _lookup(piece) for piece in pieces]

    def quick_text(**values: Any) -> str:
        try:
            return "".join([part if isinstance(part, str) else str(part(values)) for part in parts])
        except LookupError:
            return text(**values)

    if value is None:
        return quick_text, None
    (follow,) = (part for part in parts if not isinstance(part, str))

    def quick_value(**values: Any) -> Any:
        try:
            return follow(values)
        except LookupError:
            return value(**values)

    return quick_text, quick_value


def compile_template(source: str) -> Template:
    """Compiles `source`; raises TemplateError for a syntax error, with the `line` inside the template."""
    if (filled := watched.get()) is not None:
        filled.templates.add(source)
    return _compiled(source)


@lru_cache(maxsize=4096)
def _compiled(source: str) -> Template:
    try:
        tree = unbounded.parse(source)
        for other in tree.find_all(_OTHER_FILES):
            said = "a template reads no other file; write the whole text in one: {file: NAME}"
            raise TemplateError(said, line=other.lineno)
        names = frozenset(meta.find_undeclared_variables(tree))
        environment = environment_of(names)
        single = _SINGLE.fullmatch(source)
        value = environment.compile_expression(single[1], undefined_to_none=False) if single else None
        text, value = _quick(tree, environment.from_string(source).render, value)
        return Template(source, names, _paths(tree), text, value, _head(tree))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(error.message or "syntax error", line=error.lineno) from error
    except TemplateError:
        raise
    except Exception as error:  # Python's own limits: nested too deep, a number of too many digits
        raise TemplateError(_reason(error)) from error


def template_of(source: str, *, key: str, names: Collection[str] | None = None) -> Template:
    """The template that stands under `key` of a spec.

    Args:
        names: what it may read; None where that is not looked at here.

    Raises:
        UnfitTemplate: it does not compile, or reads another name.
    """
    try:
        template = compile_template(source)
    except TemplateError as error:
        hint, said = "write {{ name }} for a value and {% if … %} for a condition", str(error).rstrip(".")
        if match := re.fullmatch(r"No (filter|test) named '(\w+)'", said):
            known = unbounded.filters if match[1] == "filter" else unbounded.tests
            hint = LEFT_OUT.get(match[2]) or did_you_mean(match[2], known) or hint
        raise UnfitTemplate(f"the template cannot be read: {said}", key=key, hint=hint, line=error.line) from error
    for name in sorted(template.names.difference(template.names if names is None else names)):
        hint = LEFT_OUT.get(name) or did_you_mean(name, sorted(names or ()), "known names")
        raise UnfitTemplate(f"'{name}' is not known here", key=key, hint=hint, find=name)
    return template


def _render_with(template: Callable[..., _T], values: Mapping[str, Any], source: str = "") -> _T:
    try:
        return template(**values)
    except RlenvError:
        raise
    except Exception as error:  # an author's template meets rows and resources of any kind
        raise TemplateError(_reason(error), source=source) from error


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deep, or calls itself without end"
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return f"{type(error).__name__}: {error}"


def compile_written(source: str, write: Callable[[Any], str]) -> Callable[..., str]:
    """A template that writes by `write` what reads more than `vars`; raises TemplateError for a syntax error."""
    compile_template(source)
    tree = unbounded.parse(source)
    for output in tree.find_all(nodes.Output):
        output.nodes = [_mark_written(node) for node in output.nodes]
    render = _rendering(tree)
    return lambda **values: _render_with(render, {**values, "_write": write})


def _mark_written(node: Any) -> Any:
    """`node` as `compile_written` writes it: parts that are joined or chosen from each by itself."""
    if isinstance(node, nodes.Concat):
        node.nodes = [_mark_written(part) for part in node.nodes]
    elif isinstance(node, nodes.CondExpr):
        node.expr1, node.expr2 = _mark_written(node.expr1), node.expr2 and _mark_written(node.expr2)
    elif not isinstance(node, nodes.TemplateData) and meta.find_undeclared_variables(_tree([node])) - {"vars"}:
        return nodes.Call(nodes.Name("_write", "load"), [node], [], None, None)
    return node


def as_template(source: str) -> Template:
    """The template of an expression, in braces or without; raises TemplateError for a syntax error."""
    return compile_template(braced(source))


def braced(source: str) -> str:
    """An expression in braces, with spaces: `{{-` cuts white space, and is no minus."""
    return source if _SINGLE.fullmatch(source) else "{{ " + source + " }}"


def compile_value(value: Any) -> Callable[..., Any]:
    """What fills a JSON-like value in which every string is a template; raises TemplateError for a syntax error."""
    if isinstance(value, str) and "{" in value:
        return compile_template(value).value
    if isinstance(value, Mapping):
        parts = {key: compile_value(item) for key, item in value.items()}
        return lambda **values: {key: part(**values) for key, part in parts.items()}
    if isinstance(value, (list, tuple)):
        items = [compile_value(item) for item in value]
        return lambda **values: [item(**values) for item in items]
    return lambda **_: value


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON-like value, keys left out, in order."""
    return (text for _, text in texts_at("", value))


def texts_at(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text of a JSON-like value that stands under `key`, with its own dotted key, in order."""
    return ((".".join(map(str, path)), text) for path, text in strings_in(value, (key,)))
