"""What a placement may say, and what a cluster may lack."""

import os
import subprocess

import pytest
import ray
from pydantic import ValidationError

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.recipes.placement import Placement, check_placement
from rlinf_core.trainer.distributed import ray_cluster

SMALL, LARGE = {"CPU": 2.0}, {"CPU": 64.0, "GPU": 4.0}


@pytest.mark.parametrize(
    "options, resources",
    [
        (dict(), SMALL),
        (dict(learners=2, workers=2), SMALL),
        (dict(learners=2, workers=2, mode="pipelined"), SMALL),
        (dict(learners=8, workers=8), SMALL),
        (dict(learners=2, workers=2, ingest=6, replay_shards=6), SMALL),
        (dict(learners=4, workers=4, learner_gpus=0.6, worker_gpus=0.4), LARGE),
        (
            dict(learners=2, workers=2, learner_gpus=1.0, worker_gpus=1.0, mode="disaggregated"),
            LARGE,
        ),
        (dict(learners=1, workers=4, learner_gpus=2.0, worker_gpus=0.5), LARGE),
        (dict(workers=9, worker_gpus=0.33), LARGE),
    ],
)
def test_what_a_cluster_has_is_placed(options, resources):
    check_placement(Placement(**options), resources)


@pytest.mark.parametrize(
    "options, resources, message",
    [
        (
            dict(learners=8, workers=9),
            SMALL,
            r"8 learners \+ 9 workers are 17 processes; this machine has 2 CPUs, .* for 16",
        ),
        (
            dict(ingest=17),
            SMALL,
            "17 processes of ingest are 17 processes; this machine has 2 CPUs, .* for 16",
        ),
        (
            dict(learners=2, workers=2, ingest=6, replay_shards=7),
            SMALL,
            r"2 learners \+ 2 workers \+ 6 processes of ingest \+ 7 replay shards are 17 processes",
        ),
        (
            dict(learners=2, learner_gpus=1.0),
            SMALL,
            r"2 learners and 0 workers ask for 2 x 1 \+ 0 x 0 = 2 GPUs; .* has 0",
        ),
        (
            dict(
                learners=3,
                workers=2,
                learner_gpus=1.0,
                worker_gpus=1.0,
                mode="pipelined",
                ray="10.0.0.1:6379",
            ),
            LARGE,
            r"3 x 1 \+ 2 x 1 = 5 GPUs; the cluster at 10.0.0.1:6379 has 4",
        ),
        (
            dict(workers=3, worker_gpus=0.6),
            {"CPU": 2.0, "GPU": 2.0},
            "0 learners of 0 GPUs each and 3 workers of 0.6 do not fit into the GPUs of this "
            r"machine, which has 2\. A share below 1",
        ),
        (
            dict(learners=1, workers=3, learner_gpus=2.0, worker_gpus=0.6),
            LARGE,
            "3 workers of 0.6 do not fit into the GPUs",
        ),
    ],
)
def test_what_a_cluster_lacks_is_refused_with_both_sides(options, resources, message):
    with pytest.raises(RecipeError, match=message):
        check_placement(Placement(**options), resources)


def test_what_takes_several_gpus_takes_them_in_one_machine():
    placement = Placement(
        learners=1, workers=2, learner_gpus=2.0, worker_gpus=1.0, mode="disaggregated"
    )
    check_placement(placement, LARGE, [1.0, 3.0])
    check_placement(placement, LARGE, [2.0, 0.0, 1.0, 1.0])
    with pytest.raises(
        RecipeError,
        match=r"1 learners of 2 GPUs each and 2 workers of 1 .* which has 1 \+ 1 \+ 1 \+ 1\. A share below 1",
    ):
        check_placement(placement, LARGE, [1.0] * 4)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(mode="pipelined", learners=1),
            "workers: expected at least 1 for mode pipelined, got 0",
        ),
        (dict(mode="disaggregated"), "workers: expected at least 1 for mode disaggregated, got 0"),
        (dict(learner_gpus=1.0), "learner_gpus: expected 0 without learners on Ray, got 1"),
        (dict(worker_gpus=0.5), "worker_gpus: expected 0 without workers on Ray, got 0.5"),
        (
            dict(learners=1, workers=1, mode="disaggregated", worker_gpus=0.5),
            "worker_gpus: expected a whole number .* got 0.5",
        ),
        (
            dict(learners=1, learner_gpus=1.5),
            "learner_gpus: expected a whole number of GPUs in mode collocated .* got 1.5",
        ),
        (dict(learners=2, learner_gpus=0.5), "two learners cannot share a GPU"),
        (dict(ray="nonsense"), "should match pattern"),
        (dict(ray="ray://a:6379"), "should match pattern"),
        (dict(strategy="zero"), "'ddp' or 'fsdp'"),
        (dict(mode="async"), "'collocated', 'disaggregated' or 'pipelined'"),
    ],
)
def test_a_placement_that_contradicts_itself_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        Placement(**options)


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
        (ray_cluster, "ROOM", tmp_path),
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
