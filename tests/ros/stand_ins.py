"""Stand-ins for the tests of nodes: a robot side, a policy and people."""

import math

from geometry_msgs.msg import PoseStamped, WrenchStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rlinf_msgs.msg import ActionChunk, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import to_ns
from rlinf_ros.qos import profile, publisher
from tests.ports import NO_TRAINER

STUCK = 100  # consecutive states with a fault, ten a second


def start(peer, name, *overrides, **parameters):
    """Start a node of the demo's station; the test replaces all other nodes."""
    recipe = load_recipe("demo", ["station.operator.kind=keyboard", NO_TRAINER, *overrides])
    process = next(p for p in station_processes(recipe, peer.supervisor.run_dir) if p.name == name)
    defaults = {
        "environment": {"person": False},  # the test acts without being asked
        "interlock": {
            "lockstep_guard_s": 5.0,  # a busy machine may delay an answer by a second
            "driver": "driver" in peer.supervisor.children,  # otherwise the test is the robot side
        },
    }.get(name, {})
    if name.startswith("interlock_"):  # the interlock of one of several arms
        defaults = {"lockstep_guard_s": 5.0}
    if (
        process.executable == "interlock"
        and "estops" not in parameters
        and process.parameters["estops"] == [""]
    ):
        defaults["no_estop_reason"] = "the test is no robot"
    process.parameters.update(defaults | parameters)
    peer.supervisor.start(process)
    return station_task(recipe).spec


def listen(peer, kind, topic, qos=profile):
    """Return a list that receives the messages of a topic; ``qos=witnessed`` loses none."""
    got = []
    peer.node.create_subscription(kind, topic, got.append, qos(topic))
    return got


class Lives:
    """Clients of the life cycle of a station's nodes.

    Args:
        peer: the test's node and processes.
    """

    def __init__(self, peer):
        self.peer, self.clients = peer, {}

    def ask(self, kind, node, service, **request):
        name = f"{node}/{service}"
        if name not in self.clients:
            self.clients[name] = self.peer.node.create_client(kind, name)
        client = self.clients[name]
        self.peer.spin(client.service_is_ready, what=f"{node}/{service}")
        future = client.call_async(kind.Request(**request))
        self.peer.spin(future.done, what=f"the answer of {node}/{service}")
        return future.result()

    def change(self, node, transition):
        """Return whether a transition, e.g. ``deactivate``, succeeded."""
        number = getattr(Transition, f"TRANSITION_{transition.upper()}")
        return self.ask(ChangeState, node, "change_state", transition=Transition(id=number)).success

    def state(self, node):
        return self.ask(GetState, node, "get_state").current_state.id


