"""ACT and Diffusion Policy: beside LeRobot's own classes and beside torch's layers; what they
learn; what is refused.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.chunking import Chunking
from rlinf_core.policies.pretrained.act.policy import Layer, image_positions, sinusoidal_positions
from rlinf_core.policies.pretrained.diffusion.policy import NoiseSchedule
from rlinf_core.policies.pretrained.visuomotor import station_features
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

VENV = Path(".venvs/lerobot").resolve()
LEROBOT = pytest.mark.skipif(
    not (VENV / "bin/python").exists(), reason="not run: .venvs/lerobot is not there (make lerobot)"
)
# so large that nothing is cut off
ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.5, 0.4), ("m", "m"))
BLIND = StationSpec((ArraySpec("pose", (3,)),), ACTION, 10.0)
SEEING = StationSpec(
    (
        ArraySpec("pose", (3,)),
        *(
            ArraySpec(name, (40, 48, 3), "uint8", "", (0.0,), (255.0,))
            for name in ("front", "wrist")
        ),
    ),
    ACTION,
    10.0,
)
TINY = {
    "act": {
        "dim_model": 16,
        "n_heads": 2,
        "dim_feedforward": 24,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
    },
    "diffusion": {
        "down_dims": [8, 16],
        "diffusion_step_embed_dim": 8,
        "spatial_softmax_num_keypoints": 4,
        "num_train_timesteps": 20,
        "num_inference_steps": 5,
    },
}
LEARNING = {
    "act": {"dropout": 0.0, "kl_weight": 1.0},
    "diffusion": {"prediction_type": "sample", "down_dims": [32], "diffusion_step_embed_dim": 16},
}
KINDS = [*TINY]


def policy_of(kind, spec=BLIND, **config):
    torch.manual_seed(0)
    changes = {} if "checkpoint" in config else {"network": TINY[kind]}
    return make_policy(spec, policy_kind(kind).Config(**{"horizon": 4} | changes | config)).eval()


def observation(spec, count=2, seed=0):
    random = np.random.default_rng(seed)
    pictures = {
        image.name: torch.from_numpy(random.integers(0, 255, (count, *image.shape), np.uint8))
        for image in spec.images
    }
    return Observation(
        torch.from_numpy(random.normal(size=(count, 3)).astype(np.float32)), pictures, ("",) * count
    )


# Beside torch's own layers and formulas
@torch.no_grad()
@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_layer_of_act_is_torchs(pre_norm):
    config = {
        "dim_model": 16,
        "n_heads": 2,
        "dim_feedforward": 24,
        "dropout": 0.1,
        "feedforward_activation": "gelu",
        "pre_norm": pre_norm,
    }
    x, memory = torch.randn(5, 3, 16), torch.randn(7, 3, 16)
    zero, none = torch.zeros(5, 1, 16), torch.zeros(7, 1, 16)
    encoder = nn.TransformerEncoderLayer(16, 2, 24, 0.1, "gelu", norm_first=pre_norm).eval()
    layer = Layer(config, decoder=False).eval()
    layer.load_state_dict(encoder.state_dict())
    assert torch.allclose(layer(x, zero), encoder(x), atol=1e-6)
    decoder = nn.TransformerDecoderLayer(16, 2, 24, 0.1, "gelu", norm_first=pre_norm).eval()
    layer = Layer(config, decoder=True).eval()
    layer.load_state_dict(decoder.state_dict())
    assert torch.allclose(layer(x, zero, (memory, none)), decoder(x, memory), atol=1e-6)


def test_positions_are_those_of_the_papers():
    """Vaswani et al. 2017, section 3.5; DETR's (Carion et al. 2020) for the places of a picture,
    from 0 to 2 pi.
    """
    got = sinusoidal_positions(3, 6).numpy()
    for position in range(3):
        for pair in range(3):
            angle = position / 10_000 ** (2 * pair / 6)
            assert got[position, 2 * pair : 2 * pair + 2] == pytest.approx(
                [np.sin(angle), np.cos(angle)], abs=1e-6
            )
    got = image_positions(torch.zeros(1, 5, 2, 3), 8).reshape(2, 3, 8).numpy()
    for row in range(2):
        for column in range(3):
            for offset, angle in (
                (0, 2 * np.pi * (row + 1) / 2),
                (4, 2 * np.pi * (column + 1) / 3),
            ):
                expected = [
                    part(angle / 10_000 ** (2 * pair / 4))
                    for pair in range(2)
                    for part in (np.sin, np.cos)
                ]
                assert got[row, column, offset : offset + 4] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("schedule", ["squaredcos_cap_v2", "linear", "scaled_linear"])
@pytest.mark.parametrize("kind", ["DDIM", "DDPM"])
@pytest.mark.parametrize("predicts", ["epsilon", "sample"])
def test_the_way_back_of_a_right_prediction_ends_at_the_actions(schedule, kind, predicts):
    config = {
        "num_train_timesteps": 20,
        "beta_schedule": schedule,
        "beta_start": 1e-4,
        "beta_end": 0.2,
        "clip_sample": True,
        "clip_sample_range": 1.0,
        "noise_scheduler_type": kind,
        "prediction_type": predicts,
    }
    noise, actions = NoiseSchedule(config, torch.device("cpu")), torch.rand(2, 4, 3) * 2 - 1
    point, draw = torch.randn(2, 4, 3), torch.Generator().manual_seed(2)
    for step, following in noise.steps(10):
        signal = noise.signal[step]
        right = (
            (point - signal.sqrt() * actions) / (1 - signal).sqrt()
            if predicts == "epsilon"
            else actions
        )
        point = noise.denoise_step(
            point, right, step, following, lambda: torch.randn(2, 4, 3, generator=draw)
        )
    assert [step for step, _ in noise.steps(10)] == [*range(18, -1, -2)]
    assert torch.allclose(point, actions, atol=1e-4)


# What they learn, and their files
@pytest.mark.parametrize("kind", KINDS)
def test_cloning_learns_what_depends_on_the_state(kind):
    policy = policy_of(kind, network=TINY[kind] | LEARNING[kind])
    learner = Learner(policy, SFTConfig(learning_rate=3e-3, min_std=0.0, anneal_steps=100), 0)
    random = np.random.default_rng(0)

    def batch(count):
        vectors = random.uniform(-1, 1, (count, 3)).astype(np.float32)
        return {
            "vectors": vectors,
            "action": np.tile(0.8 * vectors[:, :2], (1, 4)).astype(np.float32),
        }

    for _ in range(100):
        learner.update(batch(64))
    tested = batch(100)
    actions = policy.act(
        Observation(torch.from_numpy(tested["vectors"]), {}, ("",) * 100),
        False,
        torch.Generator().manual_seed(0),
    ).actions
    error = (actions.flatten(1) - torch.from_numpy(tested["action"])).abs().mean().item()
    assert error < 0.15, "a third of what the mean action would be off by"


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_file_gives_the_same_actions_back_and_training_does_not_change_how_it_acts(
    kind, tmp_path
):
    policy = policy_of(kind, SEEING)
    assert not policy.network.training
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    observed = observation(SEEING)

    def act(actor):
        return actor.act(observed, False, torch.Generator().manual_seed(1)).actions

    again = load_policy(path, SEEING)
    assert (
        torch.equal(act(again), act(policy))
        and act(policy).std() > 1e-3
        and act(policy).shape == (2, 4, 2)
    )
    assert torch.equal(act(policy.train()), act(policy.eval()))
    actions = torch.rand(2, 8, generator=torch.Generator().manual_seed(2))
    losses = [
        policy.train().imitation_loss(
            policy.to_batch(observed), actions, torch.Generator().manual_seed(3)
        )
        for _ in range(2)
    ]
    assert torch.equal(*losses) and not policy.network.training, (
        "dropout draws from the generator that is given"
    )


# Beside LeRobot's own classes
NUMBERS = {"mean": 0.2, "std": 0.7, "min": -1.5, "max": 2.0, "q01": -1.0, "q99": 1.2}
CASES = {
    "act": (
        "act",
        SEEING,
        {"chunk_size": 4, "n_action_steps": 3, "dropout": 0.0, **TINY["act"]},
        {},
    ),
    "act_ensemble": (
        "act",
        SEEING,
        {
            "chunk_size": 4,
            "n_action_steps": 1,
            "temporal_ensemble_coeff": 0.01,
            "dropout": 0.0,
            "pre_norm": True,
            "use_vae": False,
            "feedforward_activation": "gelu",
            **TINY["act"],
        },
        {},
    ),
    "act_blind": (
        "act",
        BLIND,
        {"chunk_size": 4, "n_action_steps": 4, "dropout": 0.0, **TINY["act"]},
        {"STATE": "MIN_MAX", "ACTION": "MIN_MAX"},
    ),
    "diffusion": (
        "diffusion",
        SEEING,
        {
            "n_obs_steps": 1,
            "horizon": 4,
            "n_action_steps": 3,
            "crop_shape": [32, 40],
            "crop_is_random": False,
            **TINY["diffusion"],
        },
        {},
    ),
    "diffusion_two": (
        "diffusion",
        SEEING,
        {
            "n_obs_steps": 2,
            "horizon": 8,
            "n_action_steps": 4,
            "noise_scheduler_type": "DDIM",
            "use_separate_rgb_encoder_per_camera": True,
            "use_group_norm": False,
            "use_film_scale_modulation": False,
            "prediction_type": "sample",
            "beta_schedule": "linear",
            **TINY["diffusion"],
        },
        {"VISUAL": "IDENTITY", "ACTION": "MEAN_STD"},
    ),
    "diffusion_blind": (
        "diffusion",
        BLIND,
        {
            "n_obs_steps": 1,
            "horizon": 4,
            "n_action_steps": 2,
            "beta_schedule": "scaled_linear",
            **TINY["diffusion"],
            "num_inference_steps": None,
        },
        {"STATE": "MEAN_STD"},
    ),
}
DEFAULTS = {
    "act": {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
    "diffusion": {"VISUAL": "MEAN_STD", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"},
}
STEPS = 7


def lerobot(mode, folder):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [VENV / "bin/python", "tests/policies/visuomotor_itself.py", mode, folder],
        check=True,
        timeout=300,
        env=environment,
    )
    return np.load(folder / "answers.npz")


def ask(case, folder):
    """Write what LeRobot is asked."""
    kind, spec, config, modes = CASES[case]
    random, observed = np.random.default_rng(4), observation(spec, seed=4)
    statistics = {"observation.state": 3, "action": 2, "observation.environment_state": 3}
    numbers = {
        name: {
            key: (scale * (value + 0.1 * random.uniform(size=size))).tolist()
            for key, value in NUMBERS.items()
        }
        for (name, size), scale in zip(statistics.items(), (1.0, 0.1, 1.0), strict=True)
    }
    numbers["observation.environment_state"] = numbers["observation.state"]
    numbers |= {
        f"observation.images.{image.name}": {
            key: np.full((3, 1, 1), value).tolist()
            for key, value in {"mean": 0.4, "std": 0.3, "min": 0.0, "max": 1.0}.items()
        }
        for image in spec.images
    }
    steps = config.get("horizon", config.get("chunk_size"))
    times = np.array([3, 17])
    action = random.uniform(-1, 1, (2, steps, 2)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    np.savez(
        folder / "given.npz",
        state=observed.vectors,
        action=action,
        times=times,
        **{name: image for name, image in observed.images.items()},
    )
    modes = DEFAULTS[kind] | {"ENV": (DEFAULTS[kind] | modes)["STATE"]} | modes
    (folder / "given.json").write_text(
        json.dumps(
            {
                "kind": kind,
                "cameras": [image.name for image in spec.images],
                "config": config,
                "statistics": numbers,
                "modes": modes,
                "steps": STEPS,
            }
        )
    )
    return observed, torch.from_numpy(action), times


def published(case, folder, **changes):
    kind, spec, config, _ = CASES[case]
    observed = config.get("n_obs_steps", 1)
    horizon = config.get("chunk_size", 0) or config["horizon"] - observed + 1
    (statistics,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
    keys = {
        "checkpoint": str(folder),
        "horizon": horizon,
        "n_action_steps": config["n_action_steps"],
        "statistics": str(statistics),
    }
    if kind == "diffusion":
        keys |= {"n_obs_steps": observed}
    return make_policy(spec, policy_kind(kind).Config(**keys | changes))


def play(policy, observed, ensembles):
    """Play chunks like a station; return the actions (B, STEPS, A) in the task's units."""
    scale, played = torch.tensor(ACTION.scale), []
    schedules = [
        Chunking("temporal_ensembling" if ensembles else "synchronous", policy.config.executed)
        for _ in range(len(observed))
    ]
    torch.manual_seed(3)
    rest = [np.zeros((0, 2))] * len(observed)
    for step in range(STEPS):
        if ensembles or not len(rest[0]):
            chunk = (policy.act(observed, False).actions * scale).numpy()
            rest = [
                schedule.merge(actions, float(step), 0)
                for schedule, actions in zip(schedules, chunk, strict=True)
            ]
        played.append([actions[0] for actions in rest])
        rest = [actions[1:] for actions in rest]
    return np.array(played).swapaxes(0, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@LEROBOT
@pytest.mark.parametrize("case", [*CASES])
def test_a_folder_of_lerobots_answers_as_lerobot_does(case, tmp_path, monkeypatch):
    observed, demonstrated, times = ask(case, tmp_path)
    answers, policy = lerobot("make", tmp_path), published(case, tmp_path)
    scale = torch.tensor(ACTION.scale)
    ensembles = "ensemble" in case
    assert np.abs(answers["played"]).max() < 0.4 and answers["played"].std() > 0.005
    assert np.abs(play(policy, observed, ensembles) - answers["played"]).max() < 1e-5
    if "chunk" in answers:
        torch.manual_seed(3)
        assert (
            np.abs((policy.act(observed, False).actions * scale).numpy() - answers["chunk"]).max()
            < 1e-5
        )
    # the loss, of actions that are the network's numbers
    policy.goal = lambda actions: demonstrated[:, CASES[case][2].get("n_obs_steps", 1) - 1 :]
    monkeypatch.setattr("torch.rand", lambda size, **_: torch.from_numpy(times + 0.5).float() / 20)
    torch.manual_seed(3)
    if "two" not in case:  # there LeRobot's first action is the one before
        loss = policy.eval().imitation_loss(policy.to_batch(observed), torch.zeros(2, 8)).item()
        assert loss == pytest.approx(float(answers["loss"]), abs=1e-5) and loss > 0.1


def exported(kind, spec, folder):
    """A policy of ours in LeRobot's folder, what it is asked there, and its own chunk [the task's
    units].
    """
    policy = policy_of(kind, spec, n_action_steps=3, stochastic_eval=kind == "diffusion")
    random = np.random.default_rng(6)
    policy.normalisation.set_statistics(random.normal(size=3), random.uniform(0.5, 2.0, 3))
    policy.save_folder(folder)
    observed = observation(spec, seed=4)
    np.savez(
        folder / "given.npz",
        state=observed.vectors,
        action=np.zeros((2, 4, 2), np.float32),
        times=np.array([3, 7]),
        **observed.images,
    )
    (folder / "given.json").write_text(json.dumps({"cameras": [*observed.images], "steps": STEPS}))
    return policy, observed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [BLIND, SEEING], ids=["blind", "seeing"])
