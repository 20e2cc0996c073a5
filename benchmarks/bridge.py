"""Compare the bridge with agentlace and with gRPC alone, over loopback.

    git clone https://github.com/youliangtan/agentlace && uv pip install --target agentlace pyzmq
    lz4 python benchmarks/bridge.py --agentlace agentlace --json results.json
    python benchmarks/bridge.py --stations 200 --uploading 20 --json results.json

Episodes up: a station's process sends transitions with two 128x128 images to a trainer's process.

* Ours are recorded episodes of 50 time steps. ``upload`` is the time from a closed episode in the
  spool to a durable, journalled one at the trainer. ``recorded`` adds the recording and its flushes.
* agentlace's go from the client's store to the server's, in memory, as HIL-SERL inserts them. The
  faster of 1 and 50 transitions an update counts.
* gRPC alone sends the bytes of our files and stores nothing.

The three take turns; the figures are medians of the rounds.

A policy down: the trainer's memory to 8 stations, each a process. Our trainer writes the policy,
and its flush to the disk runs in parallel. The untimed end of the flush precedes the next version.
The stations fetch and check the policy in one of three forms:

* ``weights_seconds_80mb``: a link to the trainer's file, as on the trainer's machine
* ``..._sent``: the file, as on another machine
* ``weights_seconds_adapters``: the adapters alone, a fortieth; the station has their base

agentlace broadcasts and unpacks the policy. The benchmark does not cover loading it into a network.

Many stations (``--stations``): each has the two connections of an uplink, reports twice a second and
waits for policies. Some upload all the time, and one policy is published. The trainer is a process
of its own, whose memory is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from bridge_many import measure_stations  # noqa: E402
from bridge_peers import (  # noqa: E402
    IMAGE,
    raw_call,
    receive_agentlace,
    receive_floor,
    send_floor,
    serve_agentlace,
    serve_raw,
    upload_agentlace,
    upload_raw,
)

from benchmarks.figures import write  # noqa: E402
from rlinf_core.core.atomic_io import write_atomically  # noqa: E402
from rlinf_core.deploy.bridge.client import BridgeClient, Sender  # noqa: E402
from rlinf_core.deploy.bridge.server import BridgeServer  # noqa: E402
from rlinf_core.episodes.spool import Spool  # noqa: E402
from rlinf_core.policies.policy_folder import base_name, policy_name  # noqa: E402
from rlinf_core.tasks.task import load_task  # noqa: E402
from rlinf_core.trainer.policy_flush import PolicyFlush  # noqa: E402

LENGTH, RECEIVERS = 50, 8
STATION_KEY = "a"  # the first part of every episode's name
DIGEST = "0123456789abcdef" * 4  # hash of the base weights


class Child:
    """A spawned process and the pipe to it."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, *arguments), daemon=True)
        self.process.start()
        other.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.process.join(1.0)  # a process that waits for bytes never ends
        self.process.kill()


def serve_ours(pipe: Connection, root: Path, base: int = 0) -> None:
    """Run the trainer's end of our bridge.

    Each number received on the pipe publishes a policy of so many bytes; the answer is its start.

    Args:
        base: size of the base weights that every policy refers to [bytes]; 0 without.
    """
    from safetensors.numpy import save_file

    server = BridgeServer(
        "127.0.0.1:0", root / "inbox", root / "policies", lambda folder: None, dict
    )
    if base:
        network = np.random.default_rng(0).integers(0, 256, base, np.uint8)
        save_file({"network": network}, server.policies / base_name(DIGEST))
    pipe.send(server.port)
    version, flush = 0, PolicyFlush(server.policies)
    with contextlib.suppress(EOFError):
        while size := pipe.recv():
            weights = np.random.default_rng(size + version).integers(0, 256, size, np.uint8)
            version, metadata = version + 1, {"base": DIGEST} if base else None
            flush.prepare()
            pipe.send(time.monotonic())
            write_atomically(
                server.policies / policy_name(version),
                partial(save_file, {"adapters": weights}, metadata=metadata),
                durable=False,
            )
            flush.begin(version)
    server.stop()


def receive_ours(
    pipe: Connection, port: int, number: int, folder: Path, links: bool = False
) -> None:
    """Run a station's end; send the size of each fetched policy and its time of arrival."""
    client, version, base = BridgeClient(f"127.0.0.1:{port}", f"s{number}", links=links), 0, None
    client.report(0, 0, timeout_s=20.0)
    pipe.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while not pipe.poll():
            if fetched := client.next_policy(version, folder, wait_s=5.0, base=base):
                base, version = fetched, fetched.version
                pipe.send((fetched.path.stat().st_size, time.monotonic()))


def images_of(count: int) -> np.ndarray:
    """Return frames that compress like a camera's: a slope with noise of a few levels."""
    random = np.random.default_rng(0)
    slope = np.add.outer(np.arange(IMAGE[0]), np.arange(IMAGE[1]))[..., None] // 2
    return (slope + random.integers(0, 8, (count, *IMAGE)) + 20).astype(np.uint8)


