"""A data loader whose position can be saved and resumed exactly, also on another number of replicas.

torch's DataLoader reads ahead: when a checkpoint is written, its workers have taken samples that nobody has trained
on. So the position is counted where batches are handed out, not where indices are read.

Worker processes are seeded by (seed, epoch, position, rank). torch draws their seed from the rank's own random state,
which all ranks have often set alike: then the augmentations of all ranks would be the same ones.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dtcourse.data.sampler import DistributedSampler
from dtcourse.data.token_batches import TokenBatchSampler
from dtcourse.torch_private import stop_workers


class ResumableLoader:
    """Batches of one replica; `state_dict()` at any moment says which samples have been handed out.

    sampler:    DistributedSampler with a batch_size, or TokenBatchSampler, which makes batches itself, without
    batch_size: of this replica
    options:    DataLoader's own (num_workers, pin_memory, collate_fn, drop_last, ...)
    The position counts steps in which all replicas take part, so it is the same on each of them after each step. A
    batch counts as soon as it is handed out: save the position after the optimizer's step, with the weights.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: DistributedSampler | TokenBatchSampler,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        self.dataset, self.sampler, self.batch_size = dataset, sampler, batch_size
        self.drop_last = bool(options.get("drop_last"))
        self._generator = options.setdefault("generator", torch.Generator())
        if isinstance(sampler, TokenBatchSampler):
            if batch_size is not None:
                raise ValueError(f"{sampler} decides how large a batch is: leave batch_size out")
            self._loader = DataLoader(dataset, batch_sampler=sampler, **options)
        else:
            if batch_size is None or batch_size < 1:
                raise ValueError(f"batch_size is at least 1; got {batch_size}")
            self._loader = DataLoader(dataset, batch_size, sampler=sampler, **options)
        # The epoch has been read to its end here, not in the run that was resumed.
        self._over = False

    def __len__(self) -> int:
        """Batches that are left in this epoch."""
        samples = len(self.sampler)
        if self.batch_size is None:
            return samples  # the sampler's items are batches
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """The rest of this epoch; after its end, the same epoch again (call set_epoch for another order).

        RuntimeError, with what to do, where a worker process dies.
        """
        if self._over:
            self.sampler.restart()
            self._over = False
        s = self.sampler
        seeds = random.Random(f"{s.seed} {s.epoch} {s.consumed} {s.rank}")
        self._generator.manual_seed(seeds.getrandbits(63))
        batches = iter(self._loader)
        while True:
            try:
                batch = _next(batches)
            except StopIteration:
                break
            except (RuntimeError, ConnectionError, EOFError) as error:
                # An exception of the dataset itself reads "Caught ... in DataLoader worker process".
                lost = not isinstance(error, RuntimeError) and self._loader.num_workers > 0
                if not lost and "DataLoader worker (pid" not in str(error):
                    raise
                _stop(batches)
                raise RuntimeError(
                    f"a worker process of the data loader died ({error}). Out of memory, or a crash in a decoder? "
                    "Run with num_workers=0 to see the error where it happens; state_dict() is where to resume."
                ) from error
            # Whole batches, also where this replica's last one is smaller: the position is that of all replicas.
            s.advance(1 if self.batch_size is None else self.batch_size)
            yield batch
        s.finish()
        self._over = True

    def set_epoch(self, epoch: int) -> None:
        """See Position.set_epoch."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was handed out last."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after that batch."""
        self.sampler.load_state_dict(state)
        self._over = False


def _next(batches: Iterator[Any]) -> Any:
    """The next batch. Where a connection to a worker is lost, torch's word on that worker may come a moment later, from
    a signal handler: it shall come here, and not in the middle of what its caller does about it.
    """
    try:
        return next(batches)
    except (ConnectionError, EOFError):
        time.sleep(0.1)
        raise


def _stop(batches: Any) -> None:
    """Ends the workers that live. torch reports a dead one from a signal handler, which would go off again with each
    other child that ends, wherever this process is then; so let it go off here, and be done with.
    """
    with contextlib.suppress(RuntimeError):
        time.sleep(0.1)
    with contextlib.suppress(RuntimeError, AttributeError):
        stop_workers(batches)
