from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.deploy.serving.protocol import read_request
from rlinf_core.deploy.serving.weights import Version
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained.openvla import Config
from rlinf_core.policies.pretrained.openvla.network import FACTORY
from rlinf_core.policies.pretrained.openvla.policy import OpenVLA
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after
from tests.policies.published_openvla import SMALL, TEXT, TINIEST, theirs, written
from tests.policies.test_pi0 import pi0

ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.04), ("m", "m"))
SPEC = StationSpec(
    (ArraySpec("pose", (3,)), ArraySpec("front", (32, 32, 3), "uint8")), ACTION, 10.0, "push"
)


def openvla(**config):
    torch.manual_seed(0)
    return OpenVLA(SPEC, Config(**{"horizon": 2, "network": SMALL} | config)).eval()


def observation(*sentences, seed=0):
    random = np.random.default_rng(seed)
    picture = torch.from_numpy(random.integers(0, 255, (len(sentences), 32, 32, 3), np.uint8))
    return Observation(torch.zeros(len(sentences), 3), {"front": picture}, sentences)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("openvla"))


PROMPTS = {
    "Push": [1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 11, 13],
    "take the robot": [1, 3, 4, 5, 6, 7, 8, 9, 10, 9, 7, 0, 11, 13],
}


@torch.no_grad()
def test_a_published_folder_acts_as_transformers_own_modules_on_the_same_weights(folder):
    """The likeliest tokens one by one, without cache, padding or batch; actions in the units of its
    data set.
    """
    policy = OpenVLA(SPEC, Config(horizon=2, checkpoint=str(folder), statistics="lab")).eval()
    observations = observation(*PROMPTS)
    llama, embeds = theirs(folder)
    chunk, words, bins = policy.act(observations, False), 14 + 256, []
    for index, tokens in enumerate(PROMPTS.values()):
        tokens = list(tokens)
        picture = observations.images["front"][index].permute(2, 0, 1) / 255
        for _ in range(4):
            scores = llama(inputs_embeds=embeds(picture, tokens)).logits[0, -1]
            tokens.append(words - 256 + scores[words - 256 : words].argmax().item())
        logits = llama(inputs_embeds=embeds(picture, tokens)).logits[0, -5:-1]
        bins.append([words - 1 - token for token in tokens[-4:]])
        batch = policy.to_batch(
            replace(observations, instruction=(observations.instruction[index],) * 2)
        )
        ours = policy.logits(batch, torch.tensor([bins[-1]] * 2))[index]
        assert torch.allclose(ours, logits, atol=1e-4) and logits.std() > 0.1
    assert chunk.drawn.view(2, 4).tolist() == bins and len(set(bins[0] + bins[1])) > 3
    edges = np.linspace(-1, 1, 256)
    normalize = ((edges[:-1] + edges[1:]) / 2)[np.clip(np.reshape(bins, (2, 2, 2)), 0, 254)]
    expected = np.stack(
        [(0.5 * (normalize[..., 0] + 1) * 0.04 - 0.01) / 0.02, normalize[..., 1]], axis=-1
    )
    assert chunk.actions.numpy() == pytest.approx(expected.clip(-1, 1), abs=1e-6)


@torch.no_grad()
def test_log_probabilities_are_those_of_an_independent_computation(folder):
    policy = OpenVLA(SPEC, Config(horizon=2, checkpoint=str(folder), temperature=1.5)).eval()
    observations, (llama, embeds) = observation(*PROMPTS), theirs(folder)
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, entropy = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    for index, tokens in enumerate(PROMPTS.values()):
        token_ids = [269 - int(number) for number in chunk.drawn[index].flatten()]
        logits = llama(
            inputs_embeds=embeds(
                observations.images["front"][index].permute(2, 0, 1) / 255, tokens + token_ids
            )
        ).logits
        scores = logits[0, -5:-1, 14:270].double() / 1.5
        every = torch.log(torch.exp(scores) / torch.exp(scores).sum(dim=-1, keepdim=True))
        expected = (
            torch.stack([every[step, token - 14] for step, token in enumerate(token_ids)])
            .view(2, 2)
            .sum(dim=-1)
        )
        spread = -(every.exp() * every).sum(dim=-1).view(2, 2).sum(dim=-1)
        for got, wanted in ((chunk.log_probs, expected), (again, expected), (entropy, spread)):
            assert got[index].tolist() == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-5)
    assert policy.act(observations, False).log_probs is None


