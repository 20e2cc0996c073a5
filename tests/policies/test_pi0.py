import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.errors import PolicyFileError, SpecError
from rlinf_core.policies import instructions
from rlinf_core.policies.files import load_policy, save_policy
from rlinf_core.policies.images import in_the_middle
from rlinf_core.policies.pi0 import Config
from rlinf_core.policies.pi0.network import from_scratch
from rlinf_core.policies.pi0.policy import Pi0
from rlinf_core.policies.policy import Observation
from rlinf_core.specs import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after

ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m"))
CAMERAS = tuple(ArraySpec(name, (32, 32, 3), "uint8") for name in ("front", "wrist"))
SPEC = StationSpec((ArraySpec("pose", (3,)), *CAMERAS), ACTION, 10.0, "push")
LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2,
          "num_key_value_heads": 1, "head_dim": 16}
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2, "patch_size": 16,
          "image_size": 32}
SMALL = {"max_action_dim": 4, "max_state_dim": 8, "dit_config": LAYERS,
         "vlm_config": {"projection_dim": 32, "text_config": LAYERS, "vision_config": VISION}}


def pi0(**config):
    torch.manual_seed(0)
    return Pi0(SPEC, Config(**{"horizon": 4, "network": SMALL, "flow_steps": 3} | config)).eval()


