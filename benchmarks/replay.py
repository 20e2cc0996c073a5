"""Insert and sample rate of the trainer's replay, beside a plain NumPy ring of transitions: state
and two 128x128 images.

    python benchmarks/replay.py --json results.json

The ring is what most code starts from: one array per field, observation and next observation both
stored, filled one transition at a time. Ours takes whole episodes and stores every observation
once. Both sample uniformly.

    python benchmarks/replay.py --agentlace PATH    # adds agentlace's TrajectoryBuffer (needs jax and chex)

It does not cover reading episodes from disk, the bridge, or the copy to a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.figures import write  # noqa: E402

IMAGE, LENGTH = (128, 128, 3), 50


class Ours:
    """rlinf_core.data.replay."""

    def __init__(self, capacity: int) -> None:
        from rlinf_core.data.replay import ReplayBuffer
        from rlinf_core.tasks.task import load_task

        task = load_task(ROOT / "configs/tasks/peg_insertion.yaml")
        spec = task.with_images({"front": IMAGE[:2], "wrist": IMAGE[:2]}).spec
        self.buffer, self.vector_size = ReplayBuffer(spec, capacity), spec.vector_size

    def insert(self, episode: dict[str, np.ndarray]) -> None:
        observations = {name: episode[name] for name in ("vectors", "front", "wrist")}
        self.buffer.insert_episode(
            observations, episode["action"], episode["reward"], episode["discount"]
        )

    def sample(self, size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        return self.buffer.sample(size, random)


class Ring:
    """A plain NumPy ring of transitions."""

    def __init__(self, capacity: int, vector_size: int) -> None:
        def fields(prefix: str) -> dict[str, np.ndarray]:
            return {
                f"{prefix}vectors": np.zeros((capacity, vector_size), np.float32),
                f"{prefix}front": np.zeros((capacity, *IMAGE), np.uint8),
                f"{prefix}wrist": np.zeros((capacity, *IMAGE), np.uint8),
            }

        self.arrays = {
            **fields(""),
            **fields("next/"),
            "action": np.zeros((capacity, 3), np.float32),
            "reward": np.zeros(capacity, np.float32),
            "discount": np.zeros(capacity, np.float32),
        }
        self.capacity, self.next, self.size = capacity, 0, 0

    def insert(self, episode: dict[str, np.ndarray]) -> None:
        for step in range(len(episode["action"])):
            for name in ("vectors", "front", "wrist"):
                self.arrays[name][self.next] = episode[name][step]
                self.arrays[f"next/{name}"][self.next] = episode[name][step + 1]
            for name in ("action", "reward", "discount"):
                self.arrays[name][self.next] = episode[name][step]
            self.next, self.size = (
                (self.next + 1) % self.capacity,
                min(self.size + 1, self.capacity),
            )

    def sample(self, size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        index = random.integers(0, self.size, size)
        return {name: values[index] for name, values in self.arrays.items()}


class Agentlace:
    """agentlace.data.trajectory_buffer.TrajectoryBuffer, as its replay example uses it."""

    def __init__(self, capacity: int, vector_size: int, path: Path) -> None:
        import jax

        sys.path.insert(0, str(path))
        if not hasattr(jax, "tree_map"):
            jax.tree_map = (
                jax.tree_util.tree_map
            )  # it was written for a jax that still had this name
        from agentlace.data.trajectory_buffer import DataShape, TrajectoryBuffer

        self.buffer = TrajectoryBuffer(
            capacity,
            [
                DataShape("vectors", (vector_size,)),
                DataShape("front", IMAGE, "uint8"),
                DataShape("wrist", IMAGE, "uint8"),
                DataShape("action", (3,)),
                DataShape("reward"),
                DataShape("discount"),
            ],
        )
        from agentlace.data.sampler import LatestSampler, SequenceSampler

        self.buffer.register_sample_config(
            "transition",
            sample_range=(0, 2),
            samplers={
                **{
                    name: SequenceSampler(begin=0, end=2, source=name)
                    for name in ("vectors", "front", "wrist")
                },
                **{name: LatestSampler(source=name) for name in ("action", "reward", "discount")},
            },
        )

    def insert(self, episode: dict[str, np.ndarray]) -> None:
        for step in range(len(episode["action"])):
            data = {
                name: episode[name][step]
                for name in ("vectors", "front", "wrist", "action", "reward", "discount")
            }
            self.buffer.insert(data, end_of_trajectory=step == len(episode["action"]) - 1)

    def sample(self, size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        return self.buffer.sample("transition", size)


def episode(vector_size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "vectors": random.standard_normal((LENGTH + 1, vector_size)).astype(np.float32),
        "front": random.integers(0, 255, (LENGTH + 1, *IMAGE), dtype=np.uint8),
        "wrist": random.integers(0, 255, (LENGTH + 1, *IMAGE), dtype=np.uint8),
        "action": random.uniform(-1, 1, (LENGTH, 3)).astype(np.float32),
        "reward": np.zeros(LENGTH, np.float32),
        "discount": np.ones(LENGTH, np.float32),
    }


def measure(
    buffer, data: dict[str, np.ndarray], inserts: int, seconds: float, batch: int
) -> tuple[float, float]:
    """Transitions inserted per second, and transitions sampled per second."""
    for _ in range(2 * inserts):  # touch the memory first: the steady state is what counts
        buffer.insert(data)
    started = time.perf_counter()
    for _ in range(inserts):
        buffer.insert(data)
    inserted = inserts * LENGTH / (time.perf_counter() - started)
    random, batches, started = np.random.default_rng(1), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        buffer.sample(batch, random)
        batches += 1
    return inserted, batches * batch / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--capacity", type=int, default=10_000, help="time steps (default: 10000, 3 GB for both)"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0, help="of sampling, each")
    parser.add_argument("--agentlace", type=Path, help="path of a checkout of agentlace")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    ours = Ours(options.capacity)
    data = episode(ours.vector_size, np.random.default_rng(0))
    buffers = {"ours": ours, "ring": Ring(options.capacity, ours.vector_size)}
    if options.agentlace:
        buffers["agentlace"] = Agentlace(options.capacity, ours.vector_size, options.agentlace)
    result: dict[str, float] = {"batch": options.batch, "capacity": options.capacity}
    print(f"{'':12}{'insert [transitions/s]':>24}{'sample [transitions/s]':>24}{'batches/s':>11}")
    for name, buffer in buffers.items():
        inserts = options.capacity // (LENGTH + 1) // 2
        inserted, sampled = measure(buffer, data, inserts, options.seconds, options.batch)
        print(
            f"{name:12}{inserted:24.0f}{sampled:24.0f}{sampled / options.batch:11.1f}", flush=True
        )
        result |= {f"{name}_insert_per_s": inserted, f"{name}_sample_per_s": sampled}
    for name in list(buffers)[1:]:
        for what in ("insert", "sample"):
            ratio = result[f"ours_{what}_per_s"] / result[f"{name}_{what}_per_s"]
            result[f"{what}_ratio_to_{name}"] = ratio
            print(f"ours / {name}, {what}: {ratio:.2f}")
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
