"""Write a tiny random SmolVLA and its answers; runs in LeRobot's environment.

    .venvs/lerobot/bin/python tests/policies/smolvla_itself.py FOLDER

FOLDER has ``given.npz``: pictures (B, H, W, 3) by camera, state, noise, time and action; and
``given.json``: sentences and sizes. Written beside them: the policy, ``vlm``, and ``said.npz``: the
chunk that the noise is carried to, and losses.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

# its wheel is built for CUDA, and declares these only there
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig  # noqa: E402
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy  # noqa: E402
from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Split  # noqa: E402
from transformers import (  # noqa: E402
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings  # noqa: E402

EXTRA = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
    "end_of_utterance_token": "<end_of_utterance>",
}


def vlm(folder, sizes):
    words = ["<unk>", "<pad>", *EXTRA.values(), "\n", " ", "push", "pull", "the", "red", "cube"]
    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = Split(" ", "isolated")
    tokenizer.add_tokens(["\n"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", extra_special_tokens=EXTRA
    )
    sizes["text_config"]["vocab_size"] = len(words)
    SmolVLMConfig(**sizes).save_pretrained(folder)
    SmolVLMProcessor(SmolVLMImageProcessor(), fast, SmolVLMVideoProcessor()).save_pretrained(folder)


def numbered(self, pixel_values, patch_attention_mask):
    """Number the patches in order; transformers 4.55 to 4.57 miscount them (issue 41190)."""
    return (
        self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        + self.position_embedding.weight
    )


folder = Path(sys.argv[1])
given, sizes = dict(np.load(folder / "given.npz")), json.loads((folder / "given.json").read_text())
torch.set_num_threads(1)
torch.manual_seed(0)
vlm(folder / "vlm", sizes["vlm_config"])
cameras = {
    f"observation.images.{name}": torch.from_numpy(given[name]).permute(0, 3, 1, 2) / 255
    for name in sizes["cameras"]
}
features = {
    name: PolicyFeature(FeatureType.VISUAL, tuple(image.shape[1:]))
    for name, image in cameras.items()
}
features["observation.state"] = PolicyFeature(FeatureType.STATE, given["state"].shape[1:])
outputs = {"action": PolicyFeature(FeatureType.ACTION, given["action"].shape[2:])}
config = SmolVLAConfig(
    input_features=features,
    output_features=outputs,
    vlm_model_name=str(folder / "vlm"),
    device="cpu",
    **sizes["config"],
)
SmolVLMVisionEmbeddings.forward = numbered
policy = SmolVLAPolicy(config).eval()
with torch.no_grad():
    for parameter in policy.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, parameter[0].numel() ** -0.5)
policy.save_pretrained(folder)
stats = {
    "observation.state": {key: torch.tensor(sizes[key]) for key in ("mean", "std")},
    "action": {
        "mean": torch.zeros(given["action"].shape[2]),
        "std": torch.ones(given["action"].shape[2]),
    },
}
before, _ = make_smolvla_pre_post_processors(config, dataset_stats=stats)
batch = before(
    cameras
    | {
        "observation.state": torch.from_numpy(given["state"]),
        "task": sizes["sentences"],
        "action": torch.from_numpy(given["action"]),
    }
)
noise, time = torch.from_numpy(given["noise"]), torch.from_numpy(given["time"])
with torch.no_grad():
    images, masks = policy.prepare_images(batch)
    losses = policy.model.forward(
        images,
        masks,
        batch["observation.language.tokens"],
        batch["observation.language.attention_mask"],
        policy.prepare_state(batch),
        policy.prepare_action(batch),
        noise,
        time,
    )
    chunk = policy.predict_action_chunk(batch, noise=noise)
np.savez(folder / "said.npz", chunk=chunk.numpy(), losses=losses.numpy())
