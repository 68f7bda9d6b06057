"""Folders that programs of the policy's have written: what they changed, and as a tar. No link in one is followed."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rlenv._base.bounded import cut_end
from rlenv._base.paths import remove, run_on, walked
from rlenv.concurrency.lanes import Event, here, said_again
from rlenv.concurrency.threads import ThreadPool
from rlenv.errors import ResourceError, told_as
from rlenv.tools._bubblewrap import bwrap_path
from rlenv.tools._process import is_disk_full
from rlenv.tools.workspace import starters
from rlenv.tools.workspace.images import MOST_READ, OPAQUE, MachineImage, extract_tar, read_in

_threads: Final = ThreadPool(size=8)
GIVEN: Final = ("/logs", "/logs/artifacts")  # folders that each machine has at first; the last is the user's own
_LEAST, _SAID = 1_024, 300  # bytes that a file counts for; characters of what a program says
_DEEPEST: Final = 4_000  # bytes of a path that the kernel takes, nearly
_MOST_FOLDERS: Final = 200  # in each other in a copy: each path is found anew, so that depth costs its square
_MOST_LOOKS, _MOST_LINKS = 100_000, 40
_HIDDEN: Final = (["tests"], ["logs", "verifier"], ["proc"], ["dev"])  # what only tests hold, and what leads there
_MOST_PACKED: Final = 100_000_000
_MOST_WALKED, _MOST_CHANGED, _MOST_HASHED = 20_000, 500, 100_000_000  # files looked at, listed; bytes of them read
_MOST_DIFFED, _MOST_DIFF, _MOST_DIFFS = 256_000, 8_000, 64_000  # bytes of a file; characters of its diff, of all
_COUNT: Final = rf"""find "$1" -printf '%n%y %i %b\n' 2>/dev/null | awk -v most="$2" '
$1 !~ /^1.$|d$/ && seen[$2]++ {{next}}  # another name of a file
{{size += $3 < 2 ? {_LEAST} : $3 * 512}}
size > most {{exit}}
END {{printf "%.0f", size}}'"""
_UNPACKABLE: Final = (OSError, ValueError, RecursionError, tarfile.TarError)  # of `pack_layer` and `unpack_layer`


def lay_tests(base: Path, tests: Path | None) -> Path:
    """A layer for tests, with their folder in it: `/tests` and `/logs` are their own, whatever lies below."""
    upper = base / "upper"
    for name in ("tests", "logs"):
        (upper / name).mkdir(parents=True)
        os.setxattr(upper / name, OPAQUE, b"y")  # hides what lies below, a link of that name too
    (upper / "logs" / "verifier").mkdir()
    if tests is not None:
        shutil.copytree(tests, upper / "tests", symlinks=True, dirs_exist_ok=True)
    for path in (base, upper, *upper.rglob("*")):
        starters.chown(path)
    return upper


def unlink_hidden(lowers: Sequence[Path], binds: Sequence[str], aside: Path) -> None:
    """Moves what leads to what tests hold out of the layers over an image: links, and what is too deep to be looked at.

    No link is followed here, and what is looked at is bounded: beyond it all links are moved. What a link names is
    looked for in `lowers`, in the first one first, and what is of `binds` in the host's files. `aside` is a new folder.
    """
    looks, folders, made = iter(range(_MOST_LOOKS)), [*map(str, lowers)], count()
    aside.mkdir()
    for folder, (path, status) in ((one, pair) for one in lowers[:-1] for pair in walked(one)):
        if len(os.fsencode(f"{folder}{path}")) > _DEEPEST or getattr(status, "errno", 0) == errno.ENAMETOOLONG:
            _move_path(f"{folder}{path}", aside / str(next(made)))
        elif isinstance(status, OSError):
            raise status
        elif stat.S_ISLNK(status.st_mode) and _is_hidden(path.split("/")[1:], folders, binds, looks):
            _move_path(f"{folder}{path}", aside / str(next(made)))


def _move_path(path: str, to: Path) -> None:
    """Moves a file or folder, out of a closed folder too: who is not root is held by the modes of its own folders."""
    place, _, name = path.rpartition("/")
    at = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mode = stat.S_IMODE(os.fstat(at).st_mode)
        os.fchmod(at, mode | stat.S_IRWXU)
        if stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode):
            os.chmod(name, stat.S_IRWXU, dir_fd=at)
        os.rename(name, to, src_dir_fd=at)
        os.fchmod(at, mode)
    finally:
        os.close(at)


