"""The critics' view of a takeover: the end of the policy's part, if the recipe says so."""

from dataclasses import replace

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


def test_a_part_of_an_episode_has_its_fields_but_no_rollout():
    fields = {"mode": "evaluate", "version": 7, "id": "a-1", "station": "a", "interlock": 0.25}
    episode = played(rollout=object(), **fields)
    part = episode.part(slice(2, 5))
    assert {name: getattr(part, name) for name in fields} == fields and part.success
    assert part.rollout is None and part.chunk_starts is None and part.latents is None
    assert list(part.actions[:, 0]) == [2, 3, 4] and list(part.sources) == WHO[2:5]
    assert list(part.rewards) == [0, 0, 0] and list(part.discounts) == [1, 1, 1]
    assert list(episode.part(slice(8, 10)).discounts) == [1, 0]


@pytest.mark.parametrize(
    "sources, steps",
    [
        (["policy"] * 4, [4, 3, 2, 1]),
        ((), [4, 3, 2, 1]),
        (["policy", "operator", "policy", "policy"], [1, 3, 2, 1]),
    ],
)
def test_the_steps_to_the_end_of_a_chunk_end_where_the_policy_loses_the_command(sources, steps):
    episode = Trajectory({}, np.zeros((4, 1)), np.zeros(4), np.ones(4), False, sources=sources)
    assert list(episode.steps_to_chunk_end) == steps


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


@pytest.mark.parametrize(
    "station, version, sources, status",
    [
        ("a", 97, ["policy"] * 10, "online"),  # the recipe allows three versions
        ("a", 96, ["policy"] * 10, "stale"),
        ("b", 96, ["policy"] * 10, "online"),  # and station b four
        ("b", 95, ["policy"] * 10, "stale"),
        ("", 0, ["policy"] * 10, "online"),  # simulators play the newest policy
        ("a", -1, ["operator"] * 10, "online"),
        ("a", -1, ["policy"] * 10, "stale"),
        ("a", 0, ["operator"] * 10, "stale"),
    ],
)
def test_an_episode_of_a_policy_that_is_too_old_is_stale(
    task, tmp_path, station, version, sources, status
):
    run = run_of(task, tmp_path / "run", "online.max_staleness_of={b: 4}")
    vectors = np.zeros((STEPS + 1, run.policy.spec.vector_size), np.float32)
    actions = np.zeros((STEPS, run.policy.spec.action.dim), np.float32)
    episode = replace(
        played(sources, station=station, version=version),
        observations={"vectors": vectors},
        actions=actions,
    )
    assert run.data.insert(episode, 100) == status
