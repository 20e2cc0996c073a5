"""Valid placements, and errors for a cluster that lacks something."""

import pytest
from pydantic import ValidationError

from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes.placement import Placement, check_placement, check_shards

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


@pytest.mark.parametrize(
    "options, machines, fits",
    [
        (dict(workers=2, worker_gpus=0.5), [1.0], True),
        (dict(workers=3, worker_gpus=0.5), [1.0], False),
        (dict(workers=3, worker_gpus=0.5), [1.0, 1.0], True),
        (dict(workers=4, worker_gpus=0.5), [2.0], True),
        (dict(workers=3, worker_gpus=0.34), [1.0], False),
        # the largest first, each where the least is left over
        (dict(learners=1, learner_gpus=0.6, workers=1, worker_gpus=0.4), [1.0], True),
        (dict(learners=2, learner_gpus=0.6, workers=2, worker_gpus=0.4), [2.0], True),
        (dict(learners=1, learner_gpus=1.0, workers=2, worker_gpus=0.5), [2.0], True),
        (dict(learners=1, learner_gpus=1.0, workers=3, worker_gpus=0.5), [2.0], False),
        (dict(learners=1, learner_gpus=2.0), [2.0], True),
        (dict(learners=1, learner_gpus=2.0), [1.0, 1.0], False),
        (
            dict(learners=1, learner_gpus=3.0, workers=2, worker_gpus=1.0, mode="disaggregated"),
            [3.0, 2.0],
            True,
        ),
        (
            dict(learners=2, learner_gpus=2.0, workers=1, worker_gpus=3.0, mode="disaggregated"),
            [3.0, 4.0],
            True,
        ),
        (
            dict(learners=2, learner_gpus=2.0, workers=1, worker_gpus=3.0, mode="disaggregated"),
            [5.0, 2.0],
            True,
        ),
        (
            dict(learners=2, learner_gpus=2.0, workers=1, worker_gpus=4.0, mode="disaggregated"),
            [5.0, 3.0],
            False,
        ),
        (dict(workers=3), [0.0], True),
    ],
)
def test_every_process_finds_its_gpus_on_one_machine(options, machines, fits):
    resources = {"CPU": 64.0, "GPU": sum(machines)}
    placement = Placement(**options)
    if not fits and placement.gpus <= sum(machines):
        with pytest.raises(
            RecipeError, match="do not fit into the GPUs of this machine, which has"
        ):
            check_placement(placement, resources, machines)
    elif not fits:
        with pytest.raises(RecipeError, match="ask for"):
            check_placement(placement, resources, machines)
    else:
        check_placement(placement, resources, machines)


@pytest.mark.parametrize(
    "rows, learners, halves, multiple",
    [
        (8, 2, False, None),
        (8, 4, True, None),
        (0, 3, True, None),
        (9, 2, False, 2),
        (12, 4, True, 8),
        (2, 4, False, 4),
    ],
)
def test_learners_get_equal_shards_of_a_batch_and_of_each_half(rows, learners, halves, multiple):
    if not multiple:
        check_shards("algorithm.batch_size", rows, learners, halves)
        return
    half = " in each of two halves" if halves else ""
    with pytest.raises(
        RecipeError,
        match=rf"^algorithm.batch_size: expected a multiple of {multiple}, since {learners} "
        rf"processes .* as many rows each{half}; got {rows}$",
    ):
        check_shards("algorithm.batch_size", rows, learners, halves)


@pytest.mark.parametrize(
    "data, auto, fixed",
    [
        ("auto", True, ()),
        ({"auto": True}, True, ()),
        ({"auto": True, "workers": 2, "mode": "pipelined"}, True, ("workers", "mode")),
        ({"auto": True, "workers": 2, "fixed": ()}, True, ()),
        ({"auto": True, "workers": 2, "fixed": ["learners"]}, True, ("learners",)),
        ({"auto": False, "workers": 2}, False, ()),
        ({"workers": 2}, None, ()),
    ],
)
def test_auto_keeps_the_keys_that_are_set(data, auto, fixed):
    placement = Placement.model_validate(data)
    assert (placement.auto, placement.fixed) == (auto, fixed)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(fixed=("workers",)), "fixed: expected none without auto, got workers"),
        (dict(workers=2, simulators=3), "simulators: expected a multiple of workers = 2, got 3"),
        (
            dict(offload=True, workers=1, mode="pipelined"),
            "offload: expected false if workers play",
        ),
        (dict(offload=True, auto=True), "offload: expected false if workers play"),
        (dict(offload=True, strategy="fsdp"), "offload: expected false with strategy fsdp"),
    ],
)
def test_keys_of_a_placement_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        Placement(**options)


def test_a_placement_counts_its_processes_and_gpus():
    placement = Placement(
        learners=1, workers=2, simulators=4, ingest=5, learner_gpus=1.0, worker_gpus=0.5
    )
    assert (placement.processes, placement.gpus) == (7, 2.0)
    assert placement.on_ray == {
        "learners": 1,
        "workers": 2,
        "simulators": 4,
        "processes of ingest": 5,
    }