def _is_hidden(link: Sequence[str], lowers: Sequence[str], binds: Sequence[str], looks: Iterator[int]) -> bool:
    """True where a link leads to what tests hold, or what it names can be looked at no more."""
    path, rest, links = [*link[:-1]], [*link[-1:]], 0
    while rest:
        if (part := rest.pop()) == "/":
            path = []
        elif part == "..":
            path = path[:-1]
        elif part not in ("", "."):
            path.append(part)
            if next(looks, None) is None or any(path[: len(one)] == one for one in _HIDDEN):
                return True
            if to := _link_target(path, [*lowers, *(["/"] if f"/{path[0]}" in binds else ())]):
                links, path = links + 1, path[:-1]
                rest += ["/" if to.startswith("/") else "", *to.split("/")][::-1]
            if links > _MOST_LINKS:
                return False  # the kernel follows no more
    return path in ([], ["logs"])


def _link_target(path: Sequence[str], lowers: Sequence[str]) -> str:
    """The target of a link, "" of anything else; what is not there may be when the tests run."""
    for lower in lowers:
        with contextlib.suppress(OSError):
            at = os.path.join(lower, *path)
            return os.readlink(at) if stat.S_ISLNK(os.lstat(at).st_mode) else ""
    return ""


def written_to(folder: Path, most: int, *, looks: int = sys.maxsize) -> int:
    """Bytes below a folder, each file and folder with what it takes at least; beyond `most` it is not exact.

    What lies too deep for a path, and more files and folders than `looks` or room for them, count as beyond it; where
    `looks` are given, what cannot be looked at does too.
    """
    size, seen, at_once, odd = 0, set[int](), min(looks, _MOST_WALKED), OSError if looks < sys.maxsize else ()
    for _, status in chain([("", folder.lstat())], walked(folder, at_once=at_once)):
        if isinstance(status, os.stat_result):
            is_folder = stat.S_ISDIR(status.st_mode)
            looks -= 1 + is_folder * (status.st_size >> 13)
            if status.st_ino not in seen:
                size += max(status.st_blocks * 512, _LEAST)
            if status.st_nlink > 1 and not is_folder:
                seen.add(status.st_ino)
        if looks < 0 or size > most or getattr(status, "errno", 0) == errno.ENAMETOOLONG or isinstance(status, odd):
            return most + 1
    return size


def is_beyond(folder: Path, most: int) -> bool:
    """True where a folder has more than `most` bytes, as `written_to` counts them, closed folders too.

    Programs count: a walk over many files here would keep the other threads waiting.
    """
    inside = ["unshare", "--map-root-user"] if os.geteuid() else []  # who is root inside enters what is closed here
    size = int(run_on(*inside, "sh", "-c", _COUNT, "sh", str(folder), str(most)).stdout or 0)
    return size > most if size else written_to(folder, most) > most  # a `find` that cannot tell sizes


def copy_kept(target: Path, keep: Sequence[str], layer: Path, exclude: Sequence[str] = ()) -> Path:
    """What is kept of a layer, as a copy; the layer itself where that is all of it, with nothing to take out."""
    kept = _as_parts(keep)

    def is_out(copy: str) -> bool:
        path = copy.removeprefix(str(target))
        is_in = any(f"{path}/".startswith(f"{one}/") for one in kept)
        if not is_in and any(one.startswith(f"{path}/") for one in kept):
            is_in = stat.S_ISDIR(os.lstat(f"{layer}{path}").st_mode)  # a link on the way keeps nothing
        return not is_in or any(fnmatchcase(path, one) for one in exclude)

    if os.geteuid() != 0:  # inside, where the policy is root, nothing is closed
        run_on("chmod", "-R", "u+rX", str(layer))
    if "" in kept and not exclude:
        odd = (isinstance(status, OSError) or stat.S_ISLNK(status.st_mode) or 2 * len(path) >= _DEEPEST
               for path, status in walked(layer))  # fmt: skip
        if not any(odd):
            return layer
    copy_tree(layer, target, is_out)
    return target


