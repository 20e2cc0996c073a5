"""The controller changes a layout that pays, takes one back that does not, and leaves the rest
alone.

A run is played by the cost model: the seconds of each turn are those of the layout under a load.
"""

from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.plan.choose import choose, layout_problem
from rlinf_core.plan.cost import Costs, Layout, Machine, NodeCost, expected_turn
from rlinf_core.plan.layout_controller import LayoutController, Turn
from rlinf_core.plan.measurements import FILE
from rlinf_core.recipes import load_recipe

pytestmark = pytest.mark.timed

TWO = Machine(cpus=2)
STEPS = 200
PLAY, LEARN = (
    {
        "environment": NodeCost(wait_s=wait),
        "policy": NodeCost(fixed_s=0.02),
        "learner": NodeCost(busy_s=busy, join_s=0.05),
        "data": NodeCost(busy_s=0.004),
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
    """Return a turn as a run would measure it."""
    workers, learners = max(layout.workers, 1), max(layout.learners, 1)
    environment, policy, learner = (load[name] for name in ("environment", "policy", "learner"))
    seconds = expected_turn(Costs(load), layout, TWO).seconds * noise
    return Turn(
        STEPS,
        seconds,
        [(environment.busy_s / workers, environment.wait_s / workers)] * workers,
        [(policy.fixed_s, 0.0)] * workers,
        [(learner.busy_s / learners, learner.join_s * (learners > 1))] * learners,
        [(load["data"].busy_s, 0.0)],
        learner.call_s,
        load["weights"].fixed_s,
    )


class Played:
    """A run of so many turns under loads; how long it took, and what it changed."""

    def __init__(self, folder, loads, recipe=None, noise=0.0, turns=60):
        self.notes = []
        self.controller = controller = LayoutController(
            recipe or recipe_of(), folder, self.notes.append, TWO, adapts=True
        )
        layout, random = controller.first_layout(), np.random.default_rng(0)
        self.seconds, self.layouts = [], [layout]
        controller.measurements.add_switch("workers", 0.5)
        for load in loads:
            took = 0.0
            for number in range(turns):
                turn = turn_of(load, layout, random.uniform(1 - noise, 1 + noise))
                took += turn.seconds
                change = controller.record_turn(turn, STEPS * (turns - number) * 100)
                if change is not None:
                    controller.record_change(change, 0.5)
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
    return {layout: expected_turn(Costs(load), layout, TWO).seconds for layout in layouts}


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


def test_a_turn_waits_for_its_slowest_worker(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    controller.layout, controller.skip = Layout(2, 0), 0
    for _ in range(3):
        controller.record_turn(
            Turn(
                100.0,
                5.0,
                [(1.0, 1.0), (2.0, 2.0)],  # s, of each worker
                [(0.5, 0.0), (0.5, 0.0)],
                [(0.1, 0.0)],
                [(0.1, 0.0)],
            ),
            0.0,
        )
    costs = controller.measurements.costs()
    assert costs.node("environment").join_s == pytest.approx(1.0), "4.5 s against a mean of 3.5"
    assert expected_turn(costs, Layout(2, 0), TWO).parts["rollout"] == pytest.approx(4.5)


def test_a_load_that_turns_is_followed_and_beats_every_static_layout(tmp_path):
    turns = 400
    played = Played(tmp_path, [PLAY, LEARN], turns=turns)
    tables = [best(PLAY), best(LEARN)]
    for load, seconds in zip(tables, played.seconds, strict=True):
        assert turns * min(load.values()) / seconds >= 0.95
    static = min(turns * (tables[0][layout] + tables[1][layout]) for layout in tables[0])
    assert sum(played.seconds) < static
    assert "load changed" in [note["decision"] for note in played.notes]


def test_a_large_gain_is_taken_after_three_turns_of_another_load(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    layout = controller.first_layout()
    controller.measurements.add_switch("workers", 0.5)
    for load, turns in ((LEARN, 40), (PLAY, 10)):
        taken = []
        for number in range(turns):
            change = controller.record_turn(turn_of(load, layout), 1e6)
            if change is not None:
                controller.record_change(change, 0.5)
                layout = change
                taken.append(number + 1)
    table = best(PLAY)
    assert taken == [3] and table[layout] <= 1.05 * min(table.values())


def test_a_change_that_does_not_pay_is_taken_back_and_not_tried_again(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, (notes := []).append, TWO)
    start = layout = controller.first_layout()
    controller.measurements.add_switch("workers", 0.5)
    layouts = [layout]
    for _ in range(150):  # whatever it changes to takes twice as long as the cost model says
        turn = turn_of(PLAY, layout, 1.0 if layout == start else 4.0)
        change = controller.record_turn(turn, 1e6)
        if change is not None:
            controller.record_change(change, 0.5)
            layout = change
            layouts.append(layout)
    tried = [layout for layout in layouts if layout != start]
    assert tried and len(tried) == len(set(tried)), "none a second time"
    assert layouts[-1] == start
    assert [note["decision"] for note in notes].count("taken back") == len(tried)


def test_a_model_that_does_not_expect_a_failed_change_changes_nothing_more_under_this_load(
    tmp_path,
):
    """Nothing is to gain: a turn takes as long in each layout as in the first one."""
    controller = LayoutController(recipe_of(), tmp_path, (notes := []).append, TWO)
    start = layout = controller.first_layout()
    controller.measurements.add_switch("workers", 0.5)
    seconds = turn_of(PLAY, start).seconds

    def play(load, turns):
        nonlocal layout
        for _ in range(turns):
            turn = replace(turn_of(load, layout), seconds=seconds)
            change = controller.record_turn(turn, 1e6)
            if change is not None:
                controller.record_change(change, 0.5)
                layout = change

    play(PLAY, 150)
    decisions = [note["decision"] for note in notes]
    assert decisions.count("change") == decisions.count("taken back") == 1
    assert layout == start and controller.is_model_wrong
    play(PLAY | {"environment": NodeCost(wait_s=4.0)}, 4)
    assert not controller.is_model_wrong, "another load"


@pytest.mark.parametrize("workers", [1, 4])
def test_a_measured_call_is_expected_again_in_its_layout(tmp_path, workers):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    controller.layout, controller.skip = Layout(workers), 0
    for _ in range(3):
        controller.record_turn(replace(turn_of(PLAY, Layout(workers)), send_s=0.04), 1e6)
    costs = controller.measurements.costs()
    parts = expected_turn(costs, Layout(workers), TWO).parts
    assert parts["weights"] == pytest.approx(0.04)


def test_costs_are_those_of_a_turn_of_the_run_though_short_ones_are_merged(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    controller.layout, controller.skip = Layout(learners=1), 0
    for _ in range(40):
        turn = turn_of(PLAY, Layout(1))
        controller.record_turn(replace(turn, steps=10.0, seconds=0.03, call_s=0.01), 1e6)
    assert controller.measurements.steps == 10
    assert controller.measurements.costs().node("learner").call_s == pytest.approx(0.01)


@pytest.mark.parametrize("pipelined, skipped", [(False, 1), (True, 2)])
def test_turns_in_which_new_environments_start_are_not_measured(tmp_path, pipelined, skipped):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    layout = Layout(4, pipelined=pipelined)
    controller.record_change(layout, 0.5)
    counts = []
    for _ in range(3):
        controller.record_turn(turn_of(PLAY, layout), 1e6)
        counts.append(controller.turn_count)
    assert counts.count(0) == skipped


def test_a_node_without_measurements_costs_a_guess_and_the_choice_says_so(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    layout = controller.first_layout()
    controller.skip = 0
    for _ in range(3):
        controller.record_turn(replace(turn_of(PLAY, layout), policy=[]), 1e6)
    costs = controller.measurements.costs()
    assert "policy" not in costs.measured and costs.node("policy").seconds(1) > 0
    choice = choose(controller.recipe, costs, TWO)
    assert not choice.from_measurements and "a first guess" in "\n".join(choice.lines())


def test_a_cluster_that_shrank_gets_a_layout_for_which_it_has_room(tmp_path):
    large = LayoutController(recipe_of(), tmp_path, [].append, Machine(cpus=16))
    layout = large.first_layout()
    for _ in range(5):
        large.record_turn(turn_of(PLAY, layout), 1e6)
    large.save()
    small = Machine(cpus=1)
    controller = LayoutController(recipe_of(), tmp_path, (notes := []).append, small)
    layout = controller.first_layout()
    assert not controller.reused and "first guess" in notes[0]["reason"]
    costs = controller.measurements.costs()
    assert layout_problem(controller.recipe, layout, small, costs) == ""
    fixed = recipe_of("placement={auto: true, workers: 8, learners: 2}")
    with pytest.raises(RecipeError, match="1 CPUs carry at most 8 processes"):
        LayoutController(fixed, tmp_path, notes.append, small).first_layout()


def unasked(*more):
    """Return a recipe without any key of placement."""
    return load_recipe(
        "sim_sac",
        [
            "simulation.environments=8",
            "algorithm.batch_size=32",
            "simulation.updates_per_step=0.1",
            *more,
        ],
    )


@pytest.mark.parametrize("keys", ["{auto: false}", "{workers: 0, strategy: fsdp}", "{workers: 8}"])
def test_a_run_whose_recipe_sets_a_placement_is_measured_and_never_changed(tmp_path, keys):
    played = Played(tmp_path, [PLAY, LEARN], unasked(f"placement={keys}"))
    assert len(played.layouts) == 1 and not played.notes
    played.controller.save()
    again = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    assert again.reused and again.measurements.costs().node("environment").wait_s == pytest.approx(
        0.1, rel=0.01
    )


def test_a_run_without_a_placement_begins_in_one_process_and_moves_if_it_saves_a_minute(tmp_path):
    played = Played(tmp_path, [PLAY], unasked())
    assert played.layouts[0] == Layout() and len(played.layouts) == 2
    table = best(PLAY)
    assert table[played.layouts[-1]] <= 1.05 * min(table.values())
    assert [note["decision"] for note in played.notes] == ["change", "kept"]
    assert "placement.auto=false keeps one process" in played.notes[0]["reason"]
    assert not played.controller.advice()


def test_a_run_without_a_placement_stays_where_little_is_to_gain_or_left(tmp_path):
    quick = PLAY | {"environment": NodeCost(busy_s=0.02), "learner": NodeCost(busy_s=0.6)}
    assert len(Played(tmp_path / "quick", [quick], unasked()).layouts) == 1
    controller = LayoutController(unasked(), tmp_path, (notes := []).append, TWO, adapts=True)
    layout = controller.first_layout()
    for _ in range(60):  # what is left saves less than a minute
        assert controller.record_turn(turn_of(PLAY, layout), 60 * STEPS) is None
        assert not controller.advice(), "nor has the run so far lost one"
    for _ in range(60):
        controller.record_turn(turn_of(PLAY, layout), STEPS)
    assert not notes
    assert "--set placement=auto begins with it" in controller.advice()
    assert "8 workers" in controller.advice()


def test_short_turns_of_one_process_are_joined(tmp_path):
    """A replay of one environment takes a time step a turn: a choice after each would cost more."""
    controller = LayoutController(unasked(), tmp_path, [].append, TWO, adapts=True)
    tenth = {name: replace(cost, busy_s=cost.busy_s / 100) for name, cost in LEARN.items()}
    tenth |= {"environment": NodeCost(wait_s=1e-3), "policy": NodeCost(fixed_s=1e-4)}
    one = turn_of(tenth, Layout())
    for _ in range(1 + 10 * int(0.2 / one.seconds + 1)):
        controller.record_turn(one, 1e6)
    assert controller.turn_count == 10
    costs = controller.measurements.costs()
    assert costs.node("environment").wait_s / costs.steps == pytest.approx(1e-3 / STEPS)


def test_a_layout_without_memory_for_its_processes_is_not_chosen(tmp_path):
    small = Machine(cpus=2, free_bytes=3 * 2**30)
    controller = LayoutController(unasked(), tmp_path, [].append, small, adapts=True)
    layout, changed = controller.first_layout(), []
    for _ in range(60):
        turn = turn_of(PLAY, layout)
        turn.resident_bytes = 2**30
        if (change := controller.record_turn(turn, 1e6)) is not None:
            controller.record_change(change, 0.5)
            changed.append(layout := change)
    assert changed and changed[-1].workers == 2, "3 GiB are enough for two workers of 1 GiB"
    choice = choose(controller.recipe, controller.measurements.costs(), small)
    assert any("3.0 GiB of memory are free" in reason for reason in choice.refused)


def test_what_was_measured_is_reused_by_the_same_recipe_on_the_same_machine_alone(tmp_path):
    Played(tmp_path, [PLAY]).controller.save()
    notes = []
    again = LayoutController(recipe_of(), tmp_path, notes.append, TWO)
    table = best(PLAY)
    assert table[again.first_layout()] <= 1.05 * min(table.values())
    assert "measurements" in notes[0]["reason"]
    assert not LayoutController(recipe_of(), tmp_path, notes.append, Machine(cpus=4)).reused
    assert not LayoutController(recipe_of("policy.hidden=[8]"), tmp_path, notes.append, TWO).reused
    (tmp_path / FILE).write_text("{")
    assert not LayoutController(recipe_of(), tmp_path, notes.append, TWO).reused


def test_a_change_that_costs_more_than_what_is_left_can_bring_is_not_made(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    layout = controller.first_layout()
    assert all(controller.record_turn(turn_of(PLAY, layout), 2 * STEPS) is None for _ in range(20))


def test_a_layout_that_the_cluster_refuses_is_not_wanted_again(tmp_path):
    controller = LayoutController(recipe_of(), tmp_path, (notes := []).append, TWO)
    layout, wanted = controller.first_layout(), []
    for _ in range(60):
        change = controller.record_turn(turn_of(PLAY, layout), 1e6)
        if change is not None:
            wanted.append(change)
            controller.record_refusal(change, "no room")
    assert wanted and len(set(wanted)) == len(wanted)
    assert {"refused"} <= {note["decision"] for note in notes}
    assert not controller.has_changed


@pytest.mark.parametrize(
    "has_changed, gain, moves", [(False, 0.04, False), (False, 0.2, True), (True, 0.9, False)]
)
def test_a_kept_change_is_the_last_one_under_the_same_load(
    tmp_path, monkeypatch, has_changed, gain, moves
):
    controller = LayoutController(recipe_of(), tmp_path, [].append, TWO)
    layout = controller.first_layout()
    controller.has_changed = has_changed
    monkeypatch.setattr(controller, "_gain", lambda choice: gain)
    answers = [controller.record_turn(turn_of(PLAY, layout), 1e6) for _ in range(8)]
    assert any(answer is not None for answer in answers) == moves
