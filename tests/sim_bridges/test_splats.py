"""Gaussian splats: against a sum without tiles, their files, a fit, and a simulator's background."""

import json
import re
import time
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RlinfError
from sim_bridges.core import splats
from sim_bridges.core.isolated import make

VIEW = splats.View(np.array([0.0, 0.0, 3.0]), np.eye(3), float(np.deg2rad(45)))


def cloud(count=200, seed=0, spread=1.0):
    random = torch.Generator().manual_seed(seed)
    return splats.Splats(
        spread * (2 * torch.rand(count, 3, generator=random) - 1),
        torch.randn(count, 3, generator=random),
        torch.randn(count, generator=random),
        -3.0 + 0.3 * torch.randn(count, 3, generator=random),
        torch.randn(count, 4, generator=random),
    )


def test_a_round_gaussian_is_where_a_pinhole_camera_sees_it():
    one = splats.Splats(
        torch.tensor([[0.3, 0.6, 0.0]]),
        torch.tensor([[5.0, -5.0, -5.0]]),
        torch.tensor([8.0]),
        torch.full((1, 3), -2.0),
        torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
    )
    picture, opacity = splats.render(one, VIEW, 64, 64)
    focal = 32 / np.tan(np.deg2rad(22.5))
    row, column = divmod(int(opacity.argmax()), 64)
    assert column + 0.5 == pytest.approx(32 + focal * 0.1, abs=1.5)
    assert row + 0.5 == pytest.approx(32 - focal * 0.2, abs=1.5)
    assert picture[row, column, 0] > 0.9 and picture[row, column, 1] < 0.05
    width = float((opacity / opacity.max() > np.exp(-0.5)).sum()) / np.pi
    assert np.sqrt(width) == pytest.approx(focal * np.exp(-2.0) / 3.0, rel=0.1)


def test_tiles_equal_a_sum_over_all_gaussians(monkeypatch):
    one = cloud(60)
    picture, opacity = splats.render(one, VIEW, 40, 56)
    monkeypatch.setattr(splats, "TILE", 64)
    all_at_once, all_opacity = splats.render(one, VIEW, 40, 56)
    # a Gaussian ends at three standard deviations, which tiles cut off
    assert float((picture - all_at_once).abs().max()) < 0.06
    assert float((opacity - all_opacity).abs().mean()) < 0.003


def test_what_is_in_front_covers_what_is_behind():
    near, far = (
        splats.Splats(
            torch.tensor([[0.0, 0.0, z]]),
            torch.tensor([colour]),
            torch.tensor([9.0]),
            torch.full((1, 3), -2.0),
            torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        )
        for z, colour in ((1.0, [5.0, -5.0, -5.0]), (-1.0, [-5.0, -5.0, 5.0]))
    )
    both = splats.Splats(
        *(
            torch.cat([getattr(far, name), getattr(near, name)])
            for name in ("positions", "colours", "opacities", "scales", "rotations")
        )
    )
    middle = splats.render(both, VIEW, 33, 33)[0][16, 16]
    assert middle[0] > 0.9 > 0.1 > middle[2]


def test_two_thousand_gaussians_take_less_than_half_a_second():
    torch.set_num_threads(1)
    with torch.no_grad():
        one = cloud(2000)
        splats.render(one, VIEW, 128, 128)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            splats.render(one, VIEW, 128, 128)
            times.append(time.perf_counter() - begin)
    assert min(times) < 0.5


def test_a_file_comes_back_and_others_are_refused(tmp_path):
    one, path = cloud(20), tmp_path / "a.ply"
    splats.save(one, path)
    again = splats.load(path)
    assert torch.equal(again.rotations, one.rotations) and torch.equal(again.scales, one.scales)
    content = path.read_bytes()
    for damaged in (b"", content[:200], content[:-4], b"ply\nformat ascii 1.0\nend_header\n"):
        path.write_bytes(damaged)
        with pytest.raises(RlinfError, match="expected a PLY file"):
            splats.load(path)
    splats.save(replace(one, positions=one.positions * float("nan")), path)
    with pytest.raises(RlinfError, match="not finite"):
        splats.load(path)
    with pytest.raises(RlinfError, match="got no file"):
        splats.load(tmp_path / "none.ply")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rotations", 0.0, "got a quaternion of length 0 in Gaussian 7"),
        ("scales", 50.0, "got a scale above exp(20) m in Gaussian 7"),
        ("opacities", float("inf"), "got values that are not finite in Gaussian 7"),
    ],
)
def test_a_damaged_gaussian_is_refused_by_its_number(name, value, message, tmp_path):
    one = cloud(20)
    values = getattr(one, name).clone()
    values[7] = value
    path = splats.save(replace(one, **{name: values}), tmp_path / "a.ply")
    with pytest.raises(RlinfError, match=re.escape(message)):
        splats.load(path)


