"""A data loader whose position can be saved and resumed exactly, also on another number of replicas.

torch's DataLoader reads ahead: when a checkpoint is written, its workers have taken samples that nobody has trained
on. So the position is counted where batches are handed out, not where indices are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from dtcourse.data.sampler import DistributedSampler


class ResumableLoader:
    """Batches of one replica; `state_dict()` at any moment says which samples have been handed out.

    batch_size: of this replica.  options: DataLoader's own (num_workers, pin_memory, collate_fn, ...).
    A batch counts as used when the next one is asked for, or when `state_dict` is called after it was handed out.
    """

    def __init__(
        self, dataset: Dataset[Any], sampler: DistributedSampler, batch_size: int, **options: Any
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1; got {batch_size}")
        self.dataset, self.sampler, self.batch_size, self.options = (
            dataset,
            sampler,
            batch_size,
            options,
        )
        self._options_of_torch = {"batch_size": batch_size, "sampler": sampler, **options}

    def __len__(self) -> int:
        """Batches that are left in this epoch."""
        samples = len(self.sampler)
        if self.options.get("drop_last"):
            return samples // self.batch_size
        return -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """The rest of this epoch. RuntimeError, with what to do, where a worker process dies."""
        left = len(self.sampler)
        batches = iter(DataLoader(self.dataset, **self._options_of_torch))
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if "worker" not in str(error):
                    raise
                raise RuntimeError(
                    f"a worker process of the data loader died ({error}). Out of memory, or a crash in a decoder? "
                    "Run with num_workers=0 to see the error where it happens; state_dict() is where to resume."
                ) from error
            size = min(self.batch_size, left)
            left -= size
            self.sampler.advance(size)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """See DistributedSampler.set_epoch."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """The position after the batch that was handed out last."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on after that batch."""
        self.sampler.load_state_dict(state)
