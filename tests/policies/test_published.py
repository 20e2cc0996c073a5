"""Folders as other programs write them: what their config.json says is done, or refused by name."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.torch import load_file, save_file

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies import policy_kind
from rlinf_core.policies.pretrained import lerobot, tiny_checkpoint
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.openvla.policy import central_crop
from tests.policies.test_pi0 import SMALL, SPEC, observation, pi0
from tests.policies.test_pi05 import SIZES

MODES = {
    "MEAN_STD": ("mean", "std"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "MIN_MAX": ("min", "max"),
}
NUMBERS = {
    "mean": 0.001,
    "std": 0.004,
    "q01": -0.01,
    "q99": 0.02,
    "q10": -0.006,
    "q90": 0.008,
    "min": -0.03,
    "max": 0.02,
}
REALSENSE = [
    (240, 424),
    (270, 480),
    (360, 640),
    (480, 640),
    (480, 848),
    (540, 960),
    (720, 1280),
    (800, 1280),
    (180, 320),
    (1080, 1920),
    (240, 320),
]


def statistics(folder):
    path = folder / "stats.json"
    path.write_text(
        json.dumps(
            {
                "observation.state": {key: [value] * 3 for key, value in NUMBERS.items()},
                "action": {key: [value] * 2 for key, value in NUMBERS.items()},
            }
        )
    )
    return str(path)


def configured(folder, without=(), **changes):
    path = folder / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in document.items() if key not in without})
    )


def policy_of(kind, folder, **config):
    part = policy_kind(kind)
    settings = {"checkpoint": str(folder), "horizon": 2, "stochastic_eval": False} | config
    return part.Policy(SPEC, part.Config(**settings)).eval()


@pytest.fixture(params=["pi0", "pi05", "smolvla"])
def published(request, tmp_path):
    """A tiny folder by LeRobot's layout."""
    folder = tiny_checkpoint.write(request.param, tmp_path / "tiny", horizon=2)
    if request.param == "pi0":
        of_lerobot(folder)
    return request.param, folder


