"""Each key of RLinf's YAMLs that has a counterpart, and those that are named because they have
none.
"""

import copy

import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes.from_rlinf import convert, text

BASE = {
    "defaults": ["env/maniskill_pick_cube@env.train", "model/mlp_policy@actor.model"],
    "algorithm": {"adv_type": "gae", "loss_type": "actor_critic"},
    "env": {"train": {}},
    "actor": {"model": {}},
}


def put(document, changes):
    """Return a copy with some dotted keys changed; None removes."""
    document = copy.deepcopy(document)
    for key, value in changes.items():
        *above, last = key.split(".")
        inner = document
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
        if value is None:
            del inner[last]
    return document


def get(document, key):
    for part in key.split("."):
        if not isinstance(document, dict) or part not in document:
            return None
        document = document[part]
    return document


@pytest.fixture
def converted(tmp_path):
    def run(changes, station=None, base=BASE):
        path = tmp_path / "theirs.yaml"
        path.write_text(yaml.safe_dump(put(base, changes)))
        return convert(path, station)

    return run


def algorithm(advantage, loss=""):
    return {"algorithm.adv_type": advantage, "algorithm.loss_type": loss or None}


SAC, GRPO = algorithm("embodied_sac", "embodied_sac"), algorithm("grpo", "grpo")
FLOW = {"actor.model.model_type": "flow_policy"}
OFT = {"actor.model.model_type": "openvla_oft"}


def test_the_least_has_a_name_a_robot_and_its_environments(converted):
    recipe, unmapped = converted({})
    assert recipe == {
        "name": "theirs",
        "algorithm": {"name": "ppo"},
        "station": {
            "robot": "panda_maniskill",
            "options": {"task": "PickCube-v1"},
            "task": "to_goal",
        },
        "policy": {"kind": "gaussian"},
        "simulation": {"environments": 8},
    }
    assert unmapped == ["actor.model", "env.train"]


@pytest.mark.parametrize(
    "changes, name",
    [
        (algorithm("gae", "actor_critic"), "ppo"),
        (algorithm("embodied_gae", "actor_critic"), "ppo"),
        (algorithm("gae", "decoupled_actor_critic"), "async_ppo"),
        (GRPO, "grpo"),
        (algorithm("embodied_grpo", "anything"), "grpo"),
        (algorithm("grpo_dynamic"), "dapo"),
        (algorithm("reinpp"), "reinforce"),
        (algorithm("reinpp_baseline"), "reinforce"),
        (SAC, "sac"),
        (SAC | {"actor.model.q_head_type": "crossq"}, "crossq"),
        (SAC | {"actor.model.q_head_type": "default"}, "sac"),
        (SAC | {"algorithm.demo_buffer": {"path": "/d"}}, "rlpd"),
        (SAC | FLOW, "sac_flow"),
        (algorithm("embodied_dagger"), "dagger"),
        (algorithm("gae", "embodied_dagger"), "dagger"),
        ({"algorithm.adv_type": None, "algorithm.loss_type": "offline_iql"}, "iql"),
    ],
)
def test_algorithms(converted, changes, name):
    recipe, unmapped = converted(changes)
    assert recipe["algorithm"]["name"] == name
    kind = "gaussian" if name in ("ppo", "async_ppo", "grpo", "dapo", "reinforce") else None
    kind = kind or ("flow" if name == "sac_flow" else "tanh_gaussian")
    assert recipe["policy"] == {"kind": kind}
    left = [key for key in unmapped if key.startswith("algorithm") or "q_head" in key]
    assert left == (["actor.model.q_head_type"] if "default" in changes.values() else [])


def test_an_unknown_algorithm_is_refused_with_the_known_ones(converted, tmp_path):
    with pytest.raises(RecipeError) as error:
        converted(algorithm("gea", "actor_critic"))
    assert str(error.value) == (
        f"{tmp_path}/theirs.yaml: algorithm.adv_type and loss_type: expected one of , "
        "embodied_dagger, embodied_gae, embodied_grpo, embodied_sac, gae, grpo, grpo_dynamic, "
        "reinpp, reinpp_baseline; got 'gea' and 'actor_critic'. docs/explain/algorithms.md has "
        "our algorithms"
    )


