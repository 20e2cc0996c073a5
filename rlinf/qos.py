"""Quality of service of every topic of a station, in one place (table in docs/design.md)."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _reliable(depth: int, *, latched: bool = False) -> QoSProfile:
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    return QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=depth,
                      reliability=ReliabilityPolicy.RELIABLE, durability=durability)


STATE = _reliable(10)       # what the robot side says of itself and its task, and /clock
IMAGE = _reliable(2)        # camera/<name>/image
COMMAND = _reliable(10)     # target_pose, gripper/command: depth 10 so that lockstep never loses a permit
TIMESTEP = _reliable(50)
ACTION = _reliable(10)      # policy/action, teleop/action
APPLIED = _reliable(50)
EPISODE = _reliable(50)
LATCHED = _reliable(1, latched=True)  # safety, policy/update, policy/status, trainer/status

QOS: dict[str, QoSProfile] = {
    "joint_states": STATE,
    "current_pose": STATE,
    "current_twist": STATE,
    "wrench": STATE,
    "object_pose": STATE,
    "goal_pose": STATE,
    "gripper/state": STATE,
    "task/success": STATE,
    "/clock": STATE,
    "target_pose": COMMAND,
    "gripper/command": COMMAND,
    "timestep": TIMESTEP,
    "policy/action": ACTION,
    "teleop/action": ACTION,
    "applied": APPLIED,
    "episode": EPISODE,
    "safety": LATCHED,
    "safety/events": APPLIED,
    "target_joints": COMMAND,
    "distance": STATE,
    "enable": COMMAND,
    "robot/fault": LATCHED,
    "policy/update": LATCHED,
    "policy/status": LATCHED,
    "trainer/status": LATCHED,
}


NEWEST = _reliable(1)       # robot-side topics as the environment and the interlock take them in lockstep
SENSOR = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)  # in real time


def newest(lockstep: bool) -> QoSProfile:
    """To receive a robot-side topic of which only the newest message counts.

    In real time best effort, which matches every driver's publisher, reliable or not; in lockstep no message may be lost.
    """
    return NEWEST if lockstep else SENSOR


def profile(topic: str) -> QoSProfile:
    """The profile of a topic by its relative name; cameras and e-stops match by prefix."""
    if topic.startswith("estop/"):
        return COMMAND
    return IMAGE if topic.startswith("camera/") else QOS[topic]
