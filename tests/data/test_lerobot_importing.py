"""Episodes that an import makes of a LeRobot data set, field by field, and what it refuses."""

import json

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError, RlinfError
from rlinf_core.episodes import read_episode
from rlinf_core.recipes import load_recipe, station_task

pa = pytest.importorskip("pyarrow")
pytest.importorskip("av")
from rlinf_core.data.lerobot.importing import import_dataset  # noqa: E402
from tests.data.lerobot_sets import CAMERAS, LENGTHS, RECIPE, OddSet  # noqa: E402

FRONT, WRIST = CAMERAS
OVERRIDES = RECIPE[3:]
# as every version names the episodes of a set of these numbers
PINNED = ["my_set___-000000-581bb4f2", "my_set___-000001-2cc7654f", "my_set___-000002-7140bbee"]


@pytest.fixture(scope="module")
def spec():
    return station_task(load_recipe("demo_vision", OVERRIDES)).spec


def written(root, change=lambda odd: None):
    odd = OddSet().with_images()
    change(odd)
    return odd, odd.write(root)


def imported(root, out, **options):
    """Return the messages of the import, and the episodes in their order."""
    counts = import_dataset(root, out, "demo_vision", OVERRIDES, **options)
    return counts, [read_episode(folder, sealed=True) for folder in sorted(out.iterdir())]


def refusal(root, out, recipe="demo_vision", **options):
    with pytest.raises(RlinfError) as refused:
        import_dataset(root, out, recipe, OVERRIDES if recipe else None, **options)
    assert not list(out.parent.glob(f"{out.name}*"))
    return str(refused.value)


def test_a_foreign_set_is_demonstrations_that_succeeded(tmp_path, spec):
    odd, root = written(tmp_path / "set")
    counts, episodes = imported(root, tmp_path / "new")
    assert counts == (3, 18, [])
    begin = 0
    for number, episode in enumerate(episodes):
        length = LENGTHS[number]
        rows = slice(begin, begin + length)
        assert len(episode) == length and episode.id.startswith(f"set-00000{number}-")
        assert (episode.station, episode.mode, episode.seed) == (
            "station_a",
            "demonstration",
            number,
        )
        assert (episode.success, episode.failure, episode.truncated) == (True, False, False)
        assert (episode.policy_version, episode.spec_hash, episode.limits_hash) == (
            -1,
            spec.hash,
            "",
        )
        assert episode.instructions == ("put it in",) * (length + 1)
        assert episode.sources == ("operator",) * length and episode.limits == ((),) * length
        assert episode.rewards.tolist() == [0.0] * (length - 1) + [1.0]
        assert episode.discounts.tolist() == [1.0] * (length - 1) + [0.0]
        assert episode.stamps_ns.tolist() == [100_000_000 * step for step in range(length + 1)]
        for actions in (episode.requested, episode.executed):
            assert np.array_equal(actions, np.array(odd.columns["action"][rows]))
        state = np.array(odd.columns["observation.state"][rows], np.float32)
        for place, name in enumerate(("tcp_position", "tcp_velocity", "force")):
            part = state[:, 3 * place : 3 * place + 3]
            assert np.array_equal(episode.observations[name], [*part, part[-1]]), name
        greys = [10 + 4 * row for row in (*range(begin, begin + length), begin + length - 1)]
        for camera in ("front", "wrist"):
            assert episode.observations[camera].mean((1, 2, 3)).tolist() == greys
        begin += length


def test_ids_are_the_same_for_the_same_numbers_and_others_for_others(tmp_path):
    ids = []
    for name, change in (
        ("a", lambda odd: None),
        ("b", lambda odd: odd.columns["action"][0].__setitem__(0, 0.0)),
        ("c", lambda odd: odd.columns["observation.state"][0].__setitem__(0, 0.0)),
    ):
        _, root = written(tmp_path / name / ".my set! é", change)
        ids.append([episode.id for episode in imported(root, tmp_path / f"{name}.new")[1]])
    assert ids[0] == PINNED
    for other in ids[1:]:
        assert other[0] != ids[0][0] and other[1:] == ids[0][1:]


def test_a_folder_without_a_usable_name_gives_its_episodes_one(tmp_path):
    _, root = written(tmp_path / "...")
    assert {episode.id[:6] for episode in imported(root, tmp_path / "new")[1]} == {"set-00"}


def outcomes(odd):
    """The first succeeded in its middle, the others never did; a person helped in the second."""
    rows = range(18)
    odd.columns["next.success"] = [row == 2 for row in rows]
    odd.columns["next.reward"] = [0.5 * (row == 3) for row in rows]
    odd.columns["complementary_info.is_intervention"] = [6 <= row < 8 for row in rows]