@pytest.mark.parametrize(
    "changes, robot, options, task",
    [
        ({}, "panda_maniskill", "PickCube-v1", "to_goal"),
        (
            {"defaults": ["env/maniskill_push_cube_v2@env.train"]},
            "panda_maniskill",
            "PushCube-v1",
            "push",
        ),
        (
            {"defaults": ["hydra", "env/maniskill_pull_cube@env.train"]},
            "panda_maniskill",
            "PullCube-v1",
            "pull",
        ),
        (
            {"defaults": [{"env/eval": "libero"}, {"env/train": "maniskill_place_sphere"}]},
            "panda_maniskill",
            "PlaceSphere-v1",
            "stack",
        ),
        (
            {"defaults": [{"model": "x"}, {"a/env": "frankasim_pickcube"}]},
            "panda_gym_hil",
            "",
            "to_goal",
        ),
        (
            {"defaults": ["env/libero@env.eval"], "env.train.init_params": {"id": "PushCube-v1"}},
            "panda_maniskill",
            "PushCube-v1",
            "push",
        ),
        (
            {"defaults": None, "env.train.env_type": "genesis_cubepick"},
            "panda_genesis",
            "",
            "to_goal",
        ),
        (
            {
                "defaults": None,
                "env.train.env_type": "libero",
                "env.train.init_params": {"id": "PickCube-v1"},
            },
            "panda_maniskill",
            "PickCube-v1",
            "to_goal",
        ),
    ],
)
def test_environments(converted, changes, robot, options, task):
    recipe, unmapped = converted(changes | {"actor.model.model_type": "mlp_policy"})
    expected = {"robot": robot, "task": task} | ({"options": {"task": options}} if options else {})
    assert recipe["station"] == expected
    assert not {"env.train.env_type", "env.train.init_params.id"} & set(unmapped)


def test_an_unknown_environment_is_refused_unless_a_station_is_given(converted, tmp_path):
    changes = {"defaults": [{"env/train": "maniskill_pick_cub"}], **OFT}
    with pytest.raises(RecipeError) as error:
        converted(changes)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/theirs.yaml: env.train: expected an environment with a")
    assert "counterpart: maniskill_pick_cube, maniskill_push_cube, " in message
    assert "got 'maniskill_pick_cub' (did you mean 'maniskill_pick_cube'?)" in message
    station = {"robot": "mine", "task": "t"}
    recipe, _ = converted(changes, station)
    assert recipe["station"] == station and recipe["simulation"] == {"environments": 8}
    real, _ = converted({"defaults": [{"env/train": "realworld_x"}], **OFT}, station)
    assert "simulation" not in real, "stations are its source"
    with pytest.raises(RecipeError, match="got ''"):
        converted({"defaults": None, **OFT})


@pytest.mark.parametrize(
    "model, policy",
    [
        ({"model_type": "mlp_policy"}, {"kind": "gaussian"}),
        ({"model_name": "mlp_policy"}, {"kind": "gaussian"}),
        ({"model_type": "flow_policy", "model_path": "/w"}, {"kind": "flow"}),
        ({"model_type": "openvla"}, {"kind": "openvla", "decoding": "autoregressive"}),
        (
            {"model_type": "openvla_oft", "model_path": "/w"},
            {"kind": "openvla", "decoding": "parallel", "checkpoint": "/w"},
        ),
        ({"model_type": "openpi", "model_path": "/w"}, {"kind": "pi0", "checkpoint": "/w"}),
        (
            {"model_type": "openpi", "model_path": "", "num_action_chunks": 5},
            {"kind": "pi0", "horizon": 5},
        ),
        ({"model_name": "openpi", "model_type": "${x}"}, {"kind": "pi0"}),
    ],
)
def test_policies(converted, model, policy):
    recipe, unmapped = converted({"actor.model": model} | GRPO)
    assert recipe["policy"] == policy
    assert [key for key in unmapped if key.startswith("actor")] == []


def test_a_checkpoint_may_be_named_beside_the_model(converted):
    recipe, unmapped = converted(OFT | {"actor.checkpoint_load_path": "/c"})
    assert recipe["policy"]["checkpoint"] == "/c" and "actor.checkpoint_load_path" not in unmapped
    recipe, _ = converted(
        OFT | {"actor.checkpoint_load_path": "/c", "actor.model.model_path": "/m"}
    )
    assert recipe["policy"]["checkpoint"] == "/m"


def test_an_unknown_policy_is_refused_with_the_nearest(converted, tmp_path):
    with pytest.raises(RecipeError) as error:
        converted({"actor.model.model_type": "openpy"})
    assert str(error.value) == (
        f"{tmp_path}/theirs.yaml: actor.model.model_type: expected one of mlp_policy, cnn_policy, "
        "flow_policy, openvla, openvla_oft, openpi; got 'openpy' (did you mean 'openpi'?). "
        "docs/howto/vla.md has the policies"
    )
    with pytest.raises(RecipeError, match="got ''"):
        converted({"defaults": ["env/maniskill_pick_cube@env.train", "model/mlp@actor"]})


