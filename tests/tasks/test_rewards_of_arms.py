"""A reward that remembers, at a station with several arms."""

import numpy as np

from rlinf_core.tasks.rewards import CanAbstain, Stateful
from rlinf_core.tasks.rewards.arms import per_arm


class Touched:
    """A reward that is 1 once the tool has been low."""

    channels, trouble = ("current_pose",), ""

    def __init__(self):
        self.begin()

    def begin(self):
        self.low = False

    def __call__(self, channels):
        self.low |= bool(channels["current_pose"][2] < 0.1)
        return self.low


def test_each_arm_has_a_memory_of_its_own_and_another_episode_begins_it_anew():
    def channels_of(left, right):
        return {
            "left/current_pose": np.array([0, 0, left]),
            "right/current_pose": np.array([0, 0, right]),
        }

    both = per_arm(Touched(), ("left", "right"), all)
    assert isinstance(both, Stateful) and not both(channels_of(0.0, 1.0)), (
        "what one has done is not the other's"
    )
    assert both(channels_of(1.0, 0.0)) and both(channels_of(1.0, 1.0))
    both.begin()
    assert not both(channels_of(0.0, 1.0))
    both.terms["right"].trouble = "dark"
    assert isinstance(both, CanAbstain) and both.trouble == "arm right: dark"
