"""Measure speed and memory of vision-language-action models of published sizes on one GPU.

    python benchmarks/large_models.py --json results.json        # a CUDA device with 80 GB
    python benchmarks/large_models.py --quick                    # tiny networks on any device: whether all of it runs
    python benchmarks/large_models.py --only act_pi0 --views 2

The weights are random, which does not change the times.

* ``act_*``: median time from pictures (224 x 224, uint8) and state on the host to actions on the
  host, one observation at a time. The variants are eager in float32 and bfloat16, recorded as CUDA
  graphs, and compiled and recorded (``rlinf_core.policies.inference``). pi0 makes 10 steps to a
  chunk of 50 with a sentence of 20 tokens. In the same process run transformers' own
  ``sample_actions`` of the same network in bfloat16, with inputs on the device, and the floor: the
  weights over the measured bandwidth of a copy, or the multiplications over the measured rate of a
  matrix product, whichever takes longer. OpenVLA decodes 7 tokens one after the other, or 56 at once
  (OpenVLA-OFT).
* ``sft_*``: seconds of a step and peak memory, with adapters (rank 32) and with all weights.
* ``grpo_*``: seconds to draw chunks (in float32, as in training) and of an update with adapters, and
  peak memory.

The benchmark does not cover published weights, several GPUs, simulators (so no share of inference in
a time step), a network or cameras between robot and GPU (``benchmarks/policy_server.py``),
quantisation, or whether a policy learns.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.algorithms import algorithm  # noqa: E402
from rlinf_core.algorithms.common.mixed_precision import apply_computing  # noqa: E402
from rlinf_core.algorithms.common.rollout import Rollout  # noqa: E402
from rlinf_core.algorithms.common.settings import Computing  # noqa: E402
from rlinf_core.policies import inference, make_policy, policy_kind  # noqa: E402
from rlinf_core.policies.base import Observation  # noqa: E402
from rlinf_core.policies.pretrained.openpi import VARIANTS, VISION  # noqa: E402
from rlinf_core.policies.torch_device import AUTO, device_of  # noqa: E402
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec  # noqa: E402

SENTENCE = "put the peg into it"  # 20 tokens: one per byte, and the start token
NAMES = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")
PI0 = {
    "vlm_config": {
        "text_config": {**VARIANTS["gemma_2b"], "vocab_size": 257152},
        "vision_config": VISION,
        "projection_dim": 2048,
    },
    "dit_config": VARIANTS["gemma_300m"],
}
OPENVLA = {
    "timm_model_args": [{}, {}],
    "image_sizes": [224, 224],
    "text_config": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
    },
}
TINY_SIZE = 32
LORA = {"rank": 32, "alpha": 32.0}
WAYS = {
    "eager_float32": ("float32", "eager"),
    "eager": ("bfloat16", "eager"),
    "graphs": ("bfloat16", "graphs"),
    "compiled": ("bfloat16", "compiled"),
}
# Times of realtime-vla's pi0 with tuned kernels on an RTX 4090, by the number of views [ms].
PUBLISHED = {1: 23.6, 2: 32.9, 3: 39.2}


class Bench:
    """Makes and times models of published size, or of the smallest size with ``quick``."""

    def __init__(self, device: torch.device, quick: bool, rounds: int) -> None:
        self.device, self.quick, self.rounds = device, quick, rounds

    def policy(self, kind: str, views: int, **config: Any) -> Any:
        """Return a policy with random weights, made on the device because that is much faster."""
        size = TINY_SIZE if self.quick else 224
        images = tuple(
            ArraySpec(f"view_{number}", (size, size, 3), "uint8") for number in range(1, views + 1)
        )
        spec = StationSpec(
            (ArraySpec("state", (8,)), *images),
            ActionSpec("tcp_delta", NAMES, (0.02,) * 7, ("m",) * 3 + ("rad",) * 3 + ("",)),
            20.0,
            SENTENCE,
        )
        network = {} if self.quick else {"pi0": PI0, "openvla": OPENVLA}[kind]
        torch.manual_seed(0)
        with torch.device(self.device):
            return (
                make_policy(spec, policy_kind(kind).Config(network=network, **config))
                .to(self.device)
                .eval()
            )

    def observation(self, policy: Any, rows: int, device: str = "cpu") -> Observation:
        random = np.random.default_rng(0)
        images = {
            image.name: torch.from_numpy(
                random.integers(0, 256, (rows, *image.shape), np.uint8)
            ).to(device)
            for image in policy.spec.images
        }
        vectors = torch.from_numpy(random.normal(size=(rows, 8)).astype(np.float32)).to(device)
        return Observation(vectors, images, (SENTENCE,) * rows)

    def median(self, call: Callable[[], Any], rounds: int = 0) -> float:
        """Return the median seconds of a call, after three calls to warm up."""
        seconds = []
        for number in range(3 + (rounds or self.rounds)):
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            if number >= 3:
                seconds.append(time.perf_counter() - started)
        return float(np.median(seconds))

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def free_memory(self) -> None:
        """Free the device's memory, and reset the count of its peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        """Return the peak of the allocated memory [GB]."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else 0.0

    def measure_ceilings(self) -> tuple[float, float]:
        """Return the measured bandwidth of a copy [B/s] and rate of a bfloat16 product [FLOP/s]."""
        numbers, side = (10**6, 256) if self.quick else (10**9, 8192)
        one, two = (torch.randn(numbers, device=self.device) for _ in range(2))
        a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        return 8.0 * numbers / self.median(lambda: one.copy_(two)), 2.0 * side**3 / self.median(
            lambda: a @ b
        )


