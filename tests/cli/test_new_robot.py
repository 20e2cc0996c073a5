"""``rlinf new robot``: from an MJCF or a URDF to a simulated robot that keeps every promise; errors
with a remedy.
"""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlinf_core.cli.check import simulator_recipe
from rlinf_core.cli.main import main
from rlinf_core.cli.new import real_path
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.robots.config import load_robot
from sim_bridges.core.conformance import checks
from sim_bridges.simulators.mujoco_arm import Simulator

ARM6 = Path("sim_bridges/simulators/mujoco_arm/arm6_mujoco/arm6.xml").resolve()
LINK = (
    '<link name="{0}"><inertial><mass value="1"/><origin xyz="0 0 0.1"/><inertia ixx="0.01" '
    'iyy="0.01" izz="0.01" '
    'ixy="0" ixz="0" iyz="0"/></inertial>{1}</link>'
)
JOINT = (
    '<joint name="{0}" type="{1}"><parent link="{2}"/><child link="{3}"/><origin xyz="0 0 '
    '{4}"/><axis xyz="{5}"/>'
    "{6}</joint>"
)
LIMIT = '<limit lower="-2.6" upper="2.6" effort="80" velocity="2"/>'


def urdf(
    tmp_path,
    limits=LIMIT,
    first="continuous",
    mesh="package://arm_description/meshes/link.stl",
    extra="",
):
    """A six-joint arm as an exporter of ROS writes one: a package's meshes, a continuous joint, a
    mimicking finger.
    """
    shape = f'<visual><geometry><mesh filename="{mesh}"/></geometry></visual>'
    links = [LINK.format("base_link", ""), LINK.format("link1", shape)]
    links += [LINK.format(f"link{index}", "") for index in range(2, 7)] + [
        LINK.format("tool0", "").replace('value="1"', 'value="0.01"')
    ]
    axes = ("0 0 1", "0 1 0", "0 1 0", "0 1 0", "0 0 1", "0 1 0")
    lengths = (0.15, 0.1, 0.35, 0.3, 0.08, 0.08)
    joints = [
        JOINT.format(
            f"joint{index + 1}",
            first if index == 0 else "revolute",
            "base_link" if index == 0 else f"link{index}",
            f"link{index + 1}",
            length,
            axis,
            "" if index == 0 else limits,
        )
        for index, (axis, length) in enumerate(zip(axes, lengths, strict=True))
    ]
    joints.append(JOINT.format("flange", "fixed", "link6", "tool0", 0.12, "0 0 1", ""))
    text = f'<robot name="arm">{"".join(links + joints)}{extra}</robot>'
    folder = tmp_path / "arm_description"
    (folder / "urdf").mkdir(parents=True)
    (folder / "meshes").mkdir()
    corners = [(0, 0, 0), (0.06, 0, 0), (0, 0.06, 0), (0, 0, 0.1)]
    facets = b"".join(
        struct.pack("<12fH", 0, 0, 0, *(value for corner in face for value in corners[corner]), 0)
        for face in ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))
    )
    (folder / "meshes/link.stl").write_bytes(bytes(80) + struct.pack("<I", 4) + facets)
    (folder / "meshes/text.stl").write_text("solid link\nendsolid link\n" + " " * 84)
    path = folder / "urdf/arm.urdf"
    path.write_text(text)
    return path


def fingers():
    """Two slides, of which the second mimics the first, as in the URDF of a Panda."""
    limit = '<limit lower="0" upper="0.04" effort="20" velocity="0.2"/>'
    mimic = '<mimic joint="finger1"/>'
    links = [
        LINK.format(name, "").replace('value="1"', 'value="0.02"').replace("0.01", "0.0001")
        for name in ("left", "right")
    ]
    return (
        "".join(links)
        + JOINT.format("finger1", "prismatic", "link6", "left", 0.1, "0 1 0", limit)
        + JOINT.format("finger2", "prismatic", "link6", "right", 0.1, "0 -1 0", limit + mimic)
    )