def edited(change):
    pose = np.eye(4)
    change(pose)
    return pose.tolist()


POSES = {
    "nan": (edited(lambda pose: pose.__setitem__((0, 3), np.nan)), "a finite camera pose"),
    "infinite": (edited(lambda pose: pose.__setitem__((1, 1), np.inf)), "a finite camera pose"),
    "scaled": (
        edited(lambda pose: pose.__setitem__((slice(3), slice(3)), 2 * np.eye(3))),
        "a rotation matrix (orthonormal, determinant 1), got one whose product with its transpose "
        "deviates from the identity by 3",
    ),
    "zero": (
        edited(lambda pose: pose.__setitem__((slice(3), slice(3)), 0.0)),
        "a rotation matrix",
    ),
    "sheared": (edited(lambda pose: pose.__setitem__((0, 1), 0.01)), "a rotation matrix"),
    "mirrored": (
        edited(lambda pose: pose.__setitem__((0, 0), -1.0)),
        "a rotation matrix (orthonormal, determinant 1), got a mirror image",
    ),
    "last row": (edited(lambda pose: pose.__setitem__((3, 0), 1.0)), "whose last row is 0 0 0 1"),
    "3 x 4": (np.eye(4)[:3].tolist(), "of 4 x 4 numbers, got shape (3, 4)"),
    "ragged": ([[1.0, 0.0], [1.0]], "of 4 x 4 numbers"),
    "text": ("pose", "of 4 x 4 numbers"),
}


@pytest.mark.parametrize(("pose", "message"), POSES.values(), ids=POSES)
def test_a_damaged_camera_pose_is_refused_by_its_picture(pose, message, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((32, 32, 3), 90, np.uint8))
    frames = [{"file_path": "a.png", "transform_matrix": np.eye(4).tolist()} for _ in range(3)]
    file = tmp_path / "transforms.json"
    file.write_text(json.dumps({"camera_angle_x": 0.8, "frames": frames}))
    assert len(splats.read_transforms(file, 32)[0]) == 3
    frames[2]["transform_matrix"] = pose
    file.write_text(json.dumps({"camera_angle_x": 0.8, "frames": frames}))
    with pytest.raises(RlinfError, match=re.escape("picture 2 (a.png): expected ")) as refused:
        splats.read_transforms(file, 32)
    assert message in str(refused.value) and refused.value.code == "RL-E712"


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        ({"fl_y": 0}, "fl_y: expected a number above 0, got 0"),
        ({"fl_y": float("nan")}, "fl_y: expected a number above 0, got nan"),
        ({"fl_y": "32"}, "fl_y: expected a number above 0, got '32'"),
        ({"fl_y": 32.0, "h": -1}, "h: expected a number above 0, got -1"),
        ({"camera_angle_x": 4.0}, "camera_angle_x: expected a number between 0 and 3.1416"),
        ({}, "expected transforms.json with frames, poses and fl_y or camera_angle_x"),
    ],
)
def test_a_damaged_lens_is_refused(lens, message, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((32, 32, 3), 90, np.uint8))
    frame = {"file_path": "a.png", "transform_matrix": np.eye(4).tolist()}
    file = tmp_path / "transforms.json"
    file.write_text(json.dumps({**lens, "frames": [frame]}))
    with pytest.raises(RlinfError, match=re.escape(message)):
        splats.read_transforms(file, 32)


