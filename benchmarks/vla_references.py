"""Compare published families with their reference implementations: same folder, same observation.

    make references
    python benchmarks/vla_references.py --json benchmarks/results/vla_references.json

LeRobot runs in .venvs/references. There its own classes make tiny policies with random weights and
write them in their published layout. This process loads the same folders, and both compute actions
for the same observations from the same noise. The benchmark does not cover published weights, GR00T
before N1.7 (tests/policies/groot_n1_6_itself.json), OpenVLA and Qwen2.5-VL (tests/policies), policies
with a history, or success on a task.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("RLINF_REFERENCES", ROOT / ".venvs/references")) / "bin/python"
SIZE, HORIZON, STATE, ACTION, PIXELS = 56, 5, 5, 3, {"front": (48, 85, 3), "wrist": (56, 56, 3)}
SENTENCES = [" push the_red cube", "pull"]
SCALE = 10.0  # largest step; nothing is cut off, so that all can be compared
MODES = ("MEAN_STD", "QUANTILES", "MIN_MAX", "QUANTILE10", "IDENTITY")
CASES = {  # family, and the keys of LeRobot's config that differ from its defaults
    "pi0": ("pi0", {}),
    "pi05": ("pi05", {}),
    "smolvla": ("smolvla", {}),
    "pi0_quantiles": (
        "pi0",
        {"normalization_mapping": ("QUANTILES", "MIN_MAX"), "num_inference_steps": 3},
    ),
    "pi05_mean_std": ("pi05", {"normalization_mapping": ("MEAN_STD", "MEAN_STD")}),
    "pi05_apart": (
        "pi05",
        {"normalization_mapping": ("QUANTILE10", "IDENTITY"), "tokenizer_max_length": 60},
    ),
    "pi0_fast": ("pi0_fast", {"validate_action_token_prefix": False, "fast_skip_tokens": 64}),
    "pi0_fast_quantiles": (
        "pi0_fast",
        {
            "validate_action_token_prefix": False,
            "fast_skip_tokens": 64,
            "normalization_mapping": ("QUANTILES", "MIN_MAX"),
            "max_decoding_steps": 30,
        },
    ),
    "xvla": ("xvla", {}),
    "xvla_grippers": (
        "xvla",
        {
            "normalization_mapping": ("MEAN_STD", "MIN_MAX"),
            "action_mode": "ee6d",
            "num_denoising_steps": 3,
            "use_hetero_proj": True,
            "num_image_views": 4,
            "domain": 2,
        },
    ),
    "xvla_bimanual": (
        "xvla",
        {"action_mode": "so101_bimanual", "max_state_dim": 20, "tokenizer_max_length": 40},
    ),
    "smolvla_quantiles": (
        "smolvla",
        {"normalization_mapping": ("QUANTILES", "QUANTILES"), "num_steps": 4},
    ),
    "groot_n1_7": ("groot_n1_7", {}),
    "groot_n1_7_area": (  # with processor_config.json, and its statistics by embodiment
        "groot_n1_7",
        {
            "num_inference_timesteps": 3,
            "vl_self_attention_cfg": None,
            "processor": {
                "use_percentiles": True,
                "use_albumentations": True,
                "image_target_size": [64, 64],
                "image_crop_size": [58, 58],
                "shortest_image_edge": 56,
                "crop_fraction": 0.95,
            },
        },
    ),
    "groot_n1_7_plain": (
        "groot_n1_7",
        {
            "use_alternate_vl_dit": False,
            "processor": {
                "image_target_size": [96, 64],
                "image_crop_size": [80, 60],
                "letter_box_transform": True,
                "formalize_language": False,
                "clip_outliers": False,
            },
        },
    ),
}
CLASSES = {
    "pi0": ("pi0", "PI0"),
    "pi05": ("pi05", "PI05"),
    "smolvla": ("smolvla", "SmolVLA"),
    "pi0_fast": ("pi0_fast", "PI0Fast"),
    "xvla": ("xvla", "XVLA"),
}
SIZE_OF_NOISE = {"xvla": 20, "groot_n1_7": 8}  # numbers of an action in the network
EMBODIMENT = 2  # index of GR00T's layers
GROOT_PIXELS = {"front": (48, 85, 3), "wrist": (48, 85, 3)}  # LeRobot asks for one shape


def statistics() -> dict[str, dict[str, list[float]]]:
    """Return statistics of state and action as a data set has them."""
    random = np.random.default_rng(3)
    numbers = {}
    for name, size, scale in (("observation.state", STATE, 1.0), ("action", ACTION, 0.3)):
        values = scale * random.normal(0.2, 1.0, (400, size)) * random.uniform(0.5, 1.5, size)
        numbers[name] = {
            "mean": values.mean(0),
            "std": values.std(0),
            "min": values.min(0),
            "max": values.max(0),
        } | {
            f"q{percent:02d}": np.percentile(values, percent, axis=0) for percent in (1, 10, 90, 99)
        }
    return {
        name: {key: value.tolist() for key, value in values.items()}
        for name, values in numbers.items()
    }


def shapes_of(family: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the pictures by camera."""
    return GROOT_PIXELS if family == "groot_n1_7" else PIXELS


def observations(family: str = "") -> dict[str, np.ndarray]:
    """Return smooth pictures, states, and noise."""
    random = np.random.default_rng(5)
    pictures = {
        name: random.integers(0, 255, (len(SENTENCES), *shape), np.uint8)
        for name, shape in shapes_of(family).items()
    }
    count = len(SENTENCES)
    given = {
        "state": random.normal(0.2, 0.8, (count, STATE)),
        "noise": random.normal(size=(count, HORIZON, 32)),
        "action": random.normal(0.05, 0.25, (count, HORIZON, ACTION)),
        "uniform": random.uniform(size=(count,)),
    }
    return pictures | {name: values.astype(np.float32) for name, values in given.items()}


