"""Admission of callers to a trainer, over real sockets; a refused caller gets only the reason."""

import time
from concurrent import futures
from types import SimpleNamespace

import grpc
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import INSTANCE_KEY, STATION_KEY, admission, bridge_pb2_grpc
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient, episode_offer
from rlinf_core.deploy.bridge.credentials import read_certificate
from rlinf_core.deploy.bridge.fleet import Credentials, Fleet
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.spool import Spool
from tests.messages import record

pytestmark = pytest.mark.timed


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path / "fleet")


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(fleet=None, name="run"):
        root = tmp_path / name
        started.append(
            BridgeServer(
                "127.0.0.1:0",
                root / "inbox",
                root / "policies",
                print,
                lambda: {"phase": "online"},
                fleet=fleet.folder if fleet else None,
            )
        )
        (root / "policies/policy-00000001.safetensors").write_bytes(b"secret")
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def call(tmp_path):
    """A client of a trainer; ``folder`` as ``enroll`` made it."""
    clients = []

    def make(server, station="a", folder=None, **how):
        clients.append(BridgeClient(f"127.0.0.1:{server.port}", station, folder, **how))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def episode(tmp_path, task):
    return record(Spool(tmp_path / "spool"), task.spec, "e").close()


def gets_nothing(client, episode, tmp_path, error):
    """No report, no policy, no acknowledgment, by any of the calls."""
    for what in (
        lambda: client.report(0, 0, timeout_s=10.0),
        lambda: client.upload(episode, timeout_s=10.0),
        lambda: client.next_policy(-1, tmp_path / "policies", wait_s=0.0),
        lambda: client._call(
            client._stub.Upload, iter([pb.UploadPart(episode=episode_offer(episode))]), 10.0
        ),
    ):
        with pytest.raises(BridgeError, match=error):
            what()
    assert list((tmp_path / "policies").iterdir()) == []


def gets_everything(client, episode, tmp_path):
    assert client.report(0, 0).phase == "online" and client.upload(episode) in (True, False)
    assert client.next_policy(-1, tmp_path / "policies")[1].read_bytes() == b"secret"


def test_an_enrolled_station_gets_everything_and_a_revoked_one_nothing_on_the_same_connection(
    fleet, serve, call, episode, tmp_path
):
    fleet.enroll("a", tmp_path / "a")
    fleet.enroll("b", tmp_path / "b")
    server = serve(fleet)
    a, b = call(server, "a", tmp_path / "a"), call(server, "b", tmp_path / "b")
    gets_everything(a, episode, tmp_path)
    (tmp_path / "policies/policy-00000001.safetensors").unlink()
    fleet.revoke("a")
    gets_nothing(
        a, episode, tmp_path, "unauthenticated: station 'a': its certificate was revoked. Enroll it"
    )
    gets_everything(b, episode, tmp_path)
    fleet.enroll("a", tmp_path / "a2")
    (tmp_path / "policies/policy-00000001.safetensors").unlink()
    gets_nothing(a, episode, tmp_path, "was revoked and replaced by another")
    gets_everything(call(server, "a", tmp_path / "a2"), episode, tmp_path)


def test_a_certificate_of_the_fleet_that_is_not_enrolled_gets_nothing(
    fleet, serve, call, episode, tmp_path
):
    fleet.enroll("a", tmp_path / "a")
    (fleet.folder / "stations/a.crt").unlink()
    gets_nothing(
        call(serve(fleet), "a", tmp_path / "a"),
        episode,
        tmp_path,
        "station 'a': it is not enrolled. Enroll it",
    )


@pytest.mark.parametrize("sign", ["Handshake failed", "Socket closed", "Connection reset by peer"])
def test_however_tls_fails_the_station_names_its_certificate(fleet, call, sign, tmp_path):
    """A trainer may close the connection before the station has read why."""
    fleet.enroll("a", tmp_path / "a", days=-0.5)
    error = SimpleNamespace(code=lambda: grpc.StatusCode.UNAVAILABLE, details=lambda: sign)
    client = call(SimpleNamespace(port=1), "a", tmp_path / "a")
    assert "expired on" in str(client._error(error))


