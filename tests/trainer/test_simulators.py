"""A run on simulators, on the points of the algorithms' tests and on the simulated arm."""

import json
import os

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.launch.graph import write_plan
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.rollouts.collect import AlternatingRollouts, EpisodeRollouts
from rlinf_core.rollouts.types import Experience
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer import train as simulation
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.simulators import InProcessRollouts, Simulators
from tests.algorithms.point import SPEC, Points
from tests.algorithms.toy import acted

pytestmark = pytest.mark.timed

POINTS = {
    "sac": [
        "policy.hidden=[64, 64]",
        "algorithm.critic_hidden=[64, 64]",
        "algorithm.learning_rate=0.001",
        "simulation.env_steps=3000",
        "simulation.start_steps=300",
        "simulation.environments=2",
    ],
    "ppo": [
        "algorithm.chunks=32",
        "simulation.env_steps=40000",
        "simulation.environments=64",
        "simulation.evaluate_every=20000",
    ],
}


def recipe_of(name, *more):
    return load_recipe(f"sim_{name}", [*POINTS[name], *more])


def points(recipe, size):
    return Points(size)


@pytest.fixture(scope="module", autouse=True)
def no_ray_afterwards():
    yield
    import ray

    ray.shutdown()


def test_a_seed_changes_every_scene_but_those_of_evaluations(tmp_path):
    """Demonstrations', of training, and in a station's plan; far apart, whatever the seed."""
    drawn = {}

    class Noted(Points):
        def reset(self, seeds):
            drawn.setdefault(seed, []).append(list(seeds))
            return super().reset(seeds)

    for seed in (0, 1):
        recipe = recipe_of(
            "sac",
            "algorithm={name: rlpd}",
            "collect.episodes=3",
            "simulation.env_steps=20",
            "simulation.start_steps=10",
            "simulation.evaluate_episodes=4",
            f"seed={seed}",
            "sft.steps=1",
        )
        simulation.train(recipe, tmp_path / str(seed), lambda recipe, size: Noted(size))
        write_plan(recipe, tmp_path / str(seed))
    held_out = [
        [scenes for scenes in drawn[seed] if scenes[0] in range(1_000_000, 1_000_100)]
        for seed in (0, 1)
    ]
    assert held_out[0] and held_out[0] == held_out[1]
    by_seed = [
        {scene for scenes in drawn[seed] for scene in scenes} - set(range(1_000_000, 1_000_100))
        for seed in (0, 1)
    ]
    assert (
        {0, 1, 10_000, 10_001} <= by_seed[0]
        and len(by_seed[1]) == len(by_seed[0])
        and not by_seed[0] & by_seed[1]
    )
    plans = [json.loads((tmp_path / str(seed) / "plan.json").read_text()) for seed in (0, 1)]
    assert (
        plans[0]["collect"]["first_seed"] == 10_000 and plans[1]["evaluate"] == plans[0]["evaluate"]
    )
    assert all(
        plans[1][part]["first_seed"]
        == load_recipe("demo", ["seed=1"]).scene(plans[0][part]["first_seed"])
        for part in ("collect", "online")
    )
    begins = sorted(load_recipe("sim_sac").but(seed=seed).scene(0) for seed in range(100))
    assert np.diff(begins).min() >= 2_000_000 and begins[-1] < 2**32


