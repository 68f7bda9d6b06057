"""The tools of an episode: those of the spec that its row is offered, and those that the row declares.

Also the compiler's part of calls: the policy, example and digest of each tool, and the options that decide an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from rlenv import secrets
from rlenv._base.bounded import plain
from rlenv._base.text import did_you_mean
from rlenv.calls.executor import Executor
from rlenv.dialects.built_in import broken_schemas
from rlenv.errors import EpisodeError, RlenvError, UsageError, told_as
from rlenv.language.functions import failure
from rlenv.language.spec import EnvSpec, ToolSpec
from rlenv.language.templates import Template, TemplateError, UnfitTemplate, compile_template, template_of, texts_in
from rlenv.language.yamlwords import former_names
from rlenv.messages import ToolResult
from rlenv.tools.base import Ends, RowTools, Tool, ToolContext, ends_once, policy_of

if TYPE_CHECKING:
    from rlenv.language.loader import LoadedSpec

_CONSTANT: Final = re.compile(r"\{\{\s*vars\.([\w.]+)\s*\}\}")
_SERVER: Final = re.compile(r"(?:\w+://)?[^/?#]*")


# Whatever a kind does not name under `aside` does, an option that is new too: where it has changed, a recorded answer
# is none to the call that is made now.
def options_of(entry: ToolSpec, *, vars: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide an answer, as they are written, and under `vars` the constants that they read.

    Those at their default are left out, and of `url` the server. Secrets stand by their names.
    """
    options = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(type(entry).aside))
    if isinstance(url := options.get("url"), str):
        # A constant may hold the server, and a part of the path with it.
        options["url"] = _SERVER.sub("", _CONSTANT.sub(lambda one: _fill_constant(one, vars), url), count=1)
    was = former_names("tools", entry.kind)  # by which tapes know them
    options = {was.get(key, key): value for key, value in options.items()}
    read = {name: value for text in texts_in(options) for name, value in _read_constants(text, vars)}
    return {**options, "vars": read} if read else options


def _fill_constant(match: re.Match[str], vars: Mapping[str, Any]) -> str:
    path = ("vars", *match[1].split("."))
    found, value = _lookup(path, vars)
    return value if found == path and isinstance(value, str) else match[0]


