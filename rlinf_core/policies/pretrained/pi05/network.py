"""The network, transformers' PaliGemma and a local expert, and LeRobot's key names for it.

Physical Intelligence 2025, arXiv 2504.16054. LeRobot's folder names the sizes, and has no
tokenizer. The network is read from a folder, or made from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.policies.pretrained import lerobot, openpi
from rlinf_core.policies.pretrained.action_expert import Prefix, sines
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    replace_prefix,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.pi0.network import SMALLEST as PI0
from rlinf_core.policies.pretrained.pi05.expert import Expert
from rlinf_core.policies.pretrained.tokenization import Tokenizer

KIND, LANGUAGE = "pi05", "vlm.language_model.embed_tokens.weight"
# LeRobot's prefixes (without the first "model." in openpi's PyTorch files) to the local ones
NAMES = {
    "paligemma_with_expert.paligemma.lm_head.weight": LANGUAGE,  # tied: one of the two is in a file
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.": "vlm.vision_tower.",
    "paligemma_with_expert.paligemma.model.": "vlm.",
    "paligemma_with_expert.gemma_expert.model.": "dit.",
}
PUBLISHED_NAMES = {
    local_name: published_name
    for published_name, local_name in NAMES.items()
    if local_name != LANGUAGE
}
PADDED = (
    "LeRobot 0.4 trains with true, LeRobot 0.5 and openpi with false, and this config.json does "
    "not tell them apart: set policy.pad_state: true where 0.4 fine-tuned it, else false (as for "
    "lerobot/pi05_base, which openpi trained)"
)
UNUSED = "paligemma_with_expert.gemma_expert.lm_head."
MAPPING = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}
SMALLEST: dict[str, Any] = {
    "type": KIND,
    "chunk_size": 50,
    "max_state_dim": 32,
    "max_action_dim": 32,
    "min_period": 4e-3,
    "max_period": 4.0,
    "time_sampling_beta_alpha": 1.5,
    "time_sampling_scale": 0.999,
    "time_sampling_offset": 0.001,
    **PI0,
}


class Pi05Network(nn.Module):
    """Images and tokens to keys and values; these, noisy actions and the time to a velocity.

    Args:
        config: LeRobot's config.json, with both parts' in ``vlm_config`` and ``dit_config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaModel

        self.config = dict(config)
        self.vlm: Any = PaliGemmaModel(make_config(PaliGemmaConfig, config["vlm_config"])).float()
        self.dit = Expert(make_config(GemmaConfig, config["dit_config"]))
        width = config["dit_config"]["hidden_size"]
        self.action_in_proj = nn.Linear(config["max_action_dim"], width)
        self.action_out_proj = nn.Linear(width, config["max_action_dim"])
        self.time_mlp_in, self.time_mlp_out = nn.Linear(width, width), nn.Linear(width, width)

    @property
    def image_size(self) -> int:
        """Side of an image [pixels]."""
        size: int = self.vlm.config.vision_config.image_size
        return size

    def prefix(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Prefix:
        """Return the prefix of images (B, cameras, 3, S, S) in [-1, 1] and masked tokens (B, L).

        Attention is bidirectional.
        """
        patches = self.vlm.get_image_features(pixels.flatten(0, 1)).pooler_output
        features = patches.unflatten(0, pixels.shape[:2]).flatten(1, 2)
        x = torch.cat([features, self.vlm.get_input_embeddings()(ids)], dim=1)
        valid = torch.cat([mask.new_ones(features.shape[:2]), mask], dim=1)
        cache = self.vlm(
            inputs_embeds=x,
            attention_mask=valid.long(),
            position_ids=valid.long().cumsum(-1) - 1,
            token_type_ids=torch.zeros_like(valid, dtype=torch.long),
            use_cache=True,
        ).past_key_values
        return Prefix.from_cache(cache, valid)

    def velocity(self, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        """Return the velocity at a point (B, H, M) and time (B,)."""
        actions = self.action_in_proj(point)
        times = sines(
            time, actions.shape[-1], self.config["min_period"], self.config["max_period"]
        ).to(actions.dtype)
        time_embedding = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(times))))
        return self.action_out_proj(self.dit(actions, time_embedding, prefix))


class Pi05Factory(NetworkFactory):
    """LeRobot's folders and those of openpi's converter, and LeRobot's key names."""

    kind, config_name, horizon_key, metadata = KIND, "pi0.5's config.json", "chunk_size", None

    def make(self, config: Mapping[str, Any]) -> Pi05Network:
        return Pi05Network(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import PI0Config

        defaults = complete_document(PI0Config.from_dict(PI0))
        return {**SMALLEST, **{part: defaults[part] for part in PI0}}

    def read(self, folder: Path) -> CheckpointInfo:
        """See ``NetworkFactory``; needs PaliGemma's tokenizer.json, which neither layout has."""
        if openpi.is_converted(folder):
            config, published = openpi.read_config(folder)
            return replace(published, config={**SMALLEST, **config})
        config, training = lerobot.read_config(
            folder,
            KIND,
            ("chunk_size",),
            {*openpi.SIZES, *SMALLEST},
            {"time_sampling_beta_beta": 1.0},
        )
        required_settings = {} if training.has_relative_key else {"pad_state": PADDED}
        return CheckpointInfo(
            {**SMALLEST, **openpi.sizes(folder, config), **config, openpi.MAKER: "lerobot"},
            openpi.read_paligemma_tokenizer(folder),
            config["chunk_size"],
            training.state_statistics,
            training.action_statistics,
            training.settings,
            required_settings,
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            replace_prefix(name.removeprefix("model."), NAMES): tensor
            for name, tensor in weights.items()
            if UNUSED not in name
        }

    def module_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: LeRobot's."""
        return f"model.{replace_prefix(name, PUBLISHED_NAMES)}"

    def folder_files(
        self, network: Pi05Network, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """See ``NetworkFactory``.

        The file config.json also holds a tiny network's sizes, without a variant.
        """
        weights = {
            self.module_name(name, network): tensor for name, tensor in network.state_dict().items()
        }
        document = {key: value for key, value in network.config.items() if key != openpi.MAKER} | {
            "normalization_mapping": MAPPING,
            "use_relative_actions": False,
        }
        return weights, {
            "config.json": json_text(document),
            "tokenizer.json": tokenizer.text,
        }


FACTORY = Pi05Factory()