@pytest.mark.parametrize(
    "name, kind, at_most",
    [
        ("dagger", "tanh_gaussian", 0.2),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (
                ("sft", "flow", 0.2),
                ("rlpd", "tanh_gaussian", 1.0),
                ("dsrl", "latent_noise", 1.0),
                ("iql", "tanh_gaussian", 0.2),
            )
        ),
    ],
)
def test_what_learns_from_demonstrations_or_an_expert_does(name, kind, at_most, tmp_path):
    """The points' script shows how it is done.

    After at least 90 % of 32 held-out scenes, seed 0.
    """
    recipe = recipe_of(
        "sac",
        f"algorithm={{name: {name}, learning_rate: 0.001}}",
        f"policy.kind={kind}",
        "sft.steps=200",
        "sft.learning_rate=0.003",
        f"simulation.env_steps={1200 if name == 'rlpd' else 600}",
        "simulation.evaluate_every=600",
        "simulation.evaluate_episodes=32",
        "collect.episodes=60",
    )
    if hasattr(recipe.algorithm, "steps"):
        recipe = recipe.but(algorithm=recipe.algorithm.but(steps={"iql": 3000}.get(name, 1000)))
    last = simulation.train(recipe, tmp_path, points)
    assert read_evaluations(tmp_path)[0]["success"] <= at_most and last["success"] >= 0.9, (
        read_evaluations(tmp_path)
    )
    again = load_policy(max((tmp_path / "policies").iterdir()), SPEC)
    assert acted(again, {"offset": np.zeros(2, np.float32)}).shape == (1, 2)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("ppo", []),
        pytest.param("sac", [], marks=pytest.mark.slow),
        pytest.param("sac", ["placement={workers: 2, mode: pipelined}"], marks=pytest.mark.slow),
        pytest.param(
            "ppo",
            ["algorithm.name=async_ppo", "placement={workers: 2, mode: pipelined}"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ppo", "sac", "sac, pipelined workers", "async ppo, pipelined workers"],
)
def test_it_learns_and_says_where_the_time_went(name, changes, tmp_path, monkeypatch):
    """Thresholds: before at most 20 %, after at least 90 % of 64 held-out scenes, seed 0."""
    # the disk's time is nobody's part, and others write beside it
    monkeypatch.setattr(os, "fsync", lambda _: None)
    last = simulation.train(
        recipe_of(name, "simulation.evaluate_episodes=64", *changes), tmp_path, points
    )
    entries = read_evaluations(tmp_path)
    assert entries[0]["success"] <= 0.20 and last["success"] >= 0.90, entries
    spent = sum(
        value
        for part, value in last.items()
        if part.startswith("seconds_") and "workers" not in part
    )
    assert 0.8 * last["seconds"] < spent < 1.05 * last["seconds"]
    assert list((tmp_path / "tensorboard").iterdir())
    policy = load_policy(max((tmp_path / "policies").iterdir()), SPEC)
    again = simulation.evaluate(Points(8), policy, range(1_000_000, 1_000_064))
    assert np.mean([episode.success for episode in again]) == last["success"]
    assert acted(policy, {"offset": np.zeros(2, np.float32)}).shape == (1, 2)


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    half = recipe_of("sac", "simulation.env_steps=600", "simulation.evaluate_every=300")
    simulation.train(half, tmp_path, points)
    before = read_evaluations(tmp_path)[-1]
    uninterrupted = recipe_of("sac", "simulation.env_steps=1000", "simulation.evaluate_every=300")
    last = simulation.train(uninterrupted, tmp_path, points)
    assert (before["env_steps"], last["env_steps"]) == (600, 1000) and last["updates"] > before[
        "updates"
    ]
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path)] == [0, 300, 600, 900, 1000]


def test_a_run_that_diverges_stops_and_keeps_what_was_good(tmp_path, monkeypatch):
    from rlinf_core.algorithms import sac

    def update(self, batch):
        self.updates += 1
        return {"critic_loss": float("nan") if self.updates > 5 else 1.0}

    monkeypatch.setattr(sac.Learner, "update", update)
    with pytest.raises(RlinfError, match="training diverged: critic_loss is nan after"):
        simulation.train(recipe_of("sac"), tmp_path, points)
    assert checkpoint.checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["algorithm.name=sacc"], "did you mean 'sac'"),
        (["policy.kind=gaussian"], "policy.kind: sac trains tanh_gaussian, got 'gaussian'"),
        (["policy.kind=gausian"], "did you mean 'gaussian'"),
        (["algorithm={name: dsrl}"], "policy.kind: dsrl trains latent_noise, got 'tanh_gaussian'"),
        (
            ["algorithm={name: dagger}", "policy.horizon=2"],
            "in simulators dagger queries the expert at every time step",
        ),
        (
            ["algorithm={name: grpo}", "policy.kind=gaussian", "simulation.environments=3"],
            "a multiple of algorithm.group = 8",
        ),
        (
            ["placement.workers=2", "simulation.environments=3"],
            "expected a multiple of placement.workers = 2, got 3",
        ),
        (
            ["algorithm={name: iql}", "placement.workers=2"],
            "expected 0 for iql on simulators, which plays no rollouts",
        ),
        (["algorithm.gama=0.9"], "unknown key 'algorithm.gama'"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, message, tmp_path):
    with pytest.raises(RecipeError) as error:
        simulation.train(recipe_of("sac", *overrides), tmp_path, points)
    assert message in str(error.value)


def test_the_command_trains_the_simulated_arm_and_compare_draws_its_runs(tmp_path, capsys):
    for name, report in (("a", []), ("b", ["--no-report"])):
        assert (
            main(
                [
                    "train",
                    "sim_sac",
                    *report,
                    "--out",
                    str(tmp_path / name),
                    "--set",
                    "simulation.env_steps=40",
                    "simulation.start_steps=20",
                    "simulation.evaluate_episodes=2",
                    "policy.hidden=[8]",
                    "evaluate.filmed_episodes=1",
                ]
            )
            == 0
        )
    assert "success" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "a/progress.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [0, 40]
    report = (tmp_path / "a/report.md").read_text()
    assert "| 40 | 0 |" in report and "after 40 steps (2 held-out episodes each)" in report
    for picture in ("learning_curve.png", "before_after.png", "before_after.mp4"):
        assert (tmp_path / "a" / picture).stat().st_size > 5000 and not (
            tmp_path / "b" / picture
        ).exists()
    assert (
        main(
            ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c.png")]
        )
        == 0
    )
    assert (tmp_path / "c.png").stat().st_size > 5000
    assert main(["compare", str(tmp_path)]) == 1
    assert "expected the folder of a run" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [[], ["placement={workers: 2, mode: pipelined}"]], ids=["here", "workers on Ray"]
)
def test_the_same_seed_gives_the_same_run(workers, tmp_path):
    runs = []
    for name in ("a", "b"):
        recipe = recipe_of(
            "sac", "simulation.env_steps=500", "simulation.evaluate_every=250", *workers
        )
        simulation.train(recipe, tmp_path / name, points)
        runs.append(
            [
                {
                    key: value
                    for key, value in entry.items()
                    if "second" not in key and key != "time"
                }
                for entry in read_evaluations(tmp_path / name)
            ]
        )
    assert runs[0] == runs[1]