def pi0_floor_s(policy: Any, views: int, ceilings: tuple[float, float]) -> float:
    """Return a lower bound of the seconds of pi0 in bfloat16.

    Each part takes at least the time of its bytes or of its operations, whichever is longer.
    """

    def numbers(module: torch.nn.Module) -> int:
        return sum(
            weight.numel() for layer in inference.layers(module) for weight in layer.parameters()
        )

    model, config = policy.network.model, policy.network.config
    vision = config.vlm_config.vision_config
    patches = views * (vision.image_size // vision.patch_size) ** 2
    parts = [
        (numbers(model.vlm.vision_tower), patches, 1),
        (numbers(model.vlm.language_model), patches + 20, 1),
        (numbers(model.dit), policy.config.horizon + 1, policy.config.flow_steps),
    ]
    return sum(
        times * max(2.0 * size / ceilings[0], 2.0 * size * tokens / ceilings[1])
        for size, tokens, times in parts
    )


def chosen_variants(bench: Bench, chosen: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, precision and execution of the chosen variants; graphs need CUDA."""
    for variant in chosen:
        if bench.device.type == "cuda" or variant != "graphs":
            yield variant, *WAYS[variant]


def time_act(
    bench: Bench, label: str, policy: Any, rows: int = 1
) -> tuple[dict[str, float], np.ndarray]:
    """Return time, first call and memory of ``act`` from host to host, and its actions."""
    observation = bench.observation(policy, rows)

    def act() -> Any:
        return policy.act(observation.to(bench.device), explore=False).actions.numpy(force=True)

    started = time.perf_counter()
    actions = act()
    first = time.perf_counter() - started
    milliseconds = 1e3 * bench.median(act)
    print(
        f"  {label:34}{milliseconds:9.2f} ms   first {first:6.1f} s   {bench.peak_gb():5.1f} GB",
        flush=True,
    )
    return {
        f"{label}_ms": milliseconds,
        f"{label}_first_s": first,
        f"{label}_gb": bench.peak_gb(),
    }, actions


def act_pi0(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    ceilings = bench.measure_ceilings()
    print(
        f"  a copy moves {ceilings[0] / 1e12:.2f} TB/s, a bfloat16 product does "
        f"{ceilings[1] / 1e12:.0f} TFLOP/s"
    )
    yield {"copy_tb_per_s": ceilings[0] / 1e12, "product_tflop_per_s": ceilings[1] / 1e12}
    for count in views:
        eager_actions: np.ndarray | None = None
        best = floor = float("inf")
        for variant, precision, execution in chosen_variants(bench, chosen):
            bench.free_memory()
            policy = bench.policy("pi0", count, horizon=50)
            floor = 1e3 * pi0_floor_s(policy, count, ceilings)
            inference.prepare(policy, precision, execution)
            flat, actions = time_act(bench, f"pi0_{count}_views_{variant}", policy)
            eager_actions = actions if eager_actions is None else eager_actions
            yield flat | {
                f"pi0_{count}_views_{variant}_off": float(np.abs(actions - eager_actions).max()),
                f"pi0_{count}_views_floor_ms": floor,
            }
            best = min(best, flat[f"pi0_{count}_views_{variant}_ms"])
            if variant == "graphs":
                yield time_act(bench, f"pi0_{count}_views_{variant}_of_8", policy, 8)[0]
            del policy
        bench.free_memory()
        reference = reference_ms(bench, count)
        print(
            f"  pi0_{count}_views: transformers {reference:9.2f} ms ({reference / best:.2f} times "
            f"our best), floor {floor:.2f} ms (our best: {best / floor:.2f} times the floor), "
            f"realtime-vla on an RTX 4090 {PUBLISHED.get(count, float('nan'))} ms",
            flush=True,
        )
        yield {
            f"pi0_{count}_views_transformers_ms": reference,
            f"pi0_{count}_views_ratio_transformers": reference / best,
            f"pi0_{count}_views_ratio_floor": best / floor,
        }


def reference_ms(bench: Bench, views: int) -> float:
    """Return the milliseconds of transformers' ``sample_actions`` in bfloat16."""
    policy = bench.policy("pi0", views, horizon=50)
    inputs = policy.inputs(policy.to_batch(bench.observation(policy, 1, str(bench.device))))
    network = policy.network.to(torch.bfloat16)
    inputs = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    noise = policy.noise(1, None).to(torch.bfloat16)
    return 1e3 * bench.median(
        lambda: network.sample_actions(noise=noise, num_steps=policy.config.flow_steps, **inputs)
    )


def act_openvla(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    for name, config in (("openvla", {}), ("openvla_oft", {"decoding": "parallel", "horizon": 8})):
        for variant, precision, execution in chosen_variants(
            bench, [mode for mode in chosen if mode in ("eager", "graphs")]
        ):
            bench.free_memory()
            policy = bench.policy("openvla", 1, **config)
            inference.prepare(policy, precision, execution)
            bench.free_memory()
            yield time_act(bench, f"{name}_{variant}", policy)[0]
            del policy


def sft_pi0(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from sft(bench, "pi0", 2, 32, {"horizon": 50, "lora": LORA})
    yield from sft(bench, "pi0", 2, 32, {"horizon": 50}, [("bfloat16", True)])


def sft_openvla(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from sft(
        bench, "openvla", 1, 16, {"lora": LORA}, [("bfloat16", False), ("bfloat16", True)]
    )


def grpo_pi0(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from grpo(bench, "pi0", 2, 32, {"horizon": 10, "sde_noise": 0.5, "lora": LORA})


def grpo_openvla(bench: Bench, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from grpo(bench, "openvla", 1, 32, {"lora": LORA})


def sft(
    bench: Bench,
    kind: str,
    views: int,
    rows: int,
    config: dict[str, Any],
    computings: list[tuple[str, bool]] | None = None,
) -> Iterator[dict[str, float]]:
    """Yield the seconds and memory of an SFT step; ``computings``: (precision, recompute)."""
    weights = "lora" if "lora" in config else "full"
    rows = min(rows, 8) if bench.quick else rows
    for precision, recompute in computings or [
        ("float32", False),
        ("bfloat16", False),
        ("bfloat16", True),
    ]:
        bench.free_memory()
        policy = bench.policy(kind, views, **config)
        learner = algorithm("sft").Learner(policy, algorithm("sft").Config(image_shift=0), 0)
        apply_computing(learner, Computing(precision=precision, gradient_checkpointing=recompute))
        batch = {
            name: value.numpy()
            for name, value in policy.to_batch(bench.observation(policy, rows)).items()
        }
        batch["action"] = (
            np.random.default_rng(0).uniform(-1, 1, (rows, policy.action_size)).astype(np.float32)
        )
        label = f"{kind}_sft_{weights}_{precision}{'_recompute' if recompute else ''}"
        try:
            seconds = bench.median(lambda learner=learner, batch=batch: learner.update(batch), 3)
        except torch.OutOfMemoryError:
            print(f"  {label:44} out of memory", flush=True)
        else:
            print(
                f"  {label:44}{seconds:8.3f} s a step of {rows}, {rows / seconds:6.1f} samples/s   "
                f"{bench.peak_gb():5.1f} GB",
                flush=True,
            )
            yield {
                f"{label}_s": seconds,
                f"{label}_samples_per_s": rows / seconds,
                f"{label}_gb": bench.peak_gb(),
            }
        del policy, learner


def grpo(
    bench: Bench, kind: str, views: int, rows: int, config: dict[str, Any]
) -> Iterator[dict[str, float]]:
    """Yield the seconds to draw a chunk per environment, and of an update in four minibatches."""
    rows = min(rows, 8) if bench.quick else rows
    bench.free_memory()
    policy = bench.policy(kind, views, **config)
    learner = algorithm("grpo").Learner(
        policy, algorithm("grpo").Config(group=8, minibatches=4, epochs=1), 0
    )
    apply_computing(learner, Computing(precision="bfloat16", gradient_checkpointing=True))
    observation = bench.observation(policy, rows, str(bench.device))
    chunks: list[Any] = []

    def draw() -> None:
        chunks[:] = [policy.act(observation, True, torch.Generator(bench.device).manual_seed(0))]

    def update() -> None:
        (chunk,), one = chunks, torch.ones(1, rows, device=bench.device)
        now = {name: value.unsqueeze(0) for name, value in policy.to_batch(observation).items()}
        rewards = torch.randn(1, rows, chunk.actions.shape[1], device=bench.device)
        learner.update(
            Rollout(
                now,
                now,
                chunk.drawn.unsqueeze(0),
                chunk.log_probs.flatten(1).unsqueeze(0),
                rewards,
                one * chunk.actions.shape[1],
                one,
                one,
                one,
                0 * one,
            )
        )

    label = f"{kind}_grpo_lora"
    draw_s, update_s = bench.median(draw, 3), bench.median(update, 3)
    print(
        f"  {label:20}{rows} chunks drawn in {draw_s:.3f} s, an update of them {update_s:.3f} s   "
        f"{bench.peak_gb():5.1f} GB",
        flush=True,
    )
    yield {f"{label}_draw_s": draw_s, f"{label}_update_s": update_s, f"{label}_gb": bench.peak_gb()}


PARTS = {
    function.__name__: function
    for function in (act_pi0, act_openvla, sft_pi0, sft_openvla, grpo_pi0, grpo_openvla)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default=AUTO, help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=[*PARTS], help="parts to measure"
    )
    parser.add_argument(
        "--views", type=int, nargs="+", default=[1, 2, 3], help="numbers of cameras in act_pi0"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=[*WAYS], help="variants of act_*"
    )
    parser.add_argument("--rounds", type=int, default=20, help="calls of each median")
    parser.add_argument(
        "--quick", action="store_true", help="the smallest networks and pictures, two rounds"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    device = device_of(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    bench = Bench(device, options.quick, 2 if options.quick else options.rounds)
    flat: dict[str, float | str] = {"device_name": name, "torch": torch.__version__}
    print(
        f"{device} ({name}), torch {torch.__version__}{', tiny networks' if options.quick else ''}"
    )
    for part in options.only:
        for figures in PARTS[part](bench, options.views, options.ways):
            flat |= figures
            if options.json:
                write(options.json, flat)


if __name__ == "__main__":
    main()
