"""pi0-FAST: tokens of actions, what it computes, what it learns, what is refused."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.pi0_fast import Config
from rlinf_core.policies.pretrained.pi0_fast.fast import (
    ActionTokenizer,
    letter_tokenizer,
    read_action_tokenizer,
)
from rlinf_core.policies.pretrained.pi0_fast.network import FACTORY
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
    plain, written = ActionTokenizer(), ActionTokenizer(letter_tokenizer(ActionTokenizer().size))
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
    for row, ids in zip(actions, policy.answer_tokens(actions), strict=True):
        read_back = policy.to_chunk([*ids, 7, 7])
        assert torch.allclose(read_back.flatten(), row, atol=0.08)
    strict = fast(network={**SMALL, "validate_action_token_prefix": True})
    ids = strict.answer_tokens(actions[:1])[0]
    assert torch.equal(strict.to_chunk(ids), policy.to_chunk(ids))
    assert not strict.to_chunk(ids[1:]).any(), "an answer without its beginning"


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
    end = policy.tokenizer.encode("|")[0]
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
    folder = tiny_checkpoint.write("pi0_fast", tmp_path / "tiny", SMALL)
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
    assert policy.action_tokenizer.least == -40 and policy.act(
        observation("push"), False
    ).actions.shape == (
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
            read_action_tokenizer(folder / "fast")
        path.write_text(before)
    (folder / "fast/tokenizer.json").unlink()
    with pytest.raises(PolicyFileError, match="lerobot/fast-action-tokenizer"):
        read_action_tokenizer(folder / "fast")


def test_log_probabilities_of_tokens_are_refused():
    """A chunk has one, so that the key would have no effect."""
    with pytest.raises(ValueError, match="token_log_probs: expected false. Chunks have different"):
        Config(token_log_probs=True)


# What it computes, token by token
def next_logits(policy, observed, answer, with_begin=True):
    """Return the logits of the token after an answer's tokens, for one observation.

    Nothing is padded or cached: pictures and prompt see each other, later tokens all before them.
    """
    batch = policy.to_batch(observed)
    (sentence,) = policy.tokenize_with_state(batch)
    begin = policy.decoder.config.bos_token_id
    pixels = letterbox(observed.images["front"], 16, False)
    prompt = [*sentence, begin] if with_begin else sentence
    images = policy.network.vlm.get_image_features(pixels).pooler_output
    words = policy.network.vlm.language_model.embed_tokens(torch.tensor([[*prompt, *answer]]))
    embeds = torch.cat([images, words], dim=1)
    length, before = embeds.shape[1], images.shape[1] + len(prompt)
    hidden = torch.full((length, length), -1e9).triu(1)
    hidden[:before, :before] = 0.0
    states = policy.decoder(
        inputs_embeds=embeds,
        attention_mask=hidden[None, None],
        position_ids=torch.arange(length)[None],
        use_cache=False,
    ).last_hidden_state
    return states[0, -1] @ policy.network.lm_head.weight.T


def one_of(observed, row):
    return Observation(
        observed.vectors[row : row + 1],
        {"front": observed.images["front"][row : row + 1]},
        observed.instruction[row : row + 1],
    )


def randomised(policy):
    """Draw the language model's weights, so that places count and words of both ends differ."""
    for parameter in (*policy.decoder.parameters(), policy.network.lm_head.weight):
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return policy


