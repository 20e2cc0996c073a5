"""Adapters in the published networks: what they compute, what is trained, and what a file with them
holds.
"""

import copy
import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.torch import load_file, save_file

from rlinf_core.algorithms.grpo import Config as GRPOConfig
from rlinf_core.algorithms.grpo import Learner as GRPO
from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, RlinfError, SpecError
from rlinf_core.policies import policy_kind
from rlinf_core.policies.policy_folder import newest_policy, policy_name
from rlinf_core.policies.pretrained import adapter_files, tiny_checkpoint
from rlinf_core.policies.pretrained.huggingface import weight_files
from rlinf_core.policies.pretrained.tokenization import FileTokenizer
from rlinf_core.policies.serialization import LONG, load_policy, save_policy
from tests.algorithms.learning import randomize_head, words_of_actions
from tests.policies import (
    test_groot,
    test_groot_n1_6,
    test_openvla,
    test_pi0,
    test_pi0_fast,
    test_qwen_vl,
    test_smolvla,
    test_xvla,
)

LORA = {"lora": {"rank": 2, "alpha": 8.0}}


def pi0_fast(**config):
    """One whose fresh weights write actions."""
    return randomize_head(
        test_pi0_fast.fast(network=test_pi0_fast.SMALL | words_of_actions(), **config)
    )


KINDS = {
    "pi0": (test_pi0.pi0, test_pi0.observation),
    "openvla": (test_openvla.openvla, test_openvla.observation),
    "qwen_vl": (test_qwen_vl.qwen, test_qwen_vl.observation),
    "groot": (test_groot.groot, test_smolvla.observation),
    "groot_n1_6": (test_groot_n1_6.groot, test_smolvla.observation),
    "xvla": (test_xvla.xvla, test_smolvla.observation),
    "smolvla": (test_smolvla.smolvla, test_smolvla.observation),
    "pi0_fast": (pi0_fast, test_pi0_fast.observation),
}


def moved(policy):
    """Adapters that do something."""
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_B" in name:
                parameter.copy_(
                    0.1
                    * torch.randn(
                        parameter.shape, generator=torch.Generator().manual_seed(len(name))
                    )
                )
    return policy


@pytest.mark.parametrize("kind", KINDS)
def test_they_act_as_the_merged_weights_do(kind):
    make, observation = KINDS[kind]
    plain, policy, observations = make(), make(**LORA), observation("push")
    begun = policy.act(observations, True, torch.Generator().manual_seed(0)).actions
    assert torch.equal(
        begun, plain.act(observations, True, torch.Generator().manual_seed(0)).actions
    ), "at first they do nothing"
    state, merged = moved(policy).state_dict(), plain.state_dict()
    for name in [name for name in state if name.endswith("lora_A.default.weight")]:
        layer = name.removesuffix(".lora_A.default.weight")
        merged[f"{layer}.weight"] += 8 / 2 * state[layer + ".lora_B.default.weight"] @ state[name]
    plain.load_state_dict(merged)
    acted = [
        actor.act(observations, True, torch.Generator().manual_seed(0)).actions
        for actor in (policy, plain)
    ]
    assert torch.allclose(*acted, atol=1e-4) and not torch.allclose(acted[0], begun, atol=1e-2)


