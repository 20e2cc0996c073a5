"""Write TRL's losses and gradients on a small batch as JSON, for tests/agentic/test_losses.py.

Run it in an environment of its own, where TRL is installed:

    uv venv .venvs/trl && uv pip install --python .venvs/trl trl==1.16.0 torch==2.13.0
    .venvs/trl/bin/python scripts/trl_losses.py tests/agentic/trl_losses.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

GROUP, ROWS, LENGTH = 4, 8, 6
CORRECTIONS = {
    "tis": ("token_truncate", None, 1.1),
    "masked_tokens": ("token_mask", None, 1.1),
    "tis_sequences": ("sequence_truncate", None, 1.2),
    "masked_sequences": ("sequence_mask", None, 1.2),
    "icepop": ("token_mask", 0.9, 1.1),
}
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo_kl": {"beta": 0.05},
    "dr_grpo": {"loss_type": "dr_grpo", "scale": "none"},
    "dapo": {"loss_type": "dapo", "high": 0.28},
    "rollout_scale": {"scale": "batch"},
    "gspo": {"importance_sampling_level": "sequence", "low": 0.03, "high": 0.04},
    "cispo": {"loss_type": "cispo", "high": 5.0},
    "reinforce": {"loss_type": "dapo", "scale": "tokens"},
    **{name: {"correction": name} for name in CORRECTIONS},
}


def inputs() -> dict[str, np.ndarray]:
    """Return rewards (N,), masks and log-probabilities (N, L) of four policies.

    The policies are the current one, the old one, the engine's and the reference.
    """
    random = np.random.default_rng(0)
    now = -random.exponential(1.0, (ROWS, LENGTH))
    mask = (np.arange(LENGTH) < random.integers(2, LENGTH + 1, (ROWS, 1))).astype(float)
    mask[:, 1] *= random.integers(0, 2, ROWS)  # a tool's token between the policy's own
    mask[:, 0] = 1.0

    def near() -> np.ndarray:
        return now + 0.2 * random.standard_normal((ROWS, LENGTH))

    # no group has equal rewards only, as DAPO leaves such groups out
    rewards = np.array([1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 2.0, 0.25])
    return {
        "rewards": rewards,
        "mask": mask,
        "now": now,
        "old": near(),
        "engine": near(),
        "reference": near(),
    }


def advantages(rewards: np.ndarray, mask: np.ndarray, scale: str) -> np.ndarray:
    """Return advantages like TRL's GRPOTrainer (``scale_rewards``).

    Advantages of tokens are those of REINFORCE++, arXiv 2501.03262.
    """
    grouped = rewards.reshape(-1, GROUP)
    centred = (grouped - grouped.mean(axis=1, keepdims=True)).ravel()
    if scale == "none":
        return centred
    if scale == "batch":
        return centred / (rewards.std(ddof=1) + 1e-4)
    if scale == "tokens":
        every = np.repeat(centred[:, None], LENGTH, axis=1)
        counted = every[mask > 0]
        return (every - counted.mean()) / (counted.std(ddof=1) + 1e-8)
    return centred / (np.repeat(grouped.std(axis=1, ddof=1), GROUP) + 1e-4)


def ratio(old: Any, engine: Any, mask: Any, mode: str, low: float | None, high: float) -> Any:
    """Return TRL's ``importance_sampling_ratio``."""
    import torch

    difference = (old - engine) * mask
    weights = torch.exp(
        difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference
    )
    if mode.endswith("truncate"):
        return weights.clamp(min=low, max=high)
    return weights.masked_fill((weights < (low or -np.inf)) | (weights > high), 0.0)


def loss_of(
    data: dict[str, np.ndarray],
    beta: float = 0.0,
    loss_type: str = "grpo",
    scale: str = "group",
    importance_sampling_level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    correction: str = "",
) -> dict[str, Any]:
    """Return TRL's ``_compute_loss`` and its gradient by the log-probabilities (N, L)."""
    import torch
    from trl import GRPOTrainer

    values = {name: torch.tensor(array, dtype=torch.float64) for name, array in data.items()}
    now, mask = values["now"].requires_grad_(), values["mask"]
    trainer = MagicMock(
        beta=beta,
        loss_type=loss_type,
        importance_sampling_level=importance_sampling_level,
        epsilon_low=low,
        epsilon_high=high,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        use_vllm=bool(correction),
        vllm_importance_sampling_correction=bool(correction),
        max_completion_length=LENGTH,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(
            gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1
        ),
    )
    trainer._get_per_token_logps_and_entropies.return_value = (now, torch.zeros_like(now), None)
    empty = torch.zeros(ROWS, 0, dtype=torch.long)
    batch = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros(ROWS, LENGTH, dtype=torch.long),
        "completion_mask": mask,
        "advantages": torch.tensor(advantages(data["rewards"], data["mask"], scale)),
        "old_per_token_logps": values["old"],
        "ref_per_token_logps": values["reference"],
        "num_items_in_batch": mask.sum(),
    }
    if correction:
        batch["importance_sampling_ratio"] = ratio(
            values["old"], values["engine"], mask, *CORRECTIONS[correction]
        )
    loss = GRPOTrainer._compute_loss(trainer, None, batch)
    loss.backward()
    return {"loss": loss.item(), "gradient": now.grad.tolist()}


if __name__ == "__main__":
    import trl

    batch = inputs()
    results = {name: loss_of(batch, **settings) for name, settings in LOSSES.items()}
    document = {
        "trl": trl.__version__,
        "inputs": {name: array.tolist() for name, array in batch.items()},
        "results": results,
    }
    Path(sys.argv[1]).write_text(json.dumps(document) + "\n")
