"""Credentials of the bridge: a local trainer's token, and keys and certificates of a fleet.

The token keeps other users of the machine out. The trainer creates it in its run folder
(``bridge.token``, mode 0600). A link in the user's home, named by the port, leads stations of the
same user to it. TLS uses no token: each station has a certificate, signed by the fleet's own
authority.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import BridgeError

TOKEN_FILE = "bridge.token"  # in the run folder
TOKEN_KEY = "rlinf-token"  # key of the call's metadata
TOKEN = re.compile(r"[A-Za-z0-9_-]{32,256}", re.ASCII)
MAX_BYTES = 1024  # read limit of a token file


def token_link(port: int) -> Path:
    """Return the path of the link to the token of this user's trainer on ``port``.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path.home() / f".ros/rlinf/bridge_{port}.token"


def make_token(path: Path) -> str:
    """Return the token in ``path``. The first use creates the file with mode 0600.

    Raises:
        BridgeError: the file holds no token, other users can read it, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
            status, text = os.fstat(file.fileno()), file.read(MAX_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BridgeError(
            "bridge.token_file: expected a file that the trainer can read or create, got: "
            f"{error}. Name another with bridge.token_file"
        ) from error
    if not stat.S_ISREG(status.st_mode) or not TOKEN.fullmatch(text):
        raise BridgeError(
            f"bridge.token_file: expected 32 to 256 letters, digits, - and _ in {path}, got other "
            "content. Remove the file; the trainer creates another"
        )
    if status.st_mode & 0o007:
        raise BridgeError(
            "bridge.token_file: expected a file that other users cannot read, got mode "
            f"{stat.S_IMODE(status.st_mode):04o} of {path}. Remove the file; the trainer creates "
            "another with mode 0600. On a file system without modes, name a file elsewhere with "
            "bridge.token_file"
        )
    return text


def _create(path: Path) -> None:
    """Write a new token. The file gets its final name only when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, it keeps the token of another trainer
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def link_token(path: Path, port: int) -> None:
    """Link the token in the user's home, for stations of this user.

    Errors are ignored: the trainer's refusal of a station names the path of the token.
    """
    with contextlib.suppress(OSError, RuntimeError):
        link = token_link(port)
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = link.with_name(f".{link.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.resolve())
        os.replace(temporary, link)


def unlink_token(path: Path, port: int) -> None:
    """Remove the link, unless another trainer has replaced it since."""
    with contextlib.suppress(OSError, RuntimeError):
        if (link := token_link(port)).readlink() == path.resolve():
            link.unlink()


def read_token(files: Sequence[Path]) -> str:
    """Return the first token in ``files``; empty if no file holds one."""
    for path in files:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
                text = file.read(MAX_BYTES).strip()
            if TOKEN.fullmatch(text):
                return text
    return ""


def same_token(expected: str, got: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(expected.encode(), got.encode(errors="replace"))


SKEW = timedelta(days=1)  # clocks of stations differ


def make_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(name: str, key: ec.EllipticCurvePrivateKey, days: float) -> x509.Certificate:
    """Return a self-signed certificate of a certificate authority with ``key``."""
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())


def sign_certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    days: float,
    by: x509.Certificate,
    by_key: ec.EllipticCurvePrivateKey,
    server: bool = False,
) -> x509.Certificate:
    """Return a certificate of ``name`` for a client or a server, signed by an authority."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(name, common_name(by), key, days).add_extension(
        x509.ExtendedKeyUsage([usage]), critical=False
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
    )
    return builder.sign(by_key, hashes.SHA256())


def _builder(
    name: str, by: str, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of the certificate's subject."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def days_left(certificate: x509.Certificate) -> float:
    """Return the days until the certificate expires; negative if it has expired."""
    return (certificate.not_valid_after_utc - datetime.now(timezone.utc)) / timedelta(days=1)


@functools.lru_cache(1024)
def parse_certificate(pem: bytes) -> x509.Certificate:
    """Parse a PEM certificate. Raises ValueError if it is invalid."""
    return x509.load_pem_x509_certificate(pem)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate. Raises BridgeError if the file holds none."""
    try:
        return parse_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BridgeError(
            f"{path}: expected a certificate of rlinf fleet enroll, got {error}"
        ) from error


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a key. Raises BridgeError if the file holds none."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise BridgeError(
            f"{path}: expected a private key of rlinf fleet enroll, got {error}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BridgeError(f"{path}: expected a key of the curve P-256, got another kind")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as PEM (PKCS #8), without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file atomically, with ``mode`` from the start."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
        out.write(data)
    publish_file(temporary, path)