def test_a_fit_and_a_picture_refuse_damaged_views_and_pictures():
    one, pictures = cloud(5), np.zeros((2, 16, 16, 3), np.uint8)
    damaged = replace(VIEW, position=np.array([np.nan, 0.0, 0.0]))
    with pytest.raises(RlinfError, match="a view of splats: expected a finite camera pose"):
        splats.render(one, damaged, 16, 16)
    with pytest.raises(RlinfError, match="expected a vertical field of view"):
        splats.render(one, replace(VIEW, vertical_fov=0.0), 16, 16)
    with pytest.raises(RlinfError, match="a position of shape"):
        splats.render(one, replace(VIEW, rotation=np.eye(4)), 16, 16)
    for used in (splats.fit, splats.picture_error):
        with pytest.raises(RlinfError, match="picture 1: expected a finite camera pose"):
            used(one, [VIEW, damaged], pictures)
        with pytest.raises(
            RlinfError, match="type uint8, got float64 .* 1 values that are not"
        ) as refused:
            used(
                one,
                [VIEW, VIEW],
                np.where(np.arange(2 * 16 * 16 * 3) == 5, np.nan, 0.5).reshape(pictures.shape),
            )
        assert refused.value.code == "RL-E712"
        with pytest.raises(RlinfError, match=r"shape \(1, any, any, 3\)"):
            used(one, [VIEW], pictures)
        with pytest.raises(RlinfError, match="at least one view"):
            used(one, [], pictures)
    with pytest.raises(RlinfError, match="--box"):
        splats.scattered(5, [0.0, 0.0, 1.0], [1.0, 1.0, 1.0])
    with pytest.raises(RlinfError, match="--box"):
        splats.scattered(5, [0.0, 0.0, np.nan], [1.0, 1.0, 1.0])


def test_the_command_fits_pictures(tmp_path, capsys):
    truth, frames = cloud(40, seed=3, spread=0.6), []
    for number, angle in enumerate((-0.4, 0.0, 0.4)):
        turn = np.array(
            [
                [np.cos(angle), 0, np.sin(angle)],
                [0, 1, 0],
                [-np.sin(angle), 0, np.cos(angle)],
            ]
        )
        view = splats.View(turn @ [0, 0, 3.0], turn, float(np.deg2rad(45)))
        picture = 255 * splats.render(truth, view, 32, 32)[0].numpy().clip(0, 1)
        cv2.imwrite(str(tmp_path / f"{number}.png"), picture[..., ::-1])
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = turn, view.position
        frames.append({"file_path": f"{number}.png", "transform_matrix": pose.tolist()})
    file = tmp_path / "transforms.json"
    file.write_text(json.dumps({"camera_angle_x": float(np.deg2rad(45)), "frames": frames}))
    out, figures = tmp_path / "b.ply", tmp_path / "b.json"
    command = ["world", "splats", str(file), "--out", str(out), "--json", str(figures)]
    small = ["--size", "32", "--gaussians", "100", "--updates", "60"]
    assert main([*command, *small, "--box", "-1", "-1", "-1", "1", "1", "1"]) == 0
    errors = json.loads(figures.read_text())
    assert errors["after"] < 0.8 * errors["before"] and len(splats.load(out)) == 100
    content = out.read_bytes()
    assert main([*command, *small]) == 1
    assert "expected a new file, got an existing file" in capsys.readouterr().err
    assert out.read_bytes() == content
    out.unlink()
    file.write_text("{}")
    assert main([*command, *small]) == 1
    assert "expected transforms.json" in capsys.readouterr().err


def test_a_background_shows_only_where_the_scene_is_empty(tmp_path):
    behind = splats.scattered(300, [-2.0, -1.5, -0.5], [-1.0, 1.5, 1.5])
    behind = replace(behind, colours=torch.tensor([[3.0, -3.0, -3.0]]).repeat(300, 1))
    path = splats.save(behind, tmp_path / "red.ply")
    plain, with_it = make("franka_mujoco"), make("franka_mujoco", background=str(path))
    pictures = []
    for simulator in (plain, with_it):
        simulator.reset(3)
        pictures.append(simulator.render("front", 64, 64).astype(int))
    changed = np.abs(pictures[0] - pictures[1]).max(-1) > 5
    assert 0.05 < changed.mean() < 0.8
    assert pictures[1][changed][:, 0].mean() > pictures[1][changed][:, 1].mean() + 30
