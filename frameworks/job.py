"""The job that each script of this folder does, and nothing of any framework but PyTorch's model and dataset.

A two-layer MLP learns scikit-learn's digits: 20 steps of SGD on batches of 64, by two processes. Weights and order of
the images are drawn by NumPy, so that frameworks which cannot share a random number generator begin at one place.
LOSSES is what plain PyTorch finds in one process (plain.py), in double precision, so that no rounding of its own is in
them. The scripts compute in float32, as people do; one that is not within EQUAL of each loss fails.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import TensorDataset

SEED, STEPS, BATCH, LR = 0, 20, 64, 0.1
SIZES = (64, 128, 10)  # pixels of an image, the hidden layer, the ten digits
EQUAL = 5e-7  # a loss above 2 is rounded to 2.4e-7 in float32
RESULT = (
    "DTCOURSE_FRAMEWORK_RESULT"  # the environment variable with the file that a run writes, if any
)

LOSSES = [
    2.340452620, 2.307647558, 2.306604084, 2.225223960, 2.235308441,
    2.193323549, 2.135598421, 2.152344169, 2.071578632, 2.074503626,
    2.050081143, 1.999708412, 1.917058744, 1.893543020, 1.882046406,
    1.786856832, 1.786890165, 1.789119204, 1.717478410, 1.629599262,
]  # fmt: skip


def data() -> tuple[np.ndarray, np.ndarray]:
    """The images of all steps in the order of training, (1280, 64) float32 in [-1, 1], and their labels, int64."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ImportError("the digits come with scikit-learn: pip install scikit-learn")
    # What sklearn.datasets.load_digits reads, without the seconds that importing it takes in each process.
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.RandomState(SEED).permutation(len(labels))[: STEPS * BATCH]
    return (images[order] / 8 - 1).astype(np.float32), labels[order].astype(np.int64)


def batches(rank: int = 0, world_size: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each step, a rank's part of the batch: every second image where there are two ranks."""
    images, labels = data()
    for start in range(0, len(labels), BATCH):
        mine = slice(start + rank, start + BATCH, world_size)
        yield images[mine], labels[mine]


def weights() -> dict[str, np.ndarray]:
    """The start: (out, in) float32 weights and biases, drawn as nn.Linear draws them, under nn.Sequential's names."""
    random = np.random.RandomState(SEED)
    drawn = {}
    for name, n_in, n_out in (("0", *SIZES[:2]), ("2", *SIZES[1:])):
        limit = n_in**-0.5
        drawn[f"{name}.weight"] = random.uniform(-limit, limit, (n_out, n_in)).astype(np.float32)
        drawn[f"{name}.bias"] = random.uniform(-limit, limit, n_out).astype(np.float32)
    return drawn


def torch_data() -> TensorDataset:
    """The images and labels in the order of training, as a PyTorch dataset: not to be shuffled."""
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(*map(torch.from_numpy, data()))


def torch_model() -> nn.Sequential:
    """The model in PyTorch."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights().items()})
    return model


def start(main: Callable[[int, int, str], None], world_size: int = 2) -> None:
    """Run main(rank, world_size, "host:port") in processes of its own, for a framework that brings no launcher.

    Raises ValueError where one of them fails.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    fresh = multiprocessing.get_context("spawn")
    ranks = [fresh.Process(target=main, args=(i, world_size, address)) for i in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if bad := [i for i, rank in enumerate(ranks) if rank.exitcode]:
        raise ValueError(f"rank {bad[0]} failed")


class Log:
    """The losses of a process, step by step, and when and after how many bytes on the loopback device each came."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._seconds: list[float] = []
        self._bytes: list[int | None] = []

    def step(self, loss: float) -> None:
        """A step's loss, when the step is over."""
        self.losses.append(float(loss))
        self._seconds.append(time.monotonic())
        self._bytes.append(loopback_bytes())

    def report(self, losses: Iterable[float] | None = None) -> None:
        """Say how far the job's losses are from plain PyTorch's, by one process and once.

        losses: of the whole batch, one a step; default: this process's own

        Raises ValueError where a step's loss is not equal.
        """
        found = [float(loss) for loss in (self.losses if losses is None else losses)]
        if len(found) != STEPS:
            raise ValueError(f"{len(found)} losses, and the job has {STEPS} steps")
        apart = [abs(a - b) for a, b in zip(found, LOSSES, strict=True)]
        print(
            f"losses {found[0]:.6f} to {found[-1]:.6f}, at most {max(apart):.1e} from plain PyTorch's"
        )
        if not max(apart) <= EQUAL:  # a NaN is not equal either
            step = next(i for i, each in enumerate(apart) if not each <= EQUAL)
            raise ValueError(
                f"not equal: step {step} has loss {found[step]}, and plain PyTorch {LOSSES[step]}"
            )
        if path := os.environ.get(RESULT):
            about = {"losses": found, "largest_difference": max(apart), **self._costs()}
            Path(path).write_text(json.dumps(about), encoding="utf-8")

    def _costs(self) -> dict[str, float | None]:
        """Seconds of a step, the median, and bytes of a step, the mean; the first step warms up and does not count."""
        gaps = [b - a for a, b in zip(self._seconds, self._seconds[1:], strict=False)]
        ends = self._bytes[0] if self._bytes else None, self._bytes[-1] if self._bytes else None
        return {
            "step_seconds": statistics.median(gaps) if gaps else None,
            "step_bytes": (ends[1] - ends[0]) / len(gaps) if gaps and ends[0] is not None else None,
        }


def loopback_bytes() -> int | None:
    """Bytes that the loopback device has sent so far, headers included; None where nothing else is kept from it."""
    if not os.environ.get("DTCOURSE_FRAMEWORK_ALONE"):
        return None
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return None