def test_an_exported_folder_loads_again_and_acts_the_same(kind, spec, tmp_path):
    policy, observed = exported(kind, spec, tmp_path / "theirs")
    statistics = tmp_path / "theirs/policy_preprocessor_step_3_normalizer_processor.safetensors"
    again = policy_of(
        kind,
        spec,
        checkpoint=str(tmp_path / "theirs"),
        statistics=str(statistics),
        n_action_steps=3,
    )
    first, second = (
        actor.act(observed, False, torch.Generator().manual_seed(1)).actions
        for actor in (policy, again)
    )
    assert torch.allclose(first, second, atol=1e-5) and first.std() > 1e-3
    with pytest.raises(PolicyFileError, match="Nothing is overwritten"):
        policy.save_folder(tmp_path / "theirs")


@pytest.mark.slow
@pytest.mark.timeout(600)
@LEROBOT
@pytest.mark.parametrize(
    "kind, spec", [("act", SEEING), ("diffusion", SEEING), ("diffusion", BLIND)]
)
def test_lerobots_own_class_loads_our_folder_and_answers_the_same(kind, spec, tmp_path):
    policy, observed = exported(kind, spec, tmp_path)
    answers = lerobot("load", tmp_path)
    assert (
        np.abs(play(policy, observed, False) - answers["played"]).max() < 1e-5
        and answers["played"].std() > 1e-3
    )


