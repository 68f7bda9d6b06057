"""Images: the folders that machines are booted over, as this machine's user can use them.

What a spec names is unpacked into the user's cache folder once, and noted there with its digest and its settings. A
run reads the note; only `rlenv validate --images` pulls and builds.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import fcntl
import hashlib
import io
import json
import os
import re
import resource
import secrets
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rlenv._base.paths import draft_of
from rlenv.errors import ResourceError, UsageError
from rlenv.tools.workspace.starters import USERS, chown, root_outside

ENGINE: Final = "podman:"
"""What stands before the name of an image in the store of podman, or of docker where podman is missing."""
_MOST_SAID: Final = 600
MOST_READ: Final = 16_000_000
"""Bytes of a file that are read."""
_BINDS: Final = ("/usr", "/etc", "/opt")
_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS: Final = ("app", "home", "mnt", "proc", "dev", "root", "run", "srv", "sys", "tmp", "var/tmp", "var/log")
OPAQUE: Final = "user.overlay.opaque"
_NUMBER: Final = re.compile(r"[0-9]{1,10}")  # of a user or a group
# `_extract_member` looks first; Python has filters from 3.11.4 on.
_AS_IT_IS: Final[Mapping[str, Any]] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


@dataclass(frozen=True, slots=True)
class MachineImage:
    """A read-only folder; `binds` are folders of this machine that stand in it, read-only.

    `digest` is one of its files by name, mode and content, "" for this machine's own. `workdir`, `user` and `env` are
    the settings of an image that has some.
    """

    folder: Path
    binds: Sequence[str] = ()
    digest: str = ""
    workdir: str = ""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def prepare_image(source: Path | str | None, *, fetches: bool = False) -> MachineImage:
    """The image of a folder, a .tar file or a name of podman's; None gives one with this machine's own programs.

    A folder with a `Dockerfile` is one to build. As root the files inside have owners of their own outside, so that an
    image is copied into the cache; another user's folder is one that this user has unpacked, and is taken as it is.
    Blocks.

    Args:
        fetches: it may be pulled and built.

    Raises:
        UsageError: it has to be pulled or built first.
        ResourceError: it cannot be read or unpacked.
    """
    try:
        if source is None:
            return MachineImage(_cached_folder("host", _fill_host), tuple(one for one in _BINDS if Path(one).is_dir()))
        if isinstance(source, str) and source.startswith(ENGINE):
            return _engine_image(source, source.removeprefix(ENGINE), None, fetches=fetches)
        found = Path(source).resolve(strict=True)
        if (found / "Dockerfile").is_file():
            key = f"build\0{digest_of(found)}"
            return _engine_image(key, f"rlenv-{_note_name(key)}", found, fetches=fetches)
        status, is_folder = found.stat(), found.is_dir()
        now = digest_of(found, is_quick=True) if is_folder else f"{status.st_size}\0{status.st_mtime_ns}"
        if (noted := _read_note(name := _note_name(f"{found}\0{now}"))) is not None:
            return noted
        is_own = is_folder and status.st_uid == root_outside()
        return _write_note(name, found if is_own else _cached_folder(name, lambda target: _copy(found, target)))
    except (OSError, ValueError, KeyError, tarfile.TarError, shutil.Error) as error:
        raise ResourceError(f"the image '{source}' cannot be used: {error}") from error


def digest_of_image(source: Path | str, *, say: object = None) -> str:
    """The digest of an image as it is on this machine: of its files by name, mode and content, or of a .tar; `say` is
    not used. "unreadable" where it is not here."""
    with contextlib.suppress(UsageError, ResourceError, OSError):
        if isinstance(source, str) or (source / "Dockerfile").is_file():
            return prepare_image(source).digest
        if source.is_dir():
            return digest_of(source)
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return "unreadable"


def user_in(image: Path, user: str) -> tuple[str, str, str, str]:
    """The number, the group, the name ("" for none) and the home of a user of an image: `NAME`, `7` or `NAME:GROUP`.

    Raises:
        ResourceError: the image has no user or group of that name.
    """
    name, _, group = user.partition(":")
    name = "0" if name == "root" else name
    users = (one for one in _account_lines(image, "passwd") if len(one) > 5 and all(map(_NUMBER.fullmatch, one[2:4])))
    known = next((one for one in users if name in (one[0], one[2])), None)
    if group and not _NUMBER.fullmatch(group):
        group = next((one[2] for one in _account_lines(image, "group") if len(one) > 2 and one[0] == group), "?")
    if (group and not _NUMBER.fullmatch(group)) or (known is None and not _NUMBER.fullmatch(name)):
        raise ResourceError(f"the image has no user '{user}'")
    if known is None:
        return name, group or "0", "", "/" if int(name) else "/root"
    return known[2], group or known[3], known[0], known[5]


def _account_lines(image: Path, name: str) -> list[list[str]]:
    text = (read_in(image, f"etc/{name}") or b"").decode(errors="replace")
    return [line.split(":") for line in text.split("\n")]


def read_in(folder: Path, path: str, is_such: Callable[[int], bool] = stat.S_ISREG) -> bytes | None:
    """The content of a regular file below a folder, b"" of a folder; None where nothing of that kind is there.

    No link on the way is followed, and nothing waits for a pipe.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in path.split("/"):
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
            os.close(place)
            place = inner
        mode = os.fstat(place).st_mode
        with os.fdopen(os.dup(place), "rb") if stat.S_ISREG(mode) else io.BytesIO() as file:
            return file.read(MOST_READ) if is_such(mode) else None
    except OSError:
        return None
    finally:
        os.close(place)


