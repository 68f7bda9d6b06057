"""The resource `workspace`: a machine for each episode, which is a folder of changes over an image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import Field, ValidationError

from rlenv._base.paths import RefusedPath, remove
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import ResourceError, UsageError, told_as
from rlenv.language.dialect import ByRow
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, ResourceSpec, Text
from rlenv.language.templates import TemplateError, compile_value, template_of, texts_at
from rlenv.language.type_faults import describe
from rlenv.resources.base import ResourceContext
from rlenv.tools._bubblewrap import UNSEEN
from rlenv.tools._process import is_disk_full
from rlenv.tools.workspace import layer as layers
from rlenv.tools.workspace import starters
from rlenv.tools.workspace.images import ENGINE, MachineImage, prepare_image, read_in, user_in
from rlenv.tools.workspace.machine import WATCH_S, CommandEnd, Machine, MachineFailed, RowTests, Verified, pause_s

_threads: Final = ThreadPool(size=8)
RESULTS: Final = ("reward.json", "reward.txt")
"""The files below `/logs/verifier` that tests write their number to; the first that is there counts."""
_PATCH: Final = "git apply /tests/patch 2>/dev/null || patch -p1 --batch --no-backup-if-mismatch < /tests/patch"
_WORKDIR: Final = "/app"
_SAID, _SETUP_S = 300, 600.0
_BY_ROW: Final = ("cwd", "user", "env", "setup", "memory_mb", "disk_mb", "live")
_TRIES, _MOST_LOST = 2, 8  # boots that fail before the files are at fault, and those that are killed before the host is
_FEW: Final = 64
_BROKEN: Final = CommandEnd(None, b"", why="broken")


class WorkspaceSpec(ResourceSpec):
    """A Linux machine of the episode's own, without a network: its files, and commands that run on them.

    It starts with the first command. Needs bubblewrap and a kernel that lets users mount overlays (Linux 5.11).
    """

    kind: Literal["workspace"]
    image: Text | None = None
    """The machine's files: a folder, a folder with a Dockerfile, or a .tar file, relative to the spec, or `podman:NAME`
    for an image of that name; a template over `task` and `vars`. `rlenv images SPEC` builds and pulls before a run. By
    default the programs of the machine that rlenv runs on, which the episode can use and not change."""
    path: Text | None = None
    """A folder whose content stands in `cwd` at first, relative to the spec; a template over `task` and `vars`."""
    tests_image: Text | None = None
    """The image of a reward's tests, in the same forms, where it is another: with its own `/tests`, folder and ENV."""
    cwd: Annotated[Text, Field(pattern=r"^/")] | ByRow | None = None
    """Where commands start; made if missing. By default the image's own, else /app (/ where a template gives "")."""
    setup: Text | None = None
    """A command that the same user runs before the policy's first; a template. If it fails, so does the episode."""
    user: Text | Annotated[Int, Field(ge=0, lt=65_536)] | None = None
    """Who runs the episode's commands inside: a name of the image's or a number. By default the image's own, else root;
    tests are run by root."""
    env: Mapping[str, Text] | ByRow = Field(default_factory=dict)
    """The shell's environment beside PATH, HOME, LANG and the image's own; values are templates over `task` and
    `vars`."""
    sandbox: Literal["bubblewrap", "runsc", "runc"] = "bubblewrap"
    """The program that starts it: gVisor (`runsc`) has a kernel of its own; it and `runc` need root."""
    live: bool | ByRow = False
    """What the episode leaves running goes on while its tests run, and they share its network: they can ask a server
    there on localhost. Of bubblewrap alone."""
    memory_mb: Annotated[Int, Field(ge=16)] | ByRow = 4_096
    """Memory of all processes together where rlenv is root; otherwise the address space of each. Like `disk_mb` a
    number, or a template that gives one."""
    disk_mb: Annotated[Int, Field(ge=1)] | ByRow = 1_024
    """What the episode may write."""
    processes: Annotated[Int, Field(ge=8)] = 256
    """Processes and threads at once."""


