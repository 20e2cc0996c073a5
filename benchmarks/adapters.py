"""A new version of a large policy on its way to a station: all of it, or the adapters alone.

    python benchmarks/adapters.py --json results.json

A vision-language-action model of 500 MB with random weights; the trainer's bridge and a station's
client of it over loopback, both in this process. Of each version: bytes on the wire, and seconds
until it is there, checked and flushed (``travels``). Beside them what the trainer takes to write
its file (``writes``), and a station to load it (``loads``): with adapters both look at the base,
too, whose hash is computed. Every number of a policy changes between two versions, or every one of
its adapters. It does not cover a network between them, several stations, or a node that plays
meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

TEXT = {
    "hidden_size": 1024,
    "num_hidden_layers": 7,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}


def policy_of(rank: int) -> Any:
    """Some 120 million numbers."""
    from rlinf_core.policies import make_policy
    from rlinf_core.policies.pretrained import openvla
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    torch.manual_seed(0)
    action = ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m"))
    spec = StationSpec(
        (ArraySpec("state", (3,)), ArraySpec("front", (64, 64, 3), "uint8")), action, 10.0, "go"
    )
    return make_policy(
        spec, openvla.Config(horizon=4, network={"text_config": TEXT}, lora={"rank": rank})
    )


@torch.no_grad()
def train(policy: Any) -> None:
    """Something else in all that is trained."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter += 1e-3


def measured(rank: int, rounds: int, folder: Path) -> dict[str, float]:
    from rlinf_core.deploy.bridge import bridge_pb2 as pb
    from rlinf_core.deploy.bridge.client import BridgeClient
    from rlinf_core.deploy.bridge.server import BridgeServer
    from rlinf_core.policies.serialization import load_policy, policy_name, save_policy

    policy = policy_of(rank)
    server = BridgeServer("127.0.0.1:0", folder / "inbox", folder / "policies", print, dict)
    client = BridgeClient(f"127.0.0.1:{server.port}", "a", links=False)
    station_folder = folder / "station"
    have = None
    times: dict[str, list[float]] = {"writes": [], "travels": [], "loads": []}
    size = 0
    for version in range(1, rounds + 2):  # the first is new to the station, and does not count
        train(policy)
        began = time.perf_counter()
        save_policy(policy, folder / "aside" / policy_name(version))
        wrote = time.perf_counter()
        for base in (folder / "aside").glob("base-*"):  # once, by hand: docs/howto/vla.md
            for where in (server.policies, station_folder):
                where.mkdir(parents=True, exist_ok=True)
                (where / base.name).exists() or shutil.copy(base, where / base.name)
        (folder / "aside" / policy_name(version)).rename(server.policies / policy_name(version))
        published = time.perf_counter()
        fetched = client.next_policy(
            version - 1 if have else -1, station_folder, wait_s=60.0, base=have
        )
        arrived = time.perf_counter()
        assert fetched is not None and fetched.version == version
        load_policy(fetched.path)
        loaded = time.perf_counter()
        if have is not None:
            request = pb.PolicyRequest(
                have_version=-1, have_sha256=have.sha256, have_file=have.version
            )
            size = sum(
                part.ByteSize()
                for part in client._stub.NextPolicy(request, metadata=client._metadata)
            )
            for name, took in (
                ("writes", wrote - began),
                ("travels", arrived - published),
                ("loads", loaded - arrived),
            ):
                times[name].append(took)
        have = fetched
    client.close()
    server.stop()
    total = sum(tensor.numel() * tensor.element_size() for tensor in policy.state_dict().values())
    return {"policy_mb": total / 1e6, "wire_mb": size / 1e6} | {
        f"{name}_s": statistics.median(took) for name, took in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    flat: dict[str, float] = {}
    for name, rank in (("whole", 0), ("adapters", options.rank)):
        with tempfile.TemporaryDirectory(prefix="rlinf-adapters-") as folder:
            for key, value in measured(rank, options.rounds, Path(folder)).items():
                flat[f"{name}_{key}"] = value
                print(f"{name:>10} {key:12}{value:10.3f}", flush=True)
    flat |= {
        "bytes_ratio": flat["adapters_wire_mb"] / flat["whole_wire_mb"],
        "time_ratio": flat["adapters_travels_s"] / flat["whole_travels_s"],
    }
    print(f"bytes {flat['bytes_ratio']:.4f}, time {flat['time_ratio']:.4f} of the whole one's")
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
