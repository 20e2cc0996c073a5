"""The trainer's policy files: each is read once for all stations; each station has its version."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from rlinf_core.deploy.bridge import PART_BYTES
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.policy_parts import (
    Bytes,
    Tensor,
    base_of,
    encode,
    ranges,
    tensor_spans,
)
from rlinf_core.episodes.checksums import file_state, unchanged_sha256
from rlinf_core.policies.policy_folder import base_name, newest_version, policy_name, policy_version

POLL_S = 0.02
# age of the folder's mtime (monotonic clock) after which every later change alters it
SETTLED_S = 0.2
FILE_BYTES = 4 << 20  # per read of a base file, which may be larger than the memory
HASHED_BYTES = 1 << 18  # a processor's cache still has them when they are hashed
BASE_NAME = re.compile(r"base-[0-9a-f]{16}\.safetensors")
CACHED_POLICIES = 2  # cached policies: the one for all stations, and one for a single station
OFFSETS_CACHE_SIZE = 20  # policies with cached tensor offsets, without their data
K = TypeVar("K")
V = TypeVar("V")


class PolicySelector(Protocol):
    """Chooses the policy version of each station. The bridge's thread calls it.

    Attributes:
        revision: number that changes with each change of the choice.
    """

    revision: int

    def version_for(self, station: str, newest: int) -> int:
        """Return the version for a station; -1 for none."""
        ...

    def wait_reason(self, station: str) -> str:
        """Return why the station must not begin another episode; empty if it may."""
        ...


class NewestForAll(PolicySelector):
    """Gives the newest policy to every station."""

    revision = 0

    def version_for(self, station: str, newest: int) -> int:
        return newest

    def wait_reason(self, station: str) -> str:
        return ""


@dataclass(frozen=True)
class Policy:
    """A policy file, in memory.

    Attributes:
        needs: name of the base file of an adapter; empty for a full policy.
        file_state: state of the file with this hash (``checksums.file_state``); empty if unknown.
    """

    version: int
    path: Path
    data: Bytes
    sha256: str
    needs: str
    file_state: str = ""

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of the file. A worker thread computes them once."""
        return tensor_spans(self.data)

    def link(self) -> bytes:
        """Return the message for a station on this machine: the path to link."""
        return encode(
            pb.PolicyPart(
                version=self.version,
                sha256=self.sha256,
                needs=self.needs,
                path=str(self.path.resolve()),
                file_state=self.file_state,
            )
        )

    def parts(self, base: Mapping[bytes, int], partial_size: int = 0) -> Iterator[bytes]:
        """Yield the messages for a station elsewhere.

        Args:
            base: offset in the station's base file by the digest of each tensor that it has.
            partial_size: number of bytes of this policy that the station has from an earlier try.
        """
        size = len(self.data)
        first_offset = partial_size if partial_size <= size else 0
        if first_offset and first_offset == size:
            yield self._part(size, first_offset=first_offset)
        for start, end, copy in ranges(size, self.tensors if base else [], base):
            at = max(start, first_offset)
            if copy is not None and at < end:
                yield self._part(
                    end,
                    copy_offset=copy + at - start,
                    copy_size=end - at,
                    first_offset=_first(at, first_offset),
                )
                continue
            for begin in range(at, end, PART_BYTES):
                until = min(begin + PART_BYTES, end)
                yield self._part(
                    until,
                    memoryview(self.data)[begin:until],
                    first_offset=_first(begin, first_offset),
                )

    def _part(self, end: int, data: Bytes = b"", **fields: Any) -> bytes:
        last: dict[str, Any] = (
            {"sha256": self.sha256, "needs": self.needs} if end == len(self.data) else {}
        )
        return encode(pb.PolicyPart(version=self.version, **fields, **last), data)


