"""Warnings of the author's own Python: what a function returns, waits for, draws, keeps, opens and pays for."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.subject import Subject
from rlenv.errors import Finding

__all__ = ["check_functions"]

Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Said = tuple[str, str, str]
"""A message, a hint and a code."""

_IN_PLACE: Final = frozenset("add append appendleft clear discard extend insert pop popleft remove setdefault "
                             "update".split())  # fmt: skip
_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "list": "array"}
_WAITS: Final = re.compile(
    r"time\.sleep|input|os\.system|(?:requests|httpx)\.(?:get|post|put|patch|delete|head|request)"
    r"|subprocess\.(?:run|call|check_call|check_output|getoutput)|urllib\.request\.(?:urlopen|urlretrieve)"
)
_DRAWS: Final = re.compile(
    r"random\.(?!Random|SystemRandom|seed|getstate|setstate)[a-z]\w*|secrets\.\w+|os\.urandom"
    r"|numpy\.random\.(?!default_rng|RandomState|Generator|seed)\w+"
)
_CLOCK: Final = re.compile(r"datetime\.(?:date|datetime)\.(?:today|now|utcnow)|time\.(?:time|localtime)")
_OPENS: Final = re.compile(r"(?:io\.)?open|pathlib\.Path|(?:sqlite3|duckdb)\.connect|pandas\.read_\w+|os\.listdir")
_MUTABLE: Final = frozenset("Counter OrderedDict bytearray defaultdict deque dict list set".split())
_KEPT_ON_PURPOSE: Final = re.compile(r"(?i)cache|memo|lock|pool|client|conn|index|load|model|regist|log")
_SAID: Final = re.compile(r"\b(?:answer|final_text|transcript|messages?|completion|response)\b")
_ROLES: Final = {"tools": "tool", "resources": "world", "rewards": "reward", "user": "user"}


@dataclass(frozen=True, slots=True)
class _Use:
    """A function or a class that the spec names, and the definitions of its file that it reaches."""

    path: tuple[str | int, ...]
    role: str
    file: Path
    entry: Any
    node: Def
    reached: Sequence[Def]
    module: ast.Module
    names: Mapping[str, str]
    """What the file imports, by the name that it has there."""
    golds: Mapping[str, Sequence[str]]
    """The columns of right answers, with the first of their values."""

    def walk(self) -> Iterator[ast.AST]:
        for one in self.reached:
            yield from ast.walk(one)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Each call with the full name of what it calls."""
        for one in self.walk():
            if isinstance(one, ast.Call):
                first, dot, rest = ast.unparse(one.func).partition(".")
                # A dotted name that is not imported is a value of the author's, such as a generator called 'random'.
                yield self.names.get(first, f".{first}" if dot else first) + dot + rest, one


