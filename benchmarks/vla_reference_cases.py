"""Cases of vla_references: tiny policies of published families, and observations for them.

It imports neither torch nor rlinf_core, because LeRobot's environment uses it, too.
"""

from __future__ import annotations

import zlib

import numpy as np

SIZE, HORIZON, STATE, ACTION, PIXELS = 56, 5, 5, 3, {"front": (48, 85, 3), "wrist": (56, 56, 3)}
SENTENCES = [" push the_red cube", "pull"]
SCALE = 10.0  # largest step; nothing is cut off, so that all can be compared
# family, and the keys of LeRobot's config that differ from its defaults
CASES = {
    "pi0": ("pi0", {}),
    "pi05": ("pi05", {}),
    "smolvla": ("smolvla", {}),
    "pi0_quantiles": (
        "pi0",
        {"normalization_mapping": ("QUANTILES", "MIN_MAX"), "num_inference_steps": 3},
    ),
    "pi05_mean_std": ("pi05", {"normalization_mapping": ("MEAN_STD", "MEAN_STD")}),
    "pi05_apart": (
        "pi05",
        {"normalization_mapping": ("QUANTILE10", "IDENTITY"), "tokenizer_max_length": 60},
    ),
    "pi0_fast": ("pi0_fast", {"validate_action_token_prefix": False, "fast_skip_tokens": 64}),
    "pi0_fast_quantiles": (
        "pi0_fast",
        {
            "validate_action_token_prefix": False,
            "fast_skip_tokens": 64,
            "normalization_mapping": ("QUANTILES", "MIN_MAX"),
            "max_decoding_steps": 30,
        },
    ),
    "xvla": ("xvla", {}),
    "xvla_grippers": (
        "xvla",
        {
            "normalization_mapping": ("MEAN_STD", "MIN_MAX"),
            "action_mode": "ee6d",
            "num_denoising_steps": 3,
            "use_hetero_proj": True,
            "num_image_views": 4,
            "domain": 2,
        },
    ),
    "xvla_bimanual": (
        "xvla",
        {"action_mode": "so101_bimanual", "max_state_dim": 20, "tokenizer_max_length": 40},
    ),
    "smolvla_quantiles": (
        "smolvla",
        {"normalization_mapping": ("QUANTILES", "QUANTILES"), "num_steps": 4},
    ),
    "groot_n1_7": ("groot_n1_7", {}),
    # with processor_config.json, and its statistics by embodiment
    "groot_n1_7_area": (
        "groot_n1_7",
        {
            "num_inference_timesteps": 3,
            "vl_self_attention_cfg": None,
            "processor": {
                "use_percentiles": True,
                "use_albumentations": True,
                "image_target_size": [64, 64],
                "image_crop_size": [58, 58],
                "shortest_image_edge": 56,
                "crop_fraction": 0.95,
            },
        },
    ),
    "groot_n1_7_plain": (
        "groot_n1_7",
        {
            "use_alternate_vl_dit": False,
            "processor": {
                "image_target_size": [96, 64],
                "image_crop_size": [80, 60],
                "letter_box_transform": True,
                "formalize_language": False,
                "clip_outliers": False,
            },
        },
    ),
}
# types of policy.kind lerobot, and the keys of LeRobot's config that differ from its defaults
LEROBOT_KINDS = {
    "act": {
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 48,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
        "chunk_size": HORIZON,
        "n_action_steps": HORIZON,
        "pretrained_backbone_weights": None,
    },
    "smolvla": {"chunk_size": HORIZON, "n_action_steps": HORIZON, "load_vlm_weights": False},
    "diffusion": {
        "horizon": 8,
        "n_action_steps": HORIZON,
        "down_dims": (8, 16),
        "diffusion_step_embed_dim": 8,
        "spatial_softmax_num_keypoints": 4,
        "num_train_timesteps": 20,
        "num_inference_steps": 5,
        "crop_shape": (48, 48),
        "pretrained_backbone_weights": None,
    },
}
SIZE_OF_NOISE = {"xvla": 20, "groot_n1_7": 8}  # numbers of an action in the network
EMBODIMENT = 2  # index of GR00T's layers
GROOT_PIXELS = {"front": (48, 85, 3), "wrist": (48, 85, 3)}  # LeRobot asks for one shape


def statistics() -> dict[str, dict[str, list[float]]]:
    """Return statistics of state and action as a data set has them."""
    random = np.random.default_rng(3)
    numbers = {}
    for name, size, scale in (("observation.state", STATE, 1.0), ("action", ACTION, 0.3)):
        values = scale * random.normal(0.2, 1.0, (400, size)) * random.uniform(0.5, 1.5, size)
        numbers[name] = {
            "mean": values.mean(0),
            "std": values.std(0),
            "min": values.min(0),
            "max": values.max(0),
        } | {
            f"q{percent:02d}": np.percentile(values, percent, axis=0) for percent in (1, 10, 90, 99)
        }
    return {
        name: {key: value.tolist() for key, value in values.items()}
        for name, values in numbers.items()
    }


def shapes_of(family: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the pictures by camera."""
    return GROOT_PIXELS if family == "groot_n1_7" else PIXELS


def observations(family: str = "") -> dict[str, np.ndarray]:
    """Return random pictures, states, actions and noise for ``SENTENCES``."""
    random = np.random.default_rng(5)
    pictures = {
        name: random.integers(0, 255, (len(SENTENCES), *shape), np.uint8)
        for name, shape in shapes_of(family).items()
    }
    count = len(SENTENCES)
    arrays = {
        "state": random.normal(0.2, 0.8, (count, STATE)),
        "noise": random.normal(size=(count, HORIZON, 32)),
        "action": random.normal(0.05, 0.25, (count, HORIZON, ACTION)),
        "uniform": random.uniform(size=(count,)),
    }
    return pictures | {name: values.astype(np.float32) for name, values in arrays.items()}


def square_pictures() -> dict[str, np.ndarray]:
    """Return the pictures (B, 56, 56, 3) of each camera."""
    random = np.random.default_rng(7)
    return {
        name: random.integers(0, 255, (len(SENTENCES), SIZE, SIZE, 3), np.uint8) for name in PIXELS
    }


def fill(network, prefix: str = "", biases: bool = False) -> None:
    """Set weights by their names, for any version of torch; norms stay, and biases by default."""
    import torch

    for name, parameter in network.named_parameters():
        if parameter.ndim > 1 or biases and name.endswith("bias"):
            random = np.random.default_rng(
                zlib.crc32((prefix + name.replace("shared", "encoder.embed_tokens")).encode())
            )
            size = 0.1
            if parameter.ndim > 1:  # GR00T's weights of each embodiment are (inputs, outputs)
                size = (parameter.shape[1] if name.endswith(".W") else parameter[0].numel()) ** -0.5
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(random.normal(0.0, size, parameter.shape)))