def _read_constants(text: str, vars: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The constants that a template reads, by their dotted names."""
    try:
        paths = compile_template(text).paths if "{" in text else ()
    except TemplateError:  # a text that is no template
        return
    for path in paths:
        if path[0] == "vars":
            found, value = _lookup(path, vars)
            yield ".".join(found), plain(value)


def _lookup(path: tuple[str, ...], vars: Mapping[str, Any]) -> tuple[tuple[str, ...], Any]:
    """As much of `path` as leads to a constant, and what stands there: a template may ask a text for its parts."""
    value: Any = vars
    for index, key in enumerate(path[1:], 1):
        if not isinstance(value, Mapping) or key not in value:
            return path[:index], value
        value = value[key]
    return path, value


_POLICY = frozenset(
    (
        *("attempt_s", "breaker", "cache", "coerce", "concurrency", "description", "example", "faults"),
        *("ends", "idempotent", "mutates", "offered", "rate_per_s", "retries", "shared_concurrency", "timeout_s"),
    )
)


def govern(
    made: Sequence[Tool], name: str, entry: ToolSpec, loaded: LoadedSpec, *, of_rows: bool = False
) -> tuple[Tool, ...]:
    """The tools of the entry `name` with kind, policy, example, identity, digest and the entry's name.

    Args:
        of_rows: rows declare them, and what counts calls is the entry's.

    Raises:
        UsageError: the entry asks for retries or a cache that the tool cannot keep, or its example fits no tool.
    """
    spec = loaded.spec
    own = entry.cache is not None
    cache = entry.cache if entry.cache is not None else spec.calls.cache
    path = None
    if cache is not None and cache.path is not None:
        place = f"tools.{name}.cache.path" if own else "calls.cache.path"
        path = loaded.base_of(place) / cache.path
    content = entry.model_dump(mode="json", exclude=set(_POLICY))
    options = options_of(entry, vars=spec.vars)
    base = str(loaded.base_of(f"tools.{name}"))
    pool = _digest_of([spec.name, spec.version, base, content]) if of_rows else ""
    found = []
    for tool in made:
        parts = [content, tool.name, dict(tool.parameters), tool.identity]
        governed_tool = replace(
            tool,
            policy=policy_of(spec.calls, entry, idempotent=tool.idempotent, mutates=tool.mutates, cache_path=path),
            kind=entry.kind,
            example=_example_of(tool, name, entry.example, made),
            identity=_digest_of([spec.name, spec.version, base, *parts]),
            entry=name,
            pool=pool,
            options=options | ({"source": tool.identity} if tool.identity else {}),
            digest=_digest_of(parts),
            ends=_make_ends(tool.name, name, entry.ends, spec) or tool.ends,
        )
        found.append(governed_tool)
    return tuple(found)


_log = secrets.logger("rlenv.tools")


def ending_template(ends: str) -> Template:
    """The template that says after a call whether the episode has ended.

    Raises:
        UsageError: it does not compile, or reads what is not there.
    """
    template = template_of(ends, key="ends", names=("resources", "task", "vars", "tool", "result"))
    known = [name for name in dir(ToolResult) if not name.startswith("_")]
    for path in sorted(template.paths):
        if path[0] == "result" and len(path) > 1 and path[1] not in known:
            message, hint = f"a result has no '{path[1]}'", did_you_mean(path[1], known, "it has")
            raise UnfitTemplate(message, key="ends", hint=hint, find=".".join(path[:2]))
    return template


def _make_ends(tool: str, entry: str, own: bool | str, spec: EnvSpec) -> Ends | None:
    given = own or (spec.answer.from_ == "tool" and spec.answer.tool == tool)
    if isinstance(given, bool):
        return ends_once if given else None
    template, told = ending_template(given), list[Exception]()

    def asked(result: ToolResult, context: ToolContext) -> Literal["", "ended", "truncated"]:
        try:
            held, task = context.resources, context.task
            found = template.value(resources=held, task=task, vars=spec.vars, tool=tool, result=result)
            if isinstance(found, str) and found == "truncated":
                return "truncated"
            return "ended" if found else ""
        except EpisodeError:
            raise
        except Exception as error:  # of the template, or of a value without a truth, such as an array
            where = f"tools.{entry}.ends ({given.strip()}): {error}"
            is_unfit = error.is_unfit if isinstance(error, TemplateError) else not isinstance(error, RlenvError)
            if not (is_unfit and template.names & {"result", "resources"}):
                raise EpisodeError(where, reason="ends") from error
            # The policy chose the call, and must not leave out its sample. A failed one has no value.
            if not (result.is_error or told):
                told.append(error)  # once: there may be thousands of such calls
                about = {"place": f"tools.{entry}.ends"}
                _log.warning("a call that leaves what the template does not fit ends nothing: %s", where, extra=about)
            return ""

    return asked


def _example_of(
    tool: Tool, name: str, example: Mapping[str, Any] | None, made: Sequence[Tool]
) -> Mapping[str, Any] | None:
    if example is None:
        return tool.example
    if len(made) == 1 and tool.name == name:
        return example
    names = [one.name for one in made]
    for key, arguments in example.items():
        if key not in names or not isinstance(arguments, Mapping):
            raise UsageError(
                f"found '{key}'; expected arguments by tool", key="example", hint=f"such as {{{names[0]}: {{…}}}}"
            )
    found: Mapping[str, Any] | None = example.get(tool.name, tool.example)
    return found


def _digest_of(parts: list[Any], option: int = orjson.OPT_SORT_KEYS) -> str:
    try:
        # Anything that JSON has no word for counts by its text: the digest only has to differ where tools do.
        written = orjson.dumps(parts, default=repr, option=option)
    except TypeError:  # an integer beyond 64 bits, half of a surrogate pair, a key that is no text
        written = repr(parts).encode("utf-8", "surrogatepass")
    return blake2b(written, digest_size=16).hexdigest()


def offered_by(entry: ToolSpec) -> Template | None:
    """The template that says which rows have the tools of an entry; None where all have them, or none.

    Raises:
        UsageError: it does not compile, or reads what is not there.
    """
    if not isinstance(entry.offered, str):
        return None
    return template_of(entry.offered, key="offered", names=("task", "vars", "user_turn"))


@dataclass(slots=True, eq=False)
class ToolSet:
    """The tools that an episode has, as JSON schemas too, and who runs them."""

    tools: Mapping[str, Tool]
    executor: Executor
    for_code: Executor
    """Runs what a policy's code calls: `tools`, and those with `offered: false` that an entry of kind `code` names."""
    schemas: tuple[Mapping[str, Any], ...] = field(init=False)
    _plain: tuple[Mapping[str, Any], ...] | None = None

    def __post_init__(self) -> None:
        self.schemas = tuple(tool.schema for tool in self.tools.values())

    @property
    def plain_schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The schemas as a policy of raw text reads them: no text in them spells a control token."""
        if self._plain is None:
            self._plain = broken_schemas(self.schemas)
        return self._plain


class ToolSets:
    """The tools of each episode: those that its spec offers to its row, and those that the row declares.

    Args:
        executor: who runs the spec's tools, those that only rewards call included.
        change: what each tool of rows is replaced by.
        most: how many tools of rows are kept.
    """

    def __init__(
        self,
        loaded: LoadedSpec,
        tools: Mapping[str, Tool],
        rows: Mapping[str, RowTools],
        executor: Executor,
        change: Callable[[Tool], Tool] | None = None,
        most: int = 8_192,
    ) -> None:
        self._loaded, self._rows, self._executor, self._most = loaded, rows, executor, most
        self._change = change
        entries = loaded.spec.tools
        self._tools = {name: tool for name, tool in tools.items() if entries[tool.entry].offered is not False}
        self._asked = {name: template for name, entry in entries.items() if (template := offered_by(entry)) is not None}
        first = {one.source: entry for entry, one in reversed(self._asked.items())}
        self._differing = {entry: self._asked[entry] for entry in first.values()}  # many entries may ask the same
        named = {name for entry in entries.values() if entry.kind == "code" for name in getattr(entry, "tools", ())}
        self._of_code = {name: tool for name, tool in tools.items() if name in named and name not in self._tools}
        self.all = self._make_set(self._tools)
        """Every tool of the spec that some row may have."""
        self.is_by_row = bool(self._asked or rows)
        self.changes = any("user_turn" in one.names for one in self._asked.values()) or any(
            one.reads_turn for one in rows.values()
        )
        """True where a reply of the user's may bring tools."""
        self._made: dict[str, ToolSet] = {}
        self._count = 0

    def of(self, task: Mapping[str, Any], user_turn: int = 0) -> ToolSet:
        """The tools of a row's episode; equal ones are made once.

        Raises:
            EpisodeError: the row does not say which, or declares what is no tool (`tools`).
        """
        if not self.is_by_row:
            return self.all
        try:
            answers = {one.source: self._choose(entry, task, user_turn) for entry, one in self._differing.items()}
            chosen = {entry: answers[one.source] for entry, one in self._asked.items()}
            given = {entry: [*row.declared(task, user_turn)] for entry, row in self._rows.items()
                     if chosen.get(entry) is not False}  # fmt: skip
            key = _digest_of([chosen, given], 0)  # prompts show the order of keys
            if (found := self._made.get(key)) is None:
                found = self._make(chosen, given)
                while self._made and self._count + len(found.tools) > self._most:
                    self._count -= len(self._made.pop(next(iter(self._made))).tools)
                self._made[key], self._count = found, self._count + len(found.tools)
            return found
        except EpisodeError:
            raise
        except Exception as error:  # an author's template or function meets rows of any kind
            said = error.message if isinstance(error, UsageError) else failure(error)
            raise EpisodeError(f"the tools of this row cannot be made: {said}", reason="tools") from error

    def _choose(self, entry: str, task: Mapping[str, Any], user_turn: int) -> bool | list[str]:
        with told_as(UsageError, f"tools.{entry}.offered cannot be filled from this row:", TemplateError):
            value = self._asked[entry].value(task=task, vars=self._loaded.spec.vars, user_turn=user_turn)
        if isinstance(value, (list, tuple)):
            return [str(name) for name in value]
        if isinstance(value, str):  # a cell of a .csv, or what a condition writes
            word = value.strip().lower()
            return word == "true" if word in ("", "true", "false") else [value]
        return bool(value)

    def _make(
        self, chosen: Mapping[str, bool | list[str]], given: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> ToolSet:
        every = [*self._tools.values()]
        for entry, schemas in given.items():
            made, spec = self._rows[entry].made(schemas), self._loaded.spec
            own = govern(made, entry, spec.tools[entry], self._loaded, of_rows=True)
            every += own if self._change is None else map(self._change, own)
        found: dict[str, Tool] = {}
        for tool in every:
            names = chosen.get(tool.entry, True)
            if names is True or (names is not False and tool.name in names):
                if tool.name in found:
                    raise UsageError(f"two tools are called '{tool.name}'")
                found[tool.name] = tool
        known = [tool.name for tool in every]
        for entry, names in chosen.items():
            lost = [] if isinstance(names, bool) else [name for name in names if name not in known]
            if lost:
                hint = did_you_mean(lost[0], known, "tools")
                raise UsageError(f"tools.{entry}.offered names '{lost[0]}', and there is no such tool; {hint}")
        return self._make_set(found)

    def _make_set(self, tools: Mapping[str, Tool]) -> ToolSet:
        executor = self._executor.with_tools(tools)
        within = {**self._of_code, **tools}
        return ToolSet(tools, executor, self._executor.with_tools(within, executor) if self._of_code else executor)
