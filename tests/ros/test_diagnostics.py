"""/diagnostics: every node of a station says how it fares, and what is wrong in a sentence."""

import re
from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from rlinf_core.launch.graph import (
    director_process,
    station_processes,
    with_lifecycle_manager,
    write_plan,
)
from rlinf_core.recipes import load_recipe
from tests.ports import free_port

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
OK, WARN = DiagnosticStatus.OK, DiagnosticStatus.WARN


@pytest.mark.domain(119)
def test_every_node_that_can_fail_says_how_it_fares(peer):
    recipe = load_recipe(
        "demo", ["station.operator.kind=keyboard", "station.lockstep=false", "bridge.port=1"]
    )
    processes = {
        process.name: process for process in station_processes(recipe, peer.supervisor.run_dir)
    }
    statuses = {}
    peer.node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda message: statuses.update({status.name: status for status in message.status}),
        10,
    )
    for process in processes.values():
        peer.supervisor.start(process)
    expected = {f"station_a/{name}" for name in processes}
    peer.spin(lambda: expected <= statuses.keys(), what=lambda: expected - statuses.keys())
    assert (
        statuses["station_a/policy"].level == WARN
        and statuses["station_a/policy"].message == "has no policy yet"
    )
    assert statuses["station_a/recorder"].level == statuses["station_a/sim_bridge"].level == OK
    peer.spin(
        lambda: "127.0.0.1:1" in statuses["station_a/uplink"].message, what="the uplink's trouble"
    )
    assert statuses["station_a/uplink"].level == WARN
    peer.spin(lambda: statuses["station_a/environment"].level == WARN, what="what it waits for")
    assert statuses["station_a/environment"].message.startswith("disarmed; arm it: rlinf arm")
    assert {"current_pose age_s"} <= {
        value.key for value in statuses["station_a/environment"].values
    }
    for node, topic in (
        ("interlock", "target_pose"),
        ("interlock", "safety"),
        ("sim_bridge", "current_pose"),
    ):
        peer.spin(
            lambda node=node, topic=topic: rate(statuses[f"station_a/{node}"], topic) > 1.0,
            what=f"the rate of {topic}",
        )
    interlock = peer.supervisor.children["interlock"].popen
    interlock.kill()
    peer.spin(
        lambda: (
            statuses["station_a/sim_bridge"].level == WARN
            or not peer.supervisor.children.pop("interlock", 1)
        ),
        what="the silence of the interlock",
    )
    assert statuses["station_a/sim_bridge"].message == "no command for the arm"


def rate(status, topic):
    """Return the rate of a topic as its publisher's node reports it [Hz]."""
    return next(float(value.value) for value in status.values if value.key == f"{topic} hz")


@pytest.mark.domain(103)
def test_operator_page_director_controller_gripper_and_twins_say_it_too(peer, tmp_path):
    statuses = {}
    peer.node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda message: statuses.update({status.name: status for status in message.status}),
        10,
    )
    folder = peer.supervisor.run_dir
    recipe = load_recipe("demo", ["station.lockstep=false"])
    arm = load_recipe("ur5e_twin", ["station.name=station_a"])
    write_plan(recipe, folder)
    paged = load_recipe("demo", ["station.lockstep=false", f"station.web.port={free_port()}"])
    wanted = {
        "operator": (recipe, station_processes(recipe, folder)),
        "page": (paged, station_processes(paged, folder)),
        "controller": (arm, station_processes(arm, folder)),
        "director": (recipe, [director_process(recipe, folder)]),
    }
    (tmp_path / "robot.yaml").write_text(
        f"driver: external\nlimits: {Path('robots/franka_fr3/limits.yaml').resolve()}\n"
        "gripper: {kind: gripper_command, joint: knuckle, open_at: 0.04, twin: true}\n"
    )
    gripped = load_recipe(
        "demo",
        [f"station.robot={tmp_path}", "station.task=reach", "station.operator.kind=keyboard"],
    )
    wanted |= dict.fromkeys(
        ("gripper", "gripper_twin"), (gripped, station_processes(gripped, folder))
    )
    for name, (_, processes) in wanted.items():
        peer.supervisor.start(next(process for process in processes if process.name == name))
    expected = {f"station_a/{name}" for name in wanted}
    peer.spin(lambda: expected <= statuses.keys(), what=lambda: expected - statuses.keys())
    texts = {
        name: (statuses[f"station_a/{name}"].level, statuses[f"station_a/{name}"].message)
        for name in wanted
    }
    assert texts["operator"] == (WARN, "waiting for one interlock of each arm")
    assert (
        texts["page"] == (WARN, "receives nothing from the interlock")
        and texts["director"][0] == texts["gripper_twin"][0] == OK
    )
    assert texts["controller"][0] == WARN and texts["controller"][1].startswith(
        "no subscriber of /ur_twin/scaled_joint"
    )
    assert {"targets_hz", "target_age_s"} <= {
        value.key for value in statuses["station_a/controller"].values
    }
    peer.supervisor.start(
        next(process for process in wanted["controller"][1] if process.name == "twin")
    )
    peer.spin(
        lambda: (
            "station_a/twin" in statuses
            and rate(statuses["station_a/twin"], "/ur_twin/joint_states") > 10.0
        ),
        what="the rate of the twin's joints",
    )
    peer.spin(
        lambda: statuses["station_a/controller"].level == OK, what="the controller that is heard"
    )
    assert statuses["station_a/twin"].level == OK


def test_the_aggregators_file_puts_every_node_of_a_station_in_one_group(tmp_path):
    document = yaml.safe_load(Path("configs/monitoring/diagnostic_aggregator.yaml").read_text())[
        "analyzers"
    ]
    groups = [group for group in document["ros__parameters"].values() if isinstance(group, dict)]
    assert {group["type"] for group in groups} == {"diagnostic_aggregator/GenericAnalyzer"}
    processes = [
        process
        for name in ("demo", "franka_twin_devices", "ur5e_twin")
        for process in station_processes(load_recipe(name, ["station.web.port=8479"]), tmp_path)
    ]
    two_arms = ["station.robot=two_franka_sim", "station.task=reach_both", "station.name=cell"]
    processes += station_processes(load_recipe("demo", two_arms), tmp_path)
    processes += [
        director_process(load_recipe("demo"), tmp_path),
        *with_lifecycle_manager(load_recipe("demo"), []),
    ]
    names = {f"{process.namespace}/{process.executable}".strip("/") for process in processes}
    assert {
        "cell/left/interlock",
        "station_a/camera/wrist/camera",
        "station_a/page",
        "station_a/controller",
    } <= names
    for name in names:
        assert (
            sum(bool(re.fullmatch(pattern, name)) for group in groups for pattern in group["regex"])
            == 1
        ), name