def check_functions(subject: Subject) -> Iterator[Finding]:
    """Warnings of the functions that a spec names; a file that cannot be read is reported where it is compiled."""
    for use in _uses(subject):
        is_tool = use.role == "tool"
        if is_tool and use.path[1] == subject.loaded.spec.answer.tool:
            continue  # it is not run
        if is_tool and isinstance(use.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _function(subject, f"tools.{use.path[1]}", use.node, use.entry)
        for rule in (_returns, _waits, _chance, _keeps, _opens, _tells, _pays):
            said = next(rule(use), None)
            if said is not None:
                yield subject.document.warning(use.path, *said)


def _uses(subject: Subject) -> Iterator[_Use]:
    rewards = subject.document.data.get("rewards", {})
    read = {found for _, text in strings_in(rewards, ()) for found in re.findall(r"task\.(\w+)", text)}
    read = read or {*re.findall(r"\btask(?:\.get\(|\[)['\"](\w+)", subject.code or ""), "answer"}
    read -= {"player"} if hasattr(subject.loaded.spec.user, "roles") else set()
    rows = [row for split in subject.splits.values() for row in split.rows[:50]]
    golds = {name: [str(row[name]) for row in rows if name in row] for name in read
             if all(isinstance(row.get(name), (str, int, float)) for row in rows)}  # fmt: skip
    for path, text in strings_in(subject.document.data, ()):
        place = re.fullmatch(r"([\w./-]+\.py)(?::(\w+))?", text)
        role = "server" if path[-2:-1] == ("command",) else _ROLES.get(str(path[0]), "")
        if place is None or not role or (role == "server") == bool(place[2]):
            continue
        file = subject.loaded.base_of(".".join(map(str, path))) / place[1]
        try:
            module = subject.once(file, lambda file=file: ast.parse(file.read_text(encoding="utf-8")))  # type: ignore[misc]
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        made = {one.name: one for one in module.body if isinstance(one, Def)}
        names = dict(pair for one in ast.walk(module) for pair in _imported(one))
        start = list(made) if role == "server" else [place[2]]
        reached: dict[str, Def] = {}
        while start:
            name = start.pop()
            if name in made and name not in reached:
                reached[name] = made[name]
                start += [one.id for one in ast.walk(made[name]) if isinstance(one, ast.Name)]
        if reached:
            entry = getattr(subject.loaded.spec, str(path[0]), {})
            entry = entry.get(path[1]) if isinstance(entry, Mapping) else entry
            first = next(iter(reached.values()))
            yield _Use(path, role, file, entry, first, [*reached.values()], module, names, golds)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((one.asname or one.name.partition(".")[0], one.name if one.asname else one.name.partition(".")[0])
                    for one in node.names)  # fmt: skip
    elif isinstance(node, ast.ImportFrom):
        yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions that it defines."""
    for one in ast.iter_child_nodes(node):
        if not isinstance(one, (Def, ast.Lambda)):
            yield one
            yield from _own(one)


def _ends(body: Sequence[ast.stmt]) -> bool:
    """True for statements after which no other one is reached."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body) and _ends(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return _ends(last.body)
    if isinstance(last, ast.Try):
        goes = _ends(last.orelse or last.body) and all(_ends(one.body) for one in last.handlers)
        return goes or bool(last.finalbody and _ends(last.finalbody))
    if isinstance(last, ast.Match):
        return all(_ends(one.body) for one in last.cases) and getattr(last.cases[-1].pattern, "pattern", "") is None
    endless = isinstance(last, ast.While) and isinstance(last.test, ast.Constant) and bool(last.test.value)
    return endless or isinstance(last, (ast.Return, ast.Raise))


def _returns(use: _Use) -> Iterator[Said]:
    """A tool that returns nothing, and a function that does so on one of its ways."""
    inside = [*_own(use.node)]
    if (
        use.role not in ("tool", "reward")
        or isinstance(use.node, ast.ClassDef)
        or any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in inside)
    ):
        return
    given = [one for one in inside if isinstance(one, ast.Return) and one.value is not None]
    gives = [one for one in given if not (isinstance(one.value, ast.Constant) and one.value.value is None)]
    prints = any(isinstance(one, ast.Call) and ast.unparse(one.func) == "print" for one in inside)
    if not gives and prints and use.role == "tool":
        yield "it prints, and returns nothing: the model reads an empty result", "return what it prints", "no-result"
    elif gives and len(gives) == len(given) and not _ends(use.node.body):
        what = "the model reads an empty result" if use.role == "tool" else "the term is skipped, and counts nothing"
        yield f"on one of its ways it returns nothing: {what}", "return a value at its end", "no-result"


def _waits(use: _Use) -> Iterator[Said]:
    """A call that holds up the loop, and with it all episodes."""
    is_async = isinstance(use.node, ast.AsyncFunctionDef)
    if is_async or getattr(use.entry, "run_in", None) == "loop":
        for name, call in use.calls():
            inside = [one for one in use.reached if isinstance(one, ast.AsyncFunctionDef) or not is_async]
            if _WAITS.fullmatch(name) and any(call is one for part in inside for one in ast.walk(part)):
                hint = "await what does not block, or write it without 'async'" if is_async else "write run_in: thread"
                yield f"the function waits in '{name}', which holds up all episodes", hint, "odd-policy"


def _chance(use: _Use) -> Iterator[Said]:
    """The sources of chance that no seed rules: a random draw, the clock, and the order of a set."""
    calls = [*use.calls()]
    own_hash = {part for one in use.walk() if getattr(one, "name", "") == "__hash__" for part in ast.walk(one)}
    is_seeded = any(name.endswith("random.seed") and (call.args or call.keywords) for name, call in calls)
    hint = "draw from the seed, and give the day as a column or a constant"
    for name, call in calls:
        drawn = _DRAWS.fullmatch(name) is not None and not is_seeded
        if drawn or (name in ("random.Random", "numpy.random.default_rng") and not (call.args or call.keywords)):
            yield f"it draws with {name}(), which no seed rules: the same calls give something else", hint, "unsteady"
        if name == "hash" and use.role != "server" and call not in own_hash:
            yield "it asks hash(), which is another one in each process", "take hashlib, or sort", "unsteady"
    clocks = [(name, call) for name, call in calls if _CLOCK.fullmatch(name) and name != "time.time" and not call.args]
    counted = {ast.dump(one) for part in (use.walk() if clocks else ()) if isinstance(part, (ast.BinOp, ast.Compare))
               for one in ast.walk(part)}  # fmt: skip
    for name, call in clocks:
        into = [ast.dump(ast.Name(one.id, ast.Load())) for part in use.walk() if isinstance(part, ast.Assign)
                and part.value is call for one in part.targets if isinstance(one, ast.Name)]  # fmt: skip
        if any(one in counted for one in (ast.dump(call), *into)):
            message = f"it counts with {name}(): what it gives is another thing on another day"
            yield message, hint, "unsteady"


