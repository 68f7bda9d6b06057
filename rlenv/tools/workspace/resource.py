"""The resource `workspace`: a machine for each episode, which is a folder of changes over an image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from rlenv._base.paths import RefusedPath
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import ResourceError, UsageError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.requirements import sandbox
from rlenv.language.spec import Int, ResourceSpec, Text
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.resources.base import ResourceContext, path_template
from rlenv.tools._bubblewrap import UNSEEN, check_bubblewrap
from rlenv.tools.workspace.images import ENGINE, Image, prepared, user_in
from rlenv.tools.workspace.layer import like, regular_files, remove, unlink_out, written_to
from rlenv.tools.workspace.machine import OUTSIDE_ROOT, ROOT, Machine, MachineFailed, MachineLimits, Ran, Root, own

__all__ = ["KIND", "Command", "Verified", "Workspace", "WorkspaceResource", "WorkspaceSpec"]

_threads: Final = ThreadPool(size=8)
_PREFIX: Final = "rlenv-machine-"
RESULTS: Final = ("reward.json", "reward.txt")
"""The files below `/logs/verifier` that tests write their number to; the first that is there counts."""
_PATCH: Final = "git apply /tests/patch 2>/dev/null || patch -p1 --batch --no-backup-if-mismatch < /tests/patch"
_SAID: Final = 300
_WORKDIR: Final = "/app"
_WATCH_S: Final = 1.0
"""Seconds between two looks at the layer's size while a command runs."""


class WorkspaceSpec(ResourceSpec):
    """A Linux machine of the episode's own, without a network: its files, and commands that run on them.

    It starts with the first command. Needs bubblewrap and a kernel that lets users mount overlays (Linux 5.11).
    """

    kind: Literal["workspace"]
    image: Text | None = None
    """The machine's files: a folder, a folder with a Dockerfile, or a .tar file, relative to the spec, or `podman:NAME`
    for an image of that name; a template over `task` and `vars`. `rlenv images SPEC` builds and pulls before a run. By
    default the programs of the machine that rlenv runs on, which the episode can use and not change."""
    copy_from: Text | None = None
    """A folder whose content stands in `workdir` at first, relative to the spec; a template over `task` and `vars`."""
    workdir: Annotated[Text, Field(pattern=r"^/")] | None = None
    """Where commands start; made where it is missing. By default the image's own, else /app."""
    user: Text | Annotated[Int, Field(ge=0, lt=65_536)] | None = None
    """Who runs the episode's commands inside: a name of the image's or a number. By default the image's own, else root;
    tests are run by root."""
    env: Mapping[str, Text] = Field(default_factory=dict)
    """The shell's environment beside PATH, HOME, LANG and the image's own; values are templates over `task` and
    `vars`."""
    memory_mb: Annotated[Int, Field(ge=16)] = 4_096
    """Address space of each process."""
    disk_mb: Annotated[Int, Field(ge=1)] = 1_024
    """What the episode may write."""
    most_processes: Annotated[Int, Field(ge=8)] = 256
    """Processes and threads at once."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was run: `code` is its status, None where it gave none, and `why` says why (see `Ran`)."""

    command: str
    code: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """The end of tests: how their command ended, and those of the files asked for that they left."""

    ran: Ran
    files: Mapping[str, bytes]


