"""The camera's place from rendered views of a board, and the check for a moved camera."""

import re

import cv2
import numpy as np
import pytest

from rlinf_core.cli import station
from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.calibration.camera_alignment import (
    comparison,
    picture_motion,
    read_reference,
    save_picture,
)
from rlinf_core.robots.calibration.hand_eye import (
    Mount,
    View,
    find_board,
    load,
    matrix,
    quaternion,
    save,
    solve,
)
from rlinf_core.robots.config import load_robot

COLUMNS, ROWS, SQUARE = 8, 5, 0.03
LENS = (600.0, 600.0, 320.0, 240.0)


def pose(x, y, z, *turn):
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = cv2.Rodrigues(np.array(turn, float))[0], (x, y, z)
    return transform


def seven(m):
    return np.concatenate([m[:3, 3], quaternion(m[:3, :3])])


def picture(board):
    """(480, 640, 3) of a chessboard at a pose (4, 4) in the optical frame, by a pinhole camera."""
    pixels = 40
    flat = np.full(((ROWS + 3) * pixels, (COLUMNS + 3) * pixels), 255, np.uint8)
    for row in range(ROWS + 1):
        for column in range(COLUMNS + 1):
            if (row + column) % 2 == 0:
                flat[
                    (row + 1) * pixels : (row + 2) * pixels,
                    (column + 1) * pixels : (column + 2) * pixels,
                ] = 20
    to_board = np.array(
        [[SQUARE / pixels, 0, -2 * SQUARE], [0, SQUARE / pixels, -2 * SQUARE], [0, 0, 1]]
    )
    k = np.array([[LENS[0], 0, LENS[2]], [0, LENS[1], LENS[3]], [0, 0, 1]])
    homography = k @ np.column_stack([board[:3, 0], board[:3, 1], board[:3, 3]]) @ to_board
    warped = cv2.warpPerspective(
        flat, homography, (640, 480), flags=cv2.INTER_AREA, borderValue=128
    )
    return np.repeat(warped[..., None], 3, axis=2)


def views(camera_on_tool, board_in_base, turns):
    """Return views of a fixed board: the camera looks at its middle from 0.45 m, tilted."""
    middle = pose(SQUARE * (COLUMNS - 1) / 2, SQUARE * (ROWS - 1) / 2, 0, 0, 0, 0)
    for turn in turns:
        camera = board_in_base @ middle @ pose(0, 0, 0, *turn) @ pose(0, 0, -0.45, 0, 0, 0)
        yield camera @ np.linalg.inv(camera_on_tool), np.linalg.inv(camera) @ board_in_base


TILTS = [
    (0, 0, 0),
    (0.35, 0, 0),
    (-0.35, 0, 0.2),
    (0, 0.35, 0),
    (0, -0.35, 0.5),
    (0.25, 0.25, -0.4),
    (-0.25, 0.3, 0.3),
    (0.3, -0.2, 0.9),
    (-0.2, -0.3, -0.7),
]
CAMERA = pose(0.05, 0.02, -0.06, 0.1, -0.05, 1.5)
BOARD = pose(0.42, 0.08, 0.0, 0, 0, -1.5) @ pose(0, 0, 0, np.pi, 0, 0)


def test_the_board_is_where_it_was_drawn():
    for _, board in views(CAMERA, BOARD, TILTS):
        board_pose = find_board(picture(board), LENS, COLUMNS, ROWS, SQUARE)
        assert board_pose is not None
        corners = [
            m @ [SQUARE * (COLUMNS - 1) / 2, SQUARE * (ROWS - 1) / 2, 0, 1]
            for m in (board_pose, board)
        ]
        assert np.linalg.norm(corners[0] - corners[1]) < 0.003
    assert find_board(np.zeros((480, 640, 3), np.uint8), LENS, COLUMNS, ROWS, SQUARE) is None


def test_a_board_of_an_even_and_an_odd_number_is_told_from_itself_turned_by_half_a_turn():
    for turn in (0.0, 0.5 * np.pi, np.pi, 1.5 * np.pi):
        [(_, board)] = views(CAMERA, BOARD, [(0.3, 0.1, turn)])
        board_pose = find_board(picture(board), LENS, COLUMNS, ROWS, SQUARE)
        assert (
            np.allclose(board_pose[:3, 3], board[:3, 3], atol=0.005)
            and np.trace(board_pose[:3, :3].T @ board[:3, :3]) > 2.99
        )


