"""pi0-FAST: tokens of actions, what it computes, what it learns, what is refused."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies import tiny
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained.pi0_fast import Config
from rlinf_core.policies.pretrained.pi0_fast.fast import ActionTokenizer, letters, read_tokenizer
from rlinf_core.policies.pretrained.pi0_fast.policy import Pi0Fast
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after

SPEC = StationSpec(
    (ArraySpec("pose", (3,)), ArraySpec("front", (16, 16, 3), "uint8")),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    10.0,
    "push",
)
TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 8}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": 16,
}
SMALL = {"vlm_config": {"projection_dim": 32, "text_config": TEXT, "vision_config": VISION}}


def fast(**config):
    torch.manual_seed(0)
    settings = {"horizon": 2, "network": SMALL, "max_decoding_steps": 24}
    return Pi0Fast(SPEC, Config(**settings | config)).eval()


def observation(*sentences, seed=0):
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 255, (len(sentences), 16, 16, 3), np.uint8)
    return Observation(
        torch.zeros(len(sentences), 3), {"front": torch.from_numpy(pictures)}, sentences
    )


def dct(chunk):
    """Return the orthonormal cosine transform of (H, A), by its definition."""
    count = len(chunk)
    result = np.zeros_like(chunk)
    for k in range(count):
        weight = math.sqrt((1.0 if k == 0 else 2.0) / count)
        for n in range(count):
            result[k] += weight * chunk[n] * math.cos(math.pi * (n + 0.5) * k / count)
    return result


def merged():
    """Return a tokenizer whose letters are coefficients from -40 on, with one pair merged."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    zeros = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(40) * 2)[0][0]
    vocabulary = {letter: number for number, letter in enumerate(alphabet)} | {zeros: 256}
    tokenizer = Tokenizer(BPE(vocabulary, [(zeros[0], zeros[1])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


@pytest.mark.parametrize("text, least", [("", -128), (merged, -40)])
def test_tokens_of_actions_are_rounded_cosine_coefficients(text, least):
    tokenizer = ActionTokenizer(text() if text else "", 10.0, least)
    chunk = np.random.default_rng(0).normal(0, 0.5, (5, 2))
    ids = tokenizer.encode(chunk)
    rounded = np.around(dct(chunk) * 10.0)
    again = tokenizer.decode(ids, 5, 2)
    assert np.allclose(dct(again), rounded / 10.0, atol=1e-9)
    if text:
        assert 256 in tokenizer.encode(np.zeros((5, 2))), "zeros are merged"
    else:
        assert ids == (rounded.ravel() + 128).astype(int).tolist()


def test_a_token_of_each_letter_is_as_no_tokenizer_and_cuts_what_is_beyond():
    chunk = np.random.default_rng(0).normal(0, 0.5, (5, 2))
    plain, written = ActionTokenizer(), ActionTokenizer(letters(ActionTokenizer().size))
    assert written.size == plain.size == 256
    for actions in (chunk, 40.0 * chunk):
        ids = plain.encode(actions)
        assert written.encode(actions) == ids
        assert np.array_equal(written.decode(ids, 5, 2), plain.decode(ids, 5, 2))
    assert 0 in ids and 255 in ids


def test_what_is_no_answer_is_the_mean_and_a_short_one_is_filled_up():
    tokenizer = ActionTokenizer()
    assert not tokenizer.decode([128, -1, 128, 128], 2, 2).any()
    assert not tokenizer.decode([128, 999], 2, 2).any()
    assert np.allclose(tokenizer.decode([138], 2, 2), [[math.sqrt(0.5), 0.0]] * 2)
    assert np.allclose(
        tokenizer.decode([138, 128, 128, 128, 250], 2, 2), [[math.sqrt(0.5), 0.0]] * 2
    )


def test_an_answer_is_read_as_it_is_written():
    policy = fast()
    actions = torch.tensor([[0.5, -0.3, 0.1, 0.7], [0.0, 0.0, 0.0, 0.0]])
    for row, ids in zip(actions, policy.written(actions), strict=True):
        read_back = policy.read_answer([*ids, 7, 7])
        assert torch.allclose(read_back.flatten(), row, atol=0.08)
    strict = fast(network={**SMALL, "validate_action_token_prefix": True})
    ids = strict.written(actions[:1])[0]
    assert torch.equal(strict.read_answer(ids), policy.read_answer(ids))
    assert not strict.read_answer(ids[1:]).any(), "an answer without its beginning"


@torch.no_grad()
def test_drawn_tokens_have_the_log_probabilities_that_are_computed_again():
    """Sampling with a cache is compared with one pass without a cache."""
    policy = fast(temperature=1.3)
    observed = observation("push", "go to the other one", "push")
    chunk = policy.act(observed, True, torch.Generator().manual_seed(0))
    again, entropy = policy.log_probs(policy.to_batch(observed), chunk.drawn)
    assert chunk.drawn.shape == (3, 1, 24) and again.shape == entropy.shape == (3, 2)
    assert torch.allclose(chunk.log_probs, again, atol=1e-4) and not again[:, 1:].any()
    alone = policy.log_probs(policy.to_batch(observation("push")), chunk.drawn[:1])[0]
    assert torch.allclose(alone, again[:1], atol=1e-4), "longer sentences beside it change nothing"
    end = policy.tokenizer.ids("|")[0]
    cut = chunk.drawn[:1].clone()
    cut[..., 3], cut[..., 4:] = end, 11
    other = cut.clone()
    other[..., 4:] = 12
    batch = policy.to_batch(observation("push"))
    assert torch.equal(policy.log_probs(batch, cut)[0], policy.log_probs(batch, other)[0])


def test_it_learns_two_sentences():
    policy = fast()
    observed = observation("push", "pull")
    observed = Observation(
        observed.vectors,
        {"front": observed.images["front"][:1].expand(2, -1, -1, -1)},
        observed.instruction,
    )
    actions = torch.tensor([[0.5, -0.5, 0.5, -0.5], [-0.4, 0.4, -0.4, 0.4]])
    optimizer, batch = torch.optim.Adam(policy.parameters(), 3e-3), policy.to_batch(observed)
    for _ in range(80):
        optimizer.zero_grad()
        policy.imitation_loss(batch, actions).backward()
        optimizer.step()
    chunk = policy.act(observed, explore=False)
    assert torch.allclose(chunk.actions.flatten(1), actions, atol=0.1)


def test_grpo_learns_a_bandit():
    policy = fast(horizon=1)
    observed = observation("push")
    pictures = {"front": observed.images["front"].expand(16, -1, -1, -1)}
    observed = Observation(torch.zeros(16, 3), pictures, ("push",) * 16)
    actions = torch.tensor([[0.3, 0.0], [-0.3, 0.0]]).repeat(8, 1)
    optimizer, batch = torch.optim.Adam(policy.parameters(), 3e-3), policy.to_batch(observed)
    for _ in range(120):  # then both are as likely
        optimizer.zero_grad()
        policy.imitation_loss(batch, actions).backward()
        optimizer.step()
    settings = {"learning_rate": 1e-3, "level": "chunk"}
    before, after = paid_before_and_after(policy, observed, "grpo", 8, 1, **settings)
    assert 0.2 < before < 0.8 and after > 0.9


def test_a_file_and_a_folder_play_the_same(tmp_path):
    policy, observed = fast(), observation("push", "pull")
    expected = policy.act(observed, True, torch.Generator().manual_seed(1))
    loaded = load_policy(save_policy(policy, tmp_path / "policy-00000001.safetensors"), SPEC)
    again = loaded.act(observed, True, torch.Generator().manual_seed(1))
    assert torch.equal(again.actions, expected.actions) and torch.equal(again.drawn, expected.drawn)


def folder_of(tmp_path, **changes):
    folder = tiny.write("pi0_fast", tmp_path / "tiny", SMALL)
    document = json.loads((folder / "config.json").read_text()) | {
        "chunk_size": 2,
        "n_action_steps": 2,
    }
    (folder / "config.json").write_text(json.dumps(document | changes))
    (folder / "fast").mkdir(exist_ok=True)
    (folder / "fast/tokenizer.json").write_text(merged())
    (folder / "fast/processor_config.json").write_text(json.dumps({"scale": 10, "min_token": -40}))
    return folder


def test_a_published_folder_is_loaded_or_refused_by_name(tmp_path):
    folder = folder_of(tmp_path)
    keys = {"horizon": 2, "checkpoint": str(folder)}
    policy = Pi0Fast(SPEC, Config(**keys)).eval()
    assert policy.actions.least == -40 and policy.act(observation("push"), False).actions.shape == (
        1,
        2,
        2,
    )
    with pytest.raises(PolicyFileError, match="policy.horizon: expected 2"):
        Pi0Fast(SPEC, Config(**keys | {"horizon": 3}))
    with pytest.raises(SpecError, match="policy.max_decoding_steps: expected"):
        policy = Pi0Fast(SPEC, Config(**keys, max_decoding_steps=4))
        policy.imitation_loss(policy.to_batch(observation("push")), torch.rand(1, 4))
    document = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"n_action_steps": 1}, "expected n_action_steps of 2"),
        ({"max_decoding_steps": 9}, "policy.max_decoding_steps: expected 9"),
        ({"use_relative_actions": True}, "use_relative_actions"),
        ({"unknown": 1}, "whose effect is not known here"),
    ):
        (folder / "config.json").write_text(json.dumps(document | change))
        with pytest.raises(PolicyFileError, match=message):
            Pi0Fast(SPEC, Config(**keys))
    for name, text in (("processor_config.json", "{}"), ("tokenizer.json", "{}")):
        path = folder / "fast" / name
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(PolicyFileError, match="fast"):
            read_tokenizer(folder / "fast")
        path.write_text(before)
    (folder / "fast/tokenizer.json").unlink()
    with pytest.raises(PolicyFileError, match="lerobot/fast-action-tokenizer"):
        read_tokenizer(folder / "fast")


def test_log_probabilities_of_tokens_are_refused():
    """A chunk has one, so that the key would have no effect."""
    with pytest.raises(ValueError, match="token_log_probs: expected false. Chunks have different"):
        Config(token_log_probs=True)