def _engine_image(key: str, name: str, context: Path | None, *, fetches: bool) -> MachineImage:
    """An image that podman or docker pulls, or builds from `context`, by the note of the last time."""
    note = _note_name(key)
    if not fetches:
        if (noted := _read_note(note)) is not None:
            return noted
        what = f"the image '{name}'" if context is None else f"'{'/'.join(context.parts[-2:])}'"
        what += f" has not been {'built' if context else 'fetched'} on this machine"
        raise UsageError(what, hint="fetch and build what the spec names: rlenv images SPEC")
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        raise UsageError(f"'{name}' needs the program podman", hint="install it: apt-get install podman")
    if context is not None:
        _run_engine(*_built_by(engine), "--tag", name, str(context))
    elif not _run_engine(engine, "images", "--quiet", name):
        _run_engine(engine, "pull", name)
    found = _run_engine(engine, "image", "inspect", "--format", "{{.Id}} {{json .Config}}", name)
    id, _, config = found.removeprefix("sha256:").partition(" ")
    if (noted := _read_note(note)) is not None and noted.folder.name.startswith(id[:32]):
        return noted
    with tempfile.TemporaryDirectory(dir=_cache_folder()) as folder:
        saved, made = Path(folder) / "image.tar", _run_engine(engine, "create", "--network", "none", name, "true")
        try:
            _run_engine(engine, "export", "--output", str(saved), made)
        finally:
            _run_engine(engine, "rm", made)
        return _write_note(note, _cached_folder(id[:32], lambda target: _copy(saved, target)), json.loads(config) or {})


def _built_by(engine: str) -> list[str]:
    """The start of a build. Podman's first choice of a runtime, crun, starts less, it asks for more open files than
    this process may have, and its own format leaves out SHELL."""
    if not engine.endswith("podman"):
        return [engine, "build"]
    runtime, (soft, hard) = shutil.which("runc"), resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ("build", "--format", "docker", "--ulimit", f"nofile={soft}:{hard}")
    return [engine, *(("--runtime", runtime) if runtime else ()), *words]


def _run_engine(*argv: str) -> str:
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_MOST_SAID:]
        raise ResourceError(f"`{' '.join(argv)}` failed: {said}")
    return done.stdout.strip()


def _note_name(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]


