"""TCP ports of tests, never the default one, which a user's trainer may use."""

import socket

NO_TRAINER = "bridge.port=1"  # a port without a listener


def free_port():
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
