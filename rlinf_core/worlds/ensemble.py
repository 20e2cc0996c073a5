"""An ensemble of networks that predict how a state changes, from the last observations and actions.

Chua et al. 2018, arXiv 1805.12114 (probabilistic ensembles); Janner et al. 2019, arXiv 1906.08253
(short branches).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

STD_FLOOR = 1e-4
KNEE = 0.3  # knee of the Huber loss, in standard deviations; contact makes heavy tails
INPUT_RANGE = 10.0  # standard deviations


class Ensemble(nn.Module):
    """E networks, stepped as one batched product.

    Args:
        vectors: V, numbers of an observation.
        actions: A, numbers of an action.
        history: H observed time steps, the present one last.
        hidden: widths of its layers.
        members: E.
        matrix: (V, V) from vectors to the state whose change is predicted
            (``coordinates.Coordinates``).
        generator: draws the first weights.
    """

    def __init__(
        self,
        vectors: int,
        actions: int,
        history: int,
        hidden: Sequence[int],
        members: int,
        matrix: Tensor,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.vectors, self.actions, self.history, self.members = vectors, actions, history, members
        sizes = [history * (vectors + actions), *hidden, vectors]
        gains = [1.4] * len(hidden) + [0.1]
        self.weights = nn.ParameterList(
            nn.Parameter(
                torch.randn(members, before, after, generator=generator) * gain / before**0.5
            )
            for before, after, gain in zip(sizes, sizes[1:], gains, strict=False)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(members, 1, after)) for after in sizes[1:]
        )
        self.matrix: Tensor
        self.inverse: Tensor
        self.register_buffer("matrix", matrix)
        self.register_buffer("inverse", torch.linalg.inv(matrix))
        for name in ("mean", "std", "change_std"):
            self.register_buffer(
                name, torch.zeros(vectors) if name == "mean" else torch.ones(vectors)
            )
        self.mean: Tensor
        self.std: Tensor
        self.change_std: Tensor

    def fit_statistics(self, before: Tensor, after: Tensor) -> None:
        """Set the normalisation from vectors (N, V) and their changes."""
        self.mean[:] = before.mean(0)
        self.std[:] = before.std(0) + STD_FLOOR
        self.change_std[:] = ((after - before) @ self.matrix).std(0).clamp_min(STD_FLOOR)

    def forward(self, window: Tensor, actions: Tensor) -> Tensor:
        """Return the state's change (E, B, V), in its own standard deviations.

        Args:
            window: (E, B, H, V) raw vectors.
            actions: (E, B, H, A) normalised, the present one last.
        """
        changes = ((window[..., 1:, :] - window[..., :-1, :]) @ self.matrix) / self.change_std
        features = torch.cat(
            [(window[..., -1, :] - self.mean) / self.std, changes.flatten(-2), actions.flatten(-2)],
            -1,
        )
        features = features.clamp(-INPUT_RANGE, INPUT_RANGE)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            features = torch.baddbmm(bias, features, weight)
            if layer < last:
                features = nn.functional.silu(features)
        return features

    def following(self, window: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next vectors (E, B, V), and ``forward``'s change."""
        change = self(window, actions)
        return (window[..., -1, :] @ self.matrix + change * self.change_std) @ self.inverse, change

    def loss(self, window: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """Return the error of the members' predictions along recorded time steps.

        Args:
            window: (E, B, H, V).
            actions: (E, B, H - 1 + U, A).
            after: (E, B, U, V), the observations after each of the last U actions.
        """
        total = torch.zeros((), device=window.device)
        for step in range(after.shape[2]):
            following, _ = self.following(window, actions[..., step : step + self.history, :])
            error = ((after[..., step, :] - following) @ self.matrix) / self.change_std
            total = total + nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=KNEE)
            window = torch.cat([window[..., 1:, :], following[..., None, :]], -2)
        return total / after.shape[2]
