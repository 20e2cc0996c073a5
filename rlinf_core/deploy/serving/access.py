"""Access to a policy server: an API key in openpi's header, and TLS for other machines."""

from __future__ import annotations

import hmac
import re
import ssl
import stat
from pathlib import Path

from rlinf_core.core.connections import is_loopback
from rlinf_core.core.errors import ServingError

HEADER, SCHEME = "Authorization", "Api-Key "  # openpi_client.websocket_client_policy
KEY = re.compile(r"[!-~]{16,512}", re.ASCII)


def read_key(path: Path) -> str:
    """Read an API key from a file with one line.

    Raises:
        ServingError: the file cannot be read, holds no key, or other users can read it.
    """
    try:
        text, mode = path.read_text(encoding="ascii").strip(), path.stat().st_mode
    except (OSError, ValueError) as error:
        raise ServingError(f"API key {path}: expected a file with a key, got: {error}") from error
    if not KEY.fullmatch(text):
        raise ServingError(
            f"API key {path}: expected a line of 16 to 512 characters without blanks, got "
            f"{len(text)}. Create one: openssl rand -hex 32"
        )
    if mode & 0o007:
        raise ServingError(
            f"API key {path}: expected a file that other users cannot read, got mode "
            f"{stat.S_IMODE(mode):04o}: chmod o-rwx {path}"
        )
    return text


def is_allowed(key: str, header: str | None) -> bool:
    """Return whether a request's header holds the key; always True without a key."""
    shown = (header or "").encode(errors="replace")
    return not key or hmac.compare_digest(shown, f"{SCHEME}{key}".encode())


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server.

    Raises ServingError if the files hold no certificate and key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # openpi's client writes while its reading thread takes tickets, and OpenSSL loses requests
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ServingError(
            f"--tls-cert {certificate}, --tls-key {key}: expected a certificate and its key in "
            f"PEM, got: {error}"
        ) from error
    return context


def client_context(authority: str) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        authority: file of trusted certificates; empty uses those of the machine.

    Raises:
        ServingError: the file holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as error:
        raise ServingError(
            f"station.policy.tls_ca {authority}: expected certificates in PEM, got: {error}"
        ) from error


def check_exposure(host: str, encrypted: bool, key: str, plaintext: bool) -> None:
    """Refuse a server that other machines can reach without TLS or without an API key.

    Args:
        host: address to bind.
        encrypted: whether it uses TLS.
        key: API key that clients must send; empty for none.
        plaintext: whether the user accepts an open server.

    Raises:
        ServingError: the server would be open.
    """
    if is_loopback(host) or plaintext or (encrypted and key):
        return
    missing = " and ".join(
        name
        for name, given in (("--tls-cert with --tls-key", encrypted), ("--api-key-file", key))
        if not given
    )
    raise ServingError(
        f"--host {host}: expected {missing}, since other machines reach this address. Anyone there "
        "could query the policy and read the camera images in transit. Give these options, tunnel "
        "to 127.0.0.1 (ssh -L), or accept the risk with --plaintext on a private network"
    )
