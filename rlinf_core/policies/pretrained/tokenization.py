"""Tokenizers of published networks, and rows of tokens as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.pretrained.huggingface import read_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BEGIN = 256  # the first token of a sentence for networks from scratch, beside bytes


class Tokenizer(Protocol):
    """A map from a sentence to tokens."""

    text: str

    @property
    def size(self) -> int:
        """Tokens, without those that were added; 0 of one that reads bytes."""
        ...

    def encode(self, sentence: str, plain: bool = False) -> list[int]:
        """Return the tokens without marks of beginning or end.

        With ``plain``, text that looks like a special token is read as plain words.
        """
        ...

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, or None if it is unknown."""
        ...


class ByteTokenizer:
    """One token per byte, for networks from scratch."""

    text, size = "", 0

    def encode(self, sentence: str, plain: bool = False) -> list[int]:
        """Return the bytes of UTF-8."""
        return list(sentence.encode())

    def token_id(self, token: str) -> int | None:
        """Return None, because no token has a name."""
        return None


class FileTokenizer:
    """A checkpoint's tokenizer, by the library tokenizers."""

    def __init__(self, text: str) -> None:
        import tokenizers

        self.text = text
        self._tokenizer = tokenizers.Tokenizer.from_str(text)

    @property
    def size(self) -> int:
        """Tokens, without those that were added."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=False)
        return size

    def encode(self, sentence: str, plain: bool = False) -> list[int]:
        """Return the tokens like in training."""
        self._tokenizer.encode_special_tokens = plain
        return list(self._tokenizer.encode(sentence, add_special_tokens=False).ids)

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, or None if it is unknown."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id


def read_tokenizer(path: Path) -> FileTokenizer:
    """Return the tokenizer of a tokenizer.json; raise PolicyFileError if it is invalid."""
    return parse_tokenizer(read_text(path), path)


def parse_tokenizer(text: str, path: Path) -> FileTokenizer:
    """Return the tokenizer of a tokenizer.json's text; a PolicyFileError names ``path``."""
    try:
        return FileTokenizer(text)
    except Exception as error:  # the library raises nothing more specific
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a tokenizer, got: {error}. Copy the file again"
        ) from error


def make_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json's text; bytes for an empty text."""
    return FileTokenizer(text) if text else ByteTokenizer()


def decode_instruction(row: bytes, policy_name: str) -> str:
    """Return the instruction in a row of bytes (``specs.arrays``).

    Raises:
        SpecError: the instruction is empty.
    """
    sentence = row.rstrip(b"\0").decode()
    if not sentence.strip():
        raise SpecError(
            f"instruction: expected a sentence, which {policy_name} acts on, got none. It is the "
            "task's 'instruction'"
        )
    return sentence


def pad_tokens(
    sentences: Sequence[Sequence[int]],
    device: torch.device,
    before: Sequence[int] = (),
    multiple: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return padded tokens (B, L) and their mask, with ``before`` put before each sentence.

    Shorter sentences end sooner. The longest is also padded, to a multiple of ``multiple``.
    """
    import torch

    longest = round_up(max(map(len, sentences)), multiple)
    ids = torch.tensor(
        [[*before, *tokens, *[0] * (longest - len(tokens))] for tokens in sentences], device=device
    )
    lengths = torch.tensor([len(before) + len(tokens) for tokens in sentences], device=device)
    return ids, torch.arange(ids.shape[1], device=device) < lengths[:, None]


def round_up(length: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-length // multiple) * multiple