def loss_of_many_draws(policy, inputs, actions, draws=64):
    """The imitation loss over fixed draws of noise and time; that of one draw varies 5 times."""
    repeated = {name: values.repeat_interleave(draws, 0) for name, values in inputs.items()}
    goals = torch.from_numpy(actions).repeat_interleave(draws, 0)
    with torch.no_grad():
        return float(
            policy.imitation_loss(repeated, goals, torch.Generator().manual_seed(1)).detach()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_learners_train_them_alone(kind):
    make, observation = KINDS[kind]
    policy = make(**LORA)
    before = copy.deepcopy(policy.state_dict())
    inputs = policy.to_batch(observation("push", "pull"))
    batch = {name: values.numpy() for name, values in inputs.items()}
    actions = np.full((2, policy.action_size), 0.5, np.float32)
    first = loss_of_many_draws(policy, inputs, actions)
    learner = Learner(policy, SFTConfig(learning_rate=1e-2, min_std=0.0, image_shift=0), seed=0)
    for _ in range(20):
        learner.update(batch | {"action": actions})
    changed = {
        name for name, value in policy.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed and all(".lora_" in name for name in changed)
    assert loss_of_many_draws(policy, inputs, actions) < 0.9 * first
    with pytest.raises(RlinfError, match="algorithm.lora_rank: expected 0"):
        Learner(policy, SFTConfig(lora_rank=2), seed=0)
    trained = GRPO(policy, GRPOConfig(group=2), 0).optimisers["policy"].param_groups[0]["params"]
    adapters = [value for name, value in policy.named_parameters() if ".lora_" in name]
    assert {id(parameter) for parameter in trained} == {id(parameter) for parameter in adapters}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_them_alone_and_names_its_base(kind, tmp_path):
    make, observation = KINDS[kind]
    full_file = save_policy(make(), tmp_path / "whole" / policy_name(1))
    policy, observations = make(**LORA), observation("push")
    save_policy(policy, tmp_path / policy_name(1))
    file = save_policy(moved(policy), tmp_path / policy_name(2))
    (base,) = tmp_path.glob("base-*.safetensors")
    assert newest_policy(tmp_path) == file and base.stat().st_size > 0.9 * (
        full_file.stat().st_size - 2**14
    )
    again = load_policy(file)
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )

    data = bytearray(base.read_bytes())
    data[-5] ^= 64
    base.write_bytes(data)
    with pytest.raises(PolicyFileError, match="expected weights of hash .* damaged or changed"):
        load_policy(file)
    base.write_bytes(data[:-9])
    with pytest.raises(PolicyFileError, match="truncated"):
        load_policy(file)
    base.unlink()
    with pytest.raises(PolicyFileError, match=f"unchanged base weights in {base.name}"):
        load_policy(file)


def test_a_tokenizer_goes_with_the_base_and_not_with_every_version(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"word{i}": i for i in range(200)}, unk_token="word0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    policy = test_openvla.openvla(**LORA)
    policy.tokenizer = FileTokenizer(words.to_str() + " " * LONG)
    files = [save_policy(policy, tmp_path / policy_name(version)) for version in (1, 2)]
    (base,) = tmp_path.glob("base-*.safetensors")
    assert (
        all(b"word199" not in file.read_bytes() for file in files)
        and base.read_bytes().count(b"word199") == 1
    )
    assert load_policy(files[1]).tokenizer.text == policy.tokenizer.text
    policy.tokenizer = FileTokenizer(words.to_str().replace("word199", "word998") + " " * LONG)
    save_policy(policy, tmp_path / policy_name(3))
    assert len(list(tmp_path.glob("base-*.safetensors"))) == 2, "other words are another base"
    base.write_bytes(base.read_bytes().replace(b"word199", b"word299"))
    with pytest.raises(PolicyFileError, match="expected weights of hash .* damaged or changed"):
        load_policy(files[1])


def test_what_travels_is_under_a_tenth(tmp_path):
    """The network has 6 million numbers."""
    text = {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
    }
    policy = test_openvla.openvla(
        network=test_openvla.SMALL | {"text_config": text}, lora={"rank": 4}
    )
    file = save_policy(policy, tmp_path / policy_name(1))
    (base,) = tmp_path.glob("base-*.safetensors")
    assert file.stat().st_size < 0.1 * base.stat().st_size and base.stat().st_size > 20_000_000


def theirs_of(kind, folder):
    """Return the published model by its maker's own class."""
    import transformers

    name = {"pi0": "PI0ForConditionalGeneration", "qwen_vl": "Qwen2_5_VLForConditionalGeneration"}[
        kind
    ]
    return getattr(transformers, name).from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize("kind", ["pi0", "qwen_vl"])
def test_peft_reads_the_folder_and_a_policy_begins_with_it(kind, tmp_path):
    """The merged weights are those that the library peft makes of the same folder."""
    from peft import PeftModel

    part = policy_kind(kind)
    folder = tiny_checkpoint.write(kind, tmp_path / "tiny", horizon=2 if kind == "pi0" else 0)
    config = {
        "checkpoint": str(folder),
        "horizon": 2,
        **({"stochastic_eval": False} if kind == "pi0" else {}),
    }
    policy = moved(part.Policy(test_pi0.SPEC, part.Config(**config, **LORA)).eval())
    adapters = adapter_files.save(
        policy.network, policy.config.lora, policy.factory, str(folder), tmp_path / "adapters"
    )
    begun = part.Policy(test_pi0.SPEC, part.Config(**config, adapters=str(adapters))).eval()
    observations = test_pi0.observation("push", "pull")
    acted, again = (actor.act(observations, False).actions for actor in (policy, begun))
    assert torch.allclose(acted, again, atol=1e-5)
    theirs = (
        PeftModel.from_pretrained(theirs_of(kind, folder), adapters).merge_and_unload().state_dict()
    )
    mine, plain = begun.network.state_dict(), theirs_of(kind, folder).state_dict()
    compared = [name for name in mine if name in theirs]
    assert len(compared) > 0.9 * len(mine) and all(
        torch.allclose(mine[name], theirs[name], atol=1e-6) for name in compared
    )
    assert (
        sum(not torch.equal(theirs[name], plain[name]) for name in compared)
        >= len(load_file(adapters / "adapter_model.safetensors")) // 2
    )
    with pytest.raises(
        PolicyFileError,
        match="found adapter_model.safetensors: adapters alone. Set policy.adapters",
    ):
        weight_files(adapters)


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"peft_type": "IA3"}, "expected peft_type of LORA in adapter_config.json, got 'IA3'"),
        ({"use_dora": True}, "expected plain LoRA .* got use_dora"),
        ({"bias": "all"}, "expected bias of none"),
        ({"lora_alpha": "x"}, "expected a number as lora_alpha"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "expected a number as lora_alpha"),
    ],
)
def test_adapters_of_another_kind_are_refused(changes, error, tmp_path):
    policy = test_qwen_vl.qwen(**LORA)
    folder = adapter_files.save(
        policy.network, policy.config.lora, policy.factory, "base", tmp_path
    )
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PolicyFileError, match=error):
        adapter_files.merge(folder, test_qwen_vl.qwen().network, policy.factory)


