"""Arguments of ROS's launch: their meaning, and refusals by name that write nothing."""

import json
import socket

import pytest

from rlinf_core.cli.launch_arguments import (
    launch_environment,
    overrides_of,
    parse_file,
    prepare_launch,
    ros_options,
)
from rlinf_core.config.overrides import apply_override
from rlinf_core.config.yaml_source import Document
from rlinf_core.core.errors import RecipeError
from rlinf_core.launch.graph import compose, station_processes
from rlinf_core.recipes import load_recipe, recipe_yaml

NOTHING = dict.fromkeys(
    [
        "robot",
        "namespace",
        "lockstep",
        "operator",
        "policy",
        "trainer",
        "credentials",
        "token",
        "web",
        "use_sim_time",
        "set",
        "params_file",
        "log_level",
    ],
    "",
)


def arguments(tmp_path, **others):
    defaults = {"recipe": "demo", "director": "false", "managed": "false", "episodes": "0"}
    return NOTHING | defaults | {"run_dir": str(tmp_path / "run")} | others


def meant(**others):
    document = Document({})
    for text in overrides_of(NOTHING | others):
        apply_override(document, text)
    return document.data


def test_arguments_that_say_nothing_change_nothing():
    assert overrides_of(NOTHING) == []


def test_a_path_may_have_any_sign(tmp_path):
    odd = tmp_path / "it's (mine), too é"
    document = meant(
        robot=f"{odd}/arm",
        credentials=str(odd),
        token=f"{odd}/t",
        policy="remote://host:8000",
        operator=f"{odd}/pad.py:Pad",
    )
    assert document["bridge"]["token_file"] == f"{odd}/t"
    assert (document["station"]["robot"], document["bridge"]["credentials"]) == (
        f"{odd}/arm",
        str(odd),
    )
    assert document["station"]["policy"] == {"backend": "remote", "address": "ws://host:8000"}
    assert document["station"]["operator"] == {"kind": f"{odd}/pad.py:Pad"}


@pytest.mark.parametrize(
    "robot, name", [("sim", "franka_sim"), ("franka", "franka_fr3"), ("ur5e", "ur5e")]
)
def test_others_are_what_they_say(robot, name):
    document = meant(robot=robot, namespace="b", lockstep="false", web="8080", operator="keyboard")
    assert document == {
        "station": {
            "robot": name,
            "name": "b",
            "lockstep": False,
            "web": {"port": 8080},
            "operator": {"kind": "keyboard"},
        }
    }


@pytest.mark.parametrize(
    "trainer, host, port",
    [
        ("[::1]:50551", "[::1]", 50551),
        ("gpu-1.local:7", "gpu-1.local", 7),
        ("10.0.0.1:50551", "10.0.0.1", 50551),
    ],
)
def test_a_trainer_has_a_host_and_a_port(trainer, host, port):
    assert meant(trainer=trainer)["bridge"] == {"host": host, "port": port}


