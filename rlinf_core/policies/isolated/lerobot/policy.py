"""A policy that LeRobot's class computes in another process, behind a socket.

This process maps the task's names and units to those of the folder. LeRobot's own processors
normalise the numbers. The actions of the folder must be the task's steps, in SI units.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from rlinf_core.core.errors import (
    EngineError,
    PolicyFileError,
    RlinfError,
    SpecError,
    escape_ascii,
    nearest,
)
from rlinf_core.core.isolated import IsolatedProcess, python_of
from rlinf_core.policies import sharding
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.isolated.lerobot import Config, worker
from rlinf_core.policies.pretrained.dataset_statistics import centre_and_spread, check_units
from rlinf_core.policies.pretrained.huggingface import check_horizon, read_json
from rlinf_core.policies.pretrained.lerobot import MODES
from rlinf_core.specs.arrays import StationSpec, other_units

TIMEOUT_S = 600.0  # longest wait for an answer; the first one loads the model
STATES = ("observation.state", "observation.environment_state")
IMAGES = "observation.image"
ACTION = "action"
EMPTY = "empty_camera"
WITHOUT_SENTENCES = (
    "act",
    "diffusion",
    "vqbet",
    "tdmpc",
    "sac",
    "gaussian_actor",
    "multi_task_dit",
)
PYTHONS = ("lerobot", "references")  # names of virtual environments in .venvs that hold LeRobot


class LeRobotPolicy(NetworkPolicy):
    """A policy that is played by LeRobot's class and cannot be trained."""

    config: Config
    uses_images = reads_instructions = True
    digest: Tensor

    def __init__(self, spec: StationSpec, config: Config, digest: Tensor | None = None) -> None:
        super().__init__(spec, config)
        self._process: IsolatedProcess | None = None
        self.python = _python()
        self.folder = Path(config.checkpoint).resolve()
        self.register_buffer(
            "digest", torch.zeros(32, dtype=torch.uint8) if digest is None else digest
        )
        if not config.checkpoint:
            raise PolicyFileError(
                "policy.checkpoint: expected a folder that LeRobot has written, got none"
            )
        document = read_json(self.folder / "config.json")
        self.needs_instruction = document.get("type") not in WITHOUT_SENTENCES
        self.features = match_features(self.folder, document, spec, config.features)
        self.action_order = [spec.action.names.index(name) for name in self.features[ACTION]]
        check_statistics(self.folder, document, spec, self.action_order)
        if digest is None:
            self.digest.copy_(folder_digest(self.folder))
            check_horizon(self.folder, self._chunk(self._blank(), 0).shape[1], config.horizon)

    @classmethod
    def rebuild(cls, spec: StationSpec, config: Any, described: Any) -> LeRobotPolicy:
        """Rebuild the policy from a policy file.

        The file holds the digest of the folder instead of the weights.
        """
        return cls(spec, config, torch.zeros(32, dtype=torch.uint8))

    @property
    def device(self) -> torch.device:
        """The device that LeRobot's class computes on."""
        return self.digest.device

    def train(self, mode: bool = True) -> LeRobotPolicy:
        """See ``torch.nn.Module``; it does nothing, since the weights are elsewhere."""
        return self

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Raise SpecError, because LeRobot's class is not trained here."""
        raise SpecError(
            "policy.kind: expected a kind that rlinf can train, got lerobot, which is only "
            "played. Train it with lerobot-train, or use the policy.kind of its family "
            "(docs/howto/vla.md)"
        )

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``."""
        seed = (
            int(sharding.noise(torch.rand, (1, 1), generator, self.device) * 2**24)
            if self.is_stochastic(explore)
            else 0
        )
        actions = self._chunk(observation, seed)
        scale = self.spec.action.scale
        if wrong := other_units(
            self.spec.action, actions.amin((0, 1)).numpy(), actions.amax((0, 1)).numpy()
        ):
            raise SpecError(f"policy.checkpoint {self.folder}: {wrong} The chunk is not played")
        return self.chunk((actions / torch.tensor(scale)).clamp(-1.0, 1.0).to(self.device))

    def _blank(self) -> Observation:
        images = {
            image.name: torch.zeros(1, *image.shape, dtype=torch.uint8)
            for image in self.spec.images
        }
        return Observation(
            torch.zeros(1, self.spec.vector_size), images, (self.spec.instruction or "warm up",)
        )

    def _chunk(self, observation: Observation, seed: int) -> Tensor:
        """Return the actions (B, H, A) in SI units, in the task's order."""
        rows, start = {}, 0
        for item in self.spec.vectors:
            rows[item.name] = observation.vectors[:, start : start + item.size]
            start += item.size
        tensors = {
            feature: observation.images[names[0]]
            if feature.startswith(IMAGES)
            else torch.cat([rows[name] for name in names], 1)
            for feature, names in self.features.items()
            if feature != ACTION
        }
        answer = self._call_worker(
            {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
            {"task": json.dumps(observation.instruction), "seed": str(seed)},
        )
        actions = answer[ACTION][..., : len(self.action_order)]
        return actions[..., torch.tensor(self.action_order).argsort()]

    def _call_worker(self, tensors: dict[str, Tensor], texts: dict[str, str]) -> dict[str, Tensor]:
        process = self._start_process()
        return _exchange(process, tensors, {"device": str(self.device), **texts})

    def _start_process(self) -> IsolatedProcess:
        """Start the process, and request its metadata."""
        if self._process is None:
            if not torch.equal(self.digest.cpu(), folder_digest(self.folder)):
                raise PolicyFileError(
                    f"policy.checkpoint {self.folder}: expected the folder of this policy file, "
                    "got one with other files. Copy that folder here, or write the policy file "
                    "again"
                )
            process = IsolatedProcess(
                self.python, [worker.__file__, str(self.folder)], "policy.kind lerobot", TIMEOUT_S
            )
            _exchange(process, {}, {"device": str(self.device)})
            self._process = process
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the constructor may have raised
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the process, so that a copy starts another one."""
        return self.__dict__ | {"_process": None}


def _exchange(
    process: IsolatedProcess, tensors: dict[str, Tensor], texts: dict[str, str]
) -> dict[str, Tensor]:
    """Send a request and return the answer.

    Raises:
        EngineError: LeRobot's class raised, or the process has ended or does not answer.
    """
    try:
        request = save(tensors, texts)
        process.connection.sendall(struct.pack("<Q", len(request)) + request)
        data = worker.receive(process.connection)
    except TimeoutError:
        process.close()
        raise EngineError(
            f"{process.name}: no answer for {TIMEOUT_S:.0f} s. Its process was ended"
        ) from None
    except OSError:
        data = None
    if data is None:
        raise EngineError(str(process.ended()))
    answer = worker.metadata_of(data)
    if "error" in answer:
        raise EngineError(
            f"{process.name}: LeRobot's class answered {escape_ascii(answer['error'])[:500]}"
        )
    return load(data)


def _python() -> str:
    python = next(filter(None, map(python_of, PYTHONS)), None)
    if python is None:
        raise RlinfError(
            "policy.kind lerobot: expected LeRobot in its own Python environment, found none. Run "
            "`make lerobot` or `make references`, or set RLINF_PYTHON_LEROBOT to a Python that "
            "has it"
        )
    return python


def folder_digest(folder: Path) -> Tensor:
    """Return the SHA-256 (32,) uint8 of a folder's JSON and safetensors files, with their names."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors"):
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    total.update(block)
    return torch.frombuffer(bytearray(total.digest()), dtype=torch.uint8)


def match_features(
    folder: Path,
    document: dict[str, Any],
    spec: StationSpec,
    configured: dict[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return the task's names of each feature of a folder, checked in number and size.

    Args:
        folder: for messages.
        document: its config.json.
        spec: of the task.
        configured: policy.features.

    Raises:
        PolicyFileError: config.json has no features, or one that is not known here.
        SpecError: the task lacks what a feature needs, or has it in another size.
    """
    where = f"policy.checkpoint {folder}"
    features = _read_features(where, document)
    for name in configured.keys() - features.keys():
        raise SpecError(
            f"policy.features: expected {', '.join(features)}, as {folder} has them, got "
            f"'{name}'{nearest(name, features)}"
        )
    result: dict[str, tuple[str, ...]] = {}
    for name, feature in features.items():
        shape = _feature_shape(where, name, feature)
        result[name] = _task_names(where, name, shape, spec, configured)
    if missing := set(spec.action.names) - set(result[ACTION]):
        raise SpecError(
            f"{where}: {ACTION}: expected all of {', '.join(spec.action.names)}, got none for "
            f"{', '.join(sorted(missing))}"
        )
    return result


def _read_features(where: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the features of a config.json, without empty cameras."""
    inputs, outputs = (document.get(key) for key in ("input_features", "output_features"))
    if not isinstance(inputs, dict) or not isinstance(outputs, dict) or ACTION not in outputs:
        raise PolicyFileError(
            f"{where}: expected input_features and output_features with {ACTION} in config.json, "
            f"got {escape_ascii(inputs)[:80]} and {escape_ascii(outputs)[:80]}"
        )
    cameras_and_state = {name: feature for name, feature in inputs.items() if EMPTY not in name}
    return cameras_and_state | {ACTION: outputs[ACTION]}


def _feature_shape(where: str, name: str, feature: Any) -> list[Any]:
    """Return the shape of a feature: (3, height, width) of images, else (numbers,)."""
    shape = feature.get("shape") if isinstance(feature, dict) else None
    size = 3 if name.startswith(IMAGES) else 1
    if (
        not isinstance(shape, list)
        or len(shape) != size
        or (size == 1 and name not in (*STATES, ACTION))
    ):
        raise PolicyFileError(
            f"{where}: expected features {', '.join(STATES)}, {IMAGES}s.* and {ACTION} with "
            f"their shapes, got '{escape_ascii(name)[:80]}': {escape_ascii(feature)[:80]}"
        )
    return shape


def _task_names(
    where: str,
    name: str,
    shape: list[Any],
    spec: StationSpec,
    configured: dict[str, tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the task's names of one feature; raise SpecError if number or size differ."""
    images = {image.name: image for image in spec.images}
    is_camera = name.startswith(IMAGES)
    if name == ACTION:
        default, sizes = spec.action.names, dict.fromkeys(spec.action.names, 1)
    elif is_camera:
        default, sizes = (name.rpartition(".")[2],), dict.fromkeys(images, 1)
    else:
        sizes = {item.name: item.size for item in spec.vectors}
        default = tuple(sizes)
    names = configured.get(name, default)
    if unknown := [item for item in names if item not in sizes]:
        raise SpecError(
            f"{where}: {name}: expected {', '.join(sizes) or 'nothing'} of the task, got "
            f"'{unknown[0]}'{nearest(unknown[0], sizes)}. Set policy.features='{{{name}: "
            "[...]}'"
        )
    if is_camera:
        expected = images[names[0]].shape[:2]
        if len(names) != 1 or tuple(shape[1:]) != expected:
            raise SpecError(
                f"{where}: {name}: expected images of {shape[1]}x{shape[2]} (height x "
                f"width) of one camera, got {', '.join(names)} of "
                f"{expected[0]}x{expected[1]}. Set station.image_size"
            )
        return tuple(names)
    count = sum(sizes[item] for item in names)
    if count != shape[0] or len(set(names)) != len(names):
        raise SpecError(
            f"{where}: {name}: expected {shape[0]} numbers, got {count} of "
            f"{', '.join(names) or 'nothing'}. Set policy.features='{{{name}: [...]}}', or "
            "take the task that it was trained on"
        )
    return tuple(names)


def check_statistics(
    folder: Path, document: dict[str, Any], spec: StationSpec, order: list[int]
) -> None:
    """Check the units of a folder's actions by the statistics of its processor.

    Raises:
        SpecError: they differ from the units of the task.
    """
    mode = (document.get("normalization_mapping") or {}).get("ACTION")
    files = sorted(folder.glob("*unnormalizer_processor.safetensors"))
    if mode not in MODES or mode == "IDENTITY" or not files:
        return
    from safetensors.numpy import load_file

    prefix = f"{ACTION}."
    statistics = {
        name.removeprefix(prefix): values
        for name, values in load_file(files[0]).items()
        if name.startswith(prefix)
    }
    if not statistics:
        return
    centre, spread = centre_and_spread(statistics, MODES[mode], str(files[0]), ACTION)
    back = np.argsort(order)
    check_units(
        spec.action,
        f"policy.checkpoint {folder}",
        centre[: len(order)][back],
        spread[: len(order)][back],
        MODES[mode],
    )


Policy = LeRobotPolicy
