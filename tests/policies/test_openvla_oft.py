"""OpenVLA-OFT's L1 head and its projector of the state: published files, what they compute, what is
refused.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.core.errors import PolicyFileError, RecipeError, SpecError
from rlinf_core.policies.pretrained.openvla import Config
from rlinf_core.policies.pretrained.openvla.policy import OpenVLA
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.sources import check_source
from rlinf_core.specs.arrays import StationSpec
from tests.policies.published_openvla import STATISTICS, theirs, written
from tests.policies.test_openvla import PROMPTS, SPEC, observation

OFT = {"horizon": 2, "decoding": "regression", "state": True}


def published(folder, **config):
    return OpenVLA(SPEC, Config(**OFT | {"checkpoint": str(folder)} | config)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the network, and beside it what OpenVLA-OFT's trainer writes of the other parts."""
    folder = written(tmp_path_factory.mktemp("oft"), "openvla_oft", actions=2, state=3)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | {"norm_stats": {"bridge_orig": {}}}))
    (folder / "dataset_statistics.json").write_text(json.dumps(STATISTICS))
    return folder


def two_camera_observation():
    """One state lies outside of what the data set has."""
    observations = observation(*PROMPTS)
    observations.vectors.copy_(torch.tensor([[0.5, 0.1, 2.2], [-3.0, 0.3, 2.9]]))
    return observations


@torch.no_grad()
def test_a_published_folder_regresses_what_its_files_say(folder):
    """Towers and Llama by transformers, one prompt at a time; projector, head and units from the
    files, by hand.
    """
    head = torch.load(folder / "action_head--150000_checkpoint.pt", weights_only=True)
    projector = torch.load(folder / "proprio_projector--150000_checkpoint.pt", weights_only=True)
    assert "module.model.mlp_resnet_blocks.1.ffn.0.weight" in head and set(projector) == {
        f"module.fc{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias")
    }
    observations, (llama, embeds) = two_camera_observation(), theirs(folder)
    low, high = (np.array(STATISTICS["lab"]["proprio"][key]) for key in ("q01", "q99"))

    def linear(x, weights, name):
        return F.linear(x, weights[f"module.{name}.weight"], weights[f"module.{name}.bias"])

    def normed(x, name):
        x = (x - x.mean(dim=-1, keepdim=True)) / (
            x.var(dim=-1, keepdim=True, correction=0) + 1e-5
        ).sqrt()
        return x * head[f"module.model.{name}.weight"] + head[f"module.model.{name}.bias"]

    for index, tokens in enumerate(PROMPTS.values()):
        state = (2 * (observations.vectors[index].numpy() - low) / (high - low) - 1).clip(-1, 1)
        state = linear(
            F.gelu(linear(torch.tensor(state, dtype=torch.float32), projector, "fc1")),
            projector,
            "fc2",
        )
        x = embeds(observations.images["front"][index].permute(2, 0, 1) / 255, tokens)
        x = torch.cat(
            [
                x[:, :5],
                state[None, None],
                x[:, 5:],
                torch.zeros(1, 4, 32),  # beginning and four patches, state
                llama.get_input_embeddings()(torch.tensor([[2]])),
            ],
            dim=1,
        )
        attention = torch.zeros(1, 1, x.shape[1], x.shape[1])
        hidden = (
            llama.model(inputs_embeds=x, attention_mask=attention)
            .last_hidden_state[0, -6:-2]
            .reshape(2, 64)
        )
        h = linear(normed(hidden, "layer_norm1"), head, "model.fc1").relu()
        for block in ("mlp_resnet_blocks.0.ffn", "mlp_resnet_blocks.1.ffn"):
            h = h + linear(normed(h, f"{block}.0"), head, f"model.{block}.1").relu()
        inside = linear(normed(h, "layer_norm2"), head, "model.fc2").numpy()
        expected = np.stack(
            [(0.5 * (inside[:, 0] + 1) * 0.04 - 0.01) / 0.02, inside[:, 1]], axis=-1
        )
        acted = published(folder, statistics="lab").act(observations, True)
        assert acted.actions[index].numpy() == pytest.approx(expected.clip(-1, 1), abs=1e-4)
        assert acted.log_probs is None and np.abs(inside).max() > 0.05


def test_what_it_minimises_is_the_distance_in_the_units_of_the_data_set(folder):
    policy, observations = published(folder, statistics="lab"), two_camera_observation()
    actions = torch.tensor([[0.9, 0.3, 0.2, -0.4], [-0.8, 1.0, 0.0, 0.5]])
    with torch.no_grad():
        regressed = policy.regress(policy.inputs(policy.to_batch(observations))).numpy()
    wanted = actions.view(2, 2, 2).numpy().copy()
    wanted[..., 0] = (2 * (wanted[..., 0] * 0.02 + 0.01) / 0.04 - 1).clip(-1, 1)
    assert policy.imitation_loss(policy.to_batch(observations), actions).item() == pytest.approx(
        np.abs(regressed - wanted).mean(), rel=1e-5
    )


