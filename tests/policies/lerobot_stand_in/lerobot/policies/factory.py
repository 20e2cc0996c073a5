import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file


class StandIn:
    """Chunks of W (state, mean of each picture), with step h scaled by h + 1, and noise."""

    def __init__(self, folder, config):
        self.weight = load_file(Path(folder) / "model.safetensors")["weight"]
        self.config = config
        self._queues = {"observation.state": []} if config.n_obs_steps > 1 else {}
        self.step = 0

    @classmethod
    def from_pretrained(cls, folder, config, strict, local_files_only):
        assert strict and local_files_only
        return cls(folder, config)

    def eval(self):
        return self

    def reset(self):
        self.step = 0

    def predict_action_chunk(self, batch):
        task = batch["task"][0]
        if task == "raise":
            raise ValueError("expected another sentence")
        if task == "die":
            os._exit(3)
        if task == "sleep":
            time.sleep(30)
        observed = [batch[name] for name in self.config.input_features if "images" in name]
        assert all(picture.shape[1] == 3 and picture.max() <= 1 for picture in observed)
        pictures = [picture.mean((1, 2, 3))[:, None] for picture in observed]
        first = torch.cat([batch["observation.state"], *pictures], 1) @ self.weight.T
        chunk = first[:, None] * (1 + torch.arange(self.config.chunk_size))[:, None]
        return chunk + self.config.noise * torch.randn(chunk.shape)

    def select_action(self, batch):
        self.step += 1
        return self.predict_action_chunk(batch)[:, self.step - 1]


def get_policy_class(name):
    assert name == "act", name
    return StandIn


def make_pre_post_processors(config, pretrained_path, preprocessor_overrides):
    assert preprocessor_overrides == {"device_processor": {"device": "cpu"}}
    return lambda batch: batch, lambda actions: actions * 0.01
