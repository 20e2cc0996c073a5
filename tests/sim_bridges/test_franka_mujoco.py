import numpy as np
import pytest

from rlinf_core.errors import RecipeError
from sim_bridges.franka_mujoco import FrankaPegInsertion
from sim_bridges.scripted import InsertionOperator
from sim_bridges.simulator import make
from sim_bridges.vector import SimulatedStation, VectorEnv


@pytest.fixture(scope="module")
def simulator():
    return FrankaPegInsertion()


@pytest.fixture(scope="module")
def station(simulator, task, limits):
    return SimulatedStation(simulator, task, limits)


def play(station, act, seed):
    observation, last, reward = station.reset(seed), False, 0.0
    while not last:
        observation, reward, discount, last = station.step(act(observation))
    return reward


def test_a_seed_gives_the_same_scene_and_the_same_motion(simulator):
    def run():
        simulator.reset(7)
        target = simulator.tcp_pose() + [0.0, 0.0, -0.05, 0, 0, 0, 0]
        for _ in range(30):
            simulator.advance(target)
        return np.concatenate(list(simulator.channels().values()))

    first = run()
    simulator.reset(8)
    assert np.array_equal(first, run())


def test_the_arm_follows_targets_and_keeps_its_tool_down(simulator):
    simulator.reset(0)
    target = simulator.tcp_pose() + [0.04, -0.03, -0.02, 0, 0, 0, 0]
    for _ in range(150):
        simulator.advance(target)
    assert simulator.tcp_pose() == pytest.approx(target, abs=2e-3)


def test_pressing_on_the_table_gives_a_bounded_force_that_is_felt(simulator):
    simulator.reset(0)
    target = simulator.tcp_pose()
    target[:3] = [0.62, 0.15, -0.01]
    for _ in range(300):
        simulator.advance(target)
    force = simulator.channels()["wrench"][2]
    assert 8.0 < force < 20.0, "1 cm into the table at 1500 N/m"
    assert simulator.tcp_pose()[2] > -0.001


def test_s18_without_targets_the_arm_stops_pressing_by_its_own_timeout(simulator):
    simulator.reset(0)
    target = simulator.tcp_pose()
    target[:3] = [0.62, 0.15, -0.02]
    for _ in range(300):
        simulator.advance(target)
    pressed = simulator.channels()["wrench"][2]
    for _ in range(15):
        simulator.advance(None)
    assert simulator.channels()["wrench"][2] == pytest.approx(pressed, abs=2.0), "not before 200 ms"
    for _ in range(60):
        simulator.advance(None)
    assert pressed > 20.0 and simulator.channels()["wrench"][2] < 5.0


def test_the_scripted_operator_can_and_random_actions_cannot(station, random):
    operator = InsertionOperator(station.task.spec.action.scale[0], seed=1)
    successes = []
    for seed in range(25):
        operator.reset()
        successes.append(play(station, lambda o: operator.act(o["socket_offset"]), seed))
    assert np.mean(successes) >= 0.8
    assert np.mean([play(station, lambda o: random.uniform(-1, 1, 3), seed) for seed in range(10)]) == 0.0


def test_the_reported_socket_is_a_little_wrong_each_episode(simulator):
    errors = []
    for seed in range(40):
        simulator.reset(seed)
        errors.append(simulator.channels()["object_pose"][:2] - simulator.data.mocap_pos[0][:2])
    assert 0.0003 < np.std(errors) < 0.0012


def test_cameras_see_the_socket_move(simulator):
    pictures = []
    for seed in (1, 2):
        simulator.reset(seed)
        pictures.append(simulator.render("front", 64, 64).astype(int))
    assert pictures[0].shape == (64, 64, 3) and pictures[0].std() > 10
    assert (np.abs(pictures[0] - pictures[1]).max(-1) > 40).mean() > 0.01


def test_the_vectorised_environment_is_the_station_stepped_together(task, limits):
    stations = [SimulatedStation(FrankaPegInsertion(), task, limits) for _ in range(2)]
    vector, single = VectorEnv(stations, first_seed=5), SimulatedStation(FrankaPegInsertion(), task, limits)
    observations = vector.reset()
    alone = single.reset(6)
    for _ in range(5):
        action = np.array([0.3, -0.2, -0.5])
        results = vector.step(np.stack([action, action]))
        alone, reward, discount, last = single.step(action)
    for name in alone:
        assert np.array_equal(results[1][0][name], alone[name])
        assert not np.array_equal(observations[0][name], results[0][0][name]) or name == "force"
    for _ in range(45):
        results = vector.step(np.zeros((2, 3)))
    assert results[0][3] and results[0][4]["tcp_position"] is not results[0][0]["tcp_position"]


def test_executed_actions_show_what_the_interlock_changed(station):
    station.reset(0)
    station.step(np.array([1.0, 1.0, 1.0]))
    assert np.linalg.norm(station.executed * 0.02) <= 0.25 * 0.1 + 1e-9
    assert np.linalg.norm(station.executed) < np.sqrt(3) - 0.1


def test_an_unknown_simulator_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'franka_mujoco'"):
        make("franka_mujco")
