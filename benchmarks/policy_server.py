"""Measure the overhead of a policy server: rlinf serve's round trip and openpi's, and batches.

    python benchmarks/policy_server.py --openpi
    ~/openpi/src/openpi/serving/websocket_policy_server.py --json results.json

The client is openpi-client, unmodified, in this process; each server is a process of its own. Round
trip: a model that does nothing, two 224x224 images and 8 numbers to a chunk of 50x7; servers take
turns in rounds. Throughput: 8 clients ask for what they need next as soon as they are answered, of
a model whose batch costs what one sample does (20 ms asleep, as the CPU is while a GPU computes),
in batches of up to 8 and one by one. The peer is openpi's own websocket_policy_server.py where
--openpi names that file, of a checkout of openpi; else a server of the same few lines, written
after what it does (``peer_is_openpis_own``: 1 or 0). It does not cover a network, or a real model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

CLIENTS, HORIZON, COST_S = 8, 50, 0.02
CAMERAS, STATE, ACTIONS = ("front", "wrist"), 8, 7


# Servers, each in a process of its own
def serve(which: str, openpi: Path | None, cost_s: float) -> None:
    if which == "openpi":
        asyncio.run(openpis(openpi, cost_s))
    else:
        asyncio.run(ours(CLIENTS if which == "batched" else 1, cost_s))


async def ours(max_batch: int, cost_s: float) -> None:
    """``rlinf serve``, but for its command line and the file that a policy is loaded from."""
    import torch

    from rlinf_core.deploy.serving.server import PolicyServer, serve_until_cancelled
    from rlinf_core.deploy.serving.weights import Version
    from rlinf_core.policies.base import ActionChunk
    from rlinf_core.policies.settings import PolicySettings
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    cameras = tuple(ArraySpec(name, (224, 224, 3), "uint8") for name in CAMERAS)
    action = ActionSpec(
        "joint_position",
        tuple(f"j{i}" for i in range(ACTIONS)),
        (1.0,) * ACTIONS,
        ("rad",) * ACTIONS,
    )

    class Null:
        spec = StationSpec((ArraySpec("joints", (STATE,)), *cameras), action, 10.0, "nothing")
        config, device = PolicySettings(kind="null", horizon=HORIZON), torch.device("cpu")
        needs_instruction = False

        def act(self, observation: Any, explore: bool, generator: Any = None) -> ActionChunk:
            time.sleep(cost_s) if cost_s else None
            actions = torch.zeros(len(observation), HORIZON, ACTIONS)
            return ActionChunk(actions, HORIZON, actions)

    class Loaded:
        newest = Version(Null())  # type: ignore[arg-type]

        def look(self, say: Any) -> bool:
            return False

    server = PolicyServer(Loaded(), max_batch, 0.01, lambda line: None)  # type: ignore[arg-type]
    await serve_until_cancelled(server, "127.0.0.1", 0, ready)


async def openpis(file: Path | None, cost_s: float) -> None:
    """openpi's, with a model that does nothing."""

    class Null:
        def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
            time.sleep(cost_s) if cost_s else None
            return {"actions": np.zeros((HORIZON, ACTIONS))}

    if file is None:
        return await like_openpis(Null())
    spec = importlib.util.spec_from_file_location("openpis_server", file)
    assert spec and spec.loader, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    port = free_port()
    asyncio.get_running_loop().call_later(1.0, ready, port)
    await module.WebsocketPolicyServer(Null(), "127.0.0.1", port).run()