def fill(network, prefix: str = "", biases: bool = False) -> None:
    """Set weights by their names, for any version of torch; norms stay, and biases by default."""
    import torch

    for name, parameter in network.named_parameters():
        if parameter.ndim > 1 or biases and name.endswith("bias"):
            random = np.random.default_rng(
                zlib.crc32((prefix + name.replace("shared", "encoder.embed_tokens")).encode())
            )
            size = 0.1
            if parameter.ndim > 1:  # GR00T's weights of each embodiment are (inputs, outputs)
                size = (parameter.shape[1] if name.endswith(".W") else parameter[0].numel()) ** -0.5
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(random.normal(0.0, size, parameter.shape)))


_ORIGINALS: dict = {}


# What runs in LeRobot's environment
def make(case: str, folder: Path) -> None:
    """Write a tiny policy by LeRobot's own classes, and its answers in ``answers.npz``.

    A second time its folder has ``ours``, adapters that were written here: the actions with them
    are in ``ours.npz``.
    """
    import torch
    from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(1)
    family, changes = CASES[case]
    if family == "groot_n1_7":
        make_groot(case, folder)
        return
    module, name = CLASSES[family]
    configuration, modeling, processor = (
        importlib.import_module(f"lerobot.policies.{module}.{part}_{module}")
        for part in ("configuration", "modeling", "processor")
    )
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    fast.pad_token = "<pad>" if "<pad>" in fast.get_vocab() else "<|im_start|>"
    if family == "xvla":
        ends = {token: fast.convert_tokens_to_ids(token) for token in ("<s>", "</s>")}
        fast.backend_tokenizer.post_processor = TemplateProcessing(
            "<s> $A </s>", special_tokens=[*ends.items()]
        )
    elif family != "smolvla":
        fast.backend_tokenizer.post_processor = TemplateProcessing(
            "<bos> $A", special_tokens=[("<bos>", fast.convert_tokens_to_ids("<bos>"))]
        )
    AutoTokenizer.from_pretrained = lambda *_, **__: fast
    if family == "pi0_fast":
        AutoTokenizer.from_pretrained = action_tokenizer(folder, fast)
    if family == "smolvla":
        sizes = shrink_smolvla(folder, fast)
    else:
        sizes = shrink_xvla(fast) if family == "xvla" else shrink(modeling, len(fast))
    keys = dict(changes)
    domain = keys.pop("domain", 0)
    if modes := keys.pop("normalization_mapping", None):
        keys["normalization_mapping"] = dict(
            zip(
                ("VISUAL", "STATE", "ACTION"),
                map(NormalizationMode, ("IDENTITY", *modes)),
                strict=True,
            )
        )
    inputs = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *shape[:2]))
        for camera, shape in PIXELS.items()
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))}
    config = getattr(configuration, f"{name}Config")(
        **sizes["config"] | keys,
        input_features=inputs,
        output_features=outputs,
        device="cpu",
        chunk_size=HORIZON,
        n_action_steps=HORIZON,
    )
    policy = getattr(modeling, f"{name}Policy")(config).eval()
    if family == "xvla":  # tests/policies/test_xvla.py makes the same weights
        fill(policy)
    with torch.no_grad():
        for parameter in policy.parameters() if family != "xvla" else ():
            if parameter.ndim > 1:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    stats = {
        feature: {key: torch.tensor(value) for key, value in numbers.items()}
        for feature, numbers in statistics().items()
    }
    before, after = getattr(processor, f"make_{module}_pre_post_processors")(
        config, dataset_stats=stats
    )
    for step in before.steps:
        if hasattr(step, "domain_id"):
            step.domain_id = domain
    given = {key: torch.from_numpy(value) for key, value in observations().items()}
    batch = before(
        {
            f"observation.images.{camera}": given[camera].permute(0, 3, 1, 2) / 255
            for camera in PIXELS
        }
        | {"observation.state": given["state"], "task": SENTENCES}
    )

    named = {} if family == "pi0_fast" else {"noise": given["noise"]}
    drawing = contextlib.nullcontext
    if family == "xvla":  # it draws all noise itself
        noise = given["noise"][..., : SIZE_OF_NOISE[family]]
        spread = torch.arange(len(SENTENCES)) / len(SENTENCES)

        def drawing():
            draws = {"randn": noise, "randn_like": noise, "rand": given["uniform"] - spread}
            stack = contextlib.ExitStack()
            for word, values in draws.items():
                patch = mock.patch.object(torch, word, lambda *_, values=values, **__: values)
                stack.enter_context(patch)
            return stack

    def act(actor) -> np.ndarray:
        with torch.no_grad(), drawing():
            chunk = actor.predict_action_chunk(batch, **named)
            return after(chunk[..., :ACTION]).numpy()

    learned = before(
        {
            f"observation.images.{camera}": given[camera].permute(0, 3, 1, 2) / 255
            for camera in PIXELS
        }
        | {"observation.state": given["state"], "action": given["action"], "task": SENTENCES}
    )

    def loss_of(actor) -> float:
        if named and family != "xvla":
            actor.model.sample_noise = lambda *_: given["noise"]
            actor.model.sample_time = lambda *_: given["uniform"] ** (1 / 1.5) * 0.999 + 0.001
        with torch.no_grad(), drawing():
            return float(actor(learned)[0])

    if (folder / "exported").is_dir():
        loaded = type(policy).from_pretrained(str(folder / "exported"), config=config).eval()
        np.savez(folder / "exported.npz", chunk=act(loaded))
    if family == "pi0_fast" and not (folder / "answers.npz").exists():
        clone(policy, learned)
    if (folder / "ours").is_dir():
        from peft import PeftModel

        if family == "pi0_fast":
            policy = type(policy).from_pretrained(str(folder), config=config).eval()
        with_ours = PeftModel.from_pretrained(policy, str(folder / "ours")).base_model.model
        np.savez(folder / "ours.npz", chunk=act(with_ours), loss=loss_of(with_ours))
        return
    policy.save_pretrained(folder)
    before.save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text()) | sizes["document"]
    if family == "pi0_fast":
        del document["dit_config"]
    (folder / "config.json").write_text(json.dumps(document))
    chunk = act(policy)
    (folder / "keys.json").write_text(
        json.dumps([field.name for field in dataclasses.fields(config)])
    )
    loss = loss_of(policy)
    changed = adapted(policy, folder / "theirs")
    numbers = {"chunk": chunk, "loss": loss}
    numbers |= {"adapted_chunk": act(changed), "adapted_loss": loss_of(changed)}
    np.savez(folder / "answers.npz", **numbers)


