"""What updates are compared with: Adam and the algorithms' losses, written down once more."""

import copy

import torch


class Adam:
    """Kingma and Ba 2015, algorithm 1, after the gradient's norm has been clipped."""

    def __init__(self, parameters, rate, beta=0.9, epsilon=1e-8):
        self.parameters, self.rate, self.beta, self.epsilon, self.steps = list(parameters), rate, beta, epsilon, 0
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    def descend(self, loss, clip=float("inf")):
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(
            self.parameters, torch.autograd.grad(loss, self.parameters, allow_unused=True), strict=True)]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        self.steps += 1
        with torch.no_grad():
            for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
                g = g * min(1.0, clip / (norm.item() + 1e-6))
                m.copy_(self.beta * m + (1 - self.beta) * g)
                v.copy_(0.999 * v + 0.001 * g * g)
                corrected = v / (1 - 0.999 ** self.steps)
                p -= self.rate * m / (1 - self.beta ** self.steps) / (corrected.sqrt() + self.epsilon)
        return norm.item()


def twin(learner):
    """The same networks once more, with parameters of their own that all can be differentiated."""
    own = copy.deepcopy(learner)
    own.generator = torch.Generator()
    own.generator.set_state(learner.generator.get_state())
    for name, module in own.modules.items():
        module.requires_grad_(name not in ("target", "reference", "returns"))
    return own


def assert_alike(learner, own, atol=2e-6):
    """All parameters and buffers of all modules."""
    for name, module in learner.modules.items():
        expected = own.modules[name].state_dict()
        for key, value in module.state_dict().items():
            assert torch.allclose(value.float(), expected[key].float(), atol=atol), (
                name, key, (value - expected[key]).abs().max())
