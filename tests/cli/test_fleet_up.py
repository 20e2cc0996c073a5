"""`rlinf fleet up`: what cannot work is refused before anything starts, a station that dies is
named, nothing is lost.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from unittest.mock import MagicMock

import pytest

from rlinf_core.cli import fleet_up
from rlinf_core.cli.fleet_up import FINISHED, LOST, PLAYING, Station
from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.episodes.journal import ARRIVED
from rlinf_core.launch import fleet
from rlinf_core.launch.graph import ONCE, RESPAWN, SHUTDOWN, Process
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("default_port_free")
DOMAINS = 18, 19  # of the two stations of a whole fleet


@pytest.fixture
def port():
    return free_port()


@pytest.mark.parametrize(
    "stations, changes, message",
    [
        (["a", "b", "a"], [], "--stations: expected different names, got 'a' twice"),
        (
            ["0"],
            [],
            "--stations: expected 1 to 227, since each station needs its own ROS_DOMAIN_ID from "
            "6 to 232, got 0",
        ),
        (["9" * 30], [], "--stations: expected 1 to 227"),
        (["3"], ["station.domain_id=231"], "--stations: expected 1 to 2, since each"),
        (
            ["lab/1"],
            [],
            "--stations: expected a number, or names .*, got 'lab/1'",
        ),
        (
            ["2"],
            ["bridge.host=0.0.0.0"],
            "bridge.fleet: expected a folder, since bridge.host is '0.0.0.0'",
        ),
        (
            ["a", "b"],
            ["bridge.fleet={}/fleet"],
            "bridge.credentials: expected a folder .* rlinf fleet enroll a --out",
        ),
        (
            ["a", "b"],
            ["bridge.fleet={}/fleet", "bridge.credentials={}"],
            r"b to have ca.crt.*rlinf fleet enroll b --out",
        ),
        (
            ["a", "gone"],
            ["bridge.fleet={}/fleet", "bridge.credentials={}"],
            "station 'gone', .*its certificate was revoked",
        ),
        (
            ["2"],
            ["station.robot=franka_fr3"],
            "station.robot: expected a simulated robot.*by rlinf up on its own PC",
        ),
        (
            ["2"],
            ["station.operator.kind=keyboard"],
            "station.operator.kind: expected scripted for stations without a person",
        ),
        (
            ["2"],
            ["station.web.port=8080"],
            "station.web.port: expected 0, .* got 8080",
        ),
        (
            ["2"],
            ["simulation.environments=4"],
            "expected a recipe that trains on episodes of stations, got one that trains on "
            "simulators",
        ),
        (
            ["200"],
            [],
            "--stations: expected at most 1, since 2000 MB of memory are free, the trainer takes "
            ".* got 200",
        ),
        (
            ["1"],
            ["bridge.host=192.0.2.1", "bridge.insecure=true"],
            "cannot listen on 192.0.2.1:.*another address of this",
        ),
        (
            ["1"],
            ["bridge.port={taken}"],
            "bridge: cannot listen on 127.0.0.1:.*in use. Stop the other trainer",
        ),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_starts(
    stations, changes, message, tmp_path, capsys, monkeypatch
):
    enrolled = Fleet(tmp_path / "fleet")
    for name in ("a", "gone"):
        enrolled.enroll(name, tmp_path / name)
    enrolled.revoke("gone")
    monkeypatch.setenv("ROS_DOMAIN_ID", "6")
    if stations == ["200"] or stations == ["1"]:
        monkeypatch.setattr(fleet, "free_mb", lambda: 2000.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        overrides = [
            change.replace("{taken}", str(other.getsockname()[1])).replace("{}", str(tmp_path))
            for change in changes
        ]
        code = main(
            [
                "fleet",
                "up",
                "demo",
                "--out",
                str(tmp_path / "run"),
                "--stations",
                *stations,
                "--set",
                *overrides,
            ]
        )
    error = capsys.readouterr().err
    of_the_machine = re.search("ca.crt|revoked|cannot listen", message)
    assert code == (1 if of_the_machine else 2), error
    assert error.startswith("rlinf: ") and re.search(message, error, re.DOTALL), error
    assert not (tmp_path / "run").exists()


def test_each_station_has_its_own_name_domain_scenes_and_credentials_and_its_share_of_demonstrations(
    tmp_path, port
):
    enrolled = Fleet(tmp_path / "fleet")
    for name in ("kitchen", "lab", "hall"):
        enrolled.enroll(name, tmp_path / name)
    overrides = [
        "bridge.host=0.0.0.0",
        f"bridge.port={port}",
        f"bridge.fleet={tmp_path}/fleet",
        f"bridge.credentials={tmp_path}",
        "station.domain_id=40",
        "collect.episodes=20",
        "seed=5",
    ]
    recipe, members = fleet.members("demo", overrides, ["kitchen", "lab", "hall"], tmp_path / "run")
    assert recipe.bridge.host == "0.0.0.0" and recipe.collect.episodes == 20
    recipes = [member.recipe for member in members]
    assert [
        (of_station.station.name, of_station.station.domain, of_station.collect.episodes)
        for of_station in recipes
    ] == [("kitchen", 40, 7), ("lab", 41, 7), ("hall", 42, 7)]
    assert len({of_station.scene(of_station.online.first_seed) for of_station in recipes}) == 3
    for member in members:
        by_name = {process.name: process for process in member.prepare()}
        uplink = by_name["uplink"].parameters
        assert uplink["address"] == f"127.0.0.1:{port}" and uplink["credentials"] == str(
            tmp_path / member.name
        )
        assert uplink["spool"] == str(tmp_path / "run/stations" / member.name / "spool")
        assert json.loads((member.folder / "plan.json").read_text())["collect"]["episodes"] == 7
    assert list(by_name)[-1] == "director" and by_name["director"].namespace == "/hall"


def test_of_several_embodiments_stations_are_one_and_the_next_in_turn_and_no_fewer(tmp_path, port):
    overrides = [
        f"bridge.port={port}",
        "simulation.environments=0",
        "collect.episodes=21",
        "station.domain_id=40",
    ]
    _, members = fleet.members("sim_embodiments", overrides, ["a", "b", "c"], tmp_path / "run")
    recipes = [member.recipe for member in members]
    assert [
        (of_station.station.robot, of_station.station.task, of_station.collect.episodes)
        for of_station in recipes
    ] == [
        ("franka_sim", "reach", 11),
        ("two_franka_sim", "reach_both", 21),
        ("franka_sim", "reach", 11),
    ]
    nodes = [
        [node for process in member.prepare() for node in (process, *process.nodes)]
        for member in members
    ]
    assert [sum(node.executable == "interlock" for node in started) for started in nodes] == [
        1,
        2,
        1,
    ]
    with pytest.raises(
        RecipeError,
        match="--stations: expected 2 or more, at least one per robot of one, two, .*, got 1",
    ):
        fleet.members("sim_embodiments", overrides, ["a"], tmp_path / "run")
    with pytest.raises(
        RecipeError, match="embodiments.two.robot: expected a simulated robot, .*got 'franka_fr3'"
    ):
        fleet.members(
            "sim_embodiments",
            [*overrides, "embodiments.two={robot: franka_fr3, task: peg_insertion}"],
            ["2"],
            tmp_path / "run",
        )


class Scripted:
    """A member whose processes are small programs."""

    name = "kitchen"

    def __init__(self, folder, **programs):
        self.folder, self.programs, self.prepared = folder, programs, 0
        (folder / "modules").mkdir(parents=True)
        for name, text in programs.items():
            (folder / "modules" / f"its_{name}.py").write_text(text)

    @property
    def recipe(self):
        from rlinf_core.recipes import load_recipe

        return load_recipe("demo", ["station.name=kitchen", "station.domain_id=201"])

    def prepare(self):
        self.prepared += 1
        restart = {"interlock": SHUTDOWN, "director": ONCE}
        return [
            Process(
                name, "rlinf", name, f"its_{name}", "/kitchen", {}, (), restart.get(name, RESPAWN)
            )
            for name in self.programs
        ]


FOR_EVER = (
    "import signal, time\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, (2, 15))\ntime.sleep(600)"
)
ENDS_ONCE = """import pathlib
ended, again = pathlib.Path(__file__).with_name("ended"), pathlib.Path(__file__).with_name("again")
if not ended.exists():
    raise SystemExit(ended.touch())
