"""Paths of devices without hardware; files of other programs are never removed."""

import os

import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.spacemouse import SpaceMouse
from rlinf_core.robots.operators.twins import DevicePipe

KINDS = pytest.mark.parametrize("kind", ["spacemouse", "gamepad", "pedal", "leader", "robotiq"])


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    (tmp_path / "said").write_text("")
    with (tmp_path / "said").open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        yield


@KINDS
@pytest.mark.parametrize("what", ["file", "link to it", "folder"])
def test_a_twin_takes_nobodys_file(kind, what, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir() if what == "folder" else mine.write_text("a day's work")
    path = tmp_path / "link" if what == "link to it" else mine
    if path != mine:
        path.symlink_to(mine)
    assert main(["fake-device", kind, "--path", str(path)]) == 1
    assert f"expected an unused path for a twin, got {path}" in capsys.readouterr().err
    assert os.path.lexists(path) and (what == "folder" or mine.read_text() == "a day's work")


@KINDS
def test_a_twin_in_no_folder_is_one_line(kind, tmp_path, capsys):
    assert main(["fake-device", kind, "--path", str(tmp_path / "gone/x")]) == 1
    assert capsys.readouterr().err == (
        f"rlinf: expected a path in an existing folder, got {tmp_path}/gone/x. Create that folder, "
        "or choose another [RL-E510]\n"
    )


@KINDS
def test_what_a_twin_that_was_killed_has_left_is_taken_again(kind, tmp_path, capsys):
    (tmp_path / "twin").symlink_to(tmp_path / "a terminal that has gone")
    assert main(["fake-device", kind, "--path", str(tmp_path / "twin")]) == 0
    assert f"is at {tmp_path}/twin" in capsys.readouterr().out and not os.path.lexists(
        tmp_path / "twin"
    )


def test_a_pipe_of_another_user_moves_no_arm_and_is_no_place_for_a_twin(tmp_path):
    if os.geteuid():
        pytest.skip("only root may give a pipe away")
    path = tmp_path / "mouse"
    os.mkfifo(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(
        DeviceError, match="got a pipe of uid 12345, another user, who could move the arm"
    ):
        SpaceMouse(device=str(path)).open()
    with pytest.raises(DeviceError, match="expected an unused path for a twin"):
        DevicePipe(path)
    os.chown(path, 0, 0)
    twin, mouse = DevicePipe(path), SpaceMouse(device=str(path))
    mouse.open()
    mouse.close()
    twin.unplug()
