"""X-VLA: its answers beside those of LeRobot's own class; what it learns; what is refused.

``xvla_itself.json`` has LeRobot 0.6.1's files and answers for tiny networks. Make it again in the
environment of ``make references``:

    python benchmarks/vla_references.py --cases xvla xvla_grippers xvla_bimanual --kinds \
        --folder FOLDER
    python tests/policies/test_xvla.py FOLDER
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
from rlinf_core.policies.pretrained import lerobot, tiny_checkpoint
from rlinf_core.policies.pretrained.tokenization import make_tokenizer
from rlinf_core.policies.pretrained.xvla import Config, network
from rlinf_core.policies.pretrained.xvla.policy import XVLA
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after
from tests.policies.test_smolvla import SPEC, observation

STORED = Path(__file__).with_name("xvla_itself.json")
CASES = ("xvla", "xvla_grippers", "xvla_bimanual")
SMALL = {
    "hidden_size": 32,
    "depth": 1,
    "num_domains": 2,
    "max_state_dim": 5,
    "max_action_dim": 4,
    "resize_imgs_with_padding": [32, 32],
}


def xvla(spread=True, **config):
    """Return a network with spread weights, whose output depends on all inputs."""
    torch.manual_seed(0)
    policy = XVLA(
        SPEC, Config(**{"horizon": 3, "network": SMALL, "flow_steps": 4, "tokens": 16} | config)
    ).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5)
        for module in policy.modules() if spread else ():
            if isinstance(module, network.DomainLinear):  # a matrix in each row
                inputs = module.fc.weight.shape[1] / module.bias.weight.shape[1]
                module.fc.weight.normal_(0.0, inputs**-0.5)
    return policy


def stored(case, folder):
    """LeRobot's folder of a case, and its answers."""
    document = json.loads(STORED.read_text())[case]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document["config"]))
    (folder / "policy_preprocessor.json").write_text(json.dumps(document["processor"]))
    (folder / "stats.json").write_text(json.dumps(references.statistics()))
    (folder / "tokenizer.json").write_text(
        tiny_checkpoint.byte_tokenizer(tiny_checkpoint.FAMILIES["xvla"])
    )
    model = network.XVLANetwork(network.FACTORY.read(folder).config)
    references.fill(model, network.PREFIX)
    weights = network.FACTORY.folder_files(model, make_tokenizer(""))[0]
    save_file(weights, folder / "model.safetensors")
    return document


def loaded(case, folder, **config):
    """Return the policy of a stored case, its answers, the observation, and the noise."""
    document, given, scale = stored(case, folder), references.observations(), 10.0
    size = references.HORIZON
    spec = StationSpec(
        (
            ArraySpec("state", (references.STATE,)),
            *(ArraySpec(name, shape, "uint8") for name, shape in references.PIXELS.items()),
        ),
        ActionSpec("tcp_delta", ("x", "y", "z"), (scale,) * 3, ("m",) * 3),
        10.0,
    )
    keys = {
        "checkpoint": str(folder),
        "statistics": str(folder / "stats.json"),
        "horizon": size,
        "flow_steps": document["config"]["num_denoising_steps"],
        "tokens": document["config"]["tokenizer_max_length"],
        "domain": 2 if case == "xvla_grippers" else 0,
    }
    policy = XVLA(spec, Config(**keys | config)).eval()
    observations = Observation(
        torch.from_numpy(given["state"]),
        {name: torch.from_numpy(given[name]) for name in references.PIXELS},
        tuple(references.SENTENCES),
    )
    return policy, document, observations, torch.from_numpy(given["noise"][..., :20])


@pytest.mark.parametrize("case", CASES)
def test_actions_and_loss_are_those_of_lerobots_class(case, tmp_path):
    """Chunks in a data set's units, two cameras of other shapes, a missing view, grippers as
    logits, and weights of several robots."""
    policy, document, observations, noise = loaded(case, tmp_path)
    batch, given = policy.to_batch(observations), references.observations()
    with torch.no_grad():
        chunk = 10.0 * policy.decode(batch, noise).view(2, references.HORIZON, 3)
    assert np.abs(chunk.numpy() - document["chunk"]).max() <= 1e-5
    drawn = iter([noise, torch.from_numpy(given["uniform"])])
    with mock.patch("rlinf_core.policies.sharding.noise", lambda *_: next(drawn)), torch.no_grad():
        loss = policy.imitation_loss(batch, torch.from_numpy(given["action"] / 10.0).flatten(1))
    assert float(loss) == pytest.approx(document["loss"], rel=1e-5)


def test_every_key_of_lerobots_config_is_read_or_has_no_effect_or_is_refused(tmp_path):
    """The keys are the fields of LeRobot's config class."""
    document = stored("xvla", tmp_path)
    read = {
        *("type", "normalization_mapping", "input_features", "empty_cameras", network.FLORENCE),
        *lerobot.EXPECTED,
        *lerobot.WITHOUT_EFFECT,
        *network.SETTINGS,
        *network.SUPPORTED,
        *network.DEFAULTS,
    }
    others = {key for key in document["keys"] if not key.startswith(("optimizer_", "scheduler_"))}
    assert others <= read
    config_value(a_key_of_tomorrow=3)(tmp_path)
    with pytest.raises(PolicyFileError, match="a_key_of_tomorrow: 3', whose effect is not known"):
        network.FACTORY.read(tmp_path)