def test_an_expired_certificate_gets_nothing_and_the_station_says_when_it_did(
    fleet, serve, call, episode, tmp_path
):
    fleet.enroll("a", tmp_path / "a", days=-0.5)
    gets_nothing(
        call(serve(fleet), "a", tmp_path / "a"),
        episode,
        tmp_path,
        r"a expired on \d{4}-\d\d-\d\d. Enroll it",
    )
    assert fleet.stations()[0][1] == "expired"
    assert "its certificate expired on" in fleet.refusal_reason(
        "a", read_certificate(fleet.folder / "stations/a.crt")
    )


def test_a_certificate_that_is_revoked_while_it_is_read_was_revoked(fleet, tmp_path, monkeypatch):
    fleet.enroll("a", tmp_path / "a")
    certificate = read_certificate(fleet.folder / "stations/a.crt")

    def revokes(path):
        fleet.revoke("a")
        return read_certificate(path)

    monkeypatch.setattr("rlinf_core.deploy.bridge.fleet.read_certificate", revokes)
    assert "its certificate was revoked. " in fleet.refusal_reason("a", certificate)


def test_an_enrolled_file_that_is_no_certificate_is_named(fleet, tmp_path):
    fleet.enroll("a", tmp_path / "a")
    certificate = read_certificate(fleet.folder / "stations/a.crt")
    (fleet.folder / "stations/a.crt").write_text("cut")
    with pytest.raises(BridgeError, match=r"a\.crt: expected a certificate of rlinf fleet enroll"):
        fleet.refusal_reason("a", certificate)


def test_a_certificate_of_another_fleet_gets_nothing(fleet, serve, call, episode, tmp_path):
    fleet.enroll("a", tmp_path / "a")
    other = Fleet(tmp_path / "other")
    other.enroll("a", tmp_path / "b")
    server = serve(fleet)
    gets_nothing(
        call(server, "a", tmp_path / "b"),
        episode,
        tmp_path,
        "expected a trainer of the fleet of .*ca.crt",
    )
    # whoever knows the right authority, but is not of it
    for file in (
        "station.crt",
        "station.key",
    ):
        (tmp_path / "a" / file).write_bytes((tmp_path / "b" / file).read_bytes())
    channel = grpc.ssl_channel_credentials(
        *((tmp_path / "a" / name).read_bytes() for name in ("ca.crt", "station.key", "station.crt"))
    )
    client = call(server, "a")
    client._stub = bridge_pb2_grpc.BridgeStub(
        grpc.secure_channel(
            client.address, channel, [("grpc.ssl_target_name_override", "trainer.rlinf")]
        )
    )
    gets_nothing(client, episode, tmp_path, "unavailable")


def test_who_talks_without_tls_to_a_fleet_gets_nothing_and_neither_does_a_fleets_station_from_others(
    fleet, serve, call, episode, tmp_path
):
    fleet.enroll("a", tmp_path / "a")
    gets_nothing(
        call(serve(fleet), "a"), episode, tmp_path, "this station needs bridge.credentials"
    )
    gets_nothing(
        call(serve(name="open"), "a", tmp_path / "a"),
        episode,
        tmp_path,
        "Check that the trainer uses bridge.fleet",
    )


def test_a_station_cannot_pose_as_the_trainer(fleet, call, episode, tmp_path):
    fleet.enroll("a", tmp_path / "a")
    fleet.enroll("mallory", tmp_path / "m")
    ca, key, certificate = (
        (tmp_path / "m" / name).read_bytes() for name in ("ca.crt", "station.key", "station.crt")
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], ca, True)
    )
    bridge_pb2_grpc.add_BridgeServicer_to_server(bridge_pb2_grpc.BridgeServicer(), server)
    server.start()
    gets_nothing(
        call(server, "a", tmp_path / "a"),
        episode,
        tmp_path,
        "unavailable.*expected a trainer of the fleet",
    )
    server.stop(0)


