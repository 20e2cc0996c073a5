"""Files for Rerun's viewer of recordings that the spool has written, read back by Rerun's own
reader.
"""

import cv2
import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.spool import Spool
from tests.messages import raw_messages, record, write_raw

rerun = pytest.importorskip("rerun")
from rlinf_core.data.episodes import episode_spec  # noqa: E402
from rlinf_core.data.rerun import RerunEpisode, arm_entity, export, messages  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::rerun.error_utils.RerunWarning")
NS = 1_000_000_000


@pytest.fixture
def spool(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spec = task.with_images({"front": (8, 12)}).spec
    messages = raw_messages(spec, "a-1", steps=5, sources={0: "operator"}) + list(shown())
    write_raw(spool, "a-1", messages).close()
    record(spool, spec, "a-2", steps=4, success=False).close()
    return spool


def shown():
    """Return an episode with poses, a picture, the interlock's state, and a broken pose."""
    store, (_, jpeg) = typestore(), cv2.imencode(".jpg", np.full((6, 8, 3), 90, np.uint8))
    types = store.types
    point = types["geometry_msgs/msg/Point"]
    turn = types["geometry_msgs/msg/Quaternion"](0.0, 0.0, 1.0, 0.0)

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
    """Return the columns of an entity by their short names, by Rerun's reader."""
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


def parts_of(file, entity, index="step"):
    """All columns of an entity, by component; text of its static data."""
    view = rerun.dataframe.load_recording(file).view(
        index=index, contents=f"/{entity}", include_semantically_empty_columns=True
    )
    table = view.select_static().read_all()
    return {
        name.rpartition(":")[2]: table.column(name).to_pylist()[0] for name in table.column_names
    }


@pytest.fixture
def files(spool, tmp_path):
    assert export([spool.root], tmp_path / "shown") == 2
    return tmp_path / "shown"


def test_an_episode_is_described_in_words(files, spool):
    episode = read_episode(spool.root / "closed/a-1")
    (text,) = parts_of(files / "a-1.rrd", "episode")["Text"]
    assert text == (
        "| episode | a-1 |\n|---|---|\n| outcome | success |\n| instruction | do it |\n"
        "| mode | train |\n| seed | 3 |\n| station | a |\n| policy version | 4 |\n"
        f"| limits | beef |\n| specs | {episode.spec_hash} |"
    )
    assert parts_of(files / "a-1.rrd", "episode")["MediaType"] == ["text/markdown"]


def test_plots_are_named_and_stand_at_their_time_steps(files, spool):
    file = files / "a-1.rrd"
    for entity, names in {
        "observation/force": ["force 0", "force 1", "force 2"],
        "action/requested": ["requested action_0", "requested action_1", "requested action_2"],
        "action/executed": ["executed action_0", "executed action_1", "executed action_2"],
        "episode/reward": ["reward"],
        "episode/takeover": ["takeover"],
    }.items():
        assert parts_of(file, entity)["Name"] == names, entity
    for entity, first, count in (
        ("action/requested", 0, 5),
        ("episode/reward", 1, 5),
        ("observation/force", 0, 6),
        ("observation/front", 0, 6),
    ):
        times = [at.total_seconds() for at in rows(file, entity, "time")["time"]]
        assert times == pytest.approx([0.1 * (first + step) for step in range(count)]), entity
        assert rows(file, entity)["step"] == list(range(first, first + count))
    log = rows(file, "episode/log")
    assert log["step"] == [0, 1, 5] and [level[0] for level in log["TextLogLevel"]] == ["INFO"] * 3


def test_a_change_of_the_commander_is_told_also_to_nobody(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    sources = {0: "", 1: "", 2: "operator", 3: "policy"}
    record(spool, task.spec, "a-1", steps=5, sources=sources, failure=True, success=False).close()
    export([spool.root], tmp_path / "shown")
    log = rows(tmp_path / "shown/a-1.rrd", "episode/log")
    assert [text[0] for text in log["Text"]] == [
        "nobody commands",
        "operator commands",
        "policy commands",
        "failure",
    ]
    assert log["step"] == [0, 2, 3, 5]


def test_poses_are_transforms_and_their_paths_lines_of_their_colours(files):
    file = files / "a-1.rrd"
    tool = rows(file, "world/tool", "time")
    assert np.array(tool["RotationQuat"])[:, 0].tolist() == [[0.0, 0.0, 1.0, 0.0]] * 2
    assert np.array(tool["AxisLength"]).ravel() == pytest.approx([0.05, 0.05])
    for entity, points, colour in (
        ("world/tool_path", [[0.5, 0.0, 0.2], [0.5, 0.1, 0.2]], 0x50A0FAFF),
        ("world/left/target_path", [[0.0, 0.0, 0.0]] * 2, 0xFAA03CFF),
    ):
        path = parts_of(file, entity)
        assert np.array(path["LineStrip3D"][0]) == pytest.approx(np.array(points)), entity
        assert path["Color"] == [colour], entity


def test_pictures_are_as_they_were_recorded(files):
    _, jpeg = cv2.imencode(".jpg", np.full((6, 8, 3), 90, np.uint8))
    camera = rows(files / "a-1.rrd", "camera/wrist", "time")
    assert bytes(np.array(camera["Blob"][0][0], np.uint8)) == jpeg.tobytes()
    assert [at.total_seconds() for at in camera["time"]] == [1.0]
    shown = rows(files / "a-1.rrd", "observation/front")["ImageFormat"][0][0]
    assert (shown["width"], shown["height"]) == (12, 8)


def stamped(topic, second, name, **fields):
    store = typestore()
    stamp = store.types["builtin_interfaces/msg/Time"](second, 0)
    message = store.types[name](header=store.types["std_msgs/msg/Header"](stamp, ""), **fields)
    return f"/station/{topic}", name, second * NS, bytes(store.serialize_cdr(message, name))


def event(topic, second, kind, cause):
    words = dict.fromkeys(("source", "session", "limits_hash"), "")
    numbers = {"tick": 0, "seq": 0, "requested": np.zeros(3), "commanded": np.zeros(3)}
    kind_and_cause = {"kind": kind, "cause": cause}
    return stamped(
        topic, second, "rlinf_msgs/msg/SafetyEvent", **kind_and_cause, **words, **numbers
    )


def state(topic, second, mode, source="", cause=""):
    counts = dict.fromkeys(("ticks", "holds", "refused", "dropped", "limited"), 0)
    words = {"source": source, "cause": cause, "limits_hash": ""}
    return stamped(topic, second, "rlinf_msgs/msg/SafetyState", state=mode, **words, **counts)


def test_states_and_events_of_each_interlock_are_told_by_their_weight(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    states = [
        state("safety", 0, 2, "policy"),
        state("left/safety", 0, 3, "", "too fast"),
        state("safety", 1, 2, "policy"),
        state("safety", 2, 4, "", "estop"),
        state("left/safety", 3, 3, "", "too slow"),
        event("safety/events", 1, "refused", "other session"),
        event("left/safety/events", 2, "limited", "speed"),
    ]
    write_raw(spool, "a-1", raw_messages(task.spec, "a-1") + states).close()
    export([spool.root], tmp_path / "shown")
    file = tmp_path / "shown/a-1.rrd"

    def log(entity):
        table = rows(file, entity, "time")
        return [
            (at.total_seconds(), text[0], level[0])
            for at, text, level in zip(
                table["time"], table["Text"], table["TextLogLevel"], strict=True
            )
        ]

    assert log("safety/log") == [
        (0.0, "ACTIVE policy", "INFO"),
        (1.0, "refused other session", "DEBUG"),
        (2.0, "FAULT: estop", "ERROR"),
    ]
    assert log("safety/left/log") == [
        (0.0, "HOLD: too fast", "WARN"),
        (2.0, "limited speed", "DEBUG"),
        (3.0, "HOLD: too slow", "WARN"),
    ]
    assert rows(file, "safety/left/state", "time")["Scalar"] == [[3.0], [3.0]]


def test_messages_have_their_topic_s_name_and_the_broken_ones_none(spool, tmp_path):
    read = list(messages(spool.root / "closed/a-1"))
    names = [name for name, _, _ in read]
    assert sorted(names) == sorted(
        ["current_pose"] * 3
        + ["left/target_pose"] * 2
        + ["camera/wrist/image/compressed"]
        + ["safety"] * 3
    )
    broken = [(name, at_ns) for name, at_ns, message in read if message is None]
    assert broken == [("current_pose", NS)]
    assert list(messages(spool.root / "closed/a-2")) == []
    log = rows(tmp_path_file(spool, tmp_path), "episode/log", "time")
    warned = [
        (at.total_seconds(), text[0])
        for at, text, level in zip(log["time"], log["Text"], log["TextLogLevel"], strict=True)
        if level[0] == "WARN"
    ]
    assert warned == [(1.0, "current_pose: an unreadable message")]


def tmp_path_file(spool, tmp_path):
    export([spool.root], tmp_path / "more")
    return tmp_path / "more/a-1.rrd"


def views_of(container):
    """Return the layout as nested lists: class, name, origin and contents of each view."""
    return [
        views_of(one)
        if hasattr(one, "kind")
        else (one.class_identifier, one.name, one.origin, one.contents)
        for one in container.contents
    ]


def test_the_first_layout_shows_arm_cameras_plots_and_words(spool):
    folder = spool.root / "closed/a-1"
    episode = read_episode(folder)
    spec = episode_spec(episode, folder, None)
    vectors = [f"observation/{item.name}" for item in spec.vectors]
    common = [
        [
            ("TimeSeries", "observation", "/", vectors),
            ("TimeSeries", "action", "action", "$origin/**"),
            (
                "TimeSeries",
                "reward and safety",
                "/",
                ["episode/reward", "episode/takeover", "safety/**"],
            ),
        ],
        [
            ("TextLog", "what happened", "/", ["safety/**", "episode/log"]),
            ("TextDocument", "episode", "episode", "$origin/**"),
        ],
    ]
    shown = RerunEpisode(episode, spec)
    shown.to_bytes(folder)
    layout = shown._layout()
    assert layout.collapse_panels is True
    front = "observation/front"
    assert views_of(layout.root_container) == [
        [
            ("3D", "arm", "world", "$origin/**"),
            ("2D", "camera/wrist", "camera/wrist", "$origin/**"),
        ],
        *common,
    ]
    other = RerunEpisode(read_episode(spool.root / "closed/a-2"), spec)
    other.to_bytes(spool.root / "closed/a-2")
    assert views_of(other._layout().root_container) == [
        [("2D", front, front, "$origin/**")],
        *common,
    ]
    blind = RerunEpisode(episode, type(spec)(spec.vectors, spec.action, 10.0))
    assert views_of(blind._layout().root_container) == common


def test_several_arms_stand_below_their_names():
    assert arm_entity("world", "") == "world" and arm_entity("world", "left") == "world/left"


def test_an_episode_whose_id_is_no_file_name_is_refused(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    folder = write_raw(spool, "a-1", raw_messages(task.spec, "../a\x1b")).close()
    with pytest.raises(EpisodeError) as refused:
        export([spool.root], tmp_path / "shown")
    assert str(refused.value) == (
        f"{folder}: expected an episode id that is valid as a file name, got ../a\\x1b"
    )
    assert not list(tmp_path.glob("shown*"))


def test_a_recipe_names_the_actions(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, task.spec, "a-1").close()
    export([spool.root], tmp_path / "shown", "demo")
    names = parts_of(tmp_path / "shown/a-1.rrd", "action/requested")["Name"]
    assert names == ["requested dx", "requested dy", "requested dz"]
    recording = rerun.dataframe.load_recording(tmp_path / "shown/a-1.rrd")
    assert (recording.application_id(), recording.recording_id()) == ("rlinf a", "a-1")
