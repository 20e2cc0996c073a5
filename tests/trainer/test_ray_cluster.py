"""A cluster of Ray: its processes' CPUs, its address and its folder."""

import os
import subprocess

import pytest
import ray

from rlinf_core.core.errors import RlinfError
from rlinf_core.trainer.distributed import ray_cluster

pytestmark = pytest.mark.timed

SMALL = {"CPU": 2.0}


def test_processes_share_cpus_where_there_are_more_of_them(monkeypatch):
    monkeypatch.setattr(ray_cluster, "resources", lambda: SMALL)
    assert [ray_cluster.cpus_per_process(processes) for processes in (0, 1, 2, 3, 4)] == [
        1.0,
        1.0,
        1.0,
        0.666,
        0.5,
    ]


@pytest.mark.parametrize(
    "address, why", [("127.0.0.1:9", "refused"), ("nowhere", "invalid literal")]
)
def test_a_cluster_that_is_not_there_is_named(address, why):
    with pytest.raises(
        RlinfError, match=f"placement.ray: expected the head of a Ray cluster at {address}, .*{why}"
    ):
        ray_cluster.connect(address)


def test_a_cluster_has_a_folder_of_its_process_and_those_of_processes_that_were_killed_go(
    tmp_path, monkeypatch
):
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [
        f"rlinf-ray-{gone.pid}-a",
        f"rlinf-ray-{os.getppid()}-b",
        f"rlinf-ray-{gone.pid}",
        "rlinf-ray-abc",
        f"ray-{gone.pid}-",
    ]
    for name in names:
        (tmp_path / name / "session").mkdir(parents=True)
    for where, name, value in (
        (ray_cluster, "PARENT", tmp_path),
        (ray_cluster, "_folder", None),
        (ray, "is_initialized", lambda: False),
        (ray, "init", lambda *_, **how: calls.append(how)),
    ):
        monkeypatch.setattr(where, name, value)
    calls = []
    ray_cluster.connect()
    folder = ray_cluster._folder
    assert (
        folder.name.startswith(f"rlinf-ray-{os.getpid()}-")
        and calls[0]["_temp_dir"] == str(folder)
        and folder.is_dir()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], folder.name])
