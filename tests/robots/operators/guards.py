"""A guarded device, polled as the operator polls it."""

import time

from rlinf_core.robots.operators.device import Guard

PLAIN = {"deadband": 0.1, "curve": 1.0, "scale": 1.0, "rotation_scale": 0.5}


def settle(guard, until, timeout_s=30.0):
    """Poll as the operator does; return all requests."""
    requests, end = [], time.monotonic() + timeout_s
    while True:
        requests += guard.poll()
        if until():
            return requests
        assert time.monotonic() < end, (
            f"believed {guard.trusted}, trouble '{guard.trouble}', asked {requests}"
        )
        time.sleep(0.01)


def ready(device):
    guard = Guard("device", device)
    guard.open()
    settle(guard, lambda: guard.trusted)
    return guard


def moving(guard):
    """Return the requested motion by axis."""
    return {axis: round(value, 2) for axis, value in (guard.motion() or {}).items() if value}
