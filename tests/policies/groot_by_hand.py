"""A second implementation of GR00T's velocity for one observation."""

import math

import torch
from torch.nn import functional as F

from tests.policies.test_smolvla import CAMERAS


def eagle_by_hand(network, sentence, images):
    """Return the features (L, D) of one observation by transformers' own modules."""
    eagle = network.backbone["eagle_model"]
    pictures = torch.stack(
        [
            F.interpolate(
                images[name].permute(2, 0, 1)[None].float(),
                (32, 32),
                mode="bicubic",
                antialias=True,
            )[0]
            .round()
            .clamp(0, 255)
            for name in CAMERAS
        ]
    )
    features = eagle["vision_model"]["vision_model"](
        pictures / 255 * 2 - 1
    ).last_hidden_state.flatten(0, 1)
    model = eagle["language_model"]["model"]
    words = model.embed_tokens(torch.tensor(list(sentence.encode())))
    return model(
        inputs_embeds=torch.cat([eagle["mlp1"](features), words])[None], output_hidden_states=True
    ).hidden_states[2][0]


def by_hand(policy, sentence, images, state, point, time):
    """Return the velocity of one observation (H, M) by the names of the weights."""
    weights = {
        name.removeprefix("action_head."): value
        for name, value in policy.network.named_parameters()
    }
    bucket = int(1000 * (1 - time))

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def embodiment_linear(x, name):
        return x @ weights[f"{name}.W"][2] + weights[f"{name}.b"][2]

    def perceptron(x, name):
        return embodiment_linear(embodiment_linear(x, f"{name}.layer1").relu(), f"{name}.layer2")

    def normed(x):
        return (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()

    def waves(count, last):
        angle = bucket / 10_000 ** (torch.arange(count) / last)
        return angle.sin(), angle.cos()

    def block(x, name, other=None, when=None):
        def norm(x, which):
            scale = weights.get(f"{name}.{which}.weight", torch.ones(()))
            return normed(x) * scale + weights.get(f"{name}.{which}.bias", torch.zeros(()))

        if when is None:
            y = norm(x, "norm1")
        else:
            scale, shift = linear(F.silu(when), f"{name}.norm1.linear").chunk(2)
            y = normed(x) * (1 + scale) + shift
        parts = {"q": y, "k": y if other is None else other, "v": y if other is None else other}
        query, key, value = (
            linear(states, f"{name}.attn1.to_{part}").view(len(states), 4, 8).transpose(0, 1)
            for part, states in parts.items()
        )
        attended = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(8), dim=-1) @ value
        x = x + linear(attended.transpose(0, 1).flatten(1), f"{name}.attn1.to_out.0")
        hidden = F.gelu(linear(norm(x, "norm3"), f"{name}.ff.net.0.proj"), approximate="tanh")
        return x + linear(hidden, f"{name}.ff.net.2")

    features = eagle_by_hand(policy.network, sentence, images)
    features = normed(features) * weights["vlln.weight"] + weights["vlln.bias"]
    features = block(features, "vl_self_attention.transformer_blocks.0")
    actions = embodiment_linear(point, "action_encoder.W1")
    actions = torch.cat([actions, torch.cat(waves(16, 16)).expand(3, -1)], dim=-1)
    actions = (
        embodiment_linear(
            F.silu(embodiment_linear(actions, "action_encoder.W2")), "action_encoder.W3"
        )
        + weights["position_embedding.weight"][:3]
    )
    state = perceptron(F.pad(state, (0, 2))[None], "state_encoder")
    x, (sin, cos) = torch.cat([state, weights["future_tokens.weight"], actions]), waves(128, 127)
    when = F.silu(
        linear(torch.cat([cos, sin]), "model.timestep_encoder.timestep_embedder.linear_1")
    )
    when = linear(when, "model.timestep_encoder.timestep_embedder.linear_2")
    for number in range(3):
        x = block(x, f"model.transformer_blocks.{number}", None if number % 2 else features, when)
    shift, scale = linear(F.silu(when), "model.proj_out_1").chunk(2)
    x = linear(normed(x) * (1 + scale) + shift, "model.proj_out_2")
    return -perceptron(x, "action_decoder")[-3:]
