"""The process graph as data: the launchers only start it."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlinf_core.core.errors import REFUSED, RecipeError, RlinfError
from rlinf_core.data.demonstrations import DemonstrationStats
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.launch import supervisor as supervising
from rlinf_core.launch.graph import (
    ONCE,
    RESPAWN,
    SHUTDOWN,
    Process,
    collect_processes,
    commanded_robot,
    compose,
    director_process,
    is_too_fast_for_person,
    load_collect_recipe,
    station_processes,
    trainer_process,
    with_lifecycle_manager,
    write_plan,
)
from rlinf_core.launch.restart import MAX_RESTARTS
from rlinf_core.launch.supervisor import Supervisor, only_station
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.config import load_robot

KEYBOARD, COMPOSED = "station.operator.kind=keyboard", "station.policy.backend=composed"


def graph(tmp_path, *overrides):
    return {
        process.name: process
        for process in station_processes(load_recipe("demo", overrides), tmp_path)
    }


def test_simulated_and_real_stations_run_the_same_nodes(tmp_path):
    simulated = graph(tmp_path, KEYBOARD)
    real = graph(tmp_path, "station.robot=franka_fr3", KEYBOARD)
    assert graph(tmp_path).keys() - simulated.keys() == {"operator"}, "a person brings a terminal"
    assert simulated.keys() - real.keys() == {"sim_bridge"}, (
        "invariant 8: they differ only at the robot side"
    )
    assert real.keys() - simulated.keys() == {"driver"}
    assert {name: process.module for name, process in real.items() if name != "driver"}.items() <= {
        name: process.module for name, process in simulated.items()
    }.items()


def test_a_policy_may_be_composed_with_the_environment_and_is_left_out_like_any_other(tmp_path):
    separate, composed = graph(tmp_path), graph(tmp_path, COMPOSED, "seed=7")
    assert separate.keys() - composed.keys() == {"policy"} and not composed.keys() - separate.keys()
    assert composed["environment"].parameters == separate["environment"].parameters | separate[
        "policy"
    ].parameters | {"seed": 7, "composed": True}
    for override_list in ([], [COMPOSED]):
        few = {
            process.name: process
            for process in station_processes(
                load_recipe("demo", override_list), tmp_path, ("policy", "uplink")
            )
        }
        assert few == {name: separate[name] for name in separate.keys() - {"policy", "uplink"}}, (
            "and the environment loads no torch"
        )


def test_a_twins_station_is_the_real_ones_and_the_twin(tmp_path):
    twin = graph(tmp_path, "station.robot=franka_twin")
    real = graph(tmp_path, "station.robot=franka_fr3", KEYBOARD)
    assert twin.keys() - real.keys() == {"twin", "operator"}, (
        "a script may be the operator where nobody can be hurt"
    )
    pairs = {
        name: (twin[name].parameters, real[name].parameters) for name in ("driver", "environment")
    }
    other = {
        name: {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
        for name, (ours, theirs) in pairs.items()
    }
    assert other == {"driver": set(), "environment": {"person", "teleports"}}, (
        "nobody is asked for a scene that a simulator resets"
    )
    assert twin["driver"].restart == twin["twin"].restart == SHUTDOWN
    assert not any(process.parameters.get("lockstep") for process in twin.values())


def test_the_environment_knows_along_whose_axes_a_real_arm_speaks(tmp_path):
    def axes(*overrides):
        processes = {
            process.name: process
            for process in station_processes(load_recipe("demo", list(overrides)), tmp_path)
        }
        return processes["environment"].parameters.get("axes", {})

    assert axes() == {}, "a simulator speaks the robot interface"
    real = "station.operator.kind=keyboard"
    assert axes("station.robot=franka_fr3", real) == {
        "current_twist": {"frame": "base_link", "tool": True},
        "wrench": {"frame": "base_link", "tool": False},
    }
    assert axes("station.robot=ur5e", "station.task=ur5e_reach", real)["wrench"] == {
        "frame": "base",
        "tool": True,
    }


def test_a_driver_of_ones_own_is_run_for_each_arm(tmp_path, monkeypatch):
    (tmp_path / "my_arm.py").write_text(
        "from typing import ClassVar\nfrom rlinf_core.robots.drivers import DriverSettings\n\n"
        "class Driver(DriverSettings):\n    node: ClassVar[str] = 'my_arm_node'\n    address: str "
        "= 'here'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    limits = Path("robots/franka_fr3/limits.yaml").resolve()
    (tmp_path / "robot.yaml").write_text(
        f"driver: my_arm:Driver\noptions: {{address: there}}\n"
        f"arms: {{left: {{limits: {limits}}}, right: {{limits: {limits}}}}}\n"
    )
    processes = graph(tmp_path, f"station.robot={tmp_path}", "station.task=reach_both", KEYBOARD)
    assert {name: processes[name].namespace for name in processes if name.startswith("driver")} == {
        "driver_left": "/station_a/left",
        "driver_right": "/station_a/right",
    }
    parameters = processes["driver_left"].parameters
    assert parameters["module"] == "my_arm_node" and parameters["settings"] == {"address": "there"}


def test_only_robot_side_and_interlock_end_the_station(tmp_path):
    ends = {name for name, process in graph(tmp_path).items() if process.restart == SHUTDOWN}
    assert ends == {"sim_bridge", "interlock"}


def test_a_real_robot_is_never_in_lockstep(tmp_path):
    real = graph(tmp_path, "station.robot=franka_fr3", KEYBOARD)
    assert (
        real["interlock"].parameters["lockstep"] is False
        and real["environment"].parameters["lockstep"] is False
    )


def test_a_recipes_options_reach_the_simulator_and_the_arms_interlock_stays(tmp_path):
    overrides = [
        "station.robot=panda_maniskill",
        "station.options.task=PushCube-v1",
        "station.task=push",
    ]
    plain, other = graph(tmp_path, overrides[0]), graph(tmp_path, *overrides)
    before, after = (station["sim_bridge"].parameters["options"] for station in (plain, other))
    assert before["task"] == "PickCube-v1" and after == before | {"task": "PushCube-v1"}
    assert other["environment"].parameters["task_file"].endswith("push.yaml")
    assert (
        other["interlock"].parameters["limits_file"] == plain["interlock"].parameters["limits_file"]
    )


def test_a_station_that_calls_beyond_this_machine_has_credentials_of_its_own_name(tmp_path):
    with pytest.raises(
        RecipeError,
        match="bridge.credentials: expected a folder, since bridge.host is 'trainer.lab'",
    ):
        graph(tmp_path, "bridge.host=trainer.lab")
    assert (
        graph(tmp_path, "bridge.host=trainer.lab", "bridge.insecure=true")["uplink"].parameters[
            "credentials"
        ]
        == ""
    )
    with pytest.raises(RlinfError, match="rlinf fleet enroll station_a"):
        graph(tmp_path, "bridge.host=trainer.lab", f"bridge.credentials={tmp_path}")
    Fleet(tmp_path / "fleet").enroll("station_b", tmp_path / "b")
    with pytest.raises(
        RlinfError,
        match="expected the certificate of station 'station_a' .* got that of 'station_b'",
    ):
        graph(tmp_path, f"bridge.credentials={tmp_path / 'b'}")
    processes = graph(
        tmp_path,
        f"bridge.credentials={tmp_path / 'b'}",
        "station.name=station_b",
        "station.spool_gb=3.0",
        "station.policies_gb=4.0",
    )
    assert processes["uplink"].parameters["credentials"] == str(tmp_path / "b")
    assert (
        processes["uplink"].parameters["spool_gb"]
        == processes["recorder"].parameters["spool_gb"]
        == 3.0
    )
    assert processes["uplink"].parameters["policies_gb"] == 4.0


def test_a_script_is_no_second_operator(tmp_path):
    with pytest.raises(
        RecipeError,
        match="station.second_operator.kind: expected an input device, got scripted",
    ):
        graph(tmp_path, "station.second_operator={kind: scripted}")


def test_every_process_names_an_executable_of_the_package_and_a_module(tmp_path):
    names_of_before = Path("ros_ws/src/rlinf/CMakeLists.txt").read_text()
    for process in [
        *graph(tmp_path).values(),
        *graph(tmp_path, "station.robot=franka_twin").values(),
    ]:
        setup = Path(f"ros_ws/src/{process.package}/setup.py").read_text()
        assert f'"{process.executable} = {process.module}:main"' in setup
        assert f"{process.package}.{process.executable}" in names_of_before
        assert importlib.util.find_spec(process.module), process.module


def children(supervisor):
    return [child.popen for child in supervisor.children.values()]


def test_the_supervisor_starts_again_what_may_die_and_gives_up_on_what_cannot_live(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.run("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], RESPAWN)
        first = supervisor.children["sleeper"].popen.pid
        os.kill(first, signal.SIGKILL)
        end = time.time() + 10
        while supervisor.children["sleeper"].popen.pid == first and time.time() < end:
            supervisor.poll()
            time.sleep(0.05)
        assert "sleeper ended (killed by SIGKILL) and was restarted" in supervisor.events
        supervisor.run("broken", [sys.executable, "-c", "raise SystemExit('no disk')"], RESPAWN)
        with pytest.raises(
            RlinfError, match=rf"broken ended {MAX_RESTARTS + 1} times .*no disk.*broken.log"
        ):
            while time.time() < end + 60:
                supervisor.poll()
                time.sleep(0.05)
        left = children(supervisor)
    assert all(popen.poll() is not None for popen in left)


def test_what_ends_again_and_again_for_one_reason_is_given_up_however_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_core.launch.restart.RESTART_WINDOW_S", 0.0)
    lacks = (
        "import sys; print('rlinf: no room on any machine. Ask for fewer', file=sys.stderr); "
        "sys.exit(1)"
    )
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.run("trainer", [sys.executable, "-c", lacks], RESPAWN)
        with pytest.raises(
            RlinfError,
            match=f"trainer ended {MAX_RESTARTS + 1} times for the same reason: no room on any",
        ):
            poll(supervisor)
    assert (
        supervisor.events
        == ["trainer ended (exit code 1) and was restarted: no room on any machine. Ask for fewer"]
        * MAX_RESTARTS
    )


def test_a_trainer_that_refuses_ends_the_run_with_its_words_and_is_not_started_again(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "defaults: demo\nname: mine\nseed: soon\nreplay: {capacity: none}\n"
    )
    with Supervisor(tmp_path, 90) as supervisor:
        trainer = supervisor.start(trainer_process(tmp_path))
        with pytest.raises(RlinfError) as error:
            poll(supervisor)
        assert (
            trainer.popen.returncode == REFUSED
            and not supervisor.events
            and not trainer.history.restarts
        )
    first, second, log = str(error.value).splitlines()
    assert first.startswith("trainer cannot continue: ") and "line 3: 'seed': expected int" in first
    assert "line 4: 'replay.capacity': expected int" in second and log.endswith(
        f"{tmp_path}/logs/trainer.log"
    )


def test_a_station_does_not_go_on_without_interlock_or_robot_side_however_they_ended(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.run(
            "interlock", [sys.executable, "-c", "print('finalised', flush=True)"], SHUTDOWN
        )
        with pytest.raises(
            RlinfError,
            match=r"interlock ended \(exit code 0\)\. The station cannot .*'finalised'",
        ):
            poll(supervisor)


def test_what_keeps_a_station_up_is_started_again_however_it_ended(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.run("recorder", [sys.executable, "-c", "pass"], RESPAWN)
        supervisor.run("director", [sys.executable, "-c", "pass"], ONCE)
        with pytest.raises(RlinfError, match=f"recorder ended {MAX_RESTARTS + 1} times"):
            poll(supervisor)
    assert "recorder ended (exit code 0) and was restarted" in supervisor.events
    assert not [event for event in supervisor.events if "director" in event]


def test_whoever_is_asked_to_end_has_the_time_that_it_needs_and_no_more(tmp_path):
    """A trainer writes a checkpoint; a second word within that time would cut it short."""
    deaf = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); "
    )
    slow = (
        "import signal, time; told = []; signal.signal(2, lambda *_: told.append(2)); "
        "signal.signal(15, lambda *_: told.append(15)); "
    )
    begun, auto_reset = "print('begun', flush=True); ", "\nwhile True: time.sleep(0.1)"
    ends = "\nwhile not told: time.sleep(0.01)\ntime.sleep(2)\nprint(told)"
    with Supervisor(tmp_path, 90) as supervisor:
        for name, code, stop_s in (
            ("deaf", deaf + begun + auto_reset, 0.4),
            ("slow", slow + begun + ends, 30.0),
        ):
            supervisor.start(
                Process(
                    name, "", "", "", "", {"command": [sys.executable, "-c", code]}, stop_s=stop_s
                )
            )
        logs = [tmp_path / f"logs/{name}.log" for name in ("deaf", "slow")]
        while not all("begun" in log.read_text() for log in logs):
            time.sleep(0.02)
    assert [child.popen.returncode for child in supervisor.children.values()] == [
        -signal.SIGKILL,
        0,
    ]
    assert logs[1].read_text().splitlines()[-1] == "[2]"
    assert trainer_process(tmp_path).stop_s > Process("node", "", "", "", "").stop_s


def poll(supervisor, seconds=90):
    end = time.time() + seconds
    while time.time() < end:
        supervisor.poll()
        time.sleep(0.02)


def test_a_script_is_refused_at_a_real_arm(tmp_path):
    for overrides in ((), ("station.operator.kind=scripted",)):
        with pytest.raises(
            RecipeError,
            match="expected keyboard for robot 'franka_fr3', which is real.*teleop",
        ):
            graph(tmp_path, "station.robot=franka_fr3", *overrides)
    assert "operator" not in graph(tmp_path, "station.robot=franka_fr3", KEYBOARD)
    with pytest.raises(
        RecipeError, match="expected one of gamepad, joy, .*got 'keybord' .did you mean 'keyboard'"
    ):
        graph(tmp_path, "station.operator.kind=keybord")


def test_the_death_of_the_supervisor_takes_its_children_along(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from rlinf_core.launch.supervisor import "
        "Supervisor\n"
        "s = Supervisor(Path(sys.argv[1]), 91)\n"
        "print(s.run('x', [sys.executable, '-c', 'import time; time.sleep(60)'], "
        "'respawn').popen.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    end = time.time() + 5
    while time.time() < end and os.path.exists(f"/proc/{child}") and "Z" not in _state(child):
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}") or "Z" in _state(child)


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_one_machine_runs_a_station_once(tmp_path):
    with only_station("twin", 31):
        error = rf"is already running in ROS_DOMAIN_ID 31.* process {os.getpid()} of .*domain_id"
        with pytest.raises(RlinfError, match=error), only_station("twin", 31):
            pass
        with only_station("twin", 32), only_station("other", 31):
            pass
    with only_station("twin", 31):
        pass


def test_no_file_of_another_user_keeps_a_station_from_starting_or_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = tmp_path / "of_somebody"
    # the names of versions before
    for name in (
        "rlinf-33-twin.lock",
        "rlinf-33-twin.interlock.lock",
    ):
        (tmp_path / name).symlink_to(target)
    with only_station("twin", 33):
        pass
    assert not target.exists()


def test_a_station_whose_lock_the_machine_does_not_grant_is_refused(monkeypatch):
    def none_left(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("rlinf_core.launch.supervisor.acquire", none_left)
    error = "cannot check whether it is already running: .*Too many"
    with pytest.raises(RlinfError, match=error), only_station("twin", 33):
        pass


def test_a_task_that_nobody_can_show_needs_a_person(tmp_path):
    task = tmp_path / "task.yaml"
    task.write_text(
        re.sub("(?m)^script: .*$", "", Path("configs/tasks/peg_insertion.yaml").read_text())
    )
    with pytest.raises(
        RecipeError,
        match="script: expected in the task's file 'script: .*', one of insertion, joints",
    ):
        graph(tmp_path, f"station.task={task}")
    assert "operator" not in graph(tmp_path, f"station.task={task}", KEYBOARD)


def test_every_text_among_the_parameters_is_read_as_one(tmp_path):
    """ROS's parser takes some for numbers and truth values, which PyYAML does not quote: a hash of
    limits may be one.
    """
    parameters = {
        "limits_hash": "123456789e12",
        "station": "y",
        "arms": ["x", "nan"],
        "empty": "",
        "rows": [0, 1],
        "on": True,
        "colon": "a: b\nc",
    }
    path = supervising.parameters_file(
        Process("one", "rlinf", "one", "one", "/one", parameters), tmp_path / "params"
    )
    assert yaml.safe_load(path.read_text()) == {"/**": {"ros__parameters": parameters}}
    values = [node for node in yaml.compose(path.read_text()).value[0][1].value[0][1].value]
    texts = [
        text_node
        for _, node in values
        for text_node in (node.value if isinstance(node, yaml.SequenceNode) else [node])
        if text_node.tag.endswith(":str")
    ]
    assert len(texts) == 6 and all(text_node.style == '"' for text_node in texts)


def test_no_twin_speaks_by_the_names_of_an_arm_that_is_named_the_same_at_every_station(tmp_path):
    """ur_robot_driver has global names; those of a Franka are below the station's name."""
    twin, real = (
        {*robot.topics.values(), robot.controller.topic}
        - {"/robot_description"}  # a twin has its urdf
        for robot in map(load_robot, ("ur5e_twin", "ur5e"))
    )
    assert len(twin) == len(real) and {f"/ur_twin{topic}" for topic in real} == twin


