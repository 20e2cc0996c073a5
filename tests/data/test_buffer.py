import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.data.replay import LARGE_BYTES, MAX_ARRAYS, BatchMemory, ReplayBuffer, mix
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import decode_instructions, encode_instructions


def episode(spec, length, start, terminal=True):
    """Vectors count up from ``start``; action and reward repeat the number of their own step."""
    numbers = np.arange(start, start + length + 1, dtype=np.float32)
    vectors = np.repeat(numbers[:, None], spec.vector_size, axis=1)
    images = {
        image.name: np.repeat(numbers.astype(np.uint8), image.size).reshape(-1, *image.shape)
        for image in spec.images
    }
    actions = np.repeat(numbers[:-1, None], spec.action.dim, axis=1)
    discounts = np.ones(length)
    discounts[-1] = 0.0 if terminal else 1.0
    return {"vectors": vectors, **images}, actions, numbers[:-1], discounts


@pytest.fixture
def spec(task):
    return task.with_images({"front": (4, 4)}).spec


def check(batch):
    """Every transition hangs together: action and reward of its observation, and the observation
    after it.
    """
    here, after = batch["vectors"][:, 0], batch["next/vectors"][:, 0]
    assert np.array_equal(after, here + 1)
    assert np.array_equal(batch["action"][:, 0], here) and np.array_equal(batch["reward"], here)
    assert np.array_equal(batch["front"][:, 0, 0, 0], here.astype(np.uint8))
    assert np.array_equal(batch["next/front"][:, 0, 0, 0], after.astype(np.uint8))


def test_transitions_never_cross_episodes_also_when_the_ring_wraps(spec, random):
    buffer = ReplayBuffer(spec, 100)
    for index in range(40):
        buffer.insert_episode(*episode(spec, int(random.integers(1, 20)), 1000 * index))
        check(buffer.sample(256, random))
    assert buffer.inserted > 200 and len(buffer) < 100


def test_old_episodes_leave_and_partly_overwritten_ones_lose_their_beginning(spec, random):
    buffer = ReplayBuffer(spec, 20)
    buffer.insert_episode(*episode(spec, 9, 0))
    buffer.insert_episode(*episode(spec, 9, 1000))
    buffer.insert_episode(*episode(spec, 4, 2000))
    starts = set(buffer.sample(2000, random)["vectors"][:, 0].astype(int).tolist())
    assert starts == set(range(5, 9)) | set(range(1000, 1009)) | set(range(2000, 2004))


def test_discounts_tell_an_end_from_a_time_limit(spec, random):
    buffer = ReplayBuffer(spec, 100)
    buffer.insert_episode(*episode(spec, 5, 0, terminal=True))
    buffer.insert_episode(*episode(spec, 5, 1000, terminal=False))
    batch = buffer.sample(500, random)
    ends = batch["discount"] == 0
    assert set(batch["vectors"][ends, 0]) == {4.0}


def test_state_goes_on_exactly(spec):
    one = ReplayBuffer(spec, 50)
    for index in range(12):
        one.insert_episode(*episode(spec, 7, 100 * index))
    two = ReplayBuffer(spec, 50)
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        buffer.insert_episode(*episode(spec, 7, 5000))
    a, b = (buffer.sample(64, np.random.default_rng(3)) for buffer in (one, two))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_what_was_there_before_is_gone_after_loading(spec):
    one, two = ReplayBuffer(spec, 50), ReplayBuffer(spec, 50)
    one.insert_episode(*episode(spec, 6, 0))
    for index in range(12):
        two.insert_episode(*episode(spec, 7, 100 * index))
    two.load_state_dict(one.state_dict())
    assert len(two) == len(one) == 6 and two.vectors()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (two.sample(64, np.random.default_rng(3))["vectors"][:, 0] < 7).all()


def test_what_does_not_fit_is_refused_and_changes_nothing(spec, random):
    buffer = ReplayBuffer(spec, 10)
    observations, *rest = episode(spec, 4, 0)
    with pytest.raises(SpecError, match="expected shape"):
        buffer.insert_episode(observations | {"vectors": observations["vectors"][:, :-1]}, *rest)
    with pytest.raises(SpecError, match="capacity"):
        buffer.insert_episode(*episode(spec, 10, 0))
    assert len(buffer) == 0 and buffer.inserted == 0


