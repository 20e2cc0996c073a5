"""GR00T N1.6: its answers beside those of NVIDIA's own classes; what it learns; what is refused.

``groot_n1_6_itself.json`` has the answers of NVIDIA's code (NVIDIA/Isaac-GR00T, commit ead5283) for
tiny networks, and the largest differences. Make it again:

    export PYTHONPATH=.
    python tests/policies/test_groot_n1_6.py write FOLDER
    PYTHON tests/policies/groot_n1_6_itself.py ISAAC_GR00T FOLDER
    python tests/policies/test_groot_n1_6.py store FOLDER
"""

import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.torch import load_file, save_file

from benchmarks import vla_reference_cases as references
from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import adapter_files, tiny_checkpoint
from rlinf_core.policies.pretrained.groot_n1_6 import Config, network
from rlinf_core.policies.pretrained.groot_n1_6.policy import GrootN16, fitting
from rlinf_core.policies.pretrained.image_preprocessing import resize_like_pillow
from rlinf_core.policies.pretrained.tokenization import make_tokenizer
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after
from tests.policies.groot_n1_6_itself import FAMILIES
from tests.policies.test_smolvla import SPEC, observation

STORED = Path(__file__).with_name("groot_n1_6_itself.json")
EMBODIMENT, TAG, NUMBERS = 10, "new_embodiment", 8
CASES = {  # keys of config.json and of the processor that differ
    "groot_n1_6": ({}, {}),
    "groot_n1_6_plain": (
        {
            "use_alternate_vl_dit": False,
            "num_inference_timesteps": 3,
            "select_layer": 2,
            "state_dropout_prob": 0.2,
        },
        {
            "use_albumentations": False,
            "image_target_size": [84, 70],
            "image_crop_size": [76, 60],
            "letter_box_transform": True,
            "formalize_language": False,
            "clip_outliers": False,
            "use_percentiles": True,
        },
    ),
}
DIT = {
    "positional_embeddings": None,
    "num_layers": 6,
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "norm_type": "ada_norm",
    "dropout": 0.2,
    "final_dropout": True,
    "output_dim": 24,
    "interleave_self_attention": True,
}
DOCUMENT = {  # the keys of the published config.json
    "model_type": "Gr00tN1d6",
    "architectures": ["Gr00tN1d6"],
    "model_name": "nvidia/Eagle-Block2A-2B-v2",
    "model_dtype": "bfloat16",
    "backbone_model_type": "eagle",
    "backbone_embedding_dim": 32,
    "backbone_trainable_params_fp32": True,
    "select_layer": 3,
    "tune_top_llm_layers": 4,
    "max_state_dim": 9,
    "max_action_dim": NUMBERS,
    "action_horizon": references.HORIZON,
    "hidden_size": 24,
    "input_embedding_dim": 32,
    "max_num_embodiments": 12,
    "apply_sincos_state_encoding": True,
    "use_relative_action": True,
    "color_jitter_params": {"brightness": 0.1},
    "state_additive_noise_scale": 0.1,
    "diffusion_model_cfg": DIT,
    "transformers_version": "4.51.3",
}
PROCESSOR = {
    "shortest_image_edge": 70,
    "crop_fraction": 0.95,
    "image_crop_size": None,
    "image_target_size": None,
    "use_albumentations": True,
    "letter_box_transform": False,
    "formalize_language": True,
    "clip_outliers": True,
    "use_percentiles": False,
    "apply_sincos_state_encoding": True,
    "use_relative_action": True,
    "model_name": "nvidia/Eagle-Block2A-2B-v2",
    "model_type": "eagle",
    "max_state_dim": 9,
    "max_action_dim": NUMBERS,
    "max_action_horizon": references.HORIZON,
}
EAGLE = {  # the keys of Eagle's config.json
    "_attn_implementation": "flash_attention_2",
    "architectures": ["Eagle3_VLForConditionalGeneration"],
    "auto_map": {
        "AutoConfig": "configuration_eagle3_vl.Eagle3_VLConfig",
        "AutoModel": "modeling_eagle3_vl.Eagle3_VLForConditionalGeneration",
    },
    "downsample_ratio": 0.5,
    "dynamic_image_size": False,
    "loss_version": "efficient_v2_cp_head",
    "max_dynamic_tiles": 12,
    "min_dynamic_tiles": 1,
    "mlp_checkpoint": False,
    "mlp_connector_layers": 2,
    "model_type": "eagle_3_vl",
    "pad2square": False,
    "select_layer": -1,
    "use_backbone_lora": 0,
    "use_llm_lora": 0,
    "use_pixel_shuffle": True,
    "use_thumbnail": False,
    "torch_dtype": "bfloat16",
    "text_config": {
        "_attn_implementation_autoset": True,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "vision_config": {
        "_attn_implementation_autoset": True,
        "attention_dropout": 0.0,
        "full_attention_indexes": [1],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 24,
        "intermediate_size": 40,
        "layer_norm_eps": 1e-6,
        "model_type": "siglip2_vision_model",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 3,
        "num_patches": 16,
        "patch_size": 14,
        "torch_dtype": "bfloat16",
        "use_rope": False,
        "use_windows_attn": False,
        "window_size": 2,
    },
}
SMALL = {
    "backbone_embedding_dim": 32,
    "max_state_dim": 5,
    "max_action_dim": 4,
    "hidden_size": 24,
    "input_embedding_dim": 32,
    "max_seq_len": 8,
    "max_num_embodiments": 3,
    "diffusion_model_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "num_layers": 3,
        "output_dim": 24,
    },
    "processor": {"shortest_image_edge": 28},
    "eagle_config": {
        "text_config": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "head_dim": 8,
        },
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2},
    },
}


