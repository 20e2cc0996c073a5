import json
from pathlib import Path
from types import SimpleNamespace


class PreTrainedConfig:
    @staticmethod
    def from_pretrained(folder, local_files_only):
        return SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))