@dataclass(slots=True, kw_only=True)
class Workspace(layers.LayerFiles):
    """An opened workspace; `commands` and `boots` are how many there were so far."""

    origin: Any
    """The resource that it is of."""
    entry: WorkspaceSpec
    """What the spec says of it, as the row fills it in."""
    commands: int = 0
    boots: int = 0
    _joins: Sequence[str] = ()  # what gives tests the network of the episode's processes, while those live on
    _machine: Machine | None = None
    _looking: asyncio.Future[None] | None = None
    _ending: asyncio.Future[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def has_ended(self) -> bool:
        """True where no machine is running."""
        return self._machine is None or self._machine.has_ended

    async def run(self, command: str, timeout_s: float, *, most: int = 65_536) -> CommandEnd:
        """A command in the episode's shell; `most` bytes of its output are kept.

        Raises:
            MachineFailed: the machine does not come up, or was ended from outside; the next call boots it again.
        """
        async with self._lock:
            self.changed, self.commands = None, self.commands + 1
            try:
                if self.has_ended or self._joins:
                    await self._end_machine()
                self._machine = machine = self._machine or await self._boot_episode()
                ran = await machine.run(command, timeout_s, most=most) if machine else _BROKEN
            except (MachineFailed, asyncio.CancelledError) as error:  # a shell in half a command is of no use any more
                self.is_cut |= isinstance(error, MachineFailed) and error.is_cut
                await self._end_machine()
                raise
            self.is_cut |= is_disk_full(self.layer)
            if ran.why in ("ended", "cut", "full"):
                await self._end_machine()
            elif self._looking is None or self._looking.done():
                self._looking = asyncio.ensure_future(self._watch_jobs())
            return ran

    async def _boot_episode(self) -> Machine | None:
        """A boot over the layer; None where that alone is what stands in its way, and nobody has killed it."""
        tries = [_TRIES, _MOST_LOST]
        while tries[0]:
            try:
                return await self._boot([self.image.folder], self.layer, self.user)
            except MachineFailed as error:
                tries[error.is_cut] -= 1
                if not tries[1]:
                    raise
        upper = layers.lay_tests(self.folder / f"empty-{self.boots}", None)
        await (await self._boot([self.image.folder], upper, self.user)).end()
        return None

    async def _is_full(self, layer: Path) -> bool:
        most = self.limits.disk_mb * 1_000_000
        if layers.written_to(layer, most, looks=_FEW) <= most:  # quicker than another thread
            return False
        return await _threads.finish(lambda: layers.is_beyond(layer, most))

    async def _watch_jobs(self) -> None:
        """Between two commands: ends a machine whose background jobs write beyond its limit."""
        await asyncio.sleep(WATCH_S)
        while (machine := self._machine) is not None and machine.has_jobs():
            began = time.monotonic()
            if await self._is_full(machine.start.upper):
                if self._joins:  # tests run, and hold the lock
                    await machine.end()
                async with self._lock:
                    if self._machine is machine:
                        await self._end_machine()
            await asyncio.sleep(pause_s(time.monotonic() - began))

    async def _boot(
        self, lowers: Sequence[Path], upper: Path, user: Sequence[str], joins: Sequence[str] = ()
    ) -> Machine:
        self.boots += 1
        (folder := self.folder / f"boot-{self.boots}").mkdir()
        starters.chown(folder)
        binds = self.image.binds if lowers[-1] == self.image.folder else ()
        workdir, env = self.boot_settings(lowers[-1])
        start = starters.Start(folder, lowers, upper, workdir, binds, env, self.limits, user, self.entry.sandbox, joins)
        await (machine := Machine(start, partial(self._is_full, upper))).boot()
        return machine

    async def _end_machine(self) -> None:
        machine, self._machine, self._joins = self._machine, None, ()
        if machine is not None:
            self._ending = asyncio.ensure_future(machine.end())
        if self._ending is not None:  # to its end, whoever is cancelled meanwhile: the next one to ask waits for it
            await asyncio.shield(self._ending)

    async def _settle_layer(self) -> None:
        """Nothing changes the layer any more: all processes have ended, or live on beside a copy of it."""
        machine, copy = self._machine, self.folder / f"layer-{self.copies + 1}"
        if self._joins:
            return
        if machine is not None and self.entry.live and self.entry.sandbox == "bubblewrap":
            if machine.has_jobs() and await _threads.finish(lambda: self._copy_layer(machine, copy)):
                self._joins = machine.nsenter_options("net")
            self.is_cut |= await machine.is_killed()  # what ran in it cannot be had again
        if self._joins:
            self.copies += 1
        else:
            await self._end_machine()

    def _copy_layer(self, machine: Machine, copy: Path) -> bool:
        """Copies the layer while all stands still that could change it; False where that cannot be done."""
        remove(copy)  # what an earlier try has left
        copy.mkdir()
        try:
            return machine.signal_all("STOP") and not layers.duplicate(self.layer, copy, is_live=True)
        finally:
            machine.signal_all("CONT")

    async def freeze(self) -> None:
        """Ends all processes: nothing changes the layer any more."""
        async with self._lock:
            await self._end_machine()

    async def list_changes(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The files that the episode has changed; they change no more. A tape that keeps all keeps the layer."""
        async with self._lock:
            await self._settle_layer()
        if self.changed is None:
            shows = await self.tape_layer(name)
            at = [(self.workdir.rstrip("/"), self.source)] if self.source else []
            look = partial(layers.compare, self.layer, [*at, ("", self.image.folder)], since=self.filled, shows=shows)
            self.changed = await _threads.finish(look)
        return self.changed

    async def run_tests(
        self, given: RowTests, *, over_layer: bool = True, files: Sequence[str] = RESULTS, most: int = 65_536
    ) -> Verified:
        """The end of tests in a machine of their own, over what the episode left or over the image alone.

        The episode's processes are ended first, or live on beside a copy of the layer. `/tests` and `/logs` are the
        tests' own, whatever stands there in the layer, and the layer stays as it is. `files` are the names of those
        below `/logs/verifier` that are read; `most` bytes of the output are kept.

        Raises:
            MachineFailed: the machine did not come up, or was ended from outside.
        """
        async with self._lock:
            await self._settle_layer()
            # What would give a number over the image alone is not kept from it by what the episode left running.
            tell = self._machine.signal_all if self._machine and self._joins and not over_layer else bool
            await _threads.finish(lambda: tell("STOP"))
            self.boots += 1
            (base := self.folder / f"tests-{self.boots}").mkdir()
            starters.chown(base)
            below, keep, out, tests = base / "kept", given.keep or (self.workdir,), given.exclude, given.folder
            kept = partial(layers.copy_kept, below, keep, self.layer, out) if over_layer else partial(self._fill, below)
            try:
                lowers = [left := await _threads.finish(kept), (image := self.tests_image or self.image).folder]
                if over_layer and self.source and not self.tests_image and layers.is_part(self.workdir, keep):
                    lowers.insert(1, await _threads.finish(lambda: layers.take_out(self._fill(base / "first"), keep)))
                is_own = tests is None and self.tests_image is not None
                if is_own and not (tests := image.folder / "tests").is_dir():
                    raise MachineFailed("the tests' image has no folder /tests")
                if given.collect:
                    upper = await _threads.finish(lambda: layers.lay_tests(base / "collect", None))
                    await self._run_once(lowers, upper, given.collect, given.time_s)
                    kept = partial(layers.copy_kept, base / "collected", keep, upper, out)
                    lowers.insert(0, await _threads.finish(kept))
                await _threads.finish(lambda: layers.unlink_hidden(lowers, image.binds, base / "out"))
                if given.patch:
                    lowers.insert(0, await self._apply_patch(base / "patched", given.patch, given.time_s))
                upper = await _threads.finish(lambda: layers.lay_tests(base, tests))
                if over_layer and not layers.is_part("/logs/artifacts", keep):
                    await _threads.finish(lambda: layers.publish(left, upper))
                joins = () if self.has_ended or not over_layer else self._joins
                # In a shell of its own: one that ends gives a status all the same.
                ran = await self._run_once(lowers, upper, f"(\n{given.command}\n)", given.time_s, most, joins)
                self.is_cut |= bool(self._joins and self._machine and await self._machine.is_killed())
                held = {name: await _threads.finish(partial(read_in, upper, f"logs/verifier/{name}")) for name in files}
                return Verified(ran, {name: data for name, data in held.items() if data is not None})
            finally:
                await _threads.finish(lambda: remove(base))
                await _threads.finish(lambda: tell("CONT"))

    async def _run_once(
        self, lowers: Sequence[Path], upper: Path, command: str, time_s: float, most: int = 65_536, joins: Any = ()
    ) -> CommandEnd:
        machine = await self._boot(lowers, upper, starters.ROOT, joins)
        try:
            ran = await machine.run(command, time_s, most=most)
            if machine.starved_by == "host" or is_disk_full(upper):
                raise MachineFailed("the computer ran out of memory or disk", is_cut=True)
            return replace(ran, why="out of memory") if machine.starved_by and not ran.why else ran
        finally:
            await machine.end()

    async def _apply_patch(self, base: Path, patch: str, time_s: float) -> Path:
        """The files that a patch changes, alone: it is applied where nothing of the episode's is."""
        below = await _threads.finish(lambda: self._fill(base / "fresh"))
        upper = await _threads.finish(lambda: layers.lay_tests(base, None))
        (upper / "tests" / "patch").write_text(patch if patch.endswith("\n") else f"{patch}\n", encoding="utf-8")
        starters.chown(upper / "tests" / "patch")
        ran = await self._run_once([below, self.image.folder], upper, _PATCH, time_s)
        if ran.code != 0:
            said = ran.output.decode(errors="replace").strip()[-_SAID:]
            raise MachineFailed(f"the patch cannot be applied to the untouched image: {said}")
        return upper

    def fill_layer(self) -> None:
        """Makes the layer as it is before the first command."""
        self._fill(self.layer)
        for path, user in zip(layers.GIVEN, (starters.ROOT, self.user), strict=True):
            (self.layer / path.strip("/")).mkdir(exist_ok=True)
            starters.chown(self.layer / path.strip("/"), user)
        starters.close_folder(self.folder)
        self.filled = time.time_ns()

    def _fill(self, layer: Path) -> Path:
        layer.mkdir(parents=True, exist_ok=True)
        target = layer / self.workdir.strip("/")
        if self.source or self.image.binds or not os.path.lexists(self.image.folder / self.workdir.strip("/")):
            target.mkdir(parents=True, exist_ok=True)
        for path in (layer, *layer.rglob("*")):
            starters.chown(path, self.user if path == target != layer else starters.ROOT)
        if self.source is not None and (said := layers.duplicate(self.source, target, user=self.user)):
            raise OSError(said)
        return layer

    async def aclose(self) -> None:
        """Ends all processes and removes the folder."""
        try:
            if self._looking is not None:
                self._looking.cancel()
            await self._end_machine()
        finally:
            await _threads.finish(lambda: remove(self.folder))


class WorkspaceResource:
    """A compiled `workspace` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ()
    scope: Literal["episode", "process"] = "episode"

    def __init__(self, name: str, spec: WorkspaceSpec, context: CompileContext) -> None:
        self.name = name
        self.spec = spec
        self._context = context
        paths = {key: getattr(spec, key) or "" for key in ("image", "path", "tests_image")}
        self._paths = {key: template_of(text, key=key, names=("task", "vars")) for key, text in paths.items()}
        self.image_of: Callable[[Path | str | None], MachineImage] = lru_cache(maxsize=None)(prepare_image)
        """The image of a source, looked at once: it is not to change while a run goes on."""
        held = {key: getattr(spec, key) for key in _BY_ROW}
        for at, text in (pair for key, value in held.items() for pair in texts_at(key, value)):
            template_of(text, key=at, names=("task", "vars"))
        self._by_row = compile_value({key: value for key, value in held.items() if value is not None})
        self.terms: dict[str, Any] = {}
        """What rewards measure at the end of each step of a task, and what gives a digest of all that their number
        rests on beside the machine's files."""

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Workspace]:
        """The workspace for as long as it is entered; nothing of it is left then.

        Raises:
            ResourceError: its image or what it starts with is not there.
        """
        told = f"the machine '{self.name}' cannot be made:"
        of_row = told_as(ResourceError, told, TemplateError, RefusedPath, reason="task")
        with of_row, told_as(ResourceError, told, OSError):
            spec = self.fill_row(context.task, context.vars)
            copied = self.source("path", context.task, context.vars)
            image, tests_image = await _threads.finish(lambda: self.images(context.task, context.vars))
            user = self.user_of(image, spec)
            await _threads.finish(starters.sweep_once)
            folder = starters.make_folder()  # at once: who is cancelled while it is made would lose it
        limits = starters.MachineLimits(spec.processes, int(spec.memory_mb), int(spec.disk_mb))
        env = {**image.env, **cast(Mapping[str, str], spec.env)}
        bare = "/" if self.spec.cwd and not spec.cwd and not image.binds else _WORKDIR  # as docker does
        workdir = spec.cwd or image.workdir or bare
        at = (folder, image, workdir, env, limits, Path(copied) if copied else None, user, tests_image)
        workspace = Workspace(*at, origin=self, entry=spec)
        try:
            with told_as(ResourceError, f"the machine '{self.name}' cannot be filled:", OSError):
                await _threads.finish(workspace.fill_layer)
            if spec.setup and (ran := await workspace.run(f"(\n{spec.setup}\n)", _SETUP_S)).code != 0:
                said = ran.output.decode(errors="replace").strip()[-_SAID:]
                raise ResourceError(f"the set-up of the machine '{self.name}' failed: {said}")
            yield workspace
        finally:
            closing = asyncio.ensure_future(workspace.aclose())
            while not closing.done():  # to its end, whoever is cancelled meanwhile: nothing may be left behind
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((closing,))
            closing.result()

    def user_of(self, image: MachineImage, spec: WorkspaceSpec) -> Sequence[str]:
        """Who runs the commands of a row, as `user_in` gives it. Raises ResourceError: the image has no such user."""
        files = Path("/") if image.binds else image.folder
        return starters.ROOT if os.geteuid() else user_in(files, str(spec.user or image.user or 0))

    def source(self, key: str, task: Mapping[str, Any], vars: Mapping[str, Any]) -> Path | str | None:
        """The path that stands under `key` for a row, or the image's name in podman's store.

        Raises:
            TemplateError, RefusedPath: the row does not fill it in, or names what it may not.
        """
        if not (text := self._paths[key].text(task=task, vars=vars)) or text.startswith(ENGINE):
            return text or None
        return self._context.finder(key, self._paths[key], vars=vars)(text)

    def images(self, task: Mapping[str, Any], vars: Mapping[str, Any]) -> tuple[MachineImage, MachineImage | None]:
        """The image of a row, and that of its tests where they have one of their own. Blocks; raises like `source`."""
        source, of_tests = (self.source(key, task, vars) for key in ("image", "tests_image"))
        return self.image_of(source), self.image_of(of_tests) if of_tests else None

    def fill_row(self, task: Mapping[str, Any], vars: Mapping[str, Any]) -> WorkspaceSpec:
        """The entry as a row fills it in; what is empty then is as if it were not there.

        Raises ResourceError: the row gives what no machine has.
        """
        try:
            held = {key: one for key, one in self._by_row(task=task, vars=vars).items() if one not in ("", None)}
            held["env"] = {key: str(one) for key, one in held.get("env", {}).items()}
            rest = {key: one for key, one in self.spec if key not in _BY_ROW}
            return WorkspaceSpec.model_validate({**rest, **held})
        except (TemplateError, ValidationError, AttributeError) as error:
            raise ResourceError(f"the machine '{self.name}' cannot be made: {error}") from error

    def check_row(self, task: Mapping[str, Any], vars: Mapping[str, Any]) -> None:
        """Raises UsageError: no machine is as the row says, or its image has to be pulled or built, and is not here."""
        try:
            self.fill_row(task, vars)
        except ResourceError as error:
            if isinstance(error.__cause__, ValidationError):
                wrong = error.__cause__.errors()[0]
                expected = wrong["msg"].removeprefix("Input should be ")
                message = f"a row gives {describe(wrong['input'])}; expected {expected}"
                raise UsageError(message, key=str(wrong["loc"][0])) from error
        with contextlib.suppress(TemplateError, RefusedPath, ResourceError, OSError):  # the episode says so
            for source in (self.source("image", task, vars), self.source("tests_image", task, vars)):
                if isinstance(source, str) or (source is not None and (source / "Dockerfile").is_file()):
                    self.image_of(source)


def compile_workspace(name: str, spec: WorkspaceSpec, context: CompileContext) -> WorkspaceResource:
    """The resource of one entry.

    Raises:
        UsageError: a template is wrong, or bubblewrap does not work here.
    """
    if spec.scope != "episode":
        raise UsageError("a machine is an episode's own", key="scope", hint="leave it out")
    if os.geteuid() and str(spec.user or 0) not in ("0", "root") and "{{" not in str(spec.user):
        raise UsageError("only root can start a machine whose commands another user runs", key="user")
    if spec.live is True and spec.sandbox != "bubblewrap":
        raise UsageError("a machine can be live by bubblewrap alone", key="live", hint="take bubblewrap")
    starters.check_sandbox(spec.sandbox)
    UNSEEN.add(str(context.base.resolve()))
    return WorkspaceResource(name, spec, context)


KIND = Kind(WorkspaceSpec, compile_workspace, starters.needs)