def _read_note(name: str) -> MachineImage | None:
    """The image of a note; None where there is none, or its folder has gone."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        held = json.loads((_cache_folder() / f"{name}-{os.geteuid()}.json").read_text(encoding="utf-8"))
        image = MachineImage(**{**held, "folder": Path(held["folder"]), "binds": ()})
        return image if image.folder.is_dir() else None
    return None


def _write_note(name: str, folder: Path, config: Mapping[str, Any] = MappingProxyType({})) -> MachineImage:
    env = dict(one.partition("=")[::2] for one in config.get("Env") or ())
    workdir, user = config.get("WorkingDir") or "", config.get("User") or ""
    image = MachineImage(folder, (), digest_of(folder), workdir, user, env)
    with draft_of(_cache_folder() / f"{name}-{os.geteuid()}.json", mark=secrets.token_hex(8)) as draft:
        draft.write_text(json.dumps(asdict(image), default=str), encoding="utf-8")
    return image


def digest_of(folder: Path, *, is_quick: bool = False) -> str:
    """SHA-256 over a folder's files by name, mode and content, or size and last change; no link is followed."""
    digest = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for path in (os.path.join(place, name) for name in sorted((*files, *folders))):
            status, content = os.lstat(path), b""
            if is_quick:
                content = b"%d %d" % (status.st_size, status.st_mtime_ns)
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(os.fsencode(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            name = os.fsencode(os.path.relpath(path, folder))
            digest.update(b"%s\0%o\0%s\n" % (name, status.st_mode, content))
    return digest.hexdigest()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_special_files)
        for path in (target, *target.rglob("*")):
            status = os.lstat(source / path.relative_to(target))
            chown(path, (status.st_uid, status.st_gid))
        return
    with tarfile.open(source) as tar:
        extract_tar(tar, target)


def extract_tar(tar: tarfile.TarFile, folder: Path, *, most: int = sys.maxsize) -> None:
    """Unpacks a tar, which may be anybody's, with its owners as inside: nothing of it leads out of the folder.

    Devices are left out but for the one by which a layer says that a file is gone.

    Raises:
        ValueError, OSError, tarfile.TarError: it is none, has more than `most` bytes, or leads out.
    """
    size = 0
    for info in tar:
        size += info.size
        if size > most:
            raise ValueError("the files of the machine are too large")
        if info.name in ("manifest.json", "oci-layout"):
            raise ValueError(f"it is an archive of layers: `podman load -i {tar.name!s}`, then name podman:NAME")
        if not info.isdev() or info.isfifo() or (info.ischr(), info.devmajor, info.devminor) == (True, 0, 0):
            # A second name of a file has what the first has, and nothing can be put into a closed folder.
            _extract_member(tar, info, folder, is_whole=not (info.islnk() or info.isdir()))
    for info in filter(tarfile.TarInfo.isdir, tar.getmembers()):
        _extract_member(tar, info, folder, is_whole=True)


def _extract_member(tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path, *, is_whole: bool) -> None:
    """Unpacks a member of a tar, with its owner, mode and time where it `is_whole`; links before it are followed."""
    made = copy.copy(info)
    made.name = info.name.lstrip("/")
    made.uid, made.gid = root_outside() + info.uid % USERS, root_outside() + info.gid % USERS
    for one in (made.name, info.linkname) if info.islnk() else (made.name,):
        if not f"{os.path.realpath(folder / one)}/".startswith(f"{os.path.realpath(folder)}/"):
            raise ValueError(f"'{info.name}' in it leads out of it")
    tar.extract(made, folder, set_attrs=is_whole, numeric_owner=True, **_AS_IT_IS)
    if is_whole and OPAQUE in info.pax_headers:
        os.setxattr(folder / made.name, OPAQUE, b"y", follow_symlinks=False)


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Devices, pipes and sockets, which no image needs: a machine has its own."""
    modes = {name: stat.S_IFMT(os.lstat(os.path.join(folder, name)).st_mode) for name in names}
    return [name for name, mode in modes.items() if mode not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)]


def _fill_host(target: Path) -> None:
    for name in (*_FOLDERS, *(one.strip("/") for one in _BINDS)):
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    for name in _LINKS:
        if (link := Path("/", name)).is_symlink():
            (target / name).symlink_to(os.readlink(link))
    for path in target.rglob("*"):
        chown(path)


def _cache_folder() -> Path:
    # Who is root inside is somebody else outside, and root's home is closed to others.
    home = "/var/cache" if os.geteuid() == 0 else Path.home() / ".cache"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home) / "rlenv" / "images"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by the first who asks, whole or not at all."""
    cache = _cache_folder()
    target = cache / f"{name}-{os.geteuid()}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            made = Path(tempfile.mkdtemp(dir=cache))
            try:
                made.chmod(0o755)
                chown(made)
                fill(made)
                made.rename(target)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return target


def pack(folder: Path) -> str:
    """A folder's files as a packed archive, in base64: what a shell can take."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        tar.add(folder, ".")
    return base64.b64encode(held.getvalue()).decode()
