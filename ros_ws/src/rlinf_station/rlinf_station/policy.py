"""Policy node: computes its chunks here, or lets a server answer them.

This module imports neither torch nor websockets.
"""

from __future__ import annotations

from rlinf_ros.spinning import override_of, run


def main() -> None:
    """Entry point."""
    if override_of("remote"):
        from rlinf_station.remote_policy import RemotePolicyNode

        run(RemotePolicyNode, priority=10)
    else:
        from rlinf_station.local_policy import LocalPolicyNode

        run(LocalPolicyNode, priority=10)


if __name__ == "__main__":
    main()
