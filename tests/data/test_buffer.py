import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.data.replay import LARGE_BYTES, MOST_ARRAYS, BatchMemory, ReplayBuffer, mix
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import decoded, encoded


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
            observations | {"instruction": np.repeat(encoded([word]), 6, axis=0)}, *rest
        )
    buffer.insert_episode(*episode(spec, 5, 200.0))  # does not say it: the station's own
    batch = buffer.sample(200, random)
    expected = [
        ["push", "pull", spec.instruction][int(number) // 100] for number in batch["vectors"][:, 0]
    ]
    assert (
        list(decoded(batch["instruction"])) == list(decoded(batch["next/instruction"])) == expected
    )
    assert len(set(expected)) == 3
    observations, *rest = episode(spec, 5, 0.0)
    plain = ReplayBuffer(spec, 50)
    plain.insert_episode(
        observations | {"instruction": np.repeat(encoded(["push"]), 6, axis=0)}, *rest
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
        counts=np.arange(8) == 0,
        latents=np.ones((8, 3)),
        played=None if played is None else np.array(played),
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
    assert trajectory.played.tolist() == played


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
    instructions = encoded(["push"] * 5 + ["pull"] * 6)
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
    assert list(decoded(batch["instruction"])) == [
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
    """A replay whose batches of 32 have images of more than LARGE_BYTES."""
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
    for _ in range(3 * MOST_ARRAYS):
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
    held = [memory.array(shape, dtype) for _ in range(2 * MOST_ARRAYS)]
    assert len({array.ctypes.data for array in held}) == len(held)
    assert len(memory._arrays) == MOST_ARRAYS
    assert len(memory.array((1,), dtype)) == 1 and len(memory._arrays) == MOST_ARRAYS
