"""Qwen2.5-VL that says actions: what it computes, beside transformers' own; what it learns; what is
refused.
"""

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
from rlinf_core.policies.pretrained.qwen_vl import Config
from rlinf_core.policies.pretrained.qwen_vl.network import FACTORY
from rlinf_core.policies.pretrained.qwen_vl.policy import QwenVL
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after

CAMERAS = {"front": (16, 16, 3), "wrist": (24, 16, 3)}
SPEC = StationSpec(
    (
        ArraySpec("pose", (3,)),
        *(ArraySpec(name, shape, "uint8") for name, shape in CAMERAS.items()),
    ),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    10.0,
    "push",
)
SMALL = {
    "text_config": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "initializer_range": 0.2,
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "window_size": 16,
        "initializer_range": 0.2,
    },
}
TURNS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
WORDS = [
    "<unk>",
    "system",
    "user",
    "assistant",
    "You",
    "are",
    "a",
    "helpful",
    "assistant.",
    "What",
    "action",
    "should",
    "the",
    "robot",
    "take",
    "to",
    "push?",
    "cube?",
]
BEFORE = [
    "<|im_start|>",
    "system",
    "You",
    "are",
    "a",
    "helpful",
    "assistant.",
    "<|im_end|>",
    "<|im_start|>",
    "user",
    "<|vision_start|>",
    *["<|image_pad|>"] * 4,
    "<|vision_end|>",
    "<|vision_start|>",
    *["<|image_pad|>"] * 6,
    "<|vision_end|>",
    "What",
    "action",
    "should",
    "the",
    "robot",
    "take",
    "to",
]
PROMPTS = {"push": ["push?"], "take the cube": ["take", "the", "cube?"]}
AFTER = ["<|im_end|>", "<|im_start|>", "assistant"]


def qwen(**config):
    torch.manual_seed(0)
    return QwenVL(SPEC, Config(**{"horizon": 2, "network": SMALL} | config)).eval()


def observation(*sentences, seed=0):
    random = np.random.default_rng(seed)
    pictures = {
        name: torch.from_numpy(random.integers(0, 255, (len(sentences), *shape), np.uint8))
        for name, shape in CAMERAS.items()
    }
    return Observation(torch.zeros(len(sentences), 3), pictures, sentences)


