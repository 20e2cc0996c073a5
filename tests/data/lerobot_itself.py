"""Run by LeRobot's own environment: load a data set, iterate it, and train ACT on it for some
updates.

.venvs/lerobot/bin/python tests/data/lerobot_itself.py DATASET [UPDATES]
"""

import json
import sys

import torch

# its wheel is built for CUDA, and declares these only there
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.configs.types import FeatureType  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.datasets.utils import dataset_to_policy_features  # noqa: E402
from lerobot.policies.act.configuration_act import ACTConfig  # noqa: E402
from lerobot.policies.act.modeling_act import ACTPolicy  # noqa: E402
from lerobot.policies.act.processor_act import make_act_pre_post_processors  # noqa: E402

root, updates = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
torch.set_num_threads(1)
dataset = LeRobotDataset("local/set", root=root)
items = [dataset[index] for index in range(len(dataset))]
report = {
    "episodes": dataset.num_episodes,
    "frames": len(items),
    "task": items[0]["task"],
    "state": [item["observation.state"].tolist() for item in items],
    "action": [item["action"].tolist() for item in items],
    "cameras": {
        key: [item[key].mean().item() * 255 for item in items] for key in dataset.meta.camera_keys
    },
}
if updates:
    torch.manual_seed(0)
    features = dataset_to_policy_features(dataset.meta.features)
    outputs = {
        name: feature for name, feature in features.items() if feature.type is FeatureType.ACTION
    }
    config = ACTConfig(
        input_features={name: feature for name, feature in features.items() if name not in outputs},
        output_features=outputs,
        chunk_size=8,
        n_action_steps=8,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=8,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy, (before, _) = (
        ACTPolicy(config),
        make_act_pre_post_processors(config, dataset_stats=dataset.meta.stats),
    )
    steps = {"action": [step / dataset.fps for step in config.action_delta_indices]}
    chunked = LeRobotDataset("local/set", root=root, delta_timestamps=steps)
    loader = torch.utils.data.DataLoader(chunked, batch_size=4, shuffle=True)
    optimizer, losses = torch.optim.AdamW(policy.parameters(), lr=1e-4), []
    while len(losses) < updates:
        for batch in loader:
            loss, _ = policy.forward(before(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    report["losses"] = losses[:updates]
print(json.dumps(report))
