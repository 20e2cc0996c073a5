"""Write a tiny random ACT or Diffusion Policy and its answers; runs in LeRobot's environment.

    .venvs/lerobot/bin/python tests/policies/visuomotor_itself.py make FOLDER    # from given.json and given.npz: a folder
    .venvs/lerobot/bin/python tests/policies/visuomotor_itself.py load FOLDER    # answers of a folder that lies there

Written beside them: ``answers.npz`` with the chunk [the data set's units], LeRobot's actions one
after the other, and the loss of a demonstrated chunk.
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

from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature  # noqa: E402
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors  # noqa: E402

mode, folder = sys.argv[1], Path(sys.argv[2])
given, request = (
    dict(np.load(folder / "given.npz")),
    json.loads((folder / "given.json").read_text()),
)
torch.set_num_threads(1)
torch.manual_seed(0)
# (B, V), normalised (B, H, A)
state, action = (
    torch.from_numpy(given["state"]),
    torch.from_numpy(given["action"]),
)
pictures = {
    f"observation.images.{name}": torch.from_numpy(given[name]).permute(0, 3, 1, 2) / 255
    for name in request["cameras"]
}
frame = (
    pictures
    | {"observation.state": state}
    | ({} if pictures else {"observation.environment_state": state})
)
if mode == "make":
    kinds = {
        "observation.state": FeatureType.STATE,
        "observation.environment_state": FeatureType.ENV,
    }
    inputs = {
        name: PolicyFeature(kinds.get(name, FeatureType.VISUAL), tuple(value.shape[1:]))
        for name, value in frame.items()
    }
    modes = {name: NormalizationMode[value] for name, value in request["modes"].items()}
    config = make_policy_config(
        request["kind"],
        input_features=inputs,
        device="cpu",
        normalization_mapping=modes,
        output_features={"action": PolicyFeature(FeatureType.ACTION, action.shape[2:])},
        pretrained_backbone_weights=None,
        **request["config"],
    )
    policy = get_policy_class(request["kind"])(config)
    with torch.no_grad():
        for name, tensor in policy.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith(("running_mean", "bias")):
                tensor.normal_(0.0, 0.1)
            elif tensor.ndim > 1 and "pos_" not in name:
                tensor.normal_(0.0, tensor[0].numel() ** -0.5)
    stats = {
        feature: {key: torch.tensor(value) for key, value in numbers.items()}
        for feature, numbers in request["statistics"].items()
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    policy.save_pretrained(folder)
    before.save_pretrained(folder)
    after.save_pretrained(folder)
else:
    config = PreTrainedConfig.from_pretrained(folder, local_files_only=True)
    policy = get_policy_class(config.type).from_pretrained(
        folder, config=config, local_files_only=True
    )
    before, after = make_pre_post_processors(config, pretrained_path=str(folder))
policy.eval()
batch = before(dict(frame))
torch.manual_seed(3)
played = []
for _ in range(request["steps"]):
    played.append(after(policy.select_action(dict(batch))).numpy())
torch.manual_seed(3)
answers = {"played": np.stack(played, axis=1)}
if config.type == "act":
    answers["chunk"] = after(policy.predict_action_chunk(dict(batch))).numpy()
policy.train()
for module in policy.modules():  # as the policies here: statistics of pictures stay
    if isinstance(module, torch.nn.BatchNorm2d):
        module.eval()
torch.manual_seed(3)
trained = {
    name: torch.stack([value] * config.n_obs_steps, 1) if config.type == "diffusion" else value
    for name, value in batch.items()
    if name.startswith("observation.")
}
trained |= {"action": action, "action_is_pad": torch.zeros(action.shape[:2], dtype=torch.bool)}
draws = torch.randint
if config.type == "diffusion":  # the steps that are given, after the noise has been drawn
    torch.randint = lambda *_, **__: torch.from_numpy(given["times"])
answers["loss"] = policy.forward(trained)[0].detach().numpy()
torch.randint = draws
np.savez(folder / "answers.npz", **answers)