def test_pipelined_the_next_is_asked_for_in_the_same_amount_before_what_came_is_learned_from():
    class Players:
        def __init__(self):
            self.requests, self.usages = [], []

        def start(self, version, amount):
            self.requests.append((version, amount))

        def take(self):
            return [Experience(steps=7)], {"wait": 1.0}

    recipe = recipe_of("sac", "placement={workers: 1, mode: pipelined}")
    source = Simulators(
        recipe_of("sac"), Points(2), make_policy(SPEC, recipe.policy), points, Clock()
    )
    source.recipe, source.players = recipe, Players()
    assert source.take(5, {"random_warmup": True}).steps == 7
    assert source.players.requests == [(5, {"steps": 25, "random_warmup": True})] * 2
    assert (
        source.take(6, {"random_warmup": False}).steps == 7 and source.clock.seconds["wait"] == 2.0
    )
    assert source.players.requests[2:] == [(6, {"steps": 25, "random_warmup": False})], (
        "the earlier request came first"
    )


def source_of(seed=0, staged=False):
    recipe = recipe_of("sac", f"seed={seed}", "simulation.start_steps=0")
    policy = make_policy(SPEC, recipe.policy)
    source = Simulators(recipe, Points(2), policy, points, Clock())
    if staged:
        parts = [EpisodeRollouts(Points(2), policy, seed + i, 100 * (i + seed)) for i in range(2)]
        source.players = InProcessRollouts(AlternatingRollouts(Points(4), parts))
    return source


@pytest.mark.parametrize("staged", [False, True], ids=["one", "two halves"])
def test_a_source_goes_on_with_the_episodes_of_its_state(staged):
    one, two, other = (source_of(seed, staged) for seed in (3, 4, 4))
    for name, weights in one.policy.state_dict().items():
        for source in (two, other):
            source.policy.state_dict()[name].copy_(weights)
    one.take(0, {"steps": 10})
    state = one.state_dict()
    two.load_state_dict(state)
    expected = [episode.actions.tolist() for episode in played(one)]
    assert [episode.actions.tolist() for episode in played(two)] == expected
    other.load_state_dict({"begun": 3, "spawned": 5})  # that of workers
    assert [episode.actions.tolist() for episode in played(other)] != expected
    assert other.spawned == 5 and one.spawned == 0
    assert other.state_dict()["spawned"] == 5 and "spawned" not in one.state_dict()
    other.load_state_dict({"spawned": 4})
    assert other.spawned == 5, "noise and scenes are not played twice"


def played(source):
    return [episode for _ in range(60) for episode in source.take(1, {}).trajectories]


def test_an_algorithm_that_plays_nothing_has_a_source_without_experience_and_state():
    recipe = recipe_of("sac", "algorithm={name: iql}")
    source = Simulators(recipe, Points(2), make_policy(SPEC, recipe.policy), points, Clock())
    assert source.take(0, {}) == Experience() and source.state_dict() == {}
    source.load_state_dict({"generator": None})
    assert (source.usages, source.sent_bytes, source.send_s, source.report) == ([], 0, 0.0, {})
    source.close()


def test_demonstrations_are_those_of_the_recipes_scenes():
    recipe = recipe_of("sac", "collect.episodes=3", "seed=2")
    source = Simulators(recipe, Points(2), make_policy(SPEC, recipe.policy), points, Clock())
    shown = source.demonstrate().trajectories
    first = Points(2).reset([recipe.scene(recipe.collect.first_seed)] * 2)["vectors"][0]
    begins = [episode.observations["vectors"][0].tolist() for episode in shown]
    assert len(shown) == 3 and first.tolist() in begins
    assert list(source.clock.seconds) == ["demonstrate"]


def test_the_experience_of_a_rollout_counts_all_environments_and_its_time():
    source = source_of()
    experience = source.take(4, {})
    assert experience.steps == 2, "one time step of each, as no worker waits for weights"
    assert source.players.rollouts.version == 4 and not source.is_pending
    assert {"simulate", "infer", "transfer"} <= set(source.clock.seconds)
    assert [(part, process) for part, process, _, _ in source.clock.spans][-1] == (
        "rollout",
        "worker 0",
    )
    assert len(source.usages) == 1 and source.sent_bytes == 0


@pytest.mark.parametrize("adapts", [False, True])
def test_only_a_run_that_adapts_may_choose_its_layout_unasked(adapts, tmp_path):
    runs = []

    def on_progress(run, entry):
        runs.append(run)
        run.stopping = True

    recipe = recipe_of("sac", "device=cpu")
    simulation.train(recipe, tmp_path, points, on_progress, **({"adapts": True} if adapts else {}))
    assert runs[-1].layout_controller.is_implicit is adapts
    assert runs[-1].recipe.placement == recipe.placement, "it begins in one process"
