"""One Ray cluster for all tests of this folder, because its start takes longer than most tests."""

import pytest

from rlinf_core.trainer.distributed.ray_cluster import connect, disconnect

LEARNERS = []  # processes of a learner group, which stay as long as the cluster does


@pytest.fixture(scope="package", autouse=True)
def cluster():
    yield connect(num_cpus=2)
    disconnect()
    LEARNERS.clear()  # a worker of pytest's may come back to this folder
