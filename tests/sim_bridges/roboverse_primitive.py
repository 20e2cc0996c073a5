"""RoboVerse's MuJoCo handler for real, with Menagerie's Panda instead of its own assets.

    ROBOVERSE_ROOT=CLONE PYTHON tests/sim_bridges/roboverse_primitive.py MJCF

PYTHON has mujoco, dm_control and RoboVerse's other dependencies. MJCF is written by
``panda_mjcf``. It prints one line of JSON.
"""

import json
import re
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np


def panda_mjcf(assets: Path, out: Path) -> Path:
    """Write Menagerie's arm with RoboVerse's names and two sliding fingers."""
    # dm_control allows no slash in the name of a class
    text = re.sub(r'(class="\w+)/', r"\1_", (assets / "panda.xml").read_text())
    root = xml.fromstring(text)
    root.set("model", "franka")
    for tag in ("contact", "tendon", "equality", "sensor", "keyframe"):
        for element in root.findall(tag):
            root.remove(element)
    root.find("compiler").set("meshdir", str(assets))
    for mesh in root.find("asset").findall("mesh"):
        mesh.set("name", mesh.get("name") or Path(mesh.get("file")).stem)
    joints = [one for one in root.iter("joint") if one.get("name", "").startswith("joint")]
    for joint in joints:
        joint.set("name", f"panda_{joint.get('name')}")
    actuators = root.find("actuator")
    for actuator in list(actuators):
        actuators.remove(actuator)
    for geom in root.iter("geom"):
        geom.set("contype", "0")
        geom.set("conaffinity", "0")
    hand = next(body for body in root.iter("body") if body.get("name") == "attachment")
    hand.set("name", "panda_hand")
    for child in list(hand):
        hand.remove(child)
    hand.append(
        xml.fromstring(
            '<geom type="box" size="0.03 0.09 0.03" pos="0 0 0.03" mass="0.6" '
            'contype="0" conaffinity="0"/>'
        )
    )
    for number, side in ((1, 1), (2, -1)):
        hand.append(
            xml.fromstring(
                f'<body name="panda_finger{number}" pos="0 0 0.0584">'
                f'<joint name="panda_finger_joint{number}" type="slide" axis="0 {side} 0" '
                f'range="0 0.04" damping="10"/>'
                f'<geom type="box" size="0.01 0.006 0.025" pos="0 {0.006 * side} 0.03" mass="0.05" '
                f'friction="2 0.05 0.0001" condim="4"/></body>'
            )
        )
    for joint in [*joints, *(f"panda_finger_joint{number}" for number in (1, 2))]:
        name = joint if isinstance(joint, str) else joint.get("name")
        strong = 300 if isinstance(joint, str) else 800
        damping = 20 if isinstance(joint, str) else 60
        actuators.append(
            xml.fromstring(f'<position name="{name}" joint="{name}" kp="{strong}" kv="{damping}"/>')
        )
    out.write_text(xml.tostring(root, encoding="unicode"))
    return out


def main() -> None:
    from sim_bridges.simulators.roboverse import Simulator

    simulator = Simulator(mjcf=sys.argv[1])
    simulator.reset(3)
    first = simulator.channels()
    simulator.reset(4)
    other = simulator.channels()
    simulator.reset(3)
    again = simulator.channels()
    start = simulator.tcp_pose()
    down = np.array([1.0, 0.0, 0.0, 0.0])
    begin, ticks = time.perf_counter(), 0

    def move(position, width, count):
        nonlocal ticks
        for _ in range(count):
            simulator.advance(np.concatenate([position, down]), width)
            ticks += 1

    goal = start[:3] + [0.05, -0.05, 0.03]
    move(goal, 0.08, 30)
    reached = float(np.linalg.norm(simulator.tcp_pose()[:3] - goal))
    cube = simulator.channels()["object_pose"][:3]
    move(cube + [0, 0, 0.12], 0.08, 30)
    move(cube + [0, 0, 0.0], 0.08, 30)
    move(cube + [0, 0, 0.0], 0.0, 15)
    move(cube + [0, 0, 0.15], 0.0, 30)
    rate = ticks / (time.perf_counter() - begin)
    picture = simulator.render("front", 64, 64)
    print(
        json.dumps(
            {
                "tick_s": simulator.tick_s,
                "same_seed": float(np.abs(first["object_pose"] - again["object_pose"]).max()),
                "other_seed": float(np.abs(first["object_pose"] - other["object_pose"]).max()),
                "quaternion_of_the_cube": first["object_pose"][3:].round(6).tolist(),
                "reached_m": reached,
                "lifted_m": float(simulator.channels()["object_pose"][2] - cube[2]),
                "success": simulator.succeeded(),
                "picture_std": float(picture.std()),
                "ticks_per_s": rate,
            }
        )
    )


if __name__ == "__main__":
    main()
