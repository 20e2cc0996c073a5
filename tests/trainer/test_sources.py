"""Every algorithm on every source that can feed it takes what that brings, updates and publishes;
or says why not.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, ROLLOUTS
from rlinf_core.cli.train import _who_feeds
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.sources import (
    RECORDINGS,
    SIMULATORS,
    STATIONS,
    check_source,
    incompatibility,
    source_of,
)
from rlinf_core.rollouts.collect import ChunkRollouts, EpisodeRollouts, demonstrate
from rlinf_core.rollouts.types import TRAIN
from rlinf_core.trainer.run import Run
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points
from tests.messages import record
from tests.trainer.test_run import Silent, turn

SMALL = (
    "policy.hidden=[16]",
    "sft.steps=3",
    "sft.batch_size=8",
    "collect.episodes=2",
    "replay.capacity=2000",
    "online.min_transitions=0",
    "online.updates_per_step=0.2",
    "online.publish_every_updates=2",
    "simulation.env_steps=120",
    "simulation.start_steps=30",
    "simulation.evaluate_every=120",
    "simulation.evaluate_episodes=2",
    "simulation.updates_per_step=0.2",
    "algorithm.batch_size=8",
)
EXTRA_OVERRIDES = {
    DEMONSTRATIONS: ("algorithm.steps=3",),
    ROLLOUTS: ("policy.kind=gaussian", "algorithm.epochs=1"),
}
VARIANTS = [*algorithms(), "dagger, gated"]


def recipe_of(name, *more):
    kind, _, gated = name.partition(", ")
    config = algorithm(kind).Config
    overrides = [
        f"algorithm.name={kind}",
        f"policy.kind={config.policies[0]}",
        *EXTRA_OVERRIDES.get(config.learns_from, ()),
    ]
    small = [
        item
        for item in SMALL
        if config.learns_from != ROLLOUTS or "batch_size=8" not in item or "sft" in item
    ]
    if "chunks" in config.model_fields:
        overrides.append("algorithm.chunks=8")
    if "group" in config.model_fields:
        overrides.append("algorithm.group=2")
    if "critic_hidden" in config.model_fields:
        overrides.append("algorithm.critic_hidden=[16]")
    if "critic_warmup" in config.model_fields:
        overrides += ["algorithm.critic_warmup=0", "algorithm.actor_every=1"]
    return load_recipe(
        "sim_rlpd", [*small, *overrides, *(["algorithm.gated=true"] if gated else []), *more]
    )


def with_base(name, spec, folder):
    """Return the settings of a policy that corrects a base, with the base's file."""
    if name != "residual":
        return []
    save_policy(
        make_policy(spec, policy_kind("tanh_gaussian").Config(hidden=(16,))),
        folder / "base" / policy_name(0),
    )
    return [f"policy.base={folder / 'base'}"]


def on_recordings(name):
    """Return the cell of the docs' table: alone, beside stations or simulators, or not at all."""
    algorithm = recipe_of(name).algorithm
    if incompatibility(algorithm, RECORDINGS):
        return "no"
    return "yes" if algorithm.learns_from == DEMONSTRATIONS else "beside"


