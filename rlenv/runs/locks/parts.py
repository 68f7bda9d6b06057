"""What an environment is made of, section by section, as a lock holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

from rlenv._base.paths import RefusedPath, finder, is_file, is_folder
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError
from rlenv.language import kinds as registry
from rlenv.language.dialect import DialectSpec
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import EndpointSpec, SamplingSpec
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql.resource import SqlResource
from rlenv.rewards.judge import JudgeMemberSpec, JudgeSpec
from rlenv.runs.locks.files import Say, digest_of, entry_files, file_sha256, kept, rows_sha256, tree_sha256
from rlenv.secrets import names_in, resolve
from rlenv.tasks.rows import Tasks

__all__ = [
    "data_and_resources",
    "dialect",
    "endpoints",
    "host_of",
    "limits",
    "plug_ins",
    "prompts",
    "rewards",
    "spec",
    "text_sha256",
    "tokenizer",
    "tools",
    "user",
]

_MOST_LISTED: Final = 50
"""More files of one resource than these stand in a lock as one digest."""
_PATH_KEYS: Final = ("path", "init", "copy_from")


def text_sha256(text: str) -> str:
    """SHA-256 (hexadecimal) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def spec(environment: Environment) -> dict[str, Any]:
    """The spec's name, its content, the text of each of its files, and what `--set` replaced.

    Files are told by name alone, the spec's own as `spec`: where a checkout stands is no part of it.
    """
    loaded = environment.loaded
    own, *others = loaded.document.files
    sources = {"spec": file_sha256(own)}
    for file in others:
        name, count = file.name, 2
        while name in sources:
            name, count = f"{file.name} ({count})", count + 1
        sources[name] = file_sha256(file)
    # Told as text where nothing is set: a lock holds no nulls.
    given = {key: loaded.document.get(key) for key in loaded.document.overridden}
    shown = {key: "null" if value is None else value for key, value in given.items()}
    return {"id": environment.id, "digest": loaded.digest, "sources": sources, "set": kept(shown, hides=True)}


@dataclass(frozen=True, slots=True)
class _Filled:
    """A path of a resource that rows fill in, and the files that they have named so far."""

    template: Template
    find: Callable[[str], Path]
    constants: Mapping[str, Any]
    found: dict[str, str]
    say: Say | None

    def row(self, row: Mapping[str, Any]) -> None:
        try:
            written = self.template.text(task=row, vars=self.constants)
            if written in self.found:
                return
            path = self.find(written)
        except (TemplateError, RefusedPath):
            return  # the episode of such a row fails, and says so
        if is_file(path):
            self.found[written] = file_sha256(path, say=self.say)
        elif is_folder(path):
            self.found[written] = tree_sha256(path, say=self.say)


