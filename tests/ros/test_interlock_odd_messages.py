"""The interlock's process beside e-stops of another type, 1,000 gripper actions a second, and
answers that are lost.
"""

import contextlib
import os
import signal
import time

import pytest
import rclpy
from rlinf_msgs.msg import ActionChunk, GripperWidth
from std_msgs.msg import Bool, Int8
from std_srvs.srv import SetBool

from tests.ros.stand_ins import Arm, listen
from tests.ros.test_arm_requests import service_processes
from tests.ros.test_interlock_attacks import launch

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)


@pytest.fixture
def neighbour(peer):
    """Provide a node of another participant: one has one type for a topic."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=106)
    node = rclpy.create_node("neighbour", namespace=peer.node.get_namespace(), context=context)
    yield node
    node.destroy_node()
    rclpy.try_shutdown(context=context)


@pytest.mark.domain(106)
def test_s14_an_estop_of_another_type_or_twice_by_one_name_stops_the_arm_and_is_named(
    peer, request
):
    arm = Arm(peer)
    launch(peer)
    peer.spin(lambda: arm.targets, what="targets")
    arm.estop_publishes = False
    peer.for_s(1.0)  # silent for longer than estop_silence: no arming succeeds from here on
    neighbour = request.getfixturevalue("neighbour")
    other = neighbour.create_publisher(Int8, "estop/pendant", 10)
    timer = peer.node.create_timer(0.05, lambda: other.publish(Int8(data=0)))
    peer.spin(
        lambda: "Int8" in arm.ask(arm.arming, SetBool.Request(data=True)).message,
        60,
        lambda: f"the refusal: {arm.answered}",
    )
    assert not arm.answered.success and arm.states[-1].state == DISARMED
    peer.node.destroy_timer(timer)
    neighbour.destroy_publisher(other)
    arm.estop_publishes = True
    arm.arm()
    arm.reach(ACTIVE)
    other = neighbour.create_publisher(Int8, "estop/pendant", 10)  # it says nothing at all
    arm.reach(FAULT, "foreign_publisher:estop/pendant")
    neighbour.destroy_publisher(other)
    peer.spin(
        lambda: arm.clear("foreign_publisher:estop/pendant").success,
        60,
        lambda: f"the reset: {arm.answered}",
    )
    arm.arm()
    arm.reach(ACTIVE)
    # a second pendant of that name, not pressed
    second = peer.node.create_publisher(Bool, "estop/pendant", 100)
    second.publish(Bool(data=False))
    arm.reach(FAULT, "foreign_publisher:estop/pendant")
    arm.pressed = True
    assert not arm.clear("foreign_publisher:estop/pendant").success
    peer.node.destroy_publisher(second)


@pytest.mark.domain(108)
def test_s25_a_thousand_gripper_actions_a_second_delay_no_tick_and_move_the_fingers_within_their_speed(
    peer, tmp_path
):
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        f"extends: {os.getcwd()}/robots/franka_fr3/limits.yaml\ngripper_width: 0.08\n"
    )
    arm = Arm(peer, streams=False)
    widths, fingers = (
        listen(peer, GripperWidth, "gripper/command"),
        peer.node.create_publisher(type(arm.joints), "gripper/state", 10),
    )

    def opened():
        message = type(arm.joints)(
            name=["gripper_opening"], position=[widths[-1].width if widths else 0.04]
        )
        fingers.publish(message)

    peer.node.create_timer(0.02, opened)
    launch(peer, limits_file=str(limits))
    arm.arm()
    begun = time.monotonic()

    def stream():
        for _ in range(10):
            arm.seq += 1
            arm.say["policy/action"].publish(
                ActionChunk(
                    source="policy",
                    session="policy",
                    seq=arm.seq,
                    dt=0.1,
                    control_mode="tcp_delta",
                    horizon=1,
                    dim=4,
                    execute=1,
                    data=[0.0, 0.0, 0.0, 0.01 if arm.seq % 2 else -0.01],
                    observation_stamp=peer.node.get_clock().now().to_msg(),
                )
            )

    timer = peer.node.create_timer(0.01, stream)
    arm.reach(ACTIVE)
    ticks, at = arm.states[-1].ticks, len(widths)
    begun = time.monotonic()
    peer.for_s(4.0)
    peer.spin(lambda: arm.states[-1].state == ACTIVE, 30, lambda: f"it to go on: {arm.states[-1]}")
    rate = (arm.states[-1].ticks - ticks) / (time.monotonic() - begun)
    assert rate > 60.0, "of 100 a second, on a busy machine"
    steps = [abs(b.width - a.width) for a, b in zip(widths[at:], widths[at + 1 :], strict=False)]
    assert max(steps) <= 0.1 * 0.01 + 1e-9 and all(0.0 <= width.width <= 0.08 for width in widths)
    peer.node.destroy_timer(timer)


@pytest.mark.domain(111)
def test_s26_an_arming_whose_asker_or_whose_answer_is_lost_is_taken_back(peer):
    """Of a raw client, which takes nothing back itself; and of one whose answer ends with the
    services' process.
    """
    arm = Arm(peer)
    interlock = launch(peer)
    peer.spin(lambda: arm.targets, what="targets")
    arm.arm()
    peer.for_s(1.0)
    assert arm.states[-1].state in (ARMED, ACTIVE), "an arming that was answered stays"
    arm.arm(False)
    arm.reach(DISARMED)
    arm.arm()
    for service_process in service_processes(peer.supervisor.children["interlock"].popen.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(service_process, signal.SIGKILL)
    arm.reach(DISARMED)
    assert interlock is not False
    log = peer.supervisor.run_dir / "logs/interlock.log"
    peer.spin(lambda: "the arming is cancelled" in log.read_text(), 30, "its word")
