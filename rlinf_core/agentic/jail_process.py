"""The inside of a jail: namespaces, its own root, Landlock, seccomp, limits, then the program.

``jail.py`` starts this file as a script (``python -I -S``), so it imports only the standard
library. There are four processes: the launcher forks a child into new namespaces and maps its ids;
the child forks the first process of the process namespace; the first process mounts the root and
forks the program. Each dies with its parent. All of the process namespace dies with its first
process.

The job is one JSON object on standard input; ``jail.py`` documents it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

RESULT = 3  # file descriptor for the values that a program computes
CONTROL = 4  # file descriptor for reports from outside the program
LIBC = ctypes.CDLL(None, use_errno=True)
PDEATHSIG, DUMPABLE, SET_SECCOMP, CAPBSET_DROP, NO_NEW_PRIVS = 1, 4, 22, 24, 38  # options of prctl
NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000 | 0x4000000 | 0x2000000
MS_REC, MS_PRIVATE, MS_BIND, MNT_DETACH, RDONLY_NOSUID_NODEV = 0x4000, 0x40000, 0x1000, 2, 7
MOUNT_SETATTR, LANDLOCK = 442, 444  # the same numbers on every architecture
INNER_ID = 1000
READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")

# Per architecture: its audit number, pivot_root, clone, and the system calls that no program needs:
# sockets, execution, tracing, kernel interfaces, namespaces and mounts, devices, administration,
# NUMA, queues and shared memory between processes, unbounded files in memory.
FILTERS: dict[str, tuple[int, int, int, str]] = {
    "x86_64": (
        0xC000003E,
        155,
        56,
        "41 42 43 49 50 288 59 322 101 310 311 312 434 438 424 425 426 427 321 298 323 248 249 250 "
        "246 320 175 313 176 303 304 165 166 155 161 272 308 428 429 430 431 432 433 442 133 259 "
        "167 168 169 163 179 103 135 172 173 153 134 180 212 227 159 305 164 170 171 237 238 239 "
        "256 279 240 241 242 243 244 245 29 30 31 67 64 65 66 68 69 70 71 319 447 443 467",
    ),
    "aarch64": (
        0xC00000B7,
        41,
        220,
        "198 203 202 200 201 242 221 281 117 270 271 272 434 438 424 425 426 427 280 241 282 217 "
        "218 219 104 294 105 273 106 264 265 40 39 41 51 97 268 428 429 430 431 432 433 442 33 "
        "224 225 142 89 60 116 92 58 42 112 171 266 170 161 162 235 236 237 238 239 180 181 182 "
        "183 184 185 194 195 196 197 186 187 188 189 190 191 192 193 279 447 443 467",
    ),
}
CLONE3 = 435  # missing here: C libraries fall back to clone, whose flags a filter can read


def checked(result: int, action: str) -> int:
    """Return ``result`` of a C function; raise OSError with the action's name if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def prctl(option: int, *values: int) -> int:
    """Call prctl; OSError if it fails."""
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return checked(LIBC.prctl(option, *padded), f"prctl {option}")


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    """Call mount; OSError if it fails."""
    encoded = [text.encode() if text else None for text in (source, target, kind, data)]
    checked(
        LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mount {target}",
    )


def syscall(number: int, action: str, *values: Any) -> int:
    """Make a system call by its number; OSError if it fails."""
    return checked(LIBC.syscall(ctypes.c_long(number), *values), action)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def free_id() -> int:
    """Return an unused id that this user namespace maps.

    The launcher's process id makes it unique.
    """
    with open("/proc/self/uid_map") as lines:
        first, _, length = max(
            (tuple(map(int, line.split())) for line in lines), key=lambda row: row[2]
        )
    if length >= 1 << 31:
        return 0x70000000 + os.getpid()
    if length < 60000:
        raise OSError(f"expected at least 60000 user ids in this user namespace, got {length}")
    return first + length - 3 - os.getpid() % 4096


def map_ids(child: int, is_root: bool, jail_id: int) -> None:
    """Map the ids of a child's user namespace, from outside."""

    def write(name: str, text: str) -> None:
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(text)

    if is_root:
        write("uid_map", f"0 0 1\n{INNER_ID} {jail_id} 1\n")
        write("gid_map", f"0 0 1\n{INNER_ID} {jail_id} 1\n")
    else:
        write("setgroups", "deny")
        write("uid_map", f"{INNER_ID} {os.getuid()} 1\n")
        write("gid_map", f"{INNER_ID} {os.getgid()} 1\n")


