"""The `python` tool: a function of the author's, shown by its types and its docstring."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, Field

from rlenv._base.bounded import cut_end, quick
from rlenv.errors import EpisodeError, ToolFailed, UnknownEntry, UsageError, under
from rlenv.language.functions import failure, import_function, import_value, named_parameters, signature_of
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Bool, Int, Text, ToolSpec
from rlenv.language.templates import template_of
from rlenv.secrets import redact_within
from rlenv.tools._signature import Signature, read_signature
from rlenv.tools._worker import PythonWorkers
from rlenv.tools.arguments import callable_name, declared_tool
from rlenv.tools.base import DependsOn, Mode, RowTools, Tool, ToolContext, ToolOutput, common

_made = quick(ToolOutput)
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))

_ROW: Final = ("task", "vars", "user_turn")
_DISPATCHED: Final = {"name": "string", "arguments": "object"}
_MAX_VALUE_BYTES = 4_000_000
_MAX_MESSAGE = 500


class PythonSpec(ToolSpec):
    """Calls a Python function; its types and its docstring make the schema."""

    kind: Literal["python"]
    function: Text | None = None
    """`file.py:function`, relative to the spec, or `package.module:function`."""
    tools: Text | None = None
    """Several tools: `file.py:NAME` of a list of functions (or of them by name), or of a class, whose public methods
    they are but for `reset`, and whose object is the first resource under `inject`. Or of schemas, and then `function`
    is called with `name` and `arguments`. NAME may be a function that gives one of these; one that takes `task` (and
    `user_turn`), and a template such as `{{ task.tools }}`, give schemas that the row declares."""
    strict: Bool = True
    """With `tools`, false hands over arguments that do not fit: `function` refuses them, as the original does."""
    parameters: Mapping[str, Any] | None = None
    """Instead of the function's types: `{text: string, limit: integer?}`, or a JSON Schema of an object."""
    run_in: Literal["loop", "thread", "process"] | None = None
    """`thread` for functions that may block (the default of a plain function); `loop` for quick ones; `process` for
    those that may hang or crash: a process of their own, killed at the timeout."""
    workers: Annotated[Int, Field(ge=1, le=1_024)] | None = None
    """With `run_in: process`, how many processes there are at most; as many as there are processors, up to 4."""
    inject: tuple[Text, ...] = ()
    """Parameters that the environment fills and the model does not see: names of resources, `task`, `context`."""
    errors: tuple[Text, ...] = ()
    """Exceptions whose message the model may see: `ValueError`, or `module:Name`; others show a plain failure."""


