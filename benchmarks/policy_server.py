"""Measure the overhead of a policy server: rlinf serve's round trip, openpi's, and batching.

    python benchmarks/policy_server.py --openpi
    ~/openpi/src/openpi/serving/websocket_policy_server.py --json results.json

The client is openpi-client, unmodified, in this process; each server is a process of its own.

* Round trip: a model that does nothing maps two 224x224 images and 8 numbers to a chunk of 50x7.
  The servers take turns.
* Throughput: 8 clients send the next request as soon as the answer arrives. A batch of the model
  costs as much as one sample (20 ms asleep, as the CPU is while a GPU computes). The server forms
  batches of up to 8, or none.

The peer is openpi's own websocket_policy_server.py if --openpi names that file, else a server of a
few lines that does the same (``peer_is_openpis_own``: 1 or 0). The benchmark does not cover a
network, or a real model.
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


def serve(server_name: str, openpi: Path | None, cost_s: float) -> None:
    """Run the server of this name in this process."""
    if server_name == "openpi":
        asyncio.run(serve_openpi(openpi, cost_s))
    else:
        asyncio.run(serve_ours(CLIENTS if server_name == "batched" else 1, cost_s))


async def serve_ours(max_batch: int, cost_s: float) -> None:
    """Run ``rlinf serve`` without its command line and its policy file."""
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

    class NullModel:
        spec = StationSpec((ArraySpec("joints", (STATE,)), *cameras), action, 10.0, "nothing")
        config, device = PolicySettings(kind="null", horizon=HORIZON), torch.device("cpu")
        needs_instruction = False

        def act(self, observation: Any, explore: bool, generator: Any = None) -> ActionChunk:
            time.sleep(cost_s) if cost_s else None
            actions = torch.zeros(len(observation), HORIZON, ACTIONS)
            return ActionChunk(actions, HORIZON, actions)

    class LoadedPolicy:
        newest = Version(NullModel())  # type: ignore[arg-type]

        def look(self, say: Any) -> bool:
            return False

    server = PolicyServer(LoadedPolicy(), max_batch, 0.01, lambda line: None)  # type: ignore[arg-type]
    await serve_until_cancelled(server, "127.0.0.1", 0, print_port)


async def serve_openpi(file: Path | None, cost_s: float) -> None:
    """Run openpi's server with a model that does nothing."""

    class NullModel:
        def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
            time.sleep(cost_s) if cost_s else None
            return {"actions": np.zeros((HORIZON, ACTIONS))}

    if file is None:
        return await serve_like_openpi(NullModel())
    spec = importlib.util.spec_from_file_location("openpis_server", file)
    assert spec and spec.loader, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    port = free_port()
    asyncio.get_running_loop().call_later(1.0, print_port, port)
    await module.WebsocketPolicyServer(NullModel(), "127.0.0.1", port).run()


async def serve_like_openpi(model: Any) -> None:
    """Serve like openpi: unpack, infer and pack in the event loop, one message at a time."""
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
        print_port(next(iter(server.sockets)).getsockname()[1])
        await server.serve_forever()


def print_port(port: int) -> None:
    print(port, flush=True)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server in its own process, which ends with the block."""

    def __init__(self, server_name: str, openpi: Path | None, cost_s: float = 0.0) -> None:
        command = [sys.executable, __file__, "--serve", server_name, "--cost", str(cost_s)]
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

    def __enter__(self) -> ServerProcess:
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
    """Return the times of some requests [ms]."""
    request, times = observation(), []
    for _ in range(count):
        began = time.perf_counter()
        answer = client.infer(request)
        times.append(1e3 * (time.perf_counter() - began))
    assert answer["actions"].shape == (HORIZON, ACTIONS)
    return times


def throughput(server_name: str, openpi: Path | None, seconds: float) -> float:
    """Return the answers per second to all clients together."""
    request, deadline, counts = observation(), [0.0], [0] * CLIENTS
    with ServerProcess(server_name, openpi, COST_S) as served:
        clients = [served.client() for _ in range(CLIENTS)]
        start_barrier = threading.Barrier(CLIENTS + 1)

        def send_requests(index: int) -> None:
            clients[index].infer(request)
            start_barrier.wait()
            while time.perf_counter() < deadline[0]:
                clients[index].infer(request)
                counts[index] += 1

        threads = [
            threading.Thread(target=send_requests, args=(index,)) for index in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        deadline[0] = time.perf_counter() + 3600.0
        start_barrier.wait()
        began = time.perf_counter()
        deadline[0] = began + seconds
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)


def measure(openpi: Path | None, rounds: int, requests: int, seconds: float) -> dict[str, float]:
    result: dict[str, float] = {"peer_is_openpis_own": int(openpi is not None)}
    times: dict[str, list[float]] = {"rlinf": [], "openpi": []}
    with (
        ServerProcess("batched", openpi) as our_server,
        ServerProcess("openpi", openpi) as openpi_server,
    ):
        clients = {"rlinf": our_server.client(), "openpi": openpi_server.client()}
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
    for server_name in ("batched", "unbatched", "openpi"):
        result[f"{server_name}_per_s"] = throughput(server_name, openpi, seconds)
    return result | {
        "batched_throughput_ratio": result["batched_per_s"] / result["unbatched_per_s"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openpi", type=Path, help="openpi's websocket_policy_server.py, the peer")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--requests", type=int, default=200, help="requests of a round, to each server"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each throughput")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--cost", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.openpi, options.cost)
    result = measure(options.openpi, options.rounds, options.requests, options.seconds)
    for name, value in result.items():
        print(f"{name:28}{value:10.3f}")
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
