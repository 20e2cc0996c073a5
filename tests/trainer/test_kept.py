"""Storage of episodes that are learned in parts or later: its size, and who waits for it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_core.cli.train import _words
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.types import DEMONSTRATION, EVALUATE, TRAIN, Trajectory
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.learner_setup import initial_policy
from tests.algorithms.point import SPEC
from tests.trainer.test_run import ASYNC_PPO, run_of, shown, spool  # noqa: F401 (a fixture)

STEPS = 40


@pytest.fixture
def gated():
    """Return the data of HG-DAgger, which has room for three whole episodes."""
    recipe = load_recipe(
        "sim_dagger",
        [
            "algorithm.gated=true",
            "policy.hidden=[8]",
            "algorithm.batch_size=64",
            f"replay.capacity={3 * (STEPS + 1)}",
        ],
    )
    return make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, STEPS))


def episode(number, *operator_steps, mode=TRAIN):
    """Return an episode whose vectors hold its number and time step."""
    sources = ["operator" if step in operator_steps else "policy" for step in range(STEPS)]
    vectors = np.stack([np.full(STEPS + 1, number), np.arange(STEPS + 1)], axis=1).astype(
        np.float32
    )
    return Trajectory(
        {"vectors": vectors},
        np.zeros((STEPS, SPEC.action.dim), np.float32),
        np.zeros(STEPS, np.float32),
        np.ones(STEPS, np.float32),
        True,
        mode,
        sources,
        station="a",
    )


def test_of_what_a_person_has_corrected_that_alone_takes_room_beside_what_was_demonstrated(gated):
    gated.insert(episode(0, *range(STEPS), mode=DEMONSTRATION), 0)
    for number in range(1, 17):
        assert gated.insert(episode(number, 7, 8, 30), 0) == "online"
    drawn = {tuple(row) for _ in range(40) for row in gated.batch()["vectors"]}
    shown = {(0.0, float(step)) for step in range(STEPS)}
    assert drawn == shown | {
        (float(number), step) for number in range(1, 17) for step in (7.0, 8.0, 30.0)
    }
    assert gated.online.inserted == STEPS + 16 * 3 and gated.steps == 16 * STEPS
    assert gated.rollout_length()["expert_fraction"] == pytest.approx(
        gated.config.expert_fraction(16)
    ), "of whole episodes"


def test_the_terminal_shows_how_much_a_person_has_commanded_lately(gated):
    run = SimpleNamespace(
        data=gated, recipe=load_recipe("sim_dagger"), phase="online", updates=7, version=3
    )
    assert gated.intervention_rate("a") is None and _words(run).endswith("no station yet")
    gated.insert(episode(0, *range(STEPS), mode=DEMONSTRATION), 0)
    assert gated.intervention_rate("a") is None, "a demonstration is no takeover"
    gated.insert(episode(1, *range(30)), 0)
    gated.insert(episode(2, 7, 8), 0)
    assert gated.intervention_rate("a") == 32 / (2 * STEPS)
    assert "a: 3 episodes, 80 steps, taken over in 40% of the last time steps" in _words(run)
    for number in range(50):
        gated.insert(episode(number), 0)
    assert gated.intervention_rate("a") == 0.0, "of the last fifty"


@pytest.mark.parametrize(
    "chunk, begins",
    [(1, {7, 8, 9, 30, 38, 39}), (2, {7, 8, 38, 39}), (3, {7, 38, 39}), (4, {38, 39})],
)
def test_a_correction_is_a_demonstration_where_all_that_is_played_of_a_chunk_is_the_persons(
    chunk, begins
):
    """Or all to the episode's end."""
    recipe = load_recipe(
        "sim_rlpd", ["policy.hidden=[8]", f"policy.horizon={chunk}", "algorithm.batch_size=400"]
    )
    data = make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, STEPS))
    data.insert(episode(0, 5, mode=DEMONSTRATION), 0)
    data.insert(episode(1, 7, 8, 9, 30, 38, 39), 0)
    shown = {int(step) for number, step in data.batch()["vectors"][200:] if number == 1}
    assert shown == begins