@pytest.mark.parametrize(
    "number, cameras", [(None, ["front"]), (1, ["front"]), (2, ["front", "wrist"])]
)
def test_a_network_of_pixels_sees_as_many_cameras(converted, number, cameras):
    changes = {"actor.model": {"model_type": "cnn_policy", "image_num": number}}
    recipe, unmapped = converted(changes)
    assert recipe["station"]["observe_cameras"] == cameras
    assert "actor.model.image_num" not in unmapped and recipe["policy"] == {"kind": "gaussian"}
    recipe, unmapped = converted({"actor.model": {"model_type": "mlp_policy", "image_num": 2}})
    assert "observe_cameras" not in recipe["station"] and "actor.model.image_num" in unmapped


KEYS = [
    ({}, "actor.seed", 7, "seed", 7),
    ({}, "actor.seed", 0, "seed", 0),
    ({}, "actor.seed", -1, "seed", -1),
    ({}, "algorithm.gamma", 0.9, "algorithm.discount", 0.9),
    (SAC, "algorithm.gamma", 0, "algorithm.discount", 0.0),
    ({}, "actor.optim.lr", 1e-3, "algorithm.learning_rate", 1e-3),
    (SAC, "actor.optim.clip_grad", 2, "algorithm.clip_gradient", 2.0),
    ({}, "env.train.total_num_envs", 5, "simulation.environments", 5),
    ({}, "algorithm.update_epoch", 3, "algorithm.epochs", 3),
    ({}, "algorithm.clip_ratio_low", 0.1, "algorithm.clip_low", 0.1),
    (GRPO, "algorithm.clip_ratio_high", 0.3, "algorithm.clip_high", 0.3),
    ({}, "algorithm.clip_ratio_c", 3.0, "algorithm.dual_clip", 3.0),
    ({}, "algorithm.entropy_bonus", 0.0, "algorithm.entropy", 0.0),
    ({}, "algorithm.logprob_type", "action_level", "algorithm.level", "action"),
    (GRPO, "algorithm.logprob_type", "chunk_level", "algorithm.level", "chunk"),
    ({}, "algorithm.gae_lambda", 0.8, "algorithm.gae_lambda", 0.8),
    ({}, "algorithm.value_clip", 0.2, "algorithm.value_clip", 0.2),
    ({}, "algorithm.huber_delta", 10, "algorithm.huber", 10.0),
    ({}, "algorithm.normalize_advantages", False, "algorithm.normalise", False),
    (GRPO, "algorithm.group_size", 4, "algorithm.group", 4),
    (GRPO, "algorithm.kl_beta", 0.01, "algorithm.reference_kl", 0.01),
    (SAC, "algorithm.tau", 0.01, "algorithm.target_rate", 0.01),
    (SAC, "algorithm.initial_alpha", 0.1, "algorithm.initial_temperature", 0.1),
    (SAC, "algorithm.target_entropy", -3, "algorithm.target_entropy", -3.0),
    (SAC, "algorithm.backup_entropy", True, "algorithm.entropy_backup", True),
    (SAC, "algorithm.critic_subsample_size", 2, "algorithm.target_critics", 2),
    (SAC, "algorithm.critic_actor_ratio", 4, "algorithm.actor_every", 4),
    (SAC, "actor.model.num_q_heads", 10, "algorithm.critics", 10),
    (SAC, "actor.global_batch_size", 64, "algorithm.batch_size", 64),
    (GRPO | OFT, "actor.model.num_action_chunks", 8, "policy.horizon", 8),
    (GRPO | OFT, "actor.model.unnorm_key", "bridge", "policy.statistics", "bridge"),
    (GRPO | OFT, "algorithm.logprob_type", "token_level", "policy.token_log_probs", True),
    (GRPO | OFT, "algorithm.logprob_type", "chunk_level", "algorithm.level", "chunk"),
]


@pytest.mark.parametrize("changes, key, value, ours, expected", KEYS)
def test_a_key_with_a_counterpart_keeps_its_value(converted, changes, key, value, ours, expected):
    recipe, unmapped = converted(changes | {key: value})
    actual = get(recipe, ours)
    assert actual == expected and type(actual) is type(expected) and key not in unmapped


