"""The critics' view of a takeover: the end of the policy's part, if the recipe says so."""

import numpy as np
import pytest

from rlinf_core.episodes.spool import Spool
from rlinf_core.rollouts.types import Trajectory
from tests.messages import record
from tests.trainer.test_run import RLPD, run_of, shown

STEPS = 10
WHO = ["policy"] * 3 + ["nobody"] + ["operator"] * 2 + ["nobody"] + ["policy"] * 2 + ["operator"]


def played(sources=WHO, **more):
    """An episode that succeeds at its last step; what is seen and done at each step is its
    number.
    """
    steps = np.arange(STEPS)
    return Trajectory(
        {"vectors": np.arange(STEPS + 1.0)[:, None]},
        steps[:, None] * 1.0,
        (steps == 9) * 1.0,
        (steps != 9) * 1.0,
        True,
        sources=sources,
        **more,
    )


def test_what_the_policy_did_before_each_takeover_ends_as_a_failure_and_the_rest_goes_on():
    episode = played(
        chunk_starts=np.arange(STEPS) % 2 == 0, latents=np.arange(STEPS)[:, None] * 1.0
    )
    parts = episode.split_at_takeovers()
    assert [len(part) for part in parts] == [3, 6, 1]
    assert [list(part.observations["vectors"][:, 0]) for part in parts] == [
        [0, 1, 2, 3],
        [3, 4, 5, 6, 7, 8, 9],
        [9, 10],
    ]
    assert [list(part.discounts) for part in parts] == [[1, 1, 0], [1, 1, 1, 1, 1, 0], [0]]
    assert [part.rewards.sum() for part in parts] == [0, 0, 1] and list(episode.discounts) == [
        1
    ] * 9 + [0]
    for name in ("actions", "chunk_starts", "latents", "steps_to_chunk_end"):
        assert np.array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(episode, name)
        ), name
    assert [source for part in parts for source in part.sources] == WHO


@pytest.mark.parametrize(
    "sources",
    [
        (),
        ["policy"] * STEPS,
        ["operator"] * STEPS,
        ["operator"] * 4 + ["policy"] * 6,
        ["policy"] * 4 + ["nobody"] * 2 + ["policy"] * 4,
    ],
)
def test_where_nobody_takes_over_from_the_policy_an_episode_is_whole(sources):
    (episode,) = played(sources).split_at_takeovers()
    assert len(episode) == STEPS and list(episode.discounts) == [1] * 9 + [0]


@pytest.mark.parametrize("fails", [True, False])
def test_critics_learn_that_what_a_person_ended_had_failed_only_where_the_recipe_says_so(
    fails, task, tmp_path
):
    run = run_of(
        task,
        tmp_path / "run",
        f"algorithm.takeover_fails={str(fails).lower()}",
        "algorithm.n_step=3",
        "algorithm.batch_size=4000",
        algorithm=RLPD,
    )
    spool = Spool(tmp_path / "spool")
    run.intake.take(
        record(spool, run.policy.spec, "d", mode="demonstration", steps=2, start=1000.0).close(),
        run.insert,
    )
    run.intake.take(
        record(
            spool,
            run.policy.spec,
            "o",
            steps=8,
            sources={5: "operator", 6: "operator", 7: "operator"},
        ).close(),
        run.insert,
    )
    batch = run.data.batch()
    begun = batch["vectors"][:2000, 0]
    worth = {
        step: {
            tuple(row)
            for row in np.stack([batch["reward"], batch["discount"], batch["steps"]], 1)[:2000][
                begun == step
            ].round(3)
        }
        for step in range(8)
    }
    done = [round(batch["reward"].max(), 3), 0.0]
    if fails:
        assert [worth[step] for step in (1, 2, 3, 4)] == [
            {(0.0, 1.0, 3.0)},
            {(0.0, 0.0, 3.0)},
            {(0.0, 0.0, 2.0)},
            {(0.0, 0.0, 1.0)},
        ]
    else:
        assert [worth[step] for step in (1, 2, 3, 4)] == [{(0.0, 1.0, 3.0)}] * 4
    assert all(
        next(iter(worth[step]))[1] == 0.0 < next(iter(worth[step]))[0] <= done[0]
        for step in (5, 6, 7)
    )
    shown = batch["vectors"][2000:, 0]
    assert {5.0, 6.0, 7.0} <= set(shown) and not {0.0, 1.0, 2.0, 3.0, 4.0} & set(shown), (
        "what it did is demonstrated"
    )
    assert run.data.steps == 8 and run.data.by_station()["a"]["episodes"] == 2


def test_an_episode_that_a_person_drove_throughout_is_of_no_old_policy(task, tmp_path):
    run, spool = run_of(task, tmp_path / "run"), Spool(tmp_path / "spool")
    shown(run, spool, "d", mode="demonstration")
    run.version, before = 100, run.data.steps

    def nobodys(topic, number, message):
        if topic == "episode":
            message.policy_version = -1

    assert (
        shown(run, spool, "o", sources=dict.fromkeys(range(5), "operator"), change=nobodys)
        == "online"
    )
    assert shown(run, spool, "p") == "stale" and run.data.steps == before + 5
