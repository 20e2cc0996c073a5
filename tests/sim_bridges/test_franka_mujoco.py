from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.core.rotation import product as multiply
from rlinf_core.core.rotation import to_quaternion as about
from rlinf_core.interlock import load_limits
from rlinf_core.tasks.task import load_task
from sim_bridges.core.gym import Environments, StationEnv
from sim_bridges.core.isolated import make
from sim_bridges.core.station import SimulatedStation
from sim_bridges.simulators.franka_mujoco import Simulator


@pytest.fixture(scope="module")
def simulator():
    return Simulator()


@pytest.fixture(scope="module")
def station(simulator, task, limits):
    return SimulatedStation(simulator, task, limits)


def play(station, act, seed):
    observation, last = station.reset(seed), False
    while not last:
        observation, result = station.step(act(observation))
        last = result.last
    return result.success


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


@pytest.mark.parametrize(
    "changes, reason",
    [
        (
            {"contact_force": 20.0, "contact_torque": 5.0},
            "got contact_force: 20.0, contact_torque: 5.0. Extend",
        ),
        (
            {"joint_names": ("one",), "joint_low": (-1.0,), "joint_high": (1.0,)},
            "got joint_names: .'one'.. Extend",
        ),
        (
            {"control_mode": "joint_delta"},
            "got control_mode: joint_delta. Extend sim_bridges/limits.yaml",
        ),
    ],
)
def test_a_limit_of_what_nobody_measures_without_ros_is_refused(
    simulator, task, limits, changes, reason
):
    with pytest.raises(
        RecipeError, match=f"limits: expected contact_force, .* unlimited.*nor joints; {reason}"
    ):
        SimulatedStation(simulator, task, replace(limits, **changes))
    assert (
        SimulatedStation(simulator, task, replace(limits, **changes), guarded=False).held is False
    )


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
    assert np.mean([play(station, lambda _: station.expert(), seed) for seed in range(25)]) >= 0.8
    assert (
        np.mean([play(station, lambda o: random.uniform(-1, 1, 3), seed) for seed in range(10)])
        == 0.0
    )


def test_the_reported_socket_is_a_little_wrong_each_episode(simulator):
    errors = []
    for seed in range(40):
        simulator.reset(seed)
        errors.append(simulator.channels()["object_pose"][:2] - simulator.data.mocap_pos[0][:2])
    assert 0.0003 < np.std(errors) < 0.0012


TIGHT = {
    "clearance_m": 0.0005,
    "pose_noise_m": 0.001,
    "turn_noise_rad": 0.02,
    "socket_turn_rad": 0.35,
}
UPSIDE_DOWN = np.array([1.0, 0.0, 0.0, 0.0])


def pressed(simulator, aside=(0.0, 0.0), turned=0.0):
    """Return the tool's force and depth [m] when it is pressed down off the hole's middle."""
    simulator.reset(0)
    hole = simulator.data.mocap_pos[0] + [*aside, 0.05]
    down = multiply(about([0.0, 0.0, turned]), UPSIDE_DOWN)
    for height in np.concatenate([np.linspace(0.06, 0.0, 120), np.full(60, -0.006)]):
        simulator.advance(np.concatenate([hole + [0.0, 0.0, height], down]))
    channels = simulator.channels()
    return channels["wrench"], hole[2] - channels["current_pose"][2]


def test_a_tight_socket_takes_the_peg_in_its_middle_alone():
    tight = Simulator(**TIGHT | {"socket_turn_rad": 0.0})
    assert pressed(tight)[1] > 0.005 > pressed(tight, (0.0015, 0.0))[1]
    assert pressed(Simulator(), (0.0015, 0.0))[1] > 0.005, "where there is room it slips in"
    assert pressed(tight, turned=0.2)[1] < 0.001


def test_on_a_rim_the_tool_feels_on_which_side_the_wall_is():
    tight = Simulator(**TIGHT | {"socket_turn_rad": 0.0})
    sides = [
        pressed(tight, aside)[0]
        for aside in ((0.002, 0.0), (-0.002, 0.0), (0.0, 0.002), (0.0, -0.002))
    ]
    assert all(wrench[2] > 3.0 for wrench in sides)
    assert sides[0][4] < -0.03 < 0.03 < sides[1][4] and sides[3][3] < -0.03 < 0.03 < sides[2][3]


def test_a_turned_socket_is_reported_almost_as_it_is():
    tight, turns, errors = Simulator(**TIGHT), [], []
    for seed in range(40):
        tight.reset(seed)
        w, x, y, z = tight.data.mocap_quat[0]
        turns.append(2 * np.arctan2(z, w))
        errors.append(2 * np.arctan2(*tight.channels()["object_pose"][5:7]) - turns[-1])
    assert (
        0.15 < np.std(turns) < 0.25
        and np.abs(turns).max() <= 0.35
        and 0.012 < np.std(errors) < 0.03
    )


