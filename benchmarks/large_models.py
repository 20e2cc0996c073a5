"""Vision-language-action models of their published sizes on one GPU: how fast they act and learn,
in how much memory.

    python benchmarks/large_models.py --json results.json        # a CUDA device with 80 GB
    python benchmarks/large_models.py --quick                    # tiny networks, on any device: whether all of it runs
    python benchmarks/large_models.py --only act_pi0 --views 2

Random weights; time does not depend on what they are. ``act_*``: from pictures (224 x 224, uint8)
and state on the host to actions on the host, one observation at a time, medians; eager in float32
and bfloat16, recorded as CUDA graphs, compiled and recorded (``rlinf_core.policies.inference``). pi0:
10 steps to a chunk of 50, a sentence of 20 tokens. Beside it in the same process transformers' own
``sample_actions`` of the same network in bfloat16, on inputs that are on the device already, and
the floor: weights once over the measured bandwidth of a copy where that is what takes longest,
multiplications over the measured rate of a matrix product where those do. OpenVLA: 7 tokens one
after the other, or 56 at once (OpenVLA-OFT). ``sft_*``: of adapters (rank 32) and of all weights;
``grpo_*``: of adapters on what the model has drawn (in float32, as training draws): seconds a step
or an update, and the most memory.

It does not cover published weights, several GPUs, simulators (so no share of a time step that is
inference), a network or cameras between robot and GPU (``benchmarks/policy_server.py``),
quantisation, or whether anything is learned.
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
from rlinf_core.algorithms.common.mixed_precision import compute  # noqa: E402
from rlinf_core.algorithms.common.rollout import Rollout  # noqa: E402
from rlinf_core.algorithms.common.settings import Computing  # noqa: E402
from rlinf_core.policies import inference, make_policy, policy_kind  # noqa: E402
from rlinf_core.policies.base import Observation  # noqa: E402
from rlinf_core.policies.pretrained.openpi import VARIANTS, VISION  # noqa: E402
from rlinf_core.policies.torch_device import AUTO, device_of  # noqa: E402
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec  # noqa: E402

SENTENCE = "put the peg into it"  # a byte a token here: 20 with the one it begins with
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
# realtime-vla's pi0 on an RTX 4090 by the views, tuned kernels [ms]
PUBLISHED = {
    1: 23.6,
    2: 32.9,
    3: 39.2,
}


class Sizes:
    """Of what is measured: published, or the smallest that there are."""

    def __init__(self, device: torch.device, quick: bool, rounds: int) -> None:
        self.device, self.quick, self.rounds = device, quick, rounds

    def policy(self, kind: str, views: int, **config: Any) -> Any:
        """Made where it is used: random weights of 7,000 million numbers take long elsewhere."""
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

    def observation(self, policy: Any, rows: int, where: str = "cpu") -> Observation:
        random = np.random.default_rng(0)
        images = {
            image.name: torch.from_numpy(
                random.integers(0, 256, (rows, *image.shape), np.uint8)
            ).to(where)
            for image in policy.spec.images
        }
        vectors = torch.from_numpy(random.normal(size=(rows, 8)).astype(np.float32)).to(where)
        return Observation(vectors, images, (SENTENCE,) * rows)

    def median(self, call: Callable[[], Any], rounds: int = 0) -> float:
        """Seconds, after three calls."""
        taken = []
        for number in range(3 + (rounds or self.rounds)):
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            if number >= 3:
                taken.append(time.perf_counter() - started)
        return float(np.median(taken))

    def wait(self) -> None:
        """Until all that was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def fresh(self) -> None:
        """Nothing on the device, and the most memory counted anew."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def gigabytes(self) -> float:
        """Return the most that was allocated."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else 0.0

    def ceilings(self) -> tuple[float, float]:
        """Bytes a second of a copy, read and written; operations a second of a bfloat16 product."""
        numbers, side = (10**6, 256) if self.quick else (10**9, 8192)
        one, two = (torch.randn(numbers, device=self.device) for _ in range(2))
        a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        return 8.0 * numbers / self.median(lambda: one.copy_(two)), 2.0 * side**3 / self.median(
            lambda: a @ b
        )