def of_lerobot(folder):
    """A folder of transformers' pi0 as LeRobot's PI0Policy.save_pretrained writes it."""
    config = json.loads((folder / "config.json").read_text())
    document = {
        key: config[key]
        for key in ("chunk_size", "max_state_dim", "max_action_dim", "vlm_config", "dit_config")
    }
    (folder / "config.json").write_text(
        json.dumps(
            document
            | {
                "type": "pi0",
                "n_obs_steps": 1,
                "normalization_mapping": {
                    "VISUAL": "IDENTITY",
                    "STATE": "MEAN_STD",
                    "ACTION": "MEAN_STD",
                },
                "use_relative_actions": False,
            }
        )
    )
    weights = load_file(folder / "model.safetensors")
    save_file(
        {f"model.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors"
    )


# How a policy was trained
@pytest.mark.parametrize(
    "state, action",
    [
        ("MEAN_STD", "QUANTILES"),
        ("QUANTILES", "MEAN_STD"),
        ("MIN_MAX", "QUANTILE10"),
        ("IDENTITY", "MIN_MAX"),
        ("QUANTILE10", "IDENTITY"),
    ],
)
def test_the_normalisation_of_state_and_action_is_the_one_that_it_was_trained_with(
    published, state, action
):
    """LeRobot's formulas (processor/normalize_processor.py, 0.6.1): (x - mean) / std, or 2 (x -
    low) / (high - low) - 1.
    """
    kind, folder = published
    configured(
        folder, normalization_mapping={"VISUAL": "IDENTITY", "STATE": state, "ACTION": action}
    )
    policy = policy_of(kind, folder, statistics=statistics(folder))
    x = torch.tensor([[0.003, 0.011, -0.002]])
    normalised = policy.normalisation.normalize(x) / policy.state_divisor
    scale, numbers = torch.tensor(SPEC.action.scale), torch.tensor([0.3, -0.4])

    def expected(mode, values, inverse):
        if mode == "IDENTITY":
            return values
        first, second = (NUMBERS[name] for name in MODES[mode])
        if mode == "MEAN_STD":
            return values * second + first if inverse else (values - first) / second
        return (
            (values + 1) / 2 * (second - first) + first
            if inverse
            else 2 * (values - first) / (second - first) - 1
        )

    assert torch.allclose(normalised, expected(state, x, False), rtol=1e-5, atol=1e-6)
    assert torch.allclose(
        policy.units.to_actions(numbers),
        (expected(action, numbers, True) / scale).clamp(-1, 1),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "changes, error",
    [
        (
            {"normalization_mapping": {"STATE": "MEAN_STD", "ACTION": "LOG"}},
            "for ACTION in config.json, got 'LOG'",
        ),
        ({"normalization_mapping": None}, "expected a normalization_mapping with STATE and ACTION"),
        (
            {
                "normalization_mapping": {
                    "VISUAL": "MEAN_STD",
                    "STATE": "MEAN_STD",
                    "ACTION": "MEAN_STD",
                }
            },
            "VISUAL: IDENTITY",
        ),
        (
            {"use_relative_actions": True},
            "use_relative_actions of False .* relative to the state, which a station would play",
        ),
        ({"use_peft": True}, "use_peft of False .* set policy.adapters"),
        ({"n_obs_steps": 2}, "n_obs_steps of 1"),
        ({"use_proprio_memory": True}, "got 'use_proprio_memory: True', whose effect is not known"),
        (
            {"n_action_steps": 1},
            r"policy.n_action_steps: expected 1, as .* \(n_action_steps\), got the default 2",
        ),
        (
            {"tokenizer_max_length": 7},
            r"policy.tokens: expected 7, as .* \(tokenizer_max_length\), got",
        ),
        ({"tokenizer_max_length": "long"}, "expected tokenizer_max_length of 1 or more"),
    ],
)
def test_a_key_whose_value_is_not_done_is_refused_by_name(published, changes, error):
    kind, folder = published
    configured(folder, **changes)
    with pytest.raises(PolicyFileError, match=error):
        policy_of(kind, folder)


def test_keys_of_no_effect_are_read_and_steps_are_those_of_the_folder_unless_the_recipe_decides(
    published,
):
    kind, folder = published
    steps = "num_steps" if kind == "smolvla" else "num_inference_steps"
    configured(
        folder,
        device="cuda",
        optimizer_lr=1e-3,
        use_video_memory=False,
        rtc_config=None,
        **{steps: 3},
    )
    with pytest.raises(
        PolicyFileError,
        match=rf"policy.flow_steps: expected 3, as .* \({steps}\), got the default 10",
    ):
        policy_of(kind, folder)
    assert policy_of(kind, folder, flow_steps=10).config.flow_steps == 10


@pytest.mark.parametrize("resolution", [[224, 256], 224, [0, 0], ["a", "a"]])
def test_pictures_that_are_no_square_are_refused(resolution, tmp_path):
    folder = tiny_checkpoint.write("pi05", tmp_path / "tiny", horizon=2)
    configured(folder, image_resolution=resolution)
    with pytest.raises(PolicyFileError, match="expected an image_resolution of two equal numbers"):
        policy_of("pi05", folder)


def test_a_state_is_filled_up_as_lerobot_04_does_where_a_recipe_says_so(tmp_path):
    folder = tiny_checkpoint.write("pi05", tmp_path / "tiny", horizon=2)
    configured(folder, without=["use_relative_actions"])
    with pytest.raises(
        PolicyFileError, match="policy.pad_state: expected a value .* LeRobot 0.4 trains with true"
    ):
        policy_of("pi05", folder)
    lengths = []
    for pad in (False, True):
        policy = policy_of("pi05", folder, pad_state=pad)
        tokens = policy.tokenize_with_state(policy.to_batch(observation("push")))[0]
        lengths.append(len(tokens))
    assert lengths[1] - lengths[0] == 29 * len(" 128"), (
        "zeros are in bin 128, one for each of 32 numbers but the three"
    )


# Layouts
def test_lerobots_and_openpis_folders_of_pi0_act_as_transformers_does(tmp_path):
    # pictures keep their size
    folder = tiny_checkpoint.write(
        "pi0", tmp_path / "tiny", SMALL | {"max_state_dim": 4}, horizon=2
    )
    observations = observation("push", "pull the red cube")
    expected = policy_of("pi0", folder).act(observations, False).actions
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    parts = {key: config[key] for key in ("vlm_config", "dit_config")}
    of_lerobot(folder)
    assert (
        torch.equal(policy_of("pi0", folder).act(observations, False).actions, expected)
        and expected.std() > 0.01
    )
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(PolicyFileError, match="Copy that of google/paligemma-3b-pt-224 there"):
        policy_of("pi0", folder)
    (tmp_path / "tokenizer.json").rename(folder / "tokenizer.json")

    # openpi's converter
    document = {
        "action_dim": config["max_action_dim"],
        "action_horizon": 2,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(document | parts))
    words = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    tower = "paligemma_with_expert.paligemma.model.vision_tower."
    del weights["paligemma_with_expert.gemma_expert.lm_head.weight"]  # which nothing reads
    # tied: one of the two is written
    weights["paligemma_with_expert.paligemma.lm_head.weight"] = weights.pop(words)
    save_file(
        {name.replace(tower, f"{tower}vision_model."): tensor for name, tensor in weights.items()},
        folder / "model.safetensors",
    )
    assert torch.equal(policy_of("pi0", folder).act(observations, False).actions, expected)
    (folder / "config.json").write_text(json.dumps(document | parts | {"pi05": True}))
    with pytest.raises(
        PolicyFileError, match="as openpi's converter writes it, got another set: pi05"
    ):
        policy_of("pi0", folder)


def test_openpis_folder_of_pi05_acts_as_lerobots(tmp_path):
    folder = tiny_checkpoint.write("pi05", tmp_path / "tiny", SIZES, horizon=2)
    observations = observation("push")
    expected = policy_of("pi05", folder).act(observations, False).actions
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "action_dim": 4,
                "action_horizon": 2,
                "paligemma_variant": "gemma_2b",
                "action_expert_variant": "gemma_300m",
                "precision": "float32",
                "vlm_config": config["vlm_config"],
                "dit_config": config["dit_config"],
            }
        )
    )
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in weights.items()},
        folder / "model.safetensors",
    )
    assert torch.equal(policy_of("pi05", folder).act(observations, False).actions, expected)


