"""The governors of single stations: whose transitions are drawn how often, who waits, and whose
policy is too old.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.episodes.spool import Spool
from tests.trainer.test_run import GOVERNOR, RLPD, run_of, turn

ROWS = np.arange(256)


def by_origin(**values):
    return np.array([values.get(f"o{number}", 0) for number in ROWS])


def filled(spec, *lengths, capacity=1000):
    """Return an episode of each length, of origins 1, 2, ..."""
    replay = ReplayBuffer(spec, capacity)
    for origin, length in enumerate(lengths, 1):
        put(replay, length, origin)
    return replay


def put(replay, length, origin):
    vectors = np.full((length + 1, replay.spec.vector_size), origin, np.float32)
    replay.insert_episode(
        {"vectors": vectors},
        np.zeros((length, replay.spec.action.dim), np.float32),
        np.zeros(length, np.float32),
        np.ones(length, np.float32),
        origin=origin,
    )


def test_with_weights_each_origin_is_drawn_as_often_as_they_say_and_within_it_each_transition_alike(
    task, random
):
    replay = filled(task.spec, 90, 10)
    drawn = replay.sample(20_000, random, weights=by_origin(o1=1.0, o2=3.0))["vectors"][:, 0]
    assert stats.binomtest(int((drawn == 1).sum()), 20_000, 0.25).pvalue > 1e-4
    assert replay.sampled[1] + replay.sampled[2] == 20_000
    alike = replay._draw(9_000, random, by_origin(o1=1.0))
    assert stats.chisquare(np.bincount(alike, minlength=90)[:90]).pvalue > 1e-4 and alike.max() < 90
    assert set(replay._draw(100, random, by_origin(o2=1.0, o9=5.0))) <= set(range(91, 101)), (
        "nobody is origin 9"
    )


def test_what_the_ring_has_overwritten_is_not_drawn_and_counts_as_sent(task, random):
    replay = filled(task.spec, 15, 15, capacity=40)
    put(replay, 20, 3)
    assert replay.present_by_origin()[[1, 2, 3]].tolist() == [
        2,
        15,
        20,
    ] and replay.inserted_by_origin[[1, 2, 3]].tolist() == [15, 15, 20]
    drawn = replay.sample(3000, random, weights=(replay.present_by_origin() > 0) * 1.0)["vectors"][
        :, 0
    ]
    assert np.bincount(drawn.astype(int), minlength=4)[1:] == pytest.approx([1000] * 3, abs=150)
    again = ReplayBuffer(task.spec, 40)
    again.load_state_dict(replay.state_dict())
    assert (again.inserted_by_origin == replay.inserted_by_origin).all()


def test_stations_are_alike_or_as_they_come_and_none_is_drawn_more_often_than_it_may_be():
    present, inserted = by_origin(o1=90, o2=10), by_origin(o1=100, o2=10)
    fair, bounded = (
        replace(GOVERNOR, balance_stations=True),
        replace(GOVERNOR, balance_stations=True, max_samples=5.0),
    )
    assert GOVERNOR.weights(present, inserted, inserted) is None, "chance alone"
    assert fair.weights(by_origin(o1=90), inserted, inserted) is None, (
        "of one there is nothing to choose"
    )
    assert (fair.weights(present, inserted, inserted) == by_origin(o1=1, o2=1)).all()
    assert (
        bounded.weights(present, inserted, by_origin(o1=100, o2=49)) == by_origin(o1=1, o2=1)
    ).all()
    assert (
        bounded.weights(present, inserted, by_origin(o1=100, o2=50)) == by_origin(o1=1)
    ).all(), "5 each of 10"
    assert (
        bounded.weights(present, inserted, by_origin(o1=500, o2=50)) == by_origin(o1=1, o2=1)
    ).all(), "else nobody"
    robots = by_origin(o1=1, o2=3)
    assert (bounded.weights(present, inserted, by_origin(o1=9, o2=9), robots) == robots).all(), (
        "each robot alike"
    )
    assert (
        bounded.weights(present, inserted, by_origin(o1=100, o2=50), robots) == by_origin(o1=1)
    ).all()
    as_they_come = replace(GOVERNOR, max_samples=5.0).weights(present, inserted, by_origin(o2=49))
    assert (as_they_come == present).all()


def test_staleness_and_waiting_are_each_stations_own():
    governor = replace(GOVERNOR, max_staleness_of={"far": 5}, min_samples=2.0, min_transitions=50)
    assert (
        governor.is_fresh(5, 10, "far")
        and not governor.is_fresh(4, 10, "far")
        and not governor.is_fresh(5, 10, "near")
    )
    assert (
        not governor.must_wait(50, 0)
        and governor.must_wait(60, 19)
        and not governor.must_wait(60, 20)
    )
    assert not GOVERNOR.must_wait(10_000, 0)


def say(name):
    return lambda topic, _, message: topic == "episode" and setattr(message, "station", name)


@pytest.fixture
def feed(task, tmp_path):
    """Return a function that feeds episodes of a station to a run with these overrides."""
    from tests.messages import record

    spool = Spool(tmp_path / "spool")

    def fed(run, station, count, **how):
        return [
            run.intake.take(
                record(
                    spool,
                    run.policy.spec,
                    f"{station}-{len(run.intake.ids)}",
                    steps=10,
                    change=say(station),
                    **how,
                ).close(),
                run.insert,
            )
            for _ in range(count)
        ]

    return fed


def test_a_run_draws_fairly_and_makes_the_one_wait_that_sends_more_than_is_drawn(
    task, tmp_path, feed
):
    run = run_of(
        task,
        tmp_path / "run",
        "replay.balance_stations=true",
        "online.min_samples_per_insert=6",
        "replay.capacity=2000",
        "online.max_staleness_of={slow: 0}",
        "online.max_staleness=9",
    )
    feed(run, "quick", 1, mode="demonstration")
    turn(run, 3)
    run.version = 5  # the recordings are of version 4
    assert feed(run, "slow", 1) == ["stale"], "of its own bound"
    run.data.governor = replace(run.data.governor, max_staleness_of={})
    assert set(feed(run, "quick", 20) + feed(run, "slow", 2)) == {"online"}
    assert (
        set(run.report()["waiting"]) == {"quick", "slow"}
        and run.data.due(run.updates, run.learner) == 440
    )
    turn(run, 12)
    drawn = run.data.online.sampled[1:3]
    assert 0.6 < drawn[0] / drawn[1] < 1.6, (
        "20 episodes of one and 3 of the other, half of each batch"
    )
    report = run.report()
    assert set(report["waiting"]) == {"quick"}
    inserted, sampled = run.data.online.inserted_by_origin[1], run.data.online.sampled[1]
    assert report["waiting"]["quick"] == (
        f"station 'quick' waits for the learner: of its transitions, {sampled / inserted:.3g} "
        "samples per insert were drawn, expected at least 6 (online.min_samples_per_insert)"
    )
    while run.data.due(run.updates, run.learner):
        turn(run)
    assert run.report()["waiting"] == {}, "who has nothing to learn for keeps nobody waiting"
    run.learner.close()


@pytest.mark.parametrize(
    "algorithm, share",
    [
        (("algorithm={name: sft, batch_size: 2000}",), 0.5),
        (("algorithm={name: iql, critic_hidden: [32], batch_size: 2000}",), 0.5),
        (RLPD, 0.1),
    ],
)
@pytest.mark.parametrize("fair", [False, True])
def test_who_learns_from_demonstrations_alone_draws_them_fairly_and_as_often_as_it_takes(
    task, tmp_path, feed, algorithm, share, fair
):
    run = run_of(
        task,
        tmp_path / "run",
        f"replay.balance_stations={str(fair).lower()}",
        "online.max_samples_per_insert=1",
        algorithm=algorithm,
    )
    draw = run.data.batch if algorithm is not RLPD else partial(run.data.demonstration_batch, 2000)
    feed(run, "quick", 9, mode="demonstration")
    alone = draw()["vectors"]
    assert np.array_equal(alone, drawn_by_chance(run, 2000)), (
        "of one station there is nothing to choose"
    )
    feed(run, "slow", 1, mode="demonstration")
    before = run.data.demonstrations.sampled.copy()
    draw()
    quick, slow = (run.data.demonstrations.sampled - before)[1:3]
    assert quick + slow == 2000 and slow / 2000 == pytest.approx(share if fair else 0.1, abs=0.05)
    if algorithm is not RLPD:
        before = run.data.demonstrations.sampled.copy()
        run._learn(1)
        quick, slow = (run.data.demonstrations.sampled - before)[1:3]
        assert slow / (quick + slow) == pytest.approx(share if fair else 0.1, abs=0.05), (
            "so does the run itself"
        )
    run.learner.close()


def drawn_by_chance(run, size):
    """Return the draws from the first nine episodes, with equally likely transitions."""
    replay = run.data.demonstrations
    starts = np.flatnonzero(replay._arrays["starts"])[:90]
    return replay._arrays["vectors"][
        starts[np.random.default_rng(run.recipe.seed).integers(0, 90, size)]
    ]
