"""X-VLA: a transformer predicts clean actions from noisy ones, images and a sentence.

Zheng et al. 2025, arXiv 2510.10274. This module prepares images, sentence and state like LeRobot,
in training and on stations. Images are normalised by ImageNet's mean and deviation. With
``resize_imgs_with_padding`` each image is scaled into a rectangle without distortion; the space
to the left and above is filled with the mean. Sentences are padded to ``policy.tokens``. Vectors
are normalised and padded with zeros.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies import sharding
from rlinf_core.policies.base import Batch
from rlinf_core.policies.encoder import IMAGENET_MEAN, IMAGENET_STD
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.flow_matching import FlowMatching, TimeSampling
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.xvla import Config
from rlinf_core.policies.pretrained.xvla.network import FACTORY, FLORENCE
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.specs import arrays

MAX_TIME = 1.0 - 1e-5  # upper bound of the training times


class XVLA(FlowMatching):
    """v = (x - a(x, t)) / t, where the network predicts the actions a.

    Without exploration each step mixes the first noise with the predicted actions, as LeRobot
    does. Exploration takes noisy Euler steps along v.
    """

    config: Config
    name = "an X-VLA"
    factory: ClassVar[NetworkFactory] = FACTORY
    statistics_kind = "identity"

    def read_sizes(self) -> None:
        """See ``FlowMatching``."""
        config, space = self.network.config, self.network.space
        self.max_state_dim, self.max_action_dim = config["max_state_dim"], space.size
        self.time_sampling = TimeSampling(1.0, MAX_TIME, 0.0)
        if self.spec.action.dim > space.used:
            raise SpecError(
                f"policy.kind: expected at most {space.used} numbers an action for X-VLA's "
                f"action_mode {config['action_mode']}, got {self.spec.action.dim}"
            )
        if self.config.domain >= config["num_domains"]:
            raise SpecError(
                f"policy.domain: expected one of 0 to {config['num_domains'] - 1}, which the "
                f"network has, got {self.config.domain}"
            )
        shapes = {image.shape for image in self.spec.images}
        if config["resize_imgs_with_padding"] is None and len(shapes) > 1:
            raise SpecError(
                "station.observe_cameras: expected images of one size for a network without "
                f"resize_imgs_with_padding, got {sorted(shapes)}"
            )

    @property
    def vlm(self) -> torch.nn.Module:
        """See ``FlowMatching``."""
        vlm: torch.nn.Module = self.network.vlm
        return vlm

    def inputs(self, batch: Batch) -> Batch:
        """Return images, tokens and state."""
        pixels = torch.stack(
            [self._prepare_image(batch[image.name]) for image in self.spec.images], 1
        )
        padding = self.tokenizer.token_id("<pad>")
        if padding is None:
            padding = self.network.config[FLORENCE]["text_config"].get("pad_token_id") or 0
        rows = [
            [*row, *[padding] * (self.config.tokens - len(row))]
            for row in self.tokenize(batch[arrays.INSTRUCTION])
        ]
        state = self.padded_state(batch)
        return {
            "pixels": pixels,
            "ids": torch.tensor(rows, device=pixels.device),
            "state": state if self.network.config["use_proprio"] else state[:, :0],
        }

    def _prepare_image(self, images: Tensor) -> Tensor:
        """Return normalised images (B, 3, H, W) of (B, H, W, 3) uint8."""
        mean, std = (
            torch.tensor(values, device=images.device).view(3, 1, 1)
            for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        pixels = (images.permute(0, 3, 1, 2).float() / 255.0 - mean) / std
        shape, size = pixels.shape[2:], self.network.config["resize_imgs_with_padding"]
        if size is None or tuple(size) == tuple(shape):
            return pixels
        ratio = max(shape[1] / size[1], shape[0] / size[0])
        height, width = int(shape[0] / ratio), int(shape[1] / ratio)
        pixels = F.interpolate(pixels, (height, width), mode="bilinear")
        return F.pad(pixels, (max(size[1] - width, 0), 0, max(size[0] - height, 0), 0))

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``: the marks of beginning and end are in ``policy.tokens``."""
        begin, end = (
            [token] if token is not None else []
            for token in map(self.tokenizer.token_id, ("<s>", "</s>"))
        )
        room = self.config.tokens - len(begin) - len(end)
        return [*begin, *self.tokenizer.encode(sentence)[:room], *end]

    def _prefix(self, inputs: Batch) -> Prefix:
        prefix: Prefix = self.network.prefix(
            inputs["pixels"], inputs["ids"], self.config.domain, self.config.horizon
        )
        return prefix

    def _velocity(self, inputs: Batch, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        predicted = self.network.predicted(prefix, inputs["state"], point, time, self.config.domain)
        return (point - predicted) / time[:, None, None]

    def _integrate(
        self, inputs: Batch, noise: Tensor, continuation: Continuation | None = None
    ) -> Tensor:
        prefix, actions = self._prefix(inputs), torch.zeros_like(noise)
        # see FlowMatching._integrate
        field = self._velocity if continuation is None else partial(type(self)._velocity, self)
        for time in self._step_times(len(noise)):
            share, velocity = time[:, None, None], partial(field, inputs, prefix, time=time)
            point = noise * share + actions * (1.0 - share)
            actions = point - share * self._guided_velocity(velocity, point, time, continuation)
        return actions

    def to_actions(self, point: Tensor) -> Tensor:
        """See ``FlowMatching``: the grippers' numbers are logits."""
        return super().to_actions(self.network.space.output(point))

    def to_point(self, actions: Tensor) -> Tensor:
        """See ``FlowMatching``."""
        point: Tensor = self.network.space.input(super().to_point(actions))
        return point

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return LeRobot's loss of ``action_mode`` for demonstrated actions (B, H A).

        Times are uniform.
        """
        noise = self.noise(len(actions), generator)
        uniform = sharding.noise(torch.rand, (len(actions),), generator, actions.device)
        time, dim = uniform % MAX_TIME, self.spec.action.dim
        goal = F.pad(
            self.units.to_network(actions.unflatten(-1, (-1, dim))), (0, self.max_action_dim - dim)
        )
        share, inputs = time[:, None, None], self.inputs(batch)
        predicted = self.network.predicted(
            self._prefix(inputs),
            inputs["state"],
            noise * share + goal * (1.0 - share),
            time,
            self.config.domain,
        )
        loss: Tensor = self.network.space.loss(predicted, goal, dim)
        return loss


Policy = XVLA
