"""The bridge beside agentlace and beside gRPC alone, over loopback: episodes up, a policy down,
many stations at once.

    git clone https://github.com/youliangtan/agentlace && uv pip install --target agentlace pyzmq
    lz4 python benchmarks/bridge.py --agentlace agentlace --json results.json
    python benchmarks/bridge.py --stations 200 --uploading 20 --json results.json

Up: transitions with two 128x128 images, from a station's process to a trainer's. Ours are recorded
episodes of 50 time steps: from closed in the spool to durable and journalled at the trainer
(`upload`); and from the first message on, with the recording and its flushes (`recorded`).
agentlace's go as HIL-SERL inserts them, from the client's store to the server's, in memory; one or
50 an update, of which the faster counts. gRPC alone sends the bytes of our files, and keeps
nothing. All in turns; medians of the rounds.

Down: a policy from the trainer's memory to 8 stations, each a process. Ours is written there, as the
trainer does: its flush to the disk goes on meanwhile, and is waited for before the next one begins,
which is not timed. It is fetched and checked at the station: as a link to the trainer's file, which is what
stations of the trainer's machine do (`weights_seconds_80mb`), or sent, as to stations elsewhere
(`..._sent`); or as adapters alone, a fortieth, whose base the station has, sent too
(`weights_seconds_adapters`). agentlace's is broadcast and unpacked. It does not cover loading it
into a network.

Many: so many stations, each with the two connections of an uplink, that report twice a second and
wait for policies; some upload all the while, and a policy is published. Memory is the trainer's,
which is a process of its own.
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
from bridge_many import many  # noqa: E402
from bridge_peers import (  # noqa: E402
    IMAGE,
    hear_agentlace,
    hear_floor,
    raw_call,
    serve_agentlace,
    serve_floor,
    serve_raw,
    upload_agentlace,
    upload_raw,
)

from benchmarks.figures import write  # noqa: E402
from rlinf_core.core.atomic_io import write_atomically  # noqa: E402
from rlinf_core.deploy.bridge.client import BridgeClient, Sender  # noqa: E402
from rlinf_core.deploy.bridge.server import BridgeServer  # noqa: E402
from rlinf_core.episodes.spool import Spool  # noqa: E402
from rlinf_core.policies.lora import base_name  # noqa: E402
from rlinf_core.policies.serialization import policy_name  # noqa: E402
from rlinf_core.tasks.task import load_task  # noqa: E402
from rlinf_core.trainer.policy_flush import PolicyFlush  # noqa: E402

LENGTH, HEARING, STATION_KEY = 50, 8, "a"  # an episode's name begins with its station's
DIGEST = "0123456789abcdef" * 4  # of the weights that adapters are for


class Child:
    """A process of its own, and a pipe to it; ``said`` is its first word."""

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
        self.process.join(1.0)  # one that waits for bytes never ends
        self.process.kill()


def serve_ours(pipe: Connection, root: Path, base: int = 0) -> None:
    """A trainer's end.

    A number that is sent publishes so many bytes; the answer says when that began.

    With a ``base`` of so many bytes, each policy stands on it.
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


def hear_ours(pipe: Connection, port: int, number: int, folder: Path, links: bool = False) -> None:
    """A station's end: says the size of each policy that comes, and when it was there."""
    client, version, base = BridgeClient(f"127.0.0.1:{port}", f"s{number}", links=links), 0, None
    client.report(0, 0, timeout_s=20.0)
    pipe.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while not pipe.poll():
            if fetched := client.next_policy(version, folder, wait_s=5.0, base=base):
                base, version = fetched, fetched.version
                pipe.send((fetched.path.stat().st_size, time.monotonic()))


def images_of(count: int) -> np.ndarray:
    """Frames that look like a camera's to a compressor: a slope, and noise of a few levels."""
    random = np.random.default_rng(0)
    slope = np.add.outer(np.arange(IMAGE[0]), np.arange(IMAGE[1]))[..., None] // 2
    return (slope + random.integers(0, 8, (count, *IMAGE)) + 20).astype(np.uint8)


def recordings(images: np.ndarray) -> list[list[tuple[str, str, int, bytes]]]:
    """The messages of episodes of ``LENGTH`` transitions with these images."""
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
    """Seconds from closed to acknowledged, seconds of recording, and the bytes."""
    from tests.messages import write_raw

    started = time.monotonic()
    for number, episode in enumerate(messages):
        write_raw(spool, f"{name}-{number}", episode).close()
    recorded = time.monotonic()
    size = sum(file.stat().st_size for file in spool.root.glob("closed/*/*"))
    assert Sender(spool, client, print).send_all() == "" and not spool.closed()
    assert len(list(spool.root.glob(f"sent/{name}-*"))) == len(messages)  # none was refused
    return time.monotonic() - recorded, recorded - started, size