class Policies:
    """Serves the policies of a folder and wakes waiting requests. It runs in one event loop.

    Args:
        folder: folder of the files ``policy-<version>.safetensors``.
        selector: selector of the version for each station.
    """

    def __init__(self, folder: Path, selector: PolicySelector) -> None:
        self.folder = folder
        self.selector = selector
        self.newest = -1
        self._revision = 0
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._read: dict[int, Policy] = {}
        self._tensor_offsets: dict[str, dict[bytes, int]] = {}  # offsets by SHA-256 of the file
        self._hashes: dict[Path, tuple[str, str]] = {}  # SHA-256 and state of base files
        self._stamp = -1
        self._stamped_at = 0.0
        self._settled = False

    async def watch(self) -> None:
        """Poll the folder for ever. Errors of the disk or of open files are retried."""
        while True:
            with contextlib.suppress(OSError):
                self.refresh()
            await asyncio.sleep(POLL_S)

    def refresh(self) -> None:
        """Wake waiting requests if there is a newer file or another choice."""
        newest, revision = self._newest(), self.selector.revision
        if newest > self.newest or revision != self._revision:
            self.newest = max(newest, self.newest)
            self._revision = revision
            self._changed.set()
            self._changed = asyncio.Event()

    def _newest(self) -> int:
        """Return the newest version. The folder is listed only after a change of its mtime."""
        stamp = self.folder.stat().st_mtime_ns
        if stamp == self._stamp and self._settled:
            return self.newest
        now = time.monotonic()
        if stamp != self._stamp:
            self._stamp = stamp
            self._stamped_at = now
            self._settled = False
        newest = newest_version(self.folder)
        self._settled = now - self._stamped_at > SETTLED_S
        return newest

    async def wait_for_policy(
        self, station: str, request: pb.PolicyRequest, wait_s: float
    ) -> Policy | None:
        """Wait until the station's version differs from the one it has; None at the timeout."""
        self.refresh()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            changed = self._changed
            policy = await self._unless_current(
                request, self.selector.version_for(station, self.newest)
            )
            if policy is not None:
                return policy
            try:
                await asyncio.wait_for(changed.wait(), deadline - loop.time())
            except asyncio.TimeoutError:
                return None

    async def _unless_current(self, request: pb.PolicyRequest, version: int) -> Policy | None:
        """Return policy ``version``, or None if the station has it."""
        if version < 0 or (version == request.have_version and not request.have_sha256):
            return None
        policy = await self._policy(version)
        same = policy and (policy.version, policy.sha256) == (
            request.have_version,
            request.have_sha256,
        )
        return None if same else policy

    async def base(self, request: pb.PolicyRequest, policy: Policy) -> Mapping[bytes, int]:
        """Return the tensor offsets of the station's current file, to compare with ``policy``.

        Empty if that file is unknown here.
        """
        sha = request.have_sha256
        async with self._reading:
            if sha and sha not in self._tensor_offsets:
                cached = next(
                    (candidate for candidate in self._read.values() if candidate.sha256 == sha),
                    None,
                )
                await self._cache_offsets(cached or await self._from_disk(request.have_file))
            if offsets := self._tensor_offsets.get(sha, {}):
                await self._cache_offsets(policy)
            return offsets

    async def _cache_offsets(self, policy: Policy | None) -> None:
        """Cache the tensor offsets of a policy."""
        if policy is not None and policy.sha256 not in self._tensor_offsets:
            tensors = await asyncio.to_thread(lambda: policy.tensors)
            _insert_newest(
                self._tensor_offsets,
                policy.sha256,
                {tensor.digest: tensor.start for tensor in tensors},
                OFFSETS_CACHE_SIZE,
            )

    async def file(self, name: str, link: bool, partial_size: int = 0) -> AsyncIterator[bytes]:
        """Yield a base file after its first ``partial_size`` bytes.

        Yields nothing if there is no such file.
        """
        path = self.folder / name
        if not BASE_NAME.fullmatch(name) or not path.is_file():
            return
        if path not in self._hashes:
            self._hashes[path] = await asyncio.to_thread(unchanged_sha256, path)
        sha256, state = self._hashes[path]
        if link:
            yield encode(
                pb.PolicyPart(version=-1, sha256=sha256, path=str(path.resolve()), file_state=state)
            )
            return
        first_offset = partial_size if partial_size <= path.stat().st_size else 0
        yield encode(pb.PolicyPart(version=-1, first_offset=first_offset))
        with open(path, "rb") as source:
            source.seek(first_offset)
            while data := await asyncio.to_thread(source.read, FILE_BYTES):
                for begin in range(0, len(data), PART_BYTES):
                    yield encode(
                        pb.PolicyPart(version=-1), memoryview(data)[begin : begin + PART_BYTES]
                    )
        yield encode(pb.PolicyPart(version=-1, sha256=sha256))

    async def _policy(self, version: int) -> Policy | None:
        """Return a policy from memory or disk; None if the folder has no such version."""
        async with self._reading:
            policy = self._read.pop(version, None) or await self._from_disk(version)
            if policy is not None:
                _insert_newest(self._read, version, policy, CACHED_POLICIES)
            return policy

    async def _from_disk(self, version: int) -> Policy | None:
        try:
            return await asyncio.to_thread(_read, self.folder / policy_name(version))
        except OSError:
            return None


def _first(at: int, first_offset: int) -> int:
    """Return the start offset for the first part; later parts carry 0."""
    return first_offset if at == first_offset else 0


def _insert_newest(cache: dict[K, V], key: K, value: V, limit: int) -> None:
    """Insert as the newest entry, and drop the oldest beyond ``limit`` entries."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > limit:
        del cache[next(iter(cache))]


def _read(path: Path) -> Policy:
    sha = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        # NumPy asks for huge pages, which cost less to map than those of ``bytes``.
        data = np.empty(status.st_size, np.uint8).data
        at = 0
        while size := file.readinto(data[at : at + HASHED_BYTES]):
            sha.update(data[at : at + size])
            at += size
        data = data[:at]
        state = file_state(status)
        if file_state(os.fstat(file.fileno())) != state:
            state = ""  # it changed meanwhile
    base = base_of(data)
    return Policy(
        policy_version(path),
        path,
        data,
        sha.hexdigest(),
        base_name(base) if base else "",
        state,
    )
