"""GR00T N1.5: what it computes, beside LeRobot's own and beside a computation by hand; what it
learns; what is refused.
"""

import json
import math
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.groot import Config
from rlinf_core.policies.pretrained.groot.network import EAGLE, FACTORY, supported_keys
from rlinf_core.policies.pretrained.groot.policy import Groot
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after
from tests.policies.groot_by_hand import by_hand
from tests.policies.test_smolvla import CAMERAS, SPEC, VENV, changed, observation

SIZES = {
    "backbone_cfg": {"select_layer": 2},
    "action_head_cfg": {
        "action_dim": 4,
        "max_state_dim": 5,
        "hidden_size": 24,
        "input_embedding_dim": 32,
        "backbone_embedding_dim": 32,
        "max_seq_len": 8,
        "max_num_embodiments": 3,
        "num_target_vision_tokens": 4,
        "diffusion_model_cfg": {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 3,
            "output_dim": 24,
            "cross_attention_dim": 32,
        },
        "vl_self_attention_cfg": {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 1,
        },
    },
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "head_dim": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 32,
}
SMALL = SIZES | {EAGLE: {"text_config": TEXT, "vision_config": VISION}}
TURNS = ["<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]


def groot(spread=True, **config):
    """Return a network with spread weights, whose output depends on all inputs."""
    torch.manual_seed(0)
    policy = Groot(
        SPEC, Config(**{"horizon": 3, "network": SMALL, "embodiment": 2} | config)
    ).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                parameter.normal_(
                    0.0,
                    (parameter.shape[1] if name.endswith(".W") else parameter[0].numel()) ** -0.5,
                )
    return policy


@torch.no_grad()
def test_its_velocity_is_that_of_a_computation_by_hand_whatever_else_is_in_the_batch():
    policy, observations = groot(), observation("push", "pull the red cube")
    inputs = policy.inputs(policy.to_batch(observations))
    point, time = policy.noise(2, torch.Generator().manual_seed(3)), torch.tensor([0.9, 0.25])
    got = policy._velocity(inputs, policy._prefix(inputs), point, time)
    for index, sentence in enumerate(observations.instruction):
        images = {name: image[index] for name, image in observations.images.items()}
        state = policy.normalisation.normalize(observations.vectors)[index]
        expected = by_hand(policy, sentence, images, state, point[index], time[index].item() - 1e-6)
        assert torch.allclose(got[index], expected, atol=1e-4) and expected.std() > 0.2


def test_log_probabilities_are_those_of_its_paths_and_what_a_learner_computes_again():
    """Each step of a path is Gaussian about the Euler step, with the score's correction; in
    float64.
    """
    policy = groot(sde_noise=0.5, n_action_steps=2, flow_steps=4)
    observations = observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(2))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    points, inputs = chunk.drawn.reshape(2, 5, 3, 4), policy.inputs(policy.to_batch(observations))
    expected = torch.zeros(2, 3, dtype=torch.float64)
    with torch.no_grad():
        prefix = policy._prefix(inputs)
        for step, time in enumerate((1.0, 0.75, 0.5, 0.25)):
            x = points[:, step]
            v = policy._velocity(inputs, prefix, x, torch.full((2,), time)).double()
            score = -(x + (1 - time) * v) / time
            mean = (x - v / 4 + 0.25 * time / 2 * score / 4)[..., :2]
            drawn = points[:, step + 1, :, :2].double()
            expected += (
                torch.distributions.Normal(mean, 0.5 * math.sqrt(time / 4)).log_prob(drawn).sum(-1)
            )
    assert torch.allclose(chunk.log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    assert (
        torch.allclose(again.double(), expected[:, :2], rtol=1e-5, atol=2e-5)
        and again.requires_grad
    )
    assert (
        policy.act(observations, False).log_probs is None
        and groot().act(observations, True).log_probs is None
    )


def test_by_cloning_it_learns_to_do_as_it_is_told_and_what_is_frozen_or_another_s_stays():
    targets = {"left": -0.7, "right": 0.7}
    for frozen, updates in ((False, 80), (True, 1)):
        policy = groot(frozen=frozen)
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        learner = Learner(policy, SFTConfig(learning_rate=3e-3, min_std=0.0, image_shift=0), seed=0)
        for step in range(updates):
            observations = observation(*(["left", "right"] * 4), seed=step)
            batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
            batch["action"] = np.repeat(
                [[targets[word]] for word in observations.instruction], 6, axis=1
            ).astype(np.float32)
            learner.update(batch)
        moved = {
            name
            for name, tensor in policy.state_dict().items()
            if not torch.equal(tensor, before[name])
        }
        weights = policy.network.action_head.state_encoder.layer1.W.detach()
        assert torch.equal(weights[:2], before["network.action_head.state_encoder.layer1.W"][:2])
        assert any(".backbone." in name for name in moved) is not frozen
        if not frozen:
            acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
            assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


@pytest.mark.slow
def test_grpo_raises_what_pays():
    policy = groot(sde_noise=0.5, horizon=1, flow_steps=2)
    observations = observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 6, learning_rate=1e-2)
    assert before < 0.75 and after > 0.85


