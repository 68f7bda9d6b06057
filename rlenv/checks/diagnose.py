"""The needs of a spec that this machine does not meet, and the exactness of a chat template for what it plays."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv._base.text import strings_in
from rlenv.episodes.compile import compile_parts
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import MissingVariable, RlenvError, SpecError, UsageError
from rlenv.language import kinds as registry
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.requirements import Requirement, address, variable
from rlenv.secrets import leave_open, names_in, redact, resolve
from rlenv.tokens.check import CheckReport, check
from rlenv.tokens.dialogues import Dialogue, PlayedTurn, Thinks
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.verdict import Prompts, Verdict, opened_prompts, verdict_of
from rlenv.trajectory import Trajectory

_ADDRESS = re.compile(r"https?://[^{}\s/]+")


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement, as it was found. `lacks` says what is wrong, "" where all is well."""

    what: str
    needed_by: str
    lacks: str = ""

    @property
    def is_met(self) -> bool:
        """True where the machine has it."""
        return not self.lacks


async def diagnose(path: str | os.PathLike[str], *, set: Mapping[str, Any] | None = None) -> tuple[Need, ...]:
    """The needs of a spec on this machine, each once, in the order of the spec.

    Variables, what kinds say that they need, and servers are probed, at once; then all entries are compiled, which
    finds extras and files that are missing.

    Raises:
        SpecError: the spec itself is at fault, whatever the machine.
    """
    loaded = load_spec(path, set=set)
    needed: dict[str, tuple[Requirement, list[str]]] = {}
    for place, requirement in _requirements(loaded):
        needed.setdefault(requirement.what, (requirement, []))[1].append(place)
    lacks = await asyncio.gather(*(requirement.probe() for requirement, _ in needed.values()))
    pairs = zip(needed.items(), lacks, strict=True)
    found = [Need(what, ", ".join(dict.fromkeys(places)), redact(wrong)) for (what, (_, places)), wrong in pairs]
    found += _compile_kinds(loaded)
    return tuple(found)


def _requirements(loaded: LoadedSpec) -> Iterator[tuple[str, Requirement]]:
    spec, document = loaded.spec, loaded.document
    for path, text in strings_in(document.data, ()):
        for name in names_in(text):
            yield ".".join(map(str, path)), variable(name)
    for endpoint, entry in spec.endpoints.items():
        yield from _server_address(f"endpoints.{endpoint}", entry.base_url)
    groups: tuple[tuple[registry.Group, Mapping[str, Any]], ...] = (
        ("resources", spec.resources),
        ("tools", spec.tools),
        ("rewards", spec.rewards),
    )
    for group, entries in groups:
        for name, entry in entries.items():
            place = f"{group}.{name}"
            needs = registry.get(group, entry.kind).requirements
            if needs is not None:
                try:
                    for requirement in needs(entry, loaded.base_of(place)):
                        yield place, requirement
                except MissingVariable:
                    continue  # found above
            url = getattr(entry, "url", None)
            if isinstance(url, str):
                yield from _server_address(place, url)


def _server_address(place: str, url: str) -> Iterator[tuple[str, Requirement]]:
    """The server of a url that does not depend on the call."""
    try:
        found = _ADDRESS.match(resolve(url))
    except UsageError:
        return
    if found:
        try:
            yield place, address(found[0])
        except ValueError:  # a port that is none; compiling says so
            return


def _compile_kinds(loaded: LoadedSpec) -> list[Need]:
    try:
        with leave_open():  # variables have been looked at
            compile_parts(loaded, Environment)
    except SpecError as error:
        told = [(one, Path(one.file).name, "; ".join(filter(None, (one.message, one.hint)))) for one in error.faults]
        return [Need(one.path or name, f"{name}:{one.line}", redact(text)) for one, name, text in told]
    except RlenvError as error:
        return [Need("the spec", loaded.path.name, redact(str(error)))]
    return []


_PROMPTS = 64
"""Prompts of each split that are looked at."""
_EPISODES = 20


def judge_environment(environment: Environment, encoder: TokenEncoder | Callable[[], TokenEncoder]) -> Verdict:
    """The verdict on a chat template for an environment: its own prompts of every split, tools, calls and users.

    Episodes are opened and not played.

    Raises:
        UsageError: no episode of the environment opens, so that its prompts are not known.
    """
    return verdict_of(environment, encoder, asyncio.run(_prompts(environment)))


def check_environment(
    environment: Environment, make: Callable[[], TokenEncoder], *, name: str, dialogues: int = 100, seed: int = 0
) -> CheckReport:
    """All checks of `rlenv.tokens.check` with the verdict for an environment, and its oracle's episodes replayed."""
    return check(
        make,
        name=name,
        dialogues=dialogues,
        seed=seed,
        real=list(_play_dialogues(environment)),
        verdict=judge_environment(environment, make),
        with_tools=environment.has_tools,
        with_users=environment.parts.simulated is not None,
    )


async def _prompts(environment: Environment) -> Prompts:
    prompts, why = await opened_prompts(environment, most=_PROMPTS)
    if not list(prompts):
        raise UsageError(f"no episode of {environment.spec.name} opens, so that its prompts are not known: {why}")
    return prompts


def _play_dialogues(environment: Environment) -> Iterator[Dialogue]:
    """Dialogues of an environment: up to 20 tasks of its first split, played by its oracle; none without one."""
    if not environment.spec.oracle:
        return
    split = next(iter(environment.spec.tasks))

    async def play() -> list[Trajectory]:
        async with environment:
            count = min(len(environment.tasks(split)), _EPISODES)
            policy = environment.oracle()
            return await rollout(environment, policy, [Job(split, task) for task in range(count)])

    for trajectory in asyncio.run(play()):
        turns = []
        for turn in trajectory.turns:
            if turn.observation is None or not turn.observation.messages:
                break
            thinks: Thinks = "some" if turn.parsed.thinking else "none"
            turns.append(PlayedTurn(turn.parsed.said, turn.observation.messages, thinks))
        schemas = tuple(map(dict, environment.toolsets.of(trajectory.task).schemas))
        yield Dialogue(trajectory.messages, schemas, tuple(turns))