def broken(folder, episodes=2):
    return [
        str(row)
        for row in checks(
            simulator_recipe("mujoco_arm", str(folder)), episodes, station=False, figures={}
        )
        if not row.passed
    ]


def test_an_mjcf_becomes_a_robot_that_keeps_every_promise(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["new", "robot", str(ARM6), "--out", str(folder), "--name", "Mine 1"]) == 0
    output = capsys.readouterr().out
    for word in (
        "joint1",
        "attachment_site",
        "gripper, opens 80 mm",
        "rlinf check sim mujoco_arm --robot",
        "rlinf train",
    ):
        assert word in output
    assert broken(folder) == []
    recipe = load_recipe(str(folder / "recipe.yaml"))
    check_recipe(recipe)
    assert recipe.name == "mine_1_reach"
    simulator = Simulator(**load_robot(str(folder)).options)
    assert np.isclose(simulator.gripper_width(), 0.08, atol=0.002)


def test_the_shipped_example_is_what_the_command_writes(tmp_path):
    main(["new", "robot", str(ARM6), "--out", str(tmp_path / "arm6"), "--name", "arm6"])
    for name in ("robot.yaml", "limits.yaml", "reach.yaml"):
        written, shipped = (
            yaml.safe_load((folder / name).read_text())
            for folder in (tmp_path / "arm6", ARM6.parent)
        )
        if name == "robot.yaml":
            assert (
                written["options"].pop("model") == str(ARM6)
                and shipped["options"].pop("model") == "arm6.xml"
            )
        assert written == shipped, name


def test_a_urdf_becomes_a_robot_that_keeps_every_promise(tmp_path, capsys):
    """Meshes by package://, a continuous joint, a finger that mimics, a fixed tool0."""
    folder = tmp_path / "mine"
    assert (
        main(["new", "robot", str(urdf(tmp_path, extra=fingers())), "--out", str(folder)]) == 0
    ), capsys.readouterr()
    output = capsys.readouterr().out
    assert "have no end stops" in output and "joint1" in output
    options = load_robot(str(folder)).options
    assert options["tool"] == "tool0" and options["gripper"] == ("finger1",)
    assert broken(folder) == []


@pytest.mark.parametrize(
    ("mesh", "remedy"),
    [
        ("package://other_description/meshes/none.stl", "is in none of .*Copy"),
        ("../meshes/text.stl", "is an STL of text"),
    ],
)
def test_a_mesh_that_cannot_be_read_and_missing_limits_are_named_and_the_arm_works(
    tmp_path, capsys, mesh, remedy
):
    path = urdf(tmp_path, limits="", mesh=mesh)
    assert main(["new", "robot", str(path), "--out", str(tmp_path / "mine")]) == 0
    output = capsys.readouterr().out
    assert re.search(f"<visual> of link link1: mesh {mesh} {remedy}", output)
    assert "joint joint2 has no limits in the file" in output


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace("</mujoco>", ""), "expected well-formed XML"),
        (
            lambda text: text.replace("<mujoco", "<sdf").replace("</mujoco>", "</sdf>"),
            "expected the root <mujoco>",
        ),
        (
            lambda text: text.replace(
                '<body name="base" childclass="arm6">',
                '<body name="base" childclass="arm6"><freejoint/>',
            ),
            '<body name="base"> has a <freejoint>',
        ),
        (lambda text: text.replace('joint="joint2"', 'joint="joint9"'), "joint9"),
        (
            lambda text: text.replace(
                "<worldbody>", '<asset><mesh file="gone.stl"/></asset><worldbody>'
            ),
            '<mesh file="gone.stl">',
        ),
    ],
)
def test_a_wrong_model_is_refused_with_file_element_and_remedy(tmp_path, capsys, change, expected):
    path = tmp_path / "arm.xml"
    path.write_text(change(ARM6.read_text()))
    assert main(["new", "robot", str(path), "--out", str(tmp_path / "mine")]) == 1
    error = capsys.readouterr().err
    assert str(path) in error and expected in error and not (tmp_path / "mine").exists()


