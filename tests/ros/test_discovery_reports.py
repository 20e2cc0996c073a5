"""A node without messages reports where it looks and what it sees."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest
from std_msgs.msg import Bool

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import ros_environment
from rlinf_core.launch.graph import director_process, write_plan
from rlinf_core.recipes import load_recipe
from rlinf_ros.qos import profile
from rlinf_ros.station_state import Discovery
from tests.ros.stand_ins import start

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


@contextlib.contextmanager
def terminal_of(peer, folder, *overrides, **environment):
    """`rlinf teleop` at a terminal of its own; what it says there is in the file."""
    terminal, inside = pty.openpty()
    shell = peer.supervisor.environment | environment
    with open(folder / "said.txt", "w") as output:
        person = subprocess.Popen(
            [sys.executable, "-m", "rlinf_core.cli.main", "teleop", "demo", *overrides],
            stdin=inside,
            stdout=output,
            stderr=output,
            env=shell,
        )
    try:
        yield terminal, (folder / "said.txt").read_text
    finally:
        person.terminate()
        person.wait(20)


def pressed(peer, terminal, key, output, words):
    """Again and again, as a person does whom the interlock answers: ask again."""
    for _ in range(15):
        os.write(terminal, key)
        with contextlib.suppress(AssertionError):
            return peer.spin(lambda: words in output(), 2.0)
    raise AssertionError(output())


def test_the_domain_is_the_shells_unless_the_recipe_says_one(monkeypatch):
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    assert load_recipe("demo").station.domain == 0, "as in all of ROS"
    monkeypatch.setenv("ROS_DOMAIN_ID", "91")
    assert load_recipe("demo").station.domain == 91
    assert load_recipe("demo", ["station.domain_id=17"]).station.domain == 17
    monkeypatch.setenv("ROS_DOMAIN_ID", "233")
    with pytest.raises(
        RlinfError, match="ROS_DOMAIN_ID: expected a number from 0 to 232 in this shell, got '233'"
    ):
        load_recipe("demo").station.domain  # noqa: B018


@pytest.mark.parametrize("reach, inside", [(None, "LOCALHOST"), ("SUBNET", "SUBNET")])
def test_how_far_a_station_is_heard_is_the_shells_word_too(monkeypatch, reach, inside):
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    if reach:
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", reach)
    assert ros_environment(90)["ROS_AUTOMATIC_DISCOVERY_RANGE"] == inside


@pytest.mark.domain(112)
def test_a_director_without_a_station_says_where_it_looks_and_what_it_sees(peer, tmp_path):
    start(peer, "interlock", "station.name=station_b")
    recipe, shown = load_recipe("demo"), tmp_path / "status.json"
    write_plan(recipe, tmp_path)
    peer.supervisor.start(director_process(recipe, tmp_path))

    def waiting_for():
        return json.loads(shown.read_text())["waiting_for"] if shown.exists() else ""

    peer.spin(lambda: "station_b" in waiting_for(), what="its words")
    assert waiting_for().startswith(
        "expected station 'station_a' in ROS_DOMAIN_ID 112 on this machine, received no environment"
    )
    assert (
        "nodes of this station: peer; other stations: station_b. Start it (rlinf up <recipe>)"
        in waiting_for()
    )
    assert (
        waiting_for().split(";")[0].split(" for ")[0]
        in (tmp_path / "logs/director.log").read_text()
    )


@pytest.mark.domain(113)
def test_who_looks_says_so_again_only_while_it_is_away(peer):
    interlocks = []
    lookout = Discovery(peer.node, "environment", lambda: bool(interlocks))
    lookout.since -= 10.0
    peer.spin(lambda: lookout.warning, what="the warning")
    interlocks.append(True)
    peer.spin(lambda: not lookout.warning, what="the end of it")
    peer.for_s(1.5)
    assert not lookout.warning


@pytest.mark.domain(114)
def test_teleop_looks_in_the_shells_domain_and_shows_the_answer_with_the_state(peer, tmp_path):
    with terminal_of(peer, tmp_path) as (terminal, output):  # its shell says ROS_DOMAIN_ID=114
        peer.spin(
            lambda: "in ROS_DOMAIN_ID 114 on this machine, received no interlock" in output(),
            what=output,
        )
        second = peer.node.create_publisher(Bool, "enable", profile("enable"))
        for name in ("sim_bridge", "interlock"):
            start(peer, name, "station.lockstep=false")
        peer.spin(
            lambda: (
                "the interlock was discovered" in output()
                and "disarmed; arm it: rlinf arm" in output()
            ),
            what=output,
        )
        refusal = "cannot arm: missing: two_publishers:enable"
        pressed(peer, terminal, b"e", output, refusal)
        # the second publisher was discovered after the first press
        if "arming: the interlock is ARMED" in output():
            os.write(terminal, b"q")
            peer.spin(lambda: "disarming: the interlock is DISARMED" in output(), what=output)
            after = len(output())
            pressed(peer, terminal, b"e", lambda: output()[after:], refusal)
        assert "): the interlock is DISARMED\n" in output()
        peer.node.destroy_publisher(second)
        peer.for_s(1.5)
        pressed(peer, terminal, b"e", output, "arming: the interlock is ARMED")
        pressed(peer, terminal, b"q", output, "disarming: the interlock is DISARMED")
