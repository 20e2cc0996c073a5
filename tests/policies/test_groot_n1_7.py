"""GR00T N1.7: its answers beside those of LeRobot's own class; what it learns; what is refused.

``groot_n1_7_itself.json`` has LeRobot 0.6.1's files and answers for tiny networks. Make it again in
the environment of ``make references``:

    python benchmarks/vla_references.py --cases groot_n1_7 groot_n1_7_area groot_n1_7_plain \
        --kinds --folder FOLDER
    python tests/policies/test_groot_n1_7.py FOLDER
"""

import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors.torch import save_file

from benchmarks import vla_reference_cases as references
from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner
from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.groot_n1_7 import Config, network
from rlinf_core.policies.pretrained.groot_n1_7.policy import GrootN17
from rlinf_core.policies.pretrained.image_preprocessing import resize_by_area
from rlinf_core.policies.pretrained.tokenization import make_tokenizer
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.policies.bandit import paid_before_and_after
from tests.policies.test_smolvla import SPEC, observation

STORED = Path(__file__).with_name("groot_n1_7_itself.json")
CASES = ("groot_n1_7", "groot_n1_7_area", "groot_n1_7_plain")
FILES = (
    *("config.json", "embodiment_id.json", "processor_config.json", "statistics.json"),
    *("cosmos/config.json", "cosmos/preprocessor_config.json"),
)
SMALL = {
    "backbone_embedding_dim": 32,
    "max_state_dim": 5,
    "max_action_dim": 4,
    "hidden_size": 24,
    "input_embedding_dim": 32,
    "max_seq_len": 8,
    "max_num_embodiments": 3,
    "diffusion_model_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "num_layers": 3,
        "output_dim": 24,
    },
    "vl_self_attention_cfg": {"num_attention_heads": 4, "attention_head_dim": 8},
    "processor": {
        "image_target_size": [32, 32],
        "image_crop_size": [28, 28],
        "pixels": [256, 4096],
    },
    "cosmos_config": {
        "text_config": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "head_dim": 8,
        },
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": 8,
        },
    },
}


def groot(spread=True, **config):
    """Return a network with spread weights, whose output depends on all inputs."""
    torch.manual_seed(0)
    policy = GrootN17(
        SPEC, Config(**{"horizon": 3, "network": SMALL, "embodiment": 2} | config)
    ).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters() if spread else ():
            if parameter.ndim > 1 and ".lora_" not in name:
                size = parameter.shape[1] if name.endswith(".W") else parameter[0].numel()
                parameter.normal_(0.0, size**-0.5)
    return policy


def stored(case, folder):
    """NVIDIA's folder of a case, and LeRobot's answers."""
    document = json.loads(STORED.read_text())[case]
    (folder / "cosmos").mkdir(parents=True, exist_ok=True)
    for name, text in document["files"].items():
        (folder / name).write_text(json.dumps(text))
    (folder / "stats.json").write_text(json.dumps(references.statistics()))
    (folder / "cosmos/tokenizer.json").write_text(
        tiny_checkpoint.byte_tokenizer(tiny_checkpoint.FAMILIES["groot_n1_7"])
    )
    model = network.GrootN17Network(network.FACTORY.read(folder).config)
    references.fill(model, biases=True)
    weights = network.FACTORY.folder_files(model, make_tokenizer(""))[0]
    save_file(weights, folder / "model.safetensors")
    return document


def loaded(case, folder, **config):
    """Return the policy of a stored case, its answers, the observation, and the noise."""
    document, given = stored(case, folder), references.observations("groot_n1_7")
    shapes = references.shapes_of("groot_n1_7")
    spec = StationSpec(
        (
            ArraySpec("state", (references.STATE,)),
            *(ArraySpec(name, shape, "uint8") for name, shape in shapes.items()),
        ),
        ActionSpec("tcp_delta", ("x", "y", "z"), (10.0,) * 3, ("m",) * 3),
        10.0,
    )
    grouped = (folder / "statistics.json").exists()
    keys = {
        "checkpoint": str(folder),
        "statistics": str(folder / ("statistics.json/ours" if grouped else "stats.json")),
        "horizon": references.HORIZON,
        "flow_steps": document["files"]["config.json"]["num_inference_timesteps"],
        "embodiment": references.EMBODIMENT,
    }
    policy = GrootN17(spec, Config(**keys | config)).eval()
    observations = Observation(
        torch.from_numpy(given["state"]),
        {name: torch.from_numpy(given[name]) for name in shapes},
        tuple(references.SENTENCES),
    )
    size = references.SIZE_OF_NOISE["groot_n1_7"]
    return policy, document, observations, torch.from_numpy(given["noise"][..., :size])


