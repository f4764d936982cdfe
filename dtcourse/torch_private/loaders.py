"""What a DataLoader's iterators are."""

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = ["LoaderIterator", "stop_workers"]


def stop_workers(batches: Any) -> None:
    """Ends the worker processes of a DataLoader's iterator; AttributeError where it has none."""
    batches._shutdown_workers()
