"""Stations of one trainer, over its real bridge: what they are sent in stages, and what people see
and say.
"""

import json
import os
import threading
import time

import pytest
from rich.console import Console

from rlinf_core.cli.fleet import table
from rlinf_core.cli.main import main
from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.releases import Release, overview
from rlinf_core.deploy.releases.commands import ReleaseCommand, send_command
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.sources.stations import Stations
from tests.messages import record

pytestmark = pytest.mark.timed

QUICK = Release(staged=True, episodes=3, interlock=False, odds_ratio=100.0, alpha=0.4)


class Trainer:
    """The loop of a run that learns nothing, and its stations a and b."""

    def __init__(self, task, folder, release):
        self.task, self.folder, self.run_dir, self.count = task, folder, folder / "run", 0
        self.run_dir.mkdir(exist_ok=True)
        (self.run_dir / "recipe.yaml").write_text("")
        intake = Intake(self.run_dir, task.spec, 100)
        self.stations = Stations(
            "127.0.0.1:0", self.run_dir, intake, lambda trajectory: "online", None, release
        )
        self.clients = {
            name: BridgeClient(f"127.0.0.1:{self.stations.server.port}", name) for name in "ab"
        }
        self.ending, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self._loop)
        self.thread.start()

    def _loop(self):
        try:
            while not self.ending.wait(0.01):
                self.stations.take(0, {})
                self.stations.report = {
                    "policy_version": self.stations.server.newest,
                    "accepting": True,
                }
        except BaseException as error:
            self.error = error

    def publish(self, version):
        aside = self.run_dir / "policies" / ".part"
        aside.write_bytes(b"policy %d" % version)
        aside.rename(aside.with_name(policy_name(version)))

    def wait(self, station, version):
        """Wait until the station is assigned a version; it then downloads a new file."""
        end = time.monotonic() + 30
        while (
            status := self.clients[station].report(0, 0, playing=version)
        ).policy_version != version:
            assert self.error is None and time.monotonic() < end, (self.error, status)
            time.sleep(0.02)
        fetched = self.clients[station].next_policy(-1, self.folder / station)
        assert fetched.version == version and fetched.path.read_bytes() == b"policy %d" % version
        return status

    def until(self, holds):
        """A station may hear of a decision while it is being written down."""
        end = time.monotonic() + 30
        while not holds():
            assert self.error is None and time.monotonic() < end, self.error
            time.sleep(0.02)

    def play(self, station, version, successes, **how):
        def change(topic, number, message):
            if topic == "episode":
                message.station, message.policy_version = station, version

        for success in successes:
            self.count += 1
            folder = record(
                Spool(self.folder / f"spool_{station}"),
                self.task.spec,
                f"{station}-{self.count}",
                success=bool(success),
                change=change,
                **how,
            ).close()
            self.clients[station].upload(folder)

    def close(self):
        self.ending.set()
        self.thread.join()
        for client in self.clients.values():
            client.close()
        self.stations.close()
        assert self.error is None


@pytest.fixture
def start(task, tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "LOOK_S", 0.02)
    trainers = []
    yield lambda release: trainers.append(Trainer(task, tmp_path, release)) or trainers[-1]
    for trainer in trainers:
        trainer.close()


def fleet_command(capsys, *arguments):
    code = main(["fleet", *map(str, arguments)])
    out, error = capsys.readouterr()
    # the trainer prints them here, too
    return code, "".join(dict.fromkeys((out + error).splitlines(keepends=True)))


def test_a_policy_goes_to_one_station_and_comes_back_or_goes_to_all(start):
    trainer = start(QUICK)
    trainer.publish(1)
    trainer.wait("a", 1)
    trainer.wait("b", 1)
    trainer.play("a", 1, [1, 1, 1])
    trainer.publish(2)
    trainer.wait("a", 2)
    trainer.wait("b", 1)
    trainer.play("a", 2, [0])
    trainer.play("b", 2, [0, 0, 0])  # as one would that has it from elsewhere
    trainer.wait("a", 2)
    trainer.play("a", 2, [0])
    trainer.wait("a", 1)
    trainer.play("a", 1, [1, 1, 1])
    trainer.publish(3)
    trainer.wait("a", 3)
    trainer.wait("b", 1)
    trainer.play("a", 3, [1, 1, 1])
    trainer.wait("b", 3)
    trainer.until(
        lambda: json.loads((trainer.run_dir / "release.json").read_text())["current"] == 3
    )