@torch.no_grad()
def test_all_tokens_at_once_are_those_of_attention_without_any_order():
    """Llama written once more, of one prompt without padding: empty places, an end behind, no mask
    at all.
    """
    policy = openvla(
        decoding="parallel", network=SMALL | {"text_config": TEXT | {"num_hidden_layers": 1}}
    )
    observations = observation("push", "a much longer instruction")
    model, config = policy.network.language_model, policy.network.language_model.config
    alone = Observation(
        observations.vectors[:1], {"front": observations.images["front"][:1]}, ("push",)
    )
    embeds = policy.embed_prompt(policy.inputs(policy.to_batch(alone))).embeds
    x = torch.cat(
        [embeds, torch.zeros(1, 4, 32), model.get_input_embeddings()(torch.tensor([[2]]))], dim=1
    )[0]
    layer, length = model.model.layers[0], len(x)
    turn = torch.arange(length)[:, None] / config.rope_parameters["rope_theta"] ** (
        torch.arange(0, 8, 2) / 8
    )
    cos, sin = turn.cos().repeat(1, 2), turn.sin().repeat(1, 2)

    def normed(x, norm):
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + config.rms_norm_eps).sqrt() * norm.weight

    def heads(project, turned=True):
        h = project(normed(x, layer.input_layernorm)).view(length, -1, 8).transpose(0, 1)
        h = h * cos + torch.cat([-h[..., 4:], h[..., :4]], dim=-1) * sin if turned else h
        return h.repeat_interleave(4 // len(h), dim=0)

    attention = layer.self_attn
    scores = heads(attention.q_proj) @ heads(attention.k_proj).transpose(1, 2) / 8**0.5
    x = x + attention.o_proj(
        (scores.softmax(dim=-1) @ heads(attention.v_proj, False)).transpose(0, 1).flatten(1)
    )
    h = normed(x, layer.post_attention_layernorm)
    x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h))
    expected = model.lm_head(normed(x, model.model.norm))[-6:-2]
    assert torch.allclose(
        policy.logits(policy.to_batch(observations), torch.zeros(2, 4, dtype=torch.long))[0],
        expected,
        atol=1e-4,
    )
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(again, chunk.log_probs, atol=1e-5)


@pytest.mark.parametrize(
    "decoding, updates, rate",
    [("autoregressive", 30, 5e-3), ("parallel", 30, 5e-3), ("regression", 60, 2e-3)],
)
def test_by_cloning_it_learns_to_do_as_it_is_told(decoding, updates, rate):
    policy = openvla(decoding=decoding, network=TINIEST)
    learner = Learner(policy, SFTConfig(learning_rate=rate, min_std=0.0, image_shift=0), seed=0)
    targets, losses = {"left": -0.7, "right": 0.7}, []
    for step in range(updates):
        observations = observation(*(["left", "right"] * 2), seed=step)
        batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
        batch["action"] = np.repeat(
            [[targets[word]] for word in observations.instruction], 4, axis=1
        ).astype(np.float32)
        losses.append(learner.update(batch)["sft_loss"])
    acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
    near = 0.15 if decoding == "regression" else 0.05
    assert losses[-1] < 0.3 * losses[0] and acted.detach().numpy() == pytest.approx(
        list(targets.values()), abs=near
    )


@pytest.mark.parametrize(
    "name, level, config",
    [
        ("ppo", "action", {}),
        ("grpo", "chunk", {"decoding": "parallel"}),
        ("grpo", "action", {"token_log_probs": True}),
    ],
)
def test_learners_from_rollouts_raise_what_pays(name, level, config):
    policy = openvla(horizon=1, network=TINIEST, **config)
    observations = observation(*["push"] * 32)
    log_probs_per_chunk = 2 if "token_log_probs" in config else 1
    before, after = paid_before_and_after(
        policy, observations, name, 8, log_probs_per_chunk, learning_rate=1e-2, level=level
    )
    assert before < 0.75 and after > 0.9