def upload(root: Path, count: int, rounds: int, agentlace: Path | None) -> dict[str, float]:
    """Transitions a second, of each."""
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
        for number in range(-1, rounds):  # the first one only warms up
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
    """Of the cores, what these processes have had."""
    fields = [
        Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
        for child in children
    ]
    return sum(int(ticks) for row in fields for ticks in row[11:13]) / os.sysconf("SC_CLK_TCK")


def publication(
    trainer: Child, stations: list[Child], size: int, rounds: int
) -> tuple[float, float]:
    """Seconds from the publication until the last of the stations has it, and of the cores, both
    ends' together; medians.

    The first one only warms up. Of the trainer's, making the weights counts too, which is the same
    for all.
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


def publication_floor(how: str, size: int, rounds: int) -> tuple[float, float]:
    """Of bytes alone."""
    with contextlib.ExitStack() as children:
        sending = children.enter_context(Child(serve_floor, how, HEARING))
        port = sending.pipe.recv()
        hearing = [
            children.enter_context(Child(hear_floor, how, port, size)) for _ in range(HEARING)
        ]
        assert all(station.pipe.recv() == "ready" for station in hearing)
        return publication(sending, hearing, size, rounds)


def publication_ours(
    root: Path, size: int, rounds: int, links: bool, base: int = 0
) -> tuple[float, float]:
    """Of our policies, from one to eight."""
    with contextlib.ExitStack() as children:
        ours = children.enter_context(Child(serve_ours, root / "run", base))
        port = ours.pipe.recv()
        hearing = [
            children.enter_context(Child(hear_ours, port, n, root / f"policies{n}", links))
            for n in range(HEARING)
        ]
        assert all(station.pipe.recv() == "ready" for station in hearing)
        return publication(ours, hearing, size, rounds)


def weights(
    root: Path, size: int, rounds: int, agentlace: Path | None, linked: bool = False
) -> dict[str, float]:
    """A policy from one to eight; only linked and over bare sockets if ``linked``."""
    adapters = size // 40
    costs = {
        "80mb": publication_ours(root / "linked", size, rounds, links=True),
        "80mb_socket": publication_floor("socket", size, rounds),
    }
    if not linked:
        costs |= {
            "80mb_sent": publication_ours(root / "sent", size, rounds, links=False),
            "adapters": publication_ours(
                root / "adapters", adapters, rounds, False, size - adapters
            ),
            "80mb_grpc": publication_floor("grpc", size, rounds),
        }
    if agentlace and not linked:
        with contextlib.ExitStack() as children:
            theirs = children.enter_context(Child(serve_agentlace, agentlace))
            ports = theirs.pipe.recv()
            hearing = [
                children.enter_context(Child(hear_agentlace, agentlace, ports))
                for _ in range(HEARING)
            ]
            _until_all_hear(theirs, hearing)
            costs["80mb_agentlace"] = theirs_s = publication(theirs, hearing, size, rounds)
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


def _until_all_hear(trainer: Child, stations: list[Child]) -> None:
    """Its sockets join in their own time, and what was published before is lost to them."""
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
        help="of an upload (default: 1000, 100 MB of ours); 0 for none",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=80, help="of the policy; 0 for none")
    parser.add_argument(
        "--linked", action="store_true", help="of policies, only linked and over bare sockets"
    )
    parser.add_argument(
        "--agentlace", type=Path, help="a checkout of it, with pyzmq and lz4 installed there"
    )
    parser.add_argument(
        "--stations", type=int, default=0, help="measure so many stations at once instead"
    )
    parser.add_argument("--uploading", type=int, default=20, help="how many of them upload")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="for how long they upload before the policy comes",
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    if options.transitions % LENGTH or options.transitions < 0:
        parser.error(
            f"--transitions: expected a multiple of {LENGTH}, of which an episode has so many, got "
            f"{options.transitions}"
        )
    if options.stations and options.megabytes < 1:
        parser.error("--megabytes: expected a policy for --stations to wait for, got none")
    options.uploading = (
        min(options.uploading, options.stations) if options.stations else options.uploading
    )
    size = options.megabytes * 1_000_000
    agentlace = options.agentlace and options.agentlace.resolve()
    result: dict[str, float] = {"policy_mb": options.megabytes}
    with tempfile.TemporaryDirectory(prefix="rlinf-bridge-") as folder:
        if options.stations:
            result |= many(
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
                result |= upload(Path(folder), options.transitions, options.rounds, agentlace)
            result |= (
                {}
                if options.megabytes == 0
                else weights(
                    Path(folder) / "weights", size, options.rounds, agentlace, options.linked
                )
            )
    for name, value in result.items():
        print(f"{name:32}{value:16,.3f}".rstrip("0").rstrip("."))
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
