"""The parts of an environment, section by section, as a lock holds them."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from rlenv._base.bounded import plain
from rlenv._base.paths import RefusedPath, finder, is_file, is_folder
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError
from rlenv.images import listed
from rlenv.language import kinds as registry
from rlenv.language.dialect import DialectSpec
from rlenv.language.kinds import gold_in, gold_key, kind_of
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import EndpointSpec, EnvSpec, RewardSpec, SamplingSpec
from rlenv.language.templates import Template, TemplateError, compile_template
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql.resource import SqlResource
from rlenv.rewards.judge import JudgeMemberSpec, JudgeSpec
from rlenv.rewards.rule import RuleSpec
from rlenv.rewards.verify import ExpectSpec
from rlenv.runs.locks.files import Say, digest_of, file_sha256, files_digest, path_sha256, rows_sha256, to_lock
from rlenv.runs.locks.imports import PATH_KEYS, entry_files, installed_by
from rlenv.secrets import host_of, names_in, resolve
from rlenv.tasks.rows import Tasks
from rlenv.tools._bubblewrap import bwrap_path

_MOST_LISTED: Final = 50
"""More files of one resource than these stand in a lock as one digest."""
_ASKED: Final = ("expect", "mode", "max", "min", "pattern")
_LONGEST_ASKED: Final = 1_000


def text_sha256(text: str) -> str:
    """SHA-256 (hexadecimal) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lock_spec(environment: Environment) -> dict[str, Any]:
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
    return {"id": environment.id, "digest": loaded.digest, "sources": sources, "set": to_lock(shown, hides=True)}


@dataclass(frozen=True, slots=True)
class _Filled:
    """A template that names a file or several, mostly by what stands in rows, and those that it has named so far."""

    template: Template
    find: Callable[[str], Path | str]
    constants: Mapping[str, Any]
    say: Say | None
    measure: Callable[..., str] = path_sha256
    found: dict[str, str] = field(default_factory=dict)

    def row(self, row: Mapping[str, Any]) -> None:
        try:
            for written in map(str, listed(self.template.value(task=row, vars=self.constants))):
                if written not in self.found:
                    sha256 = self.measure(self.find(written), say=self.say)
                    self.found.update({written: sha256} if sha256 else {})
        except (TemplateError, RefusedPath):
            return  # the episode of such a row fails, and says so; or it reads a resource, and none is opened

    def files(self) -> dict[str, str]:
        return self.found if len(self.found) <= _MOST_LISTED else {f"{len(self.found)} files": files_digest(self.found)}


def data_and_files(
    environment: Environment, splits: Sequence[str], *, say: Say | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], dict[str, dict[str, str]]]:
    """The rows of the splits, the resources with the files that they or these rows name, the prompt's images, and the
    folders of tests by their terms."""
    loaded = environment.loaded
    filled = {
        name: [
            _fill_template(loaded, f"resources.{name}.{key}", compile_template(value), say)
            for key in (*PATH_KEYS, "image")
            if isinstance(value := getattr(entry, key, None), str)
            and (key == "image" or not compile_template(value).is_constant)
        ]
        for name, entry in environment.spec.resources.items()
    }
    images = [
        _fill_template(loaded, f"prompt.images.{index}", template, say)
        for index, template in enumerate(environment.parts.images)
    ]
    tests = {
        name: _fill_template(loaded, f"rewards.{name}.tests", compile_template(folder), say)
        for name, entry in environment.spec.rewards.items()
        if isinstance(folder := getattr(entry, "tests", None), str)
    }
    by_row = [one for found in (*filled.values(), images, tests.values()) for one in found]

    def on_row(row: Mapping[str, Any]) -> None:
        for one in by_row:
            one.row(row)

    data: dict[str, Any] = {}
    for split in splits:
        rows = environment.tasks(split)
        assert isinstance(rows, Tasks)
        source = environment.spec.tasks[split]
        given = {"path": source.path, "python": source.function}
        where: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if source.hf is not None:
            revision = rows.revision or source.hf.revision
            where = {"dataset": source.hf.path, "config": source.hf.name, "revision": revision}
        sha256 = rows_sha256(rows, on_row=on_row, name=split, say=say)
        data[split] = {"rows": len(rows), "sha256": sha256, **where}
    resources: dict[str, Any] = {}
    for name, entry in environment.spec.resources.items():
        files = entry_files(loaded, f"resources.{name}", entry, say=say)
        for one in filled[name]:
            files |= one.files()
        resources[name] = {"kind": entry.kind, "digest": digest_of(entry), "files": files}
        if getattr(entry, "sandbox", "") == "bubblewrap":
            resources[name]["starter"] = _said_by(bwrap_path(), "--version")
    shown = {key: value for one in images for key, value in one.files().items()}
    return data, resources, shown, {name: one.files() for name, one in tests.items()}


