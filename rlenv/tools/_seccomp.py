"""Filters of system calls by what is allowed: every other number is refused, those that are yet to come too.

Numbers from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12, written
`name:x86_64:aarch64`; an empty place is a call that the machine does not have. A filter is classic BPF over `struct
seccomp_data` (include/uapi/linux/seccomp.h): the number at 0, the architecture at 4, arguments of eight bytes from 16.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from rlenv.errors import UsageError

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with the error number in the lower bits
_KILL = 0x80000000
_EPERM, _EINVAL, _ENOTTY, _ENOSYS, _EAFNOSUPPORT = 1, 22, 25, 38, 97

OWN_PID = 0x7E57_0001
"""Stands in the filter for code where the process that loads it writes its own number."""

_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

# Files, memory, clocks, threads and waiting: what a program does with what it already has. No flock: it locks files
# that can only be read, which other sandboxes see as well.
_COMMON = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
preadv2:327:286 pwritev2:328:287 close:3:57 close_range:436:436 lseek:8:62 dup:32:23 dup2:33: dup3:292:24 pipe:22:
pipe2:293:59 fsync:74:82 fdatasync:75:83 ftruncate:77:46 truncate:76:45 fallocate:285:47
sendfile:40:71 copy_file_range:326:285 open:2: openat:257:56 creat:85: stat:4: lstat:6: fstat:5:80
newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 access:21: faccessat:269:48 faccessat2:439:439
readlink:89: readlinkat:267:78 getcwd:79:17 chdir:80:49 fchdir:81:50 mkdir:83: mkdirat:258:34 rmdir:84: unlink:87:
unlinkat:263:35 rename:82: renameat:264:38 renameat2:316:276 link:86: linkat:265:37 symlink:88: symlinkat:266:36
getdents:78: getdents64:217:61 umask:95:166 chmod:90: fchmod:91:52 fchmodat:268:53 fchmodat2:452:452
utimensat:280:88 utimes:235: utime:132: futimesat:261: fadvise64:221:223 readahead:187:213 getxattr:191:8
lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13 brk:12:214 munmap:11:215
mprotect:10:226 mremap:25:216 madvise:28:233 msync:26:227 rt_sigaction:13:134 rt_sigprocmask:14:135
rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132
pause:34: alarm:37: setitimer:38:103 getitimer:36:102 restart_syscall:219:128 clock_gettime:228:113
clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201: times:100:153
getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177
getgroups:115:158 getresuid:118:148 getresgid:120:150 getpgrp:111: getpgid:121:155 getsid:124:156 getrusage:98:165
getrlimit:97:163 uname:63:160 sysinfo:99:179 getcpu:309:168 sched_yield:24:124 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
getpriority:140:141 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 futex:202:98 exit:60:93
exit_group:231:94 wait4:61:260 waitid:247:95 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create:213:
epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232: epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:
eventfd2:290:19 recvfrom:45:207 shutdown:48:210 getsockopt:55:209 getsockname:51:204 getpeername:52:205
getrandom:318:278
"""

# What a program of the author's may need beside that: processes, sockets within its own network, its own identity.
_PROGRAMS = """
flock:73:32 openat2:437:437 splice:275:76 tee:276:77 vmsplice:278:75 mknod:133: mknodat:259:33 chown:92: fchown:93:55
lchown:94: fchownat:260:54 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15
fremovexattr:199:16 sync:162:81 syncfs:306:267 sync_file_range:277:84 mincore:27:232 mlock:149:228 mlock2:325:284
munlock:150:229 mlockall:151:230 munlockall:152:231 memfd_create:319:279 membarrier:324:283 get_mempolicy:239:236
kill:62:129 tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 signalfd:282:
signalfd4:289:74 timer_create:222:107 timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109
timer_delete:226:111 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 execve:59:221
execveat:322:281 setpgid:109:154 setsid:112:157 setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143
setresuid:117:147 setresgid:119:149 setfsuid:122:151 setfsgid:123:152 setgroups:116:159 capget:125:90
capset:126:91 prctl:157:167 arch_prctl:158: setrlimit:160:164 prlimit64:302:261 setpriority:141:140
sched_setaffinity:203:122 sched_setparam:142:118 sched_setscheduler:144:119 sched_setattr:314:274
sched_getattr:315:275 ioprio_get:252:31 ioprio_set:251:30 get_robust_list:274:100 futex_waitv:449:449
inotify_init:253: inotify_init1:294:26 inotify_add_watch:254:27 inotify_rm_watch:255:28 seccomp:317:277
sendto:44:206 sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269 recvmmsg:299:243 setsockopt:54:208 connect:42:203
bind:49:200 listen:50:201 accept:43:202 accept4:288:242 shmget:29:194 shmat:30:196 shmctl:31:195 shmdt:67:197
semget:64:190 semop:65:193 semtimedop:220:192 semctl:66:191 msgget:68:186 msgsnd:69:189 msgrcv:70:188
msgctl:71:187 mq_open:240:180 mq_unlink:241:181 mq_timedsend:242:182 mq_timedreceive:243:183 mq_getsetattr:245:185
fcntl:72:25 pkey_alloc:330:289 pkey_free:331:290 pkey_mprotect:329:288
"""

