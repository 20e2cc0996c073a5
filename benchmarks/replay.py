"""Measure insert and sample rate of the trainer's replay, beside a plain NumPy ring of transitions.

    python benchmarks/replay.py --json results.json

A transition holds a state and two 128x128 images. The ring is what most code starts from: one array
per field, with observation and next observation both stored, filled one transition at a time. Ours
takes whole episodes and stores every observation once. Both sample uniformly. The buffers take
turns; the figures are medians of the runs, with the lowest and the highest. CPU milliseconds depend
less on other work of the machine than rates do. A ratio above 1 means that ours is faster.

    python benchmarks/replay.py --agentlace PATH    # adds agentlace's TrajectoryBuffer (needs jax and chex)

The benchmark does not cover reading episodes from disk, the bridge, or the copy to a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402

IMAGE, LENGTH = (128, 128, 3), 50


class Ours:
    """The replay of rlinf_core.data.replay."""

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
            self.next = (self.next + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def sample(self, size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        index = random.integers(0, self.size, size)
        return {name: values[index] for name, values in self.arrays.items()}


class Agentlace:
    """The TrajectoryBuffer of agentlace.data, used as in its replay example."""

    def __init__(self, capacity: int, vector_size: int, path: Path) -> None:
        import jax

        sys.path.insert(0, str(path))
        if not hasattr(jax, "tree_map"):
            # agentlace was written for a jax that still had this name.
            jax.tree_map = jax.tree_util.tree_map
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


def make_episode(vector_size: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "vectors": random.standard_normal((LENGTH + 1, vector_size)).astype(np.float32),
        "front": random.integers(0, 255, (LENGTH + 1, *IMAGE), dtype=np.uint8),
        "wrist": random.integers(0, 255, (LENGTH + 1, *IMAGE), dtype=np.uint8),
        "action": random.uniform(-1, 1, (LENGTH, 3)).astype(np.float32),
        "reward": np.zeros(LENGTH, np.float32),
        "discount": np.ones(LENGTH, np.float32),
    }


def fill(buffer, data: dict[str, np.ndarray], episodes: int) -> float:
    """Insert episodes; return transitions per second."""
    started = time.perf_counter()
    for _ in range(episodes):
        buffer.insert(data)
    return episodes * LENGTH / (time.perf_counter() - started)


def measure_sampling(buffer, seconds: float, batch: int) -> dict[str, float]:
    """Sample like a learner, which holds a batch until it has the next one.

    Returns:
        Transitions per second, and CPU milliseconds of a batch.
    """
    random, batches = np.random.default_rng(1), 0
    held = buffer.sample(batch, random)
    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        held = buffer.sample(batch, random)
        batches += 1
    del held
    return {
        "sample_per_s": batches * batch / (time.perf_counter() - started),
        "sample_cpu_ms": 1e3 * (time.process_time() - cpu) / batches,
    }


def peak_mb() -> float:
    """Return the peak memory of this process since the last call [MB]."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, see proc(5)
    return int(peak.split()[1]) / 1e3


def compare(
    capacity: int, batch: int, seconds: float, runs: int, agentlace: Path | None
) -> dict[str, float]:
    """Return medians over the runs, in which the buffers take turns; ratios are within one run."""
    vector_size = Ours(2).vector_size
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: Ours(capacity),
        "ring": lambda: Ring(capacity, vector_size),
    }
    if agentlace:
        makers["agentlace"] = lambda: Agentlace(capacity, vector_size, agentlace)
    data = make_episode(vector_size, np.random.default_rng(0))
    episodes = capacity // (LENGTH + 1)
    buffers, result = {}, dict[str, float](batch=batch, capacity=capacity, runs=runs)
    for name, make in makers.items():
        peak_mb()
        before = peak_mb()  # the resident memory now
        buffers[name] = make()
        fill(buffers[name], data, episodes + 1)  # touch the memory first
        measure_sampling(buffers[name], 0.1, batch)
        result[f"{name}_memory_mb"] = peak_mb() - before
    values_by_name: dict[str, list[float]] = {}
    for _ in range(runs):
        rows = {
            name: {"insert_per_s": fill(buffer, data, episodes // 2)}
            | measure_sampling(buffer, seconds, batch)
            for name, buffer in buffers.items()
        }
        for name, row in rows.items():
            for key, value in row.items():
                values_by_name.setdefault(f"{name}_{key}", []).append(value)
                if name != "ours":
                    ours = rows["ours"][key]
                    ratio = value / ours if key.endswith("cpu_ms") else ours / value
                    values_by_name.setdefault(
                        f"{key.removesuffix('_per_s')}_ratio_to_{name}", []
                    ).append(ratio)
    return result | figures.summary(values_by_name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--capacity", type=int, default=10_000, help="time steps (default: 10000, 3 GB for both)"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of sampling each buffer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--agentlace", type=Path, help="path of a checkout of agentlace")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    result = compare(
        options.capacity, options.batch, options.seconds, options.runs, options.agentlace
    )
    for name, value in result.items():
        print(f"{name:44}{value:14,.2f}")
    if options.json:
        figures.write(options.json, result)


if __name__ == "__main__":
    main()
