"""pi0.5: what it computes, beside a computation by hand; what its model reads; what it learns; what
is refused.
"""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.pi05 import Config
from rlinf_core.policies.pretrained.pi05.policy import Pi05
from rlinf_core.policies.serialization import load_policy, save_policy
from tests.policies.bandit import paid_before_and_after
from tests.policies.test_pi0 import LAYERS, SMALL, SPEC, observation

SIZES = SMALL | {
    "dit_config": LAYERS | {"hidden_size": 24, "num_hidden_layers": 2},
    "vlm_config": SMALL["vlm_config"] | {"text_config": LAYERS | {"num_hidden_layers": 2}},
}


def pi05(spread=True, **config):
    """Return a network with spread weights, whose output depends on the time and all inputs."""
    torch.manual_seed(0)
    policy = Pi05(SPEC, Config(**{"horizon": 4, "network": SIZES, "flow_steps": 3} | config)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    return policy


def by_hand(policy, keys, values, point, time):
    """The velocity (H, M) of one observation whose prefix has these keys and values (heads, L, D)
    in each layer.
    """
    weights, eps = dict(policy.network.named_parameters()), 1e-6

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def normed(x, name):
        scale, shift, gate = linear(time_features, f"{name}.dense").chunk(3)
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * (1 + scale) + shift, gate

    def turned(x):  # (heads, H, 16), the longest wave 10,000
        angle = (keys[0].shape[1] + torch.arange(4))[:, None] * 10_000.0 ** (-torch.arange(8) / 8)
        both = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([both.real, both.imag], dim=-1)

    period = 4e-3 * 1000 ** torch.linspace(0, 1, 12, dtype=torch.float64)
    waves = torch.cat(
        [(2 * torch.pi / period * time).sin(), (2 * torch.pi / period * time).cos()]
    ).float()
    time_features = F.silu(linear(F.silu(linear(waves, "time_mlp_in")), "time_mlp_out"))
    x = linear(point, "action_in_proj")
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        layer = f"dit.layers.{index}"
        h, gate = normed(x, f"{layer}.input_layernorm")
        query, mine, suffix_value = (
            linear(h, f"{layer}.self_attn.{part}_proj").view(4, -1, 16).transpose(0, 1)
            for part in "qkv"
        )
        key, value = torch.cat([key, turned(mine)], dim=1), torch.cat([value, suffix_value], dim=1)
        scores = (turned(query) @ key.transpose(1, 2) / 4).softmax(dim=-1)
        x = x + gate * linear(
            (scores @ value).transpose(0, 1).flatten(1), f"{layer}.self_attn.o_proj"
        )
        h, gate = normed(x, f"{layer}.post_attention_layernorm")
        inner = F.gelu(linear(h, f"{layer}.mlp.gate_proj"), approximate="tanh") * linear(
            h, f"{layer}.mlp.up_proj"
        )
        x = x + gate * linear(inner, f"{layer}.mlp.down_proj")
    return linear(normed(x, "dit.norm")[0], "action_out_proj")


@torch.no_grad()
def test_its_velocity_is_that_of_a_computation_by_hand():
    """The prefix is that of transformers' PaliGemma where pictures stand for tokens, of one
    observation without padding.
    """
    policy, observations = pi05(), observation("push", "pull the red cube")
    observations.vectors[1] = torch.tensor([0.001, 1.2, -2.0])
    inputs = policy.inputs(policy.to_batch(observations))
    assert not inputs["mask"].all()
    point, time = policy.noise(2, torch.Generator().manual_seed(3)), torch.tensor([0.9, 0.3])
    got, vlm = policy._velocity(inputs, policy._prefix(inputs), point, time), policy.network.vlm
    for index in range(2):
        words = inputs["ids"][index][inputs["mask"][index]]
        pixels = inputs["pixels"][index]
        ids = torch.cat([torch.full((8,), vlm.config.image_token_id), words])[None]
        cache = vlm(
            input_ids=ids,
            pixel_values=pixels,
            attention_mask=torch.ones_like(ids),
            token_type_ids=torch.zeros_like(ids),
            position_ids=torch.arange(ids.shape[1])[None],
            use_cache=True,
        ).past_key_values
        keys, values = (
            [getattr(layer, part)[0] for layer in cache.layers] for part in ("keys", "values")
        )
        expected = by_hand(policy, keys, values, point[index], time[index].item())
        assert torch.allclose(got[index], expected, atol=2e-5) and expected.std() > 0.2


def test_its_model_reads_the_state_as_bins_of_what_is_normal():
    """Normalised values that were learned without statistics stay in the bins."""
    policy = pi05()
    policy.normalisation.set_statistics(np.array([1.0, 0.0, 0.0]), np.full(3, 2.0) - 1e-4)
    observations = observation("push_the cube", "pull")
    observations.vectors.copy_(torch.tensor([[1.0, 9.9, -9.9], [1.0 + 2 * 2.3263 / 2, -0.1, 0.0]]))
    state = (np.array([2 * 2.3263 / 2, -0.1, 0.0]) / 2 / 2.3263).clip(-1, 1)
    bins = np.digitize(state, np.linspace(-1, 1, 257)[:-1]) - 1
    prompts = [
        bytes(tokens[1:]).decode()
        for tokens in policy.tokenize_with_state(policy.to_batch(observations))
    ]
    assert prompts == [
        "Task: push the cube, State: 128 255 0;\nAction: ",
        f"Task: pull, State: {' '.join(map(str, bins))};\nAction: ",
    ] and list(bins) == [192, 125, 128]
    assert {tokens[0] for tokens in policy.tokenize_with_state(policy.to_batch(observations))} == {
        256
    }, "begins"


def test_log_densities_again_and_grpo():
    policy, observations = pi05(sde_noise=0.5, n_action_steps=2), observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(2))
    log_probs, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(log_probs, chunk.log_probs[:, :2], atol=1e-4) and log_probs.requires_grad
    policy, observations = pi05(sde_noise=0.5, horizon=1, flow_steps=2), observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 10, learning_rate=5e-3)
    assert before < 0.75 and after > 0.85