def test_rewards_success_and_help_of_a_set_are_kept(tmp_path):
    _, root = written(tmp_path / "set", outcomes)
    (_, _, left), episodes = imported(root, tmp_path / "new", instruction="turn it")
    assert left == []
    ends = [(one.success, one.failure, one.truncated, one.discounts[-1]) for one in episodes]
    assert ends == [(True, False, False, 0.0), (False, False, True, 1.0), (False, False, True, 1.0)]
    assert episodes[0].rewards.tolist() == [0.0, 0.0, 0.0, 0.5, 0.0, 0.0]
    assert [one.sources for one in episodes] == [
        ("policy",) * 6,
        ("operator",) * 2 + ("policy",) * 3,
        ("policy",) * 7,
    ]
    assert {text for one in episodes for text in one.instructions} == {"turn it"}


def extra(spec, **changes):
    """Return the extra features that rlinf's export adds."""
    episodes = [{"sources": ["policy"] * length} for length in LENGTHS]
    episodes[1] |= {
        "id": "mine-1",
        "mode": "evaluate",
        "seed": 77,
        "outcome": "failure",
        "policy_version": 12,
        "limits_hash": "beef",
        "sources": ["operator", *["policy"] * 4],
        "stamps_ns": [7, 100_000_007, 200_000_007, 300_000_007, 400_000_007, 500_000_009],
        "final_observation": {"force": [7.0, 8.0, 9.0]},
    }
    for episode in episodes:
        episode |= {"station": "mine", "spec_hash": spec.hash} | changes
    return {"spec": spec.to_dict(), "episodes": episodes}


def with_extra(root, document):
    (root / "meta/rlinf.json").write_text(json.dumps(document))
    return root


def never_succeeds(odd):
    odd.columns["next.success"] = [False] * 18


def test_our_own_set_brings_what_frames_cannot_hold(tmp_path, spec):
    _, root = written(tmp_path / "set", never_succeeds)
    with_extra(root, extra(spec))
    assert import_dataset(root, tmp_path / "new") == (3, 18, [])
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names[0] == "mine-1" and names[1].startswith("set-000000-")
    episode = read_episode(tmp_path / "new/mine-1", sealed=True)
    assert (episode.station, episode.mode, episode.seed) == ("mine", "evaluate", 77)
    assert (episode.success, episode.failure, episode.truncated) == (False, True, False)
    assert (episode.policy_version, episode.limits_hash) == (12, "beef")
    assert episode.spec_hash == spec.hash and episode.discounts.tolist() == [1.0] * 4 + [0.0]
    assert episode.rewards.tolist() == [0.0] * 5
    assert episode.sources == ("operator", *["policy"] * 4)
    assert episode.stamps_ns.tolist()[::5] == [7, 500_000_009]
    assert episode.observations["force"][-1].tolist() == [7.0, 8.0, 9.0]
    position = episode.observations["tcp_position"]
    assert np.array_equal(position[-1], position[-2])
    plain = read_episode(tmp_path / "new" / names[1], sealed=True)
    assert (plain.station, plain.mode, plain.seed, plain.policy_version) == (
        "mine",
        "demonstration",
        0,
        -1,
    )
    assert (plain.truncated, plain.limits_hash, plain.discounts[-1]) == (True, "", 1.0)


def test_with_a_recipe_our_own_set_has_its_specs_and_station(tmp_path, spec):
    _, root = written(tmp_path / "set", never_succeeds)
    with_extra(root, extra(spec, spec_hash="0123456789ab"))
    _, episodes = imported(root, tmp_path / "new")
    assert {(one.station, one.spec_hash) for one in episodes} == {("station_a", spec.hash)}


def test_a_damaged_description_is_one_error_with_its_kind(tmp_path, spec):
    _, root = written(tmp_path / "set")
    assert refusal(root, tmp_path / "new", recipe=None) == (
        f"{root}: expected --recipe with the station's specs, got none. Only data sets of `rlinf "
        "data export lerobot` contain their specs"
    )
    document = extra(spec)
    del document["spec"]["action"]
    with_extra(root, document)
    assert refusal(root, tmp_path / "new", recipe=None) == (
        f"{root}: expected an intact LeRobot data set, got: KeyError: 'action'. Nothing was written"
    )
    document = extra(spec)
    document["episodes"][1]["id"] = "../x\x1b"
    with_extra(root, document)
    assert refusal(root, tmp_path / "new", recipe=None) == (
        f"{root}: meta/rlinf.json: expected a plain episode id, got ../x\\x1b"
    )


def test_what_is_there_is_not_overwritten_and_a_recipe_that_is_none_is_named(tmp_path):
    _, root = written(tmp_path / "set")
    (tmp_path / "new").mkdir()
    with pytest.raises(RlinfError, match="new: expected an unused path, got an existing one"):
        import_dataset(root, tmp_path / "new", "demo_vision", OVERRIDES)
    with pytest.raises(RlinfError, match="demo_visoin"):
        import_dataset(root, tmp_path / "other", "demo_visoin")


