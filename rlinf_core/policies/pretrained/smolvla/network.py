"""The network with LeRobot's key names, without their first ``model.``.

Shukor et al. 2025, arXiv 2506.01844. The vision-language model is transformers' own SmolVLM, with
the first ``num_vlm_layers`` of its language model. The network comes from a folder or a file, or is
made from scratch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained import lerobot
from rlinf_core.policies.pretrained.action_expert import Prefix, sines
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    refuse_pointer,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.smolvla.expert import Expert
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, parse_tokenizer

KIND, PREFIX, VLM = "smolvla", "model.", "vlm_config"
# unused weights of checkpoints
UNUSED = ("model.vlm_with_expert.vlm.lm_head.", "normalize_", "unnormalize_")
COMPILED = "_orig_mod."  # part of the names if a compiled model was saved
MAPPING = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
SUPPORTED = {
    "attention_mode": "cross_attn",
    "add_image_special_tokens": False,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
}
SMALLEST: dict[str, Any] = {
    "type": KIND,
    "chunk_size": 50,
    "max_state_dim": 32,
    "max_action_dim": 32,
    "resize_imgs_with_padding": [64, 64],
    "num_vlm_layers": 2,
    "num_expert_layers": -1,
    "self_attn_every_n_layers": 2,
    "expert_width_multiplier": 0.75,
    "min_period": 4e-3,
    "max_period": 4.0,
    **SUPPORTED,
    VLM: {
        "model_type": KIND.replace("vla", "vlm"),
        "scale_factor": 2,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": BEGIN,
        },
        "vision_config": {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 8,
            "image_size": 64,
        },
    },
}


class SmolVLANetwork(nn.Module):
    """Images, tokens and state to keys and values; these and noisy actions to a velocity.

    Args:
        config: LeRobot's config.json, with the vision-language model's in ``vlm_config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import SmolVLMConfig, SmolVLMModel

        self.config = dict(config)
        vlm: Any = make_config(SmolVLMConfig, config[VLM])
        text, layers = vlm.text_config, config["num_vlm_layers"]
        # LeRobot's value, whatever the model's own
        text.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
        if layers > 0:
            text.num_hidden_layers = min(layers, text.num_hidden_layers)
        width = int(text.hidden_size * config["expert_width_multiplier"])
        expert = Expert(
            text, width, text.num_hidden_layers, max(config["self_attn_every_n_layers"], 0)
        )
        model = nn.ModuleDict({"model": SmolVLMModel(vlm).float()})
        self.vlm_with_expert = nn.ModuleDict({"vlm": model, "lm_expert": expert})
        self.state_proj = nn.Linear(config["max_state_dim"], text.hidden_size)
        self.action_in_proj = nn.Linear(config["max_action_dim"], width)
        self.action_out_proj = nn.Linear(width, config["max_action_dim"])
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    @property
    def vlm(self) -> Any:
        """transformers' SmolVLMModel."""
        vlm: Any = self.vlm_with_expert["vlm"]
        return vlm["model"]

    def prefix(self, pixels: Tensor, ids: Tensor, mask: Tensor, state: Tensor) -> Prefix:
        """Return the prefix of images (B, cameras, 3, S, S) in [-1, 1], tokens (B, L), and state.

        Only actions attend to the state.
        """
        flat, patch = pixels.flatten(0, 1), self.vlm.vision_model.patch_size
        patch_mask = torch.ones(
            len(flat),
            *(side // patch for side in flat.shape[2:]),
            dtype=torch.bool,
            device=flat.device,
        )
        # the model's own mask would be made on the host
        features = self.vlm.connector(self.vlm.vision_model(flat, patch_mask).last_hidden_state)
        embeddings = features.unflatten(0, pixels.shape[:2]).flatten(1, 2)
        words = self.vlm.text_model.get_input_embeddings()(ids)
        scale = math.sqrt(words.shape[-1])
        x = torch.cat(
            [embeddings * scale, words * scale, self.state_proj(state).unsqueeze(1)], dim=1
        )
        valid = torch.cat(
            [mask.new_ones(embeddings.shape[:2]), mask, mask.new_ones(len(x), 1)], dim=1
        )
        place = torch.arange(x.shape[1], device=x.device)
        last = place == x.shape[1] - 1
        allowed = valid[:, None, None, :] & (~last[None, :] | last[:, None])
        hidden = torch.zeros(allowed.shape, dtype=x.dtype, device=x.device).masked_fill(
            ~allowed, torch.finfo(x.dtype).min
        )
        cache = self.vlm.text_model(
            inputs_embeds=x,
            attention_mask=hidden,
            position_ids=valid.long().cumsum(-1) - 1,
            use_cache=True,
        ).past_key_values
        return Prefix.from_cache(cache, valid)

    def velocity(self, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        """Return the velocity at a point (B, H, M) and time (B,)."""
        actions = self.action_in_proj(point)
        times = sines(time, actions.shape[-1], self.config["min_period"], self.config["max_period"])
        times = times.to(actions.dtype).unsqueeze(1).expand_as(actions)
        x = self.action_time_mlp_out(
            F.silu(self.action_time_mlp_in(torch.cat([actions, times], dim=-1)))
        )
        return self.action_out_proj(self.vlm_with_expert["lm_expert"](x, prefix))


class SmolVLAFactory(NetworkFactory):
    """LeRobot's folders, and the vision-language model's config.json and tokenizer.json."""

    kind, config_name, horizon_key, metadata = KIND, "SmolVLA's config.json", "chunk_size", None

    def make(self, config: Mapping[str, Any]) -> SmolVLANetwork:
        for key, value in SUPPORTED.items():
            if config.get(key, value) != value:
                raise ValueError(f"{key} of {config[key]}, expected {value}")
        if (layers := config["num_expert_layers"]) not in (-1, 0, config["num_vlm_layers"]):
            raise ValueError(f"num_expert_layers of {layers}, expected -1, 0 or num_vlm_layers")
        return SmolVLANetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import SmolVLMConfig

        return {**SMALLEST, VLM: complete_document(SmolVLMConfig.from_dict(SMALLEST[VLM]))}

    def read(self, folder: Path) -> CheckpointInfo:
        config, training = lerobot.read_config(
            folder, KIND, ("vlm_model_name", "chunk_size"), SMALLEST
        )
        texts = {
            name: _read_vlm_file(folder, config["vlm_model_name"], name)
            for name in ("config.json", "tokenizer.json")
        }
        where = folder / config["vlm_model_name"]
        try:
            vlm_config = json.loads(texts["config.json"])
        except ValueError as error:
            raise PolicyFileError(
                f"policy.checkpoint {where / 'config.json'}: expected a map in config.json, "
                f"got: {error}. Copy it again"
            ) from error
        return CheckpointInfo(
            {**SMALLEST, **config, VLM: vlm_config},
            parse_tokenizer(texts["tokenizer.json"], where / "tokenizer.json"),
            config["chunk_size"],
            training.state_statistics,
            training.action_statistics,
            training.settings,
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        plain = {name.replace(COMPILED, ""): tensor for name, tensor in weights.items()}
        return {
            name.removeprefix(PREFIX): tensor
            for name, tensor in plain.items()
            if not name.startswith(UNUSED)
        }

    def module_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: LeRobot's."""
        return PREFIX + name

    def folder_files(
        self, network: SmolVLANetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """See ``NetworkFactory``; the vision-language model's files are in ``vlm``."""
        document = {key: value for key, value in network.config.items() if key != VLM} | {
            "vlm_model_name": "vlm",
            "normalization_mapping": MAPPING,
        }
        return (
            {
                self.module_name(name, network): tensor
                for name, tensor in network.state_dict().items()
            },
            {
                "config.json": json_text(document),
                "vlm/config.json": json.dumps(network.config[VLM]),
                "vlm/tokenizer.json": tokenizer.text,
            },
        )


def _read_vlm_file(folder: Path, name: str, file: str) -> str:
    """Return the text of a file of the vision-language model.

    The model is in the folder, at a path, or in Hugging Face's cache.
    """
    from transformers.utils import cached_file

    vlm_folder = folder / name
    try:
        path = (
            vlm_folder / file
            if vlm_folder.is_dir()
            else cached_file(name, file, local_files_only=True)
        )
        refuse_pointer(Path(str(path)))
        return Path(str(path)).read_text()
    except OSError as error:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected {file} of its vision-language model, found "
            f"none. Its config.json says vlm_model_name: {name}: fetch it (hf download {name} "
            "config.json tokenizer.json), or write the path of a folder that has both"
        ) from error


FACTORY = SmolVLAFactory()