def test_transformers_reads_the_folder_that_is_written_here(tmp_path):
    from transformers import PI0ForConditionalGeneration

    policy = policy_of("pi0", tiny_checkpoint.write("pi0", tmp_path / "tiny", horizon=2))
    theirs = PI0ForConditionalGeneration.from_pretrained(
        tmp_path / "tiny", local_files_only=True
    ).state_dict()
    mine = policy.network.state_dict()
    assert mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


# Sentences and pictures
def test_a_sentence_is_cleaned_as_the_maker_cleans_it(tmp_path):
    """openpi (models/tokenizer.py): strip, then underscores and line ends to blanks.

    LeRobot's pi0: as it is.
    """
    folder = tiny_checkpoint.write("pi0", tmp_path / "tiny", horizon=2)
    policy = policy_of("pi0", folder)
    assert policy.prompt_tokens(" push_the cube ")[1:] == policy.tokenizer.encode("push the cube\n")
    of_lerobot(folder)
    policy = policy_of("pi0", folder)
    assert policy.prompt_tokens(" push_the cube ")[1:] == policy.tokenizer.encode(
        " push_the cube \n"
    )


@pytest.mark.parametrize("shape", REALSENSE, ids=lambda shape: "x".join(map(str, reversed(shape))))
def test_pictures_of_a_realsense_are_those_of_openpi_and_of_lerobot(shape):
    """Within one grey level of openpi-client's Pillow; equal to LeRobot's interpolation, which does
    not antialias.
    """
    tools = pytest.importorskip("openpi_client.image_tools")
    picture = np.random.default_rng(0).integers(0, 255, (1, *shape, 3), np.uint8)
    mine = ((letterbox(torch.from_numpy(picture), 224) + 1.0) * 127.5).round()
    theirs = tools.resize_with_pad(picture, 224, 224)[0].astype(float)
    assert np.abs(mine[0].permute(1, 2, 0).numpy() - theirs).max() <= 1.0
    ratio = max(shape) / 224
    height, width = int(shape[0] / ratio), int(shape[1] / ratio)
    pixels = F.interpolate(
        torch.from_numpy(picture).permute(0, 3, 1, 2) / 255.0,
        (height, width),
        mode="bilinear",
        align_corners=False,
    )
    top, left = (224 - height) // 2, (224 - width) // 2
    expected = F.pad(pixels, (left, 224 - width - left, top, 224 - height - top)) * 2.0 - 1.0
    assert torch.allclose(
        letterbox(torch.from_numpy(picture), 224, antialias=False), expected, atol=1e-5
    )


