"""Many stations at once, for benchmarks/bridge.py: the trainer's memory and the upload times."""

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

# A station's upload times [s], number of failed uploads, and (size, time of arrival) of its policy.
Row = tuple[list[float], int, tuple[int, float]]
REPORT_S, PAUSE_S = 0.5, 0.5  # intervals of an uplink
PROCESSES = 4  # the stations are spread over these
EPISODE_BYTES = 2_500_000  # 25 time steps with two 128x128 images


class Station:
    """The three threads of a station's uplink, without ROS."""

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


def run_stations(
    pipe: Connection, port: int, names: list[str], folder: Path, uploading: set[str]
) -> None:
    """Run some stations in this process; answer each request with their state."""
    ended = threading.Event()
    members = [Station(port, name, folder, name in uploading, ended) for name in names]
    for station in members:
        for thread in station.threads:
            thread.start()
    for station in members:
        station.connected.wait()
    pipe.send("all are connected")
    with contextlib.suppress(EOFError):
        while pipe.recv() == "state":
            pipe.send([(station.uploads, station.failed, station.policy) for station in members])
    ended.set()


def memory_mb(pid: int, field: str) -> float:
    """Return the field VmRSS (memory now) or VmHWM (its peak) of a process [MB]."""
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024 / 1e6


def uploads_since(first: list[Row], rows: list[Row]) -> list[float]:
    """Return the times [s] of all uploads after an earlier state."""
    return [
        upload_s
        for before, row in zip(first, rows, strict=True)
        for upload_s in row[0][len(before[0]) :]
    ]


def measure_stations(
    root: Path,
    child: Callable[..., Any],
    serve: Callable[..., None],
    count: int,
    uploading: int,
    seconds: float,
    size: int,
) -> dict[str, float]:
    """Measure ``count`` stations: uploads for ``seconds``, then a policy until all have it."""
    names = [f"s{number}" for number in range(count)]
    with ExitStack() as children:
        trainer = children.enter_context(child(serve, root / "run"))
        port, pid = trainer.pipe.recv(), trainer.process.pid
        before = memory_mb(pid, "VmRSS")
        processes = [
            children.enter_context(
                child(run_stations, port, names[n::PROCESSES], root, set(names[:uploading]))
            )
            for n in range(PROCESSES)
        ]

        def station_states() -> list[Row]:
            for process in processes:
                process.pipe.send("state")
            return [row for process in processes for row in process.pipe.recv()]

        for process in processes:
            process.pipe.recv()
        time.sleep(seconds)
        first, peak_uploads = station_states(), memory_mb(pid, "VmHWM")
        uploads = [upload_s for row in first for upload_s in row[0]]
        trainer.pipe.send(size)
        began = trainer.pipe.recv()
        rows = station_states()
        while not all(row[2][0] >= size for row in rows):
            time.sleep(0.5)
            rows = station_states()
        after = memory_mb(pid, "VmHWM")
        uploads_with_policy = uploads_since(first, rows)
        for process in processes:
            process.pipe.send("end")
    p50, p99 = np.quantile(uploads or [np.nan], (0.5, 0.99))
    return {
        "stations": count,
        "uploading": uploading,
        "uploads": len(uploads),
        "upload_p50_s": float(p50),
        "upload_p99_s": float(p99),
        "upload_p99_s_with_policy": float(np.quantile(uploads_with_policy or [np.nan], 0.99)),
        "upload_retries": sum(row[1] for row in rows),
        "policy_seconds_first": min(row[2][1] for row in rows) - began,
        "policy_seconds_all": max(row[2][1] for row in rows) - began,
        "trainer_mb_before": before,
        "trainer_mb_peak_uploads": peak_uploads,
        "trainer_mb_peak": after,
    }