def feature(name, **changes):
    return lambda odd: odd.info["features"][name].update(changes)


@pytest.mark.parametrize(
    "change, cameras, message",
    [
        (
            lambda odd: odd.info.update(fps=12.5),
            {},
            "fps: expected 10 (the station's time steps per second), got 12.5",
        ),
        (
            lambda odd: odd.info["features"].pop("action"),
            {},
            "feature 'action': expected 3 numbers (dx, dy, dz), got none (timestamp, frame_index, "
            "episode_index, index, task_index there)",
        ),
        (
            feature("observation.state", shape=[8], names=["a"]),
            {},
            "feature 'observation.state': expected 9 numbers (tcp_position, tcp_velocity, force), "
            "got 8 (a)",
        ),
        (
            feature("action", names=["dx", "dy", "\x1b"]),
            {},
            "feature 'action': expected the names dx, dy, dz, in any order, got dx, dy, \\x1b. If "
            "they are the same quantities, write the station's names to meta/info.json (features, "
            "names)",
        ),
        (
            feature(FRONT, info={"is_depth_map": True}),
            {},
            f"feature '{FRONT}': expected pictures in colour, got distances (is_depth_map)",
        ),
        (
            feature(WRIST, shape=[24, 48, 3]),
            {},
            f"feature '{WRIST}': expected pictures of 48x48, got 24x48x3 (--set "
            "station.image_size, --camera wrist=NAME)",
        ),
        (
            lambda odd: None,
            {"wrist": "side", "front": "observation.image"},
            "feature 'observation.image': expected pictures of 48x48, got none (observation.state "
            "there) (--set station.image_size, --camera front=NAME); feature "
            f"'observation.images.side': expected pictures of 48x48, got none ({FRONT}, {WRIST} "
            "there) (--set station.image_size, --camera wrist=NAME)",
        ),
        (
            lambda odd: None,
            {"side": "front"},
            "--camera side: expected a camera that the station observes, front, wrist",
        ),
    ],
)
def test_features_that_do_not_fit_are_named_with_both_sides(tmp_path, change, cameras, message):
    _, root = written(tmp_path / "set", change)
    text = refusal(root, tmp_path / "new", cameras=cameras)
    assert text == f"{root}: {message}. Nothing was written"


def test_a_station_without_cameras_needs_none(tmp_path):
    _, root = written(tmp_path / "set")
    out = tmp_path / "new"
    episodes, frames, left = import_dataset(
        root, out, "demo_vision", ["station.observe_cameras=[]"]
    )
    assert (episodes, frames, left) == (3, 18, [FRONT, WRIST])
    with pytest.raises(
        EpisodeError,
        match="--camera a: expected a camera that the station observes, which are none",
    ):
        import_dataset(
            root,
            tmp_path / "other",
            "demo_vision",
            ["station.observe_cameras=[]"],
            cameras={"a": "front"},
        )


@pytest.mark.parametrize("names", ["front", FRONT])
def test_a_camera_may_be_named_short_or_in_full(tmp_path, names):
    _, root = written(tmp_path / "set")
    counts, episodes = imported(root, tmp_path / "new", cameras={"wrist": names})
    assert counts[2] == [WRIST]
    first = episodes[0].observations
    assert np.array_equal(first["wrist"], first["front"])


def step(value):
    def change(odd):
        odd.types["action"] = pa.list_(pa.float64())
        odd.columns["action"][8] = [0.0, value, 0.01]

    return change


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_may_be_the_stations_largest_and_no_larger(tmp_path, sign):
    _, root = written(tmp_path / "set", step(sign * 0.02 * 1.0009))
    imported(root, tmp_path / "new")
    _, root = written(tmp_path / "far", step(sign * 0.02 * 1.0011))
    text = refusal(root, tmp_path / "other")
    begin, _, rest = text.partition(" in episode ")
    assert begin == (
        f"{root}: feature 'action': expected 'dy' within 0.02 m in both directions (a step of the "
        "station), got 0.020022"
    )
    assert rest.startswith("far-000001-") and rest.endswith(
        ", frame 2. Are its actions of another kind, or in other units? Nothing was written"
    )


def test_an_instruction_that_is_too_long_is_refused_with_the_remedy(tmp_path):
    def change(odd):
        odd.tasks = pa.table({"task_index": [0], "task": ["x" * 129]})

    _, root = written(tmp_path / "set", change)
    text = refusal(root, tmp_path / "new")
    assert text.startswith(
        f"{root}: meta/tasks.parquet: instruction: expected at most 128 bytes"
    ) and text.endswith(". --instruction sets another one for all episodes. Nothing was written")
