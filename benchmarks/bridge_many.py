"""Many stations at once, for benchmarks/bridge.py: what the trainer's process takes, and how long
an upload does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.episodes.checksums import seal

# of a station: seconds of its uploads, failed ones, its policy
Row = tuple[list[float], int, tuple[int, float]]
REPORT_S, PAUSE_S = 0.5, 0.5  # of an uplink
PROCESSES = 4  # that stations are spread over
EPISODE_BYTES = 2_500_000  # 25 time steps with two 128x128 images


class Station:
    """The three threads of an uplink, without ROS."""

    def __init__(
        self, port: int, name: str, folder: Path, uploads: bool, ended: threading.Event
    ) -> None:
        self.name, self.folder, self.ended = name, folder, ended
        address = f"127.0.0.1:{port}"
        self.client, self.reporter = (
            BridgeClient(address, name, instance=f"i{name}", links=False) for _ in range(2)
        )
        self.uploads: list[float] = []
        self.connected = threading.Event()
        self.failed, self.policy = 0, (0, 0.0)
        self.threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._report, self._fetch, *([self._upload] if uploads else []))
        ]

    def _report(self) -> None:
        while not self.ended.wait(REPORT_S):
            with contextlib.suppress(BridgeError):
                self.reporter.report(0, 0, timeout_s=5.0)
                self.connected.set()

    def _fetch(self) -> None:
        while not self.ended.is_set() and not self.policy[0]:
            with contextlib.suppress(BridgeError):
                if fetched := self.reporter.next_policy(0, self.folder / self.name, wait_s=10.0):
                    self.policy = fetched[1].stat().st_size, time.monotonic()
                    fetched[1].unlink()
            self.ended.wait(PAUSE_S)

    def _upload(self) -> None:
        data, number = bytearray(np.random.default_rng(0).bytes(EPISODE_BYTES)), 0
        while not self.ended.is_set():
            number += 1
            data[:64] = f"{self.name} {number}".encode().ljust(64)
            episode = self.folder / f"spool-{self.name}/{self.name}-{number}"
            episode.mkdir(parents=True)
            (episode / "x.mcap").write_bytes(data)
            seal(episode)
            self._send(episode)

    def _send(self, episode: Path) -> None:
        began = time.monotonic()
        while not self.ended.is_set():
            try:
                self.client.upload(episode)
            except BridgeError:
                self.failed += 1
                time.sleep(0.2)
            else:
                return self.uploads.append(time.monotonic() - began)


def stations(
    pipe: Connection, port: int, names: list[str], folder: Path, uploading: set[str]
) -> None:
    """A process with some of them; says what they have seen when it is asked."""
    ended = threading.Event()
    those = [Station(port, name, folder, name in uploading, ended) for name in names]
    for station in those:
        for thread in station.threads:
            thread.start()
    for station in those:
        station.connected.wait()
    pipe.send("all are connected")
    with contextlib.suppress(EOFError):
        while pipe.recv() == "how":
            pipe.send([(station.uploads, station.failed, station.policy) for station in those])
    ended.set()


def memory_mb(pid: int, field: str) -> float:
    """VmRSS, or VmHWM: the most there ever was."""
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024 / 1e6


def since(first: list[Row], rows: list[Row]) -> list[float]:
    """Seconds of the uploads that each station has made since an earlier answer."""
    return [
        took for before, row in zip(first, rows, strict=True) for took in row[0][len(before[0]) :]
    ]


def many(
    root: Path,
    child: Callable[..., Any],
    serve: Callable[..., None],
    count: int,
    uploading: int,
    seconds: float,
    size: int,
) -> dict[str, float]:
    """So many stations; some upload for ``seconds``, then a policy is published; ends when all have
    it.
    """
    names = [f"s{number}" for number in range(count)]
    with ExitStack() as children:
        trainer = children.enter_context(child(serve, root / "run"))
        port, pid = trainer.pipe.recv(), trainer.process.pid
        before = memory_mb(pid, "VmRSS")
        crowd = [
            children.enter_context(
                child(stations, port, names[n::PROCESSES], root, set(names[:uploading]))
            )
            for n in range(PROCESSES)
        ]

        def how() -> list[Row]:
            for one in crowd:
                one.pipe.send("how")
            return [row for one in crowd for row in one.pipe.recv()]

        for one in crowd:
            one.pipe.recv()
        time.sleep(seconds)
        first, while_waiting = how(), memory_mb(pid, "VmHWM")
        uploads = [took for row in first for took in row[0]]
        trainer.pipe.send(size)
        began = trainer.pipe.recv()
        rows = how()
        while not all(row[2][0] >= size for row in rows):
            time.sleep(0.5)
            rows = how()
        after = memory_mb(pid, "VmHWM")
        late = since(first, rows)
        for one in crowd:
            one.pipe.send("end")
    p50, p99 = np.quantile(uploads or [np.nan], (0.5, 0.99))
    return {
        "stations": count,
        "uploading": uploading,
        "uploads": len(uploads),
        "upload_p50_s": float(p50),
        "upload_p99_s": float(p99),
        "upload_p99_s_with_policy": float(np.quantile(late or [np.nan], 0.99)),
        "upload_retries": sum(row[1] for row in rows),
        "policy_seconds_first": min(row[2][1] for row in rows) - began,
        "policy_seconds_all": max(row[2][1] for row in rows) - began,
        "trainer_mb_before": before,
        "trainer_mb_peak_uploads": while_waiting,
        "trainer_mb_peak": after,
    }
