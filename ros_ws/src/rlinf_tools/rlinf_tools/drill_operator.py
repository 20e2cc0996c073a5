"""The people around the arm of a safety drill: policy, operator, enable, e-stop and impersonators.

It has its own process, so that the drill's work delays nobody. It follows ``drill/do`` (JSON, as
``DrillActivity``), announces its first act on ``injected``, and stalls of the whole machine on
``drill/stalls``.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rclpy.publisher import Publisher
from rlinf_msgs.msg import ActionChunk
from sensor_msgs.msg import Range
from std_msgs.msg import Bool, Header, String

from rlinf_ros.arms import arm_topic, arms_of
from rlinf_ros.conversions import set_stamp
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import run
from rlinf_ros.station_node import STEADY
from rlinf_ros.workarounds import wait_for_nobody

DT = 0.05
SPEED = 0.08
TURN = 0.2  # speed of rotation in the stream [rad/s]
# frame of the impersonator's targets, by which the drill tells them from the interlock's
ROGUE = "rogue"
WATCH_S, STALL_S = 0.005, 0.01  # period and tolerance of the check for stalls
PERIOD_S = 0.02
HANGS_AFTER_S = 0.2


@dataclass
class DrillActivity:
    """An act of the people in the drill.

    Attributes:
        streaming: the policy commands.
        taking_over: the operator commands, too.
        operator_hangs: the operator takes over for HANGS_AFTER_S and then falls silent, without a
            release.
        turn: turning speed of the stream [rad/s].
        enabled: the enable is held.
        estop: released, press, or silent.
        fault: the robot's own fault report.
        rogue: a topic with a second publisher, or empty.
        number: number of the act, announced with it.
    """

    streaming: bool = False
    taking_over: bool = False
    operator_hangs: bool = False
    turn: float = TURN
    enabled: bool = True
    estop: str = "released"
    fault: str = ""
    rogue: str = ""
    number: int = 0


class DrillOperator(Node):
    """Publishes for every part that the drill does not run as a node of its own."""

    def __init__(self) -> None:
        super().__init__("people", start_parameter_services=False)
        self.doing = DrillActivity()
        self.seq = 0
        self.hangs_at = 0.0
        self.arms = arms_of(self)  # the robot's own faults are the first arm's
        self.rogue: Publisher | None = None
        self.fault = arm_topic(self.arms[0] if self.arms else "", "robot/fault")
        self.command_publishers = {
            topic: publisher(self, topic)
            for topic in (
                "policy/action",
                "teleop/action",
                "enable",
                "estop/pendant",
                "distance",
                self.fault,
            )
        }
        self.injected = self.create_publisher(Header, "injected", 50)
        self.stalls = self.create_publisher(Header, "drill/stalls", 50)
        self.create_subscription(String, "drill/do", self._on_do, 10)
        self.watched_at = time.monotonic()
        self.create_timer(DT, self._stream, clock=STEADY)  # a person goes on when a clock is set
        self.create_timer(PERIOD_S, self._keep_alive, clock=STEADY)
        self.create_timer(WATCH_S, self._watch, clock=STEADY)

    def _on_do(self, message: String) -> None:
        """Act at once: a release or a press must not wait for the next period."""
        request, before = json.loads(message.data), self.doing
        self.doing = DrillActivity(
            **{
                field.name: request[field.name]
                for field in fields(DrillActivity)
                if field.name in request
            }
        )
        if self.rogue is not None:
            self.destroy_publisher(self.rogue)
            self.rogue = None
        if self.doing.rogue:
            self.rogue = publisher(
                self, self.doing.rogue.removeprefix("drill/"), at=self.doing.rogue
            )
        now = self.get_clock().now().to_msg()
        self._keep_alive()
        if self.doing.operator_hangs:
            self.hangs_at = time.monotonic() + HANGS_AFTER_S
        if self.doing.taking_over or self.doing.operator_hangs:
            self._stream()
        elif before.taking_over:
            self._let_go()
        self.command_publishers[self.fault].publish(String(data=self.doing.fault))
        self.injected.publish(Header(stamp=now, frame_id=f"do:{self.doing.number}"))

    def _stream(self) -> None:
        """Stream a motion back and forth and round: 20 chunks a second of two actions each."""
        doing = self.doing
        taking_over = doing.taking_over or (
            doing.operator_hangs and time.monotonic() < self.hangs_at
        )
        if not (doing.streaming or taking_over):
            return
        self.seq += 1
        sign = 1.0 if self.seq // 20 % 2 else -1.0
        action = [
            sign * SPEED * DT,
            0.0,
            0.0,
            0.0,
            0.0,
            (sign if doing.turn == TURN else 1.0) * doing.turn * DT,
        ]
        if doing.streaming:
            self._command("policy/action", "policy", action)
        if taking_over:
            self._command("teleop/action", "operator", action)

    def _command(self, topic: str, source: str, action: list[float]) -> None:
        action = action[:3] * len(self.arms) or action  # several arms move alike, and do not turn
        chunk = ActionChunk(
            source=source,
            session=f"drill-{source}",
            seq=self.seq,
            dt=DT,
            control_mode="tcp_delta",
            horizon=2,
            dim=len(action),
            data=action * 2,
            execute=1,
        )
        chunk.header.stamp = chunk.observation_stamp = self.get_clock().now().to_msg()
        self.command_publishers[topic].publish(chunk)

    def _let_go(self) -> None:
        """Publish the operator's release."""
        self.seq += 1
        chunk = ActionChunk(
            source="operator",
            session="drill-operator",
            seq=self.seq,
            dt=DT,
            control_mode="tcp_delta",
        )
        chunk.header.stamp = chunk.observation_stamp = self.get_clock().now().to_msg()
        self.command_publishers["teleop/action"].publish(chunk)

    def _keep_alive(self) -> None:
        self.command_publishers["enable"].publish(Bool(data=self.doing.enabled))
        if self.doing.estop != "silent":
            self.command_publishers["estop/pendant"].publish(Bool(data=self.doing.estop == "press"))
        self.command_publishers["distance"].publish(Range(range=1.0))
        if self.rogue is not None:
            self.rogue.publish(self._impersonate())

    def _impersonate(self) -> Any:
        """Return an impersonator's message for the current topic.

        It is another pose, the policy's own session, a released e-stop, or an enable.
        """
        rogue, stamp = self.doing.rogue, self.get_clock().now().to_msg()
        if rogue in ("enable", "estop/pendant"):
            return Bool(data=rogue == "enable")
        if rogue == "drill/policy/action":
            return ActionChunk(
                source="operator",
                session="drill-policy",
                seq=self.seq + 10**6,
                dt=DT,
                execute=1,
                horizon=1,
                control_mode="tcp_delta",
                dim=3,
                data=[0.0, 0.0, 0.004],
                observation_stamp=stamp,
            )
        pose = PoseStamped()
        pose.header.stamp, pose.header.frame_id = stamp, ROGUE
        pose.pose.position.x = 0.45
        pose.pose.position.z = 0.3
        pose.pose.orientation.x = 1.0
        pose.pose.orientation.w = 0.0
        return pose

    def _watch(self) -> None:
        """Report a stall: this timer was late without any work, so the machine served nobody."""
        now = time.monotonic()
        late = now - self.watched_at - WATCH_S
        self.watched_at = now
        if late > STALL_S:
            header = Header(frame_id=f"{late:.4f}")
            set_stamp(header.stamp, time.time_ns())
            self.stalls.publish(header)


def main() -> None:
    """Entry point."""
    wait_for_nobody()
    run(DrillOperator, priority=25, listens=False)


if __name__ == "__main__":
    main()
