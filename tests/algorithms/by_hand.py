"""Second implementations of Adam and of the losses, to compare the algorithms' updates with."""

import copy

import numpy as np
import torch

from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.policies import make_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.algorithms.learning import buffer_of, make
from tests.algorithms.point import misled

SMALL = dict(critic_hidden=(16, 16), learning_rate=3e-3)
SEEING = StationSpec(
    (
        ArraySpec("still", (1,)),
        ArraySpec("front", (8, 8, 3), "uint8", "", (0.0,), (255.0,), "camera/front/image", "image"),
    ),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m")),
    10.0,
)


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) after clipping the norm of the gradient."""

    def __init__(self, parameters, rate, beta=0.9, epsilon=1e-8):
        self.parameters = list(parameters)
        self.rate = rate
        self.beta = beta
        self.epsilon = epsilon
        self.steps = 0
        self.factors = [1.0] * len(self.parameters)  # multiply the rate of each parameter
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    def optimizer_step(self, loss, clip=float("inf")):
        gradients = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(
                self.parameters,
                torch.autograd.grad(loss, self.parameters, allow_unused=True),
                strict=True,
            )
        ]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        self.steps += 1
        with torch.no_grad():
            for p, g, m, v, factor in zip(
                self.parameters, gradients, self.first, self.second, self.factors, strict=True
            ):
                g = g * min(1.0, clip / (norm.item() + 1e-6))
                m.copy_(self.beta * m + (1 - self.beta) * g)
                v.copy_(0.999 * v + 0.001 * g * g)
                corrected = v / (1 - 0.999**self.steps)
                p -= (
                    factor
                    * self.rate
                    * m
                    / (1 - self.beta**self.steps)
                    / (corrected.sqrt() + self.epsilon)
                )
        return norm.item()


def twin(learner):
    """Return a copy of the learner whose networks are all differentiable."""
    copied = copy.deepcopy(learner)
    copied.generator = torch.Generator()
    copied.generator.set_state(learner.generator.get_state())
    for name, module in copied.modules.items():
        module.requires_grad_(name not in ("target", "reference", "returns"))
    return copied


def assert_alike(learner, reference, atol=2e-6):
    """Compare all parameters and buffers of all modules."""
    for name, module in learner.modules.items():
        expected = reference.modules[name].state_dict()
        for key, value in module.state_dict().items():
            assert torch.allclose(value.float(), expected[key].float(), atol=atol), (
                name,
                key,
                (value - expected[key]).abs().max(),
            )


def seeing():
    """Return a small policy that uses pictures."""
    torch.manual_seed(0)
    return make_policy(SEEING, tanh_gaussian.Config(hidden=(8,), image_features=4, channels=(4,)))


def pictures(random, size=12):
    """Return a random batch for ``seeing``."""
    batch = {
        "vectors": random.normal(size=(size, 1)),
        "next/vectors": random.normal(size=(size, 1)),
        "action": random.uniform(-1, 1, (size, 2)),
        "reward": random.normal(size=size),
        "discount": np.ones(size),
    }
    batch = {name: values.astype(np.float32) for name, values in batch.items()}
    return batch | {
        name: random.integers(0, 255, (size, 8, 8, 3)).astype(np.uint8)
        for name in ("front", "next/front")
    }


def prepared(kind="tanh_gaussian", horizon=1, hidden=(16,), **config):
    """Return a small policy with a fitted normalisation."""
    actor = make(kind, horizon=horizon, hidden=hidden, **config)
    encoder = actor.flow.encoder if kind == "latent_noise" else actor.encoder
    encoder.fit_normalisation(np.random.default_rng(5).normal(0.4, 0.7, (50, 2)))
    return actor


def batches(count, random, horizon=1, size=24):
    """Return batches of episodes of ``misled``, some of whose transitions end an episode."""
    data = buffer_of(misled(random, 0.9), 12)
    return [
        data.sample(size, random, horizon, 0.9) if horizon > 1 else data.sample(size, random)
        for _ in range(count)
    ]


def parts(batch):
    """Return the tensors of the observation, and of the next observation."""
    tensors = to_tensors(batch)
    here = {name: value for name, value in tensors.items() if not name.startswith("next/")}
    return here, {name[5:]: value for name, value in tensors.items() if name.startswith("next/")}