def take_out(folder: Path, keep: Sequence[str]) -> Path:
    """Removes what is kept of a layer from a folder that holds the layer as it is at first; no link is followed."""
    for at in (f"{os.path.realpath(folder)}{one}" for one in _as_parts(keep)):
        if os.path.dirname(at) == os.path.realpath(os.path.dirname(at)):  # without a link or ".." on the way
            remove(at)
    return folder


def is_part(path: str, keep: Sequence[str]) -> bool:
    """True where not all below a path is kept."""
    return not any(f"{path}/".startswith(f"{one}/") for one in _as_parts(keep))


def _as_parts(keep: Sequence[str]) -> list[str]:
    return ["".join(f"/{part}" for part in PurePosixPath(one).parts[1:]) for one in keep]


def copy_marks(source: Path, copy: Path) -> None:
    """The owner, mode and marks of a file or folder of the layer, for its copy."""
    shutil.copystat(source, copy, follow_symlinks=False)
    status = os.lstat(source)
    with contextlib.suppress(PermissionError):
        os.chown(copy, status.st_uid, status.st_gid, follow_symlinks=False)


def copy_tree(source: Path, copy: Path, is_out: Callable[[str], bool] = lambda _: False) -> None:
    """Copies a tree of the policy's with the same files, none that `is_out` by its copy; no link is followed.

    What lies below 200 folders or too deep for a path is left out, so that time is linear in the tree's files.

    Raises:
        OSError: this machine's disk, memory or files are used up: nothing may be scored without what is missing.
    """
    rest, made = [(os.fspath(source), os.fspath(copy), 0)], list[tuple[str, str]]()
    while rest:
        at, to, depth = rest.pop()
        with _skip_policy_faults():
            if not stat.S_ISDIR(os.lstat(at).st_mode):
                os.link(at, to, follow_symlinks=False)
            elif depth <= _MOST_FOLDERS and len(os.fsencode(to)) < _DEEPEST:
                os.mkdir(to)
                made.append((at, to))
                inner = ((os.path.join(at, name), os.path.join(to, name), depth + 1) for name in os.listdir(at))
                rest += (one for one in inner if not is_out(one[1]))
    for at, to in reversed(made):  # a folder's time changes with what is put into it, and it may be closed
        with _skip_policy_faults():
            copy_marks(Path(at), Path(to))


@contextlib.contextmanager
def _skip_policy_faults() -> Iterator[None]:
    """Leaves out what the policy's files are such that they cannot be copied; a fault of this machine's is raised."""
    try:
        yield
    except OSError as error:
        if error.errno in starters.OF_THIS_MACHINE:
            raise