def episodes(recipe, count, **marks):
    """Return episodes of a station's policy as they would be recorded."""
    policy = make_policy(SPEC, recipe.policy)
    if recipe.algorithm.learns_from == ROLLOUTS:
        plays = ChunkRollouts(Points(1), policy)
        plays.version = marks["version"]
        played = [
            replace(EpisodeRollouts(Points(1), policy).play(60).trajectories[0], rollout=rollout)
            for rollout in plays.play(chunks=60).rollouts
        ]
    else:
        played = EpisodeRollouts(Points(1), policy).play(25 * count).trajectories
    return [
        replace(episode, station="a", sources=["operator"] * len(episode), mode=TRAIN, **marks)
        for episode in played
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_on_simulators(name, tmp_path):
    recipe = recipe_of(name, "simulation.environments=2", *with_base(name, SPEC, tmp_path))
    assert not incompatibility(recipe.algorithm, SIMULATORS)
    last = train(recipe, tmp_path, lambda recipe, size: Points(size))
    assert last["updates"] >= 1 and len(list((tmp_path / "policies").iterdir())) >= 2


@pytest.mark.parametrize("name", VARIANTS)
def test_on_stations(name, tmp_path):
    recipe = recipe_of(name, "simulation.environments=0", *with_base(name, SPEC, tmp_path))
    if reason := incompatibility(recipe.algorithm, STATIONS):
        with pytest.raises(RecipeError) as error:
            check_source(recipe)
        assert f"stations cannot feed {recipe.algorithm.name}: {reason}" in str(error.value)
        return
    check_source(recipe)
    run = Run(recipe, tmp_path, SPEC, lambda run, entry: None)
    run.start(Silent())
    if recipe.algorithm.needs_demonstrations:
        turn(run, 5)
        assert (run.phase, run.version, run.updates) == ("waiting", 0, 0)
    for shown in demonstrate(Points(1), 2, 0) if recipe.algorithm.needs_demonstrations else ():
        run.insert(replace(shown, station="a"))
    turn(run, 10)
    if recipe.algorithm.learns_from != DEMONSTRATIONS:
        assert run.version == 1, "stations have a policy before anything is learned online"
    if recipe.algorithm.learns_from == ROLLOUTS:
        run.insert(episodes(recipe, 1, version=1)[0])
        turn(run, 2)
        assert (run.version, run.updates, run.fitted) == (2, 0, True), (
            "the first one is only looked at"
        )
    before = {name: value.clone() for name, value in run.policy.state_dict().items()}
    statuses = {run.insert(episode) for episode in episodes(recipe, 4, version=run.version)}
    turn(run, 10)
    assert statuses == (
        {"not used for training"}
        if name == "sft"
        else {"demonstration"}
        if name in ("iql", "recap")
        else {"online"}
    )
    assert run.updates >= (3 if recipe.algorithm.learns_from == DEMONSTRATIONS else 1)
    if recipe.algorithm.learns_from != DEMONSTRATIONS:
        assert any(
            not torch.equal(before[name], value) for name, value in run.policy.state_dict().items()
        )
        assert run.version > 1 + (recipe.algorithm.learns_from == ROLLOUTS)
    assert load_policy(max((tmp_path / "policies").iterdir()), SPEC).config == recipe.policy


@pytest.fixture
def recordings(task, tmp_path):
    record(Spool(tmp_path / "spool"), task.spec, "a-1", mode="demonstration").close()
    record(Spool(tmp_path / "spool"), task.spec, "a-2", mode="demonstration", success=False).close()
    return f"collect.recordings=[{tmp_path}]"


@pytest.mark.parametrize("name", [name for name in VARIANTS if on_recordings(name) == "yes"])
def test_on_recordings_alone(name, recordings, tmp_path):
    recipe = recipe_of(name, "simulation.environments=0", recordings)
    last = train(recipe, tmp_path / "run")
    assert (last["updates"], last["env_steps"], last["episodes"]) == (3, 3, 2)
    statuses = (tmp_path / "run/journal.jsonl").read_text()
    assert statuses.count('"demonstration"') == (2 if name in ("iql", "recap") else 1)
    assert (tmp_path / "spool/closed/a-2").exists()


@pytest.mark.parametrize("name", [name for name in VARIANTS if on_recordings(name) == "beside"])
def test_recordings_demonstrate_beside_another_source(name, task, recordings, tmp_path):
    recipe = recipe_of(
        name,
        f"simulation.environments={0 if name != 'dagger' else 2}",
        recordings,
        *with_base(name, task.spec, tmp_path),
    )
    check_source(recipe)
    assert source_of(recipe) == (STATIONS if name != "dagger" else SIMULATORS)
    run = Run(recipe, tmp_path, task.spec, lambda run, entry: None)
    run.start(Silent())
    shown = run.data.demonstrations
    assert shown.episodes == 1 and len(run.data.online) == (
        len(shown) if run.data.also_replays_demonstrations else 0
    )
    turn(run, 10)
    assert run.version == 1 and run.phase == "online", "what was recorded is enough to begin with"


@pytest.mark.parametrize("source", [0, 2])
@pytest.mark.parametrize("name", [name for name in VARIANTS if on_recordings(name) == "no"])
def test_recordings_are_refused_where_nothing_would_be_learned_from_them(name, source, tmp_path):
    recipe = recipe_of(name, f"simulation.environments={source}", "collect.recordings=[there]")
    with pytest.raises(RecipeError) as error:
        check_source(recipe)
    refused = STATIONS if not source and incompatibility(recipe.algorithm, STATIONS) else RECORDINGS
    assert f"{refused} cannot feed {name}: {incompatibility(recipe.algorithm, refused)}" in str(
        error.value
    )
    assert "collect.recordings empty" in incompatibility(recipe.algorithm, RECORDINGS)


@pytest.mark.parametrize(
    "more, message",
    [
        ([], "; stations call 127.0.0.1:50551 with the token in {}/bridge.token; Ctrl-C ends it"),
        (
            ["collect.recordings=[there]"],
            "; demonstrations come from recordings; stations call 127.0.0.1:50551 with the token "
            "in {}/bridge.token; Ctrl-C ends it",
        ),
    ],
)
def test_a_run_that_waits_for_stations_says_that_recordings_do_not_end_it(more, message, tmp_path):
    shown = _who_feeds(recipe_of("rlpd", "simulation.environments=0", *more), tmp_path)
    assert shown == message.format(tmp_path)


@pytest.mark.parametrize("change", ["device=cuda:63", "simulation.initial_policy=/not/there"])
def test_what_a_run_begins_with_is_looked_at_before_its_folder_is_made(change, tmp_path):
    recipe = recipe_of("sac", "simulation.environments=2", change)
    with pytest.raises(RlinfError, match="expected"):
        train(recipe, tmp_path / "run", lambda recipe, size: Points(size))
    assert not (tmp_path / "run").exists()


def test_recordings_may_demonstrate_what_goes_on_in_simulators(recordings, tmp_path):
    recipe = recipe_of("rlpd", "simulation.environments=1", recordings, "simulation.env_steps=60")
    runs = []
    train(recipe, tmp_path / "run", on_progress=lambda run, entry: runs.append(run))
    assert runs[-1].data.demonstrations.episodes == 1 and runs[-1].updates >= 5


@pytest.mark.parametrize("name, environments", [("sft", 0), ("rlpd", 1)])
def test_recordings_that_demonstrate_nothing_are_said_and_nothing_waits_for_ever(
    name, environments, task, tmp_path
):
    record(Spool(tmp_path / "spool"), task.spec, "a-1", mode="train").close()
    record(Spool(tmp_path / "spool"), task.spec, "a-2", mode="demonstration", success=False).close()
    record(Spool(tmp_path / "spool"), task.spec, "a-3", mode="evaluate").close()
    recipe = recipe_of(
        name, f"simulation.environments={environments}", f"collect.recordings=[{tmp_path}]"
    )
    with pytest.raises(
        RecipeError,
        match="expected a successful demonstration of each robot, got .*1 failed demonstration, "
        "1 e",
    ):
        train(recipe, tmp_path / "run")


def test_two_recordings_of_one_id_and_other_content_are_not_one(task, tmp_path):
    for place, success in (("one", True), ("two", False)):
        record(
            Spool(tmp_path / place), task.spec, "a-1", mode="demonstration", success=success
        ).close()
    recipe = recipe_of(
        "sft",
        "simulation.environments=0",
        f"collect.recordings=[{tmp_path / 'one'}, {tmp_path / 'two'}]",
    )
    with pytest.raises(
        RecipeError,
        match="expected unique ids, got 'a-1' with different content in .*/one/closed/a-1 and in",
    ):
        train(recipe, tmp_path / "run")


def test_the_table_of_the_docs_is_what_is_done():
    lines = Path("docs/explain/algorithms.md").read_text().splitlines()
    for name in VARIANTS:
        kind, _, gated = name.partition(", ")
        config = algorithm(kind).Config(**({"gated": True} if gated else {}))
        cells = " | ".join(
            "yes" if not incompatibility(config, source) else "no"
            for source in (SIMULATORS, STATIONS)
        )
        cells += f" | {on_recordings(name)}"
        assert f"| `{name}` | {cells} |" in lines, (
            f"docs/explain/algorithms.md: expected | `{name}` | {cells} |"
        )


@pytest.mark.parametrize("gated, learned", [("false", [3, 4]), ("true", [3, 4])])
def test_what_was_recorded_of_the_policy_itself_is_no_experts_word(
    gated, learned, task, recordings, tmp_path
):
    record(
        Spool(tmp_path / "spool"),
        task.spec,
        "a-3",
        mode="train",
        steps=9,
        sources={3: "operator", 4: "operator"},
        start=500.0,
    ).close()
    recipe = recipe_of(
        "dagger", "simulation.environments=2", recordings, f"algorithm.gated={gated}"
    )
    run = Run(recipe, tmp_path / "run", task.spec, lambda run, entry: None)
    run.start(Silent())
    vectors = run.data.online.vectors()[:, 0]
    assert sorted(vectors[vectors >= 500.0] - 500.0) == learned, "but a person's is"
    if gated == "false":
        assert run.data.rollout_length()["expert_fraction"] == recipe.algorithm.beta, (
            "no episode has been played yet"
        )


@pytest.mark.parametrize("name, refused", [("rlpd", True), ("sft", False)])
def test_rewards_of_two_kinds_are_not_learned_from_as_one(name, refused, tmp_path):
    recipe = recipe_of(
        name, "simulation.environments=1", "simulation.shaping=1", "collect.recordings=[there]"
    )
    if not refused:
        check_source(recipe)
        return
    with pytest.raises(
        RecipeError, match="simulation.shaping: expected 0 beside collect.recordings for rlpd"
    ):
        check_source(recipe)