def test_mixing_keeps_the_order_online_then_demonstrations(spec, random):
    online, demonstrations = ReplayBuffer(spec, 50), ReplayBuffer(spec, 50)
    online.insert_episode(*episode(spec, 5, 0))
    demonstrations.insert_episode(*episode(spec, 5, 1000))
    batch = mix(online.sample(8, random), demonstrations.sample(8, random))
    assert (batch["vectors"][:8, 0] < 1000).all() and (batch["vectors"][8:, 0] >= 1000).all()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_actions_rewards_and_discounts_of_another_length_change_nothing_either(spec, which):
    buffer = ReplayBuffer(spec, 20)
    observations, *rest = episode(spec, 4, 0)
    rest[which] = rest[which][:1]
    with pytest.raises(SpecError, match="expected shape"):
        buffer.insert_episode(observations, *rest)
    assert len(buffer) == 0 and not buffer._arrays["vectors"].any()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vectors", np.nan, "'vectors': expected finite values, got others at time step 2"),
        ("action", np.inf, "'action': expected finite values, got others at time step 2"),
        ("reward", np.nan, "'reward': expected finite values, got others at time step 2"),
        ("front", np.nan, "'front': expected uint8, got float64"),
        ("front", 0.5, "'front': expected uint8, got float64"),
    ],
)
def test_damaged_numbers_and_images_change_nothing(spec, name, value, message):
    buffer = ReplayBuffer(spec, 20)
    observations, actions, discounts, rewards = episode(spec, 4, 0)
    arrays = {**observations, "action": actions, "reward": rewards}
    arrays[name] = arrays[name].astype(float)
    arrays[name][2:] = value
    observations = {key: arrays[key] for key in observations}
    with pytest.raises(SpecError, match=message):
        buffer.insert_episode(observations, arrays["action"], arrays["reward"], discounts)
    assert not len(buffer) and not buffer.episodes


def test_a_state_holds_what_is_filled_and_no_more(spec):
    buffer = ReplayBuffer(spec, 50)
    buffer.insert_episode(*episode(spec, 6, 0))
    buffer.insert_episode(*episode(spec, 3, 100))
    state = buffer.state_dict()
    assert (buffer.inserted, buffer.episodes, state["next"]) == (9, 2, 11)
    assert {len(values) for values in state["arrays"].values()} == {11}
    assert state["arrays"]["vectors"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 100, 101, 102, 103]


def test_a_return_of_several_steps_sums_their_rewards_and_ends_with_the_episode(spec, random):
    buffer = ReplayBuffer(spec, 100)
    observations, actions, rewards, discounts = episode(spec, 5, 10, terminal=True)
    buffer.insert_episode(observations, actions, rewards, discounts)
    batch = buffer.sample(300, random, gamma=0.5, n_step=3)
    for row in range(300):
        start = int(batch["vectors"][row, 0])
        span = min(3, 15 - start)
        assert batch["steps"][row] == span and batch["next/vectors"][row, 0] == start + span
        assert batch["reward"][row] == sum(0.5**i * (start + i) for i in range(span))
        assert batch["discount"][row] == (0.0 if start + span == 15 else 1.0)
        assert (
            batch["action"].shape == (300, spec.action.dim)
            and (batch["action"][row] == start).all()
        )


def test_a_chunk_longer_than_the_return_sums_its_own(spec, random):
    buffer = ReplayBuffer(spec, 100)
    buffer.insert_episode(*episode(spec, 9, 0))
    alone = buffer.sample(50, np.random.default_rng(1), horizon=6, gamma=0.9, execute=4)
    with_return = buffer.sample(
        50, np.random.default_rng(1), horizon=6, gamma=0.9, execute=4, n_step=2
    )
    assert all(np.array_equal(alone[name], with_return[name]) for name in alone)
    longer = buffer.sample(50, np.random.default_rng(1), horizon=2, gamma=0.9, execute=1, n_step=5)
    assert longer["action"].shape == (50, 2 * spec.action.dim) and longer["steps"].max() == 5