def test_a_station_must_be_whom_its_certificate_names(fleet, serve, call, episode, tmp_path):
    fleet.enroll("a", tmp_path / "a")
    fleet.enroll("b", tmp_path / "b")
    with pytest.raises(
        BridgeError, match="expected the certificate of station 'b' in .*, got that of 'a'"
    ):
        call(serve(fleet), "b", tmp_path / "a")
    client = call(serve(fleet, "two"), "a", tmp_path / "a")
    client._name = ((STATION_KEY, "b"), (INSTANCE_KEY, "i"))
    gets_nothing(
        client, episode, tmp_path, "permission_denied: station 'b': its certificate belongs to 'a'"
    )


@pytest.mark.parametrize(
    "spoil, error",
    [
        (lambda folder: (folder / "station.key").unlink(), "to have station.key"),
        (
            lambda folder: (folder / "station.crt").write_text("x"),
            "expected a certificate of rlinf fleet enroll",
        ),
        (
            lambda folder: (folder / "station.key").write_text("x"),
            "expected a private key of rlinf fleet enroll",
        ),
        (
            lambda folder: (folder / "station.key").write_bytes(
                (folder.parent / "b/station.key").read_bytes()
            ),
            "one enrollment",
        ),
        (
            lambda folder: (folder / "ca.crt").write_bytes((folder / "station.crt").read_bytes()),
            "of one enrollment",
        ),
    ],
)
def test_files_that_do_not_belong_together_are_told_at_the_station(fleet, tmp_path, spoil, error):
    for name in ("a", "b"):
        fleet.enroll(name, tmp_path / name)
    spoil(tmp_path / "a")
    with pytest.raises(BridgeError, match=error):
        Credentials(tmp_path / "a", "a")


def test_a_mistyped_fleet_is_no_new_one(tmp_path, serve):
    with pytest.raises(
        BridgeError, match="bridge.fleet: expected the folder of a fleet, got .*flet without ca.crt"
    ):
        serve(Fleet(tmp_path / "flet"))
    assert not (tmp_path / "flet").exists()


def test_a_damaged_fleet_folder_lets_nobody_in_and_says_why(fleet, serve, call, episode, tmp_path):
    fleet.enroll("a", tmp_path / "a")
    server = serve(fleet)
    (fleet.folder / "stations/a.crt").write_text("x")
    gets_nothing(
        call(server, "a", tmp_path / "a"),
        episode,
        tmp_path,
        "unavailable: .*a.crt: expected a certificate",
    )


@pytest.mark.parametrize("number", [1, 3])
def test_a_station_of_another_version_hears_both(serve, number):
    channel = grpc.insecure_channel(f"127.0.0.1:{serve().port}")
    for method in ("Report", "Upload", "NextPolicy", "Whatever"):
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(f"/rlinf.bridge.v{number}.Bridge/{method}")(b"", timeout=10)
        assert refusal.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert (
            f"expected version 2 of this trainer, got version {number}" in refusal.value.details()
        )
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        channel.unary_unary("/other.Service/Method")(b"", timeout=10)
    channel.close()


def test_a_trainer_of_another_version_is_told_from_one_that_is_away(call, tmp_path):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(
        BridgeError, match="expected version 2 of the bridge's protocol of this station"
    ):
        call(server).report(0, 0, timeout_s=10.0)
    server.stop(0)


