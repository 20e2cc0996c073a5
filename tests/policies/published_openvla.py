"""A tiny OpenVLA in its published layout, and its logits by transformers' own modules."""

import json

import torch
from torch.nn import functional as F

from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.openvla.vision import TOWERS

TOWER = {"embed_dim": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 2.0, "patch_size": 16}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
SMALL = {"timm_model_args": [TOWER, TOWER], "image_sizes": [32, 32], "text_config": TEXT}
# which still learns
TINIEST = {
    "timm_model_args": [TOWER | {"depth": 2, "embed_dim": 16}] * 2,
    "image_sizes": [32, 32],
    "text_config": TEXT | {"num_hidden_layers": 1},
}
STATISTICS = {
    "lab": {
        "action": {"q01": [-0.01, 0.0], "q99": [0.03, 1.0], "mask": [True, False]},
        "proprio": {"q01": [-1.0, 0.0, 2.0], "q99": [1.0, 0.5, 3.0]},
    }
}


def written(folder, family="openvla", **sizes):
    """Write a tiny OpenVLA with two weights files, SigLIP's head and its tokenizer."""
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = [
        "<unk>",
        "<s>",
        "</s>",
        "In:",
        "What",
        "action",
        "should",
        "the",
        "robot",
        "take",
        "to",
        "Out:",
        "push?",
        "▁",
    ]
    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tiny_checkpoint.write(
        family, folder, SMALL | {"norm_stats": STATISTICS}, tokenizer.to_str(), seed=1, **sizes
    )
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights["vision_backbone.fused_featurizer.attn_pool.latent"] = torch.zeros(1, 1, 32)
    for number in (0, 1):
        save_file(
            {name: weights[name] for name in sorted(weights)[number::2]},
            folder / f"model-{number}.safetensors",
        )
    return folder


def theirs(folder):
    """Return all logits of a picture (3, 32, 32) and tokens by transformers' own modules."""
    from safetensors.torch import load_file
    from transformers import (
        Dinov2WithRegistersConfig,
        Dinov2WithRegistersModel,
        LlamaConfig,
        LlamaForCausalLM,
        SiglipVisionConfig,
        SiglipVisionModel,
    )

    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: value
        for part in (0, 1)
        for name, value in load_file(folder / f"model-{part}.safetensors").items()
    }
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "patch_size": 16,
        "image_size": 32,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
    }
    dino = Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(**sizes, mlp_ratio=2, num_register_tokens=4)
    ).eval()
    siglip = SiglipVisionModel(
        SiglipVisionConfig(**sizes, intermediate_size=64, vision_use_head=False)
    ).eval()
    llama = LlamaForCausalLM(LlamaConfig(**config["text_config"])).eval()
    llama.load_state_dict(_below(weights, "language_model."))
    first, second = (
        _below(weights, "vision_backbone.featurizer."),
        _below(weights, "vision_backbone.fused_featurizer."),
    )
    places = torch.cat([torch.zeros(1, 1, 32), first.pop("pos_embed")], dim=1)
    _load(
        dino,
        first | {"embeddings.position_embeddings": places},
        [
            ("cls_token", "embeddings.cls_token"),
            ("reg_token", "embeddings.register_tokens"),
            ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
            ("blocks.", "encoder.layer."),
            ("attn.proj", "attention.o_proj"),
            ("attn.", "attention."),
            (".ls", ".layer_scale"),
            ("scale_factor", "lambda1"),
        ],
    )
    _load(
        siglip,
        second | {"embeddings.position_embedding.weight": second.pop("pos_embed")[0]},
        [
            ("patch_embed.proj", "embeddings.patch_embedding"),
            ("blocks.", "encoder.layers."),
            (".norm", ".layer_norm"),
            ("attn.proj", "self_attn.out_proj"),
            ("attn.", "self_attn."),
        ],
    )

    def embeds(picture, tokens):
        means = [torch.tensor(tower["mean"]).view(3, 1, 1) for tower in TOWERS.values()]
        stds = [torch.tensor(tower["std"]).view(3, 1, 1) for tower in TOWERS.values()]
        first = dino((picture - means[0])[None] / stds[0], output_hidden_states=True).hidden_states[
            -2
        ][:, 5:]
        second = siglip(
            (picture - means[1])[None] / stds[1], output_hidden_states=True
        ).hidden_states[-2]
        x = torch.cat([first, second], dim=-1)
        for layer in ("fc1", "fc2", "fc3"):
            x = F.linear(
                x if layer == "fc1" else F.gelu(x),
                weights[f"projector.{layer}.weight"],
                weights[f"projector.{layer}.bias"],
            )
        words = llama.get_input_embeddings()(torch.tensor([tokens]))
        return torch.cat([words[:, :1], x, words[:, 1:]], dim=1)

    return llama, embeds


def _below(weights, prefix):
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }


def _load(model, weights, renamed):
    """Load timm's weights under transformers' names, and check that all are used."""
    state = {}
    for name, value in weights.items():
        parts = {name: value}
        if ".qkv." in name:
            parts = {
                name.replace("qkv", f"{part}_proj"): rows
                for part, rows in zip("qkv", value.chunk(3), strict=True)
            }
        for part, rows in parts.items():
            if part.startswith("norm."):
                part = ("layer" if "cls_token" in weights else "post_layer") + part
            for old, new in renamed:
                part = part.replace(old, new) if new not in part else part
            state[part] = rows
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"embeddings.mask_token"} and all(
        "attn_pool" in name for name in unexpected
    ), missing
