"""The split of devices among stages is the best of all, and a large plan is quick."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_core.core.errors import RecipeError
from rlinf_core.plan import device_split as module
from rlinf_core.plan.choose import choose
from rlinf_core.plan.cost import Costs, Machine, NodeCost
from rlinf_core.plan.device_split import Stage, split_devices, turn_seconds
from rlinf_core.recipes import load_recipe

tables = st.lists(st.lists(st.floats(0.1, 100), min_size=9, max_size=9), min_size=1, max_size=4)


@given(tables, st.integers(1, 9), st.integers(1, 8), st.sampled_from([0.0, 3.0]))
@settings(max_examples=150, deadline=None)
def test_dynamic_programming_finds_the_optimum_of_brute_force(rows, devices, batches, switch_s):
    stages = [Stage(f"s{number}", tuple(row)) for number, row in enumerate(rows)]
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(stages) - 1):
        bounds = [0, *(index for index, cut in enumerate(cuts, 1) if cut), len(stages)]
        spans = list(itertools.pairwise(bounds))
        for sizes in itertools.product(range(1, devices + 1), repeat=len(spans)):
            if sum(sizes) == devices:
                times = [
                    sum(rows[k][size - 1] for k in range(*span))
                    + switch_s * (span[1] - span[0] > 1) * (span[1] - span[0])
                    for span, size in zip(spans, sizes, strict=True)
                ]
                best = min(best, turn_seconds(times, batches))
    enumerated = split_devices(stages, devices, batches, switch_s)
    assert enumerated.seconds == pytest.approx(best)
    limit, module.MAX_ENUMERATED = module.MAX_ENUMERATED, 0
    try:
        programmed = split_devices(stages, devices, batches, switch_s)
    finally:
        module.MAX_ENUMERATED = limit
    assert programmed.seconds == pytest.approx(best)
    assert sum(count for _, count in programmed.groups) == devices


def test_the_last_stage_may_have_a_single_device():
    """8 devices, rollout 70 s and learner 20 s on one GPU's worth of eight: 7 + 1 beats sharing."""
    stages = [
        Stage("rollout", tuple(560 / n for n in range(1, 9))),
        Stage("learner", tuple(160 / n for n in range(1, 9))),
    ]
    small = [
        Stage("rollout", tuple(560 / n for n in range(1, 9))),
        Stage("learner", tuple(70 / n for n in range(1, 9))),
    ]
    assert split_devices(stages, 8, 1024).seconds <= 90.0
    assert [count for _, count in split_devices(small, 8, 1024, switch_s=5.0).groups] == [7, 1]


def test_a_plan_for_128_devices_takes_at_most_a_fifth_of_a_second():
    random = np.random.default_rng(0)
    stages = [
        Stage(
            f"s{number}",
            tuple(random.uniform(1, 9) * 100 / np.arange(1, 129) ** random.uniform(0.6, 1)),
        )
        for number in range(3)
    ]
    recipe = load_recipe("sim_ppo", ["simulation.environments=128", "placement=auto"])
    costs = Costs(
        {
            "environment": NodeCost(1.0),
            "policy": NodeCost(1.0, gpu_speed=9),
            "learner": NodeCost(1, gpu_speed=9),
        }
    )
    split_devices(stages[:2], 128, 4)
    took = []
    for _ in range(3):
        started = time.process_time()
        split_devices(stages, 128, 8)
        choose(recipe, costs, Machine(256, 128, 80 * 2**30))
        took.append(time.process_time() - started)
    assert min(took) < 0.2


def test_no_room_anywhere_is_an_error_in_words():
    with pytest.raises(RecipeError, match="expected a split of 2 devices among a, b, got none"):
        split_devices([Stage("a", (np.inf, 1.0)), Stage("b", (np.inf, np.inf))], 2)
