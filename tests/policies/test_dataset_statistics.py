"""Published checkpoints come with the statistics of their data set: they say what the network's
numbers stand for.
"""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.numpy import save_file

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.pretrained.pi05.policy import QUANTILE
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import load_policy, save_policy
from tests.policies import test_pi0
from tests.policies.test_pi0 import SPEC, observation, pi0

STATE = {
    "mean": [0.1, -0.2, 0.3],
    "std": [0.5, 2.0, 1.5],
    "q01": [-1.0, -4.0, 0.0],
    "q99": [1.0, 4.0, 3.0],
}
ACTION = {"mean": [0.001, -0.002], "std": [0.004, 0.01], "q01": [-0.01, -0.02], "q99": [0.01, 0.02]}
OPENPI = {"norm_stats": {"state": STATE, "actions": ACTION}}


def written(folder, statistics=OPENPI, name="norm_stats.json"):
    path = folder / name
    path.write_text(json.dumps(statistics))
    return str(path)


def padded(statistics, room):
    """Return statistics padded like Dexbotic's."""
    return {name: [*values, *[0.0] * (room - len(values))] for name, values in statistics.items()}


def alike(statistics):
    """The same policy without: its state normalised so by hand, its actions as the network says
    them.
    """
    plain = pi0()
    plain.normalisation.mean.copy_(torch.tensor(statistics["mean"]))
    plain.normalisation.std.copy_(torch.tensor(statistics["std"]))
    return plain


def test_state_and_actions_are_in_the_units_of_the_data_set(tmp_path):
    policy = pi0(statistics=written(tmp_path))
    plain = alike(STATE)
    observations = observation("push", "pull")
    noise = 0.1 * policy.noise(2, torch.Generator().manual_seed(0))
    raw = plain.decode(plain.to_batch(observations), noise).view(2, 4, 2)
    assert raw.abs().max() < 1.0, "nothing is cut off, so that it can be compared"
    expected = (raw * torch.tensor(ACTION["std"]) + torch.tensor(ACTION["mean"])) / torch.tensor(
        SPEC.action.scale
    )
    assert torch.allclose(
        policy.decode(policy.to_batch(observations), noise).view(2, 4, 2),
        expected.clamp(-1, 1),
        atol=1e-6,
    )