def groot(spread=True, **config):
    """With weights that are spread, so that its answer depends on all inputs."""
    torch.manual_seed(0)
    policy = GrootN16(
        SPEC, Config(**{"horizon": 3, "network": SMALL, "embodiment": 2} | config)
    ).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                size = parameter.shape[1] if name.endswith(".W") else parameter[0].numel()
                parameter.normal_(0.0, size**-0.5)
    return policy


def write(case, folder):
    """NVIDIA's folder of a case, with weights that their names give."""
    from tokenizers import Tokenizer

    changes, more = CASES[case]
    text = tiny_checkpoint.byte_tokenizer(tiny_checkpoint.FAMILIES["groot_n1_6"])
    vocabulary = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    ids = {
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary["<|im_start|>"],
        "eos_token_id": vocabulary["<|im_end|>"],
    }
    eagle = EAGLE | {
        "image_token_index": vocabulary["<IMG_CONTEXT>"],
        "text_config": EAGLE["text_config"] | ids,
    }
    modality = {
        name: {"modality_keys": ["arm", "hand"], "delta_indices": [0]}
        for name in ("state", "action")
    }
    modality["action"] |= {
        "delta_indices": [*range(references.HORIZON)],
        "action_configs": 2 * [{"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"}],
    }
    modality["video"] = {
        "modality_keys": [*references.shapes_of(FAMILIES[case])],
        "delta_indices": [0],
    }
    modality["language"] = {"modality_keys": ["task"], "delta_indices": [0]}
    numbers, grouped = references.statistics(), {}
    sizes = {"observation.state": {"arm": 3, "hand": 2}, "action": {"arm": 2, "hand": 1}}
    for feature, groups in sizes.items():
        start = 0
        for group, count in groups.items():
            grouped.setdefault(feature.removeprefix("observation."), {})[group] = {
                key: values[start : start + count] for key, values in numbers[feature].items()
            }
            start += count
    kwargs = PROCESSOR | more | {"modality_configs": {TAG: modality}}
    documents = {
        "config.json": DOCUMENT | changes,
        "processor_config.json": {
            "processor_class": "Gr00tN1d6Processor",
            "processor_kwargs": kwargs,
        },
        "statistics.json": {TAG: grouped},
        "embodiment_id.json": {TAG: EMBODIMENT},
        "eagle/config.json": eagle,
        "eagle/tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "<|im_end|>",
        },
    }
    (folder / "eagle").mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "eagle/tokenizer.json").write_text(text)
    model = network.FACTORY.build(network.FACTORY.read(folder).config)
    references.fill(model, biases=True)
    save_file(
        network.FACTORY.folder_files(model, make_tokenizer(""))[0], folder / "model.safetensors"
    )
    return json.loads(STORED.read_text())[case] if STORED.exists() else {}


