"""Answers observations by LeRobot's class, in LeRobot's Python, without our packages.

It runs as ``worker.py FOLDER FD``. A message is safetensors behind its length (8 bytes, little
endian). Its metadata are texts. A request has features as the folder names them, and ``device``,
``seed`` and ``task``. An answer has ``action`` (B, H, A) in the data set's units, or ``error``. The
first answer, to a request without features, describes the policy.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

PROTOCOL = "rlinf-lerobot-1"


class Player:
    """LeRobot's class and processors of a folder, on a device."""

    def __init__(self, folder: str, device: str) -> None:
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors

        try:
            from lerobot.configs import PreTrainedConfig
        except ImportError:  # before 0.6
            from lerobot.configs.policies import PreTrainedConfig

        self.config = PreTrainedConfig.from_pretrained(folder, local_files_only=True)
        self.config.device, self.device = device, device
        policy_class = get_policy_class(self.config.type)
        self.policy = policy_class.from_pretrained(
            folder, config=self.config, strict=True, local_files_only=True
        ).eval()
        self.before, self.after = make_pre_post_processors(
            self.config,
            pretrained_path=folder,
            preprocessor_overrides={"device_processor": {"device": device}},
        )
        queues = getattr(self.policy, "_queues", {})
        self.has_history = any(name.startswith("observation") for name in queues)

    def act(self, tensors: dict[str, Any], sentences: list[str], seed: int) -> Any:
        """Return actions (B, H, A) in the data set's units.

        A policy with a history gets the present time step as all of its history, as at the
        beginning of an episode.
        """
        import torch

        frame: dict[str, Any] = {
            name: value.permute(0, 3, 1, 2).float() / 255.0 if value.dtype == torch.uint8 else value
            for name, value in tensors.items()
        }
        torch.manual_seed(seed)
        with torch.no_grad():
            batch = self.before({**frame, "task": sentences})
            self.policy.reset()
            if self.has_history:
                chunk = torch.stack(
                    [self.policy.select_action(batch) for _ in range(self.config.n_action_steps)], 1
                )
            else:
                chunk = self.policy.predict_action_chunk(batch)
            return (
                torch.stack([self.after(chunk[:, index]) for index in range(chunk.shape[1])], 1)
                .float()
                .cpu()
            )


def serve(connection: socket.socket, folder: str) -> None:
    """Answer requests until the other side is gone."""
    from safetensors.torch import load, save

    player: Player | None = None
    while (data := receive(connection)) is not None:
        tensors, texts = load(data), metadata_of(data)
        try:
            if player is None or player.device != texts["device"]:
                player = Player(folder, texts["device"])
            if tensors:
                answer = save(
                    {
                        "action": player.act(
                            tensors, json.loads(texts["task"]), int(texts["seed"])
                        ).contiguous()
                    }
                )
            else:
                answer = save(
                    {}, {"protocol": PROTOCOL, "type": player.config.type, "version": version()}
                )
        except Exception as error:  # noqa: BLE001 (the other side reports it, whatever it is)
            traceback.print_exc()
            answer = save({}, {"error": f"{type(error).__name__}: {error}"})
        connection.sendall(struct.pack("<Q", len(answer)) + answer)


def version() -> str:
    """Return the version of LeRobot."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("lerobot")
    except PackageNotFoundError:
        return "unknown"


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None at the end."""
    header = _read(connection, 8)
    return None if header is None else _read(connection, struct.unpack("<Q", header)[0])


def _read(connection: socket.socket, size: int) -> bytes | None:
    data, at = bytearray(size), 0
    while at < size:
        count = connection.recv_into(memoryview(data)[at:])
        if not count:
            return None
        at += count
    return bytes(data)


def metadata_of(data: bytes) -> dict[str, str]:
    """Return the metadata texts of a message in safetensors."""
    size = struct.unpack("<Q", data[:8])[0]
    texts: dict[str, str] = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    return texts


def end_with(descriptor: int) -> None:
    """End this session once the other side is gone, whatever it computes."""
    poller = select.poll()
    poller.register(descriptor, 0)
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve the folder and the descriptor of the command line."""
    folder, descriptor = sys.argv[1], int(sys.argv[2])
    here = str(Path(__file__).parent)
    # the folder of this file holds modules named as ours
    sys.path[:] = [path for path in sys.path if path != here]
    threading.Thread(target=end_with, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        serve(connection, folder)


if __name__ == "__main__":
    main()
