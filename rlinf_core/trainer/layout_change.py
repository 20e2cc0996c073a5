"""Change of a run's layout between two turns: workers and learner processes on Ray."""

from __future__ import annotations

import time

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.plan.choose import with_layout
from rlinf_core.plan.cost import Layout
from rlinf_core.plan.graph import build_graph
from rlinf_core.plan.layout_controller import Turn
from rlinf_core.recipes import Recipe
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.ray_cluster import NoRoomError, connect
from rlinf_core.trainer.learner_setup import make_learner
from rlinf_core.trainer.prefetch import make_prefetch
from rlinf_core.trainer.run_state import RunState
from rlinf_core.trainer.sources.simulators import Simulators


def change_layout(run: RunState, layout: Layout) -> None:
    """Change the layout of a run without a change of its state.

    An infeasible layout is reported to the controller.
    """
    controller, source = run.layout_controller, run.source
    assert controller is not None and isinstance(source, Simulators)
    before, started = run.recipe, time.perf_counter()
    run.meter.turn = Turn()
    recipe = with_layout(controller.recipe, layout)
    try:
        if recipe.placement.on_ray:  # maybe the first processes on Ray
            connect(recipe.placement.ray)
    except (RlinfError, OSError, RuntimeError, ValueError) as error:
        controller.record_refusal(layout, f"Ray does not start: {error}")
        return
    try:
        with run.clock("place"):
            source.change_layout(recipe)
            change_learner(run, recipe)
    except (RecipeError, NoRoomError) as error:
        source.change_layout(before)
        controller.record_refusal(layout, str(error))
        return
    seconds = time.perf_counter() - started
    print(f"layout: {layout}, in {seconds:.1f} s", flush=True)
    controller.record_change(layout, seconds)


def change_learner(run: RunState, recipe: Recipe) -> None:
    """Move the learner of a run into the processes of another recipe, which the run then has."""
    before, count = run.recipe.placement.learners, recipe.placement.learners
    if isinstance(run.learner, LearnerGroup) and count:
        run.learner.resize(count)
    elif count != before:
        run.learner.sync()
        state = run.learner.state_dict()
        learner = make_learner(recipe, run.config, run.policy)
        learner.load_state_dict(state)
        run.learner.close()
        run.learner = learner
    run.recipe = recipe
    run.graph = build_graph(recipe)
    run.prefetch = make_prefetch(recipe, run.policy.device)
