"""The peers that benchmarks/bridge.py compares with: agentlace, and a bare gRPC stream."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np

IMAGE, STATE, ACTION = (128, 128, 3), 20, 7
PART_BYTES, RAW, RAW_GET = 1 << 19, "/raw.Stream/Put", "/raw.Stream/Get"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def import_agentlace(path: Path) -> Any:
    """Import agentlace's trainer module from a checkout."""
    sys.path.insert(0, str(path))
    from agentlace import trainer
    from agentlace.data.data_store import QueuedDataStore

    trainer.Queued = QueuedDataStore
    return trainer


def _config(trainer: Any, ports: tuple[int, int]) -> Any:
    return trainer.TrainerConfig(
        port_number=ports[0], broadcast_port=ports[1], request_types=["published"]
    )


def serve_agentlace(pipe: Connection, path: Path) -> None:
    """Run the trainer's end.

    Each number received on the pipe publishes so many bytes; the answer is the time of the start.
    """
    trainer, ports = import_agentlace(path), (free_port(), free_port())
    server = trainer.TrainerServer(_config(trainer, ports), log_level=logging.WARNING)
    server.register_data_store("station", trainer.Queued(50_000))
    server.start(threaded=True)
    pipe.send(ports)
    with contextlib.suppress(EOFError):
        while size := pipe.recv():
            weights = np.random.default_rng(size).integers(0, 256, size, np.uint8)
            pipe.send(time.monotonic())
            server.publish_network({"params": weights})


def receive_agentlace(pipe: Connection, path: Path, ports: tuple[int, int]) -> None:
    """Run a station's end; send the size of each policy and its time of arrival."""
    trainer = import_agentlace(path)

    def note(payload: dict[str, np.ndarray]) -> None:
        pipe.send((len(payload["params"]), time.monotonic()))

    client = trainer.TrainerClient(
        "station", "127.0.0.1", _config(trainer, ports), trainer.Queued(1), log_level=logging.ERROR
    )
    client.recv_network_callback(note)
    with contextlib.suppress(EOFError):
        pipe.recv()
    client.stop()


def transitions(images: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield transitions as HIL-SERL's actor inserts them, each with four images."""
    random = np.random.default_rng(0)
    for step in range(len(images) - 1):
        observation, following = (
            {
                "state": random.random((1, STATE), np.float32),
                "wrist_1": images[k],
                "wrist_2": images[k, ::-1],
            }
            for k in (step, step + 1)
        )
        yield {
            "observations": observation,
            "next_observations": following,
            "actions": random.random(ACTION, np.float32),
            "rewards": 0.0,
            "masks": 1.0,
            "dones": False,
        }


def upload_agentlace(path: Path, ports: tuple[int, int], images: np.ndarray, batch: int) -> float:
    """Return the seconds until all transitions are in the trainer's memory.

    Args:
        batch: transitions in each of the client's updates.
    """
    trainer = import_agentlace(path)
    store, name = trainer.Queued(50_000), "station"
    client = trainer.TrainerClient(
        name,
        "127.0.0.1",
        _config(trainer, ports),
        store,
        log_level=logging.ERROR,
        timeout_ms=20_000,
    )
    before, rows = client.get_server_last_update_id(name), list(transitions(images))
    store.latest_seq_id = before  # continue after the previous round
    started = time.monotonic()
    for number, row in enumerate(rows, 1):
        store.insert(row)
        if number % batch == 0 or number == len(rows):
            assert client.update()
    assert client.get_server_last_update_id(name) == before + len(rows)
    return time.monotonic() - started


def serve_raw(pipe: Connection) -> None:
    """Run a gRPC server that counts the bytes of a stream."""

    def put(parts: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        return sum(map(len, parts)).to_bytes(8, "big")

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.stream_unary_rpc_method_handler(put) if details.method == RAW else None

    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(Handler(),))
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    with contextlib.suppress(EOFError):
        pipe.recv()
    server.stop(None)


def raw_call(port: int) -> Callable[[Iterator[bytes]], bytes]:
    """Return a call that sends a stream of bytes."""
    return grpc.insecure_channel(f"127.0.0.1:{port}").stream_unary(RAW)


def upload_raw(call: Callable[[Iterator[bytes]], bytes], folders: list[Path]) -> float:
    """Return the seconds for the bytes of all files, one stream per folder."""
    started = time.monotonic()
    for folder in folders:
        files = sorted(folder.iterdir())
        assert int.from_bytes(call(_parts(files)), "big") == sum(
            file.stat().st_size for file in files
        )
    return time.monotonic() - started


def _parts(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        with open(file, "rb") as source:
            while data := source.read(PART_BYTES):
                yield data


def send_floor(pipe: Connection, transport: str, stations: int) -> None:
    """Send as many bytes to all stations as each number on the pipe asks for.

    Nothing is read, checked or stored.

    Args:
        transport: "grpc" or "socket".
    """
    begin, sent = threading.Barrier(stations + 1), [b""]

    def get(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            begin.wait()
            for start in range(0, len(sent[0]), PART_BYTES):
                yield sent[0][start : start + PART_BYTES]

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.unary_stream_rpc_method_handler(get) if details.method == RAW_GET else None

    def feed(connection: socket.socket) -> None:
        while True:
            begin.wait()
            connection.sendall(sent[0])

    def accept(listening: socket.socket) -> None:
        for _ in range(stations):
            threading.Thread(target=feed, args=(listening.accept()[0],), daemon=True).start()

    if transport == "grpc":
        server = grpc.server(futures.ThreadPoolExecutor(stations), handlers=(Handler(),))
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        server.start()
    else:
        listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        pipe.send(listening.getsockname()[1])
    with contextlib.suppress(EOFError):
        while size := pipe.recv():
            sent[0] = np.random.default_rng(size).bytes(size)
            pipe.send(time.monotonic())
            begin.wait()


def receive_floor(pipe: Connection, transport: str, port: int, size: int) -> None:
    """Send the time each time ``size`` bytes have arrived."""
    address = ("127.0.0.1", port)
    if transport == "grpc":
        channel = grpc.insecure_channel(f"{address[0]}:{port}")
        lengths = map(len, channel.unary_stream(RAW_GET)(b"all"))
    else:
        connection, buffer = socket.create_connection(address), bytearray(PART_BYTES)
        lengths = iter(lambda: connection.recv_into(buffer), 0)
    pipe.send("ready")
    received = 0
    with contextlib.suppress(BrokenPipeError, grpc.RpcError, ConnectionError):
        for length in lengths:
            received += length
            if received == size:
                pipe.send((received, time.monotonic()))
                received = 0