def test_where_there_is_nothing_to_learn_from_stations_go_on_until_there_is(gated):
    for number in range(9):
        assert gated.insert(episode(number), 0) == "online"
    assert len(gated.online) == gated.online.inserted == 0 and not gated.governor.accepting(
        gated.steps, 0
    )
    assert gated.accepting(0) and gated.due(0, None) == 0
    gated.insert(episode(9, 3), 0)
    assert not gated.accepting(0) and gated.due(0, None) > 0 and len(gated.online) == 1


def test_stations_wait_for_a_learner_of_rollouts_that_is_behind_by_more_than_its_lag(
    spool, task, tmp_path
):
    run = run_of(
        task,
        tmp_path,
        "policy.horizon=2",
        "policy.n_action_steps=2",
        "algorithm.chunks=8",
        algorithm=ASYNC_PPO,
    )
    run.data.governor = replace(run.data.governor, max_lag_episodes=1.5, steps_per_episode=8)
    run.data.versions[4], states = 0, []  # that of the recordings
    for number in range(6):
        assert shown(run, spool, f"e{number}", steps=6, chunk=(2, 2)) == "online"
        states.append((run.report()["accepting"], run.data.due(0, run.learner)))
    assert states == [(True, 0), (True, 0), (True, 1), (True, 1), (False, 1), (False, 1)], (
        "8 chunks and 1.5 episodes of 4"
    )
    run.data.batch()
    assert run.report()["accepting"]


def test_rollouts_that_are_too_old_make_no_update_and_keep_nobody_waiting(spool, task, tmp_path):
    run = run_of(
        task,
        tmp_path,
        "policy.horizon=2",
        "policy.n_action_steps=2",
        "algorithm.chunks=8",
        "algorithm.max_staleness=1",
        algorithm=ASYNC_PPO,
    )
    run.data.governor = replace(run.data.governor, max_lag_episodes=0.1, steps_per_episode=8)

    def play(*names):
        for name in names:
            # three chunks of version 4
            assert shown(run, spool, name, steps=6, chunk=(2, 2)) == "online"

    run.data.versions[4] = 0
    play("a", "b", "c")
    assert run.data.due(1, run.learner) == 1 and not run.data.accepting(1)
    assert run.data.accepting(2) and run.data.due(2, run.learner) == 0 and run.data.waiting == []
    assert run.data.counts()["stale"] == 3.0, "whoever looks sees that nothing is learned from them"
    run.data.versions[4] = 1
    play("d")
    run.data.versions[4] = 2
    play("e", "f")
    assert run.data.due(2, run.learner) == 1
    assert run.data.due(3, run.learner) == 0 and len(run.data.waiting) == 2, (
        "six chunks are fresh, of eight"
    )
    play("g")
    assert run.data.due(3, run.learner) == 1 and run.data.batch().mask.sum() == 9


def replay_data(*more):
    recipe = load_recipe("sim_rlpd", ["policy.hidden=[8]", "replay.capacity=60000", *more])
    return make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, STEPS))


@pytest.mark.parametrize(
    "more, capacities",
    [
        ([], (50_000, 60_000, 50_000, 1)),
        (["replay.capacity=300"], (300, 300, 300, 1)),
        (["algorithm.self_imitation=false"], (50_000, 60_000, 1, 1)),
        (["algorithm={name: sac}"], (50_000, 60_000, 1, 1)),
        (
            ["world.share=0.5", "world.refit_every=60", "world.horizon=4"],
            (50_000, 60_000, 50_000, 600),
        ),
    ],
)
def test_each_buffer_has_the_room_that_it_needs(more, capacities):
    """Of a learned world the branches of two refits: 60 time steps with up to 5 rows each."""
    data = replay_data(*more)
    buffers = (data.demonstrations, data.online, data.imitated, data.imagined)
    assert tuple(buffer.capacity for buffer in buffers) == capacities
    assert data.buffers == buffers
    assert data.max_transitions == min(capacities[:2]) - 1


