from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.spatial.transform import Rotation

from rlinf_core.core.errors import RecipeError, SpecError
from rlinf_core.core.rotation import product
from rlinf_core.tasks.rewards.classifier import Network
from rlinf_core.tasks.task import load_task, observe, step_result

GOOD = yaml.safe_load(Path("configs/tasks/peg_insertion.yaml").read_text())


def channels(depth=0.0, aside=0.0):
    pose = np.array([0.5 + aside, 0.0, 0.05 - depth, 0, 1, 0, 0])
    return {
        "current_pose": pose,
        "current_twist": np.arange(6.0),
        "wrench": np.arange(6.0) + 10,
        "object_pose": np.array([0.5, 0.0, 0.05, 0, 0, 0, 1]),
    }


def test_observations_are_taken_from_the_channels_that_the_task_names(task):
    observation = observe(task.spec, channels(depth=0.01, aside=0.02))
    assert observation["tcp_velocity"].tolist() == [0, 1, 2] and observation["force"].tolist() == [
        10,
        11,
        12,
    ]
    assert observation["socket_offset"] == pytest.approx([-0.02, 0, 0.01])


@pytest.mark.parametrize(
    "tool, thing, turn",
    [
        (0.0, 0.3, 0.3),
        (0.3, 0.0, -0.3),
        (0.0, np.pi / 2 + 0.1, 0.1),
        (-0.2, np.pi - 0.1, 0.1),
        (1.0, 1.0 - 3 * np.pi / 2, 0.0),
    ],
)
@pytest.mark.parametrize("down", [False, True])
def test_a_turn_is_the_shortest_that_lays_squares_alongside(tool, thing, turn, down):
    """However the tool points: one that looks down has its x axis the other way."""

    def lying(angle, upside_down=False):
        about_z = [0.0, 0.0, np.sin(angle / 2), np.cos(angle / 2)]
        return np.array(
            [0.5, 0.0, 0.1, *(product(about_z, [0.0, 1.0, 0.0, 0.0]) if upside_down else about_z)]
        )

    spec = load_task("configs/tasks/peg_insertion_tight.yaml").spec
    measured = channels() | {"current_pose": lying(tool, down), "object_pose": lying(thing)}
    assert observe(spec, measured)["socket_turn"] == pytest.approx([turn], abs=1e-6)
    assert observe(spec, measured)["torque"].tolist() == [13, 14, 15]


HOMES = [
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (-0.7, 0.714, 0.0, 0.02),
    (0.0, 0.0, 0.0, 1.0),
    (0.1, 0.2, 0.3, -0.9),
]


def turning(tmp_path, home=(), arm=""):
    """Return a task that observes the tool's rotation and pose, and an object's."""
    name = f"{arm}/current_pose" if arm else "current_pose"
    observation = {
        "turn": {"source": name, "take": "rotation", "shape": [3]},
        "pose": {"source": name, "take": "all", "shape": [7]},
        "thing": {"source": "object_pose", "take": "all", "shape": [7]},
        "force": GOOD["observation"]["force"],
    }
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(GOOD | {"observation": observation}))
    task = load_task(path)
    return task.around({arm: home}) if home else task


def observed(task, q, thing=(0.0, 0.0, 0.0, 1.0)):
    pose = np.array([0.5, 0.0, 0.05, *q])
    return observe(
        task.spec,
        channels() | {"current_pose": pose, "object_pose": np.array([0.5, 0.0, 0.05, *thing])},
    )


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_rotation_is_continuous_around_the_limits_orientation(tmp_path, home, sign):
    """Along great circles up to 170 degrees from there, with a driver that flips the sign as it
    likes.
    """
    task, home = turning(tmp_path, home), Rotation.from_quat(home)
    for axis in np.random.default_rng(0).normal(size=(4, 3)):
        axis /= np.linalg.norm(axis)
        before = None
        for angle in np.radians(np.arange(-170.0, 170.1, 2.0)):
            turned = home * Rotation.from_rotvec(angle * axis)
            observation = observed(
                task, turned.as_quat() * sign * (-1.0 if int(100 * angle) % 2 else 1.0)
            )
            assert (Rotation.from_rotvec(observation["turn"]) * turned.inv()).magnitude() < 1e-5, (
                "it is that rotation"
            )
            assert (Rotation.from_quat(observation["pose"][3:]) * turned.inv()).magnitude() < 1e-5
            if before is not None:
                assert np.abs(observation["turn"] - before["turn"]).max() < 0.8, np.degrees(angle)
                assert np.abs(observation["pose"] - before["pose"]).max() < 0.04
            before = observation


