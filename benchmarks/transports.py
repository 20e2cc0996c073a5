"""Measure the seconds from a tensor in the trainer's process, or in a Ray actor, to its readers.

The benchmark compares Ray's object store with the transports of ``ray.experimental.rdt``. A transport
that fails prints its error. NIXL needs the package ``nixl``.

    python benchmarks/transports.py --json FILE      # 80 MB on CPUs
    python benchmarks/transports.py --device cuda    # several readers need several GPUs

The benchmark does not cover several machines, weights of which only a part changes, and other work on the
machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental.collective import create_collective_group

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.figures import write  # noqa: E402


class Process:
    """A Ray actor that holds a tensor and reads those of others."""

    def __init__(self, numbers: int, device: str) -> None:
        self.tensor = torch.randn(numbers, device=device)

    @ray.method(tensor_transport="gloo")
    def by_gloo(self) -> torch.Tensor:
        return self.tensor

    @ray.method(tensor_transport="nccl")
    def by_nccl(self) -> torch.Tensor:
        return self.tensor

    def by_store(self) -> np.ndarray:
        return self.tensor.numpy(force=True)

    def read(self, value: Any) -> float:
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        return float(tensor[-1])


def measure(name: str, send: Callable[[], Any], rounds: int) -> float:
    """Print and return the median of the rounds after the first one; NaN if it fails."""
    seconds = []
    try:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            send()
            seconds.append(time.perf_counter() - started)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1]}", flush=True)
        return float("nan")
    part = seconds[1:]
    middle = statistics.median(part)
    print(f"{name}: {middle:.3f} s ({min(part):.3f} to {max(part):.3f})", flush=True)
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write one flat object there [s]; null: failed")
    options = parser.parse_args()
    numbers, on_gpu = options.megabytes * 250_000, options.device != "cpu"
    ray.init(include_dashboard=False, log_to_driver=False)
    kind = ray.remote(num_cpus=0.25, num_gpus=float(on_gpu), enable_tensor_transport=True)(Process)
    count = min(3, int(ray.cluster_resources().get("GPU", 0))) if on_gpu else 3
    first, *readers = [kind.remote(numbers, options.device) for _ in range(count)]
    ray.get([process.__ray_ready__.remote() for process in (first, *readers)])
    tensor = torch.randn(numbers, device=options.device)
    group = "nccl" if on_gpu else "gloo"
    create_collective_group([first, *readers], backend=group)

    def read(send: Callable[[], Any], number: int) -> None:
        reference = send()
        ray.get([process.read.remote(reference) for process in readers[:number]], timeout=60)

    figures: dict[str, float] = {}
    for number in range(1, len(readers) + 1):
        label = f"{number} reader{'s' * (number > 1)}"
        sends: dict[str, Callable[[], Any]] = {
            "trainer, store": lambda: ray.put(tensor.numpy(force=True)),
            "trainer, nixl": lambda: ray.put(tensor, _tensor_transport="nixl"),
            "trainer, cuda_ipc": lambda: ray.put(tensor, _tensor_transport="cuda_ipc"),
            f"trainer, {group}": lambda: ray.put(tensor, _tensor_transport=group),
            "actor, store": lambda: first.by_store.remote(),
            f"actor, {group}": lambda: getattr(first, f"by_{group}").remote(),
        }
        for name, send in sends.items():
            key = f"{label}, {name}"
            figures[key] = measure(key, partial(read, send, number), options.rounds)
    ray.shutdown()
    if options.json:
        write(options.json, figures)


if __name__ == "__main__":
    main()
