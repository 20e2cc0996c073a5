"""LeRobot data sets of recordings that the spool has written."""

import json

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from tests.messages import record

pq, av = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("av")


@pytest.fixture
def spool(tmp_path, task):
    spool, spec = Spool(tmp_path / "spool", min_free_mb=0), task.with_images({"front": (32, 48)}).spec
    record(spool, spec, "a-1", steps=5, sources={0: "operator"}).close()
    record(spool, spec, "a-2", steps=7, success=False, start=9.0).close()
    return spool


def frames_of(file):
    with av.open(str(file)) as video:
        return [(float(frame.pts * frame.time_base), frame.to_ndarray(format="rgb24")) for frame in video.decode(video=0)]


def test_an_export_has_every_transition_to_the_last_bit_and_pictures_nearly(spool, tmp_path, capsys):
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    assert "2 episodes, 12 frames" in capsys.readouterr().out
    root, episodes = tmp_path / "set", [read_episode(spool.root / "closed" / name) for name in ("a-1", "a-2")]
    table = pq.read_table(root / "data/chunk-000/file-000.parquet").to_pydict()
    vectors = [name for name, values in episodes[0].observations.items() if values.dtype == np.float32]
    state = np.concatenate([np.concatenate([one.observations[name][:-1] for name in vectors], axis=1) for one in episodes])
    assert np.array_equal(np.array(table["observation.state"], np.float32), state)
    assert np.array_equal(np.array(table["action"], np.float32),
                          np.concatenate([one.requested for one in episodes]).astype(np.float32))
    assert table["next.reward"] == [0] * 4 + [1] + [0] * 7 and table["next.success"] == [False] * 4 + [True] + [False] * 7
    assert table["complementary_info.is_intervention"] == [True] + [False] * 11
    assert table["episode_index"] == [0] * 5 + [1] * 7 and table["index"] == list(range(12))
    rows = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    pictures = frames_of(root / "videos/observation.images.front/chunk-000/file-000.mp4")
    for row, episode in zip(rows, episodes, strict=True):
        start = row["videos/observation.images.front/from_timestamp"]
        for step in range(len(episode) + 1):  # the last one too, behind the episode's own
            (picture,) = [image for at, image in pictures if abs(at - start - step / 10) < 0.01]
            assert np.abs(picture.astype(int) - episode.observations["front"][step]).max() <= 4
    told = json.loads((root / "meta/rlinf.json").read_text())["episodes"]
    assert [one["id"] for one in told] == ["a-1", "a-2"] and told[1]["final_observation"]["force"] == [16.0, 16.0, 16.0]


def test_what_was_let_through_can_be_the_action(spool, tmp_path):
    assert main(["data", "export", "lerobot", str(spool.root), "--executed", "--out", str(tmp_path / "set")]) == 0
    table = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet").to_pydict()
    assert np.array(table["action"])[:, 0] == pytest.approx(0.01)


def test_a_damaged_episode_leaves_no_half_a_data_set(spool, tmp_path, capsys):
    file = spool.root / "closed/a-2/a-2.mcap"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 1
    assert "a-2" in capsys.readouterr().err and not list(tmp_path.glob("set*"))


def test_a_recipe_names_the_actions_and_another_is_refused(task, tmp_path, capsys):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, task.spec, "a-1").close()
    export = ["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set"), "--recipe"]
    assert main([*export, "demo_vision"]) == 1
    assert "expected specs" in capsys.readouterr().err and not list(tmp_path.glob("set*"))
    assert main([*export, "demo"]) == 0
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["features"]["action"]["names"] == list(task.spec.action.names) and info["video_path"] is None