@dataclass(slots=True)
class Workspace:
    """An opened workspace.

    `log` are the commands so far. `is_cut` is true once a command was ended from outside: what it did is lost.
    """

    folder: Path
    image: Image
    workdir: str
    env: Mapping[str, str]
    limits: MachineLimits
    source: Path | None = None
    """The folder that `workdir` began with."""
    user: Sequence[str] = ROOT
    log: list[Command] = field(default_factory=list)
    is_cut: bool = False
    boots: int = 0
    _machine: Machine | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def layer(self) -> Path:
        """The folder of all changes, as the overlay writes it."""
        return self.folder / "layer"

    @property
    def has_ended(self) -> bool:
        """True where no machine is running."""
        return self._machine is None or self._machine.has_ended

    async def run(self, command: str, timeout_s: float, *, most: int = 65_536) -> Ran:
        """A command in the episode's shell; `most` bytes of its output are kept.

        Raises:
            MachineFailed: the machine does not come up, or was ended from outside; the next call boots it again.
        """
        async with self._lock:
            try:
                if self._machine is not None and self._machine.has_ended:
                    await self._end()
                if self._machine is None:
                    self._machine = await self._of_the_episode()
                if self._machine is None:
                    ran = Ran(None, b"", why="broken")
                else:
                    ran = await self._watched(self._machine, self.layer, command, timeout_s, most)
            except MachineFailed as error:
                self.is_cut |= error.is_cut
                self.log.append(Command(command, None, str(error)))
                await self._end()
                raise
            except asyncio.CancelledError:  # half a command: its shell is of no use any more
                self.log.append(Command(command, None, "late"))
                await self._end()
                raise
            self.log.append(Command(command, ran.code, ran.why))
            if ran.why in ("ended", "cut", "full"):
                await self._end()
            return ran

    async def _of_the_episode(self) -> Machine | None:
        """A boot over the layer; None where that alone is what stands in its way."""
        try:
            return await self._booted(Root([self.image.folder], self.layer, self.image.binds), user=self.user)
        except MachineFailed:
            base = self.folder / f"empty-{self.boots}"
            try:
                root = Root([self.image.folder], self._laid(base, None), self.image.binds)
                machine = await self._booted(root, user=self.user)
                await machine.end()
            finally:
                remove(base)
            return None

    async def _watched(self, machine: Machine, layer: Path, command: str, timeout_s: float, most: int = 65_536) -> Ran:
        """Runs a command, and ends it where what the machine has written grows beyond its limit."""

        def is_full() -> bool:
            return written_to(layer, self.limits.disk_mb * 1_000_000) > self.limits.disk_mb * 1_000_000

        running = asyncio.ensure_future(machine.run(command, timeout_s, most=most))
        try:
            while not (await asyncio.wait((running,), timeout=_WATCH_S))[0]:
                if await _threads.finish(is_full):
                    return Ran(None, b"", why="full")
            ran = running.result()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, MachineFailed):
                await running
        return Ran(ran.code, ran.output, ran.dropped, "full") if await _threads.finish(is_full) else ran

    async def _booted(self, root: Root, *, user: Sequence[str] = ROOT) -> Machine:
        self.boots += 1
        folder = self.folder / f"boot-{self.boots}"
        folder.mkdir()
        own(folder)
        machine = Machine(folder, root, workdir=self.workdir, env=self.env, limits=self.limits, user=user)
        await machine.boot()
        return machine

    async def _end(self) -> None:
        machine, self._machine = self._machine, None  # also where ending it is cancelled
        if machine is not None:
            await machine.end()

    async def freeze(self) -> None:
        """Ends all processes: nothing changes the layer any more."""
        async with self._lock:
            await self._end()

    async def tested(
        self, command: str, *, tests: Path | None, keep: Sequence[str], time_s: float, collect: str = "",
        patch: str = "", over_layer: bool = True, files: Sequence[str] = RESULTS, most: int = 65_536,
    ) -> Verified:  # fmt: skip
        """The end of tests in a machine of their own, over what the episode left or over the image alone.

        The episode's processes are ended first. `/tests` and `/logs` are the tests' own, whatever stands there in the
        layer, and the layer stays as it is.

        Args:
            tests: a folder whose content stands in `/tests`.
            keep: absolute paths of the layer, by default `workdir`; all others are the image's. `/` keeps all.
            collect: a command that is run before, in another machine without the tests; they see what it left there.
            patch: a diff over `workdir` as it was at first: its files stand over what the episode left.
            files: the names of files below `/logs/verifier` that are read; `most` bytes of the output are kept.

        Raises:
            MachineFailed: the machine did not come up, or was ended from outside.
        """
        async with self._lock:
            await self._end()
            self.boots += 1
            base = self.folder / f"tests-{self.boots}"
            base.mkdir()
            own(base)
            below, keep = base / "kept", keep or (self.workdir,)
            kept = partial(self._kept, below, keep, self.layer) if over_layer else partial(self._filled, below)
            try:
                lowers = [await _threads.finish(kept), self.image.folder]
                if collect:
                    upper = await _threads.finish(lambda: self._laid(base / "collect", None))
                    await self._once(lowers, upper, collect, time_s)
                    lowers.insert(0, await _threads.finish(lambda: self._kept(base / "collected", keep, upper)))
                    await _threads.finish(lambda: list(map(unlink_out, lowers[:-1])))
                if patch:
                    lowers.insert(0, await self._patched(base / "patched", patch, time_s))
                upper = await _threads.finish(lambda: self._laid(base, tests))
                ran = await self._once(lowers, upper, command, time_s, most)
                return Verified(ran, await _threads.finish(partial(regular_files, upper / "logs" / "verifier", files)))
            finally:
                await _threads.finish(lambda: remove(base))

    async def _once(self, lowers: Sequence[Path], upper: Path, command: str, time_s: float, most: int = 65_536) -> Ran:
        machine = await self._booted(Root(lowers, upper, self.image.binds))
        try:
            return await self._watched(machine, upper, command, time_s, most)
        finally:
            await machine.end()

    async def _patched(self, base: Path, patch: str, time_s: float) -> Path:
        """The files that a patch changes, alone: it is applied where nothing of the episode's is."""
        below = await _threads.finish(lambda: self._filled(base / "fresh"))
        upper = await _threads.finish(lambda: self._laid(base, None))
        (upper / "tests" / "patch").write_text(patch if patch.endswith("\n") else f"{patch}\n", encoding="utf-8")
        own(upper / "tests" / "patch")
        ran = await self._once([below, self.image.folder], upper, _PATCH, time_s)
        if ran.code != 0:
            said = ran.output.decode(errors="replace").strip()[-_SAID:]
            raise MachineFailed(f"the patch cannot be applied to the untouched image: {said}")
        return upper

    def fill(self) -> None:
        """Makes the layer as it is before the first command."""
        self._filled(self.layer)
        own(self.folder)
        self.folder.chmod(0o755)

    def _filled(self, layer: Path) -> Path:
        target = layer / self.workdir.strip("/")
        layer.mkdir(parents=True, exist_ok=True)
        if self.source or self.image.binds or not os.path.lexists(self.image.folder / self.workdir.strip("/")):
            target.mkdir(parents=True, exist_ok=True)
        if self.source is not None:
            shutil.copytree(self.source, target, symlinks=True, dirs_exist_ok=True)
        for path in (layer, *layer.rglob("*")):
            own(path, self.user if path.is_relative_to(target) and path != layer else ROOT)
        return layer

    def _laid(self, base: Path, tests: Path | None) -> Path:
        upper = base / "upper"
        for name in ("tests", "logs"):
            (upper / name).mkdir(parents=True)
            os.setxattr(upper / name, "user.overlay.opaque", b"y")  # hides what lies below, a link of that name too
        (upper / "logs" / "verifier").mkdir()
        if tests is not None:
            shutil.copytree(tests, upper / "tests", symlinks=True, dirs_exist_ok=True)
        for path in (base, upper, *upper.rglob("*")):
            own(path)
        return upper

    def _kept(self, target: Path, keep: Sequence[str], layer: Path) -> Path:
        """The part of a layer that is kept: a copy of it, in which no link leads out."""
        if any(PurePosixPath(one) == PurePosixPath("/") for one in keep):
            return layer
        target.mkdir()
        own(target)
        for one in keep:
            source, copy = layer, target
            for part in PurePosixPath(one).parts[1:]:
                if source.is_symlink() or not source.is_dir() or part == "..":  # a link on the way keeps nothing
                    source = self.folder / "nothing"
                    break
                if not os.path.lexists(copy):
                    copy.mkdir()
                    like(source, copy)
                source, copy = source / part, copy / part
            if os.path.lexists(source) and not os.path.lexists(copy):
                argv = ["cp", "--archive", "--link", "--no-target-directory", str(source), str(copy)]
                subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True)
        return target

    async def aclose(self) -> None:
        """Ends all processes and removes the folder."""
        try:
            await self._end()
        finally:
            await _threads.finish(lambda: remove(self.folder))