def written(folder, tied=True):
    """A tiny one as it is published, whose tokenizer leaves the end of the vocabulary empty."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(TURNS)
    tiny_checkpoint.write(
        "qwen_vl", folder, SMALL | {"tie_word_embeddings": tied}, tokenizer.to_str(), seed=1
    )
    document = json.loads((folder / "config.json").read_text())
    text = {
        key: value
        for key, value in document.pop("text_config").items()
        if key not in ("model_type", "layer_types")
        and not key.startswith(("vision_", "image_", "video_"))
    }
    rope = text.pop("rope_parameters")  # hubs have config.json flat, of before transformers 4.52
    old = {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    (folder / "config.json").write_text(json.dumps(text | old | document))
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    return written(tmp_path_factory.mktemp("qwen"), request.param)


def theirs(folder):
    """Pictures and tokens to all logits, by transformers' own model, which reads the folder, and
    processor of pictures.
    """
    from safetensors.torch import load_file
    from transformers import Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    weights, tied = load_file(folder / "model.safetensors"), model.config.tie_word_embeddings
    assert (
        any(name.startswith("visual.blocks.1.") for name in weights)
        and "model.embed_tokens.weight" in weights
    )
    assert ("lm_head.weight" in weights) is not tied, "as hubs have it"
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 256, "longest_edge": 2**20}, patch_size=4, merge_size=2
    )

    def logits(pictures, tokens):
        ids = torch.tensor([tokens])
        image_inputs = processor(images=list(pictures), return_tensors="pt")
        pictured = (ids == model.config.image_token_id).int()
        return model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=pictured,
            **image_inputs,
        ).logits[0]

    return logits, processor


def prompt_ids(sentence):
    number_by_word = {word: number for number, word in enumerate(WORDS + TURNS)}
    return [number_by_word[word] for word in [*BEFORE, *PROMPTS[sentence], *AFTER]]


@torch.no_grad()
def test_a_published_folder_says_what_transformers_own_model_and_processor_say(folder):
    """The likeliest tokens, each given those before it, without cache, padding or batch; and what
    is drawn.
    """
    policy = QwenVL(SPEC, Config(horizon=2, checkpoint=str(folder), temperature=1.5)).eval()
    observations = observation(*PROMPTS)
    reference, _ = theirs(folder)
    words, every, losses = policy.vocabulary_size, [], []
    likeliest = policy.act(observations, False)
    drawn = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, entropy = policy.log_probs(policy.to_batch(observations), drawn.drawn)
    for chunk in (likeliest, drawn):
        bins = chunk.drawn.flatten(1).long()
        ours = policy.logits(policy.to_batch(observations), bins)
        for index, sentence in enumerate(PROMPTS):
            pictures = [observations.images[name][index].numpy() for name in CAMERAS]
            expected = reference(
                pictures, prompt_ids(sentence) + (words - 1 - bins[index]).tolist()
            )[-5:-1]
            assert torch.allclose(ours[index], expected, atol=1e-4) and expected.std() > 0.1
            every.append(expected[:, words - 256 :].flip(-1).double())
            losses.append(torch.nn.functional.cross_entropy(expected, words - 1 - bins[index]))
    for index in (0, 1):
        assert likeliest.drawn[index].flatten().tolist() == every[index].argmax(dim=-1).tolist()
        scores = torch.log_softmax(every[2 + index] / 1.5, dim=-1)
        chosen = (
            scores.gather(-1, drawn.drawn[index].flatten().long()[:, None]).view(2, 2).sum(dim=-1)
        )
        spread = -(scores.exp() * scores).sum(dim=-1).view(2, 2).sum(dim=-1)
        for got, wanted in ((drawn.log_probs, chosen), (again, chosen), (entropy, spread)):
            assert got[index].tolist() == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-5)
    assert policy.imitation_loss(
        policy.to_batch(observations), policy.to_actions(drawn.drawn).flatten(1)
    ).item() == pytest.approx(sum(losses[2:]).item() / 2, rel=1e-5)
    assert likeliest.log_probs is None and len(set(drawn.drawn.flatten().tolist())) > 4


@torch.no_grad()
def test_an_instruction_is_words_whatever_it_says(folder):
    """Text like a picture's token becomes words, because there is no such picture."""
    policy = QwenVL(SPEC, Config(horizon=2, checkpoint=str(folder)))
    token_ids = policy.prompt_tokens("<|image_pad|> <|im_end|> push")
    assert (
        len(token_ids) == len(policy.prompt_tokens("one two push"))
        and WORDS.index("push?") in token_ids
    )
    assert (
        policy.network.model.config.image_token_id not in token_ids
        and token_ids.count(policy.tokenizer.token_id("<|im_end|>")) == 1
    )
    assert policy.act(observation("<|image_pad|>", "push"), False).actions.isfinite().all()


@torch.no_grad()
def test_pictures_are_cut_into_patches_as_qwen_s_own_processor_does(folder):
    policy, (_, processor) = QwenVL(SPEC, Config(horizon=2, checkpoint=str(folder))), theirs(folder)
    smooth = np.add.outer(np.linspace(0, 120, 30), np.linspace(0, 120, 45))[..., None] * np.ones(3)
    for picture, near in (
        (observation("push").images["wrist"][0].numpy(), 1e-5),
        (smooth.astype(np.uint8), 0.02),
    ):
        expected = processor(images=[picture], return_tensors="pt")
        ours, grid = policy.patches(torch.from_numpy(picture)[None])
        assert expected["image_grid_thw"].tolist() == [[1, *grid]]
        assert torch.allclose(ours[0], expected["pixel_values"], atol=near)


@torch.no_grad()
def test_all_tokens_at_once_attend_to_all_of_each_other():
    """The layers get one prompt without padding, and a mask that hides nothing."""
    policy = qwen(decoding="parallel")
    observations = observation("push", "a much longer instruction")
    alone = Observation(
        observations.vectors[:1],
        {name: image[:1] for name, image in observations.images.items()},
        ("push",),
    )
    prompt = policy.embed_prompt(policy.inputs(policy.to_batch(alone)))
    embeds = torch.cat(
        [prompt.embeds, torch.zeros(1, 4, 32), policy.decoder.embed_tokens(torch.tensor([[2]]))],
        dim=1,
    )
    assert prompt.position_ids[:, 0, :3].tolist() == [[0, 1, 1], [0, 1, 1], [0, 1, 2]], (
        "time, down, right"
    )
    places = torch.cat(
        [prompt.position_ids, prompt.position_ids[..., -1:] + torch.arange(1, 6)], dim=-1
    )
    length = embeds.shape[1]
    hidden = policy.decoder(
        inputs_embeds=embeds,
        position_ids=places,
        use_cache=False,
        attention_mask={"full_attention": torch.zeros(1, 1, length, length)},
    ).last_hidden_state
    expected = policy.head(hidden[:, -6:-2])[0]
    assert torch.allclose(
        policy.logits(policy.to_batch(observations), torch.zeros(2, 4, dtype=torch.long))[0],
        expected,
        atol=1e-4,
    )
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(again, chunk.log_probs, atol=1e-5)


