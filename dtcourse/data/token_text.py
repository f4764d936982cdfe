"""Text as numbers: a language-modelling dataset from Python's own reference manual, or from a file of your own.

The default text is `pydoc_data.topics`, what `help("topics")` prints: about 0.46 million characters of technical
English and code, in every Python. It is the same for everybody who runs the same Python, and differs a little from one
minor version to the next, so a loss measured on it belongs to the Python it was measured with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch.utils.data import Dataset

from dtcourse.plural import plural


class ByteTokenizer:
    """A token is a byte of UTF-8: a vocabulary of 256 that can encode any text."""

    vocab = 256

    def encode(self, string: str) -> torch.Tensor:
        return torch.tensor(list(string.encode()), dtype=torch.int64)

    def decode(self, tokens: torch.Tensor | Iterable[int]) -> str:
        """Bytes that are not UTF-8 (a model may write them) become the replacement character."""
        return bytes(_integers(tokens)).decode(errors="replace")

    def __repr__(self) -> str:
        return "ByteTokenizer(vocab=256)"


class CharTokenizer:
    """A token is a character; the vocabulary is the characters of one text, in the order of their code points."""

    def __init__(self, string: str) -> None:
        self.characters = sorted(set(string))
        self._index = {character: i for i, character in enumerate(self.characters)}

    @property
    def vocab(self) -> int:
        return len(self.characters)

    def encode(self, string: str) -> torch.Tensor:
        try:
            return torch.tensor([self._index[c] for c in string], dtype=torch.int64)
        except KeyError as error:
            raise ValueError(
                f"the character {error.args[0]!r} is not among the {self.vocab} of this tokenizer's text: "
                'use level="byte", which knows every text'
            ) from None

    def decode(self, tokens: torch.Tensor | Iterable[int]) -> str:
        return "".join(self.characters[t] for t in _integers(tokens))

    def __repr__(self) -> str:
        return f"CharTokenizer(vocab={self.vocab})"


class TokenDataset(Dataset):
    """Blocks of `length` tokens, each with the tokens that follow: item i is (tokens_S, targets_S), both int64 (S,).

    tokens: one long sequence, 1-D, integers
    stride: tokens from the start of a block to the start of the next; None means `length`, so that blocks do not
        overlap and an epoch reads every token once (but the last few that fill no block)
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        length: int,
        *,
        stride: int | None = None,
        tokenizer: ByteTokenizer | CharTokenizer | None = None,
    ) -> None:
        self.stride = length if stride is None else stride
        if tokens.dim() != 1 or tokens.is_floating_point():
            raise ValueError(
                f"tokens is one sequence of integers; got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        if length < 1 or self.stride < 1:
            raise ValueError(
                f"length and stride are at least 1; got length={length}, stride={self.stride}"
            )
        if len(tokens) < length + 1:
            raise ValueError(
                f"{plural(len(tokens), 'token')} cannot make a block of length {length}, which needs {length + 1} "
                "(the last target is the token after the block): give a longer text or a smaller length"
            )
        self.tokens, self.length, self.tokenizer = tokens.long(), length, tokenizer

    def __len__(self) -> int:
        return (len(self.tokens) - 1 - self.length) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index % len(self) * self.stride
        block = self.tokens[start : start + self.length + 1]
        return block[:-1], block[1:]

    def decode(self, tokens: torch.Tensor | Iterable[int]) -> str:
        """The text of some tokens."""
        if self.tokenizer is None:
            raise ValueError("this dataset was made from tokens alone and has no tokenizer")
        return self.tokenizer.decode(tokens)

    def __repr__(self) -> str:
        return f"TokenDataset({plural(len(self), 'block')} of {plural(self.length, 'token')})"


def text(
    path: str | Path | None = None,
    *,
    level: str = "byte",
    split: str = "train",
    length: int = 128,
    stride: int | None = None,
    test_fraction: float = 0.1,
) -> TokenDataset:
    """A text as blocks of tokens; the last part of it is held out.

    path: a UTF-8 file, or a folder whose *.txt files are read in the order of their names; None: Python's manual
    level: "byte" (vocabulary 256) or "char" (the characters of the whole text, so both splits agree)
    split: "train", "test" or "all". The cut is in one place, so no block of one is seen in the other.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f'split is "train", "test" or "all"; got {split!r}')
    if level not in ("byte", "char"):
        raise ValueError(f'level is "byte" or "char"; got {level!r}')
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is between 0 and 1; got {test_fraction}")
    string = _python_manual() if path is None else _read(Path(path))
    tokenizer = ByteTokenizer() if level == "byte" else CharTokenizer(string)
    tokens = tokenizer.encode(string)
    cut = len(tokens) - round(len(tokens) * test_fraction)
    part = {"train": tokens[:cut], "test": tokens[cut:], "all": tokens}[split]
    return TokenDataset(part, length, stride=stride, tokenizer=tokenizer)


@cache
def _python_manual() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def _read(path: Path) -> str:
    if path.is_dir():
        files = sorted(p for p in path.glob("*.txt") if p.is_file())
        if not files:
            raise ValueError(f"no *.txt file in the folder {path}")
        return "\n\n".join(_read(file) for file in files)
    if not path.is_file():
        raise ValueError(f"no text file at {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def _integers(tokens: torch.Tensor | Iterable[int]) -> list[int]:
    return tokens.tolist() if isinstance(tokens, torch.Tensor) else list(tokens)
