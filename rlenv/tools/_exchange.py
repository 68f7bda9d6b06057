"""The exchange between a policy's code and the tests of it, each in a sandbox of its own; loaded inside of both.

The two have one socket between them. The tests' side calls, by name, and gets values; no object of the code's ever
comes across, so nothing that the code defines, replaces or writes takes part in a comparison. What it writes to the
socket by itself is only a value that it could have returned.

A frame is four bytes of length and JSON: text, booleans, null, floats and integers below 2**63 as they are, all else
as a list whose first item names the kind. This file imports nothing of rlenv but
`_matching`, which is loaded before it.
"""

from __future__ import annotations

import ast
import base64
import builtins
import decimal
import fractions
import importlib
import itertools
import json
import math
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from rlenv.tools._matching import matches, short_repr

MAX_FRAME = 4 * 1024 * 1024
MAX_ITEMS = 100_000
"""Of a generator or another iterator, which is drawn before it is sent."""
_MAX_TEXT = 1_000
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter
}  # fmt: skip


class Unfit(Exception):
    """A value that cannot be sent, or a frame that holds none."""


class _Gone(BaseException):
    """The code has ended, or sent what no value is. No `except Exception` of a test may take it for an error."""


def encode_value(value: Any, refer: Callable[[Any], Any] | None = None) -> Any:
    """`value` as JSON; what is no data as `refer` has it.

    Instances of derived classes (a Counter, a namedtuple, an IntEnum) are what the class that they derive from holds.

    Raises:
        Unfit, RecursionError: it holds what is no data, or itself.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        value = int.__int__(value)
        return value if -(1 << 63) < value < 1 << 63 else ["int", hex(value)]
    if isinstance(value, float):
        value = float.__float__(value)
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, dict):
        pairs: Any = dict.items(value)
        return ["dict", *([encode_value(pair[0], refer), encode_value(pair[1], refer)] for pair in pairs)]
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            items: Iterator[Any] = base.__iter__(value)  # type: ignore[arg-type]
            return [base.__name__, *(encode_value(one, refer) for one in items)]
    return _encode_rare(value, refer)


def _encode_rare(value: Any, refer: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, base64.b64encode(value).decode()]
    if isinstance(value, complex):
        return ["complex", encode_value(value.real), encode_value(value.imag)]
    if isinstance(value, range):
        return ["range", *map(encode_value, (value.start, value.stop, value.step))]
    if isinstance(value, decimal.Decimal):
        return ["Decimal", str(value)]
    if isinstance(value, fractions.Fraction):
        return ["Fraction", encode_value(value.numerator), encode_value(value.denominator)]
    if isinstance(value, (type({}.keys()), type({}.values()), type({}.items()))):
        return ["list", *(encode_value(one, refer) for one in list[Any](value))]
    if isinstance(value, Iterator):
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise Unfit(f"an iterator gave more than {MAX_ITEMS} items")
        return ["iterator", *(encode_value(item, refer) for item in items)]
    if refer is None:
        raise Unfit(f"a {type(value).__name__} is no plain data")
    return refer(value)


def decode_value(value: Any, meant: Callable[[Any], Any]) -> Any:
    """The value that `encode_value` wrote; `meant` gives what a reference stands for.

    Raises:
        Unfit, ValueError, TypeError, …: it was not written by `encode_value`.
    """
    if not isinstance(value, list):
        return value
    name, *items = value
    if name in _CONTAINERS:
        return _CONTAINERS[name]([decode_value(item, meant) for item in items])
    if name == "dict":
        return {decode_value(key, meant): decode_value(item, meant) for key, item in items}
    if name == "ref":
        return meant(value)
    if name == "int":
        return int(items[0], 16)
    if name in ("bytes", "bytearray"):
        data = base64.b64decode(items[0])
        return data if name == "bytes" else bytearray(data)
    simple: dict[str, Callable[..., Any]] = {
        "float": float, "complex": complex, "range": range, "Decimal": decimal.Decimal, "Fraction": fractions.Fraction
    }  # fmt: skip
    if name not in simple:
        raise Unfit(f"no kind of value is called {name!r:.40}")
    return simple[name](*(decode_value(item, meant) for item in items))


class Channel:
    """Frames over a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, value: Any) -> None:
        """Raises OSError where nobody reads any more, Unfit for a frame that is too large."""
        data = json.dumps(value).encode()
        if len(data) > MAX_FRAME:
            raise Unfit(f"it is larger than {MAX_FRAME} bytes")
        rest = memoryview(struct.pack("!I", len(data)) + data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def read(self) -> Any:
        """Raises EOFError at the end, Unfit or ValueError for what is no frame."""
        (size,) = struct.unpack("!I", self._exactly(4))
        if size > MAX_FRAME:
            raise Unfit(f"a frame of {size} bytes")
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        pieces, missing = [], size
        while missing:
            piece = os.read(self._fd, min(missing, 1 << 20))
            if not piece:
                raise EOFError
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


# The side of the policy's code. All of it is in the code's own hands.


def run_program(wanted: Mapping[str, Any]) -> None:
    """Runs the code as a program that reads its input and prints; an exit with status 0 is a good end."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "exit": sys.exit, "quit": sys.exit}
    try:
        exec(compile(wanted["code"], "<code>", "exec"), names)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise


def serve_calls(wanted: Mapping[str, Any], fd: int) -> None:
    """Runs the code, then what it is asked to call until nobody asks any more."""
    # Not __main__: what a script does when it is started is no part of what is called.
    names: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    for source in wanted["sources"]:
        exec(compile(source, "<code>", "exec"), names)
    channel, kept = Channel(fd), list[Any]()

    def refer(value: Any) -> Any:
        kept.append(value)
        return ["ref", len(kept) - 1]

    def meant(reference: Any) -> Any:
        root, *path = reference[1:]
        if isinstance(root, str) and root not in names and not hasattr(builtins, root):
            raise NameError(f"name '{root}' is not defined")
        value = (names[root] if root in names else getattr(builtins, root)) if isinstance(root, str) else kept[root]
        for name in path:
            value = getattr(value, name)
        return value

    while True:
        try:
            target, args, kwargs = channel.read()
        except EOFError:
            return
        try:
            value, changed = meant(target), None
            if args is not None:
                positional = decode_value(args, meant)
                value = value(*positional, **decode_value(kwargs, meant))
                changed = encode_value(positional, refer) if wanted["in_place"] else None
            reply = ["value", encode_value(value, refer), changed]
        except BaseException as error:
            reply = ["raised", type(error).__name__, _error_text(error)]
        try:
            channel.write(reply)
        except Unfit as error:
            channel.write(["raised", "OverflowError", f"what the code returned: {error}"])


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except BaseException:  # the code's own class
        return ""


# The side of the tests.


class _Code:
    """The policy's code as the tests reach it."""

    def __init__(self, fd: int, *, in_place: bool) -> None:
        self._channel = Channel(fd)
        self._in_place = in_place
        self.was_asked = False
        self.fault = ""
        """Why nothing comes from the code any more; "" while it answers."""

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._ask([target, encode_value(list(args), _refer_to), encode_value(kwargs, _refer_to)], args)

    def get_value(self, target: Any) -> Any:
        """The value of a name in the code: data, or a reference."""
        return self._ask([target, None, None], ())

    def _ask(self, question: list[Any], args: tuple[Any, ...]) -> Any:
        self.was_asked = True
        if self.fault:
            raise _Gone
        try:
            self._channel.write(question)
            kind, first, second = self._channel.read()
            if kind == "value":
                value = decode_value(first, self._remote_of)
                if self._in_place and question[1] is not None:
                    _copy_back(args, decode_value(second, self._remote_of))
                return value
            error = _build_error(first, second)
        except (EOFError, OSError):
            self.give_up("the code's process ended")
        except Exception as unfit:  # whatever it is, the code wrote it
            self.give_up(f"the code sent what is no value ({type(unfit).__name__})")
        raise error

    def give_up(self, why: str) -> NoReturn:
        self.was_asked = True
        self.fault = self.fault or why
        raise _Gone

    def _remote_of(self, reference: Any) -> Remote:
        _, number = reference
        if type(number) is not int:
            raise Unfit("a reference to no object")
        return Remote(self, ["ref", number])


class Remote:
    """A name, an object or a method of the code's. It can be called, asked for attributes and handed back, and is true,
    whatever it says itself; nothing else tells of it."""

    def __init__(self, code: _Code, reference: list[Any]) -> None:
        self._code = code
        self._reference = reference

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._code.call(self._reference, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._code.get_value([*self._reference, name])

    def _refuse(self, *others: Any) -> NoReturn:
        self._code.give_up("the code gave an object that is no plain data")

    def __bool__(self) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __len__ = __iter__ = __contains__ = __getitem__ = __int__ = __float__ = __hash__ = _refuse


def _refer_to(value: Any) -> Any:
    if type(value) is Remote:
        return value._reference
    name = value.__name__ if isinstance(value, type) else ""
    if name and getattr(builtins, name, None) is value:
        return ["ref", name]
    raise Unfit(f"a test handed over a {type(value).__name__}, which is no plain data")


def _copy_back(args: tuple[Any, ...], after: list[Any]) -> None:
    """Makes the arguments what the code made of them."""
    for mine, theirs in zip(args, after, strict=True):
        if type(mine) is not type(theirs):
            continue
        if isinstance(mine, (list, bytearray)):
            mine[:] = theirs
        elif isinstance(mine, (set, dict)):
            mine.clear()
            mine.update(theirs)


def _build_error(name: str, text: str) -> BaseException:
    if not isinstance(name, str) or not isinstance(text, str) or not name.isidentifier():
        raise Unfit("an exception without a name")
    kind: Any = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = type(name[:100], (Exception,), {})
    elif not issubclass(kind, Exception):
        raise Unfit(name)  # the code's exit is not that of the tests
    elif issubclass(kind, (StopIteration, StopAsyncIteration)):
        kind, text = RuntimeError, f"the code raised {name}"  # `all(map(f, …))` would take it for the end of the list
    error: BaseException = kind.__new__(kind)  # not called: some of these types take more than a text
    error.args = (text[:_MAX_TEXT],)
    return error


def judge_test(wanted: Mapping[str, Any], fd: int) -> dict[str, Any]:
    """Runs one test: `{"passed", "why", "gone", "asked"}`; `gone` says that the code gave no value any more, `asked`
    that the test wanted something of it."""
    code = _Code(fd, in_place=wanted["in_place"])
    why = ""
    try:
        if "entry" in wanted:
            why = _check_call(wanted, code)
        else:
            _run_test(wanted, code)
    except SystemExit as ended:  # of the tests themselves, as unittest.main() does
        why = "" if ended.code in (None, 0) else f"the tests ended with status {ended.code!r:.40}"
    except BaseException as error:
        why = _describe_error(error)
    return {
        "passed": not (why or code.fault),
        "why": code.fault or why,
        "gone": bool(code.fault),
        "asked": code.was_asked,
    }


def _bind_names(source: str, names: dict[str, Any], code: _Code, *, is_test: bool) -> Any:
    """`source` compiled, each name of it that nobody defines bound to the code's, or to the module of that name where
    it is not called.

    A test that names nothing of the code's but calls one built-in means the code's function of that name, as MBPP's
    `assert sum(10, 15) == 6` does.
    """
    tree = ast.parse(source, "<tests>")
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    free = read - _defined_names(tree) - names.keys()
    missing = {name for name in free if not hasattr(builtins, name)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if (
        is_test
        and not missing
        and len(called & free) == 1
        and not any(isinstance(names.get(name), Remote) for name in read)
    ):
        missing = called & free
    for name in missing:
        is_module = name in sys.stdlib_module_names and name not in called
        names[name] = importlib.import_module(name) if is_module else Remote(code, ["ref", name])
    return compile(tree, "<tests>", "exec")


def _defined_names(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _run_test(wanted: Mapping[str, Any], code: _Code) -> None:
    # Where unittest.main() looks for tests.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    names, sys.argv = module.__dict__, ["tests"]
    names["__builtins__"] = builtins
    own = {name: Remote(code, ["ref", name]) for name in wanted["names"]}
    exec(_bind_names(wanted["setup"], names, code, is_test=False), names)
    names.update(own)
    exec(_bind_names(wanted["program"], names, code, is_test=True), names)


def _check_call(wanted: Mapping[str, Any], code: _Code) -> str:
    names: dict[str, Any] = {"__builtins__": {}}
    entry = ast.parse(wanted["entry"], mode="eval")
    for node in ast.walk(entry):
        if isinstance(node, ast.Name):
            names[node.id] = Remote(code, ["ref", node.id])
    args, kwargs, expected = (decode_value(wanted[key], _refuse_reference) for key in ("args", "kwargs", "expected"))
    found = eval(compile(entry, "<entry>", "eval"), names)(*args, **kwargs)
    if isinstance(found, Iterator):
        found = list(found)
    how = wanted["compare"]
    if matches(found, expected, how["by"], how["tolerance"], how["relative_tolerance"]):
        return ""
    return f"gave {short_repr(found)}, expected {short_repr(expected)}"


def _refuse_reference(reference: Any) -> NoReturn:
    raise Unfit("a test holds a reference")


def _describe_error(error: BaseException) -> str:
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<tests>":
            line = step.tb_lineno
        step = step.tb_next
    text = _error_text(error)
    return f"{type(error).__name__}{': ' * bool(text)}{text}" + (f" (line {line} of the test)" if line else "")