def _keeps(use: _Use) -> Iterator[Said]:
    """State of a module, of a class or of a default, which all episodes share."""
    if use.role == "server" and getattr(use.entry, "scope", "") == "episode":
        return
    hint = "keep it in a resource, which each episode has for itself"
    hint = hint if use.role != "server" else "write scope: episode"
    top = {one.id for part in use.module.body for one in _targets(part) if isinstance(one, ast.Name)}
    state = {one.id for part in use.module.body if isinstance(part, (ast.Assign, ast.AnnAssign))
             and _is_mutable(part.value) for one in _targets(part) if isinstance(one, ast.Name)}  # fmt: skip
    for part in use.reached:
        code = ast.unparse(part)
        local = {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        local |= {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
        shared = {name for node in ast.walk(part) if isinstance(node, ast.Global) for name in node.names}
        changed = {_root(one) for node in ast.walk(part) for one in _changes(node)}
        for name in sorted((changed & state - (local - shared)) | (shared & local & top)):
            guarded = re.search(rf"\b{name} is None|\bnot {name}\b|not in {name}\b|{name}\.setdefault", code)
            if not guarded and not _KEPT_ON_PURPOSE.search(name):
                yield f"it changes '{name}' of its file, which all episodes share", hint, "shared-state"
        if isinstance(part, ast.ClassDef):
            own = {one.attr for node in ast.walk(part) for one in _targets(node) if isinstance(one, ast.Attribute)}
            kept = {one.id for node in part.body if isinstance(node, (ast.Assign, ast.AnnAssign))
                    and _is_mutable(node.value) for one in _targets(node) if isinstance(one, ast.Name)}  # fmt: skip
            for node in ast.walk(part):
                for one in _changes(node):
                    found = re.match(r"self\.(\w+)", ast.unparse(one))
                    if found is not None and found[1] in kept - own:
                        yield f"'{part.name}.{found[1]}' is of the class: all episodes share it", hint, "shared-state"
        else:
            args = [*part.args.posonlyargs, *part.args.args]
            given = dict(zip(reversed([one.arg for one in args]), reversed(part.args.defaults), strict=False))
            for name, default in given.items():
                if name in changed and _is_mutable(default):
                    yield f"the default of '{name}' is changed, and is one for all calls", hint, "shared-state"


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        yield from node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For)):
        yield node.target