async def like_openpis(model: Any) -> None:
    """As openpi's does it: unpack, infer and pack in the event loop, one message after the other,
    no compression.
    """
    from openpi_client import msgpack_numpy
    from websockets.asyncio.server import ServerConnection
    from websockets.asyncio.server import serve as listen
    from websockets.exceptions import ConnectionClosed

    async def handle(connection: ServerConnection) -> None:
        packer = msgpack_numpy.Packer()
        await connection.send(packer.pack({}))
        try:
            while True:
                observation = msgpack_numpy.unpackb(await connection.recv())
                began = time.monotonic()
                answer = model.infer(observation)
                answer["server_timing"] = {"infer_ms": 1e3 * (time.monotonic() - began)}
                await connection.send(packer.pack(answer))
        except ConnectionClosed:
            pass

    async with listen(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await server.serve_forever()


def ready(port: int) -> None:
    print(port, flush=True)


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# Clients
class Served:
    """A server in a process of its own, as long as the block runs."""

    def __init__(self, which: str, openpi: Path | None, cost_s: float = 0.0) -> None:
        command = [sys.executable, __file__, "--serve", which, "--cost", str(cost_s)]
        self.process = subprocess.Popen(
            command + (["--openpi", str(openpi)] if openpi else []),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    def client(self) -> Any:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        return WebsocketClientPolicy("127.0.0.1", self.port)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(10)


def observation() -> dict[str, Any]:
    noise = np.random.default_rng(0)
    pictures = {
        f"observation/{name}": noise.integers(0, 256, (224, 224, 3), np.uint8) for name in CAMERAS
    }
    return pictures | {
        "observation/joints": noise.normal(size=STATE).astype(np.float32),
        "prompt": "do nothing",
    }


def round_trips(client: Any, count: int) -> list[float]:
    """Of so many requests [ms]."""
    request, times = observation(), []
    for _ in range(count):
        began = time.perf_counter()
        answer = client.infer(request)
        times.append(1e3 * (time.perf_counter() - began))
    assert answer["actions"].shape == (HORIZON, ACTIONS)
    return times


def throughput(which: str, openpi: Path | None, seconds: float) -> float:
    """Answers a second to all clients together."""
    request, until, counts = observation(), [0.0], [0] * CLIENTS
    with Served(which, openpi, COST_S) as served:
        clients = [served.client() for _ in range(CLIENTS)]
        meet = threading.Barrier(CLIENTS + 1)

        def ask(index: int) -> None:
            clients[index].infer(request)
            meet.wait()
            while time.perf_counter() < until[0]:
                clients[index].infer(request)
                counts[index] += 1

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(CLIENTS)]
        for thread in threads:
            thread.start()
        until[0] = time.perf_counter() + 3600.0
        meet.wait()
        began = time.perf_counter()
        until[0] = began + seconds
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)


def measured(openpi: Path | None, rounds: int, requests: int, seconds: float) -> dict[str, float]:
    result: dict[str, float] = {"peer_is_openpis_own": int(openpi is not None)}
    times: dict[str, list[float]] = {"rlinf": [], "openpi": []}
    with Served("batched", openpi) as mine, Served("openpi", openpi) as theirs:
        clients = {"rlinf": mine.client(), "openpi": theirs.client()}
        for client in clients.values():
            round_trips(client, 50)
        for _ in range(rounds):
            for name, client in clients.items():
                times[name] += round_trips(client, requests)
    for name, values in times.items():
        result |= {
            f"{name}_p50_ms": float(np.quantile(values, 0.5)),
            f"{name}_p99_ms": float(np.quantile(values, 0.99)),
        }
    result["p50_ratio_openpi"] = result["rlinf_p50_ms"] / result["openpi_p50_ms"]
    for which in ("batched", "unbatched", "openpi"):
        result[f"{which}_per_s"] = throughput(which, openpi, seconds)
    return result | {
        "batched_throughput_ratio": result["batched_per_s"] / result["unbatched_per_s"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openpi", type=Path, help="openpi's websocket_policy_server.py, the peer")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=200, help="of a round, to each server")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each throughput")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--cost", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.openpi, options.cost)
    result = measured(options.openpi, options.rounds, options.requests, options.seconds)
    for name, value in result.items():
        print(f"{name:28}{value:10.3f}")
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