def test_the_topic_by_which_a_controller_of_the_robots_own_is_told_is_watched(tmp_path):
    assert graph(tmp_path)["interlock"].parameters["follows"] == ""
    processes = graph(
        tmp_path,
        "station.robot=ur5e",
        "station.task=ur5e_reach",
        KEYBOARD,
        "station.lockstep=false",
    )
    assert (
        processes["interlock"].parameters["follows"]
        == processes["controller"].parameters["topic"]
        != ""
    )


def hosted(tmp_path, *overrides, change=lambda process: process):
    """Processes by name, as a station's launcher starts them, and what one process hosts."""
    recipe = load_recipe("demo", overrides)
    processes = compose(recipe, list(map(change, station_processes(recipe, tmp_path))))
    return [process.name for process in processes], {
        node.name for process in processes for node in process.nodes
    }


LOCKSTEP_NODES = {"sim_bridge", "interlock", "environment", "policy", "operator", "recorder"}


def test_nodes_of_a_simulated_station_share_one_process(tmp_path, monkeypatch):
    monkeypatch.delenv("RMW_IMPLEMENTATION", raising=False)
    assert hosted(tmp_path, "station.name=lab") == (["station", "uplink"], LOCKSTEP_NODES)
    recipe = load_recipe("demo", ["station.name=lab"])
    processes = station_processes(recipe, tmp_path)
    station = compose(recipe, processes)[0]
    assert station == Process(
        "station",
        "rlinf_station",
        "station",
        "rlinf_station.station_process",
        "/lab",
        nodes=tuple(process for process in processes if process.name != "uplink"),
    )
    remote = "station.policy={backend: remote, address: 'ws://a:1'}"
    assert hosted(tmp_path, remote) == (
        ["station", "policy", "uplink"],
        LOCKSTEP_NODES - {"policy"},
    ), "an answer that takes its time stops no node"

    def at_a_terminal(process):
        return replace(process, terminal=process.name == "operator")

    assert hosted(tmp_path, change=at_a_terminal) == (
        ["station", "operator", "uplink"],
        LOCKSTEP_NODES - {"operator"},
    )
    one = [process for process in processes if process.name == "interlock"]
    assert compose(recipe, one) == one, "one node needs no host"
    two = [process for process in processes if process.name in ("interlock", "recorder")]
    assert [process.name for process in compose(recipe, two)] == ["station"]


