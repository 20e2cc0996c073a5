"""SmolVLA: what it computes, beside LeRobot's own and beside a computation by hand; what it learns;
what is refused.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.smolvla import Config
from rlinf_core.policies.pretrained.smolvla.network import FACTORY
from rlinf_core.policies.pretrained.smolvla.policy import SmolVLA
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after

VENV = Path(".venvs/lerobot").resolve()
CAMERAS = {"front": (24, 32, 3), "wrist": (48, 40, 3)}
SPEC = StationSpec(
    (
        ArraySpec("pose", (3,)),
        *(ArraySpec(name, shape, "uint8") for name, shape in CAMERAS.items()),
    ),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    10.0,
    "push",
)
VLM = {
    "scale_factor": 2,
    "text_config": {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
    },
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "patch_size": 8,
        "image_size": 32,
    },
}
SIZES = {
    "max_state_dim": 5,
    "max_action_dim": 4,
    "num_vlm_layers": 2,
    "resize_imgs_with_padding": [32, 32],
}
SMALL = SIZES | {"vlm_config": VLM}


def smolvla(spread=True, **config):
    """Return a network with spread weights, whose output depends on all inputs."""
    torch.manual_seed(0)
    policy = SmolVLA(
        SPEC, Config(**{"horizon": 3, "network": SMALL, "flow_steps": 4} | config)
    ).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    return policy


def observation(*sentences, seed=0):
    random = np.random.default_rng(seed)
    pictures = {
        name: torch.from_numpy(random.integers(0, 255, (len(sentences), *shape), np.uint8))
        for name, shape in CAMERAS.items()
    }
    vectors = torch.from_numpy(random.normal(size=(len(sentences), 3)).astype(np.float32))
    return Observation(vectors, pictures, sentences)


def turned(x, places):
    """Rotary positions of (heads, L, D), as complex numbers, whose longest wave is 10,000."""
    half = x.shape[-1] // 2
    angle = torch.as_tensor(places)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    both = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([both.real, both.imag], dim=-1)


def by_hand(policy, sentence, images, vectors, point, time):
    """The velocity of one observation (H, M), as LeRobot trains: prefix and actions through all
    layers together.
    """
    network, weights = policy.network, dict(policy.network.named_parameters())
    text, expert = "vlm_with_expert.vlm.model.text_model", "vlm_with_expert.lm_expert"

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def normed(x, name):
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def heads(x):
        return x.view(len(x), -1, 8).transpose(0, 1)

    def attended(query, key, value, mask):
        key, value = (heads_of_group.repeat_interleave(2, dim=0) for heads_of_group in (key, value))
        scores = (query @ key.transpose(1, 2) / 8**0.5).masked_fill(~mask, -torch.inf)
        return (scores.softmax(dim=-1) @ value).transpose(0, 1).flatten(1)

    def after(x, attention, name):
        x = x + linear(attention, f"{name}.self_attn.o_proj")
        h, mlp = normed(x, f"{name}.post_attention_layernorm"), f"{name}.mlp"
        return x + linear(
            F.silu(linear(h, f"{mlp}.gate_proj")) * linear(h, f"{mlp}.up_proj"), f"{mlp}.down_proj"
        )

    def square(image, camera):
        image = image.permute(2, 0, 1)[None] / 255
        shape = {"front": (24, 32), "wrist": (32, 26)}[camera]
        image = F.interpolate(image, shape, mode="bilinear", align_corners=False)[0]
        padded = torch.zeros(3, 32, 32)
        padded[:, -shape[0] :, -shape[1] :] = image
        return padded * 2 - 1

    pictures = torch.stack([square(images[name], name) for name in CAMERAS])
    features = network.vlm.connector(network.vlm.vision_model(pictures).last_hidden_state).flatten(
        0, 1
    )
    words = weights[f"{text}.embed_tokens.weight"][list(f"{sentence}\n".encode())]
    state = linear(F.pad(vectors, (0, 2)), "state_proj")[None]
    x = torch.cat([features * 32**0.5, words * 32**0.5, state])
    period = 4e-3 * 1000 ** torch.linspace(0, 1, 12, dtype=torch.float64)
    waves = torch.cat(
        [(2 * torch.pi / period * time).sin(), (2 * torch.pi / period * time).cos()]
    ).float()
    y = torch.cat([linear(point, "action_in_proj"), waves.expand(3, -1)], dim=-1)
    y = linear(F.silu(linear(y, "action_time_mlp_in")), "action_time_mlp_out")
    many, order = len(x), torch.arange(len(x) + 3)
    mask = (order < many - 1)[None] | (
        (order[None] <= order[:, None]) & (order[:, None] >= many - 1)
    )
    for index in range(2):
        one, other = f"{text}.layers.{index}", f"{expert}.layers.{index}"
        hx, hy = normed(x, f"{one}.input_layernorm"), normed(y, f"{other}.input_layernorm")
        query, key, value = (heads(linear(hx, f"{one}.self_attn.{part}_proj")) for part in "qkv")
        query, key = turned(query, order[:many]), turned(key, order[:many])
        mine = heads(linear(hy, f"{other}.self_attn.q_proj"))
        if index == 0:
            keys = torch.cat(
                [key, turned(heads(linear(hy, f"{other}.self_attn.k_proj")), order[many:])], dim=1
            )
            values = torch.cat([value, heads(linear(hy, f"{other}.self_attn.v_proj"))], dim=1)
            saw = attended(turned(mine, order[many:]), keys, values, mask[many:])
        else:
            keys, values = (
                heads(linear(states.transpose(0, 1).flatten(1), f"{other}.self_attn.{part}_proj"))
                for states, part in ((key, "k"), (value, "v"))
            )
            saw = attended(
                turned(mine, order[:3]), keys, values, torch.ones(3, many, dtype=torch.bool)
            )
        y = after(y, saw, other)
        x = after(x, attended(query, key, value, mask[:many, :many]), one)
    return linear(normed(y, f"{expert}.norm"), "action_out_proj")


@torch.no_grad()
def test_its_velocity_is_that_of_a_computation_by_hand():
    policy, observations = smolvla(), observation("push", "pull the red cube")
    inputs = policy.inputs(policy.to_batch(observations))
    point, time = policy.noise(2, torch.Generator().manual_seed(3)), torch.tensor([0.9, 0.3])
    got = policy._velocity(inputs, policy._prefix(inputs), point, time)
    for index, sentence in enumerate(observations.instruction):
        images = {name: image[index] for name, image in observations.images.items()}
        state = policy.normalisation.normalize(observations.vectors)[index]
        expected = by_hand(policy, sentence, images, state, point[index], time[index].item())
        assert torch.allclose(got[index], expected, atol=2e-5) and expected.std() > 0.2


def test_what_a_learner_computes_again_is_what_was_drawn_with():
    policy, observations = smolvla(sde_noise=0.5, n_action_steps=2), observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(2))
    log_probs, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(log_probs, chunk.log_probs[:, :2], atol=1e-4) and log_probs.requires_grad
    assert (
        policy.act(observations, False).log_probs is None
        and smolvla().act(observations, True).log_probs is None
    )


def test_by_cloning_it_learns_to_do_as_it_is_told_and_frozen_the_expert_alone_moves():
    targets = {"left": -0.7, "right": 0.7}
    for frozen, updates in ((False, 80), (True, 1)):
        policy = smolvla(spread=False, frozen=frozen, flow_steps=3)
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
        if frozen:
            assert "network.state_proj.weight" in moved and not any(
                ".vlm." in name for name in moved
            )
        else:
            acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
            assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


def test_grpo_raises_what_pays():
    policy = smolvla(sde_noise=0.5, horizon=1, flow_steps=2)
    observations = observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 10, learning_rate=5e-3)
    assert before < 0.75 and after > 0.85


@pytest.fixture
def folder(tmp_path):
    """Write a network from scratch as it is published; its tokenizer knows three words."""
    words = {"<unk>": 0, "push": 1, "pull": 2}
    text = json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    )
    return tiny_checkpoint.write("smolvla", tmp_path / "tiny", SMALL, text, horizon=3, seed=1)


def changed(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_a_folder_and_a_policy_file_give_the_same_actions_back(folder, tmp_path):
    def compiled(weights):
        for name in list(weights):
            weights[name.replace("model.", "model._orig_mod.", 1)] = weights.pop(name)

    changed(folder, compiled)
    changed(
        folder,
        lambda weights: weights.update(
            {
                "model.vlm_with_expert.vlm.lm_head.weight": torch.zeros(3, 32),
                "normalize_inputs.buffer.mean": torch.zeros(3),
            }
        ),
    )
    policy = SmolVLA(
        SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder), flow_steps=2)
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
    third = SmolVLA(
        SPEC,
        Config(horizon=3, stochastic_eval=False, checkpoint=str(tmp_path / "again"), flow_steps=2),
    ).eval()
    third.normalisation = policy.normalisation
    assert torch.equal(
        third.act(observations, False).actions, policy.act(observations, False).actions
    )


def config_value(**keys):
    def change(folder):
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(document | keys))

    return change


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda folder: changed(folder, lambda weights: weights.pop("model.state_proj.bias")),
            "lacks 1, .*state_proj.bias",
        ),
        (
            lambda folder: changed(folder, lambda weights: weights.update(extra=torch.zeros(1))),
            "what it should 1, .*extra",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"{}"),
            "expected a whole safetensors file",
        ),
        (
            lambda folder: (folder / "vlm/tokenizer.json").unlink(),
            "expected tokenizer.json of its vision-language model",
        ),
        (config_value(vlm_model_name="nobody/nothing"), "hf download nobody/nothing config.json"),
        (config_value(type="act"), "expected a config.json of LeRobot's type smolvla, got 'act'"),
        (
            config_value(attention_mode="self_attn"),
            "attention_mode of self_attn, expected cross_attn",
        ),
        (
            config_value(num_expert_layers=1),
            "num_expert_layers of 1, expected -1, 0 or num_vlm_layers",
        ),
        (config_value(chunk_size=50), "policy.horizon: expected 50"),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            "expected a folder with a map in config.json",
        ),
        (
            lambda folder: (folder / "config.json").unlink(),
            "expected a folder with a map in config.json",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_name(folder, change, error):
    change(folder)
    with pytest.raises(PolicyFileError, match=error):
        SmolVLA(SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(folder)))


def test_what_does_not_fit_is_named():
    with pytest.raises(SpecError, match="expected at least one camera for a SmolVLA"):
        SmolVLA(
            StationSpec(SPEC.observation[:1], SPEC.action, 10.0, "push"),
            Config(horizon=3, network=SMALL),
        )
    with pytest.raises(
        SpecError, match="expected at most 2 observed numbers for a SmolVLA of this size, got 3"
    ):
        smolvla(network=SMALL | {"max_state_dim": 2})
    with pytest.raises(
        SpecError, match="instruction: expected a sentence, which a SmolVLA acts on"
    ):
        smolvla().act(observation(" "), False)
    with pytest.raises(
        PolicyFileError,
        match=r"policy.network.vlm_config.text_config: .* got 'hiden_size' \(did you mean",
    ):
        smolvla(network={"vlm_config": {"text_config": {"hiden_size": 8}}})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (VENV / "bin/python").exists(), reason="not run: .venvs/lerobot is not there (make lerobot)"
)
def test_lerobot_s_own_smolvla_says_the_same_of_a_folder_that_it_has_saved(tmp_path):
    observations = observation("push the red cube", "pull", seed=4)
    draw = torch.Generator().manual_seed(5)
    noise, uniform = torch.randn(2, 3, 4, generator=draw), torch.rand(2, generator=draw)
    action = torch.rand(2, 3, 2) * 2 - 1
    mean, std = [0.1, -0.2, 0.3], [1.0, 2.0, 0.5]
    np.savez(
        tmp_path / "given.npz",
        **{name: image.numpy() for name, image in observations.images.items()},
        noise=noise.numpy(),
        state=observations.vectors.numpy(),
        time=(uniform ** (1 / 1.5) * 0.999 + 0.001).numpy(),
        action=action.numpy(),
    )
    config = SIZES | {"chunk_size": 3, "n_action_steps": 3, "num_steps": 4}
    (tmp_path / "given.json").write_text(
        json.dumps(
            {
                "vlm_config": VLM,
                "cameras": list(CAMERAS),
                "config": config,
                "sentences": list(observations.instruction),
                "mean": mean,
                "std": std,
            }
        )
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    process = subprocess.run(
        [VENV / "bin/python", "tests/policies/smolvla_itself.py", tmp_path],
        text=True,
        capture_output=True,
        env=environment | {"LD_LIBRARY_PATH": str(VENV / "ffmpeg")},
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    theirs = np.load(tmp_path / "said.npz")
    policy = SmolVLA(
        SPEC, Config(horizon=3, stochastic_eval=False, checkpoint=str(tmp_path), flow_steps=4)
    ).eval()
    policy.normalisation.set_statistics(np.array(mean), np.array(std) - 1e-4)
    batch = policy.to_batch(observations)
    with torch.no_grad():
        ours = policy.decode(batch, noise).view(2, 3, 2).numpy()
        loss = policy.imitation_loss(
            batch, action.flatten(1), torch.Generator().manual_seed(5)
        ).item()
    assert (
        ours == pytest.approx(theirs["chunk"].clip(-1, 1), abs=1e-5) and theirs["chunk"].std() > 0.1
    )
    assert loss == pytest.approx(theirs["losses"][..., :2].mean(), rel=1e-5)
