"""Action tokens of a Qwen2.5-VL that a vLLM server draws.

The server receives pictures and question as a chat, and may draw only 256 tokens. Rollouts in
simulators play ``EngineActor``. The server runs on a CPU or on GPUs; the calls are the same. Each
answer holds the prompt's token ids, which must equal the trainer's.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlinf_core.agentic.engines.base import EngineMismatchError
from rlinf_core.agentic.engines.openai import OpenAIEngine
from rlinf_core.core.errors import EngineError, RecipeError, escape_ascii
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.pretrained.action_tokens import BINS
from rlinf_core.policies.pretrained.qwen_vl.policy import (
    MAX_TOKENS,
    MIN_TOKENS,
    PROMPT,
    TURN,
    QwenVL,
)

SYSTEM = "You are a helpful assistant."
# The server caches pictures' features, and prompts' keys and values, of older weights.
RELOAD: list[tuple[str, dict[str, Any]]] = [
    ("/pause", {}),
    ("/collective_rpc", {"method": "reload_weights"}),
    ("/reset_mm_cache", {}),
    ("/reset_encoder_cache", {}),
    ("/reset_prefix_cache", {}),
    ("/resume", {}),
]
TOLERANCE = 1e-4  # allowed difference of a token's log-probability [nats]


@dataclass(frozen=True)
class ActionRequest:
    """One chunk.

    Attributes:
        pictures: (H, W, 3) uint8, in the order of the policy's cameras.
        question: the text after the pictures.
        prompt: token ids that the trainer reads.
        seed: seed of the draw.
    """

    pictures: Sequence[np.ndarray]
    question: str
    prompt: list[int]
    seed: int


class ActionEngine(OpenAIEngine):
    """Draws chunks of a policy that the server holds."""

    def __init__(self, url: str, policy: QwenVL, **options: Any) -> None:
        """Connect to a server.

        Args:
            url: the server's address
            policy: the policy whose weights the server must hold
            options: options of ``OpenAIEngine``

        Raises:
            EngineError: the server cannot draw this policy's tokens.
        """
        super().__init__(url, **options)
        if self.kind != "vllm":
            raise EngineError(
                f"{self.url}: expected vLLM, which samples from allowed_token_ids, got "
                f"'{self.kind}'"
            )
        check_policy(policy)
        self.policy = policy

    def draw(self, requests: Sequence[ActionRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bins (B, H A) of each request and their log-probabilities (B, H A)."""
        answers = list(self._pool.map(self._draw, requests))
        tokens, log_probs = (torch.tensor(part) for part in zip(*answers, strict=True))
        return self.policy.vocabulary_size - 1 - tokens, log_probs

    def _draw(self, request: ActionRequest) -> tuple[list[int], list[float]]:
        policy, count = self.policy, self.policy.action_size
        pictures = [
            {"type": "image_url", "image_url": {"url": _png(picture)}}
            for picture in request.pictures
        ]
        body = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {
                    "role": "user",
                    "content": [*pictures, {"type": "text", "text": request.question}],
                },
            ],
            "max_tokens": count,
            "temperature": policy.config.temperature,
            "seed": request.seed,
            "allowed_token_ids": list(range(policy.vocabulary_size - BINS, policy.vocabulary_size)),
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        answer = self._call("/v1/chat/completions", body)
        try:
            choice = answer["choices"][0]
            tokens = [int(token) for token in choice["token_ids"]]
            log_probs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
            prompt = [int(token) for token in answer["prompt_token_ids"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url}: expected token ids and their log-probabilities, got "
                f"'{escape_ascii(answer)[:300]}'. Use a vLLM with return_token_ids"
            ) from error
        if prompt != request.prompt:
            first_difference = next(
                (
                    index
                    for index, (server_token, trainer_token) in enumerate(
                        zip(prompt, request.prompt, strict=False)
                    )
                    if server_token != trainer_token
                ),
                min(len(prompt), len(request.prompt)),
            )
            raise EngineMismatchError(
                f"{self.url}: expected the trainer's prompt of {len(request.prompt)} tokens, got "
                f"{len(prompt)} that differ from token {first_difference} on. "
                "Give the server the chat template, the tokenizer and preprocessor_config.json of "
                "the published model"
            )
        allowed = range(policy.vocabulary_size - BINS, policy.vocabulary_size)
        if not (
            len(tokens) == len(log_probs) == count
            and all(token in allowed for token in tokens)
            and all(math.isfinite(value) and value < 1e-3 for value in log_probs)
        ):
            raise EngineError(
                f"{self.url}: expected {count} of the {BINS} tokens of actions with finite "
                f"log-probabilities, got {len(tokens)}: {tokens[:8]}. Start vLLM with "
                "--logprobs-mode processed_logprobs"
            )
        return tokens, log_probs

    def update(self, policy: Any, version: int) -> None:
        """Write the policy's weights by their published names, and make the server load them.

        Raises:
            EngineError: the server refuses, or the policy has adapters.
        """
        from safetensors.torch import save_file

        if any(".lora_" in name for name, _ in policy.network.named_parameters()):
            raise EngineError(
                "policy.engine: expected a policy without adapters (policy.lora.rank=0), got some"
            )
        if (self.folder / "model.safetensors.index.json").exists():
            raise EngineError(
                f"engine: expected a folder with its weights in one file, got several in "
                f"{self.folder}. Save the model there with save_pretrained(max_shard_size='1000GB')"
            )
        weights, _ = policy.factory.folder_files(policy.network, policy.tokenizer)
        temporary = self.folder / ".model.safetensors.part"
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()},
            temporary,
            {"format": "pt"},
        )
        os.replace(temporary, self.folder / "model.safetensors")
        for path, body in RELOAD:
            self._call(path, body)
        self.version = version