@lru_cache(maxsize=1)
def _swept_once() -> None:
    swept()


def swept() -> None:
    """Removes the machines' folders of processes that were killed."""
    mine = (os.geteuid(), OUTSIDE_ROOT if os.geteuid() == 0 else os.geteuid())
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        found = re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)-.*", path.name)
        if found is not None and found[2] != _begun(int(found[1])) and path.lstat().st_uid in mine:
            remove(path)


def _begun(pid: int) -> str:
    """When a process began, in ticks of the system since its start; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class WorkspaceResource:
    """A compiled `workspace` entry."""

    template_attributes: ClassVar[tuple[str, ...]] = ()
    scope: Literal["episode", "process"] = "episode"

    def __init__(self, name: str, spec: WorkspaceSpec, context: CompileContext) -> None:
        self.name = name
        self.spec = spec
        self._context = context
        self._paths = {
            key: path_template(key, value, scope="episode")
            for key in ("image", "copy_from") if (value := getattr(spec, key)) is not None
        }  # fmt: skip
        self._images: dict[Path | str | None, Image] = {}
        self._env: dict[str, Template] = {
            key: template_of(value, key=f"env.{key}", names=("task", "vars")) for key, value in spec.env.items()
        }

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Workspace]:
        """The workspace for as long as it is entered; nothing of it is left then.

        Raises:
            ResourceError: its image or what it starts with is not there.
        """
        values: dict[str, Any] = {"task": context.task, "vars": context.vars}
        spec = self.spec
        try:
            await _threads.finish(_swept_once)
            copied = self.source("copy_from", context.task, context.vars)
            source = self.source("image", context.task, context.vars)
            image = await _threads.finish(lambda: self._image(source))
            files = Path("/") if image.binds else image.folder
            user = ROOT if os.geteuid() else user_in(files, str(spec.user or image.user or 0))
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_begun(os.getpid())}-"))
        except (TemplateError, RefusedPath, OSError) as error:
            raise ResourceError(f"the machine '{self.name}' cannot be made: {error}") from error
        limits = MachineLimits(spec.most_processes, spec.memory_mb, spec.disk_mb)
        env = {**image.env, **{key: one.text(**values) for key, one in self._env.items()}}
        workdir = spec.workdir or image.workdir or _WORKDIR
        workspace = Workspace(folder, image, workdir, env, limits, Path(copied) if copied else None, user)
        try:
            try:
                await _threads.finish(workspace.fill)
            except (OSError, shutil.Error) as error:
                raise ResourceError(f"the machine '{self.name}' cannot be filled: {error}") from error
            yield workspace
        finally:
            closing = asyncio.ensure_future(workspace.aclose())
            while not closing.done():  # to its end, whoever is cancelled meanwhile: nothing may be left behind
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((closing,))
            closing.result()

    def source(self, key: str, task: Mapping[str, Any], vars: Mapping[str, Any]) -> Path | str | None:
        """The path that stands under `key` for a row, or the image's name in podman's store.

        Raises:
            TemplateError, RefusedPath: the row does not fill it in, or names what it may not.
        """
        if (template := self._paths.get(key)) is None:
            return None
        text = template.text(task=task, vars=vars)
        return text if text.startswith(ENGINE) else self._context.finder(key, template, vars=vars)(text)

    def check_row(self, task: Mapping[str, Any], vars: Mapping[str, Any]) -> None:
        """Looks whether the image of a row is on this machine, where it has to be pulled or built.

        Raises:
            UsageError: it is not.
        """
        with contextlib.suppress(TemplateError, RefusedPath, ResourceError, OSError):  # the episode says so
            source = self.source("image", task, vars)
            if isinstance(source, str) or (source is not None and (source / "Dockerfile").is_file()):
                self._image(source)

    def _image(self, source: Path | str | None) -> Image:
        """The image of a source, looked at once: it is not to change while a run goes on."""
        if (found := self._images.get(source)) is None:
            found = self._images[source] = prepared(source)
        return found


def compile_workspace(name: str, spec: WorkspaceSpec, context: CompileContext) -> WorkspaceResource:
    """The resource of one entry.

    Raises:
        UsageError: a template is wrong, or bubblewrap does not work here.
    """
    if spec.scope != "episode":
        raise UsageError("a machine is an episode's own", key="scope", hint="leave it out")
    if os.geteuid() and str(spec.user or 0) not in ("0", "root"):
        raise UsageError("only root can start a machine whose commands another user runs", key="user")
    check_bubblewrap()
    UNSEEN.add(str(context.base.resolve()))
    return WorkspaceResource(name, spec, context)


KIND = Kind(WorkspaceSpec, compile_workspace, sandbox)
