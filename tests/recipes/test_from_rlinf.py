"""Recipes from YAMLs with the keys of RLinf's examples (examples/embodiment/config)."""

import pytest
import yaml

from rlinf_core.cli.main import main
from rlinf_core.recipes import load_recipe

PPO = """
defaults:
  - env/maniskill_pick_cube@env.train
  - env/maniskill_pick_cube@env.eval
  - model/mlp_policy@actor.model
cluster:
  num_nodes: 1
  component_placement: {actor: 0-0, env: 0-0, rollout: 0-0}
runner: {task_type: embodied, max_epochs: 1000, val_check_interval: 50, save_interval: -1}
algorithm:
  update_epoch: 8
  group_size: 1
  rollout_epoch: 1
  logprob_type: action_level
  adv_type: gae
  loss_type: actor_critic
  clip_ratio_high: 0.25
  clip_ratio_low: 0.15
  value_clip: 1.0
  huber_delta: 10.0
  gamma: 0.8
  gae_lambda: 0.9
env:
  train: {total_num_envs: 1024, max_episode_steps: 50, max_steps_per_rollout_epoch: 50}
  eval: {total_num_envs: 32}
rollout: {pipeline_stage_num: 1, model: {precision: "${actor.model.precision}"}}
actor:
  seed: 1234
  global_batch_size: 6400
  model: {model_path: "", model_type: mlp_policy}
  optim: {lr: 3.0e-4, value_lr: 1.0e-3, clip_grad: 0.5}
"""
SAC = """
defaults:
  - env/frankasim_pickcube_vision@env.train
  - model/cnn_policy@actor.model
cluster: {component_placement: {"env,rollout": 0, actor: 1}}
runner: {max_epochs: 15000}
algorithm:
  adv_type: embodied_sac
  loss_type: embodied_sac
  backup_entropy: false
  gamma: 0.96
  tau: 0.005
  initial_alpha: 0.01
  target_entropy: -2
  critic_actor_ratio: 4
  update_epoch: 4
env: {train: {total_num_envs: 1}}
actor:
  global_batch_size: 128
  model: {num_q_heads: 10, image_num: 2}
  optim: {lr: 3.0e-4}
"""
OFT = """
defaults:
  - env/train: libero_spatial
algorithm: {adv_type: grpo, loss_type: grpo, group_size: 8, clip_ratio_high: 0.28, gamma: 0.99, logprob_type: token_level}
env: {enable_offload: false}
actor:
  checkpoint_load_path: /models/oft
  model: {model_name: openvla_oft, num_action_chunks: 8, unnorm_key: libero_spatial_no_noops}
  optim: {lr: 2.0e-5}
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Return a recipe of a YAML, and its text."""
    monkeypatch.chdir(tmp_path)

    def run(text, *options):
        (tmp_path / "theirs.yaml").write_text(text)
        assert main(["import", "rlinf", "theirs.yaml", "--out", "mine.yaml", *options]) == 0
        return load_recipe(str(tmp_path / "mine.yaml")), (tmp_path / "mine.yaml").read_text()

    return run


def test_ppo_keeps_each_number_that_has_a_counterpart(imported, capsys):
    recipe, text = imported(PPO)
    algorithm, simulation = recipe.algorithm, recipe.simulation
    assert (algorithm.name, recipe.station.robot, recipe.seed) == ("ppo", "panda_maniskill", 1234)
    assert recipe.station.options == {"task": "PickCube-v1"}
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.discount) == (0.15, 0.25, 0.8)
    assert (algorithm.gae_lambda, algorithm.epochs, algorithm.learning_rate) == (0.9, 8, 3e-4)
    assert (algorithm.chunks, algorithm.minibatches) == (50, 8), (
        "1024 x 50 steps in batches of 6400"
    )
    assert simulation.environments == 1024 and simulation.env_steps == 1000 * 1024 * 50
    assert (simulation.evaluate_every, simulation.evaluate_episodes) == (50 * 1024 * 50, 32)
    assert recipe.placement.mode == "collocated" and recipe.policy.kind == "gaussian"
    assert "#   actor.optim.value_lr" in text and "#   algorithm.gamma" not in text
    assert "keys have no counterpart" in capsys.readouterr().out


def test_sac_of_pixels_on_other_devices_is_disaggregated(imported):
    recipe, text = imported(SAC)
    assert (recipe.algorithm.name, recipe.policy.kind) == ("sac", "tanh_gaussian")
    assert recipe.station.robot == "panda_gym_hil" and recipe.placement.mode == "disaggregated"
    assert recipe.station.observe_cameras == ("front", "wrist")
    assert (recipe.algorithm.critics, recipe.algorithm.actor_every) == (10, 4)
    assert (recipe.algorithm.target_entropy, recipe.algorithm.entropy_backup) == (-2.0, False)
    assert recipe.algorithm.batch_size == 128 and "#   algorithm.update_epoch" in text


def test_crossq_has_no_target_critics(imported):
    theirs = SAC.replace("num_q_heads: 10", "num_q_heads: 10, q_head_type: crossq")
    recipe, text = imported(theirs)
    assert recipe.algorithm.name == "crossq" and "#   algorithm.tau" in text


def test_an_environment_without_a_counterpart_is_named_and_may_be_chosen(
    imported, tmp_path, capsys
):
    assert main(["import", "rlinf", str(tmp_path / "none.yaml")]) == 2
    assert "expected a YAML of RLinf" in capsys.readouterr().err
    (tmp_path / "theirs.yaml").write_text(OFT)
    assert main(["import", "rlinf", "theirs.yaml"]) == 2
    words = capsys.readouterr().err
    assert "got 'libero_spatial'" in words and "--robot ROBOT --task TASK" in words
    recipe, _ = imported(OFT, "--robot", "panda_libero", "--task", "to_goal")
    assert (recipe.algorithm.name, recipe.algorithm.group) == ("grpo", 8)
    policy = recipe.policy
    assert (policy.kind, policy.decoding, policy.horizon) == ("openvla", "parallel", 8)
    assert (policy.checkpoint, policy.statistics) == ("/models/oft", "libero_spatial_no_noops")
    assert policy.token_log_probs, "logprob_type: token_level"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("adv_type: gae", "adv_type: gea"), "adv_type and loss_type: expected one of"),
        (("model_type: mlp_policy", "model_type: navid"), "model_type: expected one of"),
        ((PPO, "[1, 2]"), "expected a YAML of RLinf, got list"),
        ((PPO, "a: {b"), "expected a YAML of RLinf, got:"),
        ((PPO, "station: {}"), "expected a YAML of RLinf with algorithm and env, got station"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(
    tmp_path, monkeypatch, capsys, change, expected
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text(PPO.replace(*change))
    assert main(["import", "rlinf", "theirs.yaml", "--out", "mine.yaml"]) == 2
    assert expected in capsys.readouterr().err and not (tmp_path / "mine.yaml").exists()


def test_files_of_defaults_beside_it_are_read(imported, tmp_path):
    (tmp_path / "env").mkdir()
    document = {"env_type": "maniskill", "total_num_envs": 7, "max_steps_per_rollout_epoch": 10}
    (tmp_path / "env/maniskill_pick_cube.yaml").write_text(yaml.safe_dump(document))
    recipe, _ = imported(PPO.replace("total_num_envs: 1024, ", ""))
    assert recipe.simulation.environments == 7