def observation(*sentences, size=(32, 32), seed=0):
    random = np.random.default_rng(seed)
    pictures = {name: torch.from_numpy(random.integers(0, 255, (len(sentences), *size, 3), np.uint8))
                for name in ("front", "wrist")}
    vectors = torch.from_numpy(random.normal(size=(len(sentences), 3)).astype(np.float32))
    return Observation(vectors, pictures, sentences)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """As Hugging Face has it, with transformers' own processor of the same tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PI0Processor, PreTrainedTokenizerFast
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    known = ["<pad>", "<bos>", "<unk>", "\n", " ", "push", "the", "red", "cube"]
    words = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(" ", "isolated")
    tokenizer.add_tokens(["\n"])
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 4
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", pad_token="<pad>", unk_token="<unk>")
    processor = PI0Processor(images, fast, state_mean=[0.0] * 3, state_std=[1.0] * 3, max_state_dim=8, chunk_size=4)
    folder = tmp_path_factory.mktemp("pi0")
    size = len(processor.tokenizer)
    torch.manual_seed(1)
    vlm = SMALL["vlm_config"] | {"image_token_index": processor.image_token_id,
                                 "text_config": LAYERS | {"vocab_size": size, "bos_token_id": 1}}
    from_scratch(SMALL | {"vlm_config": vlm}, 4).save_pretrained(folder)
    processor.tokenizer.save_pretrained(folder)
    return folder, processor


def test_a_checkpoint_acts_as_transformers_own_model_and_processor_do(checkpoint):
    from transformers import PI0ForConditionalGeneration

    folder, processor = checkpoint
    policy = Pi0(SPEC, Config(horizon=4, checkpoint=str(folder), flow_steps=5)).eval()
    seen = observation("push the red cube", "push")
    pictures = [[seen.images[name][index].numpy() for name in ("front", "wrist")] for index in (0, 1)]
    theirs = processor(images=pictures, text=list(seen.instruction), state=seen.vectors, return_tensors="pt")
    ours = policy.inputs(policy.seen(seen))
    length = ours["input_ids"].shape[1]  # theirs is filled up to 48
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(ours[name] * ours["attention_mask"], (theirs[name] * theirs["attention_mask"])[:, :length]), name
        assert theirs["attention_mask"][:, length:].sum() == 0
    assert torch.allclose(ours["pixel_values"], theirs["pixel_values"], atol=1e-6)
    assert torch.allclose(ours["state"], theirs["state"], atol=2e-4)

    noise = policy.noise(2, torch.Generator().manual_seed(3))
    model = PI0ForConditionalGeneration.from_pretrained(folder)
    expected = model.sample_actions(**theirs, noise=noise, num_steps=5)[..., :2].clamp(-1, 1)
    assert torch.allclose(policy.decode(policy.seen(seen), noise).view(2, 4, 2), expected, atol=1e-4)
    assert expected.std() > 0.05


def test_its_loss_is_that_of_transformers_own_model_on_the_same_noise_and_times():
    policy = pi0()
    batch = policy.seen(observation("push", "pull", "push it"))
    actions = torch.rand(3, 8) * 2 - 1
    noise = policy.noise(3, generator := torch.Generator().manual_seed(5))
    time = torch.rand(3, generator=generator) ** (1 / 1.5) * 0.999 + 0.001
    goal = torch.cat([actions.view(3, 4, 2), torch.zeros(3, 4, 2)], dim=-1)
    policy.network.config.loss_reduction = "none"
    expected = policy.network(**policy.inputs(batch), noise=noise, timestep=time, actions=goal).loss[..., :2].mean()
    ours = policy.imitation_loss(batch, actions, torch.Generator().manual_seed(5))
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_drawn_times_are_of_the_beta_distribution_that_pi0_was_trained_with():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Beta(1.5, 1.0)
    assert (uniform ** (1 / 1.5)).mean() == pytest.approx(expected.mean.item(), abs=0.01)
    assert (uniform ** (1 / 1.5)).std() == pytest.approx(expected.stddev.item(), abs=0.01)


def test_a_policy_file_is_all_that_a_station_needs(checkpoint, tmp_path):
    folder, _ = checkpoint
    config = Config(horizon=4, checkpoint=str(folder), flow_steps=2)
    policy = Pi0(SPEC, config).eval()
    policy.normalisation.normalise(np.array([1.0, 2.0, 3.0]), np.ones(3))
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    try:
        again = load_policy(path, SPEC)
    finally:
        moved.rename(folder)
    seen = observation("push the red cube")
    assert torch.equal(again.act(seen, False).actions, policy.act(seen, False).actions)
    assert again.config == config and again.tokenizer.text == policy.tokenizer.text


def test_a_sentence_means_the_same_alone_and_beside_a_longer_one():
    policy = pi0()
    both = observation("push", "push the cube into the very far corner")
    alone = Observation(both.vectors[:1], {name: image[:1] for name, image in both.images.items()}, ("push",))
    first = policy.act(both, False).actions
    assert torch.allclose(first[:1], policy.act(alone, False).actions, atol=1e-5)
    other = Observation(alone.vectors, alone.images, ("pull",))
    assert not torch.allclose(policy.act(other, False).actions, first[:1], atol=1e-4)


def test_pictures_of_another_shape_keep_it():
    wide = torch.full((1, 16, 32, 3), 255, dtype=torch.uint8)
    square = in_the_middle(wide, 32)
    assert square.shape == (1, 3, 32, 32)
    assert (square[:, :, :8] == -1).all() and (square[:, :, 8:24] == 1).all() and (square[:, :, 24:] == -1).all()
    large = in_the_middle(torch.full((1, 64, 128, 3), 255, dtype=torch.uint8), 32)
    assert torch.allclose(large, square, atol=1e-6)


def test_it_draws_actions_where_it_explores_and_not_where_it_does_not():
    policy, seen = pi0(), observation("push")
    assert torch.equal(policy.act(seen, False).actions, policy.act(seen, False).actions)
    drawn = [policy.act(seen, True, torch.Generator().manual_seed(seed)).actions for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (1, 4, 2) and drawn[0].abs().max() <= 1.0
    assert pi0(execute=3).act(seen, False).execute == 3


def test_by_cloning_it_learns_to_do_as_it_is_told():
    policy = pi0()
    learner = Learner(policy, SFTConfig(learning_rate=4e-3, noise_floor=0.0, image_shift=0), seed=0)
    learner.fit_normalisation(np.random.default_rng(0).normal(size=(100, 3)))
    said = {"left": -0.7, "right": 0.7}
    before = obeyed(policy, said)
    for step in range(80):
        seen = observation(*(["left", "right"] * 4), seed=step)
        batch = {name: values.numpy() for name, values in policy.seen(seen).items()}
        batch["action"] = np.repeat([[said[word]] for word in seen.instruction], 8, axis=1).astype(np.float32)
        metrics = learner.update(batch)
    assert np.isfinite(metrics["sft_loss"])
    assert before > 0.5 and obeyed(policy, said) < 0.15


def obeyed(policy, said):
    """How far the actions are from what each sentence asks for, in pictures that were not learned from."""
    seen = observation(*said, seed=10_000)
    actions = policy.eval().act(seen, False).actions.mean(dim=(1, 2))
    return (actions - torch.tensor(list(said.values()))).abs().max().item()


def test_with_a_frozen_model_the_expert_alone_moves():
    policy = pi0(frozen=True)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner = Learner(policy, SFTConfig(noise_floor=0.0, image_shift=0), seed=0)
    batch = {name: values.numpy() for name, values in policy.seen(observation("push")).items()}
    learner.update(batch | {"action": np.ones((1, 8), np.float32)})
    moved = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved and not any(".vlm." in name for name in moved)


def test_what_does_not_fit_is_named(checkpoint, tmp_path):
    folder, _ = checkpoint
    with pytest.raises(SpecError, match="expected at least one camera"):
        Pi0(StationSpec(SPEC.observation[:1], ACTION, 10.0, "push"), Config(horizon=4, network=SMALL))
    with pytest.raises(SpecError, match="expected at most 8 observed numbers for this pi0, got 9"):
        Pi0(StationSpec((ArraySpec("pose", (9,)), *CAMERAS), ACTION, 10.0), Config(horizon=4, network=SMALL))
    with pytest.raises(SpecError, match="instruction: expected a sentence"):
        pi0().act(observation(" "), False)
    with pytest.raises(SpecError, match="expected at most 128 bytes"):
        pi0().act(observation("push " * 40), False)
    with pytest.raises(PolicyFileError, match="policy.horizon: expected 4"):
        Pi0(SPEC, Config(horizon=8, checkpoint=str(folder)))
    with pytest.raises(PolicyFileError, match="found no config.json"):
        Pi0(SPEC, Config(horizon=4, checkpoint=str(tmp_path)))
    with pytest.raises(PolicyFileError, match="policy.network: expected keys and values of transformers' PI0Config"):
        pi0(network=SMALL | {"dit_config": LAYERS | {"num_hidden_layers": "two"}})
    with pytest.raises(PolicyFileError, match=r"policy.network.dit_config: .* got 'num_hiden_layers' \(did you mean"):
        pi0(network=SMALL | {"dit_config": LAYERS | {"num_hiden_layers": 2}})


@pytest.mark.parametrize("change, said", [
    (lambda weights: weights.pop("action_out_proj.bias"), "lacks 1, among them action_out_proj.bias"),
    (lambda weights: weights.update(extra=torch.zeros(2)), "has beside what it should 1, among them extra"),
    (lambda weights: weights.update({"action_out_proj.bias": torch.zeros(3)}),
     "has in other shapes 1, among them .*action_out_proj.bias")])
def test_a_checkpoint_with_missing_or_extra_tensors_is_refused_by_name(checkpoint, tmp_path, change, said):
    from safetensors.torch import load_file, save_file

    folder, _ = checkpoint
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(PolicyFileError, match=said):
        Pi0(SPEC, Config(horizon=4, checkpoint=str(tmp_path)))


def test_another_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PolicyFileError, match="expected a model_type of pi0, got 'gemma'"):
        Pi0(SPEC, Config(horizon=4, checkpoint=str(tmp_path)))


def test_sentences_come_back_as_they_went():
    said = ("push the cube", "", "Stecke den Stift in die Öffnung")
    assert instructions.decoded(instructions.encoded(said)) == said
    with pytest.raises(SpecError, match="without NUL"):
        instructions.encoded(["a\0b"])


def test_with_noise_on_the_way_the_log_densities_are_those_of_the_formula():
    """Step by step and number by number, from the network's own velocities."""
    policy = pi0(sde_noise=0.7)
    seen = policy.seen(observation("push", "pull it"))
    with torch.no_grad():
        path, log_probs = policy.sample(seen, torch.Generator().manual_seed(2))
    assert path.shape == (2, 4, 4, 4) and log_probs.shape == (2, 4)
    inputs, expected = policy.inputs(seen), np.zeros((2, 4))
    for k, time in enumerate((1.0, 2 / 3, 1 / 3)):
        x, then = path[:, k].double().numpy(), path[:, k + 1].double().numpy()
        with torch.no_grad():
            v = policy.network(**inputs, noise=path[:, k], timestep=torch.full((2,), time)).logits.double().numpy()
        score = -(x + (1 - time) * v) / time
        g = 0.7 * time ** 0.5
        mean, std = x - v / 3 + 0.5 * g ** 2 * score / 3, g * 3 ** -0.5
        assert then[..., 2:] == pytest.approx((x - v / 3)[..., 2:], abs=1e-5), "without noise beyond our numbers"
        off = ((then - mean) / std)[..., :2]
        expected += (-0.5 * off ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
    assert log_probs.numpy() == pytest.approx(expected, abs=2e-4)


def test_with_learned_noise_the_log_densities_are_those_of_the_formula():
    """Flow-Noise: an Euler step, and on each of our numbers what the small network says, here of random weights."""
    policy = pi0(learned_noise=(0.05, 0.4))
    for index, parameter in enumerate(policy.spread.parameters()):
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    policy.normalisation.normalise(np.full(3, 0.3), np.full(3, 2.0))
    seen = policy.seen(observation("push", "pull it"))
    with torch.no_grad():
        path, log_probs = policy.sample(seen, torch.Generator().manual_seed(2))
    inputs, expected, spreads = policy.inputs(seen), np.zeros((2, 4)), []
    for k, time in enumerate((1.0, 2 / 3, 1 / 3)):
        x, then = path[:, k].double().numpy(), path[:, k + 1].double().numpy()
        with torch.no_grad():
            v = policy.network(**inputs, noise=path[:, k], timestep=torch.full((2,), time)).logits.double().numpy()
            told = torch.cat([(seen["vectors"] - 0.3) / 2.0001, path[:, k, :, :2].flatten(1), torch.full((2, 1), time)], 1)
            said = torch.tanh(policy.spread.head(policy.spread.body(told))).double().numpy().reshape(2, 4, 2)
        std = 0.05 * 8.0 ** ((1 + said) / 2)
        off = ((then - x + v / 3)[..., :2]) / std
        expected += (-0.5 * off ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
        assert then[..., 2:] == pytest.approx((x - v / 3)[..., 2:], abs=1e-5), "without noise beyond our numbers"
        spreads.append(std)
    assert np.ptp(spreads) > 0.1 and log_probs.numpy() == pytest.approx(expected, abs=2e-4)
    again, entropy = policy.log_probs(seen, path.flatten(1).unsqueeze(1))
    assert again.detach().numpy() == pytest.approx(expected, abs=2e-4)
    by_hand = sum(0.5 * np.log(2 * np.pi * np.e * std ** 2) for std in spreads).sum(axis=-1)
    assert entropy.detach().numpy() == pytest.approx(by_hand, abs=1e-4)
    again.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in policy.spread.parameters())


def test_learned_noise_begins_in_the_middle_of_its_bounds_and_is_gone_where_nothing_is_explored(tmp_path):
    policy, seen = pi0(learned_noise=(0.1, 0.4)), observation("push")
    spread = policy.spread(torch.randn(1, 3), torch.randn(1, 4, 2), torch.ones(1))
    assert torch.allclose(spread, torch.full((1, 4, 2), 0.2))
    assert torch.equal(policy.act(seen, False).actions, pi0().act(seen, False).actions)
    again = load_policy(save_policy(policy, tmp_path / "policy.safetensors"), SPEC)
    drawn = [each.act(seen, True, torch.Generator().manual_seed(0)).drawn for each in (policy, again)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("said, error", [
    ({"learned_noise": (0.1,)}, "expected two deviations, or none, got 1"),
    ({"learned_noise": (0.4, 0.1)}, "expected a smaller and a larger deviation"),
    ({"learned_noise": (0.1, 0.4), "sde_noise": 0.5}, "and sde_noise of 0; got .* and 0.5"),
    ({"learned_noise": (0.0, 0.4)}, "greater than 0")])
def test_noise_that_cannot_be_is_named(said, error):
    with pytest.raises(ValueError, match=error):
        Config(**said)


def test_what_a_learner_computes_again_is_what_was_drawn_with():
    policy, seen = pi0(sde_noise=0.5, execute=3), observation("push", "pull it")
    chunk = policy.act(seen, True, torch.Generator().manual_seed(2))
    assert chunk.drawn.shape == (2, 1, 4 * 4 * 4) and chunk.log_probs.shape == (2, 4)
    log_probs, entropy = policy.log_probs(policy.seen(seen), chunk.drawn)
    assert torch.allclose(log_probs, chunk.log_probs[:, :3], atol=1e-4) and log_probs.requires_grad
    spread = [0.5 * (1 - k / 3) ** 0.5 * 3 ** -0.5 for k in range(3)]
    by_hand = 2 * sum(0.5 * np.log(2 * np.pi * np.e * std ** 2) for std in spread)
    assert entropy.detach().numpy() == pytest.approx(np.full((2, 3), by_hand), abs=1e-5)
    assert policy.act(seen, False).log_probs is None and pi0().act(seen, True).log_probs is None


def test_noise_on_the_way_changes_no_marginal():
    """A network whose velocity is known: actions are N(0.5, 0.3^2), whichever way they are drawn."""
    policy = pi0(sde_noise=1.0, flow_steps=60)
    mu, s = 0.5, 0.3

    def velocity(inputs, cache, x, time):  # E[z - a | x] of x = t z + (1 - t) a
        t = time[:, None, None]
        return ((t - (1 - t) * s ** 2) * (x - (1 - t) * mu) / (t ** 2 + (1 - t) ** 2 * s ** 2)) - mu

    policy._velocity = velocity
    seen = policy.seen(observation(*["push"] * 2000))
    with torch.no_grad():
        path, _ = policy.sample(seen, torch.Generator().manual_seed(0))
        policy.config = policy.config.but(sde_noise=1e-6)
        still, _ = policy.sample(seen, torch.Generator().manual_seed(0))
    noisy, straight = path[:, -1, :, :2], still[:, -1, :, :2]
    assert (path[:, 1:-1, :, :2] - still[:, 1:-1, :, :2]).abs().mean() > 0.1, "another path"
    for actions in (noisy, straight):  # of 16,000 numbers
        assert actions.mean().item() == pytest.approx(mu, abs=0.015) and actions.std().item() == pytest.approx(s, abs=0.015)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize("noise", [{"sde_noise": 0.5}, {"learned_noise": (0.2, 0.6)}], ids=["Flow-SDE", "Flow-Noise"])
def test_learners_from_rollouts_raise_what_pays(name, noise):
    policy, seen = pi0(**noise, horizon=1, flow_steps=2), observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, seen, name, 18, learning_rate=5e-3)
    assert before < 0.75 and after > 0.85