@pytest.mark.parametrize(
    "overrides, middleware, shared",
    [
        ([], "", True),
        ([], "rmw_fastrtps_cpp", True),
        ([], "rmw_zenoh_cpp", False),
        (["station.processes=one"], "rmw_zenoh_cpp", True),
        (["station.processes=several"], "", False),
        (["station.lockstep=false"], "", False),
        (["station.robot=franka_twin"], "", False),
    ],
)
def test_whether_a_station_is_one_process(tmp_path, monkeypatch, overrides, middleware, shared):
    monkeypatch.setenv("RMW_IMPLEMENTATION", middleware)
    names, nodes = hosted(tmp_path, *overrides)
    assert ("station" in names, bool(nodes)) == (shared, shared)


@pytest.mark.parametrize("overrides", [["station.lockstep=false"], ["station.robot=franka_twin"]])
def test_a_station_in_real_time_is_never_one_process(tmp_path, overrides):
    with pytest.raises(RecipeError, match="station.processes: expected several or auto .*got one"):
        hosted(tmp_path, "station.processes=one", *overrides)


def test_a_lifecycle_manager_brings_up_first_who_measures_and_last_who_commands(tmp_path):
    overrides = ["station.robot=franka_twin_devices", KEYBOARD, "station.web.port=8080"]
    recipe = load_recipe("demo", overrides)
    processes = station_processes(recipe, tmp_path)
    manager, *nodes = with_lifecycle_manager(recipe, processes)
    assert (manager.name, manager.module, manager.package) == (
        "lifecycle_manager",
        "rlinf_station.lifecycle_manager",
        "rlinf_station",
    )
    assert manager.parameters == {
        "node_names": [
            *("driver", "camera/wrist/camera", "interlock", "recorder", "uplink", "policy"),
            *("environment", "operator"),
        ]
    }
    waiting = {process.name for process in nodes if process.parameters.get("autostart") is False}
    assert waiting == {process.name for process in processes} - {"twin", "page"}
    assert [
        replace(process, parameters=process.parameters | {"autostart": False})
        if process.name in waiting
        else process
        for process in processes
    ] == nodes, "nothing else is changed"