def groot_sizes(vocabulary: int, folder: Path) -> tuple[dict, dict]:
    """Return the config.json of a small GR00T N1.7, and that of its vision-language model."""
    config = {
        "model_name": str(folder / "cosmos"),
        "model_dtype": "float32",
        "dtype": "float32",
        "backbone_embedding_dim": 32,
        "select_layer": 3,
        "max_state_dim": 9,
        "max_action_dim": SIZE_OF_NOISE["groot_n1_7"],
        "action_horizon": HORIZON,
        "hidden_size": 24,
        "input_embedding_dim": 32,
        "max_num_embodiments": 3,
        "state_dropout_prob": 0.2,
        "diffusion_model_cfg": {
            "positional_embeddings": None,
            "num_layers": 6,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "norm_type": "ada_norm",
            "dropout": 0.2,
            "final_dropout": True,
            "output_dim": 24,
            "interleave_self_attention": True,
        },
        "vl_self_attention_cfg": {
            "positional_embeddings": None,
            "num_layers": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "dropout": 0.2,
            "final_dropout": True,
        },
    }
    text = {
        "model_type": "qwen3_vl_text",
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocabulary,
        "rope_theta": 5_000_000,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
        },
    }
    vision = {
        "model_type": "qwen3_vl",
        "depth": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_heads": 2,
        "patch_size": 8,
        "num_position_embeddings": 36,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0, 1],
    }
    return config, {"tie_word_embeddings": True, "text_config": text, "vision_config": vision}


def make_groot(case: str, folder: Path) -> None:
    """Write a tiny GR00T N1.7 by LeRobot's own classes in NVIDIA's layout, and its answers.

    Each observation is answered alone, because GR00T attends to what fills a batch up.
    """
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.groot import groot_n1_7, processor_groot
    from lerobot.policies.groot.configuration_groot import GrootConfig
    from lerobot.policies.groot.modeling_groot import GrootPolicy
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    torch.manual_seed(0)
    torch.set_num_threads(1)
    _, changes = CASES[case]
    changes = dict(changes)
    kwargs = changes.pop("processor", None)
    cosmos = folder / "cosmos"
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(cosmos / "tokenizer.json"), pad_token="<|im_end|>"
    )
    ids = {
        f"{name}_token_id": fast.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
            ("image", "image_pad"),
            ("video", "video_pad"),
        )
    }
    sizes, backbone = groot_sizes(len(fast), folder)
    chat = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
    )
    if not (folder / "config.json").exists():
        Qwen3VLConfig(**backbone, **ids).save_pretrained(cosmos)
        config = groot_n1_7.GR00TN17Config(**sizes | changes)
        model = groot_n1_7.GR00TN17(config, load_backbone_weights=False).float().eval()
        fill(model, biases=True)
        model.save_pretrained(folder)
        numbers = statistics()
        parts = {"observation.state": {"arm": 3, "hand": 2}, "action": {"arm": 2, "hand": 1}}
        grouped: dict = {}
        for feature, groups in parts.items():
            start = 0
            for group, count in groups.items():
                grouped.setdefault(feature.removeprefix("observation."), {})[group] = {
                    key: values[start : start + count] for key, values in numbers[feature].items()
                }
                start += count
        modality = {name: {"modality_keys": ["arm", "hand"]} for name in ("state", "action")}
        modality["action"] |= {
            "delta_indices": [*range(HORIZON)],
            "action_configs": 2 * [{"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"}],
        }
        modality["video"] = {"modality_keys": [*GROOT_PIXELS], "delta_indices": [0]}
        documents = {"embodiment_id": {"ours": EMBODIMENT}}
        if kwargs is not None:
            kwargs |= {"modality_configs": {"ours": modality}, "use_relative_action": True}
            documents |= {
                "processor_config": {"processor_kwargs": kwargs},
                "statistics": {"ours": grouped},
            }
        for name, document in documents.items():
            (folder / f"{name}.json").write_text(json.dumps(document))
    pixels = Qwen2VLImageProcessor(
        size={"shortest_edge": 1024, "longest_edge": 65_536},
        patch_size=8,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    (cosmos / "preprocessor_config.json").write_text(pixels.to_json_string())
    inputs = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *shape[:2]))
        for camera, shape in GROOT_PIXELS.items()
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))

    def policy_in(place: Path):
        config = GrootConfig(
            base_model_path=str(place),
            embodiment_tag="ours",
            max_state_dim=sizes["max_state_dim"],
            max_action_dim=sizes["max_action_dim"],
            chunk_size=HORIZON,
            n_action_steps=HORIZON,
            input_features=dict(inputs),
            output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
            device="cpu",
            use_bf16=False,
        )
        return GrootPolicy(config).eval()

    policy = policy_in(folder)
    stats = {
        feature: {key: torch.tensor(value) for key, value in numbers.items()}
        for feature, numbers in statistics().items()
    }
    before, after = processor_groot.make_groot_pre_post_processors(
        policy.config, dataset_stats=stats
    )
    for step in before.steps:
        if hasattr(step, "_proc"):
            step._proc = Qwen3VLProcessor(pixels, fast, Qwen3VLVideoProcessor(), chat_template=chat)
    given = {key: torch.from_numpy(value) for key, value in observations("groot_n1_7").items()}

    def batch_of(row: int, learned: bool = False) -> dict:
        one = {key: value[row : row + 1] for key, value in given.items()}
        frame = {
            f"observation.images.{camera}": one[camera].permute(0, 3, 1, 2)
            for camera in GROOT_PIXELS
        }
        frame |= {"observation.state": one["state"], "task": SENTENCES[row : row + 1]}
        return before(frame | ({"action": one["action"]} if learned else {}))

    rows, noise = range(len(SENTENCES)), given["noise"][..., : SIZE_OF_NOISE["groot_n1_7"]]

    def act(actor) -> np.ndarray:
        chunks = []
        for row in rows:
            drawn = noise[row : row + 1]
            with torch.no_grad(), mock.patch.object(torch, "randn", lambda *_, x=drawn, **__: x):
                chunks.append(after(actor.predict_action_chunk(batch_of(row))).numpy())
        return np.concatenate(chunks)

    def loss_of(actor) -> float:
        losses = []
        for row in rows:
            drawn, share = noise[row : row + 1], given["uniform"][row : row + 1] ** (1 / 1.5)
            time = (1 - share) * 0.999
            actor._groot_model.action_head.sample_time = lambda *_, x=time, **__: x
            with torch.no_grad(), mock.patch.object(torch, "randn", lambda *_, x=drawn, **__: x):
                losses.append(float(actor(batch_of(row, True))[0]))
        return float(np.mean(losses))

    if (folder / "exported").is_dir():
        exported = policy_in(folder / "exported")
        np.savez(folder / "exported.npz", chunk=act(exported))
    if (folder / "ours").is_dir():
        from peft import PeftModel

        policy._groot_model = PeftModel.from_pretrained(
            policy._groot_model, str(folder / "ours")
        ).base_model.model
        np.savez(folder / "ours.npz", chunk=act(policy), loss=loss_of(policy))
        return
    numbers = {"chunk": act(policy), "loss": loss_of(policy)}
    (folder / "keys.json").write_text(json.dumps([*groot_n1_7.GR00T_N1_7_DEFAULTS]))
    patches = [batch_of(row)["pixel_values"].numpy() for row in rows]
    policy._groot_model = adapted(policy._groot_model, folder / "theirs")
    numbers |= {"adapted_chunk": act(policy), "adapted_loss": loss_of(policy)}
    np.savez(folder / "answers.npz", **numbers, pixels=np.stack(patches))