# What is refused
@pytest.mark.parametrize(
    "change, error",
    [
        (
            {"vision_backbone": "resnet50"},
            "vision_backbone: expected resnet18 or resnet34, got 'resnet50'",
        ),
        (
            {"temporal_ensemble_coeff": 0.5},
            "expected a temporal_ensemble_coeff of 0.01, which station.policy.chunking",
        ),
        (
            {"n_action_steps": 2},
            r"policy.n_action_steps: expected 2, as .* \(n_action_steps\), got the default 4",
        ),
        ({"chunk_size": 9}, "policy.horizon: expected 9"),
        ({"n_obs_steps": 2}, "expected n_obs_steps of 1"),
        ({"type": "diffusion"}, "expected a config.json of LeRobot's type act, got 'diffusion'"),
        ({"input_features": [1]}, "expected input_features in config.json as a map"),
        (
            {"input_features": {"observation.state": {"type": "STATE"}}},
            "a shape of 1 numbers for observation.state",
        ),
        (
            {"input_features": {"observation.tactile": {"type": "STATE", "shape": [3]}}},
            "got 'observation.tactile'",
        ),
        ({"n_heads": 3}, "embed_dim must be divisible by num_heads"),
        ({"a_key_of_tomorrow": 1}, "got 'a_key_of_tomorrow: 1'"),
    ],
)
def test_a_folder_of_act_that_asks_for_something_else_is_refused_by_name(change, error, tmp_path):
    policy_of("act", SEEING).save_folder(tmp_path / "theirs")
    document = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(json.dumps(document | change))
    with pytest.raises(PolicyFileError, match=error):
        policy_of("act", SEEING, checkpoint=str(tmp_path / "theirs"))


