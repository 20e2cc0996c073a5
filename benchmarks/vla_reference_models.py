"""Tiny policies by LeRobot's own classes, with their answers: the reference of vla_references.

It runs in LeRobot's environment:

    .venvs/references/bin/python -m benchmarks.vla_reference_models FOLDER pi0 kinds/act
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.vla_reference_cases import (
    ACTION,
    CASES,
    EMBODIMENT,
    GROOT_PIXELS,
    HORIZON,
    LEROBOT_KINDS,
    PIXELS,
    SENTENCES,
    SIZE,
    SIZE_OF_NOISE,
    STATE,
    fill,
    observations,
    square_pictures,
    statistics,
)

# module and class of each family in LeRobot
CLASSES = {
    "pi0": ("pi0", "PI0"),
    "pi05": ("pi05", "PI05"),
    "smolvla": ("smolvla", "SmolVLA"),
    "pi0_fast": ("pi0_fast", "PI0Fast"),
    "xvla": ("xvla", "XVLA"),
}
# LeRobot's classes of a module, before ``shrink`` replaced them
_ORIGINALS: dict = {}


def features(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict, dict]:
    """Return LeRobot's input and output features for pictures of these shapes (H, W, 3)."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    inputs = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, *shape[:2]))
        for camera, shape in shapes.items()
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))
    return inputs, {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))}


def tensor_statistics() -> dict:
    """Return the statistics of state and action as tensors."""
    import torch

    return {
        feature: {key: torch.tensor(value) for key, value in numbers.items()}
        for feature, numbers in statistics().items()
    }


def make_reference(case: str, folder: Path) -> None:
    """Write a tiny policy by LeRobot's own classes, and its answers in ``answers.npz``.

    In a second run, the folder holds ``ours``, adapters of our writing. The actions with them go to
    ``ours.npz``.
    """
    import torch
    from lerobot.configs.types import NormalizationMode
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
    inputs, outputs = features(PIXELS)
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
    before, after = getattr(processor, f"make_{module}_pre_post_processors")(
        config, dataset_stats=tensor_statistics()
    )
    for step in before.steps:
        if hasattr(step, "domain_id"):
            step.domain_id = domain
    given = {key: torch.from_numpy(value) for key, value in observations().items()}
    frame = {
        f"observation.images.{camera}": given[camera].permute(0, 3, 1, 2) / 255 for camera in PIXELS
    }
    frame |= {"observation.state": given["state"], "task": SENTENCES}
    batch = before(frame)

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

    demonstration = before(frame | {"action": given["action"]})

    def loss_of(actor) -> float:
        if named and family != "xvla":
            actor.model.sample_noise = lambda *_: given["noise"]
            actor.model.sample_time = lambda *_: given["uniform"] ** (1 / 1.5) * 0.999 + 0.001
        with torch.no_grad(), drawing():
            return float(actor(demonstration)[0])

    if (folder / "exported").is_dir():
        loaded = type(policy).from_pretrained(str(folder / "exported"), config=config).eval()
        np.savez(folder / "exported.npz", chunk=act(loaded))
    if family == "pi0_fast" and not (folder / "answers.npz").exists():
        clone(policy, demonstration)
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
    changed = add_adapters(policy, folder / "theirs")
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
    inputs, outputs = features(GROOT_PIXELS)

    def policy_in(place: Path):
        config = GrootConfig(
            base_model_path=str(place),
            embodiment_tag="ours",
            max_state_dim=sizes["max_state_dim"],
            max_action_dim=sizes["max_action_dim"],
            chunk_size=HORIZON,
            n_action_steps=HORIZON,
            input_features=dict(inputs),
            output_features=dict(outputs),
            device="cpu",
            use_bf16=False,
        )
        return GrootPolicy(config).eval()

    policy = policy_in(folder)
    before, after = processor_groot.make_groot_pre_post_processors(
        policy.config, dataset_stats=tensor_statistics()
    )
    for step in before.steps:
        if hasattr(step, "_proc"):
            step._proc = Qwen3VLProcessor(pixels, fast, Qwen3VLVideoProcessor(), chat_template=chat)
    given = {key: torch.from_numpy(value) for key, value in observations("groot_n1_7").items()}

    def batch_of(row: int, with_action: bool = False) -> dict:
        one = {key: value[row : row + 1] for key, value in given.items()}
        frame = {
            f"observation.images.{camera}": one[camera].permute(0, 3, 1, 2)
            for camera in GROOT_PIXELS
        }
        frame |= {"observation.state": one["state"], "task": SENTENCES[row : row + 1]}
        return before(frame | ({"action": one["action"]} if with_action else {}))

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
                losses.append(float(actor(batch_of(row, with_action=True))[0]))
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
    policy._groot_model = add_adapters(policy._groot_model, folder / "theirs")
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


def make_lerobot_policy(kind: str, folder: Path) -> None:
    """Write a tiny policy as LeRobot's class saves it, and that class's answers."""
    import torch
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )
    from transformers import AutoProcessor, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(1)
    keys = dict(LEROBOT_KINDS[kind])
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
    inputs, outputs = features(dict.fromkeys(PIXELS, (SIZE, SIZE, 3)))
    config = make_policy_config(
        kind, input_features=inputs, output_features=outputs, device="cpu", **keys
    )
    policy = get_policy_class(kind)(config).eval()
    stats = tensor_statistics() | {
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
        for camera, picture in square_pictures().items()
    }
    batch = before(
        frame | {"observation.state": torch.from_numpy(observations()["state"]), "task": SENTENCES}
    )
    torch.manual_seed(0)
    with torch.no_grad():  # LeRobot's own call for one action after the other
        policy.reset()
        actions = torch.stack([after(policy.select_action(batch)) for _ in range(HORIZON)], 1)
    np.savez(folder / "answers.npz", chunk=actions.numpy())


def add_adapters(policy, folder: Path):
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


def main() -> None:
    """Make each named folder: ``pi0`` is a case, and ``kinds/act`` a kind."""
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        kind = name.removeprefix("kinds/")
        if kind == name:
            make_reference(name, root / name)
        else:
            make_lerobot_policy(kind, root / name)


if __name__ == "__main__":
    main()