class EngineActor:
    """A policy whose exploring chunks an engine draws; all else is the policy's own.

    Attributes:
        difference: largest difference between log-probabilities of engine and trainer so far.
    """

    def __init__(self, policy: QwenVL, url: str, **options: Any) -> None:
        self.policy = policy
        self.engine = ActionEngine(url, policy, **options)
        self.difference = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def synchronise(self, version: int) -> None:
        """Give the engine the policy's current weights, and compare both on fixed pictures."""
        self.engine.update(self.policy, version)
        self.check()

    def check(self, tolerance: float = TOLERANCE) -> float:
        """Compare log-probabilities of two fixed observations.

        Returns:
            The largest difference, in nats.

        Raises:
            EngineMismatchError: it is beyond the tolerance.
        """
        noise, spec = np.random.default_rng(0), self.policy.spec
        images = {
            image.name: torch.from_numpy(noise.integers(0, 256, (2, *image.shape), np.uint8))
            for image in spec.images
        }
        observed = Observation(torch.zeros(2, spec.vector_size), images, ("reach", "go back"))
        chunk = self.act(observed.to(self.policy.device), True, torch.Generator().manual_seed(0))
        assert chunk.log_probs is not None
        with torch.no_grad():
            expected, _ = self.policy.log_probs(self.policy.to_batch(observed), chunk.drawn)
        worst = float((expected.flatten() - chunk.log_probs.flatten()).abs().max())
        self.difference = max(self.difference, worst)
        if not worst <= tolerance:
            raise EngineMismatchError(
                f"engine: after the update to version {self.engine.version} expected the trainer's "
                f"log-probabilities within {tolerance:g} nats, got a difference of {worst:.2g}. "
                "The server has other weights, or cached features of older ones. Restart it"
            )
        return worst

    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Act as ``Policy`` does; the engine draws exploring chunks."""
        policy = self.policy
        if not explore:
            return policy.act(observation, explore, generator)
        batch = policy.to_batch(observation)
        rows = self._requests(batch, observation, generator)
        bins, log_probs = self.engine.draw(rows)
        shape = (len(rows), policy.config.horizon, policy.spec.action.dim)
        bins, log_probs = (part.view(shape).to(policy.device) for part in (bins, log_probs))
        return policy.chunk_of_bins(bins.float(), log_probs)

    def _requests(
        self, batch: Batch, observation: Observation, generator: torch.Generator | None
    ) -> list[ActionRequest]:
        inputs = self.policy.inputs(batch)
        pictures = {name: images.numpy(force=True) for name, images in observation.images.items()}
        device = self.policy.device if generator is None else generator.device
        seeds = torch.randint(
            2**62, (len(observation),), generator=generator, device=device
        ).tolist()
        return [
            ActionRequest(
                [pictures[image.name][row] for image in self.policy.spec.images],
                PROMPT.format(sentence),
                inputs["ids"][row][inputs["mask"][row].bool()].tolist(),
                seed,
            )
            for row, (sentence, seed) in enumerate(zip(observation.instruction, seeds, strict=True))
        ]


def check_policy(policy: NetworkPolicy) -> None:
    """Check that a server can read the policy's inputs.

    Raises:
        RecipeError: it cannot.
    """
    if not isinstance(policy, QwenVL):
        raise RecipeError(
            f"policy.engine: expected policy.kind=qwen_vl, got '{policy.config.kind}'"
        )
    if policy.tokenizer.token_id(TURN) is None:
        raise RecipeError(
            "policy.engine: expected policy.checkpoint with Qwen's tokenizer, got a network from "
            "scratch. `rlinf make-tiny-vla qwen_vl` writes a small folder"
        )
    if policy.config.decoding != "autoregressive":
        raise RecipeError(
            f"policy.engine: expected policy.decoding=autoregressive, got {policy.config.decoding}"
        )
    vision = policy.network.model.config.vision_config
    side = vision.patch_size * vision.spatial_merge_size
    for image in policy.spec.images:
        height, width = image.shape[:2]
        tokens = height * width / side**2
        if height % side or width % side or not MIN_TOKENS <= tokens <= MAX_TOKENS:
            raise RecipeError(
                f"policy.engine: expected pictures whose sides are multiples of {side} pixels and "
                f"of {MIN_TOKENS} to {MAX_TOKENS} tokens, which the server does not resize, got "
                f"{height}x{width} of '{image.name}'. Set station.image_size"
            )


def _png(picture: np.ndarray) -> str:
    """Return a picture (H, W, 3) uint8 as a lossless data URL."""
    import cv2

    _, data = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))
    return "data:image/png;base64," + base64.b64encode(data.tobytes()).decode()