def test_people_pin_promote_roll_back_and_drain(start, capsys):
    trainer = start(QUICK)
    run = trainer.run_dir
    for version in (1, 2):
        trainer.publish(version)
        if version == 1:
            trainer.wait("a", 1)
            trainer.wait("b", 1)
            trainer.play("b", 1, [1, 1, 1])
    trainer.wait("b", 2)
    # it polls
    trainer.until(lambda: "version 2 is on trial at 'b'" in fleet_command(capsys, "status", run)[1])
    code, text = fleet_command(capsys, "status", run)
    assert (
        code == 0
        and "version 2 is on trial at 'b', 0 of at most 3 episodes" in text
        and text.count("on trial") >= 3
    )
    assert fleet_command(capsys, "promote", run) == (0, "version 2 goes to all stations: by hand\n")
    trainer.wait("a", 2)
    assert fleet_command(capsys, "rollback", run) == (0, "version 2 is rolled back to 1: by hand\n")
    trainer.wait("a", 1)
    code, text = fleet_command(capsys, "rollback", run)
    assert code == 1 and "expected a policy on trial or a version before 1" in text
    code, text = fleet_command(capsys, "promote", run)
    assert (
        code == 1
        and "expected a policy on trial or --version, got neither. All stations play version 1"
        in text
    )
    assert fleet_command(capsys, "promote", run, "--version", 2)[0] == 0
    trainer.wait("b", 2)
    assert (
        fleet_command(capsys, "pin", run, "--version", 1, "--stations", "a")[1]
        == "pinned to version 1: 'a'\n"
    )
    trainer.wait("a", 1)
    trainer.wait("b", 2)
    code, text = fleet_command(capsys, "pin", run, "--off")
    assert code == 1 and "expected a pinned station, a (*: all stations), got *" in text
    fleet_command(capsys, "pin", run, "--off", "--stations", "a")
    trainer.wait("a", 2)
    code, text = fleet_command(capsys, "pin", run, "--version", 7)
    assert code == 1 and "version 7: expected a version whose file is in" in text
    code, text = fleet_command(capsys, "drain", run, "c")
    assert (
        code == 1 and "station 'c': expected a station that has called this trainer: a, b" in text
    )
    assert fleet_command(capsys, "drain", run, "a", "b") == (0, "drained: 'a', 'b'\n")
    status = trainer.wait("a", 2)
    assert not status.accepting and "rlinf fleet drain --off" in status.message
    assert fleet_command(capsys, "drain", run, "a", "--off") == (0, "undrained: 'a'\n")
    assert trainer.wait("a", 2).accepting and not trainer.wait("b", 2).accepting


def test_without_stages_pins_hold_and_what_is_about_stages_is_refused(start, capsys):
    trainer = start(Release())
    trainer.publish(1)
    trainer.wait("a", 1)
    assert fleet_command(capsys, "pin", trainer.run_dir, "--version", 1)[0] == 0
    trainer.publish(2)
    time.sleep(0.3)
    trainer.wait("a", 1)
    fleet_command(capsys, "pin", trainer.run_dir, "--off")
    trainer.wait("a", 2)
    for command in ("promote", "rollback"):
        code, text = fleet_command(capsys, command, trainer.run_dir)
        assert code == 1 and "release.staged=true" in text and "rlinf fleet pin" in text


def test_the_table_says_how_each_station_is(start, capsys):
    trainer = start(QUICK)
    code, text = fleet_command(capsys, "status", trainer.run_dir / "nowhere")
    assert (
        code == 1
        and "nowhere: expected the folder of a run with stations and with fleet.json" in text
    )
    trainer.publish(1)
    trainer.wait("b", 1)
    trainer.play("b", 1, [1, 1, 1], mode="evaluate")
    trainer.play("b", 1, [1])
    trainer.play("b", 1, [1], sources={0: "operator"})
    trainer.clients["a"].report(
        7, 1, playing=-1, policy_error="policy [red]x[/red]", set_aside=2, spool_full=0.25
    )
    end = time.monotonic() + 30
    while (
        trainer.stations.counts().get("b/success") != 0.5
        or len(overview.read_overview(trainer.run_dir)["stations"]) < 2
    ):
        assert time.monotonic() < end
        time.sleep(0.02)
    limited = trainer.stations.counts()["b/interlock"]
    assert limited == pytest.approx((1 / 5 + 1 / 4) / 2), (
        "one of five time steps, then of the policy's four"
    )
    time.sleep(0.2)
    code, text = fleet_command(capsys, "status", trainer.run_dir)
    head, a, b, *rest = text.splitlines()
    assert head.split() == [
        "station",
        "heard",
        "plays",
        "meant",
        "backlog",
        "refused",
        "spool",
        "played",
        "success",
        "interlock",
    ]
    assert a.split()[0] == "a" and a.split()[3:] == [
        "-",
        "1",
        "7",
        "2",
        "25%",
        "0",
        "-",
        "-",
        "policy",
        "[red]x[/red]",
    ]
    assert float(a.split()[1]) < 60
    assert b.split()[0] == "b" and b.split()[3:] == ["1", "1", "0", "0", "0%", "2", "50%", "22%"]
    assert "most so far: 2" in rest[0] and code == 0

    path = trainer.run_dir / overview.FILE
    old = json.loads(path.read_text()) | {
        "time": time.time() - 100,
        "staged": False,
        "stations": {},
        "pins": {"*": 1},
    }
    console = Console(width=200, highlight=False)
    with console.capture() as shown:
        console.print(table(old))
    assert "has been silent for 100 s" in shown.get() and "No station has called yet" in shown.get()
    assert "pinned: all to version 1" in shown.get()


