"""FAST: a chunk to tokens and back, by a cosine transform, rounding and byte-pair encoding.

Pertsch et al. 2025, arXiv 2501.09747, as the published tokenizer does it
(physical-intelligence/fast on Hugging Face).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.huggingface import read_json, read_text

# A tokenizer without a file has a token for each coefficient from LEAST to MOST.
SCALE, LEAST, MOST = 10.0, -128, 127
CONFIGS = ("processor_config.json", "preprocessor_config.json")
SOURCE = "hf download lerobot/fast-action-tokenizer --local-dir CHECKPOINT/fast"


class ActionTokenizer:
    """Converts normalised actions (H, A) to token ids and back.

    Args:
        text: text of a tokenizer.json whose letters are coefficients. If it is empty, each
            coefficient is a token.
        scale: factor of coefficients before they are rounded.
        least: coefficient of the letter 0.
    """

    def __init__(self, text: str = "", scale: float = SCALE, least: int = LEAST) -> None:
        self.text, self.scale, self.least = text, scale, least
        self._tokenizer: Any = None
        if text:
            import tokenizers

            self._tokenizer = tokenizers.Tokenizer.from_str(text)

    @property
    def size(self) -> int:
        """Number of tokens."""
        size: int = self._tokenizer.get_vocab_size() if self._tokenizer else MOST - LEAST + 1
        return size

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"text": self.text, "scale": self.scale, "least": self.least}

    def encode(self, actions: np.ndarray) -> list[int]:
        """Return the token ids of normalised actions (H, A)."""
        coefficients = np.around(_cosines(len(actions)) @ actions * self.scale)
        letters = np.maximum(coefficients.ravel() - self.least, 0).astype(int)
        if self._tokenizer is None:
            return np.minimum(letters, MOST - LEAST).tolist()
        return list(
            self._tokenizer.encode("".join(map(chr, letters)), add_special_tokens=False).ids
        )

    def decode(self, ids: Sequence[int], horizon: int, size: int) -> np.ndarray:
        """Return the normalised actions (H, A) of token ids.

        Ids outside of the vocabulary give zeros. Too few coefficients are filled up with zeros, and
        surplus ones are dropped.
        """
        count = horizon * size
        if not all(0 <= number < self.size for number in ids):
            return np.zeros((horizon, size))
        if self._tokenizer is None:
            letters = list(ids)
        else:
            letters = [
                ord(letter)
                for letter in self._tokenizer.decode(list(ids), skip_special_tokens=False)
            ]
        coefficients = np.zeros(count)
        written = np.array(letters[:count], float) + self.least
        coefficients[: len(written)] = written
        return _cosines(horizon).T @ coefficients.reshape(horizon, size) / self.scale


@functools.lru_cache(8)
def _cosines(count: int) -> np.ndarray:
    """Return the orthonormal DCT-II of ``count`` numbers as a matrix."""
    rows, columns = np.arange(count)[:, None], np.arange(count)[None]
    matrix = math.sqrt(2.0 / count) * np.cos(math.pi * (columns + 0.5) * rows / count)
    matrix[0] /= math.sqrt(2.0)
    return matrix


def letter_tokenizer(count: int) -> str:
    """Return a tokenizer.json with one token for each of the first ``count`` letters.

    The last token represents all further letters.
    """
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE({chr(i): i for i in range(count)}, [], unk_token=chr(count - 1)))
    tokenizer.decoder = decoders.Fuse()
    text: str = tokenizer.to_str()
    return text


def read_action_tokenizer(folder: Path) -> ActionTokenizer:
    """Return the published tokenizer in a checkpoint's folder ``fast``.

    Raises:
        PolicyFileError: a file is missing, or lacks a number.
    """
    path = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    if path is None or not (folder / "tokenizer.json").is_file():
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected {CONFIGS[0]} and tokenizer.json of FAST, found "
            f"not both. Fetch them: {SOURCE}"
        )
    document = read_json(path)
    scale, least = document.get("scale"), document.get("min_token")
    if not isinstance(scale, int | float) or not scale > 0 or type(least) is not int:
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected scale above 0 and min_token as a whole number, "
            f"got {scale!r:.40} and {least!r:.40}"
        )
    text = read_text(folder / "tokenizer.json")
    try:
        return ActionTokenizer(text, float(scale), least)
    except Exception as error:  # the library raises nothing else
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected a tokenizer, got: {error}. Copy tokenizer.json "
            "again"
        ) from error
