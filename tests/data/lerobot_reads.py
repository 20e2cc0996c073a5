"""Print a line of JSON about each data set as LeRobot reads it; runs in LeRobot's environment.

.venvs/lerobot/bin/python tests/data/lerobot_reads.py DATASET ...
"""

import json
import sys

import torch

# its wheel is built for CUDA, and declares these only there
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

torch.set_num_threads(1)
for root in sys.argv[1:]:
    try:
        dataset = LeRobotDataset("local/set", root=root)
        names = dataset.meta.features["action"]["names"]
        frames = [
            {
                "episode": int(item["episode_index"]),
                "frame": int(item["frame_index"]),
                "task": item["task"],
                "action": item["action"].tolist(),
                **{
                    camera: item[f"observation.images.{camera}"].float().mean().item() * 255
                    for camera in ("front", "wrist")
                },
            }
            for item in (dataset[row] for row in range(len(dataset)))
        ]
        print(json.dumps({"root": root, "names": list(names or ()), "frames": frames}))
    except Exception as error:  # whatever its reader raises
        print(json.dumps({"root": root, "error": f"{type(error).__name__}: {error}"[:300]}))