def clone(policy, batch, steps: int = 300) -> None:
    """Train the policy to write FAST's tokens, because random weights write none."""
    import torch

    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        policy(batch)[0].backward()
        optimizer.step()


def action_tokenizer(folder: Path, fast) -> Callable:
    """Replace LeRobot's FAST tokenizer and PaliGemma's tokenizer by small ones.

    The published class: huggingface.co/physical-intelligence/fast, processing_action_tokenizer.py.
    """
    import copy

    from scipy.fft import dct
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import AutoProcessor, PreTrainedTokenizerFast

    path, scale, least, most = folder / "fast", 10, -60, 60
    if not path.is_dir():
        path.mkdir()
        chunks = np.random.default_rng(11).normal(0, 1, (400, HORIZON, ACTION))
        letters = (
            (np.around(dct(chunks, axis=1, norm="ortho") * scale) - least)
            .astype(int)
            .reshape(400, -1)
        )
        trainer = BpeTrainer(
            vocab_size=160,
            min_frequency=2,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=[chr(number) for number in range(most - least + 1)],
            max_token_length=10_000,
        )
        bpe = ByteLevelBPETokenizer()
        bpe._tokenizer.train_from_iterator(
            ("".join(map(chr, row)) for row in letters), trainer=trainer
        )
        (path / "tokenizer.json").write_text(bpe._tokenizer.to_str())
        (path / "processor_config.json").write_text(
            json.dumps({"scale": scale, "min_token": least, "vocab_size": 160})
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")),
        clean_up_tokenization_spaces=False,
    )

    class Processor:
        bpe_tokenizer, min_token = wrapped, least

        def __call__(self, actions):
            rows = np.around(dct(np.asarray(actions), axis=1, norm="ortho") * scale)
            return [
                wrapped("".join(map(chr, np.maximum(row.flatten() - least, 0).astype(int))))[
                    "input_ids"
                ]
                for row in rows
            ]

    Processor.scale = scale
    AutoProcessor.from_pretrained = lambda *_, **__: Processor()

    def tokenizer(*_, add_eos_token: bool = False, **__):
        ended = copy.deepcopy(fast)
        ended.bos_token, ended.eos_token = "<bos>", "<eos>"
        token = "<eos>" if add_eos_token else "<bos>"
        ended.backend_tokenizer.post_processor = TemplateProcessing(
            "$A <eos>" if add_eos_token else "<bos> $A",
            special_tokens=[(token, fast.convert_tokens_to_ids(token))],
        )
        return ended

    return tokenizer


# LeRobot's type, and the keys of its config that differ from its defaults: by policy.kind lerobot
PLAYED = {
    "act": {
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 48,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
        "chunk_size": HORIZON,
        "n_action_steps": HORIZON,
        "pretrained_backbone_weights": None,
    },
    "smolvla": {"chunk_size": HORIZON, "n_action_steps": HORIZON, "load_vlm_weights": False},
    "diffusion": {
        "horizon": 8,
        "n_action_steps": HORIZON,
        "down_dims": (8, 16),
        "diffusion_step_embed_dim": 8,
        "spatial_softmax_num_keypoints": 4,
        "num_train_timesteps": 20,
        "num_inference_steps": 5,
        "crop_shape": (48, 48),
        "pretrained_backbone_weights": None,
    },
}


