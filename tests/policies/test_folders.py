"""The documents of published folders: keys, defaults, and the file that an error names."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained import huggingface, lerobot, openpi, tokenization
from rlinf_core.policies.pretrained.tokenization import ByteTokenizer, FileTokenizer


def words(*names):
    """Return a tokenizer.json of whole words."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    vocabulary = {name: number for number, name in enumerate(("?", *names))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer.to_str()


def refused(call, *inputs):
    """Return the words with which a call is refused."""
    with pytest.raises(PolicyFileError) as error:
        call(*inputs)
    return str(error.value)


# openpi
CONVERTED = {
    "action_dim": 9,
    "action_horizon": 12,
    "paligemma_variant": "gemma_300m",
    "action_expert_variant": "gemma_2b",
    "precision": "bfloat16",
}


def of_openpi(folder, **changes):
    (folder / "config.json").write_text(json.dumps(CONVERTED | changes))
    (folder / "tokenizer.json").write_text(words("push"))
    return folder


def test_sizes_have_openpi_s_names_and_lerobot_s_defaults(tmp_path):
    sizes = openpi.sizes(tmp_path, {})
    text, vision = (sizes["vlm_config"][part] for part in ("text_config", "vision_config"))
    layers = {
        "model_type": "gemma",
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
    }
    large = {"hidden_size": 2048, "intermediate_size": 16384, **layers}
    small = {"hidden_size": 1024, "intermediate_size": 4096, **layers}
    assert text == large | {"vocab_size": 257152, "bos_token_id": 2}
    assert vision["image_size"] == 224 and vision["patch_size"] == 14
    assert vision["model_type"] == "siglip_vision_model" and not vision["vision_use_head"]
    parts = {key: sizes["vlm_config"][key] for key in sizes["vlm_config"] if "config" not in key}
    assert parts == {"model_type": "paligemma", "projection_dim": 2048, "image_token_id": 257152}
    assert sizes["dit_config"] == small and sizes.keys() == {"vlm_config", "dit_config"}
    other = openpi.sizes(tmp_path, CONVERTED | {"image_resolution": [448, 448]})
    assert other["dit_config"] == large
    assert other["vlm_config"]["text_config"]["hidden_size"] == 1024
    assert other["vlm_config"]["vision_config"] == vision | {"image_size": 448}
    for largest in ([1, 1], [4096, 4096]):
        sizes = openpi.sizes(tmp_path, {"image_resolution": largest})
        assert sizes["vlm_config"]["vision_config"]["image_size"] == largest[0]


@pytest.mark.parametrize(
    "resolution", [224, [224], [224, 225], [224.0, 224.0], [0, 0], [4097, 4097], [1, 1, 1], None]
)
def test_another_resolution_is_refused(resolution, tmp_path):
    assert refused(openpi.sizes, tmp_path, {"image_resolution": resolution}) == (
        f"policy.checkpoint {tmp_path}: expected an image_resolution of two equal numbers of "
        f"pixels in config.json, got {resolution!r}"
    )


def test_a_folder_of_openpi_s_converter_is_read(tmp_path):
    assert not openpi.is_converted(tmp_path), "an empty folder"
    config, published = openpi.read_config(of_openpi(tmp_path))
    assert openpi.is_converted(tmp_path)
    assert config == {
        "chunk_size": 12,
        "max_state_dim": 9,
        "max_action_dim": 9,
        **openpi.sizes(tmp_path, CONVERTED),
    }
    assert published.horizon == 12 and published.config == config
    assert published.tokenizer.encode("push it") == [1, 0]
    parts = {"vlm_config": {"a": 1}, "dit_config": {"b": 2}}
    config, _ = openpi.read_config(of_openpi(tmp_path, **parts))
    assert {key: config[key] for key in parts} == parts, "sizes of a tiny network, which counts"
    for key in ("type", "model_type"):
        assert not openpi.is_converted(of_openpi(tmp_path, **{key: "pi0"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"extra": 1, "alpha": 2},
            "expected action_dim, action_expert_variant, action_horizon, paligemma_variant, "
            "precision in config.json, as openpi's converter writes it, got another set: alpha, "
            "extra",
        ),
        (
            {"action_dim": 9.0},
            "expected action_dim and action_horizon as whole numbers in config.json, got 9.0 and "
            "12",
        ),
        (
            {"action_horizon": "12"},
            "expected action_dim and action_horizon as whole numbers in config.json, got 9 and "
            "'12'",
        ),
        (
            {"action_expert_variant": "gemma_9b"},
            "expected a variant of gemma_2b or gemma_300m in config.json, got 'gemma_9b'",
        ),
    ],
)
def test_another_config_of_openpi_is_refused(changes, message, tmp_path):
    folder = of_openpi(tmp_path, **changes)
    assert refused(openpi.read_config, folder) == f"policy.checkpoint {folder}: {message}"