def test_a_policy_file_is_all_that_a_station_needs(folder, tmp_path):
    policy = OpenVLA(SPEC, Config(horizon=2, checkpoint=str(folder), statistics="lab")).eval()
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    moved = folder.rename(tmp_path / "elsewhere")
    try:
        again = load_policy(path, SPEC)
    finally:
        moved.rename(folder)
    observations = observation("push", "push the robot")
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )
    FACTORY.save_folder(again.network, again.tokenizer, tmp_path / "again")
    third = OpenVLA(SPEC, Config(horizon=2, checkpoint=str(tmp_path / "again"))).eval()
    assert torch.equal(third.act(observations, False).drawn, policy.act(observations, False).drawn)


def test_numbers_and_bins_are_each_others_inverse():
    policy = openvla()
    policy.offset, policy.gain = torch.tensor([0.1, 0.0]), torch.tensor([0.5, 1.0])
    bins = torch.arange(255).float().unsqueeze(-1).expand(-1, 2)
    assert torch.equal(policy.to_bins(policy.to_actions(bins)), bins.long())
    assert policy.to_bins(torch.tensor([[9.0, -9.0]])).tolist() == [[255, 0]]
    assert torch.equal(
        policy.to_actions(torch.tensor([255.0, 255.0])),
        policy.to_actions(torch.tensor([254.0, 254.0])),
    )


def test_what_never_changed_in_the_data_set_stays_what_it_was_there():
    """openvla: 0.5 (a + 1) (q99 - q01) + q01 of what the mask says, and 0 in its training; the rest
    as it comes.
    """
    norm_stats = {
        "lab": {
            "action": {"q01": [0.01, 0.3], "q99": [0.01, 0.3], "mask": [True, False]},
            "proprio": {"q01": [-1.0, 0.5, 0.0], "q99": [1.0, 0.5, 2.0]},
        }
    }
    policy = openvla(network=SMALL | {"norm_stats": norm_stats}, statistics="lab", state=True)
    played = policy.unnormalize(torch.tensor([[-1.0, -0.7], [0.9, 0.4]]))
    assert torch.allclose(played, torch.tensor([[0.01 / 0.02, -0.7], [0.01 / 0.02, 0.4]]))
    assert torch.equal(
        policy.normalize(torch.tensor([[0.5, 0.4], [-0.9, -2.0]])),
        torch.tensor([[0.0, 0.4], [0.0, -1.0]]),
    )
    assert policy._state(torch.tensor([[0.5, 0.5, 0.5], [0.0, 0.7, 9.0]])).tolist() == [
        [0.5, 0.0, -0.5],
        [0.0, 0.0, 1.0],
    ]


@pytest.mark.parametrize(
    "change, error, words",
    [
        (
            {"q01": [0.01, 0.0], "q99": [-0.01, 0.02]},
            PolicyFileError,
            "no least number above the greatest",
        ),
        (
            {"q01": [float("nan"), 0.0]},
            PolicyFileError,
            "expected as many finite numbers q01 as q99",
        ),
        ({"q99": [0.01, float("inf")]}, PolicyFileError, "expected as many finite numbers"),
        (
            {"q99": [0.01]},
            PolicyFileError,
            "expected as many finite numbers q01 as q99, got 2 and 1",
        ),
        ({"q99": None}, PolicyFileError, "expected"),
        ({"q01": "abc"}, PolicyFileError, "expected numbers q01 and q99"),
        ({"mask": [True]}, PolicyFileError, "expected a mask of 2 booleans, got"),
        ({"mask": [1, 0]}, PolicyFileError, "expected a mask of 2 booleans"),
        ({"mask": None}, PolicyFileError, "expected a mask of 2 booleans"),
        (
            {"q01": [-0.9, -0.9], "q99": [0.9, 0.9]},
            SpecError,
            "expected 'dx' within 0.02 m .*other units",
        ),
        (
            {"q01": [-20.0, 0.0], "q99": [20.0, 0.02]},
            SpecError,
            "expected 'dx' within 0.02 m .*other units",
        ),
    ],
)
@pytest.mark.parametrize("what", ["action", "proprio"])
def test_statistics_that_cannot_be_are_refused(what, change, error, words):
    fine = {
        "action": {"q01": [-0.01, 0.0], "q99": [0.01, 0.02], "mask": [True, True]},
        "proprio": {"q01": [-1.0, 0.5, 0.0], "q99": [1.0, 0.5, 2.0]},
    }
    if what == "proprio" and (error is SpecError or "mask" in change):
        return
    wrong = {
        key: [*value, 0.5] if what == "proprio" and isinstance(value, list) else value
        for key, value in change.items()
    }
    norm_stats = {"lab": fine | {what: fine[what] | wrong}}
    with pytest.raises(error, match="policy.statistics" if what == "proprio" else words):
        openvla(network=SMALL | {"norm_stats": norm_stats}, statistics="lab", state=True)
    openvla(network=SMALL | {"norm_stats": {"lab": fine}}, statistics="lab", state=True)