def test_two_arms_are_refused_and_one_can_be_chosen(tmp_path, capsys):
    """ALOHA's model has two arms; --tool chooses one."""
    text = ARM6.read_text()
    arm = text[text.index('<body name="base"') : text.index("</worldbody>")]
    other = re.sub(r'name="', 'name="right_', arm).replace(
        'name="right_base"', 'name="right_base" pos="0 -0.8 0"'
    )
    path = tmp_path / "two.xml"
    path.write_text(
        text.replace("</worldbody>", other + "</worldbody>")
        .replace('<key name="home"', "<!--")
        .replace('0.6 0.04"/>', "-->")
    )
    assert main(["new", "robot", str(path), "--out", str(tmp_path / "one")]) == 1
    assert (
        "got 2: joint1 to joint6; right_joint1 to right_joint6. Choose one: --tool"
        in capsys.readouterr().err
    )
    assert (
        main(
            [
                "new",
                "robot",
                str(path),
                "--out",
                str(tmp_path / "one"),
                "--tool",
                "right_attachment_site",
            ]
        )
        == 0
    )
    options = load_robot(str(tmp_path / "one")).options
    assert options["joints"] == tuple(f"right_joint{index}" for index in range(1, 7))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--tool", "atachment_site"], "did you mean 'attachment_site'"),
        (["--joints", "joint1", "joint2"], "expected an arm of at least 3 joints"),
        (["--home", "0", "0"], "expected 6 angles"),
        (["--home", "0", "0", "0", "0", "0", "0"], "--home 0 0 0 0 0 0: expected a posture"),
    ],
)
def test_a_wrong_flag_is_refused_with_a_remedy(tmp_path, capsys, flags, expected):
    assert main(["new", "robot", str(ARM6), "--out", str(tmp_path / "mine"), *flags]) == 1
    assert expected in capsys.readouterr().err


def test_a_folder_with_files_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "robot.yaml").write_text("mine")
    assert main(["new", "robot", str(ARM6), "--out", str(tmp_path)]) == 1
    assert (
        "expected a new or an empty folder" in capsys.readouterr().err
        and (tmp_path / "robot.yaml").read_text() == "mine"
    )


def test_an_arm_of_five_joints_keeps_to_the_position(tmp_path):
    """SO-101 and Koch have no sixth joint, so the orientation follows from the position."""
    text = (
        ARM6.read_text()
        .replace('<joint name="joint5" axis="0 0 1"/>', "")
        .replace('<position class="arm6" name="joint5" joint="joint5"/>', "")
        .replace("0.5 0 0.6 0.04", "0.5 0.6 0.04")
    )
    path = tmp_path / "five.xml"
    path.write_text(text)
    main(["new", "robot", str(path), "--out", str(tmp_path / "mine")])
    assert broken(tmp_path / "mine") == []


def test_the_files_are_written_for_people_and_links_are_followed(tmp_path):
    """A list is a line, what has a unit names it, and the model is named without links."""
    (tmp_path / "models").symlink_to(ARM6.parent)
    main(["new", "robot", str(tmp_path / "models/arm6.xml"), "--out", str(tmp_path / "mine")])
    lines = (tmp_path / "mine/robot.yaml").read_text().splitlines()
    assert f"  model: {ARM6}  # do not move this file" in lines
    assert any(line.startswith("  home: [") and line.endswith("[rad or m]") for line in lines)
    for name in ("robot.yaml", "limits.yaml", "reach.yaml"):
        text = (tmp_path / "mine" / name).read_text()
        assert text.count("[") == text.count("]") and not any(
            line.count("[") != line.count("]") for line in text.splitlines()
        ), name


def test_a_link_to_a_blob_keeps_its_name(tmp_path):
    """Caches of models have links to blobs without a suffix; the meshes are next to the link."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/0a1b").write_text("<mujoco/>")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/arm.xml").symlink_to("../blobs/0a1b")
    assert real_path(tmp_path / "snapshot/arm.xml") == tmp_path.resolve() / "snapshot/arm.xml"
    (tmp_path / "linked").symlink_to("snapshot")
    assert real_path(tmp_path / "linked/arm.xml") == tmp_path.resolve() / "snapshot/arm.xml"
