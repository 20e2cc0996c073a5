import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.pi0 import Config
from rlinf_core.policies.pretrained.pi0.policy import Pi0
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m"))
CAMERAS = tuple(ArraySpec(name, (32, 32, 3), "uint8") for name in ("front", "wrist"))
SPEC = StationSpec((ArraySpec("pose", (3,)), *CAMERAS), ACTION, 10.0, "push")
LAYERS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "patch_size": 16,
    "image_size": 32,
}
SMALL = {
    "max_action_dim": 4,
    "max_state_dim": 8,
    "dit_config": LAYERS,
    "vlm_config": {"projection_dim": 32, "text_config": LAYERS, "vision_config": VISION},
}


def pi0(**config):
    torch.manual_seed(0)
    return Pi0(SPEC, Config(**{"horizon": 4, "network": SMALL, "flow_steps": 3} | config)).eval()


def observation(*sentences, size=(32, 32), seed=0):
    random = np.random.default_rng(seed)
    pictures = {
        name: torch.from_numpy(random.integers(0, 255, (len(sentences), *size, 3), np.uint8))
        for name in ("front", "wrist")
    }
    vectors = torch.from_numpy(random.normal(size=(len(sentences), 3)).astype(np.float32))
    return Observation(vectors, pictures, sentences)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Write a checkpoint as on Hugging Face, with transformers' processor of the same tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PI0Processor, PreTrainedTokenizerFast
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    vocabulary = ["<pad>", "<bos>", "<unk>", "\n", " ", "push", "the", "red", "cube"]
    words = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(" ", "isolated")
    tokenizer.add_tokens(["\n"])
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 4
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", pad_token="<pad>", unk_token="<unk>"
    )
    processor = PI0Processor(
        images, fast, state_mean=[0.0] * 3, state_std=[1.0] * 3, max_state_dim=8, chunk_size=4
    )
    folder = tmp_path_factory.mktemp("pi0")
    tiny_checkpoint.write(
        "pi0", folder, SMALL, processor.tokenizer.backend_tokenizer.to_str(), horizon=4, seed=1
    )
    return folder, processor


def test_a_checkpoint_acts_as_transformers_own_model_and_processor_do(checkpoint):
    from transformers import PI0ForConditionalGeneration

    folder, processor = checkpoint
    policy = Pi0(
        SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(folder), flow_steps=5)
    ).eval()
    observations = observation("push the red cube", "push")
    pictures = [
        [observations.images[name][index].numpy() for name in ("front", "wrist")]
        for index in (0, 1)
    ]
    theirs = processor(
        images=pictures,
        text=list(observations.instruction),
        state=observations.vectors,
        return_tensors="pt",
    )
    ours = policy.inputs(policy.to_batch(observations))
    length = ours["input_ids"].shape[1]  # theirs is filled up to 48
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(
            ours[name] * ours["attention_mask"],
            (theirs[name] * theirs["attention_mask"])[:, :length],
        ), name
        assert theirs["attention_mask"][:, length:].sum() == 0
    assert torch.allclose(ours["pixel_values"], theirs["pixel_values"], atol=1e-6)
    assert torch.allclose(ours["state"], theirs["state"], atol=2e-4)

    noise = policy.noise(2, torch.Generator().manual_seed(3))
    model = PI0ForConditionalGeneration.from_pretrained(folder)
    expected = model.sample_actions(**theirs, noise=noise, num_steps=5)[..., :2].clamp(-1, 1)
    assert torch.allclose(
        policy.decode(policy.to_batch(observations), noise).view(2, 4, 2), expected, atol=1e-4
    )
    assert expected.std() > 0.05


