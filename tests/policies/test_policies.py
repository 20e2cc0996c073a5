import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from rlinf_core.core.errors import PolicyFileError, RecipeError, SpecError
from rlinf_core.policies import kinds, policy_kind
from rlinf_core.policies.base import Observation, Policy
from rlinf_core.policies.policy_folder import newest_policy, policy_name, policy_version, read_info
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.conditioned.policy import ConditionedActor
from rlinf_core.policies.small.tanh_gaussian.policy import Actor, squashed_log_prob
from rlinf_core.recipes import load_recipe
from rlinf_core.specs.arrays import ArraySpec
from tests.algorithms.learning import of_config
from tests.algorithms.toy import acted

WITHOUT_DENSITY = {
    "act",
    "diffusion",
    "groot",
    "groot_n1_6",
    "groot_n1_7",
    "pi0",
    "pi05",
    "smolvla",
    "xvla",
}
# language acts on no robot: tests/agentic; lerobot plays a folder in another process:
# test_lerobot_kind.py
ROBOT_KINDS = [kind for kind in kinds() if kind not in ("language", "lerobot")]


@pytest.fixture
def actor(task):
    torch.manual_seed(0)
    return Actor(task.with_images({"front": (32, 32)}).spec)


def observation(spec, random):
    return {
        item.name: random.integers(0, 255, item.shape, dtype=np.uint8)
        if item.is_image
        else random.normal(size=item.shape).astype(np.float32)
        for item in spec.observation
    }


def test_log_prob_equals_the_change_of_variables_computed_by_hand():
    raw, mean, log_std = (
        torch.tensor([[0.3, -1.2]], dtype=torch.float64) * k for k in (1.0, 0.5, -0.4)
    )
    by_hand = 0.0
    for x, m, s in zip(raw[0].tolist(), mean[0].tolist(), log_std.exp()[0].tolist(), strict=True):
        density = math.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))
        by_hand += math.log(density / (1 - math.tanh(x) ** 2))
    assert squashed_log_prob(raw, mean, log_std).item() == pytest.approx(by_hand, abs=1e-9)


def test_a_policy_file_gives_the_same_actions_back(actor, tmp_path, random):
    path = save_policy(actor, tmp_path / "p.safetensors", version=3)
    again = load_policy(path)
    arrays = observation(actor.spec, random)
    action = acted(actor.eval(), arrays)
    assert np.array_equal(action, acted(again, arrays)) and action.shape == (1, 3)
    assert again.spec == actor.spec and read_info(path) == {"version": 3}


def test_exploration_differs_and_stays_in_range(actor, random):
    arrays = observation(actor.spec, random)
    actions = np.stack([acted(actor, arrays, True) for _ in range(20)])
    assert actions.std() > 0.01 and np.abs(actions).max() <= 1.0