@pytest.mark.parametrize(
    "argument, value",
    [
        *(
            ("trainer", address)
            for address in (
                "gpu",
                "[::1]",
                "::1:50551",
                "gpu:",
                ":1",
                "http://gpu:1",
                "a b:1",
                "gpu:x",
            )
        ),
        ("episodes", "x"),
        ("episodes", "-1"),
        ("episodes", ""),
        ("episodes", "1.5"),
        ("web", "yes"),
        ("run_dir", ""),
        ("run_dir", "~nobody_x/run"),
        ("policy", "gpu:8000"),
        ("policy", "remote://"),
        ("robot", "~nobody_x/arm"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(tmp_path, monkeypatch, argument, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=f"^{argument}: expected "):
        prepare_launch(arguments(tmp_path, **{argument: value}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value, reason", [("", "got an empty name"), ("gone/x.json", "got gone/x.json")]
)
def test_a_file_that_cannot_be_written_is_refused_by_its_name(tmp_path, monkeypatch, value, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RecipeError,
        match=f"^json: expected a file in an existing, writable folder.*, {reason}",
    ):
        parse_file("json", value)
    assert str(parse_file("json", "drill.json")) == "drill.json"


@pytest.mark.parametrize("episodes, director", [("0", "false"), ("0", "true"), ("3", "false")])
def test_what_runs_is_written_down(tmp_path, episodes, director):
    launch = prepare_launch(arguments(tmp_path, episodes=episodes, director=director))
    names = [node.name for process in launch.processes for node in process.nodes or (process,)]
    assert (tmp_path / "run/recipe.yaml").read_text() == recipe_yaml(launch.recipe)
    assert (
        ("director" in names)
        == (tmp_path / "run/plan.json").exists()
        == (director == "true" or episodes == "3")
    )
    assert ("policy" in names) == (episodes == "0") and launch.episode_count == int(episodes)
    if episodes == "3":
        assert json.loads((tmp_path / "run/plan.json").read_text())["collect"]["episodes"] == 3
    elif director == "false":
        recipe = load_recipe("demo")
        assert launch.processes == compose(recipe, station_processes(recipe, tmp_path / "run"))


@pytest.mark.parametrize("processes", ["one", "several"])
def test_managed_nodes_wait_for_the_lifecycle_manager(tmp_path, processes):
    launch = prepare_launch(
        arguments(tmp_path, managed="true", set=f"station.processes={processes}")
    )
    manager, *others = launch.processes
    nodes = [node for process in others for node in process.nodes or (process,)]
    assert manager.name == "lifecycle_manager" and manager.parameters["node_names"] == [
        "interlock",
        "recorder",
        "uplink",
        "policy",
        "environment",
        "operator",
    ]
    waiting = {node.name for node in nodes if node.parameters.get("autostart") is False}
    assert waiting == set(manager.parameters["node_names"]) and {
        node.name for node in nodes
    } - waiting == {"sim_bridge"}


@pytest.mark.parametrize("episodes", ["0", "3"])
@pytest.mark.parametrize(
    "others", [{"robot": "franka", "operator": "scripted"}, {"credentials": "/not/there"}]
)
def test_what_is_refused_writes_nothing(tmp_path, episodes, others):
    with pytest.raises(
        Exception, match="station.operator.kind: expected keyboard|bridge.credentials: expected"
    ):
        prepare_launch(arguments(tmp_path, episodes=episodes, director="true", **others))
    assert not (tmp_path / "run").exists()


def test_a_person_arms_a_real_arm(tmp_path):
    launch = prepare_launch(arguments(tmp_path, robot="franka"))
    assert (
        launch.recipe.station.operator.kind == "keyboard"
        and "station.operator={kind: keyboard}" in launch.overrides
    )


@pytest.mark.parametrize(
    "station_text, kind",
    [("{}", "keyboard"), ("{operator: {kind: spacemouse, scale: 0.5}}", "spacemouse")],
)
def test_a_person_has_the_device_of_the_recipe(tmp_path, station_text, kind):
    """``collect.launch.py`` requests a person in the same way."""
    (tmp_path / "mine.yaml").write_text(f"name: mine\nstation: {station_text}\n")
    launch = prepare_launch(
        arguments(tmp_path, recipe=str(tmp_path / "mine.yaml"), operator="person", episodes="2")
    )
    assert launch.recipe.station.operator.kind == kind
    assert kind == "keyboard" or launch.recipe.station.operator.scale == 0.5


@pytest.mark.parametrize(
    "station, others, lockstep, factor",
    [
        ("{real_time_factor: 1.0}", {}, True, 1.0),
        ("{}", {}, True, 0.0),
        ("{lockstep: false}", {}, False, 0.0),
        ("{real_time_factor: 1.0}", {"operator": "person"}, True, 1.0),
        ("{real_time_factor: 1.0}", {"operator": "person", "episodes": "2"}, True, 1.0),
        ("{real_time_factor: 5.0}", {"operator": "person"}, False, 0.0),
        ("{}", {"operator": "person"}, False, 0.0),
        ("{}", {"operator": "person", "lockstep": "true"}, True, 0.0),
        ("{}", {"use_sim_time": "false"}, False, 0.0),
        ("{}", {"set": "station.real_time_factor=0.5 seed=3"}, True, 0.5),
    ],
)
def test_the_recipe_decides_on_simulated_time_unless_an_argument_does(
    tmp_path, station, others, lockstep, factor
):
    (tmp_path / "mine.yaml").write_text(f"defaults: demo\nname: mine\nstation: {station}\n")
    recipe = prepare_launch(
        arguments(tmp_path, recipe=str(tmp_path / "mine.yaml"), **others)
    ).recipe
    assert (recipe.station.lockstep, recipe.station.real_time_factor) == (lockstep, factor)


def test_ros_options_are_for_every_node(tmp_path):
    (tmp_path / "more.yaml").write_text("/**: {ros__parameters: {seed: 3}}\n")
    assert ros_options(NOTHING) == {}
    assert ros_options(
        NOTHING | {"params_file": str(tmp_path / "more.yaml"), "log_level": "debug"}
    ) == {"parameters": [str(tmp_path / "more.yaml")], "ros_arguments": ["--log-level", "debug"]}
    with pytest.raises(
        RecipeError, match="^params_file: expected a YAML file of ROS parameters, got '.*gone.yaml'"
    ):
        ros_options(NOTHING | {"params_file": str(tmp_path / "gone.yaml")})
    with pytest.raises(
        RecipeError, match="^use_sim_time: expected the value of lockstep, which is 'true'"
    ):
        overrides_of(NOTHING | {"lockstep": "true", "use_sim_time": "false"})


@pytest.mark.parametrize(
    "text, names",
    [
        ("/**: {ros__parameters: {limits.speed: 0.1}}", "limits.speed"),
        ("/a/interlock: {ros__parameters: {limits: {speed: 0.1, jerk: 2}}}", "limits.jerk, lim"),
        ("a: {interlock: {ros__parameters: {limits: 3, seed: 3}}}", "limits"),
    ],
)
def test_limits_in_a_file_of_ros_parameters_are_refused_by_name(tmp_path, text, names):
    """No node reads them there, so the arm would have the limits of its robot."""
    (tmp_path / "more.yaml").write_text(text)
    with pytest.raises(RecipeError, match=f"^params_file: '.*more.yaml' sets {names}") as refusal:
        ros_options(NOTHING | {"params_file": str(tmp_path / "more.yaml")})
    assert "rlinf param set interlock limits" in str(refusal.value)


@pytest.mark.parametrize("text", ["a: {ros__parameters: {no_limits: 3}}", "limits.speed: 3", ""])
def test_other_parameters_are_passed_on(tmp_path, text):
    (tmp_path / "more.yaml").write_text(text)
    assert ros_options(NOTHING | {"params_file": str(tmp_path / "more.yaml")})


def test_a_file_of_ros_parameters_that_is_no_yaml_is_refused_by_name(tmp_path):
    (tmp_path / "more.yaml").write_text("a: [")
    with pytest.raises(RecipeError, match="^params_file: expected a YAML file of ROS parameters"):
        ros_options(NOTHING | {"params_file": str(tmp_path / "more.yaml")})


def test_a_page_whose_port_is_anothers_is_refused_before_anything_is_written(tmp_path):
    taken = "station.web.port: expected a free port"
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(RecipeError, match=taken):
        prepare_launch(arguments(tmp_path, web=str(other.getsockname()[1])))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "robot, shell, alone",
    [
        ("franka_sim", None, True),
        ("franka_twin", None, True),
        ("franka_fr3", None, False),
        ("franka_sim", "SUBNET", False),
    ],
)
def test_a_station_without_hardware_is_heard_on_this_machine_alone(
    monkeypatch, robot, shell, alone
):
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    if shell:
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", shell)
    environment = launch_environment(load_recipe("demo", [f"station.robot={robot}"]))
    assert environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") == ("LOCALHOST" if alone else None)
    assert environment["ROS_DOMAIN_ID"].isdecimal()