def test_a_folder_for_other_time_steps_cameras_or_numbers_is_refused_by_name(tmp_path):
    policy_of("diffusion", SEEING, n_obs_steps=2, horizon=7).save_folder(tmp_path / "theirs")
    folder = {"checkpoint": str(tmp_path / "theirs"), "horizon": 7}
    with pytest.raises(
        PolicyFileError,
        match="policy.n_obs_steps: expected 2, .* gives the present time step so many",
    ):
        policy_of("diffusion", SEEING, **folder)
    assert (
        policy_of("diffusion", SEEING, n_obs_steps=2, **folder)
        .act(observation(SEEING), False)
        .actions.shape[1]
        == 7
    )
    with pytest.raises(
        SpecError, match="expected 0 numbers of observation.environment_state|expected 3 numbers of"
    ):
        policy_of("diffusion", BLIND, n_obs_steps=2, **folder)
    smaller = StationSpec(
        (
            SEEING.observation[0],
            *(
                ArraySpec(image.name, (20, 48, 3), "uint8", "", (0.0,), (255.0,))
                for image in SEEING.images
            ),
        ),
        ACTION,
        10.0,
    )
    with pytest.raises(
        SpecError,
        match="the cameras front 40x48, wrist 40x48 .* got front 20x48, .* station.image_size",
    ):
        policy_of("diffusion", smaller, n_obs_steps=2, **folder)


