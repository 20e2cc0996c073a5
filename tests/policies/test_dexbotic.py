"""DB-pi0, Dexbotic's pi0: its key names and config.json, read for transformers' network."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.pi0 import Config
from rlinf_core.policies.pretrained.pi0.dexbotic import architecture, save_folder
from rlinf_core.policies.pretrained.pi0.policy import Pi0
from tests.policies.test_tiny_checkpoint import SPEC, observation

TOWER = "model.mm_vision_tower.vision_tower.vision_model."
WORDS = "model.action_expert.embed_tokens.weight"
NAMES = {  # as dexbotic/model/pi0/pi0_arch.py has them
    "model.llm.embed_tokens.weight",
    "model.llm.layers.1.self_attn.q_proj.weight",
    "model.llm.norm.weight",
    WORDS,
    f"{TOWER}embeddings.patch_embedding.bias",
    f"{TOWER}encoder.layers.1.mlp.fc2.weight",
    f"{TOWER}post_layernorm.weight",
    "model.mm_projector.weight",
    "model.mm_projector.bias",
    "model.action_expert.layers.0.mlp.up_proj.weight",
    "model.action_expert.norm.weight",
    "model.state_proj.weight",
    "model.action_in_proj.bias",
    "model.action_time_mlp_in.weight",
    "model.action_time_mlp_out.bias",
    "model.action_out_proj.weight",
}


@pytest.fixture
def folder(tmp_path):
    return tiny_checkpoint.write("dexbotic_pi0", tmp_path / "db", horizon=2, seed=1)


def of(folder):
    return Pi0(
        SPEC, Config(horizon=2, stochastic_eval=False, checkpoint=str(folder), flow_steps=2)
    ).eval()


def test_it_acts_as_pi0_does_on_the_same_weights_whatever_its_files_have_beside_them(
    folder, tmp_path
):
    weights = load_file(folder / "model.safetensors")
    observations = observation("push", "pull the red cube")
    assert weights.keys() >= NAMES and all(name.startswith("model.") for name in weights)
    expected = (
        of(tiny_checkpoint.write("pi0", tmp_path / "pi0", horizon=2, seed=1))
        .act(observations, False)
        .actions
    )
    assert (
        torch.equal(of(folder).act(observations, False).actions, expected) and expected.std() > 0.01
    )
    del weights[WORDS]  # which nothing reads
    save_file(
        weights | {f"{TOWER}head.probe": torch.zeros(1, 1, 128)}, folder / "model.safetensors"
    )
    assert torch.equal(of(folder).act(observations, False).actions, expected)


@pytest.mark.parametrize(
    "changes, error",
    [
        (
            {"mm_projector_type": "mlp2x_gelu"},
            "expected mm_projector_type linear in config.json, .* got 'mlp2x_gelu'",
        ),
        (
            {"llm_config": "google/gemma-2b"},
            "expected in config.json llm_config, a map of model_type gemma, got 'google/gemma",
        ),
        (
            {"action_config": {"model_type": "qwen2"}},
            "action_config, a map of model_type gemma, got .*qwen2",
        ),
        ({"chunk_size": 50}, "policy.horizon: expected 50"),
        (
            {"model_type": "dexbotic_pi05"},
            "expected a model_type of pi0 or dexbotic_pi0, got 'dexbotic_pi05'",
        ),
    ],
)
def test_what_is_not_known_here_is_refused_by_name(folder, changes, error):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PolicyFileError, match=error):
        of(folder)


def test_its_config_is_transformers_own_with_two_defaults():
    text = {"model_type": "gemma", "hidden_size": 24, "vocab_size": 900}
    document = {
        "llm_config": text,
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 16},
        "action_config": {"model_type": "gemma", "hidden_size": 8},
        "mm_projector_type": "linear",
    }
    expected = {
        "vlm_config": {
            "model_type": "paligemma",
            "text_config": text,
            "vision_config": document["vision_config"] | {"vision_use_head": False},
            "projection_dim": 24,
            "image_token_id": 900,
        },
        "dit_config": document["action_config"],
        "chunk_size": 50,
        "max_state_dim": 32,
        "max_action_dim": 32,
    }
    assert architecture(Path("f"), document) == expected
    assert architecture(Path("f"), document | {"chunk_size": 10, "action_dim": 7}) == expected | {
        "chunk_size": 10,
        "max_state_dim": 7,
        "max_action_dim": 7,
    }
    for change, error in (
        (
            {"vision_config": {"model_type": "x" * 100}},
            "expected in config.json vision_config, a map of model_type siglip_vision_model, got "
            f"{str({'model_type': 'x' * 100})[:80]!r}. A folder that Dexbotic has saved says it",
        ),
        (
            {"mm_projector_type": None},
            "expected mm_projector_type linear in config.json, as pi0's is, got None",
        ),
    ):
        with pytest.raises(PolicyFileError) as refused:
            architecture(Path("f"), document | change)
        assert str(refused.value) == f"policy.checkpoint f: {error}"


def test_a_folder_is_written_as_dexbotic_writes_it(folder, tmp_path):
    network, tokenizer = of(folder).network, of(folder).tokenizer
    save_folder(network, tokenizer, tmp_path / "new" / "folder")
    document = json.loads((tmp_path / "new" / "folder" / "config.json").read_text())
    config = network.config
    text, vision = config.vlm_config.text_config, config.vlm_config.vision_config
    assert {key: value for key, value in document.items() if not isinstance(value, dict)} == {
        "model_type": "dexbotic_pi0",
        "architectures": ["Pi0ForCausalLM"],
        "mm_projector_type": "linear",
        "action_dim": config.max_action_dim,
        "chunk_size": 2,
        "hidden_size": text.hidden_size,
        "mm_hidden_size": vision.hidden_size,
        "vocab_size": text.vocab_size,
    }
    assert document["llm_config"]["hidden_size"] == text.hidden_size
    assert document["vision_config"]["hidden_size"] == vision.hidden_size
    assert document["action_config"]["hidden_size"] == config.dit_config.hidden_size
    assert (tmp_path / "new" / "folder" / "tokenizer.json").read_text() == tokenizer.text
    with safe_open(tmp_path / "new" / "folder" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    weights = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    published = load_file(folder / "model.safetensors")
    assert weights.keys() == published.keys()
    assert all(torch.equal(weights[name], published[name]) for name in published.keys() - {WORDS})
    save_folder(network, tokenizer, tmp_path / "new" / "folder")  # again, over it