def test_a_lifecycle_manager_knows_the_nodes_in_one_process_and_a_composed_policy(tmp_path):
    recipe = load_recipe("demo", [COMPOSED, "station.name=lab"])
    manager, station, uplink = with_lifecycle_manager(
        recipe, compose(recipe, station_processes(recipe, tmp_path))
    )
    assert manager.parameters["node_names"] == [
        *("interlock", "recorder", "uplink", "policy", "environment", "operator")
    ]
    assert {node.name for node in station.nodes if node.parameters.get("autostart") is False} == {
        *("interlock", "environment", "operator", "recorder")
    }
    assert uplink.parameters["autostart"] is False and "autostart" not in station.parameters


def test_a_driver_of_another_package_is_not_managed_and_each_arm_is_named(tmp_path):
    recipe = load_recipe("demo", ["station.robot=two_franka_sim", "station.task=reach_both"])
    names = with_lifecycle_manager(recipe, station_processes(recipe, tmp_path))[0].parameters[
        "node_names"
    ]
    assert names[:2] == ["left/interlock", "right/interlock"]
    other = Process(
        "driver", "mine", "driver", "rlinf_drivers.driver", "/station_a", {"module": "a"}
    )
    manager, same = with_lifecycle_manager(recipe, [other])
    assert manager.parameters["node_names"] == [] and same == other


