"""The programs that start machines, all under one jail, and the limits that a machine has as a whole.

`bwrap_path` makes a sandbox of this kernel's namespaces, `runc` too, as containers are; `runsc` is gVisor, a kernel of
its own in front of this one's. What they start ends with rlenv, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import remove
from rlenv.errors import UsageError
from rlenv.language.requirements import Requirement, program
from rlenv.tools._bubblewrap import bwrap_path, check_bubblewrap, hidden_below, read_only
from rlenv.tools._seccomp import rules_of_system_calls

OUTSIDE_ROOT: Final = 0x7000_0000
"""The user outside that is root inside where rlenv runs as root; the 65,535 after it are the others inside."""
ROOT: Final[Sequence[str]] = ("0", "0", "root", "/root")
_OWNERS: Final = 0x7100_0000
"""Where rlenv is root, each machine's namespace belongs to one of the 16 million users from here on: what the kernel
counts for a user (processes, watches of files) is counted for that machine alone."""
USERS: Final = 65_536
_SHARED: Final = 64 * 1024 * 1024
_PREFIX: Final = "rlenv-machine-"
OF_THIS_MACHINE = {getattr(errno, one) for one in "ENOSPC EDQUOT EIO EROFS ENOMEM EMFILE ENFILE".split()}
_GROUPS: Final = Path("/sys/fs/cgroup")
_MORE: Final = 64  # processes of what starts a machine
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAPABILITIES: Final = [f"CAP_{one}" for one in "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID".split()]
# Constant scripts: all that differs reaches them as variables.
_USER = (
    '{ ulimit -c 0; ulimit -n 4096; [ -z "$RLENV_IS_ROOT" ] || ulimit -u "$RLENV_PROCESSES" || '
    'ulimit -p "$RLENV_PROCESSES"; } 2>/dev/null; exec unshare --user $RLENV_MAP sh -c "$RLENV_INSIDE" sh "$@"'
)
_INSIDE = (
    "echo ready; read go || exit 1; exec setpriv ${RLENV_IS_ROOT:+--reuid 0 --regid 0 --clear-groups} --pdeathsig KILL "
    'unshare --mount-proc --pid --fork --kill-child=KILL sh -c "$RLENV_FIRST" sh "$@"'
)
_MOUNT: Final = 'mount -a -T "$RLENV_MOUNTS" || exit; '  # all by one program: each start of it takes 2 ms
_FIRST = (
    f"{_MOUNT}echo 1000 > /proc/self/oom_score_adj; "  # what is out of memory takes a machine first
    '{ ulimit -u "$RLENV_PROCESSES" || ulimit -p "$RLENV_PROCESSES"; ulimit -f "$RLENV_FILE"; '
    # `unshare` gives 1 where what it started was killed; what ends by itself gives another status.
    'ulimit -v "$RLENV_MEMORY"; } 2>/dev/null; "$@"; [ $? != 137 ] || exit 137; exit 3'
)
# As root, for what makes its own namespaces: it says when that has ended by its descriptor 3, which nothing inside has:
# it is closed for them, and `runsc` takes numbers from 256 on for itself.
_OCI: Final = (
    "exec 3>&2 2>&1; echo ready; read go || exit 1; exec setpriv --pdeathsig KILL "
    'unshare --mount-proc --pid --fork --kill-child=KILL sh -c "$RLENV_FIRST" sh "$@"'
)
_OCI_FIRST: Final = f"""{_MOUNT}echo 1000 > /proc/self/oom_score_adj; "$@" 3>&-; echo '"exit-code":' >&3; exit 1"""
# The working folder is made inside: outside, a link that the policy has put there would lead somewhere else.
_SHELL = (
    'cd -- "$1" 2>/dev/null || { mkdir -p -- "$1" && cd -- "$1"; }; '
    'shell="bash --noprofile --norc"; command -v bash >/dev/null || shell=sh; '
    'if [ "$2" = 0 ]; then exec $shell; fi; groups=--clear-groups; [ -z "$4" ] || groups=--init-groups; '
    "if setpriv --reuid 0 true 2>/dev/null; "
    'then exec setpriv --reuid "$2" --regid "$3" "$groups" --inh-caps=-all -- $shell; fi; '
    'command -v su >/dev/null || echo "$4 needs the program setpriv or su in the image"; '
    'exec su -s /bin/sh "$4" -c "exec $shell"'  # an image of busybox
)


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits of a machine. `disk_mb` bounds the layer, `memory_mb` the address space of each process."""

    processes: int = 256
    memory_mb: int = 4_096
    disk_mb: int = 1_024


