"""A machine's clock is set by an hour under a fleet: a trainer and two stations that upload.

The processes run with a library that shifts CLOCK_REALTIME for them, also in waits that have begun:
a wait for a time of day ends early if the clock steps ahead, and lasts longer if it steps back, as
in the kernel. It does not cover the nodes of a station (tests/ros/test_interlock_attacked.py).
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import time

import pytest

from rlinf_core.deploy.bridge import PART_BYTES
from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.journal import ARRIVED
from tests.deploy.bridge.conftest import until

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile const int64_t *offset_s;
__attribute__((constructor)) static void load(void) {
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    offset_s = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
}
static void real_now(struct timespec *t) { syscall(SYS_clock_gettime, CLOCK_REALTIME, t); }
int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, clock, t);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += *offset_s;
    return failed;
}
int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
/* The end of the next 20 ms of a wait until `at`; 0 if that time has come. */
static int slice(const struct timespec *at, struct timespec *end) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec > at->tv_sec || (now.tv_sec == at->tv_sec && now.tv_nsec >= at->tv_nsec))
        return 0;
    int64_t left = (at->tv_sec - now.tv_sec) * 1000000000LL + at->tv_nsec - now.tv_nsec;
    real_now(end);
    end->tv_nsec += left < 20000000 ? left : 20000000;
    if (end->tv_nsec >= 1000000000) end->tv_sec++, end->tv_nsec -= 1000000000;
    return 1;
}
static int of_day(const struct timespec *at) { return at->tv_sec > 1000000000; }
typedef int (*cond_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at) {
    static cond_wait real;
    if (!real) real = (cond_wait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (cond_wait)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (!of_day(at)) return real(c, m, at); /* of another clock */
    struct timespec end;
    int result = ETIMEDOUT;
    while (result == ETIMEDOUT && slice(at, &end)) result = real(c, m, &end);
    return result;
}
typedef int (*sem_wait_)(sem_t *, const struct timespec *);
int sem_timedwait(sem_t *s, const struct timespec *at) {
    static sem_wait_ real;
    if (!real) real = (sem_wait_)dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec end;
    while (slice(at, &end)) {
        if (!real(s, &end)) return 0;
        if (errno != ETIMEDOUT) return -1;
    }
    errno = ETIMEDOUT;
    return -1;
}
"""
TRAINER = r"""
import signal, sys
from pathlib import Path
from rlinf_core.deploy.bridge.server import BridgeServer
root = Path(sys.argv[1])
server = BridgeServer("127.0.0.1:0", root / "inbox", root / "policies", lambda folder: None, dict)
(root / "port").write_text(f"{server.port}\n")
signal.pause()
"""
STATION_KEY = r"""
import sys, time
from pathlib import Path
from rlinf_core.deploy.bridge.client import BridgeClient, Sender
from rlinf_core.episodes.spool import Spool
spool, port, name = sys.argv[1:]
sender = Sender(Spool(Path(spool)), BridgeClient(f"127.0.0.1:{port}", name), print)
while True:
    sender.send_all()
    Path(f"{spool}.clock").write_text(f"{time.time()}\n")
    time.sleep(0.05)
"""
RECONNECT_S = 10.0  # the requirement's


@pytest.fixture
def shifted(tmp_path):
    """Start Python with a clock of its own; ``shifted.step`` sets that clock."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library, offset = (tmp_path / name for name in ("shim.c", "shim.so", "offset"))
    source.write_text(SHIM)
    offset.write_bytes(struct.pack("q", 0))
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-pthread"], check=True
    )
    running = []

    def start(code, *arguments):
        environment = os.environ | {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
        command = [sys.executable, "-c", code, *map(str, arguments)]
        running.append(subprocess.Popen(command, env=environment))

    def step(seconds):
        with open(offset, "r+b") as file:
            file.write(struct.pack("q", seconds))

    start.step = step
    yield start
    for process in running:
        process.kill()
        process.wait()


def text(file):
    """A whole line of a file that another process writes; empty if there is none yet."""
    line = file.read_text() if file.exists() else ""
    return line.strip() if line.endswith("\n") else ""


def arrived(journal):
    """The names of all episodes that have arrived, each as often as it is noted."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sorted(entry["id"] for entry in map(json.loads, lines) if entry["status"] == ARRIVED)


def lead(spool):
    """How far a station's clock is ahead of this process's [s]; infinite before its first report."""
    return float(text(spool.with_suffix(".clock")) or "inf") - time.time()


def record(spool, name):
    """Close a sealed episode of several parts."""
    folder = spool / "recording" / name
    folder.mkdir(parents=True)
    (folder / "x.mcap").write_bytes(os.urandom(3 * PART_BYTES))
    seal(folder)
    folder.rename(spool / "closed" / name)


@pytest.mark.timeout(180)
def test_a_clock_that_is_set_by_an_hour_loses_and_doubles_no_episode(shifted, tmp_path):
    run, spools = tmp_path / "run", {name: tmp_path / name for name in "ab"}
    run.mkdir()
    shifted(TRAINER, run)
    port = until(lambda: text(run / "port"), "the trainer")
    for name, spool in spools.items():
        (spool / "closed").mkdir(parents=True)
        shifted(STATION_KEY, spool, port, name)
    expected: list[str] = []
    for number, seconds in enumerate((0, 3600, 0, -3600)):
        for name, spool in spools.items():
            for letter in "xyz":
                expected.append(f"{name}{number}{letter}")
                record(spool, expected[-1])
        shifted.step(seconds)  # in the middle of the uploads
        began = time.monotonic()
        until(lambda: set(expected) <= set(arrived(run / "journal.jsonl")), "the episodes")
        assert number == 0 or time.monotonic() - began < RECONNECT_S
        for spool in spools.values():
            until(lambda at=spool, by=seconds: abs(lead(at) - by) < 60, "the clock of a station")
    assert arrived(run / "journal.jsonl") == sorted(expected)
    for name in expected:
        assert (run / "inbox" / name / "x.mcap").stat().st_size == 3 * PART_BYTES
