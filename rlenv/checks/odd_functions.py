"""Warnings of the author's own Python."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv._base.nearest import did_you_mean
from rlenv.checks.subject import Subject
from rlenv.errors import Finding

__all__ = ["check_functions"]

_IN_PLACE: Final = frozenset("add append clear discard extend insert pop remove update".split())
_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array"}
_WAITS: Final = frozenset(("time.sleep", "sleep", "requests.get", "requests.post", "subprocess.run"))


def check_functions(subject: Subject) -> Iterator[Finding]:
    """Warnings of the functions of tools: what they never read, change unsaid, wait for, or take of another type."""
    for name, entry in subject.loaded.spec.tools.items():
        place, _, function = str(getattr(entry, "function", "")).partition(":")
        if name == subject.loaded.spec.answer.tool:
            continue  # it is not run
        try:
            tree = ast.parse((subject.loaded.base_of(f"tools.{name}.function") / place).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
                yield from _function(subject, f"tools.{name}", node, entry)


def _function(
    subject: Subject, path: str, node: ast.FunctionDef | ast.AsyncFunctionDef, entry: Any
) -> Iterator[Finding]:
    warn, inject = subject.document.warning, tuple(getattr(entry, "inject", ()))
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {"self", "context"}
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    for name in names:
        if name not in (*read, *inject) and not name.startswith("_") and len(node.body) > 1:
            message = f"the function never reads its parameter '{name}'"
            yield warn(f"{path}.function", message, "use it, or take it out", "unread-parameter")
            break
    told = re.search(r"(?s)\n\s*Args:\n(.*?)(?:\n\s*\n|\n\s*\w+:\n|$)", ast.get_docstring(node) or "")
    described = re.findall(r"(?m)^ {1,8}(\w+)(?: \([^)]*\))?:", told[1]) if told is not None else []
    if node.args.kwarg is None and (lost := [name for name in described if name not in names]):
        message = f"its docstring describes '{lost[0]}', which is no parameter"
        yield warn(f"{path}.function", message, did_you_mean(lost[0], names, "it takes"), "unread-parameter")
    calls = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    if getattr(entry, "run_in", None) == "loop" and (waits := sorted(calls & _WAITS)):
        message = f"the function waits in '{waits[0]}', which holds up all episodes"
        yield warn(f"{path}.run_in", message, "take 'run_in: loop' out", "odd-policy")
    if broad := sorted({"Exception", "BaseException"} & set(getattr(entry, "errors", ()))):
        message = f"'{broad[0]}' is every bug too, which the model is shown as its own mistake"
        yield warn(f"{path}.errors", message, "name the exceptions that a call can cause", "odd-policy", at="key")
    declared = tuple(getattr(builtins, one, Exception) for one in getattr(entry, "errors", ()))
    for name in sorted({ast.unparse(getattr(one.exc, "func", one.exc)) for one in ast.walk(node)
                        if isinstance(one, ast.Raise) and one.exc is not None}):  # fmt: skip
        raises = getattr(builtins, name, None)
        if isinstance(raises, type) and not issubclass(raises, declared):
            message = f"it raises {name}, which 'errors' does not name: the model reads no more than that it failed"
            yield warn(f"{path}.function", message, f"write errors: [{name}], or raise ToolFailed", "odd-policy")
            break
    tool = subject.tools.get(path.partition(".")[2])
    hints = {one.arg: ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None}
    for name, schema in (tool.parameters.get("properties", {}) if tool is not None else {}).items():
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        wanted = _TYPES.get(hints.get(name, ""), kind)
        if kind != wanted and not (kind == "integer" and wanted == "number"):
            message = f"'{name}' is declared as {kind}, and the function takes {hints[name]}"
            place = f"{path}.parameters" if subject.document.has(f"{path}.parameters") else path
            yield warn(place, message, f"write {wanted}", "other-type", at="key")
    changed = {_root(one) for statement in ast.walk(node) for one in _changes(statement)}
    if (found := sorted(changed & set(inject) & set(subject.loaded.spec.resources))) and not entry.mutates:
        message = f"the function changes '{found[0]}', and 'mutates' is false: calls of one turn run at once"
        yield warn(f"{path}.function", message, "write mutates: true", "odd-policy")


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement changes in place."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        yield from (one for one in node.targets if isinstance(one, (ast.Subscript, ast.Attribute)))
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, (ast.Subscript, ast.Attribute)):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
        yield node.func.value


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
