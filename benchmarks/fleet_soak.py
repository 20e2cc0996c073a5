"""Check that no episode is lost or counted twice when stations, network and trainer fail.

    python benchmarks/fleet_soak.py --episodes 10000 --json results.json
    python benchmarks/fleet_soak.py --episodes 200 --stations 4 --cut-s 1

Each station is a process that records small episodes into its spool and sends them as an uplink
does, over TLS, enrolled. The trainer is one process with all of its ingest: server, inbox, journal,
intake, a replay and checkpoints; it does not learn. A relay between them closes all connections, or
passes no data (as with an unplugged cable), for up to --cut-s. SIGKILL ends the trainer and stations
at random moments, and each starts again. The moments are drawn over the number of arrived episodes,
so all of them fall into the run.

The checker knows the episodes that stations produce. An episode is lost if its content is not in the
journal and the inbox as its station closed it, or if it is missing in the replay of the last
checkpoint. An episode is duplicated if it arrived, or is in the replay, more than once. The
benchmark does not cover a disk that loses flushed data (tests/episodes/test_power_cut.py does).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from bridge_peers import free_port  # noqa: E402
from network_faults import FaultyRelay  # noqa: E402

from benchmarks.figures import write  # noqa: E402
from rlinf_core.core.errors import EpisodeError  # noqa: E402
from rlinf_core.data.replay import ReplayBuffer  # noqa: E402
from rlinf_core.deploy.bridge.client import BridgeClient, Sender  # noqa: E402
from rlinf_core.deploy.bridge.fleet import Fleet  # noqa: E402
from rlinf_core.deploy.bridge.inbox import digest  # noqa: E402
from rlinf_core.episodes.checksums import SUMS, file_sha256, verify  # noqa: E402
from rlinf_core.episodes.journal import ARRIVED, Journal  # noqa: E402
from rlinf_core.episodes.spool import Spool  # noqa: E402
from rlinf_core.rollouts.types import Trajectory  # noqa: E402
from rlinf_core.tasks.task import load_task  # noqa: E402
from rlinf_core.trainer import checkpoint  # noqa: E402
from rlinf_core.trainer.sources.recordings import Intake  # noqa: E402
from rlinf_core.trainer.sources.stations import Stations  # noqa: E402

STEPS = 3  # time steps of an episode
SPACING = 10  # between the first observations of two episodes, which identify them
CHECKPOINT_S, RETRY_S, REPORT_S = 1.0, 0.2, 30.0
ARRIVAL = f'"status": "{ARRIVED}"'.encode()
SPEC = load_task(ROOT / "configs/tasks/peg_insertion.yaml").spec


def name_of(station: int) -> str:
    return f"station_{station}"


def id_of(station: int, number: int) -> str:
    return f"{name_of(station)}-{number:06d}"


def run_station(root: Path, number: int, count: int, port: int) -> None:
    """Run a station's process: record missing episodes, and send all of them."""
    name = name_of(number)
    spool = Spool(root / name / "spool")
    spool.recover()
    client = BridgeClient(f"127.0.0.1:{port}", name, root / name / "credentials")
    recording = threading.Thread(target=record_all, args=(spool, number, count), daemon=True)
    recording.start()
    sender = Sender(spool, client, print)
    while recording.is_alive() or spool.closed():
        time.sleep(RETRY_S if sender.send_all() else 0.05)


def record_all(spool: Spool, station: int, count: int) -> None:
    """Record episodes; the first observation of each holds its number for the checker."""
    from tests.messages import raw_messages, write_raw

    def set_station(topic: str, _: int, message: Any) -> None:
        if topic == "episode":
            message.station = name_of(station)

    for number in range(count):
        name = id_of(station, number)
        if not any((spool.root / folder / name).exists() for folder in ("closed", "sent")):
            start = float(SPACING * (station * count + number + 1))
            write_raw(
                spool, name, raw_messages(SPEC, name, steps=STEPS, start=start, change=set_station)
            ).close()


