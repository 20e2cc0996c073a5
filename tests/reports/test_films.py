"""Films of policies: up to their last state, with what came of it at the end alone."""

import numpy as np
import pytest
import torch

from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.reports import films, report
from rlinf_core.reports.films import HOLD, caption, rollout


@pytest.fixture
def recipe():
    return load_recipe("sim_sac", ["station.task=reach"])


@pytest.fixture
def policy(recipe, tmp_path):
    torch.manual_seed(0)
    actor = make_policy(station_task(recipe).spec, recipe.policy)
    path = tmp_path / "policy-00000001.safetensors"
    save_policy(actor, path, version=1, updates=0, env_steps=0)
    return path


def test_a_film_shows_the_state_in_which_an_episode_ended(recipe, policy):
    (first, filmed), (second, unfilmed) = rollout(recipe, policy, [1, 2], frames=1)
    assert len(filmed) == first.steps + 1 and unfilmed == [] and second.steps
    assert (
        np.abs(filmed[-1].astype(int) - filmed[-2]).mean()
        < np.abs(filmed[-1].astype(int) - filmed[0]).mean()
    )


def test_what_came_of_it_stands_on_the_last_picture_alone():
    with_outcome, without = (
        caption([np.zeros((60, 400, 3), np.uint8) for _ in range(3)], "before", outcome)
        for outcome in ("success", "")
    )
    assert [np.array_equal(a, b) for a, b in zip(with_outcome, without, strict=True)] == [
        True,
        True,
        False,
    ]
    assert caption([], "before", "success") == []


def test_side_by_side_the_shorter_episode_waits_and_only_what_was_learned_is_shown(
    recipe, monkeypatch
):
    class Episode:
        def __init__(self, success):
            self.success, self.outcome = success, "success" if success else "time limit"

    def rollout(recipe, policy, seeds, frames):
        for number, _ in enumerate(seeds):
            won = policy == "after" and number == 1
            yield (
                Episode(won),
                [np.full((60, 80, 3), value, np.uint8) for value in range(3 if won else 6)],
            )

    monkeypatch.setattr(films, "rollout", rollout)
    scenes = films._side_by_side(recipe, {"before RL": "before", "after RL": "after"}, [4, 5, 6])
    assert [learned for _, learned in scenes] == [False, True, False]
    frames, _ = scenes[1]
    assert len(frames) == 6 + HOLD and frames[0].shape == (60, 160, 3)
    assert frames[4][50, 40, 0] == 4 and frames[4][50, 120, 0] == 2, (
        "the right one ended at its third picture"
    )


def test_scenes_that_were_learned_are_filmed_first(recipe, tmp_path, monkeypatch):
    events = [
        {"event": "episode", "mode": mode, "seed": seed, "success": success, "intervened": 0}
        for mode, seed, success in (
            ("evaluate", 7, True),
            ("evaluate", 8, False),
            ("evaluate", 9, False),
            ("train", 3, False),
            ("train", 3, True),
            ("evaluate", 7, True),
            ("evaluate", 8, False),
            ("evaluate", 9, True),
        )
    ]
    assert report._scenes_learned(events) == [9]
    seed_lists = []
    monkeypatch.setattr(
        films,
        "_side_by_side",
        lambda recipe, sides, seeds: (
            seed_lists.append(seeds) or [([np.zeros((60, 160, 3), np.uint8)] * 2, True)]
        ),
    )
    monkeypatch.setattr(films, "write_video", lambda path, pictures: None)
    films.film_policies(recipe, tmp_path, {}, "", [9])
    first = recipe.evaluate.first_seed
    assert seed_lists == [[9, *range(first, first + recipe.evaluate.filmed_episodes - 1)]]


def test_the_poster_goes_near_to_what_differs():
    frame = np.zeros((30 + 240, 640, 3), np.uint8)
    frame[:30] = 255
    frame[30 + 200 : 30 + 220, 260:280] = 200
    frame[30 + 60 : 30 + 64, 320 + 20 : 320 + 24] = 90
    near = films._enlarge_difference(frame)
    assert near.shape == frame.shape and (near[:30] == 255).all()
    left, right = near[30:, :320, 0], near[30:, 320:, 0]
    assert (left > 100).sum() == pytest.approx(4 * 400, rel=0.1), (
        "twice as large, and none of it cut off"
    )
    assert right.max() == 0, "what differs little is out of the picture"
    # an arm's shoulder, at the top, more different than the tool below
    frame[30 : 30 + 20, 40:60] = 255
    assert np.array_equal(films._enlarge_difference(frame), near)