def test_a_folder_without_a_tokenizer_names_its_source(tmp_path):
    (of_openpi(tmp_path) / "tokenizer.json").unlink()
    assert refused(openpi.read_config, tmp_path) == (
        f"policy.checkpoint {tmp_path}: expected tokenizer.json, which LeRobot's and openpi's "
        "folders lack, found none. Copy that of google/paligemma-3b-pt-224 there"
    )


# LeRobot
MAPPING = {"STATE": "QUANTILES", "ACTION": "MIN_MAX"}


def of_lerobot(folder, **document):
    document = {"type": "pi05", "chunk_size": 4, "normalization_mapping": MAPPING} | document
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_a_config_of_lerobot_is_divided_into_network_and_training(tmp_path):
    folder = of_lerobot(
        tmp_path,
        depth=3,
        num_steps=7,
        tokenizer_max_length=48,
        n_action_steps=None,
        device="cuda",
        optimizer_lr=1.0,
        scheduler_name="cosine",
        unknown=None,
        fixed="one",
        use_relative_actions=False,
    )
    network, training = lerobot.read_config(
        folder, "pi05", ("chunk_size",), ("depth", "width"), {"fixed": "one"}
    )
    assert network == {"chunk_size": 4, "depth": 3}
    assert (training.state_statistics, training.action_statistics, training.image_statistics) == (
        *("quantiles", "bounds", "identity"),
    )
    assert training.settings == {
        "flow_steps": ("num_steps", 7),
        "tokens": ("tokenizer_max_length", 48),
    }
    assert training.has_relative_key
    network, training = lerobot.read_config(of_lerobot(tmp_path), "pi05", ("chunk_size",), ())
    assert network == {"chunk_size": 4} and not training.has_relative_key
    assert training.settings == {}
    modes = {"STATE": "MEAN_STD", "ACTION": "QUANTILE10", "VISUAL": "MEAN_STD"}
    folder = of_lerobot(tmp_path, normalization_mapping=modes, n_obs_steps=2)
    _, training = lerobot.read_config(
        folder, "pi05", ("chunk_size", "n_obs_steps"), (), image_modes=("IDENTITY", "MEAN_STD")
    )
    assert (training.state_statistics, training.action_statistics, training.image_statistics) == (
        *("deviations", "deciles", "deviations"),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "pi0"}, "expected a config.json of LeRobot's type pi05, got 'pi0'"),
        (
            {"n_obs_steps": 2},
            "expected n_obs_steps of 1 in config.json, got 2. Policies here read one time step",
        ),
        (
            {"use_relative_actions": True},
            "expected use_relative_actions of False in config.json, got True. Its actions are "
            "joint positions relative to the state, which a station would play as steps",
        ),
        (
            {"use_peft": True},
            "expected use_peft of False in config.json, got True. It holds adapters: set "
            "policy.adapters to its folder, and policy.checkpoint to the model's",
        ),
        (
            {"fixed": "two"},
            "expected fixed of one in config.json, got 'two'. Another value is not known here",
        ),
        (
            {"odd": [1] * 50},
            "expected keys of LeRobot 0.4 to 0.6 in config.json, got "
            f"'odd: {str([1] * 50)[:60]}', whose effect is not known here. Where it has none, take "
            "the line out",
        ),
        ({"num_steps": 0}, "expected num_steps of 1 or more in config.json, got 0"),
        ({"num_steps": 2.0}, "expected num_steps of 1 or more in config.json, got 2.0"),
        (
            {"normalization_mapping": {"STATE": "MEAN_STD"}},
            "expected a normalization_mapping with STATE and ACTION in config.json, got "
            "{'STATE': 'MEAN_STD'}: it says what the network's numbers stand for",
        ),
        (
            {"normalization_mapping": MAPPING | {"VISUAL": "MEAN_STD"}},
            "expected a normalization_mapping of VISUAL: IDENTITY in config.json, got 'MEAN_STD'",
        ),
        (
            {"normalization_mapping": MAPPING | {"ACTION": "MAD"}},
            "expected a normalization_mapping of MEAN_STD, QUANTILES, QUANTILE10, MIN_MAX, "
            "IDENTITY for ACTION in config.json, got 'MAD'",
        ),
    ],
)
def test_another_config_of_lerobot_is_refused(changes, message, tmp_path):
    folder = of_lerobot(tmp_path, **changes)
    got = refused(lerobot.read_config, folder, "pi05", ("chunk_size",), (), {"fixed": "one"})
    assert got == f"policy.checkpoint {folder}: {message}"