def test_the_middle_of_a_picture_is_that_of_crop_and_resize():
    """tf.image.crop_and_resize: row i is read at (a + i (b - a) / (S - 1)) (S - 1), bilinearly, of
    a box from a to b.
    """
    picture, side = torch.rand(1, 3, 16, 16), 0.9**0.5
    places = ((1 - side) / 2 + np.arange(16) * side / 15) * 15
    low = np.floor(places).astype(int).clip(0, 14)
    weights = np.zeros((16, 16))
    weights[np.arange(16), low], weights[np.arange(16), low + 1] = 1 - (places - low), places - low
    expected = np.einsum("ih,chw,jw->cij", weights, picture[0].double().numpy(), weights)
    assert np.allclose(central_crop(picture, 0.9)[0].numpy(), expected, atol=1e-5)
    assert not torch.allclose(central_crop(picture, 0.9), picture, atol=0.1)


def test_openvlas_keys_of_other_preparations_are_refused_and_its_first_version_is_asked_its_own_way(
    tmp_path,
):
    folder = tiny_checkpoint.write("openvla", tmp_path / "tiny")
    configured(folder, image_resize_strategy="letterbox")
    with pytest.raises(
        PolicyFileError,
        match="image_resize_strategy of resize-naive in config.json, got 'letterbox'",
    ):
        policy_of("openvla", folder)
    configured(folder, image_resize_strategy="resize-naive", llm_backbone_id="phi-2-3b")
    with pytest.raises(
        PolicyFileError, match="expected an llm_backbone_id of llama2 or vicuna .* got 'phi-2-3b'"
    ):
        policy_of("openvla", folder)
    configured(folder, llm_backbone_id="vicuna-v15-7b")
    policy = policy_of("openvla", folder)
    words = policy.tokenizer._tokenizer.decode(
        policy.prompt_tokens("Push"), skip_special_tokens=True
    )
    assert words.startswith("A chat between a curious user")
    assert "USER: What action should the robot take to push? ASSISTANT:" in words


# What is drawn
def test_a_checkpoint_draws_its_noise_as_its_makers_do_unless_the_recipe_decides(published):
    kind, folder = published
    part = policy_kind(kind)
    assert part.Config(checkpoint=str(folder)).stochastic_eval and not part.Config().stochastic_eval
    assert not part.Config(checkpoint=str(folder), stochastic_eval=False).stochastic_eval
    policy, observations = policy_of(kind, folder, stochastic_eval=True), observation("push")
    one, two, again = (
        policy.act(observations, False, torch.Generator().manual_seed(seed)).actions
        for seed in (0, 1, 0)
    )
    assert torch.equal(one, again) and not torch.equal(one, two)


