"""Time the transfer of a new policy version to a station: the full model, or its adapters alone.

    python benchmarks/adapters.py --json results.json

The policy is a vision-language-action model of 500 MB with random weights. The trainer's bridge and
a station's client run in this process, over loopback. The benchmark reports for each version the
bytes on the wire and three times:

* ``writes``: the trainer writes its file.
* ``travels``: the station downloads the file, checks it and flushes it to the disk.
* ``loads``: the station loads the file.

With adapters, ``writes`` and ``loads`` include a hash of the base weights. Between two versions
every trainable number changes: all of the model, or all of its adapters. The benchmark does not
cover a network, several stations, or a node that plays meanwhile.
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


def make_vla(rank: int) -> Any:
    """Return a model of about 120 million numbers; rank 0 has no adapters."""
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
def change_weights(policy: Any) -> None:
    """Change every trainable number."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter += 1e-3


def measure(rank: int, rounds: int, folder: Path) -> dict[str, float]:
    """Return sizes [MB] and median times [s] of the transfer of one version."""
    from rlinf_core.deploy.bridge import bridge_pb2 as pb
    from rlinf_core.deploy.bridge.client import BridgeClient
    from rlinf_core.deploy.bridge.server import BridgeServer
    from rlinf_core.policies.policy_folder import policy_name
    from rlinf_core.policies.serialization import load_policy, save_policy

    policy = make_vla(rank)
    server = BridgeServer("127.0.0.1:0", folder / "inbox", folder / "policies", print, dict)
    client = BridgeClient(f"127.0.0.1:{server.port}", "a", links=False)
    station_folder = folder / "station"
    station_policy = None
    times: dict[str, list[float]] = {"writes": [], "travels": [], "loads": []}
    size = 0
    for version in range(1, rounds + 2):  # version 1 is a full download and does not count
        change_weights(policy)
        began = time.perf_counter()
        save_policy(policy, folder / "aside" / policy_name(version))
        written_at = time.perf_counter()
        # A person copies the base weights once (docs/howto/vla.md).
        for base in (folder / "aside").glob("base-*"):
            for target in (server.policies, station_folder):
                target.mkdir(parents=True, exist_ok=True)
                if not (target / base.name).exists():
                    shutil.copy(base, target / base.name)
        (folder / "aside" / policy_name(version)).rename(server.policies / policy_name(version))
        published = time.perf_counter()
        fetched = client.next_policy(
            version - 1 if station_policy else -1, station_folder, wait_s=60.0, base=station_policy
        )
        arrived = time.perf_counter()
        assert fetched is not None and fetched.version == version
        load_policy(fetched.path)
        loaded = time.perf_counter()
        if station_policy is not None:
            request = pb.PolicyRequest(
                have_version=-1, have_sha256=station_policy.sha256, have_file=station_policy.version
            )
            size = sum(
                part.ByteSize()
                for part in client._stub.NextPolicy(request, metadata=client._metadata)
            )
            for name, took in (
                ("writes", written_at - began),
                ("travels", arrived - published),
                ("loads", loaded - arrived),
            ):
                times[name].append(took)
        station_policy = fetched
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
            for key, value in measure(rank, options.rounds, Path(folder)).items():
                flat[f"{name}_{key}"] = value
                print(f"{name:>10} {key:12}{value:10.3f}", flush=True)
    flat |= {
        "bytes_ratio": flat["adapters_wire_mb"] / flat["whole_wire_mb"],
        "time_ratio": flat["adapters_travels_s"] / flat["whole_travels_s"],
    }
    print(f"adapters / full model: bytes {flat['bytes_ratio']:.4f}, time {flat['time_ratio']:.4f}")
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