class Arm:
    """A perfectly following FR3 at 100 Hz, a policy at 10 Hz, an enable and one e-stop source.

    ``streams`` is False where a test sends its own chunks; ``publishes_state`` is False while the
    arm is silent.
    """

    topics = {}  # the driver's names of topics, if they differ
    commanded = PoseStamped, "target_pose"

    def __init__(self, peer, streams=True):
        self.peer, self.seq, self.streams = peer, 0, streams
        self.pressed = False
        self.estop_publishes = True
        self.enabled = True
        self.publishes_state = True
        kind, name = self.commanded
        self.states, self.targets = listen(peer, SafetyState, "safety"), []
        peer.node.create_subscription(
            kind, self.topics.get(name, name), self.targets.append, profile(name)
        )
        self.say = {
            topic: publisher(peer.node, topic, at=self.topics.get(topic, topic))
            for topic in (
                "estop/pendant",
                "enable",
                "current_pose",
                "policy/action",
                "teleop/action",
                "wrench",
                "joint_states",
            )
        }
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        self.clearing = peer.node.create_client(ResetFault, "interlock/reset_fault")
        self.wrench = WrenchStamped()
        self.felt = True
        self.stand()
        peer.node.create_timer(0.1, self.ten_hertz)
        peer.every(0.01, self.hundred_hertz)

    def stand(self):
        """Set the initial place of the arm."""
        self.joints = JointState(
            name=[f"fr3_joint{number}" for number in range(1, 8)],
            position=[0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785],
        )
        self.pose = PoseStamped()
        self.pose.header.frame_id = "base_link"
        self.pose.pose.position.x = 0.5
        self.pose.pose.position.z = 0.2
        self.pose.pose.orientation.x = 1.0
        self.pose.pose.orientation.w = 0.0

    def hundred_hertz(self):
        self.pose.header.stamp = self.peer.node.get_clock().now().to_msg()
        if self.targets:
            self.obey(self.targets[-1])
        if self.publishes_state:
            self.say["current_pose"].publish(self.pose)
            self.say["joint_states"].publish(self.joints)
        if self.felt:
            self.say["wrench"].publish(self.wrench)
        if self.estop_publishes:
            self.say["estop/pendant"].publish(Bool(data=self.pressed))
        self.say["enable"].publish(Bool(data=self.enabled))

    def obey(self, target):
        self.pose.pose = self.follow(target.pose)

    def follow(self, target):
        """Return the place of the arm after a motion."""
        return target

    def ten_hertz(self):
        if self.streams:
            self.send(0.0, 0.0, 0.001)

    def send(self, x, y=0.0, z=0.0, source="policy", dt=0.1, **fields):
        self.seq += 1
        self.say["teleop/action" if source == "operator" else "policy/action"].publish(
            ActionChunk(
                source=source,
                session=source,
                seq=self.seq,
                dt=dt,
                control_mode="tcp_delta",
                horizon=1,
                dim=3,
                execute=1,
                data=[x, y, z],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
                **fields,
            )
        )

    @property
    def x(self):
        return self.targets[-1].pose.position.x

    def ask(self, client, request):
        self.peer.spin(client.service_is_ready, what="the interlock's services")
        future = client.call_async(request)
        self.peer.spin(future.done, what="the answer")
        self.answered = future.result()
        return self.answered

    def arm(self, value=True):
        self.peer.spin(lambda: self.targets, what="targets")
        self.peer.spin(
            lambda: self.ask(self.arming, SetBool.Request(data=value)).success,
            what=lambda: (
                f"arming {value}: {self.answered}; {self.states[-1].state} {self.states[-1].cause}"
            ),
        )

    def clear(self, cause):
        return self.ask(self.clearing, ResetFault.Request(cause=cause))

    def inject(self, what):
        """Inject a fault of the twin."""

    def ends_faults(self):
        """Clear a fault that an earlier test left, for example because the machine stalled."""
        if self.states and self.states[-1].state == SafetyState.FAULT:
            self.held = self.enabled = True
            self.inject("")
            self.peer.spin(
                lambda: (
                    self.states[-1].state != SafetyState.FAULT
                    or (self.clear(self.states[-1].cause).success and self.peer.for_s(0.3))
                ),
                what=lambda: f"the reset of {self.states[-1].cause}: {self.answered}",
            )

    def reach(self, state, cause=""):
        begun = len(self.states)

        def reached():
            lately = [
                safety.state for safety in self.states[max(begun, len(self.states) - STUCK) :]
            ]
            assert state == SafetyState.FAULT or lately != [SafetyState.FAULT] * STUCK, (
                "the interlock stays in a fault that the test does not clear"
            )
            return self.states and (self.states[-1].state, self.states[-1].cause) == (state, cause)

        try:
            self.peer.spin(reached)
        except AssertionError as error:
            recent = list(
                dict.fromkeys((safety.state, safety.cause) for safety in self.states[-300:])
            )
            raise AssertionError(f"waited for {state} {cause}; lately it was {recent}") from error


def fastest(targets):
    """Return the largest speed by the stamps [m/s]."""

    def place(m):
        return m.pose.position.x, m.pose.position.y, m.pose.position.z

    pairs = list(zip(targets, targets[1:], strict=False))
    assert all(to_ns(a.header.stamp) < to_ns(b.header.stamp) for a, b in pairs)
    return max(
        math.dist(place(a), place(b)) / ((to_ns(b.header.stamp) - to_ns(a.header.stamp)) / 1e9)
        for a, b in pairs
    )


def longest_gap_s(targets):
    stamps = [to_ns(m.header.stamp) for m in targets]
    return max(b - a for a, b in zip(stamps, stamps[1:], strict=False)) / 1e9