def test_adapters_of_another_model_are_named_and_what_scales_them_is_read(tmp_path):
    policy, plain = moved(test_qwen_vl.qwen(**LORA)), test_qwen_vl.qwen()
    folder = adapter_files.save(
        policy.network, policy.config.lora, policy.factory, "base", tmp_path / "peft"
    )
    with pytest.raises(
        PolicyFileError, match="expected adapters of this network, got .* for other weights"
    ):
        adapter_files.merge(folder, test_pi0.pi0().network, test_pi0.pi0().factory)
    path, before = folder / "adapter_config.json", plain.network.state_dict()
    before = {name: tensor.clone() for name, tensor in before.items()}
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    path.write_text(
        json.dumps(
            json.loads(path.read_text()) | {"use_rslora": True, "alpha_pattern": {"q_proj": 3.0}}
        )
    )
    adapter_files.merge(folder, plain.network, plain.factory)
    state, layer = policy.network.state_dict(), name.removesuffix(".weight")
    delta = (
        3.0
        / 2**0.5
        * state[f"{layer}.lora_B.default.weight"]
        @ state[f"{layer}.lora_A.default.weight"]
    )
    assert torch.allclose(plain.network.state_dict()[name], before[name] + delta, atol=1e-6)
    weights = load_file(folder / "adapter_model.safetensors")
    one = f"base_model.model.{layer}"
    save_file(
        weights | {f"{one}.bias": torch.ones(weights[f"{one}.lora_B.weight"].shape[0])},
        folder / "adapter_model.safetensors",
    )
    adapter_files.merge(folder, plain.network, plain.factory)
    assert (plain.network.state_dict()[f"{layer}.bias"] == 1.0).all(), "trained whole"
    weights.pop(f"{one}.lora_B.weight")
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(PolicyFileError, match="expected lora_A .* and lora_B"):
        adapter_files.merge(folder, plain.network, plain.factory)
    (folder / "adapter_model.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1"
    )
    with pytest.raises(PolicyFileError, match="git lfs pull"):
        adapter_files.merge(folder, plain.network, plain.factory)
    with pytest.raises(SpecError, match="expected a policy with adapters"):
        adapter_files.save(plain.network, plain.config.lora, plain.factory, "base", folder)