def loaded(case, folder, **config):
    """The policy of a case, NVIDIA's answers, the observation, and the noise."""
    document, shapes = write(case, folder), references.shapes_of(FAMILIES[case])
    given = references.observations(FAMILIES[case])
    spec = StationSpec(
        (
            ArraySpec("state", (references.STATE,)),
            *(ArraySpec(name, shape, "uint8") for name, shape in shapes.items()),
        ),
        ActionSpec("tcp_delta", ("x", "y", "z"), (10.0,) * 3, ("m",) * 3),
        10.0,
    )
    keys = {
        "checkpoint": str(folder),
        "statistics": str(folder / "statistics.json" / TAG),
        "horizon": references.HORIZON,
        "flow_steps": CASES[case][0].get("num_inference_timesteps", 4),
        "embodiment": EMBODIMENT,
    }
    policy = GrootN16(spec, Config(**keys | config)).eval()
    observations = Observation(
        torch.from_numpy(given["state"]),
        {name: torch.from_numpy(given[name]) for name in shapes},
        tuple(references.SENTENCES),
    )
    return policy, document, observations, torch.from_numpy(given["noise"][..., :NUMBERS])


def chunk_of(policy, observations, noise):
    """The chunk in the data set's units."""
    with torch.no_grad():
        chunk = 10.0 * policy.decode(policy.to_batch(observations), noise)
    return chunk.view(2, references.HORIZON, 3).numpy()


def loss_of(case, policy, observations, noise):
    given = references.observations(FAMILIES[case])
    drawn = iter([noise, torch.from_numpy(given["uniform"])])
    action = torch.from_numpy(given["action"] / 10.0).flatten(1)
    with mock.patch("rlinf_core.policies.sharding.noise", lambda *_: next(drawn)), torch.no_grad():
        return float(policy.imitation_loss(policy.to_batch(observations), action))


@pytest.mark.parametrize("case", CASES)
def test_actions_and_loss_are_those_of_nvidias_classes(case, tmp_path):
    """Chunks in a data set's units, by both kinds of transformer and of pictures, of two shapes."""
    policy, document, observations, noise = loaded(case, tmp_path)
    assert np.abs(chunk_of(policy, observations, noise) - document["chunk"]).max() <= 1e-5
    assert loss_of(case, policy, observations, noise) == pytest.approx(document["loss"], rel=1e-5)
    assert max(document["differences"].values()) <= 1e-5


def test_every_key_of_its_config_is_read_or_has_no_effect_or_is_refused(tmp_path):
    """The keys are those of NVIDIA's Gr00tN1d6Config, of Eagle3_VLConfig and Siglip2VisionConfig."""
    write("groot_n1_6", tmp_path)
    read = {*network.DEFAULTS, *network.SUPPORTED, *network.WITHOUT_EFFECT}
    assert {*KEYS.split()} <= read
    for file, keys, error in (
        ("config.json", {"a_key_of_tomorrow": 3}, "a_key_of_tomorrow: 3', whose effect is not"),
        ("config.json", {"vl_self_attention_cfg": {"num_layers": 2}}, "vl_self_attention_cfg: "),
        ("config.json", {"diffusion_model_cfg": DIT | {"new": 1}}, "diffusion_model_cfg.new: 1'"),
        ("eagle/config.json", {"tiles": 3}, "keys of Eagle 3, got 'tiles: 3'"),
        (
            "eagle/config.json",
            {"vision_config": EAGLE["vision_config"] | {"registers": 4}},
            "got 'vision_config.registers: 4'",
        ),
    ):
        before = (tmp_path / file).read_text()
        written(file, **keys)(tmp_path)
        with pytest.raises(PolicyFileError, match=error):
            network.FACTORY.read(tmp_path)
        (tmp_path / file).write_text(before)
    network.FACTORY.read(tmp_path)