@pytest.fixture
def folder(tmp_path):
    """Write a folder in NVIDIA's layout, with Eagle's files in LeRobot's."""
    from tokenizers.pre_tokenizers import ByteLevel

    path = tiny_checkpoint.write("groot", tmp_path / "tiny", SMALL, horizon=3, seed=1)
    eagle_config = json.loads((path / "eagle/config.json").read_text())
    old = {
        key: value
        for key, value in eagle_config["text_config"].items()
        if key not in ("rope_parameters", "layer_types")
    }
    # as transformers 4.51 wrote it
    eagle_config["text_config"] = old | {
        "rope_theta": 500.0,
        "rope_scaling": None,
    }
    (path / "eagle/config.json").write_text(json.dumps(eagle_config))
    (path / "eagle/tokenizer.json").unlink()
    (path / "eagle/vocab.json").write_text(
        json.dumps({letter: n for n, letter in enumerate(sorted(ByteLevel.alphabet()))})
    )
    (path / "eagle/merges.txt").write_text("#version: 0.2\n")
    special = {
        str(256 + number): {
            "content": word,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for number, word in enumerate(TURNS)
    }
    (path / "eagle/tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": special})
    )
    changed(
        path,
        lambda weights: weights.update(
            {
                "backbone.eagle_model.vision_model.vision_model.head.probe": torch.zeros(1, 1, 16),
                "backbone.eagle_model.language_model.lm_head.weight": torch.zeros(261, 32),
            }
        ),
    )
    return path


def test_a_folder_and_a_policy_file_give_the_same_actions_back(folder, tmp_path):
    policy = Groot(
        SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), embodiment=1)
    ).eval()
    policy.normalisation.set_statistics(np.array([1.0, 2.0, 3.0]), np.ones(3))
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    observations = observation("push", "pull")
    FACTORY.save_folder(policy.network, policy.tokenizer, tmp_path / "again")
    shutil.rmtree(folder)
    again = load_policy(path, SPEC)
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )
    third = Groot(
        SPEC,
        Config(horizon=3, stochastic_eval=False, checkpoint=str(tmp_path / "again"), embodiment=1),
    ).eval()
    third.normalisation = policy.normalisation
    assert torch.equal(
        third.act(observations, False).actions, policy.act(observations, False).actions
    )


def test_it_is_asked_as_in_its_training_and_an_instruction_is_words_whatever_it_says(folder):
    policy = Groot(
        SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), embodiment=1)
    )
    sentences = ("push", "isn't <IMG_CONTEXT>")
    inputs = policy.inputs(policy.to_batch(observation(*sentences)))
    picture = "<img>" + "<IMG_CONTEXT>" * 16 + "</img>"
    turn_words = {
        id: word for word, id in ((word, policy.tokenizer.token_id(word)) for word in TURNS)
    }
    for row, mask, instruction in zip(
        inputs["ids"], inputs["mask"], ("['push']", '["isn\'t <IMG_CONTEXT>"]'), strict=True
    ):
        expected = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"<image 1>{picture}<image 2>{picture}{instruction}<|im_end|>\n<|im_start|>assistant\n"
        )
        letters = {
            id: letter
            for letter, id in (
                (chr(n), policy.tokenizer.encode(chr(n))[0]) for n in (10, *range(32, 127))
            )
        }
        assert "".join((turn_words | letters)[id] for id in row[mask].tolist()) == expected
    assert (inputs["ids"] == policy.tokenizer.token_id("<IMG_CONTEXT>")).sum() == 64, (
        "pictures alone"
    )