def data_and_resources(
    environment: Environment, splits: Sequence[str], *, say: Say | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of the splits, and the resources with the files that the spec or these rows name."""
    loaded = environment.loaded
    filled = {name: list(_filled(loaded, name, entry, say)) for name, entry in environment.spec.resources.items()}
    by_row = [one for found in filled.values() for one in found if "task" in one.template.names]

    def on_row(row: Mapping[str, Any]) -> None:
        for one in by_row:
            one.row(row)

    data: dict[str, Any] = {}
    for split in splits:
        rows = environment.tasks(split)
        assert isinstance(rows, Tasks)
        source = environment.spec.tasks[split]
        where = {key: getattr(source, key) for key in ("path", "python") if getattr(source, key) is not None}
        if source.hf is not None:
            revision = rows.revision or source.hf.revision
            where = {"dataset": source.hf.dataset, "config": source.hf.config, "revision": revision}
        sha256 = rows_sha256(rows, on_row=on_row, name=split, say=say)
        data[split] = {"rows": len(rows), "sha256": sha256, **where}
    resources: dict[str, Any] = {}
    for name, entry in environment.spec.resources.items():
        files = entry_files(loaded, f"resources.{name}", entry)
        for one in filled[name]:
            if one not in by_row:
                one.row({})
            files |= one.found if len(one.found) <= _MOST_LISTED else {f"{len(one.found)} files": digest_of(one.found)}
        resources[name] = {"kind": entry.kind, "digest": digest_of(entry), "files": files}
    return data, resources


def _filled(loaded: LoadedSpec, name: str, entry: Any, say: Say | None) -> list[_Filled]:
    found = []
    for key in _PATH_KEYS:
        value = getattr(entry, key, None)
        if isinstance(value, str):
            template = compile_template(value)
            constants = loaded.spec.vars
            base = loaded.base_of(f"resources.{name}.{key}")
            find = finder(template, base=base, roots=loaded.roots, vars=constants)
            found.append(_Filled(template, find, constants, {}, say))
    return found


def prompts(environment: Environment, splits: Sequence[str]) -> dict[str, Any]:
    """The templates, the schemas of all tools in their order, and the messages that row 0 of each split begins with.

    `rendered` has no entry for a split whose prompt cannot be written before an episode runs: it reads a resource that
    is no database, or the row does not fill it.
    """
    prompt, observation = environment.spec.prompt, environment.spec.observation
    found: dict[str, Any] = {"user": text_sha256(prompt.user), "tools": digest_of(environment.tool_schemas)}
    if prompt.system is not None:
        found["system"] = text_sha256(prompt.system)
    if prompt.images:
        found["images"] = [text_sha256(text) for text in prompt.images]
    if observation.template is not None:
        found["observation"] = text_sha256(observation.template)
    rendered = {split: _rendered(environment, split) for split in splits}
    found["rendered"] = {split: sha256 for split, sha256 in rendered.items() if sha256}
    return found


def _rendered(environment: Environment, split: str) -> str:
    try:
        row = environment.tasks(split)[0]
        messages = environment.prompt(row, _databases(environment, row))
    except RlenvError:
        return ""
    images = [[[image.mime, image.base64] for image in one.images] for one in messages]
    return digest_of([[one.role, one.content, shown] for one, shown in zip(messages, images, strict=True)])


def _databases(environment: Environment, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a prompt sees of the databases that it names; they are looked at and not opened."""
    parts = environment.parts
    templates = (parts.system, parts.user, *parts.images)
    named = {path[1] for one in templates if one for path in one.paths if path[0] == "resources" and len(path) > 1}
    found = {}
    for name in named:
        resource = parts.resources.get(name)
        if isinstance(resource, SqlResource):
            about = resource.source(ResourceContext(row, environment.spec.vars, 0))
            found[name] = SimpleNamespace(schema=about.schema, dialect=resource.engine.dialect)
    return found


def tools(environment: Environment) -> dict[str, Any]:
    """Each tool that the model sees: what it is made of, its schema, its entry, the files of that, its server."""
    entries = environment.spec.tools
    files = {name: entry_files(environment.loaded, f"tools.{name}", entry) for name, entry in entries.items()}
    return {
        name: {
            "kind": entries[tool.entry].kind,
            "digest": tool.digest,
            "entry": digest_of(entries[tool.entry]),
            "schema": digest_of(tool.schema),
            "files": files[tool.entry],
            **tool.about,
        }
        for name, tool in environment.parts.tools.items()
    }


def rewards(environment: Environment) -> dict[str, Any]:
    """Each term: its weight, its entry, the files of that, and of a judge the models, their prompts and sampling."""
    found: dict[str, Any] = {}
    for name, entry in environment.spec.rewards.items():
        files = entry_files(environment.loaded, f"rewards.{name}", entry)
        found[name] = {"kind": entry.kind, "weight": entry.weight, "digest": digest_of(entry), "files": files}
        if rule := getattr(entry, "rule", None):
            found[name]["rule"] = rule
        if isinstance(entry, JudgeSpec):
            found[name]["judges"] = _judges(environment, entry)
    return found


def _judges(environment: Environment, entry: JudgeSpec) -> dict[str, Any]:
    members = entry.judges or (JudgeMemberSpec(endpoint=entry.endpoint or ""),)
    found = {}
    for index, member in enumerate(members):
        endpoint = environment.spec.endpoints[member.endpoint]
        found[str(index)] = {
            "endpoint": member.endpoint,
            "model": endpoint.model,
            "prompt": text_sha256(member.prompt or entry.prompt),
            "sampling": _over(endpoint.sampling, member.sampling or entry.sampling),
        }
    return found


def _over(below: SamplingSpec, above: SamplingSpec) -> dict[str, Any]:
    both = {**below.model_dump(exclude_none=True), **above.model_dump(exclude_none=True, exclude_unset=True)}
    found: dict[str, Any] = kept(both, hides=True)
    return found


def user(environment: Environment) -> dict[str, Any]:
    """The simulated user: its entry, the files of that, and the model that plays it; empty without one."""
    entry = environment.spec.user
    if entry is None:
        return {}
    found = {"kind": entry.kind, "digest": digest_of(entry), "files": entry_files(environment.loaded, "user", entry)}
    endpoint = environment.spec.endpoints.get(getattr(entry, "endpoint", ""))
    return found if endpoint is None else {**found, "model": endpoint.model}


def dialect(environment: Environment) -> dict[str, Any]:
    """The dialect's name, its whole row, and the chat template that the spec gives it."""
    given, made = environment.spec.dialect, environment.parts.dialect
    row = getattr(made, "spec", None)
    found: dict[str, Any] = {"name": given if isinstance(given, str) else "inline"}
    found["digest"] = digest_of(row) if row is not None else None
    if isinstance(given, DialectSpec):
        found |= {"entry": digest_of(given), "files": entry_files(environment.loaded, "dialect", given)}
    return found


def endpoints(environment: Environment) -> dict[str, Any]:
    """Each server that the spec names: the model and its sampling, and the host alone of its address.

    A model that a variable names stands by that name, and by the digest of what it is.
    """
    return {
        name: {
            "model": entry.model,
            "host": host_of(entry.base_url),
            "sampling": kept(entry.sampling, hides=True),
            **_resolved(entry),
        }
        for name, entry in environment.spec.endpoints.items()
    }


def _resolved(entry: EndpointSpec) -> dict[str, str]:
    if not names_in(entry.model):
        return {}
    try:
        return {"model_sha256": text_sha256(resolve(entry.model))}
    except RlenvError:  # it is not set, and a look at the spec does not need it
        return {}


def host_of(address: str) -> str:
    """Host and port of an address, without credentials, path and query; an address in a variable stays its name."""
    try:
        found = urlsplit(address).netloc.rpartition("@")[2]
    except ValueError:
        found = ""
    return found or ", ".join(f"${{env:{name}}}" for name in names_in(address))


def limits(environment: Environment, splits: Sequence[str]) -> dict[str, Any]:
    """What ends an episode, how calls, results and answers are taken, what succeeds, and how rows are shuffled."""
    spec = environment.spec
    shuffled = {split: spec.tasks[split].shuffle for split in splits}
    return {
        "limits": spec.limits,
        "success": spec.success,
        "calls": digest_of(spec.calls),
        "observation": digest_of(spec.observation),
        "answer": digest_of(spec.answer),
        "shuffle": shuffled,
    }


def tokenizer(bound: Any) -> dict[str, Any]:
    """The tokenizer that is bound, as `rlenv.tokens.load` or transformers give it: its file, and its chat template.

    The file is the `tokenizer.json` in its place or in the hub's cache; the text that the tokenizer writes itself is
    taken where there is none.
    """
    if bound is None:
        return {}
    found = {"tokenizer": _tokenizer_sha256(bound)}
    template = getattr(bound, "chat_template", None)
    if isinstance(template, str):
        found["chat_template"] = text_sha256(template)
    return found


def _tokenizer_sha256(bound: Any) -> str:
    place = str(getattr(bound, "name_or_path", ""))
    file = Path(place) / "tokenizer.json" if is_folder(Path(place)) else Path(place)
    if not is_file(file) and place.count("/") == 1:
        try:
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(place, "tokenizer.json")
        except (ImportError, ValueError):
            cached = None
        file = Path(cached) if isinstance(cached, str) else file
    if is_file(file) and file.suffix == ".json":
        return file_sha256(file)
    return text_sha256(bound.backend_tokenizer.to_str())


def plug_ins(environment: Environment) -> set[str]:
    """The distributions that bring kinds of this spec which rlenv does not have itself."""
    spec = environment.spec
    used: list[tuple[registry.Group, str]] = [("tools", entry.kind) for entry in spec.tools.values()]
    used += [("resources", entry.kind) for entry in spec.resources.values()]
    used += [("rewards", entry.kind) for entry in spec.rewards.values()]
    used += [("rules", str(getattr(entry, "rule", ""))) for entry in spec.rewards.values()]
    used += [("users", spec.user.kind)] if spec.user is not None else []
    used += [("dialects", spec.dialect)] if isinstance(spec.dialect, str) else []
    points = [
        point
        for group, name in used
        if name and name not in registry.BUILT_IN[group]
        for point in entry_points(group=f"rlenv.{group}", name=name)
    ]
    return {point.dist.name for point in points if point.dist is not None}