KEYS = """model_type model_dtype model_name backbone_model_type model_revision tune_top_llm_layers
    backbone_embedding_dim tune_llm tune_visual select_layer reproject_vision use_flash_attention
    load_bf16 collator_overwrite_image_inputs eagle_collator backbone_trainable_params_fp32
    image_crop_size image_target_size shortest_image_edge crop_fraction random_rotation_angle
    color_jitter_params use_albumentations_transforms letter_box_transform extra_augmentation_config
    formalize_language apply_sincos_state_encoding use_relative_action max_state_dim max_action_dim
    action_horizon hidden_size input_embedding_dim add_pos_embed attn_dropout use_vlln max_seq_len
    use_alternate_vl_dit attend_text_every_n_blocks diffusion_model_cfg num_inference_timesteps
    noise_beta_alpha noise_beta_beta noise_s num_timestep_buckets tune_projector
    tune_diffusion_model tune_vlln state_dropout_prob state_additive_noise_scale
    max_num_embodiments"""


@pytest.mark.parametrize(
    "shape, fitted",
    [
        ((70, 124), (56, 112)),
        ((256, 341), (252, 336)),
        ((20, 30), (56, 84)),
        ((2400, 3000), (1596, 1988)),
        ((42, 28), (84, 56)),
    ],
)
def test_pictures_get_the_sides_of_nvidias_smart_resize(shape, fitted):
    """The sides were computed by processing_eagle3_vl.smart_resize."""
    assert fitting(*shape) == fitted


@pytest.mark.parametrize(
    "shape, target", [((70, 124), (56, 112)), ((84, 70), (84, 56)), ((31, 45), (56, 84))]
)
def test_pictures_are_resized_as_pillow_does(shape, target):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not there")
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    expected = np.asarray(image.fromarray(picture).resize(target[::-1]))
    got = resize_like_pillow(torch.from_numpy(picture).permute(2, 0, 1)[None].float(), target)
    assert np.array_equal(got[0].permute(1, 2, 0).numpy(), expected)


def test_a_folder_and_a_policy_file_give_the_same_actions_back(tmp_path):
    policy, _, observations, _ = loaded("groot_n1_6_plain", tmp_path / "its", stochastic_eval=False)
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    network.FACTORY.save_folder(policy.network, policy.tokenizer, tmp_path / "again")
    expected = policy.act(observations, False).actions
    assert torch.equal(load_policy(path, policy.spec).act(observations, False).actions, expected)
    config = policy.config.model_copy(update={"checkpoint": str(tmp_path / "again")})
    third = GrootN16(policy.spec, config).eval()
    assert torch.equal(third.act(observations, False).actions, expected)
    for folder in ("its", "again"):  # the token that stands for a state in NVIDIA's training
        weights = load_file(tmp_path / folder / "model.safetensors")
        assert torch.equal(weights["action_head.mask_token"], policy.network.action_head.mask_token)


def test_parts_of_eagle_that_it_does_not_use_are_left_out(tmp_path):
    write("groot_n1_6", tmp_path)
    path = tmp_path / "model.safetensors"
    unused = (
        "backbone.model.vision_model.vision_model.head.probe",
        "backbone.model.language_model.lm_head.weight",
    )
    save_file(load_file(path) | {name: torch.zeros(1, 2) for name in unused}, path)
    GrootN16(SPEC, Config(checkpoint=str(tmp_path), horizon=references.HORIZON))


def test_a_sentence_comes_before_the_pictures_of_a_chat(tmp_path):
    policy, _, observations, _ = loaded("groot_n1_6", tmp_path)
    pictures = {name: image[:1] for name, image in observations.images.items()}
    one = Observation(observations.vectors[:1], pictures, ("Push, <IMG_CONTEXT> it_2!",))
    inputs = policy.inputs(policy.to_batch(one))
    words = tiny_checkpoint.FAMILIES["groot_n1_6"].needed
    tokens = {id: word for word in words if (id := policy.tokenizer.token_id(word)) is not None}
    letters = {policy.tokenizer.encode(chr(n))[0]: chr(n) for n in (10, *range(32, 127))}
    prompt = "".join((letters | tokens)[id] for id in inputs["ids"][0].tolist())
    picture = "<img>" + 8 * "<IMG_CONTEXT>" + "</img>"
    expected = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"push img_context it_2<image 1>{picture}<image 2>{picture}<|im_end|>\n"
    )
    assert prompt == expected and inputs["grid"].tolist() == [[[4, 8], [4, 8]]]


def written(file, **keys):
    def change(folder):
        document = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(document | keys))

    return change


def processor(**keys):
    return written("processor_config.json", processor_kwargs=PROCESSOR | keys)


