import numpy as np
import pytest

from rlinf_core.environment import load_task
from rlinf_core.interlock import load_limits


@pytest.fixture(scope="session")
def task():
    return load_task("configs/tasks/peg_insertion.yaml")


@pytest.fixture(scope="session")
def limits():
    return load_limits("robots/franka_sim/limits.yaml")


@pytest.fixture
def random():
    return np.random.default_rng(0)