again.touch()
"""
WHEN_IT_IS_BACK = """import pathlib, time
while not pathlib.Path(__file__).with_name("again").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def living(tmp_path, monkeypatch):
    """A station, as it is after it has been looked at until it is as wanted."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "kitchen/modules"))
    notes, started = [], []

    def live(respawn, until, **programs):
        station = Station(Scripted(tmp_path / "kitchen", **programs), respawn, notes.append)
        started.append(station)
        station.start()
        end = time.monotonic() + 30
        while not until(station):
            assert time.monotonic() < end, notes
            station.poll()
            time.sleep(0.02)
        return station, notes

    yield live
    for station in started:
        station.supervisor.stop()


def test_a_station_that_dies_is_named_and_its_other_processes_end(living):
    station, notes = living(
        False,
        lambda station: station.state != PLAYING,
        interlock="raise SystemExit('no latch')",
        recorder=FOR_EVER,
        director=FOR_EVER,
    )
    assert (
        station.state == LOST
        and "interlock ended (exit code 1)" in station.progress_text
        and "'no latch'" in station.progress_text
    )
    assert all(child.popen.poll() is not None for child in station.supervisor.children.values())
    assert (
        notes[-1].startswith("station 'kitchen' died: interlock ended") and "--respawn" in notes[-1]
    )


def test_a_director_that_is_killed_is_not_said_to_have_failed_as_the_last_time(living, tmp_path):
    (tmp_path / "kitchen").mkdir()
    (tmp_path / "kitchen/progress.jsonl").write_text(
        '{"event": "error", "detail": "of the last time"}\n'
    )
    _, notes = living(False, lambda station: station.state == LOST, director="raise SystemExit(3)")
    assert "director ended (exit code 3): without a word" in notes[-1]


def test_it_is_started_again_where_that_was_asked_for_but_not_for_ever(living, monkeypatch):
    station, notes = living(
        True, lambda station: station.state == LOST, director="raise SystemExit(3)"
    )
    assert station.member.prepared == 6 and sum("It is restarted" in note for note in notes) == 5
    assert (
        "director ended (exit code 3): without a word. 6 times within 10 minutes: it is not "
        "restarted" in notes[-1]
    )


def test_a_process_that_may_be_started_again_is_no_death_and_a_director_that_ends_is_the_end(
    living,
):
    station, notes = living(
        False,
        lambda station: station.state != PLAYING,
        recorder=ENDS_ONCE + FOR_EVER,
        interlock=FOR_EVER,
        director=WHEN_IT_IS_BACK,
    )
    assert station.state == FINISHED and notes == [
        "kitchen: recorder ended (exit code 0) and was restarted"
    ]


def command(run_dir, port):
    return [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "fleet",
        "up",
        "demo_tiny",
        "--stations",
        "2",
        "--respawn",
        "--out",
        str(run_dir),
        "--set",
        f"bridge.port={port}",
        f"station.domain_id={DOMAINS[0]}",
        "station.processes=several",  # one of them dies, and so its station
    ]


def arrived(run_dir):
    """Ids, as often as each arrived."""
    journal = run_dir / "journal.jsonl"
    lines = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
    return [line["id"] for line in lines if line["status"] == ARRIVED]


def closed(run_dir, *folders):
    return {
        path.name for folder in folders for path in run_dir.glob(f"stations/*/spool/{folder}/*")
    }


def ended(running):
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
        running.wait(100)


def pid_of(run_dir, process, station):
    output = subprocess.check_output(
        ["pgrep", "-f", f"{run_dir}/stations/{station}/params/{process}.yaml"], text=True
    )
    return int(output.split()[0])


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(500)
def test_a_whole_fleet_one_station_dies_ctrl_c_stops_all_and_the_same_command_goes_on(
    tmp_path, port, request
):
    run_dir = tmp_path / "run"

    def until(running, log, ready):
        end = time.monotonic() + 200
        while not ready():
            assert time.monotonic() < end and running.poll() is None, log.read_text()[-3000:]
            time.sleep(0.2)

    def start(log):
        with open(log, "w") as out:
            running = subprocess.Popen(command(run_dir, port), stdout=out, stderr=out)
        request.addfinalizer(lambda: ended(running))  # a failed test leaves no stations behind
        return running

    first = tmp_path / "first.log"
    running = start(first)
    until(
        running,
        first,
        lambda: {"station_1", "station_2"} <= {name.partition("-")[0] for name in arrived(run_dir)},
    )
    os.kill(pid_of(run_dir, "sim_bridge", "station_2"), signal.SIGKILL)
    until(running, first, lambda: "It is restarted" in first.read_text())
    assert "station 'station_2' died: sim_bridge ended (killed by SIGKILL)" in first.read_text()
    running.send_signal(signal.SIGINT)
    assert running.wait(100) == 130 and "Traceback" not in first.read_text()
    closed_ids = closed(run_dir, "closed", "sent")
    assert closed_ids >= set(arrived(run_dir)) >= closed(run_dir, "sent"), (
        "what was sent has arrived"
    )

    second = tmp_path / "second.log"
    running = start(second)
    until(
        running,
        second,
        lambda: set(arrived(run_dir)) >= closed_ids and "evaluating after" in second.read_text(),
    )
    running.send_signal(signal.SIGINT)
    running.wait(100)
    assert len(arrived(run_dir)) == len(set(arrived(run_dir))), "each once"


@pytest.mark.parametrize(
    "phase, trainer, backlog, lacks, ends",
    [
        ("sft", "waiting", 0, True, True),
        ("sft", "sft", 0, True, False),
        ("sft", "waiting", 1, True, False),
        ("collect", "waiting", 0, True, False),
        ("sft", "waiting", 0, False, False),
    ],
)
def test_where_a_station_has_died_and_nobody_shows_its_share_it_ends_and_says_so(
    tmp_path, monkeypatch, phase, trainer, backlog, lacks, ends
):
    display, now = MagicMock(), [0.0]
    others = [Station(Scripted(tmp_path / name), False, print) for name in ("one", "two")]
    others[0].state = LOST
    (tmp_path / "two/status.json").write_text(
        json.dumps(
            {"phase": phase, "trainer": {"phase": trainer, "backlog": backlog, "episodes": 3}}
        )
    )
    monkeypatch.setattr(Scripted, "lacks_demonstrations", lacks, raising=False)
    display.stations = others
    monkeypatch.setattr(Station, "start", lambda station: None)
    monkeypatch.setattr(Station, "poll", lambda station: None)

    def sleep(seconds):
        now[0] += 5.0
        if now[0] > 100.0:
            others[1].state = LOST

    monkeypatch.setattr(fleet_up, "time", MagicMock(monotonic=lambda: now[0], sleep=sleep))
    if not ends:
        return fleet_up._play(MagicMock(), display, 1.0)
    with pytest.raises(
        RlinfError,
        match="waits for demonstrations of kitchen, which ended",
    ):
        fleet_up._play(MagicMock(), display, 1.0)
    assert 30.0 < now[0] < 50.0
