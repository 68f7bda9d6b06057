"""A loaded spec to its working parts: tools, resources, reward terms, templates, dialect, oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlenv import dialects, registry
from rlenv.calls.attach import governed
from rlenv.dialects.base import Dialect
from rlenv.dialects.findings import fault_of
from rlenv.endpoints import Endpoint, compile_endpoint
from rlenv.errors import Fault, MissingVariable, RlenvError, SpecError, UsageError
from rlenv.functions import failure
from rlenv.resources.base import Resource
from rlenv.rewards.base import Term, TermCompileContext
from rlenv.scoring import Scorer
from rlenv.secrets import redact
from rlenv.spec import EnvSpec
from rlenv.templates import Template, compile_template
from rlenv.tools.base import CompileContext, Tool
from rlenv.users.base import User

if TYPE_CHECKING:
    from rlenv.loader import LoadedSpec
    from rlenv.source import SourceDocument

__all__ = ["Parts", "compile_parts", "missing_variable", "nester"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The compiled parts of one environment; stateless and shared."""

    spec: EnvSpec
    dialect: Dialect
    tools: Mapping[str, Tool]
    resources: Mapping[str, Resource]
    terms: tuple[Term, ...]
    scorer: Scorer
    system: Template | None
    user: Template
    observation: Template | None
    simulated: User | None = None
    images: tuple[Template, ...] = ()
    """The templates of the prompt's images."""


def compile_parts(loaded: LoadedSpec) -> Parts:
    """Compiles every entry of a spec.

    Raises:
        SpecError: with every entry that cannot be compiled, each at its place.
    """
    spec = loaded.spec
    faults: list[Fault] = []

    def attempt(path: str, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except (UsageError, RlenvError) as error:
            if isinstance(error, SpecError):
                faults.extend(error.faults)
            elif isinstance(error, MissingVariable):
                faults.append(missing_variable(loaded.document, path, error))
            else:
                faults.append(loaded.document.fault(path, redact(str(error))))
        except Exception as error:  # a factory of a plug-in may fail in any way
            faults.append(loaded.document.fault(path, f"it cannot be compiled: {redact(failure(error))}"))
        return None

    def bases(path: str, entry: Any) -> dict[str, Path]:
        return {key: loaded.base_of(f"{path}.{key}") for key in type(entry).model_fields}

    endpoints: dict[str, Endpoint] = {}
    for name, endpoint_spec in spec.endpoints.items():
        endpoint = attempt(f"endpoints.{name}", partial(compile_endpoint, name, endpoint_spec))
        if endpoint is not None:
            endpoints[name] = endpoint

    more: dict[str, Any] = {"endpoints": endpoints, "nest": nester(loaded.path), "roots": loaded.roots}
    resources: dict[str, Resource] = {}
    for name, entry in spec.resources.items():
        path = f"resources.{name}"
        context = CompileContext(loaded.base_of(path), spec.vars, {}, bases(path, entry), **more)
        kind = registry.get("resources", entry.kind)
        built = attempt(path, partial(kind.factory, name, entry, context))
        if built is not None:
            resources[name] = built

    tools: dict[str, Tool] = {}
    for name, tool_entry in spec.tools.items():
        path = f"tools.{name}"
        context = CompileContext(
            loaded.base_of(path), spec.vars, resources, bases(path, tool_entry), tools=dict(tools), **more
        )
        kind = registry.get("tools", tool_entry.kind)
        made = attempt(path, partial(kind.factory, name, tool_entry, context))
        made = attempt(path, partial(governed, made, name, tool_entry, loaded)) if made else made
        for tool in made or ():
            if tool.name in tools:
                faults.append(loaded.document.fault(path, f"two tools are called '{tool.name}'"))
            tools[tool.name] = tool

    terms: list[Term] = []
    for name, reward_entry in spec.rewards.items():
        path = f"rewards.{name}"
        term_context = TermCompileContext(
            loaded.base_of(path), spec.vars, resources, bases(path, reward_entry), tools, spec.answer, **more
        )
        kind = registry.get("rewards", reward_entry.kind)
        term = attempt(path, partial(kind.factory, name, reward_entry, term_context))
        if term is not None:
            terms.append(term)

    simulated: User | None = None
    if spec.user is not None:
        user_context = CompileContext(loaded.base_of("user"), spec.vars, resources, bases("user", spec.user), **more)
        simulated = attempt("user", partial(registry.get("users", spec.user.kind).factory, spec.user, user_context))

    dialect = attempt("dialect", lambda: _dialect(loaded, has_tools=bool(tools), has_user=spec.user is not None))
    prompt = spec.prompt
    system = attempt("prompt.system", lambda: compile_template(prompt.system)) if prompt.system is not None else None
    user = attempt("prompt.user", lambda: compile_template(prompt.user))
    images = [attempt(f"prompt.images.{i}", partial(compile_template, text)) for i, text in enumerate(prompt.images)]
    shown = spec.observation.template
    observation = attempt("observation.template", lambda: compile_template(shown)) if shown is not None else None
    scorer = attempt("success" if spec.success else "rewards", lambda: Scorer(terms, success=spec.success))
    if faults:
        raise SpecError(faults)
    return Parts(
        spec, dialect, tools, resources, tuple(terms), scorer, system, user, observation, simulated, tuple(images)
    )


def nester(outer: Path) -> Callable[..., Any]:
    """What compiles the specs that the one at `outer` plays as agents."""

    def compile_nested(path: Path, overrides: Mapping[str, Any]) -> Any:
        from rlenv.nested import nest  # found late: a nested environment is made of all that is here

        return nest(outer, path, overrides)

    return compile_nested


def _dialect(loaded: LoadedSpec, *, has_tools: bool, has_user: bool) -> Dialect:
    """The dialect of a spec; one that it defines itself is refused where its keys contradict each other."""
    given = loaded.spec.dialect
    try:
        if isinstance(given, str):
            return dialects.get(given)
        findings = dialects.contradictions(given)
        dialect = dialects.inline(given) if not findings else None
    except KeyError as error:
        message, hint = dialects.unknown(str(error.args[0]), is_base=not isinstance(given, str))
        raise UsageError(f"{message}", hint=hint) from error
    if given.chat_template is not None and dialect is not None:
        from rlenv.tokens.declared import declared_template, roles_that_answer

        declared = declared_template(loaded, dialect)
        assert declared is not None
        findings = list(declared.findings)
        if declared.dialect is not None:
            dialect = declared.dialect
            findings = findings or list(declared.answered(roles_that_answer(has_tools=has_tools, has_user=has_user)))
    if findings or dialect is None:
        raise SpecError([fault_of(loaded.document, finding) for finding in findings])
    return dialect


def missing_variable(document: SourceDocument, path: str, error: MissingVariable) -> Fault:
    """The fault of a variable that is not set, at the first text under `path` that names it."""
    wanted = f"${{env:{error.name}}}"
    message, _, hint = str(error).partition("; ")

    def search(value: Any, at: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
        if isinstance(value, str):
            return at if wanted in value else None
        items: Any = (
            value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        )
        return next((found for key, item in items if (found := search(item, (*at, key))) is not None), None)

    place = search(document.get(path), tuple(path.split(".")))
    return document.fault(place if place is not None else path, message, hint, find=wanted)
