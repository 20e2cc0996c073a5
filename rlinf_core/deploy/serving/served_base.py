"""A base policy behind a server that speaks openpi's protocol, for residual RL.

``RLINF_BASE_ADDRESS`` replaces the address that a recipe or a policy file names: a station may
reach the server by another one. ``RLINF_BASE_API_KEY_FILE`` names a file with the server's key. The
key goes only to that address, never to one that a file names.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import AnswerError, RefusedRequestError, ServingError
from rlinf_core.deploy.serving.access import read_key
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import check_keys, observation_message, read_actions
from rlinf_core.policies.base import Observation
from rlinf_core.specs.arrays import StationSpec

ADDRESS, KEY_FILE = "RLINF_BASE_ADDRESS", "RLINF_BASE_API_KEY_FILE"
# Answers that are kept: the replay holds the chunk that was played, if the base draws its chunks.
ANSWERS = 2000
TRIES, RETRY_S = 3, 1.0


class ServedBase:
    """One connection, opened at the first observation and again after an error.

    Args:
        spec: specs of the station.
        address: ``ws://host:port`` or ``wss://host:port``.
        timeout_s: for the connection and for each answer.
        keys: how the server calls observations, as ``station.policy.keys``.
    """

    def __init__(
        self, spec: StationSpec, address: str, timeout_s: float, keys: Mapping[str, str]
    ) -> None:
        check_keys(spec, keys)
        self.spec = spec
        self.address = address
        self.timeout_s = timeout_s
        self.keys = dict(keys)
        self._client: PolicyClient | None = None
        self._answers: OrderedDict[bytes, np.ndarray] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> ServedBase:
        return ServedBase(self.spec, self.address, self.timeout_s, self.keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return ServedBase, (self.spec, self.address, self.timeout_s, self.keys)

    def chunks(self, observation: Observation) -> np.ndarray:
        """Return its chunks (B, H, A), normalised.

        Raises:
            ServingError: no answer came, or one that does not fit the station.
        """
        return np.stack([self._chunk(observation, row) for row in range(len(observation))])

    def _chunk(self, observation: Observation, row: int) -> np.ndarray:
        vectors, named, start = observation.vectors[row].numpy(force=True), {}, 0
        for item in self.spec.vectors:
            named[item.name] = vectors[start : start + item.size].reshape(item.shape)
            start += item.size
        named |= {
            name: images[row].numpy(force=True) for name, images in observation.images.items()
        }
        instruction = (
            observation.instruction[row] if observation.instruction else self.spec.instruction
        )
        digest = hashlib.blake2b(instruction.encode(), digest_size=16)
        for _, values in sorted(named.items()):
            digest.update(np.ascontiguousarray(values).tobytes())
        key = digest.digest()
        if (answer := self._answers.get(key)) is None:
            message = observation_message(self.spec, named, instruction, self.keys)
            answer = self._answers[key] = self.spec.action.from_si(
                read_actions(self.spec, self._infer(message))
            )
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def _infer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the server's answer. A broken connection is opened again."""
        for left in reversed(range(TRIES)):
            try:
                self._client = self._client or self._connected()
                return self._client.infer(message)
            except (AnswerError, RefusedRequestError):
                raise
            except ServingError:
                if self._client is not None:
                    self._client.close()
                self._client = None
                if not left:
                    raise
                time.sleep(RETRY_S)
        raise AssertionError

    def _connected(self) -> PolicyClient:
        address, key_file = os.environ.get(ADDRESS), os.environ.get(KEY_FILE)
        key = read_key(Path(key_file)) if address and key_file else ""
        return PolicyClient(address or self.address, self.timeout_s, key)
