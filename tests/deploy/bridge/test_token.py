"""The token of a trainer on loopback: who shows it is let in, and nothing else tells it."""

import os
import re
import stat

import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.credentials import (
    TOKEN,
    TOKEN_FILE,
    link_token,
    make_token,
    read_token,
    token_link,
)
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.fleet import members
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.bridge_security import token_of, tokens_of
from tests.deploy.bridge.test_admission import gets_nothing
from tests.messages import record
from tests.ports import free_port

pytestmark = pytest.mark.timed


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def trainer(tmp_path, home):
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        lambda: {"phase": "online"},
        token_file=tmp_path / "run" / TOKEN_FILE,
    )
    (tmp_path / "run/policies/policy-00000001.safetensors").write_bytes(b"secret")
    yield server
    server.stop()


@pytest.fixture
def call(trainer):
    clients = []

    def make(name="a", *tokens):
        clients.append(BridgeClient(f"127.0.0.1:{trainer.port}", name, tokens=tokens))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def episode(tmp_path, task):
    return record(Spool(tmp_path / "spool"), task.spec, "e").close()


def test_a_stranger_gets_nothing_and_learns_where_the_token_lies(call, episode, tmp_path):
    path = re.escape(str(tmp_path / "run" / TOKEN_FILE))
    gets_nothing(
        call("stranger"),
        episode,
        tmp_path,
        rf"unauthenticated.*token.*{path}, got none.*bridge\.token_file",
    )
    other = tmp_path / "other"
    make_token(other)
    gets_nothing(
        call("stranger", other),
        episode,
        tmp_path,
        rf"{path}, got another.*searched {re.escape(str(other))}, and found another",
    )
    assert list((tmp_path / "run/inbox").iterdir()) == []


def test_a_station_that_shows_the_token_gets_everything(call, episode, tmp_path):
    client = call("a", tmp_path / "run" / TOKEN_FILE)
    assert client.report(0, 0).phase == "online" and not client.upload(episode)
    assert client.next_policy(-1, tmp_path / "policies")[1].read_bytes() == b"secret"
    assert client.register("{}", "")  # refused by its specs, after it was let in


def test_a_refused_caller_holds_no_name(call, tmp_path):
    with pytest.raises(BridgeError, match="got none"):
        call("a").report(0, 0)
    stranger = call("a")
    stranger._name = (stranger._name[0], ("rlinf-instance", "another"))
    with pytest.raises(BridgeError, match="got none"):
        stranger.report(0, 0)
    assert call("a", tmp_path / "run" / TOKEN_FILE).report(0, 0).phase == "online"


@pytest.mark.parametrize("shown", ["", "x", "é" * 40, "a" * 43, "0" * 4000])
def test_every_other_token_is_refused(trainer, shown):
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a")
    client._name += (("rlinf-token", shown.encode("ascii", "replace").decode()),)
    with pytest.raises(BridgeError, match="unauthenticated"):
        client.report(0, 0)
    client.close()


def test_the_file_is_made_once_for_its_user_alone(tmp_path):
    path, mask = tmp_path / "new/run" / TOKEN_FILE, os.umask(0)
    try:
        token = make_token(path)
    finally:
        os.umask(mask)
    assert TOKEN.fullmatch(token) and make_token(path) == token == read_token([path])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [TOKEN_FILE]
    assert make_token(tmp_path / "another") != token


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (0o644, "a" * 43, "other users cannot read, got mode 0644"),
        (0o602, "a" * 43, "mode 0602"),
        (0o600, "", "32 to 256 letters"),
        (0o600, "short", "32 to 256"),
        (0o600, "a" * 43 + "\nmore", "32 to 256"),
        (0o600, "é" * 40, "32 to 256"),
        (0o600, "a" * 257, "32 to 256"),
    ],
)
def test_a_file_that_is_no_token_is_refused_before_anybody_is_let_in(tmp_path, mode, text, message):
    path = tmp_path / TOKEN_FILE
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(BridgeError, match=message):
        BridgeServer(
            "127.0.0.1:0", tmp_path / "inbox", tmp_path / "policies", print, dict, token_file=path
        )
    path.write_bytes(b"\xff" * 43)
    with pytest.raises(BridgeError, match="token_file"):
        make_token(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BridgeError, match="token_file"):
        make_token(path)
    assert read_token([path, tmp_path / "none"]) == ""