def test_by_cloning_it_learns_to_do_as_it_is_told():
    policy, targets = pi05(spread=False), {"left": -0.7, "right": 0.7}
    learner = Learner(policy, SFTConfig(learning_rate=4e-3, min_std=0.0, image_shift=0), seed=0)
    for step in range(80):
        observations = observation(*(["left", "right"] * 4), seed=step)
        batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
        batch["action"] = np.repeat(
            [[targets[word]] for word in observations.instruction], 8, axis=1
        ).astype(np.float32)
        learner.update(batch)
    acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
    assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


@pytest.fixture
def folder(tmp_path):
    """Write a network from scratch with LeRobot's key names; its tokenizer knows three words."""
    words = {"<unk>": 0, "push": 1, "<bos>": 2, "<image>": 3}
    text = json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    )
    return tiny_checkpoint.write("pi05", tmp_path / "tiny", SIZES, text, horizon=4, seed=1)


def changed(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def as_published(weights):
    """Rename the keys as in LeRobot's and openpi's files, with an unused head."""
    before, paligemma = "model.paligemma_with_expert.", "model.paligemma_with_expert.paligemma."
    assert (
        f"{paligemma}model.vision_tower.vision_model.embeddings.patch_embedding.weight" in weights
    )
    assert {
        f"{before}gemma_expert.model.layers.1.input_layernorm.dense.bias",
        "model.time_mlp_in.bias",
    } <= weights.keys()
    weights[f"{paligemma}lm_head.weight"] = weights.pop(
        f"{paligemma}model.language_model.embed_tokens.weight"
    )
    weights[f"{before}gemma_expert.lm_head.weight"] = torch.zeros(5, 24)


def test_a_folder_and_a_policy_file_give_the_same_actions_back(folder, tmp_path):
    plain = Pi05(
        SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(folder), flow_steps=2)
    ).eval()
    changed(folder, as_published)
    policy = Pi05(
        SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(folder), flow_steps=2)
    ).eval()
    observations = observation("push", "pull")
    again = load_policy(save_policy(policy, tmp_path / "policy-00000001.safetensors"), SPEC)
    acted = [
        actor.act(observations, True, torch.Generator().manual_seed(0)).actions
        for actor in (plain, policy, again)
    ]
    assert torch.equal(acted[0], acted[1]) and torch.equal(acted[1], acted[2])


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda folder: changed(folder, lambda weights: weights.pop("model.time_mlp_in.bias")),
            "lacks 1, .*time_mlp_in.bias",
        ),
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            "Copy that of google/paligemma-3b-pt-224 there",
        ),
        (
            lambda folder: (folder / "config.json").write_text('{"type": "pi0"}'),
            "of LeRobot's type pi05, got 'pi0'",
        ),
        (
            lambda folder: configured(folder, paligemma_variant="x"),
            "expected a variant of gemma_2b or gemma_300m in config.json, got 'x'",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_name(folder, change, error):
    change(folder)
    with pytest.raises(PolicyFileError, match=error):
        Pi05(SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(folder)))
    with pytest.raises(SpecError, match="expected a sentence, which a pi05 acts on"):
        pi05().act(observation(" "), False)
