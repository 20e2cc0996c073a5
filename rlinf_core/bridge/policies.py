"""The policies of a folder, each read once for all stations, and which station is meant to have which."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlinf_core.bridge import PART_BYTES
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge.differences import Tensor, ranges, tensors
from rlinf_core.policies.files import POLICIES, policy_name, policy_version

POLL_S = 0.1
IN_MEMORY = 2   # policies at a time: that of all, and that of one station
KNOWN = 20      # whose tensors are remembered without their data
K = TypeVar("K")
V = TypeVar("V")


class Choice(Protocol):
    """Which station is meant to have which policy; asked from the bridge's thread.

    Attributes:
        revision: another number after each change.
    """

    revision: int

    def version_for(self, station: str, newest: int) -> int:
        """The version for a station; -1 for none."""
        ...

    def why_waiting(self, station: str) -> str:
        """Why the station is to begin no further episode; empty where it may."""
        ...


class NewestForAll(Choice):
    """Each policy goes to every station as soon as it is there."""

    revision = 0

    def version_for(self, station: str, newest: int) -> int:
        return newest

    def why_waiting(self, station: str) -> str:
        return ""


@dataclass(frozen=True)
class Policy:
    """A policy file, in memory."""

    version: int
    data: bytes
    sha256: str
    tensors: list[Tensor]

    def parts(self, base: Mapping[bytes, int]) -> Iterator[pb.PolicyPart]:
        """As it goes to a station that has the tensors ``base`` (digest: where they start in its file)."""
        size = len(self.data)
        for start, end, copy in ranges(size, self.tensors, base):
            if copy is not None:
                yield self._part(end, copy_offset=copy, copy_size=end - start)
                continue
            for begin in range(start, end, PART_BYTES):
                until = min(begin + PART_BYTES, end)
                yield self._part(until, data=self.data[begin:until])

    def _part(self, end: int, **what: Any) -> pb.PolicyPart:
        return pb.PolicyPart(version=self.version, sha256=self.sha256 if end == len(self.data) else "", **what)


class Policies:
    """Wakes whoever waits; all of it in one event loop.

    Args:
        folder: with files ``policy-<version>.safetensors``.
        choice: of the version for each station.
    """

    def __init__(self, folder: Path, choice: Choice) -> None:
        self.folder, self.choice, self.newest = folder, choice, -1
        self._revision, self._reading, self._changed = 0, asyncio.Lock(), asyncio.Event()
        self._read: dict[int, Policy] = {}
        self._known: dict[str, dict[bytes, int]] = {}  # by SHA-256

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(POLL_S)

    def look(self) -> None:
        """Whether there is a newer file, or another choice."""
        name = max((path.name for path in self.folder.glob(POLICIES)), default=None)
        newest, revision = policy_version(Path(name)) if name else -1, self.choice.revision
        if newest > self.newest or revision != self._revision:
            self.newest, self._revision = max(newest, self.newest), revision
            self._changed.set()
            self._changed = asyncio.Event()

    async def meant_for(self, station: str, request: pb.PolicyRequest, wait_s: float) -> Policy | None:
        """What the station is meant to have, as soon as that is another one than it has; None if it is not in time."""
        self.look()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            changed = self._changed
            policy = await self._other_than(request, self.choice.version_for(station, self.newest))
            if policy is not None:
                return policy
            try:
                await asyncio.wait_for(changed.wait(), deadline - loop.time())
            except asyncio.TimeoutError:
                return None

    async def _other_than(self, request: pb.PolicyRequest, version: int) -> Policy | None:
        """That version, unless the station has it."""
        if version < 0 or (version == request.have_version and not request.have_sha256):
            return None
        policy = await self._policy(version)
        same = policy and (policy.version, policy.sha256) == (request.have_version, request.have_sha256)
        return None if same else policy

    async def base(self, request: pb.PolicyRequest) -> Mapping[bytes, int]:
        """The tensors that the station has; none where nobody here knows its file."""
        async with self._reading:
            if request.have_sha256 and request.have_sha256 not in self._known:
                await self._from_disk(request.have_file)
            return self._known.get(request.have_sha256, {})

    async def _policy(self, version: int) -> Policy | None:
        """From memory, or from the disk; None where it is not in the folder."""
        async with self._reading:
            policy = self._read.pop(version, None) or await self._from_disk(version)
            if policy is not None:
                _keep(self._read, version, policy, IN_MEMORY)
            return policy

    async def _from_disk(self, version: int) -> Policy | None:
        try:
            policy = await asyncio.to_thread(_read, self.folder / policy_name(version))
        except OSError:
            return None
        _keep(self._known, policy.sha256, {tensor.digest: tensor.start for tensor in policy.tensors}, KNOWN)
        return policy


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """As the newest of at most so many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def _read(path: Path) -> Policy:
    data = path.read_bytes()
    return Policy(policy_version(path), data, hashlib.sha256(data).hexdigest(), tensors(data))