def make_played(kind: str, folder: Path) -> None:
    """Write a tiny policy as LeRobot's class saves it, and that class's answers."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )
    from transformers import AutoProcessor, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(1)
    keys = dict(PLAYED[kind])
    if kind == "smolvla":
        fast = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "vlm/tokenizer.json"),
            pad_token="<|im_start|>",
            extra_special_tokens={
                "fake_image_token": "<fake_token_around_image>",
                "image_token": "<image>",
                "global_image_token": "<image>",
                "end_of_utterance_token": "<end_of_utterance>",
            },
        )
        keys |= shrink_smolvla(folder, fast)["config"]
        AutoProcessor.from_pretrained().save_pretrained(folder / "vlm")
    inputs = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))
        for camera in PIXELS
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))}
    config = make_policy_config(
        kind, input_features=inputs, output_features=outputs, device="cpu", **keys
    )
    policy = get_policy_class(kind)(config).eval()
    stats = {
        feature: {key: torch.tensor(value) for key, value in numbers.items()}
        for feature, numbers in statistics().items()
    }
    stats |= {
        f"observation.images.{camera}": {
            "mean": torch.full((3, 1, 1), 0.4),
            "std": torch.full((3, 1, 1), 0.2),
            "min": torch.zeros(3, 1, 1),
            "max": torch.ones(3, 1, 1),
        }
        for camera in PIXELS
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    frame = {
        f"observation.images.{camera}": torch.from_numpy(picture).permute(0, 3, 1, 2) / 255
        for camera, picture in squares().items()
    }
    batch = before(
        frame | {"observation.state": torch.from_numpy(observations()["state"]), "task": SENTENCES}
    )
    torch.manual_seed(0)
    with torch.no_grad():  # LeRobot's own call for one action after the other
        policy.reset()
        actions = torch.stack([after(policy.select_action(batch)) for _ in range(HORIZON)], 1)
    np.savez(folder / "answers.npz", chunk=actions.numpy())


def squares() -> dict[str, np.ndarray]:
    """Return the pictures (B, 56, 56, 3) of each camera."""
    random = np.random.default_rng(7)
    return {
        name: random.integers(0, 255, (len(SENTENCES), SIZE, SIZE, 3), np.uint8) for name in PIXELS
    }


def played_spec():
    """Return the station specs of ``played``, and its observations."""
    import torch

    from rlinf_core.policies.base import Observation
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    pictures = [ArraySpec(name, (SIZE, SIZE, 3), "uint8", "", (0.0,), (255.0,)) for name in PIXELS]
    spec = StationSpec(
        (ArraySpec("state", (STATE,)), *pictures),
        ActionSpec("tcp_delta", ("x", "y", "z"), (SCALE,) * ACTION, ("m",) * ACTION),
        10.0,
    )
    return spec, Observation(
        torch.from_numpy(observations()["state"]),
        {name: torch.from_numpy(picture) for name, picture in squares().items()},
        tuple(SENTENCES),
    )


def chunk_of_lerobot(folder: Path) -> np.ndarray:
    """Return the chunk of a folder by ``policy.kind: lerobot``, in the data set's units."""
    from rlinf_core.policies import make_policy
    from rlinf_core.policies.isolated.lerobot import Config

    os.environ["RLINF_PYTHON_LEROBOT"] = str(PYTHON)
    spec, observed = played_spec()
    policy = make_policy(
        spec, Config(checkpoint=str(folder), horizon=HORIZON, stochastic_eval=False)
    )
    return SCALE * policy.act(observed, explore=False).actions.numpy()


def played(kind: str, folder: Path) -> float:
    """Return the largest difference of the folder's actions by ``policy.kind: lerobot``."""
    chunk = chunk_of_lerobot(folder)
    return float(np.abs(chunk - np.load(folder / "answers.npz")["chunk"]).max())