@pytest.mark.parametrize(
    "words, error_part",
    [
        (
            ["--board", "8x6"],
            "--board: expected one even number and one odd, e.g. 8x5, got '8x6'. Such a board "
            "looks the same",
        ),
        (
            ["--board", "7x7"],
            "got '7x7'. Such a board looks the same after half a turn",
        ),
        (["--board", "2x5"], "at least 3x3, e.g. 8x5, got '2x5'"),
        (
            ["--on", "tool"],
            "--on: expected base, since robot.yaml has no tool frame (tool_frame: ''), got tool",
        ),
        (["--on", "base", "--board", "6x9"], ""),
    ],
)
def test_a_board_that_looks_the_same_turned_and_a_tool_without_a_frame_are_refused(
    words, error_part, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(station, "foreground", lambda *_: 0)
    monkeypatch.setattr(station, "ros_environment", lambda _: {})
    (tmp_path / "limits.yaml").write_text(f"extends: {load_robot('franka_fr3').limits.resolve()}\n")
    (tmp_path / "robot.yaml").write_text(
        "driver: external\nlimits: limits.yaml\ntool_frame: ''\ncameras: {wrist: [64, 64]}\n"
    )
    code = main(
        [
            "camera",
            "locate",
            "demo",
            "wrist",
            *words,
            "--set",
            f"station.robot={tmp_path}",
            "station.task=reach",
            "station.operator.kind=keyboard",
        ]
    )
    assert (code, error_part in capsys.readouterr().err) == (2 * bool(error_part), True)


def test_a_camera_on_the_tool_is_found_from_pictures_to_two_millimetres():
    views_of_board = [
        View(seven(tool), find_board(picture(board), LENS, COLUMNS, ROWS, SQUARE))
        for tool, board in views(CAMERA, BOARD, TILTS)
    ]
    solution = solve(views_of_board, "tool")
    assert (
        np.linalg.norm(np.array(solution.position) - CAMERA[:3, 3]) < 0.002
        and solution.error_mm < 2.0
    )
    assert abs(np.dot(solution.orientation, quaternion(CAMERA[:3, :3]))) > np.cos(0.005)


def test_a_camera_that_stands_is_found_from_a_board_in_the_hand():
    state_text, held = pose(1.2, 0.1, 0.5, 0.3, -2.0, 1.0), pose(0.0, 0.02, 0.1, 0.2, 0.1, 0.0)
    tools = [
        pose(0.5 + 0.1 * a, 0.1 * b, 0.3, np.pi, 0, 0) @ pose(0, 0, 0, a, b, c) for a, b, c in TILTS
    ]
    solution = solve(
        [View(seven(tool), np.linalg.inv(state_text) @ tool @ held) for tool in tools], "base"
    )
    assert (
        solution.position == pytest.approx(state_text[:3, 3], abs=1e-4) and solution.error_mm < 0.1
    )
    assert np.allclose(
        matrix(np.array([*solution.position, *solution.orientation])), state_text, atol=1e-3
    )


def test_too_few_views_and_views_turned_alike_are_refused_and_a_wrong_one_shows():
    views_of_board = [View(seven(tool), board) for tool, board in views(CAMERA, BOARD, TILTS)]
    with pytest.raises(RlinfError, match="expected 8 or more views of the board, got 7"):
        solve(views_of_board[:7], "tool")
    about_one = [
        View(seven(tool), board)
        for tool, board in views(CAMERA, BOARD, [(a / 10, 0, 0) for a in range(9)])
    ]
    with pytest.raises(RlinfError, match="about at least two axes"):
        solve(about_one, "tool")
    swapped = [
        *views_of_board[:3],
        View(views_of_board[3].tool, views_of_board[4].board),
        View(views_of_board[4].tool, views_of_board[3].board),
        *views_of_board[5:],
    ]
    assert solve(swapped, "tool").error_mm > 5.0 > solve(views_of_board, "tool").error_mm


def test_the_file_keeps_other_cameras_and_says_what_is_wrong_by_line(tmp_path):
    path = tmp_path / "hand_eye.yaml"
    mount = Mount(on="tool", position=(0, 0, 0.1), orientation=(0, 0, 0, 1), error_mm=0.4)
    save(path, "wrist", mount)
    save(path, "front", mount.but(on="base"))
    assert load(path).cameras == {"wrist": mount, "front": mount.but(on="base")}
    path.write_text(
        "cameras:\n  wrist: {on: tool, position: [0, 0, 0], orientation: [0, 0, 0, 2]}\n"
    )
    with pytest.raises(RecipeError, match="hand_eye.yaml, line 2.*length 1"):
        load(path)


def test_a_stations_recorder_is_told_where_its_cameras_are(tmp_path):
    recipe = load_recipe("franka_twin_devices")
    recorder = next(
        process for process in station_processes(recipe, tmp_path) if process.name == "recorder"
    )
    frames = {name: mount["frame"] for name, mount in recorder.parameters["mounts"].items()}
    assert (frames["wrist_optical_frame"], frames["front_optical_frame"]) == ("tool0", "base_link")


MOUNT = "on: tool, position: [0, 0, 0], orientation: [0, 0, 0, 1]"


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "robot.yaml, line 3: 'hand_eye': expected a file, got"),
        (
            f"cameras:\n  side: {{{MOUNT}, erorr_mm: 1}}\n",
            "line 2: unknown key 'cameras.side.erorr_mm' (did you",
        ),
        (
            f"cameras:\n  sied: {{{MOUNT}}}\n",
            "hand_eye.yaml, line 2: 'cameras.sied': expected a camera of robot.yaml (side), "
            "got 'sied' (did you mean 'side'?)",
        ),
        (
            f"cameras:\n  side: {{{MOUNT}, arm: left}}\n",
            "'cameras.side.arm': expected an arm of robot.yaml (none: it has no "
            "arm with a name), got 'left'",
        ),
        (
            "cameras:\n  side:\n    position: [0, 0, 0]\n    orientation: [0, 0, 0, 1]\n    on: "
            "tool\n",
            "hand_eye.yaml, line 5: 'cameras.side.on': expected base, since robot.yaml has no "
            "tool frame (tool_frame: ''), got tool",
        ),
    ],
)
def test_a_hand_eye_file_is_checked_with_its_robot(tmp_path, text, message):
    (tmp_path / "robot.yaml").write_text(
        "driver: external\nlimits: limits.yaml\nhand_eye: hand_eye.yaml\n"
        "cameras: {side: [64, 64]}\ntool_frame: ''\n"
    )
    (tmp_path / "limits.yaml").write_text("")
    if text:
        (tmp_path / "hand_eye.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        load_robot(f"{tmp_path}/")
    assert message in str(error.value)


def scene(seed=0):
    random = np.random.default_rng(seed)
    return cv2.GaussianBlur(random.integers(0, 255, (120, 160, 3), dtype=np.uint8), (0, 0), 3.0) * 1


@pytest.mark.parametrize(
    "right, down, turned",
    [(0, 0, 0.0), (4, -3, 0.0), (-6, 5, 0.03), (0.4, 0.3, 0.0), (2, 1, -0.05)],
)
def test_how_far_a_picture_has_moved_and_turned(right, down, turned):
    image = cv2.normalize(scene(), None, 0, 255, cv2.NORM_MINMAX)
    about = cv2.getRotationMatrix2D((80, 60), -np.degrees(turned), 1.0)
    about[:, 2] += (right, down)
    how = picture_motion(
        image, cv2.warpAffine(image, about, (160, 120), borderMode=cv2.BORDER_REFLECT)
    )
    assert (how.right, how.down, how.rotation) == pytest.approx(
        (right, down, turned), abs=0.3
    ) and how.similarity > 0.8
    assert abs(how.rotation - turned) < 0.005
    assert how.aligned == (abs(right) < 1 and abs(down) < 1 and abs(turned) < 0.005)


def test_another_scene_is_no_alignment_and_another_size_refused():
    one, other = (cv2.normalize(scene(seed), None, 0, 255, cv2.NORM_MINMAX) for seed in (0, 1))
    how = picture_motion(one, other)
    assert not how.aligned and "are too different" in how.advice
    assert comparison(one, other).shape == (120, 480, 3)
    with pytest.raises(RlinfError, match="Take the reference again"):
        picture_motion(one, other[:100])


@pytest.mark.parametrize(
    "name, error",
    [
        ("view", "expected the name of a picture, such as view.png, got one that ends in ''"),
        ("view.txt", "such as view.png, got one that ends in '.txt'"),
        ("file/view.png", "cannot be written: File exists"),
        ("folder.png", "cannot be written: Is a directory"),
    ],
)
def test_a_picture_that_cannot_be_written_is_told_and_one_that_can_is_that_picture(
    name, error, tmp_path
):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    image = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
    save_picture(tmp_path / "views/top.png", image)
    assert np.array_equal(read_reference(tmp_path / "views/top.png", ""), image)
    with pytest.raises(RlinfError, match=re.escape(error)):
        save_picture(tmp_path / name, image)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.png", "views"}