# Allowed for some arguments only.
_BY_ARGUMENT = """
mmap:9:222 fcntl:72:25 ioctl:16:29 prctl:157:167 kill:62:129 tgkill:234:131 clone:56:220 fork:57: vfork:58:
prlimit64:302:261 socket:41:198 socketpair:53:199 sendto:44:206 personality:135:92
"""
# From here on numbers are the same on all machines, and libraries know what to do where a kernel lacks them.
_RECENT = 424

_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020080  # namespaces of any kind
_MAP_HUGETLB = 0x00040000
_STOPS = (9, 19, 20, 21, 22)  # KILL, STOP, TSTP, TTIN, TTOU
_FCNTL = (*range(8), 36, 37, 38, 1030, 1032, 1034)  # neither owners and signals of a descriptor, nor sizes of pipes
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
# TIOCSTI, TIOCLINUX and the flags of an inode.
_IOCTL_REFUSED = (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820)
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)


def _numbers(names: str, place: int) -> dict[str, int]:
    fields = [entry.split(":") for entry in names.split()]
    return {entry[0]: int(entry[place]) for entry in fields if entry[place]}


def _step(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    """One instruction (`struct sock_filter`)."""
    return struct.pack("=HBBI", code, jt, jf, k)


def _load(argument: int, *, upper: bool = False) -> bytes:
    return _step(0x20, 16 + 8 * argument + 4 * upper)


def _return(action: int) -> bytes:
    return _step(0x06, action)


def _if_equal(value: int, then: bytes) -> bytes:
    return _step(0x15, value, 0, len(then) // 8) + then


def _if_any(bits: int, then: bytes) -> bytes:
    return _step(0x45, bits, 0, len(then) // 8) + then


def _unless_equal(value: int, then: bytes) -> bytes:
    return _step(0x15, value, len(then) // 8, 0) + then


def _unless_any(bits: int, then: bytes) -> bytes:
    return _step(0x45, bits, len(then) // 8, 0) + then


_ALLOWED, _REFUSED = _return(_ALLOW), _return(_REFUSE | _EPERM)


def _one_of(argument: int, values: Iterable[int], *, error: int = _EPERM) -> bytes:
    tests = b"".join(_if_equal(value, _ALLOWED) for value in values)
    return _load(argument) + tests + _return(_REFUSE | error)


def _none_of(argument: int, values: Iterable[int], *, error: int = _EPERM) -> bytes:
    tests = b"".join(_if_equal(value, _return(_REFUSE | error)) for value in values)
    return _load(argument) + tests + _ALLOWED


def _own_signal(signal: int) -> bytes:
    """The process itself, and nothing that would stop or kill it: how it ended says whose doing that was."""
    return _load(0) + _unless_equal(OWN_PID, _REFUSED) + _none_of(signal, _STOPS)


def _null(argument: int) -> bytes:
    halves = (_load(argument), _load(argument, upper=True))
    return b"".join(half + _unless_equal(0, _REFUSED) for half in halves) + _ALLOWED


# Threads, which have all of their process; never a namespace.
_THREAD = _load(0) + _if_any(_CLONE_NEW, _REFUSED) + _unless_any(_CLONE_THREAD, _REFUSED) + _ALLOWED
_FORK = _load(0) + _if_any(_CLONE_NEW, _REFUSED) + _ALLOWED

_FOR_CODE = {
    "mmap": _load(3) + _if_any(_MAP_HUGETLB, _REFUSED) + _ALLOWED,
    "fcntl": _one_of(1, _FCNTL, error=_EINVAL),
    "ioctl": _one_of(1, _IOCTL, error=_ENOTTY),
    "prctl": _one_of(0, (15, 16)),  # the name of a thread
    "kill": _own_signal(1),
    "tgkill": _own_signal(2),
    "clone": _THREAD,
    "prlimit64": _load(0) + _unless_equal(0, _REFUSED) + _null(2),  # reading
    "socketpair": _one_of(0, (1,), error=_EAFNOSUPPORT),  # AF_UNIX, as event loops use it
    "sendto": _null(4),
}
_FOR_PROGRAMS = {
    "mmap": _ALLOWED,
    "ioctl": _none_of(1, _IOCTL_REFUSED),
    "clone": _FORK,
    "fork": _ALLOWED,
    "vfork": _ALLOWED,
    # AF_INET, AF_INET6 and AF_NETLINK belong to the empty network; a path of AF_UNIX may lead to a server outside.
    "socket": _one_of(0, (2, 10, 16), error=_EAFNOSUPPORT),
    "socketpair": _one_of(0, (1,), error=_EAFNOSUPPORT),
    "personality": _one_of(0, _PERSONALITIES),
}
_WITHOUT_PROCESSES = {"clone": _THREAD, "fork": _REFUSED, "vfork": _REFUSED}


@lru_cache(maxsize=4)
def system_call_filter(purpose: Literal["code", "program", "single"]) -> bytes:
    """A seccomp program (an array of `struct sock_filter`).

    Args:
        purpose: `code` is for an interpreter that runs a piece of code in its own threads, and holds `OWN_PID`;
            `program` for a program that may start others; `single` for one that may start threads only.

    Raises:
        UsageError: the machine's system calls are not known here.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UsageError(f"no filter of system calls is known for {machine}; expected one of {known}")
    architecture, place = _ARCHITECTURES[machine]
    program = _step(0x20, 4) + _unless_equal(architecture, _return(_KILL)) + _step(0x20, 0)
    if machine == "x86_64":
        program += _step(0x35, 0x40000000, 0, 1) + _return(_REFUSE | _ENOSYS)  # the x32 numbers
    filtered = {**(_FOR_CODE if purpose == "code" else _FOR_PROGRAMS)}
    if purpose == "single":
        filtered.update(_WITHOUT_PROCESSES)
    numbers = _numbers(_BY_ARGUMENT, place)
    for name, rule in filtered.items():
        if name in numbers:
            program += _if_equal(numbers[name], rule)
    allowed = _COMMON if purpose == "code" else _COMMON + _PROGRAMS
    for name, number in _numbers(allowed, place).items():
        if name not in filtered:
            program += _if_equal(number, _ALLOWED)
    return program + _step(0x35, _RECENT, 0, 1) + _return(_REFUSE | _ENOSYS) + _REFUSED


def rules_of_system_calls() -> dict[str, object]:
    """What `program` allows in the words of OCI's runtimes, which know calls by name."""
    one_of = {"socket": (2, 10, 16), "socketpair": (1,), "personality": _PERSONALITIES}
    tests = [(name, {"value": one, "op": "SCMP_CMP_EQ"}) for name, values in one_of.items() for one in values]
    tests.append(("clone", {"value": _CLONE_NEW, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}))
    names = {entry.split(":")[0] for entry in f"{_COMMON} {_PROGRAMS} {_BY_ARGUMENT}".split()}
    rules: list[dict[str, object]] = [{"names": sorted(names - {*dict(tests)}), "action": "SCMP_ACT_ALLOW"}]
    rules += [{"names": [name], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, **test}]} for name, test in tests]
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": _EPERM, "syscalls": rules}