def test_a_station_of_the_same_user_finds_the_token_by_the_port(trainer, tmp_path, home):
    recipe = load_recipe("demo", [f"bridge.port={trainer.port}"])
    files = tokens_of(recipe.bridge, tmp_path / "station")
    client = BridgeClient(recipe.bridge.address, "a", tokens=files)
    assert client.report(0, 0).phase == "online"
    assert files == [token_link(trainer.port), tmp_path / "station" / TOKEN_FILE]
    assert files[0].resolve() == tmp_path / "run" / TOKEN_FILE
    files[0].unlink()
    with pytest.raises(BridgeError, match="found none"):
        client.report(0, 0)
    link_token(tmp_path / "run" / TOKEN_FILE, trainer.port)  # read anew in each call
    assert client.report(0, 0).phase == "online"
    client.close()


def test_a_trainer_that_ends_takes_its_own_link_along(tmp_path, home):
    servers = [
        BridgeServer(
            "127.0.0.1:0",
            tmp_path / f"{name}/inbox",
            tmp_path / f"{name}/policies",
            print,
            dict,
            token_file=tmp_path / name / TOKEN_FILE,
        )
        for name in "ab"
    ]
    links = [token_link(server.port) for server in servers]
    link_token(tmp_path / "other", servers[1].port)
    for server in servers:
        server.stop()
    assert not links[0].is_symlink() and links[1].readlink() == tmp_path / "other"


def test_a_home_that_cannot_be_written_keeps_no_trainer_from_its_stations(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        dict,
        token_file=tmp_path / "run" / TOKEN_FILE,
    )
    files = tokens_of(load_recipe("demo", [f"bridge.port={server.port}"]).bridge, tmp_path / "run")
    client = BridgeClient(f"127.0.0.1:{server.port}", "a", tokens=files)
    assert client.report(0, 0) is not None
    client.close()
    server.stop()


def test_certificates_and_a_network_of_ones_own_take_the_place_of_the_token(tmp_path, home):
    def of(*overrides):
        bridge = load_recipe("demo", list(overrides)).bridge
        return token_of(bridge, tmp_path), tokens_of(bridge, tmp_path)

    link = home / ".ros/rlinf/bridge_50551.token"
    assert of() == (tmp_path / TOKEN_FILE, [link, tmp_path / TOKEN_FILE])
    assert of("bridge.host=localhost") == of("bridge.host='[::1]'") == of()
    assert of("bridge.token_file='~/t'") == (home / "t", [home / "t"])
    assert of("bridge.host=0.0.0.0", "bridge.insecure=true") == (None, [])
    assert of("bridge.fleet=fleet")[0] is None and of("bridge.credentials=c")[1] == []


def test_a_name_that_the_recipe_does_not_list_is_refused(tmp_path, home):
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "inbox",
        tmp_path / "policies",
        print,
        dict,
        token_file=tmp_path / TOKEN_FILE,
        stations=("a", "b"),
    )
    listed, unlisted = (
        BridgeClient(f"127.0.0.1:{server.port}", name, tokens=[tmp_path / TOKEN_FILE])
        for name in "ac"
    )
    assert listed.report(0, 0) is not None
    with pytest.raises(
        BridgeError, match=r"'c': expected one of bridge\.stations .* a, b, got another"
    ):
        unlisted.report(0, 0)
    with pytest.raises(BridgeError, match="got none"):  # names are told to nobody without the token
        BridgeClient(f"127.0.0.1:{server.port}", "c").report(0, 0)
    server.stop()


def test_a_token_is_in_no_plan_and_no_argument(tmp_path, home):
    token = make_token(tmp_path / TOKEN_FILE)
    port = free_port()
    link_token(tmp_path / TOKEN_FILE, port)
    of_port = [f"bridge.port={port}"]
    processes = station_processes(load_recipe("demo", of_port), tmp_path)
    uplink = next(planned for planned in processes if planned.name == "uplink")
    assert uplink.parameters["tokens"] == [str(token_link(port)), str(tmp_path / TOKEN_FILE)]
    assert token not in repr(processes)
    _, fleet = members("demo", of_port, ["1"], tmp_path)
    assert fleet[0].recipe.bridge.token_file == str(tmp_path / TOKEN_FILE)
    for process in fleet[0].prepare():
        assert token not in repr(process)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.resolve().name != TOKEN_FILE:
            assert token not in path.read_text(errors="replace"), path