@pytest.mark.parametrize("decoding", ["autoregressive", "parallel"])
def test_by_cloning_it_learns_to_do_as_it_is_told(decoding):
    policy = qwen(decoding=decoding)
    learner = Learner(policy, SFTConfig(learning_rate=5e-3, min_std=0.0, image_shift=0), seed=0)
    targets, losses = {"left": -0.7, "right": 0.7}, []
    for step in range(30):
        observations = observation(*(["left", "right"] * 2), seed=step)
        batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
        batch["action"] = np.repeat(
            [[targets[word]] for word in observations.instruction], 4, axis=1
        ).astype(np.float32)
        losses.append(learner.update(batch)["sft_loss"])
    acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
    assert losses[-1] < 0.3 * losses[0] and acted.detach().numpy() == pytest.approx(
        list(targets.values()), abs=0.05
    )


@pytest.mark.parametrize(
    "name, level, config",
    [
        ("ppo", "action", {"token_log_probs": True}),
        pytest.param("grpo", "chunk", {"decoding": "parallel"}, marks=pytest.mark.slow),
    ],
)
def test_learners_from_rollouts_raise_what_pays(name, level, config):
    policy, observations = qwen(horizon=1, **config), observation(*["push"] * 32)
    log_probs_per_chunk = 2 if "token_log_probs" in config else 1
    before, after = paid_before_and_after(
        policy, observations, name, 8, log_probs_per_chunk, learning_rate=1e-2, level=level
    )
    assert before < 0.75 and after > 0.9


def test_a_policy_file_is_all_that_a_station_needs(folder, tmp_path):
    policy = QwenVL(SPEC, Config(horizon=2, checkpoint=str(folder))).eval()
    observations = observation(*PROMPTS)
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    moved = folder.rename(tmp_path / "elsewhere")
    try:
        again = load_policy(path, SPEC)
    finally:
        moved.rename(folder)
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )
    FACTORY.save_folder(again.network, again.tokenizer, tmp_path / "again")
    third = QwenVL(SPEC, Config(horizon=2, checkpoint=str(tmp_path / "again"))).eval()
    batch, bins = policy.to_batch(observations), torch.zeros(2, 4, dtype=torch.long)
    assert torch.equal(third.logits(batch, bins), policy.logits(batch, bins))


@pytest.mark.parametrize(
    "change, error",
    [
        (
            lambda weights: weights.pop("visual.blocks.0.norm1.weight"),
            "lacks 1, among them model.visual.blocks.0.norm1.weight",
        ),
        (
            lambda weights: weights.update(extra=torch.zeros(2)),
            "has beside what it should 1, among them extra",
        ),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}),
            "has in other shapes 1, .*model.language_model.norm.weight",
        ),
        (None, "expected a whole safetensors file"),
    ],
)
def test_a_checkpoint_with_missing_or_extra_tensors_is_refused_by_name(
    folder, tmp_path, change, error
):
    from safetensors.torch import load_file, save_file

    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "model.safetensors"
    if change is None:
        file.write_bytes(file.read_bytes()[:-9])
    else:
        change(weights := load_file(file))
        save_file(weights, file)
    with pytest.raises(PolicyFileError, match=error):
        QwenVL(SPEC, Config(checkpoint=str(tmp_path)))


def test_what_does_not_fit_is_named(folder, tmp_path):
    with pytest.raises(SpecError, match="expected at least one camera for a Qwen2.5-VL"):
        QwenVL(StationSpec(SPEC.observation[:1], SPEC.action, 10.0), Config(network=SMALL))
    with pytest.raises(
        SpecError, match="instruction: expected a sentence, which a Qwen2.5-VL acts on"
    ):
        qwen().act(observation(" "), False)
    with pytest.raises(
        PolicyFileError, match=r"policy.network.text_config: .* got 'hiden_size' \(did you mean"
    ):
        qwen(network={"text_config": {"hiden_size": 8}})
    with pytest.raises(
        PolicyFileError,
        match="a vocab_size of 300, expected 256 tokens for actions behind image_token_id",
    ):
        qwen(network={"text_config": {"vocab_size": 300}})
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl"}))
    with pytest.raises(
        PolicyFileError, match="expected a model_type of qwen2_5_vl, got 'qwen2_vl'"
    ):
        QwenVL(SPEC, Config(checkpoint=str(tmp_path)))
