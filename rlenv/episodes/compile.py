"""A loaded spec to its working parts: tools, resources, reward terms, templates, dialect, oracle.

Episodes inside episodes: a spec that another one plays through its tool of kind `agent`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlenv import dialects
from rlenv._base.bounded import plain, quick
from rlenv._base.text import strings_in
from rlenv.calls.toolsets import ending_template, govern, offered_by
from rlenv.dialects.base import Dialect, fault_of
from rlenv.dialects.built_in import find_mark, row_of
from rlenv.endpoints import Endpoint, compile_endpoint
from rlenv.episodes.rollout import Make, nest
from rlenv.errors import EpisodeError, Finding, MissingVariable, RlenvError, SpecError, UnknownEntry, UsageError, under
from rlenv.language import kinds as registry
from rlenv.language.dialect import DialectSpec
from rlenv.language.expressions import RowLimits, number_of, weighing_faults
from rlenv.language.functions import failure
from rlenv.language.kinds import CompileContext
from rlenv.language.loader import LoadedSpec, in_order
from rlenv.language.spec import EnvSpec, Spec, ToolSpec
from rlenv.language.templates import Template, TemplateError, UnfitTemplate, compile_value, template_of
from rlenv.messages import Image, Message, Role, message_of
from rlenv.resources.base import Resource
from rlenv.rewards.base import Term, TermCompileContext
from rlenv.rewards.scorer import Scorer
from rlenv.secrets import redact, redact_value
from rlenv.tasks.rows import load_tasks
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import RowTools, Tool
from rlenv.users.base import User

if TYPE_CHECKING:
    from rlenv.language.document import SourceDocument
    from rlenv.language.loader import LoadedSpec

_message = quick(Message)
_is_authored = lru_cache(maxsize=1024)(find_mark)  # the templates of prompts, each looked at once


def _first_row(loaded: LoadedSpec) -> Mapping[str, Any]:
    for split in loaded.spec.tasks:
        with contextlib.suppress(RlenvError):  # reported with the split
            return next(iter(load_tasks(loaded, split)), {})
    return {}


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """One entry of the prompt: a message whose content is a template, or what gives messages as data."""

    path: str
    templates: tuple[Template, ...]
    role: Role | None = None
    """Of a message that says a text and nothing else; None for data."""
    value: Callable[..., Any] = str
    fixed: tuple[Message, ...] = ()
    """The message, where no row has a say in it and it holds no images."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The compiled parts of one environment; stateless and shared."""

    spec: EnvSpec
    dialect: Dialect
    tools: Mapping[str, Tool]
    resources: Mapping[str, Resource]
    terms: tuple[Term, ...]
    scorer: Scorer
    limits: RowLimits
    prompt: tuple[PromptEntry, ...]
    """The prompt's messages, in their order."""
    observation: Template | None
    simulated: User | None = None
    images: tuple[Template, ...] = ()
    """The templates of the prompt's images."""
    row_tools: Mapping[str, RowTools] = field(default_factory=dict)
    """By entry, the tools that rows declare."""

    @property
    def machines(self) -> list[Any]:
        """The resources that look at a row before an episode is played on it."""
        return [one for one in self.resources.values() if hasattr(one, "check_row")]

    def check_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raises UsageError where an image that these rows name has not been fetched or built on this machine."""
        for row in rows if self.machines else ():
            for one in self.machines:
                one.check_row(row, self.spec.vars)

    @property
    def prompted(self) -> tuple[Template, ...]:
        """Every template of the prompt but the images'."""
        return tuple(template for one in self.prompt for template in one.templates)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The parts of a spec that compile, and every fault of the rest, in order of place.

    `broken` holds the dotted places (`tools.add`) of what does not compile, and of what was lost before. What only
    lacks a broken entry is broken too, and no fault. `parts` is None where anything is broken.
    """

    resources: Mapping[str, Resource]
    tools: Mapping[str, Tool]
    row_tools: Mapping[str, RowTools]
    terms: tuple[Term, ...]
    faults: tuple[Finding, ...]
    broken: frozenset[str]
    parts: Parts | None
    prompt: tuple[PromptEntry, ...] = ()
    """The entries of the prompt that compile."""
    limits: RowLimits | None = None

    def lacks(self, group: str, name: str) -> bool:
        """True for an entry that is itself at fault: what names it is not."""
        return _is_lacking(self.broken, group, name)


def compile_parts(loaded: LoadedSpec, make: Make) -> Parts:
    """Compiles every entry of a spec.

    Raises:
        SpecError: with every entry that cannot be compiled, each at its place.
    """
    compiled = compile_entries(loaded, make)
    if compiled.parts is None:
        raise SpecError(compiled.faults)
    return compiled.parts


def compile_entries(loaded: LoadedSpec, make: Make, *, lost: Iterable[str] = ()) -> Compiled:
    """Compiles every entry of a spec by itself, so that one that is at fault does not hide the others.

    Args:
        make: what makes an environment of a spec that this one plays as an agent.
        lost: the dotted places of what was taken out of the spec, since it is at fault itself.
    """
    work = _Work(loaded, make, lost)
    work.endpoints()
    work.resources()
    work.tools()
    work.terms()
    user = work.user()
    dialect = work.attempt("dialect", work.dialect)
    spec, shown = loaded.spec, work.prompt()
    images = [work.template(f"prompt.images.{index}", text) for index, text in enumerate(spec.prompt.images)]
    observation = work.template("observation.template", spec.observation.template)
    scorer = work.scorer()
    limits = work.attempt("limits", partial(RowLimits, spec.limits, spec.vars))
    parts: Parts | None = None
    if not work.broken and dialect is not None and scorer is not None and limits is not None:
        kept = tuple(image for image in images if image is not None)
        made, terms = (work.tools_made, work.resources_made), tuple(work.terms_made)
        parts = Parts(spec, dialect, *made, terms, scorer, limits, shown, observation, user, kept, work.row_tools)
    return Compiled(
        work.resources_made,
        work.tools_made,
        work.row_tools,
        tuple(work.terms_made),
        tuple(in_order(work.faults, loaded.document)),
        frozenset(work.broken),
        parts,
        shown,
        limits,
    )


class _Work:
    """One compilation: what it has made, and what is in the way of the rest. Entries read those of earlier groups."""

    def __init__(self, loaded: LoadedSpec, make: Make, lost: Iterable[str]) -> None:
        self.loaded = loaded
        self.spec = loaded.spec
        self.lost = frozenset(lost)
        self.broken: set[str] = set(self.lost)
        self.faults: list[Finding] = []
        self.resources_made: dict[str, Resource] = {}
        self.tools_made: dict[str, Tool] = {}
        self.row_tools: dict[str, RowTools] = {}
        self.terms_made: list[Term] = []
        self._endpoints: dict[str, Endpoint] = {}
        self._shared: dict[str, Any] = {
            "endpoints": self._endpoints,
            "nest": partial(nest, loaded.path, make),
            "roots": loaded.roots,
            "row": partial(_first_row, loaded),
        }

    def attempt(self, path: str, build: Callable[[], Made]) -> Made | None:
        """The result of `build` for the entry at `path`, None where it is broken."""
        try:
            return build()
        except UnknownEntry as error:
            if not _is_lacking(self.broken, error.group, error.name):
                entries = getattr(self.spec, error.group, ())
                broken = [name for name in entries if f"{error.group}.{name}" in self.broken]
                self.faults.append(entry_fault(self.loaded.document, path, error.knowing(broken)))
        except RlenvError as error:  # of the whole entry: it may lack no more than what was taken out of it
            if getattr(error, "key", "") or not any(lost.startswith(f"{path}.") for lost in self.lost):
                self.faults.extend(_faults_of(self.loaded.document, path, error))
        except Exception as error:  # a factory of a plug-in may fail in any way
            message = f"it cannot be compiled: {redact(failure(error))}"
            self.faults.append(self.loaded.document.fault(path, message, "look at its values", at="key"))
        self.broken.add(path)
        return None

    def endpoints(self) -> None:
        for name, entry in self.spec.endpoints.items():
            endpoint = self.attempt(f"endpoints.{name}", partial(compile_endpoint, name, entry))
            if endpoint is not None:
                self._endpoints[name] = endpoint

    def resources(self) -> None:
        for name, entry in self.spec.resources.items():
            path = f"resources.{name}"
            context = self._context_of(path, entry, {})
            made = self.attempt(path, partial(registry.get("resources", entry.kind).factory, name, entry, context))
            if made is not None:
                self.resources_made[name] = made

    def tools(self) -> None:
        for name, entry in self.spec.tools.items():
            path = f"tools.{name}"
            context = self._context_of(path, entry, self.resources_made, tools=dict(self.tools_made))
            self.attempt(path, partial(offered_by, entry))
            made = self.attempt(path, partial(registry.get("tools", entry.kind).factory, name, entry, context))
            if isinstance(made, RowTools):
                self.attempt(path, partial(self._govern_tools, made.made([{"name": name}]), name, entry))
                self.row_tools[name] = made
                if isinstance(entry.ends, str):
                    self.attempt(path, partial(ending_template, entry.ends))
                continue
            if made:
                made = self.attempt(path, partial(self._govern_tools, made, name, entry))
            if made is None and entry.kind == "mcp":
                self.broken.add("tools.*")  # nobody knows what it would have given
            for tool in made or ():
                if tool.name in self.tools_made:
                    message = f"two tools are called '{tool.name}'"
                    self.faults.append(self.loaded.document.fault(path, message, "rename one", at="key"))
                    self.broken.add(path)
                self.tools_made[tool.name] = tool

    def _govern_tools(self, made: Sequence[Tool], name: str, entry: ToolSpec) -> tuple[Tool, ...]:
        with under("parameters"):
            for tool in made:
                ArgumentCheck(tool.parameters, tool=tool.name)
        return govern(made, name, entry, self.loaded)

    def terms(self) -> None:
        for name, entry in self.spec.rewards.items():
            path = f"rewards.{name}"
            context = TermCompileContext(
                self.loaded.base_of(path),
                self.spec.vars,
                self.resources_made,
                bases_of(self.loaded, path, entry),
                self.tools_made,
                self.spec.answer,
                **self._shared,
            )
            term = self.attempt(path, partial(registry.get("rewards", entry.kind).factory, name, entry, context))
            if term is not None and isinstance(weight := entry.weight, str):
                number = self.attempt(path, partial(number_of, weight, "weight", self.spec.vars))
                term = replace(term, row_weight=number)
            if term is not None:
                self.terms_made.append(term)

    def user(self) -> User | None:
        entry = self.spec.user
        if entry is None:
            return None
        context = self._context_of("user", entry, self.resources_made, tools=self.tools_made)
        made = self.attempt("user", partial(registry.get("users", entry.kind).factory, entry, context))
        if getattr(entry, "opponent", "") == "oracle" and not self.spec.oracle:
            message = "the opponent is the oracle, and the spec has none"
            self.faults.append(self.loaded.document.fault("user.opponent", message, "add 'oracle:'"))
            self.broken.add("user")
        return made

    def prompt(self) -> tuple[PromptEntry, ...]:
        prompt = self.spec.prompt
        entries: list[tuple[str, Any]] = [("prompt.system", {"role": "system", "content": prompt.system})]
        at = "prompt.messages" if isinstance(prompt.messages, str) else "prompt.messages.{}"
        entries = [*(entries if prompt.system is not None else ()),
                   *((at.format(index), one) for index, one in enumerate(prompt.shown))]  # fmt: skip
        if prompt.asks:
            entries.append(("prompt.user", {"role": "user", "content": prompt.user}))
        made = [self.attempt(path, partial(_compile_entry, path, entry)) for path, entry in entries]
        return tuple(one for one in made if one is not None)

    def template(self, path: str, source: str | None) -> Template | None:
        return None if source is None else self.attempt(path, partial(template_of, source, key=""))

    def scorer(self) -> Scorer | None:
        """The terms together; where one of them is missing, only what their entries say of each other is looked at."""
        found = list(weighing_faults(self.loaded.document, self.spec, lost=self.lost))
        self.faults += found
        self.broken.update(fault.path for fault in found)
        if any(path.partition(".")[0] in ("rewards", "success") for path in self.broken):
            return None
        # At the top of the spec: the keys that it names are whole ones, such as `rewards.best.of`.
        return self.attempt("", partial(Scorer, self.terms_made, success=self.spec.success))

    def dialect(self) -> Dialect:
        """The dialect of the spec; one that it defines itself is refused where its keys contradict each other."""
        given = self.spec.dialect
        # The name alone is looked for here: what a dialect is made by may raise a KeyError of its own.
        try:
            if isinstance(given, str):
                registry.get("dialects", given)
            elif given.base is not None:
                row_of(given.base)
        except KeyError as error:
            message, hint = dialects.unknown(str(error.args[0]), is_base=not isinstance(given, str))
            place = "dialect" if isinstance(given, str) else "dialect.base"
            raise SpecError([self.loaded.document.fault(place, message, hint)]) from error
        return dialects.get(given) if isinstance(given, str) else self._own_dialect(given)

    def _own_dialect(self, given: DialectSpec) -> Dialect:
        findings = dialects.contradictions(given)
        dialect = dialects.inline(given) if not findings else None
        if given.chat_template is not None and dialect is not None:
            from rlenv.tokens.declared import declared_template, roles_that_answer

            declared = declared_template(self.loaded, dialect)
            assert declared is not None
            findings = list(declared.findings)
            if declared.dialect is not None:
                dialect = declared.dialect
                roles = roles_that_answer(has_tools=bool(self.spec.tools), has_user=self.spec.user is not None)
                findings = findings or list(declared.answered(roles))
        if findings or dialect is None:
            raise SpecError([fault_of(self.loaded.document, finding) for finding in findings])
        return dialect

    def _context_of(self, path: str, entry: Spec, resources: Mapping[str, Resource], **more: Any) -> CompileContext:
        bases = bases_of(self.loaded, path, entry)
        return CompileContext(self.loaded.base_of(path), self.spec.vars, resources, bases, **self._shared, **more)


def _compile_entry(path: str, entry: str | Mapping[str, Any]) -> PromptEntry:
    """One entry of the prompt, compiled. Raises UsageError: it is no message, or a template of it cannot be read."""
    if isinstance(entry, str):
        template = template_of(entry, key="")
        return PromptEntry(path, (template,), None, template.value)
    is_own = path in ("prompt.system", "prompt.user")
    texts = [(".".join(map(str, at)), text) for at, text in strings_in(entry, ()) if at != ("role",)]
    templates = tuple(template_of(text, key="" if is_own else at) for at, text in texts)
    if all("{" not in text for at, text in texts if at != "content"):
        try:
            role = message_of(entry).role
        except ValueError as error:
            raise UsageError(str(error), hint="write {role: user, content: TEXT}") from error
        if entry.keys() == {"role", "content"} and isinstance(entry["content"], str):
            constant = PromptEntry(path, templates, role)
            fixed = () if "{" in entry["content"] else tuple(messages_of(constant, {}))
            return replace(constant, fixed=fixed)
    return PromptEntry(path, templates, None, compile_value(entry))


def messages_of(one: PromptEntry, values: Mapping[str, Any], images: tuple[Image, ...] = ()) -> Sequence[Message]:
    """The messages of an entry of the prompt. Those that data gives are text, whatever it spells; one whose content the
    author wrote knows the author's words in it where they may hold control tokens.

    Raises:
        EpisodeError: the row does not fill it, or it gives no messages.
    """
    if one.fixed and not images and redact(text := one.fixed[0].content) is text:
        return one.fixed
    try:
        if one.role is None:
            given = redact_value(plain(one.value(**values)))
            return [message_of(each) for each in (given if isinstance(given, list) else [given])]
        (template,) = one.templates
        if not _is_authored(template.source):
            return [_message(one.role, redact(template.text(**values)), (), None, None, images)]
        written, authored = template.written(**values)
    except (TemplateError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{one.path} cannot be filled from this row: {error}", reason="prompt") from error
    text = redact(written)
    if text is not written and text != written:
        authored = ()
    return [Message(one.role, text, images=images, authored=authored)]


def _is_lacking(broken: Set[str], group: str, name: str) -> bool:
    return not broken.isdisjoint((group, f"{group}.*", f"{group}.{name}"))


def bases_of(loaded: LoadedSpec, path: str, entry: Spec) -> dict[str, Path]:
    """For each key of an entry, the folder that a relative path under it refers to."""
    return {key: loaded.base_of(f"{path}.{key}") for key in type(entry).model_fields}


def _faults_of(document: SourceDocument, path: str, error: RlenvError) -> tuple[Finding, ...]:
    if isinstance(error, SpecError):
        return error.faults
    if isinstance(error, MissingVariable):
        return (missing_variable(document, path, error),)
    if isinstance(error, UsageError):
        return (entry_fault(document, path, error),)
    return (document.fault(path, redact(str(error)), at="key"),)


def entry_fault(document: SourceDocument, path: str, error: UsageError) -> Finding:
    """The fault that a factory found in the entry at `path`: at the value of the key that it names, else at the entry's
    own key."""
    place = ".".join(part for part in (path, error.key) if part)
    message, hint = redact(error.message), redact(error.hint)
    if (not error.key and not isinstance(error, UnfitTemplate)) or not document.has(place):
        return document.fault(place, message, hint, at="key")
    if isinstance(error, UnfitTemplate):
        return document.fault(place, message, hint, line=error.line, find=error.find)
    return document.fault(place, message, hint)


def missing_variable(document: SourceDocument, path: str, error: MissingVariable) -> Finding:
    """The fault of a variable that is not set, at the first text under `path` that names it."""
    wanted = f"${{env:{error.name}}}"
    texts = strings_in(document.get(path), tuple(path.split(".")))
    place = next((at for at, text in texts if wanted in text), None)
    return document.fault(place if place is not None else path, error.message, error.hint, find=wanted)