@pytest.mark.slow
def test_a_script_finds_a_tight_socket_by_touch_more_often_than_one_that_only_looks(limits):
    task = load_task("configs/tasks/peg_insertion_tight.yaml")
    tight = SimulatedStation(Simulator(**TIGHT), task, limits)
    felt = [play(tight, lambda _: tight.expert(), seed) for seed in range(12)]
    by_eye = [play(tight, lambda _: numb(tight), seed) for seed in range(12)]
    assert np.mean(felt) >= 0.5 and np.mean(by_eye) <= np.mean(felt) - 0.2


def numb(station):
    """Return the script's action without any felt force but that of the ground."""
    wrench = station.channels["wrench"]
    station.channels["wrench"] = station.channels["wrench"] * [0, 0, 1, 0, 0, 0]
    action = station.expert()
    station.channels["wrench"] = wrench
    return action


def test_cameras_see_the_socket_move(simulator):
    pictures = []
    for seed in (1, 2):
        simulator.reset(seed)
        pictures.append(simulator.render("front", 64, 64).astype(int))
    assert pictures[0].shape == (64, 64, 3) and pictures[0].std() > 10
    assert (np.abs(pictures[0] - pictures[1]).max(-1) > 40).mean() > 0.01


def one_station():
    return SimulatedStation(
        Simulator(),
        load_task("configs/tasks/peg_insertion.yaml"),
        load_limits("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"),
    )


def test_the_vectorised_environment_is_the_station_stepped_together():
    vector, alone = Environments([StationEnv(one_station()) for _ in range(2)]), one_station()
    first = vector.reset([5, 6])
    flatten = alone.task.spec.flatten
    assert np.array_equal(first["vectors"][1], flatten(alone.reset(6)))
    action = np.array([0.3, -0.2, -0.5])
    for _ in range(alone.task.max_steps):
        steps = vector.step(np.stack([action, action]))
        observation, result = alone.step(action.astype(np.float32).astype(float))
        reward, last, discount = result.reward, result.last, result.discount
        assert np.array_equal(steps.next_observations["vectors"][1], flatten(observation))
        assert (steps.reward[1], steps.done[1], steps.terminated[1]) == (
            reward,
            last,
            last and not discount,
        )
        if last:
            break
    assert steps.done.all() and not steps.terminated.any(), "cut off by time"
    assert not np.array_equal(steps.observation["vectors"], steps.next_observations["vectors"]), (
        "the next has begun"
    )
    again = vector.reset([5, 6])
    assert np.array_equal(again["vectors"], first["vectors"])
    vector.close()


def test_a_station_is_a_gymnasium_environment_as_its_checker_wants_it():
    from gymnasium.utils.env_checker import check_env

    check_env(StationEnv(one_station()), skip_render_check=True)


def test_executed_actions_show_what_the_interlock_changed(station):
    station.reset(0)
    station.step(np.array([1.0, 1.0, 1.0]))
    assert np.linalg.norm(station.executed * 0.02) <= 0.25 * 0.1 + 1e-9
    assert np.linalg.norm(station.executed) < np.sqrt(3) - 0.1


def test_an_unknown_simulator_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'franka_mujoco'"):
        make("franka_mujco")


def test_where_it_is_not_active_time_stands_still():
    """Also right after an episode's end, where the next one waits for its first decision."""
    vector = Environments([StationEnv(one_station()) for _ in range(2)])
    first = vector.reset([5, 6])["vectors"].copy()
    action, only_one = np.full((2, 3), 0.3), np.array([False, True])
    for _ in range(vector.envs[1].station.task.max_steps):
        steps = vector.step(action, only_one)
        assert (
            np.array_equal(steps.observation["vectors"][0], first[0])
            and steps.reward[0] == steps.done[0] == 0.0
        )
    assert steps.done[1]
    waiting = steps.observation["vectors"][1].copy()
    steps = vector.step(action, ~only_one)
    assert np.array_equal(steps.observation["vectors"][1], waiting)
    assert not np.array_equal(steps.observation["vectors"][0], first[0])


def test_a_fault_ends_with_its_episode_as_the_scripted_operator_of_a_station_ends_it(station):
    station.reset(0)
    for _ in range(3):
        station.step(np.full(3, np.nan))
    before = station.simulator.tcp_pose()
    station.step(np.array([0.0, 0.0, 1.0]))
    assert station.held and station.simulator.tcp_pose() == pytest.approx(before, abs=1e-3)
    first = station.reset(1)
    _, result = station.step(np.array([0.0, 0.0, 1.0]))
    assert not station.held and station.executed[2] > 0.5 and not result.last
    assert np.array_equal(station.reset(1)["tcp_position"], first["tcp_position"])
