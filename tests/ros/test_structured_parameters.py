"""Structured settings as a node's parameters: typed, described, with ranges, in the order of the
file; JSON is refused.
"""

import pytest
import rclpy
from rcl_interfaces.msg import ParameterType

from rlinf_core.core.errors import RlinfError
from rlinf_core.launch.graph import _settings, station_processes
from rlinf_core.launch.supervisor import parameters_file
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.drivers.franka import Driver
from rlinf_core.robots.operators import settings_of
from rlinf_core.specs.arrays import StationSpec
from rlinf_ros.station_node import StationNode

pytestmark = [pytest.mark.ros, pytest.mark.domain(164)]


@pytest.fixture
def make_node():
    context, nodes = rclpy.Context(), []
    rclpy.init(context=context, domain_id=164)

    def make(*arguments):
        nodes.append(
            StationNode(
                "parameters", context=context, cli_args=["--ros-args", *map(str, arguments)]
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.try_shutdown(context=context)


def process_of(recipe, name, folder):
    return next(
        process
        for process in station_processes(load_recipe(recipe), folder)
        if process.name == name
    )


def test_a_drivers_settings_are_typed_described_and_read_only(make_node, tmp_path):
    process = process_of("franka_twin", "driver", tmp_path)
    node = make_node("--params-file", parameters_file(process, tmp_path))
    assert node.declare_settings("settings", Driver) == load_driver("franka_twin")
    about = node.describe_parameter("settings.hand_speed")
    (bounds,) = about.floating_point_range
    assert (bounds.from_value, bounds.to_value, about.read_only) == (0.0, 0.2, True)
    assert about.description == Driver.model_fields["hand_speed"].description
    assert (
        node.describe_parameter("settings.broadcasters").type
        == ParameterType.PARAMETER_STRING_ARRAY
    )
    assert node.describe_parameter("settings.hand").type == ParameterType.PARAMETER_BOOL


def load_driver(recipe):
    from rlinf_core.recipes.station import station_robot

    return station_robot(load_recipe(recipe)).driver_node


def test_specs_and_joints_arrive_as_they_were(make_node, tmp_path):
    recorder, environment = (
        process_of("ur5e_twin", name, tmp_path) for name in ("recorder", "environment")
    )
    specs = make_node("--params-file", parameters_file(recorder, tmp_path)).declare_structure(
        "specs"
    )
    node = make_node("--params-file", parameters_file(environment, tmp_path))
    joints, axes = map(node.declare_structure, ("joints", "axes"))
    from rlinf_core.recipes import station_task

    assert StationSpec.from_dict(specs).hash == station_task(load_recipe("ur5e_twin")).spec.hash
    assert (
        joints["joint_states"][:2] == ["shoulder_pan_joint", "shoulder_lift_joint"]
        and axes["wrench"]["tool"] is True
    )


def test_servos_keep_their_order_and_one_value_is_set_on_the_command_line(make_node, tmp_path):
    leader = settings_of("leader").from_document(
        {
            "kind": "leader",
            "device": "/dev/a",
            "joints": {"shoulder": {"id": 3}, "base": {"id": 1}, "elbow": {"id": 2}},
        }
    )
    operator = process_of("demo", "operator", tmp_path)
    operator.parameters["settings"] = _settings(leader)
    node = make_node(
        "--params-file", parameters_file(operator, tmp_path), "-p", "settings.scale:=0.5"
    )
    document = node.declare_structure("settings", lambda document: settings_of(document["kind"]))
    assert list(document["joints"]) == ["shoulder", "base", "elbow"] and document["scale"] == 0.5
    meaning = settings_of("leader").model_fields["deadband"].description
    assert node.describe_parameter("settings.deadband").description == meaning


def test_json_as_it_was_written_before_is_refused_with_the_new_form(make_node):
    node = make_node("-p", 'settings:=\'{"kind": "joy"}\'')
    with pytest.raises(
        RlinfError,
        match=r"parameter settings: expected parameters settings.KEY, one for each value.*"
        r"Write them below settings:.*-p settings.KEY:=VALUE",
    ):
        node.declare_structure("settings")


@pytest.mark.parametrize(
    "argument, error",
    [
        (
            "settings.hand_sped:=0.1",
            "parameters: settings: unknown key 'hand_sped' (did you mean 'hand_speed'?)",
        ),
        (
            "settings.hand_speed:=9.0",
            "parameters: settings: 'hand_speed': expected at most 0.2, got float 9.0",
        ),
        ("settings.hand:=7", "parameters: settings: 'hand': expected true or false, got int 7"),
    ],
)
def test_what_a_setting_cannot_be_is_said_in_a_line(make_node, argument, error):
    with pytest.raises(RlinfError) as raised:
        make_node("-p", argument).declare_settings("settings", Driver)
    assert str(raised.value).startswith(error)


def test_a_structure_that_nobody_gives_is_empty(make_node):
    assert make_node().declare_structure("home") == {}