def test_branches_of_a_learned_world_are_kept_in_a_checkpoint_of_a_run_that_has_one():
    world = ("world.share=0.5", "world.refit_every=60", "world.horizon=4")
    branch = replace(episode(3, mode="imagined"), station="")
    branch = branch.part(slice(0, 4))
    data, again, without = replay_data(*world), replay_data(*world), replay_data()
    assert data.insert(branch, 0) == "imagined" and data.imagined.inserted == 4
    assert without.insert(branch, 0) == "not used for training"
    assert (data.steps, data.online.inserted, without.imagined.inserted) == (0, 0, 0)
    assert data.counts()["imagined"] == 4.0 and "imagined" not in without.counts()
    state = data.state_dict()
    again.load_state_dict(state)
    assert again.imagined.inserted == 4 and again.counts() == data.counts()
    assert "imagined" not in without.state_dict()
    without.load_state_dict(state)
    again.load_state_dict(replay_data().state_dict())
    assert (without.imagined.inserted, again.statuses["imagined"]) == (0, 1)


def test_a_part_of_the_policys_half_is_imagined_once_there_are_branches():
    data = replay_data("world.share=0.5", "algorithm.batch_size=40")
    data.insert(episode(1, mode=DEMONSTRATION), 0)
    data.insert(episode(2), 0)
    numbers = data.batch()["vectors"][:, 0]
    assert (numbers[:20] == 2).all()
    data.insert(replace(episode(3, mode="imagined"), station="").part(slice(0, 5)), 0)
    numbers = data.batch()["vectors"][:, 0]
    assert numbers[:10].tolist() == [2] * 10 and numbers[10:20].tolist() == [3] * 10
    assert set(numbers[20:]) <= {1.0, 2.0}, "demonstrations, and successes of the policy"


def test_episodes_for_a_world_model_are_demonstrations_and_then_the_policys_own():
    data = replay_data("world.share=0.5")
    data.insert(episode(2), 0)
    data.insert(episode(1, mode=DEMONSTRATION), 0)
    real = data.real_episodes()
    assert [one.mode for one in real] == [DEMONSTRATION, TRAIN]
    assert [one.observations["vectors"][0, 0] for one in real] == [1.0, 2.0]


def data_of(name, *more):
    recipe = load_recipe(name, ["policy.hidden=[8]", "replay.capacity=2000", *more])
    return make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, STEPS))


@pytest.mark.parametrize(
    "name, more, mode, status",
    [
        ("sim_ppo", [], TRAIN, "without log-probabilities"),
        ("sim_ppo", [], EVALUATE, "evaluation"),
        ("sim_ppo", [], "imagined", "not used for training"),
        (
            "sim_sac",
            ["algorithm={name: dsrl}", "policy.kind=latent_noise"],
            TRAIN,
            "without latent noise",
        ),
        ("sim_sac", ["algorithm={name: sft}"], TRAIN, "not used for training"),
        ("sim_sac", ["algorithm={name: sft}"], DEMONSTRATION, "demonstration"),
        ("sim_sac", [], TRAIN, "online"),
    ],
)
def test_an_episode_that_lacks_something_is_counted_by_that(name, more, mode, status):
    data = data_of(name, *more)
    assert data.insert(episode(1, mode=mode), 0) == status
    assert dict(data.statuses) == {status: 1}
    assert data.steps == (STEPS if status == "online" else 0)
    counts = data.counts()
    assert counts["a/episodes"] == 1 and counts["a/steps"] == data.steps
    assert counts["evaluations"] == (status == "evaluation")
    again = data_of(name, *more)
    again.load_state_dict(data.state_dict())
    assert again.counts() == counts and again.statuses[status] == 1
    assert sum(again.statuses.values()) == 1


def test_demonstrations_are_learned_from_in_a_fixed_number_of_updates_and_hold_nobody_up():
    data = data_of("sim_sac", "algorithm={name: sft, steps: 7, batch_size: 5}")
    assert [data.due(updates, None) for updates in (0, 3, 7)] == [7, 4, 0]
    assert data.accepting(0) is True and data.rollout_length() == {}
    data.insert(episode(1, mode=DEMONSTRATION), 0)
    assert data.batch()["vectors"].shape == (5, 2)
    assert data.admission(0) == {"accepting": True, "waiting": {}}
