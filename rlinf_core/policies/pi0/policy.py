"""pi0: a vision-language model and an action expert that carries noise to a chunk of actions.

Black et al. 2024, arXiv 2410.24164; the network is transformers' own. Pictures, sentence and state are prepared here, in
training and on stations alike: each picture is scaled into a square with its shape kept and its values in [-1, 1]; tokens
are pictures, beginning, sentence, newline; vectors are normalised and filled up with zeros.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core import sharding
from rlinf_core.errors import SpecError
from rlinf_core.policies import instructions
from rlinf_core.policies.adapters import inject
from rlinf_core.policies.normalisation import Normalisation
from rlinf_core.policies.pi0.config import Config
from rlinf_core.policies.pi0.network import built, from_checkpoint, from_scratch
from rlinf_core.policies.policy import ActionChunk, Batch, Observation, OnPolicyActor
from rlinf_core.policies.pretrained import Tokenizer, sentence_of, tokenizer_of
from rlinf_core.specs import StationSpec

_LOG_2_PI = math.log(2.0 * math.pi)


class Pi0(OnPolicyActor):
    """a_1 ~ N(0, 1); from t = 1 to 0, a -= v(pictures, sentence, state, a, t) dt; chunks of H normalised actions."""

    config: Config
    reads_instructions = needs_instruction = True

    def __init__(self, spec: StationSpec, config: Config | None = None, network: Any = None,
                 tokenizer: Tokenizer | None = None) -> None:
        super().__init__(spec, config or Config())
        if network is None:
            network, tokenizer = _first(self.config)
        self.network, self.tokenizer = network, tokenizer or tokenizer_of("")
        self.normalisation = Normalisation(spec.vector_size)
        self._fits()
        inject(self.network, self.config.lora)
        if self.config.frozen:
            self.network.model.vlm.requires_grad_(False)
        self._tokens: dict[bytes, list[int]] = {}

    @classmethod
    def rebuilt(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> Pi0:
        """From what ``describe`` said: without its checkpoint, which is elsewhere."""
        return cls(spec, config, built(described["network"]), tokenizer_of(described["tokenizer"]))

    def describe(self) -> dict[str, Any]:
        """With network and tokenizer, so that the file is all that a station needs."""
        network = json.loads(self.network.config.to_json_string(use_diff=False))
        return super().describe() | {"network": network,
                                     "tokenizer": self.tokenizer.text}

    def _fits(self) -> None:
        sizes = self.network.config
        for what, got, room in (("observed numbers", self.spec.vector_size, sizes.max_state_dim),
                                ("numbers an action", self.spec.action.dim, sizes.max_action_dim)):
            if got > room:
                raise SpecError(f"policy.kind: expected at most {room} {what} for this pi0, got {got}. Take another task, "
                                "or a network with more room")
        if sizes.time_sampling_beta_beta != 1.0:
            raise SpecError(f"policy.network: expected time_sampling_beta_beta of 1, got {sizes.time_sampling_beta_beta}")
        if not self.spec.images:
            raise SpecError("policy.kind: expected at least one camera for a pi0, got none. Name some in "
                            "station.observe_cameras")

    def inputs(self, batch: Batch) -> Batch:
        """What the network takes, of observations: state, pictures and tokens."""
        state = self.normalisation.normalised(batch["vectors"])
        pixels = torch.stack([self._square(batch[image.name]) for image in self.spec.images], dim=1)
        ids, mask = self._sentences(batch[instructions.NAME].numpy(force=True), pixels)
        return {"state": F.pad(state, (0, self.network.config.max_state_dim - state.shape[-1])), "pixel_values": pixels,
                "pixel_attention_mask": torch.ones(pixels.shape[:2], dtype=torch.bool, device=pixels.device),
                "input_ids": ids, "attention_mask": mask}

    def _square(self, images: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 in the middle of the network's square (B, 3, S, S), black around it, in [-1, 1]."""
        size, (height, width) = self.network.config.vlm_config.vision_config.image_size, images.shape[1:3]
        pixels, scale = images.permute(0, 3, 1, 2).float() / 127.5 - 1.0, size / max(height, width)
        if scale != 1.0:
            shape = (max(1, round(height * scale)), max(1, round(width * scale)))
            pixels = F.interpolate(pixels, shape, mode="bilinear", align_corners=False, antialias=True)
        down, right = size - pixels.shape[2], size - pixels.shape[3]
        return F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2), value=-1.0)

    def _sentences(self, rows: np.ndarray, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, L) of pictures (B, cameras, ...) and sentences, and 1 where there is one."""
        config = self.network.config.vlm_config
        patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
        before = [config.image_token_id] * (pixels.shape[1] * patches)
        said = [self._said(bytes(row)) for row in rows]
        longest = max(map(len, said))
        ids = torch.tensor([before + tokens + [0] * (longest - len(tokens)) for tokens in said], device=pixels.device)
        lengths = torch.tensor([len(before) + len(tokens) for tokens in said], device=pixels.device)
        return ids, (torch.arange(ids.shape[1], device=pixels.device) < lengths[:, None]).long()

    def _said(self, row: bytes) -> list[int]:
        """The tokens of one sentence, which is said many times."""
        if row not in self._tokens:
            sentence = sentence_of(row, "a pi0")
            begin = self.network.config.vlm_config.text_config.bos_token_id
            self._tokens[row] = [begin, *self.tokenizer.ids(f"{sentence}\n")][:self.config.tokens]
        return self._tokens[row]

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: its normalisation."""
        return self.normalisation.state_dict()

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The points (B, K + 1, H, M) of a noisy path, M being the numbers the network has an action; log-densities (B, H).

        dx = v dt loses no marginal when noise of a standard deviation g(t) enters and the score draws it back:
        x' = x - v d + g^2 s d / 2 + g sqrt(d) e, with s = -(x + (1 - t) v) / t (Flow-GRPO, Liu et al. 2025, arXiv
        2505.05470; for pi0: pi_RL, arXiv 2510.25889). Here g = sde_noise sqrt(t), which is nowhere singular. What the
        network has beyond our numbers goes without noise.
        """
        inputs = self.inputs(batch)
        cache = self._prefix(inputs)
        points = [self.noise(len(inputs["state"]), generator)]
        log_probs: list[Tensor] = []
        for k in range(self.config.flow_steps):
            time = torch.full((len(points[0]),), 1.0 - k / self.config.flow_steps, device=self.device)
            mean, std = self._step(points[-1], self._velocity(inputs, cache, points[-1], time), time)
            drawn = mean + std * self._own(self.noise(len(mean), generator))
            log_probs.append(self._density(drawn, mean, std))
            points.append(drawn)
        return torch.stack(points, dim=1), sum(log_probs, torch.zeros_like(log_probs[0]))

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of paths (B, 1, ...) as ``act`` has drawn them, and their entropy, both (B, E)."""
        steps, size = self.config.flow_steps, len(actions)
        points = actions.reshape(size, steps + 1, self.config.horizon, -1)
        inputs = self.inputs(batch)
        cache = self._prefix(inputs)
        cache.batch_repeat_interleave(steps)
        repeated = {name: value.repeat_interleave(steps, dim=0) for name, value in inputs.items()}
        before, after = points[:, :-1].flatten(0, 1), points[:, 1:].flatten(0, 1)
        time = (1.0 - torch.arange(steps, device=points.device) / steps).repeat(size)
        mean, std = self._step(before, self._velocity(repeated, cache, before, time), time)
        log_probs = self._density(after, mean, std).view(size, steps, -1).sum(dim=1)[:, :self.config.executed]
        entropy = (0.5 + 0.5 * _LOG_2_PI + std.log()).view(size, steps).sum(dim=1, keepdim=True) * self.spec.action.dim
        return log_probs, entropy.expand(log_probs.shape)

    def _prefix(self, inputs: Batch) -> Any:
        """What the action expert attends to: keys and values of pictures and sentences."""
        model, mask = self.network.model, inputs["attention_mask"]
        embeds = model.embed_prefix(inputs["input_ids"], inputs["pixel_values"], inputs["pixel_attention_mask"])
        return model.vlm(inputs_embeds=embeds, attention_mask=mask, position_ids=mask.cumsum(-1) - 1,
                         token_type_ids=torch.zeros_like(embeds)[:, :, 0], use_cache=True).past_key_values

    def _velocity(self, inputs: Batch, cache: Any, point: Tensor, time: Tensor) -> Tensor:
        length = cache.get_seq_length()
        velocity = self.network(state=inputs["state"], noise=point, timestep=time, attention_mask=inputs["attention_mask"],
                                pixel_attention_mask=inputs["pixel_attention_mask"], past_key_values=cache).logits
        cache.crop(length - cache.get_seq_length())  # the prefix alone is kept
        return velocity

    def _step(self, point: Tensor, velocity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, H, M) of the next point, and its standard deviation (B, 1, 1)."""
        time, d, noise = time[:, None, None], 1.0 / self.config.flow_steps, self.config.sde_noise
        back = 0.5 * noise ** 2 * d * (point + (1.0 - time) * velocity)
        return point - d * velocity - self._own(back), noise * (time * d).sqrt()

    def _own(self, values: Tensor) -> Tensor:
        """(B, H, M) with zeros where no numbers of ours are."""
        ours = self.spec.action.dim
        return F.pad(values[..., :ours], (0, values.shape[-1] - ours))

    def _density(self, point: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log-density (B, H) of our numbers of each action."""
        ours = self.spec.action.dim
        off = ((point - mean)[..., :ours] / std) ** 2
        return -0.5 * (off + 2.0 * std.log() + _LOG_2_PI).sum(dim=-1)

    def decode(self, batch: Batch, noise: Tensor) -> Tensor:
        """The actions (B, H A) that noise (B, H, as many as the network has) is carried to."""
        actions = self.network.sample_actions(**self.inputs(batch), noise=noise, num_steps=self.config.flow_steps)
        return actions[..., :self.spec.action.dim].flatten(1).clamp(-1.0, 1.0)

    def noise(self, size: int, generator: torch.Generator | None) -> Tensor:
        """For so many chunks, also where the network has more numbers an action than we."""
        shape = (size, self.config.horizon, self.network.config.max_action_dim)
        return sharding.noise(torch.randn, shape, generator, self.device)

    def imitation_loss(self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """E |v(t z + (1 - t) a, t) - (z - a)|^2 for demonstrated actions (B, H A), with more times near noise."""
        sizes, dim = self.network.config, self.spec.action.dim
        noise = self.noise(len(actions), generator)
        uniform = sharding.noise(torch.rand, (len(actions),), generator, actions.device)
        # Beta(alpha, 1) has the quantiles u^(1 / alpha)
        time = uniform ** (1.0 / sizes.time_sampling_beta_alpha) * sizes.time_sampling_scale + sizes.time_sampling_offset
        goal = F.pad(actions.unflatten(-1, (-1, dim)), (0, sizes.max_action_dim - dim))
        mixed = time[:, None, None] * noise + (1.0 - time[:, None, None]) * goal
        velocity = self.network(**self.inputs(batch), noise=mixed, timestep=time).logits
        return ((velocity - (noise - goal))[..., :dim] ** 2).mean()

    @torch.no_grad()
    def act(self, observation: Observation, explore: bool, generator: torch.Generator | None = None) -> ActionChunk:
        """Chunks of actions from noise that is drawn; from its middle, where nothing is to be drawn.

        Where it explores with ``sde_noise``, ``drawn`` is the path (B, 1, ...).
        """
        if explore and self.config.sde_noise:
            path, log_probs = self.sample(self.seen(observation), generator)
            actions = path[:, -1, :, :self.spec.action.dim].clamp(-1.0, 1.0)
            return self.chunk(actions, path.flatten(1).unsqueeze(1), log_probs)
        noise = self.noise(len(observation), generator)
        return self.chunk(self.decode(self.seen(observation), noise if self.draws(explore) else torch.zeros_like(noise)))


def _first(config: Config) -> tuple[Any, Tokenizer]:
    """Network and tokenizer to begin with."""
    if config.checkpoint:
        return from_checkpoint(Path(config.checkpoint), config.horizon)
    return from_scratch(config.network, config.horizon), tokenizer_of("")


Policy = Pi0
