"""The conductor changes a layout that pays, takes one back that does not, and leaves the rest
alone.

A run is played by the cost model: the seconds of each turn are those of the layout under a load.
"""

import numpy as np
import pytest

from rlinf_core.plan.conductor import Conductor, Turn
from rlinf_core.plan.cost import Costs, Layout, Machine, NodeCost, expected
from rlinf_core.plan.measured import FILE
from rlinf_core.recipes import load_recipe

TWO = Machine(cpus=2)
STEPS = 200
PLAY, LEARN = (
    {
        "environment": NodeCost(wait_s=wait),
        "policy": NodeCost(fixed_s=0.02),
        "learner": NodeCost(busy_s=busy, join_s=0.05),
        "weights": NodeCost(fixed_s=0.003),
    }
    for wait, busy in ((0.8, 0.05), (0.1, 0.4))
)


def recipe_of(*more):
    return load_recipe(
        "sim_sac",
        [
            "simulation.environments=8",
            "algorithm.batch_size=32",
            "placement=auto",
            "simulation.updates_per_step=0.1",
            *more,
        ],
    )


def turn_of(load, layout, noise=1.0):
    """A turn as a run would measure it."""
    workers, learners = max(layout.workers, 1), max(layout.learners, 1)
    environment, policy, learner = (load[name] for name in ("environment", "policy", "learner"))
    seconds = expected(Costs(load), layout, TWO).seconds * noise
    return Turn(
        STEPS,
        seconds,
        [(environment.busy_s / workers, environment.wait_s / workers)] * workers,
        [(policy.fixed_s, 0.0)] * workers,
        [(learner.busy_s / learners, learner.join_s * (learners > 1))] * learners,
        learner.call_s,
        load["weights"].fixed_s,
    )


class Played:
    """A run of so many turns under loads; how long it took, and what it changed."""

    def __init__(self, folder, loads, recipe=None, noise=0.0, turns=60):
        self.notes = []
        self.conductor = conductor = Conductor(
            recipe or recipe_of(), folder, self.notes.append, TWO
        )
        layout, random = conductor.first(), np.random.default_rng(0)
        self.seconds, self.layouts = [], [layout]
        conductor.measurements.add_switch("workers", 0.5)
        for load in loads:
            took = 0.0
            for number in range(turns):
                turn = turn_of(load, layout, random.uniform(1 - noise, 1 + noise))
                took += turn.seconds
                change = conductor.turn(turn, STEPS * (turns - number) * 100)
                if change is not None:
                    conductor.changed(change, 0.5)
                    layout = change
                    self.layouts.append(layout)
            self.seconds.append(took)


def best(load, recipe=None):
    layouts = [
        Layout(workers, learners, pipelined)
        for workers in (0, 1, 2, 4, 8)
        for learners in (0, 1, 2)
        for pipelined in (False, True)
        if workers or not pipelined
    ]
    return {layout: expected(Costs(load), layout, TWO).seconds for layout in layouts}


def test_from_a_first_guess_it_comes_to_the_best_layout_and_says_why(tmp_path):
    played = Played(tmp_path, [PLAY])
    table = best(PLAY)
    assert table[played.layouts[-1]] <= 1.05 * min(table.values())
    decisions = [note["decision"] for note in played.notes]
    assert decisions[0] == "chosen" and "first guess" in played.notes[0]["reason"]
    change = played.notes[decisions.index("change")]
    assert change["predicted_steps_per_s"] > change["measured_steps_per_s"] > 0
    confirmed = played.notes[decisions.index("kept")]
    assert confirmed["measured_steps_per_s"] == pytest.approx(
        change["predicted_steps_per_s"], rel=0.1
    )


@pytest.mark.parametrize("load", [PLAY, LEARN], ids=["play", "learn"])
def test_under_a_constant_load_it_changes_at_most_once_though_turns_differ(tmp_path, load):
    assert len(Played(tmp_path, [load], noise=0.15).layouts) <= 2


def test_a_load_that_turns_is_followed_and_beats_every_static_layout(tmp_path):
    turns = 400
    played = Played(tmp_path, [PLAY, LEARN], turns=turns)
    tables = [best(PLAY), best(LEARN)]
    for load, seconds in zip(tables, played.seconds, strict=True):
        assert turns * min(load.values()) / seconds >= 0.95
    static = min(turns * (tables[0][layout] + tables[1][layout]) for layout in tables[0])
    assert sum(played.seconds) < static
    assert "load changed" in [note["decision"] for note in played.notes]


def test_a_change_that_does_not_pay_is_taken_back_and_not_tried_again(tmp_path):
    conductor = Conductor(recipe_of(), tmp_path, (notes := []).append, TWO)
    start = layout = conductor.first()
    conductor.measurements.add_switch("workers", 0.5)
    layouts = [layout]
    for _ in range(60):  # whatever it changes to takes twice as long as the cost model says
        turn = turn_of(PLAY, layout, 1.0 if layout == start else 4.0)
        change = conductor.turn(turn, 1e6)
        if change is not None:
            conductor.changed(change, 0.5)
            layout = change
            layouts.append(layout)
    tried = [layout for layout in layouts if layout != start]
    assert tried and len(tried) == len(set(tried)), "none a second time"
    assert layouts[-1] == start
    assert [note["decision"] for note in notes].count("taken back") == len(tried)


def test_a_run_without_auto_is_measured_and_never_changed(tmp_path):
    played = Played(
        tmp_path,
        [PLAY, LEARN],
        load_recipe(
            "sim_sac",
            [
                "simulation.environments=8",
                "algorithm.batch_size=32",
                "simulation.updates_per_step=0.1",
            ],
        ),
    )
    assert len(played.layouts) == 1 and not played.notes
    played.conductor.save()
    again = Conductor(recipe_of(), tmp_path, [].append, TWO)
    assert again.reused and again.measurements.costs().node("environment").wait_s == pytest.approx(
        0.1, rel=0.01
    )


def test_what_was_measured_is_reused_by_the_same_recipe_on_the_same_machine_alone(tmp_path):
    Played(tmp_path, [PLAY]).conductor.save()
    notes = []
    again = Conductor(recipe_of(), tmp_path, notes.append, TWO)
    table = best(PLAY)
    assert table[again.first()] <= 1.05 * min(table.values())
    assert "measurements" in notes[0]["reason"]
    assert not Conductor(recipe_of(), tmp_path, notes.append, Machine(cpus=4)).reused
    assert not Conductor(recipe_of("policy.hidden=[8]"), tmp_path, notes.append, TWO).reused
    (tmp_path / FILE).write_text("{")
    assert not Conductor(recipe_of(), tmp_path, notes.append, TWO).reused


def test_a_change_that_costs_more_than_what_is_left_can_bring_is_not_made(tmp_path):
    conductor = Conductor(recipe_of(), tmp_path, [].append, TWO)
    layout = conductor.first()
    assert all(conductor.turn(turn_of(PLAY, layout), 2 * STEPS) is None for _ in range(20))


def test_a_layout_that_the_cluster_refuses_is_not_wanted_again(tmp_path):
    conductor = Conductor(recipe_of(), tmp_path, (notes := []).append, TWO)
    layout, wanted = conductor.first(), []
    for _ in range(60):
        change = conductor.turn(turn_of(PLAY, layout), 1e6)
        if change is not None:
            wanted.append(change)
            conductor.refuse(change, "no room")
    assert wanted and len(set(wanted)) == len(wanted)
    assert {"refused"} <= {note["decision"] for note in notes}