def _own_copy(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that share no list and no object with what the policy wrote.

    The function may change what it is given, and keep it; the record is not to change with it.
    """
    if _PLAIN.issuperset(map(type, arguments.values())):
        return arguments
    return {name: _copy_value(value) for name, value in arguments.items()}


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_value(one) for key, one in value.items()}
    return [_copy_value(one) for one in value] if isinstance(value, list) else value


def _value_of(result: Any) -> Any:
    """An object that JSON has no word for, as one that it has."""
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json")
    if isinstance(result, (set, frozenset)):
        return sorted(result, key=repr)
    raise TypeError(f"a {type(result).__name__} is not a JSON value")


def _to_output(result: Any) -> ToolOutput:
    """The function's result, as text and value.

    Raises:
        TypeError: it is not a JSON value.
        ToolFailed: it holds a number of more digits than Python writes; a policy's arguments have made it so large.
    """
    if type(result) is str:
        return _made(result, result)
    if type(result) is ToolOutput:
        return result
    if result is None:
        return ToolOutput("(no result)")
    try:
        if type(result) in (int, float):  # orjson knows neither big integers nor nan
            return _made(str(result), result)
        return _json_output(result)
    except ValueError as error:
        raise ToolFailed("the result is too large to be written", reason="too_large") from error


def _json_output(result: Any) -> ToolOutput:
    """A result as JSON; its value is a copy, since the function may go on changing what it returned."""
    try:
        encoded = orjson.dumps(result, default=_value_of, option=orjson.OPT_NON_STR_KEYS)
        return ToolOutput(encoded.decode(), orjson.loads(encoded) if len(encoded) <= _MAX_VALUE_BYTES else None)
    except TypeError:  # of integers beyond 64 bits, which json writes; or of what is no JSON value
        text = json.dumps(result, default=_value_of, ensure_ascii=False, separators=(",", ":"))
        return ToolOutput(text, json.loads(text) if len(text) <= _MAX_VALUE_BYTES else None)


def _shown_errors(
    spec: PythonSpec, function: Callable[..., Any], context: CompileContext
) -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = []
    for word in spec.errors:
        place, _, name = word.rpartition(":")
        if place:
            with under("errors"):
                kind: Any = import_function(word, base=context.bases.get("errors", context.base))
        else:
            kind = getattr(function, "__globals__", {}).get(name, getattr(builtins, name, None))
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise UsageError(
                f"'{word}' is not an exception that '{_label(function)}' knows", key="errors", hint="write MODULE:NAME"
            )
        found.append(kind)
    return tuple(found)


def _check_injections(spec: PythonSpec, context: CompileContext) -> tuple[str, ...]:
    for name in spec.inject:
        if name not in context.resources and name not in ("task", "context"):
            raise UnknownEntry("resources", name, (*context.resources, "task", "context"), key="inject")
    return spec.inject


def _find_function(
    spec: PythonSpec, context: CompileContext, injected: Sequence[str], given: Callable[..., Any] | None
) -> tuple[Callable[..., Any], Signature]:
    if given is not None:
        with under("tools"):
            return given, read_signature(given, name=_label(given), injected=injected)
    if spec.function is None:
        raise UsageError("nothing says what is called", hint="write function: file.py:function")
    with under("function"):
        function = import_function(spec.function, base=context.bases.get("function", context.base))
    with under("parameters" if spec.parameters is not None else "function"):
        known = (*context.resources, "task", "context")
        signature = read_signature(
            function, name=spec.function, injected=injected, parameters=spec.parameters, injectable=known
        )
        return function, signature


def _mode_of(spec: PythonSpec, function: Callable[..., Any]) -> Mode:
    is_async = inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )
    if spec.run_in == "process":
        return "async"
    if is_async:
        if spec.run_in == "thread":
            raise UsageError(
                f"'{_label(function)}' is a coroutine function and runs in the loop, not in a thread",
                key="run_in",
                hint="leave it out",
            )
        return "async"
    return "inline" if spec.run_in == "loop" else "thread"


def _check_process(spec: PythonSpec) -> None:
    """Raises UsageError: the entry asks for a process, and for what none can have."""
    if spec.run_in != "process":
        if spec.workers is not None:
            raise UsageError(
                "only functions in processes have workers", key="workers", hint="leave it out, or run_in: process"
            )
        return
    for name in spec.inject:
        if name != "task":
            raise UsageError(
                f"'{name}' cannot go to another process", key="inject", hint="with run_in: process only 'task' can"
            )
    if os.name != "posix" or not sys.executable:
        raise UsageError("processes are started on Linux and macOS only", key="run_in", hint="write run_in: thread")


def _depends_on(injected: tuple[str, ...]) -> DependsOn:
    if not injected:
        return "arguments"
    return "task" if injected == ("task",) else "episode"


def _source_digest(function: Callable[..., Any]) -> str:
    """A digest of the file that the function stands in, so that a cache on disk forgets what older code gave."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return blake2b(Path(file).read_bytes(), digest_size=16).hexdigest() if file else ""
    except (TypeError, OSError):  # a callable object, or a compiled module
        return ""


def _hidden_value(key: str, call: ToolContext) -> Any:
    """The value of a parameter that the model does not see."""
    # A resource's own name wins: a spec may well call one of them "task".
    if key in call.resources:
        return call.resources[key]
    return call.task if key == "task" else call


def compile_function(
    name: str,
    spec: PythonSpec,
    context: CompileContext,
    own: Callable[..., Any] | None = None,
    fills: Mapping[str, str] | None = None,
) -> Tool:
    """A tool that calls the function.

    It may return a text, a number, any JSON value, None or a ToolOutput; the value is what it returned.

    Args:
        own: the function, where the spec does not name it.
        fills: by parameter, what the environment fills it with; `inject` says it otherwise.

    Raises:
        UsageError: the function, its types, an exception or a resource does not fit the spec.
    """
    injected = {key: key for key in _check_injections(spec, context)} if fills is None else fills
    function, signature = _find_function(spec, context, tuple(injected), own)
    _check_process(spec)
    shown_errors, convert, mode = (_shown_errors(spec, function, context), signature.convert, _mode_of(spec, function))

    def values_of(arguments: Mapping[str, Any], call: ToolContext) -> Mapping[str, Any]:
        values = _own_copy(arguments) if convert is None else convert(_own_copy(arguments))
        return {**values, **{key: _hidden_value(one, call) for key, one in injected.items()}} if injected else values

    def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        try:
            return _to_output(function(**values_of(arguments, call)))
        except (ToolFailed, EpisodeError):
            raise
        except shown_errors as error:
            raise ToolFailed(_error_message(error)) from error

    async def run_async(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        try:
            return _to_output(await function(**values_of(arguments, call)))
        except (ToolFailed, EpisodeError):
            raise
        except shown_errors as error:
            raise ToolFailed(_error_message(error)) from error

    if spec.run_in == "process":
        chosen: Callable[..., Any] = _process_runner(name, spec, context)
    else:
        chosen = run_async if mode == "async" else run
    return Tool(
        name=name,
        description=spec.description or signature.description,
        parameters=signature.parameters,
        run=chosen,
        mode=mode,
        depends_on=_depends_on(tuple(injected.values())),
        identity=_source_digest(function),
        **common(spec),
    )


def compile_python(name: str, spec: PythonSpec, context: CompileContext) -> Sequence[Tool] | RowTools:
    """The tool of an entry; or with `tools` those of a row, all of which call its function.

    Raises:
        UsageError: as `compile_function`, or the schemas cannot be had.
    """
    if spec.tools is not None:
        given = _fixed_tools(spec.tools, context)
        return _row_tools(name, spec, spec.tools, context) if given is None else _make_tools(name, spec, given, context)
    if not spec.strict:
        raise UsageError("it is read with tools only", key="strict", hint="leave it out")
    return (compile_function(name, spec, context),)


def _fixed_tools(schemas: str, context: CompileContext) -> list[Any] | None:
    """The functions (with their names), methods and schemas under `tools` that are the same for all rows; None where
    rows say which."""
    if "{" in schemas:
        return None
    with under("tools"):
        value = import_value(schemas, base=context.bases.get("tools", context.base))
        if callable(value) and not isinstance(value, type):
            takes = named_parameters(value, key="", offered=_ROW)
            if not {"task", "user_turn"}.isdisjoint(takes):
                return None
            try:
                value = value(**dict.fromkeys(takes, context.vars))
            except Exception as error:  # an author's function may fail in any way
                raise UsageError(f"'{schemas}' failed: {failure(error)}") from error
        if isinstance(value, type):
            every = dict.fromkeys(key for owner in reversed(value.__mro__) for key in vars(owner) if key[0] != "_")
            # What begins a world is the host's to call, as in TRL, OpenEnv and Gymnasium, and never the policy's.
            value = [getattr(value, key) for key in every if key != "reset" and _is_method(value, key)]
        items = [*value.items()] if isinstance(value, Mapping) else value
        if not isinstance(items, (list, tuple)) or not items:
            raise UsageError(f"'{schemas}' gives {cut_end(repr(value), 100)}; expected functions or schemas")
        return [(_label(one), one) if callable(one) else one for one in items]


def _is_method(owner: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(owner, name), (FunctionType, staticmethod, classmethod))


def _label(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__)


def _make_tools(name: str, spec: PythonSpec, given: Sequence[Any], context: CompileContext) -> Sequence[Tool]:
    """The tools of an entry that are the same for all rows."""
    if all(isinstance(one, Mapping) for one in given):
        tool = _dispatcher(name, spec, context)
        with under("tools"):
            return [tool(schema) for schema in given]
    own = [key for key in ("function", "description", "parameters") if getattr(spec, key)]
    own += ["strict"] * (not spec.strict) + ["run_in"] * (spec.run_in == "process")
    if own:
        raise UsageError("the functions under 'tools' say it themselves, or cannot have it", key=own[0])
    names, found = _check_injections(spec, context), []
    for called, function in given:
        if not callable(function) or isinstance(function, type) or not isinstance(called, str):
            raise UsageError(f"{cut_end(repr(function), 100)} is no function", key="tools")
        takes = getattr(signature_of(function), "parameters", {})
        fills = {key: key for key in names if key in takes}
        if next(iter(takes), "") == "self":
            if not names or names[0] not in context.resources:
                hint = "add resources: {world: {kind: python, function: …}}, and inject: [world]"
                raise UsageError(f"'{called}' is a method, and no resource is its object", key="tools", hint=hint)
            fills["self"] = names[0]
        found.append(compile_function(callable_name(called), spec, context, function, fills))
    return found


def _dispatcher(name: str, spec: PythonSpec, context: CompileContext) -> Callable[[Mapping[str, Any]], Tool]:
    """Makes a tool of a schema: a call of the one function under the name that the schema gives it."""
    if own := [key for key in ("description", "parameters", "example") if getattr(spec, key) is not None]:
        raise UsageError("each schema declares it", key=own[0], hint="leave it out")
    one = compile_function(name, spec.model_copy(update={"parameters": _DISPATCHED}), context)
    return partial(declared_tool, one, is_strict=spec.strict)


def _row_tools(name: str, spec: PythonSpec, schemas: str, context: CompileContext) -> RowTools:
    """The tools that rows declare."""
    tool = _dispatcher(name, spec, context)
    if "{" in schemas:
        template = template_of(schemas, key="tools", names=_ROW)
        reads_turn = "user_turn" in template.names

        def read(task: Mapping[str, Any], user_turn: int) -> Any:
            found = template.value(task=task, vars=context.vars, user_turn=user_turn)
            return json.loads(found) if isinstance(found, str) else found
    else:
        with under("tools"):
            function = import_function(schemas, base=context.bases.get("tools", context.base))
        takes = named_parameters(function, key="tools", offered=_ROW)
        reads_turn = "user_turn" in takes

        def read(task: Mapping[str, Any], user_turn: int) -> Any:
            values = {"task": task, "vars": context.vars, "user_turn": user_turn}
            return function(**{key: values[key] for key in takes})

    def declared(task: Mapping[str, Any], user_turn: int) -> Sequence[Mapping[str, Any]]:
        found = read(task, user_turn)
        if not isinstance(found, (list, tuple)):
            raise UsageError(f"schemas gave {cut_end(repr(found), 100)}; expected a list", key="tools")
        return found

    return RowTools(declared=declared, made=lambda schemas: [tool(schema) for schema in schemas], reads_turn=reads_turn)


def _process_runner(name: str, spec: PythonSpec, context: CompileContext) -> Callable[..., Any]:
    """Calls the function in workers that live as long as the environment; each compiles this entry for itself."""
    told = {
        "name": name,
        "spec": spec.model_dump(mode="json", include={"kind", "function", "parameters", "inject", "errors"}),
        "base": str(context.base.absolute()),
        "bases": {key: str(path.absolute()) for key, path in context.bases.items() if key in ("function", "errors")},
    }
    limit = spec.workers or min(4, os.cpu_count() or 1)

    def open_workers() -> aclosing[PythonWorkers]:
        return aclosing(PythonWorkers(name, told, limit=limit))

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        workers = await call.shared().get(("python", name, spec.function, told["base"]), open_workers)
        return await workers.run(arguments, call, with_task="task" in spec.inject)

    return run


def _error_message(error: Exception) -> str:
    return cut_end(redact_within(str(error), 4 * _MAX_MESSAGE) or type(error).__name__, _MAX_MESSAGE)


KIND = Kind(PythonSpec, compile_python, is_local=True)
