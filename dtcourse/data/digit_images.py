"""1,797 handwritten digits of 8x8 pixels, which scikit-learn ships in its wheel (UCI, Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from dtcourse.plural import plural


class Digits(TensorDataset):
    """Pairs (image, label), all of them also at hand as two tensors.

    images: float32 in [0, 1], (N, 1, 8, 8), or (N, 64) when flat
    labels: int64 in 0 to 9, (N,)
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__(images, labels)

    @property
    def images(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def labels(self) -> torch.Tensor:
        return self.tensors[1]

    def __repr__(self) -> str:
        return f"Digits({plural(len(self), 'image')} of shape {tuple(self.images.shape[1:])})"


def digits(
    split: str = "train", *, flat: bool = False, seed: int = 0, test_fraction: float = 0.2
) -> Digits:
    """The digits, shuffled once by `seed` and cut into a training and a test set.

    split: "train", "test" or "all". The first two are disjoint and together make "all"; every rank that gives the
        same seed and fraction gets the same images in the same order.
    test_fraction: the share of the 1,797 images that is held out (0.2: 359 to test, 1,438 to train)
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f'split is "train", "test" or "all"; got {split!r}')
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is between 0 and 1; got {test_fraction}")
    images, labels = _load()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    n_test = round(len(labels) * test_fraction)
    order = {"test": order[:n_test], "train": order[n_test:], "all": order}[split]
    images, labels = images[order], labels[order]  # indexing copies: the cache stays as it is
    return Digits(images.flatten(1) if flat else images, labels)


@cache
def _load() -> tuple[torch.Tensor, torch.Tensor]:
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        )
    # What sklearn.datasets.load_digits reads, without a second for importing scipy first, in each rank that asks.
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    images = table[:, :-1].reshape(-1, 1, 8, 8) / 16  # grey levels 0 to 16
    return images, table[:, -1].long()
