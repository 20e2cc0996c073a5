"""The sources of a recipe's training data, and combinations that are refused."""

import re
from pathlib import Path

import pytest

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe, sources
from rlinf_core.recipes.sources import (
    CONVERSATIONS,
    RECORDINGS,
    SIMULATORS,
    STATIONS,
    check_source,
    fixed_layout_reason,
    incompatibility,
    initial_source,
    may_choose,
    source_of,
)

PENDULUM = "env=gym:Pendulum-v1"
WORLD = "world.run=runs/w"
ASYNC = ["algorithm={name: async_ppo}", "policy={kind: gaussian}"]


@pytest.mark.parametrize(
    "name, overrides, source",
    [
        ("demo", [], STATIONS),
        ("sim_sac", [], SIMULATORS),
        ("text_arithmetic", [], CONVERSATIONS),
        ("sim_sft", ["simulation.environments=0"], STATIONS),
        ("sim_sft", ["simulation.environments=0", "collect.recordings=[a]"], RECORDINGS),
        ("sim_sft", ["simulation.environments=1", "collect.recordings=[a]"], SIMULATORS),
        ("sim_sac", ["simulation.environments=0", "collect.recordings=[a]"], STATIONS),
    ],
)
def test_the_source(name, overrides, source):
    assert source_of(load_recipe(name, overrides)) == source