def test_a_tool_that_points_down_does_not_jump_by_a_whole_turn(tmp_path):
    degrees = [179.9, 180.0, 180.1]
    q = [Rotation.from_euler("x", angle, degrees=True).as_quat() for angle in degrees]
    now = [
        observed(turning(tmp_path, (1.0, 0.0, 0.0, 0.0)), quaternion)["turn"][0] for quaternion in q
    ]
    assert np.degrees(now) == pytest.approx(degrees, abs=1e-3)
    before = [observed(turning(tmp_path), quaternion)["turn"][0] for quaternion in q]
    assert np.degrees(before)[2] == pytest.approx(-179.9, abs=1e-3), (
        "what was trained on that meaning goes on with it"
    )


def test_where_the_old_rotation_did_not_jump_the_new_one_is_the_same(tmp_path):
    new, old = turning(tmp_path, (1.0, 0.0, 0.0, 0.0)), turning(tmp_path)
    for angle in (20.0, 90.0, 170.0, 179.0):
        q = Rotation.from_euler("x", angle, degrees=True).as_quat()
        assert observed(new, q)["turn"] == pytest.approx(observed(old, q)["turn"], abs=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sign_of_an_objects_quaternion_is_not_the_drivers(tmp_path, sign):
    thing = np.array([0.0, 0.0, 0.6, 0.8])
    observation = observed(
        turning(tmp_path, (1.0, 0.0, 0.0, 0.0)), (1.0, 0.0, 0.0, 0.0), sign * thing
    )
    assert observation["thing"][3:] == pytest.approx(thing)
    assert observed(turning(tmp_path), (1.0, 0.0, 0.0, 0.0), sign * thing)["thing"][
        3:
    ] == pytest.approx(sign * thing)


def test_the_meaning_of_a_rotation_is_part_of_the_specs(tmp_path):
    """So a policy or a recording of the old meaning, or of another orientation, is refused
    by name.
    """
    old, new, other = (turning(tmp_path, home).spec for home in ((), HOMES[0], HOMES[1]))
    assert len({old.hash, new.hash, other.hash}) == 3
    difference = old.difference(new)
    assert (
        "current_pose.rotation, continuous around 1 0 0 0" in difference
        and "'force'" not in difference
    )
    assert "around 1 0 0 0 against" in new.difference(other)
    for spec in (old, new):
        again = type(spec).from_dict(spec.to_dict())
        assert again == spec and again.hash == spec.hash
    assert all("around" not in item for item in old.to_dict()["observation"])
    assert {item.name for item in new.observation if item.around} == {"turn", "pose", "thing"}


def test_each_arm_has_an_orientation_of_its_own(tmp_path):
    left = turning(tmp_path, HOMES[1], "left").spec
    assert left["turn"].around == HOMES[1] and left["thing"].around == ()
    assert turning(tmp_path, HOMES[1], "left").around({"right": HOMES[0]}).spec["turn"].around == ()


@pytest.mark.parametrize("name", [path.stem for path in Path("configs/tasks").glob("*.yaml")])
def test_what_observes_no_rotation_has_the_hash_that_it_had(name):
    task = load_task(f"configs/tasks/{name}.yaml")
    assert (
        task.around({"": HOMES[0], "left": HOMES[0], "right": HOMES[1]}).spec.hash == task.spec.hash
    )


def test_a_missing_channel_is_named_with_what_to_do(task):
    silent = channels()
    del silent["wrench"]
    with pytest.raises(
        SpecError, match="'force': no message on 'wrench'. Is its publisher running"
    ):
        observe(task.spec, silent)


def test_an_object_that_fell_ends_the_episode_without_success(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(
        yaml.safe_dump(
            GOOD | {"failure": {"kind": "outside", "low": [0, -1, 0], "high": [1, 1, 1]}}
        )
    )
    task = load_task(path)
    here = step_result(task, channels(), 5)
    assert not here.last and here.discount == 1.0
    fallen = channels(depth=0.5)
    fallen["object_pose"][2] = -0.4
    result = step_result(task, fallen, task.max_steps)
    assert (result.terminated, result.failure, result.success, result.truncated) == (
        True,
        True,
        False,
        False,
    )
    assert (result.reward, result.discount, result.last) == (0.0, 0.0, True)
    inserted = channels(depth=0.03) | {"object_pose": np.array([0.5, 0.0, 0.05, 0, 0, 0, 1])}
    assert step_result(task, inserted, 5).success
    strict = tmp_path / "strict.yaml"
    region = {"kind": "outside", "low": [0, -1, 0.04], "high": [1, 1, 1], "what": "current_pose"}
    strict.write_text(yaml.safe_dump(GOOD | {"failure": region}))
    both = step_result(load_task(strict), inserted, 5)
    assert both.failure and not both.success and both.reward == 0.0, "what failed has not succeeded"
    assert load_task(strict).channels >= {"current_pose", "object_pose"}


def test_a_task_needs_neither_a_failure_nor_a_script(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in GOOD.items() if key != "script"}))
    task = load_task(path)
    assert task.failure is None and task.script is None


