"""Names of episodes, ``<station>-<request>-<number>``: those of one request belong together."""

from __future__ import annotations

import time
import uuid


def new_request() -> str:
    """A name for a request to run episodes, ordered by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"


def episode_name(station: str, request: str, number: int) -> str:
    """The ``number``-th episode that was begun for ``request``.

    >>> episode_name("station_a", "20261122T040052-1f3a9c2b", 7)
    'station_a-20261122T040052-1f3a9c2b-007'
    """
    return f"{station}-{request}-{number:03d}"


def request_of(episode_id: str) -> str:
    """Station and request of an episode, the same for all that were asked for together.

    >>> request_of("station_a-20261122T040052-1f3a9c2b-007")
    'station_a-20261122T040052-1f3a9c2b'
    """
    return episode_id.rpartition("-")[0]
