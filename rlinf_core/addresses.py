"""Who can reach an address."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``host:port``; a name other than localhost may be anywhere."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False
