"""Gaussian splats: against a sum without tiles, their files, a fit, and a simulator's background."""

import json
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
