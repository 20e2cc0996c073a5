"""Access to a policy server by key and TLS, which are required beyond this machine."""

import ssl
import threading
import urllib.error

import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import ServingError
from rlinf_core.deploy.bridge.credentials import (
    certificate_pem,
    key_pem,
    make_authority,
    make_key,
    sign_certificate,
)
from rlinf_core.deploy.serving import access
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from tests.deploy.serving.test_server_inside import Inside
from tests.deploy.serving.test_serving import observed, policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(1))
    return tmp_path


@pytest.fixture
def files(tmp_path):
    """Return a key file, and a certificate of localhost with the authority that signed it."""
    ours, theirs = make_key(), make_key()
    root = make_authority("fleet", ours, 1.0)
    texts = {
        "ca.pem": certificate_pem(root),
        "cert.pem": certificate_pem(
            sign_certificate("localhost", theirs, 1.0, root, ours, server=True)
        ),
        "key.pem": key_pem(theirs),
        "api.key": KEY.encode() + b"\n",
    }
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
    return tmp_path


def test_a_client_without_the_key_is_refused_and_health_asks_for_none(folder, spec):
    inside = Inside(Weights(folder), key=KEY)
    try:
        assert "actions" in PolicyClient(inside.address, 20.0, KEY).infer(observed(spec))
        for key in ("", "another-key-of-some-length", KEY[:-1], KEY + "0"):
            with pytest.raises(ServingError, match="HTTP 401"):
                PolicyClient(inside.address, 20.0, key)
        assert inside.page("healthz") == "OK\n"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            inside.page("metrics")
        assert any("without the right API key" in line for line in inside.lines)
        openpi = pytest.importorskip("openpi_client.websocket_client_policy")
        client = openpi.WebsocketClientPolicy("127.0.0.1", inside.port, api_key=KEY)
        assert "actions" in client.infer(observed(spec))
    finally:
        inside.end()


def test_over_tls_a_client_knows_its_server(folder, files, spec):
    inside = Inside(
        Weights(folder), key=KEY, tls=access.server_context(files / "cert.pem", files / "key.pem")
    )
    try:
        address = f"wss://localhost:{inside.port}"
        assert "actions" in PolicyClient(address, 20.0, KEY, str(files / "ca.pem")).infer(
            observed(spec)
        )
        for wrong, authorities in (
            (address, ""),
            (address.replace("localhost", "127.0.0.1"), str(files / "ca.pem")),
        ):
            with pytest.raises(ServingError, match="certificate"):
                PolicyClient(wrong, 20.0, KEY, authorities)
        with pytest.raises(ServingError, match="expected an answer"):
            PolicyClient(address.replace("wss", "ws"), 20.0, KEY)
    finally:
        inside.end()


def test_over_tls_no_session_ticket_comes_between_a_client_s_reading_and_writing(files):
    """A client that writes while another thread reads a ticket lost 4 of 1,580 requests."""
    assert access.server_context(files / "cert.pem", files / "key.pem").num_tickets == 0


def test_over_tls_one_thread_of_the_client_reads_and_writes(folder, files, spec, monkeypatch):
    threads, inside = (
        set(),
        Inside(Weights(folder), tls=access.server_context(files / "cert.pem", files / "key.pem")),
    )
    for name in ("read", "write"):
        real = getattr(ssl.SSLObject, name)

        def noted(self, *words, real=real):
            if not self.server_side:
                threads.add(threading.current_thread().name)
            return real(self, *words)

        monkeypatch.setattr(ssl.SSLObject, name, noted)
    try:
        client = PolicyClient(f"wss://localhost:{inside.port}", 20.0, "", str(files / "ca.pem"))
        assert client.open and "actions" in client.infer(observed(spec))
        client.close()
        client.close()
        assert not client.open
        with pytest.raises(ServingError, match="expected an open connection, got a closed one"):
            client.infer(observed(spec))
    finally:
        inside.end()
    assert threads == {"policy client"}


@pytest.mark.parametrize(
    "words, error",
    [
        ([], "--host 0.0.0.0: expected --tls-cert with --tls-key and --api-key-file"),
        (
            ["--api-key-file", "api.key"],
            "--host 0.0.0.0: expected --tls-cert with --tls-key, since",
        ),
        (
            ["--tls-cert", "cert.pem", "--tls-key", "key.pem"],
            "--host 0.0.0.0: expected --api-key-file, since",
        ),
        (["--tls-cert", "cert.pem"], "--tls-cert: expected --tls-cert and --tls-key together"),
        (
            ["--tls-cert", "key.pem", "--tls-key", "cert.pem"],
            "expected a certificate and its key in PEM",
        ),
        (["--api-key-file", "none"], "expected a file with a key"),
        (["--api-key-file", "ca.pem"], "expected a line of 16 to 512 characters"),
    ],
)
def test_a_server_that_others_reach_has_both_or_is_refused(
    folder, files, words, error, capsys, monkeypatch
):
    monkeypatch.chdir(files)
    assert (
        main(["serve", str(folder), "--host", "0.0.0.0", "--port", "0", "--device", "cpu", *words])
        == 2
    )
    assert error in capsys.readouterr().err