def library_folders() -> list[str]:
    """Return the folders that Python needs to import its standard library."""
    folders = [*READABLE, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    resolved = sorted({os.path.realpath(folder) for folder in folders if os.path.isdir(folder)})
    return [
        folder
        for folder in resolved
        if not any(folder.startswith(f"{other}/") for other in resolved)
    ]


def make_root(folders: list[str], size: int) -> None:
    """Mount a root in memory with read-only libraries, /dev/null and a bounded /work."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = "/tmp" if os.path.isdir("/tmp") else "/mnt"
    mount("jail", root, "tmpfs", 6, "size=1m,nr_inodes=2048,mode=755")
    for folder in folders:
        os.makedirs(root + folder)
        mount(folder, root + folder, None, MS_BIND | MS_REC)
        attributes = struct.pack("QQQQ", RDONLY_NOSUID_NODEV, 0, 0, 0)
        path = (root + folder).encode()
        syscall(
            MOUNT_SETATTR,
            f"mount_setattr {folder}",
            -100,
            path,
            0x8000,
            attributes,
            len(attributes),
        )
    for folder in ("/lib", "/lib64"):  # links into /usr on most systems
        if os.path.islink(folder):
            os.symlink(os.readlink(folder), root + folder)
    os.makedirs(root + "/dev")
    open(root + "/dev/null", "w").close()
    mount("/dev/null", root + "/dev/null", None, MS_BIND)
    os.makedirs(root + "/work")
    mount("work", root + "/work", "tmpfs", 14, f"size={size},nr_inodes=256,mode=777")
    os.chdir(root)
    syscall(FILTERS[platform.machine()][1], "pivot_root", b".", b".")
    checked(LIBC.umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/work")
    syscall(MOUNT_SETATTR, "mount_setattr /", -100, b"/", 0, struct.pack("QQQQ", 1, 0, 0, 0), 32)


def restrict_files(folders: list[str]) -> None:
    """Restrict files by Landlock: libraries readable, /work writable, no execution, no TCP."""
    abi = syscall(LANDLOCK, "Landlock", None, 0, 1)
    files = (1 << (13 + (abi >= 2) + (abi >= 3))) - 1 | (1 << 15 if abi >= 5 else 0)
    attributes = struct.pack("QQQ", files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = syscall(LANDLOCK, "landlock_create_ruleset", attributes, size, 0)
    read, execute = 4 | 8, 1
    for path, rights in [
        *((folder, read) for folder in folders),
        ("/work", files & ~execute & ~(1 << 6) & ~(1 << 11)),
        ("/dev/null", 2 | 4),
    ]:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        syscall(
            LANDLOCK + 1,
            "landlock_add_rule",
            rules,
            1,
            struct.pack("=Qi", rights & files, folder),
            0,
        )
        os.close(folder)
    syscall(LANDLOCK + 2, "landlock_restrict_self", rules, 0)
    os.close(rules)


def restrict_calls() -> None:
    """Install a seccomp filter: listed calls fail with EPERM; another architecture's calls kill."""
    audit, _, clone, denied = FILTERS[platform.machine()]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, allow, refuse, missing = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
    code = [
        (load, 0, 0, 4),
        (equal, 1, 0, audit),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),
        (answer, 0, 0, kill),
        (equal, 0, 1, CLONE3),
        (answer, 0, 0, missing),
    ]
    for number in map(int, denied.split()):
        code += [(equal, 0, 1, number), (answer, 0, 0, refuse)]
    code += [
        (equal, 0, 3, clone),
        (load, 0, 0, 16),
        (any_bit, 0, 1, NAMESPACES),
        (answer, 0, 0, refuse),
        (answer, 0, 0, allow),
    ]
    program = b"".join(struct.pack("=HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    )
    prctl(SET_SECCOMP, 2, ctypes.addressof(header))


def drop_privileges(is_root: bool) -> None:
    """Give up capabilities and, if the caller is root, its user."""
    for capability in range(64):
        with suppress(OSError):
            prctl(CAPBSET_DROP, capability)
    if is_root:
        os.setgroups([])
        os.setresgid(INNER_ID, INNER_ID, INNER_ID)
        os.setresuid(INNER_ID, INNER_ID, INNER_ID)
    header, empty = struct.pack("Ii", 0x20080522, 0), bytes(24)
    checked(LIBC.capset(header, empty), "capset")
    prctl(NO_NEW_PRIVS, 1)


def limit_resources(limits: dict[str, Any]) -> None:
    """Set the resource limits of the program."""
    values = {
        "CPU": limits["cpu_s"],
        "AS": limits["memory_bytes"],
        "NPROC": limits["processes"],
        "FSIZE": limits["file_bytes"],
        "NOFILE": 64,
        "CORE": 0,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
    }
    for name, value in values.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def play(job: dict[str, Any]) -> int:
    """Run the program's text; call ``call`` with each input, and write the values."""
    names: dict[str, Any] = {"__name__": "__main__" if job["call"] is None else "program"}
    try:
        exec(compile(job["program"], "program.py", "exec"), names)
        if job["call"] is not None:
            for number, values in enumerate(job["inputs"]):
                text = json.dumps(names[job["call"]](*values), allow_nan=False)
                os.write(RESULT, f"{number} {text}\n".encode())
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        frames = error.__traceback__
        traceback.print_exception(type(error), error, frames and frames.tb_next, limit=4)
        return 1
    return 0


def program_process(job: dict[str, Any], folders: list[str], is_root: bool) -> None:
    """Close the jail, run the program, end."""
    os.setsid()
    limit_resources(job["limits"])
    drop_privileges(is_root)
    restrict_files(folders)
    restrict_calls()
    os.write(CONTROL, b"ready\n")
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    os.closerange(CONTROL, 4096)
    code = play(job)
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def first_process(job: dict[str, Any], folders: list[str], is_root: bool) -> None:
    """Run process 1 of the namespace: all of the namespace dies with it."""
    prctl(DUMPABLE, 0)
    make_root(folders, job["limits"]["file_bytes"])
    program = os.fork()
    if program == 0:
        attempt(lambda: program_process(job, folders, is_root))
    while True:
        process, status = os.wait()
        if process == program:
            os.write(CONTROL, f"exit {os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)


def attempt(action: Callable[[], None]) -> None:
    """Run an action that must not return; report its failure."""
    try:
        action()
    except BaseException as error:
        os.write(
            CONTROL, f"error {type(error).__name__}: {error}".replace("\n", " ").encode() + b"\n"
        )
    os._exit(1)


def child_process(
    job: dict[str, Any], launcher: int, is_root: bool, mapped: tuple[int, int, int]
) -> None:
    """Enter new namespaces; fork their first process."""
    die_with_parent(launcher)
    folders = library_folders()
    checked(LIBC.unshare(NAMESPACES), "unshare")
    mapped_read, mapped_write, unshared_write = mapped
    os.close(mapped_write)
    os.write(unshared_write, b"1")
    if os.read(mapped_read, 1) != b"1":
        os._exit(1)
    process = os.fork()
    if process == 0:
        prctl(PDEATHSIG, signal.SIGKILL)
        attempt(lambda: first_process(job, folders, is_root))
    os.waitpid(process, 0)
    os._exit(0)


def place_descriptors(result: int, control: int) -> None:
    """Move two inherited descriptors to their numbers, and close all others."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (result, control)]
    os.dup2(moved[0], RESULT)
    os.dup2(moved[1], CONTROL)
    os.closerange(CONTROL + 1, 4096)


def launch() -> None:
    """Fork the child, map its ids, wait for its end."""
    place_descriptors(*map(int, sys.argv[2:]))
    die_with_parent(int(sys.argv[1]))
    if platform.machine() not in FILTERS:
        raise OSError(f"expected one of {', '.join(FILTERS)}, got {platform.machine()}")
    job = json.load(sys.stdin)
    is_root = os.geteuid() == 0
    jail_id = free_id() if is_root else 0
    mapped_read, mapped_write = os.pipe()
    unshared_read, unshared_write = os.pipe()
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(unshared_read)
        attempt(
            lambda: child_process(
                job, launcher, is_root, (mapped_read, mapped_write, unshared_write)
            )
        )
    os.close(unshared_write)
    if os.read(unshared_read, 1) == b"1":
        map_ids(child, is_root, jail_id)
        os.write(mapped_write, b"1")
    os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    attempt(launch)