def test_director_and_trainer_of_a_run(tmp_path):
    director = director_process(load_recipe("demo", ["station.name=lab"]), tmp_path)
    assert director == Process(
        "director",
        "rlinf_station",
        "director",
        "rlinf_station.director",
        "/lab",
        {"plan_file": f"{tmp_path}/plan.json", "run_dir": str(tmp_path)},
        (("/clock", "/lab/clock"),),
        ONCE,
    )
    trainer = trainer_process(tmp_path)
    assert (trainer.name, trainer.stop_s, trainer.restart) == ("trainer", 30.0, RESPAWN)
    recipe = str(tmp_path / "recipe.yaml")
    assert trainer.parameters == {
        "command": [
            *(sys.executable, "-m", "rlinf_core.cli.trainer", recipe, "--out", str(tmp_path))
        ]
    }


def test_a_plan_holds_the_phases_of_the_recipe_with_the_scenes_of_its_seed(tmp_path):
    overrides = ["collect.episodes=9", "collect.first_seed=1", "evaluate.first_seed=5"]
    recipe = load_recipe("demo", [*overrides, "online.first_seed=2", "seed=3"])
    write_plan(recipe, tmp_path / "a/b", episodes=4, share=9)
    plan = json.loads((tmp_path / "a/b/plan.json").read_text())
    collect, online, evaluate = (plan.pop(phase) for phase in ("collect", "online", "evaluate"))
    assert plan == {} and (collect["episodes"], collect["share"]) == (4, 9)
    assert online["first_seed"] - collect["first_seed"] == 1 and collect["first_seed"] > 1
    assert (collect["first_seed"], online["first_seed"]) == (recipe.scene(1), recipe.scene(2))
    assert evaluate["first_seed"] == 5, "every seed is evaluated on the same scenes"
    assert evaluate["control_hz"] == 10.0 and online["request_episodes"] == 10
    write_plan(recipe, tmp_path / "a/b")
    assert json.loads((tmp_path / "a/b/plan.json").read_text())["collect"]["episodes"] == 9