def test_missing_keys_and_files_of_lerobot_are_named(tmp_path):
    folder = of_lerobot(tmp_path)
    got = refused(lerobot.read_config, folder, "pi05", ("depth", "chunk_size", "width"), ())
    assert got == (
        f"policy.checkpoint {folder}: expected depth and width in config.json, got nothing"
    )
    (folder / "config.json").unlink()
    got = refused(lerobot.read_config, folder, "pi05", (), ())
    assert got.startswith(
        f"policy.checkpoint {folder}: expected a folder with a map in config.json, got: "
    )


def test_a_folder_for_lerobot_has_its_processors_and_their_numbers(tmp_path):
    inputs = {"observation.state": {"type": "STATE", "shape": [2]}}
    outputs = {"action": {"type": "ACTION", "shape": [1]}}
    document = {
        "input_features": inputs,
        "output_features": outputs,
        "normalization_mapping": {"STATE": "MEAN_STD"},
    }
    statistics = {
        "observation.state": {"mean": torch.ones(2), "std": torch.full((2,), 3.0)},
        "action": {"mean": torch.zeros(1)},
    }
    weight = torch.arange(6.0).view(2, 3).T
    lerobot.save_folder(tmp_path / "a" / "b", document, {"w": weight}, statistics)
    folder = tmp_path / "a" / "b"
    assert json.loads((folder / "config.json").read_text()) == document
    assert torch.equal(load_file(folder / "model.safetensors")["w"], weight)
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}

    def scaling(name, file, features):
        numbers = load_file(folder / file)
        assert numbers.keys() == {
            *("observation.state.mean", "observation.state.std", "action.mean"),
        }
        assert numbers["observation.state.std"].tolist() == [3.0, 3.0]
        return {
            "registry_name": name,
            "config": {
                "eps": 1e-8,
                "features": features,
                "norm_map": document["normalization_mapping"],
            },
            "state_file": file,
        }

    before = json.loads((folder / "policy_preprocessor.json").read_text())
    assert before == {
        "name": "policy_preprocessor",
        "steps": [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
            {"registry_name": "to_batch_processor", "config": {}},
            device,
            scaling(
                "normalizer_processor",
                "policy_preprocessor_step_3_normalizer_processor.safetensors",
                inputs | outputs,
            ),
        ],
    }
    after = json.loads((folder / "policy_postprocessor.json").read_text())
    assert after == {
        "name": "policy_postprocessor",
        "steps": [
            scaling(
                "unnormalizer_processor",
                "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
                outputs,
            ),
            device,
        ],
    }
    assert refused(lerobot.save_folder, folder, document, {}, statistics) == (
        f"{folder}: expected a new folder, or an empty one, found something. Nothing is overwritten"
    )
    (tmp_path / "empty").mkdir()
    lerobot.save_folder(tmp_path / "empty", document, {"w": weight}, statistics)


# Weights
def named(folder, *names):
    for number, name in enumerate(names):
        save_file({f"w{number}": torch.full((1,), float(number))}, folder / name)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["model.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ["model1.safetensors", "model2.safetensors"],
    ],
)
def test_the_only_set_of_weights_is_read(names, tmp_path):
    weights = huggingface.load_weights(named(tmp_path, *reversed(names)))
    assert [path.name for path in huggingface.weight_files(tmp_path)] == names
    assert {name: value.item() for name, value in weights.items()} == {
        f"w{number}": float(number) for number in range(len(names))
    }


