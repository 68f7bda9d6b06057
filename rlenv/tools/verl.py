"""The `verl` tool: veRL's own tools, as its configuration names them, and its functions in a file.

    tools:
      theirs: {kind: verl, config: tool_config.yaml}     # tools: [{class_name, config: {type: native}, tool_schema}]
      functions: {kind: verl, tools: my_tools.py}    # functions under @function_tool

A call is made as veRL's tool loop makes it: `create(create_kwargs=)`, `execute(instance_id, parameters, agent_data=)`,
`release(instance_id)`, each time. What lives longer than a call stands in `agent_data`, one object an episode. Source:
`verl.tools` and `verl.experimental.agent_loop.tool_agent_loop` of verl 0.9.1, which this module never imports: the
author's classes do.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from rlenv._base.bounded import plain
from rlenv._base.paths import file_module, read_file
from rlenv.errors import ToolFailed, UsageError, under
from rlenv.language.functions import failure, import_value
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Text, ToolSpec
from rlenv.language.yamltree import parse_text
from rlenv.messages import Image
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common


class VerlSpec(ToolSpec):
    """veRL's tools: those of a tool configuration, or the functions of a file; each under its own name."""

    kind: Literal["verl"]
    config: Text | None = None
    """A tool configuration of veRL's (`multi_turn.tool_config_path`), relative to the spec."""
    tools: Text | None = None
    """A Python file with functions under `@function_tool` (`multi_turn.function_tool_path`), relative to the spec."""


def _compile_verl(name: str, spec: VerlSpec, context: CompileContext) -> Sequence[Tool]:
    if (spec.config is None) == (spec.tools is None):
        raise UsageError("expected one of config and tools", hint="write config: tool_config.yaml")
    key, value = ("config", spec.config) if spec.config is not None else ("tools", spec.tools)
    assert value is not None
    with under(key):
        path = context.path(key, value)
        if not path.is_file():
            raise UsageError(f"there is no file '{value}'")
        try:
            if key == "config":
                held = parse_text(read_file(path).decode(), file=path.name, base=path.parent).plain()
                return [_class_tool(one, spec, path.parent) for one in _config_entries(held)]
            with contextlib.redirect_stdout(io.StringIO()):
                registered = _registered_functions(file_module(path))
            return [_function_tool(entry, spec) for entry in registered]
        except (UsageError, OSError):
            raise
        except Exception as error:  # an author's class or file may fail in any way
            raise UsageError(f"'{value}' failed: {failure(error)}") from error


def _config_entries(held: Any) -> Sequence[Mapping[str, Any]]:
    tools = held.get("tools") if isinstance(held, Mapping) else None
    if not isinstance(tools, list) or not tools or not all(isinstance(one, Mapping) for one in tools):
        raise UsageError("found no list of tools; expected tools: [{class_name: …, config: {type: native}}]")
    return tools


def _class_tool(entry: Mapping[str, Any], spec: VerlSpec, base: Path) -> Tool:
    """The tool of one entry of a configuration: an object of the author's class, made as veRL makes it."""
    place, config = entry.get("class_name"), entry.get("config") or {}
    if not isinstance(place, str) or "." not in place:
        raise UsageError(f"class_name: found {place!r:.60}; expected package.module.Class")
    if config.get("type", "native") != "native":
        raise UsageError(f"{place}: found the type '{config['type']}'; veRL 0.9.1 has native tools alone")
    module, _, called = place.rpartition(".")
    is_beside = (base / f"{module}.py").is_file()
    kind = import_value(f"{module}{'.py' * is_beside}:{called}", base=base)
    schema = entry.get("tool_schema")
    if schema is not None:
        schema = _schemas_of(kind).OpenAIFunctionToolSchema.model_validate(schema)
    with contextlib.redirect_stdout(io.StringIO()):  # its constructor prints the schema
        tool = kind(config=dict(config), tool_schema=schema)

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        data = await call.scope().get(("verl", "agent_data"), _agent_data(call.task))
        given = data.tools_kwargs.get(tool.name) or {}
        instance, _ = await tool.create(create_kwargs=given.get("create_kwargs", {}))
        try:
            return _to_output(await tool.execute(instance, dict(arguments), agent_data=data))
        finally:
            await tool.release(instance)

    return _make_tool(tool.tool_schema, run, spec)


def _schemas_of(kind: type) -> Any:
    """The module that has veRL's schemas, by the base class that the author's class was loaded with."""
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__)
        if hasattr(module, "OpenAIFunctionToolSchema"):
            return module
    raise UsageError(f"{kind.__name__} is no BaseTool of veRL's", hint="class Mine(verl.tools.base_tool.BaseTool)")


def _agent_data(task: Mapping[str, Any]) -> Callable[[], Any]:
    """What veRL's loop hands to all calls of an episode; `extra_fields` is the tools' own."""
    extra = task.get("extra_info")
    given = task.get("tools_kwargs") or (extra.get("tools_kwargs") if isinstance(extra, Mapping) else None) or {}

    @asynccontextmanager
    async def make_data() -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(tools_kwargs=given, extra_fields={}, messages=[], tool_rewards=[], turn_scores=[])

    return make_data


def _registered_functions(module: Any) -> Sequence[Any]:
    """What `@function_tool` has registered of a file's functions."""
    own = {id(value) for value in vars(module).values() if inspect.isfunction(value)}
    tools = sys.modules.get("verl.tools.function_tool")
    registered = [one for one in getattr(tools, "FUNCTION_TOOL_REGISTRY", {}).values() if id(one.fn) in own]
    if not registered:
        message = "it has no function under @function_tool"
        raise UsageError(message, hint="from verl.tools.function_tool import function_tool")
    return registered


def _function_tool(entry: Any, spec: VerlSpec) -> Tool:
    normalised = sys.modules["verl.tools.function_tool"].normalize_function_tool_return

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        return _to_output(normalised(await entry.call(dict(arguments))))

    return _make_tool(entry.tool_schema, run, spec)


def _make_tool(schema: Any, run: Callable[..., Any], spec: VerlSpec) -> Tool:
    said = schema.model_dump(exclude_unset=True, exclude_none=True)["function"]
    parameters = said.get("parameters") or {"type": "object", "properties": {}}
    keys = {"name": said["name"], "description": spec.description or said.get("description", "")}
    return Tool(parameters=parameters, run=run, mode="async", depends_on="episode", **keys, **common(spec))


def _to_output(given: Any) -> ToolOutput:
    """A response, a reward and metrics as the text for the model and the value for rewards."""
    response, reward, metrics = given
    if getattr(response, "video", None):
        raise ToolFailed("the tool gave a video, which cannot be shown")
    images = tuple(Image.of(_to_png(one)) for one in response.image or ())
    value = {"reward": reward, "metrics": plain(metrics)}
    json.dumps(value)  # what is no JSON is the author's mistake, and told at the call
    return ToolOutput(response.text or "", value, images)


def _to_png(image: Any) -> bytes:
    """The file of an image of Pillow's, which is what veRL's tools give."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


KIND = Kind(VerlSpec, _compile_verl, is_local=False)