def test_cameras_are_taken_in_the_folders_order(tmp_path):
    network = TINY["diffusion"] | {"use_separate_rgb_encoder_per_camera": True}
    policy = policy_of("diffusion", SEEING, network=network, stochastic_eval=True)
    policy.save_folder(tmp_path / "theirs")
    turned = StationSpec((SEEING.observation[0], *reversed(SEEING.images)), ACTION, 10.0)
    again = policy_of("diffusion", turned, checkpoint=str(tmp_path / "theirs"))
    observed = observation(SEEING)
    first, second = (
        actor.act(observed, False, torch.Generator().manual_seed(1)).actions
        for actor in (policy, again)
    )
    assert torch.allclose(first, second, atol=1e-5) and again.pictures.names == ("front", "wrist")
    path = save_policy(again, tmp_path / "policy-00000001.safetensors")
    assert torch.equal(
        load_policy(path, turned).act(observed, False, torch.Generator().manual_seed(1)).actions,
        second,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_check_model_names_statistics_of_another_data_set(kind, tmp_path):
    from rlinf_core.data.check_model import check_policy
    from tests.data.test_check_model import SPEC, samples, statistics

    policy_of(kind, SPEC).save_folder(tmp_path / "theirs")
    data, faults = samples(), []
    for changes in (
        {},
        {"state": lambda values: values + 3.0},
        {"action": lambda values: 20.0 * values},
    ):
        (tmp_path / "stats.json").unlink(missing_ok=True)
        numbers = json.loads(Path(statistics(tmp_path, data, **changes)).read_text())
        numbers |= {
            f"observation.images.{image.name}": {
                "mean": [0.5] * 3,
                "std": [0.3] * 3,
                "min": [0.0] * 3,
                "max": [1.0] * 3,
            }
            for image in SPEC.images
        }
        (tmp_path / "stats.json").write_text(json.dumps(numbers))
        keys = {"checkpoint": str(tmp_path / "theirs"), "statistics": str(tmp_path / "stats.json")}
        rows = [
            *check_policy(
                lambda keys=keys: policy_of(kind, SPEC, **keys), SPEC, data, tmp_path / "theirs"
            )
        ]
        faults.append([row.name for row in rows if not row.passed])
    assert "state statistics" not in faults[0] and "action statistics" not in faults[0]
    assert "state statistics" in faults[1] and faults[2] not in (faults[0], faults[1])


@pytest.mark.parametrize(
    "network, error",
    [
        ({"vision_backbone": ["resnet18"]}, "vision_backbone: expected resnet18 or resnet34"),
        (
            {"num_train_timesteps": 0, "num_inference_steps": None},
            "expected 1 to num_train_timesteps of 0",
        ),
        (
            {"num_inference_steps": 21},
            "num_inference_steps: expected 1 to num_train_timesteps of 20, got 21",
        ),
        ({"beta_schedule": "steps"}, "beta_schedule: expected squaredcos_cap_v2"),
        ({"prediction_type": "v"}, "prediction_type: expected epsilon or sample"),
        ({"down_dims": "x"}, "expected keys and values of LeRobot's config.json"),
        ({"dims": 3}, "expected keys of LeRobot's diffusion, got 'dims'"),
    ],
)
def test_a_network_that_cannot_be_made_or_denoised_is_refused_by_name(network, error):
    with pytest.raises(PolicyFileError, match=error):
        policy_of("diffusion", network=TINY["diffusion"] | network)
    with pytest.raises(
        SpecError, match="policy.denoising_steps: expected at most 20, with which .* got 21"
    ):
        policy_of("diffusion", denoising_steps=21)


def test_features_of_a_station_in_lerobots_format():
    seeing, blind = (
        StationSpec(
            (ArraySpec("joints", (3,)), ArraySpec("wrench", (6,)), *cameras),
            ActionSpec("joint", ("a", "b"), (1.0, 1.0), ("rad", "rad")),
            10.0,
        )
        for cameras in (
            (ArraySpec("wrist", (20, 30, 3), "uint8"), ArraySpec("top", (8, 6, 3), "uint8")),
            (),
        )
    )
    state, action = {"type": "STATE", "shape": [9]}, {"type": "ACTION", "shape": [2]}
    assert station_features(seeing) == {
        "input_features": {
            "observation.state": state,
            "observation.images.wrist": {"type": "VISUAL", "shape": [3, 20, 30]},
            "observation.images.top": {"type": "VISUAL", "shape": [3, 8, 6]},
        },
        "output_features": {"action": action},
    }
    assert station_features(blind) == {
        "input_features": {
            "observation.state": state,
            "observation.environment_state": {"type": "ENV", "shape": [9]},
        },
        "output_features": {"action": action},
    }
