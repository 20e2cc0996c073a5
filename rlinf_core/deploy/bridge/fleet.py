"""A fleet: the certificates of its authority and stations, in a folder on the trainer's machine.

    ca.key ca.crt         the authority; the key ca.key can enroll stations
    stations/<name>.crt   the current certificate of an enrolled station
    renewed/<name>.crt    its previous certificate, valid until it expires
    revoked/<name>.crt    a revoked certificate

``enroll`` writes ca.crt, station.crt and station.key into a folder that a person carries to the
station.
"""

from __future__ import annotations

import re
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509 import Certificate

from rlinf_core.core.atomic_io import make_folder, move, unused_name
from rlinf_core.core.errors import BridgeError
from rlinf_core.core.outputs import any_folder
from rlinf_core.deploy.bridge import TRAINER_DNS_NAME
from rlinf_core.deploy.bridge.credentials import (
    certificate_pem,
    common_name,
    days_left,
    key_pem,
    make_authority,
    make_key,
    read_certificate,
    read_key,
    sign_certificate,
    write_file,
)

STATION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
AUTHORITY_DAYS, TRAINER_DAYS = 3650.0, 825.0
WARN_DAYS = 30.0  # before a certificate ends
CA = "ca.crt"
CERTIFICATE = "station.crt"
KEY = "station.key"
RENEW = (
    "Renew it on the trainer's machine (rlinf fleet enroll {} --renew --out FOLDER), and copy its "
    "new files to the station"
)
ENROLL = (
    "Enroll it on the trainer's machine (rlinf fleet enroll), and copy its new files to the station"
)


class Fleet:
    """The stations that may call a trainer.

    Each method reads the folder again, because other processes may change it at any time.

    Args:
        folder: folder of the fleet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enroll(
        self, station: str, out: Path, days: float = 365.0, renew: bool = False
    ) -> list[Path]:
        """Write a station's key and certificate to ``out``. The first use creates the authority.

        Args:
            station: name of the station.
            out: folder that a person carries to the station.
            days: validity of the certificate.
            renew: replace the certificate of an enrolled station. Its previous one stays valid
                until it expires.

        Returns:
            The files to carry to the station.

        Raises:
            BridgeError: the name is invalid, the station is enrolled already (or, with ``renew``,
                is not), or ``out`` holds such files.
        """
        if not STATION_NAME.fullmatch(station):
            raise BridgeError(
                f"station: expected a letter, then up to 63 letters, digits and _, got "
                f"'{station[:200]}'"
            )
        if self._enrolled(station).exists() != renew:
            raise BridgeError(self._cannot_enroll(station, renew))
        any_folder(out)
        carried = [out / name for name in (CA, CERTIFICATE, KEY)]
        if existing := [str(path) for path in carried if path.exists()]:
            raise BridgeError(
                f"--out: expected a folder without {', '.join(existing)}, which another station "
                "may need. Choose another folder"
            )
        ca, ca_key = self._authority()
        key = make_key()
        certificate = sign_certificate(station, key, days, ca, ca_key)
        make_folder(out)
        for path, data, mode in zip(
            carried,
            (certificate_pem(ca), certificate_pem(certificate), key_pem(key)),
            (0o644, 0o644, 0o600),
            strict=True,
        ):
            write_file(path, data, mode)
        make_folder(self.folder / "stations")
        if renew:
            before = self._enrolled(station).read_bytes()
            write_file(unused_name(make_folder(self.folder / "renewed") / f"{station}.crt"), before)
        write_file(
            self._enrolled(station), certificate_pem(certificate)
        )  # last: this lets the station call
        return carried

    def _cannot_enroll(self, station: str, renew: bool) -> str:
        if renew:
            return (
                f"station '{station}': --renew: expected a station enrolled in {self.folder}: "
                f"{', '.join(self.days_left()) or 'none'}. Leave --renew out"
            )
        until = expiry_day(read_certificate(self._enrolled(station)))
        return (
            f"station '{station}': enrolled already, until {until}. For new files earlier, add "
            "--renew; the old ones stay valid until they expire. If others may have its key, "
            f"first run rlinf fleet revoke {station}"
        )

    def revoke(self, station: str) -> Path:
        """Revoke a station, from its next call on. Returns the new path of its certificate."""
        # unreadable certificates included
        enrolled = sorted(path.stem for path in (self.folder / "stations").glob("[!.]*.crt"))
        if station not in enrolled:
            raise BridgeError(
                f"station '{station[:200]}': expected a station enrolled in {self.folder}: "
                f"{', '.join(enrolled) or 'none'}"
            )
        for path in (*self._renewed(station), self._enrolled(station)):
            moved_to = move(
                path, unused_name(make_folder(self.folder / "revoked") / f"{station}.crt")
            )
        return moved_to

    def stations(self) -> list[tuple[str, str, str]]:
        """Return (name, state, expiry) of all certificates.

        The state is enrolled, renewed, expired or revoked.
        """
        rows = []
        for folder, state in (
            ("stations", "enrolled"),
            ("renewed", "renewed"),
            ("revoked", "revoked"),
        ):
            # without temporary files of a full disk
            for path in sorted((self.folder / folder).glob("[!.]*.crt*")):
                certificate = read_certificate(path)
                expired = state != "revoked" and days_left(certificate) <= 0
                rows.append(
                    (
                        common_name(certificate),
                        "expired" if expired else state,
                        expiry_day(certificate),
                    )
                )
        return rows

    def days_left(self) -> dict[str, float]:
        """Return the days until the certificate of each enrolled station expires, by name."""
        certificates = map(read_certificate, sorted((self.folder / "stations").glob("*.crt")))
        return {common_name(certificate): days_left(certificate) for certificate in certificates}

    def warnings(self) -> list[str]:
        """Return a warning for each enrolled station whose certificate expires soon."""
        certificates = map(read_certificate, sorted((self.folder / "stations").glob("*.crt")))
        return [
            text
            for one in certificates
            if (text := expiry_warning(f"the certificate of station '{common_name(one)}'", one))
        ]

    def refusal_reason(self, station: str, certificate: Certificate) -> str:
        """Return why a caller with this name and certificate is refused.

        The reason is empty if the caller is accepted.
        """
        certificates = self._certificates(station)
        if not certificates:
            revoked = any((self.folder / "revoked").glob(f"{station}.crt*"))
            return f"{'its certificate was revoked' if revoked else 'it is not enrolled'}. {ENROLL}"
        if certificate not in certificates:
            return f"its certificate was revoked and replaced by another. {ENROLL}"
        return (
            ""
            if days_left(certificate) > 0
            else f"its certificate expired on {expiry_day(certificate)}. {ENROLL}"
        )

    def _certificates(self, station: str) -> list[Certificate]:
        """Return the certificates of an enrolled station; none if it is not, or no longer.

        Raises:
            BridgeError: a file is no certificate.
        """
        while (enrolled := self._enrolled(station)).exists():
            paths = (enrolled, *self._renewed(station))
            try:
                return [read_certificate(path) for path in paths]
            except BridgeError:
                if all(path.exists() for path in paths):
                    raise
                # revoked or renewed between the look and the reading: look again
        return []

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return server credentials that accept only certificates of this fleet.

        The server's own certificate is new at each start.
        """
        self.check()
        ca, ca_key = self._authority()
        key = make_key()
        certificate = sign_certificate(TRAINER_DNS_NAME, key, TRAINER_DAYS, ca, ca_key, server=True)
        return grpc.ssl_server_credentials(
            [(key_pem(key), certificate_pem(certificate))],
            certificate_pem(ca),
            require_client_auth=True,
        )

    def check(self) -> None:
        """Raise BridgeError if the folder holds no fleet."""
        if not (self.folder / CA).exists():
            raise BridgeError(
                f"bridge.fleet: expected the folder of a fleet, got {self.folder} without {CA}. "
                "Name the folder that rlinf fleet enroll wrote"
            )

    def _enrolled(self, station: str) -> Path:
        return self.folder / "stations" / f"{station}.crt"

    def _renewed(self, station: str) -> list[Path]:
        return [*(self.folder / "renewed").glob(f"{station}.crt*")]

    def _authority(self) -> tuple[Certificate, EllipticCurvePrivateKey]:
        """Return certificate and key of the authority. The first use creates them."""
        file, key_file = self.folder / CA, self.folder / "ca.key"
        if not file.exists() and not key_file.exists():
            key = make_key()
            make_folder(self.folder)
            write_file(key_file, key_pem(key), 0o600)
            write_file(
                file,
                certificate_pem(
                    make_authority(f"rlinf fleet {self.folder.resolve().name}", key, AUTHORITY_DAYS)
                ),
            )
        return read_certificate(file), read_key(key_file)


