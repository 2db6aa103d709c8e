"""What Linux is asked about an answer's processes: shut in, limited, listed, measured, ended.

A process that is shut in reads Python, torch and the answer's folder, and writes to one folder. Landlock
withholds files, a user and network namespace the machine and its network, a filter of system calls every
socket. All of it also holds for what the process starts, and none of it can be undone.
"""

import contextlib
import ctypes
import math
import os
import platform
import signal
import struct
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

REGARD = Path(__file__).resolve().parents[2]
SYSTEM = "/usr /lib /lib64 /bin /etc/ld.so.cache /etc/localtime /proc/cpuinfo /sys/devices/system/cpu".split()
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

# Of <linux/landlock.h>. The numbers of these three calls are the same on every processor.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
N_RIGHT = {1: 13, 2: 14, 3: 15, 4: 15}  # by version of Landlock; 16 in later ones
ALL = (1 << 16) - 1

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
# processor -> its number in <linux/audit.h>, its call `socket`; `io_uring_setup` is 425 on both.
CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
IO_URING_SETUP = 425

KILL_SECONDS = 20.0  # a killed process may need a while on a machine that stood still
CPU_SECONDS = 60  # of all calls of an answer


def confine(folders: Iterable[str], writable: str) -> list[str]:
    """Let this process read Python, torch and `folders` alone; what the system did not withhold, in words."""
    if sys.platform != "linux":
        return ["files", "the network"]
    libc = ctypes.CDLL(None, use_errno=True)
    separated = libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    files = libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and _landlock(libc, folders, writable)
    sockets = _without_sockets(libc)
    return [*([] if files else ["files"]), *([] if separated or sockets else ["the network"])]


def landlock_version() -> int:
    """The version of Landlock that this system has; 0 where it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, VERSION)))


def _landlock(libc: ctypes.CDLL, folders: Iterable[str], writable: str) -> bool:
    """Whether files are withheld from now on, all but those that an answer needs."""
    version = landlock_version()
    if version < 1:
        return False
    handled = (1 << N_RIGHT.get(version, 16)) - 1
    # TCP, since version 4; signals and abstract sockets to processes outside, since version 6.
    attributes = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    python = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.prefix}/pyvenv.cfg"]
    rules = readable([*python, *filter(os.path.isdir, sys.path), *SYSTEM, *folders])
    failed = 0
    for path, rights in [*rules, *((path, ON_FILES) for path in DEVICES), (writable, ALL)]:
        with contextlib.suppress(OSError):  # what is not there need not be read
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights & handled & (ALL if os.path.isdir(path) else ON_FILES)
            failed |= libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
            os.close(place)
    failed |= libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return bool(failed == 0)


def readable(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Paths with their rights; of folders around regard, which can solve exercises, everything but that."""
    copies = (Path(path, "regard").resolve() for path in sys.path)
    withheld = {REGARD, *(copy for copy in copies if copy.is_dir())}
    around = {parent for path in withheld for parent in path.parents}
    rules: dict[str, int] = {}
    waiting = [Path(path).resolve() for path in paths]
    while waiting:
        path = waiting.pop()
        if path in around:
            rules[str(path)] = READ_DIR  # names alone
            with contextlib.suppress(OSError):  # a link may lead anywhere, back to regard too
                waiting += [entry for entry in path.iterdir() if not entry.is_symlink()]
        elif not withheld & {path, *path.parents}:
            rules[str(path)] = READ_DIR | READ_FILE | EXECUTE
    return list(rules.items())


def _without_sockets(libc: ctypes.CDLL) -> bool:
    """Whether no socket can be made from now on: those of files are withheld by nothing else."""
    if platform.machine() not in CALLS:
        return False
    machine, call = CALLS[platform.machine()]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    steps = [  # a filter in BPF: code, steps to skip if true, if not, number
        (load, 0, 0, 4),  # for which processor
        (equal, 0, 5, machine),
        (load, 0, 0, 0),  # which call
        (equal, 3, 0, call),
        (equal, 2, 0, IO_URING_SETUP),
        (at_least, 1, 0, 0x40000000),  # the same calls under other numbers
        (answer, 0, 0, 0x7FFF0000),  # allow
        (answer, 0, 0, 0x00050000 | 13),  # fail with EACCES
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    return bool(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def limit(memory: int) -> None:
    """Cap what this process may take beyond what torch already did, where the system can."""
    try:
        import resource
    except ImportError:
        return
    limits = {
        "RLIMIT_AS": _pages(os.getpid())[0] + memory,
        "RLIMIT_CPU": CPU_SECONDS,
        "RLIMIT_FSIZE": 1 << 26,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    for name, value in limits.items():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root` that has not ended; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # no process, or none any more
            with open(f"/proc/{int(entry)}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry))
    below = [root]
    for pid in below:
        below += children.get(pid, [])
    return below[1:]


def _pages(pid: int) -> list[int]:
    """Bytes of memory that a process has: all, resident, shared with files; 0 where that is not told."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return [int(pages) * os.sysconf("SC_PAGESIZE") for pages in file.read().split()[:3]]
    return [0, 0, 0]


def memory_of(pids: Iterable[int], beyond: int = 0) -> int:
    """Bytes that processes have written to, of each what is `beyond` that of the one it was forked from."""
    return sum(max(0, resident - shared - beyond) for _, resident, shared in map(_pages, pids))


def activity(pids: Iterable[int]) -> tuple[float, bool]:
    """Return the seconds that processes computed, and whether one does or waits for its turn.

    Where there is no /proc the seconds are NaN.
    """
    seconds, active = 0.0, False
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, *rest = file.read().rpartition(")")[2].split()
            seconds += (int(rest[10]) + int(rest[11])) / os.sysconf("SC_CLK_TCK")
            active |= state in "RD"
    return (seconds, active) if os.path.isdir("/proc") else (math.nan, True)


def kill_below(root: int) -> None:
    """End every process below `root`, those that are being started too, and wait until none runs."""
    deadline = time.monotonic() + KILL_SECONDS
    frozen: set[int] = set()
    while (new := set(descendants(root)) - frozen) and time.monotonic() < deadline:
        _signal(new, "SIGSTOP")  # until nobody new turns up: what is frozen cannot fork
        frozen |= new
    while frozen & set(below := descendants(root)) and time.monotonic() < deadline:
        _signal(below, "SIGKILL")
        time.sleep(0.002)


def _signal(pids: Iterable[int], name: str) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, getattr(signal, name))