@dataclass(frozen=True, slots=True)
class Start:
    """All that differs from one boot to another.

    Of `lowers`, read-only folders, the first that has a file counts; `upper` takes all changes; `binds`
    are folders of the host that stand at the same place, read-only. `folder` is an empty one of the boot's own, beside
    `upper`, on its file system. The shell starts in `workdir`, which is made where it is missing, as `user` (number,
    group, name and home; see `rlenv.tools.workspace.images.user_in`), with `env` beside PATH, HOME and LANG.
    """

    folder: Path
    lowers: Sequence[Path]
    upper: Path
    workdir: str
    binds: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: MachineLimits = field(default_factory=MachineLimits)
    user: Sequence[str] = ROOT
    sandbox: str = "bubblewrap"
    joins: Sequence[str] = ()
    """Options of `nsenter` for the network of another machine; else it has one of its own, with nobody else in it."""

    @property
    def group(self) -> str:
        """The name of its cgroup."""
        return f"{self.folder.parent.name}-{self.folder.name}"

    @property
    def variables(self) -> Mapping[str, str]:
        """The whole environment of its shell."""
        return {"PATH": PATH, "HOME": self.user[3], "LANG": "C.UTF-8", "TERM": "dumb", **self.env}

    @property
    def shell(self) -> Sequence[str]:
        """The command that its first process is."""
        return ("/bin/sh", "-c", _SHELL, "sh", self.workdir, *self.user[:3])


def needs(entry: Any, folder: Path) -> tuple[Requirement, ...]:
    """The program that a workspace needs, in the form that a kind takes."""
    name = "bwrap" if entry.sandbox == "bubblewrap" else entry.sandbox
    return (program(name, install=f"apt-get install {entry.sandbox}"),)