def expiry_day(certificate: Certificate) -> str:
    """Return the day of expiry in UTC, as YYYY-MM-DD."""
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"


def expiry_warning(subject: str, certificate: Certificate) -> str:
    """Return a warning with its remedy if a certificate expires within WARN_DAYS; else empty."""
    left = days_left(certificate)
    if left > WARN_DAYS:
        return ""
    ends = f"ends in {left:.0f} days, on" if left > 0 else "expired on"
    return f"{subject} {ends} {expiry_day(certificate)}. {RENEW.format(common_name(certificate))}"


class Credentials:
    """The certificate files of a station.

    Args:
        folder: folder with ca.crt, station.crt and station.key.
        station: name of the station that they must belong to.

    Raises:
        BridgeError: a file is missing, or the files do not belong together or to the station.
    """

    def __init__(self, folder: Path, station: str) -> None:
        self.folder = folder
        if missing := [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).is_file()]:
            raise BridgeError(
                f"bridge.credentials: expected {folder} to have {', '.join(missing)}. Create them "
                f"on the trainer's machine (rlinf fleet enroll {station} --out FOLDER), and copy "
                "them to the station"
            )
        self.certificate = read_certificate(folder / CERTIFICATE)
        ca = read_certificate(folder / CA)
        key = read_key(folder / KEY)
        name = common_name(self.certificate)
        if name != station:
            raise BridgeError(
                f"bridge.credentials: expected the certificate of station '{station}' in {folder}, "
                f"got that of '{name}'. Set station.name={name}, or copy the right files to the "
                "station"
            )
        if (
            key.public_key() != self.certificate.public_key()
            or self.certificate.issuer != ca.subject
        ):
            raise BridgeError(
                f"bridge.credentials: {folder}: expected {CERTIFICATE}, {KEY} and {CA} of one "
                f"enrollment, got files of different ones. {ENROLL}"
            )

    def warning(self) -> str:
        """Return a warning with its remedy if the certificate expires soon; else empty."""
        return expiry_warning(
            f"the certificate of station '{common_name(self.certificate)}' in {self.folder}",
            self.certificate,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a channel to a trainer of the same fleet."""
        ca, certificate, key = (
            (self.folder / name).read_bytes() for name in (CA, CERTIFICATE, KEY)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def advice(self) -> str:
        """Return possible causes of a refused connection: TLS tells neither side."""
        if days_left(self.certificate) <= 0:
            day = expiry_day(self.certificate)
            return f"the certificate in {self.folder} expired on {day}. {ENROLL}"
        return (
            f"expected a trainer of the fleet of {self.folder / CA} that accepts this certificate. "
            "Check that the trainer uses bridge.fleet and that this fleet enrolled this station. "
            f"If so: {ENROLL}"
        )
