"""Grippers that a node of the station tells what to do, beside their twins and an interlock:
silence holds.
"""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, GripperWidth, SafetyState
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool, Trigger

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.grippers.gripper_command import Gripper
from rlinf_drivers import gripper_command, robotiq
from rlinf_ros import action_clients
from rlinf_ros.conversions import NS, to_ns
from rlinf_ros.qos import profile
from sim_bridges.twins.robotiq import Robotiq
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Arm, Lives, listen, start
from tests.ros.test_station_client import rlinf

pytest.importorskip("control_msgs.action", reason="rlinf messages builds control_msgs")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
ACTIVE, HOLD = 2, 3
OK, WARN, ERROR = b"\0", b"\1", b"\2"
SILENT = "silent:gripper/state"
LIMITS = (
    f"extends: {Path('robots/franka_fr3/limits.yaml').resolve()}\ngripper_width: "
    f"0.08\ngripper_speed: 0.2\n"
)


class Bench(Arm):
    """An arm that follows, whose gripper's process is fitted by each test."""

    def __init__(self, peer, folder):
        self.folder, self.grip, self.fitted, self.health, self.widths = folder, 0.0, (), None, []
        super().__init__(peer)
        peer.node.create_subscription(JointState, "gripper/state", self.widths.append, 10)
        peer.node.create_subscription(DiagnosticArray, "/diagnostics", self.on_health, 10)

    def on_health(self, array):
        self.health = next(
            (status for status in array.status if status.name == "station_a/gripper"), self.health
        )

    def send(self, *_, **__):
        self.seq += 1
        self.say["policy/action"].publish(
            ActionChunk(
                source="policy",
                session="policy",
                seq=self.seq,
                dt=0.1,
                control_mode="tcp_delta",
                horizon=1,
                dim=4,
                execute=1,
                data=[0.0, 0.0, 0.0, self.grip],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def fit(self, gripper, *processes):
        for name in self.fitted:
            child = self.peer.supervisor.children.pop(name)
            child.popen.terminate()
            child.popen.wait(20)
        (self.folder / "robot.yaml").write_text(
            f"driver: external\nlimits: limits.yaml\ngripper: {gripper}\n"
        )
        self.health, self.fitted = None, processes
        self.start(*processes)

    def start(self, *processes, **parameters):
        for name in processes:
            start(
                self.peer,
                name,
                f"station.robot={self.folder}",
                "station.lockstep=false",
                **parameters,
            )

    def width(self):
        return self.widths[-1].position[0] if self.widths else None

    def says(self, level, words):
        self.peer.spin(
            lambda: (
                self.health and (self.health.level, words in self.health.message) == (level, True)
            ),
            what=lambda: f"{words}: {self.health}",
        )

    def closes_to(self, width):
        self.grip = -0.02
        self.peer.spin(
            lambda: self.width() < width + 0.003, what=lambda: f"{width}, lately {self.width()}"
        )
        self.grip = 0.0

    def stands_still_while(self, what):
        before = self.widths[-1]
        what()
        self.reach(HOLD, SILENT)
        return before


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grippers")
    (folder / "limits.yaml").write_text(LIMITS)
    (folder / "robot.yaml").write_text("driver: external\nlimits: limits.yaml\n")
    with peer_in(folder, 179) as peer:
        bench = Bench(peer, folder)
        bench.start("interlock", estops=["pendant"], latch_file="")
        yield bench


def test_a_gripper_that_is_not_heard_is_told_nothing_and_one_that_begins_anew_goes_nowhere(bench):
    orders, width = listen(bench.peer, GripperWidth, "gripper/command"), [0.03]
    states = bench.peer.node.create_publisher(JointState, "gripper/state", profile("gripper/state"))
    begins = bench.peer.node.create_timer(
        0.02, lambda: states.publish(JointState(name=["width"], position=width))
    )
    bench.peer.spin(lambda: orders and abs(orders[-1].width - 0.03) < 1e-6, what="the width it has")
    begins.cancel()
    bench.peer.for_s(1.0)
    orders.clear()
    bench.peer.for_s(0.5)
    assert not orders
    width[0] = float("nan")
    begins.reset()
    bench.peer.for_s(0.5)
    assert not orders, "it is heard, and not known where it is"
    width[0] = 0.06
    bench.peer.spin(lambda: orders, what="an order")
    assert {round(order.width, 6) for order in orders} == {0.06}
    bench.peer.node.destroy_timer(begins)
    bench.peer.node.destroy_publisher(states)
    bench.widths.clear()


def test_a_robotiq_is_activated_by_a_person_and_holds_whenever_it_would_not_move(bench):
    twin, lives = Robotiq(bench.folder / "tty"), Lives(bench.peer)
    bench.fit(f"{{kind: robotiq, device: {twin.path}, width: 0.08, speed: 1.0}}", "gripper")
    bench.says(ERROR, "not activated since power-on. Keep clear of its fingers")
    assert not bench.widths and not bench.ask(bench.arming, SetBool.Request(data=True)).success
    activating = bench.peer.node.create_client(Trigger, "gripper/activate")
    assert "call /station_a/gripper/activate std_srvs/srv/Trigger)" in bench.health.message
    code, output = rlinf(bench.peer, "gripper", "activate", domain=179)
    assert code == 0 and output.startswith("the fingers open and close")
    bench.says(OK, "at the commanded position")
    assert (
        bench.width() == pytest.approx(0.08)
        and "is active" in bench.ask(activating, Trigger.Request()).message
    )
    bench.arm()
    bench.reach(ACTIVE)
    twin.execute("object 0.03")
    bench.closes_to(0.03)
    bench.says(OK, "holds something")

    bench.stands_still_while(twin.silent)
    bench.says(ERROR, "unplugged or silent: expected an answer of Robotiq gripper 9")
    twin.rest()
    bench.reach(ACTIVE)
    bench.stands_still_while(lambda: twin.execute("fault 14"))
    bench.says(ERROR, "fault 0x0E (overcurrent)")
    assert bench.ask(activating, Trigger.Request()).success
    bench.reach(ACTIVE)
    bench.stands_still_while(lambda: twin.execute("power 0"))
    twin.execute("power 1")
    bench.says(ERROR, "not activated since power-on")
    assert bench.ask(activating, Trigger.Request()).success
    bench.reach(ACTIVE)
    bench.stands_still_while(lambda: lives.change("gripper", "deactivate"))
    bench.says(WARN, "inactive")
    assert "is inactive" in bench.ask(activating, Trigger.Request()).message
    assert all(
        lives.change("gripper", transition) for transition in ("cleanup", "configure", "activate")
    )
    bench.reach(ACTIVE)
    log = (bench.folder / "logs/gripper.log").read_text()
    assert all(line.startswith("[") and "Traceback" not in line for line in log.splitlines()), log
    bench.ask(bench.arming, SetBool.Request(data=False))
    twin.unplug()


def test_a_gripper_command_that_is_not_answered_holds_until_it_is(bench):
    bench.fit(
        "{kind: gripper_command, joint: knuckle, states: /gripper/joints, open_at: 0.0, "
        "closed_at: 0.8, width: 0.08, timeout_s: 1.0, twin: true}",
        "gripper_twin",
        "gripper",
    )
    setting = bench.peer.node.create_client(SetParameters, "gripper_twin/set_parameters")

    def inject(name, **value):
        parameter = Parameter(name=name, value=ParameterValue(**value))
        assert (
            bench.ask(setting, SetParameters.Request(parameters=[parameter])).results[0].successful
        )

    bench.says(OK, "no command yet")
    bench.arm()
    bench.reach(ACTIVE)
    joints = listen(bench.peer, JointState, "gripper/state")
    inject("object_m", type=3, double_value=0.04)
    bench.closes_to(0.04)
    bench.says(OK, "stalled")
    assert joints[-1].name == ["gripper_opening"]
    inject("inject", type=4, string_value="no_answer")
    bench.grip = 0.02
    bench.reach(HOLD, SILENT)
    bench.grip = 0.0
    bench.says(ERROR, "gripper (no answer to move")
    last = to_ns(joints[-1].header.stamp)
    inject("inject", type=4, string_value="")
    bench.reach(ACTIVE)
    bench.peer.spin(lambda: to_ns(joints[-1].header.stamp) > last + NS // 5, what="its state again")
    bench.says(OK, "done")
    bench.stands_still_while(lambda: inject("inject", type=4, string_value="no_joint"))
    bench.says(ERROR, "no joint 'knuckle' on /gripper/joints")


def test_a_robotiq_that_closes_slowly_takes_what_it_is_told_and_nothing_holds(bench, tmp_path):
    bench.ask(bench.arming, SetBool.Request(data=False))
    slow = Parameter(name="limits.gripper_speed", value=ParameterValue(type=3, double_value=0.05))
    setting = bench.peer.node.create_client(SetParameters, "interlock/set_parameters")
    assert bench.ask(setting, SetParameters.Request(parameters=[slow])).results[0].successful
    twin = Robotiq(tmp_path / "slow_tty")
    bench.fit(f"{{kind: robotiq, device: {twin.path}, width: 0.08, speed: 1.0}}", "gripper")
    bench.says(ERROR, "not activated since power-on")
    assert bench.ask(
        bench.peer.node.create_client(Trigger, "gripper/activate"), Trigger.Request()
    ).success
    bench.says(OK, "at the commanded position")
    bench.arm()
    bench.reach(ACTIVE)
    before = len(bench.states)
    bench.closes_to(0.02)  # twice as long as an order may be left
    assert SILENT not in {state.cause for state in bench.states[before:]}
    assert "has not executed the command" not in (bench.folder / "logs/gripper.log").read_text()
    bench.ask(bench.arming, SetBool.Request(data=False))
    twin.unplug()


def test_an_activation_and_an_order_of_before_a_plug_went_are_of_another_time(monkeypatch):
    monkeypatch.setattr(robotiq, "Robotiq", lambda settings: settings)
    node = SimpleNamespace(
        status=object(),
        target=200,
        trouble_at=0.0,
        activation=threading.Event(),
        settings="its port",
    )
    node.activation.set()
    assert robotiq.RobotiqNode.open(node) == "its port"
    assert (
        not node.activation.is_set()
        and (node.status, node.target) == (None, None)
        and node.trouble_at > 0.0
    )


@pytest.mark.parametrize("position", [45.0, 100.0, -3.0, float("nan")])
def test_a_joint_in_other_units_is_not_heard_and_named(position):
    """Degrees or per cent, where the action takes 0 to 0.8 rad, would read as closed or as open."""
    widths, settings = [], Gripper(kind="gripper_command", joint="knuckle", open_at=0.8)
    commands = SimpleNamespace(width=0.04, fault="", last_result="", restart=lambda: None)
    node = SimpleNamespace(
        settings=settings,
        commands=commands,
        received_at=0.0,
        silent=False,
        implausible="",
        active=True,
        widths=SimpleNamespace(publish=widths.append),
    )
    gripper_command.GripperNode._on_states(node, JointState(name=["knuckle"], position=[position]))
    health = gripper_command.GripperNode._health(node)
    assert not widths and commands.width == 0.04 and node.received_at == 0.0
    assert (
        health.level == ERROR
        and f"gripper.open_at (0.8), got {position:g}. Is it in degrees" in health.message
    )
    gripper_command.GripperNode._on_states(node, JointState(name=["knuckle"], position=[0.41]))
    assert (
        round(widths[0].position[0], 4) == 0.0436
        and gripper_command.GripperNode._health(node).level == OK
    )


def test_a_gripper_that_comes_back_elsewhere_is_told_anew_where_it_is_wanted(monkeypatch):
    sent = []
    client = SimpleNamespace(
        server_is_ready=lambda: True,
        send_goal_async=lambda goal: (
            sent.append(goal.command.position) or SimpleNamespace(add_done_callback=lambda _: None)
        ),
    )
    monkeypatch.setattr(gripper_command, "ActionClient", lambda *_: client)
    for module in (action_clients, gripper_command):
        monkeypatch.setattr(module, "subscription", lambda *_: None)
    commands = gripper_command.GripperCommandClient(
        None, Gripper(kind="gripper_command", joint="knuckle", open_at=0.08)
    )

    def want(width):
        commands.restarted_at -= gripper_command.SETTLED_S
        commands._on_command(GripperWidth(width=width))
        commands.update()
        commands.update()

    commands.width = 0.08
    want(0.0)
    commands.finish_command(commands.number, "done")
    want(0.0)
    assert sent == [0.0], "once"
    commands.restart()  # after a silence it is heard again: its power was away, and it is open
    commands.update()
    assert sent == [0.0]
    want(0.0)
    assert sent == [0.0, 0.0]

    def silence():
        commands.pending_since -= commands.timeout_s
        commands.is_sent = True
        commands.update()

    silence()
    assert commands.fault.startswith("gripper (no answer to move 0.000")
    commands._on_safety(SafetyState(state=SafetyState.HOLD))
    silence()
    commands.update()
    assert sent == [0.0] * 3, "armed, it is told again"
    silence()
    commands._on_safety(SafetyState(state=SafetyState.DISARMED))
    assert not commands.fault and not commands.is_pending, "a person may be at the fingers"
    want(0.0)
    silence()
    assert commands.fault and len(sent) == 5
    commands.armed_at -= 1.0
    silence()
    assert not commands.is_pending and len(sent) == 5, "nor where the interlock is not heard"


def test_each_arm_has_a_gripper_of_its_own_below_its_name(tmp_path):
    (tmp_path / "limits.yaml").write_text(LIMITS)
    (tmp_path / "robot.yaml").write_text("""
driver: external
arms:
  left: {limits: limits.yaml, gripper: {kind: robotiq, device: /dev/left}}
  right: {limits: limits.yaml, gripper: {kind: gripper_command, joint: knuckle, open_at: 0.8, twin: true}}
""")
    recipe = load_recipe(
        "demo",
        [f"station.robot={tmp_path}", "station.task=reach_both", "station.operator.kind=keyboard"],
    )
    grippers = {
        node.name: (node.namespace, node.parameters["module"])
        for node in station_processes(recipe, tmp_path)
        if "gripper" in node.name
    }
    assert grippers == {
        "gripper_left": ("/station_a/left", "rlinf_drivers.robotiq"),
        "gripper_right": ("/station_a/right", "rlinf_drivers.gripper_command"),
        "gripper_twin_right": ("/station_a/right", "sim_bridges.twins.gripper_command"),
    }