def test_microsofts_names_of_florence_are_read(tmp_path):
    """LeRobot 0.4 and 0.5 saved these names."""
    stored("xvla", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    expected, vlm = network.FACTORY.from_checkpoint(tmp_path, 5)[0].state_dict(), "model.vlm."
    renamed = {}
    for name, tensor in weights.items():
        name = name.replace(".convs.0.conv.", ".convs.0.proj.").replace(
            ".convs.1.conv.", ".convs.1.proj."
        )
        for block in ("window", "channel"):
            kind = "spatial" if block == "window" else "channel"
            place = f"{kind}_block."
            name = name.replace(f"{place}{block}_attn.", f"{place}{block}_attn.fn.")
            name = name.replace(f"{place}norm1.", f"{place}{block}_attn.norm.")
        if "_block." in name:
            name = name.replace(".ffn.", ".ffn.fn.net.").replace(".norm2.", ".ffn.norm.")
            name = name.replace(".conv1.", ".conv1.fn.dw.").replace(".conv2.", ".conv2.fn.dw.")
        name = name.replace("multi_modal_projector.image_position_embed", "image_pos_embed")
        name = name.replace("language_model.", "language_model.model.")
        if name.endswith("image_projection.weight"):
            name, tensor = vlm + "image_projection", tensor.T.contiguous()
        renamed[name.replace("multi_modal_projector.", "")] = tensor
    renamed[vlm + "language_model.final_logits_bias"] = torch.zeros(1, 7)
    renamed[vlm + "language_model.model.decoder.layernorm_embedding.weight"] = torch.zeros(7)
    assert len(renamed.keys() - weights.keys()) > 60
    save_file(renamed, tmp_path / "model.safetensors")
    got = network.FACTORY.from_checkpoint(tmp_path, 5)[0].state_dict()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def test_a_folder_and_a_policy_file_give_the_same_actions_back(tmp_path):
    policy, _, observations, _ = loaded("xvla_grippers", tmp_path / "its", stochastic_eval=False)
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    network.FACTORY.save_folder(policy.network, policy.tokenizer, tmp_path / "again")
    expected = policy.act(observations, False).actions
    assert torch.equal(load_policy(path, policy.spec).act(observations, False).actions, expected)
    third = XVLA(
        policy.spec,
        Config(
            checkpoint=str(tmp_path / "again"),
            horizon=5,
            flow_steps=3,
            domain=2,
            stochastic_eval=False,
        ),
    ).eval()
    third.normalisation, third.units = policy.normalisation, policy.units
    assert torch.equal(third.act(observations, False).actions, expected)


def config_value(**keys):
    def change(folder):
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(document | keys))

    return change


def step(name):
    """Return a step of the postprocessor."""

    def change(folder):
        document = {"steps": [{"registry_name": name, "config": {"expected_action_dim": 10}}]}
        (folder / "policy_postprocessor.json").write_text(json.dumps(document))

    return change


@pytest.mark.parametrize(
    "change, error",
    [
        (config_value(pad_language_to="longest"), "expected pad_language_to of max_length"),
        (config_value(tokenizer_padding_side="left"), "tokenizer_padding_side of right"),
        (config_value(domain_feature_key="robot"), "domain_feature_key of None"),
        (config_value(action_mode="feet"), "action_mode of 'feet', expected one of agibot_ee6d"),
        (config_value(action_mode="so101_bimanual", max_state_dim=5), "expected more than 11"),
        (config_value(num_denoising_steps=3), "policy.flow_steps: expected 3"),
        (config_value(tokenizer_max_length=20), "policy.tokens: expected 20"),
        (config_value(chunk_size=9), "policy.horizon: expected 9"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "that of facebook/bart-large there"),
        (step("xvla_rotation_6d_to_axis_angle"), "turns poses of ten numbers into seven"),
        (
            config_value(
                florence_config={"vision_config": {"model_type": "vit"}, "text_config": {}}
            ),
            "vision_config.model_type of 'vit', expected 'davit'",
        ),
    ],
)
def test_a_folder_that_is_not_supported_is_refused_by_name(change, error, tmp_path):
    stored("xvla", tmp_path)
    change(tmp_path)
    with pytest.raises(PolicyFileError, match=error):
        XVLA(SPEC, Config(checkpoint=str(tmp_path), horizon=5))


def test_the_domain_of_a_folder_is_set_on_purpose(tmp_path):
    stored("xvla_grippers", tmp_path)
    keys = {"checkpoint": str(tmp_path), "horizon": 5, "flow_steps": 3}
    with pytest.raises(PolicyFileError, match=r"policy.domain: expected 2, .*\(domain_id\)"):
        XVLA(SPEC, Config(**keys))
    first, second = (
        XVLA(SPEC, Config(**keys, domain=domain)).eval().act(observation("push"), False).actions
        for domain in (0, 2)
    )
    assert not torch.allclose(first, second)