def test_exposure_is_accepted_on_loopback_with_both_or_by_a_person(files):
    for host, encrypted, key, plaintext in (
        ("127.0.0.1", False, "", False),
        ("localhost", False, "", False),
        ("0.0.0.0", True, KEY, False),
        ("0.0.0.0", False, "", True),
    ):
        access.check_exposure(host, encrypted, key, plaintext)
    (files / "api.key").chmod(0o644)
    with pytest.raises(ServingError, match="chmod o-rwx"):
        access.read_key(files / "api.key")
    with pytest.raises(ServingError, match="expected certificates in PEM"):
        access.client_context(str(files / "api.key"))
    assert access.client_context("").verify_mode == ssl.CERT_REQUIRED
    assert (
        access.is_allowed("", None)
        and not access.is_allowed(KEY, None)
        and not access.is_allowed(KEY, f"Bearer {KEY}")
    )


@pytest.mark.parametrize("key", ["!" * 16, "~" * 512, "  " + KEY + "\n\n"])
def test_a_key_is_read_from_its_file(tmp_path, key):
    path = tmp_path / "api.key"
    path.write_text(key)
    for mode in (0o600, 0o640, 0o770):
        path.chmod(mode)
        assert access.read_key(path) == key.strip()
    for mode in (0o604, 0o602, 0o601):
        path.chmod(mode)
        with pytest.raises(ServingError) as refused:
            access.read_key(path)
        assert str(refused.value) == (
            f"API key {path}: expected a file that other users cannot read, got mode {mode:04o}: "
            f"chmod o-rwx {path}"
        )


@pytest.mark.parametrize("key", ["", "k" * 15, "k" * 513, "k" * 16 + " " + "k", KEY + "\x01"])
def test_a_file_without_a_key_is_refused_with_its_length(tmp_path, key):
    path = tmp_path / "api.key"
    path.write_text(key)
    path.chmod(0o600)
    with pytest.raises(ServingError) as refused:
        access.read_key(path)
    assert str(refused.value) == (
        f"API key {path}: expected a line of 16 to 512 characters without blanks, got {len(key)}. "
        "Create one: openssl rand -hex 32"
    )
    path.write_text("é" * 20)
    with pytest.raises(ServingError, match=f"API key {path}: expected a file with a key, got: "):
        access.read_key(path)


def test_a_header_is_the_key_s_or_it_is_not():
    assert access.is_allowed(KEY, f"Api-Key {KEY}") and access.is_allowed("", "whatever")
    for header in (None, "", KEY, f"Api-Key {KEY} ", f"api-key {KEY}", f"Api-Key {KEY}\udcff"):
        assert not access.is_allowed(KEY, header)
    assert access.is_allowed("?" * 16, f"Api-Key {'?' * 16}")


def test_a_server_speaks_tls_of_1_2_at_least(files):
    context = access.server_context(files / "cert.pem", files / "key.pem")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.protocol == ssl.PROTOCOL_TLS_SERVER
    with pytest.raises(ServingError) as refused:
        access.server_context(files / "key.pem", files / "none.pem")
    assert str(refused.value).startswith(
        f"--tls-cert {files}/key.pem, --tls-key {files}/none.pem: expected a certificate and its "
        "key in PEM, got: "
    )
    context = access.client_context(str(files / "ca.pem"))
    assert len(context.get_ca_certs()) == 1 and context.check_hostname
    with pytest.raises(ServingError, match=f"station.policy.tls_ca {files}/key.pem: expected"):
        access.client_context(str(files / "key.pem"))


@pytest.mark.parametrize(
    "encrypted, key, missing",
    [
        (False, "", "--tls-cert with --tls-key and --api-key-file"),
        (True, "", "--api-key-file"),
        (False, KEY, "--tls-cert with --tls-key"),
    ],
)
def test_what_an_open_server_lacks_is_told(encrypted, key, missing):
    with pytest.raises(ServingError) as refused:
        access.check_exposure("10.0.0.7", encrypted, key, False)
    assert str(refused.value) == (
        f"--host 10.0.0.7: expected {missing}, since other machines reach this address. Anyone "
        "there could query the policy and read the camera images in transit. Give these options, "
        "tunnel to 127.0.0.1 (ssh -L), or accept the risk with --plaintext on a private network"
    )
    access.check_exposure("10.0.0.7", encrypted, key, True)
    access.check_exposure("127.0.0.1", encrypted, key, False)