def test_a_learned_classifier_judges_success_where_a_file_of_it_is_given(tmp_path, random):
    """Trained on tips above and inside of the socket; it says of others what the geometry says."""
    import torch

    inputs = ("current_pose", "object_pose")
    samples = [
        channels(random.uniform(-0.02, 0.06), random.uniform(-0.02, 0.02)) for _ in range(400)
    ]
    geometry = load_task("configs/tasks/peg_insertion.yaml").success
    x = np.array([np.concatenate([one[name] for name in inputs]) for one in samples])
    y = torch.tensor([float(geometry(one)) for one in samples])
    mean, std = x.mean(0), x.std(0) + 1e-6
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(14, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    adam = torch.optim.Adam(net.parameters(), lr=0.03)
    scaled = torch.tensor((x - mean) / std, dtype=torch.float32)
    for _ in range(300):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            net(scaled[:300])[:, 0], y[:300]
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
    layers = tuple(
        (net[k].weight.detach().double().numpy(), net[k].bias.detach().double().numpy())
        for k in (0, 2)
    )
    Network(inputs, mean, std, layers).save(tmp_path / "seen.safetensors")
    path = tmp_path / "task.yaml"
    path.write_text(
        yaml.safe_dump(
            GOOD | {"reward": {"kind": "classifier", "model": str(tmp_path / "seen.safetensors")}}
        )
    )
    task = load_task(path)
    assert task.channels >= set(inputs)
    successes = [step_result(task, one, 5).success for one in samples[300:]]
    assert (
        np.mean(np.array(successes) == [geometry(one) for one in samples[300:]]) > 0.95
        and 0 < sum(successes) < 100
    )
    with torch.no_grad():
        expected = torch.sigmoid(net(scaled[300:301])).item()
    assert task.success.progress(samples[300]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "layers, message",
    [
        ((((4, 14), 4),), "layers"),
        ((((4, 13), 4), ((1, 4), 1)), "layers"),
        (None, "expected a classifier"),
    ],
)
def test_a_file_that_is_no_classifier_is_refused(layers, message, tmp_path):
    file = tmp_path / "model.safetensors"
    if layers is not None:
        weights = tuple((np.zeros(shape), np.zeros(size)) for shape, size in layers)
        Network(("current_pose", "object_pose"), np.zeros(14), np.ones(14), weights).save(file)
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(GOOD | {"reward": {"kind": "classifier", "model": str(file)}}))
    with pytest.raises(RecipeError, match=f"{message}"):
        load_task(path)