def visuomotor(kind: str, folder: Path) -> dict:
    """Compare ``policy.kind: act`` or ``diffusion`` with LeRobot, both ways."""
    import torch

    from rlinf_core.policies import policy_kind

    (numbers,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
    keys = {"horizon": HORIZON} if kind == "act" else {"horizon": 7, "n_obs_steps": 2}
    spec, observed = played_spec()
    part = policy_kind(kind)
    policy = part.Policy(
        spec,
        part.Config(
            checkpoint=str(folder), statistics=str(numbers), n_action_steps=HORIZON, **keys
        ),
    ).eval()

    def act() -> np.ndarray:
        torch.manual_seed(0)
        with torch.no_grad():
            return SCALE * policy.act(observed, explore=False).actions.numpy()[:, :HORIZON]

    expected, exported = np.load(folder / "answers.npz")["chunk"], folder / "exported"
    difference = float(np.abs(act() - expected).max())
    result = {"family": kind, "difference": difference, "unread": []}  # else it is refused
    if not exported.exists():
        policy.save_folder(exported)
    result["exported"] = float(np.abs(chunk_of_lerobot(exported) - act()).max())
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    goal = torch.full((len(observed), keys["horizon"] * ACTION), 0.5)
    policy.imitation_loss(policy.to_batch(observed), goal).backward()
    torch.optim.SGD(policy.parameters(), 1e-2).step()
    result["sft_step"] = max(
        float((after.detach() - then).abs().max())
        for after, then in zip(policy.parameters(), before, strict=True)
    )
    return result


def adapted(policy, folder: Path):
    """Return the policy with adapters and a retrained layer, saved by the library peft."""
    import torch
    from peft import LoraConfig, get_peft_model

    name = getattr(policy, "name", "groot_n1_7")  # NVIDIA's and LeRobot's networks have no name
    layers = {"xvla": "aux_visual_proj", "groot_n1_7": "proj_out_2"}
    more, size = [layers.get(name, "action_out_proj")], 0.2
    if name == "pi0_fast":
        more, size = None, 0.02
    wrapped = get_peft_model(
        policy,
        LoraConfig(
            r=3,
            lora_alpha=5,
            use_rslora=True,
            target_modules=r".*self_attn\.(q|v)_proj",
            modules_to_save=more,
        ),
    )
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.add_(size * torch.randn_like(parameter))
    wrapped.save_pretrained(str(folder))
    return wrapped.base_model.model


def shrink(modeling, vocabulary: int) -> dict:
    """Let LeRobot's pi0 and pi0.5 make networks of the small sizes in our config.json."""
    text = {
        "model_type": "gemma",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": SIZE,
        "vision_use_head": False,
    }
    model, expert = _ORIGINALS.setdefault(
        modeling.__name__,
        (
            modeling.PaliGemmaForConditionalGenerationWithPiGemma,
            getattr(modeling, "PiGemmaForCausalLM", None),
        ),
    )

    def small(config):
        config.text_config.vocab_size = config._vocab_size = config.image_token_index = (
            vocabulary + 1
        )
        config.vision_config.projection_dim = config.projection_dim = text["hidden_size"]
        for key, value in vision.items():
            if key != "model_type":
                setattr(config.vision_config, key, value)
        return model(config)

    def small_expert(config):
        config.vocab_size = vocabulary + 1
        return expert(config)

    modeling.get_gemma_config = lambda variant: modeling.GemmaConfig(
        text["hidden_size"],
        text["num_hidden_layers"],
        text["intermediate_size"],
        8,
        1,
        text["head_dim"],
    )
    modeling.PaliGemmaForConditionalGenerationWithPiGemma = small
    modeling.PiGemmaForCausalLM = small_expert
    begin = {"vocab_size": vocabulary + 1, "bos_token_id": 3}
    vlm = {
        "model_type": "paligemma",
        "projection_dim": text["hidden_size"],
        "image_token_id": vocabulary + 1,
        "text_config": text | begin,
        "vision_config": vision,
    }
    return {
        "config": {"image_resolution": (SIZE, SIZE)},
        "document": {"vlm_config": vlm, "dit_config": text | {"vocab_size": vocabulary + 1}},
    }


def shrink_xvla(fast) -> dict:
    """Let LeRobot's X-VLA make a small Florence-2 and a small transformer."""
    fast.pad_token = "<pad>"
    text = {
        "vocab_size": len(fast),
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 16,
        "max_position_embeddings": 256,
    }
    text |= {
        f"{name}_token_id": fast.convert_tokens_to_ids(token)
        for name, token in (("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"))
    }
    vision = {  # in Microsoft's format, as published
        "model_type": "davit",
        "drop_path_rate": 0.1,
        "patch_size": [7, 3],
        "patch_stride": [4, 2],
        "patch_padding": [3, 1],
        "patch_prenorm": [False, True],
        "dim_embed": [16, 24],
        "num_heads": [2, 3],
        "num_groups": [2, 3],
        "depths": [1, 1],
        "window_size": 4,
        "projection_dim": 32,
        "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 100},
        "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 50},
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
    }
    return {
        "config": {
            "florence_config": {"vision_config": vision, "text_config": text},
            "resize_imgs_with_padding": (SIZE, SIZE),
            "hidden_size": 32,
            "depth": 2,
            "num_heads": 4,
            "num_domains": 3,
            "len_soft_prompts": 4,
            "action_mode": "auto",
        },
        "document": {},
    }


def shrink_smolvla(folder: Path, fast) -> dict:
    """Return the small config and processor from which LeRobot's SmolVLA makes its model."""
    from transformers import (
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(fast),
    }
    vision = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": SIZE,
    }
    SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=2).save_pretrained(
        folder / "vlm"
    )
    for key, token in (
        ("fake_image_token", "<fake_token_around_image>"),
        ("global_image_token", "<image>"),
        ("image_token", "<image>"),
        ("end_of_utterance_token", "<end_of_utterance>"),
    ):
        setattr(fast, key, token)
        setattr(fast, f"{key}_id", fast.convert_tokens_to_ids(token))
    from transformers import AutoProcessor

    processor = SmolVLMProcessor(SmolVLMImageProcessor(), fast, SmolVLMVideoProcessor())
    AutoProcessor.from_pretrained = lambda *_, **__: processor
    return {
        "config": {
            "vlm_model_name": str(folder / "vlm"),
            "resize_imgs_with_padding": (SIZE, SIZE),
            "num_vlm_layers": 4,
        },
        "document": {"vlm_model_name": "vlm"},
    }