def written(file, **keys):
    def change(folder):
        document = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(document | keys))

    return change


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda folder: changed(folder, lambda weights: weights.pop("action_head.vlln.bias")),
            "lacks 1, .*vlln.bias",
        ),
        (
            lambda folder: changed(folder, lambda weights: weights.update(extra=torch.zeros(1))),
            "what it should 1, .*extra",
        ),
        (
            lambda folder: changed(
                folder, lambda weights: weights.update({"action_head.vlln.bias": torch.zeros(3)})
            ),
            "in other shapes 1, .*vlln.bias",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"{}"),
            "expected a whole safetensors file",
        ),
        (
            lambda folder: (folder / "eagle/config.json").unlink(),
            "eagle/config.json: expected a map .* hf download lerobot/",
        ),
        (
            lambda folder: (folder / "eagle/vocab.json").unlink(),
            "eagle: expected tokenizer.json, or vocab.json, merges.txt",
        ),
        (
            written("config.json", model_type="Gr00tN1d6"),
            "expected a model_type of gr00t_n1_5, got 'Gr00tN1d6'",
        ),
        (written("config.json", action_horizon=16), "policy.horizon: expected 16"),
        (
            written("config.json", backbone_cfg={"select_layer": 9}),
            "backbone_cfg.select_layer of 9, expected 1 to 3",
        ),
        (
            written("eagle/config.json", use_pixel_shuffle=True),
            "eagle_config.use_pixel_shuffle of True, expected False",
        ),
        (
            written("config.json", action_head_cfg=SIZES["action_head_cfg"]),
            "config.json, got: KeyError: 'interleave_",
        ),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            "config.json: expected a map of model_type gr00t_n1_5",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_name(folder, change, error):
    change(folder)
    with pytest.raises(PolicyFileError, match=error):
        Groot(SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), embodiment=1))


# Arguments of LeRobot 0.4.4's EagleBackbone, FlowmatchingActionHeadConfig, DiT and
# SelfAttentionTransformer
TRANSFORMER = """num_attention_heads attention_head_dim output_dim num_layers dropout attention_bias activation_fn
    num_embeds_ada_norm upcast_attention max_num_positional_embeddings compute_dtype final_dropout
    positional_embeddings interleave_self_attention"""
KEYS = {
    "backbone_cfg": """tune_llm tune_visual select_layer reproject_vision use_flash_attention load_bf16 eagle_path
        tokenizer_assets_repo project_to_dim""",
    "action_head_cfg": """add_pos_embed model_dtype diffusion_model_cfg input_embedding_dim backbone_embedding_dim
        hidden_size max_seq_len action_dim action_horizon noise_beta_alpha noise_beta_beta noise_s num_timestep_buckets
        num_inference_timesteps max_num_embodiments tune_projector tune_diffusion_model
        load_pretrained_det_decode_layer_path detection_coeff freeze_decode_layer expand_batch use_vlln
        vl_self_attention_cfg num_target_vision_tokens""",
    "diffusion_model_cfg": TRANSFORMER
    + " norm_type norm_elementwise_affine norm_eps cross_attention_dim",
    "vl_self_attention_cfg": TRANSFORMER,
}


def test_every_key_of_its_config_is_read_or_has_no_effect_or_is_refused(folder):
    for section, keys in KEYS.items():
        assert set(keys.split()) <= supported_keys(section), section
    for section in ("backbone_cfg", "action_head_cfg"):
        document = json.loads((folder / "config.json").read_text())
        changes = {section: document[section] | {"a_key_of_tomorrow": 3}}
        written("config.json", **changes)(folder)
        with pytest.raises(PolicyFileError, match=f"got '{section}.a_key_of_tomorrow: 3', whose"):
            FACTORY.read(folder)
        (folder / "config.json").write_text(json.dumps(document))