@pytest.mark.parametrize(
    "changes, key, value, ours",
    [
        ({}, "actor.seed", "${seed}", "seed"),
        ({}, "actor.seed", "seven", "seed"),
        ({}, "actor.seed", True, "seed"),
        ({}, "algorithm.gamma", True, "algorithm.discount"),
        ({}, "actor.optim.lr", 0, "algorithm.learning_rate"),
        ({}, "actor.optim.lr", -1.0, "algorithm.learning_rate"),
        ({}, "algorithm.update_epoch", 0, "algorithm.epochs"),
        ({}, "algorithm.update_epoch", "3", "algorithm.epochs"),
        ({}, "algorithm.logprob_type", "token_level", "algorithm.level"),
        ({}, "algorithm.normalize_advantages", 1, "algorithm.normalise"),
        ({}, "algorithm.group_size", 4, "algorithm.group"),
        ({}, "algorithm.tau", 0.1, "algorithm.target_rate"),
        ({}, "actor.model.num_action_chunks", 4, "policy.horizon"),
        (GRPO, "algorithm.gamma", 0.9, "algorithm.discount"),
        (GRPO, "algorithm.gae_lambda", 0.9, "algorithm.gae_lambda"),
        (SAC, "algorithm.update_epoch", 3, "algorithm.epochs"),
        (
            SAC | {"actor.model.q_head_type": "crossq"},
            "algorithm.tau",
            0.1,
            "algorithm.target_rate",
        ),
        (GRPO | OFT, "actor.model.unnorm_key", "", "policy.statistics"),
        (GRPO | OFT, "algorithm.logprob_type", "token", "policy.token_log_probs"),
    ],
)
def test_a_value_without_a_meaning_here_is_left_out_and_named(converted, changes, key, value, ours):
    recipe, unmapped = converted(changes | {key: value})
    assert get(recipe, ours) is None
    assert (key in unmapped) == (value != "${seed}")


def test_keys_without_a_counterpart_are_named_but_for_those_of_their_processes(converted):
    recipe, unmapped = converted(
        {
            "hydra": {"run": {"dir": "x"}},
            "runner": {"task_type": "embodied", "logger": {"path": "y"}, "max_steps": -1},
            "env.enable_offload": True,
            "env.enable_offload_too": 1,
            "actor.fsdp_config": {"a": 1},
            "actor.micro_batch_size": 3,
            "actor.training_backend": "fsdp",
            "actor.model.precision": "${p}",
            "actor.model.extra": {},
            "rollout": {"backend": "hf", "backends": 2, "length": 3},
            "reward": {"scale": 2.0, "kinds": ["a"]},
        }
    )
    assert unmapped == [
        "actor.model.extra",
        "env.train",
        "reward.kinds",
        "reward.scale",
        "rollout.backends",
        "rollout.length",
        "runner.max_steps",
    ]


