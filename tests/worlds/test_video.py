"""Video models in a process of their own, and branches in them."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.recipes import check_recipe, load_recipe, station_task
from rlinf_core.recipes.loader import recipe_yaml
from rlinf_core.rollouts.types import DEMONSTRATION, TRAIN, Trajectory
from rlinf_core.worlds import tiny_video
from rlinf_core.worlds.imagined_video import ImaginedVideoEnv
from rlinf_core.worlds.video import RemoteVideo, ReplayVideo

CAMERA = ["station.observe_cameras=[front]", "station.image_size=[16,16]"]
RECIPE = load_recipe("sim_rlpd", CAMERA)
TASK = station_task(RECIPE)


def moving(episodes=10, steps=20, seed=0):
    """Return a white square on grey that moves by the actions, and numbers of the demo's task."""
    random, played = np.random.default_rng(seed), []
    for number in range(episodes):
        place, frames, actions, vectors = random.uniform(5, 11, 2), [], [], []
        tool = np.array([0.5, 0.0, 0.1])
        for _ in range(steps + 1):
            frame = np.full((16, 16, 3), 90, np.uint8)
            row, column = np.round(place).astype(int)
            frame[max(row - 2, 0) : row + 2, max(column - 2, 0) : column + 2] = 230
            frames.append(frame)
            offset = [0.45, 0.0, 0.05] - tool
            vectors.append(np.concatenate([tool, np.zeros(6), offset]))
            actions.append(random.uniform(-1, 1, 3))
            place = np.clip(place + 2.0 * actions[-1][:2], 3, 13)
            tool = tool + 0.02 * actions[-1]
        played.append(
            Trajectory(
                {"vectors": np.array(vectors, np.float32), "front": np.array(frames)},
                np.array(actions[:-1], np.float32),
                np.zeros(steps, np.float32),
                np.ones(steps, np.float32),
                number % 3 == 0,
                DEMONSTRATION if number % 3 == 0 else TRAIN,
            )
        )
    return played


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    torch.set_num_threads(1)
    episodes = [(one.observations["front"], one.actions) for one in moving(20)]
    network, result = tiny_video.fit(episodes, updates=80, width=8)
    path = tiny_video.save(network, result, tmp_path_factory.mktemp("video") / "v.safetensors")
    return path, result


def test_the_tiny_model_sees_what_moves(fitted):
    _, result = fitted
    assert result.moving[0] < 0.9 * result.moving_persistence[0]


def test_a_replay_comes_back_across_the_process_boundary(tmp_path):
    episode = moving(1)[0]
    np.savez(tmp_path / "frames.npz", frames=episode.observations["front"])
    model = RemoteVideo("replay", {"file": str(tmp_path / "frames.npz")})
    world = ImaginedVideoEnv(model, TASK, [episode], 2, horizon=6)
    try:
        observation = world.reset([1, 2])
        shown = episode.observations["front"]
        for row in range(2):
            first = int(
                np.abs(shown.astype(int) - observation["front"][row]).sum((1, 2, 3)).argmin()
            )
            place = observation["vectors"][row, :3].copy()
            steps = world.step(np.full((2, 3), 0.5))
            expected = shown[min(first + 1, len(shown) - 1)]
            np.testing.assert_array_equal(steps.next_observations["front"][row], expected)
            moved = steps.next_observations["vectors"][row]
            if row == 0:
                np.testing.assert_allclose(moved[:3], place + 0.01, atol=1e-6)
                np.testing.assert_allclose(moved[3:6], 0.1, atol=1e-6)
            world.reset([1, 2])
    finally:
        world.close()


def test_the_tiny_model_is_the_same_in_its_process(fitted):
    path, _ = fitted
    local, remote = tiny_video.TinyVideo(str(path)), RemoteVideo("tiny", {"file": str(path)})
    try:
        episode = moving(1, seed=5)[0]
        frames = episode.observations["front"][None, :2]
        for model in (local, remote):
            model.begin([7], frames, episode.actions[None, :1])
        for step in range(3):
            actions = episode.actions[None, None, step + 1]
            np.testing.assert_array_equal(local.step([7], actions), remote.step([7], actions))
    finally:
        remote.close()


def test_a_chunk_of_actions_brings_its_frames_at_its_end():
    class Chunked:
        condition, chunk = 1, 3

        def begin(self, rows, frames, actions):
            self.shape = frames.shape[2:]

        def step(self, rows, actions):
            assert actions.shape == (len(rows), 3, 3)
            return np.full((len(rows), 3, *self.shape), 7, np.uint8)

    world = ImaginedVideoEnv(Chunked(), TASK, moving(2), 2, horizon=6)
    world.reset([0, 1])
    frames = [world.step(np.zeros((2, 3))).next_observations["front"].mean() for _ in range(6)]
    assert frames[0] > 80 and frames[1] > 80 and frames[2] == 7 == frames[5]