def test_what_is_imitated_and_what_is_in_play_are_said_in_the_networks_numbers(tmp_path):
    policy = pi0(statistics=written(tmp_path))
    plain = alike(STATE)
    observations = observation("push", "pull")
    actions = 0.3 * torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    scale, mean, std = (
        torch.tensor(numbers) for numbers in (SPEC.action.scale, ACTION["mean"], ACTION["std"])
    )
    normalised = (actions.view(2, 4, 2) * scale - mean) / std
    losses = [
        actor.imitation_loss(
            actor.to_batch(observations), chunk, torch.Generator().manual_seed(2)
        ).item()
        for actor, chunk in ((policy, actions), (plain, normalised.flatten(1)))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    held = Continuation.from_remaining(actions.view(2, 4, 2)[0].numpy(), 2, 4)
    chunk = policy.continue_chunk(observation("push"), held, torch.Generator().manual_seed(3))
    same = plain.continue_chunk(
        observation("push"),
        Continuation.from_remaining(normalised[0].numpy(), 2, 4),
        torch.Generator().manual_seed(3),
    )
    uncut = same.actions.abs() < 1.0
    assert uncut.float().mean() > 0.5
    assert torch.allclose(
        chunk.actions[uncut], ((same.actions * std + mean) / scale).clamp(-1, 1)[uncut], atol=1e-5
    )


def test_fine_tuning_leaves_them_and_the_policys_file_carries_them(tmp_path):
    policy, observations = pi0(statistics=written(tmp_path)), observation("push")
    policy.normalisation.fit_normalisation(np.random.default_rng(0).normal(9.0, 3.0, (50, 3)))
    assert policy.normalisation.mean.tolist() == pytest.approx(STATE["mean"])
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    (tmp_path / "norm_stats.json").unlink()
    again = load_policy(path, SPEC)
    noise = policy.noise(1, torch.Generator().manual_seed(0))
    assert torch.equal(
        again.decode(again.to_batch(observations), noise),
        policy.decode(policy.to_batch(observations), noise),
    )
    assert again.units.gain.tolist() == pytest.approx([0.2, 0.5])


def test_dexbotics_and_lerobots_files_say_the_same(tmp_path):
    wanted = pi0(statistics=written(tmp_path)).state_dict()
    filled = {"norm_stats": {"state": padded(STATE, 8), "action": padded(ACTION, 4)}}
    save_file(
        {
            f"{feature}.{name}": np.array(values, np.float32)
            for feature, statistics in (
                ("observation.state", STATE),
                ("action", ACTION),
                ("observation.images.front", {"mean": [[[0.5]]]}),
            )
            for name, values in statistics.items()
        },
        tmp_path / "policy_preprocessor_step_5_normalizer_processor.safetensors",
    )
    for path in (
        written(tmp_path, filled, "dexbotic.json"),
        written(tmp_path, {"observation.state": STATE, "action": ACTION}, "stats.json"),
        str(tmp_path / "policy_preprocessor_step_5_normalizer_processor.safetensors"),
    ):
        state_dict = pi0(statistics=path).state_dict()
        assert all(torch.equal(state_dict[name], value) for name, value in wanted.items()), path


def test_pi05_cuts_its_state_from_quantile_to_quantile(tmp_path):
    from tests.policies.test_pi05 import pi05

    policy = pi05(statistics=written(tmp_path))
    low, high = (torch.tensor(STATE[name]) for name in ("q01", "q99"))
    state = torch.stack([low, high, 0.5 * (low + high)])
    ends = policy.normalisation.normalize(state) / QUANTILE
    assert torch.allclose(ends, torch.tensor([[-1.0], [1.0], [0.0]]).expand(3, 3), atol=1e-5)
    scale = torch.tensor(policy.spec.action.scale)
    assert torch.allclose(
        policy.units.to_actions(torch.tensor([0.5, -0.5])), torch.tensor([0.005, -0.01]) / scale
    )


def test_pi05_says_its_state_as_openpi_does_also_beyond_the_quantiles(tmp_path):
    """openpi: np.digitize(state, np.linspace(-1, 1, 257)[:-1]) - 1, where nothing was clipped
    before.
    """
    from tests.policies.test_pi05 import pi05

    low, high = np.array([-1.0, -4.1, 2.7]), np.array([1.0, 4.0, 2.7])  # the last one never changed
    statistics = {"norm_stats": {"state": {"q01": [*low], "q99": [*high]}, "actions": ACTION}}
    policy, random = pi05(statistics=written(tmp_path, statistics)), np.random.default_rng(0)
    states = np.concatenate(
        [[low, low - 0.5, high + 2.0], random.uniform(low - 0.5, high + 0.5, (200, 3))]
    )
    states[3:, 2] = 2.7
    observations = observation(*["push"] * len(states))
    observations.vectors.copy_(torch.from_numpy(states))
    bins = (
        np.digitize((states - low) / (high - low + 1e-6) * 2.0 - 1.0, np.linspace(-1, 1, 257)[:-1])
        - 1
    )
    assert (
        bins[0].tolist() == [0, 0, 0]
        and bins[1].tolist() == [-1, -1, -1]
        and (bins[3:, 2] == 0).all()
    )
    words = [
        bytes(tokens[1:]).decode()
        for tokens in policy.tokenize_with_state(policy.to_batch(observations))
    ]
    got = np.array(
        [
            [int(word) for word in prompt.split("State: ")[1].split(";")[0].split()]
            for prompt in words
        ]
    )
    assert np.array_equal(got, bins)


def test_what_lies_far_from_a_data_set_is_told_as_it_is(tmp_path):
    """Networks get unclipped values, as from their makers; learned values are clipped."""
    given, plain = pi0(statistics=written(tmp_path)), alike(STATE)
    state = torch.tensor([[0.1 + 0.5 * 40, -0.2 - 2.0 * 9, 0.3]])
    assert given.padded_state({"vectors": state})[0, :3].tolist() == pytest.approx(
        [40.0, -9.0, 0.0], abs=1e-5
    )
    assert plain.padded_state({"vectors": state})[0, :3].tolist() == pytest.approx(
        [5.0, -5.0, 0.0], abs=1e-5
    )
    inputs_of_spread = []
    policy = pi0(statistics=written(tmp_path), learned_noise=(0.05, 0.5))
    policy.spread.register_forward_pre_hook(lambda _, inputs: inputs_of_spread.append(inputs[0]))
    observations = observation("push")
    observations.vectors.copy_(state)
    policy.act(observations, True)
    assert inputs_of_spread[0][0].tolist() == pytest.approx([5.0, -5.0, 0.0], abs=1e-5)


def test_groot_takes_state_and_actions_from_the_least_to_the_greatest(tmp_path):
    from tests.policies.test_groot import SPEC as ITS
    from tests.policies.test_groot import groot

    statistics = {
        "observation.state": {"min": [-1.0] * ITS.vector_size, "max": [3.0] * ITS.vector_size},
        "action": {"min": [-0.01] * ITS.action.dim, "max": [0.03] * ITS.action.dim},
    }
    policy = groot(statistics=written(tmp_path, statistics, "stats.json"))
    state = torch.tensor([[-1.0], [3.0], [1.0]]).expand(3, ITS.vector_size)
    assert torch.allclose(policy.normalisation.normalize(state), (state - 1.0) / 2.0)
    assert torch.allclose(
        policy.units.gain * torch.tensor(ITS.action.scale), torch.full((ITS.action.dim,), 0.02)
    )


def test_what_never_changed_in_the_data_set_stays_what_it_was_there(tmp_path):
    """And is not the whole range of the arm for any small number that the network says."""
    statistics = {
        "norm_stats": {
            "state": STATE | {"std": [0.5, 0.0, 1.5]},
            "actions": ACTION | {"std": [0.004, 0.0]},
        }
    }
    policy = pi0(statistics=written(tmp_path, statistics))
    stays = pytest.approx([-0.002 / SPEC.action.scale[1]] * 2)
    assert (
        policy.units.to_actions(torch.tensor([[0.5, 40.0], [0.5, -40.0]]))[:, 1].tolist() == stays
    )
    assert policy.units.to_network(torch.tensor([0.1, 0.7]))[1] == 0.0
    assert policy.normalisation.normalize(torch.tensor([[0.0, 0.8, 0.0]]))[0, 1] == pytest.approx(
        1.0
    )


def groot(**config):
    from tests.policies.test_groot import groot

    return groot(**config)


def pi05(**config):
    from tests.policies.test_pi05 import pi05

    return pi05(**config)


def smolvla(**config):
    from tests.policies.test_smolvla import smolvla

    return smolvla(**config)


@pytest.mark.parametrize(
    "change",
    [
        {
            "mean": [0.06, 0.0],
            "std": [0.33, 0.38],
            "q01": [-0.9, -0.9],
            "q99": [0.93, 0.9],
        },  # LIBERO's
        {
            "mean": [0.0, 0.0],
            "std": [5.0, 5.0],
            "q01": [-20.0, -20.0],
            "q99": [20.0, 20.0],
        },  # millimetres
        {
            "mean": [0.5, 0.0],
            "std": [0.05, 0.005],
            "q01": [0.4, -0.01],
            "q99": [0.6, 0.01],
        },  # poses
        {"mean": [0.0, 0.5], "std": [0.005, 0.49], "q01": [0.0, 0.0], "q99": [0.01, 1.0]},
    ],
)  # a gripper's
@pytest.mark.parametrize("make", [pi0, smolvla, pi05, groot])
def test_actions_in_other_units_are_refused(make, change, tmp_path):
    change |= {"min": change["q01"], "max": change["q99"]}
    sizes = {
        name: [*values, values[-1]][: make().spec.vector_size] for name, values in STATE.items()
    }
    state = sizes | {"min": sizes["q01"], "max": sizes["q99"]}
    with pytest.raises(
        SpecError,
        match=r"expected 'd[xy]' within 0.02 m in both directions \(a step of the station\), got "
        r".*Are its actions of another kind, or in other units\?",
    ):
        make(statistics=written(tmp_path, {"observation.state": state, "action": change}, "s.json"))


@pytest.mark.parametrize(
    "statistics, error, words",
    [
        (
            {"norm_stats": {"state": STATE}},
            PolicyFileError,
            "expected actions or action, got state",
        ),
        (
            {"norm_stats": {"state": {"mean": [0.0] * 3}, "actions": ACTION}},
            PolicyFileError,
            "expected numbers mean and std of state, by which this network was trained, got: 'std'",
        ),
        (
            {"norm_stats": {"state": STATE, "actions": ACTION | {"std": [1.0]}}},
            PolicyFileError,
            "actions: expected as many finite numbers mean as std, got 2 and 1",
        ),
        (
            {"norm_stats": {"state": STATE, "actions": ACTION | {"std": [1.0, float("nan")]}}},
            PolicyFileError,
            "expected as many finite numbers",
        ),
        (
            {"norm_stats": {"state": {"mean": [0.0] * 7, "std": [1.0] * 7}, "actions": ACTION}},
            SpecError,
            r"expected 3 numbers of state (pose, pose, pose), got 7, of which 7 vary. Take a task "
            r"whose numbers are those of",
        ),
        (
            {"norm_stats": {"state": {"mean": [0.0] * 8, "std": [1.0] * 8}, "actions": ACTION}},
            SpecError,
            "got 8, of which 8 vary",
        ),
        (
            {"norm_stats": {"state": STATE, "actions": ACTION | {"std": [0.004, -0.01]}}},
            PolicyFileError,
            "actions: expected deviations of 0 or more, and no least number above the greatest "
            "(mean, std), got -0.01",
        ),
        (
            [1, 2],
            PolicyFileError,
            "expected a norm_stats.json, as openpi and Dexbotic write it, or LeRobot's",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(statistics, error, words, tmp_path):
    with pytest.raises(error) as refused:
        pi0(statistics=written(tmp_path, statistics))
    assert words in str(refused.value) and "policy.statistics" in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        PolicyFileError,
        match="policy.statistics .*none.json: expected a norm_stats.json, .*No such file",
    ):
        test_pi0.pi0(statistics=str(tmp_path / "none.json"))