def recordings(images: np.ndarray) -> list[list[tuple[str, str, int, bytes]]]:
    """Return the messages of episodes of ``LENGTH`` transitions with these images."""
    from tests.messages import raw_messages

    spec = (
        load_task(ROOT / "configs/tasks/peg_insertion.yaml")
        .with_images({"front": IMAGE[:2], "wrist": IMAGE[:2]})
        .spec
    )

    def record(first: int) -> list[tuple[str, str, int, bytes]]:
        def set_images(topic: str, number: int, message: Any) -> None:
            if topic == "timestep":
                cameras = images[first + number], images[first + number, ::-1]
                for camera, image in zip(cameras, message.images, strict=True):
                    image.data = camera.ravel()

        return raw_messages(spec, f"e{first}", steps=LENGTH, change=set_images)

    return [record(first) for first in range(0, len(images) - 1, LENGTH)]


def upload_ours(
    spool: Spool, client: BridgeClient, messages: list[Any], name: str
) -> tuple[float, float, int]:
    """Return seconds of the upload, seconds of the recording, and bytes."""
    from tests.messages import write_raw

    started = time.monotonic()
    for number, episode in enumerate(messages):
        write_raw(spool, f"{name}-{number}", episode).close()
    recorded = time.monotonic()
    size = sum(file.stat().st_size for file in spool.root.glob("closed/*/*"))
    assert Sender(spool, client, print).send_all() == "" and not spool.closed()
    assert len(list(spool.root.glob(f"sent/{name}-*"))) == len(messages), "an episode was refused"
    return time.monotonic() - recorded, recorded - started, size


def measure_uploads(
    root: Path, count: int, rounds: int, agentlace: Path | None
) -> dict[str, float]:
    """Measure the uploaded transitions per second of each system."""
    images = images_of(count + 1)
    messages, spool, rates_by_name = recordings(images), Spool(root / "spool"), {}
    with (
        Child(serve_ours, root / "run") as ours,
        Child(serve_raw) as raw,
        contextlib.ExitStack() as more,
    ):
        client = BridgeClient(f"127.0.0.1:{ours.pipe.recv()}", STATION_KEY)
        call = raw_call(raw.pipe.recv())
        theirs = more.enter_context(Child(serve_agentlace, agentlace)) if agentlace else None
        ports = theirs.pipe.recv() if theirs else None
        for number in range(-1, rounds):  # round -1 only warms up
            sent_s, recorded_s, size = upload_ours(
                spool, client, messages, f"{STATION_KEY}-{number + 1}"
            )
            seconds_by_name = {
                "ours": sent_s,
                "ours_recorded": recorded_s + sent_s,
                "grpc": upload_raw(
                    call, sorted(spool.root.glob(f"sent/{STATION_KEY}-{number + 1}-*"))
                ),
            }
            if ports:
                seconds_by_name |= {
                    f"agentlace_by_{n}": upload_agentlace(agentlace, ports, images, n)
                    for n in (1, LENGTH)
                }
            if number >= 0:
                for name, seconds in seconds_by_name.items():
                    rates_by_name.setdefault(name, []).append(count / seconds)
    rates = {
        f"upload_{name}_per_s": statistics.median(values) for name, values in rates_by_name.items()
    }
    result = {
        "transitions": count,
        "rounds": rounds,
        **rates,
        "upload_ours_mb_per_s": rates["upload_ours_per_s"] * size / count / 1e6,
        "bytes_a_transition": size / count,
        "upload_ratio_grpc": rates["upload_ours_per_s"] / rates["upload_grpc_per_s"],
    }
    if agentlace:
        best = max(rates[f"upload_agentlace_by_{n}_per_s"] for n in (1, LENGTH))
        result |= {
            "upload_ratio_agentlace": rates["upload_ours_per_s"] / best,
            "recorded_ratio_agentlace": rates["upload_ours_recorded_per_s"] / best,
        }
    return result


def processor_s(children: list[Child]) -> float:
    """Return the processor time of these processes so far [s]."""
    fields = [
        Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
        for child in children
    ]
    return sum(int(ticks) for row in fields for ticks in row[11:13]) / os.sysconf("SC_CLK_TCK")


def measure_publication(
    trainer: Child, stations: list[Child], size: int, rounds: int
) -> tuple[float, float]:
    """Return two medians: seconds until the last station has a policy, and processor seconds.

    The processor seconds are those of trainer and stations together, and include making the weights,
    which is the same for all systems. The first round only warms up.
    """
    trials, used = [], []
    for _ in range(-1, rounds):
        before = processor_s([trainer, *stations])
        trainer.pipe.send(size)
        began = trainer.pipe.recv()
        arrivals = [station.pipe.recv() for station in stations]
        assert all(size <= length < size + 1000 for length, _ in arrivals)
        trials.append(max(at for _, at in arrivals) - began)
        used.append(processor_s([trainer, *stations]) - before)
    return statistics.median(trials[1:]), statistics.median(used[1:])