@pytest.mark.parametrize("case", CASES)
def test_actions_and_loss_are_those_of_lerobots_class(case, tmp_path):
    """Chunks in a data set's units, by both kinds of transformer and of pictures, with quantiles
    of groups, with state and actions clipped or not."""
    policy, document, observations, noise = loaded(case, tmp_path)
    batch, given = policy.to_batch(observations), references.observations("groot_n1_7")
    with torch.no_grad():
        chunk = 10.0 * policy.decode(batch, noise).view(2, references.HORIZON, 3)
    assert np.abs(chunk.numpy() - document["chunk"]).max() <= 1e-5
    drawn = iter([noise, torch.from_numpy(given["uniform"])])
    with mock.patch("rlinf_core.policies.sharding.noise", lambda *_: next(drawn)), torch.no_grad():
        loss = policy.imitation_loss(batch, torch.from_numpy(given["action"] / 10.0).flatten(1))
    assert float(loss) == pytest.approx(document["loss"], rel=1e-5)


def test_every_key_of_its_config_is_read_or_has_no_effect_or_is_refused(tmp_path):
    """The keys are those of LeRobot's config class, and of NVIDIA's in the commit 543b452."""
    document = stored("groot_n1_7", tmp_path)
    read = {*network.DEFAULTS, *network.SUPPORTED, *network.WITHOUT_EFFECT}
    assert {*document["keys"], "letter_box_transform", "strict_action_padding_mask"} <= read
    written("config.json", a_key_of_tomorrow=3)(tmp_path)
    with pytest.raises(PolicyFileError, match="a_key_of_tomorrow: 3', whose effect is not known"):
        network.FACTORY.read(tmp_path)


@pytest.mark.parametrize(
    "shape, edge",
    [((48, 85), 40), ((243, 324), 256), ((240, 424), 256), ((64, 64), 32), ((90, 60), 20)],
)
def test_pictures_are_resized_by_area_as_opencv_does(shape, edge):
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not there")
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    scale = edge / min(shape)
    width, height = (round(size * scale) for size in reversed(shape))
    expected = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    got = resize_by_area(torch.from_numpy(picture).permute(2, 0, 1)[None].float(), edge)
    different = np.abs(got[0].permute(1, 2, 0).numpy() - expected)
    assert different.max() <= 1.0 and (different > 0).mean() < 0.001


def test_a_folder_and_a_policy_file_give_the_same_actions_back(tmp_path):
    policy, _, observations, _ = loaded("groot_n1_7_area", tmp_path / "its", stochastic_eval=False)
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    network.FACTORY.save_folder(policy.network, policy.tokenizer, tmp_path / "again")
    expected = policy.act(observations, False).actions
    assert torch.equal(load_policy(path, policy.spec).act(observations, False).actions, expected)
    config = policy.config.model_copy(update={"checkpoint": str(tmp_path / "again")})
    third = GrootN17(policy.spec, config).eval()
    assert torch.equal(third.act(observations, False).actions, expected)


def test_a_sentence_is_plain_words_in_a_chat(tmp_path):
    policy, _, _, _ = loaded("groot_n1_7", tmp_path)
    inputs = policy.inputs(policy.to_batch(observed_alone(policy, "Push, <|image_pad|> it_2!")))
    tokens = {id: word for word in network_tokens() if (id := policy.tokenizer.token_id(word))}
    letters = {policy.tokenizer.encode(chr(n))[0]: chr(n) for n in (10, *range(32, 127))}
    prompt = "".join((letters | tokens)[id] for id in inputs["ids"][0].tolist())
    size = int(inputs["grid"][0].prod()) // 4
    picture = "<|vision_start|>" + size * "<|image_pad|>" + "<|vision_end|>"
    expected = f"<|im_start|>user\n{2 * picture}push image_pad it_2<|im_end|>\n"
    assert prompt == expected


def network_tokens():
    return tiny_checkpoint.FAMILIES["groot_n1_7"].needed


def observed_alone(policy, sentence):
    """One observation for the policy's spec."""
    shapes = {image.name: image.shape for image in policy.spec.images}
    pictures = {name: torch.zeros(1, *shape, dtype=torch.uint8) for name, shape in shapes.items()}
    return Observation(torch.zeros(1, references.STATE), pictures, (sentence,))


def written(file, **keys):
    def change(folder):
        document = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(document | keys))

    return change


def processor(**keys):
    return written("processor_config.json", processor_kwargs=keys)