# What runs here
def compare(case: str, folder: Path) -> dict:
    """Return the largest difference of our answers in the data set's units."""
    import torch

    from rlinf_core.policies import policy_kind
    from rlinf_core.policies.base import Observation
    from rlinf_core.policies.pretrained import adapter_files, lerobot, openpi
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    family, changes = CASES[case]
    answers, given = np.load(folder / "answers.npz"), observations(family)
    pictures = [
        ArraySpec(name, shape, "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image")
        for name, shape in shapes_of(family).items()
    ]
    spec = StationSpec(
        (ArraySpec("state", (STATE,)), *pictures),
        ActionSpec("tcp_delta", ("x", "y", "z"), (SCALE,) * ACTION, ("m",) * ACTION),
        10.0,
    )
    if family != "groot_n1_7":
        (statistics_file,) = folder.glob(
            "policy_preprocessor_step_*_normalizer_processor.safetensors"
        )
    elif "processor" in changes:
        statistics_file = folder / "statistics.json" / "ours"
    else:
        statistics_file = folder / "stats.json"
        statistics_file.write_text(json.dumps(statistics()))
    part = policy_kind(family)
    steps = {
        "num_inference_steps": "flow_steps",
        "num_steps": "flow_steps",
        "num_denoising_steps": "flow_steps",
        "num_inference_timesteps": "flow_steps",
        "tokenizer_max_length": "tokens",
        "max_decoding_steps": "max_decoding_steps",
        "domain": "domain",
    }
    keys = {steps[key]: value for key, value in changes.items() if key in steps}
    keys |= {"checkpoint": str(folder), "horizon": HORIZON, "statistics": str(statistics_file)}
    if family == "groot_n1_7":
        keys["embodiment"] = EMBODIMENT
    policy, theirs = (
        part.Policy(spec, part.Config(**keys, **more)).eval()
        for more in ({}, {"adapters": str(folder / "theirs")})
    )
    observation = Observation(
        torch.from_numpy(given["state"]),
        {name: torch.from_numpy(given[name]) for name in shapes_of(family)},
        tuple(SENTENCES),
    )

    def act(actor) -> np.ndarray:
        with torch.no_grad():
            if family == "pi0_fast":
                chunk = actor.act(observation, explore=False).actions
            else:
                noise = torch.from_numpy(given["noise"])[..., : SIZE_OF_NOISE.get(family)]
                chunk = actor.decode(actor.to_batch(observation), noise)
        return (SCALE * chunk).view(answers["chunk"].shape).numpy()

    def loss_of(actor) -> float:
        noise = given["noise"][..., : SIZE_OF_NOISE.get(family)]
        drawn = iter([noise, given["uniform"]])
        patch = mock.patch(
            "rlinf_core.policies.sharding.noise", lambda *_: torch.from_numpy(next(drawn))
        )
        demonstrated = torch.from_numpy(given["action"] / SCALE).flatten(1)
        with patch, torch.no_grad():
            return float(actor.imitation_loss(actor.to_batch(observation), demonstrated))

    loss = loss_of(policy)
    exported = folder / "exported"
    if "exported" not in CELLS.get(family, {}):
        policy.factory.save_folder(policy.network, policy.tokenizer, exported)
    explores = {} if family == "pi0_fast" else {"sde_noise": 0.3}
    learned = step_of(
        part.Policy(
            spec,
            part.Config(
                **keys | {"max_decoding_steps": 64}
                if family == "pi0_fast"
                else {**keys, **explores}
            ),
        ),
        observation,
    )

    # adapters that are small enough change a sentence's loss, and none of its likeliest tokens
    judged = "loss" if family == "pi0_fast" else "chunk"
    chunk, changed = act(policy), loss_of(theirs) if judged == "loss" else act(theirs)
    read_adapters = float(np.abs(changed - answers[f"adapted_{judged}"]).max())
    ours = part.Policy(spec, part.Config(**keys, lora={"rank": 2, "alpha": 6.0})).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    adapter_files.save(ours.network, ours.config.lora, ours.factory, str(folder), folder / "ours")
    written = loss_of(ours) if judged == "loss" else act(ours)
    np.savez(folder / "written.npz", **{judged: written})
    read = {
        "type",
        "normalization_mapping",
        *lerobot.EXPECTED,
        *lerobot.SETTINGS,
        *lerobot.WITHOUT_EFFECT,
        *openpi.SIZES,
    }
    network = importlib.import_module(f"rlinf_core.policies.pretrained.{family}.network")
    read |= {
        *getattr(network, "KEYS", ()),
        *(() if family == "pi0" else network.SMALLEST),
        *getattr(network, "WITHOUT_EFFECT", ()),
        *getattr(network, "SETTINGS", ()),
        *getattr(network, "SUPPORTED", ()),
        "vlm_model_name",
    }
    unread = [
        key
        for key in json.loads((folder / "keys.json").read_text())
        if key not in read
        and not key.startswith(("optimizer_", "scheduler_"))
        and key != "time_sampling_beta_beta"
    ]
    return {
        "family": family,
        "sft_loss": abs(loss - float(answers["loss"])) / max(1.0, float(answers["loss"])),
        **learned,
        "difference": float(np.abs(chunk - answers["chunk"]).max()),
        "largest": float(np.abs(answers["chunk"]).max()),
        "unread": unread,
        "peft_read": read_adapters,
        "peft_effect": float(np.abs(answers[f"adapted_{judged}"] - answers[judged]).max()),
    }


NO_DENSITY = dict.fromkeys(("log_probs", "rl_step"), "has no density")
NO_ADAPTERS = dict.fromkeys(("peft_read", "peft_written"), "has no adapters")
VISUOMOTOR = {"sft_loss": "1e-5, LeRobot 0.4.4 (`test_visuomotor.py`)", **NO_DENSITY, **NO_ADAPTERS}
CELLS: dict[str, dict[str, str]] = {  # the reason of a cell that this command does not measure
    "pi0": {"exported": "layout of transformers"},
    "act": VISUOMOTOR,
    "diffusion": VISUOMOTOR,
}
MOVES, ADAPTERS = "moves the weights", "1e-4 of merged ones (`test_adapter_files.py`)"
OTHERS: dict[str, dict[str, str]] = {  # bars of tests of families that this command does not run
    "GR00T N1.5": {
        "loads": "yes",
        "difference": "1e-5, LeRobot 0.4.4 (`test_groot.py`)",
        "sft_loss": "1e-5, LeRobot 0.4.4",
        "log_probs": "1e-5 in float64",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "read again here; LeRobot 0.6 has N1.7 alone",
    },
    "OpenVLA, OpenVLA-OFT": {
        "loads": "yes",
        "difference": "1e-4 of transformers' layers (`test_openvla.py`); its code is on no index",
        "sft_loss": "no reference",
        "log_probs": "1e-5 by hand",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "read again here; its code is on no index",
    },
    "Qwen2.5-VL": {
        "loads": "yes",
        "difference": "1e-4, transformers (`test_qwen_vl.py`)",
        "sft_loss": "1e-5, transformers",
        "log_probs": "1e-5, vLLM (`test_action_engine.py`)",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": ADAPTERS,
        "peft_written": ADAPTERS,
        "exported": "transformers and vLLM load it",
    },
    "GR00T N1.6": {
        "loads": "yes",
        "difference": "9e-07, NVIDIA's code (`groot_n1_6_itself.json`)",
        "sft_loss": "1e-07, NVIDIA's code",
        "log_probs": "drawn and computed again",
        "sft_step": MOVES,
        "rl_step": MOVES,
        "peft_read": "7e-07, NVIDIA's code",
        "peft_written": "9e-07, NVIDIA's code",
        "exported": "0, NVIDIA's code",
    },
    "WALL-OSS": {"loads": "no kind; untested by `policy.kind: lerobot`"},
}
COLUMNS = {
    "difference": "chunk",
    "sft_loss": "SFT loss",
    "log_probs": "log-probabilities",
    "sft_step": "SFT step",
    "rl_step": "GRPO step",
    "peft_read": "PEFT read",
    "peft_written": "PEFT written",
    "exported": "exported",
}