@pytest.mark.parametrize("make", [openvla, pi0])
def test_a_server_asks_its_clients_for_a_sentence(make):
    version = Version(make())
    spec = version.policy.spec
    message = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
    assert (
        read_request(spec, message | {"prompt": "pull"}, version.needs_instruction).instruction
        == "pull"
    )
    with pytest.raises(SpecError, match="expected an instruction, which this policy needs"):
        read_request(spec, message | {"prompt": " "}, version.needs_instruction)


def test_what_does_not_fit_is_named(folder, tmp_path):
    with pytest.raises(SpecError, match="expected at least one camera"):
        OpenVLA(StationSpec(SPEC.observation[:1], ACTION, 10.0), Config(network=SMALL))
    with pytest.raises(SpecError, match="instruction: expected a sentence"):
        openvla().act(observation(" "), False)
    with pytest.raises(
        SpecError, match=r"policy.statistics: expected one of lab, got 'labb' \(did you mean 'lab'"
    ):
        OpenVLA(SPEC, Config(checkpoint=str(folder), statistics="labb"))
    with pytest.raises(SpecError, match="expected 1 numbers an action .*'lab' has 2"):
        OpenVLA(
            replace(SPEC, action=ActionSpec("tcp_delta", ("dx",), (0.02,), ("m",))),
            Config(checkpoint=str(folder), statistics="lab"),
        )
    with pytest.raises(PolicyFileError, match="found no config.json"):
        OpenVLA(SPEC, Config(checkpoint=str(tmp_path)))
    with pytest.raises(
        PolicyFileError, match=r"policy.network.text_config: .* got 'hiden_size' \(did you mean"
    ):
        openvla(network={"text_config": {"hiden_size": 8}})
    with pytest.raises(PolicyFileError, match="timm_model_ids: expected vit_large"):
        openvla(network={"timm_model_ids": ["vit_giant", "vit_giant"]})


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda weights: weights.pop("projector.fc1.bias"),
            "lacks 1, among them projector.fc1.bias",
        ),
        (
            lambda weights: weights.update(extra=torch.zeros(2)),
            "has beside what it should 1, among them extra",
        ),
        (
            lambda weights: weights.update({"projector.fc1.bias": torch.zeros(3)}),
            "has in other shapes 1, .*projector.fc1.bias",
        ),
        (None, "expected a whole safetensors file"),
    ],
)
def test_a_checkpoint_with_missing_or_extra_tensors_is_refused_by_name(
    folder, tmp_path, change, error
):
    from safetensors.torch import load_file, save_file

    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = {
        name: value
        for file in tmp_path.glob("*.safetensors")
        for name, value in load_file(file).items()
    }
    file = tmp_path / "model-0.safetensors"
    if change is None:
        file.write_bytes(file.read_bytes()[:-9])
    else:
        change(weights)
        (tmp_path / "model-1.safetensors").unlink()
        save_file(weights, file)
    with pytest.raises(PolicyFileError, match=error):
        OpenVLA(SPEC, Config(checkpoint=str(tmp_path)))