def test_flow_sde_by_pi_rls_schedule_is_rlinfs():
    """rlinf/models/embodiment/openpi/openpi_action_model.py: sigma = a sqrt(t / (1 - t)), t_1 for t
    = 1 below the line.
    """
    policy, steps, level = pi0(sde_noise=0.5, sde_schedule="pi_rl", flow_steps=4), 4, 0.5
    timesteps = torch.cat([torch.linspace(1, 1 / steps, steps), torch.zeros(1)])
    sigmas = (
        level * (timesteps / (1 - torch.where(timesteps == 1, timesteps[1], timesteps))).sqrt()
    )[:-1]
    generator = torch.Generator().manual_seed(0)
    for index in range(steps):
        x, velocity = torch.randn(2, 2, 4, 2, generator=generator).unbind()
        t, delta, sigma = timesteps[index], 1 / steps, sigmas[index]
        x0, x1 = x - velocity * t, x + velocity * (1 - t)
        expected = x0 * (1 - (t - delta)) + x1 * (t - delta - sigma**2 * delta / (2 * t))
        mean, std = policy._step({}, x, velocity, t.expand(2))
        assert torch.allclose(mean[..., :2], expected, atol=1e-6) and torch.allclose(
            std, sigma * delta**0.5
        )
    assert pi0(sde_noise=0.5).config.sde_schedule == "sqrt"


# Fields of LeRobot 0.6.1's config classes (dataclasses.fields); benchmarks/vla_references.py asks
# LeRobot itself.
BASE = """n_obs_steps input_features output_features device use_amp use_peft push_to_hub repo_id private tags license
    pretrained_path pretrained_revision chunk_size n_action_steps normalization_mapping max_state_dim max_action_dim
    empty_cameras tokenizer_max_length min_period max_period rtc_config freeze_vision_encoder train_expert_only
    compile_model compile_mode optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm
    scheduler_warmup_steps scheduler_decay_steps scheduler_decay_lr"""
PI = """paligemma_variant action_expert_variant dtype num_inference_steps time_sampling_beta_alpha time_sampling_beta_beta
    time_sampling_scale time_sampling_offset use_relative_actions relative_exclude_joints action_feature_names
    image_resolution gradient_checkpointing"""
SMOL = """resize_imgs_with_padding adapt_to_pi_aloha use_delta_joint_actions_aloha num_steps use_cache train_state_proj
    vlm_model_name load_vlm_weights add_image_special_tokens attention_mode prefix_length pad_language_to num_expert_layers
    num_vlm_layers self_attn_every_n_layers expert_width_multiplier"""


@pytest.mark.parametrize(
    "kind, keys", [("pi0", BASE + PI), ("pi05", BASE + PI), ("smolvla", BASE + SMOL)]
)
def test_every_key_of_lerobots_config_is_read_or_has_no_effect_or_is_refused(kind, keys, tmp_path):
    """A key that this reader did not know would be refused here with its name."""
    folder = tiny_checkpoint.write(kind, tmp_path / "tiny", horizon=2)
    if kind == "pi0":
        of_lerobot(folder)
    values = {
        "n_obs_steps": 1,
        "use_relative_actions": False,
        "use_peft": False,
        "n_action_steps": 2,
        "chunk_size": 2,
        "time_sampling_beta_beta": 1.0,
        "time_sampling_beta_alpha": 1.5,
        "time_sampling_scale": 0.999,
        "time_sampling_offset": 0.001,
        "min_period": 4e-3,
        "max_period": 4.0,
        "num_inference_steps": 10,
        "num_steps": 10,
        "tokenizer_max_length": 200 if kind == "pi05" else 48,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "image_resolution": [224, 224],
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
    }
    document = json.loads((folder / "config.json").read_text())
    configured(
        folder, **{key: document.get(key, values.get(key, "anything")) for key in keys.split()}
    )
    assert policy_of(kind, folder).config.kind == kind
    configured(folder, a_key_of_tomorrow=3)
    with pytest.raises(
        PolicyFileError, match="got 'a_key_of_tomorrow: 3', whose effect is not known here"
    ):
        policy_of(kind, folder)


def test_every_mode_of_lerobot_has_statistics():
    assert lerobot.MODES.keys() == {*MODES, "IDENTITY"}