def run_trainer(run_dir: Path, capacity: int, port: int) -> None:
    """Run the trainer's process until SIGTERM: take in episodes and write checkpoints."""
    intake, replay, ended = (
        Intake(run_dir, SPEC, 100),
        ReplayBuffer(SPEC, capacity),
        threading.Event(),
    )
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    for folder in checkpoint.checkpoints(run_dir / "checkpoints")[-1:]:
        state = checkpoint.load(folder)
        intake.load_state_dict(state["intake"])
        replay.load_state_dict(state["replay"])

    def insert(trajectory: Trajectory) -> str:
        replay.insert_episode(
            trajectory.observations, trajectory.actions, trajectory.rewards, trajectory.discounts
        )
        return "online"

    stations = Stations(f"127.0.0.1:{port}", run_dir, intake, insert, run_dir.parent / "fleet")
    saved = 0.0
    while True:
        ending = ended.is_set()
        stations.take(0, {})
        if ending and not (stations.arrived or stations.journaled):
            break
        if time.monotonic() > saved + CHECKPOINT_S:
            save(run_dir, intake, replay)
            saved = time.monotonic()
        time.sleep(0.01)
    stations.close()
    save(run_dir, intake, replay)


def save(run_dir: Path, intake: Intake, replay: ReplayBuffer) -> None:
    checkpoint.save(
        run_dir / "checkpoints",
        "soak",
        {"intake": intake.state_dict(), "replay": replay.state_dict()},
        keep=2,
    )


