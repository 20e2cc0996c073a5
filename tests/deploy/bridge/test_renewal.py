"""A certificate is renewed before it ends, without a break; whoever forgets is told in time."""

import re

import pytest

from rlinf_core.cli import doctor
from rlinf_core.cli.main import main
from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.fleet import Credentials, Fleet
from rlinf_core.deploy.bridge.server import BridgeServer


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet = Fleet(tmp_path / "fleet")
    fleet.enroll("a", tmp_path / "old", days=20)
    return fleet


@pytest.fixture
def phase(tmp_path, fleet):
    """Asks a real trainer how it stands, with the files of a folder."""
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        lambda: {"phase": "online"},
        fleet=fleet.folder,
    )

    def ask(folder):
        client = BridgeClient(f"127.0.0.1:{server.port}", "a", tmp_path / folder, instance="i")
        try:
            return client.report(0, 0, timeout_s=20.0).phase
        finally:
            client.close()

    yield ask
    server.stop()


def test_old_and_new_files_hold_until_the_old_ones_end_and_revoking_ends_both(
    fleet, phase, tmp_path
):
    assert main(["fleet", "enroll", "a", "--renew", "--out", "new"]) == 0
    assert phase("old") == phase("new") == "online"
    assert main(["fleet", "enroll", "a", "--renew", "--out", "newer"]) == 0
    assert phase("old") == phase("new") == phase("newer") == "online"
    (fleet.folder / "stations/.b.crt.12.part").write_text("-----BEGIN")  # as a full disk leaves it
    assert [row[:2] for row in fleet.stations()] == [
        ("a", "enrolled"),
        ("a", "renewed"),
        ("a", "renewed"),
    ]
    fleet.revoke("a")
    for folder in ("old", "new", "newer"):
        with pytest.raises(BridgeError, match="its certificate was revoked"):
            phase(folder)
    assert fleet.stations() and {state for _, state, _ in fleet.stations()} == {"revoked"}
    fleet.enroll("a", tmp_path / "again")
    assert phase("again") == "online"
    with pytest.raises(BridgeError, match="was revoked and replaced by another"):
        phase("old")


def test_a_certificate_that_cannot_be_read_keeps_no_other_from_being_revoked_nor_itself(
    fleet, tmp_path
):
    fleet.enroll("b", tmp_path / "b")
    (fleet.folder / "stations/b.crt").write_text("-----BEGIN")
    assert fleet.revoke("a").name == "a.crt" and fleet.revoke("b").name == "b.crt"
    assert not list((fleet.folder / "stations").glob("[!.]*"))


def test_an_old_certificate_ends_though_it_was_renewed(tmp_path, phase, fleet):
    fleet.revoke("a")
    fleet.enroll("a", tmp_path / "short", days=-0.5)
    fleet.enroll("a", tmp_path / "long", renew=True)
    assert phase("long") == "online"
    with pytest.raises(BridgeError, match="expired on"):
        phase("short")


@pytest.mark.parametrize(
    "station, more, message",
    [
        ("a", [], "enrolled already, until .*add --renew; the old ones stay valid"),
        (
            "b",
            ["--renew"],
            "--renew: expected a station enrolled in fleet: a. Leave --renew out",
        ),
        ("a", ["--renew", "--out", "old"], "expected a folder without old/ca.crt"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(fleet, capsys, station, more, message):
    before = {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()}
    assert main(["fleet", "enroll", station, "--out", "x", *more]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()} == before


def test_thirty_days_before_the_end_list_doctor_and_the_stations_own_files_say_so(
    fleet, capsys, tmp_path
):
    fleet.enroll("b", tmp_path / "b", days=40)
    assert main(["fleet", "list"]) == 0
    output = capsys.readouterr().out
    assert (
        "the certificate of station 'a' ends in 20 days, on" in output
        and "rlinf fleet enroll a --renew" in output
    )
    assert "of station 'b'" not in output
    assert (
        Credentials(tmp_path / "b", "b").warning()
        == ""
        != Credentials(tmp_path / "old", "a").warning()
    )
    (tmp_path / "old").rename("credentials")
    finding = doctor._certificates()
    assert finding.result.startswith("3 in") and finding.fix.count("ends in 20 days") == 2
    main(["fleet", "enroll", "a", "--renew", "--out", "new"])
    assert doctor._certificates().fix.count("ends in 20 days") == 1, (
        "the station has its old one still"
    )
    (tmp_path / "credentials/station.crt").write_text("?")
    assert "expected a certificate" in doctor._certificates().result


def test_a_machine_without_a_fleet_is_told_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctor._certificates().fix == "" and doctor._certificates().result.startswith("0 in")