@pytest.mark.parametrize(
    "changes, simulation, ours",
    [
        ({"runner.max_epochs": 10}, {"environments": 4, "env_steps": 10 * 4 * 50}, {"chunks": 50}),
        (
            {"runner.max_epochs": 10, "algorithm.rollout_epoch": 3},
            {"environments": 4, "env_steps": 10 * 4 * 50 * 3},
            {"chunks": 150},
        ),
        (
            {"runner.val_check_interval": 2},
            {"environments": 4, "evaluate_every": 2 * 4 * 50},
            {"chunks": 50},
        ),
        (
            {"actor.global_batch_size": 40},
            {"environments": 4},
            {"chunks": 50, "minibatches": 4 * 50 // 40},
        ),
        (
            {"actor.global_batch_size": 400},
            {"environments": 4},
            {"chunks": 50, "minibatches": 1},
        ),
        (
            {"env.eval.total_num_envs": 6},
            {"environments": 4, "evaluate_episodes": 6},
            {"chunks": 50},
        ),
        (
            {"env.eval.total_num_envs": 6, "algorithm.eval_rollout_epoch": 2},
            {"environments": 4, "evaluate_episodes": 12},
            {"chunks": 50},
        ),
        (
            {"actor.model.num_action_chunks": 5, "actor.global_batch_size": 20},
            {"environments": 4},
            {"chunks": 10, "minibatches": 2},
        ),
        (
            {"actor.model.num_action_chunks": 80},
            {"environments": 4},
            {"chunks": 1},
        ),
    ],
)
def test_epochs_become_time_steps(converted, changes, simulation, ours):
    sizes = {"env.train": {"total_num_envs": 4, "max_steps_per_rollout_epoch": 50}}
    recipe, unmapped = converted(sizes | changes)
    assert recipe["simulation"] == simulation
    assert recipe["algorithm"] == {"name": "ppo"} | ours
    named = {"actor.model.num_action_chunks", "env.train.max_steps_per_rollout_epoch"}
    assert not {key for key in changes if key not in named} & set(unmapped)


def test_an_algorithm_with_a_replay_has_no_chunks_and_without_sizes_no_number_changes(converted):
    sizes = {
        "env.train": {"total_num_envs": 4, "max_steps_per_rollout_epoch": 50},
        "env.eval.total_num_envs": 3,
    }
    recipe, _ = converted(sizes | SAC | {"actor.global_batch_size": 32})
    assert recipe["algorithm"] == {"name": "sac", "batch_size": 32}
    assert recipe["simulation"] == {"environments": 4, "evaluate_episodes": 3}
    for missing in ("total_num_envs", "max_steps_per_rollout_epoch"):
        train = {key: value for key, value in sizes["env.train"].items() if key != missing}
        recipe, unmapped = converted({"env.train": train, "runner.max_epochs": 10})
        assert recipe["algorithm"] == {"name": "ppo"} and "runner.max_epochs" in unmapped


@pytest.mark.parametrize(
    "places, stages, placement",
    [
        ({"actor": "0-0", "env": "0-0", "rollout": "0-0"}, None, None),
        ({"actor,env,rollout": "all"}, 2, None),
        ({"actor": 0, "rollout": "0"}, None, None),
        ({"actor": "0", "rollout, env": "1"}, None, "disaggregated"),
        ({"env, rollout": 0, "actor": 1}, 1, "disaggregated"),
        ({"env": 0, "rollout": 1, "actor": 2}, 2, "pipelined"),
        ({"actor": 0}, None, "disaggregated"),
    ],
)
def test_parts_on_the_same_devices_are_collocated(converted, places, stages, placement):
    recipe, unmapped = converted(
        {
            "cluster": {"num_nodes": 1, "component_placement": places},
            "rollout.pipeline_stage_num": stages,
        }
    )
    assert recipe.get("placement") == ({"mode": placement, "workers": 1} if placement else None)
    assert [key for key in unmapped if key.startswith(("cluster", "rollout"))] == [
        "cluster.num_nodes",
        *(["rollout"] if stages is None else []),
    ]


def test_a_placement_in_other_words_is_named(converted):
    recipe, unmapped = converted(
        {"cluster.component_placement": "all", "rollout.pipeline_stage_num": 2}
    )
    assert "placement" not in recipe
    assert {"cluster.component_placement", "rollout.pipeline_stage_num"} <= set(unmapped)


def test_files_of_defaults_lie_below_the_file(converted, tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "env/maniskill_pick_cube.yaml").write_text(
        "total_num_envs: 7\ninit_params: {id: x, size: 3}\nmax_steps_per_rollout_epoch: 10\n"
    )
    (tmp_path / "model/mlp_policy.yaml").write_text("model_type: openpi\nprecision: bf16\n")
    recipe, unmapped = converted(
        {"env.train.init_params": {"size": 4}, "env.train.max_steps_per_rollout_epoch": 20}
    )
    assert recipe["simulation"]["environments"] == 7 and recipe["policy"]["kind"] == "pi0"
    assert recipe["algorithm"]["chunks"] == 20, "the file is over those that it names"
    assert "env.train.init_params.size" in unmapped and "actor.model.precision" in unmapped
    (tmp_path / "env/maniskill_pick_cube.yaml").write_text("[1]")
    with pytest.raises(
        RecipeError, match="maniskill_pick_cube.yaml: expected a YAML of RLinf, got l"
    ):
        converted({})


@pytest.mark.parametrize(
    "content, got",
    [
        ("algorithm: {}", "with algorithm and env, got algorithm. Recipes of rlinf need no import"),
        ("env: {}\nx: 1", "with algorithm and env, got env, x. Recipes"),
        ("{}", "with algorithm and env, got nothing. Recipes"),
        ("[1]", "got list"),
        ("", "got NoneType"),
        ("a: [", "got: while parsing"),
    ],
)
def test_another_file_is_refused(tmp_path, content, got):
    path = tmp_path / "theirs.yaml"
    path.write_text(content)
    with pytest.raises(RecipeError) as error:
        convert(path)
    assert str(error.value).startswith(f"{path}: expected a YAML of RLinf")
    assert got in str(error.value)


def test_the_text_is_the_recipe_with_what_is_left_out_as_comments(tmp_path):
    recipe = {"name": "b", "algorithm": {"name": "ppo"}}
    assert text(recipe, ["a.b", "c"], tmp_path / "theirs.yaml") == (
        "# yaml-language-server: $schema=../docs/recipe.schema.json\n"
        "# From RLinf's theirs.yaml, by rlinf import rlinf.\n"
        "# These keys of the source have no counterpart and are left out:\n"
        "#   a.b\n"
        "#   c\n"
        "name: b\nalgorithm:\n  name: ppo\n"
    )
    assert "no counterpart" not in text(recipe, [], tmp_path)
