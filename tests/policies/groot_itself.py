"""Write a tiny random GR00T N1.5 and its answers; runs in LeRobot's environment.

    .venvs/lerobot/bin/python tests/policies/groot_itself.py FOLDER

FOLDER has ``config.json``, ``eagle/config.json`` and ``eagle/tokenizer.json``; ``given.npz``:
pictures (B, H, W, 3) by camera, state, noise, time and action; ``given.json``: sentences and sizes.
Written beside them: ``model.safetensors``, and ``said.npz``: the chunk that the noise is carried
to, losses, pictures and tokens. Each is asked alone: GR00T attends to what fills a batch up.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

# its wheel is built for CUDA, and declares these only there
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.policies.groot import groot_n1  # noqa: E402

# imported there, of no use here
sys.modules.setdefault("peft", SimpleNamespace(LoraConfig=None, get_peft_model=None))

from lerobot.policies.groot.eagle2_hg_model.configuration_eagle2_5_vl import Eagle25VLConfig  # noqa: E402
from lerobot.policies.groot.eagle2_hg_model.image_processing_eagle2_5_vl_fast import (  # noqa: E402
    Eagle25VLImageProcessorFast,
)
from lerobot.policies.groot.eagle2_hg_model.modeling_eagle2_5_vl import (
    Eagle25VLForConditionalGeneration,
)  # noqa: E402
from lerobot.policies.groot.eagle2_hg_model.processing_eagle2_5_vl import Eagle25VLProcessor  # noqa: E402
from lerobot.policies.groot.processor_groot import (  # noqa: E402
    GrootEagleCollateStep,
    GrootEagleEncodeStep,
    GrootPackInputsStep,
)
from lerobot.processor.core import TransitionKey  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import BatchFeature, PreTrainedTokenizerFast, SiglipVisionModel  # noqa: E402

CHAT = (
    "{% for message in messages %}{% if loop.first %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% set seen = namespace(value=0) %}{% for content in message['content'] %}{% if "
    "content['type'] == 'image' %}{% set seen.value = seen.value + 1 %}<image-{{ seen.value }}>{% "
    "else %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)


def model_of(config, eagle_config):
    """Build NVIDIA's own model, without the download of Eagle and without flash attention."""
    eagle = Eagle25VLConfig(**eagle_config, _attn_implementation="sdpa")
    groot_n1.ensure_eagle_cache_ready = lambda *_: None
    groot_n1.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, **__: eagle)
    groot_n1.AutoModel = SimpleNamespace(
        from_config=lambda config, **_: Eagle25VLForConditionalGeneration(
            config, vision_model=SiglipVisionModel(config.vision_config)
        )
    )
    model = groot_n1.GR00TN15(
        groot_n1.GR00TN15Config(**config, compute_dtype="float32"), local_model_path=""
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
            else:
                parameter.normal_(
                    0.0,
                    (parameter.shape[1] if name.endswith(".W") else parameter[0].numel()) ** -0.5,
                )
    return model


folder = Path(sys.argv[1])
given, sizes = dict(np.load(folder / "given.npz")), json.loads((folder / "given.json").read_text())
torch.set_num_threads(1)
torch.manual_seed(0)
config, eagle_config = (
    json.loads((folder / name).read_text()) for name in ("config.json", "eagle/config.json")
)
tokens = (
    eagle_config["vision_config"]["image_size"] // eagle_config["vision_config"]["patch_size"]
) ** 2
model = model_of({key: value for key, value in config.items() if key != "model_type"}, eagle_config)
weights = {
    name: value for name, value in model.state_dict().items() if not name.endswith("lm_head.weight")
}
save_file(
    {name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors"
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "eagle/tokenizer.json"),
    pad_token="<|im_end|>",
    model_input_names=["input_ids", "attention_mask"],
)
square = {
    "height": eagle_config["vision_config"]["image_size"],
    "width": eagle_config["vision_config"]["image_size"],
}
processor = Eagle25VLProcessor(
    Eagle25VLImageProcessorFast(size=square, do_pad=False),
    tokenizer,
    chat_template=CHAT,
    tokens_per_tile=tokens,
)
head = config["action_head_cfg"]
tag = {"embodiment_tag": "ours", "embodiment_mapping": {"ours": sizes["embodiment"]}}
stats = {"observation.state": {key: torch.tensor(sizes[key]) for key in ("min", "max")}}
pack = GrootPackInputsStep(
    action_horizon=config["action_horizon"],
    max_state_dim=head["max_state_dim"],
    max_action_dim=head["action_dim"],
    stats=stats,
    **tag,
)
steps = [pack, GrootEagleEncodeStep(), GrootEagleCollateStep()]
for step in steps[1:]:
    step._proc = processor
answers = {"chunk": [], "losses": [], "pixels": [], "tokens": []}
for index, sentence in enumerate(sizes["sentences"]):
    images = {
        f"observation.images.{name}": torch.from_numpy(given[name][index]).permute(2, 0, 1)[None]
        for name in sizes["cameras"]
    }
    transition = {
        TransitionKey.OBSERVATION: images
        | {"observation.state": torch.from_numpy(given["state"][index])[None]},
        TransitionKey.ACTION: torch.from_numpy(given["action"][index])[None],
        TransitionKey.COMPLEMENTARY_DATA: {"task": [sentence]},
    }
    for step in steps:
        transition = step(transition)
    inputs = (
        transition[TransitionKey.OBSERVATION]
        | transition[TransitionKey.COMPLEMENTARY_DATA]
        | {"action": transition[TransitionKey.ACTION]}
    )
    noise, time = (
        torch.from_numpy(given["noise"][index])[None],
        torch.from_numpy(given["time"][index : index + 1]),
    )
    torch.randn = lambda *_, **__: noise  # noqa: B023
    model.action_head.sample_time = lambda *_, **__: time  # noqa: B023
    eagle = {key: value for key, value in inputs.items() if key.startswith("eagle_")}
    with torch.no_grad():
        for act, name, key in (
            (model.action_head.get_action, "chunk", "action_pred"),
            (model.action_head, "losses", "loss"),
        ):
            answers[name].append(
                act(model.backbone(BatchFeature(eagle)), BatchFeature(inputs))[key].numpy()
            )
    answers["pixels"].append(eagle["eagle_pixel_values"].numpy())
    answers["tokens"].append(np.pad(eagle["eagle_input_ids"][0].numpy(), (0, 200))[:200])
np.savez(folder / "said.npz", **{name: np.stack(values) for name, values in answers.items()})
