"""The jail's drill: programs that try to get out, each with evidence on the outside."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.agentic.jail import JailLimits, Outcome, run_program

LIMITS = JailLimits(wall_s=4.0, cpu_s=3, memory_bytes=256 << 20, processes=8, file_bytes=4 << 20)
PROOF = "ESCAPED"


@dataclass(frozen=True)
class Bait:
    """Targets outside the jail that a program must not reach.

    Attributes:
        folder: a folder that every user may write.
        secret: a file in it that every user may read.
        port: port of a TCP server on loopback.
        abstract: name of a Unix socket without a file.
        accepted: returns whether either server has had a connection.
    """

    folder: Path
    secret: Path
    port: int
    abstract: str
    accepted: Callable[[], bool]

    @property
    def names(self) -> Mapping[str, object]:
        """The targets, by the names that the programs use."""
        return {
            "FOLDER": str(self.folder),
            "SECRET": str(self.secret),
            "PORT": self.port,
            "ABSTRACT": self.abstract,
            "HOST_PID": os.getpid(),
            "PROOF": PROOF,
        }


@dataclass(frozen=True)
class Escape:
    """One attempt to escape.

    Attributes:
        name: the aim of the attempt.
        program: prints PROOF when it succeeds.
        evidence: finds success outside the jail, besides the print; takes the bait and the outcome.
        alone: without a jail, the program is harmless and succeeds.
    """

    name: str
    program: str
    evidence: Callable[[Bait, Outcome], bool] = lambda bait, outcome: False
    alone: bool = True


def _wrote(bait: Bait, outcome: Outcome) -> bool:
    time.sleep(0.3 if outcome.end == "exit" else 0.0)
    return (bait.folder / "written").exists()


def _grew(bait: Bait, outcome: Outcome) -> bool:
    return len(outcome.stdout) > LIMITS.output_bytes


def _called(bait: Bait, outcome: Outcome) -> bool:
    return bait.accepted()


ESCAPES = (
    Escape("read a file of the machine", "print(PROOF, open(SECRET).read())"),
    Escape(
        "read the user list, or the processes' environments",
        "import glob\nfor name in ['/etc/passwd', *glob.glob('/proc/[0-9]*/environ')]:\n"
        "    try:\n        if open(name, 'rb').read(): print(PROOF)\n    except OSError: pass",
    ),
    Escape("write a file outside", "open(FOLDER + '/written', 'w').write('x')", _wrote),
    Escape(
        "write into the interpreter's library",
        "import json, os\nopen(os.path.dirname(json.__file__) + '/written', 'w'); print(PROOF)",
        alone=False,
    ),
    Escape(
        "connect over loopback",
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1); print(PROOF)",
        _called,
    ),
    Escape(
        "connect to a socket without a file",
        "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + ABSTRACT); print(PROOF)",
        _called,
    ),
    Escape(
        "execute a shell",
        "import subprocess\n"
        "if subprocess.run(['/bin/sh', '-c', ':']).returncode == 0: print(PROOF)",
    ),
    Escape(
        "execute a file of its own from memory",
        "import os\nfd = os.memfd_create('x')\nos.write(fd, open('/bin/true', 'rb').read())\n"
        "if os.spawnve(os.P_WAIT, f'/proc/self/fd/{fd}', ['x'], {}) == 0: print(PROOF)",
    ),
    Escape(
        "signal processes outside",
        "import os\nfor pid in (HOST_PID, os.getppid()):\n"
        "    try: os.kill(pid, 0 if pid == HOST_PID else 9); print(PROOF * (pid == HOST_PID))\n"
        "    except OSError: pass\ntry: os.kill(-1, 9)\nexcept OSError: pass",
        alone=False,
    ),
    Escape(
        "fork without bound",
        "import os, time\nn = 0\ntry:\n    while n < 200:\n"
        "        if os.fork() == 0: time.sleep(30)\n        n += 1\n"
        "except OSError: pass\nif n >= 60: print(PROOF)",
        alone=False,
    ),
    Escape("take all memory", "x = bytearray(1 << 30)\nprint(PROOF)", alone=False),
    Escape(
        "run for ever",
        "import signal, time\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "end = time.time() + 30\nwhile time.time() < end: pass\nprint(PROOF)",
        alone=False,
    ),
    Escape(
        "fill the disk",
        "n = 0\nfor i in range(64):\n"
        "    with open(f'f{i}', 'wb') as f: n += f.write(bytes(1 << 20))\nprint(PROOF)",
        alone=False,
    ),
    Escape(
        "take all memory by files in memory",
        "import os\nfor n in range(20): os.write(os.memfd_create('x'), bytes(1 << "
        "20))\nprint(PROOF)",
    ),
    Escape(
        "flood the output", "import os\nwhile True: os.write(1, b'x' * 65536)", _grew, alone=False
    ),
    Escape(
        "outlive its jail",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(0.2)\n"
        "        for base in (FOLDER, '/work'):\n"
        "            try: open(base + '/written', 'w').write('x')\n"
        "            except OSError: pass\n"
        "        os._exit(0)\n    os._exit(0)",
        _wrote,
    ),
    Escape(
        "read its parent's memory",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, os.getppid(), None, None) == 0: print(PROOF)\n"
        "try:\n    if os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR): print(PROOF)\n"
        "except OSError: pass",
        alone=False,
    ),
    Escape(
        "become root in a new user namespace",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x10000000) == 0 or libc.unshare(0x20000) == 0: print(PROOF)",
    ),
    Escape(
        "become another user",
        "import os\nfor change in (os.setuid, os.setgid):\n    try: change(0); print(PROOF)\n"
        "    except OSError: pass",
        alone=os.geteuid() == 0,
    ),
    Escape(
        "mount, or leave the root by chroot",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "os.makedirs('d', exist_ok=True)\n"
        "if libc.chroot(b'd') == 0 or libc.mount(b'x', b'd', b'tmpfs', 0, None) == 0: print(PROOF)",
        alone=False,
    ),
    Escape(
        "use descriptors that it inherited",
        "import os\nfor fd in range(3, 256):\n    try:\n"
        "        if os.fstat(fd) and fd > 3: print(PROOF)\n"
        "    except OSError: pass",
        alone=False,
    ),
    Escape(
        "reach kernel interfaces: io_uring, bpf, keyrings, file handles",
        "import ctypes, platform\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "io, bpf, key = (425, 321, 250) if platform.machine() == 'x86_64' else (425, 280, 219)\n"
        "if libc.syscall(io, 4, ctypes.create_string_buffer(120)) >= 0: print(PROOF)\n"
        "if libc.syscall(key, 0, -3, 1) >= 0: print(PROOF)\n"
        "if ctypes.get_errno() not in (1, 38): print(PROOF)\n"
        "if libc.syscall(bpf, 0, None, 0) >= 0 or ctypes.get_errno() not in (1, 38): print(PROOF)",
        alone=False,
    ),
    Escape(
        "make a device",
        "import os\nos.mknod('m', 0o20666, os.makedev(1, 1))\n"
        "os.open('m', os.O_RDONLY); print(PROOF)",
        alone=False,
    ),
    Escape(
        "find a secret in the environment",
        "import os\nif [name for name in os.environ if name != 'LC_CTYPE']: print(PROOF)",
    ),
)


@contextmanager
def bait() -> Iterator[Bait]:
    """Provide a folder, a secret and two servers outside any jail."""
    folder = Path(tempfile.mkdtemp(prefix="rlinf_drill_"))
    servers = [socket.socket(family) for family in (socket.AF_INET, socket.AF_UNIX)]
    calls = []

    def accepted() -> bool:
        for server in servers:
            try:
                server.accept()[0].close()
                calls.append(1)
            except BlockingIOError:
                pass
        return bool(calls)

    try:
        folder.chmod(0o777)
        (folder / "secret").write_text("a secret")
        (folder / "secret").chmod(0o644)
        name = f"rlinf_drill_{os.getpid()}"
        servers[0].bind(("127.0.0.1", 0))
        servers[1].bind(f"\0{name}")
        for server in servers:
            server.listen()
            server.setblocking(False)
        yield Bait(folder, folder / "secret", servers[0].getsockname()[1], name, accepted)
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(folder)


def attempt(escape: Escape, run: Callable[[str], Outcome] | None = None) -> tuple[bool, Outcome]:
    """Return whether an escape succeeds, and the outcome of its program.

    Args:
        escape: the attempt.
        run: runs a program; in a jail by default.

    Raises:
        JailError: the jail cannot be built.
    """
    with bait() as outside:
        lines = [f"{name} = {value!r}" for name, value in outside.names.items()]
        program = "\n".join([*lines, escape.program])
        outcome = run(program) if run else run_program(program, limits=LIMITS)
        return PROOF in outcome.stdout or escape.evidence(outside, outcome), outcome


def run_alone(program: str) -> Outcome:
    """Run the program without a jail, in its own folder: the drill's control group."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, cwd=folder
        )
    return Outcome("exit", done.returncode, done.stdout, done.stderr, ())