def test_what_does_not_fit_is_named():
    with pytest.raises(SpecError, match="policy.domain: expected one of 0 to 1"):
        xvla(domain=2)
    with pytest.raises(SpecError, match="expected images of one size"):
        xvla(network=SMALL | {"resize_imgs_with_padding": None})
    with pytest.raises(SpecError, match=r"expected at most 20 tokens \(max_len_seq\), got"):
        xvla(network=SMALL | {"max_len_seq": 20}).act(observation("push"), False)
    big = StationSpec(
        SPEC.observation,
        ActionSpec("joint", tuple("abcdefgh"), (1.0,) * 8, ("rad",) * 8),
        10.0,
        "push",
    )
    with pytest.raises(SpecError, match="at most 7 numbers an action for X-VLA's action_mode"):
        XVLA(big, Config(network=SMALL | {"action_mode": "franka_joint7"}))


def test_log_probabilities_are_those_of_the_draw():
    policy, observations = xvla(sde_noise=0.4), observation("push", "pull")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(again, chunk.log_probs, atol=1e-4)


@pytest.mark.parametrize("explore", [False, True])
def test_predicted_actions_are_where_both_samplers_end(explore):
    policy, observations = xvla(sde_noise=1e-6), observation("push", "pull")
    goal = torch.rand(2, 3, 4) - 0.5
    policy.network.predicted = lambda *_: goal
    actions = policy.act(observations, explore, torch.Generator().manual_seed(3)).actions
    assert torch.allclose(actions, goal[..., :2], atol=1e-4)


def test_a_chunk_continues_the_one_in_play():
    """Guidance follows how predictions depend on the noise, which random weights hide."""
    policy, observations = xvla(flow_steps=5), observation("push", "pull")
    policy.network.predicted = lambda prefix, state, point, *_: 0.8 * point
    goal, weights = torch.full((2, 3, 2), 0.9), torch.zeros(2, 3)

    def continued():
        return policy.continue_chunk(observations, Continuation(goal, weights)).actions

    free = policy.act(observations, False).actions
    assert torch.allclose(continued(), free, atol=1e-6)
    weights[:, 0] = 1.0
    off = [(actions[:, 0] - 0.9).abs().mean() for actions in (free, continued())]
    assert off[1] < 0.5 * off[0]


def test_grippers_are_logits_and_back():
    space = network.ACTION_SPACES["so101_bimanual"]
    actions = torch.rand(2, 3, 20) * 0.9 + 0.05
    assert torch.allclose(space.output(space.input(actions)), actions, atol=1e-5)
    assert space.hide(actions)[..., [5, 11]].abs().max() == 0.0


def test_by_cloning_it_learns_to_do_as_it_is_told_and_frozen_florence_stays():
    targets = {"left": -0.7, "right": 0.7}
    for frozen, updates in ((False, 80), (True, 1)):
        policy = xvla(spread=False, frozen=frozen, flow_steps=3)
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        learner = Learner(policy, SFTConfig(learning_rate=3e-3, min_std=0.0, image_shift=0), seed=0)
        for number in range(updates):
            observations = observation(*(["left", "right"] * 4), seed=number)
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
            assert "network.transformer.pos_emb" in moved
            assert not any(".vlm." in name for name in moved)
        else:
            acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
            assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


def test_grpo_raises_what_pays():
    policy = xvla(spread=False, sde_noise=0.5, horizon=1, flow_steps=2)
    torch.nn.init.zeros_(policy.network.transformer.action_decoder.fc.weight)
    observations = observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 6, learning_rate=1e-2)
    assert before < 0.75 and after > 0.85


if __name__ == "__main__":
    documents = {}
    for name in CASES:
        case_folder = Path(sys.argv[1]) / name
        answers = np.load(case_folder / "answers.npz")
        documents[name] = {
            "config": json.loads((case_folder / "config.json").read_text()),
            "processor": json.loads((case_folder / "policy_preprocessor.json").read_text()),
            "keys": json.loads((case_folder / "keys.json").read_text()),
            "chunk": answers["chunk"].tolist(),
            "loss": float(answers["loss"]),
        }
    STORED.write_text(json.dumps(documents) + "\n")


@pytest.mark.parametrize(
    ("steps", "domain"),
    [
        ([], 0),
        ([{"registry_name": "xvla_add_domain_id", "config": {"domain_id": 3}}], 3),
        ([{"registry_name": "xvla_add_domain_id", "config": {}}], 0),
        ([{"registry_name": "xvla_add_domain_id"}], 0),
        ([{"registry_name": "other", "config": {"domain_id": 3}}, {}], 0),
    ],
)
def test_the_domain_is_in_a_step_of_the_preprocessor(steps, domain, tmp_path):
    assert network.read_domain(tmp_path) == 0, "a folder without processors"
    for document in ({"steps": steps}, {"name": "policy_preprocessor", "steps": steps}):
        (tmp_path / "policy_preprocessor.json").write_text(json.dumps(document))
        assert network.read_domain(tmp_path) == domain
    (tmp_path / "policy_preprocessor.json").write_text("{}")
    assert network.read_domain(tmp_path) == 0