def test_branches_end_at_the_horizon_and_begin_in_recorded_frames(fitted):
    path, _ = fitted
    played = moving(6)
    world = ImaginedVideoEnv(tiny_video.TinyVideo(str(path)), TASK, played, 3, horizon=4)
    recorded = np.concatenate([one.observations["front"] for one in played])
    first = world.reset([4, 5, 6])
    again = ImaginedVideoEnv(tiny_video.TinyVideo(str(path)), TASK, played, 3, horizon=4).reset(
        [4, 5, 6]
    )
    np.testing.assert_array_equal(first["front"], again["front"])
    for _ in range(4):
        steps = world.step(np.zeros((3, 3)))
    assert steps.truncated.all() and world.branch_count == 6
    for frame in steps.observation["front"]:
        assert (recorded == frame).all((1, 2, 3)).any()


def test_errors_of_the_model_reach_this_process(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "class Bad:\n"
        "    condition, chunk = 1, 1\n"
        "    def begin(self, rows, frames, actions): raise ValueError('no weights')\n"
        "    def step(self, rows, actions):\n"
        "        import numpy\n"
        "        return numpy.zeros((len(rows), 2, 4, 4, 3), numpy.uint8)\n"
    )
    model = RemoteVideo(f"{bad}:Bad", {})
    try:
        with pytest.raises(RlinfError, match="ValueError: no weights"):
            model.begin([0], np.zeros((1, 1, 4, 4, 3), np.uint8), np.zeros((1, 0, 3)))
        with pytest.raises(RlinfError, match="expected frames of shape"):
            model.step([0], np.zeros((1, 1, 3)))
    finally:
        model.close()
    with pytest.raises(RlinfError, match="expected options of its class"):
        RemoteVideo("replay", {"films": "x"})
    with pytest.raises(RlinfError, match="fit-video"):
        RemoteVideo("tiny", {"file": str(bad)})


MODEL = """
import numpy
class Bad:
    condition, chunk = {sizes}
    def begin(self, rows, frames, actions): pass
    def step(self, rows, actions):
        return {frames}
"""
FRAMES = {
    "floating": ("numpy.full((len(rows), 1, 4, 4, 3), 0.5)", "got float64"),
    "nan": ("numpy.full((len(rows), 1, 4, 4, 3), numpy.nan)", "48 values that are not finite"),
    "int64": ("numpy.zeros((len(rows), 1, 4, 4, 3), int)", "got int64"),
    "grey": ("numpy.zeros((len(rows), 1, 4, 4, 1), numpy.uint8)", r"got uint8 .* 4, 4, 1\)"),
    "rgba": ("numpy.zeros((len(rows), 1, 4, 4, 4), numpy.uint8)", r"got uint8 .* 4, 4, 4\)"),
    "no frame": ("numpy.zeros((len(rows), 0, 4, 4, 3), numpy.uint8)", r"\(1, 1, any, any, 3\)"),
    "flat": ("numpy.zeros((len(rows), 48), numpy.uint8)", "got uint8"),
    "none": ("None", "got object"),
    "another size": ("numpy.zeros((len(rows), 1, 8, 8, 3), numpy.uint8)", r"\(1, 1, 4, 4, 3\)"),
}