class RestartedProcess:
    """A process that can be killed, and then starts again; its output goes to a log."""

    def __init__(self, log: Path, *arguments: object) -> None:
        self.command = [sys.executable, __file__, *map(str, arguments)]
        self.log = log
        self.kills = 0
        self.start()

    def start(self) -> None:
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.kills += 1
        self.process.wait()
        self.start()

    def end(self) -> None:
        """End the process for good."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def check(self) -> None:
        """Raise SystemExit if the process ended by itself with an error."""
        if self.process.poll():
            raise SystemExit(
                f"{self.command[2:]} ended with {self.process.returncode}:\n"
                f"{self.log.read_text()[-3000:]}"
            )


def arrival_lines(run_dir: Path) -> list[bytes]:
    """Return the journal's complete lines about arrived episodes."""
    with contextlib.suppress(FileNotFoundError):
        lines = (run_dir / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        return [line for line in lines if ARRIVAL in line]
    return []


class Arrivals:
    """Counts the arrived episodes; reads each line of the journal once."""

    def __init__(self, run_dir: Path) -> None:
        self.path, self.read, self.count = run_dir / "journal.jsonl", 0, 0

    def update(self) -> int:
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as journal:
            journal.seek(self.read)
            data = journal.read()
            complete_lines = data[: data.rfind(b"\n") + 1]
            self.read += len(complete_lines)
            self.count += complete_lines.count(ARRIVAL)
        return self.count


def soak(
    root: Path,
    episodes: int,
    stations: int,
    cut_s: float,
    kills: int,
    cuts: int,
    station_kills: int,
    seed: int = 0,
) -> dict[str, float]:
    """Run stations and trainer to the end with all faults; return the counts."""
    per_station = episodes // stations
    draw = random.Random(seed)
    fleet = Fleet(root / "fleet")
    began = time.monotonic()
    total, port, run_dir = per_station * stations, free_port(), root / "run"
    run_dir.mkdir()
    for number in range(stations):
        fleet.enroll(name_of(number), root / name_of(number) / "credentials")
    capacity = 2 * total * (STEPS + 1)
    with contextlib.ExitStack() as ending:

        def begin(log: str, *arguments: object) -> RestartedProcess:
            process = RestartedProcess(root / log, *arguments)
            ending.callback(process.end)
            return process

        relay = FaultyRelay(port)
        ending.callback(relay.close)
        ingest = begin("trainer.log", "--trainer", run_dir, capacity, port)
        station_processes = [
            begin(f"{name_of(n)}.log", "--station", root, n, per_station, relay.port)
            for n in range(stations)
        ]
        arrivals = Arrivals(run_dir)
        plan = sorted(
            (draw.uniform(0.02, 0.9), fault)
            for fault, count in (("kill", kills), ("cut", cuts), ("station", station_kills))
            for _ in range(count)
        )
        reported_at = began
        while any(process.process.poll() is None for process in station_processes):
            for process in (ingest, *station_processes):
                process.check()
            if time.monotonic() > reported_at + REPORT_S:
                reported_at = time.monotonic()
                print(
                    f"{arrivals.update()} of {total} have arrived after {reported_at - began:.0f} s",
                    flush=True,
                )
            if plan and arrivals.update() >= plan[0][0] * total:
                fault = plan.pop(0)[1]
                time.sleep(draw.uniform(0, 0.5))
                if fault == "cut":
                    relay.cut(draw.uniform(0.2, 1.0) * cut_s, silent=draw.random() < 0.5)
                else:
                    (ingest if fault == "kill" else draw.choice(station_processes)).kill()
            time.sleep(0.1)
        # A trainer that has just started does not handle SIGTERM yet: start it again and wait.
        for patience_s in (0.0, 10.0, 60.0):
            time.sleep(patience_s)
            ingest.process.send_signal(signal.SIGTERM)
            if ingest.process.wait() != -signal.SIGTERM:
                break
            ingest.start()
        ingest.check()
    return {
        "episodes": total,
        **check(root, stations, per_station),
        "kills": ingest.kills,
        "cuts": relay.cuts,
        "station_kills": sum(process.kills for process in station_processes),
        "longest_cut_s": cut_s,
        "seconds": time.monotonic() - began,
    }


def check(root: Path, stations: int, per_station: int) -> dict[str, int]:
    """Count the lost and duplicated episodes."""
    run_dir, wrong = root / "run", Counter()
    journal = Journal(run_dir / "journal.jsonl")
    rows = Counter(json.loads(line)["id"] for line in arrival_lines(run_dir))
    state = checkpoint.load(checkpoint.checkpoints(run_dir / "checkpoints")[-1])
    replay = ReplayBuffer(
        SPEC, len(state["replay"]["arrays"]["vectors"]) if "arrays" in state["replay"] else 0
    )
    replay.load_state_dict(state["replay"])
    counts = Counter(float(value) for value in replay.vectors()[:, 0])
    for station, number in ((s, n) for s in range(stations) for n in range(per_station)):
        name = id_of(station, number)
        closed = root / name_of(station) / "spool/sent" / name
        in_replay = counts[float(SPACING * (station * per_station + number + 1))]
        is_stored = closed.is_dir() and journal.content(name) == content(closed) == content(
            run_dir / "inbox" / name
        )
        wrong["lost"] += not is_stored or in_replay == 0
        wrong["duplicated"] += rows[name] > 1 or in_replay > 1
    wrong["duplicated"] += len(rows) > stations * per_station  # episodes that no station produced
    return {"lost": wrong["lost"], "duplicated": wrong["duplicated"]}


def content(folder: Path) -> str:
    """Return the digest of an episode, or the reason why it has none."""
    try:
        return digest(verify(folder) | {SUMS: file_sha256(folder / SUMS)})
    except EpisodeError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--episodes", type=int, default=1000, help="episodes of all stations together"
    )
    parser.add_argument("--stations", type=int, default=8)
    parser.add_argument("--kills", type=int, default=5, help="kills of the trainer")
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--station-kills", type=int, default=5)
    parser.add_argument("--cut-s", type=float, default=30.0, help="the longest cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--station", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for work, arguments in ((run_station, options.station), (run_trainer, options.trainer)):
        if arguments:
            return work(Path(arguments[0]), *map(int, arguments[1:]))
    with tempfile.TemporaryDirectory(prefix="rlinf-soak-") as folder:
        result = soak(
            Path(folder),
            options.episodes,
            options.stations,
            options.cut_s,
            options.kills,
            options.cuts,
            options.station_kills,
            options.seed,
        )
    print(", ".join(f"{name} {value:g}" for name, value in result.items()))
    if options.json:
        write(options.json, result)
    if result["lost"] or result["duplicated"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