HAND, PAGE = KEYBOARD, "station.web.port=8080"


@pytest.mark.parametrize(
    "overrides, terminal, with_page, here, operator",
    [
        ([HAND], True, False, True, True),
        ([HAND], False, False, False, False),
        ([HAND, PAGE], True, False, False, True),
        ([HAND, PAGE], True, True, True, True),
        ([], True, True, False, True),
    ],
)
def test_who_reads_the_devices_while_demonstrations_are_collected(
    tmp_path, overrides, terminal, with_page, here, operator
):
    recipe = load_recipe("demo", [*overrides, "station.processes=several"])
    processes = collect_processes(
        recipe, tmp_path, DemonstrationStats(), terminal, with_page=with_page
    )
    by_name = {process.name: process for process in processes}
    assert list(by_name)[-1] == "director" and len(by_name) == len(processes)
    assert not by_name.keys() & {"policy", "uplink"}
    assert ("operator" in by_name) == operator
    assert [name for name, process in by_name.items() if process.terminal] == ["operator"] * here


@pytest.mark.parametrize("overrides, person", [([], False), ([HAND], True)])
def test_a_plan_to_collect_ends_with_the_last_demonstration_that_succeeds(
    tmp_path, overrides, person
):
    """Also if the recipe itself is of recordings alone, which counts attempts."""
    recipe = load_recipe("demo", [*overrides, "collect.episodes=9", "collect.no_training=true"])
    before = DemonstrationStats(succeeded=4, next_seed=17)
    collect_processes(recipe, tmp_path, before, terminal=False)
    collect = json.loads((tmp_path / "plan.json").read_text())["collect"]
    assert collect == {
        "episodes": 5,
        "first_seed": 17,
        "no_training": False,
        "recordings": [],
        "ends": True,
        "person": person,
    }
    collect_processes(recipe, tmp_path, DemonstrationStats(), terminal=False)
    collect = json.loads((tmp_path / "plan.json").read_text())["collect"]
    assert (collect["episodes"], collect["first_seed"]) == (9, 10000)


