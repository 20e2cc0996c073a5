"""Who may ask a policy server: a key that is checked, TLS, and neither left out beyond this machine
by mistake.
"""

import ssl
import threading
import urllib.error

import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import ServingError
from rlinf_core.deploy.bridge.credentials import authority, key_pem, make_key, pem, signed
from rlinf_core.deploy.serving import access
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies.serialization import policy_name, save_policy
from tests.deploy.serving.test_server_inside import Inside
from tests.deploy.serving.test_serving import observed, policy_of, spec  # noqa: F401

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(1))
    return tmp_path


@pytest.fixture
def files(tmp_path):
    """A key file, and a certificate of localhost with the authority that signed it."""
    ours, theirs = make_key(), make_key()
    root = authority("fleet", ours, 1.0)
    texts = {
        "ca.pem": pem(root),
        "cert.pem": pem(signed("localhost", theirs, 1.0, root, ours, server=True)),
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
