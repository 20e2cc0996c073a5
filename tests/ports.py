"""TCP ports of tests: never the default one, which a user's own trainer has."""

import socket

NO_TRAINER = "bridge.port=1"  # where nobody listens


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