def test_what_does_not_fit_is_named():
    with pytest.raises(SpecError, match="expected at least one camera for a GR00T N1.5"):
        Groot(
            StationSpec(SPEC.observation[:1], SPEC.action, 10.0, "push"),
            Config(horizon=3, network=SMALL, embodiment=0),
        )
    with pytest.raises(
        SpecError, match="policy.embodiment: expected one of 0 to 2, which the network has, got 3"
    ):
        groot(embodiment=3)
    with pytest.raises(
        SpecError, match="instruction: expected a sentence, which a GR00T N1.5 acts on"
    ):
        groot().act(observation(" "), False)
    with pytest.raises(
        PolicyFileError, match=r"eagle_config.text_config: .* got 'hiden_size' \(did you mean"
    ):
        groot(network={EAGLE: {"text_config": {"hiden_size": 8}}})
    with pytest.raises(PolicyFileError, match="diffusion_model_cfg.output_dim of 24, expected 128"):
        groot(network={"action_head_cfg": {"diffusion_model_cfg": {"output_dim": 24}}})
    with pytest.raises(
        PolicyFileError, match="action_horizon of 9, expected at most max_seq_len of 8"
    ):
        groot(horizon=9)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (VENV / "bin/python").exists(), reason="not run: .venvs/lerobot is not there (make lerobot)"
)
def test_lerobot_s_own_groot_says_the_same_of_weights_that_it_has_saved(folder):
    observations = observation("push the red cube", "pull", seed=4)
    draw = torch.Generator().manual_seed(5)
    # of one shape, as it asks for
    observations.images["wrist"] = observation("push", "pull", seed=6).images["front"]
    cameras = [ArraySpec(name, (24, 32, 3), "uint8") for name in CAMERAS]
    spec = StationSpec((SPEC.observation[0], *cameras), SPEC.action, 10.0)
    noise, uniform = torch.randn(2, 3, 4, generator=draw), torch.rand(2, generator=draw)
    action = torch.rand(2, 3, 2) * 2 - 1
    low = np.array([-1.0, -2.0, -1.5])
    high = np.array([1.0, 3.0, 2.0])
    np.savez(
        folder / "given.npz",
        **{name: image.numpy() for name, image in observations.images.items()},
        noise=noise.numpy(),
        state=observations.vectors.numpy(),
        time=(1 - uniform ** (1 / 1.5) / 0.999).numpy(),
        action=action.numpy(),
    )
    (folder / "given.json").write_text(
        json.dumps(
            {
                "cameras": list(CAMERAS),
                "sentences": list(observations.instruction),
                "embodiment": 1,
                "min": low.tolist(),
                "max": high.tolist(),
            }
        )
    )
    tokenizer = Groot(
        spec, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), embodiment=1)
    ).tokenizer
    (folder / "eagle/tokenizer.json").write_text(tokenizer.text)
    written(
        "config.json",
        action_head_cfg=json.loads((folder / "config.json").read_text())["action_head_cfg"]
        | {"num_inference_timesteps": 4, "action_horizon": 3},
    )(folder)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    process = subprocess.run(
        [VENV / "bin/python", "tests/policies/groot_itself.py", folder],
        text=True,
        capture_output=True,
        env=environment | {"LD_LIBRARY_PATH": str(VENV / "ffmpeg")},
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    theirs = np.load(folder / "said.npz")
    policy = Groot(
        spec, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), embodiment=1)
    ).eval()
    policy.normalisation.set_statistics((low + high) / 2, (high - low) / 2 - 1e-4)
    inputs = policy.inputs(policy.to_batch(observations))
    assert np.abs(inputs["pixels"].numpy() - theirs["pixels"]).max() < 2.1 / 255, (
        "to a rounding of Pillow's"
    )
    for ids, mask, expected in zip(inputs["ids"], inputs["mask"], theirs["tokens"], strict=True):
        assert ids[mask].tolist() == expected[: mask.sum()].tolist()
    inputs["pixels"] = torch.from_numpy(theirs["pixels"])
    policy.inputs = lambda _: inputs
    with torch.no_grad():
        ours = policy.decode(policy.to_batch(observations), noise).view(2, 3, 2).numpy()
        loss = policy.imitation_loss(
            policy.to_batch(observations), action.flatten(1), torch.Generator().manual_seed(5)
        ).item()
    assert (
        ours == pytest.approx(theirs["chunk"][:, 0, :, :2].clip(-1, 1), abs=1e-5)
        and (np.abs(ours) < 1).mean() > 0.3
    )
    assert loss == pytest.approx(theirs["losses"].mean(), rel=1e-5)
