"""Tiny checkpoints of published families, with random weights.

A tiny checkpoint has the family's architecture, key names, files and kind of tokenizer. It replaces
a download of gigabytes in tests of a recipe, a station or a program that reads such folders.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import PolicyFileError, nearest
from rlinf_core.core.extras import require
from rlinf_core.policies.pretrained.tokenization import FileTokenizer

CHAT = ("<|im_start|>", "<|im_end|>")
OFT, OFT_STEP = "openvla_oft", 150_000  # OpenVLA's folder with OpenVLA-OFT's two files
Vocabulary = Mapping[str, int]  # ids by token; the key "" holds the number of ids


@dataclass(frozen=True)
class Family:
    """A family's tokenizer, and its entries in the family's config.json.

    Attributes:
        kind: ``policy.kind``.
        needed: special tokens that the network must know.
        token_config: returns the config.json's entries about the tokenizer's tokens.
        horizon: actions of a chunk, if the folder stores it; else 0.
        words: True for a tokenizer like Gemma's and Llama's, of pieces of words, with bytes for
            unknown ones; False for one of bytes alone, like GPT-2's, Qwen's and SmolLM's.
        others: further special tokens of the published tokenizer.
        layout: module of the package that writes the folder; empty for the network factory.
        letters: tokens of one letter each, in addition to the bytes.
        unused: number of tokens at the vocabulary's end that are no words.
    """

    kind: str
    needed: tuple[str, ...]
    token_config: Callable[[Vocabulary], dict[str, Any]]
    horizon: int = 0
    words: bool = False
    others: tuple[str, ...] = ()
    layout: str = ""
    unused: int = 0
    letters: tuple[str, ...] = ()


def _paligemma(vocabulary: Vocabulary) -> dict[str, Any]:
    text = {"vocab_size": vocabulary[""], "bos_token_id": vocabulary["<bos>"]}
    return {"vlm_config": {"image_token_index": vocabulary["<image>"], "text_config": text}}


def _pi0_fast(vocabulary: Vocabulary) -> dict[str, Any]:
    text = {"vocab_size": vocabulary[""], "bos_token_id": vocabulary["<bos>"]}
    return {"vlm_config": {"text_config": text}}


def _groot(vocabulary: Vocabulary) -> dict[str, Any]:
    text = {
        "vocab_size": vocabulary[""],
        "bos_token_id": vocabulary["<|im_start|>"],
        "eos_token_id": vocabulary["<|im_end|>"],
    }
    return {"eagle_config": {"image_token_index": vocabulary["<IMG_CONTEXT>"], "text_config": text}}


def _openvla(vocabulary: Vocabulary) -> dict[str, Any]:
    ends = {"bos_token_id": vocabulary["<s>"], "eos_token_id": vocabulary["</s>"]}
    return {"text_config": {"vocab_size": vocabulary[""] + 256 + 64, **ends}}


def _xvla(vocabulary: Vocabulary) -> dict[str, Any]:
    ids = {
        f"{name}_token_id": vocabulary[token]
        for name, token in (("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"))
    }
    return {"florence_config": {"text_config": {"vocab_size": vocabulary[""], **ids}}}


def _qwen_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        f"{name}_token_id": vocabulary[f"<|{token}|>"]
        for name, token in (
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
            ("image", "image_pad"),
            ("video", "video_pad"),
        )
    }


def _qwen(vocabulary: Vocabulary) -> dict[str, Any]:
    return _qwen_ids(vocabulary) | {
        "text_config": {
            "vocab_size": vocabulary[""] + 256 + 8,
            "eos_token_id": vocabulary["<|im_end|>"],
        }
    }


def _groot_n1_7(vocabulary: Vocabulary) -> dict[str, Any]:
    text = {"vocab_size": vocabulary[""]}
    return {"cosmos_config": _qwen_ids(vocabulary) | {"text_config": text}}


_EAGLE = (*CHAT, "<img>", "</img>", "<IMG_CONTEXT>")
_QWEN = (*CHAT, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_PALIGEMMA: dict[str, Any] = {
    "needed": ("<bos>", "<image>"),
    "token_config": _paligemma,
    "horizon": 50,
    "words": True,
    "others": ("<pad>", "<eos>", "<unk>"),
}
_LLAMA: dict[str, Any] = {
    "needed": ("<s>", "</s>"),
    "token_config": _openvla,
    "words": True,
    "others": ("<unk>",),
}
FAMILIES: dict[str, Family] = {
    "pi0": Family("pi0", **_PALIGEMMA),
    "pi05": Family("pi05", **_PALIGEMMA),
    "dexbotic_pi0": Family("pi0", **_PALIGEMMA, layout="dexbotic"),
    "smolvla": Family(
        "smolvla",
        (),
        lambda vocabulary: {"vlm_config": {"text_config": {"vocab_size": vocabulary[""]}}},
        50,
        others=(*CHAT, "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    ),
    "groot": Family("groot", _EAGLE, _groot, 50),
    "groot_n1_6": Family("groot_n1_6", _EAGLE, _groot, 50),
    "groot_n1_7": Family("groot_n1_7", _QWEN, _groot_n1_7, 40),
    "openvla": Family("openvla", **_LLAMA),
    OFT: Family("openvla", **_LLAMA),
    "pi0_fast": Family(
        "pi0_fast",
        ("<bos>",),
        _pi0_fast,
        50,
        words=True,
        others=("<pad>", "<eos>", "<unk>"),
        unused=256,
        letters=("|",),
    ),
    "xvla": Family("xvla", ("<s>", "<pad>", "</s>"), _xvla, 32, others=("<unk>", "<mask>")),
    "qwen_vl": Family("qwen_vl", _QWEN, _qwen),
}


def write(
    family: str,
    folder: Path,
    network: Mapping[str, Any] | None = None,
    tokenizer: str = "",
    horizon: int = 0,
    actions: int = 7,
    state: int = 8,
    seed: int = 0,
) -> Path:
    """Write a new folder in the family's published format.

    Args:
        family: one of ``FAMILIES``.
        folder: a new folder, or an empty one.
        network: changes to the smallest network of its architecture, by the keys of its
            config.json.
        tokenizer: the text of a tokenizer.json, for example a published one; empty for a small one
            of the same kind.
        horizon: actions of a chunk (``policy.horizon``); 0 for the family's.
        actions, state: numbers of an action and of a state, for OpenVLA-OFT's other files.
        seed: seed of its weights.

    Raises:
        PolicyFileError: no such family, the folder is not empty, or the tokenizer lacks a token
            that the family needs.
    """
    require("vla", "a tiny checkpoint")
    import torch
    from safetensors import SafetensorError

    family_spec = FAMILIES.get(family)
    if family_spec is None:
        raise PolicyFileError(
            f"family: expected one of {', '.join(FAMILIES)}, got "
            f"'{family}'{nearest(family, FAMILIES)}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolicyFileError(
            f"{folder}: expected a new folder, or an empty one, found something. Nothing is "
            f"overwritten",
            code="RL-E207",
        )
    text = tokenizer or byte_tokenizer(family_spec)
    token_config = family_spec.token_config(_read_vocabulary(family_spec, family, text))
    config = _merged(network or {}, token_config)
    package = f"rlinf_core.policies.pretrained.{family_spec.kind}"
    factory = importlib.import_module(f"{package}.network").FACTORY
    layout = (
        importlib.import_module(f"{package}.{family_spec.layout}")
        if family_spec.layout
        else factory
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            new_network = factory.from_scratch(config, horizon or family_spec.horizon)
            layout.save_folder(new_network, FileTokenizer(text), folder)
            if family == OFT:
                from rlinf_core.policies.pretrained.openvla import heads

                width = new_network.language_model.config.hidden_size
                heads.save_parts(
                    folder,
                    OFT_STEP,
                    {
                        heads.HEAD: heads.ActionHead(width, actions),
                        heads.PROJECTOR: heads.ProprioProjector(state, width),
                    },
                )
    except (OSError, SafetensorError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise PolicyFileError(
            f"{folder}: cannot be written: {error}. Nothing was left there. Free disk space, or "
            "choose another folder",
            code="RL-E207",
        ) from error
    return folder


def byte_tokenizer(family: Family) -> str:
    """Return a tokenizer.json of the family's kind that knows every byte and no word."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    special = (*family.others, *family.needed)
    if family.words:
        vocabulary = {
            token: number
            for number, token in enumerate(
                (
                    *special,
                    *(f"<0x{byte:02X}>" for byte in range(256)),
                    "▁",
                    "\n",
                    *family.letters,
                    *(f"<unused{number}>" for number in range(family.unused)),
                )
            )
        }
        tokenizer = Tokenizer(
            BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        tokenizer = Tokenizer(
            BPE(
                {
                    letter: number
                    for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
                },
                [],
            )
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    text: str = tokenizer.to_str()
    return text


def _read_vocabulary(family_spec: Family, family: str, text: str) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        vocabulary: dict[str, int] = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises many kinds
        raise PolicyFileError(
            f"tokenizer: expected the text of a tokenizer.json, got: {error}"
        ) from error
    if missing := [token for token in family_spec.needed if token not in vocabulary]:
        raise PolicyFileError(
            f"tokenizer: expected {', '.join(missing)}, which a {family} needs, in what it knows; "
            f"found {'neither' if len(missing) > 1 else 'none'}. Give that of a published "
            f"{family}, or none"
        )
    return vocabulary | {"": max(vocabulary.values()) + 1}


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two maps recursively; ``changes`` overrides."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _merged(below, value)
        merged[key] = value
    return merged
