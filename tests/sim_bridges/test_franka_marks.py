"""Two marks, and a sentence in every scene that says which: through the vectorised environment, and
over ROS.
"""

import numpy as np
import pytest

from rlinf_core.episodes import read_episode
from rlinf_core.policies.base import Observation
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import demonstrate
from rlinf_core.rollouts.episode_conversion import episode_to_trajectory
from rlinf_core.specs import arrays
from sim_bridges.core.environments import make_environments
from sim_bridges.simulators.franka_marks import COLOURS, Simulator

RECIPE = ["station.observe_cameras=[]"]


@pytest.fixture(scope="module")
def simulator():
    return Simulator()


def test_scenes_ask_for_either_mark_on_either_side(simulator):
    combinations = set()
    for seed in range(24):
        simulator.reset(seed)
        mark = simulator.channels()["object_pose"]
        assert (
            simulator.instruction == f"go to the {simulator.goal_colour} mark"
            and not simulator.succeeded()
        )
        assert 0.05 <= abs(mark[1]) <= 0.12 and 0.44 <= mark[0] <= 0.56
        combinations.add((simulator.goal_colour, mark[1] > 0))
    assert combinations == {(colour, left) for colour in COLOURS for left in (False, True)}


def test_the_other_mark_is_no_success(simulator):
    for colour in COLOURS:
        simulator.reset(3)
        simulator.arm.place(simulator._mark(colour)[:3] + [0.0, 0.0, 0.03])
        simulator._mujoco.mj_forward(simulator.model, simulator.data)
        assert simulator.above(colour) and simulator.succeeded() == (
            colour == simulator.goal_colour
        )


def test_both_marks_are_in_the_front_camera_in_their_colours(simulator):
    for seed in range(6):
        simulator.reset(seed)
        picture = simulator.render("front", 64, 64).astype(int)
        assert (
            (picture[..., 0] > 140) & (picture[..., 2] < 90) & (picture[..., 1] < 90)
        ).sum() > 8, "red"
        assert ((picture[..., 2] > 140) & (picture[..., 0] < 90)).sum() > 8, "blue"


def test_what_is_asked_for_goes_with_every_time_step_to_whoever_learns():
    env = make_environments(load_recipe("sim_vla", RECIPE), 2)
    observation = env.reset([0, 1])
    sentences = [one.station.simulator.instruction for one in env.envs]
    assert sentences == ["go to the blue mark", "go to the red mark"]
    assert Observation.from_arrays(env.spec, observation).instruction == tuple(sentences)
    assert env.envs[0].observation_space.contains(
        {name: values[0] for name, values in observation.items()}
    )
    episodes = demonstrate(env, 6, first_scene=0)
    sentences_by_episode = [
        set(arrays.decode_instructions(episode.observations[arrays.INSTRUCTION]))
        for episode in episodes
    ]
    assert all(
        len(sentences_of_episode) == 1 for sentences_of_episode in sentences_by_episode
    ) and set.union(*sentences_by_episode) == {f"go to the {colour} mark" for colour in COLOURS}
    env.envs[0].close()


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.lockstep
@pytest.mark.timeout(180)
def test_over_ros_each_recording_says_what_its_scene_asked_for(tmp_path):
    from rlinf_core.cli.main import main

    assert (
        main(
            [
                "demo",
                "sim_vla",
                "--quiet",
                "--out",
                str(tmp_path),
                "--set",
                "station.observe_cameras=[]",
                "station.domain_id=195",
                "simulation.environments=0",
                "collect.no_training=true",
                "collect.episodes=3",
            ]
        )
        == 0
    )
    recorded = [read_episode(file.parent) for file in sorted(tmp_path.glob("spool/**/*.mcap"))]
    sentences = []
    for episode in recorded:
        simulator = Simulator()
        simulator.reset(episode.seed)
        sentences.append(simulator.instruction)
    assert (
        len(recorded) == 3
        and [episode.instruction for episode in recorded] == sentences
        and len(set(sentences)) == 2
    )
    trajectory = episode_to_trajectory(
        recorded[0], make_environments(load_recipe("sim_vla", RECIPE), 1).spec
    )
    assert set(arrays.decode_instructions(trajectory.observations[arrays.INSTRUCTION])) == {
        sentences[0]
    }
    assert np.isfinite(trajectory.actions).all()