def test_its_loss_is_that_of_transformers_own_model_on_the_same_noise_and_times():
    policy = pi0()
    batch = policy.to_batch(observation("push", "pull", "push it"))
    actions = torch.rand(3, 8) * 2 - 1
    noise = policy.noise(3, generator := torch.Generator().manual_seed(5))
    time = torch.rand(3, generator=generator) ** (1 / 1.5) * 0.999 + 0.001
    goal = torch.cat([actions.view(3, 4, 2), torch.zeros(3, 4, 2)], dim=-1)
    policy.network.config.loss_reduction = "none"
    expected = (
        policy.network(**policy.inputs(batch), noise=noise, timestep=time, actions=goal)
        .loss[..., :2]
        .mean()
    )
    ours = policy.imitation_loss(batch, actions, torch.Generator().manual_seed(5))
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_drawn_times_are_of_the_beta_distribution_that_pi0_was_trained_with():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Beta(1.5, 1.0)
    assert (uniform ** (1 / 1.5)).mean() == pytest.approx(expected.mean.item(), abs=0.01)
    assert (uniform ** (1 / 1.5)).std() == pytest.approx(expected.stddev.item(), abs=0.01)


def test_a_policy_file_is_all_that_a_station_needs(checkpoint, tmp_path):
    folder, _ = checkpoint
    config = Config(horizon=4, stochastic_eval=False, checkpoint=str(folder), flow_steps=2)
    policy = Pi0(SPEC, config).eval()
    policy.normalisation.set_statistics(np.array([1.0, 2.0, 3.0]), np.ones(3))
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    try:
        again = load_policy(path, SPEC)
    finally:
        moved.rename(folder)
    observations = observation("push the red cube")
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )
    assert again.config == config and again.tokenizer.text == policy.tokenizer.text


def test_a_sentence_means_the_same_alone_and_beside_a_longer_one():
    policy = pi0()
    both = observation("push", "push the cube into the very far corner")
    alone = Observation(
        both.vectors[:1], {name: image[:1] for name, image in both.images.items()}, ("push",)
    )
    first = policy.act(both, False).actions
    assert torch.allclose(first[:1], policy.act(alone, False).actions, atol=1e-5)
    other = Observation(alone.vectors, alone.images, ("pull",))
    assert not torch.allclose(policy.act(other, False).actions, first[:1], atol=1e-4)


def test_pictures_of_another_shape_keep_it():
    wide = torch.full((1, 16, 32, 3), 255, dtype=torch.uint8)
    square = letterbox(wide, 32)
    assert square.shape == (1, 3, 32, 32)
    assert (
        (square[:, :, :8] == -1).all()
        and (square[:, :, 8:24] == 1).all()
        and (square[:, :, 24:] == -1).all()
    )
    large = letterbox(torch.full((1, 64, 128, 3), 255, dtype=torch.uint8), 32)
    assert torch.allclose(large, square, atol=1e-6)


