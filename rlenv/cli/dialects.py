"""`rlenv dialects [NAME|SPEC]`: the dialects, or one of them as the model sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from rlenv import dialects
from rlenv._base.nearest import nearest
from rlenv.cli.console import Console
from rlenv.cli.options import WithSet, argument, option
from rlenv.cli.terminal import write, write_json
from rlenv.dialects.base import Dialect
from rlenv.dialects.built_in import FAMILIES, family_text, row_name, row_of, whole_row
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.findings import calls_of
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.roundtrip import TOOLS
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.language import kinds as registry
from rlenv.language.shipped import find, shipped
from rlenv.messages import Message, ToolCall

__all__ = ["DialectsCommand"]

_BREAK: Final = "⏎"
_VALUES: Final[Mapping[str, Any]] = {
    "string": "VALUE", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {},
}  # fmt: skip


@dataclass
class DialectsCommand(WithSet):
    """`rlenv dialects`."""

    name: str | None = argument("a dialect, or a spec whose dialect is shown", metavar="NAME|SPEC")
    json: bool = option("print the texts as one JSON object", one_of="form")
    yaml: bool = option("print what a built-in dialect is, for a spec's `dialect`", one_of="form")

    def execute(self) -> int:
        """Lists the dialects, or shows a conversation in the words of one."""
        if self.yaml and self.name is None:
            raise UsageError("--yaml prints one dialect, and none is named", hint="rlenv dialects NAME --yaml")
        if self.set and (self.yaml or self.name is None or _is_dialect(self.name)):
            raise UsageError("--set replaces keys of a spec, and none is shown", hint="name a spec, or leave --set out")
        if self.name is None:
            return _list(as_json=self.json)
        if self.yaml:
            return _print_yaml(self.name)
        texts = _texts(*_chosen(self.name, self.overrides))
        if self.json:
            write_json(texts, indent=2)
            return 0
        console = Console(soft_wrap=True, highlight=False)
        for title, text in texts.items():
            console.print(Text(title, style="bold"))
            # A line break is shown, since one at the end of a text could not be seen.
            lines = text.split("\n")
            console.print(Text(f"{_BREAK}\n".join(lines) or "(nothing)"))
        return 0


def _list(*, as_json: bool) -> int:
    names = registry.names("dialects")
    built_in = registry.BUILT_IN["dialects"]
    rows = {name: [[form.body, *marks_of(form.open)[:1]] for form in calls_of(row_of(name))] for name in built_in}
    if as_json:
        write_json({name: rows.get(name) for name in names}, indent=2)
        return 0
    table = Table("dialect", "a call's body and its mark", show_edge=False)
    for name in names:
        forms = [" ".join([body, *(mark or ["at the start"])]) for body, *mark in rows.get(name, [])]
        table.add_row(Text(name), Text(", ".join(forms).replace("\n", _BREAK) or "of a plug-in"))
    Console().print(table)
    return 0


def _print_yaml(name: str) -> int:
    try:
        write(family_text(name))
    except KeyError as error:
        if name in registry.names("dialects"):
            raise UsageError(
                f"'{name}' is of a plug-in, whose code says what it is", hint="leave --yaml out"
            ) from error
        message, hint = dialects.unknown(name, is_base=True)
        raise UsageError(message, hint=hint) from error
    return 0


def _is_dialect(name: str) -> bool:
    """True for the name of a dialect, by any name that people know a built-in one by, and False for a spec's."""
    return name in registry.names("dialects") or row_name(name, FAMILIES) in FAMILIES


def _chosen(name: str, set: Mapping[str, Any]) -> tuple[Dialect, Sequence[Mapping[str, Any]], Dialect]:
    """The dialect, the tools that it is shown with, and what writes its calls."""
    if _is_dialect(name):
        dialect = dialects.get(name)
        return dialect, [{"type": "function", "function": dict(tool)} for tool in TOOLS.values()], dialect
    try:
        spec = find(name)
    except UsageError as error:
        message, hint = dialects.unknown(name)
        if nearest(name, registry.names("dialects")) is None and nearest(name, shipped()) is not None:
            hint = error.hint
        raise UsageError(f"{message}, and {error.message}", hint=hint) from error
    environment = load(spec, set=set)
    given = environment.spec.dialect
    inside = dialects.get(given) if isinstance(given, str) else TextDialect("inline", whole_row("inline", given))
    return environment.parts.dialect, environment.tool_schemas, inside


def _texts(dialect: Dialect, tools: Sequence[Mapping[str, Any]], inside: Dialect) -> dict[str, str]:
    """A conversation part by part: what the model is given, and what it writes."""
    texts = {"prompt": dialect.render_prompt([Message("system", "SYSTEM"), Message("user", "USER")], tools)}
    if tools:
        call = _call(tools[0])
        row = inside.spec if isinstance(inside, TextDialect) else None
        texts["a call"] = dialect.render_action(Message("assistant", "", (call,)))
        if row is not None and row.thinking_marks.open:
            shown = row.thinking_marks.written.replace("{thinking}", "THINKING")
            texts["thinking, words and two calls"] = shown + dialect.render_action(
                Message("assistant", "WORDS", (call, call))
            )
        else:
            texts["words and two calls"] = dialect.render_action(Message("assistant", "WORDS", (call, call)))
        if row is not None:
            for number, form in enumerate(calls_of(row)[1:], 2):
                other = TextDialect(dialect.name, row.model_copy(update={"calls": form}))
                texts[f"a call by form {number}"] = other.render_action(Message("assistant", "", (call,)))
        results = [Message("tool", f"RESULT {number}", name=call.name) for number in (1, 2)]
        texts["what follows one call"] = dialect.render_observation(results[:1])
        texts["what follows two calls"] = dialect.render_observation(results)
    return texts


def _call(tool: Mapping[str, Any]) -> ToolCall:
    function = tool.get("function", tool)
    parameters = function.get("parameters", {})
    properties = parameters.get("properties", {})
    wanted = parameters.get("required") or list(properties)[:1]
    arguments = {key: _VALUES.get(str(properties.get(key, {}).get("type", "string")), "VALUE") for key in wanted}
    return ToolCall(str(function["name"]), arguments)