@pytest.mark.parametrize(
    "damage, error",
    [
        (lambda data: data[: len(data) // 2], "truncated or damaged"),
        (lambda data: b"", "truncated or damaged"),
        (
            lambda data: data.replace(b"rlinf-policy-1", b"rlinf-policy-0"),
            "format rlinf-policy-1, got 'rlinf-policy-0'",
        ),
        (
            lambda data: data.replace(b'hidden\\": [256, 256]', b'hidden\\": [128, 256]'),
            "expected shape",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_what_is_wrong(actor, tmp_path, damage, error):
    path = save_policy(actor, tmp_path / "p.safetensors")
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    with pytest.raises(PolicyFileError, match=error):
        load_policy(path)


def test_diverged_weights_are_refused(actor, tmp_path):
    with torch.no_grad():
        next(actor.parameters()).fill_(float("nan"))
    with pytest.raises(PolicyFileError, match="diverged"):
        load_policy(save_policy(actor, tmp_path / "p.safetensors"))
    with pytest.raises(PolicyFileError, match="no such file"):
        load_policy(tmp_path / "absent.safetensors")


def test_normalisation_is_fitted_and_survives_constants(actor, random):
    vectors = random.normal(3.0, 2.0, (500, actor.spec.vector_size)).astype(np.float32)
    vectors[:, 0] = 7.0
    actor.encoder.fit_normalisation(vectors)
    assert actor.encoder.mean[1].item() == pytest.approx(3.0, abs=0.3)
    assert actor.encoder.std[0].item() > 0.1 and actor.encoder.std[1].item() == pytest.approx(
        2.0, abs=0.2
    )


@pytest.mark.parametrize("kind", ROBOT_KINDS)
def test_every_kind_explores_and_does_not_as_it_is_asked(kind, task):
    """Gradients are on, as in training."""
    torch.manual_seed(0)
    spec = task.with_images({"front": (16, 16)}).spec
    policy = of_config(spec, policy_kind(kind).Config(hidden=(16,), horizon=2))
    arrays = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
    draw = torch.Generator().manual_seed(1)
    still = [acted(policy, arrays) for _ in range(2)]
    explored = [acted(policy, arrays, True, draw) for _ in range(2)]
    assert np.array_equal(*still) and not np.array_equal(*explored)
    assert explored[0].shape == (2, task.spec.action.dim) and np.abs(explored).max() <= 1.0
    assert isinstance(policy, Policy) and policy.device == torch.device("cpu")


@pytest.mark.parametrize("kind", ROBOT_KINDS)
def test_a_batch_is_answered_as_its_observations_one_by_one(kind, task, random):
    torch.manual_seed(0)
    spec = task.with_images({"front": (16, 16)}).spec
    config = policy_kind(kind).Config(hidden=(16,), image_features=4, horizon=4, n_action_steps=3)
    policy = of_config(spec, config)
    observations = [observation(spec, random) for _ in range(5)]
    arrays = {
        "vectors": np.stack([spec.flatten(one) for one in observations]),
        "front": np.stack([one["front"] for one in observations]),
    }
    batch = Observation.from_arrays(spec, arrays)
    chunk = policy.act(batch, explore=False)
    assert (chunk.actions.shape, chunk.execute, len(batch)) == (
        (5, 4, 3),
        3,
        5,
    ) and not chunk.actions.requires_grad
    assert batch.instruction == (spec.instruction,) * 5
    for index, one in enumerate(observations):
        assert acted(policy, one) == pytest.approx(chunk.actions[index].numpy(), abs=1e-5)
    drawn = policy.act(batch, explore=True, generator=torch.Generator().manual_seed(1))
    assert len(drawn.drawn) == 5
    if kind in WITHOUT_DENSITY:
        assert drawn.log_probs is None
    else:
        assert drawn.log_probs is not None and len(drawn.log_probs) == 5


@pytest.mark.parametrize("kind", ROBOT_KINDS)
def test_one_that_is_sampled_draws_where_it_does_not_explore(kind, task, random):
    spec = task.with_images({"front": (16, 16)}).spec

    def chunk(sampled, explore, seed=1):
        torch.manual_seed(0)
        policy = of_config(spec, policy_kind(kind).Config(hidden=(16,), stochastic_eval=sampled))
        observation = Observation.from_single(
            spec, {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
        )
        return policy.act(observation, explore, torch.Generator().manual_seed(seed)).actions.numpy()

    assert np.array_equal(chunk(True, False), chunk(False, True))
    assert not np.array_equal(chunk(True, False), chunk(True, False, 2))
    assert np.array_equal(chunk(False, False), chunk(False, False, 2))


def test_an_observation_that_is_not_the_specs_is_refused_by_name(task, random):
    spec = task.with_images({"front": (16, 16)}).spec
    arrays = {
        "vectors": np.zeros((2, spec.vector_size), np.float32),
        "front": np.zeros((2, 16, 15, 3), np.uint8),
    }
    with pytest.raises(
        SpecError, match=r"'front': expected shape \(2, 16, 16, 3\), got \(2, 16, 15, 3\)"
    ):
        Observation.from_arrays(spec, arrays)
    with pytest.raises(SpecError, match="'front': expected shape .*, got nothing"):
        Observation.from_arrays(spec, {"vectors": arrays["vectors"]})


@pytest.mark.parametrize(
    "execute, allowed", [(-1, "at least 0"), (5, "at most policy.horizon = 4")]
)
def test_more_than_a_chunk_cannot_be_played(execute, allowed):
    with pytest.raises(RecipeError, match=f"policy.n_action_steps.*expected {allowed}"):
        load_recipe("sim_sac", ["policy.horizon=4", f"policy.n_action_steps={execute}"])
    assert (
        tanh_gaussian.Config(horizon=4).executed == 4
        and tanh_gaussian.Config(horizon=4, n_action_steps=2).executed == 2
    )


def test_versions_are_in_the_names_and_the_newest_is_found_anywhere_below(tmp_path):
    assert (
        policy_name(12) == "policy-00000012.safetensors"
        and policy_version(tmp_path / policy_name(12)) == 12
    )
    for folder, version in (("a", 3), ("b/c", 11), ("b", 10)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / policy_name(version)).touch()
    (tmp_path / "b/policy.txt").touch()
    assert newest_policy(tmp_path) == tmp_path / "b/c" / policy_name(11)
    assert newest_policy(tmp_path / "a" / policy_name(3)) == tmp_path / "a" / policy_name(3)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/policy-best.safetensors").touch()
    assert newest_policy(tmp_path) == tmp_path / "b/c" / policy_name(11)
    (tmp_path / "policies" / policy_name(2)).touch()
    (tmp_path / "policies" / policy_name(4)).write_bytes(b"")
    assert newest_policy(tmp_path) == tmp_path / "policies" / policy_name(4), (
        "a run's own, whatever else lies there"
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        PolicyFileError, match=r"empty: expected a policy-\*.safetensors or a folder .*, found none"
    ):
        newest_policy(tmp_path / "empty")


def test_a_file_says_what_it_was_saved_with_and_nothing_else_is_left_beside_it(actor, tmp_path):
    path = save_policy(actor, tmp_path / "new/folder/p.safetensors", version=3, updates=7)
    assert read_info(path) == {"version": 3, "updates": 7}
    assert [file.name for file in path.parent.iterdir()] == ["p.safetensors"]
    with safe_open(path, framework="np") as file:
        assert set(file.metadata()) == {"format", "info", "spec", "config"}
        assert file.metadata()["format"] == "rlinf-policy-1"
    assert read_info(save_policy(actor, str(tmp_path / "q.safetensors"))) == {}
    save_file({"x": np.zeros(1)}, tmp_path / "bare.safetensors")
    assert read_info(tmp_path / "bare.safetensors") == {}
    with pytest.raises(PolicyFileError, match="expected format rlinf-policy-1, got None"):
        load_policy(tmp_path / "bare.safetensors")


def test_a_policy_of_another_station_is_refused_by_what_differs(actor, task, tmp_path):
    path = save_policy(actor, tmp_path / "p.safetensors")
    with pytest.raises(
        SpecError, match="does not fit this station:\n.*front.*\nTrain it with this station's task"
    ):
        load_policy(path, task.spec)
    again = load_policy(path, actor.spec)
    assert not again.training and again.config == actor.config and again.config.hidden == (256, 256)


def test_weights_of_another_network_are_refused_by_name(actor, tmp_path):
    path = tmp_path / "p.safetensors"
    described = {key: json.dumps(value) for key, value in actor.describe().items()} | {
        "format": "rlinf-policy-1"
    }
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    save_file(
        {name: value for name, value in weights.items() if name != "head.bias"}, path, described
    )
    with pytest.raises(
        PolicyFileError, match=r"'head.bias': expected shape \(6,\), got nothing; the weights"
    ):
        load_policy(path)
    save_file(weights | {"head.bias": np.zeros(5, np.float32)}, path, described)
    with pytest.raises(PolicyFileError, match=r"'head.bias': expected shape \(6,\), got \(5,\)"):
        load_policy(path)


def test_a_labelled_policy_annotates_an_episode_as_it_acts(task, random):
    actor = ConditionedActor(task.spec)
    size = task.spec.vector_size
    observations = {
        "vectors": random.normal(size=(4, size)).astype(np.float32),
        "front": random.integers(0, 255, (4, 8, 8, 3), dtype=np.uint8),
    }
    annotate = actor.annotate(observations)
    assert annotate.keys() == observations.keys()
    assert annotate["front"] is observations["front"]
    vectors = annotate["vectors"]
    assert vectors.shape == (4, size + 1) and vectors.dtype == np.float32
    assert np.array_equal(vectors[:, :-1], observations["vectors"])
    assert vectors[:, -1].tolist() == [1.0] * 4
    batch = actor.to_batch(Observation(torch.from_numpy(observations["vectors"])))
    assert np.array_equal(batch["vectors"].numpy(), vectors)
    assert actor.policy_spec.vector_size == actor.input_spec.vector_size == size + 1
    assert actor.input_spec.observation[-1] == ArraySpec(
        "advantage", (1,), low=(-1.0,), high=(1.0,)
    )


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"config": None},
            "expected the config of a network of this version, got Expecting value: line 1 column "
            "1 (char 0). Train it again, or use the version of rlinf that wrote it",
        ),
        (
            {"config": '{"kind": 3}'},
            "expected the config of a network of this version, got expected a name as its kind, "
            "got int. Train it again, or use the version of rlinf that wrote it",
        ),
        (
            {"spec": None},
            "expected metadata as rlinf writes it, got KeyError: 'spec'. Copy the file again, or "
            "use an earlier version",
        ),
        ({"format": None}, "expected format rlinf-policy-1, got None"),
    ],
)
def test_a_file_without_a_part_of_its_description_is_refused(actor, tmp_path, metadata, message):
    path = save_policy(actor, tmp_path / "p.safetensors")
    with safe_open(path, framework="np") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = file.metadata() | metadata
    texts = {name: text for name, text in described.items() if text is not None}
    save_file(weights, path, texts)
    with pytest.raises(PolicyFileError) as refused:
        load_policy(path)
    assert str(refused.value) == f"policy {path}: {message}"