@pytest.mark.parametrize(
    "who, error",
    [
        ((), "rlinf-station: expected a letter"),
        (((STATION_KEY, "a"),), "rlinf-instance: expected a letter.*got ''"),
        (((STATION_KEY, "a/b"), (INSTANCE_KEY, "i")), "got 'a/b'"),
        (((STATION_KEY, "a" * 65), (INSTANCE_KEY, "i")), "rlinf-station"),
        (((STATION_KEY, "a"), (INSTANCE_KEY, "i" * 65)), "rlinf-instance"),
    ],
)
def test_who_does_not_say_who_it_is_gets_nothing(serve, call, episode, tmp_path, who, error):
    client = call(serve())
    client._name = who
    gets_nothing(client, episode, tmp_path, f"invalid_argument: .*{error}")


def test_the_second_station_of_one_name_is_refused_while_the_first_is_alive(
    serve, call, episode, tmp_path, monkeypatch
):
    monkeypatch.setattr(admission, "LEASE_S", 0.5)
    server = serve()
    first, second = call(server, instance="first"), call(server, instance="second")
    gets_everything(first, episode, tmp_path)
    waits = first._stub.NextPolicy(
        pb.PolicyRequest(have_version=1, wait_s=30.0), metadata=first._metadata
    )
    time.sleep(1.0)  # silent for longer than a lease, but a call is open
    (tmp_path / "policies/policy-00000001.safetensors").unlink()
    gets_nothing(
        second,
        episode,
        tmp_path,
        "already_exists: station 'a': another station of that name is connected",
    )
    gets_everything(call(server, instance="first"), episode, tmp_path)  # of the same process
    waits.cancel()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            second.report(0, 0)
            break
        except BridgeError:
            time.sleep(0.1)
    second.report(0, 0)
    with pytest.raises(BridgeError, match="already_exists"):
        first.report(0, 0)


def test_names_cost_the_trainer_a_bounded_amount(serve, call, monkeypatch):
    monkeypatch.setattr(admission, "MAX_STATIONS", 3)
    server = serve()
    for name in "abc":
        call(server, name).report(0, 0)
    with pytest.raises(
        BridgeError, match="resource_exhausted: station 'd': expected at most 3 stations"
    ):
        call(server, "d").report(0, 0)
    call(server, "a").report(0, 0)
    monkeypatch.setattr("rlinf_core.deploy.bridge.server.MAX_STATIONS", 2)
    call(server, "c").report(0, 0)
    assert list(server.stations) == ["a", "c"], "of whom nothing was heard for longest is forgotten"


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", "list"]) == 0 and "no station is enrolled" in capsys.readouterr().out
    assert main(["fleet", "enroll", "a", "--out", "carry"]) == 0
    output = capsys.readouterr().out
    assert all(
        f"{tmp_path}/carry/{name}" in output for name in ("ca.crt", "station.crt", "station.key")
    )
    assert all(
        (tmp_path / name).stat().st_mode & 0o777 == 0o600
        for name in ("carry/station.key", "fleet/ca.key")
    )
    for words, message in (
        (["enroll", "a", "--out", "x"], "station 'a': enrolled already, until 20"),
        (["enroll", "b", "--out", "carry"], "expected a folder without"),
        (["enroll", "../b", "--out", "x"], "expected a letter, then up to 63"),
        (["enroll", "b", "--out", "/dev/null/x"], "Not a directory"),
        (["revoke", "b"], "expected a station enrolled in fleet: a"),
    ):
        assert main(["fleet", *words]) == 1 and message in capsys.readouterr().err
    assert (
        main(["fleet", "revoke", "a"]) == 0
        and main(["fleet", "enroll", "a", "--out", "again"]) == 0
    )
    assert main(["fleet", "revoke", "a"]) == 0 and main(["fleet", "enroll", "b", "--out", "b"]) == 0
    capsys.readouterr()
    assert main(["fleet", "list"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["b", "enrolled"],
        ["a", "revoked"],
        ["a", "revoked"],
    ]
    with pytest.raises(SystemExit):
        main(["fleet", "enroll", "c", "--out", "c", "--days", "0"])