def vision(**keys):
    return written("eagle/config.json", vision_config=EAGLE["vision_config"] | keys)


@pytest.mark.parametrize(
    "change, error",
    [
        (written("config.json", model_type="Gr00tN1d7"), "model_type Gr00tN1d6, got 'Gr00tN1d7"),
        (
            written("config.json", backbone_model_type="internvl"),
            "backbone_model_type of eagle in config.json, got 'internvl'",
        ),
        (written("config.json", use_vlln=False), "use_vlln of True"),
        (written("config.json", action_horizon=16), "policy.horizon: expected 16"),
        (written("config.json", num_inference_timesteps=8), "policy.flow_steps: expected 8"),
        (written("config.json", select_layer=9), "select_layer of 9, expected 1 to 4"),
        (
            written("config.json", diffusion_model_cfg={"num_layers": 2}),
            "diffusion_model_cfg.positional_embeddings of None, expected None",
        ),
        (
            written("config.json", diffusion_model_cfg=DIT | {"interleave_self_attention": False}),
            "interleave_self_attention of False, expected True",
        ),
        (processor(model_type="internvl"), "processor_config.json: expected model_type of eagle"),
        (processor(use_albumentations=False), "image_target_size or image_crop_size of None"),
        (processor(crop_fraction=None), "image_target_size or image_crop_size of None"),
        (vision(use_rope=True), "vision_config.use_rope of False, got True"),
        (vision(use_windows_attn=True), "vision_config.use_windows_attn of False, got True"),
        (vision(patch_size=16), "vision_config.patch_size of 14, got 16"),
        (vision(num_patches=15), "num_patches of 15, expected a square"),
        (written("eagle/config.json", vision_config={}), "vision_config.model_type of siglip2_vis"),
        (written("eagle/config.json", model_type="eagle_2_5_vl"), "model_type of eagle_3_vl, got"),
        (written("eagle/config.json", select_layer=-4), "select_layer of -1, got -4"),
        (lambda folder: (folder / "eagle/config.json").unlink(), "Eagle-Block2A-2B-v2 of NVIDIA"),
        (lambda folder: (folder / "eagle/tokenizer.json").unlink(), "expected tokenizer.json, or"),
    ],
)
def test_a_folder_that_is_not_supported_is_refused_by_name(change, error, tmp_path):
    write("groot_n1_6", tmp_path)
    change(tmp_path)
    with pytest.raises(PolicyFileError, match=error):
        GrootN16(SPEC, Config(checkpoint=str(tmp_path), horizon=5))


@pytest.mark.parametrize(
    "part, keys, error",
    [
        ("state", {"sin_cos_embedding_keys": ["arm"]}, "state: expected no sin_cos_embedding_keys"),
        ("action", {"mean_std_embedding_keys": ["hand"]}, "got hand, which the network reads by"),
        ("state", {"delta_indices": [-1, 0]}, r"state: expected one time step .* got \[-1, 0\]"),
        ("video", {"delta_indices": [-10, 0]}, "video: expected one time step in delta_indices"),
        (
            "action",
            {"action_configs": 2 * [{"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT"}]},
            "expected absolute actions, got arm relative to the state",
        ),
    ],
)
def test_statistics_of_other_numbers_are_refused(part, keys, error, tmp_path):
    write("groot_n1_6", tmp_path)
    path = tmp_path / "processor_config.json"
    document = json.loads(path.read_text())
    document["processor_kwargs"]["modality_configs"][TAG][part].update(keys)
    path.write_text(json.dumps(document))
    with pytest.raises(PolicyFileError, match=error):
        groot(statistics=str(tmp_path / "statistics.json" / TAG))


def test_no_more_actions_are_played_than_the_embodiment_trained(tmp_path):
    """The network answers 50 actions whatever the embodiment; the rest was never trained."""
    loaded("groot_n1_6", tmp_path)
    path = tmp_path / "processor_config.json"
    document = json.loads(path.read_text())
    action = document["processor_kwargs"]["modality_configs"][TAG]["action"]
    action["delta_indices"] = [0, 1, 2]
    path.write_text(json.dumps(document))
    keys = {"checkpoint": str(tmp_path), "horizon": 5, "embodiment": EMBODIMENT}
    keys["statistics"] = str(tmp_path / "statistics.json" / TAG)
    spec = loaded("groot_n1_6", tmp_path / "other")[0].spec
    with pytest.raises(SpecError, match=r"policy.n_action_steps: expected 3, .* got none"):
        GrootN16(spec, Config(**keys))
    for count in (3, 5):  # another number on purpose
        GrootN16(spec, Config(**keys, n_action_steps=count))