@pytest.mark.parametrize(("frames", "message"), FRAMES.values(), ids=FRAMES)
def test_damaged_frames_of_the_other_process_are_refused_by_name(frames, message, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(MODEL.format(sizes="1, 1", frames=frames))
    model = RemoteVideo(f"{bad}:Bad", {})
    try:
        model.begin([0], np.zeros((1, 1, 4, 4, 3), np.uint8), np.zeros((1, 0, 3)))
        with pytest.raises(RlinfError, match=f"bad.py:Bad': expected frames of .*{message}"):
            model.step([0], np.zeros((1, 1, 3)))
    finally:
        model.close()


@pytest.mark.parametrize("sizes", ["0, 1", "1, 0", "1, 1.5", "None, 1"])
def test_counts_of_frames_below_one_are_refused(sizes, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(MODEL.format(sizes=sizes, frames="None"))
    with pytest.raises(RlinfError, match="expected a whole number from 1 on"):
        RemoteVideo(f"{bad}:Bad", {})


@pytest.mark.parametrize(
    "answer",
    [b"a warning\n", b"[]\n", b"{}\n", b'{"shape": [-1, -3]}\n', b'{"shape": ["a"]}\n'],
)
def test_an_answer_of_another_protocol_is_refused_by_name(answer, tmp_path):
    np.savez(tmp_path / "frames.npz", frames=np.zeros((3, 4, 4, 3), np.uint8))
    model = RemoteVideo("replay", {"file": str(tmp_path / "frames.npz")})
    model._file.close()
    model._file = io.BytesIO(answer)
    with pytest.raises(RlinfError, match="video model 'replay': expected an answer in JSON"):
        model._answer()


def test_damaged_frames_to_begin_from_are_refused(tmp_path, fitted):
    np.savez(tmp_path / "frames.npz", frames=np.zeros((3, 16, 16, 3), np.uint8))
    replayed = RemoteVideo("replay", {"file": str(tmp_path / "frames.npz")})
    tiny = tiny_video.TinyVideo(str(fitted[0]))
    try:
        for model in (replayed, tiny):
            count = model.condition
            actions = np.zeros((1, count - 1, 3))
            for frames in (
                np.full((1, count, 16, 16, 3), np.nan),
                np.zeros((1, count, 16, 16, 4), np.uint8),
                np.zeros((1, count + 1, 16, 16, 3), np.uint8),
                np.zeros((2, count, 16, 16, 3), np.uint8),
            ):
                with pytest.raises(RlinfError, match="video model '(replay|tiny)'.*expected frame"):
                    model.begin([0], frames, actions)
        with pytest.raises(RlinfError, match="'replay'.*expected frames of shape"):
            replayed.begin([0], np.zeros((1, 1, 8, 8, 3), np.uint8), np.zeros((1, 0, 3)))
        frames = np.zeros((1, 2, 16, 16, 3), np.uint8)
        with pytest.raises(RlinfError, match="sides 4 divides"):
            tiny.begin([0], frames[:, :, :15], np.zeros((1, 1, 3)))
        with pytest.raises(RlinfError, match="expected actions of shape"):
            tiny.begin([0], frames, np.zeros((1, 1, 7)))
        tiny.begin([0], frames, np.zeros((1, 1, 3)))
        with pytest.raises(RlinfError, match="expected finite actions, got .*nan.* in row 0"):
            tiny.step([0], np.full((1, 1, 3), np.nan))
    finally:
        replayed.close()


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((3, 16, 16, 3)),
        np.zeros((3, 16, 16), np.uint8),
        np.zeros((3, 16, 16, 4), np.uint8),
        np.zeros((0, 16, 16, 3), np.uint8),
        np.array([{}], object),
        None,
    ],
)
def test_a_damaged_file_of_frames_is_refused_by_name(frames, tmp_path):
    file = tmp_path / "frames.npz"
    np.savez(file, **({} if frames is None else {"frames": frames}))
    with pytest.raises(RlinfError, match=f"{file}: expected (frames of|an .npz)"):
        ReplayVideo(str(file))
    file.write_bytes(b"PK not")
    with pytest.raises(RlinfError, match="expected an .npz"):
        ReplayVideo(str(file))


def test_damaged_weights_are_refused(fitted, tmp_path):
    network, result = tiny_video.fit(
        [(one.observations["front"], one.actions) for one in moving(4)], updates=1, width=8
    )
    network.state_dict()["out.bias"][0] = float("nan")
    path = tiny_video.save(network, result, tmp_path / "nan.safetensors")
    with pytest.raises(RlinfError, match="finite weights, got others in out.bias"):
        tiny_video.TinyVideo(str(path))


RECORDINGS = {
    "floating": ("front", lambda shown: shown / 255.0, "got float64"),
    "nan": ("front", lambda shown: np.where(shown > 200, np.nan, shown), "not finite"),
    "rgba": ("front", lambda shown: np.concatenate([shown, shown[..., :1]], -1), "16, 16, 4"),
    "larger": ("front", lambda shown: shown.repeat(2, axis=1), "32, 16, 3"),
    "short": ("front", lambda shown: shown[:-1], r"got uint8 of shape \(20"),
    "numbers": ("vectors", lambda numbers: numbers * np.nan, "252 values that are not finite"),
    "fewer numbers": ("vectors", lambda numbers: numbers[:, 1:], r"got shape \(21, 11\)"),
}


