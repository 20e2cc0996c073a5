"""policy.kind lerobot: the process boundary with a stand-in, and LeRobot itself where it is."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlinf_core.cli.serve import policy_file
from rlinf_core.core.errors import EngineError, PolicyFileError, RlinfError, SpecError
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.isolated.lerobot import Config
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

STAND_IN = Path(__file__).parent / "lerobot_stand_in"
REFERENCES = Path(".venvs/references/bin/python").resolve()
ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.5, 0.4), ("m", "m"))
SPEC = StationSpec(
    (
        ArraySpec("pose", (2,)),
        ArraySpec("width", (1,)),
        *(ArraySpec(name, (8, 6, 3), "uint8", "", (0.0,), (255.0,)) for name in ("front", "wrist")),
    ),
    ACTION,
    10.0,
)
# pose, width, front, wrist to dx, dy
WEIGHT = torch.tensor([[1.0, -2.0, 3.0, 4.0, -5.0], [0.5, 1.5, -1.0, 2.0, 1.0]])


def folder_of(tmp_path, **changes):
    folder = tmp_path / "act"
    folder.mkdir(exist_ok=True)
    inputs = {
        "observation.state": {"type": "STATE", "shape": [3]},
        **{
            f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 8, 6]}
            for name in ("front", "wrist")
        },
    }
    document = {
        "type": "act",
        "input_features": inputs,
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "chunk_size": 4,
        "n_action_steps": 3,
        "n_obs_steps": 1,
        "noise": 0.0,
        "normalization_mapping": {"ACTION": "MEAN_STD"},
    }
    (folder / "config.json").write_text(json.dumps(document | changes))
    save_file({"weight": WEIGHT}, folder / "model.safetensors")
    statistics(folder, 0.1)
    return folder


def statistics(folder, deviation):
    save_file(
        {"action.mean": torch.zeros(2), "action.std": torch.full((2,), deviation)},
        folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
    )


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_LEROBOT", sys.executable)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(STAND_IN), os.environ.get("PYTHONPATH", "")])
    )


def policy_of(folder, spec=SPEC, **config):
    return make_policy(spec, Config(**{"checkpoint": str(folder), "horizon": 4} | config))


def observation(count=2, instruction=""):
    random = np.random.default_rng(0)
    pictures = {
        name: torch.from_numpy(random.integers(0, 255, (count, 8, 6, 3), np.uint8))
        for name in ("front", "wrist")
    }
    return Observation(
        torch.from_numpy(random.normal(size=(count, 3)).astype(np.float32)),
        pictures,
        (instruction,) * count,
    )


def by_hand(observed, horizon=4):
    features = torch.cat(
        [
            observed.vectors,
            *(
                observed.images[name].double().mean((1, 2, 3))[:, None] / 255
                for name in ("front", "wrist")
            ),
        ],
        1,
    )
    first = 0.01 * features.double() @ WEIGHT.double().T
    return first[:, None] * torch.arange(1, horizon + 1)[:, None] / torch.tensor(ACTION.scale)


def test_it_plays_what_the_class_there_answers_and_its_file_does_too(tmp_path, stand_in):
    policy, observed = policy_of(folder_of(tmp_path)), observation()
    chunk = policy.act(observed, explore=False)
    assert torch.allclose(chunk.actions.double(), by_hand(observed), atol=1e-6)
    assert chunk.execute == 4 and not policy.needs_instruction
    path = save_policy(policy, tmp_path / "policy-00000000.safetensors")
    again = load_policy(path, SPEC)
    assert torch.equal(again.act(observed, explore=False).actions, chunk.actions)
    assert torch.equal(copy.deepcopy(policy).act(observed, explore=False).actions, chunk.actions)
    with pytest.raises(SpecError, match="got lerobot, which is only played"):
        policy.imitation_loss(observed.batch, torch.zeros(2, 8))


def test_a_server_answers_with_it_in_si_units(tmp_path, stand_in):
    from rlinf_core.deploy.serving.protocol import Request
    from rlinf_core.deploy.serving.weights import Weights

    observed = observation(1)
    save_policy(policy_of(folder_of(tmp_path)), tmp_path / "policy-00000000.safetensors")
    images = {name: image[0].numpy() for name, image in observed.images.items()}
    version = Weights(tmp_path).newest
    answer = version.answers([Request(observed.vectors[0].numpy(), images, "")])[0]
    expected = by_hand(observed)[0] * torch.tensor(ACTION.scale)
    assert np.allclose(answer["actions"], expected.numpy(), atol=1e-6)


def test_names_of_the_task_are_put_where_the_folder_has_them(tmp_path, stand_in):
    policy = policy_of(
        folder_of(tmp_path),
        features={
            "observation.state": ("width", "pose"),
            "observation.images.front": ("wrist",),
            "observation.images.wrist": ("front",),
            "action": ("dy", "dx"),
        },
    )
    observed = observation()
    turned = Observation(
        observed.vectors[:, [2, 0, 1]],
        {"front": observed.images["wrist"], "wrist": observed.images["front"]},
    )
    expected = by_hand(turned) * torch.tensor(ACTION.scale)  # its first number is dy here
    assert torch.allclose(
        policy.act(observed, explore=False).actions.double(),
        expected.flip(-1) / torch.tensor(ACTION.scale),
        atol=1e-6,
    )


def test_noise_is_drawn_by_the_generator_unless_the_recipe_decides(tmp_path, stand_in):
    folder, observed = folder_of(tmp_path, noise=1.0), observation()
    policy = policy_of(folder)
    first, second, other = (
        policy.act(observed, False, torch.Generator().manual_seed(seed)).actions
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)
    still = policy_of(folder, stochastic_eval=False)
    assert torch.equal(still.act(observed, False).actions, still.act(observed, False).actions)
    explored = still.act(observed, True, torch.Generator().manual_seed(1))
    assert torch.equal(explored.actions, first) and explored.log_probs is None
    assert len(explored.drawn) == len(explored.actions) == 2


def test_a_policy_with_a_history_gets_the_present_time_step_for_all_of_it(tmp_path, stand_in):
    observed = observation()
    chunk = policy_of(folder_of(tmp_path, n_obs_steps=2), horizon=3).act(observed, explore=False)
    assert torch.allclose(chunk.actions.double(), by_hand(observed, 3), atol=1e-6)


def test_an_exception_there_is_one_here_and_it_plays_on(tmp_path, stand_in):
    policy = policy_of(folder_of(tmp_path))
    with pytest.raises(EngineError, match="ValueError: expected another sentence"):
        policy.act(observation(instruction="raise"), explore=False)
    assert policy.act(observation(), explore=False).horizon == 4
    with pytest.raises(EngineError, match="ended with code 3"):
        policy.act(observation(instruction="die"), explore=False)


def test_a_process_that_does_not_answer_is_ended(tmp_path, stand_in):
    policy = policy_of(folder_of(tmp_path))
    policy._process.connection.settimeout(1.0)
    with pytest.raises(EngineError, match="no answer"):
        policy.act(observation(instruction="sleep"), explore=False)
    assert policy._process.process.returncode is not None


def test_what_does_not_fit_is_named_before_it_is_started(tmp_path, stand_in):
    folder = folder_of(tmp_path)
    for config, message in (
        ({"horizon": 3}, "expected 4, as the checkpoint"),
        ({"features": {"observation.states": ()}}, "did you mean 'observation.state'"),
        ({"features": {"observation.state": ("pose",)}}, "expected 3 numbers, got 2 of pose"),
        ({"features": {"action": ("dx", "dz")}}, "got 'dz'"),
        ({"features": {"action": ("dx", "dx")}}, "expected 2 numbers, got 2 of dx, dx"),
        ({"features": {"observation.images.front": ("top",)}}, "got 'top'"),
    ):
        with pytest.raises((SpecError, PolicyFileError), match=message):
            policy_of(folder, **config)
    inputs = {"observation.images.front": {"type": "VISUAL", "shape": [3, 9, 6]}}
    with pytest.raises(SpecError, match="expected images of 9x6"):
        policy_of(folder_of(tmp_path, input_features=inputs))
    with pytest.raises(PolicyFileError, match="observation.effort"):
        policy_of(
            folder_of(
                tmp_path, input_features={"observation.effort": {"type": "STATE", "shape": [3]}}
            )
        )


def test_other_units_are_refused_by_the_statistics_and_by_the_chunk(tmp_path, stand_in):
    folder = folder_of(tmp_path)
    statistics(folder, 100.0)
    with pytest.raises(SpecError, match="other units"):
        policy_of(folder)
    save_file({"weight": 1e4 * WEIGHT}, folder_of(tmp_path) / "model.safetensors")
    with pytest.raises(SpecError, match="The chunk is not played"):
        policy_of(folder).act(observation(), explore=False)


def test_a_policy_file_is_of_one_folder(tmp_path, stand_in):
    folder = folder_of(tmp_path)
    path = save_policy(policy_of(folder), tmp_path / "policy-00000000.safetensors")
    save_file({"weight": 2 * WEIGHT}, folder / "model.safetensors")
    with pytest.raises(PolicyFileError, match="got one with other files"):
        load_policy(path).act(observation(), explore=False)


def test_without_lerobot_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_core.policies.isolated.lerobot.policy.python_of", lambda name: None)
    with pytest.raises(RlinfError, match="make lerobot"):
        policy_of(folder_of(tmp_path))


def test_a_python_without_lerobot_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_LEROBOT", sys.executable)
    with pytest.raises(EngineError, match="No module named 'lerobot'"):
        policy_of(folder_of(tmp_path))


def test_the_command_writes_a_file_that_evaluation_plays(tmp_path, stand_in, capsys):
    from rlinf_core.recipes import load_recipe, station_task
    from rlinf_core.reports.films import rollout

    spec = station_task(load_recipe("sim_sft")).spec
    inputs = {"observation.state": {"type": "STATE", "shape": [spec.vector_size]}}
    outputs = {"action": {"type": "ACTION", "shape": [spec.action.dim]}}
    folder = folder_of(
        tmp_path, input_features=inputs, output_features=outputs, normalization_mapping={}
    )
    save_file(
        {"weight": torch.zeros(spec.action.dim, spec.vector_size)}, folder / "model.safetensors"
    )
    policy_file(
        "sim_sft", [f"policy={{kind: lerobot, checkpoint: {folder}, horizon: 4}}"], tmp_path / "out"
    )
    path = tmp_path / "out/policy-00000000.safetensors"
    assert str(path) in capsys.readouterr().out
    ((episode, _),) = rollout(load_recipe("sim_sft"), path, [0], 0)
    assert episode.success is False


@pytest.mark.slow
@pytest.mark.skipif(
    not REFERENCES.exists(), reason="not run: .venvs/references is not there (make references)"
)
def test_lerobots_own_classes_are_played_to_1e_6(tmp_path):
    figures = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "benchmarks/vla_references.py", "--cases", "--json", figures], check=True
    )
    assert json.loads(figures.read_text())["played"].keys() == {"act", "diffusion", "smolvla"}
    assert all(
        difference < 1e-6 for difference in json.loads(figures.read_text())["played"].values()
    )