@pytest.mark.parametrize("lora", [{}, {"lora": {"rank": 2}}])
def test_a_policy_file_holds_the_other_parts_too(folder, tmp_path, lora):
    policy = published(folder, statistics="lab", **lora)
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert {"action_head.model.fc2.weight", "proprio_projector.fc1.weight"} <= trained
    again = load_policy(save_policy(policy, tmp_path / "policy-00000001.safetensors"), SPEC)
    assert torch.equal(
        again.act(two_camera_observation(), False).actions,
        policy.act(two_camera_observation(), False).actions,
    )
    other = two_camera_observation()
    other.vectors.add_(0.2)
    assert not torch.equal(
        again.act(other, False).actions, again.act(two_camera_observation(), False).actions
    )


def test_a_checkpoint_without_them_begins_with_random_ones_and_the_data_s_own_normalisation(
    folder, tmp_path
):
    shutil.copytree(folder, tmp_path / "plain", ignore=shutil.ignore_patterns("*.pt"))
    policy = published(tmp_path / "plain")
    policy.normalisation.set_statistics(np.array([1.0, 2.0, 3.0]), np.ones(3))
    assert policy._state(torch.tensor([[2.0, 2.0, 2.0]])).tolist() == [
        pytest.approx([1.0, 0.0, -1.0], abs=1e-3)
    ]


@pytest.mark.parametrize(
    "change, config, error",
    [
        (
            lambda at: (at / "action_head--150000_checkpoint.pt").unlink(),
            {},
            r"expected action_head--\*.pt beside the other",
        ),
        (
            lambda at: (at / "proprio_projector--150000_checkpoint.pt").unlink(),
            {},
            r"leave policy.state as it was trained",
        ),
        (
            lambda at: (at / "vision_backbone--9_checkpoint.pt").touch(),
            {},
            "found vision_backbone--9_checkpoint.pt: FiLM",
        ),
        (
            lambda at: (at / "dataset_statistics.json").write_text("3"),
            {},
            "expected a map of data sets, got",
        ),
        (
            lambda at: None,
            {"decoding": "parallel"},
            "policy.decoding: expected regression, as the checkpoint",
        ),
        (lambda at: None, {"state": False}, "policy.state: expected true, as the checkpoint"),
        (
            lambda at: shutil.copy(
                at / "action_head--150000_checkpoint.pt", at / "action_head--9_checkpoint.pt"
            ),
            {},
            r"expected one action_head--\*.pt, found 2",
        ),
        (
            lambda at: (at / "action_head--150000_checkpoint.pt").write_bytes(
                b"\x80\x04cos\nsystem\n."
            ),
            {},
            "expected a whole file of tensors by name",
        ),
        (
            lambda at: torch.save(
                {"module.fc1.weight": torch.zeros(32, 4)},
                at / "proprio_projector--150000_checkpoint.pt",
            ),
            {},
            "it lacks 3, among them fc1.bias, fc2.bias, fc2.weight",
        ),
        (
            lambda at: torch.save(
                {"module.fc1.weight": Exception()}, at / "proprio_projector--150000_checkpoint.pt"
            ),
            {},
            "expected a whole file of tensors by name",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(folder, tmp_path, change, config, error):
    shutil.copytree(folder, tmp_path / "changed")
    change(tmp_path / "changed")
    with pytest.raises(PolicyFileError, match=error):
        published(tmp_path / "changed", **config)


def test_what_cannot_be_is_said(folder):
    with pytest.raises(SpecError, match="policy.state: expected a task that observes numbers"):
        OpenVLA(StationSpec(SPEC.observation[1:], SPEC.action, 10.0, "push"), Config(**OFT))
    fewer = StationSpec(
        (SPEC.observation[1], SPEC.observation[0].__class__("pose", (2,))),
        SPEC.action,
        10.0,
        "push",
    )
    with pytest.raises(SpecError, match=r"expected 2 numbers of state \(pose, pose\), 'lab' has 3"):
        OpenVLA(fewer, Config(**OFT, checkpoint=str(folder), statistics="lab"))
    with pytest.raises(ValueError, match="got regression, which draws nothing"):
        Config(decoding="regression", token_log_probs=True)
    regression = "{kind: openvla, decoding: regression}"
    for policy, reason in (
        (regression, "policy.decoding: expected autoregressive or parallel"),
        ("{kind: pi0}", "policy.sde_noise: expected more than 0"),
    ):
        with pytest.raises(RecipeError, match=reason):
            check_source(load_recipe("sim_ppo", [f"policy={policy}"]))