def test_other_sizes_are_named():
    with pytest.raises(SpecError, match="policy.embodiment: expected one of 0 to 2"):
        groot(embodiment=3)
    with pytest.raises(PolicyFileError, match="output_dim of 23, expected 24"):
        groot(
            network=SMALL
            | {"diffusion_model_cfg": SMALL["diffusion_model_cfg"] | {"output_dim": 23}}
        )


def test_log_probabilities_are_those_of_the_draw():
    policy, observations = groot(sde_noise=0.4), observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(again, chunk.log_probs, atol=1e-4)


def test_an_answer_depends_on_its_own_observation_alone():
    policy, observations = groot(), observation("push", "pull the red cube")
    both = policy.act(observations, False).actions
    for row in (0, 1):
        alone = Observation(
            observations.vectors[row : row + 1],
            {name: image[row : row + 1] for name, image in observations.images.items()},
            observations.instruction[row : row + 1],
        )
        assert torch.allclose(policy.act(alone, False).actions[0], both[row], atol=1e-5)


def test_by_cloning_it_follows_sentences_and_a_frozen_model_stays():
    targets = {"left": -0.7, "right": 0.7}
    for frozen, updates in ((False, 100), (True, 1)):
        policy = groot(frozen=frozen)
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        learner = Learner(policy, SFTConfig(learning_rate=2e-3, min_std=0.0, image_shift=0), seed=0)
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
        assert any(".backbone." in name for name in moved) is not frozen
        if not frozen:
            acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
            assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


def test_grpo_raises_the_reward():
    policy = groot(sde_noise=0.5, horizon=1, flow_steps=2)
    observations = observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 16, learning_rate=1e-3)
    assert before < 0.75 and after > 0.85


def differences(case, folder):
    """Largest differences to NVIDIA's answers, also with adapters and of a folder written here."""
    answers = np.load(folder / "answers.npz")
    policy, _, observations, noise = loaded(case, folder / "again")
    theirs, *_ = loaded(case, folder / "again", adapters=str(folder / "theirs"))
    ours, *_ = loaded(case, folder / "again", adapters=str(folder / "ours"))
    results = {
        "chunk": chunk_of(policy, observations, noise) - answers["chunk"],
        "sft_loss": loss_of(case, policy, observations, noise) - answers["loss"],
        "exported": answers["exported_chunk"] - answers["chunk"],
        "peft_read": chunk_of(theirs, observations, noise) - answers["adapted_chunk"],
        "peft_written": chunk_of(ours, observations, noise) - answers["ours_chunk"],
    }
    effect = np.abs(answers["adapted_chunk"] - answers["chunk"]).max()
    assert effect > 0.1 and np.abs(answers["ours_chunk"] - answers["chunk"]).max() > 0.1
    return answers, {name: float(np.abs(value).max()) for name, value in results.items()}


def prepare(case, folder):
    """A case's folder, the folder that rlinf exports, and adapters of rlinf's."""
    policy, *_ = loaded(case, folder, lora={"rank": 2, "alpha": 6.0})
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    lora = policy.config.lora
    adapter_files.save(policy.network, lora, policy.factory, str(folder), folder / "ours")
    policy, *_ = loaded(case, folder)
    exported = folder / "exported"
    network.FACTORY.save_folder(policy.network, policy.tokenizer, exported)


if __name__ == "__main__":
    command, place = sys.argv[1], Path(sys.argv[2])
    documents = {}
    for name in CASES:
        if command == "write":
            prepare(name, place / name)
            continue
        case_answers, largest = differences(name, place / name)
        documents[name] = {
            "chunk": case_answers["chunk"].tolist(),
            "loss": float(case_answers["loss"]),
            "differences": largest,
        }
    if documents:
        STORED.write_text(json.dumps(documents) + "\n")
        print(json.dumps({name: case["differences"] for name, case in documents.items()}))