def test_the_files_of_an_index_are_read_and_no_others(tmp_path):
    named(tmp_path, "b.safetensors", "a.safetensors", "model.safetensors")
    index = {"weight_map": {"w0": "b.safetensors", "w1": "a.safetensors", "w2": "b.safetensors"}}
    (tmp_path / huggingface.INDEX).write_text(json.dumps(index))
    files = huggingface.weight_files(tmp_path)
    assert [path.name for path in files] == ["a.safetensors", "b.safetensors"]
    (tmp_path / "a.safetensors").unlink()
    assert refused(huggingface.weight_files, tmp_path) == (
        f"policy.checkpoint {tmp_path}: expected the files that model.safetensors.index.json "
        "names, found no a.safetensors"
    )
    for weight_map in ({}, None, {"w": "../a.safetensors"}, {"w": 3}, {"w": "a.bin"}, ["a"]):
        (tmp_path / huggingface.INDEX).write_text(json.dumps({"weight_map": weight_map}))
        assert refused(huggingface.weight_files, tmp_path) == (
            f"policy.checkpoint {tmp_path / huggingface.INDEX}: expected a weight_map of tensors "
            f"to file names, got {weight_map}"
        )


def test_no_weights_half_of_them_and_two_sets_are_refused(tmp_path):
    where = f"policy.checkpoint {tmp_path}: expected"
    assert refused(huggingface.weight_files, tmp_path) == (
        f"{where} model*.safetensors, found none. Save the model with safe_serialization=True, or "
        "download that file"
    )
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "found pytorch_model.bin. Save" in refused(huggingface.weight_files, tmp_path)
    named(tmp_path, "adapter_model.safetensors")
    assert refused(huggingface.weight_files, tmp_path) == (
        f"{where} model*.safetensors, found adapter_model.safetensors: adapters alone. Set "
        "policy.adapters to this folder, and policy.checkpoint to that of the model that "
        "adapter_config.json names (base_model_name_or_path)"
    )
    named(tmp_path, "model-00002-of-00003.safetensors")
    assert refused(huggingface.weight_files, tmp_path) == (
        f"{where} 3 files of weights, as their names say, found 1. Copy the others there"
    )
    named(tmp_path, "model.safetensors")
    assert refused(huggingface.weight_files, tmp_path) == (
        f"{where} one set of weights, found model-00002-of-00003.safetensors, model.safetensors "
        "and no model.safetensors.index.json. Leave the files of one set, or copy the index there"
    )


def test_weights_are_float32_finite_and_each_in_one_file(tmp_path):
    save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    weights = huggingface.load_weights(tmp_path)
    assert weights["w"].dtype == torch.float32 and weights["w"].tolist() == [1.0, 1.0]
    for number in (np.nan, np.inf):
        save_file({"w": torch.tensor([1.0, number])}, tmp_path / "model.safetensors")
        assert refused(huggingface.load_weights, tmp_path) == (
            f"policy.checkpoint {tmp_path}: expected finite weights, got NaN or Inf in 'w'. Take "
            "another checkpoint"
        )
    (tmp_path / "model.safetensors").unlink()
    for name in ("model1.safetensors", "model2.safetensors"):
        save_file({"v": torch.ones(1), "w": torch.ones(1)}, tmp_path / name)
    assert refused(huggingface.load_weights, tmp_path) == (
        f"policy.checkpoint {tmp_path / 'model2.safetensors'}: expected each weight in one file, "
        "got 'v' in two. Leave the files of one set, or copy the model.safetensors.index.json there"
    )
    (tmp_path / "model2.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert refused(huggingface.load_weights, tmp_path) == (
        f"policy.checkpoint {tmp_path / 'model2.safetensors'}: expected the file itself, got a "
        "pointer of Git LFS. Fetch it: git lfs pull"
    )