def test_success_ends_with_discount_0_and_a_time_limit_with_1(task):
    assert step_result(task, channels(depth=0.03), 5) == step_result(task, channels(depth=0.03), 50)
    assert (
        step_result(task, channels(0.03), 5).reward,
        step_result(task, channels(0.03), 5).discount,
    ) == (1.0, 0.0)
    late = step_result(task, channels(), task.max_steps)
    assert (late.reward, late.discount, late.last) == (0.0, 1.0, True)
    assert not step_result(task, channels(depth=0.03, aside=0.02), 5).last, (
        "beside the socket is not inside"
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"max_step": 3}, "unknown key 'max_step' (did you mean 'max_steps'?)"),
        (
            {"observation": {"x": {"source": "wrench", "take": "forces", "shape": [3]}}},
            "did you mean 'force'",
        ),
        (
            {"observation": {"x": {"source": "wrench", "shape": [3]}}},
            "'observation.x.take' is missing: part of the channel",
        ),
        ({"reward": {"kind": "insertio"}}, "did you mean 'insertion'"),
        ({"reward": {"kind": "insertion", "dept": 1}}, "dept"),
        (
            {"failure": {"kind": "outside", "low": [0, 0, 2], "high": [1, 1, 1]}},
            "failure.low: expected at most high [1.0",
        ),
        (
            {"failure": {"kind": "outside", "low": [0, 0], "high": [1, 1, 1]}},
            "'failure.low': expected more items",
        ),
        (
            {"failure": {"kind": "outsid", "low": [0, 0, 0], "high": [1, 1, 1]}},
            "did you mean 'outside'",
        ),
    ],
)
def test_mistakes_in_a_task_name_the_key_and_the_nearest_one(tmp_path, change, message):
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(GOOD | change))
    with pytest.raises(RecipeError) as error:
        load_task(path)
    assert message in str(error.value)


def test_cameras_become_image_observations_resized_to_the_declared_size(task):
    seeing = task.with_images({"front": (32, 48)})
    frame = np.full((64, 96, 3), 9, np.uint8)
    observation = observe(seeing.spec, channels() | {"camera/front/image": frame})
    assert (
        observation["front"].shape == (32, 48, 3)
        and observation["front"].dtype == np.uint8
        and (observation["front"] == 9).all()
    )


def test_words_that_no_recording_could_carry_are_refused_where_they_stand(tmp_path):
    document = yaml.safe_load(Path("configs/tasks/reach.yaml").read_text())
    for words, fits in (("ä" * 64, True), ("ä" * 65, False)):
        (tmp_path / "task.yaml").write_text(
            yaml.safe_dump(document | {"instruction": words}, allow_unicode=True)
        )
        if fits:
            assert load_task(tmp_path / "task.yaml").spec.instruction == words
        else:
            with pytest.raises(
                RecipeError,
                match="instruction.*expected at most 128 bytes of UTF-8 without NUL, got 130",
            ):
                load_task(tmp_path / "task.yaml")


class Scales:
    """A reward that reads a channel without naming it in `channels`."""

    channels = ("current_pose",)

    def __init__(self, name):
        self.name = name

    def __call__(self, channels):
        return channels[self.name][0] > 0 and {"a": 1}[self.name] > 0

    def progress(self, channels):
        return float(channels[self.name][0])


@pytest.mark.parametrize("part, shaping", [("success", 0.0), ("success", 1.0), ("failure", 0.0)])
def test_a_reward_that_reads_a_missing_channel_names_it_and_those_that_exist(task, part, shaping):
    task = replace(task, shaping=shaping, **{part: Scales("curent_pose")})
    with pytest.raises(
        SpecError,
        match="channels current_pose, .*; got 'curent_pose' \\(did you mean 'current_pose'",
    ):
        step_result(task, channels(), 1)
    with pytest.raises(KeyError):  # of another mapping: the reward's own defect
        step_result(
            replace(task, **{part: Scales("wrench")}), channels() | {"wrench": np.ones(6)}, 1
        )