@pytest.mark.parametrize(("name", "change", "message"), RECORDINGS.values(), ids=RECORDINGS)
def test_damaged_recordings_are_refused_by_their_number(name, change, message, fitted):
    played = moving(6)
    observations = dict(played[4].observations)
    observations[name] = change(observations[name])
    played[4] = replace(played[4], observations=observations)
    model = tiny_video.TinyVideo(str(fitted[0]))
    with pytest.raises(RlinfError, match=f"recorded episode 4.*{message}"):
        ImaginedVideoEnv(model, TASK, played, 1, 4)
    if name == "front":
        episodes = [(one.observations["front"], one.actions) for one in played]
        with pytest.raises(RlinfError, match="a video model: episode 4: expected frames"):
            tiny_video.fit(episodes, updates=1)


def test_damaged_actions_and_missing_cameras_are_refused(fitted):
    model, played = tiny_video.TinyVideo(str(fitted[0])), moving(6)
    damaged = replace(played[4], actions=played[4].actions * np.float32("nan"))
    blind = replace(played[4], observations={"vectors": played[4].observations["vectors"]})
    with pytest.raises(RlinfError, match="recorded episode 4: expected finite actions"):
        ImaginedVideoEnv(model, TASK, [*played[:4], damaged], 1, 4)
    with pytest.raises(RlinfError, match="episode 4: .* got none called front"):
        ImaginedVideoEnv(model, TASK, [*played[:4], blind], 1, 4)
    with pytest.raises(RlinfError, match="episode 4: expected finite actions"):
        tiny_video.fit([(one.observations["front"], one.actions) for one in [*played[:4], damaged]])
    world = ImaginedVideoEnv(model, TASK, played, 2, 4)
    world.reset([0, 1])
    with pytest.raises(RlinfError, match="policy in a video model: expected finite .* in row 1"):
        world.step(np.array([[0.0] * 3, [np.nan] * 3]))


def test_damaged_frames_of_a_model_in_this_process_are_refused():
    class Local:
        condition, chunk, frames = 1, 1, np.zeros((2, 1, 16, 16, 3))

        def begin(self, rows, frames, actions):
            pass

        def step(self, rows, actions):
            return self.frames

    model = Local()
    world = ImaginedVideoEnv(model, TASK, moving(2), 2, horizon=6)
    world.reset([0, 1])
    for frames in (
        model.frames,
        np.zeros((2, 1, 16, 16, 4), np.uint8),
        np.zeros((2, 2, 16, 16, 3), np.uint8),
        np.zeros((1, 1, 16, 16, 3), np.uint8),
    ):
        model.frames = frames
        with pytest.raises(RlinfError, match="a video model: expected frames of shape"):
            world.step(np.zeros((2, 3)))
    model.chunk = 0
    with pytest.raises(RlinfError, match="chunk: expected a whole number from 1 on"):
        ImaginedVideoEnv(model, TASK, moving(2), 2, 6)


def test_a_task_that_no_frame_judges_is_refused():
    vision = station_task(load_recipe("sim_rlpd", [*CAMERA, "station.task=peg_insertion_vision"]))
    played = moving(2)
    cut = [replace(one, observations=dict(one.observations)) for one in played]
    with pytest.raises(RecipeError, match="rlinf reward train"):
        ImaginedVideoEnv(object(), vision, cut, 1, 4)
    with pytest.raises(RecipeError, match="one camera"):
        ImaginedVideoEnv(object(), station_task(load_recipe("sim_rlpd")), played, 1, 4)


def test_the_recipe_needs_a_run():
    with pytest.raises(RecipeError, match="world.run"):
        load_recipe("sim_rlpd", [*CAMERA, "world.video.model=tiny"])
    check_recipe(load_recipe("sim_rlpd", [*CAMERA, "world.video.model=tiny", "world.run=x"]))


def test_the_command_fits_and_films(tmp_path, monkeypatch, capsys):
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(RECIPE))
    monkeypatch.setattr("rlinf_core.trainer.worlds.run_episodes", lambda run, spec: moving(6))
    film, figures = tmp_path / "film.mp4", tmp_path / "v.json"
    command = ["world", "fit-video", str(tmp_path), "--updates", "20"]
    assert main([*command, "--film", str(film), "--json", str(figures)]) == 0
    assert film.stat().st_size > 500 and "error_1" in json.loads(figures.read_text())
    assert (tmp_path / "video.safetensors").is_file()
    assert "held out" in capsys.readouterr().out
    (tmp_path / "video.safetensors").unlink()
    for fit in ("fit", "fit-video"):
        assert main(["world", fit, str(tmp_path / "recipe.yaml")]) == 1
        assert "recipe.yaml: expected the folder of a run, got a file" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.safetensors"))