@torch.no_grad()
def test_log_probabilities_are_summed_over_the_tokens_of_an_answer():
    policy = randomised(fast(temperature=0.7))
    observed = observation("push", "pull it to the left")
    (end,) = policy.tokenizer.encode("|")
    answers = [[7, 300, 5, end], [9, end]]
    drawn = torch.zeros(2, 1, 24)
    for row, answer in enumerate(answers):
        drawn[row, 0, : len(answer)] = torch.tensor(answer).float()
    got, entropy = policy.log_probs(policy.to_batch(observed), drawn)
    assert got.shape == entropy.shape == (2, 2)
    for row, answer in enumerate(answers):
        total, spread = 0.0, 0.0
        for place, token in enumerate(answer):
            logits = next_logits(policy, one_of(observed, row), answer[:place]) / 0.7
            chances = logits.softmax(-1)
            total += chances[token].log().item()
            spread += torch.distributions.Categorical(chances).entropy().item()
        assert got[row].tolist() == pytest.approx([total, 0.0], abs=1e-3)
        assert entropy[row].tolist() == pytest.approx([spread, 0.0], abs=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_tokens_are_drawn_by_their_chances_or_are_the_likeliest(temperature):
    policy = randomised(fast(temperature=temperature, max_decoding_steps=5))
    observed = observation("push", "pull it to the left")
    ids, totals = policy.sample(policy.to_batch(observed), stochastic=False)
    (end,) = policy.tokenizer.encode("|")
    assert ids.shape == (2, 5) and end not in ids
    for row in range(2):
        answer, total = [], 0.0
        for _ in range(5):
            chances = (next_logits(policy, one_of(observed, row), answer) / temperature).softmax(-1)
            answer.append(chances.argmax().item())
            total += chances.max().log().item()
        assert ids[row].tolist() == answer and totals[row].item() == pytest.approx(total, abs=1e-3)
    count = 2000
    picture = observed.images["front"][:1].repeat(count, 1, 1, 1)
    many = Observation(torch.zeros(count, 3), {"front": picture}, ("push",) * count)
    policy = randomised(fast(temperature=temperature, max_decoding_steps=2))
    policy.network.lm_head.weight *= 3.0
    drawn, _ = policy.sample(policy.to_batch(many), torch.Generator().manual_seed(0))
    chances = (next_logits(policy, one_of(observed, 0), []) / temperature).softmax(-1)
    shares = torch.bincount(drawn[:, 0], minlength=len(chances)) / count
    assert chances.max() > 0.1 and (shares - chances).abs().max() < 0.04


@torch.no_grad()
def test_an_answer_ends_after_its_end_and_the_others_go_on():
    policy = randomised(fast(max_decoding_steps=6, temperature=3.0))
    (end,) = policy.tokenizer.encode("|")
    policy.network.lm_head.weight *= 0.01
    more = torch.zeros(policy.vocabulary_size)
    more[end] = 3.0 * math.log(250.0)  # a third of all answers end with each token
    policy.head = lambda hidden: policy.network.lm_head(hidden) + more
    batch = policy.to_batch(observation("push", "pull it to the left", "go"))
    lengths = set()
    for seed in range(30):
        ids, totals = policy.sample(batch, torch.Generator().manual_seed(seed))
        again, _ = policy.log_probs(batch, ids[:, None].float())
        assert ids.shape == (3, 6) and torch.allclose(again[:, 0], totals, atol=1e-3)
        for row in ids.tolist():
            length = row.index(end) + 1 if end in row else 6
            assert not any(row[length:])
            lengths.add(length)
    assert len(lengths) > 2, lengths


@torch.no_grad()
def test_its_loss_is_the_cross_entropy_of_the_written_tokens():
    policy = randomised(fast())
    observed = observation("push", "pull it to the left")
    actions = torch.tensor([[0.5, -0.3, 0.1, 0.7], [0.0, 0.2, 0.0, 0.0]])
    got = policy.imitation_loss(policy.to_batch(observed), actions).item()
    losses, begin = [], policy.decoder.config.bos_token_id
    for row, answer in enumerate(policy.answer_tokens(actions)):
        for place, token in enumerate(answer):
            # here the token that begins an answer sees the prompt, and is not seen by it
            logits = next_logits(policy, one_of(observed, row), [begin, *answer[:place]], False)
            losses.append(-logits.log_softmax(-1)[token].item())
    assert got == pytest.approx(np.mean(losses), abs=1e-3)


def test_a_prompt_has_the_state_in_256_bins():
    policy = fast(tokens=60)
    policy.normalisation.set_statistics(np.array([1.0, 0.0, 0.0]), np.array([2.0, 1.0, 1.0]))
    vectors = torch.tensor([[1.0, -1.5, 0.996], [-0.984, 0.51, 2.0]])
    observed = Observation(
        vectors, observation("a", "b").images, ("  pick_up the\nred_cube ", "push")
    )
    first, second = policy.tokenize_with_state(policy.to_batch(observed))
    begin = policy.decoder.config.bos_token_id
    assert first[0] == second[0] == begin
    assert bytes(first[1:]).decode() == "Task: pick up the red cube, State: 128 -1 255;\n"
    assert bytes(second[1:]).decode() == "Task: push, State: 1 193 255;\n"
    long = Observation(vectors[:1], {}, ("x" * 100,))
    assert len(policy.tokenize_with_state(policy.to_batch(long))[0]) == 60, "longer ones are cut"


def test_an_answer_is_written_with_fast_s_tokens_from_the_last_one_on():
    policy = fast()
    actions = torch.tensor([[0.5, -0.3, 0.1, 0.7]])
    (ids,) = policy.answer_tokens(actions)
    codes = policy.action_tokenizer.encode(actions.view(2, 2).numpy())
    last = policy.decoder.config.vocab_size - 1
    text = bytes(ids[:8]).decode()
    assert text == "Action: " and ids[8:-1] == [last - code for code in codes]
    assert ids[-1:] == list(b"|"), "bytes have no token that ends a sequence"
    skipping = fast(network=SMALL | {"fast_skip_tokens": 3})
    assert skipping.answer_tokens(actions)[0][8:-1] == [last - 3 - code for code in codes]
    short = fast(max_decoding_steps=len(ids) - 1)
    with pytest.raises(SpecError) as refused:
        short.answer_tokens(actions)
    assert str(refused.value) == (
        f"policy.max_decoding_steps: expected {len(ids)} or more, as demonstrated chunks have "
        f"tokens, got {len(ids) - 1}"
    )
    assert fast(max_decoding_steps=len(ids)).answer_tokens(actions) == [ids]


def test_an_answer_is_read_wherever_its_beginning_stands():
    policy = fast()
    actions = torch.tensor([[0.5, -0.3, 0.1, 0.7]])
    (ids,) = policy.answer_tokens(actions)
    before, codes, end = ids[:8], ids[8:-1], ids[-1]
    expected = policy.to_chunk(ids)
    assert expected.shape == (2, 2)
    for answer in (
        [*codes, end],
        [*codes],
        [*codes, end, 3],
        [*codes[:2], *before, *codes[2:], end],
        [*before, *before, *codes, end],
    ):
        assert torch.equal(policy.to_chunk(answer), expected)
    policy.units.gain.fill_(0.5)
    policy.units.offset.copy_(torch.tensor([0.1, -0.2]))
    shifted = policy.to_chunk(ids)
    torch.testing.assert_close(shifted, 0.5 * expected + torch.tensor([0.1, -0.2]))
    mean = policy.to_chunk([before[0], end]).flatten().tolist()
    assert mean == pytest.approx([0.1, -0.2, 0.1, -0.2]), "what is no answer is the mean action"


def test_a_folder_is_read_with_its_sizes_and_statistics(tmp_path):
    folder = folder_of(tmp_path, tokenizer_max_length=77, max_decoding_steps=99, fast_skip_tokens=2)
    published = FACTORY.read(folder)
    assert published.horizon == 2 and published.tokenizer.text
    assert (published.state_statistics, published.action_statistics) == ("deviations", "deviations")
    assert published.settings == {
        "tokens": ("tokenizer_max_length", 77),
        "max_decoding_steps": ("max_decoding_steps", 99),
    }
    config = published.config
    assert config["validate_action_token_prefix"] is False and config["fast_skip_tokens"] == 2
    assert config["action_tokenizer"] == {"text": merged(), "scale": 10.0, "least": -40}
    assert config["vlm_config"]["text_config"]["hidden_size"] == 32
    assert "n_action_steps" not in config
    document = json.loads((folder / "config.json").read_text())
    del document["validate_action_token_prefix"]
    (folder / "config.json").write_text(json.dumps(document))
    assert FACTORY.read(folder).config["validate_action_token_prefix"] is True, "LeRobot's default"


def test_a_folder_is_written_with_lerobot_s_names(tmp_path):
    policy = fast()
    policy.action_tokenizer.text = ""
    weights, texts = FACTORY.folder_files(policy.network, policy.tokenizer)
    assert texts.keys() == {
        *("config.json", "tokenizer.json", "fast/tokenizer.json", "fast/processor_config.json")
    }
    assert json.loads(texts["fast/processor_config.json"]) == {
        "scale": 10.0,
        "min_token": -128,
        "vocab_size": 256,
    }
    assert texts["fast/tokenizer.json"] == letter_tokenizer(256)
    assert texts["tokenizer.json"] == policy.tokenizer.text
    document = json.loads(texts["config.json"])
    assert document["normalization_mapping"] == {
        "VISUAL": "IDENTITY",
        "STATE": "MEAN_STD",
        "ACTION": "MEAN_STD",
    }
    assert document["use_relative_actions"] is False and "action_tokenizer" not in document
    assert document["type"] == "pi0_fast" and document["chunk_size"] == 2
    beginning = "model.paligemma_with_expert.paligemma"
    assert torch.equal(weights[f"{beginning}.lm_head.weight"], policy.network.lm_head.weight)
    words = "model.language_model.embed_tokens.weight"
    assert torch.equal(
        weights[f"{beginning}.{words}"], policy.decoder.get_input_embeddings().weight
    )
    assert all(name.startswith(f"{beginning}.") for name in weights)
    towers = f"{beginning}.model.vision_tower.vision_model."
    assert any(name.startswith(towers) for name in weights)
    expected = policy.network.state_dict()
    renamed = FACTORY.rename_weights(weights, expected)
    assert renamed.keys() == expected.keys()
    assert all(torch.equal(renamed[name], expected[name]) for name in expected)
    for missing, other in (
        ("lm_head.weight", "vlm.language_model.embed_tokens.weight"),
        ("vlm.language_model.embed_tokens.weight", "lm_head.weight"),
    ):
        published = FACTORY.module_name(missing, policy.network)
        part = {name: value for name, value in weights.items() if name != published}
        assert torch.equal(FACTORY.rename_weights(part, expected)[missing], expected[other])