def test_an_order_that_nobody_takes_is_withdrawn_and_what_was_left_is_not_obeyed(
    start, tmp_path, monkeypatch
):
    with pytest.raises(BridgeError, match="run: expected the folder of a run with stations"):
        send_command(tmp_path / "run", ReleaseCommand(action="rollback"))
    (tmp_path / "run/orders").mkdir(parents=True)
    (tmp_path / "run/recipe.yaml").write_text("")
    with pytest.raises(
        BridgeError, match="expected an answer within 0 s, got none; the command is withdrawn"
    ):
        send_command(tmp_path / "run", ReleaseCommand(action="rollback"), patience_s=0.2)
    assert list((tmp_path / "run/orders").iterdir()) == []

    def ctrl_c(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as person:
        person.setattr("rlinf_core.deploy.releases.commands.time.sleep", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            send_command(tmp_path / "run", ReleaseCommand(action="rollback"))
    assert list((tmp_path / "run/orders").iterdir()) == []

    def take_and_die():
        while not (paths := list((tmp_path / "run/orders").glob("*.json"))):
            time.sleep(0.01)
        paths[0].rename(paths[0].with_suffix(".taken"))

    thief = threading.Thread(target=take_and_die)
    thief.start()
    with pytest.raises(
        BridgeError, match="got none; but it has accepted the command. rlinf fleet status shows"
    ):
        send_command(tmp_path / "run", ReleaseCommand(action="rollback"), patience_s=1.0)
    thief.join()
    left = tmp_path / "run/orders/1-x.json"
    left.write_text(ReleaseCommand(action="pin", version=1).model_dump_json())
    os.utime(left, (1e10, 1e10))  # the clock was ahead; it says nothing
    errors, orders = [], tmp_path / "run/orders"

    def person():
        try:
            send_command(tmp_path / "run", ReleaseCommand(action="undrain", stations=["nobody"]))
        except BridgeError as error:
            errors.append(str(error))

    waits = threading.Thread(target=person)  # gives a command while the trainer starts, and waits
    waits.start()
    while not (given := [path for path in orders.glob("*.json") if path != left]):
        time.sleep(0.01)
    os.utime(given[0], (1.0, 1.0))
    trainer = start(QUICK)
    trainer.publish(1)
    trainer.publish(2)
    trainer.wait("a", 2)
    assert not left.exists() and not left.with_suffix(".answer").exists()
    waits.join()
    assert (
        given[0].name.startswith("2-") and "station 'nobody': expected a station that" in errors[0]
    )
    huge = '{"action": "pin", "version": 1%s}' % ("0" * 300)
    for number, text in enumerate(
        (
            huge,
            '{"action": "destroy"}',
            "no JSON",
            "\udcff",
            '{"action": "pin", "version": "1"}',
            '{"action": "pin"}',
            '{"action": "drain"}',
        )
    ):
        path = left.with_name(f"{number}.json")
        path.with_suffix(".tmp").write_bytes(text.encode("utf-8", "surrogateescape"))
        path.with_suffix(".tmp").rename(path)
        end = time.monotonic() + 30
        while not path.with_suffix(".answer").exists():
            assert time.monotonic() < end and trainer.error is None
            time.sleep(0.02)
        error = json.loads(path.with_suffix(".answer").read_text())["error"]
        assert "expected" in error or "too long" in error
    assert (
        send_command(trainer.run_dir, ReleaseCommand(action="pin", version=1))
        == "pinned to version 1: all stations"
    )