@lru_cache
def _said_by(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _fill_template(loaded: LoadedSpec, key: str, template: Template, say: Say | None) -> _Filled:
    constants = loaded.spec.vars
    find = finder(template, base=loaded.base_of(key), roots=loaded.roots, vars=constants)
    if key.endswith(".image"):  # a machine's: a folder of files, whose links lead nowhere here
        from rlenv.tools.workspace.images import ENGINE, digest_of_image

        return _Filled(
            template, lambda text: find(text) if ENGINE not in text else text, constants, say, digest_of_image
        )
    return _Filled(template, find, constants, say)


def lock_prompts(environment: Environment, splits: Sequence[str]) -> dict[str, Any]:
    """The templates, the schemas of all tools in their order, and the messages that row 0 of each split begins with.

    `rendered` has no entry for a split whose prompt cannot be written before an episode runs: it reads a resource that
    is no database, or the row does not fill it.
    """
    prompt, observation = environment.spec.prompt, environment.spec.observation
    # In their own order, that of parameters too: the prompt shows it.
    schemas = json.dumps(plain(environment.tool_schemas), separators=(",", ":"))
    found: dict[str, Any] = {"tools": text_sha256(schemas)}
    if prompt.asks:
        found["user"] = text_sha256(prompt.user)
    if prompt.shown:
        found["messages"] = digest_of(prompt.shown)
    if prompt.system is not None:
        found["system"] = text_sha256(prompt.system)
    if prompt.images:
        found["images"] = [text_sha256(text) for text in prompt.images]
    if observation.template is not None:
        found["observation"] = text_sha256(observation.template)
    rendered = {split: _render_prompt(environment, split) for split in splits}
    found["rendered"] = {split: sha256 for split, sha256 in rendered.items() if sha256}
    return found


def _render_prompt(environment: Environment, split: str) -> str:
    try:
        row = environment.tasks(split)[0]
        messages = environment.prompt(row, _prompt_databases(environment, row))
    except RlenvError:
        return ""
    images = [[[image.mime, image.base64] for image in one.images] for one in messages]
    return digest_of([[one.role, one.content, shown] for one, shown in zip(messages, images, strict=True)])


def _prompt_databases(environment: Environment, row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the databases that a prompt names and sees; they are looked at and not opened."""
    parts = environment.parts
    templates = (*parts.prompted, *parts.images)
    named = {path[1] for one in templates for path in one.paths if path[0] == "resources" and len(path) > 1}
    found = {}
    for name in named:
        resource = parts.resources.get(name)
        if isinstance(resource, SqlResource):
            about = resource.source(ResourceContext(row, environment.spec.vars, 0))
            found[name] = SimpleNamespace(schema=about.schema, dialect=resource.engine.dialect)
    return found


def lock_tools(environment: Environment, *, say: Say | None) -> dict[str, Any]:
    """Each tool that the model sees: what it is made of, its schema, its entry, the files of that, its server."""
    entries = environment.spec.tools
    files = {name: entry_files(environment.loaded, f"tools.{name}", entry, say=say) for name, entry in entries.items()}
    found: dict[str, Any] = {
        name: {"kind": entries[name].kind, "entry": digest_of(entries[name]), "files": files[name]}
        for name in environment.parts.row_tools  # which tools they are stands in the rows
    }
    return found | {
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


def lock_rewards(environment: Environment, *, tests: Mapping[str, dict[str, str]], say: Say | None) -> dict[str, Any]:
    """Each term: its weight, its entry, the files of that, and of a judge the models, their prompts and sampling."""
    found: dict[str, Any] = {}
    for name, entry in environment.spec.rewards.items():
        files = {**entry_files(environment.loaded, f"rewards.{name}", entry, say=say), **tests.get(name, {})}
        found[name] = {"kind": entry.kind, "weight": entry.weight, "digest": digest_of(entry), "files": files}
        if rule := getattr(entry, "rule", None):
            found[name]["rule"] = rule
        if isinstance(entry, RuleSpec) or gold_key(entry):
            found[name]["asks"] = to_lock(_expected_values(entry))
        if isinstance(entry, JudgeSpec):
            found[name]["judges"] = _judge_entries(environment, entry)
    return found


def _expected_values(entry: RewardSpec) -> dict[str, Any]:
    """The short values that a term measures the policy against, so that a record can say what was expected."""
    given = {name: getattr(entry, name) for name in _ASKED if getattr(entry, name, None) is not None}
    if kind_of("rewards", entry).of_calls:  # its evidence names the call that is missing
        given.pop("expect", None)
    elif (expect := gold_in(entry)) is not None:
        given["expect"] = expect.value if isinstance(expect, ExpectSpec) else expect
    return {name: value for name, value in given.items() if len(str(value)) <= _LONGEST_ASKED}


def _judge_entries(environment: Environment, entry: JudgeSpec) -> dict[str, Any]:
    members = entry.judges or (JudgeMemberSpec(endpoint=entry.endpoint or ""),)
    found = {}
    for index, member in enumerate(members):
        endpoint = environment.spec.endpoints[member.endpoint]
        found[str(index)] = {
            "endpoint": member.endpoint,
            "model": endpoint.model,
            "prompt": text_sha256(member.prompt or entry.prompt),
            "sampling": _overlay_sampling(endpoint.sampling, member.sampling or entry.sampling),
        }
    return found


def _overlay_sampling(below: SamplingSpec, above: SamplingSpec) -> dict[str, Any]:
    both = {**below.model_dump(exclude_none=True), **above.model_dump(exclude_none=True, exclude_unset=True)}
    found: dict[str, Any] = to_lock(both, hides=True)
    return found


def lock_user(environment: Environment, *, say: Say | None) -> dict[str, Any]:
    """The simulated user: its entry, the files of that, and the model that plays it; empty without one."""
    entry = environment.spec.user
    if entry is None:
        return {}
    files = entry_files(environment.loaded, "user", entry, say=say)
    found = {"kind": entry.kind, "digest": digest_of(entry), "files": files}
    endpoint = environment.spec.endpoints.get(getattr(entry, "endpoint", ""))
    return found if endpoint is None else {**found, "model": endpoint.model}


def lock_dialect(environment: Environment, *, say: Say | None) -> dict[str, Any]:
    """The dialect's name, its whole row, and the chat template that the spec gives it."""
    given, made = environment.spec.dialect, environment.parts.dialect
    row = getattr(made, "spec", None)
    found: dict[str, Any] = {"name": given if isinstance(given, str) else "inline"}
    found["digest"] = digest_of(row) if row is not None else None
    if isinstance(given, DialectSpec):
        found |= {"entry": digest_of(given), "files": entry_files(environment.loaded, "dialect", given, say=say)}
    return found


def lock_endpoints(environment: Environment) -> dict[str, Any]:
    """Each server that the spec names: the model and its sampling, and the host alone of its address.

    A model that a variable names stands by that name, and by the digest of what it is.
    """
    return {
        name: {
            "model": entry.model,
            "host": host_of(entry.base_url),
            "sampling": to_lock(entry.sampling, hides=True),
            **_model_digest(entry),
        }
        for name, entry in environment.spec.endpoints.items()
    }


def _model_digest(entry: EndpointSpec) -> dict[str, str]:
    if not names_in(entry.model):
        return {}
    try:
        return {"model_sha256": text_sha256(resolve(entry.model))}
    except RlenvError:  # it is not set, and a look at the spec does not need it
        return {}


def lock_limits(environment: Environment, splits: Sequence[str]) -> dict[str, Any]:
    """The limits of an episode, the handling of calls, results and answers, the success, and the shuffling of rows."""
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


def lock_tokenizer(bound: Any) -> dict[str, Any]:
    """The tokenizer that is bound, as `rlenv.tokens.bound` or transformers give it: its file, and its chat template.

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


def distributions(environment: Environment) -> set[str]:
    """The distributions that bring kinds of this spec, and those that its functions and scripts import."""
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
    found = {point.dist.name for point in points if point.dist is not None}
    imported = {name for path, entry in _code_entries(spec) for name in installed_by(environment.loaded, path, entry)}
    by_module = packages_distributions() if imported else {}
    return found.union(*(by_module.get(name, ()) for name in imported))


def _code_entries(spec: EnvSpec) -> Iterator[tuple[str, Any]]:
    """The values that may name functions and scripts, with their keys."""
    for group in ("tools", "resources", "rewards"):
        for name, entry in getattr(spec, group).items():
            yield f"{group}.{name}", entry
    if spec.user is not None:
        yield "user", spec.user
