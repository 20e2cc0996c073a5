"""The newest policy of a folder, read once for all stations that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.bridge import PART_BYTES
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.policies.files import policy_version

POLL_S = 0.1
POLICIES = f"policy-{'[0-9]' * 8}*.safetensors"


@dataclass(frozen=True)
class Policy:
    """A policy file, in memory."""

    version: int
    data: bytes
    sha256: str

    def parts(self) -> Iterator[pb.PolicyPart]:
        """As it goes to a station."""
        for start in range(0, len(self.data), PART_BYTES):
            end = start + PART_BYTES
            yield pb.PolicyPart(version=self.version, data=self.data[start:end],
                                sha256=self.sha256 if end >= len(self.data) else "")


class Newest:
    """Wakes whoever waits; all of it in one event loop.

    Args:
        folder: with files ``policy-<version>.safetensors``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.policy = folder, Policy(-1, b"", "")
        self._looking, self._changed = asyncio.Lock(), asyncio.Event()

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Read the newest file, if that has changed."""
        async with self._looking:
            with contextlib.suppress(OSError):  # it was removed meanwhile; the next look finds another
                newest = max(self.folder.glob(POLICIES), key=lambda path: path.name, default=None)
                if newest and policy_version(newest) > self.policy.version:
                    self.policy = await asyncio.to_thread(_read, newest)
                    self._changed.set()
                    self._changed = asyncio.Event()

    async def after(self, version: int, wait_s: float) -> Policy | None:
        """A policy newer than ``version``, as soon as there is one; None where there is none in time."""
        await self.look()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while self.policy.version <= version:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except asyncio.TimeoutError:
                return None
        return self.policy


def _read(path: Path) -> Policy:
    data = path.read_bytes()
    return Policy(policy_version(path), data, hashlib.sha256(data).hexdigest())
