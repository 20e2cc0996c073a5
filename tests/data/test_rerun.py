"""Files for Rerun's viewer of recordings that the spool has written, read back by Rerun's own
reader.
"""

import cv2
import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.spool import Spool
from tests.messages import raw_messages, record, write_raw

rerun = pytest.importorskip("rerun")
pytestmark = pytest.mark.filterwarnings("error::rerun.error_utils.RerunWarning")
NS = 1_000_000_000


@pytest.fixture
def spool(tmp_path, task):
    spool, spec = (
        Spool(tmp_path / "spool", min_free_mb=0),
        task.with_images({"front": (8, 12)}).spec,
    )
    messages = raw_messages(spec, "a-1", steps=5, sources={0: "operator"}) + list(shown())
    write_raw(spool, "a-1", messages).close()
    record(spool, spec, "a-2", steps=4, success=False).close()
    return spool


def shown():
    """What stands beside the time steps: poses, a picture as it was recorded, the interlock, and a
    broken pose.
    """
    store, (_, jpeg) = typestore(), cv2.imencode(".jpg", np.full((6, 8, 3), 90, np.uint8))
    types = store.types
    point, turn = (
        types["geometry_msgs/msg/Point"],
        types["geometry_msgs/msg/Quaternion"](0.0, 0.0, 1.0, 0.0),
    )

    def put(topic, kind, second, **fields):
        stamp = types["builtin_interfaces/msg/Time"](second, 0)
        message = types[kind](header=types["std_msgs/msg/Header"](stamp, ""), **fields)
        return f"/station/{topic}", kind, second * NS, bytes(store.serialize_cdr(message, kind))

    pose = types["geometry_msgs/msg/Pose"]
    for second in (0, 1):
        yield put(
            "current_pose",
            "geometry_msgs/msg/PoseStamped",
            second,
            pose=pose(point(0.5, 0.1 * second, 0.2), turn),
        )
        yield put(
            "left/target_pose",
            "geometry_msgs/msg/PoseStamped",
            second,
            pose=pose(point(0.0, 0.0, 0.0), turn),
        )
    yield "/station/current_pose", "geometry_msgs/msg/PoseStamped", NS, b"\x00\x01\x00\x00broken"
    yield put(
        "camera/wrist/image/compressed",
        "sensor_msgs/msg/CompressedImage",
        1,
        format="rgb8; jpeg",
        data=jpeg.ravel(),
    )
    for second, state in ((0, 2), (1, 2), (2, 4)):
        yield put(
            "safety",
            "rlinf_msgs/msg/SafetyState",
            second,
            state=state,
            source="policy" * (state == 2),
            cause="estop:pendant" * (state == 4),
            ticks=0,
            holds=0,
            refused=0,
            dropped=0,
            limited=0,
            limits_hash="",
        )


def rows(file, entity, index="step"):
    """The columns of an entity by their short names, by Rerun's reader."""
    view = rerun.dataframe.load_recording(file).view(index=index, contents=f"/{entity}")
    table = view.select().read_all()
    return {
        name.rpartition(":")[2]: table.column(name).to_pylist()
        for name in table.column_names
        if not name.startswith("log_t")
    }


def exported(spool, out, *options):
    return main(["data", "export", "rerun", str(spool.root), "--out", str(out), *options])


def test_an_episode_is_there_step_by_step_to_the_last_bit(spool, tmp_path, capsys):
    assert exported(spool, tmp_path / "shown") == 0
    assert "2 episodes" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "shown").iterdir()) == ["a-1.rrd", "a-2.rrd"]
    file, episode = tmp_path / "shown/a-1.rrd", read_episode(spool.root / "closed/a-1")
    for entity, values in {
        "observation/force": episode.observations["force"],
        "action/requested": episode.requested,
        "action/executed": episode.executed,
    }.items():
        table = rows(file, entity)
        assert np.array_equal(np.array(table["Scalar"]), values), entity
        assert table["step"] == list(range(len(values)))
    assert rows(file, "episode/reward")["step"] == [1, 2, 3, 4, 5]
    assert rows(file, "episode/reward")["Scalar"] == [[0.0]] * 4 + [[1.0]]
    assert rows(file, "episode/takeover")["Scalar"] == [[1.0]] + [[0.0]] * 4
    pictures = rows(file, "observation/front")["ImageBuffer"]
    pixels = np.array([picture[0] for picture in pictures], np.uint8).reshape(6, 8, 12, 3)
    assert np.array_equal(pixels, episode.observations["front"])
    words = [text[0] for text in rows(file, "episode/log")["Text"]]
    assert words == ["operator commands", "policy commands", "success"]
    assert "time limit" in rows(tmp_path / "shown/a-2.rrd", "episode/log")["Text"][-1][0]


def test_what_stands_beside_the_steps_is_there_by_its_own_time(spool, tmp_path):
    assert exported(spool, tmp_path / "shown") == 0
    file = tmp_path / "shown/a-1.rrd"
    assert np.allclose(
        rows(file, "world/tool", "time")["Translation3D"], [[[0.5, 0.0, 0.2]], [[0.5, 0.1, 0.2]]]
    )
    assert [at.total_seconds() for at in rows(file, "world/tool", "time")["time"]] == [0, 1]
    assert len(rows(file, "world/left/target", "time")["RotationQuat"]) == 2
    assert rows(file, "camera/wrist", "time")["MediaType"] == [["image/jpeg"]]
    assert rows(file, "safety/state", "time")["Scalar"] == [[2.0], [2.0], [4.0]]
    assert [text[0] for text in rows(file, "safety/log", "time")["Text"]] == [
        "ACTIVE policy",
        "FAULT: estop:pendant",
    ]
    assert "current_pose: an unreadable message" in str(rows(file, "episode/log", "time")["Text"])


def test_names_are_the_recipes_and_what_is_there_is_not_overwritten(spool, tmp_path, capsys):
    (tmp_path / "shown").mkdir()
    assert (
        exported(spool, tmp_path / "shown") == 1
        and "expected an unused path, got an existing one" in capsys.readouterr().err
    )
    assert exported(spool, tmp_path / "new", "--recipe", "demo_vision") == 1
    assert "of recipe 'demo_vision'" in capsys.readouterr().err and not list(tmp_path.glob("new*"))