@pytest.mark.parametrize(
    "change, error",
    [
        (written("config.json", model_type="gr00t_n1_5"), "model_type Gr00tN1d7, got 'gr00t_n1_5"),
        (written("config.json", state_history_length=2), "state_history_length of 1 .* got 2"),
        (written("config.json", use_tactile=True), "use_tactile of False"),
        (written("config.json", action_horizon=16), "policy.horizon: expected 16"),
        (written("config.json", num_inference_timesteps=8), "policy.flow_steps: expected 8"),
        (written("config.json", select_layer=9), "select_layer of 9, expected 3 to 4"),
        (
            written("config.json", diffusion_model_cfg={"num_layers": 2}),
            "diffusion_model_cfg.positional_embeddings of None, expected None",
        ),
        (
            written("config.json", vl_self_attention_cfg={"num_layers": 0, "a_key": 3}),
            "got 'vl_self_attention_cfg.a_key: 3', whose effect is not known here",
        ),
        (processor(use_mean_std=True), "processor_config.json: expected use_mean_std of False"),
        (lambda folder: (folder / "cosmos/config.json").unlink(), "hf download nvidia/Cosmos-Rea"),
        (written("cosmos/config.json", model_type="qwen2_5_vl"), "model_type of qwen3_vl, got 'qw"),
        (lambda folder: (folder / "cosmos/tokenizer.json").unlink(), "tokenizer.json: expected"),
    ],
)
def test_a_folder_that_is_not_supported_is_refused_by_name(change, error, tmp_path):
    stored("groot_n1_7_area", tmp_path)
    change(tmp_path)
    with pytest.raises(PolicyFileError, match=error):
        GrootN17(SPEC, Config(checkpoint=str(tmp_path), horizon=5, embodiment=2))


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda config: config["action"]["action_configs"][0].update(rep="RELATIVE"), "arm relati"),
        (lambda config: config["state"]["modality_keys"].append("leg"), "KeyError: 'leg'"),
        (lambda config: config.clear(), "KeyError: 'state'"),
    ],
)
def test_statistics_of_other_actions_are_refused(change, error, tmp_path):
    document = stored("groot_n1_7_area", tmp_path)["files"]["processor_config.json"]
    change(document["processor_kwargs"]["modality_configs"]["ours"])
    (tmp_path / "processor_config.json").write_text(json.dumps(document))
    path = tmp_path / "statistics.json"
    with pytest.raises(PolicyFileError, match=error):
        groot(statistics=str(path / "ours"))
    with pytest.raises(PolicyFileError, match="expected one of the embodiments ours, got theirs"):
        groot(statistics=str(path / "theirs"))


def test_other_sizes_are_named():
    with pytest.raises(SpecError, match="policy.embodiment: expected one of 0 to 2"):
        groot(embodiment=3)
    with pytest.raises(PolicyFileError, match="output_dim of 23, expected 24"):
        groot(
            network=SMALL
            | {"diffusion_model_cfg": SMALL["diffusion_model_cfg"] | {"output_dim": 23}}
        )


def test_log_probabilities_are_those_of_the_draw():
    policy, observations = groot(sde_noise=0.4), observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    again, _ = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(again, chunk.log_probs, atol=1e-4)


def test_an_answer_depends_on_its_own_observation_alone():
    policy, observations = groot(), observation("push", "pull the red cube")
    both = policy.act(observations, False).actions
    for row in (0, 1):
        alone = Observation(
            observations.vectors[row : row + 1],
            {name: image[row : row + 1] for name, image in observations.images.items()},
            observations.instruction[row : row + 1],
        )
        assert torch.allclose(policy.act(alone, False).actions[0], both[row], atol=1e-5)


def test_by_cloning_it_follows_sentences_and_a_frozen_model_stays():
    targets = {"left": -0.7, "right": 0.7}
    for frozen, updates in ((False, 100), (True, 1)):
        policy = groot(frozen=frozen)
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        learner = Learner(policy, SFTConfig(learning_rate=2e-3, min_std=0.0, image_shift=0), seed=0)
        for step in range(updates):
            observations = observation(*(["left", "right"] * 4), seed=step)
            batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
            batch["action"] = np.repeat(
                [[targets[word]] for word in observations.instruction], 6, axis=1
            ).astype(np.float32)
            learner.update(batch)
        moved = {
            name
            for name, tensor in policy.state_dict().items()
            if not torch.equal(tensor, before[name])
        }
        assert any(".backbone." in name for name in moved) is not frozen
        if not frozen:
            acted = policy.act(observation(*targets, seed=10_000), False).actions.mean(dim=(1, 2))
            assert acted.detach().numpy() == pytest.approx(list(targets.values()), abs=0.2)


def test_grpo_raises_the_reward():
    policy = groot(sde_noise=0.5, horizon=1, flow_steps=2)
    observations = observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "grpo", 8, learning_rate=1e-3)
    assert before < 0.75 and after > 0.85


if __name__ == "__main__":
    documents = {}
    for name in CASES:
        case_folder = Path(sys.argv[1]) / name
        answers = np.load(case_folder / "answers.npz")
        files = {
            file: json.loads((case_folder / file).read_text())
            for file in FILES
            if (case_folder / file).exists()
        }
        files["config.json"]["model_name"] = "cosmos"
        documents[name] = {
            "files": files,
            "keys": json.loads((case_folder / "keys.json").read_text()),
            "chunk": answers["chunk"].tolist(),
            "loss": float(answers["loss"]),
        }
    STORED.write_text(json.dumps(documents) + "\n")