def check_sandbox(name: str) -> None:
    """Looks whether machines can be started by that program. Raises UsageError: it is missing, or needs root."""
    if name == "bubblewrap":
        check_bubblewrap()
    elif shutil.which(name) is not None and os.geteuid():
        raise UsageError(f"only root can start machines by {name}", key="sandbox", hint="take bubblewrap")
    packages = {} if name == "bubblewrap" else {name: name}
    packages |= {"setpriv": "util-linux", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
    if missing := next((one for one in packages if shutil.which(one) is None), None):
        hint = f"install it: apt-get install {packages[missing]}"
        raise UsageError(f"the sandbox {name} needs the program {missing}", key="sandbox", hint=hint)


def start_of(start: Start, filter: int, status: int) -> tuple[list[str], dict[str, str]]:
    """The command that starts a machine and its variables. It writes a line and reads one before it begins.

    By bubblewrap it has to be given both descriptors; by others `status` is what it has for its errors.
    """
    limits, is_root = start.limits, os.geteuid() == 0
    env = {
        "PATH": os.environ.get("PATH", PATH), "LANG": "C.UTF-8", "RLENV_MOUNTS": str(_write_mounts(start)),
        "RLENV_IS_ROOT": "1" if is_root else "", "RLENV_MAP": "--keep-caps" if is_root else "--map-root-user",
        "RLENV_PROCESSES": str(limits.processes), "RLENV_INSIDE": _INSIDE, "RLENV_FIRST": _FIRST,
        "RLENV_MEMORY": "unlimited" if _memory_controller() else str(limits.memory_mb * 1024),
        "RLENV_FILE": str(limits.disk_mb * 2048),  # POSIX counts -f in blocks of 512 bytes
    }  # fmt: skip
    if start.sandbox == "bubblewrap":
        return [*_namespace_argv(start.joins), *_bubblewrap_argv(start, filter, status)], env
    (start.folder / "config.json").write_text(json.dumps(_oci_config(start)), encoding="utf-8")
    argv = [start.sandbox, "--root", str(start.folder / "state")]
    argv += ["--network=none", "--ignore-cgroups"] if start.sandbox == "runsc" else []
    argv += ["run", "--bundle", str(start.folder), start.group]
    return ["sh", "-c", _OCI, "sh", *argv], {**env, "RLENV_FIRST": _OCI_FIRST}


def _write_mounts(start: Start) -> Path:
    """A file of what is mounted before a machine, as fstab(5) has it."""
    paths = (start.upper, start.folder / "work", *start.lowers)
    upper, work, *lowers = (str(path).translate(_OPTION) for path in paths)
    overlay = f"userxattr,lowerdir={':'.join(lowers)},upperdir={upper},workdir={work}"
    wanted = [("overlay", str(start.folder / "root"), overlay)]
    if start.sandbox == "bubblewrap":  # terminals are counted for the whole kernel
        wanted.append(("devpts", str(start.folder / "pts"), "newinstance,ptmxmode=0666,mode=0620,max=64"))
    lines = (" ".join(field.translate(_FIELD) for field in (kind, at, kind, options)) for kind, at, options in wanted)
    path = start.folder / "mounts"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
    return path


_OPTION: Final = str.maketrans({one: f"\\{one}" for one in "\\,:"})
_FIELD: Final = str.maketrans({one: f"\\{ord(one):03o}" for one in " \t\n\\"})


def _bubblewrap_argv(start: Start, filter: int, status: int) -> list[str]:
    argv = [bwrap_path(), "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    argv += [] if start.joins else ["--unshare-net"]
    argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "machine"]
    argv += ["--json-status-fd", str(status), "--seccomp", str(filter)]
    argv += ["--bind", str(start.folder / "root"), "/", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--dev-bind", str(start.folder / "pts"), "/dev/pts"]
    argv += ["--size", str(_SHARED), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    argv += [word for folder in start.binds for word in read_only(folder)]
    argv += ["--chdir", "/", "--cap-drop", "ALL", *(word for one in _CAPABILITIES for word in ("--cap-add", one))]
    argv += ["--clearenv", *(word for pair in start.variables.items() for word in ("--setenv", *pair))]
    return [*argv, "--", *start.shell]


def _oci_config(start: Start) -> dict[str, Any]:
    """The container of a boot in the words of OCI's runtimes."""
    limits = (("NPROC", start.limits.processes), ("FSIZE", start.limits.disk_mb << 20), ("CORE", 0), ("NOFILE", 4096))
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": [f"size={_SHARED}", "mode=1777"]},
        *({"destination": one, "type": "bind", "source": one, "options": ["rbind", "ro"]} for one in start.binds),
        *({"destination": one, "type": "tmpfs", "source": "tmpfs"} for top in start.binds for one in hidden_below(top)),
    ]
    users = [{"containerID": 0, "hostID": OUTSIDE_ROOT, "size": USERS}]
    spaces = ("pid", "ipc", "uts", "mount", "network", "cgroup", "user")
    linux: dict[str, Any] = {
        "namespaces": [{"type": one} for one in spaces], "uidMappings": users, "gidMappings": users,
        "cgroupsPath": f"/{start.group}/inner", "resources": {"pids": {"limit": start.limits.processes + _MORE}},
        "seccomp": rules_of_system_calls(),
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/proc/timer_list", "/sys"],
        "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"],
    }  # fmt: skip
    process = {
        "user": {"uid": 0, "gid": 0}, "args": start.shell, "cwd": "/",
        "env": [f"{name}={value}" for name, value in start.variables.items()], "noNewPrivileges": True,
        "capabilities": {kind: list(_CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        "rlimits": [{"type": f"RLIMIT_{name}", "soft": most, "hard": most} for name, most in limits],
    }  # fmt: skip
    root = {"path": str(start.folder / "root")}
    return {
        "ociVersion": "1.0.2", "process": process, "root": root, "hostname": "machine", "mounts": mounts, "linux": linux
    }  # fmt: skip


def map_users(pid: int, sandbox: str) -> None:
    """As root, the users inside; otherwise the one user there is has been mapped by `unshare`."""
    if os.geteuid() == 0 and sandbox == "bubblewrap":
        for name in ("gid_map", "uid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {OUTSIDE_ROOT} {USERS}\n", encoding="ascii")


@lru_cache(maxsize=1)
def _memory_controller() -> tuple[Path, str] | None:
    """The folder of cgroups that bound memory, with the file that does: of version 1, else of version 2."""
    with contextlib.suppress(OSError):
        if os.geteuid() == 0 and (_GROUPS / "memory" / "memory.limit_in_bytes").exists():
            return _GROUPS / "memory", "memory.limit_in_bytes"
        if os.geteuid() == 0 and "memory" in (_GROUPS / "cgroup.controllers").read_text(encoding="ascii").split():
            (_GROUPS / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
            with contextlib.suppress(OSError):
                (_GROUPS / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
            return _GROUPS, "memory.max"
    return None


def join_cgroup(pid: int, group: str, limits: MachineLimits) -> list[int]:
    """Puts a process, and all that it is going to start, into a cgroup of its own with the machine's memory and as much
    of the processor as any other, however many processes it has. Gives the descriptors that `out_of_memory` reads, to
    be closed; none where there is no cgroup. Raises OSError: it cannot be made."""
    if (at := _memory_controller()) is None:
        return []
    (folder := at[0] / group).mkdir(exist_ok=True)
    (folder / at[1]).write_text(str(limits.memory_mb << 20), encoding="ascii")
    (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
    if at[1] != "memory.max" and os.access(_GROUPS / "cpu" / "cgroup.procs", os.W_OK):
        (share := _GROUPS / "cpu" / group).mkdir(exist_ok=True)
        (share / "cgroup.procs").write_text(str(pid), encoding="ascii")
    names = ("memory.events",) if at[1] == "memory.max" else ("memory.oom_control", "memory.failcnt")
    return [os.open(folder / name, os.O_RDONLY) for name in names]


def out_of_memory(counts: Sequence[int]) -> tuple[int, int]:
    """How often a machine's memory was at its limit, and how many of its processes the kernel has ended."""
    with contextlib.suppress(OSError, ValueError):
        events, *at_limit = (os.pread(one, 4_096, 0) for one in counts)  # at each command, so that nothing is opened
        found = dict(line.split() for line in events.splitlines())
        return int(at_limit[0] if at_limit else found.get(b"oom", 0)), int(found.get(b"oom_kill", 0))
    return 0, 0


async def remove_cgroups(group: str) -> None:
    """Removes the cgroups of a machine whose processes have ended."""
    for _ in range(100):
        for folder in (rest := list_cgroups(group)):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not any(folder.exists() for folder in rest):
            return
        await asyncio.sleep(0.01)


def list_cgroups(pattern: str) -> list[Path]:
    """The cgroups of machines by the pattern of their names, those within others first."""
    held: list[Path] = []
    for top in () if os.geteuid() else (*glob(f"{_GROUPS}/{pattern}"), *glob(f"{_GROUPS}/*/{pattern}")):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
            held += sorted(Path(top).glob("**/"), reverse=True)
    return held


def _namespace_argv(joins: Sequence[str]) -> list[str]:
    """The start of a user namespace; what follows it runs in a process namespace of its own, as root there."""
    owner = str(_OWNERS + secrets.randbelow(1 << 24))
    drop = ["setpriv", "--reuid", owner, "--regid", owner, "--groups", str(OUTSIDE_ROOT), "--inh-caps=-all"]
    return [*(["nsenter", *joins] if joins else []), *([] if os.geteuid() else drop), "sh", "-c", _USER, "sh"]


def root_outside() -> int:
    """The user outside that is root inside."""
    return OUTSIDE_ROOT if os.geteuid() == 0 else os.geteuid()


def chown(path: Path, user: Sequence[str | int] = ROOT) -> None:
    """Gives a file to a user inside; nothing where rlenv is not root, since it is the same user then."""
    if os.geteuid() == 0:
        mode, (uid, gid) = os.lstat(path).st_mode, (OUTSIDE_ROOT + int(one) % USERS for one in user[:2])
        os.chown(path, uid, gid, follow_symlinks=False)
        if mode & 0o6000:  # a change of owner takes away what lets a program run as another
            os.chmod(path, mode & 0o7777)


def user_argv(user: Sequence[str]) -> list[str]:
    """The beginning of a command whose files are a user's inside, and which no mode stops, where rlenv is root."""
    uid, gid = (str(OUTSIDE_ROOT + int(one) % USERS) for one in user[:2])
    caps = (f"--{kind}-caps=-all,+dac_override,+fowner" for kind in ("inh", "ambient"))
    return ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", *caps]


def make_folder() -> Path:
    """A new folder for a machine, named after this process."""
    sweep_once()
    return Path(tempfile.mkdtemp(prefix=_owner_name(os.getpid())))


def close_folder(folder: Path) -> None:
    """Closes a machine's folder to other users of this machine: what stands in it may run as who is root inside."""
    if os.geteuid() == 0:
        os.chown(folder, 0, OUTSIDE_ROOT)
    folder.chmod(0o710)


def sweep_folders() -> None:
    """Removes the machines' folders of processes that were killed."""
    mine = (os.geteuid(), root_outside())
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # others sweep too
            if _is_left(path.name) and path.lstat().st_uid in mine:
                remove(path)
    for folder in list_cgroups(f"{_PREFIX}*"):
        if _is_left(str(folder)):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


sweep_once = lru_cache(maxsize=1)(sweep_folders)


def _is_left(name: str) -> bool:
    """True where the process that a folder is named after has ended; one that cannot be looked at counts as alive.

    Containers that share a temporary folder have processes of their own by the same numbers.
    """
    owner = re.search(rf"{_PREFIX}(\d+)-\d+-{_pid_namespace()}-", name)
    try:
        return owner is not None and owner[0] != _owner_name(int(owner[1]))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False


def _owner_name(pid: int) -> str:
    """What the folders of a process are named by: its number, when it began and its namespace.

    Raises:
        OSError: it has ended, or cannot be looked at.
    """
    begun = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{_PREFIX}{pid}-{begun}-{_pid_namespace()}-"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