def measure_floor(transport: str, size: int, rounds: int) -> tuple[float, float]:
    """Measure the publication of bare bytes."""
    with contextlib.ExitStack() as children:
        sender = children.enter_context(Child(send_floor, transport, RECEIVERS))
        port = sender.pipe.recv()
        receivers = [
            children.enter_context(Child(receive_floor, transport, port, size))
            for _ in range(RECEIVERS)
        ]
        assert all(station.pipe.recv() == "ready" for station in receivers)
        return measure_publication(sender, receivers, size, rounds)


def measure_ours(
    root: Path, size: int, rounds: int, links: bool, base: int = 0
) -> tuple[float, float]:
    """Measure the publication of our policies to ``RECEIVERS`` stations."""
    with contextlib.ExitStack() as children:
        ours = children.enter_context(Child(serve_ours, root / "run", base))
        port = ours.pipe.recv()
        receivers = [
            children.enter_context(Child(receive_ours, port, n, root / f"policies{n}", links))
            for n in range(RECEIVERS)
        ]
        assert all(station.pipe.recv() == "ready" for station in receivers)
        return measure_publication(ours, receivers, size, rounds)


def measure_policies(
    root: Path, size: int, rounds: int, agentlace: Path | None, linked: bool = False
) -> dict[str, float]:
    """Measure a policy's way to the stations; ``linked`` leaves all but links and sockets out."""
    adapters = size // 40
    costs = {
        "80mb": measure_ours(root / "linked", size, rounds, links=True),
        "80mb_socket": measure_floor("socket", size, rounds),
    }
    if not linked:
        costs |= {
            "80mb_sent": measure_ours(root / "sent", size, rounds, links=False),
            "adapters": measure_ours(root / "adapters", adapters, rounds, False, size - adapters),
            "80mb_grpc": measure_floor("grpc", size, rounds),
        }
    if agentlace and not linked:
        with contextlib.ExitStack() as children:
            theirs = children.enter_context(Child(serve_agentlace, agentlace))
            ports = theirs.pipe.recv()
            receivers = [
                children.enter_context(Child(receive_agentlace, agentlace, ports))
                for _ in range(RECEIVERS)
            ]
            _wait_for_receivers(theirs, receivers)
            costs["80mb_agentlace"] = theirs_s = measure_publication(
                theirs, receivers, size, rounds
            )
    result = {
        f"weights_{what}_{name}": value
        for name, both in costs.items()
        for what, value in zip(("seconds", "processor_s"), both, strict=True)
    }
    result["weights_ratio_socket_80mb"] = costs["80mb"][0] / costs["80mb_socket"][0]
    if agentlace and not linked:
        for what, place in (("ratio", 0), ("processor_ratio", 1)):
            result |= {
                f"weights_{what}_agentlace_{name}": both[place] / theirs_s[place]
                for name, both in costs.items()
                if name != "80mb_agentlace"
            }
    return result


def _wait_for_receivers(trainer: Child, stations: list[Child]) -> None:
    """Publish until every station has received something.

    agentlace's sockets connect at their own pace and lose earlier publications.
    """
    waiting = set(range(len(stations)))
    while waiting:
        trainer.pipe.send(1)
        trainer.pipe.recv()
        time.sleep(0.5)
        for number in list(waiting):
            while stations[number].pipe.poll():
                stations[number].pipe.recv()
                waiting.discard(number)
    time.sleep(1.0)
    for station in stations:
        while station.pipe.poll():
            station.pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--transitions",
        type=int,
        default=1000,
        help="transitions of an upload (default: 1000, which are 100 MB); 0 for none",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=80, help="size of the policy; 0 for none")
    parser.add_argument(
        "--linked", action="store_true", help="measure policies only as links and bare sockets"
    )
    parser.add_argument(
        "--agentlace", type=Path, help="checkout of agentlace, with pyzmq and lz4 installed there"
    )
    parser.add_argument(
        "--stations", type=int, default=0, help="measure this number of stations at once instead"
    )
    parser.add_argument("--uploading", type=int, default=20, help="number of stations that upload")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="duration of the uploads before the policy is published",
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    if options.transitions % LENGTH or options.transitions < 0:
        parser.error(
            f"--transitions: expected a multiple of {LENGTH}, the length of an episode, got "
            f"{options.transitions}"
        )
    if options.stations and options.megabytes < 1:
        parser.error("--megabytes: expected a policy for --stations to wait for, got none")
    if options.stations:
        options.uploading = min(options.uploading, options.stations)
    size = options.megabytes * 1_000_000
    agentlace = options.agentlace and options.agentlace.resolve()
    result: dict[str, float] = {"policy_mb": options.megabytes}
    with tempfile.TemporaryDirectory(prefix="rlinf-bridge-") as folder:
        if options.stations:
            result |= measure_stations(
                Path(folder),
                Child,
                serve_ours,
                options.stations,
                options.uploading,
                options.seconds,
                size,
            )
        else:
            if options.transitions:
                result |= measure_uploads(
                    Path(folder), options.transitions, options.rounds, agentlace
                )
            if options.megabytes:
                result |= measure_policies(
                    Path(folder) / "weights", size, options.rounds, agentlace, options.linked
                )
    for name, value in result.items():
        print(f"{name:32}{value:16,.3f}".rstrip("0").rstrip("."))
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