def _is_mutable(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in _MUTABLE
    return isinstance(node, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _opens(use: _Use) -> Iterator[Said]:
    """Files that are looked for where rlenv is started, and files that all episodes write."""
    if use.role == "server":
        return
    for name, call in use.calls():
        text = call.args[0] if call.args else None
        text = text.values[0] if isinstance(text, ast.JoinedStr) and text.values else text
        if not _OPENS.fullmatch(name) or not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            continue
        mode = next((one.value for one in (*call.args[1:2], *(key.value for key in call.keywords if key.arg == "mode"))
                     if isinstance(one, ast.Constant)), "")  # fmt: skip
        if name.endswith("open") and isinstance(mode, str) and set(mode) & set("wax") and use.role != "world":
            message = f"it writes '{text.value}', a file that all episodes share"
            yield message, "write into a resource of kind tempdir", "shared-state"
        beside = Path(text.value)
        if not beside.is_absolute() and len(beside.parts) and (use.file.parent / beside).exists():
            message = f"it opens '{text.value}' below the folder in which rlenv is started"
            yield message, "write Path(__file__).parent / …", "odd-path"


def _of_gold(use: _Use, node: ast.AST) -> str:
    """The column of right answers that an expression reads from the task, "" where it reads none."""
    found = re.search(r"\btask(?:\.get\(|\[)['\"](\w+)", ast.unparse(node))
    return found[1] if found is not None and found[1] in use.golds else ""


def _tells(use: _Use) -> Iterator[Said]:
    """A tool that says whether an answer is right; one that says 'more' or 'less' is a game."""
    tests = [one for one in use.walk() if isinstance(one, ast.Compare)]
    about = [one for one in tests if _of_gold(use, one)]
    given = {one.arg for one in getattr(getattr(use.node, "args", None), "args", ())}
    if use.role != "tool" or any(not isinstance(one.ops[0], (ast.Eq, ast.NotEq)) for one in about):
        return
    for one in about:
        if given & {name.id for name in ast.walk(one) if isinstance(name, ast.Name)} - {"task", "context"}:
            message = f"it says whether a value is task['{_of_gold(use, one)}'], the right answer, as often as asked"
            yield message, "let it say something else, or allow it one call", "told-answer"


def _pays(use: _Use) -> Iterator[Said]:
    """A reward for what fails, and one for a text that merely holds the right answer, or is held by it."""
    if use.role != "reward":
        return
    for one in use.walk():
        for part in one.body if isinstance(one, ast.ExceptHandler) else ():
            value = part.value if isinstance(part, ast.Return) else None
            paid = value.value if isinstance(value, ast.Constant) else 0
            if isinstance(paid, (int, float)) and paid > 0:
                yield f"what makes it fail earns {paid:g}", "return 0.0 there", "paid-for-nothing"
    meant = {one.targets[0].id: one.value for one in use.walk()
             if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)}  # fmt: skip
    for one in use.walk():
        if not isinstance(one, ast.Compare) or not isinstance(one.ops[0], ast.In):
            continue
        left, right = (_meant(side, meant) for side in (one.left, one.comparators[0]))
        listed = re.search(r"\.split\(|\[[^'\"]|\blist\(|\bset\(|findall", ast.unparse(right))
        is_short = any(len(value) < 4 or value.isdigit() for value in use.golds.get(_of_gold(use, left), ()))
        if is_short and _SAID.search(ast.unparse(right)) and listed is None and use.entry.usual_weight > 0:
            message = "it asks whether the right answer stands somewhere in the text: 4 stands in 42"
            yield message, "compare the whole answer", "short-gold"
        if _of_gold(use, right) and _SAID.search(ast.unparse(left)) and listed is None and use.entry.usual_weight > 0:
            message = "it asks whether the right answer holds what was said: one letter of it is enough"
            yield message, "compare with ==", "short-gold"


def _meant(node: ast.expr, meant: Mapping[str, ast.expr]) -> ast.expr:
    """An expression, or what was given to the name that it is; `x.lower()` is about x."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return meant.get(node.id, node) if isinstance(node, ast.Name) else node


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
    typed = {one.arg: ast.unparse(one.annotation) for one in node.args.args if one.annotation is not None}
    worlds = [name for name in names if name in subject.loaded.spec.resources and name not in inject]
    if lost := [name for name in worlds if typed.get(name, "") not in _TYPES]:
        message = f"the model fills in '{lost[0]}', which has the name of a resource: the function never sees that one"
        yield warn(f"{path}.function", message, f"write inject: [{lost[0]}]", "unread-parameter")
    told = re.search(r"(?s)\n\s*Args:\n(.*?)(?:\n\s*\n|\n\s*\w+:\n|$)", ast.get_docstring(node) or "")
    described = re.findall(r"(?m)^ {1,8}(\w+)(?: \([^)]*\))?:", told[1]) if told is not None else []
    if node.args.kwarg is None and (lost := [name for name in described if name not in names]):
        message = f"its docstring describes '{lost[0]}', which is no parameter"
        yield warn(f"{path}.function", message, did_you_mean(lost[0], names, "it takes"), "unread-parameter")
    if broad := sorted({"Exception", "BaseException"} & set(getattr(entry, "errors", ()))):
        message = f"'{broad[0]}' is every bug too, which the model is shown as its own mistake"
        yield warn(f"{path}.errors", message, "name the exceptions that a call can cause", "odd-policy", at="key")
    # What the function catches itself never leaves it.
    caught = {part for one in ast.walk(node) if isinstance(one, ast.Try) and one.handlers
              for statement in one.body for part in ast.walk(statement)}  # fmt: skip
    declared = tuple(getattr(builtins, one, Exception) for one in getattr(entry, "errors", ()))
    for name in sorted({ast.unparse(getattr(one.exc, "func", one.exc)) for one in ast.walk(node)
                        if isinstance(one, ast.Raise) and one.exc is not None and one not in caught}):  # fmt: skip
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
        kinds = kind if isinstance(kind, list) else [kind]
        if wanted not in kinds and not (wanted == "number" and "integer" in kinds):
            message = f"'{name}' is declared as {kind}, and the function takes {hints[name]}"
            place = f"{path}.parameters" if subject.document.has(f"{path}.parameters") else path
            yield warn(place, message, f"write {wanted}", "other-type", at="key")
    changed = {_root(one) for statement in ast.walk(node) for one in _changes(statement)}
    if (found := sorted(changed & set(inject) & set(subject.loaded.spec.resources))) and not entry.mutates:
        message = f"the function changes '{found[0]}', and 'mutates' is false: calls of one turn run at once"
        yield warn(f"{path}.function", message, "write mutates: true", "odd-policy")


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement changes in place."""
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
