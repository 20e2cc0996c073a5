"""Learned worlds: what they predict, where they stop, and what their transitions never count as."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import check_recipe, load_recipe, station_task
from rlinf_core.reports.curves import wilson
from rlinf_core.rollouts.types import DEMONSTRATION, EVALUATE, IMAGINED, TRAIN, Trajectory
from rlinf_core.tasks.task import observe
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.imagined import RealAndImagined, with_world
from rlinf_core.trainer.sources.simulators import Simulators
from rlinf_core.trainer.train import train
from rlinf_core.trainer.worlds import (
    FILE,
    Prediction,
    imagined_envs,
    predict,
    run_episodes,
    video_envs,
    world_file,
)
from rlinf_core.worlds.coordinates import Coordinates
from rlinf_core.worlds.episodes import Episodes
from rlinf_core.worlds.imagined import ImaginedEnv
from rlinf_core.worlds.model import WorldModel, load_world, rank_correlation
from rlinf_core.worlds.settings import WorldSettings
from tests.messages import record

TASK = station_task(load_recipe("sim_rlpd"))
CAMERA = ["station.observe_cameras=[front]", "station.image_size=[16,16]"]
TINY = WorldSettings(
    hidden=(32,), members=3, first_updates=800, updates=100, batch_size=32, horizon=4
)
SMALL = (
    "policy.hidden=[16]",
    "sft.steps=5",
    "sft.batch_size=8",
    "collect.episodes=11",
    "replay.capacity=3000",
    "simulation.env_steps=150",
    "simulation.start_steps=0",
    "simulation.evaluate_every=150",
    "simulation.evaluate_episodes=1",
    "algorithm.batch_size=8",
    "algorithm.critic_hidden=[16]",
    "world.hidden=[32]",
    "world.members=2",
    "world.first_updates=500",
    "world.updates=50",
    "world.refit_every=60",
    "world.branches=8",
    "world.batch_size=16",
    "simulation.updates_per_step=0.2",
)


def lagging(episodes=40, noise=0.0, seed=0):
    """An arm in free space that follows its set-point with a lag, above a socket that rests."""
    random, played = np.random.default_rng(seed), []
    for number in range(episodes):
        place, speed = random.uniform(-0.05, 0.05, 3) + [0.5, 0.0, 0.1], np.zeros(3)
        socket, target = random.uniform(-0.05, 0.05, 3) + [0.5, 0.0, 0.05], place.copy()
        actions, vectors = [], []
        bias = random.uniform(-0.5, 0.5, 3)
        for _ in range(21):
            vectors.append(
                np.concatenate([place, speed, np.zeros(3), socket - place])
                + noise * random.standard_normal(12)
            )
            actions.append(np.clip(bias + random.normal(0, 0.5, 3), -1, 1))
            target = target + 0.02 * actions[-1]
            speed = 0.6 * (target - place) / 0.1
            place = place + 0.1 * speed
        success = number % 4 == 0
        discounts = np.ones(20, np.float32)
        discounts[-1] = not success
        played.append(
            Trajectory(
                {"vectors": np.array(vectors, np.float32)},
                np.array(actions[:-1], np.float32),
                1 - discounts,
                discounts,
                success,
                DEMONSTRATION if number < 5 else TRAIN,
            )
        )
    return played


@pytest.fixture(scope="module")
def fitted():
    torch.set_num_threads(1)
    world, episodes = WorldModel(TASK, TINY), Episodes(lagging())
    world.fit(episodes)
    return world, episodes


def test_channels_are_those_that_were_observed():
    coordinates = Coordinates(TASK.spec)
    pose = np.array([0.5, 0.1, 0.2, 0, 0, 0, 1.0])
    socket = np.array([0.45, 0.0, 0.05, 0, 0, 0, 1.0])
    channels = {
        "current_pose": pose,
        "object_pose": socket,
        "current_twist": np.arange(6.0),
        "wrench": np.arange(6.0),
    }
    vectors = TASK.spec.flatten(observe(TASK.spec, channels))
    predicted = coordinates.channels(vectors)
    np.testing.assert_allclose(predicted["current_pose"], pose, atol=1e-6)
    np.testing.assert_allclose(predicted["object_pose"], socket, atol=1e-6)
    np.testing.assert_allclose(predicted["wrench"][:3], [0, 1, 2])
    moved = vectors + np.r_[[0.01, 0, 0], np.zeros(6), [-0.01, 0, 0]].astype(np.float32)
    np.testing.assert_allclose(
        (moved @ coordinates.matrix)[9:], (vectors @ coordinates.matrix)[9:], atol=1e-6
    )


def test_a_task_that_is_judged_by_something_else_is_refused():
    with pytest.raises(
        SpecError, match="success needs object_pose, expected it in the observation"
    ):
        WorldModel(station_task(load_recipe("sim_rlpd", ["station.task=peg_insertion_vision"])))


def test_it_predicts_and_says_how_far(fitted):
    world, _ = fitted
    check = world.check
    assert check.errors[0] < 0.2 * check.persistence[0]
    assert (
        check.errors[3] < 0.5 * check.persistence[3]
        and check.horizon == TINY.horizon
        and world.usable
    )
    assert check.tool_mm[0] < 1.5 < check.persistence_mm[0]
    assert 0.0 < check.threshold < 1.0 and check.coverage > 0.8


def test_success_is_the_tasks_own_and_what_is_far_off_is_flagged(fitted):
    world, episodes = fitted
    windows = episodes.windows(episodes.starts(np.ones(len(episodes), bool))[:3], TINY.history)
    # at rest, the rim 4 cm above the tool
    windows.vectors[1] = [
        0.5,
        0.0,
        0.1,
        0,
        0,
        0,
        0,
        0,
        0,
        0.0,
        0.0,
        0.04,
    ]
    windows.vectors[2] += 3.0
    state = world.begin(windows, torch.zeros(3, dtype=torch.long))
    state, reward, terminated, disagreement = world.step(state, np.zeros((3, 3)))
    for row, result in enumerate(state.results):
        assert result.success == TASK.success(
            world.coordinates.channels(state.vectors[row, -1].numpy())
        )
    assert reward.tolist() == terminated.tolist() == [0.0, 1.0, 0.0]
    assert disagreement[2] > world.check.threshold > disagreement[0]


def test_a_world_of_noise_is_off():
    random = np.random.default_rng(1)
    noise = [
        replace(one, observations={"vectors": random.standard_normal((21, 12)).astype(np.float32)})
        for one in lagging()
    ]
    world, episodes = WorldModel(TASK, TINY), Episodes(noise)
    assert world.fit(episodes, updates=50).horizon == 0 and not world.usable
    with pytest.raises(RlinfError, match="rlinf world check"):
        ImaginedEnv(world, episodes, 2).reset([0, 1])


def test_branches_end_at_the_horizon_and_where_the_members_disagree(fitted):
    world, episodes = fitted
    env = ImaginedEnv(world, episodes, 16)
    env.reset(range(16))
    ends = [env.step(np.zeros((16, 3))) for _ in range(TINY.horizon)][-1]
    assert (
        (ends.done[env.age == 0] == 1).all()
        and (env.age <= TINY.horizon).all()
        and env.branch_count > 16
    )
    world.check, check = replace(world.check, threshold=-1.0), world.check
    try:
        env.reset(range(16))
        cut = env.step(np.zeros((16, 3)))
    finally:
        world.check = check
    assert (
        cut.truncated.all()
        and not cut.terminated.any()
        and not cut.success.any()
        and not cut.reward.any()
    )


@pytest.fixture
def at_the_rim(fitted):
    """A world and episodes at rest, with the socket's rim 4 cm above the tool: zero actions
    succeed.
    """
    vector = np.array([0.5, 0.0, 0.1, *[0.0] * 8, 0.04], np.float32)
    still = replace(
        lagging(1)[0],
        observations={"vectors": np.repeat(vector[None], 21, 0)},
        actions=np.zeros((20, 3), np.float32),
    )
    world, episodes = fitted[0], Episodes([still, still])
    weights, last = world.ensemble.state_dict(), world.ensemble.biases[-1]
    earlier = {name: tensor.clone() for name, tensor in weights.items()}
    errors = world.held_out_errors
    yield world, episodes, last
    world.ensemble.load_state_dict(earlier)
    world.held_out_errors = errors


def test_a_success_counts_if_no_member_fails_with_the_same_actions(at_the_rim):
    world, episodes, last_bias = at_the_rim
    windows = episodes.windows(np.array([0]), TINY.history)
    assert world.confirms(windows, np.zeros((1, 3)))
    env = ImaginedEnv(world, episodes, 8)
    env.reset(range(8))
    assert env.step(np.zeros((8, 3))).terminated.all() and env.flagged == 0
    with torch.no_grad():
        last_bias[1] += 50.0  # the second of three members sees the tool fly off
    assert not world.confirms(windows, np.zeros((1, 3)))
    world.check, check = replace(world.check, threshold=1e9), world.check
    try:
        env.reset(range(8))
        played = env.step(np.zeros((8, 3)))
    finally:
        world.check = check
    sure = env.state.members.numpy() >= 0
    assert sure.all() and not played.success.any() and not played.terminated.any()
    assert not played.reward.any() and played.truncated.any() and env.flagged > 0


def test_errors_of_held_out_time_steps_are_part_of_a_vote(at_the_rim):
    world, episodes, _ = at_the_rim
    assert world.held_out_errors.shape[1] == TASK.spec.vector_size
    assert 0.0 < float(world.held_out_errors.abs().max()) < 10.0
    windows = episodes.windows(np.array([0]), TINY.history)
    away = np.zeros((2, 3))
    world.held_out_errors = torch.full((5, 12), 1.0)
    assert world.confirms(windows, away), "a success of the first time step is one"
    windows.vectors[:, :, 11] = 0.0  # the rim at the tool: no success yet
    assert not world.confirms(windows, away)


def test_branches_go_on_in_a_world_with_a_longer_horizon(fitted):
    world, episodes = fitted
    env, other = ImaginedEnv(world, episodes, 4, horizon=1), ImaginedEnv(world, episodes, 4)
    env.reset(range(4))
    state = env.state_dict()
    other.load_state_dict(state)
    for _ in range(TINY.horizon + 1):
        other.step(np.zeros((4, 3)))
    assert other.played.shape == (4, TINY.horizon, 3)


def test_branches_of_an_older_checkpoint_begin_again(fitted):
    world, episodes = fitted
    env = ImaginedEnv(world, episodes, 4)
    env.reset(range(4))
    env.step(np.zeros((4, 3)))
    state = env.state_dict()
    del state["first"], state["played"]
    env.load_state_dict(state)
    assert env.age.tolist() == [0] * 4 and env.played.shape == (4, TINY.horizon, 3)
    env.step(np.zeros((4, 3)))
    older = world.state_dict()
    del older["held_out_errors"]
    again = WorldModel(TASK, TINY)
    again.load_state_dict(older)
    assert len(again.held_out_errors) == 0
    again.load_state_dict(world.state_dict())
    assert torch.equal(again.held_out_errors, world.held_out_errors)


def test_the_same_scenes_are_the_same_branches_and_go_on_where_they_were(fitted):
    world, episodes = fitted
    one = ImaginedEnv(world, episodes, 4)
    other = ImaginedEnv(world, episodes, 4)
    random = np.random.default_rng(0)
    np.testing.assert_array_equal(
        one.reset([3, 3, 5, 6])["vectors"], other.reset([3, 3, 5, 6])["vectors"]
    )
    for _ in range(3):
        one.step(random.uniform(-1, 1, (4, 3)))
    other.load_state_dict(one.state_dict())
    for _ in range(6):
        actions = random.uniform(-1, 1, (4, 3))
        first, second = one.step(actions), other.step(actions)
        np.testing.assert_array_equal(first.observation["vectors"], second.observation["vectors"])
        np.testing.assert_array_equal(first.done, second.done)
    before = one.state.vectors[0].clone()
    one.step(np.ones((4, 3)), np.array([False, True, True, True]))
    assert torch.equal(one.state.vectors[0], before)


def test_a_file_holds_all_of_it(fitted, tmp_path):
    world, episodes = fitted
    path = world.save(tmp_path / FILE, episodes)
    loaded, recorded = load_world(path, TASK)
    assert (
        loaded.check == world.check
        and recorded.steps == episodes.steps
        and len(recorded) == len(episodes)
    )
    assert torch.equal(loaded.held_out_errors, world.held_out_errors)
    assert len(ImaginedEnv(loaded, recorded, 1).demonstrations()) == 2
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RlinfError, match="damaged"):
        load_world(path, TASK)
    with pytest.raises(RlinfError, match="rlinf world fit"):
        load_world(tmp_path / "none", TASK)


DAMAGE = {
    "weights": ("ensemble/weights.0", lambda tensor: tensor * float("nan"), "not finite"),
    "shape": ("ensemble/weights.0", lambda tensor: tensor[:, 1:], "size mismatch"),
    "observations": ("episodes/vectors", lambda tensor: tensor * float("inf"), "not finite"),
    "fewer actions": ("episodes/actions", lambda tensor: tensor[1:], "episodes/actions of shape"),
    "bounds": ("episodes/bounds", lambda tensor: tensor * 2, "episodes/bounds that do not divide"),
    "marks": ("episodes/success", lambda tensor: tensor[1:], "of shape"),
    "errors": ("held_out_errors", lambda tensor: tensor[:, 1:], "held_out_errors of shape"),
    "missing": ("episodes/demonstrations", None, "episodes/demonstrations"),
}


@pytest.mark.parametrize(("name", "change", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_of_a_file_is_refused(name, change, message, fitted, tmp_path):
    path = fitted[0].save(tmp_path / FILE, fitted[1])
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    tensor = tensors.pop(name)
    if change:
        tensors[name] = change(tensor).contiguous()
    save_file(tensors, path, metadata)
    with pytest.raises(RlinfError, match=f"damaged file: .*{message}"):
        load_world(path, TASK)


def test_damaged_episodes_are_refused_by_their_number(fitted):
    played = lagging(4)
    numbers = played[2].observations["vectors"].copy()
    numbers[5, 1] = np.nan
    for change, message in (
        ({"observations": {"vectors": numbers}}, "finite observations, got .* at time step 5"),
        ({"observations": {"vectors": numbers[:-1]}}, "observations of shape"),
        ({"observations": {"vectors": numbers[:, 1:]}}, "observations of shape"),
        ({"actions": played[2].actions[:, 1:]}, "actions of shape"),
        ({"actions": np.full_like(played[2].actions, np.inf)}, "finite actions, .* in row 0"),
    ):
        damaged = replace(played[2], **change)
        with pytest.raises(RlinfError, match=f"a learned world: episode 2: expected {message}"):
            Episodes([*played[:2], damaged, played[3]])
        episodes = Episodes(played)
        with pytest.raises(RlinfError, match="episode mine: expected"):
            episodes.extend([replace(damaged, id="mine")])
    world, episodes = fitted
    env = ImaginedEnv(world, episodes, 2)
    env.reset([0, 1])
    with pytest.raises(RlinfError, match="policy in a learned world: expected finite actions"):
        env.step(np.array([[0.0] * 3, [np.nan] * 3]))


def test_figures_replace_no_recipe(tmp_path, capsys):
    for command in ("fit", "check", "rank"):
        (tmp_path / "recipe.yaml").write_text("defaults: sim_rlpd\n")
        with pytest.raises(SystemExit) as ended:
            main(["world", command, str(tmp_path), "--json", str(tmp_path / "recipe.yaml")])
        assert ended.value.code == 2
        assert "expected a new file or one with JSON" in capsys.readouterr().err


def test_policies_are_loaded_before_the_first_is_ranked(fitted, tmp_path, monkeypatch, capsys):
    def never(*_):
        raise AssertionError("a policy was ranked before a damaged one was refused")

    monkeypatch.setattr("rlinf_core.trainer.worlds.predict", never)
    (tmp_path / "recipe.yaml").write_text("defaults: sim_rlpd\n")
    fitted[0].save(tmp_path / FILE, fitted[1])
    recipe = load_recipe("sim_rlpd")
    good = save_policy(make_policy(TASK.spec, recipe.policy), tmp_path / "a.safetensors")
    command = ["world", "rank", str(tmp_path), str(good), str(tmp_path / "recipe.yaml")]
    assert main(command) == 1
    assert "recipe.yaml" in capsys.readouterr().err


def test_only_real_episodes_are_learned_from():
    one = lagging(1)[0]
    for mode in (IMAGINED, EVALUATE):
        with pytest.raises(SpecError, match=mode):
            Episodes([replace(one, mode=mode)])


def test_windows_do_not_reach_over_an_episodes_beginning():
    episodes = Episodes(lagging(3))
    second = int(episodes.bounds[1])
    windows = episodes.windows(np.array([second, second + 1]), 3)
    assert (windows.vectors[0] == episodes.vectors[second]).all() and not windows.actions[0].any()
    assert (windows.actions[1, 1] == episodes.actions[second]).all() and windows.steps.tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize(("capacity", "count"), [(1000, 7), (70, 3), (64, 3), (63, 2)])
def test_a_replay_gives_its_whole_episodes_back(capacity, count):
    """The oldest one of a full ring may have lost its beginning, and is left out."""
    buffer, played = ReplayBuffer(TASK.spec, capacity), lagging(7)
    for one in played:
        buffer.insert_episode(one.observations, one.actions, one.rewards, one.discounts)
    episodes = buffer.trajectories(TRAIN)
    assert len(episodes) == count
    for one, other in zip(episodes, played[-len(episodes) :], strict=True):
        np.testing.assert_array_equal(one.observations["vectors"], other.observations["vectors"])
        np.testing.assert_array_equal(one.actions, other.actions)
        assert one.success == other.success


def test_ranks():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 1, 2]) == pytest.approx(-0.5)
    assert rank_correlation([1, 1, 1], [3, 1, 2]) == 0.0


@pytest.fixture(scope="module")
def world_run(tmp_path_factory):
    """Return a run with a world beside its simulator."""
    folder, runs = tmp_path_factory.mktemp("run"), []
    torch.set_num_threads(1)
    train(
        load_recipe("sim_rlpd", [*SMALL, "world.share=0.5"]),
        folder,
        on_progress=lambda run, _: runs.append(run),
    )
    return folder, runs[-1]


def test_imagined_transitions_are_experience_and_nothing_else(world_run):
    _, run = world_run
    data, real = run.data, run.source.real
    assert run.source.world.fits >= 2 and run.source.world.usable
    assert run.source.rounds == run.source.world.fits, "each fit is followed by branches"
    assert data.imagined.inserted > 100 and data.statuses[IMAGINED] > 0
    assert data.steps == 150 and data.statuses[EVALUATE] == 0
    assert data.demonstrations.episodes == 11 == data.statuses[DEMONSTRATION]
    assert data.online.inserted <= 150 and real.env is not None
    assert run.learner.updates == pytest.approx(0.2 * 150, abs=16)  # they earn no updates
    counts = run.counts()
    assert counts["world/error_1"] < counts["world/persistence_1"] and counts["steps"] == 150
    batch = data.batch()
    assert len(batch["action"]) == 8  # 4 demonstrations, 2 real, 2 imagined


def test_the_share_is_capped(world_run, monkeypatch):
    _, run = world_run
    drawn = []
    sampled = run.data._sample
    monkeypatch.setattr(
        run.data,
        "_sample",
        lambda buffer, size, *more: drawn.append((buffer, size)) or sampled(buffer, size, *more),
    )
    run.data.batch()
    assert dict((id(buffer), size) for buffer, size in drawn)[id(run.data.imagined)] == 2


def test_commands_fit_check_and_rank(world_run, tmp_path, capsys):
    from rlinf_core.cli.main import main

    folder, _ = world_run
    assert main(["world", "fit", str(folder), "--json", str(tmp_path / "fit.json")]) == 0
    assert (
        main(["world", "check", str(folder), "--steps", "5", "--out", str(tmp_path / "error.png")])
        == 0
    )
    assert (tmp_path / "error.png").stat().st_size > 5000 and "error_1_mm" in (
        tmp_path / "fit.json"
    ).read_text()
    assert main(["world", "rank", str(folder), "--episodes", "3"]) == 0
    output = capsys.readouterr().out
    assert "95 % interval" in output and "rank correlation" in output
    assert main(["world", "check", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "more",
    [
        ["algorithm.name=ppo", "policy.kind=gaussian", "algorithm.chunks=8", "algorithm.epochs=1"],
        ["algorithm.name=grpo", "policy.kind=gaussian", "algorithm.group=2", "algorithm.epochs=1"],
        ["algorithm.name=rlpd"],
    ],
)
def test_algorithms_train_in_it_alone_and_are_judged_in_the_simulator(world_run, tmp_path, more):
    from rlinf_core.cli.main import main

    folder, _ = world_run
    if not (folder / FILE).exists():
        assert main(["world", "fit", str(folder)]) == 0
    small = [
        item
        for item in SMALL
        if "ppo" not in str(more) and "grpo" not in str(more) or not item.startswith("alg")
    ]
    recipe = load_recipe(
        "sim_rlpd",
        [
            *small,
            *more,
            f"world.run={folder}",
            "simulation.environments=4",
            "collect.episodes=5",
            "simulation.evaluate_every=400",
        ],
    )
    runs = []
    result = train(recipe, tmp_path / "alone", on_progress=lambda run, _: runs.append(run))
    assert result["episodes"] == 1 and runs[-1].learner.updates > 0
    assert isinstance(runs[-1].source.env, ImaginedEnv)


def test_predictions_are_of_whole_episodes(world_run):
    _, run = world_run
    episodes = Episodes(run.data.real_episodes())
    one = predict(run.source.world, episodes, run.policy, 5)
    assert 0.0 <= one.low <= one.success <= one.high <= 1.0 and one == predict(
        run.source.world, episodes, run.policy, 5
    )


@pytest.mark.parametrize("scenes, size, branches, unsure", [(70, 64, 8, 3 / 8), (3, 3, 0, 3.0)])
def test_a_prediction_is_the_share_of_its_scenes_with_an_interval(
    fitted, monkeypatch, scenes, size, branches, unsure
):
    world, episodes = fitted
    policy = object()

    def judged(env, judged_policy, judged_scenes):
        assert (env.world, env.episodes, judged_policy) == (world, episodes, policy)
        assert (env.size, env.length, env.full_episodes) == (size, TASK.max_steps, True)
        env.flagged, env.branch_count = 3, branches
        return [SimpleNamespace(success=number % 4 == 0) for number in judged_scenes]

    monkeypatch.setattr("rlinf_core.trainer.worlds.evaluate", judged)
    won = -(-scenes // 4)
    low, high = wilson(won, scenes)
    assert predict(world, episodes, policy, scenes) == Prediction(won / scenes, low, high, unsure)
    assert 0.0 < low < won / scenes < high < 1.0


def saved_replay(folder, spec, capacity, episodes):
    """Save a checkpoint whose replay has taken these episodes; returns the replay."""
    buffers = {name: ReplayBuffer(spec, capacity) for name in ("demonstrations", "online")}
    images = {image.name: np.zeros((21, *image.shape), np.uint8) for image in spec.images}
    for name, buffer in buffers.items():
        for one in episodes[name]:
            buffer.insert_episode(
                one.observations | images, one.actions, one.rewards, one.discounts
            )
    state = {name: buffer.state_dict() for name, buffer in buffers.items()}
    checkpoint.save(folder / "checkpoints", "updates", {"data": state, "run": {"stage": 0}})
    return buffers


@pytest.mark.parametrize("capacity", [500, 84, 100])
def test_the_replay_of_a_checkpoint_is_read_episode_by_episode(capacity, tmp_path):
    """Also one that four episodes of 21 rows fill to the last row."""
    real = lagging(6)
    taken = {"demonstrations": real[:2], "online": real[2:6]}
    saved_replay(tmp_path, TASK.spec, capacity, taken)
    read = run_episodes(tmp_path, TASK.spec)
    expected = real[:6]
    assert [one.mode for one in read] == [DEMONSTRATION] * 2 + [TRAIN] * (len(read) - 2)
    assert len(read) == len(expected)
    for one, other in zip(read, expected, strict=True):
        np.testing.assert_array_equal(one.observations["vectors"], other.observations["vectors"])
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.rewards, other.rewards)
        np.testing.assert_array_equal(one.discounts, other.discounts)
        assert one.success is other.success


def test_a_replay_that_lost_its_oldest_episode_gives_the_others(tmp_path):
    real = lagging(7)
    saved_replay(tmp_path, TASK.spec, 70, {"demonstrations": [], "online": real})
    read = run_episodes(tmp_path, TASK.spec)
    assert [one.mode for one in read] == [TRAIN] * len(read) and len(read) == 3
    for one, other in zip(read, real[4:], strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)


def test_a_replay_without_the_pictures_of_a_task_has_no_episodes_for_it(tmp_path):
    task, real = station_task(load_recipe("sim_rlpd", CAMERA)), lagging(2)
    episodes = {"demonstrations": real, "online": []}
    saved_replay(tmp_path / "without", TASK.spec, 50, episodes)
    with pytest.raises(RlinfError, match="expected recorded episodes, or a checkpoint"):
        run_episodes(tmp_path / "without", task.spec)
    saved_replay(tmp_path / "with", task.spec, 50, episodes)
    assert len(run_episodes(tmp_path / "with", task.spec)) == 2


def test_a_run_without_episodes_is_refused(tmp_path):
    with pytest.raises(RlinfError, match="rlinf collect"):
        run_episodes(tmp_path, TASK.spec)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.name=ppo", "policy.kind=gaussian"], "which has no replay"),
        (["station.observe_cameras=[front]"], "observe_cameras"),
        (["placement.replay_shards=2"], "replay_shards"),
        (["world.run=x"], "share"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, words):
    with pytest.raises(RecipeError, match=words):
        check_recipe(load_recipe("sim_rlpd", ["world.share=0.5", *overrides]))
    check_recipe(load_recipe("sim_rlpd", ["world.share=0.5"]))
    assert Path(FILE).name == FILE


def test_a_resumed_run_has_the_world_and_its_source_as_they_were(world_run):
    _, run = world_run
    source, state = run.source, run.source.state_dict()
    real = copied(source.real)
    again = RealAndImagined(run.recipe, real, run.data, run.policy, run.clock)
    assert again.fitted_at == -60 and again.counts() == real.counts() == {}
    again.load_state_dict(state)
    assert (again.fitted_at, again.rounds) == (source.fitted_at, source.rounds)
    assert again.world.fits == source.world.fits and again.world.check == source.world.check
    for name, weights in source.world.ensemble.state_dict().items():
        assert torch.equal(again.world.ensemble.state_dict()[name], weights)
    assert real.players.rollouts.scene == source.real.players.rollouts.scene > 0
    state = source.real.state_dict() | {"scene": 77}
    again.load_state_dict(state)  # of a run without a world model
    assert real.players.rollouts.scene == 77 and again.rounds == source.rounds


def copied(source):
    """A source like this one at its beginning."""
    recipe = source.recipe
    return Simulators(recipe, source.make(recipe, 1), source.policy, source.make, Clock())


def test_a_world_is_fitted_and_plays_branches_once_in_so_many_real_steps(world_run, monkeypatch):
    _, run = world_run
    real = copied(run.source.real)
    source = RealAndImagined(run.recipe, real, run.data, run.policy, run.clock)
    source.load_state_dict(run.source.state_dict())
    fits, steps = source.world.fits, run.data.steps

    def imagined(order):
        taken = source.take(1, order).trajectories
        return [one for one in taken if one.mode == IMAGINED]

    source.fitted_at = steps - 59
    assert imagined({"random_warmup": False}) == []
    source.fitted_at = steps - 60
    assert imagined({"random_warmup": True}) == [], "noise is not imagined"
    episodes = run.data.real_episodes()
    monkeypatch.setattr(run.data, "real_episodes", lambda: episodes[:9])
    assert imagined({"random_warmup": False}) == [] and source.fitted_at == steps - 60
    assert (source.world.fits, source.rounds) == (fits, run.source.rounds)
    monkeypatch.setattr(run.data, "real_episodes", lambda: episodes[:10])
    imagined({"random_warmup": False})
    assert source.world.fits == fits + 1 and len(source.episodes) == 10
    monkeypatch.setattr(run.data, "real_episodes", lambda: episodes)
    source.fitted_at, rounds = steps - 60, source.rounds
    branches = imagined({"random_warmup": False})
    assert (source.world.fits, source.rounds) == (fits + 2, rounds + 1)
    assert source.fitted_at == steps and len(source.episodes) == len(episodes)
    check, total = source.world.check, sum(map(len, branches))
    rows = 60 * check.horizon // 8 * 8  # as many branches as real steps, up to the horizon long
    assert rows - 8 * check.horizon < total <= rows
    assert max(map(len, branches)) <= check.horizon
    counts = source.counts()
    assert counts["world/error_1"] == check.errors[0]
    assert counts["world/persistence_1"] == check.persistence[0]
    assert counts["world/horizon"] == check.horizon
    assert counts["world/correlation"] == check.correlation
    assert counts["world/flagged"] == source.flagged / max(1, source.branches) <= 1.0


def test_without_a_share_the_real_source_plays_alone(world_run):
    _, run = world_run
    real = run.source.real
    alone = run.recipe.but(world=run.recipe.world.but(share=0.0))
    assert with_world(alone, real, run.data, run.policy, run.clock) is real
    both = with_world(run.recipe, real, run.data, run.policy, run.clock)
    assert both.real is real and both.asynchronous is False
    both.report = {"phase": "online"}
    assert both.report == real.report == {"phase": "online"}


def test_a_world_is_named_by_its_file_or_its_run(fitted, tmp_path):
    assert world_file(tmp_path) == tmp_path / FILE
    path = fitted[0].save(tmp_path / "other.safetensors", fitted[1])
    assert world_file(path) == path
    recipe = load_recipe(
        "sim_rlpd",
        [f"world.run={path}", "world.horizon=3", "simulation.environments=5", "seed=2"],
    )
    env = imagined_envs(recipe)
    assert isinstance(env, ImaginedEnv) and env.size == 5 and env.length == 3
    assert env.world.check == fitted[0].check and env.spec == TASK.spec


def test_recordings_of_a_run_come_before_its_replay_and_evaluations_are_left_out(
    world_run, tmp_path
):
    folder, run = world_run
    replayed = run_episodes(folder, TASK.spec)
    real = run.data.real_episodes()
    assert [one.mode for one in replayed] == [one.mode for one in real]
    assert len(replayed) == len(real) >= 11
    for one, other in zip(replayed, real, strict=True):
        np.testing.assert_array_equal(one.observations["vectors"], other.observations["vectors"])
        np.testing.assert_array_equal(one.actions, other.actions)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(folder / "checkpoints")
    spool = Spool(tmp_path / "run/inbox")
    record(spool, TASK.spec, "e-1", mode="evaluate").close()
    assert len(run_episodes(tmp_path / "run", TASK.spec)) == len(real), "no other recording yet"
    record(spool, TASK.spec, "t-1", mode="train", steps=7).close()
    record(spool, TASK.spec, "d-1", mode="demonstration").close()
    recorded = run_episodes(tmp_path / "run", TASK.spec)
    assert sorted((one.id, one.mode, len(one)) for one in recorded) == [
        ("d-1", DEMONSTRATION, 5),
        ("t-1", TRAIN, 7),
    ]


def test_branches_of_a_video_model_are_as_many_and_as_long_as_the_recipe_says(tmp_path):
    task = station_task(load_recipe("sim_rlpd", CAMERA))
    record(Spool(tmp_path / "inbox"), task.spec, "t-1", mode="train", steps=12).close()
    np.savez(tmp_path / "frames.npz", frames=np.zeros((9, 16, 16, 3), np.uint8))
    model = f"world.video={{model: replay, options: {{file: '{tmp_path / 'frames.npz'}'}}}}"
    recipe = load_recipe("sim_rlpd", [*CAMERA, f"world.run={tmp_path}", "world.horizon=4", model])
    env = video_envs(recipe, 3)
    try:
        assert (env.size, env.horizon, env.spec) == (3, 4, task.spec)
        assert env.reset([0, 1, 2])["front"].shape == (3, 16, 16, 3)
    finally:
        env.close()