def test_it_draws_actions_where_it_explores_and_not_where_it_does_not():
    policy, observations = pi0(), observation("push")
    assert torch.equal(
        policy.act(observations, False).actions, policy.act(observations, False).actions
    )
    drawn = [
        policy.act(observations, True, torch.Generator().manual_seed(seed)).actions
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (1, 4, 2) and drawn[0].abs().max() <= 1.0
    assert pi0(n_action_steps=3).act(observations, False).execute == 3


def test_by_cloning_it_learns_to_do_as_it_is_told():
    policy = pi0()
    learner = Learner(policy, SFTConfig(learning_rate=4e-3, min_std=0.0, image_shift=0), seed=0)
    learner.fit_normalisation(np.random.default_rng(0).normal(size=(100, 3)))
    targets = {"left": -0.7, "right": 0.7}
    before = obeyed(policy, targets)
    for step in range(80):
        observations = observation(*(["left", "right"] * 4), seed=step)
        batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
        batch["action"] = np.repeat(
            [[targets[word]] for word in observations.instruction], 8, axis=1
        ).astype(np.float32)
        metrics = learner.update(batch)
    assert np.isfinite(metrics["sft_loss"])
    assert before > 0.5 and obeyed(policy, targets) < 0.15


def obeyed(policy, targets):
    """Return the distance of the actions to those of each sentence, in unseen pictures."""
    observations = observation(*targets, seed=10_000)
    actions = policy.eval().act(observations, False).actions.mean(dim=(1, 2))
    return (actions - torch.tensor(list(targets.values()))).abs().max().item()


def test_with_a_frozen_model_the_expert_alone_moves():
    policy = pi0(frozen=True)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner = Learner(policy, SFTConfig(min_std=0.0, image_shift=0), seed=0)
    batch = {name: values.numpy() for name, values in policy.to_batch(observation("push")).items()}
    learner.update(batch | {"action": np.ones((1, 8), np.float32)})
    moved = {
        name
        for name, tensor in policy.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert moved and not any(".vlm." in name for name in moved)


def test_what_does_not_fit_is_named(checkpoint, tmp_path):
    folder, _ = checkpoint
    with pytest.raises(SpecError, match="expected at least one camera"):
        Pi0(
            StationSpec(SPEC.observation[:1], ACTION, 10.0, "push"),
            Config(horizon=4, network=SMALL),
        )
    with pytest.raises(
        SpecError, match="expected at most 8 observed numbers for a pi0 of this size, got 9"
    ):
        Pi0(
            StationSpec((ArraySpec("pose", (9,)), *CAMERAS), ACTION, 10.0),
            Config(horizon=4, network=SMALL),
        )
    with pytest.raises(SpecError, match="instruction: expected a sentence"):
        pi0().act(observation(" "), False)
    with pytest.raises(SpecError, match="expected at most 128 bytes"):
        pi0().act(observation("push " * 40), False)
    with pytest.raises(PolicyFileError, match="policy.horizon: expected 4"):
        Pi0(SPEC, Config(horizon=8, stochastic_eval=False, checkpoint=str(folder)))
    with pytest.raises(PolicyFileError, match="found no config.json"):
        Pi0(SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(tmp_path)))
    with pytest.raises(
        PolicyFileError, match="policy.network: expected keys and values of transformers' PI0Config"
    ):
        pi0(network=SMALL | {"dit_config": LAYERS | {"num_hidden_layers": "two"}})
    with pytest.raises(
        PolicyFileError,
        match=r"policy.network.dit_config: .* got 'num_hiden_layers' \(did you mean",
    ):
        pi0(network=SMALL | {"dit_config": LAYERS | {"num_hiden_layers": 2}})


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda weights: weights.pop("action_out_proj.bias"),
            "lacks 1, among them action_out_proj.bias",
        ),
        (
            lambda weights: weights.update(extra=torch.zeros(2)),
            "has beside what it should 1, among them extra",
        ),
        (
            lambda weights: weights.update({"action_out_proj.bias": torch.zeros(3)}),
            "has in other shapes 1, among them .*action_out_proj.bias",
        ),
    ],
)
def test_a_checkpoint_with_missing_or_extra_tensors_is_refused_by_name(
    checkpoint, tmp_path, change, error
):
    from safetensors.torch import load_file, save_file

    folder, _ = checkpoint
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(PolicyFileError, match=error):
        Pi0(SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(tmp_path)))


def test_another_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        PolicyFileError, match="expected a model_type of pi0 or dexbotic_pi0, got 'gemma'"
    ):
        Pi0(SPEC, Config(horizon=4, stochastic_eval=False, checkpoint=str(tmp_path)))


def test_sentences_come_back_as_they_went():
    sentences = ("push the cube", "", "Stecke den Stift in die Öffnung")
    assert arrays.decode_instructions(arrays.encode_instructions(sentences)) == sentences
    with pytest.raises(SpecError, match="without NUL"):
        arrays.encode_instructions(["a\0b"])


def test_a_value_beside_it_is_told_what_it_is_told():
    """The same picture, of which one sentence ends well and another does not."""
    from rlinf_core.algorithms.ppo import Config as PPO
    from rlinf_core.algorithms.ppo import Learner as PPOLearner

    learner = PPOLearner(pi0(), PPO(), seed=0)
    batch = learner.policy.to_batch(observation("push", "pull"))
    batch = {
        name: values[:1].repeat(2, *[1] * (values.ndim - 1))
        if name != arrays.INSTRUCTION
        else values
        for name, values in batch.items()
    }
    optimiser = torch.optim.Adam(learner.value.parameters(), 1e-3)
    for _ in range(60):
        loss = ((learner.value(batch) - torch.tensor([1.0, 0.0])) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    good, bad = learner.value(batch).tolist()
    assert good - bad > 0.8