@pytest.mark.parametrize(
    "overrides, faster",
    [
        ([HAND], True),
        ([], False),
        ([HAND, "station.real_time_factor=1.0"], False),
        ([HAND, "station.real_time_factor=0.5"], False),
        ([HAND, "station.real_time_factor=1.5"], True),
        ([HAND, "station.lockstep=false"], False),
        ([HAND, "station.robot=franka_fr3"], False),
    ],
)
def test_a_person_operates_no_simulator_that_is_faster_than_a_hand(tmp_path, overrides, faster):
    assert is_too_fast_for_person(load_recipe("demo", overrides)) is faster
    recipe, takes = load_collect_recipe("demo", overrides, tmp_path)
    assert not is_too_fast_for_person(recipe) and takes == DemonstrationStats()
    assert recipe.station.lockstep is (not faster and "station.lockstep=false" not in overrides), (
        "with a person it runs in real time"
    )
    assert load_collect_recipe("demo", overrides, tmp_path, 3)[0].collect.episodes == 3


@pytest.mark.parametrize(
    "robot, task, arm, name",
    [
        ("franka_fr3", "peg_insertion", "", "station_a"),
        ("ur5e", "ur5e_reach", "", "scaled_joint_trajectory_controller/joint_trajectory"),
        ("two_franka_sim", "reach_both", "left", "station_a/left"),
        ("franka_fr3_example", "reach", "", None),
    ],
)
def test_a_latch_has_the_name_of_the_topic_that_moves_the_arm(robot, task, arm, name):
    overrides = [f"station.robot={robot}", f"station.task={task}", KEYBOARD]
    recipe, robot = load_recipe("demo", overrides), load_robot(robot)
    named = name or robot.topics["target_pose"].strip("/")
    assert commanded_robot(recipe, robot, arm) == named


def test_a_script_takes_over_before_its_episode_is_over(tmp_path):
    script = "station.operator={{kind: scripted, takes_over: {}}}"
    graph(tmp_path, script.format(49))
    with pytest.raises(RecipeError, match="expected less than the 50 time steps .*peg.*, got 50"):
        graph(tmp_path, script.format(50))


@pytest.mark.parametrize(
    "robot, task, name",
    [("ur5e", "ur5e_reach", "arm/joints"), ("franka_fr3", "peg_insertion", "arm/pose")],
)
def test_a_latch_has_the_drivers_name_of_the_commanded_topic(robot, task, name):
    recipe = load_recipe("demo", [f"station.robot={robot}", f"station.task={task}", KEYBOARD])
    topics = {"target_joints": "/arm/joints", "target_pose": "/arm/pose"}
    renamed = load_robot(robot).but(controller=None, topics=topics)
    assert commanded_robot(recipe, renamed, "") == name


def test_a_twin_renders_no_camera_that_nobody_observes(tmp_path):
    twin = graph(tmp_path, "station.robot=franka_twin")["twin"]
    assert twin.parameters["cameras"] == [""]