def test_a_run_begins_with_a_policy_if_the_recipe_names_one(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = {"": None, "runs/a": Path("runs/a"), "'~/a'": tmp_path / "a"}
    for text, path in paths.items():
        recipe = load_recipe("sim_sac", [f"simulation.initial_policy={text}"])
        assert initial_source(recipe) == path


@pytest.mark.parametrize(
    "name, settings, source, reason",
    [
        ("ppo", {}, SIMULATORS, ""),
        ("ppo", {}, CONVERSATIONS, ""),
        ("ppo", {}, RECORDINGS, "ppo learns only from rollouts of its newest policies, not from"),
        ("async_ppo", {}, RECORDINGS, "async_ppo learns only from rollouts of its newest policies"),
        ("ppo", {}, STATIONS, "ppo learns only from complete rollouts of its newest policy, but"),
        ("async_ppo", {}, STATIONS, ""),
        ("sac", {}, STATIONS, ""),
        ("sac", {}, RECORDINGS, ""),
        ("dagger", {}, SIMULATORS, ""),
        ("dagger", {}, RECORDINGS, ""),
        ("dagger", {}, STATIONS, "dagger queries an expert at every time step, which a person"),
        ("dagger", {"gated": True}, STATIONS, ""),
        ("sft", {}, STATIONS, ""),
        ("sft", {}, RECORDINGS, ""),
    ],
)
def test_why_an_algorithm_cannot_learn_from_a_source(name, settings, source, reason):
    answer = incompatibility(algorithm(name).Config(**settings), source)
    assert answer.startswith(reason) and bool(answer) == bool(reason)


REFUSED = [
    (
        "sim_sac",
        ["policy.kind=flow"],
        "policy.kind: sac trains tanh_gaussian, got 'flow'. A kind of your own extends",
    ),
    (
        "sim_sft",
        ["policy={kind: gaussian}"],
        "policy.kind: sft trains tanh_gaussian or flow or pi0 or .* or residual, got 'gaussian'",
    ),
    ("sim_ppo", ["policy={kind: pi0}"], "learns from log-probabilities of the sampled"),
    (
        "sim_ppo",
        ["collect.recordings=[a]"],
        "algorithm.name: recordings cannot feed ppo: ppo learns only from rollouts",
    ),
    (
        "sim_ppo",
        ["simulation.environments=0"],
        "algorithm.name: stations cannot feed ppo: ppo learns only from complete rollouts",
    ),
    (
        "sim_rlpd",
        ["release.staged=true"],
        "release.staged: expected false for rlpd on simulators, got true",
    ),
    (
        "demo",
        [*ASYNC, "release.staged=true"],
        "release.staged: expected false for async_ppo on stations, got true",
    ),
    (
        "sim_dagger",
        ["policy.horizon=2"],
        "policy.horizon: in simulators dagger queries the expert .*, expected 1, got 2",
    ),
    (
        "sim_rlpd",
        ["collect.episodes=0", "algorithm={name: iql}"],
        r"collect.episodes: iql begins with demonstrations, expected at least 1 \(or .*, got 0",
    ),
    (
        "sim_rlpd",
        ["simulation.shaping=0.5", "collect.recordings=[a]"],
        "simulation.shaping: expected 0 beside collect.recordings for rlpd, .* shaping, got 0.5",
    ),
    (
        "demo",
        ["placement.workers=2"],
        "placement.workers: expected 0 for rlpd on stations, which plays no rollouts, got 2",
    ),
    (
        "sim_sft",
        ["placement.workers=1"],
        "placement.workers: expected 0 for sft on simulators, which plays no rollouts, got 1",
    ),
    (
        "demo",
        ["placement=auto"],
        "placement.auto: expected false for rlpd on stations, where .* are not measured, got true",
    ),
    (
        "sim_sft",
        ["placement=auto"],
        "placement.auto: expected false for sft on simulators, where",
    ),
    (
        "sim_rlpd_world",
        ["placement=auto"],
        "placement.auto: expected false with world.share, which runs in the trainer's process",
    ),
    (
        "demo",
        ["placement.simulators=2"],
        "placement.simulators: expected 0 on stations, which steps no environments, got 2",
    ),
    (
        "sim_ppo",
        ["placement.replay_shards=2"],
        "placement.replay_shards: expected 0 for ppo, which keeps no replay, got 2",
    ),
    (
        "sim_rlpd",
        ["placement.ingest=2"],
        "placement.ingest: expected 0 on simulators, to which no station sends anything, got 2",
    ),
    (
        "sim_ppo",
        ["placement.workers=3"],
        "simulation.environments: expected a multiple of placement.workers = 3, got 16",
    ),
    (
        "sim_grpo",
        ["simulation.environments=12"],
        "simulation.environments: expected a multiple of algorithm.group = 8 for each .*, got 12",
    ),
    (
        "sim_grpo",
        ["placement.workers=4"],
        "simulation.environments: expected a multiple of algorithm.group = 8 for each .*, got 4$",
    ),
    (
        "sim_ppo",
        ["placement.simulators=3"],
        "simulation.environments: expected a multiple of placement.simulators = 3, got 16",
    ),
    (
        "sim_embodiments",
        ["placement.simulators=1"],
        "placement.simulators: expected 0 with embodiments, whose environments stay .*, got 1",
    ),
    (
        "sim_sac",
        [WORLD, "placement.simulators=2"],
        "placement.simulators: expected 0 with world.run, whose environments stay .*, got 2",
    ),
    (
        "sim_ppo",
        ["env=maniskill:PickCube-v1", "placement.simulators=2"],
        "placement.simulators: expected 0 with env 'maniskill:PickCube-v1', which steps all .* 2$",
    ),
    # learned worlds
    ("sim_sac", [WORLD, PENDULUM], "world.run: expected no env: a learned world .*Leave env out"),
    (
        "sim_sac",
        ["world.share=0.5", "station.observe_cameras=[front]"],
        "world.share: expected no station.observe_cameras: .*observe_cameras out, or world.share",
    ),
    (
        "sim_embodiments",
        [WORLD],
        "world.run: expected no embodiments: ",
    ),
    (
        "sim_ppo",
        ["world.share=0.5"],
        "world.share: expected 0 for ppo with policy.kind gaussian, which has .*, got 0.5. sac",
    ),
    (
        "sim_dsrl",
        ["world.share=0.25"],
        "world.share: expected 0 for dsrl with policy.kind latent_noise, .*, got 0.25",
    ),
    (
        "sim_rlpd_world",
        ["placement.replay_shards=2"],
        "world.share: expected placement.replay_shards 0, got 2. A learned .*Leave placement.repl",
    ),
    (
        "sim_rlpd_world",
        ["simulation.shaping=0.5"],
        "world.share: expected simulation.shaping 0, got 0.5. A learned .*Leave simulation.shaping",
    ),
    (
        "demo",
        [WORLD],
        "world.run: expected simulation.environments of at least 1 and .*0, got 0 and 0. Branches",
    ),
    (
        "sim_ppo",
        [WORLD, "placement.workers=2"],
        "world.run: expected simulation.environments of .* got 16 and 2. Branches",
    ),
    # environments
    (
        "sim_sac",
        ["env=text:arithmetic"],
        "policy.kind: expected language with env text:TASK, .* got tanh_gaussian with env 'text:ar",
    ),
    (
        "sim_sac",
        ["env=gim:Pendulum-v1"],
        r"env: expected gym:, text:, or one of isaaclab, maniskill and a colon, got 'gim:Pendulum-"
        r"v1' \(did you mean 'gym'\?\)",
    ),
    (
        "sim_sac",
        ["env=maniskil:a"],
        r"got 'maniskil:a' \(did you mean 'maniskill'\?\)",
    ),
    (
        "sim_sac",
        [PENDULUM, "simulation.dynamics.gain=0.5"],
        "simulation.dynamics: expected none with env 'gym:Pendulum-v1', which has a reward",
    ),
    (
        "sim_grpo",
        ["env=maniskill:PickCube-v1", "simulation.shaping=0"],
        r"env: 'maniskill:PickCube-v1' steps all .* parts of episodes \(ppo, async_ppo\) .*got grpo",
    ),
    (
        "sim_sac",
        [PENDULUM, "simulation.environments=0"],
        "env: 'gym:Pendulum-v1' is not a station: expected simulation.environments of at least 1",
    ),
    (
        "sim_rlpd",
        [PENDULUM, "simulation.environments=1", "algorithm={name: iql}"],
        "env: 'gym:Pendulum-v1' has no script, and iql begins with demonstrations",
    ),
    # conversations
    (
        "text_arithmetic",
        ["simulation.environments=12"],
        "simulation.environments: expected a multiple of algorithm.group = 8, got 12$",
    ),
    (
        "text_arithmetic",
        ["placement.workers=1"],
        "placement.workers: expected 0 with env 'text:arithmetic', got 1",
    ),
    (
        "text_arithmetic",
        ["text.max_new_tokens=40"],
        "text.max_tokens: expected more than text.max_new_tokens = 40, got 40$",
    ),
    ("text_arithmetic", ["env=text:arithmetik"], r"\(did you mean 'arithmetic'\?\)"),
    (
        "text_feedback",
        ["text.max_staleness=2"],
        "text.max_staleness: expected its default with env 'text:feedback'",
    ),
    (
        "text_feedback",
        ["text.options={a: 1}"],
        "text.options: expected its default with env 'text:feedback'",
    ),
    (
        "text_feedback",
        ["text.engine=openai", "text.address='http://127.0.0.1:1/v1'"],
        "text.engine: expected its default with env 'text:feedback'",
    ),
    (
        "text_feedback",
        ["algorithm.baseline=true"],
        "algorithm.baseline: expected its default with env 'text:feedback'",
    ),
    (
        "text_feedback",
        ["algorithm={name: grpo}"],
        "algorithm.name: expected reinforce with env 'text:feedback', .* is trained, got grpo",
    ),
    (
        "text_feedback",
        ["text.warm_start.steps=2"],
        "text.feedback.examples: expected a file for text.warm_start, got none",
    ),
    # embodiments
    (
        "sim_embodiments",
        [PENDULUM, "algorithm={name: sac}"],
        "embodiments: expected two or more, and no env, got one, two and env gym:Pendulum-v1. A",
    ),
    (
        "sim_embodiments",
        ["~embodiments.two"],
        "embodiments: expected two or more, and no env, got one. A recipe of one robot",
    ),
    (
        "sim_embodiments",
        ["algorithm={name: iql}"],
        "embodiments: expected algorithm.name crossq, dagger, rlpd, sac, sft and policy.kind .* "
        "got iql and tanh_gaussian",
    ),
    (
        "sim_embodiments",
        ["policy={kind: flow}"],
        "embodiments: expected algorithm.name crossq, .* got sft and flow",
    ),
    *(
        (
            "sim_embodiments",
            [f"placement.{key}=2"],
            f"embodiments: expected placement.{key} 0, got 2. Training on several",
        )
        for key in ("learners", "workers", "replay_shards")
    ),
]


@pytest.mark.parametrize("name, overrides, message", REFUSED)
def test_parts_that_do_not_go_together_are_refused_with_both(name, overrides, message):
    with pytest.raises(RecipeError) as error:
        check_source(load_recipe(name, overrides))
    assert re.search(message, str(error.value)), str(error.value)
    if re.match(r"[a-z_.]+: ", message):
        assert str(error.value).startswith(message.partition(":")[0])


@pytest.mark.parametrize(
    "name, overrides",
    [
        ("sim_sft", ["policy={kind: flow}"]),
        ("sim_ppo", ["placement.workers=4", "placement.mode=disaggregated"]),
        ("sim_ppo", ["placement.simulators=8"]),
        ("sim_ppo", ["placement=auto"]),
        ("sim_grpo", ["placement.workers=2"]),
        ("sim_sft", ["collect.recordings=[a]", "simulation.shaping=0.5"]),
        ("sim_rlpd", ["collect.recordings=[a]"]),
        ("sim_rlpd", ["simulation.shaping=0.5"]),
        ("sim_rlpd", ["collect.recordings=[a]", "replay.use_executed=true"]),
        ("sim_rlpd", ["placement.replay_shards=2"]),
        ("sim_dagger", ["placement.replay_shards=2"]),
        ("sim_rlpd", ["algorithm={name: iql}", "collect.episodes=0", "collect.recordings=[a]"]),
        ("demo", ["release.staged=true"]),
        ("demo", ["placement.ingest=2"]),
        ("demo", ["replay.use_executed=true"]),
        ("demo", [*ASYNC, "placement.ingest=1"]),
        ("sim_sac", [PENDULUM]),
        ("sim_ppo", ["env=maniskill:PickCube-v1"]),
        ("sim_ppo", ["env=gym:A", "policy.horizon=4", "policy.n_action_steps=2"]),
        ("sim_grpo", ["env=gym:A", "simulation.shaping=0"]),
        ("sim_sac", ["env=maniskill:A", "policy.horizon=4", "policy.n_action_steps=2"]),
        ("sim_sac", [WORLD]),
        ("sim_sac", ["world.share=0.5"]),
        ("sim_ppo", [WORLD]),
        ("sim_sac", [WORLD, "simulation.shaping=0.5"]),
        ("demo", ["world.share=0.5"]),
        ("sim_ppo", ["policy={kind: openvla, token_log_probs: true}"]),
        ("demo", ["algorithm={name: async_ppo}", "policy={kind: openvla}"]),
        ("text_arithmetic", []),
        ("text_arithmetic", ["text.max_new_tokens=39"]),
        ("text_arithmetic", ["text.max_staleness=2"]),
        ("text_feedback", []),
        ("text_feedback", ["text.warm_start.steps=2", "text.feedback.examples=a.jsonl"]),
        ("sim_embodiments", ["algorithm={name: sac}"]),
        ("demo", ["algorithm={name: dagger, gated: true}", "policy.horizon=2"]),
    ],
)
def test_parts_that_go_together_pass(name, overrides):
    check_source(load_recipe(name, overrides))


def test_conversations_are_rollouts(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rlinf_core.algorithms.sac import Config as Base\n\n\n"
        "class Config(Base):\n    policies = ('language',)\n"
    )
    recipe = load_recipe("text_arithmetic", [f"algorithm={{name: {path}}}"])
    with pytest.raises(
        RecipeError,
        match="^algorithm.name: expected one that learns from rollouts with env 'text:arithmetic'",
    ) as error:
        check_source(recipe)
    assert str(error.value).endswith(f"got {recipe.algorithm.name}")


ENGINE = ["policy={kind: qwen_vl, engine: vllm}"]


@pytest.mark.parametrize(
    "name, overrides, got",
    [
        ("demo", ["algorithm={name: async_ppo}"], "stations with 0 workers"),
        ("sim_ppo", ["placement.workers=2"], "simulators with 2 workers"),
        ("sim_ppo", ["placement=auto"], "simulators with 0 workers"),
    ],
)
def test_an_engine_samples_for_simulators_of_the_trainers_process_alone(name, overrides, got):
    recipe = load_recipe(name, [*overrides, *ENGINE])
    with pytest.raises(RecipeError, match=f"^policy.engine: expected rollouts in .*, got {got}$"):
        check_source(recipe)


@pytest.mark.parametrize(
    "name, overrides, reason",
    [
        ("sim_ppo", [], ""),
        ("sim_rlpd", [], ""),
        ("sim_embodiments", [], "expected false with embodiments, which runs in the trainer's"),
        ("sim_sac", [WORLD], "expected false with world.run, which runs in the trainer's"),
        ("sim_rlpd_world", [], "expected false with world.share, which runs in the trainer's"),
        ("sim_sft", [], "expected false for sft on simulators, where alternating rollouts"),
        ("demo", [], "expected false for rlpd on stations, where alternating rollouts"),
        ("text_arithmetic", [], "expected false for grpo on conversations, where"),
    ],
)
def test_why_a_run_cannot_choose_its_layout(name, overrides, reason):
    answer = fixed_layout_reason(load_recipe(name, overrides))
    assert answer.startswith(reason) and bool(answer) == bool(reason)


@pytest.mark.parametrize(
    "name, overrides, chooses",
    [
        ("sim_ppo", [], True),
        ("sim_sac", [PENDULUM], True),
        ("sim_ppo", ["placement.workers=2"], False),
        ("sim_ppo", ["placement.auto=false"], False),
        ("sim_ppo", ["env=maniskill:PickCube-v1"], False),
        ("sim_ppo", ENGINE, False),
        ("sim_sft", [], False),
        ("demo", [], False),
    ],
)
def test_a_run_without_a_placement_may_choose_if_it_can_be_divided(
    monkeypatch, name, overrides, chooses
):
    monkeypatch.setattr(sources, "find_spec", lambda name: name if name == "ray" else None)
    assert may_choose(load_recipe(name, overrides)) is chooses
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    assert not may_choose(load_recipe(name, overrides)), "without Ray"
