"""The served policy: loading new versions of its weights, and answering batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.core.errors import PolicyFileError, RlinfError, SpecError
from rlinf_core.deploy.serving import protocol
from rlinf_core.deploy.serving.protocol import Request
from rlinf_core.policies.base import (
    ActionChunk,
    ContinuesChunks,
    NetworkPolicy,
    Observation,
    Policy,
)
from rlinf_core.policies.policy_folder import newest_policy, version_of
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import load_policy
from rlinf_core.specs.embodiment import JointSpec

Answer = dict[str, Any]
AGAIN_S = 10.0  # delay before a file that failed to load is tried again
# torch warns of arrays that are not writeable; a message is never written to
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


@dataclass(frozen=True, eq=False)
class Version:
    """One version of the weights. An episode keeps its version to the end.

    Attributes:
        policy: policy with these weights.
        number: version in the file's name; 0 if it has none.
        file: path and mtime [ns] of the file; None for a policy without a file.
    """

    policy: Policy
    number: int = 0
    file: tuple[Path, int] | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)

    @cached_property
    def continuing(self) -> ContinuesChunks | None:
        """The policy if it can continue a chunk, else None.

        Cached, since isinstance on a Protocol is slow.
        """
        return self.policy if isinstance(self.policy, ContinuesChunks) else None

    @property
    def needs_instruction(self) -> bool:
        return self.policy.needs_instruction

    @property
    def metadata(self) -> dict[str, Any]:
        config = self.policy.config
        return protocol.metadata(
            self.policy.spec,
            self.number,
            config.horizon,
            config.executed,
            self.continuing is not None,
        )

    def answers(self, requests: Sequence[Request]) -> list[Answer]:
        """Return the answers to a batch. Raises SpecError if an action is not finite."""
        chunk = self._chunk(requests)
        actions = self.policy.spec.action.to_si(chunk.actions.numpy(force=True))
        if not np.isfinite(actions).all():
            raise SpecError(
                f"version {self.number} answered with NaN or Inf: its weights diverged, or this "
                "observation is far from its training data"
            )
        answers: list[Answer] = [
            {"actions": chunk_actions, protocol.EXTENSION_KEY: {"version": self.number}}
            for chunk_actions in actions
        ]
        for index, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if self._continues(request):
                answer[protocol.EXTENSION_KEY]["continues"] = True
            if request.explore is not None:
                answer[protocol.EXTENSION_KEY]["drawn"] = chunk.drawn[index].numpy(force=True)
                if chunk.log_probs is not None:
                    answer[protocol.EXTENSION_KEY]["log_probs"] = chunk.log_probs[index].numpy(
                        force=True
                    )
        return answers

    def _chunk(self, requests: Sequence[Request]) -> ActionChunk:
        device = self.policy.device
        images = {
            image.name: _stack_batch([request.images[image.name] for request in requests], device)
            for image in self.policy.spec.images
        }
        observation = Observation(
            _stack_batch([request.vectors for request in requests], device),
            images,
            tuple(request.instruction for request in requests),
        )
        if self.continuing is not None and self._continues(requests[0]):
            return self.continuing.continue_chunk(
                observation, self._in_play(requests), self.generator
            )
        return self.policy.act(observation, bool(requests[0].explore), self.generator)

    def _continues(self, request: Request) -> bool:
        """Return whether the chunk continues the client's last one (real-time chunking).

        An exploring policy draws independent chunks, since its log-probabilities assume that. A
        policy that was cloned with given actions continues also then.
        """
        return (
            request.left is not None
            and self.continuing is not None
            and len(request.left) > 0
            and (not request.explore or self.policy.max_prefix > 0)
        )

    def _in_play(self, requests: Sequence[Request]) -> Continuation:
        action = self.policy.spec.action
        horizon = self.policy.config.horizon
        device = self.policy.device
        continuations = [
            Continuation.from_remaining(
                action.from_si(request.left), request.frozen, horizon, device
            )
            for request in requests
            if request.left is not None
        ]
        return Continuation(
            *(
                torch.cat([getattr(one, name) for one in continuations])
                for name in ("actions", "weights")
            )
        )

    def kind(self, request: Request) -> tuple[Version, bool, bool]:
        """Return the kind of a request; a batch has one kind."""
        return self, bool(request.explore), self._continues(request)


class Weights:
    """The newest weights of a policy file, or of a folder of policy files.

    Args:
        path: file or folder.
        device: torch device.
        warm_up: batch sizes that each new version computes once before it is served.
        prepare: configures a loaded policy (compilation, precision).
    """

    def __init__(
        self,
        path: Path,
        device: torch.device | str = "cpu",
        warm_up: Sequence[int] = (1,),
        prepare: Callable[[NetworkPolicy], None] = lambda policy: None,
    ) -> None:
        self.path, self.device, self.warm_up, self.prepare = path, device, warm_up, prepare
        self.newest = self._load(_stamped(newest_policy(path)))
        self._tried = self.newest.file
        self._again_at = math.inf
        self._last_error = ""

    def load_newer(self, log_line: Callable[[str], None]) -> bool:
        """Load a newer file if it fits, and return whether there was one."""
        file = _stamped(newest_policy(self.path))
        if file == self._tried and time.monotonic() < self._again_at:
            return False
        self._tried = file
        self._again_at = time.monotonic() + AGAIN_S
        served = self.newest
        try:
            version = self._load(file)
            if version.policy.spec.hash != served.policy.spec.hash:
                raise SpecError(
                    f"{file[0]}: expected a policy of the served task:\n"
                    f"{version.policy.spec.difference(served.policy.spec)}"
                )
        except RlinfError as error:
            if not isinstance(error, PolicyFileError):  # not a missing file or memory
                self._again_at = math.inf
            if str(error) != self._last_error:
                log_line(f"version {served.number} is still served: {error}")
            self._last_error = str(error)
            return False
        self.newest = version
        self._last_error = ""
        self._again_at = math.inf
        log_line(
            f"version {version.number} is served now ({file[0].name}); running episodes keep their "
            "version"
        )
        return True

    def _load(self, file: tuple[Path, int]) -> Version:
        loaded = load_policy(file[0]).to(self.device)
        if isinstance(loaded.spec, JointSpec):
            raise SpecError(
                f"policy {file[0]}: expected one of a single robot, got one of "
                f"{loaded.spec.description}. A server cannot split it into robots. Let each "
                "station play the policy itself (station.policy.backend=local)"
            )
        self.prepare(loaded)
        policy: Policy = loaded
        number = version_of(file[0])
        # each version has its own noise
        generator = torch.Generator(policy.device).manual_seed(number or file[1])
        version = Version(policy, number, file, generator)
        spec = policy.spec
        blank = Request(
            np.zeros(spec.vector_size, np.float32),
            {image.name: np.zeros(image.shape, np.uint8) for image in spec.images},
            spec.instruction or "warm up",
        )
        for size in self.warm_up:
            version.answers([blank] * size)
        return version


def _stack_batch(arrays: list[np.ndarray], device: torch.device) -> torch.Tensor:
    """Stack to shape (B, ...); a single item is not copied."""
    batch = torch.from_numpy(np.stack(arrays) if len(arrays) > 1 else arrays[0][None])
    return batch if device.type == "cpu" else batch.to(device)


def _stamped(path: Path) -> tuple[Path, int]:
    try:
        return path, path.stat().st_mtime_ns
    except OSError as error:
        raise PolicyFileError(f"policy {path}: {error.strerror}") from error