def test_tensors_that_differ_from_the_network_s_are_listed(tmp_path):
    layer = torch.nn.Linear(2, 3)
    good = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}
    assert huggingface.load_into(layer, good, tmp_path) is layer and (layer.weight == 1.0).all()
    for weights, remark in (
        ({"weight": good["weight"]}, "lacks 1, among them bias"),
        (
            good | {"z": good["bias"], "y": good["bias"]},
            "has beside what it should 2, among them y",
        ),
        (good | {"bias": torch.zeros(4)}, "has in other shapes 1, among them bias"),
    ):
        assert refused(huggingface.load_into, torch.nn.Linear(2, 3), weights, tmp_path).startswith(
            f"policy.checkpoint {tmp_path}: expected the tensors of the network of its "
            f"config.json; it {remark}"
        )


# Configs and tokenizers
def test_changes_go_over_a_config_key_by_key():
    base = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "free": {"x": 1}}
    changes = {"b": {"d": {"e": 4}}, "free": {"y": 2}}
    got = huggingface.merge_settings(base, changes, "policy.network", "its config", ("free",))
    assert got == {"a": 1, "b": {"c": 2, "d": {"e": 4}}, "free": {"y": 2}}
    assert base == {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "free": {"x": 1}}, "it is left alone"
    assert huggingface.merge_settings(base, {"b": 5}, "w", "k")["b"] == 5
    for wrong, where, key in (
        ({"bb": 1}, "policy.network", "bb"),
        ({"b": {"d": {"f": 1}}}, "policy.network.b.d", "f"),
        ({"free": {"y": 2}}, "policy.network.free", "y"),
    ):
        message = refused(huggingface.merge_settings, base, wrong, "policy.network", "its config")
        assert message.startswith(f"{where}: expected keys of its config, got '{key}'")


def test_a_config_of_another_model_and_a_missing_file_are_refused(tmp_path):
    where = f"policy.checkpoint {tmp_path}: expected a"
    for name in ("config.json", "tokenizer.json"):
        assert refused(huggingface.folder_config, tmp_path, ("pi0",)) == (
            f"{where} folder with config.json, tokenizer.json and model.safetensors, found no "
            f"{name}"
        )
        (tmp_path / name).write_text('{"model_type": "gpt", "x": 1}')
    assert huggingface.folder_config(tmp_path, ("pi0", "gpt")) == {"model_type": "gpt", "x": 1}
    assert refused(huggingface.folder_config, tmp_path, ("pi0", "pi05")) == (
        f"{where} model_type of pi0 or pi05, got 'gpt'"
    )
    for text, kind in (("[]", "list"), ("3", "int")):
        (tmp_path / "config.json").write_text(text)
        assert refused(huggingface.read_json, tmp_path / "config.json") == (
            f"policy.checkpoint {tmp_path / 'config.json'}: expected a map in config.json, got a "
            f"{kind}"
        )
    huggingface.check_horizon(tmp_path, 5, 5)
    assert refused(huggingface.check_horizon, tmp_path, 5, 4) == (
        f"policy.horizon: expected 5, as the checkpoint {tmp_path} was trained with, got 4. How "
        "many of them are played says policy.n_action_steps"
    )


def test_tokenizers_of_a_file_and_of_bytes():
    text = words("push", "pull")
    tokenizer = tokenization.make_tokenizer(text)
    assert isinstance(tokenizer, FileTokenizer) and tokenizer.text == text
    assert (
        tokenizer.size == 3 and tokenizer.token_id("pull") == 2 and tokenizer.token_id("go") is None
    )
    assert tokenizer.encode("pull it push") == [2, 0, 1]
    assert tokenizer.encode("push <eos>") == [1, 3]
    assert 3 not in tokenizer.encode("push <eos>", plain=True), "no special token in plain words"
    letters = tokenization.make_tokenizer("")
    assert isinstance(letters, ByteTokenizer) and (letters.text, letters.size) == ("", 0)
    assert letters.encode("aé") == [97, 195, 169] and letters.token_id("a") is None


def test_sentences_are_padded_behind_and_to_a_multiple():
    ids, mask = tokenization.pad_tokens([[5, 6, 7], [8]], torch.device("cpu"), before=(1, 2))
    assert ids.tolist() == [[1, 2, 5, 6, 7], [1, 2, 8, 0, 0]]
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    ids, mask = tokenization.pad_tokens([[5, 6, 7], [8]], torch.device("cpu"), multiple=4)
    assert ids.tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert mask.sum(dim=1).tolist() == [3, 1]
    assert [tokenization.round_up(length, 4) for length in (1, 4, 5, 8)] == [4, 4, 8, 8]