def floor_of_pi0(policy: Any, views: int, ceilings: tuple[float, float]) -> float:
    """Seconds below which no way to compute it in bfloat16 gets: each part's bytes or operations,
    the larger.
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


def ways(sizes: Sizes, chosen: list[str]) -> Iterator[tuple[str, str, str]]:
    for variant in chosen:
        if sizes.device.type == "cuda" or variant != "graphs":
            yield variant, *WAYS[variant]


def timed(
    sizes: Sizes, label: str, policy: Any, rows: int = 1
) -> tuple[dict[str, float], np.ndarray]:
    """Milliseconds of ``act`` from host to host, its first call, memory; and what it said."""
    observation = sizes.observation(policy, rows)

    def act() -> Any:
        return policy.act(observation.to(sizes.device), explore=False).actions.numpy(force=True)

    started = time.perf_counter()
    actions = act()
    first = time.perf_counter() - started
    taken = 1e3 * sizes.median(act)
    print(
        f"  {label:34}{taken:9.2f} ms   first {first:6.1f} s   {sizes.gigabytes():5.1f} GB",
        flush=True,
    )
    return {
        f"{label}_ms": taken,
        f"{label}_first_s": first,
        f"{label}_gb": sizes.gigabytes(),
    }, actions


def act_pi0(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    ceilings = sizes.ceilings()
    print(
        f"  a copy moves {ceilings[0] / 1e12:.2f} TB/s, a bfloat16 product does "
        f"{ceilings[1] / 1e12:.0f} TFLOP/s"
    )
    yield {"copy_tb_per_s": ceilings[0] / 1e12, "product_tflop_per_s": ceilings[1] / 1e12}
    for count in views:
        plain: np.ndarray | None = None
        best = floor = float("inf")
        for variant, precision, execution in ways(sizes, chosen):
            sizes.fresh()
            policy = sizes.policy("pi0", count, horizon=50)
            floor = 1e3 * floor_of_pi0(policy, count, ceilings)
            inference.prepare(policy, precision, execution)
            flat, actions = timed(sizes, f"pi0_{count}_views_{variant}", policy)
            plain = actions if plain is None else plain
            yield flat | {
                f"pi0_{count}_views_{variant}_off": float(np.abs(actions - plain).max()),
                f"pi0_{count}_views_floor_ms": floor,
            }
            best = min(best, flat[f"pi0_{count}_views_{variant}_ms"])
            if variant == "graphs":
                yield timed(sizes, f"pi0_{count}_views_{variant}_of_8", policy, 8)[0]
            del policy
        sizes.fresh()
        reference = reference_seconds(sizes, count)
        print(
            f"  pi0_{count}_views transformers' own {reference:9.2f} ms: {reference / best:.2f} "
            f"times the best of ours; the floor {floor:.2f} ms, of which ours is "
            f"{best / floor:.2f} times; realtime-vla on an RTX 4090: "
            f"{PUBLISHED.get(count, float('nan'))} ms",
            flush=True,
        )
        yield {
            f"pi0_{count}_views_transformers_ms": reference,
            f"pi0_{count}_views_ratio_transformers": reference / best,
            f"pi0_{count}_views_ratio_floor": best / floor,
        }


def reference_seconds(sizes: Sizes, views: int) -> float:
    """Milliseconds of the same network's ``sample_actions`` in bfloat16, its inputs on the
    device.
    """
    policy = sizes.policy("pi0", views, horizon=50)
    inputs = policy.inputs(policy.to_batch(sizes.observation(policy, 1, str(sizes.device))))
    network = policy.network.to(torch.bfloat16)
    inputs = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    noise = policy.noise(1, None).to(torch.bfloat16)
    return 1e3 * sizes.median(
        lambda: network.sample_actions(noise=noise, num_steps=policy.config.flow_steps, **inputs)
    )


def act_openvla(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    for name, config in (("openvla", {}), ("openvla_oft", {"decoding": "parallel", "horizon": 8})):
        for variant, precision, execution in ways(
            sizes, [mode for mode in chosen if mode in ("eager", "graphs")]
        ):
            sizes.fresh()
            policy = sizes.policy("openvla", 1, **config)
            inference.prepare(policy, precision, execution)
            sizes.fresh()
            yield timed(sizes, f"{name}_{variant}", policy)[0]
            del policy


def sft_pi0(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from sft(sizes, "pi0", 2, 32, {"horizon": 50, "lora": LORA})
    yield from sft(sizes, "pi0", 2, 32, {"horizon": 50}, [("bfloat16", True)])


def sft_openvla(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from sft(
        sizes, "openvla", 1, 16, {"lora": LORA}, [("bfloat16", False), ("bfloat16", True)]
    )


def grpo_pi0(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from grpo(sizes, "pi0", 2, 32, {"horizon": 10, "sde_noise": 0.5, "lora": LORA})


def grpo_openvla(sizes: Sizes, views: list[int], chosen: list[str]) -> Iterator[dict[str, float]]:
    yield from grpo(sizes, "openvla", 1, 32, {"lora": LORA})


def sft(
    sizes: Sizes,
    kind: str,
    views: int,
    rows: int,
    config: dict[str, Any],
    computings: list[tuple[str, bool]] | None = None,
) -> Iterator[dict[str, float]]:
    what, rows = "lora" if "lora" in config else "full", min(rows, 8) if sizes.quick else rows
    for precision, recompute in computings or [
        ("float32", False),
        ("bfloat16", False),
        ("bfloat16", True),
    ]:
        sizes.fresh()
        policy = sizes.policy(kind, views, **config)
        learner = algorithm("sft").Learner(policy, algorithm("sft").Config(image_shift=0), 0)
        compute(learner, Computing(precision=precision, gradient_checkpointing=recompute))
        batch = {
            name: value.numpy()
            for name, value in policy.to_batch(sizes.observation(policy, rows)).items()
        }
        batch["action"] = (
            np.random.default_rng(0).uniform(-1, 1, (rows, policy.action_size)).astype(np.float32)
        )
        label = f"{kind}_sft_{what}_{precision}{'_recompute' if recompute else ''}"
        try:
            taken = sizes.median(lambda learner=learner, batch=batch: learner.update(batch), 3)
        except torch.OutOfMemoryError:
            print(f"  {label:44} more memory than there is", flush=True)
        else:
            print(
                f"  {label:44}{taken:8.3f} s a step of {rows}, {rows / taken:6.1f} samples/s   "
                f"{sizes.gigabytes():5.1f} GB",
                flush=True,
            )
            yield {
                f"{label}_s": taken,
                f"{label}_samples_per_s": rows / taken,
                f"{label}_gb": sizes.gigabytes(),
            }
        del policy, learner


def grpo(
    sizes: Sizes, kind: str, views: int, rows: int, config: dict[str, Any]
) -> Iterator[dict[str, float]]:
    """Drawing a chunk of each of so many environments, and an update of all, in four
    minibatches.
    """
    rows = min(rows, 8) if sizes.quick else rows
    sizes.fresh()
    policy = sizes.policy(kind, views, **config)
    learner = algorithm("grpo").Learner(
        policy, algorithm("grpo").Config(group=8, minibatches=4, epochs=1), 0
    )
    compute(learner, Computing(precision="bfloat16", gradient_checkpointing=True))
    observation = sizes.observation(policy, rows, str(sizes.device))
    chunks: list[Any] = []

    def draw() -> None:
        chunks[:] = [policy.act(observation, True, torch.Generator(sizes.device).manual_seed(0))]

    def update() -> None:
        (chunk,), one = chunks, torch.ones(1, rows, device=sizes.device)
        now = {name: value.unsqueeze(0) for name, value in policy.to_batch(observation).items()}
        rewards = torch.randn(1, rows, chunk.actions.shape[1], device=sizes.device)
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
    drawn, updated = sizes.median(draw, 3), sizes.median(update, 3)
    print(
        f"  {label:20}{rows} chunks drawn in {drawn:.3f} s, an update of them {updated:.3f} s   "
        f"{sizes.gigabytes():5.1f} GB",
        flush=True,
    )
    yield {f"{label}_draw_s": drawn, f"{label}_update_s": updated, f"{label}_gb": sizes.gigabytes()}


PARTS = {
    function.__name__: function
    for function in (act_pi0, act_openvla, sft_pi0, sft_openvla, grpo_pi0, grpo_openvla)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default=AUTO, help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], help="parts of it")
    parser.add_argument(
        "--views", type=int, nargs="+", default=[1, 2, 3], help="cameras of pi0 where it acts"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=[*WAYS], help="to compute it where it acts"
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each median")
    parser.add_argument(
        "--quick", action="store_true", help="the smallest networks and pictures, two rounds"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    device = device_of(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    sizes = Sizes(device, options.quick, 2 if options.quick else options.rounds)
    flat: dict[str, float | str] = {"device_name": name, "torch": torch.__version__}
    print(
        f"{device} ({name}), torch {torch.__version__}{', tiny networks' if options.quick else ''}"
    )
    for part in options.only:
        for figures in PARTS[part](sizes, options.views, options.ways):
            flat |= figures
            if options.json:
                write(options.json, flat)


if __name__ == "__main__":
    main()