def test_what_was_asked_for_is_kept_with_each_time_step(spec, random):
    buffer = ReplayBuffer(spec, 50, instructions=True)
    reward_by_instruction = {"push": 0.0, "pull": 100.0}
    for word, start in reward_by_instruction.items():
        observations, *rest = episode(spec, 5, start)
        buffer.insert_episode(
            observations | {"instruction": np.repeat(encode_instructions([word]), 6, axis=0)}, *rest
        )
    buffer.insert_episode(*episode(spec, 5, 200.0))  # does not say it: the station's own
    batch = buffer.sample(200, random)
    expected = [
        ["push", "pull", spec.instruction][int(number) // 100] for number in batch["vectors"][:, 0]
    ]
    assert (
        list(decode_instructions(batch["instruction"]))
        == list(decode_instructions(batch["next/instruction"]))
        == expected
    )
    assert len(set(expected)) == 3
    observations, *rest = episode(spec, 5, 0.0)
    plain = ReplayBuffer(spec, 50)
    plain.insert_episode(
        observations | {"instruction": np.repeat(encode_instructions(["push"]), 6, axis=0)}, *rest
    )
    assert "instruction" not in plain.sample(10, random)


@pytest.mark.parametrize(
    "played, spans", [(None, 4), ([2, 1, 4, 9, 9, 9, 9, 9], 2), ([1] * 8, 1), ([9] * 8, 4)]
)
def test_what_came_after_a_chunk_was_left_is_none_of_its_noise(task, random, played, spans):
    """A person who takes over from a chunk and succeeds does not credit it."""
    buffer = ReplayBuffer(task.spec, 50, latent=3)
    observations, actions, _, discounts = episode(task.spec, 8, 0)
    rewards = np.where(np.arange(8) == 2, 1.0, 0.0)
    buffer.insert_episode(
        observations,
        actions,
        rewards,
        discounts,
        start_mask=np.arange(8) == 0,
        latents=np.ones((8, 3)),
        steps_to_chunk_end=None if played is None else np.array(played),
    )
    batch = buffer.sample(5, random, horizon=4, gamma=0.5, execute=4)
    assert (
        batch["steps"].tolist() == [spans] * 5
        and batch["reward"].tolist() == [0.25 if spans > 2 else 0.0] * 5
    )
    assert batch["next/vectors"][:, 0].tolist() == [spans] * 5 and (batch["action"] == 1.0).all()
    again = ReplayBuffer(task.spec, 50, latent=3)
    again.load_state_dict(buffer.state_dict())
    assert again.sample(1, random, horizon=4, gamma=0.5, execute=4)["steps"].tolist() == [spans]
    state = buffer.state_dict()
    del state["arrays"]["played"]  # as of before it was kept
    again.load_state_dict(state)
    assert again.sample(1, random, horizon=4, gamma=0.5, execute=4)["steps"].tolist() == [4]


@pytest.mark.parametrize(
    "sources, decided, played",
    [
        (["policy"] * 6, [1, 0, 0, 1, 0, 0], [3, 2, 1, 3, 2, 1]),
        (
            ["policy", "policy", "operator", "operator", "policy", "policy"],
            [1, 0, 0, 0, 1, 0],
            [2, 1, 1, 1, 2, 1],
        ),
        (["policy", "", "policy", "policy"], [1, 0, 0, 1], [1, 2, 1, 1]),
        ((), [1, 0, 0], [3, 2, 1]),
        (["policy"] * 3, None, [3, 2, 1]),
    ],
)
def test_how_far_a_chunk_was_played(sources, decided, played):
    zeros = np.zeros(len(played))
    trajectory = Trajectory(
        {},
        zeros,
        zeros,
        zeros,
        True,
        sources=sources,
        chunk_starts=None if decided is None else np.array(decided, bool),
    )
    assert trajectory.steps_to_chunk_end.tolist() == played


def test_the_state_of_another_replay_is_refused_before_anything_is_read(task, spec):
    small, large = ReplayBuffer(task.spec, 20), ReplayBuffer(task.spec, 100)
    for index in range(4):
        large.insert_episode(*episode(task.spec, 9, 100 * index))
    for state in (large.state_dict(), {"shards": []}):
        with pytest.raises(
            RlinfError,
            match="replay: expected a saved state of at most 20 time steps in one process",
        ):
            small.load_state_dict(state)
    assert len(small) == 0


def test_a_transition_ends_where_something_else_was_asked_for(spec, random):
    """A station's policy begins another chunk there."""
    buffer = ReplayBuffer(spec, 50, instructions=True)
    observations, actions, rewards, discounts = episode(spec, 10, 0.0)
    instructions = encode_instructions(["push"] * 5 + ["pull"] * 6)
    buffer.insert_episode(observations | {"instruction": instructions}, actions, rewards, discounts)
    alone = ReplayBuffer(spec, 50)
    alone.insert_episode(observations, actions, rewards, discounts)
    batch, plain = (
        replay.sample(400, np.random.default_rng(0), horizon=4, execute=4)
        for replay in (buffer, alone)
    )
    here = batch["vectors"][:, :1]
    spans = np.minimum(np.where(here < 5, 5 - here, 10 - here), 4)[:, 0]
    assert np.array_equal(batch["steps"], spans) and np.array_equal(
        batch["next/vectors"][:, 0], here[:, 0] + spans
    )
    assert np.array_equal(
        batch["reward"],
        [sum(range(int(a), int(a + n))) for a, n in zip(here[:, 0], spans, strict=True)],
    )
    assert np.array_equal(batch["discount"], np.where(here[:, 0] + spans == 10, 0.0, 1.0))
    chunks = batch["action"].reshape(400, 4, -1)[:, :, 0]
    assert np.array_equal(chunks, np.minimum(here + np.arange(4), np.where(here < 5, 4.0, 9.0)))
    assert list(decode_instructions(batch["instruction"])) == [
        "push" if number < 5 else "pull" for number in here[:, 0]
    ]
    old = buffer.state_dict()
    del old["arrays"]["asked"]
    older = ReplayBuffer(spec, 50, instructions=True)
    older.load_state_dict(old)
    assert np.array_equal(
        older.sample(400, np.random.default_rng(0), horizon=4, execute=4)["action"], plain["action"]
    )


@pytest.fixture
def large(task, random):
    """Return a replay whose batches of 32 have images of more than LARGE_BYTES."""
    buffer = ReplayBuffer(task.with_images({"front": (128, 128)}).spec, 50)
    for start in (0, 100, 200):
        buffer.insert_episode(*episode(buffer.spec, 20, start))
    assert buffer.sample(32, random)["front"].nbytes > LARGE_BYTES
    return buffer


def test_images_in_used_memory_are_those_of_their_transitions(large, random):
    for size in (32, 64, 40, 32, 64):
        batch = large.sample(size, random)
        check(batch)
        front = batch["front"]
        assert (front == batch["vectors"][:, 0].astype(np.uint8)[:, None, None, None]).all()


def test_a_batch_stays_as_it_is_while_anybody_holds_a_part_of_it(large, random):
    batch = large.sample(32, random)
    part = large.sample(32, random)["next/front"][3:5, ::2]
    tensor = torch.from_numpy(large.sample(32, random)["front"]).permute(0, 3, 1, 2)[7]
    mixed = mix(large.sample(32, random), large.sample(32, random))["front"][40:]
    held = [batch["front"], part, tensor.numpy(), mixed]
    before = [array.copy() for array in held]
    for _ in range(3 * MAX_ARRAYS):
        mix(large.sample(32, random), large.sample(32, random))
    assert all(np.array_equal(*pair) for pair in zip(held, before, strict=True))


def test_memory_is_used_again_and_bounded():
    memory, shape, dtype = BatchMemory(), (2, LARGE_BYTES), np.dtype(np.uint8)
    address = memory.array(shape, dtype).ctypes.data
    first = memory.array(shape, dtype)
    second = memory.array(shape, dtype)
    assert first.ctypes.data == address != second.ctypes.data
    del first
    assert memory.array((LARGE_BYTES,), np.dtype(np.uint16)).ctypes.data == address
    held = [memory.array(shape, dtype) for _ in range(2 * MAX_ARRAYS)]
    assert len({array.ctypes.data for array in held}) == len(held)
    assert len(memory._arrays) == MAX_ARRAYS
    assert len(memory.array((1,), dtype)) == 1 and len(memory._arrays) == MAX_ARRAYS


def test_a_replay_keeps_each_array_in_its_shape_and_type(spec):
    buffer = ReplayBuffer(spec, 30, latent=5, instructions=True, prefixes=True)
    assert (len(buffer), buffer.inserted, buffer.episodes, buffer.capacity) == (0, 0, 0, 30)
    buffer.insert_episode(*episode(spec, 29, 0), latents=np.ones((29, 5)))
    arrays = buffer.state_dict()["arrays"]
    assert {name: (values.shape, str(values.dtype)) for name, values in arrays.items()} == {
        "vectors": ((30, spec.vector_size), "float32"),
        "action": ((30, 3), "float32"),
        "reward": ((30,), "float32"),
        "discount": ((30,), "float32"),
        "starts": ((30,), "bool"),
        "final": ((30,), "bool"),
        "origin": ((30,), "uint8"),
        "latent": ((30, 5), "float32"),
        "played": ((30,), "int32"),
        "given": ((30,), "float32"),
        "front": ((30, 4, 4, 3), "uint8"),
        "instruction": ((30, 128), "uint8"),
        "asked": ((30,), "int32"),
    }
    assert arrays["asked"].tolist() == [*(30 - np.arange(29)), 30]
    assert arrays["starts"].tolist() == [True] * 29 + [False]
    assert arrays["final"].tolist() == [False] * 29 + [True]
    assert not arrays["given"].any() and set(arrays["played"][:-1].tolist()) == {30}
    plain = ReplayBuffer(spec, 30)
    plain.insert_episode(*episode(spec, 2, 0))
    assert plain.state_dict()["arrays"].keys() == {
        *("vectors", "action", "reward", "discount", "starts", "final", "origin", "front")
    }
    for counts in (buffer.sampled, buffer.inserted_by_origin):
        assert counts.shape == (256,) and counts.dtype == np.int64


def test_transitions_begin_where_they_may_and_are_counted_by_their_station(spec, random):
    buffer = ReplayBuffer(spec, 100)
    starts = np.array([True, False, True, False])
    assert buffer.insert_episode(*episode(spec, 4, 0), start_mask=starts, origin=3) == 4
    assert buffer.insert_episode(*episode(spec, 6, 100), origin=300) == 6
    assert buffer.insert_episode(*episode(spec, 1, 200)) == 1
    assert (buffer.inserted, buffer.episodes, len(buffer)) == (11, 3, 9)
    counts = {0: 1, 3: 2, 255: 6}
    expected = np.array([counts.get(origin, 0) for origin in range(256)])
    assert np.array_equal(buffer.inserted_by_origin, expected)
    assert np.array_equal(buffer.present_by_origin(), expected)
    batch = buffer.sample(900, random)
    drawn = batch["vectors"][:, 0]
    assert set(drawn.tolist()) == {0.0, 2.0, *np.arange(100.0, 106.0), 200.0}
    by_origin = [(drawn == 200).sum(), (drawn < 100).sum(), ((drawn >= 100) & (drawn < 200)).sum()]
    assert buffer.sampled[[0, 3, 255]].tolist() == by_origin and buffer.sampled.sum() == 900
    buffer.sample(100, random)
    assert buffer.sampled.sum() == 1000
    with pytest.raises(SpecError) as refused:
        buffer.insert_episode(*episode(spec, 100, 0))
    assert str(refused.value) == (
        "episode of 100 transitions: expected 1 to 99 (the replay's capacity)"
    )
    with pytest.raises(SpecError, match="episode of 0 transitions: expected 1 to 99"):
        buffer.insert_episode({}, *(np.zeros(0) for _ in range(3)))
    assert buffer.insert_episode(*episode(spec, 99, 0)) == 99 and len(buffer) == 99
    assert buffer.present_by_origin()[0] == 99 and buffer.present_by_origin().sum() == 99, (
        "the others have left"
    )


def test_counters_add_up_over_the_episodes_of_a_station(spec):
    buffer = ReplayBuffer(spec, 100)
    buffer.insert_episode(*episode(spec, 4, 0), origin=3)
    buffer.insert_episode(*episode(spec, 2, 10), origin=3)
    buffer.insert_episode(*episode(spec, 3, 20), origin=3, start_mask=np.array([True, False, True]))
    assert buffer.inserted_by_origin[3] == 4 + 2 + 2 and buffer.inserted_by_origin.sum() == 8
    assert (buffer.inserted, buffer.episodes) == (9, 3)


def test_stations_are_drawn_by_their_weights_and_their_transitions_equally(spec, random):
    buffer = ReplayBuffer(spec, 40)
    buffer.insert_episode(*episode(spec, 2, 0), origin=0)
    buffer.insert_episode(*episode(spec, 8, 100), origin=3)
    buffer.insert_episode(*episode(spec, 2, 50), origin=0)
    buffer.insert_episode(*episode(spec, 2, 200), origin=9)
    weights = np.zeros(256)
    weights[[0, 3, 7]] = 3.0, 1.0, 100.0  # nothing came from station 7
    before = weights.copy()
    batch = buffer.sample(8000, random, weights=weights)
    assert np.array_equal(weights, before)
    check(batch)
    values, counts = np.unique(batch["vectors"][:, 0], return_counts=True)
    assert values.tolist() == [0, 1, 50, 51, *range(100, 108)]
    assert counts[:4] == pytest.approx([1500] * 4, rel=0.1)
    assert counts[4:] == pytest.approx([250] * 8, rel=0.25)
    assert buffer.sampled[[0, 3, 7, 9]].tolist() == [counts[:4].sum(), counts[4:].sum(), 0, 0]
    again = [
        buffer.sample(9, np.random.default_rng(4), weights=weights)["reward"] for _ in range(2)
    ]
    assert np.array_equal(*again)
    buffer.insert_episode(*episode(spec, 30, 1000), origin=3)  # overwrites 0 to 105
    drawn = buffer.sample(2000, random, weights=weights)["vectors"][:, 0]
    assert set(drawn.tolist()) == {50, 51, 106, 107, *range(1000, 1030)}


def test_a_station_with_one_transition_is_drawn_by_its_weight(spec, random):
    buffer = ReplayBuffer(spec, 40)
    buffer.insert_episode(*episode(spec, 1, 500), origin=2)
    buffer.insert_episode(*episode(spec, 4, 0), origin=5)
    weights = np.zeros(256)
    weights[2] = 1.0
    alone = buffer.sample(20, random, weights=weights)
    assert alone["vectors"][:, 0].tolist() == [500.0] * 20
    weights[5] = 3.0
    drawn = buffer.sample(4000, random, weights=weights)["vectors"][:, 0]
    assert (drawn == 500.0).mean() == pytest.approx(0.25, abs=0.03)
    assert buffer.sampled[2] == 20 + (drawn == 500.0).sum()


def test_an_empty_replay_has_weights_of_zero_and_nothing_to_draw(spec, random):
    buffer = ReplayBuffer(spec, 40)
    assert (
        buffer.robot_weights(2).tolist() == [0.0] * 256
        and buffer.present_by_origin().tolist() == [0] * 256
    )
    assert buffer.present_by_robot(2).tolist() == buffer.episodes_by_robot(2).tolist() == [0, 0]
    assert buffer.vectors().shape == (0, spec.vector_size) and len(buffer) == 0
    with pytest.raises(ValueError):
        buffer.sample(1, random)


def of_robot(spec, robot, length, start, robots=2):
    """Return an episode whose first numbers name its robot."""
    observations, *rest = episode(spec, length, start)
    observations["vectors"][:, :robots] = np.arange(robots) == robot
    return observations, *rest


def test_each_robot_is_drawn_as_often_as_it_should_be(spec, random):
    buffer = ReplayBuffer(spec, 60)
    for robot, origin, length in ((0, 0, 3), (0, 1, 9), (1, 2, 5), (1, 2, 4)):
        buffer.insert_episode(*of_robot(spec, robot, length, 10 * origin), origin=origin)
    weights = buffer.robot_weights(2)
    assert weights.shape == (256,) and weights[:4].tolist() == [0.5, 0.5, 1.0, 0.0]
    assert not weights[3:].any()
    assert buffer.robot_weights(2, np.array([0.2, 0.6]))[:4].tolist() == pytest.approx(
        [0.1, 0.1, 0.6, 0.0]
    )
    assert buffer.present_by_robot(2).tolist() == [12, 9] and buffer.episodes_by_robot(
        2
    ).tolist() == [2, 2]
    robots = buffer.sample(4000, random, weights=weights)["vectors"][:, 0]
    assert robots.mean() == pytest.approx(0.5, abs=0.03)
    buffer.insert_episode(*of_robot(spec, 1, 2, 0), origin=0)  # a station with both
    assert buffer.robot_weights(2)[:3].tolist() == [1.0, 0.5, 0.5]
    alone = ReplayBuffer(spec, 60)
    alone.insert_episode(*of_robot(spec, 1, 2, 0), origin=4)
    assert alone.robot_weights(2).sum() == alone.robot_weights(2)[4] == 1.0, (
        "a robot without transitions: nothing"
    )
    buffer.load_state_dict(alone.state_dict())
    assert buffer.robot_weights(2)[:5].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_its_episodes_are_given_back_oldest_first_and_whole(spec):
    buffer = ReplayBuffer(spec, 20)
    assert buffer.trajectories("train") == []
    for length, start, terminal in ((4, 0, True), (5, 100, False), (3, 200, True)):
        buffer.insert_episode(*episode(spec, length, start, terminal))

    def begins():
        return [float(one.observations["vectors"][0, 0]) for one in buffer.trajectories("train")]

    assert begins() == [0.0, 100.0, 200.0]
    first, second, third = buffer.trajectories("demonstration")
    assert first.observations.keys() == {"vectors"} and first.mode == "demonstration"
    assert first.observations["vectors"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert first.actions[:, 0].tolist() == first.rewards.tolist() == [0, 1, 2, 3]
    assert second.observations["vectors"][:, 0].tolist() == [100, 101, 102, 103, 104, 105]
    assert second.discounts.tolist() == [1.0] * 5 and third.discounts.tolist() == [1.0, 1.0, 0.0]
    assert (first.success, second.success, third.success) == (True, False, True)
    buffer.insert_episode(*episode(spec, 4, 300))  # fills all 20 slots
    assert buffer.state_dict()["next"] == 0 and begins() == [0.0, 100.0, 200.0, 300.0]
    buffer.insert_episode(*episode(spec, 1, 400))  # overwrites the beginning of the first
    assert begins() == [100.0, 200.0, 300.0, 400.0]
    observations, actions, rewards, discounts = episode(spec, 3, 500)
    buffer.insert_episode(observations, actions, 0.0 * rewards, discounts)
    assert begins() == [200.0, 300.0, 400.0, 500.0]
    assert [one.success for one in buffer.trajectories("train")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vectors", lambda v: v[:-1], "'vectors': expected shape (5, 12), got (4, 12)"),
        ("action", lambda v: v[:, :2], "'action': expected shape (4, 3), got (4, 2)"),
        ("latent", lambda v: None, "'latent': expected shape (4, 2), got None"),
        ("given", lambda v: v[:, None], "'given': expected shape (4,), got (4, 1)"),
        (
            "front",
            lambda v: v.astype(np.int64),
            "'front': expected uint8, got int64. A conversion would hide fractions and NaN. Correct "
            "its source",
        ),
        (
            "latent",
            lambda v: np.where(np.arange(8).reshape(4, 2) == 5, np.nan, v),
            "'latent': expected finite values, got others at time step 2. Correct its source",
        ),
    ],
)
def test_an_episode_is_refused_with_the_array_that_does_not_fit(spec, name, change, message):
    buffer = ReplayBuffer(spec, 20, latent=2, prefixes=True)
    observations, actions, rewards, discounts = episode(spec, 4, 0)
    arrays = observations | {"action": actions, "latent": np.ones((4, 2)), "given": np.ones(4)}
    arrays[name] = change(arrays[name])
    with pytest.raises(SpecError) as refused:
        buffer.insert_episode(
            {key: arrays[key] for key in observations},
            arrays["action"],
            rewards,
            discounts,
            latents=arrays["latent"],
            prefix_lengths=arrays["given"],
        )
    assert str(refused.value) == f"episode: {message}" and len(buffer) == 0


def test_given_actions_and_noise_come_with_the_transition_that_they_belong_to(spec, random):
    buffer = ReplayBuffer(spec, 50, latent=2, prefixes=True)
    numbers = np.arange(6)
    buffer.insert_episode(
        *episode(spec, 6, 0),
        latents=np.stack([numbers, -numbers], axis=1),
        prefix_lengths=10 + numbers,
        steps_to_chunk_end=np.array([3, 2, 1, 3, 2, 1]),
    )
    batch = buffer.sample(60, random, horizon=4, execute=4, gamma=0.5)
    here = batch["vectors"][:, 0]
    assert set(here.tolist()) == set(range(6))
    assert (
        np.array_equal(batch["prefix_length"], 10 + here)
        and batch["prefix_length"].dtype == np.float32
    )
    assert np.array_equal(batch["action"], np.stack([here, -here], axis=1))
    assert np.array_equal(batch["steps"], 3 - here % 3) and batch["steps"].dtype == np.float32
    assert batch["reward"].dtype == np.float32
    single = buffer.sample(10, random)
    assert "steps" not in single and np.array_equal(single["reward"], single["vectors"][:, 0])
    assert np.array_equal(single["action"][:, 1], -single["vectors"][:, 0])


def test_chunks_of_the_ring_s_end_go_on_at_its_beginning(spec, random):
    buffer = ReplayBuffer(spec, 12)
    buffer.insert_episode(*episode(spec, 8, 100))
    buffer.insert_episode(*episode(spec, 6, 0, terminal=False))  # slots 9 to 11, then 0 to 3
    batch = buffer.sample(300, random, horizon=3, execute=2, gamma=0.5)
    for row in range(300):
        here = int(batch["vectors"][row, 0])
        end = 6 if here < 100 else 108
        span = min(2, end - here)
        assert batch["next/vectors"][row, 0] == here + span and batch["steps"][row] == span
        assert batch["reward"][row] == sum(0.5**step * (here + step) for step in range(span))
        assert batch["discount"][row] == (0.0 if here + span == 108 else 1.0)
        chunk = batch["action"][row].reshape(3, -1)[:, 0].tolist()
        assert chunk == [min(here + step, end - 1) for step in range(3)]
    assert set(batch["vectors"][:, 0].astype(int).tolist()) == {*range(6), *range(104, 108)}


def test_a_saved_state_has_all_counters_and_one_of_before_has_those_that_follow(spec, random):
    one = ReplayBuffer(spec, 20, instructions=True, latent=1)
    one.insert_episode(*episode(spec, 5, 0), origin=2, latents=np.ones((5, 1)))
    one.sample(7, random)
    state = one.state_dict()
    assert state.keys() == {"arrays", "next", "inserted", "episodes", "sampled", "inserted_of"}
    two = ReplayBuffer(spec, 20, instructions=True, latent=1)
    two.load_state_dict(state)
    assert (two.inserted, two.episodes, two.sampled[2], two.inserted_by_origin[2]) == (5, 1, 7, 5)
    assert two.state_dict()["next"] == 6 and len(two) == 5
    two.sample(3, random)
    assert one.sampled.sum() == 7, "they share no counter"
    older = {key: value for key, value in state.items() if key != "inserted_of"}
    older["arrays"] = {
        name: values for name, values in state["arrays"].items() if name not in ("played", "asked")
    } | {"side": np.zeros(6)}
    three = ReplayBuffer(spec, 20, instructions=True, latent=1)
    three.insert_episode(
        *episode(spec, 15, 100), latents=np.ones((15, 1)), steps_to_chunk_end=np.ones(15)
    )
    three.load_state_dict(older)
    assert three.inserted_by_origin[2] == 5 and three.inserted_by_origin.sum() == 5
    arrays = three.state_dict()["arrays"]
    assert "side" not in arrays and set(arrays["played"].tolist()) == {20}
    assert set(arrays["asked"].tolist()) == {20}
    full = ReplayBuffer(spec, 6, instructions=True, latent=1)
    full.load_state_dict(state)  # exactly as many as it holds
    assert len(full) == 5
    for wrong in ({}, {"arrays": {}}):
        with pytest.raises(
            RlinfError,
            match="expected a saved state of at most 6 time steps in one process, got another. Use "
            "the run's first values of replay.capacity, placement.replay_shards and "
            "algorithm.self_imitation, or choose another --out",
        ):
            full.load_state_dict(wrong)
    with pytest.raises(RlinfError, match="of at most 5 time steps"):
        ReplayBuffer(spec, 5, instructions=True, latent=1).load_state_dict(state)


def test_a_full_ring_is_saved_in_full(spec):
    buffer = ReplayBuffer(spec, 10)
    buffer.insert_episode(*episode(spec, 4, 0))
    buffer.insert_episode(*episode(spec, 3, 100))
    assert len(buffer.state_dict()["arrays"]["reward"]) == 9
    buffer.insert_episode(*episode(spec, 3, 200))
    assert buffer.state_dict()["next"] == 3
    assert buffer.state_dict()["arrays"]["vectors"][:, 0].tolist() == [
        *(201, 202, 203, 3, 4),
        *(100, 101, 102, 103, 200),
    ]


def address_of(array):
    return array.ctypes.data


def test_memory_of_about_the_size_is_taken_and_the_smallest_of_it():
    memory, dtype = BatchMemory(), np.dtype(np.uint8)

    def array(size):
        return memory.array((size,), dtype)

    held = [array(int(part * LARGE_BYTES)) for part in (4, 2, 1.5, 3)]
    addresses = [address_of(one) for one in held]
    del held
    assert address_of(array(LARGE_BYTES)) == addresses[2]
    assert address_of(array(2 * LARGE_BYTES)) == addresses[1], "exactly as large"
    assert address_of(array(2 * LARGE_BYTES + 1)) == addresses[3]
    only = BatchMemory()
    first = address_of(only.array((2 * LARGE_BYTES,), dtype))
    assert address_of(only.array((LARGE_BYTES,), dtype)) == first, "twice as large at most"
    only = BatchMemory()
    first = address_of(only.array((2 * LARGE_BYTES + 2,), dtype))
    assert address_of(only.array((LARGE_BYTES,), dtype)) != first
    words = only.array((2, LARGE_BYTES), np.dtype(np.float64))
    assert words.shape == (2, LARGE_BYTES) and words.dtype == np.float64
    small = BatchMemory()
    small.array((LARGE_BYTES - 1,), dtype)
    assert small._arrays == []


def test_full_memory_gives_up_what_nobody_holds():
    memory, dtype = BatchMemory(), np.dtype(np.uint8)
    held = [memory.array((LARGE_BYTES,), dtype) for _ in range(MAX_ARRAYS)]
    still_held = {address_of(array) for number, array in enumerate(held) if number not in (5, 8)}
    held[5] = held[8] = None
    large = memory.array((5 * LARGE_BYTES,), dtype)
    addresses = {address_of(array) for array in memory._arrays}
    assert len(memory._arrays) == MAX_ARRAYS and still_held < addresses
    assert address_of(large) in addresses


def test_batches_of_other_types_or_shapes_are_joined_as_numpy_does(random):
    one, two = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(4.0).reshape(2, 2)
    joined = mix({"a": one}, {"a": two}, {"a": one})["a"]
    assert joined.dtype == np.float64 and np.array_equal(joined, np.concatenate([one, two, one]))
    same = mix({"a": one, "b": two}, {"a": one[:1], "b": two[:0]})
    assert same["a"].dtype == np.float32 and same["a"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert same["b"].tolist() == two.tolist() and same.keys() == {"a", "b"}
    assert mix({"a": one})["a"].tolist() == one.tolist(), "one batch alone"
    with pytest.raises(ValueError, match="must match exactly"):
        mix({"a": one}, {"a": np.zeros((1, 3), np.float32)})
    large = random.integers(0, 255, (3, LARGE_BYTES), dtype=np.uint8)
    index = np.array([2, 0, 2])
    taken = BatchMemory().take(large, index)
    assert taken.dtype == np.uint8 and np.array_equal(taken, large[index])
    assert np.array_equal(BatchMemory().concatenate([taken, large]), [*taken, *large])


def test_joined_and_taken_batches_come_from_the_memory(random):
    memory, part = BatchMemory(), random.integers(0, 255, (1, LARGE_BYTES), dtype=np.uint8)
    joined = memory.concatenate([part, part])
    assert [len(array) for array in memory._arrays] == [2 * LARGE_BYTES]
    assert joined.base is not None and np.array_equal(joined, [*part, *part])
    address = address_of(joined)
    del joined
    taken = memory.take(part, np.array([0, 0]))
    assert address_of(taken) == address and len(memory._arrays) == 1
    assert np.array_equal(taken, [*part, *part])
