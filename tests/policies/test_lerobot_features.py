"""The task's names of a folder's features, for LeRobot's class in its own process."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.isolated.lerobot.policy import (
    check_statistics,
    folder_digest,
    match_features,
)
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

FOLDER = Path("f")
SPEC = StationSpec(
    (
        ArraySpec("pose", (3,)),
        ArraySpec("wrench", (2,)),
        ArraySpec("front", (8, 6, 3), "uint8"),
        ArraySpec("wrist", (4, 4, 3), "uint8"),
    ),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.5, 0.4), ("m", "m")),
    10.0,
)
STATE, FRONT = {"shape": [5]}, {"shape": [3, 8, 6]}
INPUTS = {"observation.state": STATE, "observation.images.front": FRONT}


def of(inputs=None, outputs=None, **configured):
    document = {
        "input_features": INPUTS if inputs is None else inputs,
        "output_features": {"action": {"shape": [2]}} if outputs is None else outputs,
    }
    return match_features(
        FOLDER, document, SPEC, {key.replace("__", "."): names for key, names in configured.items()}
    )


def test_names_are_the_task_s_in_its_order_or_those_of_the_recipe():
    assert of() == {
        "observation.state": ("pose", "wrench"),
        "observation.images.front": ("front",),
        "action": ("dx", "dy"),
    }
    got = of(
        {
            "observation.state": {"shape": [3]},
            "observation.environment_state": {"shape": [5]},
            "observation.images.empty_camera_0": {"shape": [3, 1, 1]},
            "observation.image": {"shape": [3, 4, 4]},
        },
        observation__state=("pose",),
        observation__environment_state=("wrench", "pose"),
        observation__image=("wrist",),
        action=("dy", "dx"),
    )
    assert got == {
        "observation.state": ("pose",),
        "observation.environment_state": ("wrench", "pose"),
        "observation.image": ("wrist",),
        "action": ("dy", "dx"),
    }


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (
            [],
            {"action": {"shape": [2]}},
            "expected input_features and output_features with action in config.json, got [] and "
            "{'action': {'shape': [2]}}",
        ),
        (
            INPUTS,
            {"x": 1},
            "expected input_features and output_features with action in config.json, got "
            f"{str(INPUTS)[:80]} and {{'x': 1}}",
        ),
        (
            {"observation.state": [5]},
            None,
            "expected features observation.state, observation.environment_state, "
            "observation.images.* and action with their shapes, got 'observation.state': [5]",
        ),
        (
            {"observation.state": {"shape": 5}},
            None,
            "expected features observation.state, observation.environment_state, "
            "observation.images.* and action with their shapes, got 'observation.state': "
            "{'shape': 5}",
        ),
        (
            {"observation.images.front": {"shape": [3, 8]}},
            None,
            "expected features observation.state, observation.environment_state, "
            "observation.images.* and action with their shapes, got 'observation.images.front': "
            "{'shape': [3, 8]}",
        ),
        (
            {"observation.effort": {"shape": [5]}},
            None,
            "expected features observation.state, observation.environment_state, "
            "observation.images.* and action with their shapes, got 'observation.effort': "
            "{'shape': [5]}",
        ),
    ],
)
def test_features_that_are_not_lerobot_s_are_refused(inputs, outputs, message):
    with pytest.raises(PolicyFileError) as refused:
        of(inputs, outputs)
    assert str(refused.value) == f"policy.checkpoint f: {message}"


@pytest.mark.parametrize(
    ("inputs", "configured", "message"),
    [
        (
            None,
            {"observation__states": ("pose",)},
            "policy.features: expected observation.state, observation.images.front, action, as f "
            "has them, got 'observation.states' (did you mean 'observation.state'?)",
        ),
        (
            None,
            {"observation__state": ("pose", "poes")},
            "policy.checkpoint f: observation.state: expected pose, wrench of the task, got "
            "'poes' (did you mean 'pose'?). Set policy.features='{observation.state: [...]}'",
        ),
        (
            {"observation.images.side": FRONT},
            {},
            "policy.checkpoint f: observation.images.side: expected front, wrist of the task, got "
            "'side'. Set policy.features='{observation.images.side: [...]}'",
        ),
        (
            {"observation.images.wrist": FRONT},
            {},
            "policy.checkpoint f: observation.images.wrist: expected images of 8x6 (height x "
            "width) of one camera, got wrist of 4x4. Set station.image_size",
        ),
        (
            None,
            {"observation__images__front": ("front", "wrist")},
            "policy.checkpoint f: observation.images.front: expected images of 8x6 (height x "
            "width) of one camera, got front, wrist of 8x6. Set station.image_size",
        ),
        (
            {"observation.state": {"shape": [4]}},
            {},
            "policy.checkpoint f: observation.state: expected 4 numbers, got 5 of pose, wrench. "
            "Set policy.features='{observation.state: [...]}', or take the task that it was "
            "trained on",
        ),
        (
            {"observation.state": {"shape": [6]}},
            {"observation__state": ("pose", "pose")},
            "policy.checkpoint f: observation.state: expected 6 numbers, got 6 of pose, pose. Set "
            "policy.features='{observation.state: [...]}', or take the task that it was trained "
            "on",
        ),
        (
            None,
            {"observation__state": ()},
            "policy.checkpoint f: observation.state: expected 5 numbers, got 0 of nothing. Set "
            "policy.features='{observation.state: [...]}', or take the task that it was trained "
            "on",
        ),
    ],
)
def test_names_that_do_not_fit_are_refused(inputs, configured, message):
    with pytest.raises(SpecError) as refused:
        of(inputs, **configured)
    assert str(refused.value) == message


def test_every_number_of_an_action_needs_a_place():
    with pytest.raises(SpecError) as refused:
        of(outputs={"action": {"shape": [1]}}, action=("dy",))
    assert str(refused.value) == (
        "policy.checkpoint f: action: expected all of dx, dy, got none for dx"
    )


def test_a_digest_is_of_names_sizes_and_contents_of_the_files_that_count(tmp_path):
    for name, content in (("b.json", b"{}"), ("a.safetensors", b"xyz"), ("note.txt", b"1")):
        (tmp_path / name).write_bytes(content)
    expected = hashlib.sha256(b"a.safetensors 3\nxyzb.json 2\n{}").digest()
    digest = folder_digest(tmp_path)
    assert bytes(digest.tolist()) == expected and str(digest.dtype) == "torch.uint8"
    (tmp_path / "note.txt").write_bytes(b"2")
    assert bytes(folder_digest(tmp_path).tolist()) == expected
    (tmp_path / "b.json").rename(tmp_path / "c.json")
    assert bytes(folder_digest(tmp_path).tolist()) != expected


def test_units_of_a_folder_are_compared_in_the_task_s_order(tmp_path):
    document = {"normalization_mapping": {"ACTION": "MEAN_STD"}}
    path = tmp_path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors"

    def statistics(deviations, feature="action"):
        numbers = np.array([*deviations, 999.0], np.float32)  # beyond the task's
        save_file({f"{feature}.mean": 0.0 * numbers, f"{feature}.std": numbers}, path)

    check_statistics(tmp_path, document, SPEC, [1, 0])  # no file
    statistics([0.1, 0.1])
    check_statistics(tmp_path, document, SPEC, [1, 0])
    statistics([0.1, 200.0])  # the second one is the task's first
    with pytest.raises(SpecError) as refused:
        check_statistics(tmp_path, document, SPEC, [1, 0])
    assert f"policy.checkpoint {tmp_path}" in str(refused.value) and "dx" in str(refused.value)
    assert "dy" not in str(refused.value)
    for other in ({}, {"normalization_mapping": {"ACTION": "IDENTITY"}}):
        check_statistics(tmp_path, other, SPEC, [1, 0])
    statistics([0.1, 200.0], "observation.state")
    check_statistics(tmp_path, document, SPEC, [1, 0])
