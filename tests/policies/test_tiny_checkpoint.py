"""A tiny checkpoint of each family: it is read as a published one is, learns, and is refused where
it is not whole.
"""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.torch import load_file, save_file

from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.cli.main import main
from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained.tiny_checkpoint import FAMILIES, OFT, byte_tokenizer, write
from rlinf_core.policies.pretrained.tokenization import FileTokenizer
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (ArraySpec("pose", (3,)), ArraySpec("front", (32, 32, 3), "uint8")),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    10.0,
    "push",
)
SENTENCE = "Push the red cube — isn't it 'öffnen'?\n"


def policy_of(family, folder):
    torch.manual_seed(0)
    kind = FAMILIES[family].kind
    other = {"decoding": "regression", "state": True} if family == OFT else {}
    config = policy_kind(kind).Config(
        stochastic_eval=False, checkpoint=str(folder), horizon=2, **other
    )
    return make_policy(SPEC, config).eval()


def observation(*sentences):
    random = np.random.default_rng(0)
    pictures = torch.from_numpy(random.integers(0, 255, (len(sentences), 32, 32, 3), np.uint8))
    return Observation(torch.zeros(len(sentences), 3), {"front": pictures}, sentences)


@pytest.fixture(scope="module", params=FAMILIES)
def tiny_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / request.param
    return request.param, write(request.param, folder, horizon=2, actions=2, state=3)


def test_a_recipe_reads_it_as_a_published_one_and_it_learns_and_comes_back(tiny_model, tmp_path):
    family, folder = tiny_model
    policy, observations = policy_of(family, folder), observation("push", "pull the red cube")
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 25e6
    before = policy.act(observations, False).actions
    assert before.shape == (2, 2, 2) and before.isfinite().all()
    batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
    batch["action"] = np.full((2, 4), 0.5, np.float32)
    learner = Learner(policy, SFTConfig(learning_rate=3e-3, min_std=0.0, image_shift=0), seed=0)
    losses = [learner.update(batch)["sft_loss"] for _ in range(8)]
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    again = load_policy(save_policy(policy, tmp_path / "policy-00000001.safetensors"), SPEC)
    assert torch.equal(
        again.act(observations, False).actions, policy.eval().act(observations, False).actions
    )
    assert not torch.equal(again.act(observations, False).actions, before)


def test_a_folder_with_missing_or_extra_tensors_is_refused_by_their_names(tiny_model):
    family, folder = tiny_model
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if name.endswith("bias") and "embed" not in name)
    content = (folder / "model.safetensors").read_bytes()
    try:
        save_file(
            {name: value for name, value in weights.items() if name != lost},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        with pytest.raises(
            PolicyFileError,
            match=f"lacks 1, among them .*{lost.rpartition('.')[0].rpartition('.')[2]}",
        ):
            policy_of(family, folder)
        save_file(
            weights | {"another.weight": torch.zeros(2)},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        with pytest.raises(
            PolicyFileError, match="has beside what it should 1, among them .*another.weight"
        ):
            policy_of(family, folder)
    finally:
        (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_tokenizer_knows_every_sentence_and_what_has_a_meaning_of_its_own(family):
    from tokenizers import Tokenizer

    text = byte_tokenizer(FAMILIES[family])
    ours, theirs = FileTokenizer(text), Tokenizer.from_str(text)
    assert theirs.decode(ours.encode(SENTENCE)) == SENTENCE and len(set(ours.encode(SENTENCE))) > 15
    for token in FAMILIES[family].needed:
        assert ours.encode(f"a{token}b").count(ours.token_id(token)) == 1 and ours.token_id(
            token
        ) not in ours.encode("push", plain=True)


def test_the_command_says_how_it_is_used_and_overwrites_nothing(tmp_path, capsys):
    folder = tmp_path / "there"
    assert main(["make-tiny-vla", "pi0", "--out", str(folder), "--horizon", "2"]) == 0
    output = capsys.readouterr().out
    assert (
        f"policy={{kind: pi0, checkpoint: {folder}, horizon: 2}}" in output
        and "random weights" in output
    )
    assert policy_of("pi0", folder).act(observation("push"), False).actions.isfinite().all()
    assert main(["make-tiny-vla", "pi0", "--out", str(folder)]) == 1
    assert "Nothing is overwritten" in capsys.readouterr().err


def test_a_published_tokenizer_is_taken_and_one_of_another_family_refused(tmp_path, capsys):
    words = {"<unk>": 0, "push": 1, "<bos>": 2, "<image>": 9}
    text = json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    )
    (tmp_path / "tokenizer.json").write_text(text)
    given = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    assert (
        main(["make-tiny-vla", "pi0", "--out", str(tmp_path / "a"), "--horizon", "2", *given]) == 0
    )
    config = json.loads((tmp_path / "a/config.json").read_text())["vlm_config"]
    assert (config["text_config"]["vocab_size"], config["text_config"]["bos_token_id"]) == (10, 2)
    assert policy_of("pi0", tmp_path / "a").prompt_tokens("push")[0] == 2
    assert main(["make-tiny-vla", "qwen_vl", "--out", str(tmp_path / "b"), *given]) == 1
    error = capsys.readouterr().err
    assert (
        "expected <|im_start|>, " in error
        and "which a qwen_vl needs" in error
        and not (tmp_path / "b").exists()
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["make-tiny-vla", "pi0", "--out", str(tmp_path / "b"), *given]) == 1
    assert "expected the text of a tokenizer.json" in capsys.readouterr().err


def test_a_frozen_model_is_written_once_and_versions_hold_the_rest(tmp_path):
    folder = write("smolvla", tmp_path / "tiny", horizon=2)
    config = policy_kind("smolvla").Config(
        stochastic_eval=False, checkpoint=str(folder), horizon=2, frozen=True
    )
    policy = make_policy(SPEC, config).eval()
    one = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    with torch.no_grad():
        policy.network.state_proj.weight.add_(0.1)
        policy.network.action_out_proj.bias.add_(0.1)
    two = save_policy(policy, tmp_path / "policy-00000002.safetensors")
    (base,) = tmp_path.glob("base-*.safetensors")
    trainable_bytes = sum(
        parameter.nbytes for parameter in policy.parameters() if parameter.requires_grad
    )
    assert (
        max(one.stat().st_size, two.stat().st_size) < trainable_bytes + 2**14
        and base.stat().st_size > trainable_bytes
    )
    observations = observation("push")
    assert torch.equal(
        load_policy(two, SPEC).act(observations, False).actions,
        policy.act(observations, False).actions,
    )
    assert not torch.equal(
        load_policy(one, SPEC).act(observations, False).actions,
        policy.act(observations, False).actions,
    )


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def full(network, tokenizer, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("rlinf_core.policies.pretrained.pi0.network.FACTORY.save_folder", full)
    with pytest.raises(
        PolicyFileError, match=r"x: cannot be written: I/O error: No space left .* Free disk space"
    ):
        write("pi0", tmp_path / "x")
    assert not list(tmp_path.iterdir())