def duplicate(source: Path, copy: Path, *, is_live: bool = False, user: Sequence[str] = ()) -> str:
    """Copies what is in a folder into another, as it is, with second names and holes; what was in its way, or "".

    Where it `is_live`, no link leads `cp` out. A `user` inside gets the copies, and has `copy` already.

    Raises:
        OSError: this machine's disk, memory or files are used up.
    """
    argv = ["env", "LC_ALL=C", "cp", "-a", "--remove-destination", f"{source}/.", str(copy)]
    if user and os.geteuid() == 0:
        argv = [*starters.user_argv(user), *argv[:-2], "--no-preserve=ownership", *argv[-2:]]
    if is_live:
        jail = [word for one in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", one, one)]
        jail += ["--ro-bind", str(source), str(source), "--bind", str(copy), str(copy), "--cap-add", "CAP_DAC_OVERRIDE"]
        argv = [bwrap_path(), "--die-with-parent", "--new-session", *jail, *argv]
    ran = run_on(*argv)
    for number in starters.OF_THIS_MACHINE:
        is_said = any(line.endswith(f": {os.strerror(number)}".encode()) for line in ran.stderr.splitlines())
        if is_said and (number != errno.ENOSPC or is_disk_full(copy)):  # a file's marks may have no room in another
            raise OSError(number, os.strerror(number))
    return ran.stderr.decode(errors="replace")[:_SAID] or f"status {ran.returncode}" if ran.returncode else ""


def publish(layer: Path, upper: Path) -> None:
    """Copies what an episode has put into `/logs/artifacts` to where tests see it; no link is followed."""
    source, copy = layer / "logs" / "artifacts", upper / "logs" / "artifacts"
    if source.is_dir() and not source.is_symlink() and not source.parent.is_symlink():
        copy.mkdir()
        duplicate(source, copy)


def compare(
    layer: Path, originals: Sequence[tuple[str, Path]], *, since: int = 0, shows: bool = False
) -> list[dict[str, Any]]:
    """The files of a layer that are others than those that the machine began with, by path; bounded.

    Each has `path`, `kind` (`file`, `link`, `folder`, `gone`, `other`) and where it is a file `size` and `sha256` (""
    beyond the bound). The last is of the kind `more` where not all were looked at.

    Args:
        originals: folders that the machine began with and their places in it; the first that has a file counts.
        since: files that were last touched before, in nanoseconds since the epoch, are as they were.
        shows: add `diff` to text files.
    """
    found: list[dict[str, Any]] = []
    read = told = 0
    for number, (path, status) in enumerate(walked(layer)):
        if number >= _MOST_WALKED or len(found) >= _MOST_CHANGED:
            return [*found, {"path": "", "kind": "more"}]
        if isinstance(status, OSError):
            found.append({"path": path, "kind": "other"})
        elif stat.S_ISDIR(status.st_mode):
            if path not in GIVEN and _original_content(path, originals, stat.S_ISDIR) is None:
                found.append({"path": path, "kind": "folder"})
        elif not stat.S_ISREG(status.st_mode):
            is_gone = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
            kind = "link" if stat.S_ISLNK(status.st_mode) else "gone" if is_gone else "other"
            found.append({"path": path, "kind": kind})
        elif status.st_ctime_ns > since:
            one: dict[str, Any] = {"path": path, "kind": "file", "size": status.st_size, "sha256": ""}
            read += status.st_size
            if status.st_size < MOST_READ and read <= _MOST_HASHED:
                data = read_in(layer, path[1:]) or b""
                was = _original_content(path, originals, stat.S_ISREG)
                if was == data:
                    continue
                one["sha256"] = hashlib.sha256(data).hexdigest()
                if shows and told < _MOST_DIFFS:
                    one["diff"] = _diff_text(was or b"", data, f"{layer}{path}")
                    told += len(one["diff"])
            found.append(one)
    for place, folder in originals[:-1]:  # the last is the image, over which the layer says itself what is gone
        for path, _ in zip((f"{place}{path}" for path, _ in walked(folder)), range(_MOST_WALKED), strict=False):
            if not os.path.lexists(f"{layer}{path}"):
                found.append({"path": path, "kind": "gone"})
    return sorted(found[:_MOST_CHANGED], key=lambda one: str(one["path"]))


def _original_content(path: str, originals: Sequence[tuple[str, Path]], is_such: Callable[[int], bool]) -> bytes | None:
    """The content of what stood at a path, b"" of a folder; None where nothing of that kind did."""
    for place, folder in originals:
        if path.startswith(f"{place}/") and (found := read_in(folder, path[len(place) + 1 :], is_such)) is not None:
            return found
    return None


def _diff_text(was: bytes, now: bytes, file: str) -> str:
    if max(len(was), len(now)) <= _MOST_DIFFED and shutil.which("diff"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            argv = ["diff", "-u", "--label", "before", "--label", "after", "-", file]
            ran = subprocess.run(argv, input=was, capture_output=True, check=False, timeout=5)
            return cut_end(ran.stdout[: 4 * _MOST_DIFF].decode(errors="replace"), _MOST_DIFF)
    return ""


def pack_layer(layer: Path, most: int) -> bytes:
    """A layer as a tar, packed by gzip, with owners as inside.

    Raises:
        ValueError: its files have more than `most` bytes, or the tar is too large to be kept.
        OSError: it cannot be read.
    """
    size, into, base = 0, io.BytesIO(), starters.root_outside()

    def keep_member(info: tarfile.TarInfo) -> tarfile.TarInfo:
        nonlocal size
        size += info.size
        if size > most or into.tell() > _MOST_PACKED:
            raise ValueError("the files of the machine are too large to be kept")
        info.uid, info.gid, info.uname, info.gname = max(info.uid - base, 0), max(info.gid - base, 0), "", ""
        if info.isdir() and OPAQUE in os.listxattr(layer / info.name, follow_symlinks=False):
            info.pax_headers = {OPAQUE: "y"}
        return info

    with tarfile.open(fileobj=into, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as tar:
        tar.add(layer, ".", filter=keep_member)
    return into.getvalue()


def unpack_layer(data: bytes, layer: Path, most: int) -> None:
    """Puts a packed layer into an empty folder (see `extract_tar`)."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        extract_tar(tar, layer, most=most)


@dataclass(slots=True)
class LayerFiles:
    """A machine's files once the episode has ended: told, kept, and put back."""

    folder: Path
    image: MachineImage
    workdir: str
    env: Mapping[str, str]
    limits: starters.MachineLimits
    source: Path | None = None
    """The folder that it began with."""
    user: Sequence[str] = starters.ROOT
    tests_image: MachineImage | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """What rewards note while the episode goes on, as JSON; `again` is there where it was put back."""
    filled: int = 0
    """When it was as at first, in nanoseconds since the epoch; 0 where it never was."""
    changed: Sequence[Mapping[str, Any]] | None = None
    """The files that the episode has changed (see `compare`), once it has ended."""
    is_cut: bool = False
    """True once a command was ended from outside, or the disk of this computer was full: what it did is lost."""
    is_put_back: bool = False
    """True where what an earlier episode left has been put in the place of the layer."""
    copies: int = 0
    """How often processes lived on beside a copy of it."""

    @property
    def layer(self) -> Path:
        """The folder of all changes, as the overlay writes it; a copy where processes still change the first one."""
        return self.folder / f"layer-{self.copies}"

    @property
    def at_first(self) -> tuple[Any, ...]:
        """All that it holds and is where no command was run."""
        images, env = (self.image, self.tests_image), sorted(self.env.items())
        return (*images, self.source, self.workdir, env, tuple(self.user), self.limits)

    def boot_settings(self, lowest: Path) -> tuple[str, Mapping[str, str]]:
        """Where a boot over an image begins, and its variables: the tests' own image has its own."""
        own = self.tests_image
        if own is None or lowest != own.folder or lowest == self.image.folder:
            return self.workdir, self.env
        env = {key: one for key, one in self.env.items() if self.image.env.get(key) != one}
        return own.workdir or self.workdir, {**env, **own.env}

    async def pack(self) -> Any:
        """What a tape is to hold of it, as JSON."""
        data = await _threads.finish(lambda: pack_layer(self.layer, self.limits.disk_mb * 1_000_000))
        held = {"mime": "application/gzip", "base64": base64.b64encode(data).decode()}
        return {"layer": held, "is_cut": self.is_cut, "live": self.copies, "notes": json.loads(json.dumps(self.notes))}

    async def tape_layer(self, name: str) -> bool:
        """Keeps what it holds on a tape that is to hold all, or puts back what such a tape has; else False.

        Raises:
            CassetteError: the tape has it not.
        """
        if (lane := here()) is None or not lane.tape.wants_local:
            return False
        lane = replace(lane, place=f"machine {name}")
        event = lane.tape.look(lane, Event(kind="layer", name=name, request=name, is_local=True))
        if event.outcome:
            held = said_again(event, lambda event: event.response)
            await self.put_back({**held, "notes": {}})
            return True
        try:
            event = event.ended("ok", await self.pack())
        except _UNPACKABLE as error:
            event = event.ended("refused", reason=str(error))
        lane.tape.keep(lane, event)
        return True

    async def put_back(self, held: Any) -> None:
        """Puts what a tape holds of a machine in the place of this one's layer.

        Raises:
            ResourceError: it is no layer, or cannot be written.
        """
        with told_as(ResourceError, "what the machine held cannot be put back:", *_UNPACKABLE, KeyError, TypeError):
            data, self.copies = base64.b64decode(held["layer"]["base64"], validate=True), int(held.get("live", 0))
            self.is_cut = bool(held["is_cut"])
            await _threads.finish(lambda: remove(self.layer))
            self.layer.mkdir()
            await _threads.finish(lambda: unpack_layer(data, self.layer, self.limits.disk_mb * 1_000_000))
        if notes := held.get("notes"):
            self.notes.update(notes, again=0)
        self.filled, self.is_put_back = 0, True
