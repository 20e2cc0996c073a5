"""A clock for processes of a test, which the test can step.

A library that the processes load first shifts CLOCK_REALTIME for them, also in waits that have
begun: a wait for a time of day ends early if the clock steps ahead, and lasts longer if it steps
back, as in the kernel.
"""

import shutil
import struct
import subprocess

import pytest

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


class SteppedClock:
    """The library, and the file with the clock's offset.

    Attributes:
        environment: environment variables of a process that has this clock.
    """

    def __init__(self, folder):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler")
        source, library = folder / "shim.c", folder / "shim.so"
        self.offset = folder / "offset"
        source.write_text(SHIM)
        self.step(0)
        options = ["-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-pthread"]
        subprocess.run([compiler, *options], check=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self.offset)}

    def step(self, seconds):
        """Set the clock this number of seconds ahead of the machine's."""
        if not self.offset.exists():
            self.offset.write_bytes(struct.pack("q", seconds))
        with open(self.offset, "r+b") as file:  # the same file, which the processes have mapped
            file.write(struct.pack("q", seconds))