def table(summary: dict) -> str:
    """Return the table of docs/howto/vla.md: largest differences, and gaps with their reasons."""
    cases = summary["cases"]
    rows = [
        "| family | layout loads | " + " | ".join(COLUMNS.values()) + " |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for family in summary["families"]:
        cells = []
        for key in COLUMNS:
            values = [
                case[key] for case in cases.values() if case["family"] == family and key in case
            ]
            if key.endswith("_step") and values:
                cells.append(MOVES if min(values) > 0.0 else "no")
            elif values:
                cells.append(f"{max(values):.0e}" if max(values) else "0")
            else:
                cells.append(CELLS.get(family, {}).get(key, "no"))
        rows.append(f"| `{family}` | yes | " + " | ".join(cells) + " |")
    for family, texts in OTHERS.items():
        cells = [texts.get(key, "") for key in ("loads", *COLUMNS)]
        rows.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def step_of(policy, observation) -> dict:
    """Compare a step of SFT and of GRPO: moved weights, and recomputed log-probabilities."""
    import torch

    from rlinf_core.algorithms import algorithm
    from rlinf_core.algorithms.common.rollout import Rollout

    def moved(step: Callable[[], object]) -> float:
        before = [parameter.detach().clone() for parameter in policy.parameters()]
        step()
        return max(
            float((now.detach() - then).abs().max())
            for now, then in zip(policy.parameters(), before, strict=True)
        )

    batch, draw = policy.to_batch(observation), torch.Generator().manual_seed(0)
    chunk = policy.act(observation, True, draw)
    with torch.no_grad():
        again = policy.log_probs(batch, chunk.drawn)[0]
    settings = algorithm("grpo").Config(
        epochs=1, group=len(observation), minibatches=1, level="chunk"
    )
    learner, one = algorithm("grpo").Learner(policy, settings, 0), torch.ones(1, len(observation))
    rewards = torch.zeros(1, len(observation), HORIZON)
    rewards[..., 0] = torch.arange(len(observation))
    observations = {key: value[None] for key, value in batch.items()}
    drawn, log_probs = chunk.drawn[None], chunk.log_probs.flatten(1)[None]
    steps = HORIZON * one
    rollout = Rollout(
        observations, observations, drawn, log_probs, rewards, steps, one, one, one, 0 * one
    )
    rl = moved(lambda: learner.update(rollout))
    optimizer = torch.optim.SGD(policy.parameters(), 1e-2)

    def cloned() -> None:
        policy.imitation_loss(batch, chunk.actions.flatten(1), draw).backward()
        optimizer.step()

    optimizer.zero_grad()
    return {
        "log_probs": float((again - chunk.log_probs).abs().max()),
        "rl_step": rl,
        "sft_step": moved(cloned),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument(
        "--folder", type=Path, help="keeps the reference's folders, and takes those that are there"
    )
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=[*CASES])
    parser.add_argument(
        "--played",
        nargs="*",
        default=[*PLAYED],
        choices=[*PLAYED],
        help="types for policy.kind lerobot",
    )
    parser.add_argument("--make", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        for case in options.cases:
            make(case, options.make / case)
        for kind in options.played:
            make_played(kind, options.make / "played" / kind)
        return
    from rlinf_core.policies.pretrained.tiny_checkpoint import FAMILIES, byte_tokenizer

    results = {}
    with contextlib.ExitStack() as stack:
        root = str(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        for case in options.cases:
            text = byte_tokenizer(FAMILIES[CASES[case][0]])
            for path in (
                Path(root) / case / "tokenizer.json",
                Path(root) / case / "vlm/tokenizer.json",
                Path(root) / case / "cosmos/tokenizer.json",
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        for kind in options.played:
            path = Path(root) / "played" / kind / "vlm/tokenizer.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(byte_tokenizer(FAMILIES["smolvla"]))

        def reference(cases: list[str], kinds: Sequence[str] = ()) -> None:
            if cases or kinds:
                subprocess.run(
                    [PYTHON, __file__, "--make", root, "--cases", *cases, "--played", *kinds],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
                )

        reference(
            *(
                [
                    name
                    for name in names
                    if not (Path(root) / folder / name / "answers.npz").exists()
                ]
                for names, folder in ((options.cases, ""), (options.played, "played"))
            )
        )
        alone = {kind: played(kind, Path(root) / "played" / kind) for kind in options.played}
        print(f"played: {alone}", flush=True)
        for kind in {"act", "diffusion"} & {*options.played}:
            results[kind] = visuomotor(kind, Path(root) / "played" / kind)
            print(f"{kind}: {results[kind]}", flush=True)
        for case in options.cases:
            results[case] = compare(case, Path(root) / case)
        # one of each family
        plain = [case for case in options.cases if case in (*CLASSES, "groot_n1_7")]
        reference(plain)
        for case in options.cases:
            folder = Path(root) / case
            if case in plain:
                mine, theirs = (np.load(folder / f"{name}.npz") for name in ("written", "ours"))
                results[case]["peft_written"] = max(
                    float(np.abs(mine[key] - theirs[key]).max()) for key in mine
                )
            if case in plain and (folder / "exported.npz").exists():
                results[case]["exported"] = float(
                    np.abs(
                        np.load(folder / "exported.npz")["chunk"]
                        - np.load(folder / "answers.npz")["chunk"]
                    ).max()
                )
            print(f"{case}: {results[case]}", flush=True)
    peft = [
        result[key]
        for result in results.values()
        for key in ("peft_read", "peft_written")
        if key in result
    ]
    summary = {
        "families": sorted({result["family"] for result in results.values()}),
        "worst_difference": max((result["difference"] for result in results.values()), default=0.0),
        "layouts_loaded": len(results),
        "peft_round_trips": sum(value <= 1e-5 for value in peft),
        "worst_peft_difference": max(peft, default=0.0),
        "config_keys_unread": sorted(
            {key for result in results.values() for key in result["unread"]}
        ),
        "played": alone,
        "cases": results,
    }
    print(json.dumps({key: value for key, value in summary.items() if key != "cases"}))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    worst = max(summary["worst_difference"], summary["worst_peft_difference"], *alone.values())
    if worst > 1e-5 or summary["config_keys_unread"]:
        sys.exit("expected differences of at most 1e-5 and no unread key")


if __name__ == "__main__":
    main()
